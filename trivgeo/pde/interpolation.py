"""Interpolation in time of periodic solutions whose equation is known, and what contradicts it between two times."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.errors import DomainError, ShapeError
from trivgeo.pde.spectral import FourierModes, SpectralEquation

__all__ = ["interpolate_solution", "interpolation_error", "resolved_residual"]

_RESIDUAL_SHARES = (0.25, 0.75)  # shares of a piece at which residuals are taken; in the middle of a piece they vanish


def interpolate_solution(
    equation: SpectralEquation,
    values: Float[Tensor, "b c s ..."],
    steps: Float[Tensor, "b d d"],
    nodes: Sequence[float],
    times: Float[Tensor, "b q"],
) -> Float[Tensor, "b c q ..."]:
    r"""A solution between the times at which it is known, by its equation :math:`u_t = L u + N(u)`.

    Between two nodes a time H apart :math:`\hat u(t) = e^{(t - t_0) L} \hat u_0 + c(t)`. The rest c is a cubic in the
    frame in which waves that L disperses are at rest, with the values 0 and :math:`\hat u_1 - e^{H L} \hat u_0` and the
    slopes of the equation at the ends. Linear equations are interpolated exactly, others with an error of order 4 in H,
    and of order 2 in the distance from a node where the values at the nodes have errors of their own:
    `interpolation_error` estimates it. In modes that products alias, N counts as zero, and so do slopes that are not
    finite.

    Args:
        equation: the equation, whose coefficients depend on neither place nor time.
        values: periodic values at the nodes, on one grid at all times.
        steps: steps of the grids, see `trivgeo.actions.Grid`.
        nodes: increasing times, at least two.
        times: times of the result; beyond the last node the last piece is extrapolated.

    Raises:
        ShapeError: there are fewer than two nodes, or another number of nodes than times of the values.
        DomainError: the nodes do not increase.
    """
    pieces = _Pieces(equation, values, steps, nodes)
    return pieces.modes.to_values(pieces.at(*pieces.place(times))[0]).movedim(1, 2)


def interpolation_error(
    equation: SpectralEquation,
    values: Float[Tensor, "b c s ..."],
    steps: Float[Tensor, "b d d"],
    nodes: Sequence[float],
    times: Float[Tensor, "b q"],
) -> Float[Tensor, "b q"]:
    r"""Estimates of the error of `interpolate_solution`, relative to the size of the field.

    The residual r of the equation at a quarter and three quarters of a piece of length H is the error of the slope
    there. For smooth solutions the error at the share s of a piece is a constant times :math:`s^2 (1 - s)^2`, and the
    error of the slope determines the constant: :math:`e = \tfrac{16}{3} s^2 (1 - s)^2 H |r|`, also beyond the last
    node. The error is zero for linear equations.

    Args:
        equation: as for `interpolate_solution`, also for ``values``, ``steps`` and ``nodes``.
        times: times at which the error is estimated.

    Returns:
        The norm of the error divided by the norm of the field at the node before.

    Raises:
        ShapeError: as for `interpolate_solution`.
        DomainError: as for `interpolate_solution`.
    """
    pieces = _Pieces(equation, values, steps, nodes)
    if pieces.is_linear:
        return torch.zeros_like(times)
    known = torch.as_tensor(nodes, dtype=times.dtype, device=times.device)
    gaps = known.diff()
    inside = torch.cat([known[:-1] + share * gaps for share in _RESIDUAL_SHARES]).expand(len(values), -1)
    first, s = pieces.place(inside)
    off = pieces.modes.to_values(pieces.residual(*pieces.at(first, s))).flatten(2).square().mean(-1)
    rest = off.unflatten(1, (len(_RESIDUAL_SHARES), -1)).mean(1).sqrt() * gaps  # [b, s - 1]
    size = values.movedim(2, 1).flatten(2).square().mean(-1).sqrt()[:, :-1]
    first, s = pieces.place(times)
    share = s.flatten(1)
    relative = rest / size.clamp(min=torch.finfo(size.dtype).tiny)
    return 16.0 / 3.0 * (share * (1 - share)).square() * relative.gather(1, first)


def resolved_residual(
    equation: SpectralEquation,
    values: Float[Tensor, "b c s ..."],
    steps: Float[Tensor, "b d d"],
    nodes: Sequence[float],
    tolerance: float,
) -> Float[Tensor, "b c p ..."]:
    r"""Residuals of the equation over the pieces between adjacent times, as far as two times tell them.

    Over a piece of length H, with :math:`F(s) = e^{(1 - s) H L} \hat N(u(s))`,

    .. math:: r = \hat u_1 - e^{H L} \hat u_0 - \tfrac{H}{6} \bigl(F(0) + 4 F(\tfrac12) + F(1)\bigr),

    Simpson's rule with the middle of `interpolate_solution`; zero on solutions, up to the error of the rule. Its
    difference d to the trapezoidal rule shows where H is too long: r is multiplied by
    :math:`(1 + |d|^2 / \epsilon^2 |u_0|^2)^{-1}`. Linear equations are exact for every H.

    Args:
        equation: see `interpolation_error`, also for ``values``, ``steps`` and ``nodes``.
        tolerance: :math:`\epsilon`, the relative size of d from which on a piece counts as too long.

    Returns:
        Values of the residuals, one for each piece.

    Raises:
        ShapeError: as for `interpolate_solution`.
        DomainError: as for `interpolate_solution`.
    """
    pieces = _Pieces(equation, values, steps, nodes)
    return pieces.modes.to_values(pieces.resolved(tolerance)).movedim(1, 2)


class _Pieces:
    """The solution between adjacent nodes as Fourier coefficients ``[b, q, c, *m]``, see `interpolate_solution`."""

    def __init__(self, equation: SpectralEquation, values: Tensor, steps: Tensor, nodes: Sequence[float]) -> None:
        if len(nodes) < 2 or values.shape[2] != len(nodes):
            raise ShapeError(
                f"nodes: expected at least two times, one for each of {values.shape[2]} values, got {list(nodes)}"
            )
        if list(nodes) != sorted(set(nodes)):
            raise DomainError(f"nodes: expected increasing times, got {list(nodes)}")
        self._equation, self._nodes = equation, list(nodes)
        self.modes = FourierModes.of(steps.unsqueeze(1), values.shape[3:])
        self._state = self.modes.to_modes(values.movedim(2, 1))  # [b, s, c, *m]
        self._linear = equation.linear(self.modes)
        self._slope = self._products(self._state)
        self.is_linear = self._slope is None

    def _products(self, state: Tensor) -> Tensor | None:
        """N of states, in modes that no product aliases; ``None`` for linear equations."""
        rest = self._equation.nonlinear(self.modes, state)
        if rest is None:
            return None
        slope = rest * self.modes.kept
        return torch.where(torch.isfinite(torch.view_as_real(slope)).all(-1), slope, 0.0)

    def residual(self, state: Tensor, slope: Tensor) -> Tensor:
        """The error of a slope in time by the equation, in modes that no product aliases."""
        rest = self._products(state)
        off = slope - self._linear * state
        return off if rest is None else self.modes.kept * off - rest

    def resolved(self, tolerance: float) -> Tensor:
        """Simpson's residuals over the pieces, less what the trapezoidal rule does not confirm."""
        dims = self._state.ndim - 3
        known = torch.as_tensor(self._nodes, dtype=self.modes.wave.dtype, device=self.modes.wave.device)
        gaps = known.diff()
        first, half = self.place((known[:-1] + 0.5 * gaps).expand(len(self._state), -1))
        length = gaps.reshape(-1, *[1] * (dims + 1))
        start, end = self._state[:, :-1], self._state[:, 1:]
        off = end - torch.exp(length * self._linear) * start
        if self._slope is None:
            return off
        middle = self._products(self.at(first, half)[0])
        assert middle is not None
        ends = torch.exp(length * self._linear) * self._slope[:, :-1] + self._slope[:, 1:]
        between = torch.exp(0.5 * length * self._linear) * middle
        doubt = length / 3.0 * (ends - 2.0 * between)
        size, doubt = (
            self.modes.to_values(x.detach()).flatten(3).square().mean(-1).sqrt()
            for x in (start, self.modes.kept * doubt)
        )  # [b, p, c]
        share = 1.0 / (1.0 + (doubt / (tolerance * size).clamp(min=torch.finfo(size.dtype).tiny)).square())
        share = share.reshape(*share.shape, *[1] * dims)
        return self.modes.kept * share * (off - length / 6.0 * (ends + 4.0 * between))

    def place(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """The number of the piece that holds each time, ``[b, q]``, and the share that is over, ``[b, q, 1, ...]``."""
        known = torch.as_tensor(self._nodes, dtype=times.dtype, device=times.device)
        first = (torch.searchsorted(known, times.contiguous(), right=True) - 1).clamp(0, len(known) - 2)
        share = (times - known[first]) / (known[first + 1] - known[first])
        return first, share[..., *[None] * (self._state.ndim - 2)]

    def at(self, first: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """The solution and its slope in time, at shares of pieces."""
        known = torch.as_tensor(self._nodes, dtype=s.dtype, device=s.device)
        length = (known[first + 1] - known[first]).reshape(s.shape)
        linear, state = self._linear, self._state
        slope = torch.zeros_like(state) if self._slope is None else self._slope
        kept = torch.ones_like(self.modes.kept) if self._slope is None else self.modes.kept
        index = first[..., *[None] * (state.ndim - 2)]
        decay = linear.real if linear.is_complex() else linear
        waves = 1j * linear.imag if linear.is_complex() else torch.zeros_like(state[:, :1])
        start = torch.take_along_dim(state, index, 1)
        off = torch.take_along_dim(state, index + 1, 1) - torch.exp(length * linear) * start
        leaving = torch.take_along_dim(slope, index, 1)
        arriving = decay * kept * off + torch.take_along_dim(slope, index + 1, 1)
        # cubics with one value or slope at one end, in the frame of the waves
        behind = torch.exp(s * length * waves) * length * leaving
        ahead, ending = (torch.exp((s - 1) * length * waves) * x for x in (off, length * arriving))
        free = torch.exp(s * length * linear) * start
        rest = s * (1 - s) ** 2 * behind + s**2 * (3 - 2 * s) * ahead + s**2 * (s - 1) * ending
        change = (1 - s) * (1 - 3 * s) * behind + 6 * s * (1 - s) * ahead + s * (3 * s - 2) * ending
        return free + rest, linear * free + waves * rest + change / length
