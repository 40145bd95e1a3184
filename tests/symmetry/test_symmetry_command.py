"""The report of the command line."""

from __future__ import annotations

import json
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
    assert capsys.readouterr().err.startswith("error: equation: expected")
    for words in (["u_t", "=", "u_xx"], ["u_t", "=u_xx"], ["u_t=", "u_xx"]):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert "expected each equation in quotes, got" in capsys.readouterr().err


def test_laws_discrete_symmetries_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Of Korteweg and de Vries: mass, momentum, Galilean momentum, energy; lines as in Olver 1993, example 3.13."""
    equation = "u_t + u*u_x + u_xxx = 0"
    assert main([equation, "--all", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["symmetries"]["dimension"] == len(found["symmetries"]["generators"]) == 4
    assert found["brackets"]["[X3, X4]"] == "X1"
    densities = [law["density"] for law in found["conservation laws"]]
    assert densities == ["u", "u**2/2", "t*u**2/2 - u*x", "u**3/3 - u_x**2"]
    assert found["discrete symmetries"] == ["x -> -x, t -> -t"]
    assert len(found["optimal system of lines"]) == 6
    assert main([equation, "--laws"]) == 0
    text = capsys.readouterr().out
    assert "D_t(u) + D_x(u^2/2 + u_xx) = 0" in text
    assert "discrete" not in text
    assert main([equation, "--format", "latex"]) == 0
    assert "X_{3} = t\\partial_{x} + \\partial_{u}" in capsys.readouterr().out


def test_values_of_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of Black and Scholes are known once the parameters are numbers."""
    equation = "V_t + s^2*S^2/2*V_SS + r*S*V_S = r*V"
    assert main([equation, "--optimal"]) == 0
    assert "give values: --parameter r=1 s=1" in capsys.readouterr().out
    assert main([equation, "--parameter", "s=0.3", "r=0.05"]) == 0
    assert "sl(2, R) ⋉ h(3)" in capsys.readouterr().out
    assert main(["u_t = a*u_xx", "--parameter", "b=3"]) == 2
    assert "parameter: expected NAME=VALUE of a parameter of the equations (a), got 'b=3'" in capsys.readouterr().err
