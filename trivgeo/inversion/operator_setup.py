"""What an equivariant operator needs beside its network: the symmetries that data can carry, and a search."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._numerics import log_abs_det
from trivgeo.actions import Field, FieldAction, Grid
from trivgeo.checks import check_tensor
from trivgeo.errors import AlgebraError, ConfigurationError, NonFiniteError, ShapeError
from trivgeo.expressions import exact
from trivgeo.groups import Action, from_generators
from trivgeo.inversion.energies import DataEnergy, FieldBox, FieldComponents, FieldSpectrum
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.stage import Stage
from trivgeo.inversion.stages import AddNoise, Newton, Replicate
from trivgeo.inversion.training_frame import TrainingFrame
from trivgeo.pde import EvolutionEquation, SpectralEquation
from trivgeo.sde import GeometricSchedule
from trivgeo.symmetry import find_symmetries

__all__ = ["FieldDensity", "OperatorSymmetries", "clean_fields", "search_for", "symmetries_of"]

_STARTS = 4  # of Newton's method
_NEWTON_STEPS = 12
_NOISE = GeometricSchedule(0.05, 0.3)  # that starts are apart by
_PROBE = 0.1  # size of the elements by which volumes of values are compared
_NO_VOLUME = 1e-8  # logarithms of volumes below it are none


class OperatorSymmetries(NamedTuple):
    """The symmetries of an equation that fields on their grids can follow.

    Attributes:
        action: of the group of those.
        equation: for interpolation in time; ``None`` where fields are not periodic.
        lines: of a report: which they are, and what is left out.
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

    Args:
        clean: fields, or values on a grid of a box.
        box: the range of each x, for values.
        periodic: whether the box is periodic, in all or in each direction.

    Raises:
        ConfigurationError: values without a box, or a box beside fields, or neither fields nor values.
        ShapeError: fewer than two fields, or several times, or no batch dimension.
        NonFiniteError: the fields hold NaN or infinity.
    """
    if isinstance(clean, Field):
        if box is not None:
            raise ConfigurationError("box: expected none beside a Field, which has its grid")
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


def symmetries_of(
    equation: Any, parameters: Mapping[str, float], periodic: Sequence[bool], unknowns: int
) -> OperatorSymmetries:
    """The symmetries of an equation with numbers for its parameters, as far as fields can follow them.

    Args:
        equation: text, SymPy equations, or a `trivgeo.pde.EvolutionEquation`.
        parameters: a number for each parameter.
        periodic: whether fields are periodic along each axis of space.
        unknowns: the number that fields have.

    Raises:
        ConfigurationError: as for `trivgeo.pde.SpectralEquation.from_equation`, or no symmetry is left.
        ShapeError: the equation has another number of variables of space or unknowns than the fields.
    """
    derived = equation if isinstance(equation, EvolutionEquation) else EvolutionEquation(equation)
    spectral = SpectralEquation.from_equation(derived, **parameters)
    space = [v for v in derived.system.variables if v.name != "t"]
    if (len(space), len(derived.unknowns)) != (len(periodic), unknowns):
        raise ShapeError(
            f"clean: expected fields of {len(derived.unknowns)} unknowns {', '.join(derived.unknowns)} over "
            f"{len(space)} coordinates for {derived}, got {unknowns} over {len(periodic)}"
        )
    values = {s: exact(parameters[s.name], s.name) for s in derived.system.parameters}
    found = find_symmetries([residual.subs(values) for residual in derived.residuals])
    carried = found.on_grids(periodic)
    lines = [f"equation: {derived}" + "".join(f", {name} = {value}" for name, value in parameters.items())]
    lines += [f"unknowns, in the order of the fields: {', '.join(derived.unknowns)}", f"symmetries: {found.statement}"]
    lines += [f"used: {g}" for g in carried]
    used = {g.components for g in carried}
    why = "it does not carry grids to grids and periodic fields to periodic ones"
    values_alone = "it reshapes values, and is one of infinitely many that no set of fields tells apart"
    lines += [
        f"left out: {g}: {values_alone if found.reshapes_values(g) else why}" for g in found if g.components not in used
    ]
    if found.infinite_ideal is not None:
        lines.append("left out: superposition, which is no finite group")
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


def search_for(found: OperatorSymmetries, clean: Field, frame: TrainingFrame) -> tuple[Inverter, str]:
    """Choose a search for the transformation that moved a field out of a set.

    Args:
        found: the transformations.
        clean: fields of the set.
        frame: where these fields lie.

    Returns:
        The inverter, and a sentence that describes it.
    """
    action = found.action
    spectrum = all(action.periodic)
    values = FieldSpectrum(FieldBox(clean.grid), clean.values) if spectrum else FieldComponents(clean)
    energy: DataEnergy = values
    free = frame.free_directions(action)
    if not len(free):
        return Inverter(action, energy, []), "no search: the box of a field determines the transformation"
    words = (
        f"search: Newton's method from {_STARTS} starts by {type(energy).__name__}, about where the box of a field goes"
    )
    start = Field(clean.values[:1].double(), Grid(*(leaf[:1].double() for leaf in clean.grid)))
    density = FieldDensity(values, clean, found.is_affine)
    if bool((density.log_volume(action, action.group.exp(_PROBE * free), start).abs() > _NO_VOLUME).any()):
        energy = density
        words += "; by the volume of values, too, as some transformations scale them"
    stages = [Replicate(_STARTS), AddNoise(_NOISE, 1), _OnBox(frame), Newton(_NEWTON_STEPS)]
    return Inverter(action, energy, stages), words


class _OnBox(Stage):
    """Elements are corrected so that they take the boxes of fields to that of the training set.

    Args:
        frame: the box.
    """

    def __init__(self, frame: TrainingFrame) -> None:
        self.frame = frame

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The corrected population."""
        action, k = posterior.action, population.size
        assert isinstance(action, FieldAction)
        grid = Grid(*(leaf.repeat_interleave(k, 0) for leaf in posterior.x.grid))
        near = self.frame.approach(action, population.elements.flatten(0, 1), grid)
        return population.moved(near.unflatten(0, (-1, k)))


class FieldDensity(DataEnergy):
    r"""The energy of values, less the logarithm of the factor by which a transformation changes volumes of values.

    .. math:: E(g^{-1} . u) - 2 \bar E \, \frac1n \sum \log |\partial u' / \partial u|

    with :math:`\bar E` the mean energy of clean fields and n the number of values. By the energy alone a zero field is
    the likeliest, so that a symmetry that scales solutions, as linear equations have, would shrink every field. With
    the volume the likeliest scale is that of clean fields: :math:`E = \bar E` is where e^{2s} E - 2 s \bar E is least.

    Args:
        values: the energy, which grows with the squares of values.
        clean: fields of the training set.
        is_affine: whether unknowns change affinely, so that differences are derivatives.
    """

    def __init__(self, values: FieldSpectrum | FieldComponents, clean: Field, is_affine: bool) -> None:
        self.values, self._is_affine = values, is_affine
        self._weight = 2.0 * float(values(clean).mean())

    def __call__(self, x: Field) -> Float[Tensor, " batch"]:
        """One energy for each field."""
        return self.values(x)

    def transformation_energy(self, action: Action, g: Tensor, x: Field) -> Float[Tensor, "b *chains"]:
        """Minus the mean of the logarithms of volume factors, weighted.

        Args:
            action: on fields.
            g: elements ``[b, *chains, *element_shape]``.
            x: fields, with dimensions of size one for the chains.
        """
        assert isinstance(action, FieldAction)
        return -self._weight * self.log_volume(action, g, x)

    def log_volume(self, action: FieldAction, g: Tensor, x: Field) -> Float[Tensor, "*batch"]:
        """Return the mean of log |det du' / du| over the points of fields, for each unknown.

        Args:
            action: on fields.
            g: elements ``[*batch, *element_shape]``.
            x: fields; batches broadcast.
        """
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
