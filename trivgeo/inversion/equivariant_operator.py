"""A trained neural operator on a grid, made equivariant to the point symmetries of its equation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._devices import module_device, on_device
from trivgeo.actions import Field, FieldAction, Grid, resample
from trivgeo.checks import check_type
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.inversion.equivariant import EquivarianceError
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.law import Law, moving_elements
from trivgeo.inversion.operator_setup import clean_fields, search_for, symmetries_of
from trivgeo.inversion.training_frame import TrainingFrame
from trivgeo.pde import SpectralEquation
from trivgeo.pde.interpolation import interpolate_solution, interpolation_error

__all__ = ["EquivariantOperator"]

_MAX_BEFORE = 1e-6  # the same share before the initial field, which is rounding
_MAX_OFF_BETWEEN = 0.1  # relative error of a solution between times of the network, as it is estimated
_MAX_BEYOND = 0.05  # share of the time from the initial field to the last prediction that is extrapolated


class EquivariantOperator(nn.Module):
    r"""Solves from any initial field by moving it to where a network was trained: :math:`g \cdot f(g^{-1} \cdot u_0)`.

    The network predicts solutions for initial fields like its training set, on the training box and at the training
    times. An `Inverter` finds g, which moves the given field to such a field. The prediction is moved back by g, as a
    `Field` on the moved grid. Other lengths of the box, moving frames and later starts are handled in this way. The
    equation must not depend on place and time, since the network receives neither the place of the box nor the time of
    the field.

    ```python
    operator = EquivariantOperator(fno, inverter, times=[4.0])
    solution = operator(initial, initial.grid.at([10.0]))
    ```

    Times between are interpolated from the predictions and the initial field, which is one more node: by cubics from
    four nodes on, else by the polynomial through all (linear with one time of the network). g moves the network's
    times, too: what is wanted later than they reach, by more than a twentieth of the way, or before the initial field,
    is refused before the network is called. With the ``equation`` the solution between is that of
    `trivgeo.pde.interpolation`, which is right near the network's times also if there is one of them.

    With ``clean``, the initial fields of the training set, what the inverter finds is corrected, so that the box of a
    field goes there exactly; a field whose box no transformation takes there is refused by name. What then is free is
    chosen such that the network predicts the last time that is wanted. Fields for which the network returns NaN or
    infinity are counted in a warning, and the others are right.

    `from_equation` makes all of this from an equation.

    Args:
        network: values of initial fields ``[b, c, *n]`` to the solution at its one time, ``[b, c, *n]``, or at all
            of its times, ``[b, c, s, *n]``; with ``parameters`` if there are any.
        inverter: finds g for an initial field; of a `FieldAction`.
        times: of the network's predictions, counted from the initial field.
        equation: of periodic fields, for times between.
        clean: initial fields of the training set, which share their grid.

    Attributes:
        report: what `from_equation` found, used and left out, and why.

    Raises:
        ConfigurationError: the network cannot be called, the inverter is none of fields, or the times do not increase
            from above zero, or an equation of fields that are not periodic; or (when run) the network returns no
            floating-point tensor.
        DomainError: clean fields have different grids.
    """

    def __init__(
        self,
        network: Callable[..., Tensor],
        inverter: Inverter,
        times: Sequence[float],
        *,
        equation: SpectralEquation | None = None,
        clean: Field | None = None,
    ) -> None:
        super().__init__()
        _check_network(network)
        action = check_type("inverter.action", check_type("inverter", inverter, Inverter).action, FieldAction)
        self.network = network
        self.inverter = inverter
        self.times = _nodes(times)
        if equation is not None and not (isinstance(equation, SpectralEquation) and all(action.periodic)):
            raise ConfigurationError(
                f"equation: expected None, or a SpectralEquation and periodic fields, got {equation!r} for axes whose "
                f"periodicity is {list(action.periodic)}"
            )
        self._equation = equation
        if clean is not None:
            action.check_data(check_type("clean", clean, Field), "clean")
        self._frame = None if clean is None else TrainingFrame(clean.grid, clean.counts, self.times)
        self.report = ""
        known = next(network.parameters(), None) if isinstance(network, nn.Module) else None
        self._dtype = None if known is None else known.dtype

    @classmethod
    def from_equation(
        cls,
        equation: Any,
        network: Callable[..., Tensor],
        clean: Field | Tensor,
        times: Sequence[float],
        *,
        box: Sequence[tuple[float, float]] | None = None,
        periodic: bool | Sequence[bool] = True,
        parameters: Mapping[str, float] | None = None,
        inverter: Callable[[FieldAction, Field], Inverter] | None = None,
    ) -> EquivariantOperator:
        """An operator that is equivariant to the symmetries found for an equation, as far as fields can follow them.

        Symmetries that do not carry grids to grids, or do not keep fields periodic, are left out; `report` says which,
        how much is known of all symmetries, and how transformations are found.

        ```python
        operator = EquivariantOperator.from_equation("u_t + u^2*u_x + u_xxx = 0", fno, clean, times=[1.0])
        print(operator.report)
        solution = operator(initial, initial.grid.at([2.0]))
        ```

        Args:
            equation: text, SymPy equations, or an `trivgeo.pde.EvolutionEquation`, of first order in ``t``, whose
                coefficients depend on neither place nor time. Unknowns of fields are in alphabetical order.
            network: the solution operator of the training domain, see `EquivariantOperator`.
            clean: initial fields of the training set, which share their grid; or their values ``[m, c, *n]``.
            times: times at which the network returns solutions, see `EquivariantOperator`.
            box: for values, the range (low, high) of each x.
            periodic: whether fields are periodic; one for all axes, or one for each.
            parameters: a number for each parameter of the equation.
            inverter: makes the inverter from the action and the clean fields, such as a fit of a `LearnedInverter`;
                default: none where the box of a field determines its transformation, else `Newton` from a few starts
                with a `FieldSpectrum` of the clean fields, `FieldComponents` where they are not periodic.

        Raises:
            ConfigurationError: the equation has no symmetries that fields can follow, or as for
                `trivgeo.pde.SpectralEquation.from_equation` and `EquivariantOperator`.
            ShapeError: the fields have another number of unknowns or axes than the equation, or there is but one.
            DomainError: as for `EquivariantOperator`.
        """
        _check_network(network)
        nodes = _nodes(times)
        fields = clean_fields(clean, box, periodic)
        axes = [periodic] * len(fields.counts) if isinstance(periodic, bool) else list(periodic)
        frame = TrainingFrame(fields.grid, fields.counts, nodes)
        found = symmetries_of(equation, dict(parameters or {}), axes, fields.values.shape[1])
        if inverter is None:
            search, words = search_for(found, fields, frame)
        else:
            search, words = inverter(found.action, fields), "search: as given"
        operator = cls(network, search, nodes, equation=found.equation, clean=fields)
        between = "by cubics in time" if found.equation is None else "by the equation"
        operator.report = "\n".join([*found.lines, words, f"times of the network: {nodes}, between them {between}"])
        return operator

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
            ShapeError: the field has several times, or other numbers of points than clean fields, or the network
                returns another shape.
            DomainError: a time of the grid is before the initial field, or later than the network reaches, or so far
                between its times that not even the equation tells what is there, or the box of a field is not one that
                the group takes to that of clean fields.
        """
        self._check_initial(initial)
        if self._frame is None:
            return self.predict(initial, self.inverter(initial, generator=generator).best(), grid, parameters)
        device = module_device(self.inverter)
        initial, grid = on_device(initial, device), on_device(grid, device)
        values = initial.values
        unit = self.action.group.identity(len(values), dtype=values.dtype, device=values.device)
        near = self._frame.settle(self.action, unit, initial.grid)
        found = self.inverter(initial, generator=generator, initial=near.unsqueeze(1)).best()
        last = None if grid is None else grid.times[..., -1].expand(len(initial.values)).to(found.device)
        g = self._frame.settle(self.action, found, on_device(initial.grid, found.device), last)
        return self.predict(initial, g, grid, parameters)

    def equivariance_error(
        self,
        initial: Field,
        num_elements: int = 50,
        *,
        law: Law | None = None,
        parameters: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> EquivarianceError:
        r"""Measure the distance of solutions of moved fields from the moved solutions, at the same points.

        .. math:: |\tilde f(h . u_0) - h . \tilde f(u_0)| \,/\, |h . \tilde f(u_0)|

        Norms are of the values; solutions are compared where those of the given fields come out, moved by h.

        Args:
            initial: see `forward`.
            num_elements: see `TestTimeEquivariant.equivariance_error`, like ``law``.
            parameters: see `forward`; a row for each field, or the same for all.
            generator: of elements and inverter.

        Raises:
            ShapeError: see `forward`.
            DomainError: no element is defined on any field and its solution; or see `forward`.
        """
        self._check_initial(initial)
        initial = on_device(initial, module_device(self.inverter))
        h, valid = moving_elements(self.action, initial, num_elements, law, generator)
        solved = self(initial, parameters=parameters, generator=generator)
        valid = valid & self.action.is_valid(h, solved)
        if not bool(valid.any()):
            raise DomainError(f"law: expected elements that are defined on some solution, got none of {num_elements}")
        fields, expected = (
            Field(y.values.flatten(0, 1), Grid(*(leaf.flatten(0, 1) for leaf in y.grid)))
            for y in (self.action(h, initial), self.action(h, solved))
        )
        if parameters is not None and parameters.shape[:1] == valid.shape[1:]:
            parameters = parameters.expand(num_elements, *parameters.shape).flatten(0, 1)
        found = self(fields, expected.grid, parameters, generator=generator)
        return EquivarianceError.of(found.values, expected.values, valid)

    def predict(self, initial: Field, g: Tensor, grid: Grid | None = None, parameters: Tensor | None = None) -> Field:
        """Return the solution for known transformations, without a search.

        Args:
            initial: initial fields, see `forward`.
            grid: points and times of the solution, see `forward`; where g moves times of the network past infinity,
                predictions are NaN without it, and a warning counts the fields.
            parameters: parameters of the equation for each field, see `forward`.
            g: transformations that moved the initial fields, ``[b, *element_shape]``.

        Returns:
            The solution fields, see `forward`.

        Raises:
            ShapeError: as for `forward`.
            DomainError: as for `forward`.
        """
        self._check_initial(initial)
        initial, grid = on_device(initial, g.device), on_device(grid, g.device)
        start = self.action(self.action.group.inverse(g), initial)
        after = torch.tensor(self.times, dtype=g.dtype, device=g.device)
        later = start.grid.at(start.grid.times + after)
        if grid is not None:
            still = start.values.repeat_interleave(len(self.times), 2)
            self._check_times(initial.grid.times, self.action(g, Field(still, later)).grid.times, grid.times)
        solved = self._solved(start.values.squeeze(2), parameters)
        if grid is not None and self._equation is not None:
            return self._between(self._equation, g, start, solved, grid)
        moved = self.action(g, Field(solved, later))
        return self._ahead(initial, moved) if grid is None else self._at(initial, moved, grid)

    def _check_initial(self, initial: Field) -> None:
        self.action.check_data(initial, "initial")
        if initial.values.shape[2] != 1:
            raise ShapeError(f"initial: expected fields at one time, got {initial.values.shape[2]} times")
        if self._frame is not None and initial.counts != self._frame.counts:
            raise ShapeError(
                f"initial: expected fields of {list(self._frame.counts)} points, as clean ones have, got "
                f"{list(initial.counts)}"
            )

    def _check_times(self, first: Tensor, reached: Tensor, wanted: Tensor) -> None:
        """Raise `DomainError` if a time is wanted that the solution is not known at."""
        start, last = torch.broadcast_tensors(first[..., :1], reached[..., -1:])
        if self._equation is not None:
            # g takes the last time of the network past infinity: all later times are between the network's
            last = torch.where(last < start, torch.inf, last)
        span = last - start
        # where g has no time these are NaN, which is in no order
        before = _MAX_BEFORE * torch.where(span.isinf(), 1.0, span)
        outside = ((wanted < start - before) | (wanted > last + _MAX_BEYOND * span)).any(-1)
        if bool(outside.any()):
            row = int(outside.nonzero()[0, 0])
            times = [round(t, 6) for t in wanted.expand(len(outside), -1)[row].tolist()]
            later = bool((wanted > last + _MAX_BEYOND * span).any())
            raise DomainError(
                f"grid: expected times from {float(start[row, 0]):.6g} to {float(last[row, 0]):.6g}, where the "
                f"network's times {self.times} are moved, for field {row}, got {times}; {int(outside.sum())} of "
                f"{len(outside)} fields are so{': a network for later times reaches more' if later else ''}"
            )

    @staticmethod
    def _ahead(initial: Field, moved: Field) -> Field:
        """Predictions, NaN for fields whose times g moves past infinity, to before the initial field."""
        first = initial.grid.times.expand(len(moved.values), -1)
        past = ~(torch.cat([first, moved.grid.times], -1).diff(dim=-1) > 0).all(-1)
        if not bool(past.any()):
            return moved
        words = (
            f"g: expected times after the initial field, got times past infinity for {int(past.sum())} of {len(past)}"
        )
        warnings.warn(
            f"{words} fields, whose predictions are NaN: a grid with times finds them", RuntimeWarning, stacklevel=3
        )
        shape = (-1, *[1] * (moved.values.ndim - 1))
        return moved._replace(values=torch.where(past.reshape(shape), torch.nan, moved.values))

    def _at(self, initial: Field, moved: Field, grid: Grid) -> Field:
        """The solution at the points of a grid, from the initial field and the predictions."""
        batch = moved.values.shape[:1]
        origin, steps = initial.grid.origin.expand(*batch, -1, -1), initial.grid.steps.expand(*batch, -1, -1, -1)
        block = Field(
            torch.cat([initial.values.expand(*batch, *initial.values.shape[1:]), moved.values], 2),
            Grid(torch.cat([origin, moved.grid.origin], -2), torch.cat([steps, moved.grid.steps], -3)),
        )
        return resample(block, grid, self.action.periodic, extrapolated=_MAX_BEYOND)

    def _between(self, equation: SpectralEquation, g: Tensor, start: Field, solved: Tensor, grid: Grid) -> Field:
        """The solution at the points of a grid, from predictions in the network's frame and the equation."""
        batch, times = len(start.values), grid.times.expand(len(start.values), -1)
        place = self.action(self.action.group.inverse(g), self._blank(start, grid, batch)).grid.times
        elapsed = place - start.grid.times
        values = torch.cat([start.values, solved], 2)
        steps, nodes = start.grid.steps[..., 0, :, :], [0.0, *self.times]
        self._check_between(interpolation_error(equation, values, steps, nodes, elapsed), times)
        values = interpolate_solution(equation, values, steps, nodes, elapsed)
        moved = self.action(g, Field(values, start.grid.at(place)))
        # there and back the times are those that are wanted up to rounding
        origin = torch.cat([moved.grid.origin[..., :-1], times.unsqueeze(-1)], -1)
        return resample(Field(moved.values, Grid(origin, moved.grid.steps)), grid, self.action.periodic)

    def _check_between(self, error: Tensor, times: Tensor) -> None:
        """Raise `DomainError` if a time is wanted that is too far from those that the network predicts."""
        outside = (error > _MAX_OFF_BETWEEN).any(-1)
        if bool(outside.any()):
            row = int(outside.nonzero()[0, 0])
            place = int(error[row].argmax())
            raise DomainError(
                f"grid: expected times near the network's {self.times}, where they are moved, got "
                f"{float(times[row, place]):.6g} for field {row}, where the equation leads to a relative error of "
                f"about {float(error[row, place]):.2g}; {int(outside.sum())} of {len(outside)} fields are so: a "
                "network for more times reaches between"
            )

    @staticmethod
    def _blank(start: Field, grid: Grid, batch: int) -> Field:
        """Zeros on a grid."""
        times = grid.times.shape[-1]
        shape = (batch, start.values.shape[1], times, *start.counts)
        leaves = (leaf.expand(batch, *leaf.shape[-event:]) for leaf, event in zip(grid, (2, 3), strict=True))
        return Field(start.values.new_zeros(shape), Grid(*leaves))

    def _solved(self, values: Float[Tensor, "b c ..."], parameters: Tensor | None) -> Float[Tensor, "b c s ..."]:
        """Return the predictions of the network, which computes in its own dtype."""
        given = values if self._dtype is None else values.to(self._dtype)
        out = self.network(given) if parameters is None else self.network(given, parameters)
        if not isinstance(out, Tensor) or not out.is_floating_point():
            kind = out.dtype if isinstance(out, Tensor) else type(out).__name__
            raise ConfigurationError(f"network: expected a floating-point tensor of predictions, got {kind}")
        if len(self.times) == 1 and out.shape == values.shape:
            out = out.unsqueeze(2)
        wanted = (*values.shape[:2], len(self.times), *values.shape[2:])
        if out.shape != wanted:
            raise ShapeError(f"network: expected predictions {list(wanted)}, got {list(out.shape)}")
        lost = ~torch.isfinite(out).flatten(1).all(1)
        if bool(lost.any()):
            words = (
                f"network: expected finite predictions, got NaN or infinity for {int(lost.sum())} of {len(out)} fields"
            )
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        return out.to(values.dtype)


def _check_network(network: object) -> None:
    if not callable(network):
        raise ConfigurationError(f"network: expected a function of values [b, c, *n], got {network!r}")


def _nodes(times: Sequence[float]) -> list[float]:
    """Times of predictions, as numbers that increase from above zero."""
    nodes = [float(t) for t in times]
    if not nodes or not nodes[0] > 0 or nodes != sorted(set(nodes)):
        raise ConfigurationError(f"times: expected increasing ones above zero, got {nodes}")
    return nodes
