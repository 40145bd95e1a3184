"""Registration of volumes at 2 mm under motions of known truth, beside SimpleITK.

python -m benchmarks.volumes [--pairs 10] [--parts 24] [--rival-pairs 3]

The volumes are the MNI templates of nilearn (``pip install nilearn SimpleITK``): T1, and grey matter as another
modality. The template at 1 mm is moved by SciPy's cubic splines, so that nothing of the warp is the library's own: by a
rotation of 30 degrees and a shift of 20 mm, or by an affine map whose entries are off by up to 10 % and a shift of 10
mm. Both volumes have noise of .02 of the range. The error is the mean distance over the voxels of the head, in
millimetres. SimpleITK begins with centres of mass on each other, and climbs the mutual information (50 bins, a fifth of
the voxels) on three levels: ``descent`` by plain steps, ``line search`` until it ends. One thread, CPU time.

There is one head, and what one template shows alone is off alike in all pairs of it: a region holds the truth in all of
them or in none. Coverage is therefore that of parts, cubes of 84 mm about other places of the head in each pair;
their descents begin at the truth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nilearn.datasets import load_mni152_gm_template, load_mni152_template
from scipy import ndimage
from scipy.stats import chi2

from benchmarks.timing import environment
from trivgeo.actions import Volume, itk_matrix
from trivgeo.groups import SE, Affine
from trivgeo.registration import register

NOISE = 0.02
MIDDLE = (0.0, -18.0, 12.0)  # about the middle of the head, in millimetres
SIDE_OF_PART, REACH_OF_PARTS = 84.0, (32.0, 45.0, 28.0)  # and how far their middles are from that of the head at most
SETTINGS = {"rigid": SE(3), "affine": Affine(3)}
MODALITIES = {"t1": load_mni152_template, "grey matter": load_mni152_gm_template}


def motion(kind: str, rng: np.random.Generator) -> np.ndarray:
    """A motion ``[4, 4]`` of points in millimetres about the middle of the head."""
    matrix, middle = np.eye(4), np.eye(4)
    shift = rng.normal(size=3)
    if kind == "rigid":
        axis = rng.normal(size=3)
        v = torch.from_numpy(np.r_[axis * math.radians(30) / np.linalg.norm(axis), 0, 0, 0])
        matrix = SE(3).homogeneous(SE(3).exp(v)).numpy()
        matrix[:3, 3] = 20 * shift / np.linalg.norm(shift)
    else:
        matrix[:3, :3] += rng.uniform(-0.1, 0.1, size=(3, 3))
        matrix[:3, 3] = 10 * shift / np.linalg.norm(shift)
    middle[:3, 3] = MIDDLE
    return middle @ matrix @ np.linalg.inv(middle)


class Pairs:
    """Pairs of known truth: the T1 template, and a template that a motion takes to it."""

    def __init__(self) -> None:
        self.fine = {name: load(resolution=1) for name, load in MODALITIES.items()}
        self.splines = {name: ndimage.spline_filter(image.get_fdata()) for name, image in self.fine.items()}
        self.fixed = load_mni152_template(resolution=2)
        head = np.argwhere(self.fixed.get_fdata() > 0.2)[::50]
        self.points = np.c_[head, np.ones(len(head))] @ self.fixed.affine.T

    def pair(self, kind: str, modality: str, seed: int) -> tuple[Volume, Volume, np.ndarray]:
        """Moving volume, fixed volume, and the motion between them."""
        rng = np.random.default_rng(seed)
        truth = motion(kind, rng)
        read = np.linalg.inv(self.fine[modality].affine) @ truth @ self.fixed.affine
        size = self.fixed.shape
        moved = ndimage.affine_transform(
            self.splines[modality], read[:3, :3], read[:3, 3], size, order=3, prefilter=False
        )
        noisy = (values + NOISE * rng.normal(size=size) for values in (moved, self.fixed.get_fdata()))
        affine = torch.from_numpy(self.fixed.affine.copy())
        moving, fixed = (Volume(torch.from_numpy(values.T.copy()).float()[None], affine) for values in noisy)
        return moving, fixed, truth

    def part(self, kind: str, modality: str, seed: int) -> tuple[Volume, Volume, np.ndarray, np.ndarray]:
        """Parts of a pair about the same place, the motion between them, and the place."""
        moving, fixed, truth = self.pair(kind, modality, seed)
        place = np.r_[np.array(MIDDLE) + np.array(REACH_OF_PARTS) * np.random.default_rng(seed).uniform(-1, 1, 3), 1.0]
        return cut(moving, np.linalg.inv(truth) @ place), cut(fixed, place), truth, place

    def error(self, found: np.ndarray, truth: np.ndarray, place: np.ndarray | None = None) -> float:
        """Mean distance over the head, or a part, between points that should be moved to where they are."""
        points = self.points
        if place is not None:
            points = points[(np.abs(points - place) < 0.5 * SIDE_OF_PART).all(1)]
        moved = points @ (found @ np.linalg.inv(truth)).T
        return float(np.linalg.norm((moved - points)[:, :3], axis=1).mean())


def cut(volume: Volume, place: np.ndarray) -> Volume:
    """The part of a volume about a place in millimetres."""
    index = np.linalg.inv(volume.affine.numpy()) @ place
    half = 0.5 * SIDE_OF_PART / volume.spacing.numpy()
    ends = [
        np.clip(np.round(index[:3] + sign * half), 0, volume.data.shape[:0:-1]).astype(int).tolist() for sign in (-1, 1)
    ]
    (x, y, z), (i, j, k) = ends
    affine = volume.affine.clone()
    affine[:3, 3] += affine[:3, :3] @ torch.tensor(ends[0], dtype=affine.dtype)
    return Volume(volume.data[:, z:k, y:j, x:i].contiguous(), affine)


def ours(
    moving: Volume, fixed: Volume, kind: str, modality: str, truth: np.ndarray, from_truth: bool = False
) -> tuple[np.ndarray, dict[str, Any]]:
    """The motion that `register` finds, and what it says of it."""
    group = SETTINGS[kind]
    wanted = group.from_homogeneous(torch.from_numpy(truth))
    start = (lambda number, generator: wanted.expand(number, *wanted.shape)) if from_truth else None
    begin = time.process_time()
    similarity = "intensity" if modality == "t1" else "mutual_information"
    r = register(
        moving, fixed, group, similarity=similarity, transformations=start, num_starts=1 if from_truth else None
    )
    seconds = time.process_time() - begin
    v = group.log(group.compose(group.inverse(r.element.double()), wanted))
    square = float(v @ torch.linalg.solve(r.covariance.double(), v))
    row = {"seconds": seconds, "trusted": r.trusted, "probability": float(chi2.cdf(square, group.dim))}
    return group.homogeneous(r.element.double()).numpy(), row


def rival(moving: Volume, fixed: Volume, kind: str, method: str) -> tuple[np.ndarray, dict[str, Any]]:
    """The motion that SimpleITK finds."""
    import SimpleITK as sitk  # noqa: N813

    def image(volume: Volume) -> Any:
        result = sitk.GetImageFromArray(volume.data[0].numpy())
        matrix, spacing = volume.affine.numpy(), volume.spacing.numpy()
        to_lps = np.diag([-1.0, -1.0, 1.0])
        result.SetSpacing(spacing.tolist())
        result.SetDirection((to_lps @ (matrix[:3, :3] / spacing)).flatten().tolist())
        result.SetOrigin((to_lps @ matrix[:3, 3]).tolist())
        return result

    images = image(fixed), image(moving)
    begin = time.process_time()
    method_ = sitk.ImageRegistrationMethod()
    method_.SetGlobalDefaultNumberOfThreads(1)
    method_.SetMetricAsMattesMutualInformation(50)
    method_.SetMetricSamplingStrategy(method_.REGULAR)
    method_.SetMetricSamplingPercentage(0.2, 1)
    method_.SetInterpolator(sitk.sitkLinear)
    if method == "descent":
        method_.SetOptimizerAsGradientDescent(1.0, 100, 1e-6, 10)
    else:
        method_.SetOptimizerAsGradientDescentLineSearch(1.0, 100, 1e-6, 10)
    method_.SetOptimizerScalesFromPhysicalShift()
    method_.SetShrinkFactorsPerLevel([4, 2, 1])
    method_.SetSmoothingSigmasPerLevel([2, 1, 0])
    method_.SmoothingSigmasAreSpecifiedInPhysicalUnitsOff()
    transform = sitk.Euler3DTransform() if kind == "rigid" else sitk.AffineTransform(3)
    first = sitk.CenteredTransformInitializer(*images, transform, sitk.CenteredTransformInitializerFilter.MOMENTS)
    method_.SetInitialTransform(first, inPlace=False)
    found = method_.Execute(*images)
    seconds = time.process_time() - begin
    zero = np.array(found.TransformPoint((0.0, 0.0, 0.0)))
    matrix = np.eye(4)
    matrix[:3, :3] = np.stack([np.array(found.TransformPoint(tuple(e))) - zero for e in np.eye(3)], 1)
    matrix[:3, 3] = zero
    # the map of `itk_matrix` is its own inverse
    return itk_matrix(torch.from_numpy(matrix)).numpy(), {"seconds": seconds}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians of errors and times by kind, modality, whole or part, and method."""
    lines = []
    names = ("kind", "modality", "part", "method")
    for key in dict.fromkeys(tuple(row[name] for name in names) for row in rows):
        these = [row for row in rows if tuple(row[name] for name in names) == key]
        line = dict(zip(names, key, strict=True)) | {
            "pairs": len(these),
            "median error": float(np.median([row["error"] for row in these])),
            "worst error": max(row["error"] for row in these),
            "seconds": float(np.median([row["seconds"] for row in these])),
        }
        if "probability" in these[0]:
            line["trusted"] = sum(row["trusted"] for row in these)
            line["in 90 % regions"] = sum(row["trusted"] and row["probability"] < 0.9 for row in these)
        lines.append(line)
    return lines


def main() -> None:
    """Register all pairs, print each, and keep the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.volumes")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--parts", type=int, default=24)
    parser.add_argument("--rival-pairs", type=int, default=3)
    parser.add_argument("--output", default=str(Path(__file__).parent / "results" / "volumes-cpu.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    pairs, rows = Pairs(), []
    ours(*pairs.pair("rigid", "t1", 0)[:2], "rigid", "t1", np.eye(4))  # the first call of a process compiles
    for seed in range(max(options.pairs, options.parts)):
        for kind, modality, part in itertools.product(SETTINGS, MODALITIES, (False, True)):
            place = None
            if seed < (options.parts if part else options.pairs):
                if part:
                    moving, fixed, truth, place = pairs.part(kind, modality, seed)
                else:
                    moving, fixed, truth = pairs.pair(kind, modality, seed)
                found = {"trivgeo": ours(moving, fixed, kind, modality, truth, from_truth=part)}
                for method in ("descent", "line search") if seed < options.rival_pairs and not part else ():
                    found[f"SimpleITK, {method}"] = rival(moving, fixed, kind, method)
                for method, (matrix, row) in found.items():
                    row = {"kind": kind, "modality": modality, "part": part, "seed": seed, "method": method} | row
                    rows.append(row | {"error": pairs.error(matrix, truth, place)})
                    print(json.dumps(rows[-1]), flush=True)
        lines = summary(rows)
        kept = {"environment": environment(torch.device("cpu")), "noise": NOISE, "summary": lines, "rows": rows}
        Path(options.output).write_text(json.dumps(kept, indent=1) + "\n")
    for line in lines:
        print(line)


if __name__ == "__main__":
    main()
