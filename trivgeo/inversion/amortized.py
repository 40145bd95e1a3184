"""Inversion by a learned score: a few evaluations of a network in place of thousands of an energy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.base import InversionResult, Inverter
from trivgeo.inversion.energy import DataEnergy, PosteriorEnergy, as_energy, check_batch
from trivgeo.inversion.learned import LearnedScore
from trivgeo.sde.denoising import AncestralStep
from trivgeo.sde.noise import NoiseKernel
from trivgeo.sde.process import Stepper, TrivializedSDE, uniform_grid
from trivgeo.sde.reverse import reverse_solution

__all__ = ["AmortizedInverter"]


class AmortizedInverter(nn.Module, Inverter):
    """Samples the transformation posterior with a `LearnedScore`, by the reverse diffusion in a few steps.

    K independent chains for each datum; one evaluation of the network a step and chain. The scheme says what is
    returned: `trivgeo.sde.AncestralStep` (the reverse diffusion) and `FlowStep` (its probability flow) a posterior
    sample, a network that was distilled (`ConsistencyDistillation`) with `RenoisingStep` likewise, in one or two
    steps; `RefiningStep` an estimate for a posterior with one mode.

    Chains start at noise around the identity, so that two of them can find two modes, or at the identity itself: a
    good guess, and the best single one, when the transformations of the data are no larger than the noise that the
    network was trained on. The network never saw data further away than that.

    Without an energy, those returned are zero where a hypothesis can be undone and infinite elsewhere: `best` is then
    the first hypothesis, one draw from the posterior. With one, it ranks them, at one evaluation each.

    Args:
        score: the trained score.
        energy: ranks the hypotheses; see `PosteriorEnergy`.
        steps: number of equal steps in time.
        num_hypotheses: number K of chains.
        stepper: the scheme; default `AncestralStep`.
        start: ``"noise"``, or ``"identity"``.
        times: a falling grid that ends at 0, in place of ``steps`` equal steps from 1.
        log_det: keep the log-determinant of the action in the posterior energy.
        max_evaluations: the largest number of data seen by the network at once, to bound memory: the data are
            inverted in parts; ``None`` for all at once.

    Raises:
        ConfigurationError: a score or energy that is none, a count below one, an unknown start, times that do not
            fall to 0, or ``max_evaluations`` is too little for one datum.
    """

    def __init__(
        self,
        score: LearnedScore,
        energy: DataEnergy | Callable[[Any], Tensor] | None = None,
        *,
        steps: int = 4,
        num_hypotheses: int = 1,
        stepper: Stepper[TrivializedSDE, Tensor] | None = None,
        start: Literal["noise", "identity"] = "noise",
        times: Sequence[float] | None = None,
        log_det: bool = False,
        max_evaluations: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(score, LearnedScore):
            raise ConfigurationError(f"score: expected a LearnedScore, got {type(score).__name__}")
        if start not in ("noise", "identity"):
            raise ConfigurationError(f"start: expected 'noise' or 'identity', got {start!r}")
        grid = uniform_grid(steps, 1.0, 0.0) if times is None else [float(t) for t in times]
        if len(grid) < 2 or grid[0] > 1 or grid[-1] != 0 or grid != sorted(set(grid), reverse=True):
            raise ConfigurationError(f"times: expected a grid that falls from at most 1 to 0, got {grid}")
        check_count("num_hypotheses", num_hypotheses)
        if max_evaluations is not None and check_count("max_evaluations", max_evaluations) < num_hypotheses:
            raise ConfigurationError(
                f"max_evaluations: expected at least num_hypotheses = {num_hypotheses}, got {max_evaluations}"
            )
        self.score = score
        self.action = score.action
        self.energy = None if energy is None else as_energy(energy)
        self.times = grid
        self.num_hypotheses = num_hypotheses
        self.stepper = AncestralStep() if stepper is None else stepper
        self.start = start
        self.log_det = log_det
        self.max_evaluations = max_evaluations

    @torch.no_grad()
    def forward(self, x_tilde: Any, *, generator: torch.Generator | None = None) -> InversionResult:
        """K hypotheses for each datum.

        Raises:
            ShapeError: the data do not fit the action, or have no batch dimension.
            NonFiniteError: the data hold NaN or infinity.
        """
        batch = check_batch(self.action, x_tilde)
        size = batch if self.max_evaluations is None else self.max_evaluations // self.num_hypotheses
        parts = [pytree.tree_map(lambda leaf, i=i: leaf[i : i + size], x_tilde) for i in range(0, batch, size)]
        return InversionResult.cat([self.follow(part, self._initial(part, generator), generator) for part in parts])

    @torch.no_grad()
    def follow(self, x_tilde: Any, initial: Tensor, generator: torch.Generator | None = None) -> InversionResult:
        r"""The hypotheses that chains from given elements reach.

        Equivariant exactly: :math:`h \tilde x` from :math:`h g_1`, with the same noise, leads to :math:`h g_0`.

        Args:
            x_tilde: data with one batch dimension b.
            initial: elements at the first of ``times``, ``[b, K, *element_shape]``.
            generator: the source of randomness, on the device of the data.
        """
        group = self.action.group
        score = self.score.given(x_tilde)
        solution = reverse_solution(
            group,
            self.score.schedule,
            score,
            times=self.times,
            initial=initial,
            generator=generator,
            stepper=self.stepper,
        )
        g = solution.final
        if self.energy is None:
            lifted = pytree.tree_map(lambda leaf: leaf.unsqueeze(1), score.x)
            valid = self.action.is_valid(group.inverse(g), lifted)
            energies = torch.where(valid.reshape(*g.shape[:2], -1).all(-1), 0.0, torch.inf).to(g.dtype)
        else:
            energies = PosteriorEnergy(self.action, self.energy, x_tilde, log_det=self.log_det)(g)
        ranked = 0 if self.energy is None else g.shape[1]
        return InversionResult(group, g, energies, solution.failures, ranked, 0, score.evaluations)

    def _initial(self, x: Any, generator: torch.Generator | None) -> Tensor:
        like: Tensor = pytree.tree_leaves(x)[0]
        shape = (len(like), self.num_hypotheses)
        if self.start == "identity":
            return self.action.group.identity(*shape, dtype=like.dtype, device=like.device)
        kernel = NoiseKernel(self.action.group, self.score.schedule, self.score.noise_steps)
        return kernel.sample(*shape, t=self.times[0], generator=generator, dtype=like.dtype, device=like.device)[0]
