"""Functions of 3 x 3 matrices by one eigenvalue and its projection, where eigenvalues meet, turn, or spread."""

from __future__ import annotations

import math

import mpmath
import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

from tests.helpers import assert_relative, randn
from trivgeo.groups import GLPlus, Projective
from trivgeo.groups.linalg import matrix_functions
from trivgeo.groups.linalg import size_three as three

KERNEL = matrix_functions(3)
COUNT = 20


@pytest.fixture(autouse=True)
def closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for few matrices."""
    monkeypatch.setattr(three, "is_small_batch", lambda matrix: False)


def frames(condition: float) -> Tensor:
    """Matrices of this condition."""
    left, right = (torch.linalg.qr(randn(COUNT, 3, 3, seed=k))[0] for k in range(2))
    return left @ torch.diag(torch.tensor([1.0, condition**-0.5, 1.0 / condition], dtype=torch.float64)) @ right


def jordan(values: list[float], above: list[float]) -> Tensor:
    """Of eigenvalues and the entries above them, in a frame that is not orthogonal."""
    matrix = torch.diag(torch.tensor(values, dtype=torch.float64))
    matrix = matrix + torch.diag(torch.tensor(above, dtype=torch.float64), 1)
    frame = frames(10.0)
    return frame @ matrix @ torch.linalg.inv(frame)


def turn(angle: float) -> Tensor:
    skew = randn(COUNT, 3, 3, seed=3)
    skew = skew - skew.mT
    return skew * (angle * math.sqrt(2.0) / torch.linalg.matrix_norm(skew))[:, None, None]


LOGARITHMS = {
    "zero": torch.zeros(COUNT, 3, 3, dtype=torch.float64),
    "small": 1e-9 * randn(COUNT, 3, 3),
    "generic": 0.6 * randn(COUNT, 3, 3),
    "a block of two": jordan([0.5, -0.2, -0.2], [0.0, 1.0]),
    "a block of three": jordan([0.3, 0.3, 0.3], [1.0, 1.0]),
    "three that meet": jordan([0.3 + 1e-4, 0.3, 0.3 - 1e-4], [1.0, 1.0]),
    "two that meet": jordan([0.3 + 1e-9, 0.3, 1.0], [1.0, 1.0]),
    "at the edge of the series": jordan([0.1, 0.0, -0.1], [1.0, 1.0]),
    "nilpotent": jordan([0.0, 0.0, 0.0], [3.0, 3.0]),
    "a turn": turn(2.5),
    "a turn that grows": turn(2.5) + torch.eye(3, dtype=torch.float64),
    "symmetric": randn(COUNT, 3, 3) + randn(COUNT, 3, 3).mT,
    "zero, and two opposite": jordan([0.0, 1.0, -1.0], [0.0, 0.0]),
}


@pytest.mark.parametrize("name", LOGARITHMS)
def test_exponential_and_logarithm(name: str) -> None:
    """Against scaling and squaring of scipy, and back."""
    log = LOGARITHMS[name]
    matrix = torch.as_tensor(scipy.linalg.expm(log.numpy()))
    assert_relative(KERNEL.exp(log), matrix, 1e-12, event=2)
    assert_relative(KERNEL.log(matrix), log, 2e-11, event=2)  # conditions of up to 1e4
    mixed = torch.stack([matrix, torch.eye(3, dtype=torch.float64).expand_as(matrix)], 1)
    assert_relative(vmap(KERNEL.log)(mixed)[:, 0], log, 2e-11, event=2)


@pytest.mark.parametrize("name", ["zero", "a block of two", "a block of three", "generic", "a turn"])
def test_derivatives(name: str) -> None:
    """Of the exponential, those of torch's; the logarithm undoes it, in both modes and to second order."""
    log = LOGARITHMS[name][0]
    expected = jacrev(lambda m: torch.linalg.matrix_exp(torch.stack([m, m]))[0])(log)
    assert_relative(jacrev(KERNEL.exp)(log), expected, 1e-11, event=4)
    assert_relative(jacfwd(KERNEL.exp)(log), expected, 1e-11, event=4)

    def there_and_back(m: Tensor) -> Tensor:
        return KERNEL.log(KERNEL.exp(m))

    unit = torch.eye(9, dtype=torch.float64).reshape(3, 3, 3, 3)
    for mode in (jacrev, jacfwd):
        assert_relative(mode(there_and_back)(log), unit, 1e-8, event=4)
    second = hessian(lambda m: there_and_back(m).square().sum())(log)
    assert_relative(second, 2.0 * unit, 1e-5, event=4)


MOTIONS = {
    **LOGARITHMS,
    **{f"a block of three at {m}": jordan([m, m, m], [1.0, 1.0]) for m in (-20.0, -0.76, -0.74, 0.74, 0.76, 3.0)},
    **{f"three that meet at {m}": jordan([m + 0.2, m, m - 0.2], [1.0, 1.0]) for m in (-3.0, -0.8, 0.8)},
    "two at zero": jordan([4.0, 0.0, 0.0], [0.0, 1.0]),
    "two near zero": jordan([4.0, 0.2, -0.2], [0.0, 1.0]),
    "zero between": jordan([5.0, 0.0, -5.0], [0.0, 0.0]),
    "a turn that decays": turn(2.5) - 3.0 * torch.eye(3, dtype=torch.float64),
    "many turns": turn(20.0),
}


@pytest.mark.parametrize("name", MOTIONS)
def test_affine_exponential_by_eigenvalues(name: str) -> None:
    """As compiled code has it: [e^A, phi_1(A) b] against the exponential of four rows in 40 digits."""
    matrix, vector = MOTIONS[name][:4], randn(4, 3, seed=7)
    result = KERNEL.spectral_affine_exp(matrix, vector)
    with mpmath.workdps(40):
        for a, b, found in zip(matrix, vector, result, strict=True):
            rows = [[*x, y] for x, y in zip(a.tolist(), b.tolist(), strict=True)]
            e = mpmath.expm(mpmath.matrix([*rows, [0.0] * 4]))
            exact = torch.tensor([[float(e[i, j]) for j in range(4)] for i in range(3)], dtype=torch.float64)
            assert_relative(found[:, :3], exact[:, :3], 1e-12, event=2)
            assert_relative(found[:, 3], exact[:, 3], 1e-13, event=1)


@pytest.mark.parametrize("name", ["zero", "a block of two", "a block of three at 3.0", "two near zero", "a turn"])
def test_derivatives_of_the_affine_exponential(name: str) -> None:
    """Those of the exponential of four rows, in both modes and to second order."""
    matrix, vector = MOTIONS[name][0], randn(3, seed=8)

    def dense(m: Tensor) -> Tensor:
        four = torch.cat([torch.cat([m, vector.unsqueeze(-1)], -1), m.new_zeros(1, 4)], -2)
        return torch.linalg.matrix_exp(torch.stack([four, four]))[0, :3]

    def closed(m: Tensor) -> Tensor:
        return KERNEL.spectral_affine_exp(m, vector)

    expected = jacrev(dense)(matrix)
    for mode in (jacrev, jacfwd):
        assert_relative(mode(closed)(matrix), expected, 1e-10, event=4)
    second, other = (hessian(lambda m, f=f: f(m).square().sum())(matrix) for f in (closed, dense))
    assert_relative(second, other, 1e-7, event=4)


AFFINE_MAPS = {
    **LOGARITHMS,
    **{f"near the identity by {r}": r * randn(COUNT, 3, 3) for r in (1e-6, 1e-4, 1e-2, 0.1)},
    **{f"a block of three at {m}": jordan([m, m, m], [1.0, 1.0]) for m in (-3.0, -0.4, -0.3, 0.0, 0.5, 0.7, 1.1, 8.0)},
    **{f"three that meet at {m}": jordan([m + 0.07, m, m - 0.07], [1.0, 1.0]) for m in (-0.4, 0.0, 0.5, 0.7, 1.1)},
    **{f"a block of two at {m}": jordan([m + 0.9, m, m], [0.0, 1.0]) for m in (-2.0, -0.9, 0.0, 0.2, 0.3)},
    **{f"two that meet at {m}": jordan([m + 0.9, m + 1e-9, m], [1.0, 1.0]) for m in (-0.9, 0.0, 0.3)},
    **{
        f"{m} up and down by {r}": jordan([1.5, m + r, m - r], [1.0, 1.0])
        for m in (0.0, 0.26)
        for r in (0.1, 0.13, 0.3)
    },
    **{f"a turn by {angle}": turn(angle) for angle in (1.0, 3.1, 3.14)},
    "a turn that decays": turn(2.0) - 2.0 * torch.eye(3, dtype=torch.float64),
    **{f"spread by {r}": jordan([r, 0.0, -r], [0.0, 0.0]) for r in (2.0, 4.0, 6.0, 9.0)},
    **{f"a pair far from one, by {r}": jordan([r, r - 0.2, -r], [0.0, 1.0]) for r in (2.0, 4.0, 6.0, 9.0)},
}


@pytest.mark.parametrize("name", AFFINE_MAPS)
def test_affine_logarithm_by_eigenvalues(name: str) -> None:
    """As compiled code has it: of exponentials of four rows in 40 digits, as exact as by phi_1 from its own series."""
    log, z = AFFINE_MAPS[name][:4], randn(4, 3, seed=7)
    with mpmath.workdps(40):
        matrices = []
        for a, b in zip(log, z, strict=True):
            rows = [[*x, y] for x, y in zip(a.tolist(), b.tolist(), strict=True)]
            e = mpmath.expm(mpmath.matrix([*rows, [0.0] * 4]))
            matrices.append([[float(e[i, j]) for j in range(4)] for i in range(3)])
    g = torch.tensor(matrices, dtype=torch.float64)
    found, other = (f(g[..., :3], g[..., 3]) for f in (KERNEL.spectral_affine_log, KERNEL.affine_log))
    for one, eager, exact in zip(found, other, (log, z), strict=True):
        size = exact.abs().flatten(1).amax(1).clamp(min=1.0)
        lost = ((eager - exact).abs().flatten(1).amax(1) / size).max()
        assert_relative(one, exact, 3.0 * float(lost) + 3e-14, event=exact.ndim - 1)


@pytest.mark.parametrize(
    "name",
    ["zero", "generic", "a turn", "a block of two", "a block of two at 0.0", "a block of three at 0.0", "symmetric"],
)
def test_derivatives_of_the_affine_logarithm(name: str) -> None:
    """It undoes the exponential, in both modes and to second order."""
    log, vector = AFFINE_MAPS[name][0], randn(3, seed=8)

    def there_and_back(m: Tensor) -> Tensor:
        e = KERNEL.spectral_affine_exp(m[:, :3], m[:, 3])
        return torch.cat([x.reshape(3, -1) for x in KERNEL.spectral_affine_log(e[:, :3], e[:, 3])], -1)

    whole = torch.cat([log, vector.unsqueeze(-1)], -1)
    unit = torch.eye(12, dtype=torch.float64).reshape(3, 4, 3, 4)
    for mode in (jacrev, jacfwd):
        assert_relative(mode(there_and_back)(whole), unit, 1e-8, event=4)
    second = hessian(lambda m: there_and_back(m).square().sum())(whole)
    assert_relative(second, 2.0 * unit, 1e-5, event=4)


def test_affine_maps_without_logarithm() -> None:
    """NaN, also where rounding leaves nothing of it; the gradients of others know nothing of these."""
    matrix = torch.eye(3, dtype=torch.float64).repeat(6, 1, 1)
    matrix[0] = 0.0
    matrix[1, 0, 0] = -1.0
    matrix[2, 2, 0] = math.inf
    matrix[3] = torch.as_tensor(scipy.linalg.expm(turn(math.pi)[0].numpy()))
    matrix[4] = jordan([12.0, 0.0, -12.0], [0.0, 0.0])[0].matrix_exp()
    vector = randn(6, 3, seed=1)
    leaves = matrix.requires_grad_(), vector.requires_grad_()
    log, z = KERNEL.spectral_affine_log(*leaves)
    assert bool(log[:5].isnan().all())
    assert bool(z[:5].isnan().all())
    assert_relative(z[5].detach(), vector[5].detach(), 1e-15, event=1)
    for slope in torch.autograd.grad(torch.where(z.isnan(), 0.0, z).sum(), leaves):
        assert bool((slope[:5] == 0.0).all())
        assert bool(torch.isfinite(slope).all())


def test_wide_spectra_are_right_or_nan() -> None:
    """Round-off is estimated: what is returned is a logarithm."""
    for power in range(2, 16):
        frame = torch.linalg.qr(randn(COUNT, 3, 3, seed=power))[0]
        values = torch.logspace(power / 2, -power / 2, 3, dtype=torch.float64)
        matrix = frame @ torch.diag(values) @ frame.mT
        log = KERNEL.log(matrix)
        found = torch.isfinite(log).all(-1).all(-1)
        assert bool(found.all()) or power > 8
        expected = frame @ torch.diag(values.log()) @ frame.mT
        assert_relative(log[found], expected[found], 1e-5, event=2)
        vector = randn(COUNT, 3, seed=20)
        _, z = KERNEL.spectral_affine_log(matrix, vector)
        found = torch.isfinite(z).all(-1)
        assert bool(found.all()) or power > 8
        slopes = torch.where(values == 1.0, 1.0, values.log() / torch.where(values == 1.0, 1.0, values - 1.0))
        expected = (frame @ torch.diag(slopes) @ frame.mT @ vector.unsqueeze(-1)).squeeze(-1)
        assert_relative(z[found], expected[found], 1e-4, event=1)


def test_wide_spectra_keep_their_digits() -> None:
    """Of conditions up to 1e13 where the entries hold the digits; the trace of log A has the gradient of log |A|."""
    wide = torch.tensor([[11.5, 0.0, -11.5], [15.0, -15.0, 1.0], [7.0, 7.0, -7.0]], dtype=torch.float64)
    matrix = torch.diag_embed(wide.exp()).requires_grad_()
    log = KERNEL.log(matrix)
    assert_relative(log.detach(), torch.diag_embed(wide), 1e-14, event=2)
    (slope,) = torch.autograd.grad(log.diagonal(dim1=-2, dim2=-1).sum(), matrix)
    assert_relative(slope.diagonal(dim1=-2, dim2=-1), (-wide).exp(), 1e-7)
    spread, entry = matrix.detach(), randn(3, 3, 3, seed=4).diagonal(dim1=-2, dim2=-1).diag_embed()
    forward = jvp(KERNEL.log, (spread,), (entry * spread,))[1]
    assert_relative(forward.diagonal(dim1=-2, dim2=-1), entry.diagonal(dim1=-2, dim2=-1), 1e-7)


def test_matrices_without_logarithm() -> None:
    """Zero, negative eigenvalues, half turns, infinities: NaN, the gradient of which is zero where it is masked."""
    bad = torch.eye(3, dtype=torch.float64).repeat(8, 1, 1)
    bad[0] = 0.0
    bad[1, 0, 0] = -1.0
    bad[2, 0, 0], bad[2, 1, 1] = -2.0, -0.5
    bad[3, 0, 0], bad[3, 1, 1], bad[3, 0, 1] = -1.0, -1.0, 1.0
    bad[4, 0, 0], bad[4, 1, 1] = -1.0, -1.0
    bad[5, 2, 0] = math.inf
    bad[6, 1, 1] = math.nan
    bad[7] = torch.as_tensor(scipy.linalg.expm(turn(math.pi)[0].numpy()))
    assert bool(KERNEL.log(bad).isnan().all())
    leaf = bad.clone().requires_grad_()
    log = KERNEL.log(leaf)
    torch.where(log.isnan(), 0.0, log).sum().backward()
    assert leaf.grad is not None
    assert bool((leaf.grad == 0.0).all())


def test_round_off_of_single_precision() -> None:
    matrix = torch.linalg.matrix_exp(LOGARITHMS["generic"])
    assert_relative(KERNEL.log(matrix.float()).double(), LOGARITHMS["generic"], 1e-5, event=2)
    assert_relative(KERNEL.exp(LOGARITHMS["generic"].float()).double(), matrix, 1e-5, event=2)
    vector = randn(COUNT, 3, seed=1)
    single, double = (KERNEL.spectral_affine_log(matrix.to(t), vector.to(t))[1] for t in (torch.float32, torch.float64))
    assert_relative(single.double(), double, 1e-5, event=1)


def test_algebra_vectors_are_traceless_entries() -> None:
    """Of the projective group: the matrix of a vector is the sum over the basis that its docstring names."""
    group = Projective(2)
    units = torch.eye(9, dtype=torch.float64).reshape(9, 3, 3)
    basis = units - units.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] * torch.eye(3, dtype=torch.float64) / 3.0
    v = randn(5, 8)
    assert_relative(group.hat(v), torch.einsum("bi,ijk->bjk", v, basis[:8]), 1e-14, event=2)
    assert_relative(GLPlus(3).log(GLPlus(3).exp(0.1 * randn(5, 9))), 0.1 * randn(5, 9), 1e-13, event=1)
