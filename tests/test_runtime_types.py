"""The shapes in the signatures are true: library and tasks run with jaxtyping and beartype checking every call."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# all but trivgeo.symmetry, whose annotations hold classes of SymPy that beartype does not take
PARTS = ("_numerics", "_random", "expressions", "groups", "actions", "pde", "sde", "generative", "inversion")
CHECKED = [
    f"trivgeo.{name}" for name in (*PARTS, "features", "registration", "pose_graph", "networks", "training", "geoopt")
]
TESTS = [
    "tests/groups/test_geometry.py::TestMean",
    "tests/actions/test_image.py::TestBatches",
    "tests/actions/test_image.py::TestFramedEnergy",
    "tests/sde/scores/test_score.py",
    "tests/generative/paths/test_paths.py::test_targets_make_the_score",
    *(
        f"tests/inversion/test_every_inverter.py::test_lowers_the_energy_and_counts[{case}]"
        for case in ("TIED-images", "LieLAC-operators")
    ),
]
# what beartype refuses before the library does
LEFT_OUT = "not BadInput and not bad_input"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_signatures_of_the_library_are_true() -> None:
    packages = f"--jaxtyping-packages={','.join(CHECKED)},beartype.beartype"
    done = run(
        *("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", "-k", LEFT_OUT),
        *(packages, *TESTS),
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    assert " passed" in done.stdout


@pytest.mark.slow(reason="the signatures of the library stay")
def test_signatures_of_library_and_tasks_are_true() -> None:
    done = run("tests.checked_calls")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "checked" in done.stdout
