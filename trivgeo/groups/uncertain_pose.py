"""Elements with covariance: products, inverses and fusions of uncertain poses, on any group."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import einsum, matmul
from trivgeo._numerics import broadcast_shapes, is_abstract
from trivgeo._random import normal
from trivgeo._text import Described
from trivgeo.checks import check_choice, check_count, check_tensor, checked, promoted
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups.group import LieGroup, check_broadcast, is_near, precision_mean

_NUM_DRAWS = 32768  # draws of the covariance of a product by samples
_MAX_ITERATIONS = 100  # iterations of a mean
_MAX_ENTRY_ERROR = 0.01  # relative distance of the entries of a mean from those of the nearest element
_MAX_ASYMMETRY = 1e-4  # difference of mirrored entries over the largest entry, from rounding in single precision

Method = Literal["fourth", "second", "samples"]


@checked
class UncertainPose(Described):
    r"""An uncertain element :math:`\bar g \exp(v)`, with v of mean zero and known covariance; of any group.

    v is left-trivialized: on SE(3) its entries are errors of rotation, then of translation, in the frame of the pose.
    Poses have batch dimensions, which broadcast. Different poses are independent of each other.

    Args:
        group: the group.
        mean: elements ``[*batch, *element_shape]``.
        covariance: covariances of v, ``[*batch, dim, dim]``, symmetric and not negative; zero for a known element.

    Raises:
        ShapeError: an argument has another shape.
        DomainError: a mean is no element, or a covariance is not symmetric, or has a negative eigenvalue.

    Example:
        >>> group = SE(3)
        >>> odometry = UncertainPose(group, group.random(), 1e-3 * torch.eye(6))
        >>> twice = odometry.compose(odometry)  # of two independent steps
        >>> twice.covariance.shape
        torch.Size([6, 6])
    """

    def __init__(self, group: LieGroup, mean: Tensor, covariance: Float[Tensor, "*#batch n n"]) -> None:
        mean, covariance = promoted(mean=group.check_elements(mean, "mean"), covariance=covariance)
        n = group.dim
        if covariance.shape[-2:] != (n, n):
            raise ShapeError(f"covariance: expected [*batch, {n}, {n}], got {list(covariance.shape)}")
        check_broadcast(group.batch_shape(mean), covariance.shape[:-2])
        batch = broadcast_shapes(group.batch_shape(mean), covariance.shape[:-2])
        if not is_abstract(covariance):
            known = covariance.detach().double()
            known = torch.where(torch.isfinite(known).all(-1, keepdim=True).all(-2, keepdim=True), known, 0.0)
            least = torch.linalg.eigvalsh(0.5 * (known + known.mT))
            size = least.abs().amax(-1) * math.sqrt(torch.finfo(covariance.dtype).eps)
            difference = (known - known.mT).abs().amax((-1, -2))
            if bool((difference > _MAX_ASYMMETRY * known.abs().amax((-1, -2))).any()):
                raise DomainError(
                    "covariance: expected symmetric matrices, got entries that differ from their mirror images by "
                    f"{float(difference.max()):.3g}"
                )
            if bool((least[..., 0] < -size).any()):
                raise DomainError(
                    f"covariance: expected no negative eigenvalues, got {float(least[..., 0].min()):.3g} as the least"
                )
            finite = torch.isfinite(mean).flatten(mean.ndim - len(group.element_shape)).all(-1)
            if bool((finite & ~is_near(group, mean, group.project(mean), _MAX_ENTRY_ERROR)).any()):
                raise DomainError(f"mean: expected elements of {group!r}, got others")
        self.group = group
        self.mean = mean.expand(*batch, *group.element_shape)
        self.covariance = covariance.expand(*batch, n, n)

    @staticmethod
    def from_samples(group: LieGroup, g: Tensor, weights: Float[Tensor, "*#batch m"] | None = None) -> UncertainPose:
        r"""Return the mean of samples and their covariance about it, :math:`\sum_i w_i v_i v_i^T / (1 - \sum_i w_i^2)`.

        NaN where the mean does not exist, see `LieGroup.mean`.

        Args:
            group: the group.
            g: samples ``[*batch, m, *element_shape]``, more than one.
            weights: weights that are not negative, of any positive sum; default all equal.

        Raises:
            ShapeError: fewer than two samples, or weights that do not fit them.
            DomainError: a weight is negative, or all are zero.
        """
        g = group.check_elements(g)
        batch = group.batch_shape(g)
        if not batch or batch[-1] < 2:
            raise ShapeError(f"g: expected at least two elements [*batch, m, ...], got batch {list(batch)}")
        if weights is not None and not is_abstract(weights) and not _is_proper(weights):
            raise DomainError("weights: expected none negative, and a positive sum, got others")
        mean = group.mean(g, weights)
        v = group.log(group.compose(group.inverse(mean).unsqueeze(-1 - len(group.element_shape)), g))
        w = torch.ones_like(v[..., 0]) if weights is None else weights.to(v).expand(v.shape[:-1])
        w = w / w.sum(-1, keepdim=True)
        square = einsum("...m,...mi,...mj->...ij", w, v, v)
        return UncertainPose(group, mean, square / (1.0 - w.square().sum(-1))[..., None, None])

    @property
    def batch_shape(self) -> torch.Size:
        """The leading dimensions."""
        return self.covariance.shape[:-2]

    @property
    def std(self) -> Float[Tensor, "*batch n"]:
        """Standard deviations of the entries of v, ``[*batch, dim]``."""
        return self.covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0.0).sqrt()

    def sample(self, *shape: int, generator: torch.Generator | None = None) -> Tensor:
        """Return elements ``[*shape, *batch, *element_shape]``, with normally distributed v.

        Args:
            shape: leading dimensions of the samples.
            generator: random numbers; ``None`` is torch's.
        """
        for size in shape:
            check_count("shape", size, 0)
        return self.group.retract(self.mean, self._vectors(shape, generator))

    def inverse(self) -> UncertainPose:
        """Return the inverse, whose covariance is Ad(g) S Ad(g)^T, exactly."""
        return UncertainPose(self.group, self.group.inverse(self.mean), self._moved(self.group.Ad(self.mean)))

    def compose(
        self, other: UncertainPose | Tensor, method: Method = "fourth", generator: torch.Generator | None = None
    ) -> UncertainPose:
        r"""Return the product of this pose and an independent one, or a known element.

        With :math:`a' = \mathrm{Ad}(\bar h^{-1}) a` the product is :math:`\bar g \bar h \exp(a') \exp(b)`. The
        covariance of the logarithm of the last two is known in powers of their covariances :math:`A'` and B:

        - ``"second"``: :math:`A' + B`, the usual first-order propagation.
        - ``"fourth"``: with all terms of fourth order in a and b, and the shift of the mean of that order (Barfoot and
          Furgale 2014, section III.B, for any group).
        - ``"samples"``: of 32,768 draws, for large covariances.

        Args:
            other: the second factor; an element counts as one without error.
            method: how the covariance is found.
            generator: random numbers of ``"samples"``; ``None`` is torch's.

        Raises:
            ConfigurationError: another method, or a pose of another group.
            ShapeError: the batches do not broadcast.
        """
        check_choice("method", method, ("fourth", "second", "samples"))
        group, other = self.group, self._as_pose(other)
        first, second = promoted(first=self.mean, second=other.mean)
        mean = group.compose(first, second)
        a = self._moved(group.Ad(group.inverse(second)))
        a, b = promoted(a=a, b=other.covariance)
        if method == "samples":
            one = group.identity(dtype=a.dtype, device=a.device)
            pair = (UncertainPose(group, one, x) for x in torch.broadcast_tensors(a, b))
            draws = group.compose(*(factor.sample(_NUM_DRAWS, generator=generator) for factor in pair))
            found = UncertainPose.from_samples(group, draws.movedim(0, max(a.ndim, b.ndim) - 2))
            return UncertainPose(group, group.compose(mean, found.mean), found.covariance)
        covariance = a + b
        if method == "fourth" and not group.algebra.is_abelian:
            shift, more = _fourth_order(group.algebra.structure_constants.to(covariance), a, b)
            mean, covariance = group.retract(mean, shift), covariance + more
        return UncertainPose(group, mean, covariance)

    def relative(
        self, other: UncertainPose | Tensor, method: Method = "fourth", generator: torch.Generator | None = None
    ) -> UncertainPose:
        """Return ``g^-1 h``, the pose h of an independent ``other`` one in the frame of this one.

        Args:
            other: the pose h; an element counts as one without error.
            method: as for `compose`.
            generator: random numbers of ``"samples"``.
        """
        return self.inverse().compose(other, method, generator)

    def fuse(self, *others: UncertainPose) -> UncertainPose:
        r"""Return the estimate from independent measurements of one pose, the maximum of the product of densities.

        The mean minimises :math:`\sum_i v_i^T S_i^{-1} v_i, v_i = \log(g_i^{-1} x)`, by Gauss-Newton steps; the
        covariance is the inverse of :math:`\sum_i J_i^{-T} S_i^{-1} J_i^{-1}, J_i = J_r(v_i)`. NaN where a covariance
        is not positive definite, or the steps do not converge. Measurements that contradict each other are fused, too:
        ``a.relative(b).mahalanobis(group.identity())`` tells how many deviations a and b are apart.

        Args:
            others: further measurements, whose batches broadcast with this one's.

        Raises:
            ConfigurationError: a measurement of another group.
            ShapeError: batches do not broadcast.
        """
        poses, batch = [self, *map(self._as_pose, others)], self.batch_shape
        for pose in poses[1:]:
            check_broadcast(batch, pose.batch_shape)
            batch = broadcast_shapes(batch, pose.batch_shape)
        shape, n = self.group.element_shape, self.group.dim
        dtype = functools.reduce(torch.promote_types, (pose.covariance.dtype for pose in poses))
        g = torch.stack([pose.mean.to(dtype).expand(*batch, *shape) for pose in poses], len(batch))
        covariances = torch.stack([pose.covariance.to(dtype).expand(*batch, n, n) for pose in poses], -3)
        weights = torch.ones_like(covariances[..., 0, 0])
        mean, information = precision_mean(self.group, g, weights, _inverse(covariances), _MAX_ITERATIONS)
        return UncertainPose(self.group, mean, _inverse(information))

    def mahalanobis(self, g: Tensor) -> Float[Tensor, "*batch"]:
        r"""Return :math:`\sqrt{v^T S^{-1} v}` for v = log of the mean's inverse times g.

        Its square has a chi-squared distribution with dim degrees of freedom if g is a draw of the pose. NaN where the
        covariance is not positive definite, or the logarithm does not exist.

        Args:
            g: elements, whose batch broadcasts.
        """
        mean, g = promoted(mean=self.mean, g=self.group.check_elements(g, "g"))
        check_broadcast(self.batch_shape, self.group.batch_shape(g))
        v = self.group.log(self.group.compose(self.group.inverse(mean), g))
        root, failed = torch.linalg.cholesky_ex(self.covariance.to(v))
        white = torch.linalg.solve_triangular(root, v.unsqueeze(-1), upper=False).squeeze(-1)
        return torch.where(failed > 0, torch.nan, white.norm(dim=-1))

    def transformed(self, f: Callable[[Tensor], Tensor], group: LieGroup) -> UncertainPose:
        r"""Return the pose f(g) to first order: its mean is f of the mean, its covariance :math:`D S D^T`.

        D is the derivative of f in trivialized coordinates at the mean.

        Args:
            f: a function from elements of this group to elements of another one, differentiable, each row by itself.
            group: the group of its values.
        """
        value = f(self.mean)

        def change(v: Tensor) -> Tensor:
            return group.log(group.compose(group.inverse(value), f(self.group.retract(self.mean, v))))

        zero = torch.zeros_like(self.covariance[..., 0])
        unit = torch.eye(self.group.dim).to(zero)
        columns = [torch.func.jvp(change, (zero,), (row.expand_as(zero),))[1] for row in unit]
        d = torch.stack(columns, -1)
        return UncertainPose(group, value, matmul(matmul(d, self.covariance), d.mT))

    def _moved(self, matrix: Tensor) -> Tensor:
        matrix, covariance = promoted(matrix=matrix, covariance=self.covariance)
        return matmul(matmul(matrix, covariance), matrix.mT)

    def _vectors(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        found = torch.isfinite(self.covariance).flatten(-2).all(-1)[..., None, None]
        # also of covariances without an inverse
        values, vectors = torch.linalg.eigh(torch.where(found, self.covariance, 0.0))
        root = vectors * values.clamp(min=0.0).sqrt().unsqueeze(-2)
        z = normal((*shape, *self.batch_shape, self.group.dim), self.covariance, generator)
        return matmul(torch.where(found, root, torch.nan), z.unsqueeze(-1)).squeeze(-1)

    def _as_pose(self, other: UncertainPose | Tensor) -> UncertainPose:
        if not isinstance(other, UncertainPose):
            other = self.group.check_elements(check_tensor("other", other), "other")
            n = self.group.dim
            other = UncertainPose(self.group, other, torch.zeros(n, n, dtype=other.dtype, device=other.device))
        if other.group is not self.group and not (
            self.group.is_same_group(other.group) and torch.equal(self.group.scale, other.group.scale)
        ):
            raise ConfigurationError(
                f"other: expected a pose of {self.group!r} in its basis, got one of {other.group!r}"
            )
        check_broadcast(self.batch_shape, other.batch_shape)
        return other


def _is_proper(weights: Tensor) -> bool:
    return bool((weights >= 0.0).all()) and bool((weights.sum(-1) > 0.0).all())


def _inverse(matrix: Tensor) -> Tensor:
    """The inverse of positive definite matrices; NaN of others."""
    root, failed = torch.linalg.cholesky_ex(matrix)
    bad = (failed > 0)[..., None, None]
    unit = torch.eye(matrix.shape[-1]).to(matrix)
    return torch.where(bad, torch.nan, torch.cholesky_inverse(torch.where(bad, unit, root)))


def _fourth_order(c: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and further covariance of log(exp a exp b) in fourth order, for covariances ``a`` and ``b``.

    From :math:`a + b + \tfrac12 [a, b] + \tfrac1{12} ([a, [a, b]] + [b, [b, a]]) - \tfrac1{24} [b, [a, [a, b]]]`, with
    independent normal vectors, of which third moments vanish.
    """
    ad = c.transpose(1, 2)  # ad[i] x = [e_i, x]
    first, second = (einsum("...ij,ipq,jqr->...pr", x, ad, ad) for x in (a, b))  # E ad_a^2, E ad_b^2
    brackets = einsum("...ik,...jl,ijp,klq->...pq", a, b, c, c)  # E [a, b] [a, b]^T
    mixed = matmul(first, b) + matmul(second, a)
    shift = -einsum("...jl,jpq,...ql->...p", b, ad, first) / 24.0
    return shift, 0.25 * brackets + (mixed + mixed.mT) / 12.0
