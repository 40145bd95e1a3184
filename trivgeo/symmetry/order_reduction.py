r"""Ordinary equations of lower order, and quadratures, by symmetries.

In coordinates r, s in which a symmetry is :math:`\partial_s`, an equation of order n does not hold s. It is one of
order n - 1 for :math:`z = ds / dr` (Olver 1993, section 2.5).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from trivgeo.checks import check_type
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry.brackets import bracket
from trivgeo.symmetry.equation import EvolutionSystem, check_one_branch, residuals_of
from trivgeo.symmetry.finder import residual, search
from trivgeo.symmetry.formulas import flow, landing
from trivgeo.symmetry.integration_constants import one_logarithm, plain_constant, real_logarithms
from trivgeo.symmetry.numeric import INFINITE, is_root_of_even_power, vanishes
from trivgeo.symmetry.singular_solutions import Plane, curves_left_out, orbits_solve, slope_solves, solves
from trivgeo.symmetry.solution_families import SolutionFamily, not_held
from trivgeo.symmetry.vector_fields import Symmetry

__all__ = ["OrderReduction", "Quadrature", "integrate_by_symmetries", "reduce_order"]

_MAX_ORDER = 3  # of equations that are integrated
_MAX_FIRST, _MAX_NEXT = 8, 2  # symmetries that are tried first, and after each of them

Field = tuple[sp.Expr, ...]


@dataclass(frozen=True)
class OrderReduction:
    """An ordinary equation of order n as one of order n - 1, and a quadrature.

    A solution z(r) of the reduced equation gives ``s = Integral(z(r), r) + C``, a relation between x and y.

    Attributes:
        equation: the right side of ``z^(n - 1) = equation`` in r, z, z', ...; for n = 1 of ``z = equation``.
        jets: the symbols of z, z', ... up to order n - 1.
        variables: the symbols r and z.
        coordinates: r and s as expressions in x and y.
        at: the slice where s vanishes, x and y in terms of r.
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

    Constants are complex numbers: where a root or an inverse function in the relation is not real on a real solution,
    as ``atan(y)`` beyond 1 in place of a hyperbolic cotangent, a constant is not real either.

    Attributes:
        relation: an expression in x, y and the constants that vanishes; integrals without a formula stay integrals.
        slope: y' in x, y and the constants but the last.
        constants: C1, ..., one for each order; fewer for solutions that no constants of the general solution give.
        variables: the symbols x and y.
    """

    relation: sp.Expr
    slope: sp.Expr
    constants: tuple[sp.Symbol, ...]
    variables: Plane

    def explicit(self) -> tuple[sp.Expr, ...]:
        """The solutions y(x) as formulas, as far as the relation can be solved for y.

        Where the last constant C occurs as exp(n C) alone, C stands in its place, so that either sign and zero are
        solutions, too: C exp(x) in place of exp(x - C). Roots have the sign for which the relation holds.

        Raises:
            AlgebraError: it can not.
        """
        y = self.variables[1]
        try:
            found = [] if self.relation.has(sp.Integral) else sp.solve(one_logarithm(self.relation, y), y)
        except NotImplementedError:
            found = []
        if not found:
            raise AlgebraError(f"expected a relation that is solved for {y}, got {self.relation} = 0")
        if self.constants:
            found = [plain_constant(e, self.constants[-1]) for e in found]
        return tuple(dict.fromkeys(map(sp.simplify, found)))

    def __repr__(self) -> str:
        return f"{self.relation} = 0"


def reduce_order(pde: Any, generator: Symmetry) -> OrderReduction:
    """Return the equation of one order less that a symmetry of an ordinary equation gives.

    ```python
    equation = "y'' = exp(y)"
    reduce_order(equation, find_symmetries(equation)[0])
    ```

    Args:
        pde: one ordinary equation for one unknown, see `trivgeo.symmetry.find_symmetries`.
        generator: one of its symmetries, or a combination.

    Raises:
        ConfigurationError: the equation is partial, or nonlinear in its highest derivative, or holds roots such as
            ``sqrt(y^2)``, or there are several unknowns, or the field is no symmetry.
        AlgebraError: the symmetry has no coordinates in closed form, or the equation in them has no formula.
    """
    check_type("generator", generator, Symmetry)
    plane, right, jets = _equation(pde)
    if residual(pde, generator, None) != 0:
        raise ConfigurationError(f"generator: expected a symmetry of the equation, got {generator}")
    return _reduction(plane, right, jets, generator.components, 1)


def integrate_by_symmetries(pde: Any) -> tuple[Quadrature, ...]:
    """Return the general solution of an ordinary equation by quadratures, as far as its symmetries lead there.

    An equation of order n needs n symmetries, each of which is one of what is left after those before. They are looked
    for among the generators and their brackets. Between quadratures a relation must be solved for z.

    ```python
    print(integrate_by_symmetries("y'' = y'^2/y + y'/x"))
    ```

    Args:
        pde: see `reduce_order`.

    Returns:
        A relation for each branch of roots, with as many constants as the order; and then solutions that none of these
        holds, such as y = 0 of ``y' = y^2``, with fewer constants. Each is checked: its curves solve the equation,
        whatever the constants.

    Raises:
        ConfigurationError: see `reduce_order`; or the order is above three.
        AlgebraError: the symmetries do not lead to quadratures with formulas between them; the message says how far.
    """
    plane, right, jets = _equation(pde)
    if len(jets) > _MAX_ORDER:
        raise ConfigurationError(
            f"pde: expected an equation of order {_MAX_ORDER} at most, got order {len(jets)}: `reduce_order` lowers it"
        )
    fields = [g.components for g in search(pde, None, None, ())]
    taken = {s.name for s in right.free_symbols}
    constants = tuple(sp.Symbol(_free(f"C{k + 1}", taken)) for k in range(len(jets)))
    # a bracket of two is normal in what they span
    pairs = itertools.combinations(fields, 2)
    brackets = (tuple(map(sp.simplify, bracket(first, second, plane))) for first, second in pairs)
    every = list(dict.fromkeys([*(field for field in brackets if any(field)), *fields]))
    every.sort(key=lambda field: _loss(field, plane[1]))
    least = len(jets)
    for field in every[:_MAX_FIRST]:
        branches: list[SolutionFamily] = []
        special: list[SolutionFamily] = []
        for found, left in _solutions(plane, right, jets, [field, *(f for f in every if f != field)], constants, 1):
            least = min(least, left)
            if found is None or not solves(plane, right, jets, *found):
                continue
            family = SolutionFamily.of(*found, constants, lambda e: slope_solves(plane, right, jets, e))
            (branches if len(family.constants) == len(jets) else special).append(family)
        if branches:
            kept = (*branches, *not_held(plane, special, branches))
            return tuple(Quadrature(real_logarithms(f.relation, plane), f.slope, f.constants, plane) for f in kept)
    rest = f"an equation of order {least}" if least else "a relation for z that is not solved"
    raise AlgebraError(
        f"pde: expected {len(jets)} symmetries that lead to quadratures in closed form, got {len(fields)} symmetries, "
        f"which leave {rest}"
    )


def _equation(pde: Any) -> tuple[Plane, sp.Expr, tuple[sp.Symbol, ...]]:
    """x and y, the right side of y^(n) = ..., and the symbols y, ..., y^(n - 1)."""
    residuals = residuals_of(pde)
    system = EvolutionSystem(residuals, None)
    if len(system.variables) != 1 or len(system.unknowns) != 1 or len(system.leaders) != 1:
        raise ConfigurationError(
            f"pde: expected one ordinary equation for one unknown, got {len(system.leaders)} in {system.variables} for "
            f"{system.unknowns}"
        )
    check_one_branch(system, residuals)
    right = system.right[0]
    hidden = next((p for p in right.atoms(sp.Pow) if is_root_of_even_power(p)), None)
    if hidden is not None:
        raise ConfigurationError(
            f"pde: expected no roots of even powers, got {hidden}: write the equation of each sign"
        )
    ((_, (order,)),) = system.leaders
    jets = tuple(system.jet(0, (k,)) for k in range(order))
    return (system.variables[0], system.unknowns[0]), right, jets


def _coordinates(plane: Plane, field: Field) -> Iterator[tuple[sp.Expr, sp.Expr, int, int]]:
    """Coordinates r and s of points, s being the time since a slice, and which variable has which value there."""
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


def _reduction(plane: Plane, right: sp.Expr, jets: Sequence[sp.Symbol], field: Field, depth: int) -> OrderReduction:
    """The equation in coordinates of a symmetry, by its values on a slice.

    Args:
        plane: x and y.
        right: of y^(n) = right.
        jets: the symbols y, ..., y^(n - 1).
        field: the symmetry.
        depth: the number of the reduction, for names.
    """
    taken = {v.name for e in (right, *field, *plane) for v in e.free_symbols}
    r, z = (sp.Symbol(_free(f"{letter}{'' if depth == 1 else depth}", taken)) for letter in "rz")
    symbols = tuple(sp.Symbol(f"{z}" + "'" * k) for k in range(len(jets)))
    for place_r, place_s, place, value in _coordinates(plane, field):
        there = {plane[place]: sp.Integer(value), plane[1 - place]: r}
        lifted = _lifted(plane, jets, (place_r, place_s), there, symbols)
        if lifted is None:
            continue
        values, rates = lifted
        # y^(n) by the equation, in what z^(n - 1) is of it
        equation = sp.simplify(rates[-1].xreplace({_next(jets): right}).subs(values).subs(there))
        if not equation.has(*INFINITE):
            return OrderReduction(equation, symbols, (r, z), (place_r, place_s), there)
    raise AlgebraError(f"generator: expected a symmetry with coordinates in closed form, got {field} of {plane}")


def _free(name: str, taken: Iterable[str]) -> str:
    """A name that nothing else has."""
    return _free(f"{name}_", taken) if name in taken else name


def _next(jets: Sequence[sp.Symbol]) -> sp.Symbol:
    """The symbol of the derivative of order n, where those below it are given."""
    return sp.Symbol(f"{jets[0]}__{len(jets)}")


def _lifted(
    plane: Plane,
    jets: Sequence[sp.Symbol],
    coordinates: tuple[sp.Expr, sp.Expr],
    there: Mapping[sp.Symbol, sp.Expr],
    symbols: Sequence[sp.Symbol],
) -> tuple[dict[sp.Symbol, sp.Expr], list[sp.Expr]] | None:
    """y', y'', ... on the slice in terms of r, z, z', ..., and z, z', ... in terms of x, y, y', ....

    ``None`` where some is not solved for.
    """
    chain = [*jets, _next(jets)]
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
    plane: Plane,
    right: sp.Expr,
    jets: Sequence[sp.Symbol],
    fields: Sequence[Field],
    constants: Sequence[sp.Symbol],
    depth: int,
) -> Iterator[tuple[tuple[sp.Expr, sp.Expr] | None, int]]:
    """Slopes y' and relations of solutions by the first field, and the order that is left where there is none.

    It is zero for general solutions, and positive for those of fewer constants, too.

    Args:
        plane: see `_reduction`, like ``right``, ``jets`` and ``depth``.
        fields: symmetries; the first is used first.
        constants: of integration.
    """
    field, *others = fields
    try:
        reduction = _reduction(plane, right, jets, field, depth)
    except AlgebraError:
        yield None, len(jets)
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
        relation = place_s - _integral(z, r).subs(r, place_r) - constants[len(jets) - 1]
        yield (sp.simplify(-along / up), relation), left
    # what the quadrature leaves out
    if orbits_solve(plane, right, jets, field):
        yield (sp.cancel(field[1] / field[0]), place_r - constants[len(jets) - 1]), len(jets)
    else:
        for curve in curves_left_out(plane, right, jets, field):
            yield (sp.diff(curve, plane[0]), plane[1] - curve), len(jets)


def _integrands(
    reduction: OrderReduction,
    plane: Plane,
    field: Field,
    others: Sequence[Field],
    constants: Sequence[sp.Symbol],
    depth: int,
) -> Iterator[tuple[sp.Expr | None, int]]:
    """Solutions z(r) of a reduced equation, and the order that is left where there is none."""
    jets = reduction.jets[:-1]
    if not jets:
        yield reduction.equation, 0
        return
    z = reduction.variables[1]
    inherited = []
    for other in others:
        if _is_multiple(bracket(field, other, plane), field, plane):
            induced = _induced(reduction, plane, other)
            if induced is not None and any(induced):
                inherited.append(induced)
    yield None, len(jets)
    for first in inherited[:_MAX_NEXT]:
        is_solved = False
        ordered = [first, *(f for f in inherited if f != first)]
        for found, left in _solutions(reduction.variables, reduction.equation, jets, ordered, constants, depth + 1):
            if found is None or found[1].has(sp.Integral):
                yield None, left if found is None else 0
                continue
            try:
                solved = sp.solve(found[1], z)
            except NotImplementedError:
                yield None, 0
                continue
            yield from ((plain_constant(e, constants[len(jets) - 1]), left) for e in solved)
            is_solved |= left == 0 and bool(solved)
        if is_solved:
            return


def _induced(reduction: OrderReduction, plane: Plane, other: Field) -> Field | None:
    """The field that another symmetry is in the plane of r and z; ``None`` if it is none there."""
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
    """An antiderivative, where rules find one quickly; else an integral."""
    expanded = sp.apart(z, r) if z.is_rational_function(r) else sp.expand(z)
    found = sp.integrate(expanded, r, manual=True)
    if found.has(sp.Integral) and z.has(sp.sin, sp.cos, sp.tan) and not z.has(sp.exp, sp.log):
        found = sp.integrate(z, r, meijerg=False)
    # cases of constants: the one that is no equation is general
    found = found.replace(sp.Piecewise, lambda *cases: next(e for e, case in cases if not isinstance(case, sp.Eq)))
    is_right = not found.has(sp.Integral) and vanishes(sp.diff(found, r) - z)
    return found if is_right else sp.Integral(z, r)


def _loss(field: Field, y: sp.Symbol) -> tuple[bool, bool]:
    """What a reduction leaves out is least where orbits are vertical, and then where the field vanishes nowhere."""
    return field[0] != 0, field[1].has(y)
