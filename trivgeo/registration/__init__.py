"""Registration: the transformation that takes one photograph, or one cloud of points, to another."""

from trivgeo.registration.record import Registration
from trivgeo.registration.register import register

__all__ = ["Registration", "register"]
