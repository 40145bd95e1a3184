"""Vector fields on R^m: the record that every phase of `from_generators` asks.

`VectorFields` gives values, derivatives and combinations of fields at points, whether these were torch functions or
SymPy expressions; `compile_expressions` makes torch functions of expressions. SymPy is imported on first use.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trivgeo._numerics import Constant, jvp_columns
from trivgeo._random import uniform
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.expressions import require_sympy

Field = Callable[[Tensor], Tensor]

_TORCH_FUNCTIONS = (
    "exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "atan2", "asinh", "acosh",
    "atanh", "sqrt", "erf", "sign",
)  # fmt: skip


@dataclass(frozen=True)
class Formulas:
    """Compiled expressions of n fields: functions of coordinates that broadcast, with results on the last axis.

    Attributes:
        values: components of the fields at (x_1, ..., x_m), field by field, n m numbers.
        slopes: derivatives of the components, the coordinate fastest, n m m numbers; ``None`` if torch lacks them.
        sums: components of the sum of the v_i X_i at (v_1, ..., v_n, x_1, ..., x_m), m numbers.
        each: one function for each component of that sum.
    """

    values: Callable[..., Tensor]
    slopes: Callable[..., Tensor] | None
    sums: Callable[..., Tensor]
    each: Sequence[Callable[..., Tensor]]


class VectorFields:
    """Vector fields on R^m as one function ``[*batch, m] -> [*batch, n, m]``.

    Args:
        functions: torch functions from points to tangents; each may take ``[*batch, m]`` or single points ``[m]``.
        formulas: compiled expressions of the fields, if they have some.
    """

    def __init__(
        self,
        functions: Sequence[Field],
        coordinates: Sequence[str],
        names: Sequence[str],
        formulas: Formulas | None = None,
    ) -> None:
        self.coordinates = tuple(coordinates)
        self.names = tuple(names)
        self.dim = len(coordinates)
        self._formulas = formulas
        self._weights: Constant | None = None
        self._functions = [_batched(f, self.dim, name) for f, name in zip(functions, names, strict=True)]

    def __len__(self) -> int:
        return len(self._functions)

    def mixed(self, weights: Tensor, names: Sequence[str] | None = None) -> VectorFields:
        """The combinations ``weights X`` of these fields for ``weights [n, n]``, by default with the same names."""
        result = copy.copy(self)
        result._weights = Constant(weights)
        result.names = self.names if names is None else tuple(names)
        return result

    def sizes(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """The sizes of the terms of `values_and_jacobians` at ``points``, which may cancel in combinations."""
        if self._weights is None:
            values, jacobians = values_and_jacobians(self, points)
            return values.abs(), jacobians.abs()
        plain = copy.copy(self)
        plain._weights = None
        values, jacobians = plain.sizes(points)
        weights = self._weights.value.abs()
        return weights @ values, torch.einsum("ij,pjab->piab", weights, jacobians)

    def __call__(self, x: Tensor) -> Tensor:
        """All fields at points ``[*batch, m]``: ``[*batch, n, m]``."""
        if self._formulas is None:
            values = torch.stack([f(x) for f in self._functions], -2)
        else:
            values = self._formulas.values(*x.unbind(-1)).unflatten(-1, (len(self), self.dim))
        return values if self._weights is None else self._weights.matching(values) @ values

    def slopes(self, x: Tensor) -> Tensor:
        """Return the derivatives of all fields at points x, ``[*batch, n, m, m]``, the coordinate last."""
        shape = (len(self), self.dim)
        if self._formulas is None or self._formulas.slopes is None:
            return jvp_columns(lambda y: self(y).flatten(-2), x).unflatten(-2, shape)
        slopes = self._formulas.slopes(*x.unbind(-1))
        if self._weights is not None:
            slopes = self._weights.matching(slopes) @ slopes.unflatten(-1, (len(self), -1))
            return slopes.unflatten(-1, (self.dim, self.dim))
        return slopes.unflatten(-1, (*shape, self.dim))

    def combination(self, v: Tensor, x: Tensor) -> Tensor:
        """Return the field of algebra vectors v, ``[*batch, n]``, at points x, ``[*batch, m]``."""
        if self._formulas is None or self._weights is not None:
            return (v.unsqueeze(-1) * self(x)).sum(-2)
        return self._formulas.sums(*v.unbind(-1), *x.unbind(-1))

    def components(self, v: Sequence[Tensor], x: Sequence[Tensor], index: Sequence[int]) -> list[Tensor]:
        """Return components ``index`` of the field of an algebra vector v at x, from broadcastable coordinates."""
        if self._formulas is not None and self._weights is None:
            values = [self._formulas.each[c](*v, *x).squeeze(-1) for c in index]
            return list(torch.broadcast_tensors(*values))
        whole = self(torch.stack(torch.broadcast_tensors(*x), -1))
        terms = [[w * whole[..., i, c] for i, w in enumerate(v)] for c in index]
        return [sum(term[1:], start=term[0]) for term in terms]


def _batched(function: Field, dim: int, name: str) -> Field:
    """The field as a function of any batch of points; functions of single points go through ``vmap``."""
    # batch sizes that differ from the dimension, so that functions of single points fail or disagree
    probe = torch.linspace(0.3, 0.9, (dim + 1) * (dim + 2) * dim, dtype=torch.float64).reshape(dim + 1, dim + 2, dim)
    try:
        single = function(probe[1, 2])
    except Exception as error:
        raise ConfigurationError(f"field {name}: expected a function of a point [{dim}], got {error!r}") from error
    if not isinstance(single, Tensor) or single.shape != (dim,):
        got = list(single.shape) if isinstance(single, Tensor) else type(single).__name__
        raise ShapeError(f"field {name}: expected a tangent [{dim}] at a point [{dim}], got {got}")
    try:
        whole = function(probe)
        batched = whole.shape == probe.shape and bool(
            torch.allclose(whole[1, 2], single, rtol=1e-9, atol=1e-12, equal_nan=True)
            and torch.allclose(whole[0, 1], function(probe[0, 1]), rtol=1e-9, atol=1e-12, equal_nan=True)
        )
    except (RuntimeError, IndexError, TypeError, ValueError):
        batched = False
    if batched:
        return function
    return _Mapped(function)


@dataclass(frozen=True)
class _Mapped:
    """A field that is a function of single points, at any batch of them."""

    function: Field

    def __call__(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        return torch.func.vmap(self.function)(flat).to(x).reshape(x.shape)


def sample_points(fields: VectorFields, count: int, sampler: Callable[[int], Tensor] | None) -> Tensor:
    """Draw points where all fields and their derivatives are finite, ``[count, m]``, in float64.

    Without a ``sampler``, points are taken from a box around zero.

    Raises:
        ConfigurationError: too few points were found, or the sampler returned something else.
    """
    if sampler is not None:
        points = sampler(count)
        if not isinstance(points, Tensor) or points.shape != (count, fields.dim):
            got = list(points.shape) if isinstance(points, Tensor) else type(points).__name__
            raise ConfigurationError(
                f"sampler: expected points [{count}, {fields.dim}] from sampler({count}), got {got}"
            )
        points = points.detach().to(device="cpu", dtype=torch.float64)
    else:
        generator = torch.Generator().manual_seed(0)
        reference = torch.empty(0, dtype=torch.float64)
        points = 3.0 * uniform((16 * count, fields.dim), reference, generator) - 1.5
    values, derivatives = values_and_jacobians(fields, points)
    finite = torch.isfinite(values).flatten(1).all(-1) & torch.isfinite(derivatives).flatten(1).all(-1)
    kept = points[finite][:count]
    if len(kept) < count:
        raise ConfigurationError(
            f"fields: expected them to be finite at points of the box [-1.5, 1.5]^{fields.dim}, got {len(kept)} finite "
            f"of {len(points)}; pass sampler=(count -> points [count, {fields.dim}]) for where they are defined"
        )
    return kept


def values_and_jacobians(fields: VectorFields, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fields ``[p, n, m]`` and their derivatives ``[p, n, m, m]`` at ``points``."""
    return fields(points), fields.slopes(points)


def compile_expressions(expressions: Sequence[Any], variables: Sequence[Any]) -> CompiledExpressions:
    """A torch function of one tensor for each variable, which broadcast, with the values stacked on a last axis.

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
        return tuple(torch.broadcast_tensors(*tensors)) if len(tensors) > 1 else tuple(tensors)


def _with_floats(expression: Any) -> Any:
    """The expression with floating-point constants, except integers and rational exponents (torch has a sqrt)."""
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
