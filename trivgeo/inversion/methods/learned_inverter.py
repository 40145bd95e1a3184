"""Learned inversion in two lines: a score trained on clean data, kept in a file, and the inverter made of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trivgeo._deprecation import renamed_arguments
from trivgeo._devices import module_device, on_device, tree_device
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
from trivgeo.inversion.stage import StageLike
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
        energy: an energy that ranks the hypotheses; without one the first is the best.
        backbone: the network, see `LearnedScore`; default by `backbone_for`. Every `fit` trains a copy.
        steps: looks at a datum, one evaluation of the network each.
        num_hypotheses: see `AmortizedInverter`.
        stepper: see `LearnedReverseDiffusion`; default `RefiningStep` for one hypothesis, else `AncestralStep`.
        seed: of all that is random in training.

    Attributes:
        score: the trained `LearnedScore`, all that training makes; stages and posterior follow from it. ``None`` before
            `fit`.

    Raises:
        ConfigurationError: an action, energy, backbone or stepper that is none, or a count below one.
    """

    @renamed_arguments(until="0.4", rank_by="energy")
    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor] | None = None,
        *,
        backbone: nn.Module | None = None,
        steps: int = 8,
        num_hypotheses: int = 1,
        stepper: DenoisingStep | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(action, energy, [])  # its stages are those of the score
        self.score: LearnedScore | None = None
        self.make_backbone = _BackboneFactory(None if backbone is None else check_type("backbone", backbone, nn.Module))
        self.steps = check_count("steps", steps)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        default = RefiningStep() if num_hypotheses == 1 else AncestralStep()
        self.stepper = default if stepper is None else check_type("stepper", stepper, DenoisingStep)  # type: ignore[type-abstract]
        self.seed = check_count("seed", seed, 0)

    @classmethod
    def from_score(
        cls, score: LearnedScore, energy: DataEnergy | Callable[[Any], Tensor] | None = None, **settings: Any
    ) -> LearnedInverter:
        """Return an inverter of a trained score, which is put into evaluation mode, its parameters constant.

        Args:
            score: the score.
            energy: see `LearnedInverter`.
            **settings: ``backbone``, ``steps``, ``num_hypotheses``, ``stepper``, ``seed``, see `LearnedInverter`.

        Raises:
            ConfigurationError: see `LearnedInverter`.
        """
        inverter = cls(check_type("score", score, LearnedScore).action, energy, **settings)
        inverter.score = score.eval().requires_grad_(False)
        return inverter

    def __repr__(self) -> str:
        """The action, the energy and the stages by name; before training, that it is not trained."""
        return super().__repr__() if self.score is not None else f"LearnedInverter({self.action!r}, not trained)"

    @property
    def backbone(self) -> nn.Module | None:
        """The network of the score; before training the network that was given, if any."""
        return self.make_backbone.template if self.score is None else self.score.backbone

    @property
    def posterior(self) -> Posterior:
        """The posteriors of the action and the energy; of a trained inverter, in the basis of its score."""
        given = self._posterior
        return given if self.score is None else Posterior(self.score.action, given.energy, log_det=given.log_det)

    @property
    def stages(self) -> tuple[StageLike, ...]:
        """The stages of the score: `Replicate`, `AddNoise` if there are several hypotheses, `LearnedReverseDiffusion`.

        Raises:
            ConfigurationError: the inverter was neither trained nor loaded.
        """
        score = self._trained_score()
        grid = [1.0 - (1.0 - score.lowest_time) * i / max(1, self.steps - 1) for i in range(self.steps)]
        reverse = LearnedReverseDiffusion(score, stepper=self.stepper, times=[*grid, 0.0])
        noise = [AddNoise(score.schedule, score.noise_steps)] if self.num_hypotheses > 1 else []
        return (Replicate(self.num_hypotheses), *noise, reverse)

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

        A second time it begins anew, and nothing changes unless it ends. Training is where the inverter is; where
        the data are, if it has no networks yet and was not moved.

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
        score, draw = self._score_to_train(clean, law, batch_size)
        module = training.ScoreTraining(score, seed=self.seed)
        training.train(module, draw, steps, batch_size, seconds, folder, progress)
        self.score = score.eval().requires_grad_(False)
        return self

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

        teacher = self._trained_score()
        _check_length(steps, batch_size, seconds)
        draw = self._drawing(clean) if callable(clean) else _picker(check_batch(self.action, clean)[0])
        module = training.DistillationTraining(teacher, seed=self.seed)
        training.train(module, draw, steps, batch_size, seconds, folder, progress)
        return LearnedInverter.from_score(
            module.student,
            self.energy,
            backbone=self.make_backbone.template,
            steps=2,
            num_hypotheses=self.num_hypotheses,
            stepper=RenoisingStep(),
            seed=self.seed,
        )

    def save(self, path: str | Path) -> None:
        """Write the network, its group and its noise to a safetensors file.

        Raises:
            ConfigurationError: it was not trained.
        """
        score = self._trained_score()
        kind = type(self.stepper)
        check_choice("stepper", kind, _STEPPERS)
        inverter = {"steps": self.steps, "num_hypotheses": self.num_hypotheses, "stepper": kind.__name__}
        write_file(score.backbone, path, {"score": describe(score), "inverter": inverter, "metadata": {}})

    @classmethod
    @renamed_arguments(until="0.4", rank_by="energy")
    def load(
        cls,
        path: str | Path,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor] | None = None,
        *,
        backbone: nn.Module | None = None,
    ) -> LearnedInverter:
        """An inverter from a file.

        Args:
            path: what `save` wrote.
            action: on the data, of the group that it was trained on; its scale may differ.
            energy: see `LearnedInverter`; it is not in the file.
            backbone: an untrained copy of the network, if it was one of your own and no `NoiseNetwork`; it stays so.

        Raises:
            CheckpointError: the file is missing or unreadable, holds no learned inverter, or one of another group.
        """
        check_action(action)
        file = read_file(path)
        entry = file.entry("inverter")
        try:
            stepper = {kind.__name__: kind for kind in _STEPPERS}[entry["stepper"]]()
            settings = {"steps": entry["steps"], "num_hypotheses": entry["num_hypotheses"], "stepper": stepper}
            cls(action, energy, **settings)  # whether they are settings of an inverter
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: expected how to invert in the header, got {entry}: {error}") from error
        score = score_of(file, action, copy.deepcopy(backbone))
        return cls.from_score(score, energy, backbone=backbone, **settings)

    def _score_to_train(self, clean: Any, law: Law, batch_size: int) -> tuple[LearnedScore, Law]:
        """The score before training, and what draws the data of a step."""
        drawing = self._drawing(clean) if callable(clean) else None
        some = drawing(max(batch_size, 512), keyed(self.seed, 2)) if drawing else check_batch(self.action, clean)[0]
        device = module_device(self) or self.make_backbone.device or tree_device(some)
        some = on_device(some, device)
        scale = spread_of(self.action.group, law, self.seed)
        action = self.action.with_scale(_WIDER * scale)
        backbone = self.make_backbone(action, some).to(device)
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
        # `prepared` is idempotent, so it is applied once here
        return score, drawing or _picker(score.prepared(some))

    def _drawing(self, clean: Callable[[int, torch.Generator], Any]) -> Callable[[int, torch.Generator], Any]:
        """Data that somebody's function draws, as tensors that fit the action, as many as asked for."""

        def draw(count: int, generator: torch.Generator) -> Any:
            some, given = check_batch(self.action, clean(count, generator))
            if given != count:
                raise ShapeError(f"clean: expected a function that draws the {count} data asked for, got {given}")
            return some

        return draw

    def _trained_score(self) -> LearnedScore:
        if self.score is None:
            raise ConfigurationError(
                "inverter: expected one that was trained; call fit(clean, law), or LearnedInverter.load(path, action)"
            )
        return self.score


@dataclass(frozen=True)
class _BackboneFactory:
    """Makes the network of a training.

    Attributes:
        template: the network to copy; ``None`` for the one that suits action and data, see `backbone_for`.
    """

    template: nn.Module | None

    @property
    def device(self) -> torch.device | None:
        """The device of a template that is not on the CPU."""
        device = module_device(self.template)
        return None if device is None or device.type == "cpu" else device

    def __call__(self, action: Action, x: Any) -> nn.Module:
        """Return an untrained network, or a copy of the template whose parameters are not constant."""
        if self.template is None:
            return backbone_for(action, x)
        backbone = copy.deepcopy(self.template)
        if not any(parameter.requires_grad for parameter in backbone.parameters()):
            backbone.requires_grad_(True).train()  # the template is the network of another, trained inverter
        return backbone


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
