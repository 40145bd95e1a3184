"""Test-time equivariance of a pretrained network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor, nn

from trivgeo._devices import module_device, on_device
from trivgeo._torch import pytree
from trivgeo.checks import check_arguments, check_type, checked, with_tensors
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import Action
from trivgeo.inversion.equivariant.varied_sizes import (
    in_order,
    is_list_of_images,
    places_by_size,
    result_of_rows,
    stacked,
)
from trivgeo.inversion.evaluation import explained_dtypes
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior import check_action, check_batch
from trivgeo.inversion.result import InversionResult
from trivgeo.inversion.rows import rows_like, where_rows
from trivgeo.inversion.transformations import Transformations, moving_elements

__all__ = ["EquivarianceError", "TestTimeEquivariant"]


class EquivarianceError(NamedTuple):
    r"""Measured errors :math:`|\tilde f(h.x) - h.\tilde f(x)| / |h.\tilde f(x)|`.

    Attributes:
        median: median of all that are defined.
        worst: largest of them; infinite where a prediction is not finite.
        errors: errors of each element h and datum x, ``[num_elements, b]``; NaN where h.x is not defined.
    """

    median: float
    worst: float
    errors: Float[Tensor, "m b"]

    @classmethod
    def of(cls, outputs: Tensor, expected: Tensor, valid: Bool[Tensor, "m b"]) -> EquivarianceError:
        """Return the relative distances of outputs ``[m * b, ...]`` from expected ones.

        Args:
            outputs: predictions of moved data.
            expected: moved predictions.
            valid: mask of the moved data that are defined.
        """
        difference, size = ((y.flatten(1)).norm(dim=-1) for y in (outputs - expected, expected))
        errors = difference / size.clamp(min=torch.finfo(difference.dtype).tiny)
        errors = torch.where(torch.isfinite(errors), errors, torch.inf).unflatten(0, valid.shape)
        return cls.of_errors(torch.where(valid, errors, torch.nan))

    @classmethod
    def of_errors(cls, errors: Float[Tensor, "m b"]) -> EquivarianceError:
        """Return errors with their median and the largest of them.

        Args:
            errors: NaN where h.x is not defined.
        """
        known = errors.detach()
        return cls(float(known.nanmedian()), float(known[~known.isnan()].max()), errors)


@checked
class TestTimeEquivariant(nn.Module):
    r"""A pretrained network made equivariant without training: :math:`\tilde f(x) = g \cdot f(g^{-1} \cdot x)`.

    An `Inverter` finds g. The posterior of g is equivariant, and so is the distribution of the prediction (Kim et al.
    2026, prop. 3.2). If no hypothesis can be undone, the prediction is NaN, and `InversionResult.has_usable` is false.
    The network keeps its mode, training or evaluation; the inverter's energy is evaluated in evaluation mode.

    Args:
        network: function from a batch of data to a batch of outputs.
        inverter: inverter that finds g.
        output_action: action of g on outputs; ``None`` for an invariant prediction.
        ensemble: ``"best"`` takes the hypothesis of lowest energy, ``"mean"`` averages the predictions over the usable
            hypotheses, with the weights of a `PosteriorSample` if there are any; outputs must be floating-point or
            complex.
        initial: function from data to elements ``[b, *element_shape]`` from which the inverter starts. An equivariant
            frame, such as centre and principal axes of a cloud, makes all that follows the same for moved data.

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
        initial: Callable[[Any], Tensor] | None = None,
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
        check_arguments("network", network, "x")
        self.network = network
        self.inverter = inverter
        self.output_action = output_action
        if initial is not None and not callable(initial):
            raise ConfigurationError(f"initial: expected a function from data to elements, got {initial!r}")
        self.ensemble = ensemble
        self.initial = initial

    def forward(self, x: Any, *, generator: torch.Generator | None = None) -> Tensor | list[Tensor]:
        """Return the equivariant prediction for a batch of data.

        Args:
            x: data of the inverter, see `Inverter.forward`. The network sees images of a list in batches of one size.
            generator: random numbers of the inversion; None is torch's.

        Returns:
            Outputs of the network, one for each datum, with the transformation put back. They are a tensor, or a list
            for a list of images whose outputs differ in shape.
        """
        x = on_device(with_tensors("x", x), module_device(self))
        return self.predict(x, self.inverter(x, generator=generator, initial=self._initial(x)))

    def _initial(self, x: Any) -> Tensor | None:
        """Return the elements ``[b, 1, *element_shape]`` from which the inverter starts."""
        if self.initial is None:
            return None
        if is_list_of_images(self.inverter.action, x):
            places = places_by_size("x", x)
            starts = in_order([self.initial(stacked(x, index)) for index in places], places)
        else:
            starts = self.initial(x)
        return self.inverter.action.group.check_elements(starts, "initial").unsqueeze(1)

    def equivariance_error(
        self,
        x: Any,
        num_elements: int = 50,
        *,
        transformations: Transformations | None = None,
        generator: torch.Generator | None = None,
    ) -> EquivarianceError:
        r"""Measure the distance of predictions of moved data :math:`\tilde f(h.x)` from the moved predictions h.f(x).

        The error is zero where the inverter's answer has a single point, as with a descent to a unique minimum. An
        answer that depends on chance has a positive error. Noise of moved data is drawn anew.

        Args:
            x: data of the inverter, see `Inverter.forward`. Elements are drawn anew for each size of images in a list.
            num_elements: m, the number of elements h.
            transformations: their distribution; default exp of standard normal vectors in the group's basis.
            generator: random numbers of elements and inverter.

        Raises:
            ConfigurationError: the outputs are labels or truth values.
            DomainError: no element is defined on any datum.
        """
        action = self.inverter.action
        if is_list_of_images(action, x):
            places = places_by_size("x", x)
            batches = [stacked(x, index) for index in places]
            parts = [
                self.equivariance_error(batch, num_elements, transformations=transformations, generator=generator)
                for batch in batches
            ]
            columns = in_order([part.errors.mT for part in parts], places)
            return EquivarianceError.of_errors(torch.stack(list(columns), -1))
        x, _ = check_batch(action, on_device(x, module_device(self)))
        g, valid = moving_elements(action, x, num_elements, transformations, generator)
        moved = pytree.tree_map(lambda leaf: leaf.flatten(0, 1), action(g, x))
        output = self(x, generator=generator)
        if not (output.is_floating_point() or output.is_complex()):
            raise ConfigurationError(f"network: expected floating-point or complex outputs, got {output.dtype}")
        expected = output.expand(num_elements, *output.shape).flatten(0, 1)
        if self.output_action is not None:
            expected = self.output_action(g.flatten(0, 1), expected)
        return EquivarianceError.of(self(moved, generator=generator), expected, valid)

    @overload
    def predict(self, x: list[Tensor], result: InversionResult) -> Tensor | list[Tensor]: ...

    @overload
    def predict(self, x: Any, result: InversionResult) -> Tensor: ...

    def predict(self, x: Any, result: InversionResult) -> Tensor | list[Tensor]:
        """Return the prediction from elements that were found before.

        Args:
            x: data, as in `forward`.
            result: result of the inverter for these data.

        Raises:
            ShapeError: the result is not of these data, or the network returns other numbers of outputs.
            ConfigurationError: a mean of outputs that are labels or truth values, or data in a dtype that the network
                does not take.
            DomainError: no hypothesis was found for some datum, and the network's outputs cannot be NaN.
        """
        x = on_device(with_tensors("x", x), result.elements.device)
        if is_list_of_images(self.inverter.action, x):
            places = places_by_size("x", x)
            if len(x) != len(result.energies):
                raise ShapeError(f"x: expected the {len(result.energies)} images that were inverted, got {len(x)}")
            parts = [self._predict_batch(stacked(x, index), result_of_rows(result, index)) for index in places]
            return in_order(parts, places)
        return self._predict_batch(x, result)

    def _predict_batch(self, x: Any, result: InversionResult) -> Tensor:
        """Return the prediction for data of one size, see `predict`."""
        batch = self.inverter.action.batch_shape(x)
        if batch != result.energies.shape[:1]:
            raise ShapeError(f"x: expected the {len(result.energies)} data that were inverted, got batch {list(batch)}")
        found = result.has_usable
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
        restored = action(action.group.inverse(g), x)
        with explained_dtypes("x", self.network, restored):
            y = self.network(restored)
        output = check_type("output", y if self.output_action is None else self.output_action(g, y), Tensor)
        if output.ndim < 1 or output.shape[0] != g.shape[0]:  # len specializes an exported program
            raise ShapeError(f"network: expected an output for each of {g.shape[0]} data, got {list(output.shape)}")
        return output
