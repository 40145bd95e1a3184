"""Every kind of experiment with its trainer on a device: it runs, with finite metrics, and says where it was."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tasks.cli import main
from tests.devices import emulated
from tests.tasks.sample_runs import CONFIGS

LEARNED = {"steps": 3, "width": 8, "depth": 1}
SAMPLE = {"class_path": "tasks.images.mnist.BundledSample"}
OTHERS = pytest.mark.slow(reason="a test on images stays; the doors of the library are tested apart")

EXPERIMENTS: dict[str, dict[str, Any]] = {
    "affnist/small": {"data": {"limit": 8, "batch_size": 4}, "model": {"features": "small_vae"}},
    "heat/tied": {
        "data": {"seeds": [0], "cases": 2, "nx": 16, "nt": 9},
        "model": {"inverter": {"init_args": {"num_hypotheses": 2, "steps": 2, "pruning": []}}, "finish": None},
    },
    "heat/tied_mixed": {
        "data": {"seeds": [0], "cases": 2, "nx": 16, "nt": 9},
        "model": {"inverter": {"init_args": {"num_hypotheses": 2, "steps": 2, "pruning": []}}, "finish": None},
    },
    "burgers/amortized": {"data": {"seeds": [0], "cases": 2, "nx": 17, "nt": 17}},
    "kdv/tied": {
        "data": {"seeds": [0], "cases": 2, "nx": 16, "nt": 9},
        "model": {"inverter": {"init_args": {"num_hypotheses": 2, "steps": 2, "pruning": []}}, "finish": None},
    },
    "rotmnist/posterior": {"data": {"limit": 2}, "model": {"steps": 3, "num_mc": 2, "num_samples": 5}},
    "so10/tied": {"data": {"seeds": [0], "count": 4}, "model": {"sampler": {"init_args": {"steps": 2, "num_mc": 2}}}},
    "fields/kdv": {
        "data": {"count": 2},
        "model": {
            "network": {"class_path": "tasks.fields.fno.SmallFNO", "init_args": {"modes": [4], "width": 4}},
            "fields": 16,
            "steps": 2,
            "learned_steps": 2,
            "batch_size": 4,
        },
    },
    "generative/checkerboard_flow": {
        "data": {"seeds": [0]},
        "model": {
            "source": {"init_args": {"train": 60, "test": 40}},
            "model": {"init_args": LEARNED},
            "likelihoods": 2,
        },
    },
    "generative/checkerboard_mixture": {
        "data": {"seeds": [0]},
        "model": {"source": {"init_args": {"train": 200, "test": 40}}, "likelihoods": 2},
    },
    "generative/rotations_kernel": {
        "data": {"seeds": [0]},
        "model": {"source": {"init_args": {"train": 60, "test": 40}}, "likelihoods": 2},
    },
    "generative/so4_normal": {
        "data": {"seeds": [0]},
        "model": {"source": {"init_args": {"train": 60, "test": 40}}},
    },
    "frames/score": {"data": {"seeds": [0]}, "model": {"steps": 2}},
    "digits/tied": {"data": {"limit": 2, "batch_size": 2}},
}


def options(device: torch.device) -> list[str]:
    """Of the command line, which has no name for the emulated device."""
    chosen = [f"--trainer.accelerator={'gpu' if device.type == 'cuda' else device.type}", "--trainer.devices=1"]
    if device.type == emulated.NAME:
        chosen += ["--trainer.strategy=SingleDeviceStrategy", f"--trainer.strategy.device={device.type}"]
    return [*chosen, "--trainer.enable_progress_bar=false"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "affnist/small" else OTHERS) for name in EXPERIMENTS]
)
def test_experiments(name: str, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["tasks"])
    writer = {"class_path": "tasks.results.ResultsWriter", "init_args": {"directory": str(tmp_path)}}
    settings = {part: {"init_args": changes} for part, changes in EXPERIMENTS[name].items()}
    settings["trainer"] = {"callbacks": [writer], "default_root_dir": str(tmp_path)}
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(settings))
    main(["test", f"--config={CONFIGS / name}.yaml", f"--config={path}", *options(device)])
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["complete"]
    assert torch.device(results["device"]).type == device.type
    assert all(math.isfinite(metric["mean"]) for metric in results["metrics"].values())


TRAININGS: dict[str, list[str]] = {
    "mnist/small_cnn": ["--model.network.init_args.channels=[4,8,8]", "--data.batch_size=25"],
    "mnist/small_vae": ["--model.network.init_args.hidden=[16]", "--data.batch_size=50"],
    "affnist/amortized_fit": [
        "--model.network.init_args.channels=[8,8]",
        "--model.network.init_args.width=16",
        "--data.batch_size=100",
    ],
}


@pytest.mark.slow(reason="trainings of the library, on which these rest, are tested apart")
@pytest.mark.parametrize("name", TRAININGS)
def test_trainings(name: str, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["tasks"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIVGEO_CHECKPOINTS", str(tmp_path / "checkpoints"))
    command = main(
        [
            "fit",
            f"--config={CONFIGS / name}.yaml",
            *options(device),
            "--trainer.max_epochs=1",
            "--trainer.limit_train_batches=3",
            "--trainer.limit_val_batches=1",
            "--trainer.log_every_n_steps=1",
            "--trainer.enable_model_summary=false",
            f"--trainer.default_root_dir={tmp_path}",
            "--data.source=tasks.images.mnist.BundledSample",
            "--data.validation=200",
            "--model.export=trained",
            *TRAININGS[name],
        ]
    )
    assert all(bool(torch.isfinite(value)) for value in command.trainer.callback_metrics.values())
