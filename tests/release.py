"""What `make release-check` asks of wheels and an sdist: contents, size, the command, their own tests.

The wheel of the library leaves out the trained networks, which are in a wheel beside it.

python -m tests.release build/release
"""

import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

import trivgeo

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
LARGEST = 2e6
SMOKE = [
    "tests/test_imports.py",
    "tests/test_release.py",
    "tests/tasks/test_command.py",
    "tests/groups/test_algebra.py",
]


def check(holds: bool, what: str) -> None:
    """Say what was looked at, and end if it does not hold."""
    print(("ok    " if holds else "WRONG ") + what, flush=True)
    if not holds:
        sys.exit(1)


def tracked(*folders: str) -> set[str]:
    """The files of these folders that belong to the project."""
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.rstrip("\0").split("\0"))


def check_contents(path: Path, expected: set[str], what: str) -> None:
    """A wheel holds these files, and no others."""
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    wrong = sorted(names ^ expected)
    check(names == expected, f"{path.name} holds the {len(expected)} {what} {wrong or ''}")


def check_wheels(path: Path, networks: Path) -> None:
    """The library and the applications below it, and the networks; the command runs in an empty folder with both."""
    files = {f"trivgeo/{name}" if name.startswith("tasks/") else name for name in tracked("trivgeo", "tasks")}
    weights = {name for name in files if name.endswith(".safetensors") or "/images/sample/" in name}
    check_contents(path, files - weights, "files of trivgeo and tasks without networks, all below trivgeo")
    check_contents(networks, weights, "networks and digits")
    size = path.stat().st_size
    check(size < LARGEST, f"{path.name} has {size / 1e6:.2f} of {LARGEST / 1e6:.0f} MB")
    with zipfile.ZipFile(path) as wheel:
        (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        text = wheel.read(metadata).decode()
    named = re.search(r"^Project-URL: Repository, (\S+)", text, re.MULTILINE)
    print(f"      {path.name} names {named[1] if named else 'no address: the remote origin of git has none'}")
    with tempfile.TemporaryDirectory() as folder:
        site, empty = Path(folder) / "site", Path(folder) / "empty"
        # as pip lays them out: --target would replace the folder that both share
        for each in (networks, path):
            with zipfile.ZipFile(each) as wheel:
                wheel.extractall(site)
        (site / "bin").mkdir()
        command = site / "bin" / "trivgeo"
        command.write_text(
            f"#!{sys.executable}\nimport sys\nfrom trivgeo.tasks.command import main\nsys.exit(main())\n"
        )
        command.chmod(0o755)
        # Celery and Invoke leave this name to their users
        (site / "tasks").mkdir()
        (site / "tasks" / "__init__.py").write_text("raise RuntimeError('the package of the user was imported')")
        empty.mkdir()
        test = ["test", "--config", "affnist/small", "--data.init_args.limit", "16"]
        for arguments in (["list"], ["report"], test):
            run_in(empty, site, [str(site / "bin" / "trivgeo"), *arguments])
        results = empty / "runs" / "affnist" / "small" / "results.json"
        check('"class_path": "tasks.images' in results.read_text(), "results call the applications `tasks`")
        run_in(empty, ROOT, [sys.executable, "-m", "tasks", *test])
        check(not list(results.parent.glob("earlier-*")), "a run of the wheel is one of the checkout")


def run_in(folder: Path, packages: Path, command: list[str]) -> None:
    """Run a command in a folder, with packages of another one first."""
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONSAFEPATH": "1"}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    check(run.returncode == 0, " ".join(command) + (run.stderr if run.returncode else ""))


def check_sdist(path: Path) -> None:
    """Everything of the project; it passes tests of its own."""
    with tarfile.open(path) as sdist, tempfile.TemporaryDirectory() as folder:
        sdist.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        names = {str(p.relative_to(unpacked)) for p in unpacked.rglob("*") if p.is_file()}
        missing = tracked() - names - {".gitignore", ".ci/run"}
        check(not missing, f"{path.name} holds all files of the project {sorted(missing) or ''}")
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *SMOKE], cwd=unpacked, check=False
        )
        check(run.returncode == 0, f"{path.name} passes {len(SMOKE)} files of its tests")


def main() -> None:
    """Check what lies in a folder."""
    patterns = ("trivgeo-*.whl", "trivgeo_networks-*.whl", "*.tar.gz")
    (wheel,), (networks,), (sdist,) = (list(Path(sys.argv[1]).glob(pattern)) for pattern in patterns)
    for path in (wheel, networks, sdist):
        check(path.name.split("-")[1].startswith(VERSION), f"{path.name} is of version {VERSION}")
    for entry in pkgutil.walk_packages(trivgeo.__path__, "trivgeo."):
        if not entry.name.endswith("__main__"):
            importlib.import_module(entry.name)
    check_wheels(wheel, networks)
    check_sdist(sdist)


if __name__ == "__main__":
    main()
