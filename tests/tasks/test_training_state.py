"""Trainings that are killed go on by the same command, in one process and two; the curve has all epochs."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from tasks.checkpoints import load_checkpoint
from tasks.images.convnet import ConvNet
from tasks.images.data import DealtOrderedBatches, OrderedBatches
from tasks.training_state import TrainingCurve, line_of
from tests.tasks.sample_runs import run_on_sample
from trivgeo import _processes
from trivgeo.errors import CheckpointError, ConfigurationError
from trivgeo.training import DealtSampler, EpochSampler, RunningStatistics

pytestmark = pytest.mark.usefixtures("workplace")
ROOT = Path(__file__).parents[2]
SMALL = ("--model.network.init_args.channels=[4,8,8]", "--data.batch_size=100", "--model.learning_rate=0.01")


class Killed(BaseException):
    """Ends a run from outside."""


class Kill(Callback):
    """Ends a training in the middle of its third epoch, once."""

    done = False

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *others: Any) -> None:
        if trainer.global_step == 18 * 2 + 5 and not Kill.done:
            Kill.done = True
            raise Killed


def weights(name: str) -> dict[str, torch.Tensor]:
    return load_checkpoint(ConvNet, f"checkpoints/{name}.safetensors").network.state_dict()


def fit(name: str, *settings: str, epochs: int = 4) -> pl.Trainer:
    return run_on_sample("fit", "mnist/small_cnn", *SMALL, f"--model.export={name}", *settings, epochs=epochs).trainer


def test_the_same_command_goes_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fit("straight", "--trainer.default_root_dir=straight")
    said = capsys.readouterr().out
    assert "| val/accuracy | " in said
    assert "| test/accuracy | | " in said
    assert "epochs: 4, " in said
    monkeypatch.setattr(Kill, "done", False)
    killed = f"--trainer.callbacks+={__name__}.Kill"
    with pytest.raises(Killed):
        fit("killed", killed)
    assert not Path("checkpoints/killed.safetensors").exists()
    trainer = fit("killed", killed)
    assert "goes on from runs/mnist/small_cnn/training-" in capsys.readouterr().out
    for key, value in weights("straight").items():
        assert torch.equal(value, weights("killed")[key]), key
    (curve,) = (callback for callback in trainer.callbacks if isinstance(callback, TrainingCurve))
    assert [epoch["step"] for epoch in curve.epochs] == [18, 36, 54, 72]
    assert (Path(trainer.log_dir) / "curve.png").read_bytes()[:4] == b"\x89PNG"
    # what is done is not done again; what it made may be wanted elsewhere
    again = fit("elsewhere", killed)
    assert again.global_step == 72
    assert all(torch.equal(value, weights("elsewhere")[key]) for key, value in weights("killed").items())
    # other settings are another training
    other = fit("other", "--seed_everything=1", epochs=1)
    assert other.global_step == 18
    assert len(list(Path("runs/mnist/small_cnn").glob("training-*.ckpt"))) == 2


def test_data_that_changed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.training_state.files_read", lambda: {"images": "one"})
    fit("first", epochs=1)
    monkeypatch.setattr("tasks.training_state.files_read", lambda: {"images": "other"})
    with pytest.raises(CheckpointError, match="files that have changed"):
        fit("second", epochs=1)


def test_a_line_of_characters() -> None:
    bars = line_of([0.0, 1.0])
    assert line_of([3.0, 3.0, 3.0]) == bars[0] * 3
    assert line_of([1.0, float("nan"), 0.0]) == f"{bars[1]} {bars[0]}"
    assert len(line_of([float(i) for i in range(100)])) == 32
    assert line_of([]) == ""


class TestSeveralProcesses:
    """What each of three processes gets, without the others."""

    @pytest.fixture(params=[0, 1, 2])
    def rank(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
        monkeypatch.setattr(_processes, "num_processes", lambda: 3)
        monkeypatch.setattr(_processes, "rank", lambda: request.param)
        for name in ("num_processes", "rank"):
            monkeypatch.setattr(f"tasks.images.data.{name}", getattr(_processes, name))
        return request.param

    def test_batches_are_dealt_anew_in_every_epoch(self, rank: int) -> None:
        sampler = DealtSampler(EpochSampler(7))
        sampler.set_epoch(2)
        assert list(sampler) == [14 + rank, 17 + rank]
        assert len(sampler) == 2
        loader = DataLoader(range(100), batch_size=None, sampler=sampler)  # type: ignore[arg-type]
        assert len(list(loader)) == 2

    def test_a_share_is_every_third_row(self, rank: int) -> None:
        assert _processes.share({"a": torch.arange(8), "b": None}) == {"a": pytest.approx(range(rank, 8, 3)), "b": None}


@pytest.mark.parametrize(("count", "number"), [(26, 3), (4, 3), (3, 3), (200, 7)])
def test_held_out_data_are_measured_once(count: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In as many batches for each process, none of them empty: some networks talk in every evaluation."""
    found, lengths = [], set()
    monkeypatch.setattr("tasks.images.data.num_processes", lambda: number)
    for rank in range(number):
        monkeypatch.setattr("tasks.images.data.rank", lambda rank=rank: rank)
        batches = list(DealtOrderedBatches(count, 4))
        assert all(batches)
        lengths.add(len(batches))
        found += [place for batch in batches for place in batch]
    assert sorted(found) == [place for batch in OrderedBatches(count, 4) for place in batch] == list(range(count))
    assert len(lengths) == 1
    with pytest.raises(ConfigurationError, match="one a process, got 2"):
        len(DealtOrderedBatches(2, 4))


class Gathering:
    """A stand-in for the strategy of one of several processes, which are threads here."""

    def __init__(self, number: int) -> None:
        self.barrier, self.shared = Barrier(number), [torch.empty(0)] * number

    def trainer(self, rank: int) -> Any:
        def all_gather(x: torch.Tensor) -> torch.Tensor:
            self.shared[rank] = x
            self.barrier.wait()
            found = torch.stack(self.shared)
            self.barrier.wait()
            return found

        return SimpleNamespace(world_size=len(self.shared), strategy=SimpleNamespace(all_gather=all_gather))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_those_of_one_process(momentum: float | None) -> None:
    """Three processes in two steps, the second with two batches in one of them, against one that sees all in turn."""
    batches = torch.randn(7, 16, 3, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 8.0)[:, None, None]
    steps = [[batches[:1], batches[1:2], batches[2:3]], [batches[3:4], batches[4:6], batches[6:7]]]
    alone = torch.nn.BatchNorm1d(3, momentum=momentum)
    for batch in batches:
        alone(batch)
    modules: list[Any] = [torch.nn.Sequential(torch.nn.BatchNorm1d(3, momentum=momentum)) for _ in range(3)]
    gathering = Gathering(3)

    def train(rank: int) -> None:
        callback, trainer, module = RunningStatistics(), gathering.trainer(rank), modules[rank]
        for number, step in enumerate(steps):
            callback.on_train_batch_start(trainer, module, None, number)
            for batch in step[rank]:
                module(batch)
            callback.on_train_batch_end(trainer, module, None, None, number)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(train, range(3)))
    for module in modules:
        torch.testing.assert_close(module[0].state_dict(), alone.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow(reason="two processes import all; samplers, shares and statistics are tested above")
def test_two_processes_are_one_with_twice_the_batches(tmp_path: Path) -> None:
    """Weights and metrics, and the epoch that a checkpoint of the best accuracy is of; killed and resumed, too."""
    best = json.dumps(
        {
            "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
            "init_args": {"monitor": "val/accuracy", "mode": "max", "filename": "best-{epoch}"},
        }
    )
    common = [
        *(sys.executable, "-m", "tasks", "fit", f"--config={ROOT / 'tasks/configs/mnist/small_cnn.yaml'}", *SMALL),
        *("--trainer.max_epochs=3", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
        *("--data.source=tasks.images.mnist.BundledSample", "--data.validation=199", f"--trainer.callbacks+={best}"),
        "--trainer.log_every_n_steps=1",
    ]
    ways = {
        "one": ["--trainer.accumulate_grad_batches=2"],
        "two": ["--trainer.devices=2", "--trainer.strategy=ddp"],
    }
    found = {}
    for way, flags in ways.items():
        paths = {"TRIVGEO_CHECKPOINTS": str(tmp_path / way), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [*common, *flags, f"--trainer.default_root_dir={tmp_path / way}", "--trainer.logger=false"]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, check=True, capture_output=True)
        network = load_checkpoint(ConvNet, str(tmp_path / way / "small_cnn.safetensors"))
        (state,) = (tmp_path / way).glob("training-*.ckpt")
        curve = torch.load(state, weights_only=True)["callbacks"]["TrainingCurve"]["epochs"]
        found[way] = network, curve, [path.name for path in (tmp_path / way).rglob("best-*.ckpt")]
    (one, curve, best_epoch), (two, other_curve, other_best) = found["one"], found["two"]
    for key, value in one.network.state_dict().items():
        torch.testing.assert_close(value, two.network.state_dict()[key], rtol=1e-3, atol=1e-3)
    assert two.metadata["metrics"] == pytest.approx(one.metadata["metrics"], rel=1e-3)
    assert other_best == best_epoch
    for mine, theirs in zip(curve, other_curve, strict=True):
        assert theirs == pytest.approx(mine, rel=1e-3)
