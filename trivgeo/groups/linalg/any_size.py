r"""Matrices of size 4 and beyond, and algorithms for all sizes: exponentials by series, logarithms by square roots.

Determinants and inverses are the library's. The exponential of sizes 3 to 6 is a polynomial in the matrix, whose
coefficients are scalars (`polynomial_exp`); larger ones are the library's, and :math:`\varphi_1` a series
(`series_exp_phi1`). The logarithm, for sizes 3 and above, is Newton's iteration for square roots followed by a Pade
approximant (`iterative_log`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import Tensor

from trivgeo._numerics import augmented_exp, dense_exp, is_abstract, is_traced
from trivgeo.groups.linalg.base import MatrixFunctions
from trivgeo.groups.linalg.components import entry_rows, from_rows, identity_like, is_small_batch, product
from trivgeo.groups.linalg.spectral_exp import is_differentiated

_MAX_DOUBLINGS = 40
_NUM_FIXED_DOUBLINGS = 10  # doublings of every matrix where values cannot be looked at
_POLYNOMIAL_RADIUS = 2.0  # norm of the matrix whose Taylor series is summed: 2^15 / 15! = 3e-8, 2^25 / 25! = 2e-18
_SINGLE_TERMS, _DOUBLE_TERMS = 14, 24  # terms of that series in single and in double precision
PHI1_SERIES = tuple(1.0 / math.factorial(k + 1) for k in range(20))  # for norms up to one
_MAX_POLYNOMIAL_SIZE, _SMALL_BATCH_OF_POLYNOMIALS = 6, 1500  # size and batch, measured against the library's routine

# Newton steps for each square root where values cannot be looked at: enough for eigenvalues of moduli within a factor
# e^16 of each other at first, and for their smaller ratios after each root.
_FIXED_ROOT_STEPS = (14, 9, 7, 6, 5, 5)
_MAX_ROOTS, _MAX_ROOT_STEPS = 12, 28  # square roots, and Newton steps of each, where values can be looked at
_CONVERGED_STEP = 1e-9  # relative step at which Newton's iteration has converged (quadratically, derivatives included)
_COMPACTION_FACTOR = 4  # rows over converged rows, at which converged ones are dropped
_MAX_ROOT_DEFECT = 1e-3  # norm of X Y - I above which the iteration for X and its inverse Y has failed
_PADE_NODES, _PADE_RADIUS = 17, 0.6  # [17/17] of log((I + Z) / (I - Z)) reaches 1e-16 for norms of Z up to 0.6
_MAX_LOG_DEFECT = 1e-6  # norm of exp(-L / 2) A exp(-L / 2) - I above which L is no logarithm of A
_EXACT_LOG_DEFECT = 1e-13  # that norm, with exp(-L / 2) by repeated squaring, below which L needs no correction
_MAX_CPU_ROWS = 4096  # matrices at once on the CPU: temporary results of more leave the cache


def shifted_exp(matrix: Tensor) -> Tensor:
    """The exponential of ``[*batch, k, k]``, k = 3 to 6, computed without the mean of the diagonal, a scalar factor."""
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
        with_phi1: whether phi_1 is returned.
        shift: numbers ``[*batch]``, of which multiples of I are added to the matrix. The exponential is multiplied by
            theirs before the doubling, where neither has overflown.
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
    """Real and imaginary part of exp(i H) for Hermitian H, from its symmetric real and skew imaginary part.

    As in `polynomial_exp`; the characteristic polynomial of H is real.
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
    """The degree of the series at norm `_POLYNOMIAL_RADIUS`."""
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
    """``sum_j f[j] Z^j`` over j > 0."""
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
    """Number of halvings that bring the norm of each matrix to at most ``radius``; NaN above `_MAX_DOUBLINGS`."""
    limit = 2.0 ** (_NUM_FIXED_DOUBLINGS if is_abstract(matrix) else _MAX_DOUBLINGS)
    norm = matrix.detach().square().sum((-2, -1)).sqrt() / radius
    return torch.where(norm <= limit, torch.log2(norm.clamp(1.0, limit)).ceil(), math.nan)


def _double(e: Tensor, phi: Tensor | None, count: Tensor) -> tuple[Tensor, Tensor | None]:
    r""":math:`e^{2Z} = (e^Z)^2` and :math:`\varphi_1(2Z) = \tfrac12 (e^Z + I) \varphi_1(Z)`, each matrix its count."""
    for more in _rounds(count):
        # the branch not taken must stay finite, for the gradient of the other
        safe = torch.where(more, e, 0.0)
        if phi is not None:
            phi = torch.where(more, 0.5 * (phi + product(safe, phi)), phi)
        e = torch.where(more, product(safe, safe), e)
    return e, phi


def _rounds(count: Tensor) -> Iterator[Tensor]:
    """Masks ``[*batch, 1, 1]`` of matrices to square, until each is squared as often as it was halved.

    The number of rounds is the largest count of the batch, or fixed where values cannot be looked at.
    """
    fixed = is_abstract(count)
    rounds = _NUM_FIXED_DOUBLINGS if fixed else (int(count.nan_to_num(0.0).max()) if count.numel() else 0)
    for j in range(rounds):
        yield (count > j)[..., None, None]


def iterative_log(matrix: Tensor, functions: MatrixFunctions) -> Tensor:
    """The principal logarithm by inverse scaling and squaring (Higham 2008, chapter 11), without eigenvalues.

    Square roots by the Denman-Beavers iteration are followed by a Pade approximant in partial fractions. Each matrix
    takes the steps that it needs, or a fixed number where values cannot be looked at. The result counts only if its
    exponential is the matrix.
    """
    double = matrix.double()  # the iteration loses digits with the condition number
    if is_abstract(double):
        return _log(double, functions, unseen=True).to(matrix.dtype)
    rows = double.reshape(-1, *matrix.shape[-2:])
    parts = rows.split(_MAX_CPU_ROWS) if rows.device.type == "cpu" else [rows]
    logs = [_log(part, functions, unseen=False) for part in parts]
    return (logs[0] if len(logs) == 1 else torch.cat(logs)).reshape(matrix.shape).to(matrix.dtype)


def _log(matrix: Tensor, functions: MatrixFunctions, unseen: bool) -> Tensor:
    k = matrix.shape[-1]
    eye = identity_like(matrix)
    # Scale to determinant one; with a determinant of zero or below there is no real logarithm. Such matrices are
    # replaced at once, so that they cannot make gradients of others NaN.
    det = functions.determinant(matrix)
    usable = torch.isfinite(matrix).all(-1).all(-1) & (det > 0)
    log_det = torch.where(usable, det, 1.0).log() / k
    target = torch.where(usable[..., None, None], matrix * (-log_det).exp()[..., None, None], eye)

    log, exact = (_log_by_fixed_steps if unseen else _log_row_by_row)(target, functions)
    exact = exact & usable
    if not unseen and is_differentiated(matrix) and not bool(exact.all()):
        # once more without failed matrices, whose iterates may have no finite derivatives
        rows = exact.nonzero().squeeze(-1)
        found = _log(matrix.index_select(0, rows), functions, unseen)
        return torch.full_like(matrix, math.nan).index_put((rows,), found)
    return torch.where(exact[..., None, None], log + log_det[..., None, None] * eye, math.nan)


def _log_by_fixed_steps(target: Tensor, functions: MatrixFunctions) -> tuple[Tensor, Tensor]:
    """Logarithms by the same masked steps for all matrices, and a mask of those that have one."""
    eye = identity_like(target)
    pair = torch.stack([target, functions.inverse(target)], -3)
    doublings = torch.ones_like(target[..., 0, 0])
    for steps in _FIXED_ROOT_STEPS:
        resolvent, near = _resolvent(pair, functions)
        root = torch.where(near[..., None, None, None], eye, _second_iterate(pair, resolvent))
        for _ in range(steps - 2):
            root = _newton(root, functions)
        pair = torch.where(near[..., None, None, None], pair, root)
        doublings = doublings + (~near).to(target.dtype)
    resolvent, _ = _resolvent(pair, functions)
    log = torch.exp2(doublings)[..., None, None] * _artanh((pair[..., 0, :, :] - eye) @ resolvent, functions)
    correction, exact = _log_correction(log.detach(), target.detach(), functions)
    return log + torch.where(exact[..., None, None], correction, 0.0), exact


def _log_row_by_row(target: Tensor, functions: MatrixFunctions) -> tuple[Tensor, Tensor]:
    """Logarithms of ``[n, k, k]``, where a matrix leaves once it is done or has no logarithm, and their mask."""
    rows = torch.arange(target.shape[0], device=target.device)
    pair = torch.stack([target, functions.inverse(target)], -3)
    logs, found, sound = [], [], []
    for roots in range(_MAX_ROOTS + 1):
        resolvent, near = _resolvent(pair, functions)
        there, others = near.nonzero().squeeze(-1), (~near).nonzero().squeeze(-1)
        if len(there):
            goal = target.index_select(0, rows[there])
            log, exact = _finished(
                pair.index_select(0, there)[:, 0], resolvent.index_select(0, there), goal, roots, functions
            )
            logs.append(log)
            sound.append(exact)
            found.append(rows[there])
        if not len(others):
            break
        start = _second_iterate(pair.index_select(0, others), resolvent.index_select(0, others))
        pair, converged = _square_root(start, functions)
        rows = rows[others][converged]
        if not len(rows):
            break
    if not logs:
        return torch.zeros_like(target), torch.zeros_like(target[..., 0, 0], dtype=torch.bool)
    place = torch.cat(found)
    exact = torch.zeros(target.shape[0], dtype=torch.bool, device=target.device).index_put((place,), torch.cat(sound))
    return torch.zeros_like(target).index_put((place,), torch.cat(logs)), exact


def _resolvent(pair: Tensor, functions: MatrixFunctions) -> tuple[Tensor, Tensor]:
    """``(X + I)^-1`` of pairs X, X^-1, and whether the Pade approximant of log X is exact enough."""
    eye = identity_like(pair)
    resolvent = functions.inverse(pair[..., 0, :, :] + eye)
    cayley = eye - 2.0 * resolvent.detach()
    return resolvent, _norm(cayley) <= _PADE_RADIUS


def _second_iterate(pair: Tensor, resolvent: Tensor) -> Tensor:
    """The second iterate of `_newton` from X and I: the first has the inverses 2 (X + I)^-1 and 2 X (X + I)^-1."""
    eye = identity_like(pair)
    return 0.25 * (pair + eye) + torch.stack([eye - resolvent, resolvent], -3)


def _newton(pair: Tensor, functions: MatrixFunctions) -> Tensor:
    """One step to the principal square root and its inverse by Denman and Beavers (1976): most accurate of five tried.

    It doubles the distance of eigenvalues from the negative axis.
    """
    return 0.5 * (pair + functions.inverse(pair).flip(-3))


def _square_root(pair: Tensor, functions: MatrixFunctions) -> tuple[Tensor, Tensor]:
    """Limits of the iteration for the rows that have one, and the indices of these rows.

    A row takes its last step when that changes it by less than the round-off of the next.
    """
    rows = torch.arange(pair.shape[0], device=pair.device)
    limits, order = [], []
    for _ in range(_MAX_ROOT_STEPS):
        before, pair = pair.detach(), _newton(pair, functions)
        change, size = _norm(pair.detach() - before), _norm(before)
        converged = (change <= _CONVERGED_STEP * size).all(-1)
        num_converged = int(converged.sum())
        if num_converged == len(rows):
            break
        if _COMPACTION_FACTOR * num_converged >= len(rows):
            done, others = converged.nonzero().squeeze(-1), (~converged).nonzero().squeeze(-1)
            limits.append(pair.index_select(0, done))
            order.append(rows[done])
            pair, rows = pair.index_select(0, others), rows[others]
    else:
        x, y = pair.detach().unbind(-3)
        good = (_norm(x @ y - identity_like(x)) < _MAX_ROOT_DEFECT).nonzero().squeeze(-1)
        pair, rows = pair.index_select(0, good), rows[good]
    if not limits:
        return pair, rows
    return torch.cat([*limits, pair]), torch.cat([*order, rows])


def _finished(
    x: Tensor, resolvent: Tensor, target: Tensor, roots: int, functions: MatrixFunctions
) -> tuple[Tensor, Tensor]:
    """The logarithm of X^(2^roots), corrected where it is not exact to the last digits, and a mask of logarithms.

    The inverse, squared repeatedly, gives exp(-L / 2) without an exponential.
    """
    log = 2.0 ** (roots + 1) * _artanh((x - identity_like(x)) @ resolvent, functions)
    exact = torch.ones_like(x[:, 0, 0], dtype=torch.bool)
    if not roots:
        return log, exact
    target = target.detach()
    half = functions.inverse(x.detach())
    for _ in range(roots - 1):
        half = half @ half
    defect = _norm(half @ target @ half - identity_like(x))
    poor = (~(defect <= _EXACT_LOG_DEFECT)).nonzero().squeeze(-1)
    if not len(poor):
        return log, exact
    correction, found = _log_correction(log.detach()[poor], target[poor], functions)
    correction = torch.zeros_like(target).index_put((poor,), correction)
    return log + correction, exact.index_put((poor,), found)


def _log_correction(log: Tensor, target: Tensor, functions: MatrixFunctions) -> tuple[Tensor, Tensor]:
    """The correction in ``log A = L + log(exp(-L / 2) A exp(-L / 2))``, in value only, and whether L is a logarithm.

    The split exponential keeps errors that do not commute with L from being enlarged by e^(spread of eigenvalues).
    """
    eye = identity_like(log)
    finite = torch.isfinite(log).all(-1).all(-1)
    log = torch.where(finite[..., None, None], log, 0.0)

    def remainder(value: Tensor) -> tuple[Tensor, Tensor]:
        half = dense_exp(-0.5 * value)
        ratio = half @ target @ half
        return ratio, _norm(ratio - eye)

    ratio, before = remainder(log)
    correction = 2.0 * (ratio - eye) @ functions.inverse(ratio + eye)
    _, after = remainder(log + correction)
    better = after < before
    correction = torch.where((finite & better)[..., None, None], correction, 0.0)
    return correction, finite & (torch.where(better, after, before) < _MAX_LOG_DEFECT)


def _artanh(z: Tensor, functions: MatrixFunctions) -> Tensor:
    """``artanh Z = Z sum_i w_i (I - t_i^2 Z^2)^-1`` at Gauss-Legendre nodes on [-1, 1], pairs +-t_i at once.

    Half of ``log((I + Z) (I - Z)^-1)`` by its diagonal Pade approximant.
    """
    squares, weights = (z.new_tensor(x)[:, None, None] for x in _PAIRED_NODES)
    inverses = functions.inverse(identity_like(z) - squares * (z @ z).unsqueeze(-3))
    return z @ (_MIDDLE_WEIGHT * identity_like(z) + (weights * inverses).sum(-3))


def _norm(matrix: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrix, dim=(-2, -1))


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


_QUADRATURE_RULE = _gauss_legendre(_PADE_NODES)
_PAIRED_NODES = tuple(
    zip(*(((2.0 * t - 1.0) ** 2, 2.0 * w) for t, w in _QUADRATURE_RULE[: _PADE_NODES // 2]), strict=True)
)
_MIDDLE_WEIGHT = _QUADRATURE_RULE[_PADE_NODES // 2][1]  # weight of the node at zero


class PolynomialMatrixFunctions(MatrixFunctions):
    """Sizes 3 and 4: exponentials as polynomials of the matrix, logarithms by square roots."""

    def exp(self, matrix: Tensor) -> Tensor:
        return dense_exp(matrix) if is_small_batch(matrix) else shifted_exp(matrix)

    def exp_phi1(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        e, phi = polynomial_exp(matrix, with_phi1=True)
        assert phi is not None
        return e, phi

    def log(self, matrix: Tensor) -> Tensor:
        return iterative_log(matrix, self)


@final
class FourByFour(PolynomialMatrixFunctions):
    """Functions of 4 x 4 matrices."""

    def determinant(self, matrix: Tensor) -> Tensor:
        """The determinant by `lu_determinant`, and in compiled code by minors."""
        return _minors_determinant(matrix) if is_traced() else lu_determinant(matrix)

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        """The inverse by `torch.linalg.inv_ex`, and in compiled code by the same elimination, written out."""
        return _eliminated(matrix) if is_traced() else torch.linalg.inv_ex(matrix)[0]


@final
class AnySize(MatrixFunctions):
    """Functions of matrices of more than four rows."""

    def determinant(self, matrix: Tensor) -> Tensor:
        return lu_determinant(matrix)

    def inverse(self, matrix: Tensor, unimodular: bool = False) -> Tensor:
        return torch.linalg.inv_ex(matrix)[0]

    def exp(self, matrix: Tensor) -> Tensor:
        """The exponential: for large batches up to size 6 a polynomial, else `torch.linalg.matrix_exp`."""
        if matrix.shape[-1] > _MAX_POLYNOMIAL_SIZE or is_small_batch(matrix, _SMALL_BATCH_OF_POLYNOMIALS):
            return dense_exp(matrix)
        return shifted_exp(matrix)

    def exp_phi1(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        return series_exp_phi1(matrix)

    def affine_exp(self, matrix: Tensor, vector: Tensor) -> Tensor:
        return augmented_exp(matrix, vector)

    def log(self, matrix: Tensor) -> Tensor:
        return iterative_log(matrix, self)


def lu_determinant(matrix: Tensor) -> Tensor:
    """The determinant from an LU decomposition."""
    k = matrix.shape[-1]
    lu, pivots, _ = torch.linalg.lu_factor_ex(matrix)
    swaps = (pivots != torch.arange(1, k + 1, device=pivots.device, dtype=pivots.dtype)).sum(-1)
    return lu.diagonal(dim1=-2, dim2=-1).prod(-1) * (1 - 2 * (swaps % 2)).to(matrix.dtype)


def _minors_determinant(matrix: Tensor) -> Tensor:
    """The determinant of 4 x 4 matrices by the minors of their upper and their lower rows (Laplace)."""
    r0, r1, r2, r3 = entry_rows(matrix)
    total = torch.zeros_like(r0[0])
    for i, j, k, m in ((0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 1, 2), (1, 2, 0, 3), (1, 3, 2, 0), (2, 3, 0, 1)):
        total = total + (r0[i] * r1[j] - r0[j] * r1[i]) * (r2[k] * r3[m] - r2[m] * r3[k])
    return total


def _eliminated(matrix: Tensor) -> Tensor:
    """The inverse by Gauss and Jordan's elimination with partial pivoting, entry by entry."""
    k = matrix.shape[-1]
    entries = entry_rows(matrix)
    zero, one = torch.zeros_like(entries[0][0]), torch.ones_like(entries[0][0])
    rows = [[*row, *(one if i == j else zero for j in range(k))] for i, row in enumerate(entries)]
    for p in range(k):
        for i in range(p + 1, k):  # the row of the largest entry moves up
            swap = rows[i][p].detach().abs() > rows[p][p].detach().abs()
            pairs = [(torch.where(swap, b, a), torch.where(swap, a, b)) for a, b in zip(rows[p], rows[i], strict=True)]
            rows[p], rows[i] = ([pair[side] for pair in pairs] for side in (0, 1))
        inverse = 1.0 / rows[p][p]
        rows[p] = [inverse * x for x in rows[p]]
        for i in range(k):
            if i != p:
                factor = rows[i][p]
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[p], strict=True)]
    return from_rows([row[k:] for row in rows])
