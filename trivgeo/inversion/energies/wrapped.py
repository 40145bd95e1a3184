"""Energies of data with an energy of the transformation added."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.actions import ImageWarp
from trivgeo.actions.image import half_sides
from trivgeo.checks import check_positive, checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action
from trivgeo.groups.basis import Basis
from trivgeo.inversion.energies.base import DataEnergy, as_energy


@checked
class WrappedEnergy(nn.Module, DataEnergy):
    """An energy of data, plus one of the transformation that a subclass adds to that of the inner energy.

    Args:
        energy: a `DataEnergy`, or a function or module from a batch of data to energies ``[batch]``.
        weight: factor of the added energy.

    Raises:
        ConfigurationError: the weight is not positive and finite, or the energy is not callable.
    """

    def __init__(self, energy: DataEnergy | Callable[[Any], Tensor], weight: float) -> None:
        super().__init__()
        self.energy = as_energy(energy)
        self.weight = check_positive("weight", weight)

    @abstractmethod
    def added_energy(self, action: Action, g: Tensor, x: Any) -> Float[Tensor, "*out"]:
        """Return what the ``action`` of g on x adds, before its weight; see `DataEnergy.transformation_energy`."""

    def forward(self, x: Any) -> Float[Tensor, " b"]:
        """Return the energies ``[b]`` of data ``x``, without what is added."""
        return self.energy(x)

    def prepare(self, action: Action, x: Any) -> Any:
        return self.energy.prepare(action, x)

    def select(self, action: Action, g: Tensor, x: Any) -> Any:
        return self.energy.select(action, g, x)

    def transformation_energy(self, action: Action, g: Tensor, x: Any) -> Float[Tensor, "*out"]:
        added = self.weight * self.added_energy(action, g, x)
        inner = self.energy.transformation_energy(action, g, x)
        return added if inner is None else added + inner


@checked
class FramedEnergy(WrappedEnergy):
    r"""An energy of images plus the squared amount by which the sampling grid leaves the frame.

    .. math:: E(y) + \frac{w}{|P|} \sum_{p \in P} \sum_i \max(|q_i(p)| - s_i, 0)^2

    with P the pixels of the warped image y, q(p) where each is read in the given one, and s_i half the sides of its
    frame, one for the longer. It penalises transformations that shrink the image to nothing or push it out of its
    frame, which an energy that reads the warped image alone may prefer.

    Args:
        energy: an energy of images ``[b, c, h, w]``, or volumes, for an `ImageWarp`.
        weight: w.

    Raises:
        ConfigurationError: the weight is not positive and finite.
    """

    def __init__(self, energy: DataEnergy | Callable[[Any], Tensor], weight: float = 1.0) -> None:
        super().__init__(energy, weight)

    def added_energy(self, action: Action, g: Tensor, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*out"]:
        """Return the squared amount by which the grid leaves the frame.

        Raises:
            ConfigurationError: the action is not an `ImageWarp`.
        """
        if not isinstance(action, ImageWarp):
            raise ConfigurationError(f"action: expected an ImageWarp, got {type(action).__name__}")
        size = x.shape[-action.dims :]
        source = action.source_points(g, *size)
        half = source.new_tensor(half_sides(*size))
        return torch.relu(source.abs() - half).square().sum(-1).mean(tuple(range(-action.dims, 0)))


@checked
class PriorEnergy(WrappedEnergy):
    r"""An energy of data plus that of a normal prior of the transformation: :math:`E(y) + \frac{w}{2} |\log g|^2`.

    The length is measured in a basis in which the expected transformations have unit spread. With w the temperature
    the sum is that of a posterior :math:`e^{-E / T}` with this prior. It penalises transformations that erase a
    datum, which many energies prefer. Infinite where g has no logarithm.

    Args:
        energy: energy of data.
        scale: the basis ``[n, n]``, see `trivgeo.groups.LieGroup`.
        weight: w.

    Raises:
        ConfigurationError: the weight is not positive and finite, or the energy is not callable.
    """

    def __init__(
        self, energy: DataEnergy | Callable[[Any], Tensor], scale: Float[Tensor, "n n"], weight: float
    ) -> None:
        super().__init__(energy, weight)
        self.basis = Basis(scale, len(scale))

    def added_energy(self, action: Action, g: Tensor, x: Any) -> Float[Tensor, "*out"]:
        """Return half the squared length, the same for an element and its inverse."""
        v = self.basis.from_natural(action.group.basis.to_natural(action.group.log(g)))
        length = 0.5 * v.square().sum(-1)
        return torch.where(torch.isfinite(length), length, torch.inf)
