"""A head on frozen features that knows which of several restorations of a datum is right, and its training."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._random import integers, keyed
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.features.feature_scores import ClassCosine, FeatureScore, MahalanobisDistance, NeighbourDistance
from trivgeo.networks import initialise

_BASE_SCORES = {kind.__name__: kind for kind in (ClassCosine, MahalanobisDistance, NeighbourDistance)}
_BATCH_SIZE = 64  # data of a training step
_NUM_VALIDATIONS = 20  # validations during a training
_LEARNING_RATE, _WEIGHT_DECAY, _DROPOUT = 1e-3, 0.1, 0.3


@dataclass(frozen=True)
class HeadValidation:
    """Validation of a head on data that were held out from its training.

    The training keeps the head of the lowest loss on these data, so that the figures are slightly too good.

    Attributes:
        accuracy: share of the data whose right restoration has a lower energy than all others offered.
        chance: the accuracy of a guess.
        loss: mean of minus the log-probability of the right restoration; a guess has ``log(1 / chance)``.
        num_data: number of moved data.
    """

    accuracy: float
    chance: float
    loss: float
    num_data: int


@checked
class UprightHead(FeatureScore):
    """A small network on features, plus a multiple of another score; zero on the average of restored data.

    Args:
        dim: number of features.
        width: width of the hidden layer.
        base: the other score, or its description as `architecture` has it; ``None`` for none.
    """

    def __init__(self, dim: int, width: int = 64, base: FeatureScore | Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.dim, self.width = dim, width
        if isinstance(base, Mapping):
            base = _BASE_SCORES[base["kind"]](**base["architecture"])
        self.base = base
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("std", torch.ones(dim))
        self.register_buffer("offset", torch.zeros(()))
        self.mean: Tensor
        self.std: Tensor
        self.offset: Tensor
        self.layers = nn.Sequential(
            nn.Dropout(_DROPOUT), nn.Linear(dim, width), nn.SiLU(), nn.Dropout(_DROPOUT), nn.Linear(width, 1)
        )
        self.log_weight = nn.Parameter(torch.zeros(()))

    @property
    def architecture(self) -> dict[str, Any]:
        base = None
        if self.base is not None:
            base = {"kind": type(self.base).__name__, "architecture": self.base.architecture}
        return {"dim": self.dim, "width": self.width, "base": base}

    def evaluate(self, features: Tensor) -> Tensor:
        return self.with_base(features, None if self.base is None else self.base(features))

    def with_base(self, features: Float[Tensor, "b d"], base: Float[Tensor, " b"] | None) -> Float[Tensor, " b"]:
        """Return the output of the head for ``features`` plus a multiple of ``base``, their base score, ``[b]``.

        Raises:
            ShapeError: there are not as many features as the head has, or not one base score for each row.
        """
        if features.shape[-1:] != (self.dim,):
            raise ShapeError(f"features: expected [b, {self.dim}], got {list(features.shape)}")
        if base is not None and base.shape != features.shape[:-1]:
            raise ShapeError(f"base: expected scores {list(features.shape[:-1])}, got {list(base.shape)}")
        own = self.mean.dtype
        standard = ((features.to(own) - self.mean) / self.std).clamp(-10.0, 10.0)
        score: Tensor = self.layers(standard).squeeze(-1)
        if base is not None:
            score = score + self.log_weight.exp() * base
        return (score - self.offset).to(features.dtype)


def train_head(
    head: UprightHead,
    train: Float[Tensor, "n k d"],
    held: Float[Tensor, "m k d"],
    steps: int,
    seconds: float | None,
    seed: int,
) -> HeadValidation:
    r"""Train a head to choose the right one of k restorations of a datum, and return its validation on held-out data.

    The loss is minus the logarithm of :math:`e^{-E_0} / \sum_j e^{-E_j}` (the contrastive loss of van den Oord et al.
    2018), with the right restoration at j = 0. With the others restored by draws of a distribution, :math:`e^{-E}` is
    in the end the posterior of the transformation with this distribution as its prior.

    Args:
        head: untrained head; it ends in evaluation mode, its parameters constant.
        train: features of restorations, the right one first.
        held: features of restorations of held-out data.
        seconds: ends the training after that time; ``None`` for no bound.

    Raises:
        ConfigurationError: features that are not finite for all data.
    """
    kept = torch.isfinite(train[:, 0]).all(-1)
    train, held = train[kept], held[torch.isfinite(held[:, 0]).all(-1)]
    if len(train) == 0 or len(held) == 0:
        raise ConfigurationError("features: expected finite ones of restored data, got NaN or infinity for all")
    with torch.no_grad():  # the base score of a classifier costs more than the head, and does not change
        base, held_base = (None if head.base is None else _energies(head.base, part) for part in (train, held))
    initialise(head.layers, keyed(seed, 21))
    flat = train.flatten(0, 1)
    flat = flat[torch.isfinite(flat).all(-1)]
    head.mean, head.std = flat.mean(0), flat.std(0).clamp(min=1e-6 * float(flat.std()) + 1e-12)
    with torch.no_grad():
        next(head.layers[-1].parameters()).mul_(0.1)  # the head begins near the base score
        if base is not None:
            gaps = base[:, 1:] - base[:, :1]
            head.log_weight.fill_(-float(gaps[torch.isfinite(gaps)].std().clamp(min=1e-6).log()))
    optimiser = torch.optim.AdamW(head.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    source, start = keyed(seed, 22), time.perf_counter()
    best, state = _validate(head, held, held_base), copy.deepcopy(head.state_dict())
    with torch.random.fork_rng(devices=[flat.device] if flat.is_cuda else []), torch.enable_grad():
        torch.manual_seed(seed)  # dropout draws from the global generator
        for step in range(1, steps + 1):
            head.train()
            rows = integers(len(train), (min(_BATCH_SIZE, len(train)),), torch.empty(0), source).to(train.device)
            loss = _losses(_energies(head, train[rows], None if base is None else base[rows])).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            out_of_time = seconds is not None and time.perf_counter() - start > seconds
            if step % max(1, steps // _NUM_VALIDATIONS) == 0 or step == steps or out_of_time:
                found = _validate(head, held, held_base)
                if found.loss < best.loss:
                    best, state = found, copy.deepcopy(head.state_dict())
            if out_of_time:
                break
    head.load_state_dict(state)
    head.eval().requires_grad_(False)
    # the cost of lost content is a multiple of the energy of an empty datum, so energies count from clean data's
    head.offset = _energies(head, train[:, :1], None if base is None else base[:, :1]).mean()
    return best


def _energies(
    score: FeatureScore, features: Float[Tensor, "n k d"], base: Float[Tensor, "n k"] | None = None
) -> Float[Tensor, "n k"]:
    """Return energies of restorations, infinite where features are not finite; ``base`` has known base scores."""
    finite = torch.isfinite(features).all(-1)
    rows = torch.where(finite.unsqueeze(-1), features, 0.0).flatten(0, 1)
    if base is None or not isinstance(score, UprightHead):
        energies = score(rows)
    else:
        energies = score.with_base(rows, torch.where(finite, base, 0.0).flatten())
    return torch.where(finite, energies.unflatten(0, features.shape[:2]), torch.inf)


def _losses(energies: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    return -torch.log_softmax(-energies, -1)[:, 0]


def _validate(head: UprightHead, held: Tensor, base: Tensor | None) -> HeadValidation:
    head.eval()
    with torch.no_grad():
        energies = _energies(head, held, base)
    right = energies[:, :1] < energies[:, 1:]
    return HeadValidation(
        float(right.all(-1).double().mean()), 1.0 / held.shape[1], float(_losses(energies).mean()), len(held)
    )
