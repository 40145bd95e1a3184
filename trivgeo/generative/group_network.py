"""A network on any group: residual layers on smooth functions of the element."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.groups import LieGroup
from trivgeo.sde.scores.gradient import trivialized_grad

_NUM_LEVEL_WAVES = 16
_ANGLE_HARMONICS = (1.0, 2.0, 3.0, 4.0, 6.0)
_ENTRY_FREQUENCIES = (1.0, 2.0, 4.0)


class ResidualNetwork(nn.Module, ABC):
    """Residual layers on features of elements, to which embeddings of the level and of a condition are added.

    Args:
        num_features: number of features of an element.
        width: width of the layers.
        depth: number of residual blocks.
    """

    def __init__(self, num_features: int, width: int, depth: int) -> None:
        super().__init__()
        self.width, self.depth = check_count("width", width), check_count("depth", depth)
        self.first = nn.Linear(num_features, width)
        self.level = nn.Sequential(nn.Linear(2 * _NUM_LEVEL_WAVES + 1, width), nn.SiLU())
        self.condition: nn.Sequential | None = None
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    @abstractmethod
    def prepare(self, elements: Tensor, path: ProbabilityPath) -> None:
        """Set the scales of input features, which no gradient changes.

        Args:
            elements: elements on the path, ``[m, *element_shape]``.
            path: the path.
        """

    @abstractmethod
    def evaluate(self, g: Tensor, level: Float[Tensor, "*batch"], features: Tensor | None) -> Tensor:
        """Return vectors ``[*batch, dim]``, without momenta.

        Args:
            g: elements ``[*batch, *element_shape]``.
            level: position on the path, in [0, 1].
            features: features of conditions ``[*batch, condition_dim]``, or ``None``.
        """

    @abstractmethod
    def like(self, condition_dim: int | None) -> ResidualNetwork:
        """Return a new network of the same shape.

        Args:
            condition_dim: see `GroupNetwork`.
        """

    def add_condition(self, dim: int) -> None:
        """Add layers for the features of a condition, in the dtype and on the device of the network.

        Args:
            dim: number of features.
        """
        width = self.width
        layers = nn.Sequential(
            nn.Linear(check_count("condition_dim", dim), width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.condition = layers.to(self.first.weight).train(self.training)

    @property
    def condition_dim(self) -> int:
        """Number of features of a condition; zero for none."""
        first = None if self.condition is None else self.condition[0]
        return first.in_features if isinstance(first, nn.Linear) else 0

    def _hidden(
        self, features: Tensor, level: Float[Tensor, "*batch"], condition: Tensor | None
    ) -> Float[Tensor, "*batch width"]:
        """The values before the output layers, of features of elements ``[*batch, num_features]``.

        Raises:
            ShapeError: levels or features of conditions have another shape.
            ConfigurationError: features of conditions are missing, or not used.
        """
        batch = features.shape[:-1]
        if level.shape != batch:
            raise ShapeError(f"level: expected one for each of {list(batch)}, got {list(level.shape)}")
        if (self.condition is None) is not (condition is None):
            expected = "none" if self.condition is None else "features"
            raise ConfigurationError(f"condition: expected {expected}, got {type(condition).__name__}")
        order = math.pi * torch.arange(1, _NUM_LEVEL_WAVES + 1, dtype=level.dtype, device=level.device)
        wave = order * level.unsqueeze(-1)
        embedded = self.level(torch.cat([wave.sin(), wave.cos(), level.unsqueeze(-1)], -1))
        if self.condition is not None and condition is not None:
            embedded = embedded + self._embedded_condition(condition, batch)
        hidden = self.first(features)
        for block in self.blocks:
            hidden = block(hidden, embedded)
        return nn.functional.silu(self.norm(hidden))

    def _embedded_condition(self, condition: Tensor, batch: torch.Size) -> Tensor:
        """Embedding of features ``[*batch, d]``, or ``[d]`` for all rows."""
        assert self.condition is not None
        if condition.shape[:-1] not in (batch, ()):
            raise ShapeError(f"condition: expected features [*{list(batch)}, d], got {list(condition.shape)}")
        if condition.shape[-1] != self.condition_dim:
            raise ShapeError(f"condition: expected {self.condition_dim} features a row, got {condition.shape[-1]}")
        return self.condition(condition)


@checked
class GroupNetwork(ResidualNetwork):
    r"""A residual network from elements, levels in [0, 1] and momenta, if given, to vectors ``[*batch, dim]``.

    Periodic entries of an element (angles) enter as sines and cosines of their multiples, so that the network is a
    function on the group. Other entries are standardised, and enter directly and as sines and cosines. Entries of
    noncompact groups may grow like exponentials. They are standardised by median and quartiles, and enter by their
    area hyperbolic sine. Residual blocks of two layers follow, with layer normalisation and SiLU, to which an embedding
    of the level is added. Output layers are zero at the start.

    Where the group is not abelian, the output has another term, the trivialized gradient
    :math:`\nabla_{\mathfrak g} \langle Y, g \rangle` of a linear function of the entries. The network also predicts its
    coefficients Y. To first order the direction from g to any other element is such a gradient, with a constant Y.

    Args:
        group: the group of the elements.
        uses_momentum: whether the network receives momenta.
        width: width of the layers.
        depth: number of residual blocks.
        condition_dim: dimension of the features of a condition, ``None`` for none.
    """

    def __init__(
        self,
        group: LieGroup,
        uses_momentum: bool = False,
        width: int = 256,
        depth: int = 3,
        condition_dim: int | None = None,
    ) -> None:
        periods = group._periods().double().flatten()
        periodic = [i for i, p in enumerate(periods.tolist()) if p > 0]
        plain = [i for i, p in enumerate(periods.tolist()) if not p > 0]
        size = 2 * len(_ANGLE_HARMONICS) * len(periodic) + (1 + 2 * len(_ENTRY_FREQUENCIES)) * len(plain)
        super().__init__(size + (group.dim if uses_momentum else 0), width, depth)
        self.group, self.uses_momentum, self._periodic, self._plain = group, uses_momentum, periodic, plain
        self.register_buffer("rates", (2.0 * math.pi / periods[self._periodic]).float(), persistent=False)
        self.register_buffer("mean", torch.zeros(len(self._plain)))
        self.register_buffer("std", torch.ones(len(self._plain)))
        self.rates: Tensor
        self.mean: Tensor
        self.std: Tensor
        self.last = nn.Linear(width, group.dim)
        self.ambient = None if group.algebra.is_abelian else nn.Linear(width, math.prod(group.element_shape))
        for layer in (self.last, self.ambient):
            if layer is not None:
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)
        if condition_dim is not None:
            self.add_condition(condition_dim)

    def like(self, condition_dim: int | None) -> GroupNetwork:
        return GroupNetwork(self.group, self.uses_momentum, self.width, self.depth, condition_dim)

    def prepare(self, elements: Tensor, path: ProbabilityPath) -> None:
        self.standardise(elements)

    def evaluate(self, g: Tensor, level: Float[Tensor, "*batch"], features: Tensor | None) -> Tensor:
        return self(g, level, None, features)

    @property
    def version(self) -> int:
        """Version of the input features: 2 where entries have no bound, which version 1 did not compress."""
        return 1 if self.group.is_compact else 2

    def standardise(self, g: Tensor) -> None:
        """Set mean and spread of the input entries from elements g, ``[m, *element_shape]``.

        Raises:
            ShapeError: g has no, or more than one, batch dimension.
        """
        self.group.check_elements(g)
        if len(self.group.batch_shape(g)) != 1:
            raise ShapeError(f"g: expected elements [m, ...], got {list(g.shape)}")
        if not self._plain:
            return
        entries = g.flatten(1)[:, self._plain]
        if self.group.is_compact:
            self.mean.copy_(entries.mean(0))
            self.std.copy_(entries.std(0).clamp(min=1e-3))
            return
        low, middle, high = entries.quantile(entries.new_tensor([0.25, 0.5, 0.75]), 0)
        self.mean.copy_(middle)
        self.std.copy_((0.74 * (high - low)).clamp(min=1e-3))  # the standard deviation of a normal distribution

    def forward(
        self,
        g: Tensor,
        level: Float[Tensor, "*batch"],
        momentum: Tensor | None = None,
        condition: Tensor | None = None,
    ) -> Tensor:
        """Return vectors ``[*batch, dim]``.

        Args:
            g: elements ``[*batch, *element_shape]``.
            level: position on the path, in [0, 1], ``[*batch]``.
            momentum: momenta ``[*batch, dim]``, where they are used.
            condition: features of the conditions ``[*batch, condition_dim]``, or one for all, where they are used.

        Raises:
            ShapeError: levels or features have another shape.
            ConfigurationError: momenta or features are missing, or not used.
        """
        self.group.check_elements(g)
        if self.uses_momentum is (momentum is None):
            raise ConfigurationError(f"momentum: expected {'some' if self.uses_momentum else 'none'}, got {momentum!r}")
        flat = g.flatten(-len(self.group.element_shape))
        features = []
        if self._periodic:
            angle = flat[..., self._periodic] * self.rates
            features.append(_waves(angle, _ANGLE_HARMONICS))
        if self._plain:
            entries = (flat[..., self._plain] - self.mean) / self.std
            entries = entries if self.group.is_compact else entries.asinh()
            features += [entries, _waves(entries, _ENTRY_FREQUENCIES)]
        if momentum is not None:
            features.append(momentum)
        hidden = self._hidden(torch.cat(features, -1), level, condition)
        if self.ambient is None:
            return self.last(hidden)
        coefficients = self.ambient(hidden).reshape(g.shape)
        rank = len(self.group.element_shape)
        return self.last(hidden) + trivialized_grad(self.group, lambda x: (coefficients * x).flatten(-rank).sum(-1), g)


def _waves(x: Tensor, frequencies: Sequence[float]) -> Tensor:
    """Sines and cosines of all entries at each frequency, ``[*batch, 2 * len(frequencies) * n]`` for ``[*batch, n]``.

    One operation for all frequencies, as forward derivatives cost torch about a millisecond for each operation.
    """
    phase = x.new_tensor(frequencies).unsqueeze(-1) * x.unsqueeze(-2)
    return torch.stack([phase.sin(), phase.cos()], -2).flatten(-3)


class ResidualBlock(nn.Module):
    """A residual block with an additive embedding; before training it is the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer, self.level = (nn.Linear(width, width) for _ in range(3))
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Output of the block for its input, given the embedding of the level, both ``[*batch, width]``."""
        return hidden + self.outer(nn.functional.silu(self.inner(self.norm(hidden)) + self.level(embedded)))
