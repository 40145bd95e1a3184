"""Arguments are converted before a call, and no call runs a function of the user again."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers import seeded
from trivgeo.groups import SE, SO, Translation
from trivgeo.inversion import LieLAC, RandomSearch, ReverseDiffusionSearch, calibrated_scale
from trivgeo.inversion.energies import FunctionEnergy
from trivgeo.sde import GeometricSchedule, TrivializedSDE, probability_flow, reverse_diffusion, solve
from trivgeo.sde.likelihood import HutchinsonDivergence, flow_likelihood

GROUP, SCHEDULE = SO(3), GeometricSchedule(0.1, 1.0)
POINTS = torch.rand(3, 4, 2, generator=seeded(0))
ERRORS = (RuntimeError, TypeError, AttributeError, ValueError, IndexError, ZeroDivisionError, AssertionError)


class FailsOnce:
    """A function of the user that raises at its first call alone, as one that is out of memory does."""

    def __init__(self, function: Callable[..., Any], error: Exception) -> None:
        self.function = function
        self.error = error
        self.calls = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise self.error
        return self.function(*arguments, **named)


def energy(x: Tensor) -> Tensor:
    return x.square().sum((-2, -1))


def score(g: Tensor, t: float = 0.0) -> Tensor:
    return torch.zeros(*g.shape[:-2], 3)


def diffusion_from_lists(f: FailsOnce, generator: torch.Generator) -> None:
    reverse_diffusion(GROUP, SCHEDULE, f, initial=GROUP.identity(3).tolist(), steps=2, generator=generator)


def diffusion_from_an_array(f: FailsOnce, generator: torch.Generator) -> None:
    reverse_diffusion(GROUP, SCHEDULE, f, initial=GROUP.identity(3).numpy(), steps=2, generator=generator)


def solution(f: FailsOnce, generator: torch.Generator) -> None:
    process = TrivializedSDE(GROUP, SCHEDULE, drift=f)
    solve(process, GROUP.identity(3).tolist(), np.array([0.0, 0.5]), generator=generator)


def observer(f: FailsOnce, generator: torch.Generator) -> None:
    process = TrivializedSDE(GROUP, SCHEDULE)
    solve(process, GROUP.identity(3).tolist(), np.array([0.0, 0.5]), generator=generator, observe=f)


def likelihood(f: FailsOnce, generator: torch.Generator) -> None:
    flow = probability_flow(GROUP, SCHEDULE, score)
    flow_likelihood(flow, GROUP.identity(3).tolist(), f, divergence=HutchinsonDivergence(), generator=generator)


def inversion(f: FailsOnce, generator: torch.Generator) -> None:
    method = ReverseDiffusionSearch(SE(2).action(), f, SCHEDULE, steps=2, num_hypotheses=2)
    method(POINTS.tolist(), generator=generator)


def search(f: FailsOnce, generator: torch.Generator) -> None:
    RandomSearch(SE(2).action(), FunctionEnergy(f), 3, 1)(POINTS.numpy(), generator=generator)


def descent(f: FailsOnce, generator: torch.Generator) -> None:
    start = SE(2).identity(3, 1).tolist()
    LieLAC(SE(2).action(), f, 2, 1)(POINTS, initial=start, generator=generator)


def calibration(f: FailsOnce, generator: torch.Generator) -> None:
    calibrated_scale(Translation(2).action(), f, POINTS.tolist(), num_samples=8, generator=generator)


CALLS: list[tuple[Callable[[FailsOnce, torch.Generator], None], Callable[..., Any]]] = [
    (diffusion_from_lists, score),
    (diffusion_from_an_array, score),
    (solution, score),
    (observer, lambda index, t, g: None),
    (likelihood, energy),
    (inversion, energy),
    (search, energy),
    (descent, energy),
    (calibration, energy),
]


@pytest.mark.parametrize(("call", "function"), CALLS, ids=lambda f: f.__name__)
def test_an_error_of_a_function_of_the_user_passes_unchanged(
    call: Callable[[FailsOnce, torch.Generator], None], function: Callable[..., Any]
) -> None:
    error = RuntimeError("out of memory")
    once = FailsOnce(function, error)
    with pytest.raises(RuntimeError) as caught:
        call(once, seeded(0))
    assert caught.value is error
    assert once.calls == 1
    call(once, seeded(0))  # the call is a right one: it failed for nothing but that error
