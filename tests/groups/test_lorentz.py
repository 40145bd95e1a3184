"""The Lorentz group against matrix exponentials and special relativity."""

from __future__ import annotations

import math

import pytest
import torch

from tests.helpers import assert_relative, randn
from trivgeo.errors import ShapeError
from trivgeo.groups import Lorentz

GROUP = Lorentz()


def test_exponential_is_that_of_matrices() -> None:
    v = 1.5 * randn(200, 6)
    assert_relative(GROUP.exp(v), torch.linalg.matrix_exp(GROUP.hat(v)), 1e-12, event=2)


def test_logarithms_of_half_turns_and_null_rotations() -> None:
    v = torch.zeros(4, 6).double()
    v[0, 0] = v[1, 1] = math.pi
    v[1, 4] = 0.7  # with a boost along the axis
    v[2] = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0])  # w . w = 0
    v[3] = torch.tensor([0.0, 0.6, 0.0, 0.0, 0.0, -0.6])
    assert_relative(GROUP.log(GROUP.exp(v)), v, 1e-12)


def test_other_components_have_no_logarithm() -> None:
    mirrored = torch.diag(torch.tensor([1.0, -1.0, 1.0, 1.0])).double()
    reversed_time = -torch.eye(4).double()
    assert not GROUP.has_log(torch.stack([mirrored, reversed_time])).any()
    assert GROUP.has_log(torch.eye(4).double())


def test_velocities_add() -> None:
    """Of boosts along one line: (u + v) / (1 + u v)."""
    u, v = 0.6, 0.7
    first, second = (GROUP.boost(torch.tensor([0.0, x, 0.0]).double()) for x in (u, v))
    total = GROUP.velocity(GROUP.compose(first, second))
    assert_relative(total, torch.tensor([0.0, (u + v) / (1 + u * v), 0.0]).double(), 1e-7)


def test_boosts() -> None:
    velocity = 0.9 * torch.nn.functional.normalize(randn(20, 3), dim=-1) * randn(20, 1).sigmoid()
    velocity[0] = 0.0
    g = GROUP.boost(velocity)
    assert_relative(GROUP.velocity(g), velocity, 1e-12)
    assert_relative(g, g.mT.contiguous(), 1e-12)  # no rotation
    scaled = Lorentz(scale=[0.5, 1.0, 2.0, 3.0, 1.0, 0.1])
    assert_relative(scaled.boost(velocity), g, 1e-12)
    assert GROUP.boost(torch.tensor([1.5, 0.0, 0.0])).isnan().any()
    with pytest.raises(ShapeError, match="velocity"):
        GROUP.boost(torch.zeros(2))


def test_the_square_of_intervals_is_kept() -> None:
    metric = torch.tensor([1.0, -1.0, -1.0, -1.0]).double()
    x, g = randn(30, 5, 4), GROUP.exp(randn(30, 6, seed=1))
    moved = GROUP.action()(g, x)
    assert_relative((metric * moved.square()).sum(-1), (metric * x.square()).sum(-1), 1e-10)


def test_rounding_is_projected_away() -> None:
    g = GROUP.exp(randn(20, 6))
    assert_relative(GROUP.project(g + 1e-8 * randn(20, 4, 4, seed=2)), g, 1e-6, event=2)
