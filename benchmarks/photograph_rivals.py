"""Rivals of `photograph_classes` on the same network: their own searches, with its training-free energy.

Inverse transformation search (Schmidt and Stober 2024), the Bayesian optimisation of FoCal (Singhal et al. 2025), and
random search followed by a descent. Each is told how far the transformations reach.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tasks.focal import FoCal
from trivgeo.actions import ImageWarp
from trivgeo.features import FeatureEnergy
from trivgeo.groups import SO, LieGroup, Projective
from trivgeo.inversion import ITS, Inverter
from trivgeo.inversion.stages import Adam, Descend, GaussianSearch, SearchLevel, basis_levels
from trivgeo.inversion.transformations import Transformations, spread_of

SAMPLES, STARTS, STEPS = 8, 24, 6
REACH = math.sqrt(3.0)
"""Of a uniform distribution, in standard deviations."""


def rivals(group: LieGroup, transformations: Transformations, energy: FeatureEnergy) -> dict[str, Inverter]:
    """Inverters by name.

    Args:
        group: of the transformations.
        transformations: their distribution.
        energy: what each minimises.
    """
    spread = spread_of(group, transformations)
    plain, scaled = ImageWarp(group, "bicubic"), ImageWarp(group.with_scale(spread), "bicubic")
    box = [REACH * float(s) for s in spread.square().sum(-1).sqrt()]  # rows of a matrix on the basis
    if isinstance(group, SO):
        levels, samples = [SearchLevel((1.0,), math.pi), SearchLevel((1.0,), math.pi / 12)], 2 * SAMPLES
    elif isinstance(group, Projective):
        levels, samples = basis_levels(group.with_scale(spread), group.dim, REACH), SAMPLES
    else:
        levels, samples = [SearchLevel(tuple(turn(group).tolist()), math.pi)], SAMPLES
        levels += basis_levels(group, group.dim, 0.3)
    settings = {"progress": False}
    found = {
        "ITS": ITS(plain, energy, levels, samples, 1),
        "FoCal's search": FoCal(plain, energy, 5, 15, 0.3, box),
        "random search and descent": Inverter(
            scaled, energy, [GaussianSearch(STARTS, 2, 1.0), Descend(STEPS, Adam(0.05))]
        ),
    }
    return {name: inverter.replace(**settings) for name, inverter in found.items()}


def turn(group: LieGroup) -> Tensor:
    """The direction of rotations about the middle of the frame, by one radian."""
    angle = 0.1
    matrix = torch.eye(3, dtype=torch.float64)
    matrix[:2, :2] = SO(2).exp(torch.tensor([angle], dtype=torch.float64))
    return group.log(group.action().from_homogeneous(matrix)) / angle
