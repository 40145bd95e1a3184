"""Test of a sampler on SO(10) against the exact distribution of the top-left entry."""

import time

import torch
from torch import Tensor

from ..problems import Request
from ..results import ShardedTest
from ..seeds import generator_of
from .corner_distribution import CornerDistribution
from .figures import draw_sampling
from .samplers import Sampler


class CornerSampling(ShardedTest):
    """Kolmogorov-Smirnov distance of X_11 to its exact distribution, and its moments.

    Args:
        sampler: draws the samples.
        n: the size of the matrices.
        strength: c of the energy -c X_11^2.
        batch_size: samples drawn at once, which bounds the memory.
        figure: see `tasks.images.inversion.ImageInversion`.
    """

    def __init__(
        self,
        sampler: Sampler,
        n: int = 10,
        strength: float = 10.0,
        batch_size: int = 2500,
        figure: str | None = "figure.png",
    ) -> None:
        super().__init__()
        self.sampler = sampler
        self.distribution = CornerDistribution(n, strength)
        self.batch_size = batch_size
        self.figure = figure

    def test_step(self, batch: Request, index: int) -> None:
        """Draw and compare the samples of one seed."""
        if not self.is_due(batch, index):
            return
        count = batch.size
        generator = generator_of(batch.seed, batch.number, device=self.device)
        start = time.perf_counter()
        sizes = [min(self.batch_size, count - first) for first in range(0, count, self.batch_size)]
        draws = [self.sampler.sample(self.distribution, size, generator) for size in sizes]
        seconds = time.perf_counter() - start
        elements = torch.cat([d.elements for d in draws])
        trace = {step: torch.cat([d.trace[step] for d in draws]) for step in draws[0].trace}
        x = elements[:, 0, 0]
        unit = torch.eye(self.distribution.n, dtype=x.dtype, device=x.device)
        metrics = {
            "kolmogorov-smirnov distance": self.distribution.kolmogorov_smirnov(x),
            "|mean of X_11|": abs(float(x.mean())),
            "error of the mean of X_11^2": abs(float((x**2).mean()) - self.distribution.mean_square()),
            "share in the positive mode": float((x > 0).double().mean()),
            "defect of orthogonality": float((elements.mT @ elements - unit).abs().max()),
        }
        self.log("ks", metrics["kolmogorov-smirnov distance"], batch_size=1)
        row = {
            "seed": batch.seed,
            "case": 0,
            "metrics": metrics,
            "samples": count,
            "gradient_evaluations_per_sample": max(d.gradient_evaluations for d in draws),
            "seconds": seconds,
            "trace": {str(step): abs(float(values.mean())) for step, values in trace.items()},
        }
        writer = self.writer
        if writer is not None:
            writer.write([row])
            if self.figure is not None and index == 0:
                draw_sampling(writer.directory / self.figure, self.distribution, x, _means(trace))


def _means(trace: dict[int, Tensor]) -> dict[int, float]:
    return {step: abs(float(values.mean())) for step, values in trace.items()}
