"""Models of elements: the learned ones of the library, and two classical ones."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from trivgeo.checks import check_choice, check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.generative import GroupDiffusion
from trivgeo.generative.distributions import NormalDistribution, log_mass
from trivgeo.groups import LieGroup, Torus
from trivgeo.sde import heat_kernel

from .fitting import KINDS

_MAX_PAIRS = 2_000_000  # pairs of elements whose distances are computed at once


class ElementModel(ABC):
    """A distribution fitted to elements."""

    @abstractmethod
    def fit(self, group: LieGroup, train: Tensor, seed: int) -> None:
        """Fit to elements `[n, *element_shape]`."""

    @abstractmethod
    def log_prob(self, g: Tensor) -> Tensor:
        """The log-density, for the measure of `GroupDiffusion`."""

    @abstractmethod
    def sample(self, number: int, generator: torch.Generator) -> Tensor:
        """Draw elements."""

    def sample_by_steps(self, number: int, evaluations: int, generator: torch.Generator) -> Tensor | None:
        """Draw elements with so many evaluations of a network, by random steps; none if the model has no such steps."""
        return None


class Learned(ElementModel):
    """A `GroupDiffusion`.

    Args:
        kind: see `GroupDiffusion`, also for `width` and `depth`.
        steps: see `GroupDiffusion.fit`, also for `seconds` and `batch_size`.
        tolerance: see `GroupDiffusion.log_prob`.

    Raises:
        ConfigurationError: a number is out of range, or the kind is no such.
    """

    def __init__(
        self,
        kind: str,
        steps: int = 20_000,
        seconds: float = 600.0,
        width: int = 256,
        depth: int = 3,
        tolerance: float = 1e-3,
        batch_size: int = 512,
    ) -> None:
        self.batch_size = check_count("batch_size", batch_size)
        self.kind, self.steps = check_choice("kind", kind, KINDS), check_count("steps", steps)
        self.seconds, self.tolerance = check_positive("seconds", seconds), check_positive("tolerance", tolerance)
        self.width, self.depth = check_count("width", width), check_count("depth", depth)

    def fit(self, group: LieGroup, train: Tensor, seed: int) -> None:
        self.model = GroupDiffusion(group, self.kind, seed, width=self.width, depth=self.depth)
        self.model.fit(train, steps=self.steps, seconds=self.seconds, batch_size=self.batch_size)

    def log_prob(self, g: Tensor) -> Tensor:
        return torch.cat([self.model.log_prob(part, tolerance=self.tolerance) for part in g.split(500)])

    def sample(self, number: int, generator: torch.Generator) -> Tensor:
        return self.model.sample(number, generator=generator, tolerance=self.tolerance)

    def sample_by_steps(self, number: int, evaluations: int, generator: torch.Generator) -> Tensor | None:
        if self.kind == "flow":
            return None
        steps = evaluations // 2 if self.kind == "diffusion" else evaluations
        return self.model.sample(number, generator=generator, steps=steps)


class KernelDensity(ElementModel):
    """A heat kernel about every datum, as wide as data are sparse there (Breiman, Meisel and Purcell 1977).

    Its standard deviation is a multiple of the distance to a near neighbour; the multiple is the one that a tenth of
    the data likes best.

    Args:
        neighbour: the k of the k-th nearest.
        factors: multiples to choose from.
        smallest: standard deviation.
        held_out: data at most by which the multiple is chosen.

    Raises:
        ConfigurationError: raised by `fit`: the heat kernel of the group is not known, or the data are too few.
    """

    def __init__(
        self, neighbour: int = 5, factors: list[float] | None = None, smallest: float = 0.02, held_out: int = 500
    ) -> None:
        self.neighbour, self.smallest = check_count("neighbour", neighbour), check_positive("smallest", smallest)
        self.factors = [0.1 * 1.4**k for k in range(8)] if factors is None else factors
        self.held_out = check_count("held_out", held_out)

    def fit(self, group: LieGroup, train: Tensor, seed: int) -> None:
        kernel = heat_kernel(group)
        if kernel is None:
            raise ConfigurationError(f"group: expected one whose heat kernel is known, got {group!r}")
        if len(train) < (least := max(10, self.neighbour + 1)):
            raise ConfigurationError(f"train: expected {least} elements or more for a kernel density, got {len(train)}")
        self.group, self.kernel, self.data = group, kernel, train
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        number = min(self.held_out, len(train) // 10)
        held, rest = train[order[:number]], order[number:]
        distances = (self.group.log(self._away(part)).norm(dim=-1) for part in self._blocks(train))
        # the nearest is the datum itself; there is no logarithm where elements are far from each other
        near = torch.cat([d.nan_to_num(torch.inf).topk(self.neighbour + 1, largest=False)[0][:, -1] for d in distances])

        def score(factor: float) -> float:
            self.data, self.stds = train[rest], (factor * near[rest]).clamp(min=self.smallest)
            return float(self.log_prob(held).mean())

        factor = max(self.factors, key=score)
        self.data, self.stds = train, (factor * near).clamp(min=self.smallest)

    def log_prob(self, g: Tensor) -> Tensor:
        rows = []
        for part in self._blocks(g):
            away = self._away(part)
            rows.append(self.kernel.log_density(away, self.stds.square().expand(away.shape[:2])).logsumexp(-1))
        return torch.cat(rows) - math.log(len(self.data))

    def sample(self, number: int, generator: torch.Generator) -> Tensor:
        which = torch.randint(len(self.data), (number,), generator=generator)
        return self.group.compose(self.data[which], self.kernel.sample(self.stds[which].square(), generator))

    def _blocks(self, g: Tensor) -> tuple[Tensor, ...]:
        return g.split(max(1, _MAX_PAIRS // len(self.data)))

    def _away(self, g: Tensor) -> Tensor:
        """Where elements lie as the data see them, `[len(g), n, *element_shape]`."""
        return self.group.compose(self.group.inverse(self.data), g.unsqueeze(1))


class OneNormal(ElementModel):
    """The exponential of a normal distribution about the mean element, with the moments of the data."""

    def fit(self, group: LieGroup, train: Tensor, seed: int) -> None:
        centre = group.mean(train)
        v = group.log(group.compose(group.inverse(centre), train))
        v = v[torch.isfinite(v).all(-1)]
        covariance = torch.cov(v.double().mT)  # of distributions of few parameters it is singular but for rounding
        ridge = 1e-6 * covariance.diagonal().mean() * torch.eye(group.dim).to(covariance)
        self.normal = NormalDistribution(group, centre, v.mean(0), torch.linalg.cholesky(covariance + ridge).to(v))

    def log_prob(self, g: Tensor) -> Tensor:
        return self.normal.log_prob(g)

    def sample(self, number: int, generator: torch.Generator) -> Tensor:
        return self.normal.sample(number, generator)


class WrappedMixture(ElementModel):
    """A mixture of wrapped normal distributions on a torus, each angle with its variance, by expectation maximisation.

    An angle counts for the image of a component that is nearest, as is right for components that are narrow.

    Args:
        components: number of components.
        rounds: number of rounds of the maximisation.
        smallest: standard deviation.

    Raises:
        ConfigurationError: raised by `fit`: the group is no torus.
    """

    def __init__(self, components: int = 100, rounds: int = 60, smallest: float = 0.02) -> None:
        self.components, self.rounds = check_count("components", components), check_count("rounds", rounds)
        self.smallest = check_positive("smallest", smallest)

    def fit(self, group: LieGroup, train: Tensor, seed: int) -> None:
        if not isinstance(group, Torus):
            raise ConfigurationError(f"group: expected a torus, got {group!r}")
        self.group = group
        x = train.double()
        generator = torch.Generator().manual_seed(seed)
        self.means = x[torch.randperm(len(x), generator=generator)[: self.components]]
        self.stds = torch.full_like(self.means, 0.5)
        self.log_weights = x.new_full((self.components,), -math.log(self.components))
        for _ in range(self.rounds):
            away = self.group.project(x.unsqueeze(1) - self.means)
            share = (self._logs(away) + self.log_weights).softmax(-1)
            total = share.sum(0).clamp(min=1e-9)
            shift = torch.einsum("nk,nkd->kd", share, away) / total.unsqueeze(-1)
            square = torch.einsum("nk,nkd->kd", share, away.square()) / total.unsqueeze(-1)
            self.means = self.means + shift
            self.stds = (square - shift.square()).clamp(min=self.smallest**2).sqrt()
            self.log_weights = (total / len(x)).log()

    def log_prob(self, g: Tensor) -> Tensor:
        away = self.group.project(g.double().unsqueeze(1) - self.means)
        turns = 2.0 * math.pi * torch.arange(-2, 3, dtype=torch.float64, device=g.device)
        images = -0.5 * ((away.unsqueeze(-1) + turns) / self.stds.unsqueeze(-1)).square()
        logs = (images.logsumexp(-1) - self.stds.log() - 0.5 * math.log(2.0 * math.pi)).sum(-1)
        angles = (logs + self.log_weights).logsumexp(-1).to(g.dtype)
        return angles + log_mass(self.group, "volume")

    def sample(self, number: int, generator: torch.Generator) -> Tensor:
        which = torch.multinomial(self.log_weights.exp().cpu(), number, replacement=True, generator=generator)
        z = torch.randn(number, self.group.dim, generator=generator, dtype=torch.float64).to(self.means)
        return self.group.project(self.means[which] + self.stds[which] * z).float()

    def _logs(self, away: Tensor) -> Tensor:
        return -(0.5 * (away / self.stds).square() + self.stds.log()).sum(-1)
