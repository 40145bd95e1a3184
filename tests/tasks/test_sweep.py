"""Tables of runs."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.figure import Figure

from tasks import config_inheritance, sweep
from tasks.files import FolderInUseError
from tasks.report import KEPT
from tasks.sweep import Line, Sweep
from trivgeo.errors import ConfigurationError, TrivgeoError

CONFIGS = Path(__file__).parents[2] / "tasks" / "configs"


class Runner:
    """Stands for the command line: the "accuracy" is a function of the settings that arrive."""

    def __init__(self, counts: bool = True) -> None:
        self.calls: list[list[str]] = []
        self.counts = counts

    def __call__(self, arguments: list[str]) -> None:
        self.calls.append(arguments)
        override = yaml.safe_load(Path(arguments[2].removeprefix("--config=")).read_text())
        settings = override["model"]["inverter"]
        value = 0.5 + settings["steps"] / 100 + settings["num_mc"] / 1000
        (callbacks,) = [a for a in arguments if a.startswith("--trainer.callbacks=")]
        writer = yaml.safe_load(callbacks.split("=", 1)[1])[0]
        assert writer["class_path"] == "tasks.results.ResultsWriter"
        folder = Path(writer["init_args"]["directory"])
        counts = {"gradient_evaluations": settings["steps"], "energy_evaluations": 1}
        rows = [{"seconds": 0.5, **(counts if self.counts else {})}] * 2
        metrics = {"accuracy": {"mean": value, "std": 0.0, "worst": 1.0}}
        result = {"metrics": metrics, "device": "cpu", "rows": rows}
        (folder / "results.json").write_text(json.dumps(result))


def table(folder: Path, **changes: Any) -> dict[str, Any]:
    document = {
        "title": "a table",
        "base": ["base.yaml"],
        "settings": {"model.inverter.num_mc": 7},
        "metric": "accuracy",
        "factor": 100.0,
        "directory": str(folder / "out"),
        "rows": [{"label": f"M = {m}", "settings": {"model.inverter.steps": m}} for m in (1, 2)],
        "columns": [
            {"label": "seven", "settings": {}},
            {"label": "one", "settings": {"model.inverter.num_mc": 1}},
        ],
        "published": [[50, 51], [52, 53]],
    }
    return document | changes


def test_every_cell_is_run_with_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, runner = tmp_path / "sweep.yaml", Runner()
    path.write_text(yaml.safe_dump(table(tmp_path)))
    sweep.main(["--config", str(path)], runner)
    assert len(runner.calls) == 4
    assert all(call[:2] == ["test", "--config=base.yaml"] for call in runner.calls)
    written = json.loads((tmp_path / "out" / "table.json").read_text())
    means = [[cell["mean"] for cell in line] for line in written["cells"]]
    assert means == [pytest.approx([0.517, 0.511]), pytest.approx([0.527, 0.521])]
    assert [[cell["evaluations"] for cell in line] for line in written["cells"]] == [[2, 2], [3, 3]]
    assert (tmp_path / "out" / "table.png").read_bytes()[:4] == b"\x89PNG"
    assert "| M = 2 | 52.7 (52) | 52.1 (53) |" in capsys.readouterr().out


def test_tests_that_count_no_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are drawn against the columns."""
    path, drawn = tmp_path / "sweep.yaml", []

    def save(figure: Figure, file: Path, **_: Any) -> None:
        drawn.append(figure.axes[0])
        file.touch()

    monkeypatch.setattr(Figure, "savefig", save)
    path.write_text(yaml.safe_dump(table(tmp_path)))
    sweep.main(["--config", str(path)], Runner(counts=False))
    (axis,) = drawn
    assert [text.get_text() for text in axis.get_xticklabels()] == ["seven", "one"]
    assert axis.get_xscale() == "linear"
    assert "null" in (tmp_path / "out" / "table.json").read_text()


def test_a_line_may_have_its_own_series_and_the_picture_other_runs(tmp_path: Path) -> None:
    path, runner = tmp_path / "sweep.yaml", Runner()
    shared = {"model.inverter": {"steps": 5, "num_mc": 1}}
    rows = [{"label": "series", "settings": shared, "series": {"model.inverter.steps": [10, 20]}}]
    path.write_text(yaml.safe_dump(table(tmp_path, rows=[*rows, {"label": "plain", "settings": shared}], published=[])))
    sweep.main(["--config", str(path)], runner)
    written = json.loads((tmp_path / "out" / "table.json").read_text())
    means = [[cell["mean"] for cell in line] for line in written["cells"]]
    assert means == [pytest.approx([0.601, 0.701]), pytest.approx([0.551, 0.551])]
    before = (tmp_path / "out" / "table.png").read_bytes()
    marked = table(tmp_path, rows=rows, published=[], marks={"other": str(tmp_path / "out" / "plain_one")})
    path.write_text(yaml.safe_dump(marked))
    sweep.main(["--config", str(path)], runner)
    after = (tmp_path / "out" / "table.png").read_bytes()
    assert after != before
    path.write_text(yaml.safe_dump(marked | {"quoted": {"published": [40, 55.0]}}))
    sweep.main(["--config", str(path)], runner)
    assert (tmp_path / "out" / "table.png").read_bytes() != after


def test_the_picture_has_kept_runs_where_none_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the README, where nothing was run before; a run that was made comes first."""
    read = Sweep.read(str(CONFIGS / "heat" / "budget.yaml"))
    monkeypatch.chdir(tmp_path)
    (kept,) = read.marked().values()
    assert kept.origin == KEPT / "heat" / "amortized_mixed.json"
    made = tmp_path / "runs" / "heat" / "amortized_mixed" / "results.json"
    made.parent.mkdir(parents=True)
    made.write_text(kept.origin.read_text())
    (own,) = read.marked().values()
    assert own.origin.resolve() == made


def test_settings_inside_others_hold_in_any_order(tmp_path: Path) -> None:
    """Whichever of line and column changes the class; what comes later wins where both say the same."""
    steps, kind = {"model.inverter.init_args.steps": 9}, {"model.inverter": {"class_path": "Other"}}
    both = {"class_path": "Other", "init_args": {"steps": 9}}
    first = {"model.inverter": {"class_path": "First", "init_args": {"steps": 1, "samples": 2}}}
    for base, line, column, expected in (
        ({}, steps, kind, both),
        ({}, kind, steps, both),
        (first, steps, kind, both),
        (steps, first, {}, first["model.inverter"]),
        (steps, first, steps, {"class_path": "First", "init_args": {"steps": 9, "samples": 2}}),
        (first, steps, {"model.inverter": None}, None),
    ):
        rows, columns = [{"label": "a", "settings": line}], [{"label": "b", "settings": column}]
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(table(tmp_path, settings=base, rows=rows, columns=columns, published=[])))
        read = Sweep.read(str(path))
        assert read.settings_of(read.rows[0], 0) == {"model": {"inverter": expected}}


def test_bad_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(table(tmp_path, published=[[1, 2]])))
    with pytest.raises(ConfigurationError, match="published: expected 2 lines of 2 numbers"):
        Sweep.read(str(path))
    rows = [{"label": "short", "settings": {}, "series": {"model.inverter.steps": [10]}}]
    path.write_text(yaml.safe_dump(table(tmp_path, rows=rows, published=[])))
    with pytest.raises(ConfigurationError, match="short: series: expected 2 values each"):
        Sweep.read(str(path))
    path.write_text(yaml.safe_dump(table(tmp_path, colour="red")))
    with pytest.raises(ConfigurationError, match="expected the description of a table"):
        Sweep.read(str(path))
    with pytest.raises(ConfigurationError, match="expected the description of a table"):
        Sweep.read(str(tmp_path / "missing.yaml"))
    with pytest.raises(ConfigurationError, match="got a configuration of one run"):
        Sweep.read("affnist/small")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"factor": "x"}, "factor: expected a number, got 'x'"),
        ({"scale": "x"}, "scale: expected linear or log, got 'x'"),
        ({"settings": 5}, "settings: expected names and values, got 5"),
        ({"published": 5}, "published: expected a list, got 5"),
        ({"published": [5, 6]}, "published: expected lists of numbers, got 5"),
        ({"directory": None}, "directory: expected a text, got None"),
        ({"rows": 5}, "expected the description of a table: rows: expected a list, got 5"),
        ({"rows": [{"settings": {}}]}, "rows: label missing"),
        ({"colour": "red"}, "expected title, base, .*, got colour"),
        ({"settings": {1: 2}}, "names of settings and labels: expected texts, got 1"),
        ({"settings": {"model.inverter": None}}, "steps: expected 'inverter' to have settings, got None"),
        ({"rows": [{"label": "a", "settings": []}]}, "a: settings: expected names and values"),
        ({"quoted": {"a": 5}}, "quoted: expected two numbers, got 5"),
        ({"marks": {"other": "no/folder"}}, "marks: other: expected the folder of a run with results, got 'no/folder'"),
        ({"directory": "/dev/null/x"}, "/dev/null/x: expected a file that can be written"),
    ],
    ids=str,
)
def test_bad_tables_are_refused_before_any_test(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path, runner = tmp_path / "sweep.yaml", Runner()
    path.write_text(yaml.safe_dump(table(tmp_path, **changes)))
    with pytest.raises(TrivgeoError, match=reason):
        sweep.main(["--config", str(path)], runner)
    assert not runner.calls


def test_an_unknown_metric_is_an_error(tmp_path: Path) -> None:
    path, runner = tmp_path / "sweep.yaml", Runner()
    path.write_text(yaml.safe_dump(table(tmp_path, metric="colour")))
    with pytest.raises(ConfigurationError, match="metric: expected one of accuracy, got 'colour'"):
        sweep.main(["--config", str(path)], runner)
    assert len(runner.calls) == 1


def test_incomplete_cells_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Stopped(Runner):
        def __call__(self, arguments: list[str]) -> None:
            super().__call__(arguments)
            path = Path(arguments[2].removeprefix("--config=")).with_name("results.json")
            path.write_text(json.dumps(json.loads(path.read_text()) | {"complete": len(self.calls) > 1}))

    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(table(tmp_path)))
    sweep.main(["--config", str(path)], Stopped())
    text = (tmp_path / "out" / "table.md").read_text()
    assert text in capsys.readouterr().out
    assert "| M = 1 | 51.7 (incomplete) (50) | 51.1 (51) |" in text


def test_no_cell_is_written_through_a_link(tmp_path: Path) -> None:
    path, runner, outside = tmp_path / "sweep.yaml", Runner(), tmp_path / "outside"
    outside.write_text("mine")
    cell = tmp_path / "out" / "M_1_seven"
    cell.mkdir(parents=True)
    (cell / "settings.yaml").symlink_to(outside)
    path.write_text(yaml.safe_dump(table(tmp_path)))
    with pytest.raises(ConfigurationError, match=r"without symbolic links, got one with 'settings.yaml'"):
        sweep.main(["--config", str(path)], runner)
    assert outside.read_text() == "mine"
    assert not runner.calls


@pytest.mark.parametrize("name", ["heat/budget", "affnist/budget"])
def test_shipped_budgets_can_be_read(name: str) -> None:
    read = Sweep.read(str(CONFIGS / f"{name}.yaml"))
    assert all((CONFIGS.parents[1] / base).exists() for base in read.base)
    assert all(line.series for line in read.rows)
    assert {(CONFIGS / f"{mark.removeprefix('runs/')}.yaml").exists() for mark in read.marks.values()} == {True}


@pytest.mark.parametrize("name", ["affnist/sweep_steps", "affnist/sweep_schedule"])
def test_shipped_tables_name_settings_that_exist(name: str) -> None:
    read = Sweep.read(str(CONFIGS / f"{name}.yaml"))
    assert all((CONFIGS.parents[1] / base).exists() for base in read.base)
    base = config_inheritance.read(CONFIGS.parents[1] / read.base[0])
    lines = [*read.rows, *read.columns, Line("", read.settings)]
    for setting in {s for line in lines for s in line.settings}:
        branch = base
        for part in setting.split("."):
            assert part in branch, setting
            branch = branch[part]


class SmallTest(Runner):
    """A runner that other processes can be sent, and which leaves a note of each run."""

    def __call__(self, arguments: list[str]) -> None:
        folder = Path(arguments[2].removeprefix("--config=")).parent
        with (folder / "runs.txt").open("a") as file:
            file.write(f"{os.getpid()}\n")
        super().__call__(arguments)


class HeldOnce(SmallTest):
    """The first run of a cell finds its folder in use."""

    def __call__(self, arguments: list[str]) -> None:
        folder = Path(arguments[2].removeprefix("--config=")).parent
        if not (folder / "runs.txt").exists():
            (folder / "runs.txt").touch()
            raise FolderInUseError("in use")
        super().__call__(arguments)


class Failing(SmallTest):
    """The cells of a setting fail, each in its own way."""

    def __call__(self, arguments: list[str]) -> Any:
        if "M_1_one" in arguments[2]:
            raise ConfigurationError("too few")
        if "M_2_one" in arguments[2]:
            sys.exit(2)
        return super().__call__(arguments)


def outcome_of(tmp_path: Path, runner: Runner, *options: str) -> dict[str, Any]:
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(table(tmp_path)))
    sweep.main(["--config", str(path), *options], runner)
    return json.loads((tmp_path / "out" / "table.json").read_text())


@pytest.mark.parametrize(
    "options",
    [
        ("--jobs", "2"),
        ("--cluster", "debug"),
        pytest.param(
            ("--cluster", "local", "--submit", "timeout_min=5"),
            marks=pytest.mark.slow(reason="a process each, which imports torch; the other two stay"),
        ),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")  # of what submitit and joblib leave open
def test_several_jobs_give_the_same_table(options: tuple[str, ...], tmp_path: Path) -> None:
    alone = outcome_of(tmp_path / "alone", Runner())
    found = outcome_of(tmp_path / "jobs", SmallTest(), *options)
    assert found == alone
    processes = [path.read_text() for path in (tmp_path / "jobs" / "out").glob("*/runs.txt")]
    assert len(processes) == 4
    if "debug" not in options:
        assert f"{os.getpid()}\n" not in processes


def test_long_cells_at_the_end_begin_first(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(table(tmp_path)))
    cells = sweep.Sweep.read(str(path)).cells()
    work = [sweep.CellJob(number, cell, SmallTest()) for number, cell in enumerate(cells)]
    assert [outcome.number for outcome in sweep.on_this_machine(1, work)] == [3, 2, 1, 0]


def test_a_cell_in_use_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_RETRY_SECONDS", 0.01)
    assert outcome_of(tmp_path, HeldOnce(), "--jobs", "2") == outcome_of(tmp_path, Runner())


def test_cells_that_fail_leave_the_others_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="2 of 4 cells failed") as error:
        outcome_of(tmp_path, Failing(), "--jobs", "2")
    assert "M = 1, one: ConfigurationError: too few" in str(error.value)
    assert "M = 2, one: status 2" in str(error.value)
    assert len(list((tmp_path / "out").glob("*/results.json"))) == 2


def test_a_parameter_that_submitit_does_not_take(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cluster: debug: .*colour"):
        outcome_of(tmp_path, Runner(), "--cluster", "debug", "--submit", "colour=red")
