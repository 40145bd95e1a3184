"""Test-time equivariance of a pretrained network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from trivgeo._torch import pytree
from trivgeo.checks import check_type, with_tensors
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import Action
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior_energy import check_action
from trivgeo.inversion.result import InversionResult
from trivgeo.inversion.rows import rows_like, where_rows

__all__ = ["TestTimeEquivariant"]


class TestTimeEquivariant(nn.Module):
    r"""A pretrained network made equivariant without training: :math:`\tilde f(x) = g \cdot f(g^{-1} \cdot x)`.

    g comes from an `Inverter`; since the posterior is equivariant, so is the law of the prediction
    (Kim et al. 2026, prop. 3.2). Where no hypothesis can be undone the prediction is NaN, and `InversionResult.found`
    says so. The network stays in the mode that it is in, training or evaluation, unlike the inverter's energy.

    Args:
        network: batch of data to batch of outputs.
        inverter: finds g.
        output_action: how g acts on outputs; ``None`` for an invariant prediction.
        ensemble: ``"best"`` takes the hypothesis of lowest energy, ``"mean"`` averages the predictions over the
            usable hypotheses, with the weights of a `PosteriorSample` if there are any; it needs
            outputs that are floating-point or complex.

    Raises:
        ConfigurationError: the groups of inverter and output action differ, or an unknown ensemble.
    """

    __test__ = False  # not a test case, whatever its name

    def __init__(
        self,
        network: Callable[[Any], Tensor],
        inverter: Inverter,
        output_action: Action | None = None,
        ensemble: Literal["best", "mean"] = "best",
    ) -> None:
        super().__init__()
        if not isinstance(inverter, Inverter):
            raise ConfigurationError(f"inverter: expected an Inverter, got {type(inverter).__name__}")
        if output_action is not None:
            check_action(output_action, "output_action")
            if not output_action.group.is_same_group(inverter.action.group):
                raise ConfigurationError(
                    f"output_action: expected an action of {inverter.action.group!r}, got one of "
                    f"{output_action.group!r}"
                )
        if ensemble not in ("best", "mean"):
            raise ConfigurationError(f"ensemble: expected 'best' or 'mean', got {ensemble!r}")
        if not callable(network):
            raise ConfigurationError(f"network: expected a function of a batch of data, got {network!r}")
        self.network = network
        self.inverter = inverter
        self.output_action = output_action
        self.ensemble = ensemble

    def forward(self, x: Any, *, generator: torch.Generator | None = None) -> Tensor:
        """The prediction for a batch of data."""
        x = with_tensors("x", x)
        return self.predict(x, self.inverter(x, generator=generator))

    def predict(self, x: Any, result: InversionResult) -> Tensor:
        """The prediction from hypotheses found before.

        Raises:
            ShapeError: the result is not of these data.
            ConfigurationError: a mean of outputs that are labels or truth values.
            DomainError: none was found for some datum, and the network's outputs cannot be NaN.
        """
        x = with_tensors("x", x)
        batch = self.inverter.action.batch_shape(x)
        if batch != result.energies.shape[:1]:
            raise ShapeError(f"x: expected the {len(result.energies)} data that were inverted, got batch {list(batch)}")
        found = result.found
        if self.ensemble == "best":
            unit = self.inverter.action.group.identity(dtype=result.elements.dtype, device=found.device)
            output = self._predict(x, where_rows(found, result.best(), unit))
            if output.is_floating_point() or output.is_complex():
                return where_rows(found, output, torch.nan)
            if not bool(found.all()):
                missing = int((~found).sum())
                raise DomainError(f"x: expected a hypothesis for each datum, got none for {missing} of {len(found)}")
            return output
        hypotheses = result.energies.shape[1]
        repeated = pytree.tree_map(lambda leaf: repeat(leaf, "b ... -> (b k) ...", k=hypotheses), x)
        outputs = self._predict(repeated, rearrange(result.elements, "b k ... -> (b k) ..."))
        if not (outputs.is_floating_point() or outputs.is_complex()):
            raise ConfigurationError(
                f"ensemble: 'mean' expects floating-point or complex outputs, got {outputs.dtype}; 'best' takes labels"
            )
        outputs = rearrange(outputs, "(b k) ... -> b k ...", k=hypotheses)
        weights = rows_like(result.averaging_weights(), outputs).to(outputs.dtype)  # NaN where nothing was found
        return torch.where(weights == 0.0, 0.0, weights * outputs).sum(1)

    def _predict(self, x: Any, g: Tensor) -> Tensor:
        action = self.inverter.action
        y = self.network(action(action.group.inverse(g), x))
        return check_type("output", y if self.output_action is None else self.output_action(g, y), Tensor)
