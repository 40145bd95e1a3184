"""Energies that are sums of squares of residuals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._autocast import full_precision
from trivgeo._text import Described
from trivgeo.checks import check_positive, check_tensor, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import CurvedEnergy, CurvedResiduals


@checked
class GemanMcClure(Described):
    r"""The loss :math:`\rho(s) = w^2 s / (w^2 + s)`: squares much smaller than w^2 as they are, none above w^2.

    An outlier costs w^2 wherever it is, and pulls at nothing (Geman and McClure 1987).

    Args:
        width: w, in units of the residuals.

    Raises:
        ConfigurationError: the width is not positive.
    """

    def __init__(self, width: float) -> None:
        self.width = check_positive("width", width)

    def __call__(self, squares: Float[Tensor, "*batch q"]) -> Float[Tensor, "*batch q"]:
        """Return the losses of ``squares``."""
        square = self.width**2
        return square * squares / (square + squares)


@checked
class Trimmed(Described):
    """The loss that keeps a share of the squares of each datum, the smallest (Chetverikov et al. 2002); else zero.

    Of equal squares as many stay as the share leaves room for. For data of which a known share has no counterpart:
    partial overlap, outliers.

    Args:
        keep: the share, in (0, 1].

    Raises:
        ConfigurationError: another share.
    """

    def __init__(self, keep: float) -> None:
        if check_positive("keep", keep) > 1.0:
            raise ConfigurationError(f"keep: expected a share in (0, 1], got {keep!r}")
        self.keep = keep

    def __call__(self, squares: Float[Tensor, "*batch q"]) -> Float[Tensor, "*batch q"]:
        if squares.shape[-1] == 0:
            raise ShapeError(f"squares: expected at least one for each datum, got {list(squares.shape)}")
        number = max(1, round(self.keep * squares.shape[-1]))
        # ranks, NaN last, decide: a bound on the values would keep all values that are equal to it
        index = squares.detach().topk(number, dim=-1, largest=False, sorted=False).indices
        kept = torch.zeros_like(squares, dtype=torch.bool).scatter(-1, index, True)
        return torch.where(kept, squares, 0.0)


@checked
class LeastSquares(nn.Module, CurvedEnergy):
    r"""Half a sum of squares of residuals, :math:`E(x) = \frac{1}{2 \sigma^2} \sum_i \rho(|r_i(x)|^2)`.

    Minus the logarithm of a density, up to a constant, if residuals have normal noise of standard deviation
    :math:`\sigma`. The curvature that `LevenbergMarquardt` uses comes with it.

    Args:
        residuals: a function (or network) from a batch of data to residuals r, ``[batch, q]``, or to vectors
            ``[batch, q, n]``; such as `NearestPoints`, `PairedPoints`.
        loss: :math:`\rho`, from squares ``[batch, q]`` to ``[batch, q]``, such as `GemanMcClure`, `Trimmed`; default
            the squares themselves.
        std: :math:`\sigma`, in units of the residuals.

    Raises:
        ConfigurationError: the residuals or the loss are no function, or the standard deviation is not positive.

    Example:
        >>> energy = LeastSquares(lambda x: x - 1.0)
        >>> energy(torch.tensor([[1.0, 3.0]]))
        tensor([2.])
    """

    def __init__(
        self,
        residuals: Callable[[Any], Tensor],
        loss: Callable[[Tensor], Tensor] | None = None,
        std: float = 1.0,
    ) -> None:
        super().__init__()
        for name, function in (("residuals", residuals), ("loss", loss)):
            if function is not None and not callable(function):
                raise ConfigurationError(f"{name}: expected a function, got {function!r}")
        self.function = residuals
        self.loss = loss
        self.std = check_positive("std", std)

    def residuals(self, x: Any) -> Float[Tensor, "batch q n"]:
        """Return the residuals of data x in units of the standard deviation, ``[batch, q, n]``.

        Raises:
            ShapeError: the function returns no ``[batch, q]`` or ``[batch, q, n]``.
        """
        r = check_tensor("residuals", self.function(x))
        if r.ndim not in (2, 3):
            raise ShapeError(f"residuals: expected [batch, q] or [batch, q, n], got {list(r.shape)}")
        return (r.unsqueeze(-1) if r.ndim == 2 else r) / self.std

    def robust(self, squares: Float[Tensor, "batch q"]) -> Float[Tensor, "batch q"]:
        """Return the robust loss of ``squares``, ``[batch, q]``, squared residuals in units of the variance."""
        return squares if self.loss is None else self.loss(squares * self.std**2) / self.std**2

    def forward(self, x: Any) -> Float[Tensor, " batch"]:
        """Return half the sum of robust squares of the residuals of x, ``[batch]``."""
        return 0.5 * self.robust(self.residuals(x).square().sum(-1)).sum(-1)

    def curvature(self, x: Callable[[Tensor], Any], v: Float[Tensor, "*batch n"]) -> Float[Tensor, "rows n n"]:
        """Return Gauss and Newton's curvature ``J^T W J`` of ``self(x(v))`` by v, ``[rows, dim, dim]``.

        J is the Jacobian of the residuals, and W the derivative of the loss.

        Raises:
            ShapeError: ``v`` has no direction.
        """
        if v.ndim == 0 or v.shape[-1] == 0:
            raise ShapeError(f"v: expected [*batch, n] with at least one direction, got {list(v.shape)}")

        def residuals(v: Tensor) -> Tensor:
            return self.residuals(x(v))

        # all directions together, so that what does not depend on them (neighbours) is found once
        directions = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
        directions = directions.reshape(-1, *[1] * (v.ndim - 1), v.shape[-1]).expand(-1, *v.shape)
        r, columns = torch.func.vmap(
            lambda t: torch.func.jvp(residuals, (v,), (t,)),  # type: ignore[misc]
            out_dims=(None, 0),  # type: ignore[arg-type]
        )(directions)
        weights = self._weights(r.square().sum(-1))
        return full_precision(einsum)(columns, weights, columns, "i rows q n, rows q, j rows q n -> rows i j")

    def closed_form_curvature(self, action: Action, g: Tensor, x: Any) -> Float[Tensor, "b *chains n n"] | None:
        if not isinstance(self.function, CurvedResiduals):
            return None
        found = self.function.curvature(action, g, x, lambda squares: self._weights(squares / self.std**2))
        return None if found is None else found / self.std**2

    def _weights(self, squares: Float[Tensor, "rows q"]) -> Float[Tensor, "rows q"]:
        """Return the derivative of the loss."""
        return torch.func.grad(lambda squares: self.robust(squares).sum())(squares)
