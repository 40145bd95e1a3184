r"""The heat equation u_t = nu u_xx on [0, 2 pi] x [0, 16]: domain, initial conditions and the exact solution.

Initial conditions are u_0(x) = A sin(2 x), with solution A exp(-4 nu t) sin(2 x).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.errors import DomainError

HEAT_NU = 0.1
"""Diffusivity."""

_WAVE_NUMBER = 2.0


@dataclass(frozen=True)
class HeatDomain:
    """Box of (x, t, u) on which a network was trained.

    The defaults are the "fixed" case A = 1; `augmented()` is the box of A ~ U(0.5, 5).

    Raises:
        DomainError: a minimum is not below its maximum.
    """

    x_min: float = 0.0
    x_max: float = 2.0 * math.pi
    t_min: float = 0.0
    t_max: float = 16.0
    u_min: float = -1.0
    u_max: float = 1.0

    def __post_init__(self) -> None:
        """Check the intervals."""
        for name in ("x", "t", "u"):
            low, high = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if not low < high:
                raise DomainError(f"expected {name}_min < {name}_max, got {low} and {high}")

    @classmethod
    def augmented(cls) -> "HeatDomain":
        """Box of the augmented training set, u in [-5, 5]."""
        return cls(u_min=-5.0, u_max=5.0)


def sensor_locations(
    n: int = 200, *, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Float[Tensor, " n"]:
    """Positions x of the branch's sensors: `n` equidistant points of [0, 2 pi], both ends included."""
    return torch.linspace(0.0, 2.0 * math.pi, n, dtype=dtype, device=device)


def initial_condition(amplitude: Float[Tensor, "*#batch"], x: Float[Tensor, "*#batch"]) -> Float[Tensor, "*batch"]:
    """Initial condition A sin(2 x); the arguments broadcast."""
    return amplitude * torch.sin(_WAVE_NUMBER * x)


def exact_solution(
    amplitude: Float[Tensor, "*#batch"], x: Float[Tensor, "*#batch"], t: Float[Tensor, "*#batch"]
) -> Float[Tensor, "*batch"]:
    """Exact solution A exp(-4 nu t) sin(2 x) at nu = `HEAT_NU`; the arguments broadcast."""
    return initial_condition(amplitude, x) * torch.exp(-HEAT_NU * _WAVE_NUMBER**2 * t)


def query_grid(
    nx: int = 256,
    nt: int = 101,
    *,
    domain: HeatDomain | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Float[Tensor, "q 2"]:
    """Equidistant grid of (x, t) over the domain, ends included, x-major: point `i * nt + j` is (x_i, t_j).

    Args:
        nx: number of positions.
        nt: number of times.
        domain: the box, `HeatDomain()` when None.
        dtype: of the result.
        device: of the result.

    Returns:
        Points `[nx * nt, 2]`.
    """
    box = HeatDomain() if domain is None else domain
    x = torch.linspace(box.x_min, box.x_max, nx, dtype=dtype, device=device)
    t = torch.linspace(box.t_min, box.t_max, nt, dtype=dtype, device=device)
    return torch.cartesian_prod(x, t)


def relative_l2(prediction: Float[Tensor, "*batch q"], target: Float[Tensor, "*batch q"]) -> Float[Tensor, "*batch"]:
    """Relative error |prediction - target| / |target| in the Euclidean norm of the last dimension."""
    return torch.linalg.vector_norm(prediction - target, dim=-1) / torch.linalg.vector_norm(target, dim=-1)
