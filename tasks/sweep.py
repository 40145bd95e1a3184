"""Tables of runs: one configuration with two of its settings varied, by one command.

trivgeo sweep --config affnist/sweep_steps
"""

import argparse
import copy
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from trivgeo.errors import ConfigurationError

from . import cli, config_inheritance
from .files import make_folder, storage, write_picture, write_whole
from .report import KEPT, Result, find_result, incomplete, read_result, spread


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
            document = config_inheritance.load(config_inheritance.find(path))
            for axis in ("rows", "columns"):
                document[axis] = [Line(**line) for line in document[axis]]
            sweep = cls(**document)
            sweep._check()
        except (ConfigurationError, KeyError, TypeError) as error:
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

    def run(self, run_test: Callable[[list[str]], Any]) -> list[list[dict[str, Any]]]:
        """Run every cell, or go on with it; return its summary of the metric, and evaluations and seconds a case.

        Args:
            run_test: runs a test from command line arguments.
        """
        table = []
        for row in self.rows:
            cells = []
            for place, column in enumerate(self.columns):
                folder = Path(self.directory) / _slug(f"{row.label} {column.label}")
                make_folder(folder)
                override = folder / "settings.yaml"
                write_whole(override, yaml.safe_dump(self.settings_of(row, place)))
                writer = {"class_path": "tasks.results.ResultsWriter", "init_args": {"directory": str(folder)}}
                arguments = [f"--config={file}" for file in [*self.base, str(override)]]
                arguments += [f"--trainer.callbacks=[{json.dumps(writer)}]", f"--trainer.default_root_dir={folder}"]
                run_test(["test", *arguments])
                result = read_result(folder / "results.json")
                cost = {"evaluations": result.evaluations, "seconds": result.seconds, "complete": result.complete}
                cells.append({**self.of(result), **cost})
            table.append(cells)
        return table

    def format(self, table: Sequence[Sequence[Mapping[str, Any]]]) -> str:
        """The table as Markdown, each figure with the published one in brackets."""
        lines = [f"{self.title}", "", "| | " + " | ".join(c.label for c in self.columns) + " |"]
        lines.append("|---" * (len(self.columns) + 1) + "|")
        for i, row in enumerate(self.rows):
            cells = []
            for j, cell in enumerate(table[i]):
                text = f"{self.factor * cell['mean']:.4g}{spread(cell, self.factor, ' ± ')}"
                text += incomplete(cell.get("complete", True))
                cells.append(f"{text} ({self.published[i][j]:g})" if self.published else text)
            lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
        return "\n".join(lines)


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


def main(arguments: Sequence[str], run_test: Callable[[list[str]], Any] = cli.main) -> None:
    """Run a table, print it, and write it as `table.md`, `table.json` and `table.png`.

    Args:
        arguments: the command line after `sweep`.
        run_test: see `Sweep.run`.
    """
    parser = argparse.ArgumentParser(prog="trivgeo sweep", description="run a table of tests")
    parser.add_argument("--config", required=True, help="YAML file with the table")
    sweep = Sweep.read(parser.parse_args(arguments).config)
    folder = Path(sweep.directory)
    # missing runs and folders that cannot be written raise before hours of tests
    sweep.marked()
    make_folder(folder)
    table = sweep.run(run_test)
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
