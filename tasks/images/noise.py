"""Forward noise of the group acting on images: what the noise does to them, along its time."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from trivgeo.actions import ImageWarp
from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError
from trivgeo.sde import NoiseKernel, NoiseStreams, Schedule

from ..files import write_picture
from ..results import ShardedTest
from .figures import draw_image
from .testsets import ImageProblems


class ForwardNoise(ShardedTest):
    r"""Clean images moved by the noise :math:`w_t` of a diffusion on the group, one path for each image.

    The metrics are the shares of the ink, the sum of all pixels over that of the clean image, at every time: ink that
    leaves the frame is lost, and a larger image has more.

    Args:
        action: action of the group on images.
        schedule: the noise.
        steps: number of steps of a path.
        times: times of the picture, of which the first is 0 if the clean image is to be shown.
        shown: images of the picture.
        figure: see `tasks.images.inversion.ImageInversion`.

    Raises:
        ConfigurationError: no times, or a count below one.
    """

    def __init__(
        self,
        action: ImageWarp,
        schedule: Schedule,
        steps: int = 50,
        times: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        shown: int = 6,
        figure: str | None = "figure.png",
    ) -> None:
        super().__init__()
        self.action = action
        self.kernel = NoiseKernel(action.group, schedule, steps)
        self.times = sorted(times)
        if not self.times:
            raise ConfigurationError("times: expected at least one, got none")
        self.shown = check_count("shown", shown)
        self.figure = figure

    def moved(self, images: Float[Tensor, "b c h w"], generator: torch.Generator) -> Float[Tensor, "t b c h w"]:
        """The images at every time, along one path of the noise each."""
        paths = self.kernel.sample_paths(
            len(images), times=self.times, generator=generator, dtype=images.dtype, device=images.device
        )
        return torch.stack([self.action(w, images) for w in paths.elements])

    def test_step(self, batch: ImageProblems, index: int) -> None:
        """All images of a batch."""
        if not self.is_due(batch, index):
            return
        clean = batch.clean
        with torch.no_grad():
            moved = self.moved(clean, NoiseStreams(batch.place.to(self.device), batch.seed))
        ink = (moved.flatten(2).sum(-1) / clean.flatten(1).sum(-1)).T
        names = [f"ink at t = {t:g}" for t in self.times]
        rows = [
            {"seed": batch.seed, "case": place, "metrics": dict(zip(names, shares, strict=True)), "label": label}
            for place, shares, label in zip(batch.place.tolist(), ink.tolist(), batch.label.tolist(), strict=True)
        ]
        self.log("ink", ink[:, -1].mean(), batch_size=len(rows))
        writer = self.writer
        if writer is not None:
            writer.write(rows, batch.number)
            if self.figure is not None and index == 0:
                draw_noise(writer.directory / self.figure, moved[:, : self.shown], self.times)


def draw_noise(path: Path, moved: Float[Tensor, "t b c h w"], times: Sequence[float]) -> None:
    """A line for each image, a column for each time."""
    count, shown = moved.shape[:2]
    figure = Figure(figsize=(1.0 * count, 1.05 * shown + 0.3), layout="constrained")
    axes = figure.subplots(shown, count, squeeze=False)
    for line in range(shown):
        for column, t in enumerate(times):
            draw_image(axes[line, column], moved[column, line])
            axes[line, column].set_xticks([])
            axes[line, column].set_yticks([])
            if line == 0:
                axes[line, column].set_title(f"t = {t:g}", fontsize=9, pad=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_picture(figure, path, 100)
