"""Energies with gradients that are taken on the way."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from trivgeo._autocast import grad_and_aux
from trivgeo.groups import Action
from trivgeo.inversion.rows import rows_like

__all__ = ["BoundedEnergy", "Evaluate", "Gradient", "nan_where_infinite", "value_and_gradient"]


@runtime_checkable
class Evaluate(Protocol):
    """Elements ``[b, *chains, *element_shape]`` and b data to energies ``[b, *chains]``."""

    action: Action
    log_det: bool

    def __call__(self, g: Tensor, data: tuple[Any, Any, Any], /) -> Tensor:
        """The energies."""


@runtime_checkable
class Gradient(Protocol):
    """Elements and data as of `Evaluate` to energies and gradients, see `value_and_gradient`."""

    def __call__(self, g: Tensor, data: tuple[Any, Any, Any], /) -> Tensor:
        """Energies and gradients."""


def value_and_gradient(evaluate: Evaluate, g: Tensor, data: tuple[Any, Any, Any]) -> Tensor:
    """Return energies and their gradients by the entries of elements, side by side.

    Args:
        evaluate: function of elements and data to energies ``[b, *chains]``.
        g: elements ``[b, *chains, *element_shape]``.
        data: rows of `PosteriorEnergy.data`.

    Returns:
        ``[b, *chains, 1 + entries]``; NaN where an energy is not finite.
    """

    def total(g: Tensor) -> tuple[Tensor, Tensor]:
        values = nan_where_infinite(evaluate(g, data), g)
        return values.sum(), values

    gradient, values = grad_and_aux(total, g)
    return torch.cat([values.unsqueeze(-1), gradient.flatten(values.ndim)], -1)


class BoundedEnergy(torch.autograd.Function):
    """Energies whose gradient is taken on the way, so that nothing else of their evaluation is in memory."""

    @staticmethod
    def forward(g: Tensor, gradient: Gradient, data: tuple[Any, Any, Any]) -> tuple[Tensor, Tensor]:
        """Return energies ``[b, *chains]`` of elements and their gradients by the entries of the elements.

        Args:
            g: elements ``[b, *chains, *element_shape]``; the gradients have the same shape.
            gradient: function (g, data) that returns both in one tensor, the energies first.
            data: second argument of that function.
        """
        both = gradient(g, data)
        return both[..., 0], both[..., 1:].reshape(g.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep the gradients, the second entry of ``output``, in the autograd context ``ctx``; ``inputs`` are not
        kept.
        """
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, of_energy: Tensor, of_gradient: Tensor) -> Any:
        """Return the gradients that ``ctx`` holds, times ``of_energy``; no gradient flows to ``gradient`` and
        ``data``.

        Args:
            ctx: autograd context with the gradients.
            of_energy: derivatives by the energies.
            of_gradient: derivatives by the gradients, which are ignored: there are no second derivatives.
        """
        (gradient,) = ctx.saved_tensors
        return rows_like(of_energy, gradient) * gradient, None, None


def nan_where_infinite(energy: Tensor, g: Tensor) -> Tensor:
    """Return the energies, NaN with NaN gradients where they are not finite.

    A constant infinity would have the gradient zero, as if nothing were wrong.

    Args:
        energy: energies ``[b, *chains]``.
        g: elements of which they are functions, ``[b, *chains, *element_shape]``.
    """
    undefined = torch.where(torch.isfinite(energy), 0.0, torch.nan).to(g.dtype)
    return energy + (rows_like(undefined, g) * g).flatten(energy.ndim).sum(-1)
