"""Lifts of Stiefel and Grassmann manifolds and of positive definite matrices: projections, and uniform fibres."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from tests.helpers import assert_relative, randn, seeded
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.generative.distributions import MatrixFisher
from trivgeo.groups import SO
from trivgeo.groups.homogeneous import (
    grassmann_from_rotation,
    grassmann_to_rotation,
    spd_from_linear,
    spd_to_linear,
    stiefel_from_rotation,
    stiefel_to_rotation,
)


def haar(n: int, count: int, seed: int) -> torch.Tensor:
    return SO(n).random_haar(count, generator=seeded(seed), dtype=torch.float64)


def assert_rotations(g: torch.Tensor) -> None:
    assert_relative(g.mT @ g, torch.eye(g.shape[-1], dtype=g.dtype).expand_as(g), 1e-12)
    assert_relative(torch.linalg.det(g), torch.ones(len(g), dtype=g.dtype), 1e-12)


def assert_same_law(a: torch.Tensor, b: torch.Tensor, places: tuple[tuple[int, int], ...]) -> None:
    for i, j in places:
        assert stats.ks_2samp(a[:, i, j].numpy(), b[:, i, j].numpy()).pvalue > 0.01


@pytest.mark.parametrize(("n", "k"), [(2, 1), (3, 2), (5, 2), (5, 4)])
def test_stiefel(n: int, k: int) -> None:
    """Uniform frames lift to Haar's law; columns that are no frame are made one by Gram and Schmidt."""
    x = torch.linalg.qr(randn(2000, n, k)).Q * randn(2000, 1, k, seed=2).sign()
    g = stiefel_to_rotation(x, seeded(1))
    assert_rotations(g)
    assert_relative(stiefel_from_rotation(g, k), x, 1e-12)
    if n > 2:
        assert_same_law(g, haar(n, 2000, 3), ((0, n - 1), (1, 1), (n - 1, n - 1)))
    upper = torch.eye(k).double() + 0.3 * torch.ones(k, k).double().triu(1)
    assert_relative(stiefel_from_rotation(stiefel_to_rotation(7.0 * x @ upper), k), x, 1e-12)


def test_lift_of_a_frame_of_space_is_the_only_one() -> None:
    """The third axis is the product of the two."""
    x = torch.linalg.qr(randn(9, 3, 2)).Q
    third = torch.linalg.cross(x[..., 0], x[..., 1])
    assert_relative(stiefel_to_rotation(x)[..., 2], third, 1e-12)


@pytest.mark.parametrize(("n", "k"), [(3, 1), (4, 2), (5, 3)])
def test_grassmann(n: int, k: int) -> None:
    p = grassmann_from_rotation(haar(n, 2000, 0), k)
    assert_relative(p @ p, p, 1e-12)
    g = grassmann_to_rotation(p, k, seeded(1))
    assert_rotations(g)
    assert_relative(grassmann_from_rotation(g, k), p, 1e-11)
    assert_same_law(g, haar(n, 2000, 2), ((0, 0), (1, 0), (0, n - 1)))


def test_grassmann_fibre_is_uniform() -> None:
    """Of one plane of R^4: the first column is uniform on its circle, the last on that of the complement."""
    p = torch.diag(torch.tensor([1.0, 1.0, 0.0, 0.0])).double().expand(2000, 4, 4)
    g = grassmann_to_rotation(p, 2, seeded(0))
    for angles in (torch.atan2(g[:, 1, 0], g[:, 0, 0]), torch.atan2(g[:, 3, 3], g[:, 2, 3])):
        assert stats.kstest((angles / (2 * math.pi) + 0.5).numpy(), "uniform").pvalue > 0.01
    assert 800 < int((torch.linalg.det(g[:, :2, :2]) > 0).sum()) < 1200  # both orientations


def test_positive_definite_matrices() -> None:
    a = randn(2000, 3, 3)
    p = a @ a.mT + 0.1 * torch.eye(3).double()
    lift = spd_to_linear(p, seeded(1))
    assert_relative(spd_from_linear(lift), p, 1e-12)
    assert bool((torch.linalg.det(lift) > 0).all())
    one = spd_to_linear(torch.eye(3).double().expand(2000, 3, 3), seeded(2))  # rotations of Haar's law
    assert_rotations(one)
    assert_same_law(one, haar(3, 2000, 3), ((0, 0), (1, 2)))


def test_densities_on_the_sphere_of_lines() -> None:
    """The mean of a density over lifts is that of the projection: of a matrix Fisher law, by its samples."""
    law = MatrixFisher(torch.diag(torch.tensor([3.0, 1.0, 0.0]).double()))
    drawn = law.sample((20_000,))
    first = grassmann_from_rotation(drawn, 1)[:, 0, 0]  # the square of a coordinate of a line
    lines = grassmann_from_rotation(haar(3, 4000, 0), 1)  # uniform
    lifts = grassmann_to_rotation(lines.expand(20, *lines.shape), 1, seeded(1))
    density = law.log_prob(lifts).exp().mean(0)
    assert float(density.mean()) == pytest.approx(1.0, abs=0.1)
    assert float((density * lines[:, 0, 0]).mean()) == pytest.approx(float(first.mean()), abs=0.05)


def test_rows_without_a_lift_are_nan() -> None:
    x = torch.linalg.qr(randn(1, 4, 2)).Q
    for wrong in (x * math.nan, x * math.inf, 0.0 * x, torch.cat([x[..., :1], 2.0 * x[..., :1]], -1)):
        assert stiefel_to_rotation(torch.cat([x, wrong]), seeded(0)).isnan().any(-1).any(-1).tolist() == [False, True]
    p = torch.eye(2).double()
    for bad in (p * math.nan, -p, torch.ones(2, 2).double(), torch.tensor([[1.0, 3.0], [3.0, 1.0]]).double()):
        assert spd_to_linear(torch.stack([p, bad]), seeded(0)).isnan().any(-1).any(-1).tolist() == [False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dependent_columns_are_nan(dtype: torch.dtype) -> None:
    """Also where rounding leaves a part of the last column; columns of other lengths are frames."""
    x = randn(4000, 4, 2).to(dtype)
    both = x @ (30.0 * randn(4000, 2, 1, seed=1).to(dtype))
    for wrong in (torch.cat([x, both], -1), torch.cat([x[..., :1], 1.7 * x[..., :1]], -1)):
        assert bool(stiefel_to_rotation(wrong, seeded(0)).isnan().flatten(1).all(-1).all())
    tiny = x * torch.tensor([1.0, 1e-12], dtype=dtype)
    assert_relative(stiefel_to_rotation(tiny, seeded(0)), stiefel_to_rotation(x, seeded(0)), 1e-3)


def test_matrices_that_are_no_projectors_are_nan() -> None:
    """Of another rank, not symmetric, or not idempotent."""
    p = grassmann_from_rotation(haar(4, 1, 0), 2)[0]
    turned = p + 0.2 * (eigh := torch.linalg.eigh(p).eigenvectors)[:, :1] @ eigh[:, 3:].T  # idempotent, not symmetric
    assert_relative(turned @ turned, turned, 1e-12)
    others = [*(grassmann_from_rotation(haar(4, 1, 1), k)[0] for k in (1, 3)), 2.0 * p, -p, turned, p * math.nan]
    whole = torch.stack([p, *others, torch.eye(4).double(), p + 1e-4])
    found = grassmann_to_rotation(whole, 2, seeded(0)).isnan().any(-1).any(-1).tolist()
    assert found == [False, *[True] * 7, False]
    well = torch.eye(2).double()
    assert bool(spd_to_linear(well + torch.tensor([[0.0, 0.5], [0.0, 0.0]]), seeded(0)).isnan().all())
    lift = spd_to_linear(well + 1e-6 * torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double(), seeded(0))
    assert_relative(spd_from_linear(lift), well + 5e-7 * (1.0 - well), 1e-12)


def test_precisions_and_shapes() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.eye(4)[:, :2].to(dtype).expand(2, 3, 4, 2)
        g = stiefel_to_rotation(x, seeded(0))
        assert g.dtype == dtype
        assert g.shape == (2, 3, 4, 4)
    for call in (
        lambda: stiefel_to_rotation(torch.ones(3, 3)),
        lambda: stiefel_from_rotation(torch.ones(3, 2), 1),
        lambda: grassmann_to_rotation(torch.ones(3, 2), 1),
        lambda: spd_to_linear(torch.ones(3)),
    ):
        with pytest.raises(ShapeError, match="expected"):
            call()
    with pytest.raises(ConfigurationError, match="k: expected less than n = 3, got 3"):
        grassmann_to_rotation(torch.eye(3), 3)
    with pytest.raises(ConfigurationError, match="k"):
        stiefel_from_rotation(torch.eye(3), 0)
