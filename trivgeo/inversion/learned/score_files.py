"""Files of learned scores: the network, its group and its noise."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from trivgeo.checks import check_type
from trivgeo.errors import CheckpointError
from trivgeo.groups import Action
from trivgeo.inversion.learned.backbone import NoiseNetwork
from trivgeo.inversion.learned.calibration import Calibration
from trivgeo.inversion.learned.score import LearnedScore
from trivgeo.networks import NetworkFile
from trivgeo.sde import GeometricSchedule


def describe(score: LearnedScore) -> dict[str, Any]:
    """Return the header of a score's file as plain types: group, noise and prior.

    Raises:
        ConfigurationError: the noise is none of a `GeometricSchedule`.
    """
    schedule = check_type("schedule", score.schedule, GeometricSchedule)
    return {
        "group": score.group.fingerprint(),
        "scale": score.group.scale.tolist(),
        "schedule": [schedule.minimum, schedule.maximum],
        "noise_steps": score.noise_steps,
        "lowest_time": score.lowest_time,
        "carried": bool(score.augmentation),  # the name in files of every version
        "prior": score.prior,
    }


def score_of(file: NetworkFile, action: Action, backbone: nn.Module | None = None) -> LearnedScore:
    """Return the score that a file holds, in evaluation mode, on the group with the scale that it was trained with.

    Args:
        backbone: a network of the right shape, for files whose network is no `NoiseNetwork`.

    Raises:
        CheckpointError: the file holds no score, or one of another group, or its tensors do not fit.
    """
    network = file.build(NoiseNetwork) if backbone is None else file.fill(backbone)  # type: ignore[type-abstract]
    name = file.path
    if "score" not in file.header:
        raise CheckpointError(f"{name}: expected the group and the noise of a score in the header, got none")
    entry = file.entry("score")
    try:
        known = action.group.matches(entry["group"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{name}: expected the group of a score in the header: {error}") from error
    if not known:
        raise CheckpointError(
            f"{name}: expected a score on {action.group!r}, got one on another group, of dimension "
            f"{entry['group']['dim']}"
        )
    try:
        score = LearnedScore(
            action.with_scale(entry["scale"]),
            GeometricSchedule(*entry["schedule"]),
            network,
            noise_steps=entry["noise_steps"],
            lowest_time=entry["lowest_time"],
            augmentation=entry["carried"],
            prior=entry.get("prior", "right"),  # older files do not say
            prepare=network.reduced if isinstance(network, NoiseNetwork) else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{name}: expected a score in the header, got {entry}: {error!r}") from error
    return score.eval()


def calibration_of(file: NetworkFile, tensors: dict[str, Tensor]) -> Calibration | None:
    """Return the calibration with some tensors that a file holds; ``None`` if the file holds none.

    Raises:
        CheckpointError: an entry of the header or a tensor is missing or does not fit.
    """
    if "calibration" not in file.header:
        return None
    entry = file.entry("calibration")
    try:
        return Calibration.of(entry, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file.path}: expected a calibration in the header, got {entry}: {error!r}") from error
