"""Typed errors, whose messages say what was expected and what was given."""

from __future__ import annotations

__all__ = [
    "AlgebraError",
    "CheckpointError",
    "ConfigurationError",
    "DomainError",
    "NonFiniteError",
    "ShapeError",
    "TrivgeoError",
]


class TrivgeoError(ValueError):
    """Base class of every error that trivgeo raises for bad input."""


class ShapeError(TrivgeoError):
    """A tensor has the wrong shape, or shapes do not broadcast."""


class DomainError(TrivgeoError):
    """A value lies outside the domain on which an operation is defined."""


class NonFiniteError(DomainError):
    """Data hold NaN or infinity where finite numbers are needed."""


class AlgebraError(TrivgeoError):
    """Structure constants do not define a Lie algebra, or a computation with one fails."""


class ConfigurationError(TrivgeoError):
    """Objects do not fit together, or a setting is out of range."""


class CheckpointError(TrivgeoError):
    """A checkpoint cannot be read, or does not fit the model."""
