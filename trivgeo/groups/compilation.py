"""Groups whose operations on large batches are compiled, each to one loop over the batch."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import Tensor
from torch._functorch import config as derivation
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from trivgeo._numerics import broadcast_shapes, is_traced, tracing
from trivgeo._torch import pytree
from trivgeo.checks import check_count, check_type
from trivgeo.groups.base import LieGroup

__all__ = ["Compilation", "Compiler", "compiled"]

GroupT = TypeVar("GroupT", bound=LieGroup)
Key = tuple[Any, ...]

_SMALLEST = 64  # measured: where a compiled call costs less than one product of matrices
_MOST_NUMBERS = 2000  # computed for one element entry by entry; of more, as in iterations, a first call takes minutes
_MOST_OF_32_BITS = 2**24  # elements on an accelerator, whose code may count their entries in 32 bits
_END_OF_32_BITS = 2**31
_PRECISIONS = (torch.float64, torch.float32)
_ORDINARY = (Tensor, torch.nn.Parameter)
_ONE_AT_A_TIME = threading.RLock()  # what is changed in torch while code is compiled is changed for the whole process
_MANNER: dict[str, Any] = {
    "fullgraph": True,
    # numbers of a group are constants, also after other groups, with other numbers, were compiled by the same method
    "dynamic": False,
    "isolate_recompiles": True,
}
_OPTIONS = {
    # on accelerators, where inductor makes the loops, all nodes of an operation in one, also those that read nothing in
    # common (constants, entries copied)
    "max_fusion_size": 4096,
    "aggressive_fusion": True,
    "score_fusion_memory_threshold": 0,
    "max_fusion_buffer_group_pairwise_attempts": 1,  # neighbours; all pairs would be tried
    "loop_ordering_after_fusion": False,  # loops over one dimension have one order
    "loop_index_inversion_in_fusion": False,
    "pattern_matcher": False,  # of what `WriteOut` leaves nothing
    "trace.provenance_tracking_level": 0,
    "graph_partition": False,
    "realize_opcount_threshold": 4,  # values used twice have a name, which the loop keeps in registers
    # shapes of blocks are tried; no graphs of CUDA, whose results are overwritten by the next call
    "max_autotune_pointwise": True,
}


def compiled(group: GroupT, threshold: int | None = None) -> GroupT:
    """The same group, the operations of which are one loop over the batch each, in machine code.

    A group like any other, with the same elements, scale and fingerprint: samplers, scores and inverters take it. An
    operation is compiled at its first call on a batch that is not small, once for each dtype, with and without
    derivatives; code is kept in the folder of torch's own (``TORCHINDUCTOR_CACHE_DIR``), so that the next process need
    not compile it again. Eager remain: batches below the threshold; calls inside the transforms of ``torch.func``, in
    forward mode, inside another `torch.compile`, and under ``torch.autocast``; half precision; derivatives that are
    differentiated again; operations that compute nothing, depend on the size of the batch, raise errors that depend on
    values (``torch.linalg.inv``), or are too long to compile (the logarithm of general matrices of four or more rows,
    which is an iteration). The first compiled result is compared with the eager one. Compiled code looks at no values:
    exponentials of matrices of four to six rows are NaN beyond a norm of two thousand (but for SO(4)), and logarithms
    of 3 x 3 matrices are as exact as their closed form (NaN if it is off by 1e-6), where eager code takes more steps; a
    NaN of an argument goes to the entries that depend on it alone. Where there is no compiler, or its result differs,
    one warning says so, and the operation stays eager. On accelerators `torch.compile` makes the code, which tries
    blocks of several shapes, and derivatives of derivatives raise an error; this was tested on a processor, and not
    measured on a GPU yet.

    What computes nothing returns a view of its argument, at every batch size, where other groups copy: clone the result
    before changing it in place. In the natural basis (no scale) these are `exp` and `log` of `Translation`,
    `Heisenberg` and `Nilpotent`, `exp` of `Torus`, and `hat` and `vee` of `GLPlus`; in any basis `inverse` of `SO`
    (and, in the natural one, `Ad` of SO(3)), and `project` where subclasses of `LieGroup` do not write one: of
    `Translation`, `Heisenberg`, `Nilpotent`, groups made by `from_generators`, and a `MatrixGroup` of one's own.

    Args:
        group: any group.
        threshold: the smallest batch that is compiled; by default 64.

    Raises:
        ConfigurationError: no group, or a threshold below two.

    Example:
        >>> group = compiled(SE(3))
        >>> g = group.exp(torch.zeros(100_000, 6))  # compiled now
        >>> print(group.compiler)
    """
    check_type("group", group, LieGroup)  # type: ignore[type-abstract]
    other = copy.copy(group)
    other._compiler = Compiler(threshold)
    return other


@dataclass(frozen=True)
class Compilation:
    """What became of one operation.

    Attributes:
        operation: its name.
        dtype: of the elements.
        derivatives: whether they are recorded.
        seconds: what compilation took, zero if there was none.
        reason: why the operation stays eager, empty if it is compiled.
    """

    operation: str
    dtype: torch.dtype
    derivatives: bool
    seconds: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        """One line."""
        kind = f"{self.operation} in {self.dtype}{' with derivatives' if self.derivatives else ''}"
        return f"{kind}: eager, {self.reason}" if self.reason else f"{kind}: compiled in {self.seconds:.1f} s"


@final
class Compiler:
    """The compiled operations of one group.

    Args:
        threshold: see `compiled`.
    """

    def __init__(self, threshold: int | None = None) -> None:
        self.threshold = None if threshold is None else check_count("threshold", threshold, 2)
        self._views: set[str] = set()  # operations that compute nothing
        self._entries: dict[Key, int] = {}  # of the largest argument or result of an element
        self._functions: dict[Key, Callable[..., Tensor] | None] = {}
        self._report: list[Compilation] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Code is compiled again, or found on disk, by the process that loads this."""
        return Compiler, (self.threshold,)

    @property
    def report(self) -> tuple[Compilation, ...]:
        """What was compiled so far, and what was not."""
        return tuple(self._report)

    def __repr__(self) -> str:
        """The report."""
        return "\n".join([f"Compiler(threshold={self.threshold})", *(f"  {line}" for line in self._report)])

    def __call__(self, f: Callable[..., Tensor], ranks: Sequence[int], arguments: Sequence[Tensor]) -> Tensor | None:
        """``f`` of one or two arguments with trailing dimensions of these ranks, or none: to be computed eagerly."""
        # every check is a part of the time of a small batch that is seen
        first, last, name = arguments[0], arguments[-1], f.__name__
        if name in self._views or is_traced():  # where sizes may not be compared: that would fix them
            return None
        alike = first.ndim == ranks[0] + 1 and (
            last is first or (last.ndim == ranks[-1] + 1 and last.shape[0] == first.shape[0])
        )
        if alike:
            size = first.shape[0]
        else:
            batch = broadcast_shapes(*(x.shape[: x.ndim - rank] for x, rank in zip(arguments, ranks, strict=True)))
            size = math.prod(batch)
        if size < (self.threshold or _SMALLEST) or not _is_plain(first, last):
            return None
        counted = _is_counted(first)
        if counted and size > _MOST_OF_32_BITS:
            return None
        if not alike:
            shapes = [x.shape[x.ndim - rank :] for x, rank in zip(arguments, ranks, strict=True)]
            arguments = [x.expand(*batch, *s).reshape(-1, *s) for x, s in zip(arguments, shapes, strict=True)]
        flat = [x if x.is_contiguous() and not x.is_neg() else x.resolve_neg().contiguous() for x in arguments]
        derivatives: tuple[bool, ...] | None = None
        if (first.requires_grad or last.requires_grad) and torch.is_grad_enabled():
            derivatives = tuple([x.requires_grad for x in arguments])
        # all that the code depends on, with the index of 32 bits, as the guards of torch.compile are left out
        inference = torch.is_inference_mode_enabled()
        device = counted and first.device  # there is one processor
        key = (name, first.dtype, device, derivatives, inference, torch.get_num_threads())
        try:
            function = self._functions[key]
        except KeyError:
            function = self._functions[key] = self._compile(key, f, flat, derivatives)
        if function is None or (counted and size * self._entries[key] >= _END_OF_32_BITS):
            return None
        value = function(*flat)
        return value if alike else value.unflatten(0, batch)

    def _compile(
        self, key: Key, f: Callable[..., Tensor], flat: list[Tensor], derivatives: Sequence[bool] | None
    ) -> Callable[..., Tensor] | None:
        what = _operation(f), flat[0].dtype, derivatives is not None
        with torch.no_grad():
            eager = f(*flat)
        if any(torch._C._is_alias_of(eager, x) for x in flat):  # type: ignore[attr-defined]
            self._views.add(f.__name__)
            self._report.append(Compilation(*what, reason="a view of its argument"))
            return None
        self._entries[key] = max(x[0].numel() for x in (*flat, eager))
        start = time.perf_counter()
        try:
            with _ONE_AT_A_TIME, warnings.catch_warnings(), _no_collection():
                # torch 2.13 looks at the gradients of all arguments while it traces, and imports what it deprecates
                warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
                warnings.filterwarnings("ignore", category=DeprecationWarning)
                function = _machine_code(f, flat, _recorded(f, flat, derivatives or ()))
                result = function(*flat).detach()
        except _TooLongError as error:
            self._report.append(Compilation(*what, reason=str(error)))
            return None
        except Exception as error:  # whatever the compiler or its absence raises: f itself has just been evaluated
            first_line, *_ = str(error).strip().splitlines() or [""]
            reason = f"since compilation failed: {type(error).__name__}: {first_line}"
        else:
            seconds = time.perf_counter() - start
            if _agree(result, eager):
                self._report.append(Compilation(*what, seconds=seconds))
                return function
            reason = "since its compiled result differed"
        self._report.append(Compilation(*what, reason=reason))
        warnings.warn(f"{self._report[-1]}", RuntimeWarning, stacklevel=5)
        return None


def _is_counted(x: Tensor) -> bool:
    """Whether code for this device may count entries in 32 bits."""
    return not x.is_cpu


@functools.cache
def _look_at_processor() -> None:
    """Let torch find out now, while it traces, which vectors processor and compiler know: seconds, once a machine."""
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    def look() -> None:
        with contextlib.suppress(Exception):  # the compilation that needs it will say what is wrong
            valid_vec_isa_list()

    threading.Thread(target=look, daemon=True).start()


def _machine_code(f: Callable[..., Tensor], flat: Sequence[Tensor], record: _Record) -> Callable[..., Tensor]:
    """``f``, compiled: on a processor to loops of our own, elsewhere by inductor."""
    if not flat[0].is_cpu:
        return _torch_compile(f, flat)
    _look_at_processor()
    from trivgeo.groups._programs import program  # brings inductor, which takes seconds

    return program(f, flat, record.derivatives, record.text)


def _torch_compile(f: Callable[..., Tensor], flat: Sequence[Tensor]) -> Callable[..., Tensor]:
    from trivgeo.groups._entries import WriteOut

    # one entry of `Compiler` for all that a guard could tell apart
    unguarded = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    options = {**_OPTIONS, **unguarded, "post_grad_custom_post_pass": WriteOut()}
    compiler: Any = torch.compile  # torch's own annotation lacks the last argument

    @functools.wraps(f)
    def contiguous(*arguments: Tensor) -> Tensor:
        return f(*arguments).contiguous()  # a result in another order is copied after the loop that writes it

    result: Callable[..., Tensor] = compiler(contiguous, options=options, **_MANNER)
    # derivatives from the arguments again: cheaper than writing and reading what they need on the way
    with derivation.patch(activation_memory_budget=0.0), tracing():
        result(*_marked(flat))
    return result


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Compilation keeps most of its millions of objects to its end: looking for garbage among them takes a second."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _marked(flat: Sequence[Tensor]) -> Sequence[Tensor]:
    """Only the batch may vary from call to call."""
    views = [x.view(x.shape) for x in flat]  # the mark stays on a tensor
    for x in views:
        torch._dynamo.mark_dynamic(x, 0)
    return views


def _is_plain(x: Tensor, y: Tensor) -> bool:
    """Whether these are ordinary numbers outside all transforms, and to be computed in their own precision."""
    if x.dtype not in _PRECISIONS or type(x) not in _ORDINARY:
        return False
    if y is not x and (type(y) not in _ORDINARY or y.dtype is not x.dtype or y.device != x.device):
        return False
    return (
        not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
        and not torch._C._is_any_autocast_enabled()
    )


def _agree(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding in units of each element's size; NaN at the same places."""
    size = torch.where(torch.isfinite(b), b, 0.0).abs().reshape(len(b), -1).amax(1).clamp(min=1.0)
    near = (a - b).abs() <= torch.finfo(b.dtype).eps ** 0.5 * size.view(-1, *[1] * (b.ndim - 1))
    return bool((near | (a == b) | (a.isnan() & b.isnan())).all())


class _Record(NamedTuple):
    """What an operation computes.

    Attributes:
        text: all of it, operator by operator.
        derivatives: by which arguments; none for none, as of a constant.
    """

    text: str
    derivatives: Sequence[bool]


class _TooLongError(Exception):
    """An operation computes more than is compiled."""


class _Recorder(TorchDispatchMode):
    """Says what is computed of two elements: other tensors than arguments and results with their numbers."""

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        super().__init__()
        self.most: float = 2 * _MOST_NUMBERS
        self.numbers = 0  # entry by entry
        self.lines: list[str] = []
        self._names: dict[int, tuple[str, Tensor]] = {}  # with the tensor, so that its id is not another's
        for x in arguments:
            self._name(x)

    def _name(self, x: Tensor) -> str:
        self._names[id(x)] = f"%{len(self._names)}", x
        return f"{self._names[id(x)][0]} {x.dtype} {[*x.shape]}"

    def _known(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return self._names[id(x)][0] if id(x) in self._names else f"{x.dtype} {x.tolist()}"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        said = pytree.tree_map(self._known, (args, kwargs))
        result = func(*args, **(kwargs or {}))
        made = [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor)]
        if torch.Tag.pointwise in func.tags:
            self.numbers += sum(x.numel() for x in made)
        if self.numbers > self.most:
            raise _TooLongError(f"too long: more than {_MOST_NUMBERS} numbers an element")
        self.lines.append(f"{func} {said} {[self._name(x) for x in made]}")
        return result


def _operation(f: Callable[..., Tensor]) -> str:
    return f.__name__.strip("_").removeprefix("scaled_")


def _recorded(f: Callable[..., Tensor], flat: Sequence[Tensor], derivatives: Sequence[bool] = ()) -> _Record:
    """What ``f`` computes of two elements, and its derivatives by some of the arguments.

    Where values cannot be looked at, as in compiled code.

    Raises:
        _TooLongError: it is not to be compiled.
    """
    two = [x.detach()[:2].clone() for x in flat]
    with torch.inference_mode(False), torch.set_grad_enabled(any(derivatives)), tracing(), _Recorder(two) as recorder:
        for x, needed in zip(two, derivatives, strict=False):
            x.requires_grad_(needed)
        value = f(*two)
        recorder.most = math.inf  # whatever its derivatives take
        if value.requires_grad:
            wanted = [x for x in two if x.requires_grad]
            torch.autograd.grad(value, wanted, torch.ones_like(value), allow_unused=True)
    return _Record("\n".join(recorder.lines), derivatives if value.requires_grad else ())
