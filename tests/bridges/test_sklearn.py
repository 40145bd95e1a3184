"""scikit-learn: its own checks of estimators, clones, pipelines and grids; digits that were turned."""

from __future__ import annotations

import contextlib
import functools
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn

from tests.helpers import seeded
from trivgeo.actions import ImageWarp
from trivgeo.bridges.sklearn import Canonicalizer, EquivariantClassifier
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SO, Translation
from trivgeo.inversion.transformations import rotations


class DistanceToZero:
    """The mean of the numbers of a datum, squared; its name is the same in every process that collects tests."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(1).mean(-1).square()

    def __repr__(self) -> str:
        return "DistanceToZero()"


distance_to_zero = DistanceToZero()


def shifts(count: int, generator: torch.Generator | None) -> Tensor:
    return torch.randn(count, 1, generator=generator, dtype=torch.float64)


# numbers on a line are shifted, any number of them
CENTRING = Canonicalizer(Translation(1).action(), shape=(-1, 1), energy=distance_to_zero, evaluations=20)


NO_HASH = "joblib's hash of a tensor is another one for its copy"


@parametrize_with_checks(
    [CENTRING], expected_failed_checks=lambda estimator: {"check_estimators_overwrite_params": NO_HASH}
)
def test_the_checks_of_scikit_learn(estimator: BaseEstimator, check: Any) -> None:
    with contextlib.suppress(SkipTest):  # of pandas and arrays of other libraries
        check(estimator)


@parametrize_with_checks([EquivariantClassifier(LogisticRegression(), StandardScaler())])
def test_the_checks_of_classifiers(estimator: BaseEstimator, check: Any) -> None:
    with contextlib.suppress(SkipTest):
        check(estimator)


@functools.cache
def digits() -> tuple[Any, Any, Any, Any]:
    """Ones, threes and fours: clean ones to train, turned ones to test."""
    pixels, labels = load_digits(return_X_y=True)
    some = np.isin(labels, (1, 3, 4))
    pixels, labels = pixels[some] / 16.0, labels[some]
    warp = ImageWarp(SO(2))
    images = torch.from_numpy(pixels[-100:]).reshape(-1, 1, 8, 8)
    turned = warp(rotations(SO(2), 60.0)(100, seeded(0)), images).flatten(1).numpy()
    return pixels[:-100], labels[:-100], turned, labels[-100:]


def upright(**settings: Any) -> Canonicalizer:
    return Canonicalizer(
        ImageWarp(SO(2)), rotations(SO(2), 60.0), shape=(1, 8, 8), n_components=20, **{"evaluations": 60, **settings}
    )


def test_turned_digits_are_right() -> None:
    clean, labels, turned, truth = digits()
    classifier = EquivariantClassifier(LogisticRegression(max_iter=200), upright()).fit(clean, labels)
    alone = classifier.estimator_.score(turned, truth)
    assert classifier.score(turned, truth) > max(0.8, alone + 0.15)
    assert classifier.predict_proba(turned[:3]).shape == (3, 3)
    assert classifier.decision_function(turned[:3]).shape == (3, 3)


def test_clones_pipelines_and_grids() -> None:
    """Parameters by name, also of the parts; the same search twice; a grid over evaluations."""
    clean, labels, turned, truth = digits()
    canonicalizer = upright()
    copy = clone(canonicalizer).set_params(evaluations=30)
    assert (copy.get_params()["evaluations"], canonicalizer.evaluations) == (30, 60)
    assert copy.get_params()["shape"] == (1, 8, 8)
    pipeline = make_pipeline(copy, LogisticRegression(max_iter=200)).fit(clean[:100], labels[:100])
    assert pipeline.score(turned[:30], truth[:30]) > 0.6
    np.testing.assert_array_equal(pipeline[0].transform(turned[:4]), pipeline[0].transform(turned[:4]))
    grid = GridSearchCV(
        EquivariantClassifier(LogisticRegression(max_iter=200), copy),
        {"canonicalizer__n_components": [10, 20], "estimator__C": [1.0]},
        cv=2,
    ).fit(clean[:80], labels[:80])
    assert grid.best_params_["canonicalizer__n_components"] in (10, 20)
    assert grid.predict(turned[:2]).shape == (2,)


def test_a_trained_network() -> None:
    """Scores of a module in the order of the sorted labels; its mode stays."""
    clean, labels, turned, _ = digits()
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    fitted = LogisticRegression(max_iter=200).fit(clean, labels)
    with torch.no_grad():
        network[1].weight.copy_(torch.from_numpy(fitted.coef_))
        network[1].bias.copy_(torch.from_numpy(fitted.intercept_))
    both = [EquivariantClassifier(model, upright()).fit(clean, labels) for model in (network, fitted)]
    np.testing.assert_array_equal(both[0].predict(turned), both[1].predict(turned))
    np.testing.assert_allclose(both[0].predict_proba(turned[:5]), both[1].predict_proba(turned[:5]), atol=1e-6)
    assert network.training
    with pytest.raises(ShapeError, match="of 3 classes"):
        EquivariantClassifier(nn.Flatten(), upright()).fit(clean, labels).predict(turned[:2])


def test_what_is_refused() -> None:
    clean, _, _, _ = digits()
    with pytest.raises(ConfigurationError, match="action"):
        Canonicalizer(None).fit(clean)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="one of 64 features"):
        upright().set_params(shape=(1, 7, 7)).fit(clean)
