"""Five solids, their symmetries, and pictures of them: a renderer of convex bodies."""

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trivgeo.groups import SO

UNIFORM = -math.log(math.pi**2)
"""Log-likelihood of the uniform distribution in the convention of SYMSOL: the volume of SO(3) is pi^2."""

_NUM_SIDES = 40  # sides of the polygons that stand for the circles of cone and cylinder
_LIGHT_DIRECTION = (0.35, 0.55, 0.76)  # direction of the light; that of the camera is (0, 0, 1)
_AMBIENT_BRIGHTNESS = 0.15  # brightness of faces in the shadow, 1 for faces towards the light
_SPHERE_RADIUS = 0.95  # radius of the sphere about a solid; a picture shows [-1, 1]^2
_FAR_HEIGHT = 9.0  # height above all bodies
_MIN_SLOPE = 1e-6  # smallest vertical component of a normal by which heights are divided
_RENDER_BATCH_SIZE = 4  # pictures that are drawn at once, whose faces and pixels fit the cache of a processor


class Solid(NamedTuple):
    """A convex body about the origin.

    Attributes:
        name: name of the body.
        normals: normals of its faces, `[f, 3]`.
        offsets: distances of its faces from the origin, `[f]`.
        symmetries: rotations that leave it alone, `[m, 3, 3]`; ``None`` for all turns about the third axis.
        flips: whether half turns that swap the ends of the third axis leave it alone, for a body of revolution.
    """

    name: str
    normals: Tensor
    offsets: Tensor
    symmetries: Tensor | None
    flips: bool = False

    def angle(self, rotations: Tensor, truth: Tensor) -> Tensor:
        """Angles between poses and the nearest of those that look like the true one, in degrees, `[*batch]`."""
        if self.symmetries is None:
            cosine = (rotations[..., 2] * truth[..., 2]).sum(-1)
            return (cosine.abs() if self.flips else cosine).clamp(-1.0, 1.0).arccos().rad2deg()
        return self._cosines(rotations, truth).amax(-1).clamp(-1.0, 1.0).arccos().rad2deg()

    def nearest(self, rotations: Tensor, truth: Tensor) -> Tensor:
        """Number of the nearest of the poses that look like the true one, `[*batch]`; for bodies with finitely many."""
        return self._cosines(rotations, truth).argmax(-1)

    def _cosines(self, rotations: Tensor, truth: Tensor) -> Tensor:
        """Cosines of the angles to all poses that look like the true one."""
        assert self.symmetries is not None
        relative = (truth.mT @ rotations).unsqueeze(-3)
        return 0.5 * ((self.symmetries.to(relative) * relative).sum((-2, -1)) - 1.0)


def solids() -> list[Solid]:
    """Tetrahedron, cube, icosahedron, cone and cylinder, in a sphere of the same radius."""
    golden = 0.5 * (1.0 + math.sqrt(5.0))
    four = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]]).double()
    six = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=2))).double()
    pairs = torch.cat([signs[:, :1], golden * signs[:, 1:], torch.zeros(4, 1).double()], -1)
    twelve = torch.cat([pairs.roll(k, -1) for k in range(3)])  # the corners of an icosahedron
    corners = [-four, torch.tensor(list(itertools.product((1.0, -1.0), repeat=3))).double(), twelve]
    faces = [four, six, _icosahedron_faces(twelve)]
    found = []
    for name, normals, points in zip(("tetrahedron", "cube", "icosahedron"), faces, corners, strict=True):
        normals = normals / normals.norm(dim=-1, keepdim=True)
        points = _SPHERE_RADIUS * points / points.norm(dim=-1, keepdim=True)
        found.append(Solid(name, normals, (points @ normals.T).amax(0), _symmetries(points)))
    angle = torch.arange(_NUM_SIDES).double() * (2.0 * math.pi / _NUM_SIDES)
    around = torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], -1)
    up = torch.tensor([[0.0, 0.0, 1.0]]).double()
    half, radius = 0.75 * _SPHERE_RADIUS, math.sqrt(1.0 - 0.75**2) * _SPHERE_RADIUS
    sides = 2.0 * half * around + radius * up  # normals of a cone with its top at height ``half``
    sides = sides / sides.norm(dim=-1, keepdim=True)
    found.append(Solid("cone", torch.cat([sides, -up]), torch.cat([half * sides[:, 2], torch.tensor([half])]), None))
    offsets = torch.cat([torch.full((_NUM_SIDES,), radius), torch.tensor([half, half])]).double()
    found.append(Solid("cylinder", torch.cat([around, up, -up]), offsets, None, flips=True))
    return found


def render(solid: Solid, rotations: Tensor, size: int = 32) -> Tensor:
    """Draw pictures of a solid in the given poses, in parallel projection with matt shading, `[b, 1, size, size]`.

    Every pixel is the mean of four points.

    Args:
        solid: the body.
        rotations: poses of the body, `[b, 3, 3]`.
        size: pixels along a side.
    """
    axis = (2.0 * torch.arange(2 * size) + 1.0) / (2 * size) - 1.0
    y, x = torch.meshgrid(-axis, axis, indexing="ij")
    points = torch.stack([torch.ones_like(x), -x, -y]).flatten(1)  # [3, p]
    light = torch.tensor(_LIGHT_DIRECTION) / torch.tensor(_LIGHT_DIRECTION).norm()
    far = torch.tensor([_FAR_HEIGHT, 0.0, 0.0])
    pictures = []
    for part in rotations.float().split(_RENDER_BATCH_SIZE):
        normals = solid.normals.float() @ part.mT  # [b, f, 3]
        slope = normals[..., 2:]
        plane = torch.cat([solid.offsets.float().unsqueeze(-1).expand_as(slope), normals[..., :2]], -1)
        plane = plane / torch.where(slope.abs() < _MIN_SLOPE, _MIN_SLOPE, slope)  # heights are plane @ points
        top, face = (torch.where(slope > 0, plane, far) @ points).min(1)
        bottom = (torch.where(slope > 0, -far, plane) @ points).amax(1)
        brightness = _AMBIENT_BRIGHTNESS + (1.0 - _AMBIENT_BRIGHTNESS) * (normals @ light).relu()
        drawn = torch.where(top >= bottom, brightness.gather(1, face), 0.0)
        pictures.append(nn.functional.avg_pool2d(drawn.reshape(-1, 1, 2 * size, 2 * size), 2))
    return torch.cat(pictures)


def draw_pictures(solid: Solid, count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random poses of a solid, and their pictures."""
    rotations = SO(3).random_haar(count, generator=generator)
    return rotations, render(solid, rotations, size)


def _icosahedron_faces(corners: Tensor) -> Tensor:
    """Sums of three neighbouring corners, the normals of the faces."""
    near = torch.cdist(corners, corners) < 2.1
    triples = itertools.combinations(range(len(corners)), 3)
    rows = [corners[list(t)].sum(0) for t in triples if all(near[i, j] for i, j in itertools.combinations(t, 2))]
    return torch.stack(rows)


def _symmetries(points: Tensor) -> Tensor:
    """Rotations that permute the corners of a solid, `[m, 3, 3]`."""
    triples = list(itertools.permutations(range(len(points)), 3))
    basis = next(x for x in (points[list(t)].T for t in triples) if abs(float(torch.linalg.det(x))) > 0.1)
    inverse, found = torch.linalg.inv(basis), []
    for triple in triples:
        turn = points[list(triple)].T @ inverse
        is_rotation = float((turn @ turn.T - torch.eye(3)).abs().max()) < 1e-9 and float(torch.linalg.det(turn)) > 0.0
        if is_rotation and float(torch.cdist(points @ turn.T, points).amin(-1).max()) < 1e-9:
            found.append(turn)
    return torch.stack(found)
