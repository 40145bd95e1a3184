"""Scores of features: low for the features of clean data."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trivgeo._autocast import matmul
from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.networks import Network


@checked
class FeatureScore(Network):
    """Score of features, ``[b, d]`` to ``[b]``, low for clean data, in the dtype of the features, float32 at least."""

    dim: int
    """The number d of features."""

    def forward(self, features: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        """Return a score for each datum, ``[b]``; low for features like those of clean data.

        Raises:
            ShapeError: there are other than d features.
        """
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise ShapeError(f"features: expected [b, {self.dim}], got {list(features.shape)}")
        return self.evaluate(features.to(torch.promote_types(features.dtype, torch.float32)))

    @abstractmethod
    def evaluate(self, features: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        """Return the scores ``[b]`` of checked ``features``, ``[b, d]``, in their dtype."""


@checked
class ClassCosine(FeatureScore):
    r"""Minus the cosine of the features to the nearest class weight, :math:`-\max_c \cos(f, w_c)`.

    Args:
        classes: number of classes.
        dim: number of features.
    """

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("directions", torch.zeros(classes, dim))
        self.directions: Tensor

    @classmethod
    def of(cls, weights: Float[Tensor, "c d"]) -> ClassCosine:
        """Return the score by class ``weights``, ``[c, d]``.

        Raises:
            DomainError: a weight is zero, or they are not finite.
        """
        score = cls(*weights.shape).to(weights.device)
        weights = weights.detach().to(torch.promote_types(weights.dtype, torch.float32))
        norms = weights.norm(dim=-1, keepdim=True)
        if not bool((torch.isfinite(norms) & (norms > 0)).all()):
            raise DomainError("weights: expected finite rows, none of them zero")
        score.directions = weights / norms
        return score

    @property
    def architecture(self) -> dict[str, Any]:
        return {"classes": len(self.directions), "dim": self.dim}

    def evaluate(self, features: Tensor) -> Tensor:
        unit = nn.functional.normalize(features, dim=-1)
        return -matmul(unit, self.directions.to(features.dtype).mT).amax(-1)


@checked
class MahalanobisDistance(FeatureScore):
    r"""Half the mean squared Mahalanobis distance to the nearest centre, :math:`|f - m_c|^2_{\Sigma^{-1}} / 2 d`.

    (Lee et al. 2018.) :math:`\Sigma` is the covariance about the centres, shrunk to a multiple of the identity by the
    oracle approximation (Chen et al. 2010), so that a few data are enough. It is kept as its principal directions.

    Args:
        centres: number of centres, one of all data or one of each class.
        directions: number of principal directions.
        dim: number of features.
    """

    def __init__(self, centres: int, directions: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("centres", torch.zeros(centres, dim))
        self.register_buffer("directions", torch.zeros(directions, dim))
        self.register_buffer("weights", torch.zeros(directions))
        self.register_buffer("rest", torch.zeros(()))
        self.centres: Tensor
        self.directions: Tensor
        self.weights: Tensor
        self.rest: Tensor

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], labels: Int[Tensor, " n"] | None = None) -> MahalanobisDistance:
        """Return the score of the features of clean data.

        Args:
            features: features of clean data, at least two rows.
            labels: classes of the data, each of which has a centre; default one centre for all.

        Raises:
            DomainError: features that are all the same.
        """
        index = torch.zeros(len(features), dtype=torch.long, device=features.device)
        if labels is not None:
            index = labels.to(features.device).unique(return_inverse=True)[1]
        f = features.detach().double()
        member = nn.functional.one_hot(index).to(f)
        centres = (member / member.sum(0)).mT @ f
        _, deviations, directions = torch.linalg.svd(f - centres[index], full_matrices=False)
        number, dim = f.shape
        variances = deviations.square() / number
        if not bool(variances.sum() > 0):
            raise DomainError("clean: expected data of different features, got the same for all (of each label)")
        trace, squares = variances.sum(), variances.square().sum()
        shrinkage = (squares + trace**2) / ((number + 1) * (squares - trace**2 / dim))  # approximation for large d
        shrinkage = torch.where((shrinkage >= 0) & (shrinkage <= 1), shrinkage, 1.0)
        floor = shrinkage * trace / dim
        floor = torch.maximum(floor, 1e-6 * trace / dim)  # data without noise in some direction
        score = cls(len(centres), len(directions), dim).to(features.device)
        own = torch.promote_types(features.dtype, torch.float32)
        score.centres, score.directions = centres.to(own), directions.to(own).contiguous()
        score.rest = (1.0 / floor).to(own)
        score.weights = (1.0 / ((1.0 - shrinkage) * variances + floor) - 1.0 / floor).to(own)
        return score

    @property
    def architecture(self) -> dict[str, Any]:
        return {"centres": len(self.centres), "directions": len(self.directions), "dim": self.dim}

    def evaluate(self, features: Tensor) -> Tensor:
        centred = features.unsqueeze(1) - self.centres.to(features.dtype)
        along = matmul(centred, self.directions.to(features.dtype).mT)
        weights, rest = self.weights.to(features.dtype), self.rest.to(features.dtype)
        squares = rest * centred.square().sum(-1) + (weights * along.square()).sum(-1)
        return squares.amin(-1) / (2 * self.dim)


@checked
class NeighbourDistance(FeatureScore):
    r"""The mean of :math:`1 - \cos(f, f_i)` over the nearest of some clean data (Sun et al. 2022).

    Args:
        data: number of clean data.
        dim: number of features.
        neighbours: number of nearest clean data that are averaged.

    Raises:
        ConfigurationError: a number is not positive.
    """

    def __init__(self, data: int, dim: int, neighbours: int) -> None:
        super().__init__()
        self.dim = dim
        self.neighbours = min(check_count("neighbours", neighbours), check_count("data", data))
        self.register_buffer("directions", torch.zeros(data, check_count("dim", dim)))
        self.directions: Tensor

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], neighbours: int = 3) -> NeighbourDistance:
        """Return the score that compares with features of clean data, ``[n, d]``, by the nearest ``neighbours``."""
        score = cls(len(features), features.shape[1], neighbours).to(features.device)
        own = features.detach().to(torch.promote_types(features.dtype, torch.float32))
        score.directions = nn.functional.normalize(own, dim=-1)
        return score

    @property
    def architecture(self) -> dict[str, Any]:
        return {"data": len(self.directions), "dim": self.dim, "neighbours": self.neighbours}

    def evaluate(self, features: Tensor) -> Tensor:
        cosines = matmul(nn.functional.normalize(features, dim=-1), self.directions.to(features.dtype).mT)
        return 1.0 - cosines.topk(self.neighbours, dim=-1).values.mean(-1)


def check_features(features: Tensor, least: int = 2) -> Tensor:
    """Return features of clean data if they are at least ``least`` rows of finite numbers.

    Raises:
        ShapeError: there are too few.
        DomainError: features hold NaN or infinity.
    """
    if len(features) < least:
        raise ShapeError(f"clean: expected at least {least} data, got {len(features)}")
    if not bool(torch.isfinite(features).all()):
        raise DomainError("features: expected finite ones of clean data, got NaN or infinity")
    return features


def check_weights(weights: Tensor) -> Tensor:
    """Return class weights if they are ``[c, d]``.

    Raises:
        ShapeError: they are of another shape, or none.
        ConfigurationError: they are uninitialised parameters of a lazy layer.
    """
    if torch.nn.parameter.is_lazy(weights):
        raise ConfigurationError(
            "network: expected one that was called on data, got a last linear layer without weights"
        )
    if weights.ndim != 2 or len(weights) == 0:
        raise ShapeError(f"weights: expected [classes, features], got {list(weights.shape)}")
    return weights
