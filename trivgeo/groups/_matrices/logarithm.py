"""The principal logarithm of matrices of any size."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivgeo._numerics import dense_exp
from trivgeo.groups._matrices.basic import identity_like
from trivgeo.groups._matrices.kernel import Kernel
from trivgeo.groups._matrices.series import is_unseen

__all__ = ["iterative_log"]

# Logarithm by inverse scaling and squaring: Newton steps for each square root, enough for eigenvalues of moduli
# within a factor e^16 of each other at first, and for what the square roots before have left later.
_ROOT_STEPS = (14, 9, 7, 6, 5, 5, 4, 4)
_UNCONVERGED, _MORE_STEPS = 1e-12, 14
_SETTLED = 1e-9  # of the largest entry; squared, and derivatives with it, by the step that was taken
_LOG_RADIUS = 0.25
_LOG_DEFECT = 1e-6  # of exp(-L / 2) A exp(-L / 2) from the identity
_GAUSS_POINTS = 7  # the [7/7] Pade approximant of log(I + X) reaches 1e-16 for norms up to 0.26 (Higham 2008)


def iterative_log(matrix: Tensor, kernel: Kernel) -> Tensor:
    """The principal logarithm by inverse scaling and squaring (Higham 2008, chapter 11), without eigenvalues.

    Square roots by the Denman-Beavers iteration, then a Pade approximant in partial fractions, in a fixed number of
    steps. The result counts only if its exponential is the matrix.
    """
    single = matrix.dtype
    matrix = matrix.double()  # the iteration loses digits with the condition number
    k = matrix.shape[-1]
    eye = identity_like(matrix)
    # Scale to determinant one; with a determinant of zero or below there is no real logarithm. Such matrices are
    # replaced at once, so that they cannot make gradients of others NaN.
    det = kernel.determinant(matrix)
    usable = torch.isfinite(matrix).all(-1).all(-1) & (det > 0)
    log_det = torch.where(usable, det, 1.0).log() / k
    target = torch.where(usable[..., None, None], matrix * (-log_det).exp()[..., None, None], eye)

    x = target
    doublings = torch.zeros_like(log_det)
    for index, steps in enumerate(_ROOT_STEPS):
        large = (x.detach() - eye).square().sum((-2, -1)).sqrt() > _LOG_RADIUS
        if not is_unseen(x) and not bool(large.any()):
            break
        mask = large[..., None, None]
        x = torch.where(mask, _square_root(torch.where(mask, x, eye), steps, kernel, more=index == 0), x)
        doublings = doublings + large.to(x.dtype)
    log = torch.exp2(doublings)[..., None, None] * _log_near_identity(x - eye, kernel)

    correction, exact = _log_correction(log.detach(), target.detach(), kernel)
    exact = (exact & usable)[..., None, None]
    log = log + torch.where(exact, correction, 0.0) + log_det[..., None, None] * eye
    return torch.where(exact, log, math.nan).to(single)


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
        return ratio, (ratio - eye).square().sum((-2, -1)).sqrt()

    ratio, before = remainder(log)
    correction = 2.0 * (ratio - eye) @ kernel.inverse(ratio + eye)
    _, after = remainder(log + correction)
    better = after < before
    correction = torch.where((finite & better)[..., None, None], correction, 0.0)
    return correction, finite & (torch.where(better, after, before) < _LOG_DEFECT)


def _square_root(a: Tensor, steps: int, kernel: Kernel, more: bool) -> Tensor:
    """The principal square root by the iteration of Denman and Beavers (1976): the most accurate of five tried.

    Each step doubles the distance of eigenvalues from the negative axis. Where matrices can be looked at, the last step
    is the first that changes none of them by more than the next one's round-off, and with ``more`` those that have not
    converged get more steps.
    """
    unseen = is_unseen(a)
    x, y = a, identity_like(a).expand(a.shape)
    for _ in range(steps):
        before, size = x.detach(), _SETTLED * x.detach().abs().amax((-2, -1), keepdim=True)
        x, y = 0.5 * (x + kernel.inverse(y)), 0.5 * (y + kernel.inverse(x))
        if not unseen and not bool(((x.detach() - before).abs() > size).any()):
            break
    if not more or unseen:
        return x
    seen = x.detach()
    missed = (seen @ seen - a.detach()).square().sum((-2, -1)).sqrt()
    slow = (missed > _UNCONVERGED * a.detach().square().sum((-2, -1)).sqrt())[..., None, None]
    if not bool(slow.any()):
        return x
    further, y = torch.where(slow, x, identity_like(a)), torch.where(slow, y, identity_like(a))
    for _ in range(_MORE_STEPS):
        further, y = 0.5 * (further + kernel.inverse(y)), 0.5 * (y + kernel.inverse(further))
    return torch.where(slow, further, x)


def _log_near_identity(x: Tensor, kernel: Kernel) -> Tensor:
    """``log(I + X) = sum_i w_i X (I + t_i X)^-1`` at Gauss-Legendre nodes: the diagonal Pade approximant."""
    eye = identity_like(x)
    result = torch.zeros_like(x)
    for node, weight in _gauss_legendre(_GAUSS_POINTS):
        result = result + weight * (x @ kernel.inverse(eye + node * x))
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
