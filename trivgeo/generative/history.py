"""What a training of a model went through: losses, held-out likelihoods, and a verdict on its convergence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trivgeo._text import described
from trivgeo.errors import missing_package
from trivgeo.verdict import Verdict

__all__ = ["TrainingHistory"]

_LATE_SHARE = 0.5  # share of the training at the end, in which a converged one gains little
_MAX_LATE_GAIN = 0.1  # share of the whole decrease of the loss that a converged training makes there
_NUM_ERRORS = 3.0  # standard errors above which a difference of losses is not by chance
_MIN_STEPS = 30  # steps from which a trend can be told
_NUM_LAST_LOOKS = 2  # looks at held-out data at the end, in which their likelihood grows little
_MAX_GROWTH = 0.05  # nats a dimension by which it may grow there
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

        A training has not if its second half made more than a tenth of the whole decrease of the loss. With held-out
        data, whose likelihood is asked instead, it has not if this still grew in the last fifth by more than .05 nats a
        dimension, or if no step made it larger than at the start.
        """
        assumptions = ["a loss that stands still is near its least value"]
        logs, reasons = self.held_out_log_prob, []
        if len(self.loss) < _MIN_STEPS:
            reasons.append(f"{len(self.loss)} steps are too few to see whether the loss stands still")
        elif len(logs) > _NUM_LAST_LOOKS and bool(torch.isfinite(logs[[0, -1 - _NUM_LAST_LOOKS, -1]]).all()):
            growth = float(logs[-1] - logs[-1 - _NUM_LAST_LOOKS])
            if growth > _MAX_GROWTH * self.dim:
                reasons.append(f"the log-density of held-out data still grew by {growth:.2g} nats: train longer")
            if self.best_step == int(self.held_out_steps[0]):
                reasons.append("no step made held-out data likelier than the start")
            return Verdict(tuple(reasons), tuple(assumptions))
        elif (gain := self._late_gain()) > _MAX_LATE_GAIN:
            reasons.append(f"the second half of the training made {gain:.0%} of the decrease of the loss: train longer")
        assumptions.append("the data were not learned by heart: there is no likelihood of held-out data")
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
            raise missing_package("plot", "Matplotlib", "plots") from missing
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
