"""Registration: the transformation that takes one photograph, or one cloud of points, to another."""

from trivgeo.inversion.registration.record import Registration

__all__ = ["Registration"]
