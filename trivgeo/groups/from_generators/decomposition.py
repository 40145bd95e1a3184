"""Phase 3 of `from_generators`: structure constants, and the Levi decomposition in a basis that makes it simple."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups.algebra import LieAlgebra, balanced, check_split, find_split
from trivgeo.groups.from_generators.span import evaluation_basis, fit_brackets, without_cancelled
from trivgeo.groups.from_generators.user_fields import FieldBasis, SampledFields
from trivgeo.groups.ground_fields import Array
from trivgeo.groups.structure import LeviDecomposition, LieStructure, exact_structure

_MIN_CONSTANT_RATIO = 1e-11  # ratio of two constants, below which ranks need vectors of other lengths

Vectors = Sequence[int | str | Sequence[float]]
"""Vectors of an algebra: generators by index or name, or coefficients of the generators."""


@dataclass(frozen=True)
class AdaptedAlgebra:
    """An algebra in a basis Y that makes its decomposition simple.

    Attributes:
        algebra: the algebra, with the sign of the group.
        mixing: the generators in terms of the Y, ``X = mixing Y``, ``[n, n]``.
    """

    algebra: LieAlgebra
    levi: LeviDecomposition
    mixing: Tensor


@dataclass(frozen=True)
class DecomposedFields:
    """Fields whose algebra is decomposed.

    Attributes:
        algebra: the algebra in the basis of the generators, with the sign of the group.
        adapted: the algebra in the basis Y, with its decomposition.
        basis: the fields of the basis Y.
    """

    algebra: LieAlgebra
    adapted: AdaptedAlgebra
    basis: FieldBasis
    points: Tensor


def decompose(sampled: SampledFields, split: tuple[Vectors, Vectors] | None) -> DecomposedFields:
    """The Levi decomposition of the algebra of fields, or the user's.

    It is exact if the fields are polynomials with rational coefficients, or their constants look rational. Else it is
    found in floating point, in the first of several bases in which ranks can be decided.

    Args:
        split: the user's decomposition (h, n), see `from_generators`; ``None`` for the automatic one.

    Raises:
        AlgebraError: the fields are dependent, do not close, or no decomposition was found.
        ConfigurationError: the split does not name generators.
    """
    basis, names = sampled.basis, sampled.generators.names
    algebra = LieAlgebra(_constants(sampled), basis.fields.names)
    exact = exact_structure(algebra) if basis.exact is None else basis.exact
    if exact is not None or split is not None or basis.is_simple:
        return _decomposed(sampled, basis, algebra, _levi(algebra, exact, basis, names, split))
    failure: AlgebraError | None = None
    for candidate in _candidate_bases(sampled, algebra):
        try:
            if candidate is not basis:
                algebra = LieAlgebra(-fit_brackets(candidate.fields, sampled.sampler))
            return _decomposed(sampled, candidate, algebra, find_split(algebra))
        except AlgebraError as error:
            failure = error  # ranks could not be decided
    assert failure is not None
    raise failure


def _constants(sampled: SampledFields) -> Tensor:
    """The structure constants of the group in the basis of the parsed fields, ``[n, n, n]``."""
    basis, generators = sampled.basis, sampled.generators
    if basis.exact is not None:
        return basis.exact.field.tensor(basis.exact.constants)
    try:
        return -fit_brackets(basis.fields, sampled.sampler)
    except AlgebraError:
        if basis.fields is not generators:
            fit_brackets(generators, sampled.sampler)  # its error names the user's fields
        raise


def _candidate_bases(sampled: SampledFields, algebra: LieAlgebra) -> Iterator[FieldBasis]:
    """Bases in which ranks may be decidable: vectors of other lengths, the given one, a well-conditioned one."""
    basis = sampled.basis
    size = algebra.structure_constants.abs()
    if bool((size[size > 0] < _MIN_CONSTANT_RATIO * size.max()).any()):
        lengths = balanced(algebra, dust=0.0)[1]
        yield FieldBasis(basis.fields.mixed(torch.diag(lengths)), torch.diag(1.0 / lengths))
    yield basis
    if basis.expressions is None:
        weights = evaluation_basis(basis.fields, sampled.points)
        yield FieldBasis(basis.fields.mixed(weights), torch.linalg.inv(weights))


def _levi(
    algebra: LieAlgebra,
    exact: LieStructure[Array] | None,
    basis: FieldBasis,
    names: Sequence[str],
    split: tuple[Vectors, Vectors] | None,
) -> LeviDecomposition:
    """The decomposition in a basis: the user's if there is one."""
    if split is None:
        return find_split(algebra, exact)
    if len(split) != 2:
        raise ConfigurationError(f"split: expected (h, n), got {len(split)} entries")
    generators = algebra_in_basis(algebra, basis.mixing, names)
    named = check_split(generators, _rows(generators, split[0]), _rows(generators, split[1]))
    return LeviDecomposition(*(part @ basis.mixing for part in (named.semisimple, named.torus, named.ideal)))


def _decomposed(
    sampled: SampledFields, basis: FieldBasis, algebra: LieAlgebra, levi: LeviDecomposition
) -> DecomposedFields:
    generators = algebra_in_basis(algebra, basis.mixing, sampled.generators.names)
    return DecomposedFields(generators, AdaptedAlgebra(algebra, levi, basis.mixing), basis, sampled.points)


def algebra_in_basis(algebra: LieAlgebra, mixing: Tensor, names: Sequence[str]) -> LieAlgebra:
    """The algebra in the basis ``mixing Y``, whose vectors have the given names."""
    c, unmix = algebra.structure_constants, torch.linalg.inv(mixing)
    if torch.equal(mixing, torch.eye(len(mixing), dtype=torch.float64)):
        return LieAlgebra(c, names)
    mixed = torch.einsum("ai,bj,ijk,kc->abc", mixing, mixing, c, unmix)
    terms = torch.einsum("ai,bj,ijk,kc->abc", *(entry.abs() for entry in (mixing, mixing, c, unmix)))
    mixed = without_cancelled(mixed, terms)
    return LieAlgebra(0.5 * (mixed - mixed.transpose(0, 1)), names)


def _rows(algebra: LieAlgebra, vectors: Vectors) -> Tensor:
    """Vectors that a user named, as rows ``[k, n]``."""
    unit = torch.eye(algebra.dim, dtype=torch.float64)
    result = []
    for item in vectors:
        if isinstance(item, str):
            if item not in algebra.names:
                raise ConfigurationError(f"split: expected one of {list(algebra.names)}, got {item!r}")
            result.append(unit[algebra.names.index(item)])
        elif isinstance(item, int):
            if not 0 <= item < algebra.dim:
                raise ConfigurationError(f"split: expected an index below {algebra.dim}, got {item}")
            result.append(unit[item])
        else:
            vector = torch.as_tensor(item, dtype=torch.float64)
            if vector.shape != (algebra.dim,):
                raise ConfigurationError(
                    f"split: expected a vector of {algebra.dim} coefficients, got {list(vector.shape)}"
                )
            result.append(vector)
    return torch.stack(result) if result else unit[:0]
