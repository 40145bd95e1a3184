"""Operators by name or path: our checkpoints, and the files published with Kim et al. (2026)."""

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..checkpoints import Loaded, load_checkpoint
from ..released import read_published
from .burgers import BurgersEquation
from .deeponet import DeepONet, GatedMLP, Jet, TanhMLP, tanh_jet
from .heat import HeatEquation
from .predictor import SolutionOperator

_WIDTH, _DEPTH = 100, 7
_HEAT_SENSORS, _BURGERS_SENSORS = 200, 101
_UNSCALED = (-1.0, 1.0)  # range of x and t of networks that see them as they are


class _EndingInTanh(nn.Module):
    """A network with a tanh after its last layer."""

    def __init__(self, network: TanhMLP | GatedMLP) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.network(inputs))

    def forward_jet(self, inputs: Jet) -> Jet:
        return tanh_jet(self.network.forward_jet(inputs))


def load_operator(name: str) -> Loaded[SolutionOperator]:
    """The operator of a name or path.

    Args:
        name: see `tasks.checkpoints.load_checkpoint`; or the path of a published file, which ends in `.pt` (networks
            for the heat equation) or `.npy` (for Burgers' equation).

    Raises:
        CheckpointError: the file is missing or holds no such network.
    """
    readers = {".pt": _heat_network, ".npy": _burgers_network}
    path = Path(name)
    if path.suffix not in readers:
        return load_checkpoint(SolutionOperator, name)  # type: ignore[type-abstract]
    equation = HeatEquation() if path.suffix == ".pt" else BurgersEquation()
    network = read_published(path, readers[path.suffix], "a published network")
    network.double().eval().requires_grad_(False)
    return Loaded(network, dict(equation.description), None, "", False)


def _heat_network(content: bytes) -> DeepONet:
    """Branch and trunk of seven layers, the trunk with a tanh after its last."""
    state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")["model_state_dict"]
    network = DeepONet(_HEAT_SENSORS, _WIDTH, _DEPTH, x_range=_UNSCALED, t_range=_UNSCALED)
    weights = {"bias": state["b.0"].reshape(())}
    for part in ("branch", "trunk"):
        for i in range(_DEPTH):
            for kind in ("weight", "bias"):
                weights[f"{part}.layers.{i}.{kind}"] = state[f"{part}.linears.{i}.{kind}"]
    network.load_state_dict(weights)
    network.add_module("trunk", _EndingInTanh(network.trunk))
    return network


def _burgers_network(content: bytes) -> DeepONet:
    """Gated branch and trunk without a bias at the end, in one array; the trunk sees (t, x)."""
    flat = torch.from_numpy(np.load(io.BytesIO(content), allow_pickle=False)).double()
    network = DeepONet(_BURGERS_SENSORS, _WIDTH, _DEPTH, gated=True, x_range=_UNSCALED, t_range=_UNSCALED)
    weights, place = {"bias": torch.zeros((), dtype=flat.dtype)}, 0

    def taken(*shape: int) -> Tensor:
        nonlocal place
        place += torch.Size(shape).numel()
        return flat[place - torch.Size(shape).numel() : place].reshape(shape)

    for part, inputs in (("branch", _BURGERS_SENSORS), ("trunk", 2)):
        sizes = [inputs, *[_WIDTH] * _DEPTH]
        for i, (before, after) in enumerate(pairwise(sizes)):
            weights[f"{part}.main.layers.{i}.weight"] = taken(before, after).mT
            weights[f"{part}.main.layers.{i}.bias"] = taken(after)
        encoders = [(taken(inputs, _WIDTH).mT, taken(_WIDTH)) for _ in range(2)]
        weights[f"{part}.encoders.layers.0.weight"] = torch.cat([weight for weight, _ in encoders])
        weights[f"{part}.encoders.layers.0.bias"] = torch.cat([bias for _, bias in encoders])
    if place != len(flat):
        raise ValueError(f"expected {place} numbers, got {len(flat)}")
    for name in ("trunk.main.layers.0.weight", "trunk.encoders.layers.0.weight"):
        weights[name] = weights[name].flip(-1)  # to (x, t)
    network.load_state_dict(weights)
    return network
