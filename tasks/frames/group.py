"""Frames of plane shapes with an upper-triangular linear part, a group that is neither compact nor unimodular."""

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.groups import Heisenberg, SemidirectProduct, Translation
from trivgeo.groups.basis import Scale

COORDINATES = ("log width", "log height", "slant", "shift down", "shift right")
"""Names of the coordinates of an element; the last one up to half the product of slant and shift down."""


def frame_group(scale: Scale = None) -> SemidirectProduct:
    r"""Maps :math:`x \mapsto [[e^p, s e^q], [0, e^q]] x + b` of the plane: dimension 5.

    An element is (p, q, s, y, z): the scales in the complement, and in the ideal, a Heisenberg group, the slant s, the
    shift down y and z with :math:`b = (z + s y / 2, y)`. The modular function is :math:`\lambda = e^{-2 p}`.

    Args:
        scale: see `LieGroup`.
    """

    def act(h: Tensor, n: Tensor) -> Tensor:
        p, q = h.unbind(-1)
        return n * torch.stack([(p - q).exp(), q.exp(), p.exp()], -1)

    return SemidirectProduct(Translation(2), Heisenberg(1), act, scale, ("width", "height", "slant", "down", "right"))


def from_affine(matrix: Float[Tensor, "*batch 2 3"]) -> Float[Tensor, "*batch 5"]:
    """The element of a map ``[[w, m, b_1], [0, h, b_2]]`` with positive w and h."""
    width, height = matrix[..., 0, 0], matrix[..., 1, 1]
    slant, right, down = matrix[..., 0, 1] / height, matrix[..., 0, 2], matrix[..., 1, 2]
    return torch.stack([width.log(), height.log(), slant, down, right - 0.5 * slant * down], -1)


def to_affine(g: Float[Tensor, "*batch 5"]) -> Float[Tensor, "*batch 2 3"]:
    """The matrix ``[A | b]`` of an element."""
    p, q, slant, down, z = g.unbind(-1)
    first = torch.stack([p.exp(), slant * q.exp(), z + 0.5 * slant * down], -1)
    return torch.stack([first, torch.stack([torch.zeros_like(q), q.exp(), down], -1)], -2)
