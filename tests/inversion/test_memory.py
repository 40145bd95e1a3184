"""Memory of energies: measured, bounded, and the same results whatever the bound."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import randn, seeded
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE
from trivgeo.inversion import TIED, InverseProblem, Inverter, check_energy
from trivgeo.inversion.stages import QuasiNewton, Replicate

ACTION = SE(2).action()
WIDTH = 20_000


class Wide(nn.Module):
    """A network whose hidden layer is much larger than a datum; records how many data it sees at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, WIDTH, dtype=torch.float64)
        self.most = 0

    def forward(self, y: Tensor) -> Tensor:
        self.most = max(self.most, len(y))
        return torch.tanh(self.layer(y.flatten(1))).square().mean(1)


def test_the_size_of_what_a_gradient_needs() -> None:
    """`tanh` and `square` each keep an output of the hidden layer; a factor of two is for the gradients of both."""
    problem, x = InverseProblem(ACTION, Wide()), randn(3, 5, 2)
    measured = problem.bytes_of_an_energy(problem.given(x).data)
    hidden = 8 * WIDTH
    assert 2 * hidden <= measured <= 4.2 * hidden


@pytest.mark.parametrize("max_memory", [0.002, 0.01])
def test_no_more_at_once_than_fit(max_memory: float) -> None:
    energy, x = Wide(), randn(4, 5, 2)
    free = Inverter(ACTION, energy, [Replicate(16), QuasiNewton(2)], max_evaluations=None, progress=False)
    expected = free(x, generator=seeded(0))
    assert energy.most == 64
    energy.most = 0
    found = free.replace(max_evaluations="auto", max_memory=max_memory)(x, generator=seeded(0))
    torch.testing.assert_close(found.elements, expected.elements)
    assert 1 <= energy.most * 2 * 8 * WIDTH <= max_memory * 2**30


def test_checks_and_searches_for_data_are_bounded() -> None:
    energy, clean = Wide(), randn(20, 5, 2)
    moves = lambda n, g: SE(2).random(n, generator=g, dtype=torch.float64)  # noqa: E731
    check_energy(ACTION, energy, clean, moves, max_memory=0.01)
    assert energy.most <= 33
    energy.most = 0
    TIED(ACTION, energy, moves, clean, evaluations=20, max_memory=0.01)(clean[:3], generator=seeded(0))
    assert energy.most <= 33


def test_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_memory"):
        Inverter(ACTION, lambda y: y.sum((1, 2)), [], max_memory=0.0)
