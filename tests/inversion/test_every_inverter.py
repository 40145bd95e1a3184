"""What holds for every inverter: images and differential equations, counted evaluations, one answer for one seed."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.helpers import random_elements, seeded
from tests.inversion.problems import DOMAIN, clean_problems, operator_action
from trivgeo.actions import ImageWarp
from trivgeo.errors import ShapeError
from trivgeo.groups import Action, Affine
from trivgeo.inversion import (
    ITS,
    TIED,
    GradientDescent,
    InverseProblem,
    InversionResult,
    Inverter,
    KineticLangevin,
    LieLAC,
    Population,
    Posterior,
    PosteriorSampler,
    RandomSearch,
    ReverseDiffusionSearch,
)
from trivgeo.inversion.energies import DataEnergy, FramedEnergy, FunctionEnergy, PriorEnergy
from trivgeo.inversion.evaluation import evaluation_mode
from trivgeo.inversion.stages import AddNoise, Descend, Select, WarmStart
from trivgeo.sde import GeometricSchedule, NoiseStreams

Make = Callable[[Action, DataEnergy], Inverter]

METHODS: dict[str, Make] = {
    "TIED": lambda a, e: TIED(a, e, evaluations=100, scales=[0.3]),
    "ReverseDiffusionSearch": lambda a, e: ReverseDiffusionSearch(
        a, e, GeometricSchedule(0.05, 0.7), 15, 2, 6, temperature=0.05
    ),
    "LieLAC": lambda a, e: LieLAC(a, e, 20, 0.05, 6),
    "KineticLangevin": lambda a, e: KineticLangevin(a, e, 40, 0.05, 3, temperature=0.01),
    "ITS": lambda a, e: ITS(a, e, 6, 8, 2),
    "RandomSearch": lambda a, e: RandomSearch(a, e, 150, 4, 0.5),
    "GradientDescent": lambda a, e: GradientDescent(a, e, 20, 0.05, 6, momentum=0.5, keep_best=True),
    "PosteriorSampler": lambda a, e: PosteriorSampler(a, e, num_samples=40, budget=400, temperature=0.05),
}


@pytest.fixture(params=METHODS)
def make(request: pytest.FixtureRequest) -> Make:
    return METHODS[request.param]


class Counted(DataEnergy):
    """An energy, and how many it was asked for."""

    def __init__(self, energy: DataEnergy) -> None:
        self.energy = energy
        self.asked = 0

    def __call__(self, x: Any) -> Tensor:
        values = self.energy(x)
        self.asked += values.numel()
        return values

    def prepare(self, action: Action, x: Any) -> Any:
        return self.energy.prepare(action, x)

    def select(self, action: Action, g: Tensor, x: Any) -> Any:
        return self.energy.select(action, g, x)

    def transformation_energy(self, action: Action, g: Tensor, x: Any) -> Tensor | None:
        return self.energy.transformation_energy(action, g, x)


def images() -> tuple[Action, DataEnergy, Tensor]:
    """A picture of two strokes, and the squared distance to it."""
    side = torch.linspace(-1.0, 1.0, 14)
    y, x = torch.meshgrid(side, side, indexing="ij")
    strokes = torch.exp(-((x - 0.1) ** 2) / 0.05 - (y + 0.2) ** 2 / 0.3)
    strokes = (strokes + torch.exp(-((x + 0.2) ** 2) / 0.3 - (y - 0.3) ** 2 / 0.05))[None, None]
    action = ImageWarp(Affine(2, scale=[0.3] * 4 + [0.4] * 2))
    energy = FramedEnergy(lambda z: (z - strokes).square().sum((1, 2, 3)))
    return action, energy, action(random_elements(action.group, 3, std=0.7, seed=3, dtype=torch.float32), strokes)


def operators() -> tuple[Action, DataEnergy, Any]:
    action = operator_action()
    elements = random_elements(action.group, 3, std=0.3, seed=2)
    return action, DOMAIN, action(elements, clean_problems(3))


@pytest.mark.parametrize("problem", [images, operators], ids=["images", "operators"])
def test_lowers_the_energy_and_counts(make: Make, problem: Callable[[], tuple[Action, DataEnergy, Any]]) -> None:
    action, energy, x = problem()
    identity = action.group.identity(3, 1, dtype=torch.float32 if isinstance(x, Tensor) else torch.float64)
    counted = Counted(energy)
    inverter = make(action, counted)
    log_det = inverter.problem.log_det
    before = InverseProblem(action, energy, log_det=log_det).given(x).energies(identity)[:, 0]
    result: InversionResult = inverter(x, generator=seeded(5))
    assert bool((result.best_energy() < before).all()), (result.best_energy(), before)
    assert float(result.best_energy().mean()) < 0.7 * float(before.mean())  # negative with the log-determinant
    assert counted.asked == 3 * (result.energy_evaluations + result.gradient_evaluations)
    again = InverseProblem(action, energy, log_det=log_det).given(x).energies(result.elements)
    torch.testing.assert_close(result.energies, again, rtol=1e-4, atol=1e-5)
    assert torch.equal(inverter(x, generator=seeded(5)).elements, result.elements)


def shapes() -> tuple[Action, DataEnergy, Tensor]:
    """Many small data: triangles that were moved, and the squared distance to the one at rest."""
    triangle = torch.tensor([[0.6, 0.1], [-0.5, 0.4], [0.0, -0.7]], dtype=torch.float64)
    action = Affine(2, scale=0.5).action()
    energy = FunctionEnergy(lambda z: (z - triangle).square().sum((-2, -1)))
    return action, energy, action(random_elements(action.group, 64, std=0.5, seed=4), triangle)


SMALL: dict[str, Make] = {
    "TIED": lambda a, e: TIED(a, e, evaluations=40),
    "search": lambda a, e: ReverseDiffusionSearch(a, e, None, 3, 2, 4, keep_best=True, pruning=[(0.5, 2)]).then(
        Descend(2)
    ),
    "LieLAC": lambda a, e: LieLAC(a, e, 3, 0.05, 3),
    "RandomSearch": lambda a, e: RandomSearch(a, e, 70, 4, 0.5),
    "resample": lambda a, e: RandomSearch(a, e, 9, 8, 0.5).then(Select(5, "resample", 0.1)),
    "proposals": lambda a, e: Inverter(a, e, [WarmStart(RandomSearch(a, e, 9, 2, 0.5)), AddNoise(time=0.5)]),
}
MORE: dict[str, Make] = {
    "published": lambda a, e: ReverseDiffusionSearch(a, e, None, 2, 2, 3, published=True),
    "KineticLangevin": lambda a, e: KineticLangevin(a, e, 3, 0.05, 3, temperature=0.01),
    "ITS": lambda a, e: ITS(a, e, 6, 3, 2),
    "GradientDescent": lambda a, e: GradientDescent(a, e, 4, 0.05, 3),
}


@pytest.mark.parametrize(
    "method", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow(reason="those of SMALL stay")) for name in MORE)]
)
def test_a_datum_alone_and_in_any_batch(method: str) -> None:
    """Batch sizes 1, 7 and 64, in order or not, split or sharded, with or without a bound of memory: one result."""
    check_batches((SMALL | MORE)[method], is_random=method != "ITS")


def check_batches(make: Make, is_random: bool = True) -> None:
    action, energy, x = shapes()
    inverter = make(action, energy)
    whole = inverter(x, generator=NoiseStreams(torch.arange(64), 7))

    def check(index: Tensor, found: InversionResult) -> None:
        torch.testing.assert_close(found.elements, whole.elements[index], rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(found.energies, whole.energies[index], rtol=1e-7, atol=1e-7)

    shuffled = torch.randperm(64, generator=seeded(1))
    for index in (*shuffled[:8].split(7), shuffled[8::2]):
        check(index, inverter(x[index], generator=NoiseStreams(index, 7)))
    check(torch.arange(9), inverter.replace(max_evaluations=5)(x[:9], generator=NoiseStreams(torch.arange(9), 7)))
    # a generator gives one key: the first data of a batch are found as they are without the others
    many, few = (inverter(x[:count], generator=seeded(2)) for count in (7, 2))
    torch.testing.assert_close(many.elements[:2], few.elements, rtol=1e-7, atol=1e-7)
    assert not torch.equal(many.elements, whole.elements[:7]) or not is_random


def test_threads_share_an_inverter() -> None:
    """Inverters keep nothing of a call: several threads may use one, each with a generator of its own."""
    action, energy, x = shapes()
    inverter = SMALL["search"](action, energy)

    def work(index: Tensor) -> Tensor:
        return inverter(x[index], generator=NoiseStreams(index, 7)).elements

    parts = torch.arange(12).split(3)
    with ThreadPoolExecutor(len(parts)) as pool:
        found = list(pool.map(work, parts))
    for part, elements in zip(parts, found, strict=True):
        assert torch.equal(elements, work(part))


class Mixing(nn.Module):
    """Points to energies, through layers that in training mode are random and mix the data of a batch."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 1)
        self.layers = nn.Sequential(*layers).double()
        parameters = torch.nn.utils.parameters_to_vector(self.parameters())
        drawn = torch.randn(len(parameters), generator=seeded(0), dtype=torch.float64)
        torch.nn.utils.vector_to_parameters(drawn, self.parameters())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(1).square()


class Randomised(Mixing):
    """A network without a layer that depends on the mode: it asks for the attribute `training` itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for layer in self.layers if not isinstance(layer, nn.BatchNorm1d)))
        self.layers[3] = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.layers(x).squeeze(1).square() + 1.0, 0.5, self.training)


HELD: dict[str, Callable[[Mixing], Any]] = {
    "itself": lambda network: network,
    "in an energy": lambda network: PriorEnergy(network, torch.eye(6).double(), 0.1),
    "by a method": lambda network: network.forward,
}


@pytest.mark.parametrize("kind", [Mixing, Randomised])
@pytest.mark.parametrize("held", HELD)
def test_networks_in_training_mode(held: str, kind: type[Mixing]) -> None:
    """Their energies are those of evaluation mode, they learn nothing of the data, and go on as they were."""
    action, _, x = shapes()
    network = kind()
    network.layers[2].eval()
    modes, before = [part.training for part in network.modules()], copy.deepcopy(network.state_dict())
    methods = {name: SMALL[name] for name in ("search", "LieLAC", "RandomSearch")}
    for name, make in methods.items():
        inverter = make(action, HELD[held](network))
        found = inverter(x[:7], generator=seeded(0))
        for other in (
            inverter(x[:2], generator=seeded(0)),
            inverter.replace(max_evaluations=5)(x[:2], generator=seeded(0)),
        ):
            torch.testing.assert_close(other.elements, found.elements[:2], rtol=1e-7, atol=1e-7, msg=name)
        evaluated = make(action, HELD[held](copy.deepcopy(network).eval()))
        assert torch.equal(evaluated(x[:7], generator=seeded(0)).elements, found.elements)
    assert [part.training for part in network.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_modes_after_an_error_and_among_threads() -> None:
    action, _, x = shapes()
    network = Mixing()
    inside, outside = threading.Event(), threading.Event()

    def report(done: int, total: int) -> None:
        assert not network.training
        inside.set()
        outside.wait(20)
        assert not any(part.training for part in network.modules())  # whoever has ended meanwhile

    inverter = LieLAC(action, network, 2, 0.05, 3)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(inverter.replace(progress=report), x[:3], generator=seeded(0))
        assert inside.wait(20)
        found = inverter(x[:3], generator=seeded(0))
        outside.set()
        assert torch.equal(long.result().elements, found.elements)
    assert all(part.training for part in network.modules())

    def wrong(posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        assert not network.training
        raise KeyError

    with pytest.raises(KeyError):
        Inverter(action, network, [wrong])(x)
    assert all(part.training for part in network.modules())


def test_a_network_copied_during_a_call() -> None:
    """The copy is on its own: it goes back to training mode after calls of its own, the original after those of its."""
    network = Randomised()
    with evaluation_mode(network):
        copies = [copy.deepcopy(network), pickle.loads(pickle.dumps(network))]
        with evaluation_mode(network):
            assert not network.training
        assert not network.training
    assert network.training
    for other in copies:
        other.train()
        with evaluation_mode(other):
            assert not any(part.training for part in other.modules())
        assert all(part.training for part in other.modules())
        assert vars(other).keys() == vars(network).keys()


def test_streams_of_other_data() -> None:
    action, energy, x = shapes()
    with pytest.raises(ShapeError, match="expected streams of 3 data, got 2"):
        RandomSearch(action, energy, 4, 1)(x[:3], generator=NoiseStreams(torch.arange(2), 0))
