"""What in the text of equations reads as something that it is not: names, calls, products without their sign."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Collection, Iterator, Sequence

from trivgeo.errors import ConfigurationError

__all__ = ["check_called", "check_notation", "hint_of_characters", "hint_of_syntax", "no_unknown"]

_USUAL_VARIABLES = ("x", "y", "z", "t")  # of an unknown whose derivatives are all misspelt
_DERIVATIVES = {"D", "Dx", "Dy", "Dz", "Dt", "Derivative", "Diff", "derivative", "grad", "div", "curl", "rot"}
_LAPLACIANS = {"lap", "Lap", "laplace", "Laplace", "laplacian", "Laplacian", "Delta"}
_INTEGRALS = {"int", "Int", "integral", "Integral", "integrate", "sum", "Sum"}
_COMPLEX = {"re", "Re", "im", "Im", "conj", "conjugate", "arg"}
_CORNERED = {"max", "Max", "min", "Min", "heaviside", "Heaviside", "delta", "DiracDelta", "floor", "ceil", "mod"}
_CHARACTERS = {
    "\\{}$": "write u_t = u_xx, not LaTeX",
    "<>≤≥≠!": "inequalities are not taken",
    "²³⁴": "powers are written u^2",
    "·×⋅": "a product needs its sign *",
    "∂∇∆": "derivatives are written u_x, or diff(u, x)",
    "|": "absolute values are written abs(x)",
    "∫∑": "integrals are not taken",
    "−–": "the minus sign is -",
    ";": "several equations are a list of texts",
}
_GREEK = {"mu", "nu", "xi", "pi", "eta", "phi", "psi", "chi", "rho", "tau", "beta", "zeta"}  # usual parameters
_WORDS = "d*dot|prime|old|new|max|min|mean|ref|init|left|right|exact|(d[xyzt])+"
"""Subscripts that are words, or differentials, and no letters of variables."""


def check_notation(
    texts: Sequence[str],
    trees: Sequence[ast.expr],
    unknowns: Sequence[str],
    variables: Sequence[str],
    argument: str,
    calls: Collection[str],
) -> None:
    """Refuse what reads as a derivative but would be taken as a parameter.

    Those are ``ux``, ``uXX``, ``u_x1``, ``u_1_t``, ``dudt``, ``xdot``, ``Δu`` and quotients ``du/dt``, and primes on
    anything but an unknown of one variable; products without their sign such as ``xy``, and powers of ``e``. A
    parameter of such a name would change the equation without a word.

    Args:
        texts: the equations as they were written.
        trees: the syntax of their sides.
        unknowns: the names of the unknowns.
        variables: the names of the independent variables.
        argument: the name in error messages.
        calls: names with a meaning of their own, such as functions.

    Raises:
        ConfigurationError: a name or a prime reads as a derivative, a product or a number and is none.
    """
    named = [node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)]
    _check_primes(texts, named, unknowns, variables, argument)
    letters, own = _either((*variables, *_USUAL_VARIABLES)), _either(unknowns)
    above, below = rf"d\d*({own})?", rf"d({letters})\d*"
    quotient = re.compile(rf"d\d*_?({own})_?{below}")  # dudt
    misspelt = re.compile(
        rf"({own})((?i:{letters}))+"  # ux, uXX
        rf"|Δ_?({own})"
        rf"|({own})_(?=.*[^\d_])({letters}|\d|_)+"  # u_x1
        rf"|[^\W\d_]+_\d+_({letters})+"  # u_1_t
        rf"|({own})_?(d*dot|prime)"  # xdot
    )
    words = re.compile(rf"({own})_({_WORDS})")  # u_dot is no derivative by d, o and t
    known = {*unknowns, *variables, *calls, *_GREEK}
    derivative = re.compile(rf"({own})_({_either(variables)})+|({own})_+\d+")
    for tree in trees:
        for node in ast.walk(tree):
            name = node.id if isinstance(node, ast.Name) else ""
            looks = misspelt.fullmatch(name) and name not in known and not derivative.fullmatch(name)
            if looks or words.fullmatch(name) or quotient.fullmatch(name):
                raise _refused(argument, name)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                for top in _matching(node.left, above):
                    for bottom in _matching(node.right, below):
                        raise _refused(argument, f"{top}/{bottom}")
    _check_numbers_and_products(trees, {*named} - known, unknowns, variables, argument)
    for unknown in unknowns if len(unknowns) > len(texts) else ():
        other = next((u for u in unknowns if u != unknown and unknown.endswith(u)), None)
        if other is not None:
            factor = unknown.removesuffix(other)
            raise ConfigurationError(
                f"{argument}: expected as many equations as unknowns {list(unknowns)}, got {len(texts)}: a product "
                f"needs its sign, {factor}*{other}_{variables[0]}"
            )


def _check_numbers_and_products(
    trees: Sequence[ast.expr],
    parameters: Collection[str],
    unknowns: Sequence[str],
    variables: Sequence[str],
    argument: str,
) -> None:
    """Refuse parameters that read as the imaginary unit, as Euler's number, or as a product without its sign."""
    if "i" in parameters:
        raise ConfigurationError(
            f"{argument}: expected real equations, got i, which reads as the imaginary unit: write real and imaginary "
            "parts as two unknowns; a parameter needs another name"
        )
    powers = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.BinOp))
    for node in powers if "e" in parameters else ():
        is_power = isinstance(node.op, ast.Pow | ast.BitXor) and ast.unparse(node.left) == "e"
        if is_power and any(isinstance(inner, ast.Name) for inner in ast.walk(node.right)):
            power = ast.unparse(node.right)
            raise ConfigurationError(
                f"{argument}: expected exponentials as exp({power}), got e^{power}: a parameter needs another name"
            )
    product = re.compile(rf"({_either((*unknowns, *variables))}){{2,}}")
    glued = next((name for name in sorted(parameters) if product.fullmatch(name)), None)
    if glued is not None:
        raise ConfigurationError(
            f"{argument}: expected products with their sign *, got {glued}: a parameter needs another name"
        )


def _check_primes(
    texts: Sequence[str], named: Sequence[str], unknowns: Sequence[str], variables: Sequence[str], argument: str
) -> None:
    """Refuse primes on anything but an unknown of one variable, and other notations of derivatives beside them."""
    primed = {match[1] for text in texts for match in re.finditer(r"([^\W\d_]\w*)'+", text)}
    for text in texts:
        for match in re.finditer(r"([^\W\d_]\w*)'+", text):
            if match[1] not in unknowns or len(variables) != 1:
                raise ConfigurationError(
                    f"{argument}: expected primes on unknowns of one variable alone, got {match[0]}: write derivatives "
                    "as u_x, or diff(u, x)"
                )
    words = re.compile(rf"({_either(unknowns)})_({_either(variables)})+")
    both = sorted({name for name in named if words.fullmatch(name)})
    if primed and both:
        raise ConfigurationError(
            f"{argument}: expected one notation of derivatives, primes or {both[0]}, got both: a prime is by the only "
            "variable"
        )
    for unknown in primed:
        other = next((name for name in named if re.fullmatch(rf"[dD]{unknown}|{unknown}p+", name)), None)
        if other is not None:
            raise _refused(argument, other)


def hint_of_syntax(text: str) -> str:
    """What is probably wrong with text that is no formula, as the end of a message; empty if nothing is known."""
    word = next((w for w in re.findall(r"[^\W\d_]\w*", text) if keyword.iskeyword(w)), None)
    if word is not None:
        return f": {word} is a word of Python, a parameter needs another name, such as {word}0"
    if not text.strip():
        return ": a text or a side of an equation is empty"
    opened, closed = text.count("("), text.count(")")
    if opened != closed:
        return f": it has {opened} opening and {closed} closing brackets"
    if re.search(r"\)_\w", text):
        return ": derivatives are written u_t, or diff(u(x, t), t); of expressions diff(u^2, x, 2)"
    if re.search(r"\bd\s*(\^|\*\*)?\s*\d*\s*\w*\s*/\s*d\w", text):
        return ": derivatives are written u_t, u_xx, or diff(u, x, 2)"
    match = re.search(r"(?<![\w.])\d+\.?\d*\s*[^\W\d_][^\W\d]*|\)\s*[\w(]|[\w']\s+[\w(]", text)
    return "" if match is None else f": a product needs its sign *, near {match[0]!r}"


def check_called(
    calls: Sequence[tuple[str, Sequence[ast.expr]]],
    derivatives: Collection[str],
    argument: str,
    functions: Collection[str],
    texts: Sequence[str],
) -> None:
    """Refuse calls that are neither unknowns nor functions, and say what they look like.

    Args:
        calls: names that are called, but for known functions, and their arguments.
        derivatives: the names of what has derivatives, the unknowns; may be empty.
        argument: the name in error messages.
        functions: the names of known functions.
        texts: see `check_notation`.

    Raises:
        ConfigurationError: a condition at a place, a delay, a product without its sign, a derivative that is called, or
            a function of several variables or of a long name beside unknowns.
    """
    plain = {name for name, arguments in calls if arguments and all(isinstance(a, ast.Name) for a in arguments)}
    for text in texts:
        for match in re.finditer(r"[^\W\d_]\w*'+\(\s*(\w+)\s*\)", text):
            if match[1] in {*derivatives, *plain}:
                raise ConfigurationError(
                    f"{argument}: expected primes on unknowns of one variable only, got {match[0]}: write derivatives "
                    "of arbitrary functions as derivatives of expressions, such as diff(f(u), x)"
                )
    for name, arguments in calls:
        stem, _, primes = name.partition("__")
        inner = ", ".join(map(ast.unparse, arguments))
        shown = f"{stem}{chr(39) * int(primes or 0)}({inner})"
        is_one = re.fullmatch(r"[^\W\d_]\d*", stem.partition("_")[0]) is not None
        if any(isinstance(a, ast.Constant) for a in arguments) and (is_one or name in derivatives):
            raise ConfigurationError(
                f"{argument}: expected equations alone, got {shown}: boundary and initial conditions are no part of "
                "them, `Symmetries.keeping` says which symmetries keep a boundary"
            )
        if primes:
            raise ConfigurationError(
                f"{argument}: expected primes on unknowns of one variable, at one place, got {shown}: write y'', or "
                "y''(x)"
            )
        _check_operator(name, inner, argument, {*derivatives, *plain} - {name}, derivatives)
        inside = {node.id for a in arguments for node in ast.walk(a) if isinstance(node, ast.Name)}
        if "_" in name and name.partition("_")[0] in {other.partition("_")[0] for other in (*derivatives, *plain)}:
            raise ConfigurationError(f"{argument}: expected derivatives as u_t, or diff(u(x, t), t), got {shown}")
        letters = {letter for other in inside for letter in other.partition("_")[2]}
        is_product = name in derivatives and (letters or inside & {*derivatives})
        if len(arguments) == 1 and (is_product or name in letters):
            raise ConfigurationError(f"{argument}: expected products with their sign *, got {shown}")
        if name not in plain and name not in derivatives:
            continue
        if not all(isinstance(a, ast.Name) for a in arguments) and name not in derivatives:
            raise ConfigurationError(
                f"{argument}: expected arbitrary functions that are not inside each other, got {shown}"
            )
        if not all(isinstance(a, ast.Name) for a in arguments):
            raise ConfigurationError(
                f"{argument}: expected unknowns at one place and time, got {shown}: equations with delays are not taken"
            )
        if not derivatives or name in derivatives:
            continue
        if len(arguments) > 1:
            raise ConfigurationError(
                f"{argument}: expected functions of one variable beside the unknowns {sorted(derivatives)}, got "
                f"{shown}: write a function of several variables out"
            )
        if not re.fullmatch(r"[^\W\d_]\d*", name):
            raise ConfigurationError(
                f"{argument}: expected a function of {sorted(functions)}, or an arbitrary one whose name has one "
                f"letter, such as f({ast.unparse(arguments[0])}), got {shown}"
            )


def _check_operator(
    name: str, inner: str, argument: str, others: Collection[str], derivatives: Collection[str]
) -> None:
    """Refuse calls of operators and functions that text does not have, by what they mean."""
    if name in derivatives:
        return
    if name == "sgn":
        raise ConfigurationError(f"{argument}: expected sign({inner}), got sgn({inner}), which is unknown")
    kinds = [
        (_DERIVATIVES, "derivatives as u_x, or diff(u, x)"),
        (_LAPLACIANS, "derivatives as u_x, or diff(u, x)"),
        (_INTEGRALS, "differential equations without integrals and sums"),
        (_COMPLEX, "real equations, with real and imaginary parts as two unknowns"),
        (_CORNERED, "functions that have derivatives everywhere"),
    ]
    for names, expected in kinds:
        # D(u) beside derivatives of others may be an arbitrary function
        if name in names and (len(name) > 1 or "," in inner or not others):
            raise ConfigurationError(f"{argument}: expected {expected}, got {name}({inner})")


def no_unknown(texts: Sequence[str], argument: str) -> ConfigurationError:
    """The error of text without derivatives, which names what may have been meant as one."""
    pattern = r"d\d*\w*\s*/\s*d\w+|[^\W\d_]\w*_\w+|\bd[^\W\d_]\b"
    found = next((match[0] for text in texts for match in re.finditer(pattern, text)), None)
    meant = "" if found is None else f": {found} may be meant as one, names of unknowns have letters and digits alone"
    return ConfigurationError(
        f"{argument}: expected functions such as u(x, t) or derivatives such as u_x, got none{meant}"
    )


def hint_of_characters(characters: Collection[str]) -> str:
    """What is meant by characters that no formula has, as the end of a message; empty if nothing is known."""
    return next((f": {words}" for known, words in _CHARACTERS.items() if set(known) & set(characters)), "")


def _refused(argument: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{argument}: expected derivatives as u_x, or diff(u, x), got {name}, which reads as one: a parameter needs "
        "another name"
    )


def _matching(tree: ast.expr, pattern: str) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and re.fullmatch(pattern, node.id))


def _either(names: Sequence[str]) -> str:
    return "|".join(sorted(map(re.escape, names), key=len, reverse=True))
