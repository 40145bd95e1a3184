"""The forward noise: its law on vector groups, modular function, paths, reproducibility."""

import math

import pytest
import scipy.stats
import torch

from tests.helpers import affine_line, assert_relative, seeded
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import SL, HeatSymmetry, LieGroup, Translation
from trivgeo.sde import GeometricSchedule, NoiseKernel, forward_noising

SCHEDULE = GeometricSchedule(0.1, 1.0)
SIGNIFICANCE = 1e-3  # of tests with fixed seeds: they pass or fail for good


class TestTranslation:
    """w_t is exactly normal with the integrated variance, whatever the number of steps."""

    @pytest.mark.parametrize("steps", [1, 7, 50])
    @pytest.mark.parametrize("t", [0.13, 0.5, 1.0])
    def test_law(self, steps: int, t: float) -> None:
        group = Translation(2, scale=[1.0, 3.0])
        kernel = NoiseKernel(group, SCHEDULE, steps)
        w, _ = kernel.sample(4000, t=t, generator=seeded(1), dtype=torch.float64)
        std = math.sqrt(SCHEDULE.variance(0.0, t))
        for column, scale in zip(w.T.numpy(), (1.0, 3.0), strict=True):
            standard = column / (std * scale)
            assert scipy.stats.kstest(standard, "norm").pvalue > SIGNIFICANCE
            # chi-square test of the variance, two sides
            tail = scipy.stats.chi2.cdf((standard**2).sum(), len(standard))
            assert SIGNIFICANCE < tail < 1 - SIGNIFICANCE
        assert abs(scipy.stats.pearsonr(*w.T.numpy()).statistic) < 4 / math.sqrt(4000)

    def test_increments_are_independent(self) -> None:
        kernel = NoiseKernel(Translation(1), SCHEDULE, 10)
        paths = kernel.sample_paths(4000, times=[0.3, 0.6, 1.0], generator=seeded(2), dtype=torch.float64)
        w = paths.elements[..., 0]
        increments = torch.diff(w, dim=0, prepend=torch.zeros_like(w[:1]))
        for increment, (start, end) in zip(increments, [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)], strict=True):
            standard = increment.numpy() / math.sqrt(SCHEDULE.variance(start, end))
            assert scipy.stats.kstest(standard, "norm").pvalue > SIGNIFICANCE
        assert float((torch.corrcoef(increments) - torch.eye(3)).abs().max()) < 4 / math.sqrt(4000)

    def test_forward_noising(self) -> None:
        group = Translation(1)
        start = torch.full((4000, 1), 2.0, dtype=torch.float64)
        g = forward_noising(group, SCHEDULE, start, t=0.6, steps=5, generator=seeded(3))
        standard = (g - 2.0).numpy().ravel() / math.sqrt(SCHEDULE.variance(0.0, 0.6))
        assert scipy.stats.kstest(standard, "norm").pvalue > SIGNIFICANCE
        assert torch.equal(forward_noising(group, SCHEDULE, start, t=0.0), start)

    def test_times_of_rows(self) -> None:
        """Each row has the variance of its own time; at zero nothing moves, outside of [0, 1] there is no noise."""
        group = Translation(1)
        t = torch.linspace(0.0, 1.0, 5, dtype=torch.float64).expand(2000, 5)
        g = forward_noising(
            group, SCHEDULE, group.identity(2000, 5, dtype=torch.float64), t=t, steps=3, generator=seeded(5)
        )
        assert not bool(g[:, 0].any())
        for k in range(1, 5):
            standard = g[:, k, 0].numpy() / math.sqrt(SCHEDULE.variance(0.0, float(t[0, k])))
            assert scipy.stats.kstest(standard, "norm").pvalue > SIGNIFICANCE
        kernel = NoiseKernel(affine_line(), SCHEDULE, 4)
        w, log_modular = kernel.sample(3, t=torch.tensor([0.5, 1.5, 1.0]), generator=seeded(0))
        assert w.isfinite().all(-1).tolist() == [True, False, True]
        assert torch.allclose(log_modular[::2], affine_line().log_modular(w[::2]), atol=1e-6)
        mirrored, _ = NoiseKernel(group, SCHEDULE, 4).sample(
            4, t=torch.full((4,), 0.5), antithetic=True, generator=seeded(0)
        )
        assert torch.equal(mirrored[:2], -mirrored[2:])
        one = torch.tensor(0.3)  # a tensor of one time is a number
        assert torch.equal(*(kernel.sample(3, t=t, generator=seeded(0))[0] for t in (one, float(one))))
        for wrong in (lambda: kernel.sample(3, t=t[0]), lambda: forward_noising(group, SCHEDULE, g[:, 0], t=t[0])):
            with pytest.raises(ShapeError, match="t: expected one time"):
                wrong()


class TestKernel:
    def test_contract(self) -> None:
        group = HeatSymmetry(0.1)
        kernel = NoiseKernel(group, SCHEDULE, steps=50)
        w, log_lambda = kernel.sample(1000, t=0.5, generator=seeded(0))
        assert w.shape == (1000, *group.element_shape)
        assert log_lambda.shape == (1000,)
        assert w.dtype == torch.float32
        w, log_lambda = kernel.sample(2, 3, t=1.0, generator=seeded(0), dtype=torch.float64)
        assert w.shape == (2, 3, *group.element_shape)
        assert log_lambda.dtype == torch.float64
        w, log_lambda = kernel.sample(t=1.0)
        assert w.shape == group.element_shape
        assert log_lambda.shape == ()

    def test_time_zero(self) -> None:
        w, log_lambda = NoiseKernel(affine_line(), SCHEDULE, 5).sample(3, t=0.0, dtype=torch.float64)
        assert torch.equal(w, affine_line().identity(3, dtype=torch.float64))
        assert torch.equal(log_lambda, torch.zeros(3, dtype=torch.float64))

    def test_weak_convergence_on_a_group(self) -> None:
        """On Aff(1) log-scale and shift have closed-form moments: E[b^2] = (e^(2 v) - 1) / 2, v the variance.

        db = e^a dw with dw independent of a, so E[b^2] is the integral of E[e^2a] = e^(2 s) over the variance s.
        """
        schedule = GeometricSchedule(0.5, 0.5)
        w, _ = NoiseKernel(affine_line(), schedule, 100).sample(40000, t=1.0, generator=seeded(5), dtype=torch.float64)
        variance = schedule.variance(0.0, 1.0)
        squares = w[:, 1] ** 2
        error = float(squares.std()) / math.sqrt(len(squares))
        assert abs(float(squares.mean()) - math.expm1(2 * variance) / 2) < 4 * error
        assert error < 0.01


class TestPaths:
    def test_paths_are_consistent_with_single_times(self) -> None:
        """The same seed gives the same element at the last time, kept alone or with others on the grid."""
        kernel = NoiseKernel(HeatSymmetry(0.1), SCHEDULE, steps=20)
        times = [0.25, 0.5, 1.0]
        paths = kernel.sample_paths(3, times=times, generator=seeded(1), dtype=torch.float64)
        assert paths.times == tuple(times)
        assert paths.elements.shape == (3, 3, 7)
        assert paths.log_modular.shape == (3, 3)
        for index, t in enumerate(times):
            alone, _ = kernel.sample(3, t=t, generator=seeded(1), dtype=torch.float64)
            assert_relative(paths.elements[index], alone, 1e-12)
        grid = kernel.sample_paths(3, generator=seeded(1), dtype=torch.float64)
        assert len(grid.times) == 20
        assert grid.times[0] == pytest.approx(0.05)
        assert_relative(grid.elements[[4, 9, 19]], paths.elements, 1e-12)

    @pytest.mark.parametrize("group", [HeatSymmetry(0.1), affine_line()], ids=repr)
    def test_exponentials_together_or_one_by_one(self, group: LieGroup, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same draws and products, however many steps of a path are exponentiated at once."""
        kernel = NoiseKernel(group, SCHEDULE, steps=20)
        together = kernel.sample_paths(5, 2, generator=seeded(1), dtype=torch.float64, antithetic=True)
        for rows in (1, 70):  # one step, seven steps
            monkeypatch.setattr("trivgeo.sde.noise.kernel._MAX_ROWS_PER_CALL", rows)
            paths = kernel.sample_paths(5, 2, generator=seeded(1), dtype=torch.float64, antithetic=True)
            assert_relative(paths.elements, together.elements, 1e-12)
            assert_relative(paths.log_modular, together.log_modular, 1e-12)

    def test_steps_of_a_path_are_small(self) -> None:
        """Neighbours in time differ by one step of noise: the samples belong to one path, not to independent ones."""
        group = SL(2)
        paths = NoiseKernel(group, GeometricSchedule(0.3, 0.3), 100).sample_paths(
            200, generator=seeded(2), dtype=torch.float64
        )
        steps = group.log(group.compose(group.inverse(paths.elements[:-1]), paths.elements[1:]))
        assert_relative(steps.std(), torch.tensor(0.03).double(), 0.05, floor=0.0)

    def test_reproducible(self) -> None:
        kernel = NoiseKernel(HeatSymmetry(0.1), SCHEDULE, 10)
        first, second, third = (kernel.sample(5, t=0.8, generator=seeded(s))[0] for s in (0, 0, 1))
        assert torch.equal(first, second)
        assert not torch.equal(first, third)
        state = torch.get_rng_state()
        kernel.sample(5, t=0.8, generator=seeded(0))
        assert torch.equal(torch.get_rng_state(), state), "the global generator was used"


class TestBadInput:
    @pytest.mark.parametrize("steps", [0, -1, True, 2.0, "3", None])
    def test_steps(self, steps: object) -> None:
        with pytest.raises(ConfigurationError, match="steps"):
            NoiseKernel(SL(2), SCHEDULE, steps)
        with pytest.raises(ConfigurationError, match="steps"):
            forward_noising(SL(2), SCHEDULE, SL(2).identity(1), steps=steps)

    @pytest.mark.parametrize("t", [-0.1, 1.1, math.nan])
    def test_times(self, t: float) -> None:
        kernel = NoiseKernel(SL(2), SCHEDULE, 3)
        for call in (
            lambda: kernel.sample(2, t=t),
            lambda: kernel.sample_paths(2, times=[0.5, t]),
            lambda: forward_noising(SL(2), SCHEDULE, SL(2).identity(2), t=t),
        ):
            with pytest.raises(DomainError, match=r"\[0, 1\]"):
                call()

    def test_no_times(self) -> None:
        with pytest.raises((ConfigurationError, DomainError)):
            NoiseKernel(SL(2), SCHEDULE, 3).sample_paths(2, times=[])

    def test_elements(self) -> None:
        with pytest.raises(ShapeError, match="initial"):
            forward_noising(SL(2), SCHEDULE, torch.zeros(3))
