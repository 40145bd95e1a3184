"""Inversion by a learned score: a few evaluations of a network in place of thousands of an energy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor

from trivgeo.checks import check_choice, checked
from trivgeo.inversion.energies.base import DataEnergy
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.learned.learned_stages import LearnedReverseDiffusion
from trivgeo.inversion.learned.score import LearnedScore
from trivgeo.inversion.stage import StageLike
from trivgeo.inversion.stages.chains import AddNoise, Replicate
from trivgeo.sde import Stepper, TrivializedSDE


@checked
class AmortizedInverter(Inverter):
    """Estimates transformations with a `LearnedScore`, by the reverse diffusion in a few steps.

    The hypotheses are draws of the posterior that the network has learned, without weights: an estimate, as good as the
    network. For a sample give a `LearnedInverter` to `PosteriorSampler` as its proposals. Chains start from noise
    around the identity, so that different chains can find different modes, or from the identity itself. With an energy
    `InversionResult.best` is the hypothesis of lowest energy, at one evaluation for each hypothesis. Without an energy
    it is the first hypothesis that can be undone, one draw. Stages: `Replicate`, `AddNoise`, `LearnedReverseDiffusion`.

    Args:
        score: the trained score.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        steps: number of equal steps.
        num_hypotheses: number K of chains.
        stepper: the scheme; default `AncestralStep`.
        start: ``"noise"``, or ``"identity"``.
        times: a falling grid that ends at 0, in place of ``steps``, see `LearnedReverseDiffusion`.

    Raises:
        ConfigurationError: see `LearnedReverseDiffusion`; or an unknown start.
    """

    def __init__(
        self,
        score: LearnedScore,
        energy: DataEnergy | Callable[[Any], Tensor] | None = None,
        steps: int = 4,
        num_hypotheses: int = 1,
        stepper: Stepper[TrivializedSDE, Tensor] | None = None,
        start: Literal["noise", "identity"] = "noise",
        times: Sequence[float] | None = None,
    ) -> None:
        check_choice("start", start, ("noise", "identity"))
        denoise = LearnedReverseDiffusion(score, steps, stepper, times)
        stages: list[StageLike] = [Replicate(num_hypotheses), denoise]
        if start == "noise":
            stages.insert(1, AddNoise(score.schedule, score.noise_steps, denoise.times[0]))
        super().__init__(score.action, energy, stages)
