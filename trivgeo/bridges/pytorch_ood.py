"""Detectors of out-of-distribution data as energies: what a detector takes for an outlier has a high energy.

```python
from pytorch_ood.detector import EnergyBased
from trivgeo.bridges.pytorch_ood import OutlierEnergy

inverter = TIED(action, OutlierEnergy(EnergyBased(classifier)), transformations, clean)
```
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.inversion.energies import DataEnergy

__all__ = ["OutlierEnergy"]


@checked
class OutlierEnergy(nn.Module, DataEnergy):
    """The outlier score of a detector of pytorch-ood, or of any object with such a ``predict``, as an energy.

    `TIED` and other descents need the gradient of the score by the data, which detectors of logits have
    (``EnergyBased``, ``MaxLogit``, ``Entropy``, ``MaxSoftmax``). Detectors that compute without gradients
    (``Mahalanobis``, ``ReAct`` and others) are refused by them, and serve searches that need none, as `ITS`.

    Args:
        detector: a fitted detector: ``predict(x)`` returns a score for each datum, larger for outliers. Its ``model``,
            if it is a module, moves to devices with the energy, and is in evaluation mode where energies are.

    Raises:
        ConfigurationError: there is no ``predict``; or (when called) the detector returns no tensor, or one without a
            gradient.
        ShapeError: (when called) the detector does not return one score for each datum.
    """

    def __init__(self, detector: Any) -> None:
        super().__init__()
        if not callable(getattr(detector, "predict", None)):
            raise ConfigurationError(f"detector: expected an object with predict(x), got {detector!r}")
        self.detector = detector
        model = getattr(detector, "model", None)
        self.model = model if isinstance(model, nn.Module) else None

    def _apply(self, *arguments: Any, **settings: Any) -> OutlierEnergy:
        super()._apply(*arguments, **settings)
        where = next(iter(self.parameters()), None)
        if where is not None and hasattr(self.detector, "to"):
            self.detector.to(where.device)  # statistics of a fit are no parameters
        return self

    def forward(self, x: Tensor) -> Float[Tensor, " b"]:
        """Return the scores of data ``x``, ``[b, ...]``; raises as the class says."""
        scores = self.detector.predict(x)
        if not isinstance(scores, Tensor):
            raise ConfigurationError(f"detector: expected a tensor of scores, got {type(scores).__name__}")
        if scores.shape != x.shape[:1]:
            raise ShapeError(f"detector: expected one score for each of {len(x)} data, got {list(scores.shape)}")
        if x.requires_grad and not scores.requires_grad:
            raise ConfigurationError(
                f"detector: expected one whose scores have a gradient, got {type(self.detector).__name__}, which "
                "computes without gradients: ITS needs none"
            )
        return scores
