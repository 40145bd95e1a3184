"""Distances, segments and means; rotations by quaternions and Euler angles against SciPy; spheres."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from scipy.spatial.transform import Rotation
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap

from tests.groups.cases import GroupCase
from tests.helpers import assert_relative, numeric_jacobian, rand, randn, random_elements, seeded
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SE, SL, SO, SU, Affine, LieGroup, Similarity, Torus, Translation, U
from trivgeo.groups.homogeneous import sphere_from_rotation, sphere_to_rotation
from trivgeo.groups.rotations import (
    rotation_from_euler,
    rotation_from_quaternion,
    rotation_to_euler,
    rotation_to_quaternion,
)

AXES = [
    "".join(letters)
    for triple in itertools.product("xyz", repeat=3)
    if triple[0] != triple[1] != triple[2]
    for letters in (triple, [letter.upper() for letter in triple])
]


class TestDistance:
    def test_left_invariant(self, case: GroupCase) -> None:
        group = case.group
        f, g, h = (random_elements(group, 4, std=0.5 * case.std, seed=s) for s in range(3))
        distance = group.distance(g, h)
        assert_relative(distance, group.distance(h, g), 1e-8)
        assert_relative(group.distance(group.compose(f, g), group.compose(f, h)), distance, 1e-8)
        assert_relative(group.distance(g, g), torch.zeros(4, dtype=torch.float64), 1e-7)

    def test_known(self) -> None:
        r, s = (Rotation.random(20, rng=np.random.default_rng(i)) for i in range(2))
        angles = torch.as_tensor((r.inv() * s).magnitude())
        assert_relative(SO(3).distance(*(torch.as_tensor(x.as_matrix()) for x in (r, s))), angles, 1e-7)
        assert_relative(Torus(1).distance(torch.tensor([3.0]), torch.tensor([-3.0])), torch.tensor(0.28318531), 1e-6)
        assert_relative(Translation(2).distance(torch.zeros(2), torch.tensor([3.0, 4.0])), torch.tensor(5.0), 0.0)
        g = U(3).random_haar(2, generator=seeded(0), dtype=torch.float64)
        angles = torch.linalg.eigvals(U(3).to_complex(g[0]).mH @ U(3).to_complex(g[1])).angle()
        assert_relative(U(3).distance(g[0], g[1]), (0.5 * angles.square().sum()).sqrt(), 1e-12)

    def test_without_logarithm(self) -> None:
        assert bool(torch.isnan(SL(2).distance(SL(2).identity(), -SL(2).identity())))


class TestInterpolate:
    def test_ends_and_speed(self, case: GroupCase) -> None:
        group = case.group
        g, h = (random_elements(group, 4, std=0.5 * case.std, seed=s) for s in range(2))
        places = len(group.element_shape)
        assert_relative(group.interpolate(g, h, 0.0), g, 1e-9, event=places)
        assert_relative(group.interpolate(g, h, 1.0), h, 1e-8, event=places)
        t = torch.tensor([[0.3], [0.7]], dtype=torch.float64)
        between = group.interpolate(g, h, t)
        assert between.shape == (2, 4, *group.element_shape)
        assert_relative(group.distance(g, between), t * group.distance(g, h), 1e-7)
        assert_relative(group.interpolate(h, g, 0.3), between[1], 1e-7, event=places)

    def test_spherical_linear(self) -> None:
        """Against slerp of SciPy's."""
        r = Rotation.random(2, rng=np.random.default_rng(3))
        a, b = torch.as_tensor(r.as_matrix())
        expected = r[0] * Rotation.from_rotvec(0.4 * (r[0].inv() * r[1]).as_rotvec())
        assert_relative(SO(3).interpolate(a, b, 0.4), torch.as_tensor(expected.as_matrix()), 1e-12)

    def test_numbers_that_do_not_fit(self) -> None:
        g = SO(3).identity(3)
        with pytest.raises(ShapeError, match=r"batches that broadcast, got \[3\] and \[2\]"):
            SO(3).interpolate(g, g, torch.zeros(2))
        with pytest.raises(ConfigurationError, match="t: expected a number or a tensor"):
            SO(3).interpolate(g, g, "half")  # type: ignore[arg-type]
        assert SO(3).interpolate(g, g, [0.0, 0.5, 1.0]).shape == (3, 3, 3)  # type: ignore[arg-type]


class TestMean:
    def test_barycentre(self, case: GroupCase) -> None:
        """The weighted sum of the logarithms vanishes; the mean moves with the elements, on both sides."""
        group = case.group
        g = random_elements(group, 2, 5, std=0.3 * case.std)
        weights = rand(5, low=0.5, high=1.5)
        mean = group.mean(g, weights)
        assert mean.shape == (2, *group.element_shape)
        logs = group.log(group.compose(group.inverse(mean).unsqueeze(1), g))
        residual = (weights[:, None] * logs).sum(1)
        assert_relative(residual, torch.zeros_like(residual), 1e-8 * (1.0 + float(logs.abs().max())))
        h = random_elements(group, std=0.3 * case.std, seed=9)
        places = len(group.element_shape)
        for moved, expected in (
            (group.mean(group.compose(h, g), weights), group.compose(h, mean)),
            (group.mean(group.compose(g, h), weights), group.compose(mean, h)),
            (group.mean(group.inverse(g), weights), group.inverse(mean)),
        ):
            assert_relative(moved, expected, 1e-7, event=places)

    def test_minimises_the_squared_distances(self) -> None:
        for group in (SO(3), SU(2), Torus(2)):
            g = random_elements(group, 6, std=0.6)
            mean = group.mean(g)

            def cost(v: np.ndarray, group=group, g=g, mean=mean) -> float:
                return float(group.distance(group.retract(mean, torch.as_tensor(v)), g).square().sum())

            found = optimize.minimize(cost, 0.3 * randn(group.dim).numpy(), tol=1e-12)
            assert float(np.abs(found.x).max()) < 1e-4

    def test_against_scipy(self) -> None:
        """SciPy's mean is chordal: equal for two rotations, and close for near ones."""
        r = Rotation.from_rotvec((0.1 * randn(2, 3)).numpy())
        mean = SO(3).mean(torch.as_tensor(r.as_matrix()))
        assert_relative(mean, torch.as_tensor(r.mean().as_matrix()), 1e-10)

    def test_weights(self) -> None:
        g = random_elements(SE(3), 3, std=0.5)
        assert_relative(SE(3).mean(g, torch.tensor([0.0, 1.0, 0.0]).double()), g[1], 1e-12)
        half = SE(3).interpolate(g[0], g[1], 0.25)
        assert_relative(SE(3).mean(g[:2], torch.tensor([3.0, 1.0]).double()), half, 1e-10)

    def test_not_found(self) -> None:
        g = torch.stack([random_elements(SO(3), 4, std=0.5)] * 2)
        assert bool(torch.isnan(SO(3).mean(g, max_iterations=1)).all())
        bad = torch.stack([SL(2).identity(), -SL(2).identity()])
        good = torch.stack([SL(2).identity(), SL(2).identity()])
        mean = SL(2).mean(torch.stack([bad, good]))
        assert torch.isfinite(mean).all((-2, -1)).tolist() == [False, True]

    @pytest.mark.parametrize("group", [SO(3), SE(3)], ids=repr)
    def test_of_spread_elements_in_single_precision(self, group: LieGroup) -> None:
        """Newton's steps shrink by a factor only where elements are spread, and go on until they are rounding."""
        g = group.exp(randn(50, 12, group.dim))
        assert float((group.mean(g.float()).double() - group.mean(g)).abs().max()) < 2e-6

    @pytest.mark.slow(reason="test_autodiff maps the operations that a mean consists of")
    def test_transforms(self) -> None:
        g = random_elements(SO(3), 3, 4, std=0.4)
        assert_relative(vmap(SO(3).mean)(g), SO(3).mean(g), 1e-12)

        def f(v: Tensor) -> Tensor:
            return SO(3).log(SO(3).mean(SO(3).retract(g[0], v)))

        v = torch.zeros(4, 3, dtype=torch.float64)
        assert_relative(jacfwd(f)(v), jacrev(f)(v), 1e-9)
        assert_relative(jacfwd(f)(v), numeric_jacobian(f, v).unflatten(-1, v.shape), 1e-8)

    def test_bad_input(self) -> None:
        with pytest.raises(ShapeError, match="at least one element"):
            SO(3).mean(torch.eye(3))
        with pytest.raises(ShapeError, match="weights"):
            SO(3).mean(torch.eye(3).expand(4, 3, 3), torch.ones(3))
        with pytest.raises(ConfigurationError, match="max_iterations"):
            SO(3).mean(torch.eye(3).expand(4, 3, 3), max_iterations=0)


def rotations(count: int, seed: int = 0) -> Rotation:
    return Rotation.random(count, rng=np.random.default_rng(seed))


class TestQuaternions:
    def test_both_ways(self) -> None:
        half_turns = Rotation.from_rotvec(math.pi * np.concatenate([np.eye(3), -np.eye(3), [[0.6, 0.8, 0.0]]]))
        near = Rotation.from_rotvec(1e-9 * randn(4, 3).numpy())
        r = Rotation.concatenate([rotations(50), half_turns, near, Rotation.identity()])
        expected = torch.as_tensor(r.as_quat(canonical=True, scalar_first=True))
        matrices = torch.as_tensor(r.as_matrix())
        q = rotation_to_quaternion(matrices)
        assert bool((q[:, 0] >= 0).all())
        assert_relative((q * expected).sum(-1).abs(), torch.ones(len(r)).double(), 1e-14)
        assert_relative(q[:50], expected[:50], 1e-14)
        assert_relative(rotation_from_quaternion(expected), matrices, 1e-14)
        assert_relative(rotation_from_quaternion(-3.0 * expected), matrices, 1e-14)
        assert_relative(rotation_from_quaternion(q), matrices, 1e-14)
        for length in (1e-30, 1e20):
            assert_relative(rotation_from_quaternion((length * q).float()).double(), matrices, 1e-6)
        assert bool(torch.isnan(rotation_from_quaternion(torch.zeros(4))).all())

    def test_rotation_vectors_are_algebra_vectors(self) -> None:
        r = rotations(20)
        assert_relative(SO(3).log(torch.as_tensor(r.as_matrix())), torch.as_tensor(r.as_rotvec()), 1e-12)

    def test_derivatives(self) -> None:
        q = randn(4)
        assert_relative(jacfwd(rotation_from_quaternion)(q), jacrev(rotation_from_quaternion)(q), 1e-13)
        r = SO(3).exp(randn(3))
        assert_relative(jacfwd(rotation_to_quaternion)(r), jacrev(rotation_to_quaternion)(r), 1e-13)
        assert bool(torch.isfinite(jacrev(rotation_to_quaternion)(torch.eye(3))).all())

    def test_bad_input(self) -> None:
        with pytest.raises(ShapeError, match="q: expected"):
            rotation_from_quaternion(torch.ones(3))
        with pytest.raises(ShapeError, match="r: expected"):
            rotation_to_quaternion(torch.eye(4))
        assert bool(torch.isnan(rotation_from_quaternion(torch.zeros(4))).all())


class TestEulerAngles:
    @pytest.mark.parametrize("axes", AXES)
    def test_against_scipy(self, axes: str) -> None:
        r = rotations(40)
        expected = torch.as_tensor(r.as_euler(axes))
        matrices = torch.as_tensor(r.as_matrix())
        assert_relative(rotation_to_euler(matrices, axes), expected, 1e-11)
        assert_relative(rotation_from_euler(expected, axes), matrices, 1e-13)

    @pytest.mark.parametrize("axes", AXES)
    def test_gimbal_lock(self, axes: str) -> None:
        """The third angle is zero; the rotation is right."""
        proper = axes[0] == axes[2]
        middle = torch.tensor([0.0, math.pi] if proper else [math.pi / 2, -math.pi / 2], dtype=torch.float64)
        angles = torch.stack([torch.tensor([0.7, -2.0]).double(), middle, torch.tensor([0.4, 1.1]).double()], -1)
        locked = rotation_to_euler(rotation_from_euler(angles, axes), axes)
        assert torch.equal(locked[:, 2], torch.zeros(2, dtype=torch.float64))
        assert_relative(locked[:, 1], middle, 1e-7)
        assert_relative(rotation_from_euler(locked, axes), rotation_from_euler(angles, axes), 1e-7)
        with pytest.warns(UserWarning, match="Gimbal lock"):
            theirs = Rotation.from_euler(axes, angles.numpy()).as_euler(axes)
        assert_relative((locked - torch.as_tensor(theirs)).cos(), torch.ones(2, 3).double(), 1e-7)

    @pytest.mark.parametrize("axes", ["xxy", "xyy", "xyw", "xYz", "xy", "", 3])
    def test_bad_axes(self, axes: str) -> None:
        with pytest.raises(ConfigurationError, match="axes"):
            rotation_to_euler(torch.eye(3), axes)
        with pytest.raises(ConfigurationError, match="axes"):
            rotation_from_euler(torch.zeros(3), axes)

    def test_float32_and_batches(self) -> None:
        angles = 0.4 * randn(2, 3, 3, dtype=torch.float32)
        assert_relative(rotation_to_euler(rotation_from_euler(angles, "ZYX"), "ZYX"), angles, 1e-5)
        assert_relative(
            vmap(vmap(lambda x: rotation_from_euler(x, "ZYX")))(angles), rotation_from_euler(angles, "ZYX"), 1e-6
        )


class TestHomogeneous:
    @pytest.mark.parametrize("group", [SE(2), SE(3), Affine(2), Similarity(3)], ids=str)
    def test_both_ways(self, group: SE) -> None:
        g = random_elements(group, 4, std=0.5)
        matrix = group.homogeneous(g)
        assert torch.equal(group.from_homogeneous(matrix), g)
        matrix[0, -1, 0] = 0.1
        assert torch.isfinite(group.from_homogeneous(matrix)).all((-2, -1)).tolist() == [False, True, True, True]
        with pytest.raises(ShapeError, match="matrix"):
            group.from_homogeneous(g)


class TestSpheres:
    @pytest.mark.parametrize("k", [2, 3, 5])
    def test_lift_and_project(self, k: int) -> None:
        x = torch.nn.functional.normalize(randn(2000, k), dim=-1)
        g = sphere_to_rotation(x, generator=seeded(1))
        assert_relative(g.mT @ g, torch.eye(k, dtype=torch.float64).expand_as(g), 1e-13)
        assert_relative(torch.linalg.det(g), torch.ones(2000, dtype=torch.float64), 1e-13)
        assert_relative(sphere_from_rotation(g), x, 1e-14)
        assert_relative(sphere_from_rotation(sphere_to_rotation(3.0 * x)), x, 1e-14)
        sphere_from_rotation(g).zero_()  # a copy
        assert_relative(sphere_from_rotation(g), x, 1e-14)
        if k > 2:  # uniform over the fibre: uniform points lift to the uniform law
            haar = SO(k).random_haar(2000, generator=seeded(2), dtype=torch.float64)
            for i, j in ((1, 1), (0, k - 1), (1, k - 1)):
                assert stats.ks_2samp(g[:, i, j].numpy(), haar[:, i, j].numpy()).pvalue > 0.01
        for size in (1e-30, 1e13, 1e30):
            found = sphere_to_rotation(size * x[:9].float())
            assert_relative(sphere_from_rotation(found), x[:9].float(), 1e-6)
        for wrong in (0.0, math.nan, math.inf):  # a direction of zero was the first axis
            assert torch.isnan(sphere_to_rotation(torch.stack([x[0], wrong * x[0]]))).any((-2, -1)).tolist() == [0, 1]
        with pytest.raises(ShapeError, match="x: expected"):
            sphere_to_rotation(torch.ones(1))
