"""Noise of a level of its own in every row with its target, and reverse steps that reach far."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.helpers import affine_line, assert_relative, rand, randn, seeded
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SE, SL, SO, SU, Affine, LieGroup, Torus, Translation
from trivgeo.sde import GeometricSchedule, TrivializedSDE, heat_kernel, probability_flow, solve, uniform_grid
from trivgeo.sde.noise import noise_with_target
from trivgeo.sde.processes import reverse_process
from trivgeo.sde.scores import trivialized_grad_and_value as grad_and_value
from trivgeo.sde.solvers import AncestralStep, DenoisingStep, FlowStep, RefiningStep, RenoisingStep

SCHEDULE = GeometricSchedule(0.2, 1.5)
STEPS = [AncestralStep(), FlowStep(), RenoisingStep(), RefiningStep()]
SAMPLERS = STEPS[:3]


def assert_parts(group: LieGroup, number: int, order: int = 1) -> None:
    """E[f T] = E[a f - grad f], which singles out the conditional mean; here with levels that differ."""
    variance = rand(number, low=0.1, high=0.5)
    sample = noise_with_target(group, variance, steps=3, order=order, generator=seeded(1))
    a = group.algebra.trace_ad_like(sample.elements)
    weights = randn(math.prod(group.element_shape), seed=5)
    slope, value = grad_and_value(
        group, lambda x: (x.flatten(-len(group.element_shape)) @ weights).sin(), sample.elements
    )
    terms = value.unsqueeze(-1) * (sample.target - a) + slope
    z = terms.mean(0) / (terms.std(0) / math.sqrt(number))
    assert float(z.abs().max()) < 4.5, z


class TestNoise:
    def test_vector_groups(self) -> None:
        variance = rand(3, 5, low=0.1, high=2.0)
        sample = noise_with_target(Translation(2), variance, generator=seeded(0))
        assert_relative(sample.target, -sample.elements / variance.unsqueeze(-1), 1e-12)

    @pytest.mark.parametrize("group", [SU(3), SO(4)], ids=repr)
    def test_order_two(self, group: SO | SU) -> None:
        r"""Brownian motion on matrices has :math:`E\,w = \exp(\tfrac12 \sigma^2 \sum e_i^2)`, a multiple of I here."""
        variance = torch.full((20_000,), 0.5, dtype=torch.float64)
        rate = 16.0 / 3.0 if isinstance(group, SU) else 3.0
        errors = []
        for order in (1, 2):
            w = noise_with_target(group, variance, steps=2, order=order, generator=seeded(0)).elements
            errors.append(
                float(w.diagonal(dim1=1, dim2=2).reshape(len(w), -1, group.size)[:, 0].mean()) - math.exp(-0.25 * rate)
            )
        assert abs(errors[1]) < 0.006 < 0.5 * abs(errors[0]), errors

    @pytest.mark.parametrize("group", [SU(3), SL(2), Affine(1)], ids=repr)
    def test_target_of_order_two(self, group: LieGroup) -> None:
        assert_parts(group, 8000, order=2)

    def test_every_row_has_its_level(self) -> None:
        variance = torch.tensor([0.01, 4.0], dtype=torch.float64).repeat(4000, 1)
        sample = noise_with_target(Translation(1), variance, steps=3, generator=seeded(0))
        assert_relative(sample.elements.squeeze(-1).var(0), variance[0], 0.1, floor=0.0)

    @pytest.mark.parametrize(
        "group",
        [
            pytest.param(SO(3), marks=pytest.mark.slow(reason="the other groups stay")),
            affine_line(),
            SE(2),
            Affine(2, scale=0.5),
        ],
        ids=repr,
    )
    def test_integration_by_parts(self, group: LieGroup) -> None:
        assert_parts(group, 30_000 if group.dim <= 3 else 2_500)

    @pytest.mark.parametrize("group", [SO(3), SE(2), SU(3), Affine(2, scale=0.5), Translation(2)], ids=repr)
    @pytest.mark.parametrize("order", [1, 2])
    def test_half_precision(self, group: LieGroup, order: int) -> None:
        for dtype in (torch.float16, torch.bfloat16):
            sample = noise_with_target(group, torch.full((9,), 0.25, dtype=dtype), order=order, generator=seeded(0))
            assert all(part.dtype == dtype and bool(part.isfinite().all()) for part in sample)

    @pytest.mark.parametrize("group", [Torus(2, scale=[0.6, 1.5]), Translation(2)], ids=repr)
    def test_half_precision_of_known_kernels(self, group: LieGroup) -> None:
        """The score of the element that came, but for the rounding of the result."""
        kernel = heat_kernel(group)
        assert kernel is not None
        for dtype in (torch.float16, torch.bfloat16):
            variance = rand(2000, low=0.05, high=6.0).to(dtype)
            sample = noise_with_target(group, variance, generator=seeded(0))
            expected = kernel.score(sample.elements.double(), variance.double())
            assert_relative(sample.target.double(), expected, torch.finfo(dtype).eps, floor=0.01)

    def test_modular_function(self) -> None:
        group = Affine(2, scale=0.5)
        sample = noise_with_target(group, torch.full((9,), 0.5, dtype=torch.float64), generator=seeded(0))
        assert_relative(sample.log_modular, group.log_modular(sample.elements), 1e-10)


def point_score(clean: Tensor) -> object:
    """The score of noise around one element of a vector space."""
    return lambda g, t: (clean - g) / SCHEDULE.variance(0.0, t)


class TestSteps:
    @pytest.mark.parametrize("step", STEPS, ids=lambda s: type(s).__name__)
    def test_a_point_is_found_in_one_step(self, step: DenoisingStep) -> None:
        clean = randn(4, 3)
        process = reverse_process(Translation(3), SCHEDULE, point_score(clean))
        g = solve(process, 5.0 * randn(4, 3, seed=1), [1.0, 0.0], stepper=step).final
        assert_relative(g, clean, 1e-12)

    @pytest.mark.parametrize("step", SAMPLERS, ids=lambda s: type(s).__name__)
    def test_noise_of_a_point_is_exact_at_every_level(self, step: DenoisingStep) -> None:
        """From k_1 in one step to k_t, whatever t: mean and variance."""
        number, t = 40_000, 0.4
        clean = torch.full((number, 1), 0.7, dtype=torch.float64)
        start = clean + math.sqrt(SCHEDULE.variance(0.0, 1.0)) * randn(number, 1)
        score = point_score(clean)
        sde = TrivializedSDE(Translation(1), SCHEDULE, score_drift=lambda g, t: -score(g, t))
        g = solve(sde, start, [1.0, t], stepper=step, generator=seeded(1)).final
        assert_relative(g.mean(), clean[0, 0], 0.02)
        assert_relative(g.var(), torch.tensor(SCHEDULE.variance(0.0, t)).double(), 0.03, floor=0.0)

    @pytest.mark.parametrize("step", [AncestralStep(), FlowStep()], ids=lambda s: type(s).__name__)
    def test_a_normal_law_on_a_non_unimodular_group(self, step: DenoisingStep) -> None:
        """Aff(1): the log-scale is normal at every time, and only the drift's -a gives its mean."""
        group, number, mean, std = affine_line(), 20_000, 0.4, 0.3

        def score(g: Tensor, t: float) -> Tensor:
            total = std**2 + SCHEDULE.variance(0.0, t)
            # the density of left Haar measure e^-a da db
            return torch.stack([1 - (g[..., 0] - mean) / total, torch.zeros_like(g[..., 0])], -1)

        wide = math.sqrt(std**2 + SCHEDULE.variance(0.0, 1.0))
        start = torch.stack([mean + wide * randn(number), torch.zeros(number).double()], -1)
        process = reverse_process(group, SCHEDULE, score)
        g = solve(process, start, uniform_grid(80, 1.0, 0.0), stepper=step, generator=seeded(2)).final
        assert_relative(g[..., 0].mean(), torch.tensor(mean).double(), 0.02)
        assert_relative(g[..., 0].std(), torch.tensor(std).double(), 0.05, floor=0.0)

    def test_the_flow_has_order_one(self) -> None:
        """Towards the exact flow of a normal law: half the step, half the error."""
        std, start = 0.5, randn(6, 1)
        score = lambda g, t: -g / (std**2 + SCHEDULE.variance(0.0, t))  # noqa: E731
        exact = start * std / math.sqrt(std**2 + SCHEDULE.variance(0.0, 1.0))
        errors = []
        for steps in (20, 40, 80):
            process = reverse_process(Translation(1), SCHEDULE, score)
            g = solve(process, start, uniform_grid(steps, 1.0, 0.0), stepper=FlowStep(), generator=seeded(0)).final
            errors.append(float((g - exact).abs().max()))
        slopes = [math.log2(a / b) for a, b in pairwise(errors)]
        assert all(0.85 < slope < 1.2 for slope in slopes), (errors, slopes)

    def test_what_is_no_reverse_diffusion(self) -> None:
        group = Translation(1)
        flow = probability_flow(group, SCHEDULE, point_score(randn(1)))
        forward = TrivializedSDE(group, SCHEDULE, score_drift=lambda g, t: g)
        for sde, times in ((flow, [1.0, 0.5]), (forward, [0.5, 1.0]), (TrivializedSDE(group, SCHEDULE), [1.0, 0.5])):
            with pytest.raises(ConfigurationError, match="reverse diffusion"):
                solve(sde, randn(2, 1), times, stepper=FlowStep())
