"""What `make release-check` asks of a wheel and an sdist: contents, size, the command, their own tests.

python -m tests.release build/release
"""

import importlib
import os
import pkgutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

import trivgeo
from trivgeo._deprecation import overdue

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
LARGEST = 10e6
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


def check_wheel(path: Path) -> None:
    """Everything of the two packages and nothing else; the command runs in an empty folder."""
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        check(names == tracked("trivgeo", "tasks"), f"{path.name} holds the {len(names)} files of trivgeo and tasks")
        size = path.stat().st_size
        check(size < LARGEST, f"{path.name} has {size / 1e6:.1f} of {LARGEST / 1e6:.0f} MB")
        wheel.extractall(Path(folder) / "unpacked")
        empty = Path(folder) / "empty"
        empty.mkdir()
        for arguments in (["list"], ["report"], ["test", "--config", "affnist/small", "--data.init_args.limit", "16"]):
            command = [sys.executable, "-c", "import sys; from tasks.command import main; sys.exit(main())", *arguments]
            environment = {**os.environ, "PYTHONPATH": str(Path(folder) / "unpacked"), "PYTHONSAFEPATH": "1"}
            run = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)
            check(run.returncode == 0, f"trivgeo {' '.join(arguments)}" + (run.stderr if run.returncode else ""))


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
    (wheel,), (sdist,) = (list(Path(sys.argv[1]).glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    for path in (wheel, sdist):
        check(path.name.startswith(f"trivgeo-{VERSION}"), f"{path.name} is of version {VERSION}")
    for entry in pkgutil.walk_packages(trivgeo.__path__, "trivgeo."):
        if not entry.name.endswith("__main__"):
            importlib.import_module(entry.name)
    check(not overdue(VERSION), f"no old name is kept longer than said {overdue(VERSION) or ''}")
    check_wheel(wheel)
    check_sdist(sdist)


if __name__ == "__main__":
    main()
