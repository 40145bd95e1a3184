"""What `trivgeo.sde` computes on every group: left-trivialized gradients and the weights of noise."""

import pytest
import torch
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap

from tests.groups.cases import CASES, GroupCase
from tests.helpers import assert_relative, numeric_jacobian, random_elements, seeded
from tests.sde.scores.test_gradient import energy
from trivgeo.groups import LieGroup
from trivgeo.sde import GeometricSchedule, NoiseKernel, trivialized_grad
from trivgeo.sde.scores import trivialized_grad_and_value


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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_lambda_is_the_modular_function(case: GroupCase) -> None:
    group = case.group
    kernel = NoiseKernel(group, GeometricSchedule(0.1, 0.4), steps=20)
    w, log_lambda = kernel.sample(20, t=0.7, generator=seeded(0), dtype=torch.float64)
    assert_relative(log_lambda, group.log_modular(w), 1e-9)
    if not group.algebra.is_unimodular:
        assert float(log_lambda.abs().max()) > 1e-3
