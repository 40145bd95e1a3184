"""Exact numbers in square roots of whole numbers, from values modulo primes for all signs of the roots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import sympy as sp

from trivgeo.symmetry.interpolation import ParameterValues, rational_functions

__all__ = ["SquareRoots"]

_MAX_ROOTS = 3  # independent ones: all their signs are tried


class SquareRoots:
    r"""The field :math:`Q(\sqrt a, \sqrt b, \ldots)` of some constants, whose conjugations change signs of roots.

    A number of the field is a rational combination of products of independent roots. Its conjugates, modulo a prime,
    tell the coefficients apart.

    Args:
        constants: those that are square roots of whole numbers count; where more than three of them are independent,
            none does.

    Attributes:
        roots: the independent roots.
        others: the constants that are no such roots, nor rational multiples of products of roots.
    """

    def __init__(self, constants: Sequence[sp.Expr]) -> None:
        roots: list[sp.Expr] = []
        products: dict[sp.Expr, tuple[int, ...]] = {}  # whose product with a root is rational, by root
        found = [c for c in constants if c.is_Pow and c.exp == sp.S.Half and c.base.is_Integer and c.base > 0]
        for root in found:
            places = next((p for p in _subsets(len(roots)) if sp.Mul(root, *(roots[i] for i in p)).is_rational), None)
            products[root] = (len(roots),) if places is None else places
            roots += [root] * (places is None)
        if len(roots) > _MAX_ROOTS:
            roots, products = [], {}
        self.roots: tuple[sp.Expr, ...] = tuple(roots)
        self.others: tuple[sp.Expr, ...] = tuple(c for c in constants if c not in products)
        self._products = products
        self._signs = list(itertools.product((1, -1), repeat=len(roots)))

    def numbers(
        self,
        values: Callable[[int, Sequence[ParameterValues]], list[list[int] | None]],
        parameters: Sequence[sp.Expr],
        primes: Sequence[int],
    ) -> list[sp.Expr] | None:
        """Return functions that are rational in parameters and roots; ``None`` if they are none of low degree.

        Args:
            values: the values at a prime and at each of several numbers for parameters and roots; ``None`` where there
                are none.
            parameters: the parameters.
            primes: primes modulo which the roots exist.
        """

        def parts(prime: int, fixed: Sequence[ParameterValues]) -> list[list[int] | None]:
            conjugates = zip(
                *(values(prime, [at | self.values(prime, sign) for at in fixed]) for sign in self._signs), strict=True
            )
            return [self._coefficients([row for row in at if row is not None], prime) for at in conjugates]

        found = rational_functions(parts, parameters, primes)
        if found is None or not self.roots:
            return found
        products = [sp.Mul(*(self.roots[i] for i in chosen)) for chosen in _subsets(len(self.roots))]
        size = len(products)
        batches = (found[i : i + size] for i in range(0, len(found), size))
        return [sp.Add(*map(sp.Mul, part, products)) for part in batches]

    def values(self, prime: int, sign: Sequence[int] | None = None) -> ParameterValues:
        """Return the square roots modulo a prime that is 3 modulo 4.

        Args:
            prime: the modulus.
            sign: of each independent root; default: all positive.
        """
        chosen = self._signs[0] if sign is None else sign
        return {
            root: math.prod(chosen[i] for i in places) * _modulo(root, prime) % prime
            for root, places in self._products.items()
        }

    def _coefficients(self, conjugates: Sequence[Sequence[int]], prime: int) -> list[int] | None:
        """Coefficients of the products of roots in numbers, from a row of numbers for each choice of signs."""
        if len(conjugates) < len(self._signs):
            return None
        scale = pow(len(self._signs), -1, prime)
        weights = [
            [
                pow(math.prod(sign[i] * _modulo(self.roots[i], prime) for i in chosen), -1, prime) * scale
                for sign in self._signs
            ]
            for chosen in _subsets(len(self.roots))
        ]
        columns = zip(*conjugates, strict=True)
        return [sum(map(int.__mul__, row, column)) % prime for column in columns for row in weights]


def _subsets(count: int) -> list[tuple[int, ...]]:
    """All subsets of the first whole numbers."""
    return [chosen for k in range(count + 1) for chosen in itertools.combinations(range(count), k)]


def _modulo(root: sp.Expr, prime: int) -> int:
    return pow(int(root.base), (prime + 1) // 4, prime)
