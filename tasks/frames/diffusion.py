"""Training of a score of the frames, and test of its samples against frames of held-out digits."""

import copy
import functools
import math
import time
from typing import Any

import torch
from jaxtyping import Float
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from trivgeo._devices import on_device
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import CheckpointError, ConfigurationError
from trivgeo.sde import forward_noising, solve, uniform_grid
from trivgeo.sde.likelihood import ExactDivergence
from trivgeo.sde.noise import noise_with_target
from trivgeo.sde.processes import reverse_process
from trivgeo.sde.solvers import GeometricHeun
from trivgeo.training import move_average, versions

from ..checkpoints import load_checkpoint, save_checkpoint, trained_path
from ..problems import Request
from ..results import ShardedTest
from ..seeds import generator_of
from ..training import check_export
from .digits import FrameSplit
from .figures import draw_frames
from .group import COORDINATES
from .network import FrameScore
from .statistics import energy_distance, kolmogorov_smirnov, mean_embedding_distance

_MIN_TIME = 0.003  # smallest time that training draws, of [0, 1]
_NUM_NOISE_FACTORS = 6  # exponentials whose product is one noise sample
_IMPLICIT_TIMES = (0.1, 0.3, 0.6)  # times at which implicit and denoising loss are compared


class FrameDiffusion(ShardedTest):
    """A generative model on `frame_group`: denoising score matching, then the reverse diffusion.

    The target of the loss depends on the noise alone, so one set of noise serves several batches of frames. The score
    that is kept is an average over the steps of training. Samples start from normal coordinates with the mean and
    covariance of the training frames, noised up to t = 1.

    Args:
        scale: the basis: about the spread of the data in each direction.
        schedule: the noise, see `FrameScore`.
        checkpoint: trained weights for a test, a name of the manifest or a path.
        width: width of the network.
        depth: number of hidden layers of the network.
        learning_rate: rate at the start; a cosine takes it to zero.
        levels: times of one step, one in each part of [0, 1].
        reuse: steps served by one set of noise.
        decay: decay of the average of the weights.
        steps: number of steps of the reverse diffusion.
        seed: seed of the initial weights and the noise.
        export: see `tasks.training.NetworkTraining`.
        figure: see `tasks.images.inversion.ImageInversion`.
    """

    def __init__(
        self,
        scale: list[float],
        schedule: tuple[float, float],
        checkpoint: str,
        width: int = 128,
        depth: int = 3,
        learning_rate: float = 2e-3,
        levels: int = 4,
        reuse: int = 8,
        decay: float = 0.999,
        steps: int = 100,
        seed: int = 0,
        export: str | None = None,
        figure: str | None = "figure.png",
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.network = FrameScore(scale, schedule, width, depth)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.group, self.schedule = self.network.group, self.network.schedule
        self.register_buffer("scale", torch.tensor(scale), persistent=False)
        self.scale: Tensor
        self.checkpoint = checkpoint
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.levels = check_count("levels", levels)
        self.reuse = check_count("reuse", reuse)
        if not 0.0 <= decay < 1.0:
            raise ConfigurationError(f"decay: expected a number in [0, 1), got {decay}")
        self.decay = decay
        self.steps = check_count("steps", steps)
        self.seed = seed
        self.export = export
        self.figure = figure
        self._noise: list[tuple[float, Tensor, Tensor]] = []

    # Training ------------------------------------------------------------------------------------------------

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW with a cosine."""
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=self.learning_rate)
        steps = int(self.trainer.estimated_stepping_batches)
        rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def on_fit_start(self) -> None:
        """Check the path of the export, and fit mean and covariance of the training frames.

        Raises:
            ConfigurationError: see `check_export`.
        """
        if self.export is not None:
            check_export(self.export)
        self.average.fit_start(self._frames().train)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        """``V_t |s(g_t, t) - T|^2``, one part of the batch at each time."""
        parts = batch.chunk(self.levels)
        if not self._noise or self.global_step % self.reuse == 0:
            self._draw_noise(parts)
        losses = []
        for part, (t, w, target) in zip(parts, self._noise, strict=True):
            score = self.network(self.group.compose(part, w[: len(part)]), t)
            losses.append(self.schedule.variance(0.0, t) * ((score - target[: len(part)]) ** 2).sum(-1).mean())
        loss = torch.stack(losses).mean()
        self.log("loss", loss.detach(), prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Tensor, batch_idx: int) -> None:
        """Move the average of the weights."""
        move_average(self.average, self.network, self.global_step, self.decay)

    def on_fit_end(self) -> None:
        """Export the score."""
        if self.export is None or not self.trainer.is_global_zero:
            return
        metadata = {"steps": self.trainer.global_step, "seed": self.seed, "versions": versions()}
        group = {"group": self.group.fingerprint()}
        save_checkpoint(self.average, trained_path(self.export), metadata, group)

    def _draw_noise(self, parts: tuple[Tensor, ...]) -> None:
        generator = generator_of(self.seed, self.global_step)
        shifts = torch.rand(self.levels, generator=generator).tolist()
        self._noise = []
        for level, (part, shift) in enumerate(zip(parts, shifts, strict=True)):
            t = max(_MIN_TIME, (level + shift) / self.levels)
            variance = torch.full((len(part),), self.schedule.variance(0.0, t), dtype=part.dtype)
            w, target, _ = noise_with_target(self.group, variance, steps=_NUM_NOISE_FACTORS, generator=generator)
            self._noise.append((t, w.to(part.device), target.to(part.device)))

    # Test ----------------------------------------------------------------------------------------------------

    def on_test_start(self) -> None:
        """Read the trained weights.

        Raises:
            CheckpointError: there are none, or they are of another network or group.
        """
        loaded = load_checkpoint(FrameScore, self.checkpoint)
        found, expected = loaded.network.architecture, self.average.architecture
        if found != expected:
            raise CheckpointError(f"{self.checkpoint}: expected weights of this network {expected}, got {found}")
        if loaded.score is None or not self.group.matches(loaded.score["group"]):
            raise CheckpointError(f"{self.checkpoint}: expected a score on {self.group!r}, got one on another group")
        self.average.load_state_dict(loaded.network.state_dict())

    def test_step(self, batch: Request, index: int) -> None:
        """Compare as many samples as there are test frames with these, and training frames likewise."""
        if not self.is_due(batch, index):
            return
        frames = self._frames()
        generator = generator_of(batch.seed, batch.number)
        test, number = frames.test, len(frames.test)
        real = frames.train[torch.randperm(len(frames.train), generator=generator)[:number]]
        start = time.perf_counter()
        with torch.no_grad():
            samples = self.sample(number, generator)
            seconds = time.perf_counter() - start
            uncorrected = self.sample(number, generator, modular_drift=False)
            fitted = self.average.start(number, generator)
        bandwidth = float(torch.cdist(test[: number // 2] / self.scale, test[number // 2 :] / self.scale).median())
        y = test.double() / self.scale
        metrics = {}
        for name, rows in (
            ("generated", samples),
            ("training digits", real),
            ("without the modular drift", uncorrected),
            ("normal coordinates", fitted),
        ):
            metrics[f"MMD of {name}"] = mean_embedding_distance(rows.double() / self.scale, y, bandwidth)
        for name, rows in (("generated", samples), ("training digits", real)):
            x = rows.double() / self.scale
            metrics[f"energy distance of {name}"] = energy_distance(x, y)
            for i, coordinate in enumerate(COORDINATES):
                metrics[f"KS of {coordinate}, {name}"] = kolmogorov_smirnov(x[:, i], y[:, i])
        metrics["MMD, generated / training digits"] = metrics["MMD of generated"] / metrics["MMD of training digits"]
        metrics["implicit against denoising loss, standard errors"] = self._loss_agreement(frames.test, generator)
        self.log("mmd_ratio", metrics["MMD, generated / training digits"], batch_size=1)
        writer = self.writer
        if writer is not None:
            writer.write([{"seed": batch.seed, "case": 0, "metrics": metrics, "samples": number, "seconds": seconds}])
            if self.figure is not None and index == 0:
                draw_frames(writer.directory / self.figure, samples.cpu(), test.cpu())

    def sample(self, number: int, generator: torch.Generator, modular_drift: bool = True) -> Float[Tensor, "n 5"]:
        """Generated elements."""
        start = forward_noising(
            self.group, self.schedule, self.average.start(number, generator), steps=20, generator=generator
        )
        process = reverse_process(self.group, self.schedule, self.average, modular_drift=modular_drift)
        grid, stepper = uniform_grid(self.steps, 1.0, 0.0), GeometricHeun(skip_zero=True)
        return solve(process, start, grid, stepper=stepper, generator=generator).final

    def _loss_agreement(self, clean: Tensor, generator: torch.Generator) -> float:
        """Largest difference of implicit and denoising loss, whose expectations agree, in standard errors.

        The largest of three times. The difference is taken in ten parts of the same noised frames.
        """
        worst = 0.0
        for t in _IMPLICIT_TIMES:
            variance = clean.new_full((len(clean),), self.schedule.variance(0.0, t))
            w, target, _ = noise_with_target(self.group, variance, steps=_NUM_NOISE_FACTORS, generator=generator)
            g = self.group.compose(clean, w)
            differences = []
            with torch.no_grad():
                for part, goal in zip(g.chunk(10), target.chunk(10), strict=True):
                    score, divergence = ExactDivergence()(self.group, functools.partial(self.average, t=t), part)
                    # the implicit loss |s|^2 + 2 div s minus the denoising loss |s|^2 - 2 s . T
                    differences.append(2.0 * (divergence + (score * goal).sum(-1)).mean())
            d = torch.stack(differences)
            worst = max(worst, abs(float(d.mean())) / (float(d.std()) / math.sqrt(len(d))))
        return worst

    def _frames(self) -> FrameSplit:
        frames: FrameSplit = self.trainer.datamodule.frames  # type: ignore[attr-defined]
        return on_device(frames, self.device)
