"""ITS: exact recovery on a grid, a loop written plainly, diversity of classes, the published criterion."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter1d
from torch import Tensor

from tests.helpers import assert_relative, rand, randn, seeded
from tests.inversion.templates import TEMPLATES, Template, wall
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SE, Affine, HeatSymmetry, LieGroup, Translation
from trivgeo.inversion import ITS, InverseProblem
from trivgeo.inversion.stages import (
    LowestEnergy,
    OrbitCurvature,
    SearchLevel,
    SearchOrbits,
    affine_levels,
    basis_levels,
)
from trivgeo.inversion.stages.search_orbits import choose


def test_published_settings() -> None:
    inverter = ITS(Affine(2).action(), Template(Affine(2)))
    (search,) = inverter.stages
    assert isinstance(search, SearchOrbits)
    assert (search.steps, search.num_samples, search.num_hypotheses) == (8, 16, 3)
    assert search.levels_of(Affine(2, scale=0.3)) == affine_levels()
    assert search.levels_of(SE(2)) == basis_levels(SE(2), 8)


def orbits(inverter: ITS) -> list[Tensor]:
    """The algebra vectors of its levels."""
    (search,) = inverter.stages
    assert isinstance(search, SearchOrbits)
    return [search.orbit(inverter.action.group, level) for level in search.levels_of(inverter.action.group)]


class TestLevels:
    def test_factors_of_affine_maps(self) -> None:
        """What the levels for images are called, as matrices."""
        group = Affine(2, scale=torch.eye(6, dtype=torch.float64) + 0.2 * randn(6, 6))
        levels = affine_levels(0.5, 0.6, 0.3, 0.2, 0.25)
        inverter = ITS(group.action(), wall, levels, 3)
        zero, one = 0.0, 1.0
        rotation = [[math.cos(0.6), -math.sin(0.6), zero], [math.sin(0.6), math.cos(0.6), zero]]
        expected = [
            [[one, zero, 0.5], [zero, one, zero]],
            [[one, zero, zero], [zero, one, 0.5]],
            rotation,
            [[math.exp(0.3), zero, zero], [zero, one, zero]],
            [[one, zero, zero], [zero, math.exp(0.3), zero]],
            [[one, 0.2, zero], [zero, one, zero]],
            [[math.cos(0.15), -math.sin(0.15), zero], [math.sin(0.15), math.cos(0.15), zero]],
            [[math.exp(0.075), zero, zero], [zero, math.exp(0.075), zero]],
        ]
        for orbit, matrix in zip(orbits(inverter), expected, strict=True):
            g = group.exp(orbit)
            assert_relative(g[1], group.identity(dtype=torch.float64), 1e-12)
            assert_relative(g[2], torch.tensor(matrix, dtype=torch.float64), 1e-12)
            assert_relative(group.compose(g[0], g[2]), group.identity(dtype=torch.float64), 1e-12)

    def test_basis_in_turn(self) -> None:
        group = SE(2, scale=[0.5, 2.0, 3.0])
        levels = basis_levels(group, 7, extent=0.8, shrink=0.5)
        inverter = ITS(group.action(), wall, levels, 2, 1)
        for index, orbit in enumerate(orbits(inverter)):
            expected = torch.zeros(2, 3, dtype=torch.float64)
            expected[:, index % 3] = torch.tensor([-0.8, 0.8], dtype=torch.float64) * 0.5 ** (index // 3)
            assert_relative(orbit, expected, 1e-12)

    def test_the_scale_of_the_group_does_not_matter(self) -> None:
        problem = Template(Affine(2))
        scaled = Affine(2, scale=torch.eye(6, dtype=torch.float64) + 0.2 * randn(6, 6))
        first = ITS(problem.action, problem, affine_levels())(problem.x)
        second = ITS(scaled.action(), problem, affine_levels())(problem.x)
        assert_relative(second.elements, first.elements, 1e-9)


class TestKnownOptimum:
    def test_removes_factor_after_factor(self) -> None:
        """Of centred clouds each factor has its own minimum: the search meets those of the grid exactly."""
        group = Affine(2)
        problem = Template(group)
        levels = [*affine_levels(0.5, 0.6, 0.3)[:3], SearchLevel((1.0, 0.0, 0.0, 1.0, 0.0, 0.0), 0.3)]
        steps = torch.tensor([[3, 14, 1, 9], [15, 0, 8, 2], [7, 7, 12, 15]])
        inverter = ITS(problem.action, problem, levels)
        g = group.identity(3, dtype=torch.float64)
        for level, orbit in enumerate(orbits(inverter)):
            g = group.compose(g, group.exp(orbit[steps[:, level]]))
        result = inverter(problem.action(g, problem.cloud))
        assert_relative(result.best(), g, 1e-12)
        assert float(result.best_energy().max()) < 1e-24

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("name", TEMPLATES)
    def test_any_group(self, name: str, dtype: torch.dtype) -> None:
        """Energies fall from level to level, from that of the data as given, far below it."""
        problem = Template(**TEMPLATES[name], dtype=dtype)
        group = problem.action.group
        energies = [problem(problem.x)]
        for number in (1, 4, 40):
            levels = basis_levels(group, number, shrink=0.6)
            result = ITS(problem.action, problem, levels)(problem.x)
            assert result.elements.dtype == dtype
            energies.append(result.best_energy())
            assert_relative(result.energies, problem.distance(result.elements), 1e-4)
        assert all(bool((b <= a).all()) for a, b in itertools.pairwise(energies))
        assert bool((energies[-1] < 0.25 * energies[0]).all()), energies
        assert float(energies[-1].mean()) < 0.05 * float(energies[0].mean())

    def test_against_a_plain_loop(self) -> None:
        """One datum and one hypothesis at a time, as the method reads, where diversity plays no part."""
        problem = Template(SE(2), batch=3)
        group = problem.action.group
        levels = basis_levels(group, 5, 0.9, 0.5)
        result = ITS(problem.action, problem, levels, 6, 2)(problem.x)
        for i in range(3):
            given = InverseProblem(problem.action, problem).given(problem.x[i : i + 1])
            held = [group.identity(dtype=torch.float64)]
            for level, extent in enumerate([0.9, 0.9, 0.9, 0.45, 0.45]):
                v = torch.zeros(6, 3, dtype=torch.float64)
                v[:, level % 3] = torch.linspace(-extent, extent, 6, dtype=torch.float64)
                orbits = [[*group.retract(g, v), g] for g in held]
                ranked = [sorted(orbit, key=lambda g: float(given.energies(g[None])[0])) for orbit in orbits]
                held = ranked[0][:2] if level == 0 else [row[0] for row in ranked]
            assert_relative(result.elements[i], torch.stack(held), 1e-12)


def halves(y: Tensor) -> Tensor:
    """A class of point clouds: on which side of a line their third point lies, that of the template close to it."""
    return (y[:, 2, 0] > 0.25).long()


class TestDiversity:
    def test_choice_against_a_plain_loop(self) -> None:
        generator = seeded(0)
        for rows, samples, number, labels in ((1, 8, 3, 4), (3, 5, 3, 4), (3, 5, 3, 2), (1, 4, 4, 1), (2, 6, 2, 9)):
            scores = torch.rand(20, rows, samples, generator=generator, dtype=torch.float64)
            scores[torch.rand(scores.shape, generator=generator) < 0.2] = math.inf
            classes = torch.randint(labels, scores.shape, generator=generator)
            for given in (classes, None):
                picks = choose(scores, given, number)
                for i in range(20):
                    taken: list[tuple[int, int]] = []
                    for h in range(number):
                        row = min(h, rows - 1)
                        free = [n for n in range(samples) if (row, n) not in taken]
                        used = [] if given is None else [int(classes[i, r, n]) for r, n in taken]
                        fresh = [
                            n for n in free if int(classes[i, row, n]) not in used and math.isfinite(scores[i, row, n])
                        ]
                        pick = min(fresh or free, key=lambda n: float(scores[i, row, n]))
                        if math.isfinite(scores[i, row, pick]):
                            assert int(picks[i, h]) == pick
                        taken.append((row, int(picks[i, h])))

    def test_hypotheses_differ_in_class(self) -> None:
        problem = Template(Translation(2), std=0.3)
        settings = {"levels": basis_levels(Translation(2), 4), "num_hypotheses": 2}
        diverse = ITS(problem.action, problem, **settings, classes=halves)(problem.x)
        alike = ITS(problem.action, problem, **settings)(problem.x)
        for result, distinct in ((diverse, 2), (alike, 1)):
            for i in range(4):
                restored = problem.action(problem.action.group.inverse(result.elements[i]), problem.x[i])
                assert len(set(halves(restored).tolist())) == distinct
        assert_relative(diverse.best_energy(), alike.best_energy(), 1e-12)
        assert diverse.network_evaluations == diverse.energy_evaluations > 0 == alike.network_evaluations

    def test_classes_of_the_wrong_shape(self) -> None:
        problem = Template(SE(2))
        with pytest.raises(ShapeError, match="one number per datum"):
            ITS(problem.action, problem, classes=lambda y: y)(problem.x)


class TestCurvature:
    def test_against_scipy(self) -> None:
        """Gaussian filter with repeated ends, minus the second difference."""
        energies = rand(4, 3, 18, low=-5.0, high=5.0)
        smooth = gaussian_filter1d(energies.numpy(), sigma=2, radius=3, mode="nearest", axis=-1)
        expected = -np.diff(smooth, 2, axis=-1)
        assert_relative(OrbitCurvature()(energies), torch.from_numpy(expected), 1e-12)

    def test_undefined_samples(self) -> None:
        energies = rand(2, 1, 10)
        energies[0, 0, 4] = math.inf
        energies[1] = math.inf
        scores = OrbitCurvature()(energies)
        assert torch.isinf(scores[0, 0]).nonzero().flatten().tolist() == [3]
        assert torch.isinf(scores[1]).all()

    def test_prefers_a_basin_to_a_low_border(self) -> None:
        """The reason for the criterion: energies that fall towards the ends of the orbit."""

        def energy(y: Tensor) -> Tensor:
            s = y[:, 0, 0]
            return -0.25 * (1 + s**2).sqrt() - 0.8 * torch.exp(-((s - 0.2) ** 2) / 0.5)

        x = torch.zeros(1, 1, 1, dtype=torch.float64)
        levels = [SearchLevel((1.0,), 6.0)]
        action, settings = Translation(1).action(), {"num_samples": 33, "num_hypotheses": 1}
        low = ITS(action, energy, levels, **settings)(x)
        sharp = ITS(action, energy, levels, **settings, criterion=OrbitCurvature())(x)
        assert abs(float(low.best())) == 6.0
        assert abs(float(sharp.best()) + 0.2) < 0.4


class TestRun:
    def test_counts(self) -> None:
        problem = Template(SE(2), batch=3)
        seen: list[tuple[int, int]] = []
        inverter = ITS(problem.action, problem, 4, 6, 2).replace(progress=lambda *steps: seen.append(steps))
        result = inverter(problem.x)
        assert result.energy_evaluations == 1 + 6 + 3 * 2 * 6
        assert result.gradient_evaluations == 0
        assert problem.evaluations == 3 * result.energy_evaluations
        assert result.num_masked_steps.tolist() == [[0, 0]] * 3
        assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
        problem.evaluations = 0
        curved = ITS(problem.action, problem, 4, 6, 2, criterion=OrbitCurvature())(problem.x)
        assert curved.energy_evaluations == 1 + 8 + 3 * 2 * 8
        assert problem.evaluations == 3 * curved.energy_evaluations
        assert_relative(curved.energies, problem.distance(curved.elements), 1e-12)

    def test_in_parts(self) -> None:
        problem = Template(SE(2), batch=5)
        whole = ITS(problem.action, problem)(problem.x)
        parts = ITS(problem.action, problem).replace(max_evaluations=100)(problem.x)
        assert_relative(parts.elements, whole.elements, 1e-12)
        assert parts.energy_evaluations == whole.energy_evaluations

    def test_undefined_energies(self) -> None:
        """Samples behind a wall are not taken; a datum that is all behind it stays where it is and spreads nothing."""
        action, x = Translation(1).action(), torch.tensor([[[0.0]], [[-5.0]], [[0.4]]], dtype=torch.float64)
        for criterion in (LowestEnergy(), OrbitCurvature()):
            result = ITS(action, wall, basis_levels(Translation(1), 3), criterion=criterion)(x)
            assert torch.isfinite(result.best_energy()[[0, 2]]).all()
            assert torch.isinf(result.energies[1]).all()
            assert torch.isfinite(result.elements).all()
            alone = ITS(action, wall, basis_levels(Translation(1), 3), criterion=criterion)(x[[0, 2]])
            assert torch.equal(result.elements[[0, 2]], alone.elements)


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "match"),
        [
            ({"levels": 0}, "levels"),
            ({"levels": []}, "levels"),
            ({"levels": [SearchLevel((1.0, 0.0), 1.0)]}, "levels"),
            ({"levels": ["rotation"]}, "levels"),
            ({"num_samples": 1, "num_hypotheses": 1}, "num_samples"),
            ({"num_samples": 4, "num_hypotheses": 5}, "num_samples"),
            ({"classes": 3}, "classes"),
            ({"criterion": "energy"}, "criterion"),
        ],
        ids=str,
    )
    def test_settings(self, settings: dict[str, object], match: str) -> None:
        with pytest.raises(ConfigurationError, match=match):
            ITS(SE(2).action(), wall, **settings)

    def test_levels(self) -> None:
        group: LieGroup = HeatSymmetry(0.1)
        for direction, extent in (((0.0, 0.0), 1.0), ((math.nan, 1.0), 1.0), ((1.0,), 0.0), ((1.0,), math.inf)):
            with pytest.raises(ConfigurationError):
                SearchLevel(direction, extent)
        for settings in ({"num_levels": 0}, {"extent": 0.0}, {"shrink": -1.0}):
            with pytest.raises(ConfigurationError):
                basis_levels(group, **settings)
        with pytest.raises(ConfigurationError, match="refinement"):
            affine_levels(refinement=0.0)
        with pytest.raises(ConfigurationError, match="sigma"):
            OrbitCurvature(sigma=0.0)
        with pytest.raises(ConfigurationError, match="radius"):
            OrbitCurvature(radius=0)
