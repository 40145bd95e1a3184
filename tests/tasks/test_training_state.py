"""Trainings that are killed go on by the same command, in one process and two; the curve has all epochs."""

import json
import os
import subprocess
import sys
from pathlib import Path
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
from trivgeo.training import DealtSampler, EpochSampler

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


@pytest.mark.slow(reason="two processes import all; samplers and shares are tested above")
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
        *("--data.source=tasks.images.mnist.BundledSample", "--data.validation=201", f"--trainer.callbacks+={best}"),
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
    # running statistics of batch normalisation are those of the first process, and so are metrics
    for key, value in one.network.named_parameters():
        torch.testing.assert_close(value, two.network.get_parameter(key), rtol=1e-3, atol=1e-3)
    assert [x["training loss"] for x in other_curve] == pytest.approx([x["training loss"] for x in curve], rel=1e-3)
    assert len(best_epoch) == len(other_best) == 1
