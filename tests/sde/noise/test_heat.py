"""Heat kernels: mass, scores, samples, and the likelihood of the probability flow that they make exact."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, seeded
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative import fit_base_distribution
from trivgeo.generative.distributions import HaarDistribution, MixtureDistribution, NormalDistribution
from trivgeo.groups import SE, SL, SO, SU, DirectProduct, LieGroup, MatrixGroup, Torus, Translation, U
from trivgeo.groups.harmonic import RotationHeatKernel, slowest_rate
from trivgeo.sde import GeometricSchedule, forward_noising, heat_kernel, probability_flow, trivialized_grad
from trivgeo.sde.likelihood import flow_likelihood
from trivgeo.sde.noise.kernel import log_volume

KNOWN: list[LieGroup] = [
    Translation(2, scale=[0.5, 2.0]),
    Torus(2, scale=[0.6, 1.5]),
    SO(3, scale=0.8),
    SU(2),
    DirectProduct(SO(3), Torus(1), Translation(1), scale=[0.5, 0.5, 0.5, 1.0, 2.0]),
]


@pytest.mark.parametrize("group", KNOWN, ids=repr)
class TestKernels:
    @pytest.mark.parametrize("variance", [0.3, 2.9, 3.1, 12.0])
    def test_score_is_the_gradient(self, group: LieGroup, variance: float) -> None:
        """In both forms of the series, and where they meet."""
        kernel = heat_kernel(group)
        assert kernel is not None
        v = torch.full((30,), variance / float(group.scale.max()) ** 2, dtype=torch.float64)
        w = kernel.sample(v, seeded(0))
        assert_relative(kernel.score(w, v), trivialized_grad(group, lambda x: kernel.log_density(x, v), w), 1e-9)

    @pytest.mark.parametrize("variance", [0.2, 2.0])
    def test_samples(self, group: LieGroup, variance: float) -> None:
        """E[X f + f X log k] = 0 of samples ties these to the density."""
        kernel = heat_kernel(group)
        assert kernel is not None
        v = torch.full((4000,), variance, dtype=torch.float64)
        w = kernel.sample(v, seeded(1))
        f = lambda x: (x.flatten(1) * torch.arange(1.0, 1.0 + x[0].numel()).double()).sum(-1).sin()  # noqa: E731
        terms = trivialized_grad(group, f, w) + f(w).unsqueeze(-1) * kernel.score(w, v)
        assert float((terms.mean(0) / (terms.std(0) / math.sqrt(len(v)))).abs().max()) < 4.5

    def test_forms_meet(self, group: LieGroup) -> None:
        """The two forms are one function: no jump where one takes over."""
        kernel = heat_kernel(group)
        assert kernel is not None
        for scale in group.scale.unique().tolist():
            below, above = (torch.full((50,), 3.0 / scale**2 * f, dtype=torch.float64) for f in (1 - 1e-9, 1 + 1e-9))
            w = kernel.sample(below, seeded(2))
            assert_relative(kernel.log_density(w, below), kernel.log_density(w, above), 1e-7)


@pytest.mark.parametrize("group", [Torus(2), SO(3), SU(2)], ids=repr)
def test_mass(group: LieGroup) -> None:
    """The mean of the density over Haar's law of mass one is one."""
    kernel = heat_kernel(group)
    assert kernel is not None
    g = group.random_haar(20_000, generator=seeded(0), dtype=torch.float64)
    v = torch.full((len(g),), 0.8 if isinstance(group, SO | Torus) else 0.3, dtype=torch.float64)
    density = kernel.log_density(g, v).exp()
    assert float((density.mean() - 1.0).abs() / (density.std() / math.sqrt(len(g)))) < 4.0


@pytest.mark.parametrize(
    ("group", "volume", "variance"),
    [
        *((SO(3), 8.0 * math.pi**2, variance) for variance in (1e-4, 1e-13)),
        (SU(2), 2.0 * math.pi**2, 1e-10),
    ],
    ids=repr,
)
def test_little_noise(group: LieGroup, volume: float, variance: float) -> None:
    """The normal law of the logarithm, down to noise of angles that are no more than rounding elsewhere."""
    kernel = heat_kernel(group)
    assert kernel is not None
    v = torch.full((5000,), variance, dtype=torch.float64)
    w = kernel.sample(v, seeded(4))
    squares = group.log(w).square().sum(-1) / variance
    assert float(squares.mean()) == pytest.approx(3.0, abs=4.0 * math.sqrt(6.0 / len(v)))
    top = math.log(volume) - 1.5 * math.log(2.0 * math.pi * variance)
    at = torch.cat([group.identity(1, dtype=torch.float64), w[:500]])
    expected = top - 0.5 * torch.cat([torch.zeros(1).double(), squares[:500]])
    assert float((kernel.log_density(at, v[:501]) - expected).abs().max()) < 10.0 * variance + 1e-7
    assert_relative(kernel.score(at, v[:501]), -group.log(at) / variance, 10.0 * variance + 1e-10)
    gradient = trivialized_grad(group, lambda x: kernel.log_density(x, v[:501]), at)
    assert_relative(gradient, -group.log(at) / variance, 20.0 * variance + 1e-6)


@pytest.mark.parametrize("group", [SO(3), SU(2), SO(3, scale=0.7)], ids=repr)
@pytest.mark.parametrize("variance", [1e-8, 0.02, 0.8, 2.9, 3.1, 9.0, 1e5])
def test_angles_are_quantiles(group: LieGroup, variance: float) -> None:
    """The share of noise below each angle, by a fine trapezoid rule of the density times the area of the sphere."""
    kernel = heat_kernel(group)
    assert isinstance(kernel, RotationHeatKernel)
    v = kernel._unit**2 * torch.full((1,), variance, dtype=torch.float64)
    share = torch.linspace(1e-4, 1.0 - 1e-4, 301, dtype=torch.float64).unsqueeze(0)
    angle = kernel._quantile(v, share)
    assert bool((angle.diff() > 0).all())
    grid = torch.linspace(0.0, min(8.0 * float(v.sqrt()), kernel._cover * math.pi), 20_001, dtype=torch.float64)
    direction = torch.zeros(3, dtype=torch.float64)
    direction[0] = 1.0 / kernel._unit
    w = group.exp(grid.unsqueeze(-1) * direction)
    density = kernel.log_density(w, torch.full_like(grid, variance)).exp() * (0.5 * grid).sin().square()
    below = torch.cumulative_trapezoid(density, grid)
    below = torch.cat([torch.zeros(1, dtype=torch.float64), below / below[-1]])
    assert float((below[torch.searchsorted(grid, angle)] - share).abs().max()) < 3e-4  # of which the rule has most


def test_one_variance_needs_one_table() -> None:
    """The same draws as of a variance for each element."""
    for group in (SO(3), SU(2)):
        kernel = heat_kernel(group)
        assert kernel is not None
        one = torch.tensor(0.4, dtype=torch.float64).expand(5, 8)
        assert torch.allclose(kernel.sample(one, seeded(0)), kernel.sample(one.clone(), seeded(0)), atol=1e-9)
        assert kernel.sample(one[:0], seeded(0)).shape == (0, 8, *group.element_shape)


@pytest.mark.parametrize(
    "group",
    [
        Torus(2),
        SO(3),
        pytest.param(DirectProduct(SO(3), Translation(1)), marks=pytest.mark.slow(reason="its factors stay")),
    ],
    ids=repr,
)
def test_exact_likelihood(group: LieGroup) -> None:
    """The law k_s is carried to k_(s + sigma^2): the flow finds the density of every element."""
    kernel = heat_kernel(group)
    assert kernel is not None
    schedule, first = GeometricSchedule(0.3, 2.0), 0.1
    v = torch.full((3,), first, dtype=torch.float64)
    g = kernel.sample(v, seeded(3))

    def score(x: torch.Tensor, t: float) -> torch.Tensor:
        return kernel.score(x, x.new_full(group.batch_shape(x), first + schedule.variance(0.0, t)))

    end = v + schedule.variance(0.0, 1.0)
    found = flow_likelihood(
        probability_flow(group, schedule, score), g, lambda x: kernel.log_density(x, end), tolerance=1e-4
    )
    assert_relative(found.log_density, kernel.log_density(g, v), 2e-3)


def test_unknown() -> None:
    for group in (SE(2), SO(4), SO(3, scale=[1.0, 1.0, 2.0]), Torus(2, scale=[[1.0, 1.0], [0.0, 1.0]])):
        assert heat_kernel(group) is None
    assert heat_kernel(DirectProduct(Torus(1), SE(2))) is None


def _spin(twice: int) -> Tensor:
    """The angular momenta of spin twice / 2, ``[3, n, n]``."""
    spin = 0.5 * twice
    m = spin - torch.arange(twice + 1, dtype=torch.float64)
    up = torch.diag((spin * (spin + 1.0) - m[1:] * (m[1:] + 1.0)).sqrt(), 1).to(torch.complex128)
    return torch.stack([0.5 * (up + up.mH), -0.5j * (up - up.mH), torch.diag(m).to(up)])


@pytest.mark.parametrize(
    "scale", [(1.0, 1.0, 0.1), (1.0, 0.1, 0.1), (0.2, 1.0, 0.3), (5.0, 1e-3, 1.0), (1.0, 1.0, 1.0)]
)
def test_slowest_rate(scale: tuple[float, float, float]) -> None:
    """Of all modes up to spin four, in any basis that is turned."""
    turned = torch.diag(torch.tensor(scale, dtype=torch.float64)) @ SO(3).random_haar(generator=seeded(0)).double()
    for group, unit, step in ((SO(3), 1.0, 2), (SU(2), 2.0, 1)):
        rates = []
        for twice in range(step, 9, step):
            spin = _spin(twice)
            square = sum(((unit * a * j) @ j * unit * a for a, j in zip(scale, spin, strict=True)), 0.0 * spin[0])
            rates.append(float(torch.linalg.eigvalsh(0.5 * square)[0]))
        for one in (group.with_scale(scale), group.with_scale(turned)):
            assert slowest_rate(one) == pytest.approx(min(rates), rel=1e-6)


class TestTerminalLaws:
    def test_normal_law(self) -> None:
        """On SE(2): its mass in the chart (angle, shift), where left Haar measure is Lebesgue's, is one."""
        group = SE(2)
        factor = torch.tensor([[1.2, 0.0, 0.0], [0.2, 0.5, 0.0], [0.1, 0.2, 0.6]], dtype=torch.float64)
        centre = group.random(1, std=0.3, generator=seeded(0), dtype=torch.float64)[0]
        law = NormalDistribution(group, centre, torch.tensor([0.3, 0.1, 0.0], dtype=torch.float64), factor)
        side = 4.0
        box = torch.rand(200_000, 3, generator=seeded(1), dtype=torch.float64)
        angle, shift = (2.0 * box[:, :1] - 1.0) * math.pi, (2.0 * box[:, 1:] - 1.0) * side
        density = law.log_prob(group.join(group.linear.exp(angle), shift)).exp() * (2.0 * math.pi * (2 * side) ** 2)
        assert float((density.mean() - 1.0).abs() / (density.std() / math.sqrt(len(box)))) < 4.0
        assert float(law.log_mass.exp()) < 0.999  # some of it has another logarithm
        g = law.sample(2000, seeded(2))
        again = fit_base_distribution(group, g)
        assert isinstance(again, NormalDistribution)
        assert abs(float((again.log_prob(g) - law.log_prob(g)).mean())) < 0.05

    @pytest.mark.parametrize(
        "group",
        [Torus(2, scale=[[1.0, 0.5], [0.2, 2.0]]), SO(3), SO(4), SU(2, scale=0.7), SU(3), U(1), U(2), SO(3) ** 2],
        ids=repr,
    )
    def test_normal_law_on_compact_groups(self, group: LieGroup) -> None:
        """For Haar's law, of mass one, like every other law there: alone, and mixed with that one."""
        g = group.random_haar(20_000, generator=seeded(0), dtype=torch.float64)
        centre = g[0]
        v = group.log(group.compose(group.inverse(centre), g))
        factor = torch.linalg.cholesky(torch.atleast_2d(torch.cov(v.mT)))  # so that all of the group counts
        law = NormalDistribution(group, centre, 0.0 * v[0], factor)
        mixed = MixtureDistribution(
            [HaarDistribution(group).double(), law], torch.tensor([0.3, 0.7], dtype=torch.float64)
        )
        for each in (law, mixed):
            density = each.log_prob(g).exp()
            spread = float(density.std()) / math.sqrt(len(g)) + 3e-3  # and of the draws by which Z is counted
            assert abs(float(density.mean()) - 1.0) < 4.0 * spread

    def test_normal_law_on_a_product_of_both(self) -> None:
        """Factor by factor, as laws of the factors have it; where they are joined, as in the algebra."""
        for scale, volume in (([1.0, 1.0, 1.0, 2.0], 8.0 * math.pi**2), (torch.eye(4), 1.0)):
            group = DirectProduct(SO(3), Translation(1), scale=scale)
            law = NormalDistribution(group, group.identity(), torch.zeros(4), 0.1 * torch.eye(4))
            expected = math.log(volume) - 2.0 * math.log(2.0 * math.pi * 0.01)
            assert float(law.log_prob(group.identity())) == pytest.approx(expected, abs=1e-4)

    def test_normal_law_of_unknown_volume(self) -> None:
        class Turns(MatrixGroup):
            """A compact group of a stranger."""

            is_compact = True

        group = Turns(torch.tensor([[[0.0, -1.0], [1.0, 0.0]]]))
        with pytest.raises(ConfigurationError, match="whose volume is known"):
            NormalDistribution(group, group.identity(), torch.zeros(1), torch.eye(1))

    def test_mixture(self) -> None:
        """On x -> e^a x + b: mass one for left Haar measure, e^-a da db, and the density of its samples."""
        group = affine_line()
        generator = seeded(0)
        tails = forward_noising(
            group, GeometricSchedule(0.1, 3.0), group.identity(4000, dtype=torch.float64), generator=seeded(5)
        )
        law = fit_base_distribution(group, tails, num_components=4)
        assert isinstance(law, MixtureDistribution)
        box = torch.rand(100_000, 2, generator=generator, dtype=torch.float64)
        element = torch.stack([12.0 * box[:, 0] - 6.0, (16.0 * box[:, 1] - 8.0).sinh()], -1)
        density = law.log_prob(element).exp() * (-element[:, 0]).exp() * 12.0 * 16.0 * (1.0 + element[:, 1] ** 2).sqrt()
        assert float((density.mean() - 1.0).abs() / (density.std() / math.sqrt(len(box)))) < 4.0
        g = law.sample(20_000, seeded(1))
        inside = lambda x: (x[:, 0] > 0.3) & (x[:, 1] < -0.2)  # noqa: E731
        share = float((density * inside(element)).mean())
        assert float(inside(g).double().mean()) == pytest.approx(share, abs=0.02)
        assert 0.3 < float(inside(g[:10_000]).double().mean()) / share < 3.0
        plain = fit_base_distribution(group, tails)
        assert float((law.log_prob(tails) - plain.log_prob(tails)).mean()) > 0.02
        wide = fit_base_distribution(group, tails, widen=3.0, num_components=4)
        assert float((wide.log_prob(tails) - law.log_prob(tails)).mean()) < -0.5

    def test_mixture_where_logarithms_end(self) -> None:
        """Elements of SL(2) that have none have densities, from other centres."""
        group = SL(2)
        g = group.random(4000, std=1.5, generator=seeded(0)) @ group.random(4000, std=1.5, generator=seeded(1))
        assert int((~torch.isfinite(group.log(g)).all(-1)).sum()) > 100
        law = fit_base_distribution(group, g, num_components=8)
        assert bool(torch.isfinite(law.log_prob(g)).all())

    def test_volume_of_far_logarithms(self) -> None:
        """(sinh s / s)^2, s and -s the eigenvalues: in float32 the Jacobian itself can be singular."""
        group, v = SL(2), 1.5 * torch.randn(20000, 3, generator=seeded(0))
        square = -torch.linalg.det(group.hat(v.double()))
        s = square.abs().sqrt()
        volume = 2.0 * torch.where(square > 0.0, s.sinh() / s, s.sin() / s).abs().log()
        torch.testing.assert_close(log_volume(group, v).double(), volume, rtol=1e-5, atol=1e-4)

    def test_bad_mixtures(self) -> None:
        g = SE(2).random(20, generator=seeded(0))
        with pytest.raises(ShapeError, match="samples: expected at least 30 elements"):
            fit_base_distribution(SE(2), g, num_components=30)
        with pytest.raises(ConfigurationError, match="components"):
            fit_base_distribution(SE(2), g, num_components=0)
        with pytest.raises(ConfigurationError, match="widen"):
            fit_base_distribution(SE(2), g, -1.0)
        with pytest.raises(NonFiniteError, match="samples"):
            fit_base_distribution(SE(2), g * math.nan)
        law = fit_base_distribution(SE(2), g)
        with pytest.raises(ShapeError, match="weights: expected one for each of 2 components"):
            MixtureDistribution([law, law], torch.ones(1))
        with pytest.raises(DomainError, match="weights: expected positive numbers of sum one"):
            MixtureDistribution([law, law], torch.ones(2))

    def test_bad_factors(self) -> None:
        """A covariance, whose upper half the density would not see."""
        group, zero = Translation(2), torch.zeros(2)
        for wrong in (torch.tensor([[1.0, 0.9], [0.9, 1.0]]), -torch.eye(2), torch.zeros(2, 2)):
            with pytest.raises(DomainError, match="scale_tril: expected a lower triangular matrix"):
                NormalDistribution(group, zero, zero, wrong)
        with pytest.raises(ShapeError, match="scale_tril"):
            NormalDistribution(group, zero, zero, torch.eye(3))
        law = NormalDistribution(group, zero, zero, torch.eye(2))
        assert law.log_prob(zero.double()).dtype == torch.float64
        with pytest.raises(ConfigurationError, match="sample_shape"):
            law.sample(-1)
        with pytest.raises(ConfigurationError, match="float32 or float64"):
            fit_base_distribution(group, torch.zeros(5, 2).half())
        with pytest.raises(DomainError, match="samples: expected elements that have logarithms, got 0"):
            fit_base_distribution(SL(2), 1e30 * torch.randn(50, 2, 2, generator=seeded(0)))

    def test_haar(self) -> None:
        assert isinstance(fit_base_distribution(SO(3), SO(3).identity(3)), HaarDistribution)
