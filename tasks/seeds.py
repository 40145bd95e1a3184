"""Random generators from several integers, and lists of seeds."""

from collections.abc import Sequence

import numpy as np
import torch

from trivgeo.errors import ConfigurationError


def generator_of(*key: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that is a function of the key alone; keys that differ give independent numbers.

    Args:
        key: integers of at least 0, such as a seed and the number of a batch.
        device: of the generator.
    """
    # the CPU generator takes 32 bits; SeedSequence mixes the key into them, and does not see zeros at its end
    state = int(np.random.SeedSequence((len(key), *key)).generate_state(1)[0])
    return torch.Generator(device).manual_seed(state)


def check_seeds(seeds: Sequence[int]) -> list[int]:
    """Return the seeds if there are some and none of them twice, else raise `ConfigurationError`."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigurationError(f"seeds: expected distinct seeds, got {list(seeds)}")
    return list(seeds)
