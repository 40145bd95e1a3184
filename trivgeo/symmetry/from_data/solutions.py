"""Symmetries of unknown equations from sampled solutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trivgeo.actions import Field, Grid
from trivgeo.errors import ConfigurationError
from trivgeo.symmetry.determining.finder import search
from trivgeo.symmetry.from_data.regression import fit_equations
from trivgeo.symmetry.from_data.result import SymmetriesFromData
from trivgeo.verdict import Verdict


def of_solutions(
    samples: Field | Tensor, grid: Any, library: int | Sequence[Any] | None, order: int, degree: int
) -> SymmetriesFromData:
    """Fit equations to solutions, and find their symmetries, see `trivgeo.symmetry.symmetries_from_data`."""
    values, axes = _sampled(samples, grid)
    equations = fit_equations(values, axes, order, degree)
    polynomials = library if isinstance(library, int) else None
    functions = () if library is None or isinstance(library, int) else library
    found = search([e.text for e in equations], polynomials, "t", functions)
    terms = sum(len(e.coefficients) for e in equations)
    words = f"{len(values)} solutions; {terms} terms of significance in {len(equations)} fitted equation(s); of these: "
    verdict = Verdict(
        () if found.is_complete else (found.statement,),
        ("the fitted equations, with simple fractions for coefficients, are those of the data",),
    )
    return SymmetriesFromData(found.generators, words + found.statement, verdict, equations, found)


def _sampled(samples: Field | Tensor, grid: Any) -> tuple[Tensor, list[Tensor]]:
    """Values ``[b, c, s, *n]`` and the coordinates of time and of space."""
    values = samples.values if isinstance(samples, Field) else samples
    grid = samples.grid if isinstance(samples, Field) and grid is None else grid
    if not isinstance(values, Tensor) or not values.is_floating_point() or not bool(values.isfinite().all()):
        got = "NaN or infinity" if isinstance(values, Tensor) and values.is_floating_point() else type(values).__name__
        raise ConfigurationError(f"samples: expected a Field or a floating-point tensor of finite solutions, got {got}")
    if isinstance(grid, Grid):
        dims = grid.origin.shape[-1] - 1
        times = grid.origin.shape[-2:-1]
        fits = grid.steps.shape[-3:] == (*times, dims, dims) and values.ndim >= dims + 2
        if not fits or values.shape[-dims - 1 : values.ndim - dims] != times:
            raise ConfigurationError(
                f"grid: expected origins (s, d + 1) and steps (s, d, d) of values [*batch, c, s, *n], got "
                f"{list(grid.origin.shape)}, {list(grid.steps.shape)} and {list(values.shape)}"
            )
        values = values.reshape(-1, *values.shape[-dims - 2 :])
        origin, steps = (e.reshape(-1, *e.shape[-k:])[0] for e, k in ((grid.origin, 2), (grid.steps, 3)))
        same = bool((grid.origin == origin).all()) and bool((grid.steps == steps).all())
        still = bool((origin[:, :-1] == origin[0, :-1]).all()) and bool((steps == steps[0]).all())
        straight = bool((steps[0] == torch.diag(steps[0].diagonal())).all())
        if not (same and still and straight):
            raise ConfigurationError(
                "grid: expected one upright grid for all solutions and times, got several, or a sheared one"
            )
        counts = values.shape[-dims:]
        axes = [origin[:, -1], *(origin[0, i] + steps[0, i, i] * torch.arange(n) for i, n in enumerate(counts))]
    elif isinstance(grid, Sequence) and len(grid) > 1:
        *space, time = map(_coordinates, grid)
        axes = [time, *space]
        if values.ndim == len(axes) + 1:  # one unknown
            values = values.unsqueeze(1)
    else:
        raise ConfigurationError(f"grid: expected a Grid, or coordinates (x, ..., t), got {grid!r:.80}")
    wanted = tuple(map(len, axes))
    if values.ndim != len(axes) + 2 or tuple(values.shape[2:]) != wanted:
        raise ConfigurationError(
            f"samples: expected values [b, c, {', '.join(map(str, wanted))}], got {list(values.shape)}"
        )
    if values.shape[1] > 5 or len(axes) > 4:
        raise ConfigurationError(
            f"samples: expected up to five unknowns of up to three variables of space, got {list(values.shape)}"
        )
    return values, axes


def _coordinates(values: Any) -> Tensor:
    """Coordinates along one axis as a tensor."""
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"grid: expected coordinates that are numbers, got {values!r}") from error
