"""Symmetries and conservation laws as losses: on an exact soliton, on the solver's solutions, and off solutions."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from tests.helpers import assert_relative, randn
from tests.pde.equations import KDV
from trivgeo.actions import Field
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.pde import EvolutionEquation, SpectralEquation, solve
from trivgeo.pde.losses import ConservedQuantities, characteristic, prolongation
from trivgeo.symmetry import conservation_laws, find_symmetries
from trivgeo.symmetry.conservation import ConservationLaws
from trivgeo.symmetry.result import Symmetries

F64 = torch.float64
TEXT = "u_t + u*u_x + u_xxx = 0"
CIRCLE = 2 * math.pi
SPEED = 0.8


def soliton(x: Tensor, t: Tensor) -> Tensor:
    return 3 * SPEED / torch.cosh(math.sqrt(SPEED) / 2 * (x - SPEED * t)) ** 2


def jet_of(function: Callable[[Tensor, Tensor], Tensor], names: tuple[str, ...]) -> dict[str, Tensor]:
    """Values of a function and of its derivatives at random points."""
    x, t = randn(2, 20).unbind(0)
    jet = {"x": x, "t": t}
    for name in set(names) - {"x", "t"}:
        derivative = function
        for letter in name.partition("_")[2]:
            derivative = grad(derivative, "xt".index(letter))
        jet[name] = vmap(derivative)(x, t)
    return jet


@pytest.fixture(scope="module")
def equation() -> EvolutionEquation:
    return EvolutionEquation(TEXT)


@pytest.fixture(scope="module")
def found(equation: EvolutionEquation) -> Symmetries:
    return find_symmetries(list(equation.residuals))


@pytest.fixture(scope="module")
def laws() -> ConservationLaws:
    return conservation_laws(TEXT, order=2)


class TestSymmetries:
    def test_a_travelling_wave_is_at_rest_under_its_own_motion(
        self, equation: EvolutionEquation, found: Symmetries
    ) -> None:
        shift, later = (next(g for g in found if g.text == text) for text in ("∂_x", "∂_t"))
        motion = characteristic(equation, later + SPEED * shift)
        jet = jet_of(soliton, motion.jet)
        assert set(motion.jet) == {"u_x", "u_t"}
        assert float(motion(jet).abs().max()) < 1e-12
        assert_relative(characteristic(equation, shift)(jet), -jet["u_x"], 1e-12)

    def test_every_symmetry_keeps_the_residual_of_solutions(
        self, equation: EvolutionEquation, found: Symmetries
    ) -> None:
        assert len(found) == 4
        for symmetry in found:
            change = prolongation(equation, symmetry)
            jet = jet_of(soliton, change.jet)
            assert float(change(jet).abs().max()) < 1e-10
            off = jet_of(lambda x, t: torch.sin(x - t), change.jet)
            assert float(change(off).abs().max()) > 0.1

    def test_prolongation_is_the_rate_of_the_residual(self, equation: EvolutionEquation, found: Symmetries) -> None:
        """Of a boost: u(x - s t, t) + s has the residual at x - s t, whose rate in s at zero is minus t R_x."""
        boost = next(g for g in found if "∂_u" in g.text and "∂_t" not in g.text)
        change = prolongation(equation, boost)

        def wave(x: Tensor, t: Tensor) -> Tensor:
            return torch.sin(x) * torch.exp(-t / 3)

        def residual(x: Tensor, t: Tensor) -> Tensor:
            u_x = grad(wave, 0)
            return grad(wave, 1)(x, t) + wave(x, t) * u_x(x, t) + grad(grad(u_x, 0), 0)(x, t)

        jet = jet_of(wave, change.jet)
        expected = -jet["t"] * vmap(grad(residual, 0))(jet["x"], jet["t"])
        assert_relative(change(jet), expected, 1e-10)

    def test_other_variables(self, equation: EvolutionEquation) -> None:
        other = find_symmetries("v_t = v_xx")[0]
        with pytest.raises(ConfigurationError, match="expected a field in"):
            characteristic(equation, other)


class TestConservedQuantities:
    def test_of_a_wave(self, laws: ConservationLaws) -> None:
        """u = 1 + cos(x + t): mass, momentum and energy by hand, at two times."""
        kept = ConservedQuantities([law for law in laws if law.is_periodic])
        x = CIRCLE * torch.arange(16, dtype=F64) / 16
        values = 1 + torch.cos(x + torch.tensor([[0.0], [0.7]], dtype=F64))
        field = Field.on_box(values[None, None], [(0.0, CIRCLE)], times=[0.0, 0.7])
        mass, momentum, energy = CIRCLE, CIRCLE * 3 / 4, CIRCLE * 5 / 6 - math.pi
        expected = torch.tensor([mass, momentum, energy], dtype=F64)[:, None].expand(-1, 2)
        assert_relative(kept(field)[0], expected, 1e-12)

    def test_solutions_keep_them(self, laws: ConservationLaws) -> None:
        kept = ConservedQuantities([law for law in laws if law.is_periodic])
        x = CIRCLE * torch.arange(32, dtype=F64) / 32
        start = Field.on_box(torch.cos(x) + 0.3 * torch.sin(2 * x)[None, None], [(0.0, CIRCLE)])
        solution = solve(KDV, start, [0.0, 0.2, 0.4], 0.002)
        assert float(kept.drift(solution).abs().max()) < 1e-5
        decaying = Field(solution.values * torch.tensor([1.0, 0.9, 0.8], dtype=F64)[:, None], solution.grid)
        assert float(kept.drift(decaying)[:, 1:, 1:].abs().min()) > 0.1

    def test_in_the_plane_with_parameters(self) -> None:
        text = [
            "h_t + diff(h*u, x) + diff(h*v, y) = 0",
            "u_t + u*u_x + v*u_y + g*h_x = 0",
            "v_t + u*v_x + v*v_y + g*h_y = 0",
        ]
        laws = [law for law in conservation_laws(text, order=0) if law.is_periodic]
        kept = ConservedQuantities(laws, {"g": 2.0} if any("g" in str(law.density) for law in laws) else {})
        x = CIRCLE * torch.arange(16, dtype=F64) / 16
        h = 1 + 0.1 * torch.cos(x)[:, None] * torch.cos(x)
        start = Field.on_box(torch.stack([h, 0.1 * torch.sin(x).expand(16, -1), 0 * h])[None], [(0.0, CIRCLE)] * 2)
        solution = solve(SpectralEquation.from_equation(text, g=2.0), start, [0.0, 0.1], 0.01)
        assert len(laws) >= 2
        assert float(kept.drift(solution).abs().max()) < 1e-4

    def test_refused(self, laws: ConservationLaws) -> None:
        with pytest.raises(ConfigurationError, match="without places"):
            ConservedQuantities(laws)
        with pytest.raises(ConfigurationError, match="at least one"):
            ConservedQuantities([])
        kept = ConservedQuantities([laws[0]])
        with pytest.raises(ShapeError, match="1 unknowns over 1"):
            kept(Field.on_box(randn(1, 2, 16), [(0.0, 1.0)]))
