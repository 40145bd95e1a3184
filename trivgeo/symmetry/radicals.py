"""Square roots of parameters, as parameters of their own: what is rational in those is found exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import sympy as sp

__all__ = ["Radicals"]


class Radicals:
    r"""New parameters r with :math:`r^2 = p` for expressions p of the parameters, which take the place of others.

    For :math:`p = a D` it is :math:`a = r^2 / D`.

    Args:
        radicands: the p, each linear in some parameter; those that are none without the parameters that have gone are
            left out.
        parameters: the parameters.
        taken: names that no new parameter may have.
    """

    def __init__(self, radicands: Iterable[sp.Expr], parameters: Sequence[sp.Symbol], taken: Iterable[str]) -> None:
        names = {*taken, *(s.name for s in parameters)}
        self._values: dict[sp.Expr, sp.Expr] = {}
        self._roots: dict[sp.Symbol, sp.Expr] = {}
        left = list(parameters)
        for radicand in radicands:
            p = sp.together(radicand.xreplace(self._values))
            known = next((s for s in left if s in p.free_symbols and sp.diff(p, s, 2) == 0), None)
            if known is None:
                continue
            root = sp.Symbol(next(name for k in range(len(names) + 1) if (name := f"root{k}") not in names))
            names.add(root.name)
            slope = sp.diff(p, known)
            value = sp.cancel((root**2 - p.subs(known, 0)) / slope)
            self._values = {s: sp.cancel(v.subs(known, value)) for s, v in self._values.items()} | {known: value}
            self._roots[root] = radicand
            left.remove(known)
        self.parameters: tuple[sp.Symbol, ...] = (*left, *self._roots)

    @classmethod
    def of(cls, expressions: Iterable[sp.Expr], parameters: Sequence[sp.Symbol], taken: Iterable[str] = ()) -> Radicals:
        """The square roots of parameters in expressions.

        Args:
            expressions: those that are to be rational.
            parameters: see `Radicals`, like ``taken``.
        """
        found: dict[sp.Expr, None] = {}
        for expression in expressions:
            _replaced(expression, set(parameters), found)
        return cls(sorted(found, key=sp.default_sort_key), parameters, taken)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._roots)

    def put(self, expression: sp.Expr) -> sp.Expr:
        """Return ``expression`` in terms of the new parameters."""
        by_radicand = {radicand: root for root, radicand in self._roots.items()}
        symbols = {s for radicand in by_radicand for s in radicand.free_symbols}
        return _replaced(expression, symbols, {}, by_radicand).xreplace(self._values)

    def back(self, expression: sp.Expr) -> sp.Expr:
        """Return ``expression`` in terms of the old parameters."""
        return expression.xreplace({root: sp.sqrt(radicand) for root, radicand in self._roots.items()})


def _replaced(
    expression: sp.Expr,
    parameters: set[sp.Symbol],
    found: dict[sp.Expr, None],
    roots: Mapping[sp.Expr, sp.Symbol] = MappingProxyType({}),
) -> sp.Expr:
    """An expression with symbols for the square roots in its products; what these are roots of is added to ``found``.

    A product such as sqrt(2) sqrt(a) is one root.
    """
    factors = sp.Mul.make_args(expression)
    powers = [f for f in factors if _is_root(f) and f.base.free_symbols <= parameters]
    radicand = sp.Mul(*(power.base for power in powers))
    if radicand.free_symbols:
        found[radicand] = None
        rest = sp.Mul(*(f for f in factors if f not in powers), *(f.base ** (f.exp - sp.S.Half) for f in powers))
        return roots.get(radicand, sp.sqrt(radicand)) * _replaced(rest, parameters, found, roots)
    if not expression.args:
        return expression
    return expression.func(*(_replaced(arg, parameters, found, roots) for arg in expression.args))


def _is_root(power: sp.Expr) -> bool:
    return bool(power.is_Pow and power.exp.is_Rational and power.exp.q == 2)
