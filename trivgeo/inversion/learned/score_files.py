"""Files of learned scores: the network, its group and its noise."""

from __future__ import annotations

import math
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
    scale = entry.numbers("scale", "the lengths of the basis")
    low, high = entry.numbers("schedule", "two positive, increasing levels of noise", lambda x: 0 < x < math.inf, (2,))
    num_factors = entry.count("noise_steps", 1)
    lowest_time = entry.number("lowest_time", "a time between 0 and 1", lambda t: 0 < t < 1)
    if not isinstance(carried := entry.get("carried"), bool):
        raise CheckpointError(f"{name}: expected true or false for 'carried' in the header, got {carried!r}")
    try:
        score = LearnedScore(
            action.with_scale(scale),
            GeometricSchedule(low, high),
            network,
            noise_steps=num_factors,
            lowest_time=lowest_time,
            augmentation=carried,
            prior=entry.get("prior", "right"),  # older files do not say
            prepare=network.reduced if isinstance(network, NoiseNetwork) else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{name}: expected a score in the header, got {entry}: {error!r}") from error
    return score.eval()


def calibration_of(file: NetworkFile, tensors: dict[str, Tensor], dim: int) -> Calibration | None:
    """Return the calibration with some tensors that a file holds; ``None`` if the file holds none.

    Args:
        tensors: the tensors of the calibration.
        dim: dimension of the group.

    Raises:
        CheckpointError: an entry of the header or a tensor is missing, out of range, or does not fit.
    """
    if "calibration" not in file.header:
        return None
    entry = file.entry("calibration")
    entry.count("num_data")
    entry.numbers("coverage", "shares", lambda x: 0 <= x <= 1)
    entry.number("false_alarms", "a share", lambda x: 0 <= x <= 1)
    entry.numbers("thresholds", "the thresholds of three scores", lambda x: True, (3,))
    entry.numbers("gate_threshold", "the thresholds of two scores", lambda x: True, (2,))
    entry.number("power", "a positive exponent", lambda x: 0 < x < math.inf, default=1.0)
    entry.number("degrees", "positive degrees of freedom", lambda x: 0 < x < math.inf, default=1.0)
    for name, what, least in (("spreads", "factors", 0.0), ("noise", "standard deviations", -1.0)):
        if name in entry:
            wanted = f"{dim} {'positive ' if least == 0.0 else 'non-negative '}{what}, or none,"
            entry.numbers(name, wanted, lambda x, least=least: least < x < math.inf and x >= 0, (0, dim))  # type: ignore[misc]
    if "scales" in entry:
        entry.numbers("scales", "positive factors of widths", lambda x: 0 < x < math.inf)
    _check_moments(file, tensors, dim)
    try:
        return Calibration.of(entry, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file.path}: expected a calibration in the header, got {entry}: {error!r}") from error


def _check_moments(file: NetworkFile, tensors: dict[str, Tensor], dim: int) -> None:
    """Check names and shapes of the tensors of a calibration."""
    expected = {"error_white": (dim, dim), "law_points": (None, dim)}
    # older files measure in units of the spread of the transformations
    expected |= {"law_spread": (dim,)} if "law_spread" in tensors else {"law_white": (dim, dim)}  # type: ignore[dict-item]
    for name in ("restored", "given", "clean"):
        size = tensors[f"{name}_mean"].numel() if f"{name}_mean" in tensors else None
        expected |= {f"{name}_mean": (size,), f"{name}_white": (size, size)}  # type: ignore[dict-item]
    for name, shape in expected.items():
        found = list(tensors[name].shape) if name in tensors else None
        if (
            found is None
            or len(found) != len(shape)
            or any(m not in (n, None) for n, m in zip(found, shape, strict=True))
        ):
            raise CheckpointError(
                f"{file.path}: expected a tensor of shape {list(shape)} for {name!r} of the calibration, got {found}"
            )
