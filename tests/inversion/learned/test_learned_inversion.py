"""Learned inversion: exact equivariance, honest posteriors, the two priors, distillation, and what is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import affine_line, assert_relative, randn, random_elements, seeded
from tests.inversion.learned.circle import HARMONICS, Perceptron, Turns, angles, shape, untrained, wrapped
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.groups import SE, Action, Affine, Projective, Translation
from trivgeo.inversion import AmortizedInverter, Inverter, TestTimeEquivariant
from trivgeo.inversion.learned import LearnedScore, consistency_loss
from trivgeo.inversion.stages import LearnedReverseDiffusion
from trivgeo.sde import GeometricSchedule
from trivgeo.sde.solvers import AncestralStep, DenoisingStep, FlowStep, RefiningStep, RenoisingStep

SCHEDULE = GeometricSchedule(0.1, 2.0)
STEPS = [AncestralStep(), FlowStep(), RenoisingStep(), RefiningStep()]


class Constant(nn.Module):
    """A backbone that says the same of everything."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, y: object, level: Tensor) -> Tensor:
        return self.value.to(level.dtype).expand(len(level), -1)


def fit(
    parameters: nn.Module,
    loss: Callable[[Tensor, torch.Generator], Tensor],
    data: Callable[[int, torch.Generator], Tensor],
    iterations: int,
    rate: float = 4e-3,
    batch: int = 512,
) -> None:
    """Adam with a linearly falling step size."""
    generator = seeded(0)
    optimiser = torch.optim.Adam(parameters.parameters(), rate)
    for i in range(iterations):
        for group in optimiser.param_groups:
            group["lr"] = rate * (1 - i / iterations)
        optimiser.zero_grad()
        loss(data(batch, generator), generator).backward()
        optimiser.step()


def follower(score: LearnedScore, **options: Any) -> Inverter:
    """The reverse diffusion from elements that the test gives."""
    return Inverter(score.action, None, [LearnedReverseDiffusion(score, **options)])


class TestEquivariance:
    @pytest.mark.parametrize("step", STEPS, ids=lambda s: type(s).__name__)
    def test_clouds_of_points(self, step: DenoisingStep) -> None:
        """Whatever the network: h.x from h g_1 with the same noise leads to h g_0."""
        group = Affine(2, scale=0.3)
        score = LearnedScore(group.action(), SCHEDULE, Perceptron(10, group.dim).double())
        inverter = follower(score, steps=3, stepper=step)
        x, h = randn(3, 5, 2), random_elements(group, 3, std=0.5)
        start = random_elements(group, 3, 4, std=1.0, seed=1)
        plain = inverter(x, initial=start, generator=seeded(7))
        moved = inverter(group.action()(h, x), initial=group.compose(h.unsqueeze(1), start), generator=seeded(7))
        assert_relative(moved.elements, group.compose(h.unsqueeze(1), plain.elements), 1e-10, event=2)
        assert not torch.allclose(plain.elements, start)

    def test_images_up_to_interpolation(self) -> None:
        """On a smooth image the error falls with the square of a pixel."""
        group = SE(2, scale=0.3)
        score = LearnedScore(ImageWarp(group), SCHEDULE, Pooled())
        inverter = follower(score, steps=3, stepper=FlowStep())
        h, start = random_elements(group, 1, std=0.4, seed=2), random_elements(group, 1, 1, std=0.5, seed=3)
        errors = []
        for side in (32, 64, 128):
            line = (2 * torch.arange(side, dtype=torch.float64) + 1 - side) / side
            y, x = torch.meshgrid(line, line, indexing="ij")
            blob = torch.exp(-((x - 0.1) ** 2 + 2 * (y + 0.05) ** 2) / 0.08)[None, None]
            plain = inverter(blob, initial=start).elements
            moved = inverter(score.action(h, blob), initial=group.compose(h.unsqueeze(1), start)).elements
            errors.append(float((moved - group.compose(h.unsqueeze(1), plain)).abs().max()))
        assert errors[2] < 1e-3
        assert errors[0] > 8 * errors[2], errors

    def test_the_posterior_moves_with_the_datum(self) -> None:
        """From uniform starts the distribution of what is found for h.x is h times that for x: two harmonics."""
        score, number = untrained(), 20_000
        inverter = follower(score, steps=4)
        x, turn = shape(torch.tensor([0.0, 0.9]), 1), 0.9
        start = score.group.random_haar(2, number, generator=seeded(1))
        found = angles(inverter(x, initial=start, generator=seeded(2)).elements)
        for m in (1, 2):
            mean = torch.polar(torch.ones(2, number), m * found).mean(1)
            expected = mean[0] * complex(math.cos(m * turn), math.sin(m * turn))
            assert abs(complex(mean[1]) - complex(expected)) < 4.5 * math.sqrt(2 / number)


class Pooled(nn.Module):
    """Moments of an image: a backbone without parameters, for every resolution."""

    def forward(self, y: Tensor, level: Tensor) -> Tensor:
        side = y.shape[-1]
        line = (2 * torch.arange(side, dtype=y.dtype) + 1 - side) / side
        mass = y.sum((-3, -2, -1))
        across, down = (y.sum((-3, -2)) * line).sum(-1) / mass, (y.sum((-3, -1)) * line).sum(-1) / mass
        return torch.stack([2 * across, 3 * down, across - down], -1)


class TestLoss:
    def test_smallest_at_the_score_of_a_normal_law(self) -> None:
        """Translations of one normal number, N(m, c^2): the exact network attains E c^2 / (c^2 + sigma^2)."""
        mean, std = 0.8, 0.5

        class Exact(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.factor = nn.Parameter(torch.ones(2, dtype=torch.float64))

            def forward(self, y: Tensor, level: Tensor) -> Tensor:
                total = std**2 + level.square()
                return self.factor[0] * (level / total).unsqueeze(-1) * (self.factor[1] * mean - y[:, 0])

        exact = Exact()
        score = LearnedScore(Translation(1).action(), SCHEDULE, exact, lowest_time=0.1)
        number = 100_000
        value = score.loss(mean + std * randn(number, 1, 1, seed=1), seeded(0))
        low, high = (math.log(level) for level in score.levels)
        levels = torch.linspace(low, high, 2001).double().exp()
        floor = (std**2 / (std**2 + levels.square())).mean()
        assert_relative(value.detach(), floor, 0.01)
        (slope,) = torch.autograd.grad(value, exact.factor)
        assert float(slope.abs().max()) < 0.02

    def test_rows_that_cannot_be_undone_are_left_out(self) -> None:
        group = Projective(2, scale=1.5)
        score = LearnedScore(ImageWarp(group), SCHEDULE, ConvolutionOf(group.dim))
        x = torch.rand(64, 1, 8, 8, generator=seeded(0))
        batch = score.noisy(x, seeded(1))
        left_out = batch.weight == 0
        assert bool(left_out.any())
        assert bool((~left_out).any())
        assert torch.isfinite(batch.y).all()
        loss = score.loss(x, seeded(1))
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in score.parameters() if p.grad is not None)
        kept = LearnedScore(ImageWarp(group), SCHEDULE, score.backbone)
        error = (kept(batch.y, batch.level) - batch.noise).square().sum(-1)
        assert_relative(loss.detach(), error[~left_out].mean().detach(), 1e-5)

    def test_carried_data_are_seen_as_clean_ones(self) -> None:
        """For an exact action carrying changes nothing but round-off: y = w^-1 x, x~ = g_0 x."""
        group = Affine(2, scale=0.3)
        x = randn(6, 4, 2)
        score = LearnedScore(group.action(), SCHEDULE, Perceptron(8, 6), augmentation=True)
        batch = score.noisy(x, seeded(0))
        plain = LearnedScore(group.action(), SCHEDULE, Perceptron(8, 6)).noisy(x, seeded(0))
        assert_relative(batch.y, plain.y, 1e-10)
        assert_relative(batch.noise, plain.noise, 1e-12)
        assert_relative(group.action()(group.inverse(batch.elements), batch.x), batch.y, 1e-10)
        assert float((batch.x - x).abs().max()) > 0.1


class ConvolutionOf(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Conv2d(1, dim, 8)

    def forward(self, y: Tensor, level: Tensor) -> Tensor:
        return self.layer(y).flatten(1)


def two_modes(number: int, generator: torch.Generator) -> Tensor:
    """A shape without symmetry at angle 0 (70 %) or 2 (30 %)."""
    return shape(torch.where(torch.rand(number, generator=generator) < 0.7, 0.0, 2.0), 1)


def four_fold(number: int, generator: torch.Generator) -> Tensor:
    return shape(torch.zeros(number), 4)


def spread_angles(number: int, generator: torch.Generator) -> Tensor:
    """0.7 N(0, 0.25^2) + 0.3 N(2, 0.4^2)."""
    first = torch.rand(number, generator=generator) < 0.7
    z = torch.randn(number, generator=generator)
    return torch.where(first, 0.25 * z, 2.0 + 0.4 * z)


def found_angles(score: LearnedScore, angle: float, fold: int, number: int, **options: object) -> Tensor:
    """Orientations of the clean shape that chains from everywhere find for the shape turned to an angle."""
    start = score.group.random_haar(1, number, generator=seeded(11))
    result = follower(score, **options)(shape(torch.tensor([angle]), fold), initial=start, generator=seeded(12))
    return wrapped(angle - angles(result.elements[0]))


def weight_of_first(found: Tensor, second: float) -> float:
    """The share of those nearer to 0 than to the second mode."""
    return float((wrapped(found).abs() < wrapped(found - second).abs()).double().mean())


class TestPosterior:
    """All modes, with the right weights; the total variation between two-mode distributions is that of one weight."""

    def test_two_modes_of_unequal_weight(self) -> None:
        score = untrained()
        fit(score, score.loss, two_modes, 500)
        found = found_angles(score, 0.7, 1, 3000, steps=20)
        near = torch.minimum(wrapped(found).abs(), wrapped(found - 2.0).abs())
        assert float((near < 0.35).double().mean()) > 0.95
        assert abs(weight_of_first(found, 2.0) - 0.7) < 0.05
        # what goes to the mean of the posterior instead of drawing from it fails
        mean = found_angles(score, 0.7, 1, 3000, steps=20, stepper=RefiningStep())
        assert abs(weight_of_first(mean, 2.0) - 0.7) > 0.15

    @pytest.mark.slow(reason="test_two_modes_of_unequal_weight tests the posterior")
    def test_symmetric_shape(self) -> None:
        """Four modes of equal weight for a four-fold symmetry, from starts that are not symmetric."""
        score = untrained()
        fit(score, score.loss, four_fold, 250)
        inverter = AmortizedInverter(score, num_hypotheses=8000, steps=12)
        found = -angles(inverter(four_fold(1, seeded(0)), generator=seeded(3)).elements[0])
        quarter = torch.remainder(found / (math.pi / 2) + 0.5, 4)
        weights = torch.histc(quarter, bins=4, min=0.0, max=4.0) / len(found)
        assert float((weights - 0.25).abs().sum()) / 2 < 0.05
        assert float(((torch.remainder(quarter, 1) - 0.5) * math.pi / 2).std()) < 0.15

    @pytest.mark.slow
    def test_density_of_a_mixture(self) -> None:
        """Total variation to the known density below 0.05, for the diffusion and for a distilled score in 2 steps."""
        score = untrained()
        fit(score, score.loss, lambda n, g: shape(spread_angles(n, g), 1), 3000)
        student = copy.deepcopy(score)
        fit(
            student,
            lambda x, g: consistency_loss(score, student, x, ratio=0.85, generator=g),
            lambda n, g: shape(spread_angles(n, g), 1),
            4000,
            rate=1e-3,
        )
        samples = {
            "diffusion": found_angles(score, 0.7, 1, 40_000, steps=40),
            "distilled": found_angles(student, 0.7, 1, 40_000, steps=2, stepper=RenoisingStep()),
        }
        exact = torch.histc(wrapped(spread_angles(400_000, seeded(5))), bins=24, min=-math.pi, max=math.pi) / 400_000
        variations = {
            name: float((torch.histc(x, bins=24, min=-math.pi, max=math.pi) / len(x) - exact).abs().sum()) / 2
            for name, x in samples.items()
        }
        assert max(variations.values()) < 0.05, variations

    @pytest.mark.parametrize("prior", ["right", "left"])
    def test_the_two_priors(self, prior: str) -> None:
        """Aff(1) acting by its log-scale a on numbers, x + a; clean numbers are 0 or 1.2, with equal weights.

        The posterior of a is a mixture with equal weights under right Haar measure da db, and with weights e^-a under
        the left one, e^-a da db. The target's mean given y and the level is its score, and not that of the other.
        """
        places, number = torch.tensor([0.0, 1.2]).double(), 40_000
        score = LearnedScore(LogScale(), SCHEDULE, Perceptron(1, 2), prior=prior)  # type: ignore[arg-type]
        x = places[(torch.rand(number, generator=seeded(3)) < 0.5).long()].unsqueeze(-1)
        batch = score.noisy(x, seeded(1))
        y = batch.y
        zs = {}
        for name, log_weights in (("right", torch.zeros(2).double()), ("left", places)):
            weights = (log_weights - 0.5 * ((y - places) / batch.level.unsqueeze(-1)).square()).softmax(-1)
            exact = -(weights * (y - places)).sum(-1) / batch.level
            error = batch.weight * (batch.noise[:, 0] - exact)
            terms = torch.stack([error, error * y[:, 0], error * y[:, 0].sin()], -1)
            zs[name] = float((terms.mean(0) / (terms.std(0) / math.sqrt(number))).abs().max())
        assert zs.pop(prior) < 4
        assert min(zs.values()) > 8, zs


class LogScale(Action):
    """g = (a, b) moves a number by a."""

    def __init__(self) -> None:
        self.group = affine_line()

    def __call__(self, g: Tensor, x: Tensor) -> Tensor:
        return x + g[..., :1]

    def is_valid(self, g: Tensor, x: Tensor) -> Tensor:
        return torch.isfinite(self(g, x)).all(-1)

    def log_abs_det_jacobian(self, g: Tensor, x: Tensor) -> Tensor:
        return torch.zeros_like(self(g, x)[..., 0])

    def check_data(self, x: Any, name: str = "x") -> None:
        assert x.shape[-1] == 1

    def batch_shape(self, x: Any) -> torch.Size:
        return x.shape[:-1]

    def sum_points(self, per_part: Tensor) -> Tensor:
        return per_part


class NormalFlow(nn.Module):
    """Of N(0, c^2) under translations: the exact score, or the exact jump along its probability flow."""

    def __init__(self, std: float, jump: bool) -> None:
        super().__init__()
        self.std, self.jump = std, jump

    def forward(self, y: Tensor, level: Tensor) -> Tensor:
        total = self.std**2 + level.square()
        # y is minus the element: the flow ends at g c / sqrt(c^2 + sigma^2)
        factor = (1 - self.std / total.sqrt()) / level if self.jump else level / total
        return -factor.unsqueeze(-1) * y[:, 0]


class TestDistillation:
    def score(self, jump: bool) -> LearnedScore:
        return LearnedScore(Translation(1).action(), SCHEDULE, NormalFlow(0.5, jump), lowest_time=0.01)

    def test_zero_at_the_exact_jump(self) -> None:
        """Up to the steps of the flow, the fewer the finer; not zero at the score."""
        x = 0.5 * randn(4000, 1, 1, seed=1)
        losses = [
            float(consistency_loss(self.score(False), self.score(True), x, ratio=r, generator=seeded(0)).sqrt())
            for r in (0.6, 0.8, 0.9)
        ]
        assert losses[0] > losses[1] > losses[2]
        other = consistency_loss(self.score(False), self.score(False), x, ratio=0.9, generator=seeded(0)).sqrt()
        assert losses[2] < 0.1 * float(other), (losses, other)

    def test_one_jump_gives_a_sample(self) -> None:
        """One evaluation carries N(0, c^2 + sigma^2) to N(0, c^2); the score itself would give less spread."""
        number, std = 40_000, 0.5
        level = self.score(True).levels[1]
        start = math.sqrt(std**2 + level**2) * randn(1, number, 1)
        for jump, expected in ((True, std), (False, std**2 / math.sqrt(std**2 + level**2))):
            inverter = follower(self.score(jump), steps=1, stepper=RenoisingStep())
            r = inverter(torch.zeros(1, 1, 1).double(), initial=start)
            assert_relative(r.elements.std(), torch.tensor(expected).double(), 0.02, floor=0.0)
            assert r.network_evaluations == number

    def test_the_teacher_stays(self) -> None:
        teacher = untrained(0)
        before = copy.deepcopy(teacher.state_dict())
        student = copy.deepcopy(teacher)
        consistency_loss(teacher, student, shape(torch.zeros(8), 1), generator=seeded(0)).backward()
        assert all(p.grad is None for p in teacher.parameters())
        assert all(p.grad is not None for p in student.parameters())
        assert all(torch.equal(v, before[k]) for k, v in teacher.state_dict().items())

    def test_refused(self) -> None:
        x = randn(4, 1, 1)
        for ratio in (0.0, 1.0):
            with pytest.raises(ConfigurationError, match="ratio"):
                consistency_loss(self.score(False), self.score(True), x, ratio=ratio)
        other = LearnedScore(Translation(1).action(), GeometricSchedule(0.1, 1.0), NormalFlow(0.5, True))
        with pytest.raises(ConfigurationError, match="levels"):
            consistency_loss(self.score(False), other, x)


class TestInverter:
    def inverter(self, **options: object) -> AmortizedInverter:
        score = LearnedScore(Translation(2).action(), SCHEDULE, Constant(torch.tensor([1.0, -2.0])))
        return AmortizedInverter(score, **options)  # type: ignore[arg-type]

    def test_result(self) -> None:
        inverter = self.inverter(steps=3, num_hypotheses=5)
        r = inverter(randn(2, 4, 2), generator=seeded(0))
        assert r.elements.shape == (2, 5, 2)
        assert r.elements.dtype == torch.float64
        assert (r.energy_evaluations, r.gradient_evaluations, r.network_evaluations) == (0, 0, 15)
        assert torch.equal(r.best(), r.elements[:, 0])
        assert bool(r.has_usable.all())

    def test_deterministic_steps_follow_the_network(self) -> None:
        """A constant backbone moves every element by the levels passed times its value."""
        x = randn(1, 4, 2)
        value = torch.tensor([1.0, -2.0]).double()
        top = math.sqrt(SCHEDULE.variance(0.0, 1.0))
        r = self.inverter(steps=4, stepper=FlowStep(), start="identity")(x)
        assert_relative(r.elements[0, 0], -top * value, 1e-10)
        middle = math.sqrt(SCHEDULE.variance(0.0, 0.4))
        r = self.inverter(times=[1.0, 0.4, 0.0], stepper=RefiningStep(), start="identity")(x)
        assert_relative(r.elements[0, 0], -(top + middle) * value, 1e-10)

    def test_energy_ranks(self) -> None:
        energy = lambda y: y.square().sum((-2, -1))  # noqa: E731
        x = randn(3, 4, 2)
        inverter = self.inverter(energy=energy, num_hypotheses=6)
        r = inverter(x, generator=seeded(0))
        restored = x.unsqueeze(1) - r.elements.unsqueeze(2)
        assert_relative(r.energies, restored.square().sum((-2, -1)), 1e-12)
        assert torch.equal(r.best_index(), r.energies.argmin(1))
        assert r.energy_evaluations == 6

    def test_parts_bound_memory(self) -> None:
        sizes: list[int] = []

        class Watching(nn.Module):
            def forward(self, y: Tensor, level: Tensor) -> Tensor:
                sizes.append(len(y))
                return 0.1 * y[:, 0]

        score = LearnedScore(Translation(2).action(), SCHEDULE, Watching())
        inverter = AmortizedInverter(score, steps=2, num_hypotheses=3).replace(max_evaluations=7)
        r = inverter(randn(5, 4, 2), generator=seeded(0))
        assert r.elements.shape == (5, 3, 2)
        assert max(sizes) == 6
        assert r.network_evaluations == 6

    def test_what_cannot_be_undone_has_no_energy(self) -> None:
        group = Projective(2, scale=1.5)
        score = LearnedScore(ImageWarp(group), SCHEDULE, ConvolutionOf(group.dim))
        inverter = AmortizedInverter(score, steps=2, num_hypotheses=40)
        x = torch.rand(2, 1, 8, 8, generator=seeded(0))
        r = inverter(x, generator=seeded(1))
        assert torch.isfinite(r.elements).all()
        valid = score.action.is_valid(group.inverse(r.elements), x.unsqueeze(1))
        assert torch.equal(torch.isfinite(r.energies), valid)
        assert int(r.num_masked_steps.sum()) > 0

    def test_in_a_model(self) -> None:
        """`TestTimeEquivariant` takes it as any inverter, and moves it with itself."""
        score = untrained()
        model = TestTimeEquivariant(lambda y: y.flatten(1), AmortizedInverter(score, num_hypotheses=3), ensemble="mean")
        assert any(p is q for p in model.parameters() for q in score.parameters())
        x = shape(torch.tensor([0.3, 0.4]), 2)
        assert model(x, generator=seeded(0)).shape == (2, 2 * HARMONICS)

    def test_same_seed_same_result(self) -> None:
        inverter = AmortizedInverter(untrained(), num_hypotheses=3)
        x = shape(torch.tensor([0.3]), 2)
        first, second = (inverter(x, generator=seeded(4)).elements for _ in range(2))
        assert torch.equal(first, second)


class TestRefused:
    def test_score(self) -> None:
        turns, backbone = Turns(), Perceptron(8, 1)
        with pytest.raises(ConfigurationError, match="action"):
            LearnedScore(turns.group, SCHEDULE, backbone)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="schedule"):
            LearnedScore(turns, 0.1, backbone)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="backbone"):
            LearnedScore(turns, SCHEDULE, lambda y, level: y)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="prior"):
            LearnedScore(turns, SCHEDULE, backbone, prior="both")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="lowest_time"):
            LearnedScore(turns, SCHEDULE, backbone, lowest_time=0.0)
        with pytest.raises(ConfigurationError, match="noise_steps"):
            LearnedScore(turns, SCHEDULE, backbone, noise_steps=0)

    def test_backbone_of_another_size(self) -> None:
        score = LearnedScore(Turns(), SCHEDULE, Perceptron(8, 3))
        with pytest.raises(ShapeError, match=r"expected \[2, 1\], got \[2, 3\]"):
            score.loss(shape(torch.zeros(2), 1))

    def test_data(self) -> None:
        score = untrained()
        x = shape(torch.zeros(2), 1)
        x[0, 0, 0] = math.nan
        for call in (score.loss, AmortizedInverter(score)):
            with pytest.raises(NonFiniteError):
                call(x)
            with pytest.raises(ShapeError):
                call(shape(torch.zeros(()), 1))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"steps": 0}, "steps"),
            ({"num_hypotheses": 0}, "num_hypotheses"),
            ({"start": "zero"}, "start"),
            ({"times": [1.0, 0.5]}, "times"),
            ({"times": [0.5, 0.5, 0.0]}, "times"),
            ({"times": [2.0, 0.0]}, "times"),
            ({"energy": 3}, "energy"),
        ],
    )
    def test_inverter(self, options: dict, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            AmortizedInverter(untrained(), **options)

    def test_no_score(self) -> None:
        with pytest.raises(ConfigurationError, match="LearnedScore"):
            AmortizedInverter(Perceptron(8, 1))  # type: ignore[arg-type]
