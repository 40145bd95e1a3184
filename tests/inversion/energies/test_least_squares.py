"""Energies of squares and their stages, on point clouds: closed forms, brute force, dense curvatures, known weights."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation
from torch import Tensor
from torch.func import jacfwd, jacrev

from tests.helpers import assert_relative, randn, random_elements, seeded
from trivgeo.actions import ImageWarp, PointCloud, Referenced, WithReference
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import (
    SE,
    SO,
    Action,
    Affine,
    GLPlus,
    HeatSymmetry,
    Heisenberg,
    LieGroup,
    Projective,
    Similarity,
    Translation,
)
from trivgeo.inversion import InverseProblem, InversionResult, Inverter, ReverseDiffusionSearch, Stage
from trivgeo.inversion.energies import GemanMcClure, LeastSquares, NearestPoints, PairedPoints, Trimmed, with_normals
from trivgeo.inversion.stages import Laplace, LevenbergMarquardt, Replicate, Select, WithEnergy


class TestPointCloud:
    @pytest.mark.parametrize("group", [SE(3), SO(3), Similarity(3), Affine(3), GLPlus(3), Translation(3)], ids=str)
    def test_acts_on_points(self, group: LieGroup) -> None:
        action = PointCloud(group)
        g, h = (random_elements(group, 4, std=0.4, seed=s) for s in range(2))
        x = randn(4, 6, 3)
        moved = action(g, x)
        assert_relative(moved, group.action()(g, x), 0.0)
        assert_relative(action(group.compose(g, h), x), action(g, action(h, x)), 1e-12)
        jacobian = jacfwd(lambda x: action(g[0], x))(x[0]).reshape(18, 18)
        assert_relative(action.log_abs_det_jacobian(g, x)[0], torch.linalg.slogdet(jacobian)[1], 1e-12)
        assert action.is_valid(g, x).tolist() == [True] * 4
        assert action.batch_shape(x) == (4,)

    def test_one_bad_point_makes_a_bad_cloud(self) -> None:
        group = Projective(2)
        g = torch.eye(3, dtype=torch.float64)
        g[2] = torch.tensor([1.0, 0.0, 1.0])
        x = torch.tensor([[[0.0, 0.0], [-1.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
        assert PointCloud(group).is_valid(g, x).tolist() == [False, True]

    def test_bad_input(self) -> None:
        for group in (3, Heisenberg(1), HeatSymmetry(0.1)):
            with pytest.raises(ConfigurationError):
                PointCloud(group)
        action = PointCloud(SE(3))
        for x in (torch.zeros(3), torch.zeros(4, 2), torch.zeros(0, 3)):
            with pytest.raises(ShapeError):
                action.check_data(x)
        with pytest.raises(ConfigurationError, match="tensor"):
            action.check_data("cloud")
        assert repr(action) == "PointCloud(SE(3))"


class TestResiduals:
    def test_paired(self) -> None:
        x, y = randn(4, 5, 3), randn(5, 3, seed=1)
        energy = LeastSquares(PairedPoints(y), std=0.5)
        assert_relative(energy(x), 2.0 * (x - y).square().sum((-2, -1)), 1e-14)
        with pytest.raises(ShapeError, match="x: expected"):
            energy(randn(4, 6, 3))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_nearest_against_all_distances(self, dtype: torch.dtype) -> None:
        x, y = randn(4, 50, 3, dtype=dtype), randn(70, 3, seed=1, dtype=dtype)
        function = NearestPoints(y)
        index = torch.cdist(x, y).argmin(-1)
        assert torch.equal(function.nearest(x), index)
        assert torch.equal(function(x), x - y[index])
        squares = (x - y[index]).square().sum((-2, -1))
        assert_relative(LeastSquares(function)(x), 0.5 * squares, 1e-6)
        for copied in (pickle.loads(pickle.dumps(function)), copy.deepcopy(function)):
            assert torch.equal(copied(x), function(x))

    def test_a_reference_that_is_loaded(self) -> None:
        x, first, second = randn(4, 50, 3), randn(70, 3, seed=1), randn(70, 3, seed=2)
        function = NearestPoints(first)
        function.load_state_dict(NearestPoints(second).state_dict())
        assert torch.equal(function.nearest(x), torch.cdist(x, second).argmin(-1))

    def test_tangents(self) -> None:
        """On a plane: what is along it counts less."""
        lattice = torch.cartesian_prod(*[torch.linspace(-1, 1, 21, dtype=torch.float64)] * 2)
        plane = torch.cat([lattice, torch.zeros(len(lattice), 1).double()], -1)
        x = torch.tensor([[[0.03, 0.04, 0.5]]], dtype=torch.float64)
        for tangent in (0.0, 0.3, 1.0):
            expected = torch.tensor([tangent * 0.03, tangent * 0.04, 0.5], dtype=torch.float64)
            assert_relative(NearestPoints(plane, tangent)(x)[0, 0], expected, 1e-12)

    def test_derivatives(self) -> None:
        """Neighbours held fixed: in every mode the same, and those of the nearest point at hand."""
        function = NearestPoints(randn(30, 3), tangent=0.4)
        x = randn(2, 4, 3, seed=1)
        energy = LeastSquares(function, GemanMcClure(0.7))
        forward, reverse = jacfwd(energy)(x), jacrev(energy)(x)
        assert_relative(forward, reverse, 1e-12)
        step = 1e-6 * randn(2, 4, 3, seed=2)
        change = energy(x + step) - energy(x - step)
        assert_relative(change, 2.0 * torch.einsum("bcmn,cmn->b", forward, step), 1e-10)
        mapped = torch.func.vmap(lambda x: energy(x[None])[0])(x)
        assert_relative(mapped, energy(x), 1e-12)

    def test_losses(self) -> None:
        squares = torch.tensor([[0.0, 1.0, 4.0, 1e12]], dtype=torch.float64)
        expected = torch.tensor([[0.0, 0.8, 2.0, 4.0]], dtype=torch.float64)
        assert_relative(GemanMcClure(2.0)(squares), expected, 1e-10)
        assert Trimmed(0.5)(squares).tolist() == [[0.0, 1.0, 0.0, 0.0]]
        assert Trimmed(1.0)(squares).tolist() == squares.tolist()

    def test_trimmed_keeps_its_share_of_equal_squares(self) -> None:
        squares = torch.tensor([[0.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0], [3.0, 0.0, 1.0, 2.0]], dtype=torch.float64)
        for losses in (Trimmed(0.5)(squares), torch.func.vmap(Trimmed(0.5))(squares)):
            assert losses.sum(-1).tolist() == [1.0, 4.0, 1.0]
        slopes = torch.func.grad(lambda squares: Trimmed(0.5)(squares).sum())(squares)
        assert slopes.sum(-1).tolist() == [2.0, 2.0, 2.0]
        assert slopes.unique().tolist() == [0.0, 1.0]
        assert Trimmed(0.5)(squares.reshape(3, 1, 4)).shape == (3, 1, 4)

    def test_trimmed_squares_that_are_no_numbers(self) -> None:
        """They are the largest: left out if there is room, and no minimum if there is none."""
        squares = torch.tensor([[1.0, math.nan, 2.0, math.nan], [math.nan, 1.0, math.nan, math.nan]])
        losses = Trimmed(0.5)(squares).sum(-1)
        assert losses[0] == 3.0
        assert losses[1].isnan()

    @pytest.mark.parametrize("far", [1e200, 1e308, math.inf, math.nan])
    def test_nearest_to_points_too_far_for_squares(self, far: float) -> None:
        """A chain that has left is masked, and ends no batch."""
        reference = randn(5, 3)
        x = torch.stack([randn(4, 3, seed=1), torch.full((4, 3), far, dtype=torch.float64)])
        for function, data in (
            (NearestPoints(reference), x),
            (NearestPoints(), Referenced(x, reference.expand(2, 5, 3))),
        ):
            energy = LeastSquares(function)(data)
            assert torch.isfinite(energy).tolist() == [True, False]
            assert_relative(energy[:1], LeastSquares(NearestPoints(reference))(x[:1]), 1e-12)

    def test_losses_are_in_units_of_the_residuals(self) -> None:
        x = randn(2, 5)
        energies = [LeastSquares(lambda x: x, GemanMcClure(0.5), std)(x) for std in (1.0, 0.1)]
        assert_relative(energies[1], 100.0 * energies[0], 1e-12)

    def test_bad_input(self) -> None:
        for build in (
            lambda: LeastSquares(3),
            lambda: LeastSquares(lambda x: x, 3),
            lambda: LeastSquares(lambda x: x, std=0.0),
            lambda: GemanMcClure(0.0),
            lambda: Trimmed(0.0),
            lambda: Trimmed(1.1),
            lambda: NearestPoints(randn(4, 3), tangent=1.5),
            lambda: NearestPoints([["a"]]),  # lists of numbers are tensors
            lambda: LevenbergMarquardt(0),
            lambda: LevenbergMarquardt(3, damping=0.0),
            lambda: Laplace(0),
            lambda: Laplace(3, temperature=0.0),
            lambda: WithEnergy(3),
        ):
            with pytest.raises(ConfigurationError):
                build()
        for build in (lambda: NearestPoints(randn(3)), lambda: PairedPoints(randn(0, 3))):
            with pytest.raises(ShapeError):
                build()
        with pytest.raises(ShapeError, match="residuals"):
            LeastSquares(lambda x: x.sum())(randn(3))
        with pytest.raises(ShapeError, match="x: expected"):
            NearestPoints(randn(4, 3))(randn(2, 5, 2))


def clouds(group: LieGroup, count: int, noise: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """A reference ``[12, 3]``, elements, and the moved clouds ``[count, 12, 3]``."""
    reference = randn(12, 3, seed=5)
    g = random_elements(group, count, std=0.5, seed=6)
    return reference, g, group.action()(g, reference) + noise * randn(count, 12, 3, seed=7)


class TestReferences:
    """A batch of registrations, each with its own target, is what it is one by one."""

    def test_residuals(self) -> None:
        x, y = randn(4, 20, 3), randn(4, 30, 3, seed=1)
        assert_relative(PairedPoints()(Referenced(x, y[:, :20])), x - y[:, :20], 0.0)
        for tangent in (0.0, 0.3, 1.0):
            alone = torch.cat([NearestPoints(y[i], tangent)(x[i : i + 1]) for i in range(4)])
            function = NearestPoints(tangent=tangent)
            given = Referenced(x, y if tangent == 1.0 else with_normals(y))
            assert_relative(function(given), alone, 1e-12)
            mapped = torch.func.vmap(lambda *pair, f=function: f(Referenced(*(part[None] for part in pair)))[0])
            assert_relative(mapped(*given), alone, 1e-12)
            to_each = torch.func.vmap(lambda x, y=given.reference[0], f=function: f(Referenced(x[None], y[None]))[0])
            assert_relative(to_each(x)[0], alone[0], 1e-12)

    def test_registrations(self) -> None:
        group = SE(3)
        targets, pose = randn(3, 40, 3), random_elements(group, 3, std=0.6, seed=1)
        scans = PointCloud(group)(pose, targets[:, :25]) + 0.01 * randn(3, 25, 3, seed=2)
        starts = group.compose(pose.unsqueeze(1), random_elements(group, 3, 4, std=0.3, seed=3))
        loss, descent = GemanMcClure(0.5), LevenbergMarquardt(5)
        energy = LeastSquares(NearestPoints(tangent=0.5), loss)
        several = Inverter(WithReference(PointCloud(group)), energy, [descent], max_evaluations=8)
        together = several(Referenced(scans, with_normals(targets)), initial=starts)
        for i in range(3):
            energy = LeastSquares(NearestPoints(targets[i], 0.5), loss)
            alone = Inverter(PointCloud(group), energy, [descent])(scans[i : i + 1], initial=starts[i : i + 1])
            assert_relative(together.elements[i], alone.elements[0], 1e-9)
            assert_relative(together.energies[i], alone.energies[0], 1e-9)
        assert float(group.distance(together.best(), pose).max()) < 0.05

    def test_action(self) -> None:
        group = Affine(2)
        action = WithReference(ImageWarp(group))
        g, h = (random_elements(group, 3, std=0.2, seed=s) for s in range(2))
        x = Referenced(randn(3, 1, 5, 4), randn(3, 7, seed=1))
        y = action(g, x)
        assert_relative(y.x, ImageWarp(group)(g, x.x), 0.0)
        assert torch.equal(y.reference, x.reference)
        each = action(torch.stack([g, h]), x)
        assert (each.x.shape, each.reference.shape) == ((2, 3, 1, 5, 4), (2, 3, 7))
        assert action.batch_shape(x) == (3,)
        assert bool(action.is_valid(g, x).all())
        assert_relative(action.log_abs_det_jacobian(g, x), ImageWarp(group).log_abs_det_jacobian(g, x.x), 0.0)
        assert repr(action) == f"WithReference(ImageWarp({group!r}, 'bilinear'))"

    def test_bad_input(self) -> None:
        action = WithReference(PointCloud(SE(3)))
        for wrong in (3, action):
            with pytest.raises(ConfigurationError):
                WithReference(wrong)  # type: ignore[arg-type]
        x, y = randn(2, 5, 3), randn(2, 7, 3)
        with pytest.raises(ConfigurationError, match="Referenced"):
            action.check_data(x)
        for pair in (Referenced(x, y[:1]), Referenced(x[..., :2], y), Referenced(x, y.new_zeros(()))):
            with pytest.raises(ShapeError):
                action.check_data(pair)
        with pytest.raises(ConfigurationError, match="Referenced"):
            NearestPoints()(x)
        with pytest.raises(ConfigurationError, match="reference"):
            NearestPoints(y[0])(Referenced(x, y))
        with pytest.raises(ConfigurationError, match="reference"):
            NearestPoints().nearest(x)
        with pytest.raises(ShapeError, match="with_normals"):
            NearestPoints(tangent=0.3)(Referenced(x, y))
        for function in (PairedPoints(), NearestPoints()):
            for pair in (Referenced(x, y[..., :2]), Referenced(x, y[:, 0])):
                with pytest.raises(ShapeError):
                    function(pair)
        for points in (y[0, 0], y[:, :0]):
            with pytest.raises(ShapeError):
                with_normals(points)


class TestCurvature:
    @pytest.mark.parametrize("bound", [None, 2])
    def test_is_that_of_gauss_and_newton(self, bound: int | None) -> None:
        group = SE(3)
        reference, g, x = clouds(group, 3, noise=0.1)
        energy = LeastSquares(PairedPoints(reference), GemanMcClure(0.3), std=0.2)
        given = InverseProblem(PointCloud(group), energy).given(x, max_evaluations=bound)
        at = group.retract(g.unsqueeze(1), 0.1 * randn(3, 2, 6))
        curvature = given.curvature(at)

        def residuals(v: Tensor, g: Tensor, x: Tensor) -> Tensor:
            return energy.residuals(group.action()(group.inverse(group.retract(g, v)), x)[None])[0]

        zero = torch.zeros(6, dtype=torch.float64)
        for i in range(3):
            for k in range(2):
                j = jacfwd(residuals)(zero, at[i, k], x[i])
                s = residuals(zero, at[i, k], x[i]).square().sum(-1)
                w = (0.09 / (0.09 + 0.04 * s)).square()
                assert_relative(curvature[i, k], torch.einsum("qni,q,qnj->ij", j, w, j), 1e-12, event=2)

    def test_is_that_of_the_energy_at_a_perfect_fit(self) -> None:
        group = Similarity(3)
        reference, g, x = clouds(group, 2)
        given = InverseProblem(PointCloud(group), LeastSquares(PairedPoints(reference))).given(x)

        def energy(v: Tensor) -> Tensor:
            return given.energies(group.retract(g, v)).sum()

        zero = torch.zeros(2, group.dim, dtype=torch.float64)
        dense = jacfwd(jacrev(energy))(zero)
        expected = torch.stack([dense[0, :, 0], dense[1, :, 1]])
        assert_relative(given.curvature(g.unsqueeze(1))[:, 0], expected, 1e-9, event=2)

    def test_needs_directions(self) -> None:
        with pytest.raises(ShapeError, match=r"at least one direction, got \[0\]"):
            LeastSquares(lambda x: x).curvature(lambda v: v, torch.zeros(0))

    def test_needs_squares(self) -> None:
        given = InverseProblem(PointCloud(SE(3)), lambda x: x.square().sum((-2, -1))).given(randn(1, 4, 3))
        with pytest.raises(ConfigurationError, match="LeastSquares"):
            given.curvature(SE(3).identity(1, 1, dtype=torch.float64))


class TestLevenbergMarquardt:
    @pytest.mark.parametrize("group", [SE(3), SO(3), Similarity(3), Affine(3)], ids=str)
    def test_recovers_the_transformation(self, group: LieGroup) -> None:
        reference, g, x = clouds(group, 4)
        inverter = Inverter(PointCloud(group), LeastSquares(PairedPoints(reference)), [LevenbergMarquardt(30)])
        result = inverter(x)
        assert_relative(result.best(), g, 1e-8)
        assert float(result.best_energy().max()) < 1e-15
        assert result.gradient_evaluations == 30
        assert result.energy_evaluations == 31

    def test_noisy_pose_is_that_of_kabsch(self) -> None:
        reference, _, x = clouds(SE(3), 3, noise=0.2)
        found = Inverter(PointCloud(SE(3)), LeastSquares(PairedPoints(reference)), [LevenbergMarquardt(30)])(x).best()
        centred = reference - reference.mean(0)
        for i in range(3):
            rotation, _ = Rotation.align_vectors((x[i] - x[i].mean(0)).numpy(), centred.numpy())
            assert_relative(found[i, :, :3], torch.as_tensor(rotation.as_matrix()), 1e-7)
            shift = x[i].mean(0) - found[i, :, :3] @ reference.mean(0)
            assert_relative(found[i, :, 3], shift, 1e-7)

    def test_robust_minimum_is_that_of_scipy(self) -> None:
        """A third of the pairs is wrong."""
        reference, g, x = clouds(SE(3), 1, noise=0.02)
        x[:, :4] += randn(1, 4, 3, seed=11)
        energy = LeastSquares(PairedPoints(reference), GemanMcClure(0.2))
        result = Inverter(PointCloud(SE(3)), energy, [LevenbergMarquardt(40)])(x, initial=g.unsqueeze(1))

        def residuals(v: np.ndarray) -> np.ndarray:
            moved = SE(3).action()(SE(3).inverse(SE(3).retract(g[0], torch.as_tensor(v))), x[0])
            s = (moved - reference).square().sum(-1)
            return (0.04 * s / (0.04 + s)).sqrt().numpy()

        expected = least_squares(residuals, np.zeros(6), xtol=1e-15, ftol=1e-15, gtol=1e-15)
        assert abs(float(result.best_energy()) - expected.cost) < 1e-9
        assert_relative(SE(3).log(SE(3).compose(SE(3).inverse(g), result.best()))[0], torch.as_tensor(expected.x), 1e-4)

    def test_never_ends_higher(self) -> None:
        reference, _, x = clouds(SE(3), 2, noise=0.3)
        energy = LeastSquares(NearestPoints(reference), Trimmed(0.7))
        start = random_elements(SE(3), 2, 20, std=1.5, seed=9)
        before = InverseProblem(PointCloud(SE(3)), energy).given(x).energies(start)
        result = Inverter(PointCloud(SE(3)), energy, [LevenbergMarquardt(5, damping=1e-8)])(x, initial=start)
        assert bool((result.energies <= before).all())
        assert_relative(
            result.energies, InverseProblem(PointCloud(SE(3)), energy).given(x).energies(result.elements), 1e-12
        )

    def test_chains_without_energy_stay(self) -> None:
        reference, g, x = clouds(SE(3), 1)
        start = g.unsqueeze(1).repeat(1, 2, 1, 1)
        start[0, 1] = math.nan
        inverter = Inverter(PointCloud(SE(3)), LeastSquares(NearestPoints(reference)), [LevenbergMarquardt(4)])
        result = inverter(x, initial=start)
        assert result.num_masked_steps.tolist() == [[0, 4]]
        assert torch.isfinite(result.energies).tolist() == [[True, False]]
        assert_relative(result.elements[0, 0], g[0], 1e-10)

    def test_directions_that_change_nothing(self) -> None:
        """A cloud on a line may turn about it: a curvature of rank five."""
        line = torch.linspace(-1, 1, 7).double().unsqueeze(-1) * torch.tensor([1.0, 0.0, 0.0]).double()
        x = SE(3).action()(random_elements(SE(3), 1, std=0.5), line)
        result = Inverter(PointCloud(SE(3)), LeastSquares(PairedPoints(line)), [LevenbergMarquardt(30)])(x)
        assert float(result.best_energy()) < 1e-12
        assert bool(torch.isfinite(result.elements).all())

    def test_with_the_determinant(self) -> None:
        """The gradient is that of the whole energy: the minimum with log-determinant is stationary for it."""
        reference, _, x = clouds(Similarity(3), 2, noise=0.1)
        action, energy = PointCloud(Similarity(3)), LeastSquares(PairedPoints(reference), std=0.1)
        inverter = Inverter(action, energy, [LevenbergMarquardt(60)], log_det=True)
        given = InverseProblem(action, energy, log_det=True).given(x)
        found = inverter(x).elements
        zero = torch.zeros(2, 1, 7, dtype=torch.float64)
        gradient, _ = given.gradient(lambda v: Similarity(3).perturb(found, v), zero)
        assert float(gradient.abs().max()) < 1e-4

    def test_float32(self) -> None:
        reference, g, x = clouds(SE(3), 2)
        inverter = Inverter(
            PointCloud(SE(3)), LeastSquares(NearestPoints(reference.float(), 0.3)), [LevenbergMarquardt(10)]
        )
        result = inverter(x.float(), initial=g.float().unsqueeze(1))
        assert result.elements.dtype == torch.float32
        assert_relative(result.best().double(), g, 1e-5)

    def test_other_energies_are_refused(self) -> None:
        for stage in (LevenbergMarquardt(2), Laplace(3)):
            inverter = Inverter(PointCloud(SE(3)), lambda x: x.square().sum((-2, -1)), [stage])
            with pytest.raises(ConfigurationError, match="LeastSquares"):
                inverter(randn(1, 4, 3))


class TestUnder:
    def test_sees_the_other_energy(self) -> None:
        reference, g, x = clouds(SE(3), 2)
        other = LeastSquares(PairedPoints(reference))
        calls: list[int] = []
        inverter = Inverter(
            PointCloud(SE(3)),
            LeastSquares(PairedPoints(reference + 1.0)),
            [Replicate(3), WithEnergy(other, LevenbergMarquardt(20), Select(1))],
            progress=lambda done, total: calls.append(total - done),
        )
        result = inverter(x)
        assert_relative(result.best(), g, 1e-8)
        assert_relative(result.energies, torch.full((2, 1), 18.0, dtype=torch.float64), 1e-6)  # of the inverter's own
        assert result.gradient_evaluations == 60
        assert calls[-1] == 0


class TestLaplace:
    def test_weights_of_two_wells(self) -> None:
        """In the plane, energies min(|p - a|^2 / s^2 / 2 + e, |p - b|^2 / t^2 / 2 + f): known shares and widths."""
        centres = torch.tensor([[0.0, 0.0], [10.0, 0.0]], dtype=torch.float64)
        widths, offsets = torch.tensor([0.3, 0.6]).double(), torch.tensor([0.2, 0.9]).double()

        def residuals(x: Tensor) -> Tensor:
            d = x[:, 0, None] - centres
            energies = (d.square().sum(-1) / widths.square() + 2.0 * offsets).detach()
            k = energies.argmin(-1)
            scaled = d[torch.arange(len(x)), k] / widths[k, None]
            return torch.cat([scaled, (2.0 * offsets[k, None]).sqrt()], -1)

        x = torch.zeros(1, 1, 2, dtype=torch.float64)
        # nine chains of ten end in the first well
        start = torch.cat([0.5 * randn(9, 2), -centres[1:] + 0.1])[None]
        inverter = Inverter(
            PointCloud(Translation(2)), LeastSquares(residuals), [LevenbergMarquardt(20), Laplace(4000)]
        )
        result = inverter(x, initial=start, generator=seeded(0))
        points = -result.elements[0]
        first = points[:, 0] < 5.0
        mass = widths.square() * (-offsets).exp()
        assert abs(float(first.double().mean()) - float(mass[0] / mass.sum())) < 1e-3
        for part, centre, width in zip((points[first], points[~first]), centres, widths, strict=True):
            assert float((part.mean(0) - centre).abs().max()) < 0.06
            assert_relative(part.std(0), width.expand(2), 0.06, floor=0.0)

    def test_agrees_with_tied(self) -> None:
        """One well: the spread of the posterior is that of a diffusion's sample, and of linear theory."""
        reference, g, x = clouds(SO(3), 1, noise=0.0)
        energy = LeastSquares(PairedPoints(reference), std=0.2)
        action = PointCloud(SO(3))
        sample = Inverter(action, energy, [LevenbergMarquardt(20), Laplace(2000)])(x, generator=seeded(0))
        curvature = InverseProblem(action, energy).given(x).curvature(g.unsqueeze(1))[0, 0]
        v = SO(3).log(SO(3).compose(SO(3).inverse(g), sample.elements[0]))
        assert_relative(
            torch.cov(v.T), torch.linalg.inv(curvature), 0.1 * float(torch.linalg.inv(curvature).max()), floor=1.0
        )
        diffused = ReverseDiffusionSearch(action, energy, steps=100, num_mc=16, num_hypotheses=400)(
            x, generator=seeded(1)
        )
        w = SO(3).log(SO(3).compose(SO(3).inverse(g), diffused.elements[0]))
        assert_relative(w.std(0), v.std(0), 0.25, floor=0.0)

    def test_nothing_found(self) -> None:
        x = randn(1, 4, 3)
        start = torch.full((1, 2, 3, 4), math.nan, dtype=torch.float64)
        inverter = Inverter(PointCloud(SE(3)), LeastSquares(NearestPoints(randn(5, 3))), [Laplace(3)])
        result = inverter(x, initial=start, generator=seeded(0))
        assert result.has_usable.tolist() == [False]


@pytest.mark.parametrize(
    "stages", [[LevenbergMarquardt(10)], [LevenbergMarquardt(10), Laplace(3)]], ids=["LM", "Laplace"]
)
@pytest.mark.parametrize(
    ("residuals", "own"),
    [(PairedPoints, True), (NearestPoints, False)],
    ids=["pairs, its own reference", "nearest, a reference for all"],
)
@pytest.mark.parametrize("wide", ["data", "reference"])
def test_data_and_reference_of_two_dtypes(
    stages: list[Stage], residuals: type[PairedPoints | NearestPoints], wide: str, own: bool
) -> None:
    """As with both in double precision, to single precision; elements are of the dtype of the data."""
    reference = randn(12, 3)
    x = PointCloud(SE(3))(random_elements(SE(3), 2, std=0.05), reference)
    first, second = (x, reference.float()) if wide == "data" else (x.float(), reference)

    def found(x: Tensor, reference: Tensor) -> InversionResult:
        action: Action = PointCloud(SE(3))
        energy = LeastSquares(residuals() if own else residuals(reference), std=0.01)
        inverter = Inverter(WithReference(action) if own else action, energy, stages)
        data = Referenced(x, reference.expand(2, -1, -1)) if own else x
        return inverter(data, generator=seeded(0))

    result = found(first, second)
    assert result.elements.dtype == first.dtype
    scatter = 1e-4 if len(stages) == 1 else 0.05  # a draw from wells that are 0.01 wide
    torch.testing.assert_close(result.best().double(), found(x, reference).best(), rtol=0.0, atol=scatter)
