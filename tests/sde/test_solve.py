"""The one time loop: drifts, backward grids, saving, masked failures."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, random_elements, seeded
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import SL, HeatSymmetry, Translation
from trivgeo.sde import ExponentialEuler, GeometricSchedule, Stepper, StepState, TrivializedSDE, solve

SCHEDULE = GeometricSchedule(0.1, 1.0)


class Deterministic(Stepper):
    """The drift alone; written here as the example of a new scheme."""

    def step(
        self, sde: TrivializedSDE, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        vector, evaluated = sde.increment(state.y, start, end)
        assert vector is not None
        return StepState(sde.group.retract(state.y, vector), evaluated=evaluated)


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
        assert increment is not None
        assert_relative(increment, expected.expand(2, 6), 1e-14)
        assert TrivializedSDE(group, SCHEDULE).increment(g, start, end) == (None, None)

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
        assert solution.failures.tolist() == [0, 1, 1]
        assert torch.isfinite(solution.final).all()
        assert solution.saved is not None
        assert torch.equal(solution.final[1:], solution.saved[0, 1:])
        assert not torch.equal(solution.final[0], solution.saved[0, 0])

    def test_one_chain_without_batch(self) -> None:
        group = affine_line()
        solution = solve(TrivializedSDE(group, SCHEDULE), group.identity(), [0.0, 1.0], generator=seeded(0))
        assert solution.final.shape == group.element_shape
        assert solution.failures.shape == ()

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
        assert solve(sde, torch.zeros(1, 1), grid, generator=seeded(0)).failures.sum() == 0

    def test_default_stepper(self) -> None:
        sde = TrivializedSDE(SL(2), SCHEDULE)
        e = SL(2).identity(2)
        default = solve(sde, e, [0.0, 1.0], generator=seeded(0)).final
        assert torch.equal(default, solve(sde, e, [0.0, 1.0], stepper=ExponentialEuler(), generator=seeded(0)).final)


class TestBadInput:
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
