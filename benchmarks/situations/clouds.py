"""Clouds of points that were moved by NumPy: `register` beside the true transformation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from benchmarks.situations.pictures import element, rotation
from benchmarks.situations.record import Kind, Outcome, Situation, each, registration_outcome
from trivgeo.groups import SE, SO, Affine, E, LieGroup, O, Projective, Similarity, Translation
from trivgeo.registration import register

Array = NDArray[np.float64]
Pair = Callable[[np.random.Generator], tuple[Array, Array]]
"""Random numbers to two clouds of one thing, ``[m, n]`` and ``[k, n]``, before one is moved."""
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Errors that are rounding, in units of the size of a cloud."""


# -- things ------------------------------------------------------------------------------------------------------------


def same(points: Callable[[np.random.Generator], Array], std: float = 0.02, shuffled: bool = False) -> Pair:
    """The same points twice, each time with errors, in one order or none."""

    def pair(rng: np.random.Generator) -> tuple[Array, Array]:
        p = points(rng)
        a, b = (p + std * rng.normal(size=p.shape) for _ in range(2))
        return a, rng.permutation(b) if shuffled else b

    return pair


def two(surface: Callable[[np.random.Generator, int], Array], m: int, k: int = 0, std: float = 0.01) -> Pair:
    """Two samples of a curve or a surface."""

    def pair(rng: np.random.Generator) -> tuple[Array, Array]:
        a, b = surface(rng, m), surface(rng, k or m)
        return a + std * rng.normal(size=a.shape), b + std * rng.normal(size=b.shape)

    return pair


def blob(m: int, n: int) -> Callable[[np.random.Generator], Array]:
    """Normal points."""
    return lambda rng: rng.normal(size=(m, n))


def along(corners: Array) -> Callable[[np.random.Generator, int], Array]:
    """Places on a closed line through corners."""

    def surface(rng: np.random.Generator, m: int) -> Array:
        ends = np.roll(corners, -1, 0)
        length = np.linalg.norm(ends - corners, axis=1)
        edge = rng.choice(len(corners), m, p=length / length.sum())
        return corners[edge] + rng.random((m, 1)) * (ends - corners)[edge]

    return surface


def sphere(rng: np.random.Generator, m: int, n: int = 3) -> Array:
    """The unit sphere."""
    x = rng.normal(size=(m, n))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def bumpy(rng: np.random.Generator, m: int, n: int = 3, thing: int = 0) -> Array:
    """A closed surface with bumps that determine its pose; ``thing`` says which."""
    directions = np.random.default_rng(50 + thing).normal(size=(5, n))
    x = sphere(rng, m, n)
    return x * (1 + 0.25 * np.tanh(2 * x @ directions.T).sum(1, keepdims=True) / 2)


def vase(rng: np.random.Generator, m: int) -> Array:
    """A surface of revolution."""
    height, angle = rng.uniform(-1, 1, m), rng.uniform(0, 2 * math.pi, m)
    radius = 0.5 + 0.2 * np.sin(3 * height) + 0.1 * height
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), height], 1)


def cylinder(rng: np.random.Generator, m: int) -> Array:
    """An open cylinder."""
    height, angle = rng.uniform(-1, 1, m), rng.uniform(0, 2 * math.pi, m)
    return np.stack([0.6 * np.cos(angle), 0.6 * np.sin(angle), height], 1)


def box(rng: np.random.Generator, m: int) -> Array:
    """The faces of a box of three different edges."""
    sides = np.array([1.0, 0.7, 0.4])
    area = sides.prod() / sides
    axis = rng.choice(3, m, p=area / area.sum())
    x = rng.uniform(-1, 1, (m, 3))
    x[np.arange(m), axis] = rng.choice([-1.0, 1.0], m)
    return x * sides


def patch(rng: np.random.Generator, m: int) -> Array:
    """A flat square in space."""
    return np.concatenate([rng.uniform(-1, 1, (m, 2)), np.zeros((m, 1))], 1)


def helix(rng: np.random.Generator, m: int) -> Array:
    """Three turns of a screw."""
    t = rng.uniform(-3, 3, m)
    return np.stack([np.cos(math.pi * t), np.sin(math.pi * t), 0.3 * t], 1)


def corridor(part: tuple[float, float]) -> Callable[[np.random.Generator, int], Array]:
    """Two walls, of which a part is seen."""

    def surface(rng: np.random.Generator, m: int) -> Array:
        return np.stack([rng.uniform(*part, m), rng.choice([-1.0, 1.0], m)], 1)

    return surface


def lattice(rng: np.random.Generator) -> Array:
    """Seven times seven points of a grid."""
    return np.stack(np.meshgrid(np.arange(7.0), np.arange(7.0)), -1).reshape(-1, 2) / 3 - 1


def solid(
    name: str, seed_point: tuple[float, float, float], missing: int = 0
) -> Callable[[np.random.Generator], Array]:
    """The orbit of a point under the rotations of a solid, with a few points missing."""

    def points(rng: np.random.Generator) -> Array:
        orbit = Rotation.create_group(name).apply(seed_point)
        orbit = orbit[np.unique(orbit.round(6), axis=0, return_index=True)[1]]
        return rng.permutation(orbit)[missing:]

    return points


POLYGONS = {
    "a square": np.array([[1.0, 1], [-1, 1], [-1, -1], [1, -1]]),
    "a rectangle": np.array([[1.5, 0.8], [-1.5, 0.8], [-1.5, -0.8], [1.5, -0.8]]),
    "a triangle": np.array([[math.cos(a), math.sin(a)] for a in 2 * math.pi * np.arange(3) / 3]),
    "a letter": np.array(
        [[0, 0], [1.5, 0], [1.5, 0.4], [0.4, 0.4], [0.4, 1.1], [1.0, 1.1], [1.0, 1.5], [0.4, 2], [0, 2]]
    ),
}
CIRCLE = np.array([[math.cos(a), math.sin(a)] for a in 2 * math.pi * np.arange(90) / 90])


# -- what happens to pairs ---------------------------------------------------------------------------------------------


def fixed(pair: Pair, change: Callable[[np.random.Generator, Array], Array]) -> Pair:
    """A change of the second cloud."""

    def changed(rng: np.random.Generator) -> tuple[Array, Array]:
        a, b = pair(rng)
        return a, change(rng, b)

    return changed


def outliers(share: float) -> Callable[[np.random.Generator, Array], Array]:
    """A share of points anywhere."""

    def change(rng: np.random.Generator, b: Array) -> Array:
        lost = rng.random(len(b)) < share
        return np.where(lost[:, None], 3 * b.std() * rng.uniform(-1, 1, b.shape), b)

    return change


def exchanged(share: float) -> Callable[[np.random.Generator, Array], Array]:
    """A share of points in another order."""

    def change(rng: np.random.Generator, b: Array) -> Array:
        index = np.flatnonzero(rng.random(len(b)) < share)
        b = b.copy()
        b[index] = b[rng.permutation(index)]
        return b

    return change


def cut(share: float) -> Callable[[np.random.Generator, Array], Array]:
    """The share of points that lies on one side."""
    return lambda rng, b: b[b[:, 0] <= np.quantile(b[:, 0], share)]


def wandering(std: float) -> Callable[[np.random.Generator, Array], Array]:
    """Errors that add up from point to point."""

    def change(rng: np.random.Generator, b: Array) -> Array:
        walk = rng.normal(size=b.shape).cumsum(0)
        return b + std * (walk - walk.mean(0)) / math.sqrt(len(b))

    return change


def repeated(points: Callable[[np.random.Generator], Array], times: int, std: float, own: float) -> Pair:
    """Places, each seen several times: errors of the places are shared, those of looks are not."""

    def pair(rng: np.random.Generator) -> tuple[Array, Array]:
        p = points(rng)
        looks = []
        for _ in range(2):
            q = np.repeat(p + std * rng.normal(size=p.shape), times, 0)
            looks.append(q + own * rng.normal(size=q.shape))
        return looks[0], looks[1]

    return pair


def heavy(std: float, freedom: float) -> Callable[[np.random.Generator, Array], Array]:
    """Errors of Student's distribution."""
    return lambda rng, b: b + std * rng.standard_t(freedom, b.shape)


def uneven(rng: np.random.Generator, b: Array) -> Array:
    """Large errors on one side."""
    return b + 0.3 * (b[:, :1] > 0.5) * rng.normal(size=b.shape)


def denser(rng: np.random.Generator, b: Array) -> Array:
    """More points on one side."""
    return b[rng.random(len(b)) < 1 / (1 + np.exp(-2 * b[:, 0]))]


def bent(amount: float) -> Callable[[np.random.Generator, Array], Array]:
    """A thing that has bent between both looks."""
    return lambda rng, b: b + amount * np.concatenate([0 * b[:, :-1], b[:, :1] ** 2], 1)


# -- pairs that are moved ----------------------------------------------------------------------------------------------


def moved(rng: np.random.Generator, group: LieGroup, n: int, size: float) -> Array:
    """A matrix ``[n + 1, n + 1]``: any rotation, or a share of it for a size below one; shifts, scales, shears."""
    m = np.eye(n + 1)
    reach = min(1.0, size)
    if not isinstance(group, SO | O):
        m[:n, n] = size * rng.normal(size=n)
    if not isinstance(group, Translation):
        turn = rotation(reach * rng.uniform(-math.pi, math.pi)) if n == 2 else _turn(rng, reach)
        m[:n, :n] = turn
    if isinstance(group, Similarity):
        m[:n, :n] *= math.exp(0.4 * rng.normal())
    if isinstance(group, Affine | Projective):
        m[:n, :n] = m[:n, :n] @ (np.eye(n) + 0.2 * rng.normal(size=(n, n)))
    if isinstance(group, Projective):
        m[n, :n] = 0.05 * rng.normal(size=n)
    if isinstance(group, O | E) and rng.random() < 0.5:
        m[:n, :n] = m[:n, :n] @ np.diag([-1.0] + [1.0] * (n - 1))
    return m


def _turn(rng: np.random.Generator, reach: float) -> Array:
    """A random rotation of space, by a share of its angle."""
    return Rotation.from_rotvec(reach * Rotation.random(rng=rng).as_rotvec()).as_matrix()


def apply(m: Array, points: Array) -> Array:
    """Points after a transformation."""
    homogeneous = np.concatenate([points, np.ones((len(points), 1))], 1) @ m.T
    return homogeneous[:, :-1] / homogeneous[:, -1:]


def judge(
    seed: int,
    group: LieGroup,
    pair: Pair,
    matched: bool | None = None,
    *,
    size: float = 1.0,
    units: float = 1.0,
    origin: float = 0.0,
    dtype: torch.dtype = torch.float64,
    truth: bool = True,
    poses: Array | None = None,
    errors: float = 0.0,
) -> Outcome:
    """Register two clouds.

    Args:
        size: of the transformation.
        units: size of the clouds.
        origin: place of the clouds.
        errors: standard deviation of errors of the second cloud after it was moved.
        truth: whether there is a true answer.
        poses: matrices ``[k, n + 1, n + 1]`` that do not change the thing.
    """
    rng = np.random.default_rng(2000 + seed)
    a, b = pair(rng)
    n = a.shape[1]
    m = moved(rng, group, n, size)
    b = apply(m, b)
    b = b + errors * rng.normal(size=b.shape)
    change = np.eye(n + 1)
    change[:n, :n] *= units
    change[:n, n] = origin
    m = m if poses is None else m @ poses
    a, b, m = apply(change, a), apply(change, b), change @ m @ np.linalg.inv(change)
    with np.errstate(over="ignore"):
        clouds = (torch.tensor(c).to(dtype) for c in (a, b))
    record = register(*clouds, group, matched=matched)
    rounding = ROUNDING[dtype] if units == 1.0 and origin == 0.0 else 0.0  # else the errors are much larger
    return registration_outcome(record, element(group, m) if truth else None, rounding, max(1.0, units, origin))


def turns(group: str) -> Array:
    """The rotations of a solid as matrices ``[k, 4, 4]``."""
    matrices = Rotation.create_group(group).as_matrix()
    return np.stack([np.block([[r, np.zeros((3, 1))], [np.zeros((1, 3)), np.ones((1, 1))]]) for r in matrices])


def quarters(count: int) -> Array:
    """The rotations of a polygon as matrices ``[count, 3, 3]``."""
    found = np.tile(np.eye(3), (count, 1, 1))
    for k in range(count):
        found[k, :2, :2] = rotation(2 * math.pi * k / count)
    return found


def _judged(seed: int, group: LieGroup, parts: tuple[Any, ...], settings: dict[str, Any]) -> Outcome:
    return judge(seed, group, *parts, **settings)


def situations() -> list[Situation]:
    """All of them."""
    # fmt: off
    found: list[Situation] = []

    def add(kind: Kind, name: str, group: LieGroup, *parts: Any, bet: str = "", **settings: Any) -> None:
        one = partial(_judged, group=group, parts=parts, settings=settings)
        found.append(Situation("clouds", kind, f"{group}, {name}", each(one), bet, 8 if kind == "ordinary" else 4))

    # in order
    for group, n, m in ((SE(2), 2, 20), (SE(3), 3, 50), (Similarity(2), 2, 40), (Similarity(3), 3, 100),
        (Affine(2), 2, 30), (Affine(3), 3, 100), (Projective(2), 2, 60), (SO(3), 3, 30), (Translation(3), 3, 30),
        (O(3), 3, 30), (E(2), 2, 30)):
        add("ordinary", f"{m} points in order, errors .05", group, same(blob(m, n), 0.05))
    add("ordinary", "12 points in order, errors .1", SE(2), same(blob(12, 2), 0.1))
    add("ordinary", "50 points in order, a tenth of them anywhere", SE(3),
        fixed(same(blob(50, 3), 0.02), outliers(0.1)))
    add("ordinary", "map coordinates, 40 points in order", Similarity(2), same(blob(40, 2), 0.01), units=500.0,
        origin=5e5)
    add("ordinary", "float32, 50 points in order", SE(3), same(blob(50, 3), 0.02), dtype=torch.float32)
    # the same points in no order
    add("ordinary", "60 points in no order, errors .005", SE(2), same(blob(60, 2), 0.005, True), False)
    add("ordinary", "100 points in no order, errors .005", SE(3), same(blob(100, 3), 0.005, True), False)
    add("ordinary", "80 points in no order, errors .005", Similarity(2), same(blob(80, 2), 0.005, True), False)

    # different samples
    for group, n, m, about in ((SE(3), 3, 300, ""), (SE(3), 3, 100, ""),
        (Similarity(3), 3, 200, "sizes of samples differ"), (SE(2), 2, 80, "a line instead of a surface"),
        (Affine(2), 2, 120, "twice the freedom")):
        add("hard", f"two samples of {m} points of a bumpy thing", group, two(partial(bumpy, n=n), m), False, bet=about)
    add("hard", "two samples of a bumpy thing, 100 and 300 points", SE(3), two(bumpy, 100, 300), False,
        bet="one is three times as dense")
    add("hard", "two samples of a bumpy thing, one with more points on one side", SE(3),
        fixed(two(bumpy, 150, 300), denser), False, bet="density pulls")
    add("hard", "two samples of a letter", SE(2), two(along(POLYGONS["a letter"]), 100), False,
        bet="corners are never sampled")
    add("hard", "two samples of a letter, near", SE(2), two(along(POLYGONS["a letter"]), 60, std=0.0), False, size=0.1,
        bet="no noise at all except the places")
    add("hard", "100 points in no order, errors as large as their distance", SE(2), same(blob(100, 2), 0.15, True),
        False)
    add("hard", "100 points in no order, errors a third of their distance", SE(3), same(blob(100, 3), 0.15, True),
        False, bet="some neighbours are wrong ones")
    add("hard", "a corridor, and a part further on", SE(2),
        lambda rng: (corridor((-3.0, 3.0))(rng, 150), corridor((-1.0, 5.0))(rng, 150)), False, size=0.1)
    add("hard", "a corridor, and a part of it", Translation(2),
        lambda rng: (corridor((-3.0, 3.0))(rng, 150), corridor((-1.0, 1.0))(rng, 60)), False, size=0.1,
        bet="slides along the walls")
    add("hard", "two samples, .7 of one seen", SE(3), fixed(two(bumpy, 200, 300), cut(0.7)), False,
        bet="the cut has no counterpart")
    add("hard", "points in no order, .6 of one seen", SE(2), fixed(same(blob(80, 2), 0.005, True), cut(0.6)), False,
        bet="the cut has no counterpart")
    add("hard", "points in no order, a third of them anywhere", SE(3),
        fixed(same(blob(100, 3), 0.01, True), outliers(0.33)), False, bet="outliers in no order")

    # symmetric things
    circle = along(CIRCLE)
    for group in (SE(2), SO(2), Similarity(2)):
        add("hard", "two samples of a circle", group, two(circle, 100), False,
            bet="" if isinstance(group, SE) else "any angle")
    add("hard", "two samples of a sphere", SO(3), two(sphere, 150), False)
    add("hard", "two samples of a sphere", SE(3), two(sphere, 150), False, bet="positions are known, angles are not")
    for group in (Affine(2), SE(2)):
        add("hard", "two samples of a normal blob", group,
            lambda rng: (rng.normal(size=(150, 2)), rng.normal(size=(150, 2))), False,
            bet="" if isinstance(group, Affine) else "no two points are the same")
    add("hard", "two normal samples, round", Affine(3),
        lambda rng: (rng.normal(size=(150, 3)), rng.normal(size=(150, 3))), False,
        bet="moments fit under every rotation")
    for name, count in (("a square", 4), ("a rectangle", 2), ("a triangle", 3)):
        add("hard", f"two samples of {name}", SE(2), two(along(POLYGONS[name]), 120), False, poses=quarters(count),
            bet="" if name == "a square" else "another number of modes")
    add("hard", "two samples of a square", E(2), two(along(POLYGONS["a square"]), 120), False, poses=quarters(4),
        bet="eight modes on two components")
    for surface, name in ((cylinder, "a cylinder"), (vase, "a vase")):
        add("hard", f"two samples of {name}", SE(3), two(surface, 200), False)
    add("hard", "two samples of a vase, turned about its axis by little", SE(3), two(vase, 200), False, size=0.05,
        bet="the true place is near the start")
    add("hard", "two samples of a box", SE(3), two(box, 250), False, poses=turns("D2"), bet="four modes")
    add("hard", "two samples of a flat square", SE(3), two(patch, 150), False, bet="flips, and quarter turns")
    add("hard", "two samples of a helix", SE(3), two(helix, 200), False, bet="slides along the screw")
    add("hard", "an icosahedral cloud of 60 points", SO(3), same(solid("I", (1.0, 0.3, 0.2)), 0.01, True), False,
        poses=turns("I"))
    add("hard", "an octahedral cloud, three points missing", SO(3), same(solid("O", (1.0, 0.5, 0.2), 3), 0.01, True),
        False, poses=turns("O"))
    add("hard", "a cube's corners", SE(3), same(solid("O", (1.0, 1.0, 1.0)), 0.01, True), False, poses=turns("O"),
        bet="24 poses of eight points")
    add("hard", "a tetrahedral cloud of 12 points", SO(3), same(solid("T", (1.0, 0.4, 0.1)), 0.02, True), False,
        poses=turns("T"), bet="12 poses")
    add("hard", "a tetrahedral cloud of 12 points", O(3), same(solid("T", (1.0, 0.4, 0.1)), 0.02, True), False,
        poses=turns("T"), bet="12 poses on one of two components")
    add("hard", "a prism's points", SE(3), same(solid("D6", (1.0, 0.2, 0.4)), 0.01, True), False, poses=turns("D6"),
        bet="12 poses about one axis")
    add("hard", "a grid, moved by a cell", Translation(2), same(lattice, 0.01, True), False, size=0.3,
        bet="a cell away fits nearly as well")
    add("hard", "a grid", SE(2), same(lattice, 0.01, True), False, bet="quarter turns")

    # degrees of freedom
    for group, n, m in ((Projective(2), 2, 4), (Affine(2), 2, 3), (Similarity(2), 2, 2), (Affine(3), 3, 4)):
        add("hard", f"{m} points in order, as many numbers as unknowns", group, same(blob(m, n), 0.02))
    for group, n, m, about in ((SE(2), 2, 2, ""), (SE(2), 2, 3, "three numbers more than unknowns"),
        (Affine(2), 2, 4, "two numbers more than unknowns"), (Projective(2), 2, 5, "two numbers more than unknowns"),
        (SE(3), 3, 3, "three numbers more than unknowns"), (Translation(3), 3, 1, "one point"),
        (Translation(2), 2, 2, "two numbers more than unknowns"), (SE(3), 3, 2, "any angle about their line")):
        add("hard", f"{m} points in order", group, same(blob(m, n), 0.02), bet=about)
    straight = lambda rng: np.linspace(-1, 1, 20)[:, None] * np.ones((1, 3))  # noqa: E731
    for group in (SE(3), Affine(3)):
        add("hard", "20 points on a line, in order", group, same(straight, 0.01),
            bet="any angle about the line; noise gives the line a width")
    flat = lambda rng: np.concatenate([rng.normal(size=(30, 2)), np.zeros((30, 1))], 1)  # noqa: E731
    add("hard", "30 points of a plane, in order", Affine(3), same(flat, 0.01), bet="noise gives the plane a thickness")
    add("hard", "30 points of a plane, in order", E(3), same(flat, 0.01), bet="the mirror image fits as well")

    # errors in order
    add("hard", "30 points in order, as if all were one", SE(2), same(lambda rng: np.zeros((30, 2)), 0.05),
        bet="noise is all there is")
    add("hard", "60 points in order, half of them anywhere", SE(3), fixed(same(blob(60, 3), 0.02), outliers(0.5)),
        bet="the majority is hardly one")
    add("hard", "60 points in order, .4 exchanged", SE(2), fixed(same(blob(60, 2), 0.02), exchanged(0.4)),
        bet="wrong pairs are of the right cloud")
    add("hard", "40 points in order, Cauchy errors", SE(3), fixed(same(blob(40, 3), 0.0), heavy(0.03, 1.0)),
        bet="tails")
    add("hard", "100 points in order, errors that add up", SE(2), fixed(same(blob(100, 2), 0.01), wandering(0.5)),
        bet="neighbours share their errors")
    add("hard", "a track in order, errors that add up", Similarity(2),
        fixed(same(lambda rng: rng.normal(size=(100, 2)).cumsum(0) / 5, 0.01), wandering(0.5)),
        bet="neighbours in time and place share their errors")
    add("hard", "10 places seen 10 times each, in order", SE(2), repeated(blob(10, 2), 10, 0.1, 0.01),
        bet="a hundred rows, ten errors")
    add("hard", "40 points in order, larger errors on one side", SE(2), fixed(same(blob(40, 2), 0.02), uneven),
        bet="one variance is not enough")
    add("hard", "40 points in order, errors of .6 in both", Affine(2), same(blob(40, 2), 0.6),
        bet="errors in both make a linear part too small")
    add("hard", "40 points in order, errors of .4 in both", Similarity(2), same(blob(40, 2), 0.4),
        bet="errors in both make a scale too small")
    add("hard", "40 points in order, a thing that has bent", SE(2), fixed(same(blob(40, 2), 0.01), bent(0.1)),
        bet="residuals that are no noise")
    add("hard", "40 points in order, rounded to .5", SE(2),
        same(lambda rng: rng.normal(size=(40, 2)).round(0) / 2, 0.0), bet="many points are the same")
    add("hard", "two different things in order", SE(3),
        lambda rng: (rng.normal(size=(40, 3)), rng.normal(size=(40, 3))), True, truth=False, bet="nothing fits")
    add("hard", "two different things in no order", SE(3), lambda rng: (bumpy(rng, 150), bumpy(rng, 150, thing=1)),
        False, truth=False, bet="something fits")
    add("hard", "two different things in no order", Affine(3), lambda rng: (bumpy(rng, 150), bumpy(rng, 150, thing=1)),
        False, truth=False, bet="twelve numbers make things alike")
    add("hard", "float32, a size of 1e30", SE(3), same(blob(40, 3), 0.01), units=1e30, dtype=torch.float32)
    add("hard", "float32, map coordinates", SE(2), same(blob(40, 2), 0.01), units=10.0, origin=1e6, dtype=torch.float32,
        bet="steps of .06 in the coordinates")
    add("hard", "float32, a size of 1e-30", SE(3), same(blob(40, 3), 0.01), units=1e-30, dtype=torch.float32,
        bet="squares underflow")
    return found
