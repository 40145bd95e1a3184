"""Phase 1 of `from_generators`: the user's fields as torch functions, and a simple basis of their span."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trivgeo.errors import ConfigurationError
from trivgeo.expressions import parse_expression
from trivgeo.groups.generated.field_basis import simple_basis
from trivgeo.groups.generated.symbolic import compile_expressions, require_sympy, substitute, unknown_functions
from trivgeo.groups.generated.vector_fields import Formulas, VectorFields
from trivgeo.groups.rational_algebra import RationalAlgebra

__all__ = ["FieldBasis", "FieldExpressions", "ParsedFields", "compile_fields", "parse_fields"]


@dataclass(frozen=True)
class FieldExpressions:
    """Fields as SymPy expressions of the coordinates alone.

    Attributes:
        vectors: the components of each field.
        symbols: the coordinates.
    """

    vectors: list[tuple[Any, ...]]
    symbols: list[Any]


@dataclass(frozen=True)
class FieldBasis:
    """A basis Y of the span of the generators X.

    Attributes:
        fields: the Y.
        mixing: the generators in terms of the Y, ``X = mixing Y``, ``[n, n]``.
        expressions: the Y as expressions; ``None`` for torch functions.
        exact: the algebra of the group in this basis, where it is known exactly.
        is_simple: whether a better conditioned basis need not be looked for: each Y is an expression with a term that
            no other has.
    """

    fields: VectorFields
    mixing: Tensor
    expressions: FieldExpressions | None = None
    exact: RationalAlgebra | None = None
    is_simple: bool = False


@dataclass(frozen=True)
class ParsedFields:
    """The generators, and a basis of their span.

    Attributes:
        generators: the fields that the user gave.
        basis: the simple basis of the span of expressions, if their coefficients are rational; else the generators.
    """

    generators: VectorFields
    basis: FieldBasis


def parse_fields(
    fields: Sequence[Any] | Mapping[str, Any],
    variables: Sequence[Any] | int,
    parameters: Mapping[Any, Any] | None,
) -> ParsedFields:
    """Parse vector fields to functions of points.

    Args:
        fields: torch functions or vectors of expressions, by number or name, see `from_generators`.
        variables: symbols or names of the coordinates, or their number.
        parameters: values of other symbols in expressions.

    Raises:
        ConfigurationError: no field, functions mixed with expressions, or expressions that cannot be parsed.
    """
    entries = list(fields.values()) if isinstance(fields, Mapping) else list(fields)
    names = tuple(fields) if isinstance(fields, Mapping) else tuple(f"X{i + 1}" for i in range(len(entries)))
    if not entries:
        raise ConfigurationError("fields: expected at least one, got none")
    if all(callable(entry) for entry in entries):
        if parameters is not None:
            raise ConfigurationError("parameters: expected none for torch functions; close over the values")
        coordinates = [f"x{i + 1}" for i in range(variables)] if isinstance(variables, int) else list(variables)
        generators = VectorFields(entries, [str(c) for c in coordinates], names)
        return ParsedFields(generators, FieldBasis(generators, _unit(len(entries))))
    if any(callable(entry) for entry in entries) or isinstance(variables, int):
        raise ConfigurationError("fields: expected torch functions only, or SymPy vectors with symbols as variables")
    symbols = _symbols(variables)
    return _parse_expressions(FieldExpressions(substitute(entries, symbols, parameters or {}), symbols), names)


def _symbols(variables: Sequence[Any]) -> list[Any]:
    """Coordinates as SymPy symbols."""
    sp = require_sympy()
    # names are parsed by a whitelist, never executed
    symbols = [parse_expression(v, f"variables[{i}]") if isinstance(v, str) else v for i, v in enumerate(variables)]
    if not all(isinstance(s, sp.Symbol) for s in symbols):
        raise ConfigurationError(f"variables: expected SymPy symbols or names, got {symbols}")
    return symbols


def _parse_expressions(expressions: FieldExpressions, names: Sequence[str]) -> ParsedFields:
    """Expressions as torch functions, and in their simple basis."""
    coordinates = [s.name for s in expressions.symbols]
    count = len(expressions.vectors)
    simple = simple_basis(expressions.vectors, expressions.symbols)
    if simple is None:
        generators = compile_fields(expressions, coordinates, names)
        return ParsedFields(generators, FieldBasis(generators, _unit(count), expressions))
    if torch.equal(simple.mixing, _unit(count)):
        generators = compile_fields(expressions, coordinates, names)
        return ParsedFields(generators, FieldBasis(generators, simple.mixing, expressions, simple.algebra, True))
    written = FieldExpressions(simple.vectors, expressions.symbols)
    fields = compile_fields(written, coordinates, [f"Y{i + 1}" for i in range(count)])
    basis = FieldBasis(fields, simple.mixing, written, simple.algebra, True)
    return ParsedFields(fields.mixed(simple.mixing, names), basis)


def compile_fields(expressions: FieldExpressions, coordinates: Sequence[str], names: Sequence[str]) -> VectorFields:
    """Expressions as torch functions.

    Args:
        expressions: the fields.
        coordinates: names of the coordinates.
        names: names of the fields.
    """
    sp = require_sympy()
    vectors, symbols = expressions.vectors, expressions.symbols
    coefficients = sp.symbols(f"v0:{len(vectors)}", cls=sp.Dummy)
    sums = [
        sp.Add(*(c * vector[a] for c, vector in zip(coefficients, vectors, strict=True))) for a in range(len(symbols))
    ]
    components = [entry for vector in vectors for entry in vector]
    slopes = [sp.diff(entry, s) for entry in components for s in symbols]
    torch_has_slopes = not unknown_functions(slopes) and not any(slope.has(sp.Derivative) for slope in slopes)
    formulas = Formulas(
        values=compile_expressions(components, symbols),
        slopes=compile_expressions(slopes, symbols) if torch_has_slopes else None,
        sums=compile_expressions(sums, [*coefficients, *symbols]),
        each=[compile_expressions([entry], [*coefficients, *symbols]) for entry in sums],
    )
    functions = [_PointFunction(compile_expressions(vector, symbols)) for vector in vectors]
    return VectorFields(functions, coordinates, names, formulas)


@dataclass(frozen=True)
class _PointFunction:
    """A function of points ``[*batch, m]`` from one of m coordinates."""

    function: Callable[..., Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(*x.unbind(-1))


def _unit(count: int) -> Tensor:
    return torch.eye(count, dtype=torch.float64)
