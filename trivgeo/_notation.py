"""Names in the text of equations that read as derivatives and are none."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from trivgeo.errors import ConfigurationError

__all__ = ["check_notation"]

_USUAL_VARIABLES = ("x", "y", "z", "t")  # of an unknown whose derivatives are all misspelt
_GREEK = {"mu", "nu", "xi", "pi", "eta", "phi", "psi", "chi", "rho", "tau", "beta", "zeta"}  # usual parameters


def check_notation(
    texts: Sequence[str],
    trees: Sequence[ast.expr],
    unknowns: Sequence[str],
    variables: Sequence[str],
    argument: str,
    calls: Collection[str],
) -> None:
    """Refuse what reads as a derivative but would be taken as a parameter.

    Those are ``ux``, ``u_x1``, ``u_1_t``, ``dudt``, ``xdot`` and quotients ``du/dt``, and primes on anything but an
    unknown of one variable. A parameter of such a name would change the equation without a word.

    Args:
        texts: the equations as they were written.
        trees: the syntax of their sides.
        unknowns: the names of the unknowns.
        variables: the names of the independent variables.
        argument: see `trivgeo.expressions.parse_equations`.
        calls: names with a meaning of their own, such as functions.

    Raises:
        ConfigurationError: a name or a prime reads as a derivative and is none.
    """
    for text in texts:
        for match in re.finditer(r"([^\W\d_]\w*)'+", text):
            if match[1] not in unknowns or len(variables) != 1:
                raise ConfigurationError(
                    f"{argument}: expected primes on unknowns of one variable alone, got {match[0]}: write derivatives "
                    "as u_x, or diff(u, x)"
                )
    letters, own = _either((*variables, *_USUAL_VARIABLES)), _either(unknowns)
    above, below = rf"d\d*({own})?", rf"d({letters})\d*"
    quotient = re.compile(rf"d\d*_?({own})_?{below}")  # dudt
    misspelt = re.compile(
        rf"({own})({letters})+"  # ux
        rf"|({own})_(?=.*[^\d_])({letters}|\d|_)+"  # u_x1
        rf"|[^\W\d_]+_\d+_({letters})+"  # u_1_t
        rf"|({own})_?(d*dot|prime)"  # xdot
    )
    known = {*unknowns, *variables, *calls, *_GREEK}
    derivative = re.compile(rf"({own})_({_either(variables)})+|({own})_+\d+")
    for tree in trees:
        for node in ast.walk(tree):
            name = node.id if isinstance(node, ast.Name) else ""
            looks = misspelt.fullmatch(name) and name not in known and not derivative.fullmatch(name)
            if looks or quotient.fullmatch(name):
                raise _refused(argument, name)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                for top in _matching(node.left, above):
                    for bottom in _matching(node.right, below):
                        raise _refused(argument, f"{top}/{bottom}")


def _refused(argument: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{argument}: expected derivatives as u_x, or diff(u, x), got {name}, which reads as one: a parameter needs "
        "another name"
    )


def _matching(tree: ast.expr, pattern: str) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and re.fullmatch(pattern, node.id))


def _either(names: Sequence[str]) -> str:
    return "|".join(sorted(map(re.escape, names), key=len, reverse=True))
