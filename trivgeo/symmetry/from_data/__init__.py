"""Symmetries of sampled solutions, functions and solution operators."""
