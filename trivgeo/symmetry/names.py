"""Names of Lie algebras."""

from __future__ import annotations

import torch
from torch import Tensor

from trivgeo.errors import AlgebraError
from trivgeo.groups import LieAlgebra
from trivgeo.groups.structure import (
    bracket_span,
    centralizer,
    centre,
    derived_series,
    levi_factor,
    null_space,
    radical,
    subalgebra,
)

__all__ = ["named"]

# By dimension, the number of directions in which the Killing form is positive, and the dimension of what commutes with
# the adjoint representation (the number of simple parts, complex ones counted twice).
_SEMISIMPLE = {
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
    """The Levi decomposition of an algebra in words: the semisimple part, and its radical.

    Parts without a name are called by their dimension.
    """
    if not algebra.dim:
        return "0"
    try:
        solvable, levi = radical(algebra), levi_factor(algebra)
    except AlgebraError:
        return f"dimension {algebra.dim}"
    if not len(levi):
        return _solvable(algebra)
    left = _semisimple(subalgebra(algebra, levi))
    if not len(solvable):
        return left
    fixed = centralizer(algebra, levi, solvable)  # what the semisimple part leaves alone
    sign = "⊕" if len(fixed) == len(solvable) else "⋉"
    right = _solvable(subalgebra(algebra, solvable))
    return f"({left}) {sign} ({right})" if "⊕" in left and sign == "⋉" else f"{left} {sign} {_group(right)}"


def _group(text: str) -> str:
    return f"({text})" if " " in text else text


def _semisimple(algebra: LieAlgebra) -> str:
    c, n = algebra.structure_constants, algebra.dim
    killing = torch.einsum("ikl,jlk->ij", c, c)
    positive = int((torch.linalg.eigvalsh(killing) > 0).sum())
    unit = torch.eye(n, dtype=c.dtype)
    # matrices that commute with all ad(e_i)
    rows: Tensor = torch.cat([torch.kron(ad, unit) - torch.kron(unit, ad.mT.contiguous()) for ad in c])
    found = (n, positive, len(null_space(rows)))
    return _SEMISIMPLE.get(found, f"semisimple of dimension {n}")


def _solvable(algebra: LieAlgebra) -> str:
    n = algebra.dim
    derived = derived_series(algebra)
    first = bracket_span(algebra, torch.eye(n, dtype=torch.float64), torch.eye(n, dtype=torch.float64))
    if not len(first):
        return "R" if n == 1 else f"R^{n}"
    middle = centre(algebra)
    in_centre = not len(bracket_span(algebra, first, torch.eye(n, dtype=torch.float64)))
    if len(first) == 1 and in_centre:
        rest = len(middle) - 1
        return f"h({n - rest})" + ("" if not rest else " ⊕ R" if rest == 1 else f" ⊕ R^{rest}")
    if n == 2:
        return "aff(1)"
    steps = len(derived) - 1
    return f"solvable of dimension {n}, {steps} steps"
