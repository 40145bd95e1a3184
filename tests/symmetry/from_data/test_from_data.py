"""Symmetries from samples are those of the equation that made them, of which the method is not told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
import sympy as sp
import torch
from torch import Tensor

from tests.helpers import randn
from trivgeo.actions import Field
from trivgeo.errors import ConfigurationError
from trivgeo.pde import SpectralEquation, solve
from trivgeo.symmetry import find_symmetries, symmetries_from_data
from trivgeo.symmetry.from_data.solution_operator import symmetries_of_operator

BOX, COUNT = 12.0, 64


@lru_cache
def clean_solutions(equation: str, number: int) -> tuple[Tensor, Tensor]:
    """Solutions ``[b, s, n]`` from random waves by an integrating factor and Runge-Kutta steps, and the times."""
    linear, reaction, advected = EQUATIONS[equation][1]
    draw = torch.Generator().manual_seed(3)
    x = torch.arange(COUNT, dtype=torch.float64) * BOX / COUNT
    waves = 2 * math.pi / BOX * torch.arange(1, 6, dtype=torch.float64)
    parts = torch.randn(number, 2, 5, generator=draw, dtype=torch.float64) * 0.4
    state = torch.fft.rfft(parts[:, 0] @ torch.cos(waves[:, None] * x) + parts[:, 1] @ torch.sin(waves[:, None] * x))
    k = 2 * math.pi * torch.fft.rfftfreq(COUNT, BOX / COUNT, dtype=torch.float64)
    times = torch.linspace(0.0, 1.5, 37, dtype=torch.float64)
    step = float(times[1]) / 8
    half = torch.exp(linear(k) * step / 2)
    kept = k < k.max() * 2 / 3

    def rate(modes: Tensor) -> Tensor:
        u = torch.fft.irfft(modes, COUNT)
        return step * (reaction(u, modes) - advected * 0.5j * k * torch.fft.rfft(u * u)) * kept

    found = [state]
    for _ in times[1:]:
        for _ in range(8):
            a = rate(state)
            b = rate(half * (state + a / 2))
            c = rate(half * state + b / 2)
            d = rate(half * half * state + half * c)
            state = half * half * state + (half * half * a + 2 * half * (b + c) + d) / 6
        found.append(state)
    return torch.fft.irfft(torch.stack(found, 1), COUNT), times


def solutions(equation: str, number: int, noise: float = 0.0) -> Field:
    """Solutions with noise relative to their size."""
    clean, times = clean_solutions(equation, number)
    draw = torch.Generator().manual_seed(4)
    noisy = clean + noise * clean.std() * torch.randn(clean.shape, generator=draw, dtype=torch.float64)
    return Field.on_box(noisy.unsqueeze(1), [(0.0, BOX)], times.tolist())


def angle(first: Sequence[Any], second: Sequence[Any], variables: Sequence[sp.Symbol]) -> float:
    """The largest principal angle between two spans of fields, in degrees, by their values at random points."""
    draw = torch.Generator().manual_seed(1)
    places = torch.randn(len(variables), 40, generator=draw, dtype=torch.float64)
    spans = []
    for fields in (first, second):
        rows = []
        for field in fields:
            values = sp.lambdify(variables, list(field), "numpy")(*places.numpy())
            rows.append(torch.cat([torch.as_tensor(v, dtype=torch.float64).expand(40) for v in values]))
        spans.append(torch.linalg.qr(torch.stack(rows, 1))[0])
    cosines = torch.linalg.svdvals(spans[0].mT @ spans[1])
    return math.degrees(math.acos(min(1.0, float(cosines.min()))))


# the dimension, and how solutions are made: the symbol, what reacts, and the speed of advection
EQUATIONS: dict[str, tuple[int, tuple[Any, Any, float]]] = {
    "u_t = 0.1*u_xx": (6, (lambda k: -0.1 * k**2, lambda u, v: 0 * v, 0.0)),
    "u_t + u*u_x = 0.1*u_xx": (5, (lambda k: -0.1 * k**2, lambda u, v: 0 * v, 1.0)),
    "u_t + u*u_x + 0.1*u_xxx = 0": (4, (lambda k: 0.1j * k**3, lambda u, v: 0 * v, 1.0)),
    "u_t = 0.1*u_xx + u - u^3": (2, (lambda k: -0.1 * k**2, lambda u, v: v - torch.fft.rfft(u**3), 0.0)),
}


@pytest.mark.parametrize(("noise", "limit"), [(0.0, 2.0), (0.02, 10.0)])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_from_solutions(equation: str, noise: float, limit: float) -> None:
    """Heat, Burgers, Korteweg-de Vries, and Allen-Cahn, which moves in place and time alone."""
    found = symmetries_from_data(solutions(equation, 120, noise))
    assert found.dimension == len(found.fields) == EQUATIONS[equation][0]
    true = find_symmetries(equation)
    assert angle(found.fields, true.generators, true.variables) <= limit


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "limit"), [(0.0, 2.0), (0.02, 10.0)])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_five_hundred_solutions(equation: str, noise: float, limit: float) -> None:
    found, true = symmetries_from_data(solutions(equation, 500, noise)), find_symmetries(equation)
    assert found.dimension == len(found.fields) == EQUATIONS[equation][0]
    assert angle(found.fields, true.generators, true.variables) <= limit


def test_coordinates_in_place_of_a_grid() -> None:
    samples = solutions("u_t + u*u_x = 0.1*u_xx", 120)
    x = torch.arange(COUNT, dtype=torch.float64) * BOX / COUNT
    found = symmetries_from_data(samples.values[:, 0], (x, samples.grid.times[0]), library=2)
    assert found.dimension == 5
    (fitted,) = found.equations
    assert fitted.coefficients["diff(u, x, 2)"] == pytest.approx(0.1, abs=1e-4)
    assert fitted.coefficients["diff(u^2, x, 1)"] == pytest.approx(-0.5, abs=1e-4)
    assert "u_t = " in repr(found)
    assert "2 terms of significance" in found.statement
    assert found.group().dim == 5


def waves(number: int, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """d'Alembert's solutions ``[b, s, n]``, and where they are."""
    draw = torch.Generator().manual_seed(0)
    x = torch.arange(64, dtype=torch.float64) * BOX / 64
    t = torch.linspace(0, 3, 41, dtype=torch.float64)
    lengths = 2 * math.pi / BOX * torch.arange(1, 5, dtype=torch.float64)
    parts = torch.randn(number, 4, 4, generator=draw, dtype=torch.float64)
    right, left = (lengths * (x + s * t[:, None])[..., None] for s in (-1, 1))
    moving = (right.cos(), right.sin(), left.cos(), left.sin())
    values = torch.stack([torch.einsum("bm,txm->btx", parts[:, i], f) for i, f in enumerate(moving)]).sum(0)
    return values + noise * values.std() * torch.randn(values.shape, generator=draw, dtype=torch.float64), x, t


@pytest.mark.parametrize(
    ("number", "noise", "limit"),
    [
        (60, 0.0, 2.0),
        pytest.param(500, 0.0, 2.0, marks=pytest.mark.slow(reason="500 samples")),
        pytest.param(500, 0.02, 10.0, marks=pytest.mark.slow(reason="500 samples")),
    ],
)
def test_waves(number: int, noise: float, limit: float) -> None:
    """Of second order in time: the conformal part on the library of degree two."""
    values, x, t = waves(number, noise)
    found, true = symmetries_from_data(values, (x, t), library=2), find_symmetries("u_tt = u_xx", 2)
    assert found.equations[0].text == "u_tt = (1)*diff(u, x, 2)"
    assert found.dimension == len(true)
    assert angle(found.fields, true.generators, true.variables) <= limit


def test_data_that_no_equation_explains() -> None:
    draw = torch.Generator().manual_seed(0)
    x, t = torch.linspace(0, 1, 40), torch.linspace(0, 1, 30)
    smooth = torch.randn(40, 3, 3, generator=draw)
    waves = torch.arange(1.0, 4.0)
    values = torch.einsum(
        "bij,ti,xj->btx", smooth, torch.sin(6 * waves * t[:, None]), torch.sin(3 * waves * x[:, None])
    )
    with pytest.raises(ConfigurationError, match="left unexplained"):
        symmetries_from_data(values, (x, t))


@pytest.mark.parametrize(
    ("shape", "axes", "message"),
    [
        ((4, 30, 41), (40, 30), "samples: expected values"),
        ((4, 30, 6), (6, 30), "at least 9 equidistant"),
        ((4, 30, 40), None, "grid: expected a Grid"),
        ((4, 6, 30, 40), (40, 30), "up to five unknowns"),
    ],
)
def test_samples_that_do_not_fit(shape: tuple[int, ...], axes: tuple[int, ...] | None, message: str) -> None:
    grid = None if axes is None else tuple(torch.linspace(0, 1, n) for n in axes)
    with pytest.raises(ConfigurationError, match=message):
        symmetries_from_data(torch.ones(shape), grid)


def sphere(z: Tensor) -> Tensor:
    return (z.square().sum(-1) - 1).square()


@pytest.mark.parametrize(
    ("function", "n", "dimension"),
    [
        (sphere, 3, 3),
        (lambda z: z[..., 0] ** 2 - z[..., 1] ** 2 - z[..., 2] ** 2, 3, 3),  # SO(1, 2)
        (lambda z: torch.sin(z[..., 0] + 2 * z[..., 1]), 2, 3),  # fields along (2, -1)
        (lambda z: torch.linalg.det(z.reshape(*z.shape[:-1], 2, 2)), 4, 6),  # SL(2) x SL(2)
        (lambda z: torch.stack([z[..., 0] ** 2 + z[..., 1] ** 2, z[..., 2]], -1), 3, 1),  # SO(2)
        (lambda z: z[..., 0] ** 3 + z[..., 1] ** 4 + z[..., 0], 2, 0),
    ],
)
def test_functions(function: Any, n: int, dimension: int) -> None:
    points = torch.randn(300, n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = symmetries_from_data(function, points)
    assert found.dimension == dimension
    for field in found.fields:
        # to first order the function stays at points that the method has not seen
        other = torch.randn(20, n, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        values = sp.lambdify(field.variables, list(field), "numpy")(*other.T.numpy())
        step = torch.stack([torch.as_tensor(v, dtype=torch.float64).expand(20) for v in values], -1)
        _, change = torch.func.jvp(function, (other,), (step,))
        assert change.abs().max() < 1e-6
    if dimension:
        assert found.group().dim == dimension


def test_a_fitted_network() -> None:
    """A network that learned a function of the radius turns with it: one field, near the rotation."""
    draw = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(2, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1)).double()
    z = 2 * torch.rand(400, 2, generator=draw, dtype=torch.float64) - 1
    target = torch.exp(-2 * z.square().sum(-1, keepdim=True))
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=400, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = (network(z) - target).square().mean()
        value.backward()
        return value

    optimizer.step(loss)
    found = symmetries_from_data(network, z)
    assert found.dimension == 1
    x1, x2 = sp.symbols("x1 x2")
    assert angle(found.fields, [(-x2, x1)], (x1, x2)) < 5.0


def test_tolerance_and_points() -> None:
    points = torch.randn(100, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert symmetries_from_data(sphere, points, tolerance=1e-8).dimension == 3
    assert len(symmetries_from_data(sphere, points).singular_values) == 12
    with pytest.raises(ConfigurationError, match="at least 24 values"):
        symmetries_from_data(sphere, points[:10])
    with pytest.raises(ConfigurationError, match="not constant, got a constant"):
        symmetries_from_data(lambda z: z[..., 0] * 0 + 1, points)
    with pytest.raises(ConfigurationError, match="points"):
        symmetries_from_data(sphere, None)


def test_verdict() -> None:
    """Fields that would count as symmetries, but do not close under the bracket, are a reason not to trust the list."""
    points = torch.randn(100, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = symmetries_from_data(sphere, points)
    assert found.verdict.trusted
    assert found.verdict.assumptions
    loose = symmetries_from_data(sphere, points, tolerance=1.01 * found.singular_values[3])
    assert (loose.dimension, loose.verdict.trusted) == (3, False)
    assert loose.verdict.reasons == ("1 more are as small but do not close under the bracket",)
    assert loose.statement.endswith(f"; {loose.verdict.reasons[0]}")


def random_fields(number: int, unknowns: int = 1) -> Field:
    draw = torch.Generator().manual_seed(2)
    x = torch.arange(32, dtype=torch.float64) * BOX / 32
    lengths = 2 * math.pi / BOX * torch.arange(1, 4, dtype=torch.float64)
    parts = torch.randn(number, unknowns, 7, generator=draw, dtype=torch.float64) * 0.3
    values = parts[..., :3] @ torch.cos(lengths[:, None] * x) + parts[..., 3:6] @ torch.sin(lengths[:, None] * x)
    return Field.on_box(values + parts[..., 6:], [(0.0, BOX)])


@pytest.mark.parametrize(
    ("equation", "fields"),
    [
        ("u_t + u*u_x = 0.2*u_xx", {"∂_x", "t*∂_x + ∂_u"}),
        ("u_t = 0.2*u_xx", {"∂_x", "∂_u", "u*∂_u"}),
        ("u_t = 0.2*u_xx + u - u^3", {"∂_x"}),
    ],
)
def test_of_an_operator(equation: str, fields: set[str]) -> None:
    """The solver in place of a network, and one that is off it: how much symmetries are broken is said."""
    spectral, initial = SpectralEquation.from_equation(equation), random_fields(12)
    wave = torch.sin(2 * math.pi * torch.arange(32, dtype=torch.float64) / 32)

    def network(values: Tensor, off: float = 0.0) -> Tensor:
        solved = solve(spectral, Field.on_box(values, [(0.0, BOX)]), [0.5], 0.1).values[:, :, 0]
        return solved + off * wave * solved.square()

    found = symmetries_of_operator(network, initial, 0.5)
    assert {f.text for f in found.fields} == fields
    broken = symmetries_of_operator(lambda values: network(values, 1e-3), initial, 0.5)
    assert broken.dimension == len(fields)
    assert found.singular_values[0] < 1e-4 < broken.singular_values[0] < 1e-3


def test_of_an_operator_on_two_unknowns() -> None:
    """Rotations of (u, v), which no one axis of the library is."""
    text = ["u_t = 0.2*u_xx - v*(u^2 + v^2)", "v_t = 0.2*v_xx + u*(u^2 + v^2)"]
    spectral = SpectralEquation.from_equation(text)

    def network(values: Tensor) -> Tensor:
        return solve(spectral, Field.on_box(values, [(0.0, BOX)]), [0.5], 0.1).values[:, :, 0]

    found = symmetries_of_operator(network, random_fields(8, 2), 0.5)
    assert {f.text for f in found.fields} <= {"∂_x", "v*∂_u - u*∂_v", "-v*∂_u + u*∂_v"}
    assert found.dimension == 2
    with pytest.raises(ConfigurationError, match="depend on the fields"):
        symmetries_of_operator(lambda values: values * math.nan, random_fields(8, 2), 0.5)


def test_approximate_symmetries_of_a_forced_operator() -> None:
    """Forced by eps cos(x), a solver of Burgers' equation commutes with translations up to a share that eps is of."""
    spectral, initial = SpectralEquation.from_equation("u_t + u*u_x = 0.2*u_xx"), random_fields(12)
    wave = torch.cos(2 * math.pi * torch.arange(32, dtype=torch.float64) / 32)

    def network(values: Tensor, force: float) -> Tensor:
        for _ in range(4):
            half = values + force * wave / 16
            values = solve(spectral, Field.on_box(half, [(0.0, BOX)]), [0.125], 0.125).values[:, :, 0]
            values = values + force * wave / 16
        return values

    sizes = []
    for force in (0.06, 0.12):
        found = symmetries_of_operator(lambda values, f=force: network(values, f), initial, 0.5, tolerance=1e-5)
        (broken,) = (b for b in found.approximate if b.field.text == "∂_x")
        sizes.append(broken.breaking)
        assert f"approximately: ∂_x, broken by {broken.breaking:.1e}" in repr(found)
    assert sizes[1] / sizes[0] == pytest.approx(2.0, rel=0.1)
    assert 0.001 < sizes[0] < sizes[1] < 0.05


def test_approximate_symmetries_of_a_function() -> None:
    """A sphere with a small slope turns about the slope alone; other rotations are broken by its share."""
    points = torch.randn(300, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sizes = []
    for slope in (0.01, 0.02):
        found = symmetries_from_data(lambda z, a=slope: sphere(z) + a * z[..., 0], points)
        assert {f.text for f in found.fields} <= {"x3*∂_x2 - x2*∂_x3", "-x3*∂_x2 + x2*∂_x3"}
        assert (found.dimension, len(found.approximate)) == (1, 2)
        for field, breaking in found.approximate:
            rates = sp.lambdify(field.variables, list(field), "numpy")(*points.T.numpy())
            step = torch.stack([torch.as_tensor(r, dtype=torch.float64).expand(300) for r in rates], -1)
            gradient = 4 * (points.square().sum(-1, keepdim=True) - 1) * points + slope * torch.eye(3).double()[0]
            size = (gradient.norm(dim=1) * step.norm(dim=1)).norm()
            assert breaking == pytest.approx(float((gradient * step).sum(1).norm() / size), rel=1e-6)
        sizes.append(found.approximate[0].breaking)
    assert sizes[1] / sizes[0] == pytest.approx(2.0, rel=0.05)


def test_mistaken_calls() -> None:
    with pytest.raises(ConfigurationError, match="grid: expected coordinates that are numbers, got 'x'"):
        symmetries_from_data(torch.randn(3, 10, 12), ("x", "t"))
    with pytest.raises(ConfigurationError, match="network: expected a function of values"):
        symmetries_of_operator(3, random_fields(2), 0.5)  # type: ignore[arg-type]
    points = torch.rand(60, 2, dtype=torch.float64)
    with pytest.raises(ConfigurationError, match="samples: expected a floating-point tensor, got tuple"):
        symmetries_from_data(lambda z: (z,), points)
    with pytest.raises(ConfigurationError, match="samples: expected finite values at finite points"):
        symmetries_from_data(lambda z: z.sum(-1) * math.nan, points)
    with pytest.raises(ConfigurationError, match="a function with finite derivatives"):
        symmetries_from_data(lambda z: (z - z.detach()).square().sum(-1).sqrt(), points)


def test_a_function_with_a_symmetry_that_is_slightly_broken() -> None:
    """An exact rotation is trusted; one broken by a hundredth only where a tolerance allows it."""
    points = randn(200, 2, seed=0)
    square = lambda x: x.square().sum(-1)  # noqa: E731
    broken = lambda x: square(x) + 0.03 * x[:, 0] ** 3  # noqa: E731
    assert symmetries_from_data(square, points).trusted
    found = symmetries_from_data(broken, points)
    assert not found.trusted
    assert "more than rounding" in found.reasons[0]
    assert symmetries_from_data(broken, points, tolerance=0.05).trusted
