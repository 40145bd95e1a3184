"""Monte Carlo scores against closed forms, and their behaviour at extreme energies."""

import math

import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, randn, seeded
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SL, Translation
from trivgeo.sde import EnergyScore, GeometricSchedule, NoiseKernel, trivialized_grad
from trivgeo.sde.scores import FunctionScore, SolveContext

SCHEDULE = GeometricSchedule(0.1, 1.0)
CENTRE = torch.tensor([0.4, -0.3], dtype=torch.float64)
STD = 0.6


def gaussian(g: Tensor) -> Tensor:
    return ((g - CENTRE.to(g.dtype)) ** 2).sum(-1) / (2 * STD**2)


def plane_kernel(steps: int = 10) -> NoiseKernel:
    return NoiseKernel(Translation(2), SCHEDULE, steps)


def exact_score(g: Tensor, t: float) -> Tensor:
    """p_t is normal with variance s^2 + int gamma^2."""
    return -(g - CENTRE) / (STD**2 + SCHEDULE.variance(0.0, t))


class TestConvergence:
    @pytest.mark.parametrize("t", [0.2, 1.0])
    def test_closed_form(self, t: float) -> None:
        g = randn(4, 2)
        estimate = EnergyScore(gaussian, plane_kernel(), 100_000, generator=seeded(0))(g, t)
        assert_relative(estimate, exact_score(g, t), 0.02, event=1)

    def test_rate(self) -> None:
        """The root mean square error falls as 1 / sqrt(N)."""
        g, exact = torch.zeros(400, 2, dtype=torch.float64), exact_score(torch.zeros(2, dtype=torch.float64), 0.7)
        errors = [
            float(
                (EnergyScore(gaussian, plane_kernel(), n, generator=seeded(n))(g, 0.7) - exact).square().mean().sqrt()
            )
            for n in (40, 640)
        ]
        assert 3.0 < errors[0] / errors[1] < 5.5

    def test_weights_carry_the_modular_function(self) -> None:
        """On Aff(1), against differences of log p_t for left Haar measure, p_t an explicit mixture over given noise.

        log p_t(g) = log sum_i exp(-E(g w_i^-1)) / lambda(w_i) + constant.
        """
        group = affine_line()
        kernel = NoiseKernel(group, SCHEDULE, 20)
        w, log_lambda = kernel.sample(1, 500, t=0.8, generator=seeded(0), dtype=torch.float64)
        inverse = group.inverse(w)
        energy = lambda g: g[..., 0] ** 2 + 2 * (g[..., 1] - 0.5) ** 2  # noqa: E731
        g = randn(1, 2)

        def log_density(x: Tensor) -> Tensor:
            return torch.logsumexp(-energy(group.compose(x.unsqueeze(1), inverse)) + w[..., 0], -1)  # log lambda = -a

        estimate = EnergyScore(energy, kernel, 500).from_noise(g, inverse, log_lambda).score
        assert_relative(estimate, trivialized_grad(group, log_density, g), 1e-10, event=1)


class TestStability:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
    def test_large_energies(self, dtype: torch.dtype) -> None:
        """Energies of 1e4 neither overflow nor vanish: a constant drops out."""
        g = randn(5, 2).to(dtype)
        for offset in (1e4, -1e4):
            shifted = EnergyScore(lambda x, c=offset: gaussian(x) + c, plane_kernel(), 64, generator=seeded(0))(g, 0.5)
            plain = EnergyScore(gaussian, plane_kernel(), 64, generator=seeded(0))(g, 0.5)
            assert_relative(shifted, plain, 1e-8 if dtype == torch.float64 else 1e-2, event=1)

    def test_steep_energies(self) -> None:
        """With E 1e4 times as steep the sample of lowest energy takes all the weight."""
        g = randn(5, 2)
        kernel = plane_kernel()
        w, log_lambda = kernel.sample(5, 8, t=0.5, generator=seeded(0), dtype=torch.float64)
        estimate = EnergyScore(lambda x: 1e4 * gaussian(x), kernel, 8).from_noise(g, -w, log_lambda).score
        assert torch.isfinite(estimate).all()
        arguments = g.unsqueeze(1) - w
        best = arguments[torch.arange(5), gaussian(arguments).argmin(1)]
        assert_relative(estimate, -1e4 * (best - CENTRE) / STD**2, 1e-6, event=1)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_bad_energies_are_masked(self, bad: float) -> None:
        """One chain's NaN does not reach the others; a bad sample has no weight; no good sample gives zero."""
        kernel = plane_kernel()
        g = torch.tensor([[0.0, 0.0], [50.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
        energy = lambda x: torch.where(x[..., 0] > 20.0, bad, gaussian(x))  # noqa: E731
        w, log_lambda = kernel.sample(3, 32, t=0.5, generator=seeded(0), dtype=torch.float64)
        masked = EnergyScore(energy, kernel, 32).from_noise(g, -w, log_lambda).score
        plain = EnergyScore(gaussian, kernel, 32).from_noise(g, -w, log_lambda).score
        assert torch.equal(masked[1], torch.zeros(2, dtype=torch.float64))
        assert_relative(masked[[0, 2]], plain[[0, 2]], 1e-13, event=1)
        w[0, 0, 0] = -100.0  # one sample of the first chain
        one_bad = EnergyScore(energy, kernel, 32).from_noise(g, -w, log_lambda).score
        without = EnergyScore(gaussian, kernel, 31).from_noise(g[:1], -w[:1, 1:], log_lambda[:1, 1:]).score
        assert_relative(one_bad[:1], without, 1e-12, event=1)

    def test_infinite_gradients_are_masked(self) -> None:
        energy = lambda x: x[..., 0].abs().sqrt()  # noqa: E731  # finite at zero, with an infinite slope
        kernel = plane_kernel()
        zero = torch.zeros(1, 2, 2, dtype=torch.float64)
        zero[0, 1] = 1.0
        none = torch.zeros(1, 2, dtype=torch.float64)
        estimate = EnergyScore(energy, kernel, 2).from_noise(none, zero, none).score
        assert_relative(estimate, torch.tensor([[-0.5, 0.0]], dtype=torch.float64), 1e-12)


class TestNoise:
    def test_reproducible(self) -> None:
        g = randn(3, 2)
        first, second, other = (
            EnergyScore(gaussian, plane_kernel(), 8, generator=seeded(s))(g, 0.5) for s in (0, 0, 1)
        )
        assert torch.equal(first, second)
        assert not torch.equal(first, other)

    def test_chains_have_their_own_noise_unless_shared(self) -> None:
        g = torch.zeros(2, 3, 2, dtype=torch.float64)
        own = EnergyScore(gaussian, plane_kernel(), 8, generator=seeded(0))(g, 0.5)
        assert len(own.flatten(0, 1).unique(dim=0)) == 6
        shared = EnergyScore(gaussian, plane_kernel(), 8, generator=seeded(0), shared_noise=True)(g, 0.5)
        assert torch.equal(shared[0], shared[1])
        assert len(shared[0].unique(dim=0)) == 3

    def test_prepared_score_has_the_law_of_the_plain_one(self) -> None:
        """One set of paths serves all times; averaged over many chains it estimates the same score."""
        score = EnergyScore(gaussian, plane_kernel(20), 200)
        g = torch.full((500, 2), 0.3, dtype=torch.float64)
        times = (1.0, 0.7, 0.33, 0.05)
        prepared = score.prepare(SolveContext(times, (500,), g.dtype, g.device, seeded(0)))
        for t in times:
            assert_relative(prepared(g, t).mean(0), exact_score(g[0], t), 0.03, event=1)

    def test_function_score(self) -> None:
        score = FunctionScore(exact_score)
        g = randn(3, 2)
        assert torch.equal(score(g, 0.5), exact_score(g, 0.5))
        assert score.prepare(SolveContext((0.5,), (3,), g.dtype, g.device, None)) is score


class TestBadInput:
    @pytest.mark.parametrize("num_mc", [0, -1, True, 1.0, None])
    def test_num_mc(self, num_mc: object) -> None:
        with pytest.raises(ConfigurationError, match="num_mc"):
            EnergyScore(gaussian, plane_kernel(), num_mc)

    def test_energy_of_the_wrong_shape(self) -> None:
        for energy in (lambda x: x, lambda x: x.sum()):
            with pytest.raises(ShapeError, match="one number per element"):
                EnergyScore(energy, plane_kernel(), 4)(torch.zeros(3, 2), 0.5)

    def test_elements_of_the_wrong_shape(self) -> None:
        score = EnergyScore(lambda x: x.sum((-1, -2)), NoiseKernel(SL(2), SCHEDULE, 3), 4)
        with pytest.raises(ShapeError, match="expected elements"):
            score(torch.zeros(3, 3, 3), 0.5)
