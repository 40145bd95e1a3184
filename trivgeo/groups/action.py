"""The contract of a group action on data, and of an action on points."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._autocast import full_precision
from trivgeo._numerics import broadcast_shapes, in_single, jvp_columns, log_abs_det
from trivgeo.checks import check_tensor, checked, promoted
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups.basis import Scale

if TYPE_CHECKING:
    from trivgeo.groups.group import LieGroup

__all__ = ["Action", "ContentGuard", "JetAction", "PointAction"]

ActionT = TypeVar("ActionT", bound="Action")


@checked
class ContentGuard(ABC):
    """Measure of the content of data that an action moves out of sight, and its cost.

    An energy of restored data alone may be low for data that show nothing, such as an image moved out of its frame. The
    cost prevents such answers: see `trivgeo.actions.ImageWarp`.
    """

    @abstractmethod
    def content(self, x: Any) -> Any:
        """Return the measured content of data x, one batch dimension; computed once for all elements."""

    @abstractmethod
    def departure(self, g: Tensor, content: Any) -> Float[Tensor, "*out"]:
        """Return a smooth cost of hidden content, ``[*batch]``; zero if ``g.x`` shows all content of x.

        Args:
            g: elements ``[*batch, *element_shape]``.
            content: content of x, see `content`; batches broadcast.
        """

    @abstractmethod
    def kept(self, g: Tensor, content: Any) -> Float[Tensor, "*out"]:
        """Return the share of the content that ``g.x`` shows, ``[*batch]``, in [0, 1].

        Args:
            g: elements ``[*batch, *element_shape]``.
            content: content of x, see `content`; batches broadcast.
        """

    @abstractmethod
    def empty(self, x: Any) -> Any:
        """Return data that show nothing, one for each datum x."""


@checked
class Action(ABC):
    """A left action of a group on data: ``(g h).x = g.(h.x)``, and ``e.x = x``.

    Data are a tensor, or a (named) tuple of tensors, whose leading dimensions are the batch. The batch of g
    broadcasts against the batch of x.
    """

    group: LieGroup

    @property
    def noise_range(self) -> tuple[float, float]:
        """Diffusion coefficients at the end and at the start of a search without a schedule, in units of the basis."""
        return 0.1, 1.0

    def __repr__(self) -> str:
        return f"{type(self).__name__.lstrip('_')}({self.group!r})"

    @abstractmethod
    def __call__(self, g: Tensor, x: Any) -> Any:
        """The transformed data ``g.x``."""

    @abstractmethod
    def is_valid(self, g: Tensor, x: Any) -> Bool[Tensor, "..."]:
        """Return True where the (local) action of g on x is defined.

        Args:
            g: elements ``[*batch, *element_shape]``.
            x: data with broadcastable batch dimensions.
        """

    @abstractmethod
    def log_abs_det_jacobian(self, g: Tensor, x: Any) -> Float[Tensor, "*out"]:
        r"""Return :math:`\log |\det \partial (g.x) / \partial x|`, one number for each datum, ``[*batch]``.

        Args:
            g: elements ``[*batch, *element_shape]``.
            x: data that `check_data` accepts; batches broadcast.
        """

    @abstractmethod
    def check_data(self, x: Any, name: str = "x") -> None:
        """Check that ``x`` has the shape and type of data of this action; the message of the error calls it ``name``.

        Raises:
            ConfigurationError: the data have another type.
            ShapeError: the data have another shape.
        """

    @abstractmethod
    def batch_shape(self, x: Any) -> torch.Size:
        """Return the batch shape of data ``x`` that passed `check_data`."""

    @property
    def guard(self) -> ContentGuard | None:
        """Cost of elements that move content out of sight; ``None`` for actions that keep everything visible."""
        return None

    @final
    def with_scale(self: ActionT, scale: Scale) -> ActionT:
        """Return this action for the group with another ``scale`` (see `LieGroup`): elements act as before."""
        other = copy.copy(self)
        other.group = self.group.with_scale(scale)
        return other


# `checked` skips operations: elements, vectors and points are checked where they become tensors of one dtype and device
_OPERATIONS = (*("__call__", "is_valid", "jacobian", "log_abs_det_jacobian", "batch_shape"),)


@checked(but=_OPERATIONS)
class PointAction(Action):
    r"""An action that moves each of p points independently: g ``[*batch, *element_shape]``, x ``[*batch, p, n]``.

    The action may be local. Where ``g.x`` is not defined, the result is NaN and `is_valid` is false; nothing is
    raised or clamped, and gradients at the other points stay finite.

    Args:
        group: the group that acts.
        point_dims: the numbers of coordinates n that a point may have.
    """

    dual_elements: ClassVar[bool] = True
    """Whether `jacobian` gives elements tangents of zero (see `jvp_columns`): slower where much is computed from g."""

    def __init__(self, group: LieGroup, point_dims: Sequence[int]) -> None:
        self.group = group
        self.point_dims = tuple(point_dims)

    @abstractmethod
    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        """``g.x`` for g ``[*batch, 1, *element_shape]``, x ``[*batch, p, n]``; any finite value where undefined."""

    _is_affine = False
    """Whether every element moves points by an affine map, of which it holds the matrix and the shift."""

    def _denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        """The denominator of ``g.x``, ``[*batch, p]``, zero where it is undefined; ``None`` for a global action."""
        return None

    def homogeneous(self, g: Tensor) -> Float[Tensor, "*batch k k"]:
        """Return the matrix on (x, 1) of elements g that are homographies of points x, ``[*batch, n + 1, n + 1]``.

        Raises:
            ConfigurationError: elements of the group are not known to be homographies.
        """
        raise ConfigurationError(f"group: expected one of homographies, got {self.group!r}")

    def from_homogeneous(self, matrix: Float[Tensor, "*batch k k"]) -> Tensor:
        """Return the element ``[*batch, *element_shape]`` with a given matrix on (x, 1), see `homogeneous`.

        For a matrix that is not in the group, the result is some element near it, or NaN.

        Args:
            matrix: matrices ``[*batch, k, k]`` whose last entry is one.

        Raises:
            ConfigurationError: elements of the group are not known to be homographies.
        """
        raise ConfigurationError(f"group: expected one of homographies, got {self.group!r}")

    @final
    def __call__(self, g: Tensor, x: Float[Tensor, "*batch p n"]) -> Float[Tensor, "*out p n"]:
        """The points ``g.x``, NaN where the local action is not defined.

        Raises:
            ShapeError: an element or a point has the wrong shape, or the batches do not broadcast.
        """
        return in_single(self._image, *self._lift(g, x))

    def _image(self, g: Tensor, x: Tensor) -> Tensor:
        y = self._transform(g, x)
        d = self._denominator(g, x)
        return y if d is None else torch.where((d != 0).unsqueeze(-1), y, math.nan)

    @final
    def denominator(self, g: Tensor, x: Float[Tensor, "*batch p n"]) -> Float[Tensor, "*out p"]:
        """Return the denominator of ``g.x``, ``[*out, p]``, which vanishes where the action is undefined.

        The sign is constant exactly on the connected pieces of the domain of the transformation. A global action
        returns ones.

        Args:
            g: elements ``[*batch, *element_shape]``.
            x: points ``[*batch, p, n]``.
        """
        g, x = self._lift(g, x)
        d = full_precision(self._denominator)(g, x)
        return torch.ones(self._out_shape(g, x), dtype=x.dtype, device=x.device) if d is None else d

    @final
    def is_valid(self, g: Tensor, x: Float[Tensor, "*batch p n"]) -> Bool[Tensor, "*out p"]:
        """Return True where ``g.x`` is defined and finite, for each point, ``[*batch, p]``."""
        return torch.isfinite(self(g, x)).all(-1)

    @final
    def jacobian(self, g: Tensor, x: Float[Tensor, "*batch p n"]) -> Float[Tensor, "*out p n n"]:
        """Return the derivatives of ``g.x`` by x at each point, ``[*batch, p, n, n]``; NaN where ``g.x`` is undefined.

        Args:
            g: elements ``[*batch, *element_shape]``.
            x: points ``[*batch, p, n]``.
        """
        lifted, x = self._lift(g, x)
        g = lifted.squeeze(lifted.ndim - len(self.group.element_shape) - 1)
        x = x.expand(*self._out_shape(lifted, x), x.shape[-1])
        if self.dual_elements:
            return jvp_columns(lambda point, element: self(element, point), x, g)
        return jvp_columns(lambda point: self(g, point), x)

    @final
    def log_abs_det_jacobian(self, g: Tensor, x: Float[Tensor, "*batch p n"]) -> Float[Tensor, "*out"]:
        r"""Return :math:`\log |\det \partial (g.x) / \partial x|`, summed over the points of a datum."""
        return in_single(log_abs_det, self.jacobian(g, x)).sum(-1)

    @final
    def batch_shape(self, x: Any) -> torch.Size:
        """Return the batch shape of points ``x``, ``[*batch, p, n]``, without points and coordinates."""
        return x.shape[:-2]

    @final
    def check_data(self, x: Any, name: str = "x") -> None:
        """Check that ``x`` is ``[*batch, p, n]``, n one of `point_dims`; messages call it ``name``."""
        self._points(x, name)

    @final
    def _points(self, x: Any, name: str = "x") -> Tensor:
        """The points x as a tensor, if `check_data` accepts them."""
        x = check_tensor(name, x)
        if x.ndim < 2 or x.shape[-1] not in self.point_dims:
            wanted = " or ".join(map(str, self.point_dims))
            raise ShapeError(f"{name}: expected points [*batch, p, {wanted}], got {list(x.shape)}")
        return x

    @final
    def _lift(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Elements and points, checked, with a dimension for the points in g."""
        points = self._points(x)
        g, x = promoted(g=self.group.check_elements(g), x=points)
        lifted = g.unsqueeze(g.ndim - len(self.group.element_shape))
        self._out_shape(lifted, x)
        return lifted, x

    @final
    def _out_shape(self, lifted: Tensor, x: Tensor) -> torch.Size:
        batch = self.group.batch_shape(lifted)
        try:
            return broadcast_shapes(batch, x.shape[:-1])
        except RuntimeError as error:
            raise ShapeError(
                f"expected batches of elements and points that broadcast, got {list(batch[:-1])} and "
                f"{list(x.shape[:-2])}"
            ) from error


@checked
class JetAction(PointAction):
    """A point action of symmetries of a differential equation: points are jets (x, t, u), or (x, t) alone.

    Args:
        group: the group that acts.
        point_dims: numbers of coordinates that a point may have, for each kind of point.
    """

    @property
    def base_is_projective(self) -> bool:
        """True if (x, t) moves by a projective map that does not depend on u.

        Then convex hulls of points (x, t) go to convex hulls while the denominator keeps its sign, and at one fixed t
        the map of x is affine.
        """
        return False

    def fibre_order(self, g: Tensor, jets: Float[Tensor, "*batch p n"]) -> Float[Tensor, "*out p"]:
        """Numbers that order jets at one time by their last coordinate after g has acted.

        Values equal that coordinate up to an increasing map common to the points of a datum; subclasses may leave
        out common factors.
        """
        return self(g, jets)[..., -1]
