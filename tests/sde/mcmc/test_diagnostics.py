"""Diagnostics of chains against arviz-stats, against numbers of it that are kept, and against autoregressive chains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers import assert_relative, randn
from trivgeo.errors import ShapeError
from trivgeo.sde.mcmc import (
    bulk_effective_sample_size,
    mean_effective_sample_size,
    r_hat,
    r_hat_bound,
    tail_effective_sample_size,
)

KINDS = {
    "rhat": r_hat,
    "bulk": bulk_effective_sample_size,
    "tail": tail_effective_sample_size,
    "mean": mean_effective_sample_size,
}


def autoregressive(chains: int, draws: int, seed: int = 0) -> torch.Tensor:
    """Chains of six autocorrelations; one has ties, one means of its own."""
    x = randn(chains, draws, 6, seed=seed)
    share = torch.tensor([0.0, 0.8, 0.98, -0.5, 0.2, 0.5]).double()
    for i in range(1, draws):
        x[:, i] += share * x[:, i - 1]
    x[..., 4] = x[..., 4].round()
    x[..., 5] += 0.3 * torch.arange(chains).double().unsqueeze(-1)
    return x


@pytest.mark.parametrize(("chains", "draws"), [(4, 100), (4, 101), (16, 333), (3, 7), (2, 50)])
@pytest.mark.parametrize("kind", KINDS)
def test_arviz(kind: str, chains: int, draws: int) -> None:
    stats = pytest.importorskip("arviz_stats.base").array_stats
    x = autoregressive(chains, draws)
    further = {"rhat": {}, "tail": {"method": "tail", "prob": (0.05, 0.95)}}.get(kind, {"method": kind})
    function = stats.rhat if kind == "rhat" else stats.ess
    expected = [float(function(y, chain_axis=0, draw_axis=1, **further)) for y in np.moveaxis(x.numpy(), -1, 0)]
    assert_relative(KINDS[kind](x), torch.tensor(expected, dtype=torch.float64), 1e-10, floor=0.0)


def test_kept_numbers() -> None:
    """Of arviz-stats 0.8.0 for draws that need no generator, ``[2, 12]``."""
    i = torch.arange(24, dtype=torch.float64).reshape(2, 12, 1)
    x = (i * i * 0.7).sin() + 0.1 * (i / 12).floor()
    kept = {
        "rhat": 1.0938590698170594,
        "bulk": 24.35823879211495,
        "tail": 11.73913043478261,
        "mean": 23.468830162143924,
    }
    found = {kind: float(function(x)) for kind, function in KINDS.items()}
    assert found == pytest.approx(kept, rel=1e-9)


def test_size_of_autoregressive_chains() -> None:
    """Of x' = a x + noise: the number of draws times (1 - a) / (1 + a)."""
    x = autoregressive(8, 5000)
    share = torch.tensor([0.0, 0.8, 0.98, -0.5]).double()
    expected = 40_000 * (1 - share) / (1 + share)
    ratio = mean_effective_sample_size(x)[:4] / expected
    assert (ratio[:2] - 1).abs().max() < 0.1
    assert (ratio - 1).abs().max() < 0.4


def test_sick_and_healthy() -> None:
    x = randn(4, 500, 3)
    x[0, :, 1] += 1.0  # another location
    x[0, :, 2] *= 3.0  # another scale
    found = r_hat(x)
    assert found[0] < 1.01
    assert found[1:].min() > 1.03


def test_bound_where_chains_agree() -> None:
    """R-hat exceeds it in about five of a hundred runs of slow chains that agree, and always where they do not."""
    runs = torch.stack([autoregressive(8, 200, seed)[..., 1] for seed in range(100)], -1)
    bound = torch.stack([r_hat_bound(run, 0.05)[0] for run in runs.unsqueeze(-1).unbind(2)])
    found = r_hat(runs)
    assert 0 <= int((found > bound).sum()) <= 12
    assert (found > 1.01).all()
    assert bound.max() < 1.15
    runs[0] += 5.0
    assert (r_hat(runs) > torch.cat([r_hat_bound(run) for run in runs.unsqueeze(-1).unbind(2)])).all()


def test_constants_and_short_chains() -> None:
    x = torch.ones(4, 10, 1).double()
    assert r_hat(x).isnan().all()
    assert_relative(bulk_effective_sample_size(x), torch.tensor([40.0]).double(), 0.0)
    with pytest.raises(ShapeError, match="at least 4 draws"):
        r_hat(x[:, :3])


def test_float32() -> None:
    x = autoregressive(4, 200)
    for function in KINDS.values():
        assert_relative(function(x.float()).double(), function(x), 1e-3)
