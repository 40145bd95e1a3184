"""Tables of runs: one configuration with two of its settings varied, by one command.

trivgeo sweep --config affnist/sweep_steps --jobs 2

Cells are independent runs. Each has a folder of its own, which one process at a time writes to, and goes on where it
stopped. Joblib runs several on one machine, submitit on a cluster.
"""

import copy
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import yaml
from matplotlib.figure import Figure

from trivgeo._text import OneLineParser
from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError, TrivgeoError, missing_package

from . import cli, config_inheritance
from .files import FolderInUseError, make_folder, storage, write_picture, write_whole
from .report import KEPT, Result, find_result, incomplete, read_result, spread

RunTest = Callable[[list[str]], Any]
"""Runs a test from command line arguments."""

CLUSTERS = ("slurm", "local", "debug")
"""Where submitit runs jobs: a Slurm cluster, processes of this machine, this process."""

_RETRY_SECONDS = 2.0  # pause before cells that other runs write to are tried again
_POLL_SECONDS = 2.0  # pause between questions to a cluster whether jobs have ended
_TIMEOUT_MINUTES = 240  # of a job; the default of submitit is five


@dataclass(frozen=True)
class Line:
    """One line, or one column, of a table: a label, and the settings that it stands for.

    Attributes:
        label: name of the line in print.
        settings: dotted names of settings and their values.
        series: values along a line: dotted names of settings and their values in each column.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    series: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """A table of runs.

    Attributes:
        title: heading of the table.
        base: configuration files that all cells share.
        settings: dotted names of settings that all cells share, over those of the files.
        metric: the entry of `metrics` in `results.json` that fills the cells.
        factor: ratio of the printed numbers over the metric.
        directory: each cell writes its results to a folder in it.
        rows: the lines.
        columns: the columns.
        published: the published figure of every cell, or nothing.
        scale: scale of the metric in the picture, "linear" or "log".
        quantity: what the metric measures, if its name does not say so; before its name in the picture.
        marks: labels and folders of other runs of the same test, which the picture shows, too.
        quoted: labels of published figures, and the number of evaluations and the figure, which the picture shows, too.
    """

    title: str
    base: Sequence[str]
    settings: Mapping[str, Any]
    metric: str
    factor: float
    directory: str
    rows: Sequence[Line]
    columns: Sequence[Line]
    published: Sequence[Sequence[float]] = ()
    scale: str = "linear"
    quantity: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)
    quoted: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str) -> "Sweep":
        """Read a table from a YAML file.

        Raises:
            ConfigurationError: an entry is missing or unknown, `published` or a series has another shape, or a setting
                lies inside one that has none.
        """
        try:
            document = _entries(cls, "", config_inheritance.load(config_inheritance.find(path)))
            for axis in ("rows", "columns"):
                _expect(axis, "a list", document[axis], list)
                document[axis] = [Line(**_entries(Line, f"{axis}: ", line)) for line in document[axis]]
            sweep = cls(**document)
            sweep._check()
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: expected the description of a table: {error}") from error
        shape = (len(sweep.rows), len(sweep.columns))
        if sweep.published and [len(line) for line in sweep.published] != [shape[1]] * shape[0]:
            raise ConfigurationError(f"{path}: published: expected {shape[0]} lines of {shape[1]} numbers")
        for line in sweep.rows:
            if any(len(values) != shape[1] for values in line.series.values()):
                raise ConfigurationError(f"{path}: {line.label}: series: expected {shape[1]} values each")
            for place in range(shape[1]):
                sweep.settings_of(line, place)
        return sweep

    def _check(self) -> None:
        for name in ("title", "metric", "directory", "scale", "quantity"):
            _expect(name, "a text", getattr(self, name), str)
        if self.scale not in ("linear", "log"):
            raise ConfigurationError(f"scale: expected linear or log, got {self.scale!r}")
        _expect("factor", "a number", self.factor, int, float)
        for name in ("base", "rows", "columns", "published"):
            _expect(name, "a list", getattr(self, name), list, tuple)
        for name in ("settings", "marks", "quoted"):
            _expect(name, "names and values", getattr(self, name), dict)
        for kind, entries in (("base", self.base), ("marks", self.marks.values())):
            for entry in entries:
                _expect(kind, "texts", entry, str)
        for published in self.published:
            _expect("published", "lists of numbers", published, list)
            for number in published:
                _expect("published", "lists of numbers", number, int, float)
        lines = (*self.rows, *self.columns)
        for name in chain(self.settings, self.marks, self.quoted, *(chain(x.settings, x.series) for x in lines)):
            _expect("names of settings and labels", "texts", name, str)
        for line in lines:
            _expect("label", "a text", line.label, str)
            _expect(f"{line.label}: settings", "names and values", line.settings, dict)
            _expect(f"{line.label}: series", "names and values", line.series, dict)
            for values in line.series.values():
                _expect(f"{line.label}: series", "lists", values, list)
        for place in self.quoted.values():
            _expect("quoted", "two numbers", place, list)
            if len(place) != 2 or not all(isinstance(number, int | float) for number in place):
                raise ConfigurationError(f"quoted: expected two numbers, got {place!r}")

    def settings_of(self, row: Line, place: int) -> dict[str, Any]:
        """The settings of a cell as a tree: those of the column win over those of the row, and its series over both.

        Args:
            row: row of the cell.
            place: number of its column.

        Raises:
            ConfigurationError: a setting lies inside one that has no settings.
        """
        series = {name: values[place] for name, values in row.series.items()}
        return _nested(self.settings, row.settings, self.columns[place].settings, series)

    def of(self, result: Result) -> Mapping[str, float]:
        """Mean and spread of the metric in a run.

        Raises:
            ConfigurationError: the run has no such metric.
        """
        if self.metric not in result.summary:
            known = ", ".join(result.summary)
            raise ConfigurationError(f"{result.origin}: metric: expected one of {known}, got {self.metric!r}")
        return result.summary[self.metric]

    def marked(self) -> dict[str, Result]:
        """The results of the other runs in the picture, by label; those kept with the library where there was no run.

        Raises:
            ConfigurationError: there are none in a folder, they are damaged, or lack the metric.
        """
        found = {}
        for label, folder in self.marks.items():
            result = find_result(folder, [Path()]) or find_result(folder.removeprefix("runs/"), [KEPT])
            if result is None:
                raise ConfigurationError(f"marks: {label}: expected the folder of a run with results, got {folder!r}")
            found[label] = result
            self.of(result)
        return found

    def cells(self) -> list["Cell"]:
        """All cells, line by line, with folders that hold their settings.

        Raises:
            ConfigurationError: a folder holds a symbolic link.
            StorageError: it cannot be written to.
        """
        cells = []
        for row in self.rows:
            for place, column in enumerate(self.columns):
                folder = Path(self.directory) / _slug(f"{row.label} {column.label}")
                make_folder(folder)
                override = folder / "settings.yaml"
                write_whole(override, yaml.safe_dump(self.settings_of(row, place)))
                writer = {"class_path": "tasks.results.ResultsWriter", "init_args": {"directory": str(folder)}}
                arguments = ["test", *(f"--config={file}" for file in [*self.base, str(override)])]
                arguments += [f"--trainer.callbacks=[{json.dumps(writer)}]", f"--trainer.default_root_dir={folder}"]
                cells.append(Cell(f"{row.label}, {column.label}", folder, arguments))
        return cells

    def summary(self, cell: "Cell") -> dict[str, Any]:
        """Mean and spread of the metric in a cell that was run, with evaluations and seconds a case.

        Raises:
            ConfigurationError: its results have no such metric.
        """
        result = read_result(cell.folder / "results.json")
        cost = {"evaluations": result.evaluations, "seconds": result.seconds, "complete": result.complete}
        return {**self.of(result), **cost}

    def figure(self, summary: Mapping[str, Any]) -> str:
        """The text of a cell."""
        text = f"{self.factor * summary['mean']:.4g}{spread(summary, self.factor, ' ± ')}"
        return text + incomplete(summary.get("complete", True))

    def format(self, table: Sequence[Sequence[Mapping[str, Any]]]) -> str:
        """The table as Markdown, each figure with the published one in brackets."""
        lines = [f"{self.title}", "", "| | " + " | ".join(c.label for c in self.columns) + " |"]
        lines.append("|---" * (len(self.columns) + 1) + "|")
        for i, row in enumerate(self.rows):
            cells = []
            for j, cell in enumerate(table[i]):
                text = self.figure(cell)
                cells.append(f"{text} ({self.published[i][j]:g})" if self.published else text)
            lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
        return "\n".join(lines)


class Outcome(NamedTuple):
    """What came of a cell in another process.

    Attributes:
        number: number of the cell.
        error: what was wrong; ``None`` if the cell is done.
        is_in_use: whether another run writes to the folder of the cell.
    """

    number: int
    error: str | None = None
    is_in_use: bool = False


@dataclass(frozen=True)
class Cell:
    """One run of a table.

    Attributes:
        label: labels of line and column.
        folder: its results are written there.
        arguments: the command line that runs it, or goes on with it.
    """

    label: str
    folder: Path
    arguments: list[str]


@dataclass(frozen=True)
class CellJob:
    """A cell as a job of another process, which never raises; what the cell prints is in ``log.txt`` of its folder.

    Attributes:
        number: number of the cell.
        cell: the cell.
        run_test: see `RunTest`.
    """

    number: int
    cell: Cell
    run_test: RunTest

    def __call__(self) -> Outcome:
        log = self.cell.folder / "log.txt"
        try:
            with storage(log), log.open("a") as file, redirect_stdout(file):
                status = self.run_test([*self.cell.arguments, "--trainer.enable_progress_bar=false"])
        except FolderInUseError as error:
            return Outcome(self.number, str(error), True)
        except TrivgeoError as error:
            return Outcome(self.number, f"{type(error).__name__}: {error}")
        except SystemExit as error:
            status = error.code
        return Outcome(self.number, f"status {status}" if status else None)

    def checkpoint(self) -> Any:
        """What Slurm runs after it stopped this job for another, or at its time limit: the same job, which goes on."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


Execute = Callable[[list[CellJob]], Iterable[Outcome]]
"""Runs jobs side by side, and gives their outcomes as they come."""


def on_this_machine(jobs: int, work: list[CellJob]) -> Iterable[Outcome]:
    """Run jobs in ``jobs`` processes of this machine, by joblib; they share the cores.

    The last cells begin: tables mostly grow along lines and columns, and a long cell that begins last is waited for.
    """
    return joblib.Parallel(jobs, return_as="generator_unordered")(map(joblib.delayed(_call), reversed(work)))


def _call(job: CellJob) -> Outcome:
    return job()


def on_a_cluster(
    cluster: str, jobs: int, parameters: Mapping[str, Any], folder: Path, work: list[CellJob]
) -> Iterator[Outcome]:
    """Run each job as one of an array, at most ``jobs`` at a time, by submitit.

    Args:
        cluster: see `CLUSTERS`.
        jobs: jobs at a time; only Slurm has a bound.
        parameters: parameters of submitit's executor, such as ``timeout_min`` and ``slurm_partition``.
        folder: folder of submitit's files, which all machines see.
        work: the jobs.

    Raises:
        ConfigurationError: submitit is missing, or does not take a parameter, or there is no such cluster here.
    """
    if find_spec("submitit") is None:
        raise missing_package("cluster", "submitit", "cluster")
    import submitit

    try:
        executor = submitit.AutoExecutor(folder, cluster=cluster)
        executor.update_parameters(
            **{"timeout_min": _TIMEOUT_MINUTES, "slurm_array_parallelism": jobs, "name": "trivgeo", **parameters}
        )
        with executor.batch():  # an array of jobs
            sent = [executor.submit(job) for job in work]
    except (RuntimeError, TypeError, NameError, ValueError, AssertionError) as error:
        raise ConfigurationError(f"cluster: {cluster}: {error}") from error
    numbers = {id(job): cell.number for job, cell in zip(sent, work, strict=True)}
    for job in submitit.helpers.as_completed(sent, poll_frequency=_POLL_SECONDS):
        failed = job.exception()
        yield job.result() if failed is None else Outcome(numbers[id(job)], str(failed).strip().splitlines()[-1])


def run_cells(
    cells: Sequence[Cell], run_test: RunTest, read: Callable[[Cell], str], execute: Execute | None = None
) -> None:
    """Run cells, or go on with them.

    A cell in which another run works, such as that of a sweep that was killed, is tried again until that run has ended.

    Args:
        cells: the cells.
        run_test: see `RunTest`; it can be sent to other processes.
        read: reads the results of a cell that is done, and returns its figure.
        execute: ``None`` for one cell after the other in this process, where the first error ends them.

    Raises:
        ConfigurationError: cells failed; all others are done.
    """
    if execute is None:
        for cell in cells:
            if status := run_test(cell.arguments):
                sys.exit(status)
            read(cell)
        return
    left = [CellJob(number, cell, run_test) for number, cell in enumerate(cells)]
    failed: list[str] = []
    num_done = 0
    while left:
        again, started = set(), time.monotonic()
        for outcome in execute(left):
            cell = cells[outcome.number]
            if outcome.is_in_use:
                again.add(outcome.number)
                continue
            num_done += 1
            if outcome.error is not None:
                failed.append(f"{cell.label}: {outcome.error} ({cell.folder / 'log.txt'})")
            figure = read(cell) if outcome.error is None else "failed"
            sys.stdout.write(f"{num_done} of {len(cells)}: {cell.label}: {figure}\n")
            sys.stdout.flush()
        left = [job for job in left if job.number in again]
        if left:
            time.sleep(max(0.0, _RETRY_SECONDS - (time.monotonic() - started)))
    if failed:
        raise ConfigurationError("\n".join([f"{len(failed)} of {len(cells)} cells failed:", *failed]))


def _entries(kind: type, where: str, document: object) -> dict[str, Any]:
    """A mapping with the entries of a dataclass, all that it needs and no others."""
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"{where}expected names with values, got {'nothing' if document is None else document!r}"
        )
    known = {entry.name: entry.default is MISSING and entry.default_factory is MISSING for entry in fields(kind)}
    if missing := [name for name, is_needed in known.items() if is_needed and name not in document]:
        run = ", got a configuration of one run (`trivgeo test` or `trivgeo fit`)" if "model" in document else ""
        raise ConfigurationError(f"{where}{', '.join(missing)} missing{run}")
    if unknown := [name for name in document if name not in known]:
        raise ConfigurationError(f"{where}expected {', '.join(known)}, got {', '.join(map(str, unknown))}")
    return dict(document)


def _expect(name: str, expected: str, value: object, *kinds: type) -> None:
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise ConfigurationError(f"{name}: expected {expected}, got {value!r}")


def draw_budget(path: Path, sweep: Sweep, table: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """The metric against the evaluations of a case, one line for each line of the table.

    Against the columns of the table if the test counts no evaluations.
    """
    counted = all(cell["evaluations"] is not None for cells in table for cell in cells)
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axis = figure.subplots()
    for row, cells in zip(sweep.rows, table, strict=True):
        ordered = sorted(cells, key=lambda cell: cell["evaluations"]) if counted else cells
        axis.errorbar(
            [cell["evaluations"] for cell in ordered] if counted else [column.label for column in sweep.columns],
            [sweep.factor * cell["mean"] for cell in ordered],
            yerr=[sweep.factor * cell["std"] for cell in ordered],
            marker="o",
            markersize=4,
            capsize=2,
            label=row.label,
        )
    for label, result in sweep.marked().items():
        cell = sweep.of(result)
        if result.evaluations is None or not counted:
            axis.axhline(sweep.factor * cell["mean"], linestyle=":", label=label + incomplete(result.complete))
            continue
        axis.errorbar(
            [result.evaluations],
            [sweep.factor * cell["mean"]],
            yerr=[sweep.factor * cell["std"]],
            marker="*",
            markersize=10,
            capsize=2,
            linestyle="none",
            label=label + incomplete(result.complete),
        )
    for label, (evaluations, value) in sweep.quoted.items():
        if counted:
            axis.plot([evaluations], [value], marker="x", color="black", linestyle="none", label=label)
        else:
            axis.axhline(value, linestyle="--", color="black", label=label)
    if counted:
        axis.set_xscale("log")
        axis.set_xlabel("evaluations of energies and networks for a case")
    axis.set_yscale(sweep.scale)
    axis.set_ylabel(f"{sweep.quantity} {sweep.metric}".strip() + (" (%)" if sweep.factor == 100.0 else ""))
    axis.set_title(sweep.title, fontsize=9, wrap=True)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    write_picture(figure, path, 110)


def main(arguments: Sequence[str], run_test: RunTest = cli.run) -> None:
    """Run a table, print it, and write it as `table.md`, `table.json` and `table.png`.

    Args:
        arguments: the command line after `sweep`.
        run_test: see `RunTest`.
    """
    parser = OneLineParser(prog="trivgeo sweep", description="run a table of tests, or go on with it")
    parser.add_argument("--config", required=True, help="YAML file with the table")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--cluster", choices=CLUSTERS, help="run each cell as a job of submitit; default: no cluster")
    parser.add_argument(
        "--submit",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="parameters of submitit, such as timeout_min=240 slurm_partition=gpu gpus_per_node=1",
    )
    options = parser.parse_args(arguments)
    check_count("jobs", options.jobs)
    if options.submit and options.cluster is None:
        raise ConfigurationError(f"--submit: expected --cluster beside it, got {' '.join(options.submit)} alone")
    for entry in options.submit:
        if not re.fullmatch(r"\w+=.+", entry):
            raise ConfigurationError(f"--submit: expected NAME=VALUE, such as timeout_min=240, got {entry!r}")
    sweep = Sweep.read(options.config)
    folder = Path(sweep.directory)
    # missing runs and folders that cannot be written raise before hours of tests
    sweep.marked()
    make_folder(folder)
    cells = sweep.cells()
    execute: Execute | None = None
    if options.cluster is not None:
        parameters = {name: yaml.safe_load(value) for name, _, value in (x.partition("=") for x in options.submit)}
        execute = partial(on_a_cluster, options.cluster, options.jobs, parameters, folder / "jobs")
    elif options.jobs > 1:
        execute = partial(on_this_machine, options.jobs)
    run_cells(cells, run_test, lambda cell: sweep.figure(sweep.summary(cell)), execute)
    found, width = [sweep.summary(cell) for cell in cells], len(sweep.columns)
    table = [found[start : start + width] for start in range(0, len(found), width)]
    text = sweep.format(table)
    with storage(folder / "table.png"):
        draw_budget(folder / "table.png", sweep, table)
    write_whole(folder / "table.md", text + "\n")
    document = {
        "title": sweep.title,
        "metric": sweep.metric,
        "rows": [r.label for r in sweep.rows],
        "columns": [c.label for c in sweep.columns],
        "cells": table,
        "published": sweep.published,
    }
    write_whole(folder / "table.json", json.dumps(document, indent=1) + "\n")
    sys.stdout.write(f"\n{text}\n\nwritten to {folder / 'table.md'}\n")


def _nested(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with dotted names as a tree; later layers win over earlier ones.

    A setting inside another is laid on it, in whatever order they come: a column that changes a class must not undo a
    line that sets one of its arguments. It is left out only where the other comes later and says the same setting, or
    that there is nothing.

    Raises:
        ConfigurationError: a setting lies inside one that has none.
    """
    settings: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            settings.pop(name, None)  # a setting that is given twice comes where it is given last
            settings[name] = copy.deepcopy(value)
    order = list(settings)
    tree: dict[str, Any] = {}
    for name in sorted(settings, key=lambda name: name.count(".")):
        later = order[order.index(name) + 1 :]
        if any(name.startswith(f"{o}.") and _has_setting(settings[o], name.removeprefix(f"{o}.")) for o in later):
            continue
        *path, last = name.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
            if not isinstance(branch, dict):
                raise ConfigurationError(f"{name}: expected {part!r} to have settings, got {branch!r}")
        branch[last] = config_inheritance.merge(branch.get(last), settings[name])
    return tree


def _has_setting(tree: Any, name: str) -> bool:
    """Whether a tree has a setting of this dotted name; a tree that is `None` resets all of them."""
    for part in name.split("."):
        if tree is None:
            return True
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def _slug(label: str) -> str:
    """A label as the name of a folder."""
    kept = "".join(c if c.isalnum() or c in ".-" else "_" for c in label)
    return "_".join(part for part in kept.split("_") if part)
