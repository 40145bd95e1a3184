"""Logarithms of elements whose entries span more digits than numbers have: right, or NaN."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor

from tests.groups.cases import CASES, GroupCase, marked
from tests.helpers import assert_relative, randn
from trivgeo.groups import SL, Affine, GLPlus, LieGroup, Projective

OTHERS = [
    GroupCase("SL(3)", lambda: SL(3)),
    GroupCase("GL+(4)", lambda: GLPlus(4)),
    GroupCase("Affine(3)", lambda: Affine(3)),
    GroupCase("Projective(4)", lambda: Projective(4)),
]


def assert_right_or_nan(group: LieGroup, g: Tensor, least: float = 0.0) -> None:
    """``exp(log g)`` is g to a third of the digits wherever there is a logarithm; some share of g must have one."""
    v = group.log(g)
    found = torch.isfinite(v).all(-1)
    assert float(found.double().mean()) >= least
    g, back = g[found].flatten(1), group.exp(v[found]).flatten(1)
    period = group._periods().flatten().to(g)
    off = (back - g).abs()
    off = torch.where(period > 0, torch.minimum(off % period.clamp(min=1e-300), (-off) % period.clamp(min=1e-300)), off)
    bound = 2.0 * torch.finfo(g.dtype).eps ** (1 / 3) * g.abs().amax(-1).clamp(min=1.0)
    assert (off.amax(-1) <= bound).all()


@pytest.mark.parametrize("case", marked([*CASES, *OTHERS]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_log_of_extreme_elements(case: GroupCase, dtype: torch.dtype) -> None:
    """At norms up to 200, where entries are beyond e^100: `log` used to be wrong without a word."""
    group = case.group
    direction = torch.nn.functional.normalize(randn(32, group.dim, seed=1), dim=-1)
    for norm, least in ((4.0, 0.5), (12.0, 0.0), (40.0, 0.0), (200.0, 0.0)):
        g = group.exp((norm * direction).to(dtype))
        g = g[torch.isfinite(g.flatten(1)).all(-1)]
        assert_right_or_nan(group, g, least)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("stretch", [2.0, 8.0, 14.0])
def test_log_of_elongated_rotations(stretch: float, dtype: torch.dtype) -> None:
    """Elements of SL(2) of small trace and large entries, whose eigenvalues are differences of the largest."""
    first = randn(500, seed=2)
    trace = torch.linspace(-1.9, 2.1, 500, dtype=torch.float64)
    second = torch.acos(trace / (2.0 * math.cosh(stretch))) - first
    stretched = torch.tensor([math.exp(stretch), math.exp(-stretch)], dtype=torch.float64)
    g = (turn(first) * stretched) @ turn(second)
    assert_right_or_nan(SL(2), g.to(dtype), 0.9 if stretch == 2.0 else 0.0)


def turn(angle: Tensor) -> Tensor:
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, -sin, sin, cos], -1).unflatten(-1, (2, 2))


@pytest.mark.parametrize("group", [GLPlus(2), GLPlus(3)], ids=str)
def test_log_of_ill_conditioned_matrices(group: GLPlus) -> None:
    """The logarithm of the very matrix, from eigenvectors to 60 digits, wherever there is one."""
    direction = torch.nn.functional.normalize(randn(24, group.dim, seed=3), dim=-1)
    g = group.exp(direction * torch.linspace(2, 30, 24)[:, None])
    v = group.log(g)
    found = torch.isfinite(v).all(-1)
    assert 8 <= int(found.sum()) < 24
    for matrix, vector in zip(g[found], v[found], strict=True):
        with mpmath.workdps(60):
            values, vectors = mpmath.eig(mpmath.matrix(matrix.tolist()))
            exact = vectors * mpmath.diag([mpmath.log(x) for x in values]) * mpmath.inverse(vectors)
        expected = torch.tensor([[float(mpmath.re(x)) for x in row] for row in exact.tolist()], dtype=torch.float64)
        assert_relative(vector, expected.flatten(), 1e-5)


@pytest.mark.parametrize("rate", [120.0, 250.0, 1500.0])
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exponentials_of_decaying_matrices(k: int, dtype: torch.dtype, rate: float) -> None:
    """Q diag(0, -a, ..) Q^T: e^m and e^B, of the mean of the diagonal and the rest, overflow apart, not together."""
    turns = torch.linalg.qr(randn(300, k, k, seed=4))[0]
    rates = -rate * torch.linspace(0.0, 1.0, k, dtype=torch.float64)
    matrix = ((turns * rates) @ turns.mT).to(dtype)
    true = (turns * rates.exp()) @ turns.mT
    group = GLPlus(k)
    # rounding of the matrix moves eigenvalues by its size; three eigenvalues are found from squares of it
    bound = 10.0 * torch.finfo(dtype).eps * (rate if k != 3 else rate * max(rate / 30.0, 1.0))
    for together in (group.exp, torch.func.vmap(group.exp)):
        for count in (3, 300):  # few are left to a library routine
            off = (together(matrix[:count].flatten(1)).double() - true[:count]).abs().amax()
            assert off <= bound
    slopes = torch.func.vjp(group.exp, matrix.flatten(1))[1](torch.ones_like(matrix))[0]
    assert torch.isfinite(slopes).all()
