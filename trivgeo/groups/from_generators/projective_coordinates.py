"""Coordinates that move projectively or conformally: linearly as (x, 1), or (x, x.Qx, 1) on the light cone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.groups.from_generators.span import least_squares, snap

_MAX_FIT_ERROR = 1e-9  # residual of a fitted field, relative to the size of the field
_FIT_ROUNDING = 1e-13  # residual of an exact fit, relative to the size of the field
_ROUNDING = 1e-15  # rounding of one number
_MAX_FORM_CONDITION = 1e8  # condition number of a quadratic form that counts as nondegenerate


class HomogeneousLift:
    """The map to homogeneous coordinates: (x, 1), or (x, x.Qx, 1) on the light cone of a ``form`` Q ``[k, k]``."""

    def __init__(self, form: Tensor | None = None) -> None:
        self.form = None if form is None else Constant(form)

    def __call__(self, x: Tensor) -> Tensor:
        """Homogeneous coordinates without the last one: ``[*batch, k] -> [*batch, k]`` or ``[*batch, k + 1]``."""
        if self.form is None:
            return x
        return torch.cat([x, (x @ self.form.matching(x) * x).sum(-1, keepdim=True)], -1)


@dataclass(frozen=True)
class ProjectiveBase:
    """Coordinates that move projectively or conformally by themselves.

    Attributes:
        coordinates: positions among all coordinates.
        matrices: trace-free matrices of the fields on homogeneous coordinates, ``[dim, K, K]``.
        affine: whether the last row of every matrix of the group is constant.
    """

    coordinates: tuple[int, ...]
    matrices: Tensor
    affine: bool
    lift: HomogeneousLift


def fit_projective(points: Tensor, values: Tensor) -> tuple[Tensor, bool, HomogeneousLift] | None:
    r"""Matrices of fields of the form :math:`a + B x + (c \cdot x) x`, by least squares; ``None`` if they are not.

    Points are ``[p, m]``, values of the fields there ``[p, n, m]``.

    Returns:
        Trace-free matrices ``[n, m + 1, m + 1]`` that act on (x, 1), whether all c vanish, and the map to (x, 1).
    """
    (count, m), n = points.shape, values.shape[1]
    eye = torch.eye(m, dtype=points.dtype)
    constant = eye.expand(count, m, m)
    linear = torch.einsum("pb,ac->pacb", points, eye).reshape(count, m, m * m)  # B[c, b]
    quadratic = points.unsqueeze(-1) * points.unsqueeze(-2)
    design = torch.cat([constant, linear, quadratic], -1).reshape(count * m, -1)
    if len(design) < 2 * design.shape[-1]:
        return None
    target = values.permute(0, 2, 1).reshape(count * m, -1)
    solution = least_squares(design, target, target.norm(dim=0))
    size = target.abs().amax(0)
    rest = (design @ solution - target).reshape(count, m, n).abs().amax(0).T  # [n, m]
    missed = rest.amax(-1)
    # fields that do not move these coordinates have rounding errors
    noise = _ROUNDING * values.abs().max()
    fits = missed <= _MAX_FIT_ERROR * size
    solution = torch.where(fits | (size > 10.0 * noise), solution, 0.0).T
    # affine fits are judged component by component, which may differ in size by many orders
    first, left = _fit_affine(points, values)
    affine = left <= _MAX_FIT_ERROR
    if not bool((affine | fits | (missed <= noise)).all()):
        return None
    # a small quadratic part may be below the tolerance of the affine form
    affine &= ~fits | (left <= _relative(rest, values).clamp(min=_FIT_ROUNDING))
    first = torch.cat([first[..., 0], first[..., 1:].flatten(1), first.new_zeros(n, m)], -1)
    solution = torch.where(affine.unsqueeze(-1), first, solution)
    a, b, c = solution.split([m, m * m, m], -1)
    matrices = torch.zeros(len(solution), m + 1, m + 1, dtype=points.dtype)
    matrices[:, :m, :m] = b.unflatten(-1, (m, m))
    matrices[:, :m, m] = a
    matrices[:, m, :m] = -c
    trace = matrices.diagonal(dim1=-2, dim2=-1).mean(-1)
    matrices = matrices - trace[:, None, None] * torch.eye(m + 1, dtype=points.dtype)
    return matrices, not bool((c != 0).any()), HomogeneousLift()


def _fit_affine(points: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients ``[n, m, m + 1]`` of a + B x for each field and component, and `_relative` errors of the fields."""
    (count, m), n = points.shape, values.shape[1]
    design = torch.cat([torch.ones(count, 1, dtype=points.dtype), points], -1)
    target = values.reshape(count, n * m)
    solution = least_squares(design, target, target.norm(dim=0))
    rest = (design @ solution - target).abs().amax(0).reshape(n, m)
    size = values.abs().amax(0)
    meant = (rest <= _MAX_FIT_ERROR * size) | (size > 10.0 * _ROUNDING * size.amax(-1, keepdim=True))
    return torch.where(meant.unsqueeze(-1), solution.T.unflatten(0, (n, m)), 0.0), _relative(rest, values)


def _relative(rest: Tensor, values: Tensor) -> Tensor:
    """The largest residual ``rest [n, m]`` of a component of each field, over the size of that component.

    Residuals within rounding of the largest component count as zero.
    """
    size = values.abs().amax(0)
    return torch.where(rest <= _ROUNDING * size.amax(-1, keepdim=True), 0.0, rest / size).amax(-1)


def fit_conformal(points: Tensor, values: Tensor) -> tuple[Tensor, bool, HomogeneousLift] | None:
    r"""Matrices of fields :math:`a + B x + 2 (\beta \cdot x) x - (x \cdot Q x) b` with :math:`\beta = Q b`.

    Q is a nondegenerate quadratic form, of any signature, with :math:`B^T Q + Q B = \lambda Q`. On the light cone,
    whose points :math:`(x, q, 1)` with :math:`q = x \cdot Q x` count up to factors, the fields are linear:
    :math:`x' = B x - q b + a`, :math:`q' = \lambda q + 2 Q a \cdot x`, and the last row is :math:`-2 \beta`.

    Returns ``None`` if the fields do not have this form, or none of them has a quadratic part; see `fit_projective`.
    """
    count, m = points.shape
    n = values.shape[1]
    rows, columns = torch.triu_indices(m, m)
    design = torch.cat([torch.ones(count, 1, dtype=points.dtype), points, points[:, rows] * points[:, columns]], -1)
    if m < 2 or count < 2 * design.shape[-1]:
        return None
    target = values.reshape(count, n * m)
    solution = least_squares(design, target, target.norm(dim=0))
    size = values.abs().amax((0, 2)).clamp(min=1e-300)
    missed = (design @ solution - target).abs().amax(0).reshape(n, m).amax(-1)
    if bool((missed > _MAX_FIT_ERROR * size + _ROUNDING * values.abs().max()).any()):
        return None
    solution = solution.reshape(-1, n, m)
    a, b = solution[0], solution[1 : m + 1].permute(1, 2, 0)
    quadratic = values.new_zeros(n, m, m, m)  # [field, component, j, k], symmetric
    quadratic[:, :, rows, columns] = 0.5 * solution[m + 1 :].permute(1, 2, 0)
    quadratic = quadratic + quadratic.mT
    beta = quadratic.diagonal(dim1=1, dim2=2).sum(-1) / m
    eye = torch.eye(m, dtype=points.dtype)
    # the rest of the quadratic part is b Q, where all fields have the same Q up to a factor
    rest = beta[:, None, None, :] * eye[:, :, None] + beta[:, None, :, None] * eye[:, None, :] - quadratic
    rank_one = rest.reshape(n * m, m * m)
    if not bool(beta.any()):
        return None
    form = torch.linalg.svd(rank_one, full_matrices=False)[2][0].reshape(m, m)
    form = 0.5 * (form + form.T)
    form = form / form.flatten()[form.abs().argmax()]
    form = snap(torch.where(form.abs() < _FIT_ROUNDING, 0.0, form))
    if float(torch.linalg.cond(form)) > _MAX_FORM_CONDITION:
        return None
    return _light_cone(a, b, quadratic, beta, form, size)


def _light_cone(
    a: Tensor, b: Tensor, quadratic: Tensor, beta: Tensor, form: Tensor, size: Tensor
) -> tuple[Tensor, bool, HomogeneousLift] | None:
    """The matrices of fields with these constant, linear and quadratic parts, ``None`` if they are not conformal."""
    n, m = a.shape
    eye = torch.eye(m, dtype=a.dtype)
    shift = beta @ torch.linalg.inv(form)
    expected = beta[:, None, None, :] * eye[:, :, None] + beta[:, None, :, None] * eye[:, None, :]
    expected = expected - torch.einsum("na,bc->nabc", shift, form)
    moved = b.mT @ form
    moved = moved + moved.mT
    growth = 2.0 * b.diagonal(dim1=1, dim2=2).mean(-1)
    missed = (expected - quadratic).abs().amax((1, 2, 3)) + (moved - growth[:, None, None] * form).abs().amax((1, 2))
    if bool((missed > _MAX_FIT_ERROR * size).any()):
        return None
    matrices = a.new_zeros(n, m + 2, m + 2)
    matrices[:, :m, :m], matrices[:, :m, m], matrices[:, :m, m + 1] = b, -shift, a
    matrices[:, m, :m], matrices[:, m, m] = 2.0 * a @ form, growth
    matrices[:, m + 1, :m] = -2.0 * beta
    return matrices - 0.5 * growth[:, None, None] * torch.eye(m + 2, dtype=a.dtype), False, HomogeneousLift(form)
