"""The density of a learned posterior: a mixture of its draws, fitted to held-out elements by maximum likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._autocast import einsum
from trivgeo._random import keyed
from trivgeo.groups import LieGroup
from trivgeo.inversion.rows import rows_like
from trivgeo.inversion.sampling.mixture import Charts, StudentMixture

NUM_DEGREES_OF_FREEDOM = 24
"""Degrees of freedom of a component before its calibration: nearly normal."""
_NUM_MODES = 4
_LINK_LENGTH = 3.0  # longest link between draws of one mode, in units of the 0.9 quantile of nearest distances
_MIN_SPREAD = 1e-3  # standard deviation of a mode in each direction, in units of the basis
_MAX_LOGARITHM = 1e8  # entry of the logarithm of a draw about another; squares of larger ones overflow

_DEGREES = (4, 6, 12, 24)  # degrees of freedom that are tried
_NOISE_RATIO = 0.14  # width of the noise expected before any data, in units of the typical width of a component
_PRIOR_STD = 1.0  # standard deviation of the logarithm of each width before any data; for the power twice as large
_MAX_ITERATIONS = 60
_MIN_LOG_MASS_LOSS = 1e-3  # mean of minus the log-mass below which the mass counts as one
_NUM_MASS_DRAWS = 128
_MASS_SCALES = (0.5, 1.0, 2.0, 4.0)  # widths of the draws for the mass, in units of a fit that knows of no mass


def mixture_of_draws(group: LieGroup, elements: Tensor) -> StudentMixture:
    """Return a mixture that covers draws ``[b, K, *element_shape]``: of each mode its mean, covariance and share.

    Draws belong to one mode if a chain of near ones joins them. The four largest modes are kept; draws that are not
    finite, or have no logarithm about the first one, are left out. Draws are compared in the basis of ``group``.
    """
    known = torch.isfinite(elements).flatten(2).all(-1)
    unit = group.identity(dtype=elements.dtype, device=elements.device)
    elements = torch.where(rows_like(known, elements), elements, unit)
    first = known.to(torch.int64).argmax(-1)
    origin = elements[torch.arange(len(elements), device=elements.device), first]
    v = group.log(group.compose(group.inverse(origin).unsqueeze(1), elements))
    known = known & (v.abs().amax(-1) < _MAX_LOGARITHM)  # draws of a network that has learned little may diverge
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
    # the least spread, and as much as keeps large spreads positive definite in their dtype
    size = 100.0 * torch.finfo(spread.dtype).eps * spread.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    spread = spread + (_MIN_SPREAD**2 + size) * torch.eye(n).to(spread)
    shares = torch.where(number > 0.0, number, 0.0)
    empty = (shares.sum(-1, keepdim=True) == 0.0) & (torch.arange(shares.shape[1], device=shares.device) == 0)
    shares = torch.where(empty, 1.0, shares)  # nothing was drawn: a normal distribution about the identity
    spread = torch.where(empty[..., None, None], torch.eye(n).to(spread), spread)
    log_shares = (shares / shares.sum(-1, keepdim=True)).log()
    return StudentMixture(group, centres, torch.linalg.cholesky(spread), log_shares, degrees=NUM_DEGREES_OF_FREEDOM)


def _modes(v: Float[Tensor, "b k n"], known: Tensor) -> Float[Tensor, "b k j"]:
    """Return the mode of each draw as one among zeros, the largest modes first; zeros for draws of smaller ones."""
    number = v.shape[1]
    distance = torch.cdist(v, v)
    both = known.unsqueeze(1) & known.unsqueeze(2)
    distance = torch.where(both, distance, torch.inf)
    other = distance + torch.diag(distance.new_full((number,), torch.inf))
    nearest = other.amin(-1).sort(-1).values
    typical = nearest.gather(1, (0.9 * (known.sum(-1, keepdim=True) - 1)).long().clamp(min=0))
    linked = (distance <= _LINK_LENGTH * typical.unsqueeze(-1)).to(v.dtype)
    for _ in range(max(1, (number - 1).bit_length())):
        linked = (linked @ linked > 0.5).to(v.dtype)
    first = linked.argmax(-1)  # the first draw of the same mode, for each draw
    label = torch.nn.functional.one_hot(first, number).to(v.dtype) * known.unsqueeze(-1)
    largest = label.sum(1).topk(min(_NUM_MODES, number), dim=-1).indices
    return label.gather(2, largest.unsqueeze(1).expand(-1, number, -1))


def _away(group: LieGroup, centres: Tensor, elements: Tensor, member: Tensor) -> Float[Tensor, "b k j n"]:
    """Return logarithms of the draws about the centres of their modes; zero about others."""
    away = group.log(group.compose(group.inverse(centres).unsqueeze(1), elements.unsqueeze(2)))
    used = (member > 0.0).unsqueeze(-1) & torch.isfinite(away).all(-1, keepdim=True)
    return torch.where(used, away, 0.0)


@dataclass(frozen=True)
class DensityFit:
    r"""Changes that turn a mixture of draws into a density that elements follow.

    A component of share :math:`\alpha_j` and covariance :math:`C_j` gets a share proportional to
    :math:`\alpha_j^p` and the covariance :math:`S C_j S + N`, with S and N diagonal.

    Attributes:
        power: p. Above one the largest modes weigh more than their share of the draws.
        spreads: diagonal of S, a factor for each vector of the basis; empty for ones.
        noise: roots of the diagonal of N: standard deviations of an error that the draws do not have; empty for zeros.
        degrees: degrees of freedom of the components.
        scales: factors of the widths of equal parts of every component, see `StudentMixture`.
    """

    power: float = 1.0
    spreads: tuple[float, ...] = ()
    noise: tuple[float, ...] = ()
    degrees: int = NUM_DEGREES_OF_FREEDOM
    scales: tuple[float, ...] = (1.0,)

    @staticmethod
    def of(entry: dict[str, Any]) -> DensityFit:
        """Return a fit of what `as_dict` returned, or of a part of it."""
        plain = {"power": float, "degrees": int}
        parts: dict[str, Any] = {
            name: plain[name](part) if name in plain else tuple(map(float, part)) for name, part in entry.items()
        }
        return DensityFit(**parts)

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as plain types."""
        return {name: list(part) if isinstance(part, tuple) else part for name, part in vars(self).items()}

    def __call__(self, mixture: StudentMixture) -> StudentMixture:
        """Return the changed mixture."""
        n, tensor = mixture.group.dim, mixture.factors.new_tensor
        spreads, noise = tensor(self.spreads or (1.0,) * n), tensor(self.noise) if self.noise else None
        changed = _changed(mixture, tensor(self.power), spreads, noise, self.degrees)
        return replace(changed, scales=self.scales)


def fit_density(mixture: StudentMixture, g: Float[Tensor, "b *element"]) -> DensityFit:
    """Return the changes of a mixture under which held-out elements g, one for each datum, are the most probable.

    Maximises the mean log-density of the elements, together with weak log-normal priors about no change; without data
    of use nothing changes. The density is that over the mass of the mixture, see `StudentMixture.log_mass`: where more
    than a thousandth of it is missing, the mass is estimated by importance sampling, with the same draws throughout.
    """
    with torch.inference_mode(False), torch.enable_grad():
        data = _known(mixture, g)
        if not len(data.charts.vectors):
            return DensityFit()
        fit, best = _best(data, data.widths.new_zeros(2 * mixture.group.dim + 1))
        widest = fit(data.mixture)
        if float(widest.log_mass(_NUM_MASS_DRAWS).mean()) < -_MIN_LOG_MASS_LOSS:
            fit, _ = _best(data._replace(mass=_Mass.of(widest)), best)
        return fit


def _best(data: _Known, start: Tensor) -> tuple[DensityFit, Tensor]:
    """Return the best fit of all degrees of freedom from a start, and the fitted numbers."""
    found = []
    for degrees in _DEGREES:
        loss, start = _minimum(data, degrees, start)
        found.append((loss, degrees, start))
    _, degrees, best = min(found, key=lambda each: each[0])
    power, spreads, noise = _parameters(data, best)
    return DensityFit(float(power), tuple(spreads.tolist()), tuple(noise.tolist()), degrees), best


@dataclass(frozen=True)
class _Mass:
    """Logarithms of elements by which the mass of mixtures is estimated.

    Attributes:
        charts: vectors of the algebra, the same about every centre, with volumes of the algebra.
        principal: mask of the vectors that are logarithms, ``[b, m]``; others are zero.
        log_densities: log-densities of the wider mixtures that they were drawn from, ``[b, m]``.
    """

    charts: Charts
    principal: Bool[Tensor, "b m"]
    log_densities: Float[Tensor, "b m"]

    @staticmethod
    def of(mixture: StudentMixture) -> _Mass:
        """Draw from a widened mixture; whether a vector is a logarithm does not depend on the centre."""
        group = mixture.group
        unit = group.identity(dtype=mixture.factors.dtype, device=mixture.factors.device)
        wide = replace(mixture, centres=unit.expand_as(mixture.centres), scales=_MASS_SCALES, degrees=min(_DEGREES))
        elements, principal = wide.sample(_NUM_MASS_DRAWS, keyed(0, device=unit.device))
        v = group.log(elements).unsqueeze(2).expand(-1, -1, mixture.log_shares.shape[1], -1)
        charts = Charts(v, v.new_zeros(v.shape[:-1]))
        return _Mass(charts, principal, wide.log_densities(charts).logsumexp(-1))

    def __call__(self, mixture: StudentMixture) -> Float[Tensor, " b"]:
        """Return the log-mass of a mixture."""
        ratios = mixture.log_densities(self.charts).logsumexp(-1) - self.log_densities
        return torch.where(self.principal, ratios, -torch.inf).logsumexp(-1) - math.log(ratios.shape[1])


class _Known(NamedTuple):
    """Elements in the charts of a mixture, in double precision.

    Attributes:
        charts: coordinates of one element of each datum.
        widths: typical standard deviations along the basis, ``[n]``.
        mass: estimate of log-masses; ``None`` where they are zero.
    """

    mixture: StudentMixture
    charts: Charts
    widths: Tensor
    mass: _Mass | None = None


def _known(mixture: StudentMixture, g: Tensor) -> _Known:
    """Return the data for which an element has a density."""
    charts = mixture.charts(g.unsqueeze(1))
    near = (torch.isfinite(charts.log_volumes[:, 0]) & torch.isfinite(mixture.log_shares)).any(-1)
    sizes = mixture.factors.square().sum(-1).sqrt()
    largest = sizes[torch.arange(len(sizes), device=sizes.device), mixture.log_shares.argmax(-1)]
    widths = largest.median(0).values if len(largest) else largest.new_ones(mixture.group.dim)

    def plain(tensor: Tensor) -> Tensor:
        return tensor[near].detach().clone().double()

    return _Known(
        StudentMixture(mixture.group, plain(mixture.centres), plain(mixture.factors), plain(mixture.log_shares)),
        Charts(plain(charts.vectors), plain(charts.log_volumes)),
        widths.detach().clone().double(),
    )


def _parameters(data: _Known, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return power, spreads and noise for the fitted numbers p."""
    n = len(data.widths)
    return p[0].exp(), p[1 : n + 1].exp(), _NOISE_RATIO * data.widths * p[n + 1 :].exp()


def _minimum(data: _Known, degrees: int, start: Tensor) -> tuple[float, Tensor]:
    """Return the least of minus the mean log-density with the priors, and where it is found from a start."""
    p = start.clone().requires_grad_()
    std = torch.full_like(start, _PRIOR_STD)
    std[0] = 2.0 * _PRIOR_STD
    optimiser = torch.optim.LBFGS([p], max_iter=_MAX_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        prior = 0.5 * (p / std).square().sum() / len(data.charts.vectors)
        changed = _changed(data.mixture, *_parameters(data, p), degrees)
        value = changed.log_densities(data.charts).logsumexp(-1)
        return prior - (value if data.mass is None else value - data.mass(changed)).mean()

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser.step(closure)
    end = p.detach()
    value = float(loss().detach())
    return (value, end) if math.isfinite(value) and bool(torch.isfinite(end).all()) else (math.inf, start)


def _changed(
    mixture: StudentMixture, power: Tensor, spreads: Tensor, noise: Tensor | None, degrees: int
) -> StudentMixture:
    """Return the mixture with changed shares, factors and degrees of freedom, see `DensityFit`."""
    used = torch.isfinite(mixture.log_shares)
    raised = power * torch.where(used, mixture.log_shares, 0.0)  # minus infinity would spoil the gradient of the power
    shares = raised.masked_fill(~used, -torch.inf).log_softmax(-1)
    factors = mixture.factors * spreads.unsqueeze(-1)
    if noise is not None:
        factors = _with_noise(factors, noise)
    return replace(mixture, factors=factors, log_shares=shares, degrees=degrees)


def _with_noise(factors: Float[Tensor, "b j n n"], noise: Float[Tensor, " n"]) -> Float[Tensor, "b j n n"]:
    """Return triangular factors of covariances with independent noise added; by QR, so no square is rounded."""
    both = torch.cat([factors, torch.diag(noise).expand_as(factors)], -1)
    upper = torch.linalg.qr(both.mT).R
    return einsum("bjkl,bjk->bjlk", upper, upper.diagonal(dim1=-2, dim2=-1).sign())
