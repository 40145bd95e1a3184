"""The front door of learned inversion: what is learned, files, resuming, backbones, and what is refused."""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import timer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.helpers import assert_relative, randn, seeded
from trivgeo.actions import ImageWarp, OperatorAction, OperatorInput, PointCloud
from trivgeo.errors import CheckpointError, ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import SE, SO, Affine, HeatSymmetry, LieGroup, Projective, Translation
from trivgeo.inversion import AmortizedInverter, Inverter, LearnedInverter, TestTimeEquivariant, check_energy
from trivgeo.inversion.learned import (
    ImageBackbone,
    LearnedScore,
    NoiseNetwork,
    OperatorBackbone,
    PointsBackbone,
    backbone_for,
    calibration,
)
from trivgeo.inversion.learned import posterior_density as density_fit
from trivgeo.inversion.learned import score_training as training
from trivgeo.inversion.learned.learned_inverter import _Clock
from trivgeo.inversion.learned.score_files import describe, score_of
from trivgeo.inversion.stages import LearnedReverseDiffusion
from trivgeo.inversion.transformations import Transformations, noise_between, num_noise_factors, spread_of
from trivgeo.networks import read_file, write_file
from trivgeo.sde import GeometricSchedule
from trivgeo.sde.noise import noise_with_target
from trivgeo.sde.solvers import RefiningStep

GROUP = SE(2)
SHAPE = torch.tensor([[1.0, 0.0], [0.0, 0.6], [-0.8, 0.1], [0.2, -0.3], [-0.2, -0.5], [0.7, 0.4]])


def clean(number: int, generator: torch.Generator) -> Tensor:
    """Copies of one shape without symmetry, its points in random order and a little moved."""
    order = torch.rand(number, len(SHAPE), generator=generator).argsort(1)
    return SHAPE[order] + 0.01 * torch.randn(number, len(SHAPE), 2, generator=generator)


def transformations(number: int, generator: torch.Generator) -> Tensor:
    """Turns up to half a right angle, shifts up to a half."""
    u = torch.rand(number, 3, generator=generator) - 0.5
    return GROUP.exp(u * torch.tensor([math.pi / 2, 1.0, 1.0]))


def quick(steps: int = 10, **options: object) -> LearnedInverter:
    """An inverter that has hardly learned."""
    inverter = LearnedInverter(GROUP.action(), backbone=PointsBackbone(3, 2, width=8), seed=1)
    return inverter.fit(clean(64, seeded(0)), transformations, steps=steps, batch_size=8, **options)  # type: ignore[arg-type]


def weights(inverter: LearnedInverter) -> Tensor:
    assert inverter.score is not None
    return torch.cat([p.flatten() for p in inverter.score.parameters()])


@pytest.fixture
def short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the fit does not matter it is of few data and of one kind of tails, see `test_learned_calibration`."""
    monkeypatch.setattr(calibration, "MIN_DATA", 16)
    monkeypatch.setattr(density_fit, "_DEGREES", (6,))
    monkeypatch.setattr(density_fit, "_MAX_ITERATIONS", 1)


@pytest.fixture(scope="module")
def trained() -> LearnedInverter:
    return LearnedInverter(GROUP.action(), seed=0).fit(clean, transformations, steps=150, batch_size=64)


class TestTrained:
    def test_undoes_what_it_never_saw(self, trained: LearnedInverter) -> None:
        """Alone, half a unit and a quarter of a right angle are left on average."""
        g, x = transformations(100, seeded(5)), clean(100, seeded(6))
        moved = GROUP.action()(g, x)
        result = trained(moved, generator=seeded(0))
        left = GROUP.log(GROUP.compose(GROUP.inverse(result.best()), g))
        assert float(left.abs().median()) < 0.05
        assert result.network_evaluations == trained.steps + 2  # the check looks twice
        assert result.energy_evaluations == 0
        assert float((result.restore(moved) - x).abs().median()) < 0.08

    def test_noise_is_a_quarter_wider_than_the_law(self, trained: LearnedInverter) -> None:
        """In every direction, whatever the scale of the action's group: at the highest level, and in a batch."""
        score, uniform = trained.score, torch.tensor([math.pi / 2, 1.0, 1.0]) / math.sqrt(12.0)
        assert score is not None
        assert score.level(1.0) == pytest.approx(1.0)
        unit = GROUP.log(score.group.exp(torch.eye(3)))
        assert torch.allclose(unit, torch.diag(1.25 * uniform), rtol=0.05, atol=0.02)
        batch = score.noisy(clean(4000, seeded(1)), seeded(2))
        # data that are moved by drawn ones first, then by noise of the levels
        moved = GROUP.compose(GROUP.inverse(transformations(4000, seeded(3))), batch.elements)
        high = batch.level > 0.7
        spread = GROUP.log(moved)[high].std(0) / uniform
        expected = (2.0 + 1.25**2 * float(batch.level[high].square().mean())) ** 0.5
        assert torch.allclose(spread, torch.full((3,), expected), rtol=0.15), (spread, expected)
        noise = -(batch.noise * batch.level.unsqueeze(-1))[high]
        assert float(noise.std()) == pytest.approx(float(batch.level[high].square().mean()) ** 0.5, rel=0.05)

    def test_in_a_file(self, trained: LearnedInverter, tmp_path: Path) -> None:
        trained.save(tmp_path / "deep" / "inverter.safetensors")
        action = SE(2, scale=3.0).action()  # the scale is that of the training, whatever it is here
        loaded = LearnedInverter.load(tmp_path / "deep" / "inverter.safetensors", action)
        x = GROUP.action()(transformations(5, seeded(1)), clean(5, seeded(2)))
        assert torch.equal(loaded(x).elements, trained(x).elements)
        assert [p for p in loaded.parameters() if p.requires_grad] == []
        with pytest.raises(CheckpointError, match=r"SE\(2\)|another group"):
            LearnedInverter.load(tmp_path / "deep" / "inverter.safetensors", Affine(2).action())
        with pytest.raises(CheckpointError, match="there is none"):
            LearnedInverter.load(tmp_path / "none.safetensors", action)

    def test_other_samplers(self, trained: LearnedInverter) -> None:
        """A posterior sample of the same score, ranked by an energy or not, and the model made of it."""
        assert trained.score is not None
        x = GROUP.action()(transformations(3, seeded(1)), clean(3, seeded(2)))
        sample = AmortizedInverter(trained.score, steps=12, num_hypotheses=16)(x, generator=seeded(0))
        assert float(sample.modes(1.0).weights[:, 0].min()) > 0.5
        model = TestTimeEquivariant(lambda y: y.mean(1), trained)
        restored = trained(x).restore(x)
        assert torch.equal(model(x), restored.mean(1))
        ranked = LearnedInverter.from_score(trained.score, lambda y: y.square().sum((1, 2)), num_hypotheses=4)
        assert ranked(x, generator=seeded(0)).energy_evaluations == 4

    def test_stages_of_an_action_of_another_scale(self, trained: LearnedInverter) -> None:
        """The score is followed in its own basis."""
        assert trained.score is not None
        x = GROUP.action()(transformations(3, seeded(1)), clean(3, seeded(2)))
        denoise = LearnedReverseDiffusion(trained.score, stepper=RefiningStep())
        own, other = (Inverter(action, None, [denoise])(x) for action in (trained.score.action, GROUP.action()))
        assert torch.equal(own.elements, other.elements)
        with pytest.raises(ConfigurationError, match="score: expected one on"):
            Inverter(Translation(2).action(), None, [denoise])(x)

    def test_distils(self, trained: LearnedInverter) -> None:
        student = trained.distil(clean, steps=5, batch_size=32)
        x = GROUP.action()(transformations(3, seeded(1)), clean(3, seeded(2)))
        assert student(x, generator=seeded(0)).network_evaluations == 2 + 2  # the check looks twice
        assert not torch.equal(weights(student), weights(trained))

    @pytest.mark.slow(reason="actions/test_image exports an inverter")
    def test_exports(self, trained: LearnedInverter) -> None:
        """`torch.export` of the whole model, for any number of data, gives what the model gives."""
        model = TestTimeEquivariant(nn.Flatten(), trained).eval()
        x = GROUP.action()(transformations(4, seeded(1)), clean(4, seeded(2)))
        batch = torch.export.Dim("batch")
        with torch.no_grad():
            program = torch.export.export(model, (x[:3],), dynamic_shapes=({0: batch},), strict=False)
            assert_relative(program.module()(x), model(x), 1e-5)

    def test_exported_in_bfloat16(self) -> None:
        """The convolutions of an exported program round as those of the network do."""
        backbone = ImageBackbone(3, (1, 8, 8), width=8, precision="bfloat16").eval()
        backbone.initialise(0)
        x, level = torch.rand(4, 1, 8, 8, generator=seeded(0)), torch.full((4,), 0.5)
        with torch.no_grad():
            program = torch.export.export(backbone, (x, level), strict=False)
            assert torch.equal(program.module()(x, level), backbone(x, level))


@pytest.mark.usefixtures("short_calibration")
class TestTraining:
    def test_a_function_of_the_seed(self) -> None:
        assert torch.equal(weights(quick()), weights(quick()))

    def test_resumes(self, tmp_path: Path) -> None:
        """An interrupted run ends with the weights of one that was not."""
        calls = 0

        def failing(number: int, generator: torch.Generator) -> Tensor:
            nonlocal calls
            calls += number == 8
            if calls == 15:
                raise KeyboardInterrupt
            return transformations(number, generator)

        def run(transformations: object, folder: Path | None) -> LearnedInverter:
            inverter = LearnedInverter(GROUP.action(), backbone=PointsBackbone(3, 2, width=8), seed=1)
            return inverter.fit(clean(64, seeded(0)), transformations, steps=20, batch_size=8, folder=folder)  # type: ignore[arg-type]

        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run(failing, tmp_path)
        assert (tmp_path / "last.ckpt").exists()
        assert torch.equal(weights(run(transformations, tmp_path)), weights(run(transformations, None)))

    @pytest.mark.parametrize("steps", [7, pytest.param(105, marks=pytest.mark.slow(reason="the shorter stays"))])
    def test_as_many_steps_as_asked_for(self, steps: int, tmp_path: Path) -> None:
        quick(steps, folder=tmp_path)
        assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == steps
        assert torch.equal(weights(quick(steps, folder=tmp_path)), weights(quick(steps)))

    def test_the_students_of_two_teachers(self, tmp_path: Path) -> None:
        """A folder of one is none of the other."""
        settings = {"steps": 5, "batch_size": 8, "folder": tmp_path}
        first = quick(10).distil(clean, **settings)  # type: ignore[arg-type]
        assert torch.equal(weights(quick(10).distil(clean, **settings)), weights(first))  # type: ignore[arg-type]
        with pytest.raises(CheckpointError, match="another"):
            quick(20).distil(clean, **settings)  # type: ignore[arg-type]

    def test_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A training ends at its time, with the steps that it made by then and the step size at zero."""
        # the time that is left for the training is then the same in each run
        monkeypatch.setattr(LearnedInverter, "_clock", lambda *given: _Clock(given[3], given[4], 0.0))
        # batches alone take time, and each the same
        now = 0.0
        monkeypatch.setattr(timer, "time", SimpleNamespace(monotonic=lambda: now))

        def slow_law(number: int, generator: torch.Generator) -> Tensor:
            nonlocal now
            now += 0.2
            return transformations(number, generator)

        def fitted() -> LearnedInverter:
            inverter = LearnedInverter(GROUP.action(), backbone=PointsBackbone(3, 2, width=8), seed=1)
            return inverter.fit(clean, slow_law, steps=200, batch_size=8, seconds=10.0, folder=tmp_path)

        def kept() -> dict[str, Any]:
            return torch.load(tmp_path / "last.ckpt", weights_only=True)

        inverter, first = fitted(), kept()
        assert 0 < first["global_step"] < 60
        (schedule,) = first["lr_schedulers"]
        assert schedule["_last_lr"][0] < 0.05 * schedule["base_lrs"][0]
        # the time is that of all runs
        again = fitted()
        assert kept()["global_step"] == first["global_step"]
        assert torch.equal(weights(again), weights(inverter))

    def test_a_module_of_ones_own(self, tmp_path: Path) -> None:
        class Own(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(12, 3)

            def forward(self, y: Tensor, level: Tensor) -> Tensor:
                return self.linear(y.flatten(1))

        inverter = LearnedInverter(GROUP.action(), backbone=Own()).fit(clean, transformations, steps=3, batch_size=8)
        inverter.save(tmp_path / "own.safetensors")
        x = clean(2, seeded(0))
        with pytest.raises(CheckpointError, match="no network of this library"):
            LearnedInverter.load(tmp_path / "own.safetensors", GROUP.action())
        loaded = LearnedInverter.load(tmp_path / "own.safetensors", GROUP.action(), backbone=Own())
        assert torch.equal(loaded(x).elements, inverter(x).elements)


@pytest.mark.usefixtures("short_calibration")
class TestSecondFit:
    """Is a first one, of new weights and with the statistics of the new data; till it ends the inverter stays."""

    @pytest.mark.parametrize("own", [True, False], ids=["own", "default"])
    def test_begins_anew(self, own: bool, tmp_path: Path) -> None:
        def fresh() -> LearnedInverter:
            return LearnedInverter(GROUP.action(), backbone=PointsBackbone(3, 2, width=8) if own else None)

        other = 3.0 * clean(32, seeded(1)) + 1.0
        inverter = fresh().fit(clean, transformations, steps=5, batch_size=16)
        inverter.save(tmp_path / "first.safetensors")
        first, before = inverter.score, weights(inverter)
        assert first is not None
        assert inverter.fit(other, transformations, steps=2, batch_size=4, folder=tmp_path) is inverter
        again = fresh().fit(other, transformations, steps=2, batch_size=4)
        assert torch.equal(weights(inverter), weights(again))
        assert torch.equal(inverter(other).elements, again(other).elements)
        assert torch.equal(torch.cat([p.flatten() for p in first.parameters()]), before)
        assert inverter.backbone is inverter.score.backbone  # type: ignore[union-attr]
        assert [p for p in inverter.parameters() if p.requires_grad] == []
        # from where the training in a folder ended
        assert torch.equal(
            weights(inverter.fit(other, transformations, steps=2, batch_size=4, folder=tmp_path)), weights(again)
        )
        loaded = LearnedInverter.load(tmp_path / "first.safetensors", GROUP.action())
        assert torch.equal(weights(loaded), before)
        assert own or torch.equal(weights(loaded.fit(other, transformations, steps=2, batch_size=4)), weights(again))

    def test_that_fails_changes_nothing(self) -> None:
        inverter = quick()
        x, before = clean(3, seeded(2)), weights(inverter)
        found = inverter(x).elements
        broken = lambda n, g: transformations(n, g) * (1.0 if n > 100 else torch.nan)  # noqa: E731
        with pytest.raises(NonFiniteError, match="transformations"):
            inverter.fit(clean(64, seeded(0)), broken, steps=2, batch_size=8)
        assert torch.equal(weights(inverter), before)
        assert torch.equal(inverter(x).elements, found)

    def test_one_backbone_of_several(self, tmp_path: Path) -> None:
        """Nobody trains it: every inverter has a copy, one that was loaded as well."""
        own = PlainNetwork()
        start = copy.deepcopy(own.state_dict())
        settings = {"steps": 3, "batch_size": 8}
        first = LearnedInverter(GROUP.action(), backbone=own).fit(clean, transformations, **settings)  # type: ignore[arg-type]
        before = weights(first)
        second = LearnedInverter(GROUP.action(), backbone=own, seed=1).fit(clean, transformations, **settings)  # type: ignore[arg-type]
        assert torch.equal(weights(first), before)
        assert not torch.equal(weights(second), before)
        first.save(tmp_path / "own.safetensors")
        loaded = LearnedInverter.load(tmp_path / "own.safetensors", GROUP.action(), backbone=own)
        assert torch.equal(weights(loaded.fit(clean, transformations, **settings)), before)  # type: ignore[arg-type]
        assert all(torch.equal(value, start[key]) for key, value in own.state_dict().items())
        assert all(parameter.requires_grad for parameter in own.parameters())
        trained = LearnedInverter(GROUP.action(), backbone=first.backbone).fit(clean, transformations, **settings)  # type: ignore[arg-type]
        assert not torch.equal(weights(trained), before)  # goes on from the weights that it was given


class PlainNetwork(nn.Module):
    """A network of one's own, some of whose layers are random in training mode or normalise by the batch."""

    def __init__(self, mixing: bool = False) -> None:
        super().__init__()
        self.before = nn.BatchNorm1d(12) if mixing else nn.Identity()
        self.random = nn.Dropout(0.5) if mixing else nn.Identity()
        self.linear = nn.Linear(12, 3)

    def forward(self, y: Tensor, level: Tensor) -> Tensor:
        return self.linear(self.random(self.before(y.flatten(1))))


@pytest.mark.usefixtures("short_calibration")
class TestTeacher:
    def test_is_in_evaluation_mode(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever its network: it stays, and says the same of the same data; a trainer does not warn of it."""
        own = LearnedInverter(GROUP.action(), backbone=PlainNetwork(mixing=True))
        own.fit(clean, transformations, steps=5, batch_size=8)
        modes = []
        loss = training.consistency_loss

        def watched(teacher: LearnedScore, student: LearnedScore, *rest: Any, **options: Any) -> Tensor:
            modes.append((any(part.training for part in teacher.modules()), student.backbone.training))
            return loss(teacher, student, *rest, **options)

        monkeypatch.setattr(training, "consistency_loss", watched)
        assert own.score is not None
        module = training.DistillationTraining(own.score)
        before = copy.deepcopy(module.teacher.state_dict())
        names = set(module.state_dict())
        for _ in range(2):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                loader = DataLoader(clean(32, seeded(0)), batch_size=8)  # type: ignore[arg-type]
                Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False).fit(
                    module, loader
                )
            assert not [warning for warning in said if "eval mode" in str(warning.message)]
        assert modes == [(False, True)] * 8
        assert all(torch.equal(value, before[key]) for key, value in module.teacher.state_dict().items())
        assert {name for name in names if name.startswith("teacher.")} == {f"teacher.{name}" for name in before}
        student = own.distil(clean, steps=2, batch_size=8)
        x = clean(3, seeded(0))
        assert torch.equal(
            student.train()(x, generator=seeded(0)).elements, student.eval()(x, generator=seeded(0)).elements
        )


@pytest.mark.usefixtures("short_calibration")
class TestArrays:
    def test_clean_data(self) -> None:
        """Of NumPy, also from a function, are what the same tensors are, in training and in distillation."""
        data = clean(64, seeded(0))
        draw: Callable[..., Any] = lambda n, g: clean(n, g).numpy()  # noqa: E731
        settings = {"steps": 3, "batch_size": 8}

        def fit(given: Any) -> LearnedInverter:
            inverter = LearnedInverter(GROUP.action(), backbone=PointsBackbone(3, 2, width=8))
            return inverter.fit(given, transformations, **settings)  # type: ignore[arg-type]

        for array, tensor in ((draw, clean), (data.numpy(), data)):
            inverter = fit(tensor)
            assert torch.equal(weights(fit(array)), weights(inverter))
            students = [inverter.distil(given, **settings) for given in (array, tensor)]  # type: ignore[arg-type]
            assert torch.equal(weights(students[0]), weights(students[1]))

    def test_are_checked(self, trained: LearnedInverter) -> None:
        """What is drawn later like what is drawn first, and what is distilled with like what is trained with."""
        few = lambda n, g: clean(n if n > 100 else n - 1, g)  # noqa: E731
        with pytest.raises(ShapeError, match="clean: expected a function that draws the "):
            LearnedInverter(GROUP.action(), backbone=PointsBackbone(3, 2, width=8)).fit(
                few, transformations, steps=2, batch_size=8
            )
        with pytest.raises(ShapeError, match="clean: expected a function that draws the "):
            trained.distil(few, steps=2, batch_size=8)
        for wrong, error in ((torch.zeros(4, 6, 3), ShapeError), (torch.full((4, 6, 2), torch.nan), NonFiniteError)):
            with pytest.raises(error):
                trained.distil(wrong, steps=2, batch_size=8)
        with pytest.raises(ConfigurationError, match="steps"):
            trained.distil(clean, steps=0)


def turned_and_sheared(group: LieGroup, width: float, least: float = 0.0) -> Transformations:
    """Rotations by ``least`` to pi about the origin in the first coordinates, after exp of normal vectors."""

    def transformations(count: int, generator: torch.Generator) -> Tensor:
        n = min(3, group.element_shape[-1] - 1)
        axes = nn.functional.normalize(torch.randn(count, 3, generator=generator).double(), dim=-1)
        if n == 2:
            axes = axes.sign() * torch.tensor([0.0, 0.0, 1.0])
        angles = least + (math.pi - least) * torch.rand(count, 1, generator=generator).double()
        rotations = SO(3).exp(angles * axes)[:, :n, :n]
        turned = torch.eye(n + 1).double().repeat(count, 1, 1)
        turned[:, :n, :n] = rotations
        rest = group.exp(width * torch.randn(count, group.dim, generator=generator).double())
        return group.compose(turned[:, : group.element_shape[0]], rest)

    return transformations


class TestLaw:
    def test_spread(self) -> None:
        """The noise has the covariance of the transformations; one without motion a twentieth of the largest."""
        group = Translation(3)
        root = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.2, 0.0], [0.0, 0.0, 0.0]]).double()
        basis = spread_of(group, lambda n, g: torch.randn(n, 3, generator=g, dtype=torch.float64) @ root.T)
        covariance = basis.T @ basis
        assert_relative(covariance[:2, :2], (root @ root.T)[:2, :2], 0.1)
        assert abs(float(covariance[2, 2]) - 0.05**2 * 1.28) < 0.001

    def test_spread_of_a_narrow_direction(self) -> None:
        """Spreads are in units of their own: here one is a hundredth of the largest, and no less wide for it."""
        group, width = HeatSymmetry(0.1), torch.tensor([0.12, 1.2, 0.012, 0.6, 0.036, 0.6])
        transformations = lambda n, g: group.exp(width * torch.randn(n, 6, generator=g))  # noqa: E731
        assert_relative(spread_of(group, transformations).diagonal().float(), width, 0.05)

    def test_spread_of_what_brackets_move(self) -> None:
        """Turns and shifts along one axis: a guess that is a twentieth off leaves shifts along the other."""
        group, width = SE(2), torch.tensor([0.5, 2.0, 0.0])
        along = spread_of(group, lambda n, g: group.exp(width * torch.randn(n, 3, generator=g))).diagonal()
        assert_relative(along, along.new_tensor([0.5, 2.0, 0.05 * 2.0 * 0.5 * 2**0.5]), 0.1)

    @pytest.mark.parametrize("group", [Affine(2), Projective(2), Affine(3), Projective(3)])
    @pytest.mark.parametrize("least", [0.0, 150.0])
    def test_spread_of_rotations_with_shears(self, group: LieGroup, least: float) -> None:
        """Logarithms of rotations by nearly half a turn have shears without bound; the spread has not."""
        n = group.element_shape[-1] - 1
        basis = spread_of(group, turned_and_sheared(group, 0.1, math.radians(least)))
        unit = torch.eye(group.dim, dtype=torch.float64)
        tangents = (group.exp(1e-4 * unit) - group.exp(-1e-4 * unit))[:, :2, :2] / 2e-4  # in the plane of x and y
        shear = basis @ (tangents[:, 0, 1] + tangents[:, 1, 0]) / 2
        turn = basis @ (tangents[:, 1, 0] - tangents[:, 0, 1]) / 2
        assert 0.05 < float(shear.norm()) < 3 * 0.1 / 2**0.5
        rms = math.sqrt((math.pi**3 - math.radians(least) ** 3) / (math.pi - math.radians(least)) / 3)
        assert_relative(turn.norm(), torch.tensor(rms * (1.0 if n == 2 else 3**-0.5)).double(), 0.2)

    @pytest.mark.parametrize(
        "group", [SE(2), pytest.param(Affine(2), marks=pytest.mark.slow(reason="the others stay")), Projective(2)]
    )
    def test_targets_of_wide_noise(self, group: LieGroup) -> None:
        """Targets are about as large as a normal vector: no factor of the noise comes where exp is singular."""
        scaled = group.with_scale(1.25 * spread_of(group, turned_and_sheared(group, 0.1)))
        sample = noise_with_target(
            scaled, torch.ones(2000).double(), steps=num_noise_factors(scaled), generator=seeded(0)
        )
        assert float(sample.target.square().mean()) < 20

    @pytest.mark.parametrize(("lowest", "highest"), [(0.1, 1.0), (0.001, 1.0), (0.3, 2.0)])
    def test_noise_between(self, lowest: float, highest: float) -> None:
        schedule, time = noise_between(lowest, highest)
        assert abs(math.sqrt(schedule.variance(0.0, 1.0)) / highest - 1) < 1e-9
        assert abs(math.sqrt(schedule.variance(0.0, time)) / lowest - 1) < 1e-9

    def test_refused(self) -> None:
        with pytest.raises(DomainError, match="identity alone"):
            spread_of(GROUP, lambda n, g: GROUP.identity(n))
        with pytest.raises(ShapeError, match="transformations"):
            spread_of(GROUP, lambda n, g: torch.zeros(n, 2))
        with pytest.raises(DomainError, match="logarithm"):
            spread_of(SO(2), lambda n, g: torch.full((n, 2, 2), torch.nan))


@pytest.mark.usefixtures("short_calibration")
class TestBackbones:
    @pytest.mark.parametrize(
        ("shape", "layers"), [((1, 8, 8), 1), ((3, 20, 28), 2), ((3, 32, 32), 3), ((3, 224, 224), 5)]
    )
    def test_images_of_any_size(self, shape: tuple[int, ...], layers: int) -> None:
        x = 5.0 + 2.0 * torch.rand(2, *shape, generator=seeded(0))
        backbone = backbone_for(ImageWarp(Affine(2)), x)
        assert isinstance(backbone, ImageBackbone)
        assert len(backbone.channels) == layers
        assert_relative(backbone.mean.flatten(), x.mean((0, 2, 3)), 1e-5)
        assert backbone(x, torch.ones(2)).shape == (2, 6)
        assert backbone(x.double(), torch.ones(2).double()).dtype == torch.float64

    def test_points_in_any_order(self) -> None:
        assert isinstance(backbone_for(PointCloud(SO(3)), randn(4, 9, 3)), PointsBackbone)
        backbone = backbone_for(SO(3).action(), randn(4, 9, 3))
        assert isinstance(backbone, PointsBackbone)
        backbone.initialise(0)
        x, level = randn(4, 9, 3, seed=1), torch.full((4,), 0.3).double()
        assert_relative(backbone(x[:, torch.randperm(9, generator=seeded(0))], level), backbone(x, level), 1e-5)
        assert not torch.allclose(backbone(x + 0.1, level), backbone(x, level), atol=1e-3)

    def test_operators(self) -> None:
        line = torch.linspace(0.0, 6.0, 40).double()
        initial = torch.stack([line, 0 * line, line.sin()], -1).expand(3, -1, -1)
        x = OperatorInput(initial, torch.cartesian_prod(line[::39], line[::39]).expand(3, -1, -1))
        group = HeatSymmetry(0.1)
        backbone = backbone_for(OperatorAction(group.action()), x)
        assert isinstance(backbone, OperatorBackbone)
        assert_relative(torch.tensor(backbone.domain[:4]), torch.tensor([0.0, 6.0, 0.0, 6.0]), 1e-6)
        spread = torch.tensor([0.1, 0.5, 0.01, 0.5, 0.05, 0.5]).double()
        heat = lambda n, g: group.exp(spread * torch.randn(n, 6, generator=g, dtype=torch.float64))  # noqa: E731
        inverter = LearnedInverter(OperatorAction(group.action())).fit(x, heat, steps=3, batch_size=8)
        assert inverter(x).elements.shape == (3, 1, *group.element_shape)

    def test_unknown_actions_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="backbone"):
            backbone_for(object(), torch.zeros(1))  # type: ignore[arg-type]


class TestRefused:
    def test_untrained(self, tmp_path: Path) -> None:
        inverter = LearnedInverter(GROUP.action())
        with pytest.raises(ConfigurationError, match="fit"):
            inverter(clean(2, seeded(0)))
        with pytest.raises(ConfigurationError, match="trained"):
            inverter.save(tmp_path / "x.safetensors")
        for further in (inverter.then, inverter.replace):  # they would go on from the identity
            with pytest.raises(ConfigurationError, match="trained"):
                further()

    @pytest.mark.parametrize("options", [{"steps": 0}, {"batch_size": 0}, {"seconds": 0.0}])
    def test_numbers(self, options: dict[str, float]) -> None:
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            LearnedInverter(GROUP.action()).fit(clean, transformations, **options)  # type: ignore[arg-type]

    def test_laws_that_change(self) -> None:
        """What is right when it is first looked at and wrong in training is not learned from."""
        once = lambda n, g: transformations(n, g) if n > 100 else transformations(n + 1, g)  # noqa: E731
        broken = lambda n, g: transformations(n, g) * (1.0 if n > 100 else torch.nan)  # noqa: E731
        for wrong, error in ((once, ShapeError), (broken, NonFiniteError)):
            inverter = LearnedInverter(GROUP.action(), backbone=PointsBackbone(3, 2, width=8))
            with pytest.raises(error, match="transformations"):
                inverter.fit(clean(64, seeded(0)), wrong, steps=2, batch_size=8)
            assert inverter.score is None

    def test_other_numbers_than_asked_for(self) -> None:
        with pytest.raises(ShapeError, match="transformations"):
            check_energy(
                GROUP.action(),
                lambda x: x.square().sum((1, 2)),
                clean(8, seeded(0)),
                lambda n, g: transformations(1, g),
            )
        with pytest.raises(ShapeError, match="clean"):
            LearnedInverter(GROUP.action()).fit(lambda n, g: clean(3, g), transformations)

    def test_folder_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigurationError, match="folder"):
            quick(folder=tmp_path / "file")

    def test_without_lightning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [
            name
            for name in sys.modules
            if name.startswith(("trivgeo.inversion.learned.score_training", "trivgeo.training"))
        ]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
        monkeypatch.delattr("trivgeo.inversion.learned.score_training", raising=False)
        with pytest.raises(ConfigurationError, match="pip install"):
            quick()


def test_a_file_knows_the_prior(tmp_path: Path) -> None:
    action = Affine(2).action()
    score = LearnedScore(action, GeometricSchedule(0.1, 1.0), PointsBackbone(6, 2), prior="left")
    write_file(score.backbone, tmp_path / "score.safetensors", {"score": describe(score)})
    assert score_of(read_file(tmp_path / "score.safetensors"), action).prior == "left"


def test_networks_are_noise_networks() -> None:
    assert all(issubclass(kind, NoiseNetwork) for kind in (ImageBackbone, PointsBackbone, OperatorBackbone))


def test_scale_of_an_action_leaves_elements_alone() -> None:
    groups: list[LieGroup] = [Affine(2), Projective(2), SE(3)]
    for group in groups:
        action = group.action()
        g, x = (
            group.random(3, std=0.2, generator=seeded(0)),
            torch.rand(3, 4, action.point_dims[0], generator=seeded(1)),
        )
        assert torch.equal(action.with_scale(2.0)(g, x), action(g, x))
        assert_relative(action.with_scale(2.0).group.log(g), 0.5 * group.log(g), 1e-5)
