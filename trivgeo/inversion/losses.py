"""Robust losses of squared residuals."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._signatures import check_calls
from trivgeo._text import Described
from trivgeo.checks import check_positive
from trivgeo.errors import ConfigurationError, ShapeError

__all__ = ["GemanMcClure", "Trimmed"]


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
        """The losses."""
        square = self.width**2
        return square * squares / (square + squares)


class Trimmed(Described):
    """The smallest squares of each datum, a given share of them; zero for the others (Chetverikov et al. 2002).

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
        """The losses."""
        if squares.shape[-1] == 0:
            raise ShapeError(f"squares: expected at least one for each datum, got {list(squares.shape)}")
        number = max(1, round(self.keep * squares.shape[-1]))
        # by rank, NaN last: a bound on the values would keep all that are equal to it
        index = squares.detach().topk(number, dim=-1, largest=False, sorted=False).indices
        kept = torch.zeros_like(squares, dtype=torch.bool).scatter(-1, index, True)
        return torch.where(kept, squares, 0.0)


check_calls(__name__, __all__)
