"""Functions without a formula: solutions of linear equations, such as Bessel functions, or arbitrary functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import sympy as sp


class _Primed(sp.Function):
    """A function of one variable whose derivatives are written with primes."""

    nargs = 1

    def _latex(self, printer: Any, exp: str | None = None) -> str:
        name = type(self).__name__
        stem = sp.latex(sp.Symbol(name.rstrip("'"))) + "'" * name.count("'")
        power = "" if exp is None else f"^{{{exp}}}"
        return f"{{{stem}}}{power}\\left({printer.doprint(self.args[0])}\\right)"


class Arbitrary(_Primed):
    """Any function of one variable, or one of its derivatives; each is a class of its own, see `arbitrary`."""

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative, whatever ``argindex``: there is one argument."""
        name = type(self).__name__
        return arbitrary(name.rstrip("'"), name.count("'") + 1)(self.args[0])


def arbitrary(name: str, derivative: int = 0) -> type[Arbitrary]:
    """The class of an arbitrary function, or of its derivative of an order ``derivative``."""
    return _arbitrary(name + "'" * derivative)


@lru_cache(maxsize=256)
def _arbitrary(name: str) -> type[Arbitrary]:
    return type(name, (Arbitrary,), {})


class ArbitraryIntegral(Arbitrary):
    """An integral of an arbitrary function; each is a class of its own, see `arbitrary_integral`.

    Attributes:
        integrand: the class of the derivative.
    """

    integrand: ClassVar[type[Arbitrary]]

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the arbitrary function, whatever ``argindex``: there is one argument."""
        return self.integrand(self.args[0])


def arbitrary_integral(name: str, integrand: type[Arbitrary]) -> type[ArbitraryIntegral]:
    """The class of an integral ``name`` of an arbitrary function, or of such an integral."""
    key = (name, integrand)
    if key not in _INTEGRALS:
        _INTEGRALS[key] = type(name, (ArbitraryIntegral,), {"integrand": integrand})
    return _INTEGRALS[key]


_INTEGRALS: dict[tuple[str, type[Arbitrary]], type[ArbitraryIntegral]] = {}  # classes are made once


class Solution(_Primed):
    """A solution of a linear ordinary equation, or one of its derivatives; each is a class of its own.

    Derivatives are reduced by the equation, so that identities that hold for all solutions are seen. Values are not
    known: ``expression.replace(y1, lambda x: besselj(0, x))`` puts functions in.

    Attributes:
        rate: the derivative, an expression of ``variable``.
        relation: the function in terms of others, such as by the Wronskian; ``None`` if it is free.
        equation: the equation that defines it, in words.
    """

    rate: ClassVar[sp.Expr]
    variable: ClassVar[sp.Symbol]
    relation: ClassVar[sp.Expr | None] = None
    equation: ClassVar[str] = ""

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative, in derivatives of lower order than the equation; ``argindex`` is always one."""
        return self.rate.xreplace({self.variable: self.args[0]})

    def free(self) -> sp.Expr:
        """The function itself, or the expression of it by others."""
        return self if self.relation is None else self.relation.xreplace({self.variable: self.args[0]})


class Particular(sp.Function):
    """A solution of linear partial equations, or one of its derivatives; each is a class of its own.

    Derivatives that the equations express by others are reduced by them.

    Attributes:
        rate: function of a position, to the derivative in the variable there.
        index: order of the derivative in each variable.
        root: name of the solution itself.
        equation: the equations that define it, in words.
    """

    rate: ClassVar[Callable[[int], sp.Expr]]
    index: ClassVar[tuple[int, ...]]
    root: ClassVar[str]
    equation: ClassVar[str]

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative by the argument with number ``argindex``, from one."""
        return type(self).rate(argindex - 1)


def fundamental(
    names: Sequence[str],
    variable: sp.Symbol,
    orders: Sequence[int],
    rates: Callable[[list[list[sp.Expr]]], Sequence[sp.Expr]],
    equation: str,
) -> list[list[sp.Expr]]:
    """A solution of a linear system with its derivatives, ``[unknown][derivative]``.

    Args:
        names: names of the functions, one for each unknown.
        rates: function of the lower derivatives, ``[unknown][derivative]``, to the highest ones.
        equation: the equations that define the functions, in words.
    """
    classes: list[list[type[Solution]]] = [
        [type(name + "'" * k, (Solution,), {"variable": variable, "equation": equation}) for k in range(order)]
        for name, order in zip(names, orders, strict=True)
    ]
    values = [[cls(variable) for cls in row] for row in classes]
    for row, functions, highest in zip(classes, values, rates(values), strict=True):
        for cls, rate in zip(row, (*functions[1:], highest), strict=True):
            cls.rate = rate
    return values


def with_symbols(expression: sp.Expr) -> sp.Expr:
    """Return ``expression`` with a symbol in place of each function without a formula, except those with a relation."""
    expression = expression.xreplace({f: f.free() for f in expression.atoms(Solution)})
    return expression.xreplace({f: sp.Dummy() for f in expression.atoms(_Primed, Particular)})
