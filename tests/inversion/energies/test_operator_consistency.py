"""Energies of operators from their own answers, against solutions in closed form."""

import math

import pytest
import sympy
import torch
from torch import Tensor

from trivgeo.actions import Field, OperatorAction, OperatorInput, PointCloud
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import SE, HeatSymmetry
from trivgeo.inversion import Inverter
from trivgeo.inversion.energies import OperatorConsistency
from trivgeo.inversion.energies.operator_consistency import partial_derivatives, spread_points
from trivgeo.inversion.stages import GaussianSearch, LevenbergMarquardt
from trivgeo.pde import SpectralEquation, solve

NU = 0.1


def problem(amplitudes: Tensor, start: float = 0.0) -> OperatorInput:
    """Amplitudes times sin(2 x) on [0, 2 pi] at the start, and query points on a box of 8 units of time."""
    x = torch.linspace(0, 2 * math.pi, 60, dtype=amplitudes.dtype)
    u = amplitudes[:, None] * torch.sin(2 * x)
    initial = torch.stack([x.expand_as(u), torch.full_like(u, start), u], -1)
    query = torch.cartesian_prod(x[::3], start + torch.linspace(0, 8, 17, dtype=x.dtype))
    return OperatorInput(initial, query.expand(len(u), -1, -1))


def sine_operator(factor: float = 1.0, rate: float = 4 * NU):
    """The solution for a multiple of sin(2 x), found by projection; exact for the defaults where u_0 is one."""

    def operator(x: OperatorInput) -> Tensor:
        wave = torch.sin(2 * x.initial[..., 0])
        amplitude = (x.initial[..., 2] * wave).sum(-1, keepdim=True) / wave.square().sum(-1, keepdim=True)
        elapsed = x.query[..., 1] - x.initial[..., :1, 1]
        u = factor * amplitude * torch.sin(2 * x.query[..., 0]) * torch.exp(-rate * elapsed)
        return torch.cat([x.query, u.unsqueeze(-1)], -1)

    return operator


def heat(operator) -> OperatorConsistency:
    return OperatorConsistency(operator, "u_t = nu*u_xx", {"nu": NU})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_answers_agree_at_every_amplitude_and_start(dtype: torch.dtype) -> None:
    amplitudes = torch.tensor([1e-3, 1.0, 300.0], dtype=dtype)
    for start in (0.0, -3.0):
        error = heat(sine_operator()).relative_error(problem(amplitudes, start))
        assert error.shape == (3,)
        assert error.dtype == dtype
        assert float(error.max()) < 100 * torch.finfo(dtype).eps


def test_misfit_is_the_relative_error_at_the_start() -> None:
    error = heat(sine_operator(factor=1.2)).relative_error(problem(torch.tensor([1.0, 5.0]).double()))
    torch.testing.assert_close(error, torch.full_like(error, 0.2), rtol=1e-6, atol=0)


def test_a_wrong_rate_is_seen_by_the_equation_alone() -> None:
    x = problem(torch.ones(1).double())
    wrong = sine_operator(rate=3 * NU)
    assert float(OperatorConsistency(wrong).relative_error(x)) < 1e-12
    # u_t - nu u_xx = nu u, in units of the time 1 / (3 nu + 1 / 8), at the query points
    points = spread_points(x.query, 64)
    u = wrong(OperatorInput(x.initial, points))[..., 2]
    expected = NU / (3 * NU + 1 / 8) * u.square().mean().sqrt() / x.initial[..., 2].square().mean().sqrt()
    # the sizes are those at the points of the initial condition and at a stride of them
    assert float(heat(wrong).relative_error(x)) == pytest.approx(float(expected), rel=0.02)


def test_times_before_the_start_are_not_consistent() -> None:
    x = problem(torch.ones(1).double())
    early = OperatorInput(x.initial, torch.stack([x.query[..., 0], x.query[..., 1] - 4.0], -1))
    assert float(heat(sine_operator()).relative_error(early)) > 0.1


def test_systems_of_two_coordinates() -> None:
    """u_t = v_xy, v_t = -u_xy has the solutions u = cos(t) w, v = -sin(t) w for w_xy = w, such as exp(x + y)."""

    def operator(x: OperatorInput) -> Tensor:
        first = x.initial[..., :1, :]
        factor = first[..., 3:4] * torch.exp(-first[..., :2].sum(-1, keepdim=True)) / torch.cos(first[..., 2:3])
        place, t = x.query[..., :2].sum(-1, keepdim=True).exp(), x.query[..., 2:]
        return torch.cat([x.query, factor * place * torch.cos(t), -factor * place * torch.sin(t)], -1)

    plane = torch.rand(1, 30, 2, dtype=torch.float64, generator=torch.manual_seed(0))
    w = plane.sum(-1, keepdim=True).exp()
    zero = torch.zeros_like(w)
    x = OperatorInput(torch.cat([plane, zero + 0.3, 2 * math.cos(0.3) * w, -2 * math.sin(0.3) * w], -1), zero)
    x = x._replace(query=torch.rand(1, 40, 3, dtype=torch.float64, generator=torch.manual_seed(1)) + 0.3)

    right = OperatorConsistency(operator, ["u_t = v_xy", "v_t = -u_xy"])
    wrong = OperatorConsistency(operator, ["u_t = v_xy", "v_t = u_xy"])
    assert float(right.relative_error(x)) < 1e-12
    assert float(wrong.relative_error(x)) > 0.1


def test_partial_derivatives_are_those_of_a_polynomial() -> None:
    x, t = sympy.symbols("x t")
    expression = x**3 * t**2 + 2 * x * t
    points = torch.rand(2, 5, 2, dtype=torch.float64, generator=torch.manual_seed(0))

    def function(p: Tensor) -> Tensor:
        return (p[..., :1] ** 3 * p[..., 1:] ** 2 + 2 * p[..., :1] * p[..., 1:]).expand(*p.shape[:-1], 1)

    indices = [(0, 0), (1, 0), (0, 1), (2, 1), (3, 0)]
    found = partial_derivatives(function, points, indices)
    for a, b in indices:
        expected = sympy.lambdify((x, t), sympy.diff(expression, x, a, t, b) + 0 * x)(*points.unbind(-1))
        torch.testing.assert_close(found[a, b].squeeze(-1), torch.as_tensor(expected).expand(2, 5))


def test_spread_points_reach_the_corners_before_the_neighbours() -> None:
    grid = torch.cartesian_prod(torch.linspace(0, 1, 21), 100 * torch.linspace(0, 1, 21))[None]
    found = spread_points(grid, 5)[0]
    corners = {(0.0, 0.0), (0.0, 100.0), (1.0, 0.0), (1.0, 100.0)}
    assert {(round(a, 4), round(b, 4)) for a, b in found.tolist()} == corners | {(0.5, 50.0)}
    assert spread_points(grid, 441) is grid


def test_the_search_undoes_what_the_operator_cannot_do() -> None:
    """The operator is right at amplitude one only; problems are moved by elements in all six directions."""

    def operator(x: OperatorInput) -> Tensor:
        right = sine_operator()(x)
        size = x.initial[..., 2].square().mean(-1, keepdim=True).sqrt() / 0.5**0.5
        return torch.cat([x.query, right[..., 2:] / size.unsqueeze(-1)], -1)

    group = HeatSymmetry(NU).with_scale([0.05, 0.5, 0.003, 0.3, 0.02, 0.5])
    action = OperatorAction(group.action())
    generator = torch.Generator().manual_seed(0)
    g = group.random(4, dtype=torch.float64, generator=generator)
    x = problem(torch.ones(4).double())
    moved = action(g, x)
    exact = action.point_action(g, sine_operator()(x))
    search = Inverter(action, heat(operator), [GaussianSearch(128, 3, 1.0), LevenbergMarquardt(15)])
    found = search(moved, generator=generator)
    h = found.best()
    answer = action.point_action(h, operator(action(group.inverse(h), moved)))
    alone = operator(moved)

    def error(jets: Tensor) -> Tensor:
        return (jets - exact)[..., 2].norm(dim=-1) / exact[..., 2].norm(dim=-1)

    assert float(error(alone).min()) > 0.05
    assert float(error(answer).max()) < 0.01


def test_points_beyond_the_box_are_seen_by_the_box_alone() -> None:
    """A quarter of an edge too long in x and half an edge too late in t; the operator is right everywhere."""
    x = problem(torch.tensor([1.0, 5.0]).double())
    place, times = x.initial[0, :, 0], x.query[0, :, 1]
    low, edge, last = float(place.min()), float(place.max() - place.min()), float(times.max())
    within = [(low, low + edge), (0.0, last)]
    assert float(OperatorConsistency(sine_operator(), box=within).relative_error(x).max()) < 1e-12
    beyond = [(low, low + 0.8 * edge), (0.0, last / 1.5)]
    points = spread_points(x.query, 64)[0].unbind(-1)
    out = [(p - high).clamp(min=0) / (high - first) for p, (first, high) in zip(points, beyond, strict=True)]
    expected = (sum(float(distance.square().mean()) for distance in out) + 0.25**2) ** 0.5
    error = OperatorConsistency(sine_operator(), box=beyond).relative_error(x)
    torch.testing.assert_close(error, torch.full_like(error, expected))
    with pytest.raises(DomainError, match="expected finite ranges low < high"):
        OperatorConsistency(sine_operator(), box=[(0.0, 0.0), (0.0, 1.0)])
    with pytest.raises(ShapeError, match="expected points of 1 coordinates, of which the box has ranges, got 2"):
        OperatorConsistency(sine_operator(), box=[(0.0, 1.0)])(x)


def test_arguments_are_checked_before_work() -> None:
    with pytest.raises(ConfigurationError, match="operator"):
        OperatorConsistency(3.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="nu"):
        OperatorConsistency(sine_operator(), "u_t = nu*u_xx")
    with pytest.raises(ConfigurationError, match="first order in t"):
        OperatorConsistency(sine_operator(), "u_tt = u_xx")
    x = problem(torch.ones(1).double())
    with pytest.raises(ShapeError, match="expected 3 coordinates and 1 unknowns"):
        OperatorConsistency(sine_operator(), "u_t = u_xx + u_yy")(x)
    with pytest.raises(ShapeError, match="operator: expected jets"):
        OperatorConsistency(lambda x: x.query)(x)
    with pytest.raises(ConfigurationError, match="action"):
        heat(sine_operator()).prepare(PointCloud(SE(2)), x)


CIRCLE = [(0.0, 2 * math.pi)]


def waves(amplitudes: Tensor, mean: float = 0.0) -> Field:
    """Multiples of sin(2 x) + cos(x), plus a mean, at 24 points of a circle."""
    x = 2 * math.pi * torch.arange(24, dtype=amplitudes.dtype) / 24
    return Field.on_box(amplitudes[:, None, None] * (torch.sin(2 * x) + torch.cos(x)) + mean, CIRCLE)


def decayed(rate: float, times: list[float]):
    """Fields [b, 1, n] to [b, 1, s, n]: each mode k decays at rate k^2; exact for u_t = rate u_xx."""

    def network(u: Tensor) -> Tensor:
        modes, k = torch.fft.rfft(u), torch.arange(13, dtype=u.dtype)
        return torch.stack([torch.fft.irfft(modes * torch.exp(-rate * t * k**2), n=24) for t in times], 2)

    return network


class TestNetworksThatStep:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_exact_steps_agree_in_any_unit(self, dtype: torch.dtype) -> None:
        energy = OperatorConsistency(decayed(NU, [1.0, 3.0]), "u_t = nu*u_xx", {"nu": NU}, times=[1.0, 3.0])
        x = waves(torch.ones(3, dtype=dtype), 0.5)
        units = torch.tensor([1e-9, 1.0, 1e9], dtype=dtype).reshape(-1, 1, 1, 1)
        error = energy.relative_error(x._replace(values=units * x.values))
        assert error.dtype == dtype
        assert float(error.max()) < 100 * torch.finfo(dtype).eps

    def test_a_linear_equation_shows_the_whole_error(self) -> None:
        """The residual of a linear equation over a step is the difference to its solution."""
        x = waves(torch.tensor([1.0, 7.0]).double())
        wrong = decayed(0.7 * NU, [2.0])
        error = OperatorConsistency(wrong, "u_t = nu*u_xx", {"nu": NU}, times=[2.0]).relative_error(x)
        u = x.values[:, :, 0]
        expected = (wrong(u) - decayed(NU, [2.0])(u)).flatten(1).norm(dim=1) / u.flatten(1).norm(dim=1)
        torch.testing.assert_close(error, expected)

    def test_laws_see_a_mass_that_is_lost(self) -> None:
        """Burgers' equation keeps the integral of u: a step that halves a mean of one tenth is off by that much."""
        x = waves(torch.ones(1).double(), 0.1)
        energy = OperatorConsistency(lambda u: u - 0.5 * u.mean(-1, keepdim=True), "u_t + u*u_x = nu*u_xx", {"nu": NU},
                                     times=[100.0])  # fmt: skip
        size = float((x.values - 0.1).square().mean().sqrt())
        # a step of a hundred units is too long to check the equation itself
        assert float(energy.relative_error(x)) == pytest.approx(0.05 / size, rel=1e-3)

    def test_short_steps_are_checked_by_the_equation_itself(self) -> None:
        """The solver of Burgers' equation agrees, one of half the viscosity does not, by about the error it makes."""
        equation = SpectralEquation.from_equation("u_t + u*u_x = nu*u_xx", nu=NU)
        other = SpectralEquation.from_equation("u_t + u*u_x = nu*u_xx", nu=0.5 * NU)
        x, h = waves(torch.ones(1).double()), 0.05

        def solver(which: SpectralEquation):
            return lambda u: solve(which, Field.on_box(u, CIRCLE), [h], 0.01).values[:, :, 0]

        right, wrong = (
            OperatorConsistency(solver(e), "u_t + u*u_x = nu*u_xx", {"nu": NU}, times=[h]).relative_error(x)
            for e in (equation, other)
        )
        u = x.values[:, :, 0]
        error = (solver(other)(u) - solver(equation)(u)).norm() / u.norm()
        assert float(right) < 0.02 * float(wrong)
        assert float(wrong) == pytest.approx(float(error), rel=0.1)

    def test_a_numerical_solution_tells_the_error_of_any_step(self) -> None:
        """Over a step that is too long for a rule of integration, the error of another time, and of the mean."""
        equation = SpectralEquation.from_equation("u_t + u*u_x = nu*u_xx", nu=NU)
        x = waves(torch.tensor([0.05, 0.1]).double(), 0.3)
        given = x.values[:, :, 0]

        def solved(u: Tensor, end: float) -> Tensor:
            return solve(equation, Field.on_box(u, CIRCLE), [end], 0.02).values[:, :, 0]

        def measured(network) -> Tensor:
            energy = OperatorConsistency(network, "u_t + u*u_x = nu*u_xx", {"nu": NU}, times=[3.0])
            error, doubt = energy.measured_error(x)
            assert float(doubt.max()) < 0.01
            return error

        late, exact = solved(given, 4.0), solved(given, 3.0)
        assert float(measured(lambda u: solved(u, 3.0)).max()) < 0.01
        off, deviation = (y.flatten(1).norm(dim=1) for y in (late - exact, exact - given.mean(-1, keepdim=True)))
        torch.testing.assert_close(measured(lambda u: solved(u, 4.0)), off / deviation, rtol=0.02, atol=0)
        torch.testing.assert_close(measured(lambda u: u.mean(-1, keepdim=True).expand_as(u)), torch.ones(2).double())
        with pytest.raises(ConfigurationError, match="times: expected those of a network that steps"):
            heat(sine_operator()).measured_error(x)
        with pytest.raises(ConfigurationError, match="equation: expected the equation that is solved"):
            OperatorConsistency(decayed(NU, [1.0, 2.0]), times=[1.0, 2.0]).measured_error(x)

    def test_two_steps_against_one_need_no_equation(self) -> None:
        x = waves(torch.ones(1).double())
        assert float(OperatorConsistency(decayed(NU, [1.0, 2.0]), times=[1.0, 2.0]).relative_error(x)) < 1e-14
        u = x.values[:, :, 0]

        def linear(v: Tensor) -> Tensor:  # 1 - t / 4: two steps of one unit lead to 9 / 16, one of two to 1 / 2
            return torch.stack([0.75 * v, 0.5 * v], 2)

        error = OperatorConsistency(linear, times=[1.0, 2.0]).relative_error(x)
        torch.testing.assert_close(error, torch.full_like(error, 1 / 16))
        assert float(OperatorConsistency(lambda v: u, times=[1.0], box=CIRCLE, equation="u_t = u_xx")(x)) > 0

    def test_what_cannot_be_measured_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="has nothing else to contradict"):
            OperatorConsistency(decayed(NU, [1.0]), times=[1.0])
        with pytest.raises(ConfigurationError, match="increasing ones above zero"):
            OperatorConsistency(decayed(NU, [1.0]), "u_t = u_xx", times=[])
        energy = OperatorConsistency(lambda u: u[..., :12], "u_t = u_xx", times=[1.0])
        with pytest.raises(ShapeError, match="network: expected predictions"):
            energy(waves(torch.ones(1)))
        with pytest.raises(ConfigurationError, match="expected a function of values"):
            OperatorConsistency("fno", "u_t = u_xx", times=[1.0])  # type: ignore[arg-type]
