"""Properties of exact expressions that are decided by values: zero, complex; and square roots as new parameters."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import mpmath
import sympy as sp

from trivgeo.symmetry.equations.unnamed_functions import with_symbols


class Radicals:
    r"""New parameters r with :math:`r^2 = p` for expressions p of the old parameters, of which each replaces one.

    A radicand :math:`p = a D` that is linear in a parameter a gives :math:`a = r^2 / D`.

    Args:
        radicands: the p; one that is linear in no remaining parameter is left out.
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
        """New parameters for the square roots of parameters in expressions, which they make rational."""
        found: dict[sp.Expr, None] = {}
        for expression in expressions:
            _replaced(expression, set(parameters), found)
        return cls(sorted(found, key=sp.default_sort_key), parameters, taken)

    def __bool__(self) -> bool:
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
    """Replace square roots by symbols, and add the radicands to ``found``; sqrt(2) sqrt(a) counts as one root."""
    factors = sp.Mul.make_args(expression)
    powers = [
        f for f in factors if f.is_Pow and f.exp.is_Rational and f.exp.q == 2 and f.base.free_symbols <= parameters
    ]
    radicand = sp.Mul(*(power.base for power in powers))
    if radicand.free_symbols:
        found[radicand] = None
        rest = sp.Mul(*(f for f in factors if f not in powers), *(f.base ** (f.exp - sp.S.Half) for f in powers))
        return roots.get(radicand, sp.sqrt(radicand)) * _replaced(rest, parameters, found, roots)
    if not expression.args:
        return expression
    return expression.func(*(_replaced(arg, parameters, found, roots) for arg in expression.args))


INFINITE = (sp.nan, sp.zoo, sp.oo)
"""SymPy's atoms of expressions without a finite value."""

_DIGITS = 80  # decimal digits of values
_ZERO_TOLERANCE = mpmath.mpf(10) ** -50  # a sum below this share of its terms is zero
_NUM_POINTS = 3  # points at which an expression has to vanish
_COMPLEX_DIGITS = 30  # decimal digits of imaginary parts
_COMPLEX_TOLERANCE = 1e-20  # an imaginary part below it is rounding
_MAX_DRAWS = 30  # points that are tried
_MPMATH_FUNCTIONS = {  # functions of SymPy that mpmath has as options of others
    "airyaiprime": lambda z: mpmath.airyai(z, derivative=1),
    "airybiprime": lambda z: mpmath.airybi(z, derivative=1),
}


def vanishes(expression: sp.Expr) -> bool:
    """Return True if an expression is zero wherever it is defined.

    The expression is evaluated at random rational points, with 80 digits. A nonzero expression would have to cancel to
    50 digits at each of them, or the sum would have to shrink by as much with twice the digits. Unlike simplification
    this neither hangs nor depends on the form of the expression.
    """
    if expression == 0:
        return True
    if expression.has(sp.zoo, sp.nan):
        return False  # the expression is defined nowhere
    expression = with_symbols(expression)
    symbols = sorted(expression.free_symbols, key=str)
    terms = sp.Add.make_args(expression)
    values = sp.lambdify(symbols, list(terms), [_MPMATH_FUNCTIONS, "mpmath"], cse=True)
    numbers = random.Random(0)
    passed = 0

    def total(numerators: Sequence[int], digits: int) -> tuple[Any, Any]:
        """The absolute value of the sum of all terms, and the sum of their absolute values."""
        with mpmath.workdps(digits):
            point = [mpmath.mpf(k) / 10**6 + mpmath.mpf(1) / 7 for k in numerators]
            results = [mpmath.mpmathify(value) for value in values(*point)]
            return abs(mpmath.fsum(results)), mpmath.fsum(map(abs, results))

    for _ in range(_MAX_DRAWS):
        numerators = [numbers.randint(2, 10**6) for _ in symbols]
        try:
            value, size = total(numerators, _DIGITS)
            if not mpmath.isfinite(size):
                continue
            # a sum of terms that are all zero is rounding error alone, which shrinks with more digits
            if value > _ZERO_TOLERANCE * size and total(numerators, 2 * _DIGITS)[0] > _ZERO_TOLERANCE * value:
                return False
        except (ZeroDivisionError, ValueError, OverflowError):
            continue  # a pole, or outside the domain: another point
        passed += 1
        if passed == _NUM_POINTS:
            return True
    return sp.simplify(expression) == 0


def is_complex(expression: sp.Expr) -> bool:
    """Return True if an expression holds a number that is not real, or a power such as (-2)^n."""
    if expression.has(sp.I):
        return True
    for part in expression.atoms(sp.Function, sp.Pow):
        if part.is_number and not part.is_real and abs(sp.im(part.evalf(_COMPLEX_DIGITS))) > _COMPLEX_TOLERANCE:
            return True
        if isinstance(part, sp.Pow) and part.base.is_negative and part.exp.free_symbols:
            return True
    return False


def is_root_of_even_power(power: sp.Pow) -> bool:
    """Return True for roots such as ``sqrt(u_x^2)``, which equal ``u_x`` at positive values alone."""
    factors = [f.as_base_exp() for f in sp.Mul.make_args(sp.factor(power.base))]
    return not power.exp.is_Integer and any(base.free_symbols and exponent.is_even for base, exponent in factors)
