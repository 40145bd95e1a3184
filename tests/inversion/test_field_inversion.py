"""Fields restored by energies and by a learned score, and operators on grids that commute with their group."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import assert_relative, randn, random_elements, seeded
from tests.pde.equations import KDV
from trivgeo.actions import Field, FieldAction
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import KdVSymmetry
from trivgeo.inversion import EquivariantOperator, GradientDescent, Inverter, LearnedInverter, ReverseDiffusionSearch
from trivgeo.inversion.energies import FieldBox, FieldComponents, FieldSpectrum
from trivgeo.inversion.learned import FieldBackbone
from trivgeo.inversion.stages import Descend
from trivgeo.pde import GaussianField, SpectralEquation, solve
from trivgeo.sde import GeometricSchedule

F64 = torch.float64
LENGTH, POINTS, HORIZON = 16.0, 32, 1.0
LAW = GaussianField(0.2, 0.5, 6.0, 6, LENGTH)
GROUP = KdVSymmetry(scale=[0.2, 1.0, 0.5, 2.0])
ACTION = FieldAction(GROUP)


def clean(count: int, seed: int) -> Field:
    x = LENGTH * torch.arange(POINTS, dtype=F64) / POINTS
    return Field.on_box(LAW.sample(count, seeded(seed))(x).unsqueeze(-2), [(0.0, LENGTH)])


def transformations(count: int, generator: torch.Generator) -> Tensor:
    return GROUP.random(count, generator=generator, dtype=F64)


def kdv(values: Tensor) -> Tensor:
    """The solver in place of a network: it knows one box, one start and one time."""
    return solve(KDV, Field.on_box(values, [(0.0, LENGTH)]), [HORIZON], 0.02).values[:, :, 0]


def energy(count: int = 200) -> FieldSpectrum:
    return FieldSpectrum(FieldBox(clean(2, 0).grid), clean(count, 1).values)


class TestEnergies:
    def test_box_is_written_out(self) -> None:
        box = FieldBox(clean(2, 0).grid)
        v = torch.tensor([[0.0, 0.0, 0.0, 0.0], [math.log(2) / 0.2, 0.3, 0.0, 0.5]], dtype=F64)
        g = GROUP.exp(v)
        moved = ACTION(g, clean(2, 2))
        x0, t0 = moved.grid.origin[1, 0]
        expected = torch.stack([0 * x0, x0**2 + t0**2 + LENGTH**2])
        assert_relative(box(moved), expected, 1e-10)

    def test_spectrum_is_the_mean_square_of_whitened_modes(self) -> None:
        """Of the training set itself: half of w on average, shared by the modes; a boost costs what k = 0 says."""
        components = energy(4000)
        variances = torch.fft.rfft(clean(4000, 1).values, norm="forward").abs().square().mean(0).flatten()
        largest = float(variances.max())
        resolved = (variances / (variances + 1e-4 * largest)).mean()
        assert_relative(components(clean(4000, 1)).mean(), 0.5 * resolved, 2e-3)
        field = clean(3, 3)
        boosted = field._replace(values=field.values + 0.2)
        expected = 0.2**2 / (2 * (POINTS // 2 + 1) * 1e-4 * largest)
        assert_relative(components(boosted) - components(field), torch.full((3,), expected, dtype=F64), 0.05)

    def test_translations_leave_the_spectrum_alone(self) -> None:
        components, field = energy(), clean(4, 4)
        rolled = field._replace(values=field.values.roll(5, -1))
        assert_relative(components(rolled), components(field), 1e-10)

    def test_components_are_the_density_of_a_normal_law(self) -> None:
        """With few and with many samples: a dense covariance, the variance in all other directions raised."""
        for count in (12, 200):
            samples, x = clean(count, 1), clean(5, 2)
            components = FieldComponents(samples, weight=0.7, floor=0.05)
            u, v = (f.values.flatten(1) for f in (samples, x))
            values, vectors = torch.linalg.eigh(u.mT.cov())
            least = (0.05**2 * u.square().mean()).expand_as(values)
            covariance = vectors @ torch.diag(torch.maximum(values, least)) @ vectors.mT
            away = v - u.mean(0)
            exact = 0.7 / (2 * POINTS) * (away @ covariance.inverse() * away).sum(-1)
            assert_relative(components(x), exact, 1e-8)
        moved = ACTION(GROUP.exp(torch.tensor([0.0, 0.3, 0.0, 0.0], dtype=F64)), x)
        assert_relative(components(moved), components(x) + 0.3**2, 1e-8)

    def test_bad_input(self) -> None:
        with pytest.raises(ShapeError, match="at least 2 fields"):
            FieldComponents(clean(1, 0))
        with pytest.raises(ShapeError, match="expected fields of 32 values"):
            FieldComponents(clean(3, 0))(Field.on_box(randn(1, 1, 8), [(0.0, LENGTH)]))
        with pytest.raises(ConfigurationError, match="floor"):
            FieldComponents(clean(3, 0), floor=0.0)
        with pytest.raises(ShapeError, match="at least 2 fields"):
            FieldSpectrum(FieldBox(clean(1, 0).grid), clean(1, 0).values)
        with pytest.raises(DomainError, match="share, got several"):
            FieldBox(ACTION(random_elements(GROUP, 2, std=1.0), clean(2, 0)).grid)
        with pytest.raises(ConfigurationError, match="weight"):
            FieldSpectrum(FieldBox(clean(1, 0).grid), clean(3, 0).values, weight=0.0)
        box = FieldBox(clean(2, 0).grid)
        with pytest.raises(ShapeError, match="expected a grid"):
            box(Field(randn(1, 1, 2, 8), clean(1, 0).grid.at([0.0, 1.0])))


class _Known(Inverter):
    """Says what it was told."""

    def __init__(self, g: Tensor) -> None:
        super().__init__(ACTION, energy(), [lambda posterior, population, generator: population.moved(g[:, None])])


class TestOperator:
    def test_is_the_solution_from_the_moved_field(self) -> None:
        """Against the solver on the moved circle: a later start, another length, a moving frame."""
        g = random_elements(GROUP, 5, std=1.0, seed=1)
        initial = ACTION(g, clean(5, 5))
        times = initial.grid.times + HORIZON * (3 * g[:, :1]).exp()
        exact = solve(KDV, initial, times, 0.005)
        operator = EquivariantOperator(kdv, _Known(g), [HORIZON])
        assert_relative(operator(initial, initial.grid.at(times)).values, exact.values, 2e-5)
        with pytest.raises(DomainError, match=r"where the network's times .* are moved, for field 0"):
            operator(initial, initial.grid.at(times + 2.0))
        with pytest.raises(DomainError, match="of 5 fields"):
            operator(initial, initial.grid.at(initial.grid.times - 0.1))
        assert operator(initial).grid.times.shape == (5, 1)

    @pytest.mark.parametrize("start", [-2.0, 3.5])
    def test_predictions_begin_at_the_time_of_the_field(self, start: float) -> None:
        """The network's times are counted from there: a field later by a time has the same solution later by it."""
        g, field = random_elements(GROUP, 3, std=0.3, seed=4), clean(3, 5)
        g = torch.cat([g[:, :1], 0 * g[:, 1:]], -1)  # scalings, which keep time zero but no other
        operator = EquivariantOperator(kdv, _Known(GROUP.identity(3, dtype=F64)), [HORIZON])
        late = Field(field.values, field.grid.at([start]))
        found, now = operator(late), operator(field)
        assert_relative(found.grid.times, now.grid.times + start, 1e-12)
        assert_relative(found.values, now.values, 1e-12)
        wanted = late.grid.at([start + HORIZON])
        assert_relative(operator(late, wanted).values, now.values, 1e-6)
        scaled = EquivariantOperator(kdv, _Known(g), [HORIZON])(late)
        # of the scaled network: times from the start are those of the scaling alone
        assert_relative(scaled.grid.times, start + HORIZON * (3 * g[:, :1]).exp(), 1e-9)

    @pytest.mark.parametrize("start", [-2.0, 3.5])
    def test_times_between_are_counted_from_the_field(self, start: float) -> None:
        """Also where the equation tells what is there."""
        equation, field = SpectralEquation.from_equation("u_t + u*u_x + u_xxx = 0"), clean(3, 5)
        operator = EquivariantOperator(kdv, _Known(GROUP.identity(3, dtype=F64)), [HORIZON], equation=equation)
        late, share = Field(field.values, field.grid.at([start])), 0.98 * HORIZON
        found = operator(late, late.grid.at([start + share])).values
        assert_relative(found, solve(KDV, field, [share], 0.005).values, 0.02)
        assert_relative(found, operator(field, field.grid.at([share])).values, 1e-9)

    def test_the_initial_field_is_a_node_in_time(self) -> None:
        """At the start it is there; a rounding away from the network's time and a little later the solution is, too."""
        g = random_elements(GROUP, 5, std=0.5, seed=1)
        initial = ACTION(g, clean(5, 5))
        span = HORIZON * (3 * g[:, :1]).exp()
        one = EquivariantOperator(kdv, _Known(g), [HORIZON])
        assert_relative(one(initial, initial.grid.at(initial.grid.times)).values, initial.values, 1e-9)
        for share, limit in ((1 - 1e-6, 1e-4), (1 + 1e-6, 1e-4), (1.01, 0.05)):
            times = initial.grid.times + share * span
            found = one(initial, initial.grid.at(times)).values
            assert_relative(found, solve(KDV, initial, times, 0.005).values, limit)
        # with four times between: cubic from the start on

        def block(values: Tensor) -> Tensor:
            times = [HORIZON * k / 8 for k in range(1, 9)]
            return solve(KDV, Field.on_box(values, [(0.0, LENGTH)]), times, 0.02).values

        many = EquivariantOperator(block, _Known(g), [HORIZON * k / 8 for k in range(1, 9)])
        for share in (0.06, 0.55, 1.02):
            times = initial.grid.times + share * span
            found = many(initial, initial.grid.at(times)).values
            assert_relative(found, solve(KDV, initial, times, 0.005).values, 5e-3)

    def test_refused_before_the_network_is_called(self) -> None:
        def never(values: Tensor) -> Tensor:
            raise AssertionError

        operator = EquivariantOperator(never, _Known(GROUP.identity(2, dtype=F64)), [1.0])
        with pytest.raises(DomainError, match="from 0 to 1"):
            operator(clean(2, 0), clean(2, 0).grid.at([1.5]))

    def test_blocks_parameters_and_precision(self) -> None:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.factor = nn.Parameter(torch.ones(1))

            def forward(self, u: Tensor, p: Tensor) -> Tensor:
                assert u.dtype == torch.float32
                return self.factor * torch.stack([u, 2 * u, 3 * u, 4 * u], 2) * p[:, :, None, None]

        g = random_elements(GROUP, 2, std=0.5, seed=2)
        initial = ACTION(g, clean(2, 6))
        operator = EquivariantOperator(Block(), _Known(g), [1.0, 2.0, 3.0, 4.0])
        out = operator(initial, parameters=torch.tensor([[1.0], [2.0]]))
        assert out.values.dtype == F64
        back = ACTION(GROUP.inverse(g), out).values
        expected = clean(2, 6).values * torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=F64)[:, None]
        assert_relative(back[0], expected[0], 1e-5)
        assert_relative(back[1], 2 * expected[1], 1e-5)

    def test_a_known_equivariance_error(self) -> None:
        """Nothing is undone: of constants c that a boost makes c + s, (c + s)^2 in place of c^2 + s, by hand."""
        c, s = torch.tensor([0.5, -1.0, 2.0], dtype=F64), torch.tensor([0.3, -0.2], dtype=F64)
        field = Field.on_box(c[:, None, None].expand(3, 1, POINTS), [(0.0, LENGTH)])
        nothing = Inverter(ACTION, energy(), [])
        boosts = torch.stack([0 * s, 0 * s, s, 0 * s], -1)
        for network, p in ((lambda u: u.square(), None), (lambda u, p: p[:, :, None] * u.square(), torch.ones(3, 1))):
            operator = EquivariantOperator(network, nothing, [1.0])
            error = operator.equivariance_error(
                field, 2, transformations=lambda number, generator: boosts, parameters=p
            )
            expected = (c.square() + s[:, None]).abs()
            assert_relative(error.errors, ((c + s[:, None]).square() - c.square() - s[:, None]).abs() / expected, 1e-9)
            assert error.worst == float(error.errors.max())

    def test_tied_restores_fields(self) -> None:
        g = random_elements(GROUP, 4, std=1.0, seed=3)
        initial = ACTION(g, clean(4, 7))
        tied = ReverseDiffusionSearch(
            ACTION, energy(), GeometricSchedule(0.05, 1.0), steps=30, num_hypotheses=8, keep_best=True
        )
        found = tied.then(Descend(60))(initial, generator=seeded(0)).best()
        lengths = POINTS * ACTION(GROUP.inverse(found), initial).grid.steps
        assert float((lengths / LENGTH - 1).abs().max()) < 0.02
        assert float((found - g)[:, 2].abs().max()) < 0.05  # the boost

    def test_bad_input(self) -> None:
        known = _Known(GROUP.identity(2, dtype=F64))
        with pytest.raises(ConfigurationError, match="network"):
            EquivariantOperator("fno", known, [1.0])  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="increasing ones above zero"):
            EquivariantOperator(kdv, known, [0.0])
        points = GradientDescent(GROUP.action(), lambda x: x.square().sum((-1, -2)))
        with pytest.raises(ConfigurationError, match="FieldAction"):
            EquivariantOperator(kdv, points, [1.0])
        operator = EquivariantOperator(lambda u: u[..., 1:], known, [1.0])
        with pytest.raises(ShapeError, match="expected predictions"):
            operator(clean(2, 0))
        block = clean(2, 0)
        block = Field(block.values.repeat(1, 1, 2, 1), block.grid.at([0.0, 1.0]))
        with pytest.raises(ShapeError, match="one time, got 2"):
            operator.predict(block, GROUP.identity(2, dtype=F64))


class TestBackbone:
    @pytest.mark.parametrize("shape", [(1, 32), (2, 12, 10)])
    def test_one_and_two_dimensions(self, shape: tuple[int, ...]) -> None:
        field = Field.on_box(randn(6, *shape), [(0.0, 1.0)] * (len(shape) - 1))
        noise = FieldBackbone(4, field, width=16)(field, torch.full((6,), 0.3, dtype=F64))
        assert noise.shape == (6, 4)
        assert noise.dtype == F64

    def test_is_chosen_and_kept_in_a_file(self, tmp_path: Path) -> None:
        inverter = LearnedInverter(ACTION, energy(), seed=1)
        inverter.fit(clean(64, 8), transformations, steps=3, batch_size=16, progress=False)
        assert isinstance(inverter.backbone, FieldBackbone)
        inverter.save(tmp_path / "fields.safetensors")
        again = LearnedInverter.load(tmp_path / "fields.safetensors", ACTION, energy())
        x = ACTION(random_elements(GROUP, 4, std=1.0, seed=9), clean(4, 10))
        assert torch.equal(again(x, generator=seeded(1)).elements, inverter(x, generator=seeded(1)).elements)
        assert float(again.backbone.spread.max()) > 0.1  # type: ignore[union-attr,operator]

    def test_fields_that_nothing_is_known_of_when_moved(self) -> None:
        group = GROUP.with_scale([1.0, 5.0, 1.0, 1.0])
        with pytest.raises(DomainError, match="stay known when they are moved"):
            LearnedInverter(FieldAction(group, regrid=True)).fit(
                clean(8, 0), lambda n, g: group.random(n, generator=g, dtype=F64)
            )

    @pytest.mark.slow
    def test_learned_inversion_finds_all_four_symmetries(self) -> None:
        inverter = LearnedInverter(ACTION).fit(
            clean(256, 8), transformations, steps=600, batch_size=96, seconds=None, progress=False
        )
        g = random_elements(GROUP, 64, std=1.0, seed=9)
        found = inverter(ACTION(g, clean(64, 10)), generator=seeded(1)).best()
        error = GROUP.log(GROUP.compose(GROUP.inverse(g), found)).abs().mean(0)
        assert float(error.max()) < 0.05
