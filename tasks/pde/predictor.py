"""A trained operator network as a predictor for operator inputs anywhere in its training domain."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tasks.pde.deeponet import DeepONet
from trivgeo.actions import OperatorInput, interpolate
from trivgeo.errors import ConfigurationError


class OperatorPredictor(nn.Module):
    """Reads an initial condition on any line t = const and predicts jets at the query points.

    The equation is autonomous, so the network, which starts at t = 0, is asked at times counted from the initial line:
    this composes a time translation into the transformation (a transformed initial line is at t != 0 in general). The
    initial condition is brought to the network's sensors by local cubic interpolation, of order 4, and continued
    linearly beyond its ends.

    Args:
        network: a trained network.
        sensors: the positions of its sensors, `[network.num_sensors]`.
        chunk: points that go through the network at once, sized for the cache.

    Raises:
        ConfigurationError: the number of sensors is not the network's.
    """

    sensors: Tensor

    def __init__(self, network: DeepONet, sensors: Float[Tensor, " m"], chunk: int = 1024) -> None:
        super().__init__()
        if tuple(sensors.shape) != (network.num_sensors,):
            raise ConfigurationError(f"sensors: expected [{network.num_sensors}], got {list(sensors.shape)}")
        self.network = network
        self.chunk = chunk
        self.register_buffer("sensors", sensors.to(torch.float64), persistent=False)

    def forward(self, x: OperatorInput) -> Float[Tensor, "*batch q 3"]:
        """Jets (x, t, u) at the query points, in the dtype of the input; the network runs in its own.

        Args:
            x: the problem; `initial` is `[*batch, p, 3]` with p >= 4, in any order of x.
        """
        start = x.initial[..., 1].mean(-1, keepdim=True)
        values = interpolate(x.initial[..., 0], x.initial[..., 2], self.sensors.to(x.initial.dtype))
        points = torch.stack([x.query[..., 0], x.query[..., 1] - start], -1)
        dtype = next(self.network.parameters()).dtype
        parts = points.to(dtype).split(self.chunk, -2)
        u = torch.cat([self.network(values.to(dtype), part) for part in parts], -1)
        return torch.cat([x.query, u.unsqueeze(-1).to(x.query.dtype)], -1)
