"""Three lines from samples to a model: what it learns of known distributions, what it keeps, what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, seeded, stein_z_scores
from trivgeo.errors import CheckpointError, ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative import GroupDiffusion, GroupDistribution, fit_base_distribution
from trivgeo.generative.diffusion_training import PathTraining
from trivgeo.generative.distributions import NormalDistribution
from trivgeo.generative.paths import PATHS, DiffusionPath, FlowMatchingPath, KineticPath
from trivgeo.generative.paths.noising import terminal_std
from trivgeo.groups import SE, SO, SU, DirectProduct, LieGroup, SemidirectProduct, Torus, Translation, U
from trivgeo.sde import heat_kernel, probability_flow
from trivgeo.sde.likelihood import ExactDivergence, HutchinsonDivergence
from trivgeo.sde.noise import noise_log_density

KINDS = ("diffusion", "momentum", "flow")
SLOW_MOMENTUM = pytest.param("momentum", marks=pytest.mark.slow(reason="the other kinds stay"))


CENTRE, STD, SIDE = torch.tensor([1.0, -2.0]), 0.4, 20
TRUE = 2.0 * (math.log(2.0 * math.pi) - 0.5 - math.log(STD * math.sqrt(2.0 * math.pi)))
UNIFORM = 0.0
SOME = torch.tensor([[0.3, -1.0], [1.0, 2.0]])


@pytest.fixture(scope="module", params=["diffusion", SLOW_MOMENTUM, "flow"])
def model(request: pytest.FixtureRequest) -> GroupDiffusion:
    """Of a narrow normal distribution on T^2, hardly trained."""
    data = CENTRE + STD * torch.randn(1000, 2, generator=seeded(0))
    fitted = GroupDiffusion(Torus(2), request.param, width=32, depth=1)
    return fitted.fit(data, steps=150, batch_size=256, learning_rate=5e-3, progress=False)


def fitted_path(kind: str, group: LieGroup, data: Tensor) -> tuple[DiffusionPath | KineticPath, GroupDistribution]:
    """The path of a kind with noise, and its base distribution, for 4096 rows of the data."""
    rows = data.repeat(-(-4096 // len(data)), *[1] * len(group.element_shape))[:4096]
    settings, base = PATHS[kind].fit(group, rows, seeded(0))
    path = PATHS[kind].build(group, settings, base)
    assert isinstance(path, DiffusionPath | KineticPath)
    return path, base


def near(g: Tensor) -> float:
    """The share of elements within three standard deviations."""
    return float((Torus(2).wrap(g - CENTRE).norm(dim=-1) < 3.0 * STD).float().mean())


class TestModel:
    def test_density(self, model: GroupDiffusion) -> None:
        """Of mass one, however little was learned; periodic; nearer to the data than before."""
        angle = (torch.arange(SIDE) + 0.5) * (2.0 * math.pi / SIDE)
        test = CENTRE + STD * torch.randn(100, 2, generator=seeded(9))
        turned = SOME + 2.0 * math.pi * torch.tensor([[1.0, -2.0], [0.0, 1.0]])
        grid = torch.cartesian_prod(angle, angle)
        if model.kind == "momentum":  # the same momenta for both; the grid is left to the other kinds
            a, b = (model.log_prob(part, tolerance=1e-4) for part in (SOME, turned))
            of_test = model.log_prob(test, tolerance=1e-3)
        else:
            found = model.log_prob(torch.cat([grid, test, SOME, turned]), tolerance=1e-2)
            mass, of_test, a, b = found.split([SIDE**2, 100, 2, 2])
            # roughness of so short a training does not average out altogether
            assert float(mass.exp().mean()) == pytest.approx(1.0, abs=0.25)
        assert torch.allclose(a, b, atol=0.02)
        assert 0.5 * (UNIFORM + TRUE) < float(of_test.mean()) < TRUE + 0.3

    def test_samples(self, model: GroupDiffusion, tmp_path: Path) -> None:
        """Of the distribution; a function of the seed; the same from a file."""
        g = model.sample(300, generator=seeded(1), tolerance=1e-2)
        assert near(g) > 0.5
        assert torch.equal(g, model.sample(300, generator=seeded(1), tolerance=1e-2))
        assert not torch.equal(g, model.sample(300, generator=seeded(2), tolerance=1e-2))
        path = tmp_path / "model.safetensors"
        model.save(path)
        loaded = GroupDiffusion.load(path, Torus(2))
        assert torch.equal(g, loaded.sample(300, generator=seeded(1), tolerance=1e-2))
        for group in (Torus(3), Torus(2, scale=0.5), Translation(2)):
            with pytest.raises(CheckpointError, match="another group"):
                GroupDiffusion.load(path, group)
        path.write_bytes(b"nothing")
        with pytest.raises(CheckpointError, match="a readable safetensors file"):
            GroupDiffusion.load(path, Torus(2))

    def test_random_steps(self, model: GroupDiffusion) -> None:
        if model.kind == "flow":
            assert near(model.sample(300, generator=seeded(1), steps=20)) > 0.5  # along the flow, without noise
            assert torch.equal(*(model.sample(30, generator=seeded(1), **given) for given in ({}, {"tolerance": 1e-4})))
            return
        assert near(model.sample(300, generator=seeded(1), steps=20)) > 0.5
        by_default, hundred = (model.sample(30, generator=seeded(1), **given) for given in ({}, {"steps": 100}))
        assert torch.equal(by_default, hundred)
        with pytest.raises(ConfigurationError, match="expected one of them, got 5"):
            model.sample(3, steps=5, tolerance=0.1)

    def test_hutchinson(self, model: GroupDiffusion) -> None:
        """The mean over signs (two kinds of pairs in two dimensions) is the exact divergence."""
        assert model.fitted is not None
        path = model.fitted.path
        state = torch.cat([SOME, SOME], -1) if model.kind == "momentum" else SOME
        group: LieGroup = DirectProduct(Torus(2), Translation(2)) if model.kind == "momentum" else Torus(2)
        if isinstance(path, KineticPath):
            flow, which = path.process(model.network).flow(), range(2, 4)
        elif isinstance(path, FlowMatchingPath):
            flow, which = path.flow(model.network), range(2)
        else:
            assert isinstance(path, DiffusionPath)
            flow, which = probability_flow(Torus(2), path.schedule, path.score(model.network)), range(2)
        field = lambda x: flow.velocity(x, 0.5).vector  # noqa: E731
        value, exact = ExactDivergence()(group, field, state)
        many = HutchinsonDivergence(4000).within(which).prepare(value, seeded(0))
        assert torch.allclose(many(group, field, state)[1], exact, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        (SE(2), "diffusion"),
        (SO(3), "momentum"),
        (DirectProduct(SU(2), Translation(1)), "flow"),
        *(pytest.param(SE(2), kind, marks=pytest.mark.slow(reason="the others stay")) for kind in ("momentum", "flow")),
    ],
    ids=repr,
)
def test_runs_on_every_kind_of_group(group: LieGroup, kind: str) -> None:
    """A few steps: finite densities and samples that are elements."""
    data = group.random(200, std=0.4, generator=seeded(0))
    model = GroupDiffusion(group, kind, width=16, depth=1)
    model.fit(data, steps=3, batch_size=32, progress=False)
    found = model.log_prob(data[:3], tolerance=1e-2)
    assert bool(torch.isfinite(found).all()), found
    g = model.sample(4, generator=seeded(1), tolerance=1e-2)
    assert g.shape == (4, *group.element_shape)
    assert float((group.project(g) - g).abs().max()) < 1e-5


def test_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that was stopped goes on where it was."""
    data = Torus(1).random_haar(50, generator=seeded(0))
    seen: list[int] = []
    step = PathTraining.training_step

    def run(folder: str, last: int = 100) -> GroupDiffusion:
        """Killed at a step."""

        def counted(self: PathTraining, batch: Tensor, index: int) -> Tensor:
            if self.global_step == last:
                raise InterruptedError
            seen.append(self.global_step)
            return step(self, batch, index)

        monkeypatch.setattr(PathTraining, "training_step", counted)
        model = GroupDiffusion(Torus(1), "flow", width=8, depth=1)
        return model.fit(data, steps=100, batch_size=16, folder=tmp_path / folder, progress=False)

    whole = run("a")
    with pytest.raises(InterruptedError):
        run("b", last=60)
    seen.clear()
    other = run("b")
    assert seen == list(range(60, 100))
    assert torch.allclose(*(m.sample(5, generator=seeded(0)) for m in (whole, other)), atol=1e-4)
    # what is not the same training is refused: it used to be the first model, whatever the data
    run("b")
    for others, kind, seed in ((data + 0.5, "flow", 0), (data, "diffusion", 0), (data, "flow", 1)):
        with pytest.raises(CheckpointError, match="folder: expected the checkpoint of a training on these data"):
            GroupDiffusion(Torus(1), kind, seed, width=8, depth=1).fit(
                others, steps=100, batch_size=16, folder=tmp_path / "b", progress=False
            )


def test_refused_training_changes_nothing(tmp_path: Path) -> None:
    """It used to leave the model half adapted to the other data, and an untrained one as if it were fitted."""
    data = torch.rand(50, 1, generator=seeded(0))
    fit = {"steps": 3, "batch_size": 8, "folder": tmp_path, "progress": False}
    model = GroupDiffusion(Translation(1), "flow", width=8, depth=1).fit(data, **fit)
    g = model.sample(4, generator=seeded(1))
    other = GroupDiffusion(Translation(1), "flow", width=8, depth=1)
    for refused in (model, other):
        with pytest.raises(CheckpointError, match="folder"):
            refused.fit(3.0 * data, **fit)
    assert torch.equal(g, model.sample(4, generator=seeded(1)))
    assert not model.network.training
    with pytest.raises(ConfigurationError, match="fitted"):
        other.sample(4)


@pytest.mark.parametrize("kind", ["diffusion", SLOW_MOMENTUM])
def test_noise_mixes_what_is_compact_of_a_product(kind: str) -> None:
    """Of data that are narrow on both factors, noise in units of the other one left the angle where it was."""
    group = DirectProduct(Torus(1), Translation(1))
    data = 0.1 * torch.randn(4000, 2, generator=seeded(0))
    path, base = fitted_path(kind, group, data)
    noised, drawn = path.sample_terminal(data, seeded(1)), base.sample(4000, seeded(2))
    for f in (torch.cos, torch.sin):
        assert float((f(noised[:, 0]).mean() - f(drawn[:, 0]).mean()).abs()) < 0.08
    assert float(noised[:, 1].std() / drawn[:, 1].std()) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("group", "rate"),
    [
        (Torus(2), 0.5),
        (SO(5), 2.0),
        (SU(3), 8.0 / 3.0),
        (U(3, scale=0.5), 0.75),  # of the entries and of the determinant
        (SO(3, scale=0.5 * torch.eye(3)[[1, 2, 0]]), 0.25),
        (Torus(2, scale=[0.6, 1.5]), 0.18),
        (DirectProduct(SO(3), Torus(1), scale=[0.5, 0.5, 0.5, 0.6]), 0.18),
        (U(2, scale=[1.0, 1.0, 1.0, 0.1]), 0.02),  # of the determinant
        (SU(2, scale=[1.0, 0.1, 0.1]), 0.04),  # of spin one, which the long axis does not move
        (SO(3, scale=[1.0, 1.0, 0.1]), 0.505),
        (SO(3, scale=[0.1, 0.2, 1.0]), 0.025),
        (U(3, scale=[*[1.0] * 8, 0.1]), 0.03),  # of the determinant
        (SU(3, scale=[*[0.1] * 3, *[1.0] * 3, *[0.1] * 2]), 0.2 / 3.0),  # of g g^T, which long rotations do not move
        (DirectProduct(SO(3), Torus(1), scale=[1.0, 1.0, 0.1, 2.0]), 0.505),
        (SO(3) ** 2, 1.0),
        (DirectProduct(SO(3), SO(3), scale=[1.0, 1.0, 0.1, 1.0, 0.2, 0.1]), 0.025),
        (Torus(2, scale=[[1.0, 1.0], [0.05, -0.05]]), 0.005),  # of the difference of the angles
    ],
    ids=repr,
)
def test_noise_mixes_the_slowest_mode(group: LieGroup, rate: float) -> None:
    """Of known rate, by the Casimir operator; on tori in a skew basis it may do more than it must."""
    widest = terminal_std(group, group.identity(8), 8.0)
    assert 1.0 - 1e-5 < widest / math.sqrt(8.0 / rate) < (2.0 if group.scale.ndim > 1 and rate < 0.1 else 1.0 + 1e-5)


@pytest.mark.parametrize(
    ("group", "variance"), [(SO(3), 8.0), (Torus(2), 16.0), (Translation(2), 36.0)], ids=["SO(3)", "Torus", "plane"]
)
def test_noise_that_a_model_is_fitted_with(group: LieGroup, variance: float) -> None:
    """Wide enough to leave exp(-8) of the slowest mode of compact groups, and twice as wide as data on others."""
    corners = torch.tensor([[-3.0, 0.5], [3.0, -0.5]]).repeat(2000, 1)
    data = corners if isinstance(group, Translation) else group.random(50, generator=seeded(0))
    path, base = fitted_path("diffusion", group, data)
    assert isinstance(path, DiffusionPath)
    assert path.schedule.variance(0.0, 1.0) == pytest.approx(variance, rel=1e-3)
    if isinstance(group, Translation):
        kinetic, _ = fitted_path("momentum", group, data)
        drawn = [
            path.sample_terminal(data, seeded(1)),
            kinetic.sample_terminal(data, seeded(1)),
            base.sample(4000, seeded(1)),
        ]
        for rows in drawn:
            assert_relative(rows.var(0), torch.tensor([variance + 9.0, variance + 0.25]), 0.1)


def test_weights_of_a_fitted_model_are_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the steps, of decay (1 + k) / (10 + k) at step k; the weights after the last step are others."""
    seen: list[tuple[int, Tensor]] = []
    end = PathTraining.on_train_batch_end

    def noted(self: PathTraining, *arguments: Any) -> None:
        seen.append((self.global_step, torch.cat([x.detach().flatten() for x in self.network.parameters()]).double()))
        end(self, *arguments)

    monkeypatch.setattr(PathTraining, "on_train_batch_end", noted)
    model = GroupDiffusion(Torus(1), "flow", width=8, depth=1)
    model.fit(torch.rand(64, 1, generator=seeded(0)), steps=12, batch_size=16, learning_rate=0.1, progress=False)
    weights = torch.cat([x.detach().flatten() for x in model.network.parameters()]).double()
    average = None
    for step, current in seen:
        decay = (1 + step) / (10 + step)
        average = current if average is None else decay * average + (1 - decay) * current
    assert average is not None
    assert [step for step, _ in seen] == list(range(1, 13))
    begun = float((average - weights).abs().max())
    last = float((seen[-1][1] - weights).abs().max())
    # the average begins at the weights before the first step, of which 2e-5 are left
    assert begun < 0.05 * last, (begun, last)


def test_noise_mixes_high_modes_of_angles_beside_rotations() -> None:
    """In this basis exp(i (x - 2 y)) of the angles decays at a rate of 1/40, and no entry slower than 1/2."""
    across, along = torch.tensor([2.0, 1.0]) / 5**0.5, torch.tensor([-1.0, 2.0]) / 5**0.5
    scale = torch.eye(5)
    scale[0, :2], scale[1, :2] = 5.0 * across, 0.1 * along
    group = DirectProduct(Torus(2), SO(3), scale=scale)
    mode = 0.5 * float((scale[:, :2] @ torch.tensor([1.0, -2.0])).square().sum())
    assert mode == pytest.approx(0.025)
    assert terminal_std(group, group.identity(8), 8.0) ** 2 * mode >= 8.0


@pytest.mark.parametrize(
    "group",
    [
        SO(3, scale=[1.0, 1.0, 0.1]),
        SO(3, scale=[1.0, 1.0, 0.2]),
        SU(2, scale=[1.0, 1.0, 0.2]),
        SU(2, scale=[1.0, 0.2, 0.2]),
        SO(4, scale=[1.0, 1.0, 1.0, 1.0, 1.0, 0.2]),
        U(2, scale=[1.0, 1.0, 1.0, 0.1]),
        SO(3, scale=[10.0, 10.0, 2.0]),
    ],
    ids=lambda group: f"{group}-{group.scale.tolist()}",
)
def test_targets_of_anisotropic_noise(group: LieGroup) -> None:
    """They were up to 1e9: noise was too wide, and its factors fell where the exponential is singular."""
    data = group.random(1000, std=0.05, generator=seeded(0))
    path = DiffusionPath.of_terminal_std(group, terminal_std(group, data, 8.0))
    squares = path.training_batch(data, seeded(1)).target.square().sum(-1)
    assert float(squares.mean()) < 4.0 * group.dim
    assert float(squares.max()) < 2000.0


@pytest.mark.parametrize("group", [SO(3, scale=[1.0, 1.0, 0.1]), SU(2, scale=[1.0, 0.1, 0.1])], ids=repr)
def test_anisotropic_noise_ends_at_haar(group: LieGroup) -> None:
    """Entries, and those of the adjoint representation, which on SU(2) is slower, have mean zero."""
    widest = terminal_std(group, group.identity(8), 8.0)
    path = DiffusionPath.of_terminal_std(group, widest)
    w = path.sample_terminal(group.identity(2000, dtype=torch.float64), seeded(0))
    adjoint = group.Ad(w) * group.scale[:, None] / group.scale
    for entries, size in ((w, group.element_shape[0]), (adjoint, 3)):
        # each of mean square 1 / size at most
        assert float(entries.mean(0).abs().max()) < 4.0 / math.sqrt(2000.0 * size)
    # and what stands for none is narrow: data were blurred
    assert path.schedule.variance(0.0, path.start_time) < (0.0015 * widest) ** 2


def test_noise_that_cannot_be_simulated() -> None:
    """It was made of so few factors that their scores were infinite."""
    group = SO(3, scale=[1.0, 0.01, 0.01])
    data = group.random(20, std=0.1, generator=seeded(0))
    for kind in ("diffusion", "momentum"):
        model = GroupDiffusion(group, kind, width=8, depth=1)
        with pytest.raises(ConfigurationError, match=r"scale: expected axes of .* of more nearly equal lengths"):
            model.fit(data, steps=1, progress=False)
        assert model.fitted is None
    # where the heat kernel is known nothing is simulated
    product = DirectProduct(SO(3), Torus(1), scale=[1.0, 1.0, 1.0, 0.01])
    fitted_path("diffusion", product, product.random(20, generator=seeded(0)))


@pytest.mark.parametrize("kind", ["diffusion", SLOW_MOMENTUM])
def test_noise_mixes_the_determinant(kind: str) -> None:
    """Of data whose determinant is one, noise that moves it little left it where it was; the distribution is Haar's."""
    group = U(2, scale=[1.0, 1.0, 1.0, 0.1])
    data = group.exp(0.3 * torch.randn(2000, 4, generator=seeded(0)) * torch.tensor([1.0, 1.0, 1.0, 0.0]))
    path, base = fitted_path(kind, group, data)
    for g in (path.sample_terminal(data, seeded(1)), base.sample(2000, seeded(2))):
        assert float(torch.linalg.det(group.to_complex(g)).mean().abs()) < 0.08


def _by_angle(h: Tensor, n: Tensor) -> Tensor:
    cos, sin = h.cos(), h.sin()
    return torch.cat([cos * n[..., :1] - sin * n[..., 1:], sin * n[..., :1] + cos * n[..., 1:]], -1)


@pytest.mark.parametrize(
    "group",
    [
        DirectProduct(Torus(1), Translation(1), scale=[[1.0, 0.3], [0.0, 1.0]]),
        SemidirectProduct(Torus(1), Translation(2), _by_angle),
        pytest.param(DirectProduct(Torus(1), Translation(1)), marks=pytest.mark.slow(reason="the joined angles stay")),
    ],
    ids=["joined", "semidirect", "product"],
)
def test_densities_have_mass_one(group: LieGroup) -> None:
    """With respect to angles and coordinates; where angles are joined to others it used to be a part of 2 pi."""
    data = group.exp(0.3 * torch.randn(500, group.dim, generator=seeded(0)))
    model = GroupDiffusion(group, "flow", width=8, depth=1).fit(data, steps=20, batch_size=64, progress=False)
    side = torch.tensor([2.0 * math.pi, *[5.0] * (group.dim - 1)])
    box = side * (torch.quasirandom.SobolEngine(group.dim, scramble=True, seed=1).draw(2048) - 0.5)
    density = model.log_prob(box, tolerance=1e-2).exp() * side.prod()
    assert float(density.mean()) == pytest.approx(1.0, abs=0.25)


def test_bad_input() -> None:
    for arguments, match in ((("SO",), "LieGroup"), ((SO(3), "score"), "kind"), ((SO(3), "flow", -1), "seed")):
        with pytest.raises(ConfigurationError, match=match):
            GroupDiffusion(*arguments)  # type: ignore[arg-type]
    model = GroupDiffusion(SO(3), width=8, depth=1)
    with pytest.raises(ConfigurationError, match="fitted"):
        model.sample(3)
    with pytest.raises(ShapeError, match="samples"):
        model.fit(torch.zeros(3, 3))
    with pytest.raises(ShapeError, match="at least two"):
        model.fit(SO(3).identity(1))
    with pytest.raises(NonFiniteError, match="samples"):
        model.fit(torch.full((4, 3, 3), math.nan))
    for wrong in (2.0 * SO(3).identity(4), -SO(3).identity(4), torch.zeros(4, 3, 3)):
        with pytest.raises(DomainError, match=r"samples: expected elements of SO\(3\), got 4 rows that are not"):
            model.fit(wrong)
    with pytest.raises(ConfigurationError, match="seconds"):
        model.fit(SO(3).identity(4), seconds=0.0)
    with pytest.raises(ConfigurationError, match=r"samples: expected float32 or float64, got torch\.float16"):
        model.fit(SO(3).identity(4).half())
    for kind in KINDS:
        with pytest.raises(DomainError, match="samples: expected elements that differ"):
            GroupDiffusion(SE(2), kind, width=8, depth=1).fit(SE(2).random(1).expand(8, 2, 3))


def test_distributions_of_samples_in_fewer_dimensions() -> None:
    """Two samples, many times: in float32 their covariance is not positive by itself."""
    rows = Translation(3).random(2, generator=seeded(0)).repeat(2000, 1)
    distribution = fit_base_distribution(Translation(3), rows)
    drawn = distribution.sample(4000, seeded(1))
    assert torch.isfinite(distribution.log_prob(drawn)).all()
    assert torch.allclose(drawn.std(0), rows.std(0), rtol=0.1)
    with pytest.raises(DomainError, match="scale_tril: expected a distribution of vectors that are logarithms"):
        NormalDistribution(SO(3), SO(3).identity(), torch.full((3,), 50.0), 0.1 * torch.eye(3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [Torus(2), SO(3), SE(2), affine_line()], ids=repr)
def test_entropy_of_known_laws(group: LieGroup, kind: str) -> None:
    """The likelihood of a fitted distribution is within 0.02 nats a dimension of its entropy."""
    if group.is_compact:
        kernel = heat_kernel(group)
        assert kernel is not None
        draw = lambda n, seed: kernel.sample(torch.full((n,), 0.2), seeded(seed))  # noqa: E731
        exact = lambda g: kernel.log_density(g, g.new_full((len(g),), 0.2))  # noqa: E731
    else:
        distribution = noise_log_density(group, 0.2)
        draw = lambda n, seed: group.random(n, std=0.2**0.5, generator=seeded(seed))  # noqa: E731
        exact = lambda g: distribution(g) - 0.5 * group.dim * math.log(2.0 * math.pi * 0.2)  # noqa: E731
    model = GroupDiffusion(group, kind, width=128, depth=2)
    model.fit(draw(20_000, 0), steps=6000, progress=False)
    test = draw(2000, 1)
    gap = float((exact(test) - model.log_prob(test)).mean())
    assert abs(gap) < 0.02 * group.dim, gap
    if not group.is_compact:
        z = stein_z_scores(
            group, lambda g: -exact(g), model.sample(2000, generator=seeded(2)), [lambda g: g.flatten(1)[:, 0]]
        )
        assert float(z.abs().max()) < 6.0
