"""Training of a network that a checkpoint can hold: the optimiser, the metrics, the export."""

import math
from abc import ABC, abstractmethod
from typing import Any, Generic

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.utils import _pytree as pytree

from tasks.checkpoints import NetworkT, save_checkpoint, trained_path
from tasks.results import versions
from tasks.seeds import generator_of
from trivgeo.checks import check_fraction, check_positive
from trivgeo.errors import ConfigurationError


class NetworkTraining(pl.LightningModule, ABC, Generic[NetworkT]):
    """One network, AdamW with linear warm-up and cosine decay, export to safetensors with what was measured.

    Args:
        network: what is trained; its initial weights are drawn anew from the seed.
        learning_rate: peak step size.
        weight_decay: of AdamW.
        warmup: share of the steps over which the step size rises.
        seed: of the initial weights.
        export: a name in the folder of trained checkpoints, or the path of a `.safetensors` file; nowhere when None.

    Raises:
        ConfigurationError: a number is out of range.
    """

    def __init__(
        self,
        network: NetworkT,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        warmup: float = 0.1,
        seed: int = 0,
        export: str | None = None,
    ) -> None:
        super().__init__()
        if not weight_decay >= 0:
            raise ConfigurationError(f"weight_decay: expected at least 0, got {weight_decay}")
        self.network = network
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.weight_decay = weight_decay
        self.warmup = check_fraction("warmup", warmup)
        self.seed = seed
        self.export = export
        network.initialise(seed)

    @abstractmethod
    def measure(self, batch: Any, number: int) -> dict[str, Tensor]:
        """Metrics of one batch, means over its data; random numbers are a function of the seed and its number."""

    def step_generator(self) -> torch.Generator:
        """Random numbers of this training step, a function of (seed, step) alone, so that training resumes exactly."""
        return generator_of(self.seed, self.global_step, device=self.device)

    def measure_generator(self, number: int) -> torch.Generator:
        """Random numbers of the metrics of a batch, others than those of any step."""
        return generator_of(self.seed, 0, number, device=self.device)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the metrics on data that were held out."""
        metrics = {f"val/{name}": value for name, value in self.measure(batch, batch_idx).items()}
        self.log_dict(metrics, prog_bar=True, batch_size=_size(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log the metrics on the test data."""
        metrics = {f"test/{name}": value for name, value in self.measure(batch, batch_idx).items()}
        self.log_dict(metrics, batch_size=_size(batch))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW; the step size changes step by step."""
        optimizer = torch.optim.AdamW(self.network.parameters(), self.learning_rate, weight_decay=self.weight_decay)
        total = int(self.trainer.estimated_stepping_batches)
        rise = max(1, round(self.warmup * total))

        def factor(step: int) -> float:
            if step < rise:
                return (step + 1) / rise
            return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - rise) / max(1, total - rise))))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_end(self) -> None:
        """Export the network."""
        if self.export is not None and self.trainer.is_global_zero:
            save_checkpoint(self.network, trained_path(self.export), self.export_metadata(), self.export_score())

    def export_score(self) -> dict[str, Any] | None:
        """What makes a learned score of the exported network, see `tasks.learned.describe`."""
        return None

    def export_metadata(self) -> dict[str, Any]:
        """What goes into the header of the exported file: metrics on the test data, training, seed, versions."""
        return {
            "metrics": self.test_metrics(),
            "epochs": self.trainer.current_epoch,
            "steps": self.trainer.global_step,
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
            "seed": self.seed,
            "versions": versions(),
        }

    @torch.no_grad()
    def test_metrics(self) -> dict[str, float]:
        """The metrics on all test data of the data module, in evaluation mode."""
        training = self.training
        self.eval()
        sums: dict[str, float] = {}
        count = 0
        for number, batch in enumerate(self.trainer.datamodule.test_dataloader()):  # type: ignore[attr-defined]
            size = _size(batch)
            for name, value in self.measure(self.transfer_batch_to_device(batch, self.device, 0), number).items():
                sums[name] = sums.get(name, 0.0) + size * float(value)
            count += size
        self.train(training)
        return {name: total / count for name, total in sums.items()}


def _size(batch: Any) -> int:
    """How many data a batch holds."""
    return len(pytree.tree_leaves(batch)[0])
