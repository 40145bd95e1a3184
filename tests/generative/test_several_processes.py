"""Processes that torchrun starts fit one model, to the data of all."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trivgeo import _processes
from trivgeo.errors import ConfigurationError
from trivgeo.generative import GroupDiffusion
from trivgeo.groups import SE, SO

ROOT = Path(__file__).parents[2]

SCRIPT = """
import logging
import sys

import torch
from torch import distributed

from trivgeo.errors import ConfigurationError
from trivgeo.generative import GroupDiffusion
from trivgeo.groups import SE
from trivgeo.inversion import LearnedInverter

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
folder, dealt = sys.argv[1], sys.argv[2] == "dealt"
distributed.init_process_group("gloo")
rank = distributed.get_rank()
group = SE(2)
samples = torch.load(f"{folder}/samples.pt")
model = GroupDiffusion(group, "flow", width=32, depth=2)
model.fit(samples[rank::2] if dealt else samples, steps=200, batch_size=64, folder=f"{folder}/state", progress=False)
torch.save((model.state_dict(), model.log_prob(samples[:100])), f"{folder}/{rank}.pt")
try:
    model.fit(samples, steps=1, batch_size=63)
except ConfigurationError as error:
    print(error)
cloud = torch.tensor([[1.0, 0.0], [0.0, 0.6], [-0.8, 0.1], [0.2, -0.3]])
clean = cloud + 0.01 * torch.randn(400, 4, 2, generator=torch.Generator().manual_seed(0))
draw = lambda count, generator: group.exp(torch.rand(count, 3, generator=generator) - 0.5)
inverter = LearnedInverter(group.action(), seed=0)
inverter.fit(clean, draw, steps=20, batch_size=32, seconds=None, progress=False)
torch.save(inverter.score.backbone.state_dict(), f"{folder}/inverter{rank}.pt")
"""


def mixture(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    v = 0.2 * torch.randn(count, 3, generator=generator)
    v[:, 1] += torch.where(torch.rand(count, generator=generator) < 0.3, 1.0, -1.0)
    return SE(2).exp(v)


@pytest.mark.slow(reason="two processes import all; what each gets is tested below")
@pytest.mark.parametrize("way", ["whole", "dealt"])
def test_two_processes_fit_one_model(way: str, tmp_path: Path) -> None:
    """The same weights in both, and the likelihood of a fit in one process, also where each has half of the data."""
    samples = mixture(2000)
    torch.save(samples, tmp_path / "samples.pt")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*command, str(tmp_path / "script.py"), str(tmp_path), way],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("batch_size: expected a multiple of 2, the number of processes, got 63") == 2
    (first, densities), (second, other) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    assert torch.equal(densities, other)
    one = GroupDiffusion(SE(2), "flow", width=32, depth=2)
    one.fit(samples, steps=200, batch_size=64, progress=False)
    assert one.fitted is not None
    # the noise differs, data and size of each step do not
    alone = one.log_prob(samples[:100])
    assert float((densities - alone).mean()) == pytest.approx(0.0, abs=0.3)
    for name, value in one.fitted.base.state_dict().items():
        torch.testing.assert_close(value, first[f"fitted.base.{name}"], rtol=1e-4 if way == "whole" else 0.3, atol=0.1)
    inverters = [torch.load(tmp_path / f"inverter{rank}.pt") for rank in range(2)]
    assert all(torch.equal(value, inverters[1][name]) for name, value in inverters[0].items())


def test_shares_of_the_same_data_are_these_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of different data the rows take turns, until the shorter ones end."""
    ranks: list[Any] = []

    def gather(parts: list[Any], own: Any) -> None:
        parts[:] = ranks

    monkeypatch.setattr(_processes, "num_processes", lambda: 3)
    monkeypatch.setattr(_processes, "rank", lambda: 0)
    monkeypatch.setattr(_processes.distributed, "all_gather_object", gather)
    whole = torch.arange(8)
    ranks = [{"x": whole[rank::3], "c": None} for rank in range(3)]
    found = _processes.gathered_shares({"x": whole, "c": None})
    assert torch.equal(found["x"], whole)
    ranks = [{"x": torch.tensor([0, 1])}, {"x": torch.tensor([10])}, {"x": torch.tensor([20, 21])}]
    assert _processes.gathered_shares({"x": whole})["x"].tolist() == [0, 10, 20, 1, 21]
    ranks = ["a", "a", "b"]
    with pytest.raises(ConfigurationError, match="noise: expected the same in all processes, got 'a' and 'b'"):
        _processes.check_same("noise", "a")


def test_preparations_count_as_time_of_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set-up of a second leaves the rest of the time to the training, a tenth at least."""
    import trivgeo.generative.diffusion_training as training

    given: list[float | None] = []
    clock = iter(range(100))
    monkeypatch.setattr("trivgeo.generative.model.time.perf_counter", lambda: float(next(clock)))

    def train(*arguments: Any) -> bool:
        given.append(arguments[2].seconds)
        return False

    monkeypatch.setattr(training, "train_average", train)
    samples = SO(3).random(100, generator=torch.Generator().manual_seed(0))
    for seconds in (10.0, 1.0, None):
        GroupDiffusion(SO(3), width=8, depth=1).fit(samples, seconds=seconds)
    assert given == [9.0, 0.1, None]
