"""Runs of 48 cases as processes that are told to end, killed or started twice: results complete and equal."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.cli import main
from tests.tasks.sample_runs import CONFIGS
from trivgeo._torch import pytree

_SEEDS, _CASES = 6, 8
_CONFIG = CONFIGS / "heat" / "amortized_mixed.yaml"
_DEADLINE = 300.0


def _arguments(folder: Path) -> list[str]:
    return [
        *("test", f"--config={_CONFIG}", f"--trainer.default_root_dir={folder}"),
        "--trainer.enable_progress_bar=false",
        f"--data.init_args.seeds={list(range(_SEEDS))}",
        f"--data.init_args.cases={_CASES}",
        *("--data.init_args.nx=32", "--data.init_args.nt=11"),
    ]


def _start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tasks", *_arguments(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        said, _ = process.communicate(timeout=_DEADLINE)
    finally:
        process.kill()  # nothing where it has ended
    return process.returncode, said


def _stop_at(folder: Path, lines: int, how: signal.Signals) -> tuple[int, str]:
    """Starts a run and signals it once this many lines are written."""
    process, rows, started = _start(folder), folder / "rows.jsonl", time.monotonic()
    while process.poll() is None and time.monotonic() - started < _DEADLINE:
        if rows.exists() and rows.read_bytes().count(b"\n") >= lines:
            process.send_signal(how)
            break
        time.sleep(0.002)
    return _ended(process)


def _rows(folder: Path) -> list[str]:
    """The lines but the first and empty ones."""
    return [line for line in (folder / "rows.jsonl").read_text().splitlines()[1:] if line]


def _found(folder: Path) -> list[Any]:
    """What determines the figures of a run that is complete."""
    document = json.loads((folder / "results.json").read_text())
    assert document["complete"]
    assert document["missing_batches"] == 0
    rows = document["rows"]
    assert [(row["seed"], row["case"]) for row in rows] == [(s, c) for s in range(_SEEDS) for c in range(_CASES)]
    return [document["metrics"], *((row["metrics"], row["energy"], row["element"]) for row in rows)]


def _assert_equal(found: list[Any], whole: list[Any]) -> None:
    """To rounding: a product of matrices depends on where its numbers lie in memory. NaN are energies that are none."""
    (numbers, names), (expected, expected_names) = (pytree.tree_flatten(x) for x in (found, whole))
    assert names == expected_names
    assert numbers == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("whole")
    main(_arguments(folder))
    return _found(folder)


@pytest.mark.parametrize(
    ("how", "status"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.slow)],
)
def test_the_same_command_goes_on(whole: list[Any], tmp_path: Path, how: signal.Signals, status: int) -> None:
    ends = []
    for lines in (20,) if how is signal.SIGTERM else (20, 28, 36):
        returned, said = _stop_at(tmp_path, lines, how)
        assert returned == status, said
        assert not (tmp_path / "results.json").exists()
        ends.append(_rows(tmp_path))
        if how is signal.SIGTERM:
            assert "stopped by SIGTERM: what was done is kept, the same command goes on:\npython -m tasks test" in said
    returned, said = _ended(_start(tmp_path))
    assert returned == 0, said
    _assert_equal(_found(tmp_path), whole)
    rows = set(_rows(tmp_path))
    for kept in ends:  # rows of whole batches are not made again, but for those of the first, which has the picture
        done = kept[_CASES : len(kept) // _CASES * _CASES]
        assert done
        assert rows.issuperset(done)


@pytest.mark.slow
def test_two_at_a_time(whole: list[Any], tmp_path: Path) -> None:
    """The second is refused, or comes late enough to find everything done."""
    first = _start(tmp_path)
    time.sleep(1.5)
    said = [_ended(process) for process in (first, _start(tmp_path))]
    assert said[0][0] == 0 or said[1][0] == 0
    for status, text in said:
        assert status == 0 or (status == 2 and "in use" in text), text
    _assert_equal(_found(tmp_path), whole)
