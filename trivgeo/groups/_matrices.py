r"""Functions of batches of small matrices: closed forms up to size 4, library routines beyond.

Everything works under every transform of ``torch.func`` and in ``torch.compile``: nothing here uses ``solve``,
``det`` or ``slogdet``, which return wrong values under ``vmap(jacfwd)`` (torch 2.13), and nothing raises because
of one bad matrix in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trivgeo._numerics import dense_exp, log_ratio, polynomial, stumpff

if TYPE_CHECKING:
    from trivgeo.groups.algebra import LieAlgebra

__all__ = [
    "affine_exp",
    "circular",
    "circular_slopes",
    "determinant",
    "exp_phi1",
    "identity_like",
    "inverse",
    "matrix_exp",
    "matrix_log",
    "matvec",
    "phi1_ad",
    "phi1_matrix",
    "polar",
    "transform_points",
]

_UNROLLED_ACTION = 4  # up to this size, sums over columns beat batched matrix products
_POLYNOMIAL = 4  # up to this size, exponentials are polynomials with scalar coefficients
_FEW = 200  # up to this many matrices, one fused kernel beats closed forms, whose cost is their number of operators
_MAX_DOUBLINGS = 10
_POLYNOMIAL_RADIUS, _SINGLE_TERMS, _DOUBLE_TERMS = 2.0, 14, 24  # 2^15 / 15! = 3e-8, 2^25 / 25! = 2e-18
_PHI1_SERIES = tuple(1.0 / math.factorial(k + 1) for k in range(20))  # for norms up to one
_PHI1_RADIUS = 0.5
_PHI1_SHORT = _PHI1_SERIES[:14]  # up to one half

# Logarithm by inverse scaling and squaring: Newton steps for each square root, enough for eigenvalues of moduli
# within a factor e^16 of each other at first, and for what the square roots before have left later.
_ROOT_STEPS = (14, 9, 7, 6, 5, 5, 4, 4)
_LOG_RADIUS = 0.25
_LOG_DEFECT = 1e-6  # of exp(-L / 2) A exp(-L / 2) from the identity
_GAUSS_POINTS = 7  # the [7/7] Pade approximant of log(I + X) reaches 1e-16 for norms up to 0.26 (Higham 2008)

_CIRCULAR_RADIUS = 0.25  # of x^2; seven terms leave out 1e-19
_C2_ALTERNATING = tuple((-1.0) ** j / math.factorial(2 * j + 2) for j in range(7))
_C3_ALTERNATING = tuple((-1.0) ** j / math.factorial(2 * j + 3) for j in range(7))
_SLOPE_RADIUS = 1.0
_C2_SLOPE = tuple((-1.0) ** j * (j + 1) / math.factorial(2 * j + 4) for j in range(9))
_C3_SLOPE = tuple((-1.0) ** j * (j + 1) / math.factorial(2 * j + 5) for j in range(9))


def _rows(matrix: Tensor) -> list[tuple[Tensor, ...]]:
    return [row.unbind(-1) for row in matrix.unbind(-2)]


def _stack(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    flat = [entry for row in rows for entry in row]
    return torch.stack(flat, -1).unflatten(-1, (len(rows), len(rows[0])))


def identity_like(matrix: Tensor) -> Tensor:
    """The unit matrix ``[k, k]`` of the dtype and device of ``matrix``."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def matvec(a: Tensor, x: Tensor) -> Tensor:
    """``a x`` for a ``[*batch, m, n]`` and x ``[*batch, n]``; batches broadcast."""
    return (a @ x.unsqueeze(-1)).squeeze(-1)


def _sum_columns(a: Tensor, x: Tensor) -> Tensor:
    """``sum_j a[..., j] x[..., j]``: faster than a reduction over a short last dimension."""
    result = a[..., 0] * x[..., :1]
    for j in range(1, a.shape[-1]):
        result = torch.addcmul(result, a[..., j], x[..., j : j + 1])
    return result


def transform_points(a: Tensor, x: Tensor) -> Tensor:
    """``a x`` for a ``[*batch, 1, m, n]`` and points x ``[*batch, p, n]``."""
    n = a.shape[-1]
    if n > _UNROLLED_ACTION:
        return x @ a.squeeze(-3).mT
    return _sum_columns(a, x)


def determinant(matrix: Tensor) -> Tensor:
    """The determinant, by products up to size 3 and by ``lu_factor_ex`` beyond."""
    k = matrix.shape[-1]
    if k == 1:
        return matrix[..., 0, 0]
    if k == 2:
        (a, b), (c, d) = _rows(matrix)
        return a * d - b * c
    if k == 3:
        r0, r1, r2 = matrix.unbind(-2)
        return (r0 * torch.linalg.cross(r1, r2)).sum(-1)
    lu, pivots, _ = torch.linalg.lu_factor_ex(matrix)
    swaps = (pivots != torch.arange(1, k + 1, device=pivots.device, dtype=pivots.dtype)).sum(-1)
    return lu.diagonal(dim1=-2, dim2=-1).prod(-1) * (1 - 2 * (swaps % 2)).to(matrix.dtype)


def inverse(matrix: Tensor, unimodular: bool = False) -> Tensor:
    """The inverse, by the adjugate up to size 3; infinite or NaN where singular.

    Args:
        matrix: ``[*batch, k, k]``.
        unimodular: the determinant is known to be one.
    """
    k = matrix.shape[-1]
    if k == 1:
        return 1.0 / matrix
    if k == 2:
        (a, b), (c, d) = _rows(matrix)
        adjugate = _stack([[d, -b], [-c, a]])
        return adjugate if unimodular else adjugate / (a * d - b * c)[..., None, None]
    if k == 3:
        r0, r1, r2 = matrix.unbind(-2)
        first = torch.linalg.cross(r1, r2)
        adjugate = torch.stack([first, torch.linalg.cross(r2, r0), torch.linalg.cross(r0, r1)], -1)
        return adjugate if unimodular else adjugate / (r0 * first).sum(-1)[..., None, None]
    return torch.linalg.inv_ex(matrix)[0]


def polar(matrix: Tensor, steps: int = 12) -> Tensor:
    """The orthogonal polar factor, by Newton's iteration ``X <- (X + X^-T) / 2``; differentiable at rotations."""
    x = matrix
    for _ in range(steps):
        x = 0.5 * (x + inverse(x).mT)
    return x


# Exponentials ------------------------------------------------------------------------------------------------


def matrix_exp(matrix: Tensor) -> Tensor:
    """The exponential of ``[*batch, k, k]``."""
    k = matrix.shape[-1]
    if k == 1:
        return matrix.exp()
    if k > _POLYNOMIAL or _is_few(matrix):
        return dense_exp(matrix)
    if k == 2:
        half_trace, x, b, c = _split2(matrix)
        c0, c1, _, _ = stumpff(x * x + b * c)
        grow = half_trace.exp()
        c0, c1 = grow * c0, grow * c1
        return _stack([[c0 + c1 * x, c1 * b], [c1 * c, c0 - c1 * x]])
    mean = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
    shifted = matrix - mean[..., None, None] * identity_like(matrix)
    return mean.exp()[..., None, None] * _polynomial_exp(shifted, with_phi1=False)[0]


def exp_phi1(matrix: Tensor) -> tuple[Tensor, Tensor]:
    r"""The exponential and :math:`\varphi_1(A) = \int_0^1 e^{sA} ds` of ``[*batch, k, k]``."""
    k = matrix.shape[-1]
    if k == 1:
        return matrix.exp(), _phi1_scalar(matrix)
    if k == 2:
        return matrix_exp(matrix), _phi1_2x2(matrix)
    if k <= _POLYNOMIAL:
        e, phi = _polynomial_exp(matrix, with_phi1=True)
        assert phi is not None
        return e, phi
    return _series_exp_phi1(matrix)


def phi1_matrix(matrix: Tensor) -> Tensor:
    r""":math:`\varphi_1(A) = \sum_j A^j / (j + 1)!` of ``[*batch, k, k]``."""
    if matrix.shape[-1] == 2:
        return _phi1_2x2(matrix)
    return exp_phi1(matrix)[1]


def phi1_ad(algebra: LieAlgebra, v: Tensor) -> Tensor:
    r"""The matrix :math:`\varphi_1(\mathrm{ad}_v)`, ``[*batch, n, n]``.

    For unimodular algebras of dimension 3, :math:`\mathrm{ad}_v^3 = q\, \mathrm{ad}_v` with
    :math:`q = \tfrac12 \mathrm{tr}\, \mathrm{ad}_v^2` (Cayley-Hamilton: v is in the kernel, the trace is zero), so the
    series sums to :math:`I + c_2(q)\, \mathrm{ad}_v + c_3(q)\, \mathrm{ad}_v^2`.
    """
    n = algebra.dim
    if algebra.is_abelian:
        return torch.eye(n, dtype=v.dtype, device=v.device).expand(*v.shape[:-1], n, n)
    ad = algebra.ad(v)
    if n == 3 and algebra.is_unimodular:
        square = ad @ ad
        _, _, c2, c3 = stumpff(0.5 * square.diagonal(dim1=-2, dim2=-1).sum(-1))
        return identity_like(ad) + c2[..., None, None] * ad + c3[..., None, None] * square
    return phi1_matrix(ad)


def affine_exp(matrix: Tensor, vector: Tensor) -> Tensor:
    r"""The upper rows :math:`[e^A \mid \varphi_1(A) b]` of the exponential of ``[[A, b], [0, 0]]``.

    Args:
        matrix: A, ``[*batch, k, k]``.
        vector: b, ``[*batch, k]``.
    """
    k = matrix.shape[-1]
    if k <= _POLYNOMIAL and not _is_few(matrix):
        e, phi = exp_phi1(matrix)
        return torch.cat([e, matvec(phi, vector).unsqueeze(-1)], -1)
    top = torch.cat([matrix, vector.unsqueeze(-1)], -1)
    augmented = torch.cat([top, torch.zeros_like(top[..., :1, :])], -2)
    return dense_exp(augmented)[..., :k, :]


def circular(square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""sin x / x, (1 - cos x) / x^2 and (x - sin x) / x^3 from x^2 >= 0: c1, c2, c3 of `stumpff` at -x^2.

    Finite derivatives of every order at zero.
    """
    small = square < _CIRCULAR_RADIUS
    near, far = torch.where(small, square, 0.0), torch.where(small, 1.0, square)
    x = far.sqrt()
    half = torch.sin(0.5 * x)
    c1_far = torch.sin(x) / x
    c3_near = polynomial(near, _C3_ALTERNATING)
    c1 = torch.where(small, 1.0 - near * c3_near, c1_far)
    c2 = torch.where(small, polynomial(near, _C2_ALTERNATING), 2.0 * half * half / far)
    return c1, c2, torch.where(small, c3_near, (1.0 - c1_far) / far)


def circular_slopes(square: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives of c2 and c3 by ``-square``: ``c_k' = (c_(k+1) - k c_(k+2)) / 2``."""
    small = square < _SLOPE_RADIUS
    near, far = torch.where(small, square, 0.0), torch.where(small, 1.0, square)
    c4, c5 = (0.5 - c2) / far, (1.0 / 6.0 - c3) / far
    d2 = torch.where(small, polynomial(near, _C2_SLOPE), 0.5 * (c3 - 2.0 * c4))
    d3 = torch.where(small, polynomial(near, _C3_SLOPE), 0.5 * (c4 - 3.0 * c5))
    return d2, d3


def _split2(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Half the trace, and the entries x, b, c of the trace-free part [[x, b], [c, -x]]."""
    (a, b), (c, d) = _rows(matrix)
    return 0.5 * (a + d), 0.5 * (a - d), b, c


def _phi1_scalar(x: Tensor) -> Tensor:
    """``expm1(x) / x``."""
    small = x.abs() < _PHI1_RADIUS
    far = torch.where(small, 1.0, x)
    return torch.where(small, polynomial(torch.where(small, x, 0.0), _PHI1_SHORT), torch.expm1(far) / far)


def _phi1_2x2(matrix: Tensor) -> Tensor:
    r"""phi_1 of 2 x 2 matrices as :math:`a I + b B`, B the trace-free part, :math:`B^2 = q I`.

    Three regimes, each free of cancellation: a series in the ring spanned by I and B for small matrices; divided
    differences of the scalar function for real eigenvalues apart; :math:`A^{-1} (e^A - I)` for the rest, where
    det A is away from zero.
    """
    m, x, y, z = _split2(matrix)
    q = x * x + y * z
    size = torch.maximum(m.abs(), q.abs().sqrt())
    small = size < 0.5 * _PHI1_RADIUS
    apart = ~small & (q > 0.0625)
    rest = ~small & ~apart

    m_near, q_near = torch.where(small, m, 0.0), torch.where(small, q, 0.0)
    a_near, b_near = torch.full_like(m, _PHI1_SHORT[-1]), torch.zeros_like(m)
    for coefficient in reversed(_PHI1_SHORT[:-1]):
        a_next = torch.addcmul(m_near * a_near + coefficient, q_near, b_near)
        a_near, b_near = a_next, torch.addcmul(a_near, m_near, b_near)

    r = torch.where(apart, q, 1.0).sqrt()
    m_apart = torch.where(apart, m, 0.0)
    high, low = _phi1_scalar(torch.stack([m_apart + r, m_apart - r])).unbind(0)
    a_apart, b_apart = 0.5 * (high + low), 0.5 * (high - low) / r

    m_rest, q_rest = torch.where(rest, m, 1.0), torch.where(rest, q, 0.0)
    c0, c1, _, _ = stumpff(q_rest)
    grow = m_rest.exp()
    e0, e1 = grow * c0 - 1.0, grow * c1
    det = m_rest * m_rest - q_rest
    a_rest, b_rest = (m_rest * e0 - q_rest * e1) / det, (m_rest * e1 - e0) / det

    a = torch.where(small, a_near, torch.where(apart, a_apart, a_rest))
    b = torch.where(small, b_near, torch.where(apart, b_apart, b_rest))
    return _stack([[a + b * x, b * y], [b * z, a - b * x]])


def _polynomial_exp(matrix: Tensor, with_phi1: bool) -> tuple[Tensor, Tensor | None]:
    r"""exp and, if asked for, phi_1 of k x k matrices, k = 3 or 4.

    The Taylor series of the matrix halved to norm at most two is summed in the ring of polynomials modulo the
    characteristic polynomial (Cayley-Hamilton), so that each term costs k operations on scalars and no matrix product.
    No eigenvalues, hence no trouble where they coincide. Doubling is left to matrices: in the ring it would lose
    digits with the power k - 1 of the norm.
    """
    k = matrix.shape[-1]
    count = _doublings(matrix, _POLYNOMIAL_RADIUS)
    powers = [matrix * torch.exp2(-count)[..., None, None]]
    for _ in range(k - 2):
        powers.append(powers[-1] @ powers[0])
    relation = _characteristic(powers)
    terms = _SINGLE_TERMS if torch.finfo(matrix.dtype).eps > 1e-10 else _DOUBLE_TERMS

    def series(shift: int) -> Tensor:
        """sum_j Z^j / (j + shift)!"""
        f = [torch.full_like(count, 1.0 / math.factorial(terms + shift))] + [torch.zeros_like(count)] * (k - 1)
        for j in reversed(range(terms)):
            top = f[-1]
            f = [top * relation[0] + 1.0 / math.factorial(j + shift)] + [
                torch.addcmul(f[i - 1], top, relation[i]) for i in range(1, k)
            ]
        result = f[1][..., None, None] * powers[0]
        for c, power in zip(f[2:], powers[1:], strict=True):
            result = torch.addcmul(result, c[..., None, None], power)
        return result + torch.diag_embed(f[0].unsqueeze(-1).expand(result.shape[:-1]))

    return _double(series(0), series(1) if with_phi1 else None, count)


def _characteristic(powers: Sequence[Tensor]) -> list[Tensor]:
    """The numbers c with ``Z^k = sum_j c[j] Z^j``, by Newton's identities from the traces of Z, ..., Z^k."""
    k = len(powers) + 1
    traces = [m.diagonal(dim1=-2, dim2=-1).sum(-1) for m in powers]
    traces.append((powers[-1] * powers[0].mT).sum((-2, -1)))
    elementary = [torch.ones_like(traces[0])]
    for i in range(1, k + 1):
        total = torch.zeros_like(traces[0])
        for j in range(1, i + 1):
            total = total + (-1) ** (j - 1) * elementary[i - j] * traces[j - 1]
        elementary.append(total / i)
    return [(-1) ** (k - j - 1) * elementary[k - j] for j in range(k)]


def _series_exp_phi1(matrix: Tensor) -> tuple[Tensor, Tensor]:
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
    for start in reversed(range(0, len(_PHI1_SERIES), 4)):
        block = sum((_PHI1_SERIES[start + j] * powers[j] for j in range(4)), start=torch.zeros_like(z))
        phi = phi @ fourth + block
    e = eye + z @ phi
    e, doubled = _double(e, phi, count)
    assert doubled is not None
    return e, doubled


def _is_few(matrix: Tensor) -> bool:
    """Whether these are so few matrices on the CPU that ``torch.linalg.matrix_exp`` is faster than closed forms."""
    k = matrix.shape[-1]
    return (
        not torch.compiler.is_compiling()
        and matrix.device.type == "cpu"
        and matrix.numel() <= _FEW * k * k
        and not _under_vmap()
    )


def _under_vmap() -> bool:
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Vmap for level in stack)


def _doublings(matrix: Tensor, radius: float) -> Tensor:
    """How often each matrix must be halved to bring its norm to at most ``radius``."""
    norm = matrix.detach().square().sum((-2, -1)).sqrt() / radius
    return torch.log2(norm.nan_to_num(0.0, math.inf).clamp(1.0, 2.0**_MAX_DOUBLINGS)).ceil()


def _double(e: Tensor, phi: Tensor | None, count: Tensor) -> tuple[Tensor, Tensor | None]:
    r""":math:`e^{2Z} = (e^Z)^2` and :math:`\varphi_1(2Z) = \tfrac12 (e^Z + I) \varphi_1(Z)`, each matrix its count."""
    # As many rounds as some matrix of the batch needs; all of them, masked, where the batch cannot be seen.
    fixed = torch.compiler.is_compiling() or _under_vmap() or count.is_meta
    rounds = _MAX_DOUBLINGS if fixed else (int(count.max()) if count.numel() else 0)
    for j in range(rounds):
        more = (count > j)[..., None, None]
        # the branch that is not taken must stay finite, for the gradient of the one that is
        safe = torch.where(more, e, 0.0)
        if phi is not None:
            phi = torch.where(more, 0.5 * (phi + safe @ phi), phi)
        e = torch.where(more, safe @ safe, e)
    return e, phi


# Logarithm ---------------------------------------------------------------------------------------------------


def matrix_log(matrix: Tensor) -> Tensor:
    """The principal real logarithm of ``[*batch, k, k]``; NaN where there is none.

    Closed form for 2 x 2. Beyond, inverse scaling and squaring (Higham 2008, chapter 11) without eigenvalues: square
    roots by the Denman-Beavers iteration, then a Pade approximant in partial fractions, in a fixed number of steps.
    The result counts only if its exponential is the matrix.
    """
    k = matrix.shape[-1]
    if k == 1:
        positive = matrix > 0
        return torch.where(positive, torch.where(positive, matrix, 1.0).log(), math.nan)
    return _log_2x2(matrix) if k == 2 else _log_iterative(matrix)


def _log_2x2(matrix: Tensor) -> Tensor:
    m, x, b, c = _split2(matrix)
    (p, q), (r, s) = _rows(matrix)
    det = p * s - q * r
    good = det > 0
    scale = torch.where(good, det, 1.0).sqrt()
    m, x, b, c = m / scale, x / scale, b / scale, c / scale
    f = log_ratio(m, x * x + b * c)
    half = torch.where(good, scale.log(), math.nan)
    return _stack([[half + f * x, f * b], [f * c, half - f * x]])


def _log_iterative(matrix: Tensor) -> Tensor:
    single = matrix.dtype
    matrix = matrix.double()  # the iteration loses digits with the condition number
    k = matrix.shape[-1]
    eye = identity_like(matrix)
    # Scale to determinant one; with a determinant of zero or below there is no real logarithm. Such matrices are
    # replaced at once, so that they cannot make gradients of others NaN.
    det = determinant(matrix)
    usable = torch.isfinite(matrix).all(-1).all(-1) & (det > 0)
    log_det = torch.where(usable, det, 1.0).log() / k
    target = torch.where(usable[..., None, None], matrix * (-log_det).exp()[..., None, None], eye)

    x = target
    doublings = torch.zeros_like(log_det)
    for steps in _ROOT_STEPS:
        large = (x.detach() - eye).square().sum((-2, -1)).sqrt() > _LOG_RADIUS
        mask = large[..., None, None]
        x = torch.where(mask, _square_root(torch.where(mask, x, eye), steps), x)
        doublings = doublings + large.to(x.dtype)
    log = torch.exp2(doublings)[..., None, None] * _log_near_identity(x - eye)

    correction, exact = _log_correction(log.detach(), target.detach())
    exact = (exact & usable)[..., None, None]
    log = log + torch.where(exact, correction, 0.0) + log_det[..., None, None] * eye
    return torch.where(exact, log, math.nan).to(single)


def _log_correction(log: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """What ``log A = L + log(exp(-L / 2) A exp(-L / 2))`` adds to L, in value only, and whether L is a logarithm.

    The split exponential keeps errors that do not commute with L from being enlarged by e^(spread of eigenvalues).
    """
    eye = identity_like(log)
    finite = torch.isfinite(log).all(-1).all(-1)
    log = torch.where(finite[..., None, None], log, 0.0)

    def remainder(value: Tensor) -> tuple[Tensor, Tensor]:
        half = dense_exp(-0.5 * value)
        ratio = half @ target @ half
        return ratio, (ratio - eye).square().sum((-2, -1)).sqrt()

    ratio, before = remainder(log)
    correction = 2.0 * (ratio - eye) @ inverse(ratio + eye)
    _, after = remainder(log + correction)
    better = after < before
    correction = torch.where((finite & better)[..., None, None], correction, 0.0)
    return correction, finite & (torch.where(better, after, before) < _LOG_DEFECT)


def _square_root(a: Tensor, steps: int) -> Tensor:
    """The principal square root by the iteration of Denman and Beavers (1976): the most accurate of five tried."""
    x, y = a, identity_like(a).expand(a.shape)
    for _ in range(steps):
        x, y = 0.5 * (x + inverse(y)), 0.5 * (y + inverse(x))
    return x


def _log_near_identity(x: Tensor) -> Tensor:
    """``log(I + X) = sum_i w_i X (I + t_i X)^-1`` at Gauss-Legendre nodes: the diagonal Pade approximant."""
    eye = identity_like(x)
    result = torch.zeros_like(x)
    for node, weight in _gauss_legendre(_GAUSS_POINTS):
        result = result + weight * (x @ inverse(eye + node * x))
    return result


def _gauss_legendre(points: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights on [0, 1], by Newton's iteration on the Legendre polynomial."""
    rule = []
    for i in range(points):
        t = math.cos(math.pi * (i + 0.75) / (points + 0.5))
        slope = 1.0
        for _ in range(50):
            before, value = 1.0, t
            for n in range(2, points + 1):
                before, value = value, ((2 * n - 1) * t * value - (n - 1) * before) / n
            slope = points * (t * value - before) / (t * t - 1.0)
            t -= value / slope
        rule.append((0.5 * (1.0 + t), 1.0 / ((1.0 - t * t) * slope * slope)))
    return tuple(rule)
