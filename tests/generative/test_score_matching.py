"""Learned scores: the denoising identity on every kind of group, both losses, a small generative model."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, maximum_mean_discrepancy, randn, seeded
from trivgeo.errors import DomainError, ShapeError
from trivgeo.generative.score_matching import ScoreNetwork, denoising_loss, implicit_loss
from trivgeo.groups import SE, SO, Affine, LieGroup, Translation
from trivgeo.sde import GeometricSchedule, reverse_diffusion
from trivgeo.sde.noise import NoiseSample, noise_with_target
from trivgeo.sde.scores import trivialized_grad_and_value

SCHEDULE = GeometricSchedule(0.2, 1.0)


def noised(group: LieGroup, clean: Tensor, t: float, *, steps: int, seed: int) -> NoiseSample:
    """Noise up to t for each of the clean elements."""
    variance = clean.new_full(group.batch_shape(clean), SCHEDULE.variance(0.0, t))
    return noise_with_target(group, variance, steps=steps, generator=seeded(seed))


class TestTarget:
    def test_vector_groups(self) -> None:
        clean = randn(5, 3)
        noise = noised(Translation(3), clean, 0.7, steps=4, seed=0)
        assert_relative(noise.target, -noise.elements / SCHEDULE.variance(0.0, 0.7), 1e-12)

    @pytest.mark.parametrize("group", [SO(3), affine_line(), SE(2), Affine(2, scale=0.5)], ids=repr)
    def test_integration_by_parts(self, group: LieGroup) -> None:
        """E[f T] = E[a f - grad f], which holds for the score and singles out its conditional mean."""
        number = 15_000 if group.dim <= 3 else 5_000
        clean = group.random(1, std=0.4, generator=seeded(0), dtype=torch.float64).expand(number, *group.element_shape)
        noise = noised(group, clean, 0.8, steps=3, seed=1)
        g, target = group.compose(clean, noise.elements), noise.target
        a = group.algebra.trace_ad_like(g)
        flat = randn(2, math.prod(group.element_shape), seed=5)
        for weights in flat:
            f = lambda x, w=weights: (x.flatten(-len(group.element_shape)) @ w).sin()  # noqa: E731
            slope, value = trivialized_grad_and_value(group, f, g)
            terms = value.unsqueeze(-1) * (target - a) + slope
            z = terms.mean(0) / (terms.std(0) / math.sqrt(number))
            assert float(z.abs().max()) < 4.5, z

    def test_time_zero(self) -> None:
        with pytest.raises(DomainError, match="above zero"):
            denoising_loss(lambda g, t: g[..., 0], SO(3), SCHEDULE, SO(3).identity(2), t=0.0)


class TestLosses:
    """On Aff(1), among the affine functions of the log-scale: both losses find the score of its normal law."""

    MEAN, STD = 0.4, 0.5

    def fit(self, loss: Callable[[Callable[[Tensor, float], Tensor]], Tensor]) -> Tensor:
        """Both losses are quadratic in the coefficients: one Newton step."""

        def value(c: Tensor) -> Tensor:
            score = lambda g, t: torch.stack([c[0] + c[1] * g[..., 0], torch.zeros_like(g[..., 0])], -1)  # noqa: E731
            return loss(score)

        zero = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(value(zero), zero, create_graph=True)
        hessian = torch.stack([torch.autograd.grad(x, zero, retain_graph=True)[0] for x in gradient])
        return torch.linalg.solve(hessian, -gradient.detach())

    @pytest.mark.parametrize("kind", ["denoising", "implicit"])
    def test_affine_line(self, kind: str) -> None:
        group, t, number = affine_line(), 0.6, 40_000
        clean = torch.stack([self.MEAN + self.STD * randn(number, seed=1), randn(number, seed=2)], -1)
        total = self.STD**2 + SCHEDULE.variance(0.0, t)
        # log p for left Haar measure gains a
        exact = torch.tensor([1 + self.MEAN / total, -1 / total]).double()
        if kind == "denoising":
            found = self.fit(
                lambda score: denoising_loss(score, group, SCHEDULE, clean, t=t, steps=5, generator=seeded(3))
            )
        else:
            g = group.compose(clean, noised(group, clean, t, steps=5, seed=3).elements)
            found = self.fit(lambda score: implicit_loss(score, group, g, t))
        assert_relative(found, exact, 0.06, event=1)


class TestGenerative:
    """A synthetic law on SO(3) (three modes of unequal weight; no data set of rotations ships with the library)."""

    @staticmethod
    def draw(number: int, seed: int) -> Tensor:
        group, generator = SO(3), seeded(seed)
        centres = group.exp(torch.tensor([[0.0, 0, 0], [2.0, 0, 0], [0, 0, 2.5]]))
        mode = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), number, replacement=True, generator=generator)
        return group.retract(centres[mode], 0.2 * torch.randn(number, 3, generator=generator))

    @pytest.mark.parametrize(
        ("iterations", "bar"), [(100, 0.1), pytest.param(3000, 0.006, marks=pytest.mark.slow)], ids=["fast", "slow"]
    )
    def test_three_modes(self, iterations: int, bar: float) -> None:
        group, schedule = SO(3), GeometricSchedule(0.15, 2.2)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = ScoreNetwork(group, schedule, width=64, depth=3)
        optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
        rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations)
        data, generator = self.draw(4000, 1), seeded(2)
        for _ in range(iterations):
            rows = torch.randint(len(data), (2, 192), generator=generator)
            times = torch.rand(2, generator=generator).clamp(min=0.01).tolist()
            losses = [
                denoising_loss(network, group, schedule, data[r], t=t, steps=4, generator=generator)
                for r, t in zip(rows, times, strict=True)
            ]
            optimiser.zero_grad()
            torch.stack(losses).mean().backward()
            optimiser.step()
            rate.step()
        start = group.random_haar(1500, generator=generator)
        with torch.no_grad():
            g = reverse_diffusion(group, schedule, network, initial=start, steps=40, generator=generator)
        reference = self.draw(1500, 3).flatten(1)
        distance = maximum_mean_discrepancy(g.flatten(1), reference, bandwidth=1.0)
        untrained = maximum_mean_discrepancy(start.flatten(1), reference, bandwidth=1.0)
        assert distance < bar
        assert distance < untrained / 2.5, (distance, untrained)

    def test_network(self) -> None:
        network = ScoreNetwork(SE(2), SCHEDULE, width=8, depth=1)
        g = SE(2).random(2, 3, generator=seeded(0))
        assert network(g, 0.3).shape == (2, 3, 3)
        assert not torch.equal(network(g, 0.3), network(g, 0.6))
        with pytest.raises(ShapeError):
            network(torch.zeros(2, 2, 2), 0.3)
