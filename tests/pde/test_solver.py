"""The solver against exact solutions, a second solver on a finer grid, and itself with smaller steps."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from tests.helpers import randn, seeded
from tests.pde.equations import KDV, KURAMOTO_SIVASHINSKY, burgers, heat
from trivgeo.actions import Field, Grid
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.pde import FourierModes, GaussianField, SpectralEquation, Vorticity, solve
from trivgeo.pde.predictions import prediction_error
from trivgeo.pde.solver import converged_solution

F64 = torch.float64


def circle(length: float, count: int) -> Tensor:
    return length * torch.arange(count, dtype=F64) / count


def on_circle(u: Tensor, length: float) -> Field:
    return Field.on_box(u.unsqueeze(-2), [(0.0, length)])


class TestExactSolutions:
    def test_soliton(self) -> None:
        """3 c sech^2(sqrt(c) (x - c t) / 2), in the middle of a circle that is long for it."""
        length, c = 60.0, 1.2

        def soliton(t: float) -> Tensor:
            return 3 * c / torch.cosh(math.sqrt(c) / 2 * (circle(length, 256) - 20.0 - c * t)) ** 2

        block = solve(KDV, on_circle(soliton(0.0), length), [0.0, 2.5, 5.0], 0.005)
        for i, t in enumerate((0.0, 2.5, 5.0)):
            torch.testing.assert_close(block.values[0, i], soliton(t), rtol=0, atol=2e-8)

    def test_cole_hopf(self) -> None:
        """u = -2 nu phi_x / phi with phi = 2 + exp(-nu t) cos x."""
        nu, x = 0.1, circle(2 * math.pi, 64)

        def exact(t: float) -> Tensor:
            decay = math.exp(-nu * t)
            return 2 * nu * decay * torch.sin(x) / (2 + decay * torch.cos(x))

        block = solve(burgers(nu), on_circle(exact(0.0), 2 * math.pi), [1.0, 5.0], 0.05)
        for i, t in enumerate((1.0, 5.0)):
            torch.testing.assert_close(block.values[0, i], exact(t), rtol=0, atol=1e-9)

    def test_heat_on_an_oblique_lattice(self) -> None:
        """exp(-nu |k|^2 t) cos(k . x) for k dual to the periods; every step is exact."""
        steps = torch.tensor([[0.3, 0.1], [-0.05, 0.4]], dtype=F64)
        grid = Grid(torch.tensor([[1.0, 2.0, 0.5]], dtype=F64), steps[None])
        points = grid.points(16, 12)
        periods = torch.tensor([[16.0], [12.0]], dtype=F64) * steps
        k = 2 * math.pi * torch.linalg.inv(periods) @ torch.tensor([2.0, -1.0], dtype=F64)
        wave = torch.cos(points[..., :2] @ k)
        block = solve(heat(0.2), Field(wave[None], grid), [0.5, 1.5], 10.0)
        torch.testing.assert_close(block.values[0, 0], wave[0])
        torch.testing.assert_close(block.values[0, 1], wave[0] * torch.exp(-0.2 * k @ k))

    def test_taylor_green_vortices_only_decay(self) -> None:
        x = circle(2 * math.pi, 16)
        w = torch.cos(2 * x[:, None]) * torch.cos(2 * x)
        block = solve(Vorticity(0.05), Field.on_box(w[None], [(0.0, 2 * math.pi)] * 2), [0.0, 2.0], 0.1)
        torch.testing.assert_close(block.values[0, 1], math.exp(-0.05 * 8 * 2.0) * w, rtol=0, atol=1e-10)


def differences(u: np.ndarray, h: float, order: int) -> np.ndarray:
    """Periodic central differences of fourth order."""
    at = lambda k: np.roll(u, -k)  # noqa: E731
    if order == 1:
        return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h)
    if order == 2:
        return (-30 * u + 16 * (at(1) + at(-1)) - (at(2) + at(-2))) / (12 * h**2)
    if order == 3:
        return (-13 * (at(1) - at(-1)) + 8 * (at(2) - at(-2)) - (at(3) - at(-3))) / (8 * h**3)
    return (56 * u - 39 * (at(1) + at(-1)) + 12 * (at(2) + at(-2)) - (at(3) + at(-3))) / (6 * h**4)


SECOND: dict[str, tuple[SpectralEquation, Callable[[np.ndarray, float], np.ndarray], float, float]] = {
    "kdv": (KDV, lambda u, h: -u * differences(u, h, 1) - differences(u, h, 3), 16.0, 1.0),
    "kuramoto-sivashinsky": (
        KURAMOTO_SIVASHINSKY,
        lambda u, h: -u * differences(u, h, 1) - differences(u, h, 2) - differences(u, h, 4),
        22.0,
        2.0,
    ),
    "burgers": (burgers(0.5), lambda u, h: -u * differences(u, h, 1) + 0.5 * differences(u, h, 2), 16.0, 2.0),
}


@pytest.mark.parametrize("name", SECOND)
def test_against_finite_differences_and_scipy(name: str) -> None:
    """Differences of fourth order on twice as many points, by an implicit method of scipy."""
    equation, slope, length, end = SECOND[name]
    field = GaussianField(0.1, 0.5, 6.0, 4, length).sample(1, seeded(0))
    fine = field(circle(length, 128))[0].numpy()
    second = solve_ivp(lambda t, u: slope(u, length / 128), (0.0, end), fine, method="Radau", rtol=1e-6, atol=1e-7)
    u = field(circle(length, 64))
    block = solve(equation, on_circle(u, length), [end], 0.01)
    torch.testing.assert_close(block.values[0, 0, 0], torch.from_numpy(second.y[::2, -1]), rtol=0, atol=3e-4)
    assert float((block.values[0, 0, 0] - u[0]).abs().max()) > 0.1


def test_vorticity_against_scipy() -> None:
    """Velocities and derivatives by dense Fourier matrices, an explicit method of scipy."""
    n, nu, end = 16, 0.02, 0.5
    k = np.fft.fftfreq(n, 1 / n)
    d = np.fft.ifft(1j * np.where(abs(k) == n // 2, 0, k)[:, None] * np.fft.fft(np.eye(n), axis=0), axis=0).real
    laplace = np.fft.ifft(-(k**2)[:, None] * np.fft.fft(np.eye(n), axis=0), axis=0).real
    both = np.kron(laplace, np.eye(n)) + np.kron(np.eye(n), laplace)
    inverse = np.linalg.pinv(both)
    x = circle(2 * math.pi, n)
    w = torch.sin(x[:, None]) * torch.cos(2 * x) + 0.5 * torch.cos(2 * x[:, None] + x) + torch.sin(x)

    def slope(t: float, w: np.ndarray) -> np.ndarray:
        psi = (-inverse @ w).reshape(n, n)
        w = w.reshape(n, n)
        return (-((psi @ d.T) * (d @ w) - (d @ psi) * (w @ d.T)) + nu * (laplace @ w + w @ laplace.T)).ravel()

    second = solve_ivp(slope, (0.0, end), w.ravel().numpy(), rtol=1e-9, atol=1e-9).y[:, -1].reshape(n, n)
    block = solve(Vorticity(nu), Field.on_box(w[None], [(0.0, 2 * math.pi)] * 2), [end], 0.02)
    torch.testing.assert_close(block.values[0, 0], torch.from_numpy(second), rtol=0, atol=2e-3)
    assert float((block.values[0, 0] - w).abs().max()) > 0.2


class TestScheme:
    @pytest.mark.parametrize(
        ("equation", "length", "end", "first"),
        [(KDV, 16.0, 0.5, 0.02), (burgers(0.05), 16.0, 0.5, 0.05), (KURAMOTO_SIVASHINSKY, 22.0, 1.0, 0.05)],
    )
    def test_order_four(self, equation: SpectralEquation, length: float, end: float, first: float) -> None:
        u = GaussianField(0.2, 0.5, 6.0, 8, length).sample(3, seeded(1))(circle(length, 48))
        exact = solve(equation, on_circle(u, length), [end], first / 16).values
        errors = [
            float((solve(equation, on_circle(u, length), [end], step).values - exact).abs().max())
            for step in (first, first / 2, first / 4)
        ]
        slopes = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
        assert all(3.6 < s < 4.8 for s in slopes), (errors, slopes)

    def test_each_datum_has_its_own_grid_and_times(self) -> None:
        u = GaussianField(0.2, 0.5, 6.0, 6, 16.0).sample(2, seeded(2))(circle(16.0, 32))[:, None, None]
        origin = torch.tensor([[[3.0, 1.0]], [[-2.0, 0.0]]], dtype=F64)
        steps = torch.tensor([[[[0.4]]], [[[0.6]]]], dtype=F64)
        times = torch.tensor([[1.5, 2.0], [0.1, 1.0]], dtype=F64)
        together = solve(KDV, Field(u, Grid(origin, steps)), times, 0.02)
        for i in range(2):
            alone = solve(KDV, Field(u[i : i + 1], Grid(origin[i : i + 1], steps[i : i + 1])), times[i : i + 1], 0.02)
            torch.testing.assert_close(together.values[i], alone.values[0], rtol=0, atol=1e-6)
            assert torch.equal(together.grid.origin[i], alone.grid.origin[0])

    def test_single_precision(self) -> None:
        u = GaussianField(0.2, 0.5, 6.0, 6, 16.0).sample(2, seeded(3))(circle(16.0, 32))
        single = solve(KDV, on_circle(u.float(), 16.0), [1.0], 0.02)
        assert single.values.dtype == torch.float32
        double = solve(KDV, on_circle(u, 16.0), [1.0], 0.02)
        torch.testing.assert_close(single.values.double(), double.values, rtol=0, atol=1e-4)

    def test_products_of_kept_modes_do_not_alias(self) -> None:
        """(cos 4x)^2 has no wave of number 4, and KdV conserves the sum of u^2."""
        x, modes = circle(2 * math.pi, 12), FourierModes.of(torch.full((1, 1), 2 * math.pi / 12, dtype=F64), (12,))
        wave = modes.to_modes(torch.cos(4 * x)[None]) * modes.kept
        slope = KDV.nonlinear(modes, wave)
        assert slope is not None
        assert float((slope * modes.kept).abs().max()) < 1e-12
        for count in (9, 12):
            modes = FourierModes.of(torch.full((1, 1), 9.0 / count, dtype=F64), (count,))
            u = modes.to_values(modes.kept * modes.to_modes(torch.randn(1, count, dtype=F64, generator=seeded(4))))
            u = u - u.mean()
            energy = solve(KDV, on_circle(u, 9.0), [0.01, 0.3], 0.001).values.square().sum(-1)[0, 0]
            torch.testing.assert_close(energy[1], energy[0], rtol=1e-8, atol=0)

    def test_the_initial_field_is_as_it_came(self) -> None:
        """Also where it has waves that the solution leaves out, and where only one of two data begins."""
        x = circle(2 * math.pi, 16)
        u = (torch.cos(x) + 0.02 * torch.cos(7 * x)).expand(2, 1, 1, -1)
        grid = Grid(torch.zeros(2, 1, 2, dtype=F64), torch.full((2, 1, 1, 1), math.pi / 8, dtype=F64))
        times = torch.tensor([[0.0, 1.0], [0.5, 1.0]], dtype=F64)
        block = solve(burgers(0.5), Field(u, grid), times, 0.1).values
        assert torch.equal(block[0, 0, 0], u[0, 0, 0])
        without = solve(burgers(0.5), Field(torch.cos(x).expand(2, 1, 1, -1), grid), times, 0.1).values
        torch.testing.assert_close(block[1], without[1], rtol=0, atol=1e-12)

    def test_modes_of_a_real_function(self) -> None:
        u = randn(2, 1, 8, 9)
        modes = FourierModes.of(torch.eye(2, dtype=F64), (8, 9))
        torch.testing.assert_close(modes.to_values(modes.to_modes(u)), u)


def wave(*components: str, size: float = 1.0, count: int = 32) -> Field:
    """A smooth field on a circle, or in the plane, for the equations of the components."""
    x = circle(2 * math.pi, count)
    u = size * torch.stack([torch.sin(x + k) for k in range(len(components))])
    return Field.on_box(u[None], [(0.0, 2 * math.pi)])


@pytest.mark.parametrize(
    ("equation", "is_posed"),
    [
        ("u_t = -0.1*u_xx", False),
        ("u_t = 0.1*u_xx", True),
        ("u_t = u_xxxx", False),
        ("u_t = u_xxx - 0.1*u_xx", False),
        ("u_t = u_xxx", True),
        ("u_t = -u_xx - u_xxxx - u*u_x", True),  # waves that grow are long
        ("u_t = 2*u + 0.1*u_xx", True),
        ("u_t = -(1 + u^2)*u_xx + u^3", False),
        ("u_t = (2 + u)*u_xx", True),
        ("u_t = u_x^2 + u*u_xx", False),  # u has both signs
        (["u_t = v", "v_t = u_xx"], True),
        (["u_t = v", "v_t = -u_xx"], False),
        (["u_t = v_xx", "v_t = u_xx"], False),
        (["u_t = v_x", "v_t = -u_x"], False),
        (["u_t = -(1 + u)*v_x - v*u_x", "v_t = -v*v_x - u_x"], True),  # shallow water, as long as 1 + u > 0
        (["u_t = -(u - 1)*v_x - v*u_x", "v_t = -v*v_x - u_x"], False),
    ],
)
def test_ill_posed_equations_are_refused(equation: str | list[str], is_posed: bool) -> None:
    """By the growth of short waves, in equations and systems, at the coefficients of the field."""
    spectral = SpectralEquation.from_equation(equation)
    field = wave(*([equation] if isinstance(equation, str) else equation), size=0.1)
    if is_posed:
        assert bool(torch.isfinite(solve(spectral, field, [0.1], 0.005).values).all())
    else:
        with pytest.raises(DomainError, match="equation: expected a well-posed one"):
            solve(spectral, field, [0.1], 0.005)


@pytest.mark.parametrize(
    ("right", "is_posed"),
    [
        ("u_xx + u_yy", True),
        ("u_xx - u_yy", False),
        ("u_xy", False),
        ("u_xx + u_xy + u_yy", True),
        ("u_xx + 3*u_xy + u_yy", False),
        ("-u_xx - u_yy - u_xxxx - 2*u_xxyy - u_yyyy - u*u_x", True),
        ("-u_xx - u_yy - u_xxxx", False),
    ],
)
def test_ill_posed_equations_in_the_plane_are_refused(right: str, is_posed: bool) -> None:
    x = circle(2 * math.pi, 16)
    field = Field.on_box((torch.sin(x[:, None]) * torch.cos(x))[None], [(0.0, 2 * math.pi)] * 2)
    spectral = SpectralEquation.from_equation(f"u_t = {right}")
    if is_posed:
        assert bool(torch.isfinite(solve(spectral, field, [0.01], 0.001).values).all())
    else:
        with pytest.raises(DomainError, match="equation: expected a well-posed one"):
            solve(spectral, field, [0.01], 0.001)


def test_a_multiplier_that_grows_is_refused() -> None:
    """Of an equation in Fourier space, unless it ends at some wave."""

    class Backward(SpectralEquation):
        def __init__(self, last: float) -> None:
            self.last = last

        def linear(self, modes: FourierModes) -> Tensor:
            return torch.where(modes.squared < self.last, 0.1 * modes.squared, 0.0)

    with pytest.raises(DomainError, match="well-posed"):
        solve(Backward(math.inf), wave("u"), [0.1], 0.1)
    values = solve(Backward(100.0), wave("u"), [0.5], 0.1).values
    torch.testing.assert_close(values, wave("u").values * math.exp(0.05), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_unresolved_solutions_are_announced(dtype: torch.dtype) -> None:
    """Burgers' shock of a width below the points; also beside a large mean, or where the shock has passed."""

    def shock(count: int, nu: float, mean: float = 0.0, end: float = 2.0) -> Tensor:
        field = wave("u", count=count)
        return solve(burgers(nu), field._replace(values=(mean + field.values).to(dtype)), [end], 0.01).values

    for arguments in ((64, 0.01), (32, 0.02), (32, 0.02, 5.0), (32, 0.02, 0.0, 30.0)):
        with pytest.warns(RuntimeWarning, match="solution: expected one that the grid resolves"):
            shock(*arguments)
    # by as much as its shortest waves a solution is wrong
    error = shock(128, 0.05)[..., ::2] - shock(64, 0.05)
    assert 0.003 < float(error.abs().max()) < 0.05
    with pytest.warns(RuntimeWarning, match="resolves.*1 of 1 components"):
        solve(
            KDV, wave("u", count=16)._replace(values=torch.cos(7 * circle(2 * math.pi, 16))[None, None, None]), [1], 0.1
        )


def test_what_cannot_be_solved_is_refused() -> None:
    u = on_circle(torch.sin(circle(2 * math.pi, 16)), 2 * math.pi)
    with pytest.raises(ConfigurationError, match="max_step"):
        solve(KDV, u, [1.0], 0.0)
    with pytest.raises(DomainError, match="times: expected increasing"):
        solve(KDV, u, [1.0, 0.5], 0.1)
    with pytest.raises(DomainError, match="times: expected increasing"):
        solve(KDV, u, [-1.0, 0.5], 0.1)
    with pytest.raises(ShapeError, match="at least 8 points"):
        solve(KDV, on_circle(torch.zeros(4), 1.0), [1.0], 0.1)
    with pytest.raises(DomainError, match=r"blew up with \[16\] points"):
        solve(KDV, u._replace(values=1e4 * u.values), [30.0], 1.0)
    with pytest.raises(ConfigurationError, match="nu"):
        Vorticity(-1.0)


class TestConvergedSolutions:
    def test_each_field_has_the_steps_that_it_needs(self) -> None:
        """A slow field, one that is fast by its mean, and one whose shock is narrower than the grid."""
        u = torch.sin(circle(2 * math.pi, 32))
        fields = on_circle(torch.stack([0.1 * u, 0.1 * u + 20.0, 50.0 * u]), 2 * math.pi)
        solution, error = converged_solution(burgers(0.05), fields, [0.5, 2.0], 1e-3)
        assert (error[:2] < 1e-3).all()
        assert float(error[2]) > 0.05
        exact = solve(burgers(0.05), fields._replace(values=fields.values[:2]), [0.5, 2.0], 1e-3).values
        torch.testing.assert_close(solution[:2], exact, rtol=0, atol=1e-4)

    def test_blow_up_is_an_infinite_error(self) -> None:
        equation = SpectralEquation.from_equation("u_t = u_xx + u^2")
        fields = on_circle(torch.tensor([-1.0, 5.0], dtype=F64)[:, None].expand(2, 16), 1.0)
        solution, error = converged_solution(equation, fields, [1.0], 1e-3)
        assert float(error[0]) < 1e-3
        assert float(error[1]) == math.inf
        torch.testing.assert_close(solution[0], torch.full((1, 1, 16), -0.5, dtype=F64), rtol=0, atol=1e-4)

    def test_linear_equations_are_solved_exactly(self) -> None:
        x, equation = circle(2 * math.pi, 16), SpectralEquation.from_equation("u_t = 0.2*u_xx")
        solution, error = converged_solution(equation, on_circle(torch.sin(2 * x)[None], 2 * math.pi), [3.0], 1e-3)
        torch.testing.assert_close(solution[0, 0, 0], math.exp(-0.2 * 4 * 3.0) * torch.sin(2 * x))
        assert float(error) < 1e-12


class TestPredictionError:
    SOLUTION = torch.randn(3, 2, 4, 16, generator=seeded(0), dtype=F64)
    GIVEN = torch.randn(3, 2, 16, generator=seeded(1), dtype=F64)

    def test_the_mean_of_the_given_field_has_error_one(self) -> None:
        mean = self.GIVEN.mean(-1)[:, :, None, None].expand_as(self.SOLUTION)
        torch.testing.assert_close(prediction_error(mean, self.SOLUTION, self.GIVEN), torch.ones(3, dtype=F64))
        assert not prediction_error(self.SOLUTION, self.SOLUTION, self.GIVEN).any()

    def test_units_and_moving_frames_do_not_matter(self) -> None:
        answers = self.SOLUTION + 0.1 * self.SOLUTION.flip(0)
        factor, added = torch.tensor([[1e-9, 3e-9], [1e6, -4e6]], dtype=F64).unsqueeze(-1).unbind(1)
        moved = [factor.unsqueeze(-1) * x + added.unsqueeze(-1) for x in (answers, self.SOLUTION)]
        expected = prediction_error(answers, self.SOLUTION, self.GIVEN)
        torch.testing.assert_close(prediction_error(*moved, factor * self.GIVEN + added), expected)

    def test_constant_fields_demand_no_exact_answers(self) -> None:
        one = torch.ones(1, 1, 1, 8, dtype=F64)
        error = prediction_error(1.0 + 1e-6 * one, one, one[:, :, 0])
        torch.testing.assert_close(error, torch.tensor([1e-3], dtype=F64))
        assert float(prediction_error(0 * one, 0 * one, 0 * one[:, :, 0])) == 0.0
