"""Reverse diffusion on known targets; the drift that non-unimodular groups need."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, randn, seeded
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SL, HeatSymmetry, LieGroup, Translation
from trivgeo.sde import (
    EnergyScore,
    GeometricSchedule,
    NoiseKernel,
    forward_noising,
    probability_flow_sample,
    reverse_diffusion,
    solve,
    trivialized_grad,
    uniform_grid,
)
from trivgeo.sde.processes import reverse_process
from trivgeo.sde.scores import ScoreEstimate

SCHEDULE = GeometricSchedule(0.1, 1.0)


class TestTranslation:
    CENTRE, STD = 0.7, 0.3

    def score(self, g: Tensor, t: float) -> Tensor:
        return -(g - self.CENTRE) / (self.STD**2 + SCHEDULE.variance(0.0, t))

    def start(self, number: int) -> Tensor:
        """A sample of p_1."""
        return self.CENTRE + math.sqrt(self.STD**2 + SCHEDULE.variance(0.0, 1.0)) * randn(number, 1, seed=9)

    def check(self, g: Tensor, number: int, slack: float) -> None:
        assert abs(float(g.mean()) - self.CENTRE) < slack + 4 * self.STD / math.sqrt(number)
        assert abs(float(g.std()) / self.STD - 1) < slack + 4 / math.sqrt(2 * number)

    def test_exact_score(self) -> None:
        group = Translation(1)
        g = reverse_diffusion(group, SCHEDULE, self.score, initial=self.start(20000), steps=200, generator=seeded(0))
        self.check(g, 20000, 0.01)

    def test_energy_score(self) -> None:
        group = Translation(1)
        energy = lambda g: ((g - self.CENTRE) ** 2).sum(-1) / (2 * self.STD**2)  # noqa: E731
        score = EnergyScore(energy, NoiseKernel(group, SCHEDULE, 50), 64)
        g = reverse_diffusion(group, SCHEDULE, score, initial=self.start(2000), steps=50, generator=seeded(0))
        self.check(g, 2000, 0.05)

    def test_default_start_is_the_kernel(self) -> None:
        """From k_1 instead of p_1 the mean keeps the share s^2 / (s^2 + v) of its offset, in closed form."""
        schedule = GeometricSchedule(0.1, 2.0)
        variance, square = schedule.variance(0.0, 1.0), self.STD**2
        score = lambda g, t: -(g - self.CENTRE) / (square + schedule.variance(0.0, t))  # noqa: E731
        g = reverse_diffusion(
            Translation(1), schedule, score, num_samples=20000, steps=300, generator=seeded(0), dtype=torch.float64
        )
        share = square / (square + variance)
        assert float(g.mean()) == pytest.approx(self.CENTRE * (1 - share), abs=0.015)
        assert float(g.var()) == pytest.approx(square - square * share**2, rel=0.05)


class TestAffineLine:
    """The log-scale a ~ N(0.3, 0.4^2) and the shift b ~ N(0.5, 0.5^2) with respect to da db; tr ad(e_a) = 1.

    For left Haar measure e^-a da db the energy gains -a, for right Haar measure da db it does not. Without the
    modular drift (the published algorithm) the sampler is biased.
    """

    MEAN_A, MEAN_B, STD_A, STD_B = 0.3, 0.5, 0.4, 0.5

    def right_energy(self, g: Tensor) -> Tensor:
        a, b = g.unbind(-1)
        return (a - self.MEAN_A) ** 2 / (2 * self.STD_A**2) + (b - self.MEAN_B) ** 2 / (2 * self.STD_B**2)

    def left_energy(self, g: Tensor) -> Tensor:
        return self.right_energy(g) - g[..., 0]

    def start(self, group: LieGroup, number: int, steps: int) -> Tensor:
        clean = torch.tensor([self.MEAN_A, self.MEAN_B]).double() + randn(number, 2, seed=3) * torch.tensor(
            [self.STD_A, self.STD_B], dtype=torch.float64
        )
        return forward_noising(group, SCHEDULE, clean, steps=steps, generator=seeded(4))

    def sample(
        self, *, number: int, steps: int, num_mc: int, modular_drift: bool = True, right: bool = False
    ) -> Tensor:
        group = affine_line()
        kernel = NoiseKernel(group, SCHEDULE, steps)
        score = RightHaarScore(self.right_energy, kernel, num_mc) if right else EnergyScore(
            self.left_energy, kernel, num_mc
        )  # fmt: skip
        return reverse_diffusion(
            group,
            SCHEDULE,
            score,
            initial=self.start(group, number, steps),
            steps=steps,
            generator=seeded(5),
            modular_drift=modular_drift and not right,
        )

    def test_fast(self) -> None:
        number = 500
        size = {"number": number, "steps": 50, "num_mc": 32}
        error = self.STD_A / math.sqrt(number)
        with_drift, without = self.sample(**size), self.sample(**size, modular_drift=False)
        right = self.sample(**size, right=True)
        assert abs(float(with_drift[:, 0].mean()) - self.MEAN_A) < 0.03 + 3 * error
        assert float(without[:, 0].mean()) > self.MEAN_A + 0.08
        assert float(without[:, 0].mean() - with_drift[:, 0].mean()) > 0.08
        assert abs(float(right[:, 0].mean()) - self.MEAN_A) < 0.03 + 3 * error

    @pytest.mark.slow
    def test_slow(self) -> None:
        number = 4000
        size = {"number": number, "steps": 100, "num_mc": 64}
        error = self.STD_A / math.sqrt(number)
        with_drift, without = self.sample(**size), self.sample(**size, modular_drift=False)
        right = self.sample(**size, right=True)
        for g in (with_drift, right):
            assert abs(float(g[:, 0].mean()) - self.MEAN_A) < 0.02 + 3 * error
            assert abs(float(g[:, 0].std()) - self.STD_A) < 0.03
            assert abs(float(g[:, 1].mean()) - self.MEAN_B) < 0.03 + 3 * error
            assert abs(float(g[:, 1].std()) - self.STD_B) < 0.05
        assert float(without[:, 0].mean()) > self.MEAN_A + 0.1

    def test_closed_form_of_the_bias(self) -> None:
        """A target N(0, s^2) da db: its noised density N(0, s^2 + v) da db is exact, and so is the bias without a.

        For left Haar measure log p_t = a - a^2 / 2 (s^2 + v). The mean m of the reversed log-scale as a function of
        S = s^2 + v solves dm/dS = m/S with the drift and dm/dS = m/S - 1 without, so that it ends at s^2 log(S_1/s^2).
        """
        group, square = affine_line(), self.STD_A**2
        end = square + SCHEDULE.variance(0.0, 1.0)

        def score(g: Tensor, t: float) -> Tensor:
            variance = square + SCHEDULE.variance(0.0, t)
            return torch.stack([1 - g[..., 0] / variance, torch.zeros_like(g[..., 1])], -1)

        start = randn(6000, 2) * math.sqrt(end)
        means = [
            float(
                reverse_diffusion(
                    group, SCHEDULE, score, initial=start, steps=100, generator=seeded(0), modular_drift=modular_drift
                )[:, 0].mean()
            )
            for modular_drift in (True, False)
        ]
        slack = 4 * self.STD_A / math.sqrt(len(start))
        assert abs(means[0]) < slack
        assert means[1] == pytest.approx(square * math.log(end / square), abs=slack)
        assert means[1] - means[0] == pytest.approx(square * math.log(end / square), rel=0.03)


class RightHaarScore(EnergyScore):
    """The same score from densities for right Haar measure: neither weights 1 / lambda nor the drift a."""

    def from_noise(self, g: Tensor, inverse_w: Tensor, log_modular: Tensor) -> ScoreEstimate:
        return super().from_noise(g, inverse_w, torch.zeros_like(log_modular))


class TestContract:
    def test_modular_drift_is_the_trace_of_ad(self) -> None:
        """One deterministic difference: with and without it samples differ by exp of -a times the variance."""
        group = affine_line()
        start = randn(3, 2)
        zero = lambda g, t: torch.zeros_like(g)  # noqa: E731
        with_drift, without = (
            reverse_diffusion(group, SCHEDULE, zero, initial=start, steps=1, generator=seeded(0), modular_drift=m)
            for m in (True, False)
        )
        shift = with_drift[:, 0] - without[:, 0]
        expected = SCHEDULE.variance(1.0, 0.0) * group.algebra.trace_ad[0]
        assert_relative(shift, expected.expand(3), 1e-12)

    def test_unimodular_groups_need_no_drift(self) -> None:
        group = HeatSymmetry(0.1)
        zero = lambda g, t: torch.zeros(3, 6)  # noqa: E731
        for_both = [
            reverse_diffusion(group, SCHEDULE, zero, num_samples=3, steps=4, generator=seeded(0), modular_drift=m)
            for m in (True, False)
        ]
        assert torch.equal(*for_both)

    def test_shapes_dtype_and_reproducibility(self) -> None:
        group = SL(2)
        score = lambda g, t: -trivialized_grad(group, lambda x: (x**2).sum((-1, -2)), g)  # noqa: E731
        for number, batch in ((5, (5,)), ((2, 3), (2, 3))):
            g = reverse_diffusion(group, SCHEDULE, score, num_samples=number, steps=3, generator=seeded(0))
            assert g.shape == (*batch, 2, 2)
            assert g.dtype == torch.float32
            again = reverse_diffusion(group, SCHEDULE, score, num_samples=number, steps=3, generator=seeded(0))
            assert torch.equal(g, again)
        double = reverse_diffusion(group, SCHEDULE, score, num_samples=2, steps=3, dtype=torch.float64)
        assert double.dtype == torch.float64

    def test_long_scores_are_shortened(self) -> None:
        group = Translation(2)
        start = torch.zeros(3, 2, dtype=torch.float64)
        norms = torch.tensor([[1e9], [5.0], [0.5]], dtype=torch.float64)
        direction = torch.tensor([0.6, 0.8], dtype=torch.float64)
        pushed, free = (
            solve(
                reverse_process(group, SCHEDULE, score, max_score_norm=5.0), start, [1.0, 0.0], generator=seeded(0)
            ).final
            for score in (lambda g, t: norms * direction, lambda g, t: 0.0 * g)
        )
        expected = SCHEDULE.variance(0.0, 1.0) * torch.tensor([[5.0], [5.0], [0.5]]).double() * direction
        assert_relative(pushed - free, expected, 1e-12)

    def test_failures(self) -> None:
        bad = lambda g, t: torch.where(torch.arange(3)[:, None] == 1, math.nan, 0.0) * torch.ones_like(g)  # noqa: E731
        process = reverse_process(Translation(2), SCHEDULE, bad)
        solution = solve(process, torch.zeros(3, 2), uniform_grid(4, 1.0, 0.0))
        assert solution.num_masked_steps.tolist() == [0, 4, 0]
        assert torch.isfinite(solution.final).all()

    def test_lost_samples_are_counted(self) -> None:
        """Once, at the end; where values may not be looked at, the rows alone tell."""
        group, start = Translation(2), torch.zeros(3, 2)
        lost = lambda g, t: torch.where(g.new_tensor([[0.0], [1.0], [0.0]]) > t, math.nan, 0.0) * g  # noqa: E731

        def drawn(initial: Tensor) -> Tensor:
            return reverse_diffusion(group, SCHEDULE, lost, initial=initial, steps=4, generator=None)

        def carried(initial: Tensor) -> Tensor:
            return probability_flow_sample(group, SCHEDULE, lost, initial, steps=4)

        for call in (drawn, carried):
            with pytest.warns(RuntimeWarning, match="^1 of 3 samples are NaN, since their score") as seen:
                found = call(start)
            assert found.isnan().all(-1).tolist() == [False, True, False]
            assert [Path(warning.filename).name for warning in seen] == ["test_reverse.py"]
        mapped = torch.func.vmap(carried)(start.expand(2, 3, 2))
        assert mapped.isnan().all(-1).tolist() == 2 * [[False, True, False]]

    def test_is_a_solve_from_the_kernel(self) -> None:
        """The convenience and its parts, with one generator."""
        group = SL(2)
        score = EnergyScore(lambda g: (g**2).sum((-1, -2)), NoiseKernel(group, SCHEDULE, 5), 3)
        g = reverse_diffusion(group, SCHEDULE, score, num_samples=4, steps=5, generator=seeded(0))
        generator = seeded(0)
        start, _ = score.kernel.sample(4, t=1.0, generator=generator)
        process = reverse_process(group, SCHEDULE, score)
        assert torch.equal(solve(process, start, uniform_grid(5, 1.0, 0.0), generator=generator).final, g)


class TestBadInput:
    @staticmethod
    def call(**kwargs: object) -> Tensor:
        arguments: dict = {"group": SL(2), "schedule": SCHEDULE, "score": lambda g, t: torch.zeros(*g.shape[:-2], 3)}
        return reverse_diffusion(**(arguments | kwargs))

    def test_both_or_neither(self) -> None:
        with pytest.raises(ConfigurationError, match="neither"):
            self.call()
        with pytest.raises(ConfigurationError, match="both"):
            self.call(num_samples=2, initial=SL(2).identity(2))

    @pytest.mark.parametrize("number", [0, -1, True, 2.0, (2, 0), (2, 1.0), "2"])
    def test_num_samples(self, number: object) -> None:
        with pytest.raises(ConfigurationError, match="num_samples"):
            self.call(num_samples=number)

    @pytest.mark.parametrize("steps", [0, -1, True, 2.0])
    def test_steps(self, steps: object) -> None:
        with pytest.raises(ConfigurationError, match="steps"):
            self.call(num_samples=2, steps=steps)

    @pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf])
    def test_max_score_norm(self, bound: float) -> None:
        with pytest.raises(ConfigurationError, match="max_score_norm"):
            reverse_process(SL(2), SCHEDULE, lambda g, t: g[..., 0], max_score_norm=bound)

    def test_score_on_another_group(self) -> None:
        score = EnergyScore(lambda g: g.sum(-1), NoiseKernel(Translation(3), SCHEDULE, 3), 2)
        with pytest.raises(ConfigurationError, match="kernel"):
            self.call(num_samples=2, score=score)

    def test_score_of_another_scale(self) -> None:
        """Same elements, other basis: the gradient would be in the wrong units."""
        score = EnergyScore(lambda g: g.sum((-1, -2)), NoiseKernel(SL(2, scale=0.1), SCHEDULE, 3), 2)
        with pytest.raises(ConfigurationError):
            self.call(num_samples=2, score=score)

    def test_score_of_another_schedule(self) -> None:
        score = EnergyScore(lambda g: g.sum((-1, -2)), NoiseKernel(SL(2), GeometricSchedule(0.1, 5.0), 3), 2)
        with pytest.raises(ConfigurationError):
            self.call(num_samples=2, score=score)

    def test_score_that_is_none(self) -> None:
        with pytest.raises(ConfigurationError, match="score"):
            self.call(num_samples=2, score=3.0)

    def test_initial_of_the_wrong_shape(self) -> None:
        with pytest.raises(ShapeError, match="initial"):
            self.call(initial=torch.zeros(2, 3))
