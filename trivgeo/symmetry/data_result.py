"""Symmetries that data show: fields, the group, and by what they were found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trivgeo.errors import AlgebraError
from trivgeo.groups import GeneratedGroup, from_generators
from trivgeo.symmetry.vector_fields import Symmetry

if TYPE_CHECKING:
    from trivgeo.symmetry.regression import FittedEquation
    from trivgeo.symmetry.result import Symmetries

__all__ = ["SymmetriesFromData"]


class SymmetriesFromData:
    """Symmetries that data show, and by what.

    Attributes:
        fields: a basis, as vector fields with SymPy coefficients.
        equations: the equations fitted to solutions, with standard errors; empty for functions.
        found: all that is known of the symmetries of these; ``None`` for functions.
        singular_values: for functions, those of the condition on the library, relative to the largest, increasing.
        statement: what was tested, in words.
    """

    def __init__(
        self,
        fields: Sequence[Symmetry],
        statement: str,
        equations: Sequence[FittedEquation] = (),
        found: Symmetries | None = None,
        singular_values: Sequence[float] = (),
    ) -> None:
        self.fields, self.statement = tuple(fields), statement
        self.equations, self.found = tuple(equations), found
        self.singular_values = tuple(singular_values)

    @property
    def dimension(self) -> int:
        """The number of fields, beside superposition."""
        return len(self.fields)

    def group(self, **settings: Any) -> GeneratedGroup:
        """The symmetry group.

        Args:
            **settings: of `trivgeo.groups.from_generators`.

        Raises:
            AlgebraError: the fields do not close under the bracket.
        """
        if self.found is not None:
            return self.found.group(**settings)
        if not self.fields:
            raise AlgebraError("fields: expected at least one symmetry, found none")
        fields = {f.name: f.components for f in self.fields}
        return from_generators(fields, variables=self.fields[0].variables, **settings)

    def __repr__(self) -> str:
        lines = [f"{e.text}, residual {e.residual:.1e}" for e in self.equations]
        return "\n".join([*lines, *map(str, self.fields), self.statement])
