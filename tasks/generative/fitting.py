"""What the tests of generative models share: settings of a training, its seed, and its costs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.generative import GroupDiffusion
from trivgeo.generative.paths import PATHS

KINDS = tuple(PATHS)
"""Kinds of models."""

POSITION_KINDS = ("diffusion", "flow")
"""Kinds whose networks see no momenta, which the networks of tests that have their own do not take."""


def training_settings(steps: int, seconds: float, batch_size: int, **others: float) -> dict[str, Any]:
    """Arguments of `GroupDiffusion.fit`, checked; others are positive numbers, such as `learning_rate`."""
    return {
        "steps": check_count("steps", steps),
        "seconds": check_positive("seconds", seconds),
        "batch_size": check_count("batch_size", batch_size),
        **{name: check_positive(name, value) for name, value in others.items()},
    }


def check_multiple(name: str, value: int, factor: int) -> int:
    """Return `value` if it is a positive multiple of `factor`; the message of the error calls it `name`.

    Raises:
        ConfigurationError: `value` is no integer, not positive, or no multiple.
    """
    if check_count(name, value) % factor:
        raise ConfigurationError(f"{name}: expected a multiple of {factor}, got {value}")
    return value


@contextmanager
def seeded_training(seed: int) -> Iterator[None]:
    """Context in which a test, elsewhere without gradients, trains networks that are a function of the seed."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
        torch.manual_seed(seed)
        yield


def timed(fit: Callable[[], GroupDiffusion]) -> tuple[GroupDiffusion, dict[str, float]]:
    """Call ``fit``, and return the model with metrics of its cost."""
    start, processor_start = time.perf_counter(), time.process_time()
    model = fit()
    assert model.fitted is not None
    return model, {
        "seconds of training": time.perf_counter() - start,
        "seconds of training of the processor": time.process_time() - processor_start,
        "steps of training": float(model.fitted.num_steps),
    }


def steps_of(model: GroupDiffusion, evaluations: int) -> int:
    """Number of steps of `GroupDiffusion.sample` with ``evaluations`` of the network; a step of a flow takes two."""
    return evaluations // 2 if model.kind == "flow" else evaluations
