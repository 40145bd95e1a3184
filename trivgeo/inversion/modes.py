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
        weights: share of the hypotheses, ``[b, M]``; zero beyond the last mode. Of a `PosteriorSample` they are
            probabilities; of a search they say how many chains ended there.
        standard_errors: of the weights of a `PosteriorSample`, ``[b, M]``, not zero where draws met one mode alone; NaN
            for a search, which estimates none.
        labels: the mode of each hypothesis, ``[b, K]``; -1 for none.
    """

    elements: Tensor
    weights: Float[Tensor, "b m"]
    labels: Int[Tensor, "b k"]
    standard_errors: Float[Tensor, "b m"]

    @property
    def count(self) -> Int[Tensor, " b"]:
        """Number of modes of each datum."""
        return (self.weights > 0).sum(-1)


def modes_of(
    group: LieGroup,
    elements: Tensor,
    kept: Bool[Tensor, "b k"],
    radius: float,
    *,
    weights: Float[Tensor, "b k"] | None = None,
    effective_size: Float[Tensor, " b"] | None = None,
) -> PosteriorModes:
    """Return the connected components of the hypotheses less than a distance apart, see `InversionResult.modes`.

    Args:
        group: the group.
        elements: ``[b, K, *element_shape]``.
        kept: which of them count.
        radius: the distance.
        weights: of the elements, if they are a sample with standard errors; else all count alike.
        effective_size: the number of independent draws that stand behind the weights.
    """
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
    each = kept.to(elements.dtype) if weights is None else torch.where(kept, weights, 0.0)
    each = each / each.sum(-1, keepdim=True).clamp(min=torch.finfo(each.dtype).tiny)
    share = torch.where(member, each.unsqueeze(1), 0.0).sum(-1)
    most = max([1, *(share > 0).sum(-1).tolist()])
    shares, heaviest = share.sort(dim=1, descending=True, stable=True)
    shares, heaviest = shares[:, :most], heaviest[:, :most]
    rank = heaviest.new_full((len(elements), chains), -1)
    rank.scatter_(1, heaviest, torch.arange(most, device=near.device).expand_as(heaviest))
    labels = torch.where(kept, rank.gather(1, labels), -1)
    members = member.gather(1, heaviest.unsqueeze(-1).expand(-1, -1, chains))
    errors = torch.full_like(shares, torch.nan)
    if weights is not None:
        errors = _standard_errors(each, members, shares, effective_size)
    return PosteriorModes(_centres(group, elements, members, each, heaviest), shares, labels, errors)


def _standard_errors(each: Tensor, members: Tensor, shares: Tensor, effective_size: Tensor | None) -> Tensor:
    """Standard errors of the shares of clusters by the weights of the elements; zero beyond the last cluster.

    At least those of a share p of n effective draws by Agresti and Coull (1998), with :math:`(n p + 2) / (n + 4)` in
    place of p: of few draws, or of draws that met one cluster alone, the estimate itself would be near zero.
    """
    off = members.to(each.dtype) - shares.unsqueeze(-1)
    variance = (each.square().unsqueeze(1) * off.square()).sum(-1)
    size = 1.0 / each.square().sum(-1).clamp(min=torch.finfo(each.dtype).tiny)
    if effective_size is not None:  # the weights may be those of elements that were resampled
        effective = torch.minimum(size, effective_size.to(size).clamp(min=1e-3))
        variance, size = variance * (size / effective).unsqueeze(-1), effective
    n = size.unsqueeze(-1)
    likely = (n * shares + 2.0) / (n + 4.0)
    variance = torch.maximum(variance, likely * (1.0 - likely) / (n + 4.0))
    return torch.where(shares > 0.0, variance.sqrt(), 0.0)


def _centres(group: LieGroup, elements: Tensor, members: Tensor, each: Tensor, first: Tensor) -> Tensor:
    """The mean of each cluster with the weights of its elements, from its member of the least index on."""
    shape = first.shape + (1,) * len(group.element_shape)
    centre = torch.take_along_dim(elements, first.reshape(shape), 1)
    weight = torch.where(members, each.unsqueeze(1), 0.0)
    weight = weight / weight.sum(-1, keepdim=True)  # NaN for no member
    for _ in range(_MEAN_STEPS):
        away = group.log(group.compose(group.inverse(centre).unsqueeze(2), elements.unsqueeze(1)))
        # a distant hypothesis without logarithm belongs to another mode
        away = torch.where(members.unsqueeze(-1), away, 0.0).nan_to_num(0.0)
        centre = group.retract(centre, (weight.unsqueeze(-1) * away).sum(-2))
    return centre
