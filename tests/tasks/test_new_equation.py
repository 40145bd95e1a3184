"""A system of two unknowns, and an equation in two dimensions, with networks of their own: defined here, nothing else.

The networks know one family of solutions, exactly, in one training domain. They are wrong on anything else.
"""

import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
import yaml
from torch import Tensor, nn

from tasks.checkpoints import save_checkpoint
from tasks.cli import main
from tasks.pde.domain import Domain
from tasks.pde.equation import Equation, Solutions
from tasks.pde.predictor import OperatorPredictor, SolutionOperator
from tasks.pde.problems import MixedProblems, OperatorProblems
from trivgeo.actions import OperatorInput
from trivgeo.groups import LieGroup, from_generators

HERE = __name__


class Phased(Solutions):
    """Solutions that differ by a phase, `[b, 1]`."""

    def __init__(self, phase: Tensor, equation: "PhasedEquation") -> None:
        self.phase = phase
        self.equation = equation

    def initial(self, x: Tensor) -> Tensor:
        points = torch.cat([x.reshape(len(x), -1), torch.zeros(len(x), 1, dtype=x.dtype)], -1)
        return self.equation.solution(self.phase, points)

    def on_grid(self, *counts: int) -> Tensor:
        return self.equation.solution(self.phase, self.equation.domain.grid(*counts, dtype=self.phase.dtype))


class PhasedEquation(Equation):
    """An equation with a family of solutions of random phases."""

    def solution(self, phase: Tensor, points: Tensor) -> Tensor:
        raise NotImplementedError

    def sample(self, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Phased:
        return Phased(2 * math.pi * torch.rand(count, 1, generator=generator, dtype=dtype), self)

    def held_out(self, count: int) -> Phased:
        return Phased(torch.arange(count, dtype=torch.float64)[:, None], self)


class Waves(PhasedEquation):
    """u_t = v_x, v_t = u_x: a wave to the left and a smaller one to the right on [0, 2 pi] x [0, 2]."""

    left, right, lag = 1.0, 0.3, 1.0
    domain = Domain(0.0, 2 * math.pi, 0.0, 2.0, (-1.19, -0.8752), (1.19, 0.8752))
    description = {"equation": "u_t = v_x, v_t = u_x"}

    def group(self) -> LieGroup:
        return wave_group()

    def solution(self, phase: Tensor, points: Tensor) -> Tensor:
        x, t = points.unbind(-1)
        left = self.left * torch.cos(x + t + phase)
        right = self.right * torch.cos(x - t + phase + self.lag)
        return torch.stack([left + right, left - right], -1)


class Heat(PhasedEquation):
    """u_t = u_xx + u_yy: plane waves that decay, on [0, 2 pi] x [0, 3] x [0, 0.2]."""

    wave = (1.0, 2.0)
    domain = Domain((0.0, 0.0), (2 * math.pi, 3.0), 0.0, 0.2, -1.0, 1.0)
    description = {"equation": "u_t = u_xx + u_yy"}

    def group(self) -> LieGroup:
        return heat_group()

    def solution(self, phase: Tensor, points: Tensor) -> Tensor:
        k = points.new_tensor(self.wave)
        return torch.exp(-k.square().sum() * points[..., 2]) * torch.cos(points[..., :2] @ k + phase)


@functools.cache
def wave_group() -> LieGroup:
    """Translations, scaling, scaling and mixing of the unknowns, constants added to them."""
    x, t, u, v = variables = sympy.symbols("x t u v")
    fields = {
        "X": [1, 0, 0, 0],
        "T": [0, 1, 0, 0],
        "D": [x, t, 0, 0],
        "S": [0, 0, u, v],
        "M": [0, 0, v, u],
        "A": [0, 0, 1, 0],
        "B": [0, 0, 0, 1],
    }
    return from_generators(fields, variables=variables)


@functools.cache
def heat_group() -> LieGroup:
    """Translations, rotation, scaling, factor of u."""
    x, y, t, u = variables = sympy.symbols("x y t u")
    fields = {
        "X": [1, 0, 0, 0],
        "Y": [0, 1, 0, 0],
        "T": [0, 0, 1, 0],
        "R": [-y, x, 0, 0],
        "D": [x, y, 2 * t, 0],
        "Z": [0, 0, 0, u],
    }
    return from_generators(fields, variables=variables)


class WaveOperator(SolutionOperator):
    """Reads the phase of the wave to the left from its values at the sensors."""

    def __init__(self, num_sensors: int) -> None:
        super().__init__()
        self.num_sensors = num_sensors
        self.wave_number = nn.Parameter(torch.ones((), dtype=torch.float64))

    @property
    def architecture(self) -> dict[str, Any]:
        return {"num_sensors": self.num_sensors}

    def predictor(self, domain: Domain) -> nn.Module:
        return OperatorPredictor(self, domain.sensors(self.num_sensors, dtype=torch.float64))

    def forward(self, sensors: Tensor, points: Tensor) -> Tensor:
        x = self.wave_number * Waves.domain.sensors(self.num_sensors, dtype=torch.float64)[1:]
        left = sensors[..., 1:, :].mean(-1)
        phase = torch.atan2(-(left * x.sin()).sum(-1), (left * x.cos()).sum(-1))
        return Waves().solution(phase.unsqueeze(-1), points)


class HeatOperator(SolutionOperator):
    """Reads the phase from scattered points of the initial condition, by least squares."""

    def __init__(self, num_sensors: int) -> None:
        super().__init__()
        self.num_sensors = num_sensors

    @property
    def architecture(self) -> dict[str, Any]:
        return {"num_sensors": self.num_sensors}

    def predictor(self, domain: Domain) -> nn.Module:
        return self

    def forward(self, x: OperatorInput) -> Tensor:
        start = x.initial[..., 2].mean(-1)
        angle = x.initial[..., :2] @ x.initial.new_tensor(Heat.wave)
        columns = torch.stack([angle.cos(), -angle.sin()], -1)
        a, b = torch.linalg.lstsq(columns, x.initial[..., 3:]).solution.squeeze(-1).unbind(-1)
        points = x.query - torch.stack([0 * start, 0 * start, start], -1).unsqueeze(-2)
        return torch.cat([x.query, Heat().solution(torch.atan2(b, a).unsqueeze(-1), points).unsqueeze(-1)], -1)


CASES = {
    "waves": (Waves(), WaveOperator(32), {"num_sensors": 64, "nx": 16, "nt": 8}),
    "heat": (Heat(), HeatOperator(8), {"num_sensors": 16, "nx": 8, "nt": 4}),
}
SPREADS = {"waves": [0.5, 0.5, 0.2, 0.3, 0.2, 0.3, 0.3], "heat": [0.5, 0.5, 0.1, 0.2, 0.2, 0.4]}
INVERTERS = {
    "waves": {
        "class_path": "trivgeo.inversion.TIED",
        "init_args": {
            "schedule": {"class_path": "trivgeo.sde.GeometricSchedule", "init_args": {"minimum": 0.01, "maximum": 0.5}},
            "num_mc": 5,
            "num_hypotheses": 16,
            "temperature": 1e-5,
            "max_score_norm": 1500.0,
            "keep_seen": True,
        },
    },
    "heat": {
        "class_path": "trivgeo.inversion.GradientDescent",
        "init_args": {
            "steps": 100,
            "learning_rate": 0.3,
            "num_hypotheses": 8,
            "start_std": 0.3,
            "momentum": 0.5,
            "max_gradient_norm": 2.0,
        },
    },
}


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("name", list(CASES))
def test_inverted_from_the_command_line(name: str) -> None:
    equation, network, sizes = CASES[name]
    save_checkpoint(network, "network.safetensors", equation.description)
    config = {
        "trainer": {"default_root_dir": "out", "accelerator": "cpu", "enable_progress_bar": False},
        "model": {
            "class_path": "tasks.pde.inversion.OperatorInversion",
            "init_args": {
                "checkpoint": "network.safetensors",
                "calibrate": 0.02,
                "calibration_functions": 4,
                "inverter": INVERTERS[name],
            },
        },
        "data": {
            "class_path": "tasks.pde.problems.MixedProblems",
            "init_args": {
                "equation": {"class_path": f"{HERE}.{type(equation).__name__}"},
                "spread": SPREADS[name],
                "seeds": [3],
                "cases": 4,
                **sizes,
            },
        },
    }
    Path("test.yaml").write_text(yaml.safe_dump(config))
    main(["test", "--config=test.yaml"])
    document = json.loads(Path("out/results.json").read_text())
    print(json.dumps(document["metrics"], indent=1), [r["energy"] for r in document["rows"]])
    assert 0
