"""The exact Lie algebra of symmetries."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import sympy as sp
import torch

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.expressions import exact
from trivgeo.groups.algebra import LieAlgebra, balanced
from trivgeo.groups.ground_fields import REALS
from trivgeo.groups.structure import LeviDecomposition, LieStructure, exact_structure, find_split, real_structure
from trivgeo.symmetry.algebra.optimal import OptimalSystem, optimal_system

# Keys: dimension, number of positive eigenvalues of the Killing form, and dimension of the commutant of the adjoint
# representation (the number of simple factors, complex ones counted twice).
_SEMISIMPLE_NAMES = {
    (3, 2, 1): "sl(2, R)",
    (3, 0, 1): "so(3)",
    (6, 4, 2): "sl(2, R) ⊕ sl(2, R)",
    (6, 2, 2): "so(3) ⊕ sl(2, R)",
    (6, 0, 2): "so(3) ⊕ so(3)",
    (6, 3, 2): "so(3, 1)",
    (8, 5, 1): "sl(3, R)",
    (8, 4, 1): "su(2, 1)",
    (8, 0, 1): "su(3)",
    (10, 6, 1): "so(3, 2)",
    (10, 4, 1): "so(4, 1)",
    (10, 0, 1): "so(5)",
    (15, 9, 1): "sl(4, R)",
    (15, 8, 1): "so(4, 2)",
    (15, 5, 1): "so(5, 1)",
    (15, 0, 1): "so(6)",
}


def named(algebra: LieAlgebra) -> str:
    """The Levi decomposition in words: semisimple part and radical; parts without a name by their dimension."""
    if not algebra.dim:
        return "0"
    try:
        return _named(exact_structure(algebra) or real_structure(balanced(algebra)[0]))
    except AlgebraError:
        return f"dimension {algebra.dim}"


def _named(structure: LieStructure[Any]) -> str:
    solvable, levi = structure.radical, structure.levi_factor
    if not len(levi):
        return _solvable(structure)
    left = _semisimple(structure.subalgebra(levi))
    if not len(solvable):
        return left
    fixed = structure.centralizer(levi, solvable)  # the part of the radical that commutes with the Levi factor
    sign = "⊕" if len(fixed) == len(solvable) else "⋉"
    right = _solvable(structure.subalgebra(solvable))
    return f"({left}) {sign} ({right})" if "⊕" in left and sign == "⋉" else f"{left} {sign} {_group(right)}"


def _group(text: str) -> str:
    return f"({text})" if " " in text else text


def _semisimple(structure: LieStructure[Any]) -> str:
    killing, ads = (structure.field.tensor(x) for x in (structure.killing_form, structure.constants))
    positive = int((torch.linalg.eigvalsh(killing) > 0).sum())
    unit = torch.eye(structure.dim, dtype=torch.float64)
    # matrices that commute with all ad(e_i)
    rows = torch.cat([torch.kron(ad, unit) - torch.kron(unit, ad.mT.contiguous()) for ad in ads])
    found = (structure.dim, positive, len(REALS.null_space(rows)))
    return _SEMISIMPLE_NAMES.get(found, f"semisimple of dimension {structure.dim}")


def _solvable(structure: LieStructure[Any]) -> str:
    n, series = structure.dim, structure.derived_series()
    if len(series) == 2 and not len(series[1]):
        return "R" if n == 1 else f"R^{n}"
    first = series[1]
    if len(first) == 1 and not len(structure.bracket_span(first, structure.everything)):
        rest = len(structure.centre()) - 1
        return f"h({n - rest})" + ("" if not rest else " ⊕ R" if rest == 1 else f" ⊕ R^{rest}")
    if n == 2:
        return "aff(1)"
    return f"solvable of dimension {n}, {len(series) - 1} steps"


class SymmetryAlgebra:
    """The exact algebra of symmetries, with the sign of the group: minus the bracket of the fields.

    Args:
        constants: structure constants ``c[i][j][k]``, nested lists of SymPy expressions.

    Attributes:
        structure_constants: nested lists ``c[i][j][k]`` of SymPy expressions of the parameters.
        names: names of the generators.
        parameters: the parameters of the equations.
    """

    def __init__(self, constants: Any, names: Sequence[str], parameters: Sequence[sp.Symbol]) -> None:
        self.structure_constants = constants
        self.names = tuple(names)
        self.parameters = tuple(parameters)

    @property
    def dim(self) -> int:
        """Dimension of the algebra, the number of generators."""
        return len(self.names)

    @property
    def modular_character(self) -> tuple[sp.Expr, ...]:
        """tr ad of each generator; the group is unimodular where all vanish."""
        c, n = self.structure_constants, self.dim
        return tuple(sp.simplify(sum((c[i][j][j] for j in range(n)), sp.S.Zero)) for i in range(n))

    def numeric(self, **parameters: Any) -> LieAlgebra:
        """Return the algebra in floating point, at values of its ``parameters``.

        Raises:
            AlgebraError: there are no generators.
            ConfigurationError: a parameter has no value.
        """
        if not self.dim:
            raise AlgebraError("expected an algebra of at least one generator, got none")
        values = {s: parameter_value(s.name, parameters[s.name]) for s in self.parameters if s.name in parameters}
        entries = [[[sp.sympify(x).subs(values) for x in row] for row in block] for block in self.structure_constants]
        missing = {s.name for block in entries for row in block for x in row for s in x.free_symbols}
        if missing:
            words = ", ".join(f"{name}=1.0" for name in sorted(missing))
            raise ConfigurationError(f"parameters: expected a value for each, as in ({words}), got none for these")
        c = torch.tensor([[[float(x) for x in row] for row in block] for block in entries], dtype=torch.float64)
        return LieAlgebra(c, self.names)

    def levi_split(self, **parameters: Any) -> LeviDecomposition:
        """Return Levi factor, torus and nilradical for values of ``parameters``: rows of coefficients of generators."""
        return find_split(self.numeric(**parameters))

    def bracket(self, i: int, j: int) -> sp.Expr:
        """Return the bracket of generators i and j as a combination of their names, a SymPy expression."""
        row = self.structure_constants[i][j]
        return sum((c * sp.Symbol(name) for c, name in zip(row, self.names, strict=True)), sp.S.Zero)

    @property
    def convention(self) -> str:
        """Sign convention of brackets, in words."""
        return (
            "brackets of the group, whose action is from the left: minus those of vector fields, as textbooks have them"
        )

    def name(self, **parameters: Any) -> str:
        """The Levi decomposition by name, such as ``sl(2, R) ⋉ h(3)``; ``h(n)`` is the Heisenberg algebra.

        Args:
            **parameters: a value for each parameter on which the constants depend.

        Raises:
            ConfigurationError: a parameter has no value.
        """
        return named(self.numeric(**parameters)) if self.dim else "0"

    def optimal_system(self, **parameters: Any) -> OptimalSystem:
        """An optimal system of one-dimensional subalgebras: every line is the image of exactly one of these lines.

        Images are taken under inner automorphisms, Ad(g) for all g of the connected group. The algebra has dimension at
        most 6, and is solvable with rational weights, has the Levi factor sl(2, R), or is the sum of so(3) and a
        solvable algebra.

        Args:
            **parameters: a number for each parameter of the algebra.

        Raises:
            AlgebraError: the algebra is of another kind.
            ConfigurationError: a parameter has no value, or is no number.
        """
        values = {s: parameter_value(s.name, parameters[s.name]) for s in self.parameters if s.name in parameters}
        constants = [[[sp.sympify(x).subs(values) for x in row] for row in b] for b in self.structure_constants]
        self.numeric(**parameters)  # raises unless each parameter has a value
        return optimal_system(constants, self.names)

    def _repr_html_(self) -> str:
        """The table of brackets, and the name of the Levi decomposition unless it depends on parameters."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *self.names))
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th>"
            + "".join(f"<td>{html.escape(str(self.bracket(i, j)))}</td>" for j in range(self.dim))
            + "</tr>"
            for i, name in enumerate(self.names)
        )
        symbols = {s for block in self.structure_constants for row in block for c in row for s in c.free_symbols}
        title = "" if symbols else f"<p>{html.escape(self.name())}</p>"
        title += f"<p>{html.escape(self.convention)}</p>"
        return f"{title}<table><tr>{head}</tr>{rows}</table>"

    def __repr__(self) -> str:
        lines = []
        for i in range(self.dim):
            for j in range(i + 1, self.dim):
                total = self.bracket(i, j)
                if total != 0:
                    lines.append(f"[{self.names[i]}, {self.names[j]}] = {total}")
        return "\n".join(lines) or f"abelian, dimension {self.dim}"


def parameter_value(name: str, value: Any) -> sp.Expr:
    """Return the value of the parameter ``name``, exact.

    Raises:
        ConfigurationError: the value is no real number.
    """
    number = exact(value, name)
    if number.free_symbols or not number.is_real:
        raise ConfigurationError(f"{name}: expected a real number, got {value!r}")
    return number
