"""Flows of single algebra vectors: the user's (`GivenFlow`), or put together of parts (`NumericalFlow`).

The parts: coordinates that move by themselves have closed forms, and those that move affinely over them quadratures
(`TriangularFlow`, `QuadratureRule`). Others are integrated (`extrapolated_flow`), and the end of an integrated flow is
corrected by Newton's method where the fields that vanish at a point determine it (`IsotropyCorrector`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from trivgeo._numerics import Constant, dense_exp, is_abstract
from trivgeo.checks import check_count, check_fraction, check_positive, checked
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.from_generators.fields import VectorFields, values_and_jacobians
from trivgeo.groups.from_generators.projective_coordinates import ProjectiveBase
from trivgeo.groups.linalg import largest_exponent, matrix_functions, matvec

_NUM_NEWTON_STEPS = 4
_MIN_SINGULAR_RATIO = 1e-5  # smallest singular value over the largest, of a matrix of full rank
_MIN_SHARE_OF_POINTS = 0.9  # share of the sample points that vanishing fields have to determine
_MAX_DISPLACEMENT = 4.0  # distance by which one step moves a point, relative to one plus its size
_STEP_ROUNDING_ULPS = 4.0  # rounding error of a step, in units of the last place
_MIDPOINT_STEPS = (2, 4, 6, 8, 10, 12)  # numbers of midpoint steps that are extrapolated to one step of order 12
_FIRST_STEP = 0.25  # length of the first step, as a share of the unit time
_STEP_SAFETY = 0.8  # length of the next step over that which would just meet the tolerance
_MIN_STEP_FACTOR, _MAX_STEP_FACTOR = 0.2, 4.0  # length of the next step over the last
_STEP_ERROR_SHARE = 0.01  # largest error estimate of one step over the tolerance
_CORRECTED_STEP_ERROR = 1e-4  # largest error estimate of one step where Newton's method corrects the end
_MAX_CORRECTION = 1e-2  # distance by which Newton's method moves a point, relative to one plus its size
_MIN_TOLERANCE_ULPS = 100.0  # smallest tolerance, in units of the last place


Flow = Callable[[Tensor, Tensor], Tensor]
"""A flow for unit time: vectors ``[*batch, dim]`` and points ``[*batch, m]`` to points."""


@checked
@dataclass(frozen=True)
class OdeSettings:
    """Accuracy and cost of flows without a closed form.

    Attributes:
        steps: trials of extrapolated steps, of order 12 and controlled length, for each factor of an element.
        nodes: Gauss-Legendre nodes for each factor of an element.
        tolerance: largest error estimate of a factor, relative to 1 + |x|, of a point that counts as valid (in single
            precision at least a hundred rounding errors).

    Raises:
        ConfigurationError: fewer than one step or node, or a tolerance that is not between 0 and 1.
    """

    steps: int = 8
    nodes: int = 32
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_count("nodes", self.nodes)
        check_fraction("tolerance", check_positive("tolerance", self.tolerance))


@dataclass(frozen=True)
class FlowResult:
    """Points moved along a flow.

    Attributes:
        end: the points at the end, ``[*batch, m]``; coordinates that were not solved are left as they were.
        alive: mask of points for which the flow exists, ``[*batch]``.
        error: the estimated error of a coordinate relative to one plus its size, ``[*batch]``.
    """

    end: Tensor
    alive: Tensor
    error: Tensor


class VectorFlow(ABC):
    """The flow of the field of one algebra vector for unit time."""

    @property
    @abstractmethod
    def methods(self) -> list[str]:
        """Method by which each coordinate is found, see `GeneratedAction.flows`."""

    @abstractmethod
    def follow(self, v: Tensor, x: Tensor, num_leading: int) -> FlowResult:
        """The flow of ``num_leading`` leading coordinates of points x, ``[*batch, p, m]``.

        Algebra vectors v, ``[*batch, 1, dim]``, are in the basis of the adapted fields.
        """


@final
@dataclass(frozen=True)
class GivenFlow(VectorFlow):
    """A flow that the user gave, of vectors in the basis of the adapted fields."""

    flow: Flow
    dim: int

    @property
    def methods(self) -> list[str]:
        """``"given"`` for every coordinate."""
        return ["given"] * self.dim

    def follow(self, v: Tensor, x: Tensor, num_leading: int) -> FlowResult:
        """The points moved along the user's flow; where it is not finite, points stay at zero and are not alive."""
        y = self.flow(v, x)
        alive = torch.isfinite(y).all(-1)
        return FlowResult(torch.where(alive.unsqueeze(-1), y, 0.0), alive, torch.zeros_like(x[..., 0]))


@final
@dataclass(frozen=True)
class NumericalFlow(VectorFlow):
    """The triangular part of the system by closed forms and quadratures, the rest by an integrator.

    Attributes:
        triangular: the coordinates that need no integrator.
        settings: accuracy and cost for the other coordinates.
        isotropy: corrects the ends of integrated flows; ``None`` where it is not needed or cannot.
    """

    fields: VectorFields
    triangular: TriangularFlow
    settings: OdeSettings
    isotropy: IsotropyCorrector | None = None

    @property
    def methods(self) -> list[str]:
        """The method of each coordinate, ``"integrated"`` for those outside the triangular part."""
        return self.triangular.methods

    def follow(self, v: Tensor, x: Tensor, num_leading: int) -> FlowResult:
        """The points moved along the flow, alive where it exists and its estimated error is within the tolerance."""
        tolerance = max(self.settings.tolerance, _MIN_TOLERANCE_ULPS * torch.finfo(x.dtype).eps)
        solved = self.triangular.solved_coordinates
        result = self.triangular.flow(v.squeeze(-2), x, num_leading)
        end, error = result.end, result.error
        alive = result.alive & (error <= tolerance)
        if not solved >= set(range(num_leading)):
            integrated = self._integrate(v, x, num_leading, tolerance)
            alive = alive & integrated.alive
            end = torch.stack([(end if c in solved else integrated.end)[..., c] for c in range(x.shape[-1])], -1)
            missed = integrated.error
            if self.isotropy is not None and num_leading in self.isotropy.prefixes:
                end = torch.where(alive.unsqueeze(-1), end, x.detach())
                end, moved, missed = self.isotropy.correct(v, x, end, num_leading)
                size = 1.0 + end.detach().abs().amax(-1)
                alive = alive & (moved <= _MAX_CORRECTION * size)
                missed = missed / size
            error = error + missed
            alive = alive & (error <= tolerance)
        # a point that has left must not make the gradients of others NaN in the next flow
        return FlowResult(torch.where(alive.unsqueeze(-1), end, x.detach()), alive, error)

    def _integrate(self, v: Tensor, x: Tensor, num_leading: int, tolerance: float) -> FlowResult:
        def field(y: Tensor) -> Tensor:
            return self.fields.combination(v, y)

        corrected = self.isotropy is not None and num_leading in self.isotropy.prefixes
        accuracy = max(_CORRECTED_STEP_ERROR, tolerance) if corrected else _STEP_ERROR_SHARE * tolerance
        return FlowResult(*extrapolated_flow(field, x, self.settings.steps, accuracy))


def follow_all(flow: VectorFlow, vectors: Sequence[Tensor], x: Tensor, num_leading: int) -> FlowResult:
    """Follow the flows of several vectors, in the order in which they act, see `VectorFlow.follow`.

    Points are not alive for vectors that are NaN.
    """
    alive = torch.ones_like(x[..., 0], dtype=torch.bool)
    error = torch.zeros_like(x[..., 0])
    for v in vectors:
        known = torch.isfinite(v).all(-1, keepdim=True)
        result = flow.follow(torch.where(known, v, 0.0), x, num_leading)
        x = result.end
        alive = alive & result.alive & known.squeeze(-1)
        error = error + result.error
    return FlowResult(x, alive, error)


@dataclass(frozen=True)
class AffineBlock:
    """Coordinates u that fields move by u' = A(x) u + b(x) over coordinates x, all A commuting.

    Attributes:
        coordinates: the positions of u.
        linear: whether A is not zero.
        shifted: whether b is not zero.
    """

    coordinates: tuple[int, ...]
    linear: bool
    shifted: bool


class TriangularFlow:
    """The flow of a triangular system: bases first, then affine blocks, each over the coordinates before."""

    def __init__(
        self, fields: VectorFields, bases: Sequence[ProjectiveBase], blocks: Sequence[AffineBlock], nodes: int
    ) -> None:
        self._bases, self._blocks = tuple(bases), tuple(blocks)
        self._fields = fields
        self._matrices = tuple(Constant(base.matrices) for base in bases)
        self._rule = QuadratureRule(nodes)
        kinds = {c: "closed form" for base in bases for c in base.coordinates}
        kinds |= {c: "quadrature" for block in blocks for c in block.coordinates}
        self.solved_coordinates = frozenset(kinds)
        """Positions of the coordinates that need no integrator."""
        self.methods = [kinds.get(c, "integrated") for c in range(fields.dim)]
        """Method of each coordinate, see `GeneratedAction.flows`; ``"integrated"`` outside bases and blocks."""

    def flow(self, v: Tensor, x: Tensor, num_leading: int) -> FlowResult:
        """The flow of ``num_leading`` leading coordinates of points x ``[*batch, p, m]`` for unit time.

        Algebra vectors v, ``[*batch, dim]``, are without the scale of the group.
        """
        rule = self._rule
        alive = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
        error = x.new_zeros(x.shape[:-1])
        # every coordinate along the flow, [*batch, nodes + 1, p]: at the nodes, then at the end
        path = list(x.unsqueeze(-3).expand(*x.shape[:-2], rule.num_nodes + 1, -1, -1).unbind(-1))
        times = rule.times.matching(x)
        for base, constant in zip(self._bases, self._matrices, strict=True):
            if base.coordinates[0] >= num_leading:
                continue
            generator = torch.einsum("...i,iab->...ab", v, constant.matching(v)).unsqueeze(-3)
            powers = matrix_functions(generator.shape[-1]).exp(times[:, None, None] * generator)
            start = base.lift(x[..., list(base.coordinates)]).mT
            start = torch.cat([start, torch.ones_like(start[..., :1, :])], -2)
            moved = (powers.flatten(-3, -2) @ start).unflatten(-2, powers.shape[-3:-1])
            d = moved[..., -1, :]
            inside = (d > 0).all(-2)
            alive = alive & inside
            d = torch.where(inside.unsqueeze(-2), d, 1.0)
            for position, c in enumerate(base.coordinates):
                path[c] = moved[..., position, :] / d
        for block in self._blocks:
            if block.coordinates[0] < num_leading:
                values, good, missed = self._follow(block, v, path)
                alive, error = alive & good, error + missed
                for c, whole in zip(block.coordinates, values, strict=True):
                    path[c] = whole
        return FlowResult(torch.stack([values[..., -1, :] for values in path], -1), alive, error)

    def _follow(self, block: AffineBlock, v: Tensor, path: Sequence[Tensor]) -> tuple[list[Tensor], Tensor, Tensor]:
        """Coordinates of a block along the path, ``[*batch, nodes + 1, p]``, a mask of existence, and their error."""
        rule, f = self._rule, len(block.coordinates)
        below = [values[..., :-1, :] for values in path]
        start = torch.stack([path[c][..., :1, :] for c in block.coordinates], -1)
        a, b = block_coefficients(self._fields, block, [w[..., None, None] for w in v.unbind(-1)], below)
        good = torch.stack([torch.isfinite(entry).all(-2) for entry in (*a, *b)]).all(0)
        error = torch.zeros_like(start[..., 0, :, 0])

        def integrate(entries: Sequence[Tensor]) -> Tensor:
            nonlocal error
            results = []
            for entry in entries:
                integral, missed = rule.integrate(torch.where(good.unsqueeze(-2), entry, 0.0))
                results.append(integral)
                error = error + missed
            return torch.stack(results, -1)

        if not block.linear:
            return list((start + integrate(b)).unbind(-1)), good, error
        integral = integrate(a).unflatten(-1, (f, f))
        # an exponential that overflows is no value, and would spoil the gradients of others
        bound = largest_exponent(integral.dtype)
        good = good & (integral.detach().abs().sum(-1) < bound).all(-1).all(-2)
        integral = torch.where(good[..., None, :, None, None], integral, 0.0)
        grow = matrix_functions(f).exp(integral)
        if block.shifted:
            back = matvec(matrix_functions(f).exp(-integral[..., :-1, :, :, :]), torch.stack(b, -1))
            start = start + integrate(back.unbind(-1))
        return list(matvec(grow, start).unbind(-1)), good, error


def block_coefficients(
    fields: VectorFields, block: AffineBlock, v: Sequence[Tensor], x: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The entries of A row by row, and those of b, from the field at u = 0 and at unit vectors u.

    Entries are left out where the block has no A or no b. Coordinates of v and x broadcast.
    """
    index = block.coordinates

    def field_at(unit: int | None) -> list[Tensor]:
        point = list(x)
        for c in index:
            point[c] = torch.ones_like(point[c]) if c == unit else torch.zeros_like(point[c])
        return fields.components(v, point, index)

    b = field_at(None) if block.shifted else []
    if not block.linear:
        return [], b
    columns = [field_at(c) for c in index]
    if b:
        columns = [[value - shift for value, shift in zip(column, b, strict=True)] for column in columns]
    return [column[row] for row in range(len(index)) for column in columns], b


class QuadratureRule:
    """The Gauss-Legendre rule on [0, 1], with the integrals from zero to every node.

    The nodes are dense at both ends: a flow that exists for unit time may have its pole just outside.
    """

    def __init__(self, num_nodes: int) -> None:
        legendre = np.polynomial.legendre
        z, w = legendre.leggauss(num_nodes)
        values = legendre.legvander(z, num_nodes)  # P_0 .. P_n at the nodes
        degrees = np.arange(num_nodes)
        analysis = (degrees + 0.5)[:, None] * w * values[:, :num_nodes].T  # coefficients of the interpolant
        # with P_-1 = -1 integrals begin at z = -1
        lower = np.concatenate([-np.ones((num_nodes, 1)), values[:, : num_nodes - 1]], 1)
        cumulated = 0.5 * ((values[:, 1:] - lower) / (2.0 * degrees + 1.0)) @ analysis
        self.num_nodes = num_nodes
        y = 0.5 * (z + 1.0)
        time, slope = y * y * (3.0 - 2.0 * y), 6.0 * y * (1.0 - y)
        self.times = Constant(torch.as_tensor(np.append(time, 1.0)))
        self._integrals = Constant(torch.as_tensor(np.concatenate([cumulated, 0.5 * w[None]]) * slope))
        self._analysis = Constant(torch.as_tensor(analysis * slope))

    def integrate(self, values: Tensor) -> tuple[Tensor, Tensor]:
        r"""Integrals from zero to every node and to one, of functions known at the nodes, and an error estimate.

        The last Legendre coefficients of the interpolant fall like :math:`\rho^{-n}` for an analytic function, and the
        error of the rule like :math:`\rho^{-2 n}`: their square, over the largest coefficient, estimates it.

        Values are ``[*batch, nodes, p]``, integrals ``[*batch, nodes + 1, p]``, and the error estimate ``[*batch, p]``.
        """
        integrals = self._integrals.matching(values) @ values
        with torch.no_grad():
            coefficients = (self._analysis.matching(values) @ values.detach()).abs()
            largest, last = coefficients.amax(-2), coefficients[..., -2:, :].amax(-2)
            error = torch.finfo(values.dtype).eps * largest + last.square() / torch.where(largest > 0, largest, 1.0)
        return integrals, error


def extrapolated_flow(
    field: Callable[[Tensor], Tensor], x: Tensor, steps: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The flow of an autonomous field ``[*batch, m] -> [*batch, m]`` for unit time, of order 12.

    The explicit midpoint rule, whose error is even in the step, is extrapolated to step zero (Gragg 1965; Hairer,
    Norsett, Wanner, Solving ODEs I, section II.9). Every point has steps of its own length.

    A step whose last two extrapolations differ by more than ``tolerance`` times (1 + |x|), or which moves a point by
    more than a few times its size, is tried again with a shorter one. A point that has not arrived after ``steps``
    trials stops there: a flow that runs off to infinity has no value, and a scheme of fixed steps would return
    a finite number all the same. Derivatives stay finite at such points.

    Returns:
        The points ``[*batch, m]``; a mask of those that are valid ``[*batch]``; the sum of the error estimates of the
        steps relative to 1 + |x|, ``[*batch]``.
    """
    alive = torch.isfinite(x).all(-1)
    x = torch.where(alive.unsqueeze(-1), x, 0.0)
    total, left = torch.zeros_like(x[..., 0]).detach(), alive.to(x.dtype)
    length = _FIRST_STEP * left
    for _ in range(steps):
        if not is_abstract(left) and not bool((left > 0).any()):
            break
        taken = torch.minimum(length, left)
        y, relative, inside = _step(field, x, taken.unsqueeze(-1))
        good = inside & (relative <= tolerance) & (left > 0)
        x = torch.where(good.unsqueeze(-1), y, x)
        total = total + torch.where(good, relative + _STEP_ROUNDING_ULPS * torch.finfo(x.dtype).eps, 0.0)
        left = torch.where(good, torch.where(taken < left, left - taken, 0.0), left)
        factor = _STEP_SAFETY * (tolerance / relative.clamp(min=1e-300)) ** (1.0 / (2 * len(_MIDPOINT_STEPS) - 1))
        factor = torch.where(inside, factor.clamp(_MIN_STEP_FACTOR, _MAX_STEP_FACTOR), _MIN_STEP_FACTOR)
        length = torch.where(left > 0, taken * factor, length)
    return x, alive & (left <= 0), total


def _step(field: Callable[[Tensor], Tensor], x: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The end of one step of lengths ``[*batch, 1]``, its error estimate, and whether its displacement is bounded."""
    size = 1.0 + x.detach().abs().amax(-1, keepdim=True)
    slope = _finite(field(x))
    near = torch.ones_like(x[..., 0], dtype=torch.bool)
    table: list[Tensor] = []
    for num_steps in _MIDPOINT_STEPS:
        before, y = x, x
        for part in range(num_steps):
            step = slope * (h / num_steps) if part == 0 else _finite(field(y)) * (2.0 * h / num_steps)
            following = before + step
            inside = ((following - x).detach().abs() <= _MAX_DISPLACEMENT * size).all(-1)
            near = near & inside
            before, y = y, torch.where(inside.unsqueeze(-1), following, x)
        row = [y]
        for back, value in enumerate(table):
            ratio = (num_steps / _MIDPOINT_STEPS[len(table) - 1 - back]) ** 2 - 1.0
            row.append(row[back] + (row[back] - value) / ratio)
        table = row
    return table[-1], ((table[-1] - table[-2]).detach().abs() / size).amax(-1), near


def _finite(k: Tensor) -> Tensor:
    """Replace values that are not finite by numbers so large that the bound of displacements rejects the step."""
    return torch.where(torch.isfinite(k), k, 1e30 if k.dtype == torch.float64 else 1e20)


class IsotropyCorrector:
    """Corrections of images of points, from the fields that vanish there.

    Attributes:
        prefixes: numbers of leading coordinates that can be corrected.

    Args:
        algebra: the algebra of the fields, with the sign of the group.
        prefixes: numbers of leading coordinates that move independently of the others.
    """

    def __init__(self, fields: VectorFields, algebra: LieAlgebra, points: Tensor, prefixes: Sequence[int]) -> None:
        self._fields, self._algebra = fields, algebra
        self.prefixes = frozenset(k for k in prefixes if self._determines(points, k))

    def _determines(self, points: Tensor, num_leading: int) -> bool:
        """Whether the fields that vanish at a point determine its ``num_leading`` leading coordinates."""
        if num_leading >= len(self._fields):
            return False
        values, jacobians = (each[:, :, :num_leading] for each in values_and_jacobians(self._fields, points))
        singular = torch.linalg.svdvals(values)
        transitive = singular[:, -1] > _MIN_SINGULAR_RATIO * singular[:, 0]
        if float(transitive.double().mean()) < _MIN_SHARE_OF_POINTS:
            return False
        values, jacobians = values[transitive], jacobians[transitive]  # other points have no frame
        slopes = jacobians[..., :num_leading].flatten(1, 2)
        missed = _orthogonal_part(slopes.unflatten(1, (-1, num_leading)).flatten(2), _frame(values))
        missed = missed.unflatten(-1, (num_leading, num_leading)).flatten(1, 2)
        rank = torch.linalg.svdvals(missed)
        unique = rank[:, -1] > _MIN_SINGULAR_RATIO * torch.linalg.svdvals(slopes)[:, 0]
        return float(unique.double().sum()) >= _MIN_SHARE_OF_POINTS * len(points)

    def correct(self, v: Tensor, x: Tensor, y: Tensor, num_leading: int) -> tuple[Tensor, Tensor, Tensor]:
        """The image of x, ``[*batch, p, m]``, under the flow of v, ``[*batch, 1, dim]``, from a point y near it.

        The ``num_leading`` leading coordinates are corrected, the others stay as they are.

        Returns:
            The images, their distances from y, and error estimates from the last two steps, ``[*batch, p]``.
        """
        dtype = y.dtype
        v, x, y = v.double(), x.double(), y.double()  # rounding would be enlarged by the condition of the slopes
        rest = y[..., num_leading:]
        back = dense_exp(-self._algebra.ad(v)).transpose(-1, -2)
        target = _frame(back @ self._fields(x)[..., :num_leading])

        start = z = y[..., :num_leading]
        lengths = []
        for _ in range(_NUM_NEWTON_STEPS):
            whole = torch.cat([z, rest], -1)
            missed = _orthogonal_part(self._fields(whole)[..., :num_leading], target).flatten(-2)
            slopes = self._fields.slopes(whole)[..., :num_leading, :num_leading].flatten(-2)
            slopes = _orthogonal_part(slopes, target).unflatten(-1, (num_leading, num_leading)).flatten(-3, -2)
            step = -_least_squares(slopes, missed)
            z = z + step
            lengths.append(step.detach().abs().amax(-1))
        ratio = lengths[-1] / torch.where(lengths[-2] > 0, lengths[-2], 1.0)
        error = lengths[-1] * ratio.clamp(max=1.0)  # for steps that shrink, a bound of the next step
        moved = (z - start).detach().abs().amax(-1)
        return torch.cat([z, rest], -1).to(dtype), moved.to(dtype), error.to(dtype)

    def misses(self, x: Tensor, y: Tensor) -> Tensor:
        """Sizes at points y of the fields that vanish at points x, relative to all fields there, ``[*batch, p]``."""
        values = self._fields(y)
        return _orthogonal_part(values, _frame(self._fields(x))).flatten(-2).norm(dim=-1) / values.flatten(-2).norm(
            dim=-1
        )


def _frame(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Columns ``[*batch, n, m]`` scaled to unit length, and the inverse of their Gram matrix."""
    length = columns.detach().norm(dim=-2, keepdim=True)
    unit = columns / torch.where(length > 0, length, 1.0)
    return unit, matrix_functions(unit.shape[-1]).inverse(unit.mT @ unit)


def _orthogonal_part(vectors: Tensor, frame: tuple[Tensor, Tensor]) -> Tensor:
    """The parts of columns ``[*batch, n, k]`` that are orthogonal to a frame."""
    unit, inverse = frame
    for _ in range(2):  # the second pass removes the rounding errors of the first
        vectors = vectors - unit @ (inverse @ (unit.mT @ vectors))
    return vectors


def _least_squares(matrix: Tensor, right: Tensor) -> Tensor:
    """The shortest x with ``matrix x = right``, ``[*batch, k, m]`` and ``[*batch, k]``."""
    length = matrix.detach().norm(dim=-2, keepdim=True)
    length = torch.where(length > 0, length, 1.0)
    unit = matrix / length
    solution = matrix_functions(unit.shape[-1]).inverse(unit.mT @ unit) @ (unit.mT @ right.unsqueeze(-1))
    return (solution / length.mT).squeeze(-1)
