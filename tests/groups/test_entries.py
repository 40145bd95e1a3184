"""Entries of exponentials: each is right relative to itself, as far as it is well conditioned, on every group."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor
from torch.func import jacrev

from tests.groups.cases import GroupCase
from tests.helpers import randn
from trivgeo.groups import SL, SO, Affine, DirectProduct, GLPlus, LieGroup, Projective, Similarity
from trivgeo.groups.linalg import matrix_functions

UNITS = (
    30.0  # of the last place, times the condition of the entry; an entry that is a difference of others has thousands
)
STEP = 1e-6

OTHERS: dict[str, LieGroup] = {
    "SL(3)": SL(3),
    "GL+(3)": GLPlus(3),
    "GL+(4)": GLPlus(4),
    "Affine(3)": Affine(3),
    "Projective(1)": Projective(1),
    "Projective(2)": Projective(2),
    "SL(2) x Similarity(2)": DirectProduct(SL(2), Similarity(2)),
    "SL(3) x SO(3)": DirectProduct(SL(3), SO(3)),
}


def vectors(group: LieGroup) -> Tensor:
    """Long ones along the basis, both ways, and random ones; in single precision, for both."""
    axes = torch.eye(group.dim, dtype=torch.float64)
    return torch.cat([3 * axes, -3 * axes, 8 * axes, -8 * axes, 1.5 * randn(12, group.dim)]).float().double()


def conditions(group: LieGroup, v: Tensor) -> Tensor:
    """How far entries move where each coordinate moves by a unit of itself, by differences, ``[*batch, *element]``."""
    value = group.exp(v)
    steps = torch.diag_embed(STEP * v)
    moved = group.exp((v.unsqueeze(-2) + steps).reshape(-1, group.dim)).unflatten(0, steps.shape[:-1])
    return value.abs() + (moved - value.unsqueeze(len(steps.shape[:-2]))).abs().sum(len(steps.shape[:-2])) / STEP


def assert_entries(found: Tensor, expected: Tensor, condition: Tensor, dtype: torch.dtype) -> None:
    error = (found.double() - expected).abs()
    bound = UNITS * torch.finfo(dtype).eps * condition
    assert bool((error <= bound).all()), float((error / bound)[error > bound].max())


def in_batches(group: LieGroup, v: Tensor) -> list[Tensor]:
    """In a large batch, by closed forms, and in a small one, by library routines."""
    many = group.exp(v.repeat(-(-400 // len(v)), 1))[: len(v)]
    return [many, torch.cat([group.exp(part) for part in v.split(5)])]


def check_single(group: LieGroup) -> None:
    v = vectors(group)
    condition, expected = conditions(group, v), group.exp(v)
    for found in in_batches(group, v.float()):
        assert_entries(found, expected, condition, torch.float32)


def test_entries_in_single_precision(group: LieGroup) -> None:
    """Against double precision, in which what cancels here does not yet."""
    check_single(group)


@pytest.mark.parametrize("name", OTHERS)
def test_entries_of_other_groups(name: str) -> None:
    check_single(OTHERS[name])


def exact(matrix: Tensor) -> Tensor:
    with mpmath.workdps(60):
        e = mpmath.expm(mpmath.matrix(matrix.tolist()), method="taylor")
        size = len(matrix)
        return torch.tensor([[float(e[i, j]) for j in range(size)] for i in range(size)], dtype=torch.float64)


def test_entries_in_double_precision(matrix_case: GroupCase) -> None:
    """Against 60 digits, in a faithful representation."""
    group, represent = matrix_case.group, matrix_case.matrix
    assert represent is not None
    generators = jacrev(lambda v: represent(group.exp(v)))(torch.zeros(group.dim, dtype=torch.float64))
    simple = (2.0**20 * generators).round() / 2.0**20  # but for rounding generators are such numbers, or no simple ones
    generators = torch.where((generators - simple).abs() < 1e-14, simple, generators)
    v = vectors(group)[:: 1 + group.dim // 4]
    condition = _conditions_of_matrices(matrix_case, v)
    expected = torch.stack([exact((generators * x).sum(-1)) for x in v])
    for found in in_batches(group, v):
        assert_entries(represent(found), expected, condition, torch.float64)


def _conditions_of_matrices(case: GroupCase, v: Tensor) -> Tensor:
    group, represent = case.group, case.matrix
    assert represent is not None
    value, steps = represent(group.exp(v)), torch.diag_embed(STEP * v)
    moved = represent(group.exp((v.unsqueeze(-2) + steps).reshape(-1, group.dim))).unflatten(0, steps.shape[:2])
    return value.abs() + (moved - value.unsqueeze(1)).abs().sum(1) / STEP


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [3, 4, 5])
def test_opposite_exponents(size: int, dtype: torch.dtype) -> None:
    """Matrices that are diagonal, nearly so, triangular, or positive off the diagonal: all well conditioned.

    In a batch the entries of exponentials of 3 x 3 matrices had the error of the largest: 3.5e-9 of themselves at 10.
    """
    diagonal = torch.diag(torch.linspace(-8, 8, size, dtype=torch.float64))
    positive = torch.rand(size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    two = torch.diag(torch.tensor([-10.0, 10.0, *[0.0] * (size - 2)], dtype=torch.float64))
    family = [diagonal, diagonal + 1e-3 * positive, diagonal + positive.triu(1), -diagonal + positive.tril(-1), two]
    matrices = torch.stack([*family, diagonal + positive]).to(dtype)
    expected = torch.stack([exact(m.double()) for m in matrices])
    group = GLPlus(size)
    v = group.vee(matrices)
    many = group.exp(v.repeat(100, 1))[: len(v)]
    few = group.exp(v)
    slope = group.exp(v.double().repeat(100, 1).requires_grad_())
    # small batches and more rows are powers of the series of a library, each of which doubles the relative error
    large = 100 if size < 5 else 1000
    for found, units in ((many, large), (few, 1000), (slope[: len(v)].detach().to(dtype), large)):
        relative = (found.double() - expected).abs() / torch.where(expected == 0, 1.0, expected.abs())
        assert float(relative.max()) < units * torch.finfo(dtype).eps


def test_derivatives_of_small_entries() -> None:
    """Of the matrices that are computed another way, too: that of diag(e^x) by x is itself."""
    group = GLPlus(3)
    x = torch.tensor([-9.0, 7.0, 0.5], dtype=torch.float64)

    def diagonal(x: Tensor) -> Tensor:
        v = group.vee(torch.diag_embed(x)).expand(300, -1)
        return group.exp(v)[0].diagonal()

    assert torch.allclose(jacrev(diagonal)(x), torch.diag(x.exp()), rtol=1e-13, atol=1e-12)
    assert torch.allclose(torch.func.jacfwd(diagonal)(x), torch.diag(x.exp()), rtol=1e-13, atol=1e-12)


def test_compiled_entries_are_relative_to_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As code that looks at no values computes them, eagerly."""
    matrices = torch.diag_embed(torch.tensor([[-9.0, 7.0, 0.5], [3.0, -3.0, 0.0]], dtype=torch.float64))
    monkeypatch.setattr("trivgeo.groups.linalg.size_three.is_traced", lambda: True)
    monkeypatch.setattr("trivgeo.groups.linalg.size_three.is_small_batch", lambda matrix: False)
    found = matrix_functions(3).exp(matrices)
    expected = torch.stack([exact(m) for m in matrices])
    assert float(((found - expected).abs().amax((1, 2)) / expected.amax((1, 2))).max()) < 1e-14
