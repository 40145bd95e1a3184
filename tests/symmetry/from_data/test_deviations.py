"""Distances of data from a symmetry are those of the coefficients that it ties, in closed form."""

from __future__ import annotations

import math

import pytest
import sympy as sp

from trivgeo.symmetry.equations.vector_fields import Symmetry
from trivgeo.symmetry.from_data.deviations import deviation
from trivgeo.symmetry.from_data.regression import FittedEquation


def fitted(left: str, **terms: tuple[str, float, float]) -> FittedEquation:
    """An equation of terms with their simple number, the fitted coefficient and its error."""
    names = {"uxx": "diff(u, x, 2)", "uyy": "diff(u, y, 2)", "uux": "diff(u^2, x, 1)", "v": "v", "u": "u"}
    named = {names[name]: values for name, values in terms.items()}
    return FittedEquation(
        left,
        {name: f"({number})" for name, (number, _, _) in named.items()},
        {name: value for name, (_, value, _) in named.items()},
        {name: error for name, (_, _, error) in named.items()},
        0.01,
    )


def field(components: str, variables: str) -> Symmetry:
    symbols = sp.symbols(variables)
    own = {s.name: s for s in symbols}
    return Symmetry("X", tuple(sp.sympify(c, locals=own) for c in components.split(";")), symbols)


@pytest.mark.parametrize(
    ("components", "expected"),
    [
        ("1; 0; 0; 0", 0.0),
        ("x; y; 2*t; 0", 0.0),  # a dilation, whatever the coefficients are
        ("y; -x; 0; 0", 0.003 / math.hypot(0.001, 0.002)),  # the difference of both
        ("2*t; 0; 0; -5*x*u", 0.001 / 0.001),  # the first coefficient alone
        ("0; 2*t; 0; -5*y*u", 0.002 / 0.002),
    ],
)
def test_of_heat_in_the_plane(components: str, expected: float) -> None:
    heat = fitted("u_t", uxx=("1/5", 0.201, 0.001), uyy=("1/5", 0.198, 0.002))
    assert deviation([heat], field(components, "x y t u")) == pytest.approx(expected, abs=1e-9)


def test_of_a_boost_and_a_rotation_of_unknowns() -> None:
    burgers = fitted("u_t", uux=("-1/2", -0.503, 0.001), uxx=("1/5", 0.2, 0.01))
    assert deviation([burgers], field("t; 0; 1", "x t u")) == pytest.approx(3.0)
    first, second = fitted("u_t", v=("1", 1.02, 0.01)), fitted("v_t", u=("-1", -1.0, 0.01))
    own = [first, second]
    assert deviation(own, field("0; v; -u", "t u v")) == pytest.approx(0.02 / math.hypot(0.01, 0.01))


def test_without_numbers() -> None:
    """Coefficients that are functions hold no numbers."""
    varied = FittedEquation(
        "u_t", {"diff(u, x, 2)": "a1(x)"}, {"diff(u, x, 2)": 0.2}, {"diff(u, x, 2)": 0.1}, 0.0,
        varied={"diff(u, x, 2)": "x"},
    )  # fmt: skip
    assert deviation([varied], field("0; 1; 0", "x t u")) == 0.0
