"""Registration of photographs under homographies that move each corner by up to a quarter of the sides.

python -m benchmarks.photographs [--side 512] [--noise 0.0] [--names astronaut coffee ...]

The photographs are those of scikit-image's wheel (``pip install scikit-image``), warped by scikit-image, so that
nothing of the warp is the library's own, and shrunk to ``--side`` pixels at most. No mask is given. The error is the
largest distance between corners, in pixels.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from skimage import data
from skimage.transform import ProjectiveTransform, resize, warp
from torch import Tensor

from benchmarks.timing import environment
from trivgeo.actions import ImageWarp
from trivgeo.groups import Projective
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
)
SHARE = 0.25


def photograph(name: str, side: int) -> np.ndarray:
    """A photograph ``[h, w, c]`` in [0, 1] of at most so many pixels a side."""
    image = getattr(data, name)() / 255.0
    image = (image[..., None] if image.ndim == 2 else image)[..., :3]
    factor = side / max(image.shape[:2])
    if factor >= 1:
        return image
    return resize(image, [round(n * factor) for n in image.shape[:2]], anti_aliasing=True)


def problem(name: str, seed: int, side: int, noise: float) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    """Both images ``[c, h, w]``, the corners ``[4, 2]`` and where they are in the second."""
    rng, image = np.random.default_rng(seed), photograph(name, side)
    height, width = image.shape[:2]
    corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], float)
    moved = corners + rng.uniform(-SHARE, SHARE, (4, 2)) * [width, height]
    seen = warp(image, ProjectiveTransform.from_estimate(corners, moved).inverse, order=1)
    images = (torch.tensor(i + noise * rng.normal(size=i.shape)).float().movedim(-1, 0) for i in (image, seen))
    return *images, corners, moved  # type: ignore[return-value]


def main() -> None:
    """Print the errors, and keep them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--noise", type=float, default=0.0, help="standard deviation, in both images")
    parser.add_argument("--names", nargs="+", default=list(NAMES))
    parser.add_argument("--output", default=str(Path(__file__).parent / "results" / "photographs-cpu.json"))
    arguments = parser.parse_args()
    rows = {}
    for seed, name in enumerate(arguments.names):
        moving, fixed, corners, wanted = problem(name, seed, arguments.side, arguments.noise)
        begin = time.process_time()
        r = register(moving, fixed, Projective(2))
        seconds = time.process_time() - begin
        matrix = ImageWarp(Projective(2)).to_pixels(r.element.double(), moving.shape[-2:]).numpy()
        found = np.c_[corners, np.ones(4)] @ matrix.T
        error = float(np.linalg.norm(found[:, :2] / found[:, 2:] - wanted, axis=1).max())
        rows[name] = {"pixels": list(moving.shape[-2:]), "error": error, "trusted": r.trusted, "seconds": seconds}
        print(name, rows[name], *r.reasons, file=sys.stderr, flush=True)
    errors = torch.tensor([row["error"] for row in rows.values()])
    table = {"median error": float(errors.median()), "worst error": float(errors.max()), "photographs": rows}
    settings = {name: value for name, value in vars(arguments).items() if name not in ("output", "names")}
    document = {"environment": environment(torch.device("cpu")), **settings, **table}
    Path(arguments.output).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
