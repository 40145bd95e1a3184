"""Every old name warns, and is what replaces it."""

import importlib
import re
from itertools import compress
from pathlib import Path
from typing import Any

import pytest

from tests.old_names import OLD_NAMES
from trivgeo.groups import SE


def value(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_rows_are_in_order() -> None:
    assert sorted(set(OLD_NAMES)) == OLD_NAMES


@pytest.mark.parametrize(("old", "new"), OLD_NAMES, ids=[old for old, _ in OLD_NAMES])
def test_old_name(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=new.rpartition(".")[2]):
        assert value(old) is value(new)


def test_the_guide_for_upgrades_has_every_name() -> None:
    """One row for each name that changed, and one for all that moved from one module to another."""
    text = (Path(__file__).parents[1] / "docs/help/upgrade.md").read_text()
    changed = re.findall(r"^\| `(\S+)` \| `(\S+)` \|$", text, flags=re.MULTILINE)
    rows = re.findall(r"^\| `(trivgeo\.\S+)` \| `(\S+)` \| (`.*`) \|$", text, flags=re.MULTILINE)
    moved = [(f"{old}.{name}", f"{new}.{name}") for old, new, names in rows for name in re.findall(r"\w+", names)]
    has_other_name = [old.rpartition(".")[2] != new.rpartition(".")[2] for old, new in OLD_NAMES]
    assert [(f"trivgeo.{old}", new) for old, new in changed] == list(compress(OLD_NAMES, has_other_name))
    assert sorted(moved) == [row for row, changes in zip(OLD_NAMES, has_other_name, strict=True) if not changes]


@pytest.mark.parametrize("name", ["GaussianSearch", "Descend", "basis_levels"])
def test_an_old_argument_warns_about_the_line_of_the_caller(name: str) -> None:
    """Python hides warnings about lines of a library; some constructors have further decorators."""
    call = value(f"trivgeo.inversion.stages.{name}")
    calls = {
        "GaussianSearch": lambda: call(samples=5, num_hypotheses=1, std=0.3),
        "Descend": lambda: call(5, keep_seen=True),
        "basis_levels": lambda: call(SE(2), count=1),
    }
    with pytest.warns(DeprecationWarning, match="is now") as found:
        calls[name]()
    assert [warning.filename for warning in found] == [__file__]
