"""The one time loop: drifts, backward grids, saving, masked failures."""

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, random_elements, seeded
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import SL, HeatSymmetry, Translation
from trivgeo.sde import (
    EnergyScore,
    GeometricSchedule,
    NoiseKernel,
    Stepper,
    TrivializedSDE,
    solve,
    solvers,
    uniform_grid,
)
from trivgeo.sde.processes import merge_evaluated
from trivgeo.sde.scores import EnergySamples, SolveContext
from trivgeo.sde.solvers import Accumulator, ExponentialEuler, GeometricHeun, RungeKuttaMuntheKaas4, StepState

SCHEDULE = GeometricSchedule(0.1, 1.0)


class Deterministic(Stepper):
    """The drift alone; written here as the example of a new scheme."""

    def step(
        self, sde: TrivializedSDE, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        vector, evaluated = sde.increment(state.y, start, end)
        return StepState(sde.group.retract(state.y, vector), evaluated=evaluated)


class AntitheticEuler(Stepper):
    """Exponential Euler whose every second step takes minus the noise of the first: the example of a memory."""

    def init(self, sde: TrivializedSDE, y: Tensor, start: float, generator: torch.Generator | None) -> StepState:
        zero = torch.zeros(*sde.batch_shape(y), sde.group.dim, dtype=y.dtype)
        return StepState(y, (zero, zero[..., 0]))

    def step(
        self, sde: TrivializedSDE, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        last, parity = state.memory
        fresh = torch.randn(last.shape, generator=generator, dtype=last.dtype)
        z = torch.where(parity.unsqueeze(-1) == 0, fresh, -last)
        vector, evaluated = sde.increment(state.y, start, end)
        y = sde.group.retract(state.y, vector + sde.noise_std(start, end) * z)
        return StepState(y, (z, 1 - parity), evaluated)


class AdamsBashforth(Stepper):
    """Two steps of the drift alone: order 2 at one drift a step, by what the step before evaluated."""

    def init(self, sde: TrivializedSDE, y: Tensor, start: float, generator: torch.Generator | None) -> StepState:
        zero = torch.zeros(sde.batch_shape(y), dtype=y.dtype)
        return StepState(y, (torch.zeros(*zero.shape, sde.group.dim, dtype=y.dtype), zero))

    def step(
        self, sde: TrivializedSDE, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        before, known = state.memory
        velocity, evaluated = sde.velocity(state.y, start)
        v = (end - start) * (velocity + 0.5 * known.unsqueeze(-1) * (velocity - before))
        return StepState(sde.group.retract(state.y, v), (velocity, torch.ones_like(known)), evaluated)


class Steps(Accumulator):
    """The sum of the states after the steps, and how many scores were evaluated."""

    def init(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(y), torch.zeros(())

    def update(self, acc: tuple[Tensor, Tensor], step: StepState) -> tuple[Tensor, Tensor]:
        return acc[0] + step.y, acc[1] + len(step.parts(EnergySamples))


class TestNewSchemes:
    """A scheme is one class: these have a memory, and run through `solve` on known laws."""

    def test_pairs_of_noise_cancel(self) -> None:
        """dy = dw on the line: z, then -z; and a fresh z at the end of an odd number of steps."""
        sde = TrivializedSDE(Translation(1), GeometricSchedule(1.0, 1.0), lambda g, t: torch.ones_like(g))
        start = torch.zeros(20_000, 1, dtype=torch.float64)
        even, odd = (
            solve(sde, start, uniform_grid(m), stepper=AntitheticEuler(), generator=seeded(0)).final for m in (4, 5)
        )
        assert_relative(even, torch.ones_like(even), 1e-12)
        assert_relative(odd.mean(), torch.tensor(1.0).double(), 0.01)
        assert_relative(odd.var(), torch.tensor(0.2).double(), 0.03)

    def test_two_step_scheme_has_order_two(self) -> None:
        """y' = -y from 1, and the same by gradients that checkpoints find again."""
        sde = TrivializedSDE(Translation(1), SCHEDULE, lambda g, t: -g, noisy=False)
        errors = []
        for steps in (20, 40, 80):
            start = torch.ones(3, 1, dtype=torch.float64, requires_grad=True)
            results = []
            for every in (None, 7):
                final = solve(sde, start, uniform_grid(steps), stepper=AdamsBashforth(), checkpoint_every=every).final
                results.append(torch.stack([final.detach(), *torch.autograd.grad(final.sum(), start)]))
            assert_relative(results[1], results[0], 1e-12)
            assert_relative(results[0][1], results[0][0], 1e-12)  # linear: the gradient is the solution itself
            errors.append(float((results[0][0] - math.exp(-1.0)).abs().max()))
        for coarse, fine in pairwise(errors):
            assert 3.6 < coarse / fine < 4.4

    def test_memory_of_a_masked_chain_goes_back(self) -> None:
        """Its step is not taken: neither state nor memory have seen it."""

        def drift(g: Tensor, t: float) -> Tensor:
            lost = (torch.arange(2) == 1) & (t == 0.25)
            return torch.where(lost, math.nan, 1.0 + t).unsqueeze(-1)

        sde = TrivializedSDE(Translation(1), SCHEDULE, drift)
        solution = solve(sde, torch.zeros(2, 1), [0.0, 0.25, 0.5, 1.0], stepper=AdamsBashforth())
        assert solution.num_masked_steps.tolist() == [0, 1]
        taken = 0.25 + 0.25 * (1.25 + 0.5 * 0.25) + 0.5 * (1.5 + 0.5 * 0.25)
        held = 0.25 + 0.5 * (1.5 + 0.5 * 0.5)
        assert_relative(solution.final, torch.tensor([[taken], [held]]), 1e-6)

    def test_nothing_is_kept_between_runs(self) -> None:
        sde, scheme = TrivializedSDE(Translation(1), SCHEDULE, lambda g, t: -g), AntitheticEuler()
        start = torch.zeros(5, 1)
        first, again = (solve(sde, start, uniform_grid(3), stepper=scheme, generator=seeded(0)).final for _ in "12")
        assert torch.equal(first, again)


class TestWhatIsEvaluated:
    """Scores tell through the steps what they evaluated; schemes tell scores when they will ask."""

    KERNEL = NoiseKernel(Translation(1), SCHEDULE, 4)

    @pytest.mark.parametrize(
        ("scheme", "noisy", "expected"),
        [
            (ExponentialEuler(), True, 4),
            (GeometricHeun(), True, 8),
            (GeometricHeun(skip_zero=True), True, 7),
            (RungeKuttaMuntheKaas4(), False, 16),
        ],
        ids=repr,
    )
    def test_fold(self, scheme: Stepper, noisy: bool, expected: int) -> None:
        score = EnergyScore(lambda g: (g**2).sum(-1), self.KERNEL, 3)
        sde = TrivializedSDE(Translation(1), SCHEDULE, score_drift=score, noisy=noisy)
        start, grid = torch.zeros(6, 1, dtype=torch.float64), uniform_grid(4, 1.0, 0.0)
        solution = solve(
            sde, start, grid, stepper=scheme, generator=seeded(0), accumulator=Steps(), save_at=[1, 2, 3, 4]
        )
        assert solution.saved is not None
        assert_relative(solution.accumulated[0], solution.saved.sum(0), 1e-14)
        assert int(solution.accumulated[1]) == expected
        again = solve(sde, start, grid, stepper=scheme, generator=seeded(0), accumulator=Steps(), checkpoint_every=3)
        assert_relative(again.accumulated[0], solution.accumulated[0], 1e-14)
        assert int(again.accumulated[1]) == expected

    def test_gradients_of_an_accumulator(self) -> None:
        """The sum of the states of y' = -y in two half steps, 1/2 + 1/4, with and without checkpoints."""
        sde = TrivializedSDE(Translation(1), SCHEDULE, lambda g, t: -g)
        for every in (None, 1, 2):
            start = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
            options = {"stepper": Deterministic(), "accumulator": Steps(), "checkpoint_every": every}
            total, _ = solve(sde, start, [0.0, 0.5, 1.0], **options).accumulated
            assert_relative(torch.autograd.grad(total.sum(), start)[0], torch.full((2, 1), 0.75).double(), 1e-12)

    @pytest.mark.parametrize("scheme", [ExponentialEuler(), GeometricHeun(), RungeKuttaMuntheKaas4()], ids=repr)
    @pytest.mark.parametrize("grid", [[0.0, 0.3, 1.0], [1.0, 0.6, 0.0]], ids=str)
    def test_times(self, scheme: Stepper, grid: list[float]) -> None:
        """Those that a scheme announces are those at which it asks."""
        seen: list[float] = []

        def drift(g: Tensor, t: float) -> Tensor:
            seen.append(t)
            return torch.zeros_like(g)

        solve(TrivializedSDE(Translation(1), SCHEDULE, drift, noisy=False), torch.zeros(1, 1), grid, stepper=scheme)
        assert set(seen) == set(scheme.times(grid))
        assert list(dict.fromkeys(seen)) == list(dict.fromkeys(scheme.times(grid)))

    def test_no_noise_is_drawn_where_none_is_needed(self) -> None:
        """One step from t = 0, where the score is minus the gradient."""
        generator = seeded(0)
        score = EnergyScore(lambda g: (g**2).sum(-1), self.KERNEL, 3)
        sde = TrivializedSDE(Translation(1), SCHEDULE, score_drift=score, noisy=False)
        final = solve(sde, torch.ones(1, 1), [0.0, 0.5], generator=generator).final
        assert_relative(final, torch.tensor([[1.0 - 2.0 * SCHEDULE.variance(0.0, 0.5)]]), 1e-6)
        with pytest.raises(DomainError, match="only time"):
            score.prepare(SolveContext((0.0,), (1,), torch.float32, torch.device("cpu"), None)).estimate(
                torch.ones(1, 1), 0.5
            )

    def test_parts(self) -> None:
        """Of nested evaluations, in order; `merge_evaluated` drops what is none."""
        samples = [EnergySamples(*[torch.full((1,), float(i))] * 5) for i in range(3)]
        assert merge_evaluated(None, None) is None
        assert merge_evaluated(None, samples[0]) is samples[0]
        step = StepState(torch.zeros(1), (), merge_evaluated(samples[0], None, merge_evaluated(samples[1], samples[2])))
        assert [float(x.energy) for x in step.parts(EnergySamples)] == [0.0, 1.0, 2.0]
        assert StepState(torch.zeros(1)).parts(EnergySamples) == []

    def test_drifts_that_are_none(self) -> None:
        for name in ("drift", "score_drift"):
            with pytest.raises(ConfigurationError, match=name):
                TrivializedSDE(Translation(1), SCHEDULE, **{name: 3.0})


class TestDrift:
    @pytest.mark.parametrize("times", [[0.0, 0.3, 1.0], [1.0, 0.6, 0.0], [0.2, 0.5]])
    def test_constant_drifts(self, times: list[float]) -> None:
        """phi dt and psi gamma^2 dt with their exact integrals: one exponential each way."""
        group = HeatSymmetry(0.1)
        g = random_elements(group, 2, std=0.3)
        phi, psi = torch.linspace(-0.3, 0.3, 6).double(), torch.linspace(0.2, -0.1, 6).double()
        for drift, score_drift in (
            (lambda g, t: phi.expand(2, 6), None),
            (None, lambda g, t: phi.expand(2, 6)),
        ):
            sde = TrivializedSDE(group, SCHEDULE, drift, score_drift)
            total = times[-1] - times[0] if drift else SCHEDULE.variance(times[0], times[-1])
            final = solve(sde, g, times, stepper=Deterministic()).final
            assert_relative(final, group.compose(g, group.exp(total * phi)), 1e-12, event=1)
        both = TrivializedSDE(group, SCHEDULE, lambda g, t: phi.expand(2, 6), lambda g, t: psi.expand(2, 6))
        start, end = times[0], times[1]
        expected = (end - start) * phi + SCHEDULE.variance(start, end) * psi
        increment = both.increment(g, start, end).vector
        assert_relative(increment, expected.expand(2, 6), 1e-14)
        assert not TrivializedSDE(group, SCHEDULE).has_drift
        assert_relative(
            TrivializedSDE(group, SCHEDULE).increment(g, start, end).vector, torch.zeros(2, 6).double(), 0.0
        )

    def test_drift_is_evaluated_at_the_start_of_a_step(self) -> None:
        seen = []

        def drift(g: Tensor, t: float) -> Tensor:
            seen.append(t)
            return torch.ones_like(g)

        solve(TrivializedSDE(Translation(1), SCHEDULE, drift), torch.zeros(1, 1), [1.0, 0.4, 0.1])
        assert seen == [1.0, 0.4]

    def test_first_order_convergence(self) -> None:
        """y' = -y by exponential Euler: the error halves with the step."""
        sde = TrivializedSDE(Translation(1), SCHEDULE, lambda g, t: -g)
        one = torch.ones(1, dtype=torch.float64)
        errors = []
        for steps in (20, 40, 80):
            grid = [m / steps for m in range(steps + 1)]
            errors.append(abs(float(solve(sde, one, grid, stepper=Deterministic()).final) - math.exp(-1.0)))
        for coarse, fine in pairwise(errors):
            assert 1.8 < coarse / fine < 2.2

    def test_noise_of_an_ornstein_uhlenbeck_process(self) -> None:
        """dy = -y dt + dw: known stationary law, variance 1/2 (1 - e^-2) at t = 1 from zero."""
        sde = TrivializedSDE(Translation(1), GeometricSchedule(1.0, 1.0), lambda g, t: -g)
        grid = [m / 100 for m in range(101)]
        y = solve(sde, torch.zeros(20000, 1, dtype=torch.float64), grid, generator=seeded(0)).final
        expected = torch.tensor(0.5 * -math.expm1(-2.0), dtype=torch.float64)
        assert_relative(y.var(), expected, 0.03, floor=0.0)  # 3 errors of the sample and 1 % of the steps


class TestLoop:
    def test_save_at(self) -> None:
        group = HeatSymmetry(0.1)
        grid = [0.0, 0.25, 0.5, 1.0]
        g = group.identity(3, dtype=torch.float64)
        solution = solve(TrivializedSDE(group, SCHEDULE), g, grid, generator=seeded(0), save_at=[2, 0, -1])
        assert solution.saved is not None
        assert solution.saved.shape == (3, 3, 7)
        assert torch.equal(solution.saved[1], g)
        assert torch.equal(solution.saved[2], solution.final)
        shorter = solve(TrivializedSDE(group, SCHEDULE), g, grid[:3], generator=seeded(0)).final
        assert torch.equal(solution.saved[0], shorter)
        assert solve(TrivializedSDE(group, SCHEDULE), g, grid).saved is None

    def test_observe(self) -> None:
        seen: list[tuple[int, float]] = []
        sde = TrivializedSDE(Translation(1), SCHEDULE)
        solve(sde, torch.zeros(1), [1.0, 0.5, 0.2], observe=lambda index, t, y: seen.append((index, t)))
        assert seen == [(0, 1.0), (1, 0.5), (2, 0.2)]

    def test_backward_noise_has_the_same_variance(self) -> None:
        sde = TrivializedSDE(Translation(1), SCHEDULE)
        start = torch.zeros(20000, 1, dtype=torch.float64)
        for grid in ([0.0, 0.5, 1.0], [1.0, 0.5, 0.0]):
            spread = solve(sde, start, grid, generator=seeded(0)).final.var()
            expected = torch.tensor(SCHEDULE.variance(0.0, 1.0), dtype=torch.float64)
            assert_relative(spread, expected, 0.04, floor=0.0)

    def test_masked_failures(self) -> None:
        """A step that would not be finite is not taken, and counted; other chains go on."""

        def drift(g: Tensor, t: float) -> Tensor:
            bad = torch.tensor([[1.0], [math.nan], [math.inf]]) if t == 0.5 else torch.ones(3, 1)
            return bad.expand(3, 3)

        group = SL(2)
        sde = TrivializedSDE(group, SCHEDULE, lambda g, t: drift(g, t))
        solution = solve(sde, group.identity(3), [0.0, 0.5, 1.0], stepper=Deterministic(), save_at=[1])
        assert solution.num_masked_steps.tolist() == [0, 1, 1]
        assert torch.isfinite(solution.final).all()
        assert solution.saved is not None
        assert torch.equal(solution.final[1:], solution.saved[0, 1:])
        assert not torch.equal(solution.final[0], solution.saved[0, 0])

    def test_one_chain_without_batch(self) -> None:
        group = affine_line()
        solution = solve(TrivializedSDE(group, SCHEDULE), group.identity(), [0.0, 1.0], generator=seeded(0))
        assert solution.final.shape == group.element_shape
        assert solution.num_masked_steps.shape == ()

    def test_gradients_flow_through(self) -> None:
        start = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
        sde = TrivializedSDE(Translation(1), SCHEDULE, lambda g, t: -g)
        final = solve(sde, start, [0.0, 0.5, 1.0], stepper=Deterministic()).final
        (gradient,) = torch.autograd.grad(final.sum(), start)
        assert_relative(gradient, torch.full((2, 1), 0.25).double(), 1e-12)

    def test_long_runs(self) -> None:
        """torchsde#105, #109: long runs neither recurse nor slow down."""
        grid = [m / 5000 for m in range(5001)]
        sde = TrivializedSDE(Translation(1), SCHEDULE)
        assert solve(sde, torch.zeros(1, 1), grid, generator=seeded(0)).num_masked_steps.sum() == 0

    def test_default_stepper(self) -> None:
        sde = TrivializedSDE(SL(2), SCHEDULE)
        e = SL(2).identity(2)
        default = solve(sde, e, [0.0, 1.0], generator=seeded(0)).final
        assert torch.equal(default, solve(sde, e, [0.0, 1.0], stepper=ExponentialEuler(), generator=seeded(0)).final)

    @pytest.mark.parametrize("kind", [tuple, torch.tensor, np.array])
    def test_kinds_of_times(self, kind: Any) -> None:
        sde, times, e = TrivializedSDE(SL(2), SCHEDULE), [0.0, 0.25, 1.0], SL(2).identity(2)
        expected = solve(sde, e, times, generator=seeded(0)).final
        assert torch.equal(solve(sde, e, kind(times), generator=seeded(0)).final, expected)


class TestBadInput:
    @pytest.mark.parametrize("times", [torch.tensor(1.0), torch.rand(3, requires_grad=True), "01", 1.0])
    def test_no_times(self, times: Any) -> None:
        """A gradient would be lost without a word."""
        with pytest.raises(DomainError, match="times: expected a sequence of numbers"):
            solve(TrivializedSDE(SL(2), SCHEDULE), SL(2).identity(1), times)

    @pytest.mark.parametrize(
        "times", [[0.0], [], [0.0, 0.0], [0.0, 0.5, 0.4], [0.0, 1.1], [-0.1, 0.5], [0.0, math.nan, 1.0]]
    )
    def test_grids(self, times: list[float]) -> None:
        with pytest.raises(DomainError, match="grid"):
            solve(TrivializedSDE(SL(2), SCHEDULE), SL(2).identity(1), times)

    def test_elements(self) -> None:
        with pytest.raises(ShapeError, match="initial"):
            solve(TrivializedSDE(SL(2), SCHEDULE), torch.zeros(2, 3), [0.0, 1.0])

    @pytest.mark.parametrize("save_at", [[0, 0], [1, -1], [2], [-3]])
    def test_save_at(self, save_at: list[int]) -> None:
        """Repeated indices, and indices that are none of the two times."""
        with pytest.raises(ConfigurationError, match="save_at"):
            solve(TrivializedSDE(SL(2), SCHEDULE), SL(2).identity(1), [0.0, 1.0], save_at=save_at)


def test_table_of_solvers() -> None:
    """The reference has a row for every exported scheme, with the orders that the scheme states."""
    text = (Path(__file__).parents[3] / "docs" / "api" / "sde.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([\d.]*) ?\| ([\d.]*) ?\| \d \|$", text, re.MULTILINE)
    found = {name: (order, strong) for name, order, strong in rows}
    schemes = {name: getattr(solvers, name) for name in solvers.__all__}
    steppers = {n: s for n, s in schemes.items() if isinstance(s, type) and issubclass(s, Stepper)}
    stated = {
        name: tuple("" if x is None else f"{x:g}" for x in (scheme.order, scheme.strong_order))
        for name, scheme in steppers.items()
        if not getattr(scheme, "__abstractmethods__", None)
    }
    assert len(stated) == 12
    assert found == stated
