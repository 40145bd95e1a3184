"""Polynomials with floating-point coefficients, as mappings of exponents to coefficients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = [
    "DENOMINATOR",
    "ROUNDING",
    "Polynomial",
    "PolynomialSum",
    "derivative_along",
    "evaluated",
    "in_more_variables",
    "rounded",
]

DENOMINATOR = 12
"""The denominator of simple fractions that coefficients are taken for."""
ROUNDING = 1e-11
"""The rounding error of a coefficient."""
_CANCELLED = 1e-10  # size of a sum that counts as zero, relative to its terms

Polynomial = Mapping[tuple[int, ...], float]


class PolynomialSum:
    """A sum of polynomials, with the sizes of terms that may cancel."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, ...], float] = {}
        self.sizes: dict[tuple[int, ...], float] = {}

    def add(self, p: Polynomial, factor: float, shift: tuple[int, ...] | None = None) -> None:
        """Add ``factor`` times the polynomial ``p`` to the sum.

        Args:
            p: polynomial, coefficients by exponents.
            factor: number by which the polynomial is multiplied.
            shift: exponents of a monomial by which the polynomial is multiplied, too; ``None`` for one.
        """
        for e, value in p.items():
            place = e if shift is None else tuple(a + b for a, b in zip(e, shift, strict=True))
            self.values[place] = self.values.get(place, 0.0) + factor * value
            self.sizes[place] = self.sizes.get(place, 0.0) + abs(factor * value)

    def result(self) -> dict[tuple[int, ...], float]:
        """The sum, without coefficients that are rounding errors."""
        return {e: value for e, value in self.values.items() if abs(value) > _CANCELLED * self.sizes[e]}


def derivative_along(components: Sequence[Polynomial], function: Polynomial) -> PolynomialSum:
    """Return the derivative of the polynomial ``function`` along the field with polynomial ``components``."""
    total = PolynomialSum()
    for e, factor in function.items():
        for c, power in enumerate(e):
            if power:
                total.add(components[c], power * factor, (*e[:c], power - 1, *e[c + 1 :]))
    return total


def in_more_variables(p: Polynomial, count: int) -> dict[tuple[int, ...], float]:
    """Return the polynomial p with exponents for ``count`` more coordinates, all zero."""
    return {(*e, *(0,) * count): value for e, value in p.items()}


def rounded(p: Polynomial) -> dict[tuple[int, ...], float]:
    """Return the polynomial p with coefficients within rounding of simple fractions set to these."""
    result = {}
    for e, value in p.items():
        near = round(DENOMINATOR * value) / DENOMINATOR
        result[e] = near if abs(value - near) < ROUNDING else value
    return {e: value for e, value in result.items() if value}


def evaluated(p: Polynomial, place: Mapping[int, complex]) -> complex:
    """Return the value of the polynomial p at the point ``place``, coordinates by number."""
    return sum((value * math.prod(place[c] ** k for c, k in enumerate(e) if k) for e, value in p.items()), start=0j)
