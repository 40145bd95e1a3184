"""Distributions as objects of torch: constants against quadrature, samples against densities, shapes, gradients."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from tests.generative.quadrature import rotation_rule
from tests.helpers import assert_relative, seeded
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative.distributions import (
    Bingham,
    EmpiricalDistribution,
    HaarDistribution,
    HeatKernelDistribution,
    MatrixFisher,
    MixtureDistribution,
    NormalDistribution,
    ProductDistribution,
)
from trivgeo.groups import SE, SO, SU, Affine, DirectProduct, LieGroup, Torus, Translation
from trivgeo.groups.rotations import rotation_to_quaternion

SHEAR = torch.tensor([[2.0, 1.0, -0.5], [0.3, -3.0, 1.0], [0.0, 2.0, 1.5]], dtype=torch.float64)


@pytest.fixture(scope="module")
def quadrature() -> tuple[Tensor, Tensor]:
    return rotation_rule(32)


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("form", [SHEAR, -torch.eye(3).double(), torch.eye(3).double(), torch.diag(SHEAR[0])])
def test_fisher_constant(factor: float, form: Tensor, quadrature: tuple[Tensor, Tensor]) -> None:
    """And its gradient, which is the mean rotation, also where singular values are equal or the determinant is < 0."""
    rotations, weights = quadrature
    f = (factor * form).requires_grad_()
    density = (weights * (f.detach() * rotations).sum((-2, -1)).exp())[:, None, None]
    constant = MatrixFisher(f).log_normaliser()
    assert float(constant.detach()) == pytest.approx(float(density.sum().log()), abs=1e-9)
    (gradient,) = torch.autograd.grad(constant, f)
    assert float((gradient - (density * rotations).sum(0) / density.sum()).abs().max()) < 1e-8


@pytest.mark.parametrize("k", [1e-6, 0.1, 3.0, 200.0, 1e4, 1e6, 1e8])
def test_constants_at_all_concentrations(k: float) -> None:
    """Closed forms by mpmath, of narrow distributions and of those about an axis or a plane, in both forms."""
    bessel = [mpmath.besseli(order, 2.0 * k) for order in (0, 1)]
    fisher = {
        (1.0, 1.0, 1.0): (bessel[0] - bessel[1]) * mpmath.exp(k),
        (1.0, 1.0, -1.0): (bessel[0] + bessel[1]) * mpmath.exp(-k),
        (1.0, 0.0, 0.0): mpmath.sinh(k) / k,
    }
    bingham = {
        (0.0, 0.0, 0.0, -1.0): mpmath.hyp1f1(0.5, 2, -k),
        (0.0, -1.0, -1.0, -1.0): mpmath.hyp1f1(1.5, 2, -k),
        (0.0, 0.0, -1.0, -1.0): -mpmath.expm1(-k) / k,
        (1.0, 0.0, 0.0, 0.0): mpmath.hyp1f1(0.5, 2, k),
    }
    for family, forms in ((MatrixFisher, fisher), (Bingham, bingham)):
        found = family(k * torch.diag_embed(torch.tensor(list(forms), dtype=torch.float64))).log_normaliser()
        expected = torch.tensor([float(mpmath.log(c)) for c in forms.values()], dtype=torch.float64)
        assert torch.allclose(found, expected, rtol=1e-14, atol=1e-12)


@pytest.mark.parametrize("k", [20.0, 1e4, 1e8])
def test_constants_without_symmetry(k: float) -> None:
    """Adaptive quadrature by mpmath, of three singular values turned by two rotations; and the mean rotation."""
    values = k * torch.tensor([1.0, 0.6, -0.599], dtype=torch.float64)
    s1, s2, s3 = map(mpmath.mpf, values.tolist())

    def scaled(z: Any) -> Any:
        return mpmath.besseli(0, z) * mpmath.exp(-z)

    def moment(power: int) -> Any:
        ends = [0.0, *(2.0**-j for j in range(34, 0, -3)), *(1.0 - 2.0**-j for j in range(3, 34, 3)), 1.0]

        def term(x: Any) -> Any:
            both = scaled((s1 - s2) * x) * scaled((s1 + s2) * (1 - x))
            return x**power * both * mpmath.exp(-2 * (s2 + s3) * x)

        return mpmath.quad(term, ends, maxdegree=5)

    expected = float(mpmath.log(moment(0)) + s1 + s2 + s3)
    u, v = SO(3).random_haar(2, generator=seeded(0), dtype=torch.float64)
    f = (u @ torch.diag(values) @ v.mT).requires_grad_()
    found = MatrixFisher(f).log_normaliser()
    assert float(found.detach()) == pytest.approx(expected, rel=1e-14, abs=1e-12)
    (mean,) = torch.autograd.grad(found, f)
    # the mean of the third diagonal entry at the mode is the derivative by s3
    slope = float((u.mT @ mean @ v)[2, 2])
    assert slope == pytest.approx(float(1 - 2 * moment(1) / moment(0)), abs=1e-11)


@pytest.mark.parametrize("kappa", [1e3, 1e6, 1e8])
def test_narrow_densities_in_single_precision(kappa: float) -> None:
    """To 1e-5 of their spread, against the quadratic form of the logarithm about the mode, exact in the limit."""
    values = kappa * torch.tensor([1.0, 0.7, -0.2], dtype=torch.float64)
    u, v = SO(3).random_haar(2, generator=seeded(0), dtype=torch.float64)
    fisher = MatrixFisher((u @ torch.diag(values) @ v.mT).float())
    vectors, noise = torch.linalg.qr(torch.randn(4, 4, generator=seeded(1), dtype=torch.float64))[0], 0.3 * kappa
    bingham = Bingham(
        (vectors @ torch.diag(noise * torch.tensor([1.0, 0.1, -0.5, -1.0])).double() @ vectors.mT).float()
    )
    centre = SO(3).random_haar(1, generator=seeded(2))[0]
    heat = HeatKernelDistribution(SO(3), centre, kappa**-0.5)
    normal = NormalDistribution(SO(3), centre, torch.zeros(3), kappa**-0.5 * torch.eye(3))
    for distribution in (fisher, bingham, heat, normal):
        g = distribution.sample(500, seeded(3))
        assert g.dtype == torch.float32
        found = distribution.log_prob(g)
        assert found.dtype == torch.float32
        mode = SO(3).project((distribution.centre if distribution in (heat, normal) else distribution.mode).double())
        if distribution in (fisher, bingham):
            mode = type(distribution)(distribution.parameter.double()).mode
        w = SO(3).log(mode.mT @ SO(3).project(g.double()))
        if distribution is fisher:
            v = torch.linalg.svd(fisher.parameter.double())[2].mT
            v = v * torch.linalg.det(v)
            proper = values[[0, 1, 2]]
            sums = torch.stack([proper[1] + proper[2], proper[0] + proper[2], proper[0] + proper[1]])
            half = (0.5 * (w @ v).square() * sums).sum(-1)
        elif distribution is bingham:
            q, top = (
                rotation_to_quaternion(SO(3).project(g.double())),
                torch.linalg.eigvalsh(bingham.parameter.double()),
            )
            eigen = torch.linalg.eigh(bingham.parameter.double())[1]
            half = ((q @ eigen).square() * (top[-1] - top)).sum(-1)
        else:
            half = 0.5 * kappa * w.square().sum(-1)
        # apart from a constant, and from the curvature of the group
        error = found.double() + half
        assert float((error - error.mean()).abs().max()) < (1e-5 + 10.0 / kappa) * float(half.std())


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
def test_bingham_constant(scale: float, quadrature: tuple[Tensor, Tensor]) -> None:
    """Mass one by the density itself."""
    rotations, weights = quadrature
    x = torch.randn(2, 4, 4, generator=seeded(0), dtype=torch.float64)
    distribution = Bingham(scale * (x + x.mT))
    mass = (weights * distribution.log_prob(rotations.unsqueeze(1)).exp().T).sum(-1)
    assert_relative(mass, torch.ones(2, dtype=torch.float64), 1e-6)
    more = Bingham(scale * (x + x.mT) + 7.0 * torch.eye(4))
    assert torch.allclose(more.log_prob(rotations[:5].unsqueeze(1)), distribution.log_prob(rotations[:5].unsqueeze(1)))


@pytest.mark.parametrize("factor", [0.0, 1.0, 30.0])
def test_samples_of_both(factor: float) -> None:
    """The mean of the samples is the gradient of the constant; few are denser than the mode."""
    f = (factor * SHEAR).requires_grad_()
    distribution = MatrixFisher(f)
    (mean,) = torch.autograd.grad(distribution.log_normaliser(), f)
    drawn = distribution.sample((4000,), generator=seeded(1))
    error = drawn.mean(0) - mean
    assert float((error.abs() / (drawn.std(0) / math.sqrt(4000) + 1e-12)).max()) < 4.5
    assert bool((distribution.log_prob(drawn) <= distribution.log_prob(distribution.mode) + 1e-9).all())
    assert float((drawn @ drawn.mT - torch.eye(3)).abs().max()) < 1e-12


def test_moments_of_bingham_samples() -> None:
    """Those of the gradient of the constant, where the envelope is tight: of few, several and many dimensions."""
    gaps = [[0, 0, 0, 3], [0, 1, 2, 3], [0, 0, 8, 8], [0, 5, 5, 5], [0, 2, 40, 40], [0, 30, 30, 30]]
    parameter = -torch.diag_embed(torch.tensor(gaps, dtype=torch.float64)).requires_grad_()
    (moments,) = torch.autograd.grad(Bingham(parameter).log_normaliser().sum(), parameter)
    q = rotation_to_quaternion(Bingham(parameter.detach()).sample(20_000, seeded(0)))
    squares = q.unsqueeze(-1) * q.unsqueeze(-2)
    errors = (squares.mean(0) - moments).abs() / (squares.std(0) / math.sqrt(20_000) + 1e-12)
    assert float(errors.max()) < 4.5


def test_bingham_mode_and_samples() -> None:
    """Two thin axes: turns about x of any angle."""
    distribution = Bingham(torch.diag(torch.tensor([0.0, 0.0, -200.0, -200.0])))
    drawn = distribution.sample((500,), generator=seeded(0))
    assert float((drawn[:, 0, 0] - 1.0).abs().max()) < 0.2
    assert float(drawn[:, 1, 1].std()) > 0.5
    assert (
        float(
            (
                Bingham(torch.diag(torch.tensor([0.0, 9.0, 1.0, 2.0]))).mode
                - SO(3).exp(torch.tensor([math.pi, 0.0, 0.0]))
            )
            .abs()
            .max()
        )
        < 1e-5
    )


class TestHeatKernel:
    def test_wrapped_normal(self) -> None:
        """Images of torch's normal distribution."""
        std = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
        centre = torch.tensor([[3.0, -1.0], [0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
        distribution = HeatKernelDistribution(Torus(2), centre, std)
        g = distribution.sample((4,), generator=seeded(0))
        turns = 2.0 * math.pi * torch.arange(-9, 10, dtype=torch.float64)
        images = Normal(centre[..., None], std[:, None, None]).log_prob(g[..., None] + turns).logsumexp(-1)
        assert torch.allclose(distribution.log_prob(g), images.sum(-1) + 2.0 * math.log(2.0 * math.pi), atol=1e-9)

    def test_isotropic_gaussian(self, quadrature: tuple[Tensor, Tensor]) -> None:
        """Mass one, and the mean angle of its samples."""
        rotations, weights = quadrature
        distribution = HeatKernelDistribution(SO(3), SO(3).exp(torch.tensor([1.0, 0.0, 2.0]).double()), 0.7)
        density = distribution.log_prob(rotations).exp()
        assert float((weights * density).sum()) == pytest.approx(1.0, abs=1e-8)
        trace = (rotations * distribution.centre).sum((-2, -1))
        drawn = (distribution.sample((4000,), generator=seeded(0)) * distribution.centre).sum((-2, -1))
        expected = float((weights * density * trace).sum())
        assert abs(float(drawn.mean()) - expected) < 4.0 * float(drawn.std()) / math.sqrt(4000)

    @pytest.mark.parametrize("group", [Translation(3), SO(3), Torus(2), DirectProduct(SO(3), Translation(2))], ids=repr)
    def test_derivatives_of_samples(self, group: Any) -> None:
        """With respect to the deviation, against differences with the same noise; and to the centre."""
        centre = group.identity(dtype=torch.float64)

        def mean(std: Tensor, moved: Tensor) -> Tensor:
            distribution = HeatKernelDistribution(group, group.perturb(centre, moved), std.expand(500))
            return distribution.rsample(generator=seeded(3)).square().sum() / 500

        std, moved = torch.tensor(0.4).double().requires_grad_(), torch.zeros(group.dim).double().requires_grad_()
        found, shift = torch.autograd.grad(mean(std, moved), (std, moved))
        with torch.no_grad():
            slope = (mean(std + 1e-5, moved) - mean(std - 1e-5, moved)) / 2e-5
            along = torch.linspace(0.5, 1.0, group.dim).double()
            other = (mean(std, 1e-5 * along) - mean(std, -1e-5 * along)) / 2e-5
        assert float(found) == pytest.approx(float(slope), rel=1e-4, abs=1e-7)
        assert float(shift @ along) == pytest.approx(float(other), rel=1e-4, abs=1e-7)

    def test_limits(self) -> None:
        g = SO(3).random_haar(5, generator=seeded(0), dtype=torch.float64)
        assert float(HeatKernelDistribution(SO(3), SO(3).identity(), math.inf).log_prob(g).abs().max()) < 1e-12
        point = HeatKernelDistribution(SO(3), g[0], 0.0)
        assert torch.equal(point.sample((2,)), g[:1].expand(2, 3, 3))


def test_shapes() -> None:
    """Batch and event shapes, and what of torch takes such objects."""
    centre, std = SO(3).random_haar(4, generator=seeded(0)), torch.tensor([[0.2], [0.5]])
    distribution = HeatKernelDistribution(SO(3), centre, std)
    assert (distribution.batch_shape, distribution.event_shape) == ((2, 4), (3, 3))
    assert distribution.sample((5,)).shape == (5, 2, 4, 3, 3)
    assert distribution.log_prob(SO(3).identity()).shape == (2, 4)
    assert distribution.log_prob(distribution.sample((5,))).shape == (5, 2, 4)
    assert distribution.expand((6, 2, 4)).sample().shape == (6, 2, 4, 3, 3)
    assert bool(distribution.support.check(distribution.sample()).all())
    assert not bool(distribution.support.check(2.0 * distribution.sample()).any())
    assert Independent(distribution, 1).log_prob(distribution.sample()).shape == (2,)
    mixture = MixtureSameFamily(Categorical(torch.ones(2, 4)), distribution)
    drawn = mixture.sample((7,))
    assert drawn.shape == (7, 2, 3, 3)
    expected = distribution.log_prob(drawn.unsqueeze(-3)).logsumexp(-1) - math.log(4.0)
    assert torch.allclose(mixture.log_prob(drawn), expected, atol=1e-5)
    for other in (MatrixFisher(torch.zeros(2, 3, 3)), Bingham(torch.zeros(2, 4, 4)), HaarDistribution(SO(3), (2,))):
        assert other.sample((3,)).shape == (3, 2, 3, 3)
        assert float(other.log_prob(other.sample((3,))).abs().max()) < 1e-6
        assert other.expand((5, 2)).log_prob(SO(3).identity()).shape == (5, 2)
        assert torch.equal(*(other.sample((3,), generator=seeded(0)) for _ in range(2)))
    assert HaarDistribution(SU(3)).sample((2,)).shape == (2, *SU(3).element_shape)
    assert float(HaarDistribution(Torus(2), (3,)).entropy().abs().max()) == 0.0


def test_under_transforms() -> None:
    """Densities are differentiated by torch.func, in batches."""
    f = torch.randn(3, 3, 3, generator=seeded(0), dtype=torch.float64)
    r = SO(3).random_haar(3, generator=seeded(1), dtype=torch.float64)
    single = torch.stack(
        [torch.func.grad(lambda x, y=y: MatrixFisher(x).log_prob(y))(x) for x, y in zip(f, r, strict=True)]
    )
    batch = torch.func.vmap(torch.func.jacfwd(lambda x, y: MatrixFisher(x).log_prob(y)))(f, r)
    assert torch.allclose(single, batch, atol=1e-9)


def test_bad_input() -> None:
    with pytest.raises(ConfigurationError, match="heat kernel"):
        HeatKernelDistribution(SE(2), SE(2).identity(), 0.1)
    with pytest.raises(DomainError, match="std"):
        HeatKernelDistribution(SO(3), SO(3).identity(), -0.1)
    with pytest.raises(ShapeError, match="broadcast"):
        HeatKernelDistribution(SO(3), SO(3).identity(3), torch.ones(2))
    with pytest.raises(ConfigurationError, match="compact"):
        HaarDistribution(SE(2))
    with pytest.raises(ShapeError, match=r"\[..., 3, 3\]"):
        MatrixFisher(torch.zeros(4, 4))
    with pytest.raises(NonFiniteError):
        MatrixFisher(torch.full((3, 3), math.nan))
    with pytest.raises(DomainError, match="symmetric"):
        Bingham(torch.arange(16.0).reshape(4, 4))
    with pytest.raises(ConfigurationError, match="derivatives of its samples"):
        MatrixFisher(torch.zeros(3, 3)).rsample()
    with pytest.raises(ShapeError, match="value"):
        MatrixFisher(torch.zeros(3, 3)).log_prob(torch.zeros(2, 2))


@pytest.mark.parametrize(
    "distribution",
    [
        HaarDistribution(SO(3)),
        HaarDistribution(Torus(2)),
        MatrixFisher(torch.eye(3)),
        Bingham(torch.eye(4)),
        HeatKernelDistribution(SO(3), SO(3).identity(), 0.5),
        HeatKernelDistribution(SU(2), SU(2).identity(), 0.5),
        HeatKernelDistribution(Torus(2), torch.zeros(2), 0.5),
        NormalDistribution(SE(2), SE(2).identity(), torch.zeros(3), torch.eye(3)),
        NormalDistribution(Affine(2), Affine(2).identity(), torch.zeros(6), 0.1 * torch.eye(6)),
        NormalDistribution(Translation(2), torch.zeros(2), torch.zeros(2), torch.eye(2)),
        MixtureDistribution([HaarDistribution(SO(3)), MatrixFisher(torch.eye(3))], torch.tensor([0.5, 0.5])),
        ProductDistribution(DirectProduct(SO(3), SO(2)), [HaarDistribution(SO(3)), HaarDistribution(SO(2))]),
    ],
    ids=lambda x: f"{type(x).__name__}-{x.group!r}",
)
def test_no_density_off_the_group(distribution: Any) -> None:
    """Values that are no elements have density zero, without NaN in derivatives; elements keep theirs beside them."""
    group: LieGroup = distribution.group
    g = distribution.sample(3, seeded(0)).double()
    off = [torch.full_like(g, math.nan), torch.full_like(g, math.inf)]
    if not isinstance(group, Torus | Translation):  # all other numbers are coordinates
        off += [torch.zeros_like(g), -0.3 * g if isinstance(group, SU) else 1.1 * g.flip(-2)]
    x = torch.cat([g, *off]).requires_grad_()
    found = distribution.log_prob(x)
    assert torch.equal(found[:3], distribution.log_prob(g))
    assert bool(torch.isfinite(found[:3]).all())
    assert bool((found[3:] == -math.inf).all())
    if found.requires_grad:
        (gradient,) = torch.autograd.grad(found[:3].sum(), x)
        assert bool(torch.isfinite(gradient).all())


def test_batches_are_distributions_one_by_one() -> None:
    """Of normal distributions, mixtures and products: densities, and moments of samples, those of each alone."""
    group, double = SE(2), torch.float64
    centre = group.random(3, std=0.5, generator=seeded(0), dtype=double)
    loc = 0.1 * torch.randn(3, 3, generator=seeded(1), dtype=double)
    scale_tril = torch.diag_embed(torch.tensor([[2.5, 0.3, 0.2], [0.3, 0.4, 0.2], [0.4, 0.2, 0.5]], dtype=double))
    weights = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]], dtype=double)
    one = torch.eye(1, dtype=double)

    def normal(k: Any) -> NormalDistribution:
        return NormalDistribution(group, centre[k], loc[k], scale_tril[k])

    def mixture(k: Any) -> MixtureDistribution:
        other = NormalDistribution(
            group, group.compose(centre[k], centre[k]), 0.0 * loc[k], 0.1 * torch.eye(3).double()
        )
        return MixtureDistribution([normal(k), other], weights[k])

    def product(k: Any) -> ProductDistribution:
        shift = NormalDistribution(Translation(1), loc[k][..., :1], 0.0 * loc[k][..., :1], one)
        return ProductDistribution(DirectProduct(group, Translation(1)), [mixture(k), shift])

    for make in (normal, mixture, product):
        batch, each = make(slice(None)), [make(k) for k in range(3)]
        drawn = batch.sample(4000, seeded(2))
        assert drawn.shape == (4000, 3, *batch.group.element_shape)
        found = batch.log_prob(drawn)
        assert torch.allclose(found, torch.stack([x.log_prob(drawn[:, k]) for k, x in enumerate(each)], 1), atol=2e-2)
        others = torch.stack([x.sample(4000, seeded(3 + k)) for k, x in enumerate(each)], 1)
        for f in (lambda g: g.cos().flatten(2), lambda g: (g * g).tanh().flatten(2)):
            error = (f(drawn).mean(0) - f(others).mean(0)) / (f(drawn).var(0) / 2000 + 1e-12).sqrt()
            assert float(error.abs().max()) < 4.5
        # members of a batch are independent
        first = drawn.flatten(2).cos()[..., :4]
        covariance = ((first[:, 0] - first[:, 0].mean(0)) * (first[:, 2] - first[:, 2].mean(0))).mean(0)
        assert float((covariance / (first[:, 0].std(0) * first[:, 2].std(0) + 1e-6)).abs().max()) < 4.5 / 4000**0.5


@pytest.mark.parametrize("shape", [(3,), (), (2, 5)], ids=str)
def test_batches_that_do_not_expand(shape: tuple[int, ...]) -> None:
    group = SO(3)
    centres = group.random_haar(2, generator=seeded(0))
    heat = HeatKernelDistribution(group, centres, 0.3)
    for distribution in (heat, MixtureDistribution([heat], torch.ones(2, 1)), HaarDistribution(group, (2,))):
        with pytest.raises(ShapeError, match=r"batch_shape: expected one to which \[2\] expands"):
            distribution.expand(shape)
    with pytest.raises(ConfigurationError, match="batch_shape"):
        heat.expand((-1, 2))


def test_expanded_distributions() -> None:
    """Copies of one distribution have its densities; a number and a shape of samples are the same."""
    group = SE(2)
    normal = NormalDistribution(group, group.identity(), torch.zeros(3), 0.3 * torch.eye(3))
    product = DirectProduct(SO(3), group)
    for one in (
        normal,
        MixtureDistribution([normal, normal], torch.tensor([0.5, 0.5])),
        ProductDistribution(product, [HaarDistribution(SO(3)), normal]),
        HaarDistribution(SO(3)),
        HeatKernelDistribution(SO(3), SO(3).identity(), 0.3),
        MatrixFisher(SHEAR.float()),
    ):
        many = one.expand((2, 4))
        g = one.sample(4, seeded(0))
        assert torch.equal(g, one.sample((4,), seeded(0)))
        assert (many.batch_shape, one.batch_shape) == ((2, 4), ())
        assert many.sample(5, seeded(1)).shape == (5, 2, 4, *one.event_shape)
        assert torch.allclose(many.log_prob(g), one.log_prob(g).expand(2, 4), atol=1e-5)
        assert many.double().sample(1, seeded(1)).dtype == torch.float64  # a module, with parameters of its own
        assert one.sample(1, seeded(1)).dtype == torch.float32
    elements = EmpiricalDistribution(group, group.random(3, generator=seeded(0))).expand((2, 4)).sample(5, seeded(1))
    assert elements.shape == (5, 2, 4, 2, 3)
    with pytest.raises(ShapeError, match="factors: expected 2 distributions"):
        ProductDistribution(product, [normal])
