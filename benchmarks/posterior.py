"""Posteriors that are known: weights of wells, evidence and efficiency of `PosteriorSampler`.

``python -m benchmarks.posterior`` prints a row for each group and temperature: two wells, of weights .7 and .3 at
temperature one, normal in exponential coordinates, seen by 64 chains of noise. The truth at other temperatures is
importance sampling with 100,000 draws of the wells themselves.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo.generative.measure import sum_over_compact
from trivgeo.groups import SE, SO, Action, Affine, HeatSymmetry, LieGroup, Similarity
from trivgeo.groups.harmonic import log_haar_volume
from trivgeo.inversion import PosteriorSampler
from trivgeo.sde.noise.kernel import log_volume

NUM_DATA = 64
NUM_REFERENCE = 100_000
WEIGHTS = (0.7, 0.3)
TEMPERATURES = (1.0, 0.5, 2.0)


class LeftTranslation(Action):
    """Elements of a group as data, moved from the left."""

    def __init__(self, group: LieGroup) -> None:
        self.group = group

    def __call__(self, g: Tensor, x: Tensor) -> Tensor:
        """The product."""
        return self.group.compose(g, x)

    def _batch(self, g: Tensor, x: Tensor) -> torch.Size:
        return torch.broadcast_shapes(self.group.batch_shape(g), self.group.batch_shape(x))

    def is_valid(self, g: Tensor, x: Tensor) -> Tensor:
        """True."""
        return torch.ones(self._batch(g, x), dtype=torch.bool)

    def log_abs_det_jacobian(self, g: Tensor, x: Tensor) -> Tensor:
        """Zero: left Haar measure does not change."""
        return x.new_zeros(self._batch(g, x))

    def sum_points(self, per_part: Tensor) -> Tensor:
        """The numbers themselves: a datum has one part."""
        return per_part

    def batch_shape(self, x: Tensor) -> torch.Size:
        """That of elements."""
        return self.group.batch_shape(x)

    def check_data(self, x: Tensor, name: str = "x") -> None:
        """See `LieGroup.check_elements`."""
        self.group.check_elements(x, name)


@dataclass(frozen=True)
class Wells:
    r"""The density :math:`\sum_j w_j N(\log(c_j^{-1} g); 0, s_j^2) / |\det J_r|` for left Haar measure.

    Attributes:
        group: the group.
        centres: c, ``[2, *element_shape]``.
        widths: s.
    """

    group: LieGroup
    centres: Tensor
    widths: tuple[float, ...]

    @staticmethod
    def apart(group: LieGroup, direction: list[float], distance: float, widths: tuple[float, ...]) -> Wells:
        """Two wells at ends of a geodesic through the identity."""
        v = torch.tensor(direction, dtype=torch.float64)
        v = 0.5 * distance * v / v.norm()
        return Wells(group, group.exp(torch.stack([-v, v])), widths)

    def log_parts(self, g: Tensor) -> Tensor:
        """Log-density of each well, with its weight, ``[*batch, 2]``."""
        group, n = self.group, self.group.dim
        place = g.unsqueeze(g.ndim - len(group.element_shape))
        v = group.log(group.compose(group.inverse(self.centres), place))
        width, weight = torch.tensor(self.widths).to(v), torch.tensor(WEIGHTS).to(v)
        normal = -0.5 * v.square().sum(-1) / width**2 - n * (width * math.sqrt(2.0 * math.pi)).log()
        return (normal + weight.log() - log_volume(group, v)).nan_to_num(nan=-torch.inf, neginf=-torch.inf)

    def energy(self, y: Tensor) -> Tensor:
        """Minus the log-density at the inverse of restored data: of data that were the identity, at g."""
        return -self.log_parts(self.group.inverse(y)).logsumexp(-1)

    def within_first(self, g: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of exponential coordinates about the first centre, of elements that belong to it.

        Args:
            g: ``[*batch, m, *element_shape]``.
            weights: ``[*batch, m]``.

        Returns:
            Two tensors ``[*batch, n]``.
        """
        v = self.group.log(self.group.compose(self.group.inverse(self.centres[0]), g))
        first = self.log_parts(g).argmax(-1) == 0
        share = torch.where(first, weights, 0.0).unsqueeze(-1)
        share, v = share / share.sum(-2, keepdim=True), torch.where(share > 0.0, v, 0.0)
        mean = (share * v).sum(-2)
        return mean, (share * (v - mean.unsqueeze(-2)).square()).sum(-2).sqrt()

    def reference(self, temperature: float) -> tuple[Tensor, Tensor]:
        """Draws of wider wells, ``[m, *element_shape]``, and the logarithms of their importance weights."""
        group, generator = self.group, torch.Generator().manual_seed(1)
        wide = Wells(group, self.centres, tuple(1.1 * math.sqrt(temperature) * s for s in self.widths))
        label = torch.multinomial(torch.tensor(WEIGHTS), NUM_REFERENCE, True, generator=generator)
        z = torch.randn(NUM_REFERENCE, group.dim, generator=generator, dtype=torch.float64)
        v = torch.tensor(wide.widths, dtype=torch.float64)[label, None] * z
        g = group.compose(self.centres[label], group.exp(v))
        back = (group.log(group.exp(v)) - v).abs().amax(-1) < 1e-6
        gain = self.log_parts(g).logsumexp(-1) / temperature - wide.log_parts(g).logsumexp(-1)
        return g, torch.where(back, gain, -torch.inf)

    def truth(self, temperature: float) -> tuple[float, float]:
        """Weight of the first well, and the logarithm of the evidence."""
        return self.averages(*self.reference(temperature))

    def averages(self, g: Tensor, gain: Tensor) -> tuple[float, float]:
        """Weight of the first well, and the logarithm of the evidence, from `reference`."""
        first = self.log_parts(g).argmax(-1) == 0
        return float(gain.softmax(0)[first].sum()), float(gain.logsumexp(0)) - math.log(NUM_REFERENCE)


def problems() -> dict[str, Wells]:
    """The kept problems by name."""
    turn = [1.0]
    return {
        "SE(2), equal widths": Wells.apart(SE(2), turn + 2 * [0.0], 2.0, (0.1, 0.1)),
        "SE(2), widths 1 : 2": Wells.apart(SE(2), turn + 2 * [0.0], 2.0, (0.1, 0.2)),
        "Similarity(2)": Wells.apart(Similarity(2), turn + 3 * [0.0], 2.0, (0.1, 0.1)),
        "SO(3)": Wells.apart(SO(3), turn + 2 * [0.0], 2.0, (0.1, 0.2)),
        "Aff(2)": Wells.apart(Affine(2), [0.0, -1.0, 1.0, 0.0, 0.3, 0.0], 2.0, (0.1, 0.15)),
        "heat": Wells.apart(HeatSymmetry(1.0), [0.0, 0.2, 0.2, 1.0, 1.0, 0.5], 2.0, (0.1, 0.15)),
    }


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="part of the name of a problem", default="")
    parser.add_argument("--temperatures", type=float, nargs="*", default=TEMPERATURES)
    arguments = parser.parse_args()
    print(
        "problem, temperature | weight: truth, mean, sd | evidence: mean error, sd | within the first well, in "
        "deviations: worst error of the mean, of the deviation | efficiency | trusted | evidence of those: mean error "
        "| seconds"
    )
    for name, wells in problems().items():
        if arguments.only not in name:
            continue
        for temperature in arguments.temperatures:
            g, gain = wells.reference(temperature)
            weight, evidence = wells.averages(g, gain)
            mean, deviation = wells.within_first(g, gain.softmax(0))
            evidence -= sum_over_compact(wells.group, log_haar_volume)  # of the measure of evidences
            sampler = PosteriorSampler(LeftTranslation(wells.group), wells.energy, temperature=temperature)
            data = wells.group.identity(NUM_DATA, dtype=torch.float64)
            start = time.perf_counter()
            sample = sampler(data, generator=torch.Generator().manual_seed(0))
            seconds = time.perf_counter() - start
            used = sample.energy_evaluations + sample.gradient_evaluations
            assert used <= 2000, used
            first = wells.log_parts(sample.elements).argmax(-1) == 0
            found = torch.where(first, sample.weights, 0.0).sum(-1)
            error = sample.log_evidence - evidence
            means, deviations = wells.within_first(sample.elements, sample.weights)
            met = torch.isfinite(means).all(-1)  # runs that have met the well
            off = ((means[met].mean(0) - mean) / deviation).abs().max()
            spread = (deviations[met].mean(0) / deviation - 1.0).abs().max()
            print(
                f"{name}, {temperature:g} | {weight:.3f} {found.mean():.3f} {found.std():.3f} | "
                f"{error.mean():.3f} {error.std():.3f} | {off:.3f} {spread:.3f} | "
                f"{sample.effective_sample_size.mean() / 256:.2f} | "
                f"{int(sample.trusted.sum())} | {error[sample.trusted].mean():.3f} | {seconds:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
