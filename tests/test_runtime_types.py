"""The shapes in the signatures are true: library and tasks run with jaxtyping and beartype checking every call."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_signatures_are_checked_and_true() -> None:
    command = [sys.executable, "-m", "tests.checked_calls"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "checked" in run.stdout
