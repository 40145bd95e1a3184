"""``trivgeo symmetries "u_t + u*u_x = 0.1*u_xx"`` (``python -m trivgeo.symmetry``) prints an equation's symmetries."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from trivgeo._text import ending_quietly
from trivgeo.errors import AlgebraError, TrivgeoError
from trivgeo.symmetry import find_symmetries


@ending_quietly()
def main(arguments: Sequence[str] | None = None) -> int:
    """Print a report; the status is 2 if the equation is refused."""
    parser = argparse.ArgumentParser(prog="trivgeo symmetries", description="Point symmetries of equations.")
    parser.add_argument("equations", nargs="+", help="such as 'u_t + u*u_x = 0.1*u_xx' or \"y'' + y = 0\"")
    parser.add_argument("--degree", type=int, help="search polynomials up to this degree only")
    parser.add_argument("--ansatz", nargs="*", default=[], help="functions that polynomials may be multiplied with")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        found = find_symmetries(options.equations, options.degree, ansatz=options.ansatz)
    except TrivgeoError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    lines = [*options.equations, "", repr(found)]
    if len(found) > 1:
        try:
            algebra = found.algebra
            is_known = not any(c.free_symbols for block in algebra.structure_constants for row in block for c in row)
            lines += [
                "",
                "brackets:",
                repr(algebra),
                f"({algebra.convention})",
                *(["", algebra.name()] if is_known else []),
            ]
        except AlgebraError as error:
            lines += ["", f"no brackets: {error}"]
    sys.stdout.write("\n".join([*lines, "", f"{time.perf_counter() - started:.1f} s"]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
