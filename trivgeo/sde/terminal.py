"""Laws that a flow may end at: they can be drawn from, and their density is known."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._numerics import log_abs_det
from trivgeo._random import normal
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import DirectProduct, LieGroup

__all__ = ["HaarLaw", "NormalLaw", "TerminalLaw", "fit_terminal_law"]

_TRIES = 20_000


class TerminalLaw(nn.Module, ABC):
    """A law on a group. Densities are for left Haar measure: of total mass one on compact groups, else that which is
    Lebesgue measure of the algebra, in the basis of the group, at the identity.
    """

    @abstractmethod
    def sample(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent elements, ``[number, *element_shape]``."""

    @abstractmethod
    def log_density(self, g: Tensor) -> Float[Tensor, "*batch"]:
        """At elements ``[*batch, *element_shape]``; minus infinity outside of the support."""


class HaarLaw(TerminalLaw):
    """The uniform law of a compact group.

    Args:
        group: see `TrivializedSDE`; a compact one.

    Raises:
        ConfigurationError: it is not known to be compact.
    """

    def __init__(self, group: LieGroup) -> None:
        super().__init__()
        if not group.is_compact:
            raise ConfigurationError(f"group: expected a compact one, got {group!r}")
        self._group = group
        self.register_buffer("like", torch.zeros(()), persistent=False)
        self.like: Tensor

    def sample(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        """By `LieGroup.random_haar`."""
        return self._group.random_haar(number, generator=generator, dtype=self.like.dtype, device=self.like.device)

    def log_density(self, g: Tensor) -> Tensor:
        """Zero."""
        return g.new_zeros(self._group.batch_shape(g))


class NormalLaw(TerminalLaw):
    r"""The law of :math:`c \exp v` with v normal, given that v is the logarithm of exp v.

    .. math:: \log p(g) = \log N(v; m, F F^T) - \log |\det J_r(v)| - \log Z, \quad v = \log(c^{-1} g)

    Z is the probability of the condition, counted among 20,000 draws with a fixed seed; one on groups whose exponential
    is one to one. Elements without a logarithm have no density: on groups that have such, keep the law narrow.

    Args:
        group: see `TrivializedSDE`.
        centre: c, ``[*element_shape]``.
        mean: m, ``[dim]``.
        factor: F, lower triangular, ``[dim, dim]``.

    Raises:
        ShapeError: an argument has another shape.
        DomainError: none of the draws is the logarithm of its exponential.
    """

    def __init__(
        self, group: LieGroup, centre: Tensor, mean: Float[Tensor, " n"], factor: Float[Tensor, "n n"]
    ) -> None:
        super().__init__()
        group.check_elements(centre, "centre")
        if mean.shape != (group.dim,):
            raise ShapeError(f"mean: expected an algebra vector [{group.dim}], got {list(mean.shape)}")
        self._group = group
        for name, value in (("centre", centre), ("mean", mean), ("factor", factor)):
            self.register_buffer(name, value.detach().clone())
        self.centre: Tensor
        self.mean: Tensor
        self.factor: Tensor
        self.register_buffer("log_mass", torch.zeros((), dtype=mean.dtype, device=mean.device))
        self.log_mass: Tensor
        generator = torch.Generator(mean.device).manual_seed(0)
        accepted = len(self._accepted(_TRIES, generator))
        if not accepted:
            raise DomainError(
                f"factor: expected a law of vectors that are logarithms of their exponentials, got none in {_TRIES}"
            )
        self.log_mass.fill_(math.log(accepted / _TRIES))

    def sample(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        """By rejection."""
        found = self._accepted(number, generator)
        while len(found) < number:
            found = torch.cat([found, self._accepted(number, generator)])
        return self._group.retract(self.centre, found[:number])

    def log_density(self, g: Tensor) -> Tensor:
        """By the logarithm and its derivative."""
        v = self._group.log(self._group.compose(self._group.inverse(self.centre), g))
        found = torch.isfinite(v).all(-1)
        v = torch.where(found.unsqueeze(-1), v, 0.0)
        z = torch.linalg.solve_triangular(self.factor, (v - self.mean).unsqueeze(-1), upper=False).squeeze(-1)
        log = -0.5 * (z.square().sum(-1) + self._group.dim * math.log(2.0 * math.pi))
        log = log - self.factor.diagonal().log().sum() - self.log_mass
        if not self._group.algebra.is_abelian:
            log = log - log_abs_det(self._group.right_jacobian(v))
        return torch.where(found, log, -torch.inf)

    def _accepted(self, number: int, generator: torch.Generator | None) -> Tensor:
        v = self.mean + normal((number, self._group.dim), self.mean, generator) @ self.factor.mT
        back = self._group.log(self._group.exp(v))
        bound = torch.finfo(v.dtype).eps ** 0.4 * (1.0 + v.abs().amax(-1))
        return v[(back - v).abs().amax(-1) < bound]


class _ProductLaw(TerminalLaw):
    """Independent factors of a product."""

    def __init__(self, group: DirectProduct, laws: list[TerminalLaw]) -> None:
        super().__init__()
        self._group, self.laws = group, nn.ModuleList(laws)

    def sample(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        return self._group.join(*(law.sample(number, generator) for law in self._each))

    def log_density(self, g: Tensor) -> Tensor:
        parts = zip(self._each, self._group.split(g), strict=True)
        return torch.stack([law.log_density(part) for law, part in parts]).sum(0)

    @property
    def _each(self) -> list[TerminalLaw]:
        return [law for law in self.laws if isinstance(law, TerminalLaw)]


def fit_terminal_law(group: LieGroup, samples: Tensor, widen: float = 1.0) -> TerminalLaw:
    """The Haar law of what is compact of a group, and a normal one of the rest with the moments of samples.

    Args:
        group: see `TrivializedSDE`.
        samples: elements ``[m, *element_shape]``; the normal law has their mean and covariance, in logarithms about
            their `group_mean`.
        widen: factor on its standard deviations.

    Raises:
        ShapeError: there are fewer than two samples, or they are no elements.
    """
    group.check_elements(samples, "samples")
    if len(group.batch_shape(samples)) != 1 or len(samples) < 2:
        raise ShapeError(f"samples: expected at least two elements [m, ...], got {list(samples.shape)}")
    if group.is_compact:
        return HaarLaw(group).to(samples)
    if isinstance(group, DirectProduct) and group.scale.ndim == 1:
        scales = group.scale.split([factor.dim for factor in group.factors])
        factors = [factor.with_scale(scale) for factor, scale in zip(group.factors, scales, strict=True)]
        parts = zip(factors, group.split(samples), strict=True)
        return _ProductLaw(group, [fit_terminal_law(factor, part, widen) for factor, part in parts])
    centre, v = group_mean(group, samples)
    # samples may span fewer dimensions than the group has
    covariance = torch.atleast_2d(torch.cov(v.double().mT))
    ridge = 1e-6 * covariance.diagonal().mean().clamp(min=1e-12) * torch.eye(group.dim).to(covariance)
    factor = widen * torch.linalg.cholesky(covariance + ridge)
    return NormalLaw(group, centre, v.mean(0), factor.to(v))


def group_mean(group: LieGroup, samples: Tensor, rounds: int = 5) -> tuple[Tensor, Float[Tensor, "m n"]]:
    r"""The element about which logarithms of samples have mean zero, and these, ``[m, dim]``, where there are any.

    By :math:`c \leftarrow c \exp(\overline{\log(c^{-1} g)})` (Pennec and Arsigny 2013).
    """
    centre = samples[0]
    v = samples.new_zeros(0)
    for _ in range(rounds):
        v = group.log(group.compose(group.inverse(centre), samples))
        v = v[torch.isfinite(v).all(-1)]
        centre = group.retract(centre, v.mean(0))
    v = group.log(group.compose(group.inverse(centre), samples))
    return centre, v[torch.isfinite(v).all(-1)]
