"""The command `trivgeo`, in a checkout also `python -m tasks`: a table of commands, each imported when it is run."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pkgutil import resolve_name

from trivgeo import __version__
from trivgeo._text import ending_quietly
from trivgeo.errors import TrivgeoError, missing_package

DEBUG = "JSONARGPARSE_DEBUG"
"""Environment variable that asks for tracebacks."""


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
    """

    target: str
    description: str
    example: str = ""
    needs: str = "lightning"
    extra: str = "tasks"
    prefix: tuple[str, ...] = ()


COMMANDS = {
    "symmetries": Command(
        "trivgeo.symmetry.__main__:main",
        "the point symmetries of an equation",
        '"u_t = u_xx" ...',
        needs="sympy",
        extra="symbolic",
    ),
    "list": Command(".config_inheritance:main", "the configurations that come with the library", needs="yaml"),
    "test": Command(
        ".cli:run",
        "run the test of a configuration; a killed one goes on by the same command",
        "--config heat/tied",
        prefix=("test",),
    ),
    "fit": Command(".cli:run", "train a network", "--config heat/deeponet", prefix=("fit",)),
    "validate": Command(".cli:run", "metrics on the validation data", "--config FILE", prefix=("validate",)),
    "predict": Command(".cli:run", "predictions of a model", "--config FILE", prefix=("predict",)),
    "sweep": Command(".sweep:main", "a table of tests", "--config heat/budget"),
    "report": Command(".report:main", "published tables with our figures", needs="yaml"),
}
"""All commands by name."""


def usage() -> str:
    """The commands, one a line."""
    lines = [f"  {f'{name} {command.example}'.rstrip():<30}{command.description}" for name, command in COMMANDS.items()]
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
    if name in ("--help", "-h", "--version"):
        sys.stdout.write(usage() if name != "--version" else f"trivgeo {__version__}\n")
        return 0
    command = COMMANDS.get(name)
    if command is None:
        sys.stderr.write(f"{usage()}\nerror: expected a command, got {name!r}\n")
        return 2
    if find_spec(command.needs) is None:
        sys.stderr.write(f"error: {missing_package(name, command.needs, command.extra)}\n")
        return 2
    try:
        target = __package__ + command.target if command.target.startswith(".") else command.target
        return resolve_name(target)([*command.prefix, *rest]) or 0
    except (TrivgeoError, ValueError) as error:
        reason = _cause(error)
        if reason is None or os.environ.get(DEBUG):
            raise
        sys.stderr.write(f"error: {type(reason).__name__}: {reason}\n")
        return 2


def _cause(error: BaseException | None) -> TrivgeoError | None:
    """The `TrivgeoError` from which another error, such as the parser's, was raised."""
    while error is not None and not isinstance(error, TrivgeoError):
        error = error.__cause__ or error.__context__
    return error


if __name__ == "__main__":
    sys.exit(main())
