"""Conversions into elements and from them: what is no element gives NaN, never a plausible one; nothing overflows."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from tests.helpers import seeded
from trivgeo.groups import SE, SL, SO, SU, Affine, GLPlus, LieGroup, Projective, Similarity
from trivgeo.groups.inhomogeneous import InhomogeneousGroup
from trivgeo.groups.rotations import rotation_from_euler, rotation_to_euler, rotation_to_quaternion
from trivgeo.sde import heat_kernel

REFLECTION = torch.diag(torch.tensor([1.0, 1.0, -1.0]).double())
FROM_ROTATION: dict[str, Callable[[Tensor], Tensor]] = {
    "quaternion": rotation_to_quaternion,
    "euler": rotation_to_euler,
    "proper euler": lambda r: rotation_to_euler(r, "ZXZ"),
    "SE": lambda r: SE(3).from_homogeneous(torch.block_diag(r, torch.ones(1, 1, dtype=r.dtype))),
    "Similarity": lambda r: Similarity(3).from_parts(r, torch.tensor(2.0).to(r), torch.zeros(3).to(r)),
    "log": SO(3).log,
    "project": SO(3).project,
}


@pytest.mark.parametrize("name", FROM_ROTATION)
def test_what_is_no_rotation(name: str) -> None:
    """`rotation_to_quaternion(diag(1, 1, -1))` was the identity."""
    convert = FROM_ROTATION[name]
    r = SO(3).random_haar(5, generator=seeded(0), dtype=torch.float64)
    assert torch.isfinite(torch.stack([convert(x) for x in (*r, torch.eye(3).double(), 1.001 * r[0])])).all()
    shear = torch.eye(3).double()
    shear[0, 1] = 0.5
    wrong = {
        "reflection": REFLECTION @ r[0],
        "inversion": -r[0],
        "double": 2.0 * r[0],
        "shear": shear,
        "zero": 0.0 * shear,
    }
    for kind, matrix in wrong.items():
        if name == "project" and kind in ("double", "shear"):
            continue  # the nearest rotation is meant
        assert torch.isnan(convert(matrix)).any(), kind


@pytest.mark.parametrize(
    ("group", "wrong"),
    [
        (Affine(3), REFLECTION),
        (InhomogeneousGroup(SL(3)), 2.0 * torch.eye(3).double()),
        (Similarity(3), torch.diag(torch.tensor([1.0, 2.0, 3.0]).double())),
    ],
    ids=repr,
)
def test_homogeneous_matrices(group: InhomogeneousGroup, wrong: Tensor) -> None:
    g = group.random(4, generator=seeded(0), dtype=torch.float64)
    assert torch.equal(group.from_homogeneous(group.homogeneous(g)), g)
    matrix = torch.block_diag(wrong, torch.ones(1, 1, dtype=wrong.dtype))
    assert torch.isnan(group.from_homogeneous(matrix)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1e-13, 1e-5, 1e-2, 1e4, 1e13])
@pytest.mark.parametrize("n", [2, 3])
def test_linear_parts_of_any_size(n: int, size: float, dtype: torch.dtype) -> None:
    """Shears of a hundredth became similarities, and of 1e30 in single precision no matrix was an affine map."""
    shear, reflection = torch.eye(n, dtype=dtype), torch.eye(n, dtype=dtype)
    shear[0, 1], reflection[0, 0] = 0.5, -1.0
    r = SO(n).exp(torch.full((SO(n).dim,), 0.3, dtype=dtype))
    matrix = torch.eye(n + 1, dtype=dtype).repeat(3, 1, 1)
    matrix[:, :n, :n] = size * torch.stack([r, r @ shear, r @ reflection])
    for group, expected in ((Similarity(n), [True, False, False]), (Affine(n), [True, True, False])):
        found = group.from_homogeneous(matrix)
        assert torch.isfinite(found).all((-2, -1)).tolist() == expected
        assert torch.equal(found[expected], matrix[expected, :n])
    for power in (-3, -2, 2, 3):
        matrix[:, :n, :n] = size**power * torch.stack([r, r @ shear, r @ reflection])
        if bool((matrix[:, :n, :n].abs().amax((-2, -1)) > 1e-37).all() & torch.isfinite(matrix).all()):
            assert torch.isfinite(Affine(n).from_homogeneous(matrix)).all((-2, -1)).tolist() == [True, True, False]
            assert torch.isfinite(GLPlus(n).project(matrix[:, :n, :n])).all((-2, -1)).tolist() == [True, True, False]
    assert torch.isnan(Affine(n).from_homogeneous(0.0 * matrix + torch.eye(n + 1)[-1].diag())).all()


@pytest.mark.parametrize("size", [1e-13, 1e-30, 1e13, 1e30])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_homographies_of_any_size(n: int, size: float) -> None:
    """The scale of a homography means nothing: in single precision 1e13 I was zero."""
    matrix = Projective(n).random(6, generator=seeded(0))
    found = Projective(n).from_matrix(size * matrix)
    assert torch.allclose(found, matrix, rtol=1e-5, atol=1e-6)
    x = torch.randn(n + 1, n + 1, generator=seeded(1), dtype=torch.float64)
    x = (x @ x.mT + torch.eye(n + 1)).requires_grad_()
    assert torch.autograd.gradcheck(Projective(n).from_matrix, x)


@pytest.mark.parametrize("axes", ["xyz", "ZYX", "zxz", "YXY"])
@pytest.mark.parametrize("gap", [0.0, 1e-14, 1e-9, 3e-8, 1e-7])
def test_near_gimbal_lock(axes: str, gap: float) -> None:
    """Angles give the rotation back, also where the third was set to zero within 1e-7 of the lock."""
    end = 0.0 if axes[0] == axes[2] else 0.5 * math.pi
    angles = torch.tensor([0.7, end + (gap if end == 0.0 else -gap), -1.9]).double()
    r = torch.as_tensor(Rotation.from_euler(axes, angles.numpy()).as_matrix().copy())
    again = rotation_from_euler(rotation_to_euler(r, axes), axes)
    assert float((again - r).abs().max()) < 1e-14
    assert np.abs(Rotation.from_euler(axes, rotation_to_euler(r, axes).numpy()).as_matrix() - r.numpy()).max() < 1e-14


def exact_exp(matrix: Tensor) -> mpmath.matrix:
    with mpmath.workdps(60):
        return mpmath.expm(mpmath.matrix([[mpmath.mpf(float(x)) for x in row] for row in matrix]), method="taylor")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("batch", [1, 2000])
@pytest.mark.parametrize("group", [SL(2), GLPlus(2), Projective(1), Affine(2)], ids=repr)
def test_entries_of_exponentials(group: LieGroup, batch: int, dtype: torch.dtype) -> None:
    """Each entry is right relative to itself: the smaller diagonal one was off by 1e-2 at 17, as a difference."""
    worst = 0.0
    for x, b, c in (
        (10.0, 0.0, 0.0),
        (17.0, 1e-3, 1e-3),
        (-12.0, 1e-4, 0.3),
        (2.0 * math.pi, 0.0, 0.0),
        (6.0, 0.1, 0.2),
    ):
        matrix = torch.tensor([[x, b], [c, -x]], dtype=dtype)
        if isinstance(group, Affine):
            v = torch.cat([matrix.flatten(), torch.zeros(2, dtype=dtype)])
        else:
            v = group.vee(matrix)  # type: ignore[attr-defined]
        found = group.exp(v.expand(batch, -1).contiguous())[0, :2, :2]
        exact = exact_exp(matrix)
        for i in range(2):
            for j in range(2):
                error = abs(mpmath.mpf(float(found[i, j])) - exact[i, j]) / (abs(exact[i, j]) or 1)
                worst = max(worst, float(error))
    # small batches are powers of a series, each of which doubles the relative error
    assert worst < (1000.0 if batch == 1 else 150.0) * torch.finfo(dtype).eps


@pytest.mark.parametrize("group", [SO(3), SU(2)], ids=repr)
@pytest.mark.parametrize("gap", [1e-3, 5e-5, 1e-6, 0.0])
@pytest.mark.parametrize("variance", [0.5, 2.0, 8.0])
def test_heat_kernel_at_the_largest_angle(group: LieGroup, gap: float, variance: float) -> None:
    """Density and score against the character series in 40 digits; within 1e-4 of the end the score was wrong."""
    kernel = heat_kernel(group)
    assert kernel is not None
    half = isinstance(group, SU)
    angle = 2.0 * math.pi if half else math.pi
    g = group.exp(torch.tensor([(angle - gap) / kernel._unit, 0.0, 0.0]).double())
    length = kernel._unit * float(group.log(g).norm())

    def log_density(omega: mpmath.mpf) -> mpmath.mpf:
        v, step = mpmath.mpf(variance) * kernel._unit**2, mpmath.mpf(1) / 2 if half else mpmath.mpf(1)
        total = mpmath.mpf(0)
        for k in range(60):
            order = k * step
            total += (2 * order + 1) * mpmath.exp(-order * (order + 1) * v / 2) * mpmath.sin((order + 0.5) * omega)
        return mpmath.log(total / mpmath.sin(omega / 2))

    with mpmath.workdps(40):
        omega = mpmath.mpf(length)
        if omega >= angle:
            omega = mpmath.mpf(angle) - mpmath.mpf(10) ** -12
        expected = log_density(omega)
        slope = (log_density(omega + mpmath.mpf(10) ** -14) - log_density(omega - mpmath.mpf(10) ** -14)) * 5e13
    found = float(kernel.log_density(g, torch.tensor(variance).double()))
    assert found == pytest.approx(float(expected), abs=1e-9)
    score = float(kernel.score(g, torch.tensor(variance).double()).norm())
    assert score == pytest.approx(abs(float(slope)) * kernel._unit, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_heat_kernels_at_the_ends_of_variance(dtype: torch.dtype) -> None:
    """Variance zero is a point mass, an infinite one uniform; both were NaN."""
    from trivgeo.groups import DirectProduct, Torus, Translation

    for group in (SO(3), SU(2), Torus(2), Translation(2), DirectProduct(SO(3), Torus(1))):
        kernel = heat_kernel(group)
        assert kernel is not None
        e, g = group.identity(dtype=dtype), group.random(1, std=0.4, generator=seeded(0), dtype=dtype)[0]
        none, infinite, negative = (torch.tensor(x, dtype=dtype) for x in (0.0, math.inf, -1.0))
        assert float(kernel.log_density(e, none)) == math.inf
        assert float(kernel.log_density(g, none)) == -math.inf
        assert not kernel.score(e, none).any()
        assert torch.isinf(kernel.score(g, none)).any()
        assert not torch.isnan(kernel.score(g, none)).any()
        assert torch.allclose(kernel.sample(none.expand(3)), e.expand(3, *group.element_shape), atol=1e-6)
        assert torch.isnan(kernel.log_density(g, negative))
        assert torch.isnan(kernel.score(g, negative)).all()
        least = torch.tensor(1e-40, dtype=dtype)  # of single precision one that has lost digits: it was NaN on tori
        assert math.isfinite(float(kernel.log_density(e, least)))
        assert float(kernel.log_density(g, least)) < -1e36
        assert float(kernel.score(g, least).abs().max()) > 1e36
        if group.is_compact:
            assert float(kernel.log_density(g, infinite)) == pytest.approx(0.0, abs=1e-6)
            assert float(kernel.score(g, infinite).abs().max()) < 1e-6
            assert torch.isfinite(kernel.sample(infinite.expand(3))).all()


def test_weights_of_a_mean() -> None:
    """A negative sum of weights turned the mean around."""
    g = SO(3).random(4, std=0.3, generator=seeded(0), dtype=torch.float64)
    weights = torch.tensor([[1.0, 2.0, 3.0, -1.0], [-1.0, -2.0, -3.0, 1.0], [1.0, -1.0, 1.0, -1.0]]).double()
    found = SO(3).mean(g.expand(3, 4, 3, 3), weights)
    assert torch.isfinite(found[0]).all()
    assert torch.isnan(found[1:]).all()
