"""The seeds of a sampling task, one batch each."""

from trivgeo.checks import check_count

from ..problems import Problems, Request


class SampleRequests(Problems):
    """Asks for samples, once for each seed.

    Args:
        seeds: one run for each.
        count: samples a run.

    Raises:
        ConfigurationError: no seeds, repeated ones, or a count below one.
    """

    def __init__(self, seeds: list[int], count: int = 10_000) -> None:
        super().__init__(seeds)
        self.count = check_count("count", count)

    def batch(self, seed: int, number: int) -> Request:
        return Request(seed, number, self.count)
