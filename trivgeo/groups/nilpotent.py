"""Simply connected nilpotent groups in exponential coordinates."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.errors import ConfigurationError
from trivgeo.groups.action import PointAction
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.base import LieGroup, Scale

__all__ = ["Heisenberg", "NilpotentGroup", "Translation"]


class NilpotentGroup(LieGroup):
    r"""A simply connected nilpotent group; an element is its own logarithm, ``[*batch, dim]``.

    Then :math:`g^{-1} = -g`, the product is the terminating Baker-Campbell-Hausdorff series, every automorphism is
    linear in the coordinates, and :math:`\mathrm{Ad}_g = e^{\mathrm{ad}_g}` is a polynomial.

    Args:
        natural_algebra: a nilpotent algebra.
        scale: see `LieGroup`.

    Raises:
        ConfigurationError: the algebra is not nilpotent.
    """

    def __init__(self, natural_algebra: LieAlgebra, scale: Scale = None) -> None:
        super().__init__(natural_algebra, (natural_algebra.dim,), scale)
        step = natural_algebra.nilpotency_step()
        if step is None:
            raise ConfigurationError(f"expected a nilpotent algebra, got {natural_algebra!r}")
        self.step = step

    def identity(
        self, *batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Zero coordinates."""
        return torch.zeros(*batch, self.dim, dtype=dtype, device=device)

    @abstractmethod
    def _compose(self, g: Tensor, h: Tensor) -> Tensor: ...

    def _inverse(self, g: Tensor) -> Tensor:
        return -g

    def _exp(self, v: Tensor) -> Tensor:
        return v

    def _tangent(self, v: Tensor) -> Tensor:
        return v

    def _log(self, g: Tensor) -> Tensor:
        return g

    def _adjoint(self, g: Tensor) -> Tensor:
        ad = self._natural_algebra.ad(g)
        term = torch.eye(self.dim, dtype=g.dtype, device=g.device).expand(ad.shape)
        total = term
        for k in range(1, self.step):
            term = ad @ term / k
            total = total + term
        return total

    def _log_modular(self, g: Tensor) -> Tensor:
        return g.new_zeros(self.batch_shape(g))


class Translation(NilpotentGroup):
    """The vector group R^n, acting on points of R^n by translation.

    Args:
        n: the dimension.
        scale: see `LieGroup`.
    """

    def __init__(self, n: int, scale: Scale = None) -> None:
        _check_positive("n", n)
        names = [f"T{i + 1}" for i in range(n)]
        super().__init__(LieAlgebra(torch.zeros(n, n, n, dtype=torch.float64), names), scale)

    def __repr__(self) -> str:
        """Name and dimension."""
        return f"Translation({self.dim})"

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        return g + h

    def action(self) -> PointAction:
        """Translation of points ``[*batch, p, n]``."""
        return _TranslationAction(self, (self.dim,))


class _TranslationAction(PointAction):
    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        return x + g


class Heisenberg(NilpotentGroup):
    r"""The Heisenberg group H(n) in exponential coordinates (q, p, z), with :math:`[q_i, p_j] = \kappa \delta_{ij} z`.

    Args:
        n: the number of pairs; the dimension is 2 n + 1.
        central: the constant :math:`\kappa`.
        scale: see `LieGroup`.

    Raises:
        ConfigurationError: n < 1, or the constant is zero.
    """

    def __init__(self, n: int = 1, central: float = 1.0, scale: Scale = None) -> None:
        _check_positive("n", n)
        if central == 0:
            raise ConfigurationError("central: expected a number other than zero, got 0")
        dim = 2 * n + 1
        c = torch.zeros(dim, dim, dim, dtype=torch.float64)
        for i in range(n):
            c[i, n + i, dim - 1] = central
            c[n + i, i, dim - 1] = -central
        names = [f"Q{i + 1}" for i in range(n)] + [f"P{i + 1}" for i in range(n)] + ["Z"]
        super().__init__(LieAlgebra(c, names), scale)
        self.n = n
        self.central = central
        self._unit = Constant(torch.eye(dim, dtype=torch.float64)[-1])

    def __repr__(self) -> str:
        """Name, number of pairs and central constant."""
        return f"Heisenberg({self.n}, central={self.central:g})"

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        n = self.n
        form = (g[..., :n] * h[..., n:-1] - g[..., n:-1] * h[..., :n]).sum(-1, keepdim=True)
        return g + h + (0.5 * self.central) * form * self._unit.like(g)


def _check_positive(name: str, n: int) -> None:
    if n < 1:
        raise ConfigurationError(f"{name}: expected an integer of at least 1, got {n}")
