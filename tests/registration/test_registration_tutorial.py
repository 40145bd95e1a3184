"""The tutorial on registration: poses of partial scans with outliers, and all poses of a cuboid."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import seeded

SCRIPT = Path(__file__).parents[2] / "docs" / "tutorials" / "registration.py"


@pytest.fixture(scope="module")
def tutorial() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_finds_the_pose(tutorial: dict[str, Any]) -> None:
    degrees, shift = tutorial["one_object"](0)
    assert degrees < 2.0
    assert shift < 0.01


@pytest.mark.slow(reason="all poses of symmetric clouds in test_register.py stay")
def test_finds_the_poses_of_a_cuboid(tutorial: dict[str, Any]) -> None:
    weights = tutorial["cuboid_weights"](160, seeded(0))
    assert float((weights - 0.25).abs().max()) < 0.025


@pytest.mark.slow
def test_finds_nearly_all(tutorial: dict[str, Any]) -> None:
    # of other seeds, 49 of 50 (from 1000 on) and 25 of 27 (from 2000 on) were found when this was written; the rest end
    # turned over, in a well that no start left
    errors = [tutorial["one_object"](seed) for seed in range(100)]
    assert sum(degrees < 2.0 and shift < 0.01 for degrees, shift in errors) >= 88
    for seed in range(5):
        weights = tutorial["cuboid_weights"](256, seeded(seed))
        assert float((weights - 0.25).abs().max()) < 0.025
