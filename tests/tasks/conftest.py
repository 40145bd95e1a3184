"""Fixtures of the tests that run the command line."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, with a folder of trained checkpoints in it."""
    monkeypatch.setattr(sys, "argv", ["tasks"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIVGEO_CHECKPOINTS", str(tmp_path / "checkpoints"))
