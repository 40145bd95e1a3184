"""The name of the applications: ``tasks`` in a checkout and in all files, ``trivgeo.tasks`` in an installed wheel.

No installed package of the name ``tasks`` is ours: Celery and Invoke leave that name to their users. Configurations,
checkpoints and results hold `tasks.images.vae.VAE` wherever they are written, and are read under either name.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

_SHORT_NAME, _LONG_NAME = "tasks", "trivgeo.tasks"
_PACKAGE_FOLDER = Path(__file__).parent
_IS_INSTALLED = (_PACKAGE_FOLDER / "tasks").is_dir()
_FOLDER = (_PACKAGE_FOLDER if _IS_INSTALLED else _PACKAGE_FOLDER.parent) / "tasks"


def applications() -> str:
    """The name under which this process imports the applications."""
    if _IS_INSTALLED or _LONG_NAME in sys.modules:
        return _LONG_NAME
    spec = find_spec(_SHORT_NAME)
    return _SHORT_NAME if spec is not None and spec.origin == str(_FOLDER / "__init__.py") else _LONG_NAME


def importable(path: str) -> str:
    """The dotted path under which this process imports an object that a file calls ``path``.

    Paths outside of the applications stay as they are.
    """
    if path == _LONG_NAME:
        return applications()
    for package in (_LONG_NAME, _SHORT_NAME):
        inner = path.removeprefix(f"{package}.")
        module = _FOLDER / inner.split(".")[0]
        if inner != path and (module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()):
            return f"{applications()}.{inner}"
    return path


def portable(path: str) -> str:
    """The dotted path that files hold for a module or class of this process."""
    return path.removeprefix("trivgeo.") if path.startswith(f"{_LONG_NAME}.") else path


def is_ours(path: str) -> bool:
    """Whether a dotted path, of a file or of this process, belongs to this project."""
    package = importable(path).split(".")[0]
    return package == "trivgeo" or (package == _SHORT_NAME and applications() == _SHORT_NAME)
