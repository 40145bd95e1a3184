"""Tables of the published figures and of the figures of this repository.

trivgeo report
"""

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivgeo._text import OneLineParser
from trivgeo.errors import ConfigurationError

from .config_inheritance import load, map_texts, read
from .files import make_folder, read_document, write_whole
from .released import FILES

_TASKS_FOLDER = Path(__file__).parent
TABLES = _TASKS_FOLDER / "configs" / "tables.yaml"
"""The published tables, and which run fills which cell."""
RELEASED_TABLES = TABLES.with_name("tables_released.yaml")
"""The same on the published networks."""
FURTHER_TABLES = TABLES.with_name("tables_further.yaml")
"""Times and ablations."""
KEPT = _TASKS_FOLDER / "kept"
"""Summaries of runs that are kept, and travel with the package."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        run: name of the run, `set/config`; empty where there is none to make.
        published: the text of the cell in the publication.
        metrics: metrics in place of those of the table.
        note: what is said where there is no run.
    """

    run: str = ""
    published: str = ""
    metrics: Mapping[str, float] | None = None
    note: str = ""


SECONDS = "seconds a case"
"""Name that stands among metrics for the time of a case."""

_COSTS = ("energy_evaluations", "gradient_evaluations", "network_evaluations", "gradient_evaluations_per_sample")


@dataclass(frozen=True)
class Result:
    """Summary of a run: its `results.json` without the rows.

    Attributes:
        summary: mean, standard deviation and worst value of every metric.
        cases: rows, of all seeds.
        seconds: a case; NaN where they are not known.
        evaluations: evaluations of energy, gradient, and networks that stand for the energy, for a case or a
            sample; none if the test does not count them.
        device: device on which the run was made.
        origin: the file.
        complete: whether all batches were done.
        seeds: number of seeds; ``None`` where the results do not say it.
    """

    summary: Mapping[str, Mapping[str, float]]
    cases: int
    seconds: float
    evaluations: float | None
    device: str
    origin: Path
    complete: bool = True
    seeds: int | None = None

    @property
    def size(self) -> str:
        """The cases, as seeds x cases of a seed where there are several seeds; empty where it is not known."""
        if self.seeds is None:
            return ""
        return f"{self.cases:,}" if self.seeds == 1 else f"{self.seeds} x {self.cases // self.seeds:,}"

    def figure(self, metric: str, factor: float) -> str:
        """A metric with its uncertainty, see `uncertainty`; empty where the run has no such metric."""
        if metric == SECONDS:
            return _three_digits(factor * self.seconds)
        found = self.summary.get(metric)
        if found is None:
            return ""
        return f"{factor * found['mean']:.4g}{self.uncertainty(metric, factor)}"

    def uncertainty(self, metric: str, factor: float) -> str:
        """The standard deviation over seeds, then for accuracies that over images, of a share with a uniform prior."""
        found, text = self.summary[metric], ""
        if self.seeds is None or self.seeds > 1:
            text = spread(found, factor) or "±0" * (self.seeds is not None)
        if self.seeds is not None and metric.startswith("accuracy"):
            text += f"±{factor * self.error_over_cases(metric):.2g}"
        return text

    def error_over_cases(self, metric: str) -> float:
        """The standard error of a share of the cases, which are the same for all seeds."""
        cases = self.cases // (self.seeds or 1)
        share = (self.summary[metric]["mean"] * cases + 1.0) / (cases + 2.0)  # no certainty where all cases are right
        return math.sqrt(share * (1.0 - share) / (cases + 3.0))


@dataclass(frozen=True)
class Table:
    """A published table.

    Attributes:
        title: heading of the table.
        metrics: the metrics of a cell, separated by a slash in print, and the factor of each.
        columns: labels.
        rows: label and cells of every line.
    """

    title: str
    metrics: Mapping[str, float]
    columns: Sequence[str]
    rows: Mapping[str, Sequence[Cell]]


def read_tables(path: Path = TABLES) -> list[Table]:
    """Read the tables.

    Raises:
        ConfigurationError: an entry is missing or unknown, or a line has too few cells.
    """
    tables = []
    for entry in load(path):
        try:
            rows = {label: [Cell(**cell) for cell in cells] for label, cells in entry.pop("rows").items()}
            table = Table(rows=rows, **entry)
        except (KeyError, TypeError) as error:
            raise ConfigurationError(f"{path}: expected the description of a table: {error}") from error
        for label, cells in rows.items():
            if len(cells) != len(table.columns):
                raise ConfigurationError(
                    f"{path}: {table.title}: {label}: expected {len(table.columns)} cells, got {len(cells)}"
                )
        tables.append(table)
    return tables


def find_result(run: str, roots: Sequence[Path]) -> Result | None:
    """The result of a run in the first folder that has one."""
    for root in roots:
        for path in (root / run / "results.json", root / f"{run}.json"):
            if os.path.exists(path):  # false, where `Path.exists` raises, for names that no file can have
                return read_result(path)
    return None


def keep(run: str, root: Path, target: Path = KEPT) -> Path:
    """Copy the summary of a run, all but its rows, to the folder of kept results.

    Raises:
        ConfigurationError: there is no such run, or it is damaged or incomplete.
    """
    path = root / run / "results.json"
    if not path.exists():
        raise ConfigurationError(f"run: expected one with results in {root}, got {run!r}")
    read_result(path)  # raises on a damaged file
    document = read_document(path)
    if not document.get("complete", True):
        raise ConfigurationError(f"{path}: expected all batches, {document.get('missing_batches')} are missing")
    if "rows" not in document or not isinstance(document.get("files", {}), dict):
        raise ConfigurationError(f"{path}: expected the results of a test, with its rows and files")
    rows = document.pop("rows")
    # where files lay on this machine says nothing elsewhere
    document["config"] = map_texts(document.get("config") or {}, _published_file)
    document["files"] = {_place(Path(name)): sha256 for name, sha256 in document.get("files", {}).items()}
    document["cases"] = len(rows)
    document["seconds_a_case"] = _mean(rows, "seconds")
    document["evaluations_a_case"] = _evaluations(rows)
    kept = target / f"{run}.json"
    make_folder(kept.parent)
    write_whole(kept, json.dumps(document, indent=1) + "\n")
    return kept


def _published_file(text: str) -> str:
    """A text, or the place in its checkout of a published file."""
    return next((file for file in FILES.values() if text.endswith(f"/{file}")), text)


def _place(path: Path) -> str:
    """The path in the repository; the name of a file that is elsewhere."""
    root = _TASKS_FOLDER.parent
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def read_result(path: Path) -> Result:
    """The summary in a file of results, with or without rows.

    Raises:
        ConfigurationError: it is damaged.
    """
    document = read_document(path)
    rows: list[dict[str, Any]] = document.get("rows", [])
    try:
        return Result(
            document["metrics"],
            int(document.get("cases", len(rows))),
            _seconds(document),
            _number(document.get("evaluations_a_case", _evaluations(rows))),
            document.get("device_name", document["device"]),
            path,
            bool(document.get("complete", True)),
            _seeds(document),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"{path}: expected the results of a test: {error}") from error


def _seeds(document: Mapping[str, Any]) -> int | None:
    """The number of seeds that the configuration of a run names."""
    data = (document.get("config") or {}).get("data") or {}
    settings = data.get("init_args") or {}
    seeds = settings.get("seeds", [settings["seed"]] if "seed" in settings else None)  # older runs named one
    return len(seeds) if isinstance(seeds, list) and seeds else None


def _seconds(document: Mapping[str, Any]) -> float:
    """Seconds a case, NaN for a kept summary that does not say them."""
    if "seconds_a_case" in document:
        return float(document["seconds_a_case"])
    return _mean(document["rows"], "seconds") if document.get("rows") else math.nan


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(float(row.get(name, 0.0)) for row in rows) / max(1, len(rows))


def _evaluations(rows: Sequence[Mapping[str, Any]]) -> float | None:
    counted = [name for name in _COSTS if any(name in row for row in rows)]
    return sum(_mean(rows, name) for name in counted) if counted else None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def count_text(evaluations: float | None) -> str:
    """A number of evaluations for a table."""
    return "–" if evaluations is None else f"{evaluations:,.0f}"


def _three_digits(number: float) -> str:
    """A number with three significant digits and commas between thousands; a dash where it is not known."""
    return "–" if math.isnan(number) else f"{float(f'{number:.3g}'):,g}"


def format_table(table: Table, roots: Sequence[Path]) -> tuple[str, list[dict[str, Any]]]:
    """A table as Markdown, figures of this repository with the published ones in brackets; and as plain data."""
    lines = [f"## {table.title}", "", "| method | " + " | ".join(table.columns) + " |"]
    lines.append("|---" * (len(table.columns) + 1) + "|")
    cost: dict[str, str] = {}
    data: list[dict[str, Any]] = []
    missing: list[str] = []
    broken: list[str] = []
    for label, cells in table.rows.items():
        texts = []
        for column, cell in zip(table.columns, cells, strict=True):
            try:
                result = find_result(cell.run, roots) if cell.run else None
            except ConfigurationError as error:
                result = None
                broken.append(str(error))
            metrics = table.metrics if cell.metrics is None else cell.metrics
            ours = _figures(metrics, result) + incomplete(result is None or result.complete)
            if cell.run and result is None and not cell.note:
                missing.append(cell.run)
            texts.append(_cell_text(ours, "" if result is None else result.size, cell))
            data.append(
                {
                    "table": table.title,
                    "method": label,
                    "column": column,
                    "run": cell.run,
                    "ours": None if result is None else {m: result.summary.get(m) for m in metrics},
                    "published": cell.published,
                    "cases": None if result is None else result.cases,
                    "seeds": None if result is None else result.seeds,
                    "evaluations": None if result is None else result.evaluations,
                    "seconds": None if result is None else result.seconds,
                }
            )
            if result is not None:
                took = _three_digits(1e3 * result.seconds)
                columns = (cell.run, f"{result.cases:,}", count_text(result.evaluations), took, result.device)
                cost[cell.run] = f"| {' | '.join(columns)} |"
        lines.append(f"| {label} | " + " | ".join(texts) + " |")
    if cost:
        heading = ["", "| run | cases | evaluations a case | ms a case | device |", "|---|---|---|---|---|"]
        lines += heading + list(cost.values())
    if missing:
        lines += ["", "Not run yet: " + ", ".join(dict.fromkeys(missing))]
    if broken:
        lines += ["", *(f"Not read: {reason}" for reason in dict.fromkeys(broken))]
    return "\n".join(lines), data


def incomplete(complete: object) -> str:
    """Mark behind the figures of a run with missing batches."""
    return "" if complete else " (incomplete)"


def spread(cell: Mapping[str, float], factor: float, sign: str = "±") -> str:
    """The standard deviation behind a mean; nothing where seeds differ by rounding alone."""
    return f"{sign}{factor * cell['std']:.2g}" if cell["std"] > 1e-9 * abs(cell["mean"]) else ""


def _figures(metrics: Mapping[str, float], result: Result | None) -> str:
    if result is None:
        return ""
    return " / ".join(filter(None, (result.figure(metric, factor) for metric, factor in metrics.items())))


def _cell_text(ours: str, size: str, cell: Cell) -> str:
    published = f"({cell.published})" if cell.published else ""
    if ours:
        return " ".join(filter(None, (f"**{ours}**", f"[{size}]" if size else "", published)))
    if cell.note:
        return " ".join(filter(None, (cell.note, published)))
    return f"not run {published}".rstrip() if cell.run else published or "–"


SAMPLERS = {
    "SO(10), quadratic": ("so10/tied_published", "so10/tied"),
    "Aff(2), VAE": ("affnist/tied_published", "affnist/tied_vae"),
    "Aff(2), classifier": ("affnist/tied_published_classifier", "affnist/tied_classifier"),
    "PGL(3), VAE": ("homnist/tied_published", "homnist/tied_vae"),
    "PGL(3), classifier": ("homnist/tied_published_classifier", "homnist/tied_classifier"),
    "heat, SL(2) x H(1)": ("heat/tied_published", "heat/tied"),
    "Burgers, SL(2) x R^2": ("burgers/tied_published", "burgers/tied"),
}
"""Rows of the published table of configurations: the configuration as published, and ours."""


def _sampler(config: str) -> dict[str, Any]:
    """The settings of the search of a configuration."""
    model = read(config)["model"]["init_args"]
    inverter = model.get("inverter", model.get("sampler", {}))["init_args"]
    low, high = (inverter["schedule"]["init_args"][end] for end in ("minimum", "maximum"))
    group = model.get("action", {}).get("init_args", {}).get("group", {}).get("init_args", {})
    scale = model.get("scale") or group.get("scale")
    further = ["exact"] * (not inverter.get("published", inverter.get("uniform_start") is False))
    further += [name.replace("_", " ") for name in ("keep_best", "pruning") if inverter.get(name)]
    further += ["descent"] * ("finish" in model) + ["calibrated basis"] * ("calibrate" in model)
    return {
        "noise": f"({low:g}, {high:g})",
        "M": inverter["steps"],
        "N": inverter["num_mc"],
        "K": inverter.get("num_hypotheses", "–"),
        "T": f"{inverter.get('temperature', 1.0):g}",
        "longest score": f"{inverter['max_score_norm']:g}" if "max_score_norm" in inverter else "–",
        "basis": "–" if scale is None else ", ".join(f"{x:g}" for x in dict.fromkeys(scale)),
        "further": ", ".join(further) or "–",
    }


def format_samplers() -> str:
    """The published table of configurations as Markdown, each setting of ours beside it where it differs."""
    lines = []
    for label, (published, ours) in SAMPLERS.items():
        theirs, own = _sampler(published), _sampler(ours)
        cells = [f"{value}" if own[name] == value else f"{value} (**{own[name]}**)" for name, value in theirs.items()]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    header = ["group and energy", *_sampler("heat/tied")]
    top = ["## Configurations of the search", "", "| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return "\n".join([*top, *lines])


def _origin(tables: Sequence[Table], runs: Path) -> str:
    """Which figures are of runs in the user's folder."""
    names = {cell.run for table in tables for cells in table.rows.values() for cell in cells if cell.run}
    own = sorted(name for name in names if find_result(name, [runs]) is not None)
    known = f"Runs in {runs}: {', '.join(own)}; all others" if own else f"No run in {runs} is of these tables: all runs"
    return f"{known} come with the library. A run of another configuration has its table in its own folder."


def main(arguments: Sequence[str]) -> None:
    """Print all tables and write them as `report.md` and `report.json`.

    Args:
        arguments: the command line after `report`.

    Raises:
        ConfigurationError: there is no such folder of runs, or no such run to keep.
    """
    parser = OneLineParser(prog="trivgeo report", description="published tables with the figures of this repository")
    parser.add_argument("--runs", help="folder of runs (default: runs); those kept in the repository fill the gaps")
    parser.add_argument("--output", default="runs/report", help="folder of report.md and report.json")
    parser.add_argument("--keep", nargs="*", default=[], metavar="RUN", help="first keep these runs in the repository")
    options = parser.parse_args(arguments)
    runs, output = Path(options.runs or "runs"), Path(options.output)
    if options.runs is not None and not runs.is_dir():  # a slip, that figures of others would cover
        raise ConfigurationError(f"--runs: expected a folder of runs, got {options.runs}, which is not a folder")
    for run in options.keep:
        sys.stdout.write(f"kept {keep(run, runs)}\n")
    texts, data = [], []
    tables = [table for path in (RELEASED_TABLES, TABLES, FURTHER_TABLES) for table in read_tables(path)]
    for table in tables:
        text, cells = format_table(table, (runs, KEPT))
        texts.append(text)
        data += cells
    legend = (
        "Ours in bold, the published figure in round brackets (Kim et al. 2026). Square brackets: cases, or seeds x "
        "cases of a seed. ±: the standard deviation over seeds, then for accuracies the standard error over images."
    )
    document = "\n\n".join(["# Results", legend, _origin(tables, runs), *texts, format_samplers()]) + "\n"
    make_folder(output)
    write_whole(output / "report.md", document)
    write_whole(output / "report.json", json.dumps(data, indent=1) + "\n")
    sys.stdout.write(f"{document}\nwritten to {output / 'report.md'}\n")
