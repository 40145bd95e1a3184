"""Agreement of the hypotheses of a search, from their energies: what stands against the best of them."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trivgeo.groups import LieGroup
from trivgeo.verdict import Verdict

__all__ = ["verdicts_of_search"]

_RADIUS = 0.3  # distance within which hypotheses are one, in units of the group's basis
_SAME_PLACE = 1e-3  # distance within which equal energies are expected
_SAME_WELL = 0.03  # distance within which descents into a smooth well end
_MIN_COMPARED = 5  # hypotheses below which a comparison says little
_TIED_SHARE = 0.05  # height at which another well is as low as the best, in units of that of the median hypothesis
_TIED_SCATTERS = 2.0  # the same, in units of the fall from the median of the hypotheses of a well to the lowest
_MIN_SCATTERED = 3  # hypotheses of a well by which its scatter is known
_MIN_GAP = 1.0  # fall to a hypothesis alone in its place, in units of that from the median of others to their lowest
_MAX_NORMAL = 1.645  # quantile .95 of the normal distribution

UNUSABLE = "no hypothesis has a finite energy, or restores half of the datum"
FLAT = "the energy of all hypotheses is the same: take one that sees the transformation, such as a LearnedEnergy"
TIED = (
    "hypotheses that are far from the best are as good: a symmetry of the datum, which a prior of the transformations "
    "may decide, or an energy that tells too little, in place of which a LearnedEnergy or LearnedInverter may serve"
)
RANDOM = (
    "the energy does not tell the place of the best hypothesis from others: more evaluations, or a LearnedEnergy or "
    "LearnedInverter in its place"
)
"""Reasons against the best of the hypotheses of a datum."""

DEEPEST = "the energy is lowest at the right transformation"
REACHED = "a chain has reached the lowest well"
FEW = "fewer than five hypotheses were there to compare"
UNRANKED = "the network is right on data like these"
"""Assumptions of a search."""


def verdicts_of_search(
    group: LieGroup,
    elements: Tensor,
    energies: Float[Tensor, "b k"],
    usable: Bool[Tensor, "b k"],
    has_energy: bool,
    added: Float[Tensor, "b k"] | None = None,
) -> tuple[Verdict, ...]:
    """Return a verdict on the best hypothesis of each datum, by the energies of the others.

    Against it are: an energy that is the same for all hypotheses; another well as deep, by twice the scatter of the
    energies about the best or a twentieth of the height of the median hypothesis; and energies that have nothing to do
    with the place. These are ranks of the hypotheses about the best that are not lower than those of others (Mann and
    Whitney 1947, at five percent) where three or more are there, and where the best is alone a gap below the others
    that is less than their own scatter.

    Args:
        group: the group of the hypotheses.
        elements: hypotheses, ``[b, k, *element_shape]``.
        energies: their energies.
        usable: mask of the hypotheses that count.
        has_energy: whether energies were evaluated.
        added: part of the energies that restored data have no say in, see `InversionResult`.
    """
    if not has_energy:
        return tuple(Verdict((), (UNRANKED,)) if any(row) else Verdict((UNUSABLE,)) for row in usable.tolist())
    if energies.numel() == 0:
        return tuple(Verdict((UNUSABLE,)) for _ in energies)
    energy = torch.where(usable, energies, torch.inf).double()
    number = usable.sum(-1)
    lowest, best = energy.min(-1, keepdim=True)
    distance = _distances(group, elements, best)
    near, far = usable & (distance < _RADIUS), usable & ~(distance < _RADIUS)
    height = _median(energy, usable) - lowest[:, 0]
    rounding = 1e3 * torch.finfo(energies.dtype).eps * lowest[:, 0].abs().clamp(min=torch.finfo(energies.dtype).tiny)

    same_place = usable & (distance < _SAME_PLACE)
    seen = energy if added is None else torch.where(usable, energy - added, torch.inf)  # energies of restored data
    level, level_seen = (
        (usable & ~same_place).any(-1) & (_range(values, usable) <= rounding) for values in (energy, seen)
    )
    # descents arrive at one place of several equal wells, nowhere on a flat energy
    meet = (same_place.sum(-1) > 2) & (2 * same_place.sum(-1) > near.sum(-1))
    flat = (level_seen & ~level) | (level & ~meet)

    others, second = torch.where(far, energy, torch.inf).min(-1, keepdim=True)
    gap, others = (others - lowest)[:, 0], others[:, 0]
    joined, apart = near.sum(-1) - 1, far.sum(-1)
    beside = far & (_distances(group, elements, second) < _RADIUS)
    scatter = torch.where(beside.sum(-1) >= _MIN_SCATTERED, _median(energy, beside) - others, 0.0)
    scatter = torch.where(joined + 1 >= _MIN_SCATTERED, _median(energy, near) - lowest[:, 0], scatter)
    tied = (gap <= torch.maximum(_TIED_SCATTERS * scatter, _TIED_SHARE * height) + rounding) & (apart > 0)
    tied = tied | (level & meet)

    companions = near & (torch.arange(energies.shape[1], device=best.device) != best)
    below = (energy.unsqueeze(2) < energy.unsqueeze(1)).double() + 0.5 * (energy.unsqueeze(2) == energy.unsqueeze(1))
    pairs = companions.unsqueeze(2) & far.unsqueeze(1)
    rank = torch.where(pairs, below, 0.0).sum((-2, -1))
    product = (joined * apart).double()
    deviation = (product * (joined + apart + 1) / 12.0).sqrt().clamp(min=1e-9)
    unranked = (rank - 0.5 * product) / deviation < _MAX_NORMAL
    alone = gap < _MIN_GAP * (_median(energy, far) - others)
    most_agree = 2 * near.sum(-1) >= number
    random = torch.where(joined >= 2, unranked, alone) & (apart > 0) & ~most_agree
    if added is not None:
        held = _range(added.double(), usable) > _TIED_SHARE * height
        gathered = 2 * (usable & (distance < _SAME_WELL)).sum(-1) > number
        random = random | (held & ~gathered & ~_rises(seen, distance, usable))

    few = number < _MIN_COMPARED
    verdicts = []
    rows = torch.stack([number == 0, flat, tied & ~few, random & ~few, few], -1)
    for none, is_flat, is_tied, is_random, is_few in rows.tolist():
        reasons = [UNUSABLE] if none else [FLAT] if is_flat else [TIED] if is_tied else [RANDOM] if is_random else []
        verdicts.append(Verdict(tuple(reasons), (DEEPEST, REACHED, *([FEW] if is_few else []))))
    return tuple(verdicts)


def _distances(group: LieGroup, elements: Tensor, place: Int[Tensor, "b 1"]) -> Float[Tensor, "b k"]:
    """Return the distances of hypotheses from the one at a place; NaN where there is no logarithm."""
    centre = torch.take_along_dim(elements, place.reshape(-1, 1, *[1] * len(group.element_shape)), 1)
    return group.log(group.compose(group.inverse(centre), elements)).norm(dim=-1)


def _range(energy: Float[Tensor, "b k"], counted: Bool[Tensor, "b k"]) -> Float[Tensor, " b"]:
    """Return the largest less the smallest of the energies that count."""
    return torch.where(counted, energy, -torch.inf).amax(-1) - torch.where(counted, energy, torch.inf).amin(-1)


def _rises(
    energy: Float[Tensor, "b k"], distance: Float[Tensor, "b k"], counted: Bool[Tensor, "b k"]
) -> Bool[Tensor, " b"]:
    """Return whether energies rise with distances, by Kendall's rank correlation."""
    signs = [(x.unsqueeze(2) - x.unsqueeze(1)).sign() for x in (energy, distance)]
    score = torch.where(counted.unsqueeze(2) & counted.unsqueeze(1), signs[0] * signs[1], 0.0).sum((-2, -1)) / 2.0
    n = counted.sum(-1).double()
    return score > _MAX_NORMAL * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt()


def _median(energy: Float[Tensor, "b k"], counted: Bool[Tensor, "b k"]) -> Float[Tensor, " b"]:
    """Return the median of the energies that count, the upper one of two; infinite where none counts."""
    order = torch.where(counted, energy, torch.inf).sort(-1).values
    place = (counted.sum(-1, keepdim=True) // 2).clamp(max=order.shape[1] - 1)
    return order.gather(1, place)[:, 0]
