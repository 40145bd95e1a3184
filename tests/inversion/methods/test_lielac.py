"""LieLAC: against Adam and Riemannian Adam as others wrote them, on known optima, and where energies are undefined."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.helpers import assert_relative, noise, seeded
from tests.inversion.templates import TEMPLATES, Template, wall
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.groups import SE, Affine, Translation
from trivgeo.inversion import LieLAC
from trivgeo.inversion.stages import (
    Adam,
    AlgebraCoordinates,
    Descend,
    GroupElements,
    Parametrization,
    Replicate,
)

SPACES = [AlgebraCoordinates(), GroupElements()]


def name_of(space: Parametrization) -> str:
    return type(space).__name__


def test_published_settings() -> None:
    inverter = LieLAC(Affine(2).action(), Template(Affine(2)))
    start, descent = inverter.stages
    assert isinstance(start, Replicate)
    assert isinstance(descent, Descend)
    assert isinstance(descent.rule, Adam)
    assert (descent.steps, descent.rule.learning_rate, start.num_hypotheses) == (100, 0.01, 64)
    assert (descent.start_std, descent.rule.betas, descent.rule.epsilon) == (0.3, (0.9, 0.999), 1e-8)
    assert isinstance(descent.space, AlgebraCoordinates)
    assert not inverter.problem.log_det
    assert not descent.keep_best


class TestAgainstOthers:
    def test_torch_adam_on_algebra_coordinates(self) -> None:
        """The same starts, moved by torch's own Adam."""
        problem = Template(Affine(2), batch=3)
        group, action = problem.action.group, problem.action
        v = (0.3 * noise(3, 5, group.dim, seed=7)).requires_grad_()
        optimizer = torch.optim.Adam([v], lr=0.05)
        for steps in range(1, 21):
            optimizer.zero_grad()
            restored = action(group.inverse(group.exp(v)), problem.x.unsqueeze(1))
            (restored - problem.cloud).square().mean(-2).sum().backward()
            optimizer.step()
            if steps in (1, 2, 20):
                inverter = LieLAC(action, problem, steps, learning_rate=0.05, num_hypotheses=5)
                result = inverter(problem.x, generator=seeded(7))
                assert_relative(result.elements, group.exp(v.detach()), 1e-10, event=2)

    @pytest.mark.parametrize("name", ["Affine(2)", "SE(2)"])
    def test_riemannian_adam_of_geoopt_on_the_group(self, name: str) -> None:
        geoopt = pytest.importorskip("geoopt")
        from trivgeo.geoopt import GroupManifold, RiemannianAdam

        problem = Template(**TEMPLATES[name], batch=3)
        group, action = problem.action.group, problem.action
        start = group.exp(0.3 * noise(3, 5, group.dim, seed=7))
        parameter = geoopt.ManifoldParameter(start, manifold=GroupManifold(group))
        optimizer = RiemannianAdam([parameter], lr=0.05)
        for steps in range(1, 21):
            optimizer.zero_grad()
            restored = action(group.inverse(parameter.as_subclass(Tensor)), problem.x.unsqueeze(1))
            (restored - problem.cloud).square().mean(-2).sum().backward()
            optimizer.step()
            if steps in (1, 2, 20):
                inverter = LieLAC(
                    action, problem, steps, learning_rate=0.05, num_hypotheses=5, parametrization=GroupElements()
                )
                result = inverter(problem.x, generator=seeded(7))
                assert_relative(result.elements, parameter.detach().as_subclass(Tensor), 1e-9, event=2)


class TestKnownOptimum:
    @pytest.mark.parametrize("space", SPACES, ids=name_of)
    @pytest.mark.parametrize(
        ("name", "dtype"), [*((name, torch.float64) for name in TEMPLATES), ("SE(2)", torch.float32)], ids=str
    )
    def test_finds_the_transformation(self, name: str, space: Parametrization, dtype: torch.dtype) -> None:
        problem = Template(**TEMPLATES[name], dtype=dtype)
        inverter = LieLAC(problem.action, problem, 80, 0.06, num_hypotheses=8, parametrization=space)
        result = inverter(problem.x, generator=seeded(0))
        assert result.elements.dtype == result.energies.dtype == dtype
        assert (result.best_energy() < 2e-3).all(), result.best_energy()
        assert (problem(problem.x) > 5 * result.best_energy()).all()
        restored = problem.action(problem.action.group.inverse(result.best()), problem.x)
        assert float((restored - problem.cloud).abs().max()) < 0.1

    def test_result(self) -> None:
        problem = Template(SE(2), batch=3)
        inverter = LieLAC(problem.action, problem, steps=6, num_hypotheses=5)
        result = inverter(problem.x, generator=seeded(0))
        assert result.energy_evaluations == 5
        assert result.gradient_evaluations == 5 * 6
        assert problem.evaluations == 3 * (5 + 5 * 6)
        assert result.elements.shape == (3, 5, 2, 3)
        assert_relative(result.energies, problem.distance(result.elements), 1e-12)
        assert result.num_masked_steps.tolist() == [[0] * 5] * 3
        assert torch.equal(inverter(problem.x, generator=seeded(0)).elements, result.elements)
        assert not torch.equal(inverter(problem.x, generator=seeded(1)).elements, result.elements)

    def test_keep_seen(self) -> None:
        """With a step so long that the descent overshoots: the minimum over the path, which shorter runs visit."""
        problem = Template(SE(2), batch=2)
        settings = {"learning_rate": 0.6, "num_hypotheses": 6}
        ends = [
            LieLAC(problem.action, problem, steps, **settings)(problem.x, generator=seeded(0)).energies
            for steps in range(1, 9)
        ]
        path = torch.stack(ends).amin(0)
        result = LieLAC(problem.action, problem, 8, **settings, keep_best=True)(problem.x, generator=seeded(0))
        assert (path < ends[-1]).any()
        start = problem.distance(SE(2).exp(0.3 * noise(2, 6, 3, seed=0)))
        assert_relative(result.energies, torch.minimum(path, start), 1e-10)
        assert_relative(result.energies, problem.distance(result.elements), 1e-12)
        assert result.energy_evaluations + result.gradient_evaluations == 6 * 9

    def test_in_parts(self) -> None:
        """The noise is that of the whole."""
        problem = Template(SE(2), batch=5)
        plain = LieLAC(problem.action, problem, steps=3, num_hypotheses=4)
        whole, parts = (i(problem.x, generator=seeded(0)) for i in (plain, plain.replace(max_evaluations=9)))
        assert_relative(whole.elements, parts.elements, 1e-10)
        assert (parts.energy_evaluations, parts.gradient_evaluations) == (4, 12)

    def test_progress(self) -> None:
        seen: list[tuple[int, int]] = []
        problem = Template(SE(2), batch=1)
        LieLAC(problem.action, problem, 4, num_hypotheses=1).replace(progress=lambda *i: seen.append(i))(problem.x)
        assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


class TestUndefinedEnergies:
    @pytest.mark.parametrize("space", SPACES, ids=name_of)
    def test_chains_go_back_from_the_edge(self, space: Parametrization) -> None:
        """The minimum lies beyond a wall: chains that step over it return, count it, and end where E is finite."""
        action, x = Translation(1).action(), torch.tensor([[[0.0]], [[-5.0]]], dtype=torch.float64)
        inverter = LieLAC(action, wall, 60, 0.2, num_hypotheses=8, start_std=0.6, parametrization=space)
        result = inverter(x, generator=seeded(13))
        assert torch.isfinite(result.energies[0]).all()
        assert (result.num_masked_steps[0] > 0).any()
        assert (result.num_masked_steps[0] < 60).all()
        # nothing is defined within reach of the second
        assert torch.isinf(result.energies[1]).all()
        assert (result.num_masked_steps[1] == 60).all()
        assert torch.isfinite(result.elements).all()
        assert result.has_usable.tolist() == [True, False]

    @pytest.mark.parametrize("space", SPACES, ids=name_of)
    def test_failures_do_not_spread(self, space: Parametrization) -> None:
        action = Translation(1).action()
        x = torch.tensor([[[0.3]], [[-5.0]], [[1.0]]], dtype=torch.float64)
        inverter = LieLAC(action, wall, 20, 0.05, num_hypotheses=4, parametrization=space)
        others = x.clone()
        others[1] = 0.5
        mixed, clean = inverter(x, generator=seeded(0)), inverter(others, generator=seeded(0))
        assert torch.equal(mixed.elements[[0, 2]], clean.elements[[0, 2]])
        assert torch.equal(mixed.energies[[0, 2]], clean.energies[[0, 2]])


class TestBadInput:
    @pytest.mark.parametrize(
        "settings",
        [
            {"steps": 0},
            {"num_hypotheses": True},
            {"learning_rate": 0.0},
            {"start_std": math.nan},
            {"parametrization": "algebra"},
        ],
        ids=str,
    )
    def test_settings(self, settings: dict[str, object]) -> None:
        with pytest.raises(ConfigurationError, match=next(iter(settings)).replace("parametrization", "space")):
            LieLAC(SE(2).action(), wall, **settings)

    @pytest.mark.parametrize("settings", [{"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}, {"epsilon": -1.0}], ids=str)
    def test_settings_of_adam(self, settings: dict) -> None:
        with pytest.raises(ConfigurationError, match=next(iter(settings)).replace("parametrization", "space")):
            Adam(0.01, **settings)

    def test_action_energy_and_data(self) -> None:
        with pytest.raises(ConfigurationError, match="action"):
            LieLAC(SE(2), wall)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="energy"):
            LieLAC(SE(2).action(), None)  # type: ignore[arg-type]
        inverter = LieLAC(SE(2).action(), wall, 1)
        with pytest.raises(ShapeError, match="batch"):
            inverter(torch.zeros(7, 2))
        with pytest.raises(NonFiniteError):
            inverter(torch.full((1, 7, 2), math.nan))
        with pytest.raises(ShapeError, match="one number per datum"):
            LieLAC(SE(2).action(), lambda y: y, 1)(torch.zeros(1, 7, 2))
