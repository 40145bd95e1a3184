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

import trivgeo
from trivgeo.errors import ConfigurationError

Row = dict[str, Any]


class ResultsWriter(Callback):
    """Writes `rows.jsonl` as cases finish and `results.json` at the end, and knows which cases an earlier run did.

    Rows are kept with a hash of the configuration that made them: a run that was killed goes on where it stopped, and a
    run with another configuration starts anew. `results.json` holds the metrics (mean and standard deviation over
    seeds of the mean over cases), the rows, configuration, versions, device and seconds.

    Args:
        directory: where to write; created if missing.
    """

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.config: Mapping[str, Any] = {}
        self._rows: list[Row] = []
        self._start = 0.0

    def done(self, seed: int) -> bool:
        """Whether the rows of this seed are there."""
        return any(row["seed"] == seed for row in self._rows)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Read the rows of an earlier run of the same configuration."""
        if stage != "test":
            return
        if trainer.world_size > 1:
            raise ConfigurationError(f"devices: expected one for this task, got {trainer.world_size}")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._start = time.perf_counter()
        self._rows = []
        if self._path.exists():
            header, *lines = self._path.read_text().splitlines() or [""]
            if header == self._header():
                self._rows = _complete_rows(lines)
        lines = [self._header(), *map(json.dumps, self._rows)]
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("\n".join(lines) + "\n")
        temporary.replace(self._path)

    def write(self, rows: Sequence[Row]) -> None:
        """Add the rows of one seed, and put them on the disk at once."""
        rows = [{**row, "rows_of_seed": len(rows)} for row in rows]
        self._rows.extend(rows)
        with self._path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the summary and print it."""
        summary = summarise(self._rows)
        document = {
            "metrics": summary,
            "seconds": time.perf_counter() - self._start,
            "device": str(pl_module.device),
            "threads": torch.get_num_threads(),
            "versions": versions(),
            "config_hash": self._hash(),
            "config": dict(self.config),
            "rows": self._rows,
        }
        path = self.directory / "results.json"
        path.write_text(json.dumps(document, indent=1))
        sys.stdout.write(f"\n{format_summary(summary)}\n{document['seconds']:.1f} s, written to {path}\n")

    @property
    def _path(self) -> Path:
        return self.directory / "rows.jsonl"

    def _hash(self) -> str:
        return hashlib.sha256(json.dumps(dict(self.config), sort_keys=True, default=str).encode()).hexdigest()[:16]

    def _header(self) -> str:
        return json.dumps({"config_hash": self._hash()})


def _complete_rows(lines: Sequence[str]) -> list[Row]:
    """The rows of the seeds that were written whole; a kill may have cut the last ones."""
    rows: list[Row] = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return [row for row in rows if sum(other["seed"] == row["seed"] for other in rows) == row["rows_of_seed"]]


def summarise(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean over seeds of the mean over cases, standard deviation over seeds and worst case, of each metric.

    Metrics are the entries under `metrics` of a row.
    """
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    summary = {}
    for name in names:
        values = [torch.tensor([row["metrics"][name] for row in rows if row["seed"] == seed]) for seed in seeds]
        means = torch.stack([v.double().mean() for v in values])
        summary[name] = {
            "mean": float(means.mean()),
            "std": float(means.std()) if len(seeds) > 1 else 0.0,
            "worst": float(torch.cat(values).max()),
        }
    return summary


def format_summary(summary: Mapping[str, Mapping[str, float]]) -> str:
    """The summary as a Markdown table."""
    lines = ["| metric | mean ± std over seeds | worst case |", "|---|---|---|"]
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
