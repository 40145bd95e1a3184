"""The report of the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trivgeo.symmetry.__main__ import main


def test_report() -> None:
    command = [sys.executable, "-m", "trivgeo.symmetry", "u_t + u*u_x = 0.1*u_xx"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    assert "x*∂_x + 2*t*∂_t - u*∂_u" in run.stdout
    assert "all: the dimension is 5" in run.stdout
    assert "brackets:" in run.stdout
    assert not run.stderr


def test_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["y'' = 6*y^2 + x"]) == 0
    assert "all: the dimension is 0" in capsys.readouterr().out
    assert main(["u_t = v_x", "v_t = u_x", "--degree", "1"]) == 0
    assert "infinite-dimensional" in capsys.readouterr().out
    assert main(["__import__('os')"]) == 2
    assert "expected" in capsys.readouterr().err
