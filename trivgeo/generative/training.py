"""The training of a `GroupDiffusion` by Lightning."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from trivgeo._text import described
from trivgeo.generative.networks import GroupNetwork
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.training import NetworkTraining, move_average, train

__all__ = ["PathTraining", "train"]


class PathTraining(NetworkTraining[GroupNetwork]):
    """The lessons of a transport, with an average of the weights.

    Args:
        network: see `trivgeo.training.NetworkTraining`, also for ``learning_rate`` and ``seed``.
        transport: what it is to learn.

    Attributes:
        average: the network with the average of the weights.
        lost: rows that did not count, for want of a logarithm.
    """

    gradient_norm = 1.0

    def __init__(self, network: GroupNetwork, transport: ProbabilityPath, learning_rate: float, seed: int) -> None:
        super().__init__(network, learning_rate, weight_decay=0.01, warmup=0.05, seed=seed)
        self.average = copy.deepcopy(network).requires_grad_(False)
        self.transport = transport
        self.lost = torch.zeros((), dtype=torch.long)

    @property
    def lesson(self) -> str:
        """The group, and the transport with its levels of noise."""
        scale = [f"{x:.5g}" for x in self.transport.group.scale.flatten().tolist()]
        version = "" if self.transport.version == 1 else f" version {self.transport.version}"
        version += "" if self.network.version == 1 else f" network {self.network.version}"
        return f"{scale} {described(self.transport)}{version}"

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """See `NetworkTraining`; with the count of what was lost."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["lost"] = int(self.lost)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """See `NetworkTraining`."""
        super().on_load_checkpoint(checkpoint)
        self.lost = torch.tensor(checkpoint.get("lost", 0))

    def training_step(self, clean: Tensor, index: int) -> Tensor:
        """The weighted mean square of what the network misses of the lessons of some data."""
        loss, found = self._missed(clean, self.step_generator())
        self.lost = self.lost + (~found).sum()
        return loss

    def measure(self, batch: Tensor, number: int) -> dict[str, Tensor]:
        """The same mean square."""
        return {"loss": self._missed(batch, self.measure_generator(number))[0]}

    def on_train_batch_end(self, outputs: Any, batch: Tensor, batch_idx: int) -> None:
        """Move the average of the weights."""
        move_average(self.average, self.network, self.global_step)
        super().on_train_batch_end(outputs, batch, batch_idx)

    def _missed(self, clean: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        elements, level, momentum, target, weight = self.transport.lesson(clean, generator)
        found = torch.isfinite(target).all(-1) & torch.isfinite(elements.flatten(1)).all(-1)
        shape = found.reshape(-1, *[1] * (elements.ndim - 1))
        identity = self.transport.group.identity(dtype=elements.dtype, device=elements.device)
        answer = self.network(torch.where(shape, elements, identity), level, momentum)
        missed = answer - torch.where(found.unsqueeze(-1), target, 0.0)
        weight = weight * found
        return (missed.square().mean(-1) * weight).sum() / weight.sum().clamp(min=1e-6), found
