"""Optimal systems against the lists of textbooks, and against random inner automorphisms."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import sympy as sp
import torch

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry import find_symmetries
from trivgeo.symmetry.algebra.exact import SymmetryAlgebra

Brackets = dict[tuple[int, int], dict[int, int | Fraction]]

HEAT: Brackets = {  # translations, Galilei, mass; scaling, time and projective
    (0, 1): {2: 1},
    (3, 0): {0: 1},
    (3, 1): {1: -1},
    (3, 4): {4: 2},
    (3, 5): {5: -2},
    (4, 5): {3: 1},
    (4, 1): {0: 1},
    (5, 0): {1: 1},
}
SKEW_TURNS: Brackets = {(0, 1): {2: 2}, (1, 2): {0: 3}, (2, 0): {1: 5}}
# The algebras of dimension three, by Patera and Winternitz 1977, with the number of their lines and families.
SMALL: dict[str, tuple[int, Brackets, int]] = {
    "abelian": (3, {}, 3),
    "aff(1) + R": (3, {(0, 1): {1: 1}}, 5),
    "A3.1 Heisenberg": (3, {(0, 1): {2: 1}}, 3),
    "A3.2": (3, {(0, 2): {0: 1}, (1, 2): {0: 1, 1: 1}}, 3),
    "A3.3": (3, {(0, 2): {0: 1}, (1, 2): {1: 1}}, 3),
    "A3.4": (3, {(0, 2): {0: 1}, (1, 2): {1: -1}}, 5),
    "A3.5": (3, {(0, 2): {0: 1}, (1, 2): {1: Fraction(1, 2)}}, 5),
    "A3.6 e(2)": (3, {(0, 2): {1: -1}, (1, 2): {0: 1}}, 2),
    "A3.7": (3, {(0, 2): {0: 1, 1: -1}, (1, 2): {0: 1, 1: 1}}, 2),
    "A3.8 sl(2)": (3, {(0, 1): {1: 2}, (0, 2): {2: -2}, (1, 2): {0: 1}}, 3),
    "A3.9 so(3)": (3, {(0, 1): {2: 1}, (1, 2): {0: 1}, (2, 0): {1: 1}}, 1),
    "so(3), skew": (3, SKEW_TURNS, 1),
    "u(2)": (4, {(0, 1): {2: 1}, (1, 2): {0: 1}, (2, 0): {1: 1}}, 2),
    "so(3) + aff(1)": (5, {(0, 1): {2: 1}, (1, 2): {0: 1}, (2, 0): {1: 1}, (3, 4): {4: 1}}, 5),
    "sl(2) + R^2": (5, {(0, 1): {1: 2}, (0, 2): {2: -2}, (1, 2): {0: 1}}, 9),
    "gl(2)": (4, {(0, 1): {1: 2}, (0, 2): {2: -2}, (1, 2): {0: 1}}, 6),
    "filiform": (4, {(1, 3): {0: 1}, (2, 3): {1: 1}}, 5),
    "oscillator": (4, {(1, 2): {0: 1}, (3, 1): {2: 1}, (3, 2): {1: -1}}, 3),
    "two aff(1)": (4, {(0, 1): {1: 1}, (2, 3): {3: 1}}, 11),
    "heat": (6, HEAT, 8),
    # by hand: a vector outside of h(3) with one off its centre, in two families, or with the centre; and h(3)
    "R + h(3)": (4, {(2, 3): {1: 1}}, 6),
    "so(3) + h(3)": (6, {(0, 1): {2: 1}, (1, 2): {0: 1}, (2, 0): {1: 1}, (3, 4): {5: 1}}, 6),
    "sl(2) + h(3)": (6, {(0, 1): {1: 2}, (0, 2): {2: -2}, (1, 2): {0: 1}, (3, 4): {5: 1}}, 16),
}


def _algebra(size: int, brackets: Brackets) -> SymmetryAlgebra:
    constants = [[[sp.S.Zero] * size for _ in range(size)] for _ in range(size)]
    for (i, j), row in brackets.items():
        for k, c in row.items():
            constants[i][j][k], constants[j][i][k] = sp.Rational(c), -sp.Rational(c)
    return SymmetryAlgebra(constants, [f"X{i + 1}" for i in range(size)], ())


RIGID: Brackets = {
    (0, 1): {2: 1}, (1, 2): {0: 1}, (2, 0): {1: 1}, (0, 4): {5: 1}, (1, 5): {3: 1}, (2, 3): {4: 1},
    (0, 5): {4: -1}, (1, 3): {5: -1}, (2, 4): {3: -1},
}  # fmt: skip
FAST = {"R + h(3)", "A3.6 e(2)", "so(3), skew", "A3.8 sl(2)", "two aff(1)"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in SMALL])
def test_every_line_is_in_one_orbit(name: str) -> None:
    """As many as in the literature; what Ad moves keeps its place and parameters; each representative has its own."""
    size, brackets, count = SMALL[name]
    algebra = _algebra(size, brackets)
    found = algebra.optimal_system()
    assert len(found) == count
    c = algebra.numeric().structure_constants
    random = np.random.default_rng(5)

    def moved(v: np.ndarray) -> np.ndarray:
        for _ in range(3):
            y = torch.from_numpy(random.normal(size=size)) * 0.3
            v = torch.linalg.matrix_exp(torch.einsum("i,ijk->kj", y, c)).numpy() @ v
        return v * random.choice([-1, 1])

    for place, line in enumerate(found):
        for _ in range(2):
            signs = [1] if line.is_even else [-1, 1]
            values = {p: random.uniform(0.2, 2) * random.choice(signs) for p in line.parameters}
            v = np.array([float(sp.sympify(e).subs(values)) for e in line.coefficients])
            other, parameters = found.find(moved(v))
            assert other == place
            np.testing.assert_allclose(parameters, list(values.values()), atol=1e-6)
    for _ in range(12):
        v = random.integers(-1, 2, size) + random.integers(0, 2) * random.normal(size=size)
        if v.any():
            assert found.find(v)[0] == found.find(moved(v))[0]


def test_kdv() -> None:
    """Olver 1993, example 3.12: scaling, Galilei with time of either sign, each alone, and the translation."""
    found = find_symmetries("u_t + u*u_x + u_xxx = 0")
    x, scaling, galilei, time = (g.name for g in found)
    texts = repr(found.algebra.optimal_system()).splitlines()
    assert set(texts) == {scaling, f"{galilei} + {time}", f"-{galilei} + {time}", galilei, time, x}


@pytest.mark.slow
def test_heat() -> None:
    """Olver 1993, example 3.13, where x to -x joins c and c', and half a turn a and -a."""
    found = find_symmetries("u_t = u_xx").algebra.optimal_system()
    by_hand = [
        (0, 1, 0, 0, 0, 0.8 - 0.5),  # scaling and mass, from the middle
        (0, 0, 0, 0.25, 1, -0.8),  # time and projective, and mass
        (0, 0, 1, 0, 1, 0),  # time and Galilei
        (0, 0, 0, 0, 1, 0),  # time, alone and with mass of either sign
        (0, 0, 0, 0, 1, 1),
        (0, 0, 0, 0, 1, -1),
        (1, 0, 0, 0, 0, 0),
        (0, 0, 0, 0, 0, 1),
    ]
    places = [found.find(v) for v in by_hand]
    assert sorted(place for place, _ in places) == list(range(8)) == list(range(len(found)))
    assert sorted(float(p) for _, parameters in places for p in parameters) == pytest.approx([-0.8, 0.8])
    assert found.find((0, 0, -1, 0, 1, 0)) == places[2]
    assert found.find((0, 1, 0, 0, 0, -0.8 - 0.5))[0] == places[0][0]
    with pytest.raises(AlgebraError, match="other than zero"):
        found.find((0,) * 6)


def test_families() -> None:
    """Scaling with a multiple of the mass is a line for each multiple, but zero has others beside it."""
    found = _algebra(4, SMALL["two aff(1)"][1]).optimal_system()
    assert "X1 + X3*a, a != 0" in repr(found)
    assert {"X1", "X1 + X4", "X1 - X4"} <= set(repr(found).splitlines())


def test_a_family_beside_the_centre() -> None:
    """d_x + c d_y, where d_x is central, and d_y the bracket of two others."""
    found = find_symmetries("u_t + u*u_y + u_yyy + u_yy + u_xx + u_xxx = 0")
    system = found.algebra.optimal_system()
    names = {g.text: i for i, g in enumerate(found)}
    for c in (2, -1, 0.5):
        v = [0.0] * len(found)
        v[names["∂_x"]], v[names["∂_y"]] = 1, c
        place, parameters = system.find(v)
        assert parameters == pytest.approx((c,))
        line = system[place]
        np.testing.assert_allclose([float(e.subs(line.parameters[0], c)) for e in line.coefficients], v, atol=1e-9)


def test_others_are_refused() -> None:
    for size, brackets in [
        (6, RIGID),  # so(3) that moves the rest
        (3, {(0, 2): {1: 1}, (1, 2): {0: 2}}),  # weights of square root of two
        (7, {}),
    ]:
        with pytest.raises(AlgebraError, match="expected"):
            _algebra(size, brackets).optimal_system()
    with pytest.raises(ConfigurationError, match="expected a number for each by keyword"):
        find_symmetries("u_t = diff(u^n*u_x, x)").algebra.optimal_system()


def test_latex() -> None:
    lines = find_symmetries("u_t + u*u_x + u_xxx = 0").algebra.optimal_system()
    assert lines.latex().count(r"\langle") == len(lines)
    assert r"X_{1}" in lines._repr_latex_()
