"""Half precision and large vectors: right at every size and in every dtype, or NaN; never a wrong number."""

import math
from collections.abc import Callable

import mpmath
import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch.func import jacrev, vmap

from tests.groups.cases import GroupCase
from tests.helpers import assert_relative, randn, random_vectors
from trivgeo.groups import SE, SL, SO, Affine, GLPlus, HeatSymmetry, LieGroup, MatrixGroup, Projective, Similarity
from trivgeo.groups.inhomogeneous import InhomogeneousGroup


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("count", [1, 3, 300])
def test_half_precision(case: GroupCase, dtype: torch.dtype, count: int) -> None:
    """One rounding of the result in float64; torch's own matrix_exp gives 1e30, and its inverse an error."""
    group = case.group
    v = (0.2 * random_vectors(group, count, std=case.std)).to(dtype)
    g = group.exp(v)
    h = g.flip(0)
    whole = v.double(), g.double(), h.double()
    bound = 2 * torch.finfo(dtype).eps
    operations: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [
        lambda v, g, h: group.exp(v),
        lambda v, g, h: group.compose(g, h),
        lambda v, g, h: group.inverse(g),
        lambda v, g, h: group.Ad(g),
        lambda v, g, h: group.log_modular(g),
        lambda v, g, h: group.left_jacobian(v),
    ]
    if case.has_action:
        x = 0.3 * randn(count, 4, max(group.action().point_dims)).to(dtype)
        operations.append(lambda v, g, h: group.action()(g, x.to(g.dtype)))
    for f in operations:
        half, full = f(v, g, h), f(*whole)
        assert half.dtype == dtype
        same = torch.isfinite(half)
        assert float(same.double().mean()) > 0.9
        assert_relative(half.double()[same], full[same], bound, floor=float(full[same].abs().max()) + 1.0)
    log = group.log(g)
    assert torch.isfinite(log).all()
    assert_relative(log.double(), v.double(), 40 * torch.finfo(dtype).eps, floor=1.0 + float(g.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("other", [0.0, 1e-6, -1e-6, 1e-3, 0.1, -0.1])
@pytest.mark.parametrize("turned", [False, True])
def test_affine_maps_that_hardly_stretch_in_one_direction(dtype: torch.dtype, other: float, turned: bool) -> None:
    """Translations of exponentials, for one element and for many, against exponentials of matrices."""
    one = torch.tensor([*torch.linspace(-0.6, 0.6, 25).tolist(), -0.5, 0.5], dtype=torch.float64)
    c = math.sqrt(0.5)
    turn = torch.tensor([[c, -c], [c, c]], dtype=torch.float64) if turned else torch.eye(2, dtype=torch.float64)
    linear = turn @ torch.diag_embed(torch.stack([one, torch.full_like(one, other)], -1)) @ turn.mT
    v = torch.cat([linear.flatten(1), torch.ones(len(one), 2, dtype=torch.float64)], -1).to(dtype)
    dense = torch.zeros(len(one), 3, 3, dtype=torch.float64)
    dense[:, :2, :2], dense[:, :2, 2] = v[:, :4].double().unflatten(1, (2, 2)), v[:, 4:].double()
    expected = torch.from_numpy(scipy.linalg.expm(dense.numpy()))[:, :2]
    few = torch.cat([Affine(2).exp(x.unsqueeze(0)) for x in v])
    many = Affine(2).exp(v.repeat(12, 1))[: len(v)]
    for found in (few, many):
        assert_relative(found.double(), expected, 100 * torch.finfo(dtype).eps, floor=1.0)


def test_a_jacobian_of_maps_of_the_line() -> None:
    r"""phi_1(-ad v) with ad v = [[0, 0], [-1, 1/2]]."""
    found = Affine(1).left_jacobian(torch.tensor([0.5, 1.0], dtype=torch.float64))
    grown = 2.0 * math.expm1(0.5)
    assert_relative(found, torch.tensor([[1.0, 0.0], [2.0 - 2.0 * grown, grown]], dtype=torch.float64), 1e-13)


TURNING = [SO(3), SO(4), SO(5), SL(2), SL(3), GLPlus(2), GLPlus(3), GLPlus(4), SE(3), SE(4), Affine(3), Projective(2)]


def turning(group: LieGroup, size: float, count: int) -> tuple[Tensor, Tensor]:
    """Vectors of skew matrices of one norm, and these matrices."""
    linear = group if isinstance(group, MatrixGroup) else group.linear
    matrices = randn(count, linear.size, linear.size)
    matrices = matrices - matrices.mT
    matrices = size * matrices / torch.linalg.matrix_norm(matrices)[:, None, None]
    vectors = linear.vee(matrices)
    rest = torch.zeros(count, group.dim - linear.dim, dtype=torch.float64)
    return torch.cat([vectors, rest], -1), matrices


def unitary_exp(matrices: Tensor) -> Tensor:
    """The exponential of skew matrices by their eigenvectors, which are orthonormal."""
    values, vectors = torch.linalg.eigh(1j * matrices)
    return ((vectors * torch.exp(-1j * values).unsqueeze(-2)) @ vectors.mH).real


@pytest.mark.parametrize("size", [30.0, 1e3, 1e4, 1e6])
@pytest.mark.parametrize("group", TURNING, ids=str)
def test_large_turns(group: LieGroup, size: float) -> None:
    """SO(4).exp of an angle of 1e4 was -5e20 in a batch of 300, and right alone."""
    vectors, matrices = turning(group, size, 300)
    expected = unitary_exp(matrices)
    k = expected.shape[-1]
    bound = 1e-14 * size
    assert_relative(group.exp(vectors)[..., :k, :k], expected, bound)
    assert_relative(torch.stack([group.exp(v) for v in vectors[:5]])[..., :k, :k], expected[:5], bound)
    mapped = vmap(group.exp)(vectors[:20])[..., :k, :k]
    finite = torch.isfinite(mapped).flatten(1).all(-1)
    assert bool(finite.all()) or size > 1e3
    assert_relative(mapped[finite], expected[:20][finite], bound)
    single = group.exp(vectors.float())[..., :k, :k]
    assert_relative(single.double(), unitary_exp(turning_of(group, vectors.float())), 1e-6 * size)


def turning_of(group: LieGroup, vectors: Tensor) -> Tensor:
    linear = group if isinstance(group, MatrixGroup) else group.linear
    return linear.hat(vectors[..., : linear.dim].double())


@pytest.mark.parametrize("size", [3.0, 300.0, 3000.0, 1e5])
def test_large_jacobians(size: float) -> None:
    """phi_1 of ad by an exponential of twice its size; at 3000 it was wrong by 5e-5."""
    group = HeatSymmetry(0.1)
    v = torch.tensor([[0.0, size, -size, 1.0, 0.5, 0.0]]).double()
    ad = group.algebra.ad(v)[0]
    both = torch.zeros(12, 12, dtype=torch.float64)
    both[:6, :6], both[:6, 6:] = ad, torch.eye(6)
    expected = torch.as_tensor(scipy.linalg.expm(both.numpy()))[:6, 6:]
    assert_relative(group.left_jacobian(v)[0], expected, 1e-14 * size, event=2)
    assert_relative(group.left_jacobian(v.expand(300, -1))[7], expected, 1e-14 * size, event=2)
    mapped = vmap(group.left_jacobian)(v)[0]
    assert bool(torch.isnan(mapped).any()) or float((mapped - expected).abs().max()) < 1e-13 * size


@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.parametrize("group", [Affine(2), Affine(3), SE(4)], ids=str)
def test_long_translations_leave_the_linear_part_alone(group: InhomogeneousGroup, count: int) -> None:
    """The length of a translation b changes nothing but the part of b, which is linear in it; derivatives too."""
    linear = group.linear.dim
    v = 0.3 * randn(group.dim).expand(count, -1)
    long = torch.cat([v[:, :linear], 1e5 * v[:, linear:]], -1)
    expected = group.linear.exp(v[:, :linear])
    assert_relative(group.exp(long)[..., :-1], expected, 1e-14)
    assert_relative(group.exp(long.float())[..., :-1].double(), expected, 1e-6)
    assert_relative(group.exp(long)[..., -1], 1e5 * group.exp(v)[..., -1], 1e-14)
    slope, short = jacrev(group.exp)(long[0]), jacrev(group.exp)(v[0])
    assert_relative(slope[..., linear:], short[..., linear:], 1e-11)
    assert_relative(slope[:, -1, :linear], 1e5 * short[:, -1, :linear], 1e-11)


def test_one_huge_vector_does_not_spread() -> None:
    group = SO(4)
    v = torch.cat([randn(250, 6), torch.full((1, 6), 1e30, dtype=torch.float64)])
    g = group.exp(v)
    assert_relative(g[:250], group.exp(v[:250]), 1e-14)
    leaf = v.clone().requires_grad_()
    group.exp(leaf)[:250].sum().backward()
    assert leaf.grad is not None
    assert bool(torch.isfinite(leaf.grad[:250]).all())


@pytest.mark.parametrize("gap", [1e-2, 1e-3, 3e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("group", [SO(4), SO(5), GLPlus(3), SL(3), Projective(2), Affine(3), SE(4)], ids=str)
def test_logarithms_near_half_turns(group: LieGroup, gap: float) -> None:
    """Rotations by pi - gap in one plane: the logarithm exists, and was NaN below 3e-4."""
    linear = group if isinstance(group, MatrixGroup) else group.linear
    k = linear.size
    turn = torch.zeros(k, k, dtype=torch.float64)
    turn[1, 0], turn[0, 1] = torch.pi - gap, gap - torch.pi
    if k > 3:
        turn[3, 2], turn[2, 3] = 0.7, -0.7
    frame = torch.linalg.qr(randn(20, k, k))[0]
    if not isinstance(linear, SO):
        frame = frame @ torch.diag(torch.linspace(0.7, 1.5, k, dtype=torch.float64))
    v = linear.vee(frame @ turn @ torch.linalg.inv(frame))
    v = torch.cat([v, torch.zeros(20, group.dim - linear.dim, dtype=torch.float64)], -1)
    g = group.exp(v).requires_grad_()
    log = group.log(g)
    assert_relative(log, v, 1e-14 / gap + 1e-12, floor=10.0)
    assert bool(torch.isfinite(torch.autograd.grad(log.sum(), g)[0]).all())
    mapped = vmap(group.log)(g.detach())
    finite = torch.isfinite(mapped).all(-1)
    assert bool(finite.all()) or gap < 1e-3
    assert_relative(mapped[finite], v[finite], 1e-14 / gap + 1e-9, floor=10.0)


@pytest.mark.parametrize("growth", [0.0, 1e-8, 0.01, 0.3, -0.45, 0.6, -3.0, 8.0, -20.0])
@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-3, 0.1, 0.4, 1.0, 3.0, 3.14159])
def test_similarities_of_space(angle: float, growth: float) -> None:
    """Exponentials as of 4 x 4 matrices to fifty digits, in every regime of turns and growths; logarithms back."""
    group, turn = Similarity(3), randn(3)
    v = torch.cat([angle * turn / turn.norm(), torch.tensor([growth], dtype=torch.float64), randn(3, seed=1)])
    matrix = torch.cat([group.linear.hat(v[:4]), v[4:, None]], -1)
    with mpmath.workdps(50):
        exact = mpmath.expm(mpmath.matrix([*matrix.tolist(), [0.0] * 4]))
        expected = torch.tensor([[float(exact[i, j]) for j in range(4)] for i in range(3)], dtype=torch.float64)
    many = group.exp(v.expand(300, -1))  # few are computed by a routine for any matrix
    for part, goal in zip((many[0, :, :3], many[0, :, 3]), (expected[:, :3], expected[:, 3]), strict=True):
        assert_relative(part, goal, 4e-15, event=part.ndim, floor=0.0)
    assert_relative(group.log(many)[0], v, 4e-15, event=1, floor=0.0)


@pytest.mark.parametrize("growth", [0.0, 1e-12, 1e-3, 0.49, 0.7, 5.0, -30.0, 300.0])
def test_similarities_of_the_plane(growth: float) -> None:
    """As complex numbers, to the last digits of the larger of two coordinates, in batches and alone."""
    group = Similarity(2)
    for turn in (0.0, 1e-12, 1e-4, 0.5, 0.71, 1.01, 3.14159, -2.0, 6.2, 50.0):
        v = torch.tensor([turn, growth, 1.3, -0.4], dtype=torch.float64)
        with mpmath.workdps(40):
            z = mpmath.mpc(growth, turn)
            phi = mpmath.expm1(z) / z if z else mpmath.mpf(1)
            wanted = [complex(mpmath.exp(z)), complex(phi * mpmath.mpc(1.3, -0.4))]
        for count, bound in ((300, 1e-15), (1, 2e-13)):
            g = group.exp(v.expand(count, 4))[0]
            found = [complex(float(g[0, i]), float(g[1, i])) for i in (0, 2)]
            for one, other in zip(found, wanted, strict=True):
                assert abs(one - other) <= bound * abs(other)
        if abs(turn) < math.pi:  # the exact logarithm of the element that was rounded
            with mpmath.workdps(40):
                a, b = (mpmath.mpc(x.real, x.imag) for x in found)
                log = mpmath.log(a)
                rest = complex(b * log / (a - 1) if log else b)
            w = group.log(g.expand(300, 2, 3))[0]
            assert abs(complex(float(w[2]), float(w[3])) - rest) <= 1e-15 * abs(rest)
            assert abs(complex(float(w[1]), float(w[0])) - complex(log)) <= 1e-15 * max(1.0, abs(complex(log)))
