"""Spaces of polynomial fields: monomials, the numbers of symmetries in them, coefficients that hold parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import sympy as sp
from sympy.polys.monomials import itermonomials

from trivgeo.symmetry import find_symmetries
from trivgeo.symmetry.determining.ansatz import AnsatzSpace
from trivgeo.symmetry.determining.dimension import Jets
from trivgeo.symmetry.determining.finder import _conditions
from trivgeo.symmetry.determining.random_points import usable_primes
from trivgeo.symmetry.determining.reconstruction import rational_functions
from trivgeo.symmetry.equations.equation import residuals_of
from trivgeo.symmetry.equations.multi_index import multi_indices


@pytest.mark.parametrize(("length", "degree"), [(1, 0), (1, 4), (2, 3), (3, 2), (4, 3)])
def test_monomials_up_to_a_degree(length: int, degree: int) -> None:
    """Those of SymPy, each once, as many as a binomial coefficient, lower degrees first."""
    found = list(multi_indices(length, degree))
    variables = sp.symbols(f"x:{length}")
    products = {sp.Mul(*(v**k for v, k in zip(variables, powers, strict=True))) for powers in found}
    assert products == set(itermonomials(variables, degree))
    assert len(found) == math.comb(length + degree, degree)
    assert [sum(powers) for powers in found] == sorted(map(sum, found))


@pytest.mark.parametrize(
    ("equation", "counts"),
    [
        # affine maps of the plane; projective ones
        ("y'' = 0", (6, 8, 8)),
        # shifts, the scaling and Galilean boosts of Korteweg and de Vries' equation
        ("u_t + u*u_x + u_xxx = 0", (4, 4, 4)),
        # and the projective symmetry of Burgers' equation, with x t and t^2
        ("u_t + u*u_x = u_xx", (4, 5, 5)),
    ],
)
def test_number_of_symmetries_of_a_degree(equation: str, counts: tuple[int, ...]) -> None:
    """Those of textbooks (Olver 1993) whose coefficients are polynomials of degree 1, 2 and 3."""
    system, conditions = _conditions(tuple(residuals_of(equation)), None)
    jets = Jets(system, conditions, False)
    spaces = [AnsatzSpace(system, conditions, jets, (sp.S.One,), degree, False) for degree in (1, 2, 3)]
    assert tuple(space.count for space in spaces) == counts
    assert len(find_symmetries(equation)) == counts[-1]
    for degree, space in zip((1, 2, 3), spaces, strict=True):
        n = len(system.coordinates)
        assert len(space.columns) <= n * math.comb(n + degree, degree)
        assert len({(c.component, c.powers) for c in space.columns}) == len(space.columns)


@pytest.mark.parametrize("text", ["7/3", "a", "(a^2 + b)/(2*a*b - 3)", "1/(a^3 - b^3)"])
def test_rational_functions_of_parameters(text: str) -> None:
    """From their values at random parameters modulo primes."""
    a, b = sp.symbols("a b")
    expected = sp.sympify(text.replace("^", "**"))
    top, bottom = (sp.lambdify([a, b], part) for part in sp.fraction(expected))

    def values(prime: int, fixed: Sequence[Mapping[Any, int]]) -> list[list[int] | None]:
        each = [(int(top(at[a], at[b])), int(bottom(at[a], at[b]))) for at in fixed]
        return [None if q % prime == 0 else [p * pow(q, -1, prime) % prime] for p, q in each]

    (found,) = rational_functions(values, (a, b), usable_primes([expected])) or [None]
    assert found is not None
    assert sp.cancel(found - expected) == 0
