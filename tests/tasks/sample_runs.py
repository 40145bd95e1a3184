"""What the tests of the tasks share: shipped configurations, run on the digits that come with the code."""

from pathlib import Path

from lightning.pytorch.cli import LightningCLI
from torch import Tensor

from tasks.cli import main
from tasks.images.data import framed
from tasks.images.mnist import BundledSample

CONFIGS = Path(__file__).parents[2] / "tasks" / "configs"
DIGITS = BundledSample().format


def framed_digits(images: Tensor) -> Tensor:
    """Digits in their frame."""
    return framed(images, DIGITS.size)


def run_on_sample(subcommand: str, config: str, *settings: str, epochs: int = 2) -> LightningCLI:
    """Run a configuration that trains on digits, e.g. ``"mnist/vae"``, small and silent; keeps every epoch."""
    return main(
        [
            subcommand,
            f"--config={CONFIGS / config}.yaml",
            f"--trainer.max_epochs={epochs}",
            "--trainer.accelerator=cpu",
            "--trainer.log_every_n_steps=1",
            "--trainer.callbacks.init_args.save_top_k=-1",
            "--trainer.enable_progress_bar=false",
            "--trainer.enable_model_summary=false",
            "--data.source=tasks.images.mnist.BundledSample",
            "--data.validation=200",
            *settings,
        ]
    )
