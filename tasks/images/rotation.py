"""The posterior of a rotation, exactly on a grid of angles: its energy and density along the noise, and samples."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from trivgeo.actions import ImageWarp
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SO
from trivgeo.inversion import InverseProblem, ReverseDiffusionSearch
from trivgeo.sde import NoiseStreams, Schedule

from ..files import write_picture
from ..results import ShardedTest
from .energies import NetworkEnergy
from .figures import draw_image
from .testsets import ImageProblems
from .transformations import RandomTransformations


class UniformRotation(RandomTransformations):
    """Rotations by an angle drawn uniformly from the circle."""

    def __init__(self) -> None:
        self.group: SO = SO(2)

    def draw(self, images: Float[Tensor, "b c h w"], generators: Sequence[torch.Generator]) -> Float[Tensor, "b 2 2"]:
        turns = torch.stack([torch.rand(1, generator=g, dtype=torch.float64) for g in generators])
        return self.group.exp(2 * math.pi * turns)


_MAX_EVALUATIONS = 256
"""Images whose energies are evaluated at once: larger tensors are mapped anew each time, which doubles the time."""


class RotationPosterior(ShardedTest):
    r"""Energy and density of the angle of rotated digits at several times of the noise, with TIED's samples.

    On the circle the density of :math:`g_t = g_0 w_t` is a convolution with the wrapped normal distribution of variance
    :math:`\int_0^t \gamma^2`, exact by Fourier series, so the samples are compared with the truth: the total variation
    between their histogram and the exact probabilities of its bins.

    Args:
        energy: an energy of images.
        schedule: the noise.
        steps: number of reverse steps.
        num_mc: number of noise samples of one score.
        num_samples: samples of each image.
        temperature: the density is that of energy / temperature.
        angles: number of angles of the grid, a multiple of ``bins``.
        bins: number of bins of the histogram.
        times: times at which the picture is drawn, at least one.
        figure: file name of the picture in the results' directory.

    Raises:
        ConfigurationError: a number is out of range.
    """

    def __init__(
        self,
        energy: NetworkEnergy,
        schedule: Schedule,
        steps: int = 100,
        num_mc: int = 16,
        num_samples: int = 1000,
        temperature: float = 1.0,
        angles: int = 360,
        bins: int = 36,
        times: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
        figure: str = "figure.png",
    ) -> None:
        super().__init__()
        self.energy = energy
        self.action = ImageWarp(SO(2))
        self.schedule = schedule
        sampler = ReverseDiffusionSearch(self.action, energy, schedule, steps, num_mc, num_samples, temperature, None)
        self.inverter = sampler.replace(max_evaluations=_MAX_EVALUATIONS)
        self.temperature = check_positive("temperature", temperature)
        self.angles = check_count("angles", angles)
        self.bins = check_count("bins", bins)
        if angles % bins:
            raise ConfigurationError(f"angles: expected a multiple of bins = {bins}, got {angles}")
        self.times = list(times)
        if not self.times:
            raise ConfigurationError("times: expected at least one, got none")
        self.figure = figure

    def test_step(self, batch: ImageProblems, index: int) -> None:
        """All images of a batch."""
        if not self.is_due(batch, index):
            return
        grid = self.grid.to(batch.image)
        exact_density, *drawn = self.exact(batch.image, [0.0, *self.times])
        density = torch.stack(drawn)
        generator = NoiseStreams(batch.place.to(self.device), batch.seed)
        result = self.inverter(batch.image, generator=generator)
        sampled = self.action.group.log(result.elements).squeeze(-1).remainder(2 * math.pi)
        width = 2 * math.pi / self.bins
        histogram = torch.stack(
            [torch.bincount((row / width).long() % self.bins, minlength=self.bins) for row in sampled]
        )
        share = histogram / histogram.sum(-1, keepdim=True)
        exact = self.binned(exact_density)
        variation = 0.5 * (share - exact).abs().sum(-1)
        truth = self.action.group.log(batch.element).squeeze(-1).remainder(2 * math.pi)
        # what a sample of this size from the exact distribution would show: the expectation of |binomial - mean|,
        # nearly normal
        floor = 0.5 * (2 * exact * (1 - exact) / (math.pi * sampled.shape[1])).sqrt().sum(-1)
        rows = [
            {
                "seed": batch.seed,
                "case": place,
                "metrics": {"total variation": tv, "total variation of an exact sample": least},
                "label": label,
                "angle": angle,
            }
            for place, tv, least, label, angle in zip(
                batch.place.tolist(),
                variation.tolist(),
                floor.tolist(),
                batch.label.tolist(),
                truth.tolist(),
                strict=True,
            )
        ]
        self.log("total_variation", variation.mean(), batch_size=len(rows), prog_bar=True)
        writer = self.writer
        if writer is not None:
            writer.write(rows, batch.number)
            if self.figure is not None and index == 0:
                draw_posterior(writer.directory / self.figure, batch.image, grid, density, self.times, share, truth)

    @property
    def grid(self) -> Float[Tensor, " a"]:
        """The middles of equal arcs of the circle."""
        return (torch.arange(self.angles) + 0.5) * (2 * math.pi / self.angles)

    def exact(self, images: Float[Tensor, "b c h w"], times: Sequence[float] | None = None) -> Float[Tensor, "t b a"]:
        """Densities of the angle at some times, by default those of the picture, with respect to the arc length."""
        group = self.action.group
        elements = group.exp(self.grid.to(images).unsqueeze(-1)).expand(len(images), -1, -1, -1)
        posterior = InverseProblem(self.action, self.energy).given(images)
        with torch.no_grad():
            columns = [posterior.energies(part) for part in elements.split(max(1, 1024 // len(images)), 1)]
        probability = torch.softmax(-torch.cat(columns, 1).double() / self.temperature, -1)
        waves = torch.fft.rfft(probability, dim=-1)
        k = torch.arange(waves.shape[-1], dtype=torch.float64, device=images.device)
        densities = [
            torch.fft.irfft(waves * torch.exp(-0.5 * k**2 * self.schedule.variance(0.0, t)), n=self.angles, dim=-1)
            for t in (self.times if times is None else times)
        ]
        return (torch.stack(densities).clamp(min=0) * (self.angles / (2 * math.pi))).to(images.dtype)

    def binned(self, density: Float[Tensor, "b a"]) -> Float[Tensor, "b bins"]:
        """Probabilities of the bins of the histogram."""
        return density.unflatten(-1, (self.bins, -1)).sum(-1) * (2 * math.pi / self.angles)


def draw_posterior(
    path: Path,
    images: Float[Tensor, "b c h w"],
    grid: Float[Tensor, " a"],
    density: Float[Tensor, "t b a"],
    times: Sequence[float],
    share: Float[Tensor, "b bins"],
    truth: Float[Tensor, " b"],
) -> None:
    """For each image: the image, its energy along the noise, and its density with a histogram of the samples.

    Args:
        path: the file.
        images: rotated digits; six at most are drawn.
        grid: angles.
        density: density at each time.
        times: the times.
        share: share of the samples in each bin.
        truth: the angles by which the images were turned.
    """
    shown = min(6, len(images))
    figure = Figure(figsize=(2.9 * shown, 6.4), layout="constrained")
    axes = figure.subplots(3, shown, squeeze=False, gridspec_kw={"height_ratios": [0.8, 1, 1]})
    degrees = (grid.cpu() * (180 / math.pi)).numpy()
    bins = share.shape[1]
    for i in range(shown):
        draw_image(axes[0, i], images[i])
        axes[0, i].set_axis_off()
        for j, t in enumerate(times):
            colour = (0.1 + 0.75 * j / max(1, len(times) - 1),) * 3 if j else "tab:red"
            energy = -density[j, i].clamp(min=1e-12).log().cpu().numpy()
            axes[1, i].plot(degrees, energy, color=colour, label=f"t = {t:g}")
            axes[2, i].plot(degrees, density[j, i].cpu().numpy(), color=colour)
        axes[2, i].bar(
            ((torch.arange(bins) + 0.5) * (360 / bins)).numpy(),
            (share[i].cpu() * bins / (2 * math.pi)).numpy(),
            width=360 / bins,
            color="tab:blue",
            alpha=0.35,
            label="samples",
        )
        for row in (1, 2):
            axes[row, i].axvline(float(truth[i]) * 180 / math.pi, color="tab:green", linestyle=":", label="true angle")
            axes[row, i].set_xlim(0, 360)
            axes[row, i].set_xticks([0, 90, 180, 270, 360])
        axes[1, i].set_ylim(top=12)
        axes[2, i].set_xlabel("angle (degrees)")
    axes[1, 0].set_ylabel("energy")
    axes[2, 0].set_ylabel("density")
    axes[1, 0].legend(fontsize=7)
    axes[2, 0].legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_picture(figure, path, 110)
