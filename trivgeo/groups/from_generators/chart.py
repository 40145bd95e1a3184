r"""Charts: coordinates in which flows are projective.

A coordinate z whose fields are combinations of functions :math:`\varphi_j(z)` moves along a line, and any
finite-dimensional algebra of fields on a line is that of 1, y and y^2 in some coordinate y (Lie). With
:math:`y = \int dz / \varphi` for one of the functions it is found for :math:`z \log z` (y = log z, Black-Scholes) or
:math:`1, e^{2z}, e^{-2z}` (y = e^{-2z}, Fokker-Planck).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trivgeo.expressions import require_sympy
from trivgeo.groups.from_generators.fields import compile_expressions, unknown_functions

_MAX_OPERATIONS = 12  # operations in a function that is integrated and inverted: SymPy may take for ever for more
_MAX_INVERSION_ERROR = 1e-9  # error of the inverse of a chart, relative to one plus the coordinate
_RANK_TOLERANCE = 1e-9  # singular values below this share of the largest count as zero
Curve = Callable[..., Tensor]
"""A function of one coordinate."""


@dataclass(frozen=True)
class Chart:
    """A change of coordinates, one by one.

    Attributes:
        vectors: the fields in the new coordinates.
        pairs: for each coordinate that changes, by position: the function and its inverse.
    """

    vectors: list[tuple[Any, ...]]
    symbols: list[Any]
    pairs: dict[int, tuple[Curve, Curve]]

    def forward(self, x: Tensor) -> Tensor:
        """Return the new coordinates of points x, or of leading coordinates; NaN or infinite outside the chart."""
        return self._map(x, 0)

    def backward(self, y: Tensor) -> Tensor:
        """Return the old coordinates of points with new coordinates y, or with leading ones."""
        return self._map(y, 1)

    def _map(self, x: Tensor, direction: int) -> Tensor:
        entries = list(x.unbind(-1))
        for c, pair in self.pairs.items():
            if c < len(entries):
                entries[c] = pair[direction](entries[c]).squeeze(-1)
        return torch.stack(entries, -1)


def straighten(vectors: Sequence[Sequence[Any]], symbols: Sequence[Any], points: Tensor) -> Chart | None:
    """The chart in which coordinates that move along lines have fields of at most degree two, ``None`` if not found.

    Args:
        vectors: fields, as SymPy expressions of the coordinates alone.
        points: sample points, which the chart has to hold, ``[p, m]``.
    """
    sp = require_sympy()
    fields = [[sp.sympify(entry, strict=True) for entry in vector] for vector in vectors]
    symbols = list(symbols)
    pairs: dict[int, tuple[Curve, Curve]] = {}
    for c, values in enumerate(points.unbind(-1)):
        functions = _functions_along([vector[c] for vector in fields], symbols[c])
        if functions is None or all(_is_quadratic(f, symbols[c]) for f in functions):
            continue
        found = _line(functions, symbols[c], values)
        if found is None:
            continue
        new, y, inverse = found
        pairs[c] = (compile_expressions([y], [symbols[c]]), compile_expressions([inverse], [new]))
        slope = sp.diff(y, symbols[c])
        fields = [[sp.expand(entry * slope) if i == c else entry for i, entry in enumerate(v)] for v in fields]
        fields = [[sp.powsimp(sp.expand(entry.subs(symbols[c], inverse))) for entry in v] for v in fields]
        symbols[c] = new
    return Chart([tuple(v) for v in fields], symbols, pairs) if pairs else None


def _functions_along(entries: Sequence[Any], z: Any) -> set[Any] | None:
    """The functions of z alone that occur beside factors free of z; ``None`` if others occur."""
    sp = require_sympy()
    functions = set()
    for entry in entries:
        for term in sp.Add.make_args(sp.expand(entry)):
            _, function = term.as_independent(z, as_Add=False)
            if function.free_symbols - {z}:
                return None
            if term != 0:
                functions.add(function)
    return functions


def _line(functions: set[Any], z: Any, values: Tensor) -> tuple[Any, Any, Any] | None:
    """A new symbol, the coordinate in which the functions of z are quadratic, and its inverse."""
    sp = require_sympy()
    if not _span_is_small(functions, z, values):
        return None
    real = sp.Dummy(z.name, **_sign(values))
    for function in sorted(functions, key=lambda f: (sp.count_ops(f), str(f))):
        if sp.count_ops(function) > _MAX_OPERATIONS:
            continue
        y = sp.integrate(1 / function.subs(z, real), real, manual=True)  # by rules only, which always ends
        if y.has(sp.Integral) or sp.count_ops(y) > _MAX_OPERATIONS or unknown_functions([y]):
            continue
        images = compile_expressions([y], [real])(values).squeeze(-1)
        if not bool(torch.isfinite(images).all()):
            continue
        new = sp.Dummy(z.name, **_sign(images))
        for inverse in _inverses(y, real, new):
            if unknown_functions([inverse]) or inverse.has(sp.I):
                continue
            back = compile_expressions([inverse], [new])(images).squeeze(-1)
            if not bool(((back - values).abs() <= _MAX_INVERSION_ERROR * (1.0 + values.abs())).all()):
                continue
            moved = [sp.simplify((f / function).subs(z, inverse)) for f in functions]
            if all(_is_quadratic(f, new) for f in moved):
                return new, y.subs(real, z), inverse
    return None


def _inverses(y: Any, z: Any, new: Any) -> list[Any]:
    """Candidates for the inverse of y(z); powers are inverted by hand, as SymPy's check of their roots may not end."""
    sp = require_sympy()
    constant, rest = y.as_independent(z, as_Add=True)
    factor, power = rest.as_independent(z, as_Add=False)
    if power.is_Pow and power.base == z and power.exp.is_Rational:
        root = ((new - constant) / factor) ** (1 / power.exp)
        return [root, -root]
    return list(sp.solve(y - new, z))


def _span_is_small(functions: set[Any], z: Any, values: Tensor) -> bool:
    """Whether functions span at most three dimensions, as 1, y and y^2 do."""
    table = compile_expressions(sorted(functions, key=str), [z])(values)
    singular = torch.linalg.svdvals(table / table.norm(dim=0).clamp(min=1e-300))
    return len(singular) <= 3 or bool(singular[3] < _RANK_TOLERANCE * singular[0])


def _is_quadratic(function: Any, z: Any) -> bool:
    return bool(function.is_polynomial(z) and require_sympy().degree(function, z) <= 2)


def _sign(values: Tensor) -> dict[str, bool]:
    """The assumptions of SymPy about a coordinate."""
    if bool((values > 0).all()):
        return {"positive": True}
    return {"negative": True} if bool((values < 0).all()) else {"real": True}
