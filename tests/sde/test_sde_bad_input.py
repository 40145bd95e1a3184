"""Scores, drifts, grids and generators of the wrong kind: refused by name, never broadcast."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from trivgeo.errors import ConfigurationError, DomainError, ShapeError, TrivgeoError
from trivgeo.groups import SE, SO, Affine, LieGroup, Translation
from trivgeo.sde import (
    ConstantSchedule,
    GeometricSchedule,
    TrivializedSDE,
    forward_noising,
    probability_flow_sample,
    reverse_diffusion,
    solve,
)
from trivgeo.sde.likelihood import flow_likelihood
from trivgeo.sde.processes import KineticDiffusion, KineticState
from trivgeo.sde.solvers import solve_adaptive

SCHEDULE = GeometricSchedule(0.01, 0.5)
ANSWERS: list[tuple[Any, type[TrivgeoError]]] = [
    (torch.zeros(4, 1), ShapeError),
    (torch.zeros(4), ShapeError),
    (torch.zeros(()), ShapeError),
    (torch.zeros(1, 4, 3), ShapeError),
    (torch.zeros(4, 3, dtype=torch.long), ConfigurationError),
    (torch.zeros(4, 3, dtype=torch.complex64), ConfigurationError),
    (None, ConfigurationError),
    (0.0, ConfigurationError),
    ("zero", ConfigurationError),
]


@pytest.mark.parametrize(("answer", "error"), ANSWERS)
@pytest.mark.parametrize("group", [SO(3), Affine(1)], ids=repr)
def test_scores(group: LieGroup, answer: Any, error: type[TrivgeoError]) -> None:
    """On unimodular groups, and where the modular drift is added."""
    with pytest.raises(error, match="score: expected"):
        reverse_diffusion(group, SCHEDULE, lambda g, t: answer, initial=group.identity(4), steps=2)


@pytest.mark.parametrize(("answer", "error"), ANSWERS)
def test_drifts(answer: Any, error: type[TrivgeoError]) -> None:
    sde = TrivializedSDE(SO(3), SCHEDULE, drift=lambda g, t: answer)
    with pytest.raises(error, match="drift: expected"):
        solve(sde, SO(3).identity(4), [0.0, 1.0])


def test_one_number_for_each_chain_is_no_drift() -> None:
    sde = TrivializedSDE(Translation(1), SCHEDULE, drift=lambda g, t: torch.zeros(3))
    with pytest.raises(ShapeError, match=r"drift: expected algebra vectors \[3, 1\], got \[3\]"):
        solve(sde, Translation(1).identity(3), [0.0, 1.0])


def test_a_wider_score_is_taken_in_the_dtype_of_the_elements() -> None:
    def score(g: Tensor, t: float) -> Tensor:
        return torch.zeros(*g.shape[:-2], 3, dtype=torch.float64)

    g = reverse_diffusion(SO(3), SCHEDULE, score, initial=SO(3).identity(4), steps=2)
    assert g.dtype == torch.float32


@pytest.mark.parametrize("generator", [0, "seed", torch.default_generator.get_state(), object])
def test_generators(generator: Any) -> None:
    for call in (SO(3).random, SO(3).random_haar):
        with pytest.raises(ConfigurationError, match=r"generator: expected a torch\.Generator"):
            call(2, generator=generator)
    with pytest.raises(ConfigurationError, match=r"generator: expected a torch\.Generator"):
        solve(TrivializedSDE(SO(3), SCHEDULE), SO(3).identity(4), [0.0, 1.0], generator=generator)


@pytest.mark.parametrize(
    "times", [None, 1.0, "01", [0.0, "1"], [0.0], [], [0.0, None], [0.0, 0.0], [0.0, 2.0], [0.0, math.nan]]
)
def test_grids(times: Any) -> None:
    with pytest.raises(DomainError, match="times: expected"):
        solve(TrivializedSDE(SO(3), SCHEDULE), SO(3).identity(4), times)


def test_an_endless_grid() -> None:
    with pytest.raises(DomainError, match="times: expected"):
        solve(TrivializedSDE(SO(3), ConstantSchedule(0.1)), SO(3).identity(4), [0.0, math.inf])


@pytest.mark.parametrize("draw", [reverse_diffusion, probability_flow_sample], ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_chains_that_cannot_be_followed_are_nan(draw: Any, value: float) -> None:
    """Elements that stay where they were because their score is none are no samples."""

    def score(g: Tensor, t: float) -> Tensor:
        v = torch.zeros(*g.shape[:-2], 3)
        v[1] = value if t < 0.5 else 0.0
        return v

    start = SO(3).random(3, generator=torch.Generator().manual_seed(0))
    with pytest.warns(RuntimeWarning, match="1 of 3 samples are NaN"):
        drawn = draw(SO(3), SCHEDULE, score, initial=start, steps=4, generator=torch.Generator().manual_seed(1))
    assert torch.isnan(drawn[1]).all()
    assert torch.isfinite(drawn[[0, 2]]).all()


def test_elements_as_arrays_and_lists() -> None:
    """Lists are in the default dtype."""
    group, still = SE(2), TrivializedSDE(SE(2), ConstantSchedule(0.0), lambda g, t: g.flatten(-2)[..., :3], noisy=False)
    noisy, kinetic = TrivializedSDE(group, SCHEDULE), KineticDiffusion(group)
    g = group.random(4, generator=torch.Generator().manual_seed(0))

    def noise() -> torch.Generator:
        return torch.Generator().manual_seed(1)

    for same in (g.numpy(), g.tolist()):
        for call in (
            lambda g: solve(noisy, g, [0.0, 1.0], generator=noise()).final,
            lambda g: solve_adaptive(still, g, 0.0, 1.0).final,
            lambda g: flow_likelihood(still, g, lambda g: g[..., 0, 0]).log_density,
            lambda g: reverse_diffusion(group, SCHEDULE, still.drift, initial=g, steps=2, generator=noise()),
            lambda g: forward_noising(group, SCHEDULE, g, steps=2, generator=noise()),
            lambda g: forward_noising(group, SCHEDULE, g, t=0.0),
        ):
            assert torch.equal(call(same), call(g))
        point = KineticState(same, [[1, 1, 1]] * 4)  # type: ignore[arg-type]
        assert solve(kinetic, point, [0.0, 1.0], generator=noise()).final.elements.shape == g.shape
        with pytest.raises(ShapeError, match="initial: expected elements"):
            solve(noisy, same[0][0], [0.0, 1.0])


def test_no_noise_is_a_copy() -> None:
    g = SO(3).identity(2)
    noised = forward_noising(SO(3), SCHEDULE, g, t=0.0)
    noised.zero_()
    assert torch.equal(g, SO(3).identity(2))
    with pytest.raises(ShapeError, match="initial: expected elements"):
        forward_noising(SO(3), SCHEDULE, torch.zeros(2), t=0.0)
