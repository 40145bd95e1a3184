"""Generative models of elements of any group: from samples to a model that draws and evaluates densities."""

from __future__ import annotations

import copy
import functools
import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._processes import join
from trivgeo._torch import pytree
from trivgeo.checks import check_choice, check_count, check_positive, check_seed, check_type, checked
from trivgeo.errors import CheckpointError, ConfigurationError, ShapeError
from trivgeo.generative.conditioning import ConditionalNetwork, ConditionEncoder
from trivgeo.generative.distributions import (
    EmpiricalDistribution,
    GroupDistribution,
    check_samples,
    log_mass,
)
from trivgeo.generative.fitted import FittedPath, SavedModel, write_model
from trivgeo.generative.group_network import GroupNetwork
from trivgeo.generative.history import TrainingHistory
from trivgeo.generative.particles import MaskedCondition, Particles
from trivgeo.generative.paths import PATHS, Bridge, ProbabilityPath
from trivgeo.generative.paths.base import Coupling
from trivgeo.groups import LieGroup
from trivgeo.sde.likelihood import Divergence
from trivgeo.sde.solvers.runge_kutta import solve_adaptive

__all__ = ["GroupDiffusion", "ModelDistribution"]

_TOLERANCE = 1e-4  # largest error of one step of a flow
_NUM_FIT_ROWS = 16_384  # rows to which base distribution, levels of noise and input scales are fitted
_MIN_FIT_ROWS, _MAX_FIT_ENTRIES = 1024, 2**21  # rows at least, and entries of their elements, for large elements


@checked
class GroupDiffusion(nn.Module):
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

    Densities are for left Haar measure, as those of every `GroupDistribution`: of total mass one on compact groups, and
    elsewhere the one that equals, at the identity, Lebesgue measure in the basis of the group. A product of groups has
    the product of these measures. ``log_prob(g, measure="volume")`` converts to the volume on compact groups, too,
    which is :math:`d\theta_1 \dots d\theta_n` on a torus.

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
    ``[*batch, dim]``. A model that is fitted with a mask has the argument ``mask`` ``[*batch, N]``, true for particles
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
        networks: the network and the encoder of its conditions in one module.
        fitted: path, base distribution and settings, see `FittedPath`; ``None`` before `fit`.
        history: losses of the training and its verdict, see `TrainingHistory`; ``None`` before `fit` and after `load`.

    Raises:
        ConfigurationError: a setting is out of range, the group is not connected, or a module is wrapped for parallel
            training, as by ``DistributedDataParallel``.
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
        self.group = _connected(group)
        self._path_class = _path_class(kind)
        self.kind = kind if isinstance(kind, str) else kind.__name__
        self.seed, self.num_draws = check_seed(seed), check_count("num_draws", num_draws)
        encoder: ConditionEncoder | None = None
        self.fitted: FittedPath | None = None
        self.history: TrainingHistory | None = None
        if condition is not None:
            encoder = ConditionEncoder(condition, condition_dropout)
        elif network is not None:
            encoder = ConditionEncoder(nn.Identity(), 0.0)
        _check_unwrapped(condition=condition, network=network)
        features = None if isinstance(condition, nn.Module) else condition  # those of a module are known by its output
        uses_momentum = self._path_class.uses_momentum(group)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            own = copy.deepcopy(network)
            own = GroupNetwork(group, uses_momentum, width, depth, features) if own is None else own
        self.networks = ConditionalNetwork(group, own, encoder, uses_momentum)
        self._frozen = {name for name, x in self.networks.named_parameters() if not x.requires_grad}
        self._shape = (width, depth)
        self._data_dim: int | None = None  # of a space of which the data are lifts

    @property
    def network(self) -> nn.Module:
        """The network that is trained."""
        return self.networks.network

    @property
    def encoder(self) -> ConditionEncoder | None:
        """The encoder of the conditions; ``None`` for a model without conditions."""
        return self.networks.encoder

    def fit(
        self,
        samples: Any,
        condition: Any = None,
        *,
        steps: int = 20_000,
        seconds: float | None = None,
        batch_size: int = 512,
        learning_rate: float = 2e-3,
        coupling: str | Coupling | Bridge = "independent",
        held_out: Any = 0.0,
        folder: str | Path | None = None,
        progress: bool | None = None,
    ) -> GroupDiffusion:
        """Train on elements, for a number of steps or a time; needs the package ``lightning``.

        Processes that ``torchrun`` started train one model. Base distribution and levels of noise are fitted to the
        data of all, whether all have the same data or each a part; each step takes ``batch_size`` rows of all together.

        Args:
            samples: elements ``[m, *element_shape]``, or a pair of them and their conditions; a `Dataset`, `DataLoader`
                or Lightning data module of elements, or of such pairs. They are brought to the device of the model,
                which takes their dtype. For numbers of particles that vary, on a power ``G ** N`` of a unimodular
                group, triples of elements, conditions or ``None``, and a mask ``[m, N]`` of the particles that are
                present; the others are padding of any content, see `pad_particles`.
            condition: the conditions of the elements: vectors ``[m, condition]``, or what the module of the model
                takes, a tensor, or a tuple or dictionary of tensors, each ``[m, ...]``.
            steps: number of steps of the optimiser, at most.
            seconds: time of the whole call; the step size falls to zero by then. By default ten minutes, of which a
                warning tells where they end the training.
            batch_size: rows of a step, drawn with repetition; a loader has its own.
            learning_rate: largest step of the optimiser.
            coupling: "optimal" couples data and base distribution of each batch by optimal transport, see
                `FlowMatchingPath`; for kind "flow" without conditions, since it would bias them. A function changes
                each draw by its datum alone, such as `HomogeneousSpace.align`. A `Bridge` puts a sample in place of the
                base distribution, also for kind "flow": `carry` takes its elements to the data, and there is no
                `log_prob`.
            held_out: a share of the samples, or further data like them, that the training only looks at, ten times: the
                model then has the weights by which they are likeliest, `history` has their likelihood, and a training
                ends early if it grows no more. A training that has not converged warns. By default none.
            folder: folder for checkpoints; a training that was killed goes on from there when called again.
            progress: show a bar; ``None`` for one on a terminal.

        Returns:
            The model itself.

        Raises:
            ShapeError: the data are no batch of two elements or more, there are not as many conditions, or the source
                of a bridge is no batch.
            NonFiniteError: the data hold NaN or infinity, or the network or its weights do, after a diverged training.
            DomainError: the data are no elements of the group, or all equal, on a group that is not compact.
            ConfigurationError: a number is out of range, the data are in half precision, conditions are missing or not
                expected, or the axes of a compact group are of lengths so unequal that its noise cannot be simulated.
            CheckpointError: the folder holds the checkpoint of another training.
        """
        from trivgeo.generative import diffusion_training as training

        settings = training.TrainingSettings(steps, seconds, batch_size, learning_rate, progress).checked()
        start, device = time.perf_counter(), self._like().device
        join(device)
        check = functools.partial(training.check_pair, group=self.group, encoder=self.encoder, device=device)
        data = training.training_data(samples, condition, check)
        source, pairing = (None, coupling) if not isinstance(coupling, Bridge) else coupling
        if not (isinstance(pairing, str) or callable(pairing)):
            raise ConfigurationError(f"coupling: expected a name, a function or a Bridge, got {coupling!r}")
        if pairing != "independent" and not callable(pairing) and self.encoder is not None:
            raise ConfigurationError(f"coupling: expected 'independent' for a model with conditions, got {pairing!r}")
        generator = torch.Generator(device).manual_seed(self.seed)
        held = training.held_out_rows(held_out, data, check, self.seed)
        num_rows = _MAX_FIT_ENTRIES // math.prod(self.group.element_shape)
        rows = data.fit_rows(self.group, min(_NUM_FIT_ROWS, max(_MIN_FIT_ROWS, num_rows)), generator)
        networks, fitted = self._set_up(*rows, source, generator)
        if networks.particles is not None and not (source is None and pairing == "independent"):
            raise ConfigurationError(f"coupling: expected 'independent' for particles with a mask, got {coupling!r}")
        fitted.path = fitted.path.with_coupling(pairing)
        module = training.PathTraining(
            networks, fitted.path, learning_rate, self.seed, self.num_draws, held, fitted.base
        )
        settings = settings.after(time.perf_counter() - start)
        fitted.ended_by_time = training.train_average(module, data.draw, settings, folder, data.is_repeatable, True)
        networks.load_state_dict(module.best_state)
        networks.to(device).eval()
        fitted.num_steps, fitted.num_skipped_rows = module.num_steps, int(module.num_skipped_rows)
        self.networks, self.fitted, self.history = networks, fitted, module.history
        if held is not None and not (verdict := self.history.verdict):
            warnings.warn(f"fit: {'; '.join(verdict.reasons)}", stacklevel=3)  # the caller, which `checked` wraps
        return self

    def distil(
        self,
        condition: Any = None,
        *,
        steps: int = 20_000,
        seconds: float | None = None,
        batch_size: int = 512,
        learning_rate: float = 2e-3,
        progress: bool | None = None,
    ) -> GroupDiffusion:
        """Train for samples in one step or a few, ``sample(1000, steps=1)``, see `FlowMap`; a model of kind "flow".

        Args:
            condition: conditions ``[m, ...]`` of which samples will be asked for, such as those of the training; for
                models with conditions.
            steps: see `fit`, also for ``seconds``, ``batch_size``, ``learning_rate``, ``progress`` and the result.

        Raises:
            ConfigurationError: the model is not fitted, or follows no flow on the group by steps; a number is out of
                range; conditions are missing or not expected, or their features are no vectors.
            ShapeError: the conditions have another shape than those of the training.
            NonFiniteError: the flow of the model is finite nowhere, or the training diverged.
        """
        from trivgeo.generative import diffusion_training as training

        fitted = self._fitted()
        settings = training.TrainingSettings(steps, seconds, batch_size, learning_rate, progress).checked()
        if self.networks.particles is not None:
            raise ConfigurationError("model: expected a model without masks, since a flow map takes none")
        if fitted.path.default_steps is not None:
            raise ConfigurationError(f'model: expected one of kind "flow", got {self.kind!r}')
        source = None
        if fitted.condition_ndims:
            if condition is None:
                raise ConfigurationError("condition: expected conditions to draw from, got none")
            leaf = pytree.tree_leaves(condition)[0]
            if len(leaf) == 0:
                raise ShapeError("condition: expected at least one condition to draw from, got none")
            with torch.no_grad():
                source = self._features(condition, torch.Size([len(leaf)]))
        elif condition is not None:
            raise ConfigurationError("condition: expected none, for the model has no conditions")
        fitted.flow_map = training.train_flow_map(self.networks, fitted, source, self._shape, settings, self.seed)
        return self

    def sample(
        self,
        num_samples: int | Sequence[int],
        *,
        condition: Any = None,
        guidance: float = 1.0,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        steps: int | None = None,
        tolerance: float | None = None,
    ) -> Tensor:
        r"""Draw elements, ``[num_samples, *element_shape]``, projected on the group to the last digit.

        By default kinds "diffusion" and "momentum" follow the stochastic process, whose noise corrects errors of the
        network. Kind "flow", and every kind with a ``tolerance``, follows the deterministic flow, whose density is
        `log_prob`. Rows that are not finite, after too little training, are NaN.

        With kind "flow", ``steps`` counts steps of Heun's method. After `distil` it counts steps of the learned map,
        of which one is accurate; ten steps of Heun's method are not.

        Args:
            num_samples: number of elements, or the shape of their batch.
            condition: one condition for all elements, or one for each element. Without a condition, a model that was
                trained with ``condition_dropout`` draws from the distribution of all data.
            guidance: the factor w of classifier-free guidance, :math:`f(\varnothing) + w (f(c) - f(\varnothing))`, with
                the predictions f of the network with and without the condition. Larger than 1, the default, it makes
                samples more typical of their condition, and less diverse.
            mask: particles that are present, ``[N]`` or ``[*num_samples, N]``, for a model that was fitted with masks;
                by default all. Absent particles are at the identity.
            generator: source of the noise, on any device.
            steps: number of steps, by default 100 of the stochastic process.
            tolerance: error of the flow, see `solve_adaptive`; by default 1e-4.

        Raises:
            ConfigurationError: the model is not fitted, a number is out of range, there are both steps and a
                tolerance, or a condition is missing or not expected.
            ShapeError: the condition has another shape than those of the training.
        """
        sizes = num_samples if isinstance(num_samples, Sequence) else [num_samples]
        shape = tuple(check_count("num_samples", size) for size in sizes)
        fitted = self._fitted()
        if steps is not None and tolerance is not None:
            raise ConfigurationError(f"steps, tolerance: expected one of them, got {steps} and {tolerance}")
        if tolerance is None:
            steps = fitted.path.default_steps if steps is None else check_count("steps", steps)
        if not math.isfinite(guidance):
            raise ConfigurationError(f"guidance: expected a finite number, got {guidance}")
        with torch.no_grad():
            networks, features = self.networks, self._features(condition, torch.Size(shape), guidance, mask)
            start = networks.hidden(fitted.base.sample(math.prod(shape), generator), features)
            network = networks.given(features, guidance)
            if steps is None:
                tolerance = _TOLERANCE if tolerance is None else tolerance
                found = fitted.path.sample(network, start, generator, tolerance)
            elif fitted.flow_map is not None:
                found = fitted.flow_map.sample(start, steps, networks.given(features, guidance, fitted.flow_map))
            else:
                found = fitted.path.sample_in_steps(network, start, generator, steps)
            found = networks.hidden(self.group.project(found.double()).to(found.dtype), features)
        return found.reshape(*shape, *self.group.element_shape)

    def carry(
        self,
        g: Tensor,
        *,
        condition: Any = None,
        mask: Tensor | None = None,
        reverse: bool = False,
        tolerance: float = _TOLERANCE,
    ) -> Tensor:
        """Carry elements along the flow, from the base distribution or the source of a bridge to the data.

        Args:
            g: elements ``[*batch, *element_shape]``.
            condition: see `sample`.
            mask: particles that are present.
            reverse: whether elements go from the data to the source.
            tolerance: see `solve_adaptive`.

        Returns:
            Elements of the same shape; NaN where the flow could not be followed.

        Raises:
            ConfigurationError: the model is not fitted, its flow has momenta, or a condition is missing or not
                expected.
            ShapeError: the elements or the condition have another shape than in the training.
            NonFiniteError: the elements hold NaN or infinity.
            DomainError: the elements are not in the group.
        """
        fitted = self._fitted()
        g = self.group.check_elements(g, "g")
        batch = self.group.batch_shape(g)
        networks = self.networks
        with torch.no_grad():
            features = self._features(condition, batch, mask=mask)
            flat = networks.hidden(g.reshape(-1, *self.group.element_shape).to(self._like().device), features)
            flat = check_samples(self.group, flat, "g").to(self._like())
            flow = fitted.path.flow(networks.given(features))
            if flow.group.dim != self.group.dim:
                raise ConfigurationError(f"model: expected a flow on the group, got one of kind {self.kind!r}")
            ends = fitted.path.end_time, fitted.path.start_time
            start, end = reversed(ends) if reverse else ends
            found = self.group.project(solve_adaptive(flow, flat, start, end, tolerance=tolerance).final.double())
            found = networks.hidden(found, features)
        return found.to(flat.dtype).reshape(g.shape)

    def log_prob(
        self,
        g: Tensor,
        *,
        condition: Any = None,
        mask: Tensor | None = None,
        num_draws: int = 1,
        tolerance: float = _TOLERANCE,
        divergence: Divergence | None = None,
        measure: str = "haar",
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        """Log-density of elements, in nats.

        For kinds "diffusion" and "flow" it is the density of samples along the flow, up to the tolerance. For kind
        "momentum" it is an estimate by random momenta whose expectation is a lower bound; more ``num_draws`` raise and
        steady it.

        Where elements or conditions require gradients, the result has gradients. A gradient along the group, such as
        `trivialized_grad`, is right; other components depend on an arbitrary extension of the density off the group.
        Memory then grows with the steps of the flow.

        Args:
            g: ``[*batch, *element_shape]``, moved to the device of the model.
            condition: one condition for all elements, or one for each of them, see `sample`.
            mask: particles that are present, see `sample`; the density is for present particles alone.
            num_draws: momenta over which kind "momentum" averages the density; each takes a solution of the flow.
            tolerance: largest error of one step of the flow, see `solve_adaptive`.
            divergence: method for the divergence of the flow; default `ExactDivergence`.
            measure: "haar", of mass one on compact factors, or "volume", see `GroupDiffusion`.
            generator: random numbers for kind "momentum" or the divergence; default a fixed seed.

        Raises:
            ShapeError: the elements or the condition have another shape than in the training.
            NonFiniteError: the elements hold NaN or infinity.
            DomainError: the elements are not in the group.
            ConfigurationError: the model is not fitted, a condition is missing or not expected, the measure has another
                name, or the volume of the group is not known.
        """
        fitted, log_volume = self._fitted(), log_mass(self.group, measure)
        g = self.group.check_elements(g, "g")
        batch = self.group.batch_shape(g)
        networks, flat = self.networks, g.reshape(-1, *self.group.element_shape).to(self._like().device)
        if generator is None:
            generator = torch.Generator(flat.device).manual_seed(0)
        leaves = [x for x in pytree.tree_leaves((g, condition)) if isinstance(x, Tensor)]
        is_tracked = torch.is_grad_enabled() and any(x.requires_grad for x in leaves)
        with torch.set_grad_enabled(is_tracked):
            features = self._features(condition, batch, mask=mask)
            flat = networks.hidden(flat, features)
            near = check_samples(self.group, flat, "g").to(self._like())
            if is_tracked:  # projected elements, with the derivative of the identity
                near = flat.to(near) + (near - flat.to(near)).detach()
                if not near.requires_grad:  # only conditions are tracked, and the flow asks the elements
                    near = near + 0.0 * next(x for x in leaves if x.requires_grad).sum().to(near)
            network, particles = networks.given(features), networks.particles
            shares: Any = 1.0 if particles is None else particles.share(features.mask).to(flat)
            found = fitted.path.with_draws(check_count("num_draws", num_draws)).log_density(
                network, near, networks.base_log_prob(fitted.base, features), generator, tolerance, divergence
            )
        return (found - shares * log_volume).reshape(batch)

    def distribution(
        self, *, condition: Any = None, mask: Tensor | None = None, num_draws: int = 1, tolerance: float = _TOLERANCE
    ) -> ModelDistribution:
        """Return the distribution of elements given one condition, such as a prior of an inverse problem.

        ```python
        draw_posterior(model.distribution(condition=c), energy, 10_000)  # of trivgeo.generative.posterior_draws
        PosteriorSampler(action, energy, prior=model.distribution(condition=c))
        ```

        Args:
            condition: one condition of all elements, see `sample`; ``None`` for all data.
            mask: particles that are present, ``[N]``, see `sample`.
            num_draws: number of draws that densities are averaged over, see `log_prob`.
            tolerance: error of densities, see `log_prob`; a larger one takes less time.

        Raises:
            ConfigurationError: the model is not fitted, a number is out of range, or a condition is missing or not
                expected.
            ShapeError: the condition has another shape than those of the training.
        """
        with torch.no_grad():
            self._features(condition, torch.Size([]), mask=mask)
        check_count("num_draws", num_draws)
        return ModelDistribution(self, condition, mask, num_draws, check_positive("tolerance", tolerance))

    def save(self, path: str | Path) -> None:
        """Write weights, base distribution and settings to a safetensors file, with the fingerprint of the group.

        The weights of your own modules are in the file, but not their code: `load` needs such modules again.

        Args:
            path: the file.

        Raises:
            ConfigurationError: the model is not fitted.
        """
        fitted = self._fitted()
        model = {"kind": self.kind, "seed": self.seed, "shape": list(self._shape)}
        write_model(path, self.group, self.networks, fitted, model)

    @classmethod
    def load(
        cls,
        path: str | Path,
        group: LieGroup,
        kind: type[ProbabilityPath] | None = None,
        *,
        condition: int | nn.Module | None = None,
        network: nn.Module | None = None,
    ) -> GroupDiffusion:
        """Read a model that `save` wrote.

        Args:
            path: the file.
            group: the group of the model, with its scale.
            kind: the class of the path, for models of a kind of your own.
            condition: a module like the one for conditions, whose weights are replaced, for models that have one. The
                dimension of vectors may be left out, since the file holds it.
            network: a module like the network, whose weights are replaced, for models with a network of your own.

        Raises:
            CheckpointError: the file was not written by `save`; its model is on another group, of another kind or of
                another version of the regression target, or has other modules; or its weights are not finite.
        """
        saved = SavedModel(path, group)
        arguments = saved.arguments(condition, network)
        try:
            with saved.file.bounded():
                model = cls(group, saved.kind if kind is None else kind, **arguments)
            particles = Particles(group) if saved.is_masked else None
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: expected a file written by GroupDiffusion.save: {error!r}") from error
        if model.kind != saved.kind:
            raise CheckpointError(f"{path}: expected a model of kind {model.kind!r}, got one of {saved.kind!r}")
        model.networks.particles = particles
        model.fitted = saved.fill(model.networks, model._path_class)
        return model.eval()

    def _fitted(self) -> FittedPath:
        """Return the fitted path, or raise `ConfigurationError`."""
        if self.fitted is None:
            raise ConfigurationError("model: expected a fitted one; call fit(samples) or GroupDiffusion.load")
        return self.fitted

    def _like(self) -> Tensor:
        """A tensor of the dtype and on the device of the model."""
        return next((x for x in self.networks.parameters() if x.is_floating_point()), torch.empty(0))

    def _features(self, condition: Any, batch: torch.Size, guidance: float = 1.0, mask: Any = None) -> Any:
        """Features of conditions for a batch of elements, which is flattened, and their mask.

        ``None`` without conditions; a `MaskedCondition` for a model that knows masks.
        """
        fitted, found = self._fitted(), None
        if fitted.condition_ndims:
            if condition is None and guidance != 1.0:
                raise ConfigurationError("guidance: expected a condition, got none")
            shapes = fitted.condition_ndims, fitted.feature_shape
            found = self.networks.features(condition, *shapes, batch, self._like())
        elif condition is not None or guidance != 1.0:
            raise ConfigurationError("condition, guidance: expected none, for the model has no conditions")
        if (particles := self.networks.particles) is None:
            if mask is not None:
                raise ConfigurationError("mask: expected none, for the model was trained without masks")
            return found
        mask = torch.ones(particles.num_particles) if mask is None else mask
        return MaskedCondition(found, particles.check(mask, batch, self._like()))

    def _set_up(
        self, rows: Tensor, conditions: Any, source: Any, generator: torch.Generator
    ) -> tuple[ConditionalNetwork, FittedPath]:
        """Networks for training rows and their conditions, and the path fitted to rows and source."""
        particles, own = None, conditions
        if isinstance(conditions, MaskedCondition):
            particles, (own, mask) = Particles(self.group), conditions
            mask = mask.repeat(-(-len(rows) // len(mask)), 1)[: len(rows)]  # repeated like the rows
            rows = particles.fill(rows, mask, generator)
        base: GroupDistribution
        if source is None:
            known = {} if self._data_dim is None else {"dim": self._data_dim}
            settings, base = self._path_class.fit(self.group, rows, generator, **known)
        else:
            source = check_samples(self.group, source, "source").detach()
            base = EmpiricalDistribution(self.group, source.to(rows))
            settings = self._path_class.fit_bridge(self.group, rows, base, generator)
        path = self._path_class.build(self.group, settings, base)
        networks = copy.deepcopy(self.networks).to(rows).train()
        networks.particles = particles
        elements = path.training_batch(rows, generator).elements
        finite = elements[torch.isfinite(elements.flatten(1)).all(-1)]
        feature_shape = networks.prepare(finite, path, conditions, self.seed)
        for name, parameter in networks.named_parameters():
            parameter.requires_grad_(name not in self._frozen)
        if not any(parameter.requires_grad for parameter in networks.parameters()):
            raise ConfigurationError("network: expected parameters to train, got none that require gradients")
        ndims = () if own is None else tuple(x.ndim - 1 for x in pytree.tree_leaves(own))
        return networks, FittedPath(path, base, settings, ndims, feature_shape)


class ModelDistribution(GroupDistribution):
    r"""The distribution of a fitted model given one condition, see `GroupDiffusion.distribution`.

    At elements that are not finite the density is zero.

    Args:
        model: a fitted model.
        condition: one condition of all elements, or ``None``.
        mask: particles that are present, or ``None``.
        num_draws: see `GroupDiffusion.log_prob`, also for ``tolerance``.
        tolerance: error of densities.
    """

    def __init__(
        self, model: GroupDiffusion, condition: Any, mask: Tensor | None, num_draws: int, tolerance: float
    ) -> None:
        super().__init__(model.group)
        self.model = model
        self.condition, self.mask, self.num_draws, self.tolerance = condition, mask, num_draws, tolerance

    @property
    def has_all_particles(self) -> bool:
        """False if a mask leaves out particles, whose elements have no density."""
        return self.mask is None or bool(torch.as_tensor(self.mask).all())

    @property
    def _share(self) -> float:
        return 1.0 if self.mask is None else float(torch.as_tensor(self.mask).double().mean())

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return self.model.sample(shape, condition=self.condition, mask=self.mask, generator=generator)

    def _log_prob(self, g: Tensor) -> Tensor:
        rank = len(self.event_shape)
        lost = ~torch.isfinite(g.flatten(-rank)).all(-1)
        known = torch.where(lost[(..., *[None] * rank)], self.group.identity(dtype=g.dtype, device=g.device), g)
        logs = self.model.log_prob(
            known, condition=self.condition, mask=self.mask, num_draws=self.num_draws, tolerance=self.tolerance
        )
        return torch.where(lost.to(logs.device), -math.inf, logs)


def _connected(group: Any) -> LieGroup:
    """Return a connected group, or raise `ConfigurationError`."""
    if check_type("group", group, LieGroup).num_components > 1:  # type: ignore[type-abstract]
        raise ConfigurationError(f"group: expected a connected one, as no path leaves a component, got {group!r}")
    return group


def _check_unwrapped(**modules: Any) -> None:
    """Raise `ConfigurationError` for modules that are wrapped for parallel training."""
    for name, module in modules.items():
        for part in module.modules() if isinstance(module, nn.Module) else ():
            if type(part).__module__.startswith(("torch.nn.parallel", "torch.distributed")):
                kind = type(part).__name__
                raise ConfigurationError(f"{name}: expected a module as it is, without a wrapper, got one in {kind}")


def _path_class(kind: Any) -> type[ProbabilityPath]:
    """Return the class of a kind that is given by name or as a class, or raise `ConfigurationError`."""
    if isinstance(kind, type) and issubclass(kind, ProbabilityPath):
        return kind
    return PATHS[check_choice("kind", kind, tuple(PATHS))]
