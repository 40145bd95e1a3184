"""Diagnostics: weights, masks, traces, and checks of a sample against a law."""

from __future__ import annotations

import math

import pytest
import torch

from tests.helpers import affine_line, randn, seeded
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SO, Translation
from trivgeo.sde import EnergyScore, GeometricSchedule, NoiseKernel, solve, uniform_grid
from trivgeo.sde.diagnostics import EnergyTrace, ScoreMonitor, maximum_mean_discrepancy, stein_z_scores
from trivgeo.sde.processes import KineticLangevinSDE, reverse_process

SCHEDULE = GeometricSchedule(0.1, 1.0)


def test_monitor_and_trace() -> None:
    trace = EnergyTrace(lambda g: (g**2).sum(-1), every=2)
    energy = lambda g: torch.where(g[..., 0] > 1.0, math.inf, (g**2).sum(-1) * 20)  # noqa: E731
    score = EnergyScore(energy, NoiseKernel(Translation(2), SCHEDULE, 6), 16)
    process = reverse_process(Translation(2), SCHEDULE, score)
    generator = seeded(0)
    start, _ = score.kernel.sample(50, t=1.0, generator=generator)
    grid = uniform_grid(6, 1.0, 0.0)
    monitor = solve(process, start, grid, generator=generator, observe=trace, accumulator=ScoreMonitor()).accumulated
    assert len(monitor.effective_sizes) == len(monitor.masked) == len(monitor.lost) == 6
    assert all(0 <= size <= 16 for size in monitor.effective_sizes)
    assert monitor.effective_sizes[-1] > monitor.effective_sizes[0], "less noise, more even weights"
    assert sum(monitor.masked) > 0
    assert trace.steps == [0, 2, 4, 6]
    assert trace.means[-1] < trace.means[0]


def test_trace_of_kinetic_langevin() -> None:
    energy = lambda g: (g**2).sum(-1)  # noqa: E731
    kinetic, trace = KineticLangevinSDE(Translation(1), energy), EnergyTrace(energy)
    solve(kinetic, kinetic.start(torch.full((5, 1), 10.0)), [0.0, 0.1, 0.2], observe=trace)
    assert trace.steps == [0, 1, 2]
    assert trace.means[0] == pytest.approx(100.0)


class TestStein:
    FUNCTIONS = (lambda g: g[..., 0], lambda g: (g[..., 0] * g[..., 1]).sin())

    def test_exact_samples_pass_and_others_fail(self) -> None:
        """Aff(1): the target for left Haar measure passes; without its factor e^a it fails."""
        g = torch.tensor([0.3, 0.5]).double() + torch.tensor([0.4, 0.5]).double() * randn(5000, 2)
        right = lambda g: (g[..., 0] - 0.3) ** 2 / 0.32 + (g[..., 1] - 0.5) ** 2 / 0.5  # noqa: E731
        left = lambda g: right(g) - g[..., 0]  # noqa: E731
        group = affine_line()
        good = stein_z_scores(group, left, g, self.FUNCTIONS)
        assert good.shape == (2, 2)
        assert float(good.abs().max()) < 4
        assert float(stein_z_scores(group, right, g, self.FUNCTIONS).abs().max()) > 8

    def test_shape(self) -> None:
        with pytest.raises(ShapeError, match="samples"):
            stein_z_scores(affine_line(), lambda g: g.sum(-1), torch.zeros(2), self.FUNCTIONS)


class TestDiscrepancy:
    def test_same_and_different_laws(self) -> None:
        x, y = (SO(3).random_haar(800, generator=seeded(s)).flatten(1) for s in (0, 1))
        near = SO(3).random(800, std=1.0, generator=seeded(2)).flatten(1)
        assert abs(maximum_mean_discrepancy(x, y)) < 0.003
        assert maximum_mean_discrepancy(x, near) > 0.03

    def test_bad_input(self) -> None:
        with pytest.raises(ShapeError, match="features"):
            maximum_mean_discrepancy(torch.zeros(3, 2), torch.zeros(3, 3))
        with pytest.raises(ConfigurationError, match="bandwidth"):
            maximum_mean_discrepancy(torch.zeros(3, 2), torch.zeros(3, 2), bandwidth=0.0)
