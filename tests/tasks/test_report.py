"""The report: figures of runs in the right cells, cost, gaps, and what is kept in the repository."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks import report
from tasks.files import StorageError
from tasks.report import Cell, Table, find_result, format_samplers, format_table, keep, read_result, read_tables
from trivgeo.errors import ConfigurationError

TABLE = Table(
    title="a table",
    metrics={"accuracy": 100.0, "FID": 1.0},
    columns=["one", "two"],
    rows={
        "ours": [Cell("a/b", "95.1"), Cell("a/missing", "7")],
        "alone": [Cell("a/b", metrics={"alone": 100.0}), Cell(published="n/a")],
    },
)


def results(folder: Path, **changes: Any) -> Path:
    rows = [
        {"seed": s, "case": c, "seconds": 0.25, "gradient_evaluations": 30, "energy_evaluations": 2, "metrics": {}}
        for s in (0, 1)
        for c in range(3)
    ]
    document = {
        "metrics": {
            "accuracy": {"mean": 0.9712, "std": 0.0012, "worst": 1.0},
            "FID": {"mean": 0.7, "std": 0.0, "worst": 0.7},
            "alone": {"mean": 0.5, "std": 0.0, "worst": 1.0},
        },
        "device": "cpu",
        "rows": rows,
    }
    path = folder / "a" / "b" / "results.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document | changes))
    return path


def test_cells_cost_and_gaps(tmp_path: Path) -> None:
    results(tmp_path)
    text, data = format_table(TABLE, [tmp_path])
    first = data[0]
    assert "| ours | **97.12±0.12 / 0.7** (95.1) | not run (7) |" in text
    assert "| alone | **50** | (n/a) |" in text
    assert "| a/b | 6 | 32 | 250 | cpu |" in text
    assert "Not run yet: a/missing" in text
    text, data = format_table(TABLE, [results(tmp_path / "uncounted", rows=[{"seconds": 0.25}]).parents[2]])
    assert "| a/b | 1 | – | 250 | cpu |" in text
    assert data[0]["evaluations"] is None
    assert first["ours"]["accuracy"]["mean"] == 0.9712
    assert (first["method"], first["column"], first["evaluations"], first["seconds"]) == ("ours", "one", 32, 0.25)


def test_kept_runs_fill_the_gaps_and_hold_no_rows(tmp_path: Path) -> None:
    results(tmp_path / "runs")
    kept = keep("a/b", tmp_path / "runs", tmp_path / "kept")
    assert kept == tmp_path / "kept" / "a" / "b.json"
    assert "rows" not in json.loads(kept.read_text())
    whole = find_result("a/b", [tmp_path / "runs", tmp_path / "kept"])
    alone = find_result("a/b", [tmp_path / "nothing", tmp_path / "kept"])
    assert whole is not None
    assert alone is not None
    assert (alone.cases, alone.seconds, alone.evaluations) == (whole.cases, whole.seconds, whole.evaluations)
    assert alone.origin == kept
    with pytest.raises(ConfigurationError, match="expected one with results"):
        keep("a/other", tmp_path / "runs", tmp_path / "kept")


def seeded(seeds: list[int]) -> dict[str, Any]:
    return {"config": {"data": {"init_args": {"seeds": seeds}}}}


def test_sizes_and_uncertainties(tmp_path: Path) -> None:
    """Several seeds: their spread, also if it is nothing, and the error of a share of 3 cases; one seed: of 6."""
    several = format_table(TABLE, [results(tmp_path / "two", **seeded([0, 1])).parents[2]])[0]
    # the standard deviation of Beta(1 + 2.9136, 1 + 0.0864) is .168
    assert "| ours | **97.12±0.12±17 / 0.7±0** [2 x 3] (95.1) |" in several
    one = {"accuracy": {"mean": 0.9, "std": 0.0, "worst": 0.0}, "FID": {"mean": 0.7, "std": 0.0, "worst": 0.7}}
    text, data = format_table(TABLE, [results(tmp_path / "one", metrics=one, **seeded([0])).parents[2]])
    assert "| ours | **90±13 / 0.7** [6] (95.1) |" in text  # the standard deviation of Beta(1 + 5.4, 1 + 0.6) is .133
    assert (data[0]["cases"], data[0]["seeds"]) == (6, 1)
    older = read_result(results(tmp_path / "older", config={"data": {"init_args": {"seed": 3}}}))
    assert (older.seeds, older.size) == (1, "6")


def test_times_and_notes(tmp_path: Path) -> None:
    results(tmp_path)
    cells = [Cell("a/b", "13"), Cell("a/missing", "7", note="not trained"), Cell(note="no energy")]
    table = Table("times", {report.SECONDS: 60.0}, ["a", "b", "c"], {"ours": cells})
    text, _ = format_table(table, [tmp_path])
    assert "| ours | **15** (13) | not trained (7) | no energy |" in text
    assert "Not run yet" not in text


def test_no_cell_of_the_shipped_tables_is_empty() -> None:
    for path in (report.RELEASED_TABLES, report.TABLES, report.FURTHER_TABLES):
        for table in read_tables(path):
            for label, cells in table.rows.items():
                assert all(cell.run or cell.note for cell in cells), f"{table.title}: {label}"
            text, _ = format_table(table, [report.KEPT])
            assert "Not run yet" not in text, table.title
            cells_alone = text.split("| run |")[0]
            assert "| – " not in cells_alone, table.title


def test_configurations_as_published() -> None:
    """The seven rows of the published table: noise, 1 / step, noise samples."""
    rows = [
        [cell.split(" (**")[0].strip() for cell in line.split("|")[2:5]] for line in format_samplers().splitlines()[4:]
    ]
    image, pde = "50", ["(0.01, 0.5)", "50", "10"]
    assert rows == [
        ["(0.01, 10)", "100", "100"],
        ["(0.1, 1)", image, "4"],
        ["(0.1, 1)", image, "2"],
        ["(0.05, 0.5)", image, "4"],
        ["(0.01, 0.5)", image, "2"],
        pde,
        pde,
    ]


def test_kept_runs_of_published_networks_name_no_folder(tmp_path: Path) -> None:
    file = "pretrained_checkpoints/heat_pde_deeponet.pt"
    config = {"model": {"checkpoint": str(tmp_path / "code" / file)}}
    results(tmp_path / "runs", config=config)
    kept = json.loads(keep("a/b", tmp_path / "runs", tmp_path / "kept").read_text())
    assert kept["config"] == {"model": {"checkpoint": file}}


def test_shipped_tables_name_configurations_and_published_figures() -> None:
    tables = read_tables()
    cells = [cell for table in tables for line in table.rows.values() for cell in line]
    assert sum(bool(cell.published) for cell in cells) >= 40
    tied = {table.title: table.rows["TIED"] for table in tables}
    published = [cell.published.split(" ")[0] for line in tied.values() for cell in line]
    assert published[:4] == ["96.95±0.12", "97.43±0.06", "82.64±0.11", "89.84±0.17"]
    assert published[4:7] == ["0.043±0.002", "0.052±0.001", "0.178±0.013"]
    assert not any(published[7:]), "the last table was not published"
    runs = {cell.run.removesuffix("_released") for cell in cells if cell.run and not cell.run.startswith("gpu/")}
    assert not {run for run in runs if not (report.TABLES.parent / f"{run}.yaml").exists()}


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.main(["--runs", str(tmp_path), "--output", str(tmp_path / "out")])
    assert (tmp_path / "out" / "report.md").read_text() in capsys.readouterr().out
    assert {"table", "method", "column", "ours", "published"} <= json.loads(
        (tmp_path / "out" / "report.json").read_text()
    )[0].keys()
    own = results(tmp_path / "runs").parent
    report.main(["--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "out")])
    assert "is of these tables: all runs come with the library." in capsys.readouterr().out
    (tmp_path / "runs" / "heat").mkdir()
    own.rename(tmp_path / "runs" / "heat" / "tied")
    report.main(["--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "out")])
    assert f"Runs in {tmp_path / 'runs'}: heat/tied; all others come with the library." in capsys.readouterr().out


def test_bad_tables(tmp_path: Path) -> None:
    path = tmp_path / "tables.yaml"
    path.write_text("- {title: t, metrics: {}, columns: [a, b], rows: {x: [{run: r}]}}")
    with pytest.raises(ConfigurationError, match="x: expected 2 cells, got 1"):
        read_tables(path)
    path.write_text("- {title: t, colour: red, metrics: {}, columns: [], rows: {}}")
    with pytest.raises(ConfigurationError, match="expected the description of a table"):
        read_tables(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": []},
        {"metrics": None},
        {"metrics": {"accuracy": {}}},
        {"metrics": {"accuracy": {"mean": "1", "std": 0.0}}},
        {"rows": 5},
        {"rows": [5]},
        {"rows": None},
        {"rows": [{"seconds": "x"}]},
        {"cases": "x"},
        {"seconds_a_case": None},
    ],
    ids=str,
)
def test_what_is_no_result_is_said(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = results(tmp_path, **changes)
    text, _ = format_table(TABLE, [tmp_path])
    assert f"Not read: {path}" in text
    with pytest.raises(ConfigurationError, match=r"results\.json: .*expected th"):
        keep("a/b", tmp_path, tmp_path / "kept")


def test_a_folder_in_place_of_results(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "results.json"
    path.mkdir(parents=True)
    assert f"Not read: {path}" in format_table(TABLE, [tmp_path])[0]


@pytest.mark.parametrize("output", ["file", "file/below"])
def test_an_output_that_is_no_folder(tmp_path: Path, output: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match=r"expected a (file that can be written|folder to write to)"):
        report.main(["--runs", str(tmp_path), "--output", str(tmp_path / output)])
    assert (tmp_path / "file").read_text() == "mine"
