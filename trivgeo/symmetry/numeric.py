"""Whether an exact expression is zero, or holds complex numbers, decided by values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import mpmath
import sympy as sp

from trivgeo.symmetry.solutions import with_symbols

__all__ = ["INFINITE", "is_complex", "is_root_of_even_power", "vanishes"]

INFINITE = (sp.nan, sp.zoo, sp.oo)
"""What an expression holds that has no finite value."""

_DIGITS = 80
_ZERO_TOLERANCE = mpmath.mpf(10) ** -50
_NUM_POINTS = 3
_COMPLEX_DIGITS = 30
_COMPLEX_TOLERANCE = 1e-20  # of an imaginary part, which is rounding
_MAX_DRAWS = 30
_SLOPES = {  # functions of SymPy that mpmath has as an option of others
    "airyaiprime": lambda z: mpmath.airyai(z, derivative=1),
    "airybiprime": lambda z: mpmath.airybi(z, derivative=1),
}


def vanishes(expression: sp.Expr) -> bool:
    """Return True if an expression is zero wherever it is defined.

    The expression is evaluated at random rational points, with 80 digits. A nonzero expression would have to cancel to
    50 digits at each of them, or to become as much smaller with twice the digits. Unlike simplification this neither
    hangs nor depends on the form of the expression.
    """
    if expression == 0:
        return True
    if expression.has(sp.zoo, sp.nan):
        return False  # it is defined nowhere
    expression = with_symbols(expression)
    symbols = sorted(expression.free_symbols, key=str)
    terms = sp.Add.make_args(expression)
    values = sp.lambdify(symbols, list(terms), [_SLOPES, "mpmath"], cse=True)
    numbers = random.Random(0)
    passed = 0

    def total(numerators: Sequence[int], digits: int) -> tuple[Any, Any]:
        """The sum of all terms, and that of their sizes."""
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
            # terms that are zero themselves leave rounding errors alone
            if value > _ZERO_TOLERANCE * size and total(numerators, 2 * _DIGITS)[0] > _ZERO_TOLERANCE * value:
                return False
        except (ZeroDivisionError, ValueError, OverflowError):
            continue  # a pole, or outside the domain: another point
        passed += 1
        if passed == _NUM_POINTS:
            return True
    return sp.simplify(expression) == 0


def is_complex(expression: sp.Expr) -> bool:
    """Return True if ``expression`` holds a number that is not real, such as asin(2), or a power of a negative one."""
    if expression.has(sp.I):
        return True
    for part in expression.atoms(sp.Function, sp.Pow):
        if part.is_number and not part.is_real and abs(sp.im(part.evalf(_COMPLEX_DIGITS))) > _COMPLEX_TOLERANCE:
            return True
        if isinstance(part, sp.Pow) and part.base.is_negative and part.exp.free_symbols:
            return True
    return False


def is_root_of_even_power(power: sp.Pow) -> bool:
    """Return True if ``power`` is one such as ``sqrt(u_x^2)``, which looks like ``u_x`` at positive values."""
    factors = [f.as_base_exp() for f in sp.Mul.make_args(sp.factor(power.base))]
    return not power.exp.is_Integer and any(base.free_symbols and exponent.is_even for base, exponent in factors)
