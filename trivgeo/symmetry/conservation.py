"""Conservation laws by multipliers, found exactly in a finite library and checked as identities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import sympy as sp

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry.equation import EvolutionSystem, Index, multi_indices, residuals_of
from trivgeo.symmetry.evaluation import RandomEvaluator, irrational_constants, usable_primes
from trivgeo.symmetry.finite_field import Values, null_space, row_echelon
from trivgeo.symmetry.fluxes import divergence, fluxes
from trivgeo.symmetry.interpolation import ParameterValues, rational_functions
from trivgeo.symmetry.laws import ConservationLaw, ConservationLaws
from trivgeo.symmetry.numeric import vanishes
from trivgeo.symmetry.series import PowerSeries

__all__ = ["search_laws"]

_MAX_COLUMNS = 1500  # products of monomials and equations
_NUM_POINTS = 48  # evaluated at once
_SPARE_ROWS = 24  # equations more than unknown coefficients


def search_laws(pde: Any, order: int, degree: int, time: Any) -> ConservationLaws:
    """Search for conservation laws of equations, see `trivgeo.symmetry.conservation_laws`.

    Args:
        pde: an equation or a list of them, as text or in SymPy.
        order: largest order of derivatives in multipliers.
        degree: largest degree of multipliers.
        time: the independent variable in whose highest derivatives equations are solved, see `find_symmetries`.

    Raises:
        ConfigurationError: there are more or fewer equations than unknowns.
        AlgebraError: a law that was found fails its check.
    """
    residuals = residuals_of(pde)
    system = EvolutionSystem(residuals, time)
    if len(residuals) != len(system.unknowns):
        raise ConfigurationError(
            f"pde: expected as many equations as unknowns {system.unknowns}, got {len(residuals)}: others have "
            "multipliers of trivial laws"
        )
    space = MultiplierSpace(system, [sp.expand(system.in_jets(e)) for e in residuals], order, degree)
    names = [v.name for v in system.variables]
    place = names.index("t") if time is None and "t" in names else system.time
    laws = []
    for multipliers in space.solve():
        total = sp.expand(sp.Add(*(m * e for m, e in zip(multipliers, space.equations, strict=True))))
        components = fluxes(system, total, place)
        if not vanishes(sp.expand(divergence(system, components) - total)):
            raise AlgebraError(f"expected multipliers of conservation laws, got {multipliers}, which the check refuses")
        density = components.pop(place)
        law = ConservationLaw(density, tuple(components), tuple(multipliers), system.variables, place, system)
        laws.append(law)
    return ConservationLaws(system, space.equations, tuple(sorted(laws, key=_simplicity)), space.jets, order, degree)


def _simplicity(law: ConservationLaw) -> tuple[int, int, int, str]:
    """Few variables in the multipliers, then low order and degree, first."""
    symbols = {s for m in law.multipliers for s in m.free_symbols}
    order = max((len(s.name.partition("_")[2]) for s in symbols), default=0)
    return (
        order,
        int(any(m.has(*law.variables) for m in law.multipliers)),
        sum(sp.count_ops(m) for m in law.multipliers),
        str(law.multipliers),
    )


@dataclass(frozen=True)
class _Series:
    """What is known at random points: monomials of the multipliers, and the equations with their derivatives."""

    monomials: Values  # [monomials, points, terms]
    equations: list[Values]
    slopes: dict[tuple[int, int, Index], Values]
    valid: Any


class MultiplierSpace:
    r"""Multipliers that are polynomials in the variables and in derivatives that are free on solutions.

    :math:`\Lambda_a \Delta^a` is a divergence if its Euler operators vanish, :math:`E_b(\Lambda_a \Delta^a) = 0`
    identically (Olver 1993, theorem 4.7; Anco and Bluman 2002). At a random point of a function with random Taylor
    coefficients modulo a prime, :math:`E_b(P) = \sum_J (-1)^{|J|} J! [\partial P / \partial u^b_J]_J`, with the Taylor
    coefficient of index J: one linear equation for the coefficients of the multipliers, whatever functions the
    equations hold.

    Args:
        system: the equations in solved form, which says what derivatives are free.
        equations: the equations as they are multiplied, in jets.
        order: of derivatives in the multipliers.
        degree: of the polynomials.

    Raises:
        ConfigurationError: there are too many monomials.
    """

    def __init__(self, system: EvolutionSystem, equations: Sequence[sp.Expr], order: int, degree: int) -> None:
        self.system, self.equations = system, list(equations)
        n = len(system.variables)
        free = [
            (a, index)
            for a in range(len(system.unknowns))
            for index in multi_indices(n, order)
            if not any(b == a and all(k >= j for k, j in zip(index, lead, strict=True)) for b, lead in system.leaders)
        ]
        self.jets = tuple(system.jet(*key) for key in free)
        self._keys = free
        self._symbols = (*system.variables, *self.jets)
        count = math.comb(len(self._symbols) + degree, degree) * len(equations)
        if count > _MAX_COLUMNS:
            raise ConfigurationError(
                f"degree: expected multipliers of at most {_MAX_COLUMNS} terms, got {count} of degree {degree} in "
                f"{len(self._symbols)} symbols: lower the order or the degree"
            )
        # what is complicated comes first: the reduced basis then has it once each
        self._monomials = sorted(multi_indices(len(self._symbols), degree), key=self._complexity, reverse=True)
        self._place = {m: i for i, m in enumerate(self._monomials)}
        self._slopes = {
            (e, a, index): sp.diff(equation, symbol)
            for e, equation in enumerate(self.equations)
            for symbol, a, index in system.jets_in(equation)
        }
        self._indices = {index for _, _, index in self._slopes} | {index for _, index in free}
        self._parameters = (*system.parameters, *irrational_constants(self.equations))

    def _complexity(self, powers: Index) -> tuple[Any, ...]:
        n = len(self.system.variables)
        orders = [sum(index) for (_, index), k in zip(self._keys, powers[n:], strict=True) for _ in range(k)]
        return max(orders, default=0), sum(orders), sum(powers[n:]), sum(powers), powers

    def solve(self) -> list[tuple[sp.Expr, ...]]:
        """A basis of the multipliers, one for each equation.

        Raises:
            ConfigurationError: they are not rational in the parameters, of low degree.
        """
        primes = usable_primes([*self.equations, *self._slopes.values()])
        random = np.random.default_rng(5)
        generic = self._null_space(primes[0], {s: int(random.integers(2, primes[0] - 1)) for s in self._parameters})
        used = generic != 0
        if not used.any():
            return []

        def values(prime: int, fixed: Sequence[ParameterValues]) -> list[list[int] | None]:
            found = [self._null_space(prime, at) for at in fixed]
            return [[int(v) for v in f[used]] if f.shape == used.shape and not f[~used].any() else None for f in found]

        numbers = rational_functions(values, self._parameters, primes)
        if numbers is None:
            raise ConfigurationError(
                f"pde: expected multipliers rational in {tuple(self._parameters)}, of low degree; got others"
            )
        taken, count = iter(numbers), len(self._monomials)
        result = []
        for row in used:
            multipliers = [sp.S.Zero] * len(self.equations)
            coefficients = {j: next(taken) for j in np.flatnonzero(row).tolist()}
            scale = sp.lcm_list([sp.denom(sp.together(c)) for c in coefficients.values()])
            for j, c in coefficients.items():
                powers = zip(self._symbols, self._monomials[j % count], strict=True)
                multipliers[j // count] += sp.cancel(c * scale) * sp.Mul(*(s**k for s, k in powers))
            result.append(tuple(multipliers))
        return result

    def _null_space(self, prime: int, fixed: ParameterValues) -> Values:
        width = len(self._monomials) * len(self.equations)
        rows: list[Values] = []
        for seed in itertools.count():
            rows.append(self._rows(self._series(prime, fixed, seed), prime))
            if sum(map(len, rows)) >= width + _SPARE_ROWS:
                break
            if seed > width:
                raise ConfigurationError("pde: expected equations that are defined at some rational points, got others")
        return null_space(*row_echelon(np.concatenate(rows), prime), prime)

    @cached_property
    def _orders(self) -> tuple[int, int]:
        """The order to which series are needed, and that of the highest jet."""
        top = max(sum(index) for index in self._indices)
        return top, top

    def _series(self, prime: int, fixed: ParameterValues, seed: int) -> _Series:
        system, (order, top) = self.system, self._orders
        n = len(system.variables)
        random = np.random.default_rng([prime, seed])
        far = PowerSeries(prime, n, order + top)
        near = PowerSeries(prime, n, order)
        given: dict[sp.Expr, Values] = {}
        wanted = {(a, index) for _, a, index in self._slopes} | set(self._keys)
        for a in range(len(system.unknowns)):
            taylor = random.integers(0, prime, (_NUM_POINTS, len(far.monomials)))
            for b, index in wanted:
                if a == b:
                    given[system.jet(a, index)] = _differentiated(taylor, index, far, near)
        for i, variable in enumerate(system.variables):
            given[variable] = near.variable(i, random.integers(2, prime, _NUM_POINTS))
        evaluate = RandomEvaluator(
            system.variables, order, _NUM_POINTS, prime, seed, fixed, constants=self._parameters, given=given
        )
        products: dict[Index, Values] = {}
        for powers in sorted(self._monomials, key=sum):
            last = next((i for i, k in enumerate(powers) if k), None)
            if last is None:
                products[powers] = near.constant(np.ones(_NUM_POINTS, dtype=np.int64))
            else:
                lower = tuple(k - (i == last) for i, k in enumerate(powers))
                products[powers] = near.times(products[lower], given[self._symbols[last]])
        return _Series(
            np.stack([products[m] for m in self._monomials]),
            [evaluate(e) for e in self.equations],
            {key: evaluate(slope) for key, slope in self._slopes.items()},
            evaluate.valid,
        )

    def _rows(self, at: _Series, prime: int) -> Values:
        """One row for each point and unknown, one column for each equation and monomial."""
        n, count = len(self.system.variables), len(self._monomials)
        series = PowerSeries(prime, n, self._orders[0])
        blocks = []
        for b in range(len(self.system.unknowns)):
            block = np.zeros((len(self.equations), count, _NUM_POINTS), dtype=np.int64)
            for (e, a, index), slope in at.slopes.items():
                if a == b:
                    block[e] = (block[e] + _variation(at.monomials, slope, index, series)) % prime
            for place, (a, index) in enumerate(self._keys):
                if a != b:
                    continue
                held = [i for i, m in enumerate(self._monomials) if m[n + place]]
                exponents = np.array([self._monomials[i][n + place] for i in held], dtype=np.int64)
                lower = [
                    self._place[tuple(k - (j == n + place) for j, k in enumerate(self._monomials[i]))] for i in held
                ]
                if held:
                    for e, equation in enumerate(at.equations):
                        part = _variation(at.monomials[lower], equation, index, series)
                        block[e, held] = (block[e, held] + exponents[:, None] * part) % prime
            blocks.append(block.reshape(-1, _NUM_POINTS)[:, at.valid].T)
        return np.concatenate(blocks)


def _differentiated(taylor: Values, index: Index, far: PowerSeries, near: PowerSeries) -> Values:
    """The series of a derivative of a function with given Taylor coefficients."""
    columns = []
    for monomial in near.monomials:
        target = tuple(k + j for k, j in zip(monomial, index, strict=True))
        weight = math.prod(math.perm(k, j) for k, j in zip(target, index, strict=True))
        columns.append(taylor[:, far.place[target]] * (weight % far.prime) % far.prime)
    return np.stack(columns, 1)


def _variation(left: Values, right: Values, index: Index, series: PowerSeries) -> Values:
    """``(-1)^|J| J!`` times the Taylor coefficient of index J of products: (-D)_J of them at the point."""
    total = np.zeros(left.shape[:-1], dtype=np.int64)
    for inner in itertools.product(*(range(k + 1) for k in index)):
        rest = tuple(k - j for k, j in zip(index, inner, strict=True))
        product = left[..., series.place[inner]] * right[..., series.place[rest]]
        total = (total + product) % series.prime
    weight = (-1) ** sum(index) * math.prod(map(math.factorial, index))
    return total * (weight % series.prime) % series.prime
