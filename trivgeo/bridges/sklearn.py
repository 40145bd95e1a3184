"""Estimators of scikit-learn: a transformer that undoes transformations, and a classifier that is right for moved data.

```python
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from trivgeo.bridges.sklearn import Canonicalizer, EquivariantClassifier

upright = Canonicalizer(ImageWarp(SO(2)), rotations(SO(2)), shape=(1, 8, 8))
classifier = EquivariantClassifier(LogisticRegression(), upright).fit(clean, labels)
classifier.score(rotated, labels)
GridSearchCV(classifier, {"canonicalizer__evaluations": [100, 300]})
```
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from trivgeo._random import NoiseStreams
from trivgeo.bridges.base import base_class
from trivgeo.checks import check_type
from trivgeo.errors import ShapeError
from trivgeo.groups import Action
from trivgeo.inversion import TIED
from trivgeo.inversion.energies import DataEnergy
from trivgeo.inversion.transformations import Transformations

__all__ = ["Canonicalizer", "EquivariantClassifier"]

_BaseEstimator: Any = base_class("sklearn.base", "BaseEstimator", "scikit-learn")
_ClassifierMixin: Any = base_class("sklearn.base", "ClassifierMixin", "scikit-learn")
_MetaEstimatorMixin: Any = base_class("sklearn.base", "MetaEstimatorMixin", "scikit-learn")
_TransformerMixin: Any = base_class("sklearn.base", "TransformerMixin", "scikit-learn")
_LARGEST_SEED = 2**31


class _GaussianEnergy(nn.Module, DataEnergy):
    """Minus the log-likelihood of probabilistic principal components, up to a constant, for each feature."""

    mean: Tensor
    precision: Tensor

    def __init__(self, components: Any, reference: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(components.mean_).to(reference))
        self.register_buffer("precision", torch.from_numpy(components.get_precision()).to(reference))

    def forward(self, x: Tensor) -> Float[Tensor, " b"]:
        off = x.flatten(1) - self.mean
        return 0.5 * ((off @ self.precision) * off).mean(-1)


class Canonicalizer(_TransformerMixin, _BaseEstimator):
    """Transformer that moves each datum back to where the training data are, by the search of `TIED`.

    ``fit`` takes data that were not moved. ``transform`` returns data of the same shape; a datum whose transformation
    is not found stays as it is.

    Args:
        action: action on data, such as ``ImageWarp(SO(2))``.
        transformations: distribution of the elements that move data, a function (count, generator) to ``[count,
            *element_shape]``; ``None`` if nothing is known of them.
        shape: shape of a datum, to which a row of features is brought, such as ``(1, 8, 8)`` for images of 64 pixels.
        energy: function of a batch of data to energies ``[batch]``, low for data that were not moved; default: that of
            probabilistic principal components of the training data.
        n_components: components of the default energy, see ``sklearn.decomposition.PCA``.
        evaluations: energies that are evaluated for each datum, see `TIED`.
        random_state: seed, or a ``RandomState``, of the search; the same noise serves every datum.

    Attributes:
        inverter_: the fitted search; ``inverter_(x).verdicts`` says whether its answers can be trusted.
        n_features_in_: number of features.

    Raises:
        ConfigurationError: scikit-learn is not installed; or (in ``fit``) the action is none, or see `TIED`.
        ShapeError: (in ``fit``) rows of features do not fit the shape.
    """

    def __init__(
        self,
        action: Action,
        transformations: Transformations | None = None,
        *,
        shape: Sequence[int] = (-1,),
        energy: Callable[[Any], Tensor] | None = None,
        n_components: float | None = None,
        evaluations: int = 300,
        random_state: Any = 0,
    ) -> None:
        self.action = action
        self.transformations = transformations
        self.shape = shape
        self.energy = energy
        self.n_components = n_components
        self.evaluations = evaluations
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the energy to data ``X``, ``[n, features]``, that were not moved, and try the search; ``y`` is unused."""
        from sklearn.decomposition import PCA
        from sklearn.utils import check_random_state
        from sklearn.utils.validation import validate_data

        array = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        check_type("action", self.action, Action)  # type: ignore[type-abstract]
        self._seed = int(check_random_state(self.random_state).randint(_LARGEST_SEED))
        x = self._data(array)
        energy = self.energy
        if energy is None:
            energy = _GaussianEnergy(PCA(self.n_components, random_state=self._seed).fit(array), x)
        clean = None if self.transformations is None else x
        # the search keeps what it computes of the group: parameters of estimators stay as they are
        action = copy.deepcopy(self.action)
        self.inverter_ = TIED(action, energy, self.transformations, clean, evaluations=self.evaluations)
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """Return the data ``X``, ``[n, features]``, each with its transformation undone."""
        from sklearn.utils.validation import check_is_fitted, validate_data

        check_is_fitted(self)
        array = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        x = self._data(array)
        noise = NoiseStreams(torch.zeros(len(x), dtype=torch.int64), self._seed)
        result = self.inverter_(x, generator=noise)
        restored = result.restore(x).detach().flatten(1)
        kept = result.has_usable.unsqueeze(-1) & torch.isfinite(restored)
        moved: NDArray[Any] = torch.where(kept, restored, x.flatten(1)).numpy()
        return moved

    def _data(self, array: NDArray[Any]) -> Tensor:
        try:
            return torch.from_numpy(np.array(array)).unflatten(-1, tuple(self.shape))
        except RuntimeError as error:
            raise ShapeError(f"shape: expected one of {array.shape[1]} features, got {tuple(self.shape)}") from error

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class EquivariantClassifier(_MetaEstimatorMixin, _ClassifierMixin, _BaseEstimator):
    """Classifier that undoes the transformation of a datum before it asks another one, which knows clean data alone.

    ``fit`` takes data that were not moved, and trains the classifier on them as they are. (A ``Pipeline`` of a
    `Canonicalizer` and a classifier trains it on moved-back data.)

    Args:
        estimator: a classifier of scikit-learn; or a trained `torch.nn.Module` that returns a score for each class,
            in the order of sorted labels, and is not trained further.
        canonicalizer: a `Canonicalizer`, or another transformer.

    Attributes:
        estimator_: the fitted classifier.
        canonicalizer_: the fitted transformer.
        classes_: the labels, sorted.

    Raises:
        ConfigurationError: scikit-learn is not installed.
    """

    def __init__(self, estimator: Any, canonicalizer: Any) -> None:
        self.estimator = estimator
        self.canonicalizer = canonicalizer

    def fit(self, X: Any, y: Any) -> Self:
        """Fit both parts to data ``X``, ``[n, features]``, that were not moved, with labels ``y``, ``[n]``."""
        from sklearn.base import clone
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import validate_data

        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        self.canonicalizer_ = clone(self.canonicalizer).fit(X)
        is_trained = isinstance(self.estimator, nn.Module)
        self.estimator_: Any = self.estimator if is_trained else clone(self.estimator).fit(X, y)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the label of each datum of ``X``."""
        x = self._restored(X)
        if isinstance(self.estimator_, nn.Module):
            labels: NDArray[Any] = self.classes_[self._scores(x).argmax(-1)]
            return labels
        return self.estimator_.predict(x)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each class, ``[n, classes]``, for data ``X``."""
        x = self._restored(X)
        if isinstance(self.estimator_, nn.Module):
            probabilities: NDArray[Any] = torch.from_numpy(self._scores(x)).softmax(-1).numpy()
            return probabilities
        return self.estimator_.predict_proba(x)

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return the score of each class, or of the second of two, for data ``X``."""
        x = self._restored(X)
        return self._scores(x) if isinstance(self.estimator_, nn.Module) else self.estimator_.decision_function(x)

    def _restored(self, X: Any) -> NDArray[Any]:
        from sklearn.utils.validation import check_is_fitted, validate_data

        check_is_fitted(self)
        return self.canonicalizer_.transform(validate_data(self, X, reset=False))

    def _scores(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return the scores of a network for rows of features."""
        network = self.estimator_
        parameter = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
        data = torch.from_numpy(x).unflatten(-1, tuple(getattr(self.canonicalizer_, "shape", (-1,)))).to(parameter)
        was_training = network.training
        network.eval()
        with torch.no_grad():
            scores: NDArray[Any] = network(data).cpu().numpy()
        network.train(was_training)
        if scores.shape != (len(x), len(self.classes_)):
            raise ShapeError(
                f"estimator: expected scores [{len(x)}, {len(self.classes_)}] of {len(self.classes_)} classes, got "
                f"{list(scores.shape)}"
            )
        return scores
