"""An energy that is learned on the frozen features of a pretrained network, from clean data alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from trivgeo._devices import module_device, on_device
from trivgeo._random import keyed, normal, uniform
from trivgeo._timing import announce, deadline_after, seconds_until, time_evaluations
from trivgeo._torch import pytree
from trivgeo.actions import ImageWarp
from trivgeo.checks import check_count, check_positive, checked
from trivgeo.errors import CheckpointError, ConfigurationError
from trivgeo.features.feature_energy import FeatureEnergy
from trivgeo.features.feature_scores import FeatureScore
from trivgeo.features.network_features import NetworkFeatures
from trivgeo.features.upright_head import HeadValidation, UprightHead, train_head
from trivgeo.groups import Action
from trivgeo.inversion.bounds import bytes_of, number_moved_at_once, number_that_fits, with_gradients
from trivgeo.inversion.energies.base import DataEnergy
from trivgeo.inversion.learned.learned_inverter import Draw, checked_draw, held_out, picker
from trivgeo.inversion.posterior import check_action
from trivgeo.inversion.rows import flat_rows, lift, where_rows
from trivgeo.inversion.transformations import PlaneTransformations, Transformations, sample_elements, spread_of
from trivgeo.networks import HeaderEntry

_NUM_FAR = 4  # wrong restorations by the identity and by drawn elements
_NUM_NEAR = 3  # wrong restorations near the right one
_NUM_RESTORATIONS = 1 + _NUM_FAR + _NUM_NEAR
_MIN_REACH, _MAX_REACH = 0.03, 1.0  # distances of near restorations from the right one, in spreads of transformations
_UNMOVED_ONE_IN = 8  # one in so many data is not moved, so that the head knows clean data, too
_AUGMENTATIONS_PER_DATUM, _MIN_MOVED_DATA, _MAX_MOVED_DATA = 32, 128, 4096
_MOVED_DATA_BATCH_SIZE = 4  # moved data whose restorations are evaluated together
_TRAINING_PER_VALIDATION = 5  # moved data of the training for each one of the validation
_FEATURES_SHARE = 0.8  # share of the time of a fit that features take
_SHARES_LEFT = (0.85, 0.2)  # shares of the time that are left after the features of validation and training
_TIMED_SHARE = 0.25  # share of the time that it may take to know that of an evaluation
_BATCH_SHARE = 0.05  # share of the time that features which are computed together may take


@checked
class LearnedEnergy(FeatureEnergy):
    r"""An energy learned on the frozen features of a pretrained network: a small head recognises restored data.

    Training needs no labels and no transformed data. A clean datum is moved and restored, by the right
    transformation, by the identity, by other drawn ones, and by some near the right one; the head learns which is
    right. So :math:`e^{-E}` is the posterior of the transformation, with the distribution that they are drawn from as
    the prior, at temperature one.

    ```python
    energy = LearnedEnergy.fit(FeatureEnergy(classifier), clean, transformations)
    print(energy.validation)
    inverter = TIED(action, energy, transformations, clean)
    ```

    Args:
        network: a `torch.nn.Module`, or a function from a batch of data to features, see `FeatureEnergy`.
        layer: name of the layer whose output the features are; default the input of the last linear layer.
        score: the head.
        validation: measurements on held-out data, see `fit`; or ``None``.

    Attributes:
        validation: a `HeadValidation` by clean data that the training did not see.

    Raises:
        ConfigurationError: see `FeatureEnergy`; or the score is no head.
    """

    def __init__(
        self,
        network: nn.Module | Callable[[Any], Tensor],
        layer: str | None = None,
        *,
        score: FeatureScore,
        validation: HeadValidation | None = None,
    ) -> None:
        if not isinstance(score, UprightHead):
            raise ConfigurationError(f"score: expected an UprightHead, as LearnedEnergy.fit trains it, got {score!r}")
        nn.Module.__init__(self)
        self.features = NetworkFeatures(network, layer)
        self.score = score
        self.validation = validation

    @classmethod
    def fit(
        cls,
        features: FeatureEnergy | nn.Module | Callable[[Any], Tensor],
        clean: Any,
        transformations: Transformations,
        *,
        action: Action | None = None,
        layer: str | None = None,
        num_samples: int | None = None,
        steps: int = 1000,
        seconds: float | None = 300.0,
        max_memory: float | None = None,
        seed: int = 0,
    ) -> LearnedEnergy:
        """Train a head on frozen features.

        Features are computed once, of eight restorations of every moved datum, and take nearly all of the time. A sixth
        of the clean data are held out for `validation`, unless there are fewer than six.

        Args:
            features: a `FeatureEnergy`, of which a multiple is part of the energy; or a network or function whose
                output the features are, or a network with a ``layer``.
            clean: clean data, or a function (count, generator) that draws some, see `LearnedInverter.fit`.
            transformations: function (count, generator) to elements ``[count, *element_shape]``, see
                `LearnedInverter.fit`.
            action: action on the data; default `ImageWarp` of the group of a distribution of
                `trivgeo.inversion.transformations`.
            layer: name of the layer whose output the features are, see `NetworkFeatures`.
            num_samples: number of moved data; default 32 for each clean one, 4,096 at most.
            steps: number of optimiser steps.
            seconds: time of the whole call, of which four fifths are for features: fewer data are moved where it is
                short, and the result then depends on the speed of the machine. Where not even two fit, a warning says
                how long they take. ``None`` for no bound.
            max_memory: memory in GiB that features may take at once, see `trivgeo.inversion.Inverter`.
            seed: seed of all random numbers.

        Raises:
            ConfigurationError: features, action or transformations are of another type; or a number is out of
                its range.
            ShapeError: the data do not fit the action, or the elements its group.
            NonFiniteError: the data or the elements hold NaN or infinity.
            DomainError: too few of the elements have a logarithm.
        """
        base = features.score if isinstance(features, FeatureEnergy) else None
        if isinstance(features, FeatureEnergy):
            if layer is not None:
                raise ConfigurationError(
                    f"layer: expected None beside a FeatureEnergy, which has its own, got {layer!r}"
                )
            reader = features.features
        elif isinstance(features, DataEnergy):
            raise ConfigurationError(f"features: expected a FeatureEnergy, a network or a function, got {features!r}")
        else:
            reader = NetworkFeatures(features, layer)
        action = _action_of(transformations, clean) if action is None else check_action(action)
        check_count("steps", steps)
        if seconds is not None:
            check_positive("seconds", seconds)
        end = deadline_after(seconds)
        known, rest, _ = held_out(action, clean, seed)
        number = _number_of(known) if num_samples is None else check_count("num_samples", num_samples)
        draw = checked_draw(action, known) if callable(known) else picker(known)
        drawing = _Restorations(action, transformations, reader, seed, max_memory)
        each = drawing.seconds_each(rest, _TIMED_SHARE * (math.inf if seconds is None else seconds))
        num_held = max(1, -(-number // _TRAINING_PER_VALIDATION))
        work = each * (number + num_held)
        if seconds is not None:
            if 2 * each > seconds:
                warnings.warn(
                    f"seconds: expected time for two moved data, which take about {2 * each:.2g}, got {seconds:g}",
                    stacklevel=2,
                )
            number_together = max(1, int(_BATCH_SHARE * seconds / each)) if each > 0.0 else _MOVED_DATA_BATCH_SIZE
            drawing.together = min(drawing.together, number_together)
            work = min(work, _FEATURES_SHARE * seconds)
        announce(f"{number + num_held:,} moved data, or as many as there is time for", work)
        ends = [None if end is None else end - share * (seconds or 0.0) for share in _SHARES_LEFT]
        held = drawing(rest, num_held, 31, ends[0])
        train = drawing(draw, number, 32, ends[1])
        head = UprightHead(train.shape[-1], base=base).to(train.device)
        left = None if end is None else seconds_until(end)
        validation = train_head(head, train, held, steps, left, seed)
        return cls(reader.network, reader.layer, score=head, validation=validation)

    def _entry(self) -> dict[str, Any]:
        return super()._entry() | {"validation": None if self.validation is None else vars(self.validation)}

    @classmethod
    def _options(cls, entry: HeaderEntry) -> dict[str, Any]:
        known = entry.get("validation")
        if known is None:
            return {"validation": None}
        if not isinstance(known, dict):
            raise CheckpointError(f"{entry.source}: expected an object for 'validation' in the header, got {known!r}")
        numbers = HeaderEntry(entry.source, "validation", known)
        shares = {name: numbers.number(name, "a share", lambda x: 0 <= x <= 1) for name in ("accuracy", "chance")}
        loss = numbers.number("loss", "a mean of logarithms that is not negative", lambda x: 0 <= x < math.inf)
        return {"validation": HeadValidation(**shares, loss=loss, num_data=numbers.count("num_data", 1))}


class _Restorations:
    """Draws features of restorations ``[n, k, d]`` of moved data, the right one first.

    Attributes:
        together: number of data whose restorations are evaluated together.
    """

    def __init__(
        self,
        action: Action,
        transformations: Transformations,
        reader: NetworkFeatures,
        seed: int,
        max_memory: float | None = None,
    ) -> None:
        self.action, self.transformations, self.reader, self.seed = action, transformations, reader, seed
        self.near = action.group.with_scale(spread_of(action.group, transformations, seed))
        self.max_memory, self.together = max_memory, _MOVED_DATA_BATCH_SIZE
        self.at_once: int | None = None

    def seconds_each(self, draw: Draw, seconds: float) -> float:
        """Measure memory and time of the features of a datum; return the time of its restorations.

        Args:
            draw: draws clean data.
            seconds: time that this may take; one evaluation of the network is timed however short it is.
        """
        x = on_device(draw(_MOVED_DATA_BATCH_SIZE, keyed(self.seed, 33)), module_device(self.reader))
        size = bytes_of(lambda rows: self.reader(with_gradients(rows)), x)
        self.at_once = number_that_fits(x, size, self.max_memory)
        together = number_moved_at_once(x, self.max_memory) // _NUM_RESTORATIONS
        self.together = max(1, min(self.together, together))
        with torch.no_grad():
            timed = time_evaluations(
                lambda number: self.reader(pytree.tree_map(lambda leaf: leaf[:number], x)),
                min(_MOVED_DATA_BATCH_SIZE, self.at_once or _MOVED_DATA_BATCH_SIZE),
                seconds,
            )
        return timed.of(_NUM_RESTORATIONS * self.together, self.at_once) / self.together

    def __call__(self, draw: Draw, count: int, key: int, end: float | None) -> Float[Tensor, "n k d"]:
        """Return features of ``count`` data, or of as many as are done before the time ``end``."""
        source, rows, done = keyed(self.seed, key), [], 0
        with torch.no_grad():
            while done < count and (done == 0 or seconds_until(end) > 0.0):
                number = min(self.together, count - done)
                x = on_device(draw(number, source), module_device(self.reader))
                moved = (done + torch.arange(number)) % _UNMOVED_ONE_IN != 0
                rows.append(self._features(x, moved, source))
                done += number
        return torch.cat(rows)

    def _features(self, x: Any, moved: Bool[Tensor, " n"], source: torch.Generator) -> Float[Tensor, "n k d"]:
        """Return features of the restorations of data; ``moved`` says which of the data are moved."""
        action, group, number = self.action, self.action.group, len(moved)
        first: Tensor = pytree.tree_leaves(x)[0]
        right = sample_elements(group, self.transformations, number, source).cpu()
        identity = group.identity(dtype=right.dtype).expand_as(right)
        right = where_rows(moved, right, identity)
        far = (
            sample_elements(group, self.transformations, number * _NUM_FAR, source)
            .cpu()
            .unflatten(0, (number, _NUM_FAR))
        )
        # the given datum has been warped once, a restoration twice: the head must not take less warped for right
        far[:, 0] = where_rows(moved, identity, far[:, 0])
        shape, reference = (number, _NUM_NEAR, group.dim), torch.empty(0, dtype=right.dtype)
        place = uniform((number, _NUM_NEAR, 1), reference, source)
        reach = _MIN_REACH * (math.log(_MAX_REACH / _MIN_REACH) * place).exp()
        unit = right.unsqueeze(1)
        near = group.compose(
            unit.expand(number, _NUM_NEAR, *unit.shape[2:]),
            self.near.exp(reach * normal(shape, reference, source)),
        )
        g = torch.cat([unit, far.to(right.dtype), near], 1).to(first)
        restored = action(group.inverse(g), lift(action(right.to(first), x), 1))
        rows = flat_rows(restored, 2)
        together = number * g.shape[1] if self.at_once is None else self.at_once
        parts = [
            self.reader(pytree.tree_map(lambda leaf, i=i: leaf[i : i + together], rows)).float()
            for i in range(0, number * g.shape[1], together)
        ]
        return torch.cat(parts).unflatten(0, (number, -1))


def _action_of(transformations: Transformations, clean: Any) -> Action:
    """Return the warp of images by the group of a distribution that knows its group."""
    images = callable(clean) or (isinstance(clean, Tensor) and clean.ndim == 4)
    if isinstance(transformations, PlaneTransformations) and images:
        return ImageWarp(transformations.group)
    raise ConfigurationError(
        "action: expected that on the data, got None; it is known for images and the distributions of "
        "trivgeo.inversion.transformations alone"
    )


def _number_of(clean: Any) -> int:
    """Return the default number of moved data."""
    if callable(clean):
        return _MAX_MOVED_DATA
    return min(_MAX_MOVED_DATA, max(_MIN_MOVED_DATA, _AUGMENTATIONS_PER_DATUM * len(pytree.tree_leaves(clean)[0])))
