"""Results of a fit of a model, and files of fitted models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from trivgeo._applications import is_ours
from trivgeo.errors import CheckpointError
from trivgeo.generative.conditioning import ConditionalNetwork
from trivgeo.generative.distributions import EmpiricalDistribution, GroupDistribution
from trivgeo.generative.flow_map import FlowMap
from trivgeo.generative.group_network import GroupNetwork
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.groups import LieGroup
from trivgeo.groups.group import is_near
from trivgeo.networks import HeaderEntry, NetworkFile, read_file, write_file

_FILE_KIND = "trivgeo.GroupDiffusion"  # entry of the header of a file
_POSITIVE_BUFFERS = ("std", "speed")  # of modules of this library, which divide inputs and scale steps
_NO_CONDITION: dict[str, Any] = {
    **{"vector_dim": None, "own_condition": False, "own_network": False, "dropout": 0.0},
    **{"ndims": [], "feature_shape": []},
}


class FittedPath(nn.Module):
    """Result of `GroupDiffusion.fit`, except the weights of the networks.

    Attributes:
        settings: plain settings that rebuild the path.
        condition_ndims: number of dimensions of one condition, for each tensor in it; empty without conditions.
        feature_shape: shape of the features of one condition, if they are a tensor.
        moving_ndims: the same of a condition of `EquivariantDiffusion` as it is given; ``None`` for other models.
        flow_map: flow map of `GroupDiffusion.distil`; ``None`` before.
        num_skipped_rows: rows of the training that were skipped since they had no logarithm; zero for a loaded model.
        num_steps: steps of the optimiser; zero for a loaded model.
        ended_by_time: whether the time ended the training before all steps were made.
    """

    def __init__(
        self,
        path: ProbabilityPath,
        base: GroupDistribution,
        settings: dict[str, Any],
        condition_ndims: tuple[int, ...] = (),
        feature_shape: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.path, self.base, self.settings = path, base, settings
        self.condition_ndims, self.feature_shape = condition_ndims, feature_shape
        self.moving_ndims: tuple[int, ...] | None = None
        self.flow_map: FlowMap | None = None
        self.num_skipped_rows, self.num_steps, self.ended_by_time = 0, 0, False


def write_model(
    path: str | Path, group: LieGroup, networks: ConditionalNetwork, fitted: FittedPath, model: dict[str, Any]
) -> None:
    """Write a fitted model to the file ``path``.

    Args:
        networks: network of the model and encoder of its conditions.
        fitted: results of the fit.
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
        "condition": None,
    }
    if fitted.moving_ndims is not None:
        header["moving_ndims"] = list(fitted.moving_ndims)
    if networks.encoder is not None:
        header["condition"] = {
            **networks.encoder.description,
            "ndims": list(fitted.condition_ndims),
            "feature_shape": list(fitted.feature_shape),
            "own_network": not isinstance(networks.network, GroupNetwork),
        }
    write_file(_modules(networks, fitted.base, fitted.flow_map), path, {_FILE_KIND: header})


class SavedModel:
    """A file that `write_model` wrote.

    Attributes:
        kind: the name of the kind.
        is_masked: whether particles of a power may be absent.

    Raises:
        CheckpointError: the file was not written by `write_model`, or its model is on another group.
    """

    def __init__(self, path: str | Path, group: LieGroup) -> None:
        self.file: NetworkFile = read_file(path, has_checksum=True)
        self.path, self.group = path, group
        header = self.file.entry(_FILE_KIND)
        header.numbers("scale", "the lengths of the basis")
        header.check_finite("settings")
        shape, condition = header.counts("shape"), header.get("condition") or _NO_CONDITION
        if len(shape) != 2 or not all(shape) or not isinstance(condition, dict):
            raise CheckpointError(f"{path}: expected width and depth of a file of GroupDiffusion.save, got {header}")
        condition = HeaderEntry(path, "condition", condition)
        ndims, feature_shape = condition.counts("ndims"), condition.counts("feature_shape")
        if condition.get("vector_dim") is not None:
            condition.count("vector_dim", 1)
        self._moving_ndims = tuple(header.counts("moving_ndims")) if "moving_ndims" in header else None
        self._dropout = condition.number("dropout", "a probability", lambda x: 0 <= x <= 1)
        self._versions = header.counts("version")
        self._num_source_elements, self._seed = header.count("source"), header.count("seed")
        try:
            fits = group.matches(header["group"]) and group.scale.tolist() == header["scale"]
            self.kind, self._settings = header["kind"], dict(header["settings"])
            self._width, self._depth = shape
            self.is_masked, self._has_flow_map = bool(header["masked"]), bool(header["flow_map"])
            self._has_conditions = header["condition"] is not None
            self._ndims, self._feature_shape = tuple(ndims), tuple(feature_shape)
            self._vector_dim = condition["vector_dim"]
            self._is_own = {"condition": condition["own_condition"], "network": condition["own_network"]}
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: expected a file written by GroupDiffusion.save: {error!r}") from error
        if not fits:
            raise CheckpointError(f"{path}: expected a model on {group!r} with its scale, got one on another group")

    @property
    def shape(self) -> tuple[int, int]:
        """Width and depth of the network."""
        return self._width, self._depth

    @property
    def condition_dim(self) -> int | None:
        """Number of features of a condition; ``None`` without conditions, or for features that are no vectors."""
        return self._feature_shape[0] if len(self._feature_shape) == 1 else None

    def arguments(self, condition: int | nn.Module | None, network: nn.Module | None) -> dict[str, Any]:
        """The arguments that construct a model of the saved shape.

        Args:
            condition: the user's module for conditions, or the dimension of vectors; ``None`` if the saved model has
                none.
            network: the user's network, ``None`` if the saved model has none.

        Raises:
            CheckpointError: a module is missing, the saved model has none, or vectors of another dimension.
        """
        if self._vector_dim is not None and isinstance(condition, int) and condition == self._vector_dim:
            condition = None  # the file holds it
        for name, given in (("condition", condition), ("network", network)):
            expected = self._is_own[name]
            if given is not None if not expected else not isinstance(given, nn.Module):
                wanted = f"a module {name}= like that of the model" if expected else self._left_out(name)
                raise CheckpointError(f"{self.path}: expected {wanted}, got {type(given).__name__}")
        shape = {"seed": self._seed, "width": self._width, "depth": self._depth}
        if not self._has_conditions:
            return shape
        vector = condition if self._vector_dim is None else self._vector_dim
        return {**shape, "condition": vector, "network": network, "condition_dropout": self._dropout}

    def _left_out(self, name: str) -> str:
        """A phrase that asks to leave out an argument of `load`."""
        if name == "network":
            return "no network=, since the file describes this network: leave it out"
        if self._vector_dim is None:
            return "no condition=, since this model has no conditions: leave it out"
        return f"no condition=, since the file holds it (vectors of {self._vector_dim} numbers): leave it out"

    def fill(self, networks: ConditionalNetwork, path_class: type[ProbabilityPath]) -> FittedPath:
        """Load the saved weights into networks, and return the fitted probability path with its settings.

        Raises:
            CheckpointError: weights or settings are not those of such a model, or of another version.
        """
        group = self.group
        reference = group.random(32, std=0.1, generator=torch.Generator().manual_seed(0))
        # the shapes of the base distribution, whose numbers are read below
        base: GroupDistribution
        if self._num_source_elements:
            with self.file.bounded():
                base = EmpiricalDistribution(group, group.identity(self._num_source_elements))
        else:
            base = path_class.fit_base(group, reference)
        try:
            built = path_class.build(group, self._settings, base)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.path}: expected settings of kind {self.kind!r}: {error!r}") from error
        expected = [built.target_version, networks.version]
        if self._versions != expected:
            raise CheckpointError(
                f"{self.path}: expected versions {expected} of targets and inputs of a network of kind {self.kind!r} "
                f"on {group!r}, got {self._versions}; fit the model again"
            )
        fitted = FittedPath(built, base, self._settings, self._ndims, self._feature_shape)
        fitted.moving_ndims = self._moving_ndims
        with self.file.bounded():
            networks.initialise(self._feature_shape)
            if self._has_flow_map:
                like = networks.shape_of(*self.shape)
                fitted.flow_map = FlowMap(group, like, next(iter(self._feature_shape), None), built)
        modules = _modules(networks, base, fitted.flow_map)
        self.file.fill(modules)
        self._check_scales(modules, base)
        return fitted

    def _check_scales(self, modules: nn.ModuleDict, base: GroupDistribution) -> None:
        """Check the numbers that scale inputs, steps and draws."""
        for place, module in modules.named_modules():
            for name in _POSITIVE_BUFFERS:
                x = module.get_buffer(name) if is_ours(type(module).__module__) and hasattr(module, name) else None
                if x is not None and not bool((x > 0.0).all()):
                    raise CheckpointError(f"{self.path}: expected positive numbers in {place}.{name}, got {x.tolist()}")
        for part in base.modules():
            if isinstance(part, GroupDistribution) and not _is_proper(part):
                raise CheckpointError(
                    f"{self.path}: expected a base distribution, got {type(part).__name__} that is none"
                )


def _is_proper(base: GroupDistribution) -> bool:
    """Whether the centre of a distribution, if it has one, is an element, and its scales are positive."""
    centre, scale = getattr(base, "centre", None), getattr(base, "scale_tril", None)
    found = centre is None or bool(is_near(base.group, centre, base.group.project(centre)).all())
    return found and (scale is None or bool((scale.diagonal(dim1=-2, dim2=-1) > 0.0).all()))


def _modules(networks: ConditionalNetwork, base: GroupDistribution, flow_map: FlowMap | None) -> nn.ModuleDict:
    """Modules of a file, by their names in the file format."""
    found: dict[str, nn.Module] = {"network": networks.network, "base": base}
    if networks.encoder is not None:
        found["encoder"] = networks.encoder
    if flow_map is not None:
        found["flow_map"] = flow_map
    return nn.ModuleDict(found)
