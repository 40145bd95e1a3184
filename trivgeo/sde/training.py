"""The training of a `GroupDiffusion` by Lightning."""

from __future__ import annotations

import copy
import logging
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from torch import Tensor, nn

from trivgeo._random import integers, keyed
from trivgeo.networks import check_weights
from trivgeo.sde.group_network import GroupNetwork
from trivgeo.sde.transport import Transport

__all__ = ["NetworkLessons", "move_average", "train"]

_WARMUP = 200  # steps
_DECAY = 0.999  # of the average of the weights
_MAX_NORM = 1.0


class NetworkLessons(pl.LightningModule):
    """AdamW on the lessons of a transport, with an average of the weights; stops after so many steps or minutes.

    The step size falls to zero by a cosine of the share of the steps, or of the time, that has passed. Random numbers
    are a function of seed and step alone.

    Args:
        network: what is trained.
        transport: what it is to learn.
        data: elements ``[m, *element_shape]``.
        settings: steps, minutes, batch size, peak step size, seed.
    """

    def __init__(self, network: GroupNetwork, transport: Transport, data: Tensor, settings: dict[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.average = copy.deepcopy(network).requires_grad_(False)
        self.transport = transport
        self.data = data
        self.settings = settings
        self.register_buffer("seconds", torch.zeros((), dtype=torch.float64))
        self.seconds: Tensor
        self._clock = 0.0
        self.lost = data.new_zeros((), dtype=torch.long)

    def train_dataloader(self) -> Iterator[int]:
        """Numbers of steps; every step draws its own batch."""
        return range(self.settings["steps"])  # type: ignore[return-value]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(
            self.network.parameters(), self.settings["learning_rate"], betas=(0.9, 0.99), weight_decay=0.01
        )

    def on_train_start(self) -> None:
        """Start the clock."""
        self._clock = time.perf_counter()

    @property
    def progress(self) -> float:
        """The share of the training that has passed."""
        passed = float(self.seconds) + time.perf_counter() - self._clock
        return min(1.0, max(self.global_step / self.settings["steps"], passed / (60.0 * self.settings["minutes"])))

    def training_step(self, batch: int, index: int) -> Tensor:
        """The mean square of what the network misses."""
        generator = keyed(self.settings["seed"], self.global_step, device=self.data.device)
        rows = integers(len(self.data), (self.settings["batch_size"],), self.data, generator)
        elements, level, momentum, target = self.transport.lesson(self.data[rows], generator)
        found = torch.isfinite(target).all(-1) & torch.isfinite(elements.flatten(1)).all(-1)
        shape = found.reshape(-1, *[1] * (elements.ndim - 1))
        identity = self.transport.group.identity(dtype=elements.dtype, device=elements.device)
        missed = self.network(torch.where(shape, elements, identity), level, momentum) - torch.where(
            found.unsqueeze(-1), target, 0.0
        )
        loss = (missed.square().mean(-1) * found).sum() / found.sum().clamp(min=1)
        self.lost = self.lost + (~found).sum()
        self.log("loss", loss.detach(), prog_bar=True)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Bound the gradient, and set the step size."""
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), _MAX_NORM)
        rise = min(1.0, (self.global_step + 1) / _WARMUP)
        fall = 0.5 * (1.0 + math.cos(math.pi * self.progress))
        for group in optimizer.param_groups:
            group["lr"] = self.settings["learning_rate"] * rise * fall

    def on_train_batch_end(self, outputs: Any, batch: int, batch_idx: int) -> None:
        """Move the average of the weights; stop in time."""
        move_average(self.average, self.network, self.global_step, _DECAY)
        if self.progress >= 1.0:
            self.trainer.should_stop = True

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check the weights.

        Raises:
            CheckpointError: some are NaN or infinite.
        """
        check_weights("checkpoint", checkpoint["state_dict"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """With the time that has passed."""
        now = time.perf_counter()
        self.seconds += now - self._clock
        self._clock = now
        checkpoint["state_dict"]["seconds"] = self.seconds.clone()


@torch.no_grad()
def move_average(average: nn.Module, network: nn.Module, step: int, decay: float) -> None:
    """An exponential average of weights, which forgets the start: its decay is at most (1 + k) / (10 + k) at step k.

    Args:
        average: the network that holds it, changed in place.
        network: what is averaged.
        step: k.
        decay: of a step, in the end.
    """
    weight = 1.0 - min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), weight)


def train(lessons: NetworkLessons, folder: Path | None, progress: bool) -> None:
    """Run the training, from the last checkpoint in the folder if there is one.

    Args:
        lessons: what to train; on the device on which it is to run.
        folder: where checkpoints go, fifty in all; ``None`` keeps none.
        progress: show a bar.
    """
    callbacks: list[pl.Callback] = [TQDMProgressBar(refresh_rate=20)] if progress else []
    if folder is not None:
        interval = max(1, lessons.settings["steps"] // 50)
        callbacks.append(
            ModelCheckpoint(folder, "last", save_top_k=1, every_n_train_steps=interval, enable_version_counter=False)
        )
    device = lessons.data.device
    last = None if folder is None else folder / "last.ckpt"
    with warnings.catch_warnings(), _quiet():
        # Lightning's use of torch, not ours
        warnings.filterwarnings("ignore", message=r".*LeafSpec.* is deprecated", category=FutureWarning)
        warnings.filterwarnings("ignore", message=r"Checkpoint directory .* exists", category=UserWarning)
        # a step's batch is a function of its number, which the checkpoint holds
        warnings.filterwarnings("ignore", message="You're resuming from a checkpoint", category=UserWarning)
        trainer = pl.Trainer(
            accelerator="cpu" if device.type == "cpu" else "gpu",
            devices=1 if device.type == "cpu" else [device.index or 0],
            max_steps=lessons.settings["steps"],
            max_epochs=1,
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=folder is not None,
            enable_progress_bar=progress,
            enable_model_summary=False,
        )
        trainer.fit(lessons, lessons.train_dataloader(), ckpt_path=last if last is not None and last.exists() else None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Lightning's notes on devices and services."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
