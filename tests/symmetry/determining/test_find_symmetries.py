"""Textbook symmetry algebras, exactly.

SymPy's own ``infinitesimals`` handles first-order ordinary equations only; what users of such software ask for
(determining equations, exact bases, completeness, infinite ideals, structure, a ready group) is tested here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import sympy as sp
import torch

from tests.helpers import assert_relative, rand, random_elements
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups import HeatSymmetry
from trivgeo.symmetry import find_symmetries, verify
from trivgeo.symmetry.algebra.brackets import bracket, moving_grids
from trivgeo.symmetry.determining.random_points import RandomEvaluator, usable_primes
from trivgeo.symmetry.determining.reconstruction import SquareRoots
from trivgeo.symmetry.equations.numeric import Radicals

x, t, nu, n, kappa = sp.symbols("x t nu n kappa")
U, V, X, T = sp.symbols("u v x t")
u, v = sp.Function("u")(x, t), sp.Function("v")(x, t)

HEAT = sp.Eq(u.diff(t), nu * u.diff(x, 2))
BURGERS = sp.Eq(u.diff(t) + u * u.diff(x), nu * u.diff(x, 2))
KDV = u.diff(t) + u * u.diff(x) + u.diff(x, 3)
WAVE = u.diff(t, 2) - u.diff(x, 2)
SQUARE = u**2 + v**2
NLS = [sp.Eq(u.diff(t), -v.diff(x, 2) - kappa * SQUARE * v), sp.Eq(v.diff(t), u.diff(x, 2) + kappa * SQUARE * u)]


@dataclass(frozen=True)
class Case:
    """An equation, a degree, the number of generators, whether it is linear, whether it has still more symmetries.

    Its group is built in the long run only if `slow_group`, since equations with smaller groups are in the short one.
    """

    name: str
    pde: Any
    degree: int
    count: int
    linear: bool = False
    infinite: bool = False
    slow_group: bool = False

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("heat", HEAT, 3, 6, linear=True),
    Case("burgers", BURGERS, 2, 5),
    Case("kdv", KDV, 1, 4),
    Case("wave", WAVE, 2, 7, linear=True, infinite=True),
    Case("transport", u.diff(t) + u.diff(x), 1, 4, linear=True, infinite=True),
    Case("inviscid burgers", u.diff(t) + u * u.diff(x), 2, 10, infinite=True),
    Case("eikonal", u.diff(t) + u.diff(x) ** 2 / 2, 2, 10, slow_group=True),
    Case("nonlinear heat", sp.Eq(u.diff(t), (u**n * u.diff(x)).diff(x)), 2, 4),
    Case(
        "nonlinear heat -4/3",
        sp.Eq(u.diff(t), (u ** sp.Rational(-4, 3) * u.diff(x)).diff(x)),
        degree=2,
        count=5,
        slow_group=True,
    ),
    Case("nls", NLS, 2, 5, slow_group=True),
    Case("harry dym", sp.Eq(u.diff(t), u**3 * u.diff(x, 3)), 2, 5),
    Case("potential burgers", sp.Eq(u.diff(t), u.diff(x, 2) + u.diff(x) ** 2), 2, 6, infinite=True),
    Case("liouville", u.diff(x, t) * 0 + u.diff(t) - (sp.exp(u) * u.diff(x)).diff(x), 2, 4),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_textbook(case: Case) -> None:
    found = find_symmetries(case.pde, case.degree)
    assert len(found) == len(found.generators) == case.count
    assert (found.infinite_ideal is not None) == case.linear
    assert found.looks_infinite == case.infinite
    assert found.complete_up_to == case.degree
    assert f"up to degree {case.degree}" in found.statement
    for generator in found.generators:
        assert verify(case.pde, generator) == 0, str(generator)
        assert all(c.is_polynomial(*found.variables) for c in generator.components)


def test_heat_basis() -> None:
    """The six generators of Olver's example 2.41 span the result, for symbolic nu."""
    found = find_symmetries(HEAT, 3)
    olver = [
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, U),
        (X, 2 * T, 0),
        (2 * nu * T, 0, -X * U),
        (4 * nu * X * T, 4 * nu * T**2, -(X**2 + 2 * nu * T) * U),
    ]
    assert {tuple(map(sp.expand, g.components)) for g in found.generators} == {
        tuple(sp.expand(sp.sympify(c)) for c in f) for f in olver
    }
    assert "phi" in str(found.infinite_ideal)
    assert all(verify(HEAT, s) == 0 for s in found.infinite_ideal.polynomials)
    assert "x*∂_x + 2*t*∂_t" in repr(found)


def test_degree_too_low_is_said() -> None:
    found = find_symmetries(HEAT, 2)
    assert len(found) == 5
    assert found.grows
    assert not found.looks_infinite
    assert "use degree=3" in found.statement


@pytest.mark.parametrize("equation", ["u_t = u**2*u_x", "u_xt = 0"])
def test_no_degree_is_advised_where_none_is_enough(equation: str) -> None:
    found = find_symmetries(equation, 2)
    assert found.grows
    assert "degree 3 has" in found.statement
    assert "use degree" not in found.statement


def test_special_parameter() -> None:
    """The exponent -4/3 has a projective symmetry more, as Ovsiannikov found."""
    case = next(c for c in CASES if c.name.endswith("-4/3"))
    assert any(sp.degree(g.components[0], X) == 2 for g in find_symmetries(case.pde, 2).generators)


def test_verify_gives_the_residual() -> None:
    assert verify(HEAT, (x, 2 * t, 0)) == 0
    assert verify(HEAT, (x, t, 0)) == sp.expand(nu * sp.Symbol("u_xx"))
    phi = sp.exp(-nu * t) * sp.sin(x)
    assert verify(HEAT, (0, 0, phi)) == 0
    assert verify(HEAT, (0, 0, u)) == 0
    assert verify(HEAT, (0, 0, phi**2)) != 0
    assert verify(NLS, (0, 0, V, -U)) == 0
    assert len(verify(NLS, (0, 0, V, U))) == 2
    # linearization of potential Burgers: e^-u times a solution of the heat equation, not polynomial
    assert verify(sp.Eq(u.diff(t), u.diff(x, 2) + u.diff(x) ** 2), (0, 0, sp.exp(-U - t) * sp.sin(x))) == 0
    with pytest.raises(ConfigurationError, match="expected 3 coefficients"):
        verify(HEAT, (1, 0))


def test_determining_equations() -> None:
    """A symmetry solves each of them; a field that is none fails one."""
    equations = find_symmetries(HEAT, 1).determining_equations
    functions = sorted({f for e in equations for f in e.atoms(sp.core.function.AppliedUndef)}, key=str)
    assert [f.func.__name__ for f in functions] == ["eta_u", "xi_t", "xi_x"]

    def left(eta: Any, xi_t: Any, xi_x: Any) -> list[Any]:
        values = dict(zip(functions, (eta, xi_t, xi_x), strict=True))
        return [sp.simplify(e.subs(values).doit()) for e in equations]

    assert not any(left(-X * U / (2 * nu), 0 * X, T))
    assert any(left(0 * X, T, X))


def test_algebra() -> None:
    algebra = find_symmetries(KDV, 1).algebra
    assert algebra.dim == 4
    weights = [w for w in algebra.trace_ad if w != 0]
    assert weights == [2]
    heat = find_symmetries(HEAT, 3).algebra
    assert not any(heat.trace_ad)
    assert heat.parameters == (nu,)
    split = heat.levi_split(nu=0.1)
    assert (len(split.semisimple), len(split.torus), len(split.ideal)) == (3, 0, 3)
    assert "[X1, X2] = -X1" in repr(heat)
    with pytest.raises(ConfigurationError, match="nu"):
        heat.numeric()
    with pytest.raises(AlgebraError, match=r"off the span.*infinite"):
        _ = find_symmetries(WAVE, 3).algebra


class TestTrivialSymmetries:
    """Fields whose characteristic vanishes on solutions (Olver 1993, section 5.1) are no generators."""

    @pytest.mark.parametrize("degree", [1, 2, 3])
    def test_inviscid_burgers(self, degree: int) -> None:
        """u_t + u u_x = 0: f (d_t + u d_x). Up to these, xi d_x + eta d_u with functions of x - t u and u: counted."""
        pde = u.diff(t) + u * u.diff(x)
        found = find_symmetries(pde, degree)
        assert found.trivial is not None
        assert found.trivial.along.components == (U, 1, 0)
        for member in found.trivial.members:
            factor = member.components[1]
            assert tuple(map(sp.expand, member.components)) == (sp.expand(U * factor), factor, 0)
        # f of degree d - 1 in three variables
        assert len(found.trivial.members) == sp.binomial(degree + 2, 3)
        # none of the generators, nor a combination of them, is trivial
        slope = sp.Symbol("u_x")
        changes = [eta - (xi - tau * U) * slope for xi, tau, eta in (g.components for g in found.generators)]
        columns = [sp.Poly(change, X, T, U, slope).as_dict() for change in changes]
        keys = sorted({key for column in columns for key in column})
        assert sp.Matrix([[column.get(key, 0) for key in keys] for column in columns]).rank() == len(found)
        assert found.looks_infinite
        assert "quasilinear of first order" in found.statement
        assert "trivial: f(x, t, u)*(u*∂_x + ∂_t), for every function f" in repr(found)

    def test_a_solution_stays(self) -> None:
        """x / (1 + t) is moved along its own graph, here by u (d_t + u d_x)."""
        solution = X / (1 + T)
        flow = (U**2, U, 0)
        tangent = flow[2] - flow[0] * sp.diff(solution, X) - flow[1] * sp.diff(solution, T)
        assert sp.simplify(tangent.subs(U, solution)) == 0
        assert verify(u.diff(t) + u * u.diff(x), flow) == 0

    def test_speed_that_is_no_polynomial(self) -> None:
        """The module is known also where the ansatz holds none of it."""
        found = find_symmetries(u.diff(t) + sp.exp(u) * u.diff(x) - x, 1)
        assert found.trivial is not None
        assert found.trivial.members == ()
        assert found.trivial.along.components == (sp.exp(U), 1, X)
        assert all(verify(u.diff(t) + sp.exp(u) * u.diff(x) - x, g) == 0 for g in found.generators)
        assert found.looks_infinite

    @pytest.mark.parametrize("pde", [HEAT, BURGERS, WAVE, u.diff(t) + u.diff(x) ** 2 / 2], ids=str)
    def test_others_have_none(self, pde: Any) -> None:
        assert find_symmetries(pde, 2).trivial is None


FOKKER_PLANCK = sp.Eq(u.diff(t), (x * u).diff(x) + u.diff(x, 2))
GROWTH = sp.Eq(u.diff(t), u.diff(x, 2) + u * sp.log(u))
S, sigma, r = sp.symbols("S sigma r")
price = sp.Function("u")(S, t)
BLACK_SCHOLES = price.diff(t) + sigma**2 * S**2 / 2 * price.diff(S, 2) + r * S * price.diff(S) - r * price


class TestAnsatz:
    """Symmetries whose coefficients are no polynomials, textbook cases."""

    def test_logarithmic_source(self) -> None:
        """u_t = u_xx + u log u: four (Galaktionov and Posashkov), of which two are polynomial."""
        assert len(find_symmetries(GROWTH, 2)) == 2
        found = find_symmetries(GROWTH, 2, ansatz=[sp.exp(t)])
        grow = sp.exp(T)
        assert {g.components for g in found.generators} == {
            (1, 0, 0),
            (0, 1, 0),
            (0, 0, U * grow),
            (2 * grow, 0, -X * U * grow),
        }
        assert "times 1, exp(t), up to degree 2" in found.statement
        assert not found.grows
        assert all(verify(GROWTH, g) == 0 for g in found.generators)

    def test_fokker_planck(self) -> None:
        """Equivalent to the heat equation: six, the group of SL(2) and Heisenberg."""
        found = find_symmetries(FOKKER_PLANCK, 3, ansatz=[sp.exp(k * t) for k in (1, -1, 2, -2)])
        assert len(found) == 6
        assert not found.grows
        assert found.infinite_ideal is not None
        assert all(verify(FOKKER_PLANCK, g) == 0 for g in found.generators)
        split = found.algebra.levi_split()
        assert (len(split.semisimple), len(split.torus), len(split.ideal)) == (3, 0, 3)
        group = found.group()
        numeric = found.algebra.numeric().structure_constants
        assert_relative(group.algebra.structure_constants, numeric, 1e-10)

    @pytest.mark.slow(reason="test_catalogue finds the symmetries of this equation")
    def test_black_scholes(self) -> None:
        """Six for all sigma and r (Gazizov and Ibragimov 1998), with powers of log S."""
        found = find_symmetries(BLACK_SCHOLES, 3, ansatz=[sp.log(S), sp.log(S) ** 2])
        assert len(found) == 6
        assert not found.grows
        assert found.parameters == (r, sigma)
        assert all(verify(BLACK_SCHOLES, g) == 0 for g in found.generators)
        drift = r - sigma**2 / 2
        assert verify(BLACK_SCHOLES, (sigma**2 * T * S, 0, (sp.log(S) - drift * T) * U)) == 0
        assert not any(map(sp.simplify, found.algebra.trace_ad))

    def test_nothing_is_claimed_that_is_no_symmetry(self) -> None:
        """A function that does not help adds nothing."""
        plain, more = find_symmetries(HEAT, 3), find_symmetries(HEAT, 3, ansatz=[sp.exp(x), sp.log(u)])
        assert {g.components for g in plain.generators} == {g.components for g in more.generators}

    def test_superposition(self) -> None:
        """Solutions that the functions make are found as members of the superposition ideal."""
        wave = sp.exp(X + nu * T)
        found = find_symmetries(HEAT, 1, ansatz=[wave])
        members = {sp.powsimp(sp.factor(s.components[2])) for s in found.infinite_ideal.polynomials}
        assert members == {1, X, wave, (X + 2 * nu * T) * wave}

    @pytest.mark.parametrize(
        ("ansatz", "message"),
        [
            ([x * t], "that are no polynomials"),
            ([sp.exp(sp.Symbol("q"))], "functions of"),
            ([sp.besselj(0, x)], "expected powers, exponentials"),
            ([sp.exp(t), sp.exp(t)], "twice"),
            ([sp.Function("f")(x)], "ansatz: expected an expression"),
        ],
    )
    def test_errors(self, ansatz: list[Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            find_symmetries(HEAT, 2, ansatz=ansatz)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=pytest.mark.slow if c.slow_group else ())
        for c in CASES
        if not c.infinite or c.name == "potential burgers"
    ],
    ids=str,
)
def test_group(case: Case) -> None:
    """From the equation to a group that multiplies and acts."""
    found = find_symmetries(case.pde, case.degree)
    parameters = {s.name: 0.7 for s in found.parameters}
    sampler = lambda count: rand(count, len(found.variables), low=0.5, high=1.5)  # noqa: E731
    group = found.group(sampler=sampler, **parameters)
    g, h = (random_elements(group, 3, std=0.05, seed=s) for s in range(2))
    p = rand(4, len(found.variables), low=0.6, high=0.9)
    action = group.action()
    assert_relative(group.log(group.exp(group.log(g))), group.log(g), 1e-10)
    assert_relative(action(group.compose(g, h), p), action(g, action(h, p)), 1e-7)
    assert_relative(group.algebra.structure_constants, found.algebra.numeric(**parameters).structure_constants, 1e-10)


def test_heat_group_is_the_catalogue_group() -> None:
    """Found from the equation alone, and equal to the closed form of the catalogue as maps of jets."""
    found = find_symmetries(HEAT, 3)
    group, oracle = found.group(nu=0.1), HeatSymmetry(0.1)
    names = [str(g.text) for g in found.generators]
    boost = next(i for i, name in enumerate(names) if name.startswith("2*nu*t*∂_x"))
    p = rand(5, 3)
    w = 0.3 * torch.eye(6, dtype=torch.float64)
    # 2 nu t d_x - x u d_u is 2 nu times the catalogue's boost P
    expected = oracle.action()(oracle.exp(0.2 * w[4]), p)
    assert_relative(group.action()(group.exp(w[boost]), p), expected, 1e-9)
    with pytest.raises(ConfigurationError, match="nu"):
        found.group()


def test_numbers_of_generators_are_moderate() -> None:
    """Of Black and Scholes with decimals, which had 10,000 beside 1: elements near the identity move little."""
    equation = "V_t + 0.02*S^2*V_SS + 0.05*S*V_S - 0.05*V = 0"
    found = find_symmetries(equation)
    assert len(found) == 6
    assert all(verify(equation, g) == 0 for g in found)
    numbers = [abs(t.as_coeff_Mul()[0]) for g in found for c in g.components for t in sp.Add.make_args(sp.expand(c))]
    assert max(numbers) <= 30
    group = found.group(sampler=lambda count: rand(count, 3, low=0.5, high=1.5))
    points = rand(4, 3, low=0.5, high=1.5)
    moved = group.action()(random_elements(group, 100, std=0.1, seed=0), points)
    assert bool(torch.isfinite(moved).all())
    assert float((moved - points).norm(dim=-1).median()) < 1.0


def test_a_parameter_that_no_symmetry_holds_has_a_value() -> None:
    """Dispersion leaves the generators of Korteweg and de Vries as they are."""
    found = find_symmetries("u_t + u*u_x + nu*u_xxx = 0", 1)
    assert found.group(nu=2.0).is_same_group(found.group())


@pytest.mark.parametrize(
    ("pde", "options", "message"),
    [
        (HEAT, {"degree": 0}, "degree"),
        (HEAT, {"degree": 1.5}, "degree"),
        (u.diff(t) ** 2 - u.diff(x, 2) ** 2, {}, "solvable"),
        (u.diff(t) - sp.besselj(0, u) * u.diff(x, 2), {}, "expected powers, exponentials"),
        ([u - x, u.diff(t) - u.diff(x, 2)], {}, "solved"),
        (HEAT, {"time": sp.Symbol("s")}, "time"),
        (sp.Eq(x, t), {}, "functions such as"),
        ([u.diff(t) - sp.Function("v")(t, x), v.diff(t)], {}, "same symbols"),
    ],
)
def test_errors(pde: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_symmetries(pde, **options)


def test_more_variables() -> None:
    """The heat equation of the plane: nine generators and superposition."""
    y = sp.Symbol("y")
    w = sp.Function("u")(x, y, t)
    found = find_symmetries(sp.Eq(w.diff(t), w.diff(x, 2) + w.diff(y, 2)), 3)
    assert len(found) == 9
    assert not found.grows


@pytest.mark.parametrize(
    ("equation", "dimension"),
    [
        ("u_t = diff(a*x*u, x) + D*u_xx", 6),
        ("y'' = x^(-15/7)*y^2", 2),
        pytest.param("u_t = u_xx + 2*tanh(x)*u_x", 6, marks=pytest.mark.slow(reason="a function of the equation")),
        pytest.param(
            "u_t = diff(x*u, x) + diff(y*u, y) + u_xx + u_yy", 9, marks=pytest.mark.slow(reason="three variables")
        ),
        pytest.param("y'' = x^(-20/7)*y^2", 2, marks=pytest.mark.slow(reason="another exponent")),
        pytest.param("u_t = x^(2-a)*u_xx", 4, marks=pytest.mark.slow(reason="an exponent that is a parameter")),
    ],
)
def test_rates_and_exponents_are_those_of_the_equation(equation: str, dimension: int) -> None:
    """Ornstein-Uhlenbeck, where only one variable has rates that are roots of parameters; Emden-Fowler."""
    found = find_symmetries(equation)
    assert found.is_complete
    assert len(found) == dimension


@pytest.mark.slow(reason="rates are found twice")
@pytest.mark.parametrize("equation", ["u_t = D*u_xx - a*x^2*u/2", "u_t = u_xx + (a+b)*x^2*u", "u_t = u_xx - a*x^2*u"])
def test_rates_that_are_square_roots_of_parameters(equation: str) -> None:
    """Harmonic oscillators: as many as of the heat equation, constants and the group with numbers for parameters."""
    found = find_symmetries(equation)
    assert found.is_complete
    assert len(found) == 6
    values = {s.name: 0.7 for s in found.parameters}
    numeric = find_symmetries(equation.replace("D", "0.7").replace("a", "0.7").replace("b", "0.7"))
    forms = [e.algebra.numeric(**v).killing_form for e, v in ((found, values), (numeric, {}))]
    signs = [(torch.linalg.eigvalsh(form).abs() > 1e-9).sum() for form in forms]
    assert signs[0] == signs[1] == 3
    assert found.group(**values).dim == 6


def test_square_roots_of_parameters() -> None:
    """Products of roots are one root; nothing irrational is left, and all comes back."""
    a, d = sp.symbols("a D", positive=True)
    expression = (
        sp.sqrt(2 * a * d) * x + a * sp.exp(-2 * sp.sqrt(2 * a * d) * t) + d ** sp.Rational(3, 2) * sp.sqrt(2 * a)
    )
    radicals = Radicals.of([expression], [a, d])
    rational = radicals.put(expression)
    assert len(radicals.parameters) == 2
    assert not any(power.exp.q == 2 for power in rational.atoms(sp.Pow) if power.exp.is_Rational)
    assert sp.simplify(radicals.back(rational) - expression) == 0
    assert not Radicals.of([a * x + sp.sqrt(x) + sp.sqrt(2)], [a])


def test_symmetries_on_grids() -> None:
    """Of heat four; where axes are not periodic what multiplies by functions of x; combinations are found."""
    heat = find_symmetries("u_t = nu*u_xx")
    kept = heat.on_grids([True])
    assert {g.text for g in kept} == {"∂_x", "x*∂_x + 2*t*∂_t", "∂_t", "u*∂_u"}
    assert all(g in heat.generators for g in kept)
    assert len(heat.on_grids([False])) == 6
    mixed = find_symmetries(["u_t = u_xx + v", "v_t = v_xx"]).on_grids([True])
    assert all(sp.diff(c, "x") == 0 for g in mixed for c in g.components[2:])
    with pytest.raises(ConfigurationError, match="periodic: expected one for each"):
        heat.on_grids([True, True])
    with pytest.raises(ConfigurationError, match="time: expected one of"):
        heat.on_grids([True], time="tau")


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("u_t + 2*u_x = 0", {"∂_x", "x*∂_x + t*∂_t", "u*∂_u", "2*∂_x + ∂_t"}),
        ("u_t = u_x + u", {"∂_x", "x*∂_x + t*∂_t + t*u*∂_u", "∂_t", "∂_x - ∂_t - u*∂_u"}),
        (["u_t = u_x", "v_t = -v_x"], {"∂_x", "x*∂_x + t*∂_t", "∂_t", "u*∂_u", "v*∂_v"}),
    ],
)
def test_infinitely_many_symmetries_on_grids(equation: str | list[str], expected: set[str]) -> None:
    """Of all f(u) d/du the affine one; along the characteristics times move as well."""
    assert {g.text for g in find_symmetries(equation).on_grids([True])} == expected


def test_later_times_of_equations_of_first_order() -> None:
    """A shift of time is a combination of a generator and a field along the characteristics."""
    kept = find_symmetries("u_t + u*u_x = 0").on_grids([True])
    assert any(g.components[0] == g.components[2] == 0 and g.components[1].is_number for g in kept)


@pytest.mark.parametrize(
    "equation",
    [
        pytest.param("u_t = u_xx - 7*x^2*u/10", marks=pytest.mark.slow(reason="two fractions stay")),
        "u_t = 2*u_xx/3 - 3*x^2*u/5",
    ],
)
def test_square_roots_of_numbers_in_structure_constants(equation: str) -> None:
    """Roots in denominators, such as sqrt(70)/14 for 5/sqrt(70), are numbers whose squares are known."""
    found = find_symmetries(equation)
    constants, fields, variables = found.algebra.structure_constants, [g.components for g in found], found.variables
    for i, j in itertools.combinations(range(len(found)), 2):
        sums = [sum(c * f[k] for c, f in zip(constants[i][j], fields, strict=True)) for k in range(3)]
        for value, expected in zip(bracket(fields[i], fields[j], variables), sums, strict=True):
            assert sp.simplify(value + expected) == 0  # the bracket of the group is minus that of fields


@pytest.mark.slow(reason="a search in the plane")
@pytest.mark.parametrize(
    ("a", "b"), [("3", "2"), ("5", "7"), ("1/2", "1/3"), ("2", "8"), ("2", "6"), ("4", "9"), ("9", "-4"), ("2", "-3")]
)
def test_rates_that_are_several_square_roots(a: str, b: str) -> None:
    """u_t = u_xx + u_yy - (a x^2 + b y^2) u: an exponential of 2 sqrt(a) t and one of 2 sqrt(b) t, with both signs."""
    equation = f"u_t = u_xx + u_yy - ({a})*x^2*u - ({b})*y^2*u"
    found = find_symmetries(equation)
    assert len(found) == 6
    assert found.is_complete
    assert all(verify(equation, g) == 0 for g in found)
    rates = {abs(sp.N(sp.diff(g.components[3], T) / g.components[3])) for g in found if g.components[3].has(T)}
    for rate in (sp.sqrt(sp.Rational(a)), sp.sqrt(sp.Rational(b))):
        wanted = 2 * abs(rate)
        assert rate.is_real is False or any(abs(wanted - r) < 1e-9 for r in rates if r.is_number)
    if "-" not in b:
        assert found.group().dim == 6
    # exponentials of x are no periodic fields
    assert {g.text for g in found.on_grids([True, True])} == {"∂_t", "u*∂_u"}


def test_square_roots_of_which_products_are_rational() -> None:
    """Numbers of Q(sqrt(2), sqrt(3)) from their values modulo primes; sqrt(6) is no root of its own."""
    roots = SquareRoots([sp.sqrt(2), sp.sqrt(3), sp.sqrt(6), sp.pi, sp.Integer(2) ** sp.Rational(1, 3)])
    assert (roots.roots, roots.others) == ((sp.sqrt(2), sp.sqrt(3)), (sp.pi, sp.Integer(2) ** sp.Rational(1, 3)))
    numbers = [sp.Rational(2, 3) + sp.sqrt(6) / 7 - 5 * sp.sqrt(2), nu * sp.sqrt(3) / (nu + 1), sp.Integer(4)]

    def values(prime: int, fixed: Any) -> list[list[int] | None]:
        rows = []
        for at in fixed:
            e = RandomEvaluator((), 0, 1, prime, 0, at, [nu])
            rows.append([int(e(number)[0, 0]) for number in numbers])
        return rows

    assert roots.numbers(values, [nu], usable_primes([sp.sqrt(2), sp.sqrt(3)])) == numbers


def test_grids_know_squares_of_square_roots() -> None:
    """sqrt(2) (d_x + sqrt(2) x d_u + x d_v) - (d_t + 2 x d_u + sqrt(2) x d_v) adds nothing that changes along x."""
    r = sp.sqrt(2)
    fields = [(1, 0, r * X, X), (0, 1, 2 * X, r * X)]
    ((first, second),) = moving_grids(fields, (X, T, U, V), (), T, {X: True})
    assert sp.simplify(first + r * second) == 0
