"""C++ of one loop over the batch: reads numbers of an element, computes functions of them, writes numbers of it.

Its text is what a compiler has least to do with: one definition for each number, in vectors that are types of the
compiler's own; the last elements, fewer than a vector, go through the same code. What only some elements need, where
that is much, is under a branch that vectors without such elements skip.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

__all__ = ["TYPES", "Array", "Source", "expression"]

aten: Any = torch.ops.aten
Node: TypeAlias = Any  # of torch.fx

TYPES = {torch.float64: "double", torch.float32: "float", torch.bool: "bool"}
_VECTORS = {torch.float64: "D", torch.float32: "S", torch.bool: "M"}
_OF_ONE = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "exp2", "expm1"),
    *("floor", "log", "log10", "log1p", "log2", "round", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
_OF_TWO = ("atan2", "hypot", "pow")
_NAME = re.compile(r"\b(?:c\d+|t\d+@)")
_FEW = 1000  # operations of a loop that has two vectors of each number: one waits while the other is computed
# lines of a function: finding registers for them takes a time that grows with the square; more than _FEW, since what a
# function leaves to the next is one vector of each number
_MOST = 5000
_ENOUGH = 200_000  # operations that are worth the start of another thread: some ten microseconds

_WORTH = 80  # operations that are worth a branch
_SLOW = {"abs_": 0, "sqrt_": 5, "floor_": 0, "ceil_": 0, "round_": 0, "trunc_": 0}  # functions of torch; others 20
_CHOICE = re.compile(r" = choose\((\S+), (\S+), (\S+)\);")
_OPPOSITE = re.compile(r" = ~(\S+);")
_Condition: TypeAlias = tuple[str, bool]

_PREFIX = """
#include <torch/csrc/inductor/cpp_prefix.h>
#include <ATen/cpu/vec/vec.h>  // which the prefix leaves out for processors without vectors
#include <cstring>
constexpr int W = at::vec::Vectorized<{widest}>::size();  // elements of a vector
constexpr int R = {parts} * W;  // elements at a time
typedef double D __attribute__((vector_size(W * sizeof(double))));
typedef float S __attribute__((vector_size(W * sizeof(float))));
typedef decltype({vector}{{}} < {vector}{{}}) M;

template <class V, class T> static inline V all(T x) {{
    V r;
    for (int i = 0; i < W; i++) r[i] = x;
    return r;
}}
template <class V, int K, class T> static inline V get(const T* p) {{
    V r;
    alignas(64) std::remove_cvref_t<decltype(r[0])> a[W];
    #pragma GCC unroll 16
    for (int i = 0; i < W; i++) a[i] = std::is_same_v<T, bool> ? -p[i * K] : p[i * K];
    std::memcpy(&r, a, sizeof r);
    return r;
}}
template <int K, class T, class V> static inline void put(T* p, V x) {{
    alignas(64) std::remove_cvref_t<decltype(x[0])> a[W];
    std::memcpy(a, &x, sizeof x);
    #pragma GCC unroll 16
    for (int i = 0; i < W; i++) p[i * K] = static_cast<T>(a[i]);
}}
template <int K, class T> static inline const T* filled(T* own, const T* p, int64_t rest) {{
    if (K == 0 || rest >= R) return p;
    for (int64_t i = 0; i < R; i++) std::memcpy(own + i * K, p + (i < rest ? i : 0) * K, K * sizeof(T));
    return own;
}}
template <class X> static inline M mask(X x) {{ return __builtin_convertvector(x, M); }}
template <class V> static inline V choose(M m, V x, V y) {{
    return __builtin_convertvector(m, decltype(x < y)) ? x : y;
}}
static inline bool any(M m) {{
    int64_t words[sizeof m / 8], word = 0;
    std::memcpy(words, &m, sizeof m);
    #pragma GCC unroll 16
    for (auto x : words) word |= x;
    return word;
}}
template <class V> static inline V larger(V x, V y) {{ return (x > y) | (x != x) ? x : y; }}
template <class V> static inline V smaller(V x, V y) {{ return (x < y) | (x != x) ? x : y; }}
template <class V> static inline V sign(V x) {{
    const V one = all<V>(1.0), zero = V{{}};
    return (x > zero ? one : zero) - (x < zero ? one : zero);
}}
template <class V, class F, class... Vs> static inline V each(F f, V x, Vs... y) {{
    using T = std::conditional_t<std::is_same_v<V, S>, float, double>;
    using L = at::vec::Vectorized<T>;
    constexpr int N = W < L::size() ? L::size() : W;
    T a[1 + sizeof...(y)][N] = {{}};
    int row = 0;
    std::memcpy(a[row], &x, sizeof x);
    (std::memcpy(a[++row], &y, sizeof y), ...);
    for (int i = 0; i < N; i += L::size()) {{
        if constexpr (sizeof...(y) == 0) f(L::loadu(a[0] + i)).store(a[0] + i);
        else f(L::loadu(a[0] + i), L::loadu(a[1] + i)).store(a[0] + i);
    }}
    std::memcpy(&x, a[0], sizeof x);
    return x;
}}
"""


class Array(NamedTuple):
    """A tensor in memory, contiguous, the batch first: its numbers for each element, none for one number for all."""

    dtype: torch.dtype
    numbers: int


Operand: TypeAlias = Callable[[Any, torch.dtype], str]  # a node or number, as a vector of a dtype
Rule: TypeAlias = Callable[[Node, Operand], "str | None"]


def _function(name: str) -> Rule:
    """A function of torch's vectors."""
    return _formula(f"{name}_({{0}}, {{1}})" if name in _OF_TWO else f"{name}_({{0}})")


def _formula(text: str) -> Rule:
    """Of the operands in the dtype of the result."""

    def rule(node: Node, operand: Operand) -> str | None:
        dtype = node.meta["val"].dtype
        if dtype not in (torch.float64, torch.float32):
            return None
        one = operand(1.0, dtype) if "{one}" in text else ""
        return text.format(*(operand(x, dtype) for x in node.args), one=one)

    return rule


def _product(node: Node, operand: Operand) -> str | None:
    x, y = node.args
    for one, other in ((x, y), (y, x)):
        if isinstance(one, int | float) and one == 1:
            return operand(other, node.meta["val"].dtype)
    return _formula("{0} * {1}")(node, operand)


def _comparison(sign: str) -> Rule:
    def rule(node: Node, operand: Operand) -> str | None:
        values = [x.meta["val"] for x in node.args if isinstance(x, torch.fx.Node)]
        dtypes = {v.dtype for v in values if v.ndim} or {v.dtype for v in values}
        if torch.bool in dtypes:
            return None
        dtype = max(dtypes, key=lambda d: d.itemsize)
        left, right = (operand(x, dtype) for x in node.args)
        return f"mask({left} {sign} {right})"

    return rule


def _logic(text: str) -> Rule:
    def rule(node: Node, operand: Operand) -> str | None:
        if any(x.meta["val"].dtype != torch.bool for x in node.all_input_nodes):
            return None
        return text.format(*(operand(x, torch.bool) for x in node.args))

    return rule


def _where(node: Node, operand: Operand) -> str | None:
    condition, x, y = node.args
    dtype = node.meta["val"].dtype
    return f"choose({operand(condition, torch.bool)}, {operand(x, dtype)}, {operand(y, dtype)})"


_POWERS = {1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}", 4: "({0} * {0}) * ({0} * {0})", 0.5: "sqrt_({0})"}


def _power(node: Node, operand: Operand) -> str | None:
    """Small powers by products and roots."""
    exponent = node.args[1]
    text = _POWERS.get(abs(exponent))
    if text is None:
        return _function("pow")(node, operand)
    return _formula(text if exponent > 0 else f"{{one}} / ({text})")(node, operand)


def _converted(node: Node, operand: Operand) -> str | None:
    return operand(node.args[0], node.meta["val"].dtype)


_LARGER, _SMALLER = _formula("larger({0}, {1})"), _formula("smaller({0}, {1})")
_RULES: dict[Any, Rule] = {
    **{getattr(aten, name).default: _function(name) for name in (*_OF_ONE, "atan2", "hypot")},
    **{
        overload: rule
        for name, rule in (
            ("add", _formula("{0} + {1}")),
            ("sub", _formula("{0} - {1}")),
            ("mul", _product),
            ("div", _formula("{0} / {1}")),
        )
        for overload in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
    },
    aten.sign.default: _formula("sign({0})"),
    aten.neg.default: _formula("-{0}"),
    aten.reciprocal.default: _formula("{one} / {0}"),
    aten.rsqrt.default: _formula("{one} / sqrt_({0})"),
    aten.addcmul.default: _formula("{0} + {1} * {2}"),
    aten.maximum.default: _LARGER,
    aten.clamp_min.default: _LARGER,
    aten.clamp_min.Tensor: _LARGER,
    aten.minimum.default: _SMALLER,
    aten.clamp_max.default: _SMALLER,
    aten.clamp_max.Tensor: _SMALLER,
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: _function("pow"),
    aten.where.self: _where,
    torch.ops.prims.convert_element_type.default: _converted,
    **{
        overload: _comparison(sign)
        for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!="))
        for overload in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
    },
    **{
        overload: _logic(text)
        for name, text in (("and", "{0} & {1}"), ("or", "{0} | {1}"), ("xor", "{0} ^ {1}"))
        for overload in (getattr(aten, f"bitwise_{name}").Tensor, getattr(aten, f"logical_{name}").default)
    },
    **dict.fromkeys((aten.bitwise_not.default, aten.logical_not.default), _logic("~{0}")),
}


def expression(node: Node, operand: Operand) -> str | None:
    """What a node computes of single numbers, or none if there is no rule for it."""
    rule = _RULES.get(node.target)
    return None if rule is None or node.kwargs else rule(node, operand)


class Source:
    """The text, line by line."""

    def __init__(self) -> None:
        self._dtypes = {torch.float32}  # of all that occurs
        self._constants: dict[str, str] = {}  # names by definitions
        self._values: dict[str, str] = {}
        self._writes: list[str] = []
        self._inputs: list[Array] = []
        self._outputs: list[Array] = []

    def constant(self, value: float, dtype: torch.dtype) -> str:
        """The name of a number."""
        if dtype == torch.bool:
            text = "-1" if value else "0"
        else:
            text = repr(float(value)).replace("nan", "NAN").replace("inf", "INFINITY")
            text = f"static_cast<{TYPES[dtype]}>({text})"
        kind = _VECTORS[dtype]
        self._dtypes.add(dtype)
        return self._constants.setdefault(f"{kind} {{}} = all<{kind}>({text});", f"c{len(self._constants)}")

    def value(self, text: str, dtype: torch.dtype) -> str:
        """The name of an expression."""
        if _NAME.fullmatch(text):
            return text
        self._dtypes.add(dtype)
        return self._values.setdefault(f"{_VECTORS[dtype]} {{}} = {text};", f"t{len(self._values)}@")

    def converted(self, name: str, dtype: torch.dtype, wanted: torch.dtype) -> str:
        """A vector in another dtype."""
        if dtype == wanted:
            return name
        if wanted == torch.bool:
            return self.value(f"mask({name} != {self.constant(0.0, dtype)})", wanted)
        if dtype == torch.bool:
            return self.value(f"choose({name}, {self.constant(1.0, wanted)}, {self.constant(0.0, wanted)})", wanted)
        return self.value(f"__builtin_convertvector({name}, {_VECTORS[wanted]})", wanted)

    def input(self, array: Array) -> int:
        """The number of a new argument."""
        self._inputs.append(array)
        return len(self._inputs) - 1

    def read(self, argument: int, offset: int) -> str:
        """The name of an entry of an argument."""
        dtype, numbers = self._inputs[argument]
        return self.value(f"get<{_VECTORS[dtype]}, {numbers}>(in{argument} + @ * W * {numbers} + {offset})", dtype)

    def write(self, names: list[str], dtype: torch.dtype) -> None:
        """Another result."""
        place = f"out{len(self._outputs)}"
        k = len(names)
        self._writes += [f"put<{k}>({place} + @ * W * {k} + {i}, {name});" for i, name in enumerate(names)]
        self._outputs.append(Array(dtype, len(names)))

    @property
    def types(self) -> list[str]:
        """Of the arguments of the kernel: inputs, outputs, the number of elements."""
        inputs = [f"const {TYPES[a.dtype]}*" for a in self._inputs]
        return [*inputs, *(f"{TYPES[a.dtype]}*" for a in self._outputs), "const int64_t"]

    def text(self, threads: int) -> str:
        """All of it; the function is called kernel."""
        arrays = [("in", i, array) for i, array in enumerate(self._inputs)]
        arrays += [("out", i, array) for i, array in enumerate(self._outputs)]
        names = [f"{word}{i}" for word, i, _ in arrays]
        named = ", ".join(f"{kind} {name}" for kind, name in zip(self.types, [*names, "n"], strict=True))
        parameters = [f"{kind} __restrict {name}" for kind, name in zip(self.types, names, strict=False)]
        widest = max(self._dtypes - {torch.bool}, key=lambda dtype: dtype.itemsize)
        operations = len(self._values) + len(self._writes)
        parts = 2 if operations < _FEW else 1
        functions, kept = self._functions(parameters, parts)
        own, places, back = [f"{kind} {kind}s[{number}];" for kind, number in kept.items()], [], []
        for word, i, array in arrays:
            here, kind, k = f"{word}{i}", TYPES[array.dtype], array.numbers
            own.append(f"{kind} own_{here}[R * {max(k, 1)}];")
            if word == "in":
                places.append(f"const {kind}* at_{here} = filled<{k}>(own_{here}, {here} + i * {k}, rest);")
            else:
                places.append(f"{kind}* at_{here} = rest < R ? own_{here} : {here} + i * {k};")
                back.append(f"if (rest < R) std::memcpy({here} + i * {k}, own_{here}, rest * {k} * sizeof({kind}));")
        here = ", ".join([*(f"at_{name}" for name in names), *(f"{kind}s" for kind in kept)])
        parallel = (
            f"#pragma omp parallel num_threads(std::min<int64_t>({threads}, 1 + n * {operations} / {_ENOUGH}))",
            "#pragma omp for",
        )
        return "\n".join(
            [
                _PREFIX.format(widest=TYPES[widest], vector=_VECTORS[widest], parts=parts),
                *(_of_torch(name) for name in (*_OF_ONE, *_OF_TWO)),
                *(line for function in functions for line in function),
                f'extern "C" void kernel({named}) {{',
                *parallel[: int(threads > 1)],
                "{",
                *own,
                *parallel[1 : 1 + int(threads > 1)],
                "for (int64_t i = 0; i < n; i += R) {",
                "const int64_t rest = n - i;",
                *places,
                *(f"step{i}({here});" for i in range(len(functions))),
                *back,
                "}",
                "}",
                "}",
            ]
        )

    def _functions(self, parameters: Sequence[str], parts: int) -> tuple[list[list[str]], dict[str, int]]:
        """Lines of functions, to be called in turn, and how many vectors of a kind they leave to later ones."""
        pieces = _Order(self._values, self._writes).pieces()
        total = sum(len(piece.lines) for piece in pieces)
        size = math.ceil(total / math.ceil(total / _MOST))
        blocks: list[list[_Piece]] = []
        room = 0
        for piece in pieces:
            if not blocks or len(piece.lines) > room:
                blocks.append([])
                room = size
            blocks[-1].append(piece)
            room -= len(piece.lines)
        used = [dict.fromkeys(name for piece in block for name in piece.used) for block in blocks]
        kinds = {name: definition[0] for definition, name in self._values.items()}
        home = {name: i for i, block in enumerate(blocks) for piece in block for name in piece.lines}
        earlier = [[name for name in names if home.get(name, i) < i] for i, names in enumerate(used)]
        kept: dict[str, str] = {}
        numbers: dict[str, int] = {}
        for name in dict.fromkeys(name for names in earlier for name in names):
            number = numbers.get(kinds[name], 0)
            kept[name], numbers[kinds[name]] = f"{kinds[name]}s[{number}]", number + 1
        inlined = "inline" if len(blocks) == 1 else "__attribute__((noinline))"
        head = ", ".join([*parameters, *(f"{kind}* __restrict {kind}s" for kind in numbers)])
        seen = _uses(pieces)
        functions = []
        for i, block in enumerate(blocks):
            functions.append(
                [
                    f"static {inlined} void step{i}({head}) {{",
                    *(definition.format(name) for definition, name in self._constants.items() if name in used[i]),
                    *_of_parts((f"{kinds[name]} {name} = {kept[name]};" for name in earlier[i]), parts),
                    *(line for piece in block for line in piece.text(kinds, seen, parts)),
                    *_of_parts((f"{place} = {name};" for name, place in kept.items() if home[name] == i), parts),
                    "}",
                ]
            )
        return functions, numbers


class _Choice(NamedTuple):
    """What `choose` reads: a mask, and two numbers, each with its condition and the other one."""

    mask: str
    arms: tuple[tuple[_Condition, str, str], ...]


class _Piece:
    """Lines that stay together: one, or those that only some elements need.

    Args:
        lines: definitions by names, ``= ...;``; a write, alone, by none.
        condition: the mask of which elements need them, and whether where it is set or where it is not.
        others: of the last lines, by names: what they are for other elements.
    """

    def __init__(
        self, lines: dict[str, str], condition: _Condition | None = None, others: Mapping[str, str] | None = None
    ) -> None:
        self.lines, self.condition, self.others = lines, condition, others or {}
        texts = [*lines.values(), *(condition[:1] if condition else ())]
        self.used = dict.fromkeys(_NAME.findall(" ".join(texts)))

    def text(self, kinds: Mapping[str, str], seen: Mapping[str, Any], parts: int) -> list[str]:
        """C++, the vectors of each number side by side; ``seen`` are the names with the pieces that read them."""
        initial = {}
        if self.condition:
            read_elsewhere = [name for name in self.lines if seen.get(name, set()) - {id(self)}]
            initial = {name: self.others.get(name, f"{kinds[name]}{{}}") for name in read_elsewhere}
        defined = {name: name if name in initial else f"{kinds.get(name, '')} {name}" for name in self.lines}
        lines = _of_parts((defined[name] + line for name, line in self.lines.items()), parts)
        if self.condition is None:
            return lines
        mask, wanted = self.condition
        which = " | ".join(f"{'' if wanted else '~'}{mask.replace('@', str(part))}" for part in range(parts))
        declared = _of_parts((f"{kinds[name]} {name} = {value};" for name, value in initial.items()), parts)
        return [*declared, f"if (any({which})) {{", *lines, "}"]


def _of_parts(lines: Iterable[str], parts: int) -> list[str]:
    return [line.replace("@", str(part)) for line in lines for part in range(parts)]


def _uses(pieces: Sequence[_Piece]) -> dict[str, set[int]]:
    """Of names the pieces that read them."""
    found: dict[str, set[int]] = {}
    for piece in pieces:
        for name in piece.used:
            found.setdefault(name, set()).add(id(piece))
    return found


class _Order:
    """In which order numbers are computed: what only elements in some regime need, only where there are such.

    A number that is read by `choose` alone, each time in the place of the same elements, and numbers that only such
    read, wait until one of them is read, and are left out for vectors without such elements.

    Args:
        values: names by definitions, in an order in which they can be computed.
        writes: what follows.
    """

    def __init__(self, values: Mapping[str, str], writes: Sequence[str]) -> None:
        self.lines = {name: definition.split("{}", 1)[1] for definition, name in values.items()}
        self.writes = writes
        self.index = {name: i for i, name in enumerate(self.lines)}
        self.read = {name: self._numbers_of(line) for name, line in self.lines.items()}
        self.choices = {name: choice for name in self.lines if (choice := self._choice(name))}
        self.chosen: dict[_Condition, list[tuple[str, str]]] = {}  # what chooses, and the other of its two
        for name, choice in self.choices.items():
            for condition, _, other in choice.arms:
                self.chosen.setdefault(condition, []).append((name, other))
        self.conditions = self._conditions()
        self.waiting: dict[_Condition, list[str]] = {}
        self.placed: set[str] = set()
        self.result: list[_Piece] = []

    def pieces(self) -> list[_Piece]:
        """All lines."""
        for name in self.lines:
            if name in self.conditions:
                self.waiting.setdefault(self.conditions[name], []).append(name)
                continue
            self._need(self.read[name], len(self.lines))
            if name not in self.placed:  # by what it needed
                self._place([name])
        for text in self.writes:
            self._need(self._numbers_of(text), len(self.lines))
            self.result.append(_Piece({"": text}))
        return self.result

    def _numbers_of(self, text: str) -> list[str]:
        return [name for name in dict.fromkeys(_NAME.findall(text)) if name in self.lines]

    def _choice(self, name: str) -> _Choice | None:
        """Of what chooses."""
        choice = _CHOICE.fullmatch(self.lines[name])
        if choice is None or choice[1] not in self.lines:  # by a constant
            return None
        mask, yes, no = choice.groups()
        opposite = _OPPOSITE.fullmatch(self.lines[mask])
        base = opposite[1] if opposite else mask
        return _Choice(mask, (((base, not opposite), yes, no), ((base, bool(opposite)), no, yes)))

    def _place(self, names: Collection[str], condition: _Condition | None = None, with_choices: bool = False) -> None:
        """Place lines, and what chooses by their condition and has all that it needs."""
        if not names:
            return
        self.placed.update(names)
        others = {
            name: other
            for name, other in (self.chosen.get(condition, ()) if condition and with_choices else ())
            if not (name in self.placed or name in self.conditions or set(self.read[name]) - self.placed)
        }
        self.placed.update(others)
        self.result.append(_Piece({name: self.lines[name] for name in (*names, *others)}, condition, others))

    def _need(self, names: Iterable[str], end: int) -> None:
        """Place these numbers if they wait, with what waits for the same up to a line."""
        for name in names:
            if name not in self.placed:
                self._end_wait(self.conditions[name], end)

    def _end_wait(self, condition: _Condition, end: int) -> None:
        waiting = self.waiting[condition]
        names = [name for name in waiting if self.index[name] < end]
        self.waiting[condition] = waiting[len(names) :]
        mask, _ = condition
        self._need([mask], self.index[mask] + 1)
        together: dict[str, None] = {}
        for name in names:
            others = [x for x in self.read[name] if x not in self.placed and x not in together]
            if others:  # which wait for another condition
                self._place(together, condition)
                together = {}
                self._need(others, self.index[name])
            together[name] = None
        self._place(together, condition, with_choices=end == len(self.lines))

    def _conditions(self) -> dict[str, _Condition]:
        """Under which conditions lines are needed, of those that are not always and are worth a branch."""
        small: set[_Condition] = set()
        operations = {name: _work(line) for name, line in self.lines.items()}
        while True:
            found = self._found(small)
            work: dict[_Condition, int] = {}
            for name, condition in found.items():
                work[condition] = work.get(condition, 0) + operations[name]
            cheap = {condition for condition, amount in work.items() if amount < _WORTH}
            if not cheap:
                return found
            small |= cheap

    def _found(self, small: Collection[_Condition]) -> dict[str, _Condition]:
        """The same but for some conditions, whatever they are worth."""
        needed: dict[str, _Condition | None] = {}

        def note(name: str, condition: _Condition | None) -> None:
            if condition in small or (condition and condition[0] == name):
                condition = None
            if name in self.lines:
                needed[name] = condition if needed.get(name, condition) == condition else None

        for text in self.writes:
            for name in self._numbers_of(text):
                note(name, None)
        for name in reversed(self.lines):
            own, choice = needed.get(name), self.choices.get(name)
            for other in [choice.mask] if choice else self.read[name]:
                note(other, own)
            for condition, arm, _ in choice.arms if choice else ():
                note(arm, condition)
        return {name: condition for name, condition in needed.items() if condition is not None}


def _work(line: str) -> int:
    """About how many operations."""
    return 1 + sum(_SLOW.get(word, 20) for word in re.findall(r"\w+_(?=\()", line)) + 5 * line.count(" / ")


def _of_torch(name: str) -> str:
    """Torch's function of this name, of vectors of the compiler."""
    names = "xy" if name in _OF_TWO else "x"
    own, its = (", ".join(f"{kind} {c}" for c in names) for kind in ("V", "auto"))
    call = f"x.{name}({', '.join(names[1:])})"
    head = f"template <class V> static inline V {name}_({own})"
    return f"{head} {{ return each<V>([]({its}) {{ return {call}; }}, {', '.join(names)}); }}"
