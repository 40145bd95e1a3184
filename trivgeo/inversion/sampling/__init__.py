"""Sampling with weights: mixtures on groups, sequential Monte Carlo, ascents and importance sampling."""
