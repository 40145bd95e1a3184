"""Groupwise registration against known motions and dense least squares."""

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from tests.helpers import assert_relative, randn
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SE, LieGroup, Translation
from trivgeo.registration import register
from trivgeo.registration.groupwise import register_groupwise


def copies(group: LieGroup, g: Tensor, noise: float, points: int = 60) -> list[Tensor]:
    """Clouds that g takes to one cloud, each with noise of its own."""
    cloud = randn(points, 3 if 3 in group.action().point_dims else 2, seed=1)
    moved = group.action()(group.inverse(g), cloud)
    return list(moved + noise * randn(*moved.shape, seed=2))


def test_to_the_mean() -> None:
    group = SE(3)
    g = group.exp(0.3 * randn(5, 6, seed=3))
    g = group.compose(group.inverse(group.mean(g)), g)
    r = register_groupwise(copies(group, g, 0.02), group, matched=True)
    assert r.trusted, r.reasons
    v = group.log(group.compose(group.inverse(r.elements), g))
    squares = torch.einsum("ki,kij,kj->k", v, torch.linalg.inv(r.covariances), v)
    assert bool((squares < chi2.ppf(0.9999, 6)).all())
    assert float(v.norm(dim=1).max()) < 0.02
    assert_relative(group.mean(r.elements), group.identity(dtype=torch.float64), 1e-6)


def test_a_series_is_smoothed_as_by_least_squares() -> None:
    """On translations the smoother is a linear problem."""
    group, number = Translation(2), 8
    g = 0.05 * randn(number, 2, seed=4).cumsum(0)
    data = copies(group, g, 0.5, points=40)
    motion = 0.05**2 * torch.eye(2, dtype=torch.float64)
    pairs = [(i, i + 1) for i in range(number - 1)]
    r = register_groupwise(data, group, pairs=pairs, motion=motion, reference=0, matched=True)
    rows, right, weights = [], [], []
    for i, j in pairs:
        one = register(data[j], data[i], group, matched=True)
        for value, covariance in ((one.element, one.covariance), (torch.zeros(2).double(), motion)):
            row = torch.zeros(2, 2 * number, dtype=torch.float64)
            row[:, 2 * i : 2 * i + 2], row[:, 2 * j : 2 * j + 2] = -torch.eye(2), torch.eye(2)
            root = torch.linalg.inv(torch.linalg.cholesky(covariance))
            rows.append(root @ row[:, 2:])
            right.append(root @ value)
            weights.append(root)
    matrix = torch.cat(rows)
    solved = torch.linalg.lstsq(matrix, torch.cat(right).unsqueeze(-1)).solution.reshape(number - 1, 2)
    assert_relative(r.elements[1:], solved, 1e-6)
    expected = torch.linalg.inv(matrix.mT @ matrix)
    assert_relative(r.covariances[-1], expected[-2:, -2:], 1e-6)
    alone = register_groupwise(data, group, pairs=pairs, reference=0, matched=True)
    assert float((r.elements - (g - g[0])).norm()) < float((alone.elements - (g - g[0])).norm())


class TestRefusedPairs:
    def test_garbage_does_not_enter(self) -> None:
        group = SE(3)
        g = group.exp(0.3 * randn(4, 6, seed=5))
        data = copies(group, g, 0.01)
        good = register_groupwise(data, group, matched=True, reference=0)
        assert good.trusted, good.reasons
        r = register_groupwise([*data, randn(60, 3, seed=6)], group, matched=True, reference=0)
        assert not r.trusted
        assert "connects 4 of 5 data" in r.reasons[0]
        assert_relative(r.elements[:4], good.elements, 1e-3)
        assert bool(r.elements[4].isnan().all())

    def test_motion_bridges_a_frame(self) -> None:
        group = Translation(2)
        g = 0.05 * randn(5, 2, seed=7).cumsum(0)
        data = copies(group, g, 0.01)
        data[2] = randn(60, 2, seed=8)
        motion = 0.05**2 * torch.eye(2, dtype=torch.float64)
        r = register_groupwise(data, group, motion=motion, reference=0, matched=True)
        assert "only the motion says where some frames are" in r.reasons
        off = (r.elements - (g - g[0]))[[1, 3, 4]]
        assert float(off.norm(dim=1).max()) < 0.02
        assert float(r.covariances[2].trace()) > 10.0 * float(r.covariances[1].trace())


def test_refusals() -> None:
    cloud = randn(5, 2, seed=0)
    with pytest.raises(ConfigurationError, match="data: expected at least two, got 1"):
        register_groupwise([cloud], Translation(2))
    with pytest.raises(ConfigurationError, match="pairs: expected two different numbers of 2 data"):
        register_groupwise([cloud, cloud], Translation(2), pairs=[(0, 2)])
    with pytest.raises(ConfigurationError, match="reference: expected a number of 2 data"):
        register_groupwise([cloud, cloud], Translation(2), reference=2)
    with pytest.raises(ShapeError, match=r"motion: expected \[2, 2\]"):
        register_groupwise([cloud, cloud], Translation(2), motion=torch.eye(3))
