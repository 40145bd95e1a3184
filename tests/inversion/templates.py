"""Point clouds moved from a known template: inversion problems whose optimum is the transformation, at energy zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.helpers import rand, random_elements
from trivgeo.groups import SE, Affine, HeatSymmetry, LieGroup, PointAction


class Template:
    """Clouds ``x = g.template`` and the mean squared distance of a restored cloud to the template.

    ``evaluations`` counts the energies that were asked for, of all data together.
    """

    def __init__(
        self, group: LieGroup, batch: int = 4, *, dims: int = 2, std: float = 0.3, dtype: torch.dtype = torch.float64
    ) -> None:
        self.action: PointAction = group.action()
        cloud = rand(7, dims, seed=11, low=-1.0, high=1.0)
        self.cloud = (cloud - cloud.mean(0)).to(dtype)
        self.elements = random_elements(group, batch, std=std, seed=5, dtype=dtype)
        self.x = self.action(self.elements, self.cloud)
        self.evaluations = 0

    def __call__(self, y: Tensor) -> Tensor:
        self.evaluations += y.shape[0]
        return (y - self.cloud.to(y)).square().mean(-2).sum(-1)

    def distance(self, g: Tensor) -> Tensor:
        """The energy of elements ``[b, k, ...]``, by its definition."""
        group = self.action.group
        rows = [[self.action(group.inverse(h), x) for h in row] for x, row in zip(self.x, g, strict=True)]
        return torch.stack([torch.stack([(y - self.cloud).square().sum(-1).mean() for y in row]) for row in rows])


TEMPLATES: dict[str, dict[str, Any]] = {
    "Affine(2)": {"group": Affine(2), "std": 0.3},
    "SE(2)": {"group": SE(2), "std": 0.4},
    "SE(3)": {"group": SE(3), "dims": 3, "std": 0.3},
    "heat": {"group": HeatSymmetry(1.0, scale=0.5), "dims": 3, "std": 0.3},
}
"""Not abelian, and Affine(2) is not unimodular; the action of the last is local."""


def wall(y: Tensor) -> Tensor:
    """An energy of points that is NaN, as well as its gradient, where the first coordinate of any is below -1."""
    return (y[..., 0] + 1).sqrt().sum(-1) + y.square().sum((-1, -2))
