"""The examples of the documentation keep what they promise."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from trivgeo.inversion import check_energy

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
SCRIPTS = ["digits.py", "registration.py"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_short(name: str) -> None:
    """At most 25 lines of code, without what the docstring and comments say."""
    lines = (EXAMPLES / name).read_text().splitlines()
    assert len([line for line in lines if not re.match(r'\s*(#|""".*"""$|$)', line)]) <= 25


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "learned", "tied"), [(1, 0.94, 0.90), (3, 0.90, 0.82)])
def test_digits(channels: int, learned: float, tied: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grey, and in colour on a background of colour, which is harder; minutes on two cores that are not busy."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["digits.py", str(channels)])
    script = runpy.run_path(str(EXAMPLES / "digits.py"))
    accuracy, classifier = script["accuracy"], script["classifier"]
    assert accuracy["alone"] < 0.5
    assert accuracy["learned"] >= learned
    assert accuracy["TIED"] >= tied
    assert script["check"].profile.share_below < 0.01
    of_classifier = check_energy(
        script["action"], lambda z: -classifier(z).logsumexp(-1), script["clean"], script["transformations"]
    )
    assert script["check"].finds_transformations
    assert script["check"].network_right
    assert not of_classifier.finds_transformations


def test_registration() -> None:
    script = runpy.run_path(str(EXAMPLES / "registration.py"))
    assert script["degrees"] < 2.0
    assert script["shift"] < 0.01
