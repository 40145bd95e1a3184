"""Text and numbers from outside as exact SymPy expressions. No text is ever executed; SymPy is imported on first use.

The grammar is small: numbers (decimals are exact), names, ``+ - * / ** ^``, parentheses, calls of the `FUNCTIONS`, and
in equations derivatives, written ``u_xx``, ``u''`` or ``diff(u, x, 2)``. Everything else is refused.
"""

from __future__ import annotations

import ast
import decimal
import fractions
import itertools
import math
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from trivgeo._deprecation import renamed_arguments
from trivgeo._notation import check_called, check_notation, hint_of_characters, hint_of_syntax, no_unknown
from trivgeo._signatures import check_calls
from trivgeo.errors import ConfigurationError

__all__ = ["FUNCTIONS", "exact", "parse_equations", "parse_expression", "require_sympy"]

FUNCTIONS = {
    name: name
    for name in (
        "exp", "log", "sqrt", "cbrt", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "atan2",
        "sinh", "cosh", "tanh", "coth", "asinh", "acosh", "atanh", "erf", "sign", "Abs",
    )
} | {"ln": "log", "abs": "Abs", "arcsin": "asin", "arccos": "acos", "arctan": "atan"}  # fmt: skip
"""The functions that text may call, and their names in SymPy."""

_MAX_CHARACTERS = 4000  # characters
_MAX_DEPTH = 200  # operations inside each other
_MAX_EXPONENT = 64  # size of numbers in exponents
_MAX_FUNCTION_ARGUMENT = 1000  # size of numbers in functions
_MAX_BITS = 4096  # size of exact numbers
_MAX_TERMS = 2_000  # of a sum when all is multiplied out
_MAX_ORDER = 10  # of derivatives
_RESERVED_NAMES = {"diff", "nan", "inf", "oo", "zoo"}  # whoever writes them means no constant of the equation

# A floating-point number of more digits is the result of a division if a fraction is next to it.
_MIN_QUOTIENT_DIGITS = 12
_MAX_DENOMINATOR = 10_000
_MAX_ULPS = 8

_LETTER = "A-Za-z\u0370-\u03ff"
_ALLOWED = re.compile(rf"[{_LETTER}0-9_+\-*/^().,'\s]*")
_NAME = re.compile(rf"(?!.*__)[{_LETTER}][{_LETTER}0-9_]*")
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?")
_DERIVATIVE = re.compile(rf"([{_LETTER}][{_LETTER}0-9]*)_([{_LETTER}]+)")
_PRIMES = re.compile(rf"([{_LETTER}][{_LETTER}0-9]*)('+)(?![{_LETTER}0-9_'])")
_PRIMES_OF = re.compile(rf"([{_LETTER}][{_LETTER}0-9]*)('+)\(\s*([{_LETTER}][{_LETTER}0-9]*)\s*\)")  # y''(x)
_PRIMED = re.compile(rf"([{_LETTER}][{_LETTER}0-9]*)__(\d+)")  # how primes are written for Python; no name of text


@renamed_arguments(until="0.4", what="argument")
def exact(
    value: Any, argument: str = "value", functions: Iterable[str] = (), names: Mapping[str, Any] | None = None
) -> Any:
    """A number, text or SymPy expression as an exact SymPy expression.

    A floating-point number is read as the decimal that it prints as: 0.1 is 1/10. One of more than twelve digits that
    is within rounding of a fraction of denominator at most 10,000 is that fraction: ``1/3`` and ``0.1 + 0.2`` are.

    Args:
        value: a number, text, or a SymPy expression or equation.
        argument: the name in error messages.
        functions: names of unknown functions that text may call, beside `FUNCTIONS`.
        names: expressions that stand for some names, see `parse_expression`.

    Raises:
        ConfigurationError: it is none of these, or holds NaN or infinity, or the text is refused.
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
    except (sp.SympifyError, TypeError, ValueError) as error:  # the last two of arrays and tensors
        raise ConfigurationError(f"{argument}: expected a number, text or SymPy expression, got {value!r}") from error
    if not isinstance(expression, sp.Expr | sp.Equality):
        raise ConfigurationError(f"{argument}: expected a number, text or SymPy expression, got {value!r}")
    if expression.has(sp.nan, sp.zoo, sp.oo, -sp.oo):
        raise ConfigurationError(f"{argument}: expected finite numbers, got {expression}")
    return expression.xreplace({f: _rational_of(f) for f in expression.atoms(sp.Float)})


@renamed_arguments(until="0.4", what="argument")
def parse_expression(
    text: str, argument: str = "text", functions: Iterable[str] = (), names: Mapping[str, Any] | None = None
) -> Any:
    """Text as a SymPy expression; names are symbols.

    Args:
        text: such as ``"2*t*exp(-x/3)"``.
        argument: the name in error messages.
        functions: names of unknown functions that may be called, beside `FUNCTIONS`.
        names: expressions that stand for some names, beside ``pi``, ``E`` and ``I``.

    Raises:
        ConfigurationError: the text holds anything but the grammar above, or numbers, exponents or sums too large.
    """
    return _Reader(text, argument, functions, names or {}).expression()


@renamed_arguments(until="0.4", what="argument")
def parse_equations(texts: Sequence[str], argument: str = "pde") -> list[Any]:
    """Equations as SymPy expressions that are to vanish, in functions such as ``u(x, t)``.

    The unknowns are those that are called, as in ``u(x, t)``, or else those with derivatives: ``u_xx`` is the second
    derivative of u in x. Variables of more than one letter have to be named by such a call. ``u''`` is the derivative
    in the only variable: ``t`` if the text holds that name and not ``x``, else ``x``. Beside unknowns with derivatives
    a letter that is called with one argument, as in ``f(u)``, is an arbitrary function.

    Args:
        texts: each an equation ``"u_t = u_xx"``, or an expression that is to vanish.
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
                f"{argument}: expected at most one sign of equality, got {text[:80]!r}: several equations are a list "
                "of texts"
            )
        sides.append(parts)
    trees = [_tree(part, argument, True) for parts in sides for part in parts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    stems = {m[1] for name in named if (m := _DERIVATIVE.fullmatch(name) or _PRIMED.fullmatch(name))}
    check_called(_calls(nodes), stems | _differentiated(nodes)[0], argument, FUNCTIONS, texts)
    free = _arbitrary(nodes, named)
    functions, variables = _declared(nodes, free, argument) or _derived(named, *_differentiated(nodes))
    if not functions:
        raise no_unknown(texts, argument)
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
    """Letters that are called with one argument and have no derivatives, where others have: no misspelt functions."""
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
    """The syntax of text within bounds; nothing is evaluated. Primes become numbers after two underscores."""
    if not isinstance(text, str) or len(text) > _MAX_CHARACTERS:
        raise ConfigurationError(f"{argument}: expected text of at most {_MAX_CHARACTERS} characters")
    if "__" in text:
        raise ConfigurationError(f"{argument}: expected names without two underscores in a row, got {text[:80]!r}")
    if not _ALLOWED.fullmatch(text):
        strange = sorted({c for c in text if not _ALLOWED.fullmatch(c)})
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
    """One text; every intermediate result is bounded, so that nothing hangs."""

    def __init__(
        self, text: str, argument: str, functions: Iterable[str], names: Mapping[str, Any], primes: bool = False
    ) -> None:
        self._sp = require_sympy()
        self._argument, self._text = argument, text
        self._functions = set(functions)
        self._names = {"pi": self._sp.pi, "E": self._sp.E, "I": self._sp.I} | dict(names)
        self._body = _tree(text, argument, primes)

    def expression(self) -> Any:
        """The whole text."""
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
        # also those inside: SymPy gathers powers of products, 2**60*exp(8) to a power is one of either
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
    """The variables of derivatives, and how often each; a number that counts nothing is no variable."""
    before = None
    for argument, following in itertools.zip_longest(arguments, arguments[1:]):
        counts = argument.is_Integer and argument > 0 and before is not None and before.is_Symbol
        before = argument
        if not counts:
            counted = following is not None and following.is_Integer and following > 0
            yield argument, int(following) if counted and following is not None else 1


def _expanded_terms(value: Any) -> int | float:
    """An upper bound of the number of terms after multiplying out, without doing so."""
    if value.is_Add:
        return sum(map(_expanded_terms, value.args))
    if value.is_Mul:
        return math.prod(map(_expanded_terms, value.args))
    if value.is_Pow and value.exp.is_Integer:
        # numbers in exponents were bounded one by one, but SymPy gathers powers of powers
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
    """See `exact`."""
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


def require_sympy() -> ModuleType:
    """The module ``sympy``.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import sympy
    except ImportError as error:
        raise ConfigurationError(
            "symbolic input: expected the package sympy, which is not installed: pip install 'trivgeo[symbolic]'"
        ) from error
    return sympy


check_calls(__name__, __all__)
