"""Energies of data: the contract, and functions as energies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._text import Described
from trivgeo.checks import check_arguments, checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action


@checked
class DataEnergy(Described, ABC):
    """An energy of data, batch of data to ``[batch]``; low where the data look like clean ones.

    An energy that reads only part of its data may say so, to spare the action on the rest. One that holds networks is
    a `torch.nn.Module` too, so that it moves with the inverter that it is given to.
    """

    @abstractmethod
    def __call__(self, x: Any) -> Float[Tensor, " batch"]:
        """Return one energy for each datum, ``[batch]``."""

    def prepare(self, action: Action, x: Any) -> Any:
        """Return smaller data with the same energy after every transformation, by default ``x``; once for a batch.

        Args:
            action: action of the transformations.
            x: data, one batch dimension.
        """
        return x

    def select(self, action: Action, g: Tensor, x: Any) -> Any:
        """Return a smaller datum with the same energy and gradient after ``g``; no gradients flow here.

        Args:
            action: the action that follows.
            g: elements ``[b, *chains, *element_shape]``.
            x: data that `prepare` returned, with dimensions of size one for the chains.
        """
        return x

    def transformation_energy(self, action: Action, g: Tensor, x: Any) -> Tensor | None:
        """Return energies of the transformation, ``[b, *chains]``, to be added; ``None``, the default, for zero.

        Args:
            action: action of the transformations.
            g: elements ``[b, *chains, *element_shape]``.
            x: data, see `select`.
        """
        return None


@checked
class CurvedEnergy(DataEnergy):
    """A `DataEnergy` that knows a positive semidefinite curvature, for `LevenbergMarquardt`."""

    @abstractmethod
    def curvature(self, x: Callable[[Tensor], Any], v: Float[Tensor, "*batch n"]) -> Float[Tensor, "rows n n"]:
        """Return the curvature of ``self(x(v))`` by v, where x makes a batch of data from vectors, each row by itself.

        Args:
            x: vectors ``[*batch, n]`` to data whose one batch dimension holds the rows of that batch.
            v: the vectors at which the curvature is taken.
        """

    def closed_form_curvature(self, action: Action, g: Tensor, x: Any) -> Float[Tensor, "b *chains n n"] | None:
        """Return the curvature of the energy of restored data by v in ``g exp(v)``; by default ``None``: `curvature`.

        Args:
            action: action of the transformations.
            g: elements to be undone, ``[b, *chains, *element_shape]``.
            x: data, see `DataEnergy.select`.
        """
        return None


@checked
class CurvedResiduals(ABC):
    """Residuals whose Gauss-Newton curvature after some actions is known in closed form."""

    @abstractmethod
    def __call__(self, x: Any) -> Tensor:
        """Return the residuals of a batch x of data, ``[batch, q]`` or ``[batch, q, n]``."""

    @abstractmethod
    def curvature(
        self, action: Action, g: Tensor, x: Any, weights: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "b *chains n n"] | None:
        """Return ``J^T W J`` with J the Jacobian of the residuals of restored data by v in ``g exp(v)``.

        Args:
            weights: squares of residuals ``[rows, q]`` to W.

        Returns:
            Matrices, NaN where the residuals are; ``None`` for an action of which no closed form is known.
        """


@checked
class FunctionEnergy(nn.Module, DataEnergy):
    """An energy given as a function of a batch of data, or as a network."""

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Tensor:
        """Return the value of the function of data ``x``."""
        return self.function(x)


def as_energy(energy: DataEnergy | Callable[[Any], Tensor]) -> DataEnergy:
    """Return ``energy`` as a `DataEnergy`.

    Args:
        energy: a `DataEnergy`, or a function of a batch of data to energies ``[batch]``.

    Raises:
        ConfigurationError: any other object.
    """
    if isinstance(energy, DataEnergy):
        return energy
    if not callable(energy):
        raise ConfigurationError(f"energy: expected a function from a batch of data to [batch], got {energy!r}")
    check_arguments("energy", energy, "x")
    return FunctionEnergy(energy)
