"""The examples of the documentation keep what they promise."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_digits(channels: int) -> None:
    """Grey, and in colour on a background of colour; minutes on two cores."""
    accuracy = runpy.run_path(str(EXAMPLES / "digits.py"))["main"](channels)
    assert accuracy["alone"] < 0.5
    assert accuracy["learned"] >= 0.94
    assert accuracy["TIED"] >= 0.90
    assert accuracy["below"] < 0.01
