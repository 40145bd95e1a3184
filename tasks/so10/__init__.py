"""Sampling on SO(10): the synthetic task of the published evaluation."""
