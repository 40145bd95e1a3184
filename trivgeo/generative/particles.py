"""Powers of a group with a varying number of particles, and masks of the particles that are present."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._random import integers
from trivgeo.checks import check_type, checked
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.generative.distributions import GroupDistribution, HaarDistribution, ProductDistribution
from trivgeo.groups import DirectProduct, LieGroup

__all__ = ["pad_particles"]


class MaskedCondition(NamedTuple):
    """A condition, or features, with the mask of the particles that are present.

    Attributes:
        mask: present particles, ``[b, N]``.
    """

    condition: Any
    mask: Tensor


class Particles:
    """The factors of a power ``G ** N``, of which some may be absent in a row of a batch.

    Absent particles are kept at the identity, where networks see them; their velocities are zero.

    Attributes:
        num_particles: N.
        dim: the dimension of one particle.
        numel: the number of entries of an element of one particle.

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
        self.group, self.num_particles, self.factor = group, len(factors), factors[0]
        self.dim = self.factor.dim
        self.numel = math.prod(self.factor.element_shape)

    def check(self, mask: Any, batch: torch.Size, reference: Tensor) -> Bool[Tensor, "b N"]:
        """Return a mask of a batch of elements, flattened to one batch dimension, on the device of ``reference``.

        Args:
            mask: present particles, ``[N]`` for all elements or ``[*batch, N]``: truth values, or zeros and ones.

        Raises:
            ConfigurationError: the mask is no tensor, or holds other numbers than zero and one.
            ShapeError: the mask has another shape.
            DomainError: a row has no particle.
        """
        if isinstance(mask, np.ndarray | list | tuple):
            try:
                mask = torch.as_tensor(mask)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ConfigurationError(f"mask: expected truth values, got {mask!r}: {error}") from error
        if not isinstance(mask, Tensor):
            raise ConfigurationError(f"mask: expected a tensor of truth values, got {type(mask).__name__}")
        if mask.shape not in ((self.num_particles,), (*batch, self.num_particles)):
            raise ShapeError(
                f"mask: expected one value for each particle [{self.num_particles}], or "
                f"{[*batch, self.num_particles]}, got {list(mask.shape)}"
            )
        found = mask == 1
        if not bool((found | (mask == 0)).all()):
            raise ConfigurationError("mask: expected truth values, or zeros and ones, got other numbers")
        if bool((empty := ~found.any(-1)).any()):
            raise DomainError(f"mask: expected a particle in each row, got {int(empty.sum())} rows without any")
        return found.to(reference.device).expand(*batch, self.num_particles).reshape(-1, self.num_particles)

    def hide(self, g: Tensor, mask: Tensor) -> Tensor:
        """Return elements g, ``[*batch, *element_shape]``, with the particles outside of a ``mask`` at the identity."""
        identity = self.group.identity(dtype=g.dtype, device=g.device)
        return torch.where(mask.repeat_interleave(self.numel, -1), g, identity)

    def presence(self, mask: Tensor) -> Bool[Tensor, "*batch n"]:
        """Return which coordinates of algebra vectors belong to particles of a ``mask`` ``[*batch, N]``."""
        return mask.repeat_interleave(self.dim, -1)

    def fill(self, rows: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        """Return rows ``[m, *element_shape]`` in which other rows, drawn by ``generator``, fill in absent particles.

        A particle is taken from the same place of the ``mask`` ``[m, N]`` where one is present, else from any place.
        """
        particles = rows.unflatten(-1, (self.num_particles, self.numel))
        known, found = particles[mask], particles.clone()
        for place in range(self.num_particles):
            absent = ~mask[:, place]
            source = particles[~absent, place] if bool((~absent).any()) else known
            found[absent, place] = source[integers(len(source), (int(absent.sum()),), rows, generator)]
        return found.flatten(-2)

    def share(self, mask: Tensor) -> Float[Tensor, "*batch"]:
        """Return the share of particles that are present in each row of a ``mask``, ``[*batch]``."""
        return mask.double().mean(-1)

    def log_prob(self, base: GroupDistribution, g: Tensor, mask: Tensor) -> Float[Tensor, "*batch"]:
        """Return the log-densities of the present particles of elements g, for independent particles.

        Raises:
            ConfigurationError: the base distribution is neither uniform nor a product.
        """
        if isinstance(base, HaarDistribution):
            return base.log_prob(g)
        if not isinstance(base, ProductDistribution):
            raise ConfigurationError(f"base: expected independent particles, got {type(base).__name__}")
        return torch.where(mask, base.factor_log_prob(g), 0.0).sum(-1)


@checked
def pad_particles(group: LieGroup, chains: Sequence[Tensor]) -> tuple[Float[Tensor, "m k"], Bool[Tensor, "m N"]]:
    """Put chains of different length into one batch, with a mask of the particles that are present.

    ```python
    group = SE(3) ** 32
    frames, mask = pad_particles(group, chains)  # chains of 8 to 32 frames, each [n, 3, 4]
    GroupDiffusion(group, kind="flow").fit((frames, None, mask))
    ```

    Args:
        group: the power ``G ** N``.
        chains: the particles of each row, elements ``[n, *element_shape]`` of G for n from 1 to N.

    Returns:
        Elements of the power ``[m, *element_shape]``, whose last particles are at the identity; the mask ``[m, N]``.

    Raises:
        ConfigurationError: the group is no power, or the chains are no sequence of tensors.
        ShapeError: there are no chains, a chain has another shape, no particles, or more than N.
    """
    particles = Particles(check_type("group", group, LieGroup))  # type: ignore[type-abstract]
    if not isinstance(chains, Sequence):
        raise ConfigurationError(f"chains: expected a sequence of tensors, got {type(chains).__name__}")
    if not chains:
        raise ShapeError("chains: expected at least one, got none")
    rows, lengths = [], []
    for number, chain in enumerate(chains):
        checked = particles.factor.check_elements(chain, f"chains[{number}]")
        batch = particles.factor.batch_shape(checked)
        if len(batch) != 1 or not 0 < batch[0] <= particles.num_particles:
            raise ShapeError(
                f"chains[{number}]: expected 1 to {particles.num_particles} elements [n, ...] of {particles.factor!r}, "
                f"got {list(checked.shape)}"
            )
        lengths.append(batch[0])
        rows.append(checked.flatten(1))
    reference = rows[0]
    row = particles.factor.identity(particles.num_particles, dtype=reference.dtype, device=reference.device).flatten(1)
    whole = torch.stack([torch.cat([chain.to(reference), row[len(chain) :]]) for chain in rows])
    mask = torch.arange(particles.num_particles, device=reference.device) < torch.tensor(
        lengths, device=reference.device
    ).unsqueeze(-1)
    return whole.flatten(1), mask
