"""Reverse diffusion with Monte Carlo scores on laws with known moments: recovered within three standard errors.

The groups are those of `tests.sde.targets`. Aff(1) and Aff(2) are not unimodular: there the same sampler without the
modular drift, as published, misses the scales by far. The heat group and SE(2) are unimodular: a = 0, so that there is
nothing to miss; the drift is no operation at all.
"""

from __future__ import annotations

import pytest
import torch

from tests.helpers import assert_relative, seeded
from tests.sde.targets import TARGETS, KnownTarget
from trivgeo.sde import EnergyScore, GeometricSchedule, NoiseKernel, forward_noising, solve, uniform_grid
from trivgeo.sde.processes import reverse_process
from trivgeo.sde.solvers import GeometricHeun

SCHEDULE = GeometricSchedule(0.1, 0.6)

LOG_SCALES = {"Aff(1)": [0], "Aff(2)": [2, 4]}
"""Which statistics are the means of the log-scales, the coordinates along which a is not zero."""


@pytest.fixture(params=TARGETS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def z_scores(
    target: KnownTarget, *, number: int, steps: int, num_mc: int, pool: int, modular_drift: bool = True
) -> torch.Tensor:
    """Of a reverse run by the order-2 scheme from an exact sample of p_1."""
    group = target.group
    start = forward_noising(group, SCHEDULE, target.sample(number, 3), steps=steps, generator=seeded(4))
    kernel = NoiseKernel(group, SCHEDULE, steps)
    score = EnergyScore(target.energy, kernel, num_mc, pool=pool, antithetic=True)
    process = reverse_process(group, SCHEDULE, score, max_score_norm=50.0, modular_drift=modular_drift)
    grid = uniform_grid(steps, 1.0, 0.0)
    solution = solve(process, start, grid, stepper=GeometricHeun(), generator=seeded(5))
    assert int(solution.num_masked_steps.sum()) == 0
    return target.z_scores(solution.final)


class TestTargets:
    """What the recovery is measured against, itself against something else."""

    def test_haar_measure_of_the_chart(self, name: str) -> None:
        """It is 1 / |det dc| on the left-invariant frame, up to a constant."""
        target = TARGETS[name]
        group, g = target.group, target.sample(50, 1)

        def moved(v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return target.coordinates(group.perturb(x, v))

        frame = torch.func.vmap(torch.func.jacfwd(moved))(torch.zeros(50, group.dim).double(), g)
        ratio = -torch.linalg.slogdet(frame).logabsdet - target.log_haar(target.coordinates(g))
        assert_relative(ratio, ratio[:1].expand(50), 1e-10)

    def test_chart_and_exact_samples(self, name: str) -> None:
        target = TARGETS[name]
        g = target.sample(20_000, 2)
        assert_relative(target.element(target.coordinates(g)), g, 1e-10)
        assert float(target.z_scores(g).abs().max()) < 3.5


class TestRecovery:
    def test_fast(self, name: str) -> None:
        self.check(name, number=700, steps=16, num_mc=64, pool=8192, missed=3.5)

    @pytest.mark.slow
    def test_slow(self, name: str) -> None:
        self.check(name, number=4000, steps=32, num_mc=192, pool=49152, missed=8.0)

    @staticmethod
    def check(name: str, *, missed: float, **size: int) -> None:
        target = TARGETS[name]
        z = z_scores(target, **size)
        assert float(z.abs().max()) < 3.0, z
        if name in LOG_SCALES:
            without = z_scores(target, modular_drift=False, **size)
            assert float(without[LOG_SCALES[name]].min()) > missed, without

    @pytest.mark.parametrize("name", sorted(set(TARGETS) - set(LOG_SCALES)))
    def test_the_drift_is_nothing_on_unimodular_groups(self, name: str) -> None:
        target, size = TARGETS[name], {"number": 20, "steps": 3, "num_mc": 4, "pool": 64}
        assert target.group.algebra.is_unimodular
        assert torch.equal(z_scores(target, **size), z_scores(target, modular_drift=False, **size))
