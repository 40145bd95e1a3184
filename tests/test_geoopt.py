"""Group-valued parameters in geoopt."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable

import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

geoopt = pytest.importorskip("geoopt")

from tests.helpers import assert_relative, randn, random_elements, random_vectors  # noqa: E402
from trivgeo.errors import ConfigurationError, ShapeError  # noqa: E402
from trivgeo.geoopt import GroupManifold, RiemannianAdam  # noqa: E402
from trivgeo.groups import (  # noqa: E402
    SE,
    SL,
    SO,
    Affine,
    DirectProduct,
    HeatSymmetry,
    Heisenberg,
    KdVSymmetry,
    LieGroup,
    Projective,
    Torus,
    Translation,
)

GROUPS = [
    SO(3),
    SE(3, scale=0.5),
    Affine(2),
    Projective(2),
    SL(2),
    Heisenberg(1),
    Translation(3),
    HeatSymmetry(0.1),
    KdVSymmetry(),
    DirectProduct(SO(2), Affine(1)),
]


OTHERS_STAY = pytest.mark.slow(reason="the other groups stay")


@pytest.fixture(params=GROUPS, ids=repr)
def group(request: pytest.FixtureRequest) -> LieGroup:
    return request.param


@pytest.fixture
def manifold(group: LieGroup) -> GroupManifold:
    return GroupManifold(group)


class TestManifold:
    def test_tangent_vectors(self, group: LieGroup, manifold: GroupManifold) -> None:
        x, v, w = random_elements(group, 4, std=0.4), randn(4, group.dim, seed=1), randn(4, group.dim, seed=2)
        u = manifold.tangent(x, v)
        assert u.shape == x.shape
        assert_relative(manifold.trivialize(x, u), v, 1e-11, event=1)
        assert_relative(manifold.inner(x, u), v.square().sum(-1), 1e-11)
        assert_relative(manifold.inner(x, u, manifold.tangent(x, w)), (v * w).sum(-1), 1e-11)
        assert_relative(manifold.norm(x, u), v.norm(dim=-1), 1e-11)
        assert manifold.inner(x, u, keepdim=True).shape == (4, *([1] * manifold.ndim))
        assert manifold.check_vector_on_tangent(x, u)
        noise = randn(*x.shape, seed=5)
        projected = manifold.proju(x, noise)
        assert_relative(manifold.proju(x, projected), projected, 1e-10, event=manifold.ndim)

    def test_gradient(self, group: LieGroup, manifold: GroupManifold) -> None:
        """<rgrad, u>_g = df(u) for every tangent u."""
        x, v = random_elements(group, 4, std=0.4).requires_grad_(), randn(4, group.dim, seed=1)
        f = lambda x: (x.sin() * torch.linspace(1.0, 2.0, x[0].numel()).reshape(x.shape[1:])).sum()  # noqa: E731
        (egrad,) = torch.autograd.grad(f(x), x)
        point = x.detach()
        rgrad, u = manifold.egrad2rgrad(point, egrad), manifold.tangent(point, v)
        slope = (egrad * u).flatten(1).sum(-1)
        assert_relative(manifold.inner(point, rgrad, u), slope, 1e-10)

    @pytest.mark.parametrize(
        "group",
        [
            pytest.param(
                g, marks=pytest.mark.slow(reason="the other groups stay") if isinstance(g, KdVSymmetry) else ()
            )
            for g in GROUPS
        ],
        ids=repr,
    )
    def test_steps_and_transport(self, group: LieGroup, manifold: GroupManifold) -> None:
        x, v, w = random_elements(group, 4, std=0.3), 0.3 * randn(4, group.dim, seed=1), randn(4, group.dim, seed=2)
        u = manifold.tangent(x, v)
        y = manifold.retr(x, u)
        assert_relative(y, group.compose(x, group.exp(v)), 1e-10, event=manifold.ndim)
        assert_relative(manifold.trivialize(y, manifold.transp(x, y, manifold.tangent(x, w))), w, 1e-10, event=1)
        for map_ in (manifold.retr, manifold.expmap):
            curve = lambda s, m=map_: m(x, s * u)  # noqa: E731
            start = torch.func.jvp(
                curve, (torch.zeros((), dtype=torch.float64),), (torch.ones((), dtype=torch.float64),)
            )
            assert_relative(start[0], x, 1e-12, event=manifold.ndim)
            assert_relative(start[1], u, 1e-10, event=manifold.ndim)
        after, moved = manifold.retr_transp(x, u, u)
        assert_relative(after, y, 1e-13, event=manifold.ndim)
        assert_relative(manifold.norm(after, moved), v.norm(dim=-1), 1e-9)

    def test_points(self, group: LieGroup, manifold: GroupManifold) -> None:
        x = manifold.random(2, 3, *group.element_shape, std=0.3, dtype=torch.float64)
        assert isinstance(x, geoopt.ManifoldTensor)
        assert x.shape == (2, 3, *group.element_shape)
        assert manifold.check_point_on_manifold(x)
        assert torch.equal(manifold.origin(2, *group.element_shape).as_subclass(Tensor), group.identity(2))
        assert not manifold.check_point(torch.zeros(2, 17))
        with pytest.raises(ValueError, match="expected elements"):
            geoopt.ManifoldParameter(torch.zeros(2, 17), manifold=manifold)

    def test_points_off_the_manifold(self) -> None:
        for group in (SO(3), SE(2), Affine(2), Projective(2), SL(2), HeatSymmetry(0.1)):
            x = group.identity(2, dtype=torch.float64)
            x[1].view(-1)[0] = -3.0
            assert not GroupManifold(group).check_point_on_manifold(x)
            assert GroupManifold(group).check_point_on_manifold(x[:1])
        skewed = SO(3).identity() + 1e-3
        projected = GroupManifold(SO(3)).projx(skewed)
        assert GroupManifold(SO(3)).check_point_on_manifold(projected)
        assert not GroupManifold(SO(3)).check_vector_on_tangent(projected, torch.eye(3))

    def test_any_real_number_is_an_angle(self) -> None:
        for group in (Torus(2), DirectProduct(SO(3), Torus(2))):
            manifold, x = GroupManifold(group), group.identity(1)
            x[..., -2:] = torch.tensor([7.0, -40.0])
            parameter = geoopt.ManifoldParameter(x, manifold=manifold)
            assert manifold.check_point_on_manifold(parameter)
            x[..., -1] = math.nan
            assert not manifold.check_point_on_manifold(x)

    def test_random_refuses_settings_that_it_does_not_have(self) -> None:
        with pytest.raises(TypeError, match="seed"):
            GroupManifold(SO(3)).random(2, 3, 3, seed=0)
        both = geoopt.ProductManifold((GroupManifold(SE(2)), (2, 3)), (GroupManifold(SO(3)), (3, 3)))
        assert both.random(4, 15, dtype=torch.float64).dtype == torch.float64

    def test_bad_arguments(self) -> None:
        with pytest.raises(ConfigurationError, match="geodesic_steps"):
            GroupManifold(SO(3), geodesic_steps=0)
        manifold = GroupManifold(SE(2))
        x = SE(2).identity()
        for f in (manifold.dist, manifold.logmap):
            with pytest.raises(ConfigurationError, match="bi-invariant"):
                f(x, x)

    @pytest.mark.parametrize("shape", [(2, 3, 1), (2, 1), (3, 3), (2, 4), (3,)])
    def test_vectors_never_broadcast(self, shape: tuple[int, ...]) -> None:
        """Tangent vectors of two elements of SE(2) are ``[2, 2, 3]``."""
        manifold, x = GroupManifold(SE(2)), SE(2).identity(2)
        for f in (manifold.retr, manifold.expmap):
            with pytest.raises(ShapeError, match="expected"):
                f(x, torch.zeros(shape))


class TestGeodesics:
    def test_bi_invariant_metrics(self) -> None:
        """There one-parameter subgroups are geodesics, and the distance is the norm of the logarithm."""
        flags = [
            GroupManifold(g).is_bi_invariant for g in (SO(3), SO(5), Translation(2), SO(2), SE(2), SL(2), Affine(1))
        ]
        assert flags == [True, True, True, True, False, False, False]
        assert not GroupManifold(SO(3, scale=[1.0, 2.0, 1.0])).is_bi_invariant
        manifold = GroupManifold(SO(3))
        x, v = random_elements(SO(3), 4, std=0.5), 0.5 * randn(4, 3)
        u = manifold.tangent(x, v)
        y = manifold.expmap(x, u)
        assert_relative(manifold.dist(x, y), v.norm(dim=-1), 1e-12)
        assert_relative(manifold.logmap(x, y), u, 1e-12, event=2)

    def test_hyperbolic_plane(self) -> None:
        """Aff(1) is the half-plane (b, a), a > 0: geodesics have the length of their velocity."""
        group = Affine(1)
        v = 1.2 * randn(20, 2)
        y = GroupManifold(group, geodesic_steps=64).expmap(group.identity(20, dtype=torch.float64), v.unsqueeze(-2))
        a, b = y[:, 0, 0], y[:, 0, 1]
        distance = torch.acosh(1.0 + (b**2 + (a - 1.0) ** 2) / (2.0 * a))
        assert_relative(distance, v.norm(dim=-1), 1e-6)

    @pytest.mark.parametrize("build", [lambda: SE(3), lambda: Affine(2), lambda: SL(2), KdVSymmetry, Heisenberg])
    def test_against_the_euler_arnold_equation(self, build: Callable[[], LieGroup]) -> None:
        """Fourth order: 32 steps against scipy; the error falls sixteenfold as the step is halved."""
        group = build()
        v = 0.5 * randn(group.dim, seed=3)
        shape, split = group.element_shape, group.dim

        def slope(_: float, y: object) -> object:
            y = torch.as_tensor(y)
            omega, g = y[:split], y[split:].reshape(shape)
            rate = group.algebra.ad(omega).T @ omega
            return torch.cat([rate, GroupManifold(group).tangent(g, omega).flatten()]).numpy()

        start = torch.cat([v, group.identity(dtype=torch.float64).flatten()]).numpy()
        end = solve_ivp(slope, (0.0, 1.0), start, method="DOP853", rtol=1e-11, atol=1e-12).y[split:, -1]
        expected = torch.as_tensor(end).reshape(shape)
        errors = [float((GroupManifold(group, n).geodesic(v) - expected).abs().max()) for n in (8, 16, 32)]
        assert errors[2] < 1e-6
        order = math.log2(errors[0] / errors[2]) / 2.0
        assert order > 3.4, f"order {order:.2f}, errors {errors}"


def pairs(group: LieGroup, n: int, std: float) -> tuple[Tensor, Tensor, Tensor]:
    """A hidden element, points, and their images."""
    hidden = random_elements(group, std=std, seed=11)
    action = group.action()
    points = randn(20, n, seed=12) if n != 3 or not isinstance(group, HeatSymmetry) else randn(20, 3, seed=12) * 0.5
    return hidden, points, action(hidden, points)


class TestOptimisation:
    @pytest.mark.parametrize(
        ("group", "n", "std", "lr", "decay", "steps"),
        [
            pytest.param(Projective(2), 2, 0.15, 0.05, 0.99, 500, marks=OTHERS_STAY),
            (SE(3), 3, 0.7, 0.2, 0.98, 300),
            pytest.param(HeatSymmetry(1.0), 3, 0.2, 0.2, 0.98, 300, marks=OTHERS_STAY),
            pytest.param(Affine(2), 2, 0.4, 0.2, 0.98, 300, marks=OTHERS_STAY),
        ],
        ids=["homography", "pose", "heat", "affine"],
    )
    def test_recovers_an_element_from_point_pairs(
        self, group: LieGroup, n: int, std: float, lr: float, decay: float, steps: int
    ) -> None:
        hidden, points, images = pairs(group, n, std)
        action = group.action()
        parameter = geoopt.ManifoldParameter(group.identity(dtype=torch.float64), manifold=GroupManifold(group))
        optimizer = RiemannianAdam([parameter], lr=lr, stabilize=50)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (action(parameter, points) - images).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
        assert_relative(parameter.detach().as_subclass(Tensor), hidden, 2e-3, event=len(group.element_shape))
        assert parameter.manifold.check_point_on_manifold(parameter.detach())

    def test_riemannian_sgd(self) -> None:
        group = SO(3)
        hidden, points, images = pairs(group, 3, 0.7)
        parameter = geoopt.ManifoldParameter(group.identity(dtype=torch.float64), manifold=GroupManifold(group))
        optimizer = geoopt.optim.RiemannianSGD([parameter], lr=0.1, momentum=0.5)
        for _ in range(200):
            optimizer.zero_grad()
            (group.action()(parameter, points) - images).square().mean().backward()
            optimizer.step()
        assert_relative(parameter.detach().as_subclass(Tensor), hidden, 1e-6, event=2)

    def test_batch_of_parameters(self) -> None:
        """Each element of a batch has its own step size, as in geoopt."""
        group = SE(2)
        hidden = random_elements(group, 8, std=0.5)
        points = randn(8, 10, 2)
        images = group.action()(hidden, points)
        parameter = geoopt.ManifoldParameter(group.identity(8, dtype=torch.float64), manifold=GroupManifold(group))
        optimizer = RiemannianAdam([parameter], lr=0.1)
        for _ in range(150):
            optimizer.zero_grad()
            (group.action()(parameter, points) - images).square().sum().backward()
            optimizer.step()
        assert_relative(parameter.detach().as_subclass(Tensor), hidden, 1e-3, event=2)


class TestCheckpoints:
    @staticmethod
    def run(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        points = randn(20, 3, seed=1)
        images = SE(3).action()(random_elements(SE(3), std=0.5, seed=2), points)
        for _ in range(steps):
            optimizer.zero_grad()
            (SE(3).action()(model.pose, points) - images).square().mean().backward()
            optimizer.step()

    @staticmethod
    def build(amsgrad: bool) -> tuple[torch.nn.Module, RiemannianAdam]:
        model = torch.nn.Module()
        manifold = GroupManifold(SE(3))
        model.pose = geoopt.ManifoldParameter(SE(3).identity(dtype=torch.float64), manifold=manifold)
        model.unused = geoopt.ManifoldParameter(SE(3).identity(dtype=torch.float64), manifold=manifold)
        return model, RiemannianAdam(model.parameters(), lr=0.03, stabilize=5, amsgrad=amsgrad)

    @pytest.mark.parametrize("amsgrad", [False, True])
    def test_resume_is_exact(self, amsgrad: bool) -> None:
        """geoopt#226: optimiser state blocks resuming. Here a resumed run equals the uninterrupted one, bit by bit."""
        model, optimizer = self.build(amsgrad)
        self.run(model, optimizer, 12)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        self.run(model, optimizer, 9)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        other, resumed = self.build(amsgrad)
        other.load_state_dict(saved["model"])
        resumed.load_state_dict(saved["optimizer"])
        self.run(other, resumed, 9)
        assert torch.equal(other.pose, model.pose)

    def test_copies(self) -> None:
        model, optimizer = self.build(False)
        self.run(model, optimizer, 3)
        twin = copy.deepcopy(model)
        assert torch.equal(twin.pose, model.pose)
        assert isinstance(twin.pose.manifold, GroupManifold)
        file = io.BytesIO()
        torch.save(model.pose, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
        assert torch.equal(again, model.pose)
        assert again.manifold.group.is_same_group(SE(3))
        assert random_vectors(again.manifold.group, std=1.0).shape == (6,)
