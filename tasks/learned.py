"""Learned inversion of any data: training and distillation of a score, its file, and the inverter made of it."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import trivgeo.inversion
from trivgeo.groups import Action
from trivgeo.inversion import AmortizedInverter
from trivgeo.inversion.energies import DataEnergy
from trivgeo.inversion.learned import LearnedScore
from trivgeo.inversion.learned import score_training as training
from trivgeo.inversion.learned.score_files import score_of
from trivgeo.sde import GeometricSchedule
from trivgeo.sde.solvers import DenoisingStep, RefiningStep

from .checkpoints import checkpoint_file
from .training import NamedExport


class NoiseNetwork(trivgeo.inversion.learned.NoiseNetwork):
    """A `trivgeo.inversion.learned.NoiseNetwork` that takes its data out of the batches of a data set."""

    def data(self, batch: Any) -> Any:
        return batch


class ScoreTraining(NamedExport, training.ScoreTraining):
    """See `trivgeo.inversion.learned.score_training.ScoreTraining`.

    Args:
        network: makes the network from the dimension of the group and the description of the data, ``inputs``.
        inputs: the description of the data that the data module gives, such as an `ImageFormat`.
        action: action of the transformations; the scale of its group sets how far the noise goes in each direction.
        schedule: the noise.
        noise_steps: see `LearnedScore`.
        lowest_time: see `LearnedScore`.
        carried: see `LearnedScore`.
        options: see `trivgeo.training.NetworkTraining`.

    Raises:
        ConfigurationError: a number is out of range.
    """

    network: NoiseNetwork

    def __init__(
        self,
        network: Callable[[int, Any], NoiseNetwork],
        inputs: Any,
        action: Action,
        schedule: GeometricSchedule,
        noise_steps: int = 1,
        lowest_time: float = 0.1,
        augmentation: bool = True,
        learning_rate: float = 2e-3,
        weight_decay: float = 0.01,
        warmup: float = 0.05,
        seed: int = 0,
        export: str | None = None,
    ) -> None:
        backbone = network(action.group.dim, inputs)
        score = LearnedScore(
            action,
            schedule,
            backbone,
            noise_steps=noise_steps,
            lowest_time=lowest_time,
            augmentation=augmentation,
            prepare=backbone.reduced,
        )
        super().__init__(score, learning_rate, weight_decay, warmup, seed, export)

    def data(self, batch: Any) -> Any:
        return self.network.data(batch)


class DistillationTraining(NamedExport, training.DistillationTraining):
    """See `trivgeo.inversion.learned.score_training.DistillationTraining`.

    Args:
        teacher: name or path of the checkpoint of the score.
        action: action of the transformations; the scale of its group is that of the teacher, whatever it is here.
        ratio: see `trivgeo.inversion.learned.consistency_loss`.
        options: see `trivgeo.training.NetworkTraining`.

    Raises:
        CheckpointError: the teacher is missing, or of another group.
    """

    network: NoiseNetwork

    def __init__(
        self,
        teacher: str,
        action: Action,
        ratio: float = 0.7,
        learning_rate: float = 5e-4,
        weight_decay: float = 0.0,
        warmup: float = 0.05,
        seed: int = 0,
        export: str | None = None,
    ) -> None:
        super().__init__(load_score(teacher, action), ratio, learning_rate, weight_decay, warmup, seed, export)

    def data(self, batch: Any) -> Any:
        return self.network.data(batch)


def load_score(checkpoint: str, action: Action) -> LearnedScore:
    """A trained score in evaluation mode, see `trivgeo.inversion.learned.score_files.score_of`.

    Args:
        checkpoint: a name of the manifest or a path.
        action: see `trivgeo.inversion.learned.score_files.score_of`.

    Raises:
        CheckpointError: the file is missing or unreadable, holds no score, or one of another group.
    """
    return score_of(checkpoint_file(checkpoint)[0], action)


class TrainedInverter(AmortizedInverter):
    """An `AmortizedInverter` of a trained score; see there for the options that are not here.

    Args:
        action: on data; the scale of its group is that of the score, whatever it is here.
        energy: ranks the hypotheses if ``ranked``.
        checkpoint: name or path of the score.
        stepper: the scheme; default `RefiningStep`.
        start: ``"identity"`` or ``"noise"``.
        ranked: let the energy rank the hypotheses.

    Raises:
        CheckpointError: see `load_score`.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | None,
        checkpoint: str,
        steps: int = 4,
        times: Sequence[float] | None = None,
        num_hypotheses: int = 1,
        stepper: DenoisingStep | None = None,
        start: Literal["noise", "identity"] = "identity",
        ranked: bool = False,
    ) -> None:
        super().__init__(
            load_score(checkpoint, action),
            energy if ranked else None,
            steps,
            num_hypotheses,
            RefiningStep() if stepper is None else stepper,
            start,
            times,
        )
