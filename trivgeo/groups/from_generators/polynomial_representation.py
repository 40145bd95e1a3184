r"""Fibre coordinates as members of finite-dimensional spaces of functions, on which elements are matrices.

Let fields X move the logarithm of a base's denominator by :math:`X_v \log\varphi = \mu_v(x)`, the last row of the
matrices of the base at x (see `TriangularFlow`). A space of functions :math:`\varphi^m F_i` that holds
:math:`\varphi^m` and is mapped into itself by all fields is a representation :math:`\rho` of the group, and so

.. math:: F_i(g.z) = (\rho(g) F(z))_i / (\rho(g) F(z))_0, \quad F_0 = 1.

A coordinate u is such an F itself (u and t u - x of Burgers' equation), or moves by :math:`u' = A(x) u` with commuting
A, or :math:`u' = b(x)`: then there is a formal coordinate s with :math:`X_v s = A_v - w \mu_v` for some power w, among
such functions (s and t s + x^2 of the heat equation), and the image of s = 0 is the summand of g in log u, up to
:math:`w \log d`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo.groups.from_generators.span import DENOMINATOR

_COEFFICIENT_ROUNDING = 1e-11  # rounding error of a coefficient
_CANCELLED_SUM = 1e-10  # size of a sum that counts as zero, relative to its terms
_MAX_FUNCTIONS = 20  # functions in a space
_MAX_DEGREE = 8  # degree of these functions
_FIELD_DEGREES = (2, 3, 4)  # bounds of the degree of polynomial fields, tried in this order
_DENOMINATOR_POWERS = (0, 1, 2, 3, 4)  # m of a space of functions phi^m F
_MAX_COMMUTATOR = 1e-9  # largest entry of a commutator of matrices that commute
_MAX_RESIDUAL = 1e-8  # residual of a consistent linear system, and rounding error of its solution, both relative
_MIN_PIVOT = 1e-10  # largest entry of an independent row after elimination, relative to the entry before
_NUM_VECTORS = 4  # random vectors of a Levi factor whose fixed points give equations for the powers

Polynomial = Mapping[tuple[int, ...], float]


@dataclass(frozen=True)
class Multiplier:
    """The logarithmic derivative mu of the denominator of a base along the fields.

    Attributes:
        index: the position of the base among all bases.
        rows: the derivative along each field, as a polynomial of all coordinates.
        matrices: the matrices of the base, ``[n, K, K]``.
        form: the quadratic form of its light cone, ``None`` if it has none.
        moves: whether the denominator is not constant.
    """

    index: int
    rows: Sequence[Polynomial]
    matrices: Tensor
    coordinates: tuple[int, ...]
    form: Tensor | None
    moves: bool


@dataclass(frozen=True)
class PolynomialRepresentation:
    r"""Coordinates u that move by a representation on a space of functions.

    Attributes:
        coordinates: the positions of u.
        bases: the positions of the bases that the representation is over.
        matrices: the representation of the fields, ``[n, d, d]``; the first function is one.
        exponents: monomials in all coordinates.
        functions: the functions F in terms of these, ``[d, monomials]``.
        weights: the power w of each base's denominator in each formal coordinate, ``[bases, k]``; ``None`` if u are
            functions themselves.
        generators: the commuting matrices M_j of :math:`u \mapsto \exp(\sum_j s_j M_j) u` for formal coordinates s,
            ``[k, f, f]``; ``None`` if one is added to u, or u are functions themselves.
    """

    coordinates: tuple[int, ...]
    bases: tuple[int, ...]
    matrices: Tensor
    exponents: tuple[tuple[int, ...], ...]
    functions: Tensor
    weights: Tensor | None
    generators: Tensor | None


def find_polynomial_representation(
    points: Tensor,
    values: Tensor,
    needs: Sequence[int],
    group: Sequence[int],
    multipliers: Sequence[Multiplier],
    levi: Tensor,
) -> PolynomialRepresentation | None:
    """The smaller representation of the coordinates ``group``: on functions of them, or on formal coordinates.

    Args:
        points: sample points, ``[p, m]``.
        values: fields there, ``[p, n, m]``.
        needs: the coordinates on which the motion of ``group`` depends, themselves included.
        group: positions of the coordinates u.
        multipliers: multipliers of the bases among ``needs``.
        levi: a Levi factor of the algebra of the fields, rows ``[r, n]``.

    Returns:
        The representation; ``None`` if none on few functions exists.
    """
    components = _fitted(points, values, sorted(needs))
    if components is None:
        return None
    m = points.shape[-1]
    units = [tuple(int(c == u) for c in range(m)) for u in group]
    direct = _closed(components, multipliers, units)
    formal = _formal(components, multipliers, needs, group, levi)
    if direct is not None and (formal is None or len(direct[0]) <= len(formal.functions)):
        return PolynomialRepresentation(tuple(group), _base_indices(multipliers), *_packed(*direct), None, None)
    return formal


def _formal(
    components: Sequence[Sequence[Polynomial]],
    multipliers: Sequence[Multiplier],
    needs: Sequence[int],
    group: Sequence[int],
    levi: Tensor,
) -> PolynomialRepresentation | None:
    """The representation on formal coordinates, ``None`` if there is none."""
    found = _formal_fields(components, group)
    if found is None:
        return None
    moves, generators = found
    m, count = len(components[0]), len(moves[0])
    others = set(needs) - set(group) - {c for multiplier in multipliers for c in multiplier.coordinates}
    weights = torch.zeros(len(multipliers), count, dtype=torch.float64)
    for j in range(count):
        w = _powers([move[j] for move in moves], components, multipliers, others, levi)
        if w is None:
            return None
        weights[:, j] = w
    extended: list[list[Polynomial]] = []
    for i, (row, move) in enumerate(zip(components, moves, strict=True)):
        rest = []
        for j, p in enumerate(move):
            total = _PolynomialSum()
            total.add(p, 1.0)
            for multiplier, w in zip(multipliers, weights[:, j].tolist(), strict=True):
                if w:
                    total.add(multiplier.rows[i], -w)
            rest.append(_in_more_variables(total.result(), count))
        extended.append([*(_in_more_variables(p, count) for p in row), *rest])
    units = [(0,) * m + tuple(int(a == j) for a in range(count)) for j in range(count)]
    longer = [
        replace(multiplier, rows=[_in_more_variables(p, count) for p in multiplier.rows]) for multiplier in multipliers
    ]
    closed = _closed(extended, longer, units)
    if closed is None:
        return None
    functions, matrices = closed
    plain = [{e[:m]: value for e, value in f.items() if not any(e[m:])} for f in functions]
    return PolynomialRepresentation(
        tuple(group), _base_indices(multipliers), *_packed(plain, matrices), weights, generators
    )


def _base_indices(multipliers: Sequence[Multiplier]) -> tuple[int, ...]:
    return tuple(multiplier.index for multiplier in multipliers)


def _packed(functions: Sequence[Polynomial], matrices: Tensor) -> tuple[Tensor, tuple[tuple[int, ...], ...], Tensor]:
    exponents = tuple(sorted({e for f in functions for e in f}))
    table = [[f.get(e, 0.0) for e in exponents] for f in functions]
    return matrices, exponents, torch.tensor(table, dtype=torch.float64).reshape(len(functions), len(exponents))


def _fitted(points: Tensor, values: Tensor, needs: Sequence[int]) -> list[list[Polynomial]] | None:
    """Components ``needs`` of all fields as polynomials of these coordinates, ``None`` if their degree is not low."""
    m, n = points.shape[-1], values.shape[1]
    goal = values[..., list(needs)]
    flat = goal.flatten(1)
    size = flat.abs().amax(0).clamp(min=1e-300)
    for degree in _FIELD_DEGREES:
        exponents = [e for e in itertools.product(range(degree + 1), repeat=len(needs)) if sum(e) <= degree]
        if len(points) < 2 * len(exponents):
            return None
        whole = torch.tensor(exponents, dtype=points.dtype)
        design = (points[:, None, list(needs)] ** whole).prod(-1)
        solution = torch.linalg.lstsq(design, flat, driver="gelsd").solution
        if bool(
            (
                (design @ solution - flat).abs().amax(0) <= _COEFFICIENT_ROUNDING * size + 1e-14 * values.abs().max()
            ).all()
        ):
            break
    else:
        return None
    near = (DENOMINATOR * solution).round() / DENOMINATOR
    solution = torch.where((solution - near).abs() < _COEFFICIENT_ROUNDING * size, near, solution)
    table = solution.reshape(len(exponents), n, len(needs)).tolist()
    result: list[list[Polynomial]] = []
    for i in range(n):
        row: list[Polynomial] = [{} for _ in range(m)]
        for place, c in enumerate(needs):
            entries = {e: table[k][i][place] for k, e in enumerate(exponents)}
            row[c] = {_spread(e, needs, m): value for e, value in entries.items() if value}
        result.append(row)
    return result


def _spread(e: Sequence[int], needs: Sequence[int], m: int) -> tuple[int, ...]:
    powers = dict(zip(needs, e, strict=True))
    return tuple(powers.get(c, 0) for c in range(m))


def _closed(
    fields: Sequence[Sequence[Polynomial]], multipliers: Sequence[Multiplier], units: Sequence[tuple[int, ...]]
) -> tuple[list[Polynomial], Tensor] | None:
    """The first space of functions phi^m F that holds the monomials ``units``, and its representation ``[n, d, d]``."""
    local = [multiplier for multiplier in multipliers if multiplier.moves]
    for powers in sorted(itertools.product(_DENOMINATOR_POWERS, repeat=len(local)), key=sum):
        found = _closure(
            fields, [(multiplier.rows, power) for multiplier, power in zip(local, powers, strict=True)], units
        )
        if found is not None:
            return found
    return None


def _closure(
    fields: Sequence[Sequence[Polynomial]],
    factors: Sequence[tuple[Sequence[Polynomial], int]],
    units: Sequence[tuple[int, ...]],
) -> tuple[list[Polynomial], Tensor] | None:
    """The space that fields generate from one and the monomials ``units``, times powers of denominators."""
    one = (0,) * len(units[0])
    functions: list[Polynomial] = [{one: 1.0}, *({unit: 1.0} for unit in units)]
    pivots = [one, *units]
    images: list[list[dict[int, float]]] = []
    while len(images) < len(functions):
        f, row = functions[len(images)], []
        for i, components in enumerate(fields):
            image = _derivative_along(components, f)
            for rows, power in factors:
                for e, value in rows[i].items():
                    image.add(f, power * value, e)
            parts: dict[int, float] = {}
            for k, pivot in enumerate(pivots):  # each function is zero at the pivots of earlier ones
                weight = image.result().get(pivot, 0.0)
                if weight:
                    parts[k] = weight
                    image.add(functions[k], -weight)
            rest = image.result()
            if rest:
                pivot = max(rest, key=lambda e: (abs(rest[e]), e))
                if len(functions) == _MAX_FUNCTIONS or max(map(sum, rest)) > _MAX_DEGREE:
                    return None
                parts[len(pivots)] = rest[pivot]
                functions.append(_rounded({e: value / rest[pivot] for e, value in rest.items()}))
                pivots.append(pivot)
            row.append(parts)
        images.append(row)
    matrices = torch.zeros(len(fields), len(functions), len(functions), dtype=torch.float64)
    for a, row in enumerate(images):
        for i, parts in enumerate(row):
            for k, value in parts.items():
                matrices[i, a, k] = value
    return functions, matrices


def _formal_fields(
    components: Sequence[Sequence[Polynomial]], group: Sequence[int]
) -> tuple[list[list[dict[tuple[int, ...], float]]], Tensor | None] | None:
    """The components of each field in formal coordinates s, and the matrices M_j of u -> exp(sum s_j M_j) u.

    The matrices are ``None`` if a formal coordinate is added to u. The result is ``None`` if the coordinates neither
    move by u' = A u with commuting A, nor, a single one, by u' = b.
    """
    f, n = len(group), len(components)
    entries: list[dict[tuple[int, ...], Tensor]] = [{} for _ in range(n)]  # monomials of x: the matrix A
    shifts: list[dict[tuple[int, ...], float]] = [{} for _ in range(n)]
    for i, row in enumerate(components):
        for a, c in enumerate(group):
            for e, value in row[c].items():
                inside = [b for b, u in enumerate(group) if e[u]]
                if not inside and f == 1:
                    shifts[i][e] = value
                    continue
                if len(inside) != 1 or e[group[inside[0]]] != 1:
                    return None
                u = group[inside[0]]
                x = (*e[:u], 0, *e[u + 1 :])
                matrix = entries[i].setdefault(x, torch.zeros(f, f, dtype=torch.float64))
                matrix[a, inside[0]] += value
    if any(shifts):
        return None if any(entries) else ([[shift] for shift in shifts], None)
    flat = [matrix.flatten() for row in entries for matrix in row.values()]
    if not flat:
        return None
    basis, pivots = _row_reduced(torch.stack(flat))
    generators = basis.unflatten(-1, (f, f))
    products = generators.unsqueeze(0) @ generators.unsqueeze(1)
    if float((products - products.transpose(0, 1)).abs().max()) > _MAX_COMMUTATOR:
        return None
    moves = []
    for polynomials in entries:
        weights = {e: matrix.flatten()[pivots].tolist() for e, matrix in polynomials.items()}
        moves.append([{e: w[j] for e, w in weights.items() if w[j]} for j in range(len(basis))])
    return moves, generators


def _row_reduced(rows: Tensor) -> tuple[Tensor, list[int]]:
    """A row-reduced basis of the span of rows, and the pivots."""
    result: list[Tensor] = []
    pivots: list[int] = []
    for row in sorted(rows, key=lambda row: float(row.abs().max()), reverse=True):
        rest = row
        for other, pivot in zip(result, pivots, strict=True):
            rest = rest - rest[pivot] * other
        if float(rest.abs().max()) <= _MIN_PIVOT * float(row.abs().max()):
            continue
        pivot = int(rest.abs().argmax())
        new = rest / rest[pivot]
        result = [*(other - other[pivot] * new for other in result), new]
        pivots.append(pivot)
    return torch.stack(result), pivots


def _powers(
    move: Sequence[Polynomial],
    components: Sequence[Sequence[Polynomial]],
    multipliers: Sequence[Multiplier],
    others: Iterable[int],
    levi: Tensor,
) -> Tensor | None:
    r"""Powers w of denominators for which :math:`A_v - \sum w \mu_v` may belong to a finite-dimensional representation.

    The polynomial is constant if possible. Else it vanishes at fixed points of elements of a Levi factor: these are
    diagonalizable in such a representation, in which s and one do not span a Jordan block.
    """
    result = torch.zeros(len(multipliers), dtype=torch.float64)
    local = [i for i, multiplier in enumerate(multipliers) if multiplier.moves]
    if not local:
        return result
    rows = [multipliers[i].rows for i in local]
    places = sorted({e for p in (*move, *itertools.chain(*rows)) for e in p if any(e)})
    design = torch.tensor(
        [[row[i].get(e, 0.0) for row in rows] for i in range(len(move)) for e in places], dtype=torch.float64
    )
    goal = torch.tensor([p.get(e, 0.0) for p in move for e in places], dtype=torch.float64)
    w = _solution(design, goal)
    if w is None and len(levi):
        generator = torch.Generator().manual_seed(0)
        left: list[list[complex]] = []
        right: list[complex] = []
        for v in normal((_NUM_VECTORS, len(levi)), levi, generator) @ levi:
            for place, values in _fixed_points(v, multipliers):
                left.append([values[i] for i in local])
                whole = place | _fixed_affine(v.tolist(), components, place, sorted(others))
                right.append(sum((w * _evaluated(p, whole) for w, p in zip(v.tolist(), move, strict=True)), start=0j))
        if not left:
            return None
        a, b = torch.tensor(left, dtype=torch.complex128), torch.tensor(right, dtype=torch.complex128)
        w = _solution(torch.cat([a.real, a.imag]), torch.cat([b.real, b.imag]))
        if w is None:
            return None
    if w is not None:
        near = (DENOMINATOR * w).round() / DENOMINATOR
        result[local] = torch.where((w - near).abs() < _MAX_RESIDUAL, near, w)
    return result


def _fixed_affine(
    v: Sequence[float], components: Sequence[Sequence[Polynomial]], place: Mapping[int, complex], others: Sequence[int]
) -> dict[int, complex]:
    """The values of coordinates ``others``, which move affinely, at a fixed point of a field over ``place``."""

    def field(z: Sequence[complex]) -> Tensor:
        whole = {**place, **dict(zip(others, z, strict=True))}
        rows = [[w * _evaluated(row[c], whole) for c in others] for w, row in zip(v, components, strict=True)]
        return torch.tensor(rows, dtype=torch.complex128).sum(0)

    if not others:
        return {}
    unit = torch.eye(len(others)).tolist()
    shift = field([0j] * len(others))
    slope = torch.stack([field(row) - shift for row in unit], -1)
    return dict(zip(others, torch.linalg.lstsq(slope, -shift[:, None]).solution[:, 0].tolist(), strict=True))


def _solution(matrix: Tensor, right: Tensor) -> Tensor | None:
    """The least-squares solution of equations, ``None`` if its residual is not small."""
    solution = torch.linalg.lstsq(matrix, right[:, None], driver="gelsd").solution[:, 0]
    missed = (matrix @ solution - right).abs().amax()
    return solution if float(missed) <= _MAX_RESIDUAL * max(1.0, float(right.abs().amax())) else None


def _fixed_points(v: Tensor, multipliers: Sequence[Multiplier]) -> Iterator[tuple[dict[int, complex], list[complex]]]:
    """Real or complex fixed points of a field in the bases, and its multipliers there."""
    choices = []
    for multiplier in multipliers:
        values, vectors = torch.linalg.eig(torch.einsum("i,iab->ab", v, multiplier.matrices))
        k = len(multiplier.coordinates)
        found = []
        for value, vector in zip(values.tolist(), vectors.T, strict=True):
            if float(vector[-1].abs()) < 1e-6:
                continue
            x = vector[:k] / vector[-1]
            if multiplier.form is not None:
                q = x @ multiplier.form.to(x) @ x
                if float((vector[k] / vector[-1] - q).abs()) > _MAX_RESIDUAL * (1.0 + float(q.abs())):
                    continue
            found.append((dict(zip(multiplier.coordinates, x.tolist(), strict=True)), value))
        choices.append(found)
    for combination in itertools.product(*choices):
        place = {c: x for part, _ in combination for c, x in part.items()}
        yield place, [value for _, value in combination]


class _PolynomialSum:
    """A sum of polynomials, with the sizes of terms that may cancel."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, ...], float] = {}
        self.sizes: dict[tuple[int, ...], float] = {}

    def add(self, p: Polynomial, factor: float, shift: tuple[int, ...] | None = None) -> None:
        """Add ``factor`` times the polynomial ``p``, and times the monomial with exponents ``shift``."""
        for e, value in p.items():
            place = e if shift is None else tuple(a + b for a, b in zip(e, shift, strict=True))
            self.values[place] = self.values.get(place, 0.0) + factor * value
            self.sizes[place] = self.sizes.get(place, 0.0) + abs(factor * value)

    def result(self) -> dict[tuple[int, ...], float]:
        """The sum, without coefficients that are rounding errors."""
        return {e: value for e, value in self.values.items() if abs(value) > _CANCELLED_SUM * self.sizes[e]}


def _derivative_along(components: Sequence[Polynomial], function: Polynomial) -> _PolynomialSum:
    """The derivative of the polynomial ``function`` along the field with polynomial ``components``."""
    total = _PolynomialSum()
    for e, factor in function.items():
        for c, power in enumerate(e):
            if power:
                total.add(components[c], power * factor, (*e[:c], power - 1, *e[c + 1 :]))
    return total


def _in_more_variables(p: Polynomial, count: int) -> dict[tuple[int, ...], float]:
    """The polynomial p with exponents for ``count`` more coordinates, all zero."""
    return {(*e, *(0,) * count): value for e, value in p.items()}


def _rounded(p: Polynomial) -> dict[tuple[int, ...], float]:
    """The polynomial p with coefficients within rounding of simple fractions set to these."""
    result = {}
    for e, value in p.items():
        near = round(DENOMINATOR * value) / DENOMINATOR
        result[e] = near if abs(value - near) < _COEFFICIENT_ROUNDING else value
    return {e: value for e, value in result.items() if value}


def _evaluated(p: Polynomial, place: Mapping[int, complex]) -> complex:
    """The value of the polynomial p at the point ``place``, coordinates by number."""
    return sum((value * math.prod(place[c] ** k for c, k in enumerate(e) if k) for e, value in p.items()), start=0j)
