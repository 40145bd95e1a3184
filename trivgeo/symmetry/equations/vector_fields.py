"""Infinitesimal symmetries as vector fields with exact coefficients, and sequences of what a search found.

This is the file to open second, after `equation`: searches return a `Symmetry`, which has ``components`` (one for each
of the ``variables``), ``flow``, ``invariants``, and text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import sympy as sp

from trivgeo.errors import ConfigurationError
from trivgeo.expressions import exact
from trivgeo.symmetry.equations.equation import EvolutionSystem
from trivgeo.symmetry.equations.formulas import flow, invariants

Item = TypeVar("Item")


@dataclass(frozen=True)
class Symmetry:
    """An infinitesimal symmetry: a vector field with exact coefficients.

    Attributes:
        name: a short name.
        components: the coefficients, one for each variable.
        variables: the independent variables, then the unknown functions as symbols.
    """

    name: str
    components: tuple[sp.Expr, ...]
    variables: tuple[sp.Symbol, ...]

    def __repr__(self) -> str:
        return f"Symmetry({self.name} = {self.text})"

    @property
    def text(self) -> str:
        """The field as text, such as ``x*∂_x + 2*t*∂_t``."""
        parts = []
        for component, variable in zip(self.components, self.variables, strict=True):
            if component == 0:
                continue
            factor = sp.factor_terms(component)
            sign = "-" if factor.could_extract_minus_sign() else "+"
            size = -factor if sign == "-" else factor
            shown = "" if size == 1 else f"({written(size)})*" if size.is_Add else f"{written(size)}*"
            parts.append((sign, f"{shown}∂_{variable}"))
        if not parts:
            return "0"
        first = ("-" if parts[0][0] == "-" else "") + parts[0][1]
        return first + "".join(f" {sign} {body}" for sign, body in parts[1:])

    @property
    def in_words(self) -> str:
        """The common kinds by name, such as ``scales x, t, u``; empty for other fields."""
        moved = {z: sp.sympify(c) for z, c in zip(self.variables, self.components, strict=True) if c != 0}
        if not moved:
            return ""
        of = {z: c.free_symbols & set(self.variables) for z, c in moved.items()}
        names = ", ".join(map(str, moved))
        if not any(of.values()):
            return f"shifts {names}"
        if all(of[z] == {z} and not (c / z).has(z) for z, c in moved.items()):
            return f"scales {names}"
        if len(moved) == 2:
            (x, a), (y, b) = moved.items()
            turn = sp.simplify(a * x / (b * y))
            if turn.is_number and of[x] == {y} and of[y] == {x} and not (a / y).has(y):
                return f"rotates {names}" if turn < 0 else f"boosts {names}"
        frame = [z for z in moved if of[z]]
        clock = set().union(*(of[z] for z in frame))
        if len(clock) == 1 and not clock & set(moved) and all(sp.diff(moved[z], *clock, 2) == 0 for z in frame):
            return f"moves {', '.join(map(str, frame))} at a constant speed in {clock.pop()}"
        return ""

    def flow(self, parameter: Any = "s") -> tuple[sp.Expr, ...]:
        """The one-parameter group as formulas: the image of each variable, the identity where the parameter is zero.

        Args:
            parameter: name of the group parameter.

        Raises:
            ConfigurationError: a variable or parameter has that name.
            AlgebraError: no closed form was found.
        """
        return flow(self.components, self.variables, group_parameter(parameter, (*self.variables, *self.components)))

    def invariants(self) -> tuple[sp.Expr, ...]:
        """Independent invariant functions of the one-parameter group, one less than variables.

        Raises:
            AlgebraError: no closed form was found, or the field is zero.
        """
        return invariants(self.components, self.variables)

    def __add__(self, other: Symmetry) -> Symmetry:
        sums = (a + b for a, b in zip(self.components, other.components, strict=True))
        return Symmetry(f"{self.name} + {other.name}", tuple(map(sp.expand, sums)), self.variables)

    def __rmul__(self, number: Any) -> Symmetry:
        factor = exact(number, "number")
        return Symmetry(f"{factor}*{self.name}", tuple(sp.expand(factor * c) for c in self.components), self.variables)

    def __str__(self) -> str:
        return f"{self.name} = {self.text}"

    def __iter__(self) -> Any:
        return iter(self.components)

    def latex(self) -> str:
        """The field as a formula of LaTeX, without dollar signs."""
        terms = [
            f"{'' if c == 1 else '-' if c == -1 else _bracketed(c)}\\partial_{{{sp.latex(z)}}}"
            for c, z in zip(map(sp.factor_terms, self.components), self.variables, strict=True)
            if c != 0
        ]
        name = re.sub(r"^([A-Za-z]+)(\d+)$", r"\1_{\2}", self.name)
        return f"{name} = {' + '.join(terms) or '0'}".replace("+ -", "- ")

    def _repr_latex_(self) -> str:
        return f"${self.latex()}$"


@dataclass(frozen=True)
class SuperpositionIdeal:
    """The infinite-dimensional abelian ideal of a linear equation: adding any solution of its homogeneous form.

    Attributes:
        polynomials: the members found within the ansatz.
    """

    system: EvolutionSystem
    polynomials: tuple[Symmetry, ...]

    @property
    def text(self) -> str:
        """The ideal in words."""
        arguments = ", ".join(map(str, self.system.variables))
        fields = " + ".join(f"phi_{u}({arguments})*∂_{u}" for u in self.system.unknowns)
        return f"{fields}, for every solution phi of the homogeneous equations"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class TrivialSymmetries:
    """Fields that move points along the graphs of solutions, and so no solution: their characteristics vanish.

    Every function times the field along the characteristics of a quasilinear equation of first order is trivial.
    Generators are determined up to trivial fields.

    Attributes:
        along: the field along the characteristics, ``None`` for other equations.
        members: the trivial fields found within the ansatz.
    """

    along: Symmetry | None
    members: tuple[Symmetry, ...]

    @property
    def text(self) -> str:
        """The fields in words."""
        if self.along is None:
            return f"{', '.join(member.text for member in self.members)}, which move no solution"
        arguments = ", ".join(map(str, self.along.variables))
        return f"f({arguments})*({self.along.text}), for every function f, which moves no solution"

    def __str__(self) -> str:
        return self.text


def group_parameter(parameter: Any, beside: Iterable[sp.Expr]) -> sp.Symbol:
    """Return the symbol of the parameter of one-parameter groups, by its name.

    Raises:
        ConfigurationError: a symbol in the expressions ``beside`` has that name, so that the two would print the same.
    """
    name = str(parameter)
    if name in {s.name for e in beside for s in sp.sympify(e).free_symbols}:
        raise ConfigurationError(f"parameter: expected a name that nothing else has, got {name}")
    return sp.Symbol(name, real=True)


def written(expression: sp.Expr) -> str:
    """Return an expression in the notation in which equations are given: powers are ``u^2``."""
    return str(expression).replace("**", "^")


def _bracketed(expression: sp.Expr) -> str:
    text = sp.latex(expression)
    return f"\\left({text}\\right)" if expression.is_Add else str(text)


class FoundSequence(Sequence[Item]):
    """A sequence of the items that a search found; subclasses add statements about all of them."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = tuple(items)

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        return self._items[index]
