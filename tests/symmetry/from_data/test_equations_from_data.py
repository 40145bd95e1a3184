"""Fitted equations are those that made the data, state honest errors, and are refused where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.symmetries_from_data import POINTS, line
from benchmarks.symmetries_from_data import noisy as with_noise
from benchmarks.symmetries_from_data import slope as slope_of
from benchmarks.symmetries_from_data import solved as stepped
from tests.helpers import seeded
from trivgeo.errors import ConfigurationError
from trivgeo.symmetry import symmetries_from_data
from trivgeo.symmetry.from_data.regression import FittedEquation, fit_equations, rounded, simplest
from trivgeo.symmetry.from_data.terms import library_of, stencil

BOX, COUNT = 12.0, 64
X = torch.arange(COUNT, dtype=torch.float64) * BOX / COUNT
WAVE = 2 * math.pi * X / BOX


def slope(u: Tensor, order: int = 1) -> Tensor:
    """A derivative of interpolating waves along the last axis."""
    return torch.fft.irfft(torch.fft.rfft(u) * (2j * math.pi / BOX * torch.arange(u.shape[-1] // 2 + 1)) ** order)


def waves(number: int, size: float = 0.4, count: int = COUNT, mean: float = 0.0, modes: int = 5) -> Tensor:
    draw = torch.Generator().manual_seed(3)
    angle = 2 * math.pi * torch.arange(count, dtype=torch.float64) / count
    k = torch.arange(1, modes + 1, dtype=torch.float64)[:, None]
    parts = size * torch.randn(number, 2, modes, generator=draw, dtype=torch.float64)
    return mean + parts[:, 0] @ torch.cos(k * angle) + parts[:, 1] @ torch.sin(k * angle)


def solved(rate: Callable[[float, Tensor], Tensor], u: Tensor, last: float) -> tuple[Tensor, Tensor]:
    """Solutions ``[b, s, n]``, and 37 times."""
    times = torch.linspace(0.0, last, 37, dtype=torch.float64)
    return stepped(rate, u, times, 5e-3), times


noisy = partial(with_noise, seed=8)


@pytest.mark.parametrize(
    ("rate", "size", "coefficients", "dimension"),
    [
        (lambda t, u: 0.1 * slope(u, 2) - slope(u**5) / 5, 0.25, {"diff(u^5, x, 1)": -0.2, "diff(u, x, 2)": 0.1}, 3),
        (lambda t, u: 0.1 * slope(u, 2) + 0.01 * u, 0.4, {"u": 0.01, "diff(u, x, 2)": 0.1}, 6),
        (lambda t, u: 1.5e-5 * slope(u, 2), 0.4, {"diff(u, x, 2)": 1.5e-5}, 6),
    ],
)  # fmt: skip
def test_exact_solutions(
    rate: Callable[[float, Tensor], Tensor], size: float, coefficients: dict[str, float], dimension: int
) -> None:
    """A term of high degree, a small one, and a coefficient of any scale."""
    u, times = solved(rate, waves(12, size), 1.5)
    found = symmetries_from_data(u, (X, times))
    (fitted,) = found.equations
    assert set(fitted.coefficients) == set(coefficients)
    for term, value in coefficients.items():
        error = abs(fitted.coefficients[term] - value)
        assert error <= max(4 * fitted.standard_errors[term], 1e-6 * abs(value))
        assert float(Fraction(fitted.factors[term].strip("()"))) == value
    assert (found.dimension, found.verdict.trusted) == (dimension, True)


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("advective", [False, True])
def test_solutions_of_a_difference_scheme(advective: bool, noise: float) -> None:
    """Differences of second order on 48 points: their equation is that of the scheme, without its truncation."""
    u, h = waves(12, count=48), BOX / 48

    def rate(t: float, u: Tensor) -> Tensor:
        right, left = u.roll(-1, -1), u.roll(1, -1)
        flux = u * (right - left) if advective else (right**2 - left**2) / 2
        return 0.2 * (right - 2 * u + left) / h**2 - flux / (2 * h)

    values, times = solved(rate, u, 1.5)
    grid = [times, BOX / 48 * torch.arange(48)]
    (fitted,) = fit_equations(noisy(values, noise).unsqueeze(1), grid, None, None)
    assert set(fitted.coefficients) == {"diff(u^2, x, 1)", "diff(u, x, 2)"}
    for term, value in {"diff(u^2, x, 1)": -0.5, "diff(u, x, 2)": 0.2}.items():
        error = abs(fitted.coefficients[term] - value)
        assert error <= max(4 * fitted.standard_errors[term], 1e-6)
    assert noise or fitted.residual < 1e-6


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_own_differences_of_a_flux(noise: float) -> None:
    """A scheme with fluxes between points, which no reading of the grid repeats: its errors are not terms."""
    h = BOX / COUNT

    def rate(t: float, u: Tensor) -> Tensor:
        flux = (u * u + u.roll(-1, -1) ** 2) / 2 * (u.roll(-1, -1) - u) / h
        return (flux - flux.roll(1, -1)) / h

    values, times = solved(rate, waves(12, 0.15, mean=1.0, modes=3), 0.5)
    found = symmetries_from_data(noisy(values, noise), (X, times))
    (fitted,) = found.equations
    assert fitted.factors == {"diff(u^3, x, 2)": "(1/3)"}
    assert abs(fitted.coefficients["diff(u^3, x, 2)"] - 1 / 3) <= 4 * fitted.standard_errors["diff(u^3, x, 2)"]
    assert (found.dimension, found.verdict.trusted) == (4, True)


@pytest.mark.parametrize(
    ("rate", "varied", "dimension", "broken"),
    [
        (lambda t, u: 0.5 * (1 + 0.05 * WAVE.sin()) * slope(u, 2), {"diff(u, x, 2)": "x"}, 2, 4),
        (lambda t, u: 0.5 * (1 + 0.3 * WAVE.sin()) * slope(u, 2), {"diff(u, x, 2)": "x"}, 2, 0),
        (lambda t, u: 0.2 * slope(u, 2) - slope(u * u) / 2 + 0.01 * WAVE.sin(), {"1": "x"}, 1, 4),
        (lambda t, u: 0.5 * (1 + 0.3 * math.sin(3 * t)) * slope(u, 2), {"diff(u, x, 2)": "t"}, 6, 0),
    ],
)
def test_coefficients_that_depend_on_place_or_time(
    rate: Callable[[float, Tensor], Tensor], varied: dict[str, str], dimension: int, broken: int
) -> None:
    """No translation is a symmetry that the coefficients break; small parts leave approximate symmetries."""
    u, times = solved(rate, waves(12), 1.5)
    found = symmetries_from_data(u, (X, times))
    (fitted,) = found.equations
    assert fitted.varied == varied
    axis = next(iter(varied.values()))
    assert all(field.text != f"∂_{axis}" for field in found.fields)
    assert (found.dimension, len(found.approximate)) == (dimension, broken)
    assert all(0.001 < b.breaking < 0.05 for b in found.approximate)
    assert found.verdict.trusted


@pytest.mark.parametrize(
    ("rate", "kind"),
    [
        (lambda t, u: 0.2 * slope(u, 2) - u * slope(u), ""),
        (lambda t, u: 0.2 * slope(u, 2) - u * slope(u) + 0.1 * torch.cos(WAVE - t), "a force that"),
        (lambda t, u: -0.1 * slope(u, 3) - u * slope(u), ""),
        (lambda t, u: -0.1 * slope(u, 3) - (1 + 0.03 * WAVE.cos()) * u * slope(u), "diff(u^2, x, 1) that"),
    ],
    ids=["Burgers", "moving source", "Korteweg-de Vries", "depth"],
)  # fmt: skip
def test_a_rest_that_depends_on_place(rate: Callable[[float, Tensor], Tensor], kind: str) -> None:
    """Noise hides what breaks a symmetry from one window, but not from thirty solutions together."""
    u, times = solved(rate, waves(30), 1.5)
    verdict = symmetries_from_data(noisy(u, 0.01), (X, times)).verdict
    assert verdict.trusted == (not kind)
    assert not kind or any(f"is like {kind} depends on place" in reason for reason in verdict.reasons)


def test_functions_that_are_multiples_of_each_other() -> None:
    """The cubic Schroedinger equation in a potential: time, and the phase, which ties both equations."""
    potential = 0.05 * WAVE.cos()

    def rate(_: float, z: Tensor) -> Tensor:
        u, v = z[:, 0], z[:, 1]
        height = u * u + v * v - potential
        return torch.stack([-slope(v, 2) / 2 - height * v, slope(u, 2) / 2 + height * u], 1)

    start = torch.stack([waves(12, mean=0.5), waves(12).flip(0)], 1)
    times = torch.linspace(0.0, 1.5, 37, dtype=torch.float64)
    found = symmetries_from_data(stepped(rate, start, times, 2e-3).transpose(1, 2), (X, times))
    assert "(-1)*a1(x)*u" in found.equations[1].text
    assert (found.dimension, found.verdict.trusted) == (2, True)


def test_solutions_of_different_equations() -> None:
    """A force of its own for each solution: an equation of second order in time fits somewhat, and is not certain."""
    size = 0.2 * torch.linspace(-1, 1, 12, dtype=torch.float64)[:, None]
    wave = torch.sin(2 * math.pi * torch.arange(POINTS) / POINTS)
    u, (x, times) = line(lambda t, u: 0.2 * slope_of(u, 2) - slope_of(u * u) / 2 + size * wave)
    fitted = fit_equations(u.unsqueeze(1), [times, x], None, None)
    assert any(equation.reasons for equation in fitted)


@pytest.mark.parametrize(("residual", "said"), [(0.01, True), (0.0021, False), (5e-4, False)])
def test_what_is_left_unexplained(residual: float, said: bool) -> None:
    """The misfit less one and a half times the noise and the difference of readings, in squares."""
    fitted = FittedEquation("u_t", {"u": "(1)"}, {"u": 1.0}, {"u": 0.1}, residual, noise=0.001, discretization=0.002)
    left = max(residual**2 - 0.0015**2 - 0.002**2, 0.0) ** 0.5
    assert fitted.unexplained == pytest.approx(left)
    assert fitted.says_unexplained is said


def draws(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def soliton() -> Tensor:
    place = X * 3.0 - 10.0 - torch.linspace(0.0, 8.0, 60, dtype=torch.float64)[:, None]
    return (3 / torch.cosh(place / 2) ** 2).unsqueeze(0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (draws(10, 37, COUNT), "left unexplained"),
        (draws(10, 37, COUNT).cumsum(1), "left unexplained"),
        (waves(10).unsqueeze(1).expand(-1, 37, -1), "that change in time"),
        (torch.full((10, 37, COUNT), 3.0), "that change in time"),
        (torch.zeros(10, 37, COUNT), "that change in time"),
        (soliton(), "determine their equation"),
        (torch.exp(-torch.linspace(0, 1, 37))[:, None] * torch.sin(WAVE + draws(5, 1, 1)), "determine their equation"),
    ],
    ids=["white noise", "random walk", "steady", "constant", "zeros", "soliton", "one sine"],
)
def test_data_without_an_equation(values: Tensor, message: str) -> None:
    times = torch.linspace(0, 1.5, values.shape[1], dtype=torch.float64)
    with pytest.raises(ConfigurationError, match=message):
        symmetries_from_data(values, (X, times))


def test_numbers_are_tied_before_they_are_rounded() -> None:
    assert rounded([8 / 81, 0.09861], [1e-3, 2e-4])[0] == rounded([8 / 81, 0.09861], [1e-3, 2e-4])[1]
    assert rounded([-0.5, 0.500001, 2.0], [1e-5] * 3) == [Fraction(-1, 2), Fraction(1, 2), Fraction(2)]
    first, second = rounded([1.0, 1.05], [1e-4, 1e-4])
    assert (first, second) == (1, Fraction(21, 20))


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1.5e-5, 1e-15, "3/200000"),
        (7.8e-5, 1e-15, "39/500000"),
        (0.33331, 1e-4, "1/3"),
        (-2.04e7, 1e4, "-20400000"),
        (0.1234567, 1e-9, "1234567/10000000"),
    ],
)
def test_rounding_does_not_depend_on_the_scale(value: float, error: float, text: str) -> None:
    assert str(simplest(value, error)) == text


def test_differences_are_exact_for_polynomials() -> None:
    x = torch.arange(-8.0, 9.0, dtype=torch.float64)
    for derivative in range(1, 5):
        for order in (2, 4, 8):
            power = derivative + order - 1
            taps = stencil(derivative, order)
            value = sum(w * float((x[8 + k] + 2) ** power) for k, w in taps.items())
            exact = math.perm(power, derivative) * 2.0 ** (power - derivative)
            assert value == pytest.approx(exact, rel=1e-9)


def test_a_library_lists_no_term_twice() -> None:
    """Up to a factor; products of derivatives of two unknowns are there."""
    for unknowns, dims in ((1, 1), (2, 1), (1, 2)):
        terms = library_of(unknowns, dims, 3, 3)
        forms = []
        for term in terms:
            sums = term.expanded()
            least = min(sums.values())
            forms.append(frozenset((m, k / least) for m, k in sums.items()))
        assert len(set(forms)) == len(terms)
    texts = {t.text for t in library_of(2, 1, 2, 3)}
    assert {"1", "u*v", "diff(u, x, 1)*v", "diff(u, x, 1)*diff(v, x, 1)", "diff(v^3, x, 2)"} <= texts


class TestUnitsAndOperatorsThatAreNotLocal:
    """Waves of all lengths on a circle, by their exact factors."""

    @staticmethod
    def waves(rate: Any, length: float = 12.0, span: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
        """Twenty sums of five waves that decay by a function of the wave number, on 64 points at 41 times."""
        x = length * torch.arange(64, dtype=torch.float64) / 64
        t = torch.linspace(0.0, span, 41, dtype=torch.float64)
        k = 2 * torch.pi / length * torch.arange(1.0, 6.0, dtype=torch.float64)
        parts = torch.randn(20, 2, 5, generator=seeded(0), dtype=torch.float64)
        decay = torch.exp(-rate(k)[:, None] * t)
        both = [
            torch.einsum("bk,kx,kt->btx", parts[:, i], f(k[:, None] * x), decay)
            for i, f in enumerate((torch.cos, torch.sin))
        ]
        return both[0] + both[1], x, t

    @pytest.mark.parametrize(("value", "place", "time"), [(1e-9, 1e-9, 1e-6), (1e6, 1e3, 1e5), (1e-30, 1.0, 1.0)])
    def test_units_do_not_matter(self, value: float, place: float, time: float) -> None:
        values, x, t = self.waves(lambda k: 0.1 * k**2)
        found = symmetries_from_data(values * value, (x * place, t * time))
        (equation,) = found.equations
        assert (equation.left, set(equation.coefficients)) == ("u_t", {"diff(u, x, 2)"})
        assert Fraction(equation.factors["diff(u, x, 2)"].strip("()")) == pytest.approx(
            0.1 * place**2 / time, rel=1e-12
        )
        assert equation.coefficients["diff(u, x, 2)"] == pytest.approx(0.1 * place**2 / time, rel=1e-6)
        assert (found.dimension, found.verdict.trusted) == (6, True)

    def test_counts_are_values(self) -> None:
        values, x, t = self.waves(lambda k: 0.1 * k**2)
        found = symmetries_from_data((values * 1e6).round().long(), (x, t))
        assert (found.dimension, found.verdict.trusted) == (6, True)

    def test_a_fractional_diffusion_is_no_certain_equation(self) -> None:
        """u_t = -(-Laplace)^(1/2) u / 5 is scaled with t as with x; series of derivatives have no scaling at all."""
        values, x, t = self.waves(lambda k: 0.2 * k)
        found = symmetries_from_data(values, (x, t))
        assert not found.verdict.trusted
        assert "short waves grow without bound" in str(found.verdict.reasons)

    def test_equations_that_damp_short_waves_stay_certain(self) -> None:
        """Long waves grow and short ones decay, as in Kuramoto's and Sivashinsky's equation."""
        values, x, t = self.waves(lambda k: 0.05 * k**4 - 0.1 * k**2)
        found = symmetries_from_data(values, (x, t))
        assert (found.dimension, found.verdict.trusted) == (3, True)
