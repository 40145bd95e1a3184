"""Laws on groups with exact samples and known moments: independent coordinates in a chart of known Haar measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ive
from torch import Tensor

from tests.helpers import affine_line, seeded
from trivgeo.groups import SE, Affine, HeatSymmetry, LieGroup


@dataclass(frozen=True)
class Normal:
    """A coordinate on the line; its statistics are the standardised coordinate and its square."""

    mean: float
    std: float

    def log_density(self, c: Tensor) -> Tensor:
        return -0.5 * ((c - self.mean) / self.std) ** 2

    def sample(self, number: int, seed: int) -> Tensor:
        return self.mean + self.std * torch.randn(number, generator=seeded(seed), dtype=torch.float64)

    def statistics(self, c: Tensor) -> list[Tensor]:
        z = (c - self.mean) / self.std
        return [z, z**2]

    @property
    def expected(self) -> list[float]:
        return [0.0, 1.0]


@dataclass(frozen=True)
class VonMises:
    """An angle; its statistics are the cosine and sine of the distance to the mean."""

    mean: float
    kappa: float

    def log_density(self, c: Tensor) -> Tensor:
        return self.kappa * (c - self.mean).cos()

    def sample(self, number: int, seed: int) -> Tensor:
        return torch.from_numpy(np.random.default_rng(seed).vonmises(self.mean, self.kappa, number))

    def statistics(self, c: Tensor) -> list[Tensor]:
        return [(c - self.mean).cos(), (c - self.mean).sin()]

    @property
    def expected(self) -> list[float]:
        return [float(ive(1, self.kappa) / ive(0, self.kappa)), 0.0]


@dataclass(frozen=True)
class KnownTarget:
    """A density for left Haar measure under which the coordinates of a chart are independent.

    Attributes:
        group: the group.
        coordinates: the chart, elements to ``[*batch, dim]``.
        element: its inverse.
        log_haar: log of left Haar measure in the chart, ``[*batch, dim]`` to ``[*batch]``.
        laws: of the coordinates, with respect to Lebesgue measure.
    """

    group: LieGroup
    coordinates: Callable[[Tensor], Tensor]
    element: Callable[[Tensor], Tensor]
    log_haar: Callable[[Tensor], Tensor]
    laws: Sequence[Normal | VonMises]

    def energy(self, g: Tensor) -> Tensor:
        c = self.coordinates(g)
        total = self.log_haar(c)
        for law, x in zip(self.laws, c.unbind(-1), strict=True):
            total = total - law.log_density(x)
        return total

    def sample(self, number: int, seed: int) -> Tensor:
        """Independent exact samples."""
        return self.element(torch.stack([law.sample(number, 100 * seed + i) for i, law in enumerate(self.laws)], -1))

    def statistics(self, g: Tensor) -> Tensor:
        """Two of each coordinate, ``[*batch, 2 dim]``."""
        c = self.coordinates(g).unbind(-1)
        return torch.stack([s for law, x in zip(self.laws, c, strict=True) for s in law.statistics(x)], -1)

    @property
    def expected(self) -> Tensor:
        """The means of the statistics."""
        return torch.tensor([e for law in self.laws for e in law.expected], dtype=torch.float64)

    def z_scores(self, g: Tensor) -> Tensor:
        """How many standard errors the means of the statistics of independent samples are off."""
        values = self.statistics(g)
        return (values.mean(0) - self.expected) / (values.std(0) / math.sqrt(len(values)))


def iwasawa(m: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """theta, p, q, x with m = R(theta) diag(e^p, e^q) [[1, x], [0, 1]]."""
    a, b, c, d = m[..., 0, 0], m[..., 0, 1], m[..., 1, 0], m[..., 1, 1]
    square = a * a + c * c
    p = 0.5 * square.log()
    return torch.atan2(c, a), p, (a * d - b * c).log() - p, (a * b + c * d) / square


def from_iwasawa(theta: Tensor, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    c, s, u, v = theta.cos(), theta.sin(), p.exp(), q.exp()
    rows = [[c * u, c * u * x - s * v], [s * u, s * u * x + c * v]]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _line() -> KnownTarget:
    """Coordinates (a, b), left Haar measure e^-a da db."""
    return KnownTarget(
        affine_line(), lambda g: g, lambda c: c, lambda c: -c[..., 0], [Normal(0.3, 0.4), Normal(0.5, 0.5)]
    )


def _affine_plane() -> KnownTarget:
    """Rotation, scales, slant and shift (theta, p, q, x, b); left Haar measure e^-2q."""
    group = Affine(2)

    def coordinates(g: Tensor) -> Tensor:
        m, b = group.split(g)
        return torch.cat([torch.stack(iwasawa(m), -1), b], -1)

    return KnownTarget(
        group,
        coordinates,
        lambda c: group.join(from_iwasawa(*c[..., :4].unbind(-1)), c[..., 4:]),
        lambda c: -2.0 * c[..., 2],
        [VonMises(0.4, 8.0), Normal(0.2, 0.3), Normal(-0.1, 0.3), Normal(0.3, 0.4), Normal(0.5, 0.4), Normal(0.0, 0.4)],
    )


def _heat() -> KnownTarget:
    """SL(2) in (theta, s, x) and H(1) in (q, p, z); Haar measure e^2s."""
    group = HeatSymmetry(0.1, scale=[1.0, 1.0, 1.0, 0.3, 0.3, 1.0])

    def coordinates(g: Tensor) -> Tensor:
        h, n = group.split(g)
        theta, s, _, x = iwasawa(h)
        return torch.cat([torch.stack([theta, s, x], -1), n], -1)

    def element(c: Tensor) -> Tensor:
        theta, s, x = c[..., :3].unbind(-1)
        return group.join(from_iwasawa(theta, s, -s, x), c[..., 3:])

    return KnownTarget(
        group,
        coordinates,
        element,
        lambda c: 2.0 * c[..., 1],
        [
            VonMises(0.3, 8.0),
            Normal(0.1, 0.3),
            Normal(-0.2, 0.4),
            Normal(0.1, 0.12),
            Normal(0.0, 0.12),
            Normal(0.3, 0.4),
        ],
    )


def _rigid() -> KnownTarget:
    """Angle and shift, Haar measure their product."""
    group = SE(2)
    return KnownTarget(
        group,
        lambda g: torch.cat([torch.atan2(g[..., 1, 0], g[..., 0, 0]).unsqueeze(-1), g[..., 2]], -1),
        lambda c: group.join(group.linear.exp(c[..., :1]), c[..., 1:]),
        lambda c: torch.zeros_like(c[..., 0]),
        [VonMises(0.5, 4.0), Normal(0.4, 0.3), Normal(-0.2, 0.3)],
    )


TARGETS: dict[str, KnownTarget] = {
    "Aff(1)": _line(),
    "Aff(2)": _affine_plane(),
    "heat": _heat(),
    "SE(2)": _rigid(),
}
