"""Checkpoints of trainings: whole, or as they were, and refused where they are damaged."""

from __future__ import annotations

import os
import struct
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.pytorch.plugins import TorchCheckpointIO

from trivgeo.errors import CheckpointError
from trivgeo.networks import beside

__all__ = ["DAMAGED", "AtomicCheckpointIO"]

DAMAGED = (
    *(UnpicklingError, EOFError, OSError, RuntimeError, ValueError, LookupError, TypeError),
    *(AssertionError, AttributeError, ArithmeticError, struct.error),
)
"""What torch raises where it reads a file that is cut, or none of its own."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside the old one, and then in its place: a full disk, or a kill, leaves the old one whole.

    Addresses of other file systems are left to Lightning.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint.

        Raises:
            CheckpointError: the path cannot be written to; what is there stays.
        """
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with beside(path) as temporary:
            try:
                with temporary.open("wb") as file:
                    torch.save(checkpoint, file)
                    file.flush()
                    os.fsync(file.fileno())
            except RuntimeError as error:  # of torch's writer, for want of space
                raise OSError(str(error)) from error
            temporary.replace(path)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read a checkpoint.

        Raises:
            CheckpointError: it is damaged, or none.
        """
        try:
            return super().load_checkpoint(path, *args, **kwargs)
        except DAMAGED as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise CheckpointError(
                f"{path}: expected the checkpoint of a training, whole: {reason}; without it training begins anew"
            ) from error
