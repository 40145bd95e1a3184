"""Least squares over subsets of candidate terms, with errors from several readings and held-out data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_NUM_FOLDS = 5
_BEAM = 6  # subsets of each size from which larger ones are made
_RIDGE = 1e-14  # added to the Gram matrix of normalized terms
_MAX_GAIN_KEPT = 1.1  # a smaller subset is preferred if its misfit is below this multiple of the best
MISFIT_FLOOR = 1e-7
"""Relative misfits below this are those of rounding."""
_MAX_SHARE_STDS = 2.0  # standard errors of the place between two readings that are allowed for
MIN_SHARE = 1e-4
"""Size of a term that is kept, relative to the left side: smaller ones may be of the solver that made the data."""
MIN_STDS = 5.0
"""Size of a coefficient that is kept, in its stated errors."""


class Fit(NamedTuple):
    """A least-squares fit of some terms.

    Attributes:
        reading: the number of the reading of the grid.
        subset: the numbers of the terms.
        values: their coefficients.
        errors: stated errors of the coefficients: statistical ones, and those of reading the grid.
        shares: sizes of the terms, relative to the left side.
        misfit: misfit on held-out data, relative to the left side.
        discretization: largest difference between two readings of the fitted right side, relative to the left side.
    """

    reading: int
    subset: tuple[int, ...]
    values: Array
    errors: Array
    shares: Array
    misfit: float
    discretization: float

    @property
    def scores(self) -> Array:
        """Coefficients in units of their stated errors."""
        return np.abs(self.values) / np.maximum(self.errors, np.finfo(float).tiny)


class Regression:
    """Regressions of one left side on columns that are groups of terms.

    Args:
        features: averages of terms for each reading, ``[r, b, t, w, terms, k]``; the k columns of a term are one group.
        target: averages of the left side, ``[b, t, w]``.
    """

    def __init__(self, features: Array, target: Array) -> None:
        readings, batch, times = features.shape[:3]
        self.terms, self.width = features.shape[-2:]
        rows = target.size
        x = features.reshape(readings, rows, -1)
        self.scale = np.sqrt(np.square(x[0]).sum(0))
        self.is_void = self.scale.reshape(self.terms, -1).max(1) <= 1e-13 * max(self.scale.max(), 1e-300)
        self.scale = np.where(self.scale > 0, self.scale, 1.0)
        self.x, self.y = x / self.scale, target.reshape(-1)
        self.total = float(np.sqrt(np.square(self.y).sum()))
        blocks = min(times, 4)
        part = np.arange(times) * blocks // times
        solution = np.broadcast_to(np.arange(batch)[:, None, None], target.shape).reshape(-1)
        block = np.broadcast_to(part[None, :, None], target.shape).reshape(-1)
        self.clusters = [solution * blocks + block] + ([solution] if batch >= 6 else [])
        whole = solution if batch >= _NUM_FOLDS else solution * blocks + block
        if whole.max() + 1 < _NUM_FOLDS:
            place = np.broadcast_to(np.arange(target.shape[2]), target.shape).reshape(-1)
            whole = whole * 4 + place * 4 // target.shape[2]
        self.folds = whole % _NUM_FOLDS
        own = [self.folds == f for f in range(_NUM_FOLDS)]
        self.grams = np.stack([[x[f].T @ x[f] for f in own] for x in self.x])  # [r, f, n, n]
        self.moments = np.stack([[x[f].T @ self.y[f] for f in own] for x in self.x])
        self.squares = np.array([np.square(self.y[f]).sum() for f in own])

    def columns(self, subset: Sequence[int]) -> NDArray[np.intp]:
        """Numbers of the columns of some terms; ``terms + j`` stands for the first column of term j alone."""
        groups = [np.arange(j * self.width, (j + 1) * self.width) for j in subset if j < self.terms]
        firsts = [np.array([(j - self.terms) * self.width]) for j in subset if j >= self.terms]
        return np.concatenate([*groups, *firsts]) if len(subset) else np.zeros(0, dtype=int)

    def held_out(self, reading: int, subset: Sequence[int]) -> Array:
        """Squared misfits of the folds, each by a fit to the other folds."""
        c = self.columns(subset)
        g, m = self.grams[reading][:, c[:, None], c], self.moments[reading][:, c]
        eye = _RIDGE * np.eye(len(c))
        theta = np.linalg.solve(g.sum(0) - g + eye, (m.sum(0) - m)[..., None])[..., 0]
        left = self.squares - 2 * np.einsum("fi,fi->f", theta, m) + np.einsum("fi,fij,fj->f", theta, g, theta)
        return np.maximum(left, 0.0)

    def left_over(self, reading: int, subset: Sequence[int]) -> Array:
        """Squared held-out misfits, summed over each part of the data."""
        c, rest = self.columns(subset), np.empty_like(self.y)
        for fold in range(_NUM_FOLDS):
            own = self.folds == fold
            x = self.x[reading][:, c]
            theta = np.linalg.lstsq(x[~own], self.y[~own], rcond=1e-14)[0]
            rest[own] = self.y[own] - x[own] @ theta
        return np.asarray(np.bincount(self.clusters[0], np.square(rest)), dtype=np.float64)

    def gain(self, reading: int, subset: Sequence[int], larger: Sequence[int]) -> float:
        """How much better another subset predicts held-out data, in standard errors over parts of the data."""
        gains = self.left_over(reading, subset) - self.left_over(reading, larger)
        deviation = float(gains.std()) / max(len(gains) - 1, 1) ** 0.5
        return float(gains.mean()) / max(deviation, 1e-300)

    def misfit(self, reading: int, subset: Sequence[int]) -> float:
        """The held-out misfit, relative to the left side."""
        if not len(subset):
            return 1.0
        return float(np.sqrt(self.held_out(reading, subset).sum())) / self.total

    def path(
        self, reading: int, largest: int, without: Sequence[int] = (), start: Sequence[int] = ()
    ) -> list[tuple[int, ...]]:
        """The best subset that was found of each size, by additions to the best smaller ones, and exchanges."""
        g, m = self.grams[reading].sum(0), self.moments[reading].sum(0)
        allowed = [j for j in range(self.terms) if j not in set(without) and not self.is_void[j]]
        beam: list[tuple[int, ...]] = [()]
        found = []
        for size in range(1, min(largest, len(allowed)) + 1):
            tried = {tuple(sorted((*s, j))) for s in beam for j in allowed if j not in s}
            beam = self._best(g, m, sorted(tried))
            best = beam[0]
            swapped = {
                tuple(sorted((*best[:i], *best[i + 1 :], j)))
                for i in range(size) for j in allowed if j not in best
            }  # fmt: skip
            beam = self._best(g, m, sorted({*swapped, *beam}))
            found.append(beam[0])
        return found

    def _best(self, g: Array, m: Array, subsets: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Subsets of one size with the largest explained squares."""
        if not subsets:
            return []
        c = np.stack([self.columns(s) for s in subsets])
        matrices = g[c[:, :, None], c[:, None, :]] + _RIDGE * np.eye(c.shape[1])
        right = m[c]
        explained = np.einsum("si,si->s", right, np.linalg.solve(matrices, right[..., None])[..., 0])
        return [subsets[i] for i in np.argsort(-explained)[:_BEAM]]

    def fit(self, reading: int, subset: Sequence[int]) -> Fit:
        """Fit some terms, with stated errors."""
        c = self.columns(subset)
        spread, discretization = np.zeros(len(c)), 0.0
        thetas = [np.linalg.lstsq(x[:, c], self.y, rcond=1e-14)[0] for x in self.x]
        theta, x = thetas[reading], self.x[reading][:, c]
        left = self.y - x @ theta
        inverse = np.linalg.pinv(x.T @ x, rcond=1e-14, hermitian=True)
        variance = np.zeros(len(c))
        for cluster in self.clusters:
            count = int(cluster.max()) + 1
            scores = np.zeros((count, len(c)))
            np.add.at(scores, cluster, x * left[:, None])
            influence = scores @ inverse
            variance = np.maximum(variance, np.square(influence).sum(0) * count / max(count - 1, 1))
        misfit = self.misfit(reading, subset)
        for other, values in zip(self.x, thetas, strict=True):
            if other is self.x[reading]:
                continue
            difference = (other[:, c] - x) @ theta
            discretization = max(discretization, float(np.linalg.norm(difference)) / self.total)
            share = self._share(left, difference - x @ (inverse @ (x.T @ difference)))
            spread = np.maximum(spread, share * np.abs(values - theta))
        errors = np.sqrt(variance + np.square(spread)) / self.scale[c]
        sizes = [self.width if j < self.terms else 1 for j in subset]
        parts = np.split(np.arange(len(c)), np.cumsum(sizes)[:-1])
        shares = np.array([np.linalg.norm(x[:, part] @ theta[part]) for part in parts]) / self.total
        return Fit(reading, tuple(subset), theta / self.scale[c], errors, shares, misfit, discretization)

    def _share(self, left: Array, between: Array) -> float:
        """How far the data may lie on the way from one reading to another, by least squares.

        Args:
            left: misfit of the reading.
            between: the difference of both right sides that coefficients cannot take up.
        """
        apart = float(np.square(between).sum())
        if apart <= (MISFIT_FLOOR * self.total) ** 2:
            return 1.0
        place = float(left @ between) / apart
        scatter = np.bincount(self.clusters[0], (left - place * between) * between)
        return min(abs(place) + _MAX_SHARE_STDS * float(np.linalg.norm(scatter)) / apart, 1.0)

    def valid(self, fit: Fit) -> bool:
        """Return True if each term counts."""
        return bool(self.weights(fit).min() >= 1)

    def weights(self, fit: Fit) -> Array:
        """How much each term counts, from one: its coefficient in stated errors, and its size."""
        sizes = [self.width if j < self.terms else 1 for j in fit.subset]
        scores = [part.max() for part in np.split(fit.scores, np.cumsum(sizes)[:-1])]
        return np.minimum(np.array(scores) / MIN_STDS, fit.shares / MIN_SHARE)

    def selected(self, largest: int) -> Fit:
        """The simplest subset of terms that all count, and is not worse than larger ones."""
        choices: list[tuple[float, int, list[tuple[int, ...]]]] = []
        for reading in range(len(self.x)):
            path = self.path(reading, largest)
            misfits = [self.misfit(reading, s) for s in path]
            best = min(misfits)
            size = next(k for k, r in enumerate(misfits) if r <= _MAX_GAIN_KEPT * best + MISFIT_FLOOR)
            choices.append((misfits[size], reading, path[: size + 1]))
        least = min(r for r, _, _ in choices)
        near = [c for c in choices if c[0] <= _MAX_GAIN_KEPT * least + MISFIT_FLOOR]
        _, reading, path = min(near, key=lambda c: len(c[2]))
        fits = []
        for subset in reversed(path):
            fit = self.fit(reading, subset)
            if self.valid(fit):
                fits.append(fit)
                break
        subset = path[-1]
        while subset:
            fit = self.fit(reading, subset)
            if self.valid(fit):
                fits.append(fit)
                break
            worst = int(self.weights(fit).argmin())
            subset = (*subset[:worst], *subset[worst + 1 :])
        if not fits:
            return self.fit(reading, path[0])
        return min(fits, key=lambda fit: (fit.misfit, len(fit.subset)))
