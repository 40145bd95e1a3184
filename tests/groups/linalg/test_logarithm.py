"""Logarithms by square roots: each matrix of a batch by itself, whatever the others need."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev, vmap

from tests.helpers import assert_relative, randn
from trivgeo.groups import GLPlus, MatrixGroup, Projective
from trivgeo.groups.linalg import any_size as logarithm
from trivgeo.groups.linalg import matrix_functions

SIZES = pytest.mark.parametrize("k", [4, 5])


def mixed(k: int) -> Tensor:
    """Matrices that need no, few and many roots and steps, and in between some that have no logarithm."""
    sizes = torch.tensor([1e-9, 0.1, 0.5, 1.0, 1.0, 1.5, 2.0, 2.0], dtype=torch.float64)
    plain = torch.linalg.matrix_exp(randn(8, k, k) * sizes[:, None, None])
    turn = torch.zeros(3, k, k, dtype=torch.float64)
    turn[:, 1, 0] = math.pi - torch.tensor([1e-1, 1e-3, 1e-5])
    frame = torch.linalg.qr(randn(3, k, k, seed=1))[0]
    turned = frame @ torch.linalg.matrix_exp(turn - turn.mT) @ frame.mT
    bad = torch.eye(k, dtype=torch.float64).repeat(7, 1, 1)
    bad[0, 0, 0], bad[0, 1, 1] = -2.0, -0.5
    bad[1, 0, 0] = -1.0
    bad[2, 0, 0] = 0.0
    bad[3, 0, 0], bad[3, 1, 1] = -1.0, -1.0
    bad[4, 0, 0], bad[4, 1, 1], bad[4, 0, 1] = -1.0, -1.0, 1.0
    bad[5, 0, 0] = math.nan
    bad[6, 0, 0], bad[6, 1, 1] = -math.inf, -1.0
    scrambled = randn(7, k, k, seed=2)
    bad[0] = scrambled[0] @ bad[0] @ torch.linalg.inv(scrambled[0])
    matrices = torch.cat([plain, turned, bad])
    return matrices[torch.randperm(len(matrices), generator=torch.Generator().manual_seed(3))]


def logs(matrix: Tensor) -> Tensor:
    return logarithm.iterative_log(matrix, matrix_functions(matrix.shape[-1]))


def gradients(matrix: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """First and second derivatives along the weight, as they come."""
    leaf = matrix.clone().requires_grad_()
    (first,) = torch.autograd.grad((logs(leaf) * weight).nansum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad((first * weight).sum(), leaf)
    return first.detach(), second


@SIZES
class TestRowsByThemselves:
    def test_values(self, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """In one batch, in small parts, one by one, and in a batch of several dimensions."""
        matrices = mixed(k)
        together = logs(matrices)
        lost = torch.isnan(together).all(-1).all(-1)
        assert int(lost.sum()) == 7
        good = ~lost
        assert_relative(torch.linalg.matrix_exp(together[good]), matrices[good], 1e-13, event=2)
        alone = torch.stack([logs(m) for m in matrices])
        assert torch.equal(torch.isnan(alone), torch.isnan(together))
        near_axis = 1e-9  # an angle of pi - 1e-5 has lost five digits
        assert_relative(together[good], alone[good], near_axis, event=2)
        assert_relative(logs(matrices.unflatten(0, (3, 2, 3)))[1, 0], together[6:9], near_axis, event=2)
        monkeypatch.setattr(logarithm, "_MAX_CPU_ROWS", 5)
        assert_relative(logs(matrices)[good], alone[good], near_axis, event=2)
        assert logs(matrices[:0]).shape == (0, k, k)

    def test_all_without(self, k: int) -> None:
        matrices = mixed(k)
        lost = torch.isnan(logs(matrices)).all(-1).all(-1)
        assert torch.isnan(logs(matrices[lost])).all()

    def test_derivatives(self, k: int) -> None:
        """Of rows without logarithm zero, of the others the same as alone."""
        matrices = mixed(k)
        matrices = matrices[torch.isfinite(matrices).all(-1).all(-1)]
        good = torch.isfinite(logs(matrices)).all(-1).all(-1)
        weight = randn(len(matrices), k, k, seed=5)
        together = gradients(matrices, weight)
        for derivative in together:
            assert not bool(derivative[~good].any())  # nor NaN
        alone = [gradients(m, w) for m, w in zip(matrices[good], weight[good], strict=True)]
        for a, b in zip(together, zip(*alone, strict=True), strict=True):
            assert_relative(a[good], torch.stack(b), 1e-7, event=2)

    def test_by_fixed_steps(self, k: int) -> None:
        """The way under vmap, and the derivatives of both ways, in both modes."""
        matrices = torch.linalg.matrix_exp(0.7 * randn(4, k, k))
        assert_relative(vmap(logs)(matrices), logs(matrices), 1e-13, event=2)
        jacobian = vmap(jacrev(logs))(matrices)
        for i, m in enumerate(matrices):
            assert_relative(jacrev(logs)(m), jacobian[i], 1e-12, event=4)
            assert_relative(jacfwd(logs)(m), jacobian[i], 1e-12, event=4)

            def entry(m: Tensor) -> Tensor:
                return logs(m)[0, 1]

            if i == 0:
                assert_relative(jacrev(jacrev(entry))(m), hessian(entry)(m), 1e-11, event=4)

    def test_derivative_undoes_that_of_the_exponential(self, k: int) -> None:
        v = randn(5, k, k)
        tangent = randn(5, k, k, seed=1)
        g, moved = torch.func.jvp(torch.linalg.matrix_exp, (v,), (tangent,))
        log, back = torch.func.jvp(logs, (g,), (moved,))
        assert_relative(log, v, 1e-12, event=2)
        assert_relative(back, tangent, 1e-11, event=2)


def test_pade_approximant() -> None:
    """At its radius, of symmetric, skew and nilpotent matrices."""
    radius = logarithm._PADE_RADIUS
    z = torch.zeros(3, 4, 4, dtype=torch.float64)
    z[0, 0, 0] = radius
    z[1, 0, 1], z[1, 1, 0] = radius / math.sqrt(2.0), -radius / math.sqrt(2.0)
    z[2, 0, 3] = radius
    eye = torch.eye(4, dtype=torch.float64)
    got = torch.linalg.matrix_exp(2.0 * logarithm._artanh(z, matrix_functions(4)))
    assert_relative(got @ (eye - z), eye + z, 1e-15, event=2)


@pytest.mark.parametrize("group", [Projective(3), GLPlus(4)], ids=repr)
def test_either_sign(group: MatrixGroup) -> None:
    """A homography of which one matrix has no logarithm has that of the other: row by row, with its derivatives."""
    d = torch.tensor([1.0, 1.5, 2.0, 3.0], dtype=torch.float64)
    d = d / d.prod() ** 0.25
    frames = randn(3, 4, 4)
    turns = torch.tensor([[-1.0, -1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, -1.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    g = frames @ torch.diag_embed(d * turns) @ torch.linalg.inv(frames)
    expected = [False, isinstance(group, Projective), True]  # -1 and 1 together on neither
    assert group.has_log(g).tolist() == expected
    leaf = g.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(group.log(leaf).nansum(), leaf)
    assert torch.isfinite(gradient).all()
    for i, has in enumerate(expected):
        alone = g[i].clone().requires_grad_()
        if has:
            assert_relative(gradient[i], torch.autograd.grad(group.log(alone).sum(), alone)[0], 1e-10, event=2)
        else:
            assert not bool(gradient[i].any())
    assert_relative(vmap(group.log)(g)[expected], group.log(g)[expected], 1e-12, event=1)


def test_second_sign_after_the_first() -> None:
    """-2 twice, which has no logarithm, and 0.6 +- 0.8 i times 4.2: the trace is positive, but -g has one."""
    group = Projective(3)
    g = torch.diag(torch.tensor([-2.0, -2.0, 2.52, 2.52], dtype=torch.float64))
    g[2, 3], g[3, 2] = -3.36, 3.36
    g = group.from_matrix(torch.stack([g, -g, torch.eye(4, dtype=torch.float64)]))
    assert bool(group.has_log(g).all())
    sign = torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)[:, None, None]
    assert_relative(group.exp(group.log(g)), sign * g, 1e-13, event=2)
    leaf = g.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(group.log(leaf).sum(), leaf)
    assert_relative(gradient[0], -gradient[1], 1e-12, event=2)
    assert_relative(vmap(group.log)(g), group.log(g), 1e-13, event=1)
