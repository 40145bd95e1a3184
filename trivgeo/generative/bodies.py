"""Powers of a group with a number of bodies that varies: masks of those that are present."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._random import integers
from trivgeo._signatures import check_calls
from trivgeo.checks import check_type
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.generative.base_distributions import BaseDistribution, HaarDistribution, factor_log_densities
from trivgeo.groups import DirectProduct, LieGroup

__all__ = ["pad_bodies"]


class MaskedCondition(NamedTuple):
    """A condition, or features, with the mask of the bodies that are present.

    Attributes:
        condition: of the elements; ``None`` for none.
        mask: present bodies, ``[b, N]``.
    """

    condition: Any
    mask: Tensor


class Bodies:
    """The factors of a power ``G ** N``, of which some may be absent in a row of a batch.

    Absent bodies are kept at the identity, where networks see them; their velocities are zero.

    Args:
        group: the power.

    Attributes:
        count: the number of bodies, N.
        dim: the dimension of one body.
        numel: the number of entries of an element of one body.

    Raises:
        ConfigurationError: the group is no power of a unimodular group, or its scale mixes the coordinates.
    """

    def __init__(self, group: LieGroup) -> None:
        factors = group.factors if isinstance(group, DirectProduct) else ()
        if not factors or any(factor is not factors[0] for factor in factors):
            raise ConfigurationError(f"mask: expected a power of a group, G ** n, got {group!r}")
        if group.scale.ndim > 1:
            raise ConfigurationError("mask: expected a scale that is one length for each coordinate, got a matrix")
        if not group.algebra.is_unimodular:
            raise ConfigurationError(f"mask: expected a power of a unimodular group, got {group!r}")
        self.group, self.count, self.factor = group, len(factors), factors[0]
        self.dim = self.factor.dim
        self.numel = math.prod(self.factor.element_shape)

    def check(self, mask: Any, batch: torch.Size, reference: Tensor) -> Bool[Tensor, "b N"]:
        """Return a mask of a batch of elements, flattened to one batch dimension, on the device of ``reference``.

        Args:
            mask: present bodies, ``[N]`` for all elements or ``[*batch, N]``: truth values, or zeros and ones.
            batch: batch shape of the elements.
            reference: a tensor of the model.

        Raises:
            ConfigurationError: the mask is no tensor, or holds other numbers than zero and one.
            ShapeError: the mask has another shape.
            DomainError: a row has no body.
        """
        if isinstance(mask, np.ndarray | list | tuple):
            try:
                mask = torch.as_tensor(mask)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ConfigurationError(f"mask: expected truth values, got {mask!r}: {error}") from error
        if not isinstance(mask, Tensor):
            raise ConfigurationError(f"mask: expected a tensor of truth values, got {type(mask).__name__}")
        if mask.shape not in ((self.count,), (*batch, self.count)):
            raise ShapeError(
                f"mask: expected one value for each body [{self.count}], or {[*batch, self.count]}, got "
                f"{list(mask.shape)}"
            )
        found = mask == 1
        if not bool((found | (mask == 0)).all()):
            raise ConfigurationError("mask: expected truth values, or zeros and ones, got other numbers")
        if bool((empty := ~found.any(-1)).any()):
            raise DomainError(f"mask: expected a body in each row, got {int(empty.sum())} rows without any")
        return found.to(reference.device).expand(*batch, self.count).reshape(-1, self.count)

    def hide(self, g: Tensor, mask: Tensor) -> Tensor:
        """Return elements g, ``[*batch, *element_shape]``, with bodies that a ``mask`` has not put at the identity."""
        identity = self.group.identity(dtype=g.dtype, device=g.device)
        return torch.where(mask.repeat_interleave(self.numel, -1), g, identity)

    def presence(self, mask: Tensor) -> Bool[Tensor, "*batch n"]:
        """Return which coordinates of algebra vectors belong to bodies of a ``mask`` ``[*batch, N]``."""
        return mask.repeat_interleave(self.dim, -1)

    def fill(self, rows: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        """Return rows whose absent bodies are those of other rows, by which settings of a path are chosen.

        A body is taken at the same place where there is one, else at any place.

        Args:
            rows: elements ``[m, *element_shape]``.
            mask: present bodies ``[m, N]``.
            generator: random numbers.
        """
        bodies = rows.unflatten(-1, (self.count, self.numel))
        known, found = bodies[mask], bodies.clone()
        for place in range(self.count):
            absent = ~mask[:, place]
            source = bodies[~absent, place] if bool((~absent).any()) else known
            found[absent, place] = source[integers(len(source), (int(absent.sum()),), rows, generator)]
        return found.flatten(-2)

    def share(self, mask: Tensor) -> Float[Tensor, "*batch"]:
        """Return the share of bodies that are present in each row of a ``mask``, ``[*batch]``."""
        return mask.double().mean(-1)


class MaskedDistribution(BaseDistribution):
    """The distribution of the present bodies of rows.

    Args:
        base: of all bodies, which are independent.
        mask: present bodies ``[b, N]``.
    """

    def __init__(self, base: BaseDistribution, mask: Tensor) -> None:
        super().__init__()
        self.base, self.mask = base, mask

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw all bodies of ``num_samples`` elements by ``generator``; absent ones are still to be hidden."""
        return self.base.sample(num_samples, generator)

    def log_density(self, g: Tensor) -> Tensor:
        """Return the log-densities of the present bodies of elements g, ``[b]``.

        Args:


        Raises:
            ConfigurationError: the bodies are not independent.
        """
        if isinstance(self.base, HaarDistribution):
            return self.base.log_density(g)
        return torch.where(self.mask, factor_log_densities(self.base, g), 0.0).sum(-1)


def pad_bodies(group: LieGroup, chains: Sequence[Tensor]) -> tuple[Float[Tensor, "m k"], Bool[Tensor, "m N"]]:
    """Put chains of different length into one batch, with a mask of the bodies that are present.

    ```python
    group = SE(3) ** 32
    frames, mask = pad_bodies(group, chains)  # chains of 8 to 32 frames, each [n, 3, 4]
    GroupDiffusion(group, kind="flow").fit((frames, None, mask))
    ```

    Args:
        group: the power ``G ** N``.
        chains: the bodies of each row, elements ``[n, *element_shape]`` of G for n from 1 to N.

    Returns:
        Elements of the power ``[m, *element_shape]``, whose last bodies are at the identity, and the mask ``[m, N]``.

    Raises:
        ConfigurationError: the group is no power, or the chains are no sequence of tensors.
        ShapeError: there are no chains, a chain has another shape, no bodies, or more than N.
    """
    bodies = Bodies(check_type("group", group, LieGroup))  # type: ignore[type-abstract]
    if not isinstance(chains, Sequence):
        raise ConfigurationError(f"chains: expected a sequence of tensors, got {type(chains).__name__}")
    if not chains:
        raise ShapeError("chains: expected at least one, got none")
    rows, lengths = [], []
    for number, chain in enumerate(chains):
        checked = bodies.factor.check_elements(chain, f"chains[{number}]")
        batch = bodies.factor.batch_shape(checked)
        if len(batch) != 1 or not 0 < batch[0] <= bodies.count:
            raise ShapeError(
                f"chains[{number}]: expected 1 to {bodies.count} elements [n, ...] of {bodies.factor!r}, got "
                f"{list(checked.shape)}"
            )
        lengths.append(batch[0])
        rows.append(checked.flatten(1))
    reference = rows[0]
    row = bodies.factor.identity(bodies.count, dtype=reference.dtype, device=reference.device).flatten(1)
    whole = torch.stack([torch.cat([chain.to(reference), row[len(chain) :]]) for chain in rows])
    mask = torch.arange(bodies.count, device=reference.device) < torch.tensor(
        lengths, device=reference.device
    ).unsqueeze(-1)
    return whole.flatten(1), mask


check_calls(__name__, __all__)
