"""Modes of a sample of group elements."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trivgeo._text import Described
from trivgeo.checks import check_positive
from trivgeo.groups import LieGroup

__all__ = ["PosteriorModes", "modes_of"]

_MEAN_STEPS = 8


@dataclass(frozen=True, repr=False)
class PosteriorModes(Described):
    """Clusters of the hypotheses for each of b data, the heaviest first; M is the largest number of them.

    Attributes:
        elements: their centres, ``[b, M, *element_shape]``: the point from which the mean of the logarithms of the
            hypotheses vanishes; NaN beyond the last mode.
        weights: share of the hypotheses, ``[b, M]``; zero beyond the last mode.
        labels: the mode of each hypothesis, ``[b, K]``; -1 for none.
    """

    elements: Tensor
    weights: Float[Tensor, "b m"]
    labels: Int[Tensor, "b k"]

    @property
    def count(self) -> Int[Tensor, " b"]:
        """Number of modes of each datum."""
        return (self.weights > 0).sum(-1)


def modes_of(group: LieGroup, elements: Tensor, kept: Bool[Tensor, "b k"], radius: float) -> PosteriorModes:
    """The connected components of the hypotheses less than a distance apart, see `InversionResult.modes`."""
    check_positive("radius", radius)
    chains = elements.shape[1]
    difference = group.log(group.compose(group.inverse(elements).unsqueeze(2), elements.unsqueeze(1)))
    near = difference.norm(dim=-1) < radius  # false where there is no logarithm
    near = (near & near.mT | torch.eye(chains, dtype=torch.bool, device=near.device)) & kept.unsqueeze(1)
    near = near & kept.unsqueeze(2)
    labels = torch.arange(chains, device=near.device).expand(len(elements), -1)
    while True:  # each hypothesis takes the least label around it, and then that one's own
        least = torch.where(near, labels.unsqueeze(1), chains).amin(-1)
        least = torch.where(kept, least.gather(1, least.clamp(max=chains - 1)), chains)
        if torch.equal(least, torch.where(kept, labels, chains)):
            break
        labels = torch.where(kept, least, labels)
    member = kept.unsqueeze(1) & (labels.unsqueeze(1) == torch.arange(chains, device=near.device).unsqueeze(-1))
    share = member.sum(-1).to(elements.dtype) / kept.sum(-1, keepdim=True).clamp(min=1)
    most = max(1, int((share > 0).sum(-1).max()))
    weights, heaviest = share.sort(dim=1, descending=True, stable=True)
    weights, heaviest = weights[:, :most], heaviest[:, :most]
    rank = heaviest.new_full((len(elements), chains), -1)
    rank.scatter_(1, heaviest, torch.arange(most, device=near.device).expand_as(heaviest))
    labels = torch.where(kept, rank.gather(1, labels), -1)
    members = member.gather(1, heaviest.unsqueeze(-1).expand(-1, -1, chains))
    return PosteriorModes(_centres(group, elements, members, heaviest), weights, labels)


def _centres(group: LieGroup, elements: Tensor, members: Tensor, first: Tensor) -> Tensor:
    """The mean of each cluster, from its member of the least index on."""
    shape = first.shape + (1,) * len(group.element_shape)
    centre = torch.take_along_dim(elements, first.reshape(shape), 1)
    weight = members.to(elements.dtype)
    weight = weight / weight.sum(-1, keepdim=True)  # NaN for no member
    for _ in range(_MEAN_STEPS):
        away = group.log(group.compose(group.inverse(centre).unsqueeze(2), elements.unsqueeze(1)))
        # a distant hypothesis without logarithm belongs to another mode
        away = torch.where(members.unsqueeze(-1), away, 0.0).nan_to_num(0.0)
        centre = group.retract(centre, (weight.unsqueeze(-1) * away).sum(-2))
    return centre
