"""Levenberg and Marquardt's descent of sums of squares."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.checks import check_count, check_positive, checked
from trivgeo.inversion.curvature import safe_cholesky
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.rows import where_rows
from trivgeo.inversion.stage import Population, Stage

_DAMPING_BOUNDS = (1e-9, 1e9)  # bounds of the damping, in units of the diagonal of the curvature


@checked
class LevenbergMarquardt(Stage):
    r"""Descends to the minimum of a sum of squares in a few steps, each chain independently.

    .. math:: g \leftarrow g \exp(-(H + \lambda D)^{-1} \nabla E), \quad H = J^T W J

    with J the Jacobian of the residuals by v in :math:`g \exp v`, W the derivative of the loss (Gauss and Newton's
    curvature; reweighted where the loss is robust) and D the diagonal of H (Marquardt 1963). The gradient is that of
    the whole posterior energy. A step that does not lower the energy is taken back and :math:`\lambda` raised, so that
    no chain ends higher than it began; a chain whose energy or gradient is not finite stays, and the step counts as
    masked. Each step evaluates the energy, its gradient, and the residuals with their Jacobian, in dim directions at
    once.

    Args:
        steps: number of steps of each chain.
        damping: :math:`\lambda` of the first step; divided by ten after a step that was taken, else multiplied by ten.

    Raises:
        ConfigurationError: a setting out of its range; or (when run) the energy is no `LeastSquares`.

    Example:
        >>> residuals = LeastSquares(NearestPoints(torch.eye(3)))  # to the nearest of three points
        >>> inverter = Inverter(PointCloud(SE(3)), residuals, [LevenbergMarquardt(20)])
        >>> inverter(torch.eye(3)[None]).best().shape
        torch.Size([1, 3, 4])
    """

    def __init__(self, steps: int = 20, damping: float = 1e-3) -> None:
        self.steps = check_count("steps", steps)
        self.damping = check_positive("damping", damping)

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        group = posterior.group
        start = population.evaluated(posterior)
        g, energy = start.elements, start.energies
        zero = g.new_zeros(*g.shape[:2], group.dim)
        damping = g.new_full(g.shape[:2], self.damping)
        masked = torch.zeros_like(population.num_masked_steps)
        for _ in range(self.steps):
            gradient, _ = posterior.gradient(lambda v, g=g: group.perturb(g, v), zero)  # type: ignore[misc]
            v, usable = _damped_step(posterior.curvature(g), gradient, damping)
            moved = group.retract(g, v)
            usable = usable & torch.isfinite(energy) & torch.isfinite(moved).flatten(2).all(-1)
            moved = where_rows(usable, moved, g)
            reached = posterior.energies(moved)
            lower = usable & (reached < energy)
            g, energy = where_rows(lower, moved, g), torch.where(lower, reached, energy)
            damping = (damping * torch.where(lower, 0.1, 10.0)).clamp(*_DAMPING_BOUNDS)
            masked = masked + (~usable).long()
            posterior.step()
            if posterior.is_late():
                break
        return population.moved(g, energy, masked)


def _damped_step(
    curvature: Float[Tensor, "b k n n"], gradient: Float[Tensor, "b k n"], damping: Float[Tensor, "b k"]
) -> tuple[Float[Tensor, "b k n"], Tensor]:
    """Return damped Gauss-Newton steps, zero where the system is not positive definite, and the mask of finite ones."""
    finite = torch.isfinite(gradient).all(-1) & torch.isfinite(curvature).all((-2, -1))
    diagonal = curvature.diagonal(dim1=-2, dim2=-1)
    # directions in which nothing changes keep a little of the curvature of the others
    least = diagonal.amax(-1, keepdim=True) * torch.finfo(gradient.dtype).eps
    diagonal = torch.maximum(diagonal, least + torch.finfo(gradient.dtype).tiny)
    factor, good = safe_cholesky(curvature + torch.diag_embed(damping.unsqueeze(-1) * diagonal))
    v = -torch.cholesky_solve(torch.where(finite.unsqueeze(-1), gradient, 0.0).unsqueeze(-1), factor).squeeze(-1)
    return torch.where((good & finite).unsqueeze(-1), v, 0.0), finite
