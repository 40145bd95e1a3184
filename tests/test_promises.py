"""Tests that the page of promises names are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_promises_name_tests_that_exist() -> None:
    text = (ROOT / "docs" / "help" / "promises.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|") and "::" in line]
    assert len(rows) > 10
    for row in rows:
        file = ""
        for path, name in re.findall(r"`(tests/[\w/]+\.py)?::(\w+)`", row):
            file = path or file
            assert re.search(rf"def {name}\(", (ROOT / file).read_text()), f"{file}::{name}"
        assert row.count("::") == len(re.findall(r"`(?:tests/[\w/]+\.py)?::\w+`", row)) > 0, row
