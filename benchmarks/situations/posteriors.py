"""Posteriors that are known: `PosteriorSampler` beside exact draws of densities in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from benchmarks.posterior import LeftTranslation
from benchmarks.situations.record import Kind, Outcome, Situation
from trivgeo.generative.distributions import NormalDistribution
from trivgeo.groups import SE, SO, Affine, E, HeatSymmetry, LieGroup, O, Similarity, Translation
from trivgeo.inversion import PosteriorSampler
from trivgeo.sde.noise.kernel import log_volume

NUM_EXACT = 20_000
"""Exact draws, by which probabilities are known to .0035."""
NUM_COVERED = 2000
"""Exact draws, of which a share lies in regions of the sample."""
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Probabilities of the events whose share of the sample is compared with the truth."""
MAX_OFF, MAX_LOG_OFF = 0.05, 0.15
"""Errors of probabilities and of a log-evidence that matter to nobody."""
MAX_STANDARD_ERRORS = 4.0
LEAST_MODE = 0.02
"""Weight of a mode that a sample must have."""
F64 = torch.float64
VOLUMES = {"SO(2)": 2 * math.pi, "O(2)": 4 * math.pi, "SO(3)": 8 * math.pi**2, "O(3)": 16 * math.pi**2}
"""Volumes of compact groups, in angles."""


@dataclass(frozen=True)
class Target:
    """A density on a group, for left Haar measure that is Lebesgue measure of the algebra at the identity.

    Attributes:
        group: the group.
        log_density: elements to logarithms of densities, which have a total of one unless there are no ``draws``.
        draws: (count, generator) to exact draws; ``None`` where the total is infinite or zero.
        coordinates: elements to numbers ``[*batch, k]``.
        modes: elements to the number of the mode to which each belongs.
    """

    group: LieGroup
    log_density: Callable[[Tensor], Tensor]
    draws: Callable[[int, torch.Generator], Tensor] | None
    coordinates: Callable[[Tensor], Tensor]
    modes: Callable[[Tensor], Tensor] = lambda g: torch.zeros(())


def judge(
    target: Target,
    seeds: Sequence[int],
    *,
    likelihood: Target | None = None,
    log_evidence: float = 0.0,
    offset: float = 0.3,
    dtype: torch.dtype = F64,
    **settings: Any,
) -> list[Outcome]:
    """Sample the posteriors of data that are elements near the identity, each seed one; compare with exact draws.

    Args:
        likelihood: what the sampler is given; default: the target.
        log_evidence: logarithm of the total of what is sampled.
        offset: standard deviation of the elements, which translate the density.
    """
    given = target if likelihood is None else likelihood
    group = target.group
    v = torch.stack([torch.randn(group.dim, generator=seeded(7 + seed), dtype=F64) for seed in seeds])
    data = group.exp(offset * v)
    sampler = PosteriorSampler(
        LeftTranslation(group), lambda y: -given.log_density(group.inverse(y.to(F64))).to(y.dtype), **settings
    )
    sample = sampler(data.to(dtype), generator=seeded(seeds[0]))
    trusted = sample.trusted
    if target.draws is None:
        return [Outcome(bool(t), True) for t in trusted]
    g = group.compose(group.inverse(data).unsqueeze(1), sample.elements.to(F64))
    weights, exact = sample.weights.to(F64), target.draws(NUM_EXACT, seeded(1))
    inside, truth = events(target, g, exact)
    found = torch.einsum("bk,bke->be", weights, inside)
    size = sample.effective_sample_size.to(F64).clamp(min=1.0).unsqueeze(-1)
    likely = (size * found + 2.0) / (size + 4.0)  # as the library's own standard errors of modes
    variance = torch.einsum("bk,bke->be", weights.square(), (inside - found.unsqueeze(1)).square())
    error = torch.maximum(variance, likely * (1 - likely) / (size + 4.0)).sqrt()
    evidence = sample.log_evidence.to(F64) + math.log(VOLUMES.get(repr(group), 1.0)) - log_evidence
    off = torch.cat([found - truth, evidence.unsqueeze(-1)], -1)
    error = torch.cat([error, getattr(sample, "log_evidence_error", size.rsqrt().squeeze(-1)).unsqueeze(-1)], -1)
    matters = torch.full_like(off, MAX_OFF)
    matters[:, -1] = MAX_LOG_OFF
    wrong = (off.abs() > matters) & (off.abs() > MAX_STANDARD_ERRORS * error)
    # errors of one sign in all trusted runs are no chance, though each may be
    mean, own = off[trusted].mean(0), error[trusted].square().mean(0).sqrt() / max(1, int(trusted.sum())) ** 0.5
    biased = (mean.abs() > matters[0]) & (mean.abs() > MAX_STANDARD_ERRORS * own)
    wrong |= biased & (off * mean > 0) & (off.abs() > matters)
    missed = (truth > LEAST_MODE) & (found < 0.1 * truth)
    missed[:, : target.coordinates(exact).shape[-1] * len(LEVELS)] = False  # those of modes alone
    wrong = wrong.any(-1) | missed.any(-1) | ~torch.isfinite(off).all(-1)
    # exact draws, whose densities say in which regions of highest density they lie
    some = exact[:NUM_COVERED]
    density, own = target.log_density(g), target.log_density(some)
    mass = (weights.unsqueeze(1) * (density.unsqueeze(1) > own[:, None])).sum(-1)  # [b, draws]
    shares = [(mass <= level).to(F64).mean(-1).tolist() for level in (0.5, 0.9)]
    return [Outcome(*row) for row in zip(trusted.tolist(), wrong.tolist(), *shares, strict=True)]


def events(target: Target, g: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
    """Whether elements are below quantiles of coordinates and in modes, ``[*batch, e]``, and shares of exact draws."""
    known = target.coordinates(exact)
    levels = known.nanquantile(torch.tensor(LEVELS, dtype=F64), 0)  # [levels, k]
    number = int(target.modes(exact).max()) + 1

    def each(g: Tensor) -> Tensor:
        below = (target.coordinates(g).unsqueeze(-2) < levels).flatten(-2)
        if number == 1:
            return below.to(F64)
        return torch.cat([below, target.modes(g).unsqueeze(-1) == torch.arange(number)], -1).to(F64)

    return each(g), each(exact).mean(0)


def seeded(seed: int) -> torch.Generator:
    """A generator."""
    return torch.Generator().manual_seed(seed)


# -- densities ---------------------------------------------------------------------------------------------------------


def wells(
    group: LieGroup,
    centres: Sequence[Sequence[float]] | Tensor,
    widths: Sequence[float] | Tensor,
    weights: Sequence[float] | None = None,
    freedom: float | None = None,
) -> Target:
    """Normal or Student distributions in exponential coordinates about centres.

    Args:
        centres: vectors of the algebra, or elements.
        widths: standard deviations, one of each well, or factors ``[m, n, n]``.
        freedom: degrees of freedom of Student's distribution.
    """
    places = centres if isinstance(centres, Tensor) else group.exp(torch.tensor(centres, dtype=F64))
    m, n = len(places), group.dim
    size = torch.as_tensor(widths, dtype=F64)
    factor = size if size.ndim == 3 else size[:, None, None] * torch.eye(n, dtype=F64)
    inverse, scale = torch.linalg.inv(factor), torch.linalg.slogdet(factor)[1]
    share = torch.full((m,), 1.0 / m, dtype=F64) if weights is None else torch.tensor(weights, dtype=F64)

    def log_parts(g: Tensor) -> Tensor:
        place = g.unsqueeze(g.ndim - len(group.element_shape))
        v = group.log(group.compose(group.inverse(places), place))
        square = torch.einsum("mij,...mj->...mi", inverse, v).square().sum(-1)
        if freedom is None:
            radial = -0.5 * square - 0.5 * n * math.log(2 * math.pi)
        else:
            constant = math.lgamma((freedom + n) / 2) - math.lgamma(freedom / 2) - 0.5 * n * math.log(freedom * math.pi)
            radial = constant - 0.5 * (freedom + n) * torch.log1p(square / freedom)
        return (radial - scale + share.log() - log_volume(group, v)).nan_to_num(nan=-torch.inf, neginf=-torch.inf)

    def draws(count: int, generator: torch.Generator) -> Tensor:
        label = torch.multinomial(share, count, True, generator=generator)
        z = torch.randn(count, n, generator=generator, dtype=F64)
        if freedom is not None:
            gamma = torch._standard_gamma(torch.full((count, 1), freedom / 2, dtype=F64), generator=generator)
            z = z * (freedom / 2 / gamma).sqrt()
        return group.compose(places[label], group.exp(torch.einsum("kij,kj->ki", factor[label], z)))

    def coordinates(g: Tensor) -> Tensor:
        return group.log(group.compose(group.inverse(places[0]), g))

    return Target(group, lambda g: log_parts(g).logsumexp(-1), draws, coordinates, lambda g: log_parts(g).argmax(-1))


@dataclass(frozen=True)
class Chart:
    """Coordinates of a group, the first ``angles`` of which are angles.

    Attributes:
        element: coordinates to elements.
        coordinates: elements to coordinates.
        log_haar: logarithm of the density of left Haar measure.
    """

    group: LieGroup
    element: Callable[[Tensor], Tensor]
    coordinates: Callable[[Tensor], Tensor]
    log_haar: Callable[[Tensor], Tensor] = lambda u: u.new_zeros(u.shape[:-1])
    angles: int = 0


def turned(angle: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """Matrices of rotations of the plane."""
    c, s = scale * angle.cos(), scale * angle.sin()
    return torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)


def angle_of(g: Tensor) -> Tensor:
    """Angles of matrices that begin with a rotation and a scale."""
    return torch.atan2(g[..., 1, 0], g[..., 0, 0])


def line(n: int) -> Chart:
    """Coordinates of vectors."""
    return Chart(Translation(n), lambda u: u, lambda g: g)


CIRCLE = Chart(SO(2), lambda u: turned(u[..., 0]), lambda g: angle_of(g).unsqueeze(-1), angles=1)
PLANE = Chart(
    SE(2),
    lambda u: torch.cat([turned(u[..., 0]), u[..., 1:, None]], -1),
    lambda g: torch.cat([angle_of(g).unsqueeze(-1), g[..., 2]], -1),
    angles=1,
)
SCALED = Chart(
    Similarity(2),
    lambda u: torch.cat([turned(u[..., 0], u[..., 1].exp()), u[..., 2:, None]], -1),
    lambda g: torch.cat([angle_of(g).unsqueeze(-1), g[..., :2, 0].norm(dim=-1, keepdim=True).log(), g[..., 2]], -1),
    lambda u: -2.0 * u[..., 1],
    angles=1,
)


Step = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""Mean and standard deviation of a coordinate, given those before."""


def chain(chart: Chart, *steps: Step) -> Target:
    """Coordinates that are normal given those before, wound about the circle where they are angles."""

    def log_one(u: Tensor) -> Tensor:
        total = -chart.log_haar(u)
        for i, (mean, deviation) in enumerate(steps):
            m, s = mean(u[..., :i]), deviation(u[..., :i])
            total = total - 0.5 * ((u[..., i] - m) / s).square() - s.log() - 0.5 * math.log(2 * math.pi)
        return total

    def log_density(g: Tensor) -> Tensor:
        u = chart.coordinates(g)
        if not chart.angles:
            return log_one(u)
        turn = torch.zeros(u.shape[-1], dtype=u.dtype)
        turn[0] = 2 * math.pi
        return torch.stack([log_one(u + k * turn) for k in (-2, -1, 0, 1, 2)]).logsumexp(0)

    def draws(count: int, generator: torch.Generator) -> Tensor:
        u = torch.zeros(count, 0, dtype=F64)
        for mean, deviation in steps:
            z = torch.randn(count, generator=generator, dtype=F64)
            u = torch.cat([u, (mean(u) + deviation(u) * z).unsqueeze(-1)], -1)
        return chart.element(u)

    return Target(chart.group, log_density, draws, chart.coordinates)


def normal(mean: float | Callable[[Tensor], Tensor], deviation: float | Callable[[Tensor], Tensor]) -> Step:
    """A step, of numbers or functions of the coordinates before."""

    def function(value: float | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return value if callable(value) else lambda u: u.new_full(u.shape[:-1], value)

    return function(mean), function(deviation)


def curved(chart: Chart = PLANE, bend: float = 1.0, width: float = 0.1, *more: Step) -> Target:
    """One connected curved mode: a parabola, and a wave over it."""
    wave = normal(lambda u: (2.0 * u[..., 1]).sin(), 1.5 * width)
    return chain(chart, normal(0.4, 0.7), normal(lambda u: bend * u[..., 0].square(), width), wave, *more)


def drawn(
    chart: Chart, log_density: Callable[[Tensor], Tensor], draws: Callable[[int, torch.Generator], Tensor]
) -> Target:
    """A density of coordinates, and its draws."""
    return Target(
        chart.group,
        lambda g: log_density(chart.coordinates(g)) - chart.log_haar(chart.coordinates(g)),
        lambda count, generator: chart.element(draws(count, generator)),
        chart.coordinates,
    )


def uniform(*low_high: tuple[float, float]) -> Target:
    """The uniform density on a box."""
    low, high = (torch.tensor(ends, dtype=F64) for ends in zip(*low_high, strict=True))

    def log_density(u: Tensor) -> Tensor:
        inside = ((u > low) & (u < high)).all(-1)
        return torch.where(inside, -(high - low).log().sum(), -torch.inf)

    def draws(count: int, generator: torch.Generator) -> Tensor:
        return low + (high - low) * torch.rand(count, len(low), generator=generator, dtype=F64)

    return drawn(line(len(low)), log_density, draws)


def ring(radius: float, width: float) -> Target:
    """A density on the plane about a circle: normal in the radius, if the width is small."""

    def log_density(u: Tensor) -> Tensor:
        r = u.norm(dim=-1)
        radial = -0.5 * ((r - radius) / width).square() - math.log(width * math.sqrt(2 * math.pi))
        return radial - (2 * math.pi * r).log()

    def draws(count: int, generator: torch.Generator) -> Tensor:
        r = radius + width * torch.randn(count, generator=generator, dtype=F64)
        angle = 2 * math.pi * torch.rand(count, generator=generator, dtype=F64)
        return r.unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], -1)

    return drawn(line(2), log_density, draws)


def from_uniform(
    chart: Chart, log_density: Callable[[Tensor], Tensor], inverse_cdf: Callable[[Tensor], Tensor]
) -> Target:
    """A density of one coordinate, whose quantiles are known."""
    return drawn(
        chart,
        lambda u: log_density(u[..., 0]),
        lambda count, generator: inverse_cdf(torch.rand(count, 1, generator=generator, dtype=F64)),
    )


def _laplace(level: Tensor) -> Tensor:
    return -level.sign() * torch.log1p(-2 * level.abs())


def improper(chart: Chart, energy: Callable[[Tensor], Tensor]) -> Target:
    """An energy of coordinates whose exponential has no finite total, or none at all."""
    return Target(chart.group, lambda g: -energy(chart.coordinates(g)), None, chart.coordinates)


def poses(name: str, width: float) -> Target:
    """The rotations of a solid, all of one weight: as a pose that is seen without its labels has."""
    elements = torch.tensor(Rotation.create_group(name).as_matrix(), dtype=F64)
    turn = SO(3).exp(torch.tensor([0.3, -0.2, 0.4], dtype=F64))
    return wells(SO(3), SO(3).compose(turn, elements), [width] * len(elements))


def reweighted(target: Target, log_gain: Callable[[Tensor], Tensor]) -> Target:
    """A density times a factor of at most one, drawn by rejection."""
    assert target.draws is not None
    many = target.draws(400_000, seeded(3))
    gain = log_gain(many)
    kept = many[torch.rand(len(many), generator=seeded(4), dtype=F64) < gain.exp()]
    log_mass = float(gain.logsumexp(0)) - math.log(len(many))
    return Target(
        target.group,
        lambda g: target.log_density(g) + log_gain(g) - log_mass,
        lambda count, generator: kept[torch.randint(len(kept), (count,), generator=generator)],
        target.coordinates,
    )


def stepped(target: Target, height: float) -> Target:
    """An energy in steps, whose gradients are zero."""
    known = target.log_density
    return reweighted(target, lambda g: height * torch.floor(known(g) / height) - known(g))


def rippled(target: Target, height: float, wave: float) -> Target:
    """A well with ripples along the first coordinate."""
    return reweighted(target, lambda g: -0.5 * height * (1 - (wave * target.coordinates(g)[..., 0]).cos()))


def raised(target: Target, height: float) -> Target:
    """An energy plus a constant."""
    return replace(target, log_density=lambda g: target.log_density(g) - height)


def heavy_tailed(freedom: float) -> Target:
    """A known angle, and a position of Student's distribution."""
    constant = math.lgamma(freedom / 2 + 1) - math.lgamma(freedom / 2) - math.log(freedom * math.pi)
    angle = math.log(0.3 * math.sqrt(2 * math.pi))

    def log_density(u: Tensor) -> Tensor:
        tail = torch.log1p(u[..., 1:].square().sum(-1) / freedom)
        return constant - (freedom / 2 + 1) * tail - 0.5 * ((u[..., 0] - 0.2) / 0.3).square() - angle

    def draws(count: int, generator: torch.Generator) -> Tensor:
        z = torch.randn(count, 3, generator=generator, dtype=F64)
        gamma = torch._standard_gamma(torch.full((count, 1), freedom / 2, dtype=F64), generator=generator)
        return torch.cat([0.2 + 0.3 * z[:, :1], z[:, 1:] * (freedom / 2 / gamma).sqrt()], -1)

    return drawn(PLANE, log_density, draws)


def girdle(concentration: float) -> Target:
    """Rotations that keep an axis about where it is, by any angle about it."""
    k = concentration

    def log_density(g: Tensor) -> Tensor:
        return k * (g[..., 2, 2] - 1.0) - math.log(-math.expm1(-2 * k) / (2 * k)) - math.log(VOLUMES["SO(3)"])

    def draws(count: int, generator: torch.Generator) -> Tensor:
        first, second, level = torch.rand(3, count, generator=generator, dtype=F64)
        cosine = 1.0 + (level + (1.0 - level) * math.exp(-2 * k)).log() / k
        sine = (1.0 - cosine.square()).clamp(min=0).sqrt()
        zero, one = torch.zeros_like(level), torch.ones_like(level)
        tilt = torch.stack([cosine, zero, sine, zero, one, zero, -sine, zero, cosine], -1).unflatten(-1, (3, 3))
        turns = [turned(2 * math.pi * u) for u in (first, second)]
        about = [torch.block_diag(torch.eye(2), torch.eye(1)).to(F64).repeat(count, 1, 1) for _ in turns]
        for matrix, turn in zip(about, turns, strict=True):
            matrix[:, :2, :2] = turn
        return about[0] @ tilt @ about[1]

    return Target(SO(3), log_density, draws, lambda g: g.flatten(-2))


def tilted(n: int, ratio: float) -> Tensor:
    """The factor ``[1, n, n]`` of a covariance whose axes are turned at random, with deviations from 1 to a ratio."""
    turn = torch.linalg.qr(torch.randn(n, n, generator=seeded(5), dtype=F64))[0]
    return (turn * torch.logspace(0, math.log10(ratio), n, dtype=F64)).unsqueeze(0)


def reflected(group: LieGroup, share: float, width: float = 0.2) -> Target:
    """A well in each component of a group, one about a reflection."""
    v = torch.zeros(group.dim, dtype=F64)
    v[0] = 0.4
    flip = group.compose(group.exp(v), group.reflection(dtype=F64))  # type: ignore[attr-defined]
    both = torch.stack([flip, group.exp(-v)])
    kept = [0] if share == 1.0 else [0, 1]
    shares = [share, 1.0 - share][: len(kept)]
    target = wells(group, both[kept], [width] * len(kept), shares)
    proper = lambda g: (torch.linalg.det(g[..., : g.shape[-2]]) > 0).long()  # noqa: E731
    return Target(group, target.log_density, target.draws, target.coordinates, proper)


LANDMARKS = torch.tensor([[1.0, 0.0], [0.0, 0.6], [-0.8, 0.1], [0.2, -0.3], [-0.2, -0.5], [0.7, 0.4]], dtype=F64)


def landmarks(group: LieGroup, points: Tensor, noise: float, seeds: Sequence[int], **settings: Any) -> list[Outcome]:
    """Points with normal errors that were moved by an element; it must lie in regions of highest density."""
    z = torch.stack([torch.randn(group.dim, generator=seeded(70 + seed), dtype=F64) for seed in seeds])
    true, action = group.exp(0.5 * z), group.action()
    errors = torch.stack([torch.randn(points.shape, generator=seeded(170 + seed), dtype=F64) for seed in seeds])
    seen = action(true, points + noise * errors)
    energy = lambda y: (y - points.to(y)).square().sum((-2, -1)) / (2 * noise**2)  # noqa: E731
    sample = PosteriorSampler(action, energy, **settings)(seen, generator=seeded(seeds[0]))
    height = energy(action(group.inverse(true), seen))
    mass = (sample.weights * (sample.energies < height.unsqueeze(-1))).sum(-1)
    return [Outcome.at(bool(t), float(m)) for t, m in zip(sample.trusted, mass, strict=True)]


# -- situations --------------------------------------------------------------------------------------------------------


def situations() -> list[Situation]:
    """All of them."""
    # fmt: off
    found: list[Situation] = []

    def add(kind: Kind, name: str, make: Callable[[], Target], bet: str = "", **settings: Any) -> None:
        found.append(Situation("sampler", kind, name, lambda seeds: judge(make(), seeds, **settings), bet))

    # one well, two wells
    turn, other = [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]
    for group, width in ((SO(2), 0.2), (SO(3), 0.1), (SO(3), 0.3), (SE(2), 0.1), (SE(2), 0.4), (SE(3), 0.1),
        (SE(3), 0.3), (Translation(1), 0.5), (Translation(3), 1.0), (Similarity(2), 0.15), (Affine(2), 0.1)):
        add("ordinary", f"{group}, one well of width {width}", lambda g=group, w=width: wells(g, [[0.2] * g.dim], [w]))
    for group in (SE(2), SO(3)):
        add("ordinary", f"{group}, two wells of .7 and .3",
            lambda g=group: wells(g, [turn, other], [0.1, 0.1], [0.7, 0.3]))
        add("hard", f"{group}, two wells, .5 each, of widths .05 and .2",
            lambda g=group: wells(g, [turn, other], [0.05, 0.2]))
    add("ordinary", "Affine(2), widths 1 to 3", lambda: wells(Affine(2), [[0.1] * 6], 0.1 * tilted(6, 3.0)))
    for group, points, noise in ((SO(2), LANDMARKS, 0.1), (SE(2), LANDMARKS, 0.05), (SE(2), LANDMARKS, 0.2),
        (SE(3), torch.cat([LANDMARKS, LANDMARKS[:, :1].square()], -1), 0.1), (Translation(2), LANDMARKS, 0.3)):
        judged = lambda seeds, g=group, p=points, s=noise: landmarks(g, p, s, seeds)  # noqa: E731
        found.append(Situation("sampler", "ordinary", f"{group}, six landmarks with errors of {noise}", judged))
    standard = torch.eye(3, dtype=F64)
    found.append(Situation("sampler", "ordinary", "Translation(3), a normal prior of deviation 2",
        lambda seeds: judge(wells(Translation(3), [[0.8] * 3], [math.sqrt(0.8)]), seeds,
        likelihood=wells(Translation(3), [[1.0] * 3], [1.0]),
        log_evidence=3 * (-0.5 * math.log(2 * math.pi * 5.0) - 0.5 / 5.0), offset=0.0,
        prior=NormalDistribution(Translation(3), torch.zeros(3, dtype=F64), 0 * standard[0], 2 * standard))))

    # curved modes
    add("hard", "SE(2), a curved mode", curved)
    add("hard", "SE(2), a curved mode, four times the budget", curved, budget=8000)
    add("hard", "SE(2), a mode curved twice as much", lambda: curved(PLANE, 2.0), "the bend leaves every component")
    add("hard", "SE(2), a curved mode of half the width", lambda: curved(PLANE, 1.0, 0.05),
        "more components are needed than are made")
    add("hard", "SE(2), a mode hardly curved", lambda: curved(PLANE, 0.4, 0.3))
    add("hard", "Translation(3), a curved mode", lambda: curved(line(3)), "the same in a vector space")
    add("hard", "Similarity(2), a curved mode",
        lambda: curved(SCALED, 1.0, 0.1, normal(lambda u: u[..., 2].cos(), 0.2)),
        "one more dimension, and Haar measure")
    funnel = lambda s: chain(line(3), normal(0.0, s), *[normal(0.0, lambda u: (0.5 * u[..., 0]).exp())] * 2)  # noqa: E731
    add("hard", "Translation(3), a funnel of deviation 1.5", lambda: funnel(1.5), "no one width is right")
    add("hard", "Translation(3), a funnel of deviation 3", lambda: funnel(3.0), "the neck is narrower than any draw")
    add("hard", "Translation(2), a ring of radius 3, width .1", lambda: ring(3.0, 0.1), "one mode about a hole")
    add("hard", "Translation(2), a ring of radius 8, width .1", lambda: ring(8.0, 0.1),
        "500 widths around, off the start")
    add("hard", "Translation(2), a ring of radius 1, width .2", lambda: ring(1.0, 0.2))
    wave = lambda w: chain(line(2), normal(0.0, 3.0), normal(lambda u: 2.0 * u[..., 0].sin(), w))  # noqa: E731
    add("hard", "Translation(2), a snake of width .2", lambda: wave(0.2), "turns back six times")

    # tails
    for freedom in (5.0, 2.0, 1.0, 0.5):
        kind: Kind = "ordinary" if freedom > 2 else "hard"
        add(kind, f"SE(2), Student tails of {freedom:g} degrees", lambda f=freedom: heavy_tailed(f))
    for n, freedom in ((1, 1.0), (1, 0.5), (3, 1.0)):
        add("hard", f"Translation({n}), Student tails of {freedom:g} degrees", lambda n=n,
            f=freedom: wells(Translation(n), [[0.0] * n], [1.0], freedom=f), "heavier than what is drawn from")
    for kind, name, log_density, quantiles, bet in (("ordinary", "Laplace", lambda u: -u.abs() - math.log(2),
        lambda q: _laplace(q - 0.5), ""), ("hard", "exponential on a half line",
        lambda u: torch.where(u > 0, -u, -torch.inf), lambda q: -torch.log1p(-q), "infinite energy on one side")):
        add(kind, f"Translation(1), {name}", lambda p=log_density, q=quantiles: from_uniform(line(1), p, q), bet)

    # wide, far
    for spread in (10.0, 50.0, 100.0, 300.0, 1e4):
        add("hard", f"Translation(1), spread {spread:g}", lambda s=spread: wells(Translation(1), [[0.0]], [s]),
            "" if spread in (50, 100, 300) else "wider or narrower than those seen")
    add("hard", "SE(2), positions of spread 100",
        lambda: chain(PLANE, normal(0.2, 0.3), normal(0.0, 100.0), normal(0.0, 100.0)),
        "two wide directions and a narrow one")
    add("hard", "Translation(2), deviations .05 and 50",
        lambda: wells(Translation(2), [[0.0] * 2], 0.05 * tilted(2, 1e3)), "1000 to 1, at an angle")
    add("hard", "Translation(6), deviations .01 to 1",
        lambda: wells(Translation(6), [[0.0] * 6], 0.01 * tilted(6, 100.0)), "a narrow valley in six dimensions")
    for far in (30.0, 1e3):
        add("hard", f"Translation(1), one well at {far:g}", lambda f=far: wells(Translation(1), [[f]], [1.0]),
            "beyond the first draws")
    add("hard", "Translation(1), two wells at -20 and 20", lambda: wells(Translation(1), [[-20.0], [20.0]], [1.0, 1.0]),
        "each leads away from the other")
    add("hard", "Translation(2), wells of .6 and .4, 12 apart",
        lambda: wells(Translation(2), [[0.0] * 2, [12.0, 0.0]], [1.0, 1.0], [0.6, 0.4]),
        "the nearer well is found first")
    for n in (10, 16):
        add("hard", f"Translation({n}), one well of width .5", lambda n=n: wells(Translation(n), [[0.5] * n], [0.5]),
            "dimensions eat the budget")
    add("hard", "Translation(8), two wells",
        lambda: wells(Translation(8), [[-1.0] * 8, [1.0] * 8], [0.4, 0.4], [0.7, 0.3]), "modes in eight dimensions")

    # improper
    zero = lambda u: u.new_zeros(u.shape[:-1])  # noqa: E731
    sides = line(1), line(2)
    for name, chart, energy, bet in (("SE(2), flat", PLANE, zero, ""), ("Translation(1), flat", sides[0], zero, ""),
        ("Translation(1), max(x, 0)", sides[0], lambda u: u[..., 0].clamp(min=0), ""),
        ("Translation(3), flat", line(3), zero, "more dimensions to look flat in"),
        ("log(1 + x^2) / 2", sides[0], lambda u: 0.5 * torch.log1p(u[..., 0].square()), "a total that grows slowly"),
        ("log(1 + |x|)", sides[0], lambda u: u[..., 0].abs().log1p(), "a cusp, and a total that grows slowly"),
        ("Translation(2), flat along one axis", sides[1], lambda u: 0.5 * u[..., 0].square(), "a well along one"),
        ("Translation(1), 3 cos x", sides[0], lambda u: 3.0 * u[..., 0].cos(), "wells without end"),
        ("SE(2), the angle alone", PLANE, lambda u: 5.0 * (1 - u[..., 0].cos()), "positions do not matter"),
        ("SE(2), a line of positions", PLANE, lambda u: 50 * (u[..., 1] - 1).square(), "a well along one of three"),
        ("Similarity(2), no position", SCALED, lambda u: 5 * u[..., :2].square().sum(-1), "wells along two of four"),
        ("a well over a plain", sides[0], lambda u: -8 * (-0.5 * u[..., 0].square()).exp(), "all is seen in the well")):
        add("hard", f"no finite total: {name}", lambda c=chart, e=energy: improper(c, e), bet)
    add("hard", "no mass: infinite energy", lambda: improper(line(1), lambda u: u.new_full(u.shape[:-1], torch.inf)))

    # components
    for group in (O(3), E(2), O(2), E(3)):
        for share in (1 - 1e-7, 0.7) if group.dim < 6 else (1.0,):
            add("hard", f"{group}, {share:g} of the mass on reflections", lambda g=group, s=share: reflected(g, s),
                "" if share > 0.9 else "a share on each component")

    # many and narrow modes
    for name, number in (("O", 24), ("T", 12), ("D4", 8), ("C5", 5)):
        for width in (0.05, 0.1):
            add("hard", f"SO(3), {number} poses of width {width}", lambda n=name, w=width: poses(n, w),
                "" if name == "O" else "another solid")
    add("hard", "SO(3), 24 poses of width .1, four times the budget", lambda: poses("O", 0.1),
        "fewer modes with more budget", budget=8000)
    add("hard", "SO(2), nine wells", lambda: wells(SO(2), [[2 * math.pi * k / 9] for k in range(9)], [0.05] * 9),
        "many wells on a circle")
    add("hard", "heat, two wells", lambda: wells(HeatSymmetry(1.0),
        [[0.0, 0.1, 0.1, 0.5, 0.5, 0.25], [0.0, -0.1, -0.1, -0.5, -0.5, -0.25]], [0.1, 0.15], [0.7, 0.3]))
    add("hard", "Affine(2), three wells", lambda: wells(Affine(2),
        [[0.0, -0.6, 0.6, 0.0, 0.0, 0.0], [0.0, 0.6, -0.6, 0.0, 0.5, 0.0], [0.3, 0.0, 0.0, 0.3, -0.5, 0.5]], [0.1] * 3,
        [0.5, 0.3, 0.2]), "three modes in six dimensions")
    add("hard", "SO(3), half a turn away", lambda: wells(SO(3), [[math.pi - 0.01, 0.0, 0.0]], [0.1]),
        "at the cut of the logarithm")
    add("hard", "SO(3), any angle about an axis", lambda: girdle(20.0), "a ring of rotations")
    add("hard", "SE(2), any angle, positions known",
        lambda: chain(PLANE, normal(0.0, 5.0), normal(0.0, 0.1), normal(0.0, 0.1)),
        "one direction of the circle is flat")
    add("needle", "SO(3), .02 of width .05 beside a broad well",
        lambda: wells(SO(3), [[0.0] * 3, [2.0, 0.0, 0.0]], [0.3, 0.05], [0.98, 0.02]))
    add("needle", "SO(3), .5 of width .001 beside a broad well",
        lambda: wells(SO(3), [[0.0] * 3, [1.5, 0.0, 0.0]], [0.3, 0.001]))
    add("needle", "Translation(2), .5 of width .003 within a broad well",
        lambda: wells(Translation(2), [[0.0] * 2, [0.7, 0.5]], [1.0, 0.003]))
    add("hard", "Translation(2), .5 of width .05 within a broad well",
        lambda: wells(Translation(2), [[0.0] * 2, [0.7, 0.5]], [1.0, 0.05]), "a spike on a slab")
    add("hard", "Translation(1), .9 at 0 and .1 at 8",
        lambda: wells(Translation(1), [[0.0], [8.0]], [1.0, 1.0], [0.9, 0.1]), "a lesser well a walk away")

    # rough energies
    box = lambda: uniform((-1.0, 1.0), (0.0, 0.5))  # noqa: E731
    add("hard", "Translation(2), a box", box, "no gradient anywhere")
    add("hard", "Translation(4), a box", lambda: uniform(*[(-1.0, 1.0)] * 4), "no gradient anywhere")
    add("hard", "SE(2), an energy in steps of 2", lambda: stepped(wells(SE(2), [[0.2] * 3], [0.3]), 2.0),
        "gradients of zero")
    add("hard", "SE(2), float32 and a constant of 1e6", lambda: raised(wells(SE(2), [[0.1] * 3], [0.1]), 1e6),
        "rounding of energies", dtype=torch.float32, log_evidence=-1e6)
    add("hard", "SE(2), float32 and a width of 1e-5", lambda: wells(SE(2), [[0.1] * 3], [1e-5]), "rounding of elements",
        dtype=torch.float32)
    add("ordinary", "SE(2), float32", lambda: wells(SE(2), [[0.1] * 3], [0.1]), dtype=torch.float32)
    add("hard", "SE(2), ripples of 3 in a well", lambda: rippled(wells(SE(2), [[0.1] * 3], [0.5]), 3.0, 40.0),
        "wells of every size within one")
    add("hard", "SE(2), few samples", lambda: wells(SE(2), [turn, other], [0.1, 0.3], [0.6, 0.4]), "a small budget",
        num_samples=50, budget=150)
    return found
