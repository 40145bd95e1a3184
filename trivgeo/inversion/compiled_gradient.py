"""Energies with their gradients by one graph of `torch.compile`: the action, the networks and all between them."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor

from trivgeo._numerics import is_traced
from trivgeo._text import Described
from trivgeo._torch import pytree
from trivgeo.groups._code_cache import DifferentResultError, call_compiled
from trivgeo.groups.compilation import with_own_code
from trivgeo.inversion.bounded_energy import Evaluate, value_and_gradient
from trivgeo.inversion.rows import in_blocks, rows_like

__all__ = ["CompiledGradient"]

_MOST_ROWS = 8192
"""Number of pairs of an element and a datum at once, where none is asked for."""
_LEAST_ROWS = 64
"""Number of pairs below which nothing is compiled."""
_LEAST_SHARE = 0.25
"""Share of the rows of a graph below which evaluation is eager: a graph computes all of its rows."""
_ENERGY_TOLERANCE, _GRADIENT_TOLERANCE = 0.02, 0.3
"""Largest relative distance, in L2, of compiled from eager results. Networks in half precision are that far apart."""


class CompiledGradient(Described):
    """Evaluates energies and their gradients by compiled code, a fixed number of elements with their data at once.

    Code is compiled at the first call, and again for a larger block, another dtype or device. Its first result is
    compared with the eager one: where it differs, and where compilation fails, a warning says so, and evaluation stays
    eager.

    Args:
        evaluate: elements and data to energies, see `trivgeo.inversion.posterior_energy.Evaluation`.

    Attributes:
        reason: why evaluation is eager, empty while it is not.
    """

    def __init__(self, evaluate: Evaluate) -> None:
        self.evaluate = evaluate
        self.reason = ""
        self._rows = 0
        self._checked: set[tuple[int, torch.dtype, torch.device]] = set()
        self._compiled: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Code is compiled again by the process that loads this."""
        return CompiledGradient, (self.evaluate,)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledGradient:
        """Copy what is evaluated; code belongs to the networks of one object."""
        return CompiledGradient(copy.deepcopy(self.evaluate, memo))

    def __call__(self, g: Tensor, data: tuple[Any, Any, Any], bound: int | None) -> Tensor:
        """Energies with their gradients of elements ``[b, *chains, *element_shape]``, see `value_and_gradient`.

        Args:
            g: the elements.
            data: b data.
            bound: the largest number of elements at once; ``None`` for some thousands.
        """
        group = self.evaluate.action.group
        shape = group.batch_shape(g)
        number, most = shape.numel(), bound or _MOST_ROWS
        if min(most, number) > 2 * self._rows or self._rows > most:
            self._rows = min(most, number)
        few = number < max(_LEAST_ROWS, _LEAST_SHARE * self._rows)
        if self.reason or few or self._rows < _LEAST_ROWS or is_traced():
            return in_blocks(self._eager, group, g, data, bound)
        found = self._blocks(g.reshape(-1, *group.element_shape), data, shape[1:].numel())
        return in_blocks(self._eager, group, g, data, bound) if found is None else found.unflatten(0, shape)

    def _function(self) -> Any:
        evaluate = self.evaluate

        def rows(g: Tensor, data: Any) -> Tensor:
            return value_and_gradient(evaluate, g, data)

        return rows

    def _to_compile(self) -> Any:
        # of fixed sizes: with symbolic ones torch lays convolutions out as they are given, which is slower
        return torch.compile(with_own_code(self._function()), fullgraph=True, dynamic=False)

    def _eager(self, g: Tensor, data: tuple[Any, Any, Any]) -> Tensor:
        return value_and_gradient(self.evaluate, g, data)

    def _blocks(self, elements: Tensor, data: tuple[Any, Any, Any], chains: int) -> Tensor | None:
        """Results of compiled code for all elements, each datum with so many of them; none where it fails."""
        original, prepared, content = data
        read = (original if self.evaluate.log_det else (), prepared, content)
        found = []
        for start in range(0, len(elements), self._rows):
            # the last block is filled with its last element
            place = torch.arange(start, start + self._rows, device=elements.device).clamp(max=len(elements) - 1)
            block, datum = elements[place], place // chains
            rows = pytree.tree_map(lambda leaf, datum=datum: leaf[datum], read)
            part = self._checked_block(block, rows)
            if part is None:
                return None
            found.append(part)
        return torch.cat(found)[: len(elements)]

    def _checked_block(self, block: Tensor, rows: Any) -> Tensor | None:
        key = (len(block), block.dtype, block.device)

        def evaluated() -> Tensor:
            compiled, self._compiled = self._compiled or self._to_compile(), None
            found: Tensor = compiled(block, rows)
            if not _agree(found, self._eager(block, rows)):
                raise DifferentResultError("compiled results differ")
            self._compiled = compiled
            return found

        try:
            found = self._compiled(block, rows) if key in self._checked else call_compiled(evaluated)
        except DifferentResultError:
            self._stay_eager("compiled results differ")
            return None
        except Exception as error:  # whatever the compiler raises; what the energy itself raises, it raises again
            first_line, *_ = str(error).strip().splitlines() or [""]
            self._stay_eager(f"compilation failed: {type(error).__name__}: {first_line}")
            return None
        self._checked.add(key)
        return found

    def _stay_eager(self, reason: str) -> None:
        self.reason = reason
        warnings.warn(f"energy: evaluated without torch.compile, since {reason}", RuntimeWarning, stacklevel=2)


def _agree(found: Tensor, eager: Tensor) -> bool:
    """Whether energies and gradients are near those of eager evaluation, and defined for the same rows."""
    defined = torch.isfinite(eager).all(-1)
    if not torch.equal(defined, torch.isfinite(found).all(-1)):
        return False
    found, eager = (torch.where(rows_like(defined, x), x, 0.0).double() for x in (found, eager))
    energy, gradient = ((found - eager)[..., part].norm() for part in (0, slice(1, None)))
    return bool(
        (energy <= _ENERGY_TOLERANCE * eager[..., 0].norm()) & (gradient <= _GRADIENT_TOLERANCE * eager[..., 1:].norm())
    )
