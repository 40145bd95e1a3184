"""Reconstruction of rational functions, and of functions of square roots, from values modulo primes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import sympy as sp

from trivgeo.groups.ground_fields import PrimeField
from trivgeo.symmetry.determining.random_points import Values
from trivgeo.symmetry.equations.multi_index import Index, multi_indices

ParameterValues = dict[sp.Expr, int]
ResidueFunction = Callable[[int, Sequence[ParameterValues]], list[list[int] | None]]
"""Values modulo a prime, at each of several values of the parameters; ``None`` where they are not defined."""

_MAX_DEGREE = 6  # degree of numerators and denominators in the parameters
_INVERSE_FALSE_RATE = 1000  # inverse of the largest probability that a random number passes for a small fraction


def rational_functions(
    values: ResidueFunction,
    parameters: Sequence[sp.Expr],
    primes: Sequence[int],
) -> list[sp.Expr] | None:
    """Rational functions of the parameters from values modulo primes; ``None`` if there are none of low degree."""
    if not parameters:
        return _rational_numbers(lambda prime: values(prime, [{}])[0], primes)
    random = np.random.default_rng(1)
    samples: dict[int, list[tuple[ParameterValues, list[int]]]] = {prime: [] for prime in primes}
    for degree in range(1, _MAX_DEGREE + 1):
        monomials = list(multi_indices(len(parameters), degree))
        needed = 2 * len(monomials) + 2

        def coefficients(prime: int, needed: int = needed, monomials: list[Index] = monomials) -> list[int] | None:
            known = samples[prime]
            if len(known) < needed:
                count = needed - len(known) + 4
                fixed = [{s: int(random.integers(2, prime - 1)) for s in parameters} for _ in range(count)]
                new = zip(fixed, values(prime, fixed), strict=True)
                known += [(at, value) for at, value in new if value is not None]
            if len(known) < needed:
                return None
            table = np.ones((needed, len(monomials)), dtype=np.int64)
            for i, (fixed_at, _) in enumerate(known[:needed]):
                for j, powers in enumerate(monomials):
                    for s, k in zip(parameters, powers, strict=True):
                        table[i, j] = table[i, j] * pow(fixed_at[s], k, prime) % prime
            fractions: dict[tuple[int, ...], list[int] | None] = {}  # keys are values: many functions are equal
            result = []
            for numbers in zip(*(value for _, value in known[:needed]), strict=True):
                if numbers not in fractions:
                    fractions[numbers] = _numerator_and_denominator(table, np.array(numbers, dtype=np.int64), prime)
                fraction = fractions[numbers]
                if fraction is None:
                    return None
                result += fraction
            return result

        found = _rational_numbers(coefficients, primes)
        if found is not None:
            terms = [sp.Mul(*(s**k for s, k in zip(parameters, m, strict=True))) for m in monomials]
            size = len(monomials)
            parts = [found[i : i + size] for i in range(0, len(found), size)]
            sums = [sp.Add(*(c * t for c, t in zip(part, terms, strict=True))) for part in parts]
            return [sp.cancel(top / bottom) for top, bottom in zip(sums[::2], sums[1::2], strict=True)]
    return None


def exact_rows(
    generic: Values,
    solved: Callable[[int, Sequence[ParameterValues]], Sequence[Values]],
    numbers: Callable[[ResidueFunction], list[sp.Expr] | None],
) -> list[list[sp.Expr]] | None:
    """Exact rows from their values modulo primes; ``None`` if their numbers are not found.

    Args:
        generic: the rows at random values of the parameters, modulo one prime; exact entries are zero where these are.
        solved: the rows modulo a prime, at each of several values of the parameters.
        numbers: reconstruction of the entries, such as `rational_functions` for given parameters and primes.
    """
    used = generic != 0
    if not used.any():
        return []

    def values(prime: int, fixed: Sequence[ParameterValues]) -> list[list[int] | None]:
        return [
            [int(v) for v in rows[used]] if rows.shape == used.shape and not rows[~used].any() else None
            for rows in solved(prime, fixed)
        ]

    found = numbers(values)
    if found is None:
        return None
    taken = iter(found)
    return [[next(taken) if entry else sp.S.Zero for entry in row] for row in used]


def _numerator_and_denominator(table: Values, numbers: Values, prime: int) -> list[int] | None:
    """Coefficients of a numerator and of a denominator, in the lowest monomials for which they exist."""
    size = table.shape[1]
    system = np.concatenate([table, -(table * numbers[:, None] % prime) % prime], axis=1)
    # the first free column of the denominator gives the solution in the lowest monomials
    reduced, pivots = PrimeField(prime).row_echelon(system)
    free = [j for j in range(2 * size) if j not in set(pivots) and j >= size]
    if not free:
        return None
    solution = [0] * (2 * size)
    solution[free[0]] = 1
    for row, pivot in zip(reduced, pivots, strict=True):
        solution[pivot] = -int(row[free[0]]) % prime
    return solution


def _rational_numbers(values: Callable[[int], list[int] | None], primes: Sequence[int]) -> list[sp.Expr] | None:
    """Rational numbers from their values modulo primes, checked modulo one prime more; ``None`` if the check fails."""
    modulus = 1
    combined: list[int] = []
    for prime in primes:
        new = values(prime)
        if new is None:
            continue
        if modulus > 1:
            guesses = [rational_reconstruction(v, modulus) for v in combined]
            fits = all(
                g is not None and int(g.q) % prime and (int(g.p) - v * int(g.q)) % prime == 0
                for g, v in zip(guesses, new, strict=True)
            )
            if fits:
                return guesses
            inverse = pow(modulus, -1, prime)
            combined = [a + modulus * ((b - a) * inverse % prime) for a, b in zip(combined, new, strict=True)]
        else:
            combined = new
        modulus *= prime
    return None


def rational_reconstruction(value: int, modulus: int) -> sp.Rational | None:
    """Return the fraction of small integers that is congruent to ``value`` modulo ``modulus``, or ``None``.

    The method is the extended Euclidean algorithm (Wang 1981), for which neither SymPy nor python-flint has a public
    function.
    """
    bound = math.isqrt(modulus // (2 * _INVERSE_FALSE_RATE))
    a, b, s, r = modulus, value % modulus, 0, 1
    while b > bound:
        q = a // b
        a, b, s, r = b, a - q * b, r, s - q * r
    return sp.Rational(b, r) if r and abs(r) <= bound and math.gcd(b, r) == 1 else None


_MAX_ROOTS = 3  # independent square roots; all combinations of their signs are tried


class SquareRoots:
    r"""The field :math:`Q(\sqrt a, \sqrt b, \ldots)` of some constants, whose conjugations change signs of roots.

    A number of the field is a rational combination of products of independent roots. Its conjugates, modulo a prime,
    determine the coefficients.

    Args:
        constants: square roots of integers among them generate the field, if at most three are independent.

    Attributes:
        roots: the independent roots.
        others: the constants that are no such roots, nor rational multiples of products of them.
    """

    def __init__(self, constants: Sequence[sp.Expr]) -> None:
        roots: list[sp.Expr] = []
        products: dict[sp.Expr, tuple[int, ...]] = {}  # independent roots whose product each root is, up to a rational
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
        values: ResidueFunction,
        parameters: Sequence[sp.Expr],
        primes: Sequence[int],
    ) -> list[sp.Expr] | None:
        """Return functions that are rational in parameters and roots; ``None`` if there are none of low degree.

        Args:
            values: the values modulo primes, at values of parameters and roots.
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
        """Return the square roots modulo a prime that is 3 modulo 4, with a sign for each independent root."""
        chosen = self._signs[0] if sign is None else sign
        return {
            root: math.prod(chosen[i] for i in places) * _modulo(root, prime) % prime
            for root, places in self._products.items()
        }

    def _coefficients(self, conjugates: Sequence[Sequence[int]], prime: int) -> list[int] | None:
        """Coefficients of numbers as sums of products of roots, from a row of values for each choice of signs."""
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
    """All subsets of ``range(count)``."""
    return [chosen for k in range(count + 1) for chosen in itertools.combinations(range(count), k)]


def _modulo(root: sp.Expr, prime: int) -> int:
    return pow(int(root.base), (prime + 1) // 4, prime)
