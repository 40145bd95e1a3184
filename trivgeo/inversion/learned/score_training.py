"""Training of learned scores as Lightning modules, for trainers and data of one's own; `LearnedInverter` is simpler."""

from __future__ import annotations

import copy
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trivgeo.inversion.learned.score import LearnedScore, consistency_loss
from trivgeo.inversion.learned.score_files import describe
from trivgeo.networks import content_hash
from trivgeo.training import NetworkTraining, train

__all__ = ["DistillationTraining", "ScoreTraining", "train"]


class _Training(NetworkTraining[nn.Module]):
    """Training of a score on clean data, by a loss that a subclass defines."""

    measured: ClassVar[str]
    """Name of the loss, divided by the dimension of the group, where it is measured."""

    @property
    @abstractmethod
    def trained(self) -> LearnedScore:
        """The score that is trained."""

    @abstractmethod
    def batch_loss(self, clean: Any, generator: torch.Generator) -> Tensor:
        """Return the loss of a batch of ``clean`` data, a scalar, with random numbers of ``generator``."""

    def data(self, batch: Any) -> Any:
        """Return the clean data in a ``batch`` of the loader: the batch, or the first part of ``[data, labels]``."""
        return batch[0] if isinstance(batch, list) else batch

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of one ``batch`` of clean data, a scalar; Lightning calls this with ``batch_idx``."""
        loss = self.batch_loss(self.data(batch), self.step_generator())
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def measure(self, batch: Any, number: int) -> dict[str, Tensor]:
        """Return the loss divided by the dimension of the group; 1 for the noise of predictions of zero."""
        loss = self.batch_loss(self.data(batch), self.measure_generator(number))
        return {self.measured: loss / self.trained.group.dim}

    def export_score(self) -> dict[str, Any]:
        """The group and the noise, without which the network means nothing."""
        return describe(self.trained)


class ScoreTraining(_Training):
    """Denoising score matching on clean data: `LearnedScore.loss`.

    The noise of a step is a function of the seed and the number of the step alone, so that a resumed run repeats it.

    ```python
    training = ScoreTraining(LearnedScore(action, schedule, backbone), export="score.safetensors")
    lightning.pytorch.Trainer(max_epochs=20, gradient_clip_val=5.0).fit(training, loader)
    ```

    Args:
        score: the score; its backbone is trained.
        learning_rate: see `trivgeo.training.NetworkTraining`, as ``weight_decay``, ``warmup``, ``seed``, ``export``.
        max_evaluations: the largest number of data that the backbone sees at once, see `LearnedScore.loss`.
    """

    measured = "noise"

    def __init__(
        self,
        score: LearnedScore,
        learning_rate: float = 2e-3,
        weight_decay: float = 0.01,
        warmup: float = 0.05,
        seed: int = 0,
        export: str | Path | None = None,
        max_evaluations: int | None = None,
    ) -> None:
        super().__init__(score.backbone, learning_rate, weight_decay, warmup, seed, export)
        self.score = score
        self.max_evaluations = max_evaluations

    @property
    def trained(self) -> LearnedScore:
        return self.score

    @property
    def objective(self) -> str:
        return objective_of(self.score)

    def batch_loss(self, clean: Any, generator: torch.Generator) -> Tensor:
        return self.score.loss(clean, generator, self.max_evaluations)


class DistillationTraining(_Training):
    """Distillation of a trained score into one that jumps to a draw of the learned posterior, by `consistency_loss`.

    Args:
        teacher: the trained score, which stays.
        ratio: ratio of neighbouring noise levels, in (0, 1), see `consistency_loss`.
        learning_rate: see `trivgeo.training.NetworkTraining`, as ``weight_decay``, ``warmup``, ``seed``, ``export``.

    Attributes:
        student: the score that is trained; begins as a copy of the teacher.
    """

    measured = "consistency"

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
        """Lightning warns of parts in evaluation mode when training starts; `batch_loss` puts the teacher there."""
        self.teacher.train()

    @property
    def trained(self) -> LearnedScore:
        return self.student

    @property
    def objective(self) -> str:
        return f"{self._taught_by} {objective_of(self.teacher)} {self.ratio}"

    def batch_loss(self, clean: Any, generator: torch.Generator) -> Tensor:
        teacher = self.teacher.eval()  # also after `train()` of all parts
        return consistency_loss(teacher, self.student, clean, ratio=self.ratio, generator=generator)


def objective_of(score: LearnedScore) -> str:
    """Return the action and the noise of a score as a text, to tell trainings apart."""
    settings = (score.schedule, score.prior, score.noise_steps, score.lowest_time, bool(score.augmentation))
    return f"{score.action!r} {[f'{x:.5g}' for x in score.group.scale.flatten().tolist()]} {settings!r}"
