"""Schemes: weak orders, the probability flow, checkpointed gradients, paths that are not kept."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, randn, seeded
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import SE, SL, SO, Affine, LieGroup, Translation
from trivgeo.sde import (
    ConstantSchedule,
    EnergyScore,
    GeometricSchedule,
    NoiseKernel,
    Stepper,
    TrivializedSDE,
    forward_noising,
    probability_flow,
    probability_flow_sample,
    solve,
    trivialized_grad,
    uniform_grid,
)
from trivgeo.sde.processes import reverse_process
from trivgeo.sde.scores import SolveContext
from trivgeo.sde.solvers import ExponentialEuler, GeometricHeun, RungeKuttaMuntheKaas4, StepState

SCHEDULE = GeometricSchedule(0.1, 1.0)
UNIT = ConstantSchedule(1.0)


def slope(steps: list[int], errors: list[float]) -> float:
    """The order: minus the slope of log error over log steps."""
    return -float(np.polyfit(np.log(steps), np.log(np.abs(errors)), 1)[0])


def hermite_normal(dim: int, nodes: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Tensor]:
    """Replace the normal numbers of the steppers by the nodes of a product quadrature rule over two draws."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    points = torch.tensor(list(itertools.product(x, repeat=2 * dim)), dtype=torch.float64)
    weights = torch.tensor(list(itertools.product(w / w.sum(), repeat=2 * dim)), dtype=torch.float64).prod(-1)
    draws = itertools.cycle([points[:, :dim], points[:, dim:]])
    fake = lambda shape, reference, generator: next(draws)  # noqa: E731
    monkeypatch.setattr("trivgeo.sde.processes.trivialized.normal", fake)
    monkeypatch.setattr("trivgeo.sde.solvers.runge_kutta.normal", fake)
    return len(points), weights


@pytest.mark.parametrize(("scheme", "order"), [(ExponentialEuler, 1), (GeometricHeun, 2)])
class TestNoiseWithoutDrift:
    """The mean of a linear representation is a power of that of one step, which quadrature gives exactly."""

    STEPS = (1, 2, 4, 8)

    def mean_of_step(
        self,
        group: LieGroup,
        scheme: type[Stepper],
        rho: Callable[[Tensor], Tensor],
        h: float,
        patch: pytest.MonkeyPatch,
    ) -> Tensor:
        with patch.context() as context:
            number, weights = hermite_normal(group.dim, 12 if group.dim == 2 else 6, context)
            g = group.identity(number, dtype=torch.float64)
            new = scheme().step(TrivializedSDE(group, UNIT), StepState(g), 0.0, h, None)
            return torch.einsum("b,bij->ij", weights, rho(new.y))

    def test_rotations(self, scheme: type[Stepper], order: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """E[R] = exp(-t) for Brownian motion on SO(3): the Casimir of vectors is 2."""
        errors = []
        for steps in self.STEPS:
            mean = self.mean_of_step(SO(3), scheme, lambda g: g, 1.0 / steps, monkeypatch)
            errors.append(float(torch.linalg.matrix_power(mean, steps)[0, 0]) - math.exp(-1.0))
        assert slope(self.STEPS, errors) == pytest.approx(order, abs=0.35)

    def test_affine_line(self, scheme: type[Stepper], order: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """E[b^2] = (e^2t - 1) / 2 on Aff(1): from the symmetric square of x -> e^a x + b."""

        def square(g: Tensor) -> Tensor:
            s, b = g[:, 0].exp(), g[:, 1]
            zero, one = torch.zeros_like(s), torch.ones_like(s)
            rows = [[s * s, 2 * s * b, b * b], [zero, s, b], [zero, zero, one]]
            return torch.stack([torch.stack(row, -1) for row in rows], -2)

        errors = []
        for steps in self.STEPS:
            mean = self.mean_of_step(affine_line(), scheme, square, 0.5 / steps, monkeypatch)
            errors.append(float(torch.linalg.matrix_power(mean, steps)[0, 2]) - math.expm1(1.0) / 2)
        assert slope(self.STEPS, errors) == pytest.approx(order, abs=0.35)


class TestWeakOrderWithDrift:
    """Closed-form means under noise and a drift that depends on the place and does not commute with it."""

    @staticmethod
    def rotations(scheme: Stepper, steps: int, number: int) -> tuple[Tensor, Tensor]:
        """dg = c g dt + g dw has E[g] = exp(t c) e^-t; left-trivialized, the drift is g^T c."""
        axis = torch.tensor([1.0, 0.5, -1.5], dtype=torch.float64)
        group = SO(3)
        sde = TrivializedSDE(group, UNIT, lambda g, t: (g.mT @ axis.unsqueeze(-1)).squeeze(-1))
        g = group.identity(number, dtype=torch.float64)
        final = solve(sde, g, torch.linspace(0, 1, steps + 1).tolist(), stepper=scheme, generator=seeded(steps)).final
        values = (final - math.exp(-1.0) * group.exp(axis)).flatten(1)
        return values.mean(0), values.std(0) / math.sqrt(number)

    @staticmethod
    def affine(scheme: Stepper, steps: int, number: int) -> tuple[Tensor, Tensor]:
        """da = -2 a dt + dw, db = -b dt + e^a dw from (0.5, 1): E[b] = e^-1, E[b^2] by quadrature of E[e^2a]."""
        group = affine_line()

        def drift(g: Tensor, t: float) -> Tensor:
            a, b = g.unbind(-1)
            return torch.stack([-2.0 * a, -b * (-a).exp()], -1)

        start = torch.tensor([0.5, 1.0], dtype=torch.float64).expand(number, 2)
        sde = TrivializedSDE(group, ConstantSchedule(0.6), drift)
        grid = torch.linspace(0, 1, steps + 1).tolist()
        final = solve(sde, start, grid, stepper=scheme, generator=seeded(steps)).final
        s = np.linspace(0.0, 1.0, 20001)
        mean, var = 0.5 * np.exp(-2 * s), 0.36 * (1 - np.exp(-4 * s)) / 4
        square = math.exp(-2.0) + np.trapezoid(np.exp(-2 * (1 - s)) * 0.36 * np.exp(2 * mean + 2 * var), s)
        a, b = final.unbind(-1)
        exact = torch.tensor([mean[-1], mean[-1] ** 2 + var[-1], math.exp(-1.0), square])
        values = torch.stack([a, a * a, b, b * b], -1) - exact
        return values.mean(0), values.std(0) / math.sqrt(number)

    def order(self, problem: str, scheme: Stepper, steps: list[int], number: int) -> float:
        """Of the norm of the errors of all moments."""
        results = [getattr(self, problem)(scheme, m, number) for m in steps]
        errors = [float(e.norm()) for e, _ in results]
        assert errors[-1] > 3 * float(results[-1][1].norm()), "the last error must stand above the noise"
        return slope(steps, errors)

    @pytest.mark.parametrize(
        ("problem", "steps"),
        [
            ("rotations", [4, 8]),
            pytest.param("affine", [3, 6], marks=pytest.mark.slow(reason="the other problem stays")),
        ],
    )
    def test_fast(self, problem: str, steps: list[int]) -> None:
        assert self.order(problem, ExponentialEuler(), [4, 8, 16], 200_000) == pytest.approx(1, abs=0.3)
        assert self.order(problem, GeometricHeun(), steps, 200_000) == pytest.approx(2, abs=0.5)

    @pytest.mark.slow
    @pytest.mark.parametrize(("problem", "steps"), [("rotations", [4, 8, 16]), ("affine", [3, 6, 10])])
    def test_slow(self, problem: str, steps: list[int]) -> None:
        assert self.order(problem, ExponentialEuler(), [8, 16, 32], 1_000_000) == pytest.approx(1, abs=0.2)
        assert self.order(problem, GeometricHeun(), steps, 4_000_000) == pytest.approx(2, abs=0.3)


class TestDeterministic:
    @pytest.mark.parametrize(
        ("scheme", "order"), [(ExponentialEuler, 1), (GeometricHeun, 2), (RungeKuttaMuntheKaas4, 4)]
    )
    @pytest.mark.parametrize(
        "group",
        [
            SO(3),
            pytest.param(SL(2), marks=pytest.mark.slow(reason="SO(3) and SE(2) stay")),
            pytest.param(affine_line(), marks=pytest.mark.slow(reason="SO(3) and SE(2) stay")),
            SE(2),
        ],
        ids=repr,
    )
    def test_order(self, group: LieGroup, scheme: type[Stepper], order: int) -> None:
        """Without noise: against the same scheme with many steps, time-dependent drift of both kinds."""
        size = torch.Size(group.element_shape).numel()
        matrix = 0.7 * randn(group.dim, size, seed=3)
        phi = lambda g, t: g.flatten(-len(group.element_shape)) @ matrix.mT * math.cos(2 * t)  # noqa: E731
        psi = lambda g, t: (g.flatten(-len(group.element_shape)) @ matrix.mT).sin()  # noqa: E731
        sde = TrivializedSDE(group, GeometricSchedule(0.5, 1.5), phi, psi, noisy=False)
        g = group.exp(0.3 * randn(2, group.dim, seed=4))
        for grid in (lambda m: [k / m for k in range(m + 1)], lambda m: [1 - k / m for k in range(m + 1)]):
            exact = solve(sde, g, grid(200), stepper=RungeKuttaMuntheKaas4()).final
            steps = [10, 20, 40]
            errors = [float((solve(sde, g, grid(m), stepper=scheme()).final - exact).abs().max()) for m in steps]
            assert slope(steps, errors) == pytest.approx(order, abs=0.4)

    def test_noise_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="without noise"):
            solve(TrivializedSDE(SL(2), UNIT), SL(2).identity(1), [0.0, 1.0], stepper=RungeKuttaMuntheKaas4())

    def test_nothing_to_do(self) -> None:
        g = SL(2).identity(2)
        for scheme in (ExponentialEuler(), GeometricHeun(), RungeKuttaMuntheKaas4()):
            assert torch.equal(solve(TrivializedSDE(SL(2), UNIT, noisy=False), g, [0.0, 1.0], stepper=scheme).final, g)


class NormalAffineLine:
    """Law on Aff(1) that stays known under the noise in its log-scale: a ~ N(m, s^2 + v), p with respect to e^-a da."""

    MEAN, STD = 0.4, 0.5

    @classmethod
    def score(cls, schedule: GeometricSchedule) -> Callable[[Tensor, float], Tensor]:
        """Of the marginal in a (a quotient group) for left Haar measure: log p = -(a - m)^2 / 2 (s^2 + v) + a."""

        def f(g: Tensor, t: float) -> Tensor:
            slope_a = 1.0 - (g[..., 0] - cls.MEAN) / (cls.STD**2 + schedule.variance(0.0, t))
            return torch.stack([slope_a, torch.zeros_like(slope_a)], -1)

        return f


class TestProbabilityFlow:
    def test_affine_line(self) -> None:
        """Each element is mapped by the monotone map of normal laws; without the modular term it is not."""
        group, law = affine_line(), NormalAffineLine
        total = law.STD**2 + SCHEDULE.variance(0.0, 1.0)
        a = law.MEAN + math.sqrt(total) * torch.linspace(-2, 2, 9, dtype=torch.float64)
        start = torch.stack([a, torch.zeros_like(a)], -1)
        expected = law.MEAN + (a - law.MEAN) * law.STD / math.sqrt(total)
        for scheme, bound in ((GeometricHeun(), 1e-3), (RungeKuttaMuntheKaas4(), 1e-6)):
            g = probability_flow_sample(group, SCHEDULE, law.score(SCHEDULE), start, steps=40, stepper=scheme)
            assert_relative(g[:, 0], expected, bound)
        without = probability_flow_sample(group, SCHEDULE, law.score(SCHEDULE), start, modular_drift=False)
        assert float((without[:, 0] - expected).mean()) > 0.05

    def test_density_of_an_affine_law_with_shift(self) -> None:
        """Both coordinates, Monte Carlo score: moments of the target from a sample of p_1."""
        group = affine_line()
        energy = lambda g: (g[..., 0] - 0.3) ** 2 / 0.32 + (g[..., 1] - 0.5) ** 2 / 0.5 - g[..., 0]  # noqa: E731
        clean = torch.tensor([0.3, 0.5]).double() + randn(1500, 2, seed=3) * torch.tensor([0.4, 0.5]).double()
        start = forward_noising(group, SCHEDULE, clean, steps=20, generator=seeded(4))
        score = EnergyScore(energy, NoiseKernel(group, SCHEDULE, 16), 64, pool=4096)
        g = probability_flow_sample(group, SCHEDULE, score, start, steps=16, generator=seeded(5))
        without = probability_flow_sample(
            group, SCHEDULE, score, start, steps=16, generator=seeded(5), modular_drift=False
        )
        assert abs(float(g[:, 0].mean()) - 0.3) < 0.03 + 3 * 0.4 / math.sqrt(1500)
        assert float((without - g)[:, 0].mean()) > 0.04
        assert abs(float(g[:, 1].mean()) - 0.5) < 0.03 + 3 * 0.5 / math.sqrt(1500)

    def test_carries_backwards_what_it_carried_forwards(self) -> None:
        law = NormalAffineLine
        sde = probability_flow(affine_line(), SCHEDULE, law.score(SCHEDULE))
        g = randn(4, 2)
        there = solve(sde, g, [0.0, 0.25, 0.5, 0.75, 1.0], stepper=RungeKuttaMuntheKaas4()).final
        back = solve(sde, there, [1.0, 0.75, 0.5, 0.25, 0.0], stepper=RungeKuttaMuntheKaas4()).final
        assert_relative(back, g, 1e-3)


class TestReverse:
    """The order-2 scheme in a reverse diffusion; known targets are recovered in `test_known_targets`."""

    def test_skip_zero(self) -> None:
        """A score that does not exist at t = 0."""
        seen: list[float] = []

        def score(g: Tensor, t: float) -> Tensor:
            seen.append(t)
            return -g / SCHEDULE.variance(0.0, t)

        process, grid = reverse_process(Translation(2), SCHEDULE, score), uniform_grid(5, 1.0, 0.0)
        options = {"initial": randn(4, 2), "times": grid, "generator": seeded(0)}
        solution = solve(process, stepper=GeometricHeun(skip_zero=True), **options)
        assert solution.num_masked_steps.tolist() == [0] * 4
        assert min(seen) == pytest.approx(0.2)
        solution = solve(process, stepper=GeometricHeun(), **options)
        assert solution.num_masked_steps.tolist() == [1] * 4, "with it the last step is masked"

    def test_energy_score_at_zero(self) -> None:
        """At t = 0 the score is minus the gradient of the energy, from one sample."""
        group = affine_line()
        kernel = NoiseKernel(group, SCHEDULE, 4)
        score = EnergyScore(lambda g: (g**2).sum(-1), kernel, 8)
        g = randn(3, 2)
        prepared = score.prepare(SolveContext((1.0, 0.5), (3,), g.dtype, g.device, seeded(0)))
        assert_relative(prepared(g, 0.0), -trivialized_grad(group, lambda x: (x**2).sum(-1), g), 1e-12)


class TestCheckpointing:
    @pytest.mark.parametrize("every", [1, 3, 100])
    @pytest.mark.parametrize("own", [True, False], ids=["own generator", "global generator"])
    def test_gradients_and_noise_are_the_same(self, every: int, own: bool) -> None:
        group = SE(2)
        weight = randn(3, 6, seed=1).requires_grad_()
        sde = TrivializedSDE(group, SCHEDULE, lambda g, t: (g.flatten(-2) @ weight.mT).tanh())
        times = [m / 10 for m in range(11)]

        def run(checkpoint_every: int | None) -> tuple[Tensor, ...]:
            start = group.identity(3, dtype=torch.float64).requires_grad_()
            generator = seeded(0)
            with torch.random.fork_rng():
                torch.manual_seed(0)
                solution = solve(
                    sde,
                    start,
                    times,
                    stepper=GeometricHeun(),
                    generator=generator if own else None,
                    save_at=[4, -1],
                    checkpoint_every=checkpoint_every,
                )
                after = generator.get_state()
                assert solution.saved is not None
                gradients = torch.autograd.grad((solution.saved**2).sum() + solution.final.sum(), [start, weight])
            assert torch.equal(generator.get_state(), after), "the backward pass moved the generator"
            return solution.final.detach(), *gradients

        for plain, checkpointed in zip(run(None), run(every), strict=True):
            assert_relative(checkpointed, plain, 1e-12)

    def test_memory(self) -> None:
        """The graph that is kept for the backward pass holds one node a segment."""
        group = SO(3)
        weight = randn(3, 9, seed=1).requires_grad_()
        sde = TrivializedSDE(group, SCHEDULE, lambda g, t: (g.flatten(-2) @ weight.mT).tanh())

        def nodes(steps: int, every: int | None) -> int:
            times = [m / steps for m in range(steps + 1)]
            g = group.identity(5, dtype=torch.float64)
            final = solve(sde, g, times, generator=seeded(0), checkpoint_every=every).final  # owns the graph
            pending = [final.grad_fn]
            seen = set(pending)
            while pending:
                for parent, _ in pending.pop().next_functions:
                    if parent is not None and parent not in seen:
                        seen.add(parent)
                        pending.append(parent)
            return len(seen)

        assert nodes(40, 10) == 5  # four segments and the weight
        assert nodes(80, 20) == 5
        assert nodes(40, None) > 400

    def test_gradients_through_an_energy_score(self) -> None:
        """A parameter of the energy gets the derivative of the samples: finite differences."""
        group = affine_line()

        def mean(theta: Tensor) -> Tensor:
            score = EnergyScore(lambda g: ((g - theta) ** 2).sum(-1), NoiseKernel(group, SCHEDULE, 5), 4)
            start = torch.zeros(6, 2, dtype=torch.float64)
            process, grid = reverse_process(group, SCHEDULE, score), uniform_grid(5, 1.0, 0.0)
            return solve(process, start, grid, generator=seeded(0), checkpoint_every=2).final.mean()

        theta = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(mean(theta), theta)
        numeric = (mean(theta.detach() + 1e-5) - mean(theta.detach() - 1e-5)) / 2e-5
        assert_relative(gradient, numeric, 1e-6)

    def test_bad_input(self) -> None:
        sde, g = TrivializedSDE(SL(2), SCHEDULE), SL(2).identity(1)
        with pytest.raises(ConfigurationError, match="checkpoint_every"):
            solve(sde, g, [0.0, 1.0], checkpoint_every=0)
        with pytest.raises(ConfigurationError, match="observe"):
            solve(sde, g, [0.0, 1.0], checkpoint_every=1, observe=lambda i, t, y: None)


class TestNoiseModes:
    def test_replay_walks_the_same_paths(self) -> None:
        kernel = NoiseKernel(Affine(2, scale=0.3), SCHEDULE, 50)
        times = [1.0, 0.7, 0.33, 0.02]
        replay = kernel.virtual_paths(20, times=times, generator=seeded(0), dtype=torch.float64)
        forward = {t: replay.at(t) for t in sorted(times)}
        for t in times:
            w, log_modular = replay.at(t)
            assert_relative(w, forward[t][0], 1e-10, event=2)
            assert_relative(log_modular, forward[t][1], 1e-12)
            assert_relative(log_modular, kernel.group.log_modular(w), 1e-10)
        with pytest.raises(DomainError, match="one of the times"):
            replay.at(0.123)

    def test_replay_in_float32(self) -> None:
        kernel = NoiseKernel(Affine(2, scale=0.1), SCHEDULE, 100)
        replay = kernel.virtual_paths(100, times=[1.0, 0.01], generator=seeded(0))
        near = replay.at(0.01)[0]
        replay.at(1.0)
        assert float((replay.at(0.01)[0] - near).abs().max()) < 2e-5

    @pytest.mark.slow(reason="walks all objects of the process at every step")
    def test_memory_does_not_grow_with_the_steps(self) -> None:
        """The largest tensor and the number of live elements of a replayed run."""

        def tensors() -> dict[int, int]:
            """Bytes of every live storage of noise, by address; states of the chains are smaller."""
            sizes = {}
            for x in gc.get_objects():
                if type(x) is torch.Tensor and x.numel() >= 64 * 64:
                    with contextlib.suppress(RuntimeError):  # wrappers of `torch.func` have no storage of their own
                        sizes[x.data_ptr()] = x.untyped_storage().nbytes()
            return sizes

        def live(steps: int, replay: bool) -> int:
            group = Translation(2)
            most = 0
            gc.collect()
            before = tensors()  # of other tests of the process

            def observe(index: int, t: float, g: Tensor) -> None:
                nonlocal most
                if index % 4:
                    return
                most = max(most, sum(size for address, size in tensors().items() if address not in before))

            score = EnergyScore(lambda g: (g**2).sum(-1), NoiseKernel(group, SCHEDULE, steps), 64, replay=replay)
            process, grid = reverse_process(group, SCHEDULE, score), uniform_grid(steps, 1.0, 0.0)
            solve(process, torch.zeros(64, 2), grid, generator=seeded(0), observe=observe)
            return most

        few, many = live(3, True), live(16, True)
        assert many <= few * 1.05
        assert live(16, False) > 2 * many

    @pytest.mark.parametrize(
        "mode",
        [{"replay": True}, {"pool": 20000}, {"antithetic": True}, {"pool": 20001, "antithetic": True, "replay": True}],
        ids=str,
    )
    def test_modes_estimate_the_same_score(self, mode: dict) -> None:
        kernel = NoiseKernel(Translation(2), SCHEDULE, 10)
        energy = lambda g: ((g - 0.4) ** 2).sum(-1) / 0.72  # noqa: E731
        score = EnergyScore(energy, kernel, 201, **mode)
        g = torch.full((400, 2), 0.1, dtype=torch.float64)
        prepared = score.prepare(SolveContext((1.0, 0.5), (400,), g.dtype, g.device, seeded(0)))
        for t in (1.0, 0.5):
            exact = -(g[0] - 0.4) / (0.36 + SCHEDULE.variance(0.0, t))
            assert_relative(prepared(g, t).mean(0), exact, 0.03, event=1)

    def test_antithetic_pairs(self) -> None:
        kernel = NoiseKernel(Translation(2), SCHEDULE, 10)
        w, _ = kernel.sample(3, 5, t=0.5, generator=seeded(0), antithetic=True)
        assert torch.equal(w[:, 3:], -w[:, :2])

        def dealt(pool: int | None) -> Tensor:
            score = EnergyScore(lambda g: g.sum(-1), kernel, 4, antithetic=True, pool=pool)
            run = SolveContext((0.5,), (7,), torch.float64, torch.device("cpu"), seeded(0))
            return score.prepare(run)._assign((7, 4), w)

        order = dealt(6)
        assert torch.equal(order[:, 2:], order[:, :2] + 3)
        rows = dealt(None)
        assert sorted(rows.flatten().tolist()) == list(range(28))
        assert torch.equal(rows % 4, torch.arange(4).expand(7, 4))
        with pytest.raises(ConfigurationError, match="antithetic"):
            kernel.sample(t=0.5, antithetic=True)

    def test_antithetic_pairs_lower_the_variance(self) -> None:
        kernel = NoiseKernel(affine_line(), SCHEDULE, 10)
        g = torch.tensor([0.2, 0.1], dtype=torch.float64).expand(2000, 2)
        energy = lambda x: 0.5 * (x**2).sum(-1)  # noqa: E731
        spread = [
            float(EnergyScore(energy, kernel, 8, generator=seeded(0), antithetic=anti)(g, 0.4).var(0).sum())
            for anti in (False, True)
        ]
        assert spread[1] < 0.6 * spread[0]

    @pytest.mark.parametrize(("pool", "shared"), [(3, False), (0, False), (8, True)])
    def test_bad_pool(self, pool: int, shared: bool) -> None:
        with pytest.raises(ConfigurationError, match="pool"):
            EnergyScore(lambda g: g.sum(-1), NoiseKernel(SL(2), SCHEDULE, 3), 4, pool=pool, shared_noise=shared)
