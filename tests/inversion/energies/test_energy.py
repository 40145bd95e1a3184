"""Energies of data and on the group, each against a brute-force evaluation."""

import math

import pytest
import torch
from scipy.spatial import ConvexHull
from torch import Tensor

from tests.helpers import assert_relative, randn, random_elements, seeded
from tests.inversion.problems import DOMAIN, GROUPS, brute_force_distance, clean_problems, operator_action
from trivgeo.actions import OperatorAction, OperatorInput
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import SL, HeatSymmetry, Translation
from trivgeo.inversion import InverseProblem
from trivgeo.inversion.energies import DataEnergy, DomainDistance, FunctionEnergy
from trivgeo.inversion.energies.domain_distance import hull_points
from trivgeo.sde.scores import trivialized_grad_and_value


def scattered_problems(batch: int) -> OperatorInput:
    """Query points that are no box, at an initial time other than zero."""
    clean = clean_problems(batch)
    initial = clean.initial + torch.tensor([0.2, 0.15, 0.0]).double()
    query = torch.cat([randn(batch, 40, 1, seed=1), torch.rand(batch, 40, 1, generator=seeded(2)).double()], -1)
    return OperatorInput(initial, query)


class TestDomainDistance:
    def test_value(self) -> None:
        clean = clean_problems(3)
        assert_relative(DOMAIN(clean), torch.zeros(3).double(), 1e-12)
        wide = OperatorInput(clean.initial * torch.tensor([1.0, 1.0, 3.0]), clean.query)
        assert_relative(DOMAIN(wide), torch.full((3,), 8.0).double(), 1e-12)
        scattered = scattered_problems(3)
        assert_relative(DOMAIN(scattered), brute_force_distance(scattered), 1e-12)

    @pytest.mark.parametrize("name", list(GROUPS))
    @pytest.mark.parametrize("problems", [clean_problems, scattered_problems], ids=["box", "cloud"])
    def test_reduction_keeps_energy_and_gradient(self, name: str, problems: object) -> None:
        """Hull of the query points, extreme points of the initial line: energy and gradient of all points."""
        action = operator_action(GROUPS[name])
        x = problems(4)
        reduced = InverseProblem(action, DOMAIN).given(x)
        full = InverseProblem(action, FunctionEnergy(brute_force_distance)).given(x)
        g = random_elements(action.group, 4, 60, std=0.35)
        gradient, energy = trivialized_grad_and_value(action.group, reduced.energies, g)
        expected_gradient, expected_energy = trivialized_grad_and_value(action.group, full.energies, g)
        assert torch.equal(torch.isfinite(energy), torch.isfinite(expected_energy))
        finite = torch.isfinite(expected_energy)
        assert float(finite.double().mean()) > 0.7
        assert_relative(energy[finite], expected_energy[finite], 1e-10)
        assert_relative(gradient[finite], expected_gradient[finite], 1e-9, event=1)

    def test_reduction_is_small(self) -> None:
        x = clean_problems(2)
        action = operator_action()
        prepared = DOMAIN.prepare(action, x)
        assert prepared.query.shape == (2, 4, 2)
        selected = DOMAIN.select(action, action.group.identity(2, dtype=torch.float64), prepared)
        assert selected.initial.shape == (2, 4, 3)

    def test_degenerate_query_sets(self) -> None:
        """Points on a line, and one point, have no hull."""
        x = clean_problems(2)
        action = operator_action()
        g = random_elements(action.group, 2, 5, std=0.2)
        for query in (x.query[:, :7], x.query[:, :1], x.query[:, [0, 0, 0, 0]]):
            problem = OperatorInput(x.initial, query)
            full = InverseProblem(action, FunctionEnergy(brute_force_distance)).given(problem)
            assert_relative(InverseProblem(action, DOMAIN).given(problem).energies(g), full.energies(g), 1e-10)

    def test_hulls_are_those_of_all_points(self) -> None:
        """Of grids moved by maps, of clouds, and of a quarter of a grid whose extreme points coincide."""
        grid = torch.cartesian_prod(torch.linspace(0, 1, 21), torch.linspace(0, 3, 21)).double()
        turned = grid @ torch.linalg.qr(randn(6, 2, 2)).Q * torch.tensor([1.0, 40.0])
        corner = torch.where(grid.sum(-1, keepdim=True) < 1, grid, 0.0)
        clouds = torch.cat([grid[None], turned, randn(5, 441, 2), 1e-7 * randn(1, 441, 2), corner[None]])
        found = hull_points(clouds)
        for cloud, hull in zip(clouds, found, strict=True):
            expected = cloud[torch.as_tensor(ConvexHull(cloud.numpy()).vertices).long()]
            assert torch.equal(hull.unique(dim=0), expected.unique(dim=0))

    def test_unequal_hulls_in_a_batch(self) -> None:
        x = clean_problems(2)
        circle = torch.linspace(0.0, 6.0, 49).double()
        query = torch.stack([x.query[0], torch.stack([circle.cos(), 0.3 + 0.2 * circle.sin()], -1)])
        problem, action = OperatorInput(x.initial, query), operator_action()
        g = random_elements(action.group, 2, 5, std=0.2)
        full = InverseProblem(action, FunctionEnergy(brute_force_distance)).given(problem)
        assert_relative(InverseProblem(action, DOMAIN).given(problem).energies(g), full.energies(g), 1e-10)

    @pytest.mark.parametrize("u", [(1.0, 1.0), (2.0, 1.0), (-math.inf, 1.0), (math.nan, 1.0)])
    def test_bad_ranges(self, u: tuple[float, float]) -> None:
        for name in ("x", "t", "u"):
            with pytest.raises(DomainError, match=name):
                DomainDistance(**({"x": (0.0, 1.0), "t": (0.0, 1.0), "u": (0.0, 1.0)} | {name: u}))

    def test_wrong_inputs_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="OperatorAction"):
            InverseProblem(Translation(2).action(), DOMAIN).given(torch.zeros(1, 3, 2))


class TestEnergies:
    def test_translation(self) -> None:
        """E(g) = E_x(x~ - g) on points, over any number of chain dimensions."""
        action, x = Translation(2).action(), randn(3, 5, 2)
        given = InverseProblem(action, lambda p: (p**2).sum((-1, -2))).given(x)
        for chains in ((), (4,), (4, 2)):
            g = randn(3, *chains, 2, seed=1)
            lifted = x.reshape(3, *(1,) * len(chains), 5, 2)
            expected = ((lifted - g.unsqueeze(-2)) ** 2).sum((-1, -2))
            assert_relative(given.energies(g), expected, 1e-12)

    @pytest.mark.parametrize("name", list(GROUPS))
    def test_log_determinant(self, name: str) -> None:
        """Against the determinant of the whole map of all coordinates, by autograd."""
        action = operator_action(GROUPS[name])
        x = OperatorInput(clean_problems(2).initial[:, :4] + 0.0, clean_problems(2).query[:, :3])
        zero_energy = FunctionEnergy(lambda y: 0.0 * y.initial.sum((-1, -2)))
        g = random_elements(action.group, 2, 3, std=0.2)
        with_det = InverseProblem(action, zero_energy, log_det=True).given(x).energies(g)
        assert_relative(InverseProblem(action, zero_energy).given(x).energies(g), torch.zeros(2, 3).double(), 0.0)
        for i in range(2):
            for k in range(3):
                inverse = action.group.inverse(g[i, k])
                total = torch.zeros((), dtype=torch.float64)
                for part in (x.initial[i], x.query[i]):
                    whole = torch.autograd.functional.jacobian(lambda p, a=inverse: action.point_action(a, p), part)
                    total = total - torch.linalg.slogdet(whole.reshape(part.numel(), part.numel()))[1]
                assert_relative(with_det[i, k], total, 1e-9)

    def test_log_determinant_of_points(self) -> None:
        action = HeatSymmetry(0.1).action()
        x = randn(2, 3, 3).abs()
        g = random_elements(action.group, 2, std=0.2)
        given = InverseProblem(action, lambda p: p.sum((-1, -2)), log_det=True).given(x)
        inverse = action.group.inverse(g)
        for i in range(2):
            whole = torch.autograd.functional.jacobian(lambda p, i=i: action(inverse[i], p), x[i]).reshape(9, 9)
            expected = action(inverse[i], x[i]).sum() - torch.linalg.slogdet(whole)[1]
            assert_relative(given.energies(g)[i], expected, 1e-10)

    def test_infinite_where_undefined(self) -> None:
        action = operator_action()
        x = clean_problems(1)
        # the inverse has D = t - 0.25: it tears the domain apart
        torn = action.group.inverse(torch.tensor([0.0, -1.0, 1.0, -0.25, 0.0, 0.0, 0.0], dtype=torch.float64))
        g = torch.stack([torn, action.group.identity(dtype=torch.float64)])[None]
        for energy in (DOMAIN, FunctionEnergy(brute_force_distance)):
            values = InverseProblem(action, energy).given(x).energies(g)
            assert torch.isinf(values[0, 0])
            assert torch.isfinite(values[0, 1])
            gradient, _ = trivialized_grad_and_value(action.group, InverseProblem(action, energy).given(x).energies, g)
            assert torch.isfinite(gradient[0, 1]).all()


class TestOperatorAction:
    def test_masks_torn_domains(self) -> None:
        """One sign of the denominator on all points, or NaN everywhere; other problems of the batch are kept."""
        action, x = operator_action(), clean_problems(3)
        e = action.group.identity(dtype=torch.float64)
        torn = torch.tensor([0.0, -1.0, 1.0, -0.25, 0.0, 0.0, 0.0], dtype=torch.float64)
        behind = torch.tensor([0.0, -1.0, 1.0, -0.75, 0.0, 0.0, 0.0], dtype=torch.float64)  # D < 0 on all points
        g = torch.stack([e, torn, behind])
        y = action(g, x)
        assert torch.equal(action.is_valid(g, x), torch.tensor([True, False, True]))
        assert torch.isnan(y.initial[1]).all()
        assert torch.isnan(y.query[1]).all()
        for part, original in zip(y, x, strict=True):
            assert_relative(part[[0, 2]], action.point_action(g, original)[[0, 2]], 1e-13)

    def test_is_the_point_action_on_both_parts(self) -> None:
        action, x = operator_action(), clean_problems(2)
        g = random_elements(action.group, 4, 1, std=0.1)
        lifted = OperatorInput(x.initial[None], x.query[None])
        y = action(g, lifted)
        assert y.initial.shape == (4, 2, *x.initial.shape[1:])
        assert torch.equal(y.initial, action.point_action(g, lifted.initial))
        assert torch.equal(y.query, action.point_action(g, lifted.query))
        determinants = [action.point_action.log_abs_det_jacobian(g, part.expand(4, -1, -1, -1)) for part in lifted]
        assert_relative(action.log_abs_det_jacobian(g, lifted), sum(determinants), 1e-12)

    def test_bad_input(self) -> None:
        for bad in (Translation(2).action(), SL(2), None):
            with pytest.raises(ConfigurationError, match="point_action"):
                OperatorAction(bad)
        action, x = operator_action(), clean_problems(2)
        slanted = x.initial.clone()
        slanted[0, 3, 1] = 0.1
        cases = [
            (x.initial, ConfigurationError),
            ((x.initial, x.query), ConfigurationError),
            (OperatorInput(x.initial[..., :2], x.query), ShapeError),
            (OperatorInput(x.initial, x.initial), ShapeError),
            (OperatorInput(x.initial[:, :0], x.query), ShapeError),
            (OperatorInput(x.initial, x.query[:, :0]), ShapeError),
            (OperatorInput(x.initial, x.query[:1]), ShapeError),
            (OperatorInput(x.initial, None), ShapeError),
            (OperatorInput(slanted, x.query), DomainError),
        ]
        for bad_data, error in cases:
            with pytest.raises(error, match="x_tilde"):
                InverseProblem(action, DOMAIN).given(bad_data)


class TestBadInput:
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_non_finite_data(self, value: float) -> None:
        x = clean_problems(2)
        for part in range(2):
            leaves = [leaf.clone() for leaf in x]
            leaves[part][1, 2, 0] = value
            with pytest.raises(NonFiniteError, match="1 NaN or infinite"):
                InverseProblem(operator_action(), DOMAIN).given(OperatorInput(*leaves))

    def test_no_batch_dimension(self) -> None:
        x = clean_problems(1)
        with pytest.raises(ShapeError, match="batch dimension"):
            InverseProblem(operator_action(), DOMAIN).given(OperatorInput(x.initial[0], x.query[0]))
        with pytest.raises(ShapeError, match="batch dimension"):
            InverseProblem(Translation(2).action(), lambda p: p.sum((-1, -2))).given(torch.zeros(5, 2))

    def test_two_batch_dimensions(self) -> None:
        """Exactly one, says the contract. The domain distance comes last: qhull once ended the process there."""
        clean = clean_problems(2)
        x = OperatorInput(clean.initial[None], clean.query[None])
        with pytest.raises(ShapeError, match="batch dimension"):
            InverseProblem(Translation(2).action(), lambda p: p.sum((-1, -2))).given(torch.zeros(3, 4, 5, 2))
        for energy in (FunctionEnergy(brute_force_distance), DOMAIN):
            with pytest.raises(ShapeError, match="batch dimension"):
                InverseProblem(operator_action(), energy).given(x)

    def test_types(self) -> None:
        action, energy = Translation(2).action(), lambda p: p.sum((-1, -2))
        with pytest.raises(ConfigurationError, match="floating"):
            InverseProblem(action, energy).given(torch.zeros(1, 5, 2, dtype=torch.long))
        with pytest.raises(ConfigurationError, match="action"):
            InverseProblem(Translation(2), energy).given(torch.zeros(1, 5, 2))  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="energy"):
            InverseProblem(action, 3.0).given(torch.zeros(1, 5, 2))  # type: ignore[arg-type]

    def test_shapes_of_elements_and_energies(self) -> None:
        action = Translation(2).action()
        good = InverseProblem(action, lambda p: p.sum((-1, -2))).given(torch.zeros(3, 5, 2))
        for g in (torch.zeros(2, 2), torch.zeros(2), torch.zeros(3, 3)):
            with pytest.raises(ShapeError):
                good.energies(g)

        def wrong(p: Tensor) -> Tensor:
            return p.sum(-1)

        with pytest.raises(ShapeError, match="one number per datum"):
            InverseProblem(action, wrong).given(torch.zeros(3, 5, 2)).energies(torch.zeros(3, 2))

    def test_data_energy_is_a_function_by_default(self) -> None:
        class Square(DataEnergy):
            def __call__(self, x: Tensor) -> Tensor:
                return (x**2).sum((-1, -2))

        x, g = randn(2, 3, 2), randn(2, 4, 2, seed=1)
        action = Translation(2).action()
        by_class, by_function = (
            InverseProblem(action, e).given(x).energies(g) for e in (Square(), lambda p: (p**2).sum((-1, -2)))
        )
        assert torch.equal(by_class, by_function)


def test_energies_come_in_the_dtype_of_the_elements() -> None:
    """One that computes in double precision, and one that counts."""
    x = torch.zeros(2, 3, 2)
    g = Translation(2).identity(2, 4)
    for energy in (lambda y: y.double().square().sum((-2, -1)), lambda y: (y > 0).sum((-2, -1))):
        assert InverseProblem(Translation(2).action(), energy).given(x).energies(g).dtype == torch.float32
    with pytest.raises(ConfigurationError, match="energy: expected a function to a tensor of real numbers"):
        InverseProblem(Translation(2).action(), lambda y: y.sum((-2, -1)) * 1j).given(x).energies(g)
