"""The dimension of the symmetries of equations, without finding them: ranks of Taylor jets of determining equations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import sympy as sp

from trivgeo.errors import ConfigurationError
from trivgeo.groups.ground_fields import PrimeField
from trivgeo.symmetry.determining.conditions import LinearForm
from trivgeo.symmetry.determining.random_points import PowerSeries, RandomEvaluator, Values, usable_primes
from trivgeo.symmetry.equations.equation import EvolutionSystem
from trivgeo.symmetry.equations.multi_index import Index, covers, multi_indices, shifted

Slot = tuple[int, Index]
"""A derivative of a component of the field: its number and the multi-index of the derivative."""

_MAX_COEFFICIENTS = 3000  # unknown Taylor coefficients up to an order
_MAX_EXTRA_ORDERS = 12  # orders of derivatives beyond those in the equations
_MAX_DRAWS = 200  # random points that are tried until the equations are defined at one
_NUM_STABLE_ORDERS = 4  # orders in a row with the same result, after which it counts as the limit
_MAX_DEGREE_BESIDE = 2  # degree in other variables of what multiplies arbitrary functions
_MAX_SERIES_TERMS = 60_000  # pairs of terms in products of power series


@dataclass(frozen=True)
class Dimension:
    """Dimension of a space of symmetries, as far as it is known.

    Attributes:
        size: the dimension, without superposition; ``None`` if it is infinite or unknown.
        functions: number of arbitrary functions of most variables, if the dimension is infinite; else 0.
        arguments: largest number of variables of these functions.
        growth: number of free Taylor coefficients by order.
        order: order of derivatives that was enough.
        variables: the variables of these functions, such as the time; empty if they depend on combinations of some.
    """

    size: int | None
    functions: int
    arguments: int
    growth: tuple[int, ...]
    order: int
    variables: tuple[sp.Symbol, ...] = ()

    @property
    def is_infinite(self) -> bool:
        """True if symmetries depend on arbitrary functions."""
        return self.functions > 0


class Jets:
    """Taylor expansions of the determining equations at random points modulo a prime.

    Args:
        linear: whether superposition is set apart.
    """

    def __init__(self, system: EvolutionSystem, conditions: Sequence[LinearForm], linear: bool) -> None:
        self._system, self._conditions, self.linear = system, conditions, linear
        self.variables = system.coordinates
        self.primes = usable_primes(value for condition in conditions for value in condition.values())
        self.prime = self.primes[0]
        held = {s for condition in conditions for value in condition.values() for s in value.free_symbols}
        # in other variables the equations are the same everywhere, and their derivatives need no series
        self._held = [i for i, variable in enumerate(self.variables) if variable in held]

    def _rows(
        self,
        slots: Sequence[Slot],
        order: int,
        samples: int,
        seed: int,
        prime: int,
        fixed: Mapping[sp.Expr, int] | None = None,
    ) -> tuple[Values, PowerSeries, Values]:
        """Taylor coefficients of the equations, ``[rows, slots, monomials]``, and the point, ``[variables]``.

        Rows differ in the values of the free derivatives of u; series are in the variables that the equations hold.
        """
        for attempt in itertools.count():
            evaluate = RandomEvaluator(
                [self.variables[i] for i in self._held],
                order,
                samples,
                prime,
                seed + 1000 * attempt,
                fixed,
                constants=self._system.parameters,
                at_one_point=True,
            )
            blocks = []
            for condition in self._conditions:
                block = np.zeros((samples, len(slots), len(evaluate.series.monomials)), dtype=np.int64)
                for j, slot in enumerate(slots):
                    if slot in condition:
                        block[:, j] = evaluate(condition[slot])
                blocks.append(block)
            kept = evaluate.valid
            if attempt > _MAX_DRAWS:
                raise ConfigurationError(
                    f"equation: expected equations with values at rational points, {attempt} draws had none"
                )
            if kept.sum() >= samples // 4 + 1:
                point = np.array([evaluate(variable)[0, 0] for variable in self.variables])
                return np.concatenate([block[kept] for block in blocks]), evaluate.series, point
        raise AssertionError

    @cached_property
    def zeros(self) -> list[Slot]:
        """Derivatives of components of the field that vanish by determining equations of one term."""
        slots = sorted({slot for condition in self._conditions for slot in condition}, key=lambda s: (-sum(s[1]), s))
        zeros: list[Slot] = []
        while slots:
            rows, _, _ = self._rows(slots, 0, 2 * len(slots) + 10, len(zeros), self.prime)
            reduced, pivots = PrimeField(self.prime).row_echelon(rows[:, :, 0])
            single = np.count_nonzero(reduced, axis=1) == 1
            new = [slots[j] for j, one in zip(pivots, single, strict=True) if one]
            if not new:
                break
            zeros += new
            slots = [s for s in slots if not any(_within(s, z) for z in zeros)]
        self._slots = slots
        return zeros

    def allows(self, slot: Slot) -> bool:
        """Return True if the derivative ``slot`` may differ from zero."""
        return not any(_within(slot, z) for z in self.zeros)

    def _is_pure(self, slot: Slot) -> bool:
        """Whether a slot is a derivative of an unknown's component in the independent variables alone."""
        n = len(self._system.variables)
        return self.linear and slot[0] >= n and not any(slot[1][n:])

    def _columns(self, order: int) -> list[Slot]:
        columns = []
        for c in range(len(self.variables)):
            columns += [(c, k) for k in multi_indices(len(self.variables), order) if self.allows((c, k))]
        return sorted(columns, key=lambda s: (not self._is_pure(s), -sum(s[1]), s))

    def _eliminated(
        self, order: int, prime: int, fixed: Mapping[sp.Expr, int] | None = None, seed: int = 7
    ) -> tuple[list[Slot], Values, list[int], Values]:
        """The columns, rows and pivots of all equations up to an order in reduced form, and the point."""
        columns = self._columns(order)
        place = {slot: j for j, slot in enumerate(columns)}
        slots = self._slots
        if not slots:
            rows, _, point = self._rows([], 0, 1, seed, prime, fixed)
            return columns, np.zeros((0, len(columns)), dtype=np.int64), [], point
        height = min(sum(k) for _, k in slots)
        samples = 2 * len(slots) // len(self._conditions) + 6
        rows, series, point = self._rows(slots, order - height, samples, seed, prime, fixed)
        reduced, pivots = self._reduced(rows, series, slots, place, order)
        return columns, reduced, pivots, point

    def free(self, order: int) -> tuple[int, ...]:
        """Return the numbers of free Taylor coefficients by order, from all equations up to ``order``."""
        columns, reduced, pivots, _ = self._eliminated(order, self.prime)
        self._forbid(columns, reduced, pivots)
        self._last = columns, reduced, pivots
        taken = {columns[j] for j in pivots}
        sizes = [0] * (order + 1)
        for slot in columns:
            if slot not in taken and not self._is_pure(slot):
                sizes[sum(slot[1])] += 1
        return tuple(sizes)

    def _forbid(self, columns: Sequence[Slot], reduced: Values, pivots: Sequence[int]) -> None:
        """Note derivatives that vanish by derivatives of the equations: higher orders then have far fewer columns.

        The point is a random one, so that what vanishes there for all symmetries vanishes everywhere.
        """
        single = np.count_nonzero(reduced[: len(pivots)], axis=1) == 1
        new = sorted((columns[j] for j, one in zip(pivots, single, strict=True) if one), key=lambda s: sum(s[1]))
        for slot in new:
            if self.allows(slot):
                self.zeros.append(slot)
        self._slots = [s for s in self._slots if self.allows(s)]

    def spectrum(
        self, position: int, order: int, prime: int, fixed: Mapping[sp.Expr, int], seed: int, about: int | None = None
    ) -> tuple[list[int], bool]:
        """Return the characteristic polynomial of a partial derivative on the space of symmetries, at a point.

        Args:
            position: number of the variable z.
            order: order of the Taylor expansion.
            seed: seed of the point.
            about: a number a, for the Lie derivative along (z - a) d/dz instead.

        Returns:
            Coefficients, the leading one first, and whether derivatives of symmetries are symmetries, up to the order.
        """
        columns, reduced, pivots, point = self._eliminated(order, prime, fixed, seed)
        place = {slot: j for j, slot in enumerate(columns)}
        free = [j for j, s in enumerate(columns) if j not in set(pivots) and not self._is_pure(s)]
        gap = next(q for q in range(order + 1) if not any(sum(columns[j][1]) == q for j in free))
        inside = [j for j in free if sum(columns[j][1]) < gap]
        # Taylor coefficients in terms of those below the gap, and whether these determine them
        values = np.zeros((len(columns), len(inside)), dtype=np.int64)
        known = np.zeros(len(columns), dtype=bool)
        values[inside, range(len(inside))], known[inside] = 1, True
        values[pivots] = -reduced[:, inside] % prime
        known[pivots] = ~reduced[:, [j for j in free if j not in inside]].any(axis=1)
        factor = 1 if about is None else (int(point[position]) - about) % prime
        moved, told = np.zeros_like(values), np.zeros_like(known)
        for j, (c, k) in enumerate(columns):
            target = (c, shifted(k, position))
            ahead = place.get(target)
            told[j] = (known[ahead] if ahead is not None else not self.allows(target)) and not self._is_pure((c, k))
            moved[j] = 0 if ahead is None else values[ahead] * factor % prime
            if about is not None:
                moved[j] = (moved[j] + values[j] * (k[position] - (c == position))) % prime
                told[j] &= known[j]
        left = (row[:, None] * moved % prime for row in reduced if not row[~told].any())
        keeps = not any((part.sum(axis=0) % prime).any() for part in left)
        return PrimeField(prime).characteristic_polynomial(moved[inside]), keeps

    def _reduced(
        self, rows: Values, series: PowerSeries, slots: Sequence[Slot], place: dict[Slot, int], order: int
    ) -> tuple[Values, list[int]]:
        """The equations and all their derivatives up to an order in reduced form: rows and pivots."""
        p = series.prime
        # a basis of the equations, sorted by the order of derivatives: low ones can be differentiated more often
        _, chosen = PrimeField(p).row_echelon(rows[:, :, 0].T)
        rows = rows[chosen]
        rows = _triangular(rows, series)
        inverses = [pow(math.factorial(k), -1, p) for k in range(order + 1)]
        entries = []
        for row in rows:
            used = [j for j in range(len(slots)) if row[j].any()]
            top = max((sum(slots[j][1]) for j in used), default=order + 1)
            for target in self._targets([slots[j] for j in used], order - top):
                line = self._derivative(row, used, slots, target, series, inverses, place)
                if line is not None:
                    entries.append(line)
        return PrimeField(p).row_echelon(np.array(entries or [np.zeros(len(place), dtype=np.int64)]))

    def _targets(self, slots: Sequence[Slot], degree: int) -> Iterator[Index]:
        """Derivatives of an equation in these slots up to a degree, without those that vanish with all its terms."""
        others = [i for i in range(len(self.variables)) if i not in self._held]
        zero = (0,) * len(self.variables)
        layer = [zero] if degree >= 0 else []
        for total in range(degree + 1):
            for start in layer:
                for powers in multi_indices(len(self._held), degree - total):
                    target = list(start)
                    for i, k in zip(self._held, powers, strict=True):
                        target[i] = k
                    yield tuple(target)
            further = dict.fromkeys(shifted(start, i) for start in layer for i in others)
            layer = [
                ahead for ahead in further if any(self.allows((c, tuple(map(int.__add__, k, ahead)))) for c, k in slots)
            ]

    def _derivative(
        self,
        row: Values,
        used: Sequence[int],
        slots: Sequence[Slot],
        target: Index,
        series: PowerSeries,
        inverses: Sequence[int],
        place: dict[Slot, int],
    ) -> Values | None:
        """A derivative of one equation, over its factorials, as a row of columns; ``None`` where it says nothing."""
        line = None
        held = [target[i] for i in self._held]
        for part in itertools.product(*(range(power + 1) for power in held)):
            inner = list(target)
            for i, power in zip(self._held, part, strict=True):
                inner[i] = power
            rest = series.place.get(tuple(a - b for a, b in zip(held, part, strict=True)))
            if rest is None:
                continue
            weight = math.prod(inverses[power] for power in inner) % series.prime
            for j in used:
                value = row[j, rest]
                if value:
                    c, k = slots[j]
                    column = place.get((c, tuple(a + b for a, b in zip(k, inner, strict=True))))
                    if column is not None:
                        line = np.zeros(len(place), dtype=np.int64) if line is None else line
                        line[column] = (line[column] + int(value) * weight) % series.prime
        return line

    def dimension(self, known: int = 0) -> Dimension:
        """The dimension: the order rises until no coefficient is free, or their numbers are those of functions.

        Args:
            known: a lower bound of the dimension: where it is met the computation ends.
        """
        self.zeros  # noqa: B018
        top = max((sum(k) for _, k in self._slots), default=0)
        sizes: tuple[int, ...] = ()
        before: tuple[int, ...] = ()
        found: list[int] = []
        guesses: list[tuple[int, int]] = []
        for order in range(top + 1, top + _MAX_EXTRA_ORDERS):
            too_many = (
                math.comb(2 * len(self._held) + order, order) > _MAX_SERIES_TERMS
                or len(self._columns(order)) > _MAX_COEFFICIENTS
            )
            if order > top + 1 and too_many:
                break
            before, sizes = sizes, self.free(order)
            # if lower derivatives determine all derivatives of some order, the number of free lower ones is an upper
            # bound of the dimension; further derivatives of the equations may lower it
            first = next((q for q, size in enumerate(sizes) if size == 0), None)
            found = [*found, sum(sizes[:first])] if first is not None else []
            if found and (found[-1] <= known or found[-_NUM_STABLE_ORDERS:] == [found[-1]] * _NUM_STABLE_ORDERS):
                break
            pairs = zip(sizes, before, strict=False)
            guess = _functions([a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)])
            guesses = [] if found else [*guesses, guess]
            if guess[0] and guesses[-_NUM_STABLE_ORDERS:] == [guess] * _NUM_STABLE_ORDERS:
                break
        if found:
            enough = len(found) - next(i for i, size in enumerate(found) if size == found[-1])
            return Dimension(found[-1], 0, 0, sizes, len(sizes) - enough)
        # a guess from one order alone does not count
        agreed = guesses[-1] if len(guesses) > 1 and guesses[-1] == guesses[-2] else (0, 0)
        return Dimension(None, *agreed, sizes, len(sizes) - 1, self._arguments(agreed[1], len(sizes) - 2))

    def _arguments(self, number: int, order: int) -> tuple[sp.Symbol, ...]:
        """The variables of arbitrary functions, if symmetries are polynomials of low degree in all others.

        A function of x + t is as free in x as in t: derivatives of an order depend on each other then.

        Args:
            number: number of the variables.
            order: order of derivatives of the functions that is looked at.
        """
        columns, reduced, pivots = self._last
        taken = set(pivots)
        free = [j for j, s in enumerate(columns) if j not in taken and sum(s[1]) == order and not self._is_pure(s)]
        for chosen in itertools.combinations(range(len(self.variables)), number) if free else ():
            others = [i for i in range(len(self.variables)) if i not in chosen]

            def away(slot: Slot, others: list[int] = others) -> bool:
                return sum(slot[1][i] for i in others) > _MAX_DEGREE_BESIDE

            rows = [i for i, j in enumerate(pivots) if sum(columns[j][1]) == order and away(columns[j])]
            if not any(away(columns[j]) for j in free) and not reduced[np.ix_(rows, free)].any():
                return tuple(self.variables[i] for i in chosen)
        return ()


def _triangular(rows: Values, series: PowerSeries) -> Values:
    """Row reduction over power series, highest derivatives first, so that equations of low order appear.

    SymPy's power series expand about a single point, a hundred times slower than this for batches.
    """
    p = series.prime
    rows = rows.copy()
    done = 0
    for column in range(rows.shape[1]):
        candidates = np.flatnonzero(rows[done:, column, 0])
        if not len(candidates):
            continue
        chosen = done + candidates[0]
        rows[[done, chosen]] = rows[[chosen, done]]
        pivot = rows[done, column]
        inverse0 = pow(int(pivot[0]), -1, p)
        coefficients = [np.array([inverse0])]
        for _ in range(series.order):
            coefficients.append(-coefficients[-1] * inverse0 % p)
        one = series.constant(1)
        inverse = series.compose(pivot[None], one, coefficients)
        rows[done] = series.times(rows[done], np.broadcast_to(inverse, rows[done].shape))
        used = np.flatnonzero(rows[done].any(axis=1))
        for other in range(len(rows)):
            if other != done and rows[other, column].any():
                factor = np.broadcast_to(rows[other, column], (len(used), rows.shape[2]))
                rows[other, used] = (rows[other, used] - series.times(rows[done, used], factor)) % p
        done += 1
        if done == len(rows):
            break
    return rows


def _functions(sizes: Sequence[int]) -> tuple[int, int]:
    """The number of functions, and of their variables, with the given numbers of Taylor coefficients by order."""
    tail = list(sizes)[1:]
    for arguments in itertools.count(1):
        if len(tail) < 2:
            return 0, 0
        if all(value == tail[-1] for value in tail[-2:]):
            return (tail[-1], arguments) if tail[-1] > 0 else (0, 0)
        tail = [b - a for a, b in itertools.pairwise(tail)]
    raise AssertionError


def _within(slot: Slot, zero: Slot) -> bool:
    return slot[0] == zero[0] and covers(slot[1], zero[1])
