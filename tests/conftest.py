"""Fixtures of every test. Randomness goes through explicit generators; nothing touches torch's global seed or dtype."""

import pytest
import torch

from tests.helpers import seeded, traced_only
from trivgeo import _compile

LONG = ("test_devices.py", "test_runtime_types.py", "test_interrupted.py")
"""Files whose tests start processes that take longest: two workers end together if these begin first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture
def generator() -> torch.Generator:
    return seeded(0)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled is traced, but not made into machine code, which takes seconds."""
    monkeypatch.setattr(_compile, "fuse", traced_only)
