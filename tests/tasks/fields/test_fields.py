"""Data, training and table of neural operators on grids; the example script."""

import json
import math
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn

from tasks.cli import main
from tasks.fields.data import FieldData
from tasks.fields.fno import SmallFNO
from tasks.fields.problems import FieldProblem, burgers, kdv, kuramoto_sivashinsky, spectrum, vorticity
from tasks.fields.training import WithParameters, relative_error, train
from tests.helpers import seeded
from tests.tasks.sample_runs import CONFIGS
from trivgeo.actions import Field, FieldAction, augment
from trivgeo.groups import from_generators
from trivgeo.pde import GaussianField, SpectralEquation, solve

ROOT = Path(__file__).parents[3]


def test_example_script(capsys: pytest.CaptureFixture[str]) -> None:
    """At most 40 lines for an own network and an own equation; inversion takes the error down ten times."""
    script = ROOT / "docs" / "tutorials" / "equivariant_operator.py"
    assert len(script.read_text().splitlines()) <= 40
    runpy.run_path(str(script), run_name="__main__")
    alone, found = map(float, capsys.readouterr().out.split(":")[-1].split())
    assert 10 * found < alone < 1.0


def solved_anew(problem: FieldProblem, start: Field, horizon: Tensor) -> Tensor:
    """The solution from a moved initial field, on its own box."""
    again = solve(problem.equation, start, start.grid.times + horizon, problem.max_step)
    return again.values.select(2, 0)


@pytest.mark.parametrize("make", [kdv, kuramoto_sivashinsky, burgers])
def test_augmented_pairs_satisfy_the_equation(make: Callable[[], FieldProblem]) -> None:
    """Each solved anew from where it was moved to, no further off than the solver is by itself at half its step."""
    problem = make()
    fine = make(2 * problem.points)  # type: ignore[call-arg]
    block = fine.solutions(4, 1, [0.0, fine.horizon])
    moved = augment(block, fine.action, fine.draw, generator=seeded(2))
    start, target, _ = fine.pairs(moved, fine.action.group.identity(4, dtype=torch.float64))
    after = moved.grid.times[:, 1:] - moved.grid.times[:, :1]
    again = solved_anew(fine, start, after)
    problem.max_step, exact = fine.max_step / 2, block.values[:, :, 1]
    own = float(
        relative_error(
            solve(fine.equation, block.slice(0), [fine.horizon], problem.max_step).values[:, :, 0], exact
        ).max()
    )
    assert float(relative_error(again, target).max()) < 10 * max(own, 1e-6)
    assert float(relative_error(solved_anew(fine, start, 1.1 * after), target).min()) > 1e-2


def test_solutions_and_what_moves_them_are_drawn_apart() -> None:
    problem = kdv(32)
    drawn = problem.action.group.random(4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    assert not torch.allclose(problem.test(4, 7, move=True).elements, drawn)


def test_eddies_hardly_feel_their_box() -> None:
    """Solved anew from the turned field: up to what the images of the eddies do."""
    problem = vorticity()
    moved = problem.test(4, 1, move=True)
    error = relative_error(solved_anew(problem, moved.initial, torch.tensor(problem.horizon)), moved.target)
    assert float(error.median()) < 0.01
    total = moved.initial.values.flatten(1).sum(1).abs() / moved.initial.values.flatten(1).abs().sum(1)
    assert float(total.max()) < 1e-2


def test_batches_of_training() -> None:
    """Clean ones are those of the test; those moved once stay, augmented ones do not; the network is told the scale."""
    problem = kdv()
    values, parameters, target = FieldData(problem, 4, seed=3).collate([2, 0])
    test = problem.test(4, 3, move=False)
    torch.testing.assert_close(values, test.initial.values[[2, 0], :, 0].float())
    torch.testing.assert_close(target, test.target[[2, 0]].float())
    assert float(parameters.abs().max()) < 1e-6
    once, always = FieldData(problem, 4, "once"), FieldData(problem, 4, "always")
    assert torch.equal(once.collate([1])[0], once.collate([1])[0])
    assert not torch.equal(always.collate([1])[0], always.collate([1])[0])
    v = torch.tensor([[math.log(2) / 0.2, 0.0, 0.0, 0.0]], dtype=torch.float64)
    wide = problem.action(problem.action.group.exp(v), test.initial)
    torch.testing.assert_close(problem.parameters(wide), torch.full((4, 1), math.log(2), dtype=torch.float64))


def test_small_fno() -> None:
    """It does not depend on the grid, and commutes with translations by whole steps, in one and two dimensions."""
    torch.manual_seed(0)
    for modes, shape in (((4,), (24,)), ((3, 4), (14, 16))):
        net, u = SmallFNO(modes, width=8), torch.randn(3, 2, *shape)
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
    untrained = WithParameters(SmallFNO((6,), width=8, layers=2))
    test = problem.test(16, 5, move=False)

    def error(net: WithParameters) -> float:
        with torch.no_grad():
            return float(relative_error(net(test.initial.values[:, :, 0].float()), test.target.float()).mean())

    before = error(untrained)
    assert error(train(untrained, FieldData(problem, 16, "always"), 60)) < 0.7 * before


def stretched(p: Tensor) -> Tensor:
    return p * torch.tensor([1.0, 2.0, 0.0], dtype=p.dtype)


def raised(p: Tensor) -> Tensor:
    return 0.0 * p + torch.tensor([0.0, 0.0, 1.0], dtype=p.dtype)


def heat() -> FieldProblem:
    """On circles of several lengths, and with several means; clean fields have none."""
    group = from_generators({"S": stretched, "V": raised}, variables=3, scale=[0.5, 1.0])
    equation = SpectralEquation.from_equation("u_t = 0.5*u_xx")
    return FieldProblem(
        equation, FieldAction(group), GaussianField(1.0, 1.0, 4.0, 4, 6.0), [(0.0, 6.0)], 2.0, 16, spectrum
    )


class Solver(nn.Module):
    """In place of a network that is perfect on clean fields: it takes all fields for such, and cannot learn."""

    def __init__(self) -> None:
        super().__init__()
        self.problem = heat()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, u: Tensor) -> Tensor:
        field = Field.on_box(u[:, :1] - u[:, :1].mean(-1, keepdim=True), self.problem.box)
        solution = solve(self.problem.equation, field, [self.problem.horizon], 1.0)
        return solution.values[:, :, 0] + 0.0 * self.unused


def compared(folder: Path, settings: dict[str, object], count: int) -> dict[str, float]:
    """Means of the metrics of a comparison, on KdV if nothing else is said."""
    overlay = {"model": {"init_args": settings}, "data": {"init_args": {"count": count}}}
    (folder / "short.yaml").write_text(yaml.safe_dump(overlay))
    files = [f"--config={CONFIGS / 'fields' / 'kdv.yaml'}", f"--config={folder / 'short.yaml'}"]
    main(["test", *files, f"--trainer.default_root_dir={folder}"])
    document = json.loads((folder / "results.json").read_text())
    assert len(document["rows"]) == count
    return {name: metric["mean"] for name, metric in document["metrics"].items()}


def test_comparison_with_a_perfect_network(tmp_path: Path) -> None:
    """Perfect where it was trained and with the true transformation, useless on moved fields."""
    settings = {
        "problem": {"class_path": f"{__name__}.heat"},
        "network": {"class_path": f"{__name__}.Solver"},
        "inverter": {"init_args": {"steps": 2, "num_hypotheses": 2}},
        "fields": 8,
        "steps": 1,
        "learned_steps": 1,
    }
    error = compared(tmp_path, settings, 6)
    assert max(error["network alone, on clean fields"], error["true transformation"]) < 1e-5
    assert error["network alone"] == error["augmented"]
    assert error["network alone"] > 0.1


@pytest.mark.slow
def test_comparison(tmp_path: Path) -> None:
    """A short run: inversion is near the true transformation, the network alone is far."""
    network = {"class_path": "tasks.fields.fno.SmallFNO", "init_args": {"modes": [12]}}
    error = compared(tmp_path, {"network": network, "fields": 64, "steps": 300}, 32)
    assert error["learned inversion"] < 1.5 * error["true transformation"] < 0.5 * error["network alone"]
    assert error["augmented"] < 0.5 * error["network alone"]
