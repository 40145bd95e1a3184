"""The weights, frames and digits of the tasks, installed below `trivgeo/tasks`, where the library looks for them."""

import tomllib
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py

LIBRARY = Path(__file__).resolve().parents[1] / "pyproject.toml"
FOLDERS = ("checkpoints", "frames", "images/sample")
PACKAGES = {f"trivgeo.tasks.{name.replace('/', '.')}": f"../tasks/{name}" for name in FOLDERS}


class DataAlone(build_py):
    """The modules of a folder are those of the library."""

    def find_package_modules(self, package: str, package_dir: Any) -> list[Any]:
        """Return none."""
        return []


setup(
    version=tomllib.loads(LIBRARY.read_text(encoding="utf-8"))["project"]["version"],
    packages=[*PACKAGES],
    package_dir=PACKAGES,
    package_data={"": ["*.safetensors"], "trivgeo.tasks.images.sample": ["*"]},
    exclude_package_data={"": ["*.json"]},
    cmdclass={"build_py": DataAlone},
)
