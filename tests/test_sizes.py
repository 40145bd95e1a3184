"""Modules and functions that fit a reader's head."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST_MODULE = 450  # lines
LARGEST_FUNCTION = 60  # lines without its docstring


def modules() -> dict[str, str]:
    """The source of every module of the library, by its path."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "trivgeo").rglob("*.py"))}


def functions(source: str) -> dict[str, int]:
    """The lines of every function of a module, without those of its docstring."""
    return {
        f"{node.name}:{node.lineno}": node.end_lineno - node.lineno + 1 - docstring(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    }


def docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of the docstring of a function."""
    first = node.body[0]
    if ast.get_docstring(node) is None or first.end_lineno is None:
        return 0
    return first.end_lineno - first.lineno + 1


def test_modules_are_small() -> None:
    large = {name for name, source in modules().items() if len(source.splitlines()) > LARGEST_MODULE}
    assert large == set()


def test_functions_are_small() -> None:
    found = {(name, f): lines for name, source in modules().items() for f, lines in functions(source).items()}
    assert len(found) > 1000
    assert {place: lines for place, lines in found.items() if lines > LARGEST_FUNCTION} == {}


def test_lines_are_counted() -> None:
    source = 'def f(x):\n    """Double.\n\n    A number.\n    """\n    y = x\n    return y + x\n'
    assert functions(source) == {"f:1": 3}
