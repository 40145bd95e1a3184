"""A trained neural operator on a grid, made equivariant to the point symmetries of its equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._devices import on_device
from trivgeo.actions import Field, FieldAction, Grid, resample
from trivgeo.checks import check_type
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.inversion.inverter import Inverter

__all__ = ["EquivariantOperator"]

_MAX_BEFORE = 1e-6  # the same share before the initial field, which is rounding
_MAX_BEYOND = 0.05  # share of the time from the initial field to the last prediction that is extrapolated


class EquivariantOperator(nn.Module):
    r"""Solves from any initial field by moving it to where a network was trained: :math:`g \cdot f(g^{-1} \cdot u_0)`.

    The network knows the solutions from initial fields of its training set, on its box and after its times, and
    nothing else; g comes from an `Inverter` and the prediction goes back with it, as a `Field` on the moved grid:
    other lengths of the box, moving frames and later starts are so taken care of. The equation must not depend on
    place and time: the network's times are counted from that of the field it is given, and it is not told where the
    box is.

    ```python
    operator = EquivariantOperator(fno, inverter, times=[4.0])
    solution = operator(initial, initial.grid.at([10.0]))
    ```

    Times between are interpolated from the predictions and the initial field, which is one more node: by cubics from
    four nodes on, else by the polynomial through all (linear with one time of the network). g moves the network's
    times, too: what is wanted later than they reach, by more than a twentieth of the way, or before the initial field,
    is refused before the network is called.

    Args:
        network: values of initial fields ``[b, c, *n]`` to the solution at its one time, ``[b, c, *n]``, or at all
            of its times, ``[b, c, s, *n]``; with ``parameters`` if there are any.
        inverter: finds g for an initial field; of a `FieldAction`.
        times: of the network's predictions, counted from the initial field.

    Raises:
        ConfigurationError: the network cannot be called, the inverter is none of fields, or the times do not increase
            from above zero.
    """

    def __init__(self, network: Callable[..., Tensor], inverter: Inverter, times: Sequence[float]) -> None:
        super().__init__()
        if not callable(network):
            raise ConfigurationError(f"network: expected a function of values [b, c, *n], got {network!r}")
        check_type("inverter.action", check_type("inverter", inverter, Inverter).action, FieldAction)
        nodes = [float(t) for t in times]
        if not nodes or nodes[0] <= 0 or nodes != sorted(set(nodes)):
            raise ConfigurationError(f"times: expected increasing ones above zero, got {nodes}")
        self.network = network
        self.inverter = inverter
        self.times = nodes
        known = next(network.parameters(), None) if isinstance(network, nn.Module) else None
        self._dtype = None if known is None else known.dtype

    @property
    def action(self) -> FieldAction:
        """The action on fields."""
        action = self.inverter.action
        assert isinstance(action, FieldAction)
        return action

    def forward(
        self,
        initial: Field,
        grid: Grid | None = None,
        parameters: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Field:
        """The solution.

        Args:
            initial: fields at one time, with one batch dimension.
            grid: where the solution is wanted, such as ``initial.grid.at(times)``; default: where it comes out.
            parameters: further input of the network, handed on as it is.
            generator: of the inverter.

        Raises:
            ShapeError: the field has several times, or the network returns another shape.
            DomainError: a time of the grid is before the initial field, or later than the network reaches.
        """
        return self.predict(initial, self.inverter(initial, generator=generator).best(), grid, parameters)

    def predict(self, initial: Field, g: Tensor, grid: Grid | None = None, parameters: Tensor | None = None) -> Field:
        """Return the solution for known transformations ``[b, *element_shape]``.

        Raises:
            ShapeError: as for `forward`.
            DomainError: as for `forward`.
        """
        if initial.values.shape[2] != 1:
            raise ShapeError(f"initial: expected fields at one time, got {initial.values.shape[2]} times")
        initial, grid = on_device(initial, g.device), on_device(grid, g.device)
        start = self.action(self.action.group.inverse(g), initial)
        after = torch.tensor(self.times, dtype=g.dtype, device=g.device)
        later = start.grid.at(start.grid.times + after)
        if grid is not None:
            still = start.values.repeat_interleave(len(self.times), 2)
            self._check_times(initial.grid.times, self.action(g, Field(still, later)).grid.times, grid.times)
        moved = self.action(g, Field(self._solved(start.values.squeeze(2), parameters), later))
        return moved if grid is None else self._at(initial, moved, grid)

    def _check_times(self, first: Tensor, reached: Tensor, wanted: Tensor) -> None:
        """Raise `DomainError` if a time is wanted that the solution is not known at."""
        start, last = torch.broadcast_tensors(first[..., :1], reached[..., -1:])
        span = last - start
        # where g has no time these are NaN, which is in no order
        outside = ((wanted < start - _MAX_BEFORE * span) | (wanted > last + _MAX_BEYOND * span)).any(-1)
        if bool(outside.any()):
            row = int(outside.nonzero()[0, 0])
            times = [round(t, 6) for t in wanted.expand(len(outside), -1)[row].tolist()]
            raise DomainError(
                f"grid: expected times from {float(start[row, 0]):.6g} to {float(last[row, 0]):.6g}, where the "
                f"network's times {self.times} are moved, for field {row}, got {times}; {int(outside.sum())} of "
                f"{len(outside)} fields are so: a network for later times reaches more"
            )

    def _at(self, initial: Field, moved: Field, grid: Grid) -> Field:
        """The solution at the points of a grid, from the initial field and the predictions."""
        batch = moved.values.shape[:1]
        origin, steps = initial.grid.origin.expand(*batch, -1, -1), initial.grid.steps.expand(*batch, -1, -1, -1)
        block = Field(
            torch.cat([initial.values.expand(*batch, *initial.values.shape[1:]), moved.values], 2),
            Grid(torch.cat([origin, moved.grid.origin], -2), torch.cat([steps, moved.grid.steps], -3)),
        )
        return resample(block, grid, self.action.periodic, extrapolated=_MAX_BEYOND)

    def _solved(self, values: Float[Tensor, "b c ..."], parameters: Tensor | None) -> Float[Tensor, "b c s ..."]:
        """Return the predictions of the network, which computes in its own dtype."""
        given = values if self._dtype is None else values.to(self._dtype)
        out = self.network(given) if parameters is None else self.network(given, parameters)
        if len(self.times) == 1 and out.shape == values.shape:
            out = out.unsqueeze(2)
        wanted = (*values.shape[:2], len(self.times), *values.shape[2:])
        if out.shape != wanted:
            raise ShapeError(f"network: expected predictions {list(wanted)}, got {list(out.shape)}")
        return out.to(values.dtype)
