"""Cholesky factors and eigenvalues of curvatures that may be indefinite or not finite."""

from __future__ import annotations

import pytest
import torch

from trivgeo.inversion.curvature import absolute_eigh, safe_cholesky


def cases() -> torch.Tensor:
    """One positive definite, one indefinite, one singular matrix, and one with NaN."""
    positive = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    indefinite = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    singular = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    return torch.stack([positive, indefinite, singular, torch.full_like(positive, torch.nan)])


def test_factors_of_what_is_positive_definite() -> None:
    factor, good = safe_cholesky(cases())
    assert good.tolist() == [True, False, False, False]
    torch.testing.assert_close(factor[0] @ factor[0].mT, cases()[0])
    assert torch.equal(factor[1:], torch.eye(2, dtype=torch.float64).expand(3, 2, 2))
    other = 2.0 * torch.eye(2, dtype=torch.float64)
    assert torch.equal(safe_cholesky(cases(), other)[0][1:], other.expand(3, 2, 2))
    empty, none = safe_cholesky(cases()[:0])
    assert (empty.shape, none.shape) == ((0, 2, 2), (0,))


def test_eigenvalues_by_size() -> None:
    values, vectors = absolute_eigh(cases(), 1e-3)
    torch.testing.assert_close(values[1].sort().values, torch.tensor([1.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(values[2].sort().values, torch.tensor([1e-3, 1.0], dtype=torch.float64))
    torch.testing.assert_close(values[3], torch.ones(2, dtype=torch.float64))
    # |H| is the root of H^2
    root = vectors[:2] @ torch.diag_embed(values[:2]) @ vectors[:2].mT
    torch.testing.assert_close(root @ root, cases()[:2] @ cases()[:2])
    stated = torch.diag(torch.tensor([5.0, 7.0], dtype=torch.float64))
    assert absolute_eigh(cases(), 1e-3, stated)[0][3].tolist() == [5.0, 7.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    values, vectors = absolute_eigh(cases().to(dtype), 1e-3)
    assert values.dtype == vectors.dtype == dtype
    assert bool((values > 0).all())


def test_zero_matrices_have_positive_eigenvalues() -> None:
    assert bool((absolute_eigh(torch.zeros(2, 3, 3), 1e-6)[0] > 0).all())
