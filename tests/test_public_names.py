"""What is said of the library is true of it: names exist, arguments are few and said once, shapes are strings."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

import trivgeo
from tests.sources import nodes
from trivgeo._applications import importable

ROOT = Path(__file__).parents[1]
SOURCES = sorted(p for package in ("trivgeo", "tasks") for p in (ROOT / package).rglob("*.py"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONFIGS = sorted((ROOT / "tasks" / "configs").rglob("*.yaml"))
PACKAGES = (
    *("groups", "actions", "pde", "inversion", "symmetry", "geoopt", "errors", "checks"),
    *("sde", "sde.noise", "sde.scores", "sde.processes", "sde.solvers", "sde.likelihood", "sde.resampling", "sde.mcmc"),
    *("generative", "generative.paths", "generative.distributions"),
    *("groups.harmonic", "groups.rotations", "groups.semidirect", "groups.from_generators"),
    *("inversion.stages", "inversion.energies", "inversion.learned", "inversion.transformations"),
    *("features", "registration", "pose_graph"),
)

SHAPED = {"Float", "Int", "Bool", "Shaped", "Inexact", "Num", "Complex", "Integer"}
MAX_PARAMETERS = 10
MAX_REPEATED_WORDS = 5
MAX_FIRST_LEVEL_NAMES = 130
CAMEL = re.compile(r"[A-Z]\w*[a-z]\w*(\.\w+)*|[A-Z]{2,}\w*(\.\w+)*")


@functools.cache
def exists(dotted: str) -> bool:
    """Whether a dotted name can be imported, as a module or as an attribute of one."""
    parts = importable(dotted).split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError as error:
            if not ".".join(parts[:cut]).startswith(str(error.name)):
                raise  # a module that exists, but not what it imports
            continue
        try:
            functools.reduce(getattr, parts[cut:], found)
        except AttributeError:
            return False
        return True
    return False


def public_objects() -> Iterator[tuple[str, object]]:
    """Everything public of the library: exports of its packages, and their public methods."""
    for package in PACKAGES:
        module = importlib.import_module(f"trivgeo.{package}")
        for name in module.__all__:
            thing = getattr(module, name)
            yield f"trivgeo.{package}.{name}", thing
            if inspect.isclass(thing):
                private = [kind for kind in thing.__mro__ if "._" in kind.__module__]
                for method, function in [pair for kind in (thing, *private) for pair in vars(kind).items()]:
                    if not method.startswith("_") and inspect.isfunction(function):
                        yield f"trivgeo.{package}.{name}.{method}", function


@functools.cache
def docstrings(path: Path) -> list[tuple[ast.AST, str]]:
    """The docstrings of a file, with what they are of."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [(node, ast.get_docstring(node)) for node in nodes(path.read_text()) if isinstance(node, documented)]
    return [(node, text) for node, text in found if text]


def arguments(text: str) -> dict[str, str]:
    """The descriptions of a Google docstring's arguments, on one line each."""
    found: dict[str, str] = {}
    match = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", text, flags=re.MULTILINE)
    for line in match.group(1).splitlines() if match else ():
        entry = re.match(r"    (\*{0,2}\w+): (.*)", line)
        if entry:
            name = entry.group(1)
            found[name] = entry.group(2)
        elif line.strip() and found:
            found[name] += " " + line.strip()
    return found


def test_few_parameters() -> None:
    many = {}
    for name, thing in public_objects():
        if not inspect.isroutine(thing) and not (inspect.isclass(thing) and not issubclass(thing, BaseException)):
            continue
        if dataclasses.is_dataclass(thing):  # a record that the library fills
            continue
        number = len([p for p in inspect.signature(thing).parameters if p != "self"])
        if number > MAX_PARAMETERS:
            many[name] = number
    assert many == {}


def test_arguments_are_described_once() -> None:
    """The same words of the same argument in two docstrings are one too many: say "see `X`"."""
    places: dict[tuple[str, str], list[str]] = {}
    for path in SOURCES:
        for node, text in docstrings(path):
            for name, said in arguments(text).items():
                if len(said.split()) > MAX_REPEATED_WORDS and "see `" not in said:
                    where = f"{path.relative_to(ROOT)}:{getattr(node, 'name', '')}"
                    places.setdefault((name, said), []).append(where)
    assert {key: where for key, where in places.items() if len(where) > 1} == {}


def unquoted(source: str) -> list[int]:
    """The lines of array types whose shape is no string."""
    return [
        node.lineno
        for node in nodes(source)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in SHAPED
        and not (
            isinstance(node.slice, ast.Tuple)
            and isinstance(node.slice.elts[-1], ast.Constant)
            and isinstance(node.slice.elts[-1].value, str | type(...))
        )
    ]


def test_shapes_are_strings() -> None:
    assert {str(p.relative_to(ROOT)): lines for p in SOURCES if (lines := unquoted(p.read_text()))} == {}
    assert unquoted("def f(x: Float[Tensor, b * chains]): ...") == [1]


@functools.cache
def defined_near(path: Path) -> set[str]:
    """The names that a file defines or imports, at any depth."""
    names: set[str] = set()
    for node in nodes(path.read_text()):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def unknown_names(path: Path) -> list[str]:
    """Names in single backquotes of docstrings that look like classes, functions of the library or dotted paths."""
    near = defined_near(path)
    wrong = []
    for node, text in docstrings(path):
        for name in re.findall(r"(?<![`:])`([\w.]+)`(?!`)", text):
            if name.startswith(("trivgeo.", "tasks.")):
                known = exists(name)
            elif CAMEL.fullmatch(name):
                known = all(part in everything() for part in name.split("."))
            elif path.is_relative_to(ROOT / "trivgeo") and "." not in name:
                known = name in near or name in everything()
            else:
                continue
            if not known:
                wrong.append(f"{path.relative_to(ROOT)}:{getattr(node, 'name', 'module')}: {name}")
    return wrong


@functools.cache
def everything() -> set[str]:
    """Every name defined anywhere in library and tasks: methods and attributes that a docstring may speak of."""
    return set().union(*(defined_near(p) for p in SOURCES)) | {"None", "JSONARGPARSE_DEBUG"}


def test_names_in_docstrings_exist() -> None:
    assert [name for path in SOURCES for name in unknown_names(path)] == []


def test_names_in_texts_and_configs_exist() -> None:
    named = [(path, re.findall(r"\b(?:trivgeo|tasks)(?:\.\w+)+", path.read_text())) for path in [*TEXTS, *CONFIGS]]
    assert [f"{path.relative_to(ROOT)}: {name}" for path, names in named for name in names if not exists(name)] == []


def test_paths_in_texts_exist() -> None:
    """Files that README, CONTRIBUTING and docs name, braces written out."""
    pattern = r"\b(?:tasks|docs|tests|benchmarks|trivgeo)/[\w./{},*-]+[\w}]"
    named = [(path, one) for path in TEXTS for n in re.findall(pattern, path.read_text()) for one in alternatives(n)]
    assert [f"{path.relative_to(ROOT)}: {one}" for path, one in named if not list(ROOT.glob(one))] == []


def alternatives(text: str) -> list[str]:
    """``a{b,c}d`` as ``abd`` and ``acd``."""
    match = re.search(r"{([^{}]*)}", text)
    if match is None:
        return [text]
    return [x for part in match.group(1).split(",") for x in alternatives(text.replace(match.group(0), part, 1))]


def test_configs_are_yaml() -> None:
    assert all(yaml.safe_load(path.read_text()) for path in CONFIGS)


def test_subpackages_are_attributes() -> None:
    assert trivgeo.groups.SO(3).dim == 3
    assert {name for name in PACKAGES if "." not in name} <= set(dir(trivgeo))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        trivgeo.nothing  # noqa: B018


def test_the_first_level_is_what_guides_use() -> None:
    """Names in a package's first level are few; the rest is in its modules."""
    first = [package for package in PACKAGES if "." not in package and package != "checks"]  # shared with the tasks
    names = [name for package in first for name in importlib.import_module(f"trivgeo.{package}").__all__]
    assert len(first) == 12
    assert len(names) <= MAX_FIRST_LEVEL_NAMES


EXAMPLES = [path for path in SOURCES if ">>> " in path.read_text()]


@functools.cache
def public_names() -> dict[str, object]:
    """The names that examples of docstrings need not import: torch and all that packages export."""
    modules = [importlib.import_module(f"trivgeo.{package}") for package in PACKAGES]
    return {name: getattr(module, name) for module in modules for name in module.__all__} | {"torch": torch}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_of_docstrings_print_what_they_say(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testmod(module, extraglobs=public_names(), optionflags=options)
    assert found.attempted > 0
    assert found.failed == 0
