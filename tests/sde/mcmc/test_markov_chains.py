"""Markov chains on groups: the leapfrog scheme, exact moments at any step size, components, wells, lattices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import integrate
from torch import Tensor

from benchmarks.mcmc import GaugeTorus
from tests.helpers import assert_relative, randn, seeded
from tests.sde.targets import TARGETS, KnownTarget, Normal
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import SE, SO, SU, Heisenberg, LieGroup, O, Torus, Translation
from trivgeo.sde import TrivializedSDE, solve
from trivgeo.sde.mcmc import (
    MALA,
    ChainState,
    HamiltonianMonteCarlo,
    MarkovKernel,
    ParallelTempering,
    sample,
    warm_up,
)
from trivgeo.sde.mcmc.metropolis import DensityAt, leapfrog
from trivgeo.sde.processes import KineticLangevinSDE, overdamped_langevin
from trivgeo.sde.scores import trivialized_grad_and_value
from trivgeo.sde.solvers import ExponentialEuler, SplittingOBABO

HEISENBERG = KnownTarget(
    Heisenberg(1),
    lambda g: g,
    lambda c: c,
    lambda c: torch.zeros_like(c[..., 0]),
    [Normal(0.3, 0.4), Normal(-0.2, 0.3), Normal(0.1, 0.5)],
)
NUM_STEPS = 10  # steps of chains that begin in the target, and must stay in it
ALL_TARGETS = TARGETS | {"Heisenberg": HEISENBERG}


def line(energy: Callable[[Tensor], Tensor]) -> tuple[LieGroup, Callable[[Tensor], Tensor]]:
    """An energy of a number."""
    return Translation(1), lambda g: energy(g[..., 0])


def evaluate(target: KnownTarget) -> Callable[[Tensor], DensityAt]:
    def at(g: Tensor) -> DensityAt:
        slopes, values = trivialized_grad_and_value(target.group, lambda x: -target.energy(x), g)
        return DensityAt(g, values, slopes)

    return at


def fixed(kernel: MarkovKernel, start: Tensor, step_size: float) -> ChainState:
    """A state with the mass matrix of the start and a step size of our choice."""
    state = kernel.init(start)
    return kernel.tuned(state, torch.tensor(step_size, dtype=start.dtype))


def worst(target: KnownTarget, kernel: MarkovKernel, *, step_size: float | None = None, chains: int = 4000) -> float:
    """The largest distance of a statistic from its value, in standard errors, of chains that begin in the target.

    The step size is that of a warm-up of other chains, since a warm-up makes chains depend on each other.
    """
    start = target.sample(chains, 3)
    if step_size is None:
        state = kernel.init(start, like=warm_up(kernel, kernel.init(target.sample(64, 4)), 60, seeded(2)))
    else:
        state = fixed(kernel, start, step_size)
    generator = seeded(1)
    for _ in range(NUM_STEPS):
        state = kernel.step(state, generator)
    assert state.acceptance.mean() > 0.05
    return float(target.z_scores(state.elements).abs().max())


class TestLeapfrog:
    @pytest.mark.parametrize("name", ALL_TARGETS)
    def test_reversible_and_volume(self, name: str) -> None:
        """The way back is the way there; the modular function is that of the way."""
        target = ALL_TARGETS[name]
        group, at = target.group, evaluate(target)
        start = at(target.sample(20, 5))
        factor = torch.eye(group.dim).double() + 0.1 * randn(group.dim, group.dim, seed=2)
        z = randn(20, group.dim, seed=3)
        h = torch.tensor(0.05).double()
        end, momenta, log_modular = leapfrog(group, at, start, z, h, factor, 7)
        assert not torch.allclose(end.elements, start.elements, atol=0.1)
        back, reversed_momenta, other = leapfrog(group, at, end, -momenta, h, factor, 7)
        assert_relative(back.elements, start.elements, 1e-8)
        assert_relative(-reversed_momenta, z, 1e-8)
        assert_relative(other, -log_modular, 1e-8)
        way = group.compose(group.inverse(start.elements), end.elements)
        assert_relative(log_modular, group.log_modular(way), 1e-8)

    @pytest.mark.parametrize("name", ["Aff(1)", "heat", "SE(2)"])
    def test_keeps_the_energy_to_second_order(self, name: str) -> None:
        target = ALL_TARGETS[name]
        group, at = target.group, evaluate(target)
        start, z = at(target.sample(50, 5)), randn(50, group.dim, seed=3)
        errors = []
        for number in (64, 128):
            h, unit = torch.tensor(0.32 / number).double(), 0.3 * torch.eye(group.dim).double()
            end, momenta, log_modular = leapfrog(group, at, start, z, h, unit, number)
            energy = end.log_densities + log_modular - 0.5 * momenta.square().sum(-1)
            errors.append((energy - start.log_densities + 0.5 * z.square().sum(-1)).abs().mean())
        assert errors[0] < 0.05
        assert abs(float(errors[0] / errors[1]) - 4.0) < 0.2

    def test_one_step_is_that_of_the_langevin_stepper(self) -> None:
        """Aff(1): the proposal of MALA is the step of time h^2 / 2 of `ExponentialEuler`, modular drift and all."""
        target, h = TARGETS["Aff(1)"], 0.3
        start = target.sample(6, 5)
        z = torch.randn(6, 2, generator=seeded(4), dtype=torch.float64)
        unit = torch.eye(2).double()
        end, _, _ = leapfrog(target.group, evaluate(target), evaluate(target)(start), z, torch.tensor(h), unit, 1)
        process = overdamped_langevin(target.group, target.energy)
        assert isinstance(process, TrivializedSDE)
        other = solve(process, start, [0.0, 0.5 * h * h], stepper=ExponentialEuler(), generator=seeded(4))
        assert_relative(end.elements, other.final, 1e-7)

    def test_path_is_that_of_the_kinetic_stepper(self) -> None:
        """Without friction, with the constant force in place of the coadjoint term."""
        target, h = TARGETS["Aff(1)"], 0.05
        process = KineticLangevinSDE(target.group, target.energy, friction=1e-14, coadjoint=False)
        state = process.start(target.sample(6, 5), generator=seeded(4))
        unit = torch.eye(2).double()
        begin = evaluate(target)(state.elements)
        end, momenta, _ = leapfrog(target.group, evaluate(target), begin, state.momentum, torch.tensor(h), unit, 8)
        other = solve(process, state, [h * k for k in range(9)], stepper=SplittingOBABO(), generator=seeded(4)).final
        assert_relative(end.elements, other.elements, 1e-5)
        assert_relative(momenta, other.momentum, 1e-5)


class TestExact:
    @pytest.mark.parametrize("name", ALL_TARGETS)
    @pytest.mark.parametrize("kind", [HamiltonianMonteCarlo, MALA])
    def test_moments(self, name: str, kind: Any) -> None:
        target = ALL_TARGETS[name]
        assert worst(target, kind(target.group, target.energy)) < 3.0

    @pytest.mark.parametrize("step_size", [0.4, 1.2, 2.0])
    @pytest.mark.parametrize("name", ["Aff(1)", "SE(2)"])
    def test_no_bias_of_the_step(self, name: str, step_size: float) -> None:
        target = ALL_TARGETS[name]
        kernel = HamiltonianMonteCarlo(target.group, target.energy, path_length=2 * step_size)
        assert worst(target, kernel, step_size=step_size) < 3.0

    @pytest.mark.slow(reason="the same with more samples and all groups")
    @pytest.mark.parametrize("step_size", [0.2, 0.8, 1.6])
    @pytest.mark.parametrize("name", ALL_TARGETS)
    @pytest.mark.parametrize("kind", [HamiltonianMonteCarlo, MALA])
    def test_no_bias_of_the_step_on_any_group(self, name: str, kind: Any, step_size: float) -> None:
        target = ALL_TARGETS[name]
        kernel = kind(target.group, target.energy)
        assert worst(target, kernel, step_size=step_size, chains=20_000) < 3.5

    def test_measures(self) -> None:
        """Aff(1), whose left and right Haar measures are e^-a and 1 in the coordinates (a, b)."""
        target = TARGETS["Aff(1)"]
        group = target.group

        def flat(g: Tensor) -> Tensor:  # minus the log-density for Lebesgue measure, that is for right Haar measure
            return -sum(law.log_density(x) for law, x in zip(target.laws, g.unbind(-1), strict=True))

        right = HamiltonianMonteCarlo(group, flat, measure="right")
        assert worst(target, right) < 3.0
        wrong = HamiltonianMonteCarlo(group, flat, measure="left")
        assert worst(target, wrong) > 8.0

    def test_temperature(self) -> None:
        group, energy = line(lambda x: 0.5 * x.square())
        kernel = HamiltonianMonteCarlo(group, energy, temperature=4.0)
        found = sample(kernel, 200, chains=32, warmup=100, generator=seeded(0)).mean(lambda g: g[..., 0].square())
        assert abs(float(found.mean) - 4.0) < 3 * float(found.standard_error)

    def test_float32_and_batches_of_chains(self) -> None:
        group = SO(3)
        kernel = HamiltonianMonteCarlo(group, lambda g: -3.0 * g[..., 2, 2])
        state = kernel.init(group.random_haar(4, 50, generator=seeded(0), dtype=torch.float32))
        state = warm_up(kernel, state, 50, seeded(1))
        total = torch.zeros(4, 50)
        for _ in range(100):
            state = kernel.step(state, seeded(int(state.num_steps)))
            total += state.elements[..., 2, 2] / 100
        assert state.elements.dtype == state.energies.dtype == torch.float32
        z = (total.mean() - (1 / math.tanh(3) - 1 / 3)) / (total.std() / math.sqrt(200))
        assert abs(float(z)) < 3.0
        products = state.elements.mT @ state.elements
        assert_relative(products, torch.eye(3).expand(4, 50, 3, 3), 1e-6)  # projected on the group


class TestComponents:
    def energy(self, g: Tensor) -> Tensor:
        return -2.0 * g[..., 2, 2] - 0.4 * torch.linalg.det(g)

    def test_weights_of_components(self) -> None:
        """O(3): g_33 has the density e^(2 c), the determinant is independent of it."""
        kernel = HamiltonianMonteCarlo(O(3), self.energy)
        start = O(3).random(32, generator=seeded(0), dtype=torch.float64)  # all in one component
        found = sample(kernel, 150, start=start, warmup=80, generator=seeded(1))
        mean = found.mean(lambda g: torch.stack([g[..., 2, 2], torch.linalg.det(g)], -1))
        expected = torch.tensor([1 / math.tanh(2.0) - 0.5, math.tanh(0.4)])
        assert ((mean.mean - expected) / mean.standard_error).abs().max() < 3.0
        assert found.num_jumps > 300
        assert not any("components" in text for text in found.verdict.assumptions)

    def test_chains_that_stay_say_so(self) -> None:
        kernel = HamiltonianMonteCarlo(O(3), self.energy, component_jumps=False)
        start = O(3).random(8, generator=seeded(0), dtype=torch.float64)
        found = sample(kernel, 20, start=start, warmup=20, generator=seeded(1))
        assert (torch.linalg.det(found.elements) > 0).all()
        assert any("components" in text for text in found.verdict.assumptions)


class TestTempering:
    def test_weights_of_wells(self) -> None:
        """Two wells that no chain leaves: all begin in the lighter one."""

        def energy(x: Tensor) -> Tensor:
            return 12.0 * (x.square() - 1.0).square() - 0.5 * x

        group, moved = line(energy)
        mass = [
            integrate.quad(lambda x: math.exp(-float(energy(torch.tensor(x)))), *ends)[0] for ends in ((-3, 0), (0, 3))
        ]
        share = mass[1] / sum(mass)
        start = -torch.ones(32, 1).double()

        def right(g: Tensor) -> Tensor:
            return (g[..., 0] > 0).double()

        single = HamiltonianMonteCarlo(group, moved)
        alone = sample(single, 100, start=start, warmup=100, generator=seeded(0)).mean(right)
        assert float(alone.mean) < 0.2 < share - 0.4
        tempered = ParallelTempering(single, torch.tensor([1.0, 0.5, 0.2, 0.08]))
        found = sample(tempered, 400, start=start, warmup=200, generator=seeded(0))
        mean = found.mean(right)
        assert abs(float(mean.mean) - share) < 3 * float(mean.standard_error) < 0.15
        assert found.swap_acceptance.shape == (3,)
        assert found.swap_acceptance.min() > 0.2
        assert found.state.step_size.shape == (4, 1)

    def test_known_target(self) -> None:
        """Aff(1): replicas are tempered for left Haar measure."""
        target = TARGETS["Aff(1)"]
        kernel = ParallelTempering(HamiltonianMonteCarlo(target.group, target.energy), torch.tensor([1.0, 0.8, 0.6]))
        found = sample(kernel, 150, start=target.sample(64, 3), warmup=60, generator=seeded(1)).mean(target.statistics)
        assert float(((found.mean - target.expected) / found.standard_error).abs().max()) < 3.0

    def test_no_chains(self) -> None:
        kernel = HamiltonianMonteCarlo(SE(2), lambda g: g[..., 2].square().sum(-1))
        with pytest.raises(ShapeError, match="at least one"):
            sample(kernel, 4, start=SE(2).identity(0))

    def test_bad_ladders(self) -> None:
        kernel = HamiltonianMonteCarlo(SE(2), lambda g: g[..., 2].square().sum(-1))
        for betas in ([1.0], [0.9, 0.5], [1.0, 0.5, 0.5], [1.0, 0.0]):
            with pytest.raises(ConfigurationError, match="falling positive numbers from 1"):
                ParallelTempering(kernel, torch.tensor(betas))


class TestDomains:
    def test_proposals_outside_are_rejected_and_counted(self) -> None:
        """A half-normal law: the energy is infinite for negative numbers."""
        group, energy = line(lambda x: torch.where(x > 0, 0.5 * x.square(), torch.inf))
        start = randn(64, 1, seed=0).abs()
        found = sample(MALA(group, energy), 200, start=start, warmup=100, generator=seeded(0))
        assert found.num_invalid > 100
        assert (found.elements > 0).all()
        mean = found.mean(lambda g: torch.cat([g, g.square()], -1))
        expected = torch.tensor([math.sqrt(2 / math.pi), 1.0])
        assert ((mean.mean - expected) / mean.standard_error).abs().max() < 3.0

    def test_periodic_coordinates(self) -> None:
        """Statistics of angles are cosines and sines: chains may go round."""
        kernel = HamiltonianMonteCarlo(Torus(2), lambda g: -g.cos().sum(-1))
        found = sample(kernel, 20, chains=8, warmup=20, generator=seeded(0))
        g = found.elements
        expected = torch.cat([g.cos(), g.sin(), -g.cos().sum(-1, keepdim=True)], -1)
        assert_relative(found.statistics, expected, 1e-12)


class TestLoops:
    def test_sweep_with_explicit_states(self) -> None:
        """Two numbers of correlation r, each moved with the other one fixed; the covariance is that of the pair."""
        r = 0.7
        group = Translation(1)
        other = torch.zeros(256, 1).double()
        kernel = HamiltonianMonteCarlo(
            group, lambda g: 0.5 * ((g - r * other).square() / (1 - r * r)).sum(-1)
        )  # `other` is assigned below
        blocks = [torch.zeros(256, 1).double(), other]
        states: list[ChainState | None] = [None, None]
        products, generator = [], seeded(0)
        for sweep in range(150):
            for k in (0, 1):
                other = blocks[1 - k]
                states[k] = kernel.step(kernel.init(blocks[k], states[k]), generator)
                blocks[k] = states[k].elements
            if sweep >= 20:
                products.append(torch.cat([blocks[0] * blocks[1], blocks[0].square()], -1))
        means = torch.stack(products).mean(0)
        z = (means.mean(0) - torch.tensor([r, 1.0])) / (means.std(0) / 16)
        assert z.abs().max() < 3.0

    def test_going_on(self) -> None:
        group = SO(3)
        kernel = HamiltonianMonteCarlo(group, lambda g: -3.0 * g[..., 2, 2])
        first = sample(kernel, 10, chains=4, warmup=50, generator=seeded(0))
        more = sample(kernel, 10, start=first.state, warmup=0, generator=seeded(0))
        assert float(more.state.step_size) == float(first.state.step_size)
        assert more.state.num_steps == 70


class TestVerdict:
    def test_chains_in_two_wells(self) -> None:
        group, energy = line(lambda x: 20.0 * (x.square() - 1.0).square())
        start = torch.tensor([-1.0, 1.0]).double().repeat(8).unsqueeze(-1)
        found = sample(HamiltonianMonteCarlo(group, energy), 200, start=start, warmup=100, generator=seeded(0))
        assert not found.trusted
        assert "R-hat" in found.verdict.reasons[0]

    def test_healthy_and_short(self) -> None:
        kernel = HamiltonianMonteCarlo(Torus(2), lambda g: -g.cos().sum(-1))
        found = sample(kernel, 300, chains=8, warmup=100, generator=seeded(0))
        assert found.trusted, found.verdict
        assert 0.7 < found.acceptance < 1.0
        short = sample(kernel, 8, start=found.state, warmup=0, generator=seeded(0))
        assert any("effective sample size" in reason for reason in short.verdict.reasons)

    def test_chains_that_do_not_move(self) -> None:
        kernel = MALA(SU(2), lambda g: -200.0 * g[..., 0, 0, 0])
        start = fixed(kernel, SU(2).random(8, std=0.1, generator=seeded(0), dtype=torch.float64), 50.0)
        found = sample(kernel, 50, start=start, warmup=0, generator=seeded(0))
        assert any("accepted" in reason for reason in found.verdict.reasons)

    def test_improper(self) -> None:
        """A flat energy on the line has no finite integral: chains wander apart."""
        group, energy = line(lambda x: 0.0 * x)
        found = sample(HamiltonianMonteCarlo(group, energy), 200, chains=8, warmup=100, generator=seeded(0))
        assert not found.trusted


class TestBadInput:
    def test_arguments(self) -> None:
        with pytest.raises(ConfigurationError, match="measure"):
            HamiltonianMonteCarlo(SE(2), lambda g: g[..., 0, 0], measure="haar")
        with pytest.raises(ConfigurationError, match="temperature"):
            MALA(SE(2), lambda g: g[..., 0, 0], temperature=0.0)
        kernel = MALA(SE(2), lambda g: g[..., 0, 0] / 0.0)
        with pytest.raises(NonFiniteError, match="others at 3 of 3"):
            kernel.init(SE(2).identity(3))
        good = MALA(SE(2), lambda g: g[..., 2].square().sum(-1))
        with pytest.raises(ShapeError, match="chains"):
            sample(good, 10, start=SE(2).identity())
        with pytest.raises(ConfigurationError, match="num_samples"):
            sample(good, 3)
        found = sample(good, 4, chains=2, warmup=5, generator=seeded(0))
        with pytest.raises(ShapeError, match="f: expected"):
            found.mean(lambda g: g[0])


class TestLattice:
    @pytest.mark.parametrize(("n", "beta"), [(2, 2.0), (3, 3.0)])
    def test_exact_plaquettes(self, n: int, beta: float) -> None:
        """The sum over representations against a Haar average over one plaquette: here its first term is enough."""
        lattice = GaugeTorus(n, beta)
        g = SU(n).random_haar(200_000, generator=seeded(0), dtype=torch.float64)
        trace = g[..., 0].diagonal(dim1=-2, dim2=-1).sum(-1) / n
        weight = (beta * trace).softmax(0)
        assert abs(float((weight * trace).sum()) - lattice.exact) < 0.005

    def test_energy_is_gauge_invariant(self) -> None:
        lattice = GaugeTorus(2, 2.0, size=2)
        group = SU(2)
        links = group.random_haar(2, 2, 2, generator=seeded(0), dtype=torch.float64)  # direction, x, y
        turns = group.random_haar(2, 2, generator=seeded(1), dtype=torch.float64)
        moved = torch.stack(
            [group.compose(group.compose(turns, links[k]), group.inverse(turns.roll(-1, k))) for k in (0, 1)]
        )
        assert_relative(lattice.energy(moved.flatten()), lattice.energy(links.flatten()), 1e-12)

    def test_small_torus(self) -> None:
        """Eight links: terms of higher representations count, so that the open plane is off by .03."""
        lattice = GaugeTorus(2, 2.0, size=2)
        found = sample(
            HamiltonianMonteCarlo(lattice.group, lattice.energy),
            60,
            chains=16,
            warmup=60,
            statistics=lattice.mean_plaquette,
            generator=seeded(0),
        )
        mean = found.mean(lattice.mean_plaquette)
        assert abs(float(mean.mean) - lattice.exact) < 2 * float(mean.standard_error) < 0.04

    @pytest.mark.slow(reason="minutes of statistics; the small torus stays")
    @pytest.mark.parametrize(("n", "beta"), [(2, 1.0), (2, 2.0), (2, 4.0), (3, 2.0), (3, 4.0), (3, 6.0)])
    def test_plaquettes(self, n: int, beta: float) -> None:
        lattice = GaugeTorus(n, beta)
        found = sample(
            HamiltonianMonteCarlo(lattice.group, lattice.energy),
            400,
            chains=16,
            warmup=150,
            statistics=lattice.mean_plaquette,
            generator=seeded(0),
        )
        mean = found.mean(lattice.mean_plaquette)
        assert abs(float(mean.mean) - lattice.exact) < 2 * float(mean.standard_error)
        assert found.r_hat.max() < 1.01


class TestEnergiesWithoutDerivatives:
    START = SO(3).random_haar(4, generator=seeded(0))

    @pytest.mark.parametrize(
        "energy",
        [
            lambda g: -3.0 * g.detach()[..., 2, 2],
            torch.no_grad()(lambda g: -3.0 * g[..., 2, 2]),
            lambda g: torch.tensor([float(x) for x in g.detach()[..., 2, 2].flatten()]).reshape(g.shape[:-2]),
            lambda g: torch.as_tensor(-3.0 * g.numpy()[..., 2, 2]),
        ],
        ids=["detached", "no_grad", "numbers", "numpy"],
    )
    @pytest.mark.parametrize("kernel", [HamiltonianMonteCarlo, MALA], ids=["hmc", "mala"])
    def test_refused_at_the_first_call(self, kernel: type[HamiltonianMonteCarlo], energy: Any) -> None:
        with pytest.raises(ConfigurationError, match="energy: expected a function with derivatives by torch"):
            kernel(SO(3), energy).init(self.START)
        tempered = ParallelTempering(kernel(SO(3), energy), torch.tensor([1.0, 0.5]))
        with pytest.raises(ConfigurationError, match="energy: expected a function with derivatives by torch"):
            tempered.init(self.START)

    def test_constant_and_flat_energies_are_taken(self) -> None:
        """The first is uniform; the gradient of the second is zero at its minimum; the third has steps."""
        unit = SO(3).identity(4)
        for energy, start in (
            (lambda g: g.new_zeros(g.shape[:-2]), self.START),
            (lambda g: -g[..., 2, 2], unit),
            (lambda g: (3.0 * g[..., 2, 2]).round(), self.START),
        ):
            state = HamiltonianMonteCarlo(SO(3), energy).init(start)
            assert not bool(state.gradients.any())

    def test_an_error_of_the_energy_is_its_own(self) -> None:
        with pytest.raises(RuntimeError, match="mine"):
            HamiltonianMonteCarlo(SO(3), raising).init(self.START)

    def test_starts_off_the_group(self) -> None:
        kernel = HamiltonianMonteCarlo(SO(3), lambda g: -g[..., 2, 2])
        with pytest.raises(DomainError, match=r"elements: expected elements of SO\(3\), got 4 that are not"):
            kernel.init(2.0 * self.START)
        with pytest.raises(ConfigurationError, match="float32 or float64"):
            kernel.init(self.START.half())
        turned = HamiltonianMonteCarlo(Torus(1), lambda g: -g[..., 0].cos())
        turned.init(torch.tensor([[7.0], [-20.0]]))  # angles of other turns


def raising(g: Tensor) -> Tensor:
    raise RuntimeError("mine")
