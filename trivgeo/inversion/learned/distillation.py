"""A learned score distilled into one that jumps from any noise level to a draw of the posterior that was learned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trivgeo.errors import ConfigurationError
from trivgeo.inversion.learned.score import LearnedScore, apply_inverse
from trivgeo.inversion.posterior_energy import check_batch

__all__ = ["consistency_loss"]


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
