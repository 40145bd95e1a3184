"""Noise by datum: the same in every batch, as good as that of torch, and independent between data and draws."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch
from scipy import stats
from torch import Tensor

from trivgeo import _random
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SE, SO, Affine
from trivgeo.sde import EnergyScore, GeometricSchedule, NoiseKernel, NoiseStreams, TrivializedSDE, solve, uniform_grid
from trivgeo.sde.processes import reverse_process

LIKE = torch.empty(0, dtype=torch.float64)


def of(index: Tensor, seed: int = 3) -> list[Tensor]:
    """Every kind of draw, one after another, from the streams of these data."""
    streams, b = NoiseStreams(index, seed), len(index)
    weights = torch.tensor([[0.2, 0.0, 0.5, 0.3]], dtype=torch.float64).expand(b, -1)
    order = _random.permutation((b, 3, 2), LIKE, streams)
    return [
        _random.normal((b, 5), LIKE, streams),
        _random.uniform((b, 2, 3), LIKE, streams),
        _random.integers(7, (b, 4), LIKE, streams),
        order - 6 * torch.arange(b).reshape(-1, 1, 1),
        _random.choice(weights, 6, streams),
        _random.normal((b,), LIKE, streams.fork()),
        _random.normal((b, 1), LIKE, streams.at(4)),
        _random.normal((b, 2), LIKE, streams),
    ]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_the_noise_of_a_datum_does_not_depend_on_its_batch(size: int) -> None:
    whole = of(torch.arange(64))
    shuffled = torch.randperm(64, generator=torch.Generator().manual_seed(size))
    shards = [shuffled[::2], shuffled[1::2]]
    for index in itertools.chain(*(shard.split(size) for shard in shards)):
        assert all(torch.equal(a[index], b) for a, b in zip(whole, of(index), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(whole, of(torch.arange(64), 4), strict=True))


def test_numbers_of_any_integer_type() -> None:
    index = torch.arange(2**20, 2**20 + 64)
    assert all(torch.equal(a, b) for a, b in zip(of(index), of(index.int()), strict=True))


def test_copies_go_on_alike() -> None:
    streams = NoiseStreams(torch.tensor([5, 2]), 8)
    _random.normal((2, 3), LIKE, streams)
    copy = pickle.loads(pickle.dumps(streams))
    for source in (copy, pickle.loads(pickle.dumps(streams.fork()))):
        assert len(source) == 2
    first, second = (_random.normal((2, 4), LIKE, source) for source in (streams.at(1), copy.at(1)))
    assert torch.equal(first, second)
    assert copy.initial_seed() == streams.initial_seed()
    ours, theirs = (torch.randn(3, generator=source) for source in (streams.at(1), copy.at(1)))
    assert torch.equal(ours, theirs)


def test_both_dtypes_see_the_same_noise() -> None:
    index = torch.arange(50)
    double = _random.normal((50, 40), LIKE, NoiseStreams(index, 1))
    single = _random.normal((50, 40), LIKE.float(), NoiseStreams(index, 1))
    assert single.dtype == torch.float32
    assert torch.equal(double.float(), single)
    uniform = _random.uniform((50, 20_000), LIKE.float(), NoiseStreams(index, 1))
    assert 0.0 <= float(uniform.min()) < 1e-5 < 1.0 - 1e-5 < float(uniform.max()) < 1.0


def p_of_normal(x: Tensor) -> float:
    return float(stats.kstest(x.flatten().numpy(), "norm").pvalue)


class TestQuality:
    """Each p-value is one of a fixed seed, and would be as likely to lie anywhere in [0, 1]."""

    z = _random.normal((200, 2000), LIKE, NoiseStreams(torch.arange(200), 11))

    def test_normal(self) -> None:
        assert p_of_normal(self.z) > 1e-3
        # of each datum over its draws, and of each draw over the data: the p-values are uniform
        for rows in (self.z[:60], self.z[:, :60].mT):
            p = [p_of_normal(row) for row in rows]
            assert stats.kstest(p, "uniform").pvalue > 1e-3
        tails = [float((self.z.abs() > c).double().mean()) / (2 * stats.norm.sf(c)) for c in (2.0, 3.0, 4.0)]
        assert tails == pytest.approx([1.0, 1.0, 1.0], rel=0.5), tails

    def test_independent(self) -> None:
        z, n = self.z, self.z.numel()
        for a, b in [(z[:, :-1], z[:, 1:]), (z[:-1], z[1:]), (z[:-1, 1:], z[1:, :-1]), (z[:, ::2], z[:, 1::2])]:
            for f in (lambda x: x, torch.abs, torch.sign):
                u, v = f(a) - f(a).mean(), f(b) - f(b).mean()
                correlation = float((u * v).mean() / (u.std() * v.std()))
                assert abs(correlation) < 4.5 / (0.5 * n) ** 0.5, correlation
        # all pairs of data: as the largest eigenvalue of a matrix of independent numbers
        largest = float(torch.linalg.matrix_norm(z, 2))
        assert largest == pytest.approx(200**0.5 + 2000**0.5, rel=0.02)

    def test_seeds_and_branches_differ(self) -> None:
        streams = NoiseStreams(torch.arange(20), 11)
        sources = [NoiseStreams(torch.arange(20), 12), streams.at(0), streams.at(1), streams.fork(), streams.fork()]
        drawn = [_random.normal((20, 1000), LIKE, source) for source in (streams, *sources)]
        drawn.append(_random.normal((20, 1000), LIKE, streams.common()))
        drawn.append(_random.normal((20, 1000), LIKE, streams.common()))
        for a, b in itertools.combinations(drawn, 2):
            assert abs(float((a * b).mean())) < 4.5 / 20_000**0.5
        assert len(torch.cat(drawn).unique()) == 8 * 20_000

    def test_discrete(self) -> None:
        streams = NoiseStreams(torch.arange(100), 5)
        drawn = _random.integers(6, (100, 600), LIKE, streams).flatten()
        assert stats.chisquare(drawn.bincount(minlength=6).numpy()).pvalue > 1e-3
        weights = torch.tensor([[0.5, 0.0, 0.2, 0.3, 0.0]], dtype=torch.float64)
        counts = _random.choice(weights.expand(100, -1), 600, streams).flatten().bincount(minlength=5)
        assert counts[[1, 4]].tolist() == [0, 0]
        expected = 60_000 * weights[0, [0, 2, 3]].numpy()
        assert stats.chisquare(counts[[0, 2, 3]].numpy(), expected).pvalue > 1e-3
        order = _random.permutation((10_000, 3), LIKE, NoiseStreams(torch.arange(10_000), 6)).remainder(3)
        assert torch.equal(order.sort(-1).values, torch.arange(3).expand(10_000, -1))
        kinds = (order @ torch.tensor([9, 3, 1])).unique(return_counts=True)[1]
        assert len(kinds) == 6
        assert stats.chisquare(kinds.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("options", [{}, {"antithetic": True}, {"replay": True}, {"pool": 20}, {"shared_noise": True}])
def test_a_solve_by_datum(options: dict[str, object]) -> None:
    """Noise paths, their dealing, and what all data share."""
    group = Affine(1, scale=0.3)
    kernel = NoiseKernel(group, GeometricSchedule(0.1, 0.8), 6)
    start = group.exp(_random.normal((5, 4, group.dim), LIKE, NoiseStreams(torch.arange(5), 0)))
    score = EnergyScore(lambda g: group.log(g).square().sum(-1), kernel, 4, **options)  # type: ignore[arg-type]
    process = reverse_process(group, kernel.schedule, score)

    def final(index: Tensor) -> Tensor:
        streams = NoiseStreams(index, 9)
        return solve(process, start[index], uniform_grid(6, 1.0, 0.0), generator=streams).final

    whole = final(torch.arange(5))
    assert bool(torch.isfinite(whole).all())
    for index in torch.tensor([3, 0, 4, 2, 1]).split([2, 1, 2]):
        torch.testing.assert_close(final(index), whole[index], rtol=1e-12, atol=1e-12)


def test_checkpointed_backward_draws_the_same_noise() -> None:
    group, sde = SO(3), TrivializedSDE(SO(3), GeometricSchedule(0.1, 0.8), drift=lambda g, t: group.log(g).sin())
    v = 0.3 * torch.ones(2, 3, dtype=torch.float64)

    def gradient(every: int | None) -> Tensor:
        def end(v: Tensor) -> Tensor:
            streams = NoiseStreams(torch.arange(2), 1)
            grid = uniform_grid(6)
            return solve(sde, group.exp(v), grid, generator=streams, checkpoint_every=every).final[..., 0, 0].sum()

        x = v.clone().requires_grad_()
        return torch.autograd.grad(end(x), x)[0]

    torch.testing.assert_close(gradient(2), gradient(None), rtol=1e-10, atol=1e-12)


def test_bad_streams() -> None:
    with pytest.raises(ConfigurationError, match="index: expected a tensor of integers"):
        NoiseStreams(torch.rand(3), 0)
    with pytest.raises(ShapeError, match="one number for each datum"):
        NoiseStreams(torch.zeros(2, 3, dtype=torch.long), 0)
    with pytest.raises(ConfigurationError, match="key: expected integers of at least 0"):
        NoiseStreams(torch.arange(3), -1)
    with pytest.raises(ConfigurationError, match="key: expected integers of at least 0"):
        NoiseStreams(torch.arange(3), 2.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="expected a key"):
        NoiseStreams(torch.arange(3), 0).manual_seed(1)
    with pytest.raises(ShapeError, match="begins with 3 data"):
        _random.normal((2, 3), LIKE, NoiseStreams(torch.arange(3), 0))
    with pytest.raises(ShapeError, match="begins with 3 data"):
        NoiseKernel(SE(2), GeometricSchedule(0.1, 1.0), 3).sample(4, t=1.0, generator=NoiseStreams(torch.arange(3), 0))
