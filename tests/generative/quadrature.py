"""Quadrature on rotations."""

import math

import torch
from torch import Tensor

from trivgeo.groups.rotations import rotation_from_euler


def rotation_rule(side: int) -> tuple[Tensor, Tensor]:
    """Rotations and weights of sum one: equal angles about z, nodes of Gauss and Legendre in the cosine between."""
    angle = torch.arange(side, dtype=torch.float64) * (2.0 * math.pi / side)
    off = 0.5 / (1.0 - (2.0 * torch.arange(1, side, dtype=torch.float64)) ** -2).sqrt()
    cosine, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    a, c, k = torch.cartesian_prod(angle, angle, torch.arange(side).double()).unbind(-1)
    rotations = rotation_from_euler(torch.stack([a, cosine[k.long()].arccos(), c], -1), "ZYZ")
    return rotations, vectors[0].square()[k.long()] / side**2
