"""Phases 1 and 2 of `from_generators`: the user's fields become `VectorFields`, and are checked at sample points.

`parse_fields` takes torch functions, SymPy expressions or text, and chooses a basis of the span of expressions.
`sample_fields` draws points where all fields are finite; derivatives of torch functions and the user's flow are
compared with differences there, since a field that detaches or a flow of other fields would give a wrong group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.expressions import exact, parse_expression, require_sympy
from trivgeo.groups.from_generators.fields import (
    Formulas,
    VectorFields,
    compile_expressions,
    sample_points,
    unknown_functions,
    values_and_jacobians,
)
from trivgeo.groups.from_generators.span import simple_basis
from trivgeo.groups.ground_fields import Array
from trivgeo.groups.structure import LieStructure

_MIN_TERM_SHARE = 1e-9  # smallest ratio of terms in a sum that the 1e-15 arithmetic of fits resolves to six digits
_NUM_CHECKED_POINTS = 8  # points at which functions are compared with differences
_DIFFERENCE_STEP = 1e-3  # step of differences, in time or in a coordinate
_CHECKED_TIME = 0.05  # time for which a flow is followed twice
_MAX_STEP_CHANGE = 1e-5  # relative change of a difference between two steps that is trusted
_MAX_CHECK_ERROR = 1e-3  # relative error of a derivative or a flow


@dataclass(frozen=True)
class FieldExpressions:
    """Fields as SymPy expressions of the coordinates alone."""

    vectors: list[tuple[Any, ...]]
    symbols: list[Any]


@dataclass(frozen=True)
class FieldBasis:
    """A basis Y of the span of the generators X.

    Attributes:
        fields: the Y as functions of points.
        mixing: the generators in terms of the Y, ``X = mixing Y``, ``[n, n]``.
        expressions: the Y as expressions; ``None`` for torch functions.
        exact: the algebra of the group in this basis, where it is known exactly.
        is_simple: whether each Y is an expression with a term that no other has, so that no better conditioned basis
            is needed.
    """

    fields: VectorFields
    mixing: Tensor
    expressions: FieldExpressions | None = None
    exact: LieStructure[Array] | None = None
    is_simple: bool = False


@dataclass(frozen=True)
class ParsedFields:
    """The generators, and a basis of their span.

    Attributes:
        basis: the simple basis of the span of expressions, if their coefficients are rational; else the generators.
    """

    generators: VectorFields
    basis: FieldBasis


@dataclass(frozen=True)
class SampledFields(ParsedFields):
    """Fields, and the points ``[p, m]`` where they were evaluated, drawn by the user's ``sampler``, if any."""

    points: Tensor
    sampler: Callable[[int], Tensor] | None


def parse_fields(
    fields: Sequence[Any] | Mapping[str, Any],
    variables: Sequence[Any] | int,
    parameters: Mapping[Any, Any] | None,
) -> ParsedFields:
    """Parse vector fields to functions of points; see `from_generators` for the arguments.

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
    return _parse_expressions(FieldExpressions(_substitute(entries, symbols, parameters or {}), symbols), names)


def _symbols(variables: Sequence[Any]) -> list[Any]:
    sp = require_sympy()
    # names are parsed by a whitelist, never executed
    symbols = [parse_expression(v, f"variables[{i}]") if isinstance(v, str) else v for i, v in enumerate(variables)]
    if not all(isinstance(s, sp.Symbol) for s in symbols):
        raise ConfigurationError(f"variables: expected SymPy symbols or names, got {symbols}")
    return symbols


def _substitute(
    fields: Sequence[Any], variables: Sequence[Any], parameters: Mapping[Any, Any]
) -> list[tuple[Any, ...]]:
    """Each field as a tuple of SymPy expressions of the variables alone, with values of the parameters.

    Raises:
        ConfigurationError: a field has the wrong length, a symbol is left without a value, or a value without a symbol.
    """
    sp = require_sympy()
    named = {str(key): exact(value, f"parameters[{key}]") for key, value in parameters.items()}
    names = {name: sp.Symbol(name) for name in named} | {s.name: s for s in variables}
    unused, missing = set(named), set()
    result = []
    for index, field in enumerate(fields):
        components = getattr(field, "components", field)
        if not isinstance(components, Iterable):
            raise ConfigurationError(f"fields[{index}]: expected one component for each variable, got {field!r}")
        # text is parsed by a whitelist, never executed
        entries = [exact(entry, f"fields[{index}]", names=names) for entry in components]
        if len(entries) != len(variables):
            raise ConfigurationError(
                f"fields[{index}]: expected {len(variables)} components for {tuple(variables)}, got {len(entries)}"
            )
        known = {s: named[s.name] for e in entries for s in e.free_symbols if s.name in named and s not in variables}
        unused -= {s.name for s in known}
        entries = [entry.subs(known) for entry in entries]
        missing |= set().union(*(entry.free_symbols for entry in entries)) - set(variables)
        result.append(tuple(entries))
    if missing:
        every = ", ".join(sorted(map(str, missing)))
        raise ConfigurationError(f"parameters: expected a number, by keyword, for each of: {every}")
    if unused:
        raise ConfigurationError(f"parameters: expected names that fields hold, got {sorted(unused)}")
    return result


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
    """Expressions as torch functions."""
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


def sample_fields(
    parsed: ParsedFields,
    sampler: Callable[[int], Tensor] | None,
    flow: Callable[[Tensor, Tensor], Tensor] | None,
) -> SampledFields:
    """Draw points where the fields are finite, and check fields and flow there; see `from_generators`.

    Raises:
        AlgebraError: derivatives of a torch function are not its own.
        ConfigurationError: too few points were found, a term of an expression is too small there, or the flow is not
            that of the fields.
    """
    generators, expressions = parsed.generators, parsed.basis.expressions
    if expressions is None:
        _check_derivatives(generators, sample_points(generators, _NUM_CHECKED_POINTS, sampler))
    points = sample_points(generators, 4 * (generators.dim + 1) ** 2 + 8, sampler)
    if expressions is not None:
        _check_terms(expressions.vectors, expressions.symbols, points)
    if flow is not None:
        _check_flow(flow, generators, points[:_NUM_CHECKED_POINTS])
    return SampledFields(parsed.generators, parsed.basis, points, sampler)


def _check_terms(fields: Sequence[Sequence[Any]], variables: Sequence[Any], points: Tensor) -> None:
    """Check that no term of the fields is lost beside others of its sum at all sample points.

    Raises:
        ConfigurationError: a term is smaller than rounding of another one of its sum at all points.
    """
    sp = require_sympy()
    for entry in dict.fromkeys(entry for field in fields for entry in field):
        # fits are of degree two at most: powers of sums need not be expanded
        of_low_degree = entry.is_polynomial(*variables) and sp.Poly(entry, *variables).total_degree() <= 2
        terms = sp.Add.make_args(sp.expand(entry) if of_low_degree else entry)
        if len(terms) > 1 and not unknown_functions(terms):
            sizes = compile_expressions(terms, variables)(*points.unbind(-1)).abs().nan_to_num(0.0, 0.0)
            largest = sizes.amax(-1, keepdim=True)
            shares = torch.where(largest > 0, sizes / largest, 0.0).amax(0)
            shares = torch.where(shares > 0, shares, 1.0)
            smallest = int(shares.argmin())
            if float(shares[smallest]) < _MIN_TERM_SHARE:
                raise ConfigurationError(
                    f"fields: expected terms that differ by less than nine orders of magnitude at some sampled point, "
                    f"got {terms[smallest]} in {entry}; give a `sampler` of points where it counts, or other units"
                )


def _check_derivatives(fields: VectorFields, points: Tensor) -> None:
    """Check forward-mode derivatives of ``fields`` by differences of their values at ``points``, ``[p, m]``.

    Brackets are made from derivatives: a field that detaches, rounds or looks up would seem constant.

    Raises:
        AlgebraError: a derivative is wrong.
    """
    values, jacobians = values_and_jacobians(fields, points)
    axes = torch.eye(fields.dim, dtype=torch.float64)

    def difference(step: float) -> Tensor:
        near, far = (
            torch.stack([fields(points + k * step * a) - fields(points - k * step * a) for a in axes], -1)
            for k in (1, 2)
        )
        return (8.0 * near - far) / (12.0 * step)

    size = values.abs().amax((-2, -1)) + jacobians.abs().amax((-3, -2, -1))  # size of the fields at each point
    coarse, fine = difference(_DIFFERENCE_STEP), difference(0.5 * _DIFFERENCE_STEP)
    size = (size + fine.abs().nan_to_num(0.0, 0.0).amax((-3, -2, -1))).clamp(min=1e-300)[:, None, None, None]
    known = (coarse - fine).abs() <= _MAX_STEP_CHANGE * size
    wrong = (known & ((jacobians - fine).abs() > _MAX_CHECK_ERROR * size)).any(-1)  # point, field, component
    if bool(wrong.any()):
        _, field, component = (int(i) for i in wrong.nonzero()[0])
        raise AlgebraError(
            f"field {fields.names[field]}: expected derivatives of its component {fields.coordinates[component]} that "
            "agree with differences of its values, got different ones. Does it detach, round, or leave torch?"
        )


def _check_flow(flow: Callable[[Tensor, Tensor], Tensor], fields: VectorFields, points: Tensor) -> None:
    """Check at points ``[p, m]`` that a flow starts along the fields, and that its times add up.

    Raises:
        ConfigurationError: a check fails, or the flow returns no finite points of the right shape.
    """
    n, (count, m) = len(fields), points.shape
    generator = torch.Generator().manual_seed(0)
    unit = torch.eye(n, dtype=torch.float64)
    vectors = torch.cat([unit, normal((2, n), unit, generator)]).repeat_interleave(count, 0)
    start = points.repeat(n + 2, 1)

    def run(time: float, x: Tensor) -> Tensor:
        y = flow(time * vectors, x)
        if not isinstance(y, Tensor) or y.shape != (len(vectors), m):
            got = list(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise ConfigurationError(f"flow: expected points {[len(vectors), m]} for as many vectors, got {got}")
        return y

    near = run(_DIFFERENCE_STEP, start) - run(-_DIFFERENCE_STEP, start)
    far = run(2 * _DIFFERENCE_STEP, start) - run(-2 * _DIFFERENCE_STEP, start)
    slope = (8.0 * near - far) / (12.0 * _DIFFERENCE_STEP)
    once, twice = run(_CHECKED_TIME, run(_CHECKED_TIME, start)), run(2.0 * _CHECKED_TIME, start)
    expected = fields.combination(vectors, start)
    size = 1.0 + start.abs().amax(-1, keepdim=True)
    for what, left, right, bound in (
        ("to leave points where they are at time zero", run(0.0, start), start, size),
        ("to start along the fields", slope, expected, size + expected.abs().amax(-1, keepdim=True)),
        ("to be followed twice in twice the time", once, twice, size + twice.abs().amax(-1, keepdim=True)),
    ):
        finite = (torch.isfinite(left) & torch.isfinite(right)).all(-1)
        missed = torch.where(finite, ((left - right).abs() / bound).amax(-1), 0.0)
        if not bool(finite.any()):
            raise ConfigurationError("flow: expected finite values at sample points, got none")
        if float(missed.max()) > _MAX_CHECK_ERROR:
            raise ConfigurationError(f"flow: expected it {what}, got one that misses by {float(missed.max()):.2g}")
