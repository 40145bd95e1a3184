"""The linear part of an evolution equation as a Fourier multiplier, and the rest as products of functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trivgeo.errors import ConfigurationError
from trivgeo.expressions import exact, require_sympy
from trivgeo.pde.evolution import EvolutionEquation

__all__ = ["Flux", "LinearTerm", "Splitting", "split"]


class LinearTerm(NamedTuple):
    """Linear term with a constant coefficient.

    Attributes:
        unknown: the position of the unknown that is differentiated.
        orders: number of derivatives in each space variable.
        coefficient: its factor.
    """

    unknown: int
    orders: tuple[int, ...]
    coefficient: float


class Flux(NamedTuple):
    """A multiple of a function of the unknowns, of which an equation holds the derivative in one space variable.

    Attributes:
        axis: the position of the space variable.
        coefficient: the factor.
        function: a SymPy polynomial in the unknowns.
    """

    axis: int
    coefficient: float
    function: Any


class Splitting(NamedTuple):
    r"""Terms of one right side, :math:`\partial_t u^a = L u^a + \sum_b C_b u^b + \sum_j \partial_{x_j} f_j + r`.

    Attributes:
        diagonal: L, terms in the equation's own unknown.
        coupling: terms in other unknowns.
        fluxes: the :math:`f_j`.
        rest: r, a SymPy expression of unknowns and their derivatives, if it does not vanish.
    """

    diagonal: list[LinearTerm]
    coupling: list[LinearTerm]
    fluxes: list[Flux]
    rest: list[Any]


def split(equation: EvolutionEquation, parameters: Mapping[str, float]) -> list[Splitting]:
    """Split the right sides of an equation into linear terms, fluxes and a rest.

    Args:
        equation: one or more evolution equations.
        parameters: values of its parameters by name.

    Returns:
        One splitting for each unknown.

    Raises:
        ConfigurationError: the coefficients depend on x or t, or a value is missing or no real number.
    """
    equation.check_parameters(parameters)
    system = equation.system
    values = {s: exact(parameters[s.name], s.name) for s in system.parameters}
    for symbol, value in values.items():
        if not value.is_real:
            raise ConfigurationError(f"{symbol.name}: expected a real number, got {parameters[symbol.name]!r}")
    rights = [require_sympy().expand(right.subs(values)) for right in system.right]
    explicit = sorted({v.name for right in rights for v in right.free_symbols & set(system.variables)})
    if explicit:
        raise ConfigurationError(f"equation: expected coefficients free of {', '.join(explicit)}, got {equation.text}")
    return [_split_right_side(system, own, right) for own, right in enumerate(rights)]


def _split_right_side(system: Any, own: int, right: Any) -> Splitting:
    sp = require_sympy()
    jets = {symbol: (a, _without_time(system, index)) for symbol, a, index in system.jets_in(right)}
    terms: tuple[list[LinearTerm], list[LinearTerm]] = ([], [])
    rest: list[Any] = []
    for term in sp.Add.make_args(right):
        factor, symbol = term.as_independent(*jets, as_Add=False)
        if symbol in jets:
            unknown, orders = jets[symbol]
            terms[unknown != own].append(LinearTerm(unknown, orders, float(factor)))
        else:
            rest.append(term)
    fluxes = []
    for direction in range(len(system.variables) - 1):
        unit = tuple(int(i == direction) for i in range(len(system.variables) - 1))
        slopes = {symbol: system.unknowns[a] for symbol, (a, orders) in jets.items() if orders == unit}
        flux, rest = _conservative(rest, slopes, system.unknowns)
        if flux != 0:
            number, function = flux.primitive() if flux.is_Add else flux.as_coeff_Mul()
            fluxes.append(Flux(direction, float(number), function))
    return Splitting(*terms, fluxes, [sp.Add(*rest)] if any(rest) else [])


def _without_time(system: Any, index: Sequence[int]) -> tuple[int, ...]:
    return tuple(k for i, k in enumerate(index) if i != system.time)


def _conservative(terms: list[Any], slopes: Mapping[Any, Any], unknowns: Sequence[Any]) -> tuple[Any, list[Any]]:
    r"""A flux f(u) whose derivative in x is the sum of terms a_b(u) u^b_x, and the other terms; zero if there is none.

    Polynomials with :math:`\partial_b a_c = \partial_c a_b` have :math:`f = \int_0^1 \sum_b a_b(z u) u^b dz`.
    """
    sp = require_sympy()
    z = sp.Dummy("z")
    speeds = dict.fromkeys(unknowns, sp.S.Zero)
    others = []
    for term in terms:
        slope = next((s for s in slopes if term.has(s)), None)
        speed = None if slope is None else sp.cancel(term / slope)
        if speed is None or not speed.free_symbols <= set(unknowns) or not speed.is_polynomial(*unknowns):
            others.append(term)
        else:
            speeds[slopes[slope]] += speed
    scaled = {u: z * u for u in unknowns}
    along = sp.Add(*(speed.subs(scaled, simultaneous=True) * u for u, speed in speeds.items()))
    flux = sp.expand(sp.integrate(sp.expand(along), (z, 0, 1)))
    if any(sp.expand(sp.diff(flux, u) - speed) != 0 for u, speed in speeds.items()):
        return sp.S.Zero, terms
    return flux, others
