"""Two clouds in no order of which each may show a part: points and their partners, for many poses at once."""

from __future__ import annotations

import copy
import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.spatial import KDTree
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo.actions import PointCloud
from trivgeo.groups import SE, SO, E, O, Similarity, Translation
from trivgeo.groups.similarity import ScaledRotations
from trivgeo.inversion.curvature import safe_cholesky
from trivgeo.inversion.energies.least_squares import GemanMcClure
from trivgeo.inversion.energies.point_residuals import nearest_indices

_NUM_NEIGHBOURS = 10  # nearest points of a cloud that say whether it goes on in a direction
_NUM_EDGE_NEIGHBOURS = 16  # of a point, which lie on one side of it at an edge
_EDGE_SHIFT = 0.32  # distance of their middle from a point at an edge, in units of that of the farthest; .42 at a line
_MIN_TANGENT_SHARE = 0.4  # share of a residual along the surface from which on it may point beyond an edge
_MIN_AHEAD = 0.5  # how far a cloud must go on beyond a nearest point, in residuals, for it not to end there
# distance beyond which points are no partners, in median distances between neighbours; of two samples of a surface
# one in a thousand is as far from the nearest one
REACH_IN_SPACINGS = 3.5
_MAX_STEP = 0.3  # length of a step, in units of the basis on conditioned data
_DAMPING = 1e-5  # of the curvature, in units of its mean along the basis
_EM_STEPS = 12
_FREEDOM = 3.0  # degrees of freedom of residuals of partners
_NOWHERE = 1e9  # coordinate of a point that a pose does not define, in units of the size
_MIN_NORMALS_COSINE = 0.6  # cosine between the normals of partners from which on they are of one surface
_BESIDE = 3.0  # distance up to which a point lies beside the other cloud, in units of the reach


class Pairs(NamedTuple):
    """Points of both clouds and the nearest points of the other, at k poses: of the moving, then of the fixed cloud.

    Attributes:
        elements: the poses, ``[k, *e]``.
        moved: the moved point of each pair, ``[k, q, n]``.
        first: indices of points of the moving cloud, ``[k, q]``.
        second: indices of points of the fixed cloud, ``[k, q]``.
        residual: difference of the moved point from the fixed one, ``[k, q, n]``.
        near: mask of points within the reach.
    """

    elements: Tensor
    moved: Float[Tensor, "k q n"]
    first: Int[Tensor, "k q"]
    second: Int[Tensor, "k q"]
    residual: Float[Tensor, "k q n"]
    near: Bool[Tensor, "k q"]


class Likelihood(NamedTuple):
    """How well poses explain both clouds.

    Attributes:
        gains: logarithms of likelihood ratios of points to those of a cloud without counterpart, ``[k, q]``.
        forth: number of the points of the moving cloud, the first of the q.
        overlap: share of the points of the moving and of the fixed cloud that have a partner, ``[k, 2]``.
        std: standard deviation of residuals of partners, ``[k]``.
    """

    gains: Float[Tensor, "k q"]
    forth: int
    overlap: Float[Tensor, "k 2"]
    std: Float[Tensor, " k"]

    @property
    def total(self) -> Float[Tensor, " k"]:
        """Twice the sum of the gains of one of the clouds, the lower one: a cloud that shrinks to a point has a partner
        for all of its points, and the other has none."""
        return 2.0 * torch.minimum(self.gains[:, : self.forth].sum(-1), self.gains[:, self.forth :].sum(-1))


class Partners:
    """Partners among the points of two clouds on conditioned data.

    Args:
        x: points of the moving cloud, on the CPU.
        y: points of the fixed cloud.
        normals: unit normals of both.
        surface: whether the clouds are samples of a surface: partners have like normals, and errors across it.
        tangent: what counts of a residual along the surface.
    """

    def __init__(
        self,
        action: PointCloud,
        x: Float[Tensor, "m n"],
        y: Float[Tensor, "k n"],
        normals: tuple[Float[Tensor, "m n"], Float[Tensor, "k n"]],
        *,
        surface: bool,
        tangent: float,
    ) -> None:
        self.action, self.x, self.y, self.normals = action, x, y, normals
        self.surface, self.tangent = surface, tangent
        self.trees = KDTree(x.numpy()), KDTree(y.numpy())
        # clouds in one point each have no spacing
        self.spacing = max(spacing(p, tree) for p, tree in zip((x, y), self.trees, strict=True)) or 1.0
        self.reach = REACH_IN_SPACINGS * self.spacing
        self.rows = torch.arange(len(x)), torch.arange(len(y))
        group = action.group
        self.keeps_shapes = isinstance(group, SO | SE | O | E | Translation | Similarity | ScaledRotations)
        zero = torch.zeros(group.dim, dtype=x.dtype)
        self.generators = torch.func.jacrev(lambda v: group.action().homogeneous(group.exp(v)))(zero)

    def thinned(self, number: int, tangent: float) -> Partners:
        """Return the same for the partners of the first ``number`` of the points of each cloud, among all points."""
        found = copy.copy(self)
        found.rows, found.tangent = (self.rows[0][:number], self.rows[1][:number]), tangent
        return found

    @cached_property
    def _around(self) -> tuple[Int[Tensor, "m c"], Int[Tensor, "k c"]]:
        return neighbours(self.x, self.trees[0]), neighbours(self.y, self.trees[1])

    def moved(self, g: Float[Tensor, "k *e"], points: Float[Tensor, "*k m n"] | None = None) -> Float[Tensor, "k m n"]:
        """Return points at each pose, by default the moving cloud."""
        points = self.x if points is None else points
        found: Tensor = self.action(g, points.expand(len(g), -1, -1))
        return found.nan_to_num(_NOWHERE)

    def jacobian(self, points: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n d"]:
        """Return derivatives of ``exp(v) p`` by v at zero."""
        lifted = torch.cat([points, torch.ones_like(points[..., :1])], -1)
        field = torch.einsum("ijd,...j->...id", self.generators, lifted)
        return field[..., :-1, :] - points.unsqueeze(-1) * field[..., -1:, :]

    def pairs(self, g: Float[Tensor, "k *e"], reach: float | None = None) -> Pairs:
        """Return nearest points both ways; points without one within the reach are paired with any."""
        reach = self.reach if reach is None else reach
        group = self.action.group
        ours, others = self.rows
        ahead, y = self.moved(g, self.x[ours]), self.y[others]
        there, near = _nearest(self.trees[1], ahead, reach)
        if self.keeps_shapes:
            inverse = group.inverse(g)
            linear = group.action().homogeneous(inverse)[..., :-1, :-1]
            scale = linear.square().sum((-2, -1)).div(linear.shape[-1]).sqrt().nan_to_num(1.0)
            back, close = _nearest(self.trees[0], self.moved(inverse, y), reach * scale)
            behind = self.moved(g, self.x[back])
        else:
            moved = self.moved(g)
            back = nearest_indices(y.expand(len(g), -1, -1), moved)
            behind = torch.take_along_dim(moved, back.unsqueeze(-1), 1)
            close = (behind - y).norm(dim=-1) < reach
        first = torch.cat([ours.expand(len(g), -1), back], -1)
        second = torch.cat([there, others.expand(len(g), -1)], -1)
        moved = torch.cat([ahead, behind], 1)
        return Pairs(g, moved, first, second, moved - self.y[second], torch.cat([near, close], -1))

    def weighed(self, d: Float[Tensor, "*b n"], second: Int[Tensor, "*b"]) -> Float[Tensor, "*b n"]:
        """Return differences from the fixed points of indices ``second`` as they count."""
        if self.tangent == 1.0:
            return d
        n = self.normals[1][second]
        return self.tangent * d + (1.0 - self.tangent) * (d * n).sum(-1, keepdim=True) * n

    def cosines(self, g: Float[Tensor, "k *e"], pairs: Pairs) -> Float[Tensor, "k q"]:
        """Return sizes of the cosines of angles between normals of pairs; one for points of a volume."""
        if not self.surface:
            return torch.ones_like(pairs.residual[..., 0])
        turned = self.turned_normals(g)
        here = torch.take_along_dim(turned, pairs.first.unsqueeze(-1), 1)
        return (here * self.normals[1][pairs.second]).sum(-1).abs()

    def may_be_partners(self, g: Float[Tensor, "k *e"], pairs: Pairs) -> Bool[Tensor, "k q"]:
        """Return which pairs are within the reach, and of like normals."""
        return pairs.near & (self.cosines(g, pairs) > _MIN_NORMALS_COSINE)

    def turned_normals(self, g: Float[Tensor, "k *e"]) -> Float[Tensor, "k m n"]:
        """Return the normals of the moving cloud at each pose."""
        linear = self.action.group.action().homogeneous(g)[..., :-1, :-1]
        if not self.keeps_shapes:
            linear = torch.linalg.pinv(linear.nan_to_num(0.0)).mT
        turned = matmul(self.normals[0], linear.mT)
        return turned / turned.norm(dim=-1, keepdim=True).clamp(min=1e-12)

    @cached_property
    def edges(self) -> tuple[Bool[Tensor, " m"], Bool[Tensor, " k"]]:
        """Masks of the points at the edges of both surfaces, whose neighbours lie on one side; none of a volume."""
        if not self.surface:
            return torch.zeros(len(self.x), dtype=torch.bool), torch.zeros(len(self.y), dtype=torch.bool)
        x, y = (
            _at_edge(points, neighbours(points, tree, _NUM_EDGE_NEIGHBOURS))
            for points, tree in zip((self.x, self.y), self.trees, strict=True)
        )
        return x, y

    def beyond_edge(self, pairs: Pairs) -> Bool[Tensor, "k q"]:
        """Return which points may lie beyond the end of the other cloud: their nearest point is on its edge."""
        ours, others = self._around
        m, r = len(self.rows[0]), pairs.residual
        second, first = pairs.second[:, :m], pairs.first[:, m:]
        there = _beyond_edge(r[:, :m], self.y[others[second]] - self.y[second].unsqueeze(-2))
        around = self.moved(pairs.elements, self.x[ours[first]].flatten(1, 2)).unflatten(1, (first.shape[1], -1))
        back = _beyond_edge(-r[:, m:], around - pairs.moved[:, m:].unsqueeze(-2))
        return torch.cat([there | self.edges[1][second], back | self.edges[0][first]], -1)

    def descended(
        self, g: Float[Tensor, "k *e"], width: float, steps: int, *, reach: float | None = None, inside: bool = False
    ) -> Float[Tensor, "k *e"]:
        """Return poses after Gauss and Newton's steps, reweighted, with partners found anew before each.

        Args:
            width: of the loss of Geman and McClure.
            reach: up to which points are partners.
            inside: whether points beyond the end of the other cloud have no partner: they pull poses to more overlap.
        """
        group = self.action.group
        loss = GemanMcClure(width)
        for _ in range(steps):
            pairs = self.pairs(g, reach)
            counts = self.may_be_partners(g, pairs) & ~self.beyond_edge(pairs) if inside else pairs.near
            r = self.weighed(pairs.residual, pairs.second)
            weights = _slope(loss, r.square().sum(-1)) * counts
            if not inside:
                weights = weights * self.cosines(g, pairs).square()
            v = self._step(pairs, r, weights)
            length = v.norm(dim=-1, keepdim=True)
            v = v * (_MAX_STEP / length.clamp(min=_MAX_STEP))
            moved = group.compose(group.exp(v), g)
            fine = torch.isfinite(moved).flatten(1).all(-1)
            g = torch.where(fine.reshape(-1, *[1] * (g.ndim - 1)), moved, g)
            if float(length.max()) < 1e-9:
                break
        return g

    def _step(self, pairs: Pairs, r: Tensor, weights: Tensor) -> Float[Tensor, "k d"]:
        """Return steps of Gauss and Newton."""
        jacobian = self.jacobian(pairs.moved)
        if self.tangent == 1.0:
            rows = jacobian
        else:
            n = self.normals[1][pairs.second].unsqueeze(-1)
            across = (jacobian * n).sum(-2, keepdim=True) * n
            rows = self.tangent * jacobian + (1.0 - self.tangent) * across
        rows = rows.flatten(1, 2)
        heavy = weights.unsqueeze(-1).expand(*r.shape).flatten(1).unsqueeze(-1)
        curvature = matmul(rows.mT, heavy * rows)
        slope = matmul((heavy * rows).mT, r.flatten(1).unsqueeze(-1)).squeeze(-1)
        mean = curvature.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-12)
        eye = torch.eye(curvature.shape[-1], dtype=r.dtype)
        factor, good = safe_cholesky(curvature + (_DAMPING * mean)[:, None, None] * eye)
        v = -torch.cholesky_solve(slope.unsqueeze(-1), factor).squeeze(-1)
        return torch.where((good & torch.isfinite(v).all(-1)).unsqueeze(-1), v, 0.0)

    def likelihood(self, g: Float[Tensor, "k *e"], least_std: float = 1e-3) -> Likelihood:
        """Return how well poses explain the clouds, by a mixture of partners and points that have none.

        The scale of the residuals of partners is estimated with the shares; others are anywhere within the reach.
        Points beyond the reach, or of another inclination, have no partner.
        """
        pairs = self.pairs(g)
        near = self.may_be_partners(g, pairs)
        if not self.surface:
            dim, square = pairs.residual.shape[-1], pairs.residual.square().sum(-1)
            volume = math.pi ** (dim / 2) / math.gamma(dim / 2 + 1) * self.reach**dim
        else:
            one = (pairs.residual * self.normals[1][pairs.second]).sum(-1)
            turned = torch.take_along_dim(self.turned_normals(g), pairs.first.unsqueeze(-1), 1)
            square = torch.maximum(one.square(), (pairs.residual * turned).sum(-1).square())
            dim, volume = 1, 2 * self.reach
        m = len(self.rows[0])
        gains, shares, stds = [], [], []
        for part in (slice(0, m), slice(m, None)):
            gain, share, std = _mixture(square[:, part], near[:, part], dim, volume, self.reach, least_std)
            gains.append(gain)
            shares.append(share)
            stds.append(std)
        std = torch.stack(stds).square().mean(0).sqrt()
        return Likelihood(torch.cat(gains, -1), m, torch.stack(shares, -1), std)

    def contradictions(self, g: Float[Tensor, "k *e"]) -> Float[Tensor, " k"]:
        """Return the number of points beside the other cloud, neither on it nor beyond its end, for each partner."""
        pairs = self.pairs(g, _BESIDE * self.reach)
        distance = pairs.residual.norm(dim=-1)
        across = (pairs.residual * self.normals[1][pairs.second]).sum(-1).abs() if self.surface else distance
        beside = pairs.near & (across > 0.4 * self.reach) & ~self.beyond_edge(pairs)
        partners = pairs.near & (distance < 0.5 * self.reach)
        return beside.sum(-1) / partners.sum(-1).clamp(min=1)


def _mixture(
    square: Float[Tensor, "k q"], near: Bool[Tensor, "k q"], dim: int, volume: float, reach: float, least_std: float
) -> tuple[Float[Tensor, "k q"], Float[Tensor, " k"], Float[Tensor, " k"]]:
    """Return gains, the share of partners and the scale of their residuals, by expectation and maximisation.

    Residuals of partners have Student's distribution: of samples of a bent surface some are much larger than most.
    """
    std, share = square.new_full((len(square), 1), reach / 6), square.new_full((len(square), 1), 0.4)
    power = 0.5 * (_FREEDOM + dim)
    log_factor = math.lgamma(power) - math.lgamma(0.5 * _FREEDOM) - 0.5 * dim * math.log(math.pi * _FREEDOM)
    factor = math.exp(log_factor) * volume
    for _ in range(_EM_STEPS):
        wide = 1.0 + square / (_FREEDOM * std.square())
        ratio = torch.where(near, share * factor * wide**-power / std**dim, 0.0)
        partner = ratio / (ratio + 1.0 - share)
        count = partner.sum(-1, keepdim=True)
        share = (count / square.shape[-1]).clamp(1e-3, 0.999)
        heavy = partner * ((_FREEDOM + dim) / _FREEDOM) / wide
        std = ((heavy * square).sum(-1, keepdim=True) / (dim * count.clamp(min=1e-9))).sqrt().clamp(min=least_std)
    return (ratio + 1.0 - share).log(), share.squeeze(-1), std.squeeze(-1)


def _slope(loss: GemanMcClure, square: Tensor) -> Tensor:
    w = loss.width**2
    return (w / (w + square)).square()


def _nearest(tree: KDTree, points: Float[Tensor, "k m n"], reach: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return indices of nearest points within the reach, zero where there is none, and the mask of those."""
    bound = float(torch.as_tensor(reach).max())
    distance, index = tree.query(np.asarray(points), distance_upper_bound=bound)
    found = torch.from_numpy(distance)
    near = found < (reach if isinstance(reach, float) else reach.unsqueeze(-1))
    return torch.from_numpy(np.where(np.isfinite(distance), index, 0)), near


def spacing(points: Float[Tensor, "m n"], tree: KDTree) -> float:
    """Return the median distance of a point from its nearest neighbour."""
    return float(np.median(tree.query(points.numpy(), k=[2])[0])) if len(points) > 1 else 0.0


def _at_edge(points: Float[Tensor, "m n"], index: Int[Tensor, "m c"]) -> Bool[Tensor, " m"]:
    """Return which points are far from the middle of their neighbours."""
    around = points[index] - points.unsqueeze(1)
    return around.mean(1).norm(dim=-1) > _EDGE_SHIFT * around.norm(dim=-1).amax(-1)


def neighbours(points: Float[Tensor, "m n"], tree: KDTree, number: int = _NUM_NEIGHBOURS) -> Int[Tensor, "m c"]:
    """Return the indices of the nearest other points of each point."""
    number = min(number, len(points) - 1)
    if number < 1:
        return torch.zeros(len(points), 1, dtype=torch.long)
    return torch.from_numpy(tree.query(points.numpy(), k=[*range(2, number + 2)])[1])


def _beyond_edge(r: Float[Tensor, "*b n"], around: Float[Tensor, "*b c n"]) -> Bool[Tensor, "*b"]:
    """Return whether points at r from their nearest one lie beyond the edge of its cloud.

    Args:
        around: differences of the neighbours of the nearest point from it: ahead, along the surface, there are none.
    """
    covariance = matmul(around.mT, around)
    along = matmul(covariance, r.unsqueeze(-1)).squeeze(-1)
    largest = torch.linalg.matrix_norm(covariance)  # about the largest eigenvalue
    length = along.norm(dim=-1)
    unit = along / length.clamp(min=torch.finfo(r.dtype).tiny).unsqueeze(-1)
    ahead = matmul(around, unit.unsqueeze(-1)).squeeze(-1).amax(-1)
    tangent = length > _MIN_TANGENT_SHARE * largest * r.norm(dim=-1)
    return tangent & (ahead < _MIN_AHEAD * (r * unit).sum(-1))
