"""Weighted samples: effective sample sizes and tempering in closed form, counts and weights right on average."""

from __future__ import annotations

import math

import pytest
import torch

from tests.helpers import assert_relative, randn, seeded
from trivgeo.errors import ConfigurationError
from trivgeo.sde import effective_sample_size
from trivgeo.sde.resampling import (
    next_inverse_temperature,
    normalized_log_weights,
    normalized_weights,
    resample,
    systematic_indices,
    take_rows,
    thinned_indices,
)

WEIGHTS = torch.tensor([0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.03, 0.02, 0.0], dtype=torch.float64)
NOTHING = torch.full((3, 5), -torch.inf)


def test_effective_sample_size() -> None:
    weights = torch.tensor([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 0]])
    expected = torch.tensor([4.0, 1.0, 2.0, 0.0])
    for unit in (1.0, 1e-25, 1e25):  # whose squares are zero and infinite
        assert_relative(effective_sample_size(unit * weights), expected, 1e-6)
    assert effective_sample_size(torch.zeros(2, 0)).tolist() == [0.0, 0.0]
    assert effective_sample_size(torch.tensor([[1.0, math.inf], [1.0, math.nan]])).isnan().all()


def test_normalized_weights() -> None:
    logs = torch.stack([(7.0 * WEIGHTS).log(), torch.full((9,), -torch.inf, dtype=torch.float64)])
    assert_relative(normalized_weights(logs), torch.stack([WEIGHTS, torch.zeros_like(WEIGHTS)]), 1e-14)
    assert_relative(normalized_log_weights(logs).exp(), torch.stack([WEIGHTS, torch.full_like(WEIGHTS, 1 / 9)]), 1e-14)


class TestSystematic:
    def test_counts(self) -> None:
        """K times the weight, rounded up or down, and right in the mean; never a chain of weight zero."""
        weights = torch.tensor([[0.0, 0.5, 0.13, 0.37, 0.0], [0.2, 0.2, 0.2, 0.2, 0.2]], dtype=torch.float64)
        generator, total = seeded(0), torch.zeros(2, 5)
        for _ in range(2000):
            index = systematic_indices(weights.log(), generator)
            counts = torch.stack([(index == i).sum(-1) for i in range(5)], -1)
            assert bool(((counts - 5 * weights).abs() < 1.0).all())
            total += counts
        assert_relative((total / 2000).double(), 5 * weights, 0.05)
        assert systematic_indices(weights[1].log(), generator).tolist() == [0, 1, 2, 3, 4]

    def test_extremes(self) -> None:
        one = torch.full((3, 100), -torch.inf)
        one[:, 42] = -1e4
        assert bool((systematic_indices(one, seeded(0)) == 42).all())

    def test_rows_without_weight_count_as_uniform(self) -> None:
        assert systematic_indices(NOTHING, seeded(0)).tolist() == [[0, 1, 2, 3, 4]] * 3

    def test_number(self) -> None:
        assert systematic_indices(torch.zeros(2, 3), seeded(0), 6).tolist() == [[0, 0, 1, 1, 2, 2]] * 2


class TestResample:
    REPEATS = 20_000

    def mean_weights(self, index: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """Total weight that each index gets, on average over the rows."""
        total = torch.zeros(len(index), len(WEIGHTS), dtype=torch.float64)
        return total.scatter_add(1, index, kept.double()).mean(0)

    @pytest.mark.parametrize("power", [1.0, 0.5])
    def test_right_on_average(self, power: float) -> None:
        """Weights to the power q choose; each sample then stands for w^(1 - q) times the sum of w^q over k."""
        logs = WEIGHTS.log().expand(self.REPEATS, -1)
        index, left = resample(logs, 4, seeded(0), power=power)
        kept = left.exp() * (WEIGHTS**power).sum() / 4
        torch.testing.assert_close(self.mean_weights(index, kept), WEIGHTS, atol=0.005, rtol=0.0)

    def test_rows_without_weight(self) -> None:
        index, left = resample(NOTHING, 5, seeded(0), power=0.5)
        assert index.tolist() == [[0, 1, 2, 3, 4]] * 3
        assert bool((left == 0).all())

    def test_thinned(self) -> None:
        """Each once, right on average, a large weight as it is, and no weight less than the bound of the others."""
        logs, labels = WEIGHTS.log().expand(self.REPEATS, -1), torch.arange(9).remainder(3).expand(self.REPEATS, -1)
        for strata in (None, labels):
            index, kept = thinned_indices(logs, 5, seeded(0), labels=strata)
            assert (index.sort(-1).values.diff(dim=-1) > 0).all()
            torch.testing.assert_close(self.mean_weights(index, kept), WEIGHTS, atol=0.005, rtol=0.0)
            assert (kept[index == 0] - 0.4).abs().max() < 1e-9
            # with the two largest kept, the other three stand for 0.4 in all
            assert_relative(kept[index > 1], torch.full_like(kept[index > 1], 0.4 / 3), 1e-9)

    def test_strata_keep_their_shares(self) -> None:
        """Six equal weights in two strata, of which one has two thirds."""
        labels = torch.tensor([1, 0, 0, 1, 0, 0]).expand(100, -1)
        index, _ = thinned_indices(torch.zeros(100, 6), 3, seeded(0), labels=labels)
        assert (labels.gather(1, index).sum(-1) == 1).all()

    def test_take_rows(self) -> None:
        x, index = randn(2, 3, 4, 5, 6), torch.randint(4, (2, 3, 7), generator=seeded(0))
        taken = take_rows(x, index)
        for i in range(2):
            for j in range(3):
                assert torch.equal(taken[i, j], x[i, j, index[i, j]])

    def test_number(self) -> None:
        for draw in (resample, thinned_indices):
            with pytest.raises(ConfigurationError, match="num_samples"):
                draw(torch.zeros(2, 3), 0)


class TestTempering:
    def test_two_samples(self) -> None:
        """Weights 1 and r = e^(-b x) have the size S where (1 - S) (1 + r^2) + 2 r = 0."""
        x, start, size = torch.tensor([30.0, 300.0]).double(), torch.tensor([0.0, 0.01]).double(), 1.25
        ratios = torch.stack([torch.zeros_like(x), -x], -1)
        r = (1.0 - math.sqrt(1.0 - (size - 1.0) ** 2)) / (size - 1.0)
        beta, weights = next_inverse_temperature(ratios, torch.zeros_like(ratios), start, size)
        assert_relative(beta, start - math.log(r) / x, 1e-6)
        assert_relative(normalized_weights(weights)[:, 1], torch.full_like(x, r / (1 + r)), 1e-6)

    def test_normal_ratios(self) -> None:
        """Of log-ratios N(0, s^2) the share e^(-b^2 s^2) stays."""
        ratios = 3.0 * randn(1, 1_000_000)
        beta, _ = next_inverse_temperature(ratios, torch.zeros_like(ratios), torch.zeros(1).double(), 500_000.0)
        assert float(beta) == pytest.approx(math.sqrt(math.log(2.0)) / 3.0, rel=0.01)

    def test_ends(self) -> None:
        """The last step is whole; few effective samples lose three tenths; the lost and the dead do no harm."""
        ratios, zero = 0.01 * randn(1, 50), torch.zeros(1, 50).double()
        beta, _ = next_inverse_temperature(ratios, zero, zero[:, 0], 20.0)
        assert float(beta) == 1.0
        wide = 100.0 * randn(1, 50)
        wide[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
        beta, weights = next_inverse_temperature(wide, zero, zero[:, 0], 1000.0)
        assert 0.0 < float(beta) < 1.0
        assert float(effective_sample_size(normalized_weights(weights))) == pytest.approx(0.7 * 47, rel=1e-4)
        assert bool((weights[0, :3] == -math.inf).all())
        dead = torch.full((1, 50), -torch.inf, dtype=torch.float64)
        beta, weights = next_inverse_temperature(dead, zero, zero[:, 0], 20.0)
        assert float(beta) == 1.0
        assert torch.equal(weights, dead)
