"""Models of points: mass one, densities that are constant along fibres, volumes, samples, files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import seeded
from trivgeo.errors import CheckpointError, ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative.spaces import (
    Grassmann,
    HomogeneousSpace,
    LowerTriangular,
    PositiveDefinite,
    SpaceDiffusion,
    Sphere,
    Stiefel,
)
from trivgeo.groups import SO, check_group
from trivgeo.sde import trivialized_grad

FIT: dict[str, Any] = {"steps": 120, "batch_size": 128, "learning_rate": 5e-3, "progress": False}
ROTATIONS = [Sphere(1), Sphere(2), Sphere(3), Stiefel(3, 2), Stiefel(4, 2), Grassmann(3, 1), Grassmann(4, 2)]


def near_pole(space: HomogeneousSpace, count: int, seed: int = 0, std: float = 0.4) -> Tensor:
    v = std * torch.randn(count, space.group.dim, generator=seeded(seed))
    return space.project(space.group.exp(v))


def fitted(space: HomogeneousSpace, kind: str = "flow", **settings: Any) -> SpaceDiffusion:
    return SpaceDiffusion(space, kind, width=32, depth=1, **settings).fit(near_pole(space, 1000), **FIT)


def sphere_grid(side: int) -> tuple[Tensor, Tensor]:
    """Nodes on S^2, of Gauss by height and equal angles, and their weights, whose sum is one."""
    nodes, weights = torch.linalg.eigh(_legendre(side))
    height, weight = nodes, weights[0].square()
    angle = 2.0 * math.pi * torch.arange(2 * side) / (2 * side)
    ring = (1.0 - height.square()).sqrt().unsqueeze(-1)
    points = torch.stack(
        [ring * angle.cos(), ring * angle.sin(), height.unsqueeze(-1).expand(side, 2 * side)], -1
    ).reshape(-1, 3)
    return points, (weight / (2 * side)).repeat_interleave(2 * side)


def _legendre(side: int) -> Tensor:
    """The matrix of Jacobi of the polynomials of Legendre (Golub and Welsch 1969)."""
    k = torch.arange(1, side, dtype=torch.float64)
    off = k / (4.0 * k.square() - 1.0).sqrt()
    return torch.diag(off, 1) + torch.diag(off, -1)


@pytest.mark.parametrize("space", ROTATIONS, ids=repr)
class TestGeometry:
    def draws(self, space: HomogeneousSpace) -> tuple[Tensor, Tensor]:
        g, h = (space.group.random_haar(20, generator=seeded(k), dtype=torch.float64) for k in (0, 1))
        return g, h

    def test_lifts_project_back(self, space: HomogeneousSpace) -> None:
        points = space.project(self.draws(space)[0])
        assert torch.allclose(space.project(space.lift(points)), points, atol=1e-12)
        assert torch.equal(space.check_points(points), points)

    def test_pull_back_is_the_derivative_of_the_projection(self, space: HomogeneousSpace) -> None:
        g, _ = self.draws(space)
        y = torch.randn(20, *space.point_shape, generator=seeded(2), dtype=torch.float64)
        expected = trivialized_grad(space.group, lambda x: (space.project(x) * y).flatten(1).sum(-1), g)
        assert torch.allclose(space.pull_back(g, y), expected, atol=1e-12)

    def test_aligned_elements_keep_their_points_and_come_near(self, space: HomogeneousSpace) -> None:
        g, h = self.draws(space)
        found = space.align(g, h)
        assert torch.allclose(space.project(found), space.project(h), atol=1e-12)
        assert torch.allclose(space.group.project(found), found, atol=1e-12)
        distance = lambda x: (x - g).square().flatten(1).sum(-1)  # noqa: E731
        assert bool((distance(found) <= distance(h) + 1e-12).all())
        if isinstance(space, Sphere):  # along a great circle
            angle = (space.project(g) * space.project(h)).sum(-1).clamp(-1.0, 1.0).acos()
            assert torch.allclose(space.group.distance(g, found), angle, atol=1e-6)


@pytest.mark.parametrize(
    ("space", "volume"),
    [
        (Sphere(1), 2.0 * math.pi),
        (Sphere(2), 4.0 * math.pi),
        (Sphere(3), 2.0 * math.pi**2),
        (Grassmann(3, 1), 2.0 * math.pi),
        (Grassmann(3, 2), 2.0 * math.pi),
        (Grassmann(4, 2), 2.0 * math.pi**2),
        (Stiefel(3, 2), 8.0 * math.pi**2),
        (Stiefel(4, 1), 2.0 * math.pi**2),
    ],
    ids=repr,
)
def test_volumes(space: HomogeneousSpace, volume: float) -> None:
    """RP^2 has half of the area of the sphere; the oriented planes of R^4 are S^2 x S^2 of radius sqrt(1/2)."""
    point = near_pole(space, 1)
    assert float(space.log_measure(point, "volume")) == pytest.approx(math.log(volume), abs=1e-5)
    assert float(space.log_measure(point, "haar")) == 0.0


class TestDensities:
    @pytest.mark.parametrize("kind", ["flow", "diffusion"])
    def test_sphere(self, kind: str) -> None:
        model = fitted(Sphere(2), kind)
        points, weights = sphere_grid(16)
        density = model.log_prob(points.float(), tolerance=1e-3).double().exp()
        assert float(density.max()) > 2.0
        # the density of so short a diffusion is rough between the nodes
        assert float(weights @ density) == pytest.approx(1.0, abs=0.01 if kind == "flow" else 0.06)
        area = model.log_prob(points[:3].float(), measure="volume", tolerance=1e-3).exp()
        assert torch.allclose(area * 4.0 * math.pi, density[:3].float(), rtol=0.02)

    def test_projective_plane(self) -> None:
        points, weights = sphere_grid(12)
        projectors = points.unsqueeze(-1) * points.unsqueeze(-2)
        density = fitted(Grassmann(3, 1)).log_prob(projectors.float(), tolerance=1e-3).double().exp()
        assert float(density.max()) > 2.0
        # so short a training leaves waves between the nodes
        assert float(weights @ density) == pytest.approx(1.0, abs=0.03)

    def test_frames(self) -> None:
        """By uniform draws, within four standard errors."""
        space = Stiefel(4, 2)
        model = SpaceDiffusion(space, width=32, depth=1).fit(near_pole(space, 1000, std=1.0), **FIT)
        uniform = space.project(space.group.random_haar(600, generator=seeded(3)))
        density = model.log_prob(uniform, tolerance=1e-2).double().exp()
        error = float(density.std()) / math.sqrt(len(density))
        assert error < 0.2
        assert float(density.mean()) == pytest.approx(1.0, abs=4.0 * error)

    def test_positive_definite(self) -> None:
        """By quadrature over Cholesky factors, with the Jacobian of P = L L^T."""
        model = fitted(PositiveDefinite(2))
        side, reach = 13, 1.8
        at = torch.linspace(-reach, reach, side, dtype=torch.float64)
        a, b, c = (x.flatten() for x in torch.meshgrid(at, at, at, indexing="ij"))
        factor = torch.stack([a.exp(), torch.zeros_like(a), c, b.exp()], -1).reshape(-1, 2, 2)
        log_jacobian = math.log(4.0) + 3.0 * a + 2.0 * b  # dP = 4 l_11^2 l_22 dL, dL = l_11 l_22 da db dc
        points = (factor @ factor.mT).float()
        density = model.log_prob(points, measure="volume", tolerance=1e-2).double() + log_jacobian
        found = torch.isfinite(density)  # the flow cannot be followed from a few corners, far from the data
        assert float(found.double().mean()) > 0.98
        assert float(density[found].exp().sum()) * (at[1] - at[0]) ** 3 == pytest.approx(1.0, abs=0.03)
        haar = model.log_prob(points[:3], tolerance=1e-2)
        volume = model.log_prob(points[:3], measure="volume", tolerance=1e-2)
        assert torch.allclose(haar - volume, 1.5 * torch.linalg.det(points[:3]).log(), atol=1e-3)

    @pytest.mark.parametrize("space", [Sphere(2), Grassmann(4, 2), Stiefel(4, 2)], ids=repr)
    def test_the_group_has_the_same_density_along_a_fibre(self, space: HomogeneousSpace) -> None:
        """Of an untrained network, so that nothing is smooth by training."""
        model = SpaceDiffusion(space, width=16, depth=1).fit(near_pole(space, 50), **{**FIT, "steps": 1})
        for x in model.model.network.parameters():
            x.data += 0.1 * torch.randn(x.shape, generator=seeded(5))
        g = space.lift(near_pole(space, 5))
        k = 1 if isinstance(space, Sphere) else 2
        turn = SO(2).random_haar(generator=seeded(4))
        h = torch.cat([g[..., :k], g[..., k:] @ turn], -1)
        a, b = (model.model.log_prob(x, tolerance=1e-4) for x in (g, h))
        assert float(a.abs().max()) > 0.05
        assert torch.allclose(a, b, atol=1e-2)  # the solver's error along waves of all frequencies


def test_samples_are_like_the_data() -> None:
    space = Sphere(2)
    model, data = fitted(space), near_pole(space, 1000, seed=7)
    drawn = model.sample(1000, generator=seeded(1))
    assert torch.allclose(drawn.norm(dim=-1), torch.ones(1000), atol=1e-5)
    assert float((drawn.mean(0) - data.mean(0)).norm()) < 0.1
    assert model.history is not None


@pytest.mark.parametrize("kind", ["vectors", "classes"])
def test_conditions_and_files(kind: str, tmp_path: Path) -> None:
    """Points at the pole of their condition."""
    space, which = Sphere(2), torch.arange(600) % 2
    points = near_pole(space, 600, std=0.2) * (1.0 - 2.0 * which).unsqueeze(-1)
    encoder = nn.Embedding(2, 4)
    own, given = (1, which[:, None].float()) if kind == "vectors" else (encoder, which)
    model = SpaceDiffusion(space, condition=own, width=32, depth=1)
    model.fit(points, given, held_out=(points[:50], given[:50]), **FIT)
    for k, sign in ((0, 1.0), (1, -1.0)):
        drawn = model.sample(100, condition=given[k], generator=seeded(0))
        assert float((drawn[:, 0] * sign).mean()) > 0.7
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = SpaceDiffusion.load(path, space, condition=None if kind == "vectors" else nn.Embedding(2, 4))
    a, b = (m.log_prob(points[:4], condition=given[:4], tolerance=1e-2) for m in (model, again))
    assert torch.equal(a, b)
    with pytest.raises(CheckpointError):
        SpaceDiffusion.load(path, Sphere(3))


def test_lower_triangular_matrices_are_a_group() -> None:
    assert check_group(LowerTriangular(3))
    assert check_group(LowerTriangular(1))


def test_bad_input() -> None:
    model = SpaceDiffusion(Sphere(2), width=8, depth=1)
    with pytest.raises(ShapeError, match=r"points: expected points \[\*batch, 3\] of Sphere"):
        model.fit(torch.ones(5, 4))
    with pytest.raises(DomainError, match=r"points: expected points of Sphere.*, got 5 rows that are none"):
        model.fit(torch.ones(5, 3))
    with pytest.raises(ConfigurationError, match=r"points: expected float32 or float64, got torch\.float16"):
        model.fit(near_pole(Sphere(2), 5).half())
    with pytest.raises(NonFiniteError, match="points"):
        model.fit(torch.full((5, 3), math.nan))
    with pytest.raises(ConfigurationError, match="fitted"):
        model.log_prob(near_pole(Sphere(2), 2))
    with pytest.raises(ConfigurationError, match="measure"):
        fitted(Sphere(1)).log_prob(near_pole(Sphere(1), 2), measure="area")
    with pytest.raises(ConfigurationError, match="kind"):
        SpaceDiffusion(Sphere(2), "momentum")
    with pytest.raises(ConfigurationError, match="k: expected less than n = 3"):
        Grassmann(3, 3)
    with pytest.raises(DomainError, match="points"):
        SpaceDiffusion(PositiveDefinite(2)).fit(torch.tensor([[1.0, 2.0], [2.0, 1.0]]).expand(4, 2, 2))
    with pytest.raises(DomainError, match="points"):
        SpaceDiffusion(Grassmann(3, 1)).fit(torch.eye(3).expand(4, 3, 3))
