r"""Exponentials by Taylor series of a halved matrix and repeated squaring."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trivgeo._numerics import is_abstract
from trivgeo.groups._matrices.basic import identity_like, product

__all__ = [
    "PHI1_SERIES",
    "embedded",
    "polynomial_exp",
    "series_exp_phi1",
    "shifted_exp",
    "unitary_exp",
]

_MAX_DOUBLINGS = 40
_FIXED_DOUBLINGS = 10  # where the batch cannot be seen, and every matrix goes through all of them
_POLYNOMIAL_RADIUS, _SINGLE_TERMS, _DOUBLE_TERMS = 2.0, 14, 24  # 2^15 / 15! = 3e-8, 2^25 / 25! = 2e-18
PHI1_SERIES = tuple(1.0 / math.factorial(k + 1) for k in range(20))  # for norms up to one


def shifted_exp(matrix: Tensor) -> Tensor:
    """The exponential of ``[*batch, k, k]``, k = 3 to 6, with the mean of the diagonal taken out first."""
    mean = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
    shifted = matrix - mean[..., None, None] * identity_like(matrix)
    return polynomial_exp(shifted, with_phi1=False, shift=mean)[0]


def polynomial_exp(matrix: Tensor, with_phi1: bool, shift: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    r"""exp and, if asked for, phi_1 of k x k matrices, k = 3 to 6.

    The Taylor series of the matrix halved to norm at most two is summed in the ring of polynomials modulo the
    characteristic polynomial (Cayley-Hamilton), so that each term costs k operations on scalars and no matrix product.
    No eigenvalues, hence no trouble where they coincide. Doubling is left to matrices: in the ring it would lose
    digits with the power k - 1 of the norm.

    Args:
        matrix: ``[*batch, k, k]``.
        with_phi1: whether phi_1 is asked for.
        shift: numbers ``[*batch]``; the exponential is that of the matrix and this multiple of I, multiplied before the
            doubling, where neither has overflown.
    """
    k = matrix.shape[-1]
    count = _doublings(matrix, _POLYNOMIAL_RADIUS)
    powers = [matrix * torch.exp2(-count)[..., None, None]]
    for _ in range(k - 2):
        powers.append(product(powers[-1], powers[0]))
    relation = _characteristic([_trace(m) for m in powers] + [(powers[-1] * powers[0].mT).sum((-2, -1))])

    def series(start: int) -> Tensor:
        """sum_j Z^j / (j + start)!"""
        f = _in_ring([1.0 / math.factorial(j + start) for j in range(_terms(matrix) + 1)], relation)
        return _combined(f, powers) + torch.diag_embed(f[0].unsqueeze(-1).expand(matrix.shape[:-1]))

    e = series(0)
    if shift is not None:
        e = torch.exp(shift * torch.exp2(-count))[..., None, None] * e
    return _double(e, series(1) if with_phi1 else None, count)


def unitary_exp(real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of exp(i H), as `polynomial_exp`; the characteristic polynomial of H is real.

    Args:
        real: of H, symmetric ``[*batch, k, k]``.
        imaginary: of H, skew-symmetric.
    """
    k = real.shape[-1]
    mean = _trace(real) / k
    z = torch.cat([real - mean[..., None, None] * identity_like(real), imaginary], -2)  # complex matrices one above one
    count = _doublings(z, _POLYNOMIAL_RADIUS)
    powers = [z * torch.exp2(-count)[..., None, None]]
    left = embedded(powers[0])
    for _ in range(k - 2):
        powers.append(left @ powers[-1])
    traces = [_trace(m[..., :k, :]) for m in powers] + [(powers[-1] * powers[0]).sum((-2, -1))]
    relation = _characteristic(traces)
    signed = [(-1.0) ** (j // 2) / math.factorial(j) for j in range(_terms(real) + 1)]
    cosine, sine = (_in_ring([x * (j % 2 == odd) for j, x in enumerate(signed)], relation) for odd in (0, 1))
    e = _combined(cosine, powers) + _times_i(_combined(sine, powers))
    e = e + torch.cat([f[0][..., None, None] * identity_like(real) for f in (cosine, sine)], -2)
    phase = mean * torch.exp2(-count)
    e = phase.cos()[..., None, None] * e + phase.sin()[..., None, None] * _times_i(e)
    for more in _rounds(count):
        safe = torch.where(more, e, 0.0)
        e = torch.where(more, embedded(safe) @ safe, e)
    return e[..., :k, :], e[..., k:, :]


def embedded(z: Tensor) -> Tensor:
    """The real matrix [[A, -B], [B, A]] of A + i B, given as [[A], [B]]."""
    return torch.cat([z, _times_i(z)], -1)


def _times_i(z: Tensor) -> Tensor:
    """[[-B], [A]] of [[A], [B]]."""
    real, imaginary = z.chunk(2, -2)
    return torch.cat([-imaginary, real], -2)


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _terms(matrix: Tensor) -> int:
    """The last of the series at norm `_POLYNOMIAL_RADIUS`."""
    return _SINGLE_TERMS if torch.finfo(matrix.dtype).eps > 1e-10 else _DOUBLE_TERMS


def _in_ring(series: Sequence[float], relation: Sequence[Tensor]) -> list[Tensor]:
    """The numbers f with ``sum_j series[j] Z^j = sum_{j < k} f[j] Z^j``, by Horner's rule; see `_characteristic`."""
    f = [torch.full_like(relation[0], series[-1])] + [torch.zeros_like(relation[0])] * (len(relation) - 1)
    for coefficient in reversed(series[:-1]):
        top = f[-1]
        f = [top * relation[0] + coefficient] + [
            torch.addcmul(below, top, c) for below, c in zip(f[:-1], relation[1:], strict=True)
        ]
    return f


def _combined(f: Sequence[Tensor], powers: Sequence[Tensor]) -> Tensor:
    """``sum_j f[j] Z^j`` without the first."""
    result = f[1][..., None, None] * powers[0]
    for c, power in zip(f[2:], powers[1:], strict=True):
        result = torch.addcmul(result, c[..., None, None], power)
    return result


def _characteristic(traces: Sequence[Tensor]) -> list[Tensor]:
    """The numbers c with ``Z^k = sum_j c[j] Z^j``, by Newton's identities from the traces of Z, ..., Z^k."""
    k = len(traces)
    elementary = [torch.ones_like(traces[0])]
    for i in range(1, k + 1):
        total = torch.zeros_like(traces[0])
        for j in range(1, i + 1):
            total = total + (-1) ** (j - 1) * elementary[i - j] * traces[j - 1]
        elementary.append(total / i)
    return [(-1) ** (k - j - 1) * elementary[k - j] for j in range(k)]


def series_exp_phi1(matrix: Tensor) -> tuple[Tensor, Tensor]:
    r"""exp and phi_1 at any size: Taylor series by the scheme of Paterson and Stockmeyer, then doubling.

    A fifth of the work of one exponential of twice the size (Van Loan 1978).
    """
    eye = identity_like(matrix)
    count = _doublings(matrix, 1.0)
    z = matrix * torch.exp2(-count)[..., None, None]
    square = z @ z
    powers = [eye.expand(z.shape), z, square, z @ square]
    fourth = square @ square
    phi = torch.zeros_like(z)
    for start in reversed(range(0, len(PHI1_SERIES), 4)):
        block = sum((PHI1_SERIES[start + j] * powers[j] for j in range(4)), start=torch.zeros_like(z))
        phi = phi @ fourth + block
    e = eye + z @ phi
    e, doubled = _double(e, phi, count)
    assert doubled is not None
    return e, doubled


def _doublings(matrix: Tensor, radius: float) -> Tensor:
    """How often each matrix must be halved to bring its norm to at most ``radius``; NaN for more than is done."""
    limit = 2.0 ** (_FIXED_DOUBLINGS if is_abstract(matrix) else _MAX_DOUBLINGS)
    norm = matrix.detach().square().sum((-2, -1)).sqrt() / radius
    return torch.where(norm <= limit, torch.log2(norm.clamp(1.0, limit)).ceil(), math.nan)


def _double(e: Tensor, phi: Tensor | None, count: Tensor) -> tuple[Tensor, Tensor | None]:
    r""":math:`e^{2Z} = (e^Z)^2` and :math:`\varphi_1(2Z) = \tfrac12 (e^Z + I) \varphi_1(Z)`, each matrix its count."""
    for more in _rounds(count):
        # the branch that is not taken must stay finite, for the gradient of the one that is
        safe = torch.where(more, e, 0.0)
        if phi is not None:
            phi = torch.where(more, 0.5 * (phi + product(safe, phi)), phi)
        e = torch.where(more, product(safe, safe), e)
    return e, phi


def _rounds(count: Tensor) -> Iterator[Tensor]:
    """Which matrices are squared, ``[*batch, 1, 1]``, until all are as often as they were halved.

    As many rounds as some matrix of the batch needs; all of them, masked, where the batch cannot be seen.
    """
    fixed = is_abstract(count)
    rounds = _FIXED_DOUBLINGS if fixed else (int(count.nan_to_num(0.0).max()) if count.numel() else 0)
    for j in range(rounds):
        yield (count > j)[..., None, None]
