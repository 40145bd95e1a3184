"""The left-trivialized gradient: closed forms, compiled code, bad input; tests/groups/test_with_sde.py has its law."""

import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, randn, random_elements, stein_z_scores
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SL, HeatSymmetry, LieGroup
from trivgeo.sde import trivialized_grad


def energy(group: LieGroup, g: Tensor) -> Tensor:
    """A generic smooth function of elements."""
    flat = g.flatten(-len(group.element_shape))
    weights = torch.linspace(-1.0, 1.5, flat.shape[-1], dtype=g.dtype)
    return torch.sin(flat @ weights) + 0.3 * (flat**2).sum(-1)


def test_right_haar_score_of_aff1() -> None:
    """Closed form on Aff(1): X_a = d_a, X_b = e^a d_b."""
    group = affine_line()
    g = randn(5, 2)
    gradient = trivialized_grad(group, lambda x: x[..., 0] ** 2 + 3 * x[..., 1], g)
    assert_relative(gradient, torch.stack([2 * g[:, 0], 3 * g[:, 0].exp()], -1), 1e-12)


def test_stein_identity() -> None:
    """On Aff(1): samples of exp(-E) for left Haar measure pass; for an energy without the factor e^a they fail."""
    g = torch.tensor([0.3, 0.5]).double() + torch.tensor([0.4, 0.5]).double() * randn(5000, 2)
    right = lambda g: (g[..., 0] - 0.3) ** 2 / 0.32 + (g[..., 1] - 0.5) ** 2 / 0.5  # noqa: E731
    left = lambda g: right(g) - g[..., 0]  # noqa: E731
    functions = [lambda g: g[..., 0], lambda g: (g[..., 0] * g[..., 1]).sin()]
    assert float(stein_z_scores(affine_line(), left, g, functions).abs().max()) < 4
    assert float(stein_z_scores(affine_line(), right, g, functions).abs().max()) > 8


def test_compiles() -> None:
    group = HeatSymmetry(0.1)
    g = random_elements(group, 3, std=0.3)
    torch._dynamo.reset()
    f = torch.compile(lambda x: trivialized_grad(group, lambda y: energy(group, y), x), fullgraph=True, backend="eager")
    assert_relative(f(g), trivialized_grad(group, lambda y: energy(group, y), g), 1e-12)


def test_bad_input() -> None:
    group = SL(2)
    g = group.identity(3)
    with pytest.raises(ShapeError, match="one number per element"):
        trivialized_grad(group, lambda x: x.sum(), g)
    with pytest.raises(ShapeError, match="one number per element"):
        trivialized_grad(group, lambda x: x.flatten(-2), g)
    with pytest.raises(ShapeError, match="expected elements"):
        trivialized_grad(group, lambda x: x.sum((-1, -2)), torch.zeros(3))
    with pytest.raises(ConfigurationError, match="group"):
        trivialized_grad(lambda x: x.sum((-1, -2)), group, g)  # type: ignore[arg-type]
