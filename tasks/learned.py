"""Learned inversion of any data: training and distillation of a score, its file, and the inverter made of it."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.checkpoints import Network, load_checkpoint
from tasks.training import NetworkTraining
from trivgeo.actions import ImageWarp, OperatorAction
from trivgeo.checks import check_type
from trivgeo.errors import CheckpointError, ConfigurationError
from trivgeo.groups import Action
from trivgeo.inversion import (
    AmortizedInverter,
    DataEnergy,
    LearnedScore,
    consistency_loss,
)
from trivgeo.sde import DenoisingStep, GeometricSchedule, RefiningStep


class NoiseNetwork(Network):
    """The noise of the transformation of a datum, the backbone of a `trivgeo.inversion.LearnedScore`.

    Attributes:
        dim: of the group.
    """

    dim: int

    def data(self, batch: Any) -> Any:
        """The data in a batch of training."""
        return batch

    def reduced(self, x: Any) -> Any:
        """What the network reads of data with one batch dimension, see `LearnedScore`'s `prepare`."""
        return x

    @abstractmethod
    def forward(self, y: Any, level: Float[Tensor, " b"]) -> Float[Tensor, "b n"]:
        """The noise in units of its size, see `trivgeo.inversion.LearnedScore`."""


class ScoreTraining(NetworkTraining[NoiseNetwork]):
    """Denoising score matching on clean data: `trivgeo.inversion.LearnedScore.loss`.

    The noise of a step is a function of the seed and the number of the step alone, so that a resumed run repeats it.

    Args:
        network: makes the network from the dimension of the group and what the data set says of its data.
        inputs: what it says, from the data.
        action: how the transformations act; the scale of its group sets how far the noise goes in each direction.
        schedule: the noise.
        noise_steps: see `LearnedScore`.
        lowest_time: see `LearnedScore`.
        carried: see `LearnedScore`.
        options: see `NetworkTraining`.

    Raises:
        ConfigurationError: a number is out of range.
    """

    def __init__(
        self,
        network: Callable[[int, Any], NoiseNetwork],
        inputs: Any,
        action: Action,
        schedule: GeometricSchedule,
        noise_steps: int = 1,
        lowest_time: float = 0.1,
        carried: bool = True,
        learning_rate: float = 2e-3,
        weight_decay: float = 0.01,
        warmup: float = 0.05,
        seed: int = 0,
        export: str | None = None,
    ) -> None:
        super().__init__(network(action.group.dim, inputs), learning_rate, weight_decay, warmup, seed, export)
        self.score = LearnedScore(
            action,
            schedule,
            self.network,
            noise_steps=noise_steps,
            lowest_time=lowest_time,
            carried=carried,
            prepare=self.network.reduced,
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        loss = self.score.loss(self.network.data(batch), self.step_generator())
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def measure(self, batch: Any, number: int) -> dict[str, Tensor]:
        """The squared error of the noise, per dimension; one for a network that knows nothing."""
        return {"noise": self.score.loss(self.network.data(batch), self.measure_generator(number)) / self.network.dim}

    def export_score(self) -> dict[str, Any]:
        """The group and the noise, without which the network means nothing."""
        return describe(self.score)


class DistillationTraining(NetworkTraining[NoiseNetwork]):
    """A trained score distilled into one that jumps to a posterior sample: `trivgeo.inversion.consistency_loss`.

    Args:
        teacher: name or path of the checkpoint of the score.
        action: how the transformations act; the scale of its group is that of the teacher, whatever it is here.
        ratio: see `consistency_loss`.
        options: see `NetworkTraining`.

    Raises:
        CheckpointError: the teacher is missing, or of another group.
    """

    def __init__(
        self,
        teacher: str,
        action: Action,
        ratio: float = 0.7,
        learning_rate: float = 5e-4,
        weight_decay: float = 0.0,
        warmup: float = 0.05,
        seed: int = 0,
        export: str | None = None,
    ) -> None:
        score = load_score(teacher, action)
        network = copy.deepcopy(score.backbone)
        assert isinstance(network, NoiseNetwork)
        super().__init__(network, learning_rate, weight_decay, warmup, seed, export)
        network.load_state_dict(score.backbone.state_dict())
        network.requires_grad_(True).train()
        self.ratio = ratio
        self.teacher = score.train()  # nothing in it depends on the mode; Lightning warns of one in evaluation mode
        self.student = LearnedScore(
            score.action,
            score.schedule,
            network,
            noise_steps=score.noise_steps,
            lowest_time=score.lowest_time,
            carried=score.carried,
            prepare=network.reduced,
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        loss = self._loss(batch, self.step_generator())
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def measure(self, batch: Any, number: int) -> dict[str, Tensor]:
        """The loss per dimension."""
        return {"consistency": self._loss(batch, self.measure_generator(number)) / self.network.dim}

    def export_score(self) -> dict[str, Any]:
        """The group and the noise, without which the network means nothing."""
        return describe(self.student)

    def _loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        return consistency_loss(
            self.teacher, self.student, self.network.data(batch), ratio=self.ratio, generator=generator
        )


def describe(score: LearnedScore) -> dict[str, Any]:
    """What `load_score` needs besides the network, as plain types.

    Raises:
        ConfigurationError: the noise is none of a `GeometricSchedule`.
    """
    schedule = check_type("schedule", score.schedule, GeometricSchedule)
    return {
        "group": score.group.fingerprint(),
        "scale": score.group.scale.tolist(),
        "schedule": [schedule.minimum, schedule.maximum],
        "noise_steps": score.noise_steps,
        "lowest_time": score.lowest_time,
        "carried": score.carried,
    }


def load_score(checkpoint: str, action: Action) -> LearnedScore:
    """A trained score in evaluation mode, on the group with the scale that it was trained with.

    Args:
        checkpoint: a name of the manifest or a path.
        action: on the data, of a group that differs from the score's at most in its scale.

    Raises:
        CheckpointError: the file is missing or unreadable, holds no score, or one of another group.
    """
    loaded = load_checkpoint(NoiseNetwork, checkpoint)  # type: ignore[type-abstract]
    entry = loaded.score
    if entry is None:
        raise CheckpointError(f"{checkpoint}: expected the group and the noise of a score in the header, got none")
    try:
        known = action.group.matches(entry["group"])
    except (ConfigurationError, KeyError) as error:
        raise CheckpointError(f"{checkpoint}: expected the group of a score in the header: {error}") from error
    if not known:
        raise CheckpointError(
            f"{checkpoint}: expected a score on {action.group!r}, got one on another group, of dimension "
            f"{entry['group']['dim']}"
        )
    score = LearnedScore(
        rescaled(action, entry["scale"]),
        GeometricSchedule(*entry["schedule"]),
        loaded.network,
        noise_steps=entry["noise_steps"],
        lowest_time=entry["lowest_time"],
        carried=entry["carried"],
        prepare=loaded.network.reduced,
    )
    return score.eval()


@singledispatch
def rescaled(action: Action, scale: Any) -> Action:
    """The same action of the group with another scale, see `trivgeo.groups.LieGroup`.

    Raises:
        ConfigurationError: no function is registered for this kind of action.
    """
    raise ConfigurationError(f"action: expected an ImageWarp, an OperatorAction or one registered, got {action!r}")


@rescaled.register
def _(action: ImageWarp, scale: Any) -> ImageWarp:
    return ImageWarp(action.group.with_scale(scale), action.mode)


@rescaled.register
def _(action: OperatorAction, scale: Any) -> OperatorAction:
    return OperatorAction(action.group.with_scale(scale).action())


class TrainedInverter(AmortizedInverter):
    """An `AmortizedInverter` of a trained score; see there for the options that are not here.

    Args:
        action: on data; the scale of its group is that of the score, whatever it is here.
        energy: ranks the hypotheses if ``ranked``.
        checkpoint: name or path of the score.
        stepper: the scheme; default `RefiningStep`.
        start: ``"identity"`` or ``"noise"``.
        ranked: let the energy rank the hypotheses.

    Raises:
        CheckpointError: see `load_score`.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | None,
        checkpoint: str,
        steps: int = 4,
        times: Sequence[float] | None = None,
        num_hypotheses: int = 1,
        stepper: DenoisingStep | None = None,
        start: Literal["noise", "identity"] = "identity",
        ranked: bool = False,
    ) -> None:
        super().__init__(
            load_score(checkpoint, action),
            energy if ranked else None,
            steps,
            num_hypotheses,
            RefiningStep() if stepper is None else stepper,
            start,
            times,
        )
