"""Fields under point symmetries: exact waves, solutions of equations, orders of resampling, where nothing is known."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap

from tests.helpers import assert_relative, numeric_jacobian, rand, randn, random_elements, seeded
from trivgeo.actions import Field, FieldAction, Grid, augment, resample
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import SO, BurgersSymmetry, HeatSymmetry, KdVSymmetry, LieGroup, from_generators
from trivgeo.pde import Burgers, GaussianField, KdV, KuramotoSivashinsky, SpectralEquation, Vorticity, solve

F64 = torch.float64


def shift(p: Tensor) -> Tensor:
    return 0 * p + torch.tensor([1.0, *[0.0] * (p.shape[-1] - 1)], dtype=p.dtype)


def by_value(p: Tensor) -> Tensor:
    return torch.stack([p[..., 2], 0 * p[..., 0], 0 * p[..., 0]], -1)


def stretch(p: Tensor) -> Tensor:
    return p * torch.tensor([0.0, 0.0, 1.0], dtype=p.dtype)


def by_value_in_both(p: Tensor) -> Tensor:
    return torch.stack([p[..., 2], 2 * p[..., 2], 0 * p[..., 0]], -1)


def by_first_value(p: Tensor) -> Tensor:
    return torch.stack([p[..., 2], *[0 * p[..., 0]] * 3], -1)


def lorentz(p: Tensor) -> Tensor:
    return torch.stack([p[..., 1], p[..., 0], 0 * p[..., 0]], -1)


def across(p: Tensor) -> Tensor:
    return 0 * p + torch.tensor([0.0, 1.0, *[0.0] * (p.shape[-1] - 2)], dtype=p.dtype)


def later(p: Tensor) -> Tensor:
    return 0 * p + torch.tensor([0.0] * (p.shape[-1] - 2) + [1.0, 0.0], dtype=p.dtype)


def boost(p: Tensor) -> Tensor:
    one = torch.ones_like(p[..., 0])
    return torch.stack([p[..., 1], 0 * one, one], -1)


def plane_turn(p: Tensor) -> Tensor:
    x, y = p[..., 0], p[..., 1]
    return torch.stack([-y, x, 0 * x, 0 * x], -1)


def plane_scaling(p: Tensor) -> Tensor:
    return p * torch.tensor([1.0, 1.0, 2.0, -2.0], dtype=p.dtype)


def stretch_wind(p: Tensor) -> Tensor:
    return p * torch.tensor([1.0, 1.0, 0.0, 3.0, 3.0], dtype=p.dtype)


def wind_scaling(p: Tensor) -> Tensor:
    return p * torch.tensor([1.0, 1.0, 0.5, 3.0, 3.0], dtype=p.dtype)


TRANSLATIONS = from_generators({"X": shift}, variables=3)
GALILEI = from_generators({"T": later, "C": boost, "X": shift}, variables=3)
PLANE = from_generators({"R": plane_turn, "S": plane_scaling, "X": shift, "Y": across}, variables=4)
LORENTZ = from_generators({"B": lorentz}, variables=3)
WAVES = from_generators({"V": by_value, "X": shift}, variables=3)
LARGER_WIND = from_generators({"S": wind_scaling, "X": shift}, variables=5)


def circle(length: float, count: int) -> Tensor:
    return length * torch.arange(count, dtype=F64) / count


def random_block(length: float = 16.0, points: int = 32, times: int = 5, batch: int = 2) -> Field:
    u = GaussianField(0.3, 0.5, 6.0, 6, length).sample(batch * times, seeded(0))(circle(length, points))
    return Field.on_box(u.reshape(batch, 1, times, points), [(0.0, length)], [0.5 * k for k in range(times)])


def assert_same(a: Field, b: Field, bound: float) -> None:
    for one, other in ((a.values, b.values), (a.grid.origin, b.grid.origin), (a.grid.steps, b.grid.steps)):
        assert_relative(one, other.expand(one.shape), bound)


class TestMovedGrids:
    """The grid follows: everything is exact."""

    @pytest.mark.parametrize(
        ("group", "periodic"),
        [(KdVSymmetry(), True), (GALILEI, True), (BurgersSymmetry(), False), (HeatSymmetry(0.3), False)],
        ids=str,
    )
    def test_is_the_point_action_and_a_left_action(self, group: LieGroup, periodic: bool) -> None:
        block, action = random_block(), FieldAction(group, (periodic,))
        g, h = random_elements(group, 2, std=0.1, seed=1), random_elements(group, 2, std=0.1, seed=2)
        assert_relative(action(g, block).to_points(), group.action()(g, block.to_points()), 1e-12)
        assert_same(action(group.compose(g, h), block), action(g, action(h, block)), 1e-10)
        assert_same(action(group.inverse(g), action(g, block)), block, 1e-10)
        assert bool(action.is_valid(g, block).all())

    def test_two_dimensions_and_an_oblique_lattice(self) -> None:
        u = randn(3, 1, 2, 5, 6)
        block = Field.on_box(u, [(0.0, 2.0), (-1.0, 3.0)], [0.0, 1.0])
        action = FieldAction(PLANE, (True, True))
        g = random_elements(PLANE, 3, std=0.3, seed=3)
        moved = action(g, block)
        assert_relative(moved.to_points(), PLANE.action()(g, block.to_points()), 1e-12)
        assert float(moved.grid.steps[..., 0, 1].abs().min()) > 1e-3  # turned

    def test_torn_fields_are_nan(self) -> None:
        group = BurgersSymmetry()
        g = group.exp(torch.tensor([[0.0, 0, 0.1, 0, 0], [0.0, 0, -1.0, 0, 0]], dtype=F64))  # 1 + 0.1 t, 1 - t
        action, block = FieldAction(group, (False,)), random_block()
        assert action.is_valid(g, block).tolist() == [True, False]
        assert bool(torch.isnan(action(g, block).values[1]).all())

    def test_batches_broadcast(self) -> None:
        block, group = random_block(), KdVSymmetry()
        action = FieldAction(group)
        g = random_elements(group, 2, 3, std=0.2)
        wide = Field(block.values[:, None], Grid(block.grid.origin[:, None], block.grid.steps[:, None]))
        moved = action(g, wide)
        assert moved.values.shape == (2, 3, 1, 5, 32)
        alone = action(g[:, 1], block)
        assert_relative(moved.values[:, 1], alone.values, 1e-12)
        assert_relative(moved.grid.origin[:, 1], alone.grid.origin, 1e-12)

    def test_log_determinant_is_that_of_the_dense_jacobian(self) -> None:
        group = KdVSymmetry()
        action = FieldAction(group)
        g = random_elements(group, std=0.3, seed=5)
        block = random_block(points=4, times=2, batch=1)
        x = Field(block.values[0], Grid(block.grid.origin[0], block.grid.steps[0]))
        sizes = [x.values.numel(), x.grid.origin.numel(), x.grid.steps.numel()]

        def flat(z: Tensor) -> Tensor:
            u, origin, steps = z.split(sizes)
            field = Field(u.reshape(x.values.shape), Grid(origin.reshape(2, 2), steps.reshape(2, 1, 1)))
            y = action(g, field)
            return torch.cat([y.values.flatten(), y.grid.origin.flatten(), y.grid.steps.flatten()])

        z = torch.cat([x.values.flatten(), x.grid.origin.flatten(), x.grid.steps.flatten()])
        dense = torch.linalg.slogdet(jacrev(flat)(z))[1]
        assert_relative(action.log_abs_det_jacobian(g, x), dense, 1e-10)

    @pytest.mark.parametrize("unknowns", [1, 2])
    def test_log_determinant_in_two_dimensions(self, unknowns: int) -> None:
        """Against the dense Jacobian: the grid has two steps, and there are one or two unknowns."""
        group = (PLANE, LARGER_WIND)[unknowns - 1]
        action, g = FieldAction(group, (False, False)), random_elements(group, std=0.4, seed=3)
        x = Field.on_box(randn(unknowns, 2, 3, 2), [(0.0, 1.0), (-1.0, 2.0)], [0.5, 1.5], periodic=False)
        leaves = (x.values, *x.grid)

        def flat(z: Tensor) -> Tensor:
            u, *grid = (
                part.reshape(leaf.shape)
                for part, leaf in zip(z.split([y.numel() for y in leaves]), leaves, strict=True)
            )
            y = action(g, Field(u, Grid(*grid)))
            return torch.cat([leaf.flatten() for leaf in (y.values, *y.grid)])

        dense = torch.linalg.slogdet(jacrev(flat)(torch.cat([leaf.flatten() for leaf in leaves])))[1]
        assert float(dense.abs()) > 0.1
        assert_relative(action.log_abs_det_jacobian(g, x), dense, 1e-10)

    def test_a_denominator_that_is_negative_everywhere_tears_nothing(self) -> None:
        """Minus the identity of SL(2): x and u change their sign, and nothing else happens."""
        g = torch.tensor([[-1.0, 0.0, 0.0, -1.0, 0.0, 0.0]], dtype=F64)
        block = random_block(points=8, times=4, batch=1)
        for regrid in (False, True):
            action = FieldAction(BurgersSymmetry(), (False,), regrid=regrid)
            field = block if not regrid else Field.on_box(block.values, [(-3.0, 3.0)], [0.0, 1, 2, 3], periodic=False)
            assert action.is_valid(g, field).tolist() == [True]
            moved = action(g, field)
            assert_relative(moved.values, -field.values.flip(-1) if regrid else -field.values, 1e-12)


SOLVED: list[tuple[SpectralEquation, LieGroup, GaussianField]] = [
    (KdV(), KdVSymmetry(), GaussianField(0.2, 0.5, 6.0, 6, 16.0)),
    (KuramotoSivashinsky(), GALILEI, GaussianField(0.2, 0.5, 6.0, 6, 22.0)),
    (Burgers(0.3), GALILEI, GaussianField(0.2, 0.5, 6.0, 6, 16.0)),
]


@pytest.mark.parametrize(("equation", "group", "initial"), SOLVED, ids=["kdv", "ks", "burgers"])
def test_moved_solutions_are_solutions(equation: SpectralEquation, group: LieGroup, initial: GaussianField) -> None:
    """Solved anew from the moved initial field, on its circle and in its frame: the solver's own error, no more."""
    times, action = [0.0, 0.5, 1.0], FieldAction(group)
    u = initial.sample(4, seeded(6))(circle(initial.length, 64)).unsqueeze(-2)
    coarse, fine = (solve(equation, Field.on_box(u, [(0.0, initial.length)]), times, step) for step in (0.01, 0.0025))
    own = float((coarse.values - fine.values).abs().max())
    moved = action(random_elements(group, 4, std=0.3, seed=7), fine)
    start = moved.slice(0)
    again = solve(equation, start, moved.grid.times, 0.0025)
    there = action.resample(moved, again.grid)
    size = float(moved.values.abs().max() / fine.values.abs().max())
    error = float((there.values - again.values).abs().max())
    assert error < 10 * size * max(own, 1e-6), (error, own)
    stretched = action.resample(moved._replace(values=1.1 * moved.values), again.grid)
    assert float((stretched.values - again.values).abs().max()) > 1e-2


def test_moved_vorticity_solves_its_equation() -> None:
    action = FieldAction(PLANE, (True, True))
    u = randn(1, 1, 8, 8)
    smooth = Field.on_box(u, [(0.0, 2 * math.pi)] * 2)
    grid = Field.on_box(torch.zeros(1, 1, 32, 32, dtype=F64), [(0.0, 2 * math.pi)] * 2).grid
    initial = resample(smooth, grid, (True, True), (32, 32))
    initial = initial._replace(values=initial.values - initial.values.mean())
    block = solve(Vorticity(0.05), initial, [0.0, 0.3], 0.01)
    moved = action(random_elements(PLANE, 1, std=0.4, seed=8), block)
    start = moved.slice(0)
    again = solve(Vorticity(0.05), start, moved.grid.times, 0.005)
    assert_relative(again.values, moved.values, 1e-6)


class TestResampling:
    def test_trigonometric_is_exact_for_what_the_grid_resolves(self) -> None:
        wave = lambda x, y: torch.sin(3 * x - 2 * y) + torch.cos(x) - 0.3 * torch.sin(4 * y)  # noqa: E731
        x, y = circle(2 * math.pi, 9), circle(2 * math.pi, 12)
        field = Field.on_box(wave(x[:, None], y)[None], [(0.0, 2 * math.pi)] * 2)
        turn = torch.tensor([[0.3, 0.2], [-0.1, 0.4]], dtype=F64)
        grid = Grid(torch.tensor([[-11.0, 5.0, 0.0]], dtype=F64), turn[None])
        there = resample(field, grid, (True, True), (7, 5))
        points = grid.points(7, 5)
        assert_relative(there.values[0], wave(points[..., 0], points[..., 1]), 1e-12)

    @pytest.mark.parametrize("count", [7, 8])
    def test_the_shortest_wave_of_an_axis(self, count: int) -> None:
        """The highest wave counts twice, by its sine and cosine, unless it alternates from node to node."""
        wave, x = count // 2, circle(2 * math.pi, count)
        field = Field.on_box(torch.cos(wave * x)[None], [(0.0, 2 * math.pi)])
        assert_relative(resample(field, field.grid).values, field.values, 1e-12)
        shifted = Grid(field.grid.origin + torch.tensor([0.3, 0.0], dtype=F64), field.grid.steps)
        assert_relative(resample(field, shifted).values[0, 0], torch.cos(wave * (x + 0.3)), 1e-12)

    @pytest.mark.parametrize("at", [0.5, 2.5, 3.5, 5.5])
    def test_the_four_nearest_nodes(self, at: float) -> None:
        """Of the fourth power the error is the product of the distances: two on either side, but at the ends."""
        nodes = torch.arange(7, dtype=F64)
        nearest = nodes[(nodes - min(max(at, 1.5), 4.5)).abs() < 2]
        assert len(nearest) == 4
        expected = torch.full((4,), at**4, dtype=F64) - (at - nearest).prod()
        in_time = Field.on_box((nodes**4)[:, None].expand(7, 4)[None], [(0.0, 1.0)], nodes.tolist())
        assert_relative(resample(in_time, in_time.grid.at([at])).values[0, 0], expected, 1e-10)
        in_space = Field.on_box((nodes**4)[None], [(0.0, 6.0)], periodic=False)
        there = Grid(torch.tensor([[at, 0.0]], dtype=F64), 0 * in_space.grid.steps)
        assert_relative(resample(in_space, there, (False,), (4,)).values[0, 0], expected, 1e-10)

    @pytest.mark.parametrize("periodic", [True, False])
    def test_order_four_in_space_and_time(self, periodic: bool) -> None:
        """The error against a known function, with the lattice in motion."""

        def u(x: Tensor, t: Tensor) -> Tensor:
            return torch.sin(x - t) + 0.5 * torch.cos(2 * x + t)

        errors = []
        for n in (12, 24, 48):
            x = circle(2 * math.pi, n) if periodic else torch.linspace(0, 2 * math.pi, n + 1, dtype=F64)
            t = torch.linspace(0, 2, n + 1, dtype=F64)
            values = u(x, t[:, None])[None]
            block = Field.on_box(values, [(0.0, 2 * math.pi)], t.tolist(), periodic)
            grid = Grid(
                torch.tensor([[0.3, 0.11], [0.2, 1.03], [0.5, 1.97]], dtype=F64),
                torch.full((3, 1, 1), 0.77, dtype=F64),
            )
            there = resample(block, grid, (periodic,), (7,))
            points = grid.points(7)
            errors.append(float((there.values[0] - u(points[..., 0], points[..., 1])).abs().max()))
        slopes = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
        assert min(slopes) > 3.5, (errors, slopes)

    def test_what_is_not_reached_is_nan(self) -> None:
        x = torch.linspace(0, 1, 6, dtype=F64)
        field = Field.on_box(x[None], [(0.0, 1.0)], periodic=False)
        moved = Grid(field.grid.origin + torch.tensor([0.3, 0.0], dtype=F64), field.grid.steps)
        there = resample(field, moved, (False,)).values[0, 0]
        assert_relative(there[:4], x[:4] + 0.3, 1e-12)
        assert bool(torch.isnan(there[4:]).all())
        assert bool(torch.isnan(resample(field, field.grid.at([0.1]), (False,)).values).all())
        assert bool(torch.isfinite(resample(field, field.grid, (False,)).values).all())

    def test_times_that_do_not_increase_are_not_interpolated(self) -> None:
        """The four nearest nodes are looked for in order; out of order they were some four nodes."""
        field = random_block(times=6)
        at = field.grid.at([0.5 * float(field.grid.times[0, 0] + field.grid.times[0, 1])])
        assert bool(torch.isfinite(resample(field, at).values).all())
        order = [0, 3, 1, 4, 2, 5]
        mixed = Field(field.values[:, :, order], Grid(*(leaf[:, order] for leaf in field.grid)))
        assert bool(torch.isnan(resample(mixed, at).values).all())

    @pytest.mark.parametrize("end", [3 * 0.1, 0.3 - 6e-17, 0.3])
    def test_an_end_off_by_rounding_asks_for_no_other_slice(self, end: float) -> None:
        """Slices that move with the time: what the last one reaches, others do not."""
        x, times = torch.linspace(0, 1, 8, dtype=F64), [0.0, 0.1, 0.2, 0.3]
        origin = torch.tensor([[2 * t, t] for t in times], dtype=F64)
        field = Field(torch.stack([torch.sin(x + 2 * t) for t in times])[None], Grid(origin, x[1].expand(4, 1, 1)))
        there = Grid(torch.tensor([[0.6, end]], dtype=F64), x[1].reshape(1, 1, 1))
        assert_relative(resample(field, there, (False,)).values[0, 0], torch.sin(x + 0.6), 1e-12)

    def test_rows_and_times(self) -> None:
        block = random_block(batch=3)
        for rows in ([2, 0], (2, 0), torch.tensor([2, 0])):
            taken = block.take(rows).slice(-1)
            assert torch.equal(taken.values, block.values[[2, 0]][:, :, 4:])
            assert torch.equal(taken.grid.times, block.grid.times[[2, 0], 4:])

    def test_points_and_back(self) -> None:
        group, block = KdVSymmetry(), random_block()
        jets = group.action()(random_elements(group, 2, std=0.3), block.to_points())
        again = Field.from_points(jets, (5, 32))
        assert_relative(again.to_points(), jets, 1e-12)
        with pytest.raises(DomainError, match="regular grid"):
            Field.from_points(jets + 0.01 * torch.rand(jets.shape, generator=seeded(0), dtype=F64), (5, 32))
        with pytest.raises(ShapeError, match=r"160"):
            Field.from_points(jets[:, 1:], (5, 32))


class TestRegridding:
    def test_translations_of_a_periodic_field_are_a_group_exactly(self) -> None:
        action, block = FieldAction(TRANSLATIONS, regrid=True), random_block(points=31)
        g, h = random_elements(TRANSLATIONS, 2, std=5.0, seed=1), random_elements(TRANSLATIONS, 2, std=5.0, seed=2)
        assert_same(action(TRANSLATIONS.compose(g, h), block), action(g, action(h, block)), 1e-10)
        whole = TRANSLATIONS.exp(torch.tensor([[3 * 16.0 / 31]], dtype=F64))
        assert_relative(action(whole, block).values, block.values.roll(3, -1), 1e-10)

    def test_group_law_holds_with_order_four(self) -> None:
        """Boosts of a block in the middle of a box that is not periodic: compared where all three are known."""
        g, h = random_elements(GALILEI, 1, std=0.08, seed=3), random_elements(GALILEI, 1, std=0.08, seed=4)
        action, errors = FieldAction(GALILEI, (False,), regrid=True), []
        for n in (24, 48, 96):
            x, t = torch.linspace(-3, 3, n + 1, dtype=F64), torch.linspace(0, 2, n + 1, dtype=F64)
            block = Field.on_box(
                (torch.sin(x - t[:, None]) + 0.2 * torch.cos(2 * x))[None, None], [(-3.0, 3.0)], t.tolist(), False
            )
            difference = action(GALILEI.compose(g, h), block).values - action(g, action(h, block)).values
            # what needs an unknown node is not known
            known = difference[torch.isfinite(difference)]
            assert known.numel() > 0.5 * difference.numel()
            errors.append(float(known.square().mean().sqrt()))
        slopes = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
        assert slopes[-1] > 3.7, (errors, slopes)

    def test_lorentz_boost_of_a_wave(self) -> None:
        """u = f(x - t) + h(x + t) goes to the same with Doppler shifted arguments."""
        wave = lambda x, t: torch.sin(x - t) + torch.cos(0.5 * (x + t))  # noqa: E731
        action, eta, errors = FieldAction(LORENTZ, (False,), regrid=True), 0.3, []
        for n in (20, 40):
            x = torch.linspace(-3, 3, n + 1, dtype=F64)
            block = Field.on_box(wave(x, x[:, None])[None, None], [(-3.0, 3.0)], x.tolist(), False)
            y = action(LORENTZ.exp(torch.tensor([[eta]], dtype=F64)), block).values[0, 0]
            exact = torch.sin(math.exp(eta) * (x - x[:, None])) + torch.cos(0.5 * math.exp(-eta) * (x + x[:, None]))
            known = torch.isfinite(y)
            assert 0.7 < float(known.double().mean()) < 0.95
            errors.append(float((y - exact)[known].abs().max()))
        assert math.log2(errors[0] / errors[1]) > 3.5

    def test_waves_that_break_are_no_functions(self) -> None:
        """u d/dx is the flow of u_t + u u_x = 0: against its characteristics, and NaN after the shock at t = 1."""
        action, x = FieldAction(WAVES, regrid=True), circle(2 * math.pi, 64)
        field = Field.on_box(torch.sin(x)[None, None], [(0.0, 2 * math.pi)])
        u = torch.sin(x)
        for _ in range(60):
            u = u - (u - torch.sin(x - 0.7 * u)) / (1 + 0.7 * torch.cos(x - 0.7 * u))
        moved = action(WAVES.exp(torch.tensor([[0.7, 0.0]], dtype=F64)), field)
        assert_relative(moved.values[0, 0, 0], u, 1e-10)
        broken = action(WAVES.exp(torch.tensor([[1.2, 0.0]], dtype=F64)), field)
        assert bool(torch.isnan(broken.values).all())

    def test_a_wave_that_breaks_across_the_ends_of_a_period(self) -> None:
        """Steepest between the last point and the first: a little after the shock that cell alone is folded."""
        x = circle(2 * math.pi, 8)
        field = Field.on_box(-torch.sin(x + math.pi / 8)[None, None], [(0.0, 2 * math.pi)])
        action = FieldAction(WAVES, regrid=True)
        g = WAVES.exp(torch.tensor([[0.95, 0.0], [1.06, 0.0]], dtype=F64))
        assert action.is_valid(g, field).tolist() == [True, False]

    def test_a_graph_that_is_turned_upside_down(self) -> None:
        """Half a turn of x and u goes over all cells backwards, and folds none of them."""
        fields = {"X": ["1", "0", "0"], "U": ["0", "0", "1"], "R": ["-u", "0", "x"]}
        group = from_generators(fields, variables=["x", "t", "u"])
        x = torch.linspace(-1, 1, 9, dtype=F64)
        field = Field.on_box(0.3 * (x + x**2)[None], [(-1.0, 1.0)], periodic=False)
        half = group.exp(torch.tensor([0.0, 0.0, math.pi], dtype=F64))
        assert_relative(FieldAction(group, (False,), regrid=True)(half, field).values, -field.values.flip(-1), 1e-10)

    def test_log_determinant_counts_unknowns(self) -> None:
        """Two unknowns times e^(3 s), half of two for the plane times e^(2 s): 8 s at each of 12 points."""
        field = Field.on_box(randn(2, 1, 4, 3), [(0.0, 1.0)] * 2, [0.0], periodic=False)
        group = from_generators({"S": stretch_wind, "X": shift}, variables=5)
        g = group.exp(torch.tensor([0.1, 0.0], dtype=F64))
        found = FieldAction(group, (False, False), regrid=True).log_abs_det_jacobian(g, field)
        assert_relative(found, torch.tensor(12 * 0.8, dtype=F64), 1e-12)

    def test_log_determinant_does_not_depend_on_what_else_is_in_the_group(self) -> None:
        """Of u -> e^a u, in a group of maps of (x, t) and in one that moves x by u, too."""
        field = random_block()
        small, large = (
            from_generators({"U": stretch, **more, "X": shift}, variables=3) for more in ({}, {"V": by_value})
        )
        for group in (small, large):
            g = group.exp(torch.tensor([0.1, *[0.0] * (group.dim - 1)], dtype=F64))
            found = FieldAction(group, regrid=True).log_abs_det_jacobian(g, field)
            assert_relative(found, torch.full((2,), 0.1 * 5 * 32, dtype=F64), 1e-12)

    def test_log_determinant_along_the_graph(self) -> None:
        """x + s u, u: the fibre shrinks as x is stretched, by 1 + s u_x, of which half counts for the grid."""
        x = circle(2 * math.pi, 32)
        field, g = Field.on_box(torch.sin(x)[None], [(0.0, 2 * math.pi)]), torch.tensor([0.7, 0.0], dtype=F64)
        found = FieldAction(WAVES, regrid=True).log_abs_det_jacobian(WAVES.exp(g), field)
        assert_relative(found, -0.5 * (1 + 0.7 * x.cos()).log().sum(), 1e-12)
        # also by time, and at ends: a cubic, of which interpolation has the very derivatives
        x, t = torch.linspace(0, 1, 9, dtype=F64), torch.linspace(0.1, 0.9, 7, dtype=F64)[:, None]
        block = Field.on_box((x**3 * t)[None], [(0.0, 1.0)], t[:, 0].tolist(), periodic=False)
        group = from_generators({"W": by_value_in_both}, variables=3)
        g = group.exp(torch.tensor([0.2], dtype=F64))
        found = FieldAction(group, (False,), regrid=True).log_abs_det_jacobian(g, block)
        assert_relative(found, -0.5 * (1 + 0.2 * (3 * x**2 * t + 2 * x**3)).log().sum(), 1e-12)

    def test_two_unknowns_that_one_of_them_carries(self) -> None:
        """x + s u, (u, v): one half more for each unknown."""
        x = circle(2 * math.pi, 32)
        field = Field.on_box(torch.stack([torch.sin(x), torch.cos(x)]), [(0.0, 2 * math.pi)])
        group = from_generators({"V": by_first_value}, variables=4)
        found = FieldAction(group, regrid=True).log_abs_det_jacobian(group.exp(torch.tensor([0.7]).double()), field)
        assert_relative(found, torch.zeros((), dtype=F64), 1e-12)

    def test_a_slice_at_another_time_is_not_known(self) -> None:
        group = KdVSymmetry()
        action = FieldAction(group, regrid=True)
        field = random_block(times=1)
        v = torch.tensor([[0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.3, 0.7]], dtype=F64)  # later, and boosted at t = 0
        assert action.is_valid(group.exp(v), field).tolist() == [False, True]


def wind_turn(p: Tensor) -> Tensor:
    """The plane turns, and a velocity with it."""
    x, y, t, u, v = p.unbind(-1)
    return torch.stack([-y, x, 0 * t, -v, u], -1)


WIND = from_generators({"R": wind_turn}, variables=5)


def wind(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([torch.sin(x + 2 * y), torch.cos(x) * y])


class TestPlane:
    """Two dimensions with ends, two unknowns, parts that are unknown."""

    @staticmethod
    def field(n: int) -> tuple[Field, Tensor, Tensor]:
        x, y = torch.meshgrid(*(torch.linspace(-1, 1, n + 1, dtype=F64),) * 2, indexing="ij")
        return Field.on_box(wind(x, y), [(-1.0, 1.0)] * 2, periodic=False), x, y

    def test_a_turned_wind(self) -> None:
        """u'(x) = R u(R^-1 x) where R^-1 x is in the box, and nowhere else; with order four."""
        action, angle, errors = FieldAction(WIND, (False, False), regrid=True), 0.4, []
        c, s = math.cos(angle), math.sin(angle)
        for n in (16, 32):
            field, x, y = self.field(n)
            turned = action(WIND.exp(torch.tensor([angle], dtype=F64)), field).values[:, 0]
            u, v = wind(c * x + s * y, c * y - s * x)
            inside = ((c * x + s * y).abs() <= 1) & ((c * y - s * x).abs() <= 1)
            assert torch.equal(torch.isfinite(turned).all(0), inside)
            errors.append(float((turned - torch.stack([c * u - s * v, s * u + c * v]))[:, inside].abs().max()))
        assert math.log2(errors[0] / errors[1]) > 3.5, errors

    def test_a_channel(self) -> None:
        """Periodic along one axis: trigonometric there, cubic across."""
        errors = []
        for n in (12, 24):
            x, y = circle(2 * math.pi, 11)[:, None], torch.linspace(0, 1, n + 1, dtype=F64)
            channel = Field.on_box(
                (torch.sin(3 * x) * torch.exp(2 * y))[None], [(0.0, 2 * math.pi), (0.0, 1.0)], periodic=(True, False)
            )
            grid = Grid(torch.tensor([[7.0, 0.13, 0.0]], dtype=F64), torch.eye(2, dtype=F64)[None] * 0.17)
            at = grid.points(5, 5)[0]
            there = resample(channel, grid, (True, False), (5, 5)).values[0, 0]
            errors.append(float((there - torch.sin(3 * at[..., 0]) * torch.exp(2 * at[..., 1])).abs().max()))
        assert math.log2(errors[0] / errors[1]) > 3.5, errors

    def test_what_is_masked_stays_unknown(self) -> None:
        """Nothing else changes: the rest is that of the whole field, and the identity keeps the mask."""
        action, (field, x, y) = FieldAction(WIND, (False, False), regrid=True), self.field(24)
        mask = (x - 0.2).square() + y.square() < 0.1
        holed = field._replace(values=field.values.masked_fill(mask, math.nan))
        g = WIND.exp(torch.tensor([0.3], dtype=F64))
        part, whole = action(g, holed).values, action(g, field).values
        known = torch.isfinite(part)
        assert_relative(part[known], whole[known], 1e-12)
        c, s = math.cos(0.3), math.sin(0.3)
        under = (c * x + s * y - 0.2).square() + (c * y - s * x).square()
        assert not bool((known & (under < 0.1)).any())
        # four nodes: two steps away nothing is spoiled, also along a diagonal
        away = torch.isfinite(whole) & (under.sqrt() > 0.1**0.5 + 2.1 * math.sqrt(2) / 12)
        assert bool(known[away].all())
        assert torch.equal(torch.isnan(action(WIND.identity(dtype=F64), holed).values[0, 0]), mask)

    def test_derivative_of_a_turn(self) -> None:
        """At zero: the generator of the wind, -(x d/dy - y d/dx) u + (-v, u)."""
        action, (field, x, y) = FieldAction(WIND, (False, False), regrid=True), self.field(32)
        turned = lambda v: action(WIND.exp(v), field).values[:, 0]  # noqa: E731
        slope = jacfwd(turned)(torch.zeros(1, dtype=F64))[..., 0]
        u, v = wind(x, y)
        du = (
            torch.stack([torch.cos(x + 2 * y), -torch.sin(x) * y]),
            torch.stack([2 * torch.cos(x + 2 * y), torch.cos(x)]),
        )
        exact = -(x * du[1] - y * du[0]) + torch.stack([-v, u])
        inner = (slice(None), slice(2, -2), slice(2, -2))
        assert float((slope - exact)[inner].abs().max()) < 3e-3
        angles = torch.tensor([[0.1], [0.2]], dtype=F64)
        assert_relative(
            vmap(turned)(angles).nan_to_num(9.0), torch.stack([turned(a) for a in angles]).nan_to_num(9.0), 1e-12
        )


class TestDerivatives:
    @pytest.mark.parametrize("regrid", [False, True])
    def test_in_g_and_u(self, regrid: bool) -> None:
        group = KdVSymmetry()
        action = FieldAction(group, regrid=regrid)
        block = random_block(points=8, times=4, batch=1)
        origin, steps = (leaf[0] for leaf in block.grid)
        v0 = torch.tensor([0.0, 0.0, 0.2, 0.3], dtype=F64)
        v0 = v0 + (0 if regrid else torch.tensor([0.1, 0.2, 0, 0], dtype=F64))

        def image(v: Tensor, u: Tensor) -> Tensor:
            return action(group.exp(v), Field(u, Grid(origin, steps))).values.flatten()

        u = block.values[0]
        # the ends of time stay covered under boosts and translations alone
        pick = slice(2, 4) if regrid else slice(0, 4)
        of_v = lambda w: image(torch.cat([v0[: pick.start], w]), u)  # noqa: E731
        numeric = numeric_jacobian(of_v, v0[pick])
        assert_relative(jacrev(of_v)(v0[pick]), numeric, 1e-6)
        assert_relative(jacfwd(of_v)(v0[pick]), numeric, 1e-6)
        direction = randn(*u.shape, seed=1)
        slope = torch.func.jvp(lambda u: image(v0, u), (u,), (direction,))[1]
        assert_relative(slope, image(v0, u + direction) - image(v0, u) - image(v0, 0 * u) + image(v0, 0 * u), 1e-9)

    @pytest.mark.parametrize("regrid", [False, True])
    def test_second_derivatives_are_finite_at_the_identity(self, regrid: bool) -> None:
        group = KdVSymmetry()
        action, block = FieldAction(group, regrid=regrid), random_block(points=8, times=4, batch=1)

        def size(v: Tensor) -> Tensor:
            return action(group.exp(v), block).values.square().nansum()

        hessian = jacfwd(jacrev(size))(torch.zeros(1, 4, dtype=F64))
        assert bool(torch.isfinite(hessian).all())

    @pytest.mark.parametrize("regrid", [False, True])
    def test_vmap_and_single_precision(self, regrid: bool) -> None:
        group = KdVSymmetry()
        action, block = FieldAction(group, regrid=regrid), random_block(batch=3)
        g = random_elements(group, 3, std=0.1)
        alone = vmap(lambda g, u, o, s: action(g, Field(u, Grid(o, s))).values)(g, block.values, *block.grid)
        together = action(g, block).values
        assert_relative(alone.nan_to_num(99.0), together.nan_to_num(99.0), 1e-10)
        single = action(g.float(), Field(block.values.float(), Grid(*(leaf.float() for leaf in block.grid)))).values
        assert single.dtype == torch.float32
        both = torch.isfinite(single) & torch.isfinite(together)
        assert float((single - together)[both].abs().max()) < 1e-3
        assert float(both.double().mean()) > (0.5 if regrid else 0.999)


class TestAugment:
    def test_moves_every_solution_by_an_element_of_its_own(self) -> None:
        group, block = KdVSymmetry(), random_block()
        action, drawn = FieldAction(group), random_elements(KdVSymmetry(), 2, std=0.3)
        assert_same(augment(block, action, lambda count, generator: drawn), action(drawn, block), 0.0)
        one = Field(block.values[0], Grid(block.grid.origin[0], block.grid.steps[0]))
        alone = augment(one, action, lambda count, generator: drawn[:count])
        assert_relative(alone.values, action(drawn[0], one).values, 1e-12)

    def test_draws_again_until_the_grid_is_covered(self) -> None:
        group, block = KdVSymmetry(scale=[1e-9, 1.0, 0.5, 2.0]), random_block(batch=6)
        action = FieldAction(group)
        transformations = lambda count, generator: group.random(count, generator=generator, dtype=F64)  # noqa: E731
        inner = Grid(block.grid.origin[0, 1:4], block.grid.steps[0, 1:4])
        moved = augment(block, action, transformations, grid=inner, generator=seeded(1))
        assert bool(torch.isfinite(moved.values).all())
        assert_relative(moved.grid.origin, inner.origin.expand(6, -1, -1), 0.0)
        with pytest.raises(DomainError, match="grid covered, got none for 6 of 6"):
            augment(block, action, transformations, grid=inner.at([100.0]))


class TestBadInput:
    def test_groups_that_do_not_fit(self) -> None:
        with pytest.raises(ConfigurationError, match="F does not keep fields periodic along axis 0"):
            FieldAction(BurgersSymmetry())
        with pytest.raises(ConfigurationError, match=r"B does not carry one time to one time.*regrid=True"):
            FieldAction(LORENTZ, (False,))
        with pytest.raises(ConfigurationError, match=r"moves \(x, t\) by u"):
            FieldAction(WAVES)
        with pytest.raises(ConfigurationError, match="action on jets of 1 x"):
            FieldAction(SO(2))
        with pytest.raises(ConfigurationError, match="LieGroup"):
            FieldAction("kdv")  # type: ignore[arg-type]

    @pytest.mark.parametrize("names", ["BST", "SBT", "TSB"])
    def test_every_generator_keeps_the_period(self, names: str) -> None:
        """S adds x to u, wherever it stands beside B, which carries no grids to grids."""
        fields = {"B": ["t", "x", "0"], "S": ["0", "0", "x"], "T": ["0", "0", "t"]}
        group = from_generators({name: fields[name] for name in names}, variables=["x", "t", "u"])
        with pytest.raises(ConfigurationError, match="S does not keep fields periodic along axis 0"):
            FieldAction(group, (True,), regrid=True)
        FieldAction(group, (False,), regrid=True)

    def test_turns_of_x_and_u_keep_no_period(self) -> None:
        fields = {"X": ["1", "0", "0"], "U": ["0", "0", "1"], "R": ["-u", "0", "x"]}
        group = from_generators(fields, variables=["x", "t", "u"])
        with pytest.raises(ConfigurationError, match="R does not keep fields periodic along axis 0"):
            FieldAction(group, (True,), regrid=True)
        FieldAction(group, (False,), regrid=True)

    def test_fields_that_do_not_fit(self) -> None:
        action, block = FieldAction(KdVSymmetry()), random_block()
        g = KdVSymmetry().identity(2, dtype=F64)
        with pytest.raises(ConfigurationError, match="expected a Field, got Tensor"):
            action(g, block.values)
        with pytest.raises(ShapeError, match="expected values"):
            action(g, block._replace(values=block.values.repeat(1, 2, 1, 1)))
        with pytest.raises(ShapeError, match="expected a grid"):
            action(g, block._replace(values=block.values[:, :, 1:]))
        with pytest.raises(ShapeError, match="expected \\[\\*batch, c, 2, \\*n\\]"):
            Field.on_box(rand(2, 1, 3, 8), [(0.0, 1.0)], [0.0, 1.0])
        with pytest.raises(DomainError, match="low < high"):
            Field.on_box(rand(2, 1, 8), [(1.0, 0.0)])
        with pytest.raises(DomainError, match="increasing"):
            Field.on_box(rand(2, 1, 2, 8), [(0.0, 1.0)], [1.0, 0.0])
        with pytest.raises(ShapeError, match="periodic"):
            resample(block, block.grid, (True, True))
        with pytest.raises(DomainError, match="low < high"):
            Field.on_box(rand(2, 1, 8), [(0.0, math.inf)])
        with pytest.raises(DomainError, match="increasing"):
            Field.on_box(rand(2, 1, 8), [(0.0, 1.0)], math.nan)
        for box, periodic in (([], True), ([(0.0, 1.0)], (True, False))):
            with pytest.raises(ShapeError, match="a range for each axis"):
                Field.on_box(rand(2, 1, 8), box, periodic=periodic)
        with pytest.raises(DomainError, match="one of 5 times, got 5"):
            block.slice(5)
        with pytest.raises(ShapeError, match="one of 1 axes of space, got 2"):
            resample(block, TestPlane.field(4)[0].grid)
        with pytest.raises(ShapeError, match=r"broadcasts with \[2\], got \[3\]"):
            resample(block, random_block(batch=3).grid)

    def test_transformations_that_are_something_else(self) -> None:
        action, block = FieldAction(KdVSymmetry()), random_block()
        with pytest.raises(ShapeError, match="transformations: expected elements"):
            augment(block, action, lambda count, generator: torch.ones(count, 3))
        with pytest.raises(ShapeError, match=r"transformations: expected 2 elements, got \[5\]"):
            augment(block, action, lambda count, generator: torch.zeros(5, 4))
