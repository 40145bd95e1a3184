"""Distributions of random transformations: their spread, and a noise schedule that covers it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._random import keyed, normal
from trivgeo._torch import pytree
from trivgeo.checks import check_count
from trivgeo.errors import DomainError, NonFiniteError, ShapeError
from trivgeo.groups import Action, LieAlgebra, LieGroup
from trivgeo.inversion.rows import where_rows
from trivgeo.sde import GeometricSchedule

__all__ = ["Law", "moving_elements", "noise_between", "num_noise_factors", "sample_elements", "spread_of"]

Law = Callable[[int, torch.Generator], Tensor]
"""(count, generator) to elements ``[count, *element_shape]``."""

_NUM_SAMPLES = 4096
_ERROR = 0.05  # share of the transformations that a first guess may leave
_NOTHING = 1e-3  # in units of the largest spread
_FARTHEST = 0.95  # of the way to the nearest element where exp is singular
_MIN_FACTORS = 2
_MAX_TURNING_VARIANCE = 2.5  # of one exponential: a full turn is four standard deviations


def sample_elements(group: LieGroup, law: Law, count: int, generator: torch.Generator) -> Tensor:
    """Draw elements from a user's distribution, and check them.

    Args:
        group: the group of the elements.
        law: a function (count, generator) to elements.
        count: number of elements.
        generator: random numbers that the law receives.

    Returns:
        Elements ``[count, *element_shape]``.

    Raises:
        ConfigurationError: the law draws no floating-point numbers.
        ShapeError: the law draws no elements of the group, or another number of them.
        NonFiniteError: elements hold NaN or infinity.
    """
    g = group.check_elements(law(count, generator), "law")
    wanted = [count, *group.element_shape]
    if list(g.shape) != wanted:
        raise ShapeError(f"law: expected elements {wanted}, got {list(g.shape)}")
    finite = torch.isfinite(g)
    if not bool(finite.all()):
        bad = int((~finite).sum())
        raise NonFiniteError(f"law: expected elements that have a logarithm, got {bad} NaN or infinite entries")
    return g


def moving_elements(
    action: Action, x: Any, count: int, law: Law | None, generator: torch.Generator | None
) -> tuple[Tensor, Bool[Tensor, "m b"]]:
    """Draw elements that move data, and return them with the mask of where they are defined.

    Args:
        action: on the data.
        x: data with one batch dimension.
        count: m, the number of elements.
        law: their law; ``None`` for exp of standard normal vectors in the group's basis.
        generator: random numbers.

    Returns:
        Elements ``[m, b, *element_shape]``, the identity where not defined, and the mask ``[m, b]``.

    Raises:
        DomainError: no element is defined on any datum.
    """
    group, like, batch = action.group, pytree.tree_leaves(x)[0], action.batch_shape(x).numel()
    check_count("num_elements", count)
    if law is None:
        h = group.exp(normal((count, group.dim), torch.empty(0, dtype=torch.float64), generator))
    else:
        h = sample_elements(group, law, count, generator or torch.Generator().manual_seed(0))
    h = h.to(like).unsqueeze(1)
    valid = action.is_valid(h, x).reshape(count, batch, -1).all(-1)
    if not bool(valid.any()):
        raise DomainError(f"law: expected elements that are defined on some datum, got none of {count}")
    unit = group.identity(dtype=h.dtype, device=h.device)
    return where_rows(valid, h.expand(count, batch, *group.element_shape), unit), valid


def spread_of(group: LieGroup, law: Law, seed: int = 0) -> Tensor:
    r"""A basis ``[n, n]``, for the ``scale`` of the group, in which a law of elements has unit spread.

    The root of the second moment of :math:`\log g`, without what logarithms of large rotations exaggerate (see
    `_bounded`). A guess that is off by a twentieth leaves undone what moves along :math:`[\log g, \log g'] / 20`, too,
    of two elements drawn: no direction has less than that. A direction in which the law does not move, with less than
    a thousandth of the largest spread, has a twentieth of it; all others do not depend on units.

    Args:
        group: the group.
        law: function (count, generator) to elements ``[count, *element_shape]``, see `LearnedInverter.fit`.
        seed: of the elements drawn.

    Raises:
        ShapeError: what the law draws are no elements, or too few.
        DomainError: fewer than half of them have a logarithm, or all are the identity.
    """
    g = sample_elements(group, law, _NUM_SAMPLES, keyed(seed, 3))
    natural = group.with_scale(None)
    v = natural.log(g.double().cpu())
    v = v[torch.isfinite(v).all(-1)]
    if len(v) < _NUM_SAMPLES // 2:
        raise DomainError(f"law: expected elements most of which have a logarithm, got {len(v)} of {_NUM_SAMPLES}")
    v = _bounded(natural, v)
    values, vectors = torch.linalg.eigh(v.mT @ v / len(v))
    largest = float(values[-1])
    if not largest > 0:
        raise DomainError("law: expected transformations, got the identity alone")
    half = len(v) // 2
    brackets = natural.algebra.bracket(v[:half], v[half : 2 * half]) @ vectors
    values = torch.maximum(values, _ERROR**2 * brackets.square().mean(0))
    values = torch.where(values < _NOTHING**2 * largest, _ERROR**2 * largest, values)
    return vectors @ torch.diag(values.sqrt()) @ vectors.mT


def _bounded(group: LieGroup, v: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    r"""Logarithms of a group in its natural basis, those of large rotations without what they exaggerate.

    On affine maps and homographies exp is singular where an eigenvalue of ad(v) is :math:`2 \pi i`: at a rotation by
    :math:`\pi`. The logarithm of such a rotation with a little shear has a shear without bound, and the second moment
    of a law of any rotation and small shears is infinite. Of a logarithm more than half as far,
    :math:`v = k + \delta` with k where the Killing form is negative, :math:`k + J_r(k) \delta` is kept, as
    :math:`\exp v \approx \exp(k) \exp(J_r(k) \delta)`.
    """
    far = _turning(group.algebra, v) > math.pi * (1 + 1e-9)
    if not bool(far.any()):
        return v
    form, axes = torch.linalg.eigh(group.algebra.killing_form.to(v))
    axes = axes[:, form < -_NOTHING * form.abs().max()]
    turn = v[far] @ axes @ axes.mT
    rest = v[far] - turn
    turn = turn * (_FARTHEST * 2 * math.pi / _turning(group.algebra, turn)).clamp(max=1.0).unsqueeze(-1)
    v = v.clone()
    v[far] = turn + (group.right_jacobian(turn) @ rest.unsqueeze(-1)).squeeze(-1)
    return v


def _turning(algebra: LieAlgebra, v: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
    """The largest imaginary part of an eigenvalue of ad(v)."""
    if algebra.is_abelian:
        return v.new_zeros(len(v))
    ad = algebra.ad(v).numpy(force=True)
    return torch.from_numpy(np.abs(np.linalg.eigvals(ad).imag).max(-1))  # torch fails at some repeated eigenvalues


def num_noise_factors(group: LieGroup) -> int:
    r"""The number of exponentials of which noise of level 1 is a product, so that exp is one to one where they fall.

    With m factors the largest imaginary part of an eigenvalue of ad(v), of one of them, has a standard deviation of a
    quarter of :math:`2 \pi`, where exp becomes singular. The target of `trivgeo.sde.noise.noise_with_target` has
    infinite variance if factors often reach it.

    Args:
        group: the group, whose scale is the spread of the noise.
    """
    z = normal((_NUM_SAMPLES, group.dim), torch.empty(0, dtype=torch.float64), keyed(0, 4))
    variance = float(_turning(group.algebra, z).square().mean())
    return max(_MIN_FACTORS, math.ceil(variance / _MAX_TURNING_VARIANCE))


def noise_between(lowest: float, highest: float) -> tuple[GeometricSchedule, float]:
    r"""A geometric schedule of level ``highest`` at time 1, and the time at which its level is ``lowest``.

    Its ratio is that of the levels: :math:`\sigma_1^2 = \gamma_{\min}^2 (r^2 - 1) / (2 \log r)`.
    """
    ratio = 2.0 * highest / lowest
    rate = math.log(ratio)
    minimum = highest * math.sqrt(2.0 * rate / (ratio**2 - 1.0))
    time = 0.5 * math.log1p(2.0 * rate * (lowest / minimum) ** 2) / rate
    return GeometricSchedule(minimum, ratio * minimum), time
