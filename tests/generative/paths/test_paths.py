"""Probability paths: targets of the network of kinetic diffusion, whose frame makes the momentum matter little."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.helpers import affine_line, assert_relative, seeded
from trivgeo.errors import CheckpointError, ConfigurationError
from trivgeo.generative import GroupDiffusion, fit_base_distribution
from trivgeo.generative.distributions import NormalDistribution
from trivgeo.generative.fitted import FittedPath
from trivgeo.generative.paths import DiffusionPath, FlowMatchingPath, KineticPath
from trivgeo.generative.paths import diffusion as diffusion_path
from trivgeo.generative.paths.flow_matching import structure_scale
from trivgeo.generative.paths.noising import num_noise_factors, stratified
from trivgeo.groups import SE, SO, SU, DirectProduct, LieGroup, Torus, Translation
from trivgeo.networks import content_hash, read_file
from trivgeo.sde import GeometricSchedule
from trivgeo.sde.noise import KineticNoise

T = 0.7


def at_one_time(group: LieGroup) -> KineticPath:
    """All levels are the same time."""
    return KineticPath(KineticNoise(group, 1.3, 6), T, T * (1.0 + 1e-9))


@pytest.mark.parametrize("group", [Torus(2), SO(3), affine_line()], ids=repr)
def test_targets_make_the_score(group: LieGroup) -> None:
    """The process turns the targets of a batch into those of its noise, whose mean is the score."""
    path, clean = at_one_time(group), group.random(20, generator=seeded(2), dtype=torch.float64)
    batch = path.training_batch(clean, seeded(0))
    generator = seeded(0)
    noise = path.noise.sample(T + 0.0 * stratified(20, clean, generator), generator)
    score = path.process(lambda *_: batch.target).score
    assert score is not None
    found = score(group.compose(clean, noise.elements), noise.momentum, T)
    assert_relative(found, noise.target, 1e-6)


def test_frame() -> None:
    """Of one clean element: nearer to the noise in units of its size, by half, than targets in the frame of g."""
    group, path = SO(4), at_one_time(SO(4))
    batch = path.training_batch(group.identity(4000, dtype=torch.float64), seeded(0))
    variance, covariance, given = (float(x) for x in path.noise.moments(torch.tensor(T)))
    assert batch.momentum is not None
    noise = group.log(batch.elements) / (variance * given) ** 0.5

    def missed(part: float) -> float:
        answer = group.coadjoint(group.exp(part * covariance * batch.momentum), batch.target)
        slope = (answer * noise).sum() / noise.square().sum()
        return float((answer - slope * noise).square().mean())

    own = missed(0.0)
    assert own < 0.6 * missed(0.5)
    assert own < 0.6 * missed(-0.5)


@pytest.mark.parametrize("group", [SO(3), SO(4), SU(3)], ids=repr)
def test_levels_by_the_noise_of_their_targets(group: LieGroup) -> None:
    """Of one clean element, weights are about one over the variance of targets; noisy levels are drawn more often."""
    number = 8000
    path = KineticPath(KineticNoise(group, 4.0 / 2.0, 8), 0.03, 3.5)
    batch = path.training_batch(group.identity(number, dtype=torch.float64), seeded(0))
    edges = torch.tensor([0.0, 0.5, 0.7, 0.85, 0.95])
    density = []
    for low, high in itertools.pairwise(edges):
        rows = (batch.level >= low) & (batch.level < high)
        noise = float((batch.target[rows].square().mean(-1) * batch.weight[rows]).mean())
        assert 0.7 < noise < 1.2, (low, noise)
        density.append((float(rows.sum()) / number / float(high - low), float((1.0 / batch.weight[rows]).mean())))
    for (a, v), (b, w) in itertools.pairwise(density):
        assert b / a == pytest.approx((w / v) ** 0.75, rel=0.1)
    abelian = KineticPath(KineticNoise(Torus(2)), 0.03, 3.5).training_batch(torch.zeros(8, 2), seeded(0))
    assert torch.equal(abelian.weight, torch.ones(8))
    assert_relative(abelian.level.diff(), torch.full((7,), 1.0 / 8.0), 1e-5)


def test_older_files(tmp_path: Path) -> None:
    """Networks that learned in another frame, or from other entries, are refused; on tori nothing has changed."""
    for group in (Torus(2), SO(3), Translation(2)):
        base, settings = KineticPath.fit_base(group, group.random(8)), {"widest": 2.8}
        model = GroupDiffusion(group, "momentum", width=8, depth=1)
        model.fitted = FittedPath(KineticPath.build(group, settings, base), base, settings)
        path = tmp_path / f"{group!r}.safetensors"
        model.save(path)
        file = read_file(path)
        header = {**file.entry("trivgeo.GroupDiffusion"), "version": [1, 1]}  # as it was written once
        entries = {"trivgeo.GroupDiffusion": json.dumps(header)}
        save_file(file.tensors, path, metadata={**entries, "checksum": content_hash(entries, file.tensors)})
    GroupDiffusion.load(tmp_path / "Torus(2).safetensors", Torus(2))
    with pytest.raises(
        CheckpointError, match=r"expected versions \[2, 1\] of targets and inputs of a network of kind 'momentum'"
    ):
        GroupDiffusion.load(tmp_path / "SO(3).safetensors", SO(3))
    with pytest.raises(CheckpointError, match=r"expected versions \[1, 2\] .* got \[1, 1\]; fit the model again"):
        GroupDiffusion.load(tmp_path / "Translation(2).safetensors", Translation(2))


def test_files_of_particles_of_no_power(tmp_path: Path) -> None:
    """A header that says that particles may be absent, of a model on one group."""
    group, path = Torus(2), tmp_path / "model.safetensors"
    base, settings = KineticPath.fit_base(group, group.random(8)), {"widest": 2.8}
    model = GroupDiffusion(group, "momentum", width=8, depth=1)
    model.fitted = FittedPath(KineticPath.build(group, settings, base), base, settings)
    model.save(path)
    file = read_file(path)
    entries = {"trivgeo.GroupDiffusion": json.dumps({**file.entry("trivgeo.GroupDiffusion"), "masked": True})}
    save_file(file.tensors, path, metadata={**entries, "checksum": content_hash(entries, file.tensors)})
    with pytest.raises(CheckpointError, match="expected a power of a group"):
        GroupDiffusion.load(path, group)


def test_density_of_a_perfect_network() -> None:
    """Of a normal distribution: exact for every momentum, though noise of this width still shows where it began."""
    spread = 0.5
    path = KineticPath.of_terminal_std(Translation(1), 2.0 * spread)
    data = spread * torch.randn(200_000, 1, generator=seeded(0), dtype=torch.float64)
    distribution = fit_base_distribution(Translation(1), path.sample_terminal(data, seeded(1)))

    def network(g: Tensor, level: Tensor, momentum: Tensor | None) -> Tensor:
        width = path._coefficients(path._time(level))[1]
        return width * g / (spread**2 + width**2)

    at = torch.linspace(-1.5, 1.5, 7, dtype=torch.float64).unsqueeze(-1)
    found = path.log_density(network, at, distribution.log_prob, seeded(2), 1e-7, None)
    exact = torch.distributions.Normal(0.0, spread).log_prob(at[:, 0].double())
    assert torch.allclose(found, exact, atol=0.01), found - exact
    averaged = path.with_draws(2).log_density(network, at[::3], distribution.log_prob, seeded(2), 1e-5, None)
    assert torch.allclose(averaged, exact[::3], atol=0.01)
    drawn = path.sample(network, distribution.sample(20_000, seeded(3)), seeded(4), 1e-5)
    assert float(drawn.std()) == pytest.approx(spread, rel=0.02)


def test_factors_of_noise() -> None:
    """As ever where the basis is isotropic or the group not compact; elsewhere as many as the longest axis asks for."""
    for group in (
        SO(4),
        SO(4, scale=0.1),
        SE(3),
        SE(3, scale=[1.0, 1.0, 1.0, 50.0, 50.0, 50.0]),
        Torus(6, scale=[1.0] * 5 + [9.0]),
    ):
        assert [num_noise_factors(group, v) for v in (0.1, 8.0, 1e3)] == [6, 12, 32]
    long = SO(3, scale=[10.0, 1.0, 1.0])
    assert [num_noise_factors(long, v) for v in (0.01, 1.0, 8.0)] == [6, 41, 324]
    assert num_noise_factors(long, 8.0, time=2.0) == 13
    # of poses with far translations: rotations have noise as far
    assert [num_noise_factors(DirectProduct(SO(3), Translation(3)), v) for v in (1.0, 8.0, 1e3)] == [6, 12, 800]


def test_targets_of_the_last_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are unbiased: E[T_i f(w)] = -E[X_i f(w)], of f the entries."""
    monkeypatch.setattr(diffusion_path, "_MAX_TARGET_FACTORS", 3)
    monkeypatch.setattr(diffusion_path, "MAX_USUAL_FACTORS", 3)
    group = SO(3, scale=[1.0, 0.7, 0.5])
    noise = DiffusionPath(group, GeometricSchedule(0.01, 1.0))
    variance = torch.full((40_000,), 0.8, dtype=torch.float64)
    w, target = noise._noise(variance, 6, seeded(0))
    moved = torch.einsum("bac,icd->biad", w, group.hat(torch.eye(3, dtype=torch.float64)))
    sums = target[..., None, None] * w.unsqueeze(1) + moved
    assert float((sums.mean(0).abs() / (sums.std(0) / len(w) ** 0.5)).max()) < 4.5
    assert float(moved.mean(0).abs().max()) > 0.2


class TestCoupling:
    def test_optimal_assignment(self) -> None:
        """On the line the optimal coupling keeps the order."""
        group = Translation(1)
        data = torch.randn(40, 1, generator=seeded(0))
        path = FlowMatchingPath(group, fit_base_distribution(group, data), 1.0).with_coupling("optimal")
        batch = path.training_batch(data, seeded(1))
        drawn = (data + batch.target).flatten()
        assert torch.equal(drawn.argsort(), data.flatten().argsort())
        independent = path.with_coupling("independent").training_batch(data, seeded(1))
        assert torch.allclose((data + independent.target).sort(0).values, drawn.unsqueeze(-1).sort(0).values, atol=1e-5)

    def test_squares_fall(self) -> None:
        """On a curved group pairs are no farther apart, and most of them exist."""
        group = SE(3)
        data = group.random(60, std=1.0, generator=seeded(0))
        path = FlowMatchingPath(group, fit_base_distribution(group, data), 1.0)
        optimal, independent = (
            path.with_coupling(coupling).training_batch(data, seeded(1)).target
            for coupling in ("optimal", "independent")
        )
        assert float(optimal.nan_to_num(10.0).square().sum()) < 0.8 * float(independent.nan_to_num(10.0).square().sum())

    def test_model(self) -> None:
        """It learns the same distribution, and refuses what a coupling would bias."""
        data = 0.3 * torch.randn(500, 1, generator=seeded(0))
        fit = {"batch_size": 64, "learning_rate": 5e-3, "progress": False, "coupling": "optimal"}
        model = GroupDiffusion(Torus(1), "flow", width=16, depth=1).fit(data, steps=150, **fit)
        assert float((model.sample(200, generator=seeded(0), steps=10).abs() < 1.0).float().mean()) > 0.8
        for kind, given in (("diffusion", {}), ("flow", {"condition": 1})):
            model = GroupDiffusion(Torus(1), kind, width=8, depth=1, **given)
            with pytest.raises(ConfigurationError, match="coupling: expected 'independent'"):
                model.fit(data, data if given else None, steps=1, **fit)
        with pytest.raises(ConfigurationError, match="coupling"):
            GroupDiffusion(Torus(1), "flow").fit(data, steps=1, progress=False, coupling="best")


class TestScheduler:
    """Flow matching in times in which the distance from the data shrinks by factors."""

    RESOLUTION = 0.01

    def path(self, resolution: float = RESOLUTION) -> FlowMatchingPath:
        group = Translation(1)
        base = NormalDistribution(group, group.identity(dtype=torch.float64), torch.zeros(1), 2.0 * torch.eye(1))
        return FlowMatchingPath(group, base, 1.7, resolution=resolution)

    @pytest.mark.parametrize("resolution", [RESOLUTION, 1.0, math.inf])
    def test_elements_are_at_their_distance(self, resolution: float) -> None:
        """Their times are half the distance, and half its logarithm above the resolution."""
        path, data = self.path(resolution), torch.randn(3000, 1, generator=seeded(0), dtype=torch.float64)
        batch = path.training_batch(data, seeded(1))
        share = (batch.elements - data) / (path.speed * batch.target)
        level = torch.linspace(0.0, 1.0, 1001, dtype=torch.float64)
        found = path.spread(level) / path.speed
        assert torch.allclose(share.flatten() * path.speed, path.spread(batch.level), rtol=1e-6, atol=1e-9)
        assert float(found[0]) == 0.0
        if resolution < math.inf:
            logs = (found / resolution).asinh() / math.asinh(1.0 / resolution)
            assert torch.allclose(0.5 * found + 0.5 * logs, level, atol=1e-12)
        growth = torch.tensor([path._growth(t) for t in level.tolist()], dtype=torch.float64)
        assert torch.allclose(torch.cumulative_trapezoid(growth, level), found[1:], atol=1e-5)
        if resolution == math.inf:
            assert torch.allclose(found, level, rtol=1e-15)

    def test_density(self) -> None:
        """With the mean velocity in closed form, that of a normal distribution narrower than the resolution."""
        path, std = self.path(), 3e-3
        data = std * torch.randn(5, 1, generator=seeded(0), dtype=torch.float64)

        def network(g: Tensor, level: Tensor, momentum: Tensor | None) -> Tensor:
            a = (path.spread(level) / path.speed).unsqueeze(-1)  # x = (1 - a) x_1 + a x_0, of variance 4 at the base
            mean = (4.0 * a - std**2 * (1.0 - a)) / ((1.0 - a).square() * std**2 + 4.0 * a.square())
            return mean * g / path.speed

        found = path.log_density(network, data, path.base.log_prob, None, 1e-6, None)
        expected = torch.distributions.Normal(0.0, std).log_prob(data).sum(-1)
        assert torch.allclose(found, expected, atol=1e-3)
        drawn = path.sample_in_steps(network, path.base.sample(2000, seeded(1)).double(), None, 200)
        assert float(drawn.std()) == pytest.approx(std, rel=0.1)

    @pytest.mark.parametrize("repeats", [1, 3])
    def test_resolution_is_the_scale_of_the_structure(self, repeats: int) -> None:
        """The width of modes, in any dimension; the least for curves and copies; all for data that fill the group."""

        def scale(group: LieGroup, data: Tensor) -> float:
            return structure_scale(group, data.repeat(repeats, *[1] * len(group.element_shape)), group.dim, 1e-3, 2.0)

        for group, width in ((Torus(1), 0.1), (SO(3), 0.1), (SE(2), 0.05), (Torus(1, scale=[0.5]), 0.1)):
            which = torch.randint(4, (2000,), generator=seeded(5))
            modes = group.random(4, std=1.0, generator=seeded(0))[which]
            narrow = group.compose(modes, group.random(2000, std=width, generator=seeded(1)))
            assert width / 2.0 < scale(group, narrow) < 6.0 * width
            assert scale(group, modes) == 1e-3
        for compact in (Torus(2), SO(3), SU(2)):
            assert scale(compact, compact.random_haar(2000, generator=seeded(2))) > 0.6
        turns = torch.linspace(0.0, 6.0, 2000).unsqueeze(-1) * torch.tensor([1.0, 0.3, 0.2])
        assert scale(SO(3), SO(3).exp(turns)[torch.randperm(2000, generator=seeded(3))]) < 0.02
        assert scale(SO(3), SO(3).random(2, generator=seeded(4))) == 2.0

    def test_older_settings_have_constant_speed(self) -> None:
        path = self.path()
        older = FlowMatchingPath.build(path.group, {"speed": 1.7}, path.base)
        assert older.resolution == math.inf
        newer = FlowMatchingPath.build(path.group, {"speed": 1.7, "resolution": 0.01}, path.base)
        assert newer.resolution == 0.01
        for bad in (-1.0, 0.0, math.nan, math.inf, None):
            with pytest.raises(ConfigurationError, match="resolution"):
                FlowMatchingPath.build(path.group, {"speed": 1.7, "resolution": bad}, path.base)


def test_draws_of_momenta() -> None:
    """More of them raise the estimate of the density, which for one is a lower bound in the mean, and steady it."""
    group = Torus(1)
    data = group.random(300, std=0.5, generator=seeded(0))
    model = GroupDiffusion(group, "momentum", width=16, depth=1).fit(data, steps=20, batch_size=64, progress=False)
    repeated = data[:8].repeat(4, 1)
    one, many = (
        model.log_prob(repeated, num_draws=n, tolerance=0.3, generator=seeded(n)).unflatten(0, (4, 8)) for n in (1, 4)
    )
    assert float(many.mean()) > float(one.mean())
    assert float(many.std(0).mean()) < float(one.std(0).mean())
    with pytest.raises(ConfigurationError, match="num_draws"):
        model.log_prob(data[:1], num_draws=0)


class TestFactors:
    def test_noise_of_each_factor(self) -> None:
        """Rotations and shifts have noise of their own size; particles of a power share theirs."""
        group = DirectProduct(SO(3), Translation(2))
        data = group.random(2000, std=0.1, generator=seeded(0))
        wide = group.join(group.split(data)[0], 50.0 * group.split(data)[1])
        for samples, ratio in ((data, 0.2 / 2.83), (wide, 10.0 / 2.83)):
            settings, base = DiffusionPath.fit(group, samples, seeded(1))
            stds = [settings["widest"] * r for r in settings["ratios"]]
            assert stds[1] / stds[0] == pytest.approx(ratio, rel=0.1)
            noised = DiffusionPath.build(group, settings, base).sample_terminal(samples, seeded(2))
            rotation, shift = group.split(noised)
            assert float(rotation.mean(0).abs().max()) < 0.06  # Haar's, not more than that
            assert float(shift.std()) == pytest.approx(math.sqrt(1.25) * stds[1], rel=0.1)
        assert "ratios" not in DiffusionPath.fit(SE(2) ** 2, (SE(2) ** 2).random(50, std=0.2), seeded(1))[0]

    @pytest.mark.parametrize("kind", [DiffusionPath, KineticPath])
    def test_density(self, kind: type[DiffusionPath | KineticPath]) -> None:
        """With the score in closed form, that of two normal distributions of widths far apart."""
        group, std = DirectProduct(Translation(1), Translation(1)), torch.tensor([0.01, 3.0], dtype=torch.float64)
        data = std * torch.randn(4000, 2, generator=seeded(0), dtype=torch.float64)
        settings, _ = kind.fit(group, data, seeded(1))
        ratios = torch.tensor(settings["ratios"], dtype=torch.float64)
        path = kind.build(group, settings, fit_base_distribution(group, data))

        def sigma(level: Tensor) -> Tensor:
            if isinstance(path, DiffusionPath):
                return path.schedule.variance(0.0, level).sqrt().unsqueeze(-1)
            return path._coefficients(path._time(level))[1]

        def network(g: Tensor, level: Tensor, momentum: Tensor | None) -> Tensor:
            return sigma(level) * ratios * g / (std.square() + (ratios * sigma(level)).square())

        last = (std.square() + (ratios * sigma(torch.ones((), dtype=torch.float64))).square()).sqrt().flatten()
        base = NormalDistribution(group, group.identity(dtype=torch.float64), torch.zeros_like(last), last.diag())
        found = path.log_density(network, data[:5], base.log_prob, seeded(2), 1e-6, None)
        expected = torch.distributions.Normal(0.0, std).log_prob(data[:5]).sum(-1)
        assert torch.allclose(found, expected, atol=0.02)
