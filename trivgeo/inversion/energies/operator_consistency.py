"""The error of a solution operator as far as its own answers show it: an energy without training data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._numerics import Constant, jvp
from trivgeo.actions import Field, FieldAction, OperatorAction, OperatorInput
from trivgeo.checks import check_count, check_type, checked
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.expressions import exact
from trivgeo.groups import Action
from trivgeo.inversion.energies.least_squares import LeastSquares
from trivgeo.inversion.rows import farthest_first
from trivgeo.pde import SpectralEquation
from trivgeo.pde.evolution import EvolutionEquation, JetFunction, check_parameters
from trivgeo.pde.interpolation import resolved_residual
from trivgeo.pde.losses import ConservedQuantities
from trivgeo.pde.predictions import deviation, mean_field, predicted, prediction_error, prediction_times
from trivgeo.pde.solver import converged_solution
from trivgeo.sde.resampling import take_rows
from trivgeo.symmetry import conservation_laws

_NUM_INITIAL_POINTS = 40  # points of an initial condition at which the misfit is taken
_NUM_QUERY_POINTS = 64  # query points at which the equation's residual is taken
_PERCENT_SQUARED = 1e-4  # squared relative error of a hundredth
_TOO_LONG = 0.01  # relative error of a rule of integration from which on a step of time is too long to be checked
_SOLVED = 1e-3  # change of a numerical solution by half the steps in time, relative to its size, that is small enough
_TIME_ROUNDING = 1e-6  # relative rounding of sums of times
_LAW_ORDER_AND_DEGREE = (1, 2)  # of the multipliers of conservation laws: those of high order are as noisy as slopes


@checked
class OperatorConsistency(LeastSquares):
    r"""Contradictions between the answers of a solution operator: an energy that estimates its error.

    .. math:: E = \frac{\epsilon^2}{2} \sum_i \log\bigl(1 + r_i^2 / \epsilon^2\bigr), \quad \epsilon = 0.01,
    .. math:: r_1^2 = \frac{\|f(u_0)(\cdot, t_0) - u_0\|^2}{\|u_0\|^2} + \frac{\|(t_0 - t)_+\|^2}{T^2}, \quad
        r_2 = \frac{\tau \, \|\partial_t f(u_0) - F[f(u_0)]\|}{\|u_0\|}, \quad
        \frac{1}{\tau} = \frac{\|\partial_t f(u_0)(\cdot, t_0)\|}{\|u_0\|} + \frac{1}{T}

    With the ``box`` of the operator's training points there is a third term, the root mean square distance of query
    points to the box, and those of the ends of the initial condition to its ends, in units of its edges.

    Norms are root mean squares over points: of the initial condition where the time is :math:`t_0`, else of the query
    points, which span the time T. The first term asks the operator for the initial condition that it was given, and for
    no time before the start; the second whether its answer solves the equation :math:`u_t = F[u]`, in units of the time
    :math:`\tau` in which the solution changes at first. Derivatives of a network may be far off where its values are
    right, and no data tell by how much; so a term beyond one percent counts by its logarithm, and the energy is low
    where both are low for this operator. It needs no data of the operator's training.

    **Networks that step.** With ``times`` the operator is a network such as a Fourier neural operator, from the values
    of a periodic `Field` to the values a time later, without query points. The terms are then what such a network can
    contradict:

    - for each conservation law of the equation with a periodic density T (`conservation_laws`) the change of the
      integral of T, relative to the root mean square of T less its value for the constant field of the same mean;
    - the equation between adjacent times, see `trivgeo.pde.interpolation.resolved_residual`, relative to the deviation
      of the field from its mean, which hardly counts where the step is too long to tell;
    - where two of the times add to a third one, the difference of two steps to one. The second step starts from an
      answer, on which many networks were not trained: `relative_error` leaves this term out where there are others.

    A constant that a moving frame adds to the field does not make it larger, so that no frame is preferred since its
    contradictions are small beside the field. The ``box`` then has the ranges of x alone.

    An operator that is wrong but agrees with itself has a low energy, too: one that returns the given field for all
    times, without an ``equation`` or over a step that is too long; or one that continues solutions well beyond its
    training domain, where the energy finds some transformation with a small error, not the one with the smallest. The
    ``box`` keeps it there, and `measured_error` tells the error of a network that steps.

    Args:
        operator: the network as a function from an `OperatorInput` to its answers at the query points, as jets
            (x, t, u) ``[*batch, q, d + 1 + c]``, such as the ``network`` of `TestTimeEquivariant`. It must be
            differentiable by the query points, in forward mode, as often as the equation demands. With ``times`` a
            function of values, see `trivgeo.inversion.EquivariantOperator`.
        equation: text or `trivgeo.pde.EvolutionEquation` of first order in t, whose unknowns and variables of space
            are, in alphabetical order, those of the jets; ``None`` leaves the second term out, which is many times as
            fast, and enough where the given points hold the whole initial condition and its time scale.
        parameters: numbers for the parameters, see `trivgeo.inversion.EquivariantOperator.from_equation`.
        num_points: numbers of points of the initial condition, and of query points, at which the terms are taken:
            evenly spread ones of those given.
        box: the range (low, high) of each x, and that of t, on which the operator was trained, where initial conditions
            fill the range of x; ``None`` where it is not known.
        times: for a network that steps, the times of its predictions, counted from the initial field; the data are
            then fields at one time.

    Raises:
        ConfigurationError: the operator is no function, or the equation is not of first order in t, or a parameter has
            no number, or times do not increase from above zero, or a network that steps has nothing to contradict: no
            equation, and no two times that add to a third; or (when run) the action is not one on such data.
        DomainError: a range of the box is empty or infinite.
        ShapeError: (when run) the operator returns other shapes, or the data have other coordinates than the equation.

    Example:
        >>> def decay(x):  # the solution of u_t = -u at every point
        ...     u = x.initial[..., :1, 2:] * torch.exp(x.initial[..., :1, 1:2] - x.query[..., 1:])
        ...     return torch.cat([x.query, u], -1)
        >>> grid = torch.cartesian_prod(torch.linspace(0, 1, 5), torch.linspace(0, 2, 5))[None]
        >>> x = OperatorInput(torch.tensor([[[0.0, 0.0, 3.0], [1.0, 0.0, 3.0]]]), grid)
        >>> OperatorConsistency(decay, "u_t = -u + 0*u_x")(x)
        tensor([0.])
    """

    def __init__(
        self,
        operator: Callable[[OperatorInput], Tensor],
        equation: Any = None,
        parameters: Mapping[str, float] | None = None,
        num_points: tuple[int, int] = (_NUM_INITIAL_POINTS, _NUM_QUERY_POINTS),
        box: Sequence[tuple[float, float]] | None = None,
        times: Sequence[float] | None = None,
    ) -> None:
        if not callable(operator):
            raise ConfigurationError(
                f"operator: expected a function of {'an OperatorInput' if times is None else 'values [b, c, *n]'}, "
                f"got {operator!r}"
            )
        numbers = tuple(check_count("num_points", number) for number in num_points)
        for low, high in box or ():
            if not -math.inf < low < high < math.inf:
                raise DomainError(f"box: expected finite ranges low < high, got {list(box or ())}")
        given = dict(parameters or {})
        terms: _Disagreement | _StepDisagreement
        if times is None:
            terms = _Disagreement(operator, equation, given, box, numbers[0])
        else:
            terms = _StepDisagreement(operator, equation, given, box, prediction_times(times))
        super().__init__(terms, _tempered)
        self._terms, self._num_trusted = terms, terms.num_trusted
        self._num_query_points = numbers[1]
        self._steps = times is not None

    def relative_error(self, x: OperatorInput | Field) -> Float[Tensor, " batch"]:
        r"""Return an estimate of the operator's relative error, :math:`(r_1^2 + r_2^2)^{1/2}`, with what a box adds.

        Of a network that steps it is what its answers contradict; `measured_error` tells the error itself.

        Args:
            x: problems, one batch dimension.
        """
        r = self.residuals(self._reduced(x))
        return r[:, : self._num_trusted].square().sum((-2, -1)).sqrt()

    def measured_error(self, x: Field) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """Return errors of a network that steps, beside numerical solutions; and estimates of the errors of these.

        The equation is solved from the very fields, see `trivgeo.pde.solver.converged_solution`, so that the length
        of a step does not matter; it costs more than `relative_error`. Both are errors of
        `trivgeo.pde.predictions.prediction_error`: that of an answer which is the mean of the given field is one.

        Args:
            x: fields at one time, one batch dimension.

        Raises:
            ConfigurationError: the operator is no network that steps, or there is no equation.
            ShapeError: the fields have several times.
        """
        if not isinstance(self._terms, _StepDisagreement):
            raise ConfigurationError("times: expected those of a network that steps, got None: nothing is solved")
        with torch.no_grad():
            return self._terms.measured_error(x)

    def prepare(self, action: Action, x: OperatorInput | Field) -> OperatorInput | Field:
        """Keep evenly spread query points.

        Raises:
            ConfigurationError: the action is not one on operator inputs, or on fields for a network that steps.
        """
        check_type("action", action, FieldAction if self._steps else OperatorAction)
        return self._reduced(x)

    def _reduced(self, x: OperatorInput | Field) -> OperatorInput | Field:
        if isinstance(x, Field):
            return x
        return OperatorInput(x.initial, spread_points(x.query, self._num_query_points))


def _tempered(squares: Float[Tensor, "*batch q"]) -> Float[Tensor, "*batch q"]:
    """Return squared errors, which count by their logarithm beyond one percent."""
    return _PERCENT_SQUARED * torch.log1p(squares / _PERCENT_SQUARED)


def _constant(box: Sequence[tuple[float, float]] | None) -> Constant | None:
    """Return ranges as a constant ``[n, 2]``."""
    return None if box is None else Constant(torch.tensor([list(ends) for ends in box], dtype=torch.float64))


def _evolution(equation: Any, parameters: Mapping[str, float]) -> tuple[EvolutionEquation, dict[Any, Any]]:
    """Return an equation as one of evolution, and exact numbers by the symbols of its parameters.

    Raises:
        ConfigurationError: the equation is not of first order in t, or a parameter has no number.
    """
    derived = equation if isinstance(equation, EvolutionEquation) else EvolutionEquation(equation)
    check_parameters(derived.parameters, parameters, derived.text)
    return derived, {s: exact(parameters[s.name], s.name) for s in derived.system.parameters}


def _stacked(terms: Sequence[Float[Tensor, "batch k"]]) -> Float[Tensor, "batch terms n"]:
    """Return terms of several lengths, with zeros behind."""
    length = max(term.shape[-1] for term in terms)
    return torch.stack([nn.functional.pad(term, (0, length - term.shape[-1])) for term in terms], -2)


class _StepDisagreement(nn.Module):
    """The residuals of `OperatorConsistency` for a network that steps."""

    def __init__(
        self,
        operator: Callable[..., Tensor],
        equation: Any,
        parameters: dict[str, float],
        box: Sequence[tuple[float, float]] | None,
        times: list[float],
    ) -> None:
        super().__init__()
        self.operator, self.times = operator, times
        self._box = _constant(box)
        self._sums = [
            (i, j, k)
            for i, first in enumerate(times)
            for j, second in enumerate(times)
            for k, both in enumerate(times)
            if i <= j and math.isclose(first + second, both, rel_tol=_TIME_ROUNDING)
        ]
        self._equation: SpectralEquation | None = None
        self._kept: list[ConservedQuantities] = []
        if equation is None:
            if not self._sums:
                raise ConfigurationError(
                    "equation: expected the equation of a network that steps, or times of which two add to a third: "
                    f"the network has nothing else to contradict, got None and times {times}"
                )
        else:
            derived, values = _evolution(equation, parameters)
            self._equation = SpectralEquation.from_equation(derived, **parameters)
            residuals = [residual.subs(values) for residual in derived.residuals]
            laws = conservation_laws(residuals, *_LAW_ORDER_AND_DEGREE, time="t")
            self._kept = [ConservedQuantities([law]) for law in laws if law.is_periodic]

    @property
    def num_trusted(self) -> int:
        """Number of terms that estimate the error of the first step: all but those of the second."""
        return len(self._kept) + (self._equation is not None) + (self._box is not None) or len(self._sums)

    def forward(self, x: Field) -> Float[Tensor, "batch terms n"]:
        """Return the residuals of a batch of fields whose squares add to those of the terms, with zeros behind."""
        dims, given = len(x.counts), self._given(x)
        answers = predicted(self.operator, given, len(self.times))
        block = torch.cat([x.values, answers], 2)
        start = x.grid.times[..., :1]
        after = torch.tensor([0.0, *self.times], dtype=start.dtype, device=start.device)
        constant = mean_field(x.values)
        terms = []
        for quantities in self._kept:
            densities = quantities.densities(Field(block, x.grid.at(start + after))).squeeze(1)  # [b, s + 1, *n]
            least = quantities.densities(Field(constant, x.grid))
            mean, size = densities.flatten(2).mean(-1), deviation(densities[:, None, :1], least).flatten(1)
            terms.append((mean[:, 1:] - mean[:, :1]) / size / len(self.times) ** 0.5)
        size = deviation(x.values, constant)[..., *[None] * dims]
        if self._equation is not None:
            steps = x.grid.steps[..., 0, :, :].expand(len(given), -1, -1)
            nodes = [0.0, *self.times]
            terms.append(_mean_square(resolved_residual(self._equation, block, steps, nodes, _TOO_LONG) / size))
        if self._box is not None:
            terms.append(self._outside(x))
        for i, j, k in self._sums:
            twice = predicted(self.operator, answers[:, :, i], len(self.times))[:, :, j]
            terms.append(_mean_square((twice - answers[:, :, k]) / size.squeeze(2)))
        return _stacked(terms)

    def measured_error(self, x: Field) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """Return errors beside numerical solutions, and estimates of the errors of these."""
        if self._equation is None:
            raise ConfigurationError("equation: expected the equation that is solved, got None")
        given = self._given(x)
        solution, doubt = converged_solution(self._equation, x, self.times, _SOLVED)
        answers = predicted(self.operator, given, len(self.times)).to(solution)
        return prediction_error(answers, solution, given.to(solution)), doubt

    @staticmethod
    def _given(x: Field) -> Float[Tensor, "batch c ..."]:
        """Return the values of fields, which are at one time."""
        if check_type("x", x, Field).values.shape[2] != 1:
            raise ShapeError(f"x: expected fields at one time, got {x.values.shape[2]} times")
        return x.values.squeeze(2)

    def _outside(self, x: Field) -> Float[Tensor, "batch k"]:
        """Return how far the box of fields is from the training box, in units of its edges."""
        assert self._box is not None
        low, high = self._box.matching(x.values).unbind(-1)
        dims = len(x.counts)
        if len(low) != dims:
            raise ShapeError(f"x: expected fields over {len(low)} coordinates, of which the box has ranges, got {dims}")
        counts = torch.tensor(x.counts).to(low).unsqueeze(-1)
        edges = counts * x.grid.steps[..., 0, :, :] - (high - low).diag()
        off = torch.cat([(x.grid.origin[..., 0, :dims] - low).unsqueeze(-2), edges], -2) / (high - low)
        return off.flatten(-2).expand(len(x.values), -1)


def _mean_square(residuals: Float[Tensor, "batch c ..."]) -> Float[Tensor, "batch k"]:
    """Return numbers whose squares add to the mean square of residuals."""
    flat = residuals.flatten(1)
    return flat / flat.shape[-1] ** 0.5


class _Disagreement(nn.Module):
    """The residuals of `OperatorConsistency`."""

    num_trusted: int | None = None  # all terms

    def __init__(
        self,
        operator: Callable[..., Tensor],
        equation: Any,
        parameters: dict[str, float],
        box: Sequence[tuple[float, float]] | None,
        number: int,
    ) -> None:
        super().__init__()
        self.operator, self.number = operator, number
        self._box = _constant(box)
        self.equation: EvolutionEquation | None = None
        if equation is not None:
            self.equation, values = _evolution(equation, parameters)
            system = self.equation.system
            time = tuple(int(v.name == "t") for v in system.variables)
            self._residual = JetFunction(
                [system.jet(a, time) - right.subs(values) for a, right in enumerate(system.right)], system
            )
            jets = {e for a in range(len(system.unknowns)) for e in system.jets_in(self._residual.expressions[a])}
            # coordinates of points have t last
            place = [system.variables.index(v) for v in self._coordinates]
            self._jets = [(symbol.name, a, tuple(index[i] for i in place)) for symbol, a, index in jets]

    @property
    def _coordinates(self) -> list[Any]:
        """The variables of the equation, t last."""
        assert self.equation is not None
        return sorted(self.equation.system.variables, key=lambda v: v.name == "t")

    def forward(self, x: OperatorInput) -> Float[Tensor, "batch terms n"]:
        """Return the residuals of a batch of problems whose squares add to those of the terms, with zeros behind."""
        n = check_type("x", x, OperatorInput).query.shape[-1]
        if self.equation is not None:
            expected = (len(self._coordinates), len(self.equation.unknowns))
            if (n, x.initial.shape[-1] - n) != expected:
                raise ShapeError(
                    f"x: expected {expected[0]} coordinates and {expected[1]} unknowns for {self.equation}, got "
                    f"{n} and {x.initial.shape[-1] - n}"
                )
        stride = -(-x.initial.shape[-2] // self.number)
        place, given = x.initial[..., ::stride, :n], x.initial[..., n:]
        size = given.square().mean(-2, keepdim=True).sqrt()  # of each unknown
        start = x.initial[..., n - 1].mean(-1, keepdim=True)
        ahead = x.query[..., n - 1] - start
        span = (ahead.amax(-1) - ahead.amin(-1))[..., None, None]

        def answers(points: Tensor) -> Float[Tensor, "batch p c"]:
            jets = self.operator(OperatorInput(x.initial, points))
            if jets.shape != (*points.shape[:-1], x.initial.shape[-1]):
                raise ShapeError(
                    f"operator: expected jets {[*points.shape[:-1], x.initial.shape[-1]]}, got {list(jets.shape)}"
                )
            return jets[..., n:]

        before = (-ahead).clamp(min=0.0) / span.squeeze(-1) / ahead.shape[-1] ** 0.5
        if self.equation is None:
            at_start, residuals = answers(place), []
        else:
            forward = torch.zeros_like(place)
            forward[..., -1] = 1.0
            at_start, slope = jvp(answers, (place,), (forward,))
            unit_time = 1.0 / (slope.square().mean(-2, keepdim=True).sqrt() / size + 1.0 / span)
            r = self._residuals(answers, x.query)
            residuals = [(r * unit_time / size).flatten(-2) / r.shape[-2] ** 0.5]
        misfit = ((at_start - given[..., ::stride, :]) / size).flatten(-2) / place.shape[-2] ** 0.5
        terms = [torch.cat([misfit, before], -1), *residuals, *self._outside(x)]
        return _stacked(terms)

    def _outside(self, x: OperatorInput) -> list[Float[Tensor, "batch k"]]:
        """Return how far points are from the training box, none without a box."""
        if self._box is None:
            return []
        low, high = self._box.matching(x.query).unbind(-1)
        n = x.query.shape[-1]
        if len(low) != n:
            raise ShapeError(f"x: expected points of {len(low)} coordinates, of which the box has ranges, got {n}")
        edges, place = high - low, x.initial[..., : n - 1]
        beyond = ((low - x.query).clamp(min=0.0) + (x.query - high).clamp(min=0.0)) / edges
        ends = torch.cat([place.amin(-2) - low[:-1], place.amax(-2) - high[:-1]], -1) / edges[:-1].repeat(2)
        return [torch.cat([beyond.flatten(-2) / x.query.shape[-2] ** 0.5, ends], -1)]

    def _residuals(self, answers: Callable[[Tensor], Tensor], points: Tensor) -> Float[Tensor, "batch q c"]:
        """Return u_t - F[u] of the answers at the points."""
        derivatives = partial_derivatives(answers, points, [index for _, _, index in self._jets])
        jet = {name: derivatives[index][..., a] for name, a, index in self._jets}
        jet |= {v.name: points[..., i] for i, v in enumerate(self._coordinates)}
        r = self._residual(jet)
        return r if len(self._residual.expressions) > 1 else r.unsqueeze(-1)


def partial_derivatives(
    function: Callable[[Float[Tensor, "*batch q n"]], Float[Tensor, "*batch q c"]],
    points: Float[Tensor, "*batch q n"],
    indices: Sequence[tuple[int, ...]],
) -> dict[tuple[int, ...], Float[Tensor, "*batch q c"]]:
    """Return partial derivatives of a function of points, each by its own point, in nested forward mode.

    Args:
        indices: orders of the derivative by each coordinate.
    """
    found: dict[tuple[int, ...], Tensor] = {}
    for index in sorted({*indices}, key=sum, reverse=True):
        if index not in found:
            axes = [axis for axis, order in enumerate(index) for _ in range(order)]
            partial = [0] * len(index)
            for axis, value in zip([None, *axes], _along(function, points, axes)(points), strict=True):
                if axis is not None:
                    partial[axis] += 1
                found[tuple(partial)] = value
    return found


def _along(
    function: Callable[[Tensor], Tensor], points: Tensor, axes: Sequence[int]
) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Return a function to its values, its derivatives by the first axis, by the first two, ..., by all."""
    if not axes:
        return lambda p: (function(p),)
    lower = _along(function, points, axes[:-1])
    direction = torch.zeros_like(points)
    direction[..., axes[-1]] = 1.0

    def with_next(p: Tensor) -> tuple[Tensor, ...]:
        values, slopes = jvp(lower, (p,), (direction,))
        return (*values, slopes[-1])

    return with_next


def spread_points(points: Float[Tensor, "*batch q n"], number: int) -> Float[Tensor, "*batch m n"]:
    """Return at most ``number`` of the points, each next one the farthest from those before, in units of their box."""
    if points.shape[-2] <= number:
        return points
    low, high = points.amin(-2, keepdim=True), points.amax(-2, keepdim=True)
    place = ((points - low) / (high - low).clamp(min=torch.finfo(points.dtype).tiny)).detach()
    place = place.reshape(-1, *place.shape[-2:])
    middle = (place - 0.5).square().sum(-1).argmin(-1, keepdim=True)
    index = farthest_first(place, torch.ones_like(place[..., 0], dtype=torch.bool), number, middle)
    return take_rows(points.reshape(place.shape), index).unflatten(0, points.shape[:-2])
