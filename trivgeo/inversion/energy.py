"""Energies: of data, and the posterior energy on the group that they give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils import _pytree as pytree

from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.groups import Action

__all__ = ["DataEnergy", "FunctionEnergy", "PosteriorEnergy"]


class DataEnergy(ABC):
    """An energy of data, batch of data to ``[batch]``; low where the data look like clean ones.

    An energy that reads only part of its data may say so, to spare the action on the rest.
    """

    @abstractmethod
    def __call__(self, x: Any) -> Float[Tensor, " batch"]:
        """One energy for each datum."""

    def prepare(self, action: Action, x: Any) -> Any:
        """A smaller datum with the same energy after every transformation; computed once."""
        return x

    def select(self, action: Action, g: Tensor, x: Any) -> Any:
        """A smaller datum with the same energy and gradient after the transformation ``g``; no gradients flow here.

        Args:
            action: the action that follows.
            g: elements ``[b, *chains, *element_shape]``.
            x: what `prepare` returned, with dimensions of size one for the chains.
        """
        return x

    def of_transformation(self, action: Action, g: Tensor, x: Any) -> Tensor | None:
        """An energy of the transformation ``g`` that x undergoes, ``[b, *chains]``, added to that of ``g.x``.

        Args:
            action: the action.
            g: elements ``[b, *chains, *element_shape]``.
            x: what `prepare` returned, with dimensions of size one for the chains.
        """
        return None


class FunctionEnergy(DataEnergy):
    """An energy given as a function of a batch of data."""

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        self._function = function

    def __call__(self, x: Any) -> Tensor:
        """The given function."""
        return self._function(x)


class PosteriorEnergy:
    r"""The energy of the transformation posterior.

    .. math:: E(g) = E_x(g^{-1} \tilde x) - \log|\det J_{g^{-1}}(\tilde x)|

    (Kim et al. 2026, eq. 3.) Infinite where :math:`g^{-1} \tilde x` is not defined.

    Args:
        action: the action on data.
        energy: a `DataEnergy`, or a function from a batch of data to ``[batch]``.
        x: the transformed data, with one batch dimension.
        log_det: keep the log-determinant (the published experiments drop it).

    Raises:
        ConfigurationError: the action or the energy is not one.
        ShapeError: the data do not have exactly one batch dimension, or do not fit the action.
        NonFiniteError: the data hold NaN or infinity.
    """

    def __init__(
        self, action: Action, energy: DataEnergy | Callable[[Any], Tensor], x: Any, *, log_det: bool = False
    ) -> None:
        self.action = check_action(action)
        self.energy = as_energy(energy)
        self.batch = check_batch(action, x)
        self.log_det = log_det
        self._original = x
        self._x = self.energy.prepare(action, x)

    def __call__(self, g: Tensor) -> Float[Tensor, b * chains]:
        """Energies of elements ``[b, *chains, *element_shape]``."""
        group = self.action.group
        shape = group.batch_shape(g)
        if len(shape) < 1 or shape[0] != self.batch:
            raise ShapeError(f"g: expected elements for a batch of {self.batch} data, got batch shape {list(shape)}")
        inverse = group.inverse(g)
        lifted = self._lift(self._x, len(shape) - 1)
        of_transformation = self.energy.of_transformation(self.action, inverse, lifted)
        with torch.no_grad():
            lifted = self.energy.select(self.action, inverse, lifted)
        y = self.action(inverse, lifted)
        flat = pytree.tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(shape) :]), y)
        energy = self.energy(flat)
        if energy.shape != (shape.numel(),):
            raise ShapeError(f"energy: expected one number per datum [{shape.numel()}], got {list(energy.shape)}")
        energy = energy.reshape(shape)
        if of_transformation is not None:
            energy = energy + of_transformation
        if self.log_det:
            whole = self._lift(self._original, len(shape) - 1)
            energy = energy - self.action.log_abs_det_jacobian(inverse, whole)
        return torch.where(torch.isfinite(energy), energy, torch.inf)

    @staticmethod
    def _lift(x: Any, chains: int) -> Any:
        """Dimensions of size one for the chains, after the batch."""
        return pytree.tree_map(lambda leaf: leaf.reshape(leaf.shape[0], *(1,) * chains, *leaf.shape[1:]), x)


def as_energy(energy: DataEnergy | Callable[[Any], Tensor]) -> DataEnergy:
    """A `DataEnergy` from one or from a function."""
    if isinstance(energy, DataEnergy):
        return energy
    if not callable(energy):
        raise ConfigurationError(f"energy: expected a function from a batch of data to [batch], got {energy!r}")
    return FunctionEnergy(energy)


def check_action(action: Action, name: str = "action") -> Action:
    """Return ``action`` if it is one, else raise `ConfigurationError`."""
    if not isinstance(action, Action):
        raise ConfigurationError(f"{name}: expected an Action (such as group.action()), got {type(action).__name__}")
    return action


def check_batch(action: Action, x: Any) -> int:
    """The batch size of data that fit the action, are finite, and have one batch dimension."""
    action.check_data(x, "x_tilde")
    leaves = pytree.tree_leaves(x)
    for leaf in leaves:
        if not leaf.is_floating_point():
            raise ConfigurationError(f"x_tilde: expected floating-point data, got {leaf.dtype}")
        if not bool(torch.isfinite(leaf).all()):
            bad = int((~torch.isfinite(leaf)).sum())
            raise NonFiniteError(f"x_tilde: expected finite data, got {bad} NaN or infinite values")
    batch = action.batch_shape(x)
    if len(batch) != 1 or batch[0] < 1:
        raise ShapeError(f"x_tilde: expected data with one batch dimension, got batch shape {list(batch)}")
    return batch[0]
