"""Probability paths from data to a base distribution: targets of a network, and samples by it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._text import described
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError
from trivgeo.generative.distribution_fitting import fit_base_distribution
from trivgeo.generative.distributions import GroupDistribution
from trivgeo.groups import LieGroup
from trivgeo.sde.likelihood import Divergence, flow_likelihood
from trivgeo.sde.processes.trivialized import TrivializedSDE
from trivgeo.sde.solvers.runge_kutta import GeometricHeun, solve_adaptive
from trivgeo.sde.solvers.time_loop import solve

PathT = TypeVar("PathT", bound="ProbabilityPath")

Network = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(elements, levels ``[*batch]`` in [0, 1], momenta or ``None``) to algebra vectors ``[*batch, dim]``."""

Coupling = Callable[[Tensor, Tensor], Tensor]
"""(data, draws of the base distribution), both ``[b, *element_shape]``, to draws of which each belongs to its datum."""


class TrainingBatch(NamedTuple):
    """Inputs of a network, and the targets of its weighted least-squares regression.

    Attributes:
        elements: elements on the path, ``[b, *element_shape]``.
        level: position on the path, 0 at the data and 1 at the base distribution, ``[b]``.
        momentum: momenta ``[b, dim]``, or ``None`` for paths without them.
        target: regression targets of unit size, ``[b, dim]``; rows that are not finite are skipped.
        weight: weight of each row in the mean of squares, ``[b]``.
    """

    elements: Tensor
    level: Float[Tensor, " b"]
    momentum: Float[Tensor, "b n"] | None
    target: Float[Tensor, "b n"]
    weight: Float[Tensor, " b"]

    def __repr__(self) -> str:
        return described(self)


@checked
class ProbabilityPath(ABC):
    """A path of distributions from data to a `GroupDistribution`: the kind of a `GroupDiffusion`.

    A new kind is one subclass with `fit`, `build`, `training_batch` and `flow`; `GroupDiffusion` takes the class in
    place of a name. A kind with a stochastic sampler sets `default_steps` and defines `sample_in_steps`.

    Attributes:
        group: the group of the elements.
        start_time: time of the flow at which elements stand for data.
        end_time: time of the flow at which elements follow the base distribution.
        default_steps: number of steps of `sample_in_steps` by default; ``None`` for paths that follow the flow to a
            tolerance by default.
        target_version: version of the regression target; networks trained on another version are refused.
    """

    group: LieGroup
    start_time: float
    end_time: float
    default_steps: ClassVar[int | None] = None
    target_version: int = 1

    @classmethod
    def uses_momentum(cls, group: LieGroup) -> bool:
        """Return whether networks on this group are given momenta; by default not."""
        return False

    @classmethod
    def fit_base(cls, group: LieGroup, samples: Tensor) -> GroupDistribution:
        """Fit the base distribution to samples ``[m, *element_shape]``; by default `fit_base_distribution`.

        Its type and shapes may depend on the group alone: a file holds only its numbers.
        """
        return fit_base_distribution(group, samples)

    @classmethod
    @abstractmethod
    def fit(
        cls, group: LieGroup, data: Tensor, generator: torch.Generator | None
    ) -> tuple[dict[str, Any], GroupDistribution]:
        """Choose the settings of the path, and fit its base distribution.

        Args:
            group: the group of the elements.
            data: training elements ``[m, *element_shape]``.
            generator: random numbers of noised data.

        Returns:
            Settings of plain JSON types, which `build` reads, and the base distribution.
        """

    @classmethod
    def fit_bridge(
        cls, group: LieGroup, data: Tensor, source: GroupDistribution, generator: torch.Generator | None
    ) -> dict[str, Any]:
        """Choose the settings of a path that ends at a given distribution; by default there is no such path.

        Args:
            group: the group of the elements.
            data: training elements ``[m, *element_shape]``.
            source: distribution at the end of the path.
            generator: random numbers.

        Raises:
            ConfigurationError: the path ends at a distribution that its noise fixes.
        """
        raise ConfigurationError(
            f"coupling: expected no Bridge for {cls.__name__}, which ends at the distribution of its noise, got one"
        )

    @classmethod
    @abstractmethod
    def build(cls: type[PathT], group: LieGroup, settings: Mapping[str, Any], base: GroupDistribution) -> PathT:
        """Build the path from what `fit` returned.

        Args:
            group: the group of the elements.
            settings: settings that `fit` chose.
            base: the base distribution.

        Raises:
            KeyError: a setting is missing.
        """

    @abstractmethod
    def training_batch(self, data: Tensor, generator: torch.Generator | None) -> TrainingBatch:
        """Draw levels, elements on the path and regression targets.

        Args:
            data: elements ``[b, *element_shape]`` of data.
            generator: random numbers; None is torch's.
        """

    @abstractmethod
    def flow(self, network: Network) -> TrivializedSDE:
        """Return the ordinary differential equation of the path, from data at ``start_time`` to ``end_time``.

        Args:
            network: a function (g, level, momentum) to algebra vectors, trained on the targets of `training_batch`.
        """

    def spread(self, level: Tensor) -> Tensor:
        """Return root mean square distances of elements from their data, up to a factor, ``[*batch]``.

        By default they are the levels themselves, as on a path of constant speed.

        Args:
            level: positions on the path, ``[*batch]``.
        """
        return level

    def sample(self, network: Network, start: Tensor, generator: torch.Generator | None, tolerance: float) -> Tensor:
        """Carry elements of the base distribution to data, along the `flow`.

        Args:
            network: the trained network.
            start: base elements ``[b, *element_shape]``.
            generator: source of random numbers, where the flow needs any.
            tolerance: largest error of one step of the flow, see `solve_adaptive`.
        """
        return solve_adaptive(self.flow(network), start, self.end_time, self.start_time, tolerance=tolerance).final

    def sample_in_steps(self, network: Network, start: Tensor, generator: torch.Generator | None, steps: int) -> Tensor:
        """Carry elements of the base distribution to data in a given number of steps.

        The default follows the `flow` by `GeometricHeun` in steps of equal length, with two evaluations of the network
        a step. A path with a stochastic sampler overrides this method.

        Args:
            network: trained function, see `flow`.
            start: starting elements ``[b, *element_shape]``.
            generator: random numbers; None is torch's.
            steps: number of steps.

        Returns:
            Elements ``[b, *element_shape]``; NaN where a chain failed.
        """
        grid = [self.end_time + (self.start_time - self.end_time) * k / steps for k in range(steps)]
        return solve(self.flow(network), start, [*grid, self.start_time], stepper=GeometricHeun()).final_or_nan

    def with_draws(self: PathT, num_draws: int) -> PathT:
        """Return the path with densities averaged over ``num_draws`` draws; itself where densities need no draws."""
        return self

    def with_coupling(self: PathT, coupling: str | Coupling) -> PathT:
        """Return the path with another coupling of data and base distribution, see `GroupDiffusion.fit`.

        Raises:
            ConfigurationError: the path draws them independently.
        """
        if coupling != "independent":
            raise ConfigurationError(f"coupling: expected 'independent' for {type(self).__name__}, got {coupling!r}")
        return self

    def log_density(
        self,
        network: Network,
        g: Tensor,
        base_log_prob: Callable[[Tensor], Tensor],
        generator: torch.Generator | None,
        tolerance: float,
        divergence: Divergence | None,
    ) -> Float[Tensor, " b"]:
        """Log-density of elements ``[b, *element_shape]`` for the measure of the base distribution, by the `flow`.

        Args:
            network: the trained network.
            g: elements at which the density is evaluated.
            base_log_prob: log-density of the base distribution, a function of elements to ``[b]``.
            generator: random numbers; ``None`` is torch's.
            tolerance: largest error of one step of the flow, see `solve_adaptive`.
            divergence: method for the divergence of the flow; ``None`` is `ExactDivergence`.
        """
        return flow_likelihood(
            self.flow(network),
            g,
            base_log_prob,
            start=self.start_time,
            end=self.end_time,
            tolerance=tolerance,
            divergence=divergence,
            generator=generator,
        ).log_density
