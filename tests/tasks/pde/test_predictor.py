"""The network as a predictor anywhere in its domain, and the transformed problems it is tested on."""

import itertools
import math
from typing import Any

import pytest
import torch
from scipy.interpolate import CubicSpline

from tasks.checkpoints import load_checkpoint
from tasks.pde.deeponet import DeepONet
from tasks.pde.domain import relative_l2
from tasks.pde.heat import HEAT_NU, HeatEquation, exact_solution
from tasks.pde.predictor import OperatorPredictor
from tasks.pde.problems import FactorProblems, MixedProblems
from trivgeo.actions import OperatorInput, interpolate
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import HeatSymmetry

CHECKPOINT = "tasks/checkpoints/heat_deeponet.safetensors"
HEAT = HeatEquation()
SPREAD = [0.1, 1.0, 0.01, 0.5, 0.03, 0.5]


def _smooth(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(2 * x) + 0.3 * torch.cos(5 * x + 1)


def test_interpolation_is_exact_on_cubics_in_any_order() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, 12, generator=generator, dtype=torch.float64).cumsum(-1)
    cubic = [0.3, -1.0, 0.5, 0.2]
    y = sum(c * x**k for k, c in enumerate(cubic))
    order = torch.randperm(12, generator=generator)
    at = torch.linspace(float(x[:, 0].max()), float(x[:, -1].min()), 31, dtype=torch.float64)
    expected = sum(c * at**k for k, c in enumerate(cubic)).expand(3, -1)
    torch.testing.assert_close(interpolate(x[:, order], y[:, order], at), expected, rtol=1e-10, atol=1e-10)


def test_interpolation_order_is_four_and_near_a_spline() -> None:
    at = torch.linspace(0.2, 6.0, 301, dtype=torch.float64)
    errors = []
    for n in (51, 101, 201):
        x = torch.linspace(0, 2 * math.pi, n, dtype=torch.float64)
        value = interpolate(x, _smooth(x), at)
        errors.append(float((value - _smooth(at)).abs().max()))
        spline = torch.from_numpy(CubicSpline(x.numpy(), _smooth(x).numpy())(at.numpy()))
        assert float((spline - _smooth(at)).abs().max()) > errors[-1] / 20
    slopes = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert all(3.5 < s < 4.5 for s in slopes), slopes


def test_interpolation_continues_linearly() -> None:
    x = torch.linspace(0, 1, 9, dtype=torch.float64)
    y = 2 * x + 1
    at = torch.tensor([-0.5, 0.3, 1.7], dtype=torch.float64)
    torch.testing.assert_close(interpolate(x, y, at), 2 * at + 1)
    step, beyond = 1 / 8, torch.tensor([0.01, 0.5], dtype=torch.float64)
    miss = (1 + beyond).square() - interpolate(x, x.square(), 1 + beyond)
    torch.testing.assert_close(miss, beyond * (beyond + step))  # half of f'' = 2
    with pytest.raises(ShapeError, match="at least 4 nodes"):
        interpolate(x[:3], y[:3], at)


def test_predictor_reaches_the_floor_and_does_not_care_when_the_problem_starts() -> None:
    """A line at t = 3 is the same problem three units later: the time translation is composed in (DESIGN 3.5)."""
    loaded = load_checkpoint(DeepONet, str(CHECKPOINT))
    network, _ = loaded.network, loaded.metadata
    predictor = OperatorPredictor(network, HEAT.domain.sensors(200))
    place = HEAT.domain.sensors(300, dtype=torch.float64)[None]
    initial = torch.stack([place, torch.zeros_like(place), torch.sin(2 * place)], -1)
    query = HEAT.domain.grid(64, 33, dtype=torch.float64)[None]
    with torch.no_grad():
        jets = predictor(OperatorInput(initial, query))
        shift = torch.tensor([0.0, 3.0, 0.0], dtype=torch.float64)
        later = predictor(OperatorInput(initial + shift, query + shift[:2]))
    torch.testing.assert_close(jets[..., :2], query)
    # the network runs in float32, so times that were shifted and shifted back differ in the last place
    torch.testing.assert_close(later[..., 2], jets[..., 2], rtol=0, atol=1e-5)
    truth = exact_solution(torch.ones(1, 1, dtype=torch.float64), query[..., 0], query[..., 1])
    assert float(relative_l2(jets[..., 2], truth)) < 2e-3


def test_predictor_wants_as_many_sensors_as_the_network() -> None:
    with pytest.raises(ConfigurationError, match=r"expected \[20\], got \[21\]"):
        OperatorPredictor(DeepONet(num_sensors=20, width=8, depth=2), HEAT.domain.sensors(21))


def mixed(seeds: list[int] = [0], **options: Any) -> MixedProblems:  # noqa: B006
    return MixedProblems(HEAT, **{"spread": SPREAD, "seeds": seeds, **options})


def factors(seeds: list[int], **options: Any) -> FactorProblems:
    return FactorProblems(HEAT, seeds, **options)


@pytest.mark.parametrize("kind", [factors, mixed])
def test_problems_solve_the_heat_equation_and_are_reproducible(kind: Any) -> None:
    """Truth by finite differences along the transformed grid's own points: pull back, differentiate, compare."""
    problems = kind([3], cases=4, nx=9, nt=7)
    batch = problems.problems(3)
    again = kind([5, 3], cases=4, nx=9, nt=7).problems(3)
    assert torch.equal(batch.x.initial, again.x.initial)
    assert not torch.equal(batch.elements, problems.problems(4).elements)
    group = HeatSymmetry(HEAT_NU)
    action, inverse = group.action(), group.inverse(batch.elements)

    def solution(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """The moved solution as a function of (x, t): pull the point back, evaluate, push the jet forward."""
        base = action(inverse, torch.stack([x, t], -1))
        u = exact_solution(torch.ones_like(base[..., 0]), base[..., 0], base[..., 1])
        return action(batch.elements, torch.cat([base, u.unsqueeze(-1)], -1))[..., 2]

    x, t = batch.x.query.unbind(-1)
    torch.testing.assert_close(solution(x, t), batch.solution, rtol=1e-9, atol=1e-12)
    h = 1e-3
    u_t = (solution(x, t + h) - solution(x, t - h)) / (2 * h)
    u_xx = (solution(x + h, t) - 2 * solution(x, t) + solution(x - h, t)) / h**2
    assert float((u_t - HEAT_NU * u_xx).abs().max() / u_t.abs().max()) < 1e-4
    initial_x, initial_t, initial_u = batch.x.initial.unbind(-1)
    torch.testing.assert_close(solution(initial_x, initial_t), initial_u, rtol=1e-9, atol=1e-12)


def test_mixed_problems_use_every_direction_and_stay_in_the_domain_of_the_action() -> None:
    batch = mixed(cases=50, nx=5, nt=5, limit=1.5).problems(0)
    group = HeatSymmetry(HEAT_NU)
    assert (group.log(batch.elements).std(0) > 0.005).all()
    d = group.action().denominator(batch.elements, batch.canonical.query)
    assert float(d.min()) > 1 / 1.5
    assert float(d.max()) < 1.5
    assert (batch.x.initial[..., 1].amax(-1) - batch.x.initial[..., 1].amin(-1)).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": []}, "expected distinct seeds"),
        ({"seeds": [1, 1]}, "expected distinct seeds"),
        ({"seeds": [-1]}, "seeds: expected an integer of at least 0"),
        ({"cases": 0}, "cases: expected an integer of at least 1"),
        ({"limit": 1.0}, "limit: expected a number above 1"),
        ({"spread": (0.1, float("nan"), 0, 0, 0, 0)}, "spread: expected 6 finite"),
        ({"spread": (0.1, 0.2)}, "spread: expected 6 finite"),
    ],
)
def test_bad_problem_sets_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        mixed(**options)


def test_bad_amplitudes_and_hopeless_limits_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="amplitude_min <= amplitude_max"):
        HeatEquation(amplitude_min=2.0)
    with pytest.raises(ConfigurationError, match="factor_min <= factor_max"):
        factors([0], factor_min=2.0, factor_max=1.0)
    with pytest.raises(DomainError, match="spread, limit: expected elements"):
        mixed(cases=1, nx=3, nt=3, limit=1.0001, spread=[3.0, 0, 1.0, 0, 0, 0]).problems(0)
