"""Registration of partial scans with outliers, beside the iterative closest point algorithm from the same starts.

python -m benchmarks.registration [--problems 100] [--first 0] [--starts 1024] [--methods trivgeo ICP ...]

The problems and the method are those of docs/tutorials/registration.py. ICP (Besl and McKay 1992) with SciPy's k-d
tree, plain, and trimmed to the share of the scan that is no outlier (Chetverikov et al. 2002), up to 100 iterations
from each of the starts that are best by its own mean square, as many as trivgeo goes on with, the best at the end by
the same. Where they are installed: GICP of small_gicp and ICP to tangent planes with Tukey's loss of open3d, from the
same starts, and KISS-Matcher, which matches features and takes none, at three sizes of voxels, finished by trimmed ICP.
A problem counts as solved within 2 degrees and 1 % of the size.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from benchmarks.timing import environment
from trivgeo.groups import SE

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorials" / "registration.py"
ITERATIONS = 100
KEPT = 128

VOXELS = (0.02, 0.03, 0.05)
Method = Callable[[Tensor, float, Tensor, Tensor], Tensor]


def promising(model: Tensor, scan: Tensor, starts: Tensor, keep: float) -> Tensor:
    """The starts of the lowest mean square distance of the nearest share ``keep`` of the scan."""
    moved = SE(3).action()(SE(3).inverse(starts), scan)
    distance = torch.from_numpy(KDTree(model.numpy()).query(moved.numpy())[0])
    error = distance.square().sort(-1).values[:, : round(keep * len(scan))].mean(-1)
    return starts[error.argsort()[:KEPT]]


def icp(model: Tensor, scan: Tensor, starts: Tensor, keep: float) -> Tensor:
    """The pose ``[3, 4]`` of the lowest mean square distance of the nearest share ``keep`` of the scan."""
    return descend(model, scan, promising(model, scan, starts, keep), keep)


def descend(model: Tensor, scan: Tensor, starts: Tensor, keep: float) -> Tensor:
    """`icp` from all of these starts."""
    target, source = model.numpy(), scan.numpy()
    tree, number = KDTree(target), round(keep * len(source))
    best, found = np.inf, None
    for start in SE(3).inverse(starts).numpy():
        r, t = start[:, :3], start[:, 3]
        pairs = None
        for _ in range(ITERATIONS):
            distance, index = tree.query(source @ r.T + t)
            kept = np.argsort(distance)[:number]
            if pairs is not None and np.array_equal(pairs, index[kept]):
                break
            pairs = index[kept]
            a, b = source[kept], target[pairs]
            u, _, vt = np.linalg.svd((a - a.mean(0)).T @ (b - b.mean(0)))
            r = vt.T @ np.diag([1.0, 1.0, np.linalg.det(vt.T @ u.T)]) @ u.T
            t = b.mean(0) - r @ a.mean(0)
        error = np.square(np.sort(tree.query(source @ r.T + t)[0])[:number]).mean()
        if error < best:
            best, found = error, np.concatenate([r, t[:, None]], 1)
    return SE(3).inverse(torch.as_tensor(found))


def gicp(model: Tensor, size: float, scan: Tensor, starts: Tensor) -> Tensor:
    """Generalised ICP (Segal et al. 2009), correspondences up to a tenth of the size."""
    import small_gicp

    best, found = np.inf, None
    starts = promising(model, scan, starts, 0.8)
    for start in SE(3).homogeneous(SE(3).inverse(starts)).numpy():
        result = small_gicp.align(
            model.numpy(),
            scan.numpy(),
            start,
            registration_type="GICP",
            downsampling_resolution=1e-3 * size,
            max_correspondence_distance=0.1 * size,
            max_iterations=ITERATIONS,
        )
        error = (result.error + 1e3 * (len(scan) - result.num_inliers)) if result.num_inliers else np.inf
        if error < best:
            best, found = error, result.T_target_source
    return SE(3).inverse(SE(3).from_homogeneous(torch.as_tensor(np.array(found))))


def planes(model: Tensor, size: float, scan: Tensor, starts: Tensor) -> Tensor:
    """ICP to tangent planes with Tukey's loss, correspondences up to a tenth, then a thirtieth of the size."""
    import open3d

    registration = open3d.pipelines.registration
    source, target = (
        open3d.geometry.PointCloud(open3d.utility.Vector3dVector(cloud.numpy())) for cloud in (scan, model)
    )
    target.estimate_normals(open3d.geometry.KDTreeSearchParamKNN(12))
    best, found = (-1.0, -np.inf), None
    starts = promising(model, scan, starts, 0.8)
    for pose in SE(3).homogeneous(SE(3).inverse(starts)).numpy():
        for reach in (0.1 * size, 0.03 * size):
            result = registration.registration_icp(
                source,
                target,
                reach,
                pose,
                registration.TransformationEstimationPointToPlane(registration.TukeyLoss(reach)),
                registration.ICPConvergenceCriteria(max_iteration=ITERATIONS),
            )
            pose = result.transformation
        if (score := (result.fitness, -result.inlier_rmse)) > best:
            best, found = score, pose
    return SE(3).inverse(SE(3).from_homogeneous(torch.as_tensor(np.array(found))))


def features(model: Tensor, size: float, scan: Tensor, starts: Tensor) -> Tensor:
    """KISS-Matcher (Lim et al. 2025) at each size of voxels, then trimmed ICP from what it found; no ``starts``."""
    import kiss_matcher

    found = []
    for share in VOXELS:
        matcher = kiss_matcher.KISSMatcher(kiss_matcher.KISSMatcherConfig(voxel_size=share * size))
        solution = matcher.estimate(*(list(cloud.numpy().astype(np.float32)) for cloud in (scan, model)))
        found.append(np.concatenate([solution.rotation, np.reshape(solution.translation, (3, 1))], 1))
    return descend(model, scan, SE(3).inverse(torch.as_tensor(np.array(found)).double()), 0.8)


def main() -> None:
    """Print the table of all methods."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--starts", type=int, default=1024)
    parser.add_argument("--methods", nargs="+", help="default: all that are installed")
    parser.add_argument("--output", default=str(Path(__file__).parent / "results" / "registration-cpu.json"))
    arguments = parser.parse_args()
    tutorial = runpy.run_path(str(TUTORIAL))
    methods: dict[str, Method] = {
        "trivgeo": lambda model, size, scan, starts: tutorial["registration"](model, size)(
            scan[None], initial=starts[None]
        ).best()[0],
        "ICP": lambda model, size, scan, starts: icp(model, scan, starts, 1.0),
        "trimmed ICP": lambda model, size, scan, starts: icp(model, scan, starts, 0.8),
    }
    rivals: dict[str, Method] = {"small_gicp": gicp, "open3d": planes, "kiss_matcher": features}
    methods |= {name: method for name, method in rivals.items() if importlib.util.find_spec(name)}
    methods = {name: methods[name] for name in arguments.methods or methods}
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in methods}
    for seed in range(arguments.first, arguments.first + arguments.problems):
        model, size, pose, scan = tutorial["problem"](seed)
        starts = tutorial["random_poses"](scan, arguments.starts, torch.Generator().manual_seed(10_000 + seed))
        for name, method in methods.items():
            begin = time.process_time()
            found = method(model, size, scan, starts)
            rows[name].append((*tutorial["errors"](pose, found, size), time.process_time() - begin))
            print(seed, name, *(f"{value:.3g}" for value in rows[name][-1]), file=sys.stderr, flush=True)
    table = {}
    for name, values in rows.items():
        degrees, shift, seconds = torch.tensor(values).unbind(-1)
        table[name] = {
            "solved": float(((degrees < 2.0) & (shift < 0.01)).float().mean()),
            "median degrees": float(degrees.median()),
            "median shift": float(shift.median()),
            "seconds": float(seconds.mean()),
        }
    settings = {name: value for name, value in vars(arguments).items() if name != "output"}
    document = {"environment": environment(torch.device("cpu")), **settings, "methods": table}
    Path(arguments.output).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
