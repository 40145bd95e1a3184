"""Habits of releases: one version and its notes, the same tools everywhere, old names that say the new ones."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
MAKEFILE = (ROOT / "Makefile").read_text()


def test_a_version_has_its_notes() -> None:
    notes = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(name for name in notes if name != "Unreleased") == VERSION
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION


def test_commits_are_checked_by_the_linter_of_the_constraints() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    pinned = re.search(r"^ruff==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert [repo["rev"] for repo in hooks if "ruff" in repo["repo"]] == [f"v{pinned[1]}"]


def made(name: str) -> list[str]:
    """The words of a variable of the Makefile."""
    found = re.search(rf"^{name} := ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    assert found is not None, name
    return found[1].replace("\\\n", " ").split()


def test_both_ends_of_the_range_of_torch_are_tested() -> None:
    """The oldest torch of the Makefile is the bound of pyproject.toml; the one that is pinned lies between the ends."""
    oldest, newest = map(Version, made("TORCH_ENDS"))
    (torch,) = (r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "torch")
    assert [(s.operator, Version(s.version)) for s in torch.specifier] == [(">=", oldest)]
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert oldest < Version(pinned[1]) <= newest


def test_every_folder_of_tests_is_of_an_area() -> None:
    """`make test-sde` and the like run each folder once, and paths that exist."""
    areas = [re.search(rf"^test-{area}: TESTS := (.*)$", MAKEFILE, re.MULTILINE) for area in made("AREAS")]
    named = [path for area in areas if area for path in area[1].split()]
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tests").glob("*/test_*.py")}
    assert len(areas) >= 5
    assert all(areas)
    assert sorted(path for path in named if not path.endswith(".py")) == sorted(folders)
    assert [path for path in [*named, *made("TORCH_TESTS")] if not (ROOT / path).exists()] == []


def test_forms_are_yaml_with_what_they_ask() -> None:
    forms = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    asked = [form["name"] for form in forms if "body" in form]
    assert len(asked) == 2
    assert all(entry["attributes"]["label"] for form in forms for entry in form.get("body", []))


def test_versions_of_python_are_the_same_everywhere() -> None:
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert named == made("PYTHON_VERSIONS")
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_the_conda_recipe_is_that_of_the_project() -> None:
    """Version, requirements and the command; conda calls torch pytorch."""
    text = (ROOT / "recipe" / "meta.yaml").read_text()
    version = re.search(r'set version = "(.*)"', text)
    assert version is not None
    assert version[1] == VERSION
    plain = re.sub(r"\{%.*%\}", "", text).replace("{{ version }}", VERSION).replace("{{ PYTHON }}", "python")
    recipe = yaml.safe_load(plain)
    wanted = {r.name.replace("torch", "pytorch"): str(r.specifier) for r in map(Requirement, PROJECT["dependencies"])}
    wanted["python"] = PROJECT["requires-python"]
    assert dict(line.split(" ") for line in recipe["requirements"]["run"]) == wanted
    extras = {r.name: str(r.specifier) for e in PROJECT["optional-dependencies"].values() for r in map(Requirement, e)}
    constrained = dict(line.split(" ") for line in recipe["requirements"]["run_constrained"])
    assert constrained == {name: extras[name] for name in constrained}
    assert recipe["build"]["entry_points"] == [f"trivgeo = {PROJECT['scripts']['trivgeo']}"]
    assert recipe["about"]["license"] == PROJECT["license"]


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/someone/trivgeo.git", "https://github.com/someone/trivgeo"),
        ("https://token@gitlab.example.org/group/sub/trivgeo", "https://gitlab.example.org/group/sub/trivgeo"),
        ("git@github.com:someone/trivgeo.git", "https://github.com/someone/trivgeo"),
        ("ssh://git@codeberg.org/someone/trivgeo.git", "https://codeberg.org/someone/trivgeo"),
        ("/home/someone/trivgeo", None),
        ("../trivgeo", None),
        ("file:///home/someone/trivgeo.git", None),
        ("", None),
    ],
)
def test_addresses_are_those_of_the_repository(remote: str, address: str | None) -> None:
    script = runpy.run_path(str(ROOT / "setup.py"))
    assert script["address_of"](remote) == address
    named = script["addresses"](address)
    assert named == {} or named["Issues"] == f"{address}/issues"
