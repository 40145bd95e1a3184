"""Calibration of learned inverters: densities by quadrature, coverage of a known distribution, outliers, the gate."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.helpers import assert_relative, randn, seeded
from trivgeo.errors import CheckpointError, ConfigurationError, ShapeError
from trivgeo.groups import SE, SO
from trivgeo.inversion import LearnedInverter, Population, PosteriorSample, PosteriorSampler, bounds
from trivgeo.inversion.learned import Calibration, LandmarksBackbone, PointsBackbone, backbone_for, calibration
from trivgeo.inversion.learned import posterior_density as density_fit
from trivgeo.inversion.learned.calibration import (
    REASONS,
    _coverage,
    _distribution_tensors,
    _joint_thresholds,
    calibration_size,
)
from trivgeo.inversion.learned.posterior_density import DensityFit, _Mass, fit_density, mixture_of_draws
from trivgeo.inversion.posterior import InverseProblem
from trivgeo.inversion.sampling.mixture import StudentMixture
from trivgeo.inversion.stages import CalibratedDraws, Descend, OutlierCheck
from trivgeo.networks import read_file, write_file

GROUP = SE(2)
SHAPE = torch.tensor([[1.0, 0.0], [0.0, 0.6], [-0.8, 0.1], [0.2, -0.3], [-0.2, -0.5], [0.7, 0.4]])
NOISE = 0.05


def clean(number: int, generator: torch.Generator) -> Tensor:
    """Landmarks without symmetry, each a little moved."""
    return SHAPE + NOISE * torch.randn(number, *SHAPE.shape, generator=generator)


def transformations(number: int, generator: torch.Generator, wide: float = 1.0) -> Tensor:
    """Turns up to half a right angle, shifts up to a half."""
    u = torch.rand(number, 3, generator=generator) - 0.5
    return GROUP.exp(wide * u * torch.tensor([math.pi / 2, 1.0, 1.0]))


@pytest.fixture(scope="module")
def trained() -> LearnedInverter:
    return LearnedInverter(GROUP.action(), seed=0).fit(clean, transformations, steps=120, batch_size=64)


def with_settings(inverter: LearnedInverter, **settings: object) -> LearnedInverter:
    """An inverter of the same score and calibration."""
    assert inverter.score is not None
    other = LearnedInverter.from_score(inverter.score, **settings)
    other.calibration = inverter.calibration
    return other


def spread_of(mixture: StudentMixture) -> Tensor:
    """Standard deviations along the coordinates of mixtures of one mode, the root of their mean square."""
    variance = (mixture.factors @ mixture.factors.mT).diagonal(dim1=-2, dim2=-1)[:, 0].mean(0)
    return (variance * mixture.degrees / (mixture.degrees - 2)).sqrt()


@pytest.mark.parametrize("by", ["size of a datum", "memory"])
def test_network_sees_no_more_than_memory_allows(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws and features of a calibration too, and steps of the training: without an energy as with one."""
    sizes: list[int] = []

    class Watching(torch.nn.Linear):
        def forward(self, y: Tensor, level: Tensor) -> Tensor:
            sizes.append(len(y))
            return super().forward(y.flatten(1)).tanh().unflatten(1, (3, 100)).mean(-1)

    memory = None
    if by == "memory":  # of the outputs of `tanh`, twice, and a little
        memory = 16.9 * 2 * 300 * 4 / 2**30
    else:
        monkeypatch.setattr(bounds, "_CPU_BYTES", 16 * SHAPE.numel() * SHAPE.element_size())
    inverter = LearnedInverter(GROUP.action(), backbone=Watching(12, 300), steps=2, seed=0, max_memory=memory)
    inverter.fit(clean, transformations, steps=2, batch_size=20 if by == "memory" else 8, progress=False)
    assert max(sizes) == 16
    inverter.log_prob(transformations(40, seeded(1)), clean(40, seeded(0)))
    inverter(clean(40, seeded(0)))
    assert max(sizes) == 16


def test_a_loss_in_blocks(trained: LearnedInverter) -> None:
    """Loss and gradient are those of all data at once."""
    score = copy.deepcopy(trained.score)
    assert score is not None
    score.requires_grad_(True)
    found = []
    for number in (None, 7):
        score.zero_grad()
        loss = score.loss(clean(20, seeded(0)), seeded(1), number)
        loss.backward()
        found.append([loss, *(parameter.grad for parameter in score.backbone.parameters())])
    torch.testing.assert_close(*found)


def test_a_calibration_of_blocks(trained: LearnedInverter) -> None:
    """Data that are moved a few at a time are others, as many, and as well covered."""
    score = trained.score
    assert score is not None
    small = LearnedInverter.from_score(score, max_memory=1e-4).calibrate(clean, transformations)
    whole = LearnedInverter.from_score(score).calibrate(clean, transformations)
    assert small.calibration is not None
    assert whole.calibration is not None
    assert small.calibration.num_data == whole.calibration.num_data
    assert abs(small.calibration.coverage[0.5] - whole.calibration.coverage[0.5]) < 0.12
    assert not torch.equal(small.calibration.get_buffer("clean_mean"), whole.calibration.get_buffer("clean_mean"))


def test_most_elements_without_logarithms(trained: LearnedInverter) -> None:
    """As a network finds them that has hardly been trained: the matrix that measures errors stays finite."""
    assert trained.score is not None
    errors = torch.full((50, 3), math.nan)
    errors[:10] = randn(10, 3, seed=1).float()
    tensors = _distribution_tensors(trained.score, transformations, errors, 0)
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


class TestDensity:
    def test_on_rotations(self) -> None:
        """Mass one for Haar measure of mass one, by the rule of midpoints; of a network that knows next to nothing."""
        turns = lambda n, g: SO(2).exp(2.0 * torch.rand(n, 1, generator=g) - 1.0)  # noqa: E731
        inverter = LearnedInverter(SO(2).action(), seed=0).fit(clean, turns, steps=20, batch_size=32)
        x = clean(3, seeded(0))
        angle = (torch.arange(2000) + 0.5) * 2 * math.pi / 2000
        density = inverter.log_prob(SO(2).exp(angle.unsqueeze(-1)).expand(3, -1, -1, -1), x).exp()
        assert_relative(density.mean(-1), torch.ones(3), 0.02)
        assert (density.amax(-1) > 1.5).all()
        assert torch.equal(inverter.log_prob(SO(2).identity(3), x), inverter.log_prob(SO(2).identity(3), x))

    def test_on_rigid_motions(self, trained: LearnedInverter) -> None:
        """Haar measure is that of angle and shift; in a basis twice as long it counts an eighth."""
        x = GROUP.action()(transformations(1, seeded(1)), clean(1, seeded(2)))
        best = with_settings(trained, num_hypotheses=64)(x, generator=seeded(0)).elements
        angle, place = torch.atan2(best[..., 1, 0], best[..., 0, 0]), best[..., 2]
        axes = []
        for values in (angle, place[..., 0], place[..., 1]):
            middle, reach = float(values.mean()), 5.0 * float(values.std())
            axes.append(torch.linspace(middle - reach, middle + reach, 45))
        t, a, b = torch.meshgrid(*axes, indexing="ij")
        rows = [torch.stack([t.cos(), -t.sin(), a], -1), torch.stack([t.sin(), t.cos(), b], -1)]
        g = torch.stack(rows, -2).reshape(1, -1, 2, 3)
        cell = math.prod(float(axis[1] - axis[0]) for axis in axes)
        mass = float(trained.log_prob(g, x).exp().sum()) * cell
        assert abs(mass - 1.0) < 0.03
        double = LearnedInverter.from_score(trained.score, backbone=None)  # type: ignore[arg-type]
        double.calibration = trained.calibration
        double._problem.action = SE(2, scale=2.0).action()
        off = double.log_prob(g[:, :9], x) - trained.log_prob(g[:, :9], x)
        assert_relative(off, torch.full((1, 9), math.log(8.0)), 1e-4)

    def test_of_draws(self) -> None:
        """Two wells of weights .75 and .25 with covariances of their own, whatever is not finite."""
        v = 0.05 * randn(4, 64, 3, seed=1) * torch.tensor([1.0, 2.0, 0.5])
        centres = GROUP.exp(torch.tensor([[1.2, 0.0, 0.5], [-1.5, 1.0, 0.0]]).double())
        g = GROUP.compose(centres[(torch.arange(64) >= 48).long()], GROUP.exp(v))
        g[0, 5] = torch.nan
        mixture = mixture_of_draws(GROUP, g)
        assert_relative(mixture.log_shares.exp()[1:, :2], torch.tensor([0.75, 0.25]).double().expand(3, 2), 1e-6)
        assert (GROUP.distance(mixture.centres[:, :2], centres) < 0.1).all()
        sizes = (mixture.factors @ mixture.factors.mT).diagonal(dim1=-2, dim2=-1).sqrt()
        assert_relative(sizes[:, 0].mean(0), torch.tensor([0.05, 0.1, 0.025]).double(), 0.15)
        nothing = mixture_of_draws(GROUP, torch.full((1, 8, 2, 3), torch.nan).double())
        assert torch.isfinite(nothing.sample(8, seeded(0))[0]).all()

    def test_the_place_in_a_batch_does_not_matter(self, trained: LearnedInverter) -> None:
        """Copies of a datum have one density, alone, reversed and with a generator, and whatever is beside them."""
        g = transformations(5, seeded(0))
        x = GROUP.action()(g, clean(5, seeded(1)))
        bare = with_settings(trained)
        bare.calibration = None
        for inverter in (trained, bare, with_settings(trained, num_hypotheses=16)):
            together = inverter.log_prob(g, x)
            assert_relative(inverter.log_prob(g.flip(0), x.flip(0)).flip(0), together, 1e-4, floor=1e-3)
            assert_relative(inverter.log_prob(g[3:4], x[3:4]), together[3:4], 1e-4, floor=1e-3)
            drawn = inverter.log_prob(g[:1].expand(4, -1, -1), x[:1].expand(4, -1, -1), generator=seeded(3))
            assert float(drawn.max() - drawn.min()) < 1e-3
            assert float((drawn[0] - together[0]).abs()) > 1e-4  # other draws

    def test_another_basis(self) -> None:
        """The density of a draw is the same, but for the volume of the basis."""
        mixture = mixture_of_draws(GROUP, GROUP.exp(0.1 * randn(2, 32, 3)))
        other = SE(2, scale=[2.0, 0.5, 3.0])
        g = GROUP.exp(0.1 * randn(2, 5, 3, seed=2))
        there = mixture.in_basis_of(other).log_density(g)
        assert_relative(there - mixture.log_density(g), torch.full((2, 5), math.log(3.0)).double(), 1e-6)

    def test_refused(self, trained: LearnedInverter) -> None:
        with pytest.raises(ShapeError, match="3 data"):
            trained.log_prob(GROUP.identity(2), clean(3, seeded(0)))
        with pytest.raises(ConfigurationError, match="trained"):
            LearnedInverter(GROUP.action()).log_prob(GROUP.identity(2), clean(2, seeded(0)))


class TestCoverage:
    @pytest.mark.parametrize(
        "factor", [0.5, *(pytest.param(f, marks=pytest.mark.slow(reason="the narrow stay")) for f in (1.0, 2.0))]
    )
    def test_of_a_known_law(self, factor: float) -> None:
        """Posteriors that are too narrow or too wide by a factor, about means of which the truth is a draw."""
        std = torch.tensor([0.1, 0.3, 0.2]).double()
        g = GROUP.exp(std * randn(600, 3, seed=3))
        mixture = mixture_of_draws(GROUP, GROUP.exp(factor * std * randn(600, 32, 3, seed=4)))
        fitted = fit_density(mixture, g)(mixture)
        assert_relative(spread_of(fitted), std, 0.12, floor=0.0)
        covered = _coverage(mixture, g, 0)
        assert abs(covered[0] - 0.5) < 0.05
        assert abs(covered[1] - 0.9) < 0.03

    def test_of_data_that_were_not_fitted(self) -> None:
        """Every second element is four times as far off: of a region of .9 for one half the other has its own share."""
        std = torch.tensor([0.02, 0.08]).double().repeat(300).unsqueeze(-1)
        g = GROUP.exp(std * randn(600, 3, seed=3))
        mixture = mixture_of_draws(GROUP, GROUP.exp(0.04 * randn(600, 64, 3, seed=4)))
        radius = stats.chi2(3).ppf(0.9)
        known = 0.5 * (stats.chi2(3).cdf(radius / 16) + stats.chi2(3).cdf(radius * 16))
        assert abs(_coverage(mixture, g, 0)[1] - known) < 0.04

    def test_of_each_part(self) -> None:
        """Posteriors too narrow along some coordinates and too wide along others: each is covered afterwards."""
        std, factor = torch.tensor([0.1, 0.3, 0.2]).double(), torch.tensor([0.5, 2.0, 1.0]).double()
        g = GROUP.exp(std * randn(600, 3, seed=3))
        mixture = mixture_of_draws(GROUP, GROUP.exp(factor * std * randn(600, 32, 3, seed=4)))
        fitted = fit_density(mixture, g)(mixture)
        assert_relative(spread_of(fitted), std, 0.12, floor=0.0)
        rank = (GROUP.log(fitted.sample(59, seeded(1))[0]) < GROUP.log(g).unsqueeze(1)).double().mean(1)
        for mass, error in ((0.5, 0.06), (0.9, 0.04)):
            share = ((rank - 0.5).abs() <= 0.5 * mass).double().mean(0)
            assert (share - mass).abs().max() < error

    def test_of_modes(self) -> None:
        """Of the draws .7 are of the larger mode, of the truths 49 in 58: the power of the shares is two."""
        far = GROUP.exp(torch.tensor([2.0, 0.5, -0.5]).double())
        near, std = GROUP.identity(dtype=torch.float64), torch.tensor([0.1, 0.2, 0.1]).double()
        centre = lambda first: torch.where(first[..., None, None], near, far)  # noqa: E731
        draws = GROUP.compose(centre(torch.arange(60) < 42), GROUP.exp(std * randn(580, 60, 3, seed=1)))
        g = GROUP.compose(centre(torch.arange(580) < 490), GROUP.exp(std * randn(580, 3, seed=2)))
        mixture = mixture_of_draws(GROUP, draws)
        fit = fit_density(mixture, g)
        assert abs(fit.power - 2.0) < 0.15
        assert_relative(fit(mixture).log_shares[:, 0].exp(), torch.full((580,), 49 / 58).double(), 0.02)
        assert_relative(fit(mixture).log_shares.exp().sum(-1), torch.ones(580).double(), 1e-12)
        assert DensityFit()(mixture).log_shares[0, 0].exp() == pytest.approx(0.7)

    def test_hypotheses_of_both_modes(self, trained: LearnedInverter) -> None:
        """Draws of two modes, 3 in 4 of the one: hypotheses have the shares of the density, and come in no order."""
        assert trained.score is not None
        assert trained.calibration is not None
        centres = GROUP.exp(torch.tensor([[-1.0, 0.0, 0.0], [1.0, 2.0, 0.0]]))
        draws = GROUP.compose(centres[(torch.arange(64) >= 48).long()], GROUP.exp(0.05 * randn(50, 64, 3).float()))
        stage = CalibratedDraws(trained.score, trained.calibration, 40)
        posterior = InverseProblem(GROUP.action()).given(clean(50, seeded(0)))
        found = stage(posterior, Population(draws, torch.zeros(50, 64, dtype=torch.int64)), seeded(1)).elements
        second = (found[..., 0, 2] > 1.0).double()
        known = trained.calibration.density(trained.score, draws).log_shares[:, 1].exp().mean()
        assert 0.01 < float(known) < 0.3
        assert abs(float(second.mean()) - float(known)) < 0.02
        assert abs(float(second[:, :20].mean()) - float(known)) < 0.03

    def test_energies_rank_draws_of_the_reverse_diffusion(self, trained: LearnedInverter) -> None:
        """With an energy no density is drawn from: its draws are wider, and take 64 chains."""
        assert trained.score is not None
        moved = GROUP.action()(transformations(20, seeded(1)), clean(20, seeded(0)))
        looks = []
        for energy in (None, lambda y: y.square().sum((-2, -1))):
            inverter = LearnedInverter.from_score(trained.score, energy, num_hypotheses=6)
            inverter.calibration = trained.calibration
            result = inverter(moved, generator=seeded(2))
            looks.append(result.network_evaluations)
            if energy is not None:
                restored = GROUP.action()(GROUP.inverse(result.elements), moved.unsqueeze(1))
                lowest = torch.vmap(energy, 1, 1)(restored).argmin(1)
                assert torch.equal(result.best(), result.elements[torch.arange(20), lowest])
        assert looks[0] > 64 * 8 > 7 * 8 > looks[1]

    def test_of_an_error_of_its_own(self) -> None:
        """Draws of many widths about a centre that is off by an error which they do not have."""
        width, error = 0.2 * torch.rand(800, 1, 1).double(), torch.tensor([0.1, 0.02, 0.05]).double()
        centre = GROUP.exp(error * randn(800, 3, seed=5))
        mixture = mixture_of_draws(GROUP, GROUP.exp(width * randn(800, 48, 3, seed=6)))
        g = GROUP.compose(centre, GROUP.exp(width[:, 0] * randn(800, 3, seed=7)))
        fit = fit_density(mixture, g)
        assert_relative(torch.tensor(fit.noise).double(), error, 0.25, floor=0.0)
        assert_relative(torch.tensor(fit.spreads).double(), torch.ones(3).double(), 0.12)
        wider = fit(mixture).factors
        both = mixture.factors * mixture.factors.new_tensor(fit.spreads).unsqueeze(-1)
        sums = both @ both.mT + torch.diag(mixture.factors.new_tensor(fit.noise).square())
        assert_relative(wider @ wider.mT, sums, 1e-12)
        assert torch.equal(wider, wider.tril())

    def test_where_nothing_is_known(self) -> None:
        """Uniform posteriors on rotations: the density over its mass is one over the volume."""
        group = SO(3)
        g, draws, others = (
            group.random_haar(*shape, generator=seeded(seed), dtype=torch.float64)
            for seed, shape in enumerate(((200,), (200, 64), (200, 50)))
        )
        mixture = mixture_of_draws(group, draws)
        fitted = fit_density(mixture, g)(mixture)
        mass = fitted.log_mass(4096)
        assert float(mass.exp().mean()) < 0.7
        found = fitted.log_density(others) - mass.unsqueeze(-1)
        # three standard errors of the mass, whose draws all data share
        assert abs(float(found.mean()) + math.log(8 * math.pi**2)) < 0.04

    @pytest.mark.parametrize("width", [0.3, pytest.param(3.0, marks=pytest.mark.slow(reason="the narrower stays"))])
    def test_mass(self, width: float) -> None:
        """By importance sampling from another mixture, against the share of draws that are logarithms."""
        group = SE(2)
        unit, log_shares = group.identity(400, 2).double(), torch.tensor([0.8, 0.2]).log().double().expand(400, 2)
        narrow, wide = (
            StudentMixture(
                group, unit, torch.diag(s * torch.tensor([1.0, 2.0, 0.5]).double()).expand(400, 2, 3, 3), log_shares
            )
            for s in (1.0, width)
        )
        mass = _Mass.of(narrow)(wide).exp().mean()
        assert_relative(mass, wide.log_mass(4096)[0].exp(), 0.03)

    def test_of_nothing(self) -> None:
        """Elements that have no logarithm anywhere change nothing."""
        mixture = mixture_of_draws(GROUP, GROUP.exp(randn(4, 16, 3)))
        assert fit_density(mixture, torch.full((4, 2, 3), torch.nan).double()) == DensityFit()

    def test_is_said(self, trained: LearnedInverter) -> None:
        known = trained.calibration
        assert isinstance(known, Calibration)
        assert list(known.coverage) == [0.5, 0.9]
        assert "in regions of 50%" in repr(trained)
        assert known.as_dict()["coverage"] == list(known.coverage.values())
        assert len(known.fit.spreads) == len(known.fit.noise) == 3

    @pytest.mark.slow
    def test_of_landmarks(self) -> None:
        """What fit says of its posteriors, and of outliers, on landmarks that it never saw."""
        inverter = LearnedInverter(GROUP.action(), seed=0).fit(clean, transformations, steps=600, batch_size=64)
        assert inverter.calibration is not None
        g, x = transformations(600, seeded(11)), clean(600, seeded(12))
        moved = GROUP.action()(g, x)
        draws = with_settings(inverter, num_hypotheses=100)(moved, generator=seeded(0)).elements
        values = inverter.log_prob(torch.cat([g.unsqueeze(1), draws], 1), moved)
        below = (values[:, 1:] < values[:, :1]).double().mean(-1)
        for mass, low, high in ((0.5, 0.45, 0.55), (0.9, 0.86, 0.94)):
            assert low < inverter.calibration.coverage[mass] < high
            assert low < float((below >= 1.0 - mass).double().mean()) < high
        flagged = lambda data: 1.0 - float(inverter(data, generator=seeded(0)).trusted.double().mean())  # type: ignore[attr-defined]  # noqa: E731
        assert flagged(moved) <= 0.06
        assert flagged(x) <= 0.06
        assert flagged(torch.randn(600, 6, 2, generator=seeded(13))) >= 0.95
        assert flagged(GROUP.action()(transformations(600, seeded(14), wide=3.0), x)) >= 0.94  # one in 27 may be drawn
        left = GROUP.log(GROUP.compose(GROUP.inverse(inverter(moved).best()), g))
        assert float((left[:, 0].abs() > 1.0).double().mean()) < 0.01


class TestCalibrate:
    def test_a_score_without_one(self, trained: LearnedInverter, monkeypatch: pytest.MonkeyPatch) -> None:
        """The measured coverage is right on further data; without a calibration nothing is flagged."""
        monkeypatch.setattr(calibration, "_MAX_DATA", 400)
        assert trained.score is not None
        bare = LearnedInverter.from_score(trained.score)
        assert bare.calibrate(clean, transformations) is bare
        assert bare.calibration is not None
        assert 0.4 < bare.calibration.coverage[0.5] < 0.6
        assert 0.85 < bare.calibration.coverage[0.9] < 0.95
        noise = torch.randn(50, *SHAPE.shape, generator=seeded(5))
        assert not bare(noise).trusted.any()
        assert float(bare(clean(200, seeded(6))).trusted.float().mean()) > 0.85

    def test_of_a_wider_law(self, trained: LearnedInverter, monkeypatch: pytest.MonkeyPatch) -> None:
        """Elements of the wider distribution are then known ones."""
        monkeypatch.setattr(calibration, "_MAX_DATA", 200)
        assert trained.score is not None
        wide = LearnedInverter.from_score(trained.score).calibrate(
            clean, lambda n, generator: transformations(n, generator, 2.0)
        )
        moved = GROUP.action()(transformations(200, seeded(7), 2.0), clean(200, seeded(8)))
        flagged = [float((~inverter(moved).trusted).float().mean()) for inverter in (trained, wide)]
        assert flagged[1] < flagged[0]

    def test_few_data(self, trained: LearnedInverter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of data that the training saw no coverage is stated, here or in a file; a tensor is used a bounded number
        of times."""
        monkeypatch.setattr(density_fit, "_MAX_ITERATIONS", 1)
        few = LearnedInverter(GROUP.action(), seed=0).fit(clean(5, seeded(0)), transformations, steps=2, batch_size=8)
        few.save(tmp_path / "few.safetensors")
        for inverter in (few, LearnedInverter.load(tmp_path / "few.safetensors", GROUP.action())):
            assert inverter.calibration is not None
            assert inverter.calibration.coverage == {}
            assert "coverage not known" in repr(inverter.calibration)
            (verdict,) = inverter(clean(1, seeded(1))).verdicts
            assert "few clean data" in str(verdict.assumptions)
        many = with_settings(trained).calibrate(clean(48, seeded(0)), transformations)
        assert many.calibration is not None
        assert many.calibration.num_data == calibration_size(None, 8, 1, 64, 8) == 128
        assert many.calibration.coverage.keys() == {0.5, 0.9}
        assert not many(clean(1, seeded(1))).verdicts[0].assumptions
        # as many evaluations for several chains as for one, and never fewer data than a fit takes
        assert calibration_size(None, 8, 16, 64, None) * 8 * (12 * 16 + 64) <= 500_000
        assert calibration_size(1, 8, 1, 64, None) == 64

    def test_refused(self, trained: LearnedInverter) -> None:
        before = trained.calibration
        for number in (1, 6, 47):
            with pytest.raises(ShapeError, match=f"at least 48 data, got {number}"):
                trained.calibrate(clean(number, seeded(0)), transformations)
        with pytest.raises(ConfigurationError, match="expected one that was trained"):
            LearnedInverter(GROUP.action()).calibrate(clean, transformations)
        with pytest.raises(ShapeError):
            trained.calibrate(torch.randn(20, 3), transformations)
        with pytest.raises(ShapeError):
            trained.calibrate(clean, lambda n, generator: transformations(n + 1, generator))
        assert trained.calibration is before


class TestOutliers:
    def test_thresholds(self) -> None:
        """Of independent scores a tail each, together the share asked for; of two populations the stricter ones."""
        scores = torch.empty(20_000, 3).exponential_(generator=seeded(0))
        thresholds, share = _joint_thresholds([scores, 0.5 * scores], 0.05)
        assert 0.04 < share <= 0.05
        assert_relative(thresholds, torch.full((3,), -math.log(1 - 0.95 ** (1 / 3))), 0.06)

    def test_scores_that_are_none(self, trained: LearnedInverter) -> None:
        """NaN is flagged, in the thresholds as in the answers; the thresholds are of scores that are numbers."""
        scores = torch.empty(100_000, 1).exponential_(generator=seeded(0))
        scores[:1000] = torch.nan
        thresholds, share = _joint_thresholds([scores], 0.05)
        assert 0.045 < share <= 0.05
        assert_relative(thresholds, torch.tensor([-math.log((share - 0.01) / 0.99)]), 0.01)
        _, all_of_them = _joint_thresholds([torch.full((10, 1), torch.nan)], 0.05)
        assert all_of_them == 1.0
        lame = copy.deepcopy(trained)
        assert lame.score is not None
        with torch.no_grad():
            next(lame.score.backbone.parameters()).fill_(torch.nan)
        known = lame.calibration
        assert known is not None
        verdicts = known.verdicts(lame.score, clean(3, seeded(0)), GROUP.identity(3))
        assert all(set(REASONS[:2]) <= set(verdict.reasons) for verdict in verdicts)
        assert not known.looks_clean(lame.score, clean(3, seeded(0)), GROUP.identity(3)).any()

    def test_says_why(self, trained: LearnedInverter) -> None:
        x = clean(200, seeded(3))
        moved = GROUP.action()(transformations(200, seeded(4)), x)
        result = trained(moved, generator=seeded(0))
        assert float(result.trusted.double().mean()) > 0.85
        assert [bool(text) for text in result.reasons] == (~result.trusted).tolist()
        noise = trained(torch.randn(200, 6, 2, generator=seeded(5)))
        assert float(noise.trusted.double().mean()) < 0.1
        far = trained(GROUP.action()(GROUP.exp(torch.tensor([0.0, 2.5, -2.5])), x))
        assert not far.trusted.any()
        assert all(set(text.split("; ")) <= set(REASONS) for text in (*noise.reasons, *far.reasons))
        assert f"{int(result.trusted.sum())} trusted" in repr(result)
        assert "an estimate by a network, not a weighted sample" in repr(result)
        assert bool(result.has_usable.all())

    def test_moved_elements_are_not_checked(self, trained: LearnedInverter) -> None:
        x = clean(2, seeded(0))
        ranked = with_settings(trained)
        ranked._problem = copy.deepcopy(ranked._problem)
        onward = LearnedInverter.from_score(trained.score, lambda y: y.square().sum((1, 2)))  # type: ignore[arg-type]
        onward.calibration = trained.calibration
        assert onward(x).stage_verdicts is not None
        assert onward.then(Descend(1))(x).stage_verdicts is None

    def test_in_a_file(self, trained: LearnedInverter, tmp_path: Path) -> None:
        trained.save(tmp_path / "inverter.safetensors")
        loaded = LearnedInverter.load(tmp_path / "inverter.safetensors", GROUP.action())
        x = torch.cat([clean(20, seeded(1)), torch.randn(20, 6, 2, generator=seeded(2))])
        assert loaded(x).reasons == trained(x).reasons  # type: ignore[attr-defined]
        assert loaded.calibration is not None
        assert trained.calibration is not None
        assert loaded.calibration.as_dict() == trained.calibration.as_dict()
        assert any(isinstance(stage, OutlierCheck) for stage in loaded.stages)
        file = read_file(tmp_path / "inverter.safetensors")
        broken = {name: file.entry(name) for name in ("score", "inverter")} | {"calibration": {"coverage": [1.0]}}
        assert trained.score is not None
        write_file(trained.score.backbone, tmp_path / "broken.safetensors", broken)
        with pytest.raises(CheckpointError, match="calibration"):
            LearnedInverter.load(tmp_path / "broken.safetensors", GROUP.action())

    def test_an_older_file(self, trained: LearnedInverter, tmp_path: Path) -> None:
        """Without the power, the noise and the degrees of freedom, and with elements in other units."""
        known = trained.calibration
        assert known is not None
        assert trained.score is not None
        spread = torch.tensor([0.5, 1.0, 2.0])
        entry = {name: value for name, value in known.as_dict().items() if name not in ("power", "noise", "degrees")}
        tensors = {name: tensor for name, tensor in known.named_buffers() if name != "law_white"}
        old = Calibration.of(entry | {"scales": [0.5, 2.0]}, tensors | {"law_spread": spread})
        assert old.fit == DensityFit(1.0, known.fit.spreads, scales=(0.5, 2.0), degrees=24)
        assert_relative(old.get_buffer("law_white"), torch.diag(1.0 / spread), 1e-6)
        trained.save(tmp_path / "new.safetensors")
        file = read_file(tmp_path / "new.safetensors")
        entries = {name: file.entry(name) for name in ("score", "inverter")} | {"calibration": entry}
        module = torch.nn.Module()
        for name, tensor in (tensors | {"law_spread": spread}).items():
            module.register_buffer(name, tensor)
        write_file(trained.score.backbone, tmp_path / "old.safetensors", entries, {"calibration": module})
        loaded = LearnedInverter.load(tmp_path / "old.safetensors", GROUP.action())
        assert loaded.calibration is not None
        assert loaded.calibration.fit.power == 1.0
        assert torch.isfinite(loaded.log_prob(GROUP.identity(2), clean(2, seeded(0)))).all()
        loaded.save(tmp_path / "again.safetensors")
        again = LearnedInverter.load(tmp_path / "again.safetensors", GROUP.action()).calibration
        assert again is not None
        assert again.as_dict() == loaded.calibration.as_dict()

    def test_a_student_has_its_own(self, trained: LearnedInverter) -> None:
        student = trained.distil(clean, steps=5, batch_size=32)
        assert student.calibration is not None
        assert student.calibration is not trained.calibration
        assert student(clean(2, seeded(0))).stage_verdicts is not None


class TestGate:
    def test_leaves_clean_data_alone(self, trained: LearnedInverter) -> None:
        gate = with_settings(trained, gate=True)
        x = clean(300, seeded(8))
        unit = GROUP.identity()
        same = lambda result: (result.best() == unit).flatten(1).all(1).double().mean()  # noqa: E731
        assert float(same(gate(x))) > 0.98
        assert float(same(trained(x))) == 0.0
        moved = GROUP.action()(transformations(300, seeded(9)), x)
        assert float(same(gate(moved))) < 0.1
        assert gate(x).network_evaluations == trained(x).network_evaluations + 1


class TestLandmarks:
    def test_are_told_by_their_order(self) -> None:
        x = clean(64, seeded(0))
        backbone = backbone_for(GROUP.action(), x)
        assert isinstance(backbone, LandmarksBackbone)
        assert_relative(backbone.mean, x.mean(0), 1e-6)
        order = torch.rand(64, 6, generator=seeded(1)).argsort(1)
        mixed = torch.take_along_dim(x, order.unsqueeze(-1), 1)
        assert isinstance(backbone_for(GROUP.action(), mixed), PointsBackbone)
        backbone.initialise(0)
        level = torch.full((64,), 0.3)
        assert not torch.allclose(backbone(x, level), backbone(mixed, level), atol=1e-3)
        assert backbone(x.double(), level.double()).dtype == torch.float64
        again = LandmarksBackbone(**backbone.architecture)
        again.load_state_dict(backbone.state_dict())
        assert torch.equal(again(x, level), backbone(x, level))
        with pytest.raises(ShapeError, match="landmarks"):
            backbone(x[:, :5], level)
        for wrong in ({"shape": [6]}, {"shape": [6, 2], "mean": [[0.0, 0.0]]}, {"shape": [6, 2], "std": [1.0]}):
            with pytest.raises(ConfigurationError, match=next(reversed(wrong))):
                LandmarksBackbone(3, **wrong)  # type: ignore[arg-type]


def test_proposals_of_a_posterior_sampler(trained: LearnedInverter) -> None:
    """In a basis in which poses are far away: the learned posterior knows where, at no energies."""
    x = GROUP.action()(transformations(24, seeded(21)), clean(24, seeded(22))).double()
    energy = lambda y: (y - SHAPE.double()).square().sum((-1, -2)) / (2 * NOISE**2)  # noqa: E731
    action = SE(2, scale=0.02).action()
    settings = {"num_samples": 60, "budget": 200}
    double = copy.deepcopy(trained).double()
    plain = PosteriorSampler(action, energy, **settings)(x, generator=seeded(0))  # type: ignore[arg-type]
    sampler = PosteriorSampler(action, energy, proposals=double, **settings)  # type: ignore[arg-type]
    learned = sampler(x, generator=seeded(0))
    exact = PosteriorSampler(action, energy, proposals=double, budget=4000)(x, generator=seeded(1))
    assert isinstance(plain, PosteriorSample)
    assert isinstance(learned, PosteriorSample)
    assert isinstance(exact, PosteriorSample)
    assert learned.energy_evaluations + learned.gradient_evaluations <= 200
    assert learned.network_evaluations > 0
    assert float(learned.effective_sample_size.mean()) > 1.3 * float(plain.effective_sample_size.mean())
    assert float((learned.log_evidence - exact.log_evidence).mean().abs()) < 0.1
    assert float((plain.log_evidence - exact.log_evidence).mean().abs()) > 0.2
