"""FoCal: known optima, its Gaussian processes and expected improvements against closed forms, undefined energies."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

pytest.importorskip("botorch")

from tasks import focal
from tasks.focal import BayesianOptimization, FoCal
from tests.helpers import assert_relative, rand, seeded
from tests.inversion import test_every_inverter as contract
from tests.inversion.templates import TEMPLATES, Template, wall
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE, Affine, Translation
from trivgeo.inversion import InverseProblem


def test_published_settings() -> None:
    inverter = FoCal(Affine(2).action(), Template(Affine(2)))
    (stage,) = inverter.stages
    assert isinstance(stage, BayesianOptimization)
    assert (stage.initial, stage.evaluations, stage.length_scale) == (5, 5, 0.01)
    assert stage.box == (1.0,)
    assert stage.fit


def closed_form(x: Tensor, y: Tensor, length_scale: float, at: Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, standard deviation and log-likelihood of one process, by dense inverses (Rasmussen and Williams 2006)."""
    distance = lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1)  # noqa: E731
    a, b, values = x.numpy(), at.numpy(), y.numpy()
    k = np.exp(-distance(a, a) / (2 * length_scale**2)) + 1e-6 * np.eye(len(a))
    cross = np.exp(-distance(b, a) / (2 * length_scale**2))
    inverse = np.linalg.inv(k)
    variance = 1 - np.einsum("ij,jk,ik->i", cross, inverse, cross)
    likelihood = -0.5 * (values @ inverse @ values + np.linalg.slogdet(k)[1] + len(a) * math.log(2 * math.pi))
    return cross @ inverse @ values, np.sqrt(np.clip(variance, 1e-12, None)), float(likelihood)


def functions(batch: int, points: int, dim: int) -> tuple[Tensor, Tensor]:
    """Smooth functions of mean zero and variance one at random points of the unit cube."""
    x = rand(batch, points, dim, seed=3)
    y = torch.sin(3 * x.sum(-1) + torch.arange(batch).unsqueeze(1)) - (x - 0.4).square().sum(-1)
    y = y - y.mean(1, keepdim=True)
    return x, y / y.std(1, keepdim=True)


class TestSurrogate:
    def test_posterior(self) -> None:
        x, y = functions(3, 6, 2)
        at = rand(3, 5, 2, seed=9)
        model = focal._surrogate(x, y, 0.3, fit=False)
        posterior = model.posterior(at)
        for i in range(3):
            mean, std, _ = closed_form(x[i], y[i], 0.3, at[i])
            np.testing.assert_allclose(posterior.mean[i, :, 0].detach().numpy(), mean, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(posterior.variance[i, :, 0].detach().sqrt().numpy(), std, rtol=1e-3, atol=1e-4)

    def test_fit_is_the_best_length_scale(self) -> None:
        """All at once, and as high a likelihood as the best on a dense grid has for each."""
        x, y = functions(5, 12, 2)
        fitted = focal._surrogate(x, y, 0.005, fit=True).covar_module.lengthscale.detach().flatten()
        for i in range(5):
            reached = closed_form(x[i], y[i], float(fitted[i]), x[i])[2]
            best = max(closed_form(x[i], y[i], s, x[i])[2] for s in np.geomspace(0.005, 3.0, 100))
            assert reached > best - 0.05, (i, float(fitted[i]))

    @pytest.mark.parametrize("dim", [1, 2])
    def test_proposes_the_largest_expected_improvement(self, dim: int) -> None:
        x, y = functions(4, 5, dim)
        proposed = focal.propose(x, y, length_scale=0.2, fit=False, generator=seeded(0))
        assert proposed.shape == (4, dim)
        assert bool(((proposed >= 0) & (proposed <= 1)).all())
        grid = torch.cartesian_prod(*[torch.linspace(0, 1, 61, dtype=torch.float64)] * dim).reshape(-1, dim)
        for i in range(4):

            def improvement(at: Tensor, i: int = i) -> np.ndarray:
                mean, std, _ = closed_form(x[i], y[i], 0.2, at)
                u = (mean - float(y[i].max())) / std
                return std * (norm.pdf(u) + u * norm.cdf(u))

            assert improvement(proposed[i : i + 1])[0] > 0.93 * improvement(grid).max()

    def test_values_of_any_size_and_constant_ones(self) -> None:
        x, y = functions(3, 6, 2)
        plain = focal.propose(x, y, length_scale=0.2, fit=True, generator=seeded(0))
        scaled = focal.propose(x, 1e9 * y - 1e12, length_scale=0.2, fit=True, generator=seeded(0))
        assert_relative(scaled, plain, 0.02)
        constant = focal.propose(x, torch.ones_like(y), length_scale=0.2, fit=True, generator=seeded(0))
        assert torch.isfinite(constant).all()


class TestKnownOptimum:
    def test_finds_a_translation(self) -> None:
        problem = Template(Translation(2), batch=6, std=0.4)
        result = FoCal(problem.action, problem, 5, 8)(problem.x, generator=seeded(0))
        assert (result.best_energy() < 1e-2).all(), result.best_energy()
        assert float((result.best() - problem.elements).abs().max()) < 0.1

    def test_where_gradients_are_off(self) -> None:
        problem = Template(Translation(2), batch=2, std=0.4)
        with torch.no_grad():
            off = FoCal(problem.action, problem, 3, 2)(problem.x, generator=seeded(0))
        on = FoCal(problem.action, problem, 3, 2)(problem.x, generator=seeded(0))
        assert torch.equal(off.elements, on.elements)

    def test_beats_random_points_of_the_box(self) -> None:
        """On rigid motions, with the same number of evaluations, in float32."""
        problem = Template(**TEMPLATES["SE(2)"], batch=12, dtype=torch.float32)
        result = FoCal(problem.action, problem, 6, 8)(problem.x, generator=seeded(0))
        assert result.elements.dtype == result.energies.dtype == torch.float32
        v = 2 * torch.rand(12, 14, 3, generator=seeded(1)) - 1
        drawn = InverseProblem(problem.action, problem).given(problem.x).energies(SE(2).exp(v)).amin(1)
        assert float(result.best_energy().mean()) < 0.25 * float(drawn.mean())
        restored = problem.action(SE(2).inverse(result.best()), problem.x)
        assert_relative((restored - problem.cloud).square().mean(-2).sum(-1), result.best_energy(), 1e-5)

    def test_box(self) -> None:
        """One side for each direction; the optimum of a small box lies on its edge."""
        problem = Template(Translation(2), batch=3, std=0.0)
        x = problem.x + torch.tensor([2.0, 0.3], dtype=torch.float64)
        result = FoCal(problem.action, problem, 5, 6, box=(0.5, 1.0))(x, generator=seeded(0))
        expected = torch.tensor([0.5, 0.3], dtype=torch.float64).expand(3, 2)
        assert float((result.best() - expected).abs().max()) < 0.1
        assert bool((result.best()[:, 0] <= 0.5).all())


class TestContract:
    """What every inverter keeps."""

    @pytest.mark.parametrize("problem", [contract.images, contract.operators])
    def test_lowers_the_energy_and_counts(self, problem: Callable[[], Any]) -> None:
        make = lambda action, energy: FoCal(action, energy, 6, 3, box=0.7, num_hypotheses=2)  # noqa: E731
        contract.test_lowers_the_energy_and_counts(make, problem)

    @pytest.mark.slow(reason="those of the library stay")
    def test_a_datum_alone_and_in_any_batch(self) -> None:
        contract.check_batches(lambda action, energy: FoCal(action, energy, 3, 1, 0.3, 0.7))

    def test_no_data(self) -> None:
        result = FoCal(SE(2).action(), wall)(torch.zeros(0, 5, 2))
        assert (result.elements.shape, result.energies.shape) == ((0, 1, 2, 3), (0, 1))


class TestRun:
    def test_result(self) -> None:
        problem = Template(SE(2), batch=3)
        seen: list[tuple[int, int]] = []
        inverter = FoCal(problem.action, problem, 4, 2, num_hypotheses=5)
        inverter = inverter.replace(progress=lambda done, total: seen.append((done, total)))
        result = inverter(problem.x, generator=seeded(0))
        assert result.elements.shape == (3, 5, 2, 3)
        assert (result.energy_evaluations, result.gradient_evaluations) == (6, 0)
        assert problem.evaluations == 3 * 6
        assert_relative(result.energies, problem.distance(result.elements), 1e-12)
        assert torch.equal(result.energies, result.energies.sort(1).values)
        assert seen == [(1, 3), (2, 3), (3, 3)]
        assert torch.equal(inverter(problem.x, generator=seeded(0)).elements, result.elements)

    def test_undefined_energies(self) -> None:
        """Half of the box lies behind a wall, and all of it for the second datum."""
        action, x = Translation(1).action(), torch.tensor([[[-1.0]], [[-5.0]]], dtype=torch.float64)
        result = FoCal(action, wall, 4, 5, num_hypotheses=9)(x, generator=seeded(0))
        assert torch.isinf(result.energies[0]).any()
        assert torch.isinf(result.energies[1]).all()
        assert torch.isfinite(result.elements).all()
        # E = sqrt(-g) + (1 + g)^2 for g < 0, lowest on [-1, 0] at its end
        assert float(result.best_energy()[0]) < 1.05
        assert result.has_usable.tolist() == [True, False]

    def test_in_parts(self) -> None:
        problem = Template(SE(2), batch=3)
        plain = FoCal(problem.action, problem, initial=4, evaluations=1)
        whole, parts = (i(problem.x, generator=seeded(0)) for i in (plain, plain.replace(max_evaluations=5)))
        assert_relative(whole.elements, parts.elements, 1e-9)


def test_without_botorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said when a configuration names it, with the extra that brings BoTorch."""
    for name in [n for n in sys.modules if n.split(".")[0] == "botorch"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "tasks.focal")
    with pytest.raises(ConfigurationError, match=r"trivgeo\[bayes\]"):
        importlib.import_module("tasks.focal")


@pytest.mark.parametrize(
    "settings",
    [
        {"initial": 1},
        {"evaluations": 0},
        {"length_scale": 0.0},
        {"box": -1.0},
        {"box": (1.0, 1.0)},
        {"num_hypotheses": 11},
    ],
    ids=str,
)
def test_bad_settings(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        FoCal(SE(2).action(), wall, **settings)
