"""The dimensions that the literature has, found with default arguments; every field is verified, no statement false."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.symmetry.catalogue import CATALOGUE, Textbook
from trivgeo.symmetry import find_symmetries, verify
from trivgeo.symmetry.result import Symmetries

# of each kind one or two; all others are left to the long run
FAST = {
    "free particle",
    "Ermakov",
    "any power of the slope",
    "Painleve I",
    "two frequencies",
    "heat",
    "heat with drift and source",
    "Burgers",
    "KdV",
    "KdV, Schwarzian",
    "K(2, 2)",
    "diffusion, -4/3",
    "Laplace",
    "sine-Gordon",
    "BBM",
    "Hunter-Saxton",
    "eikonal",
    "minimal surface",
    "boundary layer, stream function",
    "gas, line",
}
CASES = [pytest.param(case, id=case.name, marks=[] if case.name in FAST else [pytest.mark.slow]) for case in CATALOGUE]


@pytest.mark.parametrize("case", CASES)
def test_textbook(case: Textbook) -> None:
    equations = case.equations.split(";")
    found = find_symmetries(equations)
    assert found.dimension.size == case.size
    assert (found.dimension.functions, found.dimension.arguments) == case.functions
    assert found.looks_infinite == (case.size is None)
    if case.size is not None:
        assert len(found) == (case.size if case.found is None else case.found)
        assert found.is_complete == (len(found) == case.size)
        assert found.statement.startswith("all:" if found.is_complete else f"{len(found)} of at most {case.size}")
    for generator in found:
        assert verify(equations, generator) == 0, str(generator)
    if found.is_complete and found.infinite_ideal is None and len(found):
        constants = np.array([[[float(c.subs(_VALUES)) for c in row] for row in block] for block in _constants(found)])
        jacobi = np.einsum("ijk,klm->ijlm", constants, constants)
        jacobi = jacobi + jacobi.transpose(1, 2, 0, 3) + jacobi.transpose(2, 0, 1, 3)
        assert np.abs(jacobi).max() < 1e-9 * (1 + np.abs(constants).max() ** 2)
    assert len(str(found).splitlines()) > len(found)


_VALUES = {"n": 0.7, "k": 1.3, "w": 0.9, "nu": 0.3, "a": 0.4, "g": 1.4, "m": 0.6, "s": 0.8, "r": 0.2}


def _constants(found: Symmetries) -> Any:
    return found.algebra.structure_constants


def test_there_are_many() -> None:
    assert len(CATALOGUE) >= 150
    assert len({case.name for case in CATALOGUE}) == len(CATALOGUE)
    assert all(case.source for case in CATALOGUE)
    assert {case.name for case in CATALOGUE} >= FAST
    page = Path(__file__).parents[2] / "docs" / "symmetries.md"
    assert f"catalogue of {len(CATALOGUE)} equations" in page.read_text()
