"""The density of a learned posterior: a mixture of Student distributions about the modes of its draws."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import einsum
from trivgeo.groups import LieGroup
from trivgeo.inversion.rows import rows_like
from trivgeo.inversion.sampling.mixture import StudentMixture

__all__ = ["NUM_DEGREES_OF_FREEDOM", "mixture_of_draws"]

_NUM_MODES = 4
NUM_DEGREES_OF_FREEDOM = 24
"""Of a component before its calibration: nearly normal."""
_LINK = 3.0
"""Distance of draws of one mode, in units of the distance that nine tenths of the draws have to their nearest one."""
_LEAST_SPREAD = 1e-3
"""Standard deviation of a mode in each direction, in units of the basis, at least."""
_LARGEST_LOGARITHM = 1e8
"""Largest entry of the logarithm of a draw about another, in units of the basis; squares of larger ones overflow."""


def mixture_of_draws(group: LieGroup, elements: Tensor) -> StudentMixture:
    """Return a mixture that covers draws ``[b, K, *element_shape]``: of each mode its mean, covariance and share.

    Draws belong to one mode if a chain of near ones joins them. The four largest modes are kept; draws that are not
    finite, or have no logarithm about the first one, count for nothing.

    Args:
        group: the group, with the basis in which draws are compared.
        elements: the draws.
    """
    known = torch.isfinite(elements).flatten(2).all(-1)
    unit = group.identity(dtype=elements.dtype, device=elements.device)
    elements = torch.where(rows_like(known, elements), elements, unit)
    first = known.to(torch.int64).argmax(-1)
    origin = elements[torch.arange(len(elements), device=elements.device), first]
    v = group.log(group.compose(group.inverse(origin).unsqueeze(1), elements))
    known = known & (v.abs().amax(-1) < _LARGEST_LOGARITHM)  # draws of a network that has learned little may diverge
    v = torch.where(known.unsqueeze(-1), v, 0.0)
    elements = torch.where(rows_like(known, elements), elements, origin.unsqueeze(1))
    member = _modes(v, known)  # [b, K, j]
    number = member.sum(1)
    mean = einsum("bkj,bki->bji", member, v) / number.clamp(min=1.0).unsqueeze(-1)
    centres = group.retract(origin.unsqueeze(1), mean)
    for _ in range(2):
        away = _away(group, centres, elements, member)
        mean = einsum("bkj,bkji->bji", member, away) / number.clamp(min=1.0).unsqueeze(-1)
        centres = group.retract(centres, mean)
    away = _away(group, centres, elements, member)
    spread = einsum("bkj,bkji,bkjl->bjil", member, away, away)
    pooled = spread.sum(1, keepdim=True) / number.sum(-1).clamp(min=1.0)[:, None, None, None]
    n = group.dim
    trust = (number / (number + n + 1.0))[..., None, None]
    spread = trust * spread / number.clamp(min=1.0)[..., None, None] + (1.0 - trust) * pooled
    # beside the least spread, as much as keeps large ones positive definite in their dtype
    size = 100.0 * torch.finfo(spread.dtype).eps * spread.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    spread = spread + (_LEAST_SPREAD**2 + size) * torch.eye(n).to(spread)
    shares = torch.where(number > 0.0, number, 0.0)
    empty = (shares.sum(-1, keepdim=True) == 0.0) & (torch.arange(shares.shape[1], device=shares.device) == 0)
    shares = torch.where(empty, 1.0, shares)  # nothing was drawn: a normal law about the identity
    spread = torch.where(empty[..., None, None], torch.eye(n).to(spread), spread)
    log_shares = (shares / shares.sum(-1, keepdim=True)).log()
    return StudentMixture(group, centres, torch.linalg.cholesky(spread), log_shares, degrees=NUM_DEGREES_OF_FREEDOM)


def _modes(v: Float[Tensor, "b k n"], known: Tensor) -> Float[Tensor, "b k j"]:
    """One for the mode of each draw, the largest modes first; zero for draws of other ones."""
    number = v.shape[1]
    distance = torch.cdist(v, v)
    both = known.unsqueeze(1) & known.unsqueeze(2)
    distance = torch.where(both, distance, torch.inf)
    other = distance + torch.diag(distance.new_full((number,), torch.inf))
    nearest = other.amin(-1).sort(-1).values
    typical = nearest.gather(1, (0.9 * (known.sum(-1, keepdim=True) - 1)).long().clamp(min=0))
    linked = (distance <= _LINK * typical.unsqueeze(-1)).to(v.dtype)
    for _ in range(max(1, (number - 1).bit_length())):
        linked = (linked @ linked > 0.5).to(v.dtype)
    first = linked.argmax(-1)  # of each draw the first one of its mode
    label = torch.nn.functional.one_hot(first, number).to(v.dtype) * known.unsqueeze(-1)
    largest = label.sum(1).topk(min(_NUM_MODES, number), dim=-1).indices
    return label.gather(2, largest.unsqueeze(1).expand(-1, number, -1))


def _away(group: LieGroup, centres: Tensor, elements: Tensor, member: Tensor) -> Float[Tensor, "b k j n"]:
    """Logarithms of the draws about the centres of their modes; zero about others."""
    away = group.log(group.compose(group.inverse(centres).unsqueeze(1), elements.unsqueeze(2)))
    used = (member > 0.0).unsqueeze(-1) & torch.isfinite(away).all(-1, keepdim=True)
    return torch.where(used, away, 0.0)
