"""Symmetries found from data: fields, the group, and the evidence for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
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

    @cached_property
    def deviations(self) -> tuple[float, ...]:
        r"""How far the data are from each symmetry of solutions, in stated errors of the fitted coefficients.

        With coefficients :math:`c_k` of errors :math:`\sigma_k` it is the smallest root mean square of
        :math:`(c_k - c'_k) / \sigma_k`, for all :math:`c'` near those of the equation of which the field is a
        symmetry; the mean is over the conditions. A field that is a symmetry whatever the coefficients are has 0. A
        symmetry of the equation that made the data has about 1, one made up by rounding more. Empty for functions and
        operators.
        """
        if not self.equations:
            return ()
        from trivgeo.symmetry.from_data.deviations import deviation

        return tuple(deviation(self.equations, field) for field in self.fields)

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
        far = self.deviations or (0.0,) * len(self.fields)
        fields = [
            f"{field}, {size:.2g} stated errors from the data" if size else str(field)
            for field, size in zip(self.fields, far, strict=True)
        ]
        return "\n".join([*lines, *fields, *broken, self.statement])
