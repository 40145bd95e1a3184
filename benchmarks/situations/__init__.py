"""Situations in which verdicts are tested; see `benchmarks.verdicts`."""
