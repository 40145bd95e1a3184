"""Fields with coefficients from a given space of functions, solved for at random points modulo primes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import sympy as sp

from trivgeo.groups.ground_fields import PrimeField
from trivgeo.symmetry.determining.conditions import LinearForm
from trivgeo.symmetry.determining.dimension import Jets
from trivgeo.symmetry.determining.random_points import (
    RandomEvaluator,
    Values,
    irrational_constants,
    random_values,
    usable_primes,
)
from trivgeo.symmetry.determining.reconstruction import ParameterValues, SquareRoots, exact_rows
from trivgeo.symmetry.equations.equation import EvolutionSystem
from trivgeo.symmetry.equations.multi_index import Index, covers, derivative, multi_indices

_MAX_DRAWS = 30  # batches of random points
_MIN_IDLE_EQUATIONS = 8  # dependent equations in a row after which all further ones count as dependent


@dataclass(frozen=True)
class Column:
    """One unknown coefficient: of a monomial times a function, in one component of the field.

    Attributes:
        component: number of the component.
        powers: exponents of the monomial.
        function: number of the function.
    """

    component: int
    powers: Index
    function: int


class AnsatzSpace:
    """Fields whose coefficients are sums of polynomials up to a degree times functions.

    Args:
        jets: the determining equations at random points, which say what derivatives of coefficients vanish.
        functions: factors of the polynomials; the first is 1.
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
        self.variables = system.coordinates
        self._linear = linear
        # Irrational constants count as parameters: symmetries for any number are symmetries for the square root of 2.
        # Should that number alone have more, they are not found, and the statement says so.
        self._parameters = (*system.parameters, *irrational_constants(e for c in conditions for e in c.values()))
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
        """Return True for superposition: a function of the independent variables is added to an unknown."""
        n = len(self._system.variables)
        free = not any(column.powers[n:]) and not self._functions[column.function].free_symbols & {
            *self._system.unknowns
        }
        return self._linear and column.component >= n and free

    def _is_allowed(self, component: int, powers: Index, function: sp.Expr, jets: Jets) -> bool:
        """Whether no determining equation of one term excludes the monomial times the function."""
        for c, zero in jets.zeros:
            used = [i for i, k in enumerate(zero) if k]
            if c != component:
                continue
            inside = any(self.variables[i] in function.free_symbols for i in used)
            if not inside and covers(powers, zero):
                return False
            if inside and len(used) == 1:
                return False
        return True

    def _independent(self, columns: Sequence[Column]) -> list[Column]:
        """Columns of functions that are independent of earlier ones: x exp(t) may be given beside exp(t)."""
        if len(self._functions) == 1:
            return list(columns)
        every = sorted({(c.function, c.powers) for c in columns}, key=lambda key: (key[0], sum(key[1]), key[1]))
        rows = np.zeros((0, len(every)), dtype=np.int64)
        for seed in range(_MAX_DRAWS):
            e = RandomEvaluator((), 0, len(every) + 12, self._primes[0], seed, constants=self._system.parameters)
            table = [self._monomial(e, powers) * e(self._functions[f])[:, 0] % e.prime for f, powers in every]
            rows = np.concatenate([rows, np.stack(table, axis=1)[e.valid]])
            if len(rows) > len(every) + 8:
                break
        _, pivots = PrimeField(self._primes[0]).row_echelon(rows)
        kept = {every[j] for j in pivots}
        return [c for c in columns if (c.function, c.powers) in kept]

    def _monomial(self, e: RandomEvaluator, powers: Index) -> Values:
        result = np.ones(e.samples, dtype=np.int64)
        for variable, power in zip(self.variables, powers, strict=True):
            for _ in range(power):
                result = result * e(variable)[:, 0] % e.prime
        return result

    def _derivative(self, function: int, index: Index) -> sp.Expr:
        key = (function, index)
        if key not in self._derivatives:
            self._derivatives[key] = derivative(self._functions[function], self.variables, index)
        return self._derivatives[key]

    def _rows(
        self, columns: Sequence[Column], count: int, prime: int, seed: int, fixed: Sequence[ParameterValues]
    ) -> list[Values]:
        """The symmetry conditions at random points, ``[rows, columns]``, for each of several values of the parameters.

        All points are evaluated together: the number of expressions decides the time, not the number of points.
        """
        samples = count * len(fixed)
        values = {s: np.repeat([f[s] for f in fixed], count) for s in fixed[0]}
        e = RandomEvaluator((), 0, samples, prime, seed, values, self._system.parameters)
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

    def _values(
        self, e: RandomEvaluator, function: int, k: Index, powers: np.ndarray, tables: Sequence[Values]
    ) -> Values:
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

    def solutions(self, columns: Sequence[Column], prime: int, fixed: ParameterValues, seed: int = 0) -> Values:
        """Return a reduced basis of the solutions modulo ``prime``, ``[solutions, columns]``, at fixed parameters."""
        if not columns:
            return np.zeros((0, 0), dtype=np.int64)
        field = PrimeField(prime)
        rows = field.zeros(0, len(columns))
        pivots: list[int] = []
        samples, idle = len(columns) // len(self._conditions) + 12, 0
        for attempt in range(_MAX_DRAWS):
            (more,) = self._rows(columns, samples, prime, seed + attempt, [fixed])
            before = len(pivots)
            rows, pivots = field.row_echelon(np.concatenate([rows, more]))
            idle += len(more) if len(pivots) == before else -idle
            if idle >= _MIN_IDLE_EQUATIONS:
                return field.row_space(field.kernel(rows, pivots))
            samples = max(samples // 4, 12)
        return field.zeros(0, len(columns))

    @cached_property
    def _basis(self) -> Values:
        """The solutions at random values of the parameters, modulo the first prime."""
        generic = random_values(self._parameters, self._primes[0], seed=2)
        return self.solutions(self.columns, self._primes[0], generic)

    @property
    def count(self) -> int:
        """The number of symmetries in this space, without superposition."""
        return sum(not self.is_pure(self.columns[np.flatnonzero(row)[0]]) for row in self._basis)

    def solve(self) -> tuple[list[tuple[sp.Expr, ...]], list[tuple[sp.Expr, ...]]] | None:
        """Exact symmetries without superposition, and superposition; ``None`` if their coefficients are not found."""
        support = np.flatnonzero(self._basis.any(axis=0))
        columns = [self.columns[j] for j in support]

        def solved(prime: int, fixed: Sequence[ParameterValues]) -> list[Values]:
            found = self._rows(columns, 2 * len(columns) + 24, prime, prime % 1000, fixed)
            return [PrimeField(prime).null_space(rows) for rows in found]

        roots = SquareRoots([c for c in irrational_constants(self._functions) if c not in self._parameters])
        rows = exact_rows(
            self._basis[:, support], solved, lambda values: roots.numbers(values, self._parameters, self._primes)
        )
        if rows is None:
            return None
        fields: tuple[list[tuple[sp.Expr, ...]], list[tuple[sp.Expr, ...]]] = ([], [])
        for row in rows:
            entries = [(column, number) for column, number in zip(columns, row, strict=True) if number != 0]
            fields[self.is_pure(entries[0][0])].append(self._field(entries))
        return fields

    def _field(self, entries: Sequence[tuple[Column, sp.Expr]]) -> tuple[sp.Expr, ...]:
        """The field with given coefficients, without common denominators or factors."""
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
