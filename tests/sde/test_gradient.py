"""The left-trivialized gradient against finite differences along g exp(h e_i)."""

import pytest
import torch
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap

from tests.groups.cases import GroupCase
from tests.helpers import affine_line, assert_relative, numeric_jacobian, randn, random_elements
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SL, HeatSymmetry, LieGroup
from trivgeo.sde import trivialized_grad, trivialized_grad_and_value


def energy(group: LieGroup, g: Tensor) -> Tensor:
    """A generic smooth function of elements."""
    flat = g.flatten(-len(group.element_shape))
    weights = torch.linspace(-1.0, 1.5, flat.shape[-1], dtype=g.dtype)
    return torch.sin(flat @ weights) + 0.3 * (flat**2).sum(-1)


@pytest.fixture(params=["natural", "scaled"])
def scaled_group(request: pytest.FixtureRequest, case: GroupCase) -> LieGroup:
    """pypose#257: what does a gradient mean? One component for each basis element, scale included."""
    return case.group if request.param == "natural" else case.make(scale=[0.3 + 0.1 * i for i in range(case.group.dim)])


def numeric(group: LieGroup, g: Tensor) -> Tensor:
    """Differences along g exp(h e_i)."""
    zero = torch.zeros(group.dim, dtype=g.dtype)
    return numeric_jacobian(lambda v: energy(group, group.compose(g, group.exp(v))), zero, 1e-3)


def test_finite_differences(case: GroupCase, scaled_group: LieGroup) -> None:
    group = scaled_group
    g = random_elements(case.group, 2, 3, std=case.std)
    gradient, value = trivialized_grad_and_value(group, lambda x: energy(group, x), g)
    assert gradient.shape == (2, 3, group.dim)
    assert_relative(value, energy(group, g), 1e-14)
    assert torch.equal(trivialized_grad(group, lambda x: energy(group, x), g), gradient)
    expected = torch.stack([torch.stack([numeric(group, x) for x in row]) for row in g])
    assert_relative(gradient, expected, 1e-8, event=1)


def test_composes_with_transforms(case: GroupCase, group: LieGroup) -> None:
    """geoopt#221, pypose#319: vmap and jacrev of a trivialized gradient."""
    g = random_elements(group, 3, std=case.std)

    def gradient(x: Tensor) -> Tensor:
        return trivialized_grad(group, lambda y: energy(group, y), x)

    assert_relative(vmap(gradient)(g), gradient(g), 1e-12, event=1)
    second = numeric_jacobian(
        lambda v: gradient(group.compose(g[0], group.exp(v))), torch.zeros(group.dim, dtype=g.dtype), 1e-3
    )
    for mode in (jacrev, jacfwd):
        hessian = mode(lambda v: gradient(group.compose(g[0], group.exp(v))))(torch.zeros(group.dim, dtype=g.dtype))
        assert_relative(hessian, second, 1e-7, event=2)
    # the bracket: X_i X_j f - X_j X_i f = [X_i, X_j] f, left-invariant fields represent the algebra
    antisymmetric = second.T - second
    expected = torch.einsum("ijk,k->ij", group.algebra.structure_constants, gradient(g[0]))
    assert_relative(antisymmetric, expected, 1e-6, event=2)


def test_right_haar_score_of_aff1() -> None:
    """Closed form on Aff(1): X_a = d_a, X_b = e^a d_b."""
    group = affine_line()
    g = randn(5, 2)
    gradient = trivialized_grad(group, lambda x: x[..., 0] ** 2 + 3 * x[..., 1], g)
    assert_relative(gradient, torch.stack([2 * g[:, 0], 3 * g[:, 0].exp()], -1), 1e-12)


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
