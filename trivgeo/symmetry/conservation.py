"""Conservation laws by multipliers, found exactly in a finite library and checked as identities."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import sympy as sp

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups.ground_fields import PrimeField
from trivgeo.symmetry.determining.finder import ansatz_functions
from trivgeo.symmetry.determining.random_points import (
    PowerSeries,
    RandomEvaluator,
    Values,
    irrational_constants,
    random_values,
    usable_primes,
)
from trivgeo.symmetry.determining.reconstruction import ParameterValues, exact_rows, rational_functions
from trivgeo.symmetry.equations.equation import EvolutionSystem, free_name, residuals_of
from trivgeo.symmetry.equations.formulas import antiderivative
from trivgeo.symmetry.equations.multi_index import Index, covers, derivative, multi_indices, shifted
from trivgeo.symmetry.equations.numeric import INFINITE, vanishes
from trivgeo.symmetry.equations.unnamed_functions import Arbitrary, ArbitraryIntegral, arbitrary, arbitrary_integral
from trivgeo.symmetry.equations.vector_fields import FoundSequence, written


@dataclass(frozen=True)
class ConservationLaw:
    r"""A conservation law :math:`D_t T + D_x X = \Lambda_a \Delta^a`, an identity that holds off solutions too.

    Unknowns and their derivatives are symbols ``u``, ``u_x``, ``u_xx``.

    Attributes:
        density: T, whose integral over space is constant on solutions where the flux through the boundary vanishes.
        fluxes: X, one for each variable of space.
        multipliers: one for each equation, in the order given, as left side less right side.
        variables: the independent variables.
        time: the place of the time among these.
        system: the equations.
    """

    density: sp.Expr
    fluxes: tuple[sp.Expr, ...]
    multipliers: tuple[sp.Expr, ...]
    variables: tuple[sp.Symbol, ...]
    time: int
    system: EvolutionSystem = field(repr=False, compare=False)

    @property
    def is_periodic(self) -> bool:
        """True if the density is a function of periodic fields at one time: without places and time derivatives."""
        space = {v for i, v in enumerate(self.variables) if i != self.time}
        times = [index[self.time] for _, _, index in self.system.jets_in(self.density)]
        return not self.density.free_symbols & space and not any(times)

    @property
    def text(self) -> str:
        """The law as text, such as ``D_t(u) + D_x(u^2/2 + u_xx) = 0``."""
        return " + ".join(f"D_{v}({written(e)})" for v, e in self._components) + " = 0"

    @property
    def _components(self) -> list[tuple[sp.Symbol, sp.Expr]]:
        """The density and the fluxes, each with its variable."""
        space = [v for i, v in enumerate(self.variables) if i != self.time]
        return [(self.variables[self.time], self.density), *zip(space, self.fluxes, strict=True)]

    def __str__(self) -> str:
        return f"{self.text}, multiplier {', '.join(map(written, self.multipliers))}"

    def latex(self) -> str:
        """The law as a formula of LaTeX, without dollar signs."""
        return " + ".join(f"D_{{{v}}}\\left({sp.latex(e)}\\right)" for v, e in self._components) + " = 0"

    def _repr_latex_(self) -> str:
        return f"${self.latex()}$"


class ConservationLaws(FoundSequence[ConservationLaw]):
    """Independent conservation laws of equations: a sequence, with a statement about completeness.

    Args:
        system: the equations.
        jets: unknowns and derivatives in multipliers.

    Attributes:
        functions: functions of the ansatz, which the polynomials were multiplied with, other than 1.
        laws: independent laws: no combination of them is trivial.
        order: the order of derivatives in the multipliers.
        degree: the total degree of the multipliers as polynomials.
    """

    def __init__(
        self,
        system: EvolutionSystem,
        equations: Sequence[sp.Expr],
        laws: tuple[ConservationLaw, ...],
        jets: tuple[sp.Symbol, ...],
        order: int,
        degree: int,
        functions: tuple[sp.Expr, ...] = (),
    ) -> None:
        super().__init__(laws)
        self._system, self._equations, self._jets = system, tuple(equations), jets
        self.laws, self.order, self.degree, self.functions = laws, order, degree, functions

    @property
    def densities(self) -> list[sp.Expr]:
        """Densities T of all laws, expressions of SymPy."""
        return [law.density for law in self.laws]

    @property
    def fluxes(self) -> list[Any]:
        """The fluxes: X where there is one variable of space, else a tuple with one for each."""
        return [law.fluxes[0] if len(law.fluxes) == 1 else sp.Tuple(*law.fluxes) for law in self.laws]

    @property
    def multipliers(self) -> list[Any]:
        """The multipliers: one expression for one equation, else a tuple with one for each."""
        return [law.multipliers[0] if len(law.multipliers) == 1 else sp.Tuple(*law.multipliers) for law in self.laws]

    @property
    def variables(self) -> tuple[sp.Symbol, ...]:
        """The independent variables."""
        return self._system.variables

    def residual(self, law: ConservationLaw, solution: Mapping[str, Any]) -> sp.Expr:
        """The divergence :math:`D_t T + D_x X` at functions: zero if they solve the equations.

        Args:
            law: one of these laws.
            solution: expressions of the variables (or text) by the names of the unknowns.

        Raises:
            ConfigurationError: an unknown has no expression.
        """
        names = {u.name for u in self._system.unknowns}
        if set(solution) != names:
            raise ConfigurationError(f"solution: expected expressions of {sorted(names)}, got {sorted(solution)}")
        plain = [self._system.plain(solution[u.name], "solution") for u in self._system.unknowns]
        components = list(law.fluxes)
        components.insert(law.time, law.density)
        total = divergence(self._system, components)
        values = {}
        for symbol, a, index in self._system.jets_in(total):
            values[symbol] = derivative(plain[a], self.variables, index)
        return sp.simplify(total.xreplace(values))

    @property
    def statement(self) -> str:
        """Completeness of the laws, in words."""
        symbols = ", ".join(map(str, (*self.variables, *self._jets)))
        times = f" times 1, {', '.join(map(str, self.functions))}" if self.functions else ""
        words = f"{len(self)} independent: all whose multipliers are "
        words += f"{'sums of ' if times else ''}polynomials of degree {self.degree} in {symbols}{times}"
        words += ", for generic parameters" if self._system.parameters else ""
        integrals = {f.func for law in self for e in (law.density, *law.fluxes) for f in e.atoms(ArbitraryIntegral)}
        words += "".join(
            f"; {f.__name__}' = {f.integrand.__name__}" for f in sorted(integrals, key=lambda f: f.__name__)
        )
        if self._system.is_linear:
            words += "; linear: each solution of the adjoint equations is a multiplier, of which polynomials are here"
        return words

    def __repr__(self) -> str:
        return "\n".join([*map(str, self.laws), self.statement])

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{html.escape(str(law))}</li>" for law in self.laws)
        return f"<ul>{items}</ul><p>{html.escape(self.statement)}</p>"


_MAX_PARTIAL_INTEGRATIONS = 200  # integrations by parts of one density


def divergence(system: EvolutionSystem, components: Sequence[sp.Expr]) -> sp.Expr:
    """Return the total divergence of ``components``, one for each variable of ``system``."""
    return sp.Add(*(system.total(c, i, system.jet) for i, c in enumerate(components)))


def fluxes(system: EvolutionSystem, expression: sp.Expr, time: int) -> list[sp.Expr]:
    r"""Components P with Div P = expression, one for each variable; the Euler operators of the expression vanish.

    Along :math:`u_s = b + s (u - b)` the derivative of the expression is, by parts, a divergence (Olver 1993, section
    5.4), which is integrated over s; constants b are 0 or else 1. Derivatives in space that are linear in the density,
    the component of number ``time``, are integrated by parts, so that its order is low. The result is checked.

    Raises:
        AlgebraError: an integral has no closed form.
    """
    for base in (sp.S.Zero, None, sp.S.One):
        if base is None:
            components = _by_highest(system, expression) if len(system.variables) == 1 else None
        else:
            components = _homotopy(system, expression, base, time)
        if components is None:
            continue
        components = [_without_constants(system, c, i) for i, c in enumerate(_reduced(system, components, time))]
        if vanishes(sp.expand(divergence(system, components) - expression)):
            return components
    raise AlgebraError(f"expected a divergence whose flux has a closed form, got {expression}")


def _by_highest(system: EvolutionSystem, expression: sp.Expr) -> list[sp.Expr] | None:
    """The integral of an expression of one variable over the highest derivatives first; ``None`` without a formula."""
    total, left = sp.S.Zero, sp.expand(expression)
    for _ in range(_MAX_PARTIAL_INTEGRATIONS):
        jets = system.jets_in(left, derivatives=True)
        if not jets:
            break
        symbol, a, (order,) = max(jets, key=lambda jet: (jet[2], jet[1]))
        lower = system.jet(a, (order - 1,))
        rate = sp.simplify(sp.diff(left, symbol))
        positive = {z: sp.Dummy(z.name, positive=True) for z in {*rate.free_symbols, lower}}
        part = antiderivative(rate.xreplace(positive), positive[lower], manual=True)
        part = part.xreplace({dummy: z for z, dummy in positive.items()})
        if part.has(sp.Integral, sp.Piecewise) or sp.diff(left, symbol, 2) != 0:
            return None
        total += part
        left = sp.expand(sp.simplify(left - system.total(part, 0, system.jet)))
    rest = antiderivative(left, system.variables[0])
    return None if rest.has(sp.Integral) else [sp.expand(total + rest)]


def _homotopy(system: EvolutionSystem, expression: sp.Expr, base: sp.Expr, time: int) -> list[sp.Expr] | None:
    s = sp.Dummy("s", positive=True)
    taken = {*system.names, *system.arbitrary}
    unknowns = set(system.unknowns)
    every = system.jets_in(expression)
    components = [sp.S.Zero] * len(system.variables)
    for symbol, a, index in every:
        factor = sp.diff(expression, symbol)
        current = index
        while any(current):
            direction = max(i for i, k in enumerate(current) if k)
            current = shifted(current, direction, -1)
            lower = system.jet(a, current)
            components[direction] += (lower - base if lower in unknowns else lower) * _scaled(system, factor, base, s)
            factor = -system.total(factor, direction, system.jet)
    result = [_integrated(c, s, taken) for c in components]
    start = expression.xreplace({z: base if z in unknowns else sp.S.Zero for z, _, _ in every})
    if base == 0 and start.has(*INFINITE):
        start = sp.S.Zero  # terms of negative degree alone, such as 1 / r, have their zero at infinity
    if start.has(*INFINITE) or any(c is None for c in result):
        return None
    found = [c for c in result if c is not None]
    if start != 0:
        found[time] += antiderivative(start, system.variables[time])
    return [sp.expand(c) for c in found]


def _scaled(system: EvolutionSystem, factor: sp.Expr, base: sp.Expr, s: sp.Symbol) -> sp.Expr:
    unknowns = set(system.unknowns)
    return factor.xreplace({z: base + s * (z - base) if z in unknowns else s * z for z, _, _ in system.jets_in(factor)})


def _integral_of(function: type[Arbitrary], taken: set[str]) -> type[Arbitrary]:
    """The class of an integral of an arbitrary function: of k' it is k, of k it is K."""
    name = function.__name__
    if issubclass(function, ArbitraryIntegral) or not name.endswith("'"):
        return arbitrary_integral(free_name(f"{name[0].upper()}{name[1:]}", taken | {name}), function)
    return arbitrary(name.rstrip("'"), name.count("'") - 1)


def _with_arbitrary(term: sp.Expr, s: sp.Symbol, taken: set[str]) -> sp.Expr | None:
    """The integral over s from 0 to 1 of a power of s times an arbitrary function of a linear argument, by parts.

    Integrals K of arbitrary functions vanish at s = 0. The result is ``None`` for terms of another form.
    """
    constant, moving = term.as_independent(s, as_Add=False)
    functions = [f for f in sp.Mul.make_args(moving) if isinstance(f, Arbitrary)]
    if len(functions) != 1:
        return None
    (function,) = functions
    power, argument = sp.simplify(moving / function), function.args[0]
    slope = sp.diff(argument, s)
    if slope == 0 or slope.has(s) or not power.is_polynomial(s):
        return None
    total, factor, kind = sp.S.Zero, constant / slope, type(function)
    while power != 0:
        kind = _integral_of(kind, taken)
        start = sp.S.Zero if issubclass(kind, ArbitraryIntegral) else (power * kind(argument)).subs(s, 0)
        total += factor * ((power * kind(argument)).subs(s, 1) - start)
        factor, power = -factor / slope, sp.diff(power, s)
    return total


def _integrated(expression: sp.Expr, s: sp.Symbol, taken: set[str]) -> sp.Expr | None:
    """The integral over s from 0 to 1; ``None`` without a closed form.

    Args:
        taken: names that no integral of an arbitrary function may have.
    """
    positive = {z: sp.Dummy(z.name, positive=True) for z in expression.free_symbols if z != s}
    total, others = sp.S.Zero, sp.S.Zero
    scaled = expression.xreplace(positive).replace(sp.Pow, lambda b, e: sp.factor(b) ** e if b.has(s) else b**e)
    for term in sp.Add.make_args(sp.expand(scaled)):
        constant, moving = term.as_independent(s, as_Add=False)
        power = moving.as_base_exp()[1] if moving.as_base_exp()[0] == s else sp.S.Zero if moving == 1 else None
        if power is not None and not power.has(s) and power != -1:
            total += constant / (power + 1)
        elif moving.has(Arbitrary):
            found = _with_arbitrary(term, s, taken)
            if found is None:
                return None
            total += found
        else:
            others += term
    if others != 0:
        integral = antiderivative(sp.factor_terms(others), s)
        if integral.has(sp.Integral, sp.Piecewise):
            return None
        ends = [integral.subs(s, end) for end in (1, 0)]
        if any(e.has(*INFINITE) for e in ends):
            return None
        total += sp.expand(sp.simplify(ends[0] - ends[1]))
    return total.xreplace({dummy: z for z, dummy in positive.items()})


def _without_constants(system: EvolutionSystem, component: sp.Expr, direction: int) -> sp.Expr:
    """A component less the terms that depend neither on unknowns nor on its own variable: their derivative is zero."""
    symbols = [z for z, _, _ in system.jets_in(component)]
    gathered: dict[sp.Expr, sp.Expr] = {}
    for term in sp.Add.make_args(component):
        constant, moving = term.as_independent(*symbols, *system.variables, as_Add=False)
        gathered[moving] = gathered.get(moving, sp.S.Zero) + constant
    kept = (e for e in gathered if system.jets_in(e) or e.has(system.variables[direction]))
    return sp.Add(*(sp.cancel(gathered[e]) * e for e in kept))


def _reduced(system: EvolutionSystem, components: list[sp.Expr], time: int) -> list[sp.Expr]:
    """Components of the same divergence whose density has lower order: its derivatives in space go to the fluxes."""
    for _ in range(_MAX_PARTIAL_INTEGRATIONS):
        step = _by_parts(system, components[time], time)
        if step is None:
            break
        direction, part = step
        components = list(components)
        components[time] = sp.expand(components[time] - system.total(part, direction, system.jet))
        components[direction] = sp.expand(components[direction] + system.total(part, time, system.jet))
    return components


def _by_parts(system: EvolutionSystem, density: sp.Expr, time: int) -> tuple[int, sp.Expr] | None:
    """A direction of space, and a function whose derivative in it contains the term of highest order of a density."""
    for term in sp.Add.make_args(density):
        jets = system.jets_in(term, derivatives=True)
        if not jets:
            continue
        symbol, a, index = max(jets, key=lambda jet: _rank(jet[1], jet[2]))
        if sp.diff(term, symbol, 2) != 0:
            continue
        for direction, count in enumerate(index):
            if direction == time or not count:
                continue
            lower_index = shifted(index, direction, -1)
            lower = system.jet(a, lower_index)
            rest = sp.diff(term, symbol)
            if all(_rank(b, j) <= _rank(a, lower_index) for _, b, j in system.jets_in(rest)):
                part = antiderivative(rest, lower)
                if not part.has(sp.Integral, sp.Piecewise):
                    return direction, part
    return None


def _rank(a: int, index: Index) -> tuple[int, int, Index]:
    return sum(index), a, index


_MAX_COEFFICIENTS = 2000  # unknown coefficients of multipliers, which take some twenty seconds
_NUM_POINTS = 48  # random points in one batch
_MAX_DRAWS = 40  # batches of random points at which monomials are compared
_NUM_SPARE_EQUATIONS = 24  # linear equations beyond the number of unknown coefficients


def search_laws(pde: Any, order: int, degree: int, time: Any, ansatz: Sequence[Any] = ()) -> ConservationLaws:
    """Search for conservation laws of equations; the arguments are those of `trivgeo.symmetry.conservation_laws`.

    Raises:
        ConfigurationError: there are more or fewer equations than unknowns.
        AlgebraError: a flux has no closed form.
    """
    residuals = residuals_of(pde)
    system = EvolutionSystem(residuals, time)
    if len(residuals) != len(system.unknowns):
        raise ConfigurationError(
            f"equation: expected as many equations as unknowns {system.unknowns}, got {len(residuals)}: other systems "
            "have multipliers that belong to trivial laws"
        )
    free = [system.jet(*key) for key in _free_jets(system, order) if any(key[1])]
    functions = ansatz_functions(system, ansatz, free)
    space = _MultiplierSpace(system, [sp.expand(system.in_jets(e)) for e in residuals], order, degree, functions)
    names = [v.name for v in system.variables]
    place = names.index("t") if time is None and "t" in names else system.time
    laws = []
    for multipliers in space.solve():
        total = sp.expand(sp.Add(*(m * e for m, e in zip(multipliers, space.equations, strict=True))))
        components = fluxes(system, total, place)
        density = components.pop(place)
        law = ConservationLaw(density, tuple(components), tuple(multipliers), system.variables, place, system)
        laws.append(law)
    return ConservationLaws(
        system, space.equations, tuple(sorted(laws, key=_simplicity)), space.jets, order, degree, functions
    )


def _simplicity(law: ConservationLaw) -> tuple[int, int, int, str]:
    """The key by which laws are sorted: low order of the multipliers first, then few variables and operations."""
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
    """Power series at random points: of the monomials of multipliers, and of the equations and their derivatives."""

    monomials: Values  # [monomials, points, terms]
    through: dict[tuple[int, int], Values]  # derivatives of monomials with a function by a jet, through it alone
    equations: list[Values]
    slopes: dict[tuple[int, int, Index], Values]
    valid: Any


def _free_jets(system: EvolutionSystem, order: int) -> list[tuple[int, Index]]:
    """Unknowns and derivatives up to an order that are free on solutions."""
    return [
        (a, index)
        for a in range(len(system.unknowns))
        for index in multi_indices(len(system.variables), order)
        if not any(b == a and covers(index, lead) for b, lead in system.leaders)
    ]


class _MultiplierSpace:
    r"""Multipliers: polynomials in the variables and in derivatives that are free on solutions, times given functions.

    :math:`\Lambda_a \Delta^a` is a divergence if its Euler operators vanish, :math:`E_b(\Lambda_a \Delta^a) = 0`
    identically (Olver 1993, theorem 4.7; Anco and Bluman 2002). At a random point of a function with random Taylor
    coefficients modulo a prime, :math:`E_b(P) = \sum_J (-1)^{|J|} J! [\partial P / \partial u^b_J]_J`, with the Taylor
    coefficient of index J: one linear equation for the coefficients of the multipliers, whatever functions the
    equations hold.

    Args:
        system: the equations in solved form, which determines the derivatives that are free on solutions.
        equations: left sides less right sides, in jets.
        order: largest order of derivatives in the multipliers.
        degree: largest total degree of the polynomials.
        functions: functions of the variables, unknowns and derivatives that polynomials are multiplied with, beside 1.

    Raises:
        ConfigurationError: there are too many monomials.
    """

    def __init__(
        self,
        system: EvolutionSystem,
        equations: Sequence[sp.Expr],
        order: int,
        degree: int,
        functions: Sequence[sp.Expr] = (),
    ) -> None:
        self.system, self.equations, self._functions = system, list(equations), (sp.S.One, *functions)
        free = _free_jets(system, order)
        self.jets = tuple(system.jet(*key) for key in free)
        self._keys = free
        self._symbols = (*system.variables, *self.jets)
        count = math.comb(len(self._symbols) + degree, degree) * len(equations) * len(self._functions)
        if count > _MAX_COEFFICIENTS:
            raise ConfigurationError(
                f"degree: expected multipliers of at most {_MAX_COEFFICIENTS} terms, got {count} of degree {degree} in "
                f"{len(self._symbols)} symbols: lower the order or the degree"
            )
        # complicated monomials come first: the reduced basis then has each of them in one row only, where possible
        pairs = itertools.product(range(len(self._functions)), multi_indices(len(self._symbols), degree))
        self._monomials = sorted(pairs, key=self._complexity, reverse=True)
        self._place = {m: i for i, m in enumerate(self._monomials)}
        self._slopes = {
            (e, a, index): sp.diff(equation, symbol)
            for e, equation in enumerate(self.equations)
            for symbol, a, index in system.jets_in(equation)
        }
        self._indices = {index for _, _, index in self._slopes} | {index for _, index in free}
        self._parameters = (*system.parameters, *irrational_constants([*self.equations, *self._functions]))

    def _complexity(self, monomial: tuple[int, Index]) -> tuple[Any, ...]:
        function, powers = monomial
        n = len(self.system.variables)
        orders = [sum(index) for (_, index), k in zip(self._keys, powers[n:], strict=True) for _ in range(k)]
        return max(orders, default=0), sum(orders), sum(powers[n:]), function, sum(powers), powers

    def solve(self) -> list[tuple[sp.Expr, ...]]:
        """A basis of the multipliers, each a tuple with one expression for each equation.

        Raises:
            ConfigurationError: multipliers are not rational functions of low degree in the parameters.
        """
        primes = usable_primes([*self.equations, *self._slopes.values(), *self._functions])
        fixed = random_values(self._parameters, primes[0], seed=5)
        self._kept = self._independent(primes[0], fixed)
        generic = self._null_space(primes[0], fixed)
        rows = exact_rows(
            generic,
            lambda prime, fixed: [self._null_space(prime, at) for at in fixed],
            lambda values: rational_functions(values, self._parameters, primes),
        )
        if rows is None:
            raise ConfigurationError(
                f"equation: expected multipliers rational in {tuple(self._parameters)}, found none of low degree"
            )
        count = len(self._kept)
        result = []
        for row in rows:
            multipliers = [sp.S.Zero] * len(self.equations)
            coefficients = {j: c for j, c in enumerate(row) if c != 0}
            scale = sp.lcm_list([sp.denom(sp.together(c)) for c in coefficients.values()])
            for j, c in coefficients.items():
                function, powers = self._monomials[self._kept[j % count]]
                monomial = sp.Mul(*(s**k for s, k in zip(self._symbols, powers, strict=True)))
                multipliers[j // count] += sp.cancel(c * scale) * monomial * self._functions[function]
            result.append(tuple(multipliers))
        return result

    def _independent(self, prime: int, fixed: ParameterValues) -> list[int]:
        """Return numbers of monomials that are independent: ``x * (1/x)`` is 1, whatever the ansatz says."""
        if len(self._functions) == 1:
            return list(range(len(self._monomials)))
        columns: list[Values] = []
        for seed in itertools.count():
            at = self._series(prime, fixed, seed)
            columns.append(at.monomials[::-1, at.valid, 0])  # simple ones first, so that they are kept
            if sum(c.shape[1] for c in columns) >= len(self._monomials) + _NUM_SPARE_EQUATIONS or seed > _MAX_DRAWS:
                break
        _, pivots = PrimeField(prime).row_echelon(np.concatenate(columns, 1).T)
        return sorted(len(self._monomials) - 1 - pivot for pivot in pivots)

    def _null_space(self, prime: int, fixed: ParameterValues) -> Values:
        columns = [e * len(self._monomials) + i for e in range(len(self.equations)) for i in self._kept]
        width = len(columns)
        rows: list[Values] = []
        for seed in itertools.count():
            rows.append(self._rows(self._series(prime, fixed, seed), prime)[:, columns])
            if sum(map(len, rows)) >= width + _NUM_SPARE_EQUATIONS:
                break
            if seed > width:
                raise ConfigurationError(
                    f"equation: expected equations with values at rational points, {seed} draws had none"
                )
        return PrimeField(prime).null_space(np.concatenate(rows))

    @cached_property
    def _orders(self) -> tuple[int, int]:
        """The order to which power series are needed, and the order of the highest jet."""
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
        for powers in sorted({powers for _, powers in self._monomials}, key=sum):
            last = next((i for i, k in enumerate(powers) if k), None)
            if last is None:
                products[powers] = near.constant(np.ones(_NUM_POINTS, dtype=np.int64))
            else:
                lower = tuple(k - (i == last) for i, k in enumerate(powers))
                products[powers] = near.times(products[lower], given[self._symbols[last]])
        factors = [evaluate(f) for f in self._functions[1:]]
        through = {}
        for number, f in enumerate(self._functions):
            own = [products[m] for g, m in self._monomials if g == number]
            for place, symbol in enumerate(self.jets):
                if f.has(symbol):
                    slope = evaluate(sp.diff(f, symbol))
                    through[number, place] = np.stack([near.times(product, slope) for product in own])
        return _Series(
            np.stack([near.times(products[m], factors[f - 1]) if f else products[m] for f, m in self._monomials]),
            through,
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
                held = [i for i, (_, m) in enumerate(self._monomials) if m[n + place]]
                exponents = np.array([self._monomials[i][1][n + place] for i in held], dtype=np.int64)
                lower = [
                    self._place[f, tuple(k - (j == n + place) for j, k in enumerate(m))]
                    for f, m in (self._monomials[i] for i in held)
                ]
                if held:
                    for e, equation in enumerate(at.equations):
                        part = _variation(at.monomials[lower], equation, index, series)
                        block[e, held] = (block[e, held] + exponents[:, None] * part) % prime
                for (function, moved), values in at.through.items():
                    own = [i for i, (f, _) in enumerate(self._monomials) if f == function]
                    for e, equation in enumerate(at.equations if moved == place else ()):
                        block[e, own] = (block[e, own] + _variation(values, equation, index, series)) % prime
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
    """The derivatives (-D)_J of products at the point: ``(-1)^|J| J!`` times their Taylor coefficients of index J."""
    total = np.zeros(left.shape[:-1], dtype=np.int64)
    for inner in itertools.product(*(range(k + 1) for k in index)):
        rest = tuple(k - j for k, j in zip(index, inner, strict=True))
        product = left[..., series.place[inner]] * right[..., series.place[rest]]
        total = (total + product) % series.prime
    weight = (-1) ** sum(index) * math.prod(map(math.factorial, index))
    return total * (weight % series.prime) % series.prime
