"""Poses from correspondences of two clouds in no order: descriptors of neighbourhoods, and consensus over pairs."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from scipy.spatial import KDTree
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo.groups import E, LieGroup, O
from trivgeo.inversion.point_alignment import fit_points

_RADII = (0.4, 0.65)  # of neighbourhoods that are described, in units of the size
_MAX_NEIGHBOURS = 120  # of a neighbourhood
_MIN_NEIGHBOURS = 6  # of a point that is described
_NUM_BINS = (11, 11, 7, 6)  # of the histograms of height, inclination, bend and distance
_NUM_CANDIDATES = 2  # points of the other cloud of the most similar neighbourhoods
_NUM_CORRESPONDENCES = 1000
_LENGTH_ERROR = 0.13  # difference of distances between points of two correspondences that agree, in units of the size
_COSINE_ERROR = 0.25  # difference of cosines of their angles
_NUM_SEEDS, _NUM_AGREEING = 300, 8  # correspondences that are completed, and the number with those that agree with them
_NUM_REFITTED = 20  # correspondences nearest to each other after the first fit


def consensus_poses(
    group: LieGroup,
    x: Float[Tensor, "m n"],
    y: Float[Tensor, "k n"],
    x_normals: Float[Tensor, "m n"],
    y_normals: Float[Tensor, "k n"],
) -> Float[Tensor, "p *e"]:
    """Return elements that take many points of x to points of y with similar neighbourhoods, the best ones first.

    Neighbourhoods are described by histograms of angles with normals, as in Rusu et al. (2009), that do not depend on
    the signs of normals. Of correspondences, those are kept together whose distances and angles agree in both clouds
    (second-order compatibility, Chen et al. 2022), and elements are fitted to them in closed form.

    Args:
        group: one whose elements keep distances, or nearly so.
        x: points in units of the size of the cloud.
    """
    if min(len(x), len(y)) < _NUM_AGREEING:
        return group.identity(0, dtype=x.dtype)
    found = torch.cat([_similar(x, y, x_normals, y_normals, radius) for radius in _RADII])
    pairs = found[found[:, 2].argsort(), :2].long()
    if len(pairs) < _NUM_AGREEING:
        return group.identity(0, dtype=x.dtype)
    label = pairs.unique(dim=0, return_inverse=True)[1]
    order = torch.arange(len(label))
    first = torch.full_like(order, len(order)).scatter_reduce(0, label, order, "amin").sort().values
    i, j = pairs[first[first < len(order)][:_NUM_CORRESPONDENCES]].unbind(-1)
    if len(i) < _NUM_AGREEING:
        return group.identity(0, dtype=x.dtype)
    agreement = _agreement((x[i], x_normals[i]), (y[j], y_normals[j]))
    seeds = agreement.sum(-1).topk(min(_NUM_SEEDS, len(i))).indices
    others = agreement[seeds].topk(_NUM_AGREEING - 1).indices
    rows = torch.cat([seeds.unsqueeze(-1), others], -1)
    number = min(_NUM_REFITTED, len(i))
    g = _fitted(group, x[i], y[j], rows)
    distances = _distances(group, g, x[i], y[j])
    g = _fitted(group, x[i], y[j], distances.topk(number, largest=False).indices)
    distances = _distances(group, g, x[i], y[j])
    support = (1.0 - (distances / _LENGTH_ERROR).square()).clamp(min=0.0).sum(-1)
    g = g[support.argsort(descending=True)]
    return g[torch.isfinite(g).flatten(1).all(-1)]


def _fitted(group: LieGroup, x: Tensor, y: Tensor, rows: Int[Tensor, "s c"]) -> Tensor:
    """Return elements fitted to sets of correspondences; for groups with reflections those of both components."""
    if isinstance(group, O | E):
        component, flip = group.component, group.reflection(dtype=x.dtype)
        plain = fit_points(component, x[rows], y[rows])
        mirrored = fit_points(component, group.action()(flip, x)[rows], y[rows])
        assert plain is not None
        assert mirrored is not None
        both = torch.stack([plain, group.compose(mirrored, flip)])
        errors = torch.stack([(group.action()(g, x[rows]) - y[rows]).square().sum((-2, -1)) for g in both])
        return torch.where((errors[0] <= errors[1])[:, None, None], both[0], both[1])
    found = fit_points(group, x[rows], y[rows])
    assert found is not None
    return found


def _distances(group: LieGroup, g: Tensor, x: Tensor, y: Tensor) -> Float[Tensor, "s c"]:
    distances: Tensor = (group.action()(g, x.expand(len(g), -1, -1)) - y).norm(dim=-1).nan_to_num(torch.inf)
    return distances


def _similar(x: Tensor, y: Tensor, x_normals: Tensor, y_normals: Tensor, radius: float) -> Float[Tensor, "c 3"]:
    """Return indices of points of similar neighbourhoods, and how much these differ, in units of the usual."""
    (a, some), (b, other) = (_described(p, n, radius) for p, n in ((x, x_normals), (y, y_normals)))
    if min(len(some), len(other)) < _NUM_AGREEING:
        return x.new_zeros(0, 3)
    difference = torch.cdist(a, b)
    number = _NUM_CANDIDATES
    there, back = (difference.topk(number, dim, largest=False) for dim in (1, 0))
    usual = there.values[:, 0].median().clamp(min=torch.finfo(difference.dtype).tiny)
    rows = torch.cat([torch.arange(len(a)).repeat_interleave(number), back.indices.flatten()])
    columns = torch.cat([there.indices.flatten(), torch.arange(len(b)).repeat(number)])
    values = torch.cat([there.values.flatten(), back.values.flatten()]) / usual
    return torch.stack([some[rows].to(x.dtype), other[columns].to(x.dtype), values.to(x.dtype)], -1)


def _described(x: Tensor, normals: Tensor, radius: float) -> tuple[Float[Tensor, "p f"], Int[Tensor, " p"]]:
    """Return descriptors of points, roots of histograms, and the indices of the points with enough neighbours."""
    points = x.numpy()
    number = min(_MAX_NEIGHBOURS, len(points) - 1)
    distance, index = (
        torch.from_numpy(part)
        for part in KDTree(points).query(points, k=[*range(2, number + 2)], distance_upper_bound=radius)
    )
    near = torch.isfinite(distance) & (distance > 0)
    index, distance = torch.where(near, index, 0), torch.where(near, distance, radius).float()
    towards = (x[index] - x.unsqueeze(1)).float() / distance.unsqueeze(-1)
    n, others = normals.float(), normals.float()[index]
    height = torch.einsum("mki,mi->mk", towards, n)
    # the surface bends away from its normal; those of neighbours point to the same side
    side = torch.where((height * distance * near).sum(-1) > 0, -1.0, 1.0)
    n, height = n * side.unsqueeze(-1), height * side.unsqueeze(-1)
    bend = torch.einsum("mki,mi->mk", others, n)
    inclination = torch.einsum("mki,mki->mk", others, towards) * torch.where(bend < 0, -1.0, 1.0)
    share = near / near.sum(-1, keepdim=True).clamp(min=1)
    values = (0.5 * (height + 1.0), 0.5 * (inclination + 1.0), 1.0 - bend.abs(), distance / radius)
    histograms = torch.cat([_histogram(v, share, b) for v, b in zip(values, _NUM_BINS, strict=True)], -1)
    weight = near * radius / distance.clamp(min=0.1 * radius)
    around = torch.einsum("mk,mkf->mf", weight, histograms[index]) / weight.sum(-1, keepdim=True).clamp(min=1e-9)
    enough = (near.sum(-1) >= _MIN_NEIGHBOURS).nonzero().squeeze(-1)
    return torch.cat([histograms, around], -1).clamp(min=0.0).sqrt()[enough], enough


def _histogram(values: Float[Tensor, "m k"], share: Float[Tensor, "m k"], bins: int) -> Float[Tensor, "m b"]:
    """Return weights of values in [0, 1] about the middles of bins, those of neighbouring bins by linear shares."""
    place = (values * (bins - 1)).clamp(0.0, bins - 1.0)
    lower = place.floor().clamp(max=bins - 2)
    upper = (place - lower) * share
    found = values.new_zeros(len(values), bins)
    return found.scatter_add(1, lower.long(), share - upper).scatter_add(1, lower.long() + 1, upper)


def _agreement(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> Float[Tensor, "c c"]:
    """Return how far pairs of correspondences agree, times the agreement of others with both."""
    (dx, hx, cx), (dy, hy, cy) = (_pairwise(points.float(), normals.float()) for points, normals in (x, y))
    alike = ((hx - hy).abs() < _COSINE_ERROR) & ((cx - cy).abs() < _COSINE_ERROR)
    alike = alike & alike.mT & (torch.minimum(dx, dy) > 2 * _LENGTH_ERROR)
    first = torch.where(alike, (1.0 - ((dx - dy) / _LENGTH_ERROR).square()).clamp(min=0.0), 0.0)
    return first * matmul(first, first)


def _pairwise(points: Tensor, normals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return distances, sizes of the cosines of lines with the first normals, and of angles between normals."""
    distance = torch.cdist(points, points)
    heights = matmul(normals, points.mT) - (normals * points).sum(-1, keepdim=True)
    tiny = math.sqrt(torch.finfo(points.dtype).tiny)
    return distance, (heights / distance.clamp(min=tiny)).abs().clamp(max=1.0), matmul(normals, normals.mT).abs()
