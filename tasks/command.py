"""The command `trivgeo`, of any folder: `python -m tasks` and `python -m trivgeo.symmetry` under one name."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from trivgeo import __version__
from trivgeo._text import ending_quietly
from trivgeo.errors import TrivgeoError

USAGE = """\
usage: trivgeo COMMAND ...

  symmetries "u_t = u_xx" ...   the point symmetries of an equation
  list                          the configurations that come with the library
  test --config heat/tied       run the test of a configuration; a killed one goes on by the same command
  fit --config heat/deeponet    train a network
  sweep --config heat/budget    a table of tests
  report                        published tables with our figures
  validate, predict, convert    see the documentation

A configuration is a file, or the name of one that comes with the library. COMMAND --help says more.
"""

_NEEDS = {"symmetries": ("sympy", "symbolic"), "list": ("yaml", "tasks"), "report": ("yaml", "tasks")}
"""What a command needs that the library alone does not bring, and the extra that does."""
_OTHERS = ("test", "fit", "sweep", "validate", "predict", "convert")


@ending_quietly()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the status is 2 if something is wrong with it.

    Args:
        arguments: the command line; that of the process when None.
    """
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("--help", "-h", "--version"):
        sys.stdout.write(USAGE if name != "--version" else f"trivgeo {__version__}\n")
        return 0
    if name not in (*_NEEDS, *_OTHERS):
        sys.stderr.write(f"{USAGE}\nerror: expected a command, got {name!r}\n")
        return 2
    # each part is imported by those who use it: symmetries need no Lightning, and tests no SymPy
    needs, extra = _NEEDS.get(name, ("lightning", "tasks"))
    if find_spec(needs) is None:
        sys.stderr.write(f"error: {name}: expected {needs} to be installed: pip install 'trivgeo[{extra}]'\n")
        return 2
    if name == "symmetries":
        return import_module("trivgeo.symmetry.__main__").main(rest)
    if name == "list":
        if rest:
            sys.stderr.write(f"error: list: expected nothing more, got {' '.join(rest)!r}\n")
            return 2
        sys.stdout.write("\n".join(import_module("tasks.overlays").names()) + "\n")
    elif name == "report":
        return _report(rest)
    else:
        import_module("tasks.__main__").run([name, *rest])
    return 0


def _report(arguments: Sequence[str]) -> int:
    try:
        import_module("tasks.report").main(arguments)
    except TrivgeoError as error:
        sys.stderr.write(f"error: {type(error).__name__}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
