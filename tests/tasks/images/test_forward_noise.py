"""The picture of forward noise: how far images move, and the command that draws it."""

from pathlib import Path

import pytest
import torch

from tasks.cli import main
from tasks.images.noise import ForwardNoise
from tests.helpers import seeded
from trivgeo.actions import ImageWarp
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Projective
from trivgeo.sde import ConstantSchedule


def test_centres_move_as_far_as_the_noise_says() -> None:
    """The centre of a small spot in the middle moves by the translation part alone, to first order."""
    gamma, scale, count, size = 0.04, 0.5, 300, 32
    group = Projective(2, scale=[0.15, 0.35, scale, 0.35, 0.15, scale, 0.15, 0.15])
    place = (torch.arange(size, dtype=torch.float64) + 0.5) * (2 / size) - 1
    spot = torch.exp(-(place[:, None] ** 2 + place**2) / (2 * 0.15**2)).expand(count, 1, size, size)
    model = ForwardNoise(ImageWarp(group), ConstantSchedule(gamma), steps=10, times=[0.0, 0.25, 1.0])
    moved = model.moved(spot, seeded(0)).squeeze(2)
    assert torch.equal(moved[0], spot[:, 0])
    mass = moved.flatten(2).sum(-1)
    for time, at in ((0.25, 1), (1.0, 2)):
        centres = torch.stack([(moved[at].sum(axis) * place).sum(-1) / mass[at] for axis in (-2, -1)])
        expected = scale * gamma * time**0.5
        assert float((centres.std(1) / expected - 1).abs().max()) < 4 / (2 * count) ** 0.5


@pytest.mark.usefixtures("workplace")
def test_one_command(tmp_path: Path) -> None:
    main(["test", "--config=homnist/forward_noise", "--data.init_args.limit=6", "--trainer.enable_progress_bar=false"])
    folder = tmp_path / "runs" / "homnist" / "forward_noise"
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert '"ink at t = 0":1.0' in (folder / "rows.jsonl").read_text().replace('": ', '":')
    with pytest.raises(ConfigurationError, match="times: expected at least one"):
        ForwardNoise(ImageWarp(Projective(2)), ConstantSchedule(1.0), times=[])
