"""Lie algebras by their structure constants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import einsum
from trivgeo._numerics import Constant
from trivgeo._torch import break_graph
from trivgeo.checks import checked
from trivgeo.errors import AlgebraError, ShapeError
from trivgeo.groups.ground_fields import REALS, Array
from trivgeo.groups.linalg.components import block_diagonal, flatten_array, spread_blocks
from trivgeo.groups.structure import (
    LeviDecomposition,
    LieStructure,
    describe,
    exact_structure,
    name_of,
    real_structure,
)

_RANK_TOLERANCE = 1e-9  # singular values below this share of the largest constant are zero
_GROUP_IN_GRAPH = "group: expected one made outside of a function compiled with fullgraph=True"
_ROUNDING_TOLERANCE = 1e-13  # traces below this share of the constants in them are rounding


@checked(
    but=(
        "trace_ad_like",
        "bracket",
        "ad",
    )
)
class LieAlgebra:
    r"""A real Lie algebra with a declared orthonormal basis :math:`e_1, \dots, e_n`.

    Vectors of the algebra are coordinates in that basis, ``[*batch, n]``.

    Args:
        structure_constants: ``[n, n, n]`` with :math:`[e_i, e_j] = \sum_k c_{ij}^k e_k` stored as ``c[i, j, k]``.
        names: a name for each basis element, for messages.
        tolerance: largest allowed defect of antisymmetry and of the Jacobi identity, relative to the largest
            constant (to its square for Jacobi).

    Raises:
        ShapeError: the constants are not a cube.
        AlgebraError: the constants are not finite, not antisymmetric, or break the Jacobi identity; the message names
            the worst pair or triple.
    """

    _summands: tuple[LieAlgebra, ...] = ()  # the parts of a direct sum
    _runs: Sequence[tuple[LieAlgebra, int]] = ()  # runs of equal neighbouring summands, and their lengths

    def __init__(
        self,
        structure_constants: Float[Tensor, "n n n"],
        names: Sequence[str] | None = None,
        tolerance: float = 1e-9,
    ) -> None:
        break_graph(_GROUP_IN_GRAPH)
        c = structure_constants.detach().to(device="cpu", dtype=torch.float64)
        if c.ndim != 3 or not c.shape[0] == c.shape[1] == c.shape[2]:
            raise ShapeError(f"structure constants: expected [n, n, n], got {list(c.shape)}")
        n = c.shape[0]
        self.dim = n
        self.names = tuple(names) if names is not None else tuple(f"e{i + 1}" for i in range(n))
        if len(self.names) != n:
            raise ShapeError(f"names: expected {n}, got {len(self.names)}")
        if not torch.isfinite(c).all():
            raise AlgebraError("structure constants: expected finite numbers, got NaN or infinity")
        largest = float(c.abs().max()) if n else 0.0
        self._check_antisymmetry(c, tolerance * max(largest, 1e-300))
        self._check_jacobi(c, tolerance * max(largest**2, 1e-300))
        self._keep(c, tolerance)

    def _keep(self, c: Tensor, tolerance: float) -> None:
        break_graph(_GROUP_IN_GRAPH)
        # plain attributes: torch.compile does not enter the lock of a cached property
        self._c = Constant(c)
        self._ad = Constant(c.transpose(1, 2).contiguous())  # ad[i], the matrix of ad(e_i): ad(e_i)^k_j = c_ij^k
        trace_ad = torch.einsum("ijj->i", c)
        largest = float(c.abs().max()) if self.dim else 0.0
        # tr ad vanishes up to the cancellation in its own sum, or up to rounding of the terms of e_i, whatever the
        # lengths of the basis
        cancelled = torch.einsum("ijj->i", c.abs())
        root = c.abs().sqrt()
        moved = (root * root.transpose(1, 2)).flatten(1).amax(-1) if self.dim else cancelled
        self._is_unimodular = bool((trace_ad.abs() <= tolerance * cancelled + _ROUNDING_TOLERANCE * moved).all())
        self._trace_ad = Constant(torch.zeros_like(trace_ad) if self._is_unimodular else trace_ad)  # without rounding
        self._is_abelian = largest == 0.0

    @cached_property
    def _assembled(self) -> Tensor:
        """Structure constants of a direct sum, made on first use; all other operations use its summands."""
        c = torch.zeros(self.dim, self.dim, self.dim, dtype=torch.float64)
        start = 0
        for summand in self._summands:
            part = slice(start, start + summand.dim)
            c[part, part, part] = summand.structure_constants
            start += summand.dim
        return c

    def _check_antisymmetry(self, c: Tensor, bound: float) -> None:
        defect = (c + c.transpose(0, 1)).abs().amax(-1)
        if defect.numel() and float(defect.max()) > bound:
            i, j = divmod(int(defect.argmax()), self.dim)
            raise AlgebraError(
                f"expected [{self.names[i]}, {self.names[j]}] = -[{self.names[j]}, {self.names[i]}], "
                f"got a defect of {float(defect.max()):.3g}"
            )

    def _check_jacobi(self, c: Tensor, bound: float) -> None:
        # [[e_i, e_j], e_k] summed over cyclic permutations; constants are mostly zeros, and all triples are many
        n = self.dim
        first, second, third = c.nonzero().unbind(-1)  # the first in order
        count = torch.bincount(first, minlength=n)
        pairs = count[third]  # of entries c[i, j, m] and c[m, k, l]
        left = torch.arange(len(first), device=c.device).repeat_interleave(pairs)
        place = torch.arange(len(left), device=c.device) - (pairs.cumsum(0) - pairs)[left]
        right = (count.cumsum(0) - count)[third[left]] + place
        values = c[first, second, third]
        i, j, k, entry = first[left], second[left], second[right], third[right]
        keys = torch.cat([((x * n + y) * n + z) * n + entry for x, y, z in ((i, j, k), (k, i, j), (j, k, i))])
        where, row = keys.unique(return_inverse=True)
        defect = c.new_zeros(len(where)).index_add(0, row, (values[left] * values[right]).repeat(3)).abs()
        if defect.numel() and float(defect.max()) > bound:
            pair, last = divmod(int(where[defect.argmax()]) // n, n)
            names = [self.names[index] for index in (*divmod(pair, n), last)]
            raise AlgebraError(
                f"expected the Jacobi identity to hold, got a defect of {float(defect.max()):.3g} at "
                f"({', '.join(names)})"
            )

    def __repr__(self) -> str:
        return f"LieAlgebra(dim={self.dim}, basis=({', '.join(self.names)}))"

    @property
    def structure_constants(self) -> Float[Tensor, "n n n"]:
        """``c[i, j, k]`` with ``[e_i, e_j] = c_ij^k e_k``; float64 on the CPU."""
        return (self._assembled if self._summands else self._c.value).clone()

    @property
    def trace_ad(self) -> Float[Tensor, " n"]:
        r""":math:`a_i = \mathrm{tr}\,\mathrm{ad}(e_i) = \sum_j c_{ij}^j`; float64 on the CPU."""
        return self._trace_ad.value.clone()

    def trace_ad_like(self, x: Tensor) -> Float[Tensor, " n"]:
        """Return `trace_ad`, ``[dim]``, in the dtype and on the device of the tensor ``x``."""
        return self._trace_ad.matching(x).clone()

    @property
    def killing_form(self) -> Float[Tensor, "n n"]:
        r""":math:`K_{ij} = \mathrm{tr}(\mathrm{ad}(e_i)\,\mathrm{ad}(e_j))`; float64 on the CPU."""
        if self._summands:
            return torch.block_diag(*(summand.killing_form for summand in self._summands))
        ad = self._ad.value
        return torch.einsum("iab,jba->ij", ad, ad)

    @property
    def is_unimodular(self) -> bool:
        """True if ``tr ad`` vanishes: left and right Haar measures of the connected group agree."""
        return self._is_unimodular

    @property
    def is_abelian(self) -> bool:
        """True if every bracket vanishes."""
        return self._is_abelian

    @cached_property
    def noise_corrections(self) -> tuple[Constant, Constant]:
        r"""Second-order corrections of Brownian motion in the algebra for schemes of weak order 2, see `GeometricHeun`.

        .. math:: M = \tfrac1{12} \sum_j \mathrm{ad}(e_j)^2, \quad S S^T = \tfrac18 \sum_{ij} [e_i, e_j] [e_i, e_j]^T
        """
        if self._summands:  # the symmetric root of a block diagonal matrix is that of its blocks
            pairs = [summand.noise_corrections for summand in self._summands]
            third, area = (torch.block_diag(*(x.value for x in blocks)) for blocks in zip(*pairs, strict=True))
            return Constant(third), Constant(area)
        third = torch.einsum("jab,jbc->ac", self._ad.value, self._ad.value) / 12.0
        c = self._c.value
        values, vectors = torch.linalg.eigh(torch.einsum("ijk,ijl->kl", c, c) / 8.0)
        area = (vectors * values.clamp(min=0.0).sqrt()) @ vectors.mT
        return Constant(third), Constant(area)

    @cached_property
    def noise_spread(self) -> tuple[Constant, Constant]:
        r"""Eigenvalues and eigenvectors of :math:`B = M + M^T + S S^T`, see `noise_corrections`.

        exp v with v normal of covariance :math:`\tau I + \tau^2 B` is Brownian motion at the time :math:`\tau`, to weak
        order 2.
        """
        third, area = (x.value for x in self.noise_corrections)
        values, vectors = torch.linalg.eigh(third + third.mT + area @ area.mT)
        return Constant(values), Constant(vectors)

    def bracket(self, u: Float[Tensor, "*#batch n"], v: Float[Tensor, "*#batch n"]) -> Float[Tensor, "*batch n"]:
        """Return the brackets ``[u, v]`` of vectors u and v, ``[*batch, dim]``; batches broadcast.

        Raises:
            ShapeError: a vector does not have `dim` coordinates.
        """
        self._check_vectors(u, v)
        if not self._summands:
            return einsum("...i,...j,ijk->...k", u, v, self._c.matching(u))
        pairs = zip(self._runs, self._split(u), self._split(v), strict=True)
        parts = [flatten_array(algebra.bracket(x, y)) for (algebra, _), x, y in pairs]
        return torch.cat(parts, -1)

    def ad(self, v: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n n"]:
        """Return the matrices ``[*batch, dim, dim]`` of the maps ``u -> [v, u]`` of vectors v, ``[*batch, dim]``.

        Raises:
            ShapeError: the vector does not have `dim` coordinates.
        """
        self._check_vectors(v)
        if not self._summands:
            return einsum("...i,ikj->...kj", v, self._ad.matching(v))
        pairs = zip(self._runs, self._split(v), strict=True)
        return block_diagonal([spread_blocks(algebra.ad(x)) for (algebra, _), x in pairs])

    def name(self) -> str:
        """The Levi decomposition by name, such as ``sl(2, R) ⋉ h(3)``; ``h(n)`` is the Heisenberg algebra.

        A direct sum is named by its summands, equal ones by a power, as ``(so(3) ⋉ R^3)^4``.
        Constants that look rational are taken for fractions, where python-flint is installed. An algebra whose
        decomposition is not found in floating point is named by its dimension.

        Example:
            >>> SE(3).algebra.name()
            'so(3) ⋉ R^3'
        """
        if not self.dim:
            return "0"
        if self._summands and not self.is_abelian:
            found = [(algebra.name(), n) for algebra, n in self._runs]
            compound = [(n > 1 and " " in name) or "⋉" in name or "dimension" in name for name, n in found]
            parts = [(f"({name})" if many else name, n) for (name, n), many in zip(found, compound, strict=True)]
            return " ⊕ ".join(name if n == 1 else f"{name}^{n}" for name, n in parts)
        try:
            return name_of(exact_structure(self) or real_structure(balanced(self)[0]))
        except AlgebraError:
            return f"dimension {self.dim}"

    def levi_split(self) -> LeviDecomposition:
        """Return Levi factor, torus and nilradical: rows of coordinates.

        Raises:
            AlgebraError: no reductive complement of the nilradical was found in floating point.
        """
        return find_split(self)

    def _split(self, v: Tensor) -> tuple[Tensor, ...]:
        """Parts of a vector of a direct sum, ``[*batch, count, dim]`` for each run of equal summands."""
        parts = v.split([count * algebra.dim for algebra, count in self._runs], -1)
        pairs = zip(self._runs, parts, strict=True)
        return tuple(part.unflatten(-1, (count, algebra.dim)) for (algebra, count), part in pairs)

    def _check_vectors(self, *vectors: Tensor) -> None:
        for v in vectors:
            if v.ndim < 1 or v.shape[-1] != self.dim:
                raise ShapeError(f"expected algebra vectors [*batch, {self.dim}], got {list(v.shape)}")

    def nilpotency_step(self) -> int | None:
        """The number of steps of the lower central series (1 if abelian), ``None`` if it does not reach zero."""
        if self._summands:
            steps = [algebra.nilpotency_step() for algebra, _ in self._runs]
            known = [step for step in steps if step is not None]
            return max(known) if len(known) == len(steps) else None
        # ranks are decided in lengths for which all constants are near one: no short series hides behind a long one
        c = balanced(self)[0]._c.value
        bound = _RANK_TOLERANCE * float(c.abs().max()) if self.dim else 0.0
        span = torch.eye(self.dim, dtype=torch.float64)  # rows
        for step in range(1, self.dim + 1):
            brackets = torch.einsum("jb,abk->ajk", span, c).reshape(-1, self.dim)
            _, singular, rows = torch.linalg.svd(brackets, full_matrices=False)
            rank = int((singular > bound).sum())
            if rank == 0:
                return step
            span = rows[:rank]
        return None

    def rescaled(self, scale: Float[Tensor, " n"] | Float[Tensor, "n n"]) -> LieAlgebra:
        """Return this algebra in the basis ``scale[i] * e_i``, or ``sum_j scale[i, j] e_j`` for a matrix."""
        s = scale.to(torch.float64)
        if s.ndim == 1 and self._summands:
            parts = s.split([summand.dim for summand in self._summands])
            made: dict[tuple[int, tuple[float, ...]], LieAlgebra] = {}  # equal summands stay one object
            keys = [(id(summand), tuple(part.tolist())) for summand, part in zip(self._summands, parts, strict=True)]
            for key, summand, part in zip(keys, self._summands, parts, strict=True):
                if key not in made:
                    made[key] = summand.rescaled(part)
            return LieAlgebra.direct_sum(*(made[key] for key in keys))
        if s.ndim == 1:
            return LieAlgebra(self.structure_constants * s[:, None, None] * s[:, None] / s, self.names)
        c = torch.einsum("ia,jb,abc,ck->ijk", s, s, self.structure_constants, torch.linalg.inv(s))
        return LieAlgebra(0.5 * (c - c.transpose(0, 1)))

    @staticmethod
    def _unchecked(structure_constants: Tensor, names: Sequence[str]) -> LieAlgebra:
        """The algebra of constants known to be right: checks take the fourth power of the dimension in memory."""
        algebra = LieAlgebra.__new__(LieAlgebra)
        algebra.dim, algebra.names = len(names), tuple(names)
        algebra._keep(structure_constants, 1e-9)
        return algebra

    @staticmethod
    def direct_sum(*algebras: LieAlgebra) -> LieAlgebra:
        """Return the direct sum of ``algebras``: their bases one after the other, with zero brackets between them."""
        algebra = LieAlgebra.__new__(LieAlgebra)
        if not algebras:
            return LieAlgebra._unchecked(torch.zeros(0, 0, 0, dtype=torch.float64), ())
        algebra._summands = algebras
        runs = [list(members) for _, members in itertools.groupby(algebras, id)]
        algebra._runs = [(members[0], len(members)) for members in runs]
        algebra.names = tuple(f"{name}.{index + 1}" for index, part in enumerate(algebras) for name in part.names)
        algebra.dim = len(algebra.names)
        algebra._is_unimodular = all(part.is_unimodular for part in algebras)
        algebra._is_abelian = all(part.is_abelian for part in algebras)
        algebra._trace_ad = Constant(torch.cat([part.trace_ad for part in algebras]))
        return algebra

    @staticmethod
    def from_matrices(basis: Float[Tensor, "n k k"], names: Sequence[str] | None = None) -> LieAlgebra:
        """Return the algebra that matrices span, with the commutator as bracket.

        Args:
            basis: linearly independent matrices ``[n, k, k]``.
            names: names of the basis vectors; default e1, e2, ...

        Raises:
            AlgebraError: a commutator leaves the span (the message names it), or the matrices are dependent.
        """
        b = basis.detach().to(device="cpu", dtype=torch.float64)
        n = b.shape[0]
        named = tuple(names) if names is not None else tuple(f"e{i + 1}" for i in range(n))
        flat = b.reshape(n, -1)
        if int(torch.linalg.matrix_rank(flat)) < n:
            raise AlgebraError(f"expected {n} independent matrices, got rank {int(torch.linalg.matrix_rank(flat))}")
        commutator = (b[:, None] @ b[None] - b[None] @ b[:, None]).reshape(n * n, -1)
        c = torch.linalg.lstsq(flat.T, commutator.T).solution.T
        residual = (c @ flat - commutator).norm(dim=-1)
        worst = int(residual.argmax())
        if float(residual[worst]) > 1e-9 * float(flat.norm()):
            i, j = divmod(worst, n)
            share = float(residual[worst] / commutator[worst].norm())
            raise AlgebraError(
                f"basis: expected brackets in it, but [{named[i]}, {named[j]}] is off the span by {100 * share:.1f} %"
            )
        return LieAlgebra(torch.where(c.abs() < 1e-14, 0.0, c).reshape(n, n, n), named)

    @staticmethod
    def semidirect_sum(complement: LieAlgebra, ideal: LieAlgebra, derivations: Float[Tensor, "h n n"]) -> LieAlgebra:
        r"""The algebra :math:`\mathfrak h \ltimes \mathfrak n` with :math:`[Y, Z] = D(Y) Z`.

        Args:
            complement: the algebra h, first in the basis.
            ideal: the algebra n.
            derivations: ``derivations[i]`` is the matrix of D(e_i) on n.

        Raises:
            ShapeError: the derivations have the wrong shape.
            AlgebraError: the derivations are not a homomorphism into those of the ideal (Jacobi identity).
        """
        h, n = complement.dim, ideal.dim
        if tuple(derivations.shape) != (h, n, n):
            raise ShapeError(f"derivations: expected {[h, n, n]}, got {list(derivations.shape)}")
        c = torch.zeros(h + n, h + n, h + n, dtype=torch.float64)
        c[:h, :h, :h] = complement.structure_constants
        c[h:, h:, h:] = ideal.structure_constants
        mixed = derivations.to(torch.float64).transpose(1, 2)  # [i, j, k]: D(e_i) e_j = sum_k mixed[i, j, k] e_k
        c[:h, h:, h:] = mixed
        c[h:, :h, h:] = -mixed.transpose(0, 1)
        return LieAlgebra(c, complement.names + ideal.names)


def balanced(algebra: LieAlgebra, dust: float = 1e-12) -> tuple[LieAlgebra, Tensor]:
    """The algebra in a basis d_i e_i in which structure constants are near one, and the lengths d, powers of two.

    Constants below ``dust``, relative to the largest, do not count.
    """
    c = algebra.structure_constants
    size = c.abs()
    i, j, k = (size > dust * size.max() if algebra.dim else size > 0).nonzero(as_tuple=True)
    if not len(i):
        return algebra, torch.ones(algebra.dim, dtype=torch.float64)
    unit = torch.eye(algebra.dim, dtype=torch.float64)
    solution = torch.linalg.pinv(unit[i] + unit[j] - unit[k], rtol=1e-10) @ -size[i, j, k].log()
    d = torch.exp2((solution / math.log(2.0)).round())
    return LieAlgebra._unchecked(c * d[:, None, None] * d[:, None] / d, algebra.names), d


def subalgebra(algebra: LieAlgebra, rows: Tensor, names: Sequence[str] | None = None) -> LieAlgebra:
    """Return the algebra that independent rows ``[k, dim]`` span, in that basis, with ``names`` for its vectors.

    Raises:
        AlgebraError: a bracket leaves the span.
    """
    brackets = real_structure(algebra).brackets(rows, rows)
    if not REALS.contains(rows, brackets):
        raise AlgebraError("expected a subalgebra, got rows whose brackets leave their span")
    c = REALS.coordinates(brackets, rows)
    # constants are compared with those of the whole algebra: the rows may commute
    length = rows.norm(dim=-1)
    size = 1e-11 * algebra.structure_constants.abs().max() if len(rows) else 0.0
    c = torch.where(c.abs() * length <= size * length[:, None, None] * length[None, :, None], 0.0, c)
    return LieAlgebra(0.5 * (c - c.transpose(0, 1)), names, tolerance=1e-7)


def find_split(algebra: LieAlgebra, exact: LieStructure[Array] | None = None) -> LeviDecomposition:
    """The split with n the nilradical, s a Levi factor, and t a torus that commutes with it.

    Args:
        exact: the same algebra with exact constants, if known; constants that look rational are tried as such.

    Raises:
        AlgebraError: no reductive complement of the nilradical was found in floating point: there may be none, or, in
            badly conditioned bases, one is missed.
    """
    exact = exact_structure(algebra) if exact is None else exact
    if exact is not None:
        return exact.split()
    even, lengths = balanced(algebra)
    found = real_structure(even).split()
    rows = (REALS.row_space(part * lengths) for part in (found.semisimple, found.torus, found.ideal))
    split = LeviDecomposition(*rows)
    return check_split(algebra, split.complement, split.ideal)


def check_split(algebra: LieAlgebra, complement: Tensor, ideal: Tensor) -> LeviDecomposition:
    """Return the decomposition of ``algebra`` that rows ``complement`` (h) and ``ideal`` (n) define.

    Raises:
        AlgebraError: h and n do not span g, h is not a reductive subalgebra, or n is not a nilpotent ideal; the message
            names the bracket that leaves its span.
    """
    n, names = algebra.dim, algebra.names
    both = torch.cat([complement, ideal])
    rank = len(REALS.row_space(both / both.norm(dim=-1, keepdim=True))) if len(both) else 0
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
            if not REALS.contains(space, bracket):
                left, right, out = (describe(v, names) for v in (x, y, bracket))
                raise AlgebraError(f"split: expected subalgebra h and ideal n, but {what}: [{left}, {right}] = {out}")
    if len(ideal) and subalgebra(algebra, ideal).nilpotency_step() is None:
        raise AlgebraError("split: expected a nilpotent n, got one that is not; move what scales or rotates it into h")
    if not len(complement):
        return LeviDecomposition(complement, complement, ideal)
    h = subalgebra(algebra, complement)
    structure = real_structure(h)
    derived, central = structure.bracket_span(structure.everything, structure.everything), structure.centre()
    killing = derived @ h.killing_form @ derived.T
    nondegenerate = not len(derived) or float(torch.linalg.cond(killing)) < 1e8
    if len(derived) + len(central) != h.dim or not nondegenerate:
        raise AlgebraError(
            f"split: expected a reductive h, got one of dimension {h.dim} whose centre has dimension {len(central)} "
            f"and whose derived algebra has dimension {len(derived)}. Move its nilpotent part into n"
        )
    semisimple, torus = derived @ complement, central @ complement
    # where h is semisimple or abelian the user's own vectors are the best basis of it
    if not len(torus):
        semisimple = complement
    elif not len(semisimple):
        torus = complement
    return LeviDecomposition(semisimple, torus, ideal)
