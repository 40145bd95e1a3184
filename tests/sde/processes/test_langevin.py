"""Langevin dynamics: stationary laws for left Haar measure, the Hamiltonian part, orders."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy.special import ive
from torch import Tensor

from tests.helpers import affine_line, assert_relative, randn, seeded
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SE, SO, Heisenberg, LieGroup, Translation
from trivgeo.sde import solve
from trivgeo.sde.processes import KineticLangevinSDE, KineticLangevinState, Process, overdamped_langevin
from trivgeo.sde.solvers import ExponentialEuler, GeometricHeun, Solution, Stepper, StepState


class Target:
    """A density for left Haar measure with moments in closed form."""

    def __init__(
        self, group: LieGroup, energy: Callable, values: Callable, mean: list[float], std: list[float]
    ) -> None:
        self.group, self.energy, self.values = group, energy, values
        self.mean, self.std = torch.tensor(mean).double(), torch.tensor(std).double()


def bessel(kappa: float) -> tuple[float, float]:
    """Mean and standard deviation of cos under a von Mises law."""
    mean = ive(1, kappa) / ive(0, kappa)
    return mean, math.sqrt(1 - mean / kappa - mean**2)


class JumpTo(Stepper):
    """A scheme that goes to one place."""

    def __init__(self, place: Tensor) -> None:
        self.place = place

    def step(
        self, sde: Process, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        return StepState(self.place)


COS = bessel(2.0)
TARGETS = {
    "Translation": Target(
        Translation(2), lambda g: ((g - 0.4) ** 2).sum(-1) / 0.5, lambda g: g, [0.4, 0.4], [0.5, 0.5]
    ),
    # density exp(2 tr R) on SO(3): mean of tr R from the angle's law (1 - cos x) exp(4 cos x) dx
    "SO(3)": Target(
        SO(3),
        lambda g: -2.0 * g.diagonal(dim1=-2, dim2=-1).sum(-1),
        lambda g: g.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True),
        [1 + 2 * (ive(1, 4.0) - 0.5 * (ive(0, 4.0) + ive(2, 4.0))) / (ive(0, 4.0) - ive(1, 4.0))],
        [0.5],
    ),
    # log-scale N(0.3, 0.4^2) and shift N(0.5, 0.5^2) with respect to da db; left Haar measure is e^-a da db
    "Aff(1)": Target(
        affine_line(),
        lambda g: (g[..., 0] - 0.3) ** 2 / 0.32 + (g[..., 1] - 0.5) ** 2 / 0.5 - g[..., 0],
        lambda g: g,
        [0.3, 0.5],
        [0.4, 0.5],
    ),
    "SE(2)": Target(
        SE(2),
        lambda g: -2.0 * g[..., 0, 0] + ((g[..., 2] - 0.3) ** 2).sum(-1) / 0.5,
        lambda g: torch.stack([g[..., 0, 0], g[..., 0, 2], g[..., 1, 2]], -1),
        [COS[0], 0.3, 0.3],
        [COS[1], 0.5, 0.5],
    ),
}


def run(target: Target, kind: str, *, number: int, steps: int, h: float) -> Tensor:
    """Values at the end of independent chains from the identity."""
    times = [h * m for m in range(steps + 1)]
    start = target.group.identity(number, dtype=torch.float64)
    if kind == "overdamped":
        process = overdamped_langevin(target.group, target.energy)
        return target.values(solve(process, start, times, stepper=GeometricHeun(), generator=seeded(1)).final)
    kinetic = KineticLangevinSDE(target.group, target.energy, friction=2.0, coadjoint=kind == "coadjoint")
    generator = seeded(1)
    final = solve(kinetic, kinetic.start(start, generator=generator), times, generator=generator).final
    return target.values(final.elements)


class TestStationaryLaw:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            *((name, "overdamped") for name in TARGETS),
            *(("Aff(1)", kind) for kind in ("coadjoint", "constant force")),
            *(
                pytest.param(name, kind, marks=pytest.mark.slow(reason="those of Aff(1) stay"))
                for name in TARGETS
                if name != "Aff(1)"
                for kind in ("coadjoint", "constant force")
            ),
        ],
    )
    def test_fast(self, name: str, kind: str) -> None:
        h, steps = (0.01, 240) if kind == "overdamped" else (0.12, 60)
        self.check(name, kind, number=2000, steps=steps, h=h, slack=0.01)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["overdamped", "coadjoint", "constant force"])
    @pytest.mark.parametrize("name", TARGETS)
    def test_slow(self, name: str, kind: str) -> None:
        h, steps = (0.005, 600) if kind == "overdamped" else (0.04, 300)
        self.check(name, kind, number=40_000, steps=steps, h=h, slack=0.0015)

    @staticmethod
    def check(name: str, kind: str, *, number: int, steps: int, h: float, slack: float) -> None:
        target = TARGETS[name]
        values = run(target, kind, number=number, steps=steps, h=h)
        error = values.std(0) / math.sqrt(number)
        assert bool(((values.mean(0) - target.mean).abs() < slack + 3 * error).all()), (values.mean(0), target.mean)
        if name != "SO(3)":
            assert bool(((values.std(0) / target.std - 1).abs() < 2 * slack + 4 / math.sqrt(2 * number)).all())

    def test_without_either_term_the_law_is_wrong(self) -> None:
        """On Aff(1): neither the coadjoint term nor the constant force, and no term a overdamped."""
        target = TARGETS["Aff(1)"]
        group, number = target.group, 2000
        start = group.identity(number, dtype=torch.float64)
        kinetic = KineticLangevinSDE(group, target.energy, friction=2.0, coadjoint=False)
        object.__setattr__(kinetic, "_constant_force", None)
        times = [0.12 * m for m in range(61)]
        final = solve(kinetic, kinetic.start(start, generator=seeded(0)), times, generator=seeded(1)).final
        assert float(final.elements[:, 0].mean()) > 0.3 + 0.08
        plain = overdamped_langevin(group, target.energy)
        biased = overdamped_langevin(group, lambda g: target.energy(g) - g[..., 0])  # gradient of -a cancels the term
        times = [0.03 * m for m in range(81)]
        difference = [
            float(solve(p, start, times, stepper=GeometricHeun(), generator=seeded(1)).final[:, 0].mean())
            for p in (plain, biased)
        ]
        assert difference[1] - difference[0] > 0.08

    @pytest.mark.parametrize("temperature", [1.0, 0.25])
    @pytest.mark.parametrize("stepper", [ExponentialEuler(), GeometricHeun()], ids=repr)
    def test_steps_that_are_too_long_are_counted(self, stepper: Stepper, temperature: float) -> None:
        """On Aff(1) explicit steps of 0.1 overshoot: the variance was thousands of times the truth, without a word."""
        target = TARGETS["Aff(1)"]
        energy = lambda g: temperature * target.energy(g)  # noqa: E731  of the same stationary law
        process = overdamped_langevin(target.group, energy, temperature=temperature)
        start = target.group.identity(200, dtype=torch.float64)

        def run(step: float) -> Solution:
            times = [step * m / temperature for m in range(81)]
            return solve(process, start, times, stepper=stepper, generator=seeded(0))

        long, short = run(0.1), run(0.001)
        assert int(short.num_masked_steps.sum()) == 0
        assert int((long.num_masked_steps > 0).sum()) > 20
        final = target.values(long.final)
        assert bool((final.var(0) < 30 * target.std**2).all())
        assert bool(torch.isnan(long.final_or_nan[long.num_masked_steps > 0]).all())
        assert bool((target.values(long.final[long.num_masked_steps == 0]).var(0) < 8 * target.std**2).all())

    def test_rises_that_are_refused(self) -> None:
        """Above (32 + 4 dim) T in one step; a chain that starts outside of the domain may come in."""
        process = overdamped_langevin(Translation(2), lambda g: (g**2).sum(-1), temperature=0.5)
        taken = []
        for height in (19.9, 20.1):  # 40 T is the bound
            far = torch.tensor([[height**0.5, 0.0]]).double()
            stepper = JumpTo(far)
            solution = solve(process, torch.zeros(1, 2).double(), [0.0, 1.0], stepper=stepper, generator=seeded(0))
            taken.append(int(solution.num_masked_steps) == 0)
            assert torch.equal(solution.final, far if taken[-1] else torch.zeros(1, 2).double())
        assert taken == [True, False]
        outside = overdamped_langevin(Translation(1), lambda g: torch.where(g[..., 0] > 1, torch.inf, 0.0 * g[..., 0]))
        solution = solve(outside, torch.tensor([[2.0]]), [0.0, 1.0], stepper=JumpTo(torch.tensor([[0.5]])))
        assert int(solution.num_masked_steps) == 0
        solution = solve(outside, torch.tensor([[0.5]]), [0.0, 1.0], stepper=JumpTo(torch.tensor([[2.0]])))
        assert int(solution.num_masked_steps) == 1

    @pytest.mark.parametrize("coadjoint", [True, False])
    @pytest.mark.parametrize("temperature", [1.0, 0.25])
    def test_kinetic_steps_that_are_too_long_are_counted(self, temperature: float, coadjoint: bool) -> None:
        """On Aff(1) kinetic steps of 0.4 ended at 3 to 9 times the variance, without a word."""
        target, unit = TARGETS["Aff(1)"], math.sqrt(temperature)
        energy = lambda g: temperature * target.energy(g)  # noqa: E731  of the same stationary law
        kinetic = KineticLangevinSDE(target.group, energy, 2.0 * unit, temperature, coadjoint)
        start = kinetic.start(target.group.identity(400, dtype=torch.float64), generator=seeded(0))

        def run(step: float, number: int) -> Solution:
            return solve(kinetic, start, [step * m / unit for m in range(number + 1)], generator=seeded(1))

        short, long = run(0.06, 80), run(0.4, 25)
        assert int(short.num_masked_steps.sum()) == 0
        values = target.values(short.final.elements)
        assert bool(((values.var(0) / target.std**2 - 1).abs() < 0.03 + 4 * math.sqrt(2 / 400)).all())
        masked = long.num_masked_steps > 0
        assert int(masked.sum()) > 40
        assert bool(torch.isnan(long.final_or_nan.elements[masked]).all())
        assert bool((target.values(long.final.elements).var(0) < 6 * target.std**2).all())

    @pytest.mark.parametrize(("share", "error", "taken"), [(0.6, 8.2, True), (0.6, 8.3, False), (0.4, 40.0, True)])
    @pytest.mark.parametrize("temperature", [1.0, 2.0])
    def test_errors_of_the_energy_that_are_refused(
        self, share: float, error: float, taken: bool, temperature: float
    ) -> None:
        """Above (8 + dim / 4) T, and half of the change of the potential: in closed form on a harmonic well.

        From the bottom of a well of curvature k a step h makes an error of 2 s^2 p^2, s = k h^2 / 4 its share.
        """
        h, number = 0.1, 3
        k = 4.0 * share / h**2
        kinetic = KineticLangevinSDE(
            Translation(1), lambda g: 1e3 + 0.5 * k * g[..., 0] ** 2, friction=1e-14, temperature=temperature
        )
        momentum = math.sqrt(temperature * error / (2.0 * share**2))
        start = kinetic.start(torch.zeros(number, 1).double())
        start = start._replace(momentum=torch.full_like(start.momentum, momentum))
        solution = solve(kinetic, start, [0.0, 1e-9, 1e-9 + h], generator=seeded(0))  # the first is not checked
        assert solution.num_masked_steps.tolist() == [int(not taken)] * number
        expected = h * momentum if taken else 1e-9 * momentum
        assert_relative(solution.final.elements[:, 0], torch.full((number,), expected).double(), 1e-5)

    def test_rounding_is_no_error_of_a_step(self) -> None:
        """Energies of 1e9 in single precision are known to a hundred."""
        kinetic = KineticLangevinSDE(Translation(2), lambda g: 31.0 + (g**2).sum(-1) + 1e9)  # to the nearest 64
        start = kinetic.start(torch.zeros(100, 2), generator=seeded(0))
        assert len(kinetic.energy(torch.tensor([[0.0, 0.0], [1.5, 0.0]])).unique()) == 2
        solution = solve(kinetic, start, [0.2 * m for m in range(20)], generator=seeded(1))
        assert int(solution.num_masked_steps.sum()) == 0

    def test_work_of_the_constant_force_is_no_error(self) -> None:
        """Without an energy it is all that changes the momentum."""
        kinetic = KineticLangevinSDE(affine_line(), lambda g: 0.0 * g[..., 0], friction=1e-14, coadjoint=False)
        start = kinetic.start(affine_line().identity(2, dtype=torch.float64), generator=seeded(0))
        start = start._replace(momentum=torch.tensor([[200.0, 0.0], [-200.0, 0.0]]).double())
        solution = solve(kinetic, start, [0.0, 0.1, 0.2], generator=seeded(0))
        assert int(solution.num_masked_steps.sum()) == 0
        change = solution.final.momentum.norm(dim=-1) - 200.0
        assert_relative(change.sort().values, torch.tensor([-0.2, 0.2]).double(), 1e-5)

    def test_temperature(self) -> None:
        group = Translation(1)
        kinetic = KineticLangevinSDE(group, lambda g: (g**2).sum(-1) / 2, friction=2.0, temperature=0.25)
        start = kinetic.start(torch.zeros(4000, 1).double(), generator=seeded(0))
        final = solve(kinetic, start, [0.2 * m for m in range(60)], generator=seeded(1)).final
        assert_relative(final.elements.std(), torch.tensor(0.5).double(), 0.05, floor=0.0)
        assert_relative(final.momentum.std(), torch.tensor(0.5).double(), 0.05, floor=0.0)


class TestMotion:
    @pytest.mark.parametrize("group", [affine_line(), SE(2), SO(3, scale=[1.0, 2.0, 0.5]), Heisenberg(1)], ids=repr)
    def test_turn_keeps_the_length_and_solves_the_equation(self, group: LieGroup) -> None:
        kinetic = KineticLangevinSDE(group, lambda g: g.flatten(1).sum(-1))
        xi = randn(5, group.dim)
        turned = kinetic.turn(xi, 0.1)
        assert_relative(turned.norm(dim=-1), xi.norm(dim=-1), 1e-12)
        h = 1e-5
        basis = torch.eye(group.dim, dtype=torch.float64)
        brackets = group.algebra.bracket(xi.unsqueeze(1), basis)  # [xi, e_j]
        slope = torch.einsum("bk,bjk->bj", xi, brackets)
        assert_relative((kinetic.turn(xi, h) - kinetic.turn(xi, -h)) / (2 * h), slope, 1e-6)

    def test_bi_invariant_metrics_need_no_turn(self) -> None:
        kinetic = KineticLangevinSDE(SO(5), lambda g: g[..., 0, 0])
        assert kinetic._quadratic is None
        assert KineticLangevinSDE(SO(3, scale=[1.0, 2.0, 1.0]), lambda g: g[..., 0, 0])._quadratic is not None

    @pytest.mark.parametrize("name", ["SO(3)", "Aff(1)", "SE(2)"])
    def test_energy_is_kept_to_second_order(self, name: str) -> None:
        """Almost no friction: the drift of the total energy falls by four with half the step."""
        target = TARGETS[name]
        kinetic = KineticLangevinSDE(target.group, target.energy, friction=1e-12)
        start = kinetic.start(target.group.identity(20, dtype=torch.float64), generator=seeded(2))

        def total(state: KineticLangevinState) -> Tensor:
            return target.energy(state.elements) + 0.5 * (state.momentum**2).sum(-1)

        drifts = []
        for steps in (20, 40, 80):
            final = solve(kinetic, start, [m / steps for m in range(steps + 1)], generator=seeded(3)).final
            drifts.append(float((total(final) - total(start)).abs().mean()))
        assert 3.0 < drifts[0] / drifts[1] < 5.0
        assert 3.0 < drifts[1] / drifts[2] < 5.0

    def test_one_gradient_a_step(self) -> None:
        calls = 0

        def energy(g: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return (g**2).sum(-1)

        kinetic = KineticLangevinSDE(Translation(2), energy)
        solve(kinetic, kinetic.start(torch.zeros(3, 2)), [0.0, 0.1, 0.2, 0.3])
        assert calls == 4

    def test_saving_masks_and_shapes(self) -> None:
        """A chain that would run into the forbidden half line is held, and counted; the other goes on."""
        energy = lambda g: (0.5 - g[..., 0]).sqrt()  # noqa: E731
        kinetic = KineticLangevinSDE(Translation(1), energy)
        start = kinetic.start(torch.tensor([[0.49], [-5.0]]), generator=seeded(0))
        start = start._replace(momentum=torch.tensor([[5.0], [0.0]]))
        solution = solve(kinetic, start, [0.0, 0.1, 0.2], generator=seeded(1), save_at=[0, 2])
        assert solution.num_masked_steps.tolist()[0] > 0
        assert solution.num_masked_steps.tolist()[1] == 0
        assert isinstance(solution.final, KineticLangevinState)
        assert solution.saved is not None
        assert solution.saved.elements.shape == (2, 2, 1)
        assert all(bool(torch.isfinite(x).all()) for x in solution.final)


class TestBadInput:
    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
    def test_numbers(self, bad: float) -> None:
        for name in ("friction", "temperature"):
            with pytest.raises(ConfigurationError, match=name):
                KineticLangevinSDE(Translation(1), lambda g: g.sum(-1), **{name: bad})
        with pytest.raises(ConfigurationError, match="temperature"):
            overdamped_langevin(Translation(1), lambda g: g.sum(-1), temperature=bad)

    def test_states(self) -> None:
        kinetic = KineticLangevinSDE(Translation(2), lambda g: g.sum(-1))
        with pytest.raises(ConfigurationError, match="KineticLangevinState"):
            solve(kinetic, torch.zeros(2, 2), [0.0, 1.0])
        with pytest.raises(ShapeError, match="momentum"):
            solve(kinetic, KineticLangevinState(torch.zeros(2, 2), torch.zeros(2, 3), torch.zeros(2, 2)), [0.0, 1.0])
        with pytest.raises(ConfigurationError, match="increasing"):
            solve(kinetic, kinetic.start(torch.zeros(2, 2)), [1.0, 0.0])
