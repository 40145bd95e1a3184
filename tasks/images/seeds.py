"""Random generators from several integers."""

import numpy as np
import torch


def generator_of(*key: int) -> torch.Generator:
    """A generator on the CPU that is a function of the key alone; keys that differ give independent numbers."""
    # the CPU generator takes 32 bits; SeedSequence mixes the key into them, and does not see zeros at its end
    return torch.Generator().manual_seed(int(np.random.SeedSequence((len(key), *key)).generate_state(1)[0]))
