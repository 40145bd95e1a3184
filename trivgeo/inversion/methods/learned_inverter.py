"""Learned inversion in two lines: a score trained on clean data, kept in a file, and the inverter made of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trivgeo._random import integers, keyed
from trivgeo._torch import pytree
from trivgeo.checks import check_choice, check_count, check_positive, check_type
from trivgeo.errors import CheckpointError, ConfigurationError, ShapeError
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.law import Law, noise_between, spread_of
from trivgeo.inversion.learned.files import describe, score_of
from trivgeo.inversion.learned.noise_network import NoiseNetwork, backbone_for, leaves_length
from trivgeo.inversion.learned.score import LearnedScore
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.posterior_energy import check_action, check_batch
from trivgeo.inversion.result import InversionResult
from trivgeo.inversion.stage import StageLike, networks_of
from trivgeo.inversion.stages.add_noise import AddNoise
from trivgeo.inversion.stages.learned_reverse_diffusion import LearnedReverseDiffusion
from trivgeo.inversion.stages.replicate import Replicate
from trivgeo.networks import read_file, write_file
from trivgeo.sde.solvers import AncestralStep, DenoisingStep, FlowStep, RefiningStep, RenoisingStep

__all__ = ["LearnedInverter"]

_WIDER = 1.25
_FACTORS = 2
_STEPPERS: tuple[type[DenoisingStep], ...] = (AncestralStep, FlowStep, RefiningStep, RenoisingStep)


class LearnedInverter(Inverter):
    """Learns to undo random transformations of clean data, then inverts in a few evaluations of a network.

    ```python
    inverter = LearnedInverter(ImageWarp(Affine(2)), seed=0).fit(clean, law)
    result = inverter(x)
    restored = result.restore(x)
    ```

    The noise is as wide as the law of the transformations, in every direction of the group: the scale of the action's
    group plays no part. See `LearnedScore` for what is learned and `AmortizedInverter` for what is done with it; of
    the trained `score` any other inverter can be made, such as ``AmortizedInverter(inverter.score, steps=20,
    num_hypotheses=64)`` for a posterior sample.

    Args:
        action: the action on data.
        rank_by: an energy that ranks the hypotheses; without one the first is the best.
        backbone: the network, see `LearnedScore`; default by `backbone_for`. Every `fit` trains a copy.
        steps: looks at a datum, one evaluation of the network each.
        num_hypotheses: see `AmortizedInverter`.
        stepper: see `LearnedReverseDiffusion`; default `RefiningStep` for one hypothesis, else `AncestralStep`.
        seed: of all that is random in training.

    Attributes:
        score: the trained `LearnedScore`; ``None`` before `fit`.

    Raises:
        ConfigurationError: an action, energy, backbone or stepper that is none, or a count below one.
    """

    def __init__(
        self,
        action: Action,
        rank_by: DataEnergy | Callable[[Any], Tensor] | None = None,
        *,
        backbone: nn.Module | None = None,
        steps: int = 8,
        num_hypotheses: int = 1,
        stepper: DenoisingStep | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(action, rank_by, [])
        self.score: LearnedScore | None = None
        self.backbone = None if backbone is None else check_type("backbone", backbone, nn.Module)
        self._given = (self.backbone,)  # in a tuple: once there is a score, it is no part of this module
        self.steps = check_count("steps", steps)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        default = RefiningStep() if num_hypotheses == 1 else AncestralStep()
        self.stepper = default if stepper is None else check_type("stepper", stepper, DenoisingStep)  # type: ignore[type-abstract]
        self.seed = check_count("seed", seed, 0)

    def forward(
        self, x_tilde: Any, *, generator: torch.Generator | None = None, initial: Tensor | None = None
    ) -> InversionResult:
        """See `Inverter`.

        Raises:
            ConfigurationError: it was neither trained nor loaded.
        """
        self._trained()
        return super().forward(x_tilde, generator=generator, initial=initial)

    def then(self, *stages: StageLike) -> Inverter:
        """See `Inverter`; of an inverter that was trained.

        Raises:
            ConfigurationError: it was neither trained nor loaded.
        """
        self._trained()
        return super().then(*stages)

    def replace(self, **settings: Any) -> Inverter:
        """See `Inverter`; of an inverter that was trained.

        Raises:
            ConfigurationError: it was neither trained nor loaded.
        """
        self._trained()
        return super().replace(**settings)

    def fit(
        self,
        clean: Any,
        law: Law,
        *,
        steps: int = 2000,
        batch_size: int = 256,
        seconds: float | None = 300.0,
        folder: str | Path | None = None,
        progress: bool | None = None,
    ) -> LearnedInverter:
        """Train on clean data, which are moved at random in every step.

        A second time it begins anew, and nothing changes unless it ends.

        Args:
            clean: clean data with one batch dimension, or a function (count, generator) that draws some.
            law: (count, generator) to elements ``[count, *element_shape]``: the transformations to be undone. The
                noise is made as wide as they are.
            steps: of the optimiser.
            batch_size: data of each step.
            seconds: ends training after that time at the latest; the result then depends on the speed of the
                machine. ``None`` for no bound.
            folder: where the state is kept; called again after an interruption, training goes on from there.
            progress: a progress bar; ``None`` for one on a terminal.

        Returns:
            The inverter itself.

        Raises:
            ConfigurationError: no backbone is known for the action, Lightning is missing, a number is out of range, or
                the folder is a file.
            ShapeError: the data do not fit the action, the elements not its group, or other numbers of them are drawn
                than asked for.
            NonFiniteError: the data or the elements hold NaN or infinity.
            DomainError: too few of the elements have a logarithm.
            CheckpointError: the folder holds the state of another training.
        """
        from trivgeo.inversion.learned import training

        _check_length(steps, batch_size, seconds)
        score, draw = self._untrained(clean, law, batch_size)
        module = training.ScoreTraining(score, seed=self.seed)
        training.train(module, draw, steps, batch_size, seconds, folder, progress)
        return self._with_score(score)

    def distil(
        self,
        clean: Any,
        *,
        steps: int = 1000,
        batch_size: int = 256,
        seconds: float | None = 300.0,
        folder: str | Path | None = None,
        progress: bool | None = None,
    ) -> LearnedInverter:
        """An inverter whose network jumps to a posterior sample: two evaluations in place of `steps`.

        See `consistency_loss`, and `fit` for the arguments. Clean data are moved as in training first; an inverter that
        was loaded has no law any more, and moves them by noise.

        Raises:
            ConfigurationError: it was not trained; or see `fit`.
        """
        from trivgeo.inversion.learned import training

        teacher = self._trained()
        _check_length(steps, batch_size, seconds)
        draw = self._drawing(clean) if callable(clean) else _picker(check_batch(self.action, clean)[0])
        module = training.DistillationTraining(teacher, seed=self.seed)
        training.train(module, draw, steps, batch_size, seconds, folder, progress)
        student = LearnedInverter(
            self.action,
            self.energy,
            backbone=self._given[0],
            steps=2,
            num_hypotheses=self.num_hypotheses,
            stepper=RenoisingStep(),
            seed=self.seed,
        )
        return student._with_score(module.student)

    def save(self, path: str | Path) -> None:
        """Write the network, its group and its noise to a safetensors file.

        Raises:
            ConfigurationError: it was not trained.
        """
        score = self._trained()
        kind = type(self.stepper)
        check_choice("stepper", kind, _STEPPERS)
        inverter = {"steps": self.steps, "num_hypotheses": self.num_hypotheses, "stepper": kind.__name__}
        write_file(score.backbone, path, {"score": describe(score), "inverter": inverter, "metadata": {}})

    @classmethod
    def load(
        cls,
        path: str | Path,
        action: Action,
        rank_by: DataEnergy | Callable[[Any], Tensor] | None = None,
        *,
        backbone: nn.Module | None = None,
    ) -> LearnedInverter:
        """An inverter from a file.

        Args:
            path: what `save` wrote.
            action: on the data, of the group that it was trained on; its scale may differ.
            rank_by: see `LearnedInverter`; energies are not in the file.
            backbone: an untrained copy of the network, if it was one of your own and no `NoiseNetwork`; it stays so.

        Raises:
            CheckpointError: the file is missing or unreadable, holds no learned inverter, or one of another group.
        """
        check_action(action)
        file = read_file(path)
        entry = file.entry("inverter")
        try:
            stepper = {kind.__name__: kind for kind in _STEPPERS}[entry["stepper"]]()
            inverter = cls(
                action,
                rank_by,
                backbone=backbone,
                steps=entry["steps"],
                num_hypotheses=entry["num_hypotheses"],
                stepper=stepper,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: expected how to invert in the header, got {entry}: {error}") from error
        return inverter._with_score(score_of(file, action, copy.deepcopy(backbone)))

    def _untrained(self, clean: Any, law: Law, batch_size: int) -> tuple[LearnedScore, Law]:
        """The score before training, and what draws the data of a step."""
        drawing = self._drawing(clean) if callable(clean) else None
        some = drawing(max(batch_size, 512), keyed(self.seed, 2)) if drawing else check_batch(self.action, clean)[0]
        scale = spread_of(self.action.group, law, self.seed)
        action = self.action.with_scale(_WIDER * scale)
        (given,) = self._given
        backbone = backbone_for(action, some) if given is None else copy.deepcopy(given)
        if not any(parameter.requires_grad for parameter in backbone.parameters()):
            backbone.requires_grad_(True).train()  # constant as that of another inverter
        prepare = backbone.reduced if isinstance(backbone, NoiseNetwork) else None
        lowest = backbone.finest if isinstance(backbone, NoiseNetwork) else NoiseNetwork.finest
        schedule, time = noise_between(lowest, 1.0)
        score = LearnedScore(
            action,
            schedule,
            backbone,
            noise_steps=_FACTORS,
            lowest_time=time,
            augmentation=law,
            prepare=prepare,
        )
        # reading is done once: what is read of what was read is the same
        return score, drawing or _picker(score.prepared(some))

    def _drawing(self, clean: Callable[[int, torch.Generator], Any]) -> Callable[[int, torch.Generator], Any]:
        """Data that somebody's function draws, as tensors that fit the action, as many as asked for."""

        def draw(count: int, generator: torch.Generator) -> Any:
            some, given = check_batch(self.action, clean(count, generator))
            if given != count:
                raise ShapeError(f"clean: expected a function that draws the {count} data asked for, got {given}")
            return some

        return draw

    def _trained(self) -> LearnedScore:
        if self.score is None:
            raise ConfigurationError(
                "inverter: expected one that was trained; call fit(clean, law), or LearnedInverter.load(path, action)"
            )
        return self.score

    def _with_score(self, score: LearnedScore) -> LearnedInverter:
        self.score = score.eval().requires_grad_(False)
        self.backbone = score.backbone
        self.posterior = Posterior(score.action, self.energy, log_det=self.posterior.log_det)
        grid = [1.0 - (1.0 - score.lowest_time) * i / max(1, self.steps - 1) for i in range(self.steps)]
        denoise = LearnedReverseDiffusion(score, stepper=self.stepper, times=[*grid, 0.0])
        stages: list[StageLike] = [Replicate(self.num_hypotheses), denoise]
        if self.num_hypotheses > 1:
            stages.insert(1, AddNoise(score.schedule, score.noise_steps))
        self.stages = tuple(stages)
        self.networks = networks_of(self.stages)
        return self


def _check_length(steps: int, batch_size: int, seconds: float | None) -> None:
    for name, number in (("steps", steps), ("batch_size", batch_size)):
        check_count(name, number)
    if seconds is not None:
        check_positive("seconds", seconds)


def _picker(clean: Any) -> Callable[[int, torch.Generator], Any]:
    """Data drawn with repetition."""
    first: Tensor = pytree.tree_leaves(clean)[0]

    def draw(count: int, generator: torch.Generator) -> Any:
        index = integers(leaves_length(clean), (count,), torch.empty(0), generator).to(first.device)
        return pytree.tree_map(lambda leaf: leaf[index], clean)

    return draw
