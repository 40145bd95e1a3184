"""Learned inversion in two lines: a score trained on clean data, kept in a file, and the inverter made of it."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._devices import module_device, on_device, tree_device
from trivgeo._random import NoiseStreams, integers, keyed, permutation, same_streams
from trivgeo._random import seed as seed_of
from trivgeo._timing import announce, time_evaluations
from trivgeo._torch import pytree
from trivgeo.checks import check_choice, check_count, check_positive, check_seed, check_type, checked, with_tensors
from trivgeo.errors import CheckpointError, ConfigurationError, ShapeError
from trivgeo.generative.distributions import sum_over_compact
from trivgeo.groups import Action
from trivgeo.groups.harmonic import log_haar_volume
from trivgeo.inversion.bounds import memory_of, number_moved_at_once
from trivgeo.inversion.energies.base import DataEnergy
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.learned.backbone import NoiseNetwork, backbone_for, leaves_length
from trivgeo.inversion.learned.calibration import (
    MIN_DATA,
    MIN_DISTINCT,
    Calibration,
    CalibrationSource,
    calibrate_until,
    calibration_seconds,
    calibration_size,
)
from trivgeo.inversion.learned.learned_stages import CalibratedDraws, CleanGate, LearnedReverseDiffusion, OutlierCheck
from trivgeo.inversion.learned.posterior_density import mixture_of_draws
from trivgeo.inversion.learned.score import LearnedScore
from trivgeo.inversion.learned.score_files import calibration_of, describe, score_of
from trivgeo.inversion.posterior import InverseProblem, check_action, check_batch
from trivgeo.inversion.sampling.mixture import StudentMixture
from trivgeo.inversion.stage import StageLike
from trivgeo.inversion.stages.chains import AddNoise, Replicate
from trivgeo.inversion.transformations import Transformations, noise_between, num_noise_factors, spread_of
from trivgeo.networks import read_file, write_file
from trivgeo.sde.solvers import AncestralStep, DenoisingStep, FlowStep, RefiningStep, RenoisingStep

Draw = Callable[[int, torch.Generator], Any]
"""(count, generator) to clean data."""

_NOISE_WIDTH = 1.25  # width of the largest noise, in units of the spread of the transformations
_HELD_OUT_ONE_IN, _MAX_HELD_OUT = 6, 4096  # clean data that are kept for the calibration: one in so many, and at most
_MIN_TRAINING_SHARE, _MAX_TRAINING_SHARE = 0.3, 0.6  # of the time of a fit; the rest is for the calibration
_NUM_TIMED_DATA = 2  # data whose posteriors are drawn to know how long a calibration takes
_TIMED_SHARE = 0.1  # share of the time that this may take
_STEP_COST = 3.0  # time of a training step for each datum, in units of an evaluation of the network
_FEWEST_STEPS = 10  # steps of a training that are to fit into its time, if need be of fewer data
_FEWEST_TRAINED = 2  # data of such a step
_TOLERANCE = 0.15  # share of the time by which a calibration may end late
_NUM_DENSITY_DRAWS = 64  # draws of the reverse diffusion that make a density
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_STEPPERS: tuple[type[DenoisingStep], ...] = (AncestralStep, FlowStep, RefiningStep, RenoisingStep)


@checked
class LearnedInverter(Inverter):
    """Learns to undo random transformations of clean data, then inverts in a few evaluations of a network.

    ```python
    inverter = LearnedInverter(ImageWarp(Affine(2)), seed=0).fit(clean, transformations)
    result = inverter(x)
    restored = result.restore(x)
    ```

    The noise is as wide as the transformations in every direction of the group, whatever the scale of the
    group. See `LearnedScore` for the network and `AmortizedInverter` for the inversion. Of results
    ``trusted`` is false, with ``reasons``, for data or transformations unlike the training set. Several hypotheses are
    draws from the learned posterior, which is calibrated: an estimate, without weights. `log_prob` is the density of
    this posterior. With an energy they are draws of the reverse diffusion instead, which lie closer to the modes and
    take fewer evaluations, and the one of lowest energy is the best.

    Args:
        action: the action on data.
        energy: an energy that ranks the hypotheses; without one the first is the best.
        backbone: the network, see `LearnedScore`; default by `backbone_for`. Every `fit` trains a copy.
        steps: number of steps, one evaluation of the network each.
        num_hypotheses: number K of chains.
        stepper: the scheme; default `RefiningStep` for one hypothesis, else `AncestralStep`.
        seed: seed of all random numbers of the training.
        gate: leave data alone that look clean, see `CleanGate`.
        max_memory: memory in GiB that evaluations of the network may take at once, in calls, trainings and
            calibrations; by default 1 on a CPU, and half of what is free on a GPU. Steps of a training that take more
            are evaluated in blocks, twice, unless the network normalises over the batch.

    Attributes:
        score: the trained `LearnedScore`; stages and posterior follow from it. ``None`` before `fit`.
        calibration: `Calibration` by held-out clean data: coverage of the posterior, and thresholds of what is unusual.
            ``None`` before `fit`, and for files and scores without one.

    Raises:
        ConfigurationError: an action, energy, backbone or stepper is of another type, or a count is below one.
    """

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
        gate: bool = False,
        max_memory: float | None = None,
    ) -> None:
        super().__init__(action, energy, [], max_memory=max_memory)  # its stages are those of the score
        self.score: LearnedScore | None = None
        self.calibration: Calibration | None = None
        self.gate = bool(gate)
        self.make_backbone = BackboneFactory(None if backbone is None else check_type("backbone", backbone, nn.Module))
        self.steps = check_count("steps", steps)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        default = RefiningStep() if num_hypotheses == 1 else AncestralStep()
        self.stepper = default if stepper is None else check_type("stepper", stepper, DenoisingStep)  # type: ignore[type-abstract]
        self.seed = check_seed(seed)

    @classmethod
    def from_score(
        cls, score: LearnedScore, energy: DataEnergy | Callable[[Any], Tensor] | None = None, **settings: Any
    ) -> LearnedInverter:
        """Return an inverter of a trained score, which is put into evaluation mode, its parameters constant.

        Args:
            score: the score.
            energy: an energy that ranks the hypotheses, see `LearnedInverter`.
            **settings: ``backbone``, ``steps``, ``num_hypotheses``, ``stepper``, ``seed``, ``gate``, ``max_memory``, as
                there.

        Raises:
            ConfigurationError: see `LearnedInverter`.
        """
        inverter = cls(check_type("score", score, LearnedScore).action, energy, **settings)
        inverter.score = score.eval().requires_grad_(False)
        return inverter

    def __repr__(self) -> str:
        if self.score is None:
            return f"LearnedInverter({self.action!r}, not trained)"
        return super().__repr__() if self.calibration is None else f"{super().__repr__()[:-1]}, {self.calibration!r})"

    @property
    def backbone(self) -> nn.Module | None:
        """The network of the score; before training the network that was given, if any."""
        return self.make_backbone.template if self.score is None else self.score.backbone

    @property
    def problem(self) -> InverseProblem:
        given = self._problem
        return given if self.score is None else InverseProblem(self.score.action, given.energy, log_det=given.log_det)

    @property
    def stages(self) -> tuple[StageLike, ...]:
        """The stages of the score: `Replicate`, `AddNoise` if there are several hypotheses, `LearnedReverseDiffusion`.

        After a calibration also `CalibratedDraws` if there are several hypotheses and no energy, `CleanGate` with a
        gate, and `OutlierCheck`.

        Raises:
            ConfigurationError: the inverter was neither trained nor loaded.
        """
        score, known = self._trained_score(), self.calibration
        several = self.num_hypotheses > 1
        if not several or known is None or self.energy is not None:
            stages = self._reverse(self.num_hypotheses, self.stepper, several)
        else:
            chains = max(self.num_hypotheses, _NUM_DENSITY_DRAWS)
            stages = [
                *self._reverse(chains, self.stepper, noise=True),
                CalibratedDraws(score, known, self.num_hypotheses),
            ]
        if known is not None and self.gate:
            stages.append(CleanGate(score, known))
        return tuple(stages if known is None else [*stages, OutlierCheck(score, known)])

    def _reverse(self, chains: int, stepper: DenoisingStep, noise: bool) -> list[StageLike]:
        """Return the stages of the reverse diffusion, from noise about the identity or from the identity."""
        score = self._trained_score()
        grid = [1.0 - (1.0 - score.lowest_time) * i / max(1, self.steps - 1) for i in range(self.steps)]
        reverse = LearnedReverseDiffusion(score, stepper=stepper, times=[*grid, 0.0])
        start = [AddNoise(score.schedule, score.noise_steps)] if noise else []
        return [Replicate(chains), *start, reverse]

    def log_prob(self, g: Tensor, x: Any, *, generator: torch.Generator | None = None) -> Float[Tensor, "b *chains"]:
        r"""Return the log-density of transformations under the learned posterior :math:`q(g \mid x)`.

        q is a mixture of Student distributions about the modes of draws of the reverse diffusion, fitted to held-out
        data, see `Calibration.fit`. The measure is left Haar measure in the basis of the group of the action, of total
        mass one on compact groups; see `trivgeo.generative.distributions.GroupDistribution`.

        Args:
            g: elements ``[b, *chains, *element_shape]``.
            x: data with one batch dimension.
            generator: random numbers of the draws; default one with the same seed at every call. All data have the same
                numbers, so that a density does not depend on the batch.

        Raises:
            ConfigurationError: the inverter was not trained.
            ShapeError: the elements do not fit the data.
        """
        group = self._problem.action.group
        mixture, _ = self.proposal(x, generator)
        shape = group.batch_shape(group.check_elements(g))
        if len(shape) < 1 or shape[0] != len(mixture.log_shares):
            raise ShapeError(f"g: expected elements for {len(mixture.log_shares)} data, got batch {list(shape)}")
        mixture = mixture.in_basis_of(group)
        rows = g.reshape(shape[0], shape[1:].numel(), *group.element_shape)
        value = mixture.log_density(rows) - mixture.log_mass().unsqueeze(-1)
        return (value + sum_over_compact(group, log_haar_volume)).reshape(shape)

    def proposal(self, x: Any, generator: torch.Generator | None = None) -> tuple[StudentMixture, int]:
        score = self._trained_score()
        reference: Tensor = pytree.tree_leaves(with_tensors("x", x))[0]
        if not isinstance(generator, NoiseStreams):
            key = (self.seed, 60) if generator is None else (seed_of(reference, generator),)
            generator = same_streams(len(reference), reference, *key)
        result = self._drawing_inverter()(x, generator=generator)
        if self.calibration is None:
            return mixture_of_draws(score.group, result.elements), result.network_evaluations
        return self.calibration.density(score, result.elements), result.network_evaluations

    def _drawing_inverter(self, chains: int = _NUM_DENSITY_DRAWS) -> Inverter:
        """Return an inverter that makes draws of the reverse diffusion, by default as many as a density takes."""
        stepper = AncestralStep() if isinstance(self.stepper, RefiningStep) else self.stepper
        stages = self._reverse(chains, stepper, noise=True)
        bounds: dict[str, Any] = {"max_evaluations": self.max_evaluations, "max_memory": self.max_memory}
        return Inverter(self._trained_score().action, None, stages, **bounds, progress=False)

    def fit(
        self,
        clean: Any,
        transformations: Transformations,
        *,
        steps: int = 1500,
        batch_size: int = 128,
        seconds: float | None = 300.0,
        folder: str | Path | None = None,
        progress: bool | None = None,
    ) -> LearnedInverter:
        """Train on clean data, moved at random in every step, calibrate on others, and return the inverter itself.

        A sixth of the data, 4,096 at most, are held out for `calibration`; a function draws more. The calibration takes
        about as many evaluations of the network as the training: after a short training it is on fewer data.
        ``inverter.calibration.coverage`` is the share of them whose transformation lies in regions of half and nine
        tenths of the posterior; it is empty for fewer than 48 clean data. A second `fit` begins anew, and changes the
        inverter only at its end. Training runs on the device of the inverter; if it has no networks yet and was not
        moved, on the device of the data.

        Args:
            clean: clean data with one batch dimension, or a function (count, generator) that draws some.
            transformations: (count, generator) to elements ``[count, *element_shape]``, to be undone. The
                noise is made as wide as they are.
            steps: number of optimiser steps.
            batch_size: number of data of each step.
            seconds: time of the whole call. Training ends after six tenths of it at the latest, and the calibration is
                on fewer data where time is short, at least 64. Where there is no time for so many, a warning says that
                there is no calibration. The result then depends on the speed of the machine. ``None`` for no bound.
            folder: folder of the state; called again after an interruption, training goes on from there.
            progress: a progress bar; ``None`` for one on a terminal.

        An interruption by the keyboard during the calibration leaves a trained inverter without one.

        Raises:
            ConfigurationError: no backbone is known for the action, Lightning is missing, a number is out of range, or
                the folder is a file.
            ShapeError: the data do not fit the action, the elements not its group, or other numbers of them are drawn
                than asked for.
            NonFiniteError: the data or the elements hold NaN or infinity.
            DomainError: too few of the elements have a logarithm.
            CheckpointError: the folder holds the state of another training.
        """
        from trivgeo.inversion.learned import score_training as training

        _check_length(steps, batch_size, seconds)
        start = time.perf_counter()
        known, rest, distinct = held_out(self.action, clean, self.seed)
        score, draw = self._score_to_train(known, transformations, batch_size)
        clock = None if seconds is None else self._clock(score, rest, start, seconds)
        batch_size = batch_size if clock is None else clock.batch_size(batch_size)
        module = training.ScoreTraining(
            score, seed=self.seed, max_evaluations=self._number_trained_at_once(score, rest)
        )
        limit = None if clock is None else clock.training_seconds()
        training.train(module, draw, steps, batch_size, limit, folder, progress)
        fitted = self._of_score(score)
        seen = module.trainer.global_step * batch_size
        try:
            calibration = fitted._calibrated(known, rest, transformations, seen, distinct, clock)
        except KeyboardInterrupt:
            self.score, self.calibration = fitted.score, None
            raise
        self.score, self.calibration = fitted.score, calibration
        return self

    def _clock(self, score: LearnedScore, rest: Draw, start: float, seconds: float) -> _Clock:
        """Return the clock of a fit, which knows how long the network takes."""
        x = on_device(rest(_NUM_TIMED_DATA, keyed(self.seed, 70)), module_device(score))
        untrained = self._of_score(copy.deepcopy(score))

        def draw(size: int) -> Tensor:
            generator = keyed(self.seed, 71, device=tree_device(x))
            some = pytree.tree_map(lambda leaf: leaf[: min(size, _NUM_TIMED_DATA)], x)
            chains = -(-size // _NUM_TIMED_DATA)
            return untrained._drawing_inverter(chains)(some, generator=generator).elements

        most = _NUM_TIMED_DATA * _NUM_DENSITY_DRAWS
        time = time_evaluations(draw, most, _TIMED_SHARE * seconds)
        drawn = time.of(MIN_DATA * _NUM_DENSITY_DRAWS)
        return _Clock(start, seconds, calibration_seconds(drawn, _NUM_DENSITY_DRAWS), time.each / self.steps)

    def _number_trained_at_once(self, score: LearnedScore, rest: Draw) -> int | None:
        """Return the number of data of a training step whose evaluation fits into memory; ``None`` for any."""
        if any(isinstance(part, _BATCH_NORMS) for part in score.backbone.modules()):
            return None
        x = score.prepared(on_device(rest(1, keyed(self.seed, 73)), module_device(score)))
        size = score.bytes_of_an_evaluation(x)
        return max(1, int(memory_of(x, self.max_memory) / size)) if size > 0 else None

    def calibrate(
        self, clean: Any, transformations: Transformations, *, seconds: float | None = None
    ) -> LearnedInverter:
        """Set the `calibration` by clean data, as `fit` does at its end, and return the inverter itself.

        For checkpoints without a calibration, and where data or transformations are others than in training.

        Args:
            clean: clean data that the training did not see, one batch dimension, at least 48; or a function
                (count, generator) that draws some.
            transformations: (count, generator) to elements ``[count, *element_shape]``, to be undone.
            seconds: time of the call: the calibration is on fewer data where it is short, at least 64. Where there is
                no time for so many, a warning says so, and there is no calibration.

        Raises:
            ConfigurationError: the inverter was neither trained nor loaded.
            ShapeError: the data are too few, or do not fit the action, or the elements its group.
            NonFiniteError: the data or the elements hold NaN or infinity.

        Example:
            ```python
            inverter = LearnedInverter.load("inverter.safetensors", action).calibrate(validation, transformations)
            print(inverter.calibration.coverage)
            ```
        """
        score, start = self._trained_score(), time.perf_counter()
        known, rest, distinct = held_out(self.action, clean, self.seed)
        if distinct is not None and distinct < MIN_DISTINCT:
            number = leaves_length(clean)
            raise ShapeError(f"clean: expected at least {MIN_DISTINCT * _HELD_OUT_ONE_IN} data, got {number}")
        clock = None if seconds is None else self._clock(score, rest, start, check_positive("seconds", seconds))
        self.calibration = self._of_score(score)._calibrated(known, rest, transformations, None, distinct, clock)
        return self

    def _of_score(self, score: LearnedScore) -> LearnedInverter:
        """Return an inverter of the same settings with another score."""
        settings = {
            name: getattr(self, name) for name in ("steps", "num_hypotheses", "stepper", "seed", "gate", "max_memory")
        }
        return LearnedInverter.from_score(score, self.energy, **settings)

    def _calibrated(
        self,
        known: Any,
        rest: Draw,
        transformations: Transformations,
        seen: int | None,
        distinct: int | None,
        clock: _Clock | None = None,
    ) -> Calibration | None:
        """Return the calibration by data of the training, which saw so many if it is known, and draws of others.

        Args:
            distinct: number of data that ``rest`` draws from; ``None`` for a function of the user.
            clock: what is left of the time of a fit; ``None`` without a bound.

        Returns:
            ``None``, after a warning, where there is no time for a calibration.
        """
        if clock is not None and not clock.suffices():
            warnings.warn(
                f"seconds: {clock.seconds:g} leave no time for a calibration, which takes about "
                f"{clock.calibration_seconds:.2g}: call calibrate, or give more",
                stacklevel=4,
            )
            return None
        score = self._trained_score()
        bounds: dict[str, Any] = {"max_evaluations": self.max_evaluations, "max_memory": self.max_memory}
        # without an energy the first hypothesis is the best
        chains = 1 if self.energy is None else self.num_hypotheses
        reverse = self._reverse(chains, self.stepper, noise=self.num_hypotheses > 1)
        stages = Inverter(score.action, self.energy, reverse, **bounds, progress=False)
        source = lambda key, x: keyed(self.seed, key, device=tree_device(x))  # noqa: E731
        some = on_device(rest(1, keyed(self.seed, 72)), module_device(score))
        data = CalibrationSource(
            rest if callable(known) else picker(known),
            rest,
            transformations,
            lambda x: stages(x, generator=source(12, x)).best(),
            lambda x: self._drawing_inverter()(x, generator=source(13, x)).elements,
            number_moved_at_once(some, self.max_memory),
            score.number_at_once(score.prepared(some), self.max_evaluations, self.max_memory),
        )
        number = calibration_size(seen, self.steps, chains, _NUM_DENSITY_DRAWS, distinct)
        if clock is not None:
            left = clock.end - time.perf_counter()
            announce("calibration", min(left, clock.calibration_seconds * number / MIN_DATA))
        return calibrate_until(None if clock is None else clock.end, score, data, number, self.seed, distinct)

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
        """Return an inverter that jumps to a draw of the learned posterior: two evaluations in place of `steps`.

        See `consistency_loss` for the method. Clean data are moved as in training first; an inverter that was loaded
        has no distribution any more, and moves them by noise.

        Args:
            clean: see `fit`, like ``batch_size``, ``seconds``, ``folder`` and ``progress``.
            steps: largest number of training steps.

        Raises:
            ConfigurationError: this inverter was not trained; or see `fit`.
        """
        from trivgeo.inversion.learned import score_training as training

        teacher = self._trained_score()
        _check_length(steps, batch_size, seconds)
        start = time.perf_counter()
        known, rest, distinct = held_out(self.action, clean, self.seed)
        draw = checked_draw(self.action, known) if callable(known) else picker(known)
        module = training.DistillationTraining(teacher, seed=self.seed)
        clock = None if seconds is None else self._clock(teacher, rest, start, seconds)
        batch_size = batch_size if clock is None else clock.batch_size(batch_size)
        limit = None if clock is None else clock.training_seconds()
        training.train(module, draw, steps, batch_size, limit, folder, progress)
        student = LearnedInverter.from_score(
            module.student,
            self.energy,
            backbone=self.make_backbone.template,
            steps=2,
            num_hypotheses=self.num_hypotheses,
            stepper=RenoisingStep(),
            seed=self.seed,
            gate=self.gate,
        )
        if callable(teacher.augmentation):
            seen = steps * batch_size
            student.calibration = student._calibrated(known, rest, teacher.augmentation, seen, distinct, clock)
        return student

    def save(self, path: str | Path) -> None:
        """Write network, group and noise to a safetensors file at ``path``.

        Raises:
            ConfigurationError: the inverter was not trained.
        """
        score = self._trained_score()
        kind = type(self.stepper)
        check_choice("stepper", kind, _STEPPERS)
        inverter = {"steps": self.steps, "num_hypotheses": self.num_hypotheses, "stepper": kind.__name__}
        inverter |= {"gate": self.gate}
        entries = {"score": describe(score), "inverter": inverter, "metadata": {}}
        known = self.calibration
        if known is not None:
            entries["calibration"] = known.as_dict()
        write_file(score.backbone, path, entries, {} if known is None else {"calibration": known})

    @classmethod
    def load(
        cls,
        path: str | Path,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor] | None = None,
        *,
        backbone: nn.Module | None = None,
    ) -> LearnedInverter:
        """Return an inverter from a file.

        Args:
            path: file that `save` wrote.
            action: action on the data, of the group that it was trained on; its scale may differ.
            energy: an energy that ranks the hypotheses, which is not in the file.
            backbone: an untrained copy of the network, if it was one of your own and no `NoiseNetwork`; it stays so.

        Raises:
            CheckpointError: the file is missing or unreadable, holds no learned inverter, or one of another group.
        """
        check_action(action)
        file = read_file(path, has_checksum=True)
        entry = file.entry("inverter")
        if not isinstance(gate := entry.get("gate", False), bool):  # older files do not say
            raise CheckpointError(f"{path}: expected true or false for 'gate' in the header, got {gate!r}")
        try:
            stepper = {kind.__name__: kind for kind in _STEPPERS}[entry["stepper"]]()
            counts = {name: entry.count(name, 1) for name in ("steps", "num_hypotheses")}
            settings: dict[str, Any] = {**counts, "stepper": stepper, "gate": gate}
            cls(action, energy, **settings)  # whether they are settings of an inverter
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: expected how to invert in the header, got {entry}: {error}") from error
        file, tensors = file.split("calibration")
        score = score_of(file, action, copy.deepcopy(backbone))
        inverter = cls.from_score(score, energy, backbone=backbone, **settings)
        inverter.calibration = calibration_of(file, tensors, score.group.dim)
        return inverter

    def _score_to_train(
        self, clean: Any, transformations: Transformations, batch_size: int
    ) -> tuple[LearnedScore, Transformations]:
        """Return the score before training, and the function that draws the data of a step."""
        drawing = checked_draw(self.action, clean) if callable(clean) else None
        some = drawing(max(batch_size, 512), keyed(self.seed, 2)) if drawing else check_batch(self.action, clean)[0]
        some = on_device(some, module_device(self) or self.make_backbone.device or tree_device(some))
        score = self.make_backbone.score(self.action, transformations, some, self.seed)
        # `prepared` is idempotent, so it is applied once here
        return score, drawing or picker(score.prepared(some))

    def _trained_score(self) -> LearnedScore:
        if self.score is None:
            raise ConfigurationError(
                "inverter: expected one that was trained; call fit(clean, transformations), or "
                "LearnedInverter.load(path, action)"
            )
        return self.score


@dataclass(frozen=True)
class BackboneFactory:
    """Factory of the network of a training: a copy of ``template``, or by `backbone_for` where it is ``None``."""

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

    def score(self, action: Action, transformations: Transformations, x: Any, seed: int) -> LearnedScore:
        """Return an untrained score with noise a little wider than the transformations, on the device of the data."""
        action = action.with_scale(_NOISE_WIDTH * spread_of(action.group, transformations, seed))
        backbone = self(action, x).to(tree_device(x))
        network = backbone if isinstance(backbone, NoiseNetwork) else None
        schedule, time = noise_between(NoiseNetwork.finest if network is None else network.finest, 1.0)
        return LearnedScore(
            action,
            schedule,
            backbone,
            noise_steps=num_noise_factors(action.group),
            lowest_time=time,
            augmentation=transformations,
            prepare=None if network is None else network.reduced,
        )


def picker(clean: Any) -> Draw:
    """Return a function (count, generator) that draws rows of ``clean`` with repetition."""
    first: Tensor = pytree.tree_leaves(clean)[0]

    def draw(count: int, generator: torch.Generator) -> Any:
        index = integers(leaves_length(clean), (count,), torch.empty(0), generator).to(first.device)
        return pytree.tree_map(lambda leaf: leaf[index], clean)

    return draw


def checked_draw(action: Action, clean: Draw) -> Draw:
    """Return a user's function that draws clean data, with checks that its results fit the action.

    It raises `ShapeError` for another number of data than asked for.
    """

    def draw(count: int, generator: torch.Generator) -> Any:
        some, given = check_batch(action, clean(count, generator))
        if given != count:
            raise ShapeError(f"clean: expected a function that draws the {count} data asked for, got {given}")
        return some

    return draw


def held_out(action: Action, clean: Any, seed: int) -> tuple[Any, Draw, int | None]:
    """Separate a sixth of clean data.

    A function that draws data, and fewer than six data, stay whole.

    Returns:
        The data of the training, a function that draws from the others, and the number of these, which is zero for
        data that stay whole and ``None`` for a function.
    """
    if callable(clean):
        return clean, checked_draw(action, clean), None
    clean, number = check_batch(action, clean)
    held = min(_MAX_HELD_OUT, number // _HELD_OUT_ONE_IN)
    if held == 0:
        return clean, picker(clean), 0
    order = permutation((number,), torch.empty(0), keyed(seed, 11))
    first: Tensor = pytree.tree_leaves(clean)[0]
    order = order.to(first.device)
    train, rest = (pytree.tree_map(lambda leaf, rows=rows: leaf[rows], clean) for rows in (order[held:], order[:held]))
    return train, picker(rest), held


@dataclass(frozen=True)
class _Clock:
    """The time of a fit, which training and calibration share.

    Attributes:
        start: value of `time.perf_counter` at its start.
        seconds: length.
        calibration_seconds: about how long the smallest calibration takes.
        evaluation_seconds: time of an evaluation of the network for a datum among others.
    """

    start: float
    seconds: float
    calibration_seconds: float
    evaluation_seconds: float = 0.0

    @property
    def end(self) -> float:
        """Value of `time.perf_counter` at its end."""
        return self.start + self.seconds

    def training_seconds(self) -> float:
        """The time of the training, which has not begun yet."""
        left = self.end - time.perf_counter()
        low, high = _MIN_TRAINING_SHARE * self.seconds, _MAX_TRAINING_SHARE * self.seconds
        if self.calibration_seconds > left - low:  # no time for both
            return max(left, 0.1 * self.seconds)
        return min(max(left - self.calibration_seconds, low), high)

    def suffices(self) -> bool:
        """Whether there is time for the smallest calibration."""
        return self.end - time.perf_counter() + _TOLERANCE * self.seconds > self.calibration_seconds

    def batch_size(self, wanted: int) -> int:
        """Return a number of data of a training step such that there is time for a few steps, at most the one wanted.

        It warns of fewer.
        """
        each = _FEWEST_STEPS * _STEP_COST * self.evaluation_seconds
        fits = max(_FEWEST_TRAINED, int(self.training_seconds() / each)) if each > 0.0 else wanted
        if fits < wanted:
            warnings.warn(
                f"seconds: {self.seconds:g} leave time for a few steps of {fits} data, not of {wanted}: give more",
                stacklevel=4,
            )
        return min(wanted, fits)


def _check_length(steps: int, batch_size: int, seconds: float | None) -> None:
    for name, number in (("steps", steps), ("batch_size", batch_size)):
        check_count(name, number)
    if seconds is not None:
        check_positive("seconds", seconds)
