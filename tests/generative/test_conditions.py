"""Models with conditions: known distributions that they learn, what conditions may be, what is refused."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tests.helpers import seeded
from trivgeo.errors import CheckpointError, ConfigurationError, NonFiniteError, ShapeError
from trivgeo.generative import GroupDiffusion
from trivgeo.generative.diffusion_training import PathTraining
from trivgeo.groups import SE, SO, LieGroup, Torus

STD = 0.3
NLL = 0.5 + math.log(STD / math.sqrt(2.0 * math.pi))  # of a normal distribution of angles, in nats
SMALL = {"width": 32, "depth": 1}
FIT: dict[str, Any] = {"steps": 400, "batch_size": 256, "learning_rate": 5e-3, "progress": False}


def pairs(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Angles about an angle, and cosine and sine of the latter: that of the angles alone is nearly uniform."""
    centre = 2.0 * math.pi * torch.rand(count, 1, generator=seeded(seed))
    angle = centre + STD * torch.randn(count, 1, generator=seeded(seed + 100))
    return Torus(1).wrap(angle), torch.cat([centre.cos(), centre.sin()], -1)


@pytest.fixture(
    scope="module", params=["flow", pytest.param("diffusion", marks=pytest.mark.slow(reason="the kind flow stays"))]
)
def model(request: pytest.FixtureRequest) -> GroupDiffusion:
    steps = {"flow": 400, "diffusion": 800}[request.param]
    return GroupDiffusion(Torus(1), request.param, condition=2, **SMALL).fit(*pairs(4000), **{**FIT, "steps": steps})


class TestKnownLaw:
    def test_density(self, model: GroupDiffusion) -> None:
        """Near the conditional entropy with conditions; far from it with those of others; the marginal one without."""
        g, c = pairs(200, seed=1)
        found = -float(model.log_prob(g, condition=c, tolerance=1e-2).mean())
        assert NLL - 0.1 < found < NLL + 0.15
        shuffled = -float(model.log_prob(g, condition=c.roll(1, 0), tolerance=1e-2).mean())
        assert shuffled > 0.0  # of the uniform distribution
        without = -float(model.log_prob(g, tolerance=1e-2).mean())
        assert without == pytest.approx(0.0, abs=0.1)

    def test_mass(self, model: GroupDiffusion) -> None:
        angle = ((torch.arange(64) + 0.5) * (2.0 * math.pi / 64)).unsqueeze(-1)
        density = model.log_prob(angle, condition=torch.tensor([1.0, 0.0]), tolerance=1e-2).exp()
        assert float(density.mean()) == pytest.approx(1.0, abs=0.05)

    def test_samples(self, model: GroupDiffusion) -> None:
        """Follow their own conditions, in any batch shape; one condition stands for all."""
        g, c = pairs(300, seed=2)
        found = model.sample(300, condition=c, generator=seeded(0))
        centre = torch.atan2(c[:, 1], c[:, 0]).unsqueeze(-1)
        away = Torus(1).wrap(found - centre)
        assert float(away.square().mean().sqrt()) == pytest.approx(STD, rel=0.25)
        one = model.sample(300, condition=torch.tensor([0.0, 1.0]), generator=seeded(0))
        assert float(Torus(1).wrap(one - 0.5 * math.pi).abs().mean()) < 2.0 * STD
        shaped = model.sample((20, 15), condition=c.reshape(20, 15, 2), generator=seeded(0))
        assert torch.allclose(shaped.reshape(300, 1), found, atol=1e-5)
        few, given = g[:6], c[:6]
        of_shape = model.log_prob(few.reshape(2, 3, 1), condition=given.reshape(2, 3, 2), tolerance=1e-3)
        assert torch.allclose(of_shape.flatten(), model.log_prob(few, condition=given, tolerance=1e-3), atol=1e-3)

    def test_guidance(self, model: GroupDiffusion) -> None:
        """Sharpens; the factor 1 is none, the factor 0 is the distribution without a condition."""
        c = torch.tensor([1.0, 0.0])
        spread = {
            w: float(Torus(1).wrap(model.sample(500, condition=c, guidance=w, generator=seeded(0))).abs().mean())
            for w in (0.0, 1.0, 3.0)
        }
        assert spread[3.0] < 0.9 * spread[1.0] < 0.5 * spread[0.0]
        plain = model.sample(50, condition=c, generator=seeded(0))
        assert torch.equal(model.sample(50, condition=c, guidance=1.0, generator=seeded(0)), plain)
        without, marginal = (
            model.sample(50, generator=seeded(0), **a) for a in ({"condition": c, "guidance": 0.0}, {})
        )
        assert torch.allclose(without, marginal, atol=1e-3)

    def test_file(self, model: GroupDiffusion, tmp_path: Path) -> None:
        model.save(tmp_path / "model.safetensors")
        loaded = GroupDiffusion.load(tmp_path / "model.safetensors", Torus(1))
        _, c = pairs(20, seed=3)
        assert torch.equal(*(m.sample(20, condition=c, guidance=2.0, generator=seeded(0)) for m in (model, loaded)))
        again = GroupDiffusion.load(tmp_path / "model.safetensors", Torus(1), condition=2)  # as the constructor had it
        assert torch.equal(*(m.sample(20, condition=c, generator=seeded(0)) for m in (again, loaded)))
        given: Any
        for given in (nn.Identity(), 3):
            with pytest.raises(CheckpointError, match=r"the file holds it \(vectors of 2 numbers\): leave it out"):
                GroupDiffusion.load(tmp_path / "model.safetensors", Torus(1), condition=given)
        with pytest.raises(CheckpointError, match="no network=, since the file describes this network: leave it out"):
            GroupDiffusion.load(tmp_path / "model.safetensors", Torus(1), network=nn.Identity())

    def test_bad_input(self, model: GroupDiffusion) -> None:
        g, c = pairs(5)
        with pytest.raises(ShapeError, match=r"expected vectors \[5, 2\], got \[5, 3\]"):
            model.sample(5, condition=torch.ones(5, 3))
        with pytest.raises(ShapeError, match=r"one for each of \[5\]"):
            model.sample(5, condition=torch.ones(4, 2))
        with pytest.raises(NonFiniteError, match="condition"):
            model.log_prob(g, condition=c / 0.0)
        with pytest.raises(ConfigurationError, match="guidance"):
            model.sample(5, guidance=2.0)
        with pytest.raises(ConfigurationError, match="condition: expected a floating-point tensor"):
            model.sample(5, condition="upright")
        with pytest.raises(ConfigurationError, match="num_samples"):
            model.sample((2, 0), condition=c[0])


class Pictures(nn.Module):
    """Features of pictures, with running statistics and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Conv2d(1, 4, 3).requires_grad_(False)
        self.layers = nn.Sequential(nn.BatchNorm2d(4), nn.SiLU(), nn.Flatten(), nn.LazyLinear(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.frozen(x))


class TokenNetwork(nn.Module):
    """A network of one's own: attends to tokens of any number."""

    def __init__(self, group: LieGroup) -> None:
        super().__init__()
        self.group = group
        self.query = nn.Linear(math.prod(group.element_shape) + 1, 16)
        self.key = nn.Linear(4, 16)
        self.out = nn.Linear(4, group.dim)

    def forward(self, g: Tensor, t: Tensor, tokens: Tensor, momentum: Tensor | None = None) -> Tensor:
        query = self.query(torch.cat([g.flatten(-len(self.group.element_shape)), t.unsqueeze(-1)], -1))
        weight = (self.key(tokens) @ query.unsqueeze(-1)).softmax(-2)
        return self.out((weight * tokens).sum(-2))


@pytest.mark.parametrize(
    "kind",
    ["flow", *(pytest.param(kind, marks=pytest.mark.slow(reason="flow stays")) for kind in ("diffusion", "momentum"))],
)
def test_modules(kind: str, tmp_path: Path) -> None:
    """Pictures of classes on SO(3), a module with running statistics and a lazy layer, and files of it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pictures = Pictures()
    g = SO(3).random(64, std=0.4, generator=seeded(0))
    x = torch.randn(64, 1, 5, 5, generator=seeded(1))
    model = GroupDiffusion(SO(3), kind, condition=pictures, **SMALL)
    model.fit(g, x, steps=5, batch_size=16, progress=False)
    assert model.encoder is not None
    trained = model.encoder.encoder
    assert isinstance(trained, Pictures)
    assert torch.equal(trained.frozen.weight, pictures.frozen.weight)  # needs no gradient
    norm = trained.layers[0]
    assert isinstance(norm, nn.BatchNorm2d)
    assert float((norm.running_mean - 0.0).abs().max()) > 0.0  # moved with the training, and was kept
    single, many = (
        model.sample(3, condition=c, generator=seeded(0), steps=10) for c in (x[0], x[:1].expand(3, -1, -1, -1))
    )
    assert torch.allclose(single, many, atol=1e-5)
    model.save(tmp_path / "model.safetensors")
    other = Pictures()
    other(x[:2])
    loaded = GroupDiffusion.load(tmp_path / "model.safetensors", SO(3), condition=other)
    assert torch.equal(*(m.sample(3, condition=x[:3], generator=seeded(0), steps=10) for m in (model, loaded)))
    with pytest.raises(CheckpointError, match="expected a module condition="):
        GroupDiffusion.load(tmp_path / "model.safetensors", SO(3))
    again = loaded.fit(g, x, steps=2, batch_size=16, progress=False)
    assert not any(p.requires_grad for p in again.encoder.encoder.frozen.parameters())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "condition", "dropout"),
    [
        ("momentum", None, 0.1),
        ("flow", nn.Identity(), 0.2),
        pytest.param("diffusion", None, 0.1, marks=pytest.mark.slow(reason="momenta, which networks see, stay")),
    ],
)
def test_own_network(kind: str, condition: nn.Module | None, dropout: float, tmp_path: Path) -> None:
    g = SE(2).random(64, std=0.4, generator=seeded(0))
    tokens = torch.randn(64, 6, 4, generator=seeded(1))
    model = GroupDiffusion(SE(2), kind, condition=condition, network=TokenNetwork(SE(2)), condition_dropout=dropout)
    model.fit(g, tokens, steps=5, batch_size=16, progress=False)
    assert torch.isfinite(model.log_prob(g[:3], condition=tokens[:3], tolerance=0.1)).all()
    drawn: dict[str, Any] = {"generator": seeded(0), "steps": 10}
    fewer = model.sample(3, condition=tokens[:3, :2], **drawn)
    assert fewer.shape == (3, *SE(2).element_shape)
    path = tmp_path / "model.safetensors"
    model.save(path)
    loaded = GroupDiffusion.load(path, SE(2), network=TokenNetwork(SE(2)), condition=condition)
    assert torch.equal(*(m.sample(3, condition=tokens[:3], generator=seeded(0), steps=10) for m in (model, loaded)))
    if condition is None:
        with pytest.raises(ConfigurationError, match="condition_dropout > 0"):
            model.sample(3, condition=tokens[:3], guidance=2.0)
    else:
        assert model.sample(3, **drawn).shape == fewer.shape


def test_own_network_learns() -> None:
    """A network of one's own without conditions: the velocity of a narrow distribution of angles."""
    network = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    class Angles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, g: Tensor, t: Tensor, condition: None) -> Tensor:
            return self.network(torch.cat([g.cos(), g.sin(), t.unsqueeze(-1)], -1))

    data = 1.0 + STD * torch.randn(2000, 1, generator=seeded(0))
    before = [p.clone() for p in network.parameters()]
    model = GroupDiffusion(Torus(1), "flow", network=Angles()).fit(data, **FIT)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))  # trained is a copy
    test = 1.0 + STD * torch.randn(500, 1, generator=seeded(1))
    assert -float(model.log_prob(test, tolerance=1e-3).mean()) == pytest.approx(NLL, abs=0.2)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        g, c = pairs(200)
        return iter(zip(g, c, strict=True))


class Data(pl.LightningDataModule):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(TensorDataset(*pairs(200)), batch_size=50, shuffle=True)


@pytest.mark.parametrize(
    "samples",
    [
        pairs(200),
        TensorDataset(*pairs(200)),
        DataLoader(TensorDataset(*pairs(200)), batch_size=50),
        DataLoader(Stream(), batch_size=50),
        Data(),
    ],
    ids=lambda samples: type(samples).__name__,
)
def test_data(samples: Any, tmp_path: Path) -> None:
    """Pairs, data sets, loaders and data modules; a training goes on from its checkpoint with all of them."""
    fit: dict[str, Any] = {"steps": 20, "batch_size": 32, "progress": False, "folder": tmp_path}
    model = GroupDiffusion(Torus(1), "flow", condition=2, **SMALL).fit(samples, **fit)
    assert model.fitted is not None
    assert (model.fitted.num_steps, model.fitted.ended_by_time) == (20, False)
    again = GroupDiffusion(Torus(1), "flow", condition=2, **SMALL).fit(samples, **fit)
    assert torch.equal(*(m.sample(4, condition=[1.0, 0.0], generator=seeded(0)) for m in (model, again)))
    with pytest.raises(ConfigurationError, match="expected none beside"):
        GroupDiffusion(Torus(1), "flow", condition=2).fit(samples, pairs(200)[1])


class Labelled(Dataset):
    """Elements with conditions that are dictionaries."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.tensor([0.1 * index]), {"label": torch.tensor(index % 3), "weight": torch.tensor([0.5 * index])}


def test_conditions_of_several_tensors() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(3, 4)

        def forward(self, condition: dict[str, Tensor]) -> Tensor:
            return torch.cat([self.embedding(condition["label"]), condition["weight"]], -1)

    model = GroupDiffusion(Torus(1), "flow", condition=Both(), **SMALL)
    model.fit(Labelled(), steps=5, batch_size=16, progress=False)
    one = {"label": torch.tensor(1), "weight": torch.tensor([2.0])}
    two = {"label": torch.tensor([1, 1]), "weight": torch.tensor([[2.0], [2.0]])}
    assert torch.allclose(*(model.sample(2, condition=c, generator=seeded(0)) for c in (one, two)), atol=1e-6)


def test_levels_do_not_follow_the_order_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorted classes met sorted levels: a class was seen at some levels of noise only."""
    seen: list[tuple[Tensor, Tensor]] = []
    original = PathTraining._loss

    def recorded(self: PathTraining, data: Any, generator: torch.Generator) -> Any:
        forward = self.network.forward

        def noted(g: Tensor, level: Tensor, momentum: Any, features: Tensor) -> Tensor:
            seen.append((level, features[:, 0].detach()))
            return forward(g, level, momentum, features)

        self.network.forward = noted  # type: ignore[method-assign]
        try:
            return original(self, data, generator)
        finally:
            del self.network.forward

    monkeypatch.setattr(PathTraining, "_loss", recorded)
    g, _ = pairs(512)
    rank = torch.arange(512.0).unsqueeze(-1)
    loader = DataLoader(TensorDataset(g, rank), batch_size=512)
    GroupDiffusion(Torus(1), "diffusion", condition=1, condition_dropout=0.0, **SMALL).fit(
        loader, steps=3, progress=False
    )
    for level, order in seen:
        assert abs(float(torch.corrcoef(torch.stack([level, order]))[0, 1])) < 0.2


def test_end_by_time() -> None:
    data = pairs(50)[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = GroupDiffusion(Torus(1), "flow", **SMALL).fit(data, seconds=0.5, progress=False)
    assert not [w for w in caught if "ended the training" in str(w.message)]  # that time was asked for
    assert model.fitted is not None
    assert model.fitted.ended_by_time
    assert 0 < model.fitted.num_steps < 20_000


class Constant(nn.Module):
    """Of a wrong dimension on SE(2)."""

    def forward(self, g: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        return g.new_zeros(*t.shape, 4)


def test_refused_before_the_work() -> None:
    g, c = pairs(20)
    with pytest.raises(ConfigurationError, match="the model has no conditions"):
        GroupDiffusion(Torus(1), "flow", **SMALL).fit(g, c)
    with pytest.raises(ConfigurationError, match="expected one for each element, got none"):
        GroupDiffusion(Torus(1), "flow", condition=2, **SMALL).fit(g)
    with pytest.raises(ShapeError, match=r"one for each of 20 elements, got \[19, 2\]"):
        GroupDiffusion(Torus(1), "flow", condition=2, **SMALL).fit(g, c[1:])
    with pytest.raises(ShapeError, match=r"expected vectors \[20, 3\]"):
        GroupDiffusion(Torus(1), "flow", condition=3, **SMALL).fit(g, c)
    with pytest.raises(ConfigurationError, match="condition_dropout=0"):
        GroupDiffusion(Torus(1), "flow", condition=nn.Identity(), **SMALL).fit(g, torch.arange(20))
    with pytest.raises(ConfigurationError, match="condition"):
        GroupDiffusion(Torus(1), "flow", condition=0)
    with pytest.raises(ConfigurationError, match="condition_dropout"):
        GroupDiffusion(Torus(1), "flow", condition=2, condition_dropout=1.0)
    with pytest.raises(ShapeError, match=r"network: expected an algebra vector.*\[2, 3\], got \[2, 4\]"):
        GroupDiffusion(SE(2), "flow", network=Constant()).fit(SE(2).random(9, generator=seeded(0)), torch.ones(9, 2))
    with pytest.raises(ConfigurationError, match="expected none, for the model has no conditions"):
        GroupDiffusion(Torus(1), "flow", **SMALL).fit(g, steps=2, progress=False).sample(3, condition=c[:3])


def test_double_precision() -> None:
    """The model takes the dtype of the data, its networks too."""
    g, c = (x.double() for x in pairs(50))
    model = GroupDiffusion(Torus(1), "flow", condition=2, **SMALL).fit(g, c.float(), steps=2, progress=False)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model.sample(3, condition=c[:3], tolerance=0.1).dtype == torch.float64
    assert model.log_prob(g[:3].float(), condition=c[:3], tolerance=0.1).dtype == torch.float64


@pytest.mark.parametrize("classes", [torch.tensor([0, 7]), torch.tensor([-1, 0]), torch.tensor([0.0, 1.0])])
def test_classes_are_checked(classes: Tensor) -> None:
    """At the fit and at samples, alone or before other layers."""
    for embedding in (nn.Embedding(5, 4), nn.Sequential(nn.Embedding(5, 4), nn.SiLU())):
        model = GroupDiffusion(Torus(1), "flow", condition=embedding, **SMALL)
        with pytest.raises(ConfigurationError, match="expected classes"):
            model.fit(torch.zeros(2, 1), classes, steps=1, progress=False)
        model.fit(torch.zeros(2, 1), torch.tensor([0, 4]), steps=1, progress=False)
        with pytest.raises(ConfigurationError, match="expected classes"):
            model.sample(2, condition=classes)


class Summed(nn.Module):
    """Features of a dictionary of a vector and a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 4)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return self.linear(x["a"]) + x["b"].mean((-1, -2)).unsqueeze(-1)


def test_conditions_unlike_those_of_the_training() -> None:
    """The order of a dictionary does not matter; what the module does not take is named."""
    g, c = pairs(20)
    picture = torch.randn(20, 3, 3, generator=seeded(0))
    model = GroupDiffusion(Torus(1), "flow", condition=Summed(), **SMALL)
    model.fit(g, {"b": picture, "a": c}, steps=2, progress=False)
    found = [
        model.sample(3, condition=given, tolerance=0.1, generator=seeded(1))
        for given in ({"a": c[0], "b": picture[0]}, {"b": picture[0], "a": c[0]})
    ]
    assert torch.equal(*found)
    for wrong in ({"a": c[0], "c": picture[0]}, (c[0], picture[0]), {"a": torch.ones(3), "b": picture[0]}):
        with pytest.raises(ShapeError, match="condition: expected conditions like those of the training, got"):
            model.sample(3, condition=wrong)
    classes = GroupDiffusion(Torus(1), "flow", condition=nn.Embedding(3, 4), **SMALL)
    classes.fit(g, torch.arange(20) % 3, steps=2, progress=False)
    one, other = (classes.sample(3, condition=k, tolerance=0.1, generator=seeded(1)) for k in (2, torch.tensor(2)))
    assert torch.equal(one, other)
    with pytest.raises(ShapeError, match=r"condition: expected conditions that the module takes, got a batch \[2, 2\]"):
        GroupDiffusion(Torus(1), "flow", condition=nn.Linear(5, 4), **SMALL).fit(g, c, steps=2, progress=False)
    with pytest.raises(ConfigurationError, match=r"for classes give the model condition=nn\.Embedding"):
        GroupDiffusion(Torus(1), "flow", condition=3, **SMALL).fit(g, torch.arange(20) % 3, steps=2, progress=False)


class Faulty(nn.Module):
    """A network on SE(2) that returns NaN from its first call, or after some."""

    def __init__(self, good_calls: int) -> None:
        super().__init__()
        self.linear, self.left = nn.Linear(1, 3), good_calls

    def forward(self, g: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        self.left -= 1
        return self.linear(t.unsqueeze(-1)) * (math.nan if self.left < 0 else 1.0)


class NoCondition(nn.Module):
    def forward(self, g: Tensor, t: Tensor) -> Tensor:
        return g.new_zeros(*t.shape, 3)


class Parameterless(nn.Module):
    def forward(self, g: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        return g.new_zeros(*t.shape, 3)


@pytest.mark.parametrize(
    ("network", "error", "message"),
    [
        (Faulty(0), NonFiniteError, "network: expected finite vectors before the training"),
        (Faulty(2), NonFiniteError, "network: expected finite weights after the training"),
        (NoCondition(), ConfigurationError, r"network: expected a function of \(g, t, features\)"),
        (Parameterless(), ConfigurationError, "network: expected parameters to train"),
        (Faulty(9).requires_grad_(False), ConfigurationError, "network: expected parameters to train"),
    ],
)
def test_networks_that_cannot_be_trained(network: nn.Module, error: type[Exception], message: str) -> None:
    g = SE(2).random(20, generator=seeded(0))
    with pytest.raises(error, match=message):
        GroupDiffusion(SE(2), "flow", network=network).fit(g, torch.ones(20, 2), steps=5, progress=False)
