"""Conditions of a model: check, features for the network, and a learned vector for a missing condition."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trivgeo._random import normal, uniform
from trivgeo._torch import pytree
from trivgeo.checks import check_arguments, check_count, check_fraction, check_tensor
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.generative.distributions import GroupDistribution
from trivgeo.generative.group_network import GroupNetwork, ResidualNetwork
from trivgeo.generative.particles import MaskedCondition, Particles
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.groups import LieGroup


def check_condition(condition: Any, is_vector: bool, reference: Tensor) -> Any:
    """Return conditions as tensors on the device of a model, floating-point numbers in its dtype.

    Args:
        condition: vectors, or for a module a tensor or a tuple, list or dictionary of tensors; arrays and numbers are
            converted. Dictionaries are returned in the order of their keys.

    Raises:
        ConfigurationError: the condition holds anything else.
        NonFiniteError: the condition holds NaN or infinity.
    """

    def to_model(x: Any) -> Tensor:
        x = torch.as_tensor(x) if isinstance(x, np.ndarray | np.generic | int | float) else x
        if not isinstance(x, Tensor):
            raise ConfigurationError(f"condition: expected tensors, got {type(x).__name__}")
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise NonFiniteError("condition: expected finite numbers, got NaN or infinity")
        return x.to(reference) if x.is_floating_point() else x.to(reference.device)

    if is_vector:
        if isinstance(condition, Tensor) and not condition.is_floating_point():
            raise ConfigurationError(
                f"condition: expected vectors of floating-point numbers, got {condition.dtype}; for classes give the "
                "model condition=nn.Embedding(number, 32)"
            )
        return to_model(check_tensor("condition", condition))
    return pytree.tree_map(to_model, ordered_condition(condition))


def batched_condition(condition: Any, ndims: tuple[int, ...], batch: torch.Size) -> Any:
    """Return conditions with one batch dimension, which has length one for a condition of all elements.

    Args:
        ndims: number of dimensions of one condition, for each tensor.

    Raises:
        ShapeError: the condition has another structure than in the training, or another batch shape.
    """
    leaves, structure = pytree.tree_flatten(condition)
    if len(leaves) != len(ndims):
        raise ShapeError(f"condition: expected {len(ndims)} tensors, as in the training, got {len(leaves)}")
    found = []
    for x, ndim in zip(leaves, ndims, strict=True):
        if x.ndim == ndim:
            found.append(x.unsqueeze(0))
        elif x.shape[: x.ndim - ndim] == batch:
            found.append(x.reshape(-1, *x.shape[x.ndim - ndim :]))
        else:
            raise ShapeError(
                f"condition: expected one for all elements, or one for each of {list(batch)}, with {ndim} dimensions "
                f"each as in the training, got {list(x.shape)}"
            )
    return pytree.tree_unflatten(found, structure)


def ordered_condition(condition: Any) -> Any:
    """Dictionaries in the order of their keys, so that equal keys give tensors in the same places."""
    if isinstance(condition, dict):
        return {key: ordered_condition(condition[key]) for key in sorted(condition, key=str)}
    if type(condition) in (list, tuple):
        return type(condition)(map(ordered_condition, condition))
    return condition


_MIN_CONDITION_STD = 1e-3  # standard deviation of an entry of a vector condition, in its units


class Standardization(nn.Module):
    """Vectors ``[*batch, dim]`` minus a mean, over a standard deviation, both fitted to data."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("std", torch.ones(dim))
        self.mean: Tensor
        self.std: Tensor

    def fit(self, x: Tensor) -> None:
        """Set mean and standard deviation to those of the rows of x, ``[m, dim]``."""
        self.mean.copy_(x.mean(0))
        self.std.copy_(x.std(0).clamp(min=_MIN_CONDITION_STD))

    def forward(self, x: Tensor) -> Tensor:
        """Return x minus the mean, over the standard deviation, ``[*batch, dim]``."""
        return (x - self.mean) / self.std


class ConditionEncoder(nn.Module):
    r"""Features of a condition, and a learned vector in their place where the condition is missing.

    Args:
        condition: the dimension of conditions that are vectors, or a module from a batch of conditions to a batch of
            features.
        dropout: probability that a row of a training batch has no condition; zero for models that always have one.

    Attributes:
        missing: the learned vector, of the size of the last dimension of the features; ``None`` before the first fit
            and without dropout.
    """

    def __init__(self, condition: int | nn.Module, dropout: float) -> None:
        super().__init__()
        if not isinstance(condition, nn.Module):
            if isinstance(condition, bool) or not isinstance(condition, int):
                raise ConfigurationError(
                    f"condition: expected the dimension of vectors, or a module, got {condition!r}"
                )
            condition = Standardization(check_count("condition", condition))
        self.encoder = condition
        self.dropout = check_fraction("condition_dropout", dropout)
        self.missing: nn.Parameter | None = None

    @property
    def is_vector(self) -> bool:
        """True if conditions are vectors, which are standardised."""
        return isinstance(self.encoder, Standardization)

    @property
    def is_optional(self) -> bool:
        """True if a user's network receives conditions unchanged, and ``None`` where there is no condition."""
        return isinstance(self.encoder, nn.Identity) and self.dropout == 0.0

    @property
    def description(self) -> dict[str, Any]:
        """Settings that rebuild the encoder, as plain types; a user's module must be given again."""
        dim = len(self.encoder.mean) if isinstance(self.encoder, Standardization) else None
        return {"vector_dim": dim, "own_condition": dim is None and not self.is_optional, "dropout": self.dropout}

    def check(self, condition: Any) -> None:
        """Check that vectors have the fitted dimension, or classes are among those of an embedding.

        Conditions of other modules are not checked.

        Raises:
            ShapeError: vectors ``[m, dim]`` have another dimension.
            ConfigurationError: classes are no integers, or out of range.
        """
        first = self.encoder[0] if isinstance(self.encoder, nn.Sequential) and len(self.encoder) else self.encoder
        if isinstance(first, nn.Embedding) and isinstance(condition, Tensor):
            count = first.num_embeddings
            if condition.dtype not in (torch.int32, torch.int64):
                raise ConfigurationError(
                    f"condition: expected classes, integers from 0 to {count - 1}, got {condition.dtype}"
                )
            if condition.numel() and not 0 <= int(condition.min()) <= int(condition.max()) < count:
                raise ConfigurationError(
                    f"condition: expected classes from 0 to {count - 1}, got {int(condition.min())} to "
                    f"{int(condition.max())}"
                )
        if isinstance(self.encoder, Standardization) and condition.shape[1:] != self.encoder.mean.shape:
            dim = len(self.encoder.mean)
            raise ShapeError(f"condition: expected vectors [{len(condition)}, {dim}], got {list(condition.shape)}")

    def forward(self, condition: Any) -> Any:
        """Return the features of a batch of conditions, both a tensor or tree of tensors ``[b, ...]``."""
        return self.encoder(condition)

    def encoded(self, condition: Any, wanted: str) -> Any:
        """Return the features of a batch of conditions.

        Args:
            wanted: which conditions were expected, for the message.

        Raises:
            ShapeError: the user's module rejects the conditions.
        """
        try:
            return self(condition)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, LookupError) as error:
            shapes = pytree.tree_map(lambda x: [*x.shape], condition)
            raise ShapeError(
                f"condition: expected conditions {wanted}, got a batch {shapes}, which the module "
                f"{type(self.encoder).__name__} does not take: {error!r}"
            ) from error

    def prepare(self, condition: Any) -> Any:
        """Fit statistics and layers to training conditions ``[m, ...]``, and return the features of the first two.

        Raises:
            ConfigurationError: conditions are to be dropped, and the features are no tensor of floating-point numbers.
            ShapeError: the user's module rejects the conditions.
        """
        if isinstance(self.encoder, Standardization):
            self.encoder.fit(condition)
        features = self.encoded(pytree.tree_map(lambda x: x[:2], condition), "that the module takes")
        if self.dropout > 0.0:
            self.initialise(self._checked(features).shape[-1], features)
        return features

    def initialise(self, dim: int, reference: Tensor) -> None:
        """Draw the vector ``[dim]`` of a missing condition, of the dtype and on the device of ``reference``.

        The vector is drawn only once, and only if conditions may be missing.
        """
        if self.dropout > 0.0 and self.missing is None:
            self.missing = nn.Parameter(normal((dim,), torch.empty(0), None).to(reference))

    def without(self, features: Any) -> Tensor:
        """Features of the shape of ``features`` that stand for a missing condition.

        Raises:
            ConfigurationError: the model was not trained with missing conditions.
        """
        if self.missing is None:
            raise ConfigurationError(
                "condition: expected a condition, for this model was trained without missing ones; train with "
                "condition_dropout > 0 for samples without a condition and for guidance"
            )
        return self.missing.expand_as(self._checked(features))

    def drop(self, features: Any, generator: torch.Generator) -> Any:
        """Training features ``[b, ...]``, without a condition in rows that ``generator`` draws.

        If conditions are never missing, they are ``features`` itself.
        """
        if self.missing is None:
            return features
        features = self._checked(features)
        dropped = uniform((len(features),), features, generator) < self.dropout
        return torch.where(dropped.reshape(-1, *[1] * (features.ndim - 1)), self.without(features), features)

    def _checked(self, features: Any) -> Tensor:
        """Check that features can be replaced by a vector, a floating-point tensor."""
        if not isinstance(features, Tensor) or not features.is_floating_point() or features.ndim < 2:
            is_tensor = isinstance(features, Tensor)
            found = f"{features.dtype} {list(features.shape)}" if is_tensor else type(features).__name__
            raise ConfigurationError(
                "condition: expected features [b, ..., d] of floating-point numbers, of which rows can be dropped, got "
                f"{found}; or set condition_dropout=0"
            )
        return features


class ConditionalNetwork(nn.Module):
    """The network of a model with the encoder of its conditions.

    Args:
        network: a `GroupNetwork`, or a module (g, t, features), see `GroupDiffusion`.
        encoder: encoder of the conditions; ``None`` for a model without conditions.
        uses_momentum: whether the network receives momenta.
        particles: factors of a power of a group, of which masks say which are present; ``None`` without masks.
    """

    def __init__(
        self,
        group: LieGroup,
        network: nn.Module,
        encoder: ConditionEncoder | None,
        uses_momentum: bool,
        particles: Particles | None = None,
    ) -> None:
        super().__init__()
        self.group, self.network, self.encoder, self.uses_momentum = group, network, encoder, uses_momentum
        self.particles = particles

    @property
    def version(self) -> int:
        """Version of the input features of a `GroupNetwork`; 1 for other networks."""
        return self.network.version if isinstance(self.network, GroupNetwork) else 1

    def shape_of(self, width: int, depth: int) -> ResidualNetwork:
        """Return a network like which others can be made: its own, or in place of a user's a `GroupNetwork`."""
        own = self.network
        return own if isinstance(own, ResidualNetwork) else GroupNetwork(self.group, width=width, depth=depth)

    def prepare(self, elements: Tensor, path: ProbabilityPath, condition: Any, seed: int) -> tuple[int, ...]:
        """Fit statistics and initialise layers of network and encoder from data, in evaluation mode.

        Args:
            elements: see `ResidualNetwork.prepare`, also for ``path``.
            condition: conditions of the elements, or ``None``; with masks a `MaskedCondition`.
            seed: seed of layers that the first call initialises.

        Returns:
            The shape of the features of one condition; empty without conditions, or if they are no tensor.

        Raises:
            ShapeError: the network does not return a vector for each element.
            NonFiniteError: the network returns NaN or infinity.
            ConfigurationError: see `ConditionEncoder.prepare`.
        """
        if isinstance(self.network, ResidualNetwork):
            self.network.prepare(elements, path)
        else:
            self._check_arguments()
        modes = {module: module.training for module in self.modules()}
        self.eval()  # running statistics must not be moved by two rows
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)  # layers that their first call initialises draw by it
            few, shape = elements[:2], tuple[int, ...]()
            features: Any = None
            mask = condition.mask if isinstance(condition, MaskedCondition) else None
            condition = condition.condition if isinstance(condition, MaskedCondition) else condition
            if self.encoder is not None and condition is not None:
                features = self.encoder.prepare(condition)
                shape = tuple(features.shape[1:]) if isinstance(features, Tensor) else ()
            self._fit_condition(shape, features is not None)
            features = features if mask is None else MaskedCondition(features, mask[: len(few)])
            momentum = few.new_zeros(len(few), self.group.dim) if self.uses_momentum else None
            found = self(few, few.new_full((len(few),), 0.5), momentum, features)
            if not bool(torch.isfinite(found).all()):
                raise NonFiniteError("network: expected finite vectors before the training, got NaN or infinity")
        for module, mode in modes.items():
            module.training = mode
        return shape

    def _check_arguments(self) -> None:
        """Raise `ConfigurationError` if a user's network does not take the arguments that it will be given."""
        taken = inspect.signature(self.network.forward).parameters
        given = {"momentum": self.uses_momentum, "mask": self.particles is not None}
        names = [name for name, is_given in given.items() if is_given]
        for name in names:
            if name not in taken and not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
                got = f"{type(self.network).__name__}.forward({', '.join(taken)})"
                raise ConfigurationError(f"network: expected an argument {name}, got {got}")
        check_arguments("network", self.network, "g", "t", "features", keywords=names)

    def initialise(self, feature_shape: tuple[int, ...]) -> None:
        """Create the parameters whose size depends on the shape of the features, before weights are read."""
        if self.encoder is not None and feature_shape:
            self.encoder.initialise(feature_shape[-1], torch.empty(0))
        self._fit_condition(feature_shape, bool(feature_shape))

    def _fit_condition(self, feature_shape: tuple[int, ...], has_features: bool) -> None:
        """Give a `GroupNetwork` layers for features of this shape and for masks, unless it has them."""
        if not isinstance(self.network, GroupNetwork):
            return
        if len(feature_shape) != has_features:
            raise ShapeError(f"condition: expected features [b, d] of a GroupNetwork, got [b, {feature_shape}]")
        dim = sum(feature_shape) + (0 if self.particles is None else self.particles.num_particles)
        if dim == 0:
            self.network.condition = None
        elif self.network.condition_dim != dim:
            self.network.add_condition(dim)

    def forward(self, g: Tensor, level: Tensor, momentum: Tensor | None, features: Any) -> Tensor:
        """Evaluate the network at elements ``[*batch, *element_shape]`` and levels in [0, 1], ``[*batch]``.

        Args:
            momentum: momenta ``[*batch, dim]``, or ``None``.
            features: features of the conditions, or ``None``; with masks a `MaskedCondition`.

        Returns:
            Algebra vectors ``[*batch, dim]``; zero for absent particles, whose elements and momenta have no influence.

        Raises:
            ConfigurationError: a user's network returns no floating-point tensor.
            ShapeError: its result has another shape.
        """
        if self.particles is not None:
            assert isinstance(features, MaskedCondition)
            presence = self.particles.presence(features.mask)
            g = self.hidden(g, features)
            momentum = None if momentum is None else torch.where(presence, momentum, 0.0)
            return torch.where(presence, self._evaluate(g, level, momentum, *features), 0.0)
        return self._evaluate(g, level, momentum, features, None)

    def _evaluate(
        self, g: Tensor, level: Tensor, momentum: Tensor | None, features: Any, mask: Tensor | None
    ) -> Tensor:
        """The vectors of the network for all particles."""
        if isinstance(self.network, GroupNetwork):
            known = [x for x in (features, None if mask is None else mask.to(g)) if x is not None]
            return self.network(g, level, momentum, torch.cat(known, -1) if known else None)
        given = {"momentum": momentum} if self.uses_momentum else {}
        given |= {} if mask is None else {"mask": mask}
        found = check_tensor("network", self.network(g, level, features, **given))
        expected = (*self.group.batch_shape(g), self.group.dim)
        if found.shape != expected:
            raise ShapeError(
                f"network: expected an algebra vector for each element {list(expected)}, got {list(found.shape)}"
            )
        return found

    def hidden(self, g: Tensor, features: Any) -> Tensor:
        """Elements g ``[b, *element_shape]``, with particles outside of the mask of ``features`` at the identity."""
        return g if self.particles is None else self.particles.hide(g, features.mask)

    def features(
        self, condition: Any, ndims: tuple[int, ...], shape: tuple[int, ...], batch: torch.Size, reference: Tensor
    ) -> Any:
        """Return features of conditions of a batch of elements, with one batch dimension.

        Args:
            condition: one condition for all elements, or one for each; ``None`` for elements without.
            ndims: number of dimensions of one condition, for each tensor in it.
            shape: shape of the features of one condition.

        Raises:
            ConfigurationError: a condition is missing.
            ShapeError: the condition has another structure or shape.
        """
        assert self.encoder is not None
        if condition is None:
            found: Any = self.encoder.without(reference.new_zeros(1, *shape))
        else:
            condition = check_condition(condition, self.encoder.is_vector, reference)
            condition = batched_condition(condition, ndims, batch)
            self.encoder.check(condition)
            found = self.encoder.encoded(condition, "like those of the training")
        count = math.prod(batch)
        expanded = lambda x: x.expand(count, *x.shape[1:]) if isinstance(x, Tensor) and len(x) == 1 else x  # noqa: E731
        return pytree.tree_map(expanded, found)

    def training_features(self, condition: Any, generator: torch.Generator) -> Any:
        """Features of a training batch, in rows that ``generator`` draws without their condition.

        With masks, the condition and the result are a `MaskedCondition`.
        """
        if isinstance(condition, MaskedCondition):
            return MaskedCondition(self.training_features(condition.condition, generator), condition.mask)
        if self.encoder is None or condition is None:
            return None
        return self.encoder.drop(self.encoder(condition), generator)

    def encoded(self, condition: Any) -> Any:
        """Features of checked conditions of a batch, which are ``None`` without conditions, none of them missing.

        With masks, the condition and the result are a `MaskedCondition`.
        """
        if isinstance(condition, MaskedCondition):
            return MaskedCondition(self.encoded(condition.condition), condition.mask)
        return None if self.encoder is None or condition is None else self.encoder(condition)

    def base_log_prob(self, base: GroupDistribution, features: Any) -> Callable[[Tensor], Tensor]:
        """Return the log-density of a base distribution, for the particles that are present."""
        particles = self.particles
        return base.log_prob if particles is None else lambda g: particles.log_prob(base, g, features.mask)

    def given(self, features: Any, guidance: float = 1.0, function: nn.Module | None = None) -> Callable[..., Tensor]:
        r"""Return the network with its features fixed, and classifier-free guidance (Ho and Salimans 2022).

        Args:
            features: features of conditions ``[b, ...]``, from the encoder; ``None`` without conditions.
            guidance: w of :math:`f(\varnothing) + w (f(c) - f(\varnothing))`; one is f itself.
            function: f in place of the network, with features as its last argument.
        """
        evaluate = self if function is None else function

        def conditional(*args: Tensor | None) -> Tensor:
            return evaluate(*args, features)

        if guidance == 1.0 or self.encoder is None:
            return conditional
        missing: Any
        if isinstance(features, MaskedCondition):
            missing = MaskedCondition(self.encoder.without(features.condition), features.mask)
        else:
            missing = self.encoder.without(features)

        def extrapolated(*args: Tensor | None) -> Tensor:
            without = evaluate(*args, missing)
            return without + guidance * (evaluate(*args, features) - without)

        return extrapolated
