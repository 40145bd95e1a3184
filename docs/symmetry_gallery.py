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
from trivgeo.symmetry.equations.vector_fields import Symmetry
from trivgeo.symmetry.result import Symmetries

PAGE = Path(__file__).parent / "symmetries.md"
FOLDER = Path(__file__).parent / "images" / "symmetries"

SHOWN = (
    "free particle", "oscillator", "third order", "fifth power of the slope", "Ermakov", "modified Emden",
    "circles of radius one", "Blasius", "Chazy", "Schwarzian derivative", "free particle, plane", "two frequencies",
    "heat", "heat, plane", "Kolmogorov", "Burgers", "potential Burgers", "KdV", "Harry Dym", "KdV, Schwarzian",
    "diffusion, -4/3", "wave, plane", "Laplace", "Liouville", "sine-Gordon", "BBM", "eikonal", "minimal surface", "NLS",
    "gas, line, cubic",
)  # fmt: skip

LABELS = {
    "free particle, plane": "free particle in the plane",
    "heat, plane": "heat in the plane",
    "KdV, Schwarzian": "Schwarzian KdV",
    "diffusion, -4/3": "diffusion with exponent -4/3",
    "wave, plane": "wave in the plane",
    "gas, line, cubic": "gas on a line, exponent 3",
}
"""Names of the catalogue that are short, in words."""

TEXT = """# Symmetries of thirty equations

[`find_symmetries`](howto/group.md) computes the point symmetries of an equation: transformations of its variables that
map solutions to solutions. It is tested on a catalogue of {count} equations, of which the table has thirty.
*Symmetries* names their Lie algebra, its dimension, and the time of one processor:

- ⊕ is a direct sum, ⋉ a semidirect sum.
- h(n) is the Heisenberg algebra of dimension n, aff(1) the algebra of the affine maps of a line.
- The number of steps is the length of the derived series.
- *Beside superposition* leaves out symmetries of a linear equation that add another solution.
- *Infinite: 2 functions of 1 variable* means that the symmetries depend on two arbitrary functions.

*Orbits* has the orbits of one generator, in two of the variables; parameters are one. `python -m docs.symmetry_gallery`
makes the page.

| equation | symmetries | orbits |
| --- | --- | --- |
{rows}

## Comparison with delierium

delierium is an open Python program for the same task. The table compares both on every fourth equation of the catalogue
of tests, except for systems of partial equations. *Short* is the right dimension without all generators, *refused* an
error, and *late* no answer within 20 seconds on one processor. For linear partial equations delierium may answer
"infinite", since it counts superposition.

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
    size = f"infinite: {infinite}" if found.looks_infinite else f"dimension {found.dimension.size}"
    parts.append(size + beside)
    parts.append(f"{seconds:.1f} s")
    field, name = shown(found), "".join(c if c.isalnum() else "_" for c in case.name)
    draw(field, name)
    parts.append(f"orbits of `{field.text}`")
    picture = f"![Orbits](images/symmetries/{name}.png){{ width=160 }}"
    formulas = "<br>".join(f"`{part.strip()}`" for part in case.equations.split(";"))
    return f"| {LABELS.get(case.name, case.name)}<br>{formulas} | {'<br>'.join(filter(None, parts))} | {picture} |"


def main() -> None:
    """Write the page."""
    cases = {case.name: case for case in CATALOGUE}
    rows = "\n".join(row(cases[name]) for name in SHOWN)
    PAGE.write_text(TEXT.format(count=len(CATALOGUE), rows=rows))


if __name__ == "__main__":
    main()
