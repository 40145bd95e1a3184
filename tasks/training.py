"""Training of a network that a checkpoint can hold, under a name of the manifest."""

from abc import ABC
from pathlib import Path
from typing import Generic

import lightning.pytorch as pl

from trivgeo import training

from .checkpoints import NetworkT, trained_path


class NamedExport(pl.LightningModule):
    """A training whose ``export`` is a name in the folder of trained checkpoints, or a `.safetensors` file."""

    def export_path(self, export: str | Path) -> Path:
        """Where training puts the file of a name."""
        return trained_path(str(export))


class NetworkTraining(NamedExport, training.NetworkTraining[NetworkT], ABC, Generic[NetworkT]):
    """See `trivgeo.training.NetworkTraining` and `NamedExport`."""
