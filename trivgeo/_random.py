"""Every random number of the library: drawn from an explicit generator, on the device of the tensors it serves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trivgeo.errors import ConfigurationError

__all__ = ["choice", "integers", "keyed", "normal", "permutation", "seed", "uniform"]


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers in the dtype and on the device of ``like``."""
    return torch.randn(tuple(shape), generator=_checked(generator, like), dtype=like.dtype, device=like.device)


def uniform(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Numbers in [0, 1) in the dtype and on the device of ``like``."""
    return torch.rand(tuple(shape), generator=_checked(generator, like), dtype=like.dtype, device=like.device)


def integers(high: int, shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Integers from 0 to ``high - 1``, with repetition."""
    return torch.randint(high, tuple(shape), generator=_checked(generator, like), device=like.device)


def permutation(number: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """The integers from 0 to ``number - 1`` in a random order, ``[number]``."""
    return torch.randperm(number, generator=_checked(generator, like), device=like.device)


def seed(like: Tensor, generator: torch.Generator | None) -> int:
    """A seed for generators that are to be made again."""
    return int(integers(2**62, (), like, generator))


def choice(weights: Tensor, number: int, generator: torch.Generator | None) -> Tensor:
    """``number`` indices for each row of probabilities ``[b, n]``, with repetition, ``[b, number]``."""
    return torch.multinomial(weights, number, replacement=True, generator=_checked(generator, weights))


def keyed(*key: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that is a function of the key alone; keys that differ give independent numbers.

    Args:
        key: integers of at least 0, such as a seed and the number of a batch.
        device: of the generator.
    """
    # the CPU generator takes 32 bits; SeedSequence mixes the key into them, and does not see zeros at its end
    state = int(np.random.SeedSequence((len(key), *key)).generate_state(1)[0])
    return torch.Generator(device).manual_seed(state)


def _checked(generator: torch.Generator | None, like: Tensor) -> torch.Generator | None:
    """The generator, if it is one, on the device of ``like``."""
    if generator is None or torch.compiler.is_compiling():
        return generator
    if not isinstance(generator, torch.Generator):
        raise ConfigurationError(f"generator: expected a torch.Generator, got {generator!r}")
    if generator.device.type != like.device.type and not like.is_meta:
        raise ConfigurationError(f"generator: expected one on {like.device}, got one on {generator.device}")
    return generator
