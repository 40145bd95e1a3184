"""Methods of other authors, and baselines: each is a short list of stages with the settings of its paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from torch import Tensor

from trivgeo.checks import check_positive, checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.inverter import Inverter
from trivgeo.inversion.posterior import check_action
from trivgeo.inversion.stages.chains import AddNoise, Replicate
from trivgeo.inversion.stages.descend import (
    Adam,
    AlgebraCoordinates,
    Descend,
    GroupElements,
    HeavyBall,
    Parametrization,
)
from trivgeo.inversion.stages.gaussian_search import GaussianSearch
from trivgeo.inversion.stages.langevin_dynamics import Langevin
from trivgeo.inversion.stages.reverse_diffusion import ReverseDiffusion, ReverseDiffusionOptions, ScoreBound
from trivgeo.inversion.stages.search_orbits import OrbitCriterion, SearchLevel, SearchOrbits
from trivgeo.sde import GeometricSchedule, Schedule, Stepper

_SETTINGS = ("schedule", "steps", "num_mc", "num_hypotheses", "temperature", "max_score_norm")


@checked
class ReverseDiffusionSearch(Inverter):
    r"""Searches the transformation posterior by reversing a trivialized diffusion (Kim et al. 2026, algorithm 1).

    For each datum K independent chains start from noise, and follow the score of :math:`p(g \mid \tilde x) \propto
    e^{-E(g) / T}`. The result has the ends of all chains; `InversionResult.best` is the element of lowest energy. The
    method is a search: the share of chains in a well is not the posterior weight of the well, since few noise samples
    estimate the score (see `ReverseDiffusion`). For weights use `PosteriorSampler`. ``keep_best``, ``pruning``, and a
    `Descend` after the method make the search more precise. `TIED` finds more by as many evaluations on most energies.
    Stages: `Replicate`, `AddNoise`, `ReverseDiffusion`.

    ```python
    search = ReverseDiffusionSearch(action, energy, GeometricSchedule(0.05, 0.7), keep_best=True, pruning=[(0.5, 8)])
    sharper = search.then(Descend(50))
    ```

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        schedule: the noise; by default geometric over `Action.noise_range`, from 0.1 to 1 for points and from 0.01 to
            0.35 for images. Its largest coefficient should reach the transformations that are expected.
        steps: number M of reverse steps.
        num_mc: number N of noise samples of one score, see `ReverseDiffusion`.
        num_hypotheses: number K of chains.
        temperature: T of the density :math:`e^{-E(g) / T}`, see `ReverseDiffusion`.
        max_score_norm: longer scores are shortened to this length, see `ReverseDiffusion`.
        reverse: see `ReverseDiffusion`: ``side``, ``keep_best``, ``pruning``, ``published``. Settings of
            every inverter, such as ``max_evaluations``, come by `Inverter.replace`.

    Raises:
        ConfigurationError: a setting is unknown or out of its range, or an argument is not an action or an energy.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        schedule: Schedule | None = None,
        steps: int = 50,
        num_mc: int = 2,
        num_hypotheses: int = 16,
        temperature: float = 1.0,
        max_score_norm: ScoreBound = "adaptive",
        **reverse: Unpack[ReverseDiffusionOptions],
    ) -> None:
        known = ReverseDiffusionOptions.__annotations__
        if unknown := reverse.keys() - known.keys():
            if any(isinstance(value, Stepper) for value in reverse.values()):
                raise ConfigurationError(
                    f"{', '.join(sorted(unknown))}: expected no stepper: this is a search, also with resampled chains; "
                    "samples with weights come from PosteriorSampler, other steppers are for `trivgeo.sde.solve`"
                )
            raise ConfigurationError(
                f"settings: expected some of {', '.join((*_SETTINGS, *known))}, got {', '.join(sorted(unknown))}; "
                "replace(...) sets what all inverters share, such as max_evaluations"
            )
        schedule = GeometricSchedule(*check_action(action).noise_range) if schedule is None else schedule
        stage = ReverseDiffusion(schedule, steps, num_mc, temperature, max_score_norm, **reverse)
        start = Replicate(num_hypotheses)
        stage.check_size(num_hypotheses)
        super().__init__(action, as_energy(energy), [start, AddNoise(schedule, steps, side=stage.side), stage])


@checked
class LieLAC(Inverter):
    r"""Minimises the posterior energy by Adam from K random starts (Shumaylov et al. 2025).

    As published, over algebra coordinates: :math:`\min_v E(\exp v)`, started at :math:`v \sim N(0, \sigma^2 I)`. With
    ``GroupElements()`` the same Adam runs on the group, by left-trivialized gradients and steps
    :math:`g \leftarrow g \exp v`: Riemannian Adam, which does not depend on the chart and reaches elements without a
    logarithm. Stages: `Replicate`, `Descend`.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        steps: gradient steps of each chain.
        learning_rate: size of a step of `Adam`, in units of the group's basis.
        num_hypotheses: number K of starts.
        start_std: standard deviation of random starts about the identity; 0 for the identity itself, see `Descend`.
        parametrization: `AlgebraCoordinates` (the default) or `GroupElements`.
        keep_best: return the element of lowest energy that a chain has met, not its last one, see `Descend`.

    Raises:
        ConfigurationError: a setting is out of its range, or an argument is not an action or an energy.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        steps: int = 100,
        learning_rate: float = 0.01,
        num_hypotheses: int = 64,
        start_std: float = 0.3,
        parametrization: Parametrization | None = None,
        keep_best: bool = False,
    ) -> None:
        space = AlgebraCoordinates() if parametrization is None else parametrization
        descent = Descend(steps, Adam(learning_rate), space, check_positive("start_std", start_std), keep_best)
        super().__init__(action, as_energy(energy), [Replicate(num_hypotheses), descent])


@checked
class ITS(Inverter):
    """Inverse transformation search (Schmidt and Stober 2024): the stage `SearchOrbits`, with its arguments.

    The method was made for affine transformations, but accepts any group.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        levels: levels of the search, or their number, see `SearchOrbits`.
        num_samples: samples of each level.
        num_hypotheses: number K of hypotheses.
        classes: function from a batch of data to classes ``[batch]``; ``None`` for no diversity.
        criterion: criterion that a level minimises, see `SearchOrbits`.

    Raises:
        ConfigurationError: see `SearchOrbits`; or an argument is not an action or an energy.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        levels: int | Sequence[SearchLevel] | None = None,
        num_samples: int = 16,
        num_hypotheses: int = 3,
        classes: Callable[[Any], Any] | None = None,
        criterion: OrbitCriterion | None = None,
    ) -> None:
        stage = SearchOrbits(levels, num_samples, num_hypotheses, classes, criterion)
        super().__init__(action, as_energy(energy), [stage])
        stage.levels_of(self.action.group)


@checked
class KineticLangevin(Inverter):
    """Searches by kinetic Langevin dynamics of the transformation posterior, from the identity (Kong and Tao 2024).

    The chains are draws of the posterior only once they have mixed, which nothing checks, and seldom go from one well
    to another: the share of chains in a well is not the weight of the well. For weights use `PosteriorSampler`. Stages:
    `Replicate`, `Langevin`. The defaults are the published ones for images; those for differential equations are 1,000
    steps of 1e-5 to 1e-4.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        steps: number of steps of the splitting scheme, see `Langevin`.
        step_size: time of a step.
        num_hypotheses: number K of chains.
        friction: decay rate of the momentum, positive.
        temperature: T of the density :math:`e^{-E(g) / T}`, see `Langevin`.
        coadjoint: keep the coadjoint term of the momentum, see `KineticLangevinSDE`.

    Raises:
        ConfigurationError: a setting is out of its range, or an argument is not an action or an energy.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        steps: int = 1600,
        step_size: float = 2e-4,
        num_hypotheses: int = 4,
        friction: float = 1.0,
        temperature: float = 1.0,
        coadjoint: bool = True,
    ) -> None:
        stage = Langevin(steps, step_size, friction, temperature, coadjoint)
        super().__init__(action, as_energy(energy), [Replicate(num_hypotheses), stage])


@checked
class GradientDescent(Inverter):
    r"""Plain gradient descent on the group from K random starts; the number of starts and of steps is the budget.

    :math:`v \leftarrow \mu v - \eta \nabla_{\mathfrak g} E(g)`, :math:`g \leftarrow g \exp v`: `Replicate`, and
    `Descend` by `HeavyBall`, whose arguments these are.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        steps: gradient steps of each chain.
        learning_rate: the size of a step.
        num_hypotheses: number K of starts.
        start_std: standard deviation of random starts about the identity; 0 for the identity itself, see `Descend`.
        momentum: the share of the last step that is kept, see `HeavyBall`.
        max_gradient_norm: longer gradients are shortened to this length, see `HeavyBall`.
        keep_best: return the element of lowest energy that a chain has met, not its last one, see `Descend`.

    Raises:
        ConfigurationError: a setting is out of its range, or an argument is not an action or an energy.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        steps: int = 100,
        learning_rate: float = 0.01,
        num_hypotheses: int = 64,
        start_std: float = 0.3,
        momentum: float = 0.0,
        max_gradient_norm: float | None = 1.0,
        keep_best: bool = False,
    ) -> None:
        rule = HeavyBall(learning_rate, momentum, max_gradient_norm)
        descent = Descend(steps, rule, GroupElements(), check_positive("start_std", start_std), keep_best)
        super().__init__(action, as_energy(energy), [Replicate(num_hypotheses), descent])


@checked
class RandomSearch(Inverter):
    """Search for the best of random elements around the identity: the stage `GaussianSearch`, with its arguments.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        num_samples: number of elements drawn; by default as many as `LieLAC` evaluates.
        num_hypotheses: number K of elements kept, see `GaussianSearch`.
        std: standard deviation of the draws, in units of the group's basis.

    Raises:
        ConfigurationError: a setting is out of its range, or an argument is not an action or an energy.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        num_samples: int = 6400,
        num_hypotheses: int = 64,
        std: float = 0.3,
    ) -> None:
        super().__init__(action, as_energy(energy), [GaussianSearch(num_samples, num_hypotheses, std)])
