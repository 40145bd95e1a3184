"""SE_k(n): pairs of the rotation and one vector are rigid motions."""

from __future__ import annotations

import pytest
import torch

from tests.helpers import assert_relative, randn
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SE, ExtendedSE


@pytest.mark.parametrize(("k", "n"), [(1, 3), (2, 3), (3, 2)])
def test_pairs_are_rigid_motions(k: int, n: int) -> None:
    group, rigid = ExtendedSE(k, n), SE(n)
    v, w = randn(10, group.dim), randn(10, group.dim, seed=1)
    g, h = group.exp(v), group.exp(w)
    d = rigid.dim - n
    for i in range(k):
        part = torch.cat([v[:, :d], v[:, d + i * n : d + (i + 1) * n]], -1)
        assert_relative(group.pose(g, i), rigid.exp(part), 1e-12)
        product = rigid.compose(group.pose(g, i), group.pose(h, i))
        assert_relative(group.pose(group.compose(g, h), i), product, 1e-12)
    assert_relative(group.pose(g), group.pose(g, k - 1), 0.0)
    assert_relative(group.homogeneous(g) @ group.homogeneous(h), group.homogeneous(group.compose(g, h)), 1e-12)


def test_split_and_join() -> None:
    group = ExtendedSE(2)
    g = group.random(4, dtype=torch.float64)
    assert_relative(group.join(*group.split(g)), g, 0.0)
    assert repr(group) == "ExtendedSE(2, 3)"
    with pytest.raises(ShapeError, match="vectors"):
        group.join(torch.eye(3), torch.zeros(3, 3))
    with pytest.raises(ConfigurationError, match="i: expected one of"):
        group.pose(g, 2)
    with pytest.raises(ConfigurationError, match="n: expected one of"):
        ExtendedSE(2, 4)
