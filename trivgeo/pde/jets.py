"""Functions of unknowns and their derivatives, evaluated at tensors by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trivgeo.errors import ConfigurationError
from trivgeo.groups.generated.symbolic import compile_expressions

if TYPE_CHECKING:
    from trivgeo.symmetry.equation import EvolutionSystem

__all__ = ["JetFunction"]


class JetFunction:
    """Expressions of variables, unknowns, their derivatives and parameters, as a function of tensors by name.

    Args:
        expressions: SymPy expressions in the symbols of a system.
        system: the equations.

    Attributes:
        jet: the names of what is read, such as ``u_xx``, sorted.
        parameters: the names of parameters, in alphabetical order.
    """

    def __init__(self, expressions: Sequence[Any], system: EvolutionSystem) -> None:
        self.expressions = tuple(expressions)
        symbols = {symbol for e in self.expressions for symbol in e.free_symbols}
        # a constant has values where the unknowns have
        symbols |= set() if symbols - set(system.parameters) else {system.unknowns[0]}
        self._symbols = sorted(symbols, key=str)
        self.jet = tuple(s.name for s in self._symbols if s not in system.parameters)
        self.parameters = tuple(s.name for s in self._symbols if s in system.parameters)
        self._compiled = compile_expressions(list(self.expressions), self._symbols)

    def __repr__(self) -> str:
        return f"JetFunction({list(self.expressions)})"

    def __call__(self, jet: Mapping[str, Tensor], **parameters: float | Tensor) -> Tensor:
        """The values.

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
        self.check_parameters(parameters)
        first = jet[self.jet[0]]
        values = [
            jet[s.name]
            if s.name in jet
            else torch.as_tensor(parameters[s.name], dtype=first.dtype, device=first.device)
            for s in self._symbols
        ]
        results = self._compiled(*values)
        return results.squeeze(-1) if len(self.expressions) == 1 else results

    def check_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Check that ``parameters`` has a value for each parameter of the expressions, and for nothing else.

        Raises:
            ConfigurationError: a value is missing, or a name is unknown.
        """
        check_parameters(self.parameters, parameters)


def check_parameters(names: Sequence[str], parameters: Mapping[str, Any], equation: str = "") -> None:
    """Check that there is a value for each parameter, and for nothing else.

    Args:
        names: names of all parameters.
        parameters: values by name.
        equation: text of the equation that has the parameters, for the message.

    Raises:
        ConfigurationError: a value is missing, or a name is unknown.
    """
    if set(parameters) != set(names):
        where = f" for {equation}" if equation else ""
        raise ConfigurationError(f"parameters: expected values of {list(names)}{where}, got {sorted(parameters)}")
