"""The tori."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import uniform
from trivgeo.checks import check_count, checked
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Scale
from trivgeo.groups.group import LieGroup
from trivgeo.groups.harmonic import HarmonicAnalysis, HeatKernel, WrappedNormalHeatKernel

_TURN = 2.0 * math.pi


@checked
@final
class Torus(HarmonicAnalysis, LieGroup):
    r"""The torus :math:`T^n = (\mathbb R / 2 \pi \mathbb Z)^n`, angles in radians ``[*batch, n]``.

    Angles may be any real numbers. Angles that differ by multiples of :math:`2 \pi` are the same element, and `wrap`
    returns the angles in :math:`(-\pi, \pi]`. The product is the sum, without wrapping, so that a path on the torus
    stays continuous in its coordinates. The exponential of v is v, and the logarithm is the wrapped element. The group
    is abelian and compact, with Haar measure :math:`d\theta_1 \dots d\theta_n`.

    Args:
        n: the number of angles.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: n < 1.

    Example:
        >>> Torus(2).log(torch.tensor([0.5, 4.0]))
        tensor([ 0.5000, -2.2832])
    """

    def __init__(self, n: int, scale: Scale = None) -> None:
        check_count("n", n)
        names = [f"R{i + 1}" for i in range(n)]
        super().__init__(LieAlgebra(torch.zeros(n, n, n, dtype=torch.float64), names), (n,), scale)

    def __repr__(self) -> str:
        return f"Torus({self.dim})"

    def wrap(self, g: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        r"""Return the elements g with angles in :math:`(-\pi, \pi]`; differentiable, with the derivative one."""
        g = self.check_elements(g)
        return self._on_elements(self._project, g)

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return torch.zeros(self.dim, dtype=dtype, device=device)

    @property
    def is_compact(self) -> bool:
        return True

    def _periods(self) -> Tensor:
        return torch.full((self.dim,), _TURN, dtype=torch.float64)

    def _project(self, g: Tensor) -> Tensor:
        angle = g - _TURN * torch.round(g / _TURN)
        return torch.where(angle <= -math.pi, angle + _TURN, angle)

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        return g + h

    def _inverse(self, g: Tensor) -> Tensor:
        return -g

    def _exp(self, v: Tensor) -> Tensor:
        return v

    def _tangent(self, v: Tensor) -> Tensor:
        return v

    def _log(self, g: Tensor) -> Tensor:
        return self._project(g)

    def _adjoint(self, g: Tensor) -> Tensor:
        return torch.eye(self.dim, dtype=g.dtype, device=g.device).expand(*g.shape, self.dim)

    def _heat_kernel(self) -> HeatKernel | None:
        return WrappedNormalHeatKernel(self) if self.scale.ndim == 1 else None

    def _log_natural_volume(self) -> float:
        return self.dim * math.log(_TURN)

    def _natural_representation(self) -> Tensor:
        return 1j * torch.diag_embed(torch.eye(self.dim, dtype=torch.complex128))

    def _random_haar(self, batch: Sequence[int], reference: Tensor, generator: torch.Generator | None) -> Tensor:
        return math.pi * (1.0 - 2.0 * uniform((*batch, self.dim), reference, generator))
