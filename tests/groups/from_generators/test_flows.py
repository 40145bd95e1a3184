"""Parts of numerical flows against closed forms and dense solutions: quadratures to each node, blocks, steps."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from trivgeo.groups import from_generators
from trivgeo.groups.from_generators.flows import QuadratureRule, extrapolated_flow

F64 = torch.float64


def test_quadrature_to_each_node() -> None:
    """Of exp(a t), in closed form, from zero to each node and to one."""
    rule = QuadratureRule(24)
    rates = torch.tensor([-3.0, -0.5, 0.0, 2.0], dtype=F64)
    times = rule.times.matching(rates)
    assert times.shape == (25,)
    integrals, error = rule.integrate((times[:-1, None] * rates).exp())
    a = torch.where(rates == 0, 1.0, rates)
    expected = torch.where(rates == 0, times[:, None], ((times[:, None] * a).exp() - 1.0) / a)
    torch.testing.assert_close(integrals, expected, rtol=0, atol=1e-12)
    assert float(error.max()) < 1e-12


@pytest.mark.parametrize("time", [-1.0, 0.3, 1.0])
def test_extrapolated_steps(time: float) -> None:
    """Of a pendulum against scipy, and of a field in closed form: tan(t + arctan y)."""
    start = torch.tensor([[0.3, -0.2], [1.0, 0.5]], dtype=F64)

    def pendulum(y: Tensor) -> Tensor:
        return time * torch.stack([y[..., 1], -y[..., 0].sin()], -1)

    end, alive, error = extrapolated_flow(pendulum, start, 30, 1e-11)
    assert bool(alive.all())
    assert float(error.max()) < 1e-9
    for first, last in zip(start, end, strict=True):
        solved = solve_ivp(
            lambda t, y: pendulum(torch.as_tensor(y)).numpy(), (0.0, 1.0), first.numpy(), rtol=1e-12, atol=1e-13
        )
        torch.testing.assert_close(last, torch.as_tensor(solved.y[:, -1]), rtol=0, atol=1e-9)
    y = torch.tensor([[0.1], [-0.4]], dtype=F64)
    moved, alive, _ = extrapolated_flow(lambda x: time * (1.0 + x * x), y, 40, 1e-11)
    assert bool(alive.all())
    torch.testing.assert_close(moved, (time + y.atan()).tan(), rtol=1e-9, atol=1e-9)


def test_blocks_over_a_base() -> None:
    """The shift of x with u' = x u + cos x over it, in closed form, and numbers v' = 2 x beside it."""
    group = from_generators(
        {"go": lambda p: torch.stack([torch.ones_like(p[0]), p[0] * p[1] + p[0].cos(), 2.0 * p[0]])}, variables=3
    )
    action = group.action()
    t = torch.tensor([0.7, -0.4], dtype=F64)
    points = torch.tensor([[0.2, 1.0, -1.0], [-0.5, 0.3, 2.0]], dtype=F64)
    moved = action(group.exp(t.unsqueeze(-1)), points)
    for time, images in zip(t.tolist(), moved, strict=True):
        for (x, u, v), image in zip(points.tolist(), images, strict=True):
            solved = solve_ivp(
                lambda s, y: [1.0, y[0] * y[1] + math.cos(y[0])], (0.0, time), [x, u], rtol=1e-12, atol=1e-13
            )
            expected = torch.tensor([x + time, solved.y[1, -1], v + (x + time) ** 2 - x**2], dtype=F64)
            torch.testing.assert_close(image, expected, rtol=0, atol=1e-9)
