"""Symmetries of unknown equations from sampled solutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trivgeo.actions import Field, Grid
from trivgeo.errors import ConfigurationError
from trivgeo.symmetry.determining.finder import residual, search
from trivgeo.symmetry.from_data.function import MAX_BROKEN
from trivgeo.symmetry.from_data.regression import FittedEquation, fit_equations
from trivgeo.symmetry.from_data.result import BrokenSymmetry, SymmetriesFromData
from trivgeo.verdict import Verdict

if TYPE_CHECKING:
    from trivgeo.symmetry.result import Symmetries


def of_solutions(
    samples: Field | Tensor, grid: Any, library: int | Sequence[Any] | None, order: int | None, degree: int | None
) -> SymmetriesFromData:
    """Fit equations to solutions, and find their symmetries, see `trivgeo.symmetry.symmetries_from_data`."""
    values, axes = _sampled(samples, grid)
    equations = fit_equations(values, axes, order, degree)
    polynomials = library if isinstance(library, int) else None
    functions = () if library is None or isinstance(library, int) else library

    def symmetries(texts: list[str]) -> Symmetries:
        return search(texts, polynomials, "t", functions)

    found = symmetries([e.text for e in equations])
    uncertain = tuple(dict.fromkeys(reason for e in equations for reason in e.reasons))
    reasons = uncertain + (() if found.is_complete or polynomials is not None else (found.statement,))
    assumptions = ["coefficients that agree within their stated errors are equal"]
    if any(e.varied for e in equations):
        assumptions.append("coefficients that depend on place or time are of no special form")
    if any(e.grid_terms for e in equations):
        most = max(max(e.discretization for e in equations), 0.0)
        assumptions.append(
            f"terms of higher order, at most {most:.1%} of the change in time, are errors of the scheme of the data"
        )
    for name, std in {k: v for e in equations for k, v in e.averaged.items()}.items():
        assumptions.append(
            f"samples are averages over {name} of standard deviation {std:.2g} steps of the grid; the equation is that "
            "of what was averaged"
        )
    if any(e.says_unexplained for e in equations):
        most = max(e.unexplained for e in equations)
        assumptions.append(f"the {most:.1%} of the change in time that is left unexplained breaks no symmetry")
    terms = sum(len(e.coefficients) for e in equations)
    words = f"{len(values)} solutions; {terms} terms of significance in {len(equations)} fitted equation(s); "
    words += "if these are right: " if uncertain else "of these: "
    verdict = Verdict(reasons, tuple(assumptions))
    broken = _broken(equations, found, symmetries)
    return SymmetriesFromData(
        found.generators,
        "; ".join((words + found.statement, *uncertain)),
        verdict,
        equations,
        found,
        approximate=broken,
    )


def _broken(
    equations: Sequence[FittedEquation], found: Symmetries, symmetries: Callable[[list[str]], Symmetries]
) -> list[BrokenSymmetry]:
    """Symmetries of the equations without their small parts that the whole equations, with those found, do not have."""
    small = [
        {k for k, share in (e.shares | e.variations).items() if share < MAX_BROKEN} for e in equations
    ]  # of a term that depends on place or time, the part that does
    texts = [e.without(s) for e, s in zip(equations, small, strict=True)]
    if not any(small) or any(text.endswith("= 0") for text in texts):
        return []
    size = math.hypot(*((e.shares | e.variations)[k] for e, s in zip(equations, small, strict=True) for k in s))
    whole = [e.text for e in equations]
    result = []
    without = symmetries(texts)
    if without.variables != found.variables:  # a small part alone has a variable
        return []
    for candidate in without.generators:
        left = residual(whole, candidate, "t")
        if any(e != 0 for e in (left if isinstance(left, tuple) else (left,))):
            result.append(BrokenSymmetry(candidate, size))
    return result


def _sampled(samples: Field | Tensor, grid: Any) -> tuple[Tensor, list[Tensor]]:
    """Values ``[b, c, s, *n]`` and the coordinates of time and of space."""
    values = samples.values if isinstance(samples, Field) else samples
    grid = samples.grid if isinstance(samples, Field) and grid is None else grid
    if isinstance(values, Tensor) and not values.is_floating_point() and not values.is_complex():
        values = values.double()  # counts
    if not isinstance(values, Tensor) or not values.is_floating_point() or not bool(values.isfinite().all()):
        got = type(values).__name__
        if isinstance(values, Tensor):
            got = "NaN or infinity" if values.is_floating_point() else f"values of {values.dtype}"
        raise ConfigurationError(f"samples: expected a Field or a tensor of finite real solutions, got {got}")
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
    """Coordinates along one axis as a tensor of one dimension."""
    try:
        axis = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"grid: expected coordinates that are numbers, got {values!r:.80}") from error
    if axis.ndim != 1:
        raise ConfigurationError(f"grid: expected a list of coordinates for each variable, got {values!r:.80}")
    return axis
