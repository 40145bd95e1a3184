"""The exact Lie algebra of symmetries: the interface of `LieAlgebra`, over SymPy expressions of parameters."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import sympy as sp
import torch

from trivgeo.errors import AlgebraError, ConfigurationError, ShapeError
from trivgeo.expressions import exact
from trivgeo.groups.algebra import LieAlgebra, find_split
from trivgeo.groups.structure import LeviDecomposition
from trivgeo.symmetry.algebra.optimal import OptimalSystem, optimal_system

_NUM_GENERIC_VALUES = 12  # random values of parameters at which algebras have to have one name


class SymmetryAlgebra:
    """The exact algebra of symmetries, with the sign of the group: minus the bracket of the fields.

    What it shares with `trivgeo.groups.LieAlgebra`, the algebra of ``found.group()``, has the same name and meaning;
    numbers are SymPy expressions of the parameters in place of tensors.

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
    def trace_ad(self) -> tuple[sp.Expr, ...]:
        """tr ad of each generator; the group is unimodular where all vanish."""
        c, n = self.structure_constants, self.dim
        return tuple(sp.simplify(sum((c[i][j][j] for j in range(n)), sp.S.Zero)) for i in range(n))

    @property
    def killing_form(self) -> sp.Matrix:
        """The matrix ``[n, n]`` of tr(ad(e_i) ad(e_j))."""
        n = self.dim
        ads = [self.ad([int(i == j) for j in range(n)]) for i in range(n)]
        return sp.Matrix(n, n, lambda i, j: sp.simplify((ads[i] * ads[j]).trace()))

    @property
    def is_unimodular(self) -> bool:
        """True if ``tr ad`` vanishes: left and right Haar measures of the connected group agree."""
        return not any(self.trace_ad)

    @property
    def is_abelian(self) -> bool:
        """True if every bracket vanishes."""
        return not any(self._entries())

    def ad(self, v: Sequence[Any]) -> sp.Matrix:
        """Return the matrix ``[n, n]`` of the map ``u -> [v, u]``, for ``n`` coefficients ``v`` of generators."""
        n, c = self.dim, self.structure_constants
        if len(v) != n:
            raise ShapeError(f"v: expected a coefficient for each of {n} generators, got {len(v)}")
        weights = [exact(x, "v") for x in v]
        return sp.Matrix(n, n, lambda k, j: sum((weights[i] * c[i][j][k] for i in range(n)), sp.S.Zero))

    def bracket(self, u: Sequence[Any], v: Sequence[Any]) -> tuple[sp.Expr, ...]:
        """Return the ``n`` coefficients of ``[u, v]``, for ``n`` coefficients ``u`` and ``v`` of generators.

        Raises:
            ShapeError: there are more or fewer coefficients than generators.
        """
        if len(v) != self.dim:
            raise ShapeError(f"v: expected a coefficient for each of {self.dim} generators, got {len(v)}")
        return tuple(map(sp.expand, self.ad(u) * sp.Matrix([exact(x, "v") for x in v])))

    def nilpotency_step(self, **parameters: Any) -> int | None:
        """The number of steps of the lower central series at values of ``parameters``, see `LieAlgebra`."""
        return self.numeric(**parameters).nilpotency_step() if self.dim else 0

    def _entries(self) -> Iterator[sp.Expr]:
        return (sp.sympify(c) for block in self.structure_constants for row in block for c in row)

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
            raise ConfigurationError(
                f"parameters: expected a number for each by keyword, as in ({words}), got none for these"
            )
        c = torch.tensor([[[float(x) for x in row] for row in block] for block in entries], dtype=torch.float64)
        return LieAlgebra(c, self.names)

    def levi_split(self, **parameters: Any) -> LeviDecomposition:
        """Return Levi factor, torus and nilradical for values of ``parameters``: rows of coefficients of generators."""
        return find_split(self.numeric(**parameters))

    def _named_bracket(self, i: int, j: int) -> sp.Expr:
        """Return the bracket of generators i and j as a combination of their names."""
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
            **parameters: numbers for parameters on which the constants depend. Where some have none, the name is that
                of generic values, if random values of either sign all have the same.

        Raises:
            ConfigurationError: the name depends on a parameter without a value.
        """
        if not self.dim:
            return "0"
        symbols = {s for c in self._entries() for s in c.free_symbols if s.name not in parameters}
        if not symbols:
            return self.numeric(**parameters).name()
        random = Random(0)
        names = set()
        for _ in range(_NUM_GENERIC_VALUES):
            values = {
                s.name: sp.Rational(random.choice((-1, 1)) * random.randint(1, 9), random.randint(1, 9))
                for s in sorted(symbols, key=str)
            }
            with contextlib.suppress(ZeroDivisionError, TypeError):  # a pole, or a root of a negative number
                names.add(self.numeric(**parameters, **values).name())
        if len(names) != 1:
            words = ", ".join(f"{s}=1.0" for s in sorted(symbols, key=str))
            raise ConfigurationError(
                f"parameters: expected a number for each by keyword, as in name({words}), since the algebra is one of "
                f"{', '.join(sorted(names))}"
            )
        return names.pop()

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
        """The table of brackets, and the name of the Levi decomposition unless it depends on parameters' values."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *self.names))
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th>"
            + "".join(f"<td>{html.escape(str(self._named_bracket(i, j)))}</td>" for j in range(self.dim))
            + "</tr>"
            for i, name in enumerate(self.names)
        )
        title = f"<p>{html.escape(self.convention)}</p>"
        with contextlib.suppress(ConfigurationError):
            title = f"<p>{html.escape(self.name())}</p>{title}"
        return f"{title}<table><tr>{head}</tr>{rows}</table>"

    def __repr__(self) -> str:
        lines = []
        for i in range(self.dim):
            for j in range(i + 1, self.dim):
                total = self._named_bracket(i, j)
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
