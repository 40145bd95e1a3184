"""Conservation laws are those of textbooks, identities by SymPy's own derivatives, and no trivial ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy as sp
from sympy.calculus.euler import euler_equations

from trivgeo.errors import ConfigurationError
from trivgeo.expressions import parse_equations
from trivgeo.symmetry import conservation_laws
from trivgeo.symmetry.conservation import ConservationLaws

KDV = "u_t + u*u_x + u_xxx = 0"
SCHROEDINGER = ["u_t = -v_xx - v*(u^2 + v^2)", "v_t = u_xx + u*(u^2 + v^2)"]
KEPLER = ["x'' = -x/(x^2 + y^2)^(3/2)", "y'' = -y/(x^2 + y^2)^(3/2)"]
VORTICITY = ["w_t + psi_y*w_x - psi_x*w_y = nu*(w_xx + w_yy)", "w = psi_xx + psi_yy"]


def as_functions(expression: sp.Expr, unknowns: str, variables: tuple[sp.Symbol, ...]) -> sp.Expr:
    """With functions for unknowns and SymPy's derivatives for symbols such as u_xx."""
    values = {}
    for symbol in expression.free_symbols:
        name, _, letters = symbol.name.partition("_")
        if name in unknowns.split():
            function = sp.Function(name)(*variables)
            values[symbol] = function.diff(*letters) if letters else function
    return expression.xreplace(values)


def assert_identities(pde: Any, laws: ConservationLaws, unknowns: str) -> None:
    """D_t T + D_x X less multipliers times equations, with functions of which nothing is known."""
    residuals = parse_equations([pde] if isinstance(pde, str) else pde)
    z = laws.variables
    for law in laws:
        assert len(law.fluxes) == len(z) - 1
        components = list(law.fluxes)
        components.insert(law.time, law.density)
        total = sum(as_functions(c, unknowns, z).diff(v) for c, v in zip(components, z, strict=True))
        total -= sum(as_functions(m, unknowns, z) * e for m, e in zip(law.multipliers, residuals, strict=True))
        assert sp.simplify(total.doit()) == 0


CASES = [
    # Miura, Gardner, Kruskal 1968: mass, momentum, energy, with the centre of mass, and the next of order 4
    (KDV, 2, 3, "u", "1; u; t*u - x; u^2 + 2*u_xx"),
    ("u_t + u^2*u_x + u_xxx = 0", 2, 3, "u", "1; u; u^3 + 3*u_xx"),
    ("u_t + u*u_x = nu*u_xx", 2, 3, "u", "1"),
    ("u_t = nu*u_xx", 2, 3, "u", "1; x; x^2 - 2*nu*t; x^3 - 6*nu*t*x"),
    ("u_t = diff(u^n*u_x, x)", 1, 2, "u", "1; x"),
    # energy, momentum, boost
    ("u_tt = u_xx - sin(u)", 1, 2, "u", "u_t; u_x; t*u_x + x*u_t"),
    ("u_tt = u_xx + diff(u^2, x, 2) + u_xxxx", 1, 2, "u", "1; t; x; t*x"),
    ("u_tt = c^2*u_xx - u^3", 1, 1, "u", "u_t; u_x"),
    (["u_t = v_x", "v_t = diff(u + u^2 + u_xx, x)"], 0, 1, "u v", "1, 0; 0, 1; v, u; x, t"),
    # the norm, momentum, energy, centre of mass
    (SCHROEDINGER, 2, 3, "u v", "u, v; v_x, -u_x; 2*t*v_x - u*x, -2*t*u_x - v*x; u^3+u*v^2+u_xx, v^3+u^2*v+v_xx"),
    ("y'' + y^3 = 0", 1, 2, "y", "y_x"),
]


@pytest.mark.slow(reason="1,632 unknown coefficients")
def test_energy_of_the_cubic_schroedinger_equation_in_the_plane() -> None:
    """Half the squared slope less a quarter of the fourth power, beside masses, momenta, rotations and boosts."""
    found = conservation_laws(["u_t = -v_xx - v_yy - (u^2+v^2)*v", "v_t = u_xx + u_yy + (u^2+v^2)*u"])
    energy = "(u^2+v^2)^2/4 - (u_x^2 + u_y^2 + v_x^2 + v_y^2)/2".replace("^", "**")
    assert len(found) == 7
    assert any(sp.expand(density - sp.sympify(energy)) == 0 for density in found.densities)


@pytest.mark.parametrize(("pde", "order", "degree", "unknowns", "multipliers"), CASES, ids=lambda v: str(v)[:30])
def test_textbooks(pde: Any, order: int, degree: int, unknowns: str, multipliers: str) -> None:
    laws = conservation_laws(pde, order, degree)
    expected = sorted(multipliers.split("; "), key=len)
    rows = [sp.sympify(f"[{text}]") for text in expected]
    found = [list(law.multipliers) for law in laws]
    assert len(found) == len(rows)
    # the same space: both together have no larger rank at random points
    for left in ([*found, *rows], found):
        symbols = sorted({s for row in left for m in row for s in m.free_symbols}, key=str)
        points = [
            {s: sp.Rational(3 * i * i + 7 * j + i * j + 2, 5 + i) for j, s in enumerate(symbols)} for i in range(9)
        ]
        nu = {s: sp.Rational(2, 3) for s in symbols if s.name in ("nu", "n", "c")}
        matrix = sp.Matrix([[m.subs(nu).subs(at) for m in row for at in points] for row in left])
        assert matrix.rank() == len(rows)
    assert_identities(pde, laws, unknowns)
    assert len(laws.densities) == len(laws.fluxes) == len(laws.multipliers) == len(laws)


def test_densities_of_kdv() -> None:
    """The variational derivative of a density is the multiplier, by SymPy's Euler operator."""
    laws = conservation_laws(KDV)
    x, t = laws.variables
    u = sp.Function("u")(x, t)
    for density, multiplier in list(zip(laws.densities, laws.multipliers, strict=True))[1:]:
        (equation,) = euler_equations(as_functions(density, "u", laws.variables), [u], [x, t])
        ratio = sp.simplify(equation.lhs.doit() / as_functions(multiplier, "u", laws.variables))
        assert ratio in (1, -1)
    assert sp.Symbol("u") in laws.densities
    soliton = "3*c/cosh(sqrt(c)*(x - c*t)/2)^2"
    assert laws.residual(laws[3], {"u": soliton}) == 0
    assert laws.residual(laws[1], {"u": "x*t"}) != 0


def test_light_cone() -> None:
    """sin-Gordon in u_xt: two of order one with the boost, and the next ones of order three."""
    laws = conservation_laws("u_xt = sin(u)", 3, 3)
    multipliers = {sp.expand(m) for m in laws.multipliers}
    u_x, u_t, u_xxx, u_ttt = sp.symbols("u_x u_t u_xxx u_ttt")
    assert {u_x, u_t, u_x**3 + 2 * u_xxx, u_t**3 + 2 * u_ttt} < multipliers
    assert len(laws) == 5
    assert_identities("u_xt = sin(u)", laws, "u")


def test_vorticity() -> None:
    """Circulation, linear and angular impulse, and those with a function of time by the divergence of the gradient."""
    laws = conservation_laws(VORTICITY, 1, 2)
    assert_identities(VORTICITY, laws, "w psi")
    x, y, w = sp.symbols("x y w")
    assert {w, w * x, w * y} < {sp.expand(d) for d in laws.densities}
    assert all(isinstance(flux, sp.Tuple) and len(flux) == 2 for flux in laws.fluxes)


def test_more_of_kdv_by_order() -> None:
    """One more at each even order, and no more between."""
    assert [len(conservation_laws(KDV, order, 3)) for order in (0, 1, 2, 3, 4)] == [3, 3, 4, 4, 5]


@pytest.mark.parametrize(
    ("pde", "message"),
    [
        (["u_t = u_x", "u_t = u_xx"], "as many equations as unknowns"),
        ("u_t + ux = 0", "reads as one"),
        ("u_t = abs(u)", "derivatives everywhere"),
    ],
)
def test_what_is_outside(pde: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        conservation_laws(pde)


def test_bounds() -> None:
    with pytest.raises(ConfigurationError, match="degree: expected multipliers of at most"):
        conservation_laws(VORTICITY, 4, 8)
    with pytest.raises(ConfigurationError, match="order"):
        conservation_laws(KDV, -1)


def test_what_is_said() -> None:
    text = repr(conservation_laws("u_t + u*u_x = nu*u_xx"))
    assert "D_t(u) + D_x(-nu*u_x + u^2/2) = 0, multiplier 1" in text
    assert "1 independent: all whose multipliers are polynomials of degree 3 in x, t, u, u_x, u_xx" in text
    assert "adjoint" in conservation_laws("u_t = u_xx", 0, 1).statement


@pytest.mark.parametrize(
    ("pde", "order", "degree", "ansatz", "multipliers"),
    [
        # cylindrical waves: mass and momentum decay as the circle grows (Maxon and Viecelli 1974)
        ("u_t + u*u_x + u_xxx + u/(2*t) = 0", 0, 3, ["sqrt(t)"], "t*u; sqrt(t); 2*t*sqrt(t)*u - sqrt(t)*x"),
        # friction: what decays is weighted
        ("u_t + u*u_x + u_xxx + u = 0", 0, 1, ["exp(t)", "exp(2*t)"], "exp(t); u*exp(2*t); (u + x)*exp(t)"),
        ("y'' + y = 0", 1, 1, ["sin(x)", "cos(x)"], "cos(x); sin(x); y_x"),
        ("u_t = k*u_xx + u", 0, 1, ["exp(-t)"], "exp(-t); x*exp(-t)"),
        (["u_t = v_x + v/x", "v_t = u_x"], 0, 1, ["1/x"], ""),
    ],
    ids=lambda v: str(v)[:30],
)
def test_multipliers_of_an_ansatz(pde: Any, order: int, degree: int, ansatz: list[str], multipliers: str) -> None:
    """Multipliers of the literature, and no others where they are all; identities by SymPy."""
    laws = conservation_laws(pde, order, degree, ansatz=ansatz)
    unknowns = "y" if "y" in str(pde) else "u v" if isinstance(pde, list) else "u"
    assert_identities(pde, laws, unknowns)
    if not isinstance(pde, list):
        found = {sp.simplify(m / sp.sympify(m).as_coeff_Mul()[0]) for m in laws.multipliers}
        symbols = {s.name: s for m in laws.multipliers for s in m.free_symbols}
        wanted = {sp.simplify(sp.sympify(m, locals=symbols)) for m in multipliers.split(";")}
        assert {sp.expand(m) for m in found} == {sp.expand(m) for m in wanted}
    assert "sums of polynomials" in laws.statement
    assert laws.functions == tuple(sp.sympify(f, locals={v.name: v for v in laws.variables}) for f in ansatz)


@pytest.mark.parametrize(
    ("ansatz", "message"),
    [
        (["exp(u_xxxx)"], "expressions? of"),
        (["t^2"], "that are no polynomials"),
        (["sqrt(s)"], "that are no polynomials"),
    ],
)
def test_ansatz_that_is_refused(ansatz: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"ansatz: expected .*{message}"):
        conservation_laws(KDV, 0, 2, ansatz=ansatz)


def test_functions_that_depend_on_each_other_add_nothing() -> None:
    """Laws are counted once: t*sqrt(t) is t times sqrt(t), x*(1/x) is 1, and squares of sine and cosine add up to 1."""
    cylindrical = "u_t + u*u_x + u_xxx + u/(2*t) = 0"
    assert len(conservation_laws(cylindrical, 0, 3, ansatz=["sqrt(t)", "t*sqrt(t)"])) == 3
    assert len(conservation_laws(KDV, 0, 2, ansatz=["1/x"])) == 3
    assert len(conservation_laws(KDV, 0, 2, ansatz=["sin(x)^2", "cos(x)^2"])) == 3


@pytest.mark.parametrize(
    ("pde", "order", "ansatz", "density"),
    [
        # predators and prey (Volterra 1926)
        (["x' = x*(1 - y)", "y' = y*(x - 1)"], 0, ["1/x", "1/y"], "log(x) + log(y) - x - y"),
        (["x' = x", "y' = 2*y"], 0, ["1/y", "1/y^2"], "x**2/y"),
        (["x' = x*y", "y' = x^2"], 0, ["1/x"], "x**2 - y**2"),
        ("y'' = y'^2/y", 1, ["1/y_x", "1/y"], "log(y_x) - log(y)"),
        (KEPLER, 1, [], "x*y_t - y*x_t"),
        pytest.param(
            KEPLER,
            1,
            [],
            "y_t*(x*y_t - y*x_t) - x/sqrt(x**2 + y**2)",  # Laplace, Runge and Lenz
            marks=pytest.mark.slow(reason="integrals of roots take ten seconds"),
        ),
    ],
    ids=lambda v: str(v)[:30],
)
def test_integrals_of_ordinary_systems(pde: Any, order: int, ansatz: list[str], density: str) -> None:
    """Known integrals are functions of those found: their gradient is a combination of gradients, at random points."""
    laws = conservation_laws(pde, order, 1 if "sqrt" not in density and order else 2, ansatz=ansatz)
    every = sorted({s for law in laws.densities for s in law.free_symbols}, key=str)
    known = sp.sympify(density, locals={s.name: s for s in every})
    rows = [[float(sp.diff(e, s).subs({z: 0.3 + 0.2 * i for i, z in enumerate(every)})) for s in every]
            for e in (*laws.densities, known)]  # fmt: skip
    matrix = np.array(rows)
    assert np.linalg.matrix_rank(matrix, tol=1e-9) == np.linalg.matrix_rank(matrix[:-1], tol=1e-9)


@pytest.mark.parametrize(
    ("pde", "order", "expected"),
    [
        ("u_t = diff(k(u)*u_x, x)", 0, {"u", "u*x"}),
        ("u_t + diff(k(u), x) = 0", 0, {"u", "u**2/2", "u**3/3"}),
        ("u_tt = u_xx + k(u)", 1, None),
    ],
)
def test_arbitrary_functions(pde: str, order: int, expected: set[str] | None) -> None:
    """The divergence vanishes on solutions for a function and its integrals put in: k = cos u, K = sin u."""
    laws = conservation_laws(pde, order, 2)
    assert len(laws) == len(expected or "abc")
    if expected:
        assert {str(d) for d in laws.densities} == expected
    assert "K' = k" in laws.statement
    u, k = sp.Function("u")(*laws.variables), {"k": sp.cos, "K": sp.sin, "K_": lambda z: -sp.cos(z)}
    x, t = laws.variables
    special = {
        "u_t = diff(k(u)*u_x, x)": u.diff(t) - (sp.cos(u) * u.diff(x)).diff(x),
        "u_t + diff(k(u), x) = 0": u.diff(t) + sp.cos(u).diff(x),
        "u_tt = u_xx + k(u)": u.diff(t, 2) - u.diff(x, 2) - sp.cos(u),
    }[pde]
    for law in laws:
        plain = {sp.Symbol("u"): u} | {sp.Symbol(f"u_{v * n}"): u.diff(sp.Symbol(v), n) for v in "xt" for n in (1, 2)}
        parts = [e.replace(lambda f: type(f).__name__ in k, lambda f: k[type(f).__name__](*f.args))
                 for e in (law.density, *law.fluxes, *law.multipliers)]  # fmt: skip
        density, flux, multiplier = (e.xreplace(plain) for e in parts)
        assert sp.simplify(density.diff(t) + flux.diff(x) - multiplier * special) == 0
