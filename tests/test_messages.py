"""Messages of errors say what was expected, so that a reader knows what to change."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.sources import nodes

ROOT = Path(__file__).parents[1]
# of classes that are caught inside of the library, and messages that hand on another one
INTERNAL = {"AllocationError", "ForkedProcessError", "DifferentResultError", "AttributeError", "TypeError"}
INTERNAL |= {"ImportError", "OSError", "ValueError", "ZeroDivisionError", "IsADirectoryError"}
LONGEST = 60  # words


def messages(source: str) -> Iterator[tuple[str, str]]:
    """Error classes and texts of the `raise` statements of a module, with ``{}`` for what is filled in."""
    for node in nodes(source):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            kind, text = getattr(node.exc.func, "id", ""), node.exc.args[0]
            if isinstance(text, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in text.values]
                yield kind, "".join(map(str, parts))
            elif isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield kind, text.value


def all_messages() -> list[tuple[str, str, str]]:
    files = [path for folder in ("trivgeo", "tasks") for path in sorted((ROOT / folder).rglob("*.py"))]
    return [(str(path.relative_to(ROOT)), *found) for path in files for found in messages(path.read_text())]


def is_unclear(kind: str, text: str) -> bool:
    """Whether a message of a typed error does not say what was expected."""
    hands_on = not text.replace("{}", "").strip(" :;").count(" ")
    return kind.endswith("Error") and kind not in INTERNAL and not hands_on and "expect" not in text


def test_say_what_was_expected() -> None:
    found = all_messages()
    assert len(found) > 700
    assert [message for message in found if is_unclear(*message[1:])] == []


def test_are_short() -> None:
    assert [message for message in all_messages() if len(message[2].split()) > LONGEST] == []


def test_a_fault_is_found() -> None:
    source = 'raise ShapeError(f"{name} must be long, got {n}")\nraise ShapeError(f"x: expected {n} rows")\n'
    assert [is_unclear(*message) for message in messages(source)] == [True, False]
    assert not is_unclear("ConfigurationError", "trainer: {}")
