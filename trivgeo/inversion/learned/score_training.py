"""Training of learned scores as Lightning modules, for trainers and data of one's own; `LearnedInverter` is simpler."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trivgeo.errors import ConfigurationError
from trivgeo.inversion.learned.score import LearnedScore, apply_inverse
from trivgeo.inversion.learned.score_files import describe
from trivgeo.inversion.posterior import check_batch
from trivgeo.networks import content_hash
from trivgeo.training import NetworkTraining, train

__all__ = [
    "DistillationTraining",
    "ScoreTraining",
    "consistency_loss",
    "train",
]


def consistency_loss(
    teacher: LearnedScore,
    student: LearnedScore,
    x: Any,
    *,
    ratio: float = 0.8,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Loss of consistency distillation (Song et al. 2023) in trivialized form: how far neighbouring jumps land apart.

    From an element g at level :math:`\sigma` the student jumps to :math:`f(g, \sigma) = g \exp(-\sigma\,\epsilon(
    g^{-1} \tilde x, \sigma))`: the same network as a `LearnedScore`, but its value no longer a mean. One step of the
    teacher's flow (the Heun scheme of the group, in the level) leads from :math:`(g, \sigma)` to
    :math:`(g', \sigma')`, :math:`\sigma' = r \sigma`. The loss

    .. math:: E\,\big|\log\big(f(g', \sigma')^{-1} f(g, \sigma)\big)\big|^2 / \sigma^2

    is zero if f is constant along the flow; no gradient goes through :math:`f(g', \sigma')`. Below the lowest level the
    teacher's own denoised element stands for it. Since the end of the flow depends on where it starts, different
    starts still lead to different modes.

    Start the student from a copy of the teacher; sample it with `RenoisingStep` in one or two steps.

    Args:
        teacher: the trained score; it is not changed.
        student: the score that is trained, with the action and the levels of the teacher.
        x: clean data, one batch dimension.
        ratio: r, in (0, 1): nearer to one for a finer flow, which takes longer to learn.
        generator: random numbers; ``None`` is torch's.

    Returns:
        The loss, a scalar.

    Raises:
        ConfigurationError: the ratio lies outside (0, 1), or the levels or groups differ.
    """
    _check_pair(teacher, student, ratio)
    x, _ = check_batch(student.action, x)
    group, action = student.group, student.action
    batch = student.noisy(x, generator)
    level = batch.level
    lower = ratio * level
    with torch.no_grad():
        first = teacher(batch.y, level)
        step = (lower - level).unsqueeze(-1)
        y, _ = apply_inverse(action, group.retract(batch.elements, step * first), batch.x)
        flow = step * 0.5 * (first + teacher(y, lower))
        y, defined = apply_inverse(action, group.retract(batch.elements, flow), batch.x)
        ahead = group.retract(group.exp(flow), -lower.unsqueeze(-1) * student(y, lower))
        denoised = group.exp(-level.unsqueeze(-1) * first)
        last = (lower < student.levels[0]).reshape(-1, *[1] * len(group.element_shape))
        goal = group.inverse(torch.where(last, denoised, ahead))
    jump = group.exp(-level.unsqueeze(-1) * student(batch.y, level))
    difference = group.log(group.compose(goal, jump)) / level.unsqueeze(-1)
    # elements too far apart for a logarithm say nothing of the direction to go
    near = torch.isfinite(difference).all(-1)
    weight = batch.weight * (defined & near)
    error = torch.where(near.unsqueeze(-1), difference, 0.0).square().sum(-1)
    return (weight * error).sum() / weight.sum().clamp(min=1e-12)


def _check_pair(teacher: LearnedScore, student: LearnedScore, ratio: float) -> None:
    """Raise `ConfigurationError` unless the ratio is in (0, 1), and levels and groups agree."""
    if not 0 < ratio < 1:
        raise ConfigurationError(f"ratio: expected a number in (0, 1), got {ratio}")
    if teacher.levels != student.levels or not teacher.group.is_same_group(student.group):
        raise ConfigurationError(
            f"student: expected levels {teacher.levels} on {teacher.group!r}, got {student.levels} on {student.group!r}"
        )


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
