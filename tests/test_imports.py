"""Imports go one way, and importing the library stays light."""

import ast
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import networkx
import pytest

from tests.sources import nodes
from trivgeo import _torch
from trivgeo.errors import ConfigurationError

ROOT = Path(__file__).parents[1]

# What each part of the library may import, apart from itself. A new part is one more entry.
BASE = {
    "_applications",
    "_autocast",
    "_compile",
    "_devices",
    "_processes",
    "_torch",
    "checks",
    "verdict",
    "_numerics",
    "_random",
    "_text",
    "_timing",
    "errors",
    "expressions",
}
ALLOWED = {
    "errors": set(),
    "_applications": set(),
    "_torch": set(),
    "_autocast": {"_torch"},
    "_compile": {"_torch"},
    "_devices": {"_torch"},
    "_processes": {"_devices", "_torch", "errors"},
    "_numerics": {"_autocast", "errors"},
    "_random": {"checks", "errors"},
    "_text": set(),
    "_timing": set(),
    "checks": {"_numerics", "_torch", "errors"},
    "verdict": set(),
    "expressions": {"errors", "checks"},
    "groups": BASE,
    "symmetry": BASE | {"groups", "actions"},
    "actions": BASE | {"groups"},
    "sde": BASE | {"groups"},
    "generative": BASE | {"groups", "sde", "networks", "training"},
    "inversion": BASE | {"groups", "actions", "symmetry", "pde", "sde", "generative", "networks", "training"},
    "registration": BASE | {"groups", "actions", "sde", "generative", "inversion", "pose_graph"},
    "pose_graph": BASE | {"groups"},
    "features": BASE | {"groups", "actions", "sde", "generative", "networks", "training", "inversion"},
    "pde": BASE | {"groups", "actions", "symmetry"},
    "geoopt": BASE | {"groups"},
    "bridges": BASE | {"groups", "actions", "inversion", "generative"},
    "__main__": {"_applications"},
    "networks": {"_applications", "checks", "errors"},
    "training": BASE | {"networks"},
    "tasks": BASE
    | {
        "groups",
        "symmetry",
        "actions",
        "pde",
        "sde",
        "generative",
        "inversion",
        "registration",
        "features",
        "networks",
        "training",
    },
}
HEAVY = (
    "lightning", "pytorch_lightning", "botorch", "gpytorch", "matplotlib", "sympy", "flint", "torchvision", "geoopt",
    "deepinv", "huggingface_hub", "kornia", "monai", "pytorch_ood", "sklearn",
)  # fmt: skip


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def part(path: Path) -> str:
    """The part of the library that a file belongs to."""
    names = path.relative_to(ROOT).with_suffix("").parts
    return names[0] if names[0] == "tasks" else names[1]


def imported_parts(node: ast.AST, path: Path) -> list[str]:
    """The parts of the library that one import statement names."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        if node.level:
            package = path.relative_to(ROOT).parts[: -node.level]
            module = ".".join([*package, *filter(None, [module])])
        names = [f"{module}.{alias.name}" for alias in node.names] if module == "trivgeo" else [module]
    split = [name.split(".") for name in names]
    return [name[1] if name[0] == "trivgeo" else name[0] for name in split
            if name[0] == "tasks" or (name[0] == "trivgeo" and len(name) > 1)]  # fmt: skip


def violations(source: str, path: Path) -> list[str]:
    """Imports that do not go one way, and imports of other parts inside functions."""
    own, place = part(path), path.relative_to(ROOT)
    statements = [node for node in nodes(source) if isinstance(node, ast.Import | ast.ImportFrom)]
    wrong = [
        f"{place}:{node.lineno} imports {target}"
        for node in statements
        for target in imported_parts(node, path)
        if target not in ALLOWED[own] | {own, "__version__"}
    ]
    functions = [n for n in nodes(source) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {node for function in functions for node in ast.walk(function)}
    hidden = [
        f"{place}:{node.lineno} imports in a function"  # but a part may defer its own modules until they are used
        for node in statements
        if node in inside and set(imported_parts(node, path)) - {own}
    ]
    return wrong + hidden


def test_imports_go_one_way() -> None:
    files = [p for p in modules("trivgeo") if p != ROOT / "trivgeo" / "__init__.py"] + modules("tasks")
    assert len(files) > 20
    unknown = {part(p) for p in files} - set(ALLOWED)
    assert not unknown, f"give {unknown} a place in tests/test_imports.py"
    assert [v for p in files for v in violations(p.read_text(), p)] == []


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("from trivgeo.sde import solve", "trivgeo/groups/group.py"),
        ("import trivgeo.inversion.base", "trivgeo/sde/sampling.py"),
        ("from trivgeo import inversion", "trivgeo/actions/operator_input.py"),
        ("from ..inversion import TIED", "trivgeo/sde/sampling.py"),
        ("import tasks.cli", "trivgeo/inversion/tied.py"),
        ("def f():\n    from trivgeo.groups import SL", "trivgeo/sde/sampling.py"),
    ],
)
def test_the_check_bites(source: str, where: str) -> None:
    assert violations(source, ROOT / where)


def imported_modules(path: Path, known: set[str]) -> set[str]:
    """The modules of the library that a file imports at any depth, but for types alone."""
    package = dotted(path).split(".") if path.name == "__init__.py" else dotted(path).split(".")[:-1]
    found_nodes = nodes(path.read_text())
    for_types = {
        node
        for guard in found_nodes
        if isinstance(guard, ast.If) and "TYPE_CHECKING" in ast.unparse(guard.test)
        for statement in guard.body
        for node in ast.walk(statement)
    }
    found = set()
    for node in set(found_nodes) - for_types:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *filter(None, [node.module])])
            named = {f"{module}.{alias.name}" for alias in node.names} & known
            found |= named | ({module} & known if len(named) < len(node.names) else set())
    return found - {dotted(path)}


def dotted(path: Path) -> str:
    """The name of the module in a file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def circles(imports: Mapping[str, set[str]]) -> list[set[str]]:
    """The sets of modules that import each other, through any number of others."""
    graph = networkx.DiGraph((module, other) for module, others in imports.items() for other in others)
    return sorted((set(c) for c in networkx.strongly_connected_components(graph) if len(c) > 1), key=sorted)


FREE_NAMES = {"__init__.py", "__main__.py", "base.py", "result.py"}


def test_no_file_name_stands_twice() -> None:
    """A reader finds a module by its name, except the bases and the results of packages."""
    names = [p.name for p in modules("trivgeo") if p.name not in FREE_NAMES]
    assert [name for name, number in Counter(names).items() if number > 1] == []


def test_tests_lie_as_the_code_does() -> None:
    """A folder of tests has the name of the folder that it tests, and no file of tests stands twice."""
    rooms = {place.relative_to(ROOT / "trivgeo") for place in (ROOT / "trivgeo").rglob("*") if place.is_dir()}
    rooms |= {place.relative_to(ROOT) for place in [ROOT / "tasks", *(ROOT / "tasks").rglob("*")] if place.is_dir()}
    files = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    assert {path.parent for path in files} - rooms == {Path(), Path("devices")}  # of many rooms
    assert [name for name, number in Counter(path.name for path in files).items() if number > 1] == []


def test_no_circle_of_modules() -> None:
    files = {dotted(path): path for package in ("trivgeo", "tasks") for path in modules(package)}
    imports = {name: imported_modules(path, set(files)) for name, path in files.items()}
    assert len(files) > 100
    assert sum(map(len, imports.values())) > 500
    assert circles(imports) == []


def test_circles_are_found() -> None:
    assert circles({"a": {"b", "c"}, "b": {"d"}, "c": set(), "d": {"a"}}) == [{"a", "b", "d"}]
    assert circles({"a": {"b", "c"}, "b": {"c"}}) == []


def private_names(source: str) -> list[str]:
    """Where a file names something of torch that is not public: ``torch._C``, ``nn.modules.batchnorm._NormBase``."""
    found = []
    of_torch = {"torch"}
    for node in nodes(source):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            for alias in node.names:
                name = f"{module}.{alias.name}" if module else alias.name
                if name.split(".")[0] == "torch" and not getattr(node, "level", 0):
                    of_torch.add(alias.asname or alias.name.split(".")[0])
                    if is_private(name):
                        found.append(f"{node.lineno}: {name}")
    for node in nodes(source):
        if isinstance(node, ast.Attribute) and is_private(f".{node.attr}"):
            name = ast.unparse(node)
            if name.split(".")[0] in of_torch:
                found.append(f"{node.lineno}: {name}")
    return found


def is_private(name: str) -> bool:
    """Whether a part of a dotted name is private. Names as ``__version__`` are not."""
    return any(p.startswith("_") and not p.endswith("__") for p in name.split("."))


def test_names_of_torch_are_public() -> None:
    files = [p for package in ("trivgeo", "tasks") for p in modules(package) if p != ROOT / "trivgeo" / "_torch.py"]
    found = {str(p.relative_to(ROOT)): names for p in files if (names := private_names(p.read_text()))}
    assert len(files) > 100
    assert found == {}


def test_private_names_are_few_and_guarded() -> None:
    """At most ten, each a function that says what happens without it."""
    assert len(_torch.__all__) <= 10
    functions = [getattr(_torch, name) for name in _torch.__all__ if name != "pytree"]  # which torch has kept since 1.8
    assert all("Without" in function.__doc__ for function in functions)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._C._is_alias_of(x, y)",
        "import torch._dynamo",
        "from torch.utils import _pytree",
        "from torch._ops import OpOverload",
        "from torch import nn\nisinstance(m, nn.modules.batchnorm._NormBase)",
        "from torch.autograd import forward_ad\nforward_ad._current_level",
    ],
)
def test_private_names_are_found(source: str) -> None:
    assert private_names(source)
    assert not private_names("import torch\nprint(torch.__version__, self._C, torch.nn.functional.relu)")


def test_random_numbers_have_one_source() -> None:
    """`trivgeo._random` alone draws: elsewhere no function of torch that takes a generator is called."""
    draws = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal", "poisson"}
    for path in modules("trivgeo"):
        if path.name == "_random.py":
            continue
        for node in nodes(path.read_text()):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
                assert node.attr not in draws, f"{path.relative_to(ROOT)}:{node.lineno}: torch.{node.attr}"


def test_import_is_light() -> None:
    """No package imports what only tasks and optional features need; modules of a feature may, once it is used."""
    script = f"""
import importlib, pkgutil, sys

import torch, torch.func, scipy.spatial, jaxtyping  # what these bring along is theirs

before = set(sys.modules)
import trivgeo
for module in pkgutil.walk_packages(trivgeo.__path__, "trivgeo."):
    if module.ispkg:
        importlib.import_module(module.name)
loaded = sorted(name for name in set(sys.modules) - before if name.split(".")[0] in {HEAVY!r})
assert not loaded, loaded
assert {{"lightning", "botorch", "matplotlib"}}.isdisjoint(sys.modules)
print(len([name for name in sys.modules if name.startswith("trivgeo")]))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 15


INVERSION = ("inversion.stages", "inversion.energies", "inversion.learned", "registration", "features")


def test_public_names_exist() -> None:
    """Every name of an ``__all__`` can be imported, once, in order."""
    for package in ("groups", "actions", "pde", "sde", "generative", "inversion", *INVERSION, "errors"):
        module = importlib.import_module(f"trivgeo.{package}")
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            assert getattr(module, name) is not None


@pytest.mark.parametrize(
    "module", ["trivgeo.generative.diffusion_training", "trivgeo.inversion.learned.score_training"]
)
def test_training_says_that_it_needs_lightning(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trivgeo.training", module):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(ConfigurationError, match="trivgeo\\[training\\]"):
        importlib.import_module(module)


def test_names_of_packages_above_are_reached() -> None:
    """They are loaded when asked for, in whatever order the packages are imported."""
    for first in ("trivgeo.inversion", "trivgeo.features", "trivgeo.registration"):
        script = (
            f"import {first}; from trivgeo.inversion import FeatureEnergy, LearnedEnergy, register; print(register)"
        )
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
        assert run.returncode == 0, run.stderr
    with pytest.raises(AttributeError, match="no attribute 'Absent'"):
        importlib.import_module("trivgeo.inversion").Absent  # noqa: B018
