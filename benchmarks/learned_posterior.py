"""What `LearnedInverter.fit` says of its posteriors, and whether it is so on data that nothing of it has seen.

python -m benchmarks.learned_posterior [--sets landmarks digits affnist] [--folder runs/learned_posterior]

Coverage is the share of true transformations in regions of half and nine tenths of the learned posterior: in those of
highest density, and in the central ranges of angle, scale and shifts. The latter are coordinates about the centre of
the largest mode. About the truth they would have no order where modes lie on opposite sides. As a control the same is
said of draws of the posterior in the place of the truth. Flagged are data that are not ``trusted``: clean
ones, moved by drawn transformations, moved by three times as large ones (of these, those that are never drawn), and
noise. Accuracy is that of a classifier on clean images, alone and after an inverter with a gate. Efficiency is the
effective sample size, as a share of the samples, of a `PosteriorSampler` that begins at the learned posterior, and of
one without it. Each set takes minutes on one core. The network of affNIST is one that the repository keeps, calibrated
here by `LearnedInverter.calibrate`; the set reads MNIST and the classifier ``resnet18`` (see `tasks.checkpoints`).
"""

from __future__ import annotations

import argparse
import json
import math
import runpy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import environment
from tasks.images.data import framed
from tasks.images.energies import load_classifier
from tasks.images.mnist import MNIST
from tasks.images.transformations import AffineRecipe
from tasks.learned import load_score
from trivgeo.actions import ImageWarp
from trivgeo.groups import SE, SO, Action, Similarity
from trivgeo.inversion import LearnedInverter, PosteriorSample, PosteriorSampler, TestTimeEquivariant
from trivgeo.inversion.learned import LearnedScore
from trivgeo.inversion.sampling.mixture import StudentMixture

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
NUM_DATA, NUM_DRAWS = 600, 59
"""Data of each figure, and draws of a posterior: with 59, ranks of a truth in 60 places, regions hold whole numbers."""
REGIONS = (0.5, 0.9)
SHAPE = torch.tensor([[1.0, 0.0], [0.0, 0.6], [-0.8, 0.1], [0.2, -0.3], [-0.2, -0.5], [0.7, 0.4]])
TOGETHER = 500
"""Data that a classifier sees at once."""
NOISE = 0.05
"""Standard deviation of landmarks about their shape."""


@dataclass(frozen=True)
class Problem:
    """Data, a distribution of transformations, and what is unlike them.

    Attributes:
        action: on the data.
        clean: of the training, see `LearnedInverter.fit`; of a score kept, data of its calibration.
        unseen: (count, generator) to other clean data.
        transformations: (count, generator) to elements.
        beyond: (count, generator) to elements three times as large, that are never drawn by ``transformations``.
        noise: (count, generator) to data that are noise.
        parts: names of coordinates of the algebra.
        steps: of the training; none of a score kept.
        energy: of clean data; ``None`` if none is known.
        classifier: of clean data, and labels of all unseen ones; ``None`` if there is none.
        score: one that was trained before; ``None`` if it is to be trained.
    """

    action: Action
    clean: Any
    unseen: Callable[[int, torch.Generator], Tensor]
    transformations: Callable[[int, torch.Generator], Tensor]
    beyond: Callable[[int, torch.Generator], Tensor]
    noise: Callable[[int, torch.Generator], Tensor]
    parts: dict[str, list[int]]
    steps: int
    energy: Callable[[Tensor], Tensor] | None = None
    classifier: tuple[Callable[[Tensor], Tensor], Tensor, Tensor] | None = None
    score: LearnedScore | None = None


def landmarks() -> Problem:
    """Six points in the plane, each a little off, turned up to half a right angle and shifted by up to a half."""
    group = SE(2)
    reach = torch.tensor([math.pi / 4, 0.5, 0.5])

    def clean(count: int, generator: torch.Generator) -> Tensor:
        return SHAPE + NOISE * torch.randn(count, *SHAPE.shape, generator=generator)

    def cube(count: int, generator: torch.Generator, factor: float) -> Tensor:
        return factor * (2 * torch.rand(count, 3, generator=generator) - 1)

    def beyond(count: int, generator: torch.Generator) -> Tensor:
        u = cube(2 * count, generator, 3.0)
        return group.exp(u[(u.abs() > 1).any(-1)][:count] * reach)

    return Problem(
        group.action(),
        clean,
        clean,
        lambda count, generator: group.exp(cube(count, generator, 1.0) * reach),
        beyond,
        lambda count, generator: torch.randn(count, *SHAPE.shape, generator=generator),
        {"angle": [0], "shifts": [1, 2]},
        600,
        energy=lambda y: (y - SHAPE.to(y)).square().sum((-1, -2)) / (2 * NOISE**2),
    )


def digits() -> Problem:
    """The digits of scikit-learn under the similarity transformations of docs/examples/digits.py."""
    user = runpy.run_path(str(EXAMPLES / "digits_networks.py"))
    images, labels = user["images"]()
    clean, unseen = images[:1297], images[1297:]
    group = Similarity(2)

    def moved(u: Tensor) -> Tensor:
        """Elements of numbers within one of zero for those that may be drawn."""
        turn, size = SO(2).exp(0.5 * math.pi * u[:, :1]), 0.6 * (1.6 / 0.6) ** (0.5 + 0.5 * u[:, 1])
        return group.from_parts(turn, size, 0.4 * u[:, 2:]).float()

    def cube(count: int, generator: torch.Generator, factor: float) -> Tensor:
        return factor * (2 * torch.rand(count, 4, generator=generator, dtype=torch.float64) - 1)

    def beyond(count: int, generator: torch.Generator) -> Tensor:
        u = cube(2 * count, generator, 3.0)
        angle = (u[:, 0] + 2) % 4 - 2  # a whole turn is four
        outside = (torch.cat([angle[:, None], u[:, 1:]], 1).abs() > 1).any(-1)
        return moved(u[outside][:count])

    return Problem(
        ImageWarp(group),
        clean,
        lambda count, generator: unseen[torch.arange(count) % len(unseen)],
        lambda count, generator: moved(cube(count, generator, 1.0)),
        beyond,
        lambda count, generator: torch.rand(count, *clean.shape[1:], generator=generator),
        {"angle": [0], "scale": [1], "shifts": [2, 3]},
        1000,
        classifier=(user["classifier_of"](clean, labels[:1297]), unseen, labels[1297:]),
    )


def affnist() -> Problem:
    """The test digits of MNIST under the maps of affNIST, half of them for the calibration."""
    source = MNIST()
    test = source.test()
    images = framed(test.images, source.frame)
    mixed = torch.randperm(len(images), generator=seeded(41))  # the writers of the halves differ
    images, labels = images[mixed], test.labels[mixed]
    clean, unseen = images[:5_000], images[5_000:]
    narrow, wide = AffineRecipe(), AffineRecipe(60.0, 0.6, 0.4, 1.6)
    group = narrow.group
    action = ImageWarp(group)
    score = load_score("amortized_affine", action)
    score.backbone.precision = "float32"  # few processors have instructions for less

    def drawn(recipe: AffineRecipe, count: int, generator: torch.Generator) -> Tensor:
        some = clean[torch.randint(len(clean), (count,), generator=generator)]
        return recipe.draw(some, [generator] * count)

    def beyond(count: int, generator: torch.Generator) -> Tensor:
        linear, shift = group.split(drawn(wide, 2 * count, generator))
        angle, size = torch.atan2(linear[:, 1, 0], linear[:, 0, 0]), linear[:, :, 0].norm(dim=-1)
        height = linear.det() / size
        shear = (linear[:, :, 0] * linear[:, :, 1]).sum(-1) / (size * height)
        off = (angle.abs() > math.radians(20)) | (shear.abs() > 0.2)
        off = off | ((size - 1).abs() > 0.2) | ((height - 1).abs() > 0.2)
        return group.join(linear, 3 * shift)[off][:count].float()

    return Problem(
        action,
        clean,
        lambda count, generator: unseen[torch.arange(count) % len(unseen)],
        lambda count, generator: drawn(narrow, count, generator).float(),
        beyond,
        lambda count, generator: torch.rand(count, *clean.shape[1:], generator=generator),
        {"linear part": [0, 1, 2, 3], "shifts": [4, 5]},
        0,
        classifier=(load_classifier("resnet18").eval(), unseen, labels[5_000:]),
        score=score,
    )


PROBLEMS = {"landmarks": landmarks, "digits": digits, "affnist": affnist}


def seeded(seed: int) -> torch.Generator:
    """A generator."""
    return torch.Generator().manual_seed(seed)


def coverage(inverter: LearnedInverter, problem: Problem) -> dict[str, Any]:
    """Share of true transformations in regions of the posterior; as a control, of draws of the posterior instead."""
    g, x = problem.transformations(NUM_DATA, seeded(11)), problem.unseen(NUM_DATA, seeded(12))
    posterior, _ = inverter.proposal(problem.action(g, x), seeded(0))
    own = posterior.sample_principal(1, seeded(2)).squeeze(1)
    return inside(posterior, problem, g) | {"of own draws": inside(posterior, problem, own)}


def inside(posterior: StudentMixture, problem: Problem, g: Tensor) -> dict[str, list[float]]:
    """Share of elements in regions of highest density, and in central ranges of their coordinates."""
    group = problem.action.group.with_scale(None)
    drawn = posterior.sample_principal(NUM_DRAWS, seeded(1))
    heights = posterior.log_density(torch.cat([g.unsqueeze(1), drawn], 1))
    lower = (heights[:, 1:] < heights[:, :1]).double().mean(-1)
    found = {"density": [float((lower >= 1 - mass).double().mean()) for mass in REGIONS]}
    centre = posterior.centres[torch.arange(len(g)), posterior.log_shares.argmax(-1)].unsqueeze(1)
    at = lambda elements: group.log(group.compose(group.inverse(centre), elements))  # noqa: E731
    rank = (at(drawn) < at(g.unsqueeze(1))).double().mean(1)
    for name, columns in problem.parts.items():
        share = [(rank[:, columns] - 0.5).abs() <= 0.5 * mass for mass in REGIONS]
        found[name] = [float(each.double().mean()) for each in share]
    return found


def flagged(inverter: LearnedInverter, problem: Problem) -> dict[str, float]:
    """Share of data that are not trusted."""
    x = problem.unseen(NUM_DATA, seeded(22))
    data = {
        "clean": x,
        "moved": problem.action(problem.transformations(NUM_DATA, seeded(21)), x),
        "beyond the distribution": problem.action(problem.beyond(NUM_DATA, seeded(23)), x),
        "noise": problem.noise(NUM_DATA, seeded(24)),
    }
    shares = {}
    for name, some in data.items():
        result = inverter(some, generator=seeded(0))
        shares[name] = sum(bool(reason) for reason in result.reasons) / len(some)  # type: ignore[attr-defined]
    return shares


def accuracy(inverter: LearnedInverter, problem: Problem) -> dict[str, float]:
    """Accuracies on clean data, alone and after an inverter with a gate."""
    assert problem.classifier is not None
    assert inverter.score is not None
    classifier, x, labels = problem.classifier
    gate = LearnedInverter.from_score(inverter.score, gate=True)
    gate.calibration = inverter.calibration
    model = TestTimeEquivariant(classifier, gate)
    right = {"alone": 0, "with a gate": 0}
    with torch.no_grad():
        for part, answers in zip(x.split(TOGETHER), labels.split(TOGETHER), strict=True):
            for name, logits in (("alone", classifier(part)), ("with a gate", model(part, generator=seeded(0)))):
                right[name] += int((logits.argmax(-1) == answers).sum())
    return {name: count / len(x) for name, count in right.items()}


def efficiency(inverter: LearnedInverter, problem: Problem) -> dict[str, float]:
    """Effective sample size over the number of samples, with learned proposals and without."""
    assert problem.energy is not None
    x = problem.action(problem.transformations(64, seeded(31)), problem.unseen(64, seeded(32)))
    shares = {}
    for name, proposals in (("learned", inverter), ("none", None)):
        sampler = PosteriorSampler(problem.action, problem.energy, proposals=proposals, num_samples=100, budget=300)
        sample = sampler(x, generator=seeded(0))
        assert isinstance(sample, PosteriorSample)
        shares[name] = float(sample.effective_sample_size.mean()) / 100
    return shares


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Train, and measure."""
    problem = PROBLEMS[name]()
    start = time.perf_counter()
    if problem.score is None:
        inverter, own = LearnedInverter(problem.action, seed=0), folder / name
        inverter.fit(
            problem.clean, problem.transformations, steps=problem.steps, seconds=None, folder=own, progress=False
        )
    else:
        inverter = LearnedInverter.from_score(problem.score).calibrate(problem.clean, problem.transformations)
    known = inverter.calibration
    assert known is not None
    row: dict[str, Any] = {"steps": problem.steps, "said": known.as_dict(), "seconds": time.perf_counter() - start}
    print(f"{name}: {known}, {row['seconds']:.0f} s", flush=True)
    parts: dict[str, Callable[[LearnedInverter, Problem], Any]] = {"coverage": coverage, "flagged": flagged}
    if problem.classifier is not None:
        parts["accuracy"] = accuracy
    if problem.energy is not None:
        parts["efficiency"] = efficiency
    for part, figures in parts.items():
        start = time.perf_counter()
        row[part] = figures(inverter, problem)
        print(f"{name}, {part}: {row[part]}, {time.perf_counter() - start:.0f} s", flush=True)
    row["control"] = row["coverage"].pop("of own draws")
    return row


def main() -> None:
    """Parse the command line, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learned_posterior", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--sets", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--folder", type=Path, default=Path("runs/learned_posterior"), help="of the trainings")
    results = Path(__file__).parent / "results" / "learned-posterior-cpu.json"
    parser.add_argument("--output", type=Path, default=results)
    options = parser.parse_args()
    before = json.loads(options.output.read_text())["sets"] if options.output.exists() else {}
    sets = before | {name: measure(name, options.folder) for name in options.sets}
    document = {"environment": environment(torch.device("cpu")), "sets": sets}
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
