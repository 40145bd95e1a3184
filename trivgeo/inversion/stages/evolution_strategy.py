"""Evolution strategy with covariance matrix adaptation on a group."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo.checks import check_count, check_positive, checked
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.stage import EvaluatedPopulation, Population, Stage
from trivgeo.sde.resampling import take_rows

_MAX_CONDITION = 1e7  # largest ratio of the variances of a generation along two axes


@checked
class EvolutionStrategy(Stage):
    r"""Searches by CMA-ES (Hansen 2016): generations of normal draws, whose covariance learns from the best of them.

    Elements are :math:`m \exp(\sigma y)` with :math:`y \sim N(0, C)`. The mean moves by :math:`m \leftarrow m
    \exp(\sigma \sum_i w_i y_i)`, the lowest energies first; left translation carries covariance and paths along. The
    weights of the higher half are negative (active CMA). It needs no gradient, and passes over ripples of the energy
    that are short against :math:`\sigma`.

    Begins at the hypothesis of lowest energy. The result has that one and the best element of each generation, in the
    order of their energies.

    Args:
        generations: number of generations.
        std: :math:`\sigma` of the first generation, in units of the group's basis.
        population: number of elements of a generation; by default :math:`4 + 3 \log n` in n dimensions.

    Raises:
        ConfigurationError: a count below one, a population below four, or a deviation that is not positive.
    """

    def __init__(self, generations: int, std: float = 0.5, population: int | None = None) -> None:
        self.steps = check_count("generations", generations)
        self.std = check_positive("std", std)
        self.population = None if population is None else check_count("population", population, 4)

    def size(self, dim: int) -> int:
        """Return the number of elements of a generation.

        Args:
            dim: dimension of the group.
        """
        return 4 + int(3 * math.log(check_count("dim", dim))) if self.population is None else self.population

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        group, n, batch = posterior.group, posterior.group.dim, posterior.batch
        number = self.size(n)
        rates = _Rates(n, number)
        start = population.evaluated(posterior)
        best = start.energies.argmin(1, keepdim=True)
        mean = take_rows(start.elements, best)
        masked = start.num_masked_steps.gather(1, best)
        found = [EvaluatedPopulation(mean, masked, start.energies.gather(1, best))]
        unit = torch.eye(n).to(mean)
        covariance = unit.expand(batch, n, n)
        path, sigma_path = mean.new_zeros(batch, n), mean.new_zeros(batch, n)
        sigma = mean.new_full((batch,), self.std)
        weights = mean.new_tensor(rates.weights)
        positive = weights.clamp(min=0.0)
        for generation in range(self.steps):
            axes, values, covariance = _axes(covariance)
            z = posterior.normal(batch, number, n, generator=generator)
            y = matmul(z * values.unsqueeze(1), axes.mT)
            drawn = group.retract(mean, sigma[:, None, None] * y)
            energies = posterior.energies(drawn)
            energies, order = energies.sort(dim=1, stable=True)
            y = take_rows(y, order)
            best = take_rows(drawn, order[:, :1])
            found.append(EvaluatedPopulation(best, masked, energies[:, :1]))
            step = (positive[:, None] * y).sum(1)
            mean = group.retract(mean, (sigma.unsqueeze(-1) * step).unsqueeze(1))
            white = matmul(matmul(y, axes) / values.unsqueeze(1), axes.mT)
            sigma_path = (1.0 - rates.c_sigma) * sigma_path + rates.sigma_gain * (positive[:, None] * white).sum(1)
            length = sigma_path.norm(dim=-1)
            fresh = math.sqrt(1.0 - (1.0 - rates.c_sigma) ** (2 * (generation + 1)))
            moves = (length / fresh < (1.4 + 2.0 / (n + 1)) * rates.chi).to(length)
            path = (1.0 - rates.c_path) * path + moves.unsqueeze(-1) * rates.path_gain * step
            size = white.square().sum(-1).clamp(min=torch.finfo(y.dtype).tiny)
            each = torch.where(weights >= 0, weights, weights * n / size)
            rank_mu = matmul((each.unsqueeze(-1) * y).mT, y)
            kept = 1.0 - rates.c_one - rates.c_mu * sum(rates.weights)
            kept = kept + rates.c_one * (1.0 - moves) * rates.c_path * (2.0 - rates.c_path)
            outer = path.unsqueeze(-1) * path.unsqueeze(-2)
            covariance = kept[:, None, None] * covariance + rates.c_one * outer + rates.c_mu * rank_mu
            sigma = sigma * (rates.c_sigma / rates.damping * (length / rates.chi - 1.0)).clamp(max=1.0).exp()
            posterior.step()
            if posterior.is_late():
                break
        return EvaluatedPopulation.joined(*found)


class _Rates:
    """Weights and learning rates of CMA-ES for n dimensions and generations of a number (Hansen 2016, table 1)."""

    def __init__(self, n: int, number: int) -> None:
        raw = [math.log((number + 1) / 2) - math.log(i + 1) for i in range(number)]
        up, down = sum(w for w in raw if w > 0), -sum(w for w in raw if w < 0)
        mu = up**2 / sum(w**2 for w in raw if w > 0)
        mu_down = down**2 / sum(w**2 for w in raw if w < 0)
        self.c_one = 2.0 / ((n + 1.3) ** 2 + mu)
        self.c_mu = min(1.0 - self.c_one - 1e-8, 2.0 * (mu - 2.0 + 1.0 / mu) / ((n + 2) ** 2 + mu))
        worst = min(
            1.0 + self.c_one / self.c_mu,
            1.0 + 2.0 * mu_down / (mu + 2.0),
            (1.0 - self.c_one - self.c_mu) / (n * self.c_mu),
        )
        self.weights = [w / up if w > 0 else worst * w / down for w in raw]
        self.c_sigma = (mu + 2.0) / (n + mu + 5.0)
        self.damping = 1.0 + 2.0 * max(0.0, math.sqrt((mu - 1.0) / (n + 1)) - 1.0) + self.c_sigma
        self.c_path = (4.0 + mu / n) / (n + 4.0 + 2.0 * mu / n)
        self.sigma_gain = math.sqrt(self.c_sigma * (2.0 - self.c_sigma) * mu)
        self.path_gain = math.sqrt(self.c_path * (2.0 - self.c_path) * mu)
        self.chi = math.sqrt(n) * (1.0 - 1.0 / (4.0 * n) + 1.0 / (21.0 * n**2))


def _axes(covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return axes, deviations along them, and the covariance, whose condition is bounded."""
    values, axes = torch.linalg.eigh(0.5 * (covariance + covariance.mT))
    values = values.clamp(min=0.0)
    values = torch.maximum(values, values[..., -1:] / _MAX_CONDITION).clamp(min=torch.finfo(values.dtype).tiny)
    return axes, values.sqrt(), matmul(axes * values.unsqueeze(-2), axes.mT)
