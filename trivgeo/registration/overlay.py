"""Two clouds laid on each other: what their residuals say of the transformation, and what only the sampling says.

In no order, the residual from a nearest point is a difference of two places of a surface as much as an error. Along the
surface it pulls back to where the points happen to lie, and the curvature with nearest points held fixed is no
information. So the curvature is taken from slopes at a distance, with nearest points found anew, and the variance from
the slopes of the residuals themselves (the sandwich of Huber 1967): of residuals that share a point together, and of
parts of the cloud for a check.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from scipy.spatial import KDTree
from scipy.special import chdtrc, chdtri, fdtri
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo.actions import PointCloud
from trivgeo.inversion.energies.least_squares import GemanMcClure
from trivgeo.registration.partners import Partners
from trivgeo.registration.record import MIN_STEP, UNKNOWN_STD, scaled_eigh

_MIN_WEIGHT = 0.25  # weight of a residual that agrees
_MIN_SLOPE_STDS = 8.0  # least slope at a distance that tells a curvature, in standard deviations of its noise
_MAX_DISPLACEMENT = 0.5  # largest displacement of the points by which slopes are measured, in units of the size
_MIN_RESIDUAL = 1e-7  # least displacement of the points by which slopes are measured
_MAX_PARTS, _MIN_PART_POINTS = 16, 6  # parts of the cloud whose slopes are compared, and points of each
_JUMPING_SLOPES = 0.4  # what counts of a distance from the minimum where nearest points change
_MATCHED_LEVEL = 0.95  # coverage at which a normal region with the covariance is that of Student's distribution
_MAX_STDS_OF_ONE = 5.0  # distance between elements of one mode, in standard deviations
_LEAST_INDEPENDENT = 1e-6  # residual, in units of the size, that may be left by single precision or by the descent
_MAX_LIKENESS_IN_STDS = 4.0  # likeness of residuals of nearest points, in standard deviations of independent ones
_MIN_SHARED_NOISE_STDS = 6.0  # shared curvature in a direction that is known, in standard deviations by noise alone
_MIN_FREEDOM = 3.0  # numbers more than unknowns from which on the error is known well enough
_MIN_PROBABILITY = 1e-4  # probability under which parts of the clouds disagree


class Errors(NamedTuple):
    """Errors of an overlay.

    Attributes:
        covariance: covariance of u in ``exp(u) g``, in the basis of the group.
        reasons: findings against it.
        free: directions in which the clouds say nothing.
        agreement: share of the residuals that agree.
        rms: root mean square of the residuals that agree.
        decrement: slope at the end of the descent, in standard deviations of the slope.
    """

    covariance: Float[Tensor, "d d"]
    reasons: tuple[str, ...]
    free: Float[Tensor, "f d"]
    agreement: float
    rms: float
    decrement: float

    @property
    def is_determined(self) -> bool:
        """True if no direction is free."""
        return len(self.free) == 0


class Overlay:
    """Residuals between moved and fixed points under a robust loss.

    Args:
        moved: points after the transformation g.
        fixed: the fixed points, in the same order unless there are ``partners``.
        loss: the loss of the squares of residuals.
        partners: the clouds in no order, and the element g, for residuals of nearest points both ways. Points that have
            no partner, or lie beyond the end of the other cloud, do not count.
    """

    def __init__(
        self,
        action: PointCloud,
        moved: Float[Tensor, "m n"],
        fixed: Float[Tensor, "k n"],
        loss: GemanMcClure,
        partners: tuple[Partners, Tensor] | None = None,
    ) -> None:
        self.action, self.moved, self.fixed, self.loss = action, moved, fixed, loss
        self.partners = partners
        if partners is None:
            self.first = self.second = torch.arange(len(moved), device=moved.device)
            self.r = moved - fixed
            distances, self.near = self.r.norm(dim=-1), torch.ones_like(self.first, dtype=torch.bool)
            self.inside = self.near
        else:
            clouds, g = partners
            pairs = clouds.pairs(g.unsqueeze(0))
            self.first, self.second = pairs.first[0], pairs.second[0]
            self.near = clouds.may_be_partners(pairs.elements, pairs)[0]
            self.inside = self.near & ~clouds.beyond_edge(pairs)[0]
            distances = pairs.residual[0].norm(dim=-1)
            self.r = clouds.weighed(pairs.residual[0], self.second)
        self.distances = distances
        square = self.r.square().sum(-1)
        slope = torch.func.grad(lambda s: loss(s).sum())
        self.all_weights = slope(square) * self.near
        self.weights = self.all_weights * self.inside
        bend = torch.func.grad(lambda s: slope(s).sum())(square)
        self.steep = self.weights + 2.0 / moved.shape[-1] * square * bend * self.inside

    @property
    def in_order(self) -> bool:
        """True if the points of both clouds are in the same order."""
        return self.partners is None

    def _weighed(self, d: Float[Tensor, "*b n"], second: Int[Tensor, "*b"]) -> Float[Tensor, "*b n"]:
        """Return differences from the fixed points of indices ``second`` as they count."""
        return d if self.partners is None else self.partners[0].weighed(d, second)

    def _jacobian(self, moved: Float[Tensor, "*b m n"]) -> Float[Tensor, "*b m n d"]:
        group = self.action.group
        zero = moved.new_zeros(group.dim)
        found: Tensor = torch.func.jacfwd(lambda v: self.action(group.exp(v), moved))(zero)
        return found

    @cached_property
    def scores(self) -> Float[Tensor, "q d"]:
        """Slopes of the losses of the residuals along the basis, which sum to that of the energy."""
        pull = self._weighed(self.weights.unsqueeze(-1) * self.r, self.second)
        return torch.einsum("qn,qni->qi", pull, self._jacobian(self.moved)[self.first])

    def slopes(self, v: Float[Tensor, "b d"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d"]]:
        """Return slopes of the energy at exp(v) g with nearest points found there and the weights of g: of all
        residuals, and without those that point beyond the edge of a cloud."""
        group = self.action.group
        if self.partners is None:
            moved = self.action(group.exp(v), self.moved.expand(len(v), -1, -1))
            pull = self.weights.unsqueeze(-1) * (moved - self.fixed)
            slopes = torch.einsum("bqn,bqni->bi", pull, self._jacobian(moved))
            return slopes, slopes
        clouds, g = self.partners
        pairs = clouds.pairs(group.compose(group.exp(v), g), math.inf)
        r = clouds.weighed(pairs.residual, pairs.second)
        pull = clouds.weighed(self.all_weights.unsqueeze(-1) * r, pairs.second)
        slopes = torch.einsum("bqn,bqni->bqi", pull, clouds.jacobian(pairs.moved))
        inside = self.inside & ~clouds.beyond_edge(pairs)
        return slopes.sum(1), (slopes * inside.unsqueeze(-1)).sum(1)

    def shared(self, values: Float[Tensor, "q c"]) -> Float[Tensor, "q c"]:
        """Return sums over residuals between the same points: these are correlated by noise.

        Most pairs are counted twice, from each end. Two-way clusters as in Cameron, Gelbach and Miller (2011): the sums
        over residuals of one moved point, and of one fixed point, without those of both.
        """
        if self.in_order:
            return values
        keys = (self.first, self.second, self.first * len(self.fixed) + self.second)
        sums = []
        for key in keys:
            _, cluster = key.unique(return_inverse=True)
            sums.append(torch.zeros_like(values).index_add(0, cluster, values)[cluster])
        return sums[0] + sums[1] - sums[2]

    @property
    def agrees(self) -> Bool[Tensor, " q"]:
        """Mask of the residuals that agree."""
        return self.weights > _MIN_WEIGHT

    @property
    def num_pairs(self) -> float:
        """Number of points with a partner: residuals both ways count once."""
        m = len(self.moved)
        counts = [float(self.agrees[:m].sum()), float(self.agrees[m:].sum())]
        return counts[0] if self.in_order else min(counts)

    def errors(self, rounding: float) -> Errors:
        """Return the errors of the transformation; ``rounding`` is a standard deviation below which all is rounding."""
        n, dim, number = self.moved.shape[-1], self.action.group.dim, self.num_pairs
        square, weights = self.r.square().sum(-1), self.weights
        agrees = self.agrees.to(square.dtype)
        rms = math.sqrt(float((agrees * self.distances.square()).sum()) / max(float(agrees.sum()), 1.0))
        psi = weights.unsqueeze(-1) * self.r
        variance = max(float(psi.square().sum(-1).mean()), float((psi * self.shared(psi)).sum(-1).mean())) / n
        usual = max(float(weights.mean()), torch.finfo(weights.dtype).tiny)  # none if no point has a partner
        variance = max(variance / usual, rounding**2)
        bend = max(float(self.steep.mean()) / usual, 0.1)
        jacobian = self._jacobian(self.moved)[self.first]
        jacobian = self._weighed(jacobian.mT, self.second.unsqueeze(-1).expand(-1, dim)).mT
        fixed_curvature = torch.einsum("qni,q,qnj->ij", jacobian, weights, jacobian)
        values, vectors, seen = scaled_eigh(fixed_curvature)
        directions = vectors[:, seen] / values[seen].sqrt()
        spread, freedom = self._spread(directions, variance, number)
        turns, curvature, known, at_edges = self._curvature(directions, spread, bend, variance)
        basis, middle = directions @ turns, turns.mT @ spread @ turns
        ratio, probability = self._parts(directions, spread)
        reasons: list[str] = []
        if freedom < _MIN_FREEDOM:
            reasons.append(
                f"{n * number:.0f} numbers that agree for {dim} unknown ones: too few are left to tell the error"
            )
        if probability < _MIN_PROBABILITY:
            reasons.append(
                f"parts of the clouds disagree: their pulls vary {ratio:.1f} times as much as independent ones would"
            )
        if self.in_order and self._likeness(psi) > _MAX_LIKENESS_IN_STDS:
            reasons.append("residuals of points beside each other are alike: a part is bent, or errors are shared")
        inverse = torch.linalg.pinv(curvature[known][:, known])
        covariance = basis[:, known] @ inverse @ middle[known][:, known] @ inverse.mT @ basis[:, known].mT
        covariance = covariance * max(ratio, 1.0) ** (probability < _MIN_PROBABILITY) * _student_factor(dim, freedom)
        free = torch.cat([vectors[:, ~seen], basis[:, ~known]], 1).mT
        free = free / free.norm(dim=-1, keepdim=True)
        covariance = covariance + UNKNOWN_STD**2 * free.mT @ free
        if bool((at_edges & ~known).any()):
            reasons.append("only where the clouds end determines the transformation in some direction")
        total = self.scores.sum(0) @ directions
        decrement = (
            math.sqrt(max(float(total @ torch.linalg.pinv(spread, hermitian=True) @ total), 0.0))
            if len(spread)
            else 0.0
        )
        if float((directions @ total).norm()) < MIN_STEP:
            decrement = 0.0
        if not self.in_order:  # slopes jump where nearest points change
            decrement *= _JUMPING_SLOPES
        return Errors(0.5 * (covariance + covariance.mT), tuple(reasons), free, float(agrees.mean()), rms, decrement)

    def displacement(self, errors: Errors) -> float:
        """Return the root mean square displacement of the points within which elements are one pose."""
        jacobian = self._jacobian(self.moved)
        spread = float(torch.einsum("mni,ij,mnj->m", jacobian, errors.covariance, jacobian).mean())
        return max(errors.rms, _MAX_STDS_OF_ONE * math.sqrt(max(spread, 0.0)))

    def _spread(self, directions: Tensor, variance: float, number: float) -> tuple[Float[Tensor, "p p"], float]:
        """Return the covariance of the slope along directions of unit curvature, and its degrees of freedom.

        Residuals alike in all directions give a multiple of the unit matrix; the slopes themselves need no such
        assumption, and are noisier. Their mean with the weight of Ledoit and Wolf (2004).
        """
        n, dim, p = self.moved.shape[-1], self.action.group.dim, directions.shape[1]
        eye = torch.eye(p, dtype=directions.dtype, device=directions.device)
        scale = n * number / max(n * number - dim, 1.0)
        if self.in_order or p == 0:
            return scale * variance * eye, n * number - dim
        scores = self.scores @ directions
        seen = scores.mT @ self.shared(scores)
        seen = 0.5 * (seen + seen.mT)
        noise = p * (p + 1) / max(number, 1.0)
        share = min(1.0, noise / max(float((seen / variance - eye).square().sum()), 1e-12))
        mixed = share * variance * eye + (1.0 - share) * seen
        values, vectors = torch.linalg.eigh(mixed)
        # sums over clusters may be negative by chance
        plain = torch.einsum("qi,qi->i", scores @ vectors, scores @ vectors)
        mixed = vectors @ torch.diag(torch.maximum(values, 0.5 * plain)) @ vectors.mT
        return scale * mixed, share * (n * number - dim) + (1.0 - share) * max(number - dim, 0.0)

    def _curvature(
        self, directions: Tensor, spread: Tensor, bend: float, variance: float
    ) -> tuple[Float[Tensor, "p p"], Float[Tensor, "p p"], Bool[Tensor, " p"], Bool[Tensor, " p"]]:
        """Return combinations of the directions, the curvature along them, and masks: determined, and by edges alone.

        The slope along a direction is measured so far away that its noise does not matter; of points in order it is
        what both clouds have in common.
        """
        p = directions.shape[1]
        none = torch.zeros(p, dtype=torch.bool, device=directions.device)
        turn = torch.eye(p, dtype=spread.dtype, device=spread.device)  # columns: directions yet to be settled
        if p == 0:
            return turn, turn, none, none
        if self.in_order:
            shared, turn, bound = self._shared_curvature(directions, variance)
            return turn, bend * torch.diag(shared), shared > bound, none
        square, total = self.r.square().sum(-1), float(self.weights.sum())
        step = max(math.sqrt(float((self.weights * square).sum())), _MIN_RESIDUAL * math.sqrt(total))
        moves = torch.einsum("mni,ia->mna", self._jacobian(self.moved), directions)
        while True:
            v = step * directions.mT
            both, inner = (bend * (s[:p] - s[p:]) / (2.0 * step) @ directions for s in self.slopes(torch.cat([v, -v])))
            values, turn = torch.linalg.eigh((0.5 * (inner + inner.mT)).nan_to_num(0.0, 0.0, 0.0))
            noise = torch.einsum("ia,ij,ja->a", turn, spread, turn).clamp(min=0.0).sqrt()
            with_edges = torch.einsum("ia,ij,ja->a", turn, both, turn)
            known, seen = (_MIN_SLOPE_STDS * noise <= step * curve for curve in (values, with_edges))
            moved = step * matmul(moves, turn).square().sum(1).mean(0).sqrt()
            if bool(known.all()) or 2.0 * float(moved.max()) > _MAX_DISPLACEMENT:
                return turn, torch.diag(values), known, seen & ~known
            step *= 2.0

    def _likeness(self, psi: Float[Tensor, "m n"]) -> float:
        """Return the sum of the products of residuals of nearest points, in standard deviations of independent ones."""
        if len(psi) < _MIN_PART_POINTS:
            return 0.0
        points = self.fixed.cpu().numpy()
        _, neighbours = KDTree(points).query(points, k=2)
        nearest = torch.as_tensor(neighbours, device=psi.device)[:, 1]
        mutual = float((nearest[nearest] == torch.arange(len(psi), device=psi.device)).sum())
        variance = float(psi.square().mean()) + _LEAST_INDEPENDENT**2
        spread = variance * math.sqrt(psi.shape[1] * (len(psi) + mutual))
        return float((psi * psi[nearest]).sum()) / max(spread, torch.finfo(psi.dtype).tiny)

    def _shared_curvature(
        self, directions: Tensor, variance: float
    ) -> tuple[Float[Tensor, " p"], Float[Tensor, "p p"], Float[Tensor, " p"]]:
        """Return the curvature that both clouds share along directions, these as columns, and how much noise may share.

        Noise moves points to where the transformation moves them further: points on a line get a width, about which
        they could be turned. The product of the fields at both noisy points has the mean of exact ones.

        Args:
            variance: that of residuals, of which the noise of each cloud has a part.
        """
        fields = [self._jacobian(points) @ directions for points in (self.moved, self.fixed)]
        shared = torch.einsum("qna,q,qnb->ab", fields[0], self.weights, fields[1])
        values, turn = torch.linalg.eigh(0.5 * (shared + shared.mT).nan_to_num(0.0, 0.0, 0.0))
        n = self.moved.shape[-1]
        along = torch.eye(n, dtype=turn.dtype, device=turn.device).unsqueeze(1).expand(n, *self.moved.shape)
        bends = torch.stack([torch.func.jvp(self._jacobian, (self.moved,), (axis,))[1] for axis in along])
        bends = bends @ directions @ turn  # [k, q, n, a]
        products = torch.einsum("kqna,lqna->klqa", bends, bends).square().sum((0, 1))
        noise = 0.5 * variance * (self.weights.square().unsqueeze(-1) * products).sum(0).sqrt()
        return values, turn, _MIN_SHARED_NOISE_STDS * noise

    def _parts(self, directions: Tensor, spread: Tensor) -> tuple[float, float]:
        """Return how much more the slopes of parts of the cloud vary than those of independent residuals do, and the
        probability of that."""
        number = min(_MAX_PARTS, 2 ** int(math.log2(max(self.num_pairs / _MIN_PART_POINTS, 1.0))))
        p = directions.shape[1]
        if number < 4 or p == 0:
            return 1.0, 1.0
        part = _parts_of(self.moved, number)[self.first]
        sums = spread.new_zeros(number, p).index_add(0, part, self.scores @ directions)
        sums = sums - sums.mean(0)
        freedom = p * (number - 1)
        statistic = number / (number - 1) * float((sums * torch.linalg.solve(spread, sums.mT).mT).sum())
        ratio = statistic / p
        return ratio, float(chdtrc(freedom, ratio * freedom)) if math.isfinite(ratio) else 0.0


def _parts_of(points: Float[Tensor, "m n"], number: int) -> Int[Tensor, " m"]:
    """Return the part of each point, of a power of two of parts: halves along the widest axis, and so on."""
    part = torch.zeros(len(points), dtype=torch.long, device=points.device)
    for _ in range(round(math.log2(number))):
        label = 2 * part
        for one in part.unique():
            index = (part == one).nonzero().squeeze(-1)
            axis = (points[index].amax(0) - points[index].amin(0)).argmax()
            upper = points[index, axis].argsort()[len(index) // 2 :]
            label[index[upper]] += 1
        part = label
    return part


def _student_factor(dim: int, freedom: float) -> float:
    """Return by how much a covariance grows so that normal regions are those of an estimated variance."""
    freedom = max(freedom, 1.0)
    return float(dim * fdtri(dim, freedom, _MATCHED_LEVEL) / chdtri(dim, 1.0 - _MATCHED_LEVEL))
