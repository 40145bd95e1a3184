"""Messages of errors say what was expected, so that a reader knows what to change."""

import ast
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sources import nodes
from trivgeo._text import counted
from trivgeo.errors import ConfigurationError, how_to_install, missing_package
from trivgeo.symmetry import conservation_laws, find_symmetries
from trivgeo.symmetry.discrete import discrete_symmetries
from trivgeo.symmetry.order_reduction import integrate_by_symmetries

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


def test_what_is_missing_can_be_installed() -> None:
    """The command names packages and bounds of pyproject.toml, also through extras that name extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert how_to_install("training") == f"pip install '{extras['training'][0]}' (trivgeo[training])"
    assert all(repr(package) in how_to_install("tasks") for package in (*extras["symbolic"], *extras["training"]))
    assert "trivgeo[" not in how_to_install("tasks").rpartition("(")[0]
    assert how_to_install("absent") == "pip install '.[absent]' in a checkout (trivgeo[absent])"
    error = missing_package("training", "Lightning", "training")
    assert str(error).startswith("training: expected Lightning, which is not installed: pip install 'lightning")


@pytest.mark.parametrize("call", [find_symmetries, conservation_laws, discrete_symmetries, integrate_by_symmetries])
def test_ordinary_equations_are_called_equations(call: Callable[[str], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"^equation: expected a formula, got ' y \+ '"):
        call("y'' = y + ")


def test_nouns_agree_with_their_number() -> None:
    assert [counted(n, "symmetry", "symmetries") for n in (0, 1, 2)] == ["0 symmetries", "1 symmetry", "2 symmetries"]
    assert counted(1200, "element") == "1,200 elements"
