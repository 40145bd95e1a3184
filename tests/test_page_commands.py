"""Every command of the pages is understood: packages, configurations and flags exist; quick commands run.

What a command does after its line was understood is tested in `tests/tasks`, and on pages that run it from Python.
"""

import importlib.util
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from tasks import command
from tasks.sweep import Sweep
from trivgeo._applications import applications

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^```yaml\n# (\S+\.yaml)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
WRITTEN = re.compile(r'(?:Path\(|/ )"([\w.]+\.yaml)"\)\.write_text\(f?"""(.*?)"""', flags=re.DOTALL)
MODULE = re.compile(r'/ "(\w+\.py)"\)\.write_text\(\'\'\'(.*?)\'\'\'', flags=re.DOTALL)
OTHERS = {"torch", "MDAnalysisTests"}  # packages of others that pages install
QUICK = {"--version", "list", "symmetries"}
LAUNCHERS = {"srun": "srun", "torchrun": "-m"}  # the last word of what starts a command on many machines


def commands(text: str) -> list[list[str]]:
    """The commands of a page as words, without comments and variables of the environment."""
    lines = [line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [w for w in ([*filter_variables(words)] for words in words) if w]


def filter_variables(words: list[str]) -> list[str]:
    """The words after `export` and assignments such as `OMP_NUM_THREADS=1`."""
    while words and (words[0] == "export" or re.fullmatch(r"[A-Z_]+=.*", words[0])):
        words = words[1:]
    return words


FOUND = [
    (page, words)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for words in commands(page.read_text())
]


def check_pip(words: list[str]) -> None:
    """Extras exist, wheels are of this version, other packages are known."""
    extras = PROJECT["optional-dependencies"]
    for word in (w for w in words[2:] if not w.startswith(("-", "http"))):
        path, _, asked = word.removesuffix("]").partition("[")
        assert set(filter(None, asked.split(","))) <= set(extras)
        if path.endswith(".whl"):
            name, version, _, _ = parse_wheel_filename(path)
            assert (name in ("trivgeo", "trivgeo-networks"), str(version)) == (True, PROJECT["version"])
        elif path != ".":
            assert Requirement(path).name in OTHERS


def check_trivgeo(words: list[str]) -> None:
    """Quick commands run; the others are parsed in full, with their configurations."""
    name, *rest = words
    if name in QUICK:
        assert command.main(words) == 0
    elif name in ("test", "fit", "validate", "predict"):
        with pytest.raises(SystemExit) as left:
            command.main([*words, "--print_config"])
        assert left.value.code == 0
    elif name == "sweep":
        assert Sweep.read(rest[rest.index("--config") + 1]).cells()
        with pytest.raises(SystemExit) as left:
            command.main([name, *rest, "--help"])
        assert left.value.code == 0
        flags = (ROOT / "tasks" / "sweep.py").read_text()
        assert [word for word in rest if word.startswith("--") and f'"{word}"' not in flags] == []
    else:
        assert (name in command.COMMANDS, rest) == (True, [])


def check_module(words: list[str]) -> None:
    """The module is there, and knows the flags."""
    module, *rest = words
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    origin = Path(found.origin)
    files = [origin] if origin.name != "__init__.py" else sorted(origin.parent.glob("*.py"))
    text = "\n".join(file.read_text() for file in files)
    assert [word for word in rest if word.startswith("--") and f'"{word}"' not in text] == []


def check(words: list[str]) -> None:
    """One command line, whatever program it starts."""
    if words[0] in LAUNCHERS:
        after = words[words.index(LAUNCHERS[words[0]]) + 1 :]
        words = after if words[0] == "srun" else ["python", "-m", *after]
    if words[:2] == ["pip", "install"]:
        check_pip(words)
    elif words[0] == "trivgeo":
        check_trivgeo(words[1:])
    elif words[:3] in (["python", "-m", "trivgeo.tasks"], ["python", "-m", "tasks"], ["python", "-m", "trivgeo"]):
        check_trivgeo(words[3:])
    else:
        assert words[:2] == ["python", "-m"]
        check_module(words[2:])


@pytest.mark.parametrize(
    ("page", "words"), FOUND, ids=[f"{page.stem}-{i}-{words[1]}" for i, (page, words) in enumerate(FOUND)]
)
@pytest.mark.filterwarnings("ignore")  # the parser's, about functions without types
def test_a_command_is_understood(page: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["trivgeo"])
    text = page.read_text()
    for name, content in [*MODULE.findall(text), *WRITTEN.findall(text), *FILE.findall(text)]:
        # other tests of this process import the applications under their name in a checkout
        (tmp_path / name).write_text(content.replace("from trivgeo.tasks", f"from {applications()}"))
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    check(words)


@pytest.mark.parametrize(
    "line",
    [
        "pip install '.[nothing]'",
        "pip install 'trivgeo[tasks]'",
        "pip install trivgeo-0.0.1-py3-none-any.whl",
        "trivgeo nothing",
        "trivgeo report more",
        "trivgeo test --config heat/nothing",
        "trivgeo test --config heat/tied --nothing 1",
        "srun trivgeo test --config heat/tied --trainer.nothing 1",
        "trivgeo sweep --config heat/budget --nothing",
        "python -m benchmarks.nothing",
        "python -m benchmarks.mcmc --nothing",
        "make nothing",
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_command_is_seen(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["trivgeo"])
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(shlex.split(line))


def test_commands_are_found() -> None:
    text = "```sh\n# no\nA=1 trivgeo list  # all\nsrun a \\\n  b\nexport A=1\n```\n```text\nc\n```"
    assert commands(text) == [["trivgeo", "list"], ["srun", "a", "b"]]
    assert len(FOUND) > 50
