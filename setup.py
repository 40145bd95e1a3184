"""The packages: the folder `tasks` is installed as `trivgeo.tasks`. All else is in `pyproject.toml`."""

from setuptools import find_namespace_packages, setup

# folders of data are packages to setuptools
LIBRARY = find_namespace_packages(include=["trivgeo", "trivgeo.*"])
APPLICATIONS = find_namespace_packages(include=["tasks", "tasks.*"])

setup(packages=[*LIBRARY, *(f"trivgeo.{name}" for name in APPLICATIONS)], package_dir={"trivgeo.tasks": "tasks"})
