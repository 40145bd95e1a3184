"""Learned priors of inverse problems: weighted draws against quadrature, and against distributions in closed form."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.posterior import LeftTranslation
from tests.helpers import assert_relative, seeded
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.generative import GroupDiffusion
from trivgeo.generative.distributions import MatrixFisher, MixtureDistribution, NormalDistribution
from trivgeo.generative.posterior_draws import draw_posterior
from trivgeo.groups import SO, Torus, Translation
from trivgeo.inversion import PosteriorSampler
from trivgeo.inversion.stages import ImportanceSampling

SIDE = 40  # of a grid of angles


def von_mises(g: Tensor) -> Tensor:
    """Minus the logarithm of a likelihood of two angles."""
    return -2.0 * (g[..., 0] - 0.5).cos() - (g[..., 1] - g[..., 0] + 1.0).cos()


def grid() -> Tensor:
    angle = 2.0 * math.pi * torch.arange(SIDE).double() / SIDE - math.pi
    return torch.cartesian_prod(angle, angle)


def waves(g: Tensor) -> Tensor:
    return torch.cat([g.cos(), g.sin()], -1).double()


@pytest.fixture(scope="module")
def model() -> GroupDiffusion:
    """Two classes of angles; trained little, since the posterior of any model is to be right."""
    classes = torch.arange(600) % 2
    centre = torch.tensor([[0.3, -0.8], [-1.5, 1.0]])[classes]
    angles = centre + 0.5 * torch.randn(600, 2, generator=seeded(0))
    embedding = nn.Embedding(2, 4, _weight=torch.randn(2, 4, generator=seeded(1)))
    own = GroupDiffusion(Torus(2), "flow", condition=embedding, width=16, depth=1)
    return own.fit(angles, classes, steps=60, batch_size=64, progress=False)


@pytest.mark.parametrize("condition", [None, torch.tensor(1)], ids=["all", "class"])
def test_learned_prior_on_a_torus(model: GroupDiffusion, condition: Tensor | None) -> None:
    """Moments and evidence are those of the model's own density times the likelihood, by quadrature."""
    distribution = model.distribution(condition=condition)
    with pytest.raises(ShapeError, match="g"):
        distribution.log_prob(torch.zeros(4, 3))
    logs = distribution.log_prob(grid().float()).double()
    assert float(logs.exp().mean()) == pytest.approx(1.0, abs=0.01)  # Haar measure of mass one
    exact = (logs - von_mises(grid())).softmax(0)
    draws = draw_posterior(distribution, von_mises, 4000, generator=seeded(1))
    assert (
        float((draws.weights.unsqueeze(-1) * waves(draws.elements)).sum(0).sub(exact @ waves(grid())).abs().max())
        < 0.05
    )
    evidence = float((logs - von_mises(grid())).exp().mean().log())
    assert draws.log_evidence == pytest.approx(evidence, abs=0.08)
    assert 1000 < draws.effective_sample_size < 4000
    again = draws.resample(4000, seeded(2))
    assert float(waves(again).mean(0).sub(exact @ waves(grid())).abs().max()) < 0.07
    prior = (waves(grid()) * logs.exp().unsqueeze(-1)).mean(0)
    assert float((exact @ waves(grid()) - prior).abs().max()) > 0.2  # the likelihood matters


@pytest.mark.slow(reason="weighted draws of the same density stay, against the same quadrature")
def test_search_with_a_learned_prior(model: GroupDiffusion) -> None:
    """`PosteriorSampler` with the density of the model finds the same evidence and moments."""
    group, distribution = Torus(2), model.distribution(condition=torch.tensor(0), tolerance=1e-2)
    action = LeftTranslation(group)
    sampler = PosteriorSampler(
        action, lambda y: von_mises(group.inverse(y)), prior=distribution, num_samples=200, budget=600
    )
    sample = sampler(group.identity(1), generator=seeded(0))
    logs = distribution.log_prob(grid().float()).double() - von_mises(grid())
    assert float(sample.log_evidence) == pytest.approx(float(logs.exp().mean().log()), abs=0.12)
    found = (sample.weights.double().unsqueeze(-1) * waves(sample.elements)).sum(1)[0]
    assert float((found - logs.softmax(0) @ waves(grid())).abs().max()) < 0.12


def test_a_model_without_conditions_is_a_prior() -> None:
    """Given itself, with the measure of base distributions; its samples have another signature than theirs."""
    rotations = SO(2).exp(0.4 * torch.randn(200, 1, generator=seeded(0)))
    own = GroupDiffusion(SO(2), "flow", width=8, depth=1).fit(rotations, steps=2, batch_size=32, progress=False)
    prior = ImportanceSampling(prior=own).prior
    assert torch.equal(prior.sample(5, seeded(1)), own.sample(5, generator=seeded(1)))
    assert_relative(prior.log_prob(rotations[:5]), own.log_prob(rotations[:5]), 1e-6)  # Haar measure of mass one
    assert float(prior.log_prob(rotations[:1] * math.nan)) == -math.inf


def test_conjugate() -> None:
    """Normal prior and likelihood on translations, and a mixture, whose weights change, in closed form."""
    group = Translation(1)
    one = torch.eye(1, dtype=torch.float64)
    parts = [
        NormalDistribution(group, one[0] * c, torch.zeros(1).double(), s * one) for c, s in ((-1.0, 0.5), (2.0, 1.0))
    ]
    prior = MixtureDistribution(parts, torch.tensor([0.3, 0.7]).double())
    draws = draw_posterior(prior, lambda g: (g[:, 0] - 0.5).square() / (2 * 0.6**2), 40_000, generator=seeded(0))
    masses, means = [], []
    for share, centre, std in ((0.3, -1.0, 0.5), (0.7, 2.0, 1.0)):
        total = std**2 + 0.36
        masses.append(share * math.exp(-((centre - 0.5) ** 2) / (2 * total)) * math.sqrt(0.36 / total))
        means.append((0.36 * centre + std**2 * 0.5) / total)
    mean = sum(m * c for m, c in zip(masses, means, strict=True)) / sum(masses)
    assert float(draws.weights @ draws.elements[:, 0]) == pytest.approx(mean, abs=0.02)
    assert draws.log_evidence == pytest.approx(math.log(sum(masses)), abs=0.02)
    even = draw_posterior(prior, lambda g: 0.0 * g[:, 0], 100, generator=seeded(0))
    assert even.effective_sample_size == pytest.approx(100.0)


class Losing:
    """A normal distribution on the line whose draws are lost where they are positive."""

    def sample(self, num_samples: int, *, generator: torch.Generator | None = None) -> Tensor:
        x = torch.randn(num_samples, 1, generator=generator)
        return torch.where(x > 0.0, math.nan, x)


def test_lost_draws_do_not_count() -> None:
    """Averages and evidence are those of the draws that are left: of half of a normal distribution."""
    seen: list[Tensor] = []

    def energy(x: Tensor) -> Tensor:
        seen.append(x)
        return -x[:, 0]

    draws = draw_posterior(Losing(), energy, 20_000, generator=seeded(0))
    assert draws.num_lost == 20_000 - len(draws.elements)
    assert abs(draws.num_lost - 10_000) < 400
    assert bool(torch.isfinite(seen[0]).all())
    assert draws.weights.dtype == torch.float32
    x = torch.linspace(-9.0, 0.0, 90_001).double()
    logs = x - 0.5 * x.square()
    mean = float(logs.softmax(0) @ x)
    assert float(draws.weights @ draws.elements[:, 0]) == pytest.approx(mean, abs=0.02)  # one dtype
    evidence = float(logs.logsumexp(0) - (-0.5 * x.square()).logsumexp(0))
    assert draws.log_evidence == pytest.approx(evidence, abs=0.02)
    with pytest.raises(NonFiniteError, match="prior: expected finite elements, got 5 draws"):
        draw_posterior(Drawing(lambda n: torch.full((n, 1), math.nan)), energy, 5)


def test_a_search_takes_a_prior_that_loses_draws() -> None:
    """They say where to look, and no more: evidence of a normal prior and likelihood in closed form."""
    group = Translation(1)
    normal = NormalDistribution(group, torch.zeros(1).double(), torch.zeros(1).double(), torch.eye(1).double())

    class Losing:
        log_prob = normal.log_prob

        def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
            drawn = normal.sample(num_samples, generator)
            return torch.where(torch.arange(num_samples).unsqueeze(-1) % 10 == 0, math.nan, drawn)

    sampler = PosteriorSampler(
        LeftTranslation(group), lambda y: 0.5 * (y[..., 0] + 1.0).square(), prior=Losing(), num_samples=100, budget=1000
    )
    sample = sampler(group.identity(1, dtype=torch.float64), generator=seeded(0))
    assert float(sample.log_evidence) == pytest.approx(-0.25 - 0.5 * math.log(2.0), abs=0.05)


class Drawing:
    """A prior that returns what a function says."""

    def __init__(self, draw: Callable[[int], Any]) -> None:
        self.draw = draw

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Any:
        return self.draw(num_samples)


def test_refused_priors() -> None:
    for draw, error in (
        (lambda n: torch.zeros(n + 1, 2), ShapeError),
        (lambda n: torch.zeros(n), ShapeError),
        (lambda n: torch.zeros(()), ShapeError),
        (lambda n: None, ConfigurationError),
    ):
        with pytest.raises(error, match=r"prior\.sample"):
            draw_posterior(Drawing(draw), lambda g: g[:, 0], 4)
    named = Drawing(lambda n: torch.zeros(n, 3))
    named.group = Torus(2)  # type: ignore[attr-defined]
    with pytest.raises(ShapeError, match=re.escape("prior.sample: expected elements [4, 2], got [4, 3]")):
        draw_posterior(named, lambda g: g[:, 0], 4)
    with pytest.raises(
        ConfigurationError, match=r"prior.sample: expected a function of \(num_samples, generator=...\)"
    ):
        draw_posterior(torch.distributions.Normal(0.0, 1.0), lambda g: g[:, 0], 4)


def test_distributions_of_torch_are_priors() -> None:
    """A matrix Fisher distribution times the likelihood of another one is the one of the sum of their parameters."""
    one, two = (torch.diag(torch.tensor(x).double()) for x in ([3.0, 1.0, 0.0], [0.0, 2.0, 1.0]))
    prior = MatrixFisher(one)
    draws = draw_posterior(prior, lambda g: -(two * g).sum((-2, -1)), 20_000, generator=seeded(0))
    evidence = MatrixFisher(one + two).log_normaliser() - prior.log_normaliser()
    assert draws.log_evidence == pytest.approx(float(evidence), abs=0.03)
    assert prior.sample(5, seeded(1)).shape == (5, 3, 3)
    assert torch.equal(prior.sample(5, seeded(1)), prior.sample((5,), seeded(1)))
    action = LeftTranslation(SO(3))
    energy = lambda y: -(two * SO(3).inverse(y)).sum((-2, -1))  # noqa: E731
    sampler = PosteriorSampler(action, energy, prior=prior, num_samples=100, budget=1000)
    sample = sampler(SO(3).identity(1, dtype=torch.float64), generator=seeded(0))
    assert float(sample.log_evidence) == pytest.approx(float(evidence), abs=0.1)
    with pytest.raises(ConfigurationError, match="sample_shape: expected an integer"):
        prior.sample(2.5)  # type: ignore[arg-type]


def test_absent_particles_are_no_prior_of_a_search() -> None:
    """Their elements have no density; weighted draws take them, and a distribution of all particles is a prior."""
    group = SO(2) ** 2
    angles = SO(2).exp(0.4 * torch.randn(200, 2, 1, generator=seeded(0))).flatten(1)
    mask = torch.tensor([[1, 1], [1, 0]]).bool().repeat(100, 1)
    own = GroupDiffusion(group, "flow", width=8, depth=1)
    own.fit((angles, None, mask), steps=2, batch_size=32, progress=False)
    part = own.distribution(mask=mask[1])
    with pytest.raises(ConfigurationError, match="prior: expected a distribution of all particles"):
        ImportanceSampling(prior=part)
    assert len(draw_posterior(part, lambda g: g[:, 0], 7, generator=seeded(1)).weights) == 7
    for whole in (own.distribution(), own.distribution(mask=mask[0])):
        assert ImportanceSampling(prior=whole).prior is whole
    assert ImportanceSampling(prior=own).prior.has_all_particles


def test_one_condition_of_a_distribution(model: GroupDiffusion) -> None:
    """A batch of conditions is refused at once, also of one."""
    with pytest.raises(ShapeError, match="condition: expected one for all elements"):
        model.distribution(condition=torch.tensor([1]))


def test_refused() -> None:
    prior = NormalDistribution(Translation(1), torch.zeros(1), torch.zeros(1), torch.eye(1))
    for bad, error in (
        (lambda g: g, ShapeError),
        (lambda g: g[:, 0] * math.nan, NonFiniteError),
        (lambda g: -math.inf + 0.0 * g[:, 0], NonFiniteError),
        (lambda g: math.inf + 0.0 * g[:, 0], DomainError),
        (lambda: 0.0, ConfigurationError),
        (lambda g: 3.0, ConfigurationError),
    ):
        with pytest.raises(error, match="energy"):
            draw_posterior(prior, bad, 10)
    with pytest.raises(ConfigurationError, match="num_samples"):
        draw_posterior(prior, lambda g: g[:, 0], 0)
    for bad_prior in (3, NormalDistribution):
        with pytest.raises(ConfigurationError, match="prior"):
            draw_posterior(bad_prior, lambda g: g[:, 0], 10)
    with pytest.raises(ConfigurationError, match="fitted"):
        GroupDiffusion(Translation(1)).distribution()


def test_verdict_of_draws_on_the_sick_and_the_healthy() -> None:
    """Rounded energies, one draw that weighs all, and tails are named; an ordinary posterior is trusted."""
    zero = torch.zeros(1, dtype=torch.float64)
    prior, seeds = NormalDistribution(Translation(1), zero, zero, torch.eye(1).double()), range(8)

    def drawn(energy: Callable[[Tensor], Tensor], seed: int, number: int = 4000):
        return draw_posterior(prior, energy, number, generator=seeded(seed)).verdict

    for seed in seeds:
        assert drawn(lambda g: 0.5 * (g[:, 0] - 1.0).square(), seed).trusted
        rounded = drawn(lambda g: (0.5 * (g[:, 0] - 1.0).square() + 1e7).float(), seed)
        assert "rounded" in rounded.reasons[0]
        assert "effective sample size" in drawn(lambda g: 1e6 * (g[:, 0] - 1.0).square(), seed).reasons[0]
    # weights exp(g^2 / 2) have no mean under the prior
    tails = [drawn(lambda g: -0.49 * g[:, 0].square(), seed).trusted for seed in seeds]
    assert sum(tails) <= 1
