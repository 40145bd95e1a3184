r"""Structure theory of real Lie algebras: series, centre, radical, nilradical, Levi factor, reductive complement.

A subspace is a matrix of rows, ``[k, n]``, float64, in row-reduced form, so that subspaces spanned by basis vectors
come out as basis vectors. Decompositions of algebras with rational constants are exact
(`trivgeo.groups.exact_algebra`). For others ranks are decided in floating point, relative to the largest singular
value; functions that need a decomposition to exist say so when it is not found.

Sources: W. A. de Graaf, Lie Algebras: Theory and Algorithms (2000), sections 2.2, 3.2, 4.13; D. Rand, P. Winternitz
and H. Zassenhaus, Linear Algebra Appl. 109 (1988); G. D. Mostow, Amer. J. Math. 78 (1956).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from trivgeo._random import integers
from trivgeo.errors import AlgebraError
from trivgeo.groups.algebra import LieAlgebra, balanced
from trivgeo.groups.exact_algebra import RationalAlgebra

__all__ = [
    "LeviDecomposition",
    "centre",
    "check_split",
    "derived_series",
    "find_split",
    "levi_factor",
    "nilradical",
    "radical",
    "rational",
    "subalgebra",
]

_RANK_TOLERANCE = 1e-9  # of singular values, relative to the largest
_ZERO_TOLERANCE = 1e-11  # of entries of reduced rows
_MAX_DENOMINATOR = 1000  # of a constant that is taken to be rational
_RATIONAL_TOLERANCE = 1e-12  # between such a constant and the fraction


@dataclass(frozen=True)
class LeviDecomposition:
    r"""A decomposition :math:`\mathfrak g = (\mathfrak s \oplus \mathfrak t) \ltimes \mathfrak n`.

    Some solvable algebras do not split over their nilradical n, such as [x, a] = a, [y, b] = b, [x, y] = z. Their t
    commutes with s but is no subalgebra, and ``derivations`` are the semisimple parts D of ad(x) for its rows x, which
    commute with each other and with ad(s). With them added the algebra splits: the x - D and n span a nilpotent ideal
    (Malcev 1945).

    Attributes:
        semisimple: rows that span the semisimple algebra s, ``[r, n]``.
        torus: rows that span t, abelian and commuting with s, ``[k, n]``.
        ideal: rows that span the nilpotent ideal n, ``[d, n]``.
        derivations: ``None``, or matrices ``[k, n, n]`` that act on columns, for an algebra that does not split.
    """

    semisimple: Tensor
    torus: Tensor
    ideal: Tensor
    derivations: Tensor | None = None

    @property
    def complement(self) -> Tensor:
        """Rows that span h = s + t."""
        return torch.cat([self.semisimple, self.torus])


# Subspaces as rows ---------------------------------------------------------------------------------------------


def row_reduce(rows: Tensor, size: float = 0.0) -> Tensor:
    """Independent rows with the same span, reduced with full pivoting and ordered by pivot; rounding dust removed.

    Args:
        rows: any rows, ``[k, n]``.
        size: what rows that are not zero are expected to measure, so that nothing but dust counts as zero.
    """
    if not rows.numel():
        return rows[:0]
    _, singular, a = torch.linalg.svd(rows, full_matrices=False)
    rank = int((singular > max(_RANK_TOLERANCE * max(size, float(singular[0])), 1e-300)).sum())
    a, n = a[:rank], rows.shape[-1]
    pivots: list[int] = []
    for done in range(rank):
        # Among entries near the largest, the first: basis vectors that lie in the span are then kept as they are.
        rest = a[done:].abs()
        row, column = divmod(int((rest > 0.999 * rest.max()).flatten().int().argmax()), n)
        row += done
        a[[done, row]] = a[[row, done]]
        a[done] = a[done] / a[done, column]
        others = torch.arange(rank) != done
        a[others] = a[others] - a[others, column : column + 1] * a[done]
        a[others, column] = 0.0
        pivots.append(column)
    a = a[torch.tensor(pivots, dtype=torch.long).argsort()]
    a = torch.where((a - a.round()).abs() < _ZERO_TOLERANCE, a.round(), a)
    return torch.where(a.abs() < _ZERO_TOLERANCE, 0.0, a)


def null_space(matrix: Tensor, size: float = 1.0) -> Tensor:
    """Rows that span ``{x : matrix x = 0}``.

    Args:
        matrix: ``[k, n]``.
        size: what entries that are not zero are expected to measure, so that nothing but dust counts as zero.
    """
    n = matrix.shape[-1]
    if n == 0 or matrix.shape[0] == 0:
        return torch.eye(n, dtype=torch.float64)
    _, singular, rows = torch.linalg.svd(matrix, full_matrices=True)
    rank = int((singular > _RANK_TOLERANCE * max(size, float(singular[0]))).sum())
    return row_reduce(rows[rank:])


def coordinates(vectors: Tensor, basis: Tensor) -> Tensor:
    """Least-squares coordinates of row vectors ``[..., n]`` in a basis of rows ``[k, n]``."""
    return vectors @ torch.linalg.pinv(basis) if basis.numel() else vectors.new_zeros(*vectors.shape[:-1], 0)


def intersection(a: Tensor, b: Tensor) -> Tensor:
    """Rows that span the intersection of two row spans."""
    if not (len(a) and len(b)):
        return a[:0]
    relations = null_space(torch.cat([a, -b]).T)
    return row_reduce(relations[:, : len(a)] @ a)


def complete(inside: Tensor, candidates: Tensor) -> Tensor:
    """Those rows among the candidates that complete ``inside`` to the span of both; earlier ones preferred."""
    chosen: list[Tensor] = []
    frame = _orthonormal(inside)
    for row in candidates:
        unit = row / row.norm()
        rest = unit - frame.T @ (frame @ unit)
        rest = rest - frame.T @ (frame @ rest)
        if float(rest.norm()) > 1e-6:
            chosen.append(row)
            frame = torch.cat([frame, (rest / rest.norm()).unsqueeze(0)])
    return torch.stack(chosen) if chosen else candidates[:0]


def contains(space: Tensor, vectors: Tensor) -> bool:
    """Whether all vectors ``[..., n]`` lie in the row span."""
    flat = vectors.reshape(-1, vectors.shape[-1])
    rest = flat - coordinates(flat, space) @ space
    return bool((rest.norm(dim=-1) <= 1e-7 * flat.norm(dim=-1).clamp(min=1.0)).all())


def _orthonormal(rows: Tensor) -> Tensor:
    return torch.linalg.qr(rows.T)[0].T if len(rows) else rows


# Series and ideals ---------------------------------------------------------------------------------------------


def products(algebra: LieAlgebra, a: Tensor, b: Tensor) -> Tensor:
    """All brackets of two sets of rows, ``[len(a), len(b), n]``."""
    return torch.einsum("ai,bj,ijk->abk", a, b, algebra.structure_constants)


def largest_constant(algebra: LieAlgebra) -> float:
    """What a bracket that is not zero measures."""
    return float(algebra.structure_constants.abs().max()) if algebra.dim else 0.0


def bracket_span(algebra: LieAlgebra, a: Tensor, b: Tensor) -> Tensor:
    """Rows that span all brackets of two subspaces."""
    brackets = products(algebra, _orthonormal(a), _orthonormal(b)).reshape(-1, algebra.dim)
    return row_reduce(brackets, largest_constant(algebra))


def subalgebra(algebra: LieAlgebra, rows: Tensor, names: Sequence[str] | None = None) -> LieAlgebra:
    """Return the algebra that independent rows ``[k, dim]`` span, in that basis, with ``names`` for its vectors.

    Raises:
        AlgebraError: a bracket leaves the span.
    """
    brackets = products(algebra, rows, rows)
    if not contains(rows, brackets):
        raise AlgebraError("expected a subalgebra, got rows whose brackets leave their span")
    c = coordinates(brackets, rows)
    # dust against the constants of the whole algebra: the rows may commute
    length = rows.norm(dim=-1)
    size = 1e-11 * algebra.structure_constants.abs().max() if len(rows) else 0.0
    c = torch.where(c.abs() * length <= size * length[:, None, None] * length[None, :, None], 0.0, c)
    return LieAlgebra(0.5 * (c - c.transpose(0, 1)), names, tolerance=1e-7)


def derived_series(algebra: LieAlgebra, start: Tensor | None = None) -> list[Tensor]:
    """Return rows of g (``start``, else all of ``algebra``), [g, g], ... down to the first that repeats or is zero."""
    series = [torch.eye(algebra.dim, dtype=torch.float64) if start is None else row_reduce(start)]
    while len(series[-1]):
        following = bracket_span(algebra, series[-1], series[-1])
        if len(following) == len(series[-1]):
            break
        series.append(following)
    return series


def centralizer(algebra: LieAlgebra, of: Tensor, inside: Tensor) -> Tensor:
    """Elements of a subspace that commute with every row of another."""
    if not len(of) or not len(inside):
        return inside
    brackets = products(algebra, inside, of).flatten(1)
    return row_reduce(null_space(brackets.T, largest_constant(algebra)) @ inside)


def centre(algebra: LieAlgebra) -> Tensor:
    """Return rows ``[k, dim]`` that span the centre of ``algebra``: vectors that commute with all others."""
    everything = torch.eye(algebra.dim, dtype=torch.float64)
    return centralizer(algebra, everything, everything)


def radical(algebra: LieAlgebra) -> Tensor:
    """Return rows that span the radical, the largest solvable ideal of ``algebra``, by its Killing form."""
    if not algebra.dim:
        return torch.zeros(0, 0, dtype=torch.float64)
    # in a basis in which the form is small only where it vanishes
    even, lengths = balanced(algebra)
    everything = torch.eye(algebra.dim, dtype=torch.float64)
    derived = bracket_span(even, everything, everything)
    return row_reduce(null_space(derived @ even.killing_form, largest_constant(even) ** 2) * lengths)


def nilradical(algebra: LieAlgebra) -> Tensor:
    """Return rows that span the nilradical of ``algebra``: tr(ad(x) b) = 0 for all b generated by ad(g)."""
    n = algebra.dim
    ad = algebra.structure_constants.transpose(1, 2)  # [i, k, j]: matrices of ad(e_i)
    if not n:
        return torch.zeros(0, 0, dtype=torch.float64)
    span = _orthonormal(row_reduce(ad.reshape(n, n * n)))
    while len(span):
        grown = (span.reshape(-1, 1, n, n) @ ad.unsqueeze(0)).reshape(-1, n * n)
        _, singular, rows = torch.linalg.svd(torch.cat([span, grown]), full_matrices=False)
        rows = rows[: int((singular > _RANK_TOLERANCE * float(singular[0])).sum())]
        if len(rows) == len(span):
            break
        span = rows
    if not len(span):
        return torch.eye(n, dtype=torch.float64)
    traces = torch.einsum("bjk,ikj->bi", span.reshape(-1, n, n), ad)
    return null_space(traces, largest_constant(algebra))


def levi_factor(algebra: LieAlgebra) -> Tensor:
    """Return rows that span a semisimple complement of the radical of ``algebra``, by staged linear solves.

    Raises:
        AlgebraError: a stage has no solution, which only a wrong rank decision can cause.
    """
    everything = torch.eye(algebra.dim, dtype=torch.float64)
    series = derived_series(algebra, radical(algebra))
    x = complete(series[0], everything)
    r = len(x)
    if r == 0:
        return x
    if len(series[-1]):
        raise AlgebraError("expected the radical to be solvable: rank decisions failed, rescale the generators")
    gamma = coordinates(products(algebra, x, x), torch.cat([x, series[0]]))[..., :r]
    for larger, smaller in itertools.pairwise(series):
        # y_i in a complement of the smaller ideal, with [x_i + y_i, x_j + y_j] = gamma (x + y) modulo it
        layer = complete(smaller, larger)
        frame = torch.cat([layer, smaller, x])
        act = coordinates(products(algebra, x, layer), frame)[..., : len(layer)]  # [i, b, k]
        defect = products(algebra, x, x) - torch.einsum("ijk,kl->ijl", gamma, x)
        defect = coordinates(defect, frame)[..., : len(layer)]
        unit, layer_unit = torch.eye(r, dtype=torch.float64), torch.eye(len(layer), dtype=torch.float64)
        system = (
            torch.einsum("ibk,jc->ijkcb", act, unit)
            - torch.einsum("jbk,ic->ijkcb", act, unit)
            - torch.einsum("ijc,bk->ijkcb", gamma, layer_unit)
        )
        solution, residual = _least_squares(system.reshape(-1, r * len(layer)), -defect.reshape(-1))
        if residual > 1e-7:
            raise AlgebraError(f"expected a Levi factor, found none (residual {residual:.2g}): rank decisions failed")
        x = x + solution.reshape(r, len(layer)) @ layer
    return row_reduce(x)


def _least_squares(matrix: Tensor, right: Tensor) -> tuple[Tensor, float]:
    """The shortest least-squares solution and its residual relative to the right side."""
    solution = torch.linalg.pinv(matrix, rtol=1e-10) @ right
    return solution, float((matrix @ solution - right).norm()) / max(1.0, float(right.norm()))


def _torus(algebra: LieAlgebra, levi: Tensor, ideal: Tensor) -> Tensor:
    """A complement of the nilradical in the centre of a Cartan subalgebra of what commutes with s in the radical."""
    inside = centralizer(algebra, levi, radical(algebra))
    if contains(ideal, inside):
        return ideal[:0]
    cartan = _cartan_subalgebra(algebra, inside)
    central = centralizer(algebra, cartan, cartan)
    return complete(intersection(ideal, central), central)


def _cartan_subalgebra(algebra: LieAlgebra, rows: Tensor) -> Tensor:
    """The Fitting null component of a regular element; elements with few coordinates are tried first."""
    generator = torch.Generator().manual_seed(0)
    within = coordinates(products(algebra, rows, rows), rows)  # structure constants of the subalgebra
    count = len(rows)
    unit = torch.eye(count, dtype=torch.float64)
    dense = (1 + integers(11, (4, count), unit, generator)).double()
    pairs = [unit[i] + 2.0 * unit[j] for i, j in itertools.combinations(range(count), 2)]
    best: Tensor | None = None
    regular = min(len(_fitting_null(within, x)) for x in dense)
    for x in itertools.chain(unit, pairs, dense):
        component = _fitting_null(within, x)
        if len(component) == regular:
            best = component
            break
    assert best is not None
    return row_reduce(best @ rows)


def _fitting_null(within: Tensor, x: Tensor) -> Tensor:
    ad = torch.einsum("i,ijk->kj", x, within)
    ad = ad / max(1.0, float(torch.linalg.matrix_norm(ad, 2)))
    # the kernel of ad, then what ad maps into it, and so on: a power of ad would blur its ranks
    space = null_space(ad)
    while True:
        frame = _orthonormal(space)
        grown = null_space(ad - frame.T @ (frame @ ad)) if len(space) else space
        if len(grown) == len(space):
            return space
        space = grown


# Decompositions ------------------------------------------------------------------------------------------------


def rational(algebra: LieAlgebra) -> RationalAlgebra | None:
    """Return ``algebra`` over the rational numbers, its constants rounded; ``None`` if they are not rational."""
    c = algebra.structure_constants
    fractions = [Fraction(x).limit_denominator(_MAX_DENOMINATOR) for x in c.flatten().tolist()]
    near = torch.tensor([float(x) for x in fractions], dtype=torch.float64).reshape(c.shape)
    # a small number is not zero
    size = torch.where(near == 0, 0.0, c.abs().clamp(min=1.0))
    if bool(((near - c).abs() > _RATIONAL_TOLERANCE * size).any()):
        return None
    n = algebra.dim
    try:
        return RationalAlgebra([[fractions[(i * n + j) * n :][:n] for j in range(n)] for i in range(n)])
    except AlgebraError:
        return None


def find_split(algebra: LieAlgebra, exact: RationalAlgebra | None = None) -> LeviDecomposition:
    """The split with n the nilradical, s a Levi factor, and t a torus that commutes with it.

    Args:
        algebra: the algebra.
        exact: the same with exact constants, if they are known; constants that look rational are tried as such.

    Raises:
        AlgebraError: no reductive complement of the nilradical was found in floating point: there may be none, or, in
            badly conditioned bases, one is missed.
    """
    exact = rational(algebra) if exact is None else exact
    if exact is not None:
        parts = exact.split()
        semisimple, torus, ideal = (
            torch.tensor([[float(x) for x in row] for row in part], dtype=torch.float64).reshape(-1, algebra.dim)
            for part in (parts.semisimple, parts.torus, parts.ideal)
        )
        if parts.derivations is None:
            return LeviDecomposition(semisimple, torus, ideal)
        derivations = [[[float(x) for x in row] for row in matrix] for matrix in parts.derivations]
        return LeviDecomposition(semisimple, torus, ideal, torch.tensor(derivations, dtype=torch.float64))
    even, lengths = balanced(algebra)
    ideal = nilradical(even)
    levi = levi_factor(even)
    torus = _torus(even, levi, ideal)
    found = len(levi) + len(torus) + len(ideal)
    if found != algebra.dim or len(row_reduce(torch.cat([levi, torus, ideal]))) != algebra.dim:
        raise AlgebraError(
            f"expected h, no complement of the nilradical found: Levi {len(levi)}, torus {len(torus)}, nilradical "
            f"{len(ideal)}, but the algebra has dimension {algebra.dim}. Name one with split=(h, n), or, if it exists "
            "but was missed, pass generators that are simpler combinations"
        )
    split = LeviDecomposition(*(row_reduce(part * lengths) for part in (levi, torus, ideal)))
    return check_split(algebra, split.complement, split.ideal)


def check_split(algebra: LieAlgebra, complement: Tensor, ideal: Tensor) -> LeviDecomposition:
    """Return the decomposition of ``algebra`` that rows ``complement`` (h) and ``ideal`` (n) define.

    Raises:
        AlgebraError: h and n do not span g, h is not a reductive subalgebra, or n is not a nilpotent ideal; the message
            names the bracket that leaves its span.
    """
    n, names = algebra.dim, algebra.names
    both = torch.cat([complement, ideal])
    rank = len(row_reduce(both / both.norm(dim=-1, keepdim=True))) if len(both) else 0
    if len(both) != n or rank != n:
        raise AlgebraError(
            f"split: expected h and n to span the {n} generators together, got {len(complement)} + {len(ideal)} "
            f"vectors of rank {rank}"
        )
    everything = torch.eye(n, dtype=torch.float64)
    for a, b, space, what in (
        (complement, complement, complement, "h is not a subalgebra"),
        (everything, ideal, ideal, "n is not an ideal"),
    ):
        for x, y in itertools.product(a, b):
            bracket = algebra.bracket(x, y)
            if not contains(space, bracket):
                left, right, out = (describe(v, names) for v in (x, y, bracket))
                raise AlgebraError(f"split: expected h + n, {what}, since [{left}, {right}] = {out}")
    if len(ideal) and subalgebra(algebra, ideal).nilpotency_step() is None:
        raise AlgebraError("split: expected h + n, n is not nilpotent; move what scales or rotates it into h")
    if not len(complement):
        return LeviDecomposition(complement, complement, ideal)
    h = subalgebra(algebra, complement)
    whole = torch.eye(h.dim, dtype=torch.float64)
    derived = bracket_span(h, whole, whole)
    central = centre(h)
    killing = derived @ h.killing_form @ derived.T
    nondegenerate = not len(derived) or float(torch.linalg.cond(killing)) < 1e8
    if len(derived) + len(central) != h.dim or not nondegenerate:
        raise AlgebraError(
            f"split: expected h + n, h is not reductive: dimension {h.dim}, centre {len(central)}, derived algebra "
            f"{len(derived)}. Move its nilpotent part into n"
        )
    semisimple, torus = derived @ complement, central @ complement
    # h itself where it is all of one kind: the user's own vectors are the best basis
    if not len(torus):
        semisimple = complement
    elif not len(semisimple):
        torus = complement
    return LeviDecomposition(semisimple, torus, ideal)


def describe(vector: Tensor, names: Sequence[str]) -> str:
    """A combination of basis elements in words, such as ``2 D - 0.5 E``."""
    parts: list[str] = []
    for value, name in zip(vector.tolist(), names, strict=True):
        if abs(value) > 1e-9 * float(vector.abs().max()):
            size = "" if abs(abs(value) - 1.0) < 1e-9 else f"{abs(value):.4g} "
            sign = ("-" if value < 0 else "") if not parts else (" - " if value < 0 else " + ")
            parts.append(f"{sign}{size}{name}")
    return "".join(parts) or "0"
