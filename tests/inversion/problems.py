"""Inversion problems with known answers."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.helpers import randn
from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.groups import BurgersSymmetry, HeatSymmetry, LieGroup
from trivgeo.inversion.energies import DomainDistance

DOMAIN = DomainDistance(x=(-1.0, 1.0), t=(0.0, 0.5), u=(-1.0, 1.0))


def heat_group() -> HeatSymmetry:
    return HeatSymmetry(0.1, scale=(1.0, 1.0, 1.0, 0.03, 0.03, 1.0))


def operator_action(group: LieGroup | None = None) -> OperatorAction:
    return OperatorAction((group or heat_group()).action())


def clean_problems(batch: int, points: int = 33, side: int = 7) -> OperatorInput:
    """Initial conditions that fill the domain exactly, each another mixture of waves, and a grid of query points."""
    x = torch.linspace(-1.0, 1.0, points, dtype=torch.float64).expand(batch, points)
    u = sum(randn(batch, 1, seed=k) * torch.sin(k * torch.pi * x + k) for k in range(1, 4))
    low, high = u.amin(-1, keepdim=True), u.amax(-1, keepdim=True)
    u = 2 * (u - low) / (high - low) - 1
    initial = torch.stack([x, torch.zeros_like(x), u], -1)
    edge = torch.linspace(0.0, 1.0, side, dtype=torch.float64)
    query = torch.stack(torch.meshgrid(2 * edge - 1, 0.5 * edge, indexing="ij"), -1).reshape(-1, 2)
    return OperatorInput(initial, query.expand(batch, -1, -1).clone())


def brute_force_distance(x: OperatorInput) -> Tensor:
    """The domain distance as its formula reads, over all points."""
    total = torch.zeros(x.initial.shape[0], dtype=x.initial.dtype)
    ranges = (
        (x.initial[..., 0], DOMAIN.x),
        (x.initial[..., 1], (DOMAIN.t[0], DOMAIN.t[0])),
        (x.initial[..., 2], DOMAIN.u),
        (x.query[..., 0], DOMAIN.x),
        (x.query[..., 1], DOMAIN.t),
    )
    for values, (low, high) in ranges:
        total = total + (values.min(-1).values - low) ** 2 + (values.max(-1).values - high) ** 2
    return total


GROUPS = {"heat": heat_group(), "burgers": BurgersSymmetry(scale=0.5)}
