"""Linear algebra over each ground field against SymPy's exact matrices."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy as sp
import torch

from trivgeo.errors import AlgebraError
from trivgeo.groups import SE, LieAlgebra
from trivgeo.groups.algebra import find_split
from trivgeo.groups.ground_fields import RATIONALS, REALS, GroundField, PrimeField, RationalFunctions
from trivgeo.groups.structure import exact_structure, real_structure

PRIME = 10007
MATRIX = sp.Matrix([[2, 4, 1, 0, 3], [1, 2, 0, 1, 1], [3, 6, 1, 1, 4], [0, 0, 5, 2, 1]])  # the third is a sum
OTHER = sp.Matrix([[1, 2, 1, -1, 2], [0, 1, 0, 0, 0]])  # the first is a difference of rows of the above


def numbers(field: GroundField[Any], matrix: sp.Matrix) -> Any:
    rows = [[Fraction(int(x.p), int(x.q)) for x in matrix.row(i)] for i in range(matrix.rows)]
    if field is REALS:
        return torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)
    if isinstance(field, PrimeField):
        return np.array([[x.numerator * pow(x.denominator, -1, PRIME) % PRIME for x in row] for row in rows])
    return field.array(rows, matrix.cols) if isinstance(field, RationalFunctions) else RATIONALS.array(rows)


def close(field: GroundField[Any], found: Any, expected: sp.Matrix) -> bool:
    wanted = numbers(field, expected)
    if field is REALS:
        return bool(torch.allclose(found, wanted, atol=1e-9))
    return found.shape == wanted.shape and bool((found == wanted).all())


FIELDS = pytest.mark.parametrize(
    "field", [REALS, RATIONALS, PrimeField(PRIME), RationalFunctions()], ids=lambda field: type(field).__name__
)


@FIELDS
def test_subspaces(field: GroundField[Any]) -> None:
    rows, both = numbers(field, MATRIX), numbers(field, OTHER)
    # reduced once more: real numbers choose pivots by size
    reduced = field.row_space(field.join(numbers(field, MATRIX.rref()[0][:3, :]), rows))
    assert close(field, field.row_space(rows), MATRIX.rref()[0][:3, :]) or field is REALS
    assert len(reduced) == len(field.row_space(rows)) == MATRIX.rank()
    kernel, expected = field.null_space(rows), sp.Matrix.hstack(*MATRIX.nullspace()).T
    assert len(kernel) == expected.rows == len(field.row_space(field.join(kernel, numbers(field, expected))))
    met = field.intersection(rows[[0, 1, 3]], both)
    assert len(met) == 1
    assert len(field.row_space(field.join(met, both[:1]))) == 1
    assert close(field, field.complement(rows, both), OTHER.row(1))


@FIELDS
def test_systems(field: GroundField[Any]) -> None:
    square = MATRIX[[0, 1, 3], :][:, [0, 2, 3]]
    right = sp.Matrix([1, 2, 3])
    found = field.solve(numbers(field, square), numbers(field, right)[:, 0])
    assert close(field, found[None], square.LUsolve(right).T)
    weights = sp.Matrix([[2, 1, -1], [1, 1, 1]])
    basis = MATRIX[[0, 1, 3], :]
    assert close(field, field.coordinates(numbers(field, weights * basis), numbers(field, basis)), weights)
    with pytest.raises(AlgebraError, match="solution"):
        field.solve(numbers(field, MATRIX[:3, :3]), numbers(field, sp.Matrix([1, 0, 0]))[:, 0])


def test_semisimple_part() -> None:
    """Against a matrix that is made of its parts: S + N with S diagonalizable over a quadratic field, [S, N] = 0."""
    block, change = sp.Matrix([[0, 2], [1, 0]]), sp.Matrix(4, 4, lambda i, j: (i + 1) ** j)
    s = change * sp.diag(block, block) * change.inv()
    n = change * sp.Matrix([[0, 0, 1, 0], [0, 0, 0, 1], [0] * 4, [0] * 4]) * change.inv()
    assert close(RATIONALS, RATIONALS.semisimple_part(numbers(RATIONALS, s + n)), s)


def test_what_is_divided_by_is_noted() -> None:
    """Numbers are preferred as pivots; those with parameters are taken not to vanish."""
    a = sp.Symbol("a")
    field = RationalFunctions()
    assert len(field.row_space(field.array([[a, 1], [2, 1]], 2))) == 2
    assert [sp.expand(2 * e) for e in field.assumed] == [2 - a]
    assert not len(field.null_space(field.array([[a, 1], [2, 1]], 2)))


def test_killing_form_and_ad() -> None:
    algebra = SE(3).algebra
    exact = exact_structure(algebra)
    assert exact is not None
    for structure in (real_structure(algebra), exact):
        found = structure.field.tensor(structure.killing_form)
        assert torch.allclose(found, algebra.killing_form)
        ads = structure.field.tensor(structure.ad(structure.everything))
        assert torch.allclose(ads, algebra.ad(torch.eye(6, dtype=torch.float64)))


def test_without_flint() -> None:
    """Torch functions as fields need no symbolic package: the decomposition is then found in floating point."""
    code = """
import sys
sys.modules["flint"] = sys.modules["sympy"] = None
import torch
from trivgeo.groups import SE, from_generators
from trivgeo.groups.structure import exact_structure
assert exact_structure(SE(2).algebra) is None
turn = lambda p: torch.stack([-p[..., 1], p[..., 0]], -1)
shifts = [lambda p, i=i: torch.eye(2, dtype=p.dtype)[i].expand_as(p) for i in (0, 1)]
group = from_generators([turn, *shifts], variables=2)
split = group.levi_decomposition
assert (len(split.semisimple), len(split.torus), len(split.ideal)) == (0, 1, 2)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("seed", range(3))
def test_weights_that_are_no_fractions(seed: int) -> None:
    """A torus with random real weights on a plane, in a random basis: decomposed in floating point."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    constants = torch.zeros(6, 6, 6, dtype=torch.float64)
    for i in range(2):
        for j in range(4):
            constants[i, 2 + j, 2 + j], constants[2 + j, i, 2 + j] = weights[i, j], -weights[i, j]
    basis = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))[0]
    split = find_split(LieAlgebra(constants).rescaled(basis))
    assert (len(split.semisimple), len(split.torus), len(split.ideal)) == (0, 2, 4)
    # the ideal is that of the four weight vectors
    assert float((split.ideal @ basis)[:, :2].abs().max()) < 1e-9
