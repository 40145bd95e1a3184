"""Sequential Monte Carlo on the reverse diffusion: what it corrects, what it leaves alone, and its bookkeeping."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy.special import ive
from torch import Tensor

from tests.helpers import affine_line, assert_relative, randn, seeded
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SL, SO, DirectProduct, LieGroup, Torus, Translation
from trivgeo.sde import (
    ConstantSchedule,
    EnergyScore,
    GeometricSchedule,
    NoiseKernel,
    Schedule,
    Score,
    TrivializedSDE,
    solve,
    uniform_grid,
)
from trivgeo.sde.noise import noise_log_density
from trivgeo.sde.processes import reverse_process
from trivgeo.sde.scores import EnergySamples, ScoreEstimate
from trivgeo.sde.solvers import Accumulator, PopulationWeights, Resampling, Solution, StepState

SCHEDULE = GeometricSchedule(0.1, 1.5)
LINE = Translation(1)


def sample(
    group: LieGroup,
    energy: Callable[[Tensor], Tensor],
    num_mc: int,
    steps: int,
    schedule: Schedule = SCHEDULE,
    pool: int | None = None,
    *,
    initial: Tensor | tuple[int, ...],
    resampling: Resampling | None,
    **options: object,
) -> Solution:
    """A run from given elements, or from the law whose density `Resampling` assumes, of as many chains."""
    generator = seeded(0)
    score = EnergyScore(energy, NoiseKernel(group, schedule, steps), num_mc, pool=pool)
    if isinstance(initial, tuple):
        std = math.sqrt(schedule.variance(0.0, 1.0))
        initial = group.random(*initial, std=std, generator=generator, dtype=torch.float64)
    return solve(
        reverse_process(group, schedule, score, **options),
        initial,
        uniform_grid(steps, 1.0, 0.0),
        stepper=resampling,
        generator=generator,
        accumulator=Weights(),
    )


class Weights(Accumulator):
    """The weights of all times of a run."""

    def init(self, y: Tensor) -> tuple[PopulationWeights, ...]:
        return ()

    def update(self, acc: tuple[PopulationWeights, ...], step: StepState) -> tuple[PopulationWeights, ...]:
        return (*acc, *step.parts(PopulationWeights))


class TestTwoModes:
    """Modes at -1 and 1 with weights 0.8 and 0.2, few steps and noise samples, scores cut at 5."""

    CENTRES = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    WEIGHTS = torch.tensor([0.8, 0.2], dtype=torch.float64)
    STD = torch.tensor([0.15, 0.3], dtype=torch.float64)
    POPULATIONS = 24

    def energy(self, g: Tensor) -> Tensor:
        logits = (self.WEIGHTS / self.STD).log() - 0.5 * ((g - self.CENTRES) / self.STD) ** 2
        return -logits.logsumexp(-1)

    def shares(self, resampling: Resampling | None) -> tuple[Tensor, Tensor]:
        """Share of the first mode and mean distance to its centre: a mean over the populations, its standard error."""
        g = sample(
            LINE,
            self.energy,
            8,
            10,
            initial=(self.POPULATIONS, 1024),
            max_score_norm=5.0,
            resampling=resampling,
        ).final.squeeze(-1)
        left = (g < 0).double()
        spread = (left * (g + 1.0) ** 2).sum(-1) / left.sum(-1)
        values = torch.stack([left.mean(-1), spread.sqrt()], -1)
        return values.mean(0), values.std(0) / math.sqrt(self.POPULATIONS)

    @pytest.mark.parametrize("power", [1.0, 0.5])
    def test_weights_of_the_modes(self, power: float) -> None:
        plain, _ = self.shares(None)
        corrected, error = self.shares(Resampling(power=power))
        assert float(plain[0]) < 0.6, "the plain sampler misses the weight by far"
        assert abs(float(corrected[0]) - 0.8) < 3.5 * float(error[0])
        assert float(error[0]) < 0.02
        assert abs(float(corrected[1]) - 0.15) < 3.5 * float(error[1]) + 0.002


class Chosen(Score):
    """Reports given densities in place of estimates, and any drift as its score."""

    def __init__(self, densities: dict[float, Callable], drift: Callable) -> None:
        self.densities, self.drift = densities, drift

    def estimate(self, g: Tensor, t: float) -> ScoreEstimate:
        none = torch.ones(*g.shape[:-1], 1, dtype=g.dtype)
        samples = EnergySamples(g.unsqueeze(-2), none, none > 0, none, self.densities[t](g))
        return ScoreEstimate(self.drift(g), samples)


class Normals:
    """On Aff(1), independent normal coordinates for da db; left Haar measure is e^-a da db."""

    def __init__(self, mean: list[float], std: list[float]) -> None:
        self.mean, self.std = torch.tensor(mean).double(), torch.tensor(std).double()

    def log_density(self, g: Tensor) -> Tensor:
        return -0.5 * (((g - self.mean) / self.std) ** 2).sum(-1) + g[..., 0]

    def sample(self, *batch: int, seed: int) -> Tensor:
        return self.mean + self.std * randn(*batch, 2, seed=seed)

    def z_scores(self, g: Tensor) -> Tensor:
        """Of mean and mean square of both coordinates, each chain an independent sample."""
        z = (g - self.mean) / self.std
        moments = torch.cat([z, z**2 - 1], -1)
        return moments.mean(0) / (moments.std(0) / math.sqrt(len(g)))


class TestWeights:
    """One step from an exact sample of one law to another law: the weights make up for any drift."""

    @pytest.mark.parametrize("modular_drift", [True, False])
    def test_one_step(self, modular_drift: bool) -> None:
        group, number = affine_line(), 400_000
        before, after = Normals([0.0, 0.0], [0.6, 0.8]), Normals([0.2, 0.1], [0.3, 0.4])
        drift = lambda g: torch.stack([0.5 - g[..., 0].sin(), 0.7 * g[..., 1].cos()], -1)  # noqa: E731
        score = Chosen({0.6: before.log_density, 0.0: after.log_density}, drift)
        process = reverse_process(group, SCHEDULE, score, modular_drift=modular_drift)
        start, generator = before.sample(number, seed=1), seeded(0)
        resampling = Resampling(start_log_density=before.log_density)
        solution = solve(process, start, [0.6, 0.0], stepper=resampling, generator=generator, accumulator=Weights())
        g, seen = solution.final, solution.accumulated
        assert float(seen[0].effective_size) == pytest.approx(number), "an exact start has even weights"
        share = float(seen[1].effective_size) / number
        assert 0.05 < share < 0.7
        # ancestors repeat: the sample is worth its effective size
        assert float(after.z_scores(g).abs().max()) * math.sqrt(share) < 3.5, after.z_scores(g)
        plain = solve(process, start, [0.6, 0.0], generator=generator).final
        assert float(after.z_scores(plain).abs().max()) > 50.0

    def test_start_density(self) -> None:
        """A start from another law than the first target's."""
        group, number = affine_line(), 100_000
        start, first, last = (
            Normals([0.3, 0.5], [0.7, 0.9]),
            Normals([0.0, 0.0], [0.6, 0.8]),
            Normals([0.2, 0.1], [0.4, 0.6]),
        )
        score = Chosen({0.3: first.log_density, 0.0: last.log_density}, lambda g: torch.zeros_like(g))
        for power in (1.0, 0.3):
            solution = solve(
                reverse_process(group, SCHEDULE, score),
                start.sample(number, seed=1),
                [0.3, 0.0],
                stepper=Resampling(0.0, power, start.log_density),
                generator=seeded(0),
                accumulator=Weights(),
            )
            share = float(solution.accumulated[1].effective_size) / number
            assert float(last.z_scores(solution.final).abs().max()) * math.sqrt(share) < 3.5


class TestAffineLine:
    """The published drift from a broad start, few noise samples: biased, and mended as far as K = 1024 goes."""

    TARGET = Normals([0.3, 0.5], [0.4, 0.5])
    START = Normals([0.3, 0.5], [0.65, 0.8])

    def test_published_drift(self) -> None:
        means = [
            sample(
                affine_line(),
                lambda g: -self.TARGET.log_density(g),
                16,
                20,
                GeometricSchedule(0.1, 1.0),
                pool=8192,
                initial=self.START.sample(12, 1024, seed=1),
                modular_drift=False,
                max_score_norm=8.0,
                resampling=resampling,
            )
            .final[..., 0]
            .mean(-1)
            for resampling in (None, Resampling(start_log_density=self.START.log_density))
        ]
        plain, corrected = (float(m.mean()) - 0.3 for m in means)
        assert plain > 0.1
        assert abs(corrected) < 0.03
        assert float(means[1].std()) / math.sqrt(12) < 0.015

    def test_noise_log_density(self) -> None:
        """Integrates to (2 pi V)^(n/2), and has the moments of the noise."""
        variance, group = 0.1, affine_line()
        a, b = torch.meshgrid(*[torch.linspace(-3, 3, 601, dtype=torch.float64)] * 2, indexing="ij")
        g = torch.stack([a + 1e-9, b], -1)
        # left Haar measure e^-a da db
        mass = (noise_log_density(group, variance)(g) - a).exp() * 0.01**2 / (2 * math.pi * variance)
        assert float(mass.sum()) == pytest.approx(1.0, abs=1e-4)
        w = group.exp(math.sqrt(variance) * randn(200_000, 2))
        for f in (lambda x: x[..., 0].exp(), lambda x: x[..., 1] ** 2):
            assert float((mass * f(g)).sum()) == pytest.approx(float(f(w).mean()), abs=0.005)
        flat = noise_log_density(Translation(2), 0.5)(randn(3, 2))
        assert_relative(flat, -(randn(3, 2) ** 2).sum(-1), 1e-12)


class TestTorus:
    """Elements that have come round: the start is a wrapped normal law."""

    def test_noise_log_density(self) -> None:
        """Fourier's series of the wrapped normal law, relative to its value at zero; a factor without turns."""
        variance, g = 2.0, 6.0 * randn(50, 2)
        order = torch.arange(1, 30, dtype=torch.float64)
        series = lambda x: (1 + 2 * ((-0.5 * variance * order**2).exp() * (order * x).cos()).sum(-1)).log()  # noqa: E731
        expected = series(g[:, :1]) - series(torch.zeros(1).double())
        assert_relative(noise_log_density(Torus(1), variance)(g[:, :1]), expected, 1e-10)
        product = DirectProduct(Torus(1), Translation(1))
        assert_relative(noise_log_density(product, variance)(g), expected - g[:, 1] ** 2 / (2 * variance), 1e-10)

    def test_default_start(self) -> None:
        """Of a constant density: uniform at the end, as it must be where the start is none such."""
        group, number = Torus(1), 100_000
        resampling, schedule = Resampling(threshold=0.0), ConstantSchedule(math.sqrt(2.0))
        g = sample(group, lambda g: 0.0 * g.sum(-1), 1, 3, schedule, initial=(number,), resampling=resampling).final
        for f in (torch.cos, torch.sin):
            assert abs(float(f(g).mean())) < 4.0 / math.sqrt(number)


class TestRotations:
    def test_uniform_start(self) -> None:
        """Density exp(2 tr R): mean of tr R from the angle's law (1 - cos x) exp(4 cos x) dx, three steps only."""
        group = SO(3)
        exact = 1 + 2 * (ive(1, 4.0) - 0.5 * (ive(0, 4.0) + ive(2, 4.0))) / (ive(0, 4.0) - ive(1, 4.0))
        start = group.random_haar(40, 512, generator=seeded(1), dtype=torch.float64)
        trace = lambda g: g.diagonal(dim1=-2, dim2=-1).sum(-1)  # noqa: E731
        means = [
            trace(sample(group, lambda g: -2.0 * trace(g), 8, 3, initial=start, resampling=resampling).final).mean(-1)
            for resampling in (None, Resampling(start_log_density=lambda g: torch.zeros_like(g[..., 0, 0])))
        ]
        errors = [float(m.std()) / math.sqrt(40) for m in means]
        assert abs(float(means[0].mean()) - exact) > 10 * errors[0]
        assert abs(float(means[1].mean()) - exact) < 3.5 * errors[1]


class TestNothingToCorrect:
    def test_law_and_weights(self) -> None:
        """A start from p_1, small steps and good scores: the weights stay even and the law is what it was."""
        schedule, std, centre = GeometricSchedule(0.1, 1.0), 0.4, 0.7
        end = std**2 + schedule.variance(0.0, 1.0)
        start = centre + math.sqrt(end) * randn(20, 150, 1, seed=1)
        options = {"schedule": schedule, "initial": start}
        energy = lambda g: ((g - centre) ** 2).sum(-1) / (2 * std**2)  # noqa: E731
        resampling = Resampling(start_log_density=lambda g: -((g - centre) ** 2).sum(-1) / (2 * end))
        plain = sample(LINE, energy, 64, 25, resampling=None, **options).final
        solution = sample(LINE, energy, 64, 25, resampling=resampling, **options)
        weighted, seen = solution.final, solution.accumulated
        assert [p.t for p in seen] == pytest.approx([1 - m / 25 for m in range(26)])
        assert all(float(p.effective_size.min()) > 0.8 * 150 for p in seen)
        assert not any(bool(p.resampled.any()) for p in seen[:-1])
        assert bool(seen[-1].resampled.all())
        for g in (plain, weighted):
            assert abs(float(g.mean()) - centre) < 4 * std / math.sqrt(3000) + 0.005
            assert float(g.std()) == pytest.approx(std, rel=4 / math.sqrt(6000) + 0.015)


class TestBookkeeping:
    @staticmethod
    def energy(g: Tensor) -> Tensor:
        return ((g - 0.4) ** 2).sum(-1) / 0.1

    def test_evaluations(self) -> None:
        """Those of the scores, and one a chain at the end."""
        count = 0

        def energy(g: Tensor) -> Tensor:
            nonlocal count
            count += g.shape[:-1].numel()
            return self.energy(g)

        sample(LINE, energy, 3, 5, initial=(2, 7), resampling=Resampling())
        assert count == 2 * 7 * (3 * 5 + 1)

    def test_populations_are_apart(self) -> None:
        """What happens in one leaves the other as it is."""

        def shifted(amount: float) -> Tensor:
            offset = torch.tensor([0.0, amount], dtype=torch.float64).reshape(2, 1, 1)
            energy = lambda g: 3 * self.energy(g - (offset if g.ndim == 3 else offset.unsqueeze(-1)))  # noqa: E731
            return sample(LINE, energy, 4, 5, initial=(2, 50), resampling=Resampling(threshold=1.0)).final

        first, second = shifted(0.0), shifted(1.0)
        assert torch.equal(first[0], second[0])
        assert not torch.equal(first[1], second[1])

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_masks(self, bad: float) -> None:
        """Chains without a finite energy die out; a population of such chains stays where it is, without NaN."""
        side = torch.tensor([1.0, -1.0], dtype=torch.float64).reshape(2, 1)
        start = (side + randn(2, 100)).unsqueeze(-1)

        def energy(g: Tensor) -> Tensor:
            x = g[..., 0]
            dead = torch.arange(2).reshape(2, *[1] * (x.ndim - 1)) == 1
            return torch.where((x < 0) | dead, bad, self.energy(g))

        for threshold in (0.0, 0.5, 1.0):
            resampling = Resampling(threshold=threshold)
            solution = sample(LINE, energy, 4, 6, initial=start, max_score_norm=5.0, resampling=resampling)
            assert torch.isfinite(solution.final).all()
            assert bool((solution.final[0] >= 0).all())
            assert len(solution.final[1].unique()) == 100

    def test_a_dead_population_is_weighed_anew(self) -> None:
        """No chain has a density at first; from then on only those above zero, and one that becomes NaN is replaced."""
        group, grid = affine_line(), [0.9, 0.6, 0.3, 0.0]

        def positive(g: Tensor) -> Tensor:
            return torch.where(g[..., 1] > 0, 0.0, -torch.inf)

        def drift(g: Tensor) -> Tensor:
            return torch.where((g[..., :1] > 0.2) & (g[..., :1] < 0.3), torch.nan, torch.zeros_like(g))

        dead = lambda g: torch.full_like(g[..., 0], -torch.inf)  # noqa: E731
        score = Chosen({0.9: dead, 0.6: dead, 0.3: positive, 0.0: positive}, drift)
        process, start = reverse_process(group, SCHEDULE, score), 0.5 * randn(3, 200, 2, seed=1)
        resampling = Resampling(start_log_density=lambda g: 0.0 * g[..., 0])
        solution = solve(process, start, grid, stepper=resampling, generator=seeded(0), accumulator=Weights())
        g, seen = solution.final, solution.accumulated
        assert [bool(p.resampled.any()) for p in seen[:2]] == [False, False]
        assert bool(seen[-1].resampled.all())
        assert torch.isfinite(g).all()
        assert bool((g[..., 1] > 0).all())

    def test_repeatable_and_float32(self) -> None:
        start = randn(2, 50, 1, dtype=torch.float32)
        runs = [sample(LINE, self.energy, 4, 5, initial=start, resampling=Resampling()).final for _ in range(2)]
        assert torch.equal(*runs)
        assert runs[0].dtype == torch.float32

    def test_default_start(self) -> None:
        """exp(sqrt(V) z) for the noise up to the first time, whose density the weights know."""
        group, schedule = SL(2), GeometricSchedule(0.5, 0.5)
        flat = lambda g: 0.0 * g[..., 0, 0]  # noqa: E731
        seen = sample(group, flat, 2, 2, schedule, initial=(50,), resampling=Resampling()).accumulated
        start = group.random(50, std=0.5, generator=seeded(0), dtype=torch.float64)
        assert_relative(seen[0].log_weights, (-noise_log_density(group, 0.25)(start)).log_softmax(-1), 1e-12)

    @pytest.mark.parametrize("setting", [{"threshold": -0.1}, {"threshold": 1.1}, {"power": 2.0}, {"power": math.nan}])
    def test_bad_settings(self, setting: dict) -> None:
        with pytest.raises(ConfigurationError, match=next(iter(setting))):
            Resampling(**setting)

    def test_bad_combinations(self) -> None:
        def run(process: TrivializedSDE, start: Tensor, times: list[float]) -> None:
            solve(process, start, times, stepper=Resampling(), generator=seeded(0))

        own, shared = (
            EnergyScore(self.energy, NoiseKernel(LINE, SCHEDULE, 3), 2, shared_noise=shared) for shared in (False, True)
        )
        with pytest.raises(ConfigurationError, match="batch of chains"):
            run(reverse_process(LINE, SCHEDULE, own), torch.zeros(1), [1.0, 0.0])
        with pytest.raises(ConfigurationError, match="share its noise"):
            run(reverse_process(LINE, SCHEDULE, shared), torch.zeros(4, 1), [1.0, 0.0])
        with pytest.raises(ConfigurationError, match="estimates densities"):
            run(reverse_process(LINE, SCHEDULE, lambda g, t: -g), torch.zeros(4, 1), [1.0, 0.0])
        with pytest.raises(ConfigurationError, match="reverse diffusion"):
            run(reverse_process(LINE, SCHEDULE, own), torch.zeros(4, 1), [0.0, 1.0])
