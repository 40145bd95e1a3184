"""Training of a network with Lightning: optimiser, metrics, file; needs the package ``lightning``."""

from __future__ import annotations

import logging
import math
import os
import platform
import struct
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler
from tqdm import tqdm

import trivgeo
from trivgeo import _processes
from trivgeo._devices import module_device
from trivgeo._random import keyed
from trivgeo._timing import announce
from trivgeo._torch import pytree
from trivgeo.checks import check_count, check_fraction, check_positive, check_seed
from trivgeo.errors import CheckpointError, ConfigurationError, missing_package
from trivgeo.networks import Network, beside, check_destination, check_weights, write_file

try:
    import lightning.pytorch as pl
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from lightning.pytorch.callbacks import ModelCheckpoint, Timer
    from lightning.pytorch.plugins import TorchCheckpointIO
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
    from lightning.pytorch.utilities.types import OptimizerLRScheduler

except ModuleNotFoundError as missing:
    raise missing_package("training", "Lightning", "training") from missing


DAMAGED = (
    *(UnpicklingError, EOFError, OSError, RuntimeError, ValueError, LookupError, TypeError),
    *(AssertionError, AttributeError, ArithmeticError, struct.error),
)
"""Errors of torch when it reads a damaged file, or a file that torch did not write."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's files of checkpoints, written beside the old file before they replace it.

    A full disk, or the end of the process, leaves the old file complete. Addresses of other file systems are left to
    Lightning.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with beside(path) as temporary:
            try:
                with temporary.open("wb") as file:
                    torch.save(checkpoint, file)
                    file.flush()
                    os.fsync(file.fileno())
            except RuntimeError as error:  # torch's writer raises it on a full disk
                raise OSError(str(error)) from error
            temporary.replace(path)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return super().load_checkpoint(path, *args, **kwargs)
        except DAMAGED as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise CheckpointError(
                f"{path}: expected the checkpoint of a training, whole: {reason}; without it training begins anew"
            ) from error


ModuleT = TypeVar("ModuleT", bound=nn.Module)

_STEPS_TIMED = 4  # steps after which the log says how long a training takes
_MIN_CLOCK_LEAD = 0.1  # share of the decay by which the clock is ahead of the steps if it decides the step size
_MAX_SECONDS = 1e12  # longest run; a timedelta holds 8e13 seconds


class NetworkTraining(pl.LightningModule, ABC, Generic[ModuleT]):
    """Training of a network by AdamW with linear warm-up and cosine decay, and export with metrics to safetensors.

    In several processes (``strategy="ddp"``) gradients are averaged: a step of W processes is that of one process with
    ``accumulate_grad_batches=W``, with the running statistics of batch normalisation, but for random numbers of the
    objective. Metrics are means over the data of all.

    Args:
        network: trained module; the initial weights of a `trivgeo.networks.Network` are drawn anew from the seed.
        learning_rate: peak step size.
        weight_decay: weight decay of AdamW.
        warmup: share of the steps over which the step size rises.
        seed: seed of weights and random numbers.
        export: the `.safetensors` file that is written at the end; ``None`` for no file.

    Attributes:
        seconds: time after which training ends, with the step size at zero, even if the trainer has steps left; the
            result then depends on the speed of the machine. ``None`` for no bound but a trainer's ``max_time``.
        max_steps: number of steps of the optimiser; ``None`` for the number of the trainer.
        gradient_norm: norm at which `train` clips gradients.

    Raises:
        ConfigurationError: a number is out of range.
    """

    gradient_norm: ClassVar[float] = 5.0

    def __init__(
        self,
        network: ModuleT,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        warmup: float = 0.1,
        seed: int = 0,
        export: str | Path | None = None,
    ) -> None:
        super().__init__()
        if not weight_decay >= 0:
            raise ConfigurationError(f"weight_decay: expected at least 0, got {weight_decay}")
        self.network = network
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.weight_decay = weight_decay
        self.warmup = check_fraction("warmup", warmup)
        self.seed = check_seed(seed)
        self.export = export
        self.seconds: float | None = None
        self.max_steps: int | None = None
        self._first: list[Tensor] | None = None  # the first batch of `train`, which identifies its data
        self._sums: dict[str, Tensor] = {}
        self._tested: tuple[int, dict[str, float]] | None = None
        if isinstance(network, Network):
            network.initialise(seed)

    @abstractmethod
    def measure(self, batch: Any, number: int) -> dict[str, Tensor]:
        """Return metrics of one batch by name, means over its data.

        The number of the batch selects its random numbers, together with the seed.
        """

    @property
    def objective(self) -> str:
        """Text that identifies the training objective; a checkpoint of another objective is refused."""
        return ""

    def step_generator(self) -> torch.Generator:
        """The generator of this training step, a function of (seed, step, rank) alone, so that training resumes."""
        other = (0, _processes.rank()) if _processes.rank() else ()  # the first process has the numbers of a single one
        return keyed(self.seed, self.global_step, *other, device=self.device)

    def measure_generator(self, number: int) -> torch.Generator:
        """Return the generator of the metrics of test batch ``number``; no training step uses its numbers."""
        return keyed(self.seed, 0, number, device=self.device)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Measure a batch of held-out data; the means over all batches are logged under names that begin with "val"."""
        self._add(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        """Log the means of the metrics over the held-out data of all processes."""
        self._log_means("val", prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Measure a batch of test data; the means over all batches are logged under names that begin with "test"."""
        self._add(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        """Log the means of the metrics over the test data of all processes."""
        self._log_means("test")

    def _add(self, batch: Any, number: int) -> None:
        size = batch_length(batch)
        for name, value in {**self.measure(batch, number), "": torch.ones(())}.items():
            self._sums[name] = self._sums.get(name, 0.0) + size * value.detach().double().to(self.device)

    def _log_means(self, stage: str, prog_bar: bool = False) -> None:
        # Lightning's own mean over processes truncates the mean number of data of a process to an integer (2.6, gloo)
        sums = {name: self.trainer.strategy.reduce(x.clone(), reduce_op="sum") for name, x in self._sums.items()}
        self._sums = {}
        count = sums.pop("", None)
        means = {f"{stage}/{name}": (x / count).float() for name, x in sums.items()}
        self.log_dict(means, prog_bar=prog_bar, batch_size=1, sync_dist=True)

    def configure_callbacks(self) -> list[pl.Callback]:
        """What gives all processes one normalisation, and the clock.

        The state of the clock is in checkpoints: a resumed training counts the time spent before.
        """
        callbacks: list[pl.Callback] = [RunningStatistics()]
        if self.seconds is not None:
            callbacks.append(Timer(timedelta(seconds=min(self.seconds, _MAX_SECONDS)), verbose=False))
        return callbacks

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return AdamW over the parameters of the network, whose step size a schedule changes at every step."""
        optimizer = torch.optim.AdamW(self.network.parameters(), self.learning_rate, weight_decay=self.weight_decay)
        total = int(self.trainer.estimated_stepping_batches)
        total = total if self.max_steps is None else min(total, self.max_steps)
        rise = max(1, round(self.warmup * total))
        callbacks: list[pl.Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        timer = next((callback for callback in callbacks if isinstance(callback, Timer)), None)

        # the schedules of torch count steps alone; this one ends with the clock, too
        def factor(step: int) -> float:
            if step < rise:
                return (step + 1) / rise
            done, elapsed = (step - rise) / max(1, total - rise), _elapsed_share(timer)
            if timer is not None and self.trainer.world_size > 1:  # the same step size in all processes
                elapsed = self.trainer.strategy.broadcast(elapsed)
            # the clock decides only if it will run out first, so that other runs are functions of the seed
            done = elapsed if elapsed > done + _MIN_CLOCK_LEAD else done
            return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """Check the path of the export, and stop a resumed trainer that has made all steps.

        Raises:
            CheckpointError: the path cannot be written to.
        """
        if self.global_step == self.max_steps:
            self.trainer.should_stop = True
        if self.export is not None and self.trainer.is_global_zero:
            check_destination(self.export_path(self.export))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop the trainer after ``max_steps``."""
        # a Lightning trainer with `max_steps` resumes from the end of an epoch as if from its middle
        if self.global_step == self.max_steps:
            self.trainer.should_stop = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the identity of this training to a checkpoint, so that another training does not resume from it."""
        if self._first is not None:
            checkpoint["training"] = {"identity": self._identity(), "first": self._first}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Compare the training of the checkpoint with this one.

        Raises:
            CheckpointError: weights are NaN or infinite, or belong to another training.
            ConfigurationError: the checkpoint has more steps than this training.
        """
        if self._first is not None:
            own = {"identity": self._identity(), "first": self._first}
            kept = checkpoint.get("training", own)  # older checkpoints do not say
            # the file is of the first process, and others have other rows
            is_known = self.trainer.global_rank > 0 or _alike(kept["first"], self._first)
            if kept["identity"] != own["identity"] or not is_known:
                raise CheckpointError(
                    "folder: expected the checkpoint of a training on these data with these settings, got that of "
                    "another training; train in another folder"
                )
        check_weights("checkpoint", checkpoint["state_dict"])
        if self.max_steps is not None and checkpoint["global_step"] > self.max_steps:
            raise ConfigurationError(
                f"steps: expected at least the {checkpoint['global_step']} steps of the checkpoint in the folder, got "
                f"{self.max_steps}; give more steps, or another folder"
            )

    def _identity(self) -> str:
        """Text of all that a training depends on except its data and its length."""
        shapes = {name: list(value.shape) for name, value in self.network.state_dict().items()}
        numbers = (self.seed, self.learning_rate, self.weight_decay, self.warmup)
        return repr((type(self).__name__, numbers, shapes, self.objective))

    def on_train_end(self) -> None:
        """Write the network and its metrics to the file ``export``, if it is not ``None``."""
        if self.export is not None and self.trainer.is_global_zero:
            entries = {"metadata": self.export_metadata()}
            if (score := self.export_score()) is not None:
                entries["score"] = score
            write_file(self.network, self.export_path(self.export), entries)

    def export_path(self, export: str | Path) -> Path:
        """Return the path of the exported file, ``export`` unless a subclass changes it."""
        return Path(export)

    def export_score(self) -> dict[str, Any] | None:
        """Return the description of the exported network as a learned score, by default ``None`` for other networks.

        `trivgeo.inversion.learned.score_files.describe` makes such descriptions.
        """
        return None

    def export_metadata(self) -> dict[str, Any]:
        """Return the header of the exported file: metrics on the test data, settings, seed, versions."""
        return {
            "metrics": self.test_metrics(),
            "epochs": self.trainer.current_epoch,
            "steps": self.trainer.global_step,
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
            "seed": self.seed,
            "versions": versions(),
        }

    def test_metrics(self) -> dict[str, float]:
        """The metrics on all test data of the data module, in evaluation mode; empty without a data module."""
        data: pl.LightningDataModule | None = self.trainer.datamodule  # type: ignore[attr-defined]
        if data is None:
            return {}
        if self._tested is None or self._tested[0] != self.global_step:
            self._tested = self.global_step, self._metrics_on(data.test_dataloader())
        return self._tested[1]

    @torch.no_grad()
    def _metrics_on(self, batches: Any) -> dict[str, float]:
        training = self.training
        self.eval()
        sums: dict[str, float] = {}
        count = 0
        for number, batch in enumerate(batches):
            size = batch_length(batch)
            for name, value in self.measure(self.transfer_batch_to_device(batch, self.device, 0), number).items():
                sums[name] = sums.get(name, 0.0) + size * float(value)
            count += size
        self.train(training)
        return {name: total / count for name, total in sums.items()}


class RunningStatistics(pl.Callback):
    """Batch normalisation in several processes: running statistics of one process that sees the batches of all in turn.

    Each process normalises a batch by the batch itself. Its running statistics, by which data are normalised in
    evaluation, are without this callback those of its own batches: W times fewer than one process has seen, so that
    evaluation early in a training is by the initial statistics.
    """

    def __init__(self) -> None:
        self._before: list[tuple[_BatchNorm, Tensor, Tensor]] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note the statistics before the batch."""
        if trainer.world_size > 1:
            norms = [x for x in pl_module.modules() if isinstance(x, _BATCH_NORMS) and x.track_running_stats]
            self._before = [(norm, *_statistics(norm)) for norm in norms]

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add what the batches of all processes brought, in the order of the ranks."""
        for norm, before, count in self._before:
            after, later = map(trainer.strategy.all_gather, _statistics(norm))
            statistics, total = before, count
            for theirs, new in zip(after, later - count, strict=True):
                brought = 1.0 - _left(norm, count, new)  # share of their new batches in their statistics
                mean = before + (theirs - before) / torch.where(new > 0, brought, 1.0)
                statistics = torch.lerp(mean, statistics, _left(norm, total, new).to(mean))
                total = total + new
            for buffer, value in zip(_buffers(norm), (*statistics, total), strict=True):
                buffer.copy_(value)


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def _buffers(norm: _BatchNorm) -> tuple[Tensor, Tensor, Tensor]:
    """Running means and variances, and the number of batches that they are of."""
    mean, variance, count = norm.running_mean, norm.running_var, norm.num_batches_tracked
    assert mean is not None
    assert variance is not None
    assert count is not None
    return mean, variance, count


def _statistics(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """A copy of the running means and variances of the channels, `[2, c]`, and the number of batches."""
    mean, variance, count = _buffers(norm)
    return torch.stack([mean, variance]), count.clone()


def _left(norm: _BatchNorm, count: Tensor, new: Tensor) -> Tensor:
    """The share of statistics of ``count`` batches that is left after ``new`` further batches."""
    if norm.momentum is None:  # the mean over all batches
        return count / (count + new).clamp_min(1)
    return (1.0 - norm.momentum) ** new.double()


class DealtSampler(DistributedSampler):
    """Indices of a sampler, dealt to the processes in turn, so that all have the same number; what is left is dropped.

    Lightning leaves it as it is. A sampler of torch's that Lightning wraps would begin every epoch at the same index.

    Args:
        sampler: the sampler; one whose order changes with the epoch has ``set_epoch``.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        number = _processes.num_processes()
        yield from islice(self.sampler, _processes.rank(), len(self) * number, number)

    def __len__(self) -> int:
        return len(self.sampler) // _processes.num_processes()


class EpochSampler(Sampler[int]):
    """Indices ``epoch * steps, ..., epoch * steps + steps - 1``; the trainer sets the epoch.

    The samplers of torch begin at index 0 in every epoch.
    """

    def __init__(self, steps: int) -> None:
        self.steps = check_count("steps", steps)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Select the block of indices of the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        # the epoch is read at the first index: a resumed trainer sets it after it makes the iterator
        yield from range(self.epoch * self.steps, (self.epoch + 1) * self.steps)

    def __len__(self) -> int:
        return self.steps


class _NextSteps(Sampler[int]):
    """Indices of the next steps of a module in training, wherever it resumed."""

    def __init__(self, steps: int, module: pl.LightningModule) -> None:
        self.steps, self.module = steps, module

    def __iter__(self) -> Iterator[int]:
        # the step is read at the first index: a resumed trainer sets it after it makes the iterator
        yield from range(self.module.global_step, self.module.global_step + self.steps)

    def __len__(self) -> int:
        return self.steps


class SteppedData(Dataset[Any]):
    """Random batches; batch i is a function of (seed, i) alone.

    Args:
        draw: function of (count, generator) to data with one batch dimension.
        count: number of data in a batch.
    """

    def __init__(self, draw: Callable[[int, torch.Generator], Any], count: int, seed: int) -> None:
        self.draw = draw
        self.count = check_count("batch_size", count)
        self.seed = seed

    def __getitem__(self, index: int) -> Any:
        return self.draw(self.count, keyed(self.seed, 1, index))


class Bar(pl.Callback):
    """A tqdm bar of the training steps that shows the loss; the log says after a few how long all take.

    Lightning's bar begins anew in every epoch, and is printed without a terminal, too.

    Args:
        total: number of training steps.
        title: text before the bar.
        progress: whether the bar is shown; ``None`` shows it in a terminal only.
        seconds: bound of the time of the training, see `train`.
    """

    def __init__(self, total: int, title: str, progress: bool | None, seconds: float | None = None) -> None:
        self.total, self.title, self.seconds = total, title, math.inf if seconds is None else seconds
        self.number, self.first = 0, 0.0
        self.bar: tqdm = tqdm(total=total, desc=title, leave=False, disable=None if progress is None else not progress)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Advance the bar to the step from which a resumed run continues."""
        self.bar.update(trainer.global_step)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance the bar by one step; every twenty steps show the ``loss`` in ``outputs``."""
        self.bar.update()
        self.number += 1
        if self.number == 1:  # the first step makes what further ones have
            self.first = time.perf_counter()
        if self.number == _STEPS_TIMED:
            each = (time.perf_counter() - self.first) / (_STEPS_TIMED - 1)
            left = self.total - trainer.global_step
            announce(f"{self.title}: {left:,} more steps", min(each * left, self.seconds))
        if batch_idx % 20 == 0 and not self.bar.disable:
            self.bar.set_postfix_str(f"loss {float(outputs['loss']):.3f}")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the bar."""
        self.bar.close()


def move_average(average: nn.Module, network: nn.Module, step: int, decay: float = 0.999) -> None:
    """Update an exponential average of weights in place.

    Args:
        average: the network that holds the average.
        network: the network that is averaged.
        step: number k of the step; the decay of an early step is at most (1 + k) / (10 + k), so that the initial
            weights are forgotten.
        decay: decay of a late step.
    """
    update = get_ema_multi_avg_fn(min(decay, (1 + step) / (10 + step)))
    update(list(average.parameters()), list(network.parameters()), step)


def _elapsed_share(timer: Timer | None) -> float:
    """The share of a timer's time that is over; zero without a timer, or if it has no end."""
    remaining = None if timer is None else timer.time_remaining()
    if timer is None or remaining is None:
        return 0.0
    elapsed = timer.time_elapsed()
    return elapsed / (elapsed + remaining)


def versions() -> dict[str, str]:
    """Return the versions of packages that determine the numbers of a training, by name."""
    return {
        "trivgeo": trivgeo.__version__,
        "torch": torch.__version__,
        "lightning": version("lightning"),
        "python": platform.python_version(),
    }


def batch_length(batch: Any) -> int:
    """The number of data in a batch."""
    return len(pytree.tree_leaves(batch)[0])


def train(
    module: NetworkTraining[Any],
    draw: Callable[[int, torch.Generator], Any],
    steps: int,
    batch_size: int,
    seconds: float | None,
    folder: str | Path | None,
    progress: bool | None,
    is_repeatable: bool = True,
    is_dealt: bool = False,
) -> None:
    """Train a module on batches of ``batch_size`` random data, on its device; resume from a checkpoint.

    Processes that ``torchrun`` started, or that are in a group of `torch.distributed`, train one module. Each takes its
    share of the rows of a batch, gradients are averaged, and the first process writes checkpoints.

    Args:
        draw: function of (count, generator) to data; batch i is a function of the module's seed and i. In several
            processes it returns the whole batch, of which this process takes its share, unless ``is_dealt``.
        steps: number of steps of the optimiser.
        seconds: time after which the training ends; ``None`` for no bound.
        folder: folder of the checkpoint ``last.ckpt``, written every hundred steps, or ten times if there are fewer
            than a thousand; ``None`` for no checkpoint.
        progress: whether a bar of the steps is shown; ``None`` shows it in a terminal only.
        is_repeatable: whether batch i is the same in every run; otherwise the data of a checkpoint are not compared
            with the data of this run.
        is_dealt: whether ``draw`` returns the share of this process alone.

    Raises:
        CheckpointError: the folder holds a checkpoint of another training, or a damaged one, or cannot be written to.
        ConfigurationError: ``folder`` is a file, or holds a checkpoint of more steps; the batch size is no multiple of
            the number of processes, or their modules differ.
    """
    device = module_device(module) or torch.device("cpu")
    world = _processes.join(device)
    if batch_size % world:
        raise ConfigurationError(
            f"batch_size: expected a multiple of {world}, the number of processes, got {batch_size}"
        )
    _processes.check_same("module", module._identity())
    kept = None if folder is None else Path(folder)
    if kept is not None and kept.exists() and not kept.is_dir():
        raise ConfigurationError(f"folder: expected a folder, got the file {kept}")
    each = max(1, min(100, steps // 10))
    progress = progress if _processes.rank() == 0 else False
    callbacks: list[pl.Callback] = [Bar(steps, type(module).__name__, progress, seconds)]
    if kept is not None:
        check_destination(kept / "last.ckpt")
        callbacks.append(ModelCheckpoint(dirpath=kept, filename="last", save_top_k=1, enable_version_counter=False))
    last = None if kept is None or not (kept / "last.ckpt").exists() else kept / "last.ckpt"
    mine = draw if is_dealt else lambda count, generator: _processes.share(draw(count, generator))
    data = SteppedData(mine, batch_size, module.seed)
    module._first = []
    if is_repeatable:
        leaves = [leaf for leaf in pytree.tree_leaves(data[0]) if isinstance(leaf, Tensor)]
        module._first = [leaf.detach().cpu() for leaf in leaves]
    module.seconds, module.max_steps = seconds, steps
    with _quietly():
        trainer = pl.Trainer(
            accelerator=device.type,
            devices=1 if device.index is None or device.type == "cpu" else [device.index],
            num_nodes=world,
            strategy=_strategy(device),
            use_distributed_sampler=False,
            max_epochs=steps,  # no less: a checkpoint may have shorter epochs; the module stops after all steps
            gradient_clip_val=module.gradient_norm,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=kept is not None,
            callbacks=callbacks,
            plugins=[AtomicCheckpointIO()],
        )
        loader = DataLoader(data, batch_size=None, sampler=_NextSteps(each, module))
        trainer.fit(module, loader, ckpt_path=last, weights_only=True)
    module.to(device)  # Lightning leaves it on the CPU


class _JoinedProcesses(ClusterEnvironment):
    """The group of `torch.distributed` that this process is in, one process for each device, however it was made."""

    creates_processes_externally = True
    main_address, main_port = "", 0  # the group is there

    @staticmethod
    def detect() -> bool:
        return _processes.num_processes() > 1

    def world_size(self) -> int:
        return _processes.num_processes()

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return _processes.rank()

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return _processes.rank()


def _strategy(device: torch.device) -> Strategy:
    """One device, or one of each process, whose gradients are averaged."""
    if _processes.num_processes() == 1:
        return SingleDeviceStrategy(device)
    # a step may leave parameters without gradient, such as those of conditions that are dropped
    return DDPStrategy(parallel_devices=[device], cluster_environment=_JoinedProcesses(), find_unused_parameters=True)


def _alike(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether batches are the same up to rounding on another machine."""
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.allclose(x.double(), y.double(), rtol=1e-3, atol=1e-5, equal_nan=True)
        for x, y in zip(a, b, strict=True)
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """Context without Lightning's messages about devices, loggers and loaders."""
    loggers: Sequence[logging.Logger] = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            # most networks leave no parameter without gradient
            warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
