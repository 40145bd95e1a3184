"""Keeping results of benchmarks: what became slower, and the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import canonical_operators, gpu
from benchmarks.compare import compare, picture
from tasks.report import KEPT, read_result
from tests.helpers import assert_relative
from trivgeo.actions import Field
from trivgeo.pde import FourierModes, Vorticity, solve


def row(operation: str, seconds: float, spread: float = 1.05, library: str = "trivgeo", batch: int = 100) -> Any:
    head = {"group": "SO(3)", "operation": operation, "library": library, "mode": "forward", "batch": batch}
    return {**head, "seconds": seconds, "range": [seconds, spread * seconds], "floor_seconds": 1e-6}


def kept(path: Path, rows: list[Any]) -> Path:
    path.write_text(json.dumps({"rows": rows}))
    return path


def test_a_slower_machine_is_no_slower_library(tmp_path: Path) -> None:
    old = kept(tmp_path / "old.json", [row("exp", 1.0), row("log", 2.0), row("Ad", 3.0), row("inverse", 1.0)])
    times = [row("exp", 2.0), row("log", 4.0), row("Ad", 12.0), row("inverse", 0.5)]
    text, slower = compare(old, kept(tmp_path / "new.json", times), 1.3)
    assert slower == 1
    assert text.splitlines()[1:] == [
        "  2.00  SO(3) Ad, forward, 100: trivgeo",
        "  0.25  SO(3) inverse, forward, 100: trivgeo",
    ]


@pytest.mark.parametrize("spread", [1.05, 3.0])
def test_a_change_counts_only_beyond_the_repeats(tmp_path: Path, spread: float) -> None:
    others = [row(name, 1.0) for name in ("log", "Ad", "inverse")]
    old = kept(tmp_path / "old.json", [row("exp", 1.0, spread), *others])
    _, slower = compare(old, kept(tmp_path / "new.json", [row("exp", 2.0, spread), *others]), 1.3)
    assert slower == (spread < 2.0)


def test_rivals_do_not_count(tmp_path: Path) -> None:
    old = kept(tmp_path / "old.json", [row("exp", 1.0), row("exp", 1.0, library="pypose")])
    new = kept(tmp_path / "new.json", [row("exp", 1.0), row("exp", 9.0, library="pypose")])
    assert compare(old, new, 1.3)[1] == 0
    assert compare(kept(tmp_path / "none.json", []), new, 1.3) == ("no row in common", 0)


def test_the_picture_names_every_library(tmp_path: Path) -> None:
    rows = [row("exp", 1e-4 * k, library=name, batch=10**k) for name in ("trivgeo", "pypose") for k in (2, 4)]
    target = tmp_path / "images" / "speed.svg"
    picture(kept(tmp_path / "rows.json", rows), target)
    text = target.read_text()
    assert all(f"<!-- {word} -->" in text for word in ("trivgeo", "pypose", "floor", "SO(3) exp"))


def test_the_benchmark_of_a_gpu_is_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections write rows, are gone on with, and say what failed."""
    path = tmp_path / "gpu.json"

    def measured(*names: str) -> int:
        options = ["--device", "cpu", "--small", "--output", str(path), "--runs", str(tmp_path / "runs")]
        return gpu.main([*options, "--sections", *names])

    names = [
        "networks",
        "floors",
        "tied-published-affnist-classifier",
        "tied-affnist-classifier-eager",
        "learned-affnist",
        "warps",
        "fields",
    ]
    assert measured(*names) == 0
    sections = json.loads(path.read_text())["sections"]
    assert list(sections) == names
    assert all(section["complete"] for section in sections.values())
    assert [row["images"] for row in sections["tied-published-affnist-classifier"]["rows"]] == [8]
    (row,) = sections["tied-affnist-classifier-eager"]["rows"]
    assert (row["images"], row["complete"]) == (8, True)
    assert row["milliseconds_an_image"] > 0
    monkeypatch.setitem(gpu.SECTIONS, "floors", gpu.Section(1.0, lambda setting, seconds: iter([])))  # done: not asked
    monkeypatch.setitem(gpu.SECTIONS, "groups", gpu.Section(1.0, lambda setting, seconds: 1 / 0))
    assert measured("floors", "groups") == 1
    again = json.loads(path.read_text())["sections"]
    assert again["floors"] == sections["floors"]
    assert "ZeroDivisionError" in again["groups"]["error"]
    assert not again["groups"]["complete"]


def test_kept_tests_of_images_are_those_on_cards(tmp_path: Path) -> None:
    paths = gpu.keep(tmp_path)
    assert len(paths) >= 8
    for path in paths:
        assert path.read_text() == (KEPT / "gpu" / path.name).read_text(), path.name
    raw = json.loads((gpu.RESULTS / "gpu-first-run.json").read_text())["sections"]
    published, part = (
        read_result(tmp_path / f"{name}_h200.json") for name in ("affnist_released_code_classifier", "homnist_tied_vae")
    )
    assert published.summary["accuracy with inversion"]["mean"] == raw["published"]["rows"][0]["correct"] / 1024
    assert (published.cases, published.complete, part.complete, part.size) == (1024, True, False, "7,250")


def test_the_page_says_what_a_card_takes() -> None:
    page = (Path(__file__).parents[1] / "docs" / "results" / "published.md").read_text()
    assert round(sum(map(gpu.estimate, gpu._evaluations())) / 3600) == 3
    assert "five seeds of 10,000 images, take some three hours" in page
    published, ours = (gpu._evaluations()[f"affnist/tied{how}_classifier"] for how in ("_published", ""))
    assert round(published / ours) == 5
    assert "with about five times\nthe evaluations" in page


@pytest.mark.slow(reason="a benchmark")
def test_shifts_and_boosts_of_fields_are_those_of_the_group() -> None:
    """Of the benchmark of canonical operators: by Fourier phases as by the action of the group, exactly."""
    problem = canonical_operators.PROBLEMS["burgers"]._replace(points=32)
    setting = canonical_operators.Setting(problem, 4, 0)
    motion, action = setting.motion(4, (0.0, 0.0), canonical_operators.FAR), setting.action()
    block = Field.on_box(torch.stack([setting.start, setting.end], 2), setting.box, times=[0.0, problem.horizon])
    moved = action(setting.elements(action, motion.moves), block).values
    start, end = setting.pairs((setting.start, setting.end), motion)
    assert_relative(moved[:, :, 0], start, 1e-10)
    assert_relative(moved[:, :, 1], end, 1e-10)


@pytest.mark.slow(reason="a benchmark")
def test_moved_and_turned_flows_are_solutions() -> None:
    """The solution of a flow that was shifted, boosted and turned is the moved solution, and has its vorticity."""
    problem = canonical_operators.PROBLEMS["navier-stokes-turned"]
    setting = canonical_operators.Setting(problem, 4, 0)
    motion = setting.motion(4, (0.0, 0.0), canonical_operators.FAR)._replace(turns=torch.arange(4))
    start, end = setting.pairs((setting.start, setting.end), motion)
    solved = solve(setting.equation, Field.on_box(start, setting.box), [problem.horizon], 0.05).values[:, :, 0]
    assert_relative(solved, end, 1e-5)  # boosts change what the steps of the solver miss

    def vorticity(values: torch.Tensor) -> torch.Tensor:
        modes = FourierModes.of(Field.on_box(values, setting.box).grid.steps[0, 0], values.shape[2:])
        a, b = modes.to_modes(values).unbind(1)
        kx, ky = modes.wave.unbind(0)
        return modes.to_values(1j * (kx * b - ky * a)).unsqueeze(1)

    rotation = Field.on_box(vorticity(setting.start), setting.box)
    expected = solve(Vorticity(0.1), rotation, [problem.horizon], 0.05).values[:, :, 0]
    assert_relative(vorticity(setting.end), expected, 1e-5)
