"""Fixtures of the tests that run the command line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.made_once import FOLDER_VARIABLE


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, with a folder of trained checkpoints in it."""
    monkeypatch.setattr(sys, "argv", ["tasks"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIVGEO_CHECKPOINTS", str(tmp_path / "checkpoints"))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for data that are made once, of these tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield
