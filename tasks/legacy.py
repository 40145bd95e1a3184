"""Headers of checkpoints as earlier releases wrote them, read as the header of today (`tasks.checkpoints`)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trivgeo.errors import CheckpointError
from trivgeo.groups import SE, Affine, BurgersSymmetry, HeatSymmetry, KdVSymmetry, LieGroup, Projective

_IMAGE_NETWORKS = {
    "ResNet18": "tasks.images.resnet.ResNet18",
    "ConvNet": "tasks.images.convnet.ConvNet",
    "VAE": "tasks.images.vae.VAE",
    "AdversarialRegulariser": "tasks.images.regulariser.AdversarialRegulariser",
    "PoseNetwork": "tasks.images.pose.PoseNetwork",
    "AffineConv": "tasks.images.liegroupconv.AffineConv",
    "HomographyConv": "tasks.images.liegroupconv.HomographyConv",
}


def modern_header(path: Path, header: Mapping[str, str]) -> dict[str, str]:
    """The header of today for one of any release; a header of none of them as it is.

    Raises:
        CheckpointError: an entry of an earlier release is missing or no JSON.
    """
    try:
        if "image.network" in header:
            return _of_image(header)
        if "deeponet.architecture" in header:
            return _of_deeponet(header)
        if "operator.score" in header:
            return _of_operator_score(header)
        if "class" in json.loads(header.get("score", "{}")).get("group", {}):
            return _of_named_group(header)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: expected the header of an earlier release, got another: {error}") from error
    return dict(header)


def _of_image(header: Mapping[str, str]) -> dict[str, str]:
    """Networks on images of one channel, of 40 x 40 pixels and ten classes where they do not say so."""
    architecture: dict[str, Any] = json.loads(header["image.architecture"])
    metadata: dict[str, Any] = json.loads(header["image.metadata"])
    side, classes = architecture.pop("side", 40), architecture.pop("classes", 10)
    score = metadata.pop("score", None)
    if score is not None:
        name, dim = score["group"].split(", dimension ")
        score = {**score, "group": _fingerprint(name, int(dim), metadata)}
    name = _IMAGE_NETWORKS[header["image.network"]]
    return _header(name, {**architecture, "images": [1, side, side, classes]}, metadata, score)


def _of_deeponet(header: Mapping[str, str]) -> dict[str, str]:
    """Operators of one unknown on a line."""
    architecture: dict[str, Any] = json.loads(header["deeponet.architecture"])
    return _header("tasks.pde.deeponet.DeepONet", architecture, json.loads(header["deeponet.metadata"]))


def _of_operator_score(header: Mapping[str, str]) -> dict[str, str]:
    entry: dict[str, Any] = json.loads(header["operator.score"])
    architecture = entry["architecture"]
    score = {key: entry[key] for key in ("scale", "schedule", "noise_steps", "lowest_time")}
    score |= {"carried": False, "group": _fingerprint(entry["group"], architecture["dim"], entry["metadata"])}
    return _header("tasks.pde.learned.OperatorNetwork", architecture, entry["metadata"], score)


def _of_named_group(header: Mapping[str, str]) -> dict[str, str]:
    score, metadata = json.loads(header["score"]), json.loads(header["metadata"])
    group = _fingerprint(score["group"]["class"], score["group"]["dim"], metadata)
    return {**header, "score": json.dumps({**score, "group": group})}


def _fingerprint(name: str, dim: int, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Fingerprint of a group that a file names by class and dimension alone, if scores were trained on it."""
    groups: list[LieGroup] = [SE(2), Affine(2), Projective(2), BurgersSymmetry(), KdVSymmetry()]
    if name == "HeatSymmetry":
        groups.append(HeatSymmetry(metadata["nu"]))
    for group in groups:
        if (type(group).__name__, group.dim) == (name, dim):
            return group.fingerprint()
    raise ValueError(f"no score was trained on {name} of dimension {dim}")


def _header(name: str, architecture: Any, metadata: Any, score: Any = None) -> dict[str, str]:
    entries = {"architecture": architecture, "metadata": metadata} | ({} if score is None else {"score": score})
    return {"network": name} | {key: json.dumps(entry) for key, entry in entries.items()}
