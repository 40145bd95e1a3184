"""The local action of a group on points by the flows of its generators."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.groups._matrices import matrix_exp, transform_points
from trivgeo.groups.action import PointAction
from trivgeo.groups.generators.fields import VectorFields
from trivgeo.groups.generators.flow import dormand_prince
from trivgeo.groups.generators.group import GeneratedGroup

__all__ = ["FlowAction", "GeneratedAction", "ProjectiveAction", "fit_projective"]

Flow = Callable[[Tensor, Tensor], Tensor]


class GeneratedAction(PointAction):
    """What the actions of generated groups share: points may lack trailing coordinates that the others do not need.

    Args:
        group: the group.
        prefixes: numbers of leading coordinates that points may have, apart from all.
        fill: values for the coordinates left out, ``[m]``.
    """

    def __init__(self, group: GeneratedGroup, prefixes: tuple[int, ...], fill: Tensor) -> None:
        super().__init__(group, (*prefixes, len(fill)))
        self._generated = group
        self._fill = Constant(fill)

    def _whole(self, x: Tensor) -> Tensor:
        """Points with all coordinates."""
        rest = self._fill.like(x)[x.shape[-1] :]
        return torch.cat([x, rest.expand(*x.shape[:-1], -1)], -1) if len(rest) else x


class ProjectiveAction(GeneratedAction):
    """A linear, affine or projective action in closed form, by the matrices of the fields.

    Args:
        group: the group.
        prefixes: numbers of leading coordinates that points may have, apart from all.
        fill: values for the coordinates left out, ``[m]``.
        matrices: the trace-free matrices of the fields on (x, 1), ``[dim, m + 1, m + 1]``.
        affine: whether the last row of every matrix of the group is constant.
    """

    def __init__(
        self, group: GeneratedGroup, prefixes: tuple[int, ...], fill: Tensor, matrices: Tensor, affine: bool
    ) -> None:
        super().__init__(group, prefixes, fill)
        self._matrices = ProjectiveMatrices(group, matrices)
        self._affine = affine

    @property
    def base_is_projective(self) -> bool:
        """Whether points are jets (x, t, u) whose (x, t) move independently of u."""
        return {2, 3} <= set(self.point_dims)

    def _denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        return None if self._affine else _last_row(self._matrices(g), self._whole(x))

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        return _apply(self._matrices(g), self._whole(x))[..., : x.shape[-1]]


class FlowAction(GeneratedAction):
    r"""The action by numerical flows, factor by factor, with the closed form on a projective base where there is one.

    Points are ``[*batch, p, m]``, or the leading coordinates of points if the fields on these depend on them alone
    (such as (x, t) of jets (x, t, u)). A point is NaN where a flow runs off to infinity, or where its error estimate
    says that it cannot be trusted.

    Args:
        group: the group.
        prefixes: numbers of leading coordinates that points may have, apart from all.
        fill: values for the coordinates left out, ``[m]``.
        fields: the fields of the generators.
        base: number of leading coordinates that move projectively, and the matrices of the fields on them.
        flow: the flow in closed form if there is one, ``(v [*batch, dim], x [*batch, m]) -> [*batch, m]``.
        steps: Runge-Kutta steps for each factor.
        tolerance: bound on the error estimate of a step.
    """

    def __init__(
        self,
        group: GeneratedGroup,
        prefixes: tuple[int, ...],
        fill: Tensor,
        fields: VectorFields,
        base: tuple[int, Tensor] | None,
        flow: Flow | None,
        steps: int,
        tolerance: float,
    ) -> None:
        super().__init__(group, prefixes, fill)
        self._fields = fields
        self._base_dim = 0 if base is None else base[0]
        self._base = None if base is None else ProjectiveMatrices(group, base[1])
        self._flow = flow
        self._steps = steps
        self._tolerance = tolerance

    @property
    def base_is_projective(self) -> bool:
        """Whether (x, t) was found to move projectively, independently of the rest."""
        return self._base_dim == 2 and self._fields.dim == 3

    def _denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        return None if self._base is None else _last_row(self._base(g), x[..., : self._base_dim])

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        base = None if self._base is None else _apply(self._base(g), x[..., : self._base_dim])
        given = x.shape[-1]
        if base is not None and given == self._base_dim:
            return base
        x = self._whole(x)
        vectors, _ = self._generated.factors(g)
        batch = torch.broadcast_shapes(g.shape[:-1], x.shape[:-1])
        x = x.expand(*batch, -1)
        valid = torch.ones(batch, dtype=torch.bool, device=x.device)
        for v in vectors:
            known = torch.isfinite(v).all(-1, keepdim=True)
            x, alive = self._follow(torch.where(known, v, 0.0), x)
            valid = valid & alive & known.squeeze(-1)
        if base is not None:
            x = torch.cat([base, x[..., self._base_dim :]], -1)
        return torch.where(valid.unsqueeze(-1), x, math.nan)[..., :given]

    def _follow(self, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The flow of one vector for unit time, and where it is valid."""
        if self._flow is not None:
            y = self._flow(v, x)
            alive = torch.isfinite(y).all(-1)
            return torch.where(alive.unsqueeze(-1), y, 0.0), alive

        def field(y: Tensor) -> Tensor:
            return self._fields.combination(v, y)

        tolerance = max(self._tolerance, 100.0 * torch.finfo(x.dtype).eps)
        return dormand_prince(field, x, self._steps, tolerance)


class ProjectiveMatrices:
    """The matrix of each element on homogeneous coordinates (x, 1), from the matrices of the fields.

    Args:
        group: the group.
        matrices: ``[dim, k, k]``.
    """

    def __init__(self, group: GeneratedGroup, matrices: Tensor) -> None:
        self._group = group
        self._matrices = Constant(matrices)
        full = group.full_representation
        # The semisimple part is a block of this very representation: no logarithm is needed.
        self._full = full if full is not None and full.source is matrices else None

    def __call__(self, g: Tensor) -> Tensor:
        """``[*batch, E] -> [*batch, k, k]``."""
        if self._full is not None:
            vectors, matrix = self._group.outer_factors(g)
            total = self._full.full_matrix(matrix)
        else:
            vectors, _ = self._group.factors(g)
            total = None
        for v in vectors:
            step = matrix_exp(torch.einsum("...i,iab->...ab", v, self._matrices.like(v)))
            total = step if total is None else step @ total
        assert total is not None
        return total


def _apply(matrix: Tensor, x: Tensor) -> Tensor:
    """Projective map of points ``[*batch, p, m]`` by ``[*batch, 1, m + 1, m + 1]``; any number where undefined."""
    d = _last_row(matrix, x).unsqueeze(-1)
    top = transform_points(matrix[..., :-1, :-1], x) + matrix[..., :-1, -1]
    return top / torch.where(d == 0, 1.0, d)


def _last_row(matrix: Tensor, x: Tensor) -> Tensor:
    return (matrix[..., -1, :-1] * x).sum(-1) + matrix[..., -1, -1]


def fit_projective(points: Tensor, values: Tensor) -> tuple[Tensor, bool] | None:
    r"""Matrices of fields of the form :math:`a + B x + (c \cdot x) x`, by least squares; ``None`` if they are not.

    Args:
        points: ``[p, m]``.
        values: the fields there, ``[p, n, m]``.

    Returns:
        Trace-free matrices ``[n, m + 1, m + 1]`` that act on (x, 1), and whether all c vanish.
    """
    count, m = points.shape
    eye = torch.eye(m, dtype=points.dtype)
    constant = eye.expand(count, m, m)
    linear = torch.einsum("pb,ac->pacb", points, eye).reshape(count, m, m * m)  # B[c, b]
    quadratic = points.unsqueeze(-1) * points.unsqueeze(-2)
    design = torch.cat([constant, linear, quadratic], -1).reshape(count * m, -1)
    if len(design) < 2 * design.shape[-1]:
        return None
    target = values.permute(0, 2, 1).reshape(count * m, -1)
    solution = torch.linalg.lstsq(design, target).solution
    size = target.abs().amax(0).clamp(min=1e-300)
    if bool(((design @ solution - target).abs().amax(0) > 1e-9 * size).any()):
        return None
    solution = torch.where(solution.abs() < 1e-11 * size, 0.0, solution)
    solution = torch.where((solution - solution.round()).abs() < 1e-11 * size, solution.round(), solution).T
    a, b, c = solution.split([m, m * m, m], -1)
    matrices = torch.zeros(len(solution), m + 1, m + 1, dtype=points.dtype)
    matrices[:, :m, :m] = b.unflatten(-1, (m, m))
    matrices[:, :m, m] = a
    matrices[:, m, :m] = -c
    trace = matrices.diagonal(dim1=-2, dim2=-1).mean(-1)
    return matrices - trace[:, None, None] * torch.eye(m + 1, dtype=points.dtype), not bool((c != 0).any())
