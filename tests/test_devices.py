"""The tests of `tests/devices` on the emulated device, in two processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "devices"


# each process takes seconds to import the library; two keep two workers busy
HALVES = [
    ["test_emulated", "test_groups", "test_diffusion"],
    ["test_inversion", "test_tasks", "test_others"],
]


@pytest.mark.parametrize("names", HALVES, ids="-".join)
def test_on_an_emulated_device(names: list[str]) -> None:
    options = ["-q", "-m", "not slow and not cuda", "-p", "no:cacheprovider", "-p", "no:xdist"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(FOLDER / f"{name}.py") for name in names)],
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
    takes_device = {path.stem for path in FOLDER.glob("test_*.py") if "device: torch.device" in path.read_text()}
    assert takes_device == {name for half in HALVES for name in half}
