"""What a training of a model went through: losses, held-out likelihoods, and a verdict on its convergence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trivgeo._text import described
from trivgeo.errors import ConfigurationError
from trivgeo.verdict import Verdict

__all__ = ["TrainingHistory"]

_LATE_SHARE = 0.5  # share of the training at the end, in which a converged one gains little
_MAX_LATE_GAIN = 0.1  # share of the whole decrease of the loss that a converged training makes there
_NUM_ERRORS = 3.0  # standard errors above which a difference of losses is not by chance
_MIN_STEPS = 30  # steps from which a trend can be told
_MAX_RISE = 0.05  # nats a dimension by which the held-out likelihood may be below its best
_MAX_POINTS = 200  # points of the curve of the training loss in a plot


@dataclass(frozen=True)
class TrainingHistory:
    """Losses and held-out likelihoods of a training by `GroupDiffusion.fit`.

    Attributes:
        loss: loss of each step on its batch, ``[steps]``.
        held_out_steps: numbers of steps after which held-out data were looked at, ``[k]``; empty without held-out data.
        held_out_loss: loss of the averaged weights on held-out data, with the same noise each time, ``[k]``.
        held_out_log_prob: mean log-density of held-out data under the averaged weights, for Haar measure, in nats,
            ``[k]``; NaN without a density.
        best_step: number of the step whose weights the model has.
        dim: dimension of the group.
    """

    loss: Tensor
    held_out_steps: Tensor
    held_out_loss: Tensor
    held_out_log_prob: Tensor
    best_step: int
    dim: int

    def __repr__(self) -> str:
        return described(self)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the training: whether it has converged, as far as its losses tell.

        A training has not if its second half made more than a tenth of the whole decrease of the loss, or, with
        held-out data, if their loss still fell so much; nor is it trusted if the data were learned by heart: the
        held-out likelihood fell from its best, or the model keeps the first weights that were looked at.
        """
        assumptions = ["a loss that stands still is near its least value"]
        reasons = []
        if len(self.loss) < _MIN_STEPS:
            reasons.append(f"{len(self.loss)} steps are too few to see whether the loss stands still")
        elif (gain := self._late_gain()) > _MAX_LATE_GAIN:
            reasons.append(f"the second half of the training made {gain:.0%} of the decrease of the loss: train longer")
        if not len(self.held_out_loss):
            assumptions.append("the data were not learned by heart: there are no held-out data")
            return Verdict(tuple(reasons), tuple(assumptions))
        logs = self.held_out_log_prob
        kept = int((self.held_out_steps == self.best_step).nonzero()[0, 0])
        if bool(torch.isfinite(logs).all()) and float(logs.max() - logs[kept]) > _MAX_RISE * self.dim:
            lost = float(logs.max() - logs[kept])
            reasons.append(f"held-out data were {lost:.2g} nats more likely before: the data are learned by heart")
        return Verdict(tuple(reasons), tuple(assumptions))

    def _late_gain(self) -> float:
        """The share of the decrease of the loss in the second half; zero if it may be chance."""
        loss = self.loss.double()
        loss = loss[torch.isfinite(loss)]
        part = max(2, len(loss) // 10)
        first, last = loss[: max(2, min(part, 10))], loss[-part:]
        middle = loss[int((1.0 - _LATE_SHARE) * len(loss)) - part // 2 :][:part]
        error = math.sqrt(float(middle.var() + last.var()) / part)
        late, whole = float(middle.mean() - last.mean()), float(first.mean() - last.mean())
        if late < _NUM_ERRORS * error or whole <= 0.0:
            return 0.0
        return late / whole

    def plot(self, axes: Any = None) -> Any:
        """Draw the losses, and the held-out log-density on a second axis; needs Matplotlib.

        Args:
            axes: axes of Matplotlib; ``None`` for new ones.

        Returns:
            The axes of the losses.

        Raises:
            ConfigurationError: Matplotlib is missing.
        """
        try:
            from matplotlib import pyplot as plt
        except ModuleNotFoundError as missing:
            raise ConfigurationError(f"plot: expected Matplotlib, pip install matplotlib: {missing}") from missing
        axes = plt.subplots()[1] if axes is None else axes
        size = -(-len(self.loss) // _MAX_POINTS)
        means = torch.stack([part.double().mean() for part in self.loss.split(size)])
        middles = torch.stack([part.double().mean() for part in torch.arange(1, len(self.loss) + 1).split(size)])
        axes.plot(middles, means, label="loss")
        axes.set(xlabel="step", ylabel="loss")
        if len(self.held_out_loss):
            axes.plot(self.held_out_steps, self.held_out_loss, marker=".", label="held-out loss")
            axes.axvline(self.best_step, color="0.7", linewidth=0.8)
            if bool(torch.isfinite(self.held_out_log_prob).any()):
                twin = axes.twinx()
                twin.plot(self.held_out_steps, self.held_out_log_prob, "k--", linewidth=1)
                twin.set_ylabel("held-out log-density, nats (dashed)")
        axes.legend(loc="upper right")
        return axes
