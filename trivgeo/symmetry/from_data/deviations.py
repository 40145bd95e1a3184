"""How far data are from having a symmetry, in stated errors of the coefficients of the fitted equation."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import sympy as sp

from trivgeo.symmetry.determining.finder import left_sides
from trivgeo.symmetry.equations.unnamed_functions import with_symbols
from trivgeo.symmetry.equations.vector_fields import Symmetry
from trivgeo.symmetry.from_data.regression import FittedEquation

_NUM_POINTS = 40  # random places and derivatives at which the symmetry condition is evaluated
_RANK_TOLERANCE = 1e-8  # singular values below this share of the largest are rounding


def deviation(equations: Sequence[FittedEquation], field: Symmetry) -> float:
    """Return the distance of fitted coefficients from those with a symmetry, see `SymmetriesFromData.deviations`.

    Args:
        equations: the fitted equations.
        field: a symmetry of the equations with simple numbers.
    """
    texts: list[str] = []
    numbers: dict[str, tuple[float, float, float]] = {}
    for i, equation in enumerate(equations):
        text, values = equation.with_parameters(f"coefficient{i}n")
        texts.append(text)
        numbers |= values
    if not numbers:
        return 0.0
    conditions, _ = left_sides(texts, field.components, "t")
    names = list(numbers)
    symbols = [sp.Symbol(name) for name in names]
    slopes = sp.Matrix([with_symbols(sp.expand(c)) for c in conditions]).jacobian(symbols)
    others = sorted(slopes.free_symbols - set(symbols), key=str)
    if not any(slopes):
        return 0.0
    evaluate = sp.lambdify([*symbols, *others], slopes.tolist(), "numpy")
    random = Random(0)
    at = [values[0] for values in numbers.values()]
    rows = [evaluate(*at, *(random.uniform(0.3, 1.7) for _ in others)) for _ in range(_NUM_POINTS)]
    errors = np.array([values[2] for values in numbers.values()])
    moved = np.array([(fitted - number) / error for number, fitted, error in numbers.values()])
    matrix = np.array(rows, dtype=np.float64).reshape(-1, len(names)) * errors
    _, sizes, right = np.linalg.svd(matrix, full_matrices=False)
    kept = right[sizes > _RANK_TOLERANCE * max(sizes[0], 1e-300)]
    return float(np.sqrt(np.square(kept @ moved).mean())) if len(kept) else 0.0
