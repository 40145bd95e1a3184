"""The basis of a group's algebra, in units of its natural one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import Constant
from trivgeo._text import Described
from trivgeo.checks import check_count, checked
from trivgeo.errors import ConfigurationError

__all__ = ["Basis", "Scale"]

Scale = float | Sequence[float] | Sequence[Sequence[float]] | Tensor | None
"""The basis in units of the natural one: numbers or a matrix, see `LieGroup`."""


# `checked` skips operations: elements, vectors and points are checked where they become tensors of one dtype and device
_OPERATIONS = (
    *("to_natural", "from_natural", "covector_to_natural", "covector_from_natural", "operator_from_natural"),
)


@checked(but=_OPERATIONS)
@final
class Basis(Described):
    """Orthonormal basis of a Lie algebra, and coordinates in it.

    Args:
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.
        dim: the dimension n of the algebra.

    Raises:
        ConfigurationError: the scale is not positive (a matrix: not invertible) and finite, or has the wrong shape.
    """

    def __init__(self, scale: Scale, dim: int) -> None:
        values = _checked(scale, check_count("dim", dim, 0))
        self.scale: Tensor = values
        """The scale as given, ``[n]`` or ``[n, n]``; float64 on the CPU."""
        self._diagonal = values.ndim == 1
        self.is_natural = self._diagonal and bool((values == 1).all())
        self._forward = Constant(values)
        self._backward = Constant(1.0 / values if self._diagonal else torch.linalg.inv(values))

    @property
    def rows(self) -> Float[Tensor, "n n"]:
        """The basis vectors in natural coordinates, row by row; float64 on the CPU."""
        return torch.diag(self.scale) if self._diagonal else self.scale.clone()

    def to_natural(self, v: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """Return the natural coordinates of vectors with coordinates v in this basis, ``[*batch, n]``."""
        return self._times(v, self._forward)

    def from_natural(self, v: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """Return the coordinates in this basis of vectors with natural coordinates v, ``[*batch, n]``."""
        return self._times(v, self._backward)

    def covector_to_natural(self, y: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """Return the natural components of gradients with components y in this basis, ``[*batch, n]``."""
        return self._times(y, self._backward, transposed=True)

    def covector_from_natural(self, y: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """Return the components in this basis of gradients with natural components y, ``[*batch, n]``."""
        return self._times(y, self._forward, transposed=True)

    def _times(self, x: Tensor, matrix: Constant, transposed: bool = False) -> Tensor:
        """Rows ``[*batch, n]`` times a diagonal or full matrix, or its transpose."""
        if self.is_natural:
            return x
        factor = matrix.matching(x)
        if self._diagonal:
            return x * factor
        return matmul(x, factor.mT if transposed else factor)

    def operator_from_natural(self, m: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
        """Return the matrices in this basis of linear maps with natural matrices m, ``[*batch, n, n]``."""
        if self.is_natural:
            return m
        forward, backward = self._forward.matching(m), self._backward.matching(m)
        if self._diagonal:
            return m * forward * backward.unsqueeze(-1)
        return matmul(matmul(backward.mT, m), forward.mT)


def _checked(scale: Scale, dim: int) -> Tensor:
    """The scale as ``[n]`` or ``[n, n]``."""
    if scale is None:
        return torch.ones(dim, dtype=torch.float64)
    try:
        values = torch.as_tensor(scale, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"scale: expected numbers, got {scale!r}") from error
    values = values.expand(dim) if values.ndim == 0 else values
    if tuple(values.shape) not in ((dim,), (dim, dim)):
        raise ConfigurationError(f"scale: expected one number, [{dim}] or [{dim}, {dim}], got {list(values.shape)}")
    if not bool(torch.isfinite(values).all()):
        raise ConfigurationError(f"scale: expected finite numbers, got {values.tolist()}")
    if values.ndim == 1 and not bool((values > 0).all()):
        raise ConfigurationError(f"scale: expected positive numbers, got {values.tolist()}")
    if values.ndim == 2 and not float(torch.linalg.cond(values)) <= 1e12:
        raise ConfigurationError(f"scale: expected an invertible matrix, got {values.tolist()}")
    return values.clone()
