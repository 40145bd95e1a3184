"""The box of (x, t, u) on which an operator is trained, its grids, and the error of a solution on them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.errors import DomainError

Interval = tuple[float, float]
Ends = float | tuple[float, ...]


@dataclass(frozen=True)
class Domain:
    """Box of (x, t, u) on which a network is trained.

    Ends of x and u are numbers, or one each for x_1, ..., x_d in several dimensions and for the unknowns u_1, ..., u_c
    of a system.

    Args:
        x_min: lower end of x.
        x_max: upper end of x.
        t_min: time of the initial condition.
        t_max: last time.
        u_min: lower end of the range of u, or of the part of it where most initial conditions stay.
        u_max: upper end.

    Raises:
        DomainError: a minimum is not below its maximum, or there are more of one than of the other.
    """

    x_min: Ends
    x_max: Ends
    t_min: float
    t_max: float
    u_min: Ends
    u_max: Ends

    def __post_init__(self) -> None:
        """Check the intervals."""
        for name in ("x", "t", "u"):
            low, high = (_all(getattr(self, f"{name}_{end}")) for end in ("min", "max"))
            if len(low) != len(high) or not all(a < b for a, b in zip(low, high, strict=True)):
                raise DomainError(f"expected {name}_min < {name}_max, got {low} and {high}")

    @property
    def space(self) -> list[Interval]:
        """The range of each x."""
        return list(zip(_all(self.x_min), _all(self.x_max), strict=True))

    @property
    def unknowns(self) -> list[Interval]:
        """The range of each u."""
        return list(zip(_all(self.u_min), _all(self.u_max), strict=True))

    @property
    def base(self) -> list[Interval]:
        """The range of each coordinate of a point (x, t)."""
        return [*self.space, (self.t_min, self.t_max)]

    @property
    def bounds(self) -> list[float]:
        """All numbers: both ends of each x, of t, and of each u."""
        return [end for interval in (*self.base, *self.unknowns) for end in interval]

    def line(self) -> tuple[Interval, Interval, Interval]:
        """The ranges of x, t and u.

        Raises:
            DomainError: there are several x or u.
        """
        if len(self.space) > 1 or len(self.unknowns) > 1:
            raise DomainError(f"domain: expected one x and one u, got {len(self.space)} and {len(self.unknowns)}")
        return self.space[0], (self.t_min, self.t_max), self.unknowns[0]

    def sensors(self, n: int, *, dtype: torch.dtype | None = None) -> Float[Tensor, " p"] | Float[Tensor, "p d"]:
        """Positions x of sensors of an initial condition: a grid of `n` along each axis, ends included."""
        return torch.cartesian_prod(*(torch.linspace(*ends, n, dtype=dtype) for ends in self.space))

    def grid(self, *counts: int, dtype: torch.dtype | None = None) -> Float[Tensor, "q n"]:
        """Equidistant grid of (x, t), ends included, x-major: of (nx, nt) points number `i * nt + j` is (x_i, t_j).

        Args:
            counts: numbers of points along each x, and along t.
            dtype: dtype of the points.
        """
        axes = zip(self.base, counts, strict=True)
        return torch.cartesian_prod(*(torch.linspace(*ends, n, dtype=dtype) for ends, n in axes))


def _all(ends: Ends) -> Sequence[float]:
    return ends if isinstance(ends, Sequence) else (ends,)


def with_values(
    points: Float[Tensor, "*batch p n"], u: Float[Tensor, "*batch p"] | Float[Tensor, "*batch p c"]
) -> Float[Tensor, "*batch p m"]:
    """The jets of a solution at points: a number at each, or c for a system of c equations."""
    return torch.cat([points, u if u.ndim == points.ndim else u.unsqueeze(-1)], -1)


def values_of(
    jets: Float[Tensor, "*batch p m"], coordinates: int
) -> Float[Tensor, "*batch p"] | Float[Tensor, "*batch p c"]:
    """What follows the coordinates of the points: of a system one value for each equation, else a number."""
    u = jets[..., coordinates:]
    return u.squeeze(-1) if u.shape[-1] == 1 else u


def relative_l2(prediction: Float[Tensor, "*batch q"], target: Float[Tensor, "*batch q"]) -> Float[Tensor, "*batch"]:
    """Relative error |prediction - target| / |target| in the Euclidean norm of the last dimension."""
    return torch.linalg.vector_norm(prediction - target, dim=-1) / torch.linalg.vector_norm(target, dim=-1)
