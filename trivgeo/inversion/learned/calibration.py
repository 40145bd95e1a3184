"""Calibration of a learned inverter on clean data that its training did not see: coverage, outliers, the gate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from trivgeo._autocast import matmul
from trivgeo._devices import module_device, on_device
from trivgeo._random import keyed
from trivgeo._torch import pytree
from trivgeo.checks import checked
from trivgeo.inversion.learned.backbone import NoiseNetwork
from trivgeo.inversion.learned.posterior_density import DensityFit, fit_density, mixture_of_draws
from trivgeo.inversion.learned.score import LearnedScore, apply_inverse
from trivgeo.inversion.sampling.mixture import StudentMixture
from trivgeo.inversion.transformations import Transformations, sample_elements
from trivgeo.verdict import Verdict

MIN_DATA, _MAX_DATA = 64, 800  # numbers of data of a calibration
_TIME_MARGIN = 0.8  # share of the time that is left for which a calibration is planned
MIN_DISTINCT = 8
"""Number of held-out clean data below which their coverage says nothing of others."""
_MAX_USES = 16  # number of transformations of each held-out datum, beyond which more say little
_MAX_EVALUATIONS = 250_000  # evaluations of the network
_INVERSIONS_PER_DATUM = 12  # inversions of a calibration, besides the draws of a density
_EVALUATIONS_PER_SAMPLE = 3  # evaluations of the network for a training sample: the derivative costs two
_FALSE_ALARM_RATE = 0.04  # share of clean validation data that are flagged; 0.05 is promised, the rest is for chance
_SHARE_LEFT_ALONE = 0.997  # share of clean validation data that the gate leaves alone
_NUM_DRAWN_ELEMENTS = 8192
_NEIGHBOUR_RANK = 8  # rank of the nearest drawn element whose distance measures how unusual an element is
_SHRINKAGE = 1e-3  # variance added to features in every direction, in units of their mean variance
_REGION_MASSES = (0.5, 0.9)
_NUM_THRESHOLDS = 48  # thresholds that are tried
_MAX_USUAL_ERROR = 6.0  # error in robust standard deviations: errors in another mode of the posterior are larger

REASONS = (
    "the restored datum is unlike clean data",
    "the datum is unlike transformed clean data",
    "the transformation found is outside of the distribution",
)
"""Reasons that `Calibration.scores` above their thresholds stand for."""
_FEW_ASSUMED = "others are as the few clean data of the training, on which thresholds and errors were measured"


class CalibrationSource(NamedTuple):
    """Sources of a calibration: data, transformations, and the inverter's answers.

    Attributes:
        known: (count, generator) to clean data of the training, for moments of features.
        clean: likewise, data that the training did not see.
        transformations: their distribution.
        estimate: data to the elements found, ``[b, *element_shape]``.
        draw: data to draws of the learned posterior, ``[b, K, *element_shape]``.
        at_once: number of data that are moved at once; ``None`` for all.
        together: number of data that the network sees at once; ``None`` for all.
    """

    known: Callable[[int, torch.Generator], Any]
    clean: Callable[[int, torch.Generator], Any]
    transformations: Transformations
    estimate: Callable[[Any], Tensor]
    draw: Callable[[Any], Tensor]
    at_once: int | None = None
    together: int | None = None


@checked
class Calibration(nn.Module):
    """Calibration of a learned inverter by data that its training did not see.

    Args:
        tensors: moments of features and drawn elements, which become buffers.

    Attributes:
        num_data: number of these data.
        coverage: share of them whose transformation lies in the region of highest posterior density of a given mass,
            by that mass. It is cross-validated: the density of each half of the data is fitted to the other half. Empty
            where fewer than eight clean data were held out.
        fit: changes that turn draws of the learned posterior into a density that these data follow.
        false_alarms: share of clean data, moved by the transformations or not (the larger one), that are not `trusted`.
        thresholds: thresholds of the scores.
        gate_threshold: see `looks_clean`.
    """

    def __init__(
        self,
        num_data: int,
        coverage: Sequence[float],
        fit: DensityFit,
        false_alarms: float,
        thresholds: Sequence[float],
        gate_threshold: Sequence[float],
        tensors: dict[str, Tensor],
    ) -> None:
        super().__init__()
        self.num_data = num_data
        self.fit = fit
        self.coverage = dict(zip(_REGION_MASSES, map(float, coverage), strict=True)) if coverage else {}
        self.false_alarms = false_alarms
        self.thresholds = tuple(map(float, thresholds))
        self.gate_threshold = tuple(map(float, gate_threshold))
        if "law_spread" in tensors:  # older files measure in units of the spread of the transformations
            tensors = {**tensors, "law_white": torch.diag(1.0 / tensors["law_spread"])}
            del tensors["law_spread"]
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    @classmethod
    def of(cls, entry: dict[str, Any], tensors: dict[str, Tensor]) -> Calibration:
        """Return a calibration of what `as_dict` returned; older entries lack parts of the fit.

        Args:
            entry: plain types.
            tensors: moments of features and drawn elements.

        Raises:
            TypeError: a part is missing, or there are others.
        """
        parts = [field.name for field in fields(DensityFit) if field.name in entry]
        fit = DensityFit.of({name: entry[name] for name in parts})
        return cls(**{name: value for name, value in entry.items() if name not in parts}, fit=fit, tensors=tensors)

    def __repr__(self) -> str:
        regions = ", ".join(f"{share:.1%} in regions of {mass:.0%}" for mass, share in self.coverage.items())
        regions = regions or "coverage not known"
        return f"Calibration({self.num_data} data: {regions}; {self.false_alarms:.1%} false alarms)"

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain types."""
        return {
            "num_data": self.num_data,
            "coverage": list(self.coverage.values()),
            **self.fit.as_dict(),
            "false_alarms": self.false_alarms,
            "thresholds": list(self.thresholds),
            "gate_threshold": list(self.gate_threshold),
        }

    def density(self, score: LearnedScore, draws: Tensor) -> StudentMixture:
        """Return the calibrated density of the learned posterior, a mixture.

        Args:
            score: score of the inverter.
            draws: elements drawn from the learned posterior, ``[b, K, *element_shape]``.
        """
        return self.fit(mixture_of_draws(score.group, draws))

    def scores(
        self, score: LearnedScore, x: Any, g: Tensor, max_evaluations: int | None = None
    ) -> Float[Tensor, "b 3"]:
        """Return scores that are high for unusual data or elements; two evaluations of the network for each datum.

        Two scores are Mahalanobis distances of features: of the datum with g undone, and of the datum itself (Lee et
        al. 2018). The third is the distance of g from the eighth nearest of drawn elements, in units of the usual
        error of the inverter.

        Args:
            score: score of the inverter.
            x: the part of the data that the score reads.
            g: the elements found, ``[b, *element_shape]``.
            max_evaluations: the largest number of data that the network sees at once; ``None`` for all.
        """
        rows = []
        for part, some in _parts(x, g, max_evaluations):
            restored = apply_inverse(score.action, some, part)[0]
            looks = zip(("restored", "given"), (restored, part), score.levels, strict=True)
            each = [self._unusual(name, features(score, data, level)) for name, data, level in looks]
            rows.append(torch.stack([*each, self._distance_from_drawn(score, some)], -1))
        return torch.cat(rows)

    def verdicts(
        self, score: LearnedScore, x: Any, g: Tensor, max_evaluations: int | None = None
    ) -> tuple[Verdict, ...]:
        """Return for each datum whether its element is to be trusted, and why not.

        Args:
            score: the trained score.
            x: data, one batch dimension.
            g: elements found, ``[b, *element_shape]``.
            max_evaluations: see `scores`.
        """
        scores = self.scores(score, x, g, max_evaluations)
        above = ~(scores <= g.new_tensor(self.thresholds))  # NaN is unlike everything
        assumed = () if self.coverage else (_FEW_ASSUMED,)
        return tuple(
            Verdict(tuple(text for text, is_so in zip(REASONS, row, strict=True) if is_so), assumed)
            for row in above.tolist()
        )

    def looks_clean(
        self, score: LearnedScore, x: Any, g: Tensor, max_evaluations: int | None = None
    ) -> Bool[Tensor, " b"]:
        """Return True for data that look like clean ones and whose elements look like those of clean ones, ``[b]``.

        Args:
            score: the trained score.
            x: data, one batch dimension.
            g: elements found, ``[b, *element_shape]``.
            max_evaluations: see `scores`.
        """
        return (self._cleanness(score, x, g, max_evaluations) <= g.new_tensor(self.gate_threshold)).all(-1)

    def _cleanness(self, score: LearnedScore, x: Any, g: Tensor, max_evaluations: int | None) -> Float[Tensor, "b 2"]:
        rows = []
        for part, some in _parts(x, g, max_evaluations):
            look = self._unusual("clean", features(score, part, score.levels[0]))
            v = score.group.log(some).nan_to_num(nan=1e6)
            rows.append(torch.stack([look, matmul(v, self.get_buffer("error_white").to(v)).square().sum(-1)], -1))
        return torch.cat(rows)

    def _unusual(self, name: str, values: Tensor) -> Float[Tensor, " b"]:
        mean, white = self.get_buffer(f"{name}_mean"), self.get_buffer(f"{name}_white")
        return matmul(values.to(mean.dtype) - mean, white).square().mean(-1)

    def _distance_from_drawn(self, score: LearnedScore, g: Tensor) -> Float[Tensor, " b"]:
        points = self.get_buffer("law_points")
        v = matmul(score.group.log(g).to(points.dtype).nan_to_num(nan=1e6), self.get_buffer("law_white"))
        number = min(_NEIGHBOUR_RANK, len(points))
        distance = torch.cdist(v, points).topk(number, largest=False).values[..., -1]
        return distance.to(g.dtype)


def features(score: LearnedScore, y: Any, level: float) -> Float[Tensor, "b f"]:
    """Return the backbone's features of data at a noise level."""
    backbone = score.backbone
    reference: Tensor = pytree.tree_leaves(y)[0]
    levels = reference.new_full((len(reference),), level)
    values = backbone.embed(y, levels) if isinstance(backbone, NoiseNetwork) else backbone(y, levels)
    return values.to(torch.float64 if values.dtype == torch.float64 else torch.float32)


def calibration_size(seen: int | None, steps: int, chains: int, draws: int, distinct: int | None) -> int:
    """Return the number of data of a calibration, which takes about as many evaluations as the training.

    Args:
        seen: data that the training saw, repeated ones too; ``None`` if that is not known.
        steps: number of evaluations of the network for each chain or draw.
        chains: number of chains of each inversion.
        draws: number of draws of the posterior of each datum.
        distinct: number of different clean data; ``None`` for any number.
    """
    evaluations = _MAX_EVALUATIONS if seen is None else min(_MAX_EVALUATIONS, _EVALUATIONS_PER_SAMPLE * seen)
    number = evaluations // (steps * (_INVERSIONS_PER_DATUM * chains + draws))
    most = _MAX_DATA if distinct is None else min(_MAX_DATA, _MAX_USES * distinct)
    return max(min(number, most), MIN_DATA)


def calibration_seconds(drawing: float, draws: int) -> float:
    """Return about how long the smallest calibration takes.

    Args:
        drawing: time of the draws of its posteriors.
        draws: see `calibration_size`.
    """
    return drawing * (1.0 + _INVERSIONS_PER_DATUM / draws)


def calibrate_until(
    deadline: float | None,
    score: LearnedScore,
    source: CalibrationSource,
    number: int,
    seed: int,
    distinct: int | None = None,
) -> Calibration:
    """As `calibrate`, on fewer data where the time for ``number`` of them is missing, but on the smallest number.

    Args:
        deadline: value of `time.perf_counter` at which it is to end; ``None`` for no bound.
    """
    if deadline is None or number <= MIN_DATA:
        return calibrate(score, source, number, seed, distinct)
    start = time.perf_counter()
    smallest = calibrate(score, source, MIN_DATA, seed, distinct)
    end = time.perf_counter()
    affordable = int(_TIME_MARGIN * MIN_DATA * (deadline - end) / (end - start))
    if affordable <= MIN_DATA:
        return smallest
    return calibrate(score, source, min(number, affordable), seed, distinct)


def calibrate(
    score: LearnedScore, source: CalibrationSource, number: int, seed: int, distinct: int | None = None
) -> Calibration:
    """Calibrate an inverter by posteriors of ``number`` data; four times as many are inverted for each statistic.

    Args:
        distinct: see `calibration_size`.
    """
    low, high = score.levels
    seen: dict[str, list[Tensor]] = {name: [] for name in ("errors", "restored", "given", "clean", "left")}
    for x, g, moved in _problems(score, source._replace(clean=source.known), 4 * number, seed, 20):
        found = source.estimate(moved)
        seen["errors"].append(score.group.log(found) - score.group.log(g))
        for part, some in _parts(score.prepared(moved), found, source.together):
            seen["restored"].append(features(score, apply_inverse(score.action, some, part)[0], low))
            seen["given"].append(features(score, part, high))
        seen["clean"] += [features(score, part, low) for part, _ in _parts(score.prepared(x), g, source.together)]
        seen["left"].append(score.group.log(source.estimate(x)))
    values = {name: torch.cat(rows) for name, rows in seen.items()}
    tensors = _distribution_tensors(score, source.transformations, values["errors"], seed)
    for name in ("restored", "given", "clean"):
        tensors |= _moments(name, values[name])
    tensors["error_white"] = _moments("error", values["left"])["error_white"]
    measuring = Calibration(0, (0.0, 0.0), DensityFit(), 0.0, (0.0,) * 3, (0.0,) * 2, tensors)
    populations: tuple[list[Tensor], ...] = ([], [], [])
    for x, _, moved in _problems(score, source, 4 * number, seed, 30):
        found, unmoved, clean = source.estimate(moved), source.estimate(x), score.prepared(x)
        populations[0].append(measuring.scores(score, score.prepared(moved), found, source.together))
        populations[1].append(measuring.scores(score, clean, unmoved, source.together))
        populations[2].append(measuring._cleanness(score, clean, unmoved, source.together))
    of_moved, of_clean, cleanness = map(torch.cat, populations)
    thresholds, alarms = _joint_thresholds([of_moved, of_clean], _FALSE_ALARM_RATE)
    gate, _ = _joint_thresholds([cleanness], 1.0 - _SHARE_LEFT_ALONE)
    rows = [(source.draw(moved), g) for _, g, moved in _problems(score, source, number, seed, 40)]
    draws, g = (torch.cat(parts) for parts in zip(*rows, strict=True))
    mixture = mixture_of_draws(score.group, draws)
    known = distinct is None or distinct >= MIN_DISTINCT
    coverage = _coverage(mixture, g, seed) if known else []
    fit = fit_density(mixture, g)
    return Calibration(len(g), coverage, fit, alarms, thresholds.tolist(), gate.tolist(), tensors)


def _problems(
    score: LearnedScore, source: CalibrationSource, number: int, seed: int, key: int
) -> Iterator[tuple[Any, Tensor, Any]]:
    """Yield clean data, elements that are defined on them, and the moved data, so many at a time as fit into memory."""
    at_once = number if source.at_once is None else source.at_once
    for block, start in enumerate(range(0, number, at_once)):
        own = (block,) if block else ()  # the first block has the numbers of one that holds all
        count = min(at_once, number - start)
        x = on_device(source.clean(count, keyed(seed, key, *own)), module_device(score))
        reference: Tensor = pytree.tree_leaves(x)[0]
        g = sample_elements(score.group, source.transformations, count, keyed(seed, key + 1, *own)).to(reference)
        moved, defined = apply_inverse(score.action, score.group.inverse(g), x)
        x, moved = (pytree.tree_map(lambda leaf, rows=defined: leaf[rows], data) for data in (x, moved))
        yield x, g[defined], moved


def _parts(x: Any, g: Tensor, number: int | None) -> Iterator[tuple[Any, Tensor]]:
    """Yield minibatches of (data, elements), of so many at most."""
    together = max(1, len(g)) if number is None else number
    for i in range(0, max(1, len(g)), together):  # no data are one empty part
        yield pytree.tree_map(lambda leaf, i=i: leaf[i : i + together], x), g[i : i + together]


def _distribution_tensors(
    score: LearnedScore, transformations: Transformations, errors: Float[Tensor, "b n"], seed: int
) -> dict[str, Tensor]:
    """Return drawn elements, and the matrix that measures logarithms in units of the usual error of the inverter."""
    parameter = next(score.backbone.parameters())
    g = sample_elements(score.group, transformations, _NUM_DRAWN_ELEMENTS, keyed(seed, 10)).to(parameter)
    v = score.group.log(g)
    v = v[torch.isfinite(v).all(-1)]
    spread = v.std(0).clamp(min=1e-6)
    usual = (errors.to(spread) / spread).nan_to_num(nan=torch.inf).abs()
    reach = _MAX_USUAL_ERROR * usual.median(0).values / 0.6745
    # after a short training most errors may have no logarithm
    usual_errors = (errors.to(spread) / spread)[((usual <= reach) & torch.isfinite(usual)).all(-1)]
    white = _whitening(usual_errors) if len(usual_errors) > score.group.dim else torch.eye(len(spread))
    white = white.to(spread) / spread.unsqueeze(-1)
    return {"law_points": matmul(v, white), "law_white": white}


def _moments(name: str, values: Tensor) -> dict[str, Tensor]:
    """Return mean and whitening of the finite rows; zero and the unit matrix for fewer than two rows."""
    values = values[torch.isfinite(values).all(-1)]
    if len(values) < 2:
        count = values.shape[1]
        return {f"{name}_mean": values.new_zeros(count), f"{name}_white": torch.eye(count).to(values)}
    return {f"{name}_mean": values.mean(0), f"{name}_white": _whitening(values).to(values)}


def _whitening(values: Tensor) -> Float[Tensor, "f f"]:
    """Return the matrix after which values have unit covariance."""
    covariance = torch.cov(values.double().T).reshape(values.shape[1], -1)
    size = covariance.diagonal().mean().clamp(min=1e-12)
    axes, vectors = torch.linalg.eigh(covariance + _SHRINKAGE * size * torch.eye(len(covariance)).to(covariance))
    return vectors / axes.sqrt()


def _joint_thresholds(populations: Sequence[Tensor], alarms: float) -> tuple[Float[Tensor, " s"], float]:
    """Return thresholds that scores exceed equally rarely, and the largest share of a population above any of them.

    At most the share ``alarms`` of each population is above any threshold.
    """
    for tail in torch.linspace(alarms, 0.0, _NUM_THRESHOLDS).tolist():
        each = [scores.nan_to_num(nan=-torch.inf).sort(0).values for scores in populations]  # NaN is above all
        rows = [values[min(len(values) - 1, int((1.0 - tail) * len(values)))] for values in each]
        thresholds = torch.stack(rows).amax(0)
        share = max(float((~(scores <= thresholds)).any(-1).double().mean()) for scores in populations)
        if share <= alarms:
            break
    return thresholds, share


def _coverage(mixture: StudentMixture, g: Tensor, seed: int) -> list[float]:
    """Return shares of elements in regions of highest density of a mixture that is fitted to the other half of them."""
    first = torch.arange(len(g), device=g.device) % 2 == 0
    held = []
    for half in (first, ~first):
        fit = fit_density(_rows_of(mixture, ~half), g[~half])
        held.append(_mass_below(fit(_rows_of(mixture, half)), g[half], seed))
    lower = torch.cat(held)
    return [float((lower >= 1.0 - mass).double().mean()) for mass in _REGION_MASSES]


def _rows_of(mixture: StudentMixture, rows: Bool[Tensor, " b"]) -> StudentMixture:
    parts = {name: getattr(mixture, name)[rows] for name in ("centres", "factors", "log_shares")}
    return replace(mixture, **parts)


def _mass_below(mixture: StudentMixture, g: Tensor, seed: int, number: int = 39) -> Float[Tensor, " b"]:
    """Return the mass of the posterior of lower density than an element, by its rank among ``number`` draws."""
    height = mixture.log_density(mixture.sample_principal(number, keyed(seed, 50, device=g.device)))
    return (height < mixture.log_density(g.unsqueeze(1))).double().mean(-1)
