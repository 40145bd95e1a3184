"""Training of a neural operator on pairs of fields."""

import logging
import warnings

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from .data import FieldData


class WithParameters(nn.Module):
    """A network that reads parameters as further constant channels.

    Args:
        network: `[b, c + p, *n]` to `[b, c, *n]`.
        count: p.
    """

    def __init__(self, network: nn.Module, count: int = 1) -> None:
        super().__init__()
        self.network = network
        self.count = count

    def forward(self, u: Tensor, parameters: Tensor | None = None) -> Tensor:
        """Values `[b, c, *n]` and parameters `[b, p]`, zero by default, to values."""
        given = u.new_zeros(len(u), self.count) if parameters is None else parameters
        channels = given.reshape(*given.shape, *[1] * (u.ndim - 2)).expand(-1, -1, *u.shape[2:])
        return self.network(torch.cat([u, channels], 1))


def relative_error(prediction: Tensor, target: Tensor) -> Tensor:
    """|prediction - target| / |target| of each field, `[b]`."""
    return (prediction - target).flatten(1).norm(dim=1) / target.flatten(1).norm(dim=1)


class OperatorTraining(LightningModule):
    """Relative errors, Adam, one cycle of the learning rate.

    Args:
        network: network from values and parameters to values.
        steps: number of steps of AdamW.
        learning_rate: the largest.
    """

    def __init__(self, network: WithParameters, steps: int, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.network = network
        self.steps = steps
        self.learning_rate = learning_rate

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], index: int) -> Tensor:
        """The mean relative error."""
        values, parameters, target = batch
        return relative_error(self.network(values, parameters), target).mean()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW and one cycle."""
        optimizer = torch.optim.AdamW(self.parameters(), self.learning_rate, weight_decay=1e-5)
        cycle = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.learning_rate, total_steps=self.steps, pct_start=0.1
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


def train(
    network: WithParameters,
    data: FieldData,
    steps: int,
    learning_rate: float = 3e-3,
    device: torch.device | str = "cpu",
) -> WithParameters:
    """Train for a number of steps on a device, on which the network stays."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    device = torch.device(device)
    trainer = Trainer(
        accelerator=device.type,
        devices=1,
        strategy=SingleDeviceStrategy(device),
        max_steps=steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers")
        warnings.filterwarnings("ignore", message=r".*LeafSpec.* is deprecated", category=FutureWarning)
        trainer.fit(OperatorTraining(network, steps, learning_rate), data)
    return network.to(device).eval()
