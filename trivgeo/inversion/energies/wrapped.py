"""An energy plus that of a normal prior of the transformation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.actions import ImageWarp
from trivgeo.actions.image import half_sides
from trivgeo.checks import check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action
from trivgeo.groups.basis import Basis
from trivgeo.inversion.energies.base import DataEnergy, as_energy

__all__ = [
    "FramedEnergy",
    "PriorEnergy",
]


class FramedEnergy(nn.Module, DataEnergy):
    r"""An energy of images plus the squared amount by which the sampling grid leaves the frame.

    .. math:: E(y) + \frac{w}{|P|} \sum_{p \in P} \sum_{i=1}^{2} \max(|q_i(p)| - s_i, 0)^2

    with P the pixels of the warped image y, q(p) where each is read in the given one, and s_i half the sides of its
    frame, one for the longer. It holds back
    transformations that shrink the image to nothing or push it out of its frame, which an energy that reads the
    warped image alone may like.

    Args:
        energy: an energy of images ``[b, c, h, w]``, for an `ImageWarp`.
        weight: w.

    Raises:
        ConfigurationError: the weight is not positive and finite.
    """

    def __init__(self, energy: DataEnergy | Callable[[Any], Tensor], weight: float = 1.0) -> None:
        super().__init__()
        self.energy = as_energy(energy)
        self.weight = check_positive("weight", weight)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, " b"]:
        """Return the energy of images x alone, ``[b]``."""
        return self.energy(x)

    def prepare(self, action: Action, x: Any) -> Any:
        """Return the images ``x``, reduced to what the inner energy needs of them after any element of ``action``."""
        return self.energy.prepare(action, x)

    def select(self, action: Action, g: Tensor, x: Any) -> Any:
        return self.energy.select(action, g, x)

    def transformation_energy(self, action: Action, g: Tensor, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*out"]:
        """Return the frame term of the transformation, plus the term that the inner energy has for the transformation.

        Args:


        Raises:
            ConfigurationError: the action is not an `ImageWarp`.
        """
        if not isinstance(action, ImageWarp):
            raise ConfigurationError(f"action: expected an ImageWarp, got {type(action).__name__}")
        source = action.source_points(g, *x.shape[-2:])
        half = source.new_tensor(half_sides(*x.shape[-2:]))
        frame = self.weight * torch.relu(source.abs() - half).square().sum(-1).mean((-2, -1))
        inner = self.energy.transformation_energy(action, g, x)
        return frame if inner is None else frame + inner


class PriorEnergy(nn.Module, DataEnergy):
    r"""An energy of data plus that of a normal prior of the transformation: :math:`E(y) + \frac{w}{2} |\log g|^2`.

    The length is that of coordinates in a basis, in which the transformations expected have unit spread. With w the
    temperature it is the prior of a posterior :math:`e^{-E / T}`; it holds back transformations that leave nothing of
    a datum, which many an energy likes. Infinite where g has no logarithm.

    Args:
        energy: of data.
        scale: the basis ``[n, n]``, see `trivgeo.groups.LieGroup`.
        weight: w.

    Raises:
        ConfigurationError: the weight is not positive and finite, or the energy is not callable.
    """

    def __init__(
        self, energy: DataEnergy | Callable[[Any], Tensor], scale: Float[Tensor, "n n"], weight: float
    ) -> None:
        super().__init__()
        self.energy = as_energy(energy)
        self.basis = Basis(scale, len(scale))
        self.weight = check_positive("weight", weight)

    def forward(self, x: Any) -> Float[Tensor, " b"]:
        """Return the energy of data x alone, ``[b]``."""
        return self.energy(x)

    def prepare(self, action: Action, x: Any) -> Any:
        """Return the data ``x``, reduced to what the inner energy needs of them after any element of ``action``."""
        return self.energy.prepare(action, x)

    def select(self, action: Action, g: Tensor, x: Any) -> Any:
        return self.energy.select(action, g, x)

    def transformation_energy(self, action: Action, g: Tensor, x: Any) -> Float[Tensor, "*out"]:
        """Return the energy of the prior, plus the term that the inner energy has for the transformation.

        The energy of the prior is the same for an element and its inverse.
        """
        natural = action.group.basis.to_natural(action.group.log(g))
        v = self.basis.from_natural(natural)
        prior = 0.5 * self.weight * v.square().sum(-1)
        inner = self.energy.transformation_energy(action, g, x)
        prior = torch.where(torch.isfinite(prior), prior, torch.inf)
        return prior if inner is None else prior + inner
