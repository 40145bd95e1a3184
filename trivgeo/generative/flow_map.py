"""One and few steps of a flow: its map from one time to another, learned from a fitted model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._random import integers, uniform
from trivgeo.errors import NonFiniteError
from trivgeo.generative.group_network import ResidualNetwork
from trivgeo.generative.paths.base import ProbabilityPath
from trivgeo.groups import LieGroup
from trivgeo.sde.processes.trivialized import TrivializedSDE
from trivgeo.sde.solvers.runge_kutta import GeometricHeun
from trivgeo.sde.solvers.time_loop import solve

__all__ = ["FlowMap", "FlowMapBatch", "FlowTrajectories"]

_NUM_TIME_WAVES = 16
_NUM_TRAJECTORIES = 8192  # trajectories that are followed at once
_NUM_TRAJECTORY_STEPS = 24
_NUM_JUMPS_PER_STEP = 4  # short jumps of a map that follows itself
_MAX_TRAJECTORY_ENTRIES = 2**26  # entries of all elements on the trajectories
_NUM_ROWS_PER_TRAJECTORY = 16
_WHOLE_FLOW_PROBABILITY = 0.35  # probability that a training row spans the flow from base distribution to data


class FlowMapBatch(NamedTuple):
    """Rows of the training of a `FlowMap`.

    Attributes:
        elements: g_t, ``[b, *element_shape]``.
        level: position of t on the path, 0 at the data and 1 at the base distribution, ``[b]``.
        end_level: position of r on the path, ``[b]``.
        velocity: the average velocity, ``[b, dim]``; not finite where the logarithm of g_t^-1 g_r does not exist.
        features: features of the conditions, ``[b, d]``, or ``None``.
    """

    elements: Tensor
    level: Float[Tensor, " b"]
    end_level: Float[Tensor, " b"]
    velocity: Float[Tensor, "b n"]
    features: Float[Tensor, "b d"] | None


class FlowMap(nn.Module):
    r"""The map of a flow from time t to time r, by the average velocity in the algebra.

    .. math:: g_r = g_t \exp\big((r - t)\, u(g_t, t, r)\big), \quad
        u(g_t, t, r) = \frac{\log(g_t^{-1} g_r)}{r - t},

    which on vector spaces is the average velocity of Geng et al. (2025). Trivialized velocities at all times are
    vectors of one space, so they can be averaged. Times are distances from the data (`ProbabilityPath.spread`), so that
    velocities are of one size all along the path. The network receives levels, 0 at the data and 1 at the base
    distribution.

    The map is trained between all pairs of times of trajectories, by the error of the velocity, as :math:`u(g, t, t)`
    is that of the flow. First these are trajectories of the flow. Then they are those of the averaged map itself in
    short jumps, so that it agrees with itself: one long jump goes where many short ones go. Short jumps are learned
    more easily, and what they miss of the flow, long ones need not learn.

    Args:
        group: the group of the elements.
        network: a network of the shape that the map's is to have, such as that of the velocity.
        feature_dim: dimension of the features of a condition; ``None`` for none.
        path: path of the flow, whose `ProbabilityPath.spread` is the time t.
    """

    def __init__(
        self, group: LieGroup, network: ResidualNetwork, feature_dim: int | None, path: ProbabilityPath
    ) -> None:
        super().__init__()
        self.group, self.path = group, path
        self.network = network.like(2 * _NUM_TIME_WAVES + 1 + (feature_dim or 0))
        self.register_buffer("speed", torch.ones(()))
        self.speed: Tensor

    def adopt(self, network: nn.Module) -> None:
        """Copy the weights of a velocity ``network`` of the same shape, which predicts the average over no time."""
        inner, outer = _condition_layers(self.network)
        nn.init.zeros_(outer.weight)
        nn.init.zeros_(outer.bias)
        if type(network) is not type(self.network):
            return
        assert isinstance(network, ResidualNetwork)
        self.network.load_state_dict(
            {name: x for name, x in network.state_dict().items() if not name.startswith("condition.")}, strict=False
        )
        if network.condition is not None:
            first, second = _condition_layers(network)
            with torch.no_grad():
                inner.weight.zero_()
                inner.weight[:, -first.in_features :] = first.weight
                inner.bias.copy_(first.bias)
            outer.load_state_dict(second.state_dict())

    def forward(
        self, g: Tensor, level: Float[Tensor, " b"], end_level: Float[Tensor, " b"], features: Tensor | None
    ) -> Float[Tensor, "b n"]:
        """Return average velocities between two levels, in units of ``speed``, ``[b, dim]``.

        Args:
            g: elements ``[b, *element_shape]``.
            level: position of the elements on the path, ``[b]``.
            end_level: position on the path where the jump ends, ``[b]``.
            features: features of the conditions ``[b, d]``, or ``None``.
        """
        order = math.pi * torch.arange(1, _NUM_TIME_WAVES + 1, dtype=g.dtype, device=g.device)
        wave = order * end_level.unsqueeze(-1)
        inputs = [wave.sin(), wave.cos(), end_level.unsqueeze(-1)]
        if features is not None:
            inputs.append(features)
        return self.network.evaluate(g, level, torch.cat(inputs, -1))

    def sample(self, start: Tensor, steps: int, velocity: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Carry elements of the base distribution ``[b, *element_shape]`` to data, in steps of equal length.

        Args:
            start: elements of the base distribution.
            steps: number of steps, with one evaluation of the velocity each.
            velocity: (elements, levels, end levels) to average velocities, such as `forward` with features.
        """
        for g in self.follow(start, steps, velocity):
            end = g
        return end

    def follow(
        self, start: Tensor, steps: int, velocity: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Iterator[Tensor]:
        """Yield the elements after each of ``steps`` of `sample` from ``start``, with the given ``velocity``."""
        g = start
        for k in range(steps, 0, -1):
            level, end = g.new_full((len(g),), k / steps), g.new_full((len(g),), (k - 1) / steps)
            time = self.speed * (self.path.spread(end) - self.path.spread(level))
            g = self.group.retract(g, time.unsqueeze(-1) * velocity(g, level, end))
            yield g


class FlowTrajectories:
    """Solutions of the flow of a fitted model, from which pairs of times are drawn.

    Args:
        flow: function from features of conditions to the equation of the flow, on the group of the elements.
        base: function (num_rows, generator) to elements of the base distribution.
        features: function (num_rows, generator) to features of random conditions ``[num_rows, d]``, or ``None``.
        path: path of the flow.
    """

    def __init__(
        self,
        flow: Callable[[Tensor | None], TrivializedSDE],
        base: Callable[[int, torch.Generator], Tensor],
        features: Callable[[int, torch.Generator], Tensor | None],
        path: ProbabilityPath,
    ) -> None:
        self._flow, self._base, self._features, self._path = flow, base, features, path
        self._states = torch.empty(0)  # [steps + 1, n, *element_shape], from the base distribution to the data
        self._condition: Tensor | None = None
        self._num_left = 0
        self._map: FlowMap | None = None

    def follow_map(self, flow_map: FlowMap) -> None:
        """Draw from trajectories of short jumps of a ``flow_map`` from now on, with the weights it has at the time."""
        self._map, self._num_left = flow_map, 0

    def draw(self, num_rows: int, generator: torch.Generator) -> FlowMapBatch:
        """Draw ``num_rows`` pairs of points of trajectories by ``generator``; a third of the pairs are both ends.

        Raises:
            NonFiniteError: the flow of the model cannot be followed.
        """
        if self._num_left <= 0:
            self._follow(generator)
        self._num_left -= num_rows
        last = _NUM_TRAJECTORY_STEPS
        rows = integers(self._states.shape[1], (num_rows,), self._states, generator)
        # spans of all sizes, so that few steps and many are learned alike
        span = last ** uniform((num_rows,), self._states, generator)
        full = uniform((num_rows,), self._states, generator) < _WHOLE_FLOW_PROBABILITY
        span = torch.where(full, last, span.round().clamp(1, last)).long()
        first = (uniform((num_rows,), self._states, generator) * (last - span + 1)).long().clamp(max=last - 1)
        second = (first + span).clamp(max=last)
        g, h = self._states[first, rows], self._states[second, rows]
        features = None if self._condition is None else self._condition[rows]
        level, end = (1.0 - k.to(g.dtype) / last for k in (first, second))
        time = self._path.spread(end) - self._path.spread(level)
        return FlowMapBatch(g, level, end, self._displacement(g, h) / time.unsqueeze(-1), features)

    def _follow(self, generator: torch.Generator) -> None:
        few = self._base(2, generator)
        entries = (_NUM_TRAJECTORY_STEPS + 1) * few[0].numel()
        count = max(2, min(_NUM_TRAJECTORIES, _MAX_TRAJECTORY_ENTRIES // entries))
        with torch.no_grad():
            start, self._condition = self._base(count, generator), self._features(count, generator)
            equation = self._flow(self._condition)
            self._group = equation.group
            if self._map is None:
                states, found = self._flow_states(equation, start)
            else:
                states = self._map_states(self._map, start)
                found = torch.isfinite(states.flatten(2)).all(-1).all(0)
        if not bool(found.any()):
            raise NonFiniteError("model: expected a flow that can be followed, got one that is not finite anywhere")
        self._states = states[:, found]
        self._condition = None if self._condition is None else self._condition[found]
        self._num_left = _NUM_ROWS_PER_TRAJECTORY * count

    def _flow_states(self, equation: TrivializedSDE, start: Tensor) -> tuple[Tensor, Tensor]:
        """States ``[steps + 1, n, ...]`` of the flow, and a mask of those found, ``[n]``."""
        data, base = self._path.start_time, self._path.end_time
        grid = [base + (data - base) * k / _NUM_TRAJECTORY_STEPS for k in range(_NUM_TRAJECTORY_STEPS)]
        save = range(_NUM_TRAJECTORY_STEPS + 1)
        solution = solve(equation, start, [*grid, data], stepper=GeometricHeun(), save_at=save)
        assert solution.saved is not None
        return solution.saved, solution.num_masked_steps == 0

    def _map_states(self, flow_map: FlowMap, start: Tensor) -> Tensor:
        """States of a map in short jumps."""
        states, each = [start], _NUM_JUMPS_PER_STEP
        steps = flow_map.follow(start, each * _NUM_TRAJECTORY_STEPS, lambda *x: flow_map(*x, self._condition))
        states += [g for k, g in enumerate(steps, 1) if k % each == 0]
        return torch.stack(states)

    def _displacement(self, g: Tensor, h: Tensor) -> Tensor:
        return self._group.log(self._group.compose(self._group.inverse(g), h))


def _condition_layers(network: ResidualNetwork) -> list[nn.Linear]:
    """The two layers of a network for the features of a condition."""
    assert network.condition is not None
    return [layer for layer in network.condition if isinstance(layer, nn.Linear)]
