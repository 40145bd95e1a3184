"""Point symmetries of differential equations, found exactly, and how many there are; and conservation laws.

``python -m trivgeo.symmetry "u_t + u*u_x = 0.1*u_xx"`` prints a report.

SymPy and python-flint are imported on first use.
"""

from trivgeo.symmetry.api import (
    conservation_laws,
    find_symmetries,
    special_functions,
    special_values,
    symmetries_from_data,
    verify,
)

__all__ = [
    "conservation_laws",
    "find_symmetries",
    "special_functions",
    "special_values",
    "symmetries_from_data",
    "verify",
]
