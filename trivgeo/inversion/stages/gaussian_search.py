"""Search among random elements: normal steps around a hypothesis, or draws of a distribution."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import common
from trivgeo.checks import check_count, check_positive, checked
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.rows import farthest_first
from trivgeo.inversion.stage import Population, Stage
from trivgeo.inversion.transformations import Transformations, sample_elements
from trivgeo.sde.resampling import take_rows

DRAWN_TOGETHER = 64  # elements of one datum that are drawn at once


class Drawn(NamedTuple):
    """Elements drawn for each datum, in the order of their energies.

    Attributes:
        elements: ``[b, m, *element_shape]``.
        places: coordinates that measure their distances, ``[b, m, n]``.
        energies: ``[b, m]``.
    """

    elements: Tensor
    places: Tensor
    energies: Tensor


@checked
class RandomElements(Stage):
    """Base class of stages that draw elements for each datum, and keep some of those of lowest energy.

    Args:
        num_samples: number of elements drawn for each datum.
        num_hypotheses: number K of elements kept, in order of their energies.
        candidates: number of the elements of lowest energy among which K are chosen that lie far apart: the lowest,
            then again and again the one farthest from those chosen (Gonzalez 1985). By default K, which are all kept.

    Raises:
        ConfigurationError: a count below one, or not K <= candidates <= samples.
    """

    def __init__(self, num_samples: int, num_hypotheses: int, candidates: int | None = None) -> None:
        self.num_samples = check_count("num_samples", num_samples)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        if num_hypotheses > num_samples:
            raise ConfigurationError(
                f"num_hypotheses: expected at most num_samples = {num_samples}, got {num_hypotheses}"
            )
        self.candidates = num_hypotheses if candidates is None else check_count("candidates", candidates)
        if not num_hypotheses <= self.candidates <= num_samples:
            raise ConfigurationError(
                f"candidates: expected {num_hypotheses} to {num_samples}, the numbers of hypotheses and of samples, "
                f"got {candidates}"
            )
        self.steps = -(-num_samples // DRAWN_TOGETHER)

    @abstractmethod
    def draw(
        self,
        posterior: Posterior,
        population: Population,
        numbers: range,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Float[Tensor, "b m n"]]:
        """Return some of the samples: elements, and coordinates that measure their distances.

        Args:
            posterior: the energies.
            population: the hypotheses of the stage before.
            numbers: places of the samples among all `num_samples`.
            generator: random numbers.
        """

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        """Return the elements kept: fewer than K where the time is up before as many were drawn."""
        return self.chosen(self.drawn(posterior, population, generator, self.candidates))

    def drawn(
        self, posterior: Posterior, population: Population, generator: torch.Generator | None, number: int
    ) -> Drawn:
        """Return at most a ``number`` of the samples, those of lowest energy, in its order."""
        elements, energies = population.elements[:, :0], population.elements.new_empty(posterior.batch, 0)
        places = energies.new_empty(posterior.batch, 0, posterior.group.dim)
        for done in range(0, self.num_samples, DRAWN_TOGETHER):
            numbers = range(done, min(done + DRAWN_TOGETHER, self.num_samples))
            drawn, v = self.draw(posterior, population, numbers, generator)
            energies, index = torch.cat([energies, posterior.energies(drawn)], 1).sort(dim=1, stable=True)
            energies, index = energies[:, :number], index[:, :number]
            elements = take_rows(torch.cat([elements, drawn], 1), index)
            places = take_rows(torch.cat([places, v], 1), index)
            posterior.step()
            if posterior.is_late():
                break
        return Drawn(elements, places, energies)

    def chosen(self, drawn: Drawn) -> Population:
        """Return K of the elements of lowest energy."""
        elements, places, energies = (part[:, : self.candidates] for part in drawn)
        if energies.shape[1] > self.num_hypotheses:
            index = farthest_first(places, torch.isfinite(energies), self.num_hypotheses)
            elements, energies = take_rows(elements, index), energies.gather(1, index)
        return Population(elements, torch.zeros_like(energies, dtype=torch.long), energies)


@checked
class GaussianSearch(RandomElements):
    r"""Draws elements :math:`g \exp(\sigma z)` around the first hypothesis of each datum, and keeps the best.

    Args:
        num_samples: see `RandomElements`.
        num_hypotheses: see `RandomElements`.
        std: sigma, in units of the group's basis; or several, which take turns.
        candidates: number of the best elements among which K that lie far apart are chosen, see `RandomElements`.

    Raises:
        ConfigurationError: a setting out of its range, or more hypotheses than samples.
    """

    def __init__(
        self, num_samples: int, num_hypotheses: int, std: float | Sequence[float], candidates: int | None = None
    ) -> None:
        super().__init__(num_samples, num_hypotheses, candidates)
        self.std = check_stds("std", std)

    def draw(
        self,
        posterior: Posterior,
        population: Population,
        numbers: range,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Float[Tensor, "b m n"]]:
        group = posterior.group
        z = posterior.normal(posterior.batch, len(numbers), group.dim, generator=generator)
        v = z.new_tensor([self.std[i % len(self.std)] for i in numbers]).unsqueeze(-1) * z
        return group.retract(population.elements[:, :1], v), v


@checked
class DistributionSearch(RandomElements):
    """Draws elements of a distribution of transformations, the same ones for all data, and keeps the best.

    Args:
        transformations: function (count, generator) to elements ``[count, *element_shape]``, see `LearnedInverter.fit`.
        num_samples: number of elements drawn.
        num_hypotheses: number K of elements kept for each datum, in order of their energies.
        candidates: number of the best elements among which K that lie far apart are chosen, see `RandomElements`.

    Raises:
        ConfigurationError: a setting out of its range, or more hypotheses than samples; or (when run) the draws are no
            elements, see `LearnedInverter.fit`.
    """

    def __init__(
        self,
        transformations: Transformations,
        num_samples: int,
        num_hypotheses: int,
        candidates: int | None = None,
    ) -> None:
        super().__init__(num_samples, num_hypotheses, candidates)
        self.transformations = transformations

    def draw(
        self,
        posterior: Posterior,
        population: Population,
        numbers: range,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Float[Tensor, "b m n"]]:
        group, batch = posterior.group, posterior.batch
        drawn = sample_elements(group, self.transformations, len(numbers), common(generator)).to(posterior.reference)
        places = group.log(drawn).nan_to_num(nan=0.0)  # far elements without a logarithm count as one place
        drawn = drawn.expand(batch, *drawn.shape)
        return drawn, places.expand(batch, *places.shape)


def check_stds(name: str, stds: float | Sequence[float]) -> tuple[float, ...]:
    """Return standard deviations, one or several, that are positive and finite.

    Raises:
        ConfigurationError: there is none, or another number.
    """
    several = tuple(stds) if isinstance(stds, Sequence) else (stds,)
    if not several:
        raise ConfigurationError(f"{name}: expected at least one standard deviation, got none")
    return tuple(check_positive(name, each) for each in several)
