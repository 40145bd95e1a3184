"""Runge-Kutta schemes on groups: conditions of order of the tableaux, and schemes of one's own, which are tableaux."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SO, LieGroup
from trivgeo.sde import ConstantSchedule, TrivializedSDE, solve, uniform_grid
from trivgeo.sde.solvers import (
    ButcherTableau,
    DormandPrince5,
    GeometricHeun,
    RungeKuttaMuntheKaas,
    RungeKuttaMuntheKaas4,
    StepState,
)


class Kutta3(RungeKuttaMuntheKaas):
    """Kutta's scheme of order 3: the example of a new one."""

    tableau = ButcherTableau(
        nodes=(0.0, 1 / 2, 1.0), stages=((), (1 / 2,), (-1.0, 2.0)), weights=(1 / 6, 2 / 3, 1 / 6), jacobian=(1 / 2,)
    )
    order: ClassVar[int | None] = 3


class BogackiShampine3(RungeKuttaMuntheKaas):
    """A pair of orders 3 and 2, whose last slope is the first of the next step."""

    tableau = ButcherTableau(
        nodes=(0.0, 1 / 2, 3 / 4, 1.0),
        stages=((), (1 / 2,), (0.0, 3 / 4), (2 / 9, 1 / 3, 4 / 9)),
        weights=(2 / 9, 1 / 3, 4 / 9, 0.0),
        error_weights=(2 / 9 - 7 / 24, 1 / 3 - 1 / 4, 4 / 9 - 1 / 3, -1 / 8),
        jacobian=(1 / 2,),
    )
    order: ClassVar[int | None] = 3


SCHEMES = (GeometricHeun, Kutta3, BogackiShampine3, RungeKuttaMuntheKaas4, DormandPrince5)


def conditions(tableau: ButcherTableau, weights: tuple[float, ...]) -> list[tuple[int, float]]:
    """Errors of sums over trees of up to four nodes, with the order that asks for each (Hairer et al., II.2)."""
    size = len(tableau.nodes)
    a = torch.tensor([[*row, *[0.0] * (size - len(row))] for row in tableau.stages], dtype=torch.float64)
    b, c = (torch.tensor(x, dtype=torch.float64) for x in (weights, tableau.nodes))
    found = [(p, b @ c ** (p - 1) - 1.0 / p) for p in (1, 2, 3, 4, 5)]
    found += [(3, b @ a @ c - 1 / 6), (4, b @ (c * (a @ c)) - 1 / 8), (4, b @ a @ c**2 - 1 / 12)]
    return [(p, abs(float(x))) for p, x in [*found, (4, b @ a @ a @ c - 1 / 24)]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_conditions_of_order(scheme: type[RungeKuttaMuntheKaas]) -> None:
    """All hold up to the order of the scheme, some fails above it; the other scheme of a pair is one order lower."""
    tableau, order = scheme().tableau, scheme.order
    assert order is not None
    rows = [(tableau.weights, order)]
    if tableau.error_weights is not None:
        rows.append((tuple(b - e for b, e in zip(tableau.weights, tableau.error_weights, strict=True)), order - 1))
    for weights, claimed in rows:
        errors = conditions(tableau, weights)
        assert max(error for p, error in errors if p <= claimed) < 1e-12
        assert claimed >= 5 or max(error for p, error in errors if p == claimed + 1) > 1e-4


def turned(group: LieGroup) -> TrivializedSDE:
    """The equation g' = cos(2 t) c g of exp(sin(2 t) c / 2), whose left-trivialized velocity is cos(2 t) Ad(g^-1) c."""
    unit = torch.eye(group.dim, dtype=torch.float64)

    def drift(g: Tensor, t: float) -> Tensor:
        rows = group.coadjoint(group.inverse(g).unsqueeze(0), unit.unsqueeze(1))
        return math.cos(2.0 * t) * torch.einsum("ibj,j->bi", rows, direction(group))

    return TrivializedSDE(group, ConstantSchedule(0.0), drift, noisy=False)


def direction(group: LieGroup) -> Tensor:
    return torch.linspace(-1.0, 1.5, group.dim, dtype=torch.float64)


@pytest.mark.parametrize("group", [SO(3), affine_line()], ids=repr)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_measured_order(scheme: type[RungeKuttaMuntheKaas], group: LieGroup) -> None:
    start, order = group.exp(direction(group).flip(0)).unsqueeze(0), scheme.order
    exact = group.compose(group.exp(0.5 * math.sin(2.0) * direction(group)), start)
    errors = [
        float((solve(turned(group), start, uniform_grid(n), stepper=scheme()).final - exact).abs().max())
        for n in (8, 16)
    ]
    assert order is not None
    assert math.log2(errors[0] / errors[1]) > order - 0.4, errors


@pytest.mark.parametrize("scheme", [BogackiShampine3, DormandPrince5])
def test_error_estimate(scheme: type[RungeKuttaMuntheKaas]) -> None:
    """Falls with the step as the error of the embedded scheme in one step does; nothing where there is one scheme."""
    group, order = SO(3), scheme.order
    sde, start = turned(group), group.exp(direction(group).flip(0)).unsqueeze(0)
    assert order is not None
    first = scheme().init(sde, start, 0.0, None)
    sizes = []
    for h in (0.2, 0.1):
        _, difference = scheme().attempt(sde, first, 0.0, h)
        assert difference is not None
        sizes.append(float(difference.norm()))
    assert math.log2(sizes[0] / sizes[1]) == pytest.approx(order, abs=0.3)
    assert Kutta3().attempt(sde, StepState(start), 0.0, 0.1)[1] is None


@pytest.mark.parametrize(
    "changed",
    [{"nodes": (0.0, 0.5)}, {"stages": ((), (1.0, 0.0))}, {"weights": (0.5, 0.6)}, {"error_weights": (1.0,)}],
    ids=str,
)
def test_bad_tableaux(changed: dict) -> None:
    with pytest.raises(ConfigurationError, match="tableau: expected rows"):
        ButcherTableau(**{"nodes": (0.0, 1.0), "stages": ((), (1.0,)), "weights": (0.5, 0.5), **changed})
