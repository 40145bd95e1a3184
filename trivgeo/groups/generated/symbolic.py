"""Vector fields as SymPy expressions: their values, checks, and torch functions. SymPy is imported on first use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trivgeo.errors import ConfigurationError
from trivgeo.expressions import exact, require_sympy

__all__ = [
    "check_terms",
    "compile_expressions",
    "require_sympy",
    "substitute",
    "unknown_functions",
]

_MIN_TERM_SHARE = 1e-9  # of the largest term of a sum: fits would have six digits of a smaller one at most


def substitute(fields: Sequence[Any], variables: Sequence[Any], parameters: Mapping[Any, Any]) -> list[tuple[Any, ...]]:
    """Return each field as a tuple of SymPy expressions of the variables alone, with values of the parameters.

    Args:
        fields: vectors of expressions, one for each variable.
        variables: the coordinates, symbols.
        parameters: values of the other symbols, by symbol or by name.

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
        raise ConfigurationError(f"fields: expected a value in `parameters`, or by keyword, for each of: {every}")
    if unused:
        raise ConfigurationError(f"parameters: expected names that fields hold, got {sorted(unused)}")
    return result


def check_terms(fields: Sequence[Sequence[Any]], variables: Sequence[Any], points: Tensor) -> None:
    """Check that no term of the fields is lost beside others of its sum at all sample points.

    Args:
        fields: the fields.
        variables: the coordinates.
        points: the sample points, ``[p, m]``.

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


def compile_expressions(expressions: Sequence[Any], variables: Sequence[Any]) -> CompiledExpressions:
    """Return a torch function of one tensor for each variable, with the values stacked on a last axis.

    Args:
        expressions: SymPy expressions.
        variables: their symbols; tensors broadcast.

    Raises:
        ConfigurationError: an expression holds a function that torch lacks.
    """
    return CompiledExpressions(tuple(expressions), tuple(variables))


class CompiledExpressions:
    """Expressions as a torch function that can be pickled."""

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
        return CompiledExpressions, self._source

    def __call__(self, *arguments: Tensor) -> Tensor:
        """The values, ``[*batch, number of expressions]``."""
        return torch.stack(self.values(*arguments), -1)

    def values(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """The value of each expression, ``[*batch]``."""
        values = self._function(*arguments)
        tensors = [value for value in values if isinstance(value, Tensor)]
        if len(tensors) < len(values):
            zero = torch.zeros_like(sum(arguments[1:], start=arguments[0]))
            tensors = [value if isinstance(value, Tensor) else zero + float(value) for value in values]
        return tuple(torch.broadcast_tensors(*tensors))


def _with_floats(expression: Any) -> Any:
    """The expression with floating-point constants, but for integers and rational exponents (torch has a sqrt)."""
    sp = require_sympy()
    if not expression.free_symbols:
        return expression if expression.is_Integer else expression.evalf(20)
    if expression.is_Pow and expression.exp.is_Rational:
        return sp.Pow(_with_floats(expression.base), expression.exp)
    return expression.func(*map(_with_floats, expression.args)) if expression.args else expression


def unknown_functions(expressions: Sequence[Any]) -> set[str]:
    """Return the names of functions in SymPy ``expressions`` that torch lacks."""
    sp = require_sympy()
    used = {f.func.__name__ for e in expressions for f in e.atoms(sp.Function)}
    return used - set(_TORCH_FUNCTIONS) - {"Abs"}


_TORCH_FUNCTIONS = (
    "exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "atan2", "asinh", "acosh",
    "atanh", "sqrt", "erf", "sign",
)  # fmt: skip
