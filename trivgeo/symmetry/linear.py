"""Fields with coefficients from a given space of functions, solved for at random points modulo primes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import sympy as sp

from trivgeo.symmetry.determining import LinearForm
from trivgeo.symmetry.dimension import Jets
from trivgeo.symmetry.equation import EvolutionSystem, Index, multi_indices
from trivgeo.symmetry.modular import Evaluator, Values, echelon, irrational, rational, usable_primes

__all__ = ["Space", "kernel", "reconstruct"]

Fixed = dict[sp.Expr, int]


@dataclass(frozen=True)
class Column:
    """One unknown: a component of the field, the powers of the variables, which function they are multiplied with."""

    component: int
    powers: Index
    function: int


class Space:
    """Fields whose coefficients are polynomials up to a degree times functions.

    Args:
        system: the equations.
        conditions: the symmetry conditions.
        jets: what is known to vanish.
        functions: what polynomials are multiplied with; the first is 1.
        degree: of the polynomials.
        linear: whether superposition is set apart.
    """

    def __init__(
        self,
        system: EvolutionSystem,
        conditions: Sequence[LinearForm],
        jets: Jets,
        functions: Sequence[sp.Expr],
        degree: int,
        linear: bool,
    ) -> None:
        self._system, self._conditions, self._functions = system, conditions, tuple(functions)
        self.variables = (*system.variables, *system.unknowns)
        self._linear = linear
        # What holds for any number holds for the square root of 2 too. Should more hold for that number alone, it is
        # not found, and the statement says so.
        self._parameters = (*system.parameters, *irrational(e for c in conditions for e in c.values()))
        count = len(self.variables)
        columns = [
            Column(c, powers, f)
            for c in range(count)
            for f in range(len(self._functions))
            for powers in multi_indices(count, degree)
            if self._is_allowed(c, powers, self._functions[f], jets)
        ]
        self._derivatives: dict[tuple[int, Index], sp.Expr] = {}
        values = (value for condition in conditions for value in condition.values())
        self._primes = usable_primes((*values, *self._functions))
        self.columns = sorted(self._independent(columns), key=self.is_pure)

    def is_pure(self, column: Column) -> bool:
        """Whether it adds a function of the independent variables to an unknown of linear equations."""
        n = len(self._system.variables)
        free = not any(column.powers[n:]) and not self._functions[column.function].free_symbols & {
            *self._system.unknowns
        }
        return self._linear and column.component >= n and free

    def _is_allowed(self, component: int, powers: Index, function: sp.Expr, jets: Jets) -> bool:
        """Not if single equations say that it is absent."""
        for c, zero in jets.zeros:
            used = [i for i, k in enumerate(zero) if k]
            if c != component:
                continue
            inside = any(self.variables[i] in function.free_symbols for i in used)
            if not inside and all(a >= b for a, b in zip(powers, zero, strict=True)):
                return False
            if inside and len(used) == 1:
                return False
        return True

    def _independent(self, columns: Sequence[Column]) -> list[Column]:
        """Without functions that are combinations of those before, such as x exp(t) where exp(t) is given."""
        if len(self._functions) == 1:
            return list(columns)
        every = sorted({(c.function, c.powers) for c in columns}, key=lambda key: (key[0], sum(key[1]), key[1]))
        rows = np.zeros((0, len(every)), dtype=np.int64)
        for seed in range(_ATTEMPTS):
            e = Evaluator((), 0, len(every) + 12, self._primes[0], seed, constants=self._system.parameters)
            table = [self._monomial(e, powers) * e(self._functions[f])[:, 0] % e.prime for f, powers in every]
            rows = np.concatenate([rows, np.stack(table, axis=1)[e.valid]])
            if len(rows) > len(every) + 8:
                break
        _, pivots = echelon(rows, self._primes[0])
        kept = {every[j] for j in pivots}
        return [c for c in columns if (c.function, c.powers) in kept]

    def _monomial(self, e: Evaluator, powers: Index) -> Values:
        result = np.ones(e.samples, dtype=np.int64)
        for variable, power in zip(self.variables, powers, strict=True):
            for _ in range(power):
                result = result * e(variable)[:, 0] % e.prime
        return result

    def _derivative(self, function: int, index: Index) -> sp.Expr:
        key = (function, index)
        if key not in self._derivatives:
            counts = [(v, k) for v, k in zip(self.variables, index, strict=True) if k]
            value = self._functions[function]
            self._derivatives[key] = sp.diff(value, *counts) if counts else value
        return self._derivatives[key]

    def _rows(
        self, columns: Sequence[Column], count: int, prime: int, seed: int, fixed: Sequence[Fixed]
    ) -> list[Values]:
        """The symmetry conditions at random points, ``[rows, columns]``, for each of several values of the parameters.

        All are evaluated together: it is the number of expressions that costs, not that of points.
        """
        samples = count * len(fixed)
        values = {s: np.repeat([f[s] for f in fixed], count) for s in fixed[0]}
        e = Evaluator((), 0, samples, prime, seed, values, self._system.parameters)
        top = max((max(c.powers) for c in columns), default=0)
        tables = []
        for variable in self.variables:
            table = [np.ones(samples, dtype=np.int64)]
            for _ in range(top):
                table.append(table[-1] * e(variable)[:, 0] % prime)
            tables.append(np.stack(table))
        groups: dict[tuple[int, int], list[int]] = {}
        for j, column in enumerate(columns):
            groups.setdefault((column.component, column.function), []).append(j)
        blocks = []
        known: dict[tuple[int, int, Index], Values] = {}
        for condition in self._conditions:
            block = np.zeros((samples, len(columns)), dtype=np.int64)
            for (component, k), factor in condition.items():
                weight = e(factor)[:, 0]
                for (c, f), places in groups.items():
                    if c != component:
                        continue
                    if (c, f, k) not in known:
                        powers = np.array([columns[j].powers for j in places])
                        known[c, f, k] = self._values(e, f, k, powers, tables)
                    block[:, places] = (block[:, places] + weight[:, None] * known[c, f, k].T) % prime
            blocks.append(block)
        parts = [slice(i * count, (i + 1) * count) for i in range(len(fixed))]
        return [np.concatenate([block[part][e.valid[part]] for block in blocks]) for part in parts]

    def _values(self, e: Evaluator, function: int, k: Index, powers: np.ndarray, tables: Sequence[Values]) -> Values:
        """A derivative of monomials times a function, ``[columns, samples]``, by Leibniz' rule."""
        total = np.zeros((len(powers), e.samples), dtype=np.int64)
        constant = not self._functions[function].free_symbols & set(self.variables)
        for inner in [(0,) * len(k)] if constant else itertools.product(*(range(i + 1) for i in k)):
            product = np.full((len(powers), e.samples), math.prod(map(math.comb, k, inner)), dtype=np.int64)
            product = product * e(self._derivative(function, inner))[:, 0] % e.prime
            for i, (a, b) in enumerate(zip(k, inner, strict=True)):
                left = powers[:, i] - (a - b)
                falling = np.array([math.perm(int(p), a - b) if p >= a - b else 0 for p in powers[:, i]])
                product = product * falling[:, None] % e.prime * tables[i][np.maximum(left, 0)] % e.prime
            total = (total + product) % e.prime
        return total

    def null_space(self, columns: Sequence[Column], prime: int, fixed: Fixed, seed: int = 0) -> Values:
        """A reduced basis of the solutions, ``[solutions, columns]``."""
        if not columns:
            return np.zeros((0, 0), dtype=np.int64)
        rows = np.zeros((0, len(columns)), dtype=np.int64)
        pivots: list[int] = []
        samples, idle = len(columns) // len(self._conditions) + 12, 0
        for attempt in range(_ATTEMPTS):
            (more,) = self._rows(columns, samples, prime, seed + attempt, [fixed])
            before = len(pivots)
            rows, pivots = echelon(np.concatenate([rows, more]), prime)
            idle += len(more) if len(pivots) == before else -idle
            if idle >= _IDLE:
                break
            samples = max(samples // 4, 12)
        else:
            return np.zeros((0, len(columns)), dtype=np.int64)
        return kernel(rows, pivots, prime)

    @cached_property
    def _basis(self) -> Values:
        """The solutions at random values of the parameters, modulo the first prime."""
        random = np.random.default_rng(2)
        generic = {s: int(random.integers(2, self._primes[0] - 1)) for s in self._parameters}
        return self.null_space(self.columns, self._primes[0], generic)

    @property
    def count(self) -> int:
        """The number of symmetries in this space, beside superposition."""
        return sum(not self.is_pure(self.columns[np.flatnonzero(row)[0]]) for row in self._basis)

    def solve(self) -> tuple[list[tuple[sp.Expr, ...]], list[tuple[sp.Expr, ...]]] | None:
        """Exact symmetries, and those that are superposition; ``None`` if their coefficients are not found."""
        basis = self._basis
        support = np.flatnonzero(basis.any(axis=0))
        columns = [self.columns[j] for j in support]
        count = len(basis)
        expected = basis[:, support] != 0

        def values(prime: int, fixed: Sequence[Fixed]) -> list[list[int] | None]:
            result: list[list[int] | None] = []
            for rows in self._rows(columns, 2 * len(columns) + 24, prime, prime % 1000, fixed):
                solutions = kernel(*echelon(rows, prime), prime)
                fits = solutions.shape == expected.shape and not ((solutions != 0) & ~expected).any()
                result.append([int(v) for v in solutions[expected]] if fits else None)
            return result

        if not count:
            return [], []
        roots = [c for c in irrational(self._functions) if c not in self._parameters]
        if len(roots) == 1 and roots[0].exp == sp.S.Half and not self._parameters:
            numbers = self._with_root(values, roots[0])
        else:
            numbers = reconstruct(values, self._parameters, self._primes)
        if numbers is None:
            return None
        fields: tuple[list[tuple[sp.Expr, ...]], list[tuple[sp.Expr, ...]]] = ([], [])
        taken = iter(numbers)
        for row in expected:
            entries = [(column, next(taken)) for column, used in zip(columns, row, strict=True) if used]
            fields[self.is_pure(entries[0][0])].append(self._field(entries))
        return fields

    def _with_root(
        self, values: Callable[[int, Sequence[Fixed]], list[list[int] | None]], root: sp.Expr
    ) -> list[sp.Expr] | None:
        """Numbers a + b r, where r is a square root: what they are with -r tells a and b apart."""

        def parts(prime: int, fixed: Sequence[Fixed]) -> list[list[int] | None]:
            value = int(Evaluator((), 0, 1, prime)(root)[0, 0])
            plus, minus = values(prime, [{root: value}])[0], values(prime, [{root: prime - value}])[0]
            if plus is None or minus is None:
                return [None]
            half, slope = pow(2, -1, prime), pow(2 * value, -1, prime)
            pairs = list(zip(plus, minus, strict=True))
            return [[(a + b) * half % prime for a, b in pairs] + [(a - b) * slope % prime for a, b in pairs]]

        numbers = reconstruct(parts, (), self._primes)
        if numbers is None:
            return None
        half = len(numbers) // 2
        return [a + b * root for a, b in zip(numbers[:half], numbers[half:], strict=True)]

    def _field(self, entries: Sequence[tuple[Column, sp.Expr]]) -> tuple[sp.Expr, ...]:
        """Without common denominators or factors."""
        values = [sp.together(value) for _, value in entries]
        denominator = sp.lcm_list([sp.denom(v) for v in values])
        values = [sp.cancel(v * denominator) for v in values]
        common = sp.gcd_list(values)
        if values[0].could_extract_minus_sign() != common.could_extract_minus_sign():
            common = -common
        components = [sp.S.Zero] * len(self.variables)
        for (column, _), value in zip(entries, values, strict=True):
            monomial = sp.Mul(*(v**k for v, k in zip(self.variables, column.powers, strict=True)))
            components[column.component] += sp.cancel(value / common) * monomial * self._functions[column.function]
        return tuple(sp.expand(component, power_exp=False) for component in components)


def kernel(rows: Values, pivots: Sequence[int], prime: int) -> Values:
    """A reduced basis of what a matrix in reduced form sends to zero."""
    width = rows.shape[1]
    free = [j for j in range(width) if j not in set(pivots)]
    basis = np.zeros((len(free), width), dtype=np.int64)
    for i, j in enumerate(free):
        basis[i, j] = 1
        basis[i, pivots] = -rows[:, j] % prime
    return echelon(basis, prime)[0]


_ATTEMPTS = 30
_IDLE = 8  # equations that say nothing new, before the rest is taken to do so too


def reconstruct(
    values: Callable[[int, Sequence[Fixed]], list[list[int] | None]],
    parameters: Sequence[sp.Expr],
    primes: Sequence[int],
) -> list[sp.Expr] | None:
    """Rational functions of the parameters from their values modulo primes; ``None`` if they are none of low degree.

    Args:
        values: the values at a prime and at each of several numbers for the parameters; ``None`` where there are none.
        parameters: the parameters.
        primes: the primes.
    """
    if not parameters:
        return _numbers(lambda prime: values(prime, [{}])[0], primes)
    random = np.random.default_rng(1)
    samples: dict[int, list[tuple[Fixed, list[int]]]] = {prime: [] for prime in primes}
    for degree in range(1, _DEGREE + 1):
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
            fractions: dict[tuple[int, ...], list[int] | None] = {}  # many numbers are the same
            result = []
            for numbers in zip(*(value for _, value in known[:needed]), strict=True):
                if numbers not in fractions:
                    fractions[numbers] = _fraction(table, np.array(numbers, dtype=np.int64), prime)
                fraction = fractions[numbers]
                if fraction is None:
                    return None
                result += fraction
            return result

        found = _numbers(coefficients, primes)
        if found is not None:
            terms = [sp.Mul(*(s**k for s, k in zip(parameters, m, strict=True))) for m in monomials]
            size = len(monomials)
            parts = [found[i : i + size] for i in range(0, len(found), size)]
            sums = [sp.Add(*(c * t for c, t in zip(part, terms, strict=True))) for part in parts]
            return [sp.cancel(top / bottom) for top, bottom in zip(sums[::2], sums[1::2], strict=True)]
    return None


_DEGREE = 6


def _fraction(table: Values, numbers: Values, prime: int) -> list[int] | None:
    """Coefficients of a numerator and of a denominator, the simplest by the order of monomials."""
    size = table.shape[1]
    system = np.concatenate([table, -(table * numbers[:, None] % prime) % prime], axis=1)
    # the simplest: solutions that use the first monomials alone
    reduced, pivots = echelon(system, prime)
    free = [j for j in range(2 * size) if j not in set(pivots) and j >= size]
    if not free:
        return None
    solution = [0] * (2 * size)
    solution[free[0]] = 1
    for row, pivot in zip(reduced, pivots, strict=True):
        solution[pivot] = -int(row[free[0]]) % prime
    return solution


def _numbers(values: Callable[[int], list[int] | None], primes: Sequence[int]) -> list[sp.Expr] | None:
    """Rational numbers from their values modulo primes; each must explain one prime more."""
    modulus = 1
    combined: list[int] = []
    for prime in primes:
        new = values(prime)
        if new is None:
            continue
        if modulus > 1:
            guesses = [rational(v, modulus) for v in combined]
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
