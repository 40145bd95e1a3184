"""Proposals and an energy: known products of laws, the order of energies, counts, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import assert_relative, randn, seeded
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action, Translation
from trivgeo.inversion import TIED, HybridInverter, InversionResult, Inverter
from trivgeo.sde import GeometricSchedule

ACTION = Translation(1).action()


class Normal(Inverter):
    """Proposals from N(0, 1), whatever the data."""

    def __init__(self, number: int, action: Action = ACTION) -> None:
        self.action = action
        self.number = number

    def __call__(self, x_tilde: Any, *, generator: torch.Generator | None = None) -> InversionResult:
        elements = torch.randn(len(x_tilde), self.number, 1, generator=generator, dtype=x_tilde.dtype)
        failures = torch.zeros(elements.shape[:2], dtype=torch.long)
        return InversionResult(self.action.group, elements, elements[..., 0] * 0, failures, 1, 2, 3)


def well(y: Tensor) -> Tensor:
    """Smallest where the restored point x~ - g is at zero: g = x~."""
    return 4.0 * y.square().sum((-2, -1))


X = torch.tensor([[[0.8]], [[-0.5]]], dtype=torch.float64)


class TestChoice:
    def test_resampling_gives_the_product(self) -> None:
        """N(0, 1) times exp(-4 (g - x)^2 / T) with T = 2: N(4 x / 5, 1 / 5)."""
        inverter = HybridInverter(Normal(60_000), well, num_hypotheses=20_000, choice="resample", temperature=2.0)
        r = inverter(X, generator=seeded(0))
        assert_relative(r.elements.mean((1, 2)), 0.8 * X[:, 0, 0], 0.02)
        assert_relative(r.elements.var(1)[:, 0], torch.full((2,), 0.2).double(), 0.05, floor=0.0)
        restored = X.unsqueeze(1) - r.elements.unsqueeze(-1)
        assert_relative(r.energies, 4.0 * restored[..., 0, 0].square(), 1e-10)

    def test_the_lowest_are_kept_in_order(self) -> None:
        r = HybridInverter(Normal(50), well, num_hypotheses=4)(X, generator=seeded(0))
        proposed = Normal(50)(X, generator=seeded(0)).elements[..., 0]
        distance = (proposed - X[:, :, 0]).abs().sort(1).values[:, :4]
        assert_relative((r.elements[..., 0] - X[:, :, 0]).abs(), distance, 1e-12)
        assert torch.equal(r.energies, r.energies.sort(1).values)

    def test_what_has_no_energy_is_not_chosen(self) -> None:
        """Infinite energies weigh nothing; a datum without any finite one keeps infinite energies."""
        half = lambda y: torch.where(y[..., 0, 0] < 0, well(y), math.inf)  # noqa: E731
        r = HybridInverter(Normal(200), half, num_hypotheses=100, choice="resample")(X, generator=seeded(0))
        assert bool((r.elements[..., 0] > X[:, :, 0]).all())
        none = lambda y: torch.full(y.shape[:1], math.nan).double()  # noqa: E731
        for choice in ("resample", "lowest"):
            r = HybridInverter(Normal(20), none, num_hypotheses=3, choice=choice)(X)  # type: ignore[arg-type]
            assert bool(torch.isinf(r.energies).all())
            assert torch.isfinite(r.elements).all()

    def test_counts(self) -> None:
        r = HybridInverter(Normal(50), well, num_hypotheses=4)(X)
        assert (r.energy_evaluations, r.gradient_evaluations, r.network_evaluations) == (51, 2, 3)
        r = HybridInverter(Normal(50), well, num_hypotheses=4, steps=3, num_mc=5)(X)
        assert (r.energy_evaluations, r.gradient_evaluations, r.network_evaluations) == (55, 2 + 60, 3)
        assert r.elements.shape == (2, 4, 1)


class TestMoving:
    def test_never_above_the_proposals(self) -> None:
        chosen = HybridInverter(Normal(10), well, num_hypotheses=4)(X, generator=seeded(0))
        moved = HybridInverter(Normal(10), well, num_hypotheses=4, steps=8, temperature=0.01, num_mc=8)(
            X, generator=seeded(0)
        )
        assert bool((moved.energies <= chosen.energies).all())
        assert float(moved.energies.mean()) < 0.2 * float(chosen.energies.mean())
        restored = X.unsqueeze(1) - moved.elements.unsqueeze(-1)
        assert_relative(moved.energies, 4.0 * restored[..., 0, 0].square(), 1e-10)

    def test_from_time_one_it_is_tied(self) -> None:
        """Proposals at the identity and steps from t = 1 are TIED's chains: the same law at the end."""

        class Identity(Normal):
            def __call__(self, x_tilde: Any, *, generator: torch.Generator | None = None) -> InversionResult:
                r = super().__call__(x_tilde)
                return InversionResult(r.group, r.elements * 0, r.energies, r.failures, 0, 0)

        options = {"steps": 30, "num_mc": 20, "schedule": GeometricSchedule(0.1, 1.5), "max_score_norm": None}
        number = 1500
        hybrid = HybridInverter(
            Identity(number), well, num_hypotheses=number, choice="resample", start_time=1.0, **options
        )
        tied = TIED(ACTION, well, num_hypotheses=number, **options)  # type: ignore[arg-type]
        first, second = (i(X, generator=seeded(2)).elements[..., 0] for i in (hybrid, tied))
        assert_relative(first.mean(1), second.mean(1), 0.03)
        assert_relative(first.std(1), second.std(1), 0.1, floor=0.0)


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_hypotheses": 0}, "num_hypotheses"),
            ({"choice": "best"}, "choice"),
            ({"temperature": 0.0}, "temperature"),
            ({"steps": -1}, "steps"),
            ({"start_time": 0.0}, "start_time"),
            ({"num_mc": 0}, "num_mc"),
            ({"max_score_norm": -1.0}, "max_score_norm"),
        ],
    )
    def test_numbers(self, options: dict, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            HybridInverter(Normal(4), well, **options)

    def test_objects(self) -> None:
        with pytest.raises(ConfigurationError, match="proposals"):
            HybridInverter(ACTION, well)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="energy"):
            HybridInverter(Normal(4), 3)  # type: ignore[arg-type]

    def test_more_than_were_proposed(self) -> None:
        with pytest.raises(ConfigurationError, match="at most the 4 proposals, got 5"):
            HybridInverter(Normal(4), well, num_hypotheses=5)(randn(2, 1, 1))
