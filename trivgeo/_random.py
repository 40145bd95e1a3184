"""Every random number of the library: drawn from an explicit generator, on its device, and moved from there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError, ShapeError

# the constants of SplitMix64 are signed integers here
_COUNTER_STRIDE = 0x9E3779B97F4A7C15 - 2**64
_MIXING_FACTORS = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
_NUM_UNIFORM_BITS = 52  # random bits of a uniform number


@checked
class NoiseStreams(torch.Generator):
    r"""A source of noise with a stream of its own for each datum of a batch, in place of a generator.

    The stream of a datum is a function of a key and of the number of the datum alone: its noise is the same at every
    place of every batch. The first dimension of random tensors is that of the data; each draw takes the next numbers of
    all streams. An `Inverter` that is given a generator makes such streams for data 0, ..., b - 1. A loop over a data
    set in batches of any size and order has the same results with

    ```python
    for rows in torch.arange(len(data)).split(64):
        inverter(data[rows], generator=NoiseStreams(rows, seed))
    ```

    The n-th number of a stream is a hash of its start plus n times an odd constant (SplitMix64, Steele, Lea and Flood
    2014), the start a hash of key and number, all on 64-bit tensors; normal numbers are its quantiles in double
    precision, rounded, so that both dtypes get the same noise. Numbers that are drawn by `torch.randn` and the like,
    instead of `Posterior.normal`, are a function of key and batch.

    Args:
        index: the number of each datum, on the device of the noise.
        key: integers of at least 0, such as a seed.

    Raises:
        ConfigurationError: the index is no tensor of integers, or the key holds anything but integers of at least 0.
        ShapeError: the index has not one dimension.
    """

    def __new__(cls, index: Int[Tensor, " b"], *key: int) -> NoiseStreams:
        """A generator on the device of the index."""
        if not isinstance(index, Tensor) or index.dtype not in (torch.int64, torch.int32):
            raise ConfigurationError(f"index: expected a tensor of integers, got {index!r}")
        if index.ndim != 1:
            raise ShapeError(f"index: expected one number for each datum [b], got {list(index.shape)}")
        return super().__new__(cls, index.device)  # type: ignore[call-arg]

    def __init__(self, index: Int[Tensor, " b"], *key: int) -> None:
        try:
            word = int(_mixed(key).generate_state(1, np.uint64)[0])
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"key: expected integers of at least 0, got {key!r}") from error
        super().manual_seed(word)
        self._common = _hash(torch.tensor(word - 2**63, device=index.device))
        self._starts = _hash(self._common + _COUNTER_STRIDE * index.long())
        self._drawn = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (super().get_state(), vars(self))

    def manual_seed(self, seed: int) -> NoiseStreams:
        """Refuse a new seed.

        Raises:
            ConfigurationError: streams keep the key with which they were made.
        """
        raise ConfigurationError(f"seed: expected a key when streams are made, NoiseStreams(index, {seed})")

    def __len__(self) -> int:
        return self._starts.numel()

    def get_state(self) -> Tensor:
        """Return the state that `set_state` takes to draw the same numbers again."""
        return torch.cat([super().get_state(), torch.tensor([self._drawn]).view(torch.uint8)])

    def set_state(self, state: Tensor) -> NoiseStreams:
        """Return to the state at a call of `get_state`."""
        super().set_state(state[:-8])
        self._drawn = int(state[-8:].clone().view(torch.int64))
        return self

    def common(self) -> NoiseStreams:
        """Return a single stream for all data together, which draws any shape."""
        self._drawn += 1
        return self._child(self._common, self._drawn)

    def fork(self) -> NoiseStreams:
        """New streams of the same data, others at each call."""
        self._drawn += 1
        return self._child(_hash(self._starts), self._drawn)

    def rows(self, index: Int[Tensor, " k"]) -> NoiseStreams:
        """Return the streams of some of the data, by their places ``index`` in the batch."""
        other = NoiseStreams(torch.zeros(1, dtype=torch.long, device=self.device), self.initial_seed())
        other._common, other._starts, other._drawn = self._common, self._starts[index.to(self.device)], self._drawn
        return other

    def at(self, number: int) -> NoiseStreams:
        """New streams of the same data by number, the same at each call."""
        return self._child(self._starts, number)

    def symmetric(self, shape: Sequence[int]) -> Tensor:
        """Return uniform numbers of a ``shape`` in (-1, 1), in double precision.

        Raises:
            ShapeError: the first dimension is not that of the data.
        """
        lead = self._starts.ndim
        if tuple(shape[:lead]) != tuple(self._starts.shape):
            raise ShapeError(f"noise: expected a shape that begins with {len(self)} data, got {list(shape)}")
        each = math.prod(shape[lead:])
        place = torch.arange(self._drawn + 1, self._drawn + each + 1, device=self.device)
        self._drawn += each
        bits = _hash(self._starts.unsqueeze(-1) + _COUNTER_STRIDE * place).bitwise_right_shift_(64 - _NUM_UNIFORM_BITS)
        return bits.double().add_(0.5).mul_(2.0 ** (1 - _NUM_UNIFORM_BITS)).reshape(tuple(shape))

    def _child(self, start: Tensor, number: int) -> NoiseStreams:
        other = NoiseStreams(torch.zeros(1, dtype=torch.long, device=self.device), self.initial_seed(), number)
        other._starts = _hash(_hash(start) + number * torch.full_like(start, _COUNTER_STRIDE))
        return other


def _restored(state: Tensor, attributes: dict[str, Any]) -> NoiseStreams:
    streams = NoiseStreams(torch.zeros(1, dtype=torch.long, device=attributes["_starts"].device))
    torch.Generator.set_state(streams, state)
    vars(streams).update(attributes)
    return streams


def _hash(x: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """The mixing of SplitMix64, a permutation of the 64-bit integers; shifts are those of unsigned numbers."""
    for shift, factor in zip((30, 27), _MIXING_FACTORS, strict=True):
        x = (x ^ (x >> shift).bitwise_and_((1 << 64 - shift) - 1)).mul_(factor)
    return x ^ (x >> 31).bitwise_and_((1 << 33) - 1)


def streams_for(batch: int, reference: Tensor, generator: torch.Generator | None) -> torch.Generator | None:
    """Streams for a batch of data: ``generator`` itself, or streams of data 0, ..., b - 1 with a key drawn from it.

    Raises:
        ShapeError: ``generator`` has streams of another number of data.
    """
    if torch.compiler.is_compiling():  # an exported program draws by torch
        return generator
    if not isinstance(_checked(generator), NoiseStreams):
        return NoiseStreams(
            torch.arange(batch, device=_source_device(reference, generator)), seed(reference, generator)
        )
    assert isinstance(generator, NoiseStreams)
    if len(generator) != batch:
        raise ShapeError(f"generator: expected streams of {batch} data, got {len(generator)}")
    return generator


def same_streams(batch: int, reference: Tensor, *key: int) -> NoiseStreams:
    """Streams with the same numbers for each datum of a batch, so that a result depends on the datum alone."""
    return NoiseStreams(torch.zeros(batch, dtype=torch.long, device=reference.device), *key)


def common(generator: torch.Generator | None) -> torch.Generator | None:
    """A generator of numbers that all data share."""
    return generator.common() if isinstance(generator, NoiseStreams) else generator


def replayed(reference: Tensor, generator: torch.Generator | None) -> Callable[[int], torch.Generator]:
    """A function from numbers to generators, the same at every call, on the device of the generator."""
    if isinstance(generator, NoiseStreams):
        return generator.fork().at
    first, device = seed(reference, generator), _source_device(reference, generator)
    return lambda number: torch.Generator(device).manual_seed(first + number)


def normal(shape: Sequence[int], reference: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers in the dtype and on the device of ``reference``."""
    source = _checked(generator)
    if isinstance(source, NoiseStreams):
        return source.symmetric(shape).erfinv_().mul_(math.sqrt(2.0)).to(reference)
    device = _source_device(reference, source)
    return torch.randn(tuple(shape), generator=source, dtype=reference.dtype, device=device).to(reference.device)


def uniform(shape: Sequence[int], reference: Tensor, generator: torch.Generator | None) -> Tensor:
    """Numbers in [0, 1) in the dtype and on the device of ``reference``."""
    source = _checked(generator)
    if isinstance(source, NoiseStreams):
        below_one = 1.0 - 0.5 * torch.finfo(reference.dtype).eps
        return source.symmetric(shape).add_(1.0).mul_(0.5).clamp_(max=below_one).to(reference)
    device = _source_device(reference, source)
    return torch.rand(tuple(shape), generator=source, dtype=reference.dtype, device=device).to(reference.device)


def integers(high: int, shape: Sequence[int], reference: Tensor, generator: torch.Generator | None) -> Tensor:
    """Integers from 0 to ``high - 1``, with repetition."""
    source = _checked(generator)
    if isinstance(source, NoiseStreams):
        return source.symmetric(shape).add_(1.0).mul_(0.5 * high).long().clamp_(max=high - 1).to(reference.device)
    return torch.randint(high, tuple(shape), generator=source, device=_source_device(reference, source)).to(
        reference.device
    )


def permutation(shape: Sequence[int], reference: Tensor, generator: torch.Generator | None) -> Tensor:
    """The numbers 0, ..., n - 1 of the entries of a shape in random order, in that shape.

    With `NoiseStreams` each datum has a permutation of its own entries.
    """
    source, number = _checked(generator), math.prod(shape)
    if isinstance(source, NoiseStreams):
        order = (
            source.symmetric(shape).reshape(len(source), number // max(1, len(source))).to(reference.device).argsort(-1)
        )
        first = order.shape[1] * torch.arange(len(source), device=reference.device)
        return (order + first.unsqueeze(-1)).reshape(tuple(shape))
    device = _source_device(reference, source)
    return torch.randperm(number, generator=source, device=device).reshape(tuple(shape)).to(reference.device)


def seed(reference: Tensor, generator: torch.Generator | None) -> int:
    """A random seed, for generators that can be made again."""
    return int(torch.randint(2**62, (), generator=_checked(generator), device=_source_device(reference, generator)))


def choice(weights: Tensor, number: int, generator: torch.Generator | None) -> Tensor:
    """``number`` indices for each row of probabilities ``[b, n]``, with repetition, ``[b, number]``."""
    cumulative = weights.double().cumsum(-1)
    drawn = uniform((len(weights), number), cumulative, generator) * cumulative[:, -1:]
    # from the right: an index of probability zero is never chosen
    return torch.searchsorted(cumulative, drawn, right=True).clamp(max=weights.shape[-1] - 1)


def keyed(*key: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that is a function of the key alone; different keys give independent numbers.

    There are 2^32 seeds: of a hundred thousand keys two probably share a seed.

    Args:
        key: integers of at least 0, such as a seed and the number of a batch; if there are several, each below 2^32.
    """
    # the CPU generator takes 32 bits
    return torch.Generator(device).manual_seed(int(_mixed(key).generate_state(1)[0]))


def _mixed(key: Sequence[int]) -> np.random.SeedSequence:
    """A seed sequence of integers and their number, since the sequence ignores zeros at the end."""
    return np.random.SeedSequence((len(key), *key))


def _checked(generator: torch.Generator | None) -> torch.Generator | None:
    """The generator; raises `ConfigurationError` if it is none."""
    if generator is None or torch.compiler.is_compiling() or isinstance(generator, torch.Generator):
        return generator
    raise ConfigurationError(f"generator: expected a torch.Generator, got {generator!r}")


def _source_device(reference: Tensor, generator: torch.Generator | None) -> torch.device:
    """The device on which random numbers are drawn: the device of the generator, if there is one."""
    if generator is None or reference.is_meta or torch.compiler.is_compiling():
        return reference.device
    return generator.device
