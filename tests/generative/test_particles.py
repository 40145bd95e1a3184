"""Powers with absent particles: the model of fewer particles, padding without influence, masks that networks see."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.helpers import seeded
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.generative import GroupDiffusion
from trivgeo.generative.conditioning import ConditionalNetwork
from trivgeo.generative.diffusion_training import PathTraining
from trivgeo.generative.distributions import ProductDistribution
from trivgeo.generative.particles import MaskedCondition, Particles, pad_particles
from trivgeo.generative.paths import kinetic
from trivgeo.groups import SE, SO, Affine, LieGroup, Torus

FIT: dict[str, Any] = {"steps": 3, "batch_size": 32, "progress": False}


class Particlewise(nn.Module):
    """One network for every particle, which sees the mean of those that are present."""

    def __init__(self, group: LieGroup) -> None:
        super().__init__()
        self.group, self.numel = group, math.prod(group.element_shape)
        self.layers = nn.Sequential(nn.Linear(2 * self.numel + 1, 16), nn.SiLU(), nn.Linear(16, group.dim))

    def forward(
        self, g: Tensor, t: Tensor, condition: None, momentum: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        particles = g.unflatten(-1, (-1, self.numel))
        particles = particles.sin() if isinstance(self.group, Torus) else particles
        weight = torch.ones_like(particles[..., :1]) if mask is None else mask.to(g).unsqueeze(-1)
        mean = (weight * particles).sum(-2, keepdim=True) / weight.sum(-2, keepdim=True)
        inputs = [particles, mean.expand_as(particles), t[..., None, None].expand_as(particles[..., :1])]
        return self.layers(torch.cat(inputs, -1)).flatten(-2)


class Everything(nn.Module):
    """A network that ignores masks: every number that reaches it has influence on every vector."""

    def __init__(self, dim: int, uses_momentum: bool) -> None:
        super().__init__()
        self.dim, self.uses_momentum = dim, uses_momentum

    def forward(
        self, g: Tensor, t: Tensor, condition: None, momentum: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        total = g.flatten(1).cumsum(-1)[:, -1:] + t[:, None]
        if self.uses_momentum:
            assert momentum is not None
            total = total + 3.0 * momentum.sum(-1, keepdim=True)
        return 1.0 + total.expand(-1, self.dim)


class Mixed(IterableDataset):
    """Batches with masks, and then without."""

    def __init__(self, g: Tensor, mask: Tensor) -> None:
        super().__init__()
        self.batches = [(g, None, mask), (g, None)]

    def __iter__(self) -> Iterator[tuple[Tensor | None, ...]]:
        return iter(self.batches)


def rows(group: LieGroup, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random particles, the first of each row present, and masks."""
    g = (group**3).random(count, std=0.4, generator=seeded(seed))
    mask = torch.rand(count, 3, generator=seeded(seed + 1)) < 0.6
    mask[:, 0] = True
    return g, mask


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        pytest.param("diffusion", SO(3), marks=pytest.mark.slow(reason="long flow; momenta stay")),
        pytest.param("diffusion", Torus(1), marks=pytest.mark.slow(reason="momenta stay")),
        ("momentum", Torus(1)),
        ("flow", SE(2)),
    ],
    ids=repr,
)
def test_likelihood_of_the_sub_power(kind: str, group: LieGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The density of two present particles of three is that of the same network, path and base on two particles."""
    noise = torch.randn(4, 3 * group.dim, generator=seeded(9))  # the same momenta for particles in both models
    g, mask = rows(group, 60)
    model = GroupDiffusion(group**3, kind, network=Particlewise(group)).fit((g, None, mask), **FIT)
    small = GroupDiffusion(group**2, kind, network=Particlewise(group)).fit(g[:, : 2 * g.shape[1] // 3], **FIT)
    assert model.fitted is not None
    assert small.fitted is not None
    small.network.load_state_dict(model.network.state_dict())
    settings = dict(model.fitted.settings)
    settings |= {"ratios": settings["ratios"][:2]} if "ratios" in settings else {}
    small.fitted.path = type(model.fitted.path).build(group**2, settings, small.fitted.base)
    if isinstance(small.fitted.base, ProductDistribution):
        for own, other in zip(small.fitted.base.factors, model.fitted.base.factors, strict=False):
            own.load_state_dict(other.state_dict())
    shown = g[:4].clone()
    shown[:, 2 * g.shape[1] // 3 :] = math.nan
    monkeypatch.setattr(kinetic, "normal", lambda shape, reference, generator: noise[:, : shape[-1]])
    found = model.log_prob(shown, mask=torch.tensor([True, True, False]), tolerance=1e-3)
    expected = small.log_prob(shown[:, : 2 * g.shape[1] // 3], tolerance=1e-3)
    assert torch.allclose(found, expected, atol=5e-3)


@pytest.mark.parametrize("kind", ["flow", pytest.param("diffusion", marks=pytest.mark.slow(reason="flow stays"))])
def test_padding_has_no_influence(kind: str, tmp_path: Path) -> None:
    """In training, densities and samples; and files know of masks."""
    group = SE(2)
    g, mask = rows(group, 50)
    other = torch.where(mask.repeat_interleave(6, -1), g, math.nan)
    models = [
        GroupDiffusion(group**3, kind, condition=2, width=16, depth=1).fit((x, torch.ones(50, 2), mask), **FIT)
        for x in (g, other)
    ]
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(a, b)
    condition = torch.ones(2)
    densities = [models[0].log_prob(x[:2], mask=mask[:2], condition=condition, tolerance=0.1) for x in (g, other)]
    assert torch.equal(*densities)
    drawn = models[0].sample(
        5, mask=mask[:5], condition=condition, guidance=1.5, generator=seeded(0), steps=4, tolerance=None
    )
    absent = drawn.unflatten(-1, (3, 6))[~mask[:5]]
    assert torch.equal(absent, group.identity(len(absent)).flatten(1))
    models[0].save(tmp_path / "model.safetensors")
    loaded = GroupDiffusion.load(tmp_path / "model.safetensors", group**3)
    again = loaded.sample(5, mask=mask[:5], condition=condition, guidance=1.5, generator=seeded(0), steps=4)
    assert torch.equal(again, drawn)


def test_data_set_of_triples() -> None:
    """And loaders of them: the same as tensors. An empty tensor is no condition."""
    group = Torus(1)
    g, mask = rows(group, 40)
    data = TensorDataset(g, torch.ones(40, 2), mask)
    found = []
    for samples in ((g, torch.ones(40, 2), mask), data, DataLoader(data, batch_size=16)):
        model = GroupDiffusion(group**3, "flow", condition=2, width=8, depth=1).fit(samples, **FIT)
        found.append(model.sample(3, condition=torch.ones(2), mask=mask[:3], steps=2, generator=seeded(0)))
    assert torch.equal(found[0], found[1])
    assert torch.isfinite(found[2]).all()
    unconditional = TensorDataset(g, torch.zeros(40, 0), mask)
    GroupDiffusion(group**3, "flow", width=8, depth=1).fit(unconditional, **{**FIT, "steps": 1})


@pytest.mark.slow(reason="trains; the network of the likelihood of the sub-power sees the mask, too")
def test_networks_see_the_mask() -> None:
    """A particle that is at one place when alone and at the other side with company."""
    count = 1000
    mask = torch.ones(count, 2)
    mask[::2, 1] = 0.0
    place = torch.where(mask[:, 1:] > 0, torch.tensor([math.pi, 1.0]), torch.zeros(2))
    g = (Torus(1) ** 2).project(place + 0.2 * torch.randn(count, 2, generator=seeded(0)))
    model = GroupDiffusion(Torus(1) ** 2, "flow", width=32, depth=1)
    model.fit((g, None, mask), steps=250, batch_size=128, learning_rate=5e-3, progress=False)
    for present, expected in ((torch.tensor([1, 0]), 1.0), (torch.tensor([1, 1]), -1.0)):
        drawn = model.sample(200, mask=present, generator=seeded(1))
        assert float(drawn[:, 0].cos().mean()) == pytest.approx(expected, abs=0.15)
    together = model.log_prob(torch.tensor([math.pi, 1.0]))
    assert torch.allclose(together, model.log_prob(torch.tensor([math.pi, 1.0]), mask=torch.ones(2)))
    assert float(model.log_prob(torch.zeros(2), mask=torch.tensor([1, 0]), measure="volume")) == pytest.approx(
        -math.log(0.2 * math.sqrt(2.0 * math.pi)), abs=0.3
    )


def test_bad_input() -> None:
    g, mask = rows(SE(2), 20)
    power = SE(2) ** 3

    def new(group: LieGroup = power) -> GroupDiffusion:
        return GroupDiffusion(group, "flow", width=8, depth=1)

    with pytest.raises(ShapeError, match=r"\[3\], or \[20, 3\], got \[20, 2\]"):
        new().fit((g, None, mask[:, :2]), **FIT)
    with pytest.raises(ConfigurationError, match="zeros and ones"):
        new().fit((g, None, 3 * mask.long()), **FIT)
    with pytest.raises(ConfigurationError, match="tensor of truth values"):
        new().fit((g, None, 3), **FIT)
    with pytest.raises(ConfigurationError, match="which holds conditions itself"):
        new().fit((g, None, mask), torch.ones(20, 2), **FIT)
    with pytest.raises(ConfigurationError, match="all have conditions and masks"):
        new().fit(DataLoader(Mixed(g, mask), batch_size=None), **{**FIT, "steps": 4})
    with pytest.raises(ConfigurationError, match="power of a group"):
        new(SE(2)).fit((g[:, :6].unflatten(-1, (2, 3)), None, mask), **FIT)
    with pytest.raises(ConfigurationError, match="unimodular"):
        new(Affine(1) ** 2).fit(((Affine(1) ** 2).random(20, std=0.1, generator=seeded(0)), None, mask[:, :2]), **FIT)
    with pytest.raises(ConfigurationError, match="for particles with a mask"):
        new().fit((g, None, mask), coupling="optimal", **FIT)
    with pytest.raises(ConfigurationError, match="expected an argument mask"):
        GroupDiffusion(power, "flow", network=nn.Bilinear(18, 1, 9)).fit((g, None, mask), **FIT)
    with pytest.raises(DomainError, match="20 rows without any"):
        new().fit((g, None, torch.zeros_like(mask)), **FIT)
    with pytest.raises(ConfigurationError, match="trained without masks"):
        new().fit(g, **FIT).sample(2, mask=mask[:2])
    model = new().fit((g, None, mask), **FIT)
    with pytest.raises(ConfigurationError, match="without masks"):
        model.distil(steps=1)
    with pytest.raises(ShapeError, match=r"\[3\], or \[4, 3\], got \[2, 3\]"):
        model.sample(4, mask=mask[:2])
    with pytest.raises(DomainError, match="a particle in each row"):
        model.log_prob(g[0], mask=[False, False, False])
    again = model.fit(g, **FIT)  # and then without masks
    with pytest.raises(ConfigurationError, match="trained without masks"):
        again.log_prob(g[:2], mask=mask[:2])


def test_chains_are_padded() -> None:
    """The mean of the loss is over present particles: chains that are cut are the same chains."""
    power = SE(3) ** 4
    chains = [SE(3).random(n, std=0.3, generator=seeded(n)) for n in (1, 3, 4)]
    g, mask = pad_particles(power, chains)
    assert g.shape == (3, 48)
    assert mask.sum(-1).tolist() == [1, 3, 4]
    for row, present, chain in zip(g.unflatten(-1, (4, 3, 4)), mask, chains, strict=True):
        assert torch.equal(row[present], chain)
        assert torch.equal(row[~present], SE(3).identity(4 - len(chain)))
    for wrong in ([], [chains[0][:0]], [torch.cat([chains[2], chains[0]])], [chains[0][0]], [chains[0][..., :2]]):
        with pytest.raises(ShapeError):
            pad_particles(power, wrong)
    with pytest.raises(ConfigurationError):
        pad_particles(SE(3), chains)


def test_numbers_of_particles_that_vary() -> None:
    """A row of one particle weighs in the loss as much as its share of coordinates."""
    g, mask = rows(Torus(1), 64)
    model = GroupDiffusion(Torus(1) ** 3, "flow", width=8, depth=1).fit((g, None, mask), **FIT)
    assert model.fitted is not None
    batch = model.fitted.path.training_batch(g, seeded(3))
    with torch.no_grad():
        hidden = torch.where(mask, batch.elements, 0.0)
        found = model.network(hidden, batch.level, None, mask.float())
        expected = float((found - batch.target).square()[mask].mean())
    training = PathTraining(model.networks, model.fitted.path, 1e-3, 0)
    with torch.no_grad():
        losses = [float(training._loss((g, MaskedCondition(None, mask)), seeded(k))[0]) for k in range(40)]
    assert sum(losses) / 40 == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("uses_momentum", [False, True])
@pytest.mark.parametrize("factor", [SO(2), SE(3), Torus(1)], ids=repr)
def test_absent_particles_do_not_reach_a_network(factor: LieGroup, uses_momentum: bool) -> None:
    """Whatever stands in their place: vectors of others are the same, and theirs are zero."""
    group = factor**3
    mask = torch.tensor([[True, False, True], [True, True, True], [False, True, False]])
    network = ConditionalNetwork(group, Everything(group.dim, uses_momentum), None, uses_momentum, Particles(group))
    first, other = (group.random(3, std=0.5, generator=seeded(k)) for k in range(2))
    present = mask.repeat_interleave(math.prod(factor.element_shape), -1)
    moved = torch.where(present, first, other)
    momenta = [None, None]
    if uses_momentum:
        momenta = [torch.randn(3, group.dim, generator=seeded(k)) for k in (2, 3)]
        momenta[1] = torch.where(mask.repeat_interleave(factor.dim, -1), *momenta)
    t, features = torch.rand(3, generator=seeded(4)), MaskedCondition(None, mask)
    found, again = (network(g, t, v, features) for g, v in zip((first, moved), momenta, strict=True))
    assert torch.equal(found, again)
    assert torch.equal(found != 0, mask.repeat_interleave(factor.dim, -1))
    assert float((found - network(first + 0.1, t, momenta[0], features)).abs().max()) > 0.05  # others have influence
