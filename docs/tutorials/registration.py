"""Find the pose of an object in a partial scan with outliers, and all poses of a symmetric object."""

# %% [markdown]
# # Register a scan to a model
#
# A scan shows part of an object in an unknown pose. Some of its points, the outliers, do not belong to the object.
# The pose is an inversion problem: the scan is $g \cdot x$ with a rigid motion g, and the points x lie on the model,
# except for outliers. A symmetric object has several poses that fit. This page finds them all, with their weights.
#
# Run this page as a script: `python docs/tutorials/registration.py`.

# %%
from __future__ import annotations

import math

import torch
from torch import Tensor

from trivgeo.actions import PointCloud
from trivgeo.groups import SE, SO
from trivgeo.inversion import Inverter
from trivgeo.inversion.energies import GemanMcClure, LeastSquares, NearestPoints
from trivgeo.inversion.stages import Laplace, LevenbergMarquardt, Select, WithEnergy

# %% [markdown]
# ## 1. The method
#
# The energy of a pose moves the scan back, and measures the distance from each point to the nearest point of the
# model. A bounded loss, `GemanMcClure`, limits the influence of outliers. The width of the loss is the width of the
# energy's wells, so the first steps use a wide loss and later steps narrower ones. A descent succeeds from starts
# within about forty degrees of the solution. With 64 random rotations the nearest start may be fifty degrees away.
# The method therefore evaluates a thousand starts, and descends from the best.


# %%
def registration(model: Tensor, size: float, keep: tuple[int, int, int] = (128, 32, 8)) -> Inverter:
    """An inverter that finds the rigid motion from the model to a scan.

    Args:
        model: points ``[k, 3]`` of the surface.
        size: the diagonal of the object.
        keep: the numbers of hypotheses that descend with the widest losses, with the next and with the last.
    """
    residuals = NearestPoints(model, tangent=0.3)

    def energy(width: float) -> LeastSquares:
        return LeastSquares(residuals, GemanMcClure(width * size), std=0.01 * size)

    return Inverter(
        PointCloud(SE(3)),
        energy(0.03),
        [
            WithEnergy(energy(0.2), Select(keep[0]), LevenbergMarquardt(5)),
            WithEnergy(energy(0.1), LevenbergMarquardt(5), Select(keep[1])),
            WithEnergy(energy(0.05), LevenbergMarquardt(10), Select(keep[2])),
            LevenbergMarquardt(20),
        ],
    )


def random_poses(scan: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Starts ``[count, 3, 4]``: any rotation, the model's centre at the centre of the scan."""
    rotations = SO(3).random_haar(count, generator=generator, dtype=scan.dtype)
    return SE(3).join(rotations, scan.mean(0))


# %% [markdown]
# ## 2. Data
#
# An object is a union of three boxes. A scan shows the 60 % of the surface that lie farthest in a random direction.
# It has noise, and a fifth of its points are outliers.


# %%
def box_surface(count: int, sides: Tensor, centres: Tensor, generator: torch.Generator) -> Tensor:
    """Points ``[count, 3]``, uniform on the surface of a union of boxes: sides and centres ``[boxes, 3]``."""
    areas = sides.prod(-1, keepdim=True) / sides
    face = torch.multinomial(areas.flatten(), 8 * count, replacement=True, generator=generator)
    box, axis = face // 3, face % 3
    unit = torch.rand(len(face), 3, generator=generator, dtype=torch.float64) - 0.5
    unit[torch.arange(len(face)), axis] = 0.5 - (torch.rand(len(face), generator=generator) < 0.5).double()
    points = unit * sides[box] + centres[box]
    hidden = ((points.unsqueeze(1) - centres).abs() < 0.5 * sides - 1e-9).all(-1).any(-1)
    return points[~hidden][:count]


def scan_of(surface: Tensor, count: int, size: float, generator: torch.Generator, outliers: float = 0.2) -> Tensor:
    """A partial, noisy view ``[count, 3]`` of points of a surface, some of them replaced by outliers."""
    direction = torch.nn.functional.normalize(torch.randn(3, generator=generator, dtype=torch.float64), dim=0)
    height = surface @ direction
    low, high = surface.amin(0), surface.amax(0)
    scan = surface[height > height.quantile(0.4)][:count]
    scan = scan + 0.003 * size * torch.randn(scan.shape, generator=generator, dtype=torch.float64)
    number = round(outliers * count)
    scan[:number] = low + (high - low) * torch.rand(number, 3, generator=generator, dtype=torch.float64)
    return scan


def problem(seed: int) -> tuple[Tensor, float, Tensor, Tensor]:
    """A model ``[2000, 3]`` about its centre, its size, the unknown pose ``[3, 4]``, and the scan ``[200, 3]``."""
    generator = torch.Generator().manual_seed(seed)
    sides = 0.3 + 1.2 * torch.rand(3, 3, generator=generator, dtype=torch.float64)
    corners = torch.rand(3, 3, generator=generator, dtype=torch.float64) - 0.5
    centres = corners * sides[0] + 0.3 * torch.randn(3, 3, generator=generator, dtype=torch.float64)
    model, other = (box_surface(n, sides, centres, generator) for n in (2000, 1000))
    centre = model.mean(0)
    size = float((model.amax(0) - model.amin(0)).norm())
    scan = scan_of(other - centre, 200, size, generator)
    pose = SE(3).random(std=2.0, generator=generator, dtype=torch.float64)
    pose = SE(3).join(SO(3).random_haar(generator=generator, dtype=torch.float64), pose[:, 3])
    return model - centre, size, pose, SE(3).action()(pose, scan)


def errors(pose: Tensor, found: Tensor, size: float) -> tuple[float, float]:
    """Degrees between rotations, and the distance between the model's centres in units of its size."""
    angle = SO(3).distance(SE(3).split(pose)[0], SE(3).split(found)[0])
    return math.degrees(float(angle)), float((pose[..., 3] - found[..., 3]).norm()) / size


# %% [markdown]
# ## 3. One object, 1024 starts


# %%
def one_object(seed: int, starts: int = 1024) -> tuple[float, float]:
    """The errors for one problem."""
    model, size, pose, scan = problem(seed)
    initial = random_poses(scan, starts, torch.Generator().manual_seed(10_000 + seed))
    result = registration(model, size)(scan[None], initial=initial[None])
    return errors(pose, result.best()[0], size)


# %% [markdown]
# ## 4. A cuboid
#
# A cuboid with three different sides is symmetric: half turns about its axes map it to itself. Four poses therefore
# fit a scan equally well. The search finds all four, some more often than others. `Laplace` approximates the
# posterior by a normal distribution in each well, and draws samples with the right weights.


# %%
def cuboid_model(sides: Tensor, spacing: float) -> Tensor:
    """A regular lattice on the faces, with the symmetries of the cuboid."""
    faces = []
    for axis in range(3):
        lines = []
        for i, side in enumerate(sides.tolist()):
            count = max(2, round(side / spacing))
            inner = (torch.arange(count, dtype=torch.float64) + 0.5) / count - 0.5
            lines.append(side * (torch.tensor([-0.5, 0.5], dtype=torch.float64) if i == axis else inner))
        faces.append(torch.cartesian_prod(*lines))
    return torch.cat(faces)


def cuboid_weights(starts: int, generator: torch.Generator) -> Tensor:
    """The weights of the four poses in the posterior, ``[4]``: the shares of a sample within 5 degrees of each.

    All starts descend to the end, since all poses are wanted.
    """
    sides = torch.tensor([1.0, 0.7, 0.45], dtype=torch.float64)
    model, size = cuboid_model(sides, 0.04), float(sides.norm())
    surface = box_surface(1000, sides[None], torch.zeros(1, 3, dtype=torch.float64), generator)
    truth = SE(3).join(SO(3).random_haar(generator=generator, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    scan = SE(3).action()(truth, scan_of(surface, 60, size, generator))
    search = registration(model, size, keep=(starts, starts, starts)).then(Laplace(1000))
    sample = search(scan[None], initial=random_poses(scan, starts, generator)[None], generator=generator)
    half_turns = SO(3).exp(math.pi * torch.cat([torch.zeros(1, 3), torch.eye(3)]).double())
    poses = truth[:, :3] @ half_turns
    return (SO(3).distance(sample.elements[0, :, None, :, :3], poses) < math.radians(5.0)).double().mean(0)


if __name__ == "__main__":
    degrees, shift = one_object(0)
    print(f"off by {degrees:.2f} degrees and {100 * shift:.2f} % of the size")
    weights = cuboid_weights(256, torch.Generator().manual_seed(0))
    print(f"weights of the four poses: {', '.join(f'{w:.3f}' for w in weights.tolist())}")
