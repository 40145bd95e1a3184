"""Group laws at vectors that hypothesis draws: zero, near zero, near and beyond half a turn, large; float64."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.helpers import assert_relative
from trivgeo.groups import (
    SE,
    SL,
    SO,
    SU,
    Affine,
    DirectProduct,
    HeatSymmetry,
    Heisenberg,
    KdVSymmetry,
    LieGroup,
    Similarity,
    Torus,
)

GROUPS = [
    SO(3),
    SO(4),
    SU(2),
    SE(3),
    SL(2),
    Affine(2),
    Similarity(2),
    Torus(2),
    Heisenberg(1),
    HeatSymmetry(0.1),
    DirectProduct(SE(2), KdVSymmetry()),
]
GROUP = pytest.mark.parametrize("group", GROUPS, ids=repr)
LARGEST = 6.0  # norm of a vector; entries of elements grow like its exponential
BOUND = 1e-10  # of errors, relative to the sizes of the factors
ALWAYS_LOGARITHM = ("SO(3)", "SU(2)", "Torus(2)")  # at the angles that are drawn

# the same examples in every run, none of them kept; no bound of time
drawn = settings(max_examples=20, derandomize=True, database=None, deadline=None)

SIZES = st.one_of(
    st.sampled_from([0.0, 1e-300, 1e-15, 1e-8, 1e-4, math.pi / 2, math.pi, 2 * math.pi]),
    st.floats(-16, 0).map(lambda exponent: 10.0**exponent),
    st.floats(-8, 0).map(lambda exponent: math.pi - 10.0**exponent),
    st.floats(0.0, LARGEST),
)
# of one axis or of all; digits are enough for a direction
AXES = st.one_of(
    st.integers(0, 9).map(lambda axis: [float(i == axis) for i in range(10)]),
    st.lists(st.integers(-9, 9).map(float), min_size=10, max_size=10),
)
VECTORS = st.tuples(SIZES, AXES)


def vector(group: LieGroup, draw: tuple[float, list[float]]) -> Tensor:
    """A vector ``[dim]`` of the drawn length along the drawn axis."""
    size, axis = draw
    v = torch.tensor(axis[: group.dim], dtype=torch.float64)
    return size * v / v.norm().clamp(min=1.0) if float(v.norm()) else size * torch.eye(group.dim).double()[0]


def size_of(*elements: Tensor) -> float:
    """The product of the largest entries of elements or matrices, at least one each."""
    return math.prod(max(1.0, float(g.abs().max())) for g in elements)


def same(actual: Tensor, expected: Tensor, *factors: Tensor) -> None:
    """Equal up to rounding, which is relative to the sizes of the factors that were multiplied."""
    assert_relative(actual / size_of(*factors), expected / size_of(*factors), BOUND, event=expected.ndim)


def expm(matrix: Tensor) -> Tensor:
    return torch.as_tensor(np.asarray(scipy.linalg.expm(matrix.numpy())))


@GROUP
@given(u=VECTORS, v=VECTORS, w=VECTORS)
@drawn
def test_associative(group: LieGroup, u: object, v: object, w: object) -> None:
    f, g, h = (group.exp(vector(group, x)) for x in (u, v, w))
    left, right = group.compose(group.compose(f, g), h), group.compose(f, group.compose(g, h))
    same(left, right, f, g, h)


@GROUP
@given(v=VECTORS)
@drawn
def test_inverse(group: LieGroup, v: object) -> None:
    x = vector(group, v)
    g = group.exp(x)
    inverse = group.inverse(g)
    same(inverse, group.exp(-x), g, inverse)
    for product in (group.compose(g, inverse), group.compose(inverse, g)):
        same(product, group.identity(dtype=torch.float64), g, inverse)


@GROUP
@given(v=VECTORS)
@drawn
def test_logarithm(group: LieGroup, v: object) -> None:
    """exp(log g) = g where a logarithm exists; log(exp v) = v while no turn is half a turn."""
    x = vector(group, v)
    g = group.exp(x)
    log = group.log(g)
    if not bool(group.has_log(g)):
        assert repr(group) not in ALWAYS_LOGARITHM
        assert float(x.norm()) >= 1.0
        return
    again = group.exp(log)
    if isinstance(group, Torus):  # whose elements are angles up to whole turns
        again = g + group.wrap(again - g)
    same(again, g, g, group.inverse(g))
    if float(x.norm()) < 2.0:
        assert_relative(log, x, 1e-8, event=1)


@GROUP
@given(u=VECTORS, v=VECTORS)
@drawn
def test_adjoint(group: LieGroup, u: object, v: object) -> None:
    """Ad(exp u) = expm(ad u), Ad(gh) = Ad(g) Ad(h), g exp(v) g^-1 = exp(Ad(g) v)."""
    x, y = vector(group, u), 0.1 * vector(group, v)
    g, h = group.exp(x), group.exp(y)
    same(group.Ad(g), expm(group.algebra.ad(x)), group.Ad(g), group.Ad(group.inverse(g)))
    same(group.Ad(group.compose(g, h)), group.Ad(g) @ group.Ad(h), group.Ad(g), group.Ad(h))
    moved = group.Ad(g) @ y
    if float(moved.norm()) < LARGEST:
        inverse = group.inverse(g)
        same(group.compose(group.compose(g, h), inverse), group.exp(moved), g, h, inverse)


@GROUP
@given(v=VECTORS)
@example(v=(math.pi, [1.0, *[0.0] * 9]))
@drawn
def test_jacobians(group: LieGroup, v: object) -> None:
    """J_l(v) = int_0^1 exp(s ad v) ds, of a block of one exponential; J_r(v) = J_l(-v); J_l = Ad(exp v) J_r."""
    x = vector(group, v)
    n = group.dim
    blocks = torch.zeros(2 * n, 2 * n, dtype=torch.float64)
    blocks[:n, :n], blocks[:n, n:] = group.algebra.ad(x), torch.eye(n)
    left, right, Ad = group.left_jacobian(x), group.right_jacobian(x), group.Ad(group.exp(x))
    same(left, expm(blocks)[:n, n:], Ad, left)
    same(right, group.left_jacobian(-x), right)
    same(left, Ad @ right, Ad, right)
