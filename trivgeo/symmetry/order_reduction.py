r"""Ordinary equations of lower order, and quadratures, by symmetries.

In coordinates r, s in which a symmetry is :math:`\partial_s`, an equation of order n does not hold s. It is one of
order n - 1 for :math:`z = ds / dr` (Olver 1993, section 2.5).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import sympy as sp
from numpy.typing import NDArray
from scipy.optimize import least_squares
from sympy.core.function import AppliedUndef

from trivgeo._text import counted
from trivgeo.checks import check_type
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry.algebra.brackets import bracket
from trivgeo.symmetry.determining.finder import residual, search
from trivgeo.symmetry.equations.equation import EvolutionSystem, check_one_branch, free_name, residuals_of
from trivgeo.symmetry.equations.formulas import antiderivative, flow, landing
from trivgeo.symmetry.equations.numeric import INFINITE, vanishes
from trivgeo.symmetry.equations.unnamed_functions import Arbitrary, Particular, Solution
from trivgeo.symmetry.equations.vector_fields import FoundSequence, Symmetry
from trivgeo.verdict import Verdict

__all__ = ["OrderReduction", "Quadrature", "Solutions", "integrate_by_symmetries", "reduce_order"]

_MAX_EXPONENT_MULTIPLE = 6  # exp(n C) with larger n keeps its constant C
_NUM_TRIAL_POINTS = 400  # random points at which an expression that is real somewhere is real once
_NUM_INITIAL_VALUES = 12  # random initial values through which solutions are to pass
_MAX_SLOPE_ERROR = 1e-6  # relative difference of derivatives of a solution from initial values


def _plain_constant(z: sp.Expr, constant: sp.Symbol) -> sp.Expr:
    """A solution z with C in place of exp(n C) where C occurs in no other way: C then may have any sign, or be zero."""

    def is_plain(e: sp.Expr, one_signed: bool) -> bool:
        roots = [p.base.as_base_exp() for p in e.atoms(sp.Pow) if not p.exp.is_Integer]
        inside = [f.as_base_exp()[0] for base, _ in roots for f in (sp.Mul.make_args(base) if one_signed else (base,))]
        return not e.has(sp.log(constant)) and constant not in inside

    # a root of a multiple of the constant has one sign of two, and is taken only if there is no other form
    for one_signed, n in itertools.product((True, False), range(_MAX_EXPONENT_MULTIPLE, 0, -1)):
        changed = sp.simplify(z.subs(constant, sp.log(constant) / n))
        # a product of roots is the root of a product, up to its sign; both signs are solutions
        whole = sp.sqrt(sp.simplify(changed**2))
        for candidate in (changed, -whole if changed.could_extract_minus_sign() else whole):
            if z.has(sp.exp) and is_plain(candidate, one_signed):
                turned = sp.simplify(candidate.subs(constant, 1 / constant))
                is_better = candidate.subs(constant, 0).has(*INFINITE) and not turned.subs(constant, 0).has(*INFINITE)
                return turned if is_better else candidate
    return sp.simplify(z)


def _with_limits(
    slope: sp.Expr, relation: sp.Expr, constants: Sequence[sp.Symbol], equation: _OrdinaryEquation
) -> tuple[sp.Expr, sp.Expr]:
    """A general solution with 1 / C in place of C where that adds the solutions of infinite C, and loses none.

    Args:
        slope: y' of the solutions.
        relation: an expression that vanishes on the solutions.
        constants: C1, ..., of which the last is added to the relation.
    """
    last = constants[-1]
    for c in constants[:-1]:
        turned = sp.simplify(sp.powdenest(slope.subs(c, 1 / c)))
        before, after = slope.subs(c, 0), turned.subs(c, 0)
        if after.has(*INFINITE) or not _is_real(after):
            continue
        lost = not before.has(*INFINITE) and before != 0 and _is_real(before) and equation.has_slope(before)
        if lost or not equation.has_slope(after):
            continue
        # also a multiple of the relation, with another last constant, may be finite at C = 0
        for scale in (sp.S.One, c):
            new = sp.expand(scale * (relation + last).subs(c, 1 / c)) - last
            at_zero = new.subs(c, 0)
            if not at_zero.has(*INFINITE) and (at_zero + last).free_symbols - set(constants):
                slope, relation = turned, new
                break
    return slope, relation


def _real_logarithms(relation: sp.Expr, variables: Sequence[sp.Symbol]) -> sp.Expr:
    """A relation with log(e^2) / 2 in place of log(e) where e holds variables: real for e of either sign."""
    if relation.has(sp.I):
        return relation

    def real(e: sp.Expr) -> sp.Expr:
        has_sign = e.has(*variables) and not isinstance(e, sp.exp)
        return sp.log(e**2) / 2 if has_sign else sp.log(e)

    return relation.replace(sp.log, real)


def _one_logarithm(relation: sp.Expr, unknown: sp.Symbol) -> sp.Expr:
    """A relation with log(e) in place of log(e^2) / 2 where e holds the unknown, which is then easier to solve for."""

    def plain(e: sp.Expr) -> sp.Expr:
        base, power = e.as_base_exp()
        return power * sp.log(base) if power == 2 and base.has(unknown) else sp.log(e)

    return relation.replace(sp.log, plain)


def _is_real(e: sp.Expr) -> bool:
    """Whether an expression is real somewhere, at random points of all signs and sizes."""
    symbols = sorted(e.free_symbols, key=str)
    numbers = np.random.default_rng(0)
    shape = len(symbols), _NUM_TRIAL_POINTS
    points = numbers.choice([-1.0, 1.0], shape) * np.exp(numbers.uniform(-2.5, 2.5, shape))
    values = _numeric(symbols, e)(*points) if symbols else np.array([complex(e.evalf())])
    with np.errstate(all="ignore"):
        return bool((np.isfinite(values) & (np.abs(values.imag) <= 1e-9 * np.abs(values))).any())


def _numeric(symbols: Sequence[sp.Symbol], e: sp.Expr) -> Callable[..., NDArray[np.complex128]]:
    """An expression as a function of arrays, complex, NaN where it is not defined."""
    function = sp.lambdify(symbols, e, ["scipy", "numpy"])

    def evaluate(*arguments: Any) -> NDArray[np.complex128]:
        with np.errstate(all="ignore"):
            whole = np.broadcast_arrays(*(np.asarray(a, dtype=complex) for a in arguments))
            try:
                values = function(*whole)
            except (ArithmeticError, NameError, TypeError, ValueError):  # a function that is not one of arrays
                return np.full(whole[0].shape, np.nan, dtype=complex)
            return np.broadcast_to(np.asarray(values, dtype=complex), whole[0].shape)

    return evaluate


Plane = tuple[sp.Symbol, sp.Symbol]
Field = tuple[sp.Expr, ...]


def _slope_rates(plane: Plane, slope: sp.Expr, order: int) -> list[sp.Expr]:
    """The derivatives y', ..., y^(n) in x and y along curves of a slope y'."""
    rates = [slope]
    while len(rates) < order:
        rates.append(sp.diff(rates[-1], plane[0]) + slope * sp.diff(rates[-1], plane[1]))
    return rates


class _OrdinaryEquation(NamedTuple):
    """An ordinary equation y^(n) = right.

    Attributes:
        plane: x and y.
        right: an expression of x and the jets.
        jets: the symbols y, ..., y^(n - 1).
    """

    plane: Plane
    right: sp.Expr
    jets: Sequence[sp.Symbol]

    @property
    def order(self) -> int:
        return len(self.jets)

    @property
    def highest(self) -> sp.Symbol:
        """The symbol of y^(n)."""
        return sp.Symbol(f"{self.jets[0]}__{self.order}")

    def has_slope(self, slope: sp.Expr) -> bool:
        """Return True if curves of a slope solve the equation, whatever its constants."""
        return bool(vanishes(self._excess(slope)))

    def has_curve(self, curve: sp.Expr) -> bool:
        """Return True if a function y(x) solves the equation."""
        if curve.has(*INFINITE, sp.I):
            return False
        x = self.plane[0]
        there = self.right.xreplace({jet: sp.diff(curve, x, k) for k, jet in enumerate(self.jets)})
        return not there.has(*INFINITE) and bool(vanishes(sp.diff(curve, x, self.order) - there))

    def has_solutions(self, slope: sp.Expr, relation: sp.Expr) -> bool:
        """Return True if the curves of a slope, or the one curve that a relation gives as y = y(x), are solutions."""
        x, y = self.plane
        if not (relation - y).has(y):
            return self.has_curve(y - relation)
        # the relation is constant along the curves of the slope
        kept = bool(vanishes(sp.diff(relation, x) + slope * sp.diff(relation, y)))
        return kept and self.has_slope(slope) and _is_real(slope)

    def has_orbits(self, field: Field) -> bool:
        """Return True if all orbits of a field are solutions."""
        return field[0] != 0 and self.has_slope(sp.cancel(field[1] / field[0]))

    def left_out(self, field: Field) -> list[sp.Expr]:
        """Return single solutions y(x) that are orbits of a symmetry, or on which the symmetry vanishes."""
        y = self.plane[1]
        places = [*field]
        if field[0] != 0:
            places.append(self._excess(sp.cancel(field[1] / field[0])))
        found: list[sp.Expr] = []
        for place in places:
            if place.has(*INFINITE):
                continue
            top = sp.factor(sp.fraction(sp.together(place))[0])
            for factor in sp.Mul.make_args(top):
                if not factor.has(y):
                    continue
                try:
                    curves = [sp.simplify(sp.expand_log(h, force=True)) for h in sp.solve(factor, y)]
                except NotImplementedError:
                    continue
                found.extend(h for h in curves if h not in found and self.has_curve(h))
        return found

    def _excess(self, slope: sp.Expr) -> sp.Expr:
        """The residual of the equation at curves of a slope."""
        rates = _slope_rates(self.plane, slope, self.order)
        return rates[-1] - self.right.xreplace(dict(zip(self.jets[1:], rates[:-1], strict=True)))


class _SolutionFamily(NamedTuple):
    """Solutions, one for each value of the constants.

    Attributes:
        slope: y' in x, y and the constants.
        relation: an expression that vanishes on the solutions.
        constants: the constants that slope or relation hold.
    """

    slope: sp.Expr
    relation: sp.Expr
    constants: tuple[sp.Symbol, ...]

    @classmethod
    def of(
        cls, slope: sp.Expr, relation: sp.Expr, constants: Sequence[sp.Symbol], equation: _OrdinaryEquation
    ) -> _SolutionFamily:
        """The family with its constants numbered from one, in the form that has the most members."""
        # all constants but the last belong to the slope
        held = [c for c in constants if slope.has(c) or relation.has(c)]
        if len(held) == len(constants) and slope.free_symbols.issuperset(constants[:-1]):
            return cls(*_with_limits(slope, relation, constants, equation), tuple(constants))
        names = dict(zip(held, constants, strict=False))
        slope, relation = (e.subs(names, simultaneous=True) for e in (slope, relation))
        return cls(slope, relation, tuple(names.values())[: len(constants) - 1])


def _not_held(
    plane: Plane, special: Sequence[_SolutionFamily], general: Sequence[_SolutionFamily]
) -> list[_SolutionFamily]:
    """The special families, of fewer constants, whose solutions no general family contains."""
    kept: list[_SolutionFamily] = []
    for family in sorted(special, key=lambda family: -len(family.constants)):
        if not any(_holds(plane, other, family) for other in (*general, *kept)):
            kept.append(family)
    return kept


def _holds(plane: Plane, general: _SolutionFamily, special: _SolutionFamily) -> bool:
    """Whether the special family is the general one at some values of its constants."""
    x, y = plane
    if len(special.constants) > len(general.constants):
        return False
    others = {c: sp.Dummy(c.name) for c in special.constants}
    relation, slope = (e.subs(others) for e in (special.relation, special.slope))
    # curves y(x), for values of constants
    on = {} if (relation - y).has(y) else {y: y - relation}
    free = [c for c in general.constants[:-1] if general.slope.has(c)]
    if not on and not free:
        return bool(vanishes(general.slope - slope))
    if not general.constants:
        return bool(vanishes(general.relation.subs(on)))
    mine, theirs = (_slope_rates(plane, e, len(free)) for e in (general.slope, slope))
    try:
        equations = [sp.fraction(sp.together(a - b))[0] for a, b in zip(mine, theirs, strict=True)]
        solved = sp.solve(equations, free, dict=True) if free else [{}]
    except NotImplementedError:
        return False
    for values in solved:
        exact = {c: sp.simplify(values.get(c, c).subs(on)) for c in free}
        reached = [*exact.values(), general.slope.subs(exact).subs(on), general.relation.subs(exact).subs(on)]
        if all(map(_is_finite, reached)) and not any(e.has(x, y) for e in exact.values()):
            # a relation that is constant along the curve vanishes for another last constant
            return not on or bool(vanishes(sp.diff(reached[-1], x)))
    return False


def _is_finite(e: sp.Expr) -> bool:
    """Whether an expression has a finite value at one generic point."""
    if e.has(*INFINITE):
        return False
    symbols = sorted(e.free_symbols, key=str)
    value = e.subs({s: sp.Rational(2 * k + 3, 7) for k, s in enumerate(symbols)}).evalf()
    return value.has(sp.Integral) or bool(value.is_number and not value.has(*INFINITE))


_WITHOUT_FORMULA = (Arbitrary, Particular, Solution)
_POLYNOMIAL_DEGREE = 2  # degree of polynomial symmetries of linear equations
_MAX_ORDER = 3  # equations of higher order are not integrated
_MAX_FIRST_SYMMETRIES = 8  # symmetries that are tried for the first reduction
_MAX_NEXT_SYMMETRIES = 2  # symmetries that are tried for each further reduction


@dataclass(frozen=True)
class OrderReduction:
    """An ordinary equation of order n as one of order n - 1, and a quadrature.

    A solution z(r) of the reduced equation gives ``s = Integral(z(r), r) + C``, a relation between x and y.

    Attributes:
        equation: the right side of ``z^(n - 1) = equation`` in r, z, z', ...; for n = 1 of ``z = equation``.
        jets: the symbols of z, z', ... up to order n - 1.
        variables: the symbols r and z.
        coordinates: r and s as expressions in x and y.
        at: the slice where s vanishes: x and y in terms of r.
    """

    equation: sp.Expr
    jets: tuple[sp.Symbol, ...]
    variables: Plane
    coordinates: tuple[sp.Expr, sp.Expr]
    at: Mapping[sp.Symbol, sp.Expr]

    def __repr__(self) -> str:
        (r, _), (place, shift) = self.variables, self.coordinates
        return f"{self.jets[-1]} = {self.equation}\nwhere {r} = {place}, s = {shift}, {self.jets[0]} = ds/d{r}"


@dataclass(frozen=True)
class Quadrature:
    """A family of solutions of an ordinary equation, as a relation that holds on each of them, checked.

    Constants may be complex: where a root or an inverse function in the relation is not real on a real solution,
    such as ``atanh(y)`` for y beyond 1, a constant is not real either.

    Attributes:
        relation: an expression in x, y and the constants that vanishes; integrals without a formula stay integrals.
        slope: y' in x, y and the constants but the last.
        constants: C1, ..., as many as the order; fewer for solutions that the general solution does not contain.
        variables: the symbols x and y.
    """

    relation: sp.Expr
    slope: sp.Expr
    constants: tuple[sp.Symbol, ...]
    variables: Plane

    def explicit(self) -> tuple[sp.Expr, ...]:
        """The solutions y(x) as formulas, as far as the relation can be solved for y.

        Where the last constant C occurs only as exp(n C), it is replaced by C, so that negative values and zero are
        solutions, too: C exp(x) in place of exp(x - C). Roots have the sign for which the relation holds.

        Raises:
            AlgebraError: the relation cannot be solved for y.
        """
        y = self.variables[1]
        try:
            found = [] if self.relation.has(sp.Integral) else sp.solve(_one_logarithm(self.relation, y), y)
        except NotImplementedError:
            found = []
        if not found:
            raise AlgebraError(f"expected a relation that is solved for {y}, got {self.relation} = 0")
        if self.constants:
            found = [_plain_constant(e, self.constants[-1]) for e in found]
        return tuple(dict.fromkeys(map(sp.simplify, found)))

    def __repr__(self) -> str:
        return f"{self.relation} = 0"


class Solutions(FoundSequence[Quadrature]):
    """Families of solutions of an ordinary equation, and whether they are all.

    Args:
        families: the families, general ones first.
        verdict: the statement about them.

    Attributes:
        verdict: true if a real solution of a family passes through each of some initial values, random ones and those
            with zeros, and if nothing was left unsolved; else its reasons say why these are some solutions.

    Example:
        >>> integrate_by_symmetries("y*y' + y = 0")
        all solutions:
        -C1 + x + y = 0
        y = 0
    """

    def __init__(self, families: Sequence[Quadrature], verdict: Verdict) -> None:
        super().__init__(families)
        self.verdict = verdict

    def __repr__(self) -> str:
        said = (
            "all solutions:" if self.verdict else f"not known to be all solutions ({'; '.join(self.verdict.reasons)}):"
        )
        return "\n".join([said, *map(repr, self)])


def reduce_order(equation: Any, generator: Symmetry) -> OrderReduction:
    """Return the equation of one order less that a symmetry of an ordinary equation gives.

    ```python
    equation = "y'' = exp(y)"
    reduce_order(equation, find_symmetries(equation)[0])
    ```

    Args:
        equation: one ordinary equation for one unknown, see `trivgeo.symmetry.find_symmetries`.
        generator: one of its symmetries, or a combination.

    Raises:
        ConfigurationError: the equation is partial, or nonlinear in its highest derivative, or holds roots such as
            ``sqrt(y^2)``, or there are several unknowns, or the field is no symmetry.
        AlgebraError: the symmetry has no coordinates in closed form, or the equation in them has no formula.
    """
    check_type("generator", generator, Symmetry)
    if residual(equation, generator, None) != 0:
        raise ConfigurationError(f"generator: expected a symmetry of the equation, got {generator}")
    return _reduction(_equation(equation), generator.components, 1)


def integrate_by_symmetries(equation: Any) -> Solutions:
    """Return the general solution of an ordinary equation by quadratures, as far as its symmetries lead there.

    An equation of order n needs n symmetries: each has to be inherited by the equation that the reductions before
    leave. They are looked for among the generators and their brackets. An equation of first order that remains may also
    be linear, separable, or Bernoulli's. Between quadratures a relation must be solved for z.

    ```python
    print(integrate_by_symmetries("y'' = y'^2/y + y'/x"))
    ```

    Args:
        equation: see `reduce_order`.

    Returns:
        A relation for each branch of roots that is real, with as many constants as the order; then solutions that none
        of these contains, such as y = 0 of ``y' = y^2`` or of ``y*y' + y = 0``, with fewer constants. All are checked:
        their curves solve the equation for all values of the constants. The `Solutions.verdict` says whether they are
        all, or some.

    Raises:
        ConfigurationError: see `reduce_order`; or the order is above three.
        AlgebraError: the symmetries do not lead to quadratures in closed form; the message says what order remains.
    """
    written = _Written.of(equation)
    found: list[_SolutionFamily] = []
    reasons: list[str] = []
    factors = written.factors(written.residual)
    for factor in sorted(factors, key=lambda e: -_order(e)):
        families, missing = _families(factor, written)
        solving = [family for family in families if written.holds(written.residual, family)]
        found.extend(_not_held(written.plane, solving, found) if found else solving)
        reasons.extend(missing)
    plane = written.plane
    quadratures = [Quadrature(_real_logarithms(f.relation, plane), f.slope, f.constants, plane) for f in found]
    return Solutions(quadratures, Verdict(tuple(dict.fromkeys(reasons)), (_ASSUMED,)))


def _order(e: sp.Expr) -> int:
    """The order of an expression of a function and its derivatives."""
    return max((int(d.derivative_count) for d in e.atoms(sp.Derivative)), default=0)


class _Written(NamedTuple):
    """An ordinary equation as it was written, not solved for its highest derivative.

    Attributes:
        residual: an expression of the function and its derivatives that vanishes.
        function: y(x).
    """

    residual: sp.Expr
    function: sp.Expr

    @classmethod
    def of(cls, pde: Any) -> _Written:
        residuals = residuals_of(pde)
        functions = {f for e in residuals for f in e.atoms(AppliedUndef)}
        if len(residuals) != 1 or len(functions) != 1 or len(next(iter(functions)).args) != 1:
            _equation(pde)  # says what was expected
        return cls(residuals[0], functions.pop())

    @property
    def plane(self) -> Plane:
        return self.function.args[0], sp.Symbol(self.function.func.__name__)

    def jets(self, e: sp.Expr) -> tuple[sp.Expr, dict[sp.Symbol, int]]:
        """An expression with symbols in place of the function and its derivatives, and their orders."""
        x, y = self.plane
        symbols = {self.function.diff(x, k): sp.Dummy(f"{y}{k}") for k in range(1, _order(e) + 1)}
        symbols[self.function] = sp.Dummy(f"{y}")
        return e.xreplace(symbols), {s: _order(f) for f, s in symbols.items()}

    def factors(self, e: sp.Expr) -> list[sp.Expr]:
        """The factors of an expression that hold the function: where one vanishes, it does."""
        x, _ = self.plane
        jets, orders = self.jets(e)
        top, _ = sp.fraction(sp.together(jets))
        parts = [f.as_base_exp()[0] for f in sp.Mul.make_args(sp.factor(top))]
        parts = list(dict.fromkeys(f for f in parts if f.free_symbols & orders.keys()))
        if len(parts) < 2:
            return [e]  # as it was written, with its denominators
        functions = {s: self.function.diff(x, k) if k else self.function for s, k in orders.items()}
        return [part.xreplace(functions) for part in parts]

    def holds(self, e: sp.Expr, family: _SolutionFamily) -> bool:
        """Whether an expression vanishes on the curves of a family."""
        x, y = self.plane
        jets, orders = self.jets(e)
        highest = max(orders.values())
        if (family.relation - y).has(y):
            rates = [y, *_slope_rates(self.plane, family.slope, max(highest, 1))]
        else:
            rates = [sp.diff(y - family.relation, x, k) for k in range(highest + 1)]
        there = jets.subs({symbol: rates[k] for symbol, k in orders.items()}, simultaneous=True)
        return not there.has(*INFINITE) and bool(vanishes(there))


def _families(pde: sp.Expr, written: _Written) -> tuple[list[_SolutionFamily], list[str]]:
    """Families of solutions of an equation that is no product, and what is not known of others.

    Raises:
        AlgebraError: the symmetries do not lead to quadratures.
    """
    x, y = plane = written.plane
    if _order(pde) == 0:
        try:
            curves = sp.solve(pde.subs(written.function, y), y)
        except NotImplementedError:
            return [], [f"curves with {pde} = 0 are not solved for {y}"]
        return [_SolutionFamily(sp.diff(h, x), y - h, ()) for h in curves if _is_real(h)], []
    equation = _equation(pde)
    families = _general(equation, pde)
    lost = _num_not_passed(equation, families)
    reasons = [_SOME.format(lost)] if lost else []
    # where the factor of the highest derivative vanishes the solved form is not the equation
    jets, orders = written.jets(pde)
    leading = sp.diff(jets, next(s for s, k in orders.items() if k == equation.order))
    if not leading.free_symbols & orders.keys():
        return families, reasons
    functions = {s: written.function.diff(x, k) if k else written.function for s, k in orders.items()}
    for factor in written.factors(leading.xreplace(functions)):
        try:
            others, missing = _families(factor, written)
        except (AlgebraError, ConfigurationError):
            others, missing = [], [f"solutions with {factor} = 0 are not looked for"]
        for family in others:
            chosen = [family] if written.holds(pde, family) else _special(pde, written, family)
            families.extend(_not_held(plane, [f for f in chosen if written.holds(pde, f)], families))
        reasons.extend(missing)
    return families, reasons


def _special(pde: sp.Expr, written: _Written, family: _SolutionFamily) -> list[_SolutionFamily]:
    """The members of a family that solve an equation of which not all do, at values of the constants."""
    x, y = written.plane
    try:
        curves = Quadrature(family.relation, family.slope, family.constants, (x, y)).explicit()
    except AlgebraError:
        return []
    jets, orders = written.jets(pde)
    found: list[_SolutionFamily] = []
    for curve in curves:
        there = jets.subs({symbol: sp.diff(curve, x, k) for symbol, k in orders.items()}, simultaneous=True)
        top = sp.fraction(sp.together(there))[0]
        places = [top.subs(x, sp.Rational(k, 7)) for k in range(2, 3 + len(family.constants))]
        try:
            chosen = sp.solve(places, family.constants, dict=True)
        except NotImplementedError:
            continue
        members = [sp.simplify(curve.subs(values)) for values in chosen]
        found.extend(_SolutionFamily(sp.diff(h, x), y - h, ()) for h in members if not h.has(*family.constants))
    return found


_ASSUMED = "initial values of other kinds are as those that were tried: random ones, and those with zeros"
_SOME = "some solutions: {} initial values were tried through which none of these passes"


def _num_not_passed(equation: _OrdinaryEquation, families: Sequence[_SolutionFamily]) -> int:
    """The number of initial values, random ones and those with zeros, through which no real solution passes."""
    x, order = equation.plane[0], equation.order
    numbers = np.random.default_rng(0)
    states = numbers.choice([-1.0, 1.0], (_NUM_INITIAL_VALUES, order + 1)) * numbers.uniform(
        0.2, 1.5, (_NUM_INITIAL_VALUES, order + 1)
    )
    zeros = np.array(list(itertools.product((0.0, 1.0), repeat=order)))[:-1]
    states = np.concatenate([states, np.insert(0.7 * zeros, 0, 0.6, axis=1)])
    right = _numeric([x, *equation.jets], equation.right)(*states.T)
    states = states[np.isfinite(right) & (np.abs(right.imag) <= 1e-12)]
    passes = [_passage(equation, family) for family in families]
    with np.errstate(all="ignore"):
        return sum(not any(passed(state) for passed in passes) for state in states)


def _passage(equation: _OrdinaryEquation, family: _SolutionFamily) -> Callable[[NDArray[np.float64]], bool]:
    """Whether a member of a family, with real constants, has given x, y, y', ...."""
    x, y = equation.plane
    free = [c for c in family.constants if family.slope.has(c)]
    rates = _slope_rates(equation.plane, family.slope, max(equation.order - 1, 1))[: equation.order - 1]
    slopes = [_numeric([x, y, *free], rate) for rate in rates]
    place = sp.S.Zero if family.relation.has(sp.Integral) else family.relation.subs(dict.fromkeys(family.constants, 0))
    if free and not family.relation.has(sp.Integral):
        place = family.relation.subs({c: 0 for c in family.constants if c not in free})
    height = _numeric([x, y, *free], place)

    def misses(state: NDArray[np.float64], constants: Any) -> NDArray[np.complex128]:
        """Relative differences of the derivatives, ``[order - 1, *constants]``."""
        found = [f(state[0], state[1], *constants) - p for f, p in zip(slopes, state[2:], strict=True)]
        sizes = 1.0 + np.abs(state[2:])
        shape = np.shape(constants[0]) if free else ()
        if not found:
            return np.zeros((0, *shape), dtype=np.complex128)
        return np.stack(found).astype(np.complex128) / sizes.reshape(-1, *[1] * len(shape))

    def is_member(state: NDArray[np.float64], constants: Any) -> bool:
        off = misses(state, constants)
        at = height(state[0], state[1], *constants)
        on_curve = bool(np.isfinite(at)) and (bool(family.constants) or abs(complex(at)) < _MAX_SLOPE_ERROR)
        return on_curve and bool((np.abs(off) < _MAX_SLOPE_ERROR).all())

    def passed(state: NDArray[np.float64]) -> bool:
        if not free:
            return is_member(state, ())
        if any(is_member(state, start) for start in itertools.product((0.0, 1.0, -1.0), repeat=len(free))):
            return True
        steps = np.exp(np.linspace(-7.0, 7.0, 24 // len(free)))
        grid = np.stack(np.meshgrid(*[np.concatenate([-steps[::-1], steps])] * len(free))).reshape(len(free), -1)
        off = misses(state, list(grid))
        size = np.where(np.isfinite(off), np.abs(off) ** 2, np.inf).sum(0) if len(off) else np.zeros(grid.shape[1])

        def target(c: NDArray[np.float64]) -> NDArray[np.float64]:
            value = misses(state, list(c))
            value = np.where(np.isfinite(value), value, 1e6)
            return np.concatenate([value.real, value.imag])

        for start in np.argsort(size)[:_NUM_STARTS]:
            found = least_squares(target, grid[:, start], xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=200)
            if is_member(state, list(found.x)):
                return True
        return False

    return passed


_NUM_STARTS = 6  # starts of a search for the constants of a member


def _general(equation: _OrdinaryEquation, pde: sp.Expr) -> list[_SolutionFamily]:
    """Families of the solved form of an equation: general ones, then those that they do not contain."""
    plane, order = equation.plane, equation.order
    if order > _MAX_ORDER:
        raise ConfigurationError(
            f"equation: expected an equation of order {_MAX_ORDER} at most, got order {order}: `reduce_order` lowers it"
        )
    fields = [g.components for g in search(pde, None, None, ())]
    if any(e.has(*_WITHOUT_FORMULA) for field in fields for e in field):
        # those of a linear equation hold its solutions: polynomials may be among them
        known = [field for field in fields if not any(e.has(*_WITHOUT_FORMULA) for e in field)]
        fields = list(dict.fromkeys([*known, *(g.components for g in search(pde, _POLYNOMIAL_DEGREE, None, ()))]))
    taken = {s.name for s in equation.right.free_symbols}
    constants = tuple(sp.Symbol(free_name(f"C{k + 1}", taken)) for k in range(order))
    # brackets come first: a reduction by an element of the derived algebra keeps more symmetries
    pairs = itertools.combinations(fields, 2)
    brackets = (tuple(map(sp.simplify, bracket(first, second, plane))) for first, second in pairs)
    every = list(dict.fromkeys([*(field for field in brackets if any(field)), *fields]))
    every.sort(key=lambda field: _loss(field, plane[1]))
    least = order
    choices = (
        _solutions(equation, [field, *(f for f in every if f != field)], constants, 1)
        for field in every[:_MAX_FIRST_SYMMETRIES]
    )
    for choice in itertools.chain(choices, [_elementary(equation, constants[0])]):
        branches: list[_SolutionFamily] = []
        special: list[_SolutionFamily] = []
        for found, left in choice:
            least = min(least, left)
            if found is None or not equation.has_solutions(*found):
                continue
            family = _SolutionFamily.of(*found, constants, equation)
            if equation.has_slope(slope := _real_logarithms(family.slope, plane)):
                family = family._replace(slope=slope)
            (branches if len(family.constants) == order else special).append(family)
        if branches:
            return [*branches, *_not_held(plane, special, branches)]
    rest = f"an equation of order {least}" if least else "a relation for z that is not solved"
    raise AlgebraError(
        f"equation: expected symmetries for {counted(order, 'quadrature')} in closed form, got "
        f"{counted(len(fields), 'symmetry', 'symmetries')}, which leave{'s' * (len(fields) == 1)} {rest}"
    )


def _equation(pde: Any) -> _OrdinaryEquation:
    """Read the text or expression of one ordinary equation for one unknown."""
    residuals = residuals_of(pde)
    system = EvolutionSystem(residuals, None)
    if len(system.variables) != 1 or len(system.unknowns) != 1 or len(system.leaders) != 1:
        raise ConfigurationError(
            f"equation: expected one ordinary equation for one unknown, got {counted(len(system.leaders), 'equation')} "
            f"in {system.variables} for {system.unknowns}"
        )
    check_one_branch(system, residuals)
    ((_, (order,)),) = system.leaders
    jets = tuple(system.jet(0, (k,)) for k in range(order))
    return _OrdinaryEquation((system.variables[0], system.unknowns[0]), system.right[0], jets)


def _coordinates(plane: Plane, field: Field) -> Iterator[tuple[sp.Expr, sp.Expr, int, int]]:
    """Coordinates r and s of points, s the time since a slice, with the slice: the number of a variable and its value.

    Simple coordinates come first.
    """
    time = sp.Dummy("s", real=True)
    moved = flow(field, plane, time)
    choices = []
    for place in (0, 1):
        for value in (0, 1):
            across = field[place].subs(plane[place], value)
            if across == 0 or across.has(*INFINITE):
                continue
            found = landing(moved, place, value, time)
            if found is None or found[0].has(*INFINITE):
                continue
            back, (r,) = found
            if vanishes(field[0] * sp.diff(back, plane[0]) + field[1] * sp.diff(back, plane[1]) + 1):
                choices.append((r, sp.expand_log(-back, force=True), place, value))
    yield from sorted(choices, key=lambda choice: sp.count_ops(choice[0]) + sp.count_ops(choice[1]))


def _reduction(equation: _OrdinaryEquation, field: Field, depth: int) -> OrderReduction:
    """The equation in coordinates of a symmetry, from its values on a slice; names of new symbols have ``depth``."""
    plane, right, jets = equation
    taken = {v.name for e in (right, *field, *plane) for v in e.free_symbols}
    r, z = (sp.Symbol(free_name(f"{letter}{'' if depth == 1 else depth}", taken)) for letter in "rz")
    symbols = tuple(sp.Symbol(f"{z}" + "'" * k) for k in range(len(jets)))
    for place_r, place_s, place, value in _coordinates(plane, field):
        there = {plane[place]: sp.Integer(value), plane[1 - place]: r}
        lifted = _lifted(equation, (place_r, place_s), there, symbols)
        if lifted is None:
            continue
        values, rates = lifted
        # z^(n - 1), with y^(n) replaced by the right side
        lower = sp.simplify(rates[-1].xreplace({equation.highest: right}).subs(values).subs(there))
        if not lower.has(*INFINITE):
            return OrderReduction(lower, symbols, (r, z), (place_r, place_s), there)
    raise AlgebraError(f"generator: expected a symmetry with coordinates in closed form, got {field} of {plane}")


def _lifted(
    equation: _OrdinaryEquation,
    coordinates: tuple[sp.Expr, sp.Expr],
    there: Mapping[sp.Symbol, sp.Expr],
    symbols: Sequence[sp.Symbol],
) -> tuple[dict[sp.Symbol, sp.Expr], list[sp.Expr]] | None:
    """y', y'', ... on the slice in terms of r, z, z', ..., and z, z', ... in terms of x, y, y', ....

    ``None`` if a derivative cannot be solved for.
    """
    plane, _, jets = equation
    chain = [*jets, equation.highest]
    place_r, place_s = coordinates

    def total(e: sp.Expr) -> sp.Expr:
        pairs = itertools.pairwise(chain)
        return sp.diff(e, plane[0]) + sum(sp.diff(e, jet) * following for jet, following in pairs)

    along = total(place_r)
    rates = [sp.simplify(total(place_s) / along)]
    for _ in jets[1:]:
        rates.append(sp.simplify(total(rates[-1]) / along))
    values: dict[sp.Symbol, sp.Expr] = {}
    for jet, rate, symbol in zip(chain[1:-1], rates, symbols, strict=False):
        here = rate.subs(values).subs(there)
        solved = sp.solve(here - symbol, jet)
        if len(solved) != 1:
            return None
        values[jet] = sp.simplify(solved[0])
    return values, rates


def _solutions(
    equation: _OrdinaryEquation, fields: Sequence[Field], constants: Sequence[sp.Symbol], depth: int
) -> Iterator[tuple[tuple[sp.Expr, sp.Expr] | None, int]]:
    """Slopes y' and relations of solutions by the first field, each with the order that remains to be integrated.

    That order is zero for general solutions, and positive for solutions of fewer constants and where the reduction
    fails, with ``None`` in place of slope and relation.

    Args:
        fields: symmetries; the first is used first.
        depth: the number of the reduction, for names.
    """
    plane, order = equation.plane, equation.order
    field, *others = fields
    try:
        reduction = _reduction(equation, field, depth)
    except AlgebraError:
        yield None, order
        return
    place_r, place_s = reduction.coordinates
    r = reduction.variables[0]
    for z, left in _integrands(reduction, plane, field, others, constants, depth):
        if z is None:
            yield None, left
            continue
        here = z.subs(r, place_r)
        up, along = (sp.diff(place_s, v) - here * sp.diff(place_r, v) for v in reversed(plane))
        if up == 0 or here.has(*INFINITE):
            continue
        relation = place_s - _integral(z, r).subs(r, place_r) - constants[order - 1]
        yield (sp.simplify(-along / up), relation), left
    # solutions along which r is constant are lost by the quadrature
    if equation.has_orbits(field):
        yield (sp.cancel(field[1] / field[0]), place_r - constants[order - 1]), order
    else:
        for curve in equation.left_out(field):
            yield (sp.diff(curve, plane[0]), plane[1] - curve), order


def _integrands(
    reduction: OrderReduction,
    plane: Plane,
    field: Field,
    others: Sequence[Field],
    constants: Sequence[sp.Symbol],
    depth: int,
) -> Iterator[tuple[sp.Expr | None, int]]:
    """Solutions z(r) of a reduced equation, or ``None``, each with the order that remains to be integrated."""
    jets = reduction.jets[:-1]
    if not jets:
        yield reduction.equation, 0
        return
    z, lower = reduction.variables[1], _OrdinaryEquation(reduction.variables, reduction.equation, jets)
    inherited = []
    for other in others:
        if _is_multiple(bracket(field, other, plane), field, plane):
            induced = _induced(reduction, plane, other)
            if induced is not None and any(induced):
                inherited.append(induced)
    yield None, len(jets)
    choices = (
        _solutions(lower, [first, *(f for f in inherited if f != first)], constants, depth + 1)
        for first in inherited[:_MAX_NEXT_SYMMETRIES]
    )
    for choice in itertools.chain(choices, [_elementary(lower, constants[0])]):
        is_solved = False
        for found, left in choice:
            if found is None or found[1].has(sp.Integral):
                yield None, left if found is None else 0
                continue
            try:
                solved = sp.solve(found[1], z)
            except NotImplementedError:
                yield None, 0
                continue
            plain = (_plain_constant(e, constants[len(jets) - 1]) for e in solved)
            yield from ((e, left) for e in plain if _is_real(e))
            is_solved |= left == 0 and bool(solved)
        if is_solved:
            return


def _elementary(
    equation: _OrdinaryEquation, constant: sp.Symbol
) -> Iterator[tuple[tuple[sp.Expr, sp.Expr] | None, int]]:
    """Slope and relation of the solutions of a linear, Bernoulli or separable equation of first order.

    Each comes with the order that remains, as in `_solutions`. Equations of other forms and orders have none.
    """
    if equation.order != 1:
        return
    (x, y), right = equation.plane, sp.factor(sp.simplify(equation.right))
    parts = sp.separatevars(right, symbols=[x, y], dict=True)
    if parts:
        across = _integral(1 / parts[y], y)
        yield (right, across - _integral(parts["coeff"] * parts[x], x) - constant), 0
        try:
            still = sp.solve(parts[y], y)
        except NotImplementedError:
            still = []
        for height in still:
            if _is_real(height) and not height.has(*INFINITE):
                yield (sp.S.Zero, y - height), 1
        return
    # y' = a y + b y^n: y^(1 - n) solves a linear equation
    growth = sp.simplify(right / y)
    bent = sp.simplify(y * sp.diff(growth, y, 2) / sp.diff(growth, y))
    if bent.has(x, y):
        return
    power = bent + 2
    b = sp.simplify(sp.diff(growth, y) * y ** (2 - power) / (power - 1))
    a = sp.simplify(growth - b * y ** (power - 1))
    if a.has(y) or b.has(y):
        return
    factor = sp.simplify(sp.exp((power - 1) * _integral(a, x)))
    yield (right, y ** (1 - power) * factor - _integral(sp.simplify((1 - power) * b * factor), x) - constant), 0
    if power.is_positive:
        yield (sp.S.Zero, y), 1


def _induced(reduction: OrderReduction, plane: Plane, other: Field) -> Field | None:
    """The push-forward of another symmetry to the plane of r and z; ``None`` if it has none."""
    place_r, place_s = reduction.coordinates
    z, there = reduction.variables[1], dict(reduction.at)
    slope = sp.Dummy("p")
    x, y = plane

    def total(e: sp.Expr) -> sp.Expr:
        return sp.diff(e, x) + slope * sp.diff(e, y)

    rate = total(place_s) / total(place_r)
    up = total(other[1]) - slope * total(other[0])
    moved = [other[0] * sp.diff(e, x) + other[1] * sp.diff(e, y) for e in (place_r, rate)]
    moved[1] += up * sp.diff(rate, slope)
    solved = sp.solve(rate.subs(there) - z, slope)
    if len(solved) != 1:
        return None
    induced = tuple(sp.simplify(e.subs(there).subs(slope, solved[0])) for e in moved)
    return None if any(e.has(*INFINITE) for e in induced) else induced


def _is_multiple(first: Sequence[sp.Expr], second: Sequence[sp.Expr], plane: Plane) -> bool:
    """Whether a field is a constant times another."""
    place = next(i for i, e in enumerate(second) if e != 0)
    ratio = sp.simplify(first[place] / second[place])
    return not ratio.has(*plane) and all(vanishes(a - ratio * b) for a, b in zip(first, second, strict=True))


def _integral(z: sp.Expr, r: sp.Symbol) -> sp.Expr:
    """An antiderivative if SymPy's rules find one quickly, else an unevaluated integral."""
    expanded = sp.apart(z, r) if z.is_rational_function(r) else sp.expand(z)
    found = antiderivative(expanded, r, manual=True)
    if found.has(sp.Integral) and z.has(sp.sin, sp.cos, sp.tan) and not z.has(sp.exp, sp.log):
        found = antiderivative(z, r, meijerg=False)
    # the cases distinguish constants: the case that is no equation is the generic one
    found = found.replace(sp.Piecewise, lambda *cases: next(e for e, case in cases if not isinstance(case, sp.Eq)))
    is_right = not found.has(sp.Integral) and vanishes(sp.diff(found, r) - z)
    return found if is_right else sp.Integral(z, r)


def _loss(field: Field, y: sp.Symbol) -> tuple[bool, bool, int]:
    """The sort key of symmetries: reductions by vertical fields lose least solutions, then those by constant ones.

    Of these the simple ones come first.
    """
    return field[0] != 0, field[1].has(y), sum(map(sp.count_ops, field))
