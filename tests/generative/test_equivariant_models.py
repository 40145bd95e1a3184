"""Conditional models that commute with motions: densities, samples, several frames, trajectories, files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import seeded
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.generative.equivariant import EquivariantDiffusion, principal_frames
from trivgeo.groups import SE, SO

SMALL: dict[str, Any] = {"width": 32, "depth": 1}
FIT: dict[str, Any] = {"steps": 150, "batch_size": 128, "learning_rate": 5e-3, "progress": False}
GROUP = SE(3)
SHAPE = torch.tensor(
    [[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.3], [0.2, 0.1, 0.5], [1.0, 0.4, 0.0]]
)
GRASP = GROUP.exp(torch.tensor([0.3, -0.2, 0.4, 0.5, 0.2, -0.3]))


class Cloud(nn.Module):
    """Features of a cloud of six points."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(18, 16)

    def forward(self, points: Tensor) -> Tensor:
        return self.layer(points.flatten(1)).relu()


def scenes(count: int, seed: int, std: float = 0.3) -> tuple[Tensor, Tensor, Tensor]:
    """Poses of an object, its clouds, and grasps of it."""
    pose = GROUP.random(count, std=std, generator=seeded(seed))
    grasp = GROUP.compose(pose, GROUP.compose(GRASP, GROUP.random(count, std=0.1, generator=seeded(seed + 1))))
    return pose, GROUP.action()(pose, SHAPE.expand(count, 6, 3)), grasp


@pytest.fixture(scope="module")
def of_clouds() -> EquivariantDiffusion:
    _, clouds, grasps = scenes(300, 0)
    model = EquivariantDiffusion(GROUP, principal_frames, condition=Cloud(), condition_dropout=0.0, **SMALL)
    return model.fit(grasps, clouds, **FIT)


@pytest.fixture(scope="module")
def of_poses() -> EquivariantDiffusion:
    poses, _, grasps = scenes(300, 0)
    return EquivariantDiffusion(GROUP, lambda pose: pose, **SMALL).fit(grasps, poses, **FIT)


def motions(count: int) -> Tensor:
    g = GROUP.random(count, std=1.0, generator=seeded(9))
    g[..., :3] = SO(3).random_haar(count, generator=seeded(10))
    return g


class TestEquivariance:
    def test_densities(self, of_clouds: EquivariantDiffusion, of_poses: EquivariantDiffusion) -> None:
        """Under motions that were never seen, to rounding."""
        poses, clouds, grasps = scenes(4, 20)
        h = motions(4)
        moved = GROUP.compose(h, grasps)
        for model, c, hc in (
            (of_poses, poses, GROUP.compose(h, poses)),
            (of_clouds, clouds, GROUP.action()(h, clouds)),
        ):
            before = model.log_prob(grasps, condition=c, tolerance=1e-3)
            after = model.log_prob(moved, condition=hc, tolerance=1e-3)
            assert torch.allclose(before, after, atol=0.02)
            assert float((before - model.log_prob(moved, condition=c, tolerance=1e-3)).abs().min()) > 1.0

    def test_samples(self, of_poses: EquivariantDiffusion) -> None:
        poses = scenes(50, 30)[0]
        h = motions(1)
        a = of_poses.sample(50, condition=poses, generator=seeded(0))
        b = of_poses.sample(50, condition=GROUP.compose(h, poses), generator=seeded(0))
        assert torch.allclose(GROUP.compose(h, a), b, atol=1e-4)

    def test_grasps_are_found_under_all_motions(self, of_poses: EquivariantDiffusion) -> None:
        poses = motions(200)
        truth = GROUP.compose(poses, GRASP.expand(200, 3, 4))
        drawn = of_poses.sample(200, condition=poses, generator=seeded(1))
        error = GROUP.log(GROUP.compose(GROUP.inverse(truth), drawn)).norm(dim=-1)
        assert float((error < 0.6).float().mean()) > 0.9


def test_density_is_that_of_the_inner_model(of_poses: EquivariantDiffusion) -> None:
    """By hand: the frame is the pose, and left Haar measure does not change."""
    poses, _, grasps = scenes(3, 40)
    seen = GROUP.compose(GROUP.inverse(poses), grasps)
    expected = of_poses.model.log_prob(seen)
    assert torch.allclose(of_poses.log_prob(grasps, condition=poses), expected, atol=1e-4)


def test_mass_one_with_several_frames() -> None:
    """Of the mean over frames, on the circle of rotations of the plane."""
    group = SO(2)
    angle = torch.rand(500, 1, generator=seeded(0)) * 2.0 * math.pi
    line = torch.stack([angle.cos(), angle.sin()], -1) * torch.tensor([-1.0, 1.0]).reshape(2, 1)  # two ends, [b, 2, 2]
    data = group.exp(angle + 0.2 * torch.randn(500, 1, generator=seeded(1)))
    model = EquivariantDiffusion(group, lambda ends: principal_frames(ends)[..., :2], **SMALL).fit(data, line, **FIT)
    every = group.exp(torch.arange(256).unsqueeze(-1) * (2.0 * math.pi / 256))
    density = model.log_prob(every, condition=line[:1], tolerance=1e-3).exp()
    assert float(density.mean()) == pytest.approx(1.0, abs=0.02)
    assert torch.allclose(density, density.roll(128), rtol=1e-2, atol=1e-3)  # the ends are alike


def test_principal_frames_move_with_the_cloud() -> None:
    for n in (2, 3):
        group, points = SE(n), torch.randn(5, 9, n, generator=seeded(0), dtype=torch.float64) * torch.arange(1, n + 1)
        h = group.random(5, std=1.0, generator=seeded(1), dtype=torch.float64)
        frames = principal_frames(points)
        assert torch.allclose(group.project(frames), frames)
        moved = group.compose(h.unsqueeze(1), frames)
        found = principal_frames(group.action()(h, points))
        gap = (moved.unsqueeze(2) - found.unsqueeze(1)).flatten(3).abs().amax(-1)
        assert float(gap.min(2)[0].max()) < 1e-10  # the same frames, in any order
    with pytest.raises(ShapeError, match="points"):
        principal_frames(torch.randn(2, 5, 4))


def test_one_condition_of_all_elements(of_clouds: EquivariantDiffusion, of_poses: EquivariantDiffusion) -> None:
    """As itself, with a batch dimension of one, and repeated; six samples are as many as the points of a cloud."""
    poses, clouds, grasps = scenes(6, 50)
    for model, c in ((of_poses, poses[0]), (of_clouds, clouds[0])):
        several = c.expand(6, *c.shape)
        expected = model.sample(6, condition=several, steps=2, generator=seeded(0))
        for given in (c, c.unsqueeze(0)):
            assert torch.allclose(model.sample(6, condition=given, steps=2, generator=seeded(0)), expected, atol=1e-4)
        pairs = model.sample((3, 2), condition=several.unflatten(0, (3, 2)), steps=2, generator=seeded(0))
        assert torch.allclose(pairs.flatten(0, 1), expected, atol=1e-4)
    densities = [
        of_poses.log_prob(grasps[:2], condition=c, tolerance=0.1) for c in (poses[0], poses[:1].expand(2, 3, 4))
    ]
    assert torch.allclose(*densities, atol=1e-3)


@pytest.mark.filterwarnings("ignore:fit:UserWarning")
def test_trajectories_and_files(tmp_path: Path) -> None:
    """Frames of one factor move all poses of a trajectory."""
    group = GROUP**2
    poses, _, grasps = scenes(100, 0)
    path = torch.cat([poses.flatten(1), grasps.flatten(1)], -1)
    size = torch.randn(100, 2, generator=seeded(3))
    model = EquivariantDiffusion(group, lambda c: c[0], lambda inverse, c: c[1], condition=2, **SMALL)
    model.fit(path, (poses, size), held_out=(path[:20], (poses[:20], size[:20])), **{**FIT, "steps": 60})
    h = motions(3)
    moved = torch.cat([GROUP.compose(h, x.unflatten(-1, (3, 4))).flatten(1) for x in path[:3].split(12, -1)], -1)
    given = (GROUP.compose(h, poses[:3]), size[:3])
    a = model.log_prob(path[:3], condition=(poses[:3], size[:3]), tolerance=1e-2)
    assert torch.allclose(a, model.log_prob(moved, condition=given, tolerance=1e-2), atol=0.1)
    assert model.sample((3,), condition=given, generator=seeded(0)).shape == (3, 24)
    model.save(tmp_path / "model.safetensors")
    again = EquivariantDiffusion.load(tmp_path / "model.safetensors", group, model.frame, model.in_frame)
    assert torch.equal(again.log_prob(path[:3], condition=(poses[:3], size[:3]), tolerance=1e-2), a)
    one = again.sample(5, condition=(poses[0], size[0]), steps=2, generator=seeded(0))
    assert torch.equal(one, model.sample(5, condition=(poses[:1], size[:1]), steps=2, generator=seeded(0)))
    assert model.history is not None


def test_bad_input(of_poses: EquivariantDiffusion) -> None:
    poses, _, grasps = scenes(4, 0)
    model = EquivariantDiffusion(GROUP, lambda c: c, **SMALL)
    with pytest.raises(ShapeError, match="condition: expected one for each of 4 elements, got 3"):
        model.fit(grasps, poses[:3], **FIT)
    with pytest.raises(ConfigurationError, match="fitted"):
        model.log_prob(grasps, condition=poses)
    with pytest.raises(ShapeError, match="condition: expected one"):
        of_poses.sample(3, condition=poses)
    with pytest.raises(ShapeError, match="frame"):
        EquivariantDiffusion(GROUP, lambda c: c[:1], **SMALL).fit(grasps, poses, **FIT)
    with pytest.raises(NonFiniteError, match="frame"):
        EquivariantDiffusion(GROUP, lambda c: c * math.nan, **SMALL).fit(grasps, poses, **FIT)
    with pytest.raises(ConfigurationError, match="held_out"):
        model.fit(grasps, poses, held_out=grasps, **FIT)


def test_few_steps_are_equivariant() -> None:
    """Of the distilled model, from the same draws: samples move with the condition."""
    motion = SE(2)
    poses = motion.random(60, generator=seeded(0))
    grasps = motion.compose(poses, motion.random(60, std=0.2, generator=seeded(1)))
    fit = {"steps": 20, "batch_size": 32, "progress": False}
    model = EquivariantDiffusion(motion, lambda pose: pose, width=16, depth=1).fit(grasps, poses, **fit)
    model.distil(poses, **fit)
    move = motion.random(generator=seeded(2))
    still = model.sample(5, condition=poses[:5], steps=1, generator=seeded(3))
    moved = model.sample(5, condition=motion.compose(move, poses[:5]), steps=1, generator=seeded(3))
    assert torch.allclose(motion.compose(move, still), moved, atol=1e-5)
    assert float((still - model.sample(5, condition=poses[:5], generator=seeded(3))).abs().max()) > 1e-4


def test_frames_of_no_clouds() -> None:
    with pytest.raises(NonFiniteError, match="points: expected finite numbers"):
        principal_frames(torch.full((2, 5, 3), torch.nan))
