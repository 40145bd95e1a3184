"""Samples that are averages over neighbours, as sensors, filters and finite volumes make them, undone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from torch import Tensor

if TYPE_CHECKING:
    from trivgeo.symmetry.from_data.terms import Monomial

# weights, and numbers of second differences by which they are undone: few amplify short waves less
_KINDS = (("points", 4), ("cell", 4), ("bell", 4), ("points", 2))
MAX_STD = 5.0
"""Largest standard deviation of the places that an average is over, in steps of the grid."""
MIN_STD = 0.2
"""Such a deviation that counts, in steps of the grid; that of the mean over a cell is 0.29, of three points 0.82."""
_MAX_WAVE = 1.0  # waves that are restored: their second difference relative to their values
_NUM_WAVES = 40
_STD_TOLERANCE = 1e-5
_MAX_SPREAD = 2.0  # ratio of two variances that are taken for one
_TRIED_STDS = (0.2, 0.3, 0.45, 0.7, 1.0, 1.5, 2.2, 3.3, 5.0)
_NEAR = 1.5  # the least misfit lies within this factor of the best of these


class Average(NamedTuple):
    """An average over neighbours along some axes.

    Attributes:
        places: the axes, 0 for time.
        std: standard deviation of the places that are averaged, in steps of the grid.
        weights: ``"points"`` if all count alike, ``"cell"`` for the mean over a length, ``"bell"`` for normal weights.
        terms: number of second differences by which it is undone.
    """

    places: tuple[int, ...]
    std: float
    weights: str
    terms: int

    @property
    def inverse(self) -> list[float]:
        r"""Coefficients of powers of the negative second difference, the first is one.

        A wave of wave number k, times the step, has the second difference :math:`-y = -4 \sin^2(k / 2)`. An average
        multiplies it by :math:`e^{-s^2 k^2 / 2}`, by :math:`\sin(w k / 2) / (w \sin(k / 2))` for w points, or by
        :math:`2 \sin(l k / 2) / (l k)` for a length.
        """
        length = math.sqrt(12) * self.std
        width = math.sqrt(1 + length**2)
        zero = 4 * math.sin(math.pi / max(width, 2.0)) ** 2
        y = np.linspace(0.0, min(_MAX_WAVE, zero / 2), _NUM_WAVES + 1)[1:]
        k = 2 * np.arcsin(np.sqrt(y) / 2)
        factors = {
            "points": np.sin(width * k / 2) / (width * np.sin(k / 2)),
            "cell": np.sinc(length * k / (2 * math.pi)),
            "bell": np.exp(-np.square(self.std * k) / 2),
        }
        # long waves count more: data have more of them
        powers = y[:, None] ** np.arange(self.terms)
        found = np.linalg.lstsq(powers, (1 / factors[self.weights] - 1) / y, rcond=None)[0]
        return [1.0, *map(float, found)]

    @property
    def margin(self) -> int:
        """Number of points at each end of an open axis at which the average is not undone."""
        return self.terms

    def undone(self, values: Tensor, is_periodic: Sequence[bool]) -> Tensor:
        """Values of which values ``[b, c, s, *n]`` are averages, without margins on axes that are not periodic."""
        for place in self.places:
            axis, difference, sharp = 2 + place, values, values
            for weight in self.inverse[1:]:
                difference = 2 * difference - difference.roll(1, axis) - difference.roll(-1, axis)
                sharp = sharp + weight * difference
            margin = 0 if is_periodic[place] else self.margin
            values = sharp.narrow(axis, margin, values.shape[axis] - 2 * margin)
        return values


def best_average(misfit: Callable[[Average], float], dims: int) -> tuple[Average, float, float] | None:
    """The average that leaves the least misfit when it is undone; ``None`` if none leaves less than there is.

    Averages along time, each axis of space, and all axes of space are tried.

    Args:
        misfit: misfit with an average undone.
        dims: number of axes of space.

    Returns:
        The average, the misfit without it, and that of the values as they are, inside the same margins.
    """
    places = [(place,) for place in range(dims + 1)] + [tuple(range(1, dims + 1))] * (dims > 1)
    found: list[tuple[Average, float, float]] = []
    for place in places:
        low, high, plain = 0.0, 0.0, 0.0
        for weights, terms in _KINDS:

            def of_std(std: float, place: tuple[int, ...] = place, weights: str = weights, terms: int = terms) -> float:
                return misfit(Average(place, std, weights, terms))

            if not high:
                plain = of_std(0.0)
                if of_std(MIN_STD) >= plain:
                    break
                best = min(_TRIED_STDS, key=of_std)  # there are several minima
                low, high = best / _NEAR, best * _NEAR
            result = minimize_scalar(of_std, bounds=(low, high), method="bounded", options={"xatol": _STD_TOLERANCE})
            found.append((Average(place, float(result.x), weights, terms), float(result.fun), plain))
    least = min(found, key=lambda triple: triple[1], default=None)
    return least if least is not None and least[0].std >= MIN_STD else None


def variance_of(few: Mapping[Monomial, float], others: Mapping[Monomial, float], axes: Sequence[int]) -> float:
    r"""The variance of the average of solutions of an equation that gives it other terms; zero if there is none.

    To first order in the variance :math:`s^2`, averages of solutions of :math:`u_t = F[u]` obey
    :math:`u_t = F[u] + \frac{s^2}{2} F''[u](u_x, u_x)`: each pair of factors of a product has one derivative more.

    Args:
        few: F, a sum of products of derivatives.
        others: the other terms.
        axes: the axes of space.
    """
    given: dict[Monomial, float] = {}
    for monomial, value in few.items():
        for axis in axes:
            for pair in itertools.combinations(range(len(monomial)), 2):
                raised = tuple(
                    sorted(
                        (unknown, tuple(k + (place in pair and i == axis) for i, k in enumerate(index)))
                        for place, (unknown, index) in enumerate(monomial)
                    )
                )
                given[raised] = given.get(raised, 0.0) + value
    ratios = [value / given[monomial] if given.get(monomial) else -1.0 for monomial, value in others.items()]
    alike = ratios and min(ratios) > 0 and max(ratios) <= _MAX_SPREAD * min(ratios)
    return sum(ratios) / len(ratios) if alike else 0.0
