"""Loops over the batch in place of a graph's functions of single numbers, on a processor.

Inductor finds that these are one loop, too, but node by node and pair by pair, in most of the time of a compilation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx import Graph

from trivgeo.groups._source import TYPES, Array, Source, expression

__all__ = ["NUMBER", "entry_of", "into_loops", "loop_over", "together"]

aten: Any = torch.ops.aten
Node: TypeAlias = Any  # of torch.fx

NUMBER = "trivgeo_number"


def entry_of(tensor: Any, offset: int, numbers: int) -> Any:
    """One of the numbers of each element of a contiguous tensor, the batch first (or none, where numbers are zero)."""
    return tensor.reshape(-1, numbers)[:, offset] if numbers else tensor.reshape(-1)[offset]


def together(*entries: Any) -> Any:
    """Numbers ``[b]`` as a contiguous tensor ``[b, k]``."""
    return torch.stack(torch.broadcast_tensors(*entries), -1)


def loop_over(
    inputs: Sequence[Node],
    size: Node,
    source: str,
    types: Sequence[str],
    results: Sequence[tuple[torch.dtype, tuple[int, ...]]],
) -> None:
    """The mark of a loop in a graph; a program calls it."""


def into_loops(graph: Graph, batch: Callable[[], Node]) -> None:
    """Replace functions of numbers, `entry_of` and `together` by loops.

    Args:
        graph: its functions of numbers of elements, ``[b]`` or ``[]``, are those with `NUMBER` in ``meta``.
        batch: makes a node, the number of elements.
    """
    _Loops(graph).run(batch)


class _Loops:
    """Which node is computed where.

    The level of a node that is computed inside a loop is the number of loops before that one; of another, the number
    of loops before it.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.level: dict[Node, int] = {}
        self.inside: dict[Node, None] = {}  # a set in the graph's order
        self.results: dict[Node, Node] = {}  # in memory, of nodes inside

    def run(self, batch: Callable[[], Node]) -> None:
        """Find the loops, make them, and sort the graph by them."""
        for node in self.graph.nodes:
            self.place(node)
        if not self.inside:
            return
        last = [n for n in self.graph.nodes if n.op == "placeholder"][-1]
        with self.graph.inserting_after(last):
            size = batch()
        outside = [n for n in self.graph.nodes if n not in self.inside and n.op not in ("placeholder", "output")]
        for level in range(1 + max(self.level.values())):
            for node in (n for n in outside if self.level.get(n, 0) == level):
                last.append(node)
                last = node
            with self.graph.inserting_after(last):
                last = self.make(level, size) or last
        for node in reversed(self.inside):
            self.graph.erase_node(node)
        self.graph.eliminate_dead_code()

    def place(self, node: Node) -> None:
        """Find the level of a node, and whether it is inside."""
        inputs = node.all_input_nodes
        inside = node.target in (entry_of, together) or (
            NUMBER in node.meta
            and all(_is_number(x) for x in (node, *inputs))
            and node.meta["val"].ndim == 1
            and expression(node, lambda x, dtype: "") is not None
        )
        if inside:
            self.inside[node] = None
        in_memory = node.target is entry_of or not inside
        self.level[node] = max((self.level[x] + (in_memory and x in self.inside) for x in inputs), default=0)

    def make(self, level: int, size: Node) -> Node | None:
        """A loop of this level, and its results; the last of its nodes."""
        members = [n for n in self.inside if self.level[n] == level]
        results = [n for n in members if any(self.is_result_for(n, user) for user in n.users)]
        if not results:
            return None
        source, names = Source(), dict[Node, str]()
        arguments: dict[Node, int] = {}

        def read(tensor: Node, offset: int, numbers: int) -> str:
            tensor = self.results.get(tensor, tensor)
            if tensor not in arguments:
                arguments[tensor] = source.input(Array(tensor.meta["val"].dtype, numbers))
            return source.read(arguments[tensor], offset)

        def operand(x: Node, dtype: torch.dtype) -> str:
            if isinstance(x, bool | int | float):
                return source.constant(x, dtype)
            if x.target is aten.full.default:
                return source.constant(x.args[1], dtype)
            if x.target is entry_of:
                name = read(*x.args)
            elif x in names:
                name = names[x]
            else:
                name = read(x, 0, x.meta["val"].ndim)
            return source.converted(name, x.meta["val"].dtype, dtype)

        needed = set(results)
        for node in reversed(members):
            if node in needed:
                needed.update(x for x in node.all_input_nodes if node.target is not entry_of)
        for node in members:
            dtype = node.meta["val"].dtype
            if node in needed and node.target is not together:
                text = operand(node, dtype) if node.target is entry_of else expression(node, operand)
                names[node] = source.value(str(text), dtype)
        for node in results:
            entries = node.args if node.target is together else (node,)
            dtype = node.meta["val"].dtype
            source.write([operand(x, dtype) for x in entries], dtype)
        shapes = [(n.meta["val"].dtype, tuple(map(int, n.meta["val"].shape[1:]))) for n in results]
        what = (list(arguments), size, source.text(torch.get_num_threads()), source.types, shapes)
        last = loop = self.graph.call_function(loop_over, what)
        loop.meta["val"] = [n.meta["val"] for n in results]
        for i, node in enumerate(results):
            with self.graph.inserting_after(last):
                last = self.graph.call_function(operator.getitem, (loop, i))
            last.meta["val"] = node.meta["val"]
            self.results[node] = last
            for user in [*node.users]:
                if user not in self.inside:
                    user.replace_input_with(node, last)
        return last

    def is_result_for(self, node: Node, user: Node) -> bool:
        """Whether a node reads another, which is inside a loop, from memory."""
        return (
            user not in self.inside
            or user.target is entry_of
            or (self.level[user] > self.level[node] and node.target is not entry_of)
        )


def _is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.ndim < 2 and value.dtype in TYPES
