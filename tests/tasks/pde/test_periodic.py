"""Burgers and KdV: the solver, the random fields, the transformed problems, against closed forms and dense oracles."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.pde.burgers import BurgersEquation
from tasks.pde.domain import relative_l2
from tasks.pde.equation import Equation
from tasks.pde.kdv import KdVEquation, kdv_from_generators
from tasks.pde.periodic import PeriodicSolutions
from tasks.pde.problems import MixedProblems
from trivgeo.actions import Field
from trivgeo.errors import ConfigurationError
from trivgeo.groups import KdVSymmetry
from trivgeo.pde import FourierSeries, GaussianField, solve

F64 = torch.float64
BURGERS, KDV = BurgersEquation(), KdVEquation()
SPREADS = {"burgers": [0.2, 0.4, 0.2, 0.4, 0.4], "kdv": [0.2, 1.0, 0.5, 2.0]}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cole_hopf(field: FourierSeries, x: Tensor, t: Tensor, nu: float, points: int = 512) -> Tensor:
    """Burgers' solution u = -2 nu phi_x / phi at any (x, t), phi a solution of the heat equation; period one."""
    k = 2 * math.pi * torch.arange(1, field.coefficients.shape[-1] + 1, dtype=F64)
    a, b = field.coefficients.unbind(-2)
    y = torch.arange(points, dtype=F64)[:, None] / points * k
    integral = (a / k) @ torch.sin(y).mT - (b / k) @ torch.cos(y).mT
    phi = torch.fft.rfft(torch.exp(-integral / (2 * nu)), norm="forward")
    phi[..., 1:-1] *= 2
    k = 2 * math.pi * torch.arange(points // 2 + 1, dtype=F64)
    modes = phi[..., None, :] * torch.exp((-nu * k**2) * t[..., None] + 1j * k * x[..., None])
    return -2 * nu * (1j * k * modes).sum(-1).real / modes.sum(-1).real


class TestSolver:
    def test_burgers_against_cole_hopf(self) -> None:
        solutions = BURGERS.sample(20, seeded(0))
        points = BURGERS.domain.grid(26, 11, dtype=F64)
        exact = cole_hopf(solutions.field, *(c.expand(20, -1) for c in points.unbind(-1)), BURGERS.nu)
        assert float(relative_l2(solutions.on_grid(26, 11), exact).max()) < 1e-6

    @pytest.mark.parametrize(("equation", "bound"), [(BURGERS, 1e-6), (KDV, 1e-4)])
    def test_grid_is_fine_enough(self, equation: Any, bound: float) -> None:
        """The resolution of the data sets against three times as many points and steps."""
        finer = type(equation)(points=3 * equation.points, steps=3 * equation.steps)
        coarse, fine = (e.sample(10, seeded(2)).on_grid(17, 5) for e in (equation, finer))
        assert float(relative_l2(coarse, fine).max()) < bound

    def test_periodic_grids_end_where_they_start(self) -> None:
        u = KDV.sample(2, seeded(3)).on_grid(9, 3).unflatten(-1, (9, 3))
        assert torch.equal(u[:, 0], u[:, -1])
        torch.testing.assert_close(u[..., 0], KDV.sample(2, seeded(3)).initial(KDV.domain.sensors(9, dtype=F64)))


class TestField:
    def test_covariance_is_the_operator_without_the_mean(self) -> None:
        """Against sigma^2 (-Laplace + tau^2)^-gamma as a power of a dense differentiation matrix."""
        n, field = 64, GaussianField(sigma=3.0, tau=2.0, gamma=3.0, num_modes=31, length=4.0)
        k = 2 * math.pi / 4.0 * torch.fft.fftfreq(n, 1 / n).double()
        laplace = torch.fft.ifft(-(k**2)[:, None] * torch.fft.fft(torch.eye(n, dtype=F64), dim=0), dim=0).real
        values, vectors = torch.linalg.eigh(-(laplace + laplace.mT) / 2 + 4.0 * torch.eye(n, dtype=F64))
        operator = 9.0 * (vectors * values**-3.0) @ vectors.mT * n / 4.0  # a kernel in L2, not a matrix in l2
        x = 4.0 * torch.arange(n, dtype=F64) / n
        operator = operator - 9.0 * 4.0**-3.0 / 4.0  # the constant mode
        torch.testing.assert_close(field.covariance(x[:, None] - x), operator, rtol=1e-6, atol=1e-6)

    def test_samples_have_the_covariance(self) -> None:
        field = BURGERS.field
        x = torch.arange(20, dtype=F64) / 20
        u = field.sample(20_000, seeded(0))(x)
        torch.testing.assert_close(u.mT @ u / len(u), field.covariance(x[:, None] - x), rtol=0, atol=0.02 * 0.0461)
        variance = sum(2 * 25.0**4 * ((2 * math.pi * k) ** 2 + 25) ** -4 for k in range(1, 100))
        assert math.isclose(float(field.covariance(torch.zeros((), dtype=F64))), variance, rel_tol=1e-8)

    def test_bad_fields_are_refused(self) -> None:
        for bad in ({"sigma": 0.0}, {"tau": math.nan}, {"num_modes": 0}, {"length": -1.0}):
            with pytest.raises(ConfigurationError, match=next(iter(bad))):
                GaussianField(**{"sigma": 1.0, "tau": 1.0, "gamma": 2.0, "num_modes": 4, **bad})


def problems(name: str, **options: Any) -> MixedProblems:
    equation: Equation = {"burgers": BURGERS, "kdv": KDV}[name]
    return MixedProblems(equation, SPREADS[name], **{"seeds": [0], "num_sensors": 33, "nx": 9, "nt": 7, **options})


class TestProblems:
    def test_moved_burgers_solutions_solve_the_equation(self) -> None:
        """The moved solution as a function of (x, t), pulled back to Cole-Hopf: the truth, and its residual."""
        batch = problems("burgers", cases=5).problems(7)
        field = BURGERS.sample(5, seeded(7)).field
        group = BURGERS.group()
        action, inverse = group.action(), group.inverse(batch.elements)

        def solution(x: Tensor, t: Tensor) -> Tensor:
            base = action(inverse, torch.stack([x, t], -1))
            u = cole_hopf(field, base[..., 0], base[..., 1], BURGERS.nu)
            return action(batch.elements, torch.cat([base, u.unsqueeze(-1)], -1))[..., 2]

        x, t = batch.x.query.unbind(-1)
        torch.testing.assert_close(solution(x, t), batch.solution, rtol=1e-5, atol=1e-6)
        initial_x, initial_t, initial_u = batch.x.initial.unbind(-1)
        torch.testing.assert_close(solution(initial_x, initial_t), initial_u, rtol=1e-8, atol=1e-8)
        h = 1e-4
        u_t = (solution(x, t + h) - solution(x, t - h)) / (2 * h)
        u_x = (solution(x + h, t) - solution(x - h, t)) / (2 * h)
        u_xx = (solution(x + h, t) - 2 * solution(x, t) + solution(x - h, t)) / h**2
        residual = u_t + solution(x, t) * u_x - BURGERS.nu * u_xx
        # the solver's domain starts at t = 0, where differences would look back before the initial condition
        inside = batch.canonical.query[..., 1] > 0
        assert float(residual[inside].abs().max() / u_t[inside].abs().max()) < 1e-4

    def test_moved_kdv_solutions_are_kdv_solutions(self) -> None:
        """Scaled, boosted and shifted data, solved anew on the moved circle in its own frame."""
        batch = problems("kdv", cases=4, nx=17).problems(3)
        s, tau, c, xi = batch.elements[:, None].unbind(-1)
        length, duration = s.exp() * 16.0, (3 * s).exp() * 4.0
        for i in (0, 3):
            n = 192
            x = 16.0 * torch.arange(n, dtype=F64) / n
            u0 = (-2 * s[i]).exp() * KDV.sample(4, seeded(3)).initial(x)[i] + c[i]
            initial = Field.on_box(u0.unsqueeze(0), [(0.0, float(length[i]))])
            times = [float(duration[i]) * k / 6 for k in range(7)]
            moved = solve(KDV.spectral, initial, times, max_step=times[1] / 400).values[0].mT
            place = batch.x.query[i].unflatten(0, (17, 7))
            start = batch.x.initial[i, 0, 0]
            t = place[0, :, 1] - place[0, 0, 1]
            k = 2 * math.pi / float(length[i]) * torch.arange(n // 2 + 1, dtype=F64)
            modes = torch.fft.rfft(moved, dim=0, norm="forward")
            modes[1:-1] *= 2
            phase = torch.exp(1j * k * (place - start)[..., 0].unsqueeze(-1))
            values = (phase * modes.mT).sum(-1).real
            assert float((t[-1] - duration[i]).abs()) < 1e-12
            torch.testing.assert_close(values.flatten(), batch.solution[i], rtol=0, atol=2e-4)
        assert float(xi.abs().max()) > 0
        assert float(tau.abs().max()) > 0

    @pytest.mark.parametrize("name", ["burgers", "kdv"])
    def test_draws_depend_on_the_seed_alone_and_stay_in_the_domain(self, name: str) -> None:
        batch, again = problems(name).problems(4), problems(name, seeds=[1, 4]).problems(4)
        assert torch.equal(batch.x.query, again.x.query)
        assert torch.equal(batch.solution, again.solution)
        assert not torch.equal(batch.elements, problems(name).problems(5).elements)
        d = BURGERS.group().action().denominator(batch.elements, batch.canonical.query) if name == "burgers" else None
        assert d is None or (float(d.min()) > 0.5 and float(d.max()) < 2.0)

    def test_generated_group_is_the_closed_form(self) -> None:
        generated, closed = kdv_from_generators(), KdVSymmetry()
        v = torch.randn(6, 4, generator=seeded(0), dtype=F64)
        jets = torch.randn(6, 5, 3, generator=seeded(1), dtype=F64)
        torch.testing.assert_close(generated.algebra.structure_constants, closed.algebra.structure_constants)
        torch.testing.assert_close(generated.algebra.trace_ad, torch.tensor([2.0, 0, 0, 0], dtype=F64))
        moved = closed.action()(closed.exp(v), jets)
        torch.testing.assert_close(generated.action()(generated.exp(v), jets), moved)
        torch.testing.assert_close(generated.log_modular(generated.exp(v)), closed.log_modular(closed.exp(v)))


def test_solutions_are_functions_of_their_field() -> None:
    one = PeriodicSolutions(FourierSeries(torch.tensor([[[0.1], [0.0]]], dtype=F64), 1.0), BURGERS)
    x = torch.linspace(0, 1, 5, dtype=F64)
    torch.testing.assert_close(one.initial(x)[0], 0.1 * torch.cos(2 * math.pi * x))
