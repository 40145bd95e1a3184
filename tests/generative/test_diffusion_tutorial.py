"""The page "diffusion on your group" runs, and its models have learned something."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest


@pytest.mark.slow
def test_group_diffusion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "figure.png"
    script = Path(__file__).parents[2] / "docs" / "tutorials" / "group_diffusion.py"
    monkeypatch.setattr("sys.argv", [str(script), "--figure", str(figure), "--steps", "200"])
    found = runpy.run_path(str(script), run_name="__main__")
    for kind, value in found["scores"].items():
        assert found["uniform"] + 0.3 < value < 4.2, kind
    assert abs(found["gap"]) < 0.2
    assert float((found["sampled"].mean(0) - found["bearings"].mean(0)).abs().max()) < 0.15
    assert figure.stat().st_size > 0
    assert "motions: [3, 2, 3]" in capsys.readouterr().out
