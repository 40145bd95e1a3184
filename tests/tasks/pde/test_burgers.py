"""Burgers and KdV: checkpoints, energies, `python -m tasks test`, equivariance, figures."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from tasks.checkpoints import load_checkpoint
from tasks.cli import main
from tasks.files import encoded
from tasks.pde.burgers import BurgersEquation
from tasks.pde.compare import compare
from tasks.pde.deeponet import DeepONet, Jet
from tasks.pde.domain import Domain, relative_l2
from tasks.pde.energies import InitialConditionEnergy
from tasks.pde.equation import Equation
from tasks.pde.equivariance import equivariance_error
from tasks.pde.heat import HeatEquation
from tasks.pde.inversion import OperatorInversion
from tasks.pde.kdv import KdVEquation
from tasks.pde.problems import MixedProblems
from tasks.pde.training import PhysicsInformedTraining, SolvedData, SupervisedTraining
from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import BurgersSymmetry
from trivgeo.inversion import InverseProblem, ReverseDiffusionSearch, calibrated_scale
from trivgeo.inversion.energies import DomainDistance, GaussianInitialEnergy

CONFIGS = Path("tasks/configs")
CHECKPOINTS = Path("tasks/checkpoints")
F64 = torch.float64
BURGERS = BurgersEquation()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run configs of the repository, the later ones over the earlier, made small; returns the results."""
    monkeypatch.setattr("sys.argv", ["tasks"])

    def go(*names: str, folder: str = "run", **changes: Any) -> dict[str, Any]:
        directory = tmp_path / folder
        small = {
            "trainer": {
                "default_root_dir": str(directory),
                "enable_progress_bar": False,
                "callbacks": [
                    {"class_path": "tasks.results.ResultsWriter", "init_args": {"directory": str(directory)}}
                ],
            },
            "data": {"init_args": {"seeds": [0], "cases": 4, "nx": 17, "nt": 17, **changes.pop("data", {})}},
            "model": {
                "init_args": {
                    **changes.pop("model", {}),
                    "inverter": {"init_args": {"num_hypotheses": 8, "pruning": [[0.5, 4]], **changes}},
                }
            },
        }
        path = tmp_path / f"{folder}.yaml"
        path.write_text(yaml.safe_dump(small))
        main(["test", *(f"--config={CONFIGS / name}" for name in names), f"--config={path}"])
        return json.loads((directory / "results.json").read_text())

    return go


@pytest.mark.parametrize(
    ("name", "equation", "bar"), [("burgers_deeponet", BURGERS, 0.017), ("kdv_deeponet", KdVEquation(), 0.03)]
)
def test_committed_checkpoint(name: str, equation: Equation, bar: float) -> None:
    """On fields that neither training nor validation has seen."""
    loaded = load_checkpoint(DeepONet, str(CHECKPOINTS / f"{name}.safetensors"))
    net, metadata = loaded.network, loaded.metadata
    assert Domain(**metadata["domain"]) == equation.domain
    assert {key: metadata[key] for key in equation.description} == equation.description
    solutions = equation.sample(50, seeded(11))
    sensors = solutions.initial(equation.domain.sensors(101, dtype=F64)).float()
    error = relative_l2(net(sensors, equation.domain.grid(51, 51)), solutions.on_grid(51, 51).float()).detach()
    assert error.mean() < bar
    assert error.mean().item() == pytest.approx(metadata["validation"]["relative_l2"], rel=0.4)


FIRST_STAYS = pytest.mark.slow(reason="the first configuration stays")


@pytest.mark.parametrize(
    ("names", "bar", "factor"),
    [
        (["burgers/tied.yaml"], 0.03, 3.0),
        pytest.param(["burgers/tied.yaml", "burgers/small.yaml"], 0.03, 6.0, marks=FIRST_STAYS),
        pytest.param(["burgers/tied.yaml", "burgers/learned.yaml"], 0.05, 3.0, marks=FIRST_STAYS),
        pytest.param(["kdv/tied.yaml"], 0.05, 3.0, marks=FIRST_STAYS),
    ],
)
def test_inversion_restores_the_error_of_the_training_domain(
    run: Any, names: list[str], bar: float, factor: float
) -> None:
    """The runs are small, so their posteriors are wide; the network itself errs by as little as 0.003."""
    metrics = run(*names)["metrics"]
    assert metrics["with inversion"]["mean"] <= bar
    assert metrics["with inversion"]["mean"] <= factor * metrics["inside the training domain"]["mean"]
    assert metrics["without inversion"]["mean"] > 0.3


@pytest.mark.slow(reason="test_image_inversion measures equivariance")
def test_equivariance_is_measured_and_small(run: Any) -> None:
    results = run("burgers/tied.yaml", model={"equivariance": True})
    metrics = results["metrics"]
    assert metrics["equivariance error"]["mean"] < 0.02
    assert metrics["equivariance error, same noise"]["mean"] < 0.02
    assert metrics["equivariance error without inversion"]["mean"] > 0.3


@pytest.mark.slow(reason="test_sweep draws errors of runs")
def test_errors_of_several_runs_are_drawn_against_their_size(run: Any, tmp_path: Path) -> None:
    sizes = {"small": ["burgers/small.yaml"], "like": []}
    runs = {size: run("burgers/tied.yaml", *more, folder=size, steps=2) for size, more in sizes.items()}
    alone, tied = compare(tmp_path / "sizes.png", [tmp_path / size for size in sizes])
    assert (alone.label, tied.label) == ("network alone", "TIED")
    assert len(alone.size) == len(tied.error) == 8
    assert max(alone.size[:4]) < max(alone.size[4:])
    assert alone.error[:4] == [row["metrics"]["without inversion"] for row in runs["small"]["rows"]]
    assert (tmp_path / "sizes.png").read_bytes()[:4] == b"\x89PNG"
    del runs["like"]["checksum"]
    runs["like"]["config"]["model"]["class_path"] = "other.Task"
    (tmp_path / "like" / "results.json").write_text(encoded(runs["like"]))
    with pytest.raises(ConfigurationError, match=r"expected results of OperatorInversion, got other.Task"):
        compare(tmp_path / "sizes.png", [tmp_path / size for size in sizes])


def test_misfits_are_refused_before_work_starts(run: Any) -> None:
    options: dict[str, Any] = {
        "checkpoint": str(CHECKPOINTS / "burgers_deeponet.safetensors"),
        "inverter": ReverseDiffusionSearch,
    }
    with pytest.raises(ConfigurationError, match=r"expected a network for .*'nu': 0.02"):
        OperatorInversion(equation=BurgersEquation(nu=0.02), **options)
    data = {"equation": {"class_path": "tasks.pde.burgers.BurgersEquation", "init_args": {"sigma": 600.0}}}
    with pytest.raises(ValueError, match=r"checkpoint: expected .*600.*, got .*625"):
        run("burgers/tied.yaml", data=data)


class TestEquivarianceError:
    def test_zero_for_an_equivariant_predictor_and_relative_otherwise(self) -> None:
        """The exact solution operator commutes with the group."""
        batch = MixedProblems(BURGERS, [0.2] * 5, [0], cases=3, num_sensors=9, nx=5, nt=5).problems(0)
        action = BURGERS.group().action()
        at_x = torch.cat([batch.canonical.query, batch.canonical_solution.unsqueeze(-1)], -1)
        at_gx = torch.cat([batch.x.query, batch.solution.unsqueeze(-1)], -1)
        assert float(equivariance_error(action, batch.elements, at_x, at_gx).max()) < 1e-12
        half = at_gx * torch.tensor([1.0, 1.0, 0.5])
        torch.testing.assert_close(equivariance_error(action, batch.elements, at_x, half), torch.ones(3, dtype=F64))


def problem(part: float = 1.0) -> OperatorInput:
    """Problems inside the domain."""
    return MixedProblems(BURGERS, [0.0] * 5, [0], cases=4, num_sensors=41, nx=9, nt=9, part=part).problems(0).x


class TestEnergies:
    def test_without_a_range_of_u_the_box_ignores_it(self) -> None:
        x = problem()
        energy = DomainDistance((0.0, 1.0), (0.0, 1.0))
        torch.testing.assert_close(energy(x), torch.zeros(4, dtype=F64))
        louder = OperatorInput(x.initial * torch.tensor([1.0, 1.0, 7.0]), x.query)
        assert torch.equal(energy(louder), energy(x))
        shifted = OperatorInput(x.initial + torch.tensor([0.1, 0.2, 0.0]), x.query)
        torch.testing.assert_close(energy(shifted), torch.full((4,), 2 * 0.1**2 + 2 * 0.2**2, dtype=F64))

    def test_a_box_that_need_not_be_filled_counts_what_sticks_out(self) -> None:
        x = problem(part=0.5)
        assert float(DomainDistance((0.0, 1.0), (0.0, 1.0))(x).min()) > 0.1
        energy = DomainDistance((0.0, 1.0), (0.0, 1.0), fill=False)
        torch.testing.assert_close(energy(x), torch.zeros(4, dtype=F64))
        far = OperatorInput(x.initial, x.query + torch.tensor([2.0, 0.0]))
        torch.testing.assert_close(energy(far), (far.query[..., 0].amax(-1) - 1) ** 2)

    @pytest.mark.parametrize("learned", [False, True])
    def test_the_parts_that_are_read_have_the_energy_of_the_whole(self, learned: bool) -> None:
        """`prepare` and `select` spare the action most points, and change nothing."""
        box = DomainDistance((0.0, 1.0), (0.0, 1.0), fill=not learned)
        energy = InitialConditionEnergy(BURGERS, sensors=21, samples=100) if learned else box
        group = BurgersSymmetry(scale=0.2)
        action = OperatorAction(group.action())
        g = group.random(4, 3, generator=seeded(1), dtype=F64)
        whole = torch.stack([energy(action(group.inverse(g[:, i]), problem())) for i in range(3)], 1)
        torch.testing.assert_close(InverseProblem(action, energy).given(problem()).energies(g), whole)

    def test_learned_energy_is_the_gaussian_likelihood(self) -> None:
        """Against the log-density of torch, for a distribution whose variances are all above the floor."""
        m, n = 5, 50_000
        root = torch.eye(m, dtype=F64) + 0.3 * torch.rand(m, m, generator=seeded(0), dtype=F64)
        samples = 1.0 + torch.randn(n, m, generator=seeded(1), dtype=F64) @ root
        sensors = torch.linspace(0.0, 1.0, m, dtype=F64)
        box = DomainDistance((0.0, 1.0), (0.0, 1.0), fill=False)
        energy = GaussianInitialEnergy(box, sensors, samples, weight=2.0 * m)
        distribution = torch.distributions.MultivariateNormal(samples.mean(0), samples.mT.cov())
        u = samples[:7]
        initial = torch.stack([sensors.expand(7, -1), torch.zeros(7, m, dtype=F64), u], -1)
        value = energy(OperatorInput(initial, torch.full((7, 1, 2), 0.5, dtype=F64)))
        torch.testing.assert_close(
            value, 2.0 * (distribution.log_prob(distribution.mean) - distribution.log_prob(u)), rtol=1e-6, atol=1e-6
        )

    def test_learned_energy_sees_boosts_and_projections_of_the_initial_condition_alone(self) -> None:
        """The box of a window does not tell them; the distribution of the initial conditions does."""
        energy = InitialConditionEnergy(BURGERS)
        group = BurgersSymmetry()
        action, x = OperatorAction(group.action()), problem(part=0.5)
        v = torch.zeros(2, 5, dtype=F64)
        v[0, 2], v[1, 4] = 0.3, 0.3
        for direction in group.exp(v):
            moved = action(direction.expand(4, -1), x)
            assert bool((energy(moved) > 10 * energy(x)).all())

    def test_bad_settings_are_refused(self) -> None:
        box, sensors = DomainDistance((0.0, 1.0), (0.0, 1.0)), torch.linspace(0, 1, 5, dtype=F64)
        with pytest.raises(ShapeError, match=r"at least 2 initial conditions \[n, 5\], got \[3, 4\]"):
            GaussianInitialEnergy(box, sensors, torch.zeros(3, 4, dtype=F64))
        for bad in ({"weight": 0.0}, {"floor": -1.0}):
            with pytest.raises(ConfigurationError, match=next(iter(bad))):
                GaussianInitialEnergy(box, sensors, torch.randn(3, 5, generator=seeded(0), dtype=F64), **bad)

    def test_the_unit_of_a_calibrated_basis(self) -> None:
        """E = unit |v|^2 / 2, for a quadratic energy."""
        group = BurgersSymmetry(scale=0.3)
        action = OperatorAction(group.action())
        energy, clean = DomainDistance((0.0, 1.0), (0.0, 1.0)), problem()
        one, small = (calibrated_scale(action, energy, clean, unit=u, generator=seeded(0)) for u in (1.0, 0.04))
        torch.testing.assert_close(small, 0.2 * one)
        with pytest.raises(ConfigurationError, match="unit"):
            calibrated_scale(action, energy, clean, unit=0.0)


class _Answer(torch.nn.Module):
    """Stands in for a network that knows the solution."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, sensors: Tensor, points: Tensor) -> Tensor:
        return self.answer


class TestTraining:
    def test_windows_are_parts_of_the_grid(self) -> None:
        options: dict[str, Any] = {"seeds": [0], "cases": 3, "num_sensors": 9, "nx": 11, "nt": 7}
        whole = MixedProblems(BURGERS, [0.2] * 5, **options).problems(0)
        part = MixedProblems(BURGERS, [0.2] * 5, part=0.4, **options).problems(0)
        assert part.grid == (4, 3)
        assert torch.equal(part.elements, whole.elements)
        assert torch.equal(part.x.initial, whole.x.initial)
        for case in range(3):
            where = (part.x.query[case, :, None] == whole.x.query[case]).all(-1)
            assert torch.equal(where.sum(-1), torch.ones(12, dtype=torch.long))
            assert torch.equal(whole.solution[case][where.long().argmax(-1)], part.solution[case])
        with pytest.raises(ConfigurationError, match=r"part: expected a number in \(0, 1\]"):
            MixedProblems(BURGERS, [0.2] * 5, part=0.0, **options)

    def test_training_sets_are_solved_once_and_kept(self, tmp_path: Path) -> None:
        def data(modes: int = 8, **options: Any) -> SolvedData:
            return SolvedData(
                KdVEquation(points=32, steps=40, modes=modes),
                num_sensors=9,
                training_functions=5,
                functions=3,
                points=4,
                grid=(9, 5),
                cache=str(tmp_path),
                **options,
            )

        first = data().dataset[7]
        (path,) = tmp_path.glob("*.safetensors")
        stamp = path.stat().st_mtime_ns
        again = data().dataset[7]
        assert all(map(torch.equal, first, again))
        assert path.stat().st_mtime_ns == stamp
        _ = data(seed=1).dataset
        _ = data(modes=4).dataset
        assert len(list(tmp_path.glob("*.safetensors"))) == 3
        for number in (1e-9, 2e-9):  # printed alike
            other = data()
            other.equation.more = torch.zeros(2000, dtype=torch.float64)
            other.equation.more[1000] = number
            _ = other.dataset
        assert len(list(tmp_path.glob("*.safetensors"))) == 5
        other = data()
        other.equation.more = lambda x: x  # of which nothing tells whether it is the same
        _ = other.dataset
        assert len(list(tmp_path.glob("*.safetensors"))) == 5
        whole = data().dataset.data
        row = (whole.sensors == first.sensors[0]).all(-1).long().argmax()
        column = (whole.points == first.points[0]).all(-1).long().argmax()
        assert first.solution[0, 0] == whole.solution[row, column]

    def test_no_test_draws_what_was_trained_on(self) -> None:
        equation = KdVEquation(points=32, steps=40)
        trained = SolvedData(equation, 9, 5, 3, 4, grid=(9, 5), seed=3, cache=None).dataset.data.sensors
        tested = equation.sample(5, seeded(3)).initial(equation.domain.sensors(9, dtype=torch.float64))
        assert float(torch.cdist(tested.double().reshape(5, -1), trained.double().reshape(5, -1)).min()) > 0.1

    def test_losses_vanish_for_the_solution(self) -> None:
        data = SolvedData(KdVEquation(points=32, steps=40), 9, 5, 3, 4, grid=(9, 5), cache=None)
        module = SupervisedTraining(data.equation, num_sensors=9, width=4, depth=2)
        batch = data.dataset[0]
        assert module.losses(batch)["data"][1] > 1e-3
        module.network = _Answer(batch.solution)
        assert module.losses(batch)["data"][1] == 0

    def test_burgers_residual_vanishes_on_a_travelling_front(self) -> None:
        """u = c - a tanh(a (x - c t) / (2 nu)) solves Burgers' equation."""
        nu, a, c = BURGERS.nu, 0.1, 0.3

        def front(x: Tensor, t: Tensor) -> Tensor:
            return c - a * torch.tanh(a * (x - c * t) / (2 * nu))

        x, t = (p.requires_grad_() for p in torch.rand(2, 50, generator=seeded(0), dtype=F64))
        u = front(x, t)
        u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x)
        jet = Jet(*(d.detach() for d in (u, u_x, u_t, u_xx)))
        assert float(BURGERS.residual(jet).abs().max()) < 1e-12 < float(jet.t.abs().max())
        assert float(HeatEquation().residual(jet).abs().max()) > 1e-3

    def test_model_and_data_must_agree(self) -> None:
        module = PhysicsInformedTraining(BURGERS, num_sensors=9, width=4, depth=2)
        module.trainer = SimpleNamespace(datamodule=SolvedData(KdVEquation(), cache=None))
        with pytest.raises(ConfigurationError, match=r"data.equation: expected that of the model"):
            module.setup("fit")
