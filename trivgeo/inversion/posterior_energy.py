"""The energy of the transformation posterior on the group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._numerics import is_traced
from trivgeo._text import Described
from trivgeo._torch import pytree
from trivgeo.checks import check_count, with_tensors
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.groups import Action
from trivgeo.groups.action import ContentGuard
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.rows import flat_rows, in_blocks, lift, one_per_datum

__all__ = [
    "Bound",
    "Evaluation",
    "PosteriorEnergy",
    "automatic_bound",
    "check_action",
    "check_batch",
    "check_bound",
]

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
