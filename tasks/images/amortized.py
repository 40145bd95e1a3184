"""Learned inversion of images: the network, its training and distillation, and inverters made of what was trained."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from tasks.images.checkpoints import load_checkpoint
from tasks.images.data import ImageBatch
from tasks.images.energies import Precision
from tasks.images.models import ImageNetwork
from tasks.images.training import NetworkTraining
from trivgeo.actions import ImageWarp
from trivgeo.checks import check_count
from trivgeo.errors import CheckpointError, ConfigurationError
from trivgeo.groups import LieGroup
from trivgeo.inversion import (
    AmortizedInverter,
    DataEnergy,
    InversionResult,
    Inverter,
    LearnedScore,
    LevelFeatures,
    consistency_loss,
)
from trivgeo.sde import GeometricSchedule
from trivgeo.sde.denoising import DenoisingStep, RefiningStep

_SCORE_KEY = "score"


class PoseNetwork(ImageNetwork):
    """The noise of the transformation of an image: convolutions of stride 2, then linear layers, all told the level.

    There is no pooling to a mean and no normalisation: what is asked for is where the ink is.

    Args:
        dim: of the group.
        side: pixels a side of the images.
        channels: of the convolutions; the first is 5 x 5, the others 3 x 3.
        width: of the hidden linear layers.
        precision: of the convolutions and the hidden layers; bfloat16 takes half the time where the processor has
            instructions for it.

    Raises:
        ConfigurationError: a number below one, or nothing is left of the image after the convolutions.
    """

    def __init__(
        self,
        dim: int,
        side: int = 40,
        channels: Sequence[int] = (32, 64, 64),
        width: int = 96,
        precision: Precision = "bfloat16",
    ) -> None:
        super().__init__(check_count("side", side))
        self.dim = check_count("dim", dim)
        self.channels = [check_count("channels", count) for count in channels]
        self.width = check_count("width", width)
        self.precision: Precision = precision
        left = side >> len(self.channels)
        if not self.channels or left < 1:
            raise ConfigurationError(
                f"channels: expected 1 to {side.bit_length() - 1} convolutions on images of {side} x {side} pixels, "
                f"got {len(self.channels)}"
            )
        self.features = LevelFeatures()
        level = 32
        self.level = nn.Sequential(nn.Linear(self.features.size, level), nn.SiLU())
        sizes = [1, *self.channels]
        for _ in self.channels:
            side = (side + 1) // 2
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3 if place else 5, 2, 1 if place else 2)
            for place, (a, b) in enumerate(itertools.pairwise(sizes))
        )
        self.modulations = nn.ModuleList(nn.Linear(level, 2 * b) for b in self.channels)
        self.first = nn.Linear(self.channels[-1] * side**2 + level, width)
        self.second = nn.Linear(width + level, width)
        self.last = nn.Linear(width, dim)

    @property
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {
            "dim": self.dim,
            "side": self.side,
            "channels": self.channels,
            "width": self.width,
            "precision": self.precision,
        }

    def forward(self, y: Float[Tensor, "b 1 h w"], level: Float[Tensor, " b"]) -> Float[Tensor, "b n"]:
        """The noise in units of its size, see `trivgeo.inversion.LearnedScore`.

        Raises:
            ShapeError: the images have another size.
        """
        return self.per_image(lambda x: self._noise(x, level), y)

    def _noise(self, x: Tensor, level: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            e = self.level(self.features(level))
            h = x.contiguous(memory_format=torch.channels_last)
            for convolution, modulation in zip(self.convolutions, self.modulations, strict=True):
                scale, shift = modulation(e)[..., None, None].chunk(2, 1)
                h = F.silu(convolution(h) * (1 + scale) + shift)
            h = F.silu(self.first(torch.cat([h.flatten(1), e], 1)))
            h = F.silu(self.second(torch.cat([h, e], 1)))
        return self.last(h.to(x.dtype))


class DenoisingTraining(NetworkTraining[PoseNetwork]):
    """Denoising score matching on clean digits: `trivgeo.inversion.LearnedScore.loss`.

    The noise of a step is a function of the seed and the number of the step alone, so that a resumed run repeats it.

    Args:
        network: the network; its dimension is that of the group.
        action: how the transformations act; the scale of its group sets how far the noise goes in each direction.
        schedule: the noise.
        noise_steps: see `LearnedScore`.
        lowest_time: see `LearnedScore`.
        carried: see `LearnedScore`.
        options: see `NetworkTraining`.

    Raises:
        ConfigurationError: the dimensions differ, or a number is out of range.
    """

    def __init__(
        self,
        network: PoseNetwork,
        action: ImageWarp,
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
        super().__init__(network, learning_rate, weight_decay, warmup, seed, export)
        if network.dim != action.group.dim:
            raise ConfigurationError(f"network: expected dim {action.group.dim} for {action!r}, got {network.dim}")
        self.schedule = schedule
        self.score = LearnedScore(
            action, schedule, network, noise_steps=noise_steps, lowest_time=lowest_time, carried=carried
        )

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        loss = self.score.loss(batch.image, self._generator(self.trainer.global_step))
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def measure(self, batch: ImageBatch) -> dict[str, Tensor]:
        """The squared error of the noise, per dimension; one for a network that knows nothing."""
        return {"noise": self.score.loss(batch.image, self._generator(int(batch.label.sum()))) / self.network.dim}

    def export_metadata(self) -> dict[str, Any]:
        """With the group and the noise, without which the network means nothing."""
        return super().export_metadata() | {_SCORE_KEY: describe(self.score, self.schedule)}

    def _generator(self, step: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(1_000_003 * (self.seed + 1) + step)


class DistillationTraining(NetworkTraining[PoseNetwork]):
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
        action: ImageWarp,
        ratio: float = 0.7,
        learning_rate: float = 5e-4,
        weight_decay: float = 0.0,
        warmup: float = 0.05,
        seed: int = 0,
        export: str | None = None,
    ) -> None:
        score, schedule = load_score(teacher, action)
        network = copy.deepcopy(score.backbone)
        assert isinstance(network, PoseNetwork)
        super().__init__(network, learning_rate, weight_decay, warmup, seed, export)
        network.load_state_dict(score.backbone.state_dict())
        network.requires_grad_(True).train()
        self.schedule = schedule
        self.ratio = ratio
        self.teacher = score.train()  # nothing in it depends on the mode; Lightning warns of one in evaluation mode
        self.student = LearnedScore(
            score.action,
            schedule,
            network,
            noise_steps=score.noise_steps,
            lowest_time=score.lowest_time,
            carried=score.carried,
        )

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        loss = self._loss(batch, self.trainer.global_step)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def measure(self, batch: ImageBatch) -> dict[str, Tensor]:
        """The loss per dimension."""
        return {"consistency": self._loss(batch, int(batch.label.sum())) / self.network.dim}

    def export_metadata(self) -> dict[str, Any]:
        """With the group and the noise, without which the network means nothing."""
        return super().export_metadata() | {_SCORE_KEY: describe(self.student, self.schedule)}

    def _loss(self, batch: ImageBatch, step: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(1_000_003 * (self.seed + 1) + step)
        return consistency_loss(self.teacher, self.student, batch.image, ratio=self.ratio, generator=generator)


def describe(score: LearnedScore, schedule: GeometricSchedule) -> dict[str, Any]:
    """What `load_score` needs besides the network, as plain types."""
    return {
        "group": _name(score.group),
        "scale": score.group.scale.tolist(),
        "schedule": [schedule.minimum, schedule.maximum],
        "noise_steps": score.noise_steps,
        "lowest_time": score.lowest_time,
        "carried": score.carried,
    }


def load_score(checkpoint: str, action: ImageWarp) -> tuple[LearnedScore, GeometricSchedule]:
    """A trained score, with the scale of the group that it was trained with, and its noise.

    Args:
        checkpoint: a name of the manifest or a path.
        action: on images, of a group that differs from the score's at most in its scale.

    Raises:
        CheckpointError: the file is missing or unreadable, holds no score, or one of another group.
    """
    loaded = load_checkpoint(PoseNetwork, checkpoint)
    entry = loaded.metadata.get(_SCORE_KEY)
    if entry is None:
        raise CheckpointError(f"{checkpoint}: expected the group and the noise of a score in the header, got none")
    if entry["group"] != _name(action.group):
        raise CheckpointError(f"{checkpoint}: expected a score on {_name(action.group)}, got one on {entry['group']}")
    schedule = GeometricSchedule(*entry["schedule"])
    score = LearnedScore(
        ImageWarp(action.group.with_scale(entry["scale"]), action.mode),
        schedule,
        loaded.network,
        noise_steps=entry["noise_steps"],
        lowest_time=entry["lowest_time"],
        carried=entry["carried"],
    )
    return score.eval(), schedule


def _name(group: LieGroup) -> str:
    """A group apart from its scale."""
    return f"{type(group).__name__}, dimension {group.dim}"


class TrainedInverter(nn.Module, Inverter):
    """An `AmortizedInverter` of a trained score; see there.

    Args:
        action: on images; the scale of its group is that of the score, whatever it is here.
        energy: ranks the hypotheses if ``ranked``.
        checkpoint: name or path of the score.
        times: the falling grid of noise times, which ends at 0.
        num_hypotheses: number of chains.
        stepper: the scheme; default `RefiningStep`.
        start: ``"identity"`` or ``"noise"``.
        ranked: let the energy rank the hypotheses.
        max_evaluations: see `AmortizedInverter`.

    Raises:
        CheckpointError: see `load_score`.
    """

    def __init__(
        self,
        action: ImageWarp,
        energy: DataEnergy | None,
        checkpoint: str,
        times: Sequence[float] = (1.0, 0.5, 0.0),
        num_hypotheses: int = 1,
        stepper: DenoisingStep | None = None,
        start: Literal["noise", "identity"] = "identity",
        ranked: bool = False,
        max_evaluations: int | None = None,
    ) -> None:
        super().__init__()
        score, _ = load_score(checkpoint, action)
        self.inverter = AmortizedInverter(
            score,
            energy if ranked else None,
            num_hypotheses=num_hypotheses,
            stepper=RefiningStep() if stepper is None else stepper,
            start=start,
            times=times,
            max_evaluations=max_evaluations,
        )
        self.action = self.inverter.action

    def forward(self, x_tilde: Tensor, *, generator: torch.Generator | None = None) -> InversionResult:
        """Those of the `AmortizedInverter`."""
        return self.inverter(x_tilde, generator=generator)
