"""Every inverter, every training and every measure of an energy on a device: there, and as on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn

from tests.helpers import random_elements, seeded
from tests.inversion import test_field_inversion as fields
from tests.inversion.learned import test_learned_inverter as points
from tests.inversion.problems import DOMAIN, clean_problems, operator_action
from tests.inversion.test_every_inverter import MORE, SMALL, Make
from trivgeo._torch import pytree
from trivgeo.actions import FieldAction, ImageWarp
from trivgeo.features import FeatureEnergy, LearnedEnergy
from trivgeo.groups import SE, Action, Affine
from trivgeo.inversion import (
    TIED,
    InversionResult,
    Inverter,
    LearnedInverter,
    PosteriorSampler,
    ReverseDiffusionSearch,
    TestTimeEquivariant,
    calibrated_scale,
    check_energy,
)
from trivgeo.inversion.energies import DataEnergy, FramedEnergy, LeastSquares
from trivgeo.inversion.learned import PointsBackbone, calibration
from trivgeo.inversion.learned import posterior_density as density_fit
from trivgeo.inversion.stages import (
    Descend,
    GaussianSearch,
    Langevin,
    Laplace,
    LevenbergMarquardt,
    Newton,
    Replicate,
    SearchOrbits,
    Select,
)
from trivgeo.sde import NoiseStreams

Problem = tuple[Action, DataEnergy, Any]


class Distance(nn.Module, DataEnergy):
    """The squared distance to a datum that it holds."""

    def __init__(self, datum: Tensor) -> None:
        super().__init__()
        self.register_buffer("datum", datum)
        self.datum: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.datum).square().flatten(1).sum(1)


class Residuals(Distance):
    def forward(self, x: Tensor) -> Tensor:
        return x - self.datum


TRIANGLE = torch.tensor([[0.6, 0.1], [-0.5, 0.4], [0.0, -0.7]], dtype=torch.float64)


def shapes(batch: int = 3) -> Problem:
    action = Affine(2, scale=0.5).action()
    return action, Distance(TRIANGLE), action(random_elements(action.group, batch, std=0.3, seed=4), TRIANGLE)


def images(batch: int = 3) -> Problem:
    side = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)
    y, x = torch.meshgrid(side, side, indexing="ij")
    strokes = (-((x - 0.1) ** 2) / 0.05 - (y + 0.2) ** 2 / 0.3).exp() + (-((x + 0.2) ** 2) / 0.3 - y**2 / 0.05).exp()
    action = ImageWarp(Affine(2, scale=[0.3] * 4 + [0.4] * 2))
    elements = random_elements(action.group, batch, std=0.5, seed=3)
    return action, FramedEnergy(Distance(strokes[None])), action(elements, strokes[None, None])


def operators(batch: int = 3) -> Problem:
    action = operator_action()
    return action, DOMAIN, action(random_elements(action.group, batch, std=0.3, seed=2), clean_problems(batch))


STAGES: dict[str, Make] = {
    "PosteriorSampler": lambda a, e: PosteriorSampler(a, e, num_samples=20, budget=120, temperature=0.05),
    "Newton": lambda a, e: Inverter(a, e, [Newton(2)]),
    "Langevin": lambda a, e: Inverter(a, e, [Replicate(2), Langevin(3, 0.01, temperature=0.1)]),
    "GaussianSearch": lambda a, e: Inverter(a, e, [GaussianSearch(20, 4, 0.5), Select(2)]),
}
METHODS = SMALL | MORE | STAGES


def moved(x: Any, device: torch.device | str) -> Any:
    return pytree.tree_map(lambda leaf: leaf.to(device), x)


def assert_same(there: InversionResult, here: InversionResult, device: torch.device) -> None:
    for a, b in ((there.elements, here.elements), (there.energies, here.energies)):
        assert a.device == device
        torch.testing.assert_close(a.cpu(), b, rtol=1e-6, atol=1e-6)


def on_both(make: Callable[[], Inverter], x: Any, device: torch.device) -> tuple[InversionResult, InversionResult]:
    """The results for data and a generator on the CPU, of inverters on the device and on the CPU."""
    inverter = make()
    here = inverter(x, generator=seeded(5))
    return inverter.to(device)(x, generator=seeded(5)), here


class TestInverters:
    @pytest.mark.parametrize("method", METHODS)
    def test_points(self, method: str, device: torch.device) -> None:
        """With data and generator anywhere."""
        action, energy, x = shapes()
        there, here = on_both(lambda: METHODS[method](action, copy.deepcopy(energy)), x, device)
        assert there.elements.device == there.energies.device == device
        # what an optimiser of a library and chaotic chains make of the last digit is not compared
        if method not in ("KineticLangevin", "PosteriorSampler"):
            assert_same(there, here, device)
        restored = there.restore(x)
        assert restored.device == device
        inverter = METHODS[method](action, copy.deepcopy(energy)).to(device)
        own = inverter(x.to(device), generator=torch.Generator(device).manual_seed(1))
        assert own.elements.device == device
        assert bool(torch.isfinite(own.best_energy()).all())

    @pytest.mark.parametrize(
        ("method", "problem"),
        [
            ("search", images),
            ("LieLAC", operators),
            ("Newton", operators),
            *(
                pytest.param(method, problem, marks=pytest.mark.slow(reason="their points stay"))
                for method, problem in (
                    *(("search", operators), ("LieLAC", images), ("Newton", images)),
                    *(
                        (method, problem)
                        for method in ("RandomSearch", "ITS", "GradientDescent")
                        for problem in (images, operators)
                    ),
                )
            ),
        ],
    )
    def test_images_and_operators(self, method: str, problem: Callable[[], Problem], device: torch.device) -> None:
        if method == "Newton" and problem is images and Version(torch.__version__) < Version("2.12"):
            pytest.skip("sampled images have no second derivatives before torch 2.12, see `ImageWarp`")
        action, energy, x = problem()
        inverter = METHODS[method](action, energy)
        here = inverter(x, generator=seeded(5))
        there = inverter.to(device)(moved(x, device), generator=seeded(5))
        assert_same(there, here, device)

    def test_other_stages(self, device: torch.device) -> None:
        action, _, x = shapes()
        for make in (
            lambda: Inverter(action, LeastSquares(Residuals(TRIANGLE)), [LevenbergMarquardt(3), Laplace(4)]),
            lambda: Inverter(SE(2).action(), Distance(TRIANGLE), [SearchOrbits(None, 4)]),
        ):
            assert_same(*on_both(make, x, device), device)

    def test_streams_on_the_cpu(self, device: torch.device) -> None:
        action, energy, x = shapes()
        inverter = SMALL["search"](action, energy)
        here = inverter(x, generator=NoiseStreams(torch.arange(3), 7))
        for index in (torch.arange(3), torch.arange(3, device=device)):
            assert_same(copy.deepcopy(inverter).to(device)(x, generator=NoiseStreams(index, 7)), here, device)

    def test_without_networks(self, device: torch.device) -> None:
        """It is where its data are, until it is moved."""
        action, _, x = shapes()
        inverter = ReverseDiffusionSearch(action, lambda z: z.square().sum((-2, -1)), steps=2, num_hypotheses=2)
        assert inverter(x.to(device)).elements.device == device
        assert inverter(x).elements.device.type == "cpu"
        for stays in (inverter.to(device), inverter.then(Descend(1)), inverter.replace(max_evaluations=3)):
            assert stays(x).elements.device == device

    def test_predictor(self, device: torch.device) -> None:
        action, energy, x = shapes()
        network = nn.Sequential(nn.Flatten(), nn.Linear(6, 2)).double()
        predictor = TestTimeEquivariant(network, SMALL["LieLAC"](action, energy), ensemble="mean")
        here = predictor(x, generator=seeded(0))
        there = predictor.to(device)(x, generator=seeded(0))
        assert there.device == device
        torch.testing.assert_close(there.cpu(), here)
        assert predictor.equivariance_error(x, 2, generator=seeded(0)).errors.device == device


class TestMeasures:
    def test_energy(self, device: torch.device) -> None:
        action, energy, _ = shapes()
        clean = TRIANGLE + 0.01 * torch.randn(5, 3, 2, generator=seeded(0), dtype=torch.float64)
        transformations = lambda n, generator: action.group.random(n, generator=generator, dtype=torch.float64)  # noqa: E731
        here = check_energy(action, energy, clean, transformations)
        scale = calibrated_scale(action, energy, clean, num_samples=40, generator=seeded(0))
        energy.to(device)  # type: ignore[attr-defined]
        there = check_energy(action, energy, clean, transformations)
        torch.testing.assert_close(there.profile.scale, here.profile.scale)
        assert there.profile.temperature == pytest.approx(here.profile.temperature)
        torch.testing.assert_close(calibrated_scale(action, energy, clean, num_samples=40, generator=seeded(0)), scale)
        search = TIED(action, energy, transformations, clean, seconds=1e-3)
        assert search(clean[:2], generator=seeded(0)).elements.device == device


class TestFeatureEnergies:
    """Of a network of linear layers; what is learned is learned where the network is."""

    def test_training_free(self, device: torch.device) -> None:
        action, _, x = shapes()
        network = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        for make in (
            lambda a, e: Inverter(a, FeatureEnergy(e), [Descend(2)]),
            lambda a, e: Inverter(a, FeatureEnergy.from_data(e, TRIANGLE + 0.1 * x), [Descend(2)]),
        ):
            assert_same(*on_both(lambda make=make: make(action, copy.deepcopy(network)), x, device), device)

    def test_learned(self, device: torch.device) -> None:
        action, _, x = shapes()
        clean = TRIANGLE + 0.05 * torch.randn(12, 3, 2, generator=seeded(0), dtype=torch.float64)
        transformations = lambda n, generator: action.group.random(n, std=0.5, generator=generator, dtype=torch.float64)  # noqa: E731
        network = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Tanh()).double()
        settings: dict[str, Any] = {"action": action, "num_samples": 12, "steps": 5, "seconds": None}
        here = LearnedEnergy.fit(network, clean, transformations, **settings)
        there = LearnedEnergy.fit(copy.deepcopy(network).to(device), clean, transformations, **settings)
        assert there(x.to(device)).device == device
        moved = copy.deepcopy(here).to(device)
        torch.testing.assert_close(moved(x.to(device)).cpu(), here(x))
        assert Inverter(action, there, [Descend(1)])(x, generator=seeded(0)).elements.device == device


def point_problem() -> tuple[LearnedInverter, Any, Any]:
    inverter = LearnedInverter(points.GROUP.action(), backbone=PointsBackbone(3, 2, width=8), num_hypotheses=2)
    return inverter, points.clean(40, seeded(0)), points.transformations


def image_problem() -> tuple[LearnedInverter, Any, Any]:
    action, _, x = images(20)
    group = action.group
    return LearnedInverter(action), x.float(), lambda n, generator: group.random(n, std=0.3, generator=generator)


def operator_problem() -> tuple[LearnedInverter, Any, Any]:
    group = operator_action().group
    transformations = lambda n, generator: group.random(n, std=0.2, generator=generator, dtype=torch.float64)  # noqa: E731
    return LearnedInverter(operator_action()), clean_problems(20), transformations


def field_problem() -> tuple[LearnedInverter, Any, Any]:
    return LearnedInverter(FieldAction(fields.GROUP)), fields.clean(20, 0), fields.transformations


@pytest.mark.parametrize("problem", [point_problem, image_problem, operator_problem, field_problem])
class TestLearned:
    @pytest.fixture(autouse=True)
    def _short_calibration(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Devices are looked at here, not the fit: it is of few data, with one kind of tails."""
        monkeypatch.setattr(calibration, "MIN_DATA", 16)
        monkeypatch.setattr(density_fit, "_DEGREES", (6,))
        monkeypatch.setattr(density_fit, "_MAX_ITERATIONS", 1)

    def test_fits_where_it_is(self, problem: Any, device: torch.device, tmp_path: Path) -> None:
        """On a device with data of the CPU, and on the CPU with data of a device; its file is read anywhere."""
        inverter, clean, transformations = problem()
        few = pytree.tree_map(lambda leaf: leaf[:3], clean)
        inverter.to(device).fit(clean, transformations, steps=2, batch_size=8, progress=False)
        there = inverter(few, generator=seeded(0))
        assert there.elements.device == device
        other = problem()[0].fit(moved(clean, device), transformations, steps=2, batch_size=8, progress=False)
        assert other(few, generator=seeded(0)).elements.device == device
        inverter.save(tmp_path / "a.safetensors")
        backbone = inverter.make_backbone.template
        loaded = LearnedInverter.load(tmp_path / "a.safetensors", inverter.action, backbone=backbone)
        here = loaded(few, generator=seeded(0))
        assert here.elements.device.type == "cpu"
        torch.testing.assert_close(there.elements.cpu(), here.elements, rtol=1e-3, atol=1e-3)
        assert loaded.to(device)(few, generator=seeded(0)).elements.device == device

    def test_distils(self, problem: Any, device: torch.device) -> None:
        inverter, clean, transformations = problem()
        if problem is not point_problem:
            return
        inverter.to(device).fit(clean, transformations, steps=1, batch_size=8, progress=False)
        student = inverter.distil(clean, steps=1, batch_size=8, progress=False)
        assert student(clean[:2]).elements.device == device
