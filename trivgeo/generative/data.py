"""Data of a training: tensors, data sets and loaders, of elements alone or with their conditions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from trivgeo._random import integers, permutation
from trivgeo._torch import pytree
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative.conditioning import ConditionEncoder, check_condition
from trivgeo.generative.particles import MaskedCondition, Particles
from trivgeo.groups import LieGroup

__all__ = ["Pair", "TrainingData", "check_pair", "check_samples", "check_training", "training_data"]

_DEFAULT_SECONDS = 600.0
_MAX_ENTRY_ERROR = 0.01  # relative distance of the entries of data from those of the nearest element

Pair = tuple[Tensor, Any]
"""Elements ``[m, *element_shape]``, and their conditions or ``None``."""
Check = Callable[[Any], Pair]


class TrainingData(ABC):
    """Elements, with their conditions, from which batches are drawn.

    Args:
        check: from raw data to a `Pair` on the device of the model; raises an error for what is none.

    Attributes:
        is_repeatable: whether a batch is a function of the generator alone.
    """

    is_repeatable = True

    def __init__(self, check: Check) -> None:
        self.check = check

    @abstractmethod
    def first_rows(self, count: int, generator: torch.Generator) -> Pair:
        """Return elements and conditions of at most ``count`` rows, in the random order of ``generator``.

        A model chooses its settings by these rows.
        """

    def fit_rows(self, group: LieGroup, count: int, generator: torch.Generator) -> Pair:
        """Return ``count`` rows in the random order of ``generator``, by which levels of noise are set.

        Rows are repeated if there are fewer.

        Raises:
            ShapeError: there are fewer than two.
            DomainError: all rows are the same, of a group that is not compact.
        """
        elements, condition = self.first_rows(count, generator)
        if len(elements) < 2:
            raise ShapeError(f"samples: expected at least two elements, got {len(elements)}")
        if not group.is_compact and bool((elements == elements[:1]).all()):
            raise DomainError("samples: expected elements that differ, which set the levels of noise, got the same one")
        if len(elements) < count:
            elements = elements.repeat(count // len(elements) + 1, *[1] * len(group.element_shape))
        return elements[:count], condition

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> Pair:
        """Return a training batch: elements and conditions of ``count`` rows that ``generator`` draws."""


class _Tensors(TrainingData):
    """Tensors that are checked once."""

    def __init__(self, samples: Any, condition: Any, check: Check) -> None:
        super().__init__(check)
        self.data = check((samples, condition))

    def first_rows(self, count: int, generator: torch.Generator) -> Pair:
        order = permutation((len(self.data[0]),), self.data[0], generator)
        return _rows(self.data, order[:count])

    def draw(self, count: int, generator: torch.Generator) -> Pair:
        return _rows(self.data, integers(len(self.data[0]), (count,), torch.empty(0), generator))


class _Indexed(TrainingData):
    """A data set whose items are elements, or pairs of an element and its condition."""

    def __init__(self, dataset: Any, check: Check) -> None:
        super().__init__(check)
        self.dataset = dataset
        if len(dataset) < 2:
            raise ShapeError(f"samples: expected at least two elements, got {len(dataset)}")

    def first_rows(self, count: int, generator: torch.Generator) -> Pair:
        reference = torch.empty(0, device=generator.device)
        return self._items(permutation((len(self.dataset),), reference, generator)[:count])

    def draw(self, count: int, generator: torch.Generator) -> Pair:
        return self._items(integers(len(self.dataset), (count,), torch.empty(0), generator))

    def _items(self, indices: Tensor) -> Pair:
        return self.check(_pair(default_collate([self.dataset[i] for i in indices.tolist()])))


class _Loaded(TrainingData):
    """A loader, in its own order and batches; it begins anew when it is through."""

    is_repeatable = False

    def __init__(self, loader: Any, check: Check) -> None:
        super().__init__(check)
        self.loader = loader
        self._stream: Iterator[Any] = iter(())
        self._layout: Any = None

    def first_rows(self, count: int, generator: torch.Generator) -> Pair:
        parts: list[Pair] = []
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(
                generator.initial_seed()
            )  # loaders take their order from it, unless told otherwise
            for batch in self.loader:
                parts.append(self._checked(batch))
                if sum(len(part[0]) for part in parts) >= count:
                    break
        if not parts:
            raise ShapeError("samples: expected at least two elements, got a loader without batches")
        whole: Pair = pytree.tree_map(lambda *x: torch.cat(x) if isinstance(x[0], Tensor) else x[0], *parts)
        return _rows(whole, permutation((len(whole[0]),), whole[0], generator)[:count])

    def draw(self, count: int, generator: torch.Generator) -> Pair:
        batch = next(self._stream, None)
        if batch is None:
            self._stream = iter(self.loader)
            batch = next(self._stream)
        return self._checked(batch)

    def _checked(self, batch: Any) -> Pair:
        """Elements and conditions of a batch; all batches have conditions and masks, or none."""
        pair = self.check(_pair(batch))
        leaves, structure = pytree.tree_flatten(pair)
        layout = structure, [isinstance(x, Tensor) for x in leaves]
        self._layout = layout if self._layout is None else self._layout
        if layout != self._layout:
            raise ConfigurationError("samples: expected batches that all have conditions and masks, or none of them")
        return pair


def training_data(samples: Any, condition: Any, check: Check) -> TrainingData:
    """Return the data of a training.

    Args:
        samples: elements, a pair of elements and conditions, a triple with a mask, a `Dataset`, a `DataLoader`, or a
            Lightning data module.
        condition: conditions of a tensor of elements, or ``None``.
        check: function that checks elements and conditions of a batch.

    Raises:
        ConfigurationError: there are conditions beside something that has its own.
    """
    if isinstance(samples, tuple) and len(samples) in (2, 3) and isinstance(samples[0], Tensor):
        own: TrainingData | None = None if condition is not None else _Tensors(*_pair(samples), check)
    elif hasattr(samples, "train_dataloader"):
        samples.prepare_data()
        samples.setup("fit")
        own = _Loaded(samples.train_dataloader(), check)
    elif isinstance(samples, DataLoader):
        own = _Loaded(samples, check)
    elif isinstance(samples, IterableDataset):
        raise ConfigurationError(
            "samples: expected a data set with items by index, got an IterableDataset; give a DataLoader"
        )
    elif isinstance(samples, Dataset):
        own = _Indexed(samples, check)
    else:
        return _Tensors(samples, condition, check)
    if condition is not None or own is None:
        raise ConfigurationError(
            f"condition: expected none beside {type(samples).__name__}, which holds conditions itself"
        )
    return own


def check_training(steps: int, seconds: float | None, batch_size: int, learning_rate: float) -> float:
    """Return the time limit of a training in seconds, by default ten minutes.

    Args:
        steps: number of optimiser steps.
        seconds: time after which the training ends, or ``None``.
        batch_size: rows of a step.
        learning_rate: largest step of the optimiser.

    Raises:
        ConfigurationError: a number is out of range.
    """
    check_count("steps", steps)
    check_count("batch_size", batch_size)
    check_positive("learning_rate", learning_rate)
    return _DEFAULT_SECONDS if seconds is None else check_positive("seconds", seconds)


def check_pair(pair: Any, group: LieGroup, encoder: ConditionEncoder | None, device: torch.device) -> Pair:
    """Return elements and conditions of a training, on a device.

    Args:
        pair: samples and conditions of a user.
        group: the group of the elements.
        encoder: of the conditions, ``None`` for a model without them.
        device: of the model.

    Raises:
        ConfigurationError: the dtype is below float32, or conditions are missing or not expected.
        ShapeError: elements or conditions have other shapes, or differ in number.
        NonFiniteError: elements hold NaN or infinity.
        DomainError: elements are far from the group.
    """
    samples, condition = pair
    samples = samples.detach() if isinstance(samples, Tensor) else samples
    if isinstance(condition, MaskedCondition):
        return _check_masked(samples, condition, group, encoder, device)
    data = check_samples(group, samples, "samples")
    if torch.finfo(data.dtype).bits < 32:
        raise ConfigurationError(f"samples: expected float32 or float64, got {data.dtype}")
    data = data.to(device)
    if encoder is None:
        if condition is not None:
            raise ConfigurationError(
                "condition: expected none, for the model has no conditions; GroupDiffusion(group, condition=3) has"
            )
        return data, None
    if condition is None:
        if not encoder.is_optional:
            raise ConfigurationError("condition: expected one for each element, got none")
        return data, None
    condition = check_condition(condition, encoder.is_vector, data)
    for x in pytree.tree_leaves(condition):
        if x.ndim == 0 or len(x) != len(data):
            raise ShapeError(f"condition: expected one for each of {len(data)} elements, got {list(x.shape)}")
    encoder.check(condition)
    return data, condition


def _check_masked(
    samples: Any, condition: MaskedCondition, group: LieGroup, encoder: ConditionEncoder | None, device: torch.device
) -> Pair:
    """Elements whose absent particles are at the identity, and conditions with their mask."""
    particles = Particles(group)
    g = group.check_elements(samples, "samples")
    batch = group.batch_shape(g)
    mask = particles.check(condition.mask, batch, g)
    hidden = particles.hide(g, mask.reshape(*batch, particles.num_particles))
    data, known = check_pair((hidden, condition.condition), group, encoder, device)
    return data, MaskedCondition(known, mask.to(device))


def check_samples(group: LieGroup, g: Tensor, name: str) -> Tensor:
    """Project elements g, ``[b, *element_shape]``, on the group; messages call them ``name``.

    Raises:
        ShapeError: there is not one batch dimension.
        NonFiniteError: elements hold NaN or infinity.
        DomainError: rows are far from the group.
    """
    g = group.check_elements(g, name)
    if len(group.batch_shape(g)) != 1:
        raise ShapeError(f"{name}: expected one batch dimension, got {list(group.batch_shape(g))}")
    if not bool(torch.isfinite(g).all()):
        raise NonFiniteError(f"{name}: expected finite numbers, got NaN or infinity")
    near = group.project(g)
    periods = group._periods().reshape(group.element_shape).to(g)
    error = torch.where(periods > 0, 0.0, (near - g).abs() / (1.0 + g.abs()))
    wrong = ~(error.flatten(1).amax(-1) < _MAX_ENTRY_ERROR)
    if bool(wrong.any()):
        raise DomainError(f"{name}: expected elements of {group!r}, got {int(wrong.sum())} rows that are not")
    return near


def _pair(batch: Any) -> Pair:
    """Return elements and conditions of a batch of a loader, which may be a list of both, and of a mask."""
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, list | tuple) and len(batch) in (1, 2, 3):
        elements, condition, mask = (*batch, None, None)[:3]
        if mask is None:
            return elements, condition
        if isinstance(condition, Tensor) and condition.numel() == 0:
            condition = None  # which torch does not collate
        return elements, MaskedCondition(condition, mask)
    raise ConfigurationError(
        "samples: expected elements, pairs of elements and conditions, or triples with a mask, got "
        f"{type(batch).__name__}"
    )


def _rows(data: Pair, indices: Tensor) -> Pair:
    return pytree.tree_map(lambda x: x[indices.to(x.device)] if isinstance(x, Tensor) else x, data)
