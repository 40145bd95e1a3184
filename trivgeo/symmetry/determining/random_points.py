"""Exact expressions at random points modulo primes.

A function such as exp(u) is transcendental over the rational functions, so at a random point its value is one more
random number, as long as its derivatives and its relations with other functions are kept. Determining equations are
then linear systems of numbers, whatever functions they hold, and their ranks are right up to a chance of about one in
10^8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from trivgeo.errors import ConfigurationError
from trivgeo.symmetry.equations.multi_index import Index, multi_indices
from trivgeo.symmetry.equations.unnamed_functions import Arbitrary, Particular, Solution, arbitrary

Values = NDArray[np.int64]
"""Numbers modulo a prime below 2^31."""

# For these primes p, (p - 1) / 2 is prime, too: every square has roots of all degrees.
PRIMES = (
    2147483579, 2147483123, 2147482763, 2147481563, 2147481143, 2147480927, 2147480327, 2147479823,
    2147479787, 2147478899, 2147478083, 2147477807, 2147477687, 2147477159,
    2147473283, 2147473127, 2147472659, 2147472023, 2147471759, 2147471147,
)  # fmt: skip


_NUM_MORE_PRIMES = 140  # primes after `PRIMES`: modulo one in eight of them three given numbers have square roots
_MIN_PRIMES = 2  # a fraction that is reconstructed from its remainder modulo one prime must match a second one


@lru_cache(maxsize=64)
def _products(count: int, order: int) -> tuple[list[Index], dict[Index, int], Values, Values, Values]:
    """Monomials up to a degree, their numbers, and pairs of factors sorted by product, with the first pair of each."""
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
    """The arithmetic of truncated power series modulo a prime, in batches ``[samples, monomials]``.

    Args:
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
        """Return ``first * sum_k coefficients[k] h^k``, with h the series ``a`` less its constant term."""
        tail = a.copy()
        tail[:, 0] = 0
        result = self.constant(coefficients[self.order] * np.ones(len(a), dtype=np.int64))
        for k in reversed(range(self.order)):
            result = self.times(result, tail)
            result[:, 0] = (result[:, 0] + coefficients[k]) % self.prime
        return self.times(result, first)


_TRANSCENDENTAL_INTEGRALS = (sp.erf, sp.erfi, sp.Ei, sp.Si, sp.Ci, sp.li)


class RandomEvaluator:
    """Evaluate expressions at random points modulo a prime, as power series in some of the symbols.

    Args:
        symbols: the variables of the series.
        order: the order of the series.
        samples: the number of points.
        fixed: values of some symbols, such as parameters: one number, or one for each point.
        constants: symbols with the same value at all points.
        at_one_point: whether all points have the same values of ``symbols``.
        given: series of other symbols, ``[samples, monomials]``, such as functions of ``symbols``.

    Attributes:
        valid: the points at which everything evaluated so far is defined, ``[samples]``.
    """

    def __init__(
        self,
        symbols: Sequence[sp.Symbol],
        order: int,
        samples: int,
        prime: int = PRIMES[0],
        seed: int = 0,
        fixed: Mapping[sp.Expr, Any] | None = None,
        constants: Sequence[sp.Symbol] = (),
        at_one_point: bool = False,
        given: Mapping[sp.Expr, Values] | None = None,
    ) -> None:
        self.series = PowerSeries(prime, len(symbols) if order else 0, order)
        self.prime, self.samples = prime, samples
        self._random = np.random.default_rng(seed)
        self._symbols = tuple(symbols)
        self._constants = set(constants) | set(fixed or {})
        self._same = self._constants | (set(symbols) if at_one_point else set())
        self._known: dict[Any, Values] = dict(given or {})
        for symbol, value in (fixed or {}).items():
            self._known[symbol] = self.series.constant(np.broadcast_to(np.asarray(value) % prime, (samples,)))
        self._kernels: dict[Any, Values] = {}
        self._basis: dict[tuple[Any, bool], list[tuple[sp.Expr, Values]]] = {}
        self.valid = np.ones(samples, dtype=bool)

    def _draw(self, of: sp.Expr) -> Values:
        """Random numbers, which differ between points unless the expression has the same value at all of them."""
        count = 1 if of.free_symbols <= self._same else self.samples
        return np.broadcast_to(self._random.integers(2, self.prime - 1, count), (self.samples,)).astype(np.int64)

    def __call__(self, expression: sp.Expr) -> Values:
        """The series of an expression, ``[samples, monomials]``."""
        if expression not in self._known:
            self._known[expression] = self._value(expression)
        return self._known[expression]

    def _value(self, e: sp.Expr) -> Values:
        for kind, rule in _RULES.items():
            if isinstance(e, kind):
                return rule(self, e)
        return self._constant(e) if e.is_number else self._rewritten(e)

    def _rational(self, e: sp.Rational) -> Values:
        value = e.p % self.prime * pow(e.q, -1, self.prime) % self.prime
        return self.series.constant(np.full(self.samples, value))

    def _symbol(self, e: sp.Symbol) -> Values:
        if e in self._symbols and self.series.order:
            return self.series.variable(self._symbols.index(e), self._draw(e))
        return self._constant(e)

    def _constant(self, e: sp.Expr) -> Values:
        """A random number in place of a symbol or constant without relations to others."""
        return self.series.constant(self._draw(e))

    def _sum(self, e: sp.Add) -> Values:
        total = self(e.args[0])
        for term in e.args[1:]:
            total = (total + self(term)) % self.prime
        return total

    def _product(self, e: sp.Mul) -> Values:
        total = self(e.args[0])
        for factor in e.args[1:]:
            total = self.series.times(total, self(factor))
        return total

    def _independent(self, e: sp.Expr) -> Values:
        """A function without algebraic relations to others: a random number, if no derivative is asked for."""
        return self._rewritten(e) if self.series.order and not e.is_number else self._constant(e)

    def _solution(self, e: Solution) -> Values:
        """A solution of a linear ordinary equation: a random number, or its expression by others."""
        return self._independent(e) if e.relation is None or self.series.order else self(e.free())

    def _rewritten(self, e: sp.Expr) -> Values:
        """Other functions in terms of exponentials, or of sine and cosine."""
        hyperbolic = isinstance(e, sp.sinh | sp.cosh | sp.tanh | sp.coth)
        other = e.rewrite(sp.exp) if hyperbolic else e.rewrite(sp.sin, sp.cos)
        if other == e or other.has(sp.I):
            raise ConfigurationError(
                f"equation: expected powers, exponentials, logarithms and trigonometric functions, got {e}"
            )
        return self(other)

    # Functions -----------------------------------------------------------------------------------------------

    def _arbitrary(self, e: Arbitrary) -> Values:
        """An arbitrary function: its derivatives at a point are independent random numbers."""
        name = type(e).__name__
        coefficients = []
        for k in range(self.series.order + 1):
            key = arbitrary(name.rstrip("'"), name.count("'") + k)(e.args[0])
            if key not in self._kernels:
                self._kernels[key] = self._draw(key)
            coefficients.append(self._kernels[key] * pow(math.factorial(k), -1, self.prime) % self.prime)
        one = self.series.constant(np.ones(self.samples, dtype=np.int64))
        return self.series.compose(self(e.args[0]), one, coefficients)

    def _root(self, numbers: Values, exponent: sp.Rational) -> Values:
        """Powers with a rational exponent; points at which a root has to be taken of no square become invalid."""
        p = self.prime
        if exponent.q == 1:
            e = int(exponent.p) % (p - 1)
        else:
            half = (p - 1) // 2
            self.valid &= _powers(numbers, half, p) == 1
            e = int(exponent.p) * pow(int(exponent.q), -1, half) % half
        return _powers(numbers, e, p)

    def _binomial(self, base: Values, exponent: Values) -> list[Values]:
        """The coefficients of (b + h)^r / b^r in powers of h."""
        p = self.prime
        inverse = _powers(base, p - 2, p)
        self.valid &= base != 0
        coefficients = [np.ones_like(base)]
        for k in range(self.series.order):
            step = (exponent - k) % p * inverse % p * pow(k + 1, -1, p) % p
            coefficients.append(coefficients[-1] * step % p)
        return coefficients

    def _power(self, base: sp.Expr, exponent: sp.Expr) -> Values:
        if exponent.free_symbols - self._constants:
            return self._exponential(exponent * sp.log(base))
        s = self.series
        value = self(base)
        if exponent.is_Integer and 0 <= exponent <= 6:
            result = s.constant(np.ones(self.samples, dtype=np.int64))
            for _ in range(int(exponent)):
                result = s.times(result, value)
            return result
        first, slopes = self._raised(base, exponent), self._binomial(value[:, 0], self(exponent)[:, 0])
        return s.compose(value, s.constant(first), slopes)

    def _raised(self, base: sp.Expr, exponent: sp.Expr) -> Values:
        """The value of a power; the exponent is constant unless the base is e."""
        result = np.ones(self.samples, dtype=np.int64)
        for term in sp.Add.make_args(sp.expand(exponent)):
            number, rest = term.as_coeff_Mul()
            for weight, kernel in self._combined(base, rest, rest if base == sp.E else base):
                result = result * self._root(kernel, number * weight) % self.prime
        return result

    def _combined(self, key: Any, rest: sp.Expr, of: sp.Expr) -> list[tuple[sp.Rational, Values]]:
        """An exponent or angle as a rational combination of independent ones, whose functions are random numbers.

        An exponent with the same value at all points is a combination of such exponents alone.
        """
        same = of.free_symbols <= self._same
        if (key, same) not in self._basis:
            # the first power of a base is its value
            start = [] if key in (sp.E, "angle") else [(sp.S.One, self(key)[:, 0])]
            self._basis[key, same] = start
        basis = self._basis[key, same] if same else [*self._basis.get((key, True), ()), *self._basis[key, same]]
        weights = _rational_weights(rest, tuple(entry for entry, _ in basis))
        if weights is None:
            kernel = self._kernel((key, rest), of)
            self._basis[key, same].append((rest, kernel))
            return [(sp.S.One, kernel)]
        return [(weight, kernel) for weight, (_, kernel) in zip(weights, basis, strict=True) if weight != 0]

    def _kernel(self, key: Any, of: sp.Expr) -> Values:
        """A random square in place of the value of a transcendental function."""
        if key not in self._kernels:
            draw = self._draw(of)
            self._kernels[key] = draw * draw % self.prime
        return self._kernels[key]

    def _exponential(self, argument: sp.Expr) -> Values:
        s, p = self.series, self.prime
        argument = sp.expand(argument)
        first = np.ones(self.samples, dtype=np.int64)
        for term in sp.Add.make_args(argument):
            logs = [f for f in sp.Mul.make_args(term) if isinstance(f, sp.log)]
            is_power = len(logs) == 1 and not (term / logs[0]).free_symbols - self._constants
            base, exponent = (logs[0].args[0], term / logs[0]) if is_power else (sp.E, term)
            first = first * self._raised(base, exponent) % p
        coefficients = [pow(math.factorial(k), -1, p) for k in range(s.order + 1)]
        return s.compose(self(argument), s.constant(first), coefficients)

    def _logarithm(self, argument: sp.Expr) -> Values:
        s, p = self.series, self.prime
        parts = sp.expand_log(sp.log(argument), force=True)
        if parts != sp.log(argument):
            return self(parts)
        value = self(argument)
        inverse = _powers(value[:, 0], p - 2, p)
        self.valid &= value[:, 0] != 0
        coefficients = [self._kernel(("log", argument), argument)]
        power = np.ones_like(inverse)
        for k in range(1, s.order + 1):
            power = power * inverse % p
            coefficients.append((power if k % 2 else -power) * pow(k, -1, p) % p)
        one = s.constant(np.ones(self.samples, dtype=np.int64))
        return s.compose(value, one, coefficients)

    def _sine_and_cosine(self, argument: sp.Expr) -> tuple[Values, Values]:
        """Sine and cosine of a sum of rational multiples of independent angles."""
        s, p = self.series, self.prime
        sine, cosine = np.zeros(self.samples, dtype=np.int64), np.ones(self.samples, dtype=np.int64)
        argument = sp.expand(argument)
        for term in sp.Add.make_args(argument):
            multiple, rest = term.as_coeff_Mul()
            for weight, half in self._combined("angle", rest, rest):
                number = multiple * weight
                # a point of the circle, by its half angle; angles are multiples of a 720th
                if 720 % int(number.q):
                    raise ConfigurationError(f"equation: expected simpler multiples of angles, got {argument}")
                inverse = _powers((1 + half * half) % p, p - 2, p)
                c, d = (1 - half * half) % p * inverse % p, 2 * half * inverse % p
                sx, cx = np.zeros_like(sine), np.ones_like(cosine)
                for bit in bin(abs(int(number * 720)))[2:]:
                    sx, cx = 2 * sx * cx % p, (cx * cx - sx * sx % p) % p
                    if bit == "1":
                        sx, cx = (sx * c + cx * d) % p, (cx * c - sx * d % p) % p
                sx = sx if number > 0 else -sx % p
                sine, cosine = (sine * cx + cosine * sx) % p, (cosine * cx - sine * sx % p) % p
        value, one = self(argument), s.constant(np.ones(self.samples, dtype=np.int64))
        inverses = [pow(math.factorial(k), -1, p) for k in range(s.order + 1)]
        sines = [[sine, cosine, -sine, -cosine][k % 4] * inverses[k] % p for k in range(s.order + 1)]
        cosines = [[cosine, -sine, -cosine, sine][k % 4] * inverses[k] % p for k in range(s.order + 1)]
        return s.compose(value, one, sines), s.compose(value, one, cosines)


_RULES: dict[Any, Callable[[RandomEvaluator, Any], Values]] = {
    sp.Rational: RandomEvaluator._rational,
    sp.Symbol: RandomEvaluator._symbol,
    sp.Add: RandomEvaluator._sum,
    sp.Mul: RandomEvaluator._product,
    sp.Pow: lambda self, e: self._exponential(e.exp) if e.base == sp.E else self._power(e.base, e.exp),
    sp.exp: lambda self, e: self._exponential(e.exp),
    type(sp.E): lambda self, e: self._exponential(sp.S.One),
    sp.log: lambda self, e: self._logarithm(e.args[0]),
    sp.sin: lambda self, e: self._sine_and_cosine(e.args[0])[0],
    sp.cos: lambda self, e: self._sine_and_cosine(e.args[0])[1],
    sp.tan: lambda self, e: self(sp.sin(e.args[0]) / sp.cos(e.args[0])),
    sp.cot: lambda self, e: self(sp.cos(e.args[0]) / sp.sin(e.args[0])),
    Arbitrary: RandomEvaluator._arbitrary,
    Solution: RandomEvaluator._solution,
    (*_TRANSCENDENTAL_INTEGRALS, Particular): RandomEvaluator._independent,
}
"""Rules by kind of expression; the first that fits is used."""


@lru_cache(maxsize=4096)
def _rational_weights(entry: sp.Expr, basis: tuple[sp.Expr, ...]) -> tuple[sp.Rational, ...] | None:
    """The weights of an expression as a rational combination of independent ones; ``None`` if it is none.

    A product of powers is a combination of nothing but itself; n / (n - 1) is one of 1 and 1 / (n - 1).
    """
    if entry in basis:
        return tuple(sp.Integer(entry == other) for other in basis)
    if not basis or not any(sp.fraction(e)[1].has(sp.Add) for e in (entry, *basis)):
        return None
    weights = sp.symbols(f"w:{len(basis)}", cls=sp.Dummy)
    left = sp.fraction(sp.together(entry - sp.Add(*(w * b for w, b in zip(weights, basis, strict=True)))))[0]
    symbols = [g for g in sp.Poly(left).gens if not g.has(*weights)]
    solutions = list(sp.linsolve(sp.Poly(left, *symbols).coeffs(), *weights))
    return tuple(solutions[0]) if solutions and all(w.is_Rational for w in solutions[0]) else None


def random_values(parameters: Iterable[sp.Expr], prime: int, seed: int) -> dict[sp.Expr, int]:
    """Return random numbers modulo ``prime`` as generic values of ``parameters``."""
    random = np.random.default_rng(seed)
    return {s: int(random.integers(2, prime - 1)) for s in parameters}


def irrational_constants(expressions: Iterable[sp.Expr]) -> list[sp.Expr]:
    """Return the irrational constants in SymPy ``expressions``, sorted."""
    found = {atom for e in expressions for atom in e.atoms(sp.Pow, sp.pi.func) if atom.is_number}
    return sorted(found, key=sp.default_sort_key)


def usable_primes(expressions: Iterable[sp.Expr]) -> tuple[int, ...]:
    """The primes modulo which all constants in expressions exist, as a square root of 2 does for half of the primes.

    Raises:
        ConfigurationError: there are fewer than two.
    """
    constants = {power for e in expressions for power in e.atoms(sp.Pow) if power.is_number}
    if not constants:
        return PRIMES
    usable: list[int] = []
    for prime in (*PRIMES, *_more_primes()):
        if len(usable) == len(PRIMES):
            break
        evaluate = RandomEvaluator((), 0, 1, prime)
        for constant in constants:
            evaluate(constant)
        if evaluate.valid.all():
            usable.append(prime)
    if len(usable) < _MIN_PRIMES:
        raise ConfigurationError(f"expected simpler constants, got {', '.join(map(str, constants))}")
    return tuple(usable)


def _powers(numbers: Values, exponent: int, prime: int) -> Values:
    result = np.ones_like(numbers)
    for bit in bin(exponent)[2:]:
        result = result * result % prime
        if bit == "1":
            result = result * numbers % prime
    return result


@lru_cache(maxsize=1)
def _more_primes() -> tuple[int, ...]:
    """Further primes p for which (p - 1) / 2 is prime too, below `PRIMES`."""
    primes: list[int] = []
    p = PRIMES[-1] - 12  # all of these are 11 modulo 12
    while len(primes) < _NUM_MORE_PRIMES:
        if sp.isprime(p) and sp.isprime(p // 2):
            primes.append(p)
        p -= 12
    return tuple(primes)
