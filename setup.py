"""The packages: the folder `tasks` is installed as `trivgeo.tasks`. The description: the README without dead links.

The addresses: those of the repository that the sources were cloned from. With TRIVGEO_WITHOUT_NETWORKS=1 the trained
networks and the digits are left out, which `networks/` puts into a distribution of their own.
"""

import os
import re
import subprocess
from pathlib import Path

from setuptools import find_namespace_packages, setup

ROOT = Path(__file__).parent
# folders of data are packages to setuptools
LIBRARY = find_namespace_packages(include=["trivgeo", "trivgeo.*"])
APPLICATIONS = find_namespace_packages(include=["tasks", "tasks.*"])

# on a package index, links to files of the sources lead nowhere
README = (ROOT / "README.md").read_text(encoding="utf-8")
README = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n\*[^*]*\*\n\n", "", README)  # a picture with its caption
README = re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", README)


def repository() -> str | None:
    """Return the address of the repository, of git's remote `origin` or of an sdist; `None` without one."""
    metadata = ROOT / "PKG-INFO"
    if metadata.exists():
        found = re.search(r"^Project-URL: Repository, (\S+)$", metadata.read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else None
    try:
        run = subprocess.run(
            ["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:  # there is no git
        return None
    return address_of(run.stdout.strip())


def address_of(remote: str) -> str | None:
    """Return the https address of a remote of git, as `git@host:name.git`; `None` for folders of this machine."""
    found = re.fullmatch(r"(?:https?://|ssh://)?(?:[\w.-]+@)?([\w-]+(?:\.[\w-]+)+)[:/](?!/)(.+?)(?:\.git)?/?", remote)
    return f"https://{found[1]}/{found[2]}" if found else None


def addresses(home: str | None) -> dict[str, str]:
    """Return the addresses of a package index by name."""
    pages = {"Repository": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
    return {} if home is None else {name: home + page for name, page in pages.items()}


if __name__ == "__main__":
    apart = {
        "": ["*.safetensors", "checkpoints/*.safetensors"],
        "trivgeo.tasks.images": ["sample/*"],
        "trivgeo.tasks.images.sample": ["*"],
    }
    setup(
        packages=[*LIBRARY, *(f"trivgeo.{name}" for name in APPLICATIONS)],
        package_dir={"trivgeo.tasks": "tasks"},
        exclude_package_data=apart if os.environ.get("TRIVGEO_WITHOUT_NETWORKS") else {},
        long_description=README,
        long_description_content_type="text/markdown",
        project_urls=addresses(repository()),
    )
