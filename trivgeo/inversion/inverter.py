"""One inverter for every method: it runs stages, and alone owns batches, memory, counts, progress and devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from trivgeo._devices import module_device, on_device
from trivgeo._numerics import is_traced
from trivgeo._random import streams_for
from trivgeo._timing import announce
from trivgeo._torch import pytree
from trivgeo.checks import check_positive, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Action
from trivgeo.inversion.bounds import Bound, check_bound
from trivgeo.inversion.energies.base import DataEnergy, FunctionEnergy
from trivgeo.inversion.equivariant.varied_sizes import invert_by_size, is_list_of_images
from trivgeo.inversion.evaluation import evaluation_mode, explained_dtypes, networks_in
from trivgeo.inversion.posterior import InverseProblem, Posterior
from trivgeo.inversion.result import InversionResult
from trivgeo.inversion.sampling.mixture import StudentMixture
from trivgeo.inversion.stage import Population, StageLike, check_stage, costs_of, run_stages
from trivgeo.verdict import Verdict

Progress = bool | Callable[[int, int], None] | None
_SHORTEST_CALL_IN_SECONDS = 1e-3  # time of a part of a list of images when the time of all is up
_SAID_AFTER_IN_SECONDS = 1.0  # time after which a step says how long all will take
_BAR_DELAY_IN_SECONDS = 2.0  # time after which a bar appears on a terminal


@checked
class Inverter(nn.Module):
    r"""Finds the unknown g in data :math:`\tilde x = g.x` by a list of stages; the first stage receives the identity.

    A method, such as `TIED` or `LieLAC`, is a constructor that lists its stages. `then` appends stages.

    ```python
    search = Inverter(action, energy, [Replicate(64), Descend(100), Select(1)])
    sharper = TIED(action, energy).then(Descend(50))
    ```

    Args:
        action: the action on data.
        energy: a `DataEnergy`, or a function from a batch of data to ``[batch]``; ``None`` for methods that need none:
            the energy is then zero where a hypothesis can be undone. A `torch.nn.Module`, also given by one of its
            methods, is in evaluation mode during a call with all its parts, and back in training mode after it; a
            network that another function calls stays in its mode.
        stages: the stages in order; see `Stage`.
        log_det: keep the log-determinant of the action in the posterior energy, see `InverseProblem` (published: off).
        max_evaluations: the largest number of energies, or of data seen by a network, at once: bounds memory, and
            changes no result but by rounding. ``"auto"`` chooses it from the size of a datum, the device and the memory
            of an energy, see `trivgeo.inversion.bounds.automatic_bound`; ``None`` is no bound.
        max_memory: memory in GiB that energies with their gradients may take at once, where ``max_evaluations`` is
            ``"auto"``; by default 1 on a CPU, and half of what is free on a GPU. The memory of an energy is measured on
            the first data of each shape, two of which are evaluated for it.
        seconds: time of a call, at whose end stages that draw or descend return what they have found; those that solve
            a differential equation (`ReverseDiffusion`, `Langevin`) go on to their end. ``None`` for no bound.
        progress: a progress bar; ``None`` for one on a terminal in runs of more than two seconds; or a function of
            the numbers of steps done and in all.
        compiled: evaluate energies with their gradients by one graph of `torch.compile`, action, networks and all; of
            use on a GPU. Compiling takes half a minute at the first call; code is kept in torch's cache. The first
            result is compared with the eager one; a warning says where evaluation stays eager, and why.

    Attributes:
        known: function from a result to a verdict for each datum, by what is known of the search, as of `TIED` with
            clean data; ``None`` if nothing is, see `InversionResult.verdicts`. `then` and `replace` keep it.

    Raises:
        ConfigurationError: an argument is not an action, an energy or a stage, or a bound is below one.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor] | None,
        stages: Sequence[StageLike],
        *,
        log_det: bool = False,
        max_evaluations: Bound = "auto",
        max_memory: float | None = None,
        seconds: float | None = None,
        progress: Progress = None,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        self._problem = InverseProblem(action, energy, log_det=log_det, compiled=compiled)
        self.compiled = compiled
        self._stages = tuple(check_stage(stage) for stage in stages)
        own = self._problem.energy
        self.networks = nn.ModuleList(networks_in(() if isinstance(own, nn.Module) else own, self._stages))
        # shows where `to` put an inverter without networks
        self.register_buffer("_reference", torch.empty(0), persistent=False)
        self._reference: Tensor
        self.max_evaluations = check_bound(max_evaluations)
        self.max_memory = None if max_memory is None else check_positive("max_memory", max_memory)
        self.seconds = None if seconds is None else check_positive("seconds", seconds)
        self.progress = progress
        self.known: Callable[[InversionResult], tuple[Verdict, ...]] | None = None

    def __repr__(self) -> str:
        energy = "no energy" if self.energy is None else name_of(self.energy)
        stages = ", ".join(map(name_of, self.stages))
        return f"{type(self).__name__}({self.action!r}, {energy}, [{stages}])"

    @property
    def problem(self) -> InverseProblem:
        """The action and the energy."""
        return self._problem

    @property
    def stages(self) -> tuple[StageLike, ...]:
        """The stages, in order."""
        return self._stages

    @property
    def action(self) -> Action:
        """The action on data."""
        return self.problem.action

    @property
    def energy(self) -> DataEnergy | None:
        """The energy of data."""
        return self.problem.energy

    def then(self, *stages: StageLike) -> Inverter:
        """Return an inverter that runs the stages of this one, then further ``stages``."""
        return self._made_of([*self.stages, *stages], self._settings())

    def replace(self, **settings: Any) -> Inverter:
        """Return an inverter of the same stages with other settings.

        Args:
            **settings: ``log_det``, ``max_evaluations``, ``max_memory``, ``seconds``,
                ``progress``, ``compiled``; see `Inverter`.

        Raises:
            ConfigurationError: a setting is unknown, or none of its values.
        """
        own = self._settings()
        if unknown := settings.keys() - own.keys():
            raise ConfigurationError(f"settings: expected some of {', '.join(own)}, got {', '.join(sorted(unknown))}")
        return self._made_of(self.stages, own | settings)

    def _settings(self) -> dict[str, Any]:
        """Return the settings that `replace` changes."""
        own: dict[str, Any] = {"log_det": self.problem.log_det, "max_evaluations": self.max_evaluations}
        own |= {"max_memory": self.max_memory, "seconds": self.seconds}
        return own | {"progress": self.progress, "compiled": self.compiled}

    def _made_of(self, stages: Sequence[StageLike], settings: dict[str, Any]) -> Inverter:
        """Return an inverter of other stages and settings, at the place of this one."""
        other = Inverter(self.action, self.energy, stages, **settings)
        other._reference, other.known = self._reference, self.known
        return other

    def forward(
        self, x_tilde: Any, *, generator: torch.Generator | None = None, initial: Tensor | None = None
    ) -> InversionResult:
        """Find hypotheses for g; the restored data are ``action(group.inverse(r.best()), x_tilde)``.

        Args:
            x_tilde: data of the action, with one batch dimension b; or a list of b images ``[c, h, w]``, of several
                sizes, for an action on images. They are brought to the device of the inverter, unless it has no
                networks and was not moved; the result is on the device of the data.
            generator: source of noise, on any device. Every datum draws from its own stream, so that its result does
                not depend on the batch: streams 0, ..., b - 1, unless the generator is a `trivgeo.sde.NoiseStreams`.
            initial: the elements that the first stage is given, ``[b, K, *element_shape]``; default the identity.

        Raises:
            ShapeError: the data do not fit the action, or have no batch dimension, or ``initial`` does not fit them.
            NonFiniteError: the data hold NaN or infinity.
            ConfigurationError: the data are in a dtype that a network does not take.
        """
        began = time.perf_counter()
        if is_list_of_images(self.action, x_tilde):
            return invert_by_size(self._sharing_time(x_tilde, began), x_tilde, generator, initial)
        # gradients by torch.func need no graph of what happens outside of them
        with torch.inference_mode(False), torch.no_grad(), evaluation_mode(self), self._bar() as on_step:
            device = module_device(self)
            x = pytree.tree_map(_usable, on_device(x_tilde, device))
            initial = on_device(initial, device)
            with explained_dtypes("x_tilde", self, x):
                given = self.problem.given(
                    x, max_evaluations=self.max_evaluations, max_memory=self.max_memory, on_step=on_step
                )
            given.deadline = None if self.seconds is None else began + self.seconds
            population = _beginning(given, initial)
            noise = streams_for(given.batch, given.reference, generator)
            with explained_dtypes("x_tilde", self, x):
                result = run_stages(self.stages, given, population, noise).evaluated(given).result(given)
        return result if self.known is None else replace(result, stage_verdicts=self.known(result))

    def _sharing_time(self, images: Sequence[Tensor], began: float) -> Callable[..., InversionResult]:
        """Return this inverter for parts of a list of images, each with its share of the time that is left."""
        if self.seconds is None:
            return self
        end, left = began + self.seconds, sum(torch.as_tensor(image).numel() for image in images)

        def invert(part: Tensor, **given: Any) -> InversionResult:
            nonlocal left
            seconds = (end - time.perf_counter()) * part.numel() / left
            left -= part.numel()
            return self.replace(seconds=max(seconds, _SHORTEST_CALL_IN_SECONDS))(part, **given)

        return invert

    def proposal(self, x: Any, generator: torch.Generator | None = None) -> tuple[StudentMixture, int] | None:
        """Return a mixture near the posteriors of data, and the number of network evaluations for each datum.

        By default ``None``: few inverters have a density.

        Args:
            x: data with one batch dimension.
            generator: the source of noise.
        """
        return None

    @contextmanager
    def _bar(self) -> Iterator[Callable[[], None] | None]:
        """Yield the function that each step of a stage calls; ``None`` in a program without time."""
        costs, name = costs_of(self.stages), type(self).__name__
        total = len(costs)
        if callable(self.progress):
            yield _Counter(self.progress, costs, name)
        elif is_traced() or total == 0:
            yield None
        elif self.progress is False:
            yield _Counter(lambda done, total: None, costs, name)
        else:
            hidden = None if self.progress is None else False  # None: unless on a terminal
            delay = _BAR_DELAY_IN_SECONDS if self.progress is None else 0.0
            with tqdm(total=total, desc=name, disable=hidden, delay=delay, leave=False) as bar:
                yield _Counter(lambda done, total: bar.update() and None, costs, name)


class _Counter:
    """Calls a function with the numbers of finished and of all steps; the log says early how long all take."""

    def __init__(self, report: Callable[[int, int], None], costs: Sequence[float], name: str) -> None:
        self._report, self._costs, self._total, self._done, self._name = report, costs, len(costs), 0, name
        self._began, self._is_said = time.perf_counter(), False

    def __call__(self) -> None:
        self._done = min(self._done + 1, self._total)  # a stage may begin again where it has arrived early
        elapsed = time.perf_counter() - self._began
        if not self._is_said and elapsed > _SAID_AFTER_IN_SECONDS:
            self._is_said = True
            announce(f"{self._name}: {self._total} steps", elapsed * sum(self._costs) / sum(self._costs[: self._done]))
        self._report(self._done, self._total)


def name_of(thing: object) -> str:
    """Return the name of a stage or an energy: of a function its own, of an object that of its class."""
    if isinstance(thing, FunctionEnergy):
        thing = thing.function
    return thing.__name__ if isinstance(thing, FunctionType) else type(thing).__name__


def _usable(leaf: Any) -> Any:
    """Return a tensor that allows gradients, also for one that was made under inference_mode."""
    return leaf.clone() if isinstance(leaf, Tensor) and leaf.is_inference() else leaf


def _beginning(given: Posterior, initial: Tensor | None) -> Population:
    reference = given.reference
    if initial is None:
        # under torch.export the batch is a symbolic integer, which `identity(*batch)` would reject
        initial = given.group.identity(dtype=reference.dtype, device=reference.device)
        initial = initial.expand(given.batch, 1, *initial.shape)
    given.group.check_elements(initial, "initial")
    shape = given.group.batch_shape(initial)
    if len(shape) != 2 or shape[0] != given.batch:
        raise ShapeError(f"initial: expected elements for {given.batch} data [b, K, ...], got batch {list(shape)}")
    return Population.at(initial)
