"""Laplace's approximation of a posterior with separate wells."""

from __future__ import annotations

import torch
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo.checks import check_count, check_positive, checked
from trivgeo.groups import LieGroup
from trivgeo.inversion.curvature import safe_cholesky
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.stage import Population, Stage
from trivgeo.sde.resampling import systematic_indices

_WELL_RADIUS_IN_STDS = 5.0  # distance within which two chains are in one well


@checked
class Laplace(Stage):
    r"""Draws from normal distributions in the wells whose minima the chains have reached, each well with its weight.

    A well of minimum g counts :math:`e^{-E(g) / T} \det H^{-1/2}`, H Gauss and Newton's curvature there (Laplace's
    approximation of its share of the posterior of temperature T, for left Haar measure), however many chains have
    ended in it: of chains within five standard deviations of a lower one, only that one stays. Elements are
    :math:`g \exp(\sqrt{T} H^{-1/2} z)`, and the numbers from each well are right within one (systematic resampling).

    Put it after `LevenbergMarquardt` from many starts: wells that no start finds are missing.

    Args:
        num_hypotheses: number of elements drawn for each datum.
        temperature: T.

    Raises:
        ConfigurationError: a setting out of its range; or (when run) the energy is no `LeastSquares`.
    """

    def __init__(self, num_hypotheses: int, temperature: float = 1.0) -> None:
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        self.temperature = check_positive("temperature", temperature)

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        """Return draws of the approximation; chains without finite energy and positive curvature count for nothing."""
        group, at = posterior.group, population.evaluated(posterior)
        curvature = posterior.curvature(at.elements) / self.temperature
        factor, positive = safe_cholesky(curvature)
        good = positive & torch.isfinite(at.energies)
        alone = good & ~self._is_double(group, at.elements, torch.where(good, at.energies, torch.inf), factor)
        logits = -at.energies / self.temperature - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        logits = torch.where(alone, logits, -torch.inf)
        logits = torch.where(alone.any(1, keepdim=True), logits, 0.0)
        index = systematic_indices(logits, generator, self.num_hypotheses)
        drawn = at.take(index)
        z = posterior.normal(*index.shape, group.dim, generator=generator).unsqueeze(-1)
        spread = torch.take_along_dim(factor, index[..., None, None], 1)
        v = torch.linalg.solve_triangular(spread.mT, z, upper=True).squeeze(-1)
        return drawn.moved(group.retract(drawn.elements, v))

    @staticmethod
    def _is_double(group: LieGroup, g: Tensor, energies: Tensor, factor: Tensor) -> Tensor:
        """Return a mask ``[b, k]`` of chains that have a lower chain within reach."""
        # logarithms of the second element seen from the first
        v = group.log(group.compose(group.inverse(g).unsqueeze(1), g.unsqueeze(2)))
        near = (matmul(v.unsqueeze(-2), factor.unsqueeze(1))).square().sum((-2, -1)) < _WELL_RADIUS_IN_STDS**2
        order = torch.arange(energies.shape[1], device=energies.device)
        lower = energies.unsqueeze(1) < energies.unsqueeze(2)
        first = (energies.unsqueeze(1) == energies.unsqueeze(2)) & (order < order.unsqueeze(-1))
        return (near & (lower | first)).any(-1)
