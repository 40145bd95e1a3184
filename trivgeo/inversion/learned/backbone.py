"""The contract of a backbone of a learned score, and which one suits an action."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._torch import pytree
from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action
from trivgeo.networks import Network


@checked
class LevelFeatures(nn.Module):
    """Fourier features of the logarithm of a noise level, for backbones: ``[b]`` to ``[b, 1 + 2 frequencies]``.

    Args:
        frequencies: number of octaves, from a period of 4 pi.
    """

    frequencies: Tensor

    def __init__(self, frequencies: int = 4) -> None:
        super().__init__()
        check_count("frequencies", frequencies)
        self.size = 1 + 2 * frequencies
        self.register_buffer("frequencies", 0.5 * 2.0 ** torch.arange(frequencies), persistent=False)

    def forward(self, level: Float[Tensor, " b"]) -> Float[Tensor, "b f"]:
        """Return log sigma for noise levels sigma, ``level`` ``[b]``, with its sines and cosines, ``[b, f]``."""
        log = level.log().unsqueeze(-1)
        angle = log * self.frequencies.to(log.dtype)
        return torch.cat([log, angle.sin(), angle.cos()], -1)


@checked
class NoiseNetwork(Network):
    """The noise of the transformation of a datum, the backbone of a `LearnedScore`.

    Attributes:
        dim: dimension of the group.
        finest: noise level below which the network sees no better, in units of the spread of the transformations.
    """

    dim: int
    finest: float = 0.01

    def reduced(self, x: Any) -> Any:
        """Return the part of data x that the network reads, see ``prepare`` of `LearnedScore`."""
        return x

    def embed(self, y: Any, level: Float[Tensor, " b"]) -> Float[Tensor, "b f"]:
        """Return features by which unusual data are recognised, ``[b, f]``: inputs of the last layer, or the output.

        Args:
            y: data, one batch dimension.
            level: noise levels ``[b]``.
        """
        return self(y, level)

    @abstractmethod
    def forward(self, y: Any, level: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        """Return the noise in units of its size, ``[b, dim]``, in the dtype of the data.

        Args:
            y: noised data, see `LearnedScore`.
            level: noise levels ``[b]``.
        """


@checked
class FeatureNetwork(NoiseNetwork):
    """A backbone that ends with a linear layer on features, with the units of its inputs as constants.

    A subclass defines the features, `embed`, in the dtype of its weights, and the last layer.

    Attributes:
        mean: subtracted from inputs, see `register_units`.
        std: divides inputs.
    """

    mean: Tensor
    std: Tensor

    @property
    @abstractmethod
    def last_layer(self) -> nn.Module:
        """The layer from features ``[b, f]`` to the noise ``[b, dim]``."""

    @property
    def architecture(self) -> dict[str, Any]:
        """The constructor's arguments in plain types, from the attributes of the same names."""

        def plain(x: Any) -> Any:
            return x.tolist() if isinstance(x, Tensor) else list(x) if isinstance(x, tuple) else x

        return {name: plain(getattr(self, name)) for name in inspect.signature(type(self)).parameters}

    def forward(self, y: Any, level: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        reference: Tensor = pytree.tree_leaves(y)[0]
        return self.last_layer(self.embed(y, level)).to(reference.dtype)

    def register_units(
        self, shapes: tuple[Sequence[int], Sequence[int]], mean: Sequence[Any] | None, std: Sequence[Any] | None
    ) -> None:
        """Register mean and standard deviation of inputs as buffers `mean` and `std`; ``None`` is for zeros and ones.

        Raises:
            ConfigurationError: numbers of another shape.
        """
        for name, numbers, default, shape in zip(("mean", "std"), (mean, std), (0.0, 1.0), shapes, strict=True):
            values = (
                torch.full(tuple(shape), default) if numbers is None else torch.tensor(numbers, dtype=torch.float32)
            )
            if list(values.shape) != list(shape):
                raise ConfigurationError(f"{name}: expected numbers {list(shape)}, got {list(values.shape)}")
            self.register_buffer(name, values, persistent=False)


@singledispatch
def backbone_for(action: Action, x: Any) -> NoiseNetwork:
    """Return a backbone that suits an action and clean data of it.

    Images have an `ImageBackbone`, points, jets and clouds a `PointsBackbone`, or a `LandmarksBackbone` where their
    order explains more than half of their variance, solution operators an `OperatorBackbone`, fields a `FieldBackbone`.
    For another kind of action register a function, or give a `LearnedInverter` a backbone.

    ```python
    @backbone_for.register
    def _(action: MyAction, x: Tensor) -> NoiseNetwork:
        return MyBackbone(action.group.dim, x.shape[-1])
    ```

    Args:
        action: action on the data; fields are moved with the scale of its group, to see how far they go.
        x: clean data, one batch dimension.

    Raises:
        ConfigurationError: no function is registered for this kind of action.
    """
    raise ConfigurationError(
        f"backbone: expected one for {type(action).__name__}; trivgeo has backbones for images, points, fields and "
        "the inputs of solution operators of one x and one u"
    )


def _spread(flat: Tensor) -> Tensor:
    """Return the standard deviation of each row; one where a row is constant."""
    std = flat.std(1)
    return torch.where(std > 1e-6 * (1 + flat.mean(1).abs()), std, 1.0)


def leaves_length(x: Any) -> int:
    """Return the number of data in x, a tensor or a tree of tensors."""
    return len(pytree.tree_leaves(x)[0])
