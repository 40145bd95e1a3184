"""Generative models of elements of any group: from samples to a model that draws and evaluates densities."""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trivgeo._deprecation import Converted, RenamedAttribute, renamed_arguments
from trivgeo._torch import pytree
from trivgeo.checks import check_choice, check_count, check_type
from trivgeo.errors import CheckpointError, ConfigurationError
from trivgeo.generative.base_distributions import BaseDistribution, EmpiricalDistribution
from trivgeo.generative.bodies import Bodies, MaskedCondition
from trivgeo.generative.conditioning import ConditionalNetwork, ConditionEncoder
from trivgeo.generative.data import TrainingData, check_pair, check_samples, check_training, training_data
from trivgeo.generative.fitted import FittedPath, SavedModel, write_model
from trivgeo.generative.law import ConditionalLaw
from trivgeo.generative.measure import check_connected
from trivgeo.generative.networks import GroupNetwork
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.generative.paths.diffusion import DiffusionPath
from trivgeo.generative.paths.flow_matching import Bridge, FlowMatchingPath
from trivgeo.generative.paths.kinetic import KineticPath
from trivgeo.groups import LieGroup

__all__ = ["PATHS", "FittedPath", "GroupDiffusion"]

PATHS: dict[str, type[ProbabilityPath]] = {
    "diffusion": DiffusionPath,
    "momentum": KineticPath,
    "flow": FlowMatchingPath,
}
"""The shipped kinds by name."""

_EARLY = "{}: {:g} seconds ended the training after {} of {} steps; give seconds="
_NUM_FIT_ROWS = 16_384  # to which base distribution, levels of noise and input scales are fitted
_MIN_FIT_ROWS, _MAX_FIT_ENTRIES = 1024, 2**21  # of them, where elements are large


class GroupDiffusion(ConditionalLaw):
    r"""A generative model on a group: fits samples, draws new elements, and evaluates densities.

    ```python
    model = GroupDiffusion(Torus(7), kind="diffusion")
    model.fit(samples)
    drawn, log_likelihoods = model.sample(1000), model.log_prob(test)
    ```

    ``kind`` is the probability path between data and base distribution: ``"diffusion"`` (`DiffusionPath`),
    ``"momentum"`` (`KineticPath`), ``"flow"`` (`FlowMatchingPath`), or a subclass of `ProbabilityPath` of your own. The
    base distribution is uniform (Haar) on compact factors of the group. On other factors it is a normal distribution
    or a mixture of normal distributions (`fit_base_distribution`).

    The reference measure of densities depends on the group: :math:`d\theta_1 \dots d\theta_n` on a torus, Haar measure
    of total mass one on other compact groups, and elsewhere the left Haar measure that equals, at the identity,
    Lebesgue measure in the basis of the group. A product of groups has the product of these measures.

    A model with a ``condition`` learns :math:`p(g \mid c)`:

    ```python
    model = GroupDiffusion(SO(3), kind="flow", condition=3)  # vectors of three numbers
    model.fit(samples, vectors)
    drawn = model.sample(100, condition=vector)
    ```

    A condition is a vector, or the input of a module that returns features ``[b, d]``. The module is trained with the
    network: ``condition=nn.Embedding(10, 32)`` for classes, a convolutional network for pictures. Parameters without
    ``requires_grad`` are not trained.

    A ``network`` of your own is a module ``(g, t, features)``. It receives elements g ``[*batch, *element_shape]``,
    positions on the path t ``[*batch]``, 0 at the data and 1 at the base distribution, and the features of the
    conditions, or ``None``. Without the argument ``condition`` the network receives the conditions themselves. It
    returns left-trivialized vectors v ``[*batch, dim]``, which stand for the tangent vectors :math:`d(L_g)_e[v]` at g.
    The targets have unit size: with kind "flow" the velocity of the path divided by its root mean square, with
    "diffusion" the noise, :math:`-\sigma \nabla \log p_t`, where each factor of a product has its own :math:`\sigma`.
    With kind "momentum", on groups that are not abelian, the network has one more argument ``momentum``
    ``[*batch, dim]``. A model that is fitted with a mask has the argument ``mask`` ``[*batch, N]``, true for bodies
    that are present. Densities need forward-mode derivatives of the network under `torch.vmap`.

    Args:
        group: the group of the data.
        kind: "diffusion", "momentum" or "flow", or a subclass of `ProbabilityPath`.
        seed: seed of the initial weights and of the training.
        condition: the dimension of conditions that are vectors, or a module from a batch of conditions to features;
            ``None`` for a model without conditions.
        network: a module of your own in place of a `GroupNetwork`; it is copied.
        condition_dropout: probability that a row of a training batch is without its condition. The model can then draw
            without a condition, and by classifier-free guidance (Ho and Salimans 2022).
        num_draws: number of noised elements that `fit` draws for each row of a batch. The module of the condition is
            evaluated once a row, so more draws save time if this module is larger than the network. Not saved.
        width: see `GroupNetwork`, also for ``depth``.

    Attributes:
        network: the network that is trained.
        encoder: the encoder of the conditions; ``None`` for a model without conditions.
        fitted: path, base distribution and settings, see `FittedPath`; ``None`` before `fit`.

    Raises:
        ConfigurationError: a setting is out of range, or the group is not connected.
    """

    def __init__(
        self,
        group: LieGroup,
        kind: str | type[ProbabilityPath] = "diffusion",
        seed: int = 0,
        *,
        condition: int | nn.Module | None = None,
        network: nn.Module | None = None,
        condition_dropout: float = 0.1,
        num_draws: int = 1,
        width: int = 256,
        depth: int = 3,
    ) -> None:
        super().__init__()
        self.group = check_connected(group)
        self._path_class = _path_class(kind)
        self.kind = kind if isinstance(kind, str) else kind.__name__
        self.seed, self.num_draws = check_count("seed", seed, 0), check_count("num_draws", num_draws)
        self.encoder: ConditionEncoder | None = None
        self.fitted: FittedPath | None = None
        if condition is not None:
            self.encoder = ConditionEncoder(condition, condition_dropout)
        elif network is not None:
            self.encoder = ConditionEncoder(nn.Identity(), 0.0)
        features = None if isinstance(condition, nn.Module) else condition  # those of a module are known by its output
        uses_momentum = self._path_class.uses_momentum(group)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            own = copy.deepcopy(network)
            self.network = GroupNetwork(group, uses_momentum, width, depth, features) if own is None else own
        self._frozen = {name for name, x in self._networks().named_parameters() if not x.requires_grad}
        self._shape = (width, depth)

    law = RenamedAttribute("fitted.base", until="0.4")
    lost = RenamedAttribute("fitted.num_skipped_rows", until="0.4")
    settings = RenamedAttribute("fitted.settings", until="0.4")
    transport = RenamedAttribute("fitted.path", until="0.4")
    distill = RenamedAttribute("distil", until="0.4")

    @renamed_arguments(until="0.4", train="samples", minutes=Converted("seconds", lambda minutes: 60.0 * minutes))
    def fit(
        self,
        samples: Any,
        condition: Any = None,
        *,
        steps: int = 20_000,
        seconds: float | None = None,
        batch_size: int = 512,
        learning_rate: float = 2e-3,
        coupling: str | Bridge = "independent",
        folder: str | Path | None = None,
        progress: bool | None = None,
    ) -> GroupDiffusion:
        """Train on elements, for a number of steps or a time; needs Lightning (``pip install trivgeo[training]``).

        Args:
            samples: elements ``[m, *element_shape]``, or a pair of them and their conditions; a `Dataset`, `DataLoader`
                or Lightning data module of elements, or of such pairs. They are brought to the device of the model,
                which takes their dtype. For numbers of bodies that vary, on a power ``G ** N`` of a unimodular group,
                triples of elements, conditions or ``None``, and a mask ``[m, N]`` of the bodies that are present; the
                others are padding of any content, see `pad_bodies`.
            condition: the conditions of the elements: vectors ``[m, condition]``, or what the module of the model
                takes, a tensor, or a tuple or dictionary of tensors, each ``[m, ...]``.
            steps: number of steps of the optimiser, at most.
            seconds: time after which the training ends; the step size falls to zero by then. By default ten minutes, of
                which a warning tells where they end the training.
            batch_size: rows of a step, drawn with repetition; a loader has its own.
            learning_rate: largest step of the optimiser.
            coupling: "optimal" couples data and base distribution of each batch by optimal transport, see
                `FlowMatchingPath`; for kind "flow" without conditions, of which it would make a bias. A `Bridge` puts a
                sample in place of the base distribution, also for kind "flow": `carry` takes its elements to the data,
                and there is no `log_prob`.
            folder: for checkpoints; a training that was killed goes on from there when called again.
            progress: show a bar; ``None`` for one on a terminal.

        Returns:
            The model itself.

        Raises:
            ShapeError: the data are no batch of two elements or more, there are not as many conditions, or the source
                of a bridge is no batch.
            NonFiniteError: they hold NaN or infinity, or the network or its weights do, after a training that diverged.
            DomainError: they are no elements of the group, or all the same one, of a group that is not compact.
            ConfigurationError: a number is out of range, the data are in half precision, conditions are missing or not
                expected, or the axes of a compact group are of lengths so unequal that its noise cannot be simulated.
            CheckpointError: the folder holds the checkpoint of another training.
        """
        from trivgeo.generative.training import PathTraining, train_average

        limit = check_training(steps, seconds, batch_size, learning_rate)
        device = self._like().device
        data = training_data(samples, condition, lambda pair: check_pair(pair, self.group, self.encoder, device))
        source, pairing = (None, coupling) if isinstance(coupling, str) else check_type("coupling", coupling, Bridge)
        if pairing != "independent" and self.encoder is not None:
            raise ConfigurationError(f"coupling: expected 'independent' for a model with conditions, got {pairing!r}")
        networks, fitted = self._set_up(data, source)
        if fitted.bodies is not None and not (source is None and pairing == "independent"):
            raise ConfigurationError(f"coupling: expected 'independent' for bodies with a mask, got {coupling!r}")
        fitted.path = fitted.path.with_coupling(pairing)
        training = PathTraining(networks, fitted.path, learning_rate, self.seed, self.num_draws)
        train_average(training, data.draw, steps, batch_size, limit, folder, progress, data.is_repeatable)
        networks.load_state_dict(training.average.state_dict())
        networks.to(device).eval()
        early = training.num_steps < steps
        if early and seconds is None:
            warnings.warn(_EARLY.format("fit", limit, training.num_steps, steps), stacklevel=2)
        fitted.num_skipped_rows = int(training.num_skipped_rows)
        fitted.num_steps, fitted.ended_by_time = training.num_steps, early
        self.network, self.encoder, self.fitted = networks.network, networks.encoder, fitted
        return self

    def distil(
        self,
        condition: Any = None,
        *,
        steps: int = 20_000,
        seconds: float | None = None,
        batch_size: int = 512,
        learning_rate: float = 1e-3,
        progress: bool | None = None,
    ) -> GroupDiffusion:
        """Train for samples in one step or a few, ``sample(1000, steps=1)``, see `FlowMap`; a model of kind "flow".

        Args:
            condition: conditions ``[m, ...]`` of which samples will be asked for, such as those of the training; for
                models with conditions.
            steps: see `fit`, like ``seconds``, ``batch_size``, ``learning_rate``, ``progress`` and the result.

        Raises:
            ConfigurationError: the model is not fitted, or follows no flow on the group by steps; a number is out of
                range; conditions are missing or not expected, or their features are no vectors.
            ShapeError: the conditions have another shape than those of the training.
            NonFiniteError: its flow is finite nowhere, or the training diverged.
        """
        from trivgeo.generative.training import train_flow_map

        fitted = self._fitted()
        limit = check_training(steps, seconds, batch_size, learning_rate)
        if self._bodies is not None:
            raise ConfigurationError("model: expected a model without masks, since a flow map takes none")
        if fitted.path.default_steps is not None:
            raise ConfigurationError(f'model: expected one of kind "flow", got {self.kind!r}')
        source = None
        if fitted.condition_ndims:
            if condition is None:
                raise ConfigurationError("condition: expected conditions to draw from, got none")
            leaf = pytree.tree_leaves(condition)[0]
            with torch.no_grad():
                source = self._features(condition, torch.Size([len(leaf)]))
        elif condition is not None:
            raise ConfigurationError("condition: expected none, for the model has no conditions")
        flow_map, num_steps = train_flow_map(
            self._networks(), fitted, source, self._shape, steps, limit, batch_size, learning_rate, self.seed, progress
        )
        if num_steps < steps and seconds is None:
            warnings.warn(_EARLY.format("distil", limit, num_steps, steps), stacklevel=2)
        fitted.flow_map = flow_map
        return self

    def save(self, path: str | Path) -> None:
        """Write weights, base distribution and settings to a safetensors file, with the fingerprint of the group.

        Weights of modules of your own are in it, their code is not: `load` is given such modules again.

        Args:
            path: the file.

        Raises:
            ConfigurationError: the model is not fitted.
        """
        fitted = self._fitted()
        model = {"kind": self.kind, "seed": self.seed, "shape": list(self._shape)}
        write_model(path, self.group, self._networks(), fitted, model)

    @classmethod
    def load(
        cls,
        path: str | Path,
        group: LieGroup,
        kind: type[ProbabilityPath] | None = None,
        *,
        condition: nn.Module | None = None,
        network: nn.Module | None = None,
    ) -> GroupDiffusion:
        """Read a model that `save` wrote.

        Args:
            path: the file.
            group: the group of the model, with its scale.
            kind: the class of the path, for models of a kind of your own.
            condition: a module like that of the conditions, whose weights are replaced, for models that have one.
            network: a module like the network, whose weights are replaced, for models with a network of your own.

        Raises:
            CheckpointError: the file is none of these, or its model is on another group or of another kind, has other
                modules, its weights are not finite, or they were trained on another version of the regression target.
        """
        saved = SavedModel(path, group)
        arguments = saved.arguments(condition, network)
        try:
            with saved.file.bounded():
                model = cls(group, saved.kind if kind is None else kind, **arguments)
            bodies = Bodies(group) if saved.is_masked else None
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: expected a file written by GroupDiffusion.save: {error!r}") from error
        if model.kind != saved.kind:
            raise CheckpointError(f"{path}: expected a model of kind {model.kind!r}, got one of {saved.kind!r}")
        networks = model._networks_for(bodies)
        model.fitted = saved.fill(networks, model._path_class)
        return model.eval()

    def _set_up(self, data: TrainingData, source: Any) -> tuple[ConditionalNetwork, FittedPath]:
        """Return networks for the data of a training, and what is fitted to data and source before it."""
        generator = torch.Generator(self._like().device).manual_seed(self.seed)
        count = _MAX_FIT_ENTRIES // math.prod(self.group.element_shape)
        rows, conditions = data.fit_rows(self.group, min(_NUM_FIT_ROWS, max(_MIN_FIT_ROWS, count)), generator)
        bodies, own = None, conditions
        if isinstance(conditions, MaskedCondition):
            bodies, (own, mask) = Bodies(self.group), conditions
            mask = mask.repeat(-(-len(rows) // len(mask)), 1)[: len(rows)]  # as the rows are repeated
            rows = bodies.fill(rows, mask, generator)
        base: BaseDistribution
        if source is None:
            settings, base = self._path_class.fit(self.group, rows, generator)
        else:
            source = check_samples(self.group, source, "source").detach()
            base = EmpiricalDistribution(self.group, source.to(rows))
            settings = self._path_class.fit_bridge(self.group, rows, base, generator)
        path = self._path_class.build(self.group, settings, base)
        networks = copy.deepcopy(self._networks_for(bodies)).to(rows).train()
        elements = path.training_batch(rows, generator).elements
        finite = elements[torch.isfinite(elements.flatten(1)).all(-1)]
        feature_shape = networks.prepare(finite, conditions, self.seed)
        for name, parameter in networks.named_parameters():
            parameter.requires_grad_(name not in self._frozen)
        if not any(parameter.requires_grad for parameter in networks.parameters()):
            raise ConfigurationError("network: expected parameters to train, got none that require gradients")
        ndims = () if own is None else tuple(x.ndim - 1 for x in pytree.tree_leaves(own))
        return networks, FittedPath(path, base, settings, ndims, feature_shape, bodies)


def _path_class(kind: Any) -> type[ProbabilityPath]:
    """Return the class of a kind that is given by name or as a class, or raise `ConfigurationError`."""
    if isinstance(kind, type) and issubclass(kind, ProbabilityPath):
        return kind
    return PATHS[check_choice("kind", kind, tuple(PATHS))]
