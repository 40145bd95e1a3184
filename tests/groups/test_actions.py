"""Actions on points: laws, derivatives, domains, and the flows of their generators."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor
from torch.func import jacfwd, jvp, vmap

from tests.groups.cases import GroupCase
from tests.helpers import BOUNDS, assert_relative, randn, random_elements, random_vectors
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import BurgersSymmetry, HeatSymmetry, PointAction, Translation
from trivgeo.groups.from_generators import GeneratedAction

POINTS = 6


def length(case: GroupCase) -> float:
    return case.pdes[0].length if case.pdes else 1.0


def sample_points(case: GroupCase, n: int, *batch: int, seed: int = 20, dtype: torch.dtype = torch.float64) -> Tensor:
    """Points of n coordinates; for jets x in the equation's own length and t in (0, 1)."""
    points = randn(*batch, POINTS, n, seed=seed)
    if case.pdes:
        points[..., 0] *= length(case)
        points[..., 1] = torch.sigmoid(points[..., 1])
    return points.to(dtype)


def sample_elements(case: GroupCase, *batch: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Elements in the equation's own units, so that jets stay of order one."""
    group = case.make(scale=case.pdes[0].basis_scale) if case.pdes else case.group
    return random_elements(group, *batch, std=0.3, seed=seed, dtype=dtype)


@pytest.fixture(params=[2, 3])
def dims(request: pytest.FixtureRequest, action_case: GroupCase) -> int:
    """Each number of coordinates that a point may have."""
    allowed = action_case.group.action().point_dims
    return allowed[request.param % len(allowed)]


@pytest.fixture
def action(action_case: GroupCase) -> PointAction:
    return action_case.group.action()


def away_from_the_pole(action: PointAction, *pairs: tuple[Tensor, Tensor]) -> Tensor:
    """Where the denominators of all steps exceed 0.05."""
    masks = torch.stack([action.denominator(g, x).abs() > 0.05 for g, x in pairs])
    return masks.all(0)


class TestLaws:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
    def test_left_action(self, action_case: GroupCase, action: PointAction, dims: int, dtype: torch.dtype) -> None:
        """(g h).x = g.(h.x), e.x = x and g^-1.(g.x) = x, each coordinate by itself."""
        group = action.group
        g, h = (sample_elements(action_case, 20, seed=s, dtype=dtype) for s in range(2))
        x = sample_points(action_case, dims, 20, dtype=dtype)
        assert_relative(action(group.identity(20, dtype=dtype), x), x, BOUNDS[dtype])
        product = group.compose(g, h)
        inner = action(h, x)
        kept = away_from_the_pole(action, (h, x), (g, inner), (product, x))
        if isinstance(action, GeneratedAction):  # integrated points that cannot be trusted have no image either
            kept = kept & action.is_valid(product, x) & action.is_valid(g, inner)
        assert float(kept.double().mean()) > 0.9
        floor = length(action_case) * 1e-2
        assert_relative(action(product, x)[kept], action(g, inner)[kept], BOUNDS[dtype], floor=floor)
        back = action(group.inverse(g), action(g, x))
        kept = away_from_the_pole(action, (g, x))
        assert_relative(back[kept], x[kept], BOUNDS[dtype], floor=floor)

    def test_broadcasting(self, action_case: GroupCase, action: PointAction, dims: int) -> None:
        g, x = sample_elements(action_case, 4, 1), sample_points(action_case, dims, 3)
        y = action(g, x)
        assert y.shape == (4, 3, POINTS, dims)
        looped = torch.stack([torch.stack([action(a[0], b) for b in x]) for a in g])
        assert_relative(y, looped, 1e-13)
        assert action(sample_elements(action_case), sample_points(action_case, dims)).shape == (POINTS, dims)
        assert action.is_valid(g, x).shape == (4, 3, POINTS)
        assert action.denominator(g, x).broadcast_to(4, 3, POINTS).shape == (4, 3, POINTS)
        assert action.jacobian(g, x).shape == (4, 3, POINTS, dims, dims)
        assert action.log_abs_det_jacobian(g, x).shape == (4, 3)

    def test_points_are_jets_without_the_last_coordinate(self, action_case: GroupCase, action: PointAction) -> None:
        if not action_case.pdes:
            return
        g, x = sample_elements(action_case, 5), sample_points(action_case, 3, 5)
        assert torch.equal(action(g, x[..., :2]), action(g, x)[..., :2])

    def test_device(self, action: PointAction, dims: int) -> None:
        """geomstats#1476: constants stay off the CPU."""
        g = action.group.identity(2, device="meta")
        x = torch.zeros(2, POINTS, dims, device="meta")
        assert action(g, x).device.type == "meta"
        assert action.jacobian(g, x).device.type == "meta"


class TestJacobian:
    def test_against_autograd(self, action_case: GroupCase, action: PointAction, dims: int) -> None:
        g, x = sample_elements(action_case, 3), sample_points(action_case, dims, 3)

        def one(g: Tensor, point: Tensor) -> Tensor:
            return action(g, point[None])[0]

        expected = torch.stack(
            [torch.stack([torch.autograd.functional.jacobian(lambda p, a=a: one(a, p), q) for q in b])
             for a, b in zip(g, x, strict=True)]
        )  # fmt: skip
        assert_relative(action.jacobian(g, x), expected, 1e-11, event=2)
        assert_relative(action.log_abs_det_jacobian(g, x), torch.linalg.slogdet(expected)[1].sum(-1), 1e-10)
        mapped = vmap(lambda a, b: action.log_abs_det_jacobian(a, b))(g, x)
        assert_relative(mapped, torch.linalg.slogdet(expected)[1].sum(-1), 1e-10)

    def test_log_determinant_is_a_cocycle(self, action_case: GroupCase, action: PointAction, dims: int) -> None:
        g, h = sample_elements(action_case, 3), sample_elements(action_case, 3, seed=1)
        x = sample_points(action_case, dims, 3)
        whole = action.log_abs_det_jacobian(action.group.compose(g, h), x)
        parts = action.log_abs_det_jacobian(h, x) + action.log_abs_det_jacobian(g, action(h, x))
        assert_relative(whole, parts, 1e-9)

    @pytest.mark.parametrize("nu", [0.1, 1.0])
    def test_closed_forms(self, nu: float) -> None:
        """|D|^-3 on (x, t); on jets times du^/du: sqrt|D| e^(...) = u^/u for heat, D for Burgers."""
        t_and_x = randn(4, POINTS, 3)
        for group, fibre in (
            (HeatSymmetry(nu), lambda y, d: (y[..., 2] / t_and_x[..., 2]).log()),
            (BurgersSymmetry(), lambda y, d: d.abs().log()),
        ):
            action, g = group.action(), random_elements(group, 4, std=0.3)
            d = g[:, 2:3] * t_and_x[..., 1] + g[:, 3:4]
            base = -3 * d.abs().log()
            assert_relative(action.log_abs_det_jacobian(g, t_and_x[..., :2]), base.sum(-1), 1e-10)
            expected = base + fibre(action(g, t_and_x), d)
            assert_relative(action.log_abs_det_jacobian(g, t_and_x), expected.sum(-1), 1e-10)

    def test_finite_differences_of_the_element(self, action_case: GroupCase, action: PointAction, dims: int) -> None:
        """Derivatives with respect to g, first and second, in both modes."""
        g, x = sample_elements(action_case, 2), sample_points(action_case, dims, 2)
        g.requires_grad_()
        x.requires_grad_()
        assert torch.autograd.gradcheck(action, (g, x), rtol=1e-4, atol=1e-4, fast_mode=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(action, (g, x), rtol=1e-4, atol=1e-4, fast_mode=True)


class TestDomain:
    """A local action is NaN and invalid exactly where its denominator vanishes, with no harm to the rest."""

    @pytest.mark.parametrize("build", [lambda: HeatSymmetry(0.1), BurgersSymmetry], ids=["heat", "burgers"])
    @pytest.mark.parametrize("dims", [2, 3])
    def test_pole(self, build: object, dims: int) -> None:
        group = build()
        action = group.action()
        # gamma = 1, delta = -0.5: D = t - 0.5
        matrix = torch.tensor([0.0, -1.0, 1.0, -0.5], dtype=torch.float64)
        rest = torch.zeros(math.prod(group.element_shape) - 4, dtype=torch.float64) + 0.1
        g = torch.cat([matrix, rest]).requires_grad_()
        x = randn(5, dims)
        x[:, 1] = torch.tensor([0.0, 0.5, 0.25, 0.75, 0.5])
        x.requires_grad_()
        at_pole = torch.tensor([False, True, False, False, True])
        y = action(g, x)
        assert torch.equal(torch.isnan(y).all(-1), at_pole)
        assert torch.equal(torch.isnan(y).any(-1), at_pole)
        assert torch.equal(action.is_valid(g, x), ~at_pole)
        assert torch.equal(action.denominator(g, x) == 0, at_pole)
        assert torch.isfinite(action.jacobian(g, x)[~at_pole]).all()
        assert torch.isnan(action.jacobian(g, x)[at_pole]).all()
        assert torch.isnan(action.log_abs_det_jacobian(g, x))
        (slope,) = torch.autograd.grad(action.jacobian(g, x)[~at_pole].sum(), g)
        assert torch.isfinite(slope).all()
        assert torch.isfinite(action.log_abs_det_jacobian(g, x[~at_pole])).all()
        over_g, over_x = torch.autograd.grad(torch.where(at_pole.unsqueeze(-1), 0.0, y).sum(), (g, x))
        assert torch.isfinite(over_g).all()
        assert torch.isfinite(over_x).all()
        alone = torch.autograd.grad(action(g, x[~at_pole]).sum(), g)[0]
        assert_relative(over_g, alone, 1e-12, event=1)

    def test_global_action(self) -> None:
        action = Translation(3).action()
        g, x = randn(2, 3), 1e6 * randn(2, 4, 3)
        assert action.is_valid(g, x).all()
        assert torch.equal(action.denominator(g, x), torch.ones(2, 4, dtype=torch.float64))


class TestGenerators:
    @staticmethod
    def fields(action: PointAction, x: Tensor) -> Tensor:
        """The infinitesimal generators at one point, ``[dim, n]``: d/ds exp(s e_i).x at s = 0."""
        zero = torch.zeros(action.group.dim, dtype=torch.float64)
        return jacfwd(lambda v: action(action.group.exp(v), x[None])[0])(zero).T

    def test_exponential_is_the_flow(self, action_case: GroupCase, action: PointAction) -> None:
        """exp(s v).x solves y' = X_v(y), integrated by scipy."""
        group, dims = action.group, max(action.point_dims)
        scale = torch.tensor(action_case.pdes[0].basis_scale) if action_case.pdes else torch.ones(group.dim)
        v = scale.double() * random_vectors(group, 4, std=0.15)
        x = 0.5 * sample_points(action_case, dims, 4)  # the flow of a projective field leaves the plane in finite time

        def slope(s: float, y: np.ndarray) -> np.ndarray:
            points = torch.as_tensor(y).reshape(x.shape)
            curve = lambda v: action(group.exp(v), points)  # noqa: E731
            return jvp(curve, (torch.zeros_like(v),), (v,))[1].flatten().numpy()

        flow = solve_ivp(slope, (0.0, 1.0), x.flatten().numpy(), method="DOP853", rtol=1e-8, atol=1e-10)
        assert flow.success
        end = torch.as_tensor(flow.y[:, -1]).reshape(x.shape)
        assert_relative(action(group.exp(v), x), end, 1e-6, floor=length(action_case) * 1e-2)

    def test_brackets_of_the_fields_have_the_opposite_sign(
        self, action_case: GroupCase, action: PointAction, dims: int
    ) -> None:
        """For a left action c_fields = -c_group; [X, Y] = X.grad Y - Y.grad X."""
        for x in sample_points(action_case, dims)[:2]:
            fields = self.fields(action, x)
            jacobians = jacfwd(lambda p: self.fields(action, p))(x)  # [i, component, coordinate]
            along = torch.einsum("jac,ic->ija", jacobians, fields)  # X_i . grad X_j
            bracket = along - along.transpose(0, 1)
            expected = -torch.einsum("ijk,ka->ija", action.group.algebra.structure_constants, fields)
            assert_relative(bracket, expected, 1e-9, event=3)

    @pytest.mark.parametrize("nu", [1e-3, 0.1, 1.0])
    def test_closed_forms(self, nu: float) -> None:
        """The generators of Olver (1993), example 2.41, for every nu, and those of Burgers' equation."""
        x, t, u = point = torch.tensor([0.7, 0.4, 1.3], dtype=torch.float64)
        zero, one = torch.zeros_like(x), torch.ones_like(x)
        heat = [
            [x, 2 * t, -u / 2],
            [zero, one, zero],
            [-x * t, -t * t, u * (t / 2 + x * x / (4 * nu))],
            [one, zero, zero],
            [t, zero, -x * u / (2 * nu)],
            [zero, zero, u],
        ]
        burgers = [
            [x, 2 * t, -u],
            [zero, one, zero],
            [-x * t, -t * t, t * u - x],
            [one, zero, zero],
            [t, zero, one],
        ]
        for group, rows in ((HeatSymmetry(nu), heat), (BurgersSymmetry(), burgers)):
            expected = torch.stack([torch.stack(row) for row in rows])
            assert_relative(self.fields(group.action(), point), expected, 1e-12)


class TestBadInput:
    def test_shapes(self) -> None:
        action = HeatSymmetry(0.1).action()
        g, x = HeatSymmetry(0.1).identity(2), torch.zeros(2, 5, 3)
        for bad_g, bad_x in (
            (g[..., :6], x),
            (g, x[..., :1]),
            (g, torch.zeros(3)),
            (g, torch.zeros(2, 5, 4)),
            (g, torch.zeros(3, 5, 3)),
        ):
            for f in (action, action.is_valid, action.jacobian, action.log_abs_det_jacobian, action.denominator):
                with pytest.raises(ShapeError):
                    f(bad_g, bad_x)

    def test_not_a_tensor(self) -> None:
        with pytest.raises(ConfigurationError, match="tensor"):
            Translation(2).action()(torch.zeros(2), {0: [0.0, 0.0]})  # type: ignore[arg-type]
