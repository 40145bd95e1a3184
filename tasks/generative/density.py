"""Test of a density model of group elements: fitted on one split for each seed, compared with held-out data."""

import time

import torch
from torch import Tensor

from trivgeo._devices import on_device
from trivgeo.checks import check_count
from trivgeo.generative.distributions import log_mass

from ..frames.statistics import energy_distance, mean_embedding_distance
from ..problems import Request
from ..results import ShardedTest
from ..seeds import generator_of
from .figures import draw_pairs
from .models import ElementModel
from .sources import ElementSource

_MAX_SET_SIZE = 2000  # elements of each set whose distance is measured


class DensityTest(ShardedTest):
    """Negative log-likelihood of the test set, distances of samples from it, and the seconds of training and sampling.

    The distances are between smooth functions of elements: their entries, and of angles sines and cosines. Next to each
    is that of as many training elements, the level that a perfect model has.

    Args:
        source: source of the elements.
        model: the model to be fitted.
        likelihoods: test elements whose density is evaluated, at most; `null` for all, 0 where there is no density.
        evaluations: evaluations of the network by samplers with random steps, whose energy distance is noted too.
        figure: see `tasks.images.inversion.ImageInversion`.
    """

    def __init__(
        self,
        source: ElementSource,
        model: ElementModel,
        likelihoods: int | None = None,
        evaluations: int = 100,
        figure: str | None = "figure.png",
    ) -> None:
        super().__init__()
        self.source, self.model = source, model
        self.likelihoods = None if likelihoods is None else check_count("likelihoods", likelihoods, 0)
        self.evaluations = check_count("evaluations", evaluations)
        self.figure = figure

    def test_step(self, batch: Request, index: int) -> None:
        """Fit and test the model on one split of the data."""
        if not self.is_due(batch, index):
            return
        source, model = self.source, self.model
        train, test = on_device(source.split(batch.seed), self.device)
        generator = generator_of(batch.seed, 1)
        start = time.perf_counter()
        with torch.inference_mode(False), torch.enable_grad():
            model.fit(source.group, train, batch.seed)
        fitted = time.perf_counter()
        number = min(len(test), _MAX_SET_SIZE)
        samples = model.sample(number, generator)
        sampled = time.perf_counter()
        metrics = {"seconds of training": fitted - start, "seconds of sampling": sampled - fitted}
        if self.likelihoods != 0:
            metrics |= self._likelihoods(test[: self.likelihoods])
        x = self._features(test[:number])
        width = float(torch.cdist(x[: number // 2], x[number // 2 :]).median())
        compared = {"samples": samples, "training set": train[:number]}
        by_steps = model.sample_by_steps(number, self.evaluations, generator)
        if by_steps is not None:
            compared["samples by random steps"] = by_steps
        for name, elements in compared.items():
            y = self._features(elements)
            metrics[f"energy distance of {name}"] = energy_distance(y, x)
            metrics[f"MMD of {name}"] = mean_embedding_distance(y, x, width)
        metrics["defect"] = float((source.group.project(samples.double()) - samples).abs().max()) if number else 0.0
        self.log("energy_distance", metrics["energy distance of samples"], batch_size=1)
        writer = self.writer
        if writer is not None:
            writer.write([{"seed": batch.seed, "case": 0, "metrics": metrics, "samples": number}])
            if self.figure is not None and index == 0:
                shown_as = [source.coordinates(g).cpu() for g in (test, samples)]
                draw_pairs(writer.directory / self.figure, source.names, *shown_as)

    def _likelihoods(self, shown: Tensor) -> dict[str, float]:
        start = time.perf_counter()
        log_mass_of_measure = log_mass(self.source.group, self.source.measure)
        log_prob = self.model.log_prob(shown) - log_mass_of_measure
        metrics = {
            "test NLL": -float(log_prob.double().mean()),
            "lost elements": float((~torch.isfinite(log_prob)).sum()),
            "seconds of likelihoods": time.perf_counter() - start,
        }
        exact = self.source.log_density(shown.cpu())
        if exact is not None:
            metrics["test NLL of the true density"] = -float(exact.double().mean()) + log_mass_of_measure
        return metrics

    def _features(self, g: Tensor) -> Tensor:
        periods = torch.tensor(self.source.group.fingerprint()["periods"], dtype=torch.float64).flatten()
        flat = g.double().flatten(1).cpu()
        angles, others = flat[:, periods > 0] * (2.0 * torch.pi / periods[periods > 0]), flat[:, ~(periods > 0)]
        return torch.cat([others, angles.cos(), angles.sin()], -1)
