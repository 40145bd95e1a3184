"""The groups of matrices, of motions of R^n and of KdV against dense oracles, beyond the laws that every case obeys."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from tests.helpers import (
    BOUNDS,
    assert_relative,
    numeric_jacobian,
    rand,
    randn,
    random_elements,
    random_vectors,
    seeded,
)
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import (
    SE,
    SL,
    SO,
    Affine,
    DirectProduct,
    GLPlus,
    HeatSymmetry,
    Heisenberg,
    KdVSymmetry,
    LieGroup,
    MatrixGroup,
    Projective,
    Translation,
)
from trivgeo.groups.inhomogeneous import InhomogeneousGroup

# group, standard deviation at which log inverts exp
CATALOGUE: list[tuple[Callable[..., LieGroup], tuple[int, ...], float]] = [
    (SO, (2,), 0.8),
    (SO, (3,), 0.8),
    (SO, (4,), 0.5),
    (SO, (5,), 0.4),
    (SO, (10,), 0.15),
    (SE, (2,), 0.8),
    (SE, (3,), 0.6),
    (SE, (4,), 0.4),
    (GLPlus, (1,), 0.8),
    (GLPlus, (2,), 0.5),
    (GLPlus, (3,), 0.4),
    (GLPlus, (5,), 0.2),
    (SL, (2,), 0.5),
    (SL, (3,), 0.4),
    (SL, (4,), 0.3),
    (SL, (5,), 0.2),
    (Affine, (1,), 0.8),
    (Affine, (2,), 0.5),
    (Affine, (3,), 0.3),
    (Affine, (5,), 0.2),
    (Projective, (1,), 0.4),
    (Projective, (2,), 0.3),
    (Projective, (3,), 0.3),
    (Projective, (4,), 0.2),
]
IDS = [f"{build.__name__}({', '.join(map(str, sizes))})" for build, sizes, _ in CATALOGUE]


@pytest.fixture(params=CATALOGUE, ids=IDS)
def entry(request: pytest.FixtureRequest) -> tuple[LieGroup, float]:
    build, sizes, std = request.param
    return build(*sizes), std


def dense(group: LieGroup, g: Tensor) -> Tensor:
    """The matrix of an element."""
    if isinstance(group, InhomogeneousGroup):
        last = torch.zeros_like(g[..., :1, :])
        last[..., -1] = 1.0
        return torch.cat([g, last], -2)
    return g


def dense_algebra(group: LieGroup, v: Tensor) -> Tensor:
    """The matrix of an algebra vector, from the bases that the documentation states."""
    if isinstance(group, InhomogeneousGroup):
        k = group.linear.dim
        top = torch.cat([dense_algebra(group.linear, v[..., :k]), v[..., k:].unsqueeze(-1)], -1)
        return torch.cat([top, torch.zeros_like(top[..., :1, :])], -2)
    assert isinstance(group, MatrixGroup)
    n = group.size
    units = torch.eye(n * n, dtype=v.dtype).reshape(n, n, n, n)  # units[i, j] = e_ij
    if isinstance(group, SO):
        pairs = [(1, 2), (2, 0), (0, 1)] if n == 3 else list(itertools.combinations(range(n), 2))
        basis = [units[j, i] - units[i, j] for i, j in pairs]
    elif isinstance(group, SL):
        basis = [units[i, i] - units[i + 1, i + 1] for i in range(n - 1)]
        basis += [units[i, j] for i in range(n) for j in range(n) if i != j]
    elif isinstance(group, Projective):
        eye = torch.eye(n, dtype=v.dtype)
        basis = [units[i, j] - (eye / n if i == j else 0.0) for i in range(n) for j in range(n)][:-1]
    else:
        basis = [units[i, j] for i in range(n) for j in range(n)]
    return torch.einsum("...i,ikl->...kl", v, torch.stack(basis))


def scipy_of(f: Callable[[np.ndarray], np.ndarray], x: Tensor) -> Tensor:
    return torch.as_tensor(np.stack([np.real(f(m)) for m in x.double().numpy()]))


def many(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """f of rows, or of one, in a batch as large as takes closed forms where small ones take a dense kernel."""

    def repeated(v: Tensor) -> Tensor:
        rows = v.unsqueeze(0) if v.ndim == 1 else v
        result = f(rows.repeat(1 + 200 // len(rows), 1))[: len(rows)]
        return result[0] if v.ndim == 1 else result

    return repeated


class TestDenseOracle:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
    def test_exponential_and_logarithm(self, entry: tuple[LieGroup, float], dtype: torch.dtype) -> None:
        """pytorch#9983: there is no matrix logarithm; pypose#376: SL(4) is wanted; geoopt#230: SO(n)."""
        group, std = entry
        v = random_vectors(group, 20, std=std, dtype=dtype)
        g = group.exp(v)
        matrix = scipy_of(scipy.linalg.expm, dense_algebra(group, v.double()))
        bound = 1e-12 if dtype == torch.float64 else 1e-5
        assert_relative(dense(group, g), matrix.to(dtype), bound, event=2)
        assert_relative(dense(group, many(group.exp)(v)), matrix.to(dtype), bound, event=2)
        log = dense_algebra(group, group.log(g).double())
        assert_relative(
            log, scipy_of(scipy.linalg.logm, dense(group, g)), 1e-9 if dtype == torch.float64 else 1e-4, event=2
        )
        assert_relative(group.log(g), v, BOUNDS[dtype], event=1)

    def test_product_inverse_adjoint(self, entry: tuple[LieGroup, float]) -> None:
        group, std = entry
        g, h = (random_elements(group, 6, std=std, seed=s) for s in range(2))
        m, n = dense(group, g), dense(group, h)
        assert_relative(dense(group, group.compose(g, h)), m @ n, 1e-13, event=2)
        assert_relative(dense(group, group.inverse(g)), torch.linalg.inv(m), 1e-11, event=2)
        v = random_vectors(group, 6, std=1.0, seed=3)
        moved = dense_algebra(group, (group.Ad(g) @ v.unsqueeze(-1)).squeeze(-1))
        assert_relative(moved, m @ dense_algebra(group, v) @ torch.linalg.inv(m), 1e-11, event=2)

    def test_structure_constants(self, entry: tuple[LieGroup, float]) -> None:
        group, _ = entry
        u, v = (random_vectors(group, 5, std=1.0, seed=s) for s in range(2))
        a, b = dense_algebra(group, u), dense_algebra(group, v)
        assert_relative(dense_algebra(group, group.algebra.bracket(u, v)), a @ b - b @ a, 1e-12, event=2)

    def test_jacobians_of_exp(self, entry: tuple[LieGroup, float]) -> None:
        """exp(v + w) = exp(J_l w) exp(v) = exp(v) exp(J_r w), against differences, also in a scaled basis."""
        group, std = entry
        scaled = group.with_scale([0.5 + 0.1 * i for i in range(group.dim)])
        for each in (group, scaled):
            v = random_vectors(each, std=std)
            if each.dim > 20:
                left = each.left_jacobian(v)
                assert_relative(left, _phi1(each.algebra.ad(v)), 1e-11, event=2)
                continue
            inverse = each.inverse(each.exp(v))
            left = numeric_jacobian(lambda w, e=each, v=v, i=inverse: e.log(e.compose(e.exp(v + w), i)), 0 * v)
            right = numeric_jacobian(lambda w, e=each, v=v, i=inverse: e.log(e.compose(i, e.exp(v + w))), 0 * v)
            assert_relative(each.left_jacobian(v), left, 1e-8, event=2)
            assert_relative(each.right_jacobian(v), right, 1e-8, event=2)

    def test_tangent_is_the_derivative_of_exp(self, entry: tuple[LieGroup, float]) -> None:
        group, _ = entry
        v = random_vectors(group, std=1.0)
        derivative = torch.func.jvp(group.exp, (torch.zeros_like(v),), (v,))[1]
        assert_relative(group._tangent(v), derivative, 1e-12, event=2)

    def test_project_removes_drift(self, entry: tuple[LieGroup, float]) -> None:
        group, std = entry
        step = random_elements(group, std=0.1 * std, dtype=torch.float32)
        g = step
        for i in range(200):
            g = group.compose(g, step if i % 2 else group.inverse(step))
        exact = group.project(g)
        again = group.project(exact)
        assert_relative(exact, g, 1e-3, event=2)
        assert_relative(again, exact, 1e-6, event=2)
        log = group.log(exact)
        assert torch.isfinite(log).all()

    def test_rows_without_logarithm_do_not_spread(self, entry: tuple[LieGroup, float]) -> None:
        group, std = entry
        if group.element_shape[-2] < 2:
            return
        g = random_elements(group, 4, std=std)
        g[1] = math.nan
        flipped = dense(group, g)[2].clone()
        flipped[:2, :2] = torch.diag(torch.tensor([-2.0, -0.5], dtype=torch.float64))  # no real logarithm
        flipped[:2, 2:] = 0.0
        flipped[2:, :2] = 0.0
        if not isinstance(group, SO | SE):
            g[2] = flipped[: group.element_shape[0]]
        bad = torch.tensor([False, True, not isinstance(group, SO | SE), False])
        if isinstance(group, Projective) and group.size == 2:
            bad[2] = False  # minus the matrix has one
        assert torch.equal(group.has_log(g), ~bad)
        leaf = g.clone().requires_grad_()
        torch.where(group.has_log(leaf).unsqueeze(-1), group.log(leaf), 0.0).sum().backward()
        assert leaf.grad is not None
        alone = g[[0, 3]].clone().requires_grad_()
        group.log(alone).sum().backward()
        assert alone.grad is not None
        assert_relative(leaf.grad[[0, 3]], alone.grad, 1e-10, event=2)


def _phi1(a: Tensor) -> Tensor:
    n = a.shape[-1]
    augmented = torch.zeros(2 * n, 2 * n, dtype=a.dtype)
    augmented[:n, :n], augmented[:n, n:] = a, torch.eye(n)
    return torch.as_tensor(scipy.linalg.expm(augmented.numpy()))[:n, n:]


class TestExponentialAtTheEdges:
    """Closed forms where eigenvalues coincide, vanish, or are far apart."""

    MATRICES = (
        [[0.0, 0.0], [0.0, 0.0]],
        [[1e-9, 0.0], [0.0, -1e-9]],
        [[0.0, 1.0], [0.0, 0.0]],
        [[0.7, 1.0], [0.0, 0.7]],
        [[0.7, 1.0], [1e-12, 0.7]],
        [[-3.0, 1.0], [-1e-9, -3.0]],
        [[0.0, -math.pi], [math.pi, 0.0]],
        [[0.1, -6.0], [6.0, 0.1]],
        [[2.0, 0.0], [0.0, 0.0]],
        [[1.0, 2.0], [2.0, 4.0]],
        [[1.0, 2.0], [2.0, 4.0 + 1e-10]],
        [[5.0, 0.0], [0.0, -5.0]],
        [[0.3, 50.0], [0.0, 0.31]],
        [[-20.0, 1.0], [0.0, -0.1]],
    )

    @pytest.mark.parametrize("matrix", MATRICES, ids=str)
    @pytest.mark.parametrize("n", [2, 3, 4])
    def test_affine(self, matrix: list[list[float]], n: int) -> None:
        """The matrix as a corner block: exp of Affine(n) holds exp, phi_1 and their derivatives."""
        group = Affine(n)
        m = torch.zeros(n, n, dtype=torch.float64)
        m[:2, :2] = torch.tensor(matrix)
        v = torch.cat([m.flatten(), torch.linspace(-1.0, 1.0, n, dtype=torch.float64)])
        expected = torch.as_tensor(scipy.linalg.expm(dense_algebra(group, v).numpy()))
        for exp in (group.exp, many(group.exp)):
            assert_relative(dense(group, exp(v)), expected, 1e-12, event=2)
            assert_relative(exp(v.float()), expected[:-1].float(), 2e-5, event=2)

        def oracle(v: Tensor) -> Tensor:
            return torch.linalg.matrix_exp(dense_algebra(group, v))[:-1]

        # jacrev and hessian map over directions, which takes the closed forms backwards and forwards
        assert_relative(jacrev(many(group.exp))(v), jacrev(oracle)(v), 1e-11, event=3)
        if n < 4:
            weights = torch.linspace(1.0, 2.0, n * (n + 1), dtype=torch.float64).reshape(n, n + 1)
            expected = hessian(lambda v: (oracle(v) * weights).sum())(v)
            for exp in (group.exp, many(group.exp)):
                second = hessian(lambda v, exp=exp: (exp(v) * weights).sum())(v)
                assert_relative(second, expected, 1e-9, event=2)

    @pytest.mark.parametrize("k", [2, 3, 4, 6])
    @pytest.mark.parametrize("size", [1e-8, 0.1, 1.0, 8.0])
    def test_general_matrices(self, k: int, size: float) -> None:
        m = size * randn(30, k, k)
        expected = scipy_of(scipy.linalg.expm, m)
        assert_relative(GLPlus(k).exp(m.flatten(1)), expected, 1e-11, event=2, floor=0.0)
        assert_relative(many(GLPlus(k).exp)(m.flatten(1)), expected, 1e-11, event=2, floor=0.0)
        # the fixed number of doublings under transforms
        assert_relative(vmap(GLPlus(k).exp)(m.flatten(1)), expected, 1e-11, event=2, floor=0.0)

    @pytest.mark.parametrize("size", [0.1, 8.0])
    def test_transforms_of_a_batch(self, size: float) -> None:
        """Under jvp and grad the batch is seen, and doubled as often as it needs; under vmap it is not."""
        group = GLPlus(3)
        v, tangent = size * randn(210, 9), randn(210, 9, seed=1)
        seen = jvp(group.exp, (v,), (tangent,))[1]
        hidden = vmap(lambda v, t: jvp(group.exp, (v,), (t,))[1])(v, tangent)
        assert_relative(seen, hidden, 1e-11, event=2)
        seen = grad(lambda v: group.exp(v).sum())(v)
        hidden = vmap(grad(lambda v: group.exp(v).sum()))(v)
        assert_relative(seen, hidden, 1e-11, event=1)
        leaf = v.clone().requires_grad_()
        assert_relative(seen, torch.autograd.grad(group.exp(leaf).sum(), leaf)[0], 1e-13, event=1)

    def test_bad_rows_do_not_spread(self) -> None:
        for group in (GLPlus(2), SL(3), Projective(2), Affine(3), SO(3), SE(3), KdVSymmetry(), SO(5)):
            v = random_vectors(group, 3, std=0.3)
            expected = group.exp(v)[[0, 2]]
            for bad, exp in itertools.product((math.nan, math.inf, 1e8), (group.exp, many(group.exp))):
                v[1] = bad
                leaf = v.clone().requires_grad_()
                g = exp(leaf)[[0, 2]]
                assert_relative(g, expected, 1e-12, event=len(group.element_shape))
                (gradient,) = torch.autograd.grad(g.sum(), leaf)
                assert torch.isfinite(gradient[[0, 2]]).all()

    def test_empty_and_unbatched(self) -> None:
        for group in (GLPlus(3), Affine(2), SE(3), SO(5)):
            assert group.exp(torch.zeros(0, group.dim)).shape == (0, *group.element_shape)
            assert group.log(group.exp(torch.zeros(group.dim))).shape == (group.dim,)


class TestRotationLogarithm:
    """jaxlie#9: NaN gradient at pi; pytorch3d#188: the logarithm explodes near pi."""

    ANGLES = (0.0, 1e-12, 1e-6, 1e-3, 0.3, 1.5, 2.9, 3.1, 3.14, math.pi - 1e-4, math.pi - 1e-7, math.pi - 1e-10)

    @pytest.mark.parametrize("angle", ANGLES)
    @pytest.mark.parametrize("build", [SO, SE])
    def test_up_to_pi(self, build: type[SO] | type[SE], angle: float) -> None:
        group = build(3)
        for seed in range(6):
            axis = randn(3, seed=seed)
            axis = axis / axis.norm() if seed < 3 else torch.eye(3, dtype=torch.float64)[seed - 3]
            v = torch.cat([angle * axis, *([randn(3, seed=seed + 9)] if build is SE else [])])
            assert_relative(group.log(group.exp(v)), v, 1e-13 if build is SO else 1e-12, event=1)
            derivative = jacfwd(lambda v, g=group: g.log(g.exp(v)))(v)
            assert_relative(derivative, torch.eye(group.dim, dtype=torch.float64), 1e-9, event=2)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
    @pytest.mark.parametrize("build", [pytest.param(SO, marks=pytest.mark.slow(reason="SE, with it, stays")), SE])
    def test_derivatives_are_finite_at_every_angle(self, build: type[SO] | type[SE], dtype: torch.dtype) -> None:
        group = build(3)
        axis = torch.nn.functional.normalize(randn(3, seed=1), dim=0).to(dtype)
        rest = randn(3, seed=2).to(dtype)
        for angle in (*self.ANGLES, math.pi):
            v = torch.cat([angle * axis, *([rest] if build is SE else [])])
            g = group.exp(v)
            first = jacrev(lambda w, g=g: group.log(group.retract(g, w)))(torch.zeros_like(v))
            second = hessian(lambda w, g=g: group.log(group.retract(g, w)).square().sum())(torch.zeros_like(v))
            assert torch.isfinite(first).all()
            assert torch.isfinite(second).all()
            back = group.exp(group.log(g))
            assert_relative(back, g, 1e-13 if dtype == torch.float64 else 2e-6, event=2)

    def test_at_pi(self) -> None:
        """One of the two logarithms: exp of it is the rotation."""
        diagonal = torch.tensor([[1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=torch.float64)
        g = torch.diag_embed(diagonal)
        v = SO(3).log(g)
        assert_relative(v.abs(), math.pi * torch.eye(3, dtype=torch.float64), 1e-15)
        assert_relative(SO(3).exp(v), g, 1e-15, event=2)

    def test_derivative_of_logarithm_is_the_inverse_jacobian(self) -> None:
        group = SO(3)
        v = 3.1 * torch.nn.functional.normalize(randn(20, 3), dim=-1)
        g = group.exp(v)
        derivative = vmap(jacrev(lambda w, g: group.log(group.retract(g, w))))(torch.zeros_like(v), g)
        assert_relative(derivative @ group.right_jacobian(v), torch.eye(3, dtype=torch.float64).expand(20, 3, 3), 1e-11)

    def test_principal_logarithm_near_a_half_turn_in_four_dimensions(self) -> None:
        group = SO(4)
        v = torch.zeros(4, 6, dtype=torch.float64)
        v[:, 0], v[:, 5] = torch.tensor([3.0, 3.1, math.pi - 1e-6, math.pi], dtype=torch.float64), 0.4
        g = random_elements(group, std=0.3)
        v = (group.Ad(g) @ v.unsqueeze(-1)).squeeze(-1)
        log = group.log(group.exp(v))
        assert_relative(log[:2], v[:2], 1e-10, event=1)
        assert_relative(log[2], v[2], 1e-7, event=1)
        assert torch.isnan(log[3]).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_four_dimensions_by_the_angles_of_two_planes(self, dtype: torch.dtype) -> None:
        """Known logarithms, also where one of the two quaternions is the unit and where all four eigenvalues meet."""
        group = SO(4)
        pairs = [(0.0, 0.0), (1e-6, 0.0), (1e-3, -2e-4), (1.0, 1.0), (1.0, -1.0), (3.1, 3.1), (3.1, -3.1), (-3.1, 2.0)]
        pairs += [(0.0, 3.1), (math.pi / 2, -math.pi / 2), (1.5, 1.7), (-2.0, -3.0), (3.1415, 1e-6), (3.14, -3.141)]
        v = torch.zeros(len(pairs), 6, dtype=torch.float64)
        v[:, 0], v[:, 5] = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
        v = (group.Ad(group.random_haar(len(v), generator=seeded(7), dtype=torch.float64)) @ v[..., None])[..., 0]
        matrix = torch.linalg.matrix_exp(group.hat(v))
        bound = 1e-12 if dtype == torch.float64 else 1e-5
        assert_relative(group.exp(v.to(dtype)).double(), matrix, bound, event=2)
        assert_relative(group.log(matrix.to(dtype)).double(), v, bound, event=1)

    def test_derivatives_in_four_dimensions(self) -> None:
        group = SO(4)
        v = torch.cat([torch.zeros(1, 6, dtype=torch.float64), random_vectors(group, 5, std=0.8)])
        v[1, :] = torch.tensor([0.5, 0.2, -0.3, -0.3, -0.2, 0.5])  # q is the unit
        g = group.exp(v)
        derivative = vmap(jacrev(lambda w, g: group.log(group.retract(g, w))))(torch.zeros_like(v), g)
        assert_relative(derivative @ group.right_jacobian(v), torch.eye(6, dtype=torch.float64).expand(6, 6, 6), 1e-11)
        assert bool(torch.isfinite(vmap(hessian(lambda w: group.log(group.exp(w)).sin().sum()))(v)).all())


class TestGeneralLogarithm:
    @pytest.mark.parametrize("k", [3, 4, 6])
    def test_wide_spectra(self, k: int) -> None:
        """Condition numbers to 1e6; every answer is a logarithm, and the principal one."""
        group = GLPlus(k)
        m = randn(200, k, k) * torch.linspace(0.05, 2.0, 200, dtype=torch.float64)[:, None, None]
        g = torch.linalg.matrix_exp(m)
        condition = torch.linalg.cond(g)
        principal = torch.linalg.eigvals(m).imag.abs().amax(-1) < 3.0
        log = group.log(g).reshape(-1, k, k)
        found = torch.isfinite(log).all(-1).all(-1)
        assert bool(found[principal & (condition < 1e6)].all())
        assert_relative(torch.linalg.matrix_exp(log[found]), g[found], 1e-8, event=2)
        near = principal & (condition < 1e6)
        assert_relative(log[near], m[near], 1e-8, event=2)
        assert bool((torch.linalg.eigvals(log[found]).imag.abs() <= math.pi + 1e-6).all())

    def test_without_logarithm(self) -> None:
        """Negative eigenvalues, reflections, singular matrices: NaN."""
        for k in (2, 3, 4):
            bad = torch.eye(k, dtype=torch.float64).repeat(4, 1, 1)
            bad[0, 0, 0], bad[0, 1, 1] = -2.0, -0.5
            bad[1, 0, 0] = -1.0
            bad[2, 0, 0] = 0.0
            bad[3, 0, 0], bad[3, 1, 1], bad[3, 0, 1] = -1.0, -1.0, 1.0
            assert not bool(GLPlus(k).has_log(bad).any())
            assert torch.isnan(GLPlus(k).log(bad)).all()

    def test_outside_the_group(self) -> None:
        """A matrix with a logarithm outside the algebra is not an element."""
        stretched = torch.diag(torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64))
        assert not bool(SL(3).has_log(stretched))
        assert not bool(SO(4).has_log(torch.diag(torch.tensor([2.0, 0.5, 1.0, 1.0], dtype=torch.float64))))
        assert bool(GLPlus(3).has_log(stretched))

    def test_projective_sign(self) -> None:
        """For odd n a homography is a matrix up to sign; the logarithm belongs to the homography."""
        for n in (1, 3):
            group = Projective(n)
            g = -random_elements(group, 10, std=0.4)
            v = group.log(g)
            assert torch.isfinite(v).all()
            assert_relative(group.exp(v), -g, 1e-10, event=2)


class TestActions:
    def test_linear_and_affine(self) -> None:
        for group in (SO(3), SL(2), GLPlus(4), GLPlus(6), SE(2), SE(3), Affine(2), Affine(5)):
            g = random_elements(group, 2, 1, std=0.4)
            x = randn(3, 7, group.element_shape[0], seed=4)
            homogeneous = (
                torch.cat([x, torch.ones_like(x[..., :1])], -1) if isinstance(group, InhomogeneousGroup) else x
            )
            expected = torch.einsum("abij,bpj->abpi", g.expand(2, 3, *group.element_shape), homogeneous)
            action = group.action()
            assert_relative(action(g, x), expected, 1e-13, event=1)
            assert bool(action.is_valid(g, x).all())

    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_projective(self, n: int) -> None:
        group = Projective(n)
        action = group.action()
        g, x = random_elements(group, 5, std=0.3), randn(5, 8, n, seed=3)
        images = torch.einsum("bij,bpj->bpi", g, torch.cat([x, torch.ones_like(x[..., :1])], -1))
        assert_relative(action(g, x), images[..., :-1] / images[..., -1:], 1e-12, event=1)
        assert_relative(action.denominator(g, x), images[..., -1], 1e-12)
        expected = -(n + 1) * images[..., -1].abs().log()
        assert_relative(action.log_abs_det_jacobian(g, x), expected.sum(-1), 1e-10)

    def test_projective_pole(self) -> None:
        """NaN and invalid on the line that goes to infinity; gradients elsewhere are exact."""
        group = Projective(2)
        g = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]], dtype=torch.float64).requires_grad_()
        x = torch.tensor([[-1.0, 0.3], [0.5, 0.2], [-2.0, 0.1]], dtype=torch.float64)
        action = group.action()
        assert action.is_valid(g, x).tolist() == [False, True, True]
        assert torch.isnan(action(g, x)[0]).all()
        assert action.denominator(g, x).sign().tolist() == [0.0, 1.0, -1.0]
        (gradient,) = torch.autograd.grad(action(g, x)[1:].sum(), g)
        (alone,) = torch.autograd.grad(action(g, x[1:]).sum(), g)
        assert_relative(gradient, alone, 1e-14, event=2)

    def test_four_points_fix_a_homography(self) -> None:
        """`from_matrix` takes homographies of any scale, as image libraries make them."""
        group = Projective(2)
        g = random_elements(group, 3, std=0.3)
        scales = torch.tensor([2.0, -3.0, 1e-3], dtype=torch.float64)[:, None, None]
        assert_relative(group.from_matrix(scales * g), g, 1e-12, event=2)
        assert torch.isnan(Projective(1).from_matrix(torch.diag(torch.tensor([1.0, -1.0])))).all()
        assert torch.isnan(group.from_matrix(torch.zeros(3, 3))).all()
        with pytest.raises(ShapeError):
            group.from_matrix(torch.eye(4))

    def test_product_of_a_global_and_a_local_action(self) -> None:
        group = DirectProduct(SE(2), Projective(1))
        action = group.action()
        g = group.join(SE(2).random(4, dtype=torch.float64), Projective(1).random(4, std=0.4, dtype=torch.float64))
        x = randn(4, 6, 3, seed=2)
        rigid, line = group.split(g)
        expected = torch.cat([SE(2).action()(rigid, x[..., :2]), Projective(1).action()(line, x[..., 2:])], -1)
        assert_relative(action(g, x), expected, 1e-14, event=1)
        assert_relative(action.denominator(g, x), Projective(1).action().denominator(line, x[..., 2:]), 1e-14)
        assert DirectProduct(SE(2), SO(2)).action().denominator(g[..., :10], randn(4, 6, 4)).eq(1).all()


class TestKdV:
    """u_t + u u_x + u_xxx = 0."""

    @staticmethod
    def soliton(x: Tensor, t: Tensor, c: float = 1.3) -> Tensor:
        return 3.0 * c / torch.cosh(0.5 * c**0.5 * (x - c * t)) ** 2

    @staticmethod
    def rational(x: Tensor, t: Tensor) -> Tensor:
        return x / t

    @pytest.mark.parametrize("solution", ["soliton", "rational"])
    def test_transformed_solutions_are_solutions(self, solution: str) -> None:
        group = KdVSymmetry()
        action = group.action()
        u = getattr(self, solution)
        for g in random_elements(group, 5, std=0.3):
            back = group.inverse(g)

            def field(x: Tensor, t: Tensor, g: Tensor = g, back: Tensor = back) -> Tensor:
                base = action(back, torch.stack([x, t])[None])[0]
                return action(g, torch.stack([base[0], base[1], u(base[0], base[1])])[None])[0, 2]

            def residual(x: Tensor, t: Tensor, field: Callable[[Tensor, Tensor], Tensor] = field) -> Tensor:
                ux = torch.func.grad(field, 0)
                uxxx = torch.func.grad(torch.func.grad(ux, 0), 0)
                return torch.func.grad(field, 1)(x, t) + field(x, t) * ux(x, t) + uxxx(x, t)

            points = torch.stack([rand(20, seed=1, low=-2.0, high=2.0), rand(20, seed=2, low=0.5, high=2.0)], -1)
            x, t = action(g, points).unbind(-1)
            assert float(vmap(residual)(x, t).abs().max()) <= 1e-8

    def test_generators(self) -> None:
        """x d_x + 3 t d_t - 2 u d_u, d_t, t d_x + d_u, d_x (Olver 1993, example 2.44)."""
        group = KdVSymmetry()
        x, t, u = point = torch.tensor([0.7, 0.4, 1.3], dtype=torch.float64)
        fields = jacfwd(lambda v: group.action()(group.exp(v), point[None])[0])(torch.zeros(4, dtype=torch.float64)).T
        expected = torch.tensor([[x, 3 * t, -2 * u], [0, 1, 0], [t, 0, 1], [1, 0, 0]], dtype=torch.float64)
        assert_relative(fields, expected, 1e-14)

    def test_modular_function(self) -> None:
        group = KdVSymmetry()
        assert not group.algebra.is_unimodular
        assert group.algebra.trace_ad.tolist() == [2.0, 0.0, 0.0, 0.0]
        g = random_elements(group, 10, std=1.0)
        assert_relative(group.log_modular(g), -2.0 * g[:, 0], 1e-14)
        assert_relative(group.log_modular(g), -torch.linalg.slogdet(group.Ad(g))[1], 1e-11)

    @pytest.mark.parametrize("s", [0.0, 1e-9, 0.1, 0.499, 0.5, 0.501, -0.5, 2.0, -3.0])
    def test_exponential_on_both_branches(self, s: float) -> None:
        """The series and the closed form, against the exponential of a faithful 4 x 4 representation."""
        group = KdVSymmetry()
        v = torch.tensor([s, 0.8, -0.7, 0.3], dtype=torch.float64)
        m = torch.zeros(4, 4, dtype=torch.float64)
        m[0, 0], m[1, 1], m[3, 3] = s, 3 * s, -2 * s
        m[1, 2], m[0, 1], m[3, 2], m[0, 2] = v[1], v[2], v[2], v[3]
        e = torch.linalg.matrix_exp(m)
        g = group.exp(v)
        tau, c = e[1, 2], e[3, 2]
        expected = torch.stack([v[0], tau, c, e[0, 2] - 0.5 * c * tau])
        assert_relative(g, expected, 1e-13, event=1)
        assert_relative(group.log(g), v, 1e-12, event=1)

    def test_strong_scalings_do_not_overflow(self) -> None:
        """As a matrix, e^(3 * 400) overflows; the logarithm of the scaling does not."""
        group = KdVSymmetry()
        g = torch.tensor([200.0, 0.1, 0.2, 0.3], dtype=torch.float64)
        square = group.compose(g, g)
        assert torch.isfinite(square).all()
        assert square[0] == 400.0
        assert group.log_modular(square) == -800.0


class TestHaar:
    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_affine(self, n: int) -> None:
        """Left Haar measure is dA db / det A^(n+1), and in exponential coordinates |det J_r| dv."""
        group = Affine(n)
        g = random_elements(group, 5, std=0.4)
        determinant = torch.linalg.det(g[..., :n])
        assert_relative(group.log_modular(g), -determinant.log(), 1e-12)
        assert_relative(group.log_modular(g), -torch.linalg.slogdet(group.Ad(g))[1], 1e-11)
        v = random_vectors(group, std=0.4, seed=1)
        chart = jacrev(lambda v: group.exp(v).flatten())(v).det()
        density = 1.0 / torch.linalg.det(group.exp(v)[:, :n]) ** (n + 1)
        assert_relative(group.right_jacobian(v).det().abs(), chart.abs() * density, 1e-11)
        # the right one differs by the modular function
        ratio = group.left_jacobian(v).det() / group.right_jacobian(v).det()
        assert_relative(ratio.log(), -group.log_modular(group.exp(v)), 1e-10)

    def test_unimodular_groups(self) -> None:
        for group in (SO(3), SO(5), SE(2), SE(3), SL(3), GLPlus(2), Projective(2), Heisenberg(1)):
            assert group.algebra.is_unimodular
            assert group.log_modular(random_elements(group, 3, std=0.4)).eq(0).all()
        for group in (Affine(1), Affine(2), KdVSymmetry(), DirectProduct(SO(2), Affine(1))):
            assert not group.algebra.is_unimodular

    @pytest.mark.parametrize("n", [2, 3, 5])
    def test_uniform_rotations(self, n: int) -> None:
        """Moments of Haar measure on SO(n): E R = 0, E R_ij^2 = 1 / n, and the law is left-invariant."""
        g = SO(n).random_haar(20000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert_relative(g.mT @ g, torch.eye(n, dtype=torch.float64).expand_as(g), 1e-12)
        assert_relative(torch.linalg.det(g), torch.ones(20000, dtype=torch.float64), 1e-12)
        assert float(g.mean(0).abs().max()) < 0.03
        assert float((g.square().mean(0) - 1.0 / n).abs().max()) < 0.03
        traces = g.diagonal(dim1=-2, dim2=-1).sum(-1)
        moved = (SO(n).random(dtype=torch.float64, generator=torch.Generator().manual_seed(1)) @ g).diagonal(
            dim1=-2, dim2=-1
        )
        assert abs(float(traces.square().mean() - moved.sum(-1).square().mean())) < 0.06


class TestUnimodularClosedForm:
    """Dimension 3: phi_1(ad) = I + c2 ad + c3 ad^2 for SO(3), SE(2), SL(2), Heisenberg(1)."""

    @pytest.mark.parametrize("build", [lambda: SO(3), lambda: SE(2), lambda: SL(2), Heisenberg, lambda: Translation(3)])
    def test_left_jacobian(self, build: Callable[[], LieGroup]) -> None:
        group = build()
        for size in (0.0, 1e-8, 0.5, 2.0):
            v = size * randn(3, seed=4)
            assert_relative(group.left_jacobian(v), _phi1(group.algebra.ad(v)), 1e-12, event=2)
            second = hessian(lambda v: group.left_jacobian(v).square().sum())(v)
            assert torch.isfinite(second).all()


class TestDirectProduct:
    def test_parts(self) -> None:
        factors = (SO(3), KdVSymmetry(), HeatSymmetry(0.1))
        group = DirectProduct(*factors)
        parts = [random_elements(f, 4, std=0.3, seed=i) for i, f in enumerate(factors)]
        g = group.join(*parts)
        assert g.shape == (4, 9 + 4 + 7)
        for part, f, expected in zip(group.split(group.inverse(g)), factors, parts, strict=True):
            assert_relative(part, f.inverse(expected), 1e-13)
        assert_relative(group.log_modular(g), -2.0 * parts[1][:, 0], 1e-13)
        assert group.algebra.dim == 3 + 4 + 6
        assert group.is_same_group(DirectProduct(*factors, scale=2.0))
        assert not group.is_same_group(DirectProduct(*factors[::-1]))
        assert not group.is_same_group(SO(3))

    def test_row_without_logarithm(self) -> None:
        group = DirectProduct(SL(2), Translation(1))
        g = group.identity(2, dtype=torch.float64)
        g[1, :4] = torch.tensor([-2.0, 0.0, 0.0, -0.5])
        assert torch.isnan(group.log(g)).all(-1).tolist() == [False, True]

    def test_bad_arguments(self) -> None:
        with pytest.raises(ConfigurationError, match="at least one"):
            DirectProduct()
        with pytest.raises(ConfigurationError, match="natural basis"):
            DirectProduct(SO(3, scale=2.0))
        group = DirectProduct(SO(2), SO(3))
        with pytest.raises(ConfigurationError, match="parts"):
            group.join(torch.eye(2))
        with pytest.raises(ShapeError):
            group.join(torch.eye(3), torch.eye(2))
        with pytest.raises(ConfigurationError, match="no standard point action"):
            DirectProduct(KdVSymmetry(), SO(2)).action()


class TestConventions:
    def test_rotation_directions(self) -> None:
        half = torch.tensor([math.pi / 2], dtype=torch.float64)
        x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        assert_relative(SO(2).action()(SO(2).exp(half), x), torch.tensor([[0.0, 1.0]], dtype=torch.float64), 1e-15)
        assert SO(3).algebra.bracket(*torch.eye(3, dtype=torch.float64)[:2]).tolist() == [0.0, 0.0, 1.0]

    def test_projective_basis(self) -> None:
        """Natural basis (e11 - I/3, e12, e13, e21, e22 - I/3, e23, e31, e32): derivatives at the origin."""
        group = Projective(2)
        x = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
        fields = jacfwd(lambda v: group.action()(group.exp(v), x)[0])(torch.zeros(8, dtype=torch.float64)).T
        a, b = x[0].tolist()
        expected = [[a, 0], [b, 0], [1, 0], [0, a], [0, b], [0, 1], [-a * a, -a * b], [-a * b, -b * b]]
        assert_relative(fields, torch.tensor(expected, dtype=torch.float64), 1e-14)

    def test_sizes(self) -> None:
        for build, least in ((SO, 2), (SE, 2), (SL, 2), (GLPlus, 1), (Affine, 1), (Projective, 1)):
            for bad in (least - 1, 2.0, True):
                with pytest.raises(ConfigurationError, match="n"):
                    build(bad)
            group = build(least + 1)
            assert repr(group) == f"{build.__name__}({least + 1})"
            assert build(least + 1, scale=0.5).is_same_group(group)

    def test_hat_and_vee(self) -> None:
        for group in (SO(3, scale=0.5), SO(4), SL(3, scale=2.0), GLPlus(2), Projective(2)):
            v = randn(4, group.dim)
            assert_relative(group.vee(group.hat(v)), v, 1e-14)
            assert_relative(torch.linalg.matrix_exp(group.hat(v)), group.exp(v), 1e-12, event=2)

    def test_bases_of_unequal_sizes(self) -> None:
        """Coordinates with respect to vectors as different as 1 and 1e-12; where none is, there is a zero."""
        size = torch.logspace(0, -12, 8, dtype=torch.float64)
        group = MatrixGroup(SL(3).hat(torch.diag(size)))
        eye = torch.eye(8, dtype=torch.float64)
        assert_relative(group.vee(group.hat(eye)), eye, 1e-13)
        rows = group.vee(torch.eye(9, dtype=torch.float64).unflatten(-1, (3, 3)))
        assert torch.equal(rows == 0.0, SL(3).vee(torch.eye(9, dtype=torch.float64).unflatten(-1, (3, 3))) == 0.0)


class TestCompile:
    @pytest.mark.parametrize(
        "group",
        [
            *(SO(3), SO(4), SE(3), GLPlus(2), SL(3), Affine(2), Projective(2)),
            DirectProduct(SE(2), KdVSymmetry()),
        ],
        ids=repr,
    )
    @pytest.mark.slow(reason="the groups of test_autodiff.py and the traced operations of test_compiled.py stay")
    def test_full_graph(self, group: LieGroup) -> None:
        torch._dynamo.reset()
        g, v = random_elements(group, 3, std=0.3), random_vectors(group, 3, std=0.3, seed=1)

        def everything(g: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            h = group.compose(g, group.inverse(group.exp(v)))
            return h, group.log(h), group.Ad(h), group.log_modular(h), group.left_jacobian(v), group.project(h)

        compiled = torch.compile(everything, fullgraph=True, backend="eager")
        for actual, expected in zip(compiled(g, v), everything(g, v), strict=True):
            assert_relative(actual, expected, 1e-11)
