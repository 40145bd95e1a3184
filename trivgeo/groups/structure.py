r"""Structure theory of real Lie algebras: series, centre, radical, nilradical, Levi factor, reductive complement.

The theory is written once, over a ground field, see `trivgeo.groups.ground_fields`: subspaces are matrices of rows,
``[k, n]``. Algebras whose constants look rational are decomposed exactly, where python-flint is installed; for others
ranks are decided in floating point, in a basis in which constants are near one, and functions that need a
decomposition to exist raise an error if it is not found.

Sources: W. A. de Graaf, Lie Algebras: Theory and Algorithms (2000), sections 2.2, 2.3, 3.2, 4.13; D. Rand,
P. Winternitz and H. Zassenhaus, Linear Algebra Appl. 109 (1988); G. D. Mostow, Amer. J. Math. 78 (1956); for algebras
that do not split over their nilradical, the splittable hull of A. I. Malcev (1945), see C. Chevalley, Theorie des
groupes de Lie III (1955).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor

from trivgeo.errors import AlgebraError
from trivgeo.groups.ground_fields import RATIONALS, REALS, Array, GroundField, Rationals, Rows, has_flint

if TYPE_CHECKING:
    from trivgeo.groups.algebra import LieAlgebra

_MAX_DENOMINATOR = 1000  # denominator of fractions that constants near them are taken for
_RATIONAL_TOLERANCE = 1e-12  # distance of such a constant from the fraction
_MAX_TRIALS = 20  # random elements that are tried, each of which fails on a set of measure zero


# Keys: dimension, number of positive eigenvalues of the Killing form, and dimension of the commutant of the adjoint
# representation (the number of simple factors, complex ones counted twice).
_SEMISIMPLE_NAMES = {
    (3, 2, 1): "sl(2, R)",
    (3, 0, 1): "so(3)",
    (6, 4, 2): "sl(2, R) ⊕ sl(2, R)",
    (6, 2, 2): "so(3) ⊕ sl(2, R)",
    (6, 0, 2): "so(3) ⊕ so(3)",
    (6, 3, 2): "so(3, 1)",
    (8, 5, 1): "sl(3, R)",
    (8, 4, 1): "su(2, 1)",
    (8, 0, 1): "su(3)",
    (10, 6, 1): "so(3, 2)",
    (10, 4, 1): "so(4, 1)",
    (10, 0, 1): "so(5)",
    (15, 9, 1): "sl(4, R)",
    (15, 8, 1): "so(4, 2)",
    (15, 5, 1): "so(5, 1)",
    (15, 0, 1): "so(6)",
}


@dataclass(frozen=True)
class LeviDecomposition:
    r"""A decomposition :math:`\mathfrak g = (\mathfrak s \oplus \mathfrak t) \ltimes \mathfrak n`.

    Some solvable algebras do not split over their nilradical n, such as [x, a] = a, [y, b] = b, [x, y] = z. Then t
    commutes with s but is no subalgebra, and ``derivations`` are the semisimple parts D of ad(x) for its rows x, which
    commute with each other and with ad(s). The algebra extended by them splits: the x - D and n span a nilpotent ideal
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
        """Rows that span the complement h = s + t of the ideal."""
        return torch.cat([self.semisimple, self.torus])


class LieStructure(Generic[Rows]):
    """A Lie algebra over a ground field, and its structure theory.

    Args:
        constants: ``[n, n, n]``, ``[e_i, e_j] = sum_k constants[i, j, k] e_k``.
        size: the expected size of a nonzero bracket; default the largest constant.
    """

    def __init__(self, constants: Rows, field: GroundField[Rows], size: float | None = None) -> None:
        self.constants: Rows = constants
        self.field: GroundField[Rows] = field
        self.dim = len(constants)
        self.size = field.size_of(constants) if size is None else size
        self.everything: Rows = field.identity(self.dim)

    def brackets(self, a: Rows, b: Rows) -> Rows:
        """Return all brackets of two sets of rows, ``[len(a), len(b), n]``."""
        n = self.dim
        return b @ (a @ self.constants.reshape(n, n * n)).reshape(len(a), n, n)

    def ad(self, x: Rows) -> Rows:
        """Return the matrices ``[..., n, n]`` of ad(x), which act on columns, for vectors ``[..., n]``."""
        n = self.dim
        return (x @ self.constants.reshape(n, n * n)).reshape(*x.shape[:-1], n, n).swapaxes(-1, -2)

    @property
    def killing_form(self) -> Rows:
        """The matrix ``[n, n]`` of tr(ad(e_i) ad(e_j))."""
        n, c = self.dim, self.constants
        return c.reshape(n, n * n) @ c.swapaxes(1, 2).reshape(n, n * n).T

    def bracket_span(self, a: Rows, b: Rows) -> Rows:
        """Return rows that span all brackets of the subspaces ``a`` and ``b``."""
        brackets = self.brackets(self.field.frame(a), self.field.frame(b))
        return self.field.row_space(brackets.reshape(len(a) * len(b), self.dim), self.size)

    def subalgebra(self, rows: Rows) -> LieStructure[Rows]:
        """Return the algebra that independent rows span, in that basis."""
        return LieStructure(self.field.coordinates(self.brackets(rows, rows), rows), self.field, self.size)

    def centralizer(self, of: Rows, inside: Rows) -> Rows:
        """Return rows that span the elements of the subspace ``inside`` that commute with every row of ``of``."""
        if not len(of) or not len(inside):
            return inside
        brackets = self.brackets(inside, of).reshape(len(inside), -1)
        return self.field.row_space(self.field.null_space(brackets.T, self.size) @ inside)

    def centre(self) -> Rows:
        """Return rows that span the centre: vectors that commute with all others."""
        return self.centralizer(self.everything, self.everything)

    def derived_series(self, start: Rows | None = None) -> list[Rows]:
        """Return rows of g (``start``, else everything), [g, g], ... down to the first that repeats or is zero."""
        series = [self.everything if start is None else start]
        while len(series[-1]):
            following = self.bracket_span(series[-1], series[-1])
            if len(following) == len(series[-1]):
                break
            series.append(following)
        return series

    def is_nilpotent(self, rows: Rows) -> bool:
        """Return True if the lower central series of the subalgebra that ``rows`` span reaches zero."""
        lower = rows
        while len(lower):
            following = self.bracket_span(rows, lower)
            if len(following) == len(lower):
                return False
            lower = following
        return True

    @cached_property
    def radical(self) -> Rows:
        """Rows that span the largest solvable ideal: the orthogonal space of [g, g] under the Killing form."""
        derived = self.bracket_span(self.everything, self.everything)
        return self.field.null_space(derived @ self.killing_form, self.size**2) if len(derived) else self.everything

    @cached_property
    def nilradical(self) -> Rows:
        """Rows that span the largest nilpotent ideal: the x of the radical with tr(ad(x) ad(y)^k) = 0 for all k, y.

        All of ad(radical) is triangular in one complex basis (Lie). Therefore these traces are sums over its weights,
        and one y in general position is enough.

        Raises:
            AlgebraError: no y that was tried is in general position.
        """
        field, radical = self.field, self.radical
        if not len(radical):
            return radical
        ads = self.ad(radical).reshape(len(radical), -1)
        equations: list[Rows] = []
        for y in self._random(radical):
            ad, power = field.scaled(self.ad(y)), self.everything
            for _ in range(self.dim):
                equations.append(ads @ power.T.reshape(-1))
                power = power @ ad
            traces = field.join(*equations).reshape(-1, len(radical))
            found = field.row_space(field.null_space(traces, self.size) @ radical)
            if self.is_nilpotent(found):
                return found
        raise AlgebraError(f"expected a nilradical, found none with {_MAX_TRIALS} random elements")

    def _random(self, rows: Rows) -> Iterator[Rows]:
        """Elements of a subspace in general position, with ever larger coordinates."""
        generator = random.Random(0)
        for trial in range(_MAX_TRIALS):
            size = 11 * 2**trial
            yield sum(generator.randint(1, size) * row for row in rows)

    @cached_property
    def levi_factor(self) -> Rows:
        """Rows that span a semisimple complement of the radical, by linear equations down its derived series.

        Raises:
            AlgebraError: a stage has no solution, which only a wrong rank decision can cause.
        """
        field, radical = self.field, self.radical
        x = field.complement(radical, self.everything)
        r = len(x)
        if not r:
            return x
        series = self.derived_series(radical)
        if len(series[-1]):
            raise AlgebraError("expected the radical to be solvable: rank decisions failed, rescale the generators")
        pairs = list(itertools.combinations(range(r), 2))
        gamma = field.coordinates(self.brackets(x, x), field.join(x, radical))[..., :r]
        for larger, smaller in itertools.pairwise(series):
            # y_i is in a complement of the smaller ideal, with [x_i + y_i, x_j + y_j] = gamma (x + y) modulo the ideal
            layer = field.complement(smaller, larger)
            size, frame = len(layer), field.join(layer, smaller, x)
            act = field.coordinates(self.brackets(x, layer), frame)[..., :size]  # [i, b, k]
            defect = field.coordinates(self.brackets(x, x) - gamma @ x, frame)[..., :size]
            system, right = field.zeros(len(pairs), size, r, size), field.zeros(len(pairs), size)  # [i j, k, c, b]
            for row, (i, j) in enumerate(pairs):
                system[row, :, j] += act[i].T
                system[row, :, i] -= act[j].T
                for c in range(r):
                    system[row, :, c] -= gamma[i, j, c] * field.identity(size)
                right[row] = -defect[i, j]
            try:
                y = field.solve(system.reshape(len(pairs) * size, r * size), right.reshape(-1))
            except AlgebraError as error:
                raise AlgebraError(f"expected a Levi factor, found none: rank decisions failed; {error}") from error
            x = x + y.reshape(r, size) @ layer
        return field.row_space(x)

    def cartan_subalgebra(self) -> Rows:
        """Return a Cartan subalgebra: the null space of powers of ad(x), for a regular x of few coordinates if any.

        Raises:
            AlgebraError: no element that was tried is regular.
        """
        e: Rows = self.everything
        few = [*e, *(e[i] + 2 * e[j] for i, j in itertools.combinations(range(self.dim), 2))]
        dense = list(itertools.islice(self._random(e), 3))
        regular = min(len(self._fitting_null(x)) for x in dense)
        for x in itertools.chain(few, dense):
            found = self._fitting_null(x)
            if len(found) == regular and self.is_nilpotent(found):
                return found
        raise AlgebraError(f"expected a Cartan subalgebra, found none with {_MAX_TRIALS} random elements")

    def _fitting_null(self, x: Rows) -> Rows:
        """The elements that powers of ad(x) map to zero."""
        ad = self.field.scaled(self.ad(x))
        space = self.field.null_space(ad)
        while True:
            # elements that ad(x) maps into the space found so far: a power of ad(x) would blur its ranks
            inside = self.field.frame(space)
            relations = self.field.null_space(self.field.join(ad.T, -inside).T)
            grown = self.field.row_space(relations[:, : self.dim])
            if len(grown) == len(space):
                return space
            space = grown

    def split(self) -> LeviDecomposition:
        """Return the split with n the nilradical, s the Levi factor, and t a torus that commutes with it.

        Raises:
            AlgebraError: no reductive complement of the nilradical was found in floating point: there may be none, or,
                in badly conditioned bases, one is missed.
        """
        field, levi, ideal = self.field, self.levi_factor, self.nilradical
        missing = self.dim - len(levi) - len(ideal)
        torus, derivations = self.everything[:0], None  # derivations need exact eigenvalues
        if missing:
            # a Cartan subalgebra of the centralizer of s in the radical holds a complement, in its centre if possible
            inside = self.centralizer(levi, self.radical)
            cartan = self.subalgebra(inside).cartan_subalgebra() @ inside
            central = self.centralizer(cartan, cartan)
            torus = field.complement(field.intersection(ideal, central), central)
            if len(torus) != missing and isinstance(field, Rationals):
                torus = field.complement(field.intersection(ideal, cartan), cartan)
                if len(self.bracket_span(torus, torus)):
                    derivations = torch.stack([field.tensor(field.semisimple_part(self.ad(x))) for x in torus])
        found = (levi, torus, ideal)
        if sum(map(len, found)) != self.dim or len(field.row_space(field.join(*found))) != self.dim:
            raise AlgebraError(
                f"expected h, no complement of the nilradical found: Levi {len(levi)}, torus {len(torus)}, nilradical "
                f"{len(ideal)}, but the algebra has dimension {self.dim}. Name one with split=(h, n), or, if it exists "
                "but was missed, pass generators that are simpler combinations"
            )
        semisimple, commuting, nilpotent = map(field.tensor, found)
        return LeviDecomposition(semisimple, commuting, nilpotent, derivations)


def real_structure(algebra: LieAlgebra) -> LieStructure[Tensor]:
    """Return the structure theory of ``algebra`` in floating point; ranks are certain where constants are near one."""
    return LieStructure(algebra.structure_constants, REALS)


def rational_structure(constants: Any) -> LieStructure[Array]:
    """Return the structure theory of an algebra with rational constants, nested sequences ``[n][n][n]``.

    Raises:
        AlgebraError: the constants are not antisymmetric, or fail the Jacobi identity.
    """
    n = len(constants)
    c = RATIONALS.array(constants).reshape(n, n, n)
    if (c + c.swapaxes(0, 1)).any():
        raise AlgebraError("expected antisymmetric structure constants, got c_ij^k != -c_ji^k")
    found = LieStructure(c, RATIONALS)
    ad = found.ad(found.everything)
    for i, j in itertools.combinations(range(n), 2):
        # ad is a representation
        if (ad[i] @ ad[j] - ad[j] @ ad[i] - found.ad(c[i, j])).any():
            raise AlgebraError("expected structure constants that satisfy the Jacobi identity, got a nonzero sum")
    return found


def exact_structure(algebra: LieAlgebra) -> LieStructure[Array] | None:
    """Return ``algebra`` over the rational numbers, its constants rounded.

    ``None`` if they are not rational, or python-flint is not installed.
    """
    c = algebra.structure_constants
    if not has_flint():
        return None
    fractions = [Fraction(x).limit_denominator(_MAX_DENOMINATOR) for x in c.flatten().tolist()]
    near = torch.tensor([float(x) for x in fractions], dtype=torch.float64).reshape(c.shape)
    # a small nonzero number must not be rounded to zero
    size = torch.where(near == 0, 0.0, c.abs().clamp(min=1.0))
    if bool(((near - c).abs() > _RATIONAL_TOLERANCE * size).any()):
        return None
    n = algebra.dim
    try:
        return rational_structure([[fractions[(i * n + j) * n :][:n] for j in range(n)] for i in range(n)])
    except AlgebraError:
        return None


def describe(vector: Tensor, names: Sequence[str]) -> str:
    """The combination ``vector`` of basis elements by ``names`` in words, such as ``2 D - 0.5 E``."""
    parts: list[str] = []
    for value, name in zip(vector.tolist(), names, strict=True):
        if abs(value) > 1e-9 * float(vector.abs().max()):
            size = "" if abs(abs(value) - 1.0) < 1e-9 else f"{abs(value):.4g} "
            sign = ("-" if value < 0 else "") if not parts else (" - " if value < 0 else " + ")
            parts.append(f"{sign}{size}{name}")
    return "".join(parts) or "0"


def name_of(structure: LieStructure[Any]) -> str:
    """Return the Levi decomposition in words: semisimple part and radical; parts without a name by dimension."""
    solvable, levi = structure.radical, structure.levi_factor
    if not len(levi):
        return _solvable(structure)
    left = _semisimple(structure.subalgebra(levi))
    if not len(solvable):
        return left
    fixed = structure.centralizer(levi, solvable)  # the part of the radical that commutes with the Levi factor
    sign = "⊕" if len(fixed) == len(solvable) else "⋉"
    right = _solvable(structure.subalgebra(solvable))
    return f"({left}) {sign} ({right})" if "⊕" in left and sign == "⋉" else f"{left} {sign} {_group(right)}"


def _group(text: str) -> str:
    return f"({text})" if " " in text else text


def _semisimple(structure: LieStructure[Any]) -> str:
    if all(structure.dim != dim for dim, _, _ in _SEMISIMPLE_NAMES):  # without a name: the commutant is costly
        return f"semisimple of dimension {structure.dim}"
    killing, ads = (structure.field.tensor(x) for x in (structure.killing_form, structure.constants))
    positive = int((torch.linalg.eigvalsh(killing) > 0).sum())
    unit = torch.eye(structure.dim, dtype=torch.float64)
    # matrices that commute with all ad(e_i)
    rows = torch.cat([torch.kron(ad, unit) - torch.kron(unit, ad.mT.contiguous()) for ad in ads])
    found = (structure.dim, positive, len(REALS.null_space(rows)))
    return _SEMISIMPLE_NAMES.get(found, f"semisimple of dimension {structure.dim}")


def _solvable(structure: LieStructure[Any]) -> str:
    n, series = structure.dim, structure.derived_series()
    if len(series) == 2 and not len(series[1]):
        return "R" if n == 1 else f"R^{n}"
    first = series[1]
    if len(first) == 1 and not len(structure.bracket_span(first, structure.everything)):
        rest = len(structure.centre()) - 1
        return f"h({n - rest})" + ("" if not rest else " ⊕ R" if rest == 1 else f" ⊕ R^{rest}")
    if n == 2:
        return "aff(1)"
    return f"solvable of dimension {n}, {len(series) - 1} steps"
