"""The transformation posterior, and what a stage may ask of it for given data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._autocast import grad_and_aux
from trivgeo._compile import compile_and_compare, environment
from trivgeo._numerics import is_traced
from trivgeo._random import normal
from trivgeo._text import Described
from trivgeo._torch import pytree
from trivgeo.checks import check_count, with_tensors
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.groups import Action, LieGroup
from trivgeo.groups.action import ContentGuard
from trivgeo.inversion.energies.base import CurvedEnergy, DataEnergy, as_energy
from trivgeo.inversion.rows import flat_rows, in_blocks, lift, one_per_datum, rows_like

__all__ = [
    "Bound",
    "BoundedEnergy",
    "CompiledGradient",
    "ConditionalPosterior",
    "Evaluate",
    "Evaluation",
    "Gradient",
    "Posterior",
    "PosteriorEnergy",
    "automatic_bound",
    "check_action",
    "check_batch",
    "check_bound",
    "nan_where_infinite",
    "value_and_gradient",
]


@runtime_checkable
class Evaluate(Protocol):
    """Elements ``[b, *chains, *element_shape]`` and b data to energies ``[b, *chains]``."""

    action: Action
    log_det: bool

    def __call__(self, g: Tensor, data: tuple[Any, Any, Any], /) -> Tensor:
        """The energies."""


@runtime_checkable
class Gradient(Protocol):
    """Elements and data as of `Evaluate` to energies and gradients, see `value_and_gradient`."""

    def __call__(self, g: Tensor, data: tuple[Any, Any, Any], /) -> Tensor:
        """Energies and gradients."""


def value_and_gradient(evaluate: Evaluate, g: Tensor, data: tuple[Any, Any, Any]) -> Tensor:
    """Return energies and their gradients by the entries of elements, side by side.

    Args:
        evaluate: function of elements and data to energies ``[b, *chains]``.
        g: elements ``[b, *chains, *element_shape]``.
        data: rows of `PosteriorEnergy.data`.

    Returns:
        ``[b, *chains, 1 + entries]``; NaN where an energy is not finite.
    """

    def total(g: Tensor) -> tuple[Tensor, Tensor]:
        values = nan_where_infinite(evaluate(g, data), g)
        return values.sum(), values

    gradient, values = grad_and_aux(total, g)
    return torch.cat([values.unsqueeze(-1), gradient.flatten(values.ndim)], -1)


class BoundedEnergy(torch.autograd.Function):
    """Energies whose gradient is taken on the way, so that nothing else of their evaluation is in memory."""

    @staticmethod
    def forward(g: Tensor, gradient: Gradient, data: tuple[Any, Any, Any]) -> tuple[Tensor, Tensor]:
        """Return energies ``[b, *chains]`` of elements and their gradients by the entries of the elements.

        Args:
            g: elements ``[b, *chains, *element_shape]``; the gradients have the same shape.
            gradient: function (g, data) that returns both in one tensor, the energies first.
        """
        both = gradient(g, data)
        return both[..., 0], both[..., 1:].reshape(g.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep the gradients, the second entry of ``output``, in the autograd context ``ctx``; ``inputs`` are not
        kept.
        """
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, of_energy: Tensor, of_gradient: Tensor) -> Any:
        """Return the gradients that ``ctx`` holds, times ``of_energy``; no gradient flows to ``gradient`` and
        ``data``.

        Args:
            of_energy: derivatives by the energies.
            of_gradient: derivatives by the gradients, which are ignored: there are no second derivatives.
        """
        (gradient,) = ctx.saved_tensors
        return rows_like(of_energy, gradient) * gradient, None, None


def nan_where_infinite(energy: Tensor, g: Tensor) -> Tensor:
    """Return the energies, NaN with NaN gradients where they are not finite.

    A constant infinity would have the gradient zero, as if nothing were wrong.

    Args:
        energy: energies ``[b, *chains]``.
        g: elements of which they are functions, ``[b, *chains, *element_shape]``.
    """
    undefined = torch.where(torch.isfinite(energy), 0.0, torch.nan).to(g.dtype)
    return energy + (rows_like(undefined, g) * g).flatten(energy.ndim).sum(-1)


_MAX_ROWS = 8192
"""Number of pairs of an element and a datum at once, where none is asked for."""
_MIN_ROWS = 64
"""Number of pairs below which nothing is compiled."""
_MIN_SHARE = 0.25
"""Share of the rows of a graph below which evaluation is eager: a graph computes all of its rows."""
_ENERGY_TOLERANCE, _GRADIENT_TOLERANCE = 0.02, 0.3
"""Largest relative distance, in L2, of compiled from eager results. Networks in half precision are that far apart."""


class CompiledGradient(Described):
    """Evaluates energies and their gradients by compiled code, a fixed number of elements with their data at once.

    Code is compiled at the first call, and again for a larger block, another dtype or device. Its first result is
    compared with the eager one: where it differs, and where compilation fails, a warning says so, and evaluation stays
    eager.

    Args:
        evaluate: elements and data to energies, see `trivgeo.inversion.posterior.Evaluation`.

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
        """Energies with their gradients of elements ``[b, *chains, *element_shape]``, see `value_and_gradient`.

        Args:
            g: the elements.
            data: b data.
            bound: the largest number of elements at once; ``None`` for some thousands.
        """
        group = self.evaluate.action.group
        shape = group.batch_shape(g)
        number, most = shape.numel(), bound or _MAX_ROWS
        if min(most, number) > 2 * self._rows or self._rows > most:
            self._rows = min(most, number)
        few = number < max(_MIN_ROWS, _MIN_SHARE * self._rows)
        if self.reason or few or self._rows < _MIN_ROWS or is_traced():
            return in_blocks(self._eager, group, g, data, bound)
        found = self._blocks(g.reshape(-1, *group.element_shape), data, shape[1:].numel())
        return in_blocks(self._eager, group, g, data, bound) if found is None else found.unflatten(0, shape)

    def _eager(self, g: Tensor, data: tuple[Any, Any, Any]) -> Tensor:
        return value_and_gradient(self.evaluate, g, data)

    @torch.no_grad()
    def _blocks(self, elements: Tensor, data: tuple[Any, Any, Any], chains: int) -> Tensor | None:
        """Results of compiled code for all elements, each datum with so many of them; none where it fails."""
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
        """Compiled code for blocks of this size, none if evaluation stays eager."""
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
    """Whether energies and gradients are near those of eager evaluation, and defined for the same rows."""
    defined = torch.isfinite(eager).all(-1)
    if not torch.equal(defined, torch.isfinite(found).all(-1)):
        return False
    found, eager = (torch.where(rows_like(defined, x), x, 0.0).double() for x in (found, eager))
    energy, gradient = ((found - eager)[..., part].norm() for part in (0, slice(1, None)))
    return bool(
        (energy <= _ENERGY_TOLERANCE * eager[..., 0].norm()) & (gradient <= _GRADIENT_TOLERANCE * eager[..., 1:].norm())
    )


Bound = int | Literal["auto"] | None
"""The largest number of energies at once; ``"auto"`` for one by `automatic_bound`, ``None`` for no bound."""

_CPU_BYTES = 8 * 2**20
"""Bytes of data that are evaluated at once on a CPU: what networks make of more of them leaves its caches."""
_DEVICE_SHARE, _BYTES_FOR_EACH = 0.5, 200
"""Share of the free memory of a GPU that energies may take, and bytes that networks with gradients take for one."""
_LOSS = 3.0
"""Energy of one unit of what a guard measures, in units of that of an empty datum."""


class Evaluation:
    """Function of elements and data to energies, the same for all data.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, see `PosteriorEnergy`.
        log_det: keep the action's log-determinant.
    """

    def __init__(self, action: Action, energy: DataEnergy | None, log_det: bool) -> None:
        self.action, self.energy, self.log_det = action, energy, log_det
        self.guard = action.guard

    def __call__(self, g: Tensor, data: tuple[Any, Any, Any]) -> Float[Tensor, "b *chains"]:
        """Energies of elements for some rows of the data, unchecked.

        Args:
            g: elements ``[b, *chains, *element_shape]``.
            data: rows of `PosteriorEnergy.data`, b of them.
        """
        energy = self.signed(g, data)
        return torch.where(torch.isfinite(energy), energy, torch.inf)

    def signed(self, g: Tensor, data: tuple[Any, Any, Any]) -> Float[Tensor, "b *chains"]:
        """Energies like those of a call, in which minus infinity stays.

        Args:
            g: elements ``[b, *chains, *element_shape]``.
            data: some rows, see `PosteriorEnergy.data`.
        """
        shape = self.action.group.batch_shape(g)
        inverse = self.action.group.inverse(g)
        original, prepared, (content, weight) = (lift(part, len(shape) - 1) for part in data)
        if self.energy is None:
            valid = self.action.is_valid(inverse, original)
            valid = valid.unsqueeze(-1).flatten(len(shape)).all(-1)
            energy = torch.where(valid, g.new_zeros(()), torch.inf)
        else:
            energy = self._of_data(self.energy, inverse, prepared)
            if self.guard is not None:
                energy = energy + weight * self.guard.departure(inverse, content)
        if self.log_det:
            energy = energy - self.action.log_abs_det_jacobian(inverse, original)
        return torch.where(energy.isnan(), torch.inf, energy)

    def _of_data(self, of: DataEnergy, inverse: Tensor, x: Any) -> Tensor:
        shape = self.action.group.batch_shape(inverse)
        transformation_energy = of.transformation_energy(self.action, inverse, x)
        with torch.no_grad():
            x = of.select(self.action, inverse, x)
        y = flat_rows(self.action(inverse, x), len(shape))
        energy = one_per_datum("energy", of(y), shape)
        _check_gradient(y, energy)
        energy = energy.to(inverse.dtype)  # one that computes in a wider dtype, or counts
        return energy if transformation_energy is None else energy + transformation_energy


class PosteriorEnergy(Described):
    r"""The energy of the transformation posterior of a batch of data.

    .. math:: E(g) = E_x(g^{-1} \tilde x) - \log|\det J_{g^{-1}}(\tilde x)|

    (Kim et al. 2026, eq. 3.) Infinite where :math:`g^{-1} \tilde x` is not defined.

    Where the action has a `trivgeo.groups.action.ContentGuard`, what :math:`g^{-1} \tilde x` no longer shows of
    :math:`\tilde x` costs three times the energy of an empty datum, in absolute value and at least one, for each unit
    of the guard. It is zero where all is shown.

    Args:
        action: the action on data.
        energy: a `DataEnergy`, or a function from a batch of data to ``[batch]``; ``None`` for zero wherever the
            inverse transformation is defined.
        x: transformed data, one batch dimension.
        log_det: keep the log-determinant (the published experiments drop it).
        max_evaluations: the largest number of energies of empty data at once, see `Inverter`.
        loss_weight: energy of one unit of loss, ``[b]``, where it is known from the same data and energy; by default it
            is evaluated here.

    Attributes:
        x: the data as tensors.
        prepared: what the energy reads of them, see `DataEnergy.prepare`.
        batch: their number b.
        content: what of the data must not be lost; ``()`` where nothing can be.
        loss_weight: energy of one unit of what a guard measures, ``[b]``; ``()`` without one.
        evaluate: elements and rows of `data` to energies, unchecked, see `Evaluation`.
        max_evaluations: the bound as a number, or ``None``.

    Raises:
        ConfigurationError: the action or the energy is not one.
        ShapeError: the data do not have exactly one batch dimension, or do not fit the action.
        NonFiniteError: the data hold NaN or infinity.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor] | None,
        x: Any,
        *,
        log_det: bool = False,
        max_evaluations: Bound = None,
        loss_weight: Float[Tensor, " b"] | None = None,
    ) -> None:
        self.action = check_action(action)
        self.energy = None if energy is None else as_energy(energy)
        self.x, self.batch = check_batch(action, x, 0)
        self.log_det = log_det
        self.prepared = self.x if self.energy is None else self.energy.prepare(action, self.x)
        bound = check_bound(max_evaluations)
        if bound == "auto":
            bound = automatic_bound(self.prepared)
        self.max_evaluations = bound
        self.evaluate = Evaluation(self.action, self.energy, log_det)
        self.guard = self.evaluate.guard
        self.content: Any = () if self.guard is None else self.guard.content(self.x)
        self.loss_weight: Any = ()
        if self.guard is not None and self.energy is not None:
            self.loss_weight = self._weight(self.guard, self.max_evaluations) if loss_weight is None else loss_weight

    def kept(self, g: Tensor) -> Float[Tensor, "b *chains"] | None:
        """Return the share of each datum that elements restore, ``[b, *chains]``; ``None`` without a guard.

        Args:
            g: elements ``[b, *chains, *element_shape]``.
        """
        if self.guard is None:
            return None
        self.check(g)
        chains = len(self.action.group.batch_shape(g)) - 1
        with torch.no_grad():
            return self.guard.kept(self.action.group.inverse(g), lift(self.content, chains))

    def _weight(self, guard: ContentGuard, bound: int | None) -> Float[Tensor, " b"]:
        """The energy of one unit of loss, for each datum."""
        assert self.energy is not None
        empty = self.energy.prepare(self.action, guard.empty(self.x))
        together = max(1, self.batch) if bound is None else bound
        rows = []
        with torch.no_grad():
            for i in range(0, self.batch, together):
                part = pytree.tree_map(lambda leaf, i=i: leaf[i : i + together], empty)
                number = min(together, self.batch - i)
                rows.append(one_per_datum("energy", self.energy(part), torch.Size([number])))
        energy = torch.cat(rows) if rows else pytree.tree_leaves(self.x)[0].new_empty(0)
        size = energy.abs().to(pytree.tree_leaves(self.x)[0].dtype)
        size = torch.where(torch.isfinite(size), size, 1.0).clamp(min=1.0)
        return _LOSS * size

    def __call__(self, g: Tensor) -> Float[Tensor, "b *chains"]:
        """Energies of elements ``[b, *chains, *element_shape]``.

        Raises:
            ShapeError: the elements are not for this batch, or the energy returns no number per datum.
        """
        self.check(g)
        return self.evaluate(g, self.data)

    def in_blocks(self, g: Tensor, bound: int | None, signed: bool = False) -> Float[Tensor, "b *chains"]:
        """Return the posterior energies of elements, ``[b, *chains]``, computed in blocks to bound memory.

        Args:
            g: elements ``[b, *chains, *element_shape]``.
            bound: largest number of elements evaluated at once; ``None`` for no bound.
            signed: keep minus infinity, see `Evaluation.signed`.
        """
        check_bound(bound)
        self.check(g)
        evaluate = self.evaluate.signed if signed else self.evaluate
        return in_blocks(evaluate, self.action.group, g, self.data, bound)

    @property
    def data(self) -> tuple[Any, Any, Any]:
        """The data as they are, as the energy reads them, and what may be lost: an `Evaluation` takes the same rows."""
        return self.x, self.prepared, (self.content, self.loss_weight)

    def check(self, g: Tensor) -> None:
        """Check that g has the shape of elements for the data, ``[b, *chains, *element_shape]``.

        Raises:
            ShapeError: another shape, or another first dimension.
        """
        self.action.group.check_elements(g)
        shape = self.action.group.batch_shape(g)
        if len(shape) < 1 or shape[0] != self.batch:
            raise ShapeError(f"g: expected elements for a batch of {self.batch} data, got batch shape {list(shape)}")


def check_action(action: Action, name: str = "action") -> Action:
    """Return ``action``; the message of the error calls it ``name``.

    Raises:
        ConfigurationError: ``action`` is no `Action`.
    """
    if not isinstance(action, Action):
        raise ConfigurationError(f"{name}: expected an Action (such as group.action()), got {type(action).__name__}")
    return action


def _check_gradient(x: Any, energy: Tensor) -> None:
    """Raise if the data take part in a gradient and their energy does not: a search would follow zeros.

    Raises:
        ConfigurationError: so it is.
    """
    wanted = any(leaf.requires_grad for leaf in pytree.tree_leaves(x))
    if wanted and not energy.requires_grad:
        kind = "detached or computed under no_grad" if energy.is_floating_point() else f"of {energy.dtype}"
        raise ConfigurationError(f"energy: expected one with a gradient for its data, got one without: {kind}")


def check_batch(action: Action, x: Any, minimum: int = 1) -> tuple[Any, int]:
    """Return data as tensors, and their number.

    Args:
        action: the data must fit it.
        x: data with one batch dimension.
        minimum: smallest number of data.

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


def check_bound(max_evaluations: Bound) -> Bound:
    """Return ``max_evaluations`` if it is ``"auto"``, ``None`` or at least one.

    Raises:
        ConfigurationError: any other value.
    """
    if max_evaluations is None or (isinstance(max_evaluations, str) and max_evaluations == "auto"):
        return max_evaluations
    return check_count("max_evaluations", max_evaluations)


def automatic_bound(x: Any) -> int | None:
    """The number of energies that are evaluated at once, from the size of a datum and the memory of its device.

    On a CPU as many data as fit into 8 MiB, which keeps what networks make of them in its caches. On a CUDA device half
    of the free memory is for energies, each of which may take 200 times its datum. ``None`` while a program is traced.

    Args:
        x: data with one batch dimension, as the energy reads them.
    """
    if is_traced():
        return None
    leaves = [leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)]
    size = sum(leaf.shape[1:].numel() * leaf.element_size() for leaf in leaves)
    if size == 0:
        return None
    if leaves[0].is_cuda:
        free, _ = torch.cuda.mem_get_info(leaves[0].device)
        return max(1, int(_DEVICE_SHARE * free / (_BYTES_FOR_EACH * size)))
    return max(1, _CPU_BYTES // size)


class Posterior(nn.Module):
    """Posteriors of transformations for an action and an energy, for any data.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, see `PosteriorEnergy`.
        log_det: keep the action's log-determinant.
        compiled: evaluate energies and gradients by a `CompiledGradient`.

    Attributes:
        gradient: that evaluates these, ``None`` for eager evaluation.
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
        wanted = compiled and self.energy is not None
        self.gradient = CompiledGradient(Evaluation(self.action, self.energy, log_det)) if wanted else None

    @property
    def group(self) -> LieGroup:
        """The group of the action."""
        return self.action.group

    def given(
        self, x: Any, *, max_evaluations: Bound = None, on_step: Callable[[], None] | None = None
    ) -> ConditionalPosterior:
        """Return the posteriors of a batch of data.

        Args:
            x: data, one batch dimension.
            max_evaluations: most energies evaluated at once; None for no bound.
            on_step: called after each step of a stage, for progress bars.
        """
        return ConditionalPosterior(self, x, max_evaluations, on_step)


class ConditionalPosterior(Described):
    """The posteriors of a batch of data, as a `Stage` receives them; counts every evaluation of the energy.

    Args:
        posterior: of which.
        x: transformed data, one batch dimension.
        max_evaluations: largest number of energies at once, see `Inverter`.
        on_step: called by `step`.
        loss_weight: see `PosteriorEnergy`.

    Attributes:
        action: the action on data.
        group: its group.
        x: the data.
        batch: their number b.
        reference: a tensor in the dtype and on the device of the data.
        max_evaluations: the bound as a number, or ``None``.
        energy_evaluations: energies evaluated without a gradient so far, for each datum.
        gradient_evaluations: energies evaluated with their gradient, for each datum.
        network_evaluations: other functions of restored data, for each datum.
    """

    def __init__(
        self,
        posterior: Posterior,
        x: Any,
        max_evaluations: Bound = None,
        on_step: Callable[[], None] | None = None,
        loss_weight: Float[Tensor, " b"] | None = None,
    ) -> None:
        self._energy = PosteriorEnergy(
            posterior.action,
            posterior.energy,
            x,
            log_det=posterior.log_det,
            max_evaluations=max_evaluations,
            loss_weight=loss_weight,
        )
        self._gradient = posterior.gradient
        self._on_step = on_step
        self.action = posterior.action
        self.group = posterior.group
        self.x = self._energy.x
        self.batch = self._energy.batch
        self.reference: Tensor = pytree.tree_leaves(self.x)[0]
        self.max_evaluations = self._energy.max_evaluations
        weighted = self._energy.guard is not None and self._energy.energy is not None
        self.energy_evaluations = int(weighted and loss_weight is None)  # of a datum that shows nothing
        self.gradient_evaluations = 0
        self.network_evaluations = 0

    def under(self, energy: DataEnergy) -> ConditionalPosterior:
        """Return the posteriors of another energy for the same data, with counts of their own."""
        posterior = Posterior(self.action, energy, log_det=self._energy.log_det)
        return ConditionalPosterior(posterior, self.x, self.max_evaluations, self._on_step)

    def in_double(self) -> ConditionalPosterior:
        """Return the posteriors of the same data and energy in double precision, with own counts."""
        posterior = Posterior(self.action, self._energy.energy, log_det=self._energy.log_det)
        if next(posterior.parameters(), None) is not None:
            posterior = copy.deepcopy(posterior).double()
        x = pytree.tree_map(lambda leaf: leaf.double(), self.x)
        weight = self._energy.loss_weight
        known = weight.double() if isinstance(weight, Tensor) else None
        return ConditionalPosterior(posterior, x, self.max_evaluations, self._on_step, known)

    def energies(self, g: Tensor, signed: bool = False) -> Float[Tensor, "b *chains"]:
        """Return the energies of elements g, ``[b, *chains]``; infinite where undefined.

        Args:
            g: elements ``[b, *chains, *element_shape]``.
            signed: keep an energy of minus infinity, which else becomes infinite too.
        """
        if self._energy.energy is not None:
            self.energy_evaluations += self._chains(g)
        with torch.no_grad():
            return self._energy.in_blocks(g, self.max_evaluations, signed)

    def kept(self, g: Tensor) -> Float[Tensor, "b *chains"] | None:
        """Return the share of each datum that elements g restore, see `PosteriorEnergy.kept`."""
        return self._energy.kept(g)

    def differentiable(self, g: Tensor) -> Float[Tensor, "b *chains"]:
        """Return `energies` of elements g that can be differentiated once; NaN, with NaN gradients, where undefined.

        Raises:
            ConfigurationError: there is no energy.
        """
        if self._energy.energy is None:
            raise ConfigurationError("energy: expected one, for a stage that follows its gradient, got None")
        self.gradient_evaluations += self._chains(g)
        bound, gradient = self.max_evaluations, self._gradient
        if gradient is None and (bound is None or self.group.batch_shape(g).numel() <= bound):
            return nan_where_infinite(self._energy(g), g)
        self._energy.check(g)
        if gradient is not None:
            of_blocks: Gradient = partial(gradient, bound=bound)
        else:
            eager = partial(value_and_gradient, self._energy.evaluate)
            of_blocks = lambda g, data: in_blocks(eager, self.group, g, data, bound)  # noqa: E731
        return BoundedEnergy.apply(g, of_blocks, self._energy.data)[0]

    def gradient(
        self, elements: Callable[[Tensor], Tensor], v: Float[Tensor, "b k n"]
    ) -> tuple[Float[Tensor, "b k n"], Float[Tensor, "b k"]]:
        """The gradient by v of the energies of ``elements(v)``, and these; NaN where undefined.

        Args:
            elements: algebra vectors ``[b, k, dim]`` to elements, each row by itself.
            v: where.
        """

        def total(v: Tensor) -> tuple[Tensor, Tensor]:
            energy = self.differentiable(elements(v))
            return energy.sum(), energy

        return grad_and_aux(total, v)

    def curvature(self, g: Tensor) -> Float[Tensor, "b k n n"]:
        """Gauss and Newton's curvature of a `LeastSquares` energy by v in ``g exp(v)`` at v = 0, see `CurvedEnergy`.

        Counted with the gradient that is asked for beside it.

        Raises:
            ConfigurationError: the energy has none.
        """
        energy = self._energy.energy
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
            return curvature.to(g.dtype)  # as of energies

        with torch.no_grad():
            return in_blocks(values, group, g, self._energy.data, self.max_evaluations)

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

    def count(self, energies: int = 0, gradients: int = 0, networks: int = 0) -> None:
        """Add evaluations for each datum that a stage makes itself: of ``energies``, ``gradients`` and ``networks``."""
        self.energy_evaluations += energies
        self.gradient_evaluations += gradients
        self.network_evaluations += networks

    def normal(self, *shape: int, generator: torch.Generator | None) -> Tensor:
        """Draw standard normal numbers of this ``shape`` by ``generator``, with dtype and device of the data."""
        return normal(shape, self.reference, generator)

    def step(self) -> None:
        """Say that one of the `Stage.steps` of a stage is done."""
        if self._on_step is not None:
            self._on_step()

    def _chains(self, g: Tensor) -> int:
        return self.group.batch_shape(g)[1:].numel()
