"""A conditional law on a group that networks and a probability path make: samples, densities, transport."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._deprecation import renamed_arguments
from trivgeo._torch import pytree
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.generative.base_distributions import BaseDistribution
from trivgeo.generative.bodies import Bodies, MaskedCondition, MaskedDistribution
from trivgeo.generative.conditioning import ConditionalNetwork, ConditionEncoder
from trivgeo.generative.data import check_samples
from trivgeo.generative.fitted import FittedPath
from trivgeo.generative.measure import log_torus_volume, sum_over_compact
from trivgeo.generative.paths.base import ProbabilityPath, follow_flow
from trivgeo.groups import LieGroup
from trivgeo.sde.likelihood import Divergence

__all__ = ["ConditionalLaw", "ModelDistribution"]

_TOLERANCE = 1e-4


class ConditionalLaw(nn.Module):
    """A law of elements, given conditions, by networks and a fitted path; see `GroupDiffusion`, which fits one.

    Attributes:
        group: the group of the elements.
        network: see `GroupDiffusion`, like ``encoder`` and ``fitted``.
    """

    group: LieGroup
    network: nn.Module
    encoder: ConditionEncoder | None
    fitted: FittedPath | None
    kind: str
    _path_class: type[ProbabilityPath]

    @renamed_arguments(until="0.4", number="num_samples")
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
            mask: which bodies are present, ``[N]`` or ``[*num_samples, N]``, for a model that was fitted with masks; by
                default all. Absent bodies are at the identity.
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
            networks, features = self._networks(), self._features(condition, torch.Size(shape), guidance, mask)
            start = self._hidden(fitted.base.sample(math.prod(shape), generator), features)
            network = networks.given(features, guidance)
            if steps is None:
                tolerance = _TOLERANCE if tolerance is None else tolerance
                found = fitted.path.sample(network, start, generator, tolerance)
            elif fitted.flow_map is not None:
                found = fitted.flow_map.sample(start, steps, networks.guided(fitted.flow_map, features, guidance))
            else:
                found = fitted.path.sample_in_steps(network, start, generator, steps)
            found = self._hidden(self.group.project(found.double()).to(found.dtype), features)
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
            condition: see `sample`, like ``mask``.
            mask: which bodies are present.
            reverse: from the data to the source.
            tolerance: see `solve_adaptive`.

        Returns:
            Elements of the same shape; NaN where the flow could not be followed.

        Raises:
            ConfigurationError: the model is not fitted, its flow has momenta, or a condition is missing or not
                expected.
            ShapeError: the elements are none of the group's, or the condition has another shape than in the training.
            NonFiniteError: they hold NaN or infinity.
            DomainError: they are no elements of the group.
        """
        fitted = self._fitted()
        g = self.group.check_elements(g, "g")
        batch = self.group.batch_shape(g)
        with torch.no_grad():
            features = self._features(condition, batch, mask=mask)
            flat = self._hidden(g.reshape(-1, *self.group.element_shape).to(self._like().device), features)
            flat = check_samples(self.group, flat, "g").to(self._like())
            flow = fitted.path.flow(self._networks().given(features))
            if flow.group.dim != self.group.dim:
                raise ConfigurationError(f"model: expected a flow on the group, got one of kind {self.kind!r}")
            ends = fitted.path.end_time, fitted.path.start_time
            start, end = reversed(ends) if reverse else ends
            found = self.group.project(follow_flow(flow, flat, start, end, tolerance).double())
            found = self._hidden(found, features)
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
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        """Log-density of elements, in nats; see `GroupDiffusion` for the measure.

        Of kinds "diffusion" and "flow" that of samples along the flow, up to the tolerance. Of kind "momentum" an
        estimate by random momenta whose expectation is a lower bound; more ``num_draws`` raise and steady it.

        Where elements or conditions require gradients, so does the result: a gradient along the group, such as
        `trivialized_grad`, is right, one that leaves it is that of no extension in particular. Memory then grows with
        the steps of the flow.

        Args:
            g: ``[*batch, *element_shape]``, brought to the device of the model.
            condition: of all elements, or one for each of them, see `sample`.
            mask: which bodies are present, see `sample`; the density is that of these alone.
            num_draws: momenta over which kind "momentum" averages the density; each takes a solution of the flow.
            tolerance: largest error of one step of the flow, see `solve_adaptive`.
            divergence: method for the divergence of the flow; default `ExactDivergence`.
            generator: of random numbers that kind "momentum" or the divergence asks for; default one with a fixed seed.

        Raises:
            ShapeError: the elements are none of the group's, or the condition has another shape than in the training.
            NonFiniteError: they hold NaN or infinity.
            DomainError: they are no elements of the group.
            ConfigurationError: the model is not fitted, or a condition is missing or not expected.
        """
        fitted = self._fitted()
        g = self.group.check_elements(g, "g")
        batch = self.group.batch_shape(g)
        flat = g.reshape(-1, *self.group.element_shape).to(self._like().device)
        if generator is None:
            generator = torch.Generator(flat.device).manual_seed(0)
        leaves = [x for x in pytree.tree_leaves((g, condition)) if isinstance(x, Tensor)]
        is_tracked = torch.is_grad_enabled() and any(x.requires_grad for x in leaves)
        with torch.set_grad_enabled(is_tracked):
            features = self._features(condition, batch, mask=mask)
            flat = self._hidden(flat, features)
            near = check_samples(self.group, flat, "g").to(self._like())
            if is_tracked:  # projected, with the derivative of the identity
                near = flat.to(near) + (near - flat.to(near)).detach()
                near = near if near.requires_grad else near.requires_grad_()
            network, base = self._networks().given(features), self._base_for(features)
            shares: Any = 1.0 if self._bodies is None else self._bodies.share(features.mask).to(flat)
            found = fitted.path.with_draws(check_count("num_draws", num_draws)).log_density(
                network, near, base, generator, tolerance, divergence
            )
        return (found - shares * sum_over_compact(self.group, log_torus_volume)).reshape(batch)

    def distribution(
        self, *, condition: Any = None, mask: Tensor | None = None, num_draws: int = 1, tolerance: float = _TOLERANCE
    ) -> ModelDistribution:
        """Return the law of elements given one condition as a distribution, such as a prior of an inverse problem.

        ```python
        draw_posterior(model.distribution(condition=c), energy, 10_000)  # of trivgeo.generative.posterior
        PosteriorSampler(action, energy, prior=model.distribution(condition=c))
        ```

        Args:
            condition: of all elements, see `sample`, like ``mask``; ``None`` for the law of all data.
            mask: which bodies are present, ``[N]``.
            num_draws: see `log_prob`, like ``tolerance``.
            tolerance: of densities; a larger one takes less time.

        Raises:
            ConfigurationError: the model is not fitted, a number is out of range, or a condition is missing or not
                expected.
            ShapeError: the condition has another shape than those of the training.
        """
        with torch.no_grad():
            self._features(condition, torch.Size([]), mask=mask)
        check_count("num_draws", num_draws)
        return ModelDistribution(self, condition, mask, num_draws, check_positive("tolerance", tolerance))

    def _fitted(self) -> FittedPath:
        """Return the fitted path, or raise `ConfigurationError`."""
        if self.fitted is None:
            raise ConfigurationError("model: expected a fitted one; call fit(samples) or GroupDiffusion.load")
        return self.fitted

    @property
    def _bodies(self) -> Bodies | None:
        """The bodies that may be absent, of a fitted model that knows masks."""
        return None if self.fitted is None else self.fitted.bodies

    def _networks(self) -> ConditionalNetwork:
        """The network and the encoder of its conditions in one module."""
        return self._networks_for(self._bodies)

    def _networks_for(self, bodies: Bodies | None) -> ConditionalNetwork:
        """The same with masks of bodies, or without."""
        uses_momentum = self._path_class.uses_momentum(self.group)
        return ConditionalNetwork(self.group, self.network, self.encoder, uses_momentum, bodies)

    def _like(self) -> Tensor:
        """A tensor of the dtype and the device of the model."""
        return next((x for x in self._networks().parameters() if x.is_floating_point()), torch.empty(0))

    def _features(self, condition: Any, batch: torch.Size, guidance: float = 1.0, mask: Any = None) -> Any:
        """Features of conditions for a batch of elements, which is flattened, and their mask.

        ``None`` without conditions; a `MaskedCondition` for a model that knows masks.
        """
        fitted, found = self._fitted(), None
        if fitted.condition_ndims:
            if condition is None and guidance != 1.0:
                raise ConfigurationError("guidance: expected a condition, got none")
            shapes = fitted.condition_ndims, fitted.feature_shape
            found = self._networks().features(condition, *shapes, batch, self._like())
        elif condition is not None or guidance != 1.0:
            raise ConfigurationError("condition, guidance: expected none, for the model has no conditions")
        if self._bodies is None:
            if mask is not None:
                raise ConfigurationError("mask: expected none, for the model was trained without masks")
            return found
        mask = torch.ones(self._bodies.count) if mask is None else mask
        return MaskedCondition(found, self._bodies.check(mask, batch, self._like()))

    def _base_for(self, features: Any) -> BaseDistribution:
        """The base distribution of the bodies that are present."""
        base = self._fitted().base
        return base if self._bodies is None else MaskedDistribution(base, features.mask)

    def _hidden(self, g: Tensor, features: Any) -> Tensor:
        """Elements ``[b, *element_shape]`` whose absent bodies are at the identity."""
        return g if self._bodies is None else self._bodies.hide(g, features.mask)


class ModelDistribution(BaseDistribution):
    r"""The distribution of a fitted model given one condition, see `ConditionalLaw.distribution`.

    Densities are for the measure of `BaseDistribution`: on tori they are :math:`(2 \pi)^n` times those of `log_prob`.

    Args:
        model: a fitted model.
        condition: of all elements, or ``None``.
        mask: which bodies are present, or ``None``.
        num_draws: see `ConditionalLaw.log_prob`, like ``tolerance``.
        tolerance: of densities.
    """

    def __init__(
        self, model: ConditionalLaw, condition: Any, mask: Tensor | None, num_draws: int, tolerance: float
    ) -> None:
        super().__init__()
        self.model, self.group = model, model.group
        self.condition, self.mask, self.num_draws, self.tolerance = condition, mask, num_draws, tolerance

    @property
    def has_all_bodies(self) -> bool:
        """False if a mask leaves out bodies, of whose elements there is no density."""
        return self.mask is None or bool(torch.as_tensor(self.mask).all())

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw elements by `ConditionalLaw.sample`, ``[num_samples, *element_shape]``.

        Args:
            num_samples: number of elements.
            generator: random numbers; ``None`` is torch's.
        """
        return self.model.sample(num_samples, condition=self.condition, mask=self.mask, generator=generator)

    def log_density(self, g: Tensor) -> Tensor:
        """Return the log-density at elements g, ``[*batch, *element_shape]``, as ``[*batch]``.

        The result is -inf at elements that are not finite.

        Raises:
            ShapeError: the elements are none of the group's.
        """
        g = self.group.check_elements(g, "g")
        rank = len(self.group.element_shape)
        lost = ~torch.isfinite(g.flatten(-rank)).all(-1)
        known = torch.where(lost[(..., *[None] * rank)], self.group.identity(dtype=g.dtype, device=g.device), g)
        logs = self.model.log_prob(
            known, condition=self.condition, mask=self.mask, num_draws=self.num_draws, tolerance=self.tolerance
        )
        share = 1.0 if self.mask is None else float(torch.as_tensor(self.mask).double().mean())
        volume = share * sum_over_compact(self.group, log_torus_volume)
        return torch.where(lost.to(logs.device), -math.inf, logs + volume)
