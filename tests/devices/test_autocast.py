"""Under a user's autocast groups, actions and equations stay in full precision; networks in energies do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.devices import test_inversion as inverters
from tests.devices.test_groups import OPERATIONS
from tests.groups.cases import CASES, GroupCase, marked
from tests.helpers import random_vectors, seeded
from tests.inversion import test_field_inversion as fields
from tests.inversion.problems import clean_problems, operator_action
from trivgeo._torch import pytree
from trivgeo.actions import FieldAction, ImageWarp, PointCloud
from trivgeo.groups import SE, SO, Affine, LieGroup, Projective
from trivgeo.groups.rotations import rotation_from_euler
from trivgeo.inversion import Inverter, ReverseDiffusionSearch
from trivgeo.inversion.energies import LeastSquares
from trivgeo.inversion.stages import Laplace, LevenbergMarquardt
from trivgeo.sde import GeometricSchedule, TrivializedSDE, solve, trivialized_grad, uniform_grid
from trivgeo.sde.noise import KineticNoise, noise_with_target
from trivgeo.sde.processes import KineticLangevinSDE
from trivgeo.sde.solvers import GeometricHeun

DEVICES = ["cpu"]
if torch.cuda.is_available():
    DEVICES.append(pytest.param("cuda", marks=pytest.mark.cuda))  # type: ignore[arg-type]


@pytest.fixture(params=DEVICES)
def place(request: pytest.FixtureRequest) -> str:
    return request.param


def assert_as_without(f: Callable[[], Any], place: str) -> None:
    """To the last bit, in the same dtypes."""
    without = pytree.tree_leaves(f())
    with torch.autocast(place, torch.bfloat16):
        under = pytree.tree_leaves(f())
    for a, b in zip(under, without, strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("case", marked(CASES))
def test_groups(case: GroupCase, place: str) -> None:
    group = case.group
    v, w = (random_vectors(group, 5, std=case.std, seed=s, dtype=torch.float32).to(place) for s in (0, 1))
    for operation in OPERATIONS.values():
        assert_as_without(lambda operation=operation: operation(group, v, w), place)
    g, h = group.exp(v), group.exp(w)
    assert_as_without(lambda: (group.distance(g, h), group.interpolate(g, h, 0.3)), place)
    assert_as_without(lambda: group.exp_with_score(v, w), place)
    assert_as_without(lambda: group.random(3, generator=seeded(0), device=place), place)
    assert_as_without(lambda: (group.algebra.ad(v), group.algebra.bracket(v, w)), place)
    if group.is_compact:
        assert_as_without(lambda: group.random_haar(3, generator=seeded(0), device=place), place)
    if case.has_action:
        action = group.action()
        x = torch.rand(5, 4, action.point_dims[0], generator=seeded(2)).to(place)
        assert_as_without(lambda: (action(g, x), action.jacobian(g, x), action.denominator(g, x)), place)


def warped() -> tuple[Any, Any]:
    return ImageWarp(Affine(2)), torch.rand(3, 1, 8, 8, generator=seeded(0))


def warped_projectively() -> tuple[Any, Any]:
    return ImageWarp(Projective(2), mode="bicubic", padding="reflection"), torch.rand(3, 2, 8, 8, generator=seeded(0))


def field() -> tuple[Any, Any]:
    return FieldAction(fields.GROUP), fields.clean(3, 0)


def cloud() -> tuple[Any, Any]:
    return PointCloud(SE(3)), torch.rand(3, 5, 3, generator=seeded(0))


@pytest.mark.parametrize(
    "make", [warped, warped_projectively, field, cloud, lambda: (operator_action(), clean_problems(3))]
)
def test_actions(make: Callable[[], tuple[Any, Any]], place: str) -> None:
    action, x = make()
    x = pytree.tree_map(lambda leaf: leaf.float().to(place), x)
    g = action.group.random(3, std=0.1, generator=seeded(1), device=place)
    assert_as_without(lambda: tuple(action(g, x)) if isinstance(x, tuple) else action(g, x), place)
    assert_as_without(lambda: (action.is_valid(g, x), action.log_abs_det_jacobian(g, x)), place)


@pytest.mark.parametrize(
    "group", [SO(3, scale=torch.eye(3) + 0.1), SE(2), Affine(1), SO(5)], ids=["SO(3)", "SE(2)", "Affine(1)", "SO(5)"]
)
def test_equations(group: LieGroup, place: str) -> None:
    g = group.random(4, std=0.3, generator=seeded(0), device=place)
    variance = torch.linspace(0.1, 0.5, 4, device=place)
    assert_as_without(lambda: noise_with_target(group, variance, steps=2, order=2, generator=seeded(1)), place)
    assert_as_without(lambda: KineticNoise(group, 1.0, steps=2).sample(variance, seeded(1)), place)
    noising = TrivializedSDE(group, GeometricSchedule(0.05, 0.7))
    grid = uniform_grid(2, 0.0, 1.0)
    assert_as_without(lambda: solve(noising, g, grid, stepper=GeometricHeun(), generator=seeded(2)).final_or_nan, place)
    langevin = KineticLangevinSDE(group, lambda g: g.flatten(1).square().sum(1), 1.0)
    start = langevin.start(g, generator=seeded(4))
    assert_as_without(lambda: tuple(solve(langevin, start, grid, generator=seeded(3)).final_or_nan), place)
    assert_as_without(lambda: trivialized_grad(group, lambda g: g.flatten(1).square().sum(1), g), place)
    angles = torch.rand(4, 3, generator=seeded(0)).to(place)
    assert_as_without(lambda: rotation_from_euler(angles), place)


def test_networks_of_energies_are_rounded(place: str) -> None:
    """They alone: autocast is for them."""
    dtypes: list[torch.dtype] = []
    network = nn.Linear(6, 1, bias=False).to(place)

    def energy(x: Tensor) -> Tensor:
        found = network(x.flatten(1))
        dtypes.extend([x.dtype, found.dtype])
        return found.squeeze(1).square()

    inverter = ReverseDiffusionSearch(Affine(2).action(), energy, steps=2, num_hypotheses=2)
    x = torch.rand(3, 3, 2, generator=seeded(0)).to(place)
    with torch.autocast(place, torch.bfloat16):
        found = inverter(x, generator=seeded(0))
    assert set(dtypes[::2]) == {torch.float32}
    assert set(dtypes[1::2]) == {torch.bfloat16}
    assert found.elements.dtype == torch.float32
    assert bool(torch.isfinite(found.best_energy()).all())


def test_traced() -> None:
    """In one graph, in full precision, too; and under transforms of forward mode, which have no backward pass."""
    group = SE(3)
    v, w = (random_vectors(group, 4, std=0.3, seed=s, dtype=torch.float32) for s in (0, 1))
    f = lambda v, w: group.compose(group.exp(v), group.exp(w))  # noqa: E731
    traced = torch.compile(f, fullgraph=True, backend="eager")
    wanted, derivative = f(v, w), torch.func.vmap(torch.func.jacfwd(f))(v, w)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(traced(v, w), wanted)
        torch.testing.assert_close(torch.func.vmap(torch.func.jacfwd(f))(v, w), derivative)


@pytest.mark.parametrize("method", sorted(inverters.METHODS))
def test_inverters(method: str, place: str) -> None:
    """All that an inverter computes beside the networks of its energy: moves, weights of samples, curvatures."""
    action, _, x = inverters.shapes(2)
    x = x.float().to(place)

    def energy(z: Tensor) -> Tensor:
        return (z - inverters.TRIANGLE.to(z)).square().flatten(1).sum(1)

    def found() -> tuple[Tensor, Tensor]:
        result = inverters.METHODS[method](action, energy)(x, generator=seeded(5))
        return result.elements, result.energies

    assert_as_without(found, place)


def test_least_squares(place: str) -> None:
    action, _, x = inverters.shapes(2)
    energy = LeastSquares(lambda z: z - inverters.TRIANGLE.to(z))
    inverter = Inverter(action, energy, [LevenbergMarquardt(3), Laplace(4)])
    assert_as_without(lambda: inverter(x.float().to(place), generator=seeded(5)).elements, place)
