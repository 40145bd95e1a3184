"""Training of a network that a checkpoint can hold, under a name of the manifest."""

import os
from abc import ABC
from pathlib import Path, PurePath
from typing import Generic

import lightning.pytorch as pl

from trivgeo import training
from trivgeo.errors import ConfigurationError

from .checkpoints import FOLDER_VARIABLE, SUFFIX, NetworkT, trained_path


def check_export(export: str) -> str:
    """The name of an export, or a path that leads out of no folder: a configuration may come from a stranger.

    A path lies in the working folder, or in that of trained checkpoints; symbolic links there are the user's own.

    Raises:
        ConfigurationError: it has folders and is no path of a `.safetensors` file, climbs, lies elsewhere, or is no
            path.
    """
    place = PurePath(export)
    is_name = place.name == export and place.suffix != SUFFIX and "\\" not in export
    if not export or "\0" in export or ".." in place.parts or not (is_name or export.endswith(SUFFIX)):
        raise ConfigurationError(
            f"export: expected a name, or the path of a {SUFFIX} file without '..', got {export!r}"
        )
    homes = [Path(os.path.abspath(folder)) for folder in (".", trained_path("x").parent)]
    if not any(Path(os.path.abspath(place)).is_relative_to(home) for home in homes):
        raise ConfigurationError(
            f"export: expected a name, or the path of a {SUFFIX} file in the working folder or the one that "
            f"{FOLDER_VARIABLE} names, got {export!r}"
        )
    return export


class NamedExport(pl.LightningModule):
    """A training whose ``export`` is a name in the folder of trained checkpoints, or a `.safetensors` file."""

    def export_path(self, export: str | Path) -> Path:
        """Where training puts the file of a name.

        Raises:
            ConfigurationError: the name or a relative path leads out of its folder.
        """
        return trained_path(check_export(str(export)))


class NetworkTraining(NamedExport, training.NetworkTraining[NetworkT], ABC, Generic[NetworkT]):
    """See `trivgeo.training.NetworkTraining` and `NamedExport`."""
