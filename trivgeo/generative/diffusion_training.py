"""Training of a `GroupDiffusion` by Lightning."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from trivgeo._random import integers, keyed, permutation
from trivgeo._text import described
from trivgeo._torch import pytree
from trivgeo.errors import ConfigurationError, NonFiniteError
from trivgeo.generative.conditioning import ConditionalNetwork
from trivgeo.generative.data import Pair
from trivgeo.generative.fitted import FittedPath
from trivgeo.generative.flow_map import FlowMap, FlowMapBatch, FlowTrajectories
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.training import NetworkTraining, move_average, train

__all__ = ["FlowMapTraining", "PathTraining", "train_average", "train_flow_map"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_NUM_SCALE_ROWS = 4096  # to which input and output scales of a flow map are fitted


class _AveragedTraining(NetworkTraining[ModuleT]):
    """Training with an average of the weights.

    Args:
        network: the network that is trained.
        learning_rate: largest step of the optimiser.
        seed: of weights and random numbers.

    Attributes:
        average: the network with the average of the weights.
        num_steps: steps of the optimiser so far.
    """

    gradient_norm = 1.0

    def __init__(self, network: ModuleT, learning_rate: float, seed: int) -> None:
        super().__init__(network, learning_rate, weight_decay=0.01, warmup=0.05, seed=seed)
        self.average = copy.deepcopy(network).requires_grad_(False)
        self.num_steps = 0

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
        network: the network that is trained.
        learning_rate: largest step of the optimiser.
        seed: of weights and random numbers.
        path: the probability path.
        num_draws: levels and elements on the path that are drawn for each row of a batch.

    Attributes:
        num_skipped_rows: rows of all batches whose target was not finite, for want of a logarithm.
    """

    def __init__(
        self,
        network: ConditionalNetwork,
        path: ProbabilityPath,
        learning_rate: float,
        seed: int,
        num_draws: int = 1,
    ) -> None:
        super().__init__(network, learning_rate, seed)
        self.path, self.num_draws = path, num_draws
        self.num_skipped_rows = torch.zeros((), dtype=torch.long)

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

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Read ``num_skipped_rows`` and the number of steps from ``checkpoint``, beside what `NetworkTraining`
        reads.
        """
        super().on_load_checkpoint(checkpoint)
        self.num_skipped_rows = torch.tensor(checkpoint.get("num_skipped_rows", 0))
        self.num_steps = checkpoint["global_step"]

    def training_step(self, data: Pair, index: int) -> Tensor:
        """Return the weighted mean square error of the network on the targets of the path, a scalar.

        Rows whose target is not finite are skipped and counted in ``num_skipped_rows``.
        """
        loss, found = self._loss(data, self.step_generator())
        self.num_skipped_rows = self.num_skipped_rows + (~found).sum()
        return loss

    def measure(self, batch: Pair, number: int) -> dict[str, Tensor]:
        """Return ``{"loss": ...}``, the weighted mean square error that training minimises."""
        return {"loss": self._loss(batch, self.measure_generator(number))[0]}

    def _loss(self, data: Pair, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Weighted mean square error, and which rows are finite, ``[b]``."""
        # paths draw levels that rise with the rows, and data may be sorted
        order = permutation((len(data[0]),), data[0], generator)
        samples, condition = pytree.tree_map(lambda x: x[order] if isinstance(x, Tensor) else x, data)
        elements, level, momentum, target, weight = self.path.training_batch(self._repeated(samples), generator)
        features = self._repeated(self.network.training_features(condition, generator))
        counted = weight
        if (particles := self.network.particles) is not None:  # the mean is over coordinates of present particles
            elements = particles.hide(elements, features.mask)
            target = torch.where(particles.presence(features.mask), target, 0.0)
            counted = weight * particles.share(features.mask).to(weight)
        found = torch.isfinite(target).all(-1) & torch.isfinite(elements.flatten(1)).all(-1)
        mask = found.reshape(-1, *[1] * (elements.ndim - 1))
        identity = self.path.group.identity(dtype=elements.dtype, device=elements.device)
        prediction = self.network(torch.where(mask, elements, identity), level, momentum, features)
        error = prediction - torch.where(found.unsqueeze(-1), target, 0.0)
        size = (counted * found).sum().clamp(min=1e-6)
        return (error.square().mean(-1) * (weight * found)).sum() / size, found

    def _repeated(self, tree: Any) -> Any:
        """Tensors ``[b, ...]`` one after the other as many times as there are draws, so that levels of a row differ."""
        if self.num_draws == 1:
            return tree
        copies = lambda x: x.repeat(self.num_draws, *[1] * (x.ndim - 1)) if isinstance(x, Tensor) else x  # noqa: E731
        return pytree.tree_map(copies, tree)


class FlowMapTraining(_AveragedTraining[FlowMap]):
    """Regression of a `FlowMap` on displacements along trajectories, see `FlowTrajectories`.

    Args:
        network: the network that is trained.
        learning_rate: largest step of the optimiser.
        seed: of weights and random numbers.
    """

    def training_step(self, batch: FlowMapBatch, index: int) -> Tensor:
        """Return the mean square error of predicted displacements in units of ``speed``, a scalar.

        Rows whose displacement is not finite are skipped.
        """
        found = torch.isfinite(batch.displacement).all(-1)
        target = torch.where(found.unsqueeze(-1), batch.displacement, 0.0) / self.network.speed
        error = (self.network.displacement(batch) - target).square().mean(-1)
        return (error * found).sum() / found.sum().clamp(min=1)

    def measure(self, batch: FlowMapBatch, number: int) -> dict[str, Tensor]:
        """Return ``{"loss": ...}``, the mean square error of displacements that training minimises."""
        return {"loss": self.training_step(batch, number)}


def train_average(training: _AveragedTraining[Any], *arguments: Any, **others: Any) -> None:
    """Run `train`, and check the average of the weights.

    Args:
        training: see `train`.
        arguments: see `train`, also for ``others``.

    Raises:
        NonFiniteError: a weight is NaN or infinite.
    """
    train(training, *arguments, **others)
    for name, x in training.average.state_dict().items():
        if not bool(torch.isfinite(x).all()):
            raise NonFiniteError(
                f"network: expected finite weights after the training, got NaN or infinity in {name}; a smaller "
                "learning_rate may help"
            )


def train_flow_map(
    networks: ConditionalNetwork,
    fitted: FittedPath,
    features: Any,
    shape: tuple[int, int],
    steps: int,
    seconds: float,
    batch_size: int,
    learning_rate: float,
    seed: int,
    progress: bool | None,
) -> tuple[FlowMap, int]:
    """Train the flow map of a fitted model.

    Args:
        networks: of the model.
        fitted: what was fitted with them.
        features: of conditions, of which trajectories draw, ``[m, d]``; ``None`` without conditions.
        shape: width and depth of the map's network.
        steps: number of optimiser steps.
        seconds: time after which the training ends.
        batch_size: rows of a step.
        learning_rate: largest step of the optimiser.
        progress: show a progress bar; ``None`` for one on a terminal, see `GroupDiffusion.fit`.
        seed: of the model.

    Returns:
        The map, and the number of steps that were made.

    Raises:
        ConfigurationError: the features are no vectors.
        NonFiniteError: the training diverged.
    """
    if features is not None and (not isinstance(features, Tensor) or features.ndim != 2):
        raise ConfigurationError("condition: expected features that are vectors [m, d], got others")
    reference = next(networks.parameters())

    def draw_features(count: int, generator: torch.Generator) -> Tensor | None:
        if features is None or networks.encoder is None:
            return None
        return networks.encoder.drop(features[integers(len(features), (count,), reference, generator)], generator)

    trajectories = FlowTrajectories(
        lambda x: fitted.path.flow(networks.given(x)),
        fitted.base.sample,
        draw_features,
        (fitted.path.start_time, fitted.path.end_time),
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        flow_map = FlowMap(networks.group, *shape, None if features is None else features.shape[1]).to(reference)
        first = trajectories.draw(_NUM_SCALE_ROWS, keyed(seed, 2, device=reference.device))
        flow_map.network.standardise(first.elements)
        flow_map.adopt(networks.network)
        found = torch.isfinite(first.displacement).all(-1)
        flow_map.speed.copy_(first.displacement[found].square().mean().sqrt())
    training = FlowMapTraining(flow_map, learning_rate, seed)
    train_average(training, trajectories.draw, steps, batch_size, seconds, None, progress, is_repeatable=False)
    return training.average.to(reference.device).eval(), training.num_steps
