"""Kinetic Langevin inversion: known posteriors, the process it runs, and where energies are undefined."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, seeded, streams
from tests.inversion.templates import TEMPLATES, Template, wall
from trivgeo import sde
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE, Affine, PointAction, Translation
from trivgeo.inversion import InverseProblem, InversionResult, KineticLangevin
from trivgeo.inversion.stages import Langevin, Replicate


def test_published_settings() -> None:
    inverter = KineticLangevin(Affine(2).action(), Template(Affine(2)))
    start, langevin = inverter.stages
    assert isinstance(start, Replicate)
    assert isinstance(langevin, Langevin)
    assert (langevin.steps, langevin.step_size, start.num_hypotheses) == (1600, 2e-4, 4)
    assert (langevin.friction, langevin.temperature) == (1.0, 1.0)


def spring(points: Tensor) -> Tensor:
    return (points**2).sum((-1, -2)) / (2 * 0.4**2)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_gaussian_posterior(temperature: float) -> None:
    """Points x~ = g + noise under springs: the posterior of g is normal around the mean of the points."""
    x = torch.tensor([[[0.9, -0.6], [0.5, 0.2]], [[-1.0, 0.3], [-1.0, 0.3]]], dtype=torch.float64)
    inverter = KineticLangevin(Translation(2).action(), spring, 150, 0.1, 1500, 2.0, temperature)
    result = inverter(x, generator=seeded(0))
    std = math.sqrt(temperature * 0.4**2 / 2)
    assert float((result.elements.mean(1) - x.mean(1)).abs().max()) < 4 * std / math.sqrt(1500)
    assert float((result.elements.std(1) / std - 1).abs().max()) < 0.08
    assert result.num_masked_steps.sum() == 0


class AffineLineAction(PointAction):
    """x -> e^a x + b on the line, the standard action of Aff(1)."""

    def __init__(self) -> None:
        super().__init__(affine_line(), (1,))

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        return g[..., :1].exp() * x + g[..., 1:]


@pytest.mark.slow
@pytest.mark.parametrize("coadjoint", [True, False])
def test_non_unimodular_posterior(coadjoint: bool) -> None:
    """Density exp(-E) for left Haar measure e^-a da db on Aff(1): moments by quadrature."""
    x = torch.tensor([[[1.2], [-0.9], [0.4]]], dtype=torch.float64)

    def energy(p: Tensor) -> Tensor:
        return (p**2).sum((-1, -2)) / 2 + 2.0 * torch.log(p.var(-2).squeeze(-1)) ** 2

    a = torch.linspace(-4.0, 5.0, 1201, dtype=torch.float64)[:, None]
    b = torch.linspace(-12.0, 12.0, 1201, dtype=torch.float64)[None, :]
    restored = torch.stack([(p - b) * (-a).exp() for p in x[0, :, 0]], -1).unsqueeze(-1)
    weight = torch.exp(-energy(restored.flatten(0, 1)).reshape(1201, 1201) - a)
    weight = weight / weight.sum()
    mean = torch.stack([(weight * a).sum(), (weight * b).sum()])
    number = 6000
    inverter = KineticLangevin(AffineLineAction(), energy, 500, 0.04, number, 2.0, coadjoint=coadjoint)
    elements = inverter(x, generator=seeded(0)).elements[0]
    error = elements.std(0) / math.sqrt(number)
    assert bool(((elements.mean(0) - mean).abs() < 0.01 + 3.5 * error).all()), (elements.mean(0), mean)
    spread = ((weight * a**2).sum() - mean[0] ** 2).sqrt()
    assert_relative(elements[:, 0].std(), spread, 0.05, floor=0.0)


class TestRun:
    @pytest.mark.parametrize("name", ["Affine(2)", "SE(2)"])
    def test_is_the_process(self, name: str) -> None:
        """Chains from the identity under `trivgeo.sde.processes.KineticLangevinSDE` with the posterior energy."""
        problem = Template(**TEMPLATES[name], batch=2)
        group = problem.action.group
        settings = {"friction": 0.7, "temperature": 0.3}
        result = KineticLangevin(problem.action, problem, 12, 0.05, 3, **settings)(problem.x, generator=seeded(3))
        process = sde.processes.KineticLangevinSDE(
            group, InverseProblem(problem.action, problem).given(problem.x).energies, **settings
        )
        generator = streams(2, 3)
        start = process.start(group.identity(2, 3, dtype=torch.float64), generator=generator)
        final = sde.solve(process, start, [0.05 * m for m in range(13)], generator=generator).final
        assert_relative(result.elements, final.elements, 1e-9, event=2)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_cold_chains_find_the_transformation(self, dtype: torch.dtype) -> None:
        problem = Template(**TEMPLATES["Affine(2)"], dtype=dtype)
        inverter = KineticLangevin(problem.action, problem, 60, 0.2, temperature=1e-4)
        result = inverter(problem.x, generator=seeded(0))
        assert result.elements.dtype == result.energies.dtype == dtype
        assert (result.best_energy() < 2e-3).all(), result.best_energy()
        assert (problem(problem.x) > 5 * result.best_energy()).all()

    def test_result(self) -> None:
        problem = Template(SE(2), batch=3)
        seen: list[tuple[int, int]] = []
        inverter = KineticLangevin(problem.action, problem, 4, 0.01).replace(progress=lambda *i: seen.append(i))
        result = inverter(problem.x, generator=seeded(0))
        assert result.elements.shape == (3, 4, 2, 3)
        assert result.energy_evaluations == 4
        assert result.gradient_evaluations == 4 * 5  # one at the start, one a step
        assert problem.evaluations == 3 * (4 + 4 * 5)
        assert_relative(result.energies, problem.distance(result.elements), 1e-12)
        assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
        assert torch.equal(inverter(problem.x, generator=seeded(0)).elements, result.elements)

    def test_chains_are_held_at_the_edge(self) -> None:
        """A constant infinite energy has no gradient; a chain must not drift in there unseen."""
        action, x = Translation(1).action(), torch.tensor([[[0.0]], [[-5.0]]], dtype=torch.float64)
        result = KineticLangevin(action, wall, 80, 0.1, 8)(x, generator=seeded(0))
        assert torch.isfinite(result.energies[0]).all()
        assert (result.num_masked_steps[0] > 0).any()
        assert torch.isinf(result.energies[1]).all()
        assert (result.num_masked_steps[1] == 80).all()
        assert (result.elements[1] == 0).all()
        alone: InversionResult = KineticLangevin(action, wall, 80, 0.1, 8)(
            torch.tensor([[[0.0]], [[0.5]]], dtype=torch.float64), generator=seeded(0)
        )
        assert torch.equal(result.elements[0], alone.elements[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 0},
        {"num_hypotheses": 0},
        {"step_size": 0.0},
        {"friction": -1.0},
        {"temperature": math.inf},
    ],
    ids=str,
)
def test_bad_settings(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        KineticLangevin(SE(2).action(), wall, **settings)
