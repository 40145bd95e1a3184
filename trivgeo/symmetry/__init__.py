"""Point symmetries of partial differential equations, found exactly with SymPy.

SymPy is imported on first use; ``pip install 'trivgeo[symbolic]'``.
"""

from trivgeo.symmetry.api import find_symmetries, verify

__all__ = ["find_symmetries", "verify"]
