"""Fixtures of every test. Randomness goes through explicit generators; nothing touches torch's global seed or dtype."""

import pytest
import torch

from tests.helpers import seeded


@pytest.fixture
def generator() -> torch.Generator:
    return seeded(0)
