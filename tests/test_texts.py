"""What objects say when they are printed: one line of sizes and settings, no numbers of tensors, no addresses."""

import re
from xml.etree import ElementTree

import pytest
import sympy
import torch
from torch import nn

from tests.groups.cases import CASES
from trivgeo import pde
from trivgeo._text import text_of
from trivgeo.actions import FieldAction, Grid, ImageWarp, OperatorInput, PointCloud
from trivgeo.groups import SE, KdVSymmetry
from trivgeo.inversion import InverseProblem, LieLAC, Population, ReverseDiffusionSearch
from trivgeo.inversion.energies import Trimmed
from trivgeo.inversion.stages import (
    Adam,
    AddNoise,
    Descend,
    HeavyBall,
    Langevin,
    Replicate,
    ReverseDiffusion,
    Select,
)
from trivgeo.sde import (
    ConstantSchedule,
    EnergyScore,
    GeometricSchedule,
    NoiseKernel,
    TrivializedSDE,
    solve,
    uniform_grid,
)
from trivgeo.sde.processes import KineticLangevinSDE
from trivgeo.sde.solvers import ExponentialEuler, GeometricHeun, Resampling
from trivgeo.symmetry.equations.vector_fields import Symmetry

GROUP = SE(2)
ACTION = GROUP.action()
CLOUD = torch.randn(12, 5, 2, generator=torch.Generator().manual_seed(0))
SCHEDULE = GeometricSchedule(0.1, 1.0)
KERNEL = NoiseKernel(GROUP, SCHEDULE, steps=4)
MOTION = TrivializedSDE(GROUP, ConstantSchedule(0.5), drift=lambda g, t: g.new_zeros(*g.shape[:-2], 3))
SAMPLE = torch.Generator().manual_seed(0)


def spread(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean((-2, -1))


INVERTER = ReverseDiffusionSearch(ACTION, spread, SCHEDULE, steps=3, num_hypotheses=2)
RESULT = INVERTER(CLOUD, generator=SAMPLE)
POPULATION = Population(RESULT.elements, RESULT.num_masked_steps)
OBJECTS = [
    *(case.group.action() for case in CASES if case.has_action),
    *(ImageWarp(GROUP), PointCloud(GROUP), FieldAction(KdVSymmetry()), Grid(CLOUD, CLOUD)),
    *(OperatorInput(CLOUD, CLOUD), GROUP.basis, GROUP.algebra),
    *(INVERTER, INVERTER.then(Descend(5)), LieLAC(ACTION, spread), RESULT, RESULT.modes(), POPULATION),
    *(
        Replicate(3),
        Descend(5, HeavyBall(0.1, 0.5)),
        Select(1),
        AddNoise(SCHEDULE),
        ReverseDiffusion(SCHEDULE),
        Langevin(3, 0.1),
        Adam(0.1),
    ),
    *(Trimmed(0.5), InverseProblem(ACTION, spread), InverseProblem(ACTION, spread).given(CLOUD)),
    *(
        SCHEDULE,
        KERNEL,
        KERNEL.sample_paths(3, times=(0.5,), generator=SAMPLE),
        EnergyScore(spread, KERNEL, 2, generator=SAMPLE),
    ),
    *(ExponentialEuler(), GeometricHeun(skip_zero=True), Resampling(), MOTION),
    *(KineticLangevinSDE(GROUP, spread), solve(MOTION, GROUP.identity(2), uniform_grid(2), generator=SAMPLE)),
    *(pde.Vorticity(0.1), pde.GaussianField(1.0, 1.0, 2.0, 8, 1.0)),
]


@pytest.mark.parametrize("thing", OBJECTS, ids=lambda thing: type(thing).__name__)
def test_one_line(thing: object) -> None:
    text = repr(thing)
    assert re.match(r"[A-Z]\w*\(", text)
    assert len(text) < 300
    assert not re.search(r"\n|tensor\(|0x[0-9a-f]{6}|<function|<bound", text)


def test_what_is_said() -> None:
    assert repr(ACTION) == "InhomogeneousAction(SE(2))"
    assert repr(Replicate(3)) == "Replicate(num_hypotheses=3)"
    assert repr(POPULATION) == "Population(elements=[12, 2, 2, 3], num_masked_steps=[12, 2], energies=None, time=0)"
    x, t = sympy.symbols("x t")
    assert repr(Symmetry("X2", (x, 2 * t), (x, t))) == "Symmetry(X2 = x*∂_x + 2*t*∂_t)"
    assert repr(GeometricHeun()) == "GeometricHeun(skip_zero=False)"
    assert repr(solve(MOTION, GROUP.identity(2), uniform_grid(1), generator=SAMPLE)).startswith(
        "Solution(final=[2, 2, 3],"
    )
    assert text_of(nn.Linear(2, 3)) == "Linear"
    assert text_of((1.0, [spread, SAMPLE], torch.float64)) == "(1, (spread, Generator), torch.float64)"
    assert text_of(list(range(9))) == "9 entries"


def test_a_notebook_shows_what_was_found() -> None:
    table = ElementTree.fromstring(RESULT._repr_html_().replace("colspan=5", ""))
    rows = [[cell.text for cell in row] for row in table.findall("tr")]
    assert rows[0] == ["datum", "lowest energy", "usable", "masked steps", "trusted"]
    assert len(rows) == 12
    assert rows[-1] == ["and 2 more"]
    for i, row in enumerate(rows[1:-1]):
        steps = str(int(RESULT.num_masked_steps[i].sum()))
        assert row == [str(i), f"{RESULT.energies[i].min():.4g}", "2 of 2", steps, "yes"]
    assert table.findtext("caption") == repr(RESULT)
