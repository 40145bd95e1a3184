"""What searches for a transformation share: counted evaluations of the posterior energy, and data in parts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils import _pytree as pytree

from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Action
from trivgeo.inversion.base import InversionResult, Inverter
from trivgeo.inversion.energy import DataEnergy, PosteriorEnergy, as_energy, check_action, check_batch

__all__ = ["CountedPosterior", "CountingInverter", "rows_like", "where_rows"]


class CountedPosterior:
    """The posterior energies of a batch of data; whoever asks for one pays for it.

    Args:
        posterior: the energy.
        x: the data that it is of.

    Attributes:
        like: a tensor in the dtype and on the device of the data.
        energy_evaluations: energies evaluated without a gradient, for each datum.
        gradient_evaluations: energies evaluated with their gradient, for each datum.
        network_evaluations: other functions of restored data, for each datum.
    """

    def __init__(self, posterior: PosteriorEnergy, x: Any) -> None:
        self.action = posterior.action
        self.group = posterior.action.group
        self.batch = posterior.batch
        self.like: Tensor = pytree.tree_leaves(x)[0]
        self.energy_evaluations = 0
        self.gradient_evaluations = 0
        self.network_evaluations = 0
        self._posterior = posterior
        self._x = x

    def energies(self, g: Tensor) -> Float[Tensor, "b *chains"]:
        """The energies of elements ``[b, *chains, *element_shape]``; infinite where undefined."""
        self.energy_evaluations += self._chains(g)
        with torch.no_grad():
            return self._posterior(g)

    def differentiable(self, g: Tensor) -> Float[Tensor, "b *chains"]:
        """`energies` that whoever calls differentiates once; NaN where undefined, and so is the gradient there."""
        self.gradient_evaluations += self._chains(g)
        energy = self._posterior(g)
        # a constant infinity would have the gradient zero, as if nothing were wrong
        undefined = torch.where(torch.isfinite(energy), 0.0, torch.nan).to(g.dtype)
        return energy + (rows_like(undefined, g) * g).flatten(energy.ndim).sum(-1)

    def gradient(
        self, elements: Callable[[Tensor], Tensor], v: Float[Tensor, "b k n"]
    ) -> tuple[Float[Tensor, "b k n"], Float[Tensor, "b k"]]:
        """The gradient by v of the energies of ``elements(v)``, and these; NaN where undefined.

        Args:
            elements: algebra vectors ``[b, k, dim]`` to elements, each row by itself.
            v: where.
        """

        def total(v: Tensor) -> tuple[Tensor, Tensor]:
            energy = self.differentiable(elements(v))
            return energy.sum(), energy

        return torch.func.grad(total, has_aux=True)(v)

    def of_transformed(self, f: Callable[[Any], Tensor], g: Tensor) -> Tensor:
        """A function of a batch of data, ``[batch]``, at the data that elements ``[b, *chains, ...]`` restore.

        Raises:
            ShapeError: the function does not return one number per datum.
        """
        self.network_evaluations += self._chains(g)
        shape = self.group.batch_shape(g)
        lifted = pytree.tree_map(
            lambda leaf: leaf.reshape(leaf.shape[0], *(1,) * (len(shape) - 1), *leaf.shape[1:]), self._x
        )
        with torch.no_grad():
            y = self.action(self.group.inverse(g), lifted)
            values = f(pytree.tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(shape) :]), y))
        if values.shape != (shape.numel(),):
            raise ShapeError(f"expected one number per datum [{shape.numel()}], got {list(values.shape)}")
        return values.reshape(shape)

    def normal(self, *shape: int, generator: torch.Generator | None) -> Tensor:
        """Standard normal numbers like the data."""
        return torch.randn(shape, generator=generator, dtype=self.like.dtype, device=self.like.device)

    def result(
        self, elements: Tensor, energies: Float[Tensor, "b k"], failures: Int[Tensor, "b k"] | None = None
    ) -> InversionResult:
        """What was found, with the evaluations so far."""
        if failures is None:
            failures = torch.zeros(energies.shape, dtype=torch.long, device=energies.device)
        return InversionResult(
            self.group,
            elements,
            energies,
            failures,
            self.energy_evaluations,
            self.gradient_evaluations,
            self.network_evaluations,
        )

    def _chains(self, g: Tensor) -> int:
        return self.group.batch_shape(g)[1:].numel()


class CountingInverter(Inverter):
    """An inverter that sees the posterior energy only through a `CountedPosterior`.

    Args:
        action: the action on data.
        energy: a `DataEnergy`, or a function from a batch of data to ``[batch]``.
        at_once: energies of one datum that are evaluated together.
        log_det: keep the log-determinant of the action in the posterior energy.
        max_evaluations: the largest number of energies evaluated at once, to bound memory: the data are inverted in
            parts; ``None`` for all at once.

    Raises:
        ConfigurationError: an action or energy that is none, or ``max_evaluations`` is too little for one datum.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        *,
        at_once: int,
        log_det: bool,
        max_evaluations: int | None,
    ) -> None:
        self.action = check_action(action)
        self.energy = as_energy(energy)
        if max_evaluations is not None and check_count("max_evaluations", max_evaluations) < at_once:
            raise ConfigurationError(
                f"max_evaluations: expected at least the {at_once} of one datum, got {max_evaluations}"
            )
        self.log_det = log_det
        self.max_evaluations = max_evaluations
        self._at_once = at_once

    @abstractmethod
    def search(self, posterior: CountedPosterior, generator: torch.Generator | None) -> InversionResult:
        """The hypotheses for one batch of data."""

    def __call__(self, x_tilde: Any, *, generator: torch.Generator | None = None) -> InversionResult:
        """The hypotheses for g, in parts of the data where memory is bounded.

        Raises:
            ShapeError: the data do not fit the action, or have no batch dimension.
            NonFiniteError: the data hold NaN or infinity.
        """
        batch = check_batch(self.action, x_tilde)
        size = batch if self.max_evaluations is None else self.max_evaluations // self._at_once
        parts = [pytree.tree_map(lambda leaf, i=i: leaf[i : i + size], x_tilde) for i in range(0, batch, size)]
        return InversionResult.cat([self._search(part, generator) for part in parts])

    def _search(self, x: Any, generator: torch.Generator | None) -> InversionResult:
        posterior = PosteriorEnergy(self.action, self.energy, x, log_det=self.log_det)
        return self.search(CountedPosterior(posterior, x), generator)


def rows_like(mask: Tensor, x: Tensor) -> Tensor:
    """Dimensions of size one after those of ``mask``, up to those of ``x``."""
    return mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))


def where_rows(mask: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """``x`` in the rows ``[b, k]`` of ``mask``, else ``other``."""
    return torch.where(rows_like(mask, x), x, other)
