"""Registration of public photographs, beside ECC and SIFT with RANSAC of OpenCV.

python -m benchmarks.photographs [--side 512] [--tasks near clean ...] [--names astronaut coffee ...]

The photographs are those of scikit-image's wheel (``pip install scikit-image``), at most ``--side`` pixels a side,
warped by OpenCV's bicubic kernel, so that nothing of the warp is the library's own. Errors are the largest distance
between corners, in pixels; seconds are of the CPU, in one thread. Squares are the squared distance of the truth in
standard deviations, by the number of dimensions: one on average where the covariance is right. Methods that need a
start have the identity.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from skimage import data
from torch import Tensor

from benchmarks.timing import environment
from trivgeo.actions import ImageWarp
from trivgeo.groups import LieGroup, Projective, Similarity
from trivgeo.registration import register

NAMES = (
    "astronaut",
    "camera",
    "coffee",
    "chelsea",
    "rocket",
    "moon",
    "coins",
    "retina",
    "hubble_deep_field",
    "immunohistochemistry",
    "brick",
    "grass",
    "gravel",
    "text",
)
Picture = NDArray[np.float64]
FOUND = 3.0
"""Error in pixels up to which a transformation is found."""


def photograph(name: str, side: int) -> Picture:
    """A photograph ``[h, w, c]`` in [0, 1] of at most so many pixels a side."""
    image = getattr(data, name)() / 255.0
    image = (image[..., None] if image.ndim == 2 else image)[..., :3]
    factor = side / max(image.shape[:2])
    if factor < 1:
        size = round(factor * image.shape[1]), round(factor * image.shape[0])
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return image.reshape(*image.shape[:2], -1)


def corners(height: int, width: int) -> Picture:
    """Corners (x, y) of a frame, ``[4, 2]``."""
    return np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], float)


def homography(rng: np.random.Generator, size: tuple[int, int], share: float) -> Picture:
    """A homography that moves corners by up to a share of the sides."""
    at = corners(*size)
    moved = at + rng.uniform(-share, share, (4, 2)) * size[::-1]
    return cv2.getPerspectiveTransform(at.astype(np.float32), moved.astype(np.float32))


def similarity(rng: np.random.Generator, size: tuple[int, int]) -> Picture:
    """Any rotation, a scale of .5 to 2 and a shift by 5 %, about the middle."""
    angle, scale = rng.uniform(-np.pi, np.pi), 2 ** rng.uniform(-1, 1)
    middle, shift = (np.array(size[::-1]) - 1) / 2, rng.uniform(-0.05, 0.05, 2) * size[::-1]
    matrix = np.eye(3)
    matrix[:2, :2] = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix[:2, 2] = middle + shift - matrix[:2, :2] @ middle
    return matrix


def hidden(rng: np.random.Generator, picture: Picture, other: Picture) -> Picture:
    """30 % of a picture behind a box of another one."""
    height, width, channels = picture.shape
    other = cv2.resize(other.mean(-1), (width, height))[..., None].repeat(channels, -1)
    h, w = (round(0.3**0.5 * n) for n in (height, width))
    top, left = rng.integers(0, height - h), rng.integers(0, width - w)
    picture = picture.copy()
    picture[top : top + h, left : left + w] = other[top : top + h, left : left + w]
    return picture


def dark(picture: Picture) -> Picture:
    """A tone curve of power .45, and a vignette."""
    y, x = (np.linspace(-1, 1, n) for n in picture.shape[:2])
    return np.clip(picture, 0, 1) ** 0.45 * (1 - 0.2 * (x**2 + y[:, None] ** 2))[..., None]


TASKS: dict[str, str] = {
    "near": "corners moved by up to 2 % of the sides, noise .02",
    "far": "corners moved by up to 12 % of the sides, noise .02",
    "clean": "corners moved by up to 3 % of the sides, no noise",
    "any": "any rotation, scale .5 to 2, noise .02",
    "hidden": "corners moved by up to 3 %, 30 % hidden by another photograph, noise .02",
    "dark": "corners moved by up to 3 %, gamma .45 with a vignette, noise .01",
}
SHARES = {"near": 0.02, "far": 0.12, "clean": 0.03, "hidden": 0.03, "dark": 0.03}
NOISE = {"clean": 0.0, "dark": 0.01}


def pair(task: str, name: str, seed: int, side: int) -> tuple[Picture, Picture, Picture]:
    """Both pictures ``[h, w, c]``, and the homography in pixels."""
    rng, image = np.random.default_rng(seed), photograph(name, side)
    height, width = size = image.shape[:2]
    matrix = similarity(rng, size) if task == "any" else homography(rng, size, SHARES[task])
    shrinks = np.linalg.det(matrix[:2, :2]) < 0.9
    flags = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    seen = cv2.warpPerspective(image, matrix, (width, height), flags=flags).reshape(image.shape)
    if task == "hidden":
        seen = hidden(rng, seen, photograph(NAMES[(seed + 4) % len(NAMES)], side))
    if task == "dark":
        seen = dark(seen)
    noise = NOISE.get(task, 0.02)
    return *(p + noise * rng.normal(size=p.shape) for p in (image, seen)), matrix


def grey(picture: Picture) -> NDArray[np.float32]:
    """A picture in one channel."""
    return np.clip(picture.mean(-1), 0, 1).astype(np.float32)


def ecc(moving: Picture, fixed: Picture, group: LieGroup) -> Picture:
    """The homography by ECC (Evangelidis and Psarakis 2008), from the identity."""
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 200, 1e-8)
    start = np.eye(3, dtype=np.float32)
    try:
        # the moving picture shows something everywhere, also beside the frame of the fixed one
        found = cv2.findTransformECC(grey(fixed), grey(moving), start, cv2.MOTION_HOMOGRAPHY, criteria, None, 5)[1]
        return np.linalg.inv(found)
    except cv2.error:  # it has not converged
        return np.full((3, 3), np.nan)


def sift(moving: Picture, fixed: Picture, group: LieGroup) -> Picture:
    """The homography by SIFT (Lowe 2004) with RANSAC."""
    detector = cv2.SIFT_create()
    (points, first), (others, second) = (
        detector.detectAndCompute((255 * grey(p)).astype(np.uint8), None) for p in (moving, fixed)
    )
    if first is None or second is None or len(second) < 2:
        return np.full((3, 3), np.nan)
    matches = [a for a, b in cv2.BFMatcher().knnMatch(first, second, k=2) if a.distance < 0.75 * b.distance]
    if len(matches) < 4:
        return np.full((3, 3), np.nan)
    places = (
        np.float32([points[m.queryIdx].pt for m in matches]),
        np.float32([others[m.trainIdx].pt for m in matches]),
    )
    matrix = cv2.findHomography(*places, cv2.RANSAC, 3.0)[0]
    return np.full((3, 3), np.nan) if matrix is None else matrix


def tensor(picture: Picture) -> Tensor:
    """A picture ``[c, h, w]`` in single precision."""
    return torch.tensor(picture).float().movedim(-1, 0).contiguous()


def distance(found: Picture, matrix: Picture, size: tuple[int, int]) -> float:
    """The largest distance between corners, in pixels."""
    at = np.c_[corners(*size), np.ones(4)]
    a, b = (at @ m.T for m in (found, matrix))
    return float(np.linalg.norm(a[:, :2] / a[:, 2:] - b[:, :2] / b[:, 2:], axis=1).max())


def ours(moving: Picture, fixed: Picture, group: LieGroup, matrix: Picture) -> dict[str, Any]:
    """The row of `register`."""
    images = tensor(moving), tensor(fixed)
    begin = time.process_time()
    r = register(*images, group)
    seconds = time.process_time() - begin
    truth = ImageWarp(group).from_pixels(torch.tensor(matrix), moving.shape[:2])
    off = group.log(group.project(group.compose(group.inverse(r.element.double()), truth)))
    square = float(off @ torch.linalg.solve(r.covariance.double(), off)) / group.dim
    error = distance(r.to_pixels().numpy(), matrix, moving.shape[:2])
    return {"error": error, "seconds": seconds, "trusted": r.trusted, "square": square}


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of the rows of a method."""
    errors = np.nan_to_num([row["error"] for row in rows], nan=np.inf)
    found = {
        "found": float(np.mean(errors < FOUND)),
        "median error": float(np.median(errors)),
        "seconds": float(np.median([row["seconds"] for row in rows])),
    }
    if "trusted" in rows[0]:
        trusted = np.array([row["trusted"] for row in rows])
        found["trusted"] = float(trusted.mean())
        found["worst trusted"] = float(errors[trusted].max()) if trusted.any() else float("nan")
        found["mean square of trusted"] = float(np.mean([row["square"] for row in rows if row["trusted"]]))
    return found


def main() -> None:
    """Print the figures, and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--names", nargs="+", default=list(NAMES))
    parser.add_argument("--repeats", type=int, default=1, help="pairs of each photograph")
    parser.add_argument("--output", default=str(Path(__file__).parent / "results" / "photographs-cpu.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    rivals: dict[str, Callable[[Picture, Picture, LieGroup], Picture]] = {"ECC": ecc, "SIFT": sift}
    register(*(tensor(p) for p in pair("near", NAMES[0], 0, 64)[:2]), Projective(2))  # what is done once
    settings = {name: value for name, value in vars(arguments).items() if name not in ("output", "tasks")}
    tables = {}
    for task in arguments.tasks:
        rows: dict[str, list[dict[str, Any]]] = {"trivgeo": [], **{name: [] for name in rivals}}
        group = Similarity(2) if task == "any" else Projective(2)
        for seed in range(arguments.repeats * len(arguments.names)):
            name = arguments.names[seed % len(arguments.names)]
            moving, fixed, matrix = pair(task, name, seed, arguments.side)
            rows["trivgeo"].append(ours(moving, fixed, group, matrix))
            for rival, method in rivals.items():
                begin = time.process_time()
                found = method(moving, fixed, group)
                seconds = time.process_time() - begin
                rows[rival].append({"error": distance(found, matrix, moving.shape[:2]), "seconds": seconds})
            print(task, name, *(f"{m} {r[-1]['error']:.3g}" for m, r in rows.items()), file=sys.stderr, flush=True)
        tables[task] = {"task": TASKS[task], "methods": {method: summary(part) for method, part in rows.items()}}
        print(task, json.dumps(tables[task]["methods"], indent=1))
        document = {"environment": environment(torch.device("cpu")), **settings, "tasks": tables}
        Path(arguments.output).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
