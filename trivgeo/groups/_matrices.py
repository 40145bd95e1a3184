r"""Functions of batches of small matrices: closed forms up to size 4, library routines beyond.

Everything works under every transform of ``torch.func`` and in ``torch.compile``: nothing here uses ``solve``,
``det`` or ``slogdet``, which return wrong values under ``vmap(jacfwd)`` (torch 2.13), and nothing raises because
of one bad matrix in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trivgeo._numerics import log_ratio, polynomial, stumpff

__all__ = [
    "affine_exp",
    "determinant",
    "exp_phi1",
    "inverse",
    "matmul",
    "matrix_exp",
    "matrix_log",
    "matvec",
    "phi1_matrix",
    "polar",
    "stumpff_slopes",
    "transform_points",
]

_UNROLLED_ACTION = 4  # up to this size, sums over columns beat batched matrix products
_POLYNOMIAL = 4  # up to this size, exponentials are polynomials with scalar coefficients
_MAX_DOUBLINGS = 10
_TERMS = {torch.float32: 11, torch.float64: 19}  # Taylor terms for norm at most one: 1 / 12! and 1 / 20! are left out
_PHI1_SERIES = tuple(1.0 / math.factorial(k + 1) for k in range(20))
_PHI1_RADIUS = 1.0

# Logarithm by inverse scaling and squaring: Newton steps for each square root, enough for eigenvalues of moduli
# within a factor e^16 of each other at first, and for what the square roots before have left later.
_ROOT_STEPS = (12, 9, 7, 6, 5, 5, 4, 4)
_LOG_RADIUS = 0.25
_GAUSS_POINTS = 7  # the [7/7] Pade approximant of log(I + X) reaches 1e-16 for norms up to 0.26 (Higham 2008)

_C2_SLOPE = tuple((j + 1) / math.factorial(2 * j + 4) for j in range(10))
_C3_SLOPE = tuple((j + 1) / math.factorial(2 * j + 5) for j in range(10))


def _rows(matrix: Tensor) -> list[tuple[Tensor, ...]]:
    return [row.unbind(-1) for row in matrix.unbind(-2)]


def _stack(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    flat = [entry for row in rows for entry in row]
    return torch.stack(flat, -1).unflatten(-1, (len(rows), len(rows[0])))


def identity_like(matrix: Tensor) -> Tensor:
    """The unit matrix ``[k, k]`` of the dtype and device of ``matrix``."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of square matrices; written out for 2 x 2, where batched routines are slower."""
    if a.shape[-1] != 2:
        return a @ b
    (p, q), (r, s) = _rows(a)
    (t, u), (v, w) = _rows(b)
    return _stack([[p * t + q * v, p * u + q * w], [r * t + s * v, r * u + s * w]])


def matvec(a: Tensor, x: Tensor) -> Tensor:
    """``a x`` for a ``[*batch, m, n]`` and x ``[*batch, n]``; batches broadcast."""
    return (a * x.unsqueeze(-2)).sum(-1) if a.shape[-1] <= _UNROLLED_ACTION else (a @ x.unsqueeze(-1)).squeeze(-1)


def transform_points(a: Tensor, x: Tensor) -> Tensor:
    """``a x`` for a ``[*batch, 1, m, n]`` and points x ``[*batch, p, n]``."""
    n = a.shape[-1]
    if n > _UNROLLED_ACTION:
        return x @ a.squeeze(-3).mT
    result = a[..., 0] * x[..., :1]
    for j in range(1, n):
        result = torch.addcmul(result, a[..., j], x[..., j : j + 1])
    return result


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
    if k == 2:
        half_trace, x, b, c = _split2(matrix)
        c0, c1, _, _ = stumpff(x * x + b * c)
        grow = half_trace.exp()
        c0, c1 = grow * c0, grow * c1
        return _stack([[c0 + c1 * x, c1 * b], [c1 * c, c0 - c1 * x]])
    if k <= _POLYNOMIAL:
        mean = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
        shifted = matrix - mean[..., None, None] * identity_like(matrix)
        powers, coefficients, _ = _polynomial_exp(shifted, with_phi1=False)
        return mean.exp()[..., None, None] * _combine(powers, coefficients)
    return torch.linalg.matrix_exp(matrix)


def exp_phi1(matrix: Tensor) -> tuple[Tensor, Tensor]:
    r"""The exponential and :math:`\varphi_1(A) = \int_0^1 e^{sA} ds` of ``[*batch, k, k]``."""
    k = matrix.shape[-1]
    if k == 1:
        return matrix.exp(), _phi1_scalar(matrix)
    if k == 2:
        return matrix_exp(matrix), _phi1_2x2(matrix)
    if k <= _POLYNOMIAL:
        powers, coefficients, phi = _polynomial_exp(matrix, with_phi1=True)
        return _combine(powers, coefficients), _combine(powers, phi)
    unit = identity_like(matrix).expand(matrix.shape)
    top = torch.cat([matrix, unit], -1)
    both = torch.linalg.matrix_exp(torch.cat([top, torch.zeros_like(top)], -2))
    return both[..., :k, :k], both[..., :k, k:]


def phi1_matrix(matrix: Tensor) -> Tensor:
    r""":math:`\varphi_1(A) = \sum_j A^j / (j + 1)!` of ``[*batch, k, k]``."""
    if matrix.shape[-1] == 2:
        return _phi1_2x2(matrix)
    return exp_phi1(matrix)[1]


def affine_exp(matrix: Tensor, vector: Tensor) -> Tensor:
    r"""The upper rows :math:`[e^A \mid \varphi_1(A) b]` of the exponential of ``[[A, b], [0, 0]]``.

    Args:
        matrix: A, ``[*batch, k, k]``.
        vector: b, ``[*batch, k]``.
    """
    k = matrix.shape[-1]
    if k <= _POLYNOMIAL:
        e, phi = exp_phi1(matrix)
        return torch.cat([e, matvec(phi, vector).unsqueeze(-1)], -1)
    top = torch.cat([matrix, vector.unsqueeze(-1)], -1)
    augmented = torch.cat([top, torch.zeros_like(top[..., :1, :])], -2)
    return torch.linalg.matrix_exp(augmented)[..., :k, :]


def stumpff_slopes(q: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives of c2 and c3 of `stumpff` at ``q``; ``c_k' = (c_(k+1) - k c_(k+2)) / 2``."""
    small = q.abs() < 1.0
    near, far = torch.where(small, q, 0.0), torch.where(small, 1.0, q)
    c4 = (c2 - 0.5) / far
    d2 = torch.where(small, polynomial(near, _C2_SLOPE), 0.5 * (c3 - 2.0 * c4))
    # c3' = (c4 - 3 c5) / 2 with c5 = (c3 - 1/6) / q
    d3 = torch.where(small, polynomial(near, _C3_SLOPE), 0.5 * (c4 - 3.0 * (c3 - 1.0 / 6.0) / far))
    return d2, d3


def _split2(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Half the trace, and the entries x, b, c of the trace-free part [[x, b], [c, -x]]."""
    (a, b), (c, d) = _rows(matrix)
    return 0.5 * (a + d), 0.5 * (a - d), b, c


def _phi1_scalar(x: Tensor) -> Tensor:
    """``expm1(x) / x``."""
    small = x.abs() < _PHI1_RADIUS
    far = torch.where(small, 1.0, x)
    return torch.where(small, polynomial(torch.where(small, x, 0.0), _PHI1_SERIES), torch.expm1(far) / far)


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
    a_near, b_near = torch.full_like(m, _PHI1_SERIES[-1]), torch.zeros_like(m)
    for coefficient in reversed(_PHI1_SERIES[:-1]):
        a_near, b_near = m_near * a_near + q_near * b_near + coefficient, m_near * b_near + a_near

    r = torch.where(apart, q, 1.0).sqrt()
    m_apart = torch.where(apart, m, 0.0)
    high, low = _phi1_scalar(m_apart + r), _phi1_scalar(m_apart - r)
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


def _combine(powers: Sequence[Tensor], coefficients: Sequence[Tensor]) -> Tensor:
    """``coefficients[0] I + sum_j coefficients[j] powers[j]``."""
    result = coefficients[1][..., None, None] * powers[1]
    for c, power in zip(coefficients[2:], powers[2:], strict=True):
        result = torch.addcmul(result, c[..., None, None], power)
    return result + torch.diag_embed(coefficients[0].unsqueeze(-1).expand(*result.shape[:-1]))


def _polynomial_exp(matrix: Tensor, with_phi1: bool) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    r"""exp and phi_1 of k x k matrices, k = 3 or 4, as polynomials of degree k - 1 in a scaled matrix.

    Taylor series, doubling (:math:`e^{2Z} = (e^Z)^2`, :math:`\varphi_1(2Z) = \tfrac12 (e^Z + I) \varphi_1(Z)`) and
    all products act on k scalars a matrix, in the ring of polynomials modulo the characteristic polynomial
    (Cayley-Hamilton). No eigenvalues, hence no trouble where they coincide.

    Returns:
        The powers ``[I, Z, Z^2, ...]`` of the matrix scaled to norm at most one (the first entry is not used), the
        coefficients of exp, and those of phi_1 (empty unless asked for).
    """
    k = matrix.shape[-1]
    norm = matrix.detach().square().sum((-2, -1)).sqrt()
    count = torch.log2(norm.nan_to_num(0.0, math.inf).clamp(1.0, 2.0**_MAX_DOUBLINGS)).ceil()
    powers = [matrix, matrix * torch.exp2(-count)[..., None, None]]
    for _ in range(k - 2):
        powers.append(matmul(powers[-1], powers[1]))
    relation = _characteristic(powers)

    terms = _TERMS[torch.float32 if matrix.dtype in (torch.float32, torch.bfloat16, torch.float16) else torch.float64]
    one = torch.ones_like(norm)
    zero = torch.zeros_like(norm)
    e = [one / math.factorial(terms)] + [zero] * (k - 1)
    phi = [one / math.factorial(terms + 1)] + [zero] * (k - 1) if with_phi1 else []
    for j in reversed(range(terms)):
        e = _times_x(e, relation)
        e[0] = e[0] + 1.0 / math.factorial(j)
        if with_phi1:
            phi = _times_x(phi, relation)
            phi[0] = phi[0] + 1.0 / math.factorial(j + 1)

    # In plain eager mode only as many doublings as some matrix of the batch needs; else, all of them, masked.
    fixed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or norm.is_meta
    doublings = _MAX_DOUBLINGS if fixed else (int(count.max()) if count.numel() else 0)
    for j in range(doublings):
        more = count > j
        if with_phi1:
            half = [0.5 * (e[0] + 1.0)] + [0.5 * c for c in e[1:]]
            phi = _select(more, _ring_product(half, phi, relation), phi)
        # The branch not taken must stay finite for the gradient of the one that is.
        safe = _select(more, e, [zero] * k)
        e = _select(more, _ring_product(safe, safe, relation), e)
    return powers, e, phi


def _characteristic(powers: Sequence[Tensor]) -> list[Tensor]:
    """The numbers c with ``Z^k = sum_j c[j] Z^j``, by Newton's identities from the traces of powers."""
    z = powers[1:]
    k = len(powers)
    traces = [m.diagonal(dim1=-2, dim2=-1).sum(-1) for m in z]
    traces.append((z[-1] * z[0].mT).sum((-2, -1)))
    elementary = [torch.ones_like(traces[0])]
    for i in range(1, k + 1):
        total = sum(((-1) ** (j - 1) * elementary[i - j] * traces[j - 1] for j in range(1, i + 1)), start=0.0)
        elementary.append(total / i)
    return [(-1) ** (k - j - 1) * elementary[k - j] for j in range(k)]


def _times_x(f: Sequence[Tensor], relation: Sequence[Tensor]) -> list[Tensor]:
    top = f[-1]
    return [top * relation[0]] + [torch.addcmul(f[j - 1], top, relation[j]) for j in range(1, len(f))]


def _ring_product(f: Sequence[Tensor], g: Sequence[Tensor], relation: Sequence[Tensor]) -> list[Tensor]:
    k = len(f)
    # Horner in x: (((f_{k-1} g) x + f_{k-2} g) x + ...)
    result = [f[-1] * c for c in g]
    for j in reversed(range(k - 1)):
        shifted = _times_x(result, relation)
        result = [torch.addcmul(s, f[j], c) for s, c in zip(shifted, g, strict=True)]
    return result


def _select(mask: Tensor, a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Tensor]:
    return [torch.where(mask, x, y) for x, y in zip(a, b, strict=True)]


# Logarithm ---------------------------------------------------------------------------------------------------


def matrix_log(matrix: Tensor) -> Tensor:
    """The principal real logarithm of ``[*batch, k, k]``; NaN where there is none.

    Closed form for 2 x 2. Beyond, inverse scaling and squaring (Higham 2008, chapter 11) without eigenvalues: square
    roots by the product form of the Denman-Beavers iteration, then a Pade approximant in partial fractions, in a
    fixed number of steps. The result counts only if its exponential is the matrix.
    """
    k = matrix.shape[-1]
    if k == 1:
        positive = matrix > 0
        return torch.where(positive, torch.where(positive, matrix, 1.0).log(), math.nan)
    return _log_2x2(matrix) if k == 2 else _log_iterative(matrix)


def _log_2x2(matrix: Tensor) -> Tensor:
    m, x, b, c = _split2(matrix)
    det = m * m - (x * x + b * c)
    (p, q), (r, s) = _rows(matrix)
    det = p * s - q * r
    good = det > 0
    scale = torch.where(good, det, 1.0).sqrt()
    m, x, b, c = m / scale, x / scale, b / scale, c / scale
    f = log_ratio(m, x * x + b * c)
    half = torch.where(good, scale.log(), math.nan)
    return _stack([[half + f * x, f * b], [f * c, half - f * x]])


def _log_iterative(matrix: Tensor) -> Tensor:
    k = matrix.shape[-1]
    eye = identity_like(matrix)
    # Scale to determinant one; a determinant of zero or below (for odd k) has no real logarithm.
    det = determinant(matrix)
    usable = torch.isfinite(matrix).all(-1).all(-1) & (det > 0)
    # Matrices without a logarithm are replaced at once, so that they cannot make gradients of others NaN.
    log_det = torch.where(usable, det, 1.0).log() / k
    target = torch.where(usable[..., None, None], matrix * (-log_det).exp()[..., None, None], eye)

    x = target
    doublings = torch.zeros_like(log_det)
    for steps in _ROOT_STEPS:
        large = (x.detach() - eye).square().sum((-2, -1)).sqrt() > _LOG_RADIUS
        mask = large[..., None, None]
        root = _square_root(torch.where(mask, x, eye), steps)
        x = torch.where(mask, root, x)
        doublings = doublings + large.to(x.dtype)
    log = torch.exp2(doublings)[..., None, None] * _log_near_identity(x - eye)

    # One correction, log A = L + log(exp(-L) A), in value only: its derivative vanishes at the solution.
    with torch.no_grad():
        value = log.detach()
        rest = torch.linalg.matrix_exp(-value.nan_to_num(0.0, 0.0, 0.0).clamp(-1e2, 1e2)) @ target.detach()
        residual = rest - eye
        correction = 2.0 * residual @ inverse(rest + eye)
        size = residual.square().sum((-2, -1)).sqrt()
        exact = torch.isfinite(value).all(-1).all(-1) & (size < torch.finfo(matrix.dtype).eps ** 0.5)
        exact = exact & torch.isfinite(correction).all(-1).all(-1) & usable
        correction = torch.where(exact[..., None, None], correction, 0.0)
    log = log + correction + log_det[..., None, None] * eye
    return torch.where(exact[..., None, None], log, math.nan)


def _square_root(a: Tensor, steps: int) -> Tensor:
    """The principal square root: X <- X (I + M^-1) / 2, M <- (I + (M + M^-1) / 2) / 2 from X = M = A."""
    eye = identity_like(a)
    x, m = a, a
    for _ in range(steps):
        inv = inverse(m)
        x = 0.5 * (x + x @ inv)
        m = 0.5 * eye + 0.25 * (m + inv)
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
