"""A trained neural operator on a grid, made equivariant to the point symmetries of its equation."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._autocast import matmul
from trivgeo._devices import module_device, on_device
from trivgeo._numerics import Constant, jvp_columns, log_abs_det
from trivgeo.actions import Field, FieldAction, Grid, resample
from trivgeo.checks import check_tensor, check_type, checked
from trivgeo.errors import AlgebraError, ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.expressions import exact
from trivgeo.groups import Action, from_generators
from trivgeo.inversion.energies import DataEnergy, FieldBox, FieldComponents, FieldSpectrum, OperatorConsistency
from trivgeo.inversion.equivariant.equivariant_model import EquivarianceError
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.result import InversionResult
from trivgeo.inversion.rows import where_rows
from trivgeo.inversion.stage import Population, Stage
from trivgeo.inversion.stages import AddNoise, Newton, Replicate
from trivgeo.inversion.transformations import Transformations, moving_elements
from trivgeo.pde import EvolutionEquation, SpectralEquation
from trivgeo.pde.interpolation import interpolate_solution, interpolation_error
from trivgeo.pde.predictions import predicted, prediction_times
from trivgeo.sde import GeometricSchedule
from trivgeo.sde.resampling import take_rows
from trivgeo.symmetry import find_symmetries
from trivgeo.verdict import Verdict

_BOX_STEPS = 10  # Gauss-Newton steps for the box, which converge quadratically near the end
_TIME_STEPS = 5  # steps that follow where times are wanted
_STEP_FRACTIONS = (1.0, 0.3, 0.1, 0.02)  # fractions of a step, tried in turn until the distance falls
_MIN_SINGULAR_VALUE = 1e-8  # singular value, in units of the largest, below which it counts as zero
_MAX_ROUNDING_UNITS = 100.0  # units of rounding below which a difference counts as zero
_MAX_BOX_ERROR = 1e-3  # error relative to the edges of the box, beyond which no transformation leads there
_LANDING_REACH = 0.15  # share of the time from the first to the last node within which a node is landed on

_MIN_POINTS = 8  # points along each axis of a box that stands for any field on it
_MIN_CLEAN = 4  # fields of a training set below which their energies say nothing of others
_MARGIN = 1.5  # factor by which an energy may lie beyond those of clean fields
_WORSE = 1.01  # factor by which an energy is further from those of clean fields than another one, rounding apart

_NUM_STARTS = 4  # starts of Newton's method
_NEWTON_STEPS = 12
_START_NOISE = GeometricSchedule(0.05, 0.3)  # noise by which the starts differ
_PROBE_SIZE = 0.1  # size of the elements by which volumes of values are compared
_NUM_SAID_DIGITS = 7  # of lengths in messages
_MIN_UNIT_POWER = 2  # smallest power of ten by which a basis is scaled
_MIN_LOG_VOLUME = 1e-8  # logarithm of a volume below which it is rounding

_MAX_TIME_BEFORE = 1e-6  # share of the same time before the initial field, which is rounding
_MAX_INTERPOLATION_ERROR = 0.1  # estimated relative error of a solution between times of the network
_MAX_EXTRAPOLATION = 0.05  # share of the time from the initial field to the last prediction that is extrapolated


_MAX_OWN_ERROR = 0.05  # error of a network beside a numerical solution, relative to its deviation from the mean
_NUM_DRAWS = 64  # elements drawn in one round, in directions that keep the box
_NUM_ROUNDS = 3
_NUM_KEPT = 2  # elements of lowest energy from which Newton's method starts
_CONSISTENT_STEPS = 6  # of Newton's method, after draws that end near a minimum
_DRAW_SCALES = (-2.0, 0.5)  # decimal logarithms of the scales of draws, in units of the size of the field
_UNIT_STEP = 1e-3  # step by which the size of a direction is measured

_SOLVED = "the field obeys the equation, and a numerical solution is as exact as half its steps and short waves show"
_LIKE_TRAINING = "the network is right on fields with energies like those of clean ones"
_FEW_CLEAN = "fields are like the clean ones, which are too few to tell"


class TrainingFrame:
    r"""The box of a training set at its first time, and the times of a network's predictions.

    `settle` corrects transformations so that :math:`g^{-1}` takes the box of a field to that of the training set. The
    freedom that is left takes the last time that is wanted to one that the network predicts. Both are found by
    Gauss and Newton's steps of least length in the group's basis.

    Args:
        grid: grid of the training set at one time, shared by all fields or of one of them.
        counts: numbers of points along the axes.
        times: times of predictions, counted from the initial field.

    Raises:
        DomainError: the fields have different grids.
    """

    def __init__(self, grid: Grid, counts: torch.Size, times: list[float]) -> None:
        corners = _corners(grid, counts).flatten(0, -3) if grid.origin.ndim > 2 else _corners(grid, counts)[None]
        if not bool((corners == corners[:1]).all()):
            raise DomainError("clean: expected fields that share their grid, got several grids")
        self.counts, self.times = counts, times
        self._corners = Constant(corners[0])
        edges = corners[0, 1:] - corners[0, :1]
        sizes = edges.new_tensor([*[float(edges.norm(dim=-1).max())] * (edges.shape[-1] - 1), times[-1]])
        self._sizes = Constant(sizes)

    def with_counts(self, counts: torch.Size) -> TrainingFrame:
        """Return the same frame for fields with other numbers of points."""
        other = copy.copy(self)
        other.counts = counts
        return other

    def in_units(self, action: FieldAction) -> FieldAction:
        """Return the action in another basis, in which a unit moves the box and the last time by about their size.

        Shifts by one are no unit of coordinates in nanometres. Vectors within a factor of a hundred of that stay.
        """
        corners = self._corners.matching(torch.empty(0, dtype=torch.float64))
        later = torch.cat([corners[:, :-1], corners[:, -1:] + self.times[-1]], -1)
        places, zero = torch.cat([corners, later]), corners.new_zeros(action.group.dim)

        def moved(v: Tensor) -> Tensor:
            return (action.point_action(action.group.exp(v), places) / self._sizes.matching(places)).flatten(-2)

        powers = -jvp_columns(moved, zero).abs().amax(-2).log10().round()
        kept = (powers.abs() < _MIN_UNIT_POWER) | ~torch.isfinite(powers)
        if bool(kept.all()):
            return action
        return action.with_scale(torch.where(kept, 1.0, 10.0**powers))

    def free_directions(self, action: FieldAction) -> Float[Tensor, "k n"]:
        """Return a basis of the algebra vectors of ``action`` that keep the box in place, to first order.

        Where there are none, the box of a field determines its transformation, up to isolated elements.
        """
        corners = self._corners.matching(torch.empty(0, dtype=torch.float64))[None]
        zero = torch.zeros(1, action.group.dim, dtype=torch.float64)
        jacobian = jvp_columns(lambda v: self._off(action, action.group.exp(v), corners), zero)[0]
        _, singular, right = torch.linalg.svd(jacobian)
        return right[int((singular > _MIN_SINGULAR_VALUE * singular.max()).sum()) :]

    def settle(self, action: FieldAction, g: Tensor, grid: Grid, last: Float[Tensor, " b"] | None = None) -> Tensor:
        """Return transformations that take boxes of fields to that of the training set.

        Args:
            last: the last time wanted for each field; ``None`` to leave times alone.

        Raises:
            DomainError: no transformation that was reached takes some box there; the message says which.
        """
        corners = _corners(grid, self.counts).expand(len(g), -1, -1)
        g = self.approach(action, g, grid)
        if last is not None:
            wanted = self._wanted(corners, last)
            for _ in range(_TIME_STEPS):
                if self._is_there(self._late(action, g, wanted)):
                    break
                g = self._step(action, g, corners, wanted)
        off = self._off(action, g, corners).abs().amax(-1)
        known = off <= _MAX_BOX_ERROR
        if not bool(known.all()):
            row = int((~known).nonzero()[0, 0])
            edges = (corners[row, 1:] - corners[row, :1])[:, :-1]
            target = self._corners.matching(corners)
            raise DomainError(
                f"initial: expected fields whose boxes the group maps to the training box, with edges "
                f"{_rounded((target[1:] - target[:1])[:, :-1])} from {_rounded(target[0])} on, got edges "
                f"{_rounded(edges)} from {_rounded(corners[row, 0])} on for field {row}; no element maps the boxes of "
                f"{int((~known).sum())} of {len(known)} fields"
            )
        return g

    def approach(self, action: FieldAction, g: Tensor, grid: Grid) -> Tensor:
        """Return transformations that take boxes of fields to that of the training set, or nearer, see `settle`."""
        corners = _corners(grid, self.counts).expand(len(g), -1, -1)
        for _ in range(_BOX_STEPS):
            if self._is_there(self._off(action, g, corners)):
                break
            g = self._step(action, g, corners, None)
        return g

    @staticmethod
    def _is_there(off: Tensor) -> bool:
        """Return whether differences are rounding, for all fields."""
        return bool((off.abs() <= _MAX_ROUNDING_UNITS * torch.finfo(off.dtype).eps).all())

    def _wanted(self, corners: Tensor, last: Tensor) -> Tensor:
        """Return the first corners at the last times, ``[b, 1, d + 1]``."""
        return torch.cat([corners[:, :1, :-1], last[:, None, None].to(corners)], -1)

    def _off(self, action: FieldAction, g: Tensor, corners: Tensor) -> Float[Tensor, "b m"]:
        """Return the differences of the corners, in units of the longest edge and of the last time."""
        target, sizes = self._corners.matching(corners), self._sizes.matching(corners)
        return ((action.point_action(action.group.inverse(g), corners) - target) / sizes).flatten(-2)

    def _late(self, action: FieldAction, g: Tensor, wanted: Tensor) -> Float[Tensor, "b 1"]:
        """Return the difference of the wanted time to the node that is to be landed on; zero where none is."""
        target = self._corners.matching(wanted)
        nodes = torch.tensor(self.times, dtype=wanted.dtype, device=wanted.device)
        elapsed = (action.point_action(action.group.inverse(g), wanted) - target[:1])[..., -1]  # [b, 1]
        near = nodes[(elapsed.detach() - nodes).abs().argmin(-1)].unsqueeze(-1)
        lands = ((elapsed - near).abs() <= _LANDING_REACH * nodes[-1]) | (elapsed > nodes[-1])
        return torch.where(lands, (elapsed - near) / nodes[-1], 0.0)

    def _step(self, action: FieldAction, g: Tensor, corners: Tensor, wanted: Tensor | None) -> Tensor:
        """Return elements after as much of a step as brings the box nearer, or keeps it there."""
        group = action.group
        zero = g.new_zeros(len(g), group.dim)

        def off(v: Tensor) -> Tensor:
            return self._off(action, group.compose(g, group.exp(v)), corners)

        before, jacobian = off(zero), jvp_columns(off, zero)
        usable = torch.isfinite(jacobian).all(-1).all(-1) & torch.isfinite(before).all(-1)
        jacobian = torch.where(usable[:, None, None], jacobian, 0.0)
        inverse = torch.linalg.pinv(jacobian, rtol=_rtol(jacobian))
        step = -matmul(inverse, torch.where(usable[:, None], before, 0.0).unsqueeze(-1)).squeeze(-1)
        if wanted is not None:
            step = step + self._landing(action, g, wanted, step, inverse, jacobian)
        shares = torch.tensor(_STEP_FRACTIONS, dtype=g.dtype, device=g.device)[:, None, None]
        moved = group.compose(g, group.exp(shares * step))  # [shares, b, *element_shape]
        error = self._off(action, moved, corners).norm(dim=-1)
        error = torch.where(torch.isfinite(error), error, torch.inf)
        # the whole step where it leads as near as rounding allows
        chosen = torch.where(error[0] <= 10 * _rtol(g), 0, error.argmin(0))
        least = error.gather(0, chosen[None])[0]
        better = (least < before.norm(dim=-1)) | (least <= 10 * _rtol(g))
        index, better = (x.reshape(-1, *[1] * (g.ndim - 1)) for x in (chosen, better))
        return torch.where(better, torch.take_along_dim(moved, index[None], 0)[0], g)

    def _landing(
        self, action: FieldAction, g: Tensor, wanted: Tensor, step: Tensor, inverse: Tensor, jacobian: Tensor
    ) -> Tensor:
        """Return the step for the time, in directions that keep the box in place."""
        group, zero = action.group, torch.zeros_like(step)

        def late(v: Tensor) -> Tensor:
            return self._late(action, group.compose(g, group.exp(v)), wanted)

        before, row = late(zero), jvp_columns(late, zero)
        free = row - matmul(matmul(row, inverse), jacobian)
        size = free.square().sum((-2, -1))[:, None]
        moves = (size > _MIN_SINGULAR_VALUE * row.square().sum((-2, -1))[:, None]) & torch.isfinite(size)
        ahead = before + matmul(row, step.unsqueeze(-1)).squeeze(-1)
        return torch.where(moves, -ahead * free.squeeze(-2) / torch.where(moves, size, 1.0), 0.0)


class TrainingValues:
    """Energies of the initial fields of a training set, which tell whether other fields are like them.

    The energy is a `FieldSpectrum` of periodic fields, `FieldComponents` of others. Each half of the fields is also
    judged by the energy of the other half, as fields are that the energy did not see.

    Args:
        clean: fields of the training set.
        periodic: whether fields are periodic along each axis.

    Attributes:
        lowest: least energy of a field that is like the clean ones: two thirds of the least of theirs.
        highest: largest one: one and a half times the largest of theirs; infinite for fewer than four fields.
    """

    def __init__(self, clean: Field, periodic: Sequence[bool]) -> None:
        number = len(clean.values)
        grid = Grid(*(leaf.double() for leaf in self._grid_of(clean.grid, number)))
        clean = Field(clean.values.double(), grid)
        spectral = all(periodic)

        def energy_of(rows: slice) -> FieldSpectrum | FieldComponents:
            some = self._rows(clean, rows)
            return FieldSpectrum(FieldBox(some.grid), some.values) if spectral else FieldComponents(some)

        self._energy = energy_of(slice(None))
        self.lowest, self.highest = 0.0, torch.inf
        if number >= _MIN_CLEAN:
            first, second = slice(0, None, 2), slice(1, None, 2)
            judged = [
                (self._energy, clean),
                *((energy_of(a), self._rows(clean, b)) for a, b in ((first, second), (second, first))),
            ]
            energies = torch.cat([energy(fields) for energy, fields in judged])
            self.lowest, self.highest = float(energies.min()) / _MARGIN, _MARGIN * float(energies.max())

    @staticmethod
    def _grid_of(grid: Grid, number: int) -> Grid:
        """Return the grid with a row for each of the fields."""
        leaves = ((grid.origin, 2), (grid.steps, 3))
        return Grid(*(leaf.expand(number, *leaf.shape[-event:]) for leaf, event in leaves))

    @staticmethod
    def _rows(fields: Field, rows: slice) -> Field:
        return Field(fields.values[rows], Grid(*(leaf[rows] for leaf in fields.grid)))

    def energies(self, fields: Field) -> Float[Tensor, " b"]:
        """Return the energies of fields, which are NaN where fields are."""
        return self._energy(Field(fields.values, self._grid_of(fields.grid, len(fields.values))))

    def outside(self, energies: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Return how far energies are from those of clean fields: a factor, above one for fields unlike them."""
        below = self.lowest / energies.clamp(min=torch.finfo(energies.dtype).tiny)
        return torch.maximum(energies / self.highest, below).nan_to_num(nan=torch.inf)


class OwnAnswers:
    """What a network's own answers tell of its error, where no clean fields are given.

    Args:
        energy: its `OperatorConsistency`.

    Attributes:
        highest: largest error of a field that the network is trusted on.
    """

    highest = _MAX_OWN_ERROR

    def __init__(self, energy: OperatorConsistency) -> None:
        self._energy = energy

    def energies(self, fields: Field) -> Float[Tensor, " b"]:
        """Return how far answers contradict each other, relative to the fields; NaN where fields are."""
        with torch.no_grad():
            return self._energy.relative_error(fields)

    def outside(self, energies: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Return contradictions in units of the largest error that is trusted."""
        return (energies / self.highest).nan_to_num(nan=torch.inf)

    def judged(self, fields: Field, energies: Float[Tensor, " b"]) -> tuple[Float[Tensor, " b"], list[Verdict]]:
        """Return the errors of answers beside numerical solutions, the given energies without these, and verdicts."""
        errors, doubts = self._energy.measured_error(fields)
        verdicts = [self._verdict(*row) for row in zip(errors.tolist(), doubts.tolist(), strict=True)]
        return torch.where(torch.isfinite(doubts), errors, energies), verdicts

    def _verdict(self, error: float, doubt: float) -> Verdict:
        """Return the verdict on an answer by its distance from a numerical solution, and the error of that."""
        if error + doubt <= self.highest:
            return Verdict((), (_SOLVED,))
        unit = "of the solution's deviation from the mean"
        if doubt < torch.inf and not error - doubt <= self.highest:
            said = f"the answer of the network differs from a numerical solution by {error:.2g} {unit}"
            return Verdict((f"{said}, expected at most {self.highest:g}",), (_SOLVED,))
        said = f"nothing checks the network: a numerical solution is itself unsure by {doubt:.2g} {unit}"
        return Verdict((f"{said}; take a finer grid, or a network of shorter steps",), (_SOLVED,))


def _corners(grid: Grid, counts: torch.Size) -> Float[Tensor, "*batch m n"]:
    """Return the first point and the ends of the axes (a period away) at the first time, ``[*batch, d + 1, d + 1]``."""
    origin, steps = grid.origin[..., :1, :], grid.steps[..., 0, :, :]
    edges = torch.tensor(counts).to(steps).unsqueeze(-1) * steps
    return torch.cat([origin, origin + torch.cat([edges, torch.zeros_like(edges[..., :1])], -1)], -2)


def _rtol(x: Tensor) -> float:
    return max(_MIN_SINGULAR_VALUE, 50 * torch.finfo(x.dtype).eps)


def _rounded(x: Tensor) -> list[object]:
    largest = x.double().abs().max().clamp(min=torch.finfo(torch.float64).tiny)
    unit = 10.0 ** (largest.log10().floor() - _NUM_SAID_DIGITS + 1)
    rounded: list[object] = ((x.double() / unit).round() * unit).tolist()
    return rounded


class OperatorSymmetries(NamedTuple):
    """The symmetries of an equation that fields on their grids can follow.

    Attributes:
        action: action of the group of those symmetries.
        equation: equation for interpolation in time; ``None`` where fields are not periodic.
        lines: lines of a report: the symmetries, and what is left out.
        is_affine: whether unknowns change affinely at each place and time.
    """

    action: FieldAction
    equation: SpectralEquation | None
    lines: list[str]
    is_affine: bool


def clean_fields(
    clean: Field | Tensor, box: Sequence[tuple[float, float]] | None, periodic: bool | Sequence[bool]
) -> Field:
    """Return the initial fields of a training set.

    Raises:
        ConfigurationError: values without a box, or a box beside fields, or neither fields nor values.
        ShapeError: fewer than two fields, or several times, or no batch dimension.
        NonFiniteError: the fields hold NaN or infinity.
    """
    if isinstance(clean, Field):
        if box is not None:
            raise ConfigurationError(f"box: expected None beside a Field, which has its grid, got {box}")
        fields = clean
    elif box is None:
        raise ConfigurationError("box: expected the range of each x for clean values without a grid, or a Field")
    else:
        fields = Field.on_box(check_tensor("clean", clean), box, periodic=periodic)
    dims = len(fields.counts)
    if fields.values.ndim != dims + 3 or len(fields.values) < 2 or fields.values.shape[2] != 1:
        raise ShapeError(
            f"clean: expected at least 2 fields [m, c, 1, *n] at one time, got {list(fields.values.shape)}"
        )
    leaves = (fields.values, *fields.grid)
    if not all(bool(torch.isfinite(leaf).all()) for leaf in leaves):
        raise NonFiniteError("clean: expected finite fields, got NaN or infinity")
    return fields


WALLS = ("neumann", "dirichlet", "open")
"""What is at the ends of an axis: the slope across vanishes, or the unknowns, or fields go on beyond the grid."""


def symmetries_of(
    equation: Any,
    parameters: Mapping[str, float],
    periodic: Sequence[bool],
    unknowns: int | None,
    walls: Sequence[str | None] | None = None,
) -> OperatorSymmetries:
    """Return the symmetries of an equation with numbers for its parameters, as far as fields can follow them.

    Args:
        equation: text, SymPy equations, or a `trivgeo.pde.EvolutionEquation`.
        parameters: a number for each parameter.
        periodic: see `TrainingValues`.
        unknowns: number of unknowns of the fields; ``None`` for that of the equation.
        walls: what is at the ends of each axis, see `WALLS`; ``None`` for walls of either kind. Default: no walls.

    Raises:
        ConfigurationError: as for `trivgeo.pde.SpectralEquation.from_equation`, or no symmetry is left.
        ShapeError: the equation has another number of variables of space or unknowns than the fields.
    """
    derived = equation if isinstance(equation, EvolutionEquation) else EvolutionEquation(equation)
    spectral = SpectralEquation.from_equation(derived, **parameters)
    space = [v for v in derived.system.variables if v.name != "t"]
    if unknowns is None and len(space) != len(periodic):
        raise ShapeError(f"box: expected {len(space)} ranges for {derived}, got {len(periodic)}")
    if (len(space), len(derived.unknowns)) != (len(periodic), unknowns or len(derived.unknowns)):
        raise ShapeError(
            f"clean: expected fields of {len(derived.unknowns)} unknowns {', '.join(derived.unknowns)} over "
            f"{len(space)} coordinates for {derived}, got {unknowns} over {len(periodic)}"
        )
    values = {s: exact(parameters[s.name], s.name) for s in derived.system.parameters}
    found = find_symmetries([residual.subs(values) for residual in derived.residuals])
    on_grids = found.on_grids(periodic)
    ends = zip(space, walls or ["open"] * len(space), strict=True)
    carried = found.between_walls(on_grids, {x: wall for x, wall in ends if wall != "open"})
    values_of = "".join(f", {name} = {value}" for name, value in parameters.items())
    lines = [
        f"The operator solves {derived}{values_of}. The channels of a field are {', '.join(derived.unknowns)}.",
        f"Symmetries of the equation that were found: {found.statement}.",
        f"A field that was moved by {'a combination of these' if len(carried) > 1 else 'this symmetry'} is moved back "
        "to where the network was trained:",
    ]
    lines += [f"used: {g}" + (f" ({g.in_words})" if g.in_words else "") for g in carried]
    used = {g.components for g in carried}
    why = "it bends the grid, or fields are not periodic any more" if any(periodic) else "it bends the grid"
    values_alone = "it reshapes values, and is one of infinitely many that no set of fields tells apart"
    followed = {g.components for g in on_grids}
    by_walls = "it moves the walls, or breaks the conditions there"

    def reason(g: Any) -> str:
        return by_walls if g.components in followed else values_alone if found.reshapes_values(g) else why

    left = [f"left out: {g}: {reason(g)}" for g in found if g.components not in used]
    if found.infinite_ideal is not None:
        left.append("left out: superposition, which is no finite group")
    if left:
        lines += ["A field that was moved by one of these is given to the network as it is:", *left]
    if not carried:
        raise ConfigurationError(f"equation: expected symmetries that fields on a grid can follow; {'; '.join(lines)}")
    order = [*space, *(v for v in derived.system.variables if v.name == "t"), *derived.system.unknowns]
    place = [carried[0].variables.index(z) for z in order]
    fields = {g.name: [g.components[i] for i in place] for g in carried}
    try:
        action = FieldAction(from_generators(fields, variables=order), periodic)
    except AlgebraError as error:
        raise ConfigurationError(
            f"equation: expected symmetries of a group, got {error}; {'; '.join(lines)}"
        ) from error
    pairs = list(itertools.product(derived.system.unknowns, repeat=2))
    bends = any(e.diff(v, w) != 0 for field in fields.values() for e in field for v, w in pairs)
    return OperatorSymmetries(action, spectral if all(periodic) else None, lines, not bends)


_NO_SEARCH = "no search: the box of a field determines how it was moved"


def search_by_answers(
    found: OperatorSymmetries, energy: OperatorConsistency, frame: TrainingFrame
) -> tuple[Inverter, str]:
    """Choose a search for the transformation with which a network's answers agree; return it, and a sentence."""
    free = frame.free_directions(found.action)
    if not len(free):
        return Inverter(found.action, energy, []), _NO_SEARCH
    words = (
        "search: the box of a field determines a part of its transformation; draws and Newton's method find the rest, "
        "with which the answers of the network contradict each other least (OperatorConsistency)"
    )
    return Inverter(found.action, energy, [_AlongBox(free, _NUM_KEPT), Newton(_CONSISTENT_STEPS)]), words


def search_for(found: OperatorSymmetries, clean: Field, frame: TrainingFrame) -> tuple[Inverter, str]:
    """Choose a search for the transformation that moved a field out of a set; return it, and a sentence about it."""
    action = found.action
    spectrum = all(action.periodic)
    values = FieldSpectrum(FieldBox(clean.grid), clean.values) if spectrum else FieldComponents(clean)
    energy: DataEnergy = values
    free = frame.free_directions(action)
    if not len(free):
        return Inverter(action, energy, []), _NO_SEARCH
    words = (
        "search: the box of a field determines a part of its transformation; Newton's method from "
        f"{_NUM_STARTS} starts finds the rest, which makes the field most like the clean ones ({type(energy).__name__})"
    )
    start = Field(clean.values[:1].double(), Grid(*(leaf[:1].double() for leaf in clean.grid)))
    density = FieldDensity(values, clean, found.is_affine)
    if bool((density.log_volume(action, action.group.exp(_PROBE_SIZE * free), start).abs() > _MIN_LOG_VOLUME).any()):
        energy = density
        words += "; as some symmetries scale values, the likeliest scale is that of clean fields"
    stages = [Replicate(_NUM_STARTS), AddNoise(_START_NOISE, 1), _OnBox(frame), Newton(_NEWTON_STEPS)]
    return Inverter(action, energy, stages), words


class _OnBox(Stage):
    """Corrects elements so that they take the boxes of fields to that of the training set."""

    def __init__(self, frame: TrainingFrame) -> None:
        self.frame = frame

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        action, k = posterior.action, population.size
        assert isinstance(action, FieldAction)
        grid = Grid(*(leaf.repeat_interleave(k, 0) for leaf in posterior.x.grid))
        frame = self.frame.with_counts(posterior.x.counts)
        near = frame.approach(action, population.elements.flatten(0, 1), grid)
        return population.moved(near.unflatten(0, (-1, k)))


class _AlongBox(Stage):
    """Draws elements in the directions that keep the box, and keeps those of lowest energy.

    A unit of a direction changes the values of a field by as much as their size: fields have any units, and the mean of
    a boosted field may be many times as large as what varies. Each round is about the best element of the one before.

    Args:
        free: basis of the directions, ``[k, dim]``.
        number: number of elements kept for each field.
    """

    def __init__(self, free: Float[Tensor, "k n"], number: int) -> None:
        self.free, self.number = Constant(free), number
        self.steps = _NUM_ROUNDS

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        action, group = posterior.action, posterior.group
        assert isinstance(action, FieldAction)
        kept = population.take(population.elements.new_zeros(posterior.batch, 1, dtype=torch.long)).evaluated(posterior)
        for _ in range(_NUM_ROUNDS):
            best = kept.elements[:, 0]
            free = self.free.matching(best)
            place = action(group.inverse(best), posterior.x)
            moved = torch.stack(
                [action(group.exp(-_UNIT_STEP * v).expand_as(best), place).values.flatten(1) for v in free], 1
            )
            values = place.values.flatten(1)
            rates = (moved - values.unsqueeze(1)) / _UNIT_STEP  # [b, k, values]
            known = torch.isfinite(rates).all(-1, keepdim=True)
            rates = torch.where(known, rates, 0.0)
            ratio = values.norm(dim=1, keepdim=True) / rates.norm(dim=-1)
            units = torch.where(torch.isfinite(ratio) & (ratio > 0), ratio, 1.0)  # [b, k]
            # the step that makes values smallest, such as one that takes their mean away
            gram = matmul(rates, rates.mT)
            inverse = torch.linalg.pinv(gram, rtol=_rtol(gram), hermitian=True)
            least = -matmul(inverse, matmul(rates, values.unsqueeze(-1))).squeeze(-1)
            rest = values.unsqueeze(-1) + matmul(rates.mT, least.unsqueeze(-1))
            share = rest.squeeze(-1).norm(dim=1, keepdim=True) / values.norm(dim=1, keepdim=True)
            noise = posterior.normal(posterior.batch, _NUM_DRAWS, len(free), generator=generator)
            scale = torch.logspace(*_DRAW_SCALES, _NUM_DRAWS // 2).to(noise).unsqueeze(-1)
            about, near = noise.chunk(2, 1)
            there = least.unsqueeze(1) + near * scale * (share * units).nan_to_num(nan=1.0).unsqueeze(1)
            steps = matmul(torch.cat([about * scale * units.unsqueeze(1), there], 1), free)
            drawn = group.compose(best.unsqueeze(1), group.exp(steps))
            energies, index = torch.cat([kept.energies, posterior.energies(drawn)], 1).sort(dim=1, stable=True)
            elements = take_rows(torch.cat([kept.elements, drawn], 1), index[:, : self.number])
            kept = Population.at(elements).moved(elements, energies[:, : self.number]).evaluated(posterior)
            posterior.step()
            if posterior.is_late():
                break
        return kept


class FieldDensity(DataEnergy):
    r"""The energy of values, less the logarithm of the factor by which a transformation changes volumes of values.

    .. math:: E(g^{-1} . u) - 2 \bar E \, \frac1n \sum \log |\partial u' / \partial u|

    with :math:`\bar E` the mean energy of clean fields and n the number of values. The energy alone prefers zero
    fields, so a symmetry that scales solutions, as linear equations have, would shrink every field. With the volume
    the likeliest scale is that of clean fields: :math:`E = \bar E` is where e^{2s} E - 2 s \bar E is least.

    Args:
        values: the energy, which grows with the squares of values.
        clean: fields of the training set.
        is_affine: whether unknowns change affinely, so that differences are derivatives.
    """

    def __init__(self, values: FieldSpectrum | FieldComponents, clean: Field, is_affine: bool) -> None:
        self.values, self._is_affine = values, is_affine
        self._weight = 2.0 * float(values(clean).mean())

    def __call__(self, x: Field) -> Float[Tensor, " batch"]:
        return self.values(x)

    def transformation_energy(self, action: Action, g: Tensor, x: Field) -> Float[Tensor, "b *chains"]:
        """Return minus the mean of the logarithms of volume factors, weighted."""
        assert isinstance(action, FieldAction)
        return -self._weight * self.log_volume(action, g, x)

    def log_volume(self, action: FieldAction, g: Tensor, x: Field) -> Float[Tensor, "*batch"]:
        """Return the mean of log |det du' / du| over the points of fields, for each unknown; batches broadcast."""
        points, unknowns = x.to_points(), x.values.shape[-2 - action.dims]
        if self._is_affine:
            place = points[..., :-unknowns]
            origin = points.new_zeros(1, unknowns)
            ends = torch.cat([origin, torch.eye(unknowns, dtype=points.dtype, device=points.device)])
            probes = [torch.cat([place, u.expand(*place.shape[:-1], -1)], -1) for u in ends]
            moved = action.point_action(g, torch.cat(probes, -2))[..., -unknowns:]
            first, *others = moved.unflatten(-2, (len(ends), -1)).unbind(-3)
            jacobian = torch.stack([other - first for other in others], -1)
        else:
            jacobian = action.point_action.jacobian(g, points)[..., -unknowns:, -unknowns:]
        return log_abs_det(jacobian).mean(-1) / unknowns


@checked
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

    Times between the network's are interpolated from the predictions and the initial field, which is one more node: by
    cubics from four nodes on, else by the polynomial through all (linear with one time of the network). With the
    ``equation`` the solution between is that of `trivgeo.pde.interpolation`, which is right near the network's times
    also if there is only one. g moves the network's times, too: a time later than they reach, by more than a
    twentieth of the way, or before the initial field, is refused before the network is called.

    With ``clean``, the initial fields of the training set, the elements found are corrected so that the box of a field
    goes there exactly; a field whose box no transformation takes there is refused. The freedom that is left is used to
    have the network predict the last time that is wanted, as far as this does not take the field out of the training
    set: a later time is refused. Fields that are unlike clean ones after their transformation is undone are counted in
    a warning, and `invert` has a verdict for each. Fields for which the network returns NaN or infinity are counted in
    a warning; the others are right.

    `from_equation` makes all of this from an equation.

    Args:
        network: values of initial fields ``[b, c, *n]`` to the solution at its one time, ``[b, c, *n]``, or at all
            of its times, ``[b, c, s, *n]``; with ``parameters`` if there are any.
        inverter: inverter of a `FieldAction` that finds g for an initial field.
        times: times of the network's predictions, counted from the initial field.
        equation: equation of periodic fields, for times between.
        clean: initial fields of the training set, which share their grid.

    Attributes:
        report: text that says what `from_equation` found, used and left out, and why.

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
        self.times = prediction_times(times)
        if equation is not None and not (isinstance(equation, SpectralEquation) and all(action.periodic)):
            raise ConfigurationError(
                f"equation: expected None, or a SpectralEquation and periodic fields, got {equation!r} for axes whose "
                f"periodicity is {list(action.periodic)}"
            )
        self._equation = equation
        if clean is not None:
            action.check_data(check_type("clean", clean, Field), "clean")
        self._frame = None if clean is None else TrainingFrame(clean.grid, clean.counts, self.times)
        self._counts = None if clean is None else clean.counts
        self._values: TrainingValues | OwnAnswers | None = None
        if clean is not None:
            self._values = TrainingValues(clean, action.periodic)
        self.report = ""

    @classmethod
    def from_equation(
        cls,
        equation: Any,
        network: Callable[..., Tensor],
        clean: Field | Tensor | None = None,
        times: Sequence[float] = (),
        *,
        box: Sequence[tuple[float, float]] | None = None,
        periodic: bool | Sequence[bool] = True,
        boundary: str | Sequence[str | None] | None = None,
        parameters: Mapping[str, float] | None = None,
        inverter: Callable[[FieldAction, Field], Inverter] | None = None,
    ) -> EquivariantOperator:
        """Return an operator that is equivariant to the symmetries of an equation, as far as fields can follow them.

        Symmetries that do not carry grids to grids, or do not keep fields periodic or the conditions at walls, are left
        out; `report` says which, how much is known of all symmetries, and how transformations are found.

        ```python
        operator = EquivariantOperator.from_equation("u_t + u^2*u_x + u_xxx = 0", fno, clean, times=[1.0])
        print(operator.report)
        solution = operator(initial, initial.grid.at([2.0]))
        EquivariantOperator.from_equation("u_t + u*u_x + u_xxx = 0", fno, times=[1.0], box=[(0.0, 16.0)])  # no data
        ```

        Without clean fields the network judges itself: what the box leaves open of a transformation is chosen so that
        its answers contradict conservation laws, the equation, and each other least, see
        `trivgeo.inversion.energies.OperatorConsistency`. Fields are then periodic. As this cannot tell each wrong
        network, `invert` solves the equation once for each field, and trusts those on which the network is right.

        Args:
            equation: text, SymPy equations, or an `trivgeo.pde.EvolutionEquation`, of first order in ``t``, whose
                coefficients depend on neither place nor time. Unknowns of fields are in alphabetical order.
            network: the solution operator of the training domain, see `EquivariantOperator`.
            clean: initial fields of the training set, which share their grid; or their values ``[m, c, *n]``;
                ``None`` where there are none.
            times: times at which the network returns solutions, see `EquivariantOperator`; at least one.
            box: for values, or without clean fields, the range (low, high) of each x on which the network was trained.
            periodic: whether fields are periodic; one for all axes, or one for each.
            boundary: what is at both ends of axes that are not periodic: walls where the slope vanishes
                (``"neumann"``) or the unknowns (``"dirichlet"``), or nothing, fields go on beyond the grid
                (``"open"``); one for all axes, or one for each; default: walls of either kind.
            parameters: a number for each parameter of the equation.
            inverter: makes the inverter from the action and the clean fields, such as a fit of a `LearnedInverter`;
                default: none where the box of a field determines its transformation, else `Newton` from a few starts
                with a `FieldSpectrum` of the clean fields, `FieldComponents` where they are not periodic.

        Raises:
            ConfigurationError: the equation has no symmetries that fields can follow, or there are neither clean
                fields nor a box, or walls or an inverter of clean fields without these, or as for
                `trivgeo.pde.SpectralEquation.from_equation` and `EquivariantOperator`.
            ShapeError: the fields have another number of unknowns or axes than the equation, or there is but one.
            DomainError: as for `EquivariantOperator`.
        """
        _check_network(network)
        nodes = prediction_times(times)
        if clean is None:
            fields, axes = None, _all_periodic(box, periodic, boundary, inverter)
        else:
            fields = clean_fields(clean, box, periodic)
            axes = [periodic] * len(fields.counts) if isinstance(periodic, bool) else list(periodic)
        ends = [boundary] * len(axes) if boundary is None or isinstance(boundary, str) else list(boundary)
        if len(ends) != len(axes) or any(end is not None and end not in WALLS for end in ends):
            raise ConfigurationError(
                f"boundary: expected {', '.join(WALLS)} or None, one for each of {len(axes)} axes, got {boundary!r}"
            )
        walls = ["open" if cyclic else end for cyclic, end in zip(axes, ends, strict=True)]
        numbers = dict(parameters or {})
        found = symmetries_of(equation, numbers, axes, None if fields is None else fields.values.shape[1], walls)
        if fields is None:
            assert box is not None
            energy = OperatorConsistency(network, equation, numbers, box=box, times=nodes)
            start = Field.on_box(torch.zeros(1, 1, *[_MIN_POINTS] * len(axes), dtype=torch.float64), box)
            frame = TrainingFrame(start.grid, start.counts, nodes)
            found = found._replace(action=frame.in_units(found.action))
            search, words = search_by_answers(found, energy, frame)
        else:
            frame = TrainingFrame(fields.grid, fields.counts, nodes)
            found = found._replace(action=frame.in_units(found.action))
            if inverter is None:
                search, words = search_for(found, fields, frame)
            else:
                search, words = inverter(found.action, fields), "search: as given by inverter="
        operator = cls(network, search, nodes, equation=found.equation, clean=fields)
        if fields is None:
            operator._frame, operator._values = frame, OwnAnswers(energy)
        between = "cubics in time" if found.equation is None else "the equation"
        known = (
            f"times: the network predicts {', '.join(f'{t:g}' for t in nodes)} after the initial field, moved as the "
            f"field was; {between} gives times between, and later ones are refused"
        )
        check = "to check: `equivariance_error` should be small; `invert(fields).trusted` is false for strange fields"
        operator.report = "\n".join([*found.lines, words, known, check])
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
        """Return the solution.

        Args:
            initial: fields at one time, with one batch dimension.
            grid: points and times of the solution, such as ``initial.grid.at(times)``; default: those of the moved
                predictions.
            parameters: further input of the network, which receives it unchanged.
            generator: random numbers of the inverter.

        Raises:
            ShapeError: the field has several times, or other numbers of points than clean fields, or the network
                returns another shape.
            DomainError: a time of the grid is before the initial field, later than the network reaches, or so far
                between its times that the equation does not determine the solution; or the group does not take the box
                of a field to that of clean fields.
        """
        result = self.invert(initial, grid, generator=generator)
        if self._values is not None and not bool(result.trusted.all()):
            row = int((~result.trusted).nonzero()[0, 0])
            expected = (
                "on which the network solves the equation"
                if isinstance(self._values, OwnAnswers)
                else "like the clean ones"
            )
            warnings.warn(
                f"initial: expected fields {expected}, up to a transformation, got others for "
                f"{int((~result.trusted).sum())} of {len(result.trusted)}: {result.reasons[row]} for field {row}",
                RuntimeWarning,
                stacklevel=2,
            )
        return self.predict(initial, result.best(), grid, parameters)

    def invert(
        self, initial: Field, grid: Grid | None = None, *, generator: torch.Generator | None = None
    ) -> InversionResult:
        """Return the transformations that `forward` undoes, one for each field, each with a verdict.

        With clean fields the energy of a field that was moved back is compared with theirs: it is not trusted where the
        energy is more than one and a half times the largest of them. To have the network predict a later time, no
        field is taken out of the training set that is in it.

        Without clean fields the network's answer is compared with a numerical solution of the equation from the very
        field that it is given, see `trivgeo.pde.solver.converged_solution`. The energies are the distances, in units
        of the deviation of the solution from the mean of that field: an answer of this mean has the energy one. A field
        is trusted where the distance and the error of the solution are together at most a twentieth. Where the
        solution is not so exact (shocks narrower than the grid, chaos, blow-up) nothing is known, and the field is not
        trusted; where it is not finite, the energy is what the answers contradict.

        Args:
            initial: see `forward`.
            grid: points and times of the solution; default: times are left alone.
            generator: random numbers of the inverter.

        Raises:
            ShapeError: see `forward`.
            DomainError: the group does not take the box of a field to that of clean fields.
        """
        self._check_initial(initial)
        if self._frame is None or self._values is None:
            return self.inverter(initial, generator=generator)
        device = module_device(self.inverter)
        initial, grid = on_device(initial, device), on_device(grid, device)
        values = initial.values
        unit = self.action.group.identity(len(values), dtype=values.dtype, device=values.device)
        frame = self._frame.with_counts(initial.counts)
        near = frame.settle(self.action, unit, initial.grid)
        result = self.inverter(initial, generator=generator, initial=near.unsqueeze(1))
        found = result.best()
        initial = on_device(initial, found.device)
        last = None if grid is None else grid.times[..., -1].expand(len(initial.values)).to(found.device)
        g = frame.settle(self.action, found, initial.grid, last)
        energies = self._energies_of(initial, g)
        outside = self._values.outside(energies)
        if last is not None and bool((outside > 1.0).any()):
            still = frame.settle(self.action, found, initial.grid)
            energies_still = self._energies_of(initial, still)
            leaves = (outside > 1.0) & (outside > _WORSE * self._values.outside(energies_still))
            g, energies = where_rows(leaves, still, g), torch.where(leaves, energies_still, energies)
        if isinstance(self._values, OwnAnswers):
            energies, verdicts = self._values.judged(self._restored(initial, g), energies)
        else:
            verdicts = [self._verdict(energy, self._values.highest) for energy in energies.tolist()]
        return replace(
            result,
            elements=g.unsqueeze(1),
            energies=energies.to(values.dtype).unsqueeze(1),
            num_masked_steps=torch.zeros(len(g), 1, dtype=torch.long, device=g.device),
            kept=None,
            added_energies=None,
            stage_verdicts=tuple(verdicts),
        )

    def _restored(self, initial: Field, g: Tensor) -> Field:
        """Return the fields after g is undone."""
        return self.action(self.action.group.inverse(g), initial)

    def _energies_of(self, initial: Field, g: Tensor) -> Float[Tensor, " b"]:
        """Return the energies of the fields after g is undone."""
        assert self._values is not None
        return self._values.energies(self._restored(initial, g))

    @staticmethod
    def _verdict(energy: float, highest: float) -> Verdict:
        """Return the verdict on a field by its energy after its transformation is undone, beside clean fields."""
        assumptions = (_LIKE_TRAINING,) if highest < torch.inf else (_LIKE_TRAINING, _FEW_CLEAN)
        if energy <= highest:
            return Verdict((), assumptions)
        said = f"the field that the network is given has the energy {energy:.3g}, clean ones at most {highest:.3g}"
        return Verdict((said,), assumptions)

    def equivariance_error(
        self,
        initial: Field,
        num_elements: int = 50,
        *,
        transformations: Transformations | None = None,
        parameters: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> EquivarianceError:
        r"""Measure the distance of solutions of moved fields from the moved solutions, at the same points.

        .. math:: |\tilde f(h . u_0) - h . \tilde f(u_0)| \,/\, |h . \tilde f(u_0)|

        Norms are of the values; solutions are compared where those of the given fields come out, moved by h.

        Args:
            initial: see `forward`.
            num_elements: see `TestTimeEquivariant.equivariance_error`, like ``transformations``.
            parameters: see `forward`; a row for each field, or the same for all.
            generator: source of noise for elements and inverter.

        Raises:
            ShapeError: see `forward`.
            DomainError: no element is defined on any field and its solution; or see `forward`.
        """
        self._check_initial(initial)
        initial = on_device(initial, module_device(self.inverter))
        h, valid = moving_elements(self.action, initial, num_elements, transformations, generator)
        solved = self(initial, parameters=parameters, generator=generator)
        valid = valid & self.action.is_valid(h, solved)
        if not bool(valid.any()):
            raise DomainError(
                f"transformations: expected elements that are defined on some solution, got none of {num_elements}"
            )
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
        if self._counts is not None and initial.counts != self._counts:
            raise ShapeError(
                f"initial: expected fields of {list(self._counts)} points, as clean ones have, got "
                f"{list(initial.counts)}"
            )

    def _check_times(self, first: Tensor, reached: Tensor, wanted: Tensor) -> None:
        """Raise `DomainError` if the solution is not known at a wanted time."""
        start, last = torch.broadcast_tensors(first[..., :1], reached[..., -1:])
        if self._equation is not None:
            # g takes the last time of the network past infinity: all later times are between the network's
            last = torch.where(last < start, torch.inf, last)
        span = last - start
        # where g has no time these are NaN, which fails every comparison
        before = _MAX_TIME_BEFORE * torch.where(span.isinf(), 1.0, span)
        outside = ((wanted < start - before) | (wanted > last + _MAX_EXTRAPOLATION * span)).any(-1)
        if bool(outside.any()):
            row = int(outside.nonzero()[0, 0])
            times = [round(t, 6) for t in wanted.expand(len(outside), -1)[row].tolist()]
            later = bool((wanted > last + _MAX_EXTRAPOLATION * span).any())
            raise DomainError(
                f"grid: expected times from {float(start[row, 0]):.6g} to {float(last[row, 0]):.6g}, where the "
                f"network's times {self.times} are moved, for field {row}, got {times}; {int(outside.sum())} of "
                f"{len(outside)} fields are so{': a network for later times reaches more' if later else ''}"
            )

    @staticmethod
    def _ahead(initial: Field, moved: Field) -> Field:
        """Return predictions; NaN, with a warning, where g moves times past infinity, to before the initial field."""
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
        """Return the solution at the points of a grid, from the initial field and the predictions."""
        batch = moved.values.shape[:1]
        origin, steps = initial.grid.origin.expand(*batch, -1, -1), initial.grid.steps.expand(*batch, -1, -1, -1)
        block = Field(
            torch.cat([initial.values.expand(*batch, *initial.values.shape[1:]), moved.values], 2),
            Grid(torch.cat([origin, moved.grid.origin], -2), torch.cat([steps, moved.grid.steps], -3)),
        )
        return resample(block, grid, self.action.periodic, extrapolated=_MAX_EXTRAPOLATION)

    def _between(self, equation: SpectralEquation, g: Tensor, start: Field, solved: Tensor, grid: Grid) -> Field:
        """Return the solution at the points of a grid, from predictions in the network's frame and the equation."""
        batch, times = len(start.values), grid.times.expand(len(start.values), -1)
        place = self.action(self.action.group.inverse(g), self._blank(start, grid, batch)).grid.times
        elapsed = place - start.grid.times
        values = torch.cat([start.values, solved], 2)
        steps, nodes = start.grid.steps[..., 0, :, :], [0.0, *self.times]
        self._check_between(interpolation_error(equation, values, steps, nodes, elapsed), times)
        values = interpolate_solution(equation, values, steps, nodes, elapsed)
        moved = self.action(g, Field(values, start.grid.at(place)))
        # moved there and back, times equal the wanted ones up to rounding
        origin = torch.cat([moved.grid.origin[..., :-1], times.unsqueeze(-1)], -1)
        return resample(Field(moved.values, Grid(origin, moved.grid.steps)), grid, self.action.periodic)

    def _check_between(self, error: Tensor, times: Tensor) -> None:
        """Raise `DomainError` if a wanted time is too far from those that the network predicts."""
        outside = (error > _MAX_INTERPOLATION_ERROR).any(-1)
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
        """Return zeros on a grid."""
        times = grid.times.shape[-1]
        shape = (batch, start.values.shape[1], times, *start.counts)
        leaves = (leaf.expand(batch, *leaf.shape[-event:]) for leaf, event in zip(grid, (2, 3), strict=True))
        return Field(start.values.new_zeros(shape), Grid(*leaves))

    def _solved(self, values: Float[Tensor, "b c ..."], parameters: Tensor | None) -> Float[Tensor, "b c s ..."]:
        """Return the predictions of the network, which computes in its own dtype."""
        out = predicted(self.network, values, len(self.times), parameters)
        lost = ~torch.isfinite(out).flatten(1).all(1)
        if bool(lost.any()):
            words = (
                f"network: expected finite predictions, got NaN or infinity for {int(lost.sum())} of {len(out)} fields"
            )
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        return out


def _all_periodic(box: object, periodic: bool | Sequence[bool], boundary: object, inverter: object) -> list[bool]:
    """Return the periodicity of axes where there are no clean fields.

    Raises:
        ConfigurationError: there is no box, or an axis has walls, or an inverter of clean fields.
    """
    if box is None:
        raise ConfigurationError("box: expected the range of each x on which the network was trained, or clean fields")
    dims = len(list(box))  # type: ignore[call-overload]
    axes = [periodic] * dims if isinstance(periodic, bool) else list(periodic)
    if not all(axes) or boundary is not None or inverter is not None:
        raise ConfigurationError(
            "clean: expected initial fields of the training set for walls or with inverter=, got None: the network's "
            "own answers are compared on periodic boxes"
        )
    return axes


def _check_network(network: object) -> None:
    if not callable(network):
        raise ConfigurationError(f"network: expected a function of values [b, c, *n], got {network!r}")
