"""Symmetries found from data: fields, the group, and the evidence for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trivgeo.errors import AlgebraError
from trivgeo.groups import GeneratedGroup, from_generators
from trivgeo.symmetry.equations.vector_fields import FoundSequence, Symmetry
from trivgeo.verdict import Judged, Verdict

if TYPE_CHECKING:
    from trivgeo.symmetry.from_data.regression import FittedEquation
    from trivgeo.symmetry.result import Symmetries


class BrokenSymmetry(NamedTuple):
    """A vector field that is an approximate symmetry.

    Attributes:
        field: the field.
        breaking: size of breaking of the symmetry, from 0 (a symmetry) to 1.
    """

    field: Symmetry
    breaking: float


class SymmetriesFromData(FoundSequence[Symmetry], Judged):
    """Symmetries found from data, a sequence of fields as `Symmetries` are, and the evidence for them.

    Attributes:
        fields: a basis, as vector fields with SymPy coefficients.
        equations: the equations fitted to solutions, with stated errors; empty for functions.
        found: the symmetries of the fitted equations; ``None`` for functions and operators.
        singular_values: for functions, those of the matrix of derivatives along the fields of the library, relative to
            the largest, increasing; for operators sizes of breaking.
        approximate: approximate symmetries, the least broken first; of solutions those of the equations without small
            terms, broken by the size of these terms relative to the change in time.
        verdict: whether these are all symmetries of their kind in the data; if not, what was left out, and why.
        statement: the test and its result, in words.
    """

    def __init__(
        self,
        fields: Sequence[Symmetry],
        statement: str,
        verdict: Verdict,
        equations: Sequence[FittedEquation] = (),
        found: Symmetries | None = None,
        singular_values: Sequence[float] = (),
        approximate: Sequence[BrokenSymmetry] = (),
    ) -> None:
        super().__init__(fields)
        self.fields, self.statement, self.verdict = tuple(fields), statement, verdict
        self.equations, self.found = tuple(equations), found
        self.singular_values, self.approximate = tuple(singular_values), tuple(approximate)

    @property
    def dimension(self) -> int:
        """The number of fields, without superposition."""
        return len(self.fields)

    def group(self, **settings: Any) -> GeneratedGroup:
        """The symmetry group.

        Args:
            **settings: keywords of `trivgeo.groups.from_generators`.

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
        broken = [f"approximately: {b.field.text}, broken by {b.breaking:.1e}" for b in self.approximate]
        return "\n".join([*lines, *map(str, self.fields), *broken, self.statement])
