"""Solutions that are invariant under symmetries, and the equations in fewer variables that they solve."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry.equations.equation import EvolutionSystem
from trivgeo.symmetry.equations.formulas import flow, sliced
from trivgeo.symmetry.equations.multi_index import Index, derivative, shifted
from trivgeo.symmetry.equations.numeric import INFINITE, vanishes

Field = tuple[sp.Expr, ...]


@dataclass(frozen=True)
class Reduction:
    """The equations in fewer variables for solutions that are invariant under one-parameter groups.

    An invariant solution is known everywhere if it is known on a slice, where some variables have given values.
    Invariance expresses its derivatives in these variables by the others, so the equations become equations on the
    slice, and hold everywhere if they hold there (Olver 1993, section 3.1).

    Attributes:
        equations: expressions that are to vanish, in functions of the remaining variables: the unknowns on the slice.
        at: the slice, as the values of the variables that were taken away.
        fields: the generators.
        system: the equations before the reduction.
    """

    equations: tuple[sp.Expr, ...]
    at: dict[sp.Symbol, sp.Expr]
    fields: tuple[Field, ...]
    system: EvolutionSystem

    @property
    def variables(self) -> tuple[sp.Symbol, ...]:
        """The independent variables that remain."""
        return tuple(v for v in self.system.variables if v not in self.at)

    def form(self) -> tuple[sp.Expr, ...]:
        """Invariant solutions of one generator as formulas with arbitrary functions, one for each unknown.

        Example:
            ``u(x/sqrt(t))/sqrt(t)``, where u is the solution at t = 1.

        Raises:
            AlgebraError: there is more than one generator, or no closed form was found.
        """
        return self._spread([sp.Function(str(u)) for u in self.system.unknowns])

    def solution(self, reduced: Any) -> tuple[sp.Expr, ...]:
        """The solution that has given values on the slice, checked; one formula for each unknown.

        Args:
            reduced: a solution of `equations` as an expression of `variables` (or text), or a sequence of them, one
                for each unknown.

        Raises:
            ConfigurationError: ``reduced`` is no solution of the reduced equations.
            AlgebraError: there is more than one generator, or no closed form was found.
        """
        unknowns = self.system.unknowns
        entries = list(reduced) if isinstance(reduced, list | tuple | sp.Tuple) else [reduced]
        if len(entries) != len(unknowns):
            raise ConfigurationError(f"reduced: expected one expression for each of {unknowns}, got {len(entries)}")
        # symbols read from text have no assumptions; symbols of generators may have some
        known = {s.name: s for e in (*self.equations, *itertools.chain(*self.fields)) for s in e.free_symbols}
        given = [self.system.plain(entry, "reduced") for entry in entries]
        given = [e.xreplace({s: known.get(s.name, s) for s in e.free_symbols}) for e in given]
        calls = [sp.Lambda(self.variables, value) for value in given]
        for equation in self.equations:
            left = equation
            for function, call in zip(self.system.functions, calls, strict=True):
                left = left.replace(function.func, call)
            if not vanishes(left.doit()):
                raise ConfigurationError(f"reduced: expected a solution of {self.equations}, got {given}")
        result = self._spread(calls)
        if not self.system.holds(dict(zip(unknowns, result, strict=True))):
            raise AlgebraError(f"expected an invariant solution in closed form, got {result}")
        return result

    def _spread(self, functions: Sequence[Any]) -> tuple[sp.Expr, ...]:
        """The invariant solution everywhere, from its values on the slice."""
        if len(self.fields) > 1:
            raise AlgebraError(f"expected one generator to move a solution with, got {len(self.fields)}")
        names = self.system.coordinates
        ((variable, value),) = self.at.items()
        place, s = names.index(variable), sp.Dummy("s", real=True)
        others = sliced(flow(self.fields[0], names, s), place, value, s)
        count = len(self.variables)
        if others:
            equations = [o - f(*others[:count]) for o, f in zip(others[count:], functions, strict=True)]
            try:
                found = sp.solve(equations, list(self.system.unknowns), dict=True)
            except NotImplementedError:
                found = []
            if found and all(u in found[0] for u in self.system.unknowns):
                return tuple(sp.simplify(found[0][u]) for u in self.system.unknowns)
        raise AlgebraError(f"expected invariants in closed form, got the field {self.fields[0]} of {names}")

    def latex(self) -> str:
        """The equations and the slice as formulas of LaTeX, without dollar signs."""
        lines = [f"{sp.latex(equation)} &= 0" for equation in self.equations]
        where = ", ".join(f"{sp.latex(v)} = {sp.latex(value)}" for v, value in self.at.items())
        return "\\begin{aligned} " + " \\\\ ".join([*lines, f"&\\text{{where }} {where}"]) + " \\end{aligned}"

    def _repr_latex_(self) -> str:
        return f"${self.latex()}$"

    def __repr__(self) -> str:
        where = ", ".join(f"{v} = {value}" for v, value in self.at.items())
        return "\n".join([*(f"{equation} = 0" for equation in self.equations), f"where {where}"])


def reduced(system: EvolutionSystem, fields: Sequence[Field]) -> Reduction:
    """Return the equations for solutions that are invariant under fields, on a slice.

    On the slice as many variables are 0 or 1 as there are fields.

    Raises:
        AlgebraError: the fields do not move the variables independently, or there is no such slice.
    """
    names = system.coordinates
    count = len(system.variables)
    positions = sorted(range(count), key=lambda i: (i != system.time, i))
    for chosen in itertools.combinations(positions, len(fields)):
        across = sp.Matrix([[field[i] for i in chosen] for field in fields])
        if vanishes(across.det()):
            continue
        for values in itertools.product((sp.S.Zero, sp.S.One), repeat=len(chosen)):
            at = dict(zip((system.variables[i] for i in chosen), values, strict=True))
            there = across.subs(at).det()
            if there.has(*INFINITE) or vanishes(there):
                continue
            left = [equation.subs(at) for equation in _Slice(system, fields, chosen, across).residuals()]
            if any(equation.has(*INFINITE) for equation in left):
                continue
            equations = dict.fromkeys(_essential(system, e) for e in left if not vanishes(e))
            return Reduction(tuple(_with_functions(system, e, at) for e in equations), at, tuple(fields), system)
    raise AlgebraError(f"expected fields that move {system.variables} independently, got {list(fields)} of {names}")


class _Slice:
    """Derivatives of invariant functions across a slice, expressed by derivatives along it."""

    def __init__(self, system: EvolutionSystem, fields: Sequence[Field], across: Sequence[int], matrix: Any) -> None:
        self._system, self._across = system, across
        self._along = [i for i in range(len(system.variables)) if i not in across]
        count = len(system.variables)
        rates = []
        for a in range(len(system.unknowns)):
            # characteristics of invariant functions vanish
            right = [
                f[count + a] - sum(f[i] * system.jet(a, shifted(system.zero, i)) for i in self._along) for f in fields
            ]
            rates.append(matrix.LUsolve(sp.Matrix(right)))
        self._rates = rates
        self._known: dict[tuple[int, Index], sp.Expr] = {}

    def value(self, a: int, index: Index) -> sp.Expr:
        """The derivative ``index`` of unknown a, expressed by derivatives along the slice."""
        key = (a, index)
        if key not in self._known:
            direction = next((i for i in (*self._along, *self._across) if index[i]), None)
            crossing = [i for i in self._across if index[i]]
            if direction is None or not crossing:
                return self._system.jet(a, index)
            if sum(index) == 1:
                self._known[key] = sp.simplify(self._rates[a][self._across.index(direction)])
            else:
                lower = self.value(a, shifted(index, direction, -1))
                self._known[key] = self._system.total(lower, direction, self.value)
        return self._known[key]

    def residuals(self) -> list[sp.Expr]:
        system = self._system
        equations = [system.jet(*leader) - right for leader, right in zip(system.leaders, system.right, strict=True)]
        return [e.xreplace({s: self.value(a, k) for s, a, k in system.jets_in(e)}) for e in equations]


def _essential(system: EvolutionSystem, equation: sp.Expr) -> sp.Expr:
    """The equation without denominators and without factors that hold no unknown."""
    numerator = sp.factor_terms(sp.numer(sp.together(sp.expand(equation))))
    factors = [f for f in sp.Mul.make_args(numerator) if system.jets_in(f)]
    result = sp.expand(sp.Mul(*factors))
    return -result if result.could_extract_minus_sign() else result


def _with_functions(system: EvolutionSystem, equation: sp.Expr, at: Mapping[sp.Symbol, sp.Expr]) -> sp.Expr:
    variables = [v for v in system.variables if v not in at]
    values = {}
    for symbol, a, index in system.jets_in(equation):
        function = system.functions[a].func(*variables) if variables else symbol
        values[symbol] = derivative(function, system.variables, index, sp.Derivative)
    return equation.xreplace(values)
