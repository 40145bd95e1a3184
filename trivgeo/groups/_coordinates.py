"""Coordinates of a group: shapes of elements, the scaled basis of the algebra, and the evaluation of operations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import full_precision
from trivgeo._numerics import broadcast_shapes
from trivgeo.checks import check_count, check_device, check_dtype, check_tensor
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups._evaluation import EAGER, Evaluator
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Basis, Scale

__all__ = ["GroupCoordinates", "as_numbers", "check_batch", "check_broadcast"]

CoordinatesT = TypeVar("CoordinatesT", bound="GroupCoordinates")


class GroupCoordinates:
    """Elements as tensors ``[*batch, *element_shape]``, algebra vectors ``[*batch, dim]`` in a basis with a scale.

    Args:
        natural_algebra: the algebra in the natural basis, see `LieGroup`.
        element_shape: the shape of one element.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.
    """

    def __init__(
        self,
        natural_algebra: LieAlgebra,
        element_shape: Sequence[int],
        scale: Scale = None,
    ) -> None:
        self._element_shape = tuple(element_shape)
        self._one = (len(self._element_shape),)  # trailing dimensions of an element, of two
        self._two = self._one * 2
        self._natural_algebra = natural_algebra
        self._fingerprint: dict[str, Any] | None = None
        self._evaluator: Evaluator = EAGER
        self._set_scale(scale)

    @property
    @final
    def algebra(self) -> LieAlgebra:
        """The Lie algebra, in the scaled basis."""
        return self._algebra

    @property
    @final
    def dim(self) -> int:
        """The dimension of the group."""
        return self._algebra.dim

    @property
    @final
    def element_shape(self) -> tuple[int, ...]:
        """The shape of one element."""
        return self._element_shape

    @property
    @final
    def scale(self) -> Float[Tensor, " n"] | Float[Tensor, "n n"]:
        """The basis in units of the natural one, ``[n]`` or ``[n, n]``, as given; float64 on the CPU."""
        return self._basis.scale.clone()

    @property
    @final
    def basis(self) -> Basis:
        """The basis itself: its rows, and coordinates in it."""
        return self._basis

    @property
    @final
    def compiler(self) -> Evaluator | None:
        """The `Compiler` of a `compiled` group, with its report; none on others."""
        return None if self._evaluator is EAGER else self._evaluator

    @final
    def with_scale(self: CoordinatesT, scale: Scale) -> CoordinatesT:
        """The same group with another basis, in units of the natural one."""
        other = copy.copy(self)
        if self._evaluator is not EAGER:
            other._evaluator = copy.copy(self._evaluator)  # without compiled code, which knows the scale
        other._set_scale(scale)
        return other

    @final
    def batch_shape(self, g: Tensor) -> torch.Size:
        """The leading dimensions of a tensor of elements."""
        return g.shape[: g.ndim - len(self._element_shape)]

    @final
    def check_elements(self, g: Any, name: str = "g") -> Tensor:
        """Return ``g`` as a tensor ``[*batch, *element_shape]``, see `trivgeo.checks.check_tensor`.

        Raises:
            ConfigurationError: no floating-point numbers.
            ShapeError: another shape.
        """
        g, shape = check_tensor(name, g), self._element_shape
        if g.ndim < len(shape) or g.shape[g.ndim - len(shape) :] != shape:
            raise ShapeError(f"{name}: expected elements [*batch, {', '.join(map(str, shape))}], got {list(g.shape)}")
        return g

    @final
    def check_vectors(self, v: Any, name: str = "v") -> Tensor:
        """Return ``v`` as a tensor ``[*batch, dim]``, see `check_elements`."""
        v = check_tensor(name, v)
        if v.ndim < 1 or v.shape[-1] != self.dim:
            raise ShapeError(f"{name}: expected algebra vectors [*batch, {self.dim}], got {list(v.shape)}")
        return v

    @final
    def _set_scale(self, scale: Scale) -> None:
        self._basis = Basis(scale, self._natural_algebra.dim)
        natural = self._natural_algebra
        self._algebra = natural if self._basis.is_natural else natural.rescaled(self._basis.scale)

    @final
    def _on_elements(self, f: Callable[..., Tensor], g: Tensor) -> Tensor:
        return self._evaluate(f, self._one, (g,))

    @final
    def _on_vectors(self, f: Callable[..., Tensor], v: Tensor) -> Tensor:
        return self._evaluate(f, (1,), (v,))

    @final
    @full_precision
    def _evaluate(self, f: Callable[..., Tensor], ranks: Sequence[int], arguments: Sequence[Tensor]) -> Tensor:
        """Evaluate ``f`` of one or two arguments with trailing dimensions of these ranks, see `Evaluator`."""
        return self._evaluator(f, ranks, arguments)


def check_batch(batch: Sequence[int], dtype: torch.dtype | None, device: torch.device | str | None) -> None:
    for size in batch:
        check_count("batch", size, 0)
    check_dtype(dtype)
    check_device(device)


def as_numbers(name: str, value: Any, like: Tensor) -> Tensor:
    """Numbers in the dtype and on the device of a tensor."""
    try:
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"{name}: expected a number or a tensor, got {value!r}") from error


def check_broadcast(first: torch.Size, second: torch.Size) -> None:
    try:
        broadcast_shapes(first, second)
    except RuntimeError as error:
        raise ShapeError(f"expected batches that broadcast, got {list(first)} and {list(second)}") from error
