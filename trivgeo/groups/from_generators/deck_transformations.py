r"""Deck transformations: maps of the coordinates that leave all fields as they are, and how far points may then move.

A local action need not come from a global one (Palais 1957; Olver, Applications of Lie Groups, section 1.2). The
translations of the plane in polar coordinates carry a point around the origin along a triangle and add :math:`2 \pi` to
its angle, though the three of them multiply to the identity; the same happens to t in the symmetries of u'' + u = 0.
The names of one place are related by deck transformations, here :math:`\theta \mapsto \theta + 2 \pi`. As long as no
point moves by more than a third of such a step, :math:`g.(h.x) = (g h).x` wherever all three are defined.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo._random import uniform
from trivgeo.groups.from_generators.fields import VectorFields
from trivgeo.groups.from_generators.flows import IsotropyCorrector

_MAX_SHIFT = 20.0  # longest shift of a coordinate that is searched
_NUM_GRID_SHIFTS = 1000  # shifts that are tried before the best are refined
_NUM_SECTIONS = 60  # golden sections that refine a shift
_MAX_FIELD_ERROR = 1e-6  # change of fields by a deck transformation, relative to their size
_MAX_GRID_ERROR = 0.2  # change of fields by a shift of the grid that is refined, relative to their size
_NUM_POINTS = 4  # sample points at which fields are compared
_NUM_PATHS = 6  # paths between two points that are tried
_STEPS_PER_PIECE = 400  # steps along each of the two straight pieces of a path
_MAX_GROWTH = 30.0  # growth of fields along a path that avoids their poles
_MIN_DISTANCE = 1e-4  # distance between names of one place
_NUM_STARTS = 300  # starts of searches for names, for each of two distributions
_NUM_ROUNDS = 4  # rounds of Newton's method from each start
_MAX_START_SHIFT = 8.0  # distance of starts from the point, in each coordinate
_MAX_START_LOG_FACTOR = 4.0  # logarithm of the ratio of starts to the point, in each coordinate
_MAX_DIM_OF_ALL_SIGNS = 4  # with more coordinates, changes of more than one sign are not tried
_GOLDEN_RATIO = 0.5 * (math.sqrt(5.0) - 1.0)


@dataclass(frozen=True)
class FundamentalDomain:
    """Largest displacements of points for which no other element of the covering group gives a nearer image.

    Attributes:
        reach: the largest displacement in each coordinate, ``[m]``; infinite where it does not matter.
        signed: one for coordinates that keep their sign, else zero, ``[m]``.
        scaled: one for coordinates whose logarithm is bounded, else zero, ``[m]``.
    """

    reach: Constant
    signed: Constant
    scaled: Constant

    def contains(self, x: Tensor, y: Tensor) -> Tensor:
        """Return True where points x ``[*batch, p, m]``, or leading coordinates, moved to y stay in the domain."""
        m = x.shape[-1]
        scaled = self.scaled.matching(x)[:m] > 0
        ratio = torch.where(scaled & (x != 0), y / torch.where(x == 0, 1.0, x), 1.0)
        moved = torch.where(scaled, torch.where(ratio > 0, ratio, math.inf).log(), y - x)
        near = moved.abs() < self.reach.matching(x)[:m]
        kept = (x * y >= 0) | (self.signed.matching(x)[:m] == 0)
        return (near & kept).all(-1)


def find_fundamental_domain(fields: VectorFields, points: Tensor) -> FundamentalDomain | None:
    """The domain bounded by shifts of single coordinates, and changes of sign, that leave the fields as they are.

    ``None`` if there are no such maps, or no path without poles connects them with the identity.
    """
    points = points[:_NUM_POINTS]
    m = fields.dim
    reach, signed = torch.full((m,), math.inf, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
    for signs in _sign_patterns(m):
        unmoved = _difference(fields, points, signs, torch.zeros(m, dtype=torch.float64))
        flipped = (signs < 0).nonzero().flatten().tolist()
        if flipped and unmoved < _MAX_FIELD_ERROR and _is_branch(fields, points, signs):
            signed[flipped[0]] = 1.0
        for c in range(m):
            if c in flipped or (unmoved < _MAX_FIELD_ERROR and _is_constant(fields, points, signs, c)):
                continue
            for length in _deck_shifts(fields, points, signs, c):
                moved = points * signs
                moved[:, c] += length
                if _connected(fields, points, moved):
                    reach[c] = min(float(reach[c]), length / 3.0)
                    break
    if bool(torch.isinf(reach).all()) and not bool(signed.any()):
        return None
    return FundamentalDomain(Constant(reach), Constant(signed), Constant(torch.zeros(m, dtype=torch.float64)))


def find_isotropy_domain(
    fields: VectorFields, isotropy: IsotropyCorrector, points: Tensor, connected: bool = True
) -> FundamentalDomain | None:
    """The domain bounded by a coordinate in which all names of a place are a constant shift, or factor, apart.

    If no single coordinate separates all names, several do; ``None`` if no such coordinates exist. Names are points at
    which the same fields vanish, found by Newton's method from many starts.

    Args:
        connected: whether names count only if a path without poles leads to them.
    """
    m = fields.dim
    points, generator = points[:_NUM_POINTS], torch.Generator().manual_seed(0)
    if m not in isotropy.prefixes:
        return None
    rest = torch.zeros(len(fields), dtype=torch.float64).expand(2 * _NUM_STARTS, 1, -1)
    turns = 2.0 * uniform((2, _NUM_STARTS, *points.shape), points, generator) - 1.0
    names = torch.cat([points + _MAX_START_SHIFT * turns[0], points * (_MAX_START_LOG_FACTOR * turns[1]).exp()])
    for _ in range(_NUM_ROUNDS):
        names, _, error = isotropy.correct(rest, points, names, m)
    found = (error < _MIN_DISTANCE * (1.0 + names.abs().amax(-1))) & (isotropy.misses(points, names) < _MAX_FIELD_ERROR)
    other = found & torch.isfinite(names).all(-1) & ((names - points).abs().amax(-1) > _MIN_DISTANCE)
    known: dict[tuple[int, ...], bool] = {}
    for k, p in other.nonzero().tolist() if connected else []:
        key = (p, *(names[k, p] / _MIN_DISTANCE**0.5).round().int().tolist())
        if key not in known:
            known[key] = _connected(fields, points[p : p + 1], names[k, p : p + 1])
        other[k, p] = known[key]
    if not bool(other.any(0).all()):
        return None
    moves = torch.stack([(names - points).abs(), (names / points).abs().log().abs()])  # [2, k, p, m]
    far = other[..., None] & (moves > _MIN_DISTANCE)
    shortest = torch.where(far, moves, math.inf).amin(1)
    longest = shortest.amax(1)
    constant = longest - shortest.amin(1) <= _MAX_FIELD_ERROR * longest  # false where all are infinite
    separates = (far & constant[:, None, None]).flatten(1, 2)  # [shift or factor, k * p, m]
    separates_all = separates[:, other.flatten()].all(1)
    reach, scaled = torch.full((m,), math.inf, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
    if bool(separates_all.any()):
        kind, c = separates_all.nonzero()[0].tolist()
        reach[c], scaled[c] = shortest[kind, 0, c] / 3.0, float(kind)
    elif bool(separates[0, other.flatten()].any(-1).all()):
        reach = torch.where(constant[0], shortest[0, 0] / 3.0, math.inf)
    else:
        return None
    return FundamentalDomain(Constant(reach), Constant(torch.zeros(m, dtype=torch.float64)), Constant(scaled))


def _sign_patterns(m: int) -> list[Tensor]:
    """Signs of the coordinates that are tried, the identity first."""
    one = torch.ones(m, dtype=torch.float64)
    if m > _MAX_DIM_OF_ALL_SIGNS:
        return [one, *(one - 2.0 * row for row in torch.eye(m, dtype=torch.float64))]
    return [torch.tensor(signs, dtype=torch.float64) for signs in itertools.product((1.0, -1.0), repeat=m)]


def _difference(fields: VectorFields, points: Tensor, signs: Tensor, shift: Tensor) -> float:
    return float(_differences(fields, points, signs, shift.unsqueeze(0))[0])


def _differences(fields: VectorFields, points: Tensor, signs: Tensor, shifts: Tensor) -> Tensor:
    """Relative difference of fields at ``signs x + shift`` from ``signs`` times those at x, for shifts ``[k, m]``."""
    here, there = fields(points), fields(points * signs + shifts.unsqueeze(1))
    size = here.abs().amax((0, 1)).clamp(min=1e-300)
    missed = ((there - signs * here).abs() / size).amax((1, 2, 3))
    return torch.where(torch.isfinite(missed), missed, math.inf)


def _shifts_of(m: int, c: int, lengths: Tensor) -> Tensor:
    shifts = torch.zeros(len(lengths), m, dtype=torch.float64)
    shifts[:, c] = lengths
    return shifts


def _is_constant(fields: VectorFields, points: Tensor, signs: Tensor, c: int) -> bool:
    lengths = torch.tensor([0.123, 1.047, 2.31], dtype=torch.float64)
    return bool((_differences(fields, points, signs, _shifts_of(fields.dim, c, lengths)) < _MAX_FIELD_ERROR).all())


def _deck_shifts(fields: VectorFields, points: Tensor, signs: Tensor, c: int) -> list[float]:
    """Lengths of shifts of one coordinate that leave the fields as they are, the shortest first."""
    m = fields.dim
    grid = torch.linspace(0.0, _MAX_SHIFT, _NUM_GRID_SHIFTS + 1, dtype=torch.float64)
    missed = _differences(fields, points, signs, _shifts_of(m, c, grid))
    lowest = (missed[1:-1] <= missed[:-2]) & (missed[1:-1] < missed[2:]) & (missed[1:-1] < _MAX_GRID_ERROR)
    found = []
    for index in (lowest.nonzero().flatten() + 1).tolist():
        low, high = float(grid[index - 1]), float(grid[index + 1])
        for _ in range(_NUM_SECTIONS):
            a, b = high - _GOLDEN_RATIO * (high - low), low + _GOLDEN_RATIO * (high - low)
            both = _differences(fields, points, signs, _shifts_of(m, c, torch.tensor([a, b], dtype=torch.float64)))
            low, high = (low, b) if float(both[0]) < float(both[1]) else (a, high)
        length = 0.5 * (low + high)
        shift = _shifts_of(m, c, torch.tensor([length], dtype=torch.float64))
        if float(_differences(fields, points, signs, shift)[0]) < _MAX_FIELD_ERROR:
            found.append(length)
    return found


def _is_branch(fields: VectorFields, points: Tensor, signs: Tensor) -> bool:
    """Whether a path around poles of the fields, at zero of the coordinates in question, changes their signs."""
    near = (
        fields(torch.where(signs < 0, _MIN_DISTANCE * points, points))
        .abs()
        .amax((-2, -1))
        .nan_to_num(math.inf, math.inf)
    )
    poles = near > _MAX_GROWTH * fields(points).abs().amax((-2, -1))
    return bool(poles.all()) and _connected(fields, points, points * signs)


def _connected(fields: VectorFields, start: Tensor, end: Tensor) -> bool:
    """Whether a path of two straight pieces exists along which fields are not much larger than at its ends."""
    generator = torch.Generator().manual_seed(0)
    size = 1.0 + (end - start).abs().amax(-1, keepdim=True)
    corners = 0.5 * (start + end) + size * (uniform((_NUM_PATHS, *start.shape), start, generator) - 0.5)
    s = torch.linspace(0.0, 1.0, _STEPS_PER_PIECE, dtype=torch.float64)[:, None, None, None]
    path = torch.cat([start + s * (corners - start), corners + s * (end - corners)])
    values = fields(path).abs().amax((-2, -1))  # [stations, paths, points]
    largest = values.nan_to_num(math.inf, math.inf).amax(0)
    return bool((largest <= _MAX_GROWTH * torch.maximum(values[0], values[-1])).any())
