"""The tests of `tests/devices` on the emulated device, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "devices"


def test_on_an_emulated_device() -> None:
    options = ["-q", "-m", "not slow and not cuda", "-p", "no:cacheprovider", "-p", "no:xdist"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *map(str, files())],
        capture_output=True,
        text=True,
        env=os.environ | {"TRIVGEO_EMULATED_DEVICE": "1"},
        cwd=FOLDER.parent.parent,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-10_000:] + found.stderr[-2_000:]
    assert " passed" in found.stdout


def files() -> list[Path]:
    """The files whose tests take the fixture `device`; the rest needs no emulated one."""
    return [path for path in sorted(FOLDER.glob("test_*.py")) if "device: torch.device" in path.read_text()]


def test_files_are_found() -> None:
    assert {"test_groups", "test_inversion"} < {path.stem for path in files()}
