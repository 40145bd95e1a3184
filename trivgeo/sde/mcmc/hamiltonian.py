"""Markov chains whose stationary distribution is exact: Hamiltonian Monte Carlo and its case of one step, MALA."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo._random import integers, normal, uniform
from trivgeo._text import Described
from trivgeo.checks import check_choice, check_positive, checked
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError
from trivgeo.groups import LieGroup
from trivgeo.groups.group import is_near
from trivgeo.sde.mcmc.metropolis import DensityAt, metropolis_move, slope_precision
from trivgeo.sde.scores.gradient import trivialized_grad_and_value

Energy = Callable[[Tensor], Tensor]

_MAX_ENERGY_ERROR = 1000.0  # error of the total energy of a path above which it diverged, as in Stan
_MAX_LEAPFROG_STEPS = 64  # steps of a path
_STEP_JITTER = 0.25  # relative range of random step sizes, without which paths may return to where they began
_FIRST_STEP = 0.5  # step size at the start for one dimension, in units of the width of the target
_MAX_TURN = 1.0  # typical angle, in radians, or logarithm of a stretch, of the adjoint map of a path of unit length
_MAX_STD = 1e4  # standard deviation of momenta in units of the basis, for directions without forces
_MIN_DRAWS_A_DIMENSION = 5.0  # draws for each dimension, without which the mass matrix is shrunk to its diagonal
_MAX_ELEMENT_ERROR = 0.01  # relative distance of the entries of a start from those of the nearest element
_PROBE_LENGTH = 0.5  # length of the step that tells whether an energy without gradient is constant
_MAX_COMPONENTS = 1024  # components of a group between which jumps are proposed


@dataclass(frozen=True, repr=False)
class ChainState(Described):
    """The state of parallel Markov chains: where they are, how long their steps are, and what the last step did.

    Attributes:
        elements: ``[*batch, *element_shape]``.
        energies: E, ``[*batch]``.
        gradients: derivatives of E by v in ``g exp(v)``, ``[*batch, dim]``.
        step_size: length of a leapfrog step in units of the width of the target, a number ``[]``; one for each
            temperature of `ParallelTempering`.
        factor: F such that ``F F^T`` is the inverse of the mass matrix, ``[dim, dim]``.
        num_leapfrog_steps: leapfrog steps of one step of the chain.
        acceptance: probability with which the last proposals were accepted, ``[*batch]``.
        diverged: mask of proposals whose total energy was wrong by more than 1000, ``[*batch]``.
        invalid: mask of proposals outside of the domain of the group or of the energy, ``[*batch]``.
        jumped: mask of chains that the last step brought into another component of the group, ``[*batch]``.
        num_steps: steps since `MarkovKernel.init`.
        swap_acceptance: probability of swaps between neighbouring temperatures, of `ParallelTempering`.
    """

    elements: Tensor
    energies: Float[Tensor, "*batch"]
    gradients: Float[Tensor, "*batch n"]
    step_size: Tensor
    factor: Tensor
    num_leapfrog_steps: int
    acceptance: Float[Tensor, "*batch"]
    diverged: Bool[Tensor, "*batch"]
    invalid: Bool[Tensor, "*batch"]
    jumped: Bool[Tensor, "*batch"]
    num_steps: int = 0
    swap_acceptance: Tensor | None = None

    def rows(self, mask: Bool[Tensor, "*batch"], other: ChainState) -> ChainState:
        """Return the state at the elements of ``other`` where the ``mask`` is true."""
        extra = self.elements.ndim - mask.ndim
        return replace(
            self,
            elements=torch.where(mask.reshape(mask.shape + (1,) * extra), other.elements, self.elements),
            energies=torch.where(mask, other.energies, self.energies),
            gradients=torch.where(mask.unsqueeze(-1), other.gradients, self.gradients),
        )


@checked(but=("step",))
class MarkovKernel(Described, ABC):
    """A rule to step Markov chains with a known stationary distribution, for `sample` and for loops of your own.

    A kernel keeps no state. The leading dimensions of elements are those of the chains, which run in parallel.

    Attributes:
        target_acceptance: mean probability of acceptance to which `warm_up` tunes the step size.
    """

    group: LieGroup
    target_acceptance: float

    @abstractmethod
    def init(self, elements: Tensor, like: ChainState | None = None) -> ChainState:
        """Return the state of chains at ``elements``.

        Call it also after a step of your own, such as a Gibbs step or a sweep of a lattice, has moved the elements, or
        when the energy has changed.

        Args:
            elements: ``[*batch, *element_shape]``.
            like: a state whose step size and mass matrix are kept; default: both from the gradients at ``elements``.

        Raises:
            NonFiniteError: the energy or its gradient is not finite at some of the elements.
            DomainError: elements are far from the group.
            ConfigurationError: the energy changes, but has no derivatives by torch; or elements are in half precision.
        """

    @abstractmethod
    def step(self, state: ChainState, generator: torch.Generator | None = None) -> ChainState:
        """Return the state after one step of all chains of ``state``, with the random numbers of ``generator``."""

    @abstractmethod
    def tuned(self, state: ChainState, step_size: Tensor, square: Tensor | None = None) -> ChainState:
        """Return ``state`` with another step size, and the mass matrix that a mean square of scores gives.

        Args:
            state: the state.
            step_size: of the shape of that of the state; the longest one, if paths have a length of their own.
            square: mean outer product of `MarkovKernel.scores`, of the shape of the factor of the state; default: the
                mass matrix stays.
        """

    @abstractmethod
    def scores(self, state: ChainState) -> Float[Tensor, "*batch n"]:
        """Return trivialized gradients of the log-density for right Haar measure, at the elements of ``state``.

        Their mean is zero under the target, and their mean square is about the curvature of its wells.
        """

    def drawn(self, state: ChainState) -> ChainState:
        """Return the part of a ``state`` whose elements are samples of the target; by default all of it."""
        return state


@checked(but=("step",))
class HamiltonianMonteCarlo(MarkovKernel):
    r"""Hamiltonian Monte Carlo with momenta in the Lie algebra (Duane et al. 1987; Barp, Kennedy and Girolami 2019).

    The stationary distribution has the density :math:`e^{-E / T}` for a Haar measure, without any bias of the step
    size: a step draws momenta, follows the path of `leapfrog`, and accepts its end by the rule of Metropolis. This
    holds on every Lie group: the modular function of the path is in the rule, so that groups need not be unimodular,
    and the reverse of a path is the same path, so that exp need not be one to one. Proposals outside of the domain of
    a local group, or where the energy is not finite, are rejected and counted. Where a group has several components,
    every step also proposes a jump to another one, :math:`g\,k\,c^{\pm 1} k^{-1}`, for c an element of that component
    and k random.

    Args:
        group: the group of the elements.
        energy: E, a function of elements ``[*batch, *element_shape]`` to energies ``[*batch]``; minus the logarithm of
            the density, up to a constant. Infinite where the density is zero.
        temperature: T, positive.
        measure: the measure of which e^(-E / T) is the density: ``"left"`` or ``"right"`` Haar measure. They are the
            same on unimodular groups, as SO(n), SE(n), SU(n), SL(n), Heisenberg groups.
        path_length: length of a path in units of the width of the target; pi / 2 carries a normal target to the
            other end of its range.
        component_jumps: propose jumps between components; without them chains stay in the component of their start.

    Raises:
        ConfigurationError: the temperature or the length is not positive and finite, or the measure is another.

    Example:
        >>> group = SO(3)
        >>> kernel = HamiltonianMonteCarlo(group, lambda g: -3 * g[..., 2, 2])
        >>> state = kernel.init(group.random_haar(8))
        >>> kernel.step(state, torch.Generator().manual_seed(0)).elements.shape
        torch.Size([8, 3, 3])
    """

    _num_steps: ClassVar[int | None] = None  # leapfrog steps of a path, if it is fixed

    def __init__(
        self,
        group: LieGroup,
        energy: Energy,
        *,
        temperature: float = 1.0,
        measure: Literal["left", "right"] = "left",
        path_length: float = 0.5 * math.pi,
        component_jumps: bool = True,
    ) -> None:
        self.group = group
        self.energy = energy
        self.temperature = check_positive("temperature", temperature)
        self.measure = check_choice("measure", measure, ("left", "right"))
        self.path_length = check_positive("path_length", path_length)
        self.target_acceptance = 0.8
        self._inverse_temperature: Tensor | float = 1.0 / self.temperature
        # |Killing form|: mean square turn of the adjoint map by vectors of unit length; zero for nilpotent directions
        values, vectors = torch.linalg.eigh(group.algebra.killing_form)
        self._turning = Constant(vectors @ (values.abs() / (2.0 * _MAX_TURN**2)).diag() @ vectors.mT)
        number = group.num_components if component_jumps else 1
        self._jumps = Constant(group.components(torch.float64)[1:]) if 1 < number <= _MAX_COMPONENTS else None

    @property
    def jumps(self) -> bool:
        """True if steps propose to jump to other components of the group."""
        return self._jumps is not None and len(self._jumps.value) > 0

    def init(self, elements: Tensor, like: ChainState | None = None) -> ChainState:
        elements = self.group.check_elements(elements, "elements")
        if torch.finfo(elements.dtype).bits < 32:
            raise ConfigurationError(f"elements: expected float32 or float64, got {elements.dtype}")
        gradients, energies = self._first_gradients(elements)
        finite = torch.isfinite(energies) & torch.isfinite(gradients).all(-1)
        if not bool(finite.all()):
            number = int((~finite).sum())
            raise NonFiniteError(
                f"elements: expected finite energies with finite gradients, got others at {number} of {finite.numel()}"
            )
        far = ~is_near(self.group, elements, self.group.project(elements), _MAX_ELEMENT_ERROR)
        if bool(far.any()):
            raise DomainError(f"elements: expected elements of {self.group!r}, got {int(far.sum())} that are not")
        no = torch.zeros_like(finite)
        if like is None:
            unit = torch.eye(self.group.dim).to(energies)
            first = energies.new_full((), _FIRST_STEP * self.group.dim**-0.25)
            state = ChainState(elements, energies, gradients, first, unit, 1, torch.ones_like(energies), no, no, no)
            return self.tuned(state, first, shrunk(mean_square(self.scores(state), first)))
        return replace(like, elements=elements, energies=energies, gradients=gradients)

    def _first_gradients(self, elements: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients and energies, of an energy that has derivatives."""
        try:
            gradients, energies = trivialized_grad_and_value(self.group, self.energy, elements, "energy")
        except RuntimeError as error:
            try:
                self.energy(elements)
            except Exception:
                raise error from None
            raise ConfigurationError(
                f"energy: expected a function with derivatives by torch, without NumPy, got one that raises {error!r}"
            ) from error
        if not bool(gradients.any()):  # the energy may be constant, or no function of its argument to torch
            unit = torch.ones_like(gradients)
            with torch.enable_grad():
                v = torch.zeros_like(gradients).requires_grad_()
                is_function = self.energy(self.group.perturb(elements, v)).requires_grad
            moved = self.energy(self.group.retract(elements, unit * _PROBE_LENGTH * self.group.dim**-0.5))
            if not is_function and bool((moved != energies).any()):
                raise ConfigurationError(
                    "energy: expected a function with derivatives by torch, got one that changes without any, as after "
                    "detach() or under no_grad()"
                )
        return gradients, energies

    def scores(self, state: ChainState) -> Float[Tensor, "*batch n"]:
        slopes = self._density(state).slopes
        algebra = self.group.algebra
        return slopes if algebra.is_unimodular else slopes - Constant(algebra.trace_ad).matching(slopes)

    def tuned(self, state: ChainState, step_size: Tensor, square: Tensor | None = None) -> ChainState:
        number, factor = self._num_steps, state.factor
        if number is None:
            number = max(1, min(_MAX_LEAPFROG_STEPS, math.ceil(self.path_length / float(step_size.mean()))))
            step_size = step_size.clamp(max=self.path_length / number)
        if square is not None:
            turning = self._turning.matching(square)
            values, vectors = torch.linalg.eigh(square - turning)
            largest = turning + (vectors * values.clamp(min=0.0).unsqueeze(-2)) @ vectors.mT  # at least both
            precision = slope_precision(largest, _MAX_STD)
            factor = torch.linalg.inv(torch.linalg.cholesky(precision)).mT
        return replace(state, step_size=step_size, factor=factor, num_leapfrog_steps=number)

    def step(self, state: ChainState, generator: torch.Generator | None = None) -> ChainState:
        step_size = state.step_size
        if self._num_steps is None:
            jitter = 2.0 * uniform(state.energies.shape, state.energies, generator) - 1.0
            step_size = step_size * (1.0 + _STEP_JITTER * jitter)
        move = metropolis_move(
            self.group,
            self._evaluated,
            self._density(state),
            step_size,
            state.factor,
            state.num_leapfrog_steps,
            generator,
        )
        log_ratios, proposed = move.log_ratios, move.proposed
        energies, gradients = proposed.record
        exact = self.group.project(proposed.elements)  # against the rounding of many products
        candidate = replace(state, elements=exact, energies=energies, gradients=gradients)
        moved = state.rows(move.accepted, candidate)
        invalid = ~torch.isfinite(proposed.log_densities)
        jumped = torch.zeros_like(invalid)
        if self.jumps:
            moved, jumped = self._jumped(moved, generator)
        return replace(
            moved,
            acceptance=log_ratios.clamp(max=0.0).exp().nan_to_num(0.0),
            diverged=~invalid & (log_ratios < -_MAX_ENERGY_ERROR),
            invalid=invalid,
            jumped=jumped,
            num_steps=state.num_steps + 1,
        )

    def _at(self, inverse_temperature: Tensor) -> HamiltonianMonteCarlo:
        """The kernel with an inverse temperature for each entry of the first dimension of the chains."""
        other = copy.copy(self)
        other._inverse_temperature = inverse_temperature
        return other

    def _evaluated(self, g: Tensor) -> DensityAt:
        gradients, energies = trivialized_grad_and_value(self.group, self.energy, g, "energy")
        return self._tempered(g, energies, gradients)

    def _density(self, state: ChainState) -> DensityAt:
        return self._tempered(state.elements, state.energies, state.gradients)

    def _tempered(self, g: Tensor, energies: Tensor, gradients: Tensor) -> DensityAt:
        """The density for left Haar measure."""
        beta = _spread(self._inverse_temperature, energies)
        value, slopes = -beta * energies, -beta.unsqueeze(-1) * gradients
        if self.measure == "right" and not self.group.algebra.is_unimodular:
            # right Haar measure has the density 1 / lambda for the left one
            value = value - self.group.log_modular(g)
            slopes = slopes + Constant(self.group.algebra.trace_ad).matching(slopes)
        return DensityAt(g, value, slopes, (energies, gradients))

    def _jumped(self, state: ChainState, generator: torch.Generator | None) -> tuple[ChainState, Tensor]:
        """The state after a proposal to jump to another component, accepted by the rule of Metropolis."""
        assert self._jumps is not None
        group, reference = self.group, state.energies
        representatives = self._jumps.matching(state.elements)
        c = representatives[integers(len(representatives), reference.shape, reference, generator)]
        back = uniform(reference.shape, reference, generator) < 0.5
        c = torch.where(back.reshape(back.shape + (1,) * len(group.element_shape)), group.inverse(c), c)
        k = group.exp(normal((*reference.shape, group.dim), reference, generator))
        turn = group.compose(group.compose(k, c), group.inverse(k))
        elements = group.compose(state.elements, turn)
        finite = torch.isfinite(elements).flatten(reference.ndim).all(-1)
        elements = torch.where(finite.reshape(finite.shape + (1,) * len(group.element_shape)), elements, state.elements)
        here, there = self._density(state), self._evaluated(elements)
        log_ratios = there.log_densities - here.log_densities + group.log_modular(turn)
        accepted = finite & (uniform(log_ratios.shape, log_ratios, generator).log() < log_ratios)
        energies, gradients = there.record
        return state.rows(accepted, replace(state, elements=elements, energies=energies, gradients=gradients)), accepted


@checked(but=("step",))
class MALA(HamiltonianMonteCarlo):
    r"""The Metropolis-adjusted Langevin algorithm: Hamiltonian Monte Carlo with paths of one step.

    The proposal is the step of time :math:`h^2 / 2` that `ExponentialEuler` takes for `overdamped_langevin`, in the
    metric of the mass matrix (Roberts and Tweedie 1996). One gradient a step; it goes a shorter way than a path.

    Args:
        group: the group of the elements.
        energy: E, as for `HamiltonianMonteCarlo`.
        temperature: T, positive.
        measure: ``"left"`` or ``"right"`` Haar measure.
        component_jumps: propose jumps between components.
    """

    _num_steps = 1

    def __init__(
        self,
        group: LieGroup,
        energy: Energy,
        *,
        temperature: float = 1.0,
        measure: Literal["left", "right"] = "left",
        component_jumps: bool = True,
    ) -> None:
        super().__init__(group, energy, temperature=temperature, measure=measure, component_jumps=component_jumps)
        self.target_acceptance = 0.574  # the best in high dimensions (Roberts and Rosenthal 1998)


@checked(but=("step",))
class ParallelTempering(MarkovKernel):
    r"""Replicas of chains at several temperatures, which swap elements, so that wells far apart are all visited.

    Replica r has the density :math:`e^{-\beta_r E / T}`. After a step of all replicas, neighbours i and j swap their
    elements with probability :math:`\min(1, e^{(\beta_i - \beta_j)(E_i - E_j) / T})`, even and odd pairs in turn
    (Swendsen and Wang 1986; Syed et al. 2022). Each replica has a step size and a mass matrix of its own. The state is
    that of the replicas, ``[r, *batch, ...]``; samples are the elements of the first one.

    Args:
        kernel: the kernel of one replica.
        inverse_temperatures: beta, falling numbers from 1 to a small positive number. On a group that is not compact
            the density of the last replica must still have a finite integral.

    Raises:
        ConfigurationError: the numbers do not fall from 1, or one is not positive.
    """

    def __init__(self, kernel: HamiltonianMonteCarlo, inverse_temperatures: Float[Tensor, " r"]) -> None:
        betas = torch.as_tensor(inverse_temperatures).double().cpu()
        if betas.numel() < 2 or float(betas[0]) != 1.0 or not bool((betas.diff() < 0).all()) or float(betas[-1]) <= 0:
            raise ConfigurationError(
                f"inverse_temperatures: expected falling positive numbers from 1, at least two, got {betas.tolist()}"
            )
        self.kernel = kernel
        self.inverse_temperatures = betas
        self.group = kernel.group
        self.target_acceptance = kernel.target_acceptance
        self._betas = Constant(betas)

    def init(self, elements: Tensor, like: ChainState | None = None) -> ChainState:
        elements = self.group.check_elements(elements, "elements")
        batch = self.group.batch_shape(elements)
        if like is not None:
            if batch != like.energies.shape:
                elements = elements.expand(len(self.inverse_temperatures), *elements.shape)
            return self.kernel.init(elements.contiguous(), like)
        replicas = elements.expand(len(self.inverse_temperatures), *elements.shape).contiguous()
        state = self.kernel.init(replicas)
        first = state.step_size.expand(len(replicas), *[1] * len(batch)).contiguous()
        state = replace(state, swap_acceptance=first.new_ones(len(replicas) - 1))
        return self.tuned(state, first, shrunk(mean_square(self.scores(state), first)))

    def scores(self, state: ChainState) -> Float[Tensor, "*batch n"]:
        return self._kernel_of(state).scores(state)

    def tuned(self, state: ChainState, step_size: Tensor, square: Tensor | None = None) -> ChainState:
        return self.kernel.tuned(state, step_size, square)

    def drawn(self, state: ChainState) -> ChainState:
        return replace(
            state,
            elements=state.elements[0],
            energies=state.energies[0],
            gradients=state.gradients[0],
            acceptance=state.acceptance[0],
            diverged=state.diverged[0],
            invalid=state.invalid[0],
            jumped=state.jumped[0],
        )

    def step(self, state: ChainState, generator: torch.Generator | None = None) -> ChainState:
        parity = state.num_steps % 2
        state = self._kernel_of(state).step(state, generator)
        number = len(self.inverse_temperatures)
        pairs = torch.arange(parity, number - 1, 2, device=state.energies.device)
        beta = self._betas.matching(state.energies) / self.kernel.temperature
        difference = state.energies[pairs] - state.energies[pairs + 1]
        log_ratios = _spread(beta[pairs] - beta[pairs + 1], difference) * difference
        swapped = uniform(log_ratios.shape, log_ratios, generator).log() < log_ratios
        mask = torch.zeros_like(state.invalid)
        mask[pairs], mask[pairs + 1] = swapped, swapped
        order = torch.arange(number, device=pairs.device)
        order[pairs], order[pairs + 1] = pairs + 1, pairs
        other = replace(
            state, elements=state.elements[order], energies=state.energies[order], gradients=state.gradients[order]
        )
        acceptance = state.swap_acceptance
        if acceptance is not None and len(pairs):
            acceptance = acceptance.clone()
            acceptance[pairs] = log_ratios.clamp(max=0.0).exp().flatten(1).mean(-1)
        return replace(state.rows(mask, other), swap_acceptance=acceptance)

    def _kernel_of(self, state: ChainState) -> HamiltonianMonteCarlo:
        """The kernel of all replicas, of which each has its temperature."""
        return self.kernel._at(self._betas.matching(state.energies) / self.kernel.temperature)


def mean_square(gradients: Float[Tensor, "*batch n"], step_size: Tensor) -> Tensor:
    """Return the mean outer product of ``gradients`` over the chains that share a step size, ``[n, n]`` or a stack."""
    n = gradients.shape[-1]
    gradients = torch.where(torch.isfinite(gradients).all(-1, keepdim=True), gradients, 0.0)
    if step_size.ndim == 0:
        flat = gradients.reshape(-1, n)
        return flat.mT @ flat / len(flat)
    flat = gradients.reshape(len(step_size), -1, n)
    return (flat.mT @ flat / flat.shape[1]).reshape(*step_size.shape[:-1], n, n)


def shrunk(square: Float[Tensor, "*s n n"], draws: float = 1.0) -> Float[Tensor, "*s n n"]:
    """Return a mean outer product of scores, nearer to its diagonal and larger the fewer ``draws`` it is made of."""
    trust = draws / (draws + _MIN_DRAWS_A_DIMENSION * square.shape[-1])
    unit = torch.eye(square.shape[-1]).to(square)
    return trust * square + (1.0 - trust) * torch.diag_embed(square.diagonal(dim1=-2, dim2=-1)) + unit / (1.0 + draws)


def _spread(value: Tensor | float, like: Tensor) -> Tensor:
    """One number for all chains, or one for each entry of their first dimension, to broadcast with ``[*batch]``."""
    value = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    return value.reshape(value.shape + (1,) * (like.ndim - value.ndim)) if value.ndim else value.expand(like.shape)
