"""Conservation laws as records: densities, fluxes, multipliers, and what is known about others."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import sympy as sp

from trivgeo.errors import ConfigurationError
from trivgeo.symmetry.fluxes import divergence

if TYPE_CHECKING:
    from trivgeo.symmetry.equation import EvolutionSystem

__all__ = ["ConservationLaw", "ConservationLaws"]


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
        """True if periodic fields at one time have a density: it holds neither places nor derivatives by time."""
        space = {v for i, v in enumerate(self.variables) if i != self.time}
        times = [index[self.time] for _, _, index in self.system.jets_in(self.density)]
        return not self.density.free_symbols & space and not any(times)

    @property
    def text(self) -> str:
        """The law as it is written, such as ``D_t(u) + D_x(u^2/2 + u_xx) = 0``."""
        space = [v for i, v in enumerate(self.variables) if i != self.time]
        parts = [(self.variables[self.time], self.density), *zip(space, self.fluxes, strict=True)]
        return " + ".join(f"D_{v}({_written(e)})" for v, e in parts) + " = 0"

    def __str__(self) -> str:
        return f"{self.text}, multiplier {', '.join(map(_written, self.multipliers))}"

    def latex(self) -> str:
        """The law as a formula of LaTeX, without dollar signs."""
        space = [v for i, v in enumerate(self.variables) if i != self.time]
        parts = [(self.variables[self.time], self.density), *zip(space, self.fluxes, strict=True)]
        return " + ".join(f"D_{{{v}}}\\left({sp.latex(e)}\\right)" for v, e in parts) + " = 0"

    def _repr_latex_(self) -> str:
        return f"${self.latex()}$"


class ConservationLaws(Sequence[ConservationLaw]):
    """Independent conservation laws of equations: a sequence, with a statement about completeness.

    Args:
        system: the equations.
        jets: unknowns and derivatives in multipliers.

    Attributes:
        laws: no combination of them is trivial.
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
    ) -> None:
        self._system, self._equations, self._jets = system, tuple(equations), jets
        self.laws, self.order, self.degree = laws, order, degree

    def __len__(self) -> int:
        return len(self.laws)

    @overload
    def __getitem__(self, index: int) -> ConservationLaw: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ConservationLaw]: ...

    def __getitem__(self, index: int | slice) -> ConservationLaw | Sequence[ConservationLaw]:
        return self.laws[index]

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
            counts = [(v, k) for v, k in zip(self.variables, index, strict=True) if k]
            values[symbol] = sp.diff(plain[a], *counts) if counts else plain[a]
        return sp.simplify(total.xreplace(values))

    @property
    def statement(self) -> str:
        """Completeness of the laws, in words."""
        symbols = ", ".join(map(str, (*self.variables, *self._jets)))
        words = f"{len(self)} independent: all whose multipliers are polynomials of degree {self.degree} in {symbols}"
        words += ", for generic parameters" if self._system.parameters else ""
        if self._system.is_linear:
            words += "; linear: each solution of the adjoint equations is a multiplier, of which polynomials are here"
        return words

    def __repr__(self) -> str:
        return "\n".join([*map(str, self.laws), self.statement])

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{html.escape(str(law))}</li>" for law in self.laws)
        return f"<ul>{items}</ul><p>{html.escape(self.statement)}</p>"


def _written(expression: sp.Expr) -> str:
    return str(expression).replace("**", "^")
