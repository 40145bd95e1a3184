"""Energies of data from the features of a pretrained network, without training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trivgeo._devices import module_device, on_device
from trivgeo._torch import pytree
from trivgeo.checks import check_choice, check_tensor, check_type, checked, with_tensors
from trivgeo.errors import CheckpointError, ConfigurationError, ShapeError
from trivgeo.features.feature_scores import (
    ClassCosine,
    FeatureScore,
    MahalanobisDistance,
    NeighbourDistance,
    check_features,
    check_weights,
)
from trivgeo.features.network_features import NetworkFeatures, classifier_of
from trivgeo.inversion.energies.base import DataEnergy
from trivgeo.networks import HeaderEntry, read_file, write_file

EnergyT = TypeVar("EnergyT", bound="FeatureEnergy")

_FEATURE_BATCH_SIZE = 64  # data whose features are computed at once


@checked
class FeatureEnergy(nn.Module, DataEnergy):
    r"""An energy from the features of a pretrained network; low if the features resemble the features of clean data.

    By default minus the cosine of the features to the nearest class weight, :math:`E(x) = -\max_c \cos(f(x), w_c)`:
    for a classifier of photographs it tells upright ones from turned ones better than the confidence of the classifier.
    `from_data` makes energies of a few clean data in its place, for networks without classes.

    ```python
    energy = FeatureEnergy(classifier)  # f is what the last linear layer reads, w_c are its weights
    energy = FeatureEnergy.from_data(backbone, clean, "layer4")
    inverter = TIED(action, energy, transformations, clean)
    ```

    The network is in evaluation mode while it is evaluated, whatever its mode. The energy is computed in the precision
    of the features, in single precision at least, and is of the dtype of the data.

    Args:
        network: a `torch.nn.Module`, or a function from a batch of data to features ``[b, d]``.
        layer: name of a layer; default the input of the last linear layer, and the output of a function.
        weights: class weights ``[c, d]``; default those of the last linear layer.
        score: a `trivgeo.features.FeatureScore` in the place of class weights.

    Raises:
        ConfigurationError: the network has no such layer; or it has no linear layer and neither weights nor a score
            are given.
        ShapeError: the weights are no matrix; or (when called) their width is not that of the features.

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
        >>> FeatureEnergy(network)(torch.ones(5, 4)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        network: nn.Module | Callable[[Any], Tensor],
        layer: str | None = None,
        *,
        weights: Float[Tensor, "c d"] | None = None,
        score: FeatureScore | None = None,
    ) -> None:
        super().__init__()
        if weights is not None and score is not None:
            raise ConfigurationError("weights: expected either class weights or a score, got both")
        name, classifier = classifier_of(network) if isinstance(network, nn.Module) else (None, None)
        self.features = NetworkFeatures(network, name if layer is None else layer)
        if score is None:
            if weights is None and classifier is None:
                raise ConfigurationError(
                    "network: expected a linear layer, whose weights stand for the classes, got none; give "
                    "weights=, or use FeatureEnergy.from_data"
                )
            found = (
                classifier.weight if weights is None and classifier is not None else check_tensor("weights", weights)
            )
            score = ClassCosine.of(check_weights(found))
        self.score = check_type("score", score, FeatureScore)  # type: ignore[type-abstract]

    @classmethod
    def from_data(
        cls,
        network: nn.Module | Callable[[Any], Tensor],
        clean: Any,
        layer: str | None = None,
        *,
        distance: Literal["mahalanobis", "neighbours"] = "mahalanobis",
        labels: Int[Tensor, " n"] | None = None,
        neighbours: int = 3,
    ) -> FeatureEnergy:
        """Return the energy that compares features with those of a few clean data.

        Args:
            network: a `torch.nn.Module`, or a function from a batch of data to features, see `FeatureEnergy`.
            clean: clean data with one batch dimension; twenty are some, a hundred are many.
            layer: name of a layer; default the input of the last linear layer, else the output.
            distance: ``"mahalanobis"``: distance to the mean in the covariance metric, see `MahalanobisDistance`;
                ``"neighbours"``: distance to the nearest of the data, see `NeighbourDistance`.
            labels: classes of the data, each with a mean of its own, for ``"mahalanobis"``.
            neighbours: number of nearest data whose distances are averaged.

        Raises:
            ConfigurationError: see `FeatureEnergy`; or a setting is unknown.
            ShapeError: there are fewer than two data, or other numbers of labels.
            DomainError: features that are not finite, or the same for all data.
        """
        check_choice("distance", distance, ("mahalanobis", "neighbours"))
        if labels is not None and distance != "mahalanobis":
            raise ConfigurationError(
                f"labels: expected None for distance={distance!r}, which has no classes, got labels"
            )
        default = classifier_of(network)[0] if isinstance(network, nn.Module) else None
        reader = NetworkFeatures(network, default if layer is None else layer)
        found = check_features(features_of(reader, with_tensors("clean", clean)))
        if labels is not None and labels.shape != found.shape[:1]:
            raise ShapeError(f"labels: expected one for each datum [{len(found)}], got {list(labels.shape)}")
        score: FeatureScore = (
            MahalanobisDistance.of(found, labels)
            if distance == "mahalanobis"
            else NeighbourDistance.of(found, neighbours)
        )
        return FeatureEnergy(network, reader.layer, score=score)

    @property
    def layer(self) -> str | None:
        """The layer that is read, see `NetworkFeatures`."""
        return self.features.layer

    def forward(self, x: Any) -> Float[Tensor, " b"]:
        """Return the energies of data x, ``[b]``, in the dtype of the data."""
        dtypes = [leaf.dtype for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        energy = self.score(self.features(x))
        return energy.to(dtypes[0]) if dtypes else energy

    def save(self, path: str | Path) -> None:
        """Write the score and the name of the layer to a safetensors file at ``path``; the network is not in it.

        Raises:
            CheckpointError: the file cannot be written.
        """
        write_file(self.score, path, {"energy": self._entry()})

    def _entry(self) -> dict[str, Any]:
        """Return the entry of a file's header."""
        return {"kind": type(self).__name__, "layer": self.layer}

    @classmethod
    def load(cls: type[EnergyT], path: str | Path, network: nn.Module | Callable[[Any], Tensor]) -> EnergyT:
        """Return the energy that a file holds, for the network that it was made for.

        Args:
            path: file that `save` wrote.
            network: a `torch.nn.Module`, or a function from a batch of data to features, see `FeatureEnergy`.

        Raises:
            CheckpointError: the file is missing, unreadable, or holds no energy of this class.
            ConfigurationError: the network has no such layer.
        """
        file = read_file(path, has_checksum=True)
        entry = file.entry("energy")
        if entry.get("kind") != cls.__name__ or not isinstance(entry.get("layer"), str | None):
            raise CheckpointError(f"{file.path}: expected a {cls.__name__} in the header, got {entry}")
        return cls(network, entry["layer"], score=file.build(FeatureScore), **cls._options(entry))  # type: ignore[type-abstract]

    @classmethod
    def _options(cls, entry: HeaderEntry) -> dict[str, Any]:
        """Return the further constructor arguments that the header of a file holds."""
        return {}


def features_of(reader: NetworkFeatures, data: Any) -> Float[Tensor, "n d"]:
    """Return the features of ``data``, ``[n, d]``, computed by ``reader`` in blocks, on its device.

    Raises:
        ShapeError: there are no data.
    """
    data = on_device(data, module_device(reader))
    number = len(pytree.tree_leaves(data)[0])
    starts = range(0, number, _FEATURE_BATCH_SIZE)
    with torch.no_grad():
        rows = [reader(pytree.tree_map(lambda leaf, i=i: leaf[i : i + _FEATURE_BATCH_SIZE], data)) for i in starts]
    if not rows:
        raise ShapeError("clean: expected at least two data, got none")
    return torch.cat(rows)
