"""The tutorial runs, and inverts the transformation that it set itself."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest


@pytest.mark.slow(reason="`make docs` runs the page")
def test_new_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "figure.png"
    script = Path(__file__).parents[2] / "docs" / "tutorials" / "new_group.py"
    monkeypatch.setattr("sys.argv", [str(script), "--figure", str(figure)])
    errors = runpy.run_path(str(script), run_name="__main__")["errors"]
    assert errors["polished"] < 1e-6 < errors["searched"] < 0.5 * errors["transformed"]
    assert figure.stat().st_size > 0
    report = capsys.readouterr().out
    assert "degree 3 has no more" in report
    assert "flows: {'x': 'closed form', 't': 'closed form', 'u': 'closed form'}" in report
