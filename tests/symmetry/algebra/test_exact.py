"""The exact algebra of symmetries has the interface of that of the group, and names for generic parameters."""

from typing import Any

import pytest
import sympy as sp
import torch
from torch import Tensor

from tests.helpers import randn
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieAlgebra
from trivgeo.symmetry import find_symmetries
from trivgeo.symmetry.algebra.exact import SymmetryAlgebra

BLACK_SCHOLES = "V_t + s^2*S^2*V_SS/2 + r*S*V_S - r*V = 0"


def floats(values: Any) -> Tensor:
    return torch.tensor([float(x) for x in sp.Matrix(values)], dtype=torch.float64)


@pytest.mark.parametrize("equation", ["u_t + u*u_x = u_xx", "u_t + u*u_x + u_xxx = 0", "y'' = 1/y^3"])
def test_shared_names_mean_the_same(equation: str) -> None:
    found = find_symmetries(equation)
    exact, numeric = found.algebra, found.group().algebra
    shared = {n for n in dir(SymmetryAlgebra) if not n.startswith("_")} & set(dir(LieAlgebra))
    assert shared == {"ad", "bracket", "is_abelian", "is_unimodular", "killing_form", "levi_split", "name",
                      "nilpotency_step", "trace_ad"}  # fmt: skip
    assert (exact.dim, exact.names) == (numeric.dim, numeric.names)
    for name in ("is_abelian", "is_unimodular"):
        assert getattr(exact, name) == getattr(numeric, name)
    for name in ("name", "nilpotency_step"):
        assert getattr(exact, name)() == getattr(numeric, name)()
    for name in ("killing_form", "trace_ad"):
        values = floats(getattr(exact, name))
        torch.testing.assert_close(values, getattr(numeric, name).flatten(), rtol=1e-9, atol=1e-9)
    u, v = (randn(exact.dim, seed=k).mul(8).round() for k in (0, 1))
    bracket = floats(exact.bracket(u.tolist(), v.tolist()))
    torch.testing.assert_close(bracket, numeric.bracket(u, v), rtol=1e-9, atol=1e-9)
    ad = floats(exact.ad(u.tolist()))
    torch.testing.assert_close(ad, numeric.ad(u).flatten(), rtol=1e-9, atol=1e-9)


def test_a_name_needs_no_values_where_all_have_one() -> None:
    """The algebra of Black-Scholes is that of the heat equation (Gazizov and Ibragimov 1998)."""
    found = find_symmetries(BLACK_SCHOLES)
    assert found.algebra.name() == find_symmetries("u_t = u_xx").algebra.name() == "sl(2, R) ⋉ h(3)"
    assert found.algebra.name(r=0.05) == found.group(r=0.05, s=0.2).algebra.name() == found.algebra.name()
    assert "sl(2, R) ⋉ h(3)" in found._repr_html_()


def test_a_name_that_depends_on_a_sign_asks_for_it() -> None:
    """[X1, X2] = X3, [X2, X3] = X1, [X3, X1] = k X2 is so(3) for positive k, and sl(2, R) for negative."""
    k = sp.Symbol("k")
    c = [[[sp.S.Zero] * 3 for _ in range(3)] for _ in range(3)]
    for i, j, m, value in ((0, 1, 2, 1), (1, 2, 0, 1), (2, 0, 1, k)):
        c[i][j][m], c[j][i][m] = sp.sympify(value), -sp.sympify(value)
    algebra = SymmetryAlgebra(c, ["X1", "X2", "X3"], [k])
    with pytest.raises(ConfigurationError, match=r"as in name\(k=1.0\), .* one of sl\(2, R\), so\(3\)"):
        algebra.name()
    assert (algebra.name(k=2), algebra.name(k=-2)) == ("so(3)", "sl(2, R)")
    with pytest.raises(ShapeError, match="each of 3 generators, got 2"):
        algebra.bracket([1, 0, 0], [1, 0])


@pytest.mark.parametrize(
    ("equation", "words"),
    [
        ("u_t + u*u_x + u_xxx = 0", ["shifts x", "scales x, t, u", "moves x at a constant speed in t", "shifts t"]),
        ("u_tt = u_xx + u_yy + u^3", ["rotates x, y", "boosts x, t", "boosts y, t"]),
        ("u_t = u_xx", ["scales u", ""]),
    ],
)
def test_kinds_in_words(equation: str, words: list[str]) -> None:
    assert set(words) <= {symmetry.in_words for symmetry in find_symmetries(equation)}
