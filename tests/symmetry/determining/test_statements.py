"""What is said about completeness is true, also where less is found than there is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import sympy as sp
import torch
from sympy.polys.matrices import DomainMatrix

from tests.helpers import seeded
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups.ground_fields import PrimeField
from trivgeo.symmetry import find_symmetries, special_values, verify
from trivgeo.symmetry.determining.random_points import PRIMES, RandomEvaluator
from trivgeo.symmetry.determining.reconstruction import rational_reconstruction
from trivgeo.symmetry.result import Symmetries

x, t, n = sp.symbols("x t n")
U = sp.Symbol("u")
u = sp.Function("u")(x, t)


class TestNeverInfiniteInError:
    """Finite algebras of equations with constants, roots and functions that have no values modulo some primes."""

    @pytest.mark.parametrize(
        ("equation", "size", "found"),
        [
            ("y'' = sqrt(2)*y^2", 2, 2),
            ("y'' = 2^(1/3)*sqrt(5)*y^2", 2, 2),
            ("y'' = y^sqrt(2)", 2, 2),
            ("u_t = sqrt(2)*u_xx", 6, 6),
            ("u_t = sqrt(7)*sqrt(3)*u_xx + u*u_x", 5, 5),
            ("u_t = pi*u_xx", 6, 6),
            ("u_t = u_xx + u^pi", 3, 3),
            ("y'' = 2*y", 8, 8),
            ("y'' + y' + y = 0", 8, 8),
            ("y'' = sqrt(1 + y'^2)", 2, 2),
            ("y'' = tan(y)", 1, 1),
            ("u_t = sin(x)*u_xx", 2, 2),
            ("x^2*y'' + x*y' = 2*y", 8, 8),
            ("y'' = x*y", 8, 8),
            ("y'' = x*y^2", 1, 1),
        ],
    )
    def test_size(self, equation: str, size: int, found: int) -> None:
        result = find_symmetries(equation)
        assert result.dimension.size == size
        assert len(result) == found
        assert "infinite-dimensional" not in result.statement
        assert result.statement.startswith("all:" if found == size else f"{found} of at most {size}")
        assert all(verify(equation, field) == 0 for field in result)


def test_less_than_all_is_said() -> None:
    """A degree that is too low, and one that is enough."""
    low, enough = find_symmetries("u_t = u_xx", 2), find_symmetries("u_t = u_xx", 3)
    assert low.statement.startswith("5 of at most 6 beside superposition")
    assert not low.is_complete
    assert enough.statement.startswith("all: the dimension beside superposition is 6")
    assert enough.is_complete


@pytest.mark.parametrize("equation", ["y'' = 0", "y'' + y = 0", "y''' = 0", "y'' = 2*y"])
def test_superposition_of_ordinary_equations_is_finite(equation: str) -> None:
    """It belongs to the algebra, which closes: brackets, evaluated at points, add nothing to the rank."""
    found = find_symmetries(equation)
    assert found.infinite_ideal is None
    basis = [g.components for g in found]
    fields = list(basis)
    for a, b in itertools.combinations(basis, 2):
        pairs = zip(a, b, strict=True)
        fields.append(tuple(_along(a, q, found) - _along(b, p, found) for p, q in pairs))
    evaluate = sp.lambdify(found.variables, [list(field) for field in fields], "numpy")
    points = np.random.default_rng(0).uniform(0.3, 1.2, (20, 2))
    rows = np.concatenate([np.array(evaluate(*point), dtype=float) for point in points], axis=1)
    assert np.linalg.matrix_rank(rows[: len(basis)], rtol=1e-9) == len(basis)
    assert np.linalg.matrix_rank(rows, rtol=1e-9) == len(basis)


def _along(field: Sequence[sp.Expr], function: sp.Expr, found: Symmetries) -> sp.Expr:
    return sp.Add(*(c * sp.diff(function, z) for c, z in zip(field, found.variables, strict=True)))


GAS = "p_t + u*p_x + g*p*u_x = 0; r_t + u*r_x + r*u_x = 0; u_t + u*u_x + p_x/r = 0"


@pytest.mark.parametrize(
    ("equation", "parameter", "values", "sizes"),
    [
        ("u_t = diff(u^n*u_x, x)", "n", ("-4/3", -1, 0), {"-4/3": 5, "0": 6}),
        pytest.param("u_t = u_xx + u/x^2 + a*exp(-x)*u", "a", (0, 1), {"0": 4}, marks=pytest.mark.slow),
        pytest.param(GAS, "g", (2, 3), {"3": 7}, marks=pytest.mark.slow),
    ],
)
def test_special_values(equation: str, parameter: str, values: Sequence[object], sizes: dict[str, int]) -> None:
    """Ovsiannikov 1982: diffusion with the power -4/3; an inverse square; a gas of dimension one."""
    found = special_values(equation.split(";"), parameter, values)
    assert {str(value): dimension.size for value, dimension in found.items()} == sizes
    with pytest.raises(ConfigurationError, match="parameter: expected"):
        special_values(equation.split(";"), "u")


@pytest.mark.parametrize(
    ("equation", "values", "sizes"),
    [
        # Klein and Gordon: translations, a boost and u d_u, and solutions; powers have a scaling in place of those
        ("u_tt = u_xx + u^n", [1, 2, 3], {"1": 4}),
        # by exp(n u) all are the heat equation, whose superposition the others have in another form
        ("u_t = u_xx + n*u_x^2", [0, 1], {}),
        # all are linear: what they have beside superposition decides
        ("u_t = u_xx + n*x^2*u", [0, 1], {}),
    ],
)
def test_superposition_is_more(equation: str, values: Sequence[int], sizes: dict[str, int]) -> None:
    found = special_values(equation, "n", values)
    assert {str(value): dimension.size for value, dimension in found.items()} == sizes


def test_symmetries_are_a_sequence() -> None:
    found = find_symmetries("u_t + u*u_x = 0.1*u_xx")
    assert list(found) == list(found.generators)
    assert found[0] is found.generators[0]
    assert found[-2:] == found.generators[-2:]
    assert len(found) == 5
    assert found[1] in found
    assert "∂_x" in str(found[0])


@pytest.mark.parametrize(
    "function",
    [
        "1/x",
        "x*exp(t)",
        *(
            pytest.param(function, marks=pytest.mark.slow(reason="the other functions stay"))
            for function in ("exp(t)*exp(-t)*x^(1/2)", "sin(x)^2", "log(x^2)")
        ),
    ],
)
def test_redundant_functions_do_no_harm(function: str) -> None:
    """Members of an ansatz that others make up, or that have poles."""
    ansatz = [function, "exp(t)", "cos(x)^2", "log(x)", "x^(-2)"]
    found = find_symmetries("u_t = u_xx", 2, ansatz=ansatz)
    plain = find_symmetries("u_t = u_xx", 2)
    assert len(found) == len(plain)
    assert "∂_u" in repr(found)
    assert all(verify("u_t = u_xx", g) == 0 for g in (*found, *found.infinite_ideal.polynomials))


class TestSolvedForm:
    """Equations that no single variable solves, and their consequences."""

    def test_branches(self) -> None:
        """Both branches of the eikonal equation have the same symmetries; each field moves solutions of both."""
        found = find_symmetries("u_t^2 + u_x^2 = 1")
        assert len(found) == 10
        for sign in (1, -1):
            branch = u.diff(t) - sign * sp.sqrt(1 - u.diff(x) ** 2)
            assert all(verify(branch, field) == 0 for field in found)

    def test_consequences(self) -> None:
        """Of u_x = v_y, u_y = -v_x it follows that both are harmonic."""
        assert verify(["u_x = v_y", "u_y = -v_x"], ("x^2 - y^2", "2*x*y", 0, 0)) == 0
        assert verify(["u_x = v_y", "u_y = -v_x"], ("x^2", "2*x*y", 0, 0)) != 0
        more = ["u_x = v_y", "u_y = -v_x", "u_xx + u_yy = 0"]
        assert verify(more, ("x^2 - y^2", "2*x*y", 0, 0)) == 0

    @pytest.mark.parametrize(
        ("equations", "message"),
        [
            (["u_x = 1", "u_t = x*u_x*t", "u_xt = 5"], r"that do not contradict each other, but -5 = 0 follows$"),
            (["u_t = v_x", "v_t = u_x", "u_t = v_x + 1"], "contradict each other, but -1 = 0 follows$"),
            (["u_t^2 = u_xx^2"], "solvable"),
            (["u_t = abs(u_x)"], "have derivatives everywhere"),
            (["u(x, t) = x", "u_t = u_xx"], "solvable"),
        ],
    )
    def test_refusals(self, equations: list[str], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            find_symmetries(equations)


class TestModular:
    """Arithmetic modulo primes against exact arithmetic."""

    def test_echelon(self) -> None:
        matrix = sp.Matrix(5, 8, lambda i, j: (i * i * j + 3 * i - j * j) % 7 - (i == 4) * (j % 7))
        reduced, pivots = PrimeField(PRIMES[0]).row_echelon(np.array(matrix.tolist(), dtype=np.int64))
        exact, places = DomainMatrix.from_Matrix(matrix).to_field().rref()
        assert tuple(pivots) == places
        assert [[rational_reconstruction(int(v), PRIMES[0]) for v in row] for row in reduced] == exact.to_Matrix()[
            : len(pivots), :
        ].tolist()

    @pytest.mark.parametrize(
        "expression",
        [
            sp.exp(U + t) - sp.exp(U) * sp.exp(t),
            sp.sin(2 * U) - 2 * sp.sin(U) * sp.cos(U),
            sp.sin(U + x) - sp.sin(U) * sp.cos(x) - sp.cos(U) * sp.sin(x),
            sp.sqrt(1 + U**2) ** 3 / (1 + U**2) - sp.sqrt(1 + U**2),
            U**n * U ** (1 - n) - U,
            sp.log(U**2 * x) - 2 * sp.log(U) - sp.log(x),
            sp.sinh(U) - (sp.exp(U) - sp.exp(-U)) / 2,
            sp.exp(n * sp.log(U)) - U**n,
            U ** (n / (n - 1)) - U * U ** (1 / (n - 1)),
            U ** (1 / (n**2 - 1)) - sp.sqrt(U ** (1 / (n - 1)) * U ** (-1 / (n + 1))),
            U ** (1 / (2 * n - 2)) * sp.exp(-n * sp.log(U) / (2 - 2 * n)) - U ** (1 / (n - 1)) * sp.sqrt(U),
            sp.exp(n * U / (n - 1)) - sp.exp(U + U / (n - 1)),
            sp.exp(n * x / (n - U)) - sp.exp(x) * sp.exp(x * U / (n - U)),
            sp.exp(x / (x - 1)) - sp.exp(1) * sp.exp(1 / (x - 1)),
            sp.cos(n * x / (n - 1)) - sp.cos(x + x / (n - 1)),
            (1 + U) ** sp.Rational(1, 3) * (1 + U) ** sp.Rational(2, 3) - 1 - U,
            sp.sqrt(6) - sp.sqrt(2) * sp.sqrt(3),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("order", [0, 3])
    def test_identities(self, expression: sp.Expr, order: int) -> None:
        """Zero stays zero in all terms of the series, and what is not zero does not vanish."""
        evaluate = RandomEvaluator((x, t, U), order, 40, constants=(n,))
        values = evaluate(expression)[evaluate.valid]
        assert not values.any()
        if len(values):
            assert evaluate(expression + x)[evaluate.valid, 0].all()

    @pytest.mark.parametrize(
        "function", [sp.exp(U * x), sp.log(1 + U), sp.sqrt(x + U), U**n / x, sp.tan(U), sp.cosh(x)]
    )
    def test_series_are_derivatives(self, function: sp.Expr) -> None:
        """Taylor coefficients are the values of derivatives at the same point."""
        evaluate = RandomEvaluator((x, U), 2, 12, constants=(n,), at_one_point=True)
        series = evaluate(function)
        for k, index in enumerate(evaluate.series.monomials):
            value = sp.diff(function, (x, index[0]), (U, index[1])) / sp.factorial(index[0]) / sp.factorial(index[1])
            expected = evaluate(value)[:, 0]
            assert (series[:, k] == expected)[evaluate.valid].all()


def test_exponents_with_relations() -> None:
    """Exponents that are rational in a parameter: u^(-4/3) in another form, and the heat equation in disguise."""
    pde = "u_t = u^(n/(n-1))*u_xx + (n/(4*(n-1)) - 1)*u^(1/(n-1))*u_x^2"
    assert verify(pde, ("x^2", "0", "4*(n-1)/n*x*u")) == 0
    found = find_symmetries(pde)
    assert found.dimension.size == len(found) == 5
    heat = find_symmetries("u_t = u_xx + (exp(n*u/(n-1)) - exp(u + u/(n-1)))*x")
    assert heat.looks_infinite
    assert len(find_symmetries("u_t = u_xx + exp(n*u/(n-1)) - exp(u/(n-1))")) == 2


@pytest.mark.parametrize("pde", ["u_t = u_xx + 1", "u_t = u_xx + u_x + 1", "u_t = u_xx + u + x"])
def test_inhomogeneous_linear_equations_close(pde: str) -> None:
    """They are the heat equation about a solution; every field is a symmetry, and the group acts on solutions."""
    found = find_symmetries(pde)
    assert found.algebra.name() == "sl(2, R) ⋉ h(3)"
    assert all(verify(pde, field) == 0 for field in found)
    group = found.group()
    g, h = (group.random(3, std=0.05, dtype=torch.float64, generator=seeded(k)) for k in (0, 1))
    x = 0.3 * torch.randn(3, 4, 3, dtype=torch.float64, generator=seeded(2))
    act = group.action()
    torch.testing.assert_close(act(group.compose(g, h), x), act(g, act(h, x)), rtol=1e-7, atol=1e-7)


def test_the_algebra_of_no_symmetries_has_a_name() -> None:
    algebra = find_symmetries("y'' + x*y' + y^2 = 0").algebra
    assert algebra.name() == "0"
    with pytest.raises(AlgebraError, match="at least one generator, got none"):
        algebra.numeric()


def test_parameters_without_a_value_are_named() -> None:
    found = find_symmetries("u_t = nu*u_xx + lam*u_x^2")
    with pytest.raises(ConfigurationError, match=r"as in \(lam=1.0, nu=1.0\)"):
        found.algebra.numeric()
    with pytest.raises(ConfigurationError, match="by keyword, for each of: lam, nu"):
        found.group()


FLOW = [
    "u_t + u*u_x + v*u_y + p_x = u_xx + u_yy",
    "v_t + u*v_x + v*v_y + p_y = v_xx + v_yy{}",
    "u_x + v_y = 0",
]
CONVECTION = [FLOW[0], FLOW[1].format(" + q"), "q_t + u*q_x + v*q_y = q_xx + q_yy", FLOW[2]]


class TestFunctionsOfSomeVariables:
    """Frames that move with a(t), pressures that are added: the functions of textbooks, and their variables."""

    @pytest.mark.parametrize(
        ("equation", "count", "variables", "family"),
        [
            # x, y, t, p, u, v: a moving frame, and a pressure; the other axis is a third function
            ([FLOW[0], FLOW[1].format(""), FLOW[2]], 3, "t", ("sin(t)", "0", "0", "x*sin(t) + exp(t)", "cos(t)", "0")),
            # buoyancy q is the last but two: x, y, t, p, q, u, v
            pytest.param(
                CONVECTION,
                3,
                "t",
                ("0", "sin(t)", "0", "y*sin(t) + exp(t)", "0", "0", "cos(t)"),
                marks=pytest.mark.slow(reason="four unknowns"),
            ),
            ("diff(u_t + u*u_x + u_xxx, x) + u_yy = 0", 3, "t", ("sin(t)", "0", "0", "cos(t)")),
            # a boundary layer: y is moved by any function of place and time
            (["u_t + u*u_x + v*u_y = u_yy", "u_x + v_y = 0"], 1, "x t", None),
            # functions of x + t and x - t are as free in x as in t
            ("u_xt = exp(u)", 2, "", ("sin(x)", "0", "-cos(x)")),
            ("u_tt = u_xx + u_x^2 - u_t^2", 4, "", None),
        ],
        ids=["flow", "convection", "Kadomtsev-Petviashvili", "layer", "Liouville", "wave"],
    )
    def test_in_the_plane(
        self, equation: str | list[str], count: int, variables: str, family: tuple[str, ...] | None
    ) -> None:
        found = find_symmetries(equation)
        names = " and ".join(variables.split()) or "1 variable"
        assert found.dimension.functions == count
        assert [v.name for v in found.dimension.variables] == variables.split()
        assert f"depends on {count} function{'s' * (count > 1)} of {names};" in found.statement
        if family is not None:
            assert verify(equation, family) == 0

    @pytest.mark.slow(reason="four unknowns over space and time")
    def test_in_space(self) -> None:
        rate, pairs = "u*{0}_x + v*{0}_y + w*{0}_z", zip("uvw", "xyz", strict=True)
        flow = [f"{a}_t + {rate.format(a)} + p_{x} = {a}_xx + {a}_yy + {a}_zz" for a, x in pairs]
        found = find_symmetries([*flow, "u_x + v_y + w_z = 0"])
        assert found.dimension.functions == 4
        assert "4 functions of t; 17 found" in found.statement

    @pytest.mark.slow(reason="five unknowns")
    def test_magnetic_flow_in_the_plane(self) -> None:
        """The field (b, c) turns with the velocity (u, v); frames that move with two functions, and a pressure."""
        rate = "{0}_t + u*{0}_x + v*{0}_y"
        found = find_symmetries(
            [
                f"{rate.format('u')} + p_x - b*b_x - c*b_y = u_xx + u_yy",
                f"{rate.format('v')} + p_y - b*c_x - c*c_y = v_xx + v_yy",
                f"{rate.format('b')} - b*u_x - c*u_y = b_xx + b_yy",
                f"{rate.format('c')} - b*v_x - c*v_y = c_xx + c_yy",
                "u_x + v_y = 0",
                "b_x + c_y = 0",
            ]
        )
        assert "3 functions of t; 12 found" in found.statement
        assert [v.name for v in found.dimension.variables] == ["t"]
        assert any(g.in_words == "shifts t" for g in found)
