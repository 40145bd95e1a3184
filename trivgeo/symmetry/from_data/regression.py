"""Evolution equations from sampled solutions: regression in weak form, with tests of each term."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.errors import ConfigurationError

_BUMP_POWER = 8  # test functions are (1 - s^2)^8: their derivatives vanish at the ends
_MIN_HALF_WIDTHS = 5  # length of an axis in half-widths of test functions
_MIN_HALF_WIDTH = 4  # half-width of test functions, in points of the grid
_NOISE_DIFFERENCE_ORDER = 6  # order of the differences that measure noise
_MIN_CLUSTERS = 24  # independent parts of the data, for standard errors
_MIN_COEFFICIENT_STDS = 5.0  # size of a coefficient that is kept, in its standard errors
_MIN_TERM_SHARES = (1e-3, 3e-2)  # size of a term that is kept, relative to the largest, without noise and with much
_MAX_RESIDUAL_SHARE = 0.25  # an equation is refused above this share of its left side
_MIN_FRACTION_TOLERANCE = 1e-3  # relative distance of a coefficient from the simple fraction that replaces it
_MAX_DENOMINATOR = 100_000  # bound of the denominators of simple fractions


@dataclass(frozen=True)
class FittedEquation:
    """An equation for one unknown that was fitted to data.

    Attributes:
        text: the equation as `trivgeo.symmetry.find_symmetries` reads it, with simple fractions for coefficients.
        coefficients: fitted coefficients by term.
        standard_errors: standard errors of the coefficients, over independent parts of the data.
        residual: residual of the fit, relative to the left side.
    """

    text: str
    coefficients: dict[str, float]
    standard_errors: dict[str, float]
    residual: float


def fit_equations(
    values: Float[Tensor, "b c s ..."], axes: Sequence[Tensor], order: int, degree: int
) -> list[FittedEquation]:
    r"""Equations :math:`\partial_t^r u^a = \sum_k \theta_k \partial^{J_k} u^{p_k}` with r = 1, or else 2.

    Both sides are integrated against smooth bumps, and derivatives moved to these (weak form: Messenger and Bortz
    2021), so that noise averages out. Terms are dropped one by one, the least significant first, until each coefficient
    is at least five standard errors, taken over independent solutions, and each term a share of the largest that grows
    with the noise. The axes are equidistant, time first.

    Raises:
        ConfigurationError: the grid is too coarse, or no equation of that form holds.
    """
    names = ["u", "v", "w", "p", "q"][: values.shape[1]]
    space = ["x", "y", "z"][: len(axes) - 1]
    test = [_Bumps(axis) for axis in axes]
    rows, terms = [], []
    for powers in itertools.product(range(degree + 1), repeat=len(names)):
        if not 0 < sum(powers) <= degree:
            continue
        monomial = torch.stack([values[:, i] ** k for i, k in enumerate(powers)]).prod(0)
        text = "*".join(f"{n}^{k}" if k > 1 else n for n, k in zip(names, powers, strict=True) if k)
        for index in itertools.product(range(order + 1), repeat=len(space)):
            if sum(index) <= order:
                rows.append(_weak(monomial, test, (0, *index)))
                steps = "".join(f", {x}, {k}" for x, k in zip(space, index, strict=True) if k)
                terms.append(f"diff({text}{steps})" if steps else text)
    features = torch.stack(rows, -1).double()
    result = []
    for a, name in enumerate(names):
        candidates = []
        for times in (1, 2):
            orders = (times, *(0 for _ in space))
            target = _weak(values[:, a], test, orders).double()
            noise = _noise(values[:, a]) * math.prod(
                float(w.weights(k).norm()) for w, k in zip(test, orders, strict=True)
            )
            candidates.append(_selected(features, target, terms, f"{name}_{'t' * times}", noise))
        first, second = candidates
        best = second if second.residual < first.residual / 2 and first.residual > _MAX_RESIDUAL_SHARE / 10 else first
        if best.residual > _MAX_RESIDUAL_SHARE:
            raise ConfigurationError(
                f"samples: expected solutions of an equation of order {order} and degree {degree}, got data of which "
                f"{best.residual:.0%} are left unexplained: {best.text}"
            )
        result.append(best)
    return result


def _noise(values: Float[Tensor, "b s ..."]) -> float:
    """The standard deviation of noise that is independent between points, by sixth differences along the last axis."""
    order = _NOISE_DIFFERENCE_ORDER
    if values.shape[-1] <= order:
        return 0.0
    return float(values.double().diff(order).square().mean().sqrt()) / math.comb(2 * order, order) ** 0.5


class _Bumps:
    """Test functions along one axis: centres, and the weights of their derivatives."""

    def __init__(self, axis: Tensor) -> None:
        steps = axis.double().diff()
        count = len(axis)
        if count < 2 * _MIN_HALF_WIDTH + 1 or not torch.allclose(steps, steps.mean().expand_as(steps), rtol=1e-4):
            raise ConfigurationError(
                f"grid: expected at least {2 * _MIN_HALF_WIDTH + 1} equidistant coordinates an axis, got {count}"
            )
        self.half = max(_MIN_HALF_WIDTH, (count - 1) // _MIN_HALF_WIDTHS)
        self.stride = max(1, self.half // 2)
        self.step = float(steps.mean())

    def weights(self, order: int) -> Tensor:
        """Weights of the integral against a derivative of a bump, with the sign from integration by parts."""
        bump = np.polynomial.Polynomial([1.0, 0.0, -1.0]) ** _BUMP_POWER
        derivative = bump.deriv(order) if order else bump
        nodes = np.linspace(-1.0, 1.0, 2 * self.half + 1)
        width = self.half * self.step
        return torch.as_tensor((-1) ** order * derivative(nodes) * self.step / width**order)


def _weak(values: Float[Tensor, "b s ..."], test: Sequence[_Bumps], orders: Sequence[int]) -> Tensor:
    """Integrals against all test functions, ``[b, q_t, q]``."""
    result = values.double()
    for axis, (bumps, order) in enumerate(zip(test, orders, strict=True)):
        windows = result.unfold(axis + 1, 2 * bumps.half + 1, bumps.stride)
        result = windows @ bumps.weights(order).to(windows)
    return result.reshape(*result.shape[:2], -1)


def _selected(features: Tensor, target: Tensor, terms: Sequence[str], left: str, noise: float) -> FittedEquation:
    """The regression without insignificant terms; its residual is less what noise of the given size contributes."""
    batch, times = target.shape[:2]
    clusters = batch if batch >= _MIN_CLUSTERS else batch * times
    x = features.reshape(clusters, -1, features.shape[-1])
    y = target.reshape(clusters, -1)
    sizes = x.square().sum((0, 1)).sqrt().clamp_min(torch.finfo(x.dtype).tiny)
    x = x / sizes
    total = y.square().sum().sqrt()
    noise_share = noise * y.numel() ** 0.5 / float(total)
    share = min(max(_MIN_TERM_SHARES[0], noise_share), _MIN_TERM_SHARES[1])
    kept = list(range(len(terms)))
    while True:
        part = x[..., kept]
        normal = torch.einsum("cri,crj->ij", part, part)
        inverse = torch.linalg.pinv(normal, hermitian=True, rtol=1e-13)
        theta = inverse @ torch.einsum("cri,cr->i", part, y)
        left_over = y - part @ theta
        scores = torch.einsum("cri,cr->ci", part, left_over)
        errors = (inverse @ (scores.mT @ scores) @ inverse).diagonal().clamp_min(0).sqrt()
        # the smaller of two measures, so that neither discretization nor noise keeps a term
        size = theta.abs()
        measure = torch.minimum(size / (_MIN_COEFFICIENT_STDS * errors), size / (share * size.max()))
        worst = int(measure.argmin())
        if len(kept) == 1 or measure[worst] >= 1:
            break
        kept.pop(worst)
    values = {terms[j]: float(theta[i] / sizes[j]) for i, j in enumerate(kept)}
    deviations = {terms[j]: float(errors[i] / sizes[j]) for i, j in enumerate(kept)}
    right = " + ".join(f"({_simple(value, deviations[term])})*{term}" for term, value in values.items())
    left_over_noise = (left_over.square().sum() - noise**2 * y.numel()).clamp_min(0).sqrt()
    return FittedEquation(f"{left} = {right}", values, deviations, float(left_over_noise / total))


def _simple(value: float, deviation: float) -> Fraction:
    """The fraction of smallest denominator within three standard errors, or a thousandth of the value."""
    tolerance = max(3 * deviation, _MIN_FRACTION_TOLERANCE * abs(value))
    denominator = 1
    while True:
        nearest = Fraction(round(value * denominator), denominator)
        if nearest != 0 and (abs(float(nearest) - value) <= tolerance or denominator >= _MAX_DENOMINATOR):
            return nearest
        denominator = denominator + 1 if denominator < 100 else denominator * 10
