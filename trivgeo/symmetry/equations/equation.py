"""Equations solved for leading derivatives, on the jet space without these and their derivatives.

This is the file to open first: everything in `trivgeo.symmetry` asks `EvolutionSystem` for

- symbols: ``variables``, ``unknowns``, ``parameters``, ``arbitrary`` functions; ``coordinates`` are the symbols that
  point symmetries move, in the order of the components of a field;
- the solved form: ``leaders``, the derivatives that are expressed by others, and ``right``, the expressions;
- symbols of derivatives: ``jet``, ``jets_in``, ``in_jets``, and ``plain``, which reads a user's text;
- derivatives on solutions: ``value``, ``total``, ``reduced``; and off them: ``jet``, and ``total`` with it;
- whether functions solve the equations: ``holds``, ``residuals_at``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

import sympy as sp
from sympy.core.function import AppliedUndef

from trivgeo.errors import ConfigurationError
from trivgeo.expressions import FUNCTIONS, exact, parse_equations
from trivgeo.symmetry.equations.multi_index import Index, covers, derivative, shifted
from trivgeo.symmetry.equations.numeric import is_complex, is_root_of_even_power, vanishes
from trivgeo.symmetry.equations.unnamed_functions import Arbitrary, arbitrary, with_symbols

_NUM_REAL_POINTS = 200  # points at which a solution is evaluated until its value is real


def _solution_for(equation: sp.Expr, symbol: sp.Symbol) -> sp.Expr | None:
    """One branch of an irreducible equation, solved for a symbol; all branches have the same symmetries."""
    numerator = sp.together(equation).as_numer_denom()[0]
    if numerator.is_polynomial(symbol):
        factors = [f for f, _ in sp.factor_list(numerator)[1] if f.has(symbol)]
        if len(factors) != 1:
            return None
        numerator = factors[0]
        slope = sp.diff(numerator, symbol)
        if not slope.has(symbol):
            return sp.expand(-numerator.subs(symbol, 0) / slope)
    if _is_mixed(numerator, symbol):
        return None
    try:
        solutions = sp.solve(numerator, symbol)
    except NotImplementedError:
        return None
    solutions = [solution for solution in solutions if _is_real_somewhere(solution)]
    return sp.expand(solutions[-1]) if solutions else None


def _is_mixed(expression: sp.Expr, symbol: sp.Symbol) -> bool:
    """Whether a symbol is inside and outside of a function, or inside two: SymPy finds no formula then, or hangs."""
    inside = [f for f in expression.atoms(sp.Function, sp.exp) if f.has(symbol)]
    outer = [f for f in inside if not any(f != other and other.has(f) for other in inside)]
    return bool(outer) and (len(outer) > 1 or expression.xreplace({outer[0]: sp.Dummy()}).has(symbol))


def _is_real_somewhere(expression: sp.Expr) -> bool:
    """Whether an expression has a real value at one of many real points, of sizes from a hundredth to a hundred."""
    expression = with_symbols(expression)
    symbols = sorted(expression.free_symbols, key=str)
    values = sp.lambdify(symbols, expression, "mpmath")
    random = Random(0)
    for _ in range(_NUM_REAL_POINTS):
        point = [random.choice((-1.0, 1.0)) * 10 ** random.uniform(-2.0, 2.0) for _ in symbols]
        try:
            if abs(complex(values(*point)).imag) == 0.0:
                return True
        except (ZeroDivisionError, ValueError, OverflowError):
            continue  # a pole
    return False


_MAX_EQUATIONS = 60  # equations with their consequences
_CONTRADICTION_SUFFIX = " = 0 follows"  # end of the reason of `_complete` where equations contradict each other
_NON_SMOOTH = (sp.Abs, sp.sign, sp.re, sp.im, sp.arg, sp.conjugate, sp.Max, sp.Min, sp.Heaviside, sp.DiracDelta)
_UNEVALUATED = (sp.Integral, sp.Sum, sp.Product, sp.Limit, sp.Piecewise, sp.Order, sp.floor, sp.ceiling, sp.Mod)
_MAX_ORDER = 10  # largest order of derivatives in equations; beyond it the work grows without a known bound


class EvolutionSystem:
    r"""A system :math:`\partial_t^{r_a} u_a = F^a`, with F free of t-derivatives of u_b of order r_b or more.

    Equations that have no such form, also more or fewer than unknowns, are solved one by one for their leading
    derivatives, with all their consequences of the same orders (cross derivatives) as further equations.

    Args:
        pde: the equations, and the time, as for `trivgeo.symmetry.find_symmetries`.

    Attributes:
        time: number of the variable t.
        orders: the r_a; empty for equations without such a form.
        leaders: unknown a and multi-index of each leading derivative.
        right: the expressions of the leading derivatives.

    Raises:
        ConfigurationError: the equations have no solved form, or functions of different variables.
    """

    def __init__(self, pde: Any, time: Any = None) -> None:
        residuals = residuals_of(pde)
        functions = sorted({f for e in residuals for f in e.atoms(AppliedUndef)}, key=lambda f: str(f))
        if not functions:
            raise ConfigurationError("equation: expected functions such as u(x, t), got none")
        self.variables: tuple[sp.Symbol, ...] = functions[0].args
        if any(f.args != self.variables for f in functions) or not all(v.is_Symbol for v in self.variables):
            raise ConfigurationError(f"equation: expected functions of the same symbols, got {functions}")
        self.functions = tuple(functions)
        self.unknowns: tuple[sp.Symbol, ...] = tuple(sp.Symbol(f.func.__name__) for f in functions)
        self.arbitrary = tuple(sorted({type(f).__name__.rstrip("'") for e in residuals for f in e.atoms(Arbitrary)}))
        symbols = {s for e in residuals for s in e.free_symbols}
        self.parameters = tuple(sorted(symbols - set(self.variables), key=str))
        self._check_names()
        self.zero: Index = (0,) * len(self.variables)
        self._symbols: dict[tuple[int, Index], sp.Symbol] = {}
        self._jets: dict[sp.Symbol, tuple[int, Index]] = {}
        for a, unknown in enumerate(self.unknowns):
            self._symbols[a, self.zero] = unknown
            self._jets[unknown] = (a, self.zero)
        order = max((d.derivative_count for e in residuals for d in e.atoms(sp.Derivative)), default=0)
        if order > _MAX_ORDER:
            raise ConfigurationError(
                f"equation: expected derivatives of order {_MAX_ORDER} at most, got one of order {order}"
            )
        self.leaders: tuple[tuple[int, Index], ...] = ()
        self.right: tuple[sp.Expr, ...] = ()
        self.orders: tuple[int, ...] = ()
        self._eliminated: dict[tuple[int, Index], sp.Expr] = {}
        self._solve([self.in_jets(e) for e in residuals], time)

    # Jets ----------------------------------------------------------------------------------------------------

    def jet(self, a: int, index: Index) -> sp.Symbol:
        """Return the symbol of the derivative of unknown a by the multi-index ``index``.

        Raises:
            ConfigurationError: the symbol has another meaning, by the names of the variables.
        """
        key = (a, index)
        if key not in self._symbols:
            letters = "".join(str(v) * k for v, k in zip(self.variables, index, strict=True))
            symbol = sp.Symbol(f"{self.unknowns[a]}_{letters}")
            if symbol in self._jets:
                raise ConfigurationError(
                    f"equation: expected variables of which {symbol} has one meaning, got {self.variables}"
                )
            self._symbols[key] = symbol
            self._jets[symbol] = key
        return self._symbols[key]

    def jets_in(self, expression: sp.Expr, derivatives: bool = False) -> list[tuple[sp.Symbol, int, Index]]:
        """Return the symbols of unknowns and derivatives, or of derivatives alone, in an expression, with indices."""
        found = [(s, *self._jets[s]) for s in expression.free_symbols if s in self._jets]
        found = [entry for entry in found if not derivatives or self.is_derivative(entry[0])]
        return sorted(found, key=lambda entry: (entry[1], entry[2]))

    def is_derivative(self, symbol: sp.Symbol) -> bool:
        """Return True for the symbol of a derivative of order one or more."""
        return symbol in self._jets and any(self._jets[symbol][1])

    def in_jets(self, expression: sp.Expr) -> sp.Expr:
        """Return a SymPy ``expression`` with a symbol in place of each function and derivative."""
        replacements = {}
        for found in expression.atoms(sp.Derivative):
            index = [0] * len(self.variables)
            for variable, count in found.variable_count:
                index[self.variables.index(variable)] += int(count)
            replacements[found] = self.jet(self.functions.index(found.expr), tuple(index))
        plain = dict(zip(self.functions, self.unknowns, strict=True))
        return expression.xreplace(replacements).xreplace(plain)

    def plain(self, value: Any, argument: str, beside: Iterable[sp.Symbol] = ()) -> sp.Expr:
        """A number, text or SymPy expression as an exact expression of the system's symbols, with u for ``u(x, t)``.

        Args:
            argument: the name of the value in error messages.
            beside: derivatives that the expression may hold.

        Raises:
            ConfigurationError: the value is no expression, or holds a symbol named like a derivative, or another
                function.
        """
        beside = set(beside)
        own = {s.name: s for s in (*self.variables, *self.unknowns, *self.parameters, *beside)}
        expression = exact(value, argument, [str(f.func) for f in self.functions], own)
        expression = expression.xreplace({s: own.get(s.name, s) for s in expression.free_symbols})
        expression = expression.xreplace(dict(zip(self.functions, self.unknowns, strict=True)))
        strange = [str(f) for f in expression.atoms(AppliedUndef)]
        others = expression.free_symbols - beside
        strange += [s.name for s in others if self._is_named_like_derivative(s.name)]
        if strange or not isinstance(expression, sp.Expr):
            raise ConfigurationError(
                f"{argument}: expected an expression of {self.coordinates} and parameters, got "
                f"{', '.join(strange) or expression}"
            )
        return expression

    @property
    def coordinates(self) -> tuple[sp.Symbol, ...]:
        """The independent variables, then the unknowns: coordinates of the space on which point symmetries act."""
        return (*self.variables, *self.unknowns)

    @property
    def names(self) -> set[str]:
        """The names of the coordinates and parameters."""
        return {s.name for s in (*self.coordinates, *self.parameters)}

    @property
    def is_linear(self) -> bool:
        """True if the right sides are linear in the unknowns and their derivatives."""
        slopes = [sp.diff(right, s) for right in self.right for s, _, _ in self.jets_in(right)]
        return not any(self.jets_in(slope) for slope in slopes)

    def residuals_at(self, solution: Mapping[sp.Symbol, sp.Expr]) -> list[sp.Expr]:
        """Return the residuals of the equations at functions of the variables, by unknown."""
        left = []
        for (a, index), right in zip(self.leaders, self.right, strict=True):
            values = {}
            for symbol, b, inner in (*self.jets_in(right), (self.jet(a, index), a, index)):
                values[symbol] = derivative(solution[self.unknowns[b]], self.variables, inner)
            left.append((self.jet(a, index) - right).xreplace(values))
        return left

    def holds(self, solution: Mapping[sp.Symbol, sp.Expr]) -> bool:
        """Return True if functions of the variables, by unknown, solve the equations."""
        return all(map(vanishes, self.residuals_at(solution)))

    # Names ---------------------------------------------------------------------------------------------------

    def _check_names(self) -> None:
        """Raise `ConfigurationError` if two symbols, or the symbols of two derivatives, would have the same name."""
        names = [*self.arbitrary, *(s.name for s in (*self.variables, *self.unknowns, *self.parameters))]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ConfigurationError(
                f"equation: expected functions and symbols of different names, got two {sorted(twice)}"
            )
        functions = {name for name in names if name in FUNCTIONS}
        if functions:
            raise ConfigurationError(f"equation: expected names that are no functions, got {sorted(functions)}")
        derivatives = [name for name in names if self._is_named_like_derivative(name)]
        if derivatives:
            raise ConfigurationError(f"equation: expected names that do not read as derivatives, got {derivatives}")
        for order in range(2, 5):
            for word in itertools.combinations_with_replacement([v.name for v in self.variables], order):
                if "".join(word) in {v.name for v in self.variables}:
                    raise ConfigurationError(
                        f"equation: expected variables whose names do not make up each other's, got {self.variables}: "
                        f"u_{''.join(word)} could mean two derivatives"
                    )

    def _is_named_like_derivative(self, name: str) -> bool:
        letters = "|".join(re.escape(v.name) for v in self.variables)
        unknowns = "|".join(re.escape(u.name) for u in self.unknowns)
        return re.fullmatch(f"({unknowns})_({letters})+", name) is not None

    def characteristic_field(self) -> tuple[sp.Expr, ...] | None:
        """The field along the characteristics of one quasilinear equation of first order; ``None`` for others."""
        if len(self.unknowns) > 1 or len(self.right) > 1:
            return None
        (right,) = self.right
        slopes = [self.jet(0, shifted(self.zero, i)) for i in range(len(self.variables))]
        jets = {symbol for symbol, _, _ in self.jets_in(right, derivatives=True)}
        speeds = [-sp.diff(right, slope) for slope in slopes]
        if self.orders != (1,) or not jets <= set(slopes) or any(self.jets_in(s, derivatives=True) for s in speeds):
            return None
        speeds[self.time] = sp.S.One
        rest = right.subs(dict.fromkeys(slopes, 0))
        return (*map(sp.expand, speeds), sp.expand(rest))

    # The solved form -----------------------------------------------------------------------------------------

    def _solve(self, residuals: Sequence[sp.Expr], time: Any) -> None:
        names = [str(v) for v in self.variables]
        if time is not None and str(time) not in names:
            raise ConfigurationError(f"time: expected one of {names}, got {time}")
        preferred = sorted(range(len(names)), key=lambda i: (names[i] != "t", -i))
        reasons = []
        positions = preferred if time is None else [names.index(str(time))]
        for solve, position in itertools.product((self._solve_for, self._complete), positions):
            reason = solve(residuals, position)
            if reason is None:
                return
            reasons.append(f"{names[position]}: {reason}")
        conflicting = (reason for reason in reasons if reason.endswith(_CONTRADICTION_SUFFIX))
        contradiction = next((reason.partition(": ")[2] for reason in conflicting), None)
        if contradiction is not None:
            raise ConfigurationError(
                f"equation: expected equations that do not contradict each other, but {contradiction}"
            )
        raise ConfigurationError(
            "equation: expected equations that can be solved for the highest derivative in one variable; "
            + "; ".join(reasons)
        )

    def _solve_for(self, residuals: Sequence[sp.Expr], position: int) -> str | None:
        """Solve for the highest derivatives in one variable; return the reason if that is not possible."""
        if len(residuals) != len(self.unknowns):
            return "not as many equations as unknowns"
        orders = []
        for a in range(len(self.unknowns)):
            present = [j[2][position] for e in residuals for j in self.jets_in(e) if j[1] == a]
            orders.append(max(present, default=0))
        if min(orders) < 1:
            return "an unknown has no derivative in it"
        leading = []
        for a, order in enumerate(orders):
            index = tuple(order if i == position else 0 for i in range(len(self.variables)))
            leading.append(self.jet(a, index))
        mixed = next((symbol for symbol in leading for e in residuals if _is_mixed(e, symbol)), None)
        if mixed is not None:
            return f"{mixed} is inside a function and outside"
        try:
            solutions = sp.solve(list(residuals), leading, dict=True)
        except NotImplementedError:
            return "not solvable"
        if len(solutions) != 1 or any(symbol not in solutions[0] for symbol in leading):
            return f"not uniquely solvable for {', '.join(map(str, leading))}"
        right = [sp.expand(solutions[0][symbol]) for symbol in leading]
        for expression in right:
            for symbol, b, index in self.jets_in(expression):
                if index[position] >= orders[b]:
                    return f"{symbol} is left beside {', '.join(map(str, leading))}"
        self.time = position
        self.orders = tuple(orders)
        self._set(zip(((a, self._jets[s][1]) for a, s in enumerate(leading)), right, strict=True))
        return None

    def _set(self, solved: Iterable[tuple[tuple[int, Index], sp.Expr]]) -> None:
        self.leaders, self.right = map(tuple, zip(*solved, strict=True)) if (solved := list(solved)) else ((), ())
        self._eliminated = {}

    def _complete(self, residuals: Sequence[sp.Expr], position: int) -> str | None:
        """Solve the equations and their cross derivatives for leading derivatives; return the reason if that fails."""
        self.time, self.orders = position, ()
        solved: dict[tuple[int, Index], sp.Expr] = {}
        pending = list(residuals)
        for _ in range(_MAX_EQUATIONS):
            if not pending:
                pending = self._cross_derivatives()
                if not pending:
                    return None
            self._set(solved.items())
            equation = self.reduced(pending.pop(0))
            if vanishes(equation):
                continue
            jets = self.jets_in(equation)
            if not jets:
                return f"{equation}{_CONTRADICTION_SUFFIX}"
            key = max(((a, index) for _, a, index in jets), key=self._rank)
            right = _solution_for(equation, self.jet(*key))
            if right is None or not any(key[1]):
                return f"not solvable for real derivatives: {equation} = 0"
            # equations whose leader is a derivative of the new one are reduced again
            again = [k for k in solved if k[0] == key[0] and covers(k[1], key[1])]
            pending += [self.jet(*k) - solved.pop(k) for k in again]
            solved[key] = right
            self._set(solved.items())
            solved = {k: self.reduced(value) for k, value in solved.items()}
            self._set(solved.items())
        return f"more than {_MAX_EQUATIONS} consequences"

    def _rank(self, key: tuple[int, Index]) -> tuple[Any, ...]:
        a, index = key
        return (index[self.time], sum(index), index, -a)

    def _cross_derivatives(self) -> list[sp.Expr]:
        """Differences of the two values of the least common derivative of each two leaders of the same unknown."""
        found = []
        for (a, first), (b, second) in itertools.combinations(self.leaders, 2):
            if a != b:
                continue
            common = tuple(map(max, first, second))
            sides = []
            for own in (first, second):
                value = self.right[self.leaders.index((a, own))]
                for i, (k, j) in enumerate(zip(common, own, strict=True)):
                    for _ in range(k - j):
                        value = self.total(value, i)
                sides.append(value)
            if not vanishes(sides[0] - sides[1]):
                found.append(sides[0] - sides[1])
        return found

    def reduced(self, expression: sp.Expr) -> sp.Expr:
        """Return ``expression`` with leading derivatives replaced by the right sides of the equations."""
        values = {s: self.value(a, index) for s, a, index in self.jets_in(expression)}
        return sp.expand(expression.xreplace({s: v for s, v in values.items() if v != s}))

    # Total derivatives on solutions --------------------------------------------------------------------------

    def value(self, a: int, index: Index) -> sp.Expr:
        """Return a derivative of unknown a, expressed by derivatives that are free on solutions."""
        leader = next((j for b, j in self.leaders if b == a and covers(index, j)), None)
        if leader is None:
            return self.jet(a, index)
        key = (a, index)
        if key not in self._eliminated:
            higher = [i for i, (k, j) in enumerate(zip(index, leader, strict=True)) if k > j]
            if not higher:
                self._eliminated[key] = self.right[self.leaders.index((a, leader))]
            else:
                direction = next((i for i in higher if i != self.time), self.time)
                self._eliminated[key] = self.total(self.value(a, shifted(index, direction, -1)), direction)
        return self._eliminated[key]

    def total(self, expression: sp.Expr, direction: int, jet: Callable[[int, Index], sp.Expr] | None = None) -> sp.Expr:
        """Return the total derivative of an expression of free jets by the variable with number ``direction``.

        Derivatives of unknowns are given by ``jet``: default `value`, on solutions; the method `jet` off them.
        """
        result = sp.diff(expression, self.variables[direction])
        for symbol, a, index in self.jets_in(expression):
            result += sp.diff(expression, symbol) * (jet or self.value)(a, shifted(index, direction))
        return sp.expand(result)


def free_name(name: str, taken: Iterable[str]) -> str:
    """Return ``name`` with underscores appended until it is none of those ``taken``."""
    while name in taken:
        name += "_"
    return name


def residuals_of(pde: Any) -> list[sp.Expr]:
    """Return the exact expressions that vanish on solutions of the equations ``pde``.

    Raises:
        ConfigurationError: the equations are text and expressions, or complex, or hold functions that are not smooth.
    """
    entries = list(pde) if isinstance(pde, list | tuple | sp.Tuple) else [pde]
    texts = [entry for entry in entries if isinstance(entry, str)]
    if texts and len(texts) < len(entries):
        raise ConfigurationError("equation: expected equations that are all text or all SymPy expressions, got both")
    equations = parse_equations(texts) if texts else [exact(entry, "equation") for entry in entries]
    residuals = [e.lhs - e.rhs if isinstance(e, sp.Equality) else e for e in equations]
    non_smooth = {a.func.__name__ for e in residuals for a in e.atoms(*_NON_SMOOTH) if a.has(AppliedUndef)}
    if non_smooth:
        raise ConfigurationError(
            "equation: expected functions of the unknowns that have derivatives everywhere, got "
            f"{', '.join(sorted(non_smooth))}"
        )
    strange = {a.func.__name__ for e in residuals for a in e.atoms(*_UNEVALUATED)}
    strange |= {str(s) for e in residuals for s in e.atoms(sp.Symbol) if not s.is_commutative}
    strange |= {
        str(d) for e in residuals for d in e.atoms(sp.Derivative) if not all(n.is_Integer for _, n in d.variable_count)
    }
    if strange:
        raise ConfigurationError(
            "equation: expected commuting symbols, derivatives of given order, and no integrals, sums or limits, got "
            f"{', '.join(sorted(strange))}"
        )
    if any(map(is_complex, residuals)):
        raise ConfigurationError(
            "equation: expected real equations, got complex ones: write real and imaginary parts as two unknowns"
        )
    return [exact(residual.doit(), "equation") for residual in _with_arbitrary(residuals)]


def check_one_branch(system: EvolutionSystem, residuals: Sequence[sp.Expr]) -> None:
    """Check that the solved form is all of the equations: that of ``y'^2 = x`` is one branch alone.

    Roots such as ``sqrt(y^2)`` are refused, too: values at random points do not show their other sign.

    Raises:
        ConfigurationError: an equation is not linear in the derivatives that it is solved for, or holds such a root.
    """
    leading = {system.jet(a, index) for a, index in system.leaders}
    for residual in residuals:
        jets = system.in_jets(residual)
        if any(sp.diff(jets, symbol).free_symbols & leading for symbol in jets.free_symbols & leading):
            raise ConfigurationError(
                f"equation: expected equations that are linear in {', '.join(map(str, sorted(leading, key=str)))}, got "
                f"{residual}: write the equation of each branch"
            )
    hidden = next((p for e in system.right for p in e.atoms(sp.Pow) if is_root_of_even_power(p)), None)
    if hidden is not None:
        raise ConfigurationError(
            f"equation: expected no roots of even powers, got {hidden}: write the equation of each sign"
        )


def _with_arbitrary(residuals: Sequence[sp.Expr]) -> list[sp.Expr]:
    """Residuals with `Arbitrary` in place of functions of one argument that are no unknowns.

    The argument is an expression of an unknown, or the function has no derivatives while others have.
    """
    calls = {f for e in residuals for f in e.atoms(AppliedUndef) if len(f.args) == 1}
    moved = {d.expr.func for e in residuals for d in e.atoms(sp.Derivative) if isinstance(d.expr, AppliedUndef)}
    chosen = {f.func for f in calls if f.args[0].has(AppliedUndef) or (moved and f.func not in moved)}

    def put(f: AppliedUndef) -> sp.Expr:
        return arbitrary(f.func.__name__)(*f.args)

    return [e.replace(lambda f: isinstance(f, AppliedUndef) and f.func in chosen, put) for e in residuals]
