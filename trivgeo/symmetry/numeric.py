"""Whether an exact expression is zero, decided by its values."""

from __future__ import annotations

import random

import mpmath
import sympy as sp

from trivgeo.symmetry.solutions import with_symbols

__all__ = ["vanishes"]

_DIGITS = 80
_POINTS = 3
_TRIES = 30
_SLOPES = {  # functions of SymPy that mpmath has as an option of others
    "airyaiprime": lambda z: mpmath.airyai(z, derivative=1),
    "airybiprime": lambda z: mpmath.airybi(z, derivative=1),
}


def vanishes(expression: sp.Expr) -> bool:
    """Whether an expression is zero wherever it is defined.

    It is evaluated at random rational points, with 80 digits: an expression that is not zero would have to cancel to 50
    digits at each of them. Unlike simplification this neither hangs nor depends on the form of the expression.
    """
    if expression == 0:
        return True
    expression = with_symbols(expression)
    symbols = sorted(expression.free_symbols, key=str)
    terms = sp.Add.make_args(expression)
    values = sp.lambdify(symbols, list(terms), [_SLOPES, "mpmath"], cse=True)
    numbers = random.Random(0)
    passed = 0
    for _ in range(_TRIES):
        with mpmath.workdps(_DIGITS):
            point = [mpmath.mpf(numbers.randint(2, 10**6)) / 10**6 + mpmath.mpf(1) / 7 for _ in symbols]
            try:
                results = [mpmath.mpmathify(value) for value in values(*point)]
            except (ZeroDivisionError, ValueError, OverflowError):
                continue  # a pole, or outside the domain: another point
            if not all(mpmath.isfinite(r) for r in results):
                continue
            if abs(mpmath.fsum(results)) > mpmath.mpf(10) ** -50 * mpmath.fsum(map(abs, results)):
                return False
            passed += 1
            if passed == _POINTS:
                return True
    return sp.simplify(expression) == 0
