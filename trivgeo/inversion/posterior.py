"""The transformation posterior: its energy on the group, and what a method may ask of it for given data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._numerics import is_traced
from trivgeo._random import normal
from trivgeo._text import Described
from trivgeo._torch import pytree
from trivgeo.checks import check_count, with_tensors
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.groups import Action, LieGroup
from trivgeo.inversion.energy import CurvedEnergy, DataEnergy, as_energy

__all__ = ["GivenPosterior", "Posterior", "PosteriorEnergy", "lower_rows", "rows_like", "where_rows"]


class PosteriorEnergy(Described):
    r"""The energy of the transformation posterior of a batch of data.

    .. math:: E(g) = E_x(g^{-1} \tilde x) - \log|\det J_{g^{-1}}(\tilde x)|

    (Kim et al. 2026, eq. 3.) Infinite where :math:`g^{-1} \tilde x` is not defined.

    Args:
        action: the action on data.
        energy: a `DataEnergy`, or a function from a batch of data to ``[batch]``; ``None`` for zero wherever the
            inverse transformation is defined.
        x: the transformed data, with one batch dimension.
        log_det: keep the log-determinant (the published experiments drop it).

    Raises:
        ConfigurationError: the action or the energy is not one.
        ShapeError: the data do not have exactly one batch dimension, or do not fit the action.
        NonFiniteError: the data hold NaN or infinity.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor] | None,
        x: Any,
        *,
        log_det: bool = False,
    ) -> None:
        self.action = check_action(action)
        self.energy = None if energy is None else as_energy(energy)
        x, self.batch = check_batch(action, x)
        self.log_det = log_det
        # the data as they are and as the energy reads them, cut in blocks together
        self._data = (x, x if self.energy is None else self.energy.prepare(action, x))

    def __call__(self, g: Tensor) -> Float[Tensor, "b *chains"]:
        """Energies of elements ``[b, *chains, *element_shape]``.

        Raises:
            ShapeError: the elements are not for this batch, or the energy returns no number per datum.
        """
        self._check(g)
        return self._evaluate(g, self._data)

    def in_blocks(self, g: Tensor, bound: int | None) -> Float[Tensor, "b *chains"]:
        """The same, no more than ``bound`` at once."""
        check_bound(bound)
        self._check(g)
        return in_blocks(self._evaluate, self.action.group, g, self._data, bound)

    def _check(self, g: Tensor) -> None:
        self.action.group.check_elements(g)
        shape = self.action.group.batch_shape(g)
        if len(shape) < 1 or shape[0] != self.batch:
            raise ShapeError(f"g: expected elements for a batch of {self.batch} data, got batch shape {list(shape)}")

    def _evaluate(self, g: Tensor, data: tuple[Any, Any]) -> Tensor:
        shape = self.action.group.batch_shape(g)
        inverse = self.action.group.inverse(g)
        original, prepared = (lift(part, len(shape) - 1) for part in data)
        if self.energy is None:
            valid = self.action.is_valid(inverse, original)
            energy = torch.zeros_like(valid.reshape(*shape, -1), dtype=g.dtype).sum(-1)
            energy = torch.where(valid.reshape(*shape, -1).all(-1), energy, torch.inf)
        else:
            energy = self._of_data(self.energy, inverse, prepared)
        if self.log_det:
            energy = energy - self.action.log_abs_det_jacobian(inverse, original)
        return torch.where(torch.isfinite(energy), energy, torch.inf)

    def _of_data(self, of: DataEnergy, inverse: Tensor, x: Any) -> Tensor:
        shape = self.action.group.batch_shape(inverse)
        of_transformation = of.of_transformation(self.action, inverse, x)
        with torch.no_grad():
            x = of.select(self.action, inverse, x)
        y = flat_rows(self.action(inverse, x), len(shape))
        energy = one_per_datum("energy", of(y), shape)
        _check_gradient(y, energy)
        energy = energy.to(inverse.dtype)  # one that computes in a wider dtype, or counts
        return energy if of_transformation is None else energy + of_transformation


class Posterior(nn.Module):
    """The transformation posteriors of an action and an energy, for any data; arguments as in `PosteriorEnergy`."""

    def __init__(
        self, action: Action, energy: DataEnergy | Callable[[Any], Tensor] | None = None, *, log_det: bool = False
    ) -> None:
        super().__init__()
        self.action = check_action(action)
        self.energy = None if energy is None else as_energy(energy)
        self.log_det = log_det

    @property
    def group(self) -> LieGroup:
        """The group of the action."""
        return self.action.group

    def given(
        self, x: Any, *, max_evaluations: int | None = None, on_step: Callable[[], None] | None = None
    ) -> GivenPosterior:
        """The posteriors of a batch of data, see `GivenPosterior`."""
        return GivenPosterior(self, x, max_evaluations, on_step)


class GivenPosterior(Described):
    """The posteriors of a batch of data, as a `Stage` sees them; whoever asks for an energy pays for it.

    Args:
        posterior: of which.
        x: see `PosteriorEnergy`.
        max_evaluations: the largest number of energies, or of data seen by a network, at once; ``None`` for no bound.
        on_step: called by `step`.

    Attributes:
        action: the action on data.
        group: its group.
        x: the data.
        batch: their number b.
        like: a tensor in the dtype and on the device of the data.
        max_evaluations: as given.
        energy_evaluations: energies evaluated without a gradient so far, for each datum.
        gradient_evaluations: energies evaluated with their gradient, for each datum.
        network_evaluations: other functions of restored data, for each datum.
    """

    def __init__(
        self,
        posterior: Posterior,
        x: Any,
        max_evaluations: int | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self._energy = PosteriorEnergy(posterior.action, posterior.energy, x, log_det=posterior.log_det)
        self._on_step = on_step
        self.action = posterior.action
        self.group = posterior.group
        self.x = self._energy._data[0]
        self.batch = self._energy.batch
        self.like: Tensor = pytree.tree_leaves(self.x)[0]
        self.max_evaluations = max_evaluations
        self.energy_evaluations = 0
        self.gradient_evaluations = 0
        self.network_evaluations = 0

    def under(self, energy: DataEnergy) -> GivenPosterior:
        """Those of another energy for the same data, with counts of their own."""
        posterior = Posterior(self.action, energy, log_det=self._energy.log_det)
        return GivenPosterior(posterior, self.x, self.max_evaluations, self._on_step)

    def energies(self, g: Tensor) -> Float[Tensor, "b *chains"]:
        """The energies of elements ``[b, *chains, *element_shape]``; infinite where undefined."""
        if self._energy.energy is not None:
            self.energy_evaluations += self._chains(g)
        with torch.no_grad():
            return self._energy.in_blocks(g, self.max_evaluations)

    def differentiable(self, g: Tensor) -> Float[Tensor, "b *chains"]:
        """`energies` that whoever calls differentiates once; NaN where undefined, and so is the gradient there.

        Raises:
            ConfigurationError: there is no energy.
        """
        if self._energy.energy is None:
            raise ConfigurationError("energy: expected one, for a stage that follows its gradient, got None")
        self.gradient_evaluations += self._chains(g)
        bound = self.max_evaluations
        if bound is None or self.group.batch_shape(g).numel() <= bound:
            return _nan_where_infinite(self._energy(g), g)
        return _BoundedEnergy.apply(g, self._energy, bound)[0]

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

        def values(g: Tensor, data: tuple[Any, Any]) -> Tensor:
            shape = group.batch_shape(g)
            x = lift(data[1], len(shape) - 1)

            def restored(v: Tensor) -> Any:
                return flat_rows(action(group.inverse(group.perturb(g, v)), x), len(shape))

            curvature = energy.curvature(restored, g.new_zeros(*shape, group.dim)).unflatten(0, shape)
            return curvature.to(g.dtype)  # as of energies

        with torch.no_grad():
            return in_blocks(values, group, g, self._energy._data, self.max_evaluations)

    def of_transformed(self, f: Callable[[Any], Tensor], g: Tensor) -> Tensor:
        """A function of a batch of data, ``[batch]``, at the data that elements ``[b, *chains, ...]`` restore.

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
        """Count evaluations that a stage makes by other ways, for each datum."""
        self.energy_evaluations += energies
        self.gradient_evaluations += gradients
        self.network_evaluations += networks

    def normal(self, *shape: int, generator: torch.Generator | None) -> Tensor:
        """Standard normal numbers like the data, ``[b, ...]``."""
        return normal(shape, self.like, generator)

    def step(self) -> None:
        """Say that one of the `Stage.steps` of a stage is done."""
        if self._on_step is not None:
            self._on_step()

    def _chains(self, g: Tensor) -> int:
        return self.group.batch_shape(g)[1:].numel()


class _BoundedEnergy(torch.autograd.Function):
    """Energies whose gradient is taken on the way, block by block, so that one block alone is in memory."""

    @staticmethod
    def forward(g: Tensor, energy: PosteriorEnergy, bound: int) -> tuple[Tensor, Tensor]:
        group = energy.action.group

        def value_and_gradient(g: Tensor, data: tuple[Any, Any]) -> Tensor:
            def total(g: Tensor) -> tuple[Tensor, Tensor]:
                values = _nan_where_infinite(energy._evaluate(g, data), g)
                return values.sum(), values

            gradient, values = torch.func.grad(total, has_aux=True)(g)
            return torch.cat([values.unsqueeze(-1), gradient.flatten(len(group.batch_shape(g)))], -1)

        both = in_blocks(value_and_gradient, group, g, energy._data, bound)
        return both[..., 0], both[..., 1:].reshape(g.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, of_energy: Tensor, of_gradient: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return rows_like(of_energy, gradient) * gradient, None, None


def in_blocks(
    f: Callable[[Tensor, Any], Tensor], group: LieGroup, g: Tensor, x: Any, bound: int | None
) -> Float[Tensor, "b *chains ..."]:
    """``f(g, x)`` with no more than ``bound`` pairs of an element and a datum at once.

    Args:
        f: elements ``[b, *chains, *element_shape]`` and b data to ``[b, *chains, ...]``, each pair by itself.
        group: the group.
        g: the elements.
        x: data with one batch dimension b.
        bound: ``None`` for all at once.
    """
    shape = group.batch_shape(g)
    chains = shape[1:].numel()
    if bound is None or shape.numel() <= bound or chains == 0:
        return f(g, x)
    g = g.reshape(shape[0], chains, *group.element_shape)
    data, together = max(1, bound // chains), min(chains, bound)
    rows = []
    for i in range(0, shape[0], data):
        part = pytree.tree_map(lambda leaf, i=i: leaf[i : i + data], x)
        blocks = [f(g[i : i + data, j : j + together], part) for j in range(0, chains, together)]
        rows.append(torch.cat(blocks, 1))
    out = torch.cat(rows)
    return out.reshape(*shape, *out.shape[2:])


def lift(x: Any, chains: int) -> Any:
    """Data with dimensions of size one for the chains, after the batch."""
    return pytree.tree_map(lambda leaf: leaf.reshape(leaf.shape[0], *(1,) * chains, *leaf.shape[1:]), x)


def flat_rows(x: Any, rank: int) -> Any:
    """Data of several batch dimensions as data of one."""
    return pytree.tree_map(lambda leaf: leaf.flatten(0, rank - 1), x)


def one_per_datum(name: str, values: Tensor, shape: torch.Size) -> Tensor:
    """``[batch]`` in the shape of the chains.

    Raises:
        ConfigurationError: it is no tensor of real numbers.
        ShapeError: it is of another shape.
    """
    if not isinstance(values, Tensor) or values.is_complex():
        got = f"{values.dtype}" if isinstance(values, Tensor) else f"{values!r:.200}"
        raise ConfigurationError(f"{name}: expected a function to a tensor of real numbers, got {got}")
    if values.shape != (shape.numel(),):
        raise ShapeError(f"{name}: expected one number per datum [{shape.numel()}], got {list(values.shape)}")
    return values.reshape(shape)


def _nan_where_infinite(energy: Tensor, g: Tensor) -> Tensor:
    """The energies, NaN with their gradients where they are not finite.

    A constant infinity would have the gradient zero, as if nothing were wrong.
    """
    undefined = torch.where(torch.isfinite(energy), 0.0, torch.nan).to(g.dtype)
    return energy + (rows_like(undefined, g) * g).flatten(energy.ndim).sum(-1)


def check_action(action: Action, name: str = "action") -> Action:
    """Return ``action`` if it is one, else raise `ConfigurationError`."""
    if not isinstance(action, Action):
        raise ConfigurationError(f"{name}: expected an Action (such as group.action()), got {type(action).__name__}")
    return action


def _check_gradient(x: Any, energy: Tensor) -> None:
    """Raise if the data take part in a gradient and their energy does not: a search would follow zeros.

    Raises:
        ConfigurationError: so it is.
    """
    wanted = any(leaf.requires_grad for leaf in pytree.tree_leaves(x))
    if wanted and not energy.requires_grad:
        kind = "detached or computed under no_grad" if energy.is_floating_point() else f"of {energy.dtype}"
        raise ConfigurationError(f"energy: expected one with a gradient for its data, got one without: {kind}")


def check_batch(action: Action, x: Any) -> tuple[Any, int]:
    """Data that fit the action, are finite, and have one batch dimension, as tensors; and their number."""
    x = with_tensors("x_tilde", x)
    action.check_data(x, "x_tilde")
    leaves = pytree.tree_leaves(x)
    for leaf in leaves:
        if not leaf.is_floating_point():
            raise ConfigurationError(f"x_tilde: expected floating-point data, got {leaf.dtype}")
        # an exported program has no values to look at
        if not is_traced() and not bool(torch.isfinite(leaf).all()):
            bad = int((~torch.isfinite(leaf)).sum())
            raise NonFiniteError(f"x_tilde: expected finite data, got {bad} NaN or infinite values")
    batch = action.batch_shape(x)
    if len(batch) != 1 or batch[0] < 1:
        raise ShapeError(f"x_tilde: expected data with one batch dimension, got batch shape {list(batch)}")
    return x, batch[0]


def check_bound(max_evaluations: int | None) -> int | None:
    """Return a bound that is ``None`` or at least one, else raise `ConfigurationError`."""
    return None if max_evaluations is None else check_count("max_evaluations", max_evaluations)


def rows_like(mask: Tensor, x: Tensor) -> Tensor:
    """Dimensions of size one after those of ``mask``, up to those of ``x``."""
    return mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))


def where_rows(mask: Tensor, x: Tensor, other: Tensor | float) -> Tensor:
    """``x`` in the rows ``[b, ...]`` of ``mask``, else ``other``."""
    return torch.where(rows_like(mask, x), x, other)


def lower_rows(x: Tensor, energies: Tensor, other: Tensor, other_energies: Tensor) -> tuple[Tensor, Tensor]:
    """``other`` in the rows whose energy ``[b, k]`` is lower there, else ``x``; and the energies of what was taken."""
    lower = other_energies < energies
    return where_rows(lower, other, x), torch.where(lower, other_energies, energies)
