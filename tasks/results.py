"""Results of a test run: one row a case, written as they come, and a summary with all that made them."""

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DistributedSampler

import trivgeo
from trivgeo.errors import ConfigurationError

Row = dict[str, Any]


class ShardedTest(pl.LightningModule):
    """A test whose batches, those of a `Problems`, are dealt to the devices in turn: no case is counted twice.

    Every device reads all batches, and tests those that are `mine`; the sampler must not divide them once more
    (`trainer.use_distributed_sampler: false`), for that pads the last batch with cases of the first.
    """

    def mine(self, index: int) -> bool:
        """Whether the batch of this index is for this device."""
        return index % self.trainer.world_size == self.trainer.global_rank

    def is_due(self, batch: Any, index: int) -> bool:
        """Whether the batch of this index is for this device, and no earlier run did it."""
        writer = writer_of(self.trainer)
        return self.mine(index) and (writer is None or not writer.done(batch.seed, batch.number))

    def on_test_start(self) -> None:
        """Check that the trainer leaves the division of the batches alone.

        Raises:
            ConfigurationError: it does not.
        """
        loader: Any = self.trainer.test_dataloaders
        if isinstance(loader.sampler, DistributedSampler):
            raise ConfigurationError("trainer.use_distributed_sampler: expected false, got true")


class ResultsWriter(Callback):
    """Writes `rows.jsonl` as cases finish and `results.json` at the end, and knows which cases an earlier run did.

    Rows are kept with a hash of the configuration that made them: a run that was killed goes on where it stopped, and a
    run with another configuration starts anew. `results.json` holds the metrics (mean and standard deviation over
    seeds of the mean over cases), the rows, configuration, versions, device and seconds. Several devices write a file
    each; at the end they are one.

    Args:
        directory: where to write; created if missing.
    """

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.config: Mapping[str, Any] = {}
        self._rows: list[Row] = []
        self._done: set[tuple[int, int]] = set()
        self._of_seeds: dict[str, dict[int, float]] = {}
        self._rank = 0
        self._start = 0.0

    @property
    def rows(self) -> list[Row]:
        """The rows so far, by seed and case: those of this device, and at the end of a test all."""
        return sorted(self._rows, key=lambda row: (row["seed"], row["case"]))

    def done(self, seed: int, batch: int = 0) -> bool:
        """Whether the rows of this batch of this seed are there."""
        return (seed, batch) in self._done

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Read the rows of an earlier run of the same configuration.

        Raises:
            ConfigurationError: several devices, and the test is no `ShardedTest`.
        """
        if stage != "test":
            return
        if trainer.world_size > 1 and not isinstance(pl_module, ShardedTest):
            raise ConfigurationError(f"devices: expected one for this task, got {trainer.world_size}")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._start = time.perf_counter()
        self._of_seeds = {}
        self._rows = self._read()
        self._done = {(row["seed"], row["batch"]) for row in self._rows}
        trainer.strategy.barrier()  # all have read before one writes
        self._rank = trainer.global_rank
        if self._rank == 0:
            self._write_all()
            for path in self._other_files():
                path.unlink()
        trainer.strategy.barrier()

    def write(self, rows: Sequence[Row], batch: int = 0) -> None:
        """Add the rows of one batch of one seed, and put them on the disk at once."""
        rows = [{**row, "batch": batch, "rows_of_batch": len(rows)} for row in rows]
        self._rows.extend(rows)
        self._done.update((row["seed"], batch) for row in rows)
        path = self._path if self._rank == 0 else self.directory / f"rows.{self._rank}.jsonl"
        lines = [json.dumps(row) for row in rows]
        if not path.exists():
            lines.insert(0, self._header())
        with path.open("a") as file:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())

    def gather(self, trainer: pl.Trainer) -> None:
        """Take in the rows of all devices, once every one has written its last."""
        trainer.strategy.barrier()
        self._rows = self._read()
        trainer.strategy.barrier()

    def add_metric(self, name: str, of_seeds: Mapping[int, float]) -> None:
        """A metric of a seed as a whole, which is no mean over its cases."""
        self._of_seeds[name] = dict(of_seeds)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the summary and print it."""
        self.gather(trainer)
        if self._rank != 0:
            return
        self._write_all()
        for path in self._other_files():
            path.unlink()
        summary = summarise(self.rows) | {name: _spread(list(v.values())) for name, v in self._of_seeds.items()}
        document = {
            "metrics": summary,
            "seconds": time.perf_counter() - self._start,
            "device": str(pl_module.device),
            "device_name": torch.cuda.get_device_name(pl_module.device) if pl_module.device.type == "cuda" else "cpu",
            "devices": trainer.world_size,
            "threads": torch.get_num_threads(),
            "versions": versions(),
            "config_hash": self._hash(),
            "config": dict(self.config),
            "rows": self.rows,
        }
        path = self.directory / "results.json"
        path.write_text(json.dumps(document, indent=1))
        sys.stdout.write(f"\n{format_summary(summary)}\n{document['seconds']:.1f} s, written to {path}\n")

    @property
    def _path(self) -> Path:
        return self.directory / "rows.jsonl"

    def _other_files(self) -> list[Path]:
        """The files of the other devices."""
        return sorted(self.directory.glob("rows.*.jsonl"))

    def _read(self) -> list[Row]:
        """All whole rows on the disk that this configuration made, each once."""
        found: dict[tuple[int, int], Row] = {}
        for path in [self._path, *self._other_files()]:
            header, *lines = (path.read_text().splitlines() if path.exists() else []) or [""]
            if header == self._header():
                found |= {(row["seed"], row["case"]): row for row in _complete_rows(lines)}
        return list(found.values())

    def _write_all(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("\n".join([self._header(), *map(json.dumps, self.rows)]) + "\n")
        temporary.replace(self._path)

    def _hash(self) -> str:
        return hashlib.sha256(json.dumps(dict(self.config), sort_keys=True, default=str).encode()).hexdigest()[:16]

    def _header(self) -> str:
        return json.dumps({"config_hash": self._hash()})


def writer_of(trainer: pl.Trainer) -> ResultsWriter | None:
    """The writer of a trainer, if it has one."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return next((c for c in callbacks if isinstance(c, ResultsWriter)), None)


def _complete_rows(lines: Sequence[str]) -> list[Row]:
    """The rows of the batches that were written whole; a kill may have cut the last ones."""
    rows: list[Row] = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    counts: dict[tuple[int, int], int] = {}
    for row in rows:
        key = (row["seed"], row["batch"])
        counts[key] = counts.get(key, 0) + 1
    return [row for row in rows if counts[row["seed"], row["batch"]] == row["rows_of_batch"]]


def summarise(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean over seeds of the mean over cases, standard deviation over seeds and largest case, of each metric.

    Metrics are the entries under `metrics` of a row.
    """
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    summary = {}
    for name in names:
        values = [torch.tensor([row["metrics"][name] for row in rows if row["seed"] == seed]) for seed in seeds]
        means = [float(v.double().mean()) for v in values]
        summary[name] = _spread(means) | {"worst": float(torch.cat(values).max())}
    return summary


def _spread(of_seeds: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation over seeds, and the largest."""
    values = torch.tensor(of_seeds, dtype=torch.float64)
    std = float(values.std()) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "std": std, "worst": float(values.max())}


def format_summary(summary: Mapping[str, Mapping[str, float]]) -> str:
    """The summary as a Markdown table."""
    lines = ["| metric | mean ± std over seeds | largest |", "|---|---|---|"]
    lines += [f"| {name} | {s['mean']:.4g} ± {s['std']:.2g} | {s['worst']:.4g} |" for name, s in summary.items()]
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """Versions of what makes the numbers."""
    return {
        "trivgeo": trivgeo.__version__,
        "torch": torch.__version__,
        "lightning": version("lightning"),
        "python": platform.python_version(),
    }
