"""Training of a `GroupDiffusion` by Lightning."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from trivgeo._random import permutation
from trivgeo._text import described
from trivgeo._torch import pytree
from trivgeo.generative.conditioning import ConditionalNetwork
from trivgeo.generative.data import Pair
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.training import NetworkTraining, move_average, train

__all__ = ["PathTraining", "train"]


class PathTraining(NetworkTraining[ConditionalNetwork]):
    """Regression of a network on the targets of a probability path, with an average of the weights.

    Args:
        network: see `trivgeo.training.NetworkTraining`, also for ``learning_rate`` and ``seed``.
        path: the probability path.

    Attributes:
        average: the network with the average of the weights.
        num_steps: steps of the optimiser so far.
        num_skipped_rows: rows of all batches whose target was not finite, for want of a logarithm.
    """

    gradient_norm = 1.0

    def __init__(self, network: ConditionalNetwork, path: ProbabilityPath, learning_rate: float, seed: int) -> None:
        super().__init__(network, learning_rate, weight_decay=0.01, warmup=0.05, seed=seed)
        self.average = copy.deepcopy(network).requires_grad_(False)
        self.path = path
        self.num_skipped_rows = torch.zeros((), dtype=torch.long)
        self.num_steps = 0

    @property
    def objective(self) -> str:
        """Text of the group's scale, and of the path with its levels of noise."""
        scale = [f"{x:.5g}" for x in self.path.group.scale.flatten().tolist()]
        version = "" if self.path.target_version == 1 else f" version {self.path.target_version}"
        version += "" if self.network.version == 1 else f" network {self.network.version}"
        return f"{scale} {described(self.path)}{version}"

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the count of skipped rows, see `NetworkTraining`."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["num_skipped_rows"] = int(self.num_skipped_rows)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Read the count of skipped rows, see `NetworkTraining`."""
        super().on_load_checkpoint(checkpoint)
        self.num_skipped_rows = torch.tensor(checkpoint.get("num_skipped_rows", 0))
        self.num_steps = checkpoint["global_step"]

    def training_step(self, data: Pair, index: int) -> Tensor:
        """Return the weighted mean square error on a training batch made from elements and conditions."""
        loss, found = self._loss(data, self.step_generator())
        self.num_skipped_rows = self.num_skipped_rows + (~found).sum()
        return loss

    def measure(self, batch: Pair, number: int) -> dict[str, Tensor]:
        """Return the same mean square error as ``loss``."""
        return {"loss": self._loss(batch, self.measure_generator(number))[0]}

    def on_train_batch_end(self, outputs: Any, batch: Pair, batch_idx: int) -> None:
        """Move the average of the weights; running statistics, such as those of batch normalisation, are copied."""
        move_average(self.average, self.network, self.global_step)
        for kept, current in zip(self.average.buffers(), self.network.buffers(), strict=True):
            kept.copy_(current)
        self.num_steps = self.global_step
        super().on_train_batch_end(outputs, batch, batch_idx)

    def _loss(self, data: Pair, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Weighted mean square error, and which rows are finite, ``[b]``."""
        # paths draw levels that rise with the rows, and data may be sorted
        order = permutation((len(data[0]),), data[0], generator)
        samples, condition = pytree.tree_map(lambda x: x[order] if isinstance(x, Tensor) else x, data)
        elements, level, momentum, target, weight = self.path.training_batch(samples, generator)
        found = torch.isfinite(target).all(-1) & torch.isfinite(elements.flatten(1)).all(-1)
        mask = found.reshape(-1, *[1] * (elements.ndim - 1))
        identity = self.path.group.identity(dtype=elements.dtype, device=elements.device)
        features = None
        if (encoder := self.network.encoder) is not None:
            features = None if condition is None else encoder.drop(encoder(condition), generator)
        prediction = self.network(torch.where(mask, elements, identity), level, momentum, features)
        error = prediction - torch.where(found.unsqueeze(-1), target, 0.0)
        weight = weight * found
        return (error.square().mean(-1) * weight).sum() / weight.sum().clamp(min=1e-6), found
