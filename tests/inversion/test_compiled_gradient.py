"""Energies with gradients by compiled code: as eager ones, for any number of elements, and eager where that fails."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn

from trivgeo.groups import SE
from trivgeo.inversion import Inverter, ReverseDiffusionSearch
from trivgeo.inversion.posterior import CompiledGradient

ACTION = SE(2).action()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Distance(nn.Module):
    """Squared distance of a cloud to one that it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.cloud = nn.Parameter(torch.randn(5, 2, generator=seeded()))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.cloud).square().sum((-2, -1))


def moved(count: int) -> Tensor:
    g = SE(2).exp(torch.randn(count, 3, generator=seeded(1)))
    with torch.no_grad():
        return ACTION(g, Distance().cloud)


def gradients(inverter: Inverter, x: Tensor, chains: int) -> tuple[Tensor, Tensor]:
    """Of the energy by the elements, as a score takes them."""
    given = inverter.problem.given(x, max_evaluations=inverter.max_evaluations)
    g = SE(2).exp(0.5 * torch.randn(len(x), chains, 3, generator=seeded(2)))

    def total(g: Tensor) -> tuple[Tensor, Tensor]:
        energy = given.differentiable(g)
        return energy.sum(), energy

    return torch.func.grad(total, has_aux=True)(g)


@pytest.mark.usefixtures("traced")
def test_results_are_those_of_eager_evaluation() -> None:
    """By one graph: of blocks that are full and that are not, and of fewer elements after pruning."""
    check_results()


@pytest.mark.slow(reason="its graph stays, and machine code of groups")
def test_results_of_machine_code() -> None:
    check_results()


def check_results() -> None:
    eager = Inverter(ACTION, Distance(), [], max_evaluations=128)
    fast = eager.replace(compiled=True)
    compiled = fast.problem.compiled_gradient
    assert isinstance(compiled, CompiledGradient)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for count, chains in ((50, 3), (50, 1), (2, 1), (3, 64)):
            for found, expected in zip(
                gradients(fast, moved(count), chains), gradients(eager, moved(count), chains), strict=True
            ):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert compiled.reason == ""
    again = pickle.loads(pickle.dumps(fast)), copy.deepcopy(fast)
    assert all(one.problem.compiled_gradient.evaluate.energy is one.problem.energy for one in again)


@pytest.mark.usefixtures("traced")
def test_a_search_finds_the_same() -> None:
    search = ReverseDiffusionSearch(ACTION, Distance(), steps=3, num_hypotheses=8, keep_best=True).replace(
        progress=False
    )
    fast = search.replace(compiled=True)
    assert fast.compiled
    assert fast.then().compiled
    found, expected = (one(moved(12), generator=seeded()) for one in (fast, search))
    torch.testing.assert_close(found.best(), expected.best(), rtol=1e-3, atol=1e-3)
    assert found.gradient_evaluations == expected.gradient_evaluations


@pytest.mark.usefixtures("traced")
def test_what_does_not_compile_stays_eager_and_says_so() -> None:
    def energy(x: Tensor) -> Tensor:
        looked = bool(x.detach().abs().max() > 0)
        return x.square().sum((-2, -1)) if looked else x.sum((-2, -1))

    eager = Inverter(ACTION, energy, [])
    fast = eager.replace(compiled=True)
    with pytest.warns(RuntimeWarning, match="energy in torch.float32, derivatives: eager, since compilation failed"):
        found = gradients(fast, moved(40), 4)
    for one, other in zip(found, gradients(eager, moved(40), 4), strict=True):
        torch.testing.assert_close(one, other)
    assert "compilation failed" in fast.problem.compiled_gradient.reason


@pytest.mark.usefixtures("traced")
def test_a_result_that_differs_is_not_taken() -> None:
    def energy(x: Tensor) -> Tensor:
        return x.square().sum((-2, -1)) * (2.0 if torch.compiler.is_compiling() else 1.0)

    eager = Inverter(ACTION, energy, [])
    with pytest.warns(RuntimeWarning, match="derivatives: eager, since its compiled result differed"):
        found = gradients(eager.replace(compiled=True), moved(40), 4)
    for one, other in zip(found, gradients(eager, moved(40), 4), strict=True):
        torch.testing.assert_close(one, other)
