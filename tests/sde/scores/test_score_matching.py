"""Score matching: the denoising identity on every kind of group, and both losses from the pieces of the library."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, randn, seeded
from trivgeo.groups import SE, SO, Affine, LieGroup, Translation
from trivgeo.sde import GeometricSchedule
from trivgeo.sde.likelihood import ExactDivergence
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


class TestLosses:
    """On Aff(1), among the affine functions of the log-scale: both losses find the score of its normal distribution."""

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
        noise = noised(group, clean, t, steps=5, seed=3)
        g = group.compose(clean, noise.elements)
        if kind == "denoising":
            found = self.fit(lambda score: (score(g, t) - noise.target).square().sum(-1).mean())
        else:

            def implicit(score: Callable[[Tensor, float], Tensor]) -> Tensor:  # Hyvarinen 2005
                value, divergence = ExactDivergence()(group, lambda x: score(x, t), g)
                return (value.square().sum(-1) + 2.0 * divergence).mean()

            found = self.fit(implicit)
        assert_relative(found, exact, 0.06, event=1)
