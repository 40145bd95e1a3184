"""The packages: the folder `tasks` is installed as `trivgeo.tasks`. The description: the README without dead links."""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

# folders of data are packages to setuptools
LIBRARY = find_namespace_packages(include=["trivgeo", "trivgeo.*"])
APPLICATIONS = find_namespace_packages(include=["tasks", "tasks.*"])

# on a package index, links to files of the sources lead nowhere
README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
README = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n\*[^*]*\*\n\n", "", README)  # a picture with its caption
README = re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", README)

setup(
    packages=[*LIBRARY, *(f"trivgeo.{name}" for name in APPLICATIONS)],
    package_dir={"trivgeo.tasks": "tasks"},
    long_description=README,
    long_description_content_type="text/markdown",
)
