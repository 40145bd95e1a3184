"""Writes the small dimensions of a compiled graph out, entry by entry, so that a whole operation becomes one loop.

Inductor fuses elementwise functions, but neither products of small matrices nor what is read from and written to the
entries of an element: each of these passes over the batch. Here a tensor ``[b, k, k]`` of a graph becomes an array of
k k nodes of shape ``[b]``. Views, slices and concatenations are then bookkeeping at compile time, matrix products and
sums over the small dimensions are written out, and what remains are elementwise functions on ``[b]``, which fuse.
Operators that are none of these (a decomposition of larger matrices) get whole tensors and stay as they are.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx import Graph

from trivgeo._numerics import LARGEST_LITERAL
from trivgeo.groups._loops import NUMBER, entry_of, into_loops, together
from trivgeo.groups._source import TYPES

__all__ = ["WriteOut", "write_out"]

_LARGEST = LARGEST_LITERAL  # entries of a tensor that is written out
_LARGEST_PRODUCT = 2048  # multiplications of a product of matrices that is written out

aten: Any = torch.ops.aten
_map: Any = torch.fx.node.map_arg
Node: TypeAlias = Any  # of torch.fx, whose arguments have no type of their own
Entries: TypeAlias = "np.ndarray[Any, np.dtype[np.object_]]"


def write_out(graph: Graph, loops: bool) -> None:
    """Change a graph with one dynamic dimension, the batch, in place.

    Args:
        graph: after tracing, without mutation.
        loops: whether functions of entries become loops of our own, for a processor.
    """
    _Writer(graph, loops).run()


class WriteOut(CustomGraphPass):
    """The same as an option of `torch.compile`, ``post_grad_custom_post_pass``, for inductor to make the loops."""

    def __call__(self, graph: Graph) -> None:
        """Change the graph in place."""
        write_out(graph, loops=False)

    def uuid(self) -> Any:
        """The text of this file: compiled graphs that are kept on disk count only while it stays the same."""
        return get_hash_for_files((__file__,))


class _Described:
    """A tensor of one dimension or none, as a part of a key."""

    def __init__(self, value: Any) -> None:
        self.text = f"{value.ndim} {value.dtype}" if isinstance(value, torch.Tensor) else "number"

    def __repr__(self) -> str:
        return self.text


class _Writer:
    """One graph. An array of entries has the shape of its tensor, see `_shape`; its nodes are ``[b]`` or ``[]``."""

    def __init__(self, graph: Graph, loops: bool) -> None:
        self.graph = graph
        self.entries: dict[Node, Entries] = {}
        self.lists: dict[Node, list[Entries]] = {}  # of operators with several results
        self.wholes: dict[Node, Node] = {}
        self.values: dict[tuple[Any, str], torch.Tensor] = {}
        self.constants: dict[Node, torch.Tensor] = {}  # what is known, whatever the batch
        self.known: dict[Node, np.ndarray[Any, Any]] = {}  # its numbers
        self.numbers: dict[Node, float] = {}  # entries that are known
        tensors = [n for n in graph.find_nodes(op="placeholder") if _is_tensor(n)]
        self.mode: Any = tensors[0].meta["val"].fake_mode if tensors else None
        sized = [(_shape(n)[d], n, d) for n in tensors if (d := _batch_dim(n)) is not None and _shape(n) is not None]
        self.sized = min(sized, key=lambda entry: entry[0], default=None)  # of which the batch is known
        self.loops = loops

    def run(self) -> None:
        """Write out what can be, node by node."""
        if self.sized is None:
            return  # no batch: nothing to gain
        for node in list(self.graph.nodes):
            with self.graph.inserting_before(node):
                if node.op == "call_function":
                    self.call(node)
                elif node.op == "get_attr":
                    self.keep(node, getattr(self.graph.owning_module, str(node.target), None))
                elif node.op == "output":
                    self.take_whole(node)
        self.graph.eliminate_dead_code()
        if self.loops:
            into_loops(self.graph, self.batch_size)
        self.graph.lint()

    def call(self, node: Node) -> None:
        """One node, written out or handed whole tensors."""
        if node.target is operator.getitem and node.args[0] in self.lists:
            self.entries[node] = self.lists[node.args[0]][node.args[1]]
            return
        if self.note_constant(node):
            return
        rule = _RULES.get(node.target)
        if rule is None and torch.Tag.pointwise in getattr(node.target, "tags", ()):
            rule = _pointwise
        known = all(_shape(x) is not None for x in node.all_input_nodes if _is_tensor(x))
        written = None
        if rule is not None and known and (isinstance(node.meta["val"], list | tuple) or _shape(node) is not None):
            written = rule(self, node)
        if written is None:
            self.take_whole(node)
        elif isinstance(written, list):
            self.lists[node] = written
        else:
            self.entries[node] = np.asarray(written, dtype=object).reshape(_shape(node))  # not a bare node for []

    def note_constant(self, node: Node) -> bool:
        """Whether a node is computed of numbers alone, as indices, masks and unit matrices are; its value is kept."""
        value, inputs = node.meta["val"], node.all_input_nodes
        if not isinstance(value, torch.Tensor) or not all(_is_known(s) for s in value.shape):
            return False
        known = bool(inputs) and all(x in self.constants for x in inputs)
        if value.numel() > _LARGEST or not (known or node.target in _TABLES):
            return False
        args, kwargs = _map((node.args, dict(node.kwargs)), self.constants.__getitem__)
        with unset_fake_temporarily():
            self.keep(node, node.target(*args, **kwargs))
        return True

    def keep(self, node: Node, value: Any) -> None:
        """Keep what a node is, if that is a small tensor and no fake one."""
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and value.numel() <= _LARGEST:
            with unset_fake_temporarily():
                self.constants[node], self.known[node] = value, value.cpu().numpy()

    def number(self, value: float, dtype: torch.dtype, device: torch.device) -> Node:
        """A number as an entry."""
        node = self.new(aten.full.default, [], value, dtype=dtype, device=device)
        self.numbers[node] = value
        return node

    def number_of(self, target: Any, args: tuple[Any, ...]) -> Node:
        """A function of numbers."""
        with unset_fake_temporarily():
            values = _map(args, lambda x: torch.tensor(self.numbers[x], dtype=x.meta["val"].dtype))
            result = target(*values)
            value, dtype = result.item(), result.dtype
        _, device = next(_kind(x) for x in args if isinstance(x, torch.fx.Node))
        return self.number(value, dtype, device)

    def take_whole(self, node: Node) -> None:
        """Let a node read whole tensors."""
        node.args = _map(node.args, self.whole)
        node.kwargs = _map(node.kwargs, self.whole)

    def new(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A node, with what it is."""
        node = self.graph.call_function(target, args, kwargs)
        args, kwargs = _map((args, kwargs), lambda x: x.meta["val"])
        with self.mode:
            node.meta["val"] = target(*args, **kwargs)
        return node

    def described(self, target: Any, args: tuple[Any, ...], value: torch.Tensor) -> Node:
        """A node of which it is known what it is."""
        node = self.graph.call_function(target, args)
        node.meta["val"] = value
        return node

    def entry(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """An elementwise function of entries: what it is depends on its arguments' dimensions and dtypes alone."""
        if all(x in self.numbers for x in args if isinstance(x, torch.fx.Node)) and not kwargs:
            return self.number_of(target, args)
        node = self.graph.call_function(target, args, kwargs)
        described = _map((args, kwargs), lambda x: _Described(x.meta["val"]))
        key = (target, repr(described))
        if key not in self.values:
            self.graph.erase_node(node)
            node = self.new(target, *args, **kwargs)
            self.values[key] = node.meta["val"]
        node.meta |= {"val": self.values[key], NUMBER: True}
        return node

    def get(self, node: Node) -> Entries:
        """The entries of a tensor, selected where it was not written out."""
        if node not in self.entries:
            shape, batch = _shape(node), _batch_dim(node)
            assert shape is not None
            self.wholes[node] = node
            if node in self.known:
                result = np.empty(shape, dtype=object)
                numbers: dict[Any, Node] = {}
                for index in np.ndindex(*shape):
                    value = self.known[node][index].item()
                    if value not in numbers:
                        numbers[value] = self.number(value, *_kind(node))
                    result[index] = numbers[value]
                self.entries[node] = result
                return result
            if self.loops and batch in (None, 0) and node.meta["val"].dtype in TYPES:
                self.entries[node] = self.apart(node, shape, batch)
                return self.entries[node]
            split = _split(shape, batch)
            rows = node if split == shape else self.new(aten.reshape.default, node, self.sizes(split, batch))
            result = np.empty(split, dtype=object)
            for index in np.ndindex(*split):
                entry = rows
                for dim in reversed(range(len(split))):
                    if dim != batch:
                        entry = self.new(aten.select.int, entry, dim, index[dim])
                result[index] = entry
            self.entries[node] = result.reshape(shape)
        return self.entries[node]

    def apart(self, node: Node, shape: tuple[int, ...], batch: int | None) -> Entries:
        """The entries of a tensor, which a loop reads."""
        value, number = node.meta["val"], int(np.prod(shape))
        with self.mode:
            like = value.new_empty([] if batch is None else [value.shape[0] // shape[0]])
        result = np.empty(number, dtype=object)
        for i in range(number):
            result[i] = self.described(entry_of, (node, i, 0 if batch is None else number), like)
        return result.reshape(shape)

    def whole(self, node: Node) -> Node:
        """A tensor, put together again where it was written out."""
        if node not in self.entries:
            return node
        if node not in self.wholes:
            value, batch = node.meta["val"], _batch_dim(node)
            entries: list[Node] = list(self.entries[node].flat)
            split = _split(_shape(node), batch)
            others = [s for dim, s in enumerate(split) if dim != batch]
            size = [] if batch is None else [self.batch_size()]
            # a constant alone would be one number in memory for the whole batch
            constant = len(entries) == 1 and entries[0].meta["val"].ndim < len(size)
            inside = self.loops and size and entries and value.dtype in TYPES
            if inside and not batch and len(split) == value.ndim:
                self.wholes[node] = self.together(entries, value, others)
                return self.wholes[node]
            flat = self.together(entries, value, [len(entries)]) if inside else self.cat(entries, size, value)
            # its own size: that of another batch is equal, but may have another name
            size = [self.new(aten.sym_size.int, flat, 0) for _ in size]
            result = self.new(aten.view.default, flat, [*size, *others])
            if batch:
                order = [*range(1, batch + 1), 0, *range(batch + 1, len(split))]
                result = self.new(aten.permute.default, result, order)
            if batch or (not inside and (constant or not value.is_contiguous())):
                result = self.new(aten.clone.default, result, memory_format=torch.contiguous_format)
            if batch is not None and len(split) > value.ndim:
                sizes = [*split[:batch], self.new(operator.mul, *size, split[batch + 1]), *split[batch + 2 :]]
                result = self.new(aten.view.default, result, sizes)
            self.wholes[node] = result
        return self.wholes[node]

    def together(self, entries: list[Node], like: torch.Tensor, shape: Sequence[int]) -> Node:
        """Entries as ``[b, *shape]``, by a loop."""
        value = next((e.meta["val"] for e in entries if e.meta["val"].ndim), None)
        size = self.batch_size().meta["val"] if value is None else value.shape[0]
        with self.mode:
            return self.described(together, (*entries,), torch.empty([size, *shape], dtype=like.dtype))

    def cat(self, entries: list[Node], size: list[Node], like: torch.Tensor) -> Node:
        """Entries as ``[b, k]`` or, where there is no batch, ``[k]``."""
        if not entries:
            return self.new(aten.full.default, [*size, 0], 0, dtype=like.dtype, device=like.device)
        entries = [e if e.meta["val"].ndim == len(size) else self.new(aten.expand.default, e, size) for e in entries]
        entries = [self.new(aten.unsqueeze.default, e, -1) for e in entries]
        return self.new(aten.cat.default, entries, -1) if len(entries) > 1 else entries[0]

    def batch_size(self) -> Node:
        """The number of elements."""
        assert self.sized is not None
        multiple, node, dim = self.sized
        size = self.new(aten.sym_size.int, node, dim)
        return size if multiple == 1 else self.new(operator.floordiv, size, multiple)

    def sizes(self, split: Sequence[int], batch: int | None) -> list[Node]:
        """A shape with the batch in its place."""
        return [self.batch_size() if dim == batch else size for dim, size in enumerate(split)]


def _kind(node: Node) -> tuple[torch.dtype, torch.device]:
    return node.meta["val"].dtype, node.meta["val"].device


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _batch_dim(node: Node) -> int | None:
    """The dimension that is the batch; none for constants."""
    return next((d for d, s in enumerate(node.meta["val"].shape) if not _is_known(s)), None)


def _is_known(size: Any) -> bool:
    return not isinstance(size, torch.SymInt) or bool(size.node.expr.is_number)


def _entries_of(size: Any) -> int | None:
    """How many entries of an element a dimension holds: all of it, one for the batch, k for k times the batch."""
    if _is_known(size):
        return int(size)
    multiple, symbol = size.node.expr.as_coeff_Mul()
    return int(multiple) if symbol.is_Symbol and multiple.is_Integer else None


def _split(shape: tuple[int, ...], batch: int | None) -> tuple[int, ...]:
    """The shape with a dimension of its own for the batch where that has several entries of each element."""
    if batch is None or shape[batch] == 1:
        return shape
    return (*shape[:batch], 1, *shape[batch:])


def _shape(node: Node) -> Any:
    """The shape, a tuple, of the entries (see `_entries_of`); none where the tensor is no batch of few real ones."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.is_complex():
        return None
    shape = tuple(s for s in map(_entries_of, value.shape) if s is not None)
    if len(shape) < value.ndim or sum(not _is_known(s) for s in value.shape) > 1:
        return None
    return shape if int(np.prod(shape)) <= _LARGEST else None


# Rules: what becomes of the entries. None: not written out ------------------------------------------------------

Rule = Callable[[_Writer, Node], "Entries | list[Entries] | None"]


def _pick(arrays: dict[Node, Entries], index: tuple[int, ...], node: Node) -> Node:
    return arrays[node][index] if node in arrays else node


def _pointwise(w: _Writer, node: Node) -> Entries | None:
    shape, dtype = _shape(node), node.meta["val"].dtype
    arrays = {x: np.broadcast_to(w.get(x), shape) for x in node.all_input_nodes if _is_tensor(x)}
    result = np.empty(shape, dtype=object)
    for index in np.ndindex(*shape):
        args, kwargs = _map((node.args, dict(node.kwargs)), functools.partial(_pick, arrays, index))
        result[index] = w.entry(node.target, args, kwargs)
    # constants of no dimension promote dtypes less than others do
    return result if all(entry.meta["val"].dtype == dtype for entry in result.flat[:1]) else None


def _where(w: _Writer, node: Node) -> Entries | None:
    """By a known mask bookkeeping, too."""
    first, second = node.args[1:]
    if node.args[0] not in w.known or first.meta["val"].dtype != second.meta["val"].dtype:
        return _pointwise(w, node)
    return np.where(w.known[node.args[0]], w.get(first), w.get(second))


def _unless(neutral: float) -> Rule:
    """A function of two, the result of which is the first where the second is known to be this, and if they commute."""

    def rule(w: _Writer, node: Node) -> Entries | None:
        result = _pointwise(w, node)
        if result is None or node.kwargs or not all(_is_tensor(x) for x in node.all_input_nodes):
            return result
        if len(node.all_input_nodes) != 2 or any(
            x.meta["val"].dtype != node.meta["val"].dtype for x in node.all_input_nodes
        ):
            return result
        left, right = (np.broadcast_to(w.get(x), result.shape) for x in node.args)
        for index in np.ndindex(*result.shape):
            if w.numbers.get(right[index]) == neutral:
                result[index] = left[index]
            elif w.numbers.get(left[index]) == neutral and node.target is not aten.sub.Tensor:
                result[index] = right[index]
        return result

    return rule


def _same(w: _Writer, node: Node) -> Entries:
    return w.get(node.args[0])


def _reshape(w: _Writer, node: Node) -> Entries | None:
    before, after = w.get(node.args[0]), _shape(node)
    old, new = _batch_dim(node.args[0]), _batch_dim(node)
    if old is not None and np.prod(before.shape[:old]) != np.prod(after[:new]):
        return None  # other rows of the batch
    return before.reshape(after)


def _copy(w: _Writer, node: Node) -> Entries | None:
    """Of the second in the shape of the first."""
    x, source = node.args[:2]
    if source.meta["val"].dtype != x.meta["val"].dtype:
        return None
    return np.broadcast_to(w.get(source), _shape(node))


def _permute(w: _Writer, node: Node) -> Entries:
    return w.get(node.args[0]).transpose([int(d) for d in node.args[1]])


def _transpose(w: _Writer, node: Node) -> Entries:
    return w.get(node.args[0]).swapaxes(node.args[1], node.args[2])


def _expand(w: _Writer, node: Node) -> Entries:
    return np.broadcast_to(w.get(node.args[0]), _shape(node))


def _arguments(node: Node, *defaults: Any) -> list[Any]:
    """The arguments by position, those that were left out as they are by default."""
    return [*node.args, *defaults[len(node.args) :]]


def _dim(node: Node, dim: int) -> int:
    return dim % node.meta["val"].ndim


def _select(w: _Writer, node: Node) -> Entries | None:
    x, dim, index = node.args
    dim = _dim(x, dim)
    return None if dim == _batch_dim(x) else w.get(x).take(index, axis=dim)


def _slice(w: _Writer, node: Node) -> Entries | None:
    x, dim, start, end, step = _arguments(node, None, 0, None, None, 1)
    dim = _dim(x, dim)
    if dim == _batch_dim(x):
        return w.get(x) if _is_whole(start, end, step) else None
    return w.get(x)[(slice(None),) * dim + (slice(start, end, step),)]


def _is_whole(start: Any, end: Any, step: Any) -> bool:
    """Whether a slice is everything."""
    return start in (None, 0) and end in (None, 2**63 - 1) and step == 1


def _cat(w: _Writer, node: Node) -> Entries | None:
    dim = _dim(node, node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0))
    if dim == _batch_dim(node) or len({x.meta["val"].dtype for x in node.args[0]}) > 1:
        return None
    return np.concatenate([w.get(x) for x in node.args[0]], dim)


def _parts(w: _Writer, node: Node) -> list[Entries] | None:
    """``split``, ``split_with_sizes``, ``unbind``."""
    x, dim = node.args[0], node.args[-1] if len(node.args) > (1 if node.target is aten.unbind.int else 2) else 0
    dim = _dim(x, node.kwargs.get("dim", dim))
    if dim == _batch_dim(x):
        return None
    entries: Any = w.get(x)
    if node.target is aten.unbind.int:
        return [entries.take(i, axis=dim) for i in range(entries.shape[dim])]
    ends = np.cumsum([int(v.shape[dim]) for v in node.meta["val"]])[:-1]
    return np.split(entries, ends, axis=dim)


def _diagonal(w: _Writer, node: Node) -> Entries | None:
    x, offset, first, second = _arguments(node, None, 0, 0, 1)
    if _batch_dim(x) in (_dim(x, first), _dim(x, second)):
        return None
    return w.get(x).diagonal(offset, first, second)


def _scatter(w: _Writer, node: Node) -> Entries | None:
    """``select_scatter``, ``slice_scatter``."""
    x, source, dim, *where = _arguments(node, None, None, 0, None, None, 1)
    dim, is_slice = _dim(x, dim), node.target is aten.slice_scatter.default
    if source.meta["val"].dtype != x.meta["val"].dtype:
        return None
    if dim == _batch_dim(x):
        return w.get(source) if is_slice and _is_whole(*where) else None
    at = slice(*where) if is_slice else where[0]
    result = np.broadcast_to(w.get(x), _shape(node)).copy()
    result[(slice(None),) * dim + (at,)] = w.get(source)
    return result


def _diagonal_scatter(w: _Writer, node: Node) -> Entries | None:
    x, source, offset, first, second = _arguments(node, None, None, 0, 0, 1)
    if _batch_dim(x) in (_dim(x, first), _dim(x, second)):
        return None
    result = np.broadcast_to(w.get(x), _shape(node)).copy()
    diagonal = result.diagonal(offset, first, second)
    diagonal.setflags(write=True)  # it is a view
    diagonal[...] = w.get(source)
    return result


def _pad(w: _Writer, node: Node) -> Entries | None:
    """A negative width crops."""
    x, widths, value = _arguments(node, None, None, 0.0)
    sides = [(int(widths[i]), int(widths[i + 1])) for i in reversed(range(0, len(widths), 2))]
    sides = [(0, 0)] * (x.meta["val"].ndim - len(sides)) + sides
    batch = _batch_dim(x)
    if batch is not None and sides[batch] != (0, 0):
        return None
    entries = w.get(x)
    kept = entries[tuple(slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(sides, entries.shape, strict=True))]
    result = np.full(_shape(node), w.number(float(value), *_kind(x)), dtype=object)
    places = zip(sides, kept.shape, strict=True)
    result[tuple(slice(max(0, a), max(0, a) + n) for (a, _), n in places)] = kept
    return result


def _index(w: _Writer, node: Node) -> Entries | None:
    """Entries by tables of indices."""
    where = _places(w, *node.args[:2])
    return None if where is None else w.get(node.args[0])[where]


def _places(w: _Writer, x: Node, tables: Sequence[Node | None]) -> tuple[Any, ...] | None:
    """Known indices, as those of an array of entries."""
    batch = _batch_dim(x)
    if any(t is not None and (t not in w.known or dim == batch) for dim, t in enumerate(tables)):
        return None
    return tuple(slice(None) if t is None else w.known[t] for t in tables)


def _full(w: _Writer, node: Node) -> Entries:
    return np.full(_shape(node), w.number(node.args[1], *_kind(node)), dtype=object)


def _fold(target: Any) -> Callable[[_Writer, Node], Entries | None]:
    """A reduction over small dimensions, by a function of two."""

    def rule(w: _Writer, node: Node) -> Entries | None:
        x, *rest = node.args
        value = x.meta["val"]
        if node.kwargs or value.dtype != node.meta["val"].dtype:
            return None
        dims = rest[0] if rest and rest[0] not in ([], None) else list(range(value.ndim))
        dims = sorted(_dim(x, d) for d in ([dims] if isinstance(dims, int) else dims))
        if _batch_dim(x) in dims:
            return None
        entries = np.moveaxis(w.get(x), dims, range(len(dims)))
        entries = entries.reshape(int(np.prod(entries.shape[: len(dims)])), *entries.shape[len(dims) :])
        if len(entries) == 0:
            return None if target is not aten.add.Tensor else _nothing(w, node)
        result = functools.reduce(lambda a, b: _each(w, target, a, b), entries)
        return np.asarray(result, dtype=object).reshape(_shape(node))

    return rule


def _each(w: _Writer, target: Any, *arrays: Entries) -> Entries:
    """An operator on entries."""
    return _entrywise(lambda *entries: w.entry(target, entries, {}), *arrays)


def _entrywise(f: Callable[..., Node], *arrays: Entries) -> Entries:
    """A function of entries; arrays broadcast."""
    arrays = tuple(np.broadcast_arrays(*arrays))
    result = np.empty(arrays[0].shape, dtype=object)
    for index in np.ndindex(*result.shape):
        result[index] = f(*(a[index] for a in arrays))
    return result


def _mean(w: _Writer, node: Node) -> Entries | None:
    total = _fold(aten.add.Tensor)(w, node)
    if total is None:
        return None
    count = w.get(node.args[0]).size // total.size
    return _each(w, aten.div.Tensor, total, np.asarray(float(count), dtype=object))


def _nothing(w: _Writer, node: Node) -> Entries:
    """Sums of no terms."""
    return np.full(_shape(node), w.number(0.0, *_kind(node)), dtype=object)


def _product(w: _Writer, a: Entries, b: Entries, like: torch.Tensor) -> Entries | None:
    """``a @ b`` of arrays of at least two dimensions, without terms that a known zero makes zero."""
    used = [np.vectorize(lambda e: w.numbers.get(e) != 0.0, otypes=[bool])(x) if x.size else x != x for x in (a, b)]
    left, use_left = (x[..., :, None, :] for x in (a, used[0]))
    right, use_right = (x.swapaxes(-1, -2)[..., None, :, :] for x in (b, used[1]))
    left, right, use = np.broadcast_arrays(left, right, use_left & use_right)
    if np.count_nonzero(use) > _LARGEST_PRODUCT:
        return None
    result = np.full(left.shape[:-1], None, dtype=object)
    for *index, k in np.argwhere(use):
        at = tuple(index)
        term = _times(w, left[*at, k], right[*at, k])
        result[at] = term if result[at] is None else w.entry(aten.add.Tensor, (result[at], term), {})
    if not use.any(-1).all():
        result[~use.any(-1)] = w.number(0.0, like.dtype, like.device)
    return result


def _times(w: _Writer, a: Node, b: Node) -> Node:
    if w.numbers.get(a) == 1.0:
        return b
    return a if w.numbers.get(b) == 1.0 else w.entry(aten.mul.Tensor, (a, b), {})


def _matmul(w: _Writer, node: Node) -> Entries | None:
    """``mm``, ``bmm``, ``addmm``, ``baddbmm``."""
    *rest, a, b = node.args
    if node.kwargs or _batch_dim(a) == a.meta["val"].ndim - 1:
        return None
    product = _product(w, w.get(a), w.get(b), node.meta["val"])
    if product is None or not rest:
        return product
    return _each(w, aten.add.Tensor, np.broadcast_to(w.get(rest[0]), product.shape), product)


def _cross(w: _Writer, node: Node) -> Entries | None:
    a, b = node.args
    dim = _dim(a, node.kwargs.get("dim", -1))
    if dim in (_batch_dim(a), _batch_dim(b)):
        return None
    x, y = (np.moveaxis(np.broadcast_to(w.get(v), _shape(node)), dim, 0) for v in (a, b))
    return np.moveaxis(np.stack([_minor(w, x[i], y[j], x[j], y[i]) for i, j in ((1, 2), (2, 0), (0, 1))]), 0, dim)


def _minor(w: _Writer, a: Entries, b: Entries, c: Entries, d: Entries) -> Entries:
    """a b - c d."""
    return _each(w, aten.sub.Tensor, _each(w, aten.mul.Tensor, a, b), _each(w, aten.mul.Tensor, c, d))


_TABLES = (torch.ops.prims.iota.default, aten.full.default, aten.scalar_tensor.default)  # what makes numbers of nothing
_RULES: dict[Any, Rule] = {
    **dict.fromkeys((aten.clone.default, aten.alias.default, aten.lift_fresh_copy.default), _same),
    **dict.fromkeys(
        (
            aten.view.default,
            aten.reshape.default,
            aten._unsafe_view.default,
            aten.unsqueeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
            aten.squeeze.default,
        ),
        _reshape,
    ),
    aten.copy.default: _copy,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: lambda w, node: w.get(node.args[0]).T,
    aten.expand.default: _expand,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.cat.default: _cat,
    **dict.fromkeys((aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default), _parts),
    aten.diagonal.default: _diagonal,
    **dict.fromkeys((aten.select_scatter.default, aten.slice_scatter.default), _scatter),
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.constant_pad_nd.default: _pad,
    **dict.fromkeys((aten.index.Tensor, aten._unsafe_index.Tensor), _index),
    aten.full.default: _full,
    aten.where.self: _where,
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor), _unless(0.0)),
    aten.mul.Tensor: _unless(1.0),
    aten.sum.dim_IntList: _fold(aten.add.Tensor),
    aten.mean.dim: _mean,
    aten.amax.default: _fold(aten.maximum.default),
    aten.amin.default: _fold(aten.minimum.default),
    **dict.fromkeys((aten.all.dim, aten.all.dims), _fold(aten.logical_and.default)),
    **dict.fromkeys((aten.any.dim, aten.any.dims), _fold(aten.logical_or.default)),
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default), _matmul),
    aten.linalg_cross.default: _cross,
}
