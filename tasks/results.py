"""Results of a test run: one row a case, written as cases finish, and a summary with all that made them."""

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

import lightning.pytorch as pl
import torch
from filelock import BaseFileLock
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import DistributedSampler

from trivgeo.errors import ConfigurationError
from trivgeo.training import versions

from .files import (
    append,
    check_picture_name,
    decoded,
    encoded,
    files_read,
    hold,
    storage,
    write_whole,
)
from .problems import Problems
from .run_identity import identity
from .summary import Row, format_summary, spread, summarise


class ShardedTest(pl.LightningModule):
    """A test whose batches, those of a `Problems`, are dealt to the devices in turn: no case is counted twice.

    Every device makes and tests those that are `mine`; the sampler must not divide them once more
    (`trainer.use_distributed_sampler: false`), for that pads the last batch with cases of the first.

    Attributes:
        writer: writer of the results; `ResultsWriter.setup` sets it, ``None`` for a test without one.
        gains: beginnings of the names of metrics that are better when they are larger. Their worst value is the
            smallest. The worst value of every other metric is the largest.
    """

    gains: ClassVar[tuple[str, ...]] = ("accuracy",)

    writer: "ResultsWriter | None" = None
    _figure: str | None = None

    @property
    def figure(self) -> str | None:
        """File name of the picture in the results' directory; ``None`` for none.

        Raises:
            ConfigurationError: (on setting) the name of another folder, or of no picture.
        """
        return self._figure

    @figure.setter
    def figure(self, name: str | None) -> None:
        self._figure = check_picture_name("figure", name)

    def mine(self, index: int) -> bool:
        """Whether the batch of this index is for this device."""
        return index % self.trainer.world_size == self.trainer.global_rank

    def is_due(self, batch: Any, index: int) -> bool:
        """Whether the batch of this index is for this device, and no earlier run did it, with its picture."""
        writer = self.writer
        if not self.mine(index) or writer is None:
            return self.mine(index)
        undrawn = index == 0 and self.figure is not None and not (writer.directory / self.figure).exists()
        return undrawn or not writer.done(batch.seed, batch.number)

    def on_test_start(self) -> None:
        """Check that the trainer leaves the division of the batches alone; batches that are not due are not made.

        Raises:
            ConfigurationError: it does not.
        """
        loader: Any = self.trainer.test_dataloaders
        if isinstance(loader.sampler, DistributedSampler):
            raise ConfigurationError("trainer.use_distributed_sampler: expected false, got true")
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(data, Problems):
            data.is_due = self.is_due


class ResultsWriter(Callback):
    """Writes `rows.jsonl` as cases finish and `results.json` at the end, and knows which cases an earlier run did.

    A run that was killed goes on where it stopped; the batch it was in is done again. Earlier rows count if the run has
    the same `tasks.run_identity.identity`; rows of another run are put aside, in `earlier-<hash>.jsonl`,
    `earlier-<hash>.1.jsonl` and so on, and its `results.json` in `earlier-<hash>.json`. Every row carries a checksum; a
    damaged line is done again. One run at a time writes to a folder. `results.json` holds the metrics (mean and
    standard deviation over seeds of the mean over cases, and the worst case), the rows, whether all batches were done,
    configuration, files read, versions, device and seconds of all parts of the run. Several devices write a file each;
    at the end they are one.

    Args:
        directory: folder to write to; created if missing.
    """

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.config: Mapping[str, Any] = {}
        self._batches: dict[tuple[int, int], list[Row]] = {}
        self._of_seeds: dict[str, dict[int, float]] = {}
        self._rank = 0
        self._start = 0.0
        self._finished = False
        self._earlier = 0.0
        self._identity = ""
        self._lock: BaseFileLock | None = None

    @property
    def rows(self) -> list[Row]:
        """The rows so far, by seed and case: those of this device, and at the end of a test all."""
        return sorted(chain(*self._batches.values()), key=lambda row: (row["seed"], row["case"]))

    @property
    def seconds(self) -> float:
        """How long the run has taken so far, with its earlier parts."""
        return self._earlier + time.perf_counter() - self._start

    @property
    def finished(self) -> bool:
        """Whether a test has come to its end."""
        return self._finished

    def done(self, seed: int, batch: int = 0) -> bool:
        """Whether the rows of this batch of this seed are there."""
        return (seed, batch) in self._batches

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Lock the folder of the results before any long work, and become the writer of the test.

        Raises:
            ConfigurationError: several devices, and the test is no `ShardedTest`; or another run writes to the folder.
            StorageError: the folder cannot be written to.
        """
        if stage != "test":
            return
        if trainer.world_size > 1 and not isinstance(pl_module, ShardedTest):
            raise ConfigurationError(f"devices: expected one for this task, got {trainer.world_size}")
        if isinstance(pl_module, ShardedTest):
            pl_module.writer = self
        self._rank = trainer.global_rank
        if self._rank == 0 and self._lock is None:
            self._lock = hold(self.directory)

    def on_test_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Read the rows of earlier runs of this identity; by now all that the numbers depend on has been read."""
        self._start = time.perf_counter()
        self._of_seeds = {}
        self._identity = identity(self.config)
        self._batches = self._read()
        self._earlier = max((row["run_seconds"] for row in self.rows), default=0.0)
        trainer.strategy.barrier()  # all have read before one writes
        if self._rank == 0:
            self._put_aside(self._results, self._header_of_results())
            self._make_one_file()
        trainer.strategy.barrier()

    def write(self, rows: Sequence[Row], batch: int = 0) -> None:
        """Add the rows of one batch of one seed, and put them on the disk at once.

        Raises:
            StorageError: the disk is full, say; the rows before these are safe.
        """
        rows = [{**row, "batch": batch, "rows_of_batch": len(rows), "run_seconds": self.seconds} for row in rows]
        path = self._path if self._rank == 0 else self.directory / f"rows.{self._rank}.jsonl"
        # the first line break ends a line that a full disk or a kill has cut
        start = "" if path.exists() else self._header()
        append(path, start + "\n" + "".join(encoded(row) + "\n" for row in rows))
        self._batches[rows[0]["seed"], batch] = rows

    def gather(self, trainer: pl.Trainer) -> None:
        """Take in the rows of all devices, once every one has written its last."""
        trainer.strategy.barrier()
        self._batches = self._read()
        trainer.strategy.barrier()

    def add_metric(self, name: str, of_seeds: Mapping[int, float]) -> None:
        """A metric of a seed as a whole, which is no mean over its cases."""
        self._of_seeds[name] = dict(of_seeds)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the summary, give it to the trainer's loggers and print it."""
        self.gather(trainer)
        self._finished = True
        if self._rank != 0:
            return
        self._make_one_file()
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        expected = data.keys() if isinstance(data, Problems) else self._batches.keys()
        missing = len(expected - self._batches.keys())
        gains = pl_module.gains if isinstance(pl_module, ShardedTest) else ()
        whole = {name: spread(name, list(v.values()), gains) for name, v in self._of_seeds.items()}
        summary = summarise(self.rows, gains) | whole
        document = {
            "metrics": summary,
            "complete": not missing,
            "batches": len(expected),
            "missing_batches": missing,
            "seconds": self.seconds,
            "device": str(pl_module.device),
            "device_name": torch.cuda.get_device_name(pl_module.device) if pl_module.device.type == "cuda" else "cpu",
            "devices": trainer.world_size,
            "threads": torch.get_num_threads(),
            "versions": versions(),
            "files": files_read(),
            "identity": self._identity,
            "config": dict(self.config),
            "rows": self.rows,
        }
        write_whole(self._results, encoded(document, indent=1))
        figures = {f"test/{name}/{kind}": value for name, s in summary.items() for kind, value in s.items()}
        for logger in trainer.loggers:
            logger.log_metrics(figures)
        partial = f"INCOMPLETE: {missing} of {len(expected)} batches are missing\n" if missing else ""
        written = f"{document['seconds']:.1f} s, written to {self._results}"
        sys.stdout.write(f"\n{format_summary(summary)}\n{partial}{written}\n")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Release the folder and the test."""
        self._release(pl_module)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Release the folder and the test: the trainer calls no `teardown` then."""
        self._release(pl_module)

    def _release(self, pl_module: pl.LightningModule) -> None:
        if isinstance(pl_module, ShardedTest):
            pl_module.writer = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def _path(self) -> Path:
        return self.directory / "rows.jsonl"

    @property
    def _results(self) -> Path:
        return self.directory / "results.json"

    def _other_files(self) -> list[Path]:
        """The files of the other devices."""
        return sorted(path for path in self.directory.glob("rows.*.jsonl") if path.name.split(".")[1].isdigit())

    def _read(self) -> dict[tuple[int, int], list[Row]]:
        """The rows on the disk of this identity, each once, of the batches that were written whole."""
        found: dict[tuple[int, int], dict[int, Row]] = {}
        for path in [self._path, *self._other_files()]:
            header, *lines = _lines(path)
            if header == self._header():
                for row in filter(_is_row, map(decoded, lines)):
                    found.setdefault((row["seed"], row["batch"]), {})[row["case"]] = row
        whole = {key: list(rows.values()) for key, rows in found.items()}
        return {key: rows for key, rows in whole.items() if len(rows) == rows[0]["rows_of_batch"]}

    def _make_one_file(self) -> None:
        """Write the rows of all devices to one file; files with rows of another run are put aside."""
        for path in [self._path, *self._other_files()]:
            header, *lines = _lines(path)
            if lines:
                self._put_aside(path, header)
        write_whole(self._path, "\n".join([self._header(), *map(encoded, self.rows)]) + "\n")
        for path in self._other_files():
            path.unlink()

    def _put_aside(self, path: Path, header: str) -> None:
        """Give a file with the header of another run another name."""
        if header != self._header():
            kept = self._free(f"earlier-{hashlib.sha256(header.encode()).hexdigest()[:16]}", path.suffix)
            path.replace(kept)
            rank_zero_info(
                f"{self.directory}: {path.name} of a run with other settings, files or versions is now in {kept}"
            )

    def _free(self, stem: str, suffix: str) -> Path:
        """A path without a file, so that files put aside before stay."""
        names = chain([f"{stem}{suffix}"], (f"{stem}.{number}{suffix}" for number in count(1)))
        return next(path for name in names if not (path := self.directory / name).exists())

    def _header(self) -> str:
        return json.dumps({"identity": self._identity})

    def _header_of_results(self) -> str:
        """The header of the rows of `results.json`; the header of this run where there is none."""
        if not self._results.exists():
            return self._header()
        return json.dumps({"identity": (decoded("\n".join(_lines(self._results))) or {}).get("identity")})


def _is_row(row: Row | None) -> TypeGuard[Row]:
    """Whether a decoded line has the entries of a row of `ResultsWriter.write`; a checksum alone does not show that."""
    return (
        row is not None
        and all(isinstance(row.get(name), int) for name in ("seed", "batch", "case", "rows_of_batch"))
        and isinstance(row.get("run_seconds"), int | float)
        and isinstance(metrics := row.get("metrics"), dict)
        and all(isinstance(value, int | float) for value in metrics.values())
    )


def _lines(path: Path) -> list[str]:
    """The lines of a file, at least one.

    Raises:
        StorageError: it is a folder, say.
    """
    with storage(path):
        text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    return text.splitlines() or [""]
