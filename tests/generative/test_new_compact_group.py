"""A compact group says its heat kernel and its volume in its own class: noise, densities and models use them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.helpers import seeded
from trivgeo._random import uniform
from trivgeo.errors import ConfigurationError
from trivgeo.generative import GroupDiffusion
from trivgeo.generative.distributions import NormalDistribution
from trivgeo.groups import LieAlgebra, LieGroup, Torus
from trivgeo.groups.harmonic import HarmonicAnalysis, HeatKernel, log_haar_volume, slowest_rate
from trivgeo.sde import heat_kernel, trivialized_grad
from trivgeo.sde.noise import noise_with_target


class CircleKernel(HeatKernel):
    """The heat kernel of the circle, by that of the torus."""

    def __init__(self, scale: Tensor) -> None:
        kernel = heat_kernel(Torus(1, scale=scale))
        assert kernel is not None
        self._torus = kernel

    def sample(self, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return unit(self._torus.sample(variance, generator))

    def log_density(self, w: Tensor, variance: Tensor) -> Tensor:
        return self._torus.log_density(angle(w), variance)

    def score(self, w: Tensor, variance: Tensor) -> Tensor:
        return self._torus.score(angle(w), variance)


class Circle(HarmonicAnalysis, LieGroup):
    """Unit complex numbers ``[*batch, 2]``."""

    def __init__(self, scale: float | Tensor | None = None) -> None:
        super().__init__(LieAlgebra(torch.zeros(1, 1, 1, dtype=torch.float64), ["R"]), (2,), scale)

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return unit(torch.zeros(1, dtype=dtype, device=device))

    @property
    def is_compact(self) -> bool:
        return True

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        (a, b), (c, d) = g.unbind(-1), h.unbind(-1)
        return torch.stack([a * c - b * d, a * d + b * c], -1)

    def _inverse(self, g: Tensor) -> Tensor:
        return g * g.new_tensor([1.0, -1.0])

    def _exp(self, v: Tensor) -> Tensor:
        return unit(v)

    def _log(self, g: Tensor) -> Tensor:
        return angle(g)

    def _adjoint(self, g: Tensor) -> Tensor:
        return torch.ones_like(g[..., :1]).unsqueeze(-1)

    def _project(self, g: Tensor) -> Tensor:
        return g / g.norm(dim=-1, keepdim=True)

    def _random_haar(self, batch: Sequence[int], reference: Tensor, generator: torch.Generator | None) -> Tensor:
        return unit(2.0 * math.pi * uniform((*batch, 1), reference, generator))

    def _heat_kernel(self) -> HeatKernel:
        return CircleKernel(self.scale)

    def _log_natural_volume(self) -> float:
        return math.log(2.0 * math.pi)

    def _natural_representation(self) -> Tensor:
        return torch.full((1, 1, 1), 1j, dtype=torch.complex128)


def unit(v: Tensor) -> Tensor:
    return torch.cat([v.cos(), v.sin()], -1)


def angle(g: Tensor) -> Tensor:
    return torch.atan2(g[..., 1:], g[..., :1])


GROUP = Circle(scale=0.5)


def test_noise_has_its_law() -> None:
    """Drawn from the heat kernel, with its score as target, and E[cos] = exp(-V / 2)."""
    variance = torch.full((20_000,), 3.0, dtype=torch.float64)
    noise = noise_with_target(GROUP, variance, generator=seeded(0))
    assert float(noise.elements[:, 0].mean()) == pytest.approx(math.exp(-0.5 * 3.0 * 0.25), abs=0.02)
    kernel = heat_kernel(GROUP)
    assert kernel is not None
    some, at = noise.elements[:50], variance[:50]
    score = trivialized_grad(GROUP, lambda w: kernel.log_density(w, at), some)
    assert torch.allclose(noise.target[:50], score, atol=1e-9)


def test_volume() -> None:
    """Normal distributions have mass one with respect to Haar measure of mass one."""
    assert log_haar_volume(GROUP) == pytest.approx(math.log(2.0 * math.pi / 0.5))
    assert slowest_rate(GROUP) == pytest.approx(0.5 * 0.25)
    distribution = NormalDistribution(GROUP, GROUP.identity(), torch.tensor([0.3]), torch.tensor([[1.0]]))
    g = unit((torch.arange(400) + 0.5).unsqueeze(-1) * (2.0 * math.pi / 400))
    assert float(distribution.log_prob(g).exp().mean()) == pytest.approx(1.0, abs=1e-3)

    class Silent(Circle):
        """A circle that does not know its volume."""

        def _log_natural_volume(self) -> None:  # type: ignore[override]
            return None

    with pytest.raises(ConfigurationError, match="whose volume is known"):
        log_haar_volume(Silent())


def test_model() -> None:
    data = unit(0.4 * torch.randn(500, 1, generator=seeded(0)))
    model = GroupDiffusion(GROUP, width=16, depth=1).fit(data, steps=200, batch_size=128, progress=False)
    g = model.sample(200, generator=seeded(1), steps=30)
    assert torch.allclose(g.norm(dim=-1), torch.ones(200), atol=1e-5)
    assert float(g[:, 0].mean()) > 0.5
    assert bool(torch.isfinite(model.log_prob(g[:5], tolerance=1e-2)).all())
