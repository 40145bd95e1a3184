"""The action on pairs of a datum and a reference that does not move, such as the target of a registration."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._text import described
from trivgeo.checks import check_tensor, check_type, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Action
from trivgeo.groups.action import ContentGuard


class Referenced(NamedTuple):
    """A datum and its reference.

    Attributes:
        x: the data, with batch dimensions ``[*batch]``.
        reference: a reference for each datum, ``[*batch, ...]``.
    """

    x: Any
    reference: Tensor

    def __repr__(self) -> str:
        return described(self)


@checked
@final
class WithReference(Action):
    """An action on pairs of a datum and its own reference, :math:`g.(x, r) = (g.x, r)`.

    An example is a batch of registrations, each with its own target. Energies and networks receive the transformed
    datum together with its reference, which does not move.

    Args:
        action: the action on the data alone.

    Raises:
        ConfigurationError: ``action`` is no action, or already an action with references.

    Example:
        >>> action = WithReference(PointCloud(Translation(2)))
        >>> y = action(torch.tensor([1.0, 0.0]), Referenced(torch.zeros(3, 2), torch.ones(5, 2)))
        >>> y.x[0], y.reference[0]
        (tensor([1., 0.]), tensor([1., 1.]))
    """

    def __init__(self, action: Action) -> None:
        self.action = check_type("action", action, Action)  # type: ignore[type-abstract]
        if isinstance(action, WithReference):
            raise ConfigurationError(f"action: expected an action without references, got {action!r}")
        self.group = action.group

    def __repr__(self) -> str:
        return f"WithReference({self.action!r})"

    @property
    def noise_range(self) -> tuple[float, float]:
        """Range (smallest, largest) of noise that suits the action on the data without reference."""
        return self.action.noise_range

    @property
    def guard(self) -> ContentGuard | None:
        """Guard of the action on the data, which ignores the reference; ``None`` if that action has none."""
        guard = self.action.guard
        return None if guard is None else _ReferencedGuard(guard)

    def __call__(self, g: Tensor, x: Referenced) -> Referenced:
        """The moved data with their references, which have not moved.

        Raises:
            ShapeError: an element or a datum has the wrong shape, or the batches do not broadcast.
        """
        self.check_data(x)
        y = self.action(g, x.x)
        inner = x.reference.shape[len(self.action.batch_shape(x.x)) :]
        return Referenced(y, x.reference.expand(*self.action.batch_shape(y), *inner))

    def is_valid(self, g: Tensor, x: Referenced) -> Bool[Tensor, "..."]:
        """Return True where g is defined on the data ``x.x``; the reference does not move."""
        return self.action.is_valid(g, x.x)

    def log_abs_det_jacobian(self, g: Tensor, x: Referenced) -> Float[Tensor, "*out"]:
        r"""Return :math:`\log |\det \partial (g.x) / \partial x|` for the data ``x.x``; the reference does not move."""
        return self.action.log_abs_det_jacobian(g, x.x)

    def batch_shape(self, x: Any) -> torch.Size:
        """Return the batch shape of the data ``x.x``; the references do not count."""
        return self.action.batch_shape(x.x)

    def check_data(self, x: Any, name: str = "x") -> None:
        """Raise a typed error unless ``x`` is a `Referenced` with a reference for each datum.

        Messages call ``x`` by ``name``.
        """
        check_type(name, x, Referenced)
        self.action.check_data(x.x, f"{name}.x")
        batch = self.action.batch_shape(x.x)
        reference = check_tensor(f"{name}.reference", x.reference)
        if reference.shape[: len(batch)] != batch:
            raise ShapeError(
                f"{name}.reference: expected a reference for each datum, [{', '.join(map(str, batch))}, ...], got "
                f"{list(reference.shape)}"
            )


class _ReferencedGuard(ContentGuard):
    """The guard of the data, which ignores references."""

    def __init__(self, guard: ContentGuard) -> None:
        self._guard = guard

    def content(self, x: Referenced) -> Any:
        return self._guard.content(x.x)

    def departure(self, g: Tensor, content: Any) -> Tensor:
        return self._guard.departure(g, content)

    def kept(self, g: Tensor, content: Any) -> Tensor:
        return self._guard.kept(g, content)

    def empty(self, x: Referenced) -> Referenced:
        """Return the empty datum beside each reference."""
        return Referenced(self._guard.empty(x.x), x.reference)
