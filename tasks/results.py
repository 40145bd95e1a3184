"""Results of a test run: one row a case, written as they come, and a summary with all that made them."""

import ast
import hashlib
import json
import os
import re
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, count
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, TypeGuard

import lightning.pytorch as pl
import torch
from filelock import BaseFileLock
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info
from safetensors import SafetensorError, safe_open
from torch.utils.data import DistributedSampler

import trivgeo
from trivgeo._applications import applications, importable, is_ours
from trivgeo.errors import ConfigurationError
from trivgeo.training import versions

from .files import (
    append,
    check_picture_name,
    checksum,
    decoded,
    encoded,
    files_read,
    hold,
    storage,
    write_whole,
)
from .problems import Problems

Row = dict[str, Any]

_SILENT = {"figure", "progress"}


class ShardedTest(pl.LightningModule):
    """A test whose batches, those of a `Problems`, are dealt to the devices in turn: no case is counted twice.

    Every device reads all batches, and tests those that are `mine`; the sampler must not divide them once more
    (`trainer.use_distributed_sampler: false`), for that pads the last batch with cases of the first.
    """

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
        writer = writer_of(self.trainer)
        if not self.mine(index) or writer is None:
            return self.mine(index)
        undrawn = index == 0 and self.figure is not None and not (writer.directory / self.figure).exists()
        return undrawn or not writer.done(batch.seed, batch.number)

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

    A run that was killed goes on where it stopped; the batch it was in is done again. Which earlier rows are good is
    decided by what determines numbers, see `identity`: rows of a run with another identity are put aside, in
    `earlier-<hash>.jsonl`, `earlier-<hash>.1.jsonl` and so on, and its `results.json` in `earlier-<hash>.json`.
    Every row carries a checksum; a damaged line is done again. One run at a time writes to a folder. `results.json`
    holds the metrics (mean and standard deviation over seeds of the mean over cases), the rows, whether all batches
    were done, configuration, files read, versions, device and seconds of all parts of the run. Several devices write a
    file each; at the end they are one.

    Args:
        directory: where to write; created if missing.
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
        """Take the folder, before any long work.

        Raises:
            ConfigurationError: several devices, and the test is no `ShardedTest`; or another run writes to the folder.
            StorageError: the folder cannot be written to.
        """
        if stage != "test":
            return
        if trainer.world_size > 1 and not isinstance(pl_module, ShardedTest):
            raise ConfigurationError(f"devices: expected one for this task, got {trainer.world_size}")
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
        summary = summarise(self.rows) | {name: _spread(list(v.values())) for name, v in self._of_seeds.items()}
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
        """Let the folder go."""
        self._release()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Let the folder go: the trainer calls no `teardown` then."""
        self._release()

    def _release(self) -> None:
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
        """Of the rows of all devices. What has rows of another run is kept: its configuration may come back."""
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
        """A file that is not there: what was put aside before stays."""
        names = chain([f"{stem}{suffix}"], (f"{stem}.{number}{suffix}" for number in count(1)))
        return next(path for name in names if not (path := self.directory / name).exists())

    def _header(self) -> str:
        return json.dumps({"identity": self._identity})

    def _header_of_results(self) -> str:
        """What the rows of `results.json` had for a header; that of this run where there are none."""
        if not self._results.exists():
            return self._header()
        return json.dumps({"identity": (decoded("\n".join(_lines(self._results))) or {}).get("identity")})


def identity(config: Mapping[str, Any]) -> str:
    """What determines the numbers of a run, as a hash: rows of two runs are exchangeable exactly when it is the same.

    It covers the settings of model and data but for names of pictures and bars, the seed, the precision, the content of
    every file read (see `tasks.files.checksum`) with the settings that name it, the versions, and the source of this
    library and of the user's own modules that the settings and checkpoints name and that these import, if they are not
    installed; nothing else, so that neither the folder nor the kind of output matters.

    Args:
        config: of the test, as the command line has it.
    """
    trainer = config.get("trainer") or {}
    parts = {
        "settings": _numeric({name: config.get(name) for name in ("model", "data", "seed_everything")}),
        "precision": [trainer.get("precision"), trainer.get("plugins"), _parts(trainer.get("strategy"))],
        "files": _contents(config),
        "versions": versions(),
        "source": source(_named(config)),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def source(names: Iterable[str] = ()) -> list[str]:
    """Hashes of the source of this library, and of the modules of the user at these dotted names.

    A package counts as a whole, for a class may call what lies beside it, and what is imported counts with what imports
    it, unless it is installed.
    """
    asked, found = list(names), dict[str, str]()
    while asked:
        name = importable(asked.pop())
        package = name.split(".")[0]
        files = _files_of(sys.modules[package]) if package in sys.modules else []
        if package not in found and not is_ours(name) and files and not _is_installed(files[0]):
            found[package] = _digest(files)
            asked += [name for file in files for name in _imported(file)]
    return [_source(), *(found[package] for package in sorted(found))]


def _imported(file: Path) -> list[str]:
    """Modules that a file imports, but for those of its own package."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except SyntaxError:  # it was not imported
        return []
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    parents = (node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level)
    return names + [node.module for node in parents if node.module]


def _parts(strategy: Any) -> Any:
    """What a strategy was given, such as its own precision; how many devices share the work changes no number."""
    return strategy if isinstance(strategy, Mapping) else None


def _numeric(settings: Any, ours: bool = True) -> Any:
    """Settings without those of our classes that change no number."""
    if isinstance(settings, Mapping):
        path = settings.get("class_path")
        ours = is_ours(path) if isinstance(path, str) else ours
        kept = {name: value for name, value in settings.items() if not (ours and name in _SILENT)}
        return {name: _numeric(value, ours) for name, value in kept.items()}
    return [_numeric(value, ours) for value in settings] if isinstance(settings, list) else settings


def _contents(config: Mapping[str, Any]) -> list[tuple[list[str], str]]:
    """The content of every file read, with what the configuration calls it, so that two files cannot change places."""
    settings = {part: _numeric(config.get(part)) for part in ("model", "data")}
    named = list(_strings(settings))
    contents = [(_roles(Path(path), named), content) for path, content in files_read().items()]
    return sorted(contents + [(["ckpt_path"], content) for content in _weights(config.get("ckpt_path"))])


def _roles(path: Path, named: Sequence[tuple[str, PurePath]]) -> list[str]:
    """Settings that name a file or a folder of it; where none does, the file's own name, for folders may move."""
    roles = []
    for setting, place in named:
        # a network may be called by the end of its path, without the suffix
        if place.parts in (whole.parts[-len(place.parts) :] for whole in (path, path.with_suffix(""))):
            roles.append(setting)
        elif path.is_relative_to(place):
            roles.append(f"{setting}/{path.relative_to(place).as_posix()}")
    return sorted(roles) or [path.name]


def _strings(settings: Any, name: str = "") -> Iterator[tuple[str, PurePath]]:
    """All settings that could be paths, with their dotted names."""
    if isinstance(settings, Mapping | list):
        entries = settings.items() if isinstance(settings, Mapping) else enumerate(settings)
        for key, value in entries:
            yield from _strings(value, f"{name}.{key}".removeprefix("."))
    elif isinstance(settings, str) and settings:
        yield name, PurePath(settings)


def _weights(path: str | None) -> list[str]:
    return [checksum(path)] if path and os.path.isfile(path) else []


@cache
def _source() -> str:
    """A hash of the source, the same in a checkout and installed: numbers may change between two versions."""
    applied = _files_of(sys.modules[applications()])
    library = [path for path in _files_of(trivgeo) if path not in applied]
    return _digest(library + applied)


def _named(config: Mapping[str, Any]) -> list[str]:
    """Dotted names in settings, and in the headers of networks that were read."""
    named = [str(name) for part in ("model", "data") for _, name in _strings(_numeric(config.get(part)))]
    for path in files_read():
        if path.endswith(".safetensors"):
            # it is gone, or none
            with suppress(OSError, SafetensorError), safe_open(path, framework="pt") as file:
                named += re.findall(r"[\w.]+", str(file.metadata()))
    return [name for name in named if "." in name]


def _is_installed(file: Path) -> bool:
    """Whether a file came by an installer: into this environment, that of the user or that of the system."""
    folders = (Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    return bool({"site-packages", "dist-packages"} & set(file.parts)) or any(map(file.is_relative_to, folders))


def _files_of(module: ModuleType) -> list[Path]:
    """The source of a module, or of all modules of a package."""
    folders = [Path(folder) for folder in getattr(module, "__path__", ())]
    if folders:
        # editors leave links to nothing
        return [path for folder in folders for path in sorted(folder.rglob("*.py")) if path.is_file()]
    file = getattr(module, "__file__", None)
    return [] if file is None else [Path(file)]


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_row(row: Row | None) -> TypeGuard[Row]:
    """Whether something is what `ResultsWriter.write` writes: a checksum alone does not say so."""
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


def writer_of(trainer: pl.Trainer) -> ResultsWriter | None:
    """The writer of a trainer, if it has one."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return next((c for c in callbacks if isinstance(c, ResultsWriter)), None)


def summarise(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean over seeds of the mean over cases, standard deviation over seeds and largest case, of each metric.

    Metrics are the entries under `metrics` of a row.
    """
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    summary = {}
    for name in names:
        values = [
            torch.tensor([row["metrics"][name] for row in rows if row["seed"] == seed], dtype=torch.float64)
            for seed in seeds
        ]
        means = [float(v.mean()) for v in values]
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
