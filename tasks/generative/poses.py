"""The test of models of the poses of five solids, given pictures."""

from pathlib import Path

import torch
from torch import Tensor

from trivgeo.checks import check_choice, check_count, check_positive
from trivgeo.generative import GroupDiffusion
from trivgeo.groups import SO

from ..problems import Request
from ..results import ShardedTest
from ..seeds import generator_of
from .figures import draw_rows
from .fitting import POSITION_KINDS, check_multiple, seeded_training, steps_of, timed, training_settings
from .pose_networks import BodyFrameNetwork, PictureEncoder
from .solids import UNIFORM, Solid, draw_pictures, render, solids

_SAMPLING_BATCH_SIZE = 2500  # samples that are drawn at once


class PoseTest(ShardedTest):
    """One model of the poses of all five solids, given a picture, in the measures of SYMSOL (Murphy et al. 2021).

    Spread is the mean angle of samples from the nearest pose that looks like the true one. The log-likelihood is that
    of a true pose, with uniform at -2.29. The least share is that of the pose that is found least, times the number of
    poses that look the same, averaged over pictures: one where all are found equally often; for a finite number of
    samples the least of equal shares is below one, which the share of a perfect model tells.

    Args:
        kind: "diffusion" or "flow", see `GroupDiffusion`.
        train: pictures of each solid for training.
        test: pictures of each solid for the test.
        samples: number of samples of a picture.
        size: pixels along a side, see `PictureEncoder`.
        steps: see `GroupDiffusion.fit`, also for `seconds`, `batch_size` and `learning_rate`.
        num_draws: see `GroupDiffusion`.
        evaluations: evaluations of the network for a sample.
        tolerance: see `GroupDiffusion.log_prob`.
        width: width of the `BodyFrameNetwork`.
        channels: number of channels of the `PictureEncoder`, a multiple of sixteen.
        file: file to which the model is written; ``None`` for nowhere.
        figure: see `tasks.images.inversion.ImageInversion`; given pictures, and pictures of two samples of each.

    Raises:
        ConfigurationError: a number is out of range, or the kind is no such.
    """

    gains = ("log-likelihood", "median log-likelihood", "least share", "poses found")

    def __init__(
        self,
        kind: str = "flow",
        train: int = 10_000,
        test: int = 20,
        samples: int = 600,
        size: int = 32,
        steps: int = 100_000,
        seconds: float = 1500.0,
        batch_size: int = 256,
        learning_rate: float = 2e-3,
        num_draws: int = 4,
        evaluations: int = 60,
        tolerance: float = 1e-3,
        width: int = 256,
        channels: int = 128,
        file: str | None = None,
        figure: str | None = "figure.png",
    ) -> None:
        super().__init__()
        self.kind, self.file = check_choice("kind", kind, POSITION_KINDS), file
        self.figure = figure
        self.sizes = check_count("train", train, 2), check_count("test", test)
        self.samples, self.size = check_count("samples", samples), check_multiple("size", size, 8)
        self.training_settings = training_settings(steps, seconds, batch_size, learning_rate=learning_rate)
        self.num_draws = check_count("num_draws", num_draws)
        self.evaluations = check_count("evaluations", evaluations, 2)
        self.tolerance = check_positive("tolerance", tolerance)
        self.width, self.channels = check_count("width", width), check_multiple("channels", channels, 16)

    def test_step(self, batch: Request, index: int) -> None:
        """One training; the metrics of all solids, and their means, in one row."""
        if not self.is_due(batch, index):
            return
        known, generator = solids(), generator_of(batch.seed)
        train, test = ([draw_pictures(solid, n, self.size, generator) for solid in known] for n in self.sizes)
        rotations, pictures = (torch.cat([x[part] for x in train]) for part in (0, 1))
        model, costs = timed(lambda: self._fitted(rotations, pictures, batch.seed))
        if self.file is not None:
            model.save(self.file)
        metrics: dict[str, float] = {}
        for solid, (truth, seen) in zip(known, test, strict=True):
            found = self._measures(model, solid, truth, seen, generator_of(batch.seed, 1))
            metrics |= {f"{name}, {solid.name}": value for name, value in found.items()}
        for name in ("spread, degrees", "log-likelihood"):
            metrics[name] = sum(metrics[f"{name}, {solid.name}"] for solid in known) / len(known)
        self.log("spread", metrics["spread, degrees"], batch_size=1)
        if self.writer is not None:
            row = {"seed": batch.seed, "case": 0, "metrics": metrics | costs, "samples": self.samples}
            self.writer.write([row])
            if self.figure is not None and index == 0:
                self._draw(self.writer.directory / self.figure, model, test)

    def _fitted(self, rotations: Tensor, pictures: Tensor, seed: int) -> GroupDiffusion:
        """Fit a model of poses given pictures."""
        with seeded_training(seed):
            network = BodyFrameNetwork(width=self.width)
            encoder = PictureEncoder(network.num_features, self.size, self.channels)
            model = GroupDiffusion(
                SO(3),
                self.kind,
                seed,
                condition=encoder,
                network=network,
                condition_dropout=0.0,
                num_draws=self.num_draws,
            ).to(self.device)
            return model.fit(rotations, pictures, **self.training_settings)

    def _draw(self, path: Path, model: GroupDiffusion, test: list[tuple[Tensor, Tensor]]) -> None:
        """Write a picture: two pictures of each solid, and below each the solid in two poses that are drawn for it."""
        seen = torch.cat([pictures[:2] for _, pictures in test])
        steps, generator = steps_of(model, self.evaluations), generator_of(0, 2)
        drawn = model.sample((2, len(seen)), condition=_repeated(seen, 2), generator=generator, steps=steps).cpu()
        bodies = [solid for solid, (_, pictures) in zip(solids(), test, strict=True) for _ in pictures[:2]]
        rows = [torch.cat([render(b, g[None], self.size) for b, g in zip(bodies, row, strict=True)]) for row in drawn]
        draw_rows(path, ["given", "sample", "sample"], [seen.cpu(), *rows])

    def _measures(
        self, model: GroupDiffusion, solid: Solid, truth: Tensor, seen: Tensor, generator: torch.Generator
    ) -> dict[str, float]:
        """The measures of one solid, on pictures `seen` of true poses."""
        steps = steps_of(model, self.evaluations)
        drawn = [
            model.sample(
                (self.samples, len(part)), condition=_repeated(part, self.samples), generator=generator, steps=steps
            )
            for part in seen.split(max(1, _SAMPLING_BATCH_SIZE // self.samples))
        ]
        found = torch.cat(drawn, 1).cpu()  # [samples, pictures, 3, 3]
        angles = solid.angle(found, truth)
        logs = model.log_prob(truth, condition=seen, tolerance=self.tolerance).cpu().double() + UNIFORM
        metrics = {
            "spread, degrees": float(angles.nanmean()),
            "median, degrees": float(angles.nanmedian()),
            "log-likelihood": float(logs.mean()),
            "median log-likelihood": float(logs.median()),
            "lost samples": float(angles.isnan().sum()),
        }
        if solid.symmetries is not None:
            count = len(solid.symmetries)
            counts = _counts(solid.nearest(found, truth), count)
            even = _counts(torch.randint(count, found.shape[:2], generator=generator), count)
            metrics["least share of a pose"] = count / self.samples * float(counts.amin(-1).double().mean())
            metrics["least share of a perfect model"] = count / self.samples * float(even.amin(-1).double().mean())
            metrics["poses found"] = float((counts > 0).double().mean())
        return metrics


def _repeated(pictures: Tensor, count: int) -> Tensor:
    """The pictures `[b, 1, size, size]` repeated for each of ``count`` samples, `[count, b, 1, size, size]`."""
    return pictures.expand(count, *pictures.shape)


def _counts(numbers: Tensor, count: int) -> Tensor:
    """How often each number occurs in the columns of `numbers` `[n, b]`, `[b, count]`."""
    return (numbers.unsqueeze(-1) == torch.arange(count)).sum(0)
