"""Training of a `GroupDiffusion` and of its flow map by Lightning, on tensors, data sets and loaders."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Subset, default_collate

from trivgeo._processes import gathered_shares, share
from trivgeo._random import integers, keyed, permutation
from trivgeo._text import described
from trivgeo._torch import pytree
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative.conditioning import ConditionalNetwork, ConditionEncoder, check_condition
from trivgeo.generative.distributions import EmpiricalDistribution, GroupDistribution, check_samples
from trivgeo.generative.fitted import FittedPath
from trivgeo.generative.flow_map import FlowMap, FlowMapBatch, FlowTrajectories
from trivgeo.generative.history import TrainingHistory
from trivgeo.generative.particles import MaskedCondition, Particles
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.groups import LieGroup
from trivgeo.training import NetworkTraining, move_average, train

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_DEFAULT_TRAINING_SECONDS = 600.0
_NUM_LOOKS = 10  # times at which a training looks at held-out data
_NUM_VAIN_LOOKS = 4  # looks in a row without a better likelihood that end a training
_MAX_HELD_OUT_ROWS = 1024  # held-out rows whose loss is measured
_MAX_DENSITY_PRODUCTS = 2048  # held-out rows whose density is measured, times the dimension of the group
_MIN_DENSITY_ROWS = 16  # the least number of these rows
_HELD_OUT_TOLERANCE = 1e-2  # error of a step of the flow of their densities
_LINEAR_ERROR = 0.1  # root mean square error of a flow map, in units of its speed, above which it counts linearly
_NUM_SCALE_ROWS = 4096  # rows to which input and output scales of a flow map are fitted

Pair = tuple[Tensor, Any]
"""Elements ``[m, *element_shape]``, and their conditions or ``None``."""
Check = Callable[[Any], Pair]


class TrainingData(ABC):
    """Elements, with their conditions, from which batches are drawn.

    Args:
        check: function from raw data to a `Pair` on the device of the model, which raises an error for wrong data.

    Attributes:
        is_repeatable: whether a batch is a function of the generator alone.
    """

    is_repeatable = True

    def __init__(self, check: Check) -> None:
        self.check = check

    @abstractmethod
    def first_rows(self, num_rows: int, generator: torch.Generator) -> Pair:
        """At most ``num_rows`` rows in the random order of ``generator``, by which a model chooses its settings."""

    def fit_rows(self, group: LieGroup, num_rows: int, generator: torch.Generator) -> Pair:
        """Return ``num_rows`` rows in the random order of ``generator``, repeated if there are fewer.

        Levels of noise are set by them. Several processes have the same rows, of the data of all.

        Raises:
            ShapeError: there are fewer than two rows.
            DomainError: all rows are equal, on a group that is not compact.
        """
        elements, condition = gathered_shares(self.first_rows(num_rows, generator))
        if len(elements) < 2:
            raise ShapeError(f"samples: expected at least two elements, got {len(elements)}")
        if not group.is_compact and bool((elements == elements[:1]).all()):
            raise DomainError("samples: expected elements that differ, which set the levels of noise, got the same one")
        if len(elements) < num_rows:
            elements = elements.repeat(num_rows // len(elements) + 1, *[1] * len(group.element_shape))
        return elements[:num_rows], condition

    @abstractmethod
    def draw(self, num_rows: int, generator: torch.Generator) -> Pair:
        """Draw a training batch: elements and conditions of ``num_rows`` rows, the share of this process in them."""

    def hold_out(self, share: float, generator: torch.Generator) -> TrainingData:
        """Take a random ``share`` of the rows out of the data, and return it.

        Raises:
            ConfigurationError: the rows cannot be told apart, as in a loader, or too few are left.
        """
        raise ConfigurationError("held_out: expected held-out data, since a loader cannot be split, got a share")


class _Tensors(TrainingData):
    """Tensors that are checked once."""

    def __init__(self, samples: Any, condition: Any, check: Check) -> None:
        super().__init__(check)
        self.data = check((samples, condition))

    def first_rows(self, num_rows: int, generator: torch.Generator) -> Pair:
        order = permutation((len(self.data[0]),), self.data[0], generator)
        return _rows(self.data, order[:num_rows])

    def hold_out(self, share: float, generator: torch.Generator) -> TrainingData:
        held, kept = _split(len(self.data[0]), share, generator)
        taken = copy.copy(self)
        taken.data, self.data = _rows(self.data, held), _rows(self.data, kept)
        return taken

    def draw(self, num_rows: int, generator: torch.Generator) -> Pair:
        return _rows(self.data, share(integers(len(self.data[0]), (num_rows,), torch.empty(0), generator)))


class _Indexed(TrainingData):
    """A data set whose items are elements, or pairs of an element and its condition."""

    def __init__(self, dataset: Any, check: Check) -> None:
        super().__init__(check)
        self.dataset = dataset
        if len(dataset) < 2:
            raise ShapeError(f"samples: expected at least two elements, got {len(dataset)}")

    def first_rows(self, num_rows: int, generator: torch.Generator) -> Pair:
        reference = torch.empty(0, device=generator.device)
        return self._items(permutation((len(self.dataset),), reference, generator)[:num_rows])

    def hold_out(self, share: float, generator: torch.Generator) -> TrainingData:
        held, kept = _split(len(self.dataset), share, generator)
        taken = copy.copy(self)
        taken.dataset, self.dataset = (Subset(self.dataset, rows.tolist()) for rows in (held, kept))
        return taken

    def draw(self, num_rows: int, generator: torch.Generator) -> Pair:
        return self._items(share(integers(len(self.dataset), (num_rows,), torch.empty(0), generator)))

    def _items(self, indices: Tensor) -> Pair:
        return self.check(_pair(default_collate([self.dataset[i] for i in indices.tolist()])))


class _Loaded(TrainingData):
    """A loader, in its own order and batches, which starts again after its last batch.

    Several processes divide the batches, unless a `DistributedSampler` has divided the data.
    """

    is_repeatable = False

    def __init__(self, loader: Any, check: Check) -> None:
        super().__init__(check)
        self.loader = loader
        self._stream: Iterator[Any] = iter(())
        self._layout: Any = None

    def first_rows(self, num_rows: int, generator: torch.Generator) -> Pair:
        parts: list[Pair] = []
        with torch.random.fork_rng(devices=[]):
            # loaders take their order from torch's generator, unless told otherwise
            torch.default_generator.manual_seed(generator.initial_seed())
            for batch in self.loader:
                parts.append(self._checked(batch))
                if sum(len(part[0]) for part in parts) >= num_rows:
                    break
        if not parts:
            raise ShapeError("samples: expected at least two elements, got a loader without batches")
        whole: Pair = pytree.tree_map(lambda *x: torch.cat(x) if isinstance(x[0], Tensor) else x[0], *parts)
        return _rows(whole, permutation((len(whole[0]),), whole[0], generator)[:num_rows])

    def draw(self, num_rows: int, generator: torch.Generator) -> Pair:
        batch = next(self._stream, None)
        if batch is None:
            self._stream = iter(self.loader)
            batch = next(self._stream)
        pair = self._checked(batch)
        return pair if isinstance(getattr(self.loader, "sampler", None), DistributedSampler) else share(pair)

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

    Raises:
        ConfigurationError: conditions are given beside samples with conditions of their own.
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


def check_pair(
    pair: Any, group: LieGroup, encoder: ConditionEncoder | None, device: torch.device, name: str = "samples"
) -> Pair:
    """Check elements and conditions of a training, and move them to a device.

    Args:
        encoder: encoder of the conditions, ``None`` for a model without them.
        name: what messages call the elements.

    Raises:
        ConfigurationError: the dtype is below float32, or conditions are missing or not expected.
        ShapeError: elements or conditions have other shapes, or differ in number.
        NonFiniteError: elements hold NaN or infinity.
        DomainError: elements are far from the group.
    """
    samples, condition = pair
    samples = samples.detach() if isinstance(samples, Tensor) else samples
    if isinstance(condition, MaskedCondition):
        return _check_masked(samples, condition, group, encoder, device, name)
    data = check_samples(group, samples, name)
    if torch.finfo(data.dtype).bits < 32:
        raise ConfigurationError(f"{name}: expected float32 or float64, got {data.dtype}")
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
    samples: Any,
    condition: MaskedCondition,
    group: LieGroup,
    encoder: ConditionEncoder | None,
    device: torch.device,
    name: str,
) -> Pair:
    """Elements whose absent particles are at the identity, and conditions with their mask."""
    particles = Particles(group)
    g = group.check_elements(samples, name)
    batch = group.batch_shape(g)
    mask = particles.check(condition.mask, batch, g)
    hidden = particles.hide(g, mask.reshape(*batch, particles.num_particles))
    data, known = check_pair((hidden, condition.condition), group, encoder, device, name)
    return data, MaskedCondition(known, mask.to(device))


def _pair(batch: Any) -> Pair:
    """Elements and conditions of a batch of a loader, which may be a list of both, and of a mask."""
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, list | tuple) and len(batch) in (1, 2, 3):
        elements, condition, mask = (*batch, None, None)[:3]
        if mask is None:
            return elements, condition
        if isinstance(condition, Tensor) and condition.numel() == 0:
            condition = None  # torch does not collate None
        return elements, MaskedCondition(condition, mask)
    raise ConfigurationError(
        "samples: expected elements, pairs of elements and conditions, or triples with a mask, got "
        f"{type(batch).__name__}"
    )


def _split(num_rows: int, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random indices of held-out rows, and of the others."""
    num_held = round(share * num_rows)
    if num_held < 1 or num_rows - num_held < 2:
        raise ConfigurationError(f"held_out: expected a share that leaves two rows of {num_rows}, got {share}")
    order = permutation((num_rows,), torch.empty(0, device=generator.device), generator)
    return order[:num_held], order[num_held:]


def _rows(data: Pair, indices: Tensor) -> Pair:
    return pytree.tree_map(lambda x: x[indices.to(x.device)] if isinstance(x, Tensor) else x, data)


def held_out_rows(held_out: Any, data: TrainingData, check: Callable[..., Pair], seed: int) -> Pair | None:
    """Return held-out rows, of which a share of the training data is taken out of these; ``None`` for none.

    Several processes have the same rows, of the data of all, so that all end the training at the same step.

    Args:
        held_out: a share in [0, 1), or data, see `training_data`.

    Raises:
        ConfigurationError: the share is out of range, or the data cannot be split.
        ShapeError: there is no held-out element.
    """
    generator = keyed(seed, 3)
    if isinstance(held_out, int | float):
        if not 0.0 <= held_out < 1.0:
            raise ConfigurationError(f"held_out: expected a share in [0, 1) or data, got {held_out}")
        held = data.hold_out(held_out, generator) if held_out else None
    else:
        held = training_data(held_out, None, functools.partial(check, name="held_out"))
    if held is None:
        return None
    rows: Pair = gathered_shares(held.first_rows(_MAX_HELD_OUT_ROWS, generator))
    if not len(rows[0]):
        raise ShapeError("held_out: expected at least one element, got none")
    return rows


class TrainingSettings(NamedTuple):
    """Settings of a training, see `GroupDiffusion.fit`."""

    steps: int
    seconds: float | None
    batch_size: int
    learning_rate: float
    progress: bool | None

    def checked(self) -> TrainingSettings:
        """The settings, if their numbers are in range.

        Raises:
            ConfigurationError: a number is out of range.
        """
        check_count("steps", self.steps)
        check_count("batch_size", self.batch_size)
        check_positive("learning_rate", self.learning_rate)
        if self.seconds is not None:
            check_positive("seconds", self.seconds)
        return self

    def after(self, taken: float) -> TrainingSettings:
        """The settings with the time that is left after preparations that took so many seconds."""
        if self.seconds is None:
            return self
        return self._replace(seconds=max(self.seconds - taken, 0.1 * self.seconds))


class _AveragedTraining(NetworkTraining[ModuleT]):
    """Training with an average of the weights.

    Args:
        seed: see `trivgeo.training.NetworkTraining`.

    Attributes:
        average: the network with the average of the weights.
        num_steps: steps of the optimiser so far.
        is_over: whether the training ended itself before all steps, since it would not get better.
    """

    gradient_norm = 1.0

    def __init__(self, network: ModuleT, learning_rate: float, seed: int) -> None:
        super().__init__(network, learning_rate, weight_decay=0.01, warmup=0.05, seed=seed)
        self.average = copy.deepcopy(network).requires_grad_(False)
        self.num_steps, self.is_over = 0, False

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the average of the weights; running statistics, such as those of batch normalisation, are copied."""
        move_average(self.average, self.network, self.global_step)
        for kept, current in zip(self.average.buffers(), self.network.buffers(), strict=True):
            kept.copy_(current)
        self.num_steps = self.global_step
        super().on_train_batch_end(outputs, batch, batch_idx)


class PathTraining(_AveragedTraining[ConditionalNetwork]):
    """Regression of a network on the targets of a probability path, with an average of the weights.

    Args:
        num_draws: levels and elements on the path that are drawn for each row of a batch.
        held_out: held-out elements and conditions; ``None`` for none.
        base: base distribution, by which held-out data have a density.

    Attributes:
        num_skipped_rows: rows of all batches that were skipped, since a missing logarithm made their target not finite.
    """

    def __init__(
        self,
        network: ConditionalNetwork,
        path: ProbabilityPath,
        learning_rate: float,
        seed: int,
        num_draws: int = 1,
        held_out: Pair | None = None,
        base: GroupDistribution | None = None,
    ) -> None:
        super().__init__(network, learning_rate, seed)
        self.path, self.num_draws = path, num_draws
        # a list, so that the base distribution is no part of the module that is trained
        self._base = [] if base is None or isinstance(base, EmpiricalDistribution) else [base]
        self._held_out = held_out
        self._losses: list[Tensor] = []
        self._looks: list[tuple[float, float, float]] = []  # steps, loss and log-density
        self._best: dict[str, Tensor] = {}
        self.num_skipped_rows = torch.zeros((), dtype=torch.long)

    @property
    def history(self) -> TrainingHistory:
        """The losses so far."""
        looks = torch.tensor(self._looks, dtype=torch.float64).reshape(-1, 3)
        cost = torch.where(looks[:, 2].isfinite(), -looks[:, 2], torch.inf) if self._base else looks[:, 1]
        best = int(looks[cost.argmin(), 0]) if len(looks) else self.num_steps
        losses = torch.stack(self._losses).float().cpu() if self._losses else torch.zeros(0)
        return TrainingHistory(losses, looks[:, 0].long(), looks[:, 1], looks[:, 2], best, self.path.group.dim)

    @property
    def best_state(self) -> dict[str, Tensor]:
        """The averaged weights by which held-out data are likeliest; the last ones without such data.

        Where there is no density those with the least loss.
        """
        return self._best or self.average.state_dict()

    def on_train_start(self) -> None:
        """Look at the held-out data once, so that what fails does so before the training."""
        super().on_train_start()
        self.trainer.should_stop |= self.is_over
        if self._held_out is not None and not self._looks:
            self._look(self._held_out)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Look at the held-out data ten times in a training, and stop it when they become no likelier."""
        super().on_train_batch_end(outputs, batch, batch_idx)
        self._losses.append(outputs["loss"].detach())
        if self._held_out is None:
            return
        every = max(1, (self.max_steps or 1) // _NUM_LOOKS)
        if self.global_step % every == 0 or self.global_step == self.max_steps:
            self._look(self._held_out)
            if self.global_step - self.history.best_step >= _NUM_VAIN_LOOKS * every:
                self.is_over = self.trainer.should_stop = True

    def on_train_end(self) -> None:
        """Look at the held-out data if the clock has ended the training; add up skipped rows of all processes."""
        if self._held_out is not None and self._looks[-1][0] != self.num_steps:
            self._look(self._held_out)
        self.num_skipped_rows = self.trainer.strategy.reduce(self.num_skipped_rows, reduce_op="sum")
        super().on_train_end()

    @torch.no_grad()
    def _look(self, held_out: Pair) -> None:
        """Measure the averaged weights on held-out data, and keep the best."""
        network = self.average
        modes = {module: module.training for module in network.modules()}
        network.eval()
        loss = float(self._loss(held_out, self.measure_generator(0), network)[0])
        count = max(_MIN_DENSITY_ROWS, _MAX_DENSITY_PRODUCTS // self.path.group.dim)
        g, condition = _rows(held_out, torch.arange(min(count, len(held_out[0]))))
        logs = math.nan
        for base in self._base:
            features = network.encoded(condition)
            found = self.path.log_density(
                network.given(features),
                g,
                network.base_log_prob(base, features),
                self.measure_generator(1),
                _HELD_OUT_TOLERANCE,
                None,
            )
            logs = float(found.mean())
        for module, mode in modes.items():
            module.training = mode
        self._looks.append((float(self.num_steps), loss, logs))
        if self.history.best_step == self.num_steps:
            self._best = {name: x.detach().clone() for name, x in network.state_dict().items()}

    @property
    def objective(self) -> str:
        """Text of the group's scale, and of the path with its levels of noise."""
        scale = [f"{x:.5g}" for x in self.path.group.scale.flatten().tolist()]
        version = "" if self.path.target_version == 1 else f" version {self.path.target_version}"
        version += "" if self.network.version == 1 else f" network {self.network.version}"
        version += "" if self.num_draws == 1 else f" draws {self.num_draws}"
        return f"{scale} {described(self.path)}{version}"

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add ``num_skipped_rows`` to ``checkpoint``, beside what `NetworkTraining` adds."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["num_skipped_rows"] = int(self.num_skipped_rows)
        checkpoint["losses"] = torch.stack(self._losses).cpu() if self._losses else torch.zeros(0)
        checkpoint["looks"], checkpoint["best"], checkpoint["is_over"] = self._looks, self._best, self.is_over

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Read ``num_skipped_rows`` and the number of steps from ``checkpoint``, in addition to `NetworkTraining`."""
        super().on_load_checkpoint(checkpoint)
        self.num_skipped_rows = torch.tensor(checkpoint.get("num_skipped_rows", 0))
        self._losses = list(checkpoint.get("losses", torch.zeros(0)).unbind())
        self._looks, self._best = list(checkpoint.get("looks", [])), dict(checkpoint.get("best", {}))
        self.is_over = checkpoint.get("is_over", False)
        self.num_steps = checkpoint["global_step"]

    def training_step(self, data: Pair, index: int) -> Tensor:
        """Return the weighted mean square error of the network on the targets of the path, a scalar.

        Rows whose target is not finite are skipped and counted in ``num_skipped_rows``.
        """
        loss, found = self._loss(data, self.step_generator())
        self.num_skipped_rows = self.num_skipped_rows + (~found).sum()
        return loss

    def measure(self, batch: Pair, number: int) -> dict[str, Tensor]:
        return {"loss": self._loss(batch, self.measure_generator(number))[0]}

    def _loss(
        self, data: Pair, generator: torch.Generator, network: ConditionalNetwork | None = None
    ) -> tuple[Tensor, Tensor]:
        """The weighted mean square error of a network, by default the trained one; a mask of finite rows, ``[b]``."""
        network = self.network if network is None else network
        # paths draw levels that rise with the rows, and data may be sorted
        order = permutation((len(data[0]),), data[0], generator)
        samples, condition = pytree.tree_map(lambda x: x[order] if isinstance(x, Tensor) else x, data)
        elements, level, momentum, target, weight = self.path.training_batch(self._repeated(samples), generator)
        features = self._repeated(network.training_features(condition, generator))
        counted = weight
        if (particles := network.particles) is not None:  # the mean is over coordinates of present particles
            elements = particles.hide(elements, features.mask)
            target = torch.where(particles.presence(features.mask), target, 0.0)
            counted = weight * particles.share(features.mask).to(weight)
        found = torch.isfinite(target).all(-1) & torch.isfinite(elements.flatten(1)).all(-1)
        mask = found.reshape(-1, *[1] * (elements.ndim - 1))
        identity = self.path.group.identity(dtype=elements.dtype, device=elements.device)
        prediction = network(torch.where(mask, elements, identity), level, momentum, features)
        error = prediction - torch.where(found.unsqueeze(-1), target, 0.0)
        size = (counted * found).sum().clamp(min=1e-6)
        return (error.square().mean(-1) * (weight * found)).sum() / size, found

    def _repeated(self, tree: Any) -> Any:
        """Tensors ``[b, ...]`` repeated one after the other for each draw, so that the levels of a row differ."""
        if self.num_draws == 1:
            return tree
        copies = lambda x: x.repeat(self.num_draws, *[1] * (x.ndim - 1)) if isinstance(x, Tensor) else x  # noqa: E731
        return pytree.tree_map(copies, tree)


class FlowMapTraining(_AveragedTraining[FlowMap]):
    """Regression of a `FlowMap` on average velocities along trajectories, see `FlowTrajectories`."""

    def training_step(self, batch: FlowMapBatch, index: int) -> Tensor:
        """Return the mean pseudo-Huber loss of average velocities in units of ``speed``, a scalar.

        The error of displacements would count short jumps by the square of their length, and many steps would not
        follow the flow. Large errors count linearly: where trajectories part, a map that goes to one side is better
        than one that goes between them. Rows whose displacement is not finite are skipped.
        """
        found = torch.isfinite(batch.velocity).all(-1)
        target = torch.where(found.unsqueeze(-1), batch.velocity, 0.0) / self.network.speed
        velocity = self.network(batch.elements, batch.level, batch.end_level, batch.features)
        square = (velocity - target).square().mean(-1)
        error = (square + _LINEAR_ERROR**2).sqrt() - _LINEAR_ERROR
        return (error * found).sum() / found.sum().clamp(min=1)

    def measure(self, batch: FlowMapBatch, number: int) -> dict[str, Tensor]:
        return {"loss": self.training_step(batch, number)}


def train_average(
    training: _AveragedTraining[Any],
    draw: Callable[[int, torch.Generator], Any],
    settings: TrainingSettings,
    folder: str | Path | None = None,
    is_repeatable: bool = False,
    is_dealt: bool = False,
    share: float = 1.0,
) -> bool:
    """Run `train`, check the average of the weights, and return whether time ended the training before all steps.

    See `train` for the arguments; it takes a ``share`` of the time.

    Raises:
        NonFiniteError: a weight is NaN or infinite.
    """
    limit = share * (_DEFAULT_TRAINING_SECONDS if settings.seconds is None else settings.seconds)
    options = settings.progress, is_repeatable, is_dealt
    train(training, draw, settings.steps, settings.batch_size, limit, folder, *options)
    for name, x in training.average.state_dict().items():
        if not bool(torch.isfinite(x).all()):
            raise NonFiniteError(
                f"network: expected finite weights after the training, got NaN or infinity in {name}; a smaller "
                "learning_rate may help"
            )
    ended_by_time = training.num_steps < settings.steps and not training.is_over
    if ended_by_time and settings.seconds is None:
        warnings.warn(
            f"{limit:g} seconds ended the training after {training.num_steps} of {settings.steps} steps; give seconds=",
            stacklevel=4,
        )
    return ended_by_time


def train_flow_map(
    networks: ConditionalNetwork,
    fitted: FittedPath,
    features: Any,
    shape: tuple[int, int],
    settings: TrainingSettings,
    seed: int,
) -> FlowMap:
    """Train the flow map of a fitted model, and return it.

    Args:
        networks: networks of the fitted model.
        features: features of conditions, drawn for the trajectories, ``[m, d]``; ``None`` without conditions.
        shape: width and depth of the map's network.

    Raises:
        ConfigurationError: the features are no vectors.
        NonFiniteError: the training diverged.
    """
    if features is not None and (not isinstance(features, Tensor) or features.ndim != 2):
        got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ConfigurationError(f"condition: expected features that are vectors [m, d], got {got}")
    reference = next(networks.parameters())

    def draw_features(count: int, generator: torch.Generator) -> Tensor | None:
        if features is None or networks.encoder is None:
            return None
        return networks.encoder.drop(features[integers(len(features), (count,), reference, generator)], generator)

    trajectories = FlowTrajectories(
        lambda x: fitted.path.flow(networks.given(x)),
        fitted.base.sample,
        draw_features,
        fitted.path,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        like = networks.shape_of(*shape)
        flow_map = FlowMap(networks.group, like, None if features is None else features.shape[1], fitted.path)
        flow_map.to(reference)
        first = trajectories.draw(_NUM_SCALE_ROWS, keyed(seed, 2, device=reference.device))
        flow_map.network.prepare(first.elements, fitted.path)
        flow_map.adopt(networks.network)
        is_found = torch.isfinite(first.velocity).all(-1)
        flow_map.speed.copy_(first.velocity[is_found].square().mean().sqrt())
    training = FlowMapTraining(flow_map, settings.learning_rate, seed)
    own_steps = settings.steps // 2
    train_average(training, trajectories.draw, settings._replace(steps=settings.steps - own_steps), share=0.5)
    if own_steps:
        flow_map.load_state_dict(training.average.state_dict())
        training = FlowMapTraining(flow_map, settings.learning_rate, seed)
        trajectories.follow_map(training.average)
        train_average(training, trajectories.draw, settings._replace(steps=own_steps), share=0.5)
    return training.average.to(reference.device).eval()
