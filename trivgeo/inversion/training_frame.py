"""Box and times that a network was trained on, and transformations that bring fields there exactly."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import Constant, jvp_columns
from trivgeo.actions import FieldAction, Grid
from trivgeo.errors import DomainError

__all__ = ["TrainingFrame"]

_STEPS = 10  # of Gauss and Newton for the box, which are quadratic near the end
_LANDING_STEPS = 5  # that follow where times are wanted
_SHARES = (1.0, 0.3, 0.1, 0.02)  # of a step that are tried
_TIED_TO = 1e-8  # singular values below this share of the largest are zero
_ROUNDING = 100.0  # differences of so many units of rounding are none
_MAX_OFF = 1e-3  # of the box, relative to its edges: beyond it no transformation leads there
_LANDING = 0.15  # share of the time from the first to the last node within which a node is landed on


class TrainingFrame:
    r"""The box of a training set at its first time, and the times of a network's predictions.

    `settle` corrects transformations so that :math:`g^{-1}` takes the box of a field to that of the training set, and,
    with what freedom is left, the last time that is wanted to one that the network predicts: Gauss and Newton's steps
    of least length in the group's basis.

    Args:
        grid: of the training set, at one time, which all fields share or one of them.
        counts: the numbers of points along the axes.
        times: of predictions, counted from the initial field.

    Raises:
        DomainError: the fields have different grids.
    """

    def __init__(self, grid: Grid, counts: torch.Size, times: list[float]) -> None:
        corners = _corners(grid, counts).flatten(0, -3) if grid.origin.ndim > 2 else _corners(grid, counts)[None]
        if not bool((corners == corners[:1]).all()):
            raise DomainError("clean: expected fields that share their grid, got several grids")
        self.counts, self.times = counts, times
        self._corners = Constant(corners[0])
        edges = corners[0, 1:] - corners[0, :1]
        self._size = float(edges.norm(dim=-1).max())

    def free_directions(self, action: FieldAction) -> Float[Tensor, "k n"]:
        """Return a basis of the algebra vectors of ``action`` that leave the box alone, to first order.

        The box of a field determines its transformation, up to isolated elements, where there are none.
        """
        corners = self._corners.like(torch.empty(0, dtype=torch.float64))[None]
        zero = torch.zeros(1, action.group.dim, dtype=torch.float64)
        jacobian = jvp_columns(lambda v: self._off(action, action.group.exp(v), corners), zero)[0]
        _, singular, right = torch.linalg.svd(jacobian)
        return right[int((singular > _TIED_TO * singular.max()).sum()) :]

    def settle(self, action: FieldAction, g: Tensor, grid: Grid, last: Float[Tensor, " b"] | None = None) -> Tensor:
        """Return transformations that take boxes of fields to that of the training set.

        Args:
            action: the action on fields.
            g: estimates of them, ``[b, *element_shape]``.
            grid: of initial fields, ``[b, 1, ...]``.
            last: the last time that is wanted for each; ``None`` to leave times alone.

        Raises:
            DomainError: no transformation that was reached takes some box there; the message says which.
        """
        corners = _corners(grid, self.counts).expand(len(g), -1, -1)
        g = self.approach(action, g, grid)
        if last is not None:
            wanted = self._wanted(corners, last)
            for _ in range(_LANDING_STEPS):
                if self._is_there(self._late(action, g, wanted)):
                    break
                g = self._step(action, g, corners, wanted)
        off = self._off(action, g, corners).abs().amax(-1)
        known = off <= _MAX_OFF
        if not bool(known.all()):
            row = int((~known).nonzero()[0, 0])
            edges = (corners[row, 1:] - corners[row, :1])[:, :-1]
            target = self._corners.like(corners)
            raise DomainError(
                f"initial: expected fields whose boxes the group maps to the training box, with edges "
                f"{_rounded((target[1:] - target[:1])[:, :-1])} from {_rounded(target[0])} on, got edges "
                f"{_rounded(edges)} from {_rounded(corners[row, 0])} on for field {row}; no element maps the boxes of "
                f"{int((~known).sum())} of {len(known)} fields"
            )
        return g

    def approach(self, action: FieldAction, g: Tensor, grid: Grid) -> Tensor:
        """Return transformations that take boxes of fields to that of the training set, or nearer.

        Args:
            action: see `settle`, like ``g``.
            g: estimates.
            grid: where the fields are, see `settle`.
        """
        corners = _corners(grid, self.counts).expand(len(g), -1, -1)
        for _ in range(_STEPS):
            if self._is_there(self._off(action, g, corners)):
                break
            g = self._step(action, g, corners, None)
        return g

    @staticmethod
    def _is_there(off: Tensor) -> bool:
        """Whether differences are rounding, for all fields."""
        return bool((off.abs() <= _ROUNDING * torch.finfo(off.dtype).eps).all())

    def _wanted(self, corners: Tensor, last: Tensor) -> Tensor:
        """The first corners at the last times, ``[b, 1, d + 1]``."""
        return torch.cat([corners[:, :1, :-1], last[:, None, None].to(corners)], -1)

    def _off(self, action: FieldAction, g: Tensor, corners: Tensor) -> Float[Tensor, "b m"]:
        """The differences of the corners, in units of the longest edge."""
        target = self._corners.like(corners)
        return ((action.point_action(action.group.inverse(g), corners) - target) / self._size).flatten(-2)

    def _late(self, action: FieldAction, g: Tensor, wanted: Tensor) -> Float[Tensor, "b 1"]:
        """The difference of the wanted time to the node that is to be landed on; zero where none is."""
        target = self._corners.like(wanted)
        nodes = torch.tensor(self.times, dtype=wanted.dtype, device=wanted.device)
        elapsed = (action.point_action(action.group.inverse(g), wanted) - target[:1])[..., -1]  # [b, 1]
        near = nodes[(elapsed.detach() - nodes).abs().argmin(-1)].unsqueeze(-1)
        lands = ((elapsed - near).abs() <= _LANDING * nodes[-1]) | (elapsed > nodes[-1])
        return torch.where(lands, (elapsed - near) / nodes[-1], 0.0)

    def _step(self, action: FieldAction, g: Tensor, corners: Tensor, wanted: Tensor | None) -> Tensor:
        """One step, as much of it as brings the box nearer, or keeps it there."""
        group = action.group
        zero = g.new_zeros(len(g), group.dim)

        def off(v: Tensor) -> Tensor:
            return self._off(action, group.compose(g, group.exp(v)), corners)

        before, jacobian = off(zero), jvp_columns(off, zero)
        usable = torch.isfinite(jacobian).all(-1).all(-1) & torch.isfinite(before).all(-1)
        jacobian = torch.where(usable[:, None, None], jacobian, 0.0)
        inverse = torch.linalg.pinv(jacobian, rtol=_rtol(jacobian))
        step = -matmul(inverse, torch.where(usable[:, None], before, 0.0).unsqueeze(-1)).squeeze(-1)
        if wanted is not None:
            step = step + self._landing(action, g, wanted, step, inverse, jacobian)
        shares = torch.tensor(_SHARES, dtype=g.dtype, device=g.device)[:, None, None]
        moved = group.compose(g, group.exp(shares * step))  # [shares, b, *element_shape]
        error = self._off(action, moved, corners).norm(dim=-1)
        error = torch.where(torch.isfinite(error), error, torch.inf)
        # the whole step where it leads as near as rounding lets it
        chosen = torch.where(error[0] <= 10 * _rtol(g), 0, error.argmin(0))
        least = error.gather(0, chosen[None])[0]
        better = (least < before.norm(dim=-1)) | (least <= 10 * _rtol(g))
        index, better = (x.reshape(-1, *[1] * (g.ndim - 1)) for x in (chosen, better))
        return torch.where(better, torch.take_along_dim(moved, index[None], 0)[0], g)

    def _landing(
        self, action: FieldAction, g: Tensor, wanted: Tensor, step: Tensor, inverse: Tensor, jacobian: Tensor
    ) -> Tensor:
        """The step for the time, in directions that leave the box alone."""
        group, zero = action.group, torch.zeros_like(step)

        def late(v: Tensor) -> Tensor:
            return self._late(action, group.compose(g, group.exp(v)), wanted)

        before, row = late(zero), jvp_columns(late, zero)
        free = row - matmul(matmul(row, inverse), jacobian)
        size = free.square().sum((-2, -1))[:, None]
        moves = (size > _TIED_TO * row.square().sum((-2, -1))[:, None]) & torch.isfinite(size)
        ahead = before + matmul(row, step.unsqueeze(-1)).squeeze(-1)
        return torch.where(moves, -ahead * free.squeeze(-2) / torch.where(moves, size, 1.0), 0.0)


def _corners(grid: Grid, counts: torch.Size) -> Float[Tensor, "*batch m n"]:
    """The first point and the ends of the axes (a period away) at the first time, ``[*batch, d + 1, d + 1]``."""
    origin, steps = grid.origin[..., :1, :], grid.steps[..., 0, :, :]
    edges = torch.tensor(counts).to(steps).unsqueeze(-1) * steps
    return torch.cat([origin, origin + torch.cat([edges, torch.zeros_like(edges[..., :1])], -1)], -2)


def _rtol(x: Tensor) -> float:
    return max(_TIED_TO, 50 * torch.finfo(x.dtype).eps)


def _rounded(x: Tensor) -> list[object]:
    rounded: list[object] = (x.double() * 1e6).round().div(1e6).tolist()
    return rounded
