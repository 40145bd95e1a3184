"""The principal logarithm of matrices of any size."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivgeo._numerics import dense_exp, is_abstract
from trivgeo.groups._matrices.basic import identity_like
from trivgeo.groups._matrices.kernel import Kernel
from trivgeo.groups._roots import is_differentiated

__all__ = ["iterative_log"]

# Logarithm by inverse scaling and squaring: Newton steps for each square root where matrices cannot be looked at,
# enough for eigenvalues of moduli within a factor e^16 of each other at first, and for what is left of them later.
_ROOT_STEPS = (14, 9, 7, 6, 5, 5)
_MOST_ROOTS, _MOST_STEPS = 12, 28  # where they can be
_SETTLED = 1e-9  # of the norm; squared, and derivatives with it, by the step that was taken
_SHARE = 4  # one row in so many that has settled is reason to go on with the others alone
_STUCK = 1e-3  # of x y from the identity, after all steps
_NODES = 17  # the [17/17] Pade approximant of log((I + Z) / (I - Z)) reaches 1e-16 for norms of Z up to 0.6
_RADIUS = 0.6
_LOG_DEFECT = 1e-6  # of exp(-L / 2) A exp(-L / 2) from the identity
_SOUND = 1e-13  # of the same by repeated squaring: below, there is nothing to correct
_ROWS = 4096  # at once on the CPU: temporary results of more leave the cache


def iterative_log(matrix: Tensor, kernel: Kernel) -> Tensor:
    """The principal logarithm by inverse scaling and squaring (Higham 2008, chapter 11), without eigenvalues.

    Square roots by the Denman-Beavers iteration, then a Pade approximant in partial fractions. Where matrices can be
    looked at, each takes the steps that it needs, elsewhere all a fixed number. The result counts only if its
    exponential is the matrix.
    """
    double = matrix.double()  # the iteration loses digits with the condition number
    if is_abstract(double):
        return _log(double, kernel, unseen=True).to(matrix.dtype)
    rows = double.reshape(-1, *matrix.shape[-2:])
    parts = rows.split(_ROWS) if rows.device.type == "cpu" else [rows]
    logs = [_log(part, kernel, unseen=False) for part in parts]
    return (logs[0] if len(logs) == 1 else torch.cat(logs)).reshape(matrix.shape).to(matrix.dtype)


def _log(matrix: Tensor, kernel: Kernel, unseen: bool) -> Tensor:
    k = matrix.shape[-1]
    eye = identity_like(matrix)
    # Scale to determinant one; with a determinant of zero or below there is no real logarithm. Such matrices are
    # replaced at once, so that they cannot make gradients of others NaN.
    det = kernel.determinant(matrix)
    usable = torch.isfinite(matrix).all(-1).all(-1) & (det > 0)
    log_det = torch.where(usable, det, 1.0).log() / k
    target = torch.where(usable[..., None, None], matrix * (-log_det).exp()[..., None, None], eye)

    log, exact = (_log_by_fixed_steps if unseen else _log_row_by_row)(target, kernel)
    exact = exact & usable
    if not unseen and is_differentiated(matrix) and not bool(exact.all()):
        # once more without the others, whose iterates may have no finite derivatives
        rows = exact.nonzero().squeeze(-1)
        found = _log(matrix.index_select(0, rows), kernel, unseen)
        return torch.full_like(matrix, math.nan).index_put((rows,), found)
    return torch.where(exact[..., None, None], log + log_det[..., None, None] * eye, math.nan)


def _log_by_fixed_steps(target: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """The logarithm, and whether it is one; all matrices go through all steps, masked."""
    eye = identity_like(target)
    pair = torch.stack([target, kernel.inverse(target)], -3)
    doublings = torch.ones_like(target[..., 0, 0])
    for steps in _ROOT_STEPS:
        resolvent, near = _resolvent(pair, kernel)
        root = torch.where(near[..., None, None, None], eye, _second_iterate(pair, resolvent))
        for _ in range(steps - 2):
            root = _newton(root, kernel)
        pair = torch.where(near[..., None, None, None], pair, root)
        doublings = doublings + (~near).to(target.dtype)
    resolvent, _ = _resolvent(pair, kernel)
    log = torch.exp2(doublings)[..., None, None] * _artanh((pair[..., 0, :, :] - eye) @ resolvent, kernel)
    correction, exact = _log_correction(log.detach(), target.detach(), kernel)
    return log + torch.where(exact[..., None, None], correction, 0.0), exact


def _log_row_by_row(target: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """The same for ``[n, k, k]``; each matrix leaves as soon as it is done, or turns out to have no logarithm."""
    rows = torch.arange(target.shape[0], device=target.device)
    pair = torch.stack([target, kernel.inverse(target)], -3)
    logs, found, sound = [], [], []
    for roots in range(_MOST_ROOTS + 1):
        resolvent, near = _resolvent(pair, kernel)
        there, others = near.nonzero().squeeze(-1), (~near).nonzero().squeeze(-1)
        if len(there):
            goal = target.index_select(0, rows[there])
            log, exact = _finished(
                pair.index_select(0, there)[:, 0], resolvent.index_select(0, there), goal, roots, kernel
            )
            logs.append(log)
            sound.append(exact)
            found.append(rows[there])
        if not len(others):
            break
        start = _second_iterate(pair.index_select(0, others), resolvent.index_select(0, others))
        pair, converged = _square_root(start, kernel)
        rows = rows[others][converged]
        if not len(rows):
            break
    if not logs:
        return torch.zeros_like(target), torch.zeros_like(target[..., 0, 0], dtype=torch.bool)
    place = torch.cat(found)
    exact = torch.zeros(target.shape[0], dtype=torch.bool, device=target.device).index_put((place,), torch.cat(sound))
    return torch.zeros_like(target).index_put((place,), torch.cat(logs)), exact


def _resolvent(pair: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """``(X + I)^-1`` of pairs X, X^-1, and whether the Pade approximant of log X will do."""
    eye = identity_like(pair)
    resolvent = kernel.inverse(pair[..., 0, :, :] + eye)
    cayley = eye - 2.0 * resolvent.detach()
    return resolvent, _norm(cayley) <= _RADIUS


def _second_iterate(pair: Tensor, resolvent: Tensor) -> Tensor:
    """Two steps of `_newton` for the root of X, from X and I: the inverses after the first are multiples of these."""
    eye = identity_like(pair)
    return 0.25 * (pair + eye) + torch.stack([eye - resolvent, resolvent], -3)


def _newton(pair: Tensor, kernel: Kernel) -> Tensor:
    """One step to the principal square root and its inverse by Denman and Beavers (1976): most accurate of five tried.

    It doubles the distance of eigenvalues from the negative axis.
    """
    return 0.5 * (pair + kernel.inverse(pair).flip(-3))


def _square_root(pair: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """The limits of the iteration, of the rows that have one, and which rows these are.

    The last step of a row is one that changes it by less than the next one's round-off.
    """
    rows = torch.arange(pair.shape[0], device=pair.device)
    limits, order = [], []
    for _ in range(_MOST_STEPS):
        before, pair = pair.detach(), _newton(pair, kernel)
        change, size = _norm(pair.detach() - before), _norm(before)
        settled = (change <= _SETTLED * size).all(-1)
        count = int(settled.sum())
        if count == len(rows):
            break
        if _SHARE * count >= len(rows):
            done, others = settled.nonzero().squeeze(-1), (~settled).nonzero().squeeze(-1)
            limits.append(pair.index_select(0, done))
            order.append(rows[done])
            pair, rows = pair.index_select(0, others), rows[others]
    else:
        x, y = pair.detach().unbind(-3)
        good = (_norm(x @ y - identity_like(x)) < _STUCK).nonzero().squeeze(-1)
        pair, rows = pair.index_select(0, good), rows[good]
    if not limits:
        return pair, rows
    return torch.cat([*limits, pair]), torch.cat([*order, rows])


def _finished(x: Tensor, resolvent: Tensor, target: Tensor, roots: int, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """The logarithm of X^(2^roots), corrected where that is not the target to the last digits, and whether it is one.

    With the inverse squared, exp(-L / 2) is known without an exponential.
    """
    log = 2.0 ** (roots + 1) * _artanh((x - identity_like(x)) @ resolvent, kernel)
    exact = torch.ones_like(x[:, 0, 0], dtype=torch.bool)
    if not roots:
        return log, exact
    target = target.detach()
    half = kernel.inverse(x.detach())
    for _ in range(roots - 1):
        half = half @ half
    defect = _norm(half @ target @ half - identity_like(x))
    poor = (~(defect <= _SOUND)).nonzero().squeeze(-1)
    if not len(poor):
        return log, exact
    correction, found = _log_correction(log.detach()[poor], target[poor], kernel)
    correction = torch.zeros_like(target).index_put((poor,), correction)
    return log + correction, exact.index_put((poor,), found)


def _log_correction(log: Tensor, target: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """What ``log A = L + log(exp(-L / 2) A exp(-L / 2))`` adds to L, in value only, and whether L is a logarithm.

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
    correction = 2.0 * (ratio - eye) @ kernel.inverse(ratio + eye)
    _, after = remainder(log + correction)
    better = after < before
    correction = torch.where((finite & better)[..., None, None], correction, 0.0)
    return correction, finite & (torch.where(better, after, before) < _LOG_DEFECT)


def _artanh(z: Tensor, kernel: Kernel) -> Tensor:
    """``artanh Z = Z sum_i w_i (I - t_i^2 Z^2)^-1`` at Gauss-Legendre nodes on [-1, 1], those +-t_i at once.

    Half of ``log((I + Z) (I - Z)^-1)`` by its diagonal Pade approximant.
    """
    squares, weights = (z.new_tensor(x)[:, None, None] for x in _PAIRED)
    inverses = kernel.inverse(identity_like(z) - squares * (z @ z).unsqueeze(-3))
    return z @ (_MIDDLE * identity_like(z) + (weights * inverses).sum(-3))


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


_RULE = _gauss_legendre(_NODES)
_PAIRED = tuple(zip(*(((2.0 * t - 1.0) ** 2, 2.0 * w) for t, w in _RULE[: _NODES // 2]), strict=True))
_MIDDLE = _RULE[_NODES // 2][1]  # at zero
