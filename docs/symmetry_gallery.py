"""Writes the gallery of symmetries, its pictures too: `python -m docs.symmetry_gallery`, about a minute.

Each picture follows the flow of one generator, numerically, and shows two of the variables.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import sympy as sp
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tests.symmetry.catalogue import CATALOGUE, Textbook
from trivgeo.errors import AlgebraError
from trivgeo.symmetry import find_symmetries
from trivgeo.symmetry.result import Symmetries, Symmetry

PAGE = Path(__file__).parent / "symmetries.md"
FOLDER = Path(__file__).parent / "images" / "symmetries"

SHOWN = (
    "free particle", "oscillator", "third order", "fifth power of the slope", "Ermakov", "modified Emden",
    "circles of radius one", "Blasius", "Chazy", "Schwarzian derivative", "free particle, plane", "two frequencies",
    "heat", "heat, plane", "Kolmogorov", "Burgers", "potential Burgers", "KdV", "Harry Dym", "KdV, Schwarzian",
    "diffusion, -4/3", "wave, plane", "Laplace", "Liouville", "sine-Gordon", "BBM", "eikonal", "minimal surface", "NLS",
    "gas, line, cubic",
)  # fmt: skip

TEXT = """# Symmetries of thirty equations

This page shows thirty of the catalogue of {count} equations on which the tests run `find_symmetries`. The second
column has the Lie algebra of the point symmetries. ⊕ is a direct sum, ⋉ a semidirect sum, and h(n) a Heisenberg
algebra. "Dimension 6 beside superposition" leaves out the symmetries of a linear equation that add another solution.
Each picture has the orbits of one generator, in two of the variables; parameters have the value one. Times are of one
processor. `python -m docs.symmetry_gallery` makes the page.

| equation | symmetries | orbits |
| --- | --- | --- |
{rows}

## Comparison with delierium

delierium is the open program that is closest to `find_symmetries`. The table compares both on every fourth equation
of the catalogue, except for systems of partial equations. The limit is 20 seconds on one processor for each equation.
"Short" means the right dimension without all generators. For linear partial equations the answer "infinite" of
delierium counts as right.

<!-- table: symmetries -->
<!-- end -->
"""


def shown(found: Symmetries) -> Symmetry:
    """The generator whose formula is the longest of those with moderate ones."""
    return max(found, key=lambda g: (min(sp.count_ops(sum(map(abs, g.components))), 40), g.name))


def plane(field: Symmetry) -> tuple[int, int]:
    """Two variables that move, or else occur."""
    moved = [i for i, c in enumerate(field.components) if c != 0]
    used = {s for c in field.components for s in c.free_symbols}
    others = [i for i, z in enumerate(field.variables) if i not in moved and z in used]
    rest = [i for i in range(len(field.variables)) if i not in moved and i not in others]
    first, second = sorted([*moved, *others, *rest][:2])
    return first, second


def orbits(field: Symmetry, first: int, second: int, time: float = 0.5, steps: int = 60) -> list[NDArray[np.float64]]:
    """Paths of points of a square, ``[steps, variables]``; parameters are one."""
    numbers = {s: 1 for c in field.components for s in c.free_symbols if s not in field.variables}
    rate = sp.lambdify(field.variables, [c.subs(numbers) for c in field.components], "numpy")
    paths = []
    for a in np.linspace(-1.2, 1.2, 7):
        for b in np.linspace(-1.2, 1.2, 7):
            start = np.full(len(field.variables), 0.5)
            start[first], start[second] = a, b
            halves = []
            for step in (-time / steps, time / steps):
                z, path = start, [start]
                for _ in range(steps):
                    middle = z + step / 2 * np.array(rate(*z), dtype=float)
                    z = z + step * np.array(rate(*middle), dtype=float)
                    if not np.abs(z).max() < 4:
                        break
                    path.append(z)
                halves.append(np.array(path))
            paths.append(np.concatenate([halves[0][::-1], halves[1][1:]]))
    return paths


def draw(field: Symmetry, name: str) -> None:
    """One picture, the same bytes every time."""
    first, second = plane(field)
    figure = Figure(figsize=(1.6, 1.5), layout="constrained")
    axis = figure.add_subplot(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xticks=[], yticks=[])
    with np.errstate(all="ignore"):
        for path in orbits(field, first, second):
            axis.plot(path[:, first], path[:, second], lw=0.8, color="C0")
            axis.plot(path[-1, first], path[-1, second], ".", ms=2, color="C0")
    axis.set_xlabel(field.variables[first].name, fontsize=8, labelpad=1)
    axis.set_ylabel(field.variables[second].name, fontsize=8, labelpad=1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / f"{name}.png", dpi=220, metadata={"Software": None})


def row(case: Textbook) -> str:
    """One line of the table, and its picture."""
    before = time.process_time()
    found = find_symmetries(case.equations.split(";"))
    seconds = time.process_time() - before
    try:
        parts = [found.algebra.name(**{s.name: 1 for s in found.parameters}) if found.is_complete else ""]
    except AlgebraError:
        parts = []  # part of an infinite algebra
    beside = " beside superposition" if found.infinite_ideal is not None else ""
    count, arguments = found.dimension.functions, found.dimension.arguments
    infinite = f"{count} function{'s' * (count > 1)} of {arguments} variable{'s' * (arguments > 1)}"
    parts.append(f"infinite: {infinite}" if found.looks_infinite else f"dimension {found.dimension.size}{beside}")
    parts.append(f"{seconds:.1f} s")
    field, name = shown(found), "".join(c if c.isalnum() else "_" for c in case.name)
    draw(field, name)
    picture = f"![Orbits of {field.text} in a square](images/symmetries/{name}.png){{ width=160 }}<br>`{field.text}`"
    formulas = "<br>".join(f"`{part.strip()}`" for part in case.equations.split(";"))
    return f"| {case.name}<br>{formulas} | {'<br>'.join(filter(None, parts))} | {picture} |"


def main() -> None:
    """Write the page."""
    cases = {case.name: case for case in CATALOGUE}
    rows = "\n".join(row(cases[name]) for name in SHOWN)
    PAGE.write_text(TEXT.format(count=len(CATALOGUE), rows=rows))


if __name__ == "__main__":
    main()
