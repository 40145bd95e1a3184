"""The box of (x, t, u) on which an operator is trained, its grids, and the error of a solution on them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.errors import DomainError


@dataclass(frozen=True)
class Domain:
    """Box of (x, t, u) on which a network is trained.

    Args:
        x_min: lower end of x.
        x_max: upper end of x.
        t_min: time of the initial condition.
        t_max: last time.
        u_min: lower end of the range of u, or of the part of it where most initial conditions stay.
        u_max: upper end.

    Raises:
        DomainError: a minimum is not below its maximum.
    """

    x_min: float
    x_max: float
    t_min: float
    t_max: float
    u_min: float
    u_max: float

    def __post_init__(self) -> None:
        """Check the intervals."""
        for name in ("x", "t", "u"):
            low, high = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if not low < high:
                raise DomainError(f"expected {name}_min < {name}_max, got {low} and {high}")

    @property
    def bounds(self) -> list[float]:
        """All numbers, in the order of the arguments."""
        return [self.x_min, self.x_max, self.t_min, self.t_max, self.u_min, self.u_max]

    def sensors(self, n: int, *, dtype: torch.dtype | None = None) -> Float[Tensor, " n"]:
        """Positions x of `n` sensors of an initial condition: equidistant, both ends included."""
        return torch.linspace(self.x_min, self.x_max, n, dtype=dtype)

    def grid(self, nx: int, nt: int, *, dtype: torch.dtype | None = None) -> Float[Tensor, "q 2"]:
        """Equidistant grid of (x, t), ends included, x-major: point `i * nt + j` is (x_i, t_j)."""
        x = torch.linspace(self.x_min, self.x_max, nx, dtype=dtype)
        t = torch.linspace(self.t_min, self.t_max, nt, dtype=dtype)
        return torch.cartesian_prod(x, t)


def relative_l2(prediction: Float[Tensor, "*batch q"], target: Float[Tensor, "*batch q"]) -> Float[Tensor, "*batch"]:
    """Relative error |prediction - target| / |target| in the Euclidean norm of the last dimension."""
    return torch.linalg.vector_norm(prediction - target, dim=-1) / torch.linalg.vector_norm(target, dim=-1)
