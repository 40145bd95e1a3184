"""Text and numbers from outside as exact SymPy expressions. No text is ever executed; SymPy is imported on first use.

The grammar is small: numbers (decimals are exact), names, ``+ - * / ** ^``, parentheses, calls of the `FUNCTIONS`, and
in equations derivatives, written ``u_xx``, ``u''`` or ``diff(u, x, 2)``. Everything else is refused.
"""

from __future__ import annotations

import ast
import decimal
import fractions
import itertools
import keyword
import math
import numbers
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError, missing_package

__all__ = [
    "FUNCTIONS",
    "exact",
    "parse_equations",
    "parse_expression",
    "require_sympy",
]

_USUAL_VARIABLES = ("x", "y", "z", "t")  # variables of derivatives that are sought in misspelt names
# names of operators and functions that the grammar does not have
_DERIVATIVE_OPERATORS = {"D", "Dx", "Dy", "Dz", "Dt", "Derivative", "Diff", "derivative", "grad", "div", "curl", "rot"}
_DERIVATIVE_OPERATORS |= {"lap", "Lap", "laplace", "Laplace", "laplacian", "Laplacian", "Delta"}
_INTEGRALS_AND_SUMS = {"int", "Int", "integral", "Integral", "integrate", "sum", "Sum"}
_COMPLEX_FUNCTIONS = {"re", "Re", "im", "Im", "conj", "conjugate", "arg"}
_NON_SMOOTH = {"max", "Max", "min", "Min", "heaviside", "Heaviside", "delta", "DiracDelta", "floor", "ceil", "mod"}
_SEVERAL = "several equations are several texts: a list, or on the command line each in its own quotes"
_HINTS_BY_CHARACTERS = {
    "\\{}$": "write u_t = u_xx, not LaTeX",
    "<>≤≥≠!": "inequalities are not taken",
    "²³⁴": "powers are written u^2",
    "·×⋅": "a product needs its sign *",
    "∂∇∆": "derivatives are written u_x, or diff(u, x)",
    "|": "absolute values are written abs(x)",
    "∫∑": "integrals are not taken",
    "−–": "the minus sign is -",
    ";": _SEVERAL,
    '"': "a second derivative is y'', with two apostrophes",
}
_GREEK_PARAMETERS = {"mu", "nu", "xi", "pi", "eta", "phi", "psi", "chi", "rho", "tau", "beta", "zeta"}
# a pattern of subscripts that are words, or differentials, and no letters of variables
_WORD_SUBSCRIPTS = "d*dot|prime|old|new|max|min|mean|ref|init|left|right|exact|(d[xyzt])+"


def check_notation(
    texts: Sequence[str],
    trees: Sequence[ast.expr],
    unknowns: Sequence[str],
    variables: Sequence[str],
    argument: str,
    calls: Collection[str],
) -> None:
    """Refuse names that read as derivatives, products or numbers but would be parsed as parameters.

    These are ``ux``, ``uXX``, ``u_x1``, ``u_1_t``, ``dudt``, ``xdot``, ``Δu`` and quotients ``du/dt``, and primes on
    anything but an unknown of one variable; products without their sign such as ``xy``, calls without
    brackets such as ``sinu``, and powers of ``e``. As a
    parameter such a name would change the equation silently.

    Args:
        texts: the equations as text.
        trees: the syntax of their sides.
        argument: the name of the equations in error messages.
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
    words = re.compile(rf"({own})_({_WORD_SUBSCRIPTS})")  # u_dot is no derivative by d, o and t
    known = {*unknowns, *variables, *calls, *_GREEK_PARAMETERS}
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
    """Refuse parameters that read as the imaginary unit, as Euler's number, as products or calls without signs."""
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
    own = _either((*unknowns, *variables))
    product = re.compile(rf"({own}){{2,}}")
    letters = _either((*unknowns, *variables, *_USUAL_VARIABLES))
    call = re.compile(rf"(?:{letters}|\d)*({_either(tuple(FUNCTIONS))})((?:{letters}|\d)*(?:{letters}))")
    for name in sorted(parameters):
        if product.fullmatch(name):
            raise ConfigurationError(
                f"{argument}: expected products with their sign *, got {name}: a parameter needs another name"
            )
        if match := call.fullmatch(name):
            raise ConfigurationError(
                f"{argument}: expected calls of functions with brackets, {match[1]}({match[2]}), got {name}: a "
                "parameter needs another name"
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
    """The probable fault of text that is no formula, as the end of a message; empty if none is known."""
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
    """Refuse calls of names that are neither unknowns nor functions, with messages that say what they look like.

    Args:
        calls: names that are called, without known functions, and their arguments.
        derivatives: names of functions with derivatives, the unknowns; may be empty.
        functions: names of known functions.
        texts: see `check_notation`, also for ``argument``.

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
                "them; `Symmetries.keeping` finds the symmetries that keep a boundary"
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
    """Refuse calls of operators and functions that the grammar does not have, with the notation that it has."""
    if name in derivatives:
        return
    if name == "sgn":
        raise ConfigurationError(f"{argument}: expected sign({inner}), got sgn({inner}), which is unknown")
    kinds = [
        (_DERIVATIVE_OPERATORS, "derivatives as u_x, or diff(u, x)"),
        (_INTEGRALS_AND_SUMS, "differential equations without integrals and sums"),
        (_COMPLEX_FUNCTIONS, "real equations, with real and imaginary parts as two unknowns"),
        (_NON_SMOOTH, "functions that have derivatives everywhere"),
    ]
    for names, expected in kinds:
        # D(u) beside derivatives of others may be an arbitrary function
        if name in names and (len(name) > 1 or "," in inner or not others):
            raise ConfigurationError(f"{argument}: expected {expected}, got {name}({inner})")


def no_unknown(texts: Sequence[str], argument: str) -> ConfigurationError:
    """The error of text without derivatives; it quotes a name that may have been meant as one."""
    pattern = r"d\d*\w*\s*/\s*d\w+|[^\W\d_]\w*_\w+|\bd[^\W\d_]\b"
    found = next((match[0] for text in texts for match in re.finditer(pattern, text)), None)
    meant = "" if found is None else f": {found} may be meant as one, names of unknowns have letters and digits alone"
    return ConfigurationError(
        f"{argument}: expected functions such as u(x, t) or derivatives such as u_x, got none{meant}"
    )


def hint_of_characters(characters: Collection[str]) -> str:
    """The notation to use in place of characters that no formula has, as the end of a message; empty if unknown."""
    return next((f": {words}" for known, words in _HINTS_BY_CHARACTERS.items() if set(known) & set(characters)), "")


def _refused(argument: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{argument}: expected derivatives as u_x, or diff(u, x), got {name}, which reads as one: a parameter needs "
        "another name"
    )


def _matching(tree: ast.expr, pattern: str) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and re.fullmatch(pattern, node.id))


def _either(names: Sequence[str]) -> str:
    return "|".join(sorted(map(re.escape, names), key=len, reverse=True))


FUNCTIONS = {
    name: name
    for name in (
        "exp", "log", "sqrt", "cbrt", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "atan2",
        "sinh", "cosh", "tanh", "coth", "asinh", "acosh", "atanh", "erf", "sign", "Abs",
    )
} | {"ln": "log", "abs": "Abs", "arcsin": "asin", "arccos": "acos", "arctan": "atan"}  # fmt: skip
"""The functions that text may call, and their names in SymPy."""

_MAX_CHARACTERS = 4000  # length of a text
_MAX_DEPTH = 200  # nested operations
_MAX_EXPONENT = 64  # absolute value of numbers in exponents
_MAX_FUNCTION_ARGUMENT = 1000  # absolute value of numbers in functions
_MAX_BITS = 4096  # bits of numerators and denominators
_MAX_TERMS = 2_000  # terms of an expanded expression
_MAX_ORDER = 10  # order of derivatives
_RESERVED_NAMES = {"diff", "nan", "inf", "oo", "zoo"}  # names that are no parameters

# A floating-point number of more digits counts as a quotient if a simple fraction is within rounding.
_MIN_QUOTIENT_DIGITS = 12
_MAX_DENOMINATOR = 10_000  # denominator of such a fraction
_MAX_ULPS = 8  # distance from the fraction, in units in the last place

_LETTER = "A-Za-z\u0370-\u03ff"  # ranges of a character class
_ALLOWED_TEXT = re.compile(rf"[{_LETTER}0-9_+\-*/^().,'\s]*")
_NAME = re.compile(rf"(?!.*__)[{_LETTER}][{_LETTER}0-9_]*")
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?")
_DERIVATIVE = re.compile(rf"([{_LETTER}][{_LETTER}0-9]*)_([{_LETTER}]+)")
_PRIMES = re.compile(rf"([{_LETTER}][{_LETTER}0-9]*)('+)(?![{_LETTER}0-9_'])")
_PRIMES_OF = re.compile(rf"([{_LETTER}][{_LETTER}0-9]*)('+)\(\s*([{_LETTER}][{_LETTER}0-9]*)\s*\)")  # y''(x)
_ORDER_NAME = re.compile("[i-qI-Q\u0370-\u03ff]|..+")  # names that are no usual variables
_PRIMED = re.compile(rf"([{_LETTER}][{_LETTER}0-9]*)__(\d+)")  # primes in the syntax of Python; no name in text


@checked
def exact(
    value: Any, argument: str = "value", functions: Iterable[str] = (), names: Mapping[str, Any] | None = None
) -> Any:
    """A number, text or SymPy expression as an exact SymPy expression.

    A floating-point number is read as the decimal that it prints as: 0.1 is 1/10. A number of more than twelve digits
    within rounding of a fraction of denominator at most 10,000 is that fraction: ``1/3`` is 1/3, ``0.1 + 0.2`` 3/10.

    Args:
        value: a number, text, or a SymPy expression or equation.
        argument: the name in error messages.
        functions: names of unknown functions that text may call, beside `FUNCTIONS`.
        names: expressions that stand for some names, see `parse_expression`.

    Raises:
        ConfigurationError: the value is none of these, or holds NaN or infinity, or the text is refused.
    """
    sp = require_sympy()
    if isinstance(value, str):
        return parse_expression(value, argument, functions, names)
    if isinstance(value, decimal.Decimal | fractions.Fraction) or _is_plain_number(value):
        if isinstance(value, numbers.Rational) or (isinstance(value, decimal.Decimal) and value.is_finite()):
            return sp.Rational(str(value))
        if not math.isfinite(value):
            raise ConfigurationError(f"{argument}: expected finite numbers, got {value}")
        return _rational(float(str(value)))
    try:
        expression = sp.sympify(value, strict=True)
    except (sp.SympifyError, TypeError, ValueError) as error:  # arrays and tensors raise the last two
        raise ConfigurationError(f"{argument}: expected a number, text or SymPy expression, got {value!r}") from error
    if not isinstance(expression, sp.Expr | sp.Equality):
        raise ConfigurationError(f"{argument}: expected a number, text or SymPy expression, got {value!r}")
    if expression.has(sp.nan, sp.zoo, sp.oo, -sp.oo):
        raise ConfigurationError(f"{argument}: expected finite numbers, got {expression}")
    return expression.xreplace({f: _rational_of(f) for f in expression.atoms(sp.Float)})


@checked
def parse_expression(
    text: str, argument: str = "text", functions: Iterable[str] = (), names: Mapping[str, Any] | None = None
) -> Any:
    """Text as a SymPy expression; names are symbols.

    Args:
        text: expression such as ``"2*t*exp(-x/3)"``.
        argument: the name in error messages.
        functions: names of unknown functions that may be called, beside `FUNCTIONS`.
        names: expressions that stand for some names, beside ``pi``, ``E`` and ``I``.

    Raises:
        ConfigurationError: the text holds anything but the grammar above, or numbers, exponents or sums too large.
    """
    return _Reader(text, argument, functions, names or {}).expression()


@checked
def parse_equations(texts: Sequence[str], argument: str = "equation") -> list[Any]:
    """Equations as SymPy expressions that are to vanish, in functions such as ``u(x, t)``.

    The unknowns are the functions that are called, as in ``u(x, t)``, or else those with derivatives: ``u_xx`` is the
    second derivative of u in x. Variables of more than one letter have to be named by such a call. ``u''`` is the
    second derivative in the only variable: ``t`` if the text holds that name and not ``x``, else ``x``. If unknowns
    have derivatives, a letter that is called with one argument, as in ``f(u)``, is an arbitrary function.

    Args:
        texts: equations such as ``"u_t = u_xx"``, or expressions that are to vanish.
        argument: the name of the texts in error messages.

    Raises:
        ConfigurationError: as for `parse_expression`, or there is no unknown, or they depend on different variables, or
            a name reads as a derivative and is none, such as ``ux``, ``u_1_t``, ``du/dt`` or primes where there are
            several variables.
    """
    sp = require_sympy()
    sides: list[tuple[str, ...]] = []
    for text in texts:
        parts = tuple(re.split("==?", text))
        if len(parts) > 2:
            raise ConfigurationError(
                f"{argument}: expected at most one sign of equality, got {text[:80]!r}: {_SEVERAL}"
            )
        sides.append(parts)
    trees = [_tree(part, argument, True) for parts in sides for part in parts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    stems = {m[1] for name in named if (m := _DERIVATIVE.fullmatch(name) or _PRIMED.fullmatch(name))}
    check_called(_calls(nodes), stems | _differentiated(nodes)[0], argument, FUNCTIONS, texts)
    free = _arbitrary(nodes, named)
    declared = _declared(nodes, free, argument)
    functions, variables = declared or _derived(named, *_differentiated(nodes))
    if not functions:
        raise no_unknown(texts, argument)
    letters_of = {letter for name in named if (m := _DERIVATIVE.fullmatch(name)) for letter in m[2]}
    _check_orders(nodes, declared[1] if declared else letters_of, declared is not None, argument)
    check_notation(texts, trees, functions, variables, argument, {*FUNCTIONS, *_RESERVED_NAMES, *free, "E", "I"})
    own = sp.symbols(variables)
    unknowns = {name: sp.Function(name)(*own) for name in functions}
    # a variable E is not Euler's number
    table: dict[str, Any] = dict(zip(variables, own, strict=True)) | unknowns
    letters = "|".join(sorted(map(re.escape, variables), key=len, reverse=True))
    for name in named:
        match = re.fullmatch(rf"(.*?)_(({letters})+)", name)
        primes = _PRIMED.fullmatch(name)
        if match and match[1] in unknowns:
            table[name] = unknowns[match[1]].diff(*(own[variables.index(v)] for v in re.findall(letters, match[2])))
        elif primes and primes[1] in unknowns and len(own) == 1:
            table[name] = unknowns[primes[1]].diff(own[0], int(primes[2]))
        elif _DERIVATIVE.fullmatch(name):
            raise ConfigurationError(f"{argument}: expected derivatives of {functions} in {variables}, got {name[:40]}")
    called = [*functions, *free]
    readers = (tuple(_Reader(part, argument, called, table, True).expression() for part in parts) for parts in sides)
    return [parts[0] - (parts[1] if len(parts) > 1 else 0) for parts in readers]


def _calls(nodes: Sequence[ast.AST]) -> list[tuple[str, list[ast.expr]]]:
    """The unknown functions that are called, with their arguments."""
    calls = [(n.func.id, n.args) for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    return [(name, arguments) for name, arguments in calls if name not in {*FUNCTIONS, "diff"}]


def _arbitrary(nodes: Sequence[ast.AST], named: set[str]) -> set[str]:
    """Arbitrary functions: letters that are called with one argument and have no derivatives, while others have."""
    moved = _differentiated(nodes)[0]
    moved |= {m[1] for name in named if (m := _DERIVATIVE.fullmatch(name) or _PRIMED.fullmatch(name))}
    return {
        name
        for name, arguments in _calls(nodes)
        if moved and name not in moved and len(arguments) == 1 and re.fullmatch(rf"[{_LETTER}]\d*", name)
    }


def _declared(nodes: Sequence[ast.AST], free: set[str], argument: str) -> tuple[list[str], list[str]] | None:
    """The unknowns that are called and their variables."""
    calls = {}
    for name, arguments in _calls(nodes):
        if name not in free:
            if not arguments or not all(isinstance(a, ast.Name) for a in arguments):
                raise ConfigurationError(f"{argument}: expected a function of {sorted(FUNCTIONS)}, got {name}")
            calls[name] = [a.id for a in arguments if isinstance(a, ast.Name)]
    if not calls:
        return None
    variables = next(iter(calls.values()))
    if any(v != variables for v in calls.values()) or len(set(variables)) < len(variables):
        raise ConfigurationError(f"{argument}: expected functions of the same different variables, got {calls}")
    return sorted(calls), variables


def _differentiated(nodes: Sequence[ast.AST]) -> tuple[set[str], set[str]]:
    """The functions and variables of calls such as ``diff(u, x, 2)``."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    calls = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "diff"]
    functions = {call.args[0].id for call in calls if call.args and isinstance(call.args[0], ast.Name)}
    for call in calls:
        inner = call.args[0] if call.args else call
        if isinstance(inner, ast.Call) and {ast.dump(a) for a in inner.args} & {ast.dump(a) for a in call.args[1:]}:
            functions |= {name for name, _ in _calls([inner])}
    return functions, {a.id for call in calls for a in call.args[1:] if isinstance(a, ast.Name)}


def _check_orders(nodes: Sequence[ast.AST], variables: Collection[str], declared: bool, argument: str) -> None:
    """Refuse ``diff(u, x, alpha)``, whose last name reads as an order.

    A name after another is a variable if the unknowns are called with it, or have derivatives in it elsewhere, or it is
    one of the usual letters.

    Args:
        variables: the variables that the unknowns are called with, or else those of derivatives such as ``u_x``.
        declared: whether unknowns are called with variables.
    """
    calls = [
        n.args[1:] for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "diff"
    ]
    known = {*variables}
    if not declared:
        known |= {a.id for names in calls for a in names[:1] if isinstance(a, ast.Name)}
    for names in calls:
        for before, name in itertools.pairwise([None, *names]):
            if not isinstance(name, ast.Name) or name.id in known:
                continue
            if declared:
                raise ConfigurationError(
                    f"{argument}: expected derivatives in {list(variables)}, got one in {name.id}: orders are numbers, "
                    "diff(u, x, 2)"
                )
            if isinstance(before, ast.Name) and _ORDER_NAME.fullmatch(name.id):
                raise ConfigurationError(
                    f"{argument}: expected orders of derivatives that are numbers, diff(u, x, 2), got {name.id}: a "
                    f"variable is named by a call of the unknown, such as u({before.id}, {name.id})"
                )


def _derived(named: set[str], functions: set[str], variables: set[str]) -> tuple[list[str], list[str]]:
    """The unknowns that have derivatives and their variables, t last."""
    found = [(m[1], m[2]) for name in named if (m := _DERIVATIVE.fullmatch(name))]
    primed = [m[1] for name in named if (m := _PRIMED.fullmatch(name))]
    letters = {letter for _, suffix in found for letter in suffix} | variables
    if primed and not letters:
        letters = {"t" if "x" in primed or ("t" in named and "x" not in named) else "x"}
    words = {match[0] for name in named if (match := _DERIVATIVE.fullmatch(name))}
    unknowns = sorted(({name for name, _ in found} or set(primed)) | (functions - words))
    return unknowns, sorted(letters, key=lambda letter: (letter == "t", letter))


def _tree(text: str, argument: str, primes: bool) -> ast.expr:
    """The syntax tree of text, without evaluation; primes become numbers after two underscores."""
    if not isinstance(text, str) or len(text) > _MAX_CHARACTERS:
        got = f"{len(text)}" if isinstance(text, str) else type(text).__name__
        raise ConfigurationError(f"{argument}: expected text of at most {_MAX_CHARACTERS} characters, got {got}")
    if "__" in text:
        raise ConfigurationError(f"{argument}: expected names without two underscores in a row, got {text[:80]!r}")
    if not _ALLOWED_TEXT.fullmatch(text):
        strange = sorted({c for c in text if not _ALLOWED_TEXT.fullmatch(c)})
        hint = hint_of_characters(strange)
        raise ConfigurationError(f"{argument}: expected a formula, got the characters {strange} in {text[:80]!r}{hint}")
    plain = " ".join(text.split()).replace("^", "**")
    if primes:
        plain = _PRIMES_OF.sub(lambda m: f"diff({m[1]}({m[3]}), {m[3]}, {len(m[2])})", plain)
        plain = _PRIMES.sub(lambda m: f"{m[1]}__{len(m[2])}", plain)
    try:
        body = ast.parse(plain, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigurationError(f"{argument}: expected a formula, got {text[:80]!r}{hint_of_syntax(text)}") from error
    for node in ast.walk(body):
        if isinstance(node, ast.Constant):
            # the number as it was written: decimals are exact
            node.kind = plain.encode()[node.col_offset : node.end_col_offset].decode()
    return body


class _Reader:
    """The reader of one text, which bounds every intermediate result, so that nothing hangs."""

    def __init__(
        self, text: str, argument: str, functions: Iterable[str], names: Mapping[str, Any], primes: bool = False
    ) -> None:
        self._sp = require_sympy()
        self._argument, self._text = argument, text
        self._functions = set(functions)
        self._names = {"pi": self._sp.pi, "E": self._sp.E, "I": self._sp.I} | dict(names)
        self._body = _tree(text, argument, primes)

    def expression(self) -> Any:
        """The expression of the whole text."""
        return self._read(self._body, 0)

    def _refuse(self, expected: str) -> ConfigurationError:
        return ConfigurationError(f"{self._argument}: expected {expected}, got {self._text[:80]!r}")

    def _read(self, node: ast.AST, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise self._refuse(f"at most {_MAX_DEPTH} operations inside each other")
        read = _READERS.get(type(node))
        if read is None:
            raise self._refuse(f"a formula of numbers, names, + - * / ** and functions (no {type(node).__name__})")
        return self._bounded(read(self, node, depth + 1))

    def _bounded(self, value: Any) -> Any:
        # atoms inside are checked too: SymPy distributes powers over the factors of products such as 2**60*exp(8)
        if any(max(x.p.bit_length(), x.q.bit_length()) > _MAX_BITS for x in value.atoms(self._sp.Rational)):
            raise self._refuse("numbers of moderate size")
        if any(self._is_large(x.args[0], _MAX_FUNCTION_ARGUMENT) for x in value.atoms(self._sp.exp)):
            raise self._refuse(f"numbers of at most {_MAX_FUNCTION_ARGUMENT} in functions")
        if value.has(self._sp.nan, self._sp.zoo, self._sp.oo, -self._sp.oo):
            raise self._refuse("finite numbers")
        if _expanded_terms(value) > _MAX_TERMS:
            raise self._refuse(f"at most {_MAX_TERMS} terms")
        return value

    def _is_large(self, value: Any, bound: float) -> bool:
        return value.is_number and not abs(value.evalf(15)) <= bound

    def _constant(self, node: ast.Constant, depth: int) -> Any:
        if isinstance(node.value, complex):
            raise self._refuse("real numbers, and real and imaginary parts as two unknowns")
        if not _NUMBER.fullmatch(str(node.kind)):
            raise self._refuse("numbers such as 2, 0.1 or 1e-3")
        return self._sp.Rational(node.kind)

    def _name(self, node: ast.Name, depth: int) -> Any:
        if node.id in self._names:
            return self._names[node.id]
        if not _NAME.fullmatch(node.id) or node.id in FUNCTIONS or node.id in _RESERVED_NAMES:
            raise self._refuse(f"names of letters and digits that are no functions or infinities (no {node.id[:40]})")
        return self._sp.Symbol(node.id)

    def _unary(self, node: ast.UnaryOp, depth: int) -> Any:
        if not isinstance(node.op, ast.UAdd | ast.USub):
            raise self._refuse("+ or -")
        value = self._read(node.operand, depth)
        return value if isinstance(node.op, ast.UAdd) else -value

    def _binary(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self._read(node.left, depth), self._read(node.right, depth)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            if right == 0:
                raise self._refuse("no division by zero")
            return left / right
        if not isinstance(node.op, ast.Pow):
            raise self._refuse("+ - * / or **")
        if self._is_large(right, _MAX_EXPONENT):
            raise self._refuse(f"exponents of at most {_MAX_EXPONENT}")
        if left == 0 and not (right.is_number and right.is_positive):
            raise self._refuse("powers of numbers other than zero")
        return left**right

    def _call(self, node: ast.Call, depth: int) -> Any:
        if not isinstance(node.func, ast.Name) or node.keywords or not node.args:
            raise self._refuse("calls such as exp(x), and products with their sign *")
        name = node.func.id
        arguments = [self._read(a, depth) for a in node.args]
        if any(self._is_large(a, _MAX_FUNCTION_ARGUMENT) for a in arguments):
            raise self._refuse(f"numbers of at most {_MAX_FUNCTION_ARGUMENT} in functions")
        if name in self._functions:
            return self._sp.Function(name)(*arguments)
        if name == "diff":
            return self._diff(arguments)
        if name not in FUNCTIONS or len(arguments) != (2 if name == "atan2" else 1):
            raise self._refuse(f"functions of one number among {sorted(FUNCTIONS)}, not {name[:40]}")
        return getattr(self._sp, FUNCTIONS[name])(*arguments)

    def _diff(self, arguments: Sequence[Any]) -> Any:
        result, order = arguments[0], 0
        steps = list(_steps(arguments[1:]))
        if not steps:
            raise self._refuse("derivatives such as diff(u, x, 2)")
        for variable, count in steps:
            order += count
            if not variable.is_Symbol or order > _MAX_ORDER:
                raise self._refuse(f"derivatives such as diff(u, x, 2) of order at most {_MAX_ORDER}")
            for _ in range(count):
                result = self._bounded(result.diff(variable))
        return result


def _steps(arguments: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """The variables of derivatives with the order of each; a number that follows no variable is yielded as one."""
    before = None
    for argument, following in itertools.zip_longest(arguments, arguments[1:]):
        counts = argument.is_Integer and argument > 0 and before is not None and before.is_Symbol
        before = argument
        if not counts:
            counted = following is not None and following.is_Integer and following > 0
            yield argument, int(following) if counted and following is not None else 1


def _expanded_terms(value: Any) -> int | float:
    """An upper bound of the number of terms of the expanded expression, without expansion."""
    if value.is_Add:
        return sum(map(_expanded_terms, value.args))
    if value.is_Mul:
        return math.prod(map(_expanded_terms, value.args))
    if value.is_Pow and value.exp.is_Integer:
        # each exponent was bounded, but SymPy combines powers of powers
        terms, power = _expanded_terms(value.base), abs(int(value.exp))
        if power > _MAX_EXPONENT or terms > _MAX_TERMS:
            return math.inf
        return math.comb(int(terms) + power - 1, power)
    return 1


_READERS: dict[type, Callable[[Any, Any, int], Any]] = {
    ast.Constant: _Reader._constant,
    ast.Name: _Reader._name,
    ast.UnaryOp: _Reader._unary,
    ast.BinOp: _Reader._binary,
    ast.Call: _Reader._call,
}


def _rational(value: float) -> Any:
    """The rational number that a floating-point number stands for, see `exact`."""
    sp = require_sympy()
    decimal_value = sp.Rational(repr(value))
    simple = fractions.Fraction(value).limit_denominator(_MAX_DENOMINATOR)
    digits = len(decimal.Decimal(repr(value)).as_tuple().digits)
    is_rounded = digits > _MIN_QUOTIENT_DIGITS and abs(float(simple) - value) <= _MAX_ULPS * math.ulp(value)
    return sp.Rational(str(simple)) if is_rounded else decimal_value


def _rational_of(value: Any) -> Any:
    sp = require_sympy()
    if value._prec <= 53:
        return _rational(float(value))
    return sp.Rational(str(value))


def _is_plain_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, require_sympy().Basic))


@checked
def require_sympy() -> ModuleType:
    """The module ``sympy``.

    Raises:
        ConfigurationError: SymPy is not installed.
    """
    try:
        import sympy
    except ImportError as error:
        raise missing_package("formulas", "SymPy", "symbolic") from error
    return sympy
