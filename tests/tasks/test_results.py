"""Rows on several devices, rows of batches, and metrics of whole seeds."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from tasks.results import ResultsWriter, ShardedTest
from trivgeo.errors import ConfigurationError


class FakeStrategy:
    def barrier(self) -> None:
        pass


def trainer(rank: int = 0, world: int = 1) -> Any:
    return SimpleNamespace(global_rank=rank, world_size=world, strategy=FakeStrategy())


def row(seed: int, case: int, value: float = 1.0) -> dict[str, Any]:
    return {"seed": seed, "case": case, "metrics": {"error": value}}


class Module(ShardedTest):
    pass


def writers(folder: Path, world: int) -> list[ResultsWriter]:
    made = []
    for rank in range(world):
        writer = ResultsWriter(str(folder))
        writer.setup(trainer(rank, world), Module(), "test")
        made.append(writer)
    return made


def test_devices_write_files_of_their_own_that_become_one(tmp_path: Path) -> None:
    first, second = writers(tmp_path, 2)
    first.write([row(0, 0), row(0, 1)], batch=0)
    second.write([row(0, 2), row(0, 3)], batch=1)
    first.write([row(0, 4)], batch=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.1.jsonl", "rows.jsonl"]
    first.on_test_end(trainer(0, 2), Module())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["results.json", "rows.jsonl"]
    document = json.loads((tmp_path / "results.json").read_text())
    assert [r["case"] for r in document["rows"]] == [0, 1, 2, 3, 4]


def test_a_killed_run_on_two_devices_goes_on_with_one(tmp_path: Path) -> None:
    first, second = writers(tmp_path, 2)
    first.write([row(0, 0)], batch=0)
    second.write([row(0, 1)], batch=1)
    (alone,) = writers(tmp_path, 1)
    assert [alone.done(0, b) for b in (0, 1, 2)] == [True, True, False]
    assert not alone.done(1, 0)
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]
    alone.write([row(0, 2)], batch=2)
    alone.on_test_end(trainer(), Module())
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 3


def test_half_a_batch_is_done_again(tmp_path: Path) -> None:
    (writer,) = writers(tmp_path, 1)
    writer.write([row(0, 0), row(0, 1)], batch=0)
    writer.write([row(0, 2), row(0, 3)], batch=1)
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:4]) + "\n")
    (again,) = writers(tmp_path, 1)
    assert (again.done(0, 0), again.done(0, 1)) == (True, False)
    assert len(again.rows) == 2


def test_metrics_of_whole_seeds(tmp_path: Path) -> None:
    (writer,) = writers(tmp_path, 1)
    writer.write([row(0, 0)])
    writer.add_metric("FID", {0: 1.0, 1: 3.0})
    writer.on_test_end(trainer(), Module())
    metrics = json.loads((tmp_path / "results.json").read_text())["metrics"]
    assert metrics["FID"] == {"mean": 2.0, "std": pytest.approx(2**0.5), "worst": 3.0}
    assert metrics["error"]["mean"] == 1.0


def test_a_test_that_does_not_share_its_batches_is_refused_on_two_devices(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected one for this task, got 2"):
        ResultsWriter(str(tmp_path)).setup(trainer(0, 2), pl.LightningModule(), "test")


def test_a_sampler_that_pads_is_refused() -> None:
    module, data = Module(), torch.utils.data.TensorDataset(torch.zeros(3))
    padded = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0)
    module._trainer = SimpleNamespace(test_dataloaders=torch.utils.data.DataLoader(data, sampler=padded))
    with pytest.raises(ConfigurationError, match="use_distributed_sampler: expected false"):
        module.on_test_start()


def test_batches_are_dealt_once() -> None:
    dealt = []
    for rank in range(3):
        module = Module()
        module._trainer = trainer(rank, 3)
        dealt.append([i for i in range(10) if module.mine(i)])
    assert sorted(i for part in dealt for i in part) == list(range(10))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
