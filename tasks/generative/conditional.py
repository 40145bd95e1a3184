"""Class-conditional mixtures of known distribution on any group, and the test of models that learn them."""

import math
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trivgeo._devices import on_device
from trivgeo.checks import check_choice, check_count, check_positive
from trivgeo.generative import GroupDiffusion
from trivgeo.generative.distributions import MixtureDistribution, NormalDistribution
from trivgeo.groups import LieGroup

from ..problems import Request
from ..results import ShardedTest
from ..seeds import generator_of
from .fitting import KINDS, seeded_training, timed, training_settings

_EMBEDDING_DIM = 16  # features of a class
_DENSITY_BATCH_SIZE = 250  # elements whose density is evaluated at once


class Labelled(NamedTuple):
    """Elements with their classes.

    Attributes:
        elements: `[n, *element_shape]`.
        classes: `[n]`, integers.
    """

    elements: Tensor
    classes: Tensor


class ClassMixture:
    """For each of equally likely classes a mixture of normal distributions about elements that are drawn once.

    Args:
        group: group of the elements.
        classes: number of classes.
        modes: number of modes of each class.
        std: standard deviation of each mode, in logarithms about its centre.
        spread: standard deviation of the centres on groups that are not compact.
        train: elements for training.
        test: elements for the test.

    Raises:
        ConfigurationError: a number is out of range, or the volume of a compact group is not known.
    """

    def __init__(
        self,
        group: LieGroup,
        classes: int = 4,
        modes: int = 3,
        std: float = 0.35,
        spread: float = 1.0,
        train: int = 20_000,
        test: int = 1000,
    ) -> None:
        self.group = group
        self.sizes = (check_count("train", train), check_count("test", test))
        check_positive("std", std)
        count = check_count("classes", classes) * check_count("modes", modes)
        generator = generator_of(0)
        if group.is_compact:
            centres = group.random_haar(count, generator=generator, dtype=torch.float64)
        else:
            centres = group.random(count, std=spread, generator=generator, dtype=torch.float64)
        zero, factor = torch.zeros(group.dim).double(), std * torch.eye(group.dim).double()
        weights = torch.full((modes,), 1.0 / modes, dtype=torch.float64)
        self.distributions = [
            MixtureDistribution([NormalDistribution(group, centre, zero, factor) for centre in part], weights)
            for part in centres.unflatten(0, (classes, modes))
        ]

    def draw(self, number: int, generator: torch.Generator) -> Labelled:
        """Draw classes, and an element of each."""
        classes = torch.randint(len(self.distributions), (number,), generator=generator)
        order = classes.argsort()
        counts = classes.bincount(minlength=len(self.distributions)).tolist()
        elements = torch.cat([x.sample(n, generator) for x, n in zip(self.distributions, counts, strict=True)])
        return Labelled(elements[order.argsort()].float(), classes)

    def split(self, seed: int) -> tuple[Labelled, Labelled]:
        """Training and test elements, a function of the seed."""
        generator = generator_of(seed)
        train, test = (self.draw(size, generator) for size in self.sizes)
        return train, test

    def log_densities(self, g: Tensor) -> Tensor:
        """True log-densities of every class at elements, for the measure of `GroupDiffusion`, `[n, classes]`."""
        each = [x.log_prob(g.double().cpu()) for x in self.distributions]
        return torch.stack(each, -1)


class ClassModelTest(ShardedTest):
    """A test of a `GroupDiffusion` given classes.

    Args:
        kind: see `GroupDiffusion`, also for `width` and `depth`.
        steps: see `GroupDiffusion.fit`, also for `seconds` and `batch_size`.
        tolerance: see `GroupDiffusion.log_prob`, also for `num_draws`.

    Raises:
        ConfigurationError: a number is out of range, or the kind is no such.
    """

    gains = ("recognised",)

    def __init__(
        self,
        kind: str,
        steps: int,
        seconds: float,
        width: int,
        depth: int,
        batch_size: int,
        tolerance: float,
        num_draws: int,
    ) -> None:
        super().__init__()
        self.kind = check_choice("kind", kind, KINDS)
        self.width, self.depth = check_count("width", width), check_count("depth", depth)
        self.training_settings = training_settings(steps, seconds, batch_size)
        self.tolerance, self.num_draws = check_positive("tolerance", tolerance), check_count("num_draws", num_draws)

    def fitted(self, group: LieGroup, train: Labelled, embedding: tuple[int, int], seed: int) -> GroupDiffusion:
        """Fit a model of elements given classes; ``embedding`` has the numbers of classes and of their features."""
        with seeded_training(seed):
            classes = nn.Embedding(*embedding)
            model = GroupDiffusion(group, self.kind, seed, condition=classes, width=self.width, depth=self.depth)
            return model.to(self.device).fit(train.elements, train.classes, **self.training_settings)


class ConditionalTest(ClassModelTest):
    """A `GroupDiffusion` given classes of a `ClassMixture`, against the distribution itself.

    One model learns the classes, a second one is trained with classes that are shuffled, which say nothing: its
    likelihood must be that of all classes together. Excesses are differences of mean negative log-likelihoods of test
    elements from those of the true distribution, in nats a dimension. Guidance is measured by how surely the
    true distribution recognises the class of a sample: the mean of its probability given the sample.

    Args:
        source: source of the elements.
        kind: see `GroupDiffusion`, also for `width` and `depth`.
        steps: see `GroupDiffusion.fit`, also for `seconds` and `batch_size`.
        tolerance: see `GroupDiffusion.log_prob`, also for `num_draws`.
        guidance: the factor that is compared with 1.
    """

    def __init__(
        self,
        source: ClassMixture,
        kind: str,
        steps: int = 2000,
        seconds: float = 400.0,
        width: int = 128,
        depth: int = 3,
        batch_size: int = 256,
        tolerance: float = 1e-3,
        num_draws: int = 1,
        guidance: float = 3.0,
    ) -> None:
        super().__init__(kind, steps, seconds, width, depth, batch_size, tolerance, num_draws)
        self.source = source
        self.guidance = check_positive("guidance", guidance)

    def test_step(self, batch: Request, index: int) -> None:
        """Fit and test models on one split of the data."""
        if not self.is_due(batch, index):
            return
        source, dim = self.source, self.source.group.dim
        train, test = (Labelled(*on_device(part, self.device)) for part in source.split(batch.seed))
        model, metrics = timed(lambda: self._fitted(train, batch.seed))
        order = torch.randperm(len(train.classes), generator=generator_of(batch.seed, 2))
        shuffled = self._fitted(Labelled(train.elements, train.classes[order.to(train.classes.device)]), batch.seed)
        logs = source.log_densities(test.elements)
        true = -float(logs.gather(-1, test.classes.cpu().unsqueeze(-1)).mean())
        marginal = -float((logs.logsumexp(-1) - math.log(logs.shape[-1])).mean())
        start = time.perf_counter()
        found = self._nll(model, test.elements, test.classes)
        metrics |= {
            "test NLL": found,
            "test NLL of the true density": true,
            "excess NLL a dimension": (found - true) / dim,
            "marginal NLL of the true density": marginal,
            "excess NLL a dimension, without class": (self._nll(model, test.elements, None) - marginal) / dim,
            "excess NLL a dimension, shuffled classes": (
                (self._nll(shuffled, test.elements, test.classes) - marginal) / dim
            ),
            "seconds of likelihoods": time.perf_counter() - start,
        }
        metrics["recognised, true density"] = self._recognised(test.elements, test.classes)
        for name, guidance in (("samples", 1.0), ("guided samples", self.guidance)):
            generator = generator_of(batch.seed, 1)
            drawn = model.sample(
                len(test.classes), condition=test.classes, guidance=guidance, generator=generator, tolerance=1e-3
            )
            metrics[f"recognised, {name}"] = self._recognised(drawn, test.classes)
        self.log("excess", metrics["excess NLL a dimension"], batch_size=1)
        if self.writer is not None:
            self.writer.write([{"seed": batch.seed, "case": 0, "metrics": metrics, "samples": len(test.classes)}])

    def _fitted(self, train: Labelled, seed: int) -> GroupDiffusion:
        return self.fitted(self.source.group, train, (len(self.source.distributions), _EMBEDDING_DIM), seed)

    def _nll(self, model: GroupDiffusion, g: Tensor, classes: Tensor | None) -> float:
        """Mean negative log-likelihood of a model, given classes or without."""
        rows = torch.arange(len(g), device=g.device).split(_DENSITY_BATCH_SIZE)
        found = [
            model.log_prob(
                g[part],
                condition=None if classes is None else classes[part],
                num_draws=self.num_draws,
                tolerance=self.tolerance,
            )
            for part in rows
        ]
        return -float(torch.cat(found).double().mean())

    def _recognised(self, g: Tensor, classes: Tensor) -> float:
        """Mean probability of the class of an element under the true distribution."""
        finite = torch.isfinite(g.flatten(1)).all(-1).cpu()
        shares = self.source.log_densities(g.cpu()[finite]).softmax(-1)
        return float(shares.gather(-1, classes.cpu()[finite].unsqueeze(-1)).mean())
