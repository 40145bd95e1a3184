"""The name of the applications: ``tasks`` in a checkout and in all files, ``trivgeo.tasks`` in an installed wheel.

No installed package of the name ``tasks`` is ours: Celery and Invoke leave that name to their users. Configurations,
checkpoints and results hold `tasks.images.vae.VAE` wherever they are written, and are read under either name.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

_SHORT, _LONG = "tasks", "trivgeo.tasks"
_HERE = Path(__file__).parent
_INSTALLED = (_HERE / "tasks").is_dir()
_FOLDER = _HERE / "tasks" if _INSTALLED else _HERE.parent / "tasks"


def applications() -> str:
    """The name under which this process imports the applications."""
    if _INSTALLED or _LONG in sys.modules:
        return _LONG
    spec = find_spec(_SHORT)
    return _SHORT if spec is not None and spec.origin == str(_FOLDER / "__init__.py") else _LONG


def importable(path: str) -> str:
    """The dotted path under which this process imports what a file calls by this one.

    Args:
        path: such as ``tasks.images.vae.VAE``; what is not of the applications stays as it is.
    """
    if path == _LONG:
        return applications()
    for package in (_LONG, _SHORT):
        inner = path.removeprefix(f"{package}.")
        if inner != path and _has_module(inner.split(".")[0]):
            return f"{applications()}.{inner}"
    return path


def portable(path: str) -> str:
    """The dotted path that a file holds for a module or class of this process."""
    return path.removeprefix("trivgeo.") if path.startswith(f"{_LONG}.") else path


def is_ours(path: str) -> bool:
    """Whether a dotted path, of a file or of this process, is one of this project."""
    package = importable(path).split(".")[0]
    return package == "trivgeo" or (package == _SHORT and applications() == _SHORT)


def _has_module(name: str) -> bool:
    return (_FOLDER / f"{name}.py").is_file() or (_FOLDER / name / "__init__.py").is_file()
