"""Timings of trivgeo; run by ``python -m benchmarks``."""
