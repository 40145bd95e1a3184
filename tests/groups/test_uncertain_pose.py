"""Uncertain poses against sampled products, Kalman's formula, and the Hessian of the density that fusion maximises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.helpers import assert_relative, randn, seeded
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import SE, SO, Affine, ExtendedSE, Heisenberg, LieGroup, Lorentz, Translation, UncertainPose


def covariance(n: int, std: float, seed: int = 0) -> Tensor:
    """A random one, of standard deviations up to ``std``."""
    q = torch.linalg.qr(randn(n, n, seed=seed)).Q
    return std**2 * q @ torch.diag(torch.linspace(0.2, 1.0, n).double()) @ q.mT


def pose(group: LieGroup, std: float, seed: int = 0) -> UncertainPose:
    mean = group.random(std=0.5, generator=seeded(seed), dtype=torch.float64)
    return UncertainPose(group, mean, covariance(group.dim, std, seed))


def difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


GROUPS = [SO(3), SE(2), SE(3), ExtendedSE(2), Lorentz(), Affine(2), Heisenberg(1)]


class TestProducts:
    @pytest.mark.parametrize("group", GROUPS, ids=repr)
    def test_covariance_of_a_product(self, group: LieGroup) -> None:
        """At standard deviations of .3, within two hundredths of sampled products, which have an error of .005."""
        first, second = pose(group, 0.3), pose(group, 0.3, 1)
        generator = seeded(2)
        draws = group.compose(first.sample(100_000, generator=generator), second.sample(100_000, generator=generator))
        sampled = UncertainPose.from_samples(group, draws)
        product = first.compose(second)
        assert difference(product.covariance, sampled.covariance) < 0.02
        assert float(group.distance(product.mean, sampled.mean)) < 0.012

    def test_fourth_order_is_needed(self) -> None:
        """On the Lorentz group the usual propagation is off by more, and samples are not."""
        group = Lorentz()
        first, second = pose(group, 0.45), pose(group, 0.45, 1)
        exact = first.compose(second, "samples", seeded(0)).covariance
        assert difference(first.compose(second).covariance, exact) < 0.03
        assert difference(first.compose(second, "second").covariance, exact) > 0.03

    def test_the_order(self) -> None:
        """The error of the fourth order falls with the sixth power, of the second one with the fourth."""
        group = SO(3)
        nodes, weights = (torch.from_numpy(x) for x in stats_nodes(7))
        errors = {"second": [], "fourth": []}
        for std in (0.2, 0.1):
            first, second = pose(group, std), pose(group, std, 1)
            exact = quadrature(first, second, nodes, weights)
            for method, values in errors.items():
                product = first.compose(second, method)  # type: ignore[arg-type]
                values.append(float((product.covariance - exact).norm()))
        assert 3.7 < math.log2(errors["second"][0] / errors["second"][1]) < 4.3
        assert 5.6 < math.log2(errors["fourth"][0] / errors["fourth"][1]) < 6.4

    def test_known_factors(self) -> None:
        """On the left a known element changes nothing, on the right it turns the covariance."""
        group = SE(3)
        uncertain, known = pose(group, 0.2), group.random(generator=seeded(5), dtype=torch.float64)
        left = UncertainPose(group, known, torch.zeros(6, 6).double()).compose(uncertain)
        assert_relative(left.covariance, uncertain.covariance, 1e-12)
        back = group.Ad(group.inverse(known))
        assert_relative(uncertain.compose(known).covariance, back @ uncertain.covariance @ back.mT, 1e-12)

    def test_inverse_and_relative(self) -> None:
        group = SE(3)
        a, b = pose(group, 0.2), pose(group, 0.1, 1)
        samples = UncertainPose.from_samples(group, group.inverse(a.sample(100_000, generator=seeded(0))))
        assert difference(a.inverse().covariance, samples.covariance) < 0.02
        assert_relative(a.inverse().inverse().covariance, a.covariance, 1e-10)
        relative = a.relative(b)
        assert_relative(relative.mean, a.inverse().compose(b).mean, 1e-12)
        moved = a.transformed(group.inverse, group)
        assert_relative(moved.covariance, a.inverse().covariance, 1e-10)

    def test_to_another_group(self) -> None:
        """The rotation of a rigid motion: the first block of the covariance."""
        uncertain = pose(SE(3), 0.2)
        turned = uncertain.transformed(lambda g: SE(3).split(g)[0], SO(3))
        assert_relative(turned.covariance, uncertain.covariance[:3, :3], 1e-10)


def stats_nodes(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Hermite nodes and weights of the standard normal distribution."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(number)
    return nodes, weights / weights.sum()


def quadrature(first: UncertainPose, second: UncertainPose, nodes: Tensor, weights: Tensor) -> Tensor:
    """The covariance of a product on SO(3) about its mean, by a product rule in six dimensions."""
    group = first.group
    grid = torch.cartesian_prod(*[nodes] * 3)
    mass = torch.cartesian_prod(*[weights] * 3).prod(-1)
    a, b = (group.retract(p.mean, grid @ torch.linalg.cholesky(p.covariance).mT) for p in (first, second))
    products = group.compose(a.unsqueeze(1), b.unsqueeze(0)).flatten(0, 1)
    total = (mass.unsqueeze(1) * mass).flatten()
    mean = group.mean(products, total)
    v = group.log(group.compose(group.inverse(mean), products))
    return (total.unsqueeze(-1) * v).mT @ v


class TestFusion:
    def test_kalman(self) -> None:
        group = Translation(3)
        a, b, c = (pose(group, 0.5, seed) for seed in range(3))
        fused = a.fuse(b, c)
        inverses = [p.covariance.inverse() for p in (a, b, c)]
        expected = sum(inverses).inverse()
        mean = expected @ sum(i @ p.mean for i, p in zip(inverses, (a, b, c), strict=True))
        assert_relative(fused.covariance, expected, 1e-10)
        assert_relative(fused.mean, mean, 1e-10)

    def test_maximum_and_hessian(self) -> None:
        """The gradient of the log-density vanishes; where measurements agree its Hessian is the precision."""
        group = SE(3)
        truth = group.random(generator=seeded(0), dtype=torch.float64)
        spreads = [covariance(6, 0.05, seed) for seed in range(4)]
        measured = [group.retract(truth, 0.05 * randn(6, seed=seed)) for seed in range(4)]
        poses = [UncertainPose(group, g, s) for g, s in zip(measured, spreads, strict=True)]
        fused = poses[0].fuse(*poses[1:])

        def cost(v: Tensor) -> Tensor:
            logs = [group.log(group.compose(group.inverse(g), group.retract(fused.mean, v))) for g in measured]
            return 0.5 * sum(x @ s.inverse() @ x for x, s in zip(logs, spreads, strict=True))

        zero = torch.zeros(6).double()
        assert float(torch.func.grad(cost)(zero).abs().max()) < 1e-6
        assert difference(torch.func.hessian(cost)(zero).inverse(), fused.covariance) < 0.02
        other = poses[2].fuse(poses[0], poses[3], poses[1])
        assert_relative(other.mean, fused.mean, 1e-8)

    def test_mean_with_covariances(self) -> None:
        """Equal round covariances give the mean of a group of bi-invariant metric; a precise element is the mean."""
        group = SO(3)
        g = group.random(2, 5, std=0.3, generator=seeded(0), dtype=torch.float64)
        unit = 0.01 * torch.eye(3).double()
        assert_relative(group.mean(g, covariances=unit.expand(5, 3, 3)), group.mean(g), 1e-8)
        weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).double()
        by_weight = group.mean(g, covariances=unit / weights[:, None, None])
        assert_relative(by_weight, group.mean(g, weights), 1e-8)
        assert_relative(group.mean(g, weights, covariances=unit), group.mean(g, weights), 1e-8)
        sharp = unit * torch.tensor([1e-8, 1.0, 1.0, 1.0, 1.0]).double()[:, None, None]
        assert_relative(group.mean(g, covariances=sharp), g[:, 0], 1e-5)
        with pytest.raises(ShapeError, match="covariances"):
            group.mean(g, covariances=torch.eye(2))

    def test_without_a_covariance(self) -> None:
        """A measurement without error has no density."""
        group = SE(2)
        known = UncertainPose(group, group.identity(), torch.zeros(3, 3))
        assert known.fuse(UncertainPose(group, group.identity(), torch.eye(3))).mean.isnan().all()


class TestSamples:
    def test_mahalanobis(self) -> None:
        """Squares are chi-squared."""
        uncertain = pose(SE(3), 0.2)
        distance = uncertain.mahalanobis(uncertain.sample(2000, generator=seeded(0)))
        assert stats.kstest(distance.square().numpy(), stats.chi2(6).cdf).pvalue > 0.01
        assert stats.kstest((1.1 * distance).square().numpy(), stats.chi2(6).cdf).pvalue < 0.01

    def test_from_samples(self) -> None:
        uncertain = pose(SE(3), 0.2)
        found = UncertainPose.from_samples(SE(3), uncertain.sample(100_000, generator=seeded(0)))
        assert difference(found.covariance, uncertain.covariance) < 0.02
        weights = torch.ones(100_000).double()
        weights[50_000:] = 0.0
        draws = uncertain.sample(100_000, generator=seeded(0))
        half = UncertainPose.from_samples(SE(3), draws, weights)
        assert_relative(half.covariance, UncertainPose.from_samples(SE(3), draws[:50_000]).covariance, 1e-8)

    def test_directions_without_error(self) -> None:
        spread = torch.diag(torch.tensor([0.04, 0.0, 0.0])).double()
        draws = UncertainPose(SE(2), SE(2).identity(dtype=torch.float64), spread).sample(5, generator=seeded(0))
        assert float(SE(2).log(draws)[:, 1:].abs().max()) < 1e-12

    def test_batches_and_float32(self) -> None:
        group = SE(3)
        poses = UncertainPose(group, group.random(4, 1, generator=seeded(0)), 0.01 * torch.eye(6).expand(3, 6, 6))
        assert poses.batch_shape == (4, 3)
        for method in ("fourth", "samples"):
            product = poses.compose(poses.inverse(), method, seeded(0))
            assert product.covariance.shape == (4, 3, 6, 6)
            assert product.mean.dtype == torch.float32
        assert poses.fuse(poses).mean.isfinite().all()
        assert poses.sample(2, generator=seeded(0)).shape == (2, 4, 3, 3, 4)
        assert poses.mahalanobis(poses.mean).shape == (4, 3)
        assert_relative(poses.std, torch.full((4, 3, 6), 0.1), 1e-6)


def test_bad_input() -> None:
    group = SE(2)
    with pytest.raises(ShapeError, match="covariance"):
        UncertainPose(group, group.identity(), torch.eye(2))
    uncertain = UncertainPose(group, group.identity(), torch.eye(3))
    with pytest.raises(ConfigurationError, match="expected a pose of SE"):
        uncertain.compose(UncertainPose(SO(3), SO(3).identity(), torch.eye(3)))
    with pytest.raises(ConfigurationError, match="method"):
        uncertain.compose(uncertain, "third")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="at least two"):
        UncertainPose.from_samples(group, group.identity(1))


def test_covariances_are_not_negative() -> None:
    group = SE(2)
    unit = group.identity(dtype=torch.float64)
    with pytest.raises(DomainError, match="covariance: expected no negative eigenvalues, got -1"):
        UncertainPose(group, unit, -torch.eye(3, dtype=torch.float64))
    assert UncertainPose(group, unit, torch.zeros(3, 3, dtype=torch.float64)).batch_shape == ()
    skew = torch.eye(3, dtype=torch.float64)
    skew[0, 1] = 0.1
    with pytest.raises(DomainError, match=r"expected symmetric matrices, got entries that differ .* by 0\.1"):
        UncertainPose(group, unit, skew)
    skew[0, 1] = 1e-12  # rounding
    assert UncertainPose(group, unit, skew).batch_shape == ()


def test_draws_of_an_unknown_pose() -> None:
    """They are NaN, in its row alone."""
    covariances = torch.stack([torch.eye(3), torch.full((3, 3), torch.nan)])
    drawn = UncertainPose(SE(2), SE(2).identity(), covariances).sample(4, generator=seeded(0))
    assert bool(torch.isfinite(drawn[:, 0]).all())
    assert bool(drawn[:, 1].isnan().any(-1).any(-1).all())


def test_precisions_are_promoted() -> None:
    """Of poses and elements of different dtypes, to the larger one."""
    group = SE(2)
    single = UncertainPose(group, group.random(std=0.3, generator=seeded(0)), 0.01 * torch.eye(3))
    double = pose(group, 0.1)
    for first, second in ((single, double), (double, single)):
        for found in (first.compose(second), first.relative(second), first.fuse(second), first.compose(second.mean)):
            assert found.covariance.dtype == found.mean.dtype == torch.float64
        assert first.mahalanobis(second.mean).dtype == torch.float64


def test_compiled() -> None:
    """Poses that are made, composed and compared in one graph."""
    group = SE(3)

    def cost(g: Tensor, covariance: Tensor) -> Tensor:
        step = UncertainPose(group, g, covariance)
        return step.compose(step).relative(g).mahalanobis(group.inverse(g)) + step.inverse().std.sum(-1)

    g, covariance = group.random(4, std=0.3, generator=seeded(0)), 0.01 * torch.eye(6)
    compiled = torch.compile(cost, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(g, covariance), cost(g, covariance), rtol=1e-4)


def test_poses_that_are_none_and_batches_that_do_not_fit() -> None:
    group, unit = SE(2), 0.01 * torch.eye(3, dtype=torch.float64)
    three, two = (group.random(k, generator=seeded(0), dtype=torch.float64) for k in (3, 2))
    with pytest.raises(DomainError, match=r"mean: expected elements of SE\(2\)"):
        UncertainPose(group, 2.0 * three, unit)
    pose, other = UncertainPose(group, three, unit), UncertainPose(group, two, unit)
    for call in (pose.fuse, pose.compose, pose.relative):
        with pytest.raises(ShapeError, match=r"batches that broadcast, got \[3\] and \[2\]"):
            call(other)
        with pytest.raises(ShapeError, match=r"batches that broadcast, got \[3\] and \[2\]"):
            call(two)
    with pytest.raises(ShapeError, match="batches that broadcast"):
        pose.mahalanobis(two)
    for weights in ([-1.0, 1.0, 1.0], [0.0, 0.0, 0.0]):
        with pytest.raises(DomainError, match="weights"):
            UncertainPose.from_samples(group, three, torch.tensor(weights))


def test_measurements_that_contradict_each_other() -> None:
    """The distance of both has a chi-squared distribution if they agree, and is large if they do not."""
    group, count = SE(2), 2000
    truth = group.random(generator=seeded(0), dtype=torch.float64)
    exact = UncertainPose(group, truth, 1e-4 * torch.diag(torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)))
    first, second = (UncertainPose(group, exact.sample(count, generator=seeded(k)), exact.covariance) for k in (1, 2))
    square = first.relative(second).mahalanobis(group.identity(dtype=torch.float64)).square()
    assert float(square.mean()) == pytest.approx(3.0, abs=4.0 * (6.0 / count) ** 0.5)
    away = UncertainPose(group, group.compose(truth, group.exp(torch.full((3,), 1.0).double())), exact.covariance)
    assert float(exact.relative(away).mahalanobis(group.identity(dtype=torch.float64))) > 20.0
