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
from trivgeo.groups.generated.isotropy import Isotropy
from trivgeo.groups.generated.vector_fields import VectorFields

__all__ = ["FundamentalDomain", "find_fundamental_domain", "find_isotropy_domain"]

_LONGEST, _GRID = 20.0, 1000  # of the steps that are searched
_REFINED = 60  # golden sections
_SAME = 1e-6  # what fields at both places may differ by, relative to their size
_NEARLY = 0.2  # the same on the grid
_POINTS, _PATHS, _STATIONS = 4, 6, 400
_WALL = 30.0  # growth of fields along a path that has met a wall
_CLOSE = 1e-4
_PAIRS, _SIZES = 40, (0.3, 0.6, 1.2)  # of elements whose law is tried, and what they measure
_OTHER = 1e-2
_STARTS, _ROUNDS, _FAR, _FACTOR = 300, 4, 8.0, 4.0  # of searches for other names, and how far from the first
_MOST_FLIPS = 4  # with more coordinates, at most one changes its sign


@dataclass(frozen=True)
class FundamentalDomain:
    """How far points may move so that no other name of the image is as near.

    Attributes:
        reach: in each coordinate, ``[m]``; infinite where it does not matter.
        signed: one for each coordinate that has to keep its sign, else zero, ``[m]``.
        scaled: one for each coordinate whose logarithm is meant, else zero, ``[m]``.
    """

    reach: Constant
    signed: Constant
    scaled: Constant

    def contains(self, x: Tensor, y: Tensor) -> Tensor:
        """Whether points x ``[*batch, p, m]``, or their leading coordinates, moved to y are within it."""
        m = x.shape[-1]
        scaled = self.scaled.like(x)[:m] > 0
        ratio = torch.where(scaled & (x != 0), y / torch.where(x == 0, 1.0, x), 1.0)
        moved = torch.where(scaled, torch.where(ratio > 0, ratio, math.inf).log(), y - x)
        near = moved.abs() < self.reach.like(x)[:m]
        kept = (x * y >= 0) | (self.signed.like(x)[:m] == 0)
        return (near & kept).all(-1)


def find_fundamental_domain(fields: VectorFields, points: Tensor) -> FundamentalDomain | None:
    """The steps of single coordinates, and changes of sign, that leave the fields as they are.

    Args:
        fields: the fields.
        points: sample points, ``[p, m]``.

    Returns:
        ``None`` if there are no such maps, or none that a path without poles connects with the identity.
    """
    points = points[:_POINTS]
    m = fields.dim
    reach, signed = torch.full((m,), math.inf, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
    for signs in _patterns(m):
        unmoved = _difference(fields, points, signs, torch.zeros(m, dtype=torch.float64))
        flipped = (signs < 0).nonzero().flatten().tolist()
        if flipped and unmoved < _SAME and _is_branch(fields, points, signs):
            signed[flipped[0]] = 1.0
        for c in range(m):
            if c in flipped or (unmoved < _SAME and _is_constant(fields, points, signs, c)):
                continue
            for length in _steps(fields, points, signs, c):
                moved = points * signs
                moved[:, c] += length
                if _connected(fields, points, moved):
                    reach[c] = min(float(reach[c]), length / 3.0)
                    break
    if bool(torch.isinf(reach).all()) and not bool(signed.any()):
        return None
    return FundamentalDomain(Constant(reach), Constant(signed), Constant(torch.zeros(m, dtype=torch.float64)))


def find_isotropy_domain(
    fields: VectorFields, isotropy: Isotropy, points: Tensor, connected: bool = True
) -> FundamentalDomain | None:
    """A coordinate, or several, in which all names of a place are at least a constant step, or factor, apart.

    Names are points at which the same fields vanish, found by Newton's method from many starts.

    Args:
        fields: the fields.
        isotropy: which fields vanish.
        points: sample points, ``[p, m]``.
        connected: whether to leave out names to which no path without poles leads.
    """
    m = fields.dim
    points, generator = points[:_POINTS], torch.Generator().manual_seed(0)
    if m not in isotropy.counts:
        return None
    rest = torch.zeros(len(fields), dtype=torch.float64).expand(2 * _STARTS, 1, -1)
    turns = 2.0 * uniform((2, _STARTS, *points.shape), points, generator) - 1.0
    names = torch.cat([points + _FAR * turns[0], points * (_FACTOR * turns[1]).exp()])
    for _ in range(_ROUNDS):
        names, _, error = isotropy.correct(rest, points, names, m)
    found = (error < _CLOSE * (1.0 + names.abs().amax(-1))) & (isotropy.misses(points, names) < _SAME)
    other = found & torch.isfinite(names).all(-1) & ((names - points).abs().amax(-1) > _CLOSE)
    known: dict[tuple[int, ...], bool] = {}
    for k, p in other.nonzero().tolist() if connected else []:
        key = (p, *(names[k, p] / _CLOSE**0.5).round().int().tolist())
        if key not in known:
            known[key] = _connected(fields, points[p : p + 1], names[k, p : p + 1])
        other[k, p] = known[key]
    if not bool(other.any(0).all()):
        return None
    moves = torch.stack([(names - points).abs(), (names / points).abs().log().abs()])  # [2, k, p, m]
    far = other[..., None] & (moves > _CLOSE)
    shortest = torch.where(far, moves, math.inf).amin(1)
    constant = (shortest.amax(1) - shortest.amin(1)) <= _SAME * shortest.amax(1)  # false where all are infinite
    told = (far & constant[:, None, None]).flatten(1, 2)  # by which coordinate a name is told from the first
    everyone = told[:, other.flatten()].all(1)
    reach, scaled = torch.full((m,), math.inf, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
    if bool(everyone.any()):
        way, c = everyone.nonzero()[0].tolist()
        reach[c], scaled[c] = shortest[way, 0, c] / 3.0, float(way)
    elif bool(told[0, other.flatten()].any(-1).all()):
        reach = torch.where(constant[0], shortest[0, 0] / 3.0, math.inf)
    else:
        return None
    return FundamentalDomain(Constant(reach), Constant(torch.zeros(m, dtype=torch.float64)), Constant(scaled))


def _patterns(m: int) -> list[Tensor]:
    """Signs of the coordinates."""
    one = torch.ones(m, dtype=torch.float64)
    if m > _MOST_FLIPS:
        return [one, *(one - 2.0 * row for row in torch.eye(m, dtype=torch.float64))]
    return [torch.tensor(signs, dtype=torch.float64) for signs in itertools.product((1.0, -1.0), repeat=m)]


def _difference(fields: VectorFields, points: Tensor, signs: Tensor, shift: Tensor) -> float:
    return float(_differences(fields, points, signs, shift.unsqueeze(0))[0])


def _differences(fields: VectorFields, points: Tensor, signs: Tensor, shifts: Tensor) -> Tensor:
    """How much fields at ``signs x + shift`` differ from those that the map makes of the fields at x, ``[k]``."""
    here, there = fields(points), fields(points * signs + shifts.unsqueeze(1))
    size = here.abs().amax((0, 1)).clamp(min=1e-300)
    missed = ((there - signs * here).abs() / size).amax((1, 2, 3))
    return torch.where(torch.isfinite(missed), missed, math.inf)


def _along(m: int, c: int, lengths: Tensor) -> Tensor:
    shifts = torch.zeros(len(lengths), m, dtype=torch.float64)
    shifts[:, c] = lengths
    return shifts


def _is_constant(fields: VectorFields, points: Tensor, signs: Tensor, c: int) -> bool:
    lengths = torch.tensor([0.123, 1.047, 2.31], dtype=torch.float64)
    return bool((_differences(fields, points, signs, _along(fields.dim, c, lengths)) < _SAME).all())


def _steps(fields: VectorFields, points: Tensor, signs: Tensor, c: int) -> list[float]:
    """Lengths of steps along one coordinate, the shortest first."""
    m = fields.dim
    grid = torch.linspace(0.0, _LONGEST, _GRID + 1, dtype=torch.float64)
    missed = _differences(fields, points, signs, _along(m, c, grid))
    lowest = (missed[1:-1] <= missed[:-2]) & (missed[1:-1] < missed[2:]) & (missed[1:-1] < _NEARLY)
    found = []
    for index in (lowest.nonzero().flatten() + 1).tolist():
        low, high = float(grid[index - 1]), float(grid[index + 1])
        for _ in range(_REFINED):
            a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
            both = _differences(fields, points, signs, _along(m, c, torch.tensor([a, b], dtype=torch.float64)))
            low, high = (low, b) if float(both[0]) < float(both[1]) else (a, high)
        length = 0.5 * (low + high)
        shift = _along(m, c, torch.tensor([length], dtype=torch.float64))
        if float(_differences(fields, points, signs, shift)[0]) < _SAME:
            found.append(length)
    return found


_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


def _is_branch(fields: VectorFields, points: Tensor, signs: Tensor) -> bool:
    """Whether a change of signs goes around poles of the fields where it changes nothing."""
    near = fields(torch.where(signs < 0, _CLOSE * points, points)).abs().amax((-2, -1)).nan_to_num(math.inf, math.inf)
    poles = near > _WALL * fields(points).abs().amax((-2, -1))
    return bool(poles.all()) and _connected(fields, points, points * signs)


def _connected(fields: VectorFields, start: Tensor, end: Tensor) -> bool:
    """Whether some path of two straight pieces stays where the fields are of the size that they have at its ends."""
    generator = torch.Generator().manual_seed(0)
    size = 1.0 + (end - start).abs().amax(-1, keepdim=True)
    corners = 0.5 * (start + end) + size * (uniform((_PATHS, *start.shape), start, generator) - 0.5)
    s = torch.linspace(0.0, 1.0, _STATIONS, dtype=torch.float64)[:, None, None, None]
    path = torch.cat([start + s * (corners - start), corners + s * (end - corners)])
    values = fields(path).abs().amax((-2, -1))  # [stations, paths, points]
    largest = values.nan_to_num(math.inf, math.inf).amax(0)
    return bool((largest <= _WALL * torch.maximum(values[0], values[-1])).any())
