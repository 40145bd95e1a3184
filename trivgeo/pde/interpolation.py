"""Interpolation in time of periodic solutions whose equation is known."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.errors import DomainError, ShapeError
from trivgeo.pde.spectral import FourierModes, SpectralEquation

__all__ = ["interpolate_solution"]


def interpolate_solution(
    equation: SpectralEquation,
    values: Float[Tensor, "b c s ..."],
    steps: Float[Tensor, "b d d"],
    nodes: Sequence[float],
    times: Float[Tensor, "b q"],
) -> Float[Tensor, "b c q ..."]:
    r"""A solution between the times at which it is known, by its equation :math:`u_t = L u + N(u)`.

    Between two nodes a time H apart :math:`\hat u(t) = e^{(t - t_0) L} \hat u_0 + c(t)`, with the rest c the cubic
    that has the values 0 and :math:`\hat u_1 - e^{H L} \hat u_0`, and the slopes of the equation, at both ends; it is
    taken in the frame in which waves that L disperses are at rest. Linear equations so come out exactly, others with an
    error of order 4 in H, and of order 2 in the distance from a node where the nodes are off the solution by something
    else. Waves that products alias have no slopes of N. Values of a slope that are not finite count as zero.

    Args:
        equation: the equation, whose coefficients depend on neither place nor time.
        values: at the nodes, periodic, on one grid at all times.
        steps: of the grids, see `trivgeo.actions.Grid`.
        nodes: increasing times, at least two.
        times: where the solution is wanted; beyond the last node the last piece goes on.

    Raises:
        ShapeError: fewer than two nodes, or not as many as the values have times.
        DomainError: the nodes do not increase.
    """
    if len(nodes) < 2 or values.shape[2] != len(nodes):
        raise ShapeError(f"nodes: expected at least two, one for each of {values.shape[2]} times, got {list(nodes)}")
    if list(nodes) != sorted(set(nodes)):
        raise DomainError(f"nodes: expected increasing times, got {list(nodes)}")
    modes = FourierModes.of(steps.unsqueeze(1), values.shape[3:])
    dims = len(modes.counts)
    state = modes.to_modes(values.movedim(2, 1))  # [b, s, c, *m]
    linear = equation.linear(modes)
    rest = equation.nonlinear(modes, state)
    slope = torch.zeros_like(state) if rest is None else rest * modes.kept
    slope = torch.where(torch.isfinite(torch.view_as_real(slope)).all(-1), slope, 0.0)
    kept = torch.ones_like(modes.kept) if rest is None else modes.kept

    known = torch.as_tensor(nodes, dtype=times.dtype, device=times.device)
    first = (torch.searchsorted(known, times.contiguous(), right=True) - 1).clamp(0, len(nodes) - 2)
    left, right = (x[..., *[None] * (dims + 1)] for x in (known[first], known[first + 1]))
    at, length = times[..., *[None] * (dims + 1)] - left, right - left

    def taken(x: Tensor, index: Tensor) -> Tensor:
        return torch.take_along_dim(x, index[..., *[None] * (dims + 1)], 1)

    decay = linear.real if linear.is_complex() else linear
    waves = 1j * linear.imag if linear.is_complex() else torch.zeros_like(state[:, :1])
    start = taken(state, first)
    off = taken(state, first + 1) - torch.exp(length * linear) * start
    arriving = decay * kept * off + taken(slope, first + 1)
    s = at / length
    total = torch.exp(at * linear) * start
    total = total + torch.exp(at * waves) * (s * (1 - s) ** 2 * length) * taken(slope, first)
    ahead = s**2 * (3 - 2 * s) * off + s**2 * (s - 1) * length * arriving
    total = total + torch.exp((at - length) * waves) * ahead
    return modes.to_values(total).movedim(1, 2)
