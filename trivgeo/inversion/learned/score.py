"""A learned score of the transformation posterior, which sees data only with a transformation undone; its losses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trivgeo._numerics import is_traced
from trivgeo._random import keyed, normal, seed, uniform
from trivgeo._torch import pytree
from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Action, LieGroup
from trivgeo.inversion.bounds import Bound, automatic_bound, bytes_of, number_that_fits, with_gradients
from trivgeo.inversion.evaluation import evaluation_mode
from trivgeo.inversion.learned.backbone import leaves_length
from trivgeo.inversion.posterior import check_action, check_batch
from trivgeo.inversion.rows import flat_rows, in_blocks, lift, where_rows
from trivgeo.inversion.transformations import sample_elements
from trivgeo.sde import Schedule, Score
from trivgeo.sde.noise import noise_with_target
from trivgeo.sde.noise.schedule import check_time
from trivgeo.sde.scores import ScoreEstimate


@checked
class LearnedScore(nn.Module):
    r"""The score of the noised transformation posterior, for every datum at once.

    Let :math:`\tilde x = g_0 x` with x a clean datum and :math:`g_t = g_0 w_t`. The posterior of g_t moves with the
    datum, :math:`p_t(h g \mid h \tilde x) = p_t(g \mid \tilde x)`, so its left-trivialized score is a function of the
    datum with g_t undone and of the noise level alone:

    .. math:: \nabla_{\mathfrak g} \log p_t(g_t \mid \tilde x)
        = a - \epsilon_\theta(g_t^{-1} \tilde x, \sigma_t) / \sigma_t, \qquad g_t^{-1} \tilde x = w_t^{-1} x .

    Whatever the network :math:`\epsilon_\theta`, what is sampled with it is equivariant. It is trained on
    :math:`w^{-1} x`, x clean and w noise, by denoising score matching (`loss`); no transformed datum and no energy is
    needed. :math:`a_i = \mathrm{tr}\,\mathrm{ad}(e_i)` is the mean of the score, so the network's target, the noise in
    units of its size, has mean zero and about unit variance at every level.

    The prior of g_0 that makes this so is Haar measure: the right one if all noise counts the same, since then g_t is
    independent of w_t; the left one, which `Posterior` stands for, if it is weighted by
    :math:`\lambda(w_t)^{-1}`. On unimodular groups they are one.

    Args:
        action: the action on data.
        schedule: the noise.
        backbone: (data with one batch dimension ``[b, ...]``, levels sigma ``[b]``) to noise ``[b, dim]``.
        prior: Haar measure as the prior of g_0, ``"right"`` or ``"left"``.
        noise_steps: factors of which the noise is made, see `trivgeo.sde.noise.noise_with_target`.
        lowest_time: t of the lowest level trained on, in (0, 1).
        augmentation: random transformations of clean data, see `noisy`.
        prepare: makes of data with one batch dimension the smaller data that the backbone reads, by something that the
            action commutes with, such as a choice of points; it spares the action on the rest.

    Raises:
        ConfigurationError: an action, schedule, backbone or prior is of another type, or a number is out of range.
    """

    def __init__(
        self,
        action: Action,
        schedule: Schedule,
        backbone: nn.Module,
        *,
        prior: Literal["right", "left"] = "right",
        noise_steps: int = 4,
        lowest_time: float = 0.01,
        augmentation: bool | Callable[[int, torch.Generator], Tensor] = False,
        prepare: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(schedule, Schedule):
            raise ConfigurationError(f"schedule: expected a Schedule, got {schedule!r}")
        if not isinstance(backbone, nn.Module):
            raise ConfigurationError(f"backbone: expected a torch.nn.Module, got {backbone!r}")
        if prior not in ("right", "left"):
            raise ConfigurationError(f"prior: expected 'right' or 'left', got {prior!r}")
        if not 0 < lowest_time < 1:
            raise ConfigurationError(f"lowest_time: expected a time in (0, 1), got {lowest_time}")
        self.action = check_action(action)
        self.schedule = schedule
        self.backbone = backbone
        self.prior = prior
        self.noise_steps = check_count("noise_steps", noise_steps)
        self.lowest_time = lowest_time
        self.augmentation = augmentation
        self.prepare = prepare
        self._bytes: dict[Any, int] = {}
        self.levels = (self.level(lowest_time), self.level(1.0))

    @property
    def group(self) -> LieGroup:
        """The group of the action."""
        return self.action.group

    def level(self, t: float) -> float:
        r"""Return the noise level :math:`\sigma_t = (\int_0^t \gamma^2)^{1/2}` of a time t."""
        return math.sqrt(self.schedule.variance(0.0, check_time(t)))

    def forward(self, y: Any, level: Float[Tensor, " b"]) -> Float[Tensor, "b n"]:
        """Return the noise in units of its size.

        Args:
            y: data with the present guess undone, one batch dimension.
            level: noise levels of the data.

        Raises:
            ShapeError: the backbone does not return one algebra vector for each datum.
        """
        noise = self.backbone(y, level)
        if noise.shape != (*level.shape, self.group.dim):
            raise ShapeError(f"backbone: expected [{level.shape[0]}, {self.group.dim}], got {list(noise.shape)}")
        return noise

    def prepared(self, x: Any) -> Any:
        """Return the part of data x that the backbone reads."""
        return x if self.prepare is None else self.prepare(x)

    def bytes_of_an_evaluation(self, x: Any) -> int:
        """Return the memory that an evaluation of the backbone with its gradient takes, see `bytes_of`.

        Known for further data of the same shapes, dtypes and device.

        Args:
            x: data that the backbone reads, see `prepared`.
        """
        key = tuple((leaf.shape[1:], leaf.dtype, leaf.device) for leaf in pytree.tree_leaves(x))
        if key not in self._bytes:
            with evaluation_mode(self.backbone):
                self._bytes[key] = bytes_of(self._with_graph, x)
        return self._bytes[key]

    def _with_graph(self, rows: Any) -> Tensor:
        reference: Tensor = pytree.tree_leaves(rows)[0]
        return self(with_gradients(rows), reference.new_full((len(reference),), self.levels[0]))

    def number_at_once(self, x: Any, bound: Bound = "auto", max_memory: float | None = None) -> int | None:
        """Return the number of data that the backbone sees at once: the bound, or by the measured memory of one.

        Args:
            x: data that the backbone reads, see `prepared`.
            bound: a number, or ``None`` for any number.
            max_memory: memory in GiB, see `trivgeo.inversion.bounds.memory_of`.
        """
        if bound != "auto":
            return bound
        if is_traced() or leaves_length(x) == 0:
            return automatic_bound(x)
        return number_that_fits(x, self.bytes_of_an_evaluation(x), max_memory)

    def given(self, x_tilde: Any, max_evaluations: int | None = None) -> ConditionedScore:
        """Return the score of the posterior of given data.

        Args:
            x_tilde: data, one batch dimension.
            max_evaluations: most evaluations of the network at once; None for no bound.
        """
        return ConditionedScore(self, x_tilde, max_evaluations)

    def noisy(self, x: Any, generator: torch.Generator | None = None) -> NoisyBatch:
        """Draw training examples: data moved by noise w, with the regression targets of the score.

        The level of the noise of each datum is log-uniform between the lowest and the highest of ``levels``. The action
        on images interpolates, and a network could tell the noise from the number of interpolations of a clean datum.
        With ``augmentation`` the clean data are therefore moved by elements g_0 of k_1 first, and then seen from
        g_0 w, as data are in an inversion; a function (count, generator) in place of True draws the g_0. With an exact
        action the augmentation changes nothing.

        Args:
            x: clean data, one batch dimension.
            generator: source of all random numbers; its device is that of the data.
        """
        x = self.prepared(x)
        reference: Tensor = pytree.tree_leaves(x)[0]
        low, high = (math.log(level) for level in self.levels)
        share = uniform((len(reference),), reference, generator)
        level = (low + (high - low) * share).exp()
        sample = noise_with_target(self.group, level.square(), steps=self.noise_steps, generator=generator)
        a = self.group.algebra.trace_ad_like(sample.target)
        noise = (a - sample.target) * level.unsqueeze(-1)
        g = sample.elements
        if self.augmentation:
            carrier = self._augmentations(level, generator)
            x, moved = apply_inverse(self.action, self.group.inverse(carrier), x)
            identity = self.group.identity(dtype=g.dtype, device=g.device)
            g = self.group.compose(where_rows(moved, carrier, identity), g)
        y, defined = apply_inverse(self.action, g, x)
        weight = defined.to(level.dtype)
        if self.prior == "left":
            weight = weight * (-sample.log_modular).exp()
        return NoisyBatch(x, g, y, level, noise, weight)

    def _augmentations(self, level: Float[Tensor, " b"], generator: torch.Generator | None) -> Tensor:
        """Draw the elements that move clean data, ``[b, *element_shape]``."""
        if callable(self.augmentation):  # a user's distribution: with a generator on the CPU, in a dtype of its own
            return sample_elements(self.group, self.augmentation, len(level), keyed(seed(level, generator))).to(level)
        each = self.levels[1] / math.sqrt(self.noise_steps)
        factors = self.group.exp(each * normal((self.noise_steps, len(level), self.group.dim), level, generator))
        return functools.reduce(self.group.compose, factors)

    def loss(self, x: Any, generator: torch.Generator | None = None, max_evaluations: int | None = None) -> Tensor:
        r""":math:`E |\epsilon_\theta(w^{-1} x, \sigma) + \sigma (T - a)|^2`, smallest at the score; see `noisy`.

        :math:`\sigma^2` times the squared error of the score: the same weight for every level. Noise that the (local)
        action does not undo is left out.

        Args:
            x: clean data, one batch dimension.
            generator: random numbers; ``None`` is torch's.
            max_evaluations: the largest number of data that the backbone sees at once. Blocks are evaluated again for
                the gradient, which bounds its memory. ``None`` for all.

        Raises:
            ShapeError: the data do not fit the action, or have no batch dimension.
            NonFiniteError: the data hold NaN or infinity.
        """
        x, _ = check_batch(self.action, x)
        batch = self.noisy(x, generator)
        if max_evaluations is None or max_evaluations >= len(batch.level):
            noise = self(batch.y, batch.level)
        else:
            starts = range(0, len(batch.level), max_evaluations)
            parts = [
                pytree.tree_map(lambda leaf, i=i: leaf[i : i + max_evaluations], (batch.y, batch.level)) for i in starts
            ]
            noise = torch.cat([checkpoint(self, *part, use_reentrant=False) for part in parts])
        error = (noise - batch.noise).square().sum(-1)
        return (batch.weight * error).sum() / batch.weight.sum()


class NoisyBatch(NamedTuple):
    r"""Data with noised elements undone, and the regression targets of a network.

    Attributes:
        x: the data :math:`\tilde x = g_0 x`; clean ones without augmentation.
        elements: :math:`g = g_0 w`, ``[b, *element_shape]``.
        y: :math:`g^{-1} \tilde x`; the data themselves where that is undefined.
        level: the noise levels, ``[b]``.
        noise: targets of the network, ``[b, dim]``.
        weight: weights of the rows in a loss, ``[b]``; zero where y is undefined.
    """

    x: Any
    elements: Tensor
    y: Any
    level: Float[Tensor, " b"]
    noise: Float[Tensor, "b n"]
    weight: Float[Tensor, " b"]


class ConditionedScore(Score):
    """A `LearnedScore` for given data: elements ``[b, *chains, *element_shape]`` and a time to scores.

    Args:
        max_evaluations: largest number of data that the network sees at once; ``None`` for no bound.

    Attributes:
        x: the part of the data that the network reads.
        evaluations: number of evaluations of the network so far, for each datum.
    """

    def __init__(self, score: LearnedScore, x_tilde: Any, max_evaluations: int | None = None) -> None:
        self._score = score
        self._bound = max_evaluations
        self.x = score.prepared(x_tilde)
        self.evaluations = 0

    def estimate(self, g: Tensor, t: float) -> ScoreEstimate:
        """Return the left-trivialized gradient of log p_t at elements g and time t, ``[b, *chains, dim]``.

        NaN where the (local) action does not undo g.
        """
        score, level = self._score, self._score.level(t)
        self.evaluations += score.group.batch_shape(g)[1:].numel()

        def noise(g: Tensor, x: Any) -> Tensor:
            shape = score.group.batch_shape(g)
            y = score.action(score.group.inverse(g), lift(x, len(shape) - 1))
            return score(flat_rows(y, len(shape)), g.new_full((math.prod(shape),), level)).reshape(
                *shape, score.group.dim
            )

        noise_at = in_blocks(noise, score.group, g, self.x, self._bound)
        return ScoreEstimate(score.group.algebra.trace_ad_like(noise_at) - noise_at / level)


def apply_inverse(action: Action, g: Tensor, x: Any) -> tuple[Any, Bool[Tensor, " b"]]:
    """Return ``g^-1 x``, and the mask ``[b]`` of where it is defined.

    Undefined rows are those of x itself: NaN would spoil the gradients of other rows.
    """
    y = action(action.group.inverse(g), x)
    defined = torch.stack([torch.isfinite(leaf).flatten(1).all(1) for leaf in pytree.tree_leaves(y)]).all(0)
    return pytree.tree_map(lambda leaf, other: where_rows(defined, leaf, other), y, x), defined


@checked
def consistency_loss(
    teacher: LearnedScore,
    student: LearnedScore,
    x: Any,
    *,
    ratio: float = 0.8,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Return the loss of consistency distillation (Song et al. 2023) in trivialized form: how far jumps land apart.

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
