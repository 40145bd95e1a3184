"""Registration of two partial scans of one object, beside open3d, KISS-Matcher and small_gicp.

python -m benchmarks.scans [--seeds 1] [--points 1000] [--overlaps 1 .7 .5] [--outliers 0 .1 .3] [--noises 0 .005]
                           [--objects ...] [--methods ...] [--output FILE]

Ten objects: six from formulas, and, where their packages are installed, an aeroplane and an ant (pyvista), half of a
cortex (nilearn) and the depths of a photograph of a motorcycle (scikit-image). Each scan shows the part of the surface
on one side of a plane, so that the stated share of each lies on the part of the other; points of the two scans are
drawn apart. Lengths are in units of half of the diagonal of the object. Outliers are uniform in a box about the scan.
The pose is any rotation and a shift. An answer is right within 5 degrees and .1. ``trusted`` and ``wrong`` are counted
where a method says so: wrong ones are trusted, and not right. ``median`` is of the answers that are right in all
methods that know no starting point.

open3d: FPFH at voxels of .05, RANSAC, then ICP to tangent planes. KISS-Matcher at voxels of .05, then the same ICP.
small_gicp: from the identity.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from benchmarks.timing import environment
from trivgeo.groups import SE
from trivgeo.registration import register

Array = NDArray[np.float64]
RESULTS = Path(__file__).parent / "results" / "scans-cpu.json"
VOXEL, ITERATIONS = 0.05, 100_000
DEGREES, SHIFT = 5.0, 0.1


# -- objects -----------------------------------------------------------------------------------------------------------


def bumpy(rng: np.random.Generator, m: int) -> Array:
    """A closed surface with bumps."""
    directions = np.random.default_rng(50).normal(size=(5, 3))
    x = rng.normal(size=(m, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x * (1 + 0.25 * np.tanh(2 * x @ directions.T).sum(1, keepdims=True) / 2)


def on_boxes(boxes: Array) -> Callable[[np.random.Generator, int], Array]:
    """The outside of a union of boxes: rows of three coordinates of the centre and three sides."""
    centres, sides = boxes[:, :3], boxes[:, 3:]

    def surface(rng: np.random.Generator, m: int) -> Array:
        area = sides.prod(1, keepdims=True) / sides
        face = rng.choice(area.size, 6 * m, p=(area / area.sum()).ravel())
        box, axis = face // 3, face % 3
        unit = rng.uniform(-0.5, 0.5, (6 * m, 3))
        unit[np.arange(6 * m), axis] = rng.choice([-0.5, 0.5], 6 * m)
        x = unit * sides[box] + centres[box]
        hidden = (np.abs(x[:, None] - centres) < 0.5 * sides - 1e-9).all(-1).any(-1)
        return x[~hidden][:m]

    return surface


CHAIR = np.array(
    [
        [0, 0, 0, 1, 1, 0.1],
        [-0.45, 0, 0.55, 0.1, 1, 1],
        *([x, y, -0.45, 0.1, 0.1, 0.9] for x in (-0.4, 0.4) for y in (-0.4, 0.4)),
        [0, 0.5, 0.3, 0.8, 0.08, 0.08],
    ]
)
BLOCKS = np.array([[0, 0, 0, 1.2, 0.5, 0.4], [0.4, 0.5, 0.1, 0.4, 0.9, 0.3], [-0.3, -0.1, 0.5, 0.3, 0.4, 0.8]])


def mug(rng: np.random.Generator, m: int) -> Array:
    """A cylinder with a bottom and a handle, and a bead on its rim."""
    height, angle = rng.uniform(-0.6, 0.6, 6 * m), rng.uniform(0, 2 * math.pi, 6 * m)
    wall = np.stack([0.5 * np.cos(angle), 0.5 * np.sin(angle), height], 1)
    radius = 0.5 * np.sqrt(rng.random(m))
    bottom = np.stack([radius * np.cos(angle[:m]), radius * np.sin(angle[:m]), 0 * radius - 0.6], 1)
    turn, around = rng.uniform(-1.5, 1.5, m), rng.uniform(0, 2 * math.pi, m)
    reach = 0.35 + 0.07 * np.cos(around)
    handle = np.stack([0.5 + reach * np.cos(turn), 0.07 * np.sin(around), reach * np.sin(turn)], 1)
    bead = rng.normal(size=(m // 4, 3))
    bead = np.array([0, 0.5, 0.5]) + 0.12 * bead / np.linalg.norm(bead, axis=1, keepdims=True)
    return rng.permutation(np.concatenate([wall, bottom, handle, bead]))[:m]


def knot(rng: np.random.Generator, m: int) -> Array:
    """A tube of varying width about a trefoil."""
    t, around = rng.uniform(0, 2 * math.pi, m), rng.uniform(0, 2 * math.pi, m)
    middle = np.stack([np.sin(t) + 2 * np.sin(2 * t), np.cos(t) - 2 * np.cos(2 * t), -np.sin(3 * t)], 1) / 3
    along = np.stack([np.cos(t) + 4 * np.cos(2 * t), -np.sin(t) + 4 * np.sin(2 * t), -3 * np.cos(3 * t)], 1)
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    one = np.cross(along, [0.0, 0.0, 1.0])
    one /= np.linalg.norm(one, axis=1, keepdims=True)
    other = np.cross(along, one)
    width = (0.14 + 0.06 * np.cos(t) + 0.03 * np.sin(2 * t))[:, None]
    return middle + width * (np.cos(around)[:, None] * one + np.sin(around)[:, None] * other)


def terrain(rng: np.random.Generator, m: int) -> Array:
    """A square of hills."""
    hills = np.random.default_rng(3)
    centre, width, height = hills.uniform(-1, 1, (25, 2)), hills.uniform(0.1, 0.4, 25), hills.normal(0, 0.2, 25)
    x = rng.uniform(-1, 1, (m, 2))
    square = ((x[:, None] - centre) ** 2).sum(-1)
    return np.concatenate([x, (height * np.exp(-0.5 * square / width**2)).sum(1, keepdims=True)], 1)


def on_mesh(vertices: Array, faces: NDArray[np.int64]) -> Callable[[np.random.Generator, int], Array]:
    """Places on triangles, uniform in their area."""
    corners = vertices[faces]
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)

    def surface(rng: np.random.Generator, m: int) -> Array:
        face = rng.choice(len(corners), m, p=area / area.sum())
        weights = rng.dirichlet(np.ones(3), m)
        return np.einsum("mc,mcn->mn", weights, corners[face])

    return surface


def files_of(package: str) -> Path | None:
    """The folder of a package; ``None`` where it is not installed."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or not spec.submodule_search_locations else Path(spec.submodule_search_locations[0])


def objects() -> dict[str, Callable[[np.random.Generator, int], Array]]:
    """All surfaces that there are here."""
    found: dict[str, Callable[[np.random.Generator, int], Array]] = {
        "bumps": bumpy,
        "blocks": on_boxes(BLOCKS),
        "chair": on_boxes(CHAIR),
        "mug": mug,
        "knot": knot,
        "terrain": terrain,
    }
    if (folder := files_of("pyvista")) is not None and importlib.util.find_spec("open3d") is not None:
        import open3d

        for name in ("airplane", "ant"):
            mesh = open3d.io.read_triangle_mesh(str(folder / "examples" / f"{name}.ply"))
            found[name] = on_mesh(np.asarray(mesh.vertices), np.asarray(mesh.triangles))
    if (folder := files_of("nilearn")) is not None and importlib.util.find_spec("nibabel") is not None:
        import nibabel

        data = gzip.decompress((folder / "datasets" / "data" / "fsaverage5" / "pial_left.gii.gz").read_bytes())
        vertices, faces = (part.data for part in nibabel.GiftiImage.from_bytes(data).darrays)
        found["cortex"] = on_mesh(np.asarray(vertices, float), np.asarray(faces))
    if (folder := files_of("skimage")) is not None and (folder / "data" / "motorcycle_disp.npz").exists():
        disparity = np.load(folder / "data" / "motorcycle_disp.npz")["arr_0"].astype(float)
        row, column = np.nonzero(np.isfinite(disparity) & (disparity > 25))
        # the camera of the Middlebury data: focal length, principal point, baseline and offset of disparities
        depth = 193.0 * 994.978 / (disparity[row, column] + 31.0)
        seen = np.stack([(column - 311.0) / 994.978 * depth, (row - 248.0) / 994.978 * depth, depth], 1) / 1000
        found["motorcycle"] = lambda rng, m: seen[rng.choice(len(seen), m)]
    return {name: scaled(surface) for name, surface in found.items()}


def scaled(surface: Callable[[np.random.Generator, int], Array]) -> Callable[[np.random.Generator, int], Array]:
    """The surface about its middle, in units of half of its diagonal."""
    low, high = (f(surface(np.random.default_rng(0), 20_000), axis=0) for f in (np.min, np.max))
    return lambda rng, m: (surface(rng, m) - (low + high) / 2) / (0.5 * np.linalg.norm(high - low))


def scans(
    surface: Callable[[np.random.Generator, int], Array],
    rng: np.random.Generator,
    points: int,
    overlap: float,
    outliers: float,
    noise: float,
) -> tuple[Array, Array, Array]:
    """Two scans ``[points, 3]``, the second one moved, and the matrix ``[4, 4]`` from the first to the second."""
    direction = rng.normal(size=3)
    direction /= np.linalg.norm(direction)
    share = 1.0 / (2.0 - overlap)
    height = surface(rng, 20_000) @ direction
    views = []
    for sign, edge in ((1.0, np.quantile(height, share)), (-1.0, -np.quantile(height, 1.0 - share))):
        x = surface(rng, 4 * points)
        x = x[sign * (x @ direction) <= edge][:points]
        x = x + noise * rng.normal(size=x.shape)
        low, high = x.min(0), x.max(0)
        lost = rng.random(len(x)) < outliers
        x[lost] = rng.uniform(low - 0.1, high + 0.1, (int(lost.sum()), 3))
        views.append(x)
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = Rotation.random(rng=rng).as_matrix(), rng.normal(size=3)
    return views[0], views[1] @ pose[:3, :3].T + pose[:3, 3], pose


# -- methods: two clouds to a matrix, and whether it is trusted --------------------------------------------------------


def ours(moving: Array, fixed: Array) -> tuple[Array, bool | None]:
    """`register` under SE(3)."""
    r = register(torch.from_numpy(moving), torch.from_numpy(fixed), SE(3), matched=False)
    return SE(3).homogeneous(r.element).numpy(), r.trusted


def open3d_clouds(*clouds: Array) -> list[Any]:
    """Clouds of open3d with normals."""
    import open3d

    found = []
    for cloud in clouds:
        one = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(cloud))
        one.estimate_normals(open3d.geometry.KDTreeSearchParamHybrid(radius=2 * VOXEL, max_nn=30))
        found.append(one)
    return found


def open3d_icp(moving: Array, fixed: Array, start: Array) -> Array:
    """ICP to tangent planes."""
    import open3d

    registration = open3d.pipelines.registration
    source, target = open3d_clouds(moving, fixed)
    method = registration.TransformationEstimationPointToPlane()
    return np.array(registration.registration_icp(source, target, VOXEL, start, method).transformation)


def open3d_global(moving: Array, fixed: Array) -> tuple[Array, bool | None]:
    """FPFH, RANSAC and ICP, as in its tutorial."""
    import open3d

    registration = open3d.pipelines.registration
    clouds, features = [], []
    for cloud in open3d_clouds(moving, fixed):
        down = cloud.voxel_down_sample(VOXEL)
        down.estimate_normals(open3d.geometry.KDTreeSearchParamHybrid(radius=2 * VOXEL, max_nn=30))
        near = open3d.geometry.KDTreeSearchParamHybrid(radius=5 * VOXEL, max_nn=100)
        clouds.append(down)
        features.append(registration.compute_fpfh_feature(down, near))
    open3d.utility.random.seed(0)
    start = registration.registration_ransac_based_on_feature_matching(
        *clouds,
        *features,
        True,
        1.5 * VOXEL,
        registration.TransformationEstimationPointToPoint(False),
        3,
        [
            registration.CorrespondenceCheckerBasedOnEdgeLength(0.9),
            registration.CorrespondenceCheckerBasedOnDistance(1.5 * VOXEL),
        ],
        registration.RANSACConvergenceCriteria(ITERATIONS, 0.999),
    ).transformation
    return open3d_icp(moving, fixed, start), None


def kiss(moving: Array, fixed: Array) -> tuple[Array, bool | None]:
    """KISS-Matcher, then ICP of open3d."""
    import kiss_matcher

    matcher = kiss_matcher.KISSMatcher(kiss_matcher.KISSMatcherConfig(voxel_size=VOXEL))
    found = matcher.estimate(*(list(cloud.astype(np.float32)) for cloud in (moving, fixed)))
    start = np.eye(4)
    start[:3, :3], start[:3, 3] = found.rotation, np.ravel(found.translation)
    return open3d_icp(moving, fixed, start), None


def gicp(moving: Array, fixed: Array) -> tuple[Array, bool | None]:
    """GICP of small_gicp from the identity."""
    import small_gicp

    found = small_gicp.align(fixed, moving, downsampling_resolution=VOXEL / 2, max_correspondence_distance=0.5)
    return np.array(found.T_target_source), None


METHODS: dict[str, tuple[str, Callable[[Array, Array], tuple[Array, bool | None]]]] = {
    "trivgeo": ("trivgeo", ours),
    "open3d, FPFH + RANSAC + ICP": ("open3d", open3d_global),
    "KISS-Matcher + ICP": ("kiss_matcher", kiss),
    "small_gicp, from the identity": ("small_gicp", gicp),
}


# -- table -------------------------------------------------------------------------------------------------------------


def errors(found: Array, true: Array) -> tuple[float, float]:
    """Degrees between rotations, and the distance between images of the middle of the object."""
    turn = Rotation.from_matrix(found[:3, :3]) * Rotation.from_matrix(true[:3, :3]).inv()
    return math.degrees(turn.magnitude()), float(np.linalg.norm(found[:3, 3] - true[:3, 3]))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each method, overlap and share of outliers, and for each method over all."""
    table = []
    methods = list(dict.fromkeys(row["method"] for row in rows))
    keys = list(dict.fromkeys((row["overlap"], row["outliers"]) for row in rows))
    feature_based = [name for name in methods if "identity" not in name]
    right = {(row["method"], row["case"]): row["right"] for row in rows}
    for key in [*keys, None]:
        for method in methods:
            own = [r for r in rows if r["method"] == method and key in (None, (r["overlap"], r["outliers"]))]
            common = [r for r in own if all(right[name, r["case"]] for name in feature_based)]
            middle = {w: float(np.median([r[w] for r in common])) if common else None for w in ("degrees", "shift")}
            table.append(
                {
                    "overlap": None if key is None else key[0],
                    "outliers": None if key is None else key[1],
                    "method": method,
                    "pairs": len(own),
                    "right": sum(r["right"] for r in own),
                    "median degrees": middle["degrees"],
                    "median shift": middle["shift"],
                    "seconds": float(np.mean([r["seconds"] for r in own])),
                    "trusted": None if own[0]["trusted"] is None else sum(r["trusted"] for r in own),
                    "wrong": None if own[0]["trusted"] is None else sum(r["trusted"] and not r["right"] for r in own),
                }
            )
    return table


def main() -> None:
    """Print the table of all methods."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scans", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--points", type=int, default=1000, help="of each scan")
    parser.add_argument("--overlaps", type=float, nargs="+", default=[1.0, 0.7, 0.5])
    parser.add_argument("--outliers", type=float, nargs="+", default=[0.0, 0.1, 0.3])
    parser.add_argument("--noises", type=float, nargs="+", default=[0.0, 0.005])
    parser.add_argument("--objects", nargs="+", help="default: all that there are")
    parser.add_argument("--methods", nargs="+", help="default: all that are installed")
    parser.add_argument("--output", type=Path, help=f"where to keep the table, such as {RESULTS.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    installed = [name for name, (package, _) in METHODS.items() if importlib.util.find_spec(package)]
    methods = [name for name in installed if not options.methods or any(m in name for m in options.methods)]
    surfaces = objects()
    names = options.objects or list(surfaces)
    rows: list[dict[str, Any]] = []
    seeds = range(options.first, options.first + options.seeds)
    settings = product(options.overlaps, options.outliers, options.noises, seeds, range(len(names)))
    for overlap, share, noise, seed, index in settings:
        surface = surfaces[names[index]]
        number = list(surfaces).index(names[index])
        rng = np.random.default_rng([seed, number, round(100 * overlap), round(100 * share), round(1e4 * noise)])
        moving, fixed, true = scans(surface, rng, options.points, overlap, share, noise)
        for method in methods:
            begin = time.process_time()
            found, trusted = METHODS[method][1](moving, fixed)
            seconds = time.process_time() - begin
            degrees, shift = errors(found, true)
            row = {"method": method, "object": names[index], "overlap": overlap, "outliers": share, "noise": noise}
            row |= {"seed": seed, "degrees": degrees, "shift": shift, "seconds": seconds, "trusted": trusted}
            row |= {"right": degrees < DEGREES and shift < SHIFT, "case": [names[index], overlap, share, noise, seed]}
            row["case"] = str(row["case"])
            rows.append(row)
            print(*(f"{v:.3g}" if isinstance(v, float) else v for v in row.values()), file=sys.stderr, flush=True)
    table = summary(rows)
    print(f"{'overlap':>8}{'outliers':>9} {'method':30}  right of   degrees    shift  seconds trusted wrong")
    for row in table:
        said = ("" if row[name] is None else row[name] for name in ("overlap", "outliers"))
        middle = ("-" if row[f"median {w}"] is None else f"{row[f'median {w}']:.4f}" for w in ("degrees", "shift"))
        verdict = ("-" if row[name] is None else row[name] for name in ("trusted", "wrong"))
        print("{:>8}{:>9}".format(*said), f"{row['method']:30} {row['right']:6} {row['pairs']:3}", end=" ")
        print("{:>8} {:>8}".format(*middle), f"{row['seconds']:8.3f}", "{:>7} {:>5}".format(*verdict))
    if options.output:
        settings_kept = {name: value for name, value in vars(options).items() if name != "output"}
        document = {"environment": environment(torch.device("cpu")), **settings_kept, "table": table, "rows": rows}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
