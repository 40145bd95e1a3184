"""The state of a training, by which the same command goes on, and the curve of its metrics."""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from filelock import BaseFileLock
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from matplotlib.figure import Figure
from torch import Tensor

from trivgeo.errors import CheckpointError

from .files import files_read, hold, storage, write_picture
from .run_identity import identity

_CURVE = "curve.png"
_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "_.-=+*#@"  # for terminals without those characters
_NUM_BARS = 32  # characters of a line in the terminal
_LOSS = "training loss"  # mean over an epoch

_WITHOUT_EFFECT = {
    *("accelerator", "logger", "callbacks", "default_root_dir", "log_every_n_steps", "profiler", "barebones"),
    *("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "num_sanity_val_steps", "detect_anomaly"),
    *("model_registry", "enable_autolog_hparams", "limit_test_batches", "limit_predict_batches"),
}
"""Settings of the trainer that change no weight."""


def training_identity(config: Mapping[str, Any]) -> str:
    """A hash of all that determines the weights of a training: that of `identity`, and what the trainer does.

    Args:
        config: configuration of the training, as the command line has it.
    """
    trainer = {name: x for name, x in (config.get("trainer") or {}).items() if name not in _WITHOUT_EFFECT}
    parts = [identity(config), trainer]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


class TrainingState(ModelCheckpoint):
    """Keeps the state after every epoch in one file, named by the identity of the training.

    Another training in the same folder has another file. One process at a time makes a training.

    Args:
        folder: folder of the file.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(
            folder, save_top_k=1, every_n_epochs=1, save_on_train_epoch_end=True, enable_version_counter=False
        )
        self.folder = Path(folder)
        self._lock: BaseFileLock | None = None

    def identify(self, config: Mapping[str, Any]) -> Path | None:
        """Take the name of the file from a configuration, and return the file if an earlier run wrote one."""
        self.filename = f"training-{training_identity(config)}"
        path = self.folder / f"{self.filename}{self.FILE_EXTENSION}"
        return path if path.is_file() else None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """As its parent; hold the folder.

        Raises:
            FolderInUseError: another process makes this training.
        """
        super().setup(trainer, pl_module, stage)
        if trainer.is_global_zero and self._lock is None:
            self._lock = hold(self.folder, f".{self.filename}.lock")

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the checksums of all files that the training has read."""
        checkpoint["files_read"] = files_read()

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Compare the files that the training had read with those of this run.

        Raises:
            CheckpointError: files have changed since.
        """
        before, now = checkpoint.get("files_read", {}), files_read()
        if any(before[path] != now[path] for path in before.keys() & now.keys()):
            raise CheckpointError(
                f"{self.folder}: expected the data of the training that was begun here, got files that have changed; "
                "train in another folder, --trainer.default_root_dir"
            )

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Release the folder."""
        self._release()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """As its parent; release the folder: the trainer calls no `teardown` then."""
        super().on_exception(trainer, pl_module, exception)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class TrainingCurve(Callback):
    """Collects the mean loss and the validation metrics of every epoch; checkpoints hold them, too.

    Attributes:
        epochs: numbers by name, of each epoch.
    """

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []
        self._loss: Tensor | None = None
        self._num_steps = 0
        self._measured: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = list(state_dict["epochs"])

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin a mean of the loss."""
        self._loss, self._num_steps, self._measured = None, 0, {}

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the loss of a step, if the module returns one."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            # Lightning has divided it by the batches of a step
            whole = loss.detach().double() * trainer.accumulate_grad_batches
            self._loss = whole + (0.0 if self._loss is None else self._loss)
            self._num_steps += 1

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the validation metrics of an epoch."""
        if not trainer.sanity_checking:
            names = (name for name in trainer.callback_metrics if not name.startswith("train"))
            self._measured = {name: float(trainer.callback_metrics[name]) for name in names}

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the numbers of an epoch, those of all processes."""
        loss = self._loss
        mean = {} if loss is None else {_LOSS: float(trainer.strategy.reduce(loss / self._num_steps))}
        self.epochs.append({"epoch": trainer.current_epoch + 1, "step": trainer.global_step, **mean, **self._measured})

    @property
    def names(self) -> list[str]:
        """Names of the numbers."""
        return [
            name for name in dict.fromkeys(x for epoch in self.epochs for x in epoch) if name not in ("epoch", "step")
        ]

    def values(self, name: str) -> tuple[list[float], list[float]]:
        """Epochs, and the numbers of a name in them."""
        known = [epoch for epoch in self.epochs if name in epoch]
        return [epoch["epoch"] for epoch in known], [epoch[name] for epoch in known]

    def format(self, test: Mapping[str, float]) -> str:
        """First and last number of each name with a line of its curve, and metrics of the test data."""
        lines = ["| metric | first | last | by epoch |", "|---|---|---|---|"]
        for name in self.names:
            values = self.values(name)[1]
            lines.append(f"| {name} | {values[0]:.4g} | {values[-1]:.4g} | {line_of(values)} |")
        lines += [f"| test/{name} | | {value:.4g} | |" for name, value in test.items()]
        return "\n".join(lines)

    def draw(self, folder: Path) -> Path:
        """Draw the curves, one below the other, to a picture in a folder, and return its path.

        Raises:
            StorageError: it cannot be written.
        """
        names = self.names
        figure = Figure(figsize=(6.4, 1.8 * len(names)), layout="constrained")
        axes = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
        for axis, name in zip(axes, names, strict=True):
            axis.plot(*self.values(name), marker="o", markersize=3)
            axis.set_title(name, fontsize=9, loc="left")
            axis.grid(alpha=0.3)
        axes[-1].set_xlabel("epoch")
        axes[-1].xaxis.get_major_locator().set_params(integer=True)
        with storage(folder / _CURVE):
            folder.mkdir(parents=True, exist_ok=True)
        write_picture(figure, folder / _CURVE, 110)
        return folder / _CURVE


def line_of(values: Sequence[float]) -> str:
    """A curve as a line of characters, from the lowest bar to the highest; a space where a number is not finite."""
    try:
        _BARS.encode(sys.stdout.encoding or "ascii")
        bars = _BARS
    except UnicodeEncodeError:
        bars = _PLAIN_BARS
    x = torch.tensor(values, dtype=torch.float64)
    if len(x) > _NUM_BARS:
        x = torch.stack([part.mean() for part in x.tensor_split(_NUM_BARS)])
    finite = x[torch.isfinite(x)]
    if not len(finite):
        return " " * len(x)
    low, high = finite.min(), finite.max()
    heights = ((x - low) / (high - low).clamp(min=1e-300) * (len(bars) - 1)).round()
    return "".join(bars[int(height)] if torch.isfinite(height) else " " for height in heights)
