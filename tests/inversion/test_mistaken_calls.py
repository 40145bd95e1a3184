"""Mistakes in calls that used to end in errors of torch or Python: each is said in words of the library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.helpers import randn
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import SE, SO
from trivgeo.inversion import TIED, GradientDescent, Inverter, LearnedInverter, TestTimeEquivariant, check_energy
from trivgeo.inversion.energies import NearestPoints, PairedPoints, SymmetricNearestPoints
from trivgeo.inversion.learned import LearnedScore, PointsBackbone
from trivgeo.sde import ConstantSchedule, GeometricSchedule, TrivializedSDE, probability_flow, reverse_diffusion

ACTION = SE(2).action()
SCHEDULE = GeometricSchedule(0.1, 1.0)
X = randn(4, 5, 2)


def energy(x: Tensor) -> Tensor:
    return x.square().flatten(1).sum(1)


class Network(nn.Module):
    """An energy, or features, by layers in single precision."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.mT).square().sum((1, 2))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [NearestPoints, PairedPoints, SymmetricNearestPoints])
def test_references_are_finite(kind: Callable[[Tensor], nn.Module], bad: float) -> None:
    points = randn(6, 2)
    points[2, 1] = bad
    with pytest.raises(NonFiniteError, match="reference: expected finite numbers, got 1 NaN or infinite"):
        kind(points)


@pytest.mark.parametrize("wrong", [lambda g: g, lambda: 0, lambda g, t, u: g, lambda g, *, t: g])
def test_scores_take_an_element_and_a_time(wrong: Callable[..., Any]) -> None:
    for call in (
        lambda: reverse_diffusion(SE(2), SCHEDULE, wrong, num_samples=4, steps=3),
        lambda: probability_flow(SE(2), SCHEDULE, wrong),
        lambda: TrivializedSDE(SE(2), ConstantSchedule(1.0), wrong),
        lambda: TrivializedSDE(SE(2), ConstantSchedule(1.0), score_drift=wrong),
    ):
        with pytest.raises(ConfigurationError, match=r"expected a function of \(g, t\), got one of \("):
            call()
    TrivializedSDE(SE(2), ConstantSchedule(1.0), lambda g, t, more=None: g)
    TrivializedSDE(SE(2), ConstantSchedule(1.0), lambda *arguments: arguments[0])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda g, t: g.flatten(-2)[:, :3] * t[:, None],
        lambda g, t: g.flatten(-2)[:, :3] * t.expand(len(g), 1),
        lambda g, t: torch.cat([g.flatten(-2)[:, :2], t], -1),
    ],
)
def test_times_are_numbers(wrong: Callable[..., Any]) -> None:
    """A network of another library takes a time for each element; errors of its own stay what they are."""
    with pytest.raises(ConfigurationError, match="time t, one number for all of them, got one that takes t for a tens"):
        reverse_diffusion(SE(2), SCHEDULE, wrong, num_samples=4, steps=3)
    with pytest.raises(TypeError, match="NoneType"):
        reverse_diffusion(SE(2), SCHEDULE, lambda g, t: g * None, num_samples=4, steps=3)  # type: ignore[operator]


def test_labels_are_classes_and_transformations_take_a_generator() -> None:
    moved = lambda count, generator: SE(2).random(count, std=0.2, generator=generator)  # noqa: E731
    scores = lambda x: x.mean(1)  # noqa: E731
    x = randn(8, 5, 2)
    one_hot = torch.eye(2)[torch.arange(8) % 2]
    with pytest.raises(ShapeError, match=r"labels: expected a class for each datum \[\d+\], or loss="):
        check_energy(ACTION, energy, x, moved, network=scores, labels=one_hot)
    for wrong in (lambda count: moved(count, None), lambda: moved(3, None)):
        with pytest.raises(ConfigurationError, match=r"transformations: expected a function of \(count, generator\)"):
            check_energy(ACTION, energy, x, wrong)


def test_messages_are_one_line_where_values_are_large() -> None:
    many = randn(40, 5, 2)
    matrices = torch.eye(3).repeat(4, 1, 1)
    matrices[2, 0, 0] = 2.0
    calls: dict[str, Callable[[], Any]] = {
        r"got Tensor torch\.float\d+ \[40, 5, 2\]": lambda: TIED(ACTION, energy, many),  # type: ignore[arg-type]
        r"got ndarray float64 \[100\]": lambda: TIED(ACTION, energy, seconds=np.ones(100)),  # type: ignore[arg-type]
        r"got 1 that are not in .*, the first of them \[\[2": lambda: ImageWarp(SE(2)).from_pixels(matrices, (9, 9)),
    }
    for text, call in calls.items():
        with pytest.raises((ConfigurationError, DomainError), match=text) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_energies_and_networks_take_the_data() -> None:
    inverter = GradientDescent(ACTION, energy)
    for wrong in (lambda: 0, lambda x, y: x):
        with pytest.raises(ConfigurationError, match=r"energy: expected a function of \(x\)"):
            GradientDescent(ACTION, wrong)
        with pytest.raises(ConfigurationError, match=r"network: expected a function of \(x\)"):
            TestTimeEquivariant(wrong, inverter)
    with pytest.raises(ConfigurationError, match=r"network: expected a function of \(x\)"):
        TestTimeEquivariant(nn.Bilinear(2, 2, 2), inverter)


@pytest.mark.parametrize("output", [lambda x: x[:2].sum(1), lambda x: x.sum(), lambda x: x.repeat(2, 1, 1)])
@pytest.mark.parametrize("ensemble", ["best", "mean"])
def test_networks_return_one_output_for_each_datum(output: Callable[[Tensor], Tensor], ensemble: Any) -> None:
    model = TestTimeEquivariant(output, Inverter(ACTION, energy, []), ensemble=ensemble)
    with pytest.raises(ShapeError, match="network: expected an output for each of 4 data, got"):
        model(X)


@pytest.mark.parametrize("layer", [nn.Linear(5, 3), nn.Conv1d(2, 3, 2)], ids=["linear", "convolution"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_data_in_another_dtype_than_the_network(layer: nn.Module, wrapped: bool) -> None:
    """Also of a network that a function hides; an error of another kind stays what it is."""
    network: Callable[[Tensor], Tensor] = Network(layer)
    used = (lambda x: network(x)) if wrapped else network
    descent = GradientDescent(ACTION, used, steps=1)
    for call in (lambda x: descent(x), TestTimeEquivariant(used, Inverter(ACTION, None, []))):
        with pytest.raises(ConfigurationError, match=r"expected data in .*, got torch\.float64"):
            call(X)
        call(X.float())
        with pytest.raises(RuntimeError, match=r"ize|shape"):
            call(randn(4, 1, 2).float() if isinstance(layer, nn.Linear) else randn(4, 5, 2).float()[:, :1])


def test_without_an_energy_there_is_no_lowest_one() -> None:
    """It used to be zero, as if all data were found and equally well."""
    score = LearnedScore(ACTION, SCHEDULE, PointsBackbone(3, 2, width=8))
    for inverter in (Inverter(ACTION, None, []), LearnedInverter.from_score(score)):
        result = inverter(X.float())
        assert result.has_usable.tolist() == [True] * 4
        assert not result.has_energy
        assert bool(result.best_energy().isnan().all())
        assert bool(torch.isfinite(result.best()).all())
    result = Inverter(ACTION, energy, [])(X)
    assert result.has_energy
    assert torch.equal(result.best_energy(), energy(X))


def test_an_energy_of_images_that_returns_one_number_for_all_is_refused() -> None:
    for energy_of_all in (lambda x: x.mean(), lambda x: x.mean((2, 3))):
        with pytest.raises(ShapeError, match=r"energy: expected one number per datum \[3\]"):
            Inverter(ImageWarp(SO(2)), energy_of_all, [])(torch.rand(3, 1, 8, 8))
