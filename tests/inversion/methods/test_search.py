"""Random search and gradient descent: against plain loops, torch's own SGD, and closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from tests.helpers import assert_relative, noise, seeded
from tests.inversion.templates import TEMPLATES, Template, wall
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE, Affine, Translation
from trivgeo.inversion import GradientDescent, InverseProblem, RandomSearch


class TestRandomSearch:
    def test_keeps_the_lowest_of_all(self) -> None:
        """Against all draws at once, from the same source."""
        problem = Template(SE(2), batch=3)
        seen: list[tuple[int, int]] = []
        inverter = RandomSearch(problem.action, problem, 150, 4, 0.5)
        result = inverter.replace(progress=lambda *steps: seen.append(steps))(problem.x, generator=seeded(2))
        assert (result.energy_evaluations, result.gradient_evaluations) == (150, 0)
        assert problem.evaluations == 450
        assert seen == [(1, 3), (2, 3), (3, 3)]
        # what is drawn in parts is what is drawn at once: each datum goes on in its own stream
        drawn = SE(2).exp(0.5 * noise(3, 150, 3, seed=2))
        energies = InverseProblem(problem.action, problem).given(problem.x).energies(drawn)
        lowest = energies.topk(4, 1, largest=False)
        assert_relative(result.energies, lowest.values, 1e-12)
        assert_relative(result.elements, drawn[torch.arange(3)[:, None], lowest.indices], 1e-12)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_known_optimum(self, dtype: torch.dtype) -> None:
        for name in ("Affine(2)", "SE(2)"):
            problem = Template(**TEMPLATES[name], dtype=dtype)
            result = RandomSearch(problem.action, problem)(problem.x, generator=seeded(0))
            assert result.elements.dtype == result.energies.dtype == dtype
            assert result.elements.shape[:2] == (4, 64)
            assert (result.best_energy() < 0.25 * problem(problem.x)).all()

    def test_undefined_energies(self) -> None:
        action, x = Translation(1).action(), torch.tensor([[[0.0]], [[-9.0]]], dtype=torch.float64)
        result = RandomSearch(action, wall, 40, 40, 1.5)(x, generator=seeded(0))
        assert torch.isfinite(result.energies[0, :5]).all()
        assert torch.isinf(result.energies[0]).any()
        assert torch.isinf(result.energies[1]).all()

    @pytest.mark.parametrize(
        "settings",
        [{"num_samples": 0}, {"num_hypotheses": 6401}, {"std": 0.0}],
        ids=str,
    )
    def test_bad_settings(self, settings: dict[str, object]) -> None:
        with pytest.raises(ConfigurationError, match=next(iter(settings))):
            RandomSearch(SE(2).action(), wall, **settings)


class TestGradientDescent:
    @pytest.mark.parametrize("momentum", [0.0, 0.8])
    def test_is_sgd_on_translations(self, momentum: float) -> None:
        """Where the group is a vector space: torch's own optimiser, from the same starts."""
        problem = Template(Translation(2), batch=3)
        g = (0.3 * noise(3, 5, 2, seed=4)).requires_grad_()
        optimizer = torch.optim.SGD([g], lr=0.07, momentum=momentum)
        for _ in range(12):
            optimizer.zero_grad()
            (problem.x.unsqueeze(1) - g.unsqueeze(2) - problem.cloud).square().mean(-2).sum().backward()
            optimizer.step()
        inverter = GradientDescent(problem.action, problem, 12, 0.07, 5, momentum=momentum, max_gradient_norm=None)
        assert_relative(inverter(problem.x, generator=seeded(4)).elements, g.detach(), 1e-12)

    def test_bound(self) -> None:
        """Far from the minimum every step is as long as the bound allows."""
        action, x = Translation(2).action(), 100.0 + torch.zeros(1, 1, 2, dtype=torch.float64)
        energy = lambda y: y.square().sum((-1, -2))  # noqa: E731
        inverter = GradientDescent(action, energy, 10, 0.1, 3, max_gradient_norm=0.5)
        start = 0.3 * noise(1, 3, 2, seed=0)
        moved = inverter(x, generator=seeded(0)).elements - start
        assert_relative(moved.norm(dim=-1), torch.full((1, 3), 0.5, dtype=torch.float64), 1e-4)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_known_optimum(self, dtype: torch.dtype) -> None:
        for name in ("Affine(2)", "SE(2)"):
            problem = Template(**TEMPLATES[name], dtype=dtype)
            inverter = GradientDescent(problem.action, problem, 60, 0.25, 6, momentum=0.8)
            result = inverter(problem.x, generator=seeded(0))
            assert result.elements.dtype == result.energies.dtype == dtype
            assert (result.best_energy() < 1e-3).all(), (name, result.best_energy())

    def test_result(self) -> None:
        problem = Template(Affine(2), batch=3)
        inverter = GradientDescent(problem.action, problem, 6, num_hypotheses=5)
        result = inverter(problem.x, generator=seeded(0))
        assert (result.energy_evaluations, result.gradient_evaluations) == (5, 30)
        assert problem.evaluations == 3 * 35
        assert_relative(result.energies, problem.distance(result.elements), 1e-12)
        assert torch.equal(inverter(problem.x, generator=seeded(0)).elements, result.elements)
        kept = GradientDescent(problem.action, problem, 6, 3.0, 5, keep_best=True)
        ends = GradientDescent(problem.action, problem, 6, 3.0, 5)
        lower = kept(problem.x, generator=seeded(0)).energies
        upper = ends(problem.x, generator=seeded(0)).energies
        assert (lower <= upper).all()
        assert (lower < upper).any()

    def test_undefined_energies(self) -> None:
        action, x = Translation(1).action(), torch.tensor([[[0.0]], [[-5.0]]], dtype=torch.float64)
        result = GradientDescent(action, wall, 30, 2.0, 8, 0.6)(x, generator=seeded(0))
        assert torch.isfinite(result.energies[0]).any()
        assert (result.num_masked_steps[0] > 0).any()
        assert (result.num_masked_steps[1] == 30).all()
        assert torch.isfinite(result.elements).all()

    @pytest.mark.parametrize(
        "settings",
        [
            {"steps": 0},
            {"learning_rate": -0.1},
            {"num_hypotheses": 0},
            {"start_std": 0.0},
            {"momentum": 1.0},
            {"max_gradient_norm": math.inf},
        ],
        ids=str,
    )
    def test_bad_settings(self, settings: dict[str, object]) -> None:
        with pytest.raises(ConfigurationError, match=next(iter(settings))):
            GradientDescent(SE(2).action(), wall, **settings)
