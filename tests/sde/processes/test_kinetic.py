"""Kinetic noise: its target by integration by parts, its moments, and the diffusion run forwards and backwards."""

from __future__ import annotations

import functools
import math
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, seeded
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SO, LieGroup, Torus, Translation
from trivgeo.sde import solve, uniform_grid
from trivgeo.sde.likelihood import flow_likelihood
from trivgeo.sde.noise import KineticNoise
from trivgeo.sde.processes import KineticDiffusion, KineticState
from trivgeo.sde.processes.kinetic_diffusion import join_state
from trivgeo.sde.solvers import KineticAncestralStep, SplittingAOA

FRICTION = 1.3


@pytest.mark.parametrize("group", [Torus(2), SO(3), affine_line()], ids=repr)
@pytest.mark.parametrize("t", [0.3, 1.5])
def test_target(group: LieGroup, t: float) -> None:
    """E[grad_xi f + f T] = 0; and the variance of T is that of the joint normal law, but for curvature."""
    number = 6000
    noise = KineticNoise(group, FRICTION, steps=5).sample(torch.full((number,), t, dtype=torch.float64), seeded(0))
    flat = noise.elements.flatten(1)
    u, c = (torch.randn(n, generator=seeded(5), dtype=torch.float64) for n in (flat.shape[-1], group.dim))
    phase = flat @ u + noise.momentum @ c
    terms = phase.cos().unsqueeze(-1) * c + phase.sin().unsqueeze(-1) * noise.target
    z = terms.mean(0) / (terms.std(0) / math.sqrt(number))
    assert float(z.abs().max()) < 4.5, z
    least = 1.0 / float(KineticNoise(group, FRICTION).moments(torch.tensor(t))[2])
    assert 0.9 * least < float(noise.target.var()) < 1.7 * least


def test_moments() -> None:
    """Against the differential equations of the covariance, by fine steps; small times by their leading terms."""
    noise = KineticNoise(Torus(1), FRICTION)
    t = torch.tensor([0.5, 2.0], dtype=torch.float64)
    variance, covariance, given = noise.moments(t)
    s = torch.linspace(0, 1, 20_001, dtype=torch.float64).unsqueeze(-1) * t
    expected = torch.trapezoid(2.0 * noise.moments(s)[1], s, dim=0)
    assert_relative(variance, expected, 1e-7)
    assert_relative(covariance, (1.0 - torch.exp(-FRICTION * t)) / FRICTION, 1e-12)
    assert_relative(given, 1.0 - covariance**2 / variance, 1e-12)
    near = torch.tensor([0.0153, 0.0154], dtype=torch.float64)  # the series takes over between them
    ratio = noise.moments(near)[2] / near
    assert abs(float(ratio[1] / ratio[0]) - 1.0) < 1e-4
    assert float(noise.moments(torch.tensor([1e-6]))[2]) == pytest.approx(2.0 / 3.0 * FRICTION * 1e-6, rel=1e-4)
    assert float(noise.moments(torch.tensor(noise.time_of(3.0)))[0]) == pytest.approx(3.0)


@pytest.mark.parametrize("s", [1e-5, 1e-3, 0.01, 0.0199, 0.0201, 0.1, 2.0])
def test_moments_to_many_digits(s: float) -> None:
    """Against forty digits of the closed forms, on both sides of where the series take over."""
    with mpmath.workdps(40):
        decayed = 1 - mpmath.exp(-mpmath.mpf(s))
        variance = 2 * (mpmath.mpf(s) - decayed)
        expected = [variance, decayed, 1 - decayed**2 / variance]
    for found, value in zip(
        KineticNoise(Torus(1)).moments(torch.tensor(s, dtype=torch.float64)), expected, strict=True
    ):
        assert float(found) == pytest.approx(float(value), rel=1e-8)


@pytest.mark.parametrize("steps", [2, 3])
def test_abelian_quotient(steps: int) -> None:
    """The logarithm of the scale of x -> e^a x + b moves as on a line, exactly in however few steps."""
    number, t = 20_000, 4.0
    group = affine_line()
    noise = KineticNoise(group, FRICTION, steps)
    sample = noise.sample(torch.full((number,), t, dtype=torch.float64), seeded(0))
    variance, covariance, _ = (float(x) for x in noise.moments(torch.tensor(t)))
    pairs = torch.stack([sample.elements[:, 0], sample.momentum[:, 0]], -1)
    expected = torch.tensor([[variance, covariance], [covariance, 1.0]], dtype=torch.float64)
    spread = (expected**2 + expected.diagonal().unsqueeze(-1) * expected.diagonal()).div(number).sqrt()
    assert float(((torch.cov(pairs.mT) - expected) / spread).abs().max()) < 4.0


STD = 0.5  # of normal data on the line


def line_score(g: Tensor, momentum: Tensor, t: float, std: float = STD) -> Tensor:
    """The score of normal data of `STD` under kinetic noise."""
    variance, covariance, _ = (float(x) for x in KineticNoise(Translation(1), FRICTION).moments(torch.tensor(t)))
    total = variance + std**2
    return -(momentum - covariance / total * g) / (1.0 - covariance**2 / total)


def line_start(number: int, t: float, std: float = STD) -> KineticState:
    """Draws of the law at a time."""
    variance, covariance, _ = (float(x) for x in KineticNoise(Translation(1), FRICTION).moments(torch.tensor(t)))
    g = math.sqrt(variance + std**2) * torch.randn(number, 1, generator=seeded(0), dtype=torch.float64)
    slope = covariance / (variance + std**2)
    rest = math.sqrt(1.0 - covariance * slope) * torch.randn(number, 1, generator=seeded(1), dtype=torch.float64)
    return KineticState(g, slope * g + rest)


class TestDiffusion:
    def test_forwards(self) -> None:
        """The law of the noise, by the stepper."""
        number, t = 4000, 1.5
        process = KineticDiffusion(SO(3), FRICTION)
        start = KineticState(
            SO(3).identity(number, dtype=torch.float64),
            torch.randn(number, 3, generator=seeded(0), dtype=torch.float64),
        )
        end = solve(process, start, uniform_grid(40, 0.0, t), generator=seeded(1)).final
        other = KineticNoise(SO(3), FRICTION, 12).sample(torch.full((number,), t, dtype=torch.float64), seeded(2))
        for a, b in ((end.elements, other.elements), (end.momentum, other.momentum)):
            spread = (a.var(0) / number + b.var(0) / number).sqrt()
            assert float(((a.mean(0) - b.mean(0)) / spread).abs().max()) < 4.5

    @pytest.mark.parametrize("stepper", [SplittingAOA(), KineticAncestralStep()], ids=repr)
    def test_backwards(self, stepper: Any) -> None:
        """From the law at the end to the data, with the exact score."""
        start, end, steps = 3.0, 0.02, 50
        process = KineticDiffusion(Translation(1), FRICTION, line_score)
        grid = [start * (end / start) ** (k / steps) for k in range(steps + 1)]
        found = solve(process, line_start(40_000, start), grid, stepper=stepper, generator=seeded(2)).final
        assert float(found.elements.std()) == pytest.approx(STD, rel=0.02)
        assert float(found.momentum.std()) == pytest.approx(1.0, rel=0.02)

    @pytest.mark.parametrize("grid", [[3.0, 0.02], [3.0, 1.0, 0.1], [0.3, 0.2, 0.0]])
    def test_ancestral_steps_of_any_size(self, grid: list[float]) -> None:
        """Exact where all data are one element: element and momentum have the law of the noise at the end."""
        number = 40_000
        process = KineticDiffusion(Translation(1), FRICTION, functools.partial(line_score, std=0.0))
        start = line_start(number, grid[0], 0.0)
        end = solve(process, start, grid, stepper=KineticAncestralStep(), generator=seeded(2)).final
        moments = KineticNoise(Translation(1), FRICTION).moments(torch.tensor(grid[-1], dtype=torch.float64))
        variance, covariance, _ = (float(x) for x in moments)
        unit = math.sqrt(variance) if variance else 1.0
        found = torch.cov(torch.cat([end.elements / unit, end.momentum], -1).mT)
        expected = torch.tensor([[float(variance > 0), covariance / unit], [covariance / unit, 1.0]])
        assert float((found - expected).abs().max()) < 5.0 * math.sqrt(2.0 / number)

    def test_likelihood(self) -> None:
        """The flow on G x R^n finds the density of data and momentum."""
        group, t = Translation(1), 3.0
        flow = KineticDiffusion(group, FRICTION, line_score).flow()
        variance, covariance, _ = (float(x) for x in KineticNoise(group, FRICTION).moments(torch.tensor(t)))
        last = torch.tensor([[variance + STD**2, covariance], [covariance, 1.0]], dtype=torch.float64)
        end = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=torch.float64), last)
        point = KineticState(torch.tensor([[0.4], [-0.9]]).double(), torch.tensor([[1.0], [-0.3]]).double())
        found = flow_likelihood(flow, join_state(group, point), end.log_prob, end=t, tolerance=1e-7)
        expected = torch.distributions.Normal(0.0, STD).log_prob(point.elements)
        expected = expected + torch.distributions.Normal(0.0, 1.0).log_prob(point.momentum)
        assert_relative(found.log_density, expected.squeeze(-1), 1e-5)

    def test_bad_input(self) -> None:
        process = KineticDiffusion(Translation(1), FRICTION)
        with pytest.raises(ConfigurationError, match="score"):
            process.flow()
        start = KineticState(torch.zeros(2, 1), torch.zeros(2, 1))
        with pytest.raises(ConfigurationError, match="backwards"):
            solve(process, start, [1.0, 0.5])
        with pytest.raises(ConfigurationError, match="backwards"):
            solve(process, start, [1.0, 0.5], stepper=KineticAncestralStep())
        scored = KineticDiffusion(Translation(1), FRICTION, line_score)
        with pytest.raises(ConfigurationError, match="falling times"):
            solve(scored, start, [0.5, 1.0], stepper=KineticAncestralStep())
        narrow = KineticDiffusion(SO(3), FRICTION, lambda g, momentum, t: momentum[..., :1])
        point = KineticState(SO(3).identity(2), torch.zeros(2, 3))
        for stepper in (SplittingAOA(), KineticAncestralStep()):  # a score that would broadcast
            with pytest.raises(ShapeError, match="score"):
                solve(narrow, point, [1.0, 0.5], stepper=stepper)
        with pytest.raises(ShapeError, match="score"):
            solve(narrow.flow(), join_state(SO(3), point), [1.0, 0.5])
        with pytest.raises(ConfigurationError, match="KineticState"):
            solve(process, torch.zeros(2, 1), [0.0, 0.5])
