"""Equations written once: what is derived from their text against hand-written equations and exact solutions."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import sympy as sp
import torch
from torch import Tensor
from torch.func import grad, vmap

from tests.helpers import randn, seeded
from trivgeo.actions import Field
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.pde import (
    EvolutionEquation,
    FourierModes,
    GaussianField,
    SpectralEquation,
    solve,
)
from trivgeo.symmetry import find_symmetries

F64 = torch.float64
SHALLOW_WATER = [
    "h_t + diff(h*u, x) + diff(h*v, y) = 0",
    "u_t + u*u_x + v*u_y + g*h_x = 0",
    "v_t + u*v_x + v*v_y + g*h_y = 0",
]


def circle(length: float, count: int) -> Tensor:
    return length * torch.arange(count, dtype=F64) / count


class Written(SpectralEquation):
    """An equation by hand: u_t + u u_x = L u, or without the product."""

    def __init__(self, linear: Callable[[FourierModes], Tensor], is_advected: bool = True) -> None:
        self.multiplier, self.is_advected = linear, is_advected

    def linear(self, modes: FourierModes) -> Tensor:
        return self.multiplier(modes)

    def nonlinear(self, modes: FourierModes, u: Tensor) -> Any:
        return -0.5j * modes.along(0) * modes.to_modes(modes.to_values(u).square()) if self.is_advected else None


class TestSpectral:
    @pytest.mark.parametrize(
        ("text", "parameters", "written"),
        [
            ("u_t + u*u_x = nu*u_xx", {"nu": 0.1}, Written(lambda modes: -0.1 * modes.squared)),
            ("u_t + u*u_x + u_xxx = 0", {}, Written(lambda modes: 1j * modes.along(0) ** 3)),
            ("u_t + diff(u^2/2, x) + u_xx + u_xxxx = 0", {}, Written(lambda modes: modes.squared - modes.squared**2)),
            ("u_t = nu*u_xx", {"nu": 0.2}, Written(lambda modes: -0.2 * modes.squared, is_advected=False)),
        ],
    )
    def test_against_written_equations(
        self, text: str, parameters: dict[str, float], written: SpectralEquation
    ) -> None:
        derived = SpectralEquation.from_equation(text, **parameters)
        u = GaussianField(0.1, 0.5, 6.0, 6, 16.0).sample(3, seeded(0))(circle(16.0, 32))
        initial = Field.on_box(u.unsqueeze(-2), [(0.0, 16.0)])
        found, expected = (solve(e, initial, [0.5, 1.0], 0.02).values for e in (derived, written))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
        single = solve(derived, Field.on_box(u.unsqueeze(-2).float(), [(0.0, 16.0)]), [1.0], 0.02)
        assert single.values.dtype == torch.float32

    def test_heat_in_the_plane(self) -> None:
        initial = Field.on_box(randn(2, 1, 12, 9), [(0.0, 2.0), (0.0, 3.0)])
        derived = SpectralEquation.from_equation("u_t = nu*(u_xx + u_yy)", nu=0.1)
        written = Written(lambda modes: -0.1 * modes.squared, is_advected=False)
        torch.testing.assert_close(solve(derived, initial, [0.3], 1.0), solve(written, initial, [0.3], 1.0))

    def test_soliton_of_the_modified_equation(self) -> None:
        """u = sqrt(c) sech(sqrt(c) (x - c t)) solves u_t + 6 u^2 u_x + u_xxx = 0."""
        c, length = 1.3, 40.0
        x = circle(length, 256)

        def soliton(t: float) -> Tensor:
            return math.sqrt(c) / torch.cosh(math.sqrt(c) * (x - 15.0 - c * t))

        equation = SpectralEquation.from_equation("u_t + 6*u^2*u_x + u_xxx = 0")
        block = solve(equation, Field.on_box(soliton(0.0)[None], [(0.0, length)]), [0.0, 2.0], 0.002)
        torch.testing.assert_close(block.values[0, 1], soliton(2.0), rtol=0, atol=1e-7)

    def test_logistic_growth(self) -> None:
        """Where u is constant in space, u_t = u_xx + u - u^2 is an ordinary equation."""
        initial = Field.on_box(torch.full((1, 1, 16), 0.2, dtype=F64), [(0.0, 1.0)])
        found = solve(SpectralEquation.from_equation("u_t = u_xx + u - u^2"), initial, [1.5], 0.01).values
        expected = 1.0 / (1.0 + 4.0 * math.exp(-1.5))
        torch.testing.assert_close(found, torch.full_like(found, expected), rtol=1e-8, atol=0)

    def test_coupled_waves(self) -> None:
        """u_t = v_x, v_t = u_x: u + v moves to the left, u - v to the right."""
        x = circle(2 * math.pi, 16)
        initial = torch.stack([torch.sin(x), torch.cos(2 * x)])[None]
        equation = SpectralEquation.from_equation(["u_t = v_x", "v_t = u_x"])
        u, v = solve(equation, Field.on_box(initial, [(0.0, 2 * math.pi)]), [0.7], 0.01).values[0, :, 0].unbind(0)
        torch.testing.assert_close(u + v, torch.sin(x + 0.7) + torch.cos(2 * (x + 0.7)), rtol=0, atol=1e-8)
        torch.testing.assert_close(u - v, torch.sin(x - 0.7) - torch.cos(2 * (x - 0.7)), rtol=0, atol=1e-8)

    def test_slopes_of_a_system_are_those_of_its_residuals(self) -> None:
        """L u + N(u) of shallow water is u_t where the residual vanishes; products of waves that the grid resolves."""
        equation = EvolutionEquation(SHALLOW_WATER)
        spectral = SpectralEquation.from_equation(equation, g=2.0)
        x, y = torch.meshgrid(circle(2 * math.pi, 16), circle(2 * math.pi, 16), indexing="ij")
        u = torch.stack([1.0 + 0.1 * torch.cos(x + y), torch.sin(x), torch.cos(2 * y - x)])
        modes = FourierModes.of(torch.eye(2, dtype=F64) * math.pi / 8, (16, 16))
        state = modes.to_modes(u)
        rest = spectral.nonlinear(modes, state)
        assert rest is not None
        slope = modes.to_values(spectral.linear(modes) * state + rest)
        jet = {}
        for i, name in enumerate("huv"):
            jet |= {name: u[i], f"{name}_t": slope[i]}
            jet |= {f"{name}_{z}": modes.to_values(1j * modes.along(a) * state)[i] for a, z in enumerate("xy")}
        residual = equation.residual(jet, g=2.0)
        assert residual.shape == (16, 16, 3)
        assert float(residual.abs().max()) < 1e-12 < float(slope.abs().min(1).values.max())


class TestResidual:
    def test_vanishes_on_a_soliton(self) -> None:
        equation = EvolutionEquation("u_t + u*u_x + u_xxx = 0")

        def u(x: Tensor, t: Tensor) -> Tensor:
            return 2.4 / torch.cosh(math.sqrt(0.2) * (x - 0.8 * t)) ** 2

        u_x, u_t = grad(u, 0), grad(u, 1)
        x, t = randn(2, 20).unbind(0)
        names = {"u": u, "u_x": u_x, "u_t": u_t, "u_xxx": grad(grad(u_x, 0), 0)}
        jet = {name: vmap(function)(x, t) for name, function in names.items()}
        assert float(equation.residual(jet).abs().max()) < 1e-12
        assert float(equation.residual(jet | {"u": jet["u"] + 1.0}).abs().max()) > 0.01

    def test_against_a_written_residual(self) -> None:
        jet = dict(zip(("u", "u_t", "u_x", "u_xx"), randn(4, 5), strict=True))
        found = EvolutionEquation("u_t + u*u_x = nu*u_xx").residual(jet, nu=0.1)
        torch.testing.assert_close(found, jet["u_t"] + jet["u"] * jet["u_x"] - 0.1 * jet["u_xx"], rtol=0, atol=1e-15)

    def test_parameters_may_be_learned(self) -> None:
        equation = EvolutionEquation("u_t = sqrt(nu)*u_xx")
        nu = torch.tensor(0.25, dtype=F64, requires_grad=True)
        jet = {"u_t": torch.ones(3, dtype=F64), "u_xx": torch.ones(3, dtype=F64)}
        equation.residual(jet, nu=nu).square().sum().backward()
        torch.testing.assert_close(nu.grad, torch.tensor(-1.5 / math.sqrt(0.25), dtype=F64))

    def test_coefficients_may_depend_on_the_place(self) -> None:
        equation = EvolutionEquation("u_t + x*u_x = t")
        assert equation.jet == ("t", "u_t", "u_x", "x")
        jet = {name: torch.tensor(float(k + 1)) for k, name in enumerate(equation.jet)}
        assert float(equation.residual(jet)) == 2.0 + 4.0 * 3.0 - 1.0


def test_written_once() -> None:
    x, t, nu = sp.symbols("x t nu")
    u = sp.Function("u")(x, t)
    equation = EvolutionEquation(sp.Eq(u.diff(t) + u * u.diff(x), nu * u.diff(x, 2)))
    assert equation.text == "u*u_x + u_t = nu*u_xx"
    assert (equation.unknowns, equation.parameters) == (("u",), ("nu",))
    assert len(find_symmetries(equation.residuals)) == len(find_symmetries(equation.text)) == 5
    assert EvolutionEquation(SHALLOW_WATER).unknowns == ("h", "u", "v")
    for same in (copy.deepcopy(equation), pickle.loads(pickle.dumps(equation))):
        assert (same.text, same.residuals) == (equation.text, equation.residuals)
    spectral = SpectralEquation.from_equation(equation, nu=0.1)
    assert repr(spectral) == "SpectralEquation.from_equation('u*u_x + u_t = nu*u_xx', nu=0.1)"
    field = Field.on_box(circle(1.0, 24).mul(2 * math.pi).sin()[None, None], [(0.0, 1.0)])
    again = pickle.loads(pickle.dumps(spectral))
    torch.testing.assert_close(solve(again, field, [0.1], 0.1), solve(spectral, field, [0.1], 0.1))


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("u_tt = u_xx", "first order in t"),
            ("u_xx + u_yy = 0", "got t"),
            ("u_t = diff(f(u)*u_x, x)", "without arbitrary functions"),
            ("u_t = __import__('os')", "two underscores"),
        ],
    )
    def test_equations(self, text: str, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            EvolutionEquation(text)

    def test_coefficients_and_parameters(self) -> None:
        with pytest.raises(ConfigurationError, match="coefficients free of x"):
            SpectralEquation.from_equation("u_t = x*u_xx")
        for parameters in ({}, {"mu": 1.0}, {"nu": 1.0, "mu": 1.0}):
            with pytest.raises(ConfigurationError, match=r"expected values of \['nu'\]"):
                SpectralEquation.from_equation("u_t = nu*u_xx", **parameters)
        for value in ("two", 1j):
            with pytest.raises(ConfigurationError, match="nu: expected a real number"):
                SpectralEquation.from_equation("u_t = nu*u_xx", nu=value)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"got none of \['u_xx'\]"):
            EvolutionEquation("u_t = u_xx").residual({"u_t": torch.zeros(2)})

    def test_fields(self) -> None:
        equation = SpectralEquation.from_equation("u_t + u*u_x = u_xx")
        with pytest.raises(ShapeError, match="1 components, u, got 2"):
            solve(equation, Field.on_box(torch.zeros(1, 2, 16), [(0.0, 1.0)]), [1.0], 0.1)
        with pytest.raises(ShapeError, match="over 1 coordinates"):
            solve(equation, Field.on_box(torch.zeros(1, 1, 16, 16), [(0.0, 1.0)] * 2), [1.0], 0.1)

    @pytest.mark.parametrize("method", ["linear", "nonlinear"])
    def test_coefficients_of_a_wrong_shape(self, method: str) -> None:
        """A stack of two components in front of the batch, or of too many of them."""

        class Stacked(Written):
            def __init__(self, shape: tuple[int, ...]) -> None:
                super().__init__(lambda modes: 1j * modes.along(0) ** 3)
                self.shape = shape

            def linear(self, modes: FourierModes) -> Tensor:
                value = super().linear(modes)
                return value.expand(*self.shape, 9) if method == "linear" else value

            def nonlinear(self, modes: FourierModes, u: Tensor) -> Any:
                value = super().nonlinear(modes, u)
                return torch.zeros(*self.shape, 9) if method == "nonlinear" else value

        field = Field.on_box(torch.zeros(3, 1, 16), [(0.0, 1.0)])
        for shape in ((2, 1, 1), (2, 1), (3, 2)):
            with pytest.raises(ShapeError, match=f"{method}: expected coefficients"):
                solve(Stacked(shape), field, [1.0], 0.1)
