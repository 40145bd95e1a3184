r"""Coordinates over others that have a closed form, as entries of vectors that elements move linearly.

Let fields X move the logarithm of a base's denominator by :math:`X_v \log\varphi = \mu_v(x)`, the last row of the
matrices of the base at x (see `TriangularFlow`). A space of functions :math:`\varphi^m F_i` that holds
:math:`\varphi^m` and is mapped into itself by all fields is a representation :math:`\rho` of the group, and so

.. math:: F_i(g.z) = (\rho(g) F(z))_i / (\rho(g) F(z))_0, \quad F_0 = 1.

A coordinate u is such an F itself (u and t u - x of Burgers' equation), or moves by :math:`u' = A(x) u` with commuting
A, or :math:`u' = b(x)`: then there is a formal coordinate s with :math:`X_v s = A_v - w \mu_v` for some power w, among
such functions (s and t s + x^2 of the heat equation), and s = 0 goes to what g adds to log u, but for
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

__all__ = ["Multiplier", "PolynomialRepresentation", "find_polynomial_representation"]

Polynomial = Mapping[tuple[int, ...], float]

_LARGEST = 20  # functions in a space
_DEGREES = (2, 3, 4)  # of fields
_MOST_DEGREE = 8  # of functions
_POWERS = (0, 1, 2, 3, 4)
_FIT, _VANISHES, _DUST, _NEAR = 1e-9, 1e-10, 1e-11, 1e-8
_TRIES = 4


@dataclass(frozen=True)
class Multiplier:
    """A base, and how fields move the logarithm of its denominator.

    Attributes:
        index: its position among all bases.
        rows: the last rows of its matrices, as polynomials of all coordinates, one for each field.
        matrices: the matrices, ``[n, K, K]``.
        coordinates: of the base.
        form: the quadratic form of its lift, if any.
        moves: whether its denominator is not constant.
    """

    index: int
    rows: Sequence[Polynomial]
    matrices: Tensor
    coordinates: tuple[int, ...]
    form: Tensor | None
    moves: bool


@dataclass(frozen=True)
class PolynomialRepresentation:
    r"""Coordinates u that move by a representation.

    Attributes:
        coordinates: their positions.
        bases: those that the representation is over, by position.
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


class _Sum:
    """A polynomial that is added up, with the sizes of what may cancel."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, ...], float] = {}
        self.sizes: dict[tuple[int, ...], float] = {}

    def add(self, p: Polynomial, factor: float, shift: tuple[int, ...] | None = None) -> None:
        """Add a multiple, times a monomial."""
        for e, value in p.items():
            place = e if shift is None else tuple(a + b for a, b in zip(e, shift, strict=True))
            self.values[place] = self.values.get(place, 0.0) + factor * value
            self.sizes[place] = self.sizes.get(place, 0.0) + abs(factor * value)

    def result(self) -> dict[tuple[int, ...], float]:
        """The sum, without what cancels but for rounding."""
        return {e: value for e, value in self.values.items() if abs(value) > _VANISHES * self.sizes[e]}


def _along(components: Sequence[Polynomial], function: Polynomial) -> _Sum:
    """The derivative of a function along a field."""
    total = _Sum()
    for e, factor in function.items():
        for c, power in enumerate(e):
            if power:
                total.add(components[c], power * factor, (*e[:c], power - 1, *e[c + 1 :]))
    return total


def find_polynomial_representation(
    points: Tensor,
    values: Tensor,
    needs: Sequence[int],
    group: Sequence[int],
    lines: Sequence[Multiplier],
    levi: Tensor,
) -> PolynomialRepresentation | None:
    """The smaller module of some coordinates, if there is a small one.

    Args:
        points: sample points, ``[p, m]``.
        values: see `fit_projective`.
        needs: the coordinates on which theirs depend, themselves included.
        group: the coordinates.
        lines: the bases among ``needs``.
        levi: a Levi factor of the algebra of the fields, rows ``[r, n]``.
    """
    components = _fitted(points, values, sorted(needs))
    if components is None:
        return None
    m = points.shape[-1]
    units = [tuple(int(c == u) for c in range(m)) for u in group]
    direct = _closed(components, lines, units)
    formal = _formal(components, lines, needs, group, levi)
    if direct is not None and (formal is None or len(direct[0]) <= len(formal.functions)):
        return PolynomialRepresentation(tuple(group), _indices(lines), *_packed(*direct), None, None)
    return formal


def _formal(
    components: Sequence[Sequence[Polynomial]],
    lines: Sequence[Multiplier],
    needs: Sequence[int],
    group: Sequence[int],
    levi: Tensor,
) -> PolynomialRepresentation | None:
    """The module of formal coordinates."""
    found = _parts(components, group)
    if found is None:
        return None
    moves, parts = found
    m, count = len(components[0]), len(moves[0])
    others = set(needs) - set(group) - {c for line in lines for c in line.coordinates}
    weights = torch.zeros(len(lines), count, dtype=torch.float64)
    for j in range(count):
        w = _powers([move[j] for move in moves], components, lines, others, levi)
        if w is None:
            return None
        weights[:, j] = w
    extended: list[list[Polynomial]] = []
    for i, (row, move) in enumerate(zip(components, moves, strict=True)):
        rest = []
        for j, p in enumerate(move):
            total = _Sum()
            total.add(p, 1.0)
            for line, w in zip(lines, weights[:, j].tolist(), strict=True):
                if w:
                    total.add(line.rows[i], -w)
            rest.append(_longer(total.result(), count))
        extended.append([*(_longer(p, count) for p in row), *rest])
    units = [(0,) * m + tuple(int(a == j) for a in range(count)) for j in range(count)]
    longer = [replace(line, rows=[_longer(p, count) for p in line.rows]) for line in lines]
    closed = _closed(extended, longer, units)
    if closed is None:
        return None
    functions, matrices = closed
    plain = [{e[:m]: value for e, value in f.items() if not any(e[m:])} for f in functions]
    return PolynomialRepresentation(tuple(group), _indices(lines), *_packed(plain, matrices), weights, parts)


def _indices(lines: Sequence[Multiplier]) -> tuple[int, ...]:
    return tuple(line.index for line in lines)


def _longer(p: Polynomial, count: int) -> dict[tuple[int, ...], float]:
    return {(*e, *(0,) * count): value for e, value in p.items()}


def _packed(functions: Sequence[Polynomial], matrices: Tensor) -> tuple[Tensor, tuple[tuple[int, ...], ...], Tensor]:
    exponents = tuple(sorted({e for f in functions for e in f}))
    table = [[f.get(e, 0.0) for e in exponents] for f in functions]
    return matrices, exponents, torch.tensor(table, dtype=torch.float64).reshape(len(functions), len(exponents))


def _fitted(points: Tensor, values: Tensor, needs: Sequence[int]) -> list[list[Polynomial]] | None:
    """The components of all fields as polynomials in some coordinates, ``None`` if they are none of low degree."""
    m, n = points.shape[-1], values.shape[1]
    goal = values[..., list(needs)]
    flat = goal.flatten(1)
    size = flat.abs().amax(0).clamp(min=1e-300)
    for degree in _DEGREES:
        exponents = [e for e in itertools.product(range(degree + 1), repeat=len(needs)) if sum(e) <= degree]
        if len(points) < 2 * len(exponents):
            return None
        whole = torch.tensor(exponents, dtype=points.dtype)
        design = (points[:, None, list(needs)] ** whole).prod(-1)
        solution = torch.linalg.lstsq(design, flat, driver="gelsd").solution
        if bool(((design @ solution - flat).abs().amax(0) <= _DUST * size + 1e-14 * values.abs().max()).all()):
            break
    else:
        return None
    near = (12.0 * solution).round() / 12.0
    solution = torch.where((solution - near).abs() < _DUST * size, near, solution)
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
    fields: Sequence[Sequence[Polynomial]], lines: Sequence[Multiplier], units: Sequence[tuple[int, ...]]
) -> tuple[list[Polynomial], Tensor] | None:
    """The first space that holds one and these coordinates, with the representation ``[n, d, d]``."""
    local = [line for line in lines if line.moves]
    for powers in sorted(itertools.product(_POWERS, repeat=len(local)), key=sum):
        found = _closure(fields, [(line.rows, power) for line, power in zip(local, powers, strict=True)], units)
        if found is not None:
            return found
    return None


def _closure(
    fields: Sequence[Sequence[Polynomial]],
    factors: Sequence[tuple[Sequence[Polynomial], int]],
    units: Sequence[tuple[int, ...]],
) -> tuple[list[Polynomial], Tensor] | None:
    """The space that fields generate from one and coordinates, times powers of denominators."""
    one = (0,) * len(units[0])
    functions: list[Polynomial] = [{one: 1.0}, *({unit: 1.0} for unit in units)]
    pivots = [one, *units]
    images: list[list[dict[int, float]]] = []
    while len(images) < len(functions):
        f, row = functions[len(images)], []
        for i, components in enumerate(fields):
            image = _along(components, f)
            for rows, power in factors:
                for e, value in rows[i].items():
                    image.add(f, power * value, e)
            parts: dict[int, float] = {}
            for k, pivot in enumerate(pivots):  # functions lack the pivots of those before
                weight = image.result().get(pivot, 0.0)
                if weight:
                    parts[k] = weight
                    image.add(functions[k], -weight)
            rest = image.result()
            if rest:
                pivot = max(rest, key=lambda e: (abs(rest[e]), e))
                if len(functions) == _LARGEST or max(map(sum, rest)) > _MOST_DEGREE:
                    return None
                parts[len(pivots)] = rest[pivot]
                functions.append(_clean({e: value / rest[pivot] for e, value in rest.items()}))
                pivots.append(pivot)
            row.append(parts)
        images.append(row)
    matrices = torch.zeros(len(fields), len(functions), len(functions), dtype=torch.float64)
    for a, row in enumerate(images):
        for i, parts in enumerate(row):
            for k, value in parts.items():
                matrices[i, a, k] = value
    return functions, matrices


def _clean(p: Polynomial) -> dict[tuple[int, ...], float]:
    """Without rounding dust."""
    result = {}
    for e, value in p.items():
        near = round(12.0 * value) / 12.0
        result[e] = near if abs(value - near) < _DUST else value
    return {e: value for e, value in result.items() if value}


def _parts(
    components: Sequence[Sequence[Polynomial]], group: Sequence[int]
) -> tuple[list[list[dict[tuple[int, ...], float]]], Tensor | None] | None:
    """What formal coordinates move by, field by field, and the matrices that they are multiplied with.

    ``None`` if the coordinates neither move by u' = A u with commuting A, nor (one of them) by u' = b.
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
    parts = basis.unflatten(-1, (f, f))
    products = parts.unsqueeze(0) @ parts.unsqueeze(1)
    if float((products - products.transpose(0, 1)).abs().max()) > _FIT:
        return None
    moves = []
    for parts_of in entries:
        weights = {e: matrix.flatten()[pivots].tolist() for e, matrix in parts_of.items()}
        moves.append([{e: w[j] for e, w in weights.items() if w[j]} for j in range(len(basis))])
    return moves, parts


def _row_reduced(rows: Tensor) -> tuple[Tensor, list[int]]:
    """A basis of the span of rows, and for each the place of a one where the others are zero."""
    result: list[Tensor] = []
    pivots: list[int] = []
    for row in sorted(rows, key=lambda row: float(row.abs().max()), reverse=True):
        rest = row
        for other, pivot in zip(result, pivots, strict=True):
            rest = rest - rest[pivot] * other
        if float(rest.abs().max()) <= _VANISHES * float(row.abs().max()):
            continue
        pivot = int(rest.abs().argmax())
        new = rest / rest[pivot]
        result = [*(other - other[pivot] * new for other in result), new]
        pivots.append(pivot)
    return torch.stack(result), pivots


def _powers(
    move: Sequence[Polynomial],
    components: Sequence[Sequence[Polynomial]],
    lines: Sequence[Multiplier],
    others: Iterable[int],
    levi: Tensor,
) -> Tensor | None:
    r"""The w for which :math:`A_v - \sum w \mu_v` may belong to a finite-dimensional representation, one for each base.

    Constant if possible. Else it vanishes wherever elements of a Levi factor leave points where they are: they are
    diagonalizable in such a representation, in which s and one are no Jordan block of theirs.
    """
    result = torch.zeros(len(lines), dtype=torch.float64)
    local = [i for i, line in enumerate(lines) if line.moves]
    if not local:
        return result
    rows = [lines[i].rows for i in local]
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
        for v in normal((_TRIES, len(levi)), levi, generator) @ levi:
            for place, values in _fixed_points(v, lines):
                left.append([values[i] for i in local])
                whole = place | _still(v.tolist(), components, place, sorted(others))
                right.append(sum((w * _value(p, whole) for w, p in zip(v.tolist(), move, strict=True)), start=0j))
        if not left:
            return None
        a, b = torch.tensor(left, dtype=torch.complex128), torch.tensor(right, dtype=torch.complex128)
        w = _solution(torch.cat([a.real, a.imag]), torch.cat([b.real, b.imag]))
        if w is None:
            return None
    if w is not None:
        near = (12.0 * w).round() / 12.0
        result[local] = torch.where((w - near).abs() < _NEAR, near, w)
    return result


def _still(
    v: Sequence[float], components: Sequence[Sequence[Polynomial]], place: Mapping[int, complex], others: Sequence[int]
) -> dict[int, complex]:
    """Other coordinates, that move affinely, where a field does not move them."""

    def field(z: Sequence[complex]) -> Tensor:
        whole = {**place, **dict(zip(others, z, strict=True))}
        rows = [[w * _value(row[c], whole) for c in others] for w, row in zip(v, components, strict=True)]
        return torch.tensor(rows, dtype=torch.complex128).sum(0)

    if not others:
        return {}
    unit = torch.eye(len(others)).tolist()
    shift = field([0j] * len(others))
    slope = torch.stack([field(row) - shift for row in unit], -1)
    return dict(zip(others, torch.linalg.lstsq(slope, -shift[:, None]).solution[:, 0].tolist(), strict=True))


def _value(p: Polynomial, place: Mapping[int, complex]) -> complex:
    return sum((value * math.prod(place[c] ** k for c, k in enumerate(e) if k) for e, value in p.items()), start=0j)


def _solution(matrix: Tensor, right: Tensor) -> Tensor | None:
    """The solution of equations that have one."""
    solution = torch.linalg.lstsq(matrix, right[:, None], driver="gelsd").solution[:, 0]
    missed = (matrix @ solution - right).abs().amax()
    return solution if float(missed) <= _NEAR * max(1.0, float(right.abs().amax())) else None


def _fixed_points(v: Tensor, lines: Sequence[Multiplier]) -> Iterator[tuple[dict[int, complex], list[complex]]]:
    """Points that a field leaves where they are, maybe complex ones, and how it moves the denominators there."""
    choices = []
    for line in lines:
        values, vectors = torch.linalg.eig(torch.einsum("i,iab->ab", v, line.matrices))
        k = len(line.coordinates)
        found = []
        for value, vector in zip(values.tolist(), vectors.T, strict=True):
            if float(vector[-1].abs()) < 1e-6:
                continue
            x = vector[:k] / vector[-1]
            if line.form is not None:
                q = x @ line.form.to(x) @ x
                if float((vector[k] / vector[-1] - q).abs()) > _NEAR * (1.0 + float(q.abs())):
                    continue
            found.append((dict(zip(line.coordinates, x.tolist(), strict=True)), value))
        choices.append(found)
    for combination in itertools.product(*choices):
        place = {c: x for part, _ in combination for c, x in part.items()}
        yield place, [value for _, value in combination]
