"""Search from nothing: how often each method reaches the energy of the true transformation, at equal evaluations.

``python -m benchmarks.search`` prints a row for each energy and budget. A datum is solved where the energy found is no
higher than that of the true inverse by more than a twentieth of the rise to a random element of its distribution. No
method but the last knows the distribution of the transformations, none the clean data; all begin at the identity.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.posterior import LeftTranslation
from benchmarks.timing import environment
from tasks.checkpoints import load_checkpoint
from tasks.images.scikit import ScikitDigits
from tasks.pde.burgers import BurgersEquation
from tasks.pde.deeponet import DeepONet
from tasks.pde.energies import InitialConditionEnergy, TrainingBox
from tasks.pde.equation import Equation
from tasks.pde.heat import HeatEquation
from tasks.pde.problems import MixedProblems
from trivgeo.actions import ImageWarp, OperatorInput, interpolate
from trivgeo.actions.operator_input import OperatorAction
from trivgeo.groups import SE, SO, Action, Affine, LieGroup, Projective, Similarity
from trivgeo.inversion import (
    ITS,
    TIED,
    InverseProblem,
    Inverter,
    LieLAC,
    Population,
    Posterior,
    ReverseDiffusionSearch,
    Stage,
)
from trivgeo.inversion.stages import (
    Adam,
    Descend,
    GaussianSearch,
    Langevin,
    basis_levels,
)
from trivgeo.inversion.transformations import Transformations, composed, rotations, scales, shifts

BUDGETS = (300, 1000, 3000)
NUM_DATA = 64
PIXELS = 32
NUM_RANDOM = 64  # random elements of a datum, whose median energy is the height of an unsolved one
TOLERANCE = 0.05  # of the height


@dataclass(frozen=True)
class Problem:
    """An energy, and data moved by known transformations ``[b, *element_shape]`` that have a distribution."""

    action: Action
    energy: Callable[[Any], Tensor]
    data: Any
    truth: Tensor
    transformations: Transformations

    def thresholds(self) -> Tensor:
        """Energies up to which data are solved, ``[b]``."""
        posterior = InverseProblem(self.action, self.energy).given(self.data, max_evaluations=1024)
        reference, batch = posterior.reference, posterior.batch
        drawn = self.transformations(NUM_RANDOM * batch, seeded(3)).to(reference).unflatten(0, (batch, NUM_RANDOM))
        with torch.no_grad():
            true = posterior.energies(self.truth.to(reference)[:, None])[:, 0]
            height = posterior.energies(drawn).nan_to_num(nan=torch.inf).median(1).values
        return true + TOLERANCE * (height - true).abs()


def seeded(seed: int) -> torch.Generator:
    """Return a generator of random numbers."""
    return torch.Generator().manual_seed(seed)


def normal(group: LieGroup, *stds: float) -> Transformations:
    """Exponentials of normal vectors, of one standard deviation or one for each direction of the basis."""
    std = torch.tensor(stds, dtype=torch.float64)
    return lambda count, generator: group.exp(
        std * torch.randn(count, group.dim, generator=generator, dtype=torch.float64)
    )


# images


@functools.cache
def digits() -> tuple[Tensor, Tensor, Tensor]:
    """Images of scikit-learn's digits for training, their labels, and images for tests."""
    known, new = ScikitDigits().train(), ScikitDigits().test()
    margin = (PIXELS - known.images.shape[-1]) // 2
    known_images, new_images = (F.pad(part.images.float() / 255, (margin,) * 4) for part in (known, new))
    return known_images, known.labels, new_images


def fitted(net: nn.Module, steps: int, loss: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> nn.Module:
    """Train a network on the digits by Adam."""
    images, labels, _ = digits()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for step in range(steps):
        batch = torch.randint(len(images), (128,), generator=seeded(step))
        optimizer.zero_grad()
        loss(net, images[batch], labels[batch]).backward()
        optimizer.step()
    return net.eval().requires_grad_(False)


@functools.cache
def classifier() -> nn.Sequential:
    """A small convolutional network; all but its last layer are features."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 12), (12, 24), (24, 32)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
    fitted(net, 400, lambda net, x, y: F.cross_entropy(net(x + 0.1 * torch.randn(x.shape, generator=seeded(1))), y))
    return net


@functools.cache
def autoencoder() -> nn.Module:
    """An autoencoder of sixteen numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(PIXELS**2, 128),
            nn.ReLU(),
            nn.Linear(128, 16),
            nn.Linear(16, 128),
            nn.ReLU(),
            nn.Linear(128, PIXELS**2),
        )
    return fitted(net, 800, lambda net, x, _: (net(x) - x.flatten(1)).square().sum(1).mean())


def images(
    group: LieGroup, energy: Callable[[Tensor], Tensor], transformations: Transformations, clean: Tensor | None = None
) -> Problem:
    """Images of digits that were not trained on, or others, moved by a group."""
    clean = digits()[2][:NUM_DATA] if clean is None else clean
    action, g = ImageWarp(group), transformations(NUM_DATA, seeded(7)).to(clean)
    return Problem(action, energy, action(g, clean), g, transformations)


def principal_components() -> Problem:
    """Squared error of thirty principal components; turns by up to 90 degrees, shifts."""
    known = digits()[0].flatten(1)
    mean = known.mean(0)
    components = torch.linalg.svd(known - mean, full_matrices=False).Vh[:30]

    def energy(y: Tensor) -> Tensor:
        rest = y.flatten(1) - mean
        return rest.square().sum(1) - (rest @ components.mT).square().sum(1)

    group = SE(2)
    return images(group, energy, composed(group, rotations(group, 90.0), shifts(group, 0.15)))


def reconstruction() -> Problem:
    """Squared error of an autoencoder; turns, scales, shifts."""
    net, group = autoencoder(), Similarity(2)
    moved = composed(group, rotations(group, 60.0), scales(group, 0.7, 1.3), shifts(group, 0.1))
    return images(group, lambda y: (net(y) - y.flatten(1)).square().sum(1), moved)


def confidence() -> Problem:
    """Minus the log-sum-exp of a classifier's logits."""
    net, group = classifier(), SE(2)
    moved = composed(group, rotations(group, 60.0), shifts(group, 0.1))
    return images(group, lambda y: -net(y).logsumexp(-1), moved)


def features() -> Problem:
    """Distance of a classifier's features to the nearest class, by the covariance within classes; affine maps."""
    known, labels, _ = digits()
    net = classifier()[:-1]
    found = net(known)
    means = torch.stack([found[labels == c].mean(0) for c in range(10)])
    within = torch.cov((found - means[labels]).mT)
    precision = torch.linalg.inv(within + 1e-2 * found.var() * torch.eye(len(within)))

    def energy(y: Tensor) -> Tensor:
        off = net(y)[:, None] - means
        return 0.1 * torch.einsum("bci,ij,bcj->bc", off, precision, off).mul(-0.5).logsumexp(-1).neg()

    return images(Affine(2), energy, normal(Affine(2), 0.25))


def template() -> Problem:
    """Squared difference to one digit; homographies."""
    digit = digits()[2][3:4]
    group = Projective(2)
    return images(
        group,
        lambda y: 10 * (y - digit).square().sum((1, 2, 3)),
        normal(group, 0.2),
        digit.expand(NUM_DATA, -1, -1, -1),
    )


def text() -> Problem:
    """Minus the variance of sums of rows, which is largest where printed lines are level; turns."""
    side, lines = 48, torch.zeros(NUM_DATA, 1, 48, 48)
    for row in range(10, side - 8, 7):
        lines[:, 0, row : row + 4, 6:-6] = (torch.rand(NUM_DATA, 4, side - 12, generator=seeded(row)) > 0.4).float()
    return images(SO(2), lambda y: -y.sum(-1).var(-1).sum(-1) / 5, rotations(SO(2), 90.0), lines)


# clouds


def shape() -> Tensor:
    """Return forty points without a symmetry."""
    points = torch.randn(40, 3, generator=seeded(5)) * torch.tensor([1.0, 0.6, 0.3])
    points[:8] += torch.tensor([0.8, 0.2, 0.4])
    return points - points.mean(0)


def cloud(energy: Callable[[Tensor], Tensor], noise: float) -> Problem:
    """Clouds turned and shifted at random, with noise."""
    group = SE(3)
    transformations = normal(group, 1.5)
    g = transformations(NUM_DATA, seeded(7)).float()
    moved = group.action()(g, shape().expand(NUM_DATA, -1, -1))
    moved = moved + noise * torch.randn(moved.shape, generator=seeded(8))
    return Problem(group.action(), energy, moved[:, torch.randperm(40, generator=seeded(9))], g, transformations)


def ordered() -> Problem:
    """Squared distances of points to those of the shape."""
    problem = cloud(lambda y: 5 * (y - shape()).square().sum((-1, -2)), 0.02)
    back = torch.randperm(40, generator=seeded(9)).argsort()
    return Problem(problem.action, problem.energy, problem.data[:, back], problem.truth, problem.transformations)


def unordered() -> Problem:
    """Squared distances of nearest points, both ways."""

    def energy(y: Tensor) -> Tensor:
        square = (y[:, :, None] - shape()).square().sum(-1)
        return 10 * (square.amin(1).mean(1) + square.amin(2).mean(1))

    return cloud(energy, 0.01)


def two_wells() -> Problem:
    """A deep well beside one that is twice as wide."""
    group = SE(3)
    other = group.exp(torch.tensor([1.0, 0.0, 0.5, 0.5, 0.2, 0.0]))

    def energy(y: Tensor) -> Tensor:
        first, second = (group.log(h).square().sum(-1) for h in (y, group.compose(group.inverse(other), y)))
        parts = torch.stack([math.log(20.0) - first / (2 * 0.35**2), -second, -0.2 * second - 3.0])
        return -parts.logsumexp(0)

    transformations = normal(group, 0.7)
    g = transformations(NUM_DATA, seeded(7)).float()
    return Problem(LeftTranslation(group), energy, g, g, transformations)


def ripples() -> Problem:
    """A wide well with ripples, four in a unit of each direction, that are a third as high as it is at a unit."""
    group = SE(3)

    def energy(y: Tensor) -> Tensor:
        v = group.log(y)
        return 3.0 * v.square().sum(-1) + (1.0 - torch.cos(8.0 * math.pi * v)).sum(-1)

    transformations = normal(group, 0.7)
    g = transformations(NUM_DATA, seeded(7)).float()
    return Problem(LeftTranslation(group), energy, g, g, transformations)


# operators


def operators(equation: Equation, spread: tuple[float, ...], energy: Callable[[OperatorInput], Tensor]) -> Problem:
    """Inputs of an operator, moved by all directions of the group."""
    problems = MixedProblems(equation, spread, [7], cases=NUM_DATA, num_sensors=41, nx=11, nt=6).problems(7)
    group = equation.group()
    return Problem(OperatorAction(group.action()), energy, problems.x, problems.elements, normal(group, *spread))


HEAT_SPREAD = (0.1, 1.0, 0.01, 0.5, 0.03, 0.5)


def heat() -> Problem:
    """Distance to the training domain of an operator for the heat equation."""
    return operators(HeatEquation(), HEAT_SPREAD, TrainingBox(HeatEquation()))


def burgers() -> Problem:
    """Distance to the training domain for Burgers' equation, and how unlikely the initial condition is."""
    return operators(BurgersEquation(), (0.2, 0.4, 0.2, 0.4, 0.4), InitialConditionEnergy(BurgersEquation()))


def consistency() -> Problem:
    """Misfit of a network's prediction at the initial points with the initial condition, and the domain's times."""
    equation = HeatEquation()
    net = load_checkpoint(DeepONet, "heat_deeponet").network.eval().requires_grad_(False)
    sensors = equation.domain.sensors(net.num_sensors, dtype=torch.float64)
    box = TrainingBox(equation)

    def energy(x: OperatorInput) -> Tensor:
        place, u = x.initial[..., 0], x.initial[..., 2]
        at_sensors = interpolate(place, u, sensors.to(u)).float()
        asked = equation.domain.sensors(41, dtype=u.dtype)
        points = torch.stack([asked, torch.zeros_like(asked)], -1).expand(len(u), -1, -1)
        misfit = net(at_sensors, points.float()).to(u) - interpolate(place, u, asked)
        return misfit.square().mean(-1) / u.square().mean(-1) + 0.1 * box(x)

    return operators(equation, HEAT_SPREAD, energy)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "principal components, SE(2)": principal_components,
    "autoencoder, Similarity(2)": reconstruction,
    "classifier's confidence, SE(2)": confidence,
    "classifier's features, Affine(2)": features,
    "template, Projective(2)": template,
    "printed lines, SO(2)": text,
    "points in order, SE(3)": ordered,
    "points in no order, SE(3)": unordered,
    "two wells, SE(3)": two_wells,
    "ripples on a well, SE(3)": ripples,
    "domain of the heat equation": heat,
    "domain of Burgers' equation": burgers,
    "consistency of an operator, heat": consistency,
}


# methods


class EvolutionStrategy(Stage):
    """CMA-ES of the library ``cmaes`` (Hansen 2016) in exponential coordinates about the identity, for each datum."""

    def __init__(self, evaluations: int, std: float) -> None:
        self.evaluations, self.std = evaluations, std

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        from cmaes import CMA

        group, unit = posterior.group, population.elements[:, :1]
        rows = [CMA(torch.zeros(group.dim).numpy(), self.std, seed=i) for i in range(posterior.batch)]
        best, lowest = unit, posterior.energies(unit)
        for _ in range((self.evaluations - 1) // rows[0].population_size):
            asked = [[row.ask() for _ in range(row.population_size)] for row in rows]
            v = torch.tensor(np.array(asked)).to(unit)
            g = group.retract(unit, v)
            energies = posterior.energies(g)
            index = energies.argmin(1, keepdim=True)
            lower = energies.gather(1, index) < lowest
            place = index.reshape(-1, 1, *[1] * len(group.element_shape)).expand(-1, 1, *group.element_shape)
            best = torch.where(lower.reshape(-1, 1, *[1] * len(group.element_shape)), g.gather(1, place), best)
            lowest = torch.minimum(lowest, energies.amin(1, keepdim=True))
            told = energies.nan_to_num(nan=1e30, posinf=1e30).double()
            for row, points, values in zip(rows, asked, told.tolist(), strict=True):
                row.tell(list(zip(points, values, strict=True)))
        return Population(best, torch.zeros_like(lowest, dtype=torch.long), lowest)


Method = Callable[[Action, Callable[[Any], Tensor], int], Inverter]


def random_descent(std: float) -> Method:
    """A quarter of the evaluations for random elements, the rest for Adam from the best of them."""

    def method(action: Action, energy: Callable[[Any], Tensor], budget: int) -> Inverter:
        steps = 30 if budget < 600 else 60 if budget < 2000 else 100
        stages = [GaussianSearch(budget // 4, max(1, 3 * budget // 4 // steps), std), Descend(steps, Adam(0.05))]
        return Inverter(action, energy, stages)

    return method


def langevin(action: Action, energy: Callable[[Any], Tensor], budget: int) -> Inverter:
    """Kinetic Langevin chains from random elements, at falling temperatures."""
    chains = 4
    steps = (budget - 64) // (3 * chains)
    stages = [GaussianSearch(64, chains, 0.5), *(Langevin(steps, 0.05, 1.0, t) for t in (1.0, 0.1, 0.01))]
    return Inverter(action, energy, stages)


def lielac(action: Action, energy: Callable[[Any], Tensor], budget: int) -> Inverter:
    """The published method, with as many chains as leave it enough steps."""
    chains = 6 if budget < 600 else 10 if budget < 2000 else 30
    return LieLAC(action, energy, steps=budget // chains, num_hypotheses=chains, keep_best=True)


def its(action: Action, energy: Callable[[Any], Tensor], budget: int) -> Inverter:
    """The published method along the directions of the basis."""
    levels = basis_levels(action.group)
    samples = max(3, budget // (3 * len(levels)))
    return ITS(action, energy, levels, num_samples=samples, num_hypotheses=3)


def reverse_diffusion(action: Action, energy: Callable[[Any], Tensor], budget: int) -> Inverter:
    """The search of Kim et al. (2026) by its defaults, and as many chains and steps as the budget allows."""
    chains = 8 if budget < 600 else 16 if budget < 2000 else 32
    return ReverseDiffusionSearch(action, energy, steps=max(4, budget // (2 * chains)), num_hypotheses=chains)


METHODS: dict[str, Method] = {
    "TIED": lambda action, energy, budget: TIED(action, energy, evaluations=budget),
    "random + descent, .35": random_descent(0.35),
    "random + descent, 1": random_descent(1.0),
    "CMA-ES": lambda action, energy, budget: Inverter(action, energy, [EvolutionStrategy(budget, 0.5)]),
    "annealed Langevin": langevin,
    "LieLAC": lielac,
    "ITS": its,
    "reverse diffusion": reverse_diffusion,
}
TOLD = "TIED, transformations known"
"""Method that is told the distribution of the transformations."""


def measured(problem: Problem, method: str, budget: int, thresholds: Tensor) -> dict[str, Any]:
    """Return the share of the data that a method solves, with its standard error, evaluations and seconds."""
    if method == TOLD:
        inverter: Inverter = TIED(problem.action, problem.energy, problem.transformations, evaluations=budget)
    else:
        inverter = METHODS[method](problem.action, problem.energy, budget)
    start = time.perf_counter()
    result = inverter.replace(progress=False)(problem.data, generator=seeded(0))
    seconds = time.perf_counter() - start
    solved = float((result.best_energy() <= thresholds).double().mean())
    return {
        "solved": solved,
        "evaluations": result.energy_evaluations + result.gradient_evaluations,
        "trusted": float(result.trusted.double().mean()),
        "seconds": round(seconds, 2),
    }


def rows(names: list[str], methods: list[str], budgets: list[int], save: Path | None) -> None:
    """Measure what the file lacks, and print and keep each row as it is known."""
    kept = json.loads(save.read_text())["rows"] if save is not None and save.exists() else []
    known = {(row["problem"], row["budget"], row["data"]): row for row in kept}
    for name in names:
        problem, thresholds = None, None
        for budget in budgets:
            row = known.setdefault((name, budget, NUM_DATA), {"problem": name, "budget": budget, "data": NUM_DATA})
            for method in methods:
                if method in row:
                    continue
                if problem is None or thresholds is None:
                    problem = PROBLEMS[name]()
                    thresholds = problem.thresholds()
                row[method] = measured(problem, method, budget, thresholds)
                if save is not None:
                    content = {"environment": environment(torch.device("cpu")), "rows": list(known.values())}
                    save.write_text(json.dumps(content, indent=1) + "\n")
            shown = "  ".join(f"{method} {row[method]['solved']:.2f}" for method in methods)
            print(f"{name:34} {budget:5}  {shown}", flush=True)


def main() -> None:
    """Print the table, and keep it if asked to; a file that is there is completed."""
    global NUM_DATA
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=[""], nargs="*", help="parts of names of problems")
    parser.add_argument("--methods", nargs="*", default=[*METHODS, TOLD])
    parser.add_argument("--budgets", type=int, nargs="*", default=BUDGETS)
    parser.add_argument("--data", type=int, default=NUM_DATA, help="number of data of each problem")
    parser.add_argument("--save", type=Path, help="file for the rows")
    options = parser.parse_args()
    NUM_DATA = options.data
    names = [name for name in PROBLEMS if any(part in name for part in options.only)]
    rows(names, options.methods, list(options.budgets), options.save)


if __name__ == "__main__":
    main()
