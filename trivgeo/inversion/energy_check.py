"""Check of an energy before any inversion: are transformations found by it, is a network right afterwards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from trivgeo._devices import module_device, on_device
from trivgeo._random import keyed
from trivgeo._random import seed as seed_of
from trivgeo._timing import announce, deadline_after, in_words, seconds_until
from trivgeo._torch import pytree
from trivgeo.actions import ImageWarp
from trivgeo.checks import check_positive, check_type, checked, with_tensors
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import Action
from trivgeo.inversion.agreement import UNUSABLE
from trivgeo.inversion.energies.base import DataEnergy
from trivgeo.inversion.energies.wrapped import PriorEnergy
from trivgeo.inversion.energy_measurement import (
    MAX_MEASURED,
    MIN_ROUNDNESS,
    EnergyProfile,
    measure_energy,
    some_data,
)
from trivgeo.inversion.evaluation import evaluation_mode
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior import InverseProblem
from trivgeo.inversion.result import InversionResult
from trivgeo.inversion.rows import where_rows
from trivgeo.inversion.stages.adaptive_search import AdaptiveSearch
from trivgeo.inversion.transformations import Transformations, sample_elements, spread_of
from trivgeo.verdict import Verdict

_MAX_SHARE_BELOW = 0.05  # share of random transformations that may be as low as the clean datum, or undefined
_MAX_SHARE_FLAT = 0.5  # share of random transformations at which the gradient may vanish
_DRAWS_OF_A_TRIAL = 100  # random elements of which a trial draws about as many
_NUM_TRIALS = 32  # data that are inverted
_TRIAL_EVALUATIONS = 300  # energies of each of them, whatever the machine
_MEASUREMENT_SHARE = 0.35  # share of the time that the measurement before the trial may take
_FEWEST_EVALUATIONS = 16  # energies of each of them below which a trial says nothing of the search
_SHORTEST_TRIAL_IN_SECONDS = 1e-3  # time of a trial when that of all is up
_MIN_TRIALS = 8  # number below which they say neither yes nor no
_LARGEST_SEED = 2**32
_MAX_ERROR_IN_SPREADS = 0.25  # error of a transformation that counts as found, in spreads in each direction
_MAX_RELATIVE_DISTANCE = 0.1  # distance of a restored from the clean datum, in units of the moved datum's distance
_MIN_KNOWN = 8  # restored clean data below which their energies say nothing of others
_DEPTH_SHARE = 0.5  # height above the energies of clean data, in units of the median rise of moved ones
_MIN_SHARE_FOUND = 0.75  # share of the data whose transformation is found by a search that works
_MIN_SHARE_SURE = 0.95  # share below which one result of such a search may well be a miss
_MAX_HARM_LEFT = 0.2  # share of the loss added by the transformations that may be left where a network is right

ALIKE = "data are like the clean ones of the search, and moved by such transformations"
"""Assumption of a search that was tried on clean data."""
TOO_HIGH = "the energy of the restored datum is nearer to those of moved data than to those of clean ones"
"""Reason against a result of such a search."""


class NetworkTask(NamedTuple):
    """Task of a network with restored data.

    Attributes:
        network: batch of data to outputs.
        labels: labels of the clean data, one for each; ``None`` for the classes that the network predicts.
        loss: outputs and labels to losses ``[b]``; ``None`` for one where the class is wrong, else zero.
    """

    network: Callable[[Any], Tensor]
    labels: Any
    loss: Callable[[Tensor, Any], Tensor] | None

    @staticmethod
    def of(
        network: Callable[[Any], Tensor] | None, labels: Any, loss: Callable[[Tensor, Any], Tensor] | None, number: int
    ) -> NetworkTask | None:
        """Return the task of checked arguments, ``None`` without a network.

        Raises:
            ConfigurationError: labels or a loss without a network, a loss without labels, or no functions.
            ShapeError: other numbers of labels than of data.
        """
        if network is None:
            if labels is not None or loss is not None:
                raise ConfigurationError("network: expected one for labels or a loss, got None")
            return None
        for name, function in (("network", network), ("loss", loss)):
            if function is not None and not callable(function):
                raise ConfigurationError(f"{name}: expected a function, got {function!r}")
        if labels is None and loss is not None:
            raise ConfigurationError("labels: expected the labels of the clean data for a loss, got None")
        if labels is not None:
            labels = pytree.tree_map(torch.as_tensor, labels)
            for leaf in pytree.tree_leaves(labels):
                if leaf.ndim < 1 or len(leaf) != number:
                    raise ShapeError(f"labels: expected one for each of {number} clean data, got {list(leaf.shape)}")
        return NetworkTask(network, labels, loss)

    def losses(self, x: Any, labels: Any) -> Float[Tensor, " b"]:
        """Return the loss of each datum, ``[b]``.

        Raises:
            ConfigurationError: the outputs are no scores ``[b, c]`` of classes, where no loss is given.
            ShapeError: the loss does not return a number for each datum.
        """
        output = self._output(x)
        labels = on_device(labels, output.device)
        if self.loss is None:
            classes = self._classes(output)
            if not isinstance(labels, Tensor) or labels.shape != classes.shape:
                found = list(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
                raise ShapeError(
                    f"labels: expected a class for each datum {list(classes.shape)}, or loss= for others, got {found}"
                )
            losses = (classes != labels).double()
        else:
            losses = check_type("loss", self.loss(output, labels), Tensor)
        if losses.shape != (len(output),):
            raise ShapeError(f"loss: expected one number for each of {len(output)} data, got {list(losses.shape)}")
        return losses.double()

    def labels_of(self, x: Any, index: Tensor) -> Any:
        """Return the labels of the data x with numbers ``index``; the network's classes where no labels are given."""
        if self.labels is None:
            return self._classes(self._output(x))
        return pytree.tree_map(lambda leaf: leaf[index.to(leaf.device)], self.labels)

    def _output(self, x: Any) -> Tensor:
        """Return the output of the network for data brought to its device."""
        device = module_device(self.network) if isinstance(self.network, nn.Module) else None
        return check_type("output", self.network(on_device(x, device)), Tensor)

    @staticmethod
    def _classes(output: Tensor) -> Tensor:
        if output.ndim != 2 or not output.is_floating_point():
            raise ConfigurationError(
                f"loss: expected one (outputs and labels to [b]) where outputs are no scores of classes [b, c], got "
                f"outputs {output.dtype} {list(output.shape)}"
            )
        return output.argmax(-1)


class NetworkBenchmark(NamedTuple):
    """Mean losses of a network; shares of wrong classes where no loss was given.

    Attributes:
        num_data: number of data.
        clean: loss of clean data.
        moved: loss of moved data.
        restored: loss of data that the search has restored.
        standard_error: standard error of the mean difference between restored and clean.
        counts_errors: whether losses are shares of wrong classes.
    """

    num_data: int
    clean: float
    moved: float
    restored: float
    standard_error: float
    counts_errors: bool

    @property
    def right(self) -> bool | None:
        """True if at most a fifth of the harm by transformations is left, up to one standard error.

        ``None`` for fewer than eight data, which do not tell.
        """
        if self.num_data < _MIN_TRIALS:
            return None
        harm = max(0.0, self.moved - self.clean)
        return self.restored - self.clean <= _MAX_HARM_LEFT * harm + self.standard_error

    def __str__(self) -> str:
        losses = (self.restored, self.clean, self.moved)
        if self.counts_errors:
            restored, clean, moved = (f"{1.0 - loss:.0%}" for loss in losses)
        else:
            restored, clean, moved = (f"loss {loss:.3g}" for loss in losses)
        return f"{_answer(self.right)}: {restored} (clean {clean}, moved {moved})"


@dataclass(frozen=True)
class KnownSearch:
    """What is known of the results of a search before it runs.

    Attributes:
        verdict: verdict on the search, from a trial on clean data.
        highest: energy of a restored datum above which it is unlike clean ones; infinite where that is not known.
        misses: whether the search missed more than a few in the trial, so that hypotheses are compared as well.
    """

    verdict: Verdict
    highest: float = math.inf
    misses: bool = False

    @staticmethod
    def of_trial(trial: SearchBenchmark, depth: float) -> KnownSearch:
        """Return what a ``trial`` tells of other data, with the median rise of the energy of moved ones, ``depth``."""
        verdict, misses = trial.verdict, trial.share_found < _MIN_SHARE_SURE
        energies = trial.energies[trial.found]
        known = energies[torch.isfinite(energies)]
        if len(known) < _MIN_KNOWN:
            return KnownSearch(verdict, misses=misses)
        usual, highest = float(known.median()), float(known.max())
        rise = _DEPTH_SHARE * depth if depth > 0.0 else 0.0  # NaN where nothing is known
        return KnownSearch(verdict, max(2.0 * highest - usual, usual + rise), misses)

    def __call__(self, result: InversionResult) -> tuple[Verdict, ...]:
        """Return the verdict on each datum of a result."""
        said = self.verdict & Verdict((), (ALIKE,))
        usable, high = result.has_usable, result.best_energy() > self.highest
        rows = torch.stack([usable, high], -1).tolist()
        own = replace(result, stage_verdicts=None).verdicts if self.misses else [Verdict()] * len(rows)
        return tuple(
            said & compared & Verdict((UNUSABLE,) if not is_usable else (TOO_HIGH,) if is_high else ())
            for compared, (is_usable, is_high) in zip(own, rows, strict=True)
        )


class SearchBenchmark(NamedTuple):
    r"""Figures of the search of `TIED` on clean data that were moved by the transformations.

    Each datum has 300 evaluations, whatever the machine, or those of the `TIED` that is tried, if 300 do not find it.
    Few clean data are moved several times.

    Attributes:
        rows: numbers of the clean data that were moved and inverted, one for each trial, ``[n]``.
        found: whether the transformation of each was undone to a quarter of the spread of the transformations, or the
            datum restored as it was, as data with symmetries may be by other transformations, ``[n]``.
        left_out: words that say which other clean data were not inverted, and why.
        error: median length of :math:`\log(\hat g^{-1} g)` a direction, in units of the spread of the transformations.
        pixels: median distance of the corners of a restored image from where they were, in pixels; ``None`` for other
            data.
        energies: posterior energies of the restored data, ``[n]``.
        network: losses of the network, see `NetworkBenchmark`; ``None`` if no network was given.
    """

    rows: Int[Tensor, " n"]
    found: Bool[Tensor, " n"]
    left_out: str
    error: float
    pixels: float | None
    energies: Float[Tensor, " n"]
    network: NetworkBenchmark | None

    @property
    def num_data(self) -> int:
        """Number n of data inverted."""
        return len(self.rows)

    @property
    def share_found(self) -> float:
        """Share of the data whose transformation was found."""
        return float(self.found.double().mean())

    @property
    def finds(self) -> bool | None:
        """True if the transformations of three quarters of the data are found; ``None`` for fewer than eight data."""
        return None if self.num_data < _MIN_TRIALS else self.share_found >= _MIN_SHARE_FOUND

    @property
    def verdict(self) -> Verdict:
        """The verdict on the search: trusted if it `finds` the transformations."""
        if self.finds is None:
            return Verdict((f"the search could be tried on {self.num_data} clean data alone ({self.left_out})",))
        said = f"the search found the transformations of {self.share_found:.0%} of {self.num_data} clean data"
        return Verdict(() if self.finds else (said,))

    def known(self, depth: float) -> KnownSearch:
        """Return what the trial tells of other data, with the median rise of the energy of moved ones."""
        return KnownSearch.of_trial(self, depth)

    def __str__(self) -> str:
        off = f"off by {self.error:.2g} of the spread" if self.pixels is None else f"corners {self.pixels:.2g} px off"
        return f"{_answer(self.finds)}: {self.share_found:.0%} of {self.num_data}, {off}"


def _judged(good: bool, otherwise: str) -> str:
    return "good" if good else otherwise


def _answer(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "NO"


def try_search(
    action: Action,
    energy: DataEnergy | Callable[[Any], Tensor],
    clean: Any,
    transformations: Transformations,
    profile: EnergyProfile,
    task: NetworkTask | None,
    seed: int,
    max_memory: float | None = None,
    deadline: float | None = None,
    evaluations: int = _TRIAL_EVALUATIONS,
) -> SearchBenchmark | None:
    """Invert a few moved clean data, and compare with the transformations.

    Without a ``deadline`` everything but rounding is a function of the arguments: neither the time that an energy takes
    nor the machine changes which data are tried, or by how many evaluations. With it fewer data are, down to eight, and
    by fewer evaluations.

    Returns:
        The figures; ``None`` where there is no time for eight data.

    Raises:
        DomainError: no transformation drawn is defined on its datum.
    """
    spread = spread_of(action.group, transformations, seed)
    group = action.with_scale(spread).group
    problem = InverseProblem(action, energy)
    number = _NUM_TRIALS
    if deadline is not None:
        time_left = seconds_until(deadline)
        if _MIN_TRIALS * (_FEWEST_EVALUATIONS + 1) * profile.seconds > time_left:
            return None
        if profile.seconds > 0.0:
            number = min(number, max(_MIN_TRIALS, int(time_left / (evaluations * profile.seconds))))
    with evaluation_mode(problem.energy):
        x, index, _ = some_data(problem, clean, seed, max_memory, MAX_MEASURED if deadline is None else number)
    reference: Tensor = pytree.tree_leaves(x)[0]
    given = len(pytree.tree_leaves(with_tensors("clean", clean))[0])
    # few data are moved several times
    turns = torch.arange(max(len(index), _NUM_TRIALS), device=index.device) % len(index)
    g = sample_elements(group, transformations, len(turns), keyed(seed, 8)).to(reference)
    defined = action.is_valid(g, _rows_of(x, turns)).reshape(len(turns), -1).all(-1)
    chosen = torch.nonzero(defined)[:number, 0]
    if len(chosen) == 0:
        raise DomainError(f"transformations: expected elements that are defined on clean data, got none of {len(g)}")
    g, turns = g[chosen], turns[chosen]
    x, index = _rows_of(x, turns), index[turns]
    moved = action(g, x)
    expected = PriorEnergy(energy, spread, profile.temperature)
    search = AdaptiveSearch(evaluations, transformations)
    announce(f"trial of the search on {len(g)} clean data", len(g) * evaluations * profile.seconds)
    seconds = None if deadline is None else max(_SHORTEST_TRIAL_IN_SECONDS, seconds_until(deadline))
    inverter = Inverter(action.with_scale(profile.scale), expected, [search], max_memory=max_memory, seconds=seconds)
    result = inverter(moved, generator=keyed(seed, 9, device=reference.device))
    restored, best = result.restore(moved), result.best()
    left = group.compose(group.inverse(best), g)
    error = (group.log(left).square().mean(-1).sqrt()).nan_to_num(nan=math.inf)
    same = _distance(restored, x) <= _MAX_RELATIVE_DISTANCE * _distance(moved, x)
    return SearchBenchmark(
        index.cpu(),
        ((error <= _MAX_ERROR_IN_SPREADS) | same).cpu(),
        _left_out(given, len(reference), int((~defined).sum())),
        float(error.median()),
        _pixels(action, left, x),
        result.best_energy().detach().cpu(),
        None if task is None else _network_benchmark(task, x, moved, restored, index),
    )


def _rows_of(x: Any, index: Tensor) -> Any:
    return pytree.tree_map(lambda leaf: leaf[index], x)


def _left_out(given: int, finite: int, undefined: int) -> str:
    """Return the words about clean data that were not inverted."""
    looked_at = min(given, MAX_MEASURED)
    parts = [
        f"{given - looked_at} of {given} not drawn" if given > looked_at else "",
        f"{looked_at - finite} without a finite energy" if finite < looked_at else "",
        f"{undefined} moved to where they are undefined" if undefined else "",
        f"those after the first {_NUM_TRIALS}" if finite - undefined > _NUM_TRIALS else "",
    ]
    return ", ".join(part for part in parts if part) or "none"


def _network_benchmark(task: NetworkTask, x: Any, moved: Any, restored: Any, index: Tensor) -> NetworkBenchmark:
    """Return the losses; a datum whose transformation was not found counts as given."""
    found = torch.stack([torch.isfinite(leaf).flatten(1).all(1) for leaf in pytree.tree_leaves(restored)]).all(0)
    shown = pytree.tree_map(lambda leaf, given: where_rows(found, leaf, given), restored, moved)
    with torch.no_grad(), evaluation_mode(task.network):
        labels = task.labels_of(x, index)
        clean, before, after = (task.losses(data, labels) for data in (x, moved, shown))
    difference = after - clean
    error = float(difference.std() / math.sqrt(len(difference))) if len(difference) > 1 else 0.0
    return NetworkBenchmark(
        len(index), float(clean.mean()), float(before.mean()), float(after.mean()), error, task.loss is None
    )


def _distance(x: Any, y: Any) -> Float[Tensor, " b"]:
    """Return the Euclidean distance of data, ``[b]``; infinite where undefined."""
    pairs = zip(pytree.tree_leaves(x), pytree.tree_leaves(y), strict=True)
    squares = sum((a - b).square().flatten(1).sum(1) for a, b in pairs)
    return torch.as_tensor(squares).sqrt().nan_to_num(nan=math.inf)


def _pixels(action: Action, left: Tensor, x: Any) -> float | None:
    """Return the median of the mean distances by which elements move the corners of images."""
    if not isinstance(action, ImageWarp):
        return None
    half = left.new_tensor([side / 2 for side in reversed(x.shape[-action.dims :])])
    corners = left.new_tensor(list(itertools.product((-1.0, 1.0), repeat=action.dims)))
    off = ((action.point_action(left, corners) - corners) * half).norm(dim=-1).mean(-1)
    return float(off.nan_to_num(nan=math.inf).median())


@checked
@dataclass(frozen=True, repr=False)
class EnergyReport:
    """Measurements of `check_energy`, the settings that it suggests, and two verdicts; prints as a table with advice.

    Attributes:
        profile: rise of the energy of clean data when they are moved, and the settings suggested.
        search: results of `TIED` on some moved clean data.
    """

    profile: EnergyProfile
    search: SearchBenchmark

    @property
    def finds_transformations(self) -> bool | None:
        """True if `TIED` has found the transformations of the trial; ``None`` for fewer than eight data."""
        return self.search.finds

    @property
    def network_right(self) -> bool | None:
        """True if the network is right on the restored data; ``None`` without a network, or for fewer than eight data.

        The network may be right although transformations are not found: many classifiers bear a small rest of them.
        """
        return None if self.search.network is None else self.search.network.right

    @property
    def verdict(self) -> Verdict:
        """The verdict on the search: trusted if `finds_transformations`."""
        return self.search.verdict

    @property
    def trusted(self) -> bool:
        """True if transformations are found."""
        return self.verdict.trusted

    def __repr__(self) -> str:
        network = "not asked" if self.search.network is None else str(self.search.network)
        return f"EnergyReport(finds transformations: {self.search}; network right afterwards: {network})"

    def __str__(self) -> str:
        """The figures, each with "good", or "bad" and what to do; then the next step."""
        profile, hits = self.profile, self._draws_in_the_well()
        narrow = "bad: at no distance is half of the depth reached"
        if hits > 0:
            narrow = f"narrow: one random element in {1 / hits:,.0f} hits it; raise evaluations= of TIED"
        rows = [
            (
                "random transformations below the clean datum",
                f"{profile.share_below:.1%}",
                _judged(profile.share_below <= _MAX_SHARE_BELOW, "bad: it is as low in other places; take another"),
            ),
            (
                "gradients that are zero",
                f"{profile.share_flat:.1%}",
                _judged(profile.share_flat <= _MAX_SHARE_FLAT, "bad: descents stand still there; take a smooth energy"),
            ),
            (
                "energies or gradients that are not finite",
                f"{profile.share_undefined:.1%}",
                _judged(profile.share_undefined <= _MAX_SHARE_BELOW, "bad: mend it, or take narrower transformations"),
            ),
            (
                "depth of the well (rise of the energy)",
                f"{profile.depth:.3g}",
                _judged(profile.depth > 0, "bad: clean data are not lowest; take another energy"),
            ),
            (
                "its width, in spreads of the transformations",
                f"{profile.width:.3g}",
                _judged(hits * _DRAWS_OF_A_TRIAL >= 1, narrow),
            ),
            (
                "its roundness, shortest over longest axis",
                f"{profile.roundness:.2f}",
                _judged(
                    profile.roundness > MIN_ROUNDNESS,
                    "long: give TIED clean data, and its basis makes it round",
                ),
            ),
            ("spread of the energies of clean data", f"{profile.spread:.3g}", ""),
            ("time of one energy with gradient", f"{1e3 * profile.seconds:.3g} ms", ""),
            ("suggested temperature", f"{profile.temperature:.3g}", "for methods with temperature="),
            ("suggested schedule", repr(profile.schedule), "for methods with schedule="),
        ]
        if profile.frame_weight is not None:
            rows.append(("suggested frame weight", f"{profile.frame_weight:.3g}", "for FramedEnergy(energy, weight)"))
        rows += [
            ("clean data not tried", self.search.left_out, ""),
            ("can find transformations", str(self.search), ""),
            ("network right afterwards", self._network_words(), ""),
            ("next", self.next_step, ""),
        ]
        return "\n".join(f"{name:<46}{value:>10}  {said}".rstrip() for name, value, said in rows)

    @property
    def next_step(self) -> str:
        """The next step, in words: an inverter where transformations are found, else what to change."""
        profile, network = self.profile, self.search.network
        if self.search.finds is None:
            return f"give at least {_MIN_TRIALS} clean data that are defined after they were moved"
        if self.search.finds:
            if network is not None and network.right is False:
                return "the energy is good; the network is wrong on restored data, so train it on clean data like these"
            return "use TIED(action, energy, transformations, clean)"
        if profile.share_below > _MAX_SHARE_BELOW or not profile.depth > 0:
            return "take an energy that is lowest on clean data: FeatureEnergy of a classifier, or LearnedEnergy"
        if profile.share_flat > _MAX_SHARE_FLAT:
            return "take an energy with a gradient at most transformations, or one of smoothed data"
        if network is not None and network.right:
            return "the network bears what is left; for right transformations raise evaluations= of TIED"
        return "raise evaluations= of TIED, or train a LearnedInverter to start the search"

    def _network_words(self) -> str:
        return "not asked: give network=" if self.search.network is None else str(self.search.network)

    def _draws_in_the_well(self) -> float:
        """Return the probability that a normal random element lies within the width of the well."""
        dim, width = len(self.profile.scale), self.profile.width
        if not math.isfinite(width):
            return 0.0
        half = torch.tensor([dim / 2.0, dim * width**2 / 2.0], dtype=torch.float64)
        return float(torch.special.gammainc(half[0], half[1]))

    def plot(self, axes: Any = None) -> Any:
        """Plot the rise of the energy against the distance (needs matplotlib) in ``axes``, and return the axes."""
        from trivgeo.inversion.plots import draw_well

        return draw_well(self.profile.radii, self.profile.rises, self.profile.depth, self.profile.share_below, axes)


@checked
def check_energy(
    action: Action,
    energy: DataEnergy | Callable[[Any], Tensor],
    clean: Any,
    transformations: Transformations,
    *,
    network: Callable[[Any], Tensor] | None = None,
    labels: Any = None,
    loss: Callable[[Tensor, Any], Tensor] | None = None,
    max_memory: float | None = None,
    seconds: float | None = None,
    generator: torch.Generator | None = None,
) -> EnergyReport:
    """Measure how the energy of clean data rises when the data are moved, and try a search.

    The check moves 32 clean data and inverts them by the search of `TIED`, with 300 evaluations for each.
    It answers two questions. Does the search find the transformations? Is the network right on the restored data? The
    second answer may be yes while the first is no. Without ``seconds`` the answers are a function of the arguments
    alone, also on a busy machine. Where fewer than eight data could be tried, they are ``None``, "unknown" in print.

    ```python
    check = check_energy(action, energy, clean, transformations, network=classifier, labels=labels)
    check.finds_transformations, check.network_right
    ```

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        clean: clean data with one batch dimension; at most 64 of them, drawn at random, are looked at, and 32 inverted;
            fewer are inverted several times. ``report.search`` says which, and why others were not.
        transformations: function (count, generator) to elements ``[count, *element_shape]``, see `LearnedInverter.fit`.
        network: data to outputs, in evaluation mode here if it is a module.
        labels: labels of the clean data, classes or what ``loss`` takes; default the classes that the network predicts.
        loss: outputs and labels to losses ``[b]``; default one for a wrong class of the outputs ``[b, c]``, else zero.
        max_memory: memory in GiB that energies may take at once, see `Inverter`.
        seconds: time of the call: fewer data are tried, down to eight, by fewer evaluations, where it is short.
        generator: source of all random numbers; default one with the same seed at every call.

    Raises:
        ConfigurationError: the energy has no gradient (it is detached, computed without gradients, or made of
            integers); the time is too short for eight data; labels or a loss without a network, or outputs that need a
            loss; or see `Inverter`.
        DomainError: no clean datum has a finite energy; or the transformations are unfit, see `LearnedInverter.fit`.
        ShapeError: the data or the elements do not fit the action, or labels or losses not the data.
        NonFiniteError: the data hold NaN or infinity.
    """
    clean = with_tensors("clean", clean)
    task = NetworkTask.of(network, labels, loss, len(pytree.tree_leaves(clean)[0]))
    seed = 0
    if generator is not None:
        seed = seed_of(torch.empty(0, device=generator.device), generator) % _LARGEST_SEED
    deadline = None if seconds is None else deadline_after(check_positive("seconds", seconds))
    profile, trial = measured_search(action, energy, clean, transformations, task, seed, max_memory, deadline)
    if profile is None or trial is None:
        each = "" if profile is None else f", of which an energy takes {in_words(profile.seconds)}"
        raise ConfigurationError(f"seconds: expected time for a trial on {_MIN_TRIALS} data{each}, got {seconds:g}")
    return EnergyReport(profile, trial)


def measured_search(
    action: Action,
    energy: DataEnergy | Callable[[Any], Tensor],
    clean: Any,
    transformations: Transformations,
    task: NetworkTask | None,
    seed: int,
    max_memory: float | None,
    deadline: float | None,
    evaluations: int = _TRIAL_EVALUATIONS,
) -> tuple[EnergyProfile | None, SearchBenchmark | None]:
    """Measure an energy and try the search; either is ``None`` where there is no time for it.

    A search that does not find the transformations is tried again with its own ``evaluations``, if these are more.
    """
    part = None if deadline is None else deadline - (1.0 - _MEASUREMENT_SHARE) * seconds_until(deadline)
    bounds: dict[str, Any] = {"seed": seed, "max_memory": max_memory, "deadline": part}
    profile = measure_energy(action, energy, clean, transformations, **bounds)
    if profile is None:
        return None, None
    given = (action, energy, clean, transformations, profile, task, seed, max_memory, deadline)
    trial = try_search(*given)
    if trial is not None and trial.finds is False and evaluations > _TRIAL_EVALUATIONS:
        trial = try_search(*given, evaluations) or trial
    return profile, trial
