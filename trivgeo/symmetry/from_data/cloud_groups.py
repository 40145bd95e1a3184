"""The linear group that leaves the distribution of a set of point clouds as it is, with its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import integers, keyed, normal, permutation
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SO, GeneratedGroup, from_generators
from trivgeo.verdict import Verdict

__all__ = ["CloudSymmetries", "symmetries_of_clouds"]

_MIN_CLOUDS = 60  # clouds of a set
_NUM_TESTED = 200  # clouds in each of two samples that are compared
_NUM_PERMUTATIONS = 199
_MIN_P_VALUE = 0.006  # below it two samples are of different distributions
_CLEARLY_APART = 2.0  # energy distance of different distributions, relative to the largest of permutations
_MAX_DISTANCE = 0.25  # energy distance of a symmetry, relative to that of maps that are none
_NOISE_RATIO = 5.0  # energy distances below this multiple of that of two samples are of noise
_NUM_ANGLES = 90  # axes of reflections that are tried
_MAX_ORDER = 12  # largest finite order of rotations that is told from all rotations
_GENERIC_ANGLES = (1.0, 2.2, math.sqrt(2.0) / 3)  # radians, no parts of a turn
_MAX_ANISOTROPY = 0.05  # relative difference of second moments that are as good as equal
_MIN_SPREAD = 0.2  # deviation of centres, relative to the radius of clouds, that is a translation
_RINGS, _RING_WIDTH = (0.5, 1.0, 1.5), 0.4  # radii at which clouds are described, and their width
_NUM_STARTS = 1500  # rotations of space from which poses are refined
_NUM_POSES = 1000  # clouds whose pose is found
_REFINEMENTS = 8  # refinements of a pose, each with half the reach
_LEAST_APART = 0.45  # radians between elements: rotations of the largest order are .52 apart
# misfit of clouds of the object of a reference, in units of a quantile, which is of such clouds
_MAX_MISFIT, _LOW_MISFIT = 3.0, 0.1
_CLUSTER_ANGLE = 0.25  # radians between rotations that are the same
_MIN_CLUSTER_SHARE = 0.25  # poses of an element, relative to those of the most frequent
_MIN_CLUSTER_SIZE = 3  # mean number of poses of an element
_MAX_SCATTER = 0.33  # median angle to the middle of a cluster, relative to its radius, of separate elements
_MAX_NEAR_PAIRS = 5.0  # pairs of poses near each other, relative to those of uniform rotations
_MAX_MISSED = 1.3  # elements of a group, relative to those that poses show
_MIN_MIRRORED_SHARE = 0.05  # clouds that are mirror images of the reference, of a group with reflections
_MIN_MIRRORED_RATIO = 0.3  # of clouds that are mirror images to the others, which are as many
_CLEAR_FIT = 0.7  # misfit of one of two mirror images, relative to that of the other, that tells them apart
_MAX_TESTED_POSES = 130  # candidates that are tested one by one; a finite group of the list has 60 at most
_MAX_AXIS_SPREAD = 0.15  # spread of axes across the largest direction that is one axis
_FINITE_NAMES = {(12, 3): "T", (24, 4): "O", (60, 5): "I"}  # by number of rotations and their largest order


@dataclass(frozen=True)
class CloudSymmetries:
    """The linear maps that leave the distribution of a set of point clouds as it is.

    Attributes:
        name: C_n, D_n, T, O, I, SO(2), O(2), SO(3), O(3) or trivial; in space the name of the rotations and ``"with
            reflections"`` where there are mirror images; with translations SE(2) and SE(3), or the name and ``"with
            translations"``.
        elements: the maps, ``[k, n, n]``; of a continuous group some of its elements, evenly spaced where it is SO(2).
        is_finite: whether these are all.
        has_translations: whether the clouds lie anywhere, whatever their shape.
        verdict: whether the set was large and clear enough to tell.
    """

    name: str
    elements: Float[Tensor, "k n n"]
    is_finite: bool
    has_translations: bool
    verdict: Verdict

    def augment(self, clouds: Float[Tensor, "m p n"], generator: torch.Generator | None = None) -> Tensor:
        """Move each cloud by an element that is drawn uniformly; translations are left out.

        Args:
            clouds: clouds to move.
            generator: draws the elements.
        """
        chosen = integers(len(self.elements), (len(clouds),), clouds, generator)
        centres = clouds.mean(1, keepdim=True) if self.has_translations else 0.0
        return (clouds - centres) @ self.elements[chosen].to(clouds).mT + centres

    def canonical(self, clouds: Float[Tensor, "m p n"]) -> Float[Tensor, "m p n"]:
        """Return the cloud among its images that goes furthest along one direction, for each cloud.

        Args:
            clouds: clouds like those of the set.
        """
        moved = torch.einsum("kij,mpj->kmpi", self.elements.to(clouds), clouds)
        moved = moved - moved.mean(2, keepdim=True) if self.has_translations else moved
        n = clouds.shape[-1]
        weights = torch.linspace(1.0, 2.0, n, dtype=clouds.dtype, device=clouds.device)
        projected = (moved * weights).sum(-1)
        best = (projected.mean(-1) + (projected.abs() * projected).mean(-1)).argmax(0)
        return moved[best, torch.arange(len(clouds), device=clouds.device)]

    def group(self) -> GeneratedGroup:
        """The connected part as a group with exponentials.

        Raises:
            ConfigurationError: the connected part is trivial.
        """
        n = self.elements.shape[-1]
        names = ("x", "y", "z")[:n]
        fields = {}
        if not self.is_finite:
            if n == 2:
                root, inverse = _square_roots(_invariant_metric(self.elements))
                turn = inverse @ torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64) @ root
                turns = [turn]
            else:
                whole = self.name.startswith(("SO(3)", "SE(3)", "O(3)", "E(3)"))
                axes = [(0, 1), (1, 2), (0, 2)] if whole else []
                turns = [torch.zeros(3, 3, dtype=torch.float64) for _ in axes]
                for turn, (i, j) in zip(turns, axes, strict=True):
                    turn[i, j], turn[j, i] = -1.0, 1.0
                if not axes:
                    v = _common_axis(self.elements[torch.linalg.det(self.elements) > 0])
                    turns = [torch.linalg.cross(v.expand(3, 3), torch.eye(3, dtype=torch.float64), dim=1).mT]
            for k, turn in enumerate(turns):
                rows = [" + ".join(f"({c:.12g})*{x}" for c, x in zip(row, names, strict=True)) for row in turn.tolist()]
                fields[f"R{k + 1}"] = tuple(rows)
        if self.has_translations:
            fields |= {f"T{i + 1}": tuple("1" if j == i else "0" for j in range(n)) for i in range(n)}
        if not fields:
            raise ConfigurationError(f"name: expected a group with a connected part, got {self.name}")
        return from_generators(fields, variables=names)


@checked
def symmetries_of_clouds(
    clouds: Float[Tensor, "m p n"] | Sequence[Tensor], generator: torch.Generator | None = None
) -> CloudSymmetries:
    r"""Find which linear maps leave the distribution of a set of point clouds as it is.

    A map g is a symmetry of the set if the clouds and the moved clouds :math:`g x` have one distribution. Clouds are
    described by moments that do not depend on the order of the points, and samples compared by their energy distance
    with a test of permutations (Szekely and Rizzo 2004). In the plane all rotations by parts of a turn are tested, and
    reflections about all axes. In space candidates are the poses of clouds relative to one cloud, which are found from
    many starts, joined into elements and tested; the set is then one object, or a few. Second moments of a set with a
    compact group are invariant, so their square root makes the maps orthogonal.

    Args:
        clouds: at least 60 clouds in the plane or in space: one tensor, or a list of clouds ``[p_i, n]`` of different
            sizes, of which as many points are drawn as the smallest has.
        generator: draws samples, permutations and starts.

    Returns:
        The group, by name, with its elements; see `CloudSymmetries`.

    Raises:
        ShapeError: too few clouds, or points that are not in the plane or in space.
        ConfigurationError: points are not finite, or lie on a line.

    Example:
        ``symmetries_of_clouds(clouds).name`` is ``"C_4"`` for photographs' landmarks that were turned by quarters.
    """
    draw = keyed(0) if generator is None else generator
    clouds = clouds if isinstance(clouds, Tensor) else _of_one_size(clouds, draw)
    n = clouds.shape[-1]
    if n not in (2, 3) or len(clouds) < _MIN_CLOUDS:
        raise ShapeError(f"clouds: expected at least {_MIN_CLOUDS} clouds [m, p, 2 or 3], got {list(clouds.shape)}")
    points = clouds.double().cpu()
    if not bool(points.isfinite().all()):
        raise ConfigurationError("clouds: expected finite points, got NaN or infinity")
    centres = points.mean(1, keepdim=True)
    radius = (points - centres).square().sum(-1).mean().sqrt()
    has_translations = bool(centres.std(0).amin() > _MIN_SPREAD * radius)
    if has_translations:
        # of a set with translations the shape of a cloud does not depend on where it lies
        has_translations = not _depends(_moments((points - centres) / radius), centres[:, 0], draw)
        points = points - centres if has_translations else points
    flat = points.flatten(0, 1)
    metric = flat.mT @ flat / len(flat)
    heights = torch.linalg.eigvalsh(metric)
    if float(heights[0]) <= 1e-10 * float(heights[-1]):
        raise ConfigurationError("clouds: expected points that span the plane or space, got a line, a plane or a point")
    if float(heights[-1] / heights[0]) - 1 < _MAX_ANISOTROPY:
        metric = torch.eye(n, dtype=torch.float64) * heights.mean()
    root, inverse = _square_roots(metric)
    white = points @ inverse
    name, elements, is_finite, reasons = _in_plane(white, draw) if n == 2 else _in_space(white, draw)
    elements = root @ elements @ inverse
    if has_translations:
        whole = {"SO(2)": "SE(2)", "O(2)": "E(2)", "SO(3)": "SE(3)", "O(3)": "E(3)"}
        name = whole.get(name, f"{name} with translations")
    assumptions = ["rotations by less than a twelfth of a turn come with all rotations"] if n == 2 else []
    if n == 3:
        assumptions.append("the clouds are one object in several poses, or a few")
    if has_translations:
        assumptions.append("translations go on beyond the range of the clouds")
    return CloudSymmetries(name, elements, is_finite, has_translations, Verdict(tuple(reasons), tuple(assumptions)))


def _of_one_size(clouds: Sequence[Tensor], draw: torch.Generator) -> Tensor:
    """Clouds ``[p_i, n]`` as one tensor: of each as many points are drawn as the smallest cloud has."""
    for cloud in clouds:
        if not isinstance(cloud, Tensor) or cloud.ndim != 2 or cloud.shape[1] != clouds[0].shape[1]:
            got = list(cloud.shape) if isinstance(cloud, Tensor) else type(cloud).__name__
            raise ShapeError(f"clouds: expected clouds [p_i, n] of one number n of coordinates, got {got}")
    count = min((len(cloud) for cloud in clouds), default=0)
    if not count:
        raise ShapeError(f"clouds: expected at least {_MIN_CLOUDS} clouds with points, got {len(clouds)}")
    return torch.stack([cloud[permutation((len(cloud),), cloud, draw)[:count]] for cloud in clouds])


def _square_roots(metric: Tensor) -> tuple[Tensor, Tensor]:
    """The symmetric square root and its inverse."""
    values, vectors = torch.linalg.eigh(metric)
    return vectors @ torch.diag(values.sqrt()) @ vectors.mT, vectors @ torch.diag(values.rsqrt()) @ vectors.mT


def _invariant_metric(elements: Tensor) -> Tensor:
    """Second moments that maps g leave as they are: of points g x of one mean length."""
    return torch.einsum("kij,klj->il", elements, elements) / len(elements)


def _common_axis(rotations: Tensor) -> Tensor:
    """The axis of rotations about one axis."""
    return torch.linalg.eigh((rotations + rotations.mT).mean(0)).eigenvectors[:, -1]


def _depends(features: Tensor, centres: Tensor, draw: torch.Generator) -> bool:
    """Return True if features depend on the places of clouds, by a permutation test of linear correlations."""
    x = (features - features.mean(0)) / features.std(0).clamp_min(1e-12)
    y = (centres - centres.mean(0)) / centres.std(0)
    y = torch.cat([y, y.square() - 1], 1)
    sizes = [float((x.mT @ y[permutation((len(y),), y, draw)]).square().sum()) for _ in range(_NUM_PERMUTATIONS)]
    return sum(s >= float((x.mT @ y).square().sum()) for s in sizes) < _MIN_P_VALUE * _NUM_PERMUTATIONS


def _moments(points: Tensor) -> Tensor:
    """Moments of degree one to three, ``[m, k]``."""
    m = len(points)
    first = points.mean(1)
    second = torch.einsum("mpi,mpj->mij", points, points) / points.shape[1]
    third = torch.einsum("mpi,mpj,mpk->mijk", points, points, points) / points.shape[1]
    return torch.cat([first, second.reshape(m, -1), third.reshape(m, -1)], 1)


# -- the plane ---------------------------------------------------------------------------------------------------------


def _harmonics(points: Tensor) -> Tensor:
    """Complex moments ``[m, k, rings]`` that a rotation by an angle a multiplies by exp(i k a), k = 1, ..., 12."""
    z = torch.complex(points[..., 0], points[..., 1])
    radius = z.abs()
    weights = [torch.exp(-(((radius - ring) / _RING_WIDTH) ** 2) / 2) * radius.clamp(max=1.0) for ring in _RINGS]
    turned = z / radius.clamp_min(1e-12)
    return torch.stack(
        [torch.stack([(w * turned**k).mean(1) for w in weights], -1) for k in range(1, _MAX_ORDER + 1)], 1
    )


def _in_plane(points: Tensor, draw: torch.Generator) -> tuple[str, Tensor, bool, list[str]]:
    """The group of clouds in the plane whose second moments are those of a disc."""
    moments = _harmonics(points / points.square().sum(-1).mean().sqrt())
    moments = moments / moments.abs().square().mean(0).sqrt().clamp_min(1e-12)
    half = min(_NUM_TESTED, len(moments) // 2)
    order = permutation((len(moments),), moments, draw)
    first, second = moments[order[:half]], moments[order[half : 2 * half]]
    orders = torch.arange(1, _MAX_ORDER + 1, dtype=torch.float64)
    noise = _NOISE_RATIO * _distance_of_noise(_real(first), _real(second), draw)

    def moved(angle: float, is_reflection: bool = False) -> Tensor:
        turned = second.conj() if is_reflection else second
        return _real(turned * torch.exp(1j * angle * orders)[:, None])

    def apart(angle: float, is_reflection: bool = False) -> float:
        return _energy_distance(_real(first), moved(angle, is_reflection))

    most = max(apart(2 * math.pi * k / 23) for k in range(1, 12))  # no group of the list has these rotations
    doubtful: list[tuple[float, bool]] = []

    def same(angle: float, is_reflection: bool = False) -> bool:
        if most >= noise and apart(angle, is_reflection) >= _MAX_DISTANCE * most:
            return False
        found = _of_one_distribution(_real(first), moved(angle, is_reflection), draw)
        if found is None:
            doubtful.append((angle, is_reflection))
        return bool(found)

    turns = [n for n in range(2, _MAX_ORDER + 1) if same(2 * math.pi / n)]
    is_round = len(turns) >= _MAX_ORDER - 3 and all(same(a) for a in _GENERIC_ANGLES)
    count = 1 if not turns else math.lcm(*turns)
    reasons = []
    if not is_round and count > 1 and count not in turns:
        reasons.append(f"rotations by parts {turns} of a turn pass, which make no group of at most {_MAX_ORDER}")
        count = max(turns)
    # a reflection about the axis at an angle a takes z to exp(2 i a) conj(z)
    angles = torch.arange(_NUM_ANGLES, dtype=torch.float64) * 2 * math.pi / _NUM_ANGLES
    heights = [apart(float(a), True) for a in angles]
    best = float(angles[int(torch.tensor(heights).argmin())])
    nearby = best + torch.linspace(-1, 1, 21, dtype=torch.float64) * 2 * math.pi / _NUM_ANGLES
    best = min(nearby.tolist(), key=lambda a: apart(a, True))
    if is_round:
        # all rotations hide a reflection from the moments, but not from their invariants
        doubtful.clear()
        found = _of_one_distribution(_real(_invariants(first)), _real(_invariants(second.conj())), draw)
        has_reflections = bool(found)
        if found is None:
            doubtful.append((best, True))
    else:
        has_reflections = same(best, True)
    size = 72 if is_round else count
    rotations = SO(2).exp(2 * math.pi * torch.arange(size, dtype=torch.float64).unsqueeze(-1) / size)
    elements = rotations
    if has_reflections:
        mirror = SO(2).exp(torch.tensor([best], dtype=torch.float64)) @ torch.diag(
            torch.tensor([1.0, -1.0], dtype=torch.float64)
        )
        elements = torch.cat([rotations, rotations @ mirror])
    if is_round:
        name = "O(2)" if has_reflections else "SO(2)"
    elif has_reflections:
        name = f"D_{count}"
    else:
        name = f"C_{count}" if count > 1 else "trivial"
    left = [
        "a reflection" if is_reflection else f"a rotation by {angle / 2 / math.pi:.3g} of a turn"
        for angle, is_reflection in doubtful
        if (not has_reflections if is_reflection else not _is_whole(angle / 2 / math.pi * count))
    ]
    return name, elements, not is_round, reasons + _at_least(name, left)


def _is_whole(x: float) -> bool:
    return abs(x - round(x)) < 1e-9


def _at_least(name: str, doubtful: Sequence[str]) -> list[str]:
    """The reason why a group may be larger: maps that the test excludes, but not clearly."""
    if not doubtful:
        return []
    return [f"the group is at least {name}: {doubtful[0]} is not clearly excluded"]


def _invariants(moments: Tensor) -> Tensor:
    """Products of moments that rotations leave as they are and reflections conjugate, ``[m, k]``."""
    low = moments[:, :5]
    pairs = [(i, j) for i in range(1, 5) for j in range(i, 6 - i)]
    mixed = [low[:, i - 1] * low[:, j - 1].roll(1, -1) * low[:, i + j - 1].conj() for i, j in pairs]
    found = torch.stack(mixed, 1).flatten(1)
    return found / found.abs().square().mean(0).sqrt().clamp_min(1e-12)


def _real(moments: Tensor) -> Tensor:
    return torch.view_as_real(moments).flatten(1)


def _energy_distance(first: Tensor, second: Tensor) -> float:
    """The energy distance of two samples (Szekely and Rizzo 2004)."""
    between = torch.cdist(first, second).mean()
    return float(2 * between - torch.cdist(first, first).mean() - torch.cdist(second, second).mean())


def _of_one_distribution(first: Tensor, second: Tensor, draw: torch.Generator) -> bool | None:
    """Whether samples may be of one distribution, by permutations; ``None`` if they may not, but not clearly.

    Where they are, distances beyond twice that of the least probable of 200 are about as rare as its square.
    """
    own, shuffled = _permuted_distances(first, second, draw)
    if 1 + int((shuffled >= own).sum()) >= _MIN_P_VALUE * (1 + _NUM_PERMUTATIONS):
        return True
    return False if own > _CLEARLY_APART * shuffled.max() else None


def _distance_of_noise(first: Tensor, second: Tensor, draw: torch.Generator) -> float:
    """The mean energy distance of two samples of one distribution."""
    return float(_permuted_distances(first, second, draw)[1].mean())


def _permuted_distances(first: Tensor, second: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """The energy distance of two samples of one size, and those of random parts of both, ``[permutations]``."""
    distances = torch.cdist(torch.cat([first, second]), torch.cat([first, second]))
    signs = torch.cat([torch.ones(len(first)), -torch.ones(len(second))]).double()
    shuffled = torch.stack([signs[permutation((len(signs),), signs, draw)] for _ in range(_NUM_PERMUTATIONS)])
    # the energy distance is minus the quadratic form of the signs
    values = -((shuffled @ distances) * shuffled).sum(-1) / len(first) ** 2
    return -(signs @ distances @ signs) / len(first) ** 2, values


# -- space -------------------------------------------------------------------------------------------------------------


def _in_space(points: Tensor, draw: torch.Generator) -> tuple[str, Tensor, bool, list[str]]:
    """The group of poses of few objects in space whose second moments are those of a ball.

    Poses are candidates; maps are kept that leave the distribution of the clouds as it is.
    """
    points = points / points.square().sum(-1).mean().sqrt()
    points = points[permutation((len(points),), points, draw)]
    half = min(_NUM_TESTED, len(points) // 2)
    first, second = _moments(points[:half]), points[half : 2 * half]
    doubtful: list[Tensor] = []

    def same(g: Tensor) -> bool:
        found = _of_one_distribution(first, _moments(second @ g.mT), draw)
        if found is None:
            doubtful.append(g)
        return bool(found)

    moved = points[: _NUM_POSES + 1]
    poses, misfits = _poses(moved[0], moved[1:], draw)
    mirrored, other_misfits = _poses(-moved[0], moved[1:], draw)
    # the others are clouds of another object than the reference
    misfit = torch.minimum(misfits, other_misfits)
    poses, mirrored, misfits, other_misfits = (
        x[misfit <= _MAX_MISFIT * misfit.quantile(_LOW_MISFIT)] for x in (poses, mirrored, misfits, other_misfits)
    )
    is_plain, is_mirrored = misfits < _CLEAR_FIT * other_misfits, other_misfits < _CLEAR_FIT * misfits
    share, plain_share = (float(x.double().mean()) for x in (is_mirrored, is_plain))
    has_images = plain_share > 0.0 and share >= max(_MIN_MIRRORED_SHARE, _MIN_MIRRORED_RATIO * plain_share)
    name, elements, is_finite, reasons = _of_poses(poses[is_plain] if has_images else poses, same, draw)
    turns = [g for g in doubtful if is_finite and float(_nearest(g[None], elements)) >= _CLUSTER_ANGLE]
    left = [f"a rotation by {float(_angle(g)) / 2 / math.pi:.2g} of a turn" for g in turns]
    if not has_images:
        if share >= _MIN_MIRRORED_SHARE:
            reasons.append(
                f"{share:.0%} of the clouds look like mirror images of others: of reflections it would be half"
            )
        return name, elements, is_finite, reasons + _at_least(name, left)
    # a mirror image of the reference that is turned by R is moved by -R
    images = -torch.stack([mirrored[is_mirrored][c].mean(0) for c in _clustered(mirrored[is_mirrored])])
    images = torch.stack([-SO(3).project(-g) for g in images])
    image = next((g for g in images if same(g)), None)
    if image is None:
        reasons.append("some clouds are mirror images of others, but no reflection leaves the distribution as it is")
        return name, elements, is_finite, reasons
    name = "O(3)" if name == "SO(3)" else f"{name} with reflections"
    return name, torch.cat([elements, image @ elements]), is_finite, reasons + _at_least(name, left)


def _of_poses(
    poses: Tensor, same: Callable[[Tensor], bool], draw: torch.Generator
) -> tuple[str, Tensor, bool, list[str]]:
    """The group of rotations from poses of clouds relative to one cloud, and a test of maps."""
    clusters = _clustered(poses)
    most = max(map(len, clusters))
    kept = [c for c in clusters if len(c) >= _MIN_CLUSTER_SHARE * most]
    centres = torch.stack([SO(3).project(poses[c].mean(0)) for c in kept])
    scatter = torch.cat([_nearest(poses[c], centres[i : i + 1]) for i, c in enumerate(kept)]).median()
    is_spread = float(scatter) > _MAX_SCATTER * _CLUSTER_ANGLE or len(poses) < _MIN_CLUSTER_SIZE * len(kept)
    elements, closes = torch.eye(3, dtype=torch.float64).unsqueeze(0), False
    if len(centres) <= _MAX_TESTED_POSES:
        elements = _completed(
            torch.cat([elements, *(g.unsqueeze(0) for g in centres if _angle(g) > _CLUSTER_ANGLE and same(g))])
        )
        closes = bool((_nearest(elements[:, None] @ elements, elements) < _CLUSTER_ANGLE).all())
    name = _finite_name(elements)
    if len(kept) > 1 and (is_spread or not closes or name is None):
        spread = torch.linalg.svdvals(torch.stack([_axis_of(r) for r in poses]))
        has_axis = float(spread[1]) < _MAX_AXIS_SPREAD * float(spread[0])
        turns = SO(3).random_haar(len(_GENERIC_ANGLES), generator=draw, dtype=torch.float64)
        if has_axis:
            axis = _common_axis(poses)
            turns = SO(3).exp(torch.tensor(_GENERIC_ANGLES, dtype=torch.float64)[:, None] * axis)
        if (has_axis or _are_everywhere(poses)) and all(same(g) for g in turns):
            return ("SO(2)" if has_axis else "SO(3)"), poses, False, []
    reasons = [] if closes else [f"the {len(elements)} rotations that were found make no group"]
    if is_spread and len(kept) > 1:
        reasons.append("the poses of clouds are spread, but generic rotations change their distribution")
    if name is None:
        reasons.append(f"no finite group of the list has {len(elements)} such rotations")
    return name or f"{len(elements)} rotations", elements, True, reasons


def _are_everywhere(poses: Tensor) -> bool:
    """Whether few poses are near each other, as of all rotations; of a finite group many are.

    Moments of clouds in the poses of a finite group may be distributed like those of all rotations.
    """
    expected = len(poses) * (len(poses) - 1) / 2 * (_CLUSTER_ANGLE - math.sin(_CLUSTER_ANGLE)) / math.pi
    flat = poses.flatten(1)
    near = ((flat @ flat.mT).triu(1) > 1 + 2 * math.cos(_CLUSTER_ANGLE)).sum()
    return int(near) <= _MAX_NEAR_PAIRS * max(expected, 1.0)


def _finite_name(elements: Tensor) -> str | None:
    """The name of a group of rotations by their number and largest order; ``None`` if none of the list has these."""
    angles = torch.stack([_angle(r) for r in elements])
    largest = max((round(2 * math.pi / float(a)) for a in angles if a > _CLUSTER_ANGLE), default=1)
    size = len(elements)
    if size == 1:
        return "trivial"
    if size == largest:
        return f"C_{size}" if size <= _MAX_ORDER else None
    if size == 2 * largest or (size == 4 and largest == 2):
        return f"D_{size // 2}"
    return _FINITE_NAMES.get((size, largest))


def _poses(reference: Tensor, clouds: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rotations ``[m, 3, 3]`` that bring the moments of a reference nearest to those of each cloud, and misfits."""
    targets = _moments(clouds)

    def turned(rotations: Tensor) -> Tensor:
        return _moments(torch.einsum("...ij,pj->...pi", rotations, reference).reshape(-1, *reference.shape))

    starts = SO(3).random_haar(_NUM_STARTS, generator=draw, dtype=reference.dtype)
    best = starts[torch.cdist(targets, turned(starts)).topk(3, largest=False).indices]  # [m, 3, 3, 3]
    reach = 0.3
    for _ in range(_REFINEMENTS):
        steps = reach * normal((len(best), 3, 12, 3), reference, draw)
        steps[:, :, 0] = 0.0
        tried = SO(3).exp(steps) @ best.unsqueeze(2)
        heights = (turned(tried).reshape(*tried.shape[:3], -1) - targets[:, None, None]).norm(dim=-1)
        best = tried.gather(2, heights.argmin(2)[..., None, None, None].expand(-1, -1, 1, 3, 3)).squeeze(2)
        reach /= 1.6
    heights = (turned(best).reshape(*best.shape[:2], -1) - targets[:, None]).norm(dim=-1)
    return best[torch.arange(len(best)), heights.argmin(1)], heights.amin(1)


def _angle(rotation: Tensor) -> Tensor:
    return ((rotation.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2).clamp(-1, 1).acos()


def _axis_of(rotation: Tensor) -> Tensor:
    """The axis of a rotation, of either sign, zero for the identity."""
    symmetric = (rotation + rotation.mT) / 2
    axis = torch.linalg.eigh(symmetric).eigenvectors[:, -1]
    return axis * _angle(rotation).sin().abs().clamp(max=1.0)


def _nearest(rotations: Tensor, elements: Tensor) -> Tensor:
    """The angle to the nearest of some elements."""
    flat = rotations.reshape(-1, 9)
    traces = flat @ elements.reshape(-1, 9).mT
    return ((traces.amax(1) - 1) / 2).clamp(-1, 1).acos()


def _completed(elements: Tensor) -> Tensor:
    """The elements and their products, if these are few more."""
    found = elements
    while len(found) <= _MAX_MISSED * len(elements):
        products = (found[:, None] @ elements).flatten(0, 1)
        far = products[_nearest(products, found) >= _CLUSTER_ANGLE]
        if not len(far):
            return found
        found = torch.cat([found, far[:1]])
    return elements


def _clustered(poses: Tensor) -> list[list[int]]:
    """Poses within a small angle of the first of each cluster; clusters nearer than elements are one."""
    clusters: list[list[int]] = []
    for members in sorted(_near_first(poses), key=len, reverse=True):
        firsts = poses[[c[0] for c in clusters]]
        if clusters and float(_nearest(poses[members].mean(0)[None], firsts)) < _LEAST_APART:
            traces = firsts.reshape(-1, 9) @ poses[members].mean(0).reshape(9)
            clusters[int(traces.argmax())] += members
        else:
            clusters.append(members)
    return clusters


def _near_first(poses: Tensor) -> list[list[int]]:
    """Poses within a small angle of the first of each cluster."""
    centres: list[int] = []
    members: list[list[int]] = []
    for i in range(len(poses)):
        if centres:
            traces = poses[centres].reshape(-1, 9) @ poses[i].reshape(9)
            near = int(traces.argmax())
            if float(((traces[near] - 1) / 2).clamp(-1, 1).acos()) < _CLUSTER_ANGLE:
                members[near].append(i)
                continue
        centres.append(i)
        members.append([i])
    return members
