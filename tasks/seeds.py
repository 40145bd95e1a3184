"""Random generators from several integers, and lists of seeds."""

from collections.abc import Sequence

from trivgeo._random import keyed
from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError

generator_of = keyed
"""A generator that is a function of integers alone."""


def check_seeds(seeds: Sequence[int]) -> list[int]:
    """Return the seeds if there are some, of 63 bits, none of them twice, else raise `ConfigurationError`."""
    for seed in seeds:
        check_count("seeds", seed, 0)
        if seed >= 2**63:  # generators and tensors hold no more
            raise ConfigurationError(f"seeds: expected integers below 2^63, got {seed}")
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigurationError(f"seeds: expected distinct seeds, got {list(seeds)}")
    return list(seeds)
