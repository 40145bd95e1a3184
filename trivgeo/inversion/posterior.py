"""The transformation posterior, and what a stage may ask of it for given data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._autocast import grad_and_aux
from trivgeo._random import normal
from trivgeo._text import Described
from trivgeo._torch import pytree
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action, LieGroup
from trivgeo.inversion.bounded_energy import BoundedEnergy, Gradient, nan_where_infinite, value_and_gradient
from trivgeo.inversion.compiled_gradient import CompiledGradient
from trivgeo.inversion.energies.base import CurvedEnergy, DataEnergy, as_energy
from trivgeo.inversion.posterior_energy import Bound, Evaluation, PosteriorEnergy, check_action
from trivgeo.inversion.rows import flat_rows, in_blocks, lift, one_per_datum

__all__ = ["ConditionalPosterior", "Posterior"]


class Posterior(nn.Module):
    """Posteriors of transformations for an action and an energy, for any data.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, see `PosteriorEnergy`.
        log_det: keep the action's log-determinant.
        compiled: evaluate energies and gradients by a `CompiledGradient`.

    Attributes:
        gradient: that evaluates these, ``None`` for eager evaluation.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor] | None = None,
        *,
        log_det: bool = False,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        self.action = check_action(action)
        self.energy = None if energy is None else as_energy(energy)
        self.log_det = log_det
        wanted = compiled and self.energy is not None
        self.gradient = CompiledGradient(Evaluation(self.action, self.energy, log_det)) if wanted else None

    @property
    def group(self) -> LieGroup:
        """The group of the action."""
        return self.action.group

    def given(
        self, x: Any, *, max_evaluations: Bound = None, on_step: Callable[[], None] | None = None
    ) -> ConditionalPosterior:
        """Return the posteriors of a batch of data.

        Args:
            x: data, one batch dimension.
            max_evaluations: most energies evaluated at once; None for no bound.
            on_step: called after each step of a stage, for progress bars.
        """
        return ConditionalPosterior(self, x, max_evaluations, on_step)


class ConditionalPosterior(Described):
    """The posteriors of a batch of data, as a `Stage` receives them; counts every evaluation of the energy.

    Args:
        posterior: of which.
        x: transformed data, one batch dimension.
        max_evaluations: largest number of energies at once, see `Inverter`.
        on_step: called by `step`.
        loss_weight: see `PosteriorEnergy`.

    Attributes:
        action: the action on data.
        group: its group.
        x: the data.
        batch: their number b.
        like: a tensor in the dtype and on the device of the data.
        max_evaluations: the bound as a number, or ``None``.
        energy_evaluations: energies evaluated without a gradient so far, for each datum.
        gradient_evaluations: energies evaluated with their gradient, for each datum.
        network_evaluations: other functions of restored data, for each datum.
    """

    def __init__(
        self,
        posterior: Posterior,
        x: Any,
        max_evaluations: Bound = None,
        on_step: Callable[[], None] | None = None,
        loss_weight: Float[Tensor, " b"] | None = None,
    ) -> None:
        self._energy = PosteriorEnergy(
            posterior.action,
            posterior.energy,
            x,
            log_det=posterior.log_det,
            max_evaluations=max_evaluations,
            loss_weight=loss_weight,
        )
        self._gradient = posterior.gradient
        self._on_step = on_step
        self.action = posterior.action
        self.group = posterior.group
        self.x = self._energy.x
        self.batch = self._energy.batch
        self.like: Tensor = pytree.tree_leaves(self.x)[0]
        self.max_evaluations = self._energy.max_evaluations
        weighted = self._energy.guard is not None and self._energy.energy is not None
        self.energy_evaluations = int(weighted and loss_weight is None)  # of a datum that shows nothing
        self.gradient_evaluations = 0
        self.network_evaluations = 0

    def under(self, energy: DataEnergy) -> ConditionalPosterior:
        """Return the posteriors of another energy for the same data, with counts of their own."""
        posterior = Posterior(self.action, energy, log_det=self._energy.log_det)
        return ConditionalPosterior(posterior, self.x, self.max_evaluations, self._on_step)

    def in_double(self) -> ConditionalPosterior:
        """Return the posteriors of the same data and energy in double precision, with own counts."""
        posterior = Posterior(self.action, self._energy.energy, log_det=self._energy.log_det)
        if next(posterior.parameters(), None) is not None:
            posterior = copy.deepcopy(posterior).double()
        x = pytree.tree_map(lambda leaf: leaf.double(), self.x)
        weight = self._energy.loss_weight
        known = weight.double() if isinstance(weight, Tensor) else None
        return ConditionalPosterior(posterior, x, self.max_evaluations, self._on_step, known)

    def energies(self, g: Tensor, signed: bool = False) -> Float[Tensor, "b *chains"]:
        """Return the energies of elements g, ``[b, *chains]``; infinite where undefined.

        Args:
            g: elements ``[b, *chains, *element_shape]``.
            signed: keep an energy of minus infinity, which else becomes infinite too.
        """
        if self._energy.energy is not None:
            self.energy_evaluations += self._chains(g)
        with torch.no_grad():
            return self._energy.in_blocks(g, self.max_evaluations, signed)

    def kept(self, g: Tensor) -> Float[Tensor, "b *chains"] | None:
        """Return the share of each datum that elements g restore, see `PosteriorEnergy.kept`."""
        return self._energy.kept(g)

    def differentiable(self, g: Tensor) -> Float[Tensor, "b *chains"]:
        """Return `energies` of elements g that can be differentiated once; NaN, with NaN gradients, where undefined.

        Raises:
            ConfigurationError: there is no energy.
        """
        if self._energy.energy is None:
            raise ConfigurationError("energy: expected one, for a stage that follows its gradient, got None")
        self.gradient_evaluations += self._chains(g)
        bound, gradient = self.max_evaluations, self._gradient
        if gradient is None and (bound is None or self.group.batch_shape(g).numel() <= bound):
            return nan_where_infinite(self._energy(g), g)
        self._energy.check(g)
        if gradient is not None:
            of_blocks: Gradient = partial(gradient, bound=bound)
        else:
            eager = partial(value_and_gradient, self._energy.evaluate)
            of_blocks = lambda g, data: in_blocks(eager, self.group, g, data, bound)  # noqa: E731
        return BoundedEnergy.apply(g, of_blocks, self._energy.data)[0]

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

        return grad_and_aux(total, v)

    def curvature(self, g: Tensor) -> Float[Tensor, "b k n n"]:
        """Gauss and Newton's curvature of a `LeastSquares` energy by v in ``g exp(v)`` at v = 0, see `CurvedEnergy`.

        Counted with the gradient that is asked for beside it.

        Raises:
            ConfigurationError: the energy has none.
        """
        energy = self._energy.energy
        if not isinstance(energy, CurvedEnergy):
            raise ConfigurationError(
                f"energy: expected a LeastSquares, for a stage that follows its curvature, got {energy!r}"
            )
        group, action = self.group, self.action

        def values(g: Tensor, data: tuple[Any, Any, Any]) -> Tensor:
            shape = group.batch_shape(g)
            x = lift(data[1], len(shape) - 1)
            closed = energy.closed_form_curvature(action, g, x)
            if closed is not None:
                return closed.to(g.dtype)

            def restored(v: Tensor) -> Any:
                return flat_rows(action(group.inverse(group.perturb(g, v)), x), len(shape))

            curvature = energy.curvature(restored, g.new_zeros(*shape, group.dim)).unflatten(0, shape)
            return curvature.to(g.dtype)  # as of energies

        with torch.no_grad():
            return in_blocks(values, group, g, self._energy.data, self.max_evaluations)

    def of_transformed(self, f: Callable[[Any], Tensor], g: Tensor) -> Tensor:
        """Return the values of a function at restored data, ``[b, *chains]``, without gradients.

        Args:
            f: function of a batch of data to ``[batch]``.
            g: elements ``[b, *chains, *element_shape]``, which are undone.

        Raises:
            ShapeError: the function does not return one number per datum.
        """
        self.count(networks=self._chains(g))

        def values(g: Tensor, x: Any) -> Tensor:
            shape = self.group.batch_shape(g)
            y = self.action(self.group.inverse(g), lift(x, len(shape) - 1))
            return one_per_datum("function", f(flat_rows(y, len(shape))), shape)

        with torch.no_grad():
            return in_blocks(values, self.group, g, self.x, self.max_evaluations)

    def count(self, energies: int = 0, gradients: int = 0, networks: int = 0) -> None:
        """Add evaluations for each datum that a stage makes itself: of ``energies``, ``gradients`` and ``networks``."""
        self.energy_evaluations += energies
        self.gradient_evaluations += gradients
        self.network_evaluations += networks

    def normal(self, *shape: int, generator: torch.Generator | None) -> Tensor:
        """Draw standard normal numbers of this ``shape`` by ``generator``, with dtype and device of the data."""
        return normal(shape, self.like, generator)

    def step(self) -> None:
        """Say that one of the `Stage.steps` of a stage is done."""
        if self._on_step is not None:
            self._on_step()

    def _chains(self, g: Tensor) -> int:
        return self.group.batch_shape(g)[1:].numel()
