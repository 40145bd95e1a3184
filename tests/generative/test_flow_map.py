"""One and few steps: a flow by fixed steps, and its map learned from a fitted model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers import seeded
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.generative import GroupDiffusion, fit_base_distribution
from trivgeo.generative.flow_map import FlowTrajectories
from trivgeo.generative.paths import FlowMatchingPath
from trivgeo.generative.spaces import SpaceDiffusion, Sphere
from trivgeo.groups import SE, SO, SU, LieGroup, Torus
from trivgeo.sde import TrivializedSDE

STD = 0.3
SMALL = {"width": 32, "depth": 1}
FIT = {"batch_size": 256, "learning_rate": 5e-3, "progress": False}


def pairs(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Angles near zero or near a half turn, which the condition tells apart."""
    side = (torch.rand(count, 1, generator=seeded(seed)) < 0.5).float()
    angle = math.pi * side + STD * torch.randn(count, 1, generator=seeded(seed + 100))
    return Torus(1).wrap(angle), 2.0 * side - 1.0


SOME = pairs(5)


@pytest.fixture(scope="module")
def densities() -> list[Tensor]:
    """Of some elements before distillation."""
    return []


@pytest.fixture(scope="module")
def model(densities: list[Tensor]) -> GroupDiffusion:
    """Of both sides, distilled."""
    g, c = pairs(4000)
    fitted = GroupDiffusion(Torus(1), "flow", condition=1, condition_dropout=0.4, **SMALL).fit(g, c, steps=400, **FIT)
    densities.append(fitted.log_prob(SOME[0], condition=SOME[1]))
    return fitted.distil(c, steps=400, **FIT)


def distance(a: Tensor, b: Tensor) -> float:
    """The Cramér distance of angles in (-pi, pi], by quantiles of their distances from zero."""
    a, b = (Torus(1).wrap(x).abs().flatten().sort().values for x in (a, b))
    return float((a - b).abs().mean())


class TestOneStep:
    def test_follows_the_flow(self, model: GroupDiffusion) -> None:
        """One step gives about the element of the flow that starts at the same place, with the same condition."""
        c = pairs(200, seed=1)[1]
        flow = model.sample(200, condition=c, generator=seeded(0), tolerance=1e-4)
        for steps in (1, 3):
            g = model.sample(200, condition=c, generator=seeded(0), steps=steps)
            assert float(Torus(1).wrap(g - flow).abs().mean()) < 0.1
        expected = Torus(1).wrap(g - math.pi * (c > 0)).abs() < 1.0
        assert float(expected.float().mean()) > 0.97

    def test_better_than_a_step_along_the_flow(self, model: GroupDiffusion) -> None:
        """Which takes the mean of both sides where the condition does not tell."""
        distribution = pairs(2000, seed=2)[0]
        assert model.fitted is not None
        learned = model.sample(2000, generator=seeded(0), steps=1)
        flow_map, model.fitted.flow_map = model.fitted.flow_map, None
        heun, fine = (model.sample(2000, generator=seeded(0), steps=steps) for steps in (1, 30))
        model.fitted.flow_map = flow_map
        assert distance(learned, distribution) < 0.5 * distance(heun, distribution)
        assert distance(fine, distribution) < 0.12

    def test_guidance_and_file(self, model: GroupDiffusion, tmp_path: Path) -> None:
        c = torch.tensor([1.0])
        g = model.sample((3, 4), condition=c, guidance=2.0, generator=seeded(1), steps=1)
        assert g.shape == (3, 4, 1)
        model.save(tmp_path / "model.safetensors")
        loaded = GroupDiffusion.load(tmp_path / "model.safetensors", Torus(1))
        assert torch.equal(g, loaded.sample((3, 4), condition=c, guidance=2.0, generator=seeded(1), steps=1))

    def test_density_is_that_of_the_flow(self, model: GroupDiffusion, densities: list[Tensor]) -> None:
        """Distillation does not touch the velocity."""
        assert torch.equal(model.log_prob(SOME[0], condition=SOME[1]), densities[0])


def test_steps_along_the_flow_without_distillation() -> None:
    """Any number of them, on any group; Heun's scheme converges to the flow."""
    for group in (SO(3), SE(2)):
        data = group.random(200, std=0.4, generator=seeded(0))
        model = GroupDiffusion(group, "flow", width=16, depth=1).fit(data, steps=20, batch_size=64, progress=False)
        found = [model.sample(50, generator=seeded(1), steps=steps) for steps in (1, 10, 20)]
        exact = model.sample(50, generator=seeded(1), tolerance=1e-6)
        errors = [float((g - exact).abs().max()) for g in found]
        assert errors[2] < 0.4 * errors[1] < errors[0]


@pytest.mark.parametrize("resolution", [math.inf, 0.05])
@pytest.mark.parametrize("group", [SU(2), SE(2)], ids=repr)
def test_trajectories(group: LieGroup, resolution: float) -> None:
    """Of a constant vector along the path: every average velocity is this vector, whatever the scheduler."""
    vector = torch.linspace(0.2, 0.4, group.dim)
    base = fit_base_distribution(group, group.random(50, std=0.1, generator=seeded(1)))
    path = FlowMatchingPath(group, base, 1.5, resolution=resolution)

    def flow(features: Tensor | None) -> TrivializedSDE:
        return path.flow(lambda g, level, momentum: vector.expand(len(g), group.dim))

    source = FlowTrajectories(
        flow, lambda count, generator: group.random(count, std=0.1, generator=generator), lambda *_: None, path
    )
    batch = source.draw(1000, seeded(0))
    span = batch.end_level - batch.level
    assert bool((span < 0.0).all())
    assert 0.3 < float((span == -1.0).float().mean()) < 0.5
    assert float((span > -0.3).float().mean()) > 0.2
    assert torch.allclose(batch.velocity, vector / math.sqrt(group.dim), atol=5e-3)


def test_networks_of_the_map_are_like_that_of_the_velocity(tmp_path: Path) -> None:
    """On a space it is a function of points, too: both elements of a fibre jump to the same point."""
    shift = torch.tensor([2.0, 0.0, 0.0])
    data = torch.nn.functional.normalize(torch.randn(200, 3, generator=seeded(0)) + shift, dim=-1)
    model = SpaceDiffusion(Sphere(2), **SMALL).fit(data, steps=30, **FIT).distil(steps=30, **FIT)
    assert model.model.fitted is not None
    flow_map = model.model.fitted.flow_map
    assert flow_map is not None
    g = model.space.lift(data[:5])
    turn = SO(2).random_haar(generator=seeded(1))
    h = torch.cat([g[..., :1], g[..., 1:] @ turn], -1)
    first, second = (
        model.space.project(flow_map.sample(x, 2, lambda *inputs: flow_map(*inputs, None))) for x in (g, h)
    )
    assert float((first - data[:5]).norm(dim=-1).min()) > 0.05
    assert torch.allclose(first, second, atol=1e-4)
    model.save(tmp_path / "model.safetensors")
    again = SpaceDiffusion.load(tmp_path / "model.safetensors", Sphere(2))
    a, b = (m.sample(4, steps=3, generator=seeded(2)) for m in (model, again))
    assert torch.equal(a, b)


def test_bad_input(model: GroupDiffusion) -> None:
    g, c = pairs(50)
    with pytest.raises(ConfigurationError, match="fitted"):
        GroupDiffusion(Torus(1), "flow").distil()
    with pytest.raises(ConfigurationError, match="condition: expected conditions to draw from"):
        model.distil(steps=1)
    with pytest.raises(ShapeError, match="condition: expected at least one"):
        model.distil(c[:0], steps=1)
    diffusion = GroupDiffusion(Torus(1), "diffusion", **SMALL).fit(g, steps=1, progress=False)
    with pytest.raises(ConfigurationError, match='expected one of kind "flow"'):
        diffusion.distil(steps=1)
    plain = GroupDiffusion(Torus(1), "flow", **SMALL).fit(g, steps=1, progress=False)
    with pytest.raises(ConfigurationError, match="condition: expected none"):
        plain.distil(c, steps=1)
    with pytest.raises(ConfigurationError, match="steps"):
        plain.distil(steps=0)
    with pytest.raises(ConfigurationError, match="steps"):
        plain.sample(3, steps=0)


def mixture(group: LieGroup, count: int, seed: int) -> Tensor:
    """Three narrow components."""
    centres = group.random(3, std=1.0, generator=seeded(5))
    which = torch.randint(3, (count,), generator=seeded(seed))
    return group.compose(centres[which], group.random(count, std=0.25, generator=seeded(seed + 1)))


def energy_distance(a: Tensor, b: Tensor) -> float:
    """Of the real entries; of angles, their cosines and sines. With the distances of elements from themselves."""
    a, b = (torch.view_as_real(x) if x.is_complex() else x for x in (a, b))
    a, b = (x.flatten(1).double() for x in (a, b))
    return float(2.0 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


@pytest.mark.slow(reason="trains four models for minutes; the small one above stays")
@pytest.mark.parametrize(
    ("group", "steps"), [(Torus(7), 12_000), (SO(3), 1_200), (SU(4), 1_200), (SE(3), 1_200)], ids=repr
)
def test_one_step_is_as_good_as_a_hundred(group: LieGroup, steps: int) -> None:
    model = GroupDiffusion(group, "flow", width=128).fit(mixture(group, 20_000, 0), steps=900, progress=False)
    hundred = model.sample(2000, generator=seeded(1), steps=100)
    one = model.distil(steps=steps, seconds=3000.0, progress=False).sample(2000, generator=seeded(1), steps=1)
    entries = (lambda g: torch.cat([g.cos(), g.sin()], -1)) if isinstance(group, Torus) else (lambda g: g)
    test = mixture(group, 2000, 100)
    assert energy_distance(*map(entries, (one, test))) < 1.5 * energy_distance(*map(entries, (hundred, test)))
