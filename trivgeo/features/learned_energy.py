"""An energy that is learned on the frozen features of a pretrained network, from clean data alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from trivgeo._devices import module_device, on_device
from trivgeo._random import keyed, normal, uniform
from trivgeo._torch import pytree
from trivgeo.actions import ImageWarp
from trivgeo.checks import check_count, check_positive, checked
from trivgeo.errors import CheckpointError, ConfigurationError
from trivgeo.features.feature_energy import FeatureEnergy
from trivgeo.features.feature_scores import FeatureScore
from trivgeo.features.network_features import NetworkFeatures
from trivgeo.features.upright_head import HeadValidation, UprightHead, train_head
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy
from trivgeo.inversion.learned.learned_inverter import Draw, checked_draw, held_out, picker
from trivgeo.inversion.posterior import check_action
from trivgeo.inversion.rows import flat_rows, lift, where_rows
from trivgeo.inversion.transformations import PlaneTransformations, Transformations, sample_elements, spread_of
from trivgeo.networks import HeaderEntry

_NUM_FAR = 4  # wrong restorations by the identity and by drawn elements
_NUM_NEAR = 3  # wrong restorations near the right one
_MIN_REACH, _MAX_REACH = 0.03, 1.0  # distances of near restorations from the right one, in spreads of transformations
_UNMOVED_ONE_IN = 8  # one in so many data is not moved, so that the head knows clean data, too
_AUGMENTATIONS_PER_DATUM, _MIN_MOVED_DATA, _MAX_MOVED_DATA = 32, 128, 4096
_MOVED_DATA_BATCH_SIZE = 4  # moved data whose restorations are evaluated together
_TRAINING_PER_VALIDATION = 5  # moved data of the training for each one of the validation


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
            seconds: ends the moving of data after that time, and the training after another quarter of it; the result
                then depends on the speed of the machine. ``None`` for no bound.
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
        known, rest, _ = held_out(action, clean, seed)
        number = _number_of(known) if num_samples is None else check_count("num_samples", num_samples)
        drawing = _Restorations(action, transformations, reader, seed)
        known = checked_draw(action, known) if callable(known) else picker(known)
        end = None if seconds is None else time.monotonic() + seconds
        held = drawing(
            rest,
            max(1, -(-number // _TRAINING_PER_VALIDATION)),
            31,
            None if end is None else end - 0.8 * (seconds or 0.0),
        )
        train = drawing(known, number, 32, end)
        head = UprightHead(train.shape[-1], base=base).to(train.device)
        validation = train_head(head, train, held, steps, None if seconds is None else seconds / 4, seed)
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
    """Draws features of restorations ``[n, k, d]`` of moved data, the right one first."""

    def __init__(self, action: Action, transformations: Transformations, reader: NetworkFeatures, seed: int) -> None:
        self.action, self.transformations, self.reader, self.seed = action, transformations, reader, seed
        self.near = action.group.with_scale(spread_of(action.group, transformations, seed))

    def __call__(self, draw: Draw, count: int, key: int, end: float | None) -> Float[Tensor, "n k d"]:
        """Return features of ``count`` data, or of as many as are done before the time ``end``."""
        source, rows, done = keyed(self.seed, key), [], 0
        with torch.no_grad():
            while done < count and (end is None or done == 0 or time.monotonic() < end):
                number = min(_MOVED_DATA_BATCH_SIZE, count - done)
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
        return self.reader(flat_rows(restored, 2)).float().unflatten(0, (number, -1))


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
