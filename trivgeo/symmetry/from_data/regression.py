"""Evolution equations from sampled solutions: terms, coefficients with stated errors, and what remains open."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from trivgeo.errors import ConfigurationError
from trivgeo.symmetry.from_data.averages import MAX_STD, MIN_STD, Average, best_average, variance_of
from trivgeo.symmetry.from_data.subsets import MIN_SHARE, MIN_STDS, MISFIT_FLOOR, Array, Fit, Regression
from trivgeo.symmetry.from_data.terms import Monomial, Reading, Term, Windows, library_of

_MAX_NUM_TERMS = 10  # terms of an equation
_MAX_UNEXPLAINED = 0.1  # an equation is refused above this share of its left side, beside noise
_MAX_OPEN = 0.02  # an equation is uncertain above this share, beside noise and discretization
_MAX_DISCRETIZATION = 0.03  # a larger share is never put down to discretization: terms that cancel differ by more
_MIN_SAID = 1e-3  # share left unexplained that the verdict assumes to break no symmetry
_MAX_NOISE = 0.6  # share of noise in the left side
_NUM_FUNCTIONS = 7  # slow functions of place or time that coefficients are made of
_MIN_NUM_VARIED = 3  # solutions that tell a function of place from the state there
_MAX_VARIED_TERMS = 4  # terms of an equation whose coefficients are functions
_NUM_VARIED_CANDIDATES = 40  # terms that are tried with functions, the simplest
_MIN_GAIN = 5.0  # gain on held-out data that counts, in its standard errors
_MIN_DROP = 0.98  # misfit with a further part, relative to that without, that counts
_CLEAR_DROP = 0.5  # such a ratio that counts whatever the standard errors are
_EXACT_DROP = 1e-2  # misfit of an exact equation, relative to that of one without small terms
_MAX_AVERAGED_VALUES = 80_000  # values on which averages are tried
_MAX_PART = 5  # size of the smallest part of a set on which they are, in these
_MAX_AVERAGED_RISE = 2.0  # misfit of fewer terms of what was averaged, relative to that of more terms of the samples
_MAX_OPEN_RISE = 10.0  # a ratio above it rules an average out
_MIN_HIGHER_ORDER = 0.03  # what higher orders of an average's width leave, relative to the terms of the first order
_GRID_PARTS = 24  # truncation errors are multiples of this part of a squared step
_MAX_STDS = 3.0  # distance of two equal numbers, in stated errors
_TIE_ERROR = 0.2  # relative error above which coefficients are not compared
_MIN_RELATIVE_ERROR = 1e-6  # relative error of a coefficient that is always allowed for
_NOISE_DIFFERENCE_ORDER = 6  # order of the differences that measure noise
_NUM_TRENDS = 5  # slow functions of each axis of space, and one less of time, that the rest is compared with
_MIN_NUM_TREND, _NUM_TREND_FOLDS = 5, 5  # solutions that are compared so, and folds of them
_MIN_TREND_GAIN = 4.0  # gain on held-out solutions of a trend in the rest, in its standard errors
_MAX_SAID = 3  # terms of an equation in a message
_FUNCTION_NAMES = "abcdefghij"  # of coefficients that depend on place or time
_MIN_UNIT_POWER = 2  # smallest power of ten by which data are scaled
_STILL = 1e-9  # change in time, relative to the values, of data that do not change


@dataclass(frozen=True)
class FittedEquation:
    """An equation for one unknown that was fitted to data.

    Attributes:
        left: the left side, such as ``"u_t"``.
        factors: coefficients of the text by term. Those that agree within their errors are equal numbers; those that
            depend on place or time are functions without a formula.
        coefficients: fitted coefficients by term; of coefficients that are functions their mean.
        standard_errors: stated errors of the coefficients: what scatters over parts of the data, and how much the
            coefficients depend on how derivatives are read from the grid.
        residual: misfit on held-out data, relative to the left side.
        noise: part of the misfit that noise of the data accounts for.
        discretization: how much the fitted right side depends on how derivatives are read, relative to the left side.
        shares: size of each term, relative to the left side.
        variations: size of what depends on place or time, likewise, by term.
        varied: the variable that a coefficient depends on, by term.
        profiles: these functions: coefficients of slow functions of the variable, and their stated errors, ``[2, k]``.
        grid_terms: terms of higher order that were left out as errors of the scheme that made the data, with shares.
        averaged: by variable, the standard deviation in steps of the grid of averages that samples were taken for: the
            equation is that of what was averaged.
        reasons: why the equation is not certain, one sentence each; none if it is.
    """

    left: str
    factors: dict[str, str]
    coefficients: dict[str, float]
    standard_errors: dict[str, float]
    residual: float
    noise: float = 0.0
    discretization: float = 0.0
    shares: dict[str, float] = field(default_factory=dict)
    variations: dict[str, float] = field(default_factory=dict)
    varied: dict[str, str] = field(default_factory=dict)
    profiles: dict[str, Array] = field(default_factory=dict)
    grid_terms: dict[str, float] = field(default_factory=dict)
    averaged: dict[str, float] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @property
    def unexplained(self) -> float:
        """The share of the left side that neither noise nor discretization accounts for."""
        return _unexplained(self.residual, self.noise, self.discretization)

    @property
    def says_unexplained(self) -> bool:
        """True if a share is left unexplained that is small and no rounding."""
        return self.unexplained > _MIN_SAID

    @property
    def text(self) -> str:
        """The equation as `trivgeo.symmetry.find_symmetries` reads it."""
        return self.without(())

    def with_parameters(self, prefix: str) -> tuple[str, dict[str, tuple[float, float, float]]]:
        """The text with names for its numbers, and of each name the number, the fitted coefficient and its error.

        Args:
            prefix: what the names begin with.
        """
        parts, values = [], {}
        for i, (term, factor) in enumerate(self.factors.items()):
            if term in self.varied:
                parts.append(f"{factor}*{term}")
                continue
            name = f"{prefix}{i}"
            number = float(Fraction(factor.strip("()")))
            error = max(self.standard_errors[term], _MIN_RELATIVE_ERROR * abs(number))
            values[name] = (number, self.coefficients[term], error)
            parts.append(f"{name}*{term}")
        return f"{self.left} = {' + '.join(parts) or '0'}", values

    def without(self, small: Collection[str]) -> str:
        """The text without some terms; of those with a coefficient that depends on place or time its mean stays."""
        parts = []
        for term, factor in self.factors.items():
            if term not in small:
                parts.append(f"{factor}*{term}")
            elif term in self.varied:
                mean, error = self.coefficients[term], self.standard_errors[term]
                if abs(mean) > MIN_STDS * error:
                    parts.append(f"({simplest(mean, _MAX_STDS * error)})*{term}")
        return f"{self.left} = {' + '.join(parts) or '0'}"


def fit_equations(
    values: Float[Tensor, "b c s ..."], axes: Sequence[Tensor], order: int | None, degree: int | None
) -> list[FittedEquation]:
    r"""Equations :math:`\partial_t^r u^a = \sum_k \theta_k T_k` with r = 1, or else 2.

    The terms :math:`T_k` are products of derivatives, and derivatives of products. Both sides are averaged against
    smooth bumps, to which derivatives in time are moved (weak form: Messenger and Bortz 2021). Derivatives in space are
    read by central differences of several orders, and by interpolating waves on periodic axes, so that solutions of a
    difference scheme are recognized, and coefficients are as uncertain as their readings differ. The smallest set of
    terms is taken that predicts held-out data as well as larger ones, and of which each term is at least five stated
    errors. Then coefficients that are functions of place or time are tried.

    Raises:
        ConfigurationError: the grid is too coarse, the data do not change, no equation of that form holds, or several
            do.
    """
    units = _Units.of(values, axes)
    fits = _Fits(Windows(*units.applied(values, axes)), units, order, degree)
    found = [fits.equation(unknown) for unknown in range(values.shape[1])]
    return with_tied_functions([fits.in_given_units(equation) for equation in found])


class _Units(NamedTuple):
    """Powers of ten in which values, places and times are of the size of one.

    Sizes within a factor of a hundred of one stay as they are. All unknowns have one unit, and so have all axes of
    space, so that coefficients of components and of axes can be compared.
    """

    value: int
    place: int
    time: int

    @classmethod
    def of(cls, values: Tensor, axes: Sequence[Tensor]) -> _Units:
        """The units of data, see `fit_equations`."""
        sizes = [float(values.double().flatten(2).std(-1).max()) if values.numel() else 0.0]
        lengths = [
            float((axis[-1] - axis[0]).abs()) / max(len(axis) - 1, 1) ** 0.5 if len(axis) else 0.0 for axis in axes
        ]
        sizes += [max(lengths[1:], default=0.0), lengths[0]]
        powers = [round(math.log10(size)) if 0.0 < size < math.inf else 0 for size in sizes]
        return cls(*(power if abs(power) >= _MIN_UNIT_POWER else 0 for power in powers))

    def applied(self, values: Tensor, axes: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Data in these units."""
        powers = [self.time] + [self.place] * (len(axes) - 1)
        scaled = (axis if not k else axis.double() / 10.0**k for axis, k in zip(axes, powers, strict=True))
        return values if not self.value else values.double() / 10.0**self.value, list(scaled)

    def power(self, term: Term, times: int) -> int:
        """The power of ten of a coefficient in the units of the data, where the left side has so many derivatives."""
        order = sum(term.outer) + sum(sum(index) for _, index in term.factors)
        return self.value * (1 - len(term.factors)) + self.place * order - self.time * times


class _Member(NamedTuple):
    """A term of an equation: its coefficient (or the mean), the stated error, and sizes relative to the left side."""

    term: Term
    value: float
    error: float
    share: float
    variation: float
    axis: str
    profile: Array


class _Candidate:
    """A fitted equation in the making."""

    def __init__(
        self,
        regression: Regression,
        fit: Fit,
        terms: Sequence[Term],
        axes: Sequence[str] = (),
        reading: int | None = None,
    ) -> None:
        self.regression, self.fit, self.terms = regression, fit, terms
        self.reading = fit.reading if reading is None else reading  # of the grid
        self.axes = axes  # of each term of the regression, the axis that its coefficient depends on
        self.grid_terms: dict[str, float] = {}

    @property
    def members(self) -> list[_Member]:
        """The terms, simple ones first."""
        result, start, n = [], 0, self.regression.terms
        x = self.regression.x[self.fit.reading] * self.regression.scale
        for j in sorted(self.fit.subset, key=lambda j: j >= n):
            is_varied = j < n and self.regression.width > 1
            size = self.regression.width if is_varied else 1
            part = slice(start, start + size)
            start += size
            first = j * self.regression.width if j < n else (j - n) * self.regression.width
            values = self.fit.values[part]
            own = x[:, first : first + size]
            sizes = [float(np.linalg.norm(own[:, k:] @ values[k:])) / self.regression.total for k in (0, 1)]
            term = self.terms[j if j < n else j - n]
            axis = self.axes[j] if is_varied else ""
            errors = self.fit.errors[part]
            profile = np.stack([values, errors])
            result.append(_Member(term, float(values[0]), float(errors[0]), sizes[0], sizes[1], axis, profile))
        return sorted(result, key=lambda member: member.term.complexity)

    def said(self, units: _Units, times: int) -> str:
        """The right side in words, its largest terms alone, in the units of the data."""
        members = sorted(self.members, key=lambda m: -m.share)
        more = f" + {len(members) - _MAX_SAID} more" if len(members) > _MAX_SAID else ""
        values = [m.value * 10.0 ** units.power(m.term, times) for m in members]
        return (
            " + ".join(f"{v:.3g}*{m.term.text}" for v, m in list(zip(values, members, strict=True))[:_MAX_SAID]) + more
        )

    @property
    def rest(self) -> Array:
        """What the equation leaves of the left side in each window."""
        columns = self.regression.columns(self.fit.subset)
        x = self.regression.x[self.fit.reading][:, columns] * self.regression.scale[columns]
        return np.asarray(self.regression.y - x @ self.fit.values, dtype=np.float64)

    def expanded(self) -> dict[Monomial, float]:
        """The right side as a sum of products of derivatives."""
        return _expanded(self.members)


class _Averaged(NamedTuple):
    """An average that samples may be.

    Attributes:
        average: the average.
        subset: numbers of terms of the equation of what was averaged.
        misfit: their misfit.
    """

    average: Average
    subset: tuple[int, ...]
    misfit: float


class _Fits:
    """The fits of all unknowns."""

    def __init__(self, windows: Windows, units: _Units, order: int | None, degree: int | None) -> None:
        self.windows, self.units, self.order, self.degree = windows, units, order, degree
        is_scalar_line = windows.unknowns == windows.dims == 1
        simplest = 4 if is_scalar_line else 2 if windows.unknowns > 1 and windows.dims > 1 else 3
        self.terms = library_of(
            windows.unknowns, windows.dims, order or simplest, degree or (5 if is_scalar_line else 3)
        )
        self.names = [axis.name for axis in (windows.time, *windows.space)]
        self._features: Array | None = None
        self._varied: dict[tuple[Reading, int], Array] = {}

    @property
    def features(self) -> Array:
        """Averages of all terms, ``[r, b, t, w, terms, 1]``."""
        if self._features is None:
            self._features = np.stack([self.windows.features(self.terms, r).numpy() for r in self.windows.readings])
        return self._features

    def varied(self, reading: int, axis: int) -> Array:
        """Averages of simple terms times functions of one axis, ``[1, b, t, w, terms, k]``."""
        key = (self.windows.readings[reading], axis)
        if key not in self._varied:
            terms = self.terms[:_NUM_VARIED_CANDIDATES]
            self._varied[key] = self.windows.features(terms, key[0], axis, _NUM_FUNCTIONS).numpy()[None]
        return self._varied[key]

    def equation(self, unknown: int) -> FittedEquation:
        """The equation of one unknown."""
        windows = self.windows
        name = "uvwpq"[unknown]
        size = float(windows.values[:, unknown].square().mean().sqrt())
        refused = ""
        for times in (1, 2):
            target = windows.target(unknown, times).numpy()
            width = (windows.time.half * windows.time.step) ** times
            if float(np.sqrt(np.square(target).mean())) * width <= _STILL * max(size, 1e-300) or size == 0.0:
                raise ConfigurationError(f"samples: expected solutions that change in time, got {name} that do not")
            noise = self.noise(unknown, times, target)
            candidate = self.candidate(target)
            unexplained = math.sqrt(max(candidate.fit.misfit**2 - noise**2, 0.0))
            if unexplained <= _MAX_UNEXPLAINED and noise <= _MAX_NOISE:
                return self.of_averages(candidate, target, unknown, times, noise)
            refused = refused or (
                f"of {name}_{'t' * times} {candidate.fit.misfit:.0%} are left unexplained by "
                f"{candidate.said(self.units, times)}, "
                f"and noise accounts for {min(noise, 1.0):.0%}"
            )
        raise ConfigurationError(
            f"samples: expected solutions of an equation of the terms of the library, got {refused}"
        )

    def of_averages(
        self, candidate: _Candidate, target: Array, unknown: int, times: int, noise: float
    ) -> FittedEquation:
        """The equation of one unknown, of what was averaged if samples are averages over neighbours.

        Averages obey an equation with more terms where it is not linear. It is given up if one number, the width of an
        average, explains much more than further terms do; where that is open, the equation is not certain.
        """
        left, number, fit = f"{'uvwpq'[unknown]}_{'t' * times}", unknown + 1, candidate.fit
        found = self.average(candidate, unknown, times)
        windows = None if found is None else self.windows.without(found.average)
        if found is not None and windows is not None:
            fits = _Fits(windows, self.units, self.order, self.degree)
            its_target = windows.target(unknown, times).numpy()
            its = fits.candidate(its_target)
            if len(its.fit.subset) > len(found.subset):
                regression = its.regression
                its = _Candidate(regression, regression.fit(fit.reading, found.subset), self.terms)
            if its.fit.misfit <= _CLEAR_DROP * fit.misfit and len(its.fit.subset) <= len(fit.subset):
                its_noise = fits.noise(unknown, times, its_target)
                equation = fits.of_averages(its, its_target, unknown, times, its_noise)
                widths = dict(equation.averaged)  # of an average of averages the variances add
                for place in found.average.places:
                    widths[self.names[place]] = math.hypot(found.average.std, widths.get(self.names[place], 0.0))
                return replace(equation, averaged=widths)
        equation = self.stated(candidate, target, left, noise, number)
        doubt = self.like_averages(candidate)
        if found is not None and len(found.subset) < len(fit.subset):
            doubt = found.average.places, found.average.std
        if doubt is None:
            return equation
        over = " and ".join(self.names[place] for place in doubt[0])
        reason = (
            f"some of the {len(fit.subset)} terms of {left} are like those that samples have which are averages over "
            f"{over}, of standard deviation {doubt[1]:.2g} steps"
        )
        return replace(equation, reasons=(*equation.reasons, reason))

    def average(self, candidate: _Candidate, unknown: int, times: int) -> _Averaged | None:
        """The average over neighbours without which few of the terms of an equation leave much less unexplained."""
        regression, fit = candidate.regression, candidate.fit
        if candidate.axes or fit.misfit <= MISFIT_FLOOR or all(len(m.term.factors) < 2 for m in candidate.members):
            return None  # averages of solutions of linear equations are solutions
        part, reading = self.windows.part(_MAX_AVERAGED_VALUES), self.windows.readings[fit.reading]
        if part.values.numel() > _MAX_PART * _MAX_AVERAGED_VALUES:
            return None  # of large sets the form of terms tells alone, see `like_averages`
        found: list[_Averaged] = []
        for subset in regression.path(fit.reading, len(fit.subset)):
            terms = [self.terms[j] for j in subset]
            if all(len(term.factors) < 2 for term in terms):
                continue

            def misfit(average: Average, terms: list[Term] = terms) -> float:
                windows = part.without(average)
                if windows is None:
                    return math.inf
                features = windows.features(terms, reading).numpy()[None]
                its_target = windows.target(unknown, times).numpy()
                return Regression(features, its_target).misfit(0, range(len(terms)))

            best = best_average(misfit, self.windows.dims)
            if best is None:
                continue
            average, least, plain = best
            if least <= min(_CLEAR_DROP * plain, _MAX_OPEN_RISE * fit.misfit):
                found.append(_Averaged(average, subset, least))
                if least <= _CLEAR_DROP * fit.misfit:
                    return found[-1]
        enough = [f for f in found if f.misfit <= _MAX_AVERAGED_RISE * fit.misfit]
        return min(enough, key=lambda f: len(f.subset), default=min(found, key=lambda f: f.misfit, default=None))

    def like_averages(self, candidate: _Candidate) -> tuple[tuple[int, ...], float] | None:
        """The axes and the width in steps of an average that gives all but some terms of an equation the others.

        Such terms are certain only if the equation with them is so exact that higher orders of the width would be seen.
        """
        members, space = candidate.members, range(1, self.windows.dims + 1)
        if candidate.axes:
            return None
        for size in range(1, len(members)):
            for some in itertools.combinations(members, size):
                others = [m for m in members if m not in some]
                share = math.hypot(*(m.share for m in others))
                if candidate.fit.misfit <= _MIN_HIGHER_ORDER * share:
                    continue
                for places in [(place,) for place in space] + [tuple(space)] * (len(space) > 1):
                    variance = variance_of(_expanded(some), _expanded(others), [place - 1 for place in places])
                    std = math.sqrt(variance) / min(self.windows.space[place - 1].step for place in places)
                    if MIN_STD <= std <= MAX_STD:
                        return places, std
        return None

    def in_given_units(self, equation: FittedEquation) -> FittedEquation:
        """An equation with its coefficients in the units of the data."""
        times = equation.left.count("t")
        powers = {term.text: self.units.power(term, times) for term in self.terms if term.text in equation.factors}
        if not any(powers.values()):
            return equation

        def scaled(numbers: dict[str, float]) -> dict[str, float]:
            return {term: number * 10.0 ** powers[term] for term, number in numbers.items()}

        return replace(
            equation,
            factors={
                term: factor
                if term in equation.varied
                else f"({Fraction(factor.strip('()')) * Fraction(10) ** powers[term]})"
                for term, factor in equation.factors.items()
            },
            coefficients=scaled(equation.coefficients),
            standard_errors=scaled(equation.standard_errors),
            profiles={term: profile * 10.0 ** powers[term] for term, profile in equation.profiles.items()},
        )

    def noise(self, unknown: int, times: int, target: Array) -> float:
        """The share of the left side that noise accounts for which is independent between points."""
        order, values = _NOISE_DIFFERENCE_ORDER, self.windows.values[:, unknown]
        sizes = []
        for axis in range(1, values.ndim):
            if values.shape[axis] > order:
                difference = values.diff(order, axis).square().mean()
                sizes.append(float(difference.sqrt()) / math.comb(2 * order, order) ** 0.5)
        axes = [self.windows.time, *self.windows.space]
        weights = [float(a.weights(times if i == 0 else 0)[0].norm()) for i, a in enumerate(axes)]
        return min(sizes, default=0.0) * math.prod(weights) / max(float(np.sqrt(np.square(target).mean())), 1e-300)

    def candidate(self, target: Array) -> _Candidate:
        """The fit with constant coefficients, or with coefficients that are functions of one axis."""
        regression = Regression(self.features, target)
        best = self.simplified(_Candidate(regression, regression.selected(_MAX_NUM_TERMS), self.terms))
        if best.fit.misfit <= MIN_SHARE or len(self.windows.values) < _MIN_NUM_VARIED:
            return best
        axes = range(self.windows.dims + 1)
        found = [c for axis in axes if (c := self.dependent(best, (axis,), target, best.fit.misfit))]
        chosen = min(found, key=lambda c: c.fit.misfit, default=best)
        if chosen.fit.misfit > _MAX_OPEN:
            pairs = [(0, axis) for axis in axes[1:]]
            found = [c for pair in pairs if (c := self.dependent(best, pair, target, chosen.fit.misfit))]
            chosen = min(found, key=lambda c: c.fit.misfit, default=chosen)
        return chosen

    def dependent(self, best: _Candidate, axes: Sequence[int], target: Array, misfit: float) -> _Candidate | None:
        """An equation with coefficients that depend on one axis of some, if it predicts clearly better.

        Args:
            best: the equation with constant coefficients.
            axes: the axes.
            target: averages of the left side.
            misfit: misfit that is to be undercut.
        """
        reading = best.fit.reading
        regression = Regression(np.concatenate([self.varied(reading, axis) for axis in axes], -2), target)
        n = regression.terms
        terms = self.terms[: n // len(axes)] * len(axes)
        own = [j for j in best.fit.subset if j < n]
        forcing = [j for j in range(n) if not terms[j].factors and j not in own]
        constant = [n + j for j in own]
        choices: list[tuple[int, ...]] = []
        if len(axes) == 1 and len(own) == len(best.fit.subset):
            choices = [(*(i for i in constant if i != n + j), j) for j in (*own, *forcing)]
        misfits = [regression.misfit(0, s) for s in choices]
        slight = min(misfits, default=math.inf)
        # several functions, or other terms, have to be much better
        largest = min(_MAX_VARIED_TERMS, len(best.fit.subset) + 1) if len(axes) == 1 else _MAX_VARIED_TERMS + 1
        wide = [tuple(own), *regression.path(0, largest)]
        misfits += [regression.misfit(0, s) for s in wide]
        choices += wide
        least = min(misfits)
        if least > _CLEAR_DROP * misfit:
            choices, misfits, least = choices[: -len(wide)], misfits[: -len(wide)], slight
            if least > _MIN_DROP * misfit:
                return None
            plain = best.regression.left_over(reading, best.fit.subset)
            gains = plain - regression.left_over(0, choices[int(np.argmin(misfits))])
            if float(gains.mean()) < _MIN_GAIN * float(gains.std()) / max(len(gains) - 1, 1) ** 0.5:
                return None
        near = [i for i, r in enumerate(misfits) if r <= 1.1 * least + MIN_SHARE]
        chosen = choices[min(near, key=lambda i: len(regression.columns(choices[i])))]
        subset = list(chosen)
        # coefficients that need not vary are constant
        enough = 1.05 * least + MIN_SHARE
        for j in chosen:
            others = [i for i in subset if i != j]
            if j < n and len(subset) > 1 and regression.misfit(0, others) <= enough:
                subset = others
            elif j < n and regression.misfit(0, [*others, n + j]) <= enough:
                subset = [*others, n + j]
        twice = len({terms[j % n] for j in subset}) < len(subset)
        if twice or all(j >= n for j in subset):
            return None
        fit = regression.fit(0, sorted(subset))
        fit = fit._replace(discretization=best.fit.discretization)
        names = [self.names[axis] for axis in axes for _ in range(n // len(axes))]
        return _Candidate(regression, fit, terms, names, reading)

    def simplified(self, full: _Candidate) -> _Candidate:
        """A smaller equation that differs by terms of higher order alone, as errors of difference schemes do."""
        regression, wide = full.regression, full.expanded()
        if len(full.fit.subset) < 2:
            return full
        for size in range(1, len(full.fit.subset)):
            tried = []
            for reading in range(len(regression.x)):
                subset = regression.path(reading, size)[-1]
                fit = regression.fit(reading, subset)
                tried.append(_Candidate(regression, fit, self.terms))
            tried.sort(key=lambda c: c.fit.misfit)
            for small in tried:
                if small.fit.misfit <= small.fit.discretization and regression.valid(small.fit):
                    # terms that leave nothing are multiples of steps of the grid, or real
                    is_exact = full.fit.misfit <= _EXACT_DROP * small.fit.misfit
                    steps = [axis.step for axis in self.windows.space] if is_exact else []
                    extra = _grid_monomials(small.expanded(), wide, small.fit.discretization, steps)
                    if extra is not None:
                        small.grid_terms = {Term((0,) * self.windows.dims, m).text: abs(v) for m, v in extra.items()}
                        return small
        return full

    def trend(self, candidate: _Candidate, target: Array) -> tuple[str, float]:
        """The term times a slow function of place and time that predicts the rest of held-out solutions best.

        Returns:
            The term in words, and the share of the left side that it predicts; no words and zero if there is none.
        """
        rest = candidate.rest.reshape(target.shape)
        if len(rest) < _MIN_NUM_TREND:
            return "", 0.0
        # each solution counts alike: errors are larger where solutions are
        weights = 1 / np.maximum(np.sqrt(np.square(rest).sum((1, 2))), 1e-300)
        windows = self.windows
        slow = [
            axis.basis(_NUM_TRENDS - (i == 0))[:, axis.centres].numpy()
            for i, axis in enumerate((windows.time, *windows.space))
        ]
        counts = [values.shape[1] for values in slow[1:]]
        places = [np.ones((1, *counts))]
        for i, values in enumerate(slow[1:]):
            shape = [len(values) - 1, *(n if k == i else 1 for k, n in enumerate(counts))]
            places.append(np.broadcast_to(values[1:].reshape(shape), (len(values) - 1, *counts)))
        in_space = np.concatenate(places).reshape(-1, math.prod(counts))
        products = slow[0][:, None, :, None] * in_space[None, :, None, :]  # [time, space, t, w]
        trends = {"t": products[1:, 0], "place": products[:, 1:].reshape(-1, *products.shape[2:])}
        force = next(j for j, term in enumerate(self.terms) if not term.factors)
        own = [self.terms.index(member.term) for member in candidate.members]
        best, said, share = _MIN_TREND_GAIN, "", 0.0
        for j in dict.fromkeys([force, *own]):
            for kind, functions in trends.items():
                columns = np.einsum("btw,mtw->btwm", self.features[candidate.reading][..., j, 0], functions)
                gains = _held_out_gains(columns * weights[:, None, None, None], rest * weights[:, None, None])
                size = float(gains.mean()) / max(float(gains.std()) / (len(gains) - 1) ** 0.5, 1e-300)
                gained = math.sqrt(max(float(gains.mean()), 0.0)) * candidate.fit.misfit
                if size > best and gained > _MIN_SAID:
                    name = self.terms[j].text if self.terms[j].factors else "a force"
                    best, said, share = size, f"{name} that depends on {kind}", gained
        return said, share

    def stated(
        self, candidate: _Candidate, target: Array, left: str, noise: float, number_of_unknown: int
    ) -> FittedEquation:
        """The equation with its coefficients made simple, and the reasons why it is not certain."""
        members, fit = candidate.members, candidate.fit
        numbers = rounded([m.value for m in members], [m.error for m in members])
        factors = {
            m.term.text: f"{_FUNCTION_NAMES[i]}{number_of_unknown}({m.axis})" if m.axis else f"({number})"
            for i, (m, number) in enumerate(zip(members, numbers, strict=True))
        }
        reasons = []
        gap = _unexplained(fit.misfit, noise, min(fit.discretization, _MAX_DISCRETIZATION))
        if gap > _MAX_OPEN:
            reasons.append(
                f"{fit.misfit:.1%} of {left} are left unexplained, more than noise ({noise:.1%}) and discretization "
                f"({fit.discretization:.1%}) account for"
            )
        trend, share = self.trend(candidate, target)
        if trend:
            reasons.append(f"of what is left of {left} a part of {share:.1%} is like {trend}")
        growing = _growing(members, number_of_unknown - 1)
        if growing:
            reasons.append(
                f"by {left} = ... {growing} short waves grow without bound: the data are of no equation of this order"
            )
        other = self.alternative(candidate)
        if other is not None:
            mine, its = (c.said(self.units, left.count("t")) for c in (candidate, other))
            raise ConfigurationError(
                f"samples: expected solutions that determine their equation, got some that {left} = {its} "
                f"explains as well as {left} = {mine} (misfits {other.fit.misfit:.1e}, {fit.misfit:.1e})"
            )
        return FittedEquation(
            left,
            factors,
            {m.term.text: m.value for m in members},
            {m.term.text: m.error for m in members},
            fit.misfit,
            noise,
            fit.discretization,
            {m.term.text: m.share for m in members},
            {m.term.text: m.variation for m in members if m.axis},
            {m.term.text: m.axis for m in members if m.axis},
            {m.term.text: m.profile for m in members if m.axis},
            candidate.grid_terms,
            reasons=tuple(reasons),
        )

    def alternative(self, candidate: _Candidate) -> _Candidate | None:
        """Another equation that predicts held-out data as well, of as many terms or one more."""
        regression, fit = candidate.regression, candidate.fit
        own = [j for j in fit.subset if j < regression.terms]
        mine = candidate.expanded()
        for j in own:
            largest = len(fit.subset) + (not candidate.axes)
            path = regression.path(fit.reading, largest, without=(j,))
            for subset in path[-2:]:
                misfit = regression.misfit(fit.reading, subset)
                if misfit > 2 * fit.misfit + MISFIT_FLOOR:
                    continue
                if regression.gain(fit.reading, subset, fit.subset) > _MAX_STDS:
                    continue
                other = _Candidate(regression, regression.fit(fit.reading, subset), candidate.terms, candidate.axes)
                theirs = other.expanded()
                scale = max(map(abs, mine.values()))
                off = max(abs(theirs.get(m, 0.0) - mine.get(m, 0.0)) for m in {*mine, *theirs})
                if off > 0.05 * scale:
                    return other
        return None


def _expanded(members: Sequence[_Member]) -> dict[Monomial, float]:
    """Terms with their coefficients as a sum of products of derivatives."""
    total: dict[Monomial, float] = {}
    for member in members:
        for monomial, count in member.term.expanded().items():
            total[monomial] = total.get(monomial, 0.0) + member.value * count
    return total


def _growing(members: Sequence[_Member], unknown: int) -> str:
    """A linear term of highest order by which short waves grow, the faster the shorter; empty if there is none.

    No state evolves by such an equation. Fits of operators that are not local, which are series of derivatives, end in
    terms of either sign.
    """

    def orders(term: Term) -> list[tuple[int, ...]]:
        inner = [index for _, index in term.factors]
        return [tuple(map(sum, zip(term.outer, index, strict=True))) for index in inner] or [term.outer]

    top = max((sum(index) for m in members for index in orders(m.term)), default=0)
    highest = [m for m in members if any(sum(index) == top for index in orders(m.term))]
    if top < 2 or top % 2 or any(len(m.term.factors) != 1 or m.term.factors[0][0] != unknown for m in highest):
        return ""
    sign = (-1) ** (top // 2)
    is_pure = all(max(orders(m.term)[0]) == top for m in highest)
    found = [m for m in highest if is_pure and not m.axis and sign * m.value > _MAX_STDS * m.error]
    return f"({'+' if found[0].value > 0 else '-'}) {found[0].term.text}" if found else ""


def with_tied_functions(equations: Sequence[FittedEquation]) -> list[FittedEquation]:
    """Equations in which coefficients that are functions of one variable are multiples of each other, if within errors.

    As for numbers, no function is compared whose relative error is large.
    """
    known: list[tuple[str, str, Array]] = []
    result = []
    for equation in equations:
        factors = dict(equation.factors)
        for term, axis in equation.varied.items():
            profile = equation.profiles[term]
            if np.linalg.norm(profile[1]) >= _TIE_ERROR * np.linalg.norm(profile[0]):
                continue
            multiples = [(name, m) for name, other, p in known if other == axis and (m := _multiple(p, profile))]
            if multiples:
                name, multiple = multiples[0]
                factors[term] = f"({multiple})*{name}"
            else:
                known.append((factors[term], axis, profile))
        result.append(replace(equation, factors=factors))
    return result


def _multiple(first: Array, second: Array) -> Fraction | None:
    """The number times which a function is another one, within stated errors; ``None`` if there is none."""
    (values, errors), (others, other_errors) = first, second
    ratio = float(values @ others / (values @ values))
    scatter = np.hypot(ratio * errors, other_errors)
    floor = _MIN_RELATIVE_ERROR * float(np.linalg.norm(others))
    if (np.abs(others - ratio * values) > _MAX_STDS * np.maximum(scatter, floor)).any():
        return None
    error = float(np.sqrt(np.square(values) @ np.square(scatter))) / float(values @ values)
    return simplest(ratio, _MAX_STDS * error)


def _held_out_gains(columns: Array, rest: Array) -> Array:
    """How much less of the squared rest of each solution a fit to other solutions leaves, ``[b]``.

    Args:
        columns: what is fitted, ``[b, t, w, m]``.
        rest: ``[b, t, w]``.
    """
    grams = np.einsum("btwm,btwn->bmn", columns, columns)
    moments = np.einsum("btwm,btw->bm", columns, rest)
    folds = np.arange(len(rest)) % _NUM_TREND_FOLDS
    gains = np.empty(len(rest))
    for fold in range(_NUM_TREND_FOLDS):
        own = folds == fold
        gram = grams[~own].sum(0)
        ridge = 1e-10 * max(float(np.trace(gram)) / len(gram), 1e-300) * np.eye(len(gram))
        theta = np.linalg.solve(gram + ridge, moments[~own].sum(0))
        gains[own] = 2 * moments[own] @ theta - np.einsum("i,bij,j->b", theta, grams[own], theta)
    return gains


def _unexplained(misfit: float, noise: float, discretization: float) -> float:
    """The part of a misfit that neither noise nor discretization accounts for."""
    return math.sqrt(max(misfit**2 - (1.5 * noise) ** 2 - discretization**2, 0.0))


def _grid_monomials(
    small: dict[Monomial, float], wide: dict[Monomial, float], share: float, steps: Sequence[float]
) -> dict[Monomial, float] | None:
    """What a larger equation has beyond a smaller one, if it is of the form that truncation errors have.

    Args:
        small: the smaller equation.
        wide: the larger one.
        share: difference of readings, relative to the left side.
        steps: steps of the grid of whose squares coefficients have to be multiples; none if they need not be.
    """
    extra = {}
    orders = {m: sum(sum(index) for _, index in m) for m in (*small, *wide)}
    lowest, largest = min(orders[m] for m in small), max(map(abs, wide.values()))
    for monomial, value in wide.items():
        if monomial in small:
            if abs(value - small[monomial]) > max(5 * share, 0.02) * abs(small[monomial]):
                return None
        elif abs(value) > 1e-9 * largest:
            units = [abs(value) * _GRID_PARTS / (abs(c) * h**2) for c in small.values() for h in steps]
            if orders[monomial] < lowest + 2 or (units and min(abs(k - max(round(k), 1)) / k for k in units) > 1e-3):
                return None
            extra[monomial] = value
    return extra if all(m in wide for m in small) else None


def rounded(values: Sequence[float], errors: Sequence[float]) -> list[Fraction]:
    """Coefficients that agree within their stated errors made equal, then each the simplest number within its error.

    Simplicity does not depend on the scale: numbers are fractions times powers of ten.
    """
    groups: list[list[int]] = []
    for i in sorted(range(len(values)), key=lambda i: errors[i] / max(abs(values[i]), 1e-300)):
        for group in groups:
            mean, error = _mean([abs(values[k]) for k in group], [errors[k] for k in group])
            apart = abs(abs(values[i]) - mean)
            if errors[i] < _TIE_ERROR * abs(values[i]) and apart <= _MAX_STDS * math.hypot(errors[i], error):
                group.append(i)
                break
        else:
            groups.append([i])
    result = [Fraction(0)] * len(values)
    for group in groups:
        mean, error = _mean([abs(values[k]) for k in group], [errors[k] for k in group])
        simple = simplest(mean, _MAX_STDS * error)
        for k in group:
            result[k] = simple if values[k] > 0 else -simple
    return result


def _mean(values: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """The weighted mean of numbers with errors, and its error."""
    weights = [1 / max(e, 1e-15 * abs(v), 1e-300) ** 2 for v, e in zip(values, errors, strict=True)]
    top = max(weights)
    weights = [w / top for w in weights]
    mean = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    return mean, (1 / sum(weights) / top) ** 0.5


def simplest(value: float, tolerance: float) -> Fraction:
    """The shortest number within a tolerance: a fraction of small denominator, or else a decimal.

    Example:
        >>> str(simplest(1.50000001e-5, 1e-11)), str(simplest(0.33333, 1e-4)), str(simplest(0.0780012, 1e-5))
        ('3/200000', '1/3', '39/500')
    """
    tolerance = max(tolerance, _MIN_RELATIVE_ERROR * abs(value))
    for denominator in range(1, 13):
        nearest = Fraction(round(value * denominator), denominator)
        if nearest and abs(float(nearest) - value) <= tolerance:
            return nearest
    exponent = math.floor(math.log10(abs(value)))
    for digits in range(16):
        unit = Fraction(10) ** (exponent - digits)
        nearest = round(Fraction(value) / unit) * unit
        if abs(float(nearest) - value) <= tolerance:
            return nearest
    return Fraction(value)
