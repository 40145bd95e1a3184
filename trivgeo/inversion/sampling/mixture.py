"""Mixtures of Student distributions on a group, one for each datum: proposals with samples and densities."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from einops import repeat
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._autocast import einsum, matmul
from trivgeo._random import normal, same_streams, uniform
from trivgeo._text import Described
from trivgeo.groups import LieGroup
from trivgeo.inversion.curvature import safe_cholesky
from trivgeo.inversion.rows import where_rows
from trivgeo.sde.noise.kernel import is_principal, log_about
from trivgeo.sde.resampling import normalized_weights, systematic_indices, take_rows

# Student distributions of six degrees have heavier tails than posteriors with Gaussian wells, and cost a tenth of the
# draws
_DEGREES_OF_FREEDOM = 6
_DRAWS_PER_PRINCIPAL = 2  # draws for each one that is to be principal


@dataclass(frozen=True, repr=False)
class Charts(Described):
    r"""Elements in the exponential coordinates about the centres of a mixture.

    Attributes:
        vectors: :math:`v = \log(c_j^{-1} g_i)`, ``[b, m, j, n]``; zero where there is none.
        log_volumes: :math:`\log |\det J_r(v)|`, ``[b, m, j]``; infinite where there is no logarithm.
    """

    vectors: Tensor
    log_volumes: Tensor


@dataclass(frozen=True, repr=False)
class StudentMixture(Described):
    r"""For each of b data a mixture of J distributions of :math:`c_j \exp v`, v Student.

    .. math:: q(g) = \sum_j \alpha_j \, t(v_j; 0, F_j F_j^T) \, / \, |\det J_r(v_j)|, \quad v_j = \log(c_j^{-1} g)

    the density for left Haar measure that is Lebesgue measure of the algebra at the identity. A vector that is not the
    logarithm of its exponential counts as a draw of density zero, so that the total mass of q is the share of the
    others.

    Attributes:
        centres: ``[b, J, *element_shape]``.
        factors: F, lower triangular ``[b, J, n, n]``.
        log_shares: logarithms of the shares of the components, ``[b, J]``, minus infinity for those not used.
        scales: every component is a mixture, in equal parts, of ones whose factors are multiplied by these.
        degrees: degrees of freedom of the Student distributions.
    """

    group: LieGroup
    centres: Tensor
    factors: Float[Tensor, "b j n n"]
    log_shares: Float[Tensor, "b j"]
    scales: tuple[float, ...] = (1.0,)
    degrees: int = _DEGREES_OF_FREEDOM

    def sample(self, num_samples: int, generator: torch.Generator | None) -> tuple[Tensor, Bool[Tensor, "b m"]]:
        """Draw elements for each datum; components have their shares, up to rounding.

        Returns:
            Elements ``[b, m, *element_shape]``, and the mask of the principal ones, whose drawn vector is the logarithm
            of its exponential. Other draws count as draws of density zero.
        """
        n, batch = self.group.dim, len(self.log_shares)
        label = systematic_indices(self.log_shares, generator, num_samples)
        parts = normal((batch, num_samples, n + self.degrees), self.factors, generator)
        length = parts[..., n:].square().mean(-1, keepdim=True).sqrt()  # root of chi squared over its degrees
        factor = self.factors.gather(1, repeat(label, "b m -> b m n k", n=n, k=n))
        scale = self.factors.new_tensor(self.scales).repeat(-(-num_samples // len(self.scales)))[:num_samples]
        v = matmul(factor, (scale.unsqueeze(-1) * parts[..., :n] / length).unsqueeze(-1)).squeeze(-1)
        moved = self.group.exp(v)
        elements = self.group.compose(take_rows(self.centres, label), moved)
        finite = torch.isfinite(elements).flatten(2).all(-1)
        kept = finite & is_principal(v, self.group.log(moved))
        unit = self.group.identity(dtype=v.dtype, device=v.device)
        return where_rows(kept, elements, unit), kept

    def sample_principal(self, num_samples: int, generator: torch.Generator | None) -> Tensor:
        """Draw principal elements of the mixture over its mass, ``[b, num_samples, *element_shape]``.

        Where fewer than half of all draws are principal, some may return twice.
        """
        elements, principal = self.sample(_DRAWS_PER_PRINCIPAL * num_samples, generator)
        place = uniform(principal.shape, self.factors, generator)  # draws come in the order of the components
        order = torch.where(principal, place, torch.inf).argsort(-1)
        count = principal.sum(-1, keepdim=True).clamp(min=1)
        return take_rows(elements, order.gather(1, torch.arange(num_samples, device=order.device) % count))

    def charts(self, g: Tensor) -> Charts:
        """Return the coordinates of elements g, ``[b, m, *element_shape]``, about every centre."""
        v, volume = log_about(self.group, self.centres.unsqueeze(1), g.unsqueeze(2))
        return Charts(v, torch.where(torch.isfinite(volume), volume, torch.inf))

    def log_densities(self, charts: Charts) -> Float[Tensor, "b m j"]:
        """Return the log-density of each component, with its share, at elements in `charts`."""
        n, dof = self.group.dim, self.degrees
        squares = self._squares(charts)
        size = self.factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = math.lgamma(0.5 * (dof + n)) - math.lgamma(0.5 * dof) - 0.5 * n * math.log(math.pi * dof)
        radial = torch.stack(
            [-0.5 * (dof + n) * torch.log1p(squares / (s * s * dof)) - n * math.log(s) for s in self.scales]
        ).logsumexp(0) - math.log(len(self.scales))
        return radial + (constant - size + self.log_shares).unsqueeze(1) - charts.log_volumes

    def log_density(self, g: Tensor) -> Float[Tensor, "b m"]:
        """Return the log-density at elements g, ``[b, m]``."""
        return self.log_densities(self.charts(g)).logsumexp(-1)

    def log_mass(self, num_samples: int = 1024) -> Float[Tensor, " b"]:
        """Return the log of the total mass: of the share of principal ones among draws, the same for every datum."""
        _, principal = self.sample(num_samples, same_streams(len(self.factors), self.factors, 0))
        return principal.to(self.log_shares).mean(-1).clamp(min=1.0 / num_samples).log()

    def with_components(
        self, centres: Tensor, factors: Tensor, shares: Float[Tensor, "b k"], *, first: bool = False
    ) -> StudentMixture:
        """Return the mixture with further components; those of this one share what is left.

        Args:
            shares: shares of the whole, with a sum below one.
            first: put them before those of this mixture, not behind.
        """
        rest = self.log_shares + torch.log1p(-shares.sum(-1, keepdim=True))

        def joined(mine: Tensor, further: Tensor) -> Tensor:
            return torch.cat([further, mine] if first else [mine, further], 1)

        return replace(
            self,
            centres=joined(self.centres, centres),
            factors=joined(self.factors, factors),
            log_shares=joined(rest, shares.log()),
        )

    def in_basis_of(self, group: LieGroup) -> StudentMixture:
        """Return the same mixture in the coordinates of another basis of the group."""
        unit = torch.eye(group.dim).to(self.factors)
        change = group.basis.from_natural(self.group.basis.to_natural(unit)).mT  # acts on columns
        covariance = matmul(matmul(change, self.factors), matmul(self.factors.mT, change.mT))
        return replace(self, group=group, factors=torch.linalg.cholesky(covariance))

    @cached_property
    def _inverse_factors(self) -> Tensor:
        unit = torch.eye(self.group.dim).to(self.factors)
        return torch.linalg.solve_triangular(self.factors, unit, upper=False)

    def _squares(self, charts: Charts) -> Float[Tensor, "b m j"]:
        return einsum("bjkl,bmjl->bmjk", self._inverse_factors, charts.vectors).square().sum(-1)

    def refitted(
        self, charts: Charts, densities: Float[Tensor, "b m j"], log_weights: Float[Tensor, "b m"], floor: float
    ) -> StudentMixture:
        """Return the mixture after a step of expectation and maximisation (Cappe et al. 2008, section 5).

        Args:
            densities: `log_densities` there.
            log_weights: their importance weights, unnormalised; minus infinity for none.
            floor: least share of a component that is in use.
        """
        n, dof = self.group.dim, self.degrees
        share = normalized_weights(densities)  # the share of each component in each element
        weight = normalized_weights(log_weights).unsqueeze(-1) * share
        tail = (dof + n) / (dof + self._squares(charts))  # weight of an element in a Student distribution
        mass, soft = weight.sum(1), weight * tail
        mean = einsum("bmj,bmjk->bjk", soft, charts.vectors) / soft.sum(1).clamp(min=1e-30).unsqueeze(-1)
        off = charts.vectors - mean.unsqueeze(1)
        number = mass.square() / weight.square().sum(1).clamp(min=1e-30)  # effective number of elements
        spread = einsum("bmj,bmjk,bmjl->bjkl", soft, off, off) / mass.clamp(min=1e-30)[..., None, None]
        covariance = matmul(self.factors, self.factors.mT)
        trust = (number / (number + 2.0 * n + 2.0))[..., None, None]
        factors, positive = safe_cholesky(trust * spread + (1.0 - trust) * covariance)
        usable = positive & torch.isfinite(mean).all(-1)
        used = torch.isfinite(self.log_shares)
        mass = torch.where(used, mass.clamp(min=floor), 0.0)
        return replace(
            self,
            centres=self.group.retract(self.centres, where_rows(usable, mean, 0.0)),
            factors=where_rows(usable, factors, self.factors),
            log_shares=(mass / mass.sum(-1, keepdim=True)).log(),
        )


def reach_of_normal(n: int) -> float:
    """Return the squared whitened length that almost no vector of a normal distribution in n dimensions exceeds."""
    return n + 4.0 * math.sqrt(2.0 * n) + 4.0
