"""Scalar functions and small linear algebra against mpmath and scipy, with derivatives through the branch points."""

import math
from collections.abc import Callable
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import torch
from torch import Tensor
from torch.func import jacfwd, jacrev, jvp, vmap

from tests.helpers import assert_relative, randn
from trivgeo._numerics import (
    Constant,
    _constants,
    dense_exp,
    jvp_columns,
    log_abs_det,
    log_ratio,
    phi1,
    polynomial,
    stumpff,
)

mpmath.mp.dps = 40

# around the branch points -1, 0, 1 and far from them
ARGUMENTS = [-30.0, -5.0, -1.0001, -1.0, -0.9999, -0.3, -1e-9, 0.0, 1e-300, 1e-9, 0.3, 0.9999, 1.0, 1.0001, 4.0, 50.0]
# trace / 2 of elements of SL(2): elliptic, around the branch points p = tau^2 - 1 = -0.02, 0, 0.02, hyperbolic
_EDGE = [math.sqrt(1 + s * 0.02) for s in (-1, 1)]
HALF_TRACES = [-0.999, -0.5, 0.0, 0.7, _EDGE[0] - 1e-9, _EDGE[0] + 1e-9, 0.9999, 1 - 1e-12, 1.0, 1 + 1e-12, 1.001]
HALF_TRACES += [_EDGE[1] - 1e-9, _EDGE[1] + 1e-9, 1.5, 30.0]

Scalar = Callable[[Tensor], Tensor]


def derivatives(f: Scalar, order: int) -> list[Scalar]:
    """f and its derivatives, alternating reverse and forward mode."""
    functions = [f]
    for k in range(order):
        functions.append((jacrev if k % 2 == 0 else jacfwd)(functions[-1]))
    return functions


def tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("k", range(4))
@pytest.mark.parametrize("order", range(4))
def test_stumpff(k: int, order: int) -> None:
    """The n-th derivative of sum_j q^j / (2j + k)!, summed with 40 digits."""

    def exact(q: float) -> float:
        def term(j: int) -> mpmath.mpf:
            falling = math.prod(range(j - order + 1, j + 1))
            return mpmath.mpf(falling) * mpmath.mpf(q) ** (j - order) / mpmath.factorial(2 * j + k)

        return float(mpmath.fsum(term(j) for j in range(order, 80)))

    values = vmap(derivatives(lambda q: stumpff(q)[k], 3)[order])(tensor(ARGUMENTS))
    assert_relative(values, tensor([exact(q) for q in ARGUMENTS]), 1e-11, floor=1e-2)


def test_stumpff_identity_and_float32() -> None:
    q = tensor(ARGUMENTS)
    c0, c1, c2, c3 = stumpff(q)
    assert_relative(c0, 1 + q * c2, 1e-12)
    assert_relative(c1, 1 + q * c3, 1e-12)
    for low, high in zip(stumpff(q.float()), (c0, c1, c2, c3), strict=True):
        assert low.dtype == torch.float32
        assert_relative(low.double(), high, 1e-5, floor=1e-2)
    assert torch.isfinite(torch.stack(stumpff(tensor([-1e6, 4e5])))).all()


@pytest.mark.parametrize("order", range(4))
def test_log_ratio(order: int) -> None:
    """arcosh(tau) / sqrt(tau^2 - 1) along tau, continued to arccos: 40-digit derivatives."""

    def exact(tau: mpmath.mpf) -> mpmath.mpf:
        if abs(tau - 1) < mpmath.mpf("1e-3"):  # sum_k (-2)^k k!^2 / (2k + 1)! (tau - 1)^k
            terms = [
                (-2) ** k * mpmath.factorial(k) ** 2 / mpmath.factorial(2 * k + 1) * (tau - 1) ** k for k in range(20)
            ]
            return mpmath.fsum(terms)
        if tau > 1:
            return mpmath.acosh(tau) / mpmath.sqrt(tau**2 - 1)
        return mpmath.acos(tau) / mpmath.sqrt(1 - tau**2)

    def f(tau: Tensor) -> Tensor:
        return log_ratio(tau, (tau - 1) * (tau + 1))

    values = vmap(derivatives(f, 3)[order])(tensor(HALF_TRACES))
    with mpmath.workdps(80):
        expected = [
            float(mpmath.diff(exact, mpmath.mpf(t), order, h=mpmath.mpf("1e-20")) if order else exact(mpmath.mpf(t)))
            for t in HALF_TRACES
        ]
    assert_relative(values, tensor(expected), 1e-9, floor=1e-2)


def test_log_ratio_domain() -> None:
    """NaN where the trace is at most -2, without harm to the derivatives of the others."""
    tau = tensor([-1.0, -1.5, 0.5, 1.0, 2.0]).requires_grad_()
    f = log_ratio(tau, (tau - 1) * (tau + 1))
    assert torch.equal(torch.isnan(f), torch.tensor([True, True, False, False, False]))
    (gradient,) = torch.autograd.grad(f[2:].sum(), tau)
    assert torch.isfinite(gradient[2:]).all()


@pytest.mark.parametrize("n", range(1, 6))
class TestLogAbsDet:
    def test_value(self, n: int) -> None:
        a = randn(4, 2, n, n)
        expected = np.log(np.abs(scipy.linalg.det(a.numpy())))
        assert_relative(log_abs_det(a), torch.as_tensor(expected), 1e-11)

    def test_derivatives(self, n: int) -> None:
        """The gradient is the transposed inverse, the second derivative -tr(A^-1 E A^-1 F), also under vmap(jacfwd)."""
        a = randn(3, 2, n, n, seed=1) + 2.0 * torch.eye(n)
        inverse = torch.as_tensor(np.linalg.inv(a.numpy()))
        expected = inverse.transpose(-1, -2)
        second = -torch.einsum("...jk,...li->...ijkl", inverse, inverse)
        for first in (jacfwd(log_abs_det), jacrev(log_abs_det)):
            assert_relative(vmap(vmap(first))(a), expected, 1e-10, event=2)
        assert_relative(vmap(vmap(jacfwd(jacrev(log_abs_det))))(a), second, 1e-9, event=4)
        outer = vmap(jacfwd(log_abs_det))(a)  # [3, 2, 2, n, n]: a batch inside
        assert_relative(torch.einsum("bmmij->bmij", outer), expected, 1e-10, event=2)

    def test_singular(self, n: int) -> None:
        assert log_abs_det(torch.zeros(n, n)) == -math.inf


class TestPhi1:
    def test_against_quadrature(self) -> None:
        a, b = randn(4, 4), randn(4, seed=1)
        integral, _ = scipy.integrate.quad_vec(lambda s: scipy.linalg.expm(s * a.numpy()) @ b.numpy(), 0.0, 1.0)
        assert_relative(phi1(a, b), torch.as_tensor(integral), 1e-10, event=1)

    def test_against_the_closed_form(self) -> None:
        """A^-1 (e^A - 1) b, and b at A = 0; batches broadcast."""
        a, b = randn(3, 1, 3, 3) + 2.0 * torch.eye(3), randn(5, 3, seed=1)
        power = torch.as_tensor(np.asarray(scipy.linalg.expm(a.numpy())))
        expected = torch.linalg.solve(a, (power - torch.eye(3)) @ b.unsqueeze(-1)).squeeze(-1)
        assert_relative(phi1(a, b), expected, 1e-10, event=1)
        assert_relative(phi1(torch.zeros(3, 3).double(), b), b, 1e-14)

    def test_long_vectors(self) -> None:
        a, b = randn(4, 4), 1e8 * randn(4, seed=1)
        assert_relative(phi1(a.float(), b.float()).double() / 1e8, phi1(a, b / 1e8), 1e-6, event=1)

    def test_derivatives(self) -> None:
        a, b = 0.5 * randn(3, 3), randn(3, seed=1)
        assert torch.autograd.gradcheck(phi1, (a.requires_grad_(), b.requires_grad_()))
        zero = torch.zeros(3, 3, dtype=torch.float64)
        derivative = jvp(lambda a: phi1(a, b), (zero,), (a,))[1]
        assert_relative(derivative, 0.5 * a @ b, 1e-12, event=1)  # phi_1 = 1 + A / 2 + ...
        second = jacfwd(jacfwd(lambda s: phi1(s * a, b)))(torch.zeros((), dtype=torch.float64))
        assert_relative(second, a @ (a @ b) / 3, 1e-12, event=1)


class TestDenseExponential:
    """pytorch#196592: one matrix alone is off by 1e-10 (1e-5 in float32) at norms near 0.04 (0.5)."""

    @pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-15), (torch.float32, 1e-6)], ids=str)
    @pytest.mark.parametrize("batch", [(), (1,), (1, 1), (2,), (3, 2)], ids=str)
    @pytest.mark.parametrize("angle", [1e-9, 1e-4, 0.03, 0.045, 0.1, 0.3, 0.5, 1.0])
    def test_rotations(self, batch: tuple[int, ...], angle: float, dtype: torch.dtype, bound: float) -> None:
        generator = torch.tensor([[0.0, -angle], [angle, 0.0]], dtype=dtype).expand(*batch, 2, 2)
        theta = float(generator.flatten()[2])
        expected = torch.tensor(
            [[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]], dtype=dtype
        ).expand(*batch, 2, 2)
        assert_relative(dense_exp(generator), expected, bound)
        derivative = jvp(dense_exp, (generator.contiguous(),), (generator.contiguous() / theta,))[1]
        assert_relative(derivative, expected @ generator / theta, 4 * bound)
        leaf = generator.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((dense_exp(leaf) * expected).sum(), leaf)
        # d/ds of <exp(s A), R> = 2 cos(angle (s - 1)) vanishes at s = 1
        assert float((gradient * generator / theta).sum((-1, -2)).abs().max()) < 10 * bound
        mapped = vmap(dense_exp)(generator.unsqueeze(0))
        assert_relative(mapped[0], expected, bound)


def test_polynomial() -> None:
    x = randn(5)
    assert_relative(polynomial(x, [1.0, -2.0, 0.5]), 1 - 2 * x + 0.5 * x**2, 1e-14)
    assert torch.equal(polynomial(x, [3.0]), torch.full_like(x, 3.0))


def test_jvp_columns() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.stack([x[..., 0] * x[..., 1], x[..., 1].sin(), x[..., 0] ** 3], -1)

    x = randn(4, 5, 2)
    expected = vmap(vmap(jacrev(f)))(x)
    assert_relative(jvp_columns(f, x), expected, 1e-13)
    assert_relative(jvp_columns(f, x[:1, :1].expand(4, 5, 2)), expected[:1, :1].expand(4, 5, 3, 2), 1e-13)
    factor = randn(4, 1, 1, seed=1).expand(4, 5, 3)
    scaled = jvp_columns(lambda x, factor: factor * f(x), x, factor)
    assert_relative(scaled, factor.unsqueeze(-1) * expected, 1e-13)


class TestConstant:
    def test_dtypes_and_devices(self) -> None:
        value = randn(3)
        constant = Constant(value)
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            reference = constant.matching(torch.zeros(1, dtype=dtype))
            assert reference.dtype == dtype
            assert torch.equal(reference, value.to(dtype))
        assert constant.matching(torch.zeros(1, device="meta")).device.type == "meta"

    def test_nothing_made_inside_a_transform_outlives_it(self) -> None:
        constant = Constant(torch.ones(2))
        half = torch.zeros(2, dtype=torch.float16)
        vmap(lambda x: constant.matching(x) * x)(half[None])
        jacfwd(lambda x: constant.matching(x) * x)(half)
        with torch.inference_mode():
            constant.matching(half)
        leaf = half.clone().requires_grad_()
        (constant.matching(leaf) * leaf).sum().backward()
        assert torch.equal(leaf.grad, torch.ones(2, dtype=torch.float16))

    def test_is_a_copy(self) -> None:
        value = torch.ones(2)
        constant = Constant(value)
        value.zero_()
        assert torch.equal(constant.value, torch.ones(2, dtype=torch.float64))


def along(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The derivative along the argument, in forward mode without vmap."""
    return lambda x: jvp(f, (x,), (x,))[1]


class TestFirstCallInsideATransform:
    """What is kept between calls is the same whether the first call is made inside a transform or not."""

    @pytest.mark.parametrize("transform", ["grad", "jvp", "jvp of jvp", "jacfwd", "vmap", "grad of vmap", "inference"])
    def test_polynomial(self, transform: str) -> None:
        _constants.cache_clear()
        x = torch.linspace(0.1, 0.3, 3, dtype=torch.float64)

        def f(x: torch.Tensor) -> torch.Tensor:
            return stumpff(x)[2].sum()

        if transform == "inference":
            with torch.inference_mode():
                f(x)
        else:
            first = {
                "grad": torch.func.grad(f),
                "jvp": along(f),
                "jvp of jvp": along(along(f)),
                "jacfwd": torch.func.jacfwd(f),
                "vmap": torch.vmap(f),
                "grad of vmap": torch.func.grad(lambda x: torch.vmap(f)(x).sum()),
            }[transform]
            first(x)
        known = stumpff(x)[2]
        assert known.tolist() == pytest.approx(
            [math.fsum(y**k / math.factorial(2 * k + 2) for k in range(9)) for y in x.tolist()]
        )
        along(f)(x)  # what a transform within another has wrapped is refused here
        wanted = x.clone().requires_grad_()
        f(wanted).backward()  # an inference tensor could not be saved for it
        assert torch.isfinite(wanted.grad).all()

    @pytest.mark.parametrize(
        "transform", [torch.func.grad, torch.func.jacfwd, along, lambda f: along(along(f)), torch.func.hessian]
    )
    def test_constant(self, transform: Callable[..., Callable[[Tensor], Tensor]]) -> None:
        made: list[Constant] = []

        def f(x: Tensor) -> Tensor:
            made.append(Constant(2.0 * torch.ones(2, dtype=torch.float64)))
            return (made[-1].matching(x) * x).square().sum()

        x = torch.ones(2, dtype=torch.float64)
        transform(f)(x)
        for constant in made:
            assert (constant.matching(x) * x).tolist() == [2.0, 2.0]
            assert along(lambda x, c=constant: c.matching(x) * x)(x).tolist() == [2.0, 2.0]
            assert (constant.matching(x.float()) * x.float()).tolist() == [2.0, 2.0]


def test_arguments_are_sorted() -> None:
    """The lists above straddle the branch points in order."""
    for values in (ARGUMENTS, HALF_TRACES):
        assert all(a < b for a, b in pairwise(values))
