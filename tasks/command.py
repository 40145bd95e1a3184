"""The command `trivgeo`, in a checkout also `python -m tasks`: a table of commands, each imported when it is run."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

from trivgeo import __version__
from trivgeo._text import ending_quietly
from trivgeo.errors import TrivgeoError, how_to_install, missing_package

DEBUG = "JSONARGPARSE_DEBUG"
"""Environment variable that asks for tracebacks."""

_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # statuses, as shells report of programs

# distributions that have another name than the module that they bring
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "flint": "python-flint",
    "gpytorch": "botorch",
    "neuralop": "neuraloperator",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "jsonargparse",
}


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        target: ``module:function``, of this package after a dot. The function takes the arguments after the name of
            the command and returns the exit status, or ``None`` for zero.
        description: one line for the usage.
        example: example of its arguments.
        needs: a package that the library alone does not bring.
        extra: the extra of the distribution that brings that package.
        prefix: arguments in front of those of the command line.
        goes_on: whether a run that was interrupted goes on by the same command.
    """

    target: str
    description: str
    example: str = ""
    needs: str = "lightning"
    extra: str = "tasks"
    prefix: tuple[str, ...] = ()
    goes_on: bool = False


COMMANDS = {
    "symmetries": Command(
        "trivgeo.symmetry.__main__:main",
        "the point symmetries of an equation, its conservation laws, and more",
        '"u_t = u_xx" ...',
        needs="sympy",
        extra="symbolic",
    ),
    "list": Command(".config_list:main", "the configurations that come with the library", "[WORD]", needs="yaml"),
    "test": Command(
        ".cli:run",
        "run the test of a configuration; a killed one goes on by the same command",
        "--config heat/tied",
        prefix=("test",),
        goes_on=True,
    ),
    "fit": Command(
        ".cli:run",
        "train a network; a killed training goes on by the same command",
        "--config heat/deeponet",
        prefix=("fit",),
        goes_on=True,
    ),
    "validate": Command(".cli:run", "metrics on the validation data", "--config FILE", prefix=("validate",)),
    "predict": Command(".cli:run", "predictions of a model", "--config FILE", prefix=("predict",)),
    "sweep": Command(
        ".sweep:main", "a table of tests, also several at a time", "--config heat/budget --jobs 2", goes_on=True
    ),
    "report": Command(".report:main", "published tables with our figures", needs="yaml"),
}
"""All commands by name."""


def usage() -> str:
    """The commands, one a line."""
    lines = [f"  {f'{name} {command.example}'.rstrip():<38}{command.description}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: trivgeo COMMAND ...",
            "",
            *lines,
            "",
            "A configuration is a file, or the name of one that comes with the library. COMMAND --help says more.",
            "",
        ]
    )


@ending_quietly()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the status is 2 if something is wrong with it.

    A `TrivgeoError`, such as bad input or a full disk, is one line; a traceback where `JSONARGPARSE_DEBUG` is true.

    Args:
        arguments: the command line; that of the process when None.
    """
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("--help", "-h", "help", "--version"):
        sys.stdout.write(usage() if name != "--version" else f"trivgeo {__version__}\n")
        return 0
    command = COMMANDS.get(name)
    if command is None:
        like = get_close_matches(name, COMMANDS, n=1)
        asked = f"; did you mean {like[0]}?" if like else ""
        sys.stderr.write(f"error: expected a command ({', '.join(COMMANDS)}), got {name!r}{asked}\n")
        return 2
    if find_spec(command.needs) is None:
        sys.stderr.write(f"error: {missing_package(name, command.needs, command.extra)}\n")
        return 2
    try:
        target = __package__ + command.target if command.target.startswith(".") else command.target
        status = resolve_name(target)([*command.prefix, *rest]) or 0
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except SystemExit as left:
        if not isinstance(left.__context__, KeyboardInterrupt):  # Lightning leaves so
            raise
        status = _INTERRUPTED
    except (TrivgeoError, ValueError, ModuleNotFoundError) as error:
        reason = _reason(name, error)
        if reason is None or os.environ.get(DEBUG):
            raise
        sys.stderr.write(f"error: {reason}\n")
        return 2
    if status in (_INTERRUPTED, _TERMINATED):
        how = "interrupted" if status == _INTERRUPTED else "stopped by SIGTERM"
        sys.stderr.write(f"{how}{_continuation(command, [name, *rest])}\n")
    return status


def _continuation(command: Command, arguments: Sequence[str]) -> str:
    """What an interrupted run has left, and the command that goes on with it."""
    if not command.goes_on:
        return ""
    program = "trivgeo" if Path(sys.argv[0]).suffix != ".py" else "python -m tasks"
    return f": what was done is kept, the same command goes on:\n{program} {shlex.join(arguments)}"


def _reason(name: str, error: BaseException) -> str | None:
    """One line about an error, if it is of the user's input or of a package that is missing, else ``None``."""
    ours = cause_of(error, TrivgeoError)
    if ours is not None:
        return f"{type(ours).__name__}: {ours}"
    missing = cause_of(error, ModuleNotFoundError)
    if not isinstance(missing, ModuleNotFoundError) or not missing.name:
        return None
    package = missing.name.split(".")[0]
    extra = extra_of(package)
    how = "" if extra is None else f": {how_to_install(extra)}"
    return f"{name}: expected the package {package} to be installed{how}"


def extra_of(package: str) -> str | None:
    """The extra of this distribution that brings a package, by the name that is imported; ``None`` if none does."""
    try:
        lines = requires("trivgeo") or []
    except PackageNotFoundError:
        return None
    wanted = _DISTRIBUTIONS.get(package, package).lower().replace("_", "-")
    for line in lines:
        brought, found = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"](\w+)['\"]", line)
        if brought and found and brought[0].lower().replace("_", "-") == wanted and found[1] not in ("test", "docs"):
            return found[1]
    return None


def cause_of(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """The error of this kind from which another error, such as the parser's, was raised."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


if __name__ == "__main__":
    sys.exit(main())
