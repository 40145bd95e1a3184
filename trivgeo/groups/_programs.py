"""Functions of batches as machine code: traced and differentiated by torch once, kept on disk, called without it."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._C._dynamo import guards
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import write_atomic
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import trivgeo
from trivgeo._numerics import tracing
from trivgeo.groups._entries import write_out
from trivgeo.groups._loops import loop_over

__all__ = ["program"]

aten: Any = torch.ops.aten
_empty: Any = guards._empty_strided_cpu  # type: ignore[attr-defined]  # at half the time of `torch.empty`
Node: TypeAlias = Any  # of torch.fx
Values: TypeAlias = list[Any]
Step: TypeAlias = Callable[[Values], None]


@dataclass(frozen=True)
class Loop:
    """A loop over the batch; inputs and the number of elements are places of values.

    Attributes:
        inputs: what it reads, contiguous.
        size: the number of elements.
        source: C++.
        types: of the arguments of its function.
        results: dtype and shape of an element of each result.
    """

    inputs: Sequence[int]
    size: int
    source: str
    types: Sequence[str]
    results: Sequence[tuple[str, Sequence[int]]]

    def load(self) -> Callable[[], Step]:
        """Begin to compile, or find it on disk; the step itself, when that is done."""
        begun: Any = AsyncCompile().cpp_pybinding([*self.types], self.source)

        def loaded() -> Step:
            kernel = begun.result() if hasattr(begun, "result") else begun
            inputs, place = self.inputs, self.size
            made = []
            for dtype, shape in self.results:
                strides = [math.prod(shape[i:]) for i in range(len(shape) + 1)]
                made.append((tuple(shape), tuple(strides), getattr(torch, dtype)))

            def step(values: Values) -> None:
                size = values[place]
                results = [_empty((size, *shape), strides, dtype) for shape, strides, dtype in made]
                kernel(*[values[i] for i in inputs], *results, size)
                values += results

            return step

        return loaded


@dataclass(frozen=True)
class Operator:
    """An operator of torch between loops: a library routine, or what reads other elements.

    Attributes:
        name: of the operator, as ``"aten.sum.dim_IntList"``.
        args: as `_encoded` returns them.
        kwargs: as well.
    """

    name: str
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def load(self) -> Callable[[], Step]:
        """The step."""
        space, *names = self.name.split(".")
        target: Any = operator if space == "operator" else getattr(torch.ops, space)
        for name in names:
            target = getattr(target, name)
        args, kwargs = _decoded(self.args), {name: _decoded(x) for name, x in self.kwargs.items()}

        def step(values: Values) -> None:
            values.append(target(*_filled(args, values), **{name: _filled(x, values) for name, x in kwargs.items()}))

        return lambda: step


@dataclass(frozen=True)
class _Place:
    """Of a value, among the arguments of an operator."""

    index: int


def _name(x: torch.dtype | torch.layout | torch.memory_format) -> str:
    """In torch."""
    return str(x).removeprefix("torch.")


def _encoded(x: Any, places: dict[Node, int]) -> Any:
    """An argument as what a file can hold."""
    if isinstance(x, torch.fx.Node):
        return {"place": places[x]}
    if isinstance(x, list | tuple):
        return [_encoded(y, places) for y in x]
    if isinstance(x, torch.dtype | torch.layout | torch.memory_format):
        return {"name": _name(x)}
    if isinstance(x, torch.device):
        return {"device": str(x)}
    if isinstance(x, Tensor):
        numbers = (torch.view_as_real(x) if x.is_complex() else x).flatten().tolist()
        return {"numbers": numbers, "shape": [*x.shape], "dtype": _name(x.dtype)}
    if isinstance(x, complex):
        return {"complex": [x.real, x.imag]}
    if x is None or isinstance(x, bool | int | float | str):
        return x
    raise TypeError(f"an operator of compiled code takes {x!r}, which cannot be kept")


def _decoded(x: Any) -> Any:
    if isinstance(x, list):
        return [_decoded(y) for y in x]
    if not isinstance(x, dict):
        return x
    if "place" in x:
        return _Place(x["place"])
    if "name" in x:
        return getattr(torch, x["name"])
    if "device" in x:
        return torch.device(x["device"])
    if "complex" in x:
        return complex(*x["complex"])
    dtype = getattr(torch, x["dtype"])
    numbers = torch.tensor(x["numbers"], dtype=dtype.to_real() if dtype.is_complex else dtype)
    return (numbers.view(dtype) if dtype.is_complex else numbers).reshape(x["shape"])


def _filled(x: Any, values: Values) -> Any:
    if isinstance(x, list):
        return [_filled(y, values) for y in x]
    return values[x.index] if isinstance(x, _Place) else x


@dataclass(frozen=True)
class Program:
    """Steps, each of which adds its results to the values: the number of elements, the arguments, and so on.

    Attributes:
        steps: in their order.
        results: places of values; none for a derivative that is zero.
    """

    steps: Sequence[Loop | Operator]
    results: Sequence[int | None]

    def load(self) -> Callable[[], Callable[..., list[Any]]]:
        """Begin to compile."""
        begun = [step.load() for step in self.steps]

        def loaded() -> Callable[..., list[Any]]:
            steps = [finish() for finish in begun]

            def run(*arguments: Tensor) -> list[Any]:
                values: Values = [arguments[0].shape[0], *arguments]
                for step in steps:
                    step(values)
                return [None if i is None else values[i] for i in self.results]

            return run

        return loaded


class _Code:
    """A function that has been compiled, and its derivatives by some of the arguments."""

    def __init__(
        self, f: Callable[..., Tensor], derivatives: Sequence[bool], forward: Program, backward: Program | None
    ) -> None:
        self.f, self.derivatives = f, derivatives
        begun = [part.load() for part in (forward, backward) if part is not None]
        self.forward, *rest = (finish() for finish in begun)
        self.backward = rest[0] if rest else None

    def __call__(self, *arguments: Tensor) -> Any:
        if self.backward is None:
            return self.forward(*arguments)[0]
        return _apply(self, *arguments)


class _Differentiable(torch.autograd.Function):
    """How autograd calls it."""

    @staticmethod
    def forward(ctx: Any, code: _Code, *arguments: Tensor) -> Tensor:
        ctx.code = code
        ctx.save_for_backward(*arguments)
        return code.forward(*arguments)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        code, arguments = ctx.code, ctx.saved_tensors
        if not torch.is_grad_enabled():
            return None, *code.backward(*arguments, gradient.resolve_neg().contiguous())
        # to be differentiated again, which is eager
        wanted = [x for x, needed in zip(arguments, code.derivatives, strict=True) if needed]
        slopes = iter(torch.autograd.grad(code.f(*arguments), wanted, gradient, create_graph=True, allow_unused=True))
        return None, *(next(slopes) if needed else None for needed in code.derivatives)


# of `Function.apply` what is left outside of transforms, where compiled code is not called
_apply: Any = super(torch.autograd.Function, _Differentiable).apply


def program(
    f: Callable[..., Tensor], arguments: Sequence[Tensor], derivatives: Sequence[bool], record: str
) -> Callable[..., Tensor]:
    """``f`` of contiguous tensors on a processor, the batch first, as loops over it and operators between them.

    Args:
        f: the function, which looks at no values while it is traced.
        arguments: examples.
        derivatives: for which of them derivatives are recorded; none for none.
        record: what ``f`` does of a batch, as text: code is kept on disk by it.

    Raises:
        RuntimeError: there is no compiler, or torch cannot trace ``f``.
    """
    shapes = [(str(x.dtype), [*x.shape[1:]]) for x in arguments]
    key = json.dumps([_version(), shapes, [*derivatives], torch.get_num_threads(), record])
    path = Path(cache_dir(), "trivgeo", hashlib.sha256(key.encode()).hexdigest() + ".json")
    found = _read(path)
    if found is None:
        found = _traced(f, arguments, derivatives)
        write_atomic(str(path), json.dumps([p and asdict(p) for p in found]), make_dirs=True)
    return _Code(f, derivatives, *found)


@functools.cache
def _version() -> list[str]:
    """Of all that makes code of a record."""
    here = Path(__file__).parent
    texts = b"".join((here / f"_{name}.py").read_bytes() for name in ("entries", "loops", "programs", "source"))
    return [trivgeo.__version__, torch.__version__, hashlib.sha256(texts).hexdigest()]


def _read(path: Path) -> tuple[Program, Program | None] | None:
    try:
        forward, backward = json.loads(path.read_text())
    except (OSError, ValueError):  # none, or no whole one
        return None
    return _from_file(forward), backward and _from_file(backward)


def _from_file(kept: dict[str, Any]) -> Program:
    steps = [Loop(**step) if "source" in step else Operator(**step) for step in kept["steps"]]
    return Program(steps, kept["results"])


def _traced(
    f: Callable[..., Tensor], arguments: Sequence[Tensor], derivatives: Sequence[bool]
) -> tuple[Program, Program | None]:
    """Forward and, if there are derivatives, backward: from the arguments again, and the gradient of the result."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def fake(x: Tensor, name: str) -> Tensor:
        # one size for all batches; only that may vary from call to call
        sizes: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DUCK, *[DimDynamic.STATIC] * (x.ndim - 1)])
        like = torch.empty((len(arguments[0]), *x.shape[1:]), dtype=x.dtype)
        return mode.from_tensor(like, symbolic_context=sizes, source=ConstantSource(name))

    def joint(*fakes: Tensor) -> list[Tensor | None]:
        inputs, gradients = fakes[: len(arguments)], fakes[len(arguments) :]
        result = f(*inputs).clone(memory_format=torch.contiguous_format)  # no view of an argument
        if not gradients:
            return [result]
        wanted = [x for x in inputs if x.requires_grad]
        slopes = iter(torch.autograd.grad(result, wanted, gradients, allow_unused=True))
        return [result, *(next(slopes) if needed else None for needed in derivatives)]

    with tracing(), enable_python_dispatcher(), torch.inference_mode(False), torch.set_grad_enabled(any(derivatives)):
        fakes = [fake(x, f"argument_{i}") for i, x in enumerate(arguments)]
        for x, needed in zip(fakes, derivatives, strict=False):
            x.requires_grad_(needed)
        if any(derivatives):
            fakes.append(fake(f(*(x.detach()[:2] for x in arguments)), "gradient"))
        size: Any = fakes[0].shape[0]
        with mode:
            module: Any = make_fx(joint, select_decomp_table())(*fakes)
            if any(_changes(node) for node in module.graph.nodes):
                module = make_fx(torch.func.functionalize(module))(*(x.detach() for x in fakes))
        for node in module.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default):
            module.graph.erase_node(node)  # it computes nothing
        if not isinstance(size, torch.SymInt) or size.node.expr.is_number:
            raise RuntimeError(f"the code is for batches of {len(arguments[0])} alone")
        results = module.graph.output_node().args[0]
        forward = _part(module, results[:1], len(arguments))
        if not any(derivatives):
            return forward, None
        return forward, _part(module, results[1:], len(arguments) + 1)


def _changes(node: Node) -> bool:
    """Whether an operator writes to what it is given."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _part(module: torch.fx.GraphModule, results: Sequence[Node | None], arguments: int) -> Program:
    """What some of the results need, of the first arguments."""
    graph = Graph(owning_module=module)
    copies: dict[Node, Node] = {}
    graph.graph_copy(module.graph, copies)
    graph.output([x and copies[x] for x in results])
    graph.eliminate_dead_code()
    for unused in graph.find_nodes(op="placeholder")[arguments:]:
        graph.erase_node(unused)
    write_out(graph, loops=True)
    return _program_of(graph, module)


def _program_of(graph: Graph, module: torch.fx.GraphModule) -> Program:
    places: dict[Node, int] = {}
    steps: list[Loop | Operator] = []
    number = 1 + len(graph.find_nodes(op="placeholder"))

    def is_computed(x: Node) -> bool:
        """Whether it is an operator's: in any order."""
        return x.op != "placeholder" and not (x.target is operator.getitem and x.args[0].target is loop_over)

    for node in graph.nodes:
        if node.op == "placeholder":
            places[node] = 1 + len(places)
        elif node.op == "get_attr":
            constant = getattr(module, str(node.target)).detach()
            steps.append(Operator("aten.alias.default", [_encoded(constant, places)], {}))
            places[node], number = number, number + 1
        elif node.target is aten.sym_size.int and node.args[0].op == "placeholder" and node.args[1] == 0:
            places[node] = 0
        elif node.target is loop_over:
            inputs, size, source, types, results = node.args
            shapes = [(_name(dtype), [*shape]) for dtype, shape in results]
            read = []
            for x in inputs:
                if is_computed(x):
                    steps.append(Operator("aten.resolve_neg.default", [_encoded(x, places)], {}))
                    steps.append(Operator("aten.contiguous.default", [{"place": number}], {}))
                    number += 2
                read.append(number - 1 if is_computed(x) else places[x])
            steps.append(Loop(read, places[size], source, types, shapes))
            places[node], number = number, number + len(shapes)
        elif node.target is operator.getitem and node.args[0].target is loop_over:
            places[node] = places[node.args[0]] + node.args[1]
        elif node.op == "call_function":
            name = node.target.__module__ == "_operator" and f"operator.{node.target.__name__}"
            kwargs = {key: _encoded(x, places) for key, x in node.kwargs.items()}
            steps.append(Operator(name or str(node.target), _encoded(node.args, places), kwargs))
            places[node], number = number, number + 1
    outputs: Any = graph.output_node().args[0]
    return Program(steps, [None if x is None else places[x] for x in outputs])
