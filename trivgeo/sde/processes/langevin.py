"""Langevin equations on groups: processes whose stationary density for left Haar measure is Boltzmann's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._autocast import einsum
from trivgeo._numerics import Constant
from trivgeo._random import normal
from trivgeo._text import described
from trivgeo.checks import check_positive, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import ConstantSchedule
from trivgeo.sde.processes.base import Process, Stepper, StepState
from trivgeo.sde.processes.trivialized import TrivializedSDE
from trivgeo.sde.scores.gradient import trivialized_grad, trivialized_grad_and_value

Energy = Callable[[Tensor], Tensor]

_MAX_RISE, _MAX_RISE_PER_DIMENSION = 32.0, 4.0
"""Rise of the energy in temperatures above which a step is refused; an exact step rises so with probability e^-32."""
_MAX_ENERGY_ERROR, _MAX_ENERGY_ERROR_PER_DIMENSION = 8.0, 0.25
"""Error of the total energy of a kinetic step, in temperatures; Metropolis's rule accepts it with probability e^-8."""
_MAX_ERROR_RATIO = 0.5
"""Ratio of that error to the change of the potential energy, (w h)^2 / 4 in a well of frequency w, where w h < 2."""
_ENERGY_ROUNDING_ULPS = 64.0
"""Rounding error of energies, in eps times their sizes, which does not count as an error of a step."""


@checked
def overdamped_langevin(group: LieGroup, energy: Energy, *, temperature: float = 1.0) -> TrivializedSDE:
    r"""The process :math:`dg = d(L_g)_e[-(\nabla_{\mathfrak g} E + T a)\,dt + \sqrt{2 T}\,dw]`.

    Its stationary density for left Haar measure is :math:`e^{-E / T}`: since the adjoint of a left-invariant field X_i
    is :math:`-X_i + a_i, a_i = \mathrm{tr}\,\mathrm{ad}(e_i)`, the drift that balances the noise of variance
    :math:`\sigma^2` is :math:`\tfrac12 \sigma^2 (\nabla \log p - a)`. The term a vanishes on unimodular groups.

    Where the drift grows, explicit schemes overshoot by more and more. A step that raises the energy by more than
    (32 + 4 dim) T is not taken: `solve` counts it among ``num_masked_steps``, and then steps are too long.

    Args:
        group: the group of the state.
        energy: E, a function of elements ``[*batch, *element_shape]`` to energies ``[*batch]``.
        temperature: T.

    Raises:
        ConfigurationError: the temperature is not positive and finite.
    """
    check_positive("temperature", temperature)
    a = Constant(temperature * group.algebra.trace_ad)

    def drift(g: Tensor, t: float) -> Tensor:
        force = -trivialized_grad(group, energy, g, "energy")
        return force if group.algebra.is_unimodular else force - a.matching(g)

    schedule = ConstantSchedule(math.sqrt(2.0 * temperature))
    return _OverdampedLangevin(group, schedule, drift, energy=energy, temperature=temperature)


@dataclass(frozen=True, repr=False)
class _OverdampedLangevin(TrivializedSDE):
    """The equation of `overdamped_langevin`, with its energy as potential."""

    energy: Energy | None = field(default=None, repr=False)
    temperature: float = 1.0

    @property
    def max_rise(self) -> float:
        return _MAX_RISE + _MAX_RISE_PER_DIMENSION * self.group.dim

    def potential(self, state: Tensor) -> Tensor | None:
        """The energy in units of the temperature."""
        return None if self.energy is None else self.energy(state) / self.temperature


class KineticLangevinState(NamedTuple):
    """The state of `KineticLangevinSDE`.

    Attributes:
        elements: g, ``[*batch, *element_shape]``.
        momentum: xi, in the algebra, ``[*batch, dim]``.
        force: the force at g, ``[*batch, dim]``; kept so that a step costs one gradient.
    """

    elements: Tensor
    momentum: Tensor
    force: Tensor

    def __repr__(self) -> str:
        return described(self)


@checked
@dataclass(frozen=True, repr=False)
class KineticLangevinSDE(Process):
    r"""Kinetic (underdamped) Langevin dynamics, with momentum in the algebra (Kong and Tao 2024 on compact groups).

    .. math:: dg = d(L_g)_e[\xi]\,dt, \quad
        d\xi = (\mathrm{ad}^*_\xi \xi - \nabla_{\mathfrak g} E(g) - \gamma \xi)\,dt + \sqrt{2 \gamma T}\,dw, \quad
        \langle \mathrm{ad}^*_\xi \xi, \eta \rangle = \langle \xi, [\xi, \eta] \rangle .

    The coadjoint term makes the motion without friction geodesic for the left-invariant metric, a Hamiltonian flow. Its
    divergence in :math:`\xi` is :math:`a \cdot \xi, a_i = \mathrm{tr}\,\mathrm{ad}(e_i)`, which cancels that of
    :math:`\xi \cdot X` for left Haar measure: :math:`e^{-E / T} e^{-|\xi|^2 / 2 T}` is stationary on every group. The
    same density is stationary with the constant force :math:`-T a` in place of the coadjoint term
    (``coadjoint=False``), which costs nothing and is the same equation where the metric is bi-invariant, as on SO(n).
    With neither, the stationary density is another one on groups that are not unimodular.

    Attributes:
        group: the group of g.
        energy: E, a function as for an `EnergyScore`.
        friction: gamma, positive.
        temperature: T, positive.
        coadjoint: use the coadjoint term instead of the constant force.
    """

    group: LieGroup
    energy: Energy
    friction: float = 1.0
    temperature: float = 1.0
    coadjoint: bool = True
    _quadratic: Constant | None = field(init=False, repr=False, compare=False)
    _constant_force: Constant | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_positive("friction", self.friction)
        check_positive("temperature", self.temperature)
        # ad*_xi xi = quadratic[i, k, j] xi_i xi_k, zero for a bi-invariant metric
        c = self.group.algebra.structure_constants.transpose(1, 2)
        quadratic = 0.5 * (c + c.transpose(0, 1))
        is_zero = bool((quadratic.abs() <= 1e-12 * c.abs().max().clamp(min=1e-300)).all())
        object.__setattr__(self, "_quadratic", None if is_zero or not self.coadjoint else Constant(quadratic))
        constant = -self.temperature * self.group.algebra.trace_ad
        unneeded = self.coadjoint or self.group.algebra.is_unimodular
        object.__setattr__(self, "_constant_force", None if unneeded else Constant(constant))

    @property
    def horizon(self) -> float:
        """Infinity: the process has no end."""
        return math.inf

    def check_state(self, state: Any, name: str) -> None:
        if not isinstance(state, KineticLangevinState):
            raise ConfigurationError(
                f"{name}: expected a KineticLangevinState of KineticLangevinSDE.start, got {type(state)}"
            )
        self.group.check_elements(state.elements, f"{name}.elements")
        batch = self.group.batch_shape(state.elements)
        for part, vector in (("momentum", state.momentum), ("force", state.force)):
            if vector.shape != (*batch, self.group.dim):
                raise ShapeError(f"{name}.{part}: expected {[*batch, self.group.dim]}, got {list(vector.shape)}")

    def batch_shape(self, state: KineticLangevinState) -> torch.Size:
        return self.group.batch_shape(state.elements)

    def default_stepper(self) -> Stepper[KineticLangevinSDE, KineticLangevinState]:
        """Return the scheme that `solve` uses by default, a `SplittingOBABO`."""
        return SplittingOBABO()

    def start(self, elements: Tensor, *, generator: torch.Generator | None = None) -> KineticLangevinState:
        """Return a state at ``elements``, with momenta that ``generator`` draws from the stationary distribution."""
        self.group.check_elements(elements, "elements")
        shape = (*self.group.batch_shape(elements), self.group.dim)
        momentum = math.sqrt(self.temperature) * normal(shape, elements, generator)
        return KineticLangevinState(elements, momentum, self.force(elements))

    def force(self, elements: Tensor) -> Float[Tensor, "*batch n"]:
        """Return minus the trivialized gradient of the energy at ``elements``, plus the constant force.

        Vectors have shape ``[*batch, dim]``.
        """
        return self.force_and_energy(elements)[0]

    def force_and_energy(self, elements: Tensor) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch"]]:
        """Return `force` at ``elements``, ``[*batch, dim]``, and the energies there, ``[*batch]``, by one gradient."""
        slope, energy = trivialized_grad_and_value(self.group, self.energy, elements, "energy")
        force = -slope
        return (force if self._constant_force is None else force + self._constant_force.matching(force)), energy

    def work(self, displacement: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
        """Return the work of the constant force along a ``displacement``, ``[*batch]``; zero where there is none."""
        if self._constant_force is None:
            return torch.zeros_like(displacement[..., 0])
        return (displacement * self._constant_force.matching(displacement)).sum(-1)

    def overshot(
        self, old: Float[Tensor, "*batch"], new: Float[Tensor, "*batch"], kinetic: Float[Tensor, "*batch"]
    ) -> Bool[Tensor, "*batch"]:
        """Return a mask of chains whose energy a step without noise raised too much, see `SplittingOBABO`; not of NaN.

        Args:
            old: potential energies before the step.
            new: potential energies after it.
            kinetic: changes of the kinetic energies, without the `work` of the constant force.
        """
        rounding = _ENERGY_ROUNDING_ULPS * torch.finfo(new.dtype).eps * (old.abs() + new.abs() + kinetic.abs())
        bound = self.temperature * (_MAX_ENERGY_ERROR + _MAX_ENERGY_ERROR_PER_DIMENSION * self.group.dim)
        error = new - old + kinetic
        return (error > bound + rounding) & (error > _MAX_ERROR_RATIO * (new - old).abs())

    def turn(self, momentum: Tensor, h: float) -> Tensor:
        r"""Return the flow of :math:`\dot\xi = \mathrm{ad}^*_\xi \xi`, to order 4, with the length of xi kept.

        Args:
            momentum: xi, ``[*batch, dim]``.
            h: the time.
        """
        if self._quadratic is None:
            return momentum
        q = self._quadratic.matching(momentum)

        def slope(x: Tensor) -> Tensor:
            return h * einsum("...i,...k,ikj->...j", x, x, q)

        k1 = slope(momentum)
        k2 = slope(momentum + 0.5 * k1)
        k3 = slope(momentum + 0.5 * k2)
        k4 = slope(momentum + k3)
        turned = momentum + (k1 + 2.0 * (k2 + k3) + k4) / 6.0
        length = turned.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(turned.dtype).tiny)
        return turned * (momentum.norm(dim=-1, keepdim=True) / length)


@checked
class SplittingOBABO(Stepper[KineticLangevinSDE, KineticLangevinState]):
    r"""Noise, kick, drift, kick, noise: a palindrome of exact flows, of weak order 2; one gradient a step.

    With the step h: O damps by :math:`e^{-\gamma h / 2}` and adds the noise that keeps :math:`N(0, T)`; B adds half
    the force; C turns the momentum by the coadjoint term for h / 2; A is :math:`g \leftarrow g \exp(h \xi)`, the order
    O B C A C B O (Bussi and Parrinello 2007; Leimkuhler and Matthews 2013).

    B C A C B keeps the total energy :math:`E + |\xi|^2 / 2` up to an error of order h^3. A step whose error is above
    (8 + dim / 4) T, and above half of the change of the potential energy, is not taken: `solve` counts it among
    ``num_masked_steps``, and then steps are too long. The energy comes with the force at no cost; for the first step
    of a solve it is not known.
    """

    order: ClassVar[int | None] = 2

    def init(
        self, sde: KineticLangevinSDE, y: KineticLangevinState, start: float, generator: torch.Generator | None
    ) -> StepState:
        # the energy at the start is not known yet
        return StepState(y, torch.full_like(y.momentum[..., 0], math.nan))

    def step(
        self, sde: KineticLangevinSDE, state: StepState, start: float, end: float, generator: torch.Generator | None
    ) -> StepState:
        """Advance the process by one step, with one exponential and one gradient.

        Raises:
            ConfigurationError: the time falls.
        """
        g, h = state.y, end - start
        if h < 0:
            raise ConfigurationError("times: expected increasing times for Langevin dynamics")
        half = 0.5 * h
        decay = math.exp(-sde.friction * half)
        spread = math.sqrt(-sde.temperature * math.expm1(-sde.friction * h))
        momentum = decay * g.momentum + spread * normal(g.momentum.shape, g.momentum, generator)
        before = 0.5 * momentum.square().sum(-1)
        middle = sde.turn(momentum + half * g.force, half)
        elements = sde.group.retract(g.elements, h * middle)
        force, energy = sde.force_and_energy(elements)
        momentum = sde.turn(middle, half) + half * force
        kinetic = 0.5 * momentum.square().sum(-1) - before - sde.work(h * middle)
        overshot = sde.overshot(state.memory, energy.detach(), kinetic.detach())
        momentum = decay * momentum + spread * normal(momentum.shape, momentum, generator)
        momentum = torch.where(overshot.unsqueeze(-1), math.nan, momentum)  # `solve` masks steps with NaN
        return StepState(KineticLangevinState(elements, momentum, force), energy.detach())
