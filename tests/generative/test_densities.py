"""Densities of fitted models: mass one by quadrature on three groups, gradients against differences."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.generative.quadrature import rotation_rule
from tests.helpers import seeded
from trivgeo.errors import ConfigurationError
from trivgeo.generative import GroupDiffusion
from trivgeo.groups import SE, SO, LieGroup, Torus
from trivgeo.sde import trivialized_grad
from trivgeo.sde.likelihood import ExactDivergence, HutchinsonDivergence


def fitted(group: LieGroup, kind: str, spread: float = 1.0, **arguments: Any) -> GroupDiffusion:
    """Of elements about two centres, hardly trained: the density of the flow of any network has mass one.

    A long training makes peaks that a coarse rule does not resolve.
    """
    centres = group.random(2, std=spread, generator=seeded(1))
    which = torch.randint(2, (500,), generator=seeded(2))
    data = group.compose(centres[which], group.random(500, std=0.5 * spread, generator=seeded(3)))
    model = GroupDiffusion(group, kind, width=16, depth=1, **arguments)
    condition = None if not arguments else which.unsqueeze(-1).float()
    return model.fit(data, condition, steps=10, batch_size=64, learning_rate=5e-3, progress=False)


def check_uneven(density: Tensor) -> None:
    """The distribution is not the uniform one, of which the mass says nothing."""
    assert float(density.max()) > 1.5 * float(density.min())


@pytest.mark.parametrize("kind", ["diffusion", "flow"])
def test_mass_on_the_torus(kind: str) -> None:
    angle = torch.arange(24) * (2.0 * math.pi / 24)
    density = fitted(Torus(2), kind).log_prob(torch.cartesian_prod(angle, angle), tolerance=1e-3).exp()
    check_uneven(density)
    assert float(density.mean()) == pytest.approx(1.0, abs=0.01)


def test_mass_on_rotations() -> None:
    rotations, weights = rotation_rule(12)
    density = fitted(SO(3), "flow").log_prob(rotations.float(), tolerance=1e-2).exp()
    check_uneven(density)
    assert float((weights * density).sum()) == pytest.approx(1.0, abs=0.01)


def test_mass_on_motions_of_the_plane() -> None:
    """By draws of the normal base distribution, of known density: rules on a grid converge slowly here."""
    model = fitted(SE(2), "flow", 0.5)
    assert model.fitted is not None
    g = model.fitted.base.sample(2000, generator=seeded(0))
    ratio = (model.log_prob(g, tolerance=1e-2) - model.fitted.base.log_prob(g)).exp()
    check_uneven(ratio)
    assert float(ratio.mean()) == pytest.approx(1.0, abs=0.035)
    assert float(ratio.std()) < 0.39  # four standard errors are less than the bound


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        ("flow", Torus(1)),
        *(
            pytest.param(kind, group, marks=pytest.mark.slow(reason="larger groups; Torus(1) stays"))
            for kind, group in (("flow", SO(3)), ("diffusion", SE(2)))
        ),
    ],
    ids=repr,
)
def test_gradient(kind: str, group: LieGroup) -> None:
    """Along the group, and with respect to conditions, against central differences."""
    model = fitted(group, kind, condition=1).double()
    g = group.random(2, std=0.8, generator=seeded(4), dtype=torch.float64)
    c = torch.tensor([[0.0], [1.0]], dtype=torch.float64)

    def log_prob(x: Tensor, condition: Tensor = c) -> Tensor:
        return model.log_prob(x, condition=condition, tolerance=1e-5)

    step = 1e-3
    unit = step * torch.cat([torch.eye(group.dim), -torch.eye(group.dim)]).double().unsqueeze(1)
    near = torch.cat([group.retract(g, unit), g.expand(2, *g.shape)])
    shifted = c + torch.tensor([0.0] * len(unit) + [step, -step]).double()[:, None, None]
    values = log_prob(near, shifted)
    assert not values.requires_grad
    ahead, behind, more, less = values.split([group.dim, group.dim, 1, 1])
    found = trivialized_grad(group, log_prob, g)
    assert torch.allclose(found.mT, (ahead - behind) / (2.0 * step), atol=1e-2, rtol=3e-3)
    moved = c.clone().requires_grad_()
    (slope,) = torch.autograd.grad(log_prob(g, moved).sum(), moved)
    assert torch.allclose(slope.mT, (more - less) / (2.0 * step), atol=1e-2, rtol=3e-3)


def test_gradients_of_divergences_through_layer_norm() -> None:
    """Torch differentiates forward derivatives of it wrongly."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(9, 6), nn.LayerNorm(6), nn.SiLU(), nn.Linear(6, 3)).double()
    g = SO(3).random(4, generator=seeded(0), dtype=torch.float64)
    weight = network[0].weight
    shift = 1e-5 * torch.randn(weight.shape, generator=seeded(1), dtype=torch.float64)
    signs = HutchinsonDivergence().prepare(torch.zeros(4, 3, dtype=torch.float64), seeded(2))

    def field(x: Tensor) -> Tensor:
        return network(x.flatten(-2))

    for loss in (
        lambda: ExactDivergence()(SO(3), field, g)[1].sum(),
        lambda: signs(SO(3), field, g)[1].sum(),
    ):
        (slope,) = torch.autograd.grad(loss(), weight)
        values = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                weight += sign * shift
                values.append(float(loss()))
                weight -= sign * shift
        assert float((slope * shift).sum()) == pytest.approx(0.5 * (values[0] - values[1]), rel=1e-4)


def test_rows_under_vmap_are_refused() -> None:
    """Steps are chosen by the errors of all rows: the message says that rows are a batch."""
    group = SO(3)
    model = fitted(group, "flow")
    g = group.random_haar(3, generator=seeded(0))
    for call in (model.log_prob, model.carry, model.distribution().log_prob):
        with pytest.raises(ConfigurationError, match=r"instead of vmap give all rows in one call"):
            torch.func.vmap(call)(g)
    slope = torch.func.grad(lambda x: model.log_prob(x).sum())(g)
    assert slope.shape == g.shape
    assert float(slope.detach().norm()) > 0.0


def test_gradient_by_the_condition() -> None:
    """By `torch.func.grad`, against differences."""
    model = fitted(Torus(2), "flow", condition=1).double()
    g = Torus(2).random_haar(2, generator=seeded(0), dtype=torch.float64)
    c = torch.tensor([[0.2], [0.7]], dtype=torch.float64)

    def total(x: Tensor) -> Tensor:
        return model.log_prob(g, condition=x, tolerance=1e-4).sum()

    found = torch.func.grad(total)(c).detach()
    step = torch.full_like(c, 1e-3) * torch.tensor([[1.0], [0.0]])
    difference = (total(c + step) - total(c - step)) / 2e-3
    assert float(found[0, 0]) == pytest.approx(float(difference), rel=0.01)
    assert abs(float(difference)) > 1e-6
