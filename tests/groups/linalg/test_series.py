"""Exponentials by series and repeated squaring, against mpmath, scipy and eigenvectors."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap

from tests.helpers import assert_relative, randn
from trivgeo.groups.linalg import matrix_functions
from trivgeo.groups.linalg.any_size import shifted_exp, unitary_exp

SIZES = [3, 4, 5, 6]


def exact_exp(matrix: Tensor) -> Tensor:
    with mpmath.workdps(50):
        found = mpmath.expm(mpmath.matrix(matrix.tolist()), method="taylor")
        return torch.tensor(np.array(found.tolist(), dtype=np.float64))


def nilpotent(k: int) -> Tensor:
    return 3.0 * torch.diag(torch.ones(k - 1, dtype=torch.float64), 1)


def one_eigenvalue(k: int) -> Tensor:
    """Of a single Jordan block."""
    return nilpotent(k) - 2.5 * torch.eye(k, dtype=torch.float64)


def far_from_normal(k: int) -> Tensor:
    return randn(k, k).triu() + 10.0 * randn(k, k, seed=1).triu(1)


def general(k: int) -> Tensor:
    return 4.0 * randn(k, k)


@pytest.mark.parametrize("kind", [nilpotent, one_eigenvalue, far_from_normal, general])
@pytest.mark.parametrize("k", SIZES)
def test_exponentials(k: int, kind: Callable[[int], Tensor]) -> None:
    """Relative to the largest entry; in float32, too."""
    matrix, expected = kind(k), exact_exp(kind(k))
    size = float(expected.abs().max())
    for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 1e-4)):
        assert_relative(shifted_exp(matrix.to(dtype)).double(), expected, bound, floor=size)


@pytest.mark.parametrize("k", SIZES)
def test_slopes(k: int) -> None:
    """At matrices in general and at zero, where all eigenvalues meet, to the second order."""
    matrix, direction = 2.0 * randn(k, k), randn(k, k, seed=1)
    expected = torch.from_numpy(scipy.linalg.expm_frechet(matrix.numpy(), direction.numpy(), compute_expm=False))
    for slope in (jacfwd(shifted_exp), jacrev(shifted_exp)):
        found = torch.einsum("ijkl,kl->ij", slope(matrix), direction)
        assert_relative(found, expected, 1e-12, floor=float(expected.abs().max()))
    zero = torch.zeros(k, k, dtype=torch.float64)
    second = jacfwd(jacrev(lambda t: shifted_exp(t * direction)))(zero[0, 0])
    assert_relative(second, direction @ direction, 1e-13, floor=1.0)
    batch = torch.stack([matrix, direction, zero])
    assert_relative(vmap(shifted_exp)(batch), shifted_exp(batch), 1e-13, floor=float(expected.abs().max()))


def test_many_matrices_of_five_and_six_rows() -> None:
    """These are polynomials, few are the library's; large ones do not disturb others."""
    for k in (5, 6):
        many = randn(1600, k, k)
        many[0] *= 40.0
        got, few = matrix_functions(k).exp(many), matrix_functions(k).exp(many[:7])
        assert torch.equal(got, shifted_exp(many))
        assert_relative(got[:7], few, 1e-11, event=2, floor=1e-300)


def hermitian(k: int, count: int, size: float) -> Tensor:
    matrix = torch.complex(randn(count, k, k), randn(count, k, k, seed=1))
    return size / k * (matrix + matrix.mH)


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 300.0])
@pytest.mark.parametrize("k", [2, 4, 5])
def test_unitary(k: int, size: float) -> None:
    """Against eigenvectors, with traces."""
    h = hermitian(k, 20, size)
    values, vectors = torch.linalg.eigh(h)
    expected = (vectors * torch.exp(1j * values).unsqueeze(-2)) @ vectors.mH
    ways = (unitary_exp,) if k == 4 else (unitary_exp, traced_exp)  # tracing takes seconds for each size
    for found in (way(h.real, h.imag) for way in ways):
        assert_relative(torch.complex(*found), expected, 2e-13 * max(1.0, size), floor=1.0)


def traced_exp(real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor]:
    """With the rounds of what cannot be seen."""
    run: Callable[..., tuple[Tensor, Tensor]] = torch.compile(unitary_exp, fullgraph=True, backend="eager")
    return run(real, imaginary)


def test_unitary_slopes() -> None:
    """To the second order, at zero and elsewhere; what is too long is NaN, and no neighbour is."""
    parts = hermitian(3, 1, 2.0)

    def f(x: Tensor) -> Tensor:
        return torch.stack(unitary_exp(x + x.mT, x - x.mT))

    for x in (torch.zeros(1, 3, 3, dtype=torch.float64), parts.real):
        x = x.clone().requires_grad_()
        assert torch.autograd.gradcheck(f, x)
        assert torch.autograd.gradgradcheck(f, x, fast_mode=True)
    h = hermitian(5, 20, 1.0)
    h[1] *= 1e5
    real, imaginary = traced_exp(h.real, h.imag)
    assert torch.isnan(real[1]).all()
    assert torch.isfinite(torch.stack([real, imaginary])[:, [0, *range(2, 20)]]).all()
    assert math.isclose(float(real[0].square().sum() + imaginary[0].square().sum()), 5.0, rel_tol=1e-13)
