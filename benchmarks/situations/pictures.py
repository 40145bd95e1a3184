"""Pictures that were moved by SciPy's splines: `register` beside the true transformation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.situations.record import Kind, Outcome, Situation, each, registration_outcome
from trivgeo.groups import SE, SO, Affine, LieGroup, Projective, Similarity, Translation
from trivgeo.registration import register

Array = NDArray[np.float64]
Scene = Callable[[np.random.Generator, int], Array]
"""(random numbers, pixels n a side of a picture) to a canvas ``[c, 6 n, 6 n]`` of which a picture shows the middle
third."""
Change = Callable[[np.random.Generator, Array, Array], tuple[Array, Array]]
"""(random numbers, moving, fixed) to what cameras make of them."""
ROUNDING_PIXELS = 0.01
"""Error of a picture's corners that is rounding."""


# -- scenes ------------------------------------------------------------------------------------------------------------


def plane(n: int) -> tuple[Array, Array]:
    """Coordinates x, y of a canvas; the frame of a picture is [-1, 1]."""
    at = (np.arange(6 * n) - 3 * n) / n
    return np.broadcast_to(at, (6 * n, 6 * n)), np.broadcast_to(at[:, None], (6 * n, 6 * n))


def softened(canvas: Array) -> Array:
    """A canvas ``[c, n, n]`` as seen by a lens and by pixels, .75 pixels wide."""
    return np.stack([ndimage.gaussian_filter(c, 1.5) for c in canvas.astype(float)])


def leaves(rng: np.random.Generator, n: int, channels: int = 1, smallest: float = 0.05) -> Array:
    """Discs and boxes that hide each other, whose sizes follow a power law as those of things in photographs do."""
    canvas = np.full((channels, 6 * n, 6 * n), 0.5)
    for _ in range(900):
        size = 1.0 / np.sqrt(rng.uniform(1.0 / 0.9**2, 1.0 / smallest**2))
        column, row = rng.uniform(0, 6 * n, 2)
        reach = int(size * n) + 1
        rows = slice(max(0, int(row) - reach), int(row) + reach)
        columns = slice(max(0, int(column) - reach), int(column) + reach)
        y, x = np.mgrid[rows.start : min(rows.stop, 6 * n), columns.start : min(columns.stop, 6 * n)]
        if x.size:
            turn = rng.uniform(0, math.pi)
            u = (x - column) * math.cos(turn) + (y - row) * math.sin(turn)
            v = (y - row) * math.cos(turn) - (x - column) * math.sin(turn)
            shape = np.hypot(u, v) < size * n if rng.random() < 0.5 else np.maximum(abs(u), 2 * abs(v)) < size * n
            shade = rng.uniform(0, 1, (channels, 1)) + rng.uniform(-0.1, 0.1) * (u / (size * n))[shape]
            canvas[:, rows, columns][:, shape] = shade
    return softened(canvas)


def drawing(shade: Callable[[Array, Array], Array], jitter: float = 0.5) -> Scene:
    """A scene of a function of places, moved by up to half a pixel."""

    def scene(rng: np.random.Generator, n: int) -> Array:
        x, y = plane(n)
        dx, dy = jitter * rng.uniform(-1, 1, 2) / n
        return softened(shade(x + dx, y + dy)[None])

    return scene


def inside(level: Array) -> Array:
    """One where a level is positive, else zero, with an edge that has no traces of a grid."""
    return 1 / (1 + np.exp(-np.clip(level / 0.015, -50, 50)))


def polygon(corners: int, sharp: float = 1.0, size: float = 0.6) -> Scene:
    """A star, or a regular polygon, on a plain ground."""
    edge = lambda x, y: size * (1 - 0.25 * sharp * np.cos(corners * np.arctan2(y, x)))  # noqa: E731
    return drawing(lambda x, y: 0.2 + 0.6 * inside(edge(x, y) - np.hypot(x, y)), 0.0)


disc = drawing(lambda x, y: 0.2 + 0.6 * inside(0.6 - np.hypot(x, y)))
rings = drawing(lambda x, y: 0.5 + 0.4 * np.cos(14 * np.hypot(x, y)))
ellipse = drawing(lambda x, y: 0.2 + 0.6 * inside(0.8 - np.hypot(x, 2 * y)), 0.0)
edge = drawing(lambda x, y: 0.2 + 0.6 * inside(x + 0.3 * y - 0.1))
stripes = drawing(lambda x, y: 0.5 + 0.4 * np.sin(9 * x + 4 * y))
ramp = drawing(lambda x, y: 0.5 + 0.1 * x + 0.05 * y)
corner = drawing(lambda x, y: 0.2 + 0.6 * inside(x - 0.1) * inside(y + 0.1))
blank = drawing(lambda x, y: 0.5 + 0 * x)
blob = drawing(lambda x, y: 0.2 + 0.6 * np.exp(-(x**2 + y**2) / 0.18))
waves = drawing(lambda x, y: 0.5 + 0.2 * np.sin(4 * math.pi * x) + 0.2 * np.sin(4 * math.pi * y))
checks = drawing(lambda x, y: 0.3 + 0.4 * inside(0.1 * np.sin(3 * math.pi * x) * np.sin(3 * math.pi * y)))


def mixed(first: Scene, second: Scene, share: float) -> Scene:
    """A scene over a share of another."""
    return lambda rng, n: first(rng, n) + share * (second(rng, n) - 0.5)


# -- changes -----------------------------------------------------------------------------------------------------------


def noise(std: float, width: float = 0.0, rows: bool = False) -> Change:
    """Independent errors of pixels in both pictures, correlated over a width, or along rows."""

    def one(rng: np.random.Generator, picture: Array) -> Array:
        e = rng.normal(size=(*picture.shape[:2], 1) if rows else picture.shape) * np.ones_like(picture)
        e = np.stack([ndimage.gaussian_filter(c, width) for c in e]) if width else e
        return picture + std * e / e.std()

    return lambda rng, a, b: (one(rng, a), one(rng, b))


def fixed(change: Callable[[Array], Array]) -> Change:
    """A change of the fixed picture alone."""
    return lambda rng, a, b: (a, change(b))


def both(change: Callable[[Array], Array]) -> Change:
    """A change of both pictures."""
    return lambda rng, a, b: (change(a), change(b))


def frame(picture: Array) -> tuple[Array, Array]:
    """Coordinates of the pixels of a picture."""
    n = picture.shape[-1]
    at = (2 * np.arange(n) + 1 - n) / n
    return np.broadcast_to(at, (n, n)), np.broadcast_to(at[:, None], (n, n))


def vignette(picture: Array, strength: float = 0.6) -> Array:
    """Darker towards the corners."""
    x, y = frame(picture)
    return picture * (1 - strength * (x**2 + y**2) / 2)


def lamp(picture: Array) -> Array:
    """Bright on one side."""
    x, y = frame(picture)
    return picture * (1 + 0.8 * np.exp(-((x - 0.6) ** 2 + (y + 0.4) ** 2) / 0.3))


def gamma(power: float) -> Callable[[Array], Array]:
    """Another tone curve."""
    return lambda picture: np.clip(picture, 0, None) ** power


def hidden(share: float, ground: Scene = leaves) -> Change:
    """A share of the fixed picture hidden by another scene, from one side."""

    def change(rng: np.random.Generator, a: Array, b: Array) -> tuple[Array, Array]:
        n = b.shape[-1]
        other = look(ground(rng, n), np.eye(3), n)
        b = b.copy()
        b[:, :, : round(share * n)] = other[: len(b), :, : round(share * n)]
        return a, b

    return change


def stuck(strength: float, scene: Scene) -> Change:
    """A pattern that is at one place in both pictures, as dust on a sensor or a logo are."""

    def change(rng: np.random.Generator, a: Array, b: Array) -> tuple[Array, Array]:
        pattern = strength * (look(scene(rng, a.shape[-1]), np.eye(3), a.shape[-1]) - 0.5)
        return a + pattern, b + pattern

    return change


def logo(rng: np.random.Generator, a: Array, b: Array) -> tuple[Array, Array]:
    """A box with sharp letters in a corner of both pictures."""
    n = a.shape[-1]
    letters = rng.integers(0, 2, (1, n // 12, n // 4)).repeat(2, 1).repeat(2, 2).astype(float)
    a, b = a.copy(), b.copy()
    for picture in (a, b):
        picture[:, -letters.shape[1] :, -letters.shape[2] :] = letters
    return a, b


def salted(share: float) -> Change:
    """Pixels that are black or white."""

    def one(rng: np.random.Generator, p: Array) -> Array:
        return np.where(rng.random(p.shape) < share, rng.integers(0, 2, p.shape), p)

    return lambda rng, a, b: (one(rng, a), one(rng, b))


def unrelated(rng: np.random.Generator, a: Array, b: Array) -> tuple[Array, Array]:
    """Another scene."""
    return a, look(leaves(rng, a.shape[-1]), np.eye(3), a.shape[-1])


def blurred(width: float) -> Callable[[Array], Array]:
    """Out of focus."""
    return lambda p: np.stack([ndimage.gaussian_filter(c, width, mode="nearest") for c in p])


def dragged(picture: Array) -> Array:
    """A camera that moved by seven pixels to one side during the exposure, three before its middle and three after."""
    return ndimage.uniform_filter1d(picture, 7, axis=-1, mode="nearest")


# -- pairs -------------------------------------------------------------------------------------------------------------


def look(canvas: Array, matrix: Array, n: int, order: int = 3) -> Array:
    """The picture ``[c, n, n]`` of a canvas after a transformation of the plane: the canvas at its inverse."""
    at = (2 * np.arange(n) + 1 - n) / n
    x, y = np.meshgrid(at, at)
    points = np.linalg.inv(matrix) @ np.stack([x.ravel(), y.ravel(), np.ones(n * n)])
    places = (points[1::-1] / points[2]) * n + 3 * n  # rows, columns
    return np.stack([ndimage.map_coordinates(c, places, order=order, mode="nearest").reshape(n, n) for c in canvas])


def within_frame(canvas: Array) -> Array:
    """A canvas that is black outside of the frame."""
    n = canvas.shape[-1] // 6
    out = np.zeros_like(canvas)
    out[:, 2 * n : 4 * n, 2 * n : 4 * n] = canvas[:, 2 * n : 4 * n, 2 * n : 4 * n]
    return out


def near(rng: np.random.Generator, group: LieGroup, size: float = 1.0) -> Array:
    """A matrix: turns of 5 degrees, shifts of 4 %, scales and shears of 4 %, perspective of 2 %."""
    m = np.eye(3)
    if not isinstance(group, SO):
        m[:2, 2] = size * 0.08 * rng.normal(size=2)
    if not isinstance(group, Translation):
        m[:2, :2] = rotation(size * 0.09 * rng.normal())
    if isinstance(group, Similarity):
        m[:2, :2] *= math.exp(size * 0.05 * rng.normal())
    if isinstance(group, Affine | Projective):
        m[:2, :2] += size * 0.05 * rng.normal(size=(2, 2))
    if isinstance(group, Projective):
        m[2, :2] = size * 0.03 * rng.normal(size=2)
    return m


def any_angle(rng: np.random.Generator, group: LieGroup) -> Array:
    """A matrix with any rotation."""
    m = near(rng, group, 0.5)
    m[:2, :2] = rotation(rng.uniform(-math.pi, math.pi))
    return m


def shifted(x: float, y: float = 0.0, angle: float = 0.0, scale: float = 1.0) -> Callable[..., Array]:
    """A matrix of a shift in the frame [-1, 1], a rotation and a scale."""

    def matrix(rng: np.random.Generator, group: LieGroup) -> Array:
        m = np.eye(3)
        m[:2, :2], m[:2, 2] = scale * rotation(angle), (x, y)
        return m

    return matrix


def rotation(angle: float) -> Array:
    """A matrix ``[2, 2]``."""
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def element(group: LieGroup, matrix: Array) -> torch.Tensor:
    """The element of a matrix ``[n + 1, n + 1]``."""
    return group.action().from_homogeneous(torch.tensor(matrix))


def turns(group: LieGroup, shift: float = 0.1) -> Callable[[int, torch.Generator], torch.Tensor]:
    """The law of all angles, and shifts."""

    def law(count: int, generator: torch.Generator) -> torch.Tensor:
        u = torch.rand(count, 3, generator=generator, dtype=torch.float64)
        matrix = torch.eye(3, dtype=torch.float64).repeat(count, 1, 1)
        angle = 2 * math.pi * u[:, 0]
        matrix[:, :2, :2] = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).unflatten(-1, (2, 2))
        if not isinstance(group, SO):
            matrix[:, :2, 2] = shift * (2 * u[:, 1:] - 1)
        return group.action().from_homogeneous(matrix)

    return law


def shifts(reach: float) -> Callable[[int, torch.Generator], torch.Tensor]:
    """The law of shifts up to a reach."""
    return lambda count, generator: reach * (2 * torch.rand(count, 2, generator=generator, dtype=torch.float64) - 1)


def judge(
    seed: int,
    group: LieGroup,
    scene: Scene = leaves,
    *changes: Change,
    matrix: Callable[..., Array] = near,
    law: Any = None,
    n: int = 64,
    dtype: torch.dtype = torch.float64,
    order: int = 3,
    framed: bool = False,
    front: float = 0.0,
    truth: bool = True,
    poses: int = 1,
) -> Outcome:
    """Register two pictures of a scene.

    Args:
        law: the ``transformations`` that are given.
        n: pixels of a side.
        order: order of the splines.
        framed: whether the scene is black outside of the moving picture's frame.
        front: share of the picture in which things are that move in another way.
        truth: whether there is a true answer.
        poses: number of rotations about the middle of the frame that do not change the scene.
    """
    rng = np.random.default_rng(1000 + seed)
    canvas, m = scene(rng, n), matrix(rng, group)
    moving, fixed_one = look(canvas, np.eye(3), n), look(within_frame(canvas) if framed else canvas, m, n, order)
    if front:
        x, y = frame(moving)
        mask = np.hypot(x, y) < math.sqrt(4 * front / math.pi)
        other, off = scene(rng, n), near(rng, group)
        moving = np.where(mask, look(other, np.eye(3), n), moving)
        fixed_one = np.where(mask, look(other, off, n), fixed_one)
    for change in changes:
        moving, fixed_one = change(rng, moving, fixed_one)
    pair = (torch.tensor(p).to(dtype) for p in (moving, fixed_one))
    record = register(*pair, group, transformations=law)
    true = None
    if truth:
        turned = [m @ shifted(0.0, 0.0, 2 * math.pi * k / poses)(rng, group) for k in range(poses)]
        true = element(group, np.stack(turned))
    return registration_outcome(record, true, 2 * ROUNDING_PIXELS / n)


def situations() -> list[Situation]:
    """All of them."""
    # fmt: off
    found: list[Situation] = []

    def add(kind: Kind, name: str, group: LieGroup, *parts: Any, bet: str = "", **settings: Any) -> None:
        one = partial(_judged, group=group, parts=parts, settings=settings)
        found.append(Situation("images", kind, f"{group}, {name}", each(one), bet, 8 if kind == "ordinary" else 4))

    little = noise(0.02)
    plane_groups = (Translation(2), SE(2), Similarity(2), Affine(2), Projective(2))
    for group in plane_groups:
        add("ordinary", "noise .02", group, leaves, little)
    add("ordinary", "noise .05", SE(2), leaves, noise(0.05))
    add("ordinary", "noise .05", Affine(2), leaves, noise(0.05))
    add("ordinary", "96 pixels, noise .01", Similarity(2), leaves, noise(0.01), n=96)
    add("ordinary", "48 pixels, noise .02", SE(2), leaves, little, n=48)
    add("ordinary", "three channels, noise .03", SE(2), partial(leaves, channels=3), noise(0.03))
    add("ordinary", "gain .7 and offset .1, noise .02", Similarity(2), leaves, fixed(lambda b: 0.7 * b + 0.1), little)
    add("ordinary", "float32, noise .02", SE(2), leaves, little, dtype=torch.float32)
    add("ordinary", "any angle, noise .02", SO(2), leaves, little, matrix=any_angle, law=turns(SO(2)))
    add("ordinary", "any angle, noise .02", SE(2), leaves, little, matrix=any_angle, law=turns(SE(2)))
    add("ordinary", "a corner of something, noise .02", Translation(2), corner, little)
    add("ordinary", "black outside of the frame, noise .02", SE(2), leaves, little, framed=True)

    for picture, name in ((disc, "a disc"), (rings, "rings"), (blob, "a round blob")):
        for group in (SO(2), SE(2)):
            about = "" if picture is not blob else "smooth: noise has more slope than the blob"
            add("hard", f"{name}, any angle, noise .05", group, picture, noise(0.05), matrix=any_angle,
                law=turns(group), bet=about)
    add("hard", "a disc, any angle, noise .005", SE(2), disc, noise(0.005), matrix=any_angle, law=turns(SE(2)),
        bet="little noise has curvature, too")
    add("hard", "a disc, any angle, correlated noise", SO(2), disc, noise(0.05, 2.0), matrix=any_angle,
        law=turns(SO(2)), bet="smooth noise looks like a picture")
    for corners in (2, 3, 4, 5):
        add("hard", f"a star of {corners} points, any angle, noise .02", SE(2), polygon(corners), little,
            matrix=any_angle, law=turns(SE(2)), poses=corners, bet="" if corners == 4 else "as many modes as points")
    add("hard", "an ellipse, any angle, noise .02", SO(2), ellipse, little, matrix=any_angle, law=turns(SO(2)), poses=2,
        bet="half a turn")
    add("hard", "a star with a faint mark, any angle, noise .1", SE(2), mixed(polygon(4), leaves, 0.05), noise(0.1),
        matrix=any_angle, law=turns(SE(2)), bet="a mark below the noise must not break the tie")

    for picture, name in ((edge, "one straight edge"), (stripes, "stripes"), (ramp, "a ramp")):
        for group in (Translation(2), SE(2)):
            add("hard", f"{name}, noise .02", group, picture, little,
                bet="no place along it" if picture is ramp else "")
    add("hard", "one straight edge, noise .02, 96 pixels", Translation(2), edge, little, n=96, matrix=shifted(0.2, 0.3))
    add("hard", "stripes and a faint texture below the noise", Translation(2), mixed(stripes, leaves, 0.02),
        noise(0.05), bet="a texture too faint to see")
    add("hard", "nothing but noise", Translation(2), blank, noise(0.05))
    add("hard", "nothing but noise", SE(2), blank, noise(0.05, 1.5), bet="correlated noise matches by chance")
    for picture, name, period in ((waves, "waves", 0.5), (checks, "checks", 2 / 3)):
        half = shifted(0.5 * period)
        add("hard", f"{name}, half a period away", Translation(2), picture, little, matrix=half, law=shifts(0.6))
        add("hard", f"{name}, a third of a period away, defaults", SE(2), picture, little,
            matrix=shifted(period / 3, period / 6), bet="the nearest of many optima may be another")
    add("hard", "waves and a faint texture", Translation(2), mixed(waves, leaves, 0.1), noise(0.05),
        matrix=shifted(0.5), law=shifts(0.8), bet="one optimum is a little better than its neighbours")

    # wrong models of pictures
    dark = lambda p: vignette(gamma(0.45)(p))  # noqa: E731
    for group in (SE(2), Projective(2)):
        add("hard", "gamma .45 and a vignette", group, leaves, fixed(dark), noise(0.01))
    add("hard", "gamma 2.2", Similarity(2), leaves, fixed(gamma(2.2)), noise(0.01), bet="a tone curve is no gain")
    add("hard", "a vignette in both pictures", SE(2), leaves, both(vignette), noise(0.01),
        bet="it stays while the scene moves")
    add("hard", "a lamp", Affine(2), leaves, fixed(lamp), noise(0.01), bet="brightness that bends")
    add("hard", "a negative", SE(2), leaves, fixed(lambda p: 1 - p), little, bet="a gain below zero")
    add("hard", "out of focus by 2 pixels", Similarity(2), leaves, fixed(blurred(2.0)), little,
        bet="blur looks like scale")
    add("hard", "dragged by 7 pixels", Similarity(2), leaves, fixed(dragged), little,
        bet="blur along one direction looks like scale")
    add("hard", "clipped at both ends", SE(2), leaves, fixed(lambda p: np.clip(3 * p - 1, 0, 1)), little,
        bet="most pixels say nothing")
    add("hard", "eight shades", SE(2), leaves, both(lambda p: np.round(7 * p) / 7),
        bet="errors of rounding are not noise")
    add("hard", "correlated noise .05", SE(2), leaves, noise(0.05, 2.0), bet="errors count as often as pixels")
    add("hard", "noise of rows", Translation(2), leaves, noise(0.05, 0.0, True), bet="whole rows share an error")
    add("hard", "salt and pepper, .1", SE(2), leaves, salted(0.1), bet="outliers in both")
    add("hard", "noise .3", SE(2), leaves, noise(0.3), bet="more noise than picture")
    add("hard", "dust at one place in both", Translation(2), leaves, stuck(0.3, partial(leaves, smallest=0.02)), little,
        bet="the dust says that nothing moved")
    add("hard", "a logo in both", SE(2), leaves, logo, little, bet="the sharpest part says that nothing moved")
    add("hard", "nearest pixels", Similarity(2), leaves, order=0, bet="half a pixel of error, all in the edges")
    add("hard", "linear interpolation, no noise", SE(2), leaves, order=1, bet="residuals are made by the warp")
    add("hard", "no noise", Affine(2), leaves, bet="residuals of interpolation alone")

    # what is not in both
    for share in (0.3, 0.45):
        for group in (SE(2), Similarity(2)):
            add("hard", f"{share:g} hidden by another picture", group, leaves, hidden(share), little,
                bet="" if share == 0.3 else "hardly more than half is left")
    add("hard", ".3 hidden, shift of a fifth", SE(2), leaves, hidden(0.3), little, matrix=shifted(0.4, 0.1))
    for share in (0.25, 0.45):
        add("hard", f"things in front, {share:g} of the picture, move in another way", SE(2), leaves, little,
            front=share, bet="two truths, one of them the larger")
    add("hard", "another picture", SE(2), leaves, unrelated, little, truth=False)
    add("hard", "another picture", Projective(2), leaves, unrelated, little, truth=False,
        bet="eight numbers fit anything")
    add("hard", "a shift of .4 of the frame", Translation(2), leaves, little, matrix=shifted(0.8),
        bet="beyond the first elements")
    add("hard", "a right angle, no law", SE(2), leaves, little, matrix=shifted(0.0, 0.0, math.pi / 2),
        bet="beyond the first elements")
    add("hard", "scale 1.7, no law", Similarity(2), leaves, little, matrix=shifted(0.0, 0.0, 0.0, 1.7),
        bet="beyond the first elements")
    add("hard", "scale 1.08 in a group without", SE(2), leaves, little, matrix=shifted(0.0, 0.0, 0.0, 1.08),
        truth=False, bet="no element is right")
    return found


def _judged(seed: int, group: LieGroup, parts: tuple[Any, ...], settings: dict[str, Any]) -> Outcome:
    return judge(seed, group, *parts, **settings)
