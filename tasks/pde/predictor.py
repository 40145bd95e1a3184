"""A trained operator network as a predictor for operator inputs anywhere in its training domain."""

from abc import abstractmethod

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.actions import OperatorInput, interpolate
from trivgeo.errors import ConfigurationError
from trivgeo.networks import Network

from .domain import Domain, values_of, with_values


class SolutionOperator(Network):
    """A network that knows the solutions of an equation in its training domain.

    Attributes:
        num_sensors: points of an initial condition that it was trained on, along each x.
    """

    num_sensors: int

    @abstractmethod
    def predictor(self, domain: Domain) -> nn.Module:
        """From an `OperatorInput` inside the domain to the jets at its query points, such as an `OperatorPredictor`."""


class OperatorPredictor(nn.Module):
    """Reads an initial condition on any line t = const and predicts jets at the query points, in one dimension.

    The equation is autonomous, so the network, which starts at t = 0, is asked at times counted from the initial line:
    this composes a time translation into the transformation (a transformed initial line is at t != 0 in general). The
    initial condition is brought to the network's sensors by local cubic interpolation, of order 4, and continued
    linearly beyond its ends.

    Args:
        network: a trained network, from u at the sensors `[*batch, num_sensors]` (of a system `[*batch, num_sensors,
            c]`) and points `[*batch, q, 2]` to u at the points.
        sensors: the positions of its sensors, `[network.num_sensors]`.
        chunk: points that go through the network at once, sized for the cache.

    Raises:
        ConfigurationError: the number of sensors is not the network's.
    """

    sensors: Tensor

    def __init__(self, network: SolutionOperator, sensors: Float[Tensor, " m"], chunk: int = 1024) -> None:
        super().__init__()
        if tuple(sensors.shape) != (network.num_sensors,):
            raise ConfigurationError(f"sensors: expected [{network.num_sensors}], got {list(sensors.shape)}")
        self.network = network
        self.chunk = chunk
        self.register_buffer("sensors", sensors.to(torch.float64), persistent=False)

    def forward(self, x: OperatorInput) -> Float[Tensor, "*batch q m"]:
        """Jets (x, t, u) at the query points, in the dtype of the input; the network runs in its own.

        Args:
            x: the problem; `initial` is `[*batch, p, m]` with p >= 4, in any order of x.
        """
        start = x.initial[..., 1].mean(-1, keepdim=True)
        u = rearrange(x.initial[..., 2:], "... p c -> ... c p")
        place = x.initial[..., None, :, 0].expand_as(u)
        at_sensors = rearrange(interpolate(place, u, self.sensors.to(u.dtype)), "... c p -> ... p c")
        points = torch.stack([x.query[..., 0], x.query[..., 1] - start], -1)
        dtype = next(self.network.parameters()).dtype
        values, axis = values_of(at_sensors, 0).to(dtype), points.ndim - 2
        parts = points.to(dtype).split(self.chunk, axis)
        u = torch.cat([self.network(values, part) for part in parts], axis)
        return with_values(x.query, u.to(x.query.dtype))
