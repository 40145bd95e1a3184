"""Generative models of elements of groups, and classical baselines fitted on the same split."""
