"""The only door to SymPy, and what vector fields need of it. SymPy is imported on first use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.expressions import exact, parse_expression, require_sympy

__all__ = [
    "compile_expressions",
    "exact_structure_constants",
    "require_sympy",
    "substitute",
    "unknown_functions",
]


def substitute(fields: Sequence[Any], variables: Sequence[Any], parameters: Mapping[Any, Any]) -> list[tuple[Any, ...]]:
    """Each field as a tuple of SymPy expressions of the variables alone, with the parameters' values put in.

    Args:
        fields: vectors of expressions, one for each variable.
        variables: the coordinates, symbols.
        parameters: values of the other symbols, by symbol or by name.

    Raises:
        ConfigurationError: a field has the wrong length, or a symbol is left without a value.
    """
    require_sympy()
    coordinates = {s.name: s for s in variables}

    def read(entry: Any, what: str) -> Any:
        # text is parsed by a whitelist, never executed
        return parse_expression(entry, what, names=coordinates) if isinstance(entry, str) else exact(entry, what)

    named = {str(key): exact(value, f"parameters[{key}]") for key, value in parameters.items()}
    result = []
    for index, field in enumerate(fields):
        components = list(field) if not hasattr(field, "components") else field.components
        entries = [read(entry, f"fields[{index}]") for entry in components]
        if len(entries) != len(variables):
            raise ConfigurationError(
                f"fields[{index}]: expected {len(variables)} components for {tuple(variables)}, got {len(entries)}"
            )
        known = {s: named[s.name] for e in entries for s in e.free_symbols if s.name in named and s not in variables}
        entries = [entry.subs(known) for entry in entries]
        unknown = set().union(*(entry.free_symbols for entry in entries)) - set(variables)
        if unknown:
            missing = ", ".join(sorted(map(str, unknown)))
            raise ConfigurationError(f"fields[{index}]: expected a value in `parameters` for each of: {missing}")
        result.append(tuple(entries))
    return result


def compile_expressions(expressions: Sequence[Any], variables: Sequence[Any]) -> Callable[..., Tensor]:
    """A torch function of one tensor a variable (their shapes broadcast) that stacks the values on a last axis.

    Raises:
        ConfigurationError: an expression holds a function that torch lacks.
    """
    return _Compiled(tuple(expressions), tuple(variables))


class _Compiled:
    """Expressions as a torch function, which can be pickled."""

    def __init__(self, expressions: Sequence[Any], variables: Sequence[Any]) -> None:
        sp = require_sympy()
        table = {name: getattr(torch, name) for name in _TORCH_FUNCTIONS} | {"Abs": torch.abs}
        unknown = unknown_functions(expressions)
        if unknown:
            raise ConfigurationError(f"fields: expected functions of {sorted(table)}, got {sorted(unknown)}")
        self._source = (expressions, variables)
        numeric = [_with_floats(sp.sympify(e, strict=True)) for e in expressions]
        self._function = sp.lambdify(list(variables), numeric, modules=[table, "math"], cse=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Compiled, self._source

    def __call__(self, *arguments: Tensor) -> Tensor:
        values = self._function(*arguments)
        tensors = [value for value in values if isinstance(value, Tensor)]
        like = torch.zeros_like(sum(arguments[1:], start=arguments[0]) if len(tensors) < len(values) else tensors[0])
        whole = [value if isinstance(value, Tensor) else like + float(value) for value in values]
        return torch.stack(torch.broadcast_tensors(*whole), -1)


def _with_floats(expression: Any) -> Any:
    """Constants other than integers as floating-point numbers, but for rational exponents (torch has a sqrt)."""
    sp = require_sympy()
    if not expression.free_symbols:
        return expression if expression.is_Integer else expression.evalf(20)
    if expression.is_Pow and expression.exp.is_Rational:
        return sp.Pow(_with_floats(expression.base), expression.exp)
    return expression.func(*map(_with_floats, expression.args)) if expression.args else expression


def unknown_functions(expressions: Sequence[Any]) -> set[str]:
    """The functions in expressions that torch lacks."""
    sp = require_sympy()
    used = {f.func.__name__ for e in expressions for f in e.atoms(sp.Function)}
    return used - set(_TORCH_FUNCTIONS) - {"Abs"}


_TORCH_FUNCTIONS = (
    "exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "atan2", "sqrt", "erf", "sign",
)  # fmt: skip


def exact_structure_constants(fields: Sequence[Sequence[Any]], variables: Sequence[Any], names: Sequence[str]) -> Any:
    """The constants of ``[X_i, X_j]`` as vector fields, ``DX_j X_i - DX_i X_j``, exact; nested lists ``[n][n][n]``.

    Fields are sums of products that are taken to be independent if they are different: exact for polynomials, and for
    powers times exponentials of polynomials and logarithms of the variables. Coefficients are rational in any other
    symbols.

    Raises:
        AlgebraError: a bracket leaves the span (named), or the fields are dependent.
    """
    sp = require_sympy()
    n = len(fields)
    monomials: dict[tuple[int, Any], int] = {}

    def column(vector: Sequence[Any]) -> dict[int, Any]:
        entries: dict[int, Any] = {}
        for component, entry in enumerate(vector):
            for function, coefficient in _independent_parts(entry, variables):
                row = monomials.setdefault((component, function), len(monomials))
                entries[row] = entries.get(row, sp.S.Zero) + coefficient
        return entries

    columns = [column(vector) for vector in fields]
    pairs = list(itertools.combinations(range(n), 2))
    brackets = [column(_bracket(fields[i], fields[j], variables)) for i, j in pairs]
    matrix = sp.zeros(len(monomials), n + len(pairs))
    for c, entries in enumerate([*columns, *brackets]):
        for r, value in entries.items():
            matrix[r, c] = value
    domain_matrix = sp.polys.matrices.DomainMatrix.from_Matrix(matrix).to_field()
    reduced, pivots = domain_matrix.rref()
    if tuple(pivots[:n]) != tuple(range(n)):
        raise AlgebraError("fields: expected independent ones over the constants, got a linear relation between them")
    if len(pivots) > n:
        i, j = pairs[pivots[n] - n]
        raise AlgebraError(f"[{names[i]}, {names[j]}] is off the span of the fields")
    solved = reduced.to_Matrix()
    constants = [[[sp.Integer(0)] * n for _ in range(n)] for _ in range(n)]
    for index, (i, j) in enumerate(pairs):
        for k in range(n):
            constants[i][j][k] = sp.simplify(solved[k, n + index])
            constants[j][i][k] = -constants[i][j][k]
    return constants


def _independent_parts(expression: Any, variables: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The terms of a sum: the factor that depends on the variables, and its coefficient."""
    sp = require_sympy()
    if expression.is_polynomial(*variables):
        return list(sp.Poly(expression, *variables).terms())
    parts = []
    for term in sp.Add.make_args(sp.expand(sp.powsimp(sp.expand(expression), force=True))):
        number, function = term.as_independent(*variables, as_Add=False)
        if function.is_polynomial(*variables):
            function = sp.Poly(function, *variables).monoms()[0]
        parts.append((function, number))
    return parts


def _bracket(x: Sequence[Any], y: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    result = []
    for a in range(len(variables)):
        terms = [x[b] * y[a].diff(z) - y[b] * x[a].diff(z) for b, z in enumerate(variables)]
        result.append(sum(terms[1:], start=terms[0]))
    return result
