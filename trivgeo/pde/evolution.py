"""Evolution equations, written once as text: their residuals, and other functions of derivatives, in torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError
from trivgeo.expressions import exact, require_sympy
from trivgeo.groups.from_generators.fields import compile_expressions
from trivgeo.symmetry.api import solved_form

if TYPE_CHECKING:
    from trivgeo.symmetry.equations.equation import EvolutionSystem

__all__ = ["JetFunction"]


@checked
class EvolutionEquation:
    r"""System of evolution equations :math:`\partial_t u^a = F^a(x, t, u, u_x, u_{xx}, \dots)`, written once.

    Other forms of the equation are derived from this class: `residual`, the equation of the numerical solver
    (`SpectralEquation.from_equation`), and the argument of `trivgeo.symmetry.find_symmetries` (`residuals`).

    ```python
    burgers = EvolutionEquation("u_t + u*u_x = nu*u_xx")
    find_symmetries(burgers.residuals)
    solve(SpectralEquation.from_equation(burgers, nu=0.1), initial, times=[1.0], max_step=0.02)
    burgers.residual({"u": u, "u_t": u_t, "u_x": u_x, "u_xx": u_xx}, nu=0.1)
    ```

    Args:
        equation: text, a SymPy equation, an expression that vanishes, or a list of them, one for each unknown; see
            `trivgeo.symmetry.find_symmetries`. The time is ``t``. Other names than unknowns, their derivatives and
            their variables are parameters.

    Raises:
        ConfigurationError: the equations cannot be solved for first derivatives in t, one for each unknown, or as for
            `trivgeo.symmetry.find_symmetries`, or SymPy is missing.
    """

    def __init__(self, equation: Any) -> None:
        sp = require_sympy()
        entries = list(equation) if isinstance(equation, list | tuple) else [equation]
        residuals, self.system = solved_form(entries, "t")
        self.residuals = tuple(residuals)
        if set(self.system.orders) != {1} or self.system.arbitrary:
            raise ConfigurationError(
                f"equation: expected equations of first order in t, without arbitrary functions, got {equation}"
            )
        in_jets = self.system.in_jets
        if all(isinstance(entry, str) for entry in entries):
            self._texts = [" ".join(entry.split()) for entry in entries]
        else:
            sides = [(e.lhs, e.rhs) if isinstance(e, sp.Equality) else (e, sp.S.Zero) for e in map(exact, entries)]
            self._texts = [f"{in_jets(left)} = {in_jets(right)}" for left, right in sides]
        self._in_jets = [in_jets(e) for e in self.residuals]
        symbols = {symbol for e in self._in_jets for symbol in e.free_symbols}
        self._symbols = sorted(symbols, key=str)

    def __repr__(self) -> str:
        return f"EvolutionEquation({self.text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return EvolutionEquation, (self._texts,)

    @property
    def text(self) -> str:
        """The equations as they were written, or in the same notation, separated by commas."""
        return ", ".join(self._texts)

    @property
    def unknowns(self) -> tuple[str, ...]:
        """The names of the unknowns, in alphabetical order: that of the components of fields."""
        return tuple(u.name for u in self.system.unknowns)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, in alphabetical order."""
        return tuple(s.name for s in self.system.parameters)

    @property
    def jet(self) -> tuple[str, ...]:
        """Names that `residual` reads: unknowns, derivatives such as ``u_xx``, and variables, sorted."""
        return tuple(s.name for s in self._symbols if s not in self.system.parameters)

    def residual(self, jet: Mapping[str, Tensor], **parameters: float | Tensor) -> Tensor:
        """Left side minus right side of the equations as written, at values of the unknowns and their derivatives.

        Args:
            jet: values ``[*batch]`` by name, of all names in the attribute `jet`; other names are ignored.
            **parameters: values of all `parameters`.

        Returns:
            ``[*batch]`` for one equation, ``[*batch, c]`` for c equations; zero on solutions.

        Raises:
            ConfigurationError: a value is missing, or there is no such parameter.
        """
        check_parameters(self.parameters, parameters, self.text)
        return self._residual(jet, **parameters)

    @cached_property
    def _residual(self) -> JetFunction:
        return JetFunction(self._in_jets, self.system)

    def __str__(self) -> str:
        return self.text


class JetFunction:
    """Expressions of variables, unknowns, their derivatives and parameters, as a function of tensors by name.

    Args:
        expressions: SymPy expressions in the symbols of a system.
        system: the equations.

    Attributes:
        jet: the names of the symbols that are read, such as ``u_xx``, sorted.
        parameters: the names of parameters, in alphabetical order.
    """

    def __init__(self, expressions: Sequence[Any], system: EvolutionSystem) -> None:
        self.expressions = tuple(expressions)
        symbols = {symbol for e in self.expressions for symbol in e.free_symbols}
        # constants get the shape of the values of an unknown
        symbols |= set() if symbols - set(system.parameters) else {system.unknowns[0]}
        self._symbols = sorted(symbols, key=str)
        self.jet = tuple(s.name for s in self._symbols if s not in system.parameters)
        self.parameters = tuple(s.name for s in self._symbols if s in system.parameters)
        self._compiled = compile_expressions(list(self.expressions), self._symbols)

    def __repr__(self) -> str:
        return f"JetFunction({list(self.expressions)})"

    def __call__(self, jet: Mapping[str, Tensor], **parameters: float | Tensor) -> Tensor:
        """The values of the expressions.

        Args:
            jet: values of derivatives by name, such as ``{"u_x": ...}``; see `trivgeo.pde.EvolutionEquation`.
            **parameters: values of all `parameters`.

        Returns:
            ``[*batch]`` for one expression, ``[*batch, c]`` for c.

        Raises:
            ConfigurationError: a value is missing, or there is no such parameter.
        """
        missing = [name for name in self.jet if name not in jet]
        if missing:
            raise ConfigurationError(f"jet: expected values of {list(self.jet)}, got none of {missing}")
        check_parameters(self.parameters, parameters)
        first = jet[self.jet[0]]
        values = [
            jet[s.name]
            if s.name in jet
            else torch.as_tensor(parameters[s.name], dtype=first.dtype, device=first.device)
            for s in self._symbols
        ]
        results = self._compiled(*values)
        return results.squeeze(-1) if len(self.expressions) == 1 else results


def check_parameters(names: Sequence[str], parameters: Mapping[str, Any], equation: str = "") -> None:
    """Check that there is a value for each parameter, and for nothing else; messages quote the text of the equation.

    Raises:
        ConfigurationError: a value is missing, or a name is unknown.
    """
    if set(parameters) != set(names):
        where = f" for {equation}" if equation else ""
        raise ConfigurationError(f"parameters: expected values of {list(names)}{where}, got {sorted(parameters)}")
