"""Invariant solutions: reduced equations by hand, and solutions of them against the equations before."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp

from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.symmetry import find_symmetries
from trivgeo.symmetry.equations.vector_fields import Symmetry
from trivgeo.symmetry.result import Symmetries

x, y, t, c = sp.symbols("x y t c")
w = sp.Function("u")


def _named(found: Symmetries, text: str) -> Symmetry:
    return next(g for g in found if g.text == text)


@pytest.fixture(scope="module")
def heat() -> Symmetries:
    return find_symmetries("u_t = u_xx")


@pytest.fixture(scope="module")
def kdv() -> Symmetries:
    return find_symmetries("u_t + u*u_x + u_xxx = 0")


def test_heat(heat: Symmetries) -> None:
    """Invariant under scaling is the error function; with the mass kept, the fundamental solution."""
    scaling, mass = _named(heat, "x*∂_x + 2*t*∂_t"), _named(heat, "u*∂_u")
    plain = heat.reduced(scaling)
    assert plain.equations == (2 * w(x).diff(x, 2) + x * w(x).diff(x),)
    assert plain.at == {t: 1}
    assert plain.form() == (w(x / sp.sqrt(t)),)
    assert plain.solution(sp.erf(x / 2)) == (sp.erf(x / (2 * sp.sqrt(t))),)
    kernel = heat.reduced(scaling + -1 * mass)
    (solution,) = kernel.solution("exp(-x^2/4)")
    assert sp.simplify(solution - sp.exp(-(x**2) / (4 * t)) / sp.sqrt(t)) == 0
    with pytest.raises(ConfigurationError, match="reduced: expected a solution"):
        kernel.solution("exp(-x^2)")
    with pytest.raises(AlgebraError, match="independently"):
        heat.reduced(mass)
    with pytest.raises(ConfigurationError, match="at least one"):
        heat.reduced()


def test_waves(kdv: Symmetries) -> None:
    """The soliton of KdV solves the equation of travelling waves."""
    right, later = _named(kdv, "∂_x"), _named(kdv, "∂_t")
    wave = kdv.reduced(c * right + later)
    assert wave.equations == (w(x).diff(x, 3) + w(x) * w(x).diff(x) - c * w(x).diff(x),)
    assert wave.form() == (w(x - c * t),)
    (soliton,) = wave.solution(3 * c / sp.cosh(sp.sqrt(c) * x / 2) ** 2)
    expected = 3 * c / sp.cosh(sp.sqrt(c) * (x - c * t) / 2) ** 2
    assert abs(float((soliton - expected).subs({x: 0.3, t: 0.4, c: 1.7}))) < 1e-12


@pytest.mark.slow
def test_against_numbers(kdv: Symmetries) -> None:
    """A numerical solution of the similarity equation of KdV, spread by the formula, solves KdV by differences."""
    similar = kdv.reduced(_named(kdv, "x*∂_x + 3*t*∂_t - 2*u*∂_u"))
    (equation,) = similar.equations
    jets = sp.symbols("a:3")
    third = sp.solve(equation, w(x).diff(x, 3))[0]
    third = third.subs(w(x).diff(x, 2), jets[2]).subs(w(x).diff(x), jets[1]).subs(w(x), jets[0])
    rate = sp.lambdify((x, jets), [jets[1], jets[2], third], "math")
    h = 1 / 400
    state, values = np.array([0.4, -0.2, 0.3]), [0.4]
    for k in range(800):
        z = -1 + k * h
        a = np.array(rate(z, state))
        b = np.array(rate(z + h / 2, state + h / 2 * a))
        d = np.array(rate(z + h / 2, state + h / 2 * b))
        e = np.array(rate(z + h, state + h * d))
        state = state + h / 6 * (a + 2 * b + 2 * d + e)
        values.append(state[0])
    nodes = np.linspace(-1, 1, 801)[::40]
    fit = np.polynomial.Chebyshev.fit(nodes, np.array(values)[::40], 20)
    u = sp.lambdify((x, t), similar.form()[0], [{"u": fit}, "numpy"])
    q, s, step = np.linspace(-0.4, 0.4, 9), 1.1, 0.02

    def by_t(k: int) -> np.ndarray:
        return u(q, s + k * step / 4)

    def by_x(k: int) -> np.ndarray:
        return u(q + k * step, s)

    slope = (8 * (by_t(1) - by_t(-1)) - (by_t(2) - by_t(-2))) / (3 * step)
    first = (8 * (by_x(1) - by_x(-1)) - (by_x(2) - by_x(-2))) / (12 * step)
    thirds = (by_x(-3) - 8 * by_x(-2) + 13 * by_x(-1) - 13 * by_x(1) + 8 * by_x(2) - by_x(3)) / (8 * step**3)
    np.testing.assert_allclose(slope + by_x(0) * first + thirds, 0, atol=2e-5)
    assert np.abs(slope).min() > 1e-3


@pytest.mark.slow
def test_two_generators() -> None:
    """Heat in the plane without an angle, and with its mass kept: an equation in the distance."""
    heat = find_symmetries("u_t = u_xx + u_yy")
    turn = next(g for g in heat if g.text in ("y*∂_x - x*∂_y", "-y*∂_x + x*∂_y"))
    scaling, mass = _named(heat, "x*∂_x + y*∂_y + 2*t*∂_t"), _named(heat, "u*∂_u")
    radial = heat.reduced(turn, scaling + -2 * mass)
    assert len(radial.variables) == 1
    (r,) = radial.variables
    left = radial.equations[0].subs(w(r), sp.exp(-(r**2) / 4)).doit()
    assert sp.simplify(left) == 0
    with pytest.raises(AlgebraError, match="one generator"):
        radial.form()
    with pytest.raises(AlgebraError, match="off the span"):
        heat.reduced(_named(heat, "∂_x"), turn)


@pytest.mark.slow
def test_systems() -> None:
    """Plane waves of the nonlinear Schroedinger equation: exp(i (x^2/(4 t) + ...)) by Galilean invariance."""
    nls = find_symmetries(["u_t = -v_xx - (u^2 + v^2)*v", "v_t = u_xx + (u^2 + v^2)*u"])
    boost = _named(nls, "2*t*∂_x - v*x*∂_u + u*x*∂_v")
    reduced = nls.reduced(boost)
    size = 1 / sp.sqrt(t)
    phase = sp.log(t)
    found = reduced.solution([size * sp.cos(phase), size * sp.sin(phase)])
    angle = phase + x**2 / (4 * t)
    for value, expected in zip(found, (size * sp.cos(angle), size * sp.sin(angle)), strict=True):
        assert abs(float((value - expected).subs({x: 0.7, t: 1.3}))) < 1e-12


@pytest.mark.parametrize("coefficient", [sp.Symbol("c"), sp.Symbol("c", positive=True)])
@pytest.mark.parametrize("solution", ["exp(-sqrt(c)*x)", sp.exp(-sp.sqrt(sp.Symbol("c", positive=True)) * x)])
def test_symbols_with_assumptions_are_those_of_text(heat: Symmetries, coefficient: sp.Symbol, solution: object) -> None:
    later, mass = _named(heat, "∂_t"), _named(heat, "u*∂_u")
    (found,) = heat.reduced(later + coefficient * mass).solution(solution)
    assert str(found) == "exp(-sqrt(c)*x + c*t)"


def test_latex(heat: Symmetries) -> None:
    reduction = heat.reduced(_named(heat, "∂_t") + 2 * _named(heat, "u*∂_u"))
    assert r"2 u{\left(x \right)} - \frac{d^{2}}{d x^{2}} u{\left(x \right)} &= 0" in reduction.latex()
    assert r"\text{where } t = 0" in reduction._repr_latex_()


def test_mistaken_calls(heat: Symmetries) -> None:
    """What is no symmetry, no formula or no surface is named, not met inside."""
    scaling = _named(heat, "x*∂_x + 2*t*∂_t")
    with pytest.raises(ConfigurationError, match=r"generators\[0\]: expected an instance of Symmetry, got 5"):
        heat.reduced(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="reduced: expected a number, text or SymPy expression, got None"):
        heat.reduced(scaling).solution(None)
    with pytest.raises(ConfigurationError, match="generator: expected an instance of Symmetry"):
        heat.new_solution("x", 0)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="solution: expected a number, text or SymPy expression, got None"):
        heat.new_solution(scaling, None)
    with pytest.raises(ConfigurationError, match="surface: expected an instance of dict"):
        heat.keeping(3)  # type: ignore[arg-type]
