"""Groups whose operations on large batches are compiled by `torch.compile`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, final

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from trivgeo._compile import Compilation, compile_and_compare, environment
from trivgeo._numerics import broadcast_shapes, graph_form, is_traced, is_transformed
from trivgeo.checks import check_count, check_type, checked
from trivgeo.groups.group import EAGER, Evaluator, LieGroup

__all__ = [
    "Compilation",
    "Compiler",
    "compiled",
]


GroupT = TypeVar("GroupT", bound=LieGroup)
Key = tuple[Any, ...]
Operation = Callable[..., Tensor]

_MIN_BATCH = 1000  # number of elements below which a call of compiled code, 0.1 ms, costs about what it saves
_MAX_OPERATORS = 2500  # number of torch operators of an operation above which compiling takes minutes
_COMPILED_DTYPES = (torch.float64, torch.float32)
_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)


@checked
def compiled(group: GroupT, threshold: int | None = None) -> GroupT:
    """Return the same group with operations that `torch.compile` fuses, for large batches.

    The result is a group with the same elements, scale and fingerprint, and works with samplers, scores and inverters.
    An operation is compiled at its first call on a batch of at least ``threshold`` elements, once for each dtype and
    device, and once more for its derivatives; ``group.compiler`` prints what was compiled. Code is kept in the cache of
    `torch.compile` (``TORCHINDUCTOR_CACHE_DIR``) for the next process.

    Evaluated eagerly are batches below the threshold, calls inside the transforms of ``torch.func``, in forward mode,
    or inside another `torch.compile`, half precision, second derivatives, and operations for
    which ``group.compiler`` gives a reason: those that compute nothing, and those too long to compile (logarithms by
    iteration, of general matrices of four or more rows). The first compiled result is compared with the eager one; a
    warning says where compilation fails or the results differ, and the operation stays eager. In a process that was
    forked code of the parent is used and nothing is compiled, since torch's compiler may hang there. Where a file of
    the cache is broken, code is compiled anew in a folder below it, and a warning names both.

    Compiled code looks at no values: exponentials of matrices of four to six rows are NaN beyond a norm of two thousand
    (except SO(4)), and logarithms of 3 x 3 matrices are as exact as their closed form (NaN if it is off by 1e-6),
    where eager code takes more steps. A result never shares memory with an argument.

    Args:
        group: any group.
        threshold: the smallest batch that is compiled; by default 1000.

    Raises:
        ConfigurationError: ``group`` is no group, or the threshold is below two.

    Example:
        ```python
        group = compiled(SE(3))
        g = group.exp(torch.zeros(100_000, 6))  # compiled now
        print(group.compiler)
        ```
    """
    check_type("group", group, LieGroup)  # type: ignore[type-abstract]
    other = copy.copy(group)
    other._evaluator = Compiler(threshold)
    return other


@checked(but=("__call__",))
@final
class Compiler(Evaluator):
    """Compiles and evaluates the operations of one group.

    Args:
        threshold: smallest batch that is compiled, see `compiled`.
    """

    def __init__(self, threshold: int | None = None) -> None:
        self.threshold = None if threshold is None else check_count("threshold", threshold, 2)
        self._functions: dict[Key, Operation | None] = {}
        self._report: list[Compilation] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without code, which the process that loads this compiles again, or finds in torch's cache."""
        return Compiler, (self.threshold,)

    def __copy__(self) -> Compiler:
        """Copy the settings alone, since code belongs to one group."""
        return Compiler(self.threshold)

    @property
    def report(self) -> tuple[Compilation, ...]:
        """Operations called so far, with the outcome of their compilation."""
        return tuple(self._report)

    def __repr__(self) -> str:
        return "\n".join([f"Compiler(threshold={self.threshold})", *(f"  {line}" for line in self._report)])

    def __call__(self, f: Operation, ranks: Sequence[int], arguments: Sequence[Tensor]) -> Tensor:
        """Evaluate ``f`` by compiled code where there is some; see `Evaluator`."""
        # hot path: for a small batch the time of each check matters
        if is_traced() or not _is_plain(*arguments):
            return EAGER(f, ranks, arguments)
        batch = arguments[0].shape[: arguments[0].ndim - ranks[0]]
        if len(arguments) > 1:
            batch = broadcast_shapes(batch, arguments[1].shape[: arguments[1].ndim - ranks[1]])
        if math.prod(batch) < (self.threshold or _MIN_BATCH):
            return EAGER(f, ranks, arguments)
        columns = tuple([_columns(x, rank, batch) for x, rank in zip(arguments, ranks, strict=True)])
        function = self._function(f, columns)
        if function is None:
            return EAGER(f, ranks, arguments)
        if torch.is_grad_enabled() and any(x.requires_grad for x in columns):
            value: Tensor = _Differentiable.apply(self, f, function, *columns)
        else:
            value = _constant_call(function, columns)
        value = value.movedim(-1, 0)
        return value if len(batch) == 1 else value.unflatten(0, batch)

    def _function(self, f: Operation, columns: tuple[Tensor, ...]) -> Operation | None:
        """The compiled ``f``, of arguments with the batch as their last dimension; ``None`` if it stays eager."""
        key = (f.__name__, False, *_setting(columns))
        if key not in self._functions:
            with torch.no_grad():
                eager = f(*(x.movedim(-1, 0) for x in columns))
            reason = ""
            if any(eager.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for x in columns):
                reason = "since it computes nothing"
            elif _is_long(f, columns):
                reason = f"since it is too long to compile, more than {_MAX_OPERATORS} operators"
            if reason:
                self._report.append(Compilation(_name(f), eager.dtype, False, reason=reason))
                self._functions[key] = None
            else:
                self._functions[key] = self._compile(f, _forward(f), columns, eager.movedim(0, -1), False)
        return self._functions[key]

    def _pull_back(
        self, f: Operation, columns: Sequence[Tensor], cotangent: Tensor, needed: Sequence[bool]
    ) -> tuple[Tensor, ...]:
        """Pull a cotangent of ``f`` back to the arguments that need it, by compiled code where there is some.

        The batch is the last dimension of the columns, the arguments of ``f``, and of the cotangent.
        """
        function = _gradient(f, needed)
        key = (f.__name__, tuple(needed), *_setting(columns))
        if key not in self._functions:
            eager = function(cotangent, *columns)
            compiled = self._compile(f, function, (cotangent, *columns), eager, True)
            self._functions[key] = compiled
        return (self._functions[key] or function)(cotangent, *columns)  # type: ignore[return-value]

    def _compile(
        self, f: Operation, function: Callable[..., Any], columns: tuple[Tensor, ...], eager: Any, derivatives: bool
    ) -> Callable[..., Any] | None:
        """Compile a function of columns, see `compile_and_compare`."""
        # results for elements with an argument that is not finite are NaN or infinite in any way
        is_finite = torch.stack([torch.isfinite(x).reshape(-1, x.shape[-1]).all(0) for x in columns]).all(0)
        fast, outcome = compile_and_compare(
            _name(f),
            function,
            columns,
            lambda result: _agree(result, eager, is_finite),
            derivatives=derivatives,
            varying_batch=True,
        )
        self._report.append(outcome)
        return fast


class _Differentiable(torch.autograd.Function):
    """A compiled operation; the backward evaluates the forward again, which costs less than keeping its values."""

    @staticmethod
    def forward(ctx: Any, compiler: Compiler, f: Operation, function: Operation, *columns: Tensor) -> Tensor:
        """Evaluate the compiled operation."""
        ctx.compiler, ctx.f = compiler, f
        ctx.save_for_backward(*columns)
        return _constant_call(function, columns)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        """Evaluate compiled derivatives, or eager ones where they are differentiated in turn."""
        columns, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            gradients = _gradient(ctx.f, needed)(cotangent, *columns)
        else:
            free = [x.detach() for x in columns]
            gradients = ctx.compiler._pull_back(ctx.f, free, cotangent.resolve_neg().contiguous(), needed)
        remaining = iter(gradients)
        return None, None, None, *(next(remaining) if need else None for need in needed)


def _constant_call(function: Operation, columns: Sequence[Tensor]) -> Tensor:
    """Evaluate compiled code without derivatives, always in one state of autograd: another would compile it again."""
    with torch.no_grad():
        return function(*(x.detach() for x in columns))


def _forward(f: Operation) -> Operation:
    """``f`` as a function of arguments, and with a result, whose last dimension is the batch."""

    def forward(*columns: Tensor) -> Tensor:
        return _on_columns(f, *map(_component_first, columns))

    return forward


def _on_columns(f: Operation, *columns: Tensor) -> Tensor:
    return f(*(x.movedim(-1, 0) for x in columns)).movedim(0, -1).contiguous()


def _component_first(column: Tensor) -> Tensor:
    """A column in component-first memory on the CPU, which computes strided numbers one by one, not in vectors.

    A GPU reads neighbouring strided numbers at no cost.
    """
    if column.is_contiguous() or column.device.type != "cpu":
        return column
    return torch.stack(column.unbind(0))


def _gradient(f: Operation, needed: Sequence[bool]) -> Callable[..., tuple[Tensor, ...]]:
    """The vector-Jacobian product of `_forward` by the arguments that need one."""
    places = [i for i, need in enumerate(needed) if need]

    def gradient(cotangent: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
        points = [_component_first(x) for x in columns]

        def part(*wanted: Tensor) -> Tensor:
            arguments = list(points)
            for place, x in zip(places, wanted, strict=True):
                arguments[place] = x
            return _on_columns(f, *arguments)

        pull_back: Callable[[Tensor], tuple[Tensor, ...]] = torch.func.vjp(part, *(points[i] for i in places))[1]
        return tuple([x.contiguous() for x in pull_back(cotangent)])

    return gradient


def _columns(x: Tensor, rank: int, batch: Sequence[int]) -> Tensor:
    """An argument as one batch, ``[*element_shape, n]``: a matrix in component-first memory, a vector as it comes."""
    if x.ndim - rank != 1 or x.shape[0] != batch[-1] or len(batch) != 1:
        x = x.expand(*batch, *x.shape[x.ndim - rank :]).reshape(-1, *x.shape[x.ndim - rank :])
    x = x.resolve_neg().movedim(0, -1)
    if x.is_contiguous() or (rank == 1 and x.movedim(0, -1).is_contiguous()):
        return x
    if rank == 0 or x.shape[:-1].numel() == 0 or x.device.type != "cpu":
        return x.contiguous()
    flat = x.flatten(0, -2) if rank > 1 else x
    return torch.stack(flat.unbind(0)).unflatten(0, x.shape[:-1])  # on the CPU faster than a transposed copy


def _setting(columns: Sequence[Tensor]) -> Key:
    """Everything but the operation and the size of the batch on which compiled code depends."""
    return *environment(columns[0]), *(x.is_contiguous() for x in columns)


class _OperatorLimitError(Exception):
    """An operation has more operators than `_MAX_OPERATORS`."""


class _OperatorCount(TorchFunctionMode):
    """Counts the tensors that torch computes, and raises `_OperatorLimitError` for too many."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count += sum(isinstance(x, Tensor) for x in (result if isinstance(result, (tuple, list)) else (result,)))
        if self.count > _MAX_OPERATORS:
            raise _OperatorLimitError
        return result


def _is_long(f: Operation, columns: Sequence[Tensor]) -> bool:
    """Whether the graph of an operation has too many operators, found by evaluating it once."""
    try:
        with torch.no_grad(), graph_form(), _OperatorCount():
            f(*(x[..., :2].movedim(-1, 0) for x in columns))
    except _OperatorLimitError:
        return True
    return False


def _name(f: Operation) -> str:
    return f.__name__.strip("_").removeprefix("scaled_")


def _is_plain(*arguments: Tensor) -> bool:
    """Whether the arguments are ordinary tensors of one dtype and device, outside all transforms and autocast."""
    first = arguments[0]
    for x in arguments:
        if x.dtype is not first.dtype or x.device != first.device or type(x) not in _PLAIN_TENSORS:
            return False
        if is_transformed(x) or forward_ad.unpack_dual(x).tangent is not None:
            return False
    return first.dtype in _COMPILED_DTYPES and not torch.is_autocast_enabled(first.device.type)


def _agree(result: Any, eager: Any, known: Tensor) -> bool:
    """Whether results are equal up to rounding, relative to the size of each element, and NaN at the same places.

    Elements are compared where ``known`` is true.
    """
    if isinstance(eager, tuple):
        return all(_agree(a, b, known) for a, b in zip(result, eager, strict=True))
    result, eager = result[..., known], eager[..., known]
    size = torch.where(torch.isfinite(eager), eager, 0.0).abs().reshape(-1, eager.shape[-1]).amax(0).clamp(min=1.0)
    near = (result - eager).abs() <= torch.finfo(eager.dtype).eps ** 0.5 * size
    return bool((near | (result == eager) | (result.isnan() & eager.isnan())).all())
