"""Several draws of levels and noise for each row of a training batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import seeded
from trivgeo.errors import ConfigurationError
from trivgeo.generative import GroupDiffusion
from trivgeo.groups import Translation

ROWS, DRAWS = 64, 8
_SEEN: dict[str, list[Tensor]] = {}


class Encoder(nn.Module):
    """The sign of the datum, as it is."""

    def forward(self, condition: Tensor) -> Tensor:
        _SEEN["encoded"].append(condition)
        return condition


class Velocity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, g: Tensor, t: Tensor, features: Tensor) -> Tensor:
        for name, value in (("elements", g), ("levels", t), ("features", features)):
            _SEEN[name].append(value)
        return self.shift + 0.0 * g


def test_features_go_with_their_elements() -> None:
    """The module of the condition is evaluated once a row; noised elements near the data are those of their rows."""
    _SEEN.clear()
    _SEEN.update({name: [] for name in ("encoded", "elements", "levels", "features")})
    sign = torch.where(torch.arange(200) < 100, -1.0, 1.0).unsqueeze(-1)
    data = 50.0 * sign + torch.randn(200, 1, generator=seeded(0))
    own: dict[str, Any] = {"condition": Encoder(), "network": Velocity(), "condition_dropout": 0.0}
    model = GroupDiffusion(Translation(1), "flow", num_draws=DRAWS, **own)
    model.fit(data, sign, steps=1, batch_size=ROWS, progress=False)
    encoded, elements, levels, features = (_SEEN[name][-1] for name in ("encoded", "elements", "levels", "features"))
    assert encoded.shape == (ROWS, 1)
    assert elements.shape == features.shape == (ROWS * DRAWS, 1)
    assert torch.equal(features, encoded.repeat(DRAWS, 1))
    near = levels < 0.05
    assert 20 <= int(near.sum()) <= 32
    assert bool((elements[near].sign() == features[near]).all())
    each = levels.reshape(DRAWS, ROWS)
    # one level of each row in each eighth of the path
    assert torch.equal((each * DRAWS).floor(), torch.arange(DRAWS).float().unsqueeze(-1).expand(DRAWS, ROWS))


def test_bad_number() -> None:
    with pytest.raises(ConfigurationError, match="num_draws"):
        GroupDiffusion(Translation(1), "flow", num_draws=0)
