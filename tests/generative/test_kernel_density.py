"""Kernel densities: normalised kernels, weights that are optimal, samples, mixtures with models."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.special import ive
from scipy.stats import vonmises_fisher
from torch import Tensor, nn

from tests.helpers import seeded
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative.distributions import HaarDistribution, HeatKernelDistribution
from trivgeo.generative.kernel_density import KernelDensity, _SphereKernels
from trivgeo.generative.spaces import Sphere, Stiefel
from trivgeo.groups import SE, SO, DirectProduct, LieGroup, Torus, Translation


def on_sphere(n: int, count: int, seed: int = 0, std: float = 0.3) -> Tensor:
    """Points near a pole."""
    x = std * torch.randn(count, n + 1, generator=seeded(seed), dtype=torch.float64)
    return nn.functional.normalize(x + torch.eye(n + 1, dtype=torch.float64)[0], dim=-1)


@pytest.mark.parametrize("n", [1, 2, 3, 12])
@pytest.mark.parametrize("width", [1e-3, 0.1, 1.0, 20.0])
def test_kernels_of_spheres(n: int, width: float) -> None:
    """Beside SciPy for the area, and mass one by quadrature of the angle."""
    kernels = _SphereKernels(Sphere(n))
    centre, points = on_sphere(n, 1), on_sphere(n, 30, 1, std=0.1 * min(width, 1.0))
    found = kernels.log_kernel(kernels.between(points, centre), torch.tensor([width], dtype=torch.float64))[:, 0]
    if n < 10:  # beyond, SciPy overflows
        truth = vonmises_fisher(centre[0].numpy(), width**-2)
        expected = torch.as_tensor(truth.logpdf(points.numpy())) + kernels.log_measure("volume")
        assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6)
    angle = (torch.arange(100_000, dtype=torch.float64) + 0.5) * (math.pi / 100_000)
    ring = (n - 1) * angle.sin().log()
    at = kernels.log_kernel((2.0 - 2.0 * angle.cos()).unsqueeze(1), torch.tensor([width], dtype=torch.float64))[:, 0]
    assert float((at + ring).logsumexp(0) - ring.logsumexp(0)) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("width", [1e-4, 0.3, math.inf])
def test_draws_of_kernels(n: int, width: float) -> None:
    """The mean height is a quotient of Bessel functions; directions are uniform."""
    kernels, count = _SphereKernels(Sphere(n)), 20_000
    centre = on_sphere(n, 1)
    drawn = kernels.draw(centre.expand(count, -1), torch.full((count,), width, dtype=torch.float64), seeded(2))
    assert torch.allclose(drawn.norm(dim=-1), torch.ones(count, dtype=torch.float64), atol=1e-12)
    gap = 0.5 * (drawn - centre).square().sum(-1)  # one minus the height
    k = width**-2
    expected = 1.0 - ive((n + 1) / 2, k) / ive((n - 1) / 2, k) if k > 0 else 1.0
    assert float(gap.mean()) == pytest.approx(expected, abs=4.0 * float(gap.std()) / count**0.5)
    around = drawn - (1.0 - gap).unsqueeze(-1) * centre
    assert float((around.mean(0) / around.std()).norm()) < 5.0 / count**0.5 * (n + 1) ** 0.5


@pytest.mark.parametrize("space", [Sphere(2), Torus(2), SO(3), Translation(2)], ids=repr)
def test_no_other_weights_are_better(space: Sphere | LieGroup) -> None:
    """The likelihood of held-out points is concave in the weights: no move towards one component may raise it."""
    group = space.group if isinstance(space, Sphere) else space
    g = group.exp(0.4 * torch.randn(150, group.dim, generator=seeded(0), dtype=torch.float64))
    points = space.project(g)
    density = KernelDensity(space).fit(points[:100], points[100:])
    logs = density._component_logs(density._kernels.check(points[100:], "points"), torch.float64)
    gains = (logs - density.log_prob(points[100:]).unsqueeze(-1)).exp().mean(0)
    assert float(gains.max()) < 1.03
    assert float(density.weights.sum()) == pytest.approx(1.0)
    assert float(density.weights.min()) > 0.0


def test_a_line() -> None:
    """Mass one, and the density of two scales, near the truth; a sum of normal densities by torch."""
    wide, narrow = torch.randn(400, 1, generator=seeded(0)), 5.0 + 0.01 * torch.randn(400, 1, generator=seeded(1))
    points = torch.cat([wide, narrow]).double()[torch.randperm(800, generator=seeded(2))]
    density = KernelDensity(Translation(1)).fit(points[:600])
    normal = torch.distributions.Normal(density.centres.squeeze(1), density.widths)
    test = points[600:]
    each = normal.log_prob(test.unsqueeze(-1)).logsumexp(-1) - math.log(600)  # [400, K]
    assert torch.allclose(density.log_prob(test), (each + density.weights.log()).logsumexp(-1), atol=1e-9)
    parts = [
        torch.distributions.Normal(*(torch.tensor(x).double() for x in parameters))
        for parameters in ((0.0, 1.0), (5.0, 0.01))
    ]
    truth = torch.cat([p.log_prob(test) for p in parts], 1).logsumexp(1) - math.log(2.0)
    loss = float((truth - density.log_prob(test)).mean())
    assert -0.05 < loss < 0.15
    drawn = density.sample(4000, seeded(3))
    assert float((drawn > 4.8).double().mean()) == pytest.approx(0.5, abs=0.05)
    near = (drawn[(drawn - 5.0).abs() < 0.2] - 5.0).abs()
    assert float(near.median()) == pytest.approx(0.01 * 0.674, rel=0.3)


@pytest.mark.parametrize("space", [Sphere(2), SO(3)], ids=repr)
def test_draws_have_the_density(space: Sphere | SO) -> None:
    """The mean of the uniform density over that of the estimate, at draws of the estimate, is one."""
    group = space.group if isinstance(space, Sphere) else space
    points = space.project(group.exp(torch.randn(40, group.dim, generator=seeded(0)).double()))
    density = KernelDensity(space).fit(points)
    weights = (-density.log_prob(density.sample(600, seeded(1)))).exp()
    error = float(weights.std()) / 600**0.5
    assert error < 0.4
    assert float(weights.mean()) == pytest.approx(1.0, abs=4.0 * error)


class TestModels:
    def test_the_true_model_has_all_weight(self) -> None:
        group = SO(3)
        truth = HeatKernelDistribution(group, group.identity(), 0.4)
        points, test = truth.sample(120, seeded(0)), truth.sample(60, seeded(1))
        alone, mixed = (KernelDensity(group, models=m).fit(points) for m in ([], [truth]))
        assert float(mixed.model_weights) > 0.6
        best = truth.log_prob(test).mean()
        assert float(best - mixed.log_prob(test).mean()) < float(best - alone.log_prob(test).mean())
        assert mixed.sample(50, seeded(2)).shape == (50, 3, 3)

    def test_a_wrong_model_has_none(self) -> None:
        group = SO(3)
        turned = group.exp(torch.tensor([3.0, 0.0, 0.0]))
        points = HeatKernelDistribution(group, group.identity(), 0.2).sample(60, seeded(0))
        mixed = KernelDensity(group, models=[HeatKernelDistribution(group, turned, 0.2)]).fit(points)
        assert float(mixed.model_weights) < 0.05

    def test_refused(self) -> None:
        class Broken(nn.Module):
            def log_prob(self, points: Tensor, measure: str) -> Tensor:
                return torch.full((len(points),), math.nan)

            def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
                return torch.zeros(count, 1)

        with pytest.raises(ConfigurationError, match="models: expected models with log_prob and sample"):
            KernelDensity(Torus(1), models=[nn.Linear(1, 1)])
        with pytest.raises(NonFiniteError, match="models"):
            KernelDensity(Torus(1), models=[HaarDistribution(Torus(1)), Broken()]).fit(torch.randn(50, 1))


def test_measures_shapes_and_dtypes() -> None:
    points = on_sphere(2, 200)
    density = KernelDensity(Sphere(2)).fit(points.float())
    haar, area = (density.log_prob(points[:6].float(), measure) for measure in ("haar", "volume"))
    assert haar.dtype == torch.float32
    assert torch.allclose(haar - area, torch.full((6,), math.log(4.0 * math.pi)), atol=1e-5)
    assert torch.equal(density.log_prob(points[:6].float().reshape(2, 3, 3)), haar.reshape(2, 3))
    assert density.log_prob(points[0].float()) == pytest.approx(float(haar[0]))
    assert density.log_prob(points[:0]).shape == (0,)
    assert density.sample(0).shape == (0, 3)
    copies = KernelDensity(Sphere(2)).fit(points[:1].expand(20, 3))
    assert bool(torch.isfinite(copies.log_prob(points)).all())
    single = KernelDensity(Sphere(2)).fit(points).to(torch.float32)
    assert torch.allclose(single.log_prob(points[:6].float()), haar, atol=1e-3)
    product = DirectProduct(SO(3), Translation(3))
    pose = KernelDensity(product).fit(product.random(30, std=0.2, generator=seeded(0)))
    assert pose.sample(4, seeded(0)).shape == (4, *product.element_shape)


def test_bad_input() -> None:
    points = on_sphere(2, 20)
    for space in (Stiefel(3, 2), SE(3), 2):
        with pytest.raises(ConfigurationError, match="space: expected a Sphere or a group"):
            KernelDensity(space)  # type: ignore[arg-type]
    density = KernelDensity(Sphere(2))
    with pytest.raises(ConfigurationError, match="fitted"):
        density.log_prob(points)
    with pytest.raises(ConfigurationError, match="fitted"):
        density.sample(2)
    for share in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigurationError, match="held_out: expected a share between 0 and 1"):
            density.fit(points, share)
    with pytest.raises(ShapeError, match="points: expected two or more with kernels and some held out, got 3 and 0"):
        density.fit(points[:3])
    with pytest.raises(ShapeError, match="got 20 and 0"):
        density.fit(points, points[:0])
    with pytest.raises(ShapeError, match="points"):
        density.fit(points.reshape(4, 5, 3))
    with pytest.raises(DomainError, match="held_out"):
        density.fit(points, 2.0 * points)
    with pytest.raises(NonFiniteError, match="points"):
        density.fit(math.nan * points)
    with pytest.raises(ConfigurationError, match="measure"):
        density.fit(points).log_prob(points, measure="area")
