"""Text from strangers: what it may say, and that nothing else is done with it."""

from __future__ import annotations

import decimal
import fractions
import pathlib
import re
import time
from typing import Any

import numpy as np
import pytest
import sympy as sp
from sympy.core.function import AppliedUndef

from trivgeo.errors import ConfigurationError
from trivgeo.expressions import exact, parse_equations, parse_expression
from trivgeo.symmetry import find_symmetries, verify

x, y, t, S, r, s = sp.symbols("x y t S r s")
u = sp.Function("u")(x, t)

CODE = "__import__('pathlib').Path({path!r}).touch()"
HOSTILE = [
    CODE,
    "(lambda: " + CODE + ")()",
    "[" + CODE + " for x in (1,)]",
    "x if " + CODE + " else y",
    "{{x: " + CODE + "}}",
    "f'{{" + CODE + "}}'",
    "x + (y := " + CODE + ")",
    "exp(x, evaluate=" + CODE + ")",
    "exp(*[" + CODE + "])",
    "eval(" + repr(CODE) + ")",
    "exec(" + repr(CODE) + ")",
    "x.diff(x)",
    "().__class__.__bases__[0].__subclasses__()",
    "exp.__globals__",
    "u__t",
    "__name__",
    "x[0]",
    "x; y",
    "'a'",
    "b'a'",
    "x and y",
    "not x",
    "x < y",
    "~x",
    "x % y",
    "x // y",
    "x @ y",
    "x | y",
    "x << 9",
    "*x",
    "None",
    "True",
    "...",
    "Symbol(x)",
    "getattr(x, y)",
    "open(x)",
    "factorial(10000000)",
    "exp",
    "exp(x, y)",
    "exp()",
    "await x",
    "yield x",
    "print(x)",
    "0x10",
    "1j",
    "1_000",
    "1e999999999",
    "1/0",
    "0**-1",
    "0**x",
    "log(0)",
    "tan(pi/2)",
    "9**9**9",
    "(9**9)**9**9",
    "((2**64)**64)**64",
    "((((((2**60*exp(8))**64)**64)**64)**64)**64)*u_xx",
    "(((((2**60*sqrt(2))**64)**64)**64)**64)*x",
    "((((exp(8)**64)**64)**64)**64)*x",
    "((x + y)**60)**60",
    "(x + y + t + r)**64",
    "(1 + x)**64*(1 + y)**64*(1 + t)**64",
    "x**(9**9)",
    "x**(y**(9**9))",
    "sqrt(2)**(9**9)",
    "exp(exp(exp(exp(9))))",
    "sin(10**60)",
    "diff(x*y, x, 1000000)",
    "diff(x*y, x, -1)",
    "diff(x*y, x, 0)",
    "diff(x*y, x, 2, 3)",
    "diff(x*y, x*y)",
    "nan",
    "x*inf",
    "oo - x",
    "0**I",
    "diff(u)",
    "diff(u, 2)",
    "x" * 5000,
    "9" * 3999,
    "(" * 1900 + "x" + ")" * 1900,
    "-" * 3900 + "x",
    "exp(" * 900 + "x" + ")" * 900,
    "x" + "**2" * 1000,
    "x" + "+x" * 1900,
    "x\x00",
    "x\\",
    "\u2102",
    "x = y = t",
    "",
    "   ",
]


@pytest.mark.parametrize("attack", HOSTILE, ids=lambda text: text[:30])
def test_attacks_are_refused(attack: str, tmp_path: pathlib.Path) -> None:
    """At every door, with a typed error, at once, and without a trace of execution."""
    trace = tmp_path / "executed"
    text = attack.format(path=str(trace)) if "{path" in attack else attack
    started = time.monotonic()
    with pytest.raises(ConfigurationError):
        parse_expression(text)
    with pytest.raises(ConfigurationError):
        parse_equations([f"u_t = u_xx + {text} = 0" if "=" in text else f"u_t = u_xx + ({text})"])
    with pytest.raises(ConfigurationError):
        find_symmetries(f"u_t = u_xx + ({text})", 1)
    with pytest.raises(ConfigurationError):
        find_symmetries(u.diff(t) - u.diff(x, 2), 1, ansatz=[text])
    with pytest.raises(ConfigurationError):
        verify(u.diff(t) - u.diff(x, 2), (text, 0, 0))
    # nobody needs seconds to refuse a line
    assert time.monotonic() - started < 20
    assert not trace.exists()


@pytest.mark.parametrize("value", ["__import__('os')", "9**9**9", "x", "I", None, object(), float("nan"), [1], True])
def test_values_of_parameters(value: Any) -> None:
    found = find_symmetries("u_t = nu*u_xx", 3)
    for use in (found.group, found.algebra.numeric):
        with pytest.raises(ConfigurationError):
            use(nu=value)
    assert found.group(nu="1/10").dim == 6


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1*x", x / 10),
        ("1e-3", sp.Rational(1, 1000)),
        ("0.12345678901234567890123", sp.Rational("0.12345678901234567890123")),
        (".5 + 2.", sp.Rational(5, 2)),
        ("2*x^3 - -x", 2 * x**3 + x),
        ("exp(-x**2/(4*t))/sqrt(t)", sp.exp(-(x**2) / (4 * t)) / sp.sqrt(t)),
        ("ln(x) + abs(y) + pi", sp.log(x) + sp.Abs(y) + sp.pi),
        ("diff(x**3*y, x, 2, y)", 6 * x),
        ("x**(-4/3)", x ** sp.Rational(-4, 3)),
    ],
)
def test_formulas(text: str, value: Any) -> None:
    assert parse_expression(text) == value


def test_equations() -> None:
    assert parse_equations(["u_t + u*u_x = 0.1*u_xx"]) == [u.diff(t) + u * u.diff(x) - u.diff(x, 2) / 10]
    assert parse_equations(["u(x, t)*diff(u, x, 2)"]) == [u * u.diff(x, 2)]
    assert sp.expand(parse_equations(["diff(u**2*u_x, x) == u_t"])[0] - (u**2 * u.diff(x)).diff(x) + u.diff(t)) == 0
    v = sp.Function("v")(x, t)
    assert sp.expand(parse_equations(["u_t + diff(u^2, x, 3)"])[0] - u.diff(t) - (u**2).diff(x, 3)) == 0
    assert parse_equations(["diff(u, t) = diff(u, x, 2)"]) == [u.diff(t) - u.diff(x, 2)]
    assert parse_equations(["u_t = v_x", "v_t = u_x"]) == [u.diff(t) - v.diff(x), v.diff(t) - u.diff(x)]
    price = sp.Function("V")(S, t)
    assert parse_equations(["V_t + S^2*V_SS"]) == [price.diff(t) + S**2 * price.diff(S, 2)]
    radius, theta = sp.symbols("radius theta")
    w = sp.Function("w")(radius, theta)
    assert parse_equations(["w(radius, theta)*w_radiustheta"]) == [w * w.diff(radius, theta)]
    # a variable E is not Euler's number, which it is elsewhere
    energy = sp.Symbol("E")
    density = sp.Function("n")(energy, t)
    assert parse_equations(["n_t = E*n_EE"]) == [density.diff(t) - energy * density.diff(energy, 2)]
    assert parse_equations(["u_t = E*u_xx"]) == [u.diff(t) - sp.E * u.diff(x, 2)]
    curve, path = sp.Function("y")(x), sp.Function("x")(t)
    assert parse_equations(["y'' + y = 0"]) == [curve.diff(x, 2) + curve]
    assert parse_equations(["x'' = t"]) == [path.diff(t, 2) - t]
    for text in ["x + y", "u(x, t) + v(t, x)", "u(x, x)", "u(2)", "u_t + u(x) = 0 = 1"]:
        with pytest.raises(ConfigurationError):
            parse_equations([text])


@pytest.mark.parametrize(
    ("equation", "named"),
    [
        ("ux = u_t - u_xx", "ux"),
        ("u_t = uxx", "uxx"),
        ("u_t + u*ux = u_xx", "ux"),
        ("w(theta, tau)*wtheta = w_tau", "wtheta"),
        ("u_t + u_x1 = u_xx", "u_x1"),
        ("u_1_t = u_xx", "u_1_t"),
        ("v_t = u_1_x", "u_1_x"),
        ("du/dt = u_xx", "du/dt"),
        ("u_dot = u_xx", "u_dot"),
        ("u_t = u_dx", "u_dx"),
        ("u_t = u_xx + u_old", "u_old"),
        ("d/dt*u = u_xx", "d/dt"),
        ("u_t = d2u/dx2", "d2u/dx2"),
        ("u_t = nu*(d2u)/(dx2) + u_x", "d2u/dx2"),
        ("dudt = u_xx", "dudt"),
        ("u_t + du_dx = u_xx", "du_dx"),
        ("x'' + x = xdot", "xdot"),
        ("u_t + u*u' = u_xx", "u'"),
        ("u_t = u_xx + f'(u)", "f'"),
        ("u_t = f'*u_xx", "f'"),
        ("u__1 + u_x = 0", "u__1"),
    ],
)
def test_what_reads_as_a_derivative_is_no_parameter(equation: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"equation: .*{re.escape(named)}"):
        parse_equations([equation])


@pytest.mark.parametrize(
    ("equations", "trouble"),
    [
        ("u' = u_xx", "one notation"),
        ("y'' = y_p", "one notation"),
        ("y'' = yp", "yp, which reads as one"),
        ("y'' + Dy = 0", "Dy, which reads as one"),
        ("u_t = uXX", "uXX, which reads as one"),
        ("u_t = Δu", "Δu, which reads as one"),
        ("y'' = xy", r"products with their sign \*, got xy"),
        ("u_t = u_xx + uu", r"products with their sign \*, got uu"),
        ("y'' = siny", r"calls of functions with brackets, sin\(y\), got siny"),
        ("y'' = y*lny", r"calls of functions with brackets, ln\(y\), got lny"),
        ("u_t = u_xx + sinu", r"calls of functions with brackets, sin\(u\), got sinu"),
        ("u_t = u_xx + xcos2t*u", r"calls of functions with brackets, cos\(2t\), got xcos2t"),
        ("y'' = sqrtx", r"calls of functions with brackets, sqrt\(x\), got sqrtx"),
        ("u_t = diff(u, x, alpha)", r"orders of derivatives that are numbers, .* got alpha"),
        ("u_t = diff(u^2, x, n)", r"orders of derivatives that are numbers, .* got n"),
        ("diff(u(x,t), t) = diff(u(x,t), x, alpha)", r"derivatives in \['x', 't'\], got one in alpha"),
        ("u_t = u_xx + e^u", r"exponentials as exp\(u\)"),
        ("u_t = u_xx + e^(-x)", r"exponentials as exp\(-x\)"),
        ("u_t = Du_xx", r"needs its sign, D\*u_x"),
        ("u_t = 2u_xx", r"needs its sign \*, near '2u_xx'"),
        ("u_t = u u_x", r"needs its sign \*"),
        ("u_t = u^2u_x", r"needs its sign \*"),
        ("u_t = 2(u_xx)", r"products with their sign \*"),
        ("u_t = (u)(u_x)", r"products with their sign \*, got u\(u_x\)"),
        ("u_t = x(u_x)", r"products with their sign \*"),
        ("u_t = u_xx + f(x,t)", r"one variable beside the unknowns \['u'\], got f\(x, t\)"),
        ("u_t = alpha(u)*u_x", "whose name has one letter"),
        ("u_t = lambda*u_xx", "lambda is a word of Python"),
        (["u_t = u_xx", "u(0,t) = 0"], "boundary and initial conditions"),
        (["y'' = y", "y(0) = 1"], "boundary and initial conditions"),
        ("u_t = u_xx + u(x,t-1)", "delays are not taken"),
        ("y' = y(x-1)", "delays are not taken"),
        ("u(x,t)_t = u_xx", "derivatives are written u_t"),
        ("u_t(x,t) = u_xx(x,t)", r"derivatives as u_t, .* got u_t\(x, t\)"),
        ("u_1_t = u_1_xx", "u_1_t may be meant as one"),
        ("u_t_x = u", "u_t_x may be meant as one"),
        ("d2u/dx2 = du/dt", "d2u/dx2 may be meant as one"),
        ("du/dt = d^2u/dx^2", r"derivatives are written u_t, u_xx, or diff\(u, x, 2\)"),
        ("Dt(u) = u_xx", r"derivatives as u_x, .* got Dt\(u\)"),
        ("D(u,t) = D(u,x,x)", r"derivatives as u_x, .* got D\(u, t\)"),
        ("u_t = laplacian(u)", r"derivatives as u_x, .* got laplacian\(u\)"),
        ("u_t = integral(u, x)", "without integrals and sums"),
        ("u_t = max(u, 0)*u_x", "have derivatives everywhere"),
        ("u_t = conj(u)*u_x", "real and imaginary parts as two unknowns"),
        ("i*u_t + u_xx = 0", "got i, which reads as the imaginary unit"),
        ("u_t = 1j*u_xx", "real and imaginary parts as two unknowns"),
        ("u_t = u(1-u) + u_xx", r"products with their sign \*, got u\(1 - u\)"),
        ("u_t = f(f(u))*u_x", "not inside each other"),
        ("u_t = f'(u)*u_x", r"primes on unknowns .* got f'\(u\)"),
        ("y(0) = 1", "boundary and initial conditions"),
        (["u_t = u_xx", "u_x(0,t) = 0"], r"boundary and initial conditions|got u_x\(0, t\)"),
        (["y'' = y", "y'(0) = 1"], r"expected equations alone, got y'\(0\)"),
        ("u' = u'(t-1)", r"at one place, got u'\(t - 1\)"),
        ("u_t < u_xx", "inequalities are not taken"),
        ("u_t = u²", r"powers are written u\^2"),
        ("u_t = ∂u/∂x", "derivatives are written u_x"),
        ("u_t = u_xx, v_t = v_xx", "several equations are several texts"),
        ('y" + y = 0', "a second derivative is y''"),
        (r"\frac{\partial u}{\partial t} = u_{xx}", "write u_t = u_xx, not LaTeX"),
        (r"u_t = \nu u_xx", "not LaTeX"),
        ("u_t = u_{xx}", "not LaTeX"),
        ("$u_t = u_xx$", "not LaTeX"),
        ("u_t = sgn(x)*u_x", r"expected sign\(x\), got sgn\(x\), which is unknown"),
    ],
)
def test_the_trouble_is_named(equations: str | list[str], trouble: str) -> None:
    with pytest.raises(ConfigurationError, match=trouble):
        parse_equations([equations] if isinstance(equations, str) else equations)


@pytest.mark.parametrize("text", ["y''(x) + y(x) = 0", "y''(x) + y = 0", "y'' + y(x) = 0", "diff(y(x), x, 2) = -y"])
def test_primes_before_the_variable(text: str) -> None:
    """As textbooks write them; the variable is that in parentheses."""
    y = sp.Function("y")(x)
    assert parse_equations([text]) == [y.diff(x, 2) + y]
    s = sp.Symbol("s")
    assert parse_equations(["y'(s) = s*y"]) == [sp.Function("y")(s).diff(s) - s * sp.Function("y")(s)]


@pytest.mark.parametrize(
    ("equation", "parameters"),
    [
        ("u_t = du*u_xx + u_0", "du u_0"),
        ("u_t = dx*u_xx + dy*u_yy", "dx dy"),
        ("u_t = Dx*u_xx + a/d*u", "Dx a d"),
        ("u_t = u/dt + u_xx", "dt"),
        ("n_t = nu*n_uu", "nu"),
        ("u_t = mu*u_xx + u_1*u", "mu u_1"),
        ("x'' = -x + x_0 + x_1", "x_0 x_1"),
    ],
)
def test_parameters_with_names_near_those_of_derivatives(equation: str, parameters: str) -> None:
    (residual,) = parse_equations([equation])
    variables = {s for d in residual.atoms(sp.Derivative) for s in d.expr.args}
    assert {s.name for s in residual.free_symbols - variables} == set(parameters.split())


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0.1, sp.Rational(1, 10)),
        (-4 / 3, sp.Rational(-4, 3)),
        (0.1 + 0.2, sp.Rational(3, 10)),
        (-1 - 4 / 3, sp.Rational(-7, 3)),
        (0.30000000000001, sp.Rational("0.30000000000001")),
        (1e-30, sp.Rational("1e-30")),
        (sp.Float(0.7), sp.Rational(7, 10)),
        (sp.Float("0.123456789012345678901", 21), sp.Rational("0.123456789012345678901")),
        (np.float64(0.1), sp.Rational(1, 10)),
        (np.float32(0.1), sp.Rational(1, 10)),
        (np.int64(3), sp.Integer(3)),
        (decimal.Decimal("0.10"), sp.Rational(1, 10)),
        (fractions.Fraction(1, 3), sp.Rational(1, 3)),
        (0.3 * x**0.5, sp.Rational(3, 10) * sp.sqrt(x)),
        ("0.1", sp.Rational(1, 10)),
    ],
)
def test_numbers_are_exact(value: Any, number: Any) -> None:
    assert exact(value) == number


def test_decimals_agree_with_fractions() -> None:
    """What a decimal says is what the fraction says, for any number of digits."""
    numbers = np.random.default_rng(0)
    for digits in range(1, 15):
        for _ in range(20):
            text = f"{numbers.integers(1, 10**digits)}e-{digits}"
            assert exact(float(text)) == exact(text) == sp.Rational(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), sp.oo, sp.nan, None, object(), {}, True, x > 1])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="rate"):
        exact(value, "rate")


@pytest.mark.parametrize(
    ("equation", "variables"),
    [
        ("u_t = diff(u, x, y)", "x y t"),
        ("diff(u, r, s) = 0", "r s"),
        ("diff(u(r, theta), r, theta) = u(r, theta)", "r theta"),
        ("u_t = diff(u, r, 2) + diff(u, theta, 2) + diff(u, r, theta)", "r theta t"),
        ("u_t = diff(u, x, 2, y, 2)", "x y t"),
        ("u_tn = diff(u, x, n)", "n x t"),
        ("u_t = sinus*u_xx + secant*u", "x t"),
    ],
)
def test_names_that_are_variables_or_parameters_stay(equation: str, variables: str) -> None:
    (residual,) = parse_equations([equation])
    (function,) = residual.atoms(AppliedUndef)
    assert {str(v) for v in function.args} == set(variables.split())
