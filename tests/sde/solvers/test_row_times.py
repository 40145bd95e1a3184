"""Chains with times of their own: the same as each chain alone, and noise of the variances of their times."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import seeded
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import SE, SO, Torus
from trivgeo.sde import (
    EnergyScore,
    GeometricSchedule,
    NoiseKernel,
    TrivializedSDE,
    probability_flow,
    solve,
)
from trivgeo.sde.processes import reverse_process
from trivgeo.sde.solvers import DormandPrince5, ExponentialEuler, GeometricHeun, RungeKuttaMuntheKaas4

SCHEDULE = GeometricSchedule(0.3, 1.5)
ENDS = torch.tensor([[0.0, 1.0, 0.4], [0.9, 0.2, 0.4]], dtype=torch.float64)  # forth, back, and at rest
SHARES = torch.tensor([0.0, 0.1, 0.35, 0.6, 1.0], dtype=torch.float64)
GRIDS = torch.lerp(*ENDS.unsqueeze(1), SHARES.unsqueeze(-1))


def drift(g: Tensor, t: Any) -> Tensor:
    """Of SE(2), that depends on the time and the place."""
    time = t if isinstance(t, Tensor) else g.new_full(g.shape[:-2], t)
    return torch.stack([time.cos(), g[..., 0, 2].sin(), time * g[..., 0, 0]], -1)


@pytest.mark.parametrize("stepper", [ExponentialEuler(), GeometricHeun(), RungeKuttaMuntheKaas4()], ids=repr)
@pytest.mark.parametrize("as_score", [False, True])
def test_each_chain_alone(stepper: Any, as_score: bool) -> None:
    group = SE(2)
    initial = group.random(3, std=0.5, generator=seeded(0), dtype=torch.float64)
    equation = TrivializedSDE(group, SCHEDULE, None if as_score else drift, drift if as_score else None, noisy=False)
    seen: list[Tensor] = []
    found = solve(
        equation,
        initial,
        GRIDS,
        stepper=stepper,
        save_at=[2, -1],
        observe=lambda index, times, state: seen.append(times),
    )
    assert torch.equal(torch.stack(seen), GRIDS)
    assert found.saved is not None
    for row, grid in enumerate(GRIDS.T[:2]):
        alone = solve(equation, initial[row], grid, stepper=stepper, save_at=[2, -1]).saved
        assert alone is not None
        assert torch.allclose(found.saved[:, row], alone, atol=1e-12)
    assert torch.equal(found.final[2], initial[2])
    assert torch.equal(solve(equation, initial, GRIDS.numpy(), stepper=stepper).final, found.final)


@pytest.mark.parametrize("stepper", [ExponentialEuler(), GeometricHeun()], ids=repr)
def test_noise_has_the_variance_of_its_times(stepper: Any) -> None:
    count, group = 4000, Torus(1)
    grid = torch.stack([torch.zeros(2, count), torch.tensor([[0.2], [0.7]]).expand(2, count)]).double()
    zero = torch.zeros(2, count, 1, dtype=torch.float64)
    found = solve(TrivializedSDE(group, GeometricSchedule(0.1, 0.5)), zero, grid, stepper=stepper, generator=seeded(0))
    for row, t in enumerate((0.2, 0.7)):
        variance = GeometricSchedule(0.1, 0.5).variance(0.0, t)
        assert float(found.final[row].square().mean()) == pytest.approx(variance, rel=4.0 * math.sqrt(2.0 / count))


def test_reversed_processes_take_them() -> None:
    """A score given as a function, on a group that is not unimodular as well."""
    group = SO(3)
    initial = group.random_haar(3, generator=seeded(0), dtype=torch.float64)
    score = lambda g, t: -torch.as_tensor(t)[..., None] * torch.ones(*g.shape[:-2], 3).double()  # noqa: E731
    for process in (probability_flow(group, SCHEDULE, score), reverse_process(group, SCHEDULE, score)):
        rows = solve(process, initial[:1], GRIDS[:, 1:2], stepper=GeometricHeun(), generator=seeded(1)).final
        one = solve(process, initial[:1], GRIDS[:, 1], stepper=GeometricHeun(), generator=seeded(1)).final
        assert torch.allclose(rows, one, atol=1e-12)


def test_bad_input() -> None:
    group = SE(2)
    initial = group.identity(3, dtype=torch.float64)
    equation = TrivializedSDE(group, SCHEDULE, drift)
    with pytest.raises(ShapeError, match=r"one for each \[k, \*\[3\]\], got \[5, 2\]"):
        solve(equation, initial, GRIDS[:, :2])
    for wrong in (GRIDS[:1], GRIDS[[0, 2, 1]], 2.0 * GRIDS, GRIDS * math.nan, GRIDS.clone().requires_grad_()):
        with pytest.raises(DomainError, match="times"):
            solve(equation, initial, wrong)
    for stepper in (DormandPrince5(), GeometricHeun(skip_zero=True)):
        with pytest.raises(ConfigurationError, match="one grid for all chains"):
            solve(equation, initial, GRIDS, stepper=stepper)
    energy = EnergyScore(lambda g: g[..., 0, 2].square(), NoiseKernel(group, SCHEDULE, 5), num_mc=2)
    with pytest.raises(ConfigurationError, match="one grid for all chains"):
        solve(reverse_process(group, SCHEDULE, energy), initial, GRIDS)
