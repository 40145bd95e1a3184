"""Data, training and table of neural operators on grids; the example script."""

import json
import math
import runpy
from pathlib import Path

import pytest
import torch

from tasks.fields import table
from tasks.fields.data import FieldData
from tasks.fields.fno import SmallFNO
from tasks.fields.problems import burgers, kdv, kuramoto_sivashinsky
from tasks.fields.training import WithParameters, relative_error, train
from trivgeo.actions import Field
from trivgeo.pde import solve

ROOT = Path(__file__).parents[2]


def test_example_script(capsys: pytest.CaptureFixture[str]) -> None:
    """At most 40 lines for an own network and an own equation; inversion takes the error down ten times."""
    script = ROOT / "docs" / "tutorials" / "equivariant_operator.py"
    assert len(script.read_text().splitlines()) <= 40
    runpy.run_path(str(script), run_name="__main__")
    alone, found = map(float, capsys.readouterr().out.split(":")[-1].split())
    assert 10 * found < alone < 1.0


@pytest.mark.parametrize("make", [kdv, kuramoto_sivashinsky, burgers])
def test_augmented_pairs_satisfy_the_equation(make: object) -> None:
    """Each solved anew on the circle that its parameter says: within the error of the solver at its step."""
    assert callable(make)
    problem = make()
    data = FieldData(problem, 3, moved="always", seed=1)
    values, parameters, target = data.collate([0, 1, 2])
    for u, p, wanted in zip(values.double(), parameters.double(), target.double(), strict=True):
        length = problem.law.length * float(p.exp())
        weight = {"KdV": 3.0, "Burgers": 2.0}.get(type(problem.equation).__name__, 0.0)
        horizon = problem.horizon * float((weight * p).exp())
        fine = Field.on_box(u[None], [(0.0, length)])
        grid = Field.on_box(torch.zeros(1, 1, 64), [(0.0, length)]).grid
        fine = problem.action.resample(fine, grid, (64,))
        again = solve(problem.equation, fine, [horizon], problem.max_step).values[..., 0, ::2]
        assert float((again - wanted).norm() / wanted.norm()) < 5e-3
    assert float(parameters.std()) > 0.05 or weight == 0.0


def test_without_augmentation_pairs_are_those_of_the_test() -> None:
    problem = kdv()
    values, parameters, target = FieldData(problem, 4, seed=3).collate([2, 0])
    test = problem.test(4, 3, move=False)
    torch.testing.assert_close(values, test.initial.values[[2, 0], :, 0].float())
    torch.testing.assert_close(target, test.target[[2, 0]].float())
    assert float(parameters.abs().max()) < 1e-6


def test_small_fno() -> None:
    """It does not depend on the grid, and commutes with translations by whole steps, in one and two dimensions."""
    torch.manual_seed(0)
    for modes, shape in (((4,), (24,)), ((3, 4), (14, 16))):
        net, u = SmallFNO(2, 1, modes, 8), torch.randn(3, 2, *shape)
        out = net(u)
        assert out.shape == (3, 1, *shape)
        torch.testing.assert_close(net(u.roll(5, -1)), out.roll(5, -1), rtol=1e-4, atol=1e-5)
        smooth = torch.cos(2 * math.pi * torch.arange(shape[-1]) / shape[-1]).expand(1, 2, *shape)
        fine = torch.cos(math.pi * torch.arange(2 * shape[-1]) / shape[-1])
        fine = fine.expand(1, 2, *(2 * n for n in shape))
        index = (..., *[slice(None, None, 2)] * len(shape))
        torch.testing.assert_close(net(fine)[index], net(smooth), rtol=1e-3, atol=1e-3)


def test_training_learns() -> None:
    problem = kdv()
    torch.manual_seed(0)
    untrained = WithParameters(SmallFNO(2, 1, (6,), 8, 2))
    test = problem.test(16, 5, move=False)

    def error(net: WithParameters) -> float:
        with torch.no_grad():
            return float(relative_error(net(test.initial.values[:, :, 0].float()), test.target.float()).mean())

    before = error(untrained)
    assert error(train(untrained, FieldData(problem, 16, "always"), 60)) < 0.7 * before


@pytest.mark.slow
def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run: inversion is near the true transformation, the network alone is far, and nothing runs twice."""
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    monkeypatch.setattr(
        "sys.argv", ["table", "kdv", "--fields", "64", "--moved", "never", "--steps", "300", "--tests", "32"]
    )
    table.main()
    (row,) = json.loads((tmp_path / "fields_kdv_small.json").read_text())
    errors = row["error on moved fields"]
    assert errors["learned"] < 1.5 * errors["true transformation"] < 0.5 * errors["network"]
    monkeypatch.setattr(table, "row", None)
    table.main()
