"""Stages put together by hand: proposals weighed and moved by an energy, a stage of one's own, sides of the noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import assert_relative, noise, randn, seeded
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import SE, Action, Affine, Translation
from trivgeo.inversion import (
    InverseProblem,
    Inverter,
    Population,
    Posterior,
    ReverseDiffusionSearch,
    Stage,
    TestTimeEquivariant,
)
from trivgeo.inversion.energies import DataEnergy
from trivgeo.inversion.stages import (
    AddNoise,
    Descend,
    KeepLower,
    Replicate,
    ReverseDiffusion,
    Select,
    WarmStart,
)
from trivgeo.sde import GeometricSchedule

ACTION = Translation(1).action()


def normal(number: int, action: Action = ACTION) -> Inverter:
    """Proposals from N(0, 1), whatever the data; at the price of one, two and three evaluations."""

    def draw(posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        posterior.count(1, 2, 3)
        elements = posterior.normal(posterior.batch, number, 1, generator=generator)
        return Population(elements, torch.zeros(elements.shape[:2], dtype=torch.long))

    return Inverter(action, None, [draw])


def well(y: Tensor) -> Tensor:
    """Smallest where the restored point x~ - g is at zero: g = x~."""
    return 4.0 * y.square().sum((-2, -1))


def hybrid(number: int, *stages: Stage, energy: Callable[[Tensor], Tensor] = well) -> Inverter:
    return Inverter(ACTION, energy, [WarmStart(normal(number)), *stages])


X = torch.tensor([[[0.8]], [[-0.5]]], dtype=torch.float64)


class TestChoice:
    def test_resampling_gives_the_product(self) -> None:
        """N(0, 1) times exp(-4 (g - x)^2 / T) with T = 2: N(4 x / 5, 1 / 5)."""
        r = hybrid(60_000, Select(20_000, "resample", 2.0))(X, generator=seeded(0))
        assert_relative(r.elements.mean((1, 2)), 0.8 * X[:, 0, 0], 0.02)
        assert_relative(r.elements.var(1)[:, 0], torch.full((2,), 0.2).double(), 0.05, floor=0.0)
        restored = X.unsqueeze(1) - r.elements.unsqueeze(-1)
        assert_relative(r.energies, 4.0 * restored[..., 0, 0].square(), 1e-10)

    def test_the_lowest_are_kept_in_order(self) -> None:
        r = hybrid(50, Select(4))(X, generator=seeded(0))
        proposed = normal(50)(X, generator=seeded(0)).elements[..., 0]
        distance = (proposed - X[:, :, 0]).abs().sort(1).values[:, :4]
        assert_relative((r.elements[..., 0] - X[:, :, 0]).abs(), distance, 1e-12)
        assert torch.equal(r.energies, r.energies.sort(1).values)

    def test_what_has_no_energy_is_not_chosen(self) -> None:
        """Infinite energies weigh nothing; a datum without any finite one keeps infinite energies."""
        half = lambda y: torch.where(y[..., 0, 0] < 0, well(y), math.inf)  # noqa: E731
        r = hybrid(200, Select(100, "resample"), energy=half)(X, generator=seeded(0))
        assert bool((r.elements[..., 0] > X[:, :, 0]).all())
        none = lambda y: torch.full(y.shape[:1], math.nan).double()  # noqa: E731
        for stage in (Select(3, "resample"), Select(3)):
            r = hybrid(20, stage, energy=none)(X)
            assert bool(torch.isinf(r.energies).all())
            assert torch.isfinite(r.elements).all()

    def test_counts(self) -> None:
        r = hybrid(50, Select(4))(X)
        assert (r.energy_evaluations, r.gradient_evaluations, r.network_evaluations) == (51, 2, 3)
        r = hybrid(50, Select(4), KeepLower(AddNoise(steps=3, time=0.3), ReverseDiffusion(steps=3, num_mc=5)))(X)
        assert (r.energy_evaluations, r.gradient_evaluations, r.network_evaluations) == (55, 2 + 60, 3)
        assert r.elements.shape == (2, 4, 1)

    def test_more_than_there_are(self) -> None:
        with pytest.raises(ConfigurationError, match="at most 4 chains, got 5"):
            hybrid(4, Select(5))(randn(2, 1, 1))


class TestMoving:
    def test_never_above_the_proposals(self) -> None:
        reverse = ReverseDiffusion(steps=8, temperature=0.01, num_mc=8)
        chosen = hybrid(10, Select(4))(X, generator=seeded(0))
        moved = hybrid(10, Select(4), KeepLower(AddNoise(steps=8, time=0.3), reverse))(X, generator=seeded(0))
        assert bool((moved.energies <= chosen.energies).all())
        assert float(moved.energies.mean()) < 0.2 * float(chosen.energies.mean())
        restored = X.unsqueeze(1) - moved.elements.unsqueeze(-1)
        assert_relative(moved.energies, 4.0 * restored[..., 0, 0].square(), 1e-10)

    def test_from_the_identity_it_is_tied(self) -> None:
        schedule, number = GeometricSchedule(0.1, 1.5), 100
        reverse = ReverseDiffusion(schedule, 30, 20, max_score_norm=None)
        by_hand = Inverter(ACTION, well, [Replicate(number), AddNoise(schedule, 30), reverse])
        tied = ReverseDiffusionSearch(ACTION, well, schedule, 30, 20, number, max_score_norm=None)
        first, second = (i(X, generator=seeded(2)).elements for i in (by_hand, tied))
        assert torch.equal(first, second)

    @pytest.mark.parametrize("time", [0.3, 1.0])
    def test_noise_of_a_time(self, time: float) -> None:
        """On the line with constant noise of rate s: the variance is s^2 t, and the population is at that time."""
        seen: list[float] = []

        def look(posterior: Posterior, population: Population, generator: object) -> Population:
            seen.append(population.time)
            return population

        schedule = GeometricSchedule(0.7, 0.7)
        r = Inverter(ACTION, None, [Replicate(20_000), AddNoise(schedule, 4, time), look])(X[:1], generator=seeded(0))
        assert seen == [time]
        assert float(r.elements.var()) == pytest.approx(0.49 * time, rel=5 * math.sqrt(2 / 20_000))

    def test_a_population_without_noise_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="put AddNoise before it"):
            Inverter(ACTION, well, [Replicate(3), ReverseDiffusion(steps=2)])(X)


class TestOwnStage:
    def test_a_class_of_ten_lines_anywhere(self) -> None:
        """Newton's method on a quadratic energy ends at its minimum, before other stages and after."""

        class Newton(Stage):
            steps = 1

            def __call__(
                self, posterior: Posterior, population: Population, generator: torch.Generator | None
            ) -> Population:
                g, group = population.elements, posterior.group
                gradient, _ = posterior.gradient(lambda v: group.perturb(g, v), torch.zeros_like(g))
                posterior.step()
                return population.moved(group.retract(g, -gradient / 8.0))

        for stages in ([Newton()], [Replicate(3), Newton()], [Newton(), Replicate(3), AddNoise(), Select(2), Newton()]):
            seen: list[tuple[int, int]] = []
            inverter = Inverter(ACTION, well, stages, progress=lambda *steps, seen=seen: seen.append(steps))
            r = inverter(X, generator=seeded(0))
            assert_relative(r.elements[..., 0], X[..., 0].expand(r.energies.shape), 1e-12)
            total = sum(isinstance(stage, Newton) for stage in stages)
            assert seen == [(i, total) for i in range(1, total + 1)]

    def test_networks_move_with_the_inverter(self) -> None:
        """A stage with a network is a class like any other; energies as well."""

        class Shift(Stage):
            def __init__(self) -> None:
                self.layer = nn.Linear(1, 1)

            def __call__(
                self, posterior: Posterior, population: Population, generator: torch.Generator | None
            ) -> Population:
                return population.moved(population.elements + self.layer(posterior.x[..., 0])[:, None] * 0)

        class Distance(DataEnergy):
            def __init__(self) -> None:
                self.layer = nn.Linear(1, 1)

            def __call__(self, x: Tensor) -> Tensor:
                assert not self.layer.training
                return (self.layer(x) - x).flatten(1).sum(1)

        energy, shift, inner = Distance(), Shift(), Shift()
        inverter = Inverter(ACTION, energy, [WarmStart(Inverter(ACTION, None, [shift])), KeepLower(inner)])
        model = TestTimeEquivariant(nn.Identity(), inverter).double()
        found = {id(p) for p in model.parameters()}
        assert {id(p) for layer in (shift.layer, inner.layer, energy.layer) for p in layer.parameters()} == found
        assert energy.layer.training
        assert torch.equal(model(X), X)

    def test_settings(self) -> None:
        tied = ReverseDiffusionSearch(ACTION, well, num_hypotheses=3)
        other = tied.replace(log_det=True, max_evaluations=9)
        assert (other.problem.log_det, other.max_evaluations, other.stages) == (True, 9, tied.stages)
        assert other.then(Descend(2)).max_evaluations == 9
        with pytest.raises(
            ConfigurationError,
            match="settings: expected some of log_det, max_evaluations, max_memory, seconds, progress, compiled",
        ):
            tied.replace(steps=3)

    def test_no_graph_is_kept(self) -> None:
        """Of a network whose parameters require gradients, as they do by default."""
        network = nn.Linear(1, 1).double()
        energy = lambda y: network(y).square().sum((-2, -1))  # noqa: E731
        r = ReverseDiffusionSearch(ACTION, energy, steps=3, num_hypotheses=2).then(Descend(2))(X, generator=seeded(0))
        assert not r.elements.requires_grad
        assert not r.energies.requires_grad
        with torch.inference_mode():
            again = ReverseDiffusionSearch(ACTION, energy, steps=3, num_hypotheses=2).then(Descend(2))(
                X, generator=seeded(0)
            )
        assert torch.equal(r.elements, again.elements)


class TestSides:
    @pytest.mark.parametrize("side", ["restored", "given"])
    def test_energies_are_the_posteriors(self, side: str) -> None:
        action, x = Affine(2).action(), randn(2, 5, 2)
        energy = lambda y: (y**2).sum((-2, -1)) + y.var(-2).log().square().sum(-1)  # noqa: E731
        tied = ReverseDiffusionSearch(
            action, energy, steps=10, num_hypotheses=6, side=side, keep_best=True, pruning=[(0.5, 3)]
        )  # type: ignore[arg-type]
        r = tied(x, generator=seeded(0))
        assert_relative(r.energies, InverseProblem(action, energy).given(x).energies(r.elements), 1e-9)

    def test_what_a_step_moves(self) -> None:
        """Noise from the left moves the given datum by exp(-v), whatever the guess; from the right the restored one."""
        group = SE(2)
        g = group.random(1, 1, generator=seeded(0), dtype=torch.float64)
        action, x = group.action(), randn(1, 4, 2)
        schedule = GeometricSchedule(0.05, 0.05)
        for side in ("restored", "given"):
            noised = Inverter(action, None, [AddNoise(schedule, 1, side=side)])  # type: ignore[arg-type]
            moved = noised(x, initial=g, generator=seeded(1)).elements
            v = 0.05 * noise(1, 1, 3, seed=1)
            if side == "restored":
                expected = action(group.exp(-v), action(group.inverse(g), x.unsqueeze(1)))
            else:
                expected = action(group.inverse(g), action(group.exp(v), x.unsqueeze(1)))
            assert_relative(action(group.inverse(moved), x.unsqueeze(1)), expected, 1e-12)


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "error", "message"),
        [
            (lambda: Select(0), ConfigurationError, "num_hypotheses"),
            (lambda: Select(1, "best"), ConfigurationError, "choice"),
            (lambda: Select(1, temperature=0.0), ConfigurationError, "temperature"),
            (lambda: Replicate(0), ConfigurationError, "num_hypotheses"),
            (lambda: AddNoise(time=0.0), DomainError, "time"),
            (lambda: AddNoise(time=1.0 + 1e-12), DomainError, "time"),
            (lambda: AddNoise(time=math.nan), DomainError, "time"),
            (lambda: AddNoise(steps=0), ConfigurationError, "steps"),
            (lambda: AddNoise(side="left"), ConfigurationError, "side"),
            (lambda: AddNoise(0.1), ConfigurationError, "schedule"),
            (lambda: ReverseDiffusion(steps=-1), ConfigurationError, "steps"),
            (lambda: ReverseDiffusion(num_mc=0), ConfigurationError, "num_mc"),
            (lambda: ReverseDiffusion(max_score_norm=-1.0), ConfigurationError, "max_score_norm"),
            (lambda: ReverseDiffusion(temperature=0.0), ConfigurationError, "temperature"),
            (lambda: ReverseDiffusion(side=None), ConfigurationError, "side"),
            (lambda: ReverseDiffusion(pruning=[(1.5, 3)]), ConfigurationError, "pruning: expected falling times in"),
            (lambda: ReverseDiffusion(pruning=[(0.0, 3)]), ConfigurationError, "pruning: expected falling times in"),
            (lambda: ReverseDiffusion(0.1), ConfigurationError, "schedule"),
            (lambda: WarmStart(ACTION), ConfigurationError, "inverter"),
            (lambda: KeepLower(3), ConfigurationError, "stages"),
            (lambda: Inverter(ACTION, well, [Select]), ConfigurationError, "stages"),
            (lambda: Inverter(ACTION, 3, []), ConfigurationError, "energy"),
            (lambda: Inverter(Translation(1), well, []), ConfigurationError, "action"),
            (lambda: ReverseDiffusionSearch(ACTION, None), ConfigurationError, "energy"),
            (lambda: Inverter(ACTION, None, [Descend(1)])(X), ConfigurationError, "energy"),
            (lambda: Inverter(ACTION, None, [WarmStart(normal(2, SE(2).action()))])(X), ConfigurationError, "SE"),
            (lambda: Inverter(ACTION, None, [])(X, initial=torch.zeros(3, 1, 1)), ShapeError, "initial"),
            (lambda: hybrid(4, KeepLower(Replicate(2)))(X), ConfigurationError, "4 chains"),
        ],
    )
    def test_what_does_not_fit(self, make: Callable[[], object], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            make()


class Copied(torch.nn.Module):
    """The elements of a population, each three times."""

    def forward(self, elements: Tensor) -> Tensor:
        masked = torch.zeros(elements.shape[:2], dtype=torch.int64)
        return Population(elements, masked).copies(3).elements


def test_copies_leave_the_batch_of_an_exported_program_free() -> None:
    batch = torch.export.Dim("batch")
    program = torch.export.export(Copied(), (randn(3, 2, 4),), dynamic_shapes=({0: batch},), strict=False)
    elements = randn(5, 2, 4, seed=1)
    assert torch.equal(program.module()(elements), elements.repeat_interleave(3, 1))
