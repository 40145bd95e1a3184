"""From a line of text to an operator, against the solver from moved fields; times between by the equation."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.helpers import assert_relative, seeded
from trivgeo.actions import Field, FieldAction
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import from_generators
from trivgeo.inversion import EquivariantOperator, Inverter
from trivgeo.inversion.energies import FieldBox, FieldSpectrum
from trivgeo.inversion.equivariant.equivariant_operator import FieldDensity, TrainingFrame
from trivgeo.inversion.posterior import InverseProblem
from trivgeo.inversion.stages import Newton
from trivgeo.pde import GaussianField, SpectralEquation, solve
from trivgeo.pde.interpolation import interpolate_solution, interpolation_error

# operators and solutions on the same coarse grid are compared, which resolves some moved fields badly
pytestmark = pytest.mark.filterwarnings("ignore:solution. expected one that the grid resolves:RuntimeWarning")
F64 = torch.float64
LENGTH, POINTS, HORIZON = 16.0, 32, 1.0
BOX = [(0.0, LENGTH)]
MKDV = "u_t + u^2*u_x + u_xxx = 0"


def drawn(modes: list[tuple[float, float]], count: int, seed: int) -> Tensor:
    """Values ``[count, c, n]`` of unknowns with given amplitudes and means."""
    x = LENGTH * torch.arange(POINTS, dtype=F64) / POINTS
    fields = [
        mean + GaussianField(size, 0.5, 6.0, 6, LENGTH).sample(count, seeded(seed + 10 * i))(x)
        for i, (size, mean) in enumerate(modes)
    ]
    return torch.stack(fields, 1)


def trained(equation: SpectralEquation, clean: Tensor) -> Callable[[Tensor], Tensor]:
    """The solver with an error of a thousandth on clean fields, which grows away from it."""
    mean, spread = clean.mean((0, 2), keepdim=True), clean.std((0, 2), keepdim=True)
    wave = torch.sin(6 * torch.pi * torch.arange(POINTS, dtype=F64) / POINTS)

    def network(values: Tensor) -> Tensor:
        solved = solve(equation, Field.on_box(values, BOX), [HORIZON], 0.02).values[:, :, 0]
        off = ((values - mean) / spread).square().mean((1, 2), keepdim=True)
        return solved + 1e-3 * spread * wave * (1 + 30 * (off - 2).clamp(min=0))

    return network


def shifted(values: Tensor, distance: float) -> Tensor:
    """Periodic fields ``[*batch, n]`` moved to the left."""
    wave = 2 * torch.pi * torch.fft.rfftfreq(POINTS, LENGTH / POINTS, dtype=F64)
    return torch.fft.irfft(torch.fft.rfft(values) * torch.exp(1j * distance * wave), n=POINTS)


class TestFromEquation:
    @pytest.mark.parametrize(
        ("equation", "modes", "used", "left"),
        [
            (MKDV, [(0.2, 0.0)], 3, 0),
            (["h_t + diff(h*u, x) = 0", "u_t + u*u_x + h_x = 0.1*u_xx"], [(0.05, 1.0), (0.1, 0.0)], 4, 0),
            pytest.param(
                "u_t = u_xx + u*(1 - u)", [(0.05, 0.5)], 2, 0, marks=pytest.mark.slow(reason="one more equation")
            ),
            pytest.param(
                ["u_t = u_xx - u*v^2", "v_t = 2*v_xx + u*v^2"],
                [(0.05, 0.5), (0.05, 0.3)],
                3,
                0,
                marks=pytest.mark.slow(reason="one more equation"),
            ),
            # the scale of solutions is found by the volume of values: without it every field shrinks
            pytest.param(
                "u_t + u_xxx = 0", [(0.2, 0.0)], 4, 1, marks=pytest.mark.slow(reason="a test of the energy is quick")
            ),
            pytest.param(
                ["u_t = -v_xx", "v_t = u_xx"],
                [(0.2, 0.0)] * 2,
                5,
                3,
                marks=pytest.mark.slow(reason="one more equation"),
            ),
            pytest.param(
                "u_t + u*u_x = 0",
                [(0.2, 0.0)],
                5,
                6,
                marks=pytest.mark.slow(reason="a test of Newton's steps is quick"),
            ),
            pytest.param(
                ["u_t = u_x", "v_t = u"],
                [(0.2, 0.0)] * 2,
                4,
                5,
                marks=pytest.mark.slow(reason="one more equation"),
            ),
            pytest.param(
                ["u_t + v_x + u*u_x = 0", "v_t + diff(u*v, x) + u_xxx = 0"],
                [(0.05, 0.0), (0.05, 1.0)],
                4,
                0,
                marks=pytest.mark.slow(reason="one more equation"),
            ),
            # f(u) d/du is a symmetry for every f: those that are not affine are left out
            pytest.param(
                "u_t + 2*u_x = 0", [(0.2, 0.0)], 4, 7, marks=pytest.mark.slow(reason="a test of symmetries is quick")
            ),
            pytest.param(
                ["u_t = v_x", "v_t = u_x"],
                [(0.2, 0.0)] * 2,
                5,
                14,
                marks=pytest.mark.slow(reason="one more equation"),
            ),
        ],
    )
    def test_is_as_right_as_with_the_true_transformation(
        self, equation: str | list[str], modes: list[tuple[float, float]], used: int, left: int
    ) -> None:
        spectral, clean = SpectralEquation.from_equation(equation), drawn(modes, 100, 0)
        network = trained(spectral, clean)
        operator = EquivariantOperator.from_equation(equation, network, clean, [HORIZON], box=BOX)
        assert (operator.report.count("used: "), operator.report.count("left out: ")) == (used, left)
        g = operator.action.group.random(4, std=0.3, generator=seeded(3), dtype=F64)
        initial = operator.action(g, Field.on_box(drawn(modes, 4, 5), BOX))
        times = operator.predict(initial, g).grid.times
        exact = solve(spectral, initial, times, 0.02).values
        grid = initial.grid.at(times)
        errors = [
            ((field.values - exact).norm() / exact.norm())
            for field in (operator.predict(initial, g, grid), operator(initial, grid, generator=seeded(0)))
        ]
        assert float(errors[1]) <= 1.5 * float(errors[0])
        assert float(errors[0]) < 0.02

    def test_linear_equations_keep_the_scale_of_clean_fields(self) -> None:
        """Among multiples of clean fields the likeliest are clean fields: the energy of values alone is least at 0."""
        clean = drawn([(0.2, 0.0)], 64, 0)
        operator = EquivariantOperator.from_equation("u_t = u_xx", lambda u: u, clean, [HORIZON], box=BOX)
        group = operator.action.group
        (scaling,) = (i for i, line in enumerate(operator.report.split("used: ")[1:]) if "= u*∂_u" in line)
        logarithms = torch.linspace(-1.0, 1.0, 41, dtype=F64)
        v = torch.zeros(41, group.dim, dtype=F64)
        v[:, scaling] = logarithms
        fields = Field.on_box(drawn([(0.2, 0.0)], 16, 5), BOX)
        energies = (
            InverseProblem(operator.action, operator.inverter.energy)
            .given(fields)
            .energies(group.exp(v).expand(16, -1, -1))
        )
        assert abs(float(logarithms[energies.mean(0).argmin()])) < 0.15
        alone = FieldSpectrum(FieldBox(fields.grid), clean.unsqueeze(2))
        energies = InverseProblem(operator.action, alone).given(fields).energies(group.exp(v).expand(16, -1, -1))
        assert int(energies.mean(0).argmin()) == 40

    def test_volumes_of_affine_transformations(self) -> None:
        """Differences along unknowns are the Jacobian of the action, as forward mode has it."""
        clean = drawn([(0.05, 0.5)], 8, 0)
        operator = EquivariantOperator.from_equation("u_t = u_x - u^2", lambda u: u, clean, [HORIZON], box=BOX)
        density = operator.inverter.energy
        assert isinstance(density, FieldDensity)
        g = operator.action.group.random(8, std=0.3, generator=seeded(0), dtype=F64)
        field = Field.on_box(clean, BOX)
        dense = operator.action.point_action.jacobian(g, field.to_points())[..., 2, 2].log().mean(-1)
        assert_relative(density.log_volume(operator.action, g, field), dense, 1e-10)

    def test_a_last_time_that_moves_past_infinity(self) -> None:
        """With u_t = u_x + v and v_t = v_x fields are u0(x + t) + t v0(x + t) and v0(x + t), at every later time."""
        equation, clean = ["u_t = u_x + v", "v_t = v_x"], drawn([(0.2, 0.0)] * 2, 4, 0)

        def network(values: Tensor) -> Tensor:
            u, v = shifted(values, 1.0).unbind(1)
            return torch.stack([u + v, v], 1)

        operator = EquivariantOperator.from_equation(equation, network, clean, [1.0], box=BOX)
        group = operator.action.group
        place = [line.split(" = ")[1] for line in operator.report.splitlines() if line.startswith("used")]
        direction = torch.zeros(2, group.dim, dtype=F64)
        direction[:, next(i for i, field in enumerate(place) if field.startswith("t^2"))] = torch.tensor(
            [-0.9, -1.5], dtype=F64
        )
        g = group.exp(direction)
        initial = Field.on_box(clean[:2], BOX)
        times = [0.4, 3.0]
        found = operator.predict(initial, g, initial.grid.at(times)).values
        for i, t in enumerate(times):
            u, v = shifted(initial.values[:, :, 0], t).unbind(1)
            assert_relative(found[:, :, i], torch.stack([u + t * v, v], 1), 1e-9)
        with pytest.warns(RuntimeWarning, match="past infinity for 1 of 2 fields"):
            predicted = operator.predict(initial, g)
        assert bool(predicted.values[1].isnan().all())
        place, time = predicted.grid.origin[0, 0].tolist()
        assert abs(time - 10.0) < 1e-9
        u, v = shifted(initial.values[:1, :, 0], place + 10.0).unbind(1)
        assert_relative(predicted.values[:1, :, 0], torch.stack([u + 10 * v, v], 1), 1e-9)

    def test_equivariance_is_measured(self) -> None:
        """At rounding level where the box determines the transformation, whatever the network says."""
        clean = drawn([(0.2, 0.0)], 4, 0)
        operator = EquivariantOperator.from_equation(MKDV, lambda u: u + u.square(), clean, [HORIZON], box=BOX)
        error = operator.equivariance_error(Field.on_box(clean[:2], BOX), 5, generator=seeded(0))
        assert error.errors.shape == (5, 2)
        assert error.worst < 1e-13
        with pytest.raises(ConfigurationError, match="num_elements"):
            operator.equivariance_error(Field.on_box(clean, BOX), 0)
        with pytest.raises(ConfigurationError, match="initial"):
            operator.equivariance_error(clean)  # type: ignore[arg-type]

    def test_what_fields_cannot_follow_is_left_out(self) -> None:
        """Of the heat equation Galilean and projective transformations; parameters have values."""
        operator = EquivariantOperator.from_equation(
            "u_t = k*u_xx", lambda u: u, drawn([(0.2, 0.0)], 4, 0), [1.0], box=BOX, parameters={"k": 0.2}
        )
        assert (operator.report.count("used: "), operator.report.count("left out: ")) == (4, 3)
        assert "k = 0.2" in operator.report
        assert operator.action.group.dim == 4

    def test_advected_fields_that_start_later(self) -> None:
        """Along the characteristics every time is the same, so that the network predicts from any."""
        equation, clean = "u_t + 2*u_x = 0", drawn([(0.2, 0.0)], 16, 0)
        spectral = SpectralEquation.from_equation(equation)
        operator = EquivariantOperator.from_equation(equation, trained(spectral, clean), clean, [HORIZON], box=BOX)
        assert "X9 = u^2*∂_u: it reshapes values" in operator.report
        late = Field.on_box(clean[:2], BOX, 3.0)
        found = operator(late, late.grid.at([4.0]), generator=seeded(0)).values
        exact = solve(spectral, late, [4.0], 0.1).values
        assert float((found - exact).norm() / exact.norm()) < 0.01

    def test_refused_before_the_network_is_called(self) -> None:
        def never(values: Tensor) -> Tensor:
            raise AssertionError

        clean = drawn([(0.2, 0.0)], 4, 0)
        make = EquivariantOperator.from_equation
        with pytest.raises(ConfigurationError, match=r"expected values of \['a'\]"):
            make("u_t + a*u*u_x + u_xxx = 0", never, clean, [1.0], box=BOX)
        with pytest.raises(ConfigurationError, match="first order in t"):
            make("u_tt = u_xx", never, clean, [1.0], box=BOX)
        with pytest.raises(ConfigurationError, match="coefficients free of x"):
            make("u_t = x*u_xx", never, clean, [1.0], box=BOX)
        with pytest.raises(ConfigurationError, match="range of each x"):
            make(MKDV, never, clean, [1.0])
        with pytest.raises(ConfigurationError, match="increasing ones above zero"):
            make(MKDV, never, clean, [0.0], box=BOX)
        with pytest.raises(ConfigurationError, match="network"):
            make(MKDV, "fno", clean, [1.0], box=BOX)  # type: ignore[arg-type]
        with pytest.raises(ShapeError, match="of 2 unknowns u, v"):
            make(["u_t = u_xx + v", "v_t = v_xx"], never, clean, [1.0], box=BOX)
        with pytest.raises(ShapeError, match="at least 2 fields"):
            make(MKDV, never, clean[:1], [1.0], box=BOX)

        with pytest.raises(NonFiniteError, match="finite fields"):
            make(MKDV, never, clean * float("nan"), [1.0], box=BOX)

    def test_boxes_that_no_transformation_takes_to_the_network(self) -> None:
        clean = drawn([(0.05, 0.5)], 4, 0)
        operator = EquivariantOperator.from_equation("u_t = u_xx + u*(1 - u)", lambda u: u, clean, [1.0], box=BOX)
        longer = Field.on_box(clean, [(0.0, 17.0)])
        with pytest.raises(DomainError, match=r"got edges \[\[17.0\]\].*4 of 4 fields"):
            operator(longer)
        with pytest.raises(ShapeError, match=r"expected fields of \[32\] points"):
            operator(Field.on_box(clean[..., ::2], BOX))
        late = Field.on_box(clean, BOX, 3.0)
        with pytest.raises(DomainError, match="expected times from 3 to 4"):
            operator(late, late.grid.at([4.5]))

    def test_times_that_nothing_tells_of(self) -> None:
        """Halfway the waves of modified KdV are not resolved; near the times of the network they are."""
        spectral, clean = SpectralEquation.from_equation(MKDV), drawn([(0.2, 0.0)], 8, 0)
        operator = EquivariantOperator.from_equation(MKDV, trained(spectral, clean), clean, [HORIZON], box=BOX)
        initial = Field.on_box(clean[:4], BOX)
        with pytest.raises(DomainError, match=r"got 0.5 for field 0, .* relative error of about"):
            operator(initial, initial.grid.at([0.5, 1.0]))
        times = [0.02, 0.99, 1.0]
        exact = solve(spectral, initial, times, 0.02).values
        found = operator(initial, initial.grid.at(times)).values
        assert float((found - exact).norm() / exact.norm()) < 0.02

    def test_predictions_that_are_none(self) -> None:
        """Another type is refused; fields without a finite prediction are counted, and the others are right."""
        clean = drawn([(0.2, 0.0)], 4, 0)
        make, initial = EquivariantOperator.from_equation, Field.on_box(clean, BOX)
        equation = "u_t = u_xx + u*(1 - u)"
        with pytest.raises(ConfigurationError, match="floating-point tensor of predictions, got tuple"):
            make(equation, lambda u: (u,), clean, [1.0], box=BOX)(initial)  # type: ignore[arg-type, return-value]
        holes = torch.tensor([0.0, float("nan"), 0.0, 0.0], dtype=F64).reshape(4, 1, 1)
        with pytest.warns(RuntimeWarning, match="NaN or infinity for 1 of 4 fields"):
            found = make(equation, lambda u: u + holes, clean, [1.0], box=BOX)(initial).values[:, :, 0]
        assert bool(found[1].isnan().all())
        assert_relative(found[[0, 2, 3]], clean[[0, 2, 3]], 1e-10)

    def test_inverter_of_ones_own(self) -> None:
        def descent(action: FieldAction, clean: Field) -> Inverter:
            return Inverter(action, FieldSpectrum(FieldBox(clean.grid), clean.values), [Newton(3)])

        clean = drawn([(0.2, 0.0)], 4, 0)
        operator = EquivariantOperator.from_equation(MKDV, lambda u: u, clean, [1.0], box=BOX, inverter=descent)
        assert "search: as given" in operator.report
        assert operator(Field.on_box(clean, BOX)).values.shape == (4, 1, 1, POINTS)


class TestTrainingSet:
    """Of u_t + u u_x = 0, which allows slower times with larger values; clean fields of heights from 2/3 to 4/3."""

    @staticmethod
    def fields(heights: Tensor, seed: int) -> Field:
        values = heights[:, None, None] * (1.0 + drawn([(0.05, 0.0)], len(heights), seed)).to(heights)
        return Field.on_box(values, BOX)

    def operator(self, clean: Field) -> EquivariantOperator:
        scaling = from_generators({"S": ["0", "-t", "u"]}, variables=["x", "t", "u"])
        inverter = Inverter(FieldAction(scaling, [True]), None, [])
        return EquivariantOperator(lambda u: u, inverter, [HORIZON], clean=clean)

    @pytest.mark.parametrize("dtype", [torch.float32, F64])
    def test_later_times_do_not_leave_it(self, dtype: torch.dtype) -> None:
        """A time that keeps values within those of clean fields is predicted; later ones are not."""
        operator = self.operator(self.fields(torch.linspace(0.66, 1.33, 48, dtype=F64), 0))
        initial = self.fields(torch.tensor([0.8, 1.0], dtype=dtype), 1)
        unit = operator.action.group.identity(2, dtype=dtype)
        at = initial.grid.at([HORIZON])
        assert_relative(operator(initial, at).values, operator.predict(initial, unit, at).values, 1e-6)
        grid = initial.grid.at([1.25])
        result = operator.invert(initial, grid)
        assert result.trusted.tolist() == [True, True]
        assert_relative(operator.action.group.log(result.best())[:, 0].exp(), torch.full((2,), 0.8, dtype=dtype), 1e-3)
        assert operator(initial, grid).values.isfinite().all()
        for time in (2.5, 10.0, 72.0):
            with pytest.raises(DomainError, match=f"expected times from 0 to 1, .* got .{time}"):
                operator(initial, initial.grid.at([time]))
        low = Field.on_box(torch.cat([initial.values[:, :, 0], 0.05 * initial.values[:1, :, 0]]), BOX)
        with pytest.raises(DomainError, match=r"for field 0, .* 2 of 3 fields"):  # the third is nearer to clean ones
            operator(low, low.grid.at([4.0]))

    def test_other_fields_are_said(self) -> None:
        """Each datum has a verdict; the call warns of the others, and leaves them as they are."""
        clean = self.fields(torch.linspace(0.66, 1.33, 48, dtype=F64), 0)
        operator = self.operator(clean)
        initial = self.fields(torch.tensor([0.7, 3.2, 1.3], dtype=F64), 1)
        result = operator.invert(initial)
        assert result.trusted.tolist() == [True, False, True]
        assert "clean ones at most" in result.reasons[1]
        with pytest.warns(RuntimeWarning, match="others for 1 of 3: .* for field 1"):
            found = operator(initial)
        assert_relative(found.values, initial.values, 1e-12)
        rough = Field.on_box(clean.values[:2, :, 0] * (1.0 + 0.5 * (-1.0) ** torch.arange(POINTS)), BOX)
        assert not operator.invert(rough).trusted.any()
        few = self.operator(Field.on_box(clean.values[:3, :, 0], BOX)).invert(initial)
        assert few.trusted.all()
        assert len(few.verdicts[0].assumptions) == 2

    def test_new_fields_of_the_same_kind(self) -> None:
        """At most one in twenty is said to be another, for few clean fields and many."""
        for number in (8, 64):
            operator = self.operator(self.fields(torch.linspace(0.66, 1.33, number, dtype=F64), 0))
            heights = 0.66 + 0.67 * torch.rand(200, generator=seeded(2), dtype=F64)
            assert float(operator.invert(self.fields(heights, 3)).trusted.double().mean()) > 0.95


class TestInterpolation:
    @pytest.mark.parametrize("equation", ["u_t = 0.2*u_xx", "u_t + u_xxx = 0.1*u_xx - u"])
    def test_linear_equations_are_exact(self, equation: str) -> None:
        spectral, times = SpectralEquation.from_equation(equation), [0.0, 0.3, 0.5, 0.99, 1.04]
        field = Field.on_box(drawn([(0.2, 0.0)], 3, 0), BOX)
        block = solve(spectral, field, [0.0, 0.4, 1.0], 0.1)
        wanted = torch.tensor(times, dtype=F64).expand(3, -1)
        found = interpolate_solution(spectral, block.values, block.grid.steps[:, 0], [0.0, 0.4, 1.0], wanted)
        assert_relative(found, solve(spectral, field, times, 0.1).values, 1e-12)

    def test_order_four_in_the_distance_of_nodes(self) -> None:
        spectral = SpectralEquation.from_equation("u_t + u*u_x = 0.5*u_xx")
        start = solve(spectral, Field.on_box(drawn([(0.1, 0.0)], 3, 0), BOX), [1.0], 0.01)
        errors = []
        for gap in (0.4, 0.2, 0.1):
            block = solve(spectral, start, [1.0, 1.0 + gap], 0.01)
            exact = solve(spectral, start, [1.0 + gap / 2], 0.01).values
            wanted = torch.full((3, 1), gap / 2, dtype=F64)
            found = interpolate_solution(spectral, block.values, block.grid.steps[:, 0], [0.0, gap], wanted)
            errors.append(float((found - exact).norm()))
        assert all(3.3 < float(torch.tensor(a / b).log2()) < 4.7 for a, b in itertools.pairwise(errors))

    @pytest.mark.parametrize(
        ("equation", "size", "mean", "gap", "within"),
        [
            ("u_t + u*u_x = 0.1*u_xx", 0.3, 0.0, 1.0, 1.5),
            (MKDV, 0.05, 0.0, 1.0, 1.5),
            (MKDV, 0.2, 0.0, 1.0, 5.0),  # not resolved, which shows
            ("u_t = u_xx + u*(1 - u)", 0.05, 0.5, 1.0, 1.5),
            ("u_t = u_xx + u*(1 - u)", 0.05, 0.5, 4.0, 5.0),
        ],
    )
    def test_the_error_is_estimated(self, equation: str, size: float, mean: float, gap: float, within: float) -> None:
        """Against the solver, halfway between two nodes."""
        spectral = SpectralEquation.from_equation(equation)
        field = Field.on_box(drawn([(size, mean)], 4, 3), BOX)
        block = solve(spectral, field, [0.0, gap / 2, gap], 0.02)
        nodes, wanted = [0.0, gap], torch.full((4, 1), gap / 2, dtype=F64)
        known = (spectral, block.values[:, :, ::2], block.grid.steps[:, 0], nodes, wanted)
        exact = block.values[:, :, 1:2]
        error = (interpolate_solution(*known) - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)
        ratio = float(interpolation_error(*known).mean() / error.mean())
        assert 1 / within < ratio < within
        assert bool((interpolation_error(*known[:4], torch.zeros(4, 1, dtype=F64)) == 0).all())

    def test_linear_equations_have_no_error(self) -> None:
        spectral, values = SpectralEquation.from_equation("u_t = u_xx"), torch.rand(1, 1, 2, 8, dtype=F64)
        steps, wanted = torch.ones(1, 1, 1, dtype=F64), torch.full((1, 1), 0.5, dtype=F64)
        assert float(interpolation_error(spectral, values, steps, [0.0, 1.0], wanted)) == 0.0

    def test_bad_nodes(self) -> None:
        spectral, values = SpectralEquation.from_equation("u_t = u_xx"), torch.zeros(1, 1, 2, 8, dtype=F64)
        steps, at = torch.ones(1, 1, 1, dtype=F64), torch.zeros(1, 1, dtype=F64)
        with pytest.raises(ShapeError, match="one for each of 2 values"):
            interpolate_solution(spectral, values, steps, [0.0], at)
        with pytest.raises(DomainError, match="increasing"):
            interpolate_solution(spectral, values, steps, [1.0, 0.0], at)


def test_frames_are_reached_from_far() -> None:
    """Boxes of other lengths, elsewhere and later, with the last time on a node where that is free."""
    operator = EquivariantOperator.from_equation(
        ["h_t + diff(h*u, x) = 0", "u_t + u*u_x + h_x = 0"],
        lambda u: u,
        drawn([(0.05, 1.0), (0.1, 0.0)], 4, 0),
        [1.0],
        box=BOX,
    )
    action = operator.action
    clean = Field.on_box(drawn([(0.05, 1.0), (0.1, 0.0)], 4, 1), BOX)
    frame = TrainingFrame(clean.grid, clean.counts, [1.0])
    initial = action(action.group.random(4, std=1.4, generator=seeded(0), dtype=F64), clean)
    unit = action.group.identity(4, dtype=F64)
    g = frame.settle(action, unit, initial.grid)
    back = action(action.group.inverse(g), initial)
    assert_relative(back.grid.steps, clean.grid.steps, 1e-6)
    assert float((back.grid.origin - clean.grid.origin).abs().max()) < 1e-5
    reach = action(g, back._replace(grid=back.grid.at([1.0]))).grid.times[:, 0]
    start = initial.grid.times[:, 0]
    landed = frame.settle(action, g, initial.grid, start + 1.1 * (reach - start))
    reached = action(landed, back._replace(grid=back.grid.at([1.0]))).grid.times[:, 0]
    assert_relative(reached - start, 1.1 * (reach - start), 1e-6)


@pytest.mark.slow(reason="three unknowns in the plane")
def test_shallow_water_in_the_plane() -> None:
    """Viscous shallow water: seven symmetries move fields, rotations among them; boosts are found from the fields."""
    advected = "{0}_t + u*{0}_x + v*{0}_y + h_{1} = 0.1*({0}_xx + {0}_yy)"
    equations = ["h_t + diff(h*u, x) + diff(h*v, y) = 0", advected.format("u", "x"), advected.format("v", "y")]
    spectral, horizon, box = SpectralEquation.from_equation(equations), 0.5, [(0.0, LENGTH)] * 2
    points = 16
    place = 2 * torch.pi * torch.arange(points, dtype=F64) / points
    x, y = torch.meshgrid(place, place, indexing="ij")

    def fields(count: int, seed: int) -> Tensor:
        generator, unknowns = seeded(seed), []
        for mean, size in ((1.0, 0.05), (0.0, 0.1), (0.0, 0.1)):
            parts = torch.zeros(count, points, points, dtype=F64)
            for k, m in ((1, 0), (0, 1), (1, 1), (1, -1), (2, 1)):
                a = torch.randn(2, count, 1, 1, generator=generator, dtype=F64) / (k * k + m * m)
                parts = parts + a[0] * torch.cos(k * x + m * y) + a[1] * torch.sin(k * x + m * y)
            unknowns.append(mean + size * parts)
        return torch.stack(unknowns, 1)

    clean = fields(48, 0)
    mean, spread = clean.mean((0, 2, 3), keepdim=True), clean.std((0, 2, 3), keepdim=True)

    def network(values: Tensor) -> Tensor:
        solved = solve(spectral, Field.on_box(values, box), [horizon], 0.1).values[:, :, 0]
        off = ((values - mean) / spread).square().mean((1, 2, 3), keepdim=True)
        return solved + 1e-3 * spread * torch.cos(3 * x) * (1 + 30 * (off - 2).clamp(min=0))

    operator = EquivariantOperator.from_equation(equations, network, clean, [horizon], box=box)
    assert (operator.report.count("used: "), operator.report.count("left out: ")) == (7, 1)
    g = operator.action.group.random(3, std=0.3, generator=seeded(3), dtype=F64)
    initial = operator.action(g, Field.on_box(fields(3, 5), box))
    times = operator.predict(initial, g).grid.times
    grid, exact = initial.grid.at(times), solve(spectral, initial, times, 0.1).values
    true, found = (
        float((field.values - exact).norm() / exact.norm())
        for field in (operator.predict(initial, g, grid), operator(initial, grid, generator=seeded(0)))
    )
    assert found <= 1.1 * true
    assert true < 0.002


@pytest.mark.slow(reason="twelve symmetries, in space")
def test_velocities_in_space_turn_with_the_place() -> None:
    """Three equations like that of Burgers on a coarse grid: rotations about all axes, boosts, scalings."""
    equation = [f"{a}_t + u*{a}_x + v*{a}_y + w*{a}_z = ({a}_xx + {a}_yy + {a}_zz)/10" for a in ("u", "v", "w")]
    box, spectral = [(0.0, 4.0)] * 3, SpectralEquation.from_equation(equation)
    waves = torch.meshgrid(*3 * [2 * torch.pi * torch.arange(8, dtype=F64) / 8], indexing="ij")
    parts = torch.randn(8, 3, 6, generator=seeded(0), dtype=F64) / 4
    functions = torch.stack([f(x) for x in waves for f in (torch.cos, torch.sin)])
    clean = torch.einsum("bck,kxyz->bcxyz", parts, functions)

    def network(values: Tensor) -> Tensor:
        return solve(spectral, Field.on_box(values, box), [0.3], 0.05).values[:, :, 0]

    operator = EquivariantOperator.from_equation(equation, network, clean, times=[0.3], box=box)
    assert "z*∂_x - x*∂_z + w*∂_u - u*∂_w" in operator.report
    error = operator.equivariance_error(Field.on_box(clean[:1], box), num_elements=2, generator=seeded(1))
    assert error.worst < 1e-9


def walled(values: Tensor) -> Tensor:
    """Burgers' equation of viscosity 0.2 between walls where the slope vanishes, from 0 to 1, by finite differences."""
    step, u = 0.1, values
    for _ in range(250):
        p = torch.cat([u[..., 1:2], u, u[..., -2:-1]], -1)
        flow = (p[..., 2:] ** 2 - p[..., :-2] ** 2) / (4 * step)
        u = u + (0.2 * (p[..., 2:] - 2 * u + p[..., :-2]) / step**2 - flow) / 250
    return u


def test_walls_leave_out_what_moves_them() -> None:
    """A mean flow between walls is no moving frame: the operator is never worse than its network there."""
    draw = torch.Generator().manual_seed(0)
    angle = torch.pi * torch.linspace(0.0, 1.0, 41, dtype=torch.float64) * torch.arange(5)[:, None]
    clean = 0.4 * torch.randn(16, 1, 5, generator=draw, dtype=torch.float64) @ angle.cos()
    equation, settings = "u_t + u*u_x = 0.2*u_xx", {"box": [(0.0, 4.0)], "periodic": False}
    initial = Field.on_box(clean[:3] + 1.0, [(0.0, 4.0)], periodic=False)
    for boundary in ("neumann", "dirichlet", None):
        operator = EquivariantOperator.from_equation(
            equation,
            walled,
            clean,
            [1.0],
            boundary=boundary,
            **settings,  # type: ignore[arg-type]
        )
        assert "left out: X3 = t*∂_x + ∂_u: it moves the walls" in operator.report
        assert "used: X2 = x*∂_x + 2*t*∂_t - u*∂_u" in operator.report
        solved = operator(initial, initial.grid.at([1.0])).values[:, :, 0]
        assert torch.allclose(solved, walled(clean[:3] + 1.0), atol=1e-9)
    # without walls the boost is a symmetry
    beyond = EquivariantOperator.from_equation(
        equation,
        walled,
        clean,
        [1.0],
        boundary="open",
        **settings,  # type: ignore[arg-type]
    )
    assert "used: X3 = t*∂_x + ∂_u" in beyond.report
    with pytest.raises(ConfigurationError, match="boundary: expected neumann, dirichlet, open"):
        EquivariantOperator.from_equation(
            equation,
            walled,
            clean,
            [1.0],
            boundary="robin",
            **settings,  # type: ignore[arg-type]
        )


class TestWithoutCleanFields:
    """A network that is right on fields of mean zero and forgets other means, as one trained on the former does."""

    EQUATION = "u_t + u*u_x = 0.2*u_xx"

    @staticmethod
    def network(values: Tensor, horizon: float = HORIZON) -> Tensor:
        """The solution of Cole and Hopf: u = -2 nu theta_x / theta, where theta solves the heat equation."""
        nu, wave = 0.2, 2 * torch.pi / LENGTH * torch.arange(2 * POINTS + 1, dtype=F64)
        modes = torch.fft.rfft(values - values.mean(-1, keepdim=True))
        modes = 4 * torch.nn.functional.pad(modes[..., : POINTS // 2], (0, 3 * POINTS // 2 + 1))  # four times as fine
        potential = torch.fft.irfft(modes / (1j * wave).where(wave > 0, 1.0))
        heated = torch.fft.rfft(torch.exp(-potential / (2 * nu))) * torch.exp(-nu * horizon * wave**2)
        solved = -2 * nu * torch.fft.irfft(1j * wave * heated) / torch.fft.irfft(heated)
        return solved[..., ::4]

    spectral = SpectralEquation.from_equation(EQUATION)

    def test_the_boost_is_found_by_what_is_conserved(self) -> None:
        operator = EquivariantOperator.from_equation(self.EQUATION, self.network, times=[HORIZON], box=BOX)
        g = operator.action.group.random(2, std=0.5, generator=seeded(3), dtype=F64)
        values = drawn([(0.02, 0.0)], 2, 5)
        initial = operator.action(g, Field.on_box(values - values.mean(-1, keepdim=True), BOX))
        times = operator.predict(initial, g).grid.times
        exact = solve(self.spectral, initial, times, 0.02).values
        result = operator.invert(initial, generator=seeded(0))
        found = operator.predict(initial, result.best(), initial.grid.at(times)).values
        assert float((found - exact).norm() / exact.norm()) < 1e-3
        assert result.trusted.all()
        assert float((self.network(initial.values[:, :, 0]) - exact[:, :, 0]).norm() / exact.norm()) > 0.1

    @pytest.mark.parametrize(("place", "time"), [(1e-3, 1e-6), (1e-9, 1e-12), (1e6, 1e5)])
    def test_units_do_not_matter(self, place: float, time: float) -> None:
        """Millimetres and microseconds, nanometres and picoseconds: the same equation with another viscosity."""
        operator = EquivariantOperator.from_equation(
            f"u_t + u*u_x = {0.2 * place**2 / time}*u_xx",
            lambda u: self.network(u * time / place) * place / time,
            times=[HORIZON * time],
            box=[(0.0, LENGTH * place)],
        )
        values = drawn([(0.2, 0.0)], 2, 5)
        values = values - values.mean(-1, keepdim=True)
        means = torch.tensor([0.5, -20.0], dtype=F64)[:, None, None]
        longer = 1.25  # a box of this length has slower fields
        boosted = Field.on_box((values / longer + means) * place / time, [(0.0, longer * LENGTH * place)])
        result = operator.invert(boosted, generator=seeded(0))
        restored = operator.action(operator.action.group.inverse(result.best()), boosted)
        assert result.trusted.all()
        assert float(restored.values.mean(-1).abs().max()) * time / place < 1e-3
        assert float((restored.grid.steps / place - LENGTH / POINTS).abs().max()) < 1e-6

    def test_contradictions_that_no_symmetry_undoes_are_not_trusted(self) -> None:
        operator = EquivariantOperator.from_equation(
            self.EQUATION, lambda u: u.square() + 1.0, times=[HORIZON], box=BOX
        )
        initial = Field.on_box(drawn([(0.2, 0.0)], 2, 5), BOX)
        with pytest.warns(RuntimeWarning, match="on which the network solves the equation.*from a numerical solution"):
            operator(initial, generator=seeded(0))

    @pytest.mark.parametrize("horizon", [HORIZON, 8.0])
    @pytest.mark.parametrize("change", ["mean", "mirrored", "elsewhere", "as it was", "too late"])
    def test_wrong_networks_that_agree_with_themselves_are_not_trusted(self, change: str, horizon: float) -> None:
        """They keep the mean, and a step of eight units is too long for a rule of integration."""
        changes: dict[str, Callable[[Tensor], Tensor]] = {
            "mean": lambda u: u.mean(-1, keepdim=True).expand_as(u),
            "mirrored": lambda u: self.network(u, horizon).flip(-1),
            "elsewhere": lambda u: self.network(u, horizon).roll(POINTS // 8, -1),
            "as it was": lambda u: u,
            "too late": lambda u: self.network(u, 3.0 * horizon),
        }
        initial = Field.on_box(drawn([(0.2, 0.0)], 2, 5), BOX)
        right, wrong = (
            EquivariantOperator.from_equation(self.EQUATION, network, times=[horizon], box=BOX).invert(
                initial, generator=seeded(0)
            )
            for network in (lambda u: self.network(u, horizon), changes[change])
        )
        assert right.trusted.all()
        assert float(right.best_energy().max()) < 0.01
        assert not wrong.trusted.any()
        assert float(wrong.best_energy().min()) > 0.05
        assert "from a numerical solution" in wrong.reasons[0]

    def test_a_network_that_is_right_in_every_frame_is_asked_in_one_that_a_solver_follows(self) -> None:
        """All means are as good: none is chosen since its field is large, beside which contradictions are small."""

        def network(u: Tensor) -> Tensor:
            mean, angle = u.mean(-1, keepdim=True), 2 * torch.pi * torch.arange(POINTS // 2 + 1, dtype=F64) / LENGTH
            moved = torch.exp(-1j * angle * 8.0 * mean) * torch.fft.rfft(self.network(u, 8.0))
            return torch.fft.irfft(moved, n=POINTS) + mean

        operator = EquivariantOperator.from_equation(self.EQUATION, network, times=[8.0], box=BOX)
        result = operator.invert(Field.on_box(drawn([(0.2, 0.3)], 4, 5), BOX), generator=seeded(0))
        assert result.trusted.all()
        assert float(result.best_energy().max()) < 0.01

    def test_a_shock_that_the_grid_does_not_resolve_checks_nothing(self) -> None:
        operator = EquivariantOperator.from_equation("u_t + u*u_x = 1e-6*u_xx", lambda u: u, times=[100.0], box=BOX)
        result = operator.invert(Field.on_box(drawn([(0.2, 0.0)], 2, 5), BOX), generator=seeded(0))
        assert not result.trusted.any()
        assert "nothing checks the network" in result.reasons[0]

    def test_what_is_missing_is_named(self) -> None:
        make = EquivariantOperator.from_equation
        with pytest.raises(ConfigurationError, match="box: expected the range of each x"):
            make(MKDV, self.network, times=[1.0])
        with pytest.raises(ConfigurationError, match="increasing ones above zero, got"):
            make(MKDV, self.network, box=BOX)
        with pytest.raises(ConfigurationError, match="clean: expected initial fields"):
            make(MKDV, self.network, times=[1.0], box=BOX, periodic=False)
        with pytest.raises(ShapeError, match="box: expected 1 ranges"):
            make(MKDV, self.network, times=[1.0], box=BOX * 2)
