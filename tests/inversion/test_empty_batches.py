"""No data: every inverter returns an empty result of the usual shapes, and all that is made of it is empty."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.helpers import randn
from trivgeo.actions import ImageWarp
from trivgeo.groups import SE
from trivgeo.inversion import (
    ITS,
    GradientDescent,
    Inverter,
    KineticLangevin,
    LearnedInverter,
    LieLAC,
    PosteriorSampler,
    ReverseDiffusionSearch,
    TestTimeEquivariant,
)
from trivgeo.inversion.energies import LeastSquares, NearestPoints, PairedPoints
from trivgeo.inversion.learned import LearnedScore, PointsBackbone, calibration, posterior_density
from trivgeo.inversion.stages import Descend, Laplace, LevenbergMarquardt, Newton, Replicate
from trivgeo.sde import GeometricSchedule

ACTION = SE(2).action()
NONE = torch.zeros(0, 5, 2)


def energy(x: Tensor) -> Tensor:
    return x.square().flatten(1).sum(1)


def learned(chains: int) -> Inverter:
    score = LearnedScore(ACTION, GeometricSchedule(0.1, 1.0), PointsBackbone(3, 2, width=8))
    return LearnedInverter.from_score(score, num_hypotheses=chains)


INVERTERS = [
    (ReverseDiffusionSearch(ACTION, energy, steps=3, num_hypotheses=4), 4),
    (GradientDescent(ACTION, energy, steps=2), 64),
    (LieLAC(ACTION, energy), 64),
    (ITS(ACTION, energy), 3),
    (KineticLangevin(ACTION, energy, steps=3), 4),
    (PosteriorSampler(ACTION, energy, num_samples=8, budget=200), 8),
    (Inverter(ACTION, None, []), 1),
    (Inverter(ACTION, energy, [Replicate(4), Descend(2), Newton(2)], max_evaluations=2, log_det=True), 4),
    (Inverter(ACTION, LeastSquares(PairedPoints(randn(5, 2).float())), [LevenbergMarquardt(2), Laplace(4)]), 4),
    (Inverter(ACTION, LeastSquares(NearestPoints(randn(9, 2).float())), [LevenbergMarquardt(2)]), 1),
    (learned(1), 1),
    (learned(4), 4),
]


@pytest.mark.parametrize(("inverter", "chains"), INVERTERS, ids=lambda x: type(x).__name__)
def test_inverters(inverter: Inverter, chains: int) -> None:
    result = inverter(NONE, generator=torch.Generator().manual_seed(0))
    assert result.elements.shape == (0, chains, 2, 3)
    assert result.energies.shape == (0, chains)
    assert result.best().shape == (0, 2, 3)
    assert result.best_energy().shape == result.has_usable.shape == (0,)
    assert result.restore(NONE).shape == NONE.shape
    assert result.modes().weights.shape[0] == 0
    assert "0 data" in repr(result)
    assert "0 data" in result._repr_html_()
    for ensemble in ("best", "mean"):
        model = TestTimeEquivariant(lambda x: x.sum(1), inverter, ensemble=ensemble)  # type: ignore[arg-type]
        assert model(NONE).shape == (0, 2)


@pytest.mark.parametrize(("chains", "ranked"), [(1, False), (16, False), (16, True)])
def test_calibrated_inverters(chains: int, ranked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their stages, densities and verdicts; the calibration itself is a short one."""
    monkeypatch.setattr(calibration, "MIN_DATA", 8)
    monkeypatch.setattr(calibration, "_MAX_EVALUATIONS", 1)
    monkeypatch.setattr(posterior_density, "_DEGREES", (6,))
    monkeypatch.setattr(posterior_density, "_MAX_ITERATIONS", 1)
    inverter = LearnedInverter.from_score(
        LearnedScore(ACTION, GeometricSchedule(0.1, 1.0), PointsBackbone(3, 2, width=8)),
        energy if ranked else None,
        num_hypotheses=chains,
        steps=2,
        gate=True,
    )
    inverter.calibrate(
        lambda n, g: torch.randn(n, 5, 2, generator=g), lambda n, g: SE(2).exp(torch.randn(n, 3, generator=g))
    )
    result = inverter(NONE)
    assert result.elements.shape == (0, chains, 2, 3)
    assert result.trusted.shape == (0,)
    assert result.best().shape == (0, 2, 3)
    assert inverter.log_prob(torch.zeros(0, 2, 3), NONE).shape == (0,)
    assert inverter.log_prob(torch.zeros(0, 7, 2, 3), NONE).shape == (0, 7)
    sample = PosteriorSampler(ACTION, energy, proposals=inverter, num_samples=8, budget=200)(NONE)
    assert sample.elements.shape == (0, 8, 2, 3)


def test_images() -> None:
    """With a guard, whose weight is an energy of empty images."""
    none = torch.zeros(0, 1, 8, 8)
    result = ReverseDiffusionSearch(ImageWarp(SE(2)), energy, steps=2, num_hypotheses=3)(none)
    assert result.elements.shape == (0, 3, 2, 3)
    assert result.restore(none).shape == none.shape
