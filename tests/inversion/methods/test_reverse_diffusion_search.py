"""The published search on problems with known answers, its results, and its refusals."""

import math

import pytest
import torch
from torch import Tensor

from benchmarks.posterior import LeftTranslation
from tests.helpers import affine_line, assert_relative, randn, seeded
from tests.inversion.problems import DOMAIN, clean_problems, heat_group, operator_action
from trivgeo.actions import OperatorInput
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.groups import SO, PointAction, Similarity, Translation
from trivgeo.inversion import InversionResult, ReverseDiffusionSearch
from trivgeo.inversion.stages import Descend
from trivgeo.sde import GeometricSchedule
from trivgeo.sde.solvers import Resampling


def spring(points: Tensor) -> Tensor:
    """A quadratic energy of points ``[b, p, 2]``, standard deviation 0.4 of each."""
    return (points**2).sum((-1, -2)) / (2 * 0.4**2)


class TestGaussianPosterior:
    """Points x~ = g + noise under a quadratic energy: the posterior of g is normal, with mean that of the points."""

    SCHEDULE = GeometricSchedule(0.1, 3.0)

    def invert(self, x: Tensor, temperature: float, hypotheses: int = 2000) -> InversionResult:
        inverter = ReverseDiffusionSearch(
            Translation(2).action(),
            spring,
            self.SCHEDULE,
            steps=60,
            num_mc=32,
            num_hypotheses=hypotheses,
            temperature=temperature,
        )
        return inverter(x, generator=seeded(0))

    @pytest.mark.parametrize(
        "temperature", [pytest.param(1.0, marks=pytest.mark.slow(reason="the other temperature stays")), 4.0]
    )
    def test_mean_and_spread(self, temperature: float) -> None:
        x = torch.tensor([[[0.9, -0.6], [0.5, 0.2]], [[-1.0, 0.3], [-1.0, 0.3]]], dtype=torch.float64)
        result = self.invert(x, temperature)
        square = temperature * 0.4**2 / 2  # of the posterior, two points each
        share = square / (square + self.SCHEDULE.variance(0.0, 1.0))  # what is left of the start from k_1
        expected = x.mean(1) * (1 - share)
        slack = 0.04 + 4 * math.sqrt(square / 2000)
        assert float((result.elements.mean(1) - expected).abs().max()) < slack
        spread = result.elements.std(1) / math.sqrt(square)
        assert float((spread - 1).abs().max()) < 0.12
        best = result.best()
        assert float((best - x.mean(1)).abs().max()) < 0.05

    def test_result(self) -> None:
        x = randn(3, 2, 2)
        result = self.invert(x, 1.0, hypotheses=7)
        assert result.elements.shape == (3, 7, 2)
        assert result.energies.shape == result.num_masked_steps.shape == (3, 7)
        assert result.elements.dtype == torch.float64
        assert result.num_masked_steps.dtype == torch.long
        assert result.group.is_same_group(Translation(2))
        assert_relative(result.energies, spring_of_all(x, result.elements), 1e-12)
        assert torch.equal(result.has_usable, torch.ones(3, dtype=torch.bool))
        assert torch.equal(result.best_index(), result.energies.argmin(1))
        assert torch.equal(result.best_energy(), result.energies.amin(1))
        assert torch.equal(result.best(), result.elements[torch.arange(3), result.energies.argmin(1)])
        assert result.energy_evaluations == 7
        assert result.gradient_evaluations == 7 * 60 * 32
        assert torch.equal(self.invert(x, 1.0, hypotheses=7).elements, result.elements)

    def test_float32(self) -> None:
        assert self.invert(randn(2, 2, 2).float(), 1.0, hypotheses=3).elements.dtype == torch.float32


def spring_of_all(x: Tensor, g: Tensor) -> Tensor:
    return torch.stack(
        [torch.stack([spring((points - h)[None])[0] for h in row]) for points, row in zip(x, g, strict=True)]
    )


@pytest.mark.slow
def test_wells_of_unequal_width() -> None:
    """A narrow deep well far from a wide one: scores of few noise samples favour the wide one."""

    def energy(x: Tensor) -> Tensor:
        angle = -torch.atan2(x[..., 0, 1], x[..., 0, 0])
        narrow, wide = ((k * ((angle - a).cos() - 1.0)).exp() for k, a in ((30.0, 2.0), (6.0, -1.0)))
        return -torch.log(narrow + 0.2 * wide + 0.002)

    def variation(num_mc: int) -> float:
        inverter = ReverseDiffusionSearch(
            group.action(), energy, GeometricSchedule(0.1, 5.0), 60, num_mc, samples, 1.0, None
        )
        angles = group.log(inverter(given, generator=seeded(0)).elements)[0, :, 0].remainder(2.0 * math.pi)
        share = torch.bincount((angles * (bins / (2.0 * math.pi))).long() % bins, minlength=bins) / samples
        return float(0.5 * (share - exact).abs().sum())

    group, samples, bins = SO(2), 400, 12
    grid = group.exp((torch.arange(1200, dtype=torch.float64) + 0.5)[:, None] * (2.0 * math.pi / 1200))
    given = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    exact = torch.softmax(-energy(group.action()(group.inverse(grid), given)), 0).reshape(bins, -1).sum(-1)
    assert variation(2) > 0.3
    assert variation(64) < 0.12
    assert variation(512) < 0.09


class AffineLineAction(PointAction):
    """x -> e^a x + b on the line, the standard action of Aff(1)."""

    def __init__(self) -> None:
        super().__init__(affine_line(), (1,))

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        return g[..., :1].exp() * x + g[..., 1:]


def test_non_unimodular_posterior() -> None:
    """Points x~ under unit Gaussians: density exp(-E / T) for left Haar measure e^-a da db, moments by quadrature.

    Whichever side the noise is on; the published algorithm is off.
    """
    action = AffineLineAction()
    x = torch.tensor([[[1.2], [-0.9], [0.4]]], dtype=torch.float64)
    energy = lambda p: (p**2).sum((-1, -2)) / 2  # noqa: E731

    a = torch.linspace(-4.0, 5.0, 1201, dtype=torch.float64)[:, None]
    b = torch.linspace(-12.0, 12.0, 1201, dtype=torch.float64)[None, :]
    # the posterior in a is a power of e^-a for large a; hold it by a prior on the scale of the restored points
    prior = lambda p: 2.0 * torch.log(p.var(-2).squeeze(-1)) ** 2  # noqa: E731
    restored = (x[0, :, 0][:, None, None] - b) * (-a).exp()
    temperature = 1.25
    weight = torch.exp(-((restored**2).sum(0) / 2 + 2.0 * torch.log(restored.var(0)) ** 2) / temperature - a)
    weight = weight / weight.sum()
    mean = float((weight * a).sum())
    std = float((weight * (a - mean) ** 2).sum().sqrt())

    sampler = {"steps": 50, "num_mc": 12, "num_hypotheses": 1200, "temperature": temperature}
    options: list[dict] = [{}, {"side": "given"}, {"published": True}]
    means, deviations = [], []
    for option in options:
        inverter = ReverseDiffusionSearch(
            action, lambda p: energy(p) + prior(p), GeometricSchedule(0.1, 2.0), **sampler, **option
        )
        scales = inverter(x, generator=seeded(0)).elements[..., 0]
        means.append(float(scales.mean()))
        deviations.append(float(scales.std()))
    assert means[:2] == pytest.approx([mean] * 2, abs=0.06)
    assert deviations[:2] == pytest.approx([std] * 2, rel=0.1)
    assert means[2] - mean > 0.06


def test_log_determinant() -> None:
    """Three points on the line: kept, it weighs the scale e^a by e^(-3 a), which the moments by quadrature show."""
    action = AffineLineAction()
    x = torch.tensor([[[1.2], [-0.9], [0.4]]], dtype=torch.float64)

    def energy(p: Tensor) -> Tensor:
        return (p**2).sum((-1, -2)) / 2 + 2.0 * torch.log(p.var(-2).squeeze(-1)) ** 2

    a = torch.linspace(-4.0, 4.0, 801, dtype=torch.float64)[:, None]
    b = torch.linspace(-10.0, 10.0, 801, dtype=torch.float64)[None, :]
    restored = ((x[0, :, 0][:, None, None] - b) * (-a).exp()).movedim(0, -1).unsqueeze(-1)
    means = {}
    for log_det in (False, True):
        weight = torch.exp(-energy(restored) - 3.0 * a * log_det - a)  # e^-a da db is left Haar measure
        search = ReverseDiffusionSearch(action, energy, GeometricSchedule(0.1, 2.0), 40, 12, 600)
        found = search.replace(log_det=log_det)(x, generator=seeded(0)).elements[0, :, 0]
        means[log_det] = float((weight * a).sum() / weight.sum())
        assert float(found.mean()) == pytest.approx(means[log_det], abs=0.05)
    assert means[False] - means[True] > 0.12


class TestHeat:
    @staticmethod
    def transform(v: list[float], x: OperatorInput) -> tuple[Tensor, OperatorInput]:
        action = operator_action()
        g = action.group.exp(torch.tensor(v, dtype=torch.float64)).expand(x.initial.shape[0], -1)
        return g, action(g, x)

    def test_scaling_of_u(self) -> None:
        clean = clean_problems(3)
        g, transformed = self.transform([0.0, 0.0, 0.0, 0.0, 0.0, 0.8], clean)
        result = ReverseDiffusionSearch(
            operator_action(), DOMAIN, steps=100, num_mc=4, num_hypotheses=64, temperature=1e-3
        )(transformed, generator=seeded(0))
        assert float(result.best_energy().max()) < 0.02
        assert float((result.best()[:, -1] - g[:, -1]).abs().max()) < 0.1

    def test_mixed_transformation(self) -> None:
        clean = clean_problems(3)
        _, transformed = self.transform([0.2, 0.1, -0.2, 2.0, -1.0, 0.4], clean)
        action = operator_action()
        before = DOMAIN(transformed)
        result = ReverseDiffusionSearch(action, DOMAIN, steps=100, num_mc=4, num_hypotheses=64, temperature=1e-3)(
            transformed, generator=seeded(0)
        )
        assert (before > 0.3).all()
        assert (result.best_energy() < 0.05).all()
        restored = action(action.group.inverse(result.best()), transformed)
        assert_relative(DOMAIN(restored), result.best_energy(), 1e-10)
        # the time map and the scales are determined by the boxes
        assert float((restored.query - clean.query).abs().max()) < 0.25

    def test_options_change_the_sample(self) -> None:
        _, transformed = self.transform([0.2, 0.1, -0.2, 2.0, -1.0, 0.4], clean_problems(2))
        sizes = {"steps": 5, "num_mc": 2, "num_hypotheses": 3}
        plain = ReverseDiffusionSearch(operator_action(), DOMAIN, **sizes)(transformed, generator=seeded(0))
        others = [
            ReverseDiffusionSearch(operator_action(), DOMAIN, **sizes, **option)
            for option in ({"published": True}, {"max_score_norm": 0.1}, {"side": "given"})
        ]
        others.append(ReverseDiffusionSearch(operator_action(), DOMAIN, **sizes).replace(log_det=True))
        for other in others:
            elements = other(transformed, generator=seeded(0)).elements
            assert torch.isfinite(elements).all()
            assert not torch.equal(plain.elements, elements)

    def test_progress(self) -> None:
        seen: list[tuple[int, int]] = []
        inverter = ReverseDiffusionSearch(operator_action(), DOMAIN, steps=4, num_hypotheses=2).then(Descend(2))
        inverter.replace(progress=lambda done, total: seen.append((done, total)))(clean_problems(1))
        assert seen == [(i, 6) for i in range(1, 7)]


class TestResult:
    def test_undefined_hypotheses(self) -> None:
        energies = torch.tensor([[math.inf, 2.0, 1.0], [math.inf, math.inf, math.inf], [math.nan, 3.0, 4.0]])
        elements = torch.arange(9.0).reshape(3, 3, 1)
        result = InversionResult(Translation(1).action(), elements, energies, torch.zeros(3, 3, dtype=torch.long), 0, 0)
        assert result.has_usable.tolist() == [True, False, True]
        assert result.best_energy().tolist() == [1.0, math.inf, 3.0]
        assert result.best()[[0, 2], 0].tolist() == [2.0, 7.0]

    def test_steps_without_an_energy_are_counted(self) -> None:
        """One datum has none anywhere, another one everywhere, a third beyond a wall of which chains stay."""

        def energy(y: Tensor) -> Tensor:
            wall = torch.where(y[:, 0, 0] < -1.0, torch.inf, y.square().sum((1, 2)))
            return torch.where(y[:, 1, 0] > 50.0, torch.nan, wall)

        x = torch.tensor([[[0.0], [99.0]], [[9.0], [0.0]], [[0.0], [0.0]]])
        for options in ({}, {"keep_best": True, "pruning": [(0.5, 6)]}):
            search = ReverseDiffusionSearch(Translation(1).action(), energy, steps=10, num_hypotheses=8, **options)
            result = search(x, generator=seeded(0))
            assert (result.num_masked_steps[0] == 10).all()
            assert (result.num_masked_steps[1] == 0).all()
            assert (result.num_masked_steps[2] < 10).all()
            chains = result.energies.shape[1]
            assert f"{int((~result.energies.isfinite()).sum())} of {3 * chains} hypotheses ended" in repr(result)
            assert int((~result.energies.isfinite()).sum()) >= chains

    def test_chains_that_leave_are_said(self) -> None:
        """Without a bound of scores, on a group that scales: what is not finite at the end has masked steps."""
        group = Similarity(2)
        centre = group.exp(torch.tensor([1.0, 0.0, 0.0, 0.0]).double())
        x = centre.expand(2, *centre.shape).contiguous()
        action = LeftTranslation(group)

        def energy(y: Tensor) -> Tensor:
            return 50 * group.log(y).square().sum(-1)

        result = ReverseDiffusionSearch(action, energy, max_score_norm=None, steps=20, num_hypotheses=24)(
            x, generator=seeded(0)
        )
        off = ~torch.isfinite(result.energies)
        assert off.any()
        assert (result.num_masked_steps[off] > 0).all()
        assert f"{int(off.sum())} of 48 hypotheses ended where no energy is finite" in repr(result)
        bounded = ReverseDiffusionSearch(action, energy, steps=20, num_hypotheses=24)(x, generator=seeded(0))
        assert torch.isfinite(bounded.energies).all()
        assert (bounded.num_masked_steps == 0).all()
        assert "hypotheses ended" not in repr(bounded)


class TestBadInput:
    @pytest.mark.parametrize("name", ["steps", "num_mc", "num_hypotheses"])
    @pytest.mark.parametrize("value", [0, -1, True, 2.0, None])
    def test_counts(self, name: str, value: object) -> None:
        with pytest.raises(ConfigurationError, match=name):
            ReverseDiffusionSearch(operator_action(), DOMAIN, **{name: value})

    @pytest.mark.parametrize("name", ["temperature", "max_score_norm"])
    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
    def test_bounds(self, name: str, value: float) -> None:
        with pytest.raises(ConfigurationError, match=name):
            ReverseDiffusionSearch(operator_action(), DOMAIN, **{name: value})

    def test_unknown_settings(self) -> None:
        """Those of every inverter come by `replace`."""
        known = "schedule, steps, num_mc, num_hypotheses, temperature, max_score_norm, side, keep_best, pruning"
        for name in ("max_evaluations", "stepps"):
            with pytest.raises(ConfigurationError, match=f"settings: expected some of {known}, published, got {name}"):
                ReverseDiffusionSearch(operator_action(), DOMAIN, **{name: 3})
        assert ReverseDiffusionSearch(operator_action(), DOMAIN).replace(max_evaluations=3).max_evaluations == 3

    def test_steppers(self) -> None:
        """Resampled chains are refused, with the name of what samples."""
        for name in ("stepper", "resampling"):
            with pytest.raises(ConfigurationError, match=f"{name}: expected no stepper.*PosteriorSampler"):
                ReverseDiffusionSearch(operator_action(), DOMAIN, **{name: Resampling()})

    def test_temperature_is_needed(self) -> None:
        with pytest.raises(ConfigurationError, match="temperature"):
            ReverseDiffusionSearch(operator_action(), DOMAIN, temperature=None)  # type: ignore[arg-type]

    def test_action_and_energy(self) -> None:
        with pytest.raises(ConfigurationError, match="action"):
            ReverseDiffusionSearch(heat_group(), DOMAIN)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="energy"):
            ReverseDiffusionSearch(operator_action(), "domain")  # type: ignore[arg-type]

    def test_arrays_and_lists(self) -> None:
        inverter = ReverseDiffusionSearch(Translation(2).action(), spring, steps=2, num_hypotheses=2)
        x = randn(3, 1, 2).float()
        for same in (x.numpy(), x.tolist()):
            assert torch.equal(inverter(same, generator=seeded(0)).elements, inverter(x, generator=seeded(0)).elements)
        pair = clean_problems(2)
        search = ReverseDiffusionSearch(operator_action(), DOMAIN, steps=2, num_hypotheses=2)
        arrays = OperatorInput(*(part.numpy() for part in pair))
        assert torch.equal(search(arrays, generator=seeded(0)).elements, search(pair, generator=seeded(0)).elements)
        for bad, error in ((x.long().numpy(), ConfigurationError), ([["a"]], ConfigurationError), ([1.0], ShapeError)):
            with pytest.raises(error):
                inverter(bad)

    def test_data(self) -> None:
        """Before the first step."""
        x = clean_problems(2)
        calls: list[int] = []
        inverter = ReverseDiffusionSearch(operator_action(), DOMAIN, steps=2).replace(
            progress=lambda done, total: calls.append(done)
        )
        bad = x.initial.clone()
        bad[0, 0, 2] = math.nan
        with pytest.raises(NonFiniteError):
            inverter(OperatorInput(bad, x.query))
        with pytest.raises(ShapeError):
            inverter(OperatorInput(x.initial[0], x.query[0]))
        with pytest.raises(ConfigurationError):
            inverter(x.initial)
        assert calls == []
