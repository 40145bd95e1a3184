"""Training of learned scores as Lightning modules, for trainers and data of one's own; `LearnedInverter` is simpler."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trivgeo.inversion.learned.score import LearnedScore, consistency_loss
from trivgeo.inversion.learned.score_files import describe
from trivgeo.networks import content_hash
from trivgeo.training import NetworkTraining, train

__all__ = [
    "DistillationTraining",
    "ScoreTraining",
    "train",
]


class ScoreTraining(NetworkTraining[nn.Module]):
    """Denoising score matching on clean data: `LearnedScore.loss`.

    The noise of a step is a function of the seed and the number of the step alone, so that a resumed run repeats it.

    ```python
    training = ScoreTraining(LearnedScore(action, schedule, backbone), export="score.safetensors")
    lightning.pytorch.Trainer(max_epochs=20, gradient_clip_val=5.0).fit(training, loader)
    ```

    Args:
        score: the score; its backbone is trained.
        options: further arguments of `trivgeo.training.NetworkTraining`.
    """

    def __init__(
        self,
        score: LearnedScore,
        learning_rate: float = 2e-3,
        weight_decay: float = 0.01,
        warmup: float = 0.05,
        seed: int = 0,
        export: str | Path | None = None,
    ) -> None:
        super().__init__(score.backbone, learning_rate, weight_decay, warmup, seed, export)
        self.score = score

    @property
    def objective(self) -> str:
        return objective_of(self.score)

    def data(self, batch: Any) -> Any:
        """Return the clean data in a ``batch`` of the loader: the batch, or the first part of a list
        ``[data, labels]``.
        """
        return batch[0] if isinstance(batch, list) else batch

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the score matching loss of one ``batch`` of clean data, a scalar; Lightning calls this with
        ``batch_idx``.
        """
        loss = self.score.loss(self.data(batch), self.step_generator())
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def measure(self, batch: Any, number: int) -> dict[str, Tensor]:
        """Return ``{"noise": ...}``, the squared error of the noise divided by the dimension; 1 for predictions of
        zero.
        """
        return {"noise": self.score.loss(self.data(batch), self.measure_generator(number)) / self.score.group.dim}

    def export_score(self) -> dict[str, Any]:
        """The group and the noise, without which the network means nothing."""
        return describe(self.score)


class DistillationTraining(NetworkTraining[nn.Module]):
    """Distillation of a trained score into one that jumps to a draw of the learned posterior, by `consistency_loss`.

    Args:
        teacher: the trained score, which stays.
        ratio: ratio of neighbouring noise levels, in (0, 1), see `consistency_loss`.
        learning_rate: see `trivgeo.training.NetworkTraining`, as ``weight_decay``, ``warmup``, ``seed``, ``export``.

    Attributes:
        student: the score that is trained; begins as a copy of the teacher.
    """

    def __init__(
        self,
        teacher: LearnedScore,
        ratio: float = 0.7,
        learning_rate: float = 5e-4,
        weight_decay: float = 0.0,
        warmup: float = 0.05,
        seed: int = 0,
        export: str | Path | None = None,
    ) -> None:
        student = copy.deepcopy(teacher)
        super().__init__(student.backbone, learning_rate, weight_decay, warmup, seed, export)
        # before a checkpoint is read: it holds the weights of its own teacher
        weights = {name: x for name, x in teacher.backbone.state_dict().items() if isinstance(x, Tensor)}
        self._taught_by = content_hash({}, weights)
        student.backbone.load_state_dict(teacher.backbone.state_dict())
        self.ratio = ratio
        self.student = student.requires_grad_(True).train()
        self.teacher = copy.deepcopy(teacher).requires_grad_(False).eval()

    def on_fit_start(self) -> None:
        """Lightning warns of parts that are in evaluation mode when training starts; `_loss` puts the teacher there."""
        self.teacher.train()

    @property
    def objective(self) -> str:
        """The teacher, the action, the noise and how far apart the times are."""
        return f"{self._taught_by} {objective_of(self.teacher)} {self.ratio}"

    def data(self, batch: Any) -> Any:
        """Return the clean data of a batch of the loader, see `ScoreTraining.data`."""
        return batch[0] if isinstance(batch, list) else batch

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the distillation loss of one ``batch`` of clean data, a scalar; Lightning calls this with
        ``batch_idx``.
        """
        loss = self._loss(batch, self.step_generator())
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def measure(self, batch: Any, number: int) -> dict[str, Tensor]:
        """Return ``{"consistency": ...}``, the distillation loss divided by the dimension of the group."""
        return {"consistency": self._loss(batch, self.measure_generator(number)) / self.student.group.dim}

    def export_score(self) -> dict[str, Any]:
        """The group and the noise, without which the network means nothing."""
        return describe(self.student)

    def _loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        teacher = self.teacher.eval()  # whatever was done to all parts
        return consistency_loss(teacher, self.student, self.data(batch), ratio=self.ratio, generator=generator)


def objective_of(score: LearnedScore) -> str:
    """Return the action and the noise of a score as a text, to tell trainings apart."""
    settings = (score.schedule, score.prior, score.noise_steps, score.lowest_time, bool(score.augmentation))
    return f"{score.action!r} {[f'{x:.5g}' for x in score.group.scale.flatten().tolist()]} {settings!r}"
