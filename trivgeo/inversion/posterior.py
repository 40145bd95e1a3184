"""Inverse problems of an unknown transformation, and what a stage may ask of their posteriors for given data."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from trivgeo._autocast import grad_and_aux
from trivgeo._compile import compile_and_compare, environment
from trivgeo._numerics import is_traced
from trivgeo._random import normal
from trivgeo._text import Described, described
from trivgeo._timing import seconds_until
from trivgeo._torch import is_any_autocast_enabled, pytree
from trivgeo.checks import checked, with_tensors
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.groups import Action, LieGroup
from trivgeo.groups.action import ContentGuard
from trivgeo.inversion.bounds import Bound, automatic_bound, bytes_of, check_bound, number_that_fits
from trivgeo.inversion.energies.base import CurvedEnergy, DataEnergy, as_energy
from trivgeo.inversion.energies.wrapped import WrappedEnergy
from trivgeo.inversion.rows import flat_rows, in_blocks, lift, one_per_datum, rows_like
from trivgeo.sde.scores.gradient import trivialized_grad_and_value


@runtime_checkable
class Evaluate(Protocol):
    """Function of elements ``[b, *chains, *element_shape]`` and b data to energies ``[b, *chains]``."""

    action: Action
    log_det: bool

    def __call__(self, g: Tensor, data: tuple[Any, Any, Any], /) -> Tensor:
        """Return the energies."""


@runtime_checkable
class Gradient(Protocol):
    """Function of elements and data as for `Evaluate` to energies and gradients, see `value_and_gradient`."""

    def __call__(self, g: Tensor, data: tuple[Any, Any, Any], /) -> Tensor:
        """Return energies and gradients."""


def value_and_gradient(evaluate: Evaluate, g: Tensor, data: tuple[Any, Any, Any]) -> Tensor:
    """Return energies and their gradients by the entries of elements, side by side, ``[b, *chains, 1 + entries]``.

    Rows are NaN where an energy is not finite.
    """
    if not (is_traced() or is_any_autocast_enabled()):
        # `torch.func.grad` keeps what second derivatives would need, three times the memory
        with torch.enable_grad():
            leaf = g.detach().requires_grad_()
            values = nan_where_infinite(evaluate(leaf, data), leaf)
            (gradient,) = torch.autograd.grad(values.sum(), leaf)
        return torch.cat([values.detach().unsqueeze(-1), gradient.flatten(values.ndim)], -1)

    def total(g: Tensor) -> tuple[Tensor, Tensor]:
        values = nan_where_infinite(evaluate(g, data), g)
        return values.sum(), values

    gradient, values = grad_and_aux(total, g)
    return torch.cat([values.unsqueeze(-1), gradient.flatten(values.ndim)], -1)


class BoundedEnergy(torch.autograd.Function):
    """Energies whose gradient is taken at once, so that nothing else of their evaluation stays in memory."""

    @staticmethod
    def forward(g: Tensor, gradient: Gradient, data: tuple[Any, Any, Any]) -> tuple[Tensor, Tensor]:
        """Return energies ``[b, *chains]`` of elements and their gradients by the entries of the elements."""
        both = gradient(g, data)
        return both[..., 0], both[..., 1:].reshape(g.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *derivatives: Tensor) -> Any:
        """Return the gradients times the derivatives by the energies; there are no second derivatives."""
        (gradient,) = ctx.saved_tensors
        return rows_like(derivatives[0], gradient) * gradient, None, None


def nan_where_infinite(energy: Tensor, g: Tensor) -> Tensor:
    """Return the energies, NaN with NaN gradients where they are not finite.

    A constant infinity would have the gradient zero, as if nothing were wrong.
    """
    undefined = torch.where(torch.isfinite(energy), 0.0, torch.nan).to(g.dtype)
    return energy + (rows_like(undefined, g) * g).flatten(energy.ndim).sum(-1)


_MAX_COMPILED_ROWS = 8192  # pairs of an element and a datum in a block, where no bound is given
_MIN_COMPILED_ROWS = 64  # pairs below which nothing is compiled
_MIN_FILLED_SHARE = 0.25  # share of a block below which evaluation is eager: compiled code computes all of its rows
# largest relative distance, in L2, of compiled from eager results; networks in half precision are that far apart
_ENERGY_TOLERANCE, _GRADIENT_TOLERANCE = 0.02, 0.3


class CompiledGradient(Described):
    """Evaluates energies and their gradients by compiled code, a block of elements with their data at once.

    Code is compiled at the first call, and again for a larger block, another dtype or device. Its first result is
    compared with the eager one: where it differs, and where compilation fails, a warning says so, and evaluation stays
    eager.

    Attributes:
        reason: why evaluation is eager, empty while it is not.
    """

    def __init__(self, evaluate: Evaluate) -> None:
        self.evaluate = evaluate
        self.reason = ""
        self._rows = 0
        self._functions: dict[tuple[Any, ...], Callable[..., Tensor] | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Code is compiled again by the process that loads this."""
        return CompiledGradient, (self.evaluate,)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledGradient:
        """Copy what is evaluated; code belongs to the networks of one object."""
        return CompiledGradient(copy.deepcopy(self.evaluate, memo))

    def __call__(self, g: Tensor, data: tuple[Any, Any, Any], bound: int | None) -> Tensor:
        """Return `value_and_gradient` of elements, at most ``bound`` at once; ``None`` stands for some thousands."""
        group = self.evaluate.action.group
        shape = group.batch_shape(g)
        number, most = shape.numel(), bound or _MAX_COMPILED_ROWS
        if min(most, number) > 2 * self._rows or self._rows > most:
            self._rows = min(most, number)
        few = number < max(_MIN_COMPILED_ROWS, _MIN_FILLED_SHARE * self._rows)
        if self.reason or few or self._rows < _MIN_COMPILED_ROWS or is_traced():
            return in_blocks(self._eager, group, g, data, bound)
        found = self._blocks(g.reshape(-1, *group.element_shape), data, shape[1:].numel())
        return in_blocks(self._eager, group, g, data, bound) if found is None else found.unflatten(0, shape)

    def _eager(self, g: Tensor, data: tuple[Any, Any, Any]) -> Tensor:
        return value_and_gradient(self.evaluate, g, data)

    @torch.no_grad()
    def _blocks(self, elements: Tensor, data: tuple[Any, Any, Any], chains: int) -> Tensor | None:
        """Return energies and gradients by compiled code, ``chains`` elements for each datum; ``None`` if it fails."""
        original, prepared, content = data
        read = (original if self.evaluate.log_det else (), prepared, content)
        found = []
        for start in range(0, len(elements), self._rows):
            # the last block is filled with its last element
            place = torch.arange(start, start + self._rows, device=elements.device).clamp(max=len(elements) - 1)
            block, datum = elements[place], place // chains
            rows = pytree.tree_map(lambda leaf, datum=datum: leaf[datum], read)
            function = self._function(block, rows)
            if function is None:
                return None
            found.append(function(block, rows))
        return torch.cat(found)[: len(elements)]

    def _function(self, block: Tensor, data: Any) -> Callable[..., Tensor] | None:
        """Return compiled code for blocks of this size; ``None`` if evaluation stays eager."""
        key = (len(block), *environment(block))
        if key not in self._functions:
            evaluate = self.evaluate
            eager = value_and_gradient(evaluate, block, data)
            self._functions[key], outcome = compile_and_compare(
                "energy",
                lambda g, data: value_and_gradient(evaluate, g, data),
                (block, data),
                lambda found: _agree(found, eager),
                derivatives=True,
            )
            self.reason = outcome.reason
        return self._functions[key]


def _agree(found: Tensor, eager: Tensor) -> bool:
    """Return whether energies and gradients are near those of eager evaluation, and defined for the same rows."""
    defined = torch.isfinite(eager).all(-1)
    if not torch.equal(defined, torch.isfinite(found).all(-1)):
        return False
    found, eager = (torch.where(rows_like(defined, x), x, 0.0).double() for x in (found, eager))
    energy, gradient = ((found - eager)[..., part].norm() for part in (0, slice(1, None)))
    return bool(
        (energy <= _ENERGY_TOLERANCE * eager[..., 0].norm()) & (gradient <= _GRADIENT_TOLERANCE * eager[..., 1:].norm())
    )


_MIN_BYTES_MEASURED = 4096  # size of a datum below which the memory of an energy without networks is not measured
_LOSS_WEIGHT = 3.0  # energy of one unit of what a guard measures, in units of the energy of an empty datum
ENERGIES_OF_A_GUARD = 2
"""Energies of each datum that the weight of a guard takes."""


def check_action(action: Action, name: str = "action") -> Action:
    """Return ``action``; the message of the error calls it ``name``.

    Raises:
        ConfigurationError: ``action`` is no `Action`.
    """
    if not isinstance(action, Action):
        raise ConfigurationError(f"{name}: expected an Action (such as group.action()), got {type(action).__name__}")
    return action


def check_batch(action: Action, x: Any, minimum: int = 1) -> tuple[Any, int]:
    """Return data as tensors, and their number.

    Raises:
        ConfigurationError: data have another type or dtype.
        NonFiniteError: data hold NaN or infinity.
        ShapeError: data do not fit the action, have another number of batch dimensions, or are too few.
    """
    x = with_tensors("x_tilde", x)
    action.check_data(x, "x_tilde")
    leaves = pytree.tree_leaves(x)
    for leaf in leaves:
        if not leaf.is_floating_point():
            raise ConfigurationError(f"x_tilde: expected floating-point data, got {leaf.dtype}")
        # an exported program has no values to look at
        if not is_traced() and not bool(torch.isfinite(leaf).all()):
            bad = int((~torch.isfinite(leaf)).sum())
            raise NonFiniteError(f"x_tilde: expected finite data, got {bad} NaN or infinite values")
    batch = action.batch_shape(x)
    if len(batch) != 1 or batch[0] < minimum:
        raise ShapeError(f"x_tilde: expected data with one batch dimension, got batch shape {list(batch)}")
    return x, batch[0]


class MissingGradientError(ConfigurationError):
    """Error of an energy without a gradient for its data."""


def _check_gradient(x: Any, energy: Tensor) -> None:
    """Raise `MissingGradientError` if data take part in a gradient and their energy does not: a search would stall."""
    wanted = any(leaf.requires_grad for leaf in pytree.tree_leaves(x))
    if wanted and not energy.requires_grad:
        kind = "detached or computed under no_grad" if energy.is_floating_point() else f"of {energy.dtype}"
        raise MissingGradientError(f"energy: expected one with a gradient for its data, got one without: {kind}")


@checked
class InverseProblem(nn.Module):
    r"""Find g in data :math:`\tilde x = g.x` of unknown g and x: an action, and an energy that is low for clean data x.

    Given data it is the `Posterior` :math:`e^{-E(g)}` of the transformation, with

    .. math:: E(g) = E_x(g^{-1} \tilde x) - \log|\det J_{g^{-1}}(\tilde x)|

    (Kim et al. 2026, eq. 3). E is infinite where :math:`g^{-1} \tilde x` is not defined.

    Where the action has a `trivgeo.groups.action.ContentGuard`, what :math:`g^{-1} \tilde x` no longer shows of
    :math:`\tilde x` costs for each unit of the guard three times the energy of an empty datum, in absolute value, or
    what :math:`E_x(\tilde x)` is above or below it, and at least one: to show nothing is never better than the datum
    as given, whatever the unit of the energy. The cost is zero where all is shown.

    Args:
        action: the action on data.
        energy: :math:`E_x`, a `DataEnergy`, or a function from a batch of data to ``[batch]``; ``None`` for zero
            wherever the inverse transformation is defined.
        log_det: keep the log-determinant (the published experiments drop it).
        compiled: evaluate energies with gradients by a `CompiledGradient`.

    Attributes:
        compiled_gradient: the `CompiledGradient`; ``None`` for eager evaluation.

    Raises:
        ConfigurationError: the action or the energy is not one.

    Example:
        >>> problem = InverseProblem(Translation(2).action(), lambda x: x.square().sum((-2, -1)))
        >>> problem.given(torch.ones(1, 1, 2)).energies(torch.tensor([[[0.0, 0.0], [1.0, 1.0]]]))
        tensor([[2., 0.]])
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor] | None = None,
        *,
        log_det: bool = False,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        self.action = check_action(action)
        self.energy = None if energy is None else as_energy(energy)
        self.log_det = log_det
        self.compiled_gradient = CompiledGradient(self) if compiled and self.energy is not None else None
        self._bytes: dict[Any, int] = {}

    def __repr__(self) -> str:
        return described(self, {"action": self.action, "energy": self.energy, "log_det": self.log_det})

    @property
    def group(self) -> LieGroup:
        """The group of the action."""
        return self.action.group

    def given(
        self,
        x: Any,
        *,
        max_evaluations: Bound = None,
        max_memory: float | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> Posterior:
        """Return the posteriors of a batch of data, see `Posterior`.

        Args:
            x: transformed data, one batch dimension.
            max_evaluations: the largest number of energies evaluated at once; None for no bound.
            max_memory: memory in GiB that ``"auto"`` bounds, see `Inverter`.
            on_step: called after each step of a stage, for progress bars.
        """
        return Posterior(self, x, max_evaluations, on_step, max_memory=max_memory)

    def bytes_of_an_energy(self, data: tuple[Any, Any, Any]) -> int:
        """Return the memory that an energy with its gradient takes, see `trivgeo.inversion.bounds.bytes_of`.

        Known for further data of the same shapes, dtypes and device; zero for an energy without a gradient.
        """
        leaves = [leaf for leaf in pytree.tree_leaves(data) if isinstance(leaf, Tensor)]
        key = tuple((leaf.shape[1:], leaf.dtype, leaf.device) for leaf in leaves)
        if key not in self._bytes:
            try:
                self._bytes[key] = bytes_of(self._with_graph, data)
            except MissingGradientError:
                self._bytes[key] = 0
        return self._bytes[key]

    def _with_graph(self, rows: tuple[Any, Any, Any]) -> Tensor:
        reference: Tensor = pytree.tree_leaves(rows)[0]
        g = self.group.identity(len(reference), dtype=reference.dtype, device=reference.device)
        return self.signed_energies(g.clone().requires_grad_(), rows)

    def forward(self, g: Tensor, data: tuple[Any, Any, Any]) -> Float[Tensor, "b *chains"]:
        """Return energies of elements for some rows of the data, unchecked; infinite where they are not finite.

        Args:
            g: elements ``[b, *chains, *element_shape]``.
            data: rows of `Posterior.data`, b of them.
        """
        energy = self.signed_energies(g, data)
        return torch.where(torch.isfinite(energy), energy, torch.inf)

    def signed_energies(self, g: Tensor, data: tuple[Any, Any, Any]) -> Float[Tensor, "b *chains"]:
        """Return energies of elements ``g`` for rows ``data`` as `forward`, except that minus infinity stays."""
        shape = self.group.batch_shape(g)
        inverse = self.group.inverse(g)
        original, prepared, (content, weight) = (lift(part, len(shape) - 1) for part in data)
        if self.energy is None:
            valid = self.action.is_valid(inverse, original)
            valid = valid.unsqueeze(-1).flatten(len(shape)).all(-1)
            energy = torch.where(valid, g.new_zeros(()), torch.inf)
        else:
            energy = self._restored_energies(self.energy, inverse, prepared)
            if self.action.guard is not None:
                energy = energy + weight * self.action.guard.departure(inverse, content)
        if self.log_det:
            energy = energy - self.action.log_abs_det_jacobian(inverse, original)
        return torch.where(energy.isnan(), torch.inf, energy)

    def _restored_energies(self, data_energy: DataEnergy, inverse: Tensor, x: Any) -> Tensor:
        shape = self.group.batch_shape(inverse)
        transformation_energy = data_energy.transformation_energy(self.action, inverse, x)
        with torch.no_grad():
            x = data_energy.select(self.action, inverse, x)
        y = flat_rows(self.action(inverse, x), len(shape))
        energy = one_per_datum("energy", data_energy(y), shape)
        _check_gradient(y, energy)
        energy = energy.to(inverse.dtype)  # one that computes in a wider dtype, or counts
        return energy if transformation_energy is None else energy + transformation_energy


@checked
class Posterior:
    r"""The transformation posteriors :math:`p_0(g)\, e^{-E(g) / T}` of a batch of data, as a `Stage` receives them.

    Every evaluation of the energy E of the `InverseProblem` is counted. The temperature T is one and the prior p_0 left
    Haar measure unless `tempered` says otherwise; both enter log-densities alone.

    Args:
        problem: action and energy.
        x: transformed data, one batch dimension.
        max_evaluations: the largest number of energies evaluated at once, see `trivgeo.inversion.Inverter`.
        on_step: called by `step`.
        loss_weight: energy of one unit of what a guard measures, ``[b]``, where it is known from the same data and
            energy; by default it is evaluated here.
        max_memory: memory in GiB that ``"auto"`` bounds, see `trivgeo.inversion.Inverter`.

    Attributes:
        problem: action and energy.
        action: the action on data.
        group: group of the action.
        x: the data as tensors.
        batch: number b of data.
        reference: a tensor in the dtype and on the device of the data.
        data: the data, the part of them that the energy reads, and the part that must not be lost with its weight;
            `InverseProblem.forward` takes rows of these.
        max_evaluations: the bound as a number, or ``None``.
        bound: the bound as given.
        max_memory: memory as given.
        temperature: T.
        log_prior: elements ``[b, m, *element_shape]`` to :math:`\log p_0`; ``None`` for zero.
        unbounded: whether log-densities have met an energy of minus infinity, which counts as undefined, ``[b]``.
        without_prior: whether log-densities of the prior were NaN or plus infinity, which count as undefined, ``[b]``.
        deadline: time of `time.perf_counter` at which stages are to end, see `is_late`; ``None`` for never.
        notes: sentences of stages about what they chose, which become those of the result.

    Raises:
        ShapeError: the data do not have exactly one batch dimension, or do not fit the action.
        NonFiniteError: the data hold NaN or infinity.
        ConfigurationError: the data are not of floating-point numbers, or the bound is below one.
    """

    def __init__(
        self,
        problem: InverseProblem,
        x: Any,
        max_evaluations: Bound = None,
        on_step: Callable[[], None] | None = None,
        loss_weight: Float[Tensor, " b"] | None = None,
        max_memory: float | None = None,
    ) -> None:
        self.problem = problem
        self.action = problem.action
        self.group = problem.group
        self.x, self.batch = check_batch(problem.action, x, 0)
        self.reference: Tensor = pytree.tree_leaves(self.x)[0]
        prepared = self.x if problem.energy is None else problem.energy.prepare(self.action, self.x)
        bound = check_bound(max_evaluations)
        self.bound, self.max_memory = bound, max_memory
        self.max_evaluations = automatic_bound(prepared) if bound == "auto" else bound
        self._on_step = on_step
        self._counts = Counter[str]()  # shared with `tempered` copies
        guard = self.action.guard
        content = () if guard is None else guard.content(self.x)
        self._loss_weight = loss_weight
        if guard is not None and problem.energy is not None and loss_weight is None:
            self._loss_weight = self._guard_weight(guard, problem.energy, prepared)
            self.count(energies=ENERGIES_OF_A_GUARD)
        self.data: tuple[Any, Any, Any] = (
            self.x,
            prepared,
            (content, () if self._loss_weight is None else self._loss_weight),
        )
        if bound == "auto":
            self.max_evaluations = self._bounded_by_memory(self.max_evaluations, max_memory)
        self.temperature = 1.0
        self.log_prior: Callable[[Tensor], Tensor] | None = None
        self.unbounded = torch.zeros(self.batch, dtype=torch.bool, device=self.reference.device)
        self.without_prior = torch.zeros_like(self.unbounded)
        self.deadline: float | None = None
        self.notes: list[str] = []

    def __repr__(self) -> str:
        shown = ("problem", "action", "batch", "max_evaluations", "temperature", "log_prior")
        return described(self, {name: getattr(self, name) for name in shown})

    def _bounded_by_memory(self, number: int | None, max_memory: float | None) -> int | None:
        """Return a number of evaluations at once, at most ``number``, that fits into memory, by a measured energy."""
        problem, leaves = self.problem, pytree.tree_leaves(self.data[:2])
        size = sum(leaf.shape[1:].numel() * leaf.element_size() for leaf in leaves)
        networks = next(problem.parameters(), None) is not None
        small = not networks and size < _MIN_BYTES_MEASURED
        if is_traced() or problem.energy is None or self.batch == 0 or (small and max_memory is None):
            return number
        return number_that_fits(self.data[1], problem.bytes_of_an_energy(self.data), max_memory)

    def _guard_weight(self, guard: ContentGuard, energy: DataEnergy, prepared: Any) -> Float[Tensor, " b"]:
        """Return the energy of one unit of what the guard measures, from those of an empty datum and of the given."""
        together = max(1, self.batch) if self.max_evaluations is None else self.max_evaluations
        nothing = energy.prepare(self.action, guard.empty(self.x))
        empty, given = (self._energies_of(energy, data, together) for data in (nothing, prepared))
        sizes = [torch.where(torch.isfinite(size), size, 1.0) for size in (empty.abs(), (given - empty).abs())]
        return _LOSS_WEIGHT * torch.maximum(*sizes).clamp(min=1.0)

    def _energies_of(self, energy: DataEnergy, data: Any, together: int) -> Float[Tensor, " b"]:
        rows = [self.reference.new_empty(0)]
        with torch.no_grad():
            for i in range(0, self.batch, together):
                part = pytree.tree_map(lambda leaf, i=i: leaf[i : i + together], data)
                number = min(together, self.batch - i)
                rows.append(one_per_datum("energy", energy(part), torch.Size([number])).to(self.reference.dtype))
        return torch.cat(rows)

    @property
    def energy_evaluations(self) -> int:
        """Energies evaluated without a gradient so far, for each datum."""
        return self._counts["energies"]

    @property
    def gradient_evaluations(self) -> int:
        """Energies evaluated with their gradient so far, for each datum."""
        return self._counts["gradients"]

    @property
    def network_evaluations(self) -> int:
        """Other functions of restored data so far, for each datum."""
        return self._counts["networks"]

    def count(self, energies: int = 0, gradients: int = 0, networks: int = 0) -> None:
        """Add a stage's own evaluations for each datum: of ``energies``, ``gradients`` and ``networks``."""
        self._counts.update(energies=energies, gradients=gradients, networks=networks)

    def under(self, energy: DataEnergy) -> Posterior:
        """Return the posteriors of another energy for the same data, with counts of their own."""
        problem = InverseProblem(self.action, energy, log_det=self.problem.log_det)
        return self._in_the_same_call(Posterior(problem, self.x, self.max_evaluations, self._on_step))

    def _in_the_same_call(self, other: Posterior) -> Posterior:
        other.deadline, other.notes = self.deadline, self.notes
        return other

    def of_first(self, number: int) -> Posterior:
        """Return the posteriors of the first ``number`` data, whose evaluations are counted here, too."""
        other = copy.copy(self)
        other.x, other.data = pytree.tree_map(lambda leaf: leaf[:number], (self.x, self.data))
        other.reference, other.batch = pytree.tree_leaves(other.x)[0], min(number, self.batch)
        other._loss_weight = None if self._loss_weight is None else self._loss_weight[:number]
        other.unbounded, other.without_prior = self.unbounded[:number], self.without_prior[:number]
        return other

    def in_double(self) -> Posterior:
        """Return the posteriors of the same data and energy in double precision, with own counts."""
        problem = InverseProblem(self.action, self.problem.energy, log_det=self.problem.log_det)
        if next(problem.parameters(), None) is not None:
            problem = copy.deepcopy(problem).double()
        x = pytree.tree_map(lambda leaf: leaf.double(), self.x)
        weight = None if self._loss_weight is None else self._loss_weight.double()
        return self._in_the_same_call(Posterior(problem, x, self.max_evaluations, self._on_step, weight))

    def tempered(self, temperature: float, log_prior: Callable[[Tensor], Tensor] | None = None) -> Posterior:
        r"""Return the posteriors :math:`p_0 e^{-E / T}` of the same data, whose evaluations are counted here, too.

        Args:
            temperature: T, of the energy alone.
            log_prior: :math:`\log p_0` of elements ``[b, m, *element_shape]``, which `torch.func` can differentiate;
                ``None`` for zero.
        """
        other = copy.copy(self)
        other.temperature, other.log_prior = temperature, log_prior
        other.unbounded, other.without_prior = torch.zeros_like(self.unbounded), torch.zeros_like(self.unbounded)
        return other

    def energies(self, g: Tensor, signed: bool = False) -> Float[Tensor, "b *chains"]:
        """Return the energies of elements g, ``[b, *chains]``; infinite where undefined.

        They can be differentiated, any number of times, where gradients are on: during a call of an inverter they are
        not. Stages ask for `gradient`.

        Args:
            g: elements ``[b, *chains, *element_shape]``.
            signed: keep an energy of minus infinity, which else becomes infinite too.

        Raises:
            ShapeError: the elements are not for this batch, or the energy returns no number per datum.
        """
        self._check(g)
        if self.problem.energy is not None:
            self.count(energies=self._chains(g))
        evaluate = self.problem.signed_energies if signed else self.problem
        return in_blocks(evaluate, self.group, g, self.data, self.max_evaluations)

    def differentiable(self, g: Tensor) -> Float[Tensor, "b *chains"]:
        """Return `energies` of elements g that can be differentiated once; NaN, with NaN gradients, where undefined.

        Raises:
            ConfigurationError: there is no energy.
        """
        problem, bound = self.problem, self.max_evaluations
        if problem.energy is None:
            raise ConfigurationError("energy: expected one, for a stage that follows its gradient, got None")
        self._check(g)
        self.count(gradients=self._chains(g))
        if problem.compiled_gradient is not None:
            gradient: Gradient = partial(problem.compiled_gradient, bound=bound)
        elif is_traced():
            return nan_where_infinite(problem(g, self.data), g)
        else:
            eager = partial(value_and_gradient, problem)
            gradient = lambda g, data: in_blocks(eager, self.group, g, data, bound)  # noqa: E731
        return BoundedEnergy.apply(g, gradient, self.data)[0]

    def gradient(
        self, elements: Callable[[Tensor], Tensor], v: Float[Tensor, "b k n"]
    ) -> tuple[Float[Tensor, "b k n"], Float[Tensor, "b k"]]:
        """Return the gradient by v of the energies of ``elements(v)``, and these energies; NaN where undefined.

        Args:
            elements: algebra vectors ``[b, k, dim]`` to elements, each row by itself.
            v: the vectors at which they are evaluated.
        """

        def total(v: Tensor) -> tuple[Tensor, Tensor]:
            energy = self.differentiable(elements(v))
            return energy.sum(), energy

        return grad_and_aux(total, v)

    def curvature(self, g: Tensor) -> Float[Tensor, "b k n n"]:
        """Return Gauss and Newton's curvature of a `LeastSquares` energy by v in ``g exp(v)``, see `CurvedEnergy`.

        Counted with the gradient that is asked for beside it.

        Raises:
            ConfigurationError: the energy has no curvature.
        """
        energy = self.problem.energy
        if not isinstance(energy, CurvedEnergy):
            raise ConfigurationError(
                f"energy: expected a LeastSquares, for a stage that follows its curvature, got {energy!r}"
            )
        group, action = self.group, self.action

        def values(g: Tensor, data: tuple[Any, Any, Any]) -> Tensor:
            shape = group.batch_shape(g)
            x = lift(data[1], len(shape) - 1)
            closed = energy.closed_form_curvature(action, g, x)
            if closed is not None:
                return closed.to(g.dtype)

            def restored(v: Tensor) -> Any:
                return flat_rows(action(group.inverse(group.perturb(g, v)), x), len(shape))

            curvature = energy.curvature(restored, g.new_zeros(*shape, group.dim)).unflatten(0, shape)
            return curvature.to(g.dtype)  # as energies are

        with torch.no_grad():
            return in_blocks(values, group, g, self.data, self.max_evaluations)

    def log_prob_and_energy(
        self, g: Tensor, counted: Bool[Tensor, "b m"] | None = None
    ) -> tuple[Float[Tensor, "b m"], Float[Tensor, "b m"]]:
        r"""Return :math:`\log p_0 - E / T`, unnormalised and minus infinity where undefined, and energies.

        Args:
            g: elements ``[b, m, *element_shape]``.
            counted: mask of the elements that count; the log-density of others is minus infinity.
        """
        energy, prior = self.energies(g, signed=True), self._log_prior(g)
        counts = torch.ones_like(energy, dtype=torch.bool) if counted is None else counted
        self.unbounded = self.unbounded | (counts & (energy == -torch.inf)).any(-1)
        self._note_prior(prior, counts)
        energy = torch.where(torch.isfinite(energy), energy, torch.inf)
        value = prior - energy / self.temperature
        return torch.where(counts & torch.isfinite(value), value, -torch.inf), energy

    def log_prob_and_gradient(self, g: Tensor) -> tuple[Float[Tensor, "b m"], Float[Tensor, "b m n"]]:
        """Return log-densities as of `log_prob_and_energy`, and their derivatives by v in ``g exp(v)``.

        Where the posterior is not defined, the log-density is minus infinity and the derivatives are zero.

        Args:
            g: elements ``[b, m, *element_shape]``.
        """
        v = g.new_zeros(*self.group.batch_shape(g), self.group.dim)
        slope, energy = self.gradient(lambda v: self.group.perturb(g, v), v)
        prior_slope, prior = trivialized_grad_and_value(self.group, self._log_prior, g)
        self._note_prior(prior, torch.ones_like(prior, dtype=torch.bool))
        return where_defined(prior - energy / self.temperature, prior_slope - slope / self.temperature)

    def _log_prior(self, g: Tensor) -> Tensor:
        return g.new_zeros(self.group.batch_shape(g)) if self.log_prior is None else self.log_prior(g)

    def _note_prior(self, prior: Tensor, counts: Tensor) -> None:
        """Record for which data the prior has no density; minus infinity is the density zero."""
        none = prior.isnan() | (prior == torch.inf)
        self.without_prior = self.without_prior | (counts & none).any(-1)

    def kept(self, g: Tensor) -> Float[Tensor, "b *chains"] | None:
        """Return the share of each datum that elements g restore, ``[b, *chains]``; ``None`` without a guard."""
        guard = self.action.guard
        if guard is None:
            return None
        self._check(g)

        def shares(g: Tensor, content: Any) -> Tensor:
            return guard.kept(self.group.inverse(g), lift(content, len(self.group.batch_shape(g)) - 1))

        with torch.no_grad():
            return in_blocks(shares, self.group, g, self.data[2][0], self.max_evaluations)

    def added_energies(self, g: Tensor) -> Float[Tensor, "b *chains"] | None:
        """Return the part of the energies of elements ``g`` that restored data have no say in, ``[b, *chains]``.

        It is the cost of lost content, and what each `WrappedEnergy` adds; ``None`` if there is neither.
        """
        guard, wrapped, energy = self.action.guard, [], self.problem.energy
        while isinstance(energy, WrappedEnergy):
            wrapped.append(energy)
            energy = energy.energy
        if energy is None or (guard is None and not wrapped):
            return None
        self._check(g)

        def added(g: Tensor, data: tuple[Any, Any, Any]) -> Tensor:
            shape, inverse = self.group.batch_shape(g), self.group.inverse(g)
            _, prepared, (content, weight) = (lift(part, len(shape) - 1) for part in data)
            total = g.new_zeros(shape)
            for outer in wrapped:
                total = total + outer.weight * outer.added_energy(self.action, inverse, prepared)
            return total if guard is None else total + weight * guard.departure(inverse, content)

        with torch.no_grad():
            return in_blocks(added, self.group, g, self.data, self.max_evaluations)

    def of_transformed(self, f: Callable[[Any], Tensor], g: Tensor) -> Tensor:
        """Return the values of a function at restored data, ``[b, *chains]``, without gradients.

        Args:
            f: function of a batch of data to ``[batch]``.
            g: elements ``[b, *chains, *element_shape]``, which are undone.

        Raises:
            ShapeError: the function does not return one number per datum.
        """
        self.count(networks=self._chains(g))

        def values(g: Tensor, x: Any) -> Tensor:
            shape = self.group.batch_shape(g)
            y = self.action(self.group.inverse(g), lift(x, len(shape) - 1))
            return one_per_datum("function", f(flat_rows(y, len(shape))), shape)

        with torch.no_grad():
            return in_blocks(values, self.group, g, self.x, self.max_evaluations)

    def normal(self, *shape: int, generator: torch.Generator | None) -> Tensor:
        """Draw standard normal numbers of this ``shape`` by ``generator``, with dtype and device of the data."""
        return normal(shape, self.reference, generator)

    def is_late(self) -> bool:
        """Return whether the time of the call is up: stages return what they have found, see `Inverter`."""
        return seconds_until(self.deadline) == 0.0

    def step(self) -> None:
        """Report that one of the `Stage.steps` of a stage is done."""
        if self._on_step is not None:
            self._on_step()

    def _check(self, g: Tensor) -> None:
        """Raise `ShapeError` unless g are elements ``[b, *chains, *element_shape]`` for the b data."""
        self.group.check_elements(g)
        shape = self.group.batch_shape(g)
        if len(shape) < 1 or shape[0] != self.batch:
            raise ShapeError(f"g: expected elements for a batch of {self.batch} data, got batch shape {list(shape)}")

    def _chains(self, g: Tensor) -> int:
        return self.group.batch_shape(g)[1:].numel()


def where_defined(value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-densities ``[b, m]`` and slopes ``[b, m, n]``; minus infinity and zero where they are not finite.

    Slopes whose fourth powers overflow count as not finite: they have no covariance in their dtype.
    """
    defined = torch.isfinite(value) & torch.isfinite(slope.square().sum(-1).square())
    return torch.where(defined, value, -torch.inf), torch.where(defined.unsqueeze(-1), slope, 0.0)
