"""The arithmetic of truncated power series over the prime fields GF(p), in batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from trivgeo.symmetry.equation import Index, multi_indices
from trivgeo.symmetry.finite_field import Values

__all__ = ["PowerSeries"]


@lru_cache(maxsize=64)
def _products(count: int, order: int) -> tuple[list[Index], dict[Index, int], Values, Values, Values]:
    """The monomials up to a degree, their places, and which pairs have which product."""
    monomials: list[Index] = list(multi_indices(count, order)) if count else [()]
    place = {m: i for i, m in enumerate(monomials)}
    digits = (order + 1) ** np.arange(count)
    keys = np.array(monomials, dtype=np.int64).reshape(len(monomials), count) @ digits
    sizes = np.array([sum(m) for m in monomials])
    left, right = np.nonzero(sizes[:, None] + sizes <= order)
    by_key = np.argsort(keys)
    product = by_key[np.searchsorted(keys, keys[left] + keys[right], sorter=by_key)]
    by_product = np.argsort(product, kind="stable")
    starts = np.searchsorted(product[by_product], np.arange(len(monomials)))
    return monomials, place, left[by_product], right[by_product], starts


class PowerSeries:
    """The arithmetic of truncated power series in several variables, in batches ``[samples, monomials]``.

    Args:
        prime: the modulus.
        count: the number of variables.
        order: the total degree up to which terms are kept.
    """

    def __init__(self, prime: int, count: int, order: int) -> None:
        self.prime, self.count, self.order = prime, count, order
        self.monomials, self.place, self._left, self._right, self._starts = _products(count, order)

    def constant(self, values: Any) -> Values:
        """Return the constant series with ``values``, ``[points, monomials]``."""
        numbers = np.atleast_1d(np.asarray(values, dtype=np.int64))
        result = np.zeros((len(numbers), len(self.monomials)), dtype=np.int64)
        result[:, 0] = numbers % self.prime
        return result

    def variable(self, position: int, values: Any) -> Values:
        """Return the series of the variable with number ``position``, about points with ``values``."""
        result = self.constant(values)
        if self.order:
            unit = tuple(int(i == position) for i in range(self.count))
            result[:, self.place[unit]] = 1
        return result

    def times(self, a: Values, b: Values) -> Values:
        """Return the product of the series a and b."""
        if len(self.monomials) == 1:
            return a * b % self.prime
        products = a[:, self._left] * b[:, self._right] % self.prime
        return np.add.reduceat(products, self._starts, axis=1) % self.prime

    def compose(self, a: Values, first: Values, coefficients: Sequence[Any]) -> Values:
        """Return ``first`` times the sum over k of ``coefficients[k] h^k``, with h the series ``a`` less its
        constant term.
        """
        tail = a.copy()
        tail[:, 0] = 0
        result = self.constant(coefficients[self.order] * np.ones(len(a), dtype=np.int64))
        for k in reversed(range(self.order)):
            result = self.times(result, tail)
            result[:, 0] = (result[:, 0] + coefficients[k]) % self.prime
        return self.times(result, first)
