"""A system of two unknowns, and an equation in two dimensions, with networks of their own: defined here, nothing else.

The networks know one family of solutions, exactly, in one training domain. They are wrong on anything else.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from tasks.checkpoints import save_checkpoint
from tasks.cli import main
from tasks.pde.domain import Domain, with_values
from tasks.pde.energies import TrainingBox
from tasks.pde.equation import Equation, Solutions
from tasks.pde.predictor import OperatorPredictor, SolutionOperator
from tests.helpers import randn
from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.errors import DomainError, ShapeError
from trivgeo.groups import SE, DirectProduct, LieGroup, Translation
from trivgeo.groups.action import JetAction
from trivgeo.inversion import InverseProblem
from trivgeo.pde import EvolutionEquation

HERE = __name__


class WaveSymmetry(Translation):
    """Translations of x and t, scaling of u and v together, and mixing of them; all commute."""

    def action(self) -> JetAction:
        return WaveAction(self, (2, 4))


class WaveAction(JetAction):
    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        base = x[..., :2] + g[..., :2]
        if x.shape[-1] == 2:
            return base
        (u, v), scaling, mixing = x[..., 2:].unbind(-1), g[..., 2].exp(), g[..., 3]
        mixed = torch.stack([u * mixing.cosh() + v * mixing.sinh(), u * mixing.sinh() + v * mixing.cosh()], -1)
        return torch.cat([base, scaling.unsqueeze(-1) * mixed], -1)


class HeatSymmetry(DirectProduct):
    """Rigid motions of (x, y), translation of t, and factor of u."""

    def action(self) -> JetAction:
        return HeatAction(self, (3, 4))


class HeatAction(JetAction):
    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        motion, rest = self.group.split(g)
        place = (motion[..., :2] @ x[..., :2, None]).squeeze(-1) + motion[..., 2]
        base = torch.cat([place, x[..., 2:3] + rest[..., :1]], -1)
        return torch.cat([base, x[..., 3:] * rest[..., 1:].exp()], -1)


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

    formula = EvolutionEquation(["u_t = v_x", "v_t = u_x"])
    left, right, lag = 1.0, 0.3, 1.0
    domain = Domain(0.0, 2 * math.pi, 0.0, 2.0, (-1.19, -0.8752), (1.19, 0.8752))

    def group(self) -> LieGroup:
        return WaveSymmetry(4)

    def solution(self, phase: Tensor, points: Tensor) -> Tensor:
        x, t = points.unbind(-1)
        left = self.left * torch.cos(x + t + phase)
        right = self.right * torch.cos(x - t + phase + self.lag)
        return torch.stack([left + right, left - right], -1)


class Heat(PhasedEquation):
    """u_t = u_xx + u_yy: plane waves that decay, on [0, 2 pi] x [0, 3] x [0, 0.2]."""

    formula = EvolutionEquation("u_t = u_xx + u_yy")
    wave = (1.0, 2.0)
    domain = Domain((0.0, 0.0), (2 * math.pi, 3.0), 0.0, 0.2, -1.0, 1.0)

    def group(self) -> LieGroup:
        return HeatSymmetry(SE(2), Translation(2))

    def solution(self, phase: Tensor, points: Tensor) -> Tensor:
        k = points.new_tensor(self.wave)
        return torch.exp(-k.square().sum() * points[..., 2]) * torch.cos(points[..., :2] @ k + phase)


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
SPREADS = {"waves": [0.5, 0.5, 0.3, 0.2], "heat": [0.2, 0.5, 0.5, 0.1, 0.4]}
DESCENT = {
    "class_path": "trivgeo.inversion.GradientDescent",
    "init_args": {
        "steps": 40,
        "learning_rate": 0.3,
        "num_hypotheses": 8,
        "start_std": 0.3,
        "momentum": 0.5,
        "max_gradient_norm": 2.0,
    },
}


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("name", ["waves", pytest.param("heat", marks=pytest.mark.slow(reason="the system stays"))])
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
                "equivariance": True,
                "inverter": DESCENT,
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
    metrics = document["metrics"]
    assert metrics["with the true transformation"]["worst"] < 1e-6
    assert metrics["with inversion"]["worst"] < 2e-3
    assert metrics["without inversion"]["mean"] > 0.1
    assert metrics["equivariance error"]["worst"] < 1e-4 < metrics["equivariance error without inversion"]["mean"]
    assert [row["case"] for row in document["rows"]] == [0, 1, 2, 3]
    assert Path("out/figure.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", list(CASES))
def test_symmetries_take_solutions_to_solutions(name: str) -> None:
    equation = CASES[name][0]
    group, n = equation.group(), len(equation.domain.base)
    action, g = group.action(), group.exp(0.3 * randn(1, group.dim))
    phase, points = randn(1, 1), randn(1, 20, n)

    def moved(points: Tensor) -> Tensor:
        base = action(group.inverse(g), points)
        return action(g, with_values(base, equation.solution(phase, base)))[..., n:]

    h = 1e-4 * torch.eye(n, dtype=torch.float64)
    slopes = [(moved(points + e) - moved(points - e)) / 2e-4 for e in h]
    curvatures = [(moved(points + e) - 2 * moved(points) + moved(points - e)) / 1e-8 for e in h]
    expected = slopes[0].flip(-1) if name == "waves" else curvatures[0] + curvatures[1]
    torch.testing.assert_close(slopes[-1], expected, rtol=1e-5, atol=1e-5)


def test_a_box_of_another_equation_is_refused() -> None:
    heat = CASES["heat"][0]
    data = heat.inputs(heat.held_out(2), 4, (3, 3, 3))
    with pytest.raises(ShapeError, match="domain of 2 ranges, got 3"):
        InverseProblem(OperatorAction(heat.group().action()), TrainingBox(Waves())).given(data)
    with pytest.raises(DomainError, match="expected one x and one u, got 2 and 1"):
        heat.domain.line()
