"""The only door to SymPy, and what vector fields need of it. SymPy is imported on first use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from trivgeo.errors import AlgebraError, ConfigurationError

__all__ = ["compile_expressions", "exact_number", "exact_structure_constants", "require_sympy", "substitute"]


def require_sympy() -> ModuleType:
    """The module ``sympy``.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import sympy
    except ImportError as error:
        raise ConfigurationError(
            "symbolic input needs SymPy, which is not installed: pip install 'trivgeo[symbolic]'"
        ) from error
    return sympy


def substitute(fields: Sequence[Any], variables: Sequence[Any], parameters: Mapping[Any, Any]) -> list[tuple[Any, ...]]:
    """Each field as a tuple of SymPy expressions of the variables alone, with the parameters' values put in.

    Args:
        fields: vectors of expressions, one for each variable.
        variables: the coordinates, symbols.
        parameters: values of the other symbols, by symbol or by name.

    Raises:
        ConfigurationError: a field has the wrong length, or a symbol is left without a value.
    """
    sp = require_sympy()
    named = {str(key): exact_number(value) for key, value in parameters.items()}
    result = []
    for index, field in enumerate(fields):
        entries = [
            sp.sympify(entry) for entry in (list(field) if not hasattr(field, "components") else field.components)
        ]
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


def exact_number(value: Any) -> Any:
    """A number as an exact rational where its decimal form is one."""
    sp = require_sympy()
    return sp.Rational(repr(value)) if isinstance(value, float) else sp.sympify(value)


def compile_expressions(expressions: Sequence[Any], variables: Sequence[Any]) -> Callable[..., Tensor]:
    """A torch function of one tensor a variable (their shapes broadcast) that stacks the values on a last axis.

    Raises:
        ConfigurationError: an expression holds a function that torch lacks.
    """
    sp = require_sympy()
    table = {name: getattr(torch, name) for name in _TORCH_FUNCTIONS} | {"Abs": torch.abs}
    used = {f.func.__name__ for e in expressions for f in e.atoms(sp.Function)}
    if used - set(table):
        raise ConfigurationError(f"fields: expected functions of {sorted(table)}, got {sorted(used - set(table))}")
    numbers = {r: sp.Float(r, 20) for e in expressions for r in e.atoms(sp.Rational) if not r.is_Integer}
    powers = {p: p for e in expressions for p in e.atoms(sp.Pow) if p.exp in numbers}
    numeric = [e.xreplace(powers).xreplace(numbers) for e in expressions]
    function = sp.lambdify(list(variables), numeric, modules=[table, "math"], cse=True)

    def evaluate(*arguments: Tensor) -> Tensor:
        values = function(*arguments)
        tensors = [value for value in values if isinstance(value, Tensor)]
        like = torch.zeros_like(sum(arguments[1:], start=arguments[0]) if len(tensors) < len(values) else tensors[0])
        whole = [value if isinstance(value, Tensor) else like + float(value) for value in values]
        return torch.stack(torch.broadcast_tensors(*whole), -1)

    return evaluate


_TORCH_FUNCTIONS = (
    "exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "atan2", "sqrt", "erf", "sign",
)  # fmt: skip


def exact_structure_constants(fields: Sequence[Sequence[Any]], variables: Sequence[Any], names: Sequence[str]) -> Any:
    """The constants of ``[X_i, X_j]`` as vector fields, ``DX_j X_i - DX_i X_j``, exact; nested lists ``[n][n][n]``.

    Fields must be polynomial in the variables, with coefficients rational in any other symbols.

    Raises:
        AlgebraError: a bracket leaves the span (named), or the fields are dependent.
        PolynomialError: of SymPy, where a field is not polynomial.
    """
    sp = require_sympy()
    n = len(fields)
    polys = [[sp.Poly(entry, *variables) for entry in field] for field in fields]
    monomials: dict[tuple[int, tuple[int, ...]], int] = {}

    def column(vector: Sequence[Any]) -> dict[int, Any]:
        entries: dict[int, Any] = {}
        for component, poly in enumerate(vector):
            for monomial, coefficient in poly.terms():
                if coefficient != 0:
                    entries[monomials.setdefault((component, monomial), len(monomials))] = coefficient
        return entries

    columns = [column(vector) for vector in polys]
    pairs = list(itertools.combinations(range(n), 2))
    brackets = [column(_bracket(polys[i], polys[j], variables)) for i, j in pairs]
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


def _bracket(x: Sequence[Any], y: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    result = []
    for a in range(len(variables)):
        terms = [x[b] * y[a].diff(z) - y[b] * x[a].diff(z) for b, z in enumerate(variables)]
        result.append(sum(terms[1:], start=terms[0]))
    return result
