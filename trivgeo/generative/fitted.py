"""What a fit of a model finds, and files of fitted models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from trivgeo.checks import check_count
from trivgeo.errors import CheckpointError
from trivgeo.generative.conditioning import ConditionalNetwork
from trivgeo.generative.distributions import EmpiricalDistribution, GroupDistribution
from trivgeo.generative.flow_map import FlowMap
from trivgeo.generative.group_network import GroupNetwork
from trivgeo.generative.particles import Particles
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.groups import LieGroup
from trivgeo.networks import NetworkFile, read_file, write_file

__all__ = ["FittedPath", "SavedModel", "write_model"]

_HEADER = "trivgeo.GroupDiffusion"  # entry of the header of its files


class FittedPath(nn.Module):
    """Result of `GroupDiffusion.fit` beside the weights of the networks.

    Attributes:
        path: the probability path.
        base: its base distribution.
        settings: numbers that the path was built from.
        condition_ndims: number of dimensions of one condition, for each tensor in it; empty without conditions.
        feature_shape: shape of the features of one condition, if they are a tensor.
        particles: factors of a power that may be absent; ``None`` for a model without masks.
        flow_map: of `GroupDiffusion.distil`; ``None`` before.
        num_skipped_rows: rows of the training that were skipped, for want of a logarithm; zero for a loaded model.
        num_steps: steps of the optimiser that were made; zero for a loaded model.
        ended_by_time: whether the training ended by its time, before all steps were made.
    """

    def __init__(
        self,
        path: ProbabilityPath,
        base: GroupDistribution,
        settings: dict[str, Any],
        condition_ndims: tuple[int, ...] = (),
        feature_shape: tuple[int, ...] = (),
        particles: Particles | None = None,
    ) -> None:
        super().__init__()
        self.path, self.base, self.settings = path, base, settings
        self.condition_ndims, self.feature_shape, self.particles = condition_ndims, feature_shape, particles
        self.flow_map: FlowMap | None = None
        self.num_skipped_rows, self.num_steps, self.ended_by_time = 0, 0, False


def write_model(
    path: str | Path, group: LieGroup, networks: ConditionalNetwork, fitted: FittedPath, model: dict[str, Any]
) -> None:
    """Write a fitted model.

    Args:
        path: the file.
        group: its group.
        networks: its network and the encoder of its conditions.
        fitted: what the fit found.
        model: further entries: ``kind``, ``seed`` and ``shape``.
    """
    header: dict[str, Any] = {
        "group": group.fingerprint(),
        "scale": group.scale.tolist(),
        **model,
        "settings": fitted.settings,
        "version": [fitted.path.target_version, networks.version],
        "flow_map": fitted.flow_map is not None,
        "masked": networks.particles is not None,
        "source": len(fitted.base.elements) if isinstance(fitted.base, EmpiricalDistribution) else 0,
    }
    if networks.encoder is not None:
        header["condition"] = {
            **networks.encoder.description,
            "ndims": list(fitted.condition_ndims),
            "feature_shape": list(fitted.feature_shape),
            "own_network": not isinstance(networks.network, GroupNetwork),
        }
    write_file(_modules(networks, fitted.base, fitted.flow_map), path, {_HEADER: header})


class SavedModel:
    """A file that `write_model` wrote.

    Args:
        path: the file.
        group: the group of the elements.

    Attributes:
        kind: the name of the kind.
        seed: of the model.
        width: of its network.
        depth: of its network.
        settings: of its path.
        condition: what is known of its conditions; ``None`` for a model without conditions.
        is_masked: whether particles of a power may be absent.
        num_source_elements: of the source of a bridge; zero for other models.

    Raises:
        CheckpointError: the file is none of these, or its model is on another group.
    """

    def __init__(self, path: str | Path, group: LieGroup) -> None:
        self.file: NetworkFile = read_file(path, has_checksum=True)
        header = self.file.entry(_HEADER)
        try:
            fits = group.matches(header["group"]) and group.scale.tolist() == header["scale"]
            self.kind, self.seed = header["kind"], header["seed"]
            self.width, self.depth = header["shape"]
            self.settings = dict(header["settings"])
            self.condition: dict[str, Any] | None = header.get("condition")
            if self.condition is not None:
                self.condition_ndims = tuple(self.condition["ndims"])
                self.feature_shape = tuple(self.condition["feature_shape"])
                self.vector_dim: int | None = self.condition["vector_dim"]
                self.dropout: float = self.condition["dropout"]
                self.has_own_network: bool = self.condition["own_network"]
            self.is_masked = bool(header.get("masked", False))
            self.num_source_elements = check_count("source", header.get("source", 0), 0)
            self.has_flow_map = bool(header.get("flow_map", False))
            version = header.get("version", 1)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: expected a file written by GroupDiffusion.save: {error!r}") from error
        self.version = version if isinstance(version, list) else [version, 1]
        self.path, self.group = path, group
        if not fits:
            raise CheckpointError(f"{path}: expected a model on {group!r} with its scale, got one on another group")

    def arguments(self, condition: nn.Module | None, network: nn.Module | None) -> dict[str, Any]:
        """Return the arguments that construct a model of the saved shape.

        Args:
            condition: the user's module for conditions, ``None`` if the saved model has none.
            network: likewise, the user's network.

        Raises:
            CheckpointError: a module is missing, or the model has none.
        """
        shape = {"seed": self.seed, "width": self.width, "depth": self.depth}
        own_condition = self.condition is not None and self.vector_dim is None and self.condition["own_condition"]
        own_network = self.condition is not None and self.has_own_network
        for name, given, expected in (("condition", condition, own_condition), ("network", network, own_network)):
            if given is not None if not expected else not isinstance(given, nn.Module):
                wanted = f"a module {name}= like that of the model" if expected else self._left_out(name)
                raise CheckpointError(f"{self.path}: expected {wanted}, got {type(given).__name__}")
        if self.condition is None:
            return shape
        vector = condition if self.vector_dim is None else self.vector_dim
        return {**shape, "condition": vector, "network": network, "condition_dropout": self.dropout}

    def _left_out(self, name: str) -> str:
        """Say why an argument of `load` is to be left out."""
        if name == "network":
            return "no network=, since the file describes this network: leave it out"
        if self.condition is None or self.vector_dim is None:
            return "no condition=, since this model has no conditions: leave it out"
        return f"no condition=, since the file holds it (vectors of {self.vector_dim} numbers): leave it out"

    def fill(self, networks: ConditionalNetwork, path_class: type[ProbabilityPath]) -> FittedPath:
        """Load the saved weights into networks, and return the fitted probability path with its settings.

        Args:
            networks: networks of the saved shape.
            path_class: kind of the path.

        Raises:
            CheckpointError: weights or settings are none of such a model, or of another version.
        """
        group = self.group
        reference = group.random(32, std=0.1, generator=torch.Generator().manual_seed(0))
        # for the shapes of the base distribution; its numbers are read
        base: GroupDistribution
        if self.num_source_elements:
            with self.file.bounded():
                base = EmpiricalDistribution(group, group.identity(self.num_source_elements))
        else:
            base = path_class.fit_base(group, reference)
        try:
            built = path_class.build(group, self.settings, base)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.path}: expected settings of kind {self.kind!r}: {error!r}") from error
        expected = [built.target_version, networks.version]
        if self.version != expected:
            raise CheckpointError(
                f"{self.path}: expected versions {expected} of targets and inputs of a network of kind {self.kind!r} "
                f"on {group!r}, got {self.version}; fit the model again"
            )
        ndims, shape = ((), ()) if self.condition is None else (self.condition_ndims, self.feature_shape)
        fitted = FittedPath(built, base, self.settings, ndims, shape, networks.particles)
        with self.file.bounded():
            networks.initialise(shape)
            if self.has_flow_map:
                fitted.flow_map = FlowMap(group, self.width, self.depth, shape[0] if shape else None)
        self.file.fill(_modules(networks, base, fitted.flow_map))
        return fitted


def _modules(networks: ConditionalNetwork, base: GroupDistribution, flow_map: FlowMap | None) -> nn.ModuleDict:
    """Modules of a file, by the names of the file format."""
    found: dict[str, nn.Module] = {"network": networks.network, "base": base}
    if networks.encoder is not None:
        found["encoder"] = networks.encoder
    if flow_map is not None:
        found["flow_map"] = flow_map
    return nn.ModuleDict(found)
