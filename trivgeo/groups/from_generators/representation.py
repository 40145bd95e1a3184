r"""Matrices of elements in a representation of the algebra, as polynomials of the stored coordinates where possible.

An element is :math:`\exp(n) \exp(\sigma)\, a`. In a representation of the algebra :math:`\exp(n)` is a polynomial in n
where the ideal acts nilpotently, and :math:`\exp(\sigma)` a sum of exponentials with fixed projectors. The matrix of a
is a polynomial in the entries of the stored one for SL(2, R), or where it is linear in them. So a batch costs a
few products of columns and one product with a constant matrix, and no exponential or logarithm of small matrices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo._random import normal
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.from_generators.elements import FactoredElements
from trivgeo.groups.from_generators.ideal_automorphism import SemisimpleAdjoint, TorusExponential
from trivgeo.groups.from_generators.reductive_group import ReductiveGroup
from trivgeo.groups.from_generators.span import SUM_ROUNDING
from trivgeo.groups.linalg import matrix_functions

_MAX_TERMS = 200  # terms of a polynomial
_MAX_PRODUCTS = 400  # products of terms when several polynomials are multiplied out
_MAX_DEGREE = 6  # degree of polynomials in the entries of SL(2, R), twice the spin
_MAX_FIT_ERROR = 1e-10  # error of a polynomial, relative to one plus its largest value
_MAX_CASIMIR_ERROR = 1e-6  # error of an eigenvalue of the Casimir operator


class Monomials:
    """Products of powers of entries: ``[*batch, k] -> [*batch, count]``; k ``exponents`` for each product."""

    def __init__(self, exponents: Sequence[Sequence[int]]) -> None:
        self.exponents = [tuple(e) for e in exponents]
        known: dict[tuple[int, ...], int] = {}
        self._steps: list[tuple[int, int]] = []  # each product as one before, -1 for one, times an entry

        def place(e: tuple[int, ...]) -> int:
            if not any(e):
                return -1
            if e not in known:
                c = next(i for i, power in enumerate(e) if power)
                before = place((*e[:c], e[c] - 1, *e[c + 1 :]))
                known[e] = len(self._steps)
                self._steps.append((before, c))
            return known[e]

        self._places = [place(e) for e in self.exponents]

    def __call__(self, x: Tensor) -> Tensor:
        """The products at vectors ``[*batch, k]``."""
        entries = x.unbind(-1)
        values: list[Tensor] = []
        for before, c in self._steps:
            values.append(entries[c] if before < 0 else values[before] * entries[c])
        one = torch.ones_like(x[..., 0])
        return torch.stack([one if place < 0 else values[place] for place in self._places], -1)


class _Polynomial:
    """Matrices that are polynomials in the entries of vectors; ``terms`` has a matrix for each product of powers."""

    def __init__(self, terms: dict[tuple[int, ...], Tensor]) -> None:
        self.features = Monomials(list(terms))
        self.matrices = torch.stack(list(terms.values()))
        self._coefficients = Constant(self.matrices.flatten(1))

    def __call__(self, x: Tensor) -> Tensor:
        """The matrices at vectors: ``[*batch, k] -> [*batch, d, d]``."""
        return (self.features(x) @ self._coefficients.matching(x)).unflatten(-1, self.matrices.shape[1:])


class SemisimpleMap(SemisimpleAdjoint):
    """The matrix of a semisimple element in a representation, from its stored matrix.

    Args:
        matrices: the representation of the basis of the semisimple algebra, ``[r, d, d]``.
    """

    def __init__(self, group: ReductiveGroup, matrices: Tensor) -> None:
        self.map: _Polynomial | None = None
        self._size = matrices.shape[-1]
        self.is_trivial = not bool((matrices.abs() > SUM_ROUNDING).any())
        if not self.is_trivial:
            self.map = _of_plane(group, matrices) if group.size == 2 else _linear(group, matrices)

    @property
    def exists(self) -> bool:
        """True if the representation is a polynomial of the entries of the stored matrix."""
        return self.map is not None or self.is_trivial

    def __call__(self, a: Tensor) -> Tensor:
        if self.map is None:
            return torch.eye(self._size, dtype=a.dtype, device=a.device).expand(*a.shape[:-2], -1, -1)
        return self.map(a.flatten(-2))


class Representation:
    """The matrices of elements in a representation, or their first rows.

    Args:
        matrices: the representation of the adapted fields, ``[n, d, d]``.
        rows: the number of leading rows that are wanted, by default all.
    """

    def __init__(self, elements: FactoredElements, matrices: Tensor, rows: int | None = None) -> None:
        self._elements = elements
        self._matrices = Constant(matrices)
        self._rows = rows
        self._kernel = matrix_functions(matrices.shape[-1])
        reductive = elements.reductive
        of_rows = torch.einsum("ri,iab->rab", elements.basis, matrices)
        r = 0 if reductive is None else reductive.semisimple_dim
        k = 0 if reductive is None else reductive.torus_dim
        self._semisimple = None if reductive is None else SemisimpleMap(reductive, of_rows[:r])
        self._torus = TorusExponential(torch.einsum("ki,iab->kab", elements.torus, matrices)) if k else None
        terms = _nilpotent(of_rows[r + k :])
        self._ideal = None if terms is None else _Polynomial(terms)
        self._ideal_basis = Constant(of_rows[r + k :])
        self._sum = self._single_sum()

    def _single_sum(self) -> _Sum | None:
        """The product of all factors, multiplied out, if each is a sum of few functions times fixed matrices."""
        unit = torch.eye(self._matrices.value.shape[-1], dtype=torch.float64)
        product = unit[None, : self._rows]
        functions: list[Callable[[Tensor], Tensor] | None] = [None, None, None]
        if self._ideal is None:
            return None
        if len(self._ideal.matrices) > 1:
            product, functions[0] = product @ self._ideal.matrices, self._ideal.features
        if self._torus is not None:
            matrices = self._torus.terms()
            if matrices is None:
                return None
            product = (product.unsqueeze(1) @ matrices).flatten(0, 1)
            functions[1] = self._torus.features
        if self._semisimple is not None and not self._semisimple.is_trivial:
            if self._semisimple.map is None:
                return None
            product = (product.unsqueeze(1) @ self._semisimple.map.matrices).flatten(0, 1)
            functions[2] = self._semisimple.map.features
        return _Sum(functions, product) if len(product) <= _MAX_PRODUCTS else None

    def __call__(self, g: Tensor) -> Tensor:
        """The matrices of elements: ``[*batch, E] -> [*batch, rows, d]``."""
        if self._semisimple is not None and not self._semisimple.exists:
            return self._by_factors(g)[..., : self._rows, :]
        matrix, sigma, n = self._elements.parts_in_group(g)
        if self._sum is not None:
            return self._sum(n, sigma, matrix.flatten(-2))
        total = None
        if n.shape[-1]:
            if self._ideal is not None:
                total = self._ideal(n)
            else:
                total = self._kernel.exp(torch.einsum("...i,iab->...ab", n, self._ideal_basis.matching(n)))
            total = total[..., : self._rows, :]
        if self._torus is not None:
            total = self._torus.times(total, sigma)
        if self._semisimple is not None and not self._semisimple.is_trivial:
            a = self._semisimple(matrix)
            total = a if total is None else total @ a
        assert total is not None
        return total[..., : self._rows, :]

    def _by_factors(self, g: Tensor) -> Tensor:
        """The products of exponentials of the factors of elements."""
        total = None
        for v in self._elements.factors(g):
            step = self._kernel.exp(torch.einsum("...i,iab->...ab", v, self._matrices.matching(v)))
            total = step if total is None else step @ total
        assert total is not None
        return total


class _Sum:
    """A sum of products of functions of the three parts of elements, times fixed matrices.

    Args:
        functions: functions of ideal, torus and semisimple coordinates; ``None`` for the constant one.
        matrices: the matrix of each product, the last factor fastest, ``[count, rows, d]``.
    """

    def __init__(self, functions: Sequence[Callable[[Tensor], Tensor] | None], matrices: Tensor) -> None:
        self._functions = tuple(functions)
        self._shape = matrices.shape[1:]
        self._coefficients = Constant(matrices.flatten(1))

    def __call__(self, *parts: Tensor) -> Tensor:
        """The sum for ideal, torus and semisimple coordinates, ``[*batch, rows, d]``."""
        total: Tensor | None = None
        for function, part in zip(self._functions, parts, strict=True):
            if function is not None:
                values = function(part)
                total = values if total is None else (total.unsqueeze(-1) * values.unsqueeze(-2)).flatten(-2)
        if total is None:
            total = torch.ones_like(parts[1].sum(-1, keepdim=True))
        return (total @ self._coefficients.matching(total)).unflatten(-1, self._shape)


def _nilpotent(matrices: Tensor) -> dict[tuple[int, ...], Tensor] | None:
    """The terms of the polynomial ``exp(sum_i n_i M_i)``; ``None`` if it is not a polynomial, or has too many terms."""
    count, d = len(matrices), matrices.shape[-1]
    unit = torch.eye(d, dtype=torch.float64)
    # entries with the sizes of their terms: rounding is relative to these
    layer = {(0,) * count: (unit, unit)}
    total = {(0,) * count: unit}
    for power in range(1, d + 1):
        following: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        for e, (matrix, size) in layer.items():
            for i in range(count):
                place = (*e[:i], e[i] + 1, *e[i + 1 :])
                found, cancelled = following.get(place, (torch.zeros_like(unit), torch.zeros_like(unit)))
                found = found + matrices[i] @ matrix / power
                following[place] = found, cancelled + matrices[i].abs() @ size / power
        layer = {e: (m, size) for e, (m, size) in following.items() if bool((m.abs() > SUM_ROUNDING * size).any())}
        if not layer:
            return total
        total |= {e: m for e, (m, _) in layer.items()}
        if len(total) > _MAX_TERMS:
            return None
    return None


def _samples(group: ReductiveGroup, matrices: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Entries of the stored matrices of random elements, and their matrices in a representation."""
    generator = torch.Generator().manual_seed(0)
    v = normal((count, group.semisimple_dim), matrices, generator)
    size = torch.einsum("ci,iab->cab", v, matrices).abs().sum(-1).amax(-1)
    own = group.matrix_of(v)
    size = torch.maximum(size, own.abs().sum(-1).amax(-1))
    v = v / size[:, None].clamp(min=1e-300)
    target = torch.linalg.matrix_exp(torch.einsum("ci,iab->cab", v, matrices))
    return torch.linalg.matrix_exp(group.matrix_of(v)).flatten(1), target


def _fitted(exponents: list[tuple[int, ...]], entries: Tensor, target: Tensor) -> dict[tuple[int, ...], Tensor] | None:
    """The polynomial with ``exponents`` that takes the values ``target`` at ``entries``; ``None`` if there is none."""
    features, d = Monomials(exponents)(entries), target.shape[-1]
    half = len(features) // 2
    flat = target.flatten(1)
    solution = torch.linalg.lstsq(features[:half], flat[:half], driver="gelsd").solution
    if float((features @ solution - flat).abs().max()) > _MAX_FIT_ERROR * (1.0 + float(flat.abs().max())):
        return None
    near = (24.0 * solution).round() / 24.0
    solution = torch.where((solution - near).abs() < 1e-12 * (1.0 + solution.abs()), near, solution)
    matrices = solution.unflatten(-1, (d, d))
    return {e: matrix for e, matrix in zip(exponents, matrices, strict=True) if bool(matrix.any())}


def _linear(group: ReductiveGroup, matrices: Tensor) -> _Polynomial | None:
    """The matrix as a linear function of the stored entries, ``None`` if it is not linear."""
    k = group.size * group.size
    unit = torch.eye(k, dtype=torch.int64).tolist()
    exponents = [(0,) * k, *(tuple(row) for row in unit)]
    terms = _fitted(exponents, *_samples(group, matrices, 2 * (k + 9)))
    return None if terms is None else _Polynomial(terms)


def _casimir(algebra: LieAlgebra, matrices: Tensor) -> tuple[Tensor, list[int]]:
    """The Casimir operator of SL(2, R), which is j (j + 1) / 2 on spin j, and the values of 2 j that occur."""
    casimir = torch.einsum("ij,iab,jbc->ac", torch.linalg.inv(algebra.killing_form), matrices, matrices)
    values = torch.linalg.eigvals(casimir).real
    present = [
        k for k in range(_MAX_DEGREE + 1) if bool(((values - k * (k + 2) / 8.0).abs() < _MAX_CASIMIR_ERROR).any())
    ]
    return casimir, present


def has_half_spin(algebra: LieAlgebra, matrices: Tensor) -> bool:
    """Return True if matrices ``[3, d, d]`` of ``algebra`` sl(2, R) represent SL(2, R), but not its quotient by -1."""
    return any(k % 2 for k in _casimir(algebra, matrices)[1])


def _of_plane(group: ReductiveGroup, matrices: Tensor) -> _Polynomial | None:
    """The matrix as a polynomial in the entries of SL(2, R): homogeneous of degree 2 j on the part of spin j."""
    d = matrices.shape[-1]
    plane = group.matrix_of(torch.eye(3, dtype=torch.float64))
    casimir, present = _casimir(LieAlgebra.from_matrices(plane), matrices)
    unit = torch.eye(d, dtype=torch.float64)
    entries, target = _samples(group, matrices, 2 * (_count(max(present, default=0)) + 9))
    total: dict[tuple[int, ...], Tensor] = {}
    for k in present:
        projector = unit
        for other in present:
            if other != k:
                projector = (
                    projector @ (8.0 * casimir - other * (other + 2) * unit) / (k * (k + 2) - other * (other + 2))
                )
        exponents = [e for e in itertools.product(range(k + 1), repeat=4) if sum(e) == k]
        terms = _fitted(exponents, entries, projector @ target)
        if terms is None:
            return None
        total |= terms
    whole = _Polynomial(total)
    missed = (whole(entries) - target).abs().max()
    return whole if float(missed) < _MAX_FIT_ERROR * (1.0 + float(target.abs().max())) else None


def _count(degree: int) -> int:
    """The number of monomials of a degree in four entries."""
    return (degree + 1) * (degree + 2) * (degree + 3) // 6
