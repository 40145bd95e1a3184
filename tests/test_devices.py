"""The tests of `tests/devices` on the emulated device, each file in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "devices"


@pytest.mark.parametrize(
    "name", ["test_emulated", "test_groups", "test_inversion", "test_diffusion", "test_tasks", "test_others"]
)
def test_on_an_emulated_device(name: str) -> None:
    options = ["-q", "-m", "not slow and not cuda", "-p", "no:cacheprovider", "-p", "no:xdist"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(FOLDER / f"{name}.py")],
        capture_output=True,
        text=True,
        env=os.environ | {"TRIVGEO_EMULATED_DEVICE": "1"},
        cwd=FOLDER.parent.parent,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-10_000:] + found.stderr[-2_000:]
    assert " passed" in found.stdout


def test_every_file_runs() -> None:
    """The rest needs no emulated device."""
    (listed,) = (mark.args[1] for mark in test_on_an_emulated_device.pytestmark)
    takes_device = {path.stem for path in FOLDER.glob("test_*.py") if "device: torch.device" in path.read_text()}
    assert takes_device == set(listed)
