"""Bases calibrated to an energy."""

import math

import pytest
import torch
from torch import Tensor

from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import HeatSymmetry, Translation
from trivgeo.inversion import InverseProblem, calibrated_scale
from trivgeo.inversion.energies import DomainDistance
from trivgeo.sde import trivialized_grad

ROUGH = [0.02, 0.35, 0.003, 0.35, 0.02, 0.5]
ENERGY = DomainDistance((0.0, 2 * math.pi), (0.0, 16.0), (-1.0, 1.0))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def heat_problem() -> OperatorInput:
    x = torch.linspace(0, 2 * math.pi, 100, dtype=torch.float64)
    query = torch.cartesian_prod(x[::99], torch.linspace(0, 16, 5, dtype=torch.float64))
    return OperatorInput(torch.stack([x, 0 * x, torch.sin(2 * x)], -1)[None], query[None])


@pytest.mark.parametrize("unit", [1.0, [0.5, 2.0]])
def test_quadratic_energy_gives_the_inverse_square_root_of_its_hessian(unit: float | list[float]) -> None:
    """E = x^T H x / 2 on R^2: in the new basis, rows b_i, the Hessian b_i H b_j is the unit matrix."""
    hessian = torch.tensor([[5.0, 1.9], [1.9, 1.0]], dtype=torch.float64)

    def energy(x: Tensor) -> Tensor:
        return 0.5 * torch.einsum("bpi,ij,bpj->b", x, hessian, x)

    action = Translation(2, scale=unit).action()
    clean = torch.zeros(1, 1, 2, dtype=torch.float64)
    basis = calibrated_scale(action, energy, clean, num_samples=40_000, generator=seeded())
    torch.testing.assert_close(basis @ hessian @ basis.mT, torch.eye(2, dtype=torch.float64), rtol=0.03, atol=0.03)


def test_energy_of_a_moved_problem_is_round_around_its_solution() -> None:
    """One left-invariant metric suits every transformation of the datum; the rough scale does not do it."""
    clean = heat_problem()
    rough = HeatSymmetry(0.1, scale=ROUGH)
    basis = calibrated_scale(OperatorAction(rough.action()), ENERGY, clean, generator=seeded())
    hidden = rough.exp(torch.randn(4, 6, generator=seeded(1), dtype=torch.float64) * 2)
    v = 0.02 * torch.randn(200, 6, generator=seeded(2), dtype=torch.float64)
    condition = {}
    for name, group in (("calibrated", rough.with_scale(basis)), ("rough", rough)):
        action = OperatorAction(group.action())
        moments = []
        for g in hidden:
            posterior = InverseProblem(action, ENERGY).given(action(g[None], clean))
            gradient = trivialized_grad(group, posterior.energies, group.retract(g, v)[None])[0]
            moments.append(gradient.mT @ gradient)
        torch.testing.assert_close(moments[1], moments[0], rtol=1e-5, atol=1e-8)
        values = torch.linalg.eigvalsh(moments[0]).sqrt()  # of the Hessian, up to the step
        condition[name] = float(values[-1] / values[0])
    # not one: the energy has kinks at its minimum, so its "Hessian" depends on where the gradients are taken
    assert condition["calibrated"] < 5, condition
    assert condition["rough"] > 20, condition


def test_flat_directions_and_bad_settings_are_refused() -> None:
    action = Translation(2).action()
    clean = torch.zeros(1, 1, 2, dtype=torch.float64)
    with pytest.raises(DomainError, match="a flat one"):
        calibrated_scale(action, lambda x: x[:, 0, 0] ** 2, clean, generator=seeded())
    with pytest.raises(DomainError, match="finite gradients"):
        calibrated_scale(action, lambda x: x[:, 0].sum(-1) * math.nan, clean, generator=seeded())
    with pytest.raises(ConfigurationError, match="num_samples"):
        calibrated_scale(action, lambda x: x.square().sum((-1, -2)), clean.expand(3, 1, 2), num_samples=2)


def test_a_matrix_scale_keeps_the_laws_and_changes_the_coordinates() -> None:
    matrix = torch.eye(6, dtype=torch.float64) + 0.3 * torch.randn(6, 6, generator=seeded(), dtype=torch.float64)
    natural = HeatSymmetry(0.2)
    group = natural.with_scale(matrix)
    v, w = 0.3 * torch.randn(2, 5, 6, generator=seeded(1), dtype=torch.float64)
    torch.testing.assert_close(group.exp(v), natural.exp(v @ matrix), rtol=1e-12, atol=1e-12)
    g = group.exp(v)
    torch.testing.assert_close(group.log(g), v, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(group.Ad(g), torch.matrix_exp(group.algebra.ad(v)), rtol=1e-9, atol=1e-9)
    moved = group.compose(group.compose(g, group.exp(w)), group.inverse(g))
    torch.testing.assert_close(group.exp((group.Ad(g) @ w.unsqueeze(-1)).squeeze(-1)), moved, rtol=1e-9, atol=1e-9)
    h = 1e-6
    step = (group.log(group.compose(group.inverse(g), group.exp(v + h * w)))) / h
    jacobian = (group.right_jacobian(v) @ w.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(step, jacobian, rtol=1e-4, atol=1e-4)
    assert group.is_same_group(natural)
    with pytest.raises(ConfigurationError, match="invertible matrix"):
        natural.with_scale(torch.ones(6, 6))
