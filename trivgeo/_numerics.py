"""Smooth scalar functions and small linear algebra that stay finite, with their derivatives, where textbook forms fail.

Branches are guarded twice: the argument of each branch is replaced where the branch is not taken, so that
neither the value nor any derivative of the branch that is not taken is ever NaN (``torch.where`` alone
multiplies a NaN gradient by zero, which is NaN).
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import full_precision

P = ParamSpec("P")
R = TypeVar("R")

_STUMPFF_SERIES_RADIUS = 1.0  # |q| below which Stumpff functions are evaluated by their series
_NUM_STUMPFF_TERMS = 10  # the first term left out is below 1 / 22! = 1e-21
_STUMPFF_SERIES_C2 = tuple(1.0 / math.factorial(2 * j + 2) for j in range(_NUM_STUMPFF_TERMS))
_STUMPFF_SERIES_C3 = tuple(1.0 / math.factorial(2 * j + 3) for j in range(_NUM_STUMPFF_TERMS))

_LOG_SERIES_RADIUS = 0.02  # |p| below which `log_ratio` is evaluated by its series
# coefficients of asinh(sqrt p) / sqrt p = sum_k (-1)^k (2k)! / (4^k k!^2 (2k+1)) p^k, |p| < 1
_LOG_SERIES = tuple(
    (-1) ** k * math.factorial(2 * k) / (4**k * math.factorial(k) ** 2 * (2 * k + 1)) for k in range(10)
)


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Evaluate ``sum_k coefficients[k] x^k`` by Horner's rule."""
    if is_traced():
        total = torch.full_like(x, coefficients[-1])
        for number in reversed(coefficients[:-1]):
            total = total * x + number
        return total
    last, *others = reversed(_constants(tuple(coefficients)).matching(x).unbind())
    result = torch.addcmul(others[0], x, last) if others else last.expand(x.shape)  # one kernel a term
    for c in others[1:]:
        result = torch.addcmul(c, result, x)
    return result


def stumpff(q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""The entire functions :math:`c_k(q) = \sum_j q^j / (2j + k)!` for k = 0, 1, 2, 3 (Stumpff functions at -q).

    For a matrix with :math:`Y^2 = q I`: :math:`e^Y = c_0 I + c_1 Y`,
    :math:`\varphi_1(Y) = c_1 I + c_2 Y` and :math:`\varphi_2(Y) = c_2 I + c_3 Y`. With :math:`r = \sqrt q`,
    :math:`c_0 = \cosh r` and :math:`c_1 = \sinh(r) / r`; for q < 0 the hyperbolic functions become circular.

    Args:
        q: any shape, any real values.

    Returns:
        ``(c0, c1, c2, c3)``, each of the shape of ``q``, with finite derivatives of every order at q = 0.
    """
    small = q.abs() < _STUMPFF_SERIES_RADIUS
    positive = q > 0
    near = torch.where(small, q, 0.0)
    series2, series3 = polynomial(near, _STUMPFF_SERIES_C2), polynomial(near, _STUMPFF_SERIES_C3)

    r = torch.sqrt(torch.where(small, 1.0, q.abs()))
    half_grow = 0.5 * torch.exp(torch.where(positive, r, 0.0))
    half_decay = 0.25 / half_grow
    c0_far = torch.where(positive, half_grow + half_decay, torch.cos(r))
    c1_far = torch.where(positive, half_grow - half_decay, torch.sin(r)) / r
    q_far = torch.where(small, 1.0, q)
    c2 = torch.where(small, series2, (c0_far - 1.0) / q_far)
    c3 = torch.where(small, series3, (c1_far - 1.0) / q_far)
    c0 = torch.where(small, 1.0 + near * series2, c0_far)
    c1 = torch.where(small, 1.0 + near * series3, c1_far)
    return c0, c1, c2, c3


def grown_stumpff(m: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`e^m c_0(q)` and :math:`e^m c_1(q)` of one shape, see `stumpff`: finite where :math:`e^{m + \sqrt q}` is.

    Exponents are added before the exponential: the two factors alone could overflow.
    """
    small = q.abs() < _STUMPFF_SERIES_RADIUS
    positive = q > 0
    near = torch.where(small, q, 0.0)
    r = torch.sqrt(torch.where(small, 1.0, q.abs()))
    rate = torch.where(positive & ~small, r, 0.0)
    high, low = 0.5 * torch.exp(m + rate), 0.5 * torch.exp(m - rate)
    even, odd = high + low, high - low
    c0 = torch.where(positive, even, even * torch.cos(r))
    c1 = torch.where(positive, odd, even * torch.sin(r)) / r
    return (
        torch.where(small, even * (1.0 + near * polynomial(near, _STUMPFF_SERIES_C2)), c0),
        torch.where(small, even * (1.0 + near * polynomial(near, _STUMPFF_SERIES_C3)), c1),
    )


def log_ratio(half_trace: Tensor, p: Tensor) -> Tensor:
    r"""The factor f with :math:`\log A = f (A - \tau I)` for A in SL(2, R), :math:`\tau = \mathrm{tr} A / 2`.

    :math:`f = \mathrm{arcosh}(\tau) / \sqrt{p}` with :math:`p = \tau^2 - 1`, continued through p = 0 and to
    :math:`\arccos(\tau) / \sqrt{-p}` for p < 0. ``p`` is an argument of its own because it can be computed from the
    entries of A without the cancellation of :math:`\tau^2 - 1`.

    Returns:
        f, NaN where A has no real logarithm (trace at most -2).
    """
    # arcosh by one logarithm: asinh(r) takes two in compiled code, and forty times as long as one in eager code
    small = torch.where(half_trace > 0, p.abs(), 1.0) < _LOG_SERIES_RADIUS
    no_log = torch.where(p >= 0, half_trace, 1.0) < 0
    near = polynomial(torch.where(small, p, 0.0), _LOG_SERIES)
    r = torch.sqrt(torch.where(small, 1.0, p.abs().clamp(min=torch.finfo(p.dtype).tiny)))
    arcosh, arccos = torch.log1p(half_trace.abs() - 1.0 + r), torch.atan2(r, half_trace)
    far = torch.where(p > 0, arcosh, arccos) / r
    return torch.where(no_log, math.nan, torch.where(small, near, far))


def plane_log_ratio(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    r"""The f and p of `log_ratio` for the matrix of rows (a, b) and (c, d), of determinant one.

    Returns:
        f and :math:`p = \tfrac14 (a - d)^2 + b c`; f is NaN also where rounding of :math:`f^2 p`, the square of the
        eigenvalues of the logarithm, leaves less than a third of the digits of the exponential.
    """
    x, y = 0.5 * (a - d), b * c
    p = x * x + y
    f = log_ratio(0.5 * (a + d), p)
    lost = (f * f * (x * x + y.abs())).detach() > torch.finfo(a.dtype).eps ** (-2 / 3)
    return torch.where(lost, math.nan, f), p


def half_power(x: Tensor, n: int) -> Tensor:
    """``x^(n / 2)`` of numbers that are not negative, in a quarter of the time of a power that is no integer."""
    whole = x.pow(n // 2)
    return whole * x.sqrt() if n % 2 else whole


def log_abs_det(matrix: Tensor) -> Tensor:
    """``log |det matrix|`` of ``[*batch, n, n]``, minus infinity where singular.

    ``torch.linalg.det`` and ``slogdet`` are wrong under ``vmap(jacfwd)`` with an outer batch (see `trivgeo._torch`);
    closed forms up to n = 3 and the diagonal of ``lu_factor_ex`` beyond are not.
    """
    if matrix.shape[-1] > 3:
        lu, _, _ = torch.linalg.lu_factor_ex(matrix)
        return lu.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    return abs_det(matrix).log()


def abs_det(matrix: Tensor) -> Tensor:
    """``|det matrix|``, see `log_abs_det`."""
    n = matrix.shape[-1]
    if n > 3:
        return log_abs_det(matrix).exp()
    m = [row.unbind(-1) for row in matrix.unbind(-2)]
    if n == 1:
        det = m[0][0]
    elif n == 2:
        det = m[0][0] * m[1][1] - m[0][1] * m[1][0]
    else:
        det = (
            m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
            - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
            + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
        )
    return det.abs()


_forward_mode = threading.RLock()


def jvp(f: Callable[..., R], points: tuple[Tensor, ...], tangents: tuple[Tensor, ...]) -> tuple[R, R]:
    """``f`` and its derivative along tangents, by ``torch.func.jvp``, one thread at a time.

    Forward mode has one level for the whole process: concurrent calls raise or are wrong (see `trivgeo._torch`). The
    lock covers the calls of the library, not those of a user's threads.
    """
    if torch.compiler.is_compiling():  # locks cannot be traced
        return torch.func.jvp(f, points, tangents)[:2]
    with _forward_mode:
        return torch.func.jvp(f, points, tangents)[:2]


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """``torch.broadcast_shapes``, in a fiftieth of its time for equal shapes, the usual case."""
    first, *others = shapes
    # a comparison of traced sizes would fix them
    agree = not is_traced() and all(shape == first for shape in others)
    return first if agree else torch.broadcast_shapes(*shapes)


@full_precision
def in_single(f: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    """``f`` without autocast, in float32 if the arguments have half precision, which the result has again.

    Torch's linear algebra refuses half precision, or is wrong, as ``matrix_exp`` of bfloat16 (see `trivgeo._torch`).
    """
    dtype = arguments[0].dtype
    if dtype not in (torch.bfloat16, torch.float16):
        return f(*arguments)
    return f(*(x.float() for x in arguments)).to(dtype)


def dense_exp(matrix: Tensor) -> Tensor:
    """``torch.linalg.matrix_exp`` of ``[*batch, k, k]``, right also for a single matrix.

    For one matrix torch takes a polynomial with a wrong coefficient at some norms: the error is 1e-10 in float64 near
    0.04, 1e-5 in float32 near 0.5 (see `trivgeo._torch`). For several it does not.
    """
    # in forward mode value and derivative need the same layout in memory, which a copy gives both
    matrix = matrix.clone(memory_format=torch.contiguous_format)
    if math.prod(matrix.shape[:-2]) == 1:  # numel of a traced shape would be a fixed number
        return torch.linalg.matrix_exp(torch.stack([matrix, matrix]))[0]
    return torch.linalg.matrix_exp(matrix)


def phi1(matrix: Tensor, vector: Tensor) -> Tensor:
    r""":math:`\varphi_1(A) b = \int_0^1 e^{sA} b \, ds` by one exponential of size n + 1 (Van Loan 1978).

    Args:
        matrix: A, ``[*batch, n, n]``.
        vector: b, ``[*batch, n]``.
    """
    n = matrix.shape[-1]
    batch = broadcast_shapes(matrix.shape[:-2], vector.shape[:-1])
    return augmented_exp(matrix.expand(*batch, n, n), vector.expand(*batch, n))[..., n]


def augmented_exp(matrix: Tensor, vector: Tensor) -> Tensor:
    r""":math:`[e^A, \varphi_1(A) b]`, ``[*batch, n, n + 1]``, of A and b of one batch shape, see `phi1`."""
    # scaling and squaring would halve a long b until it is short, and A with it, which loses digits of A; the map is
    # linear in b, so that its length counts as constant
    length = vector.detach().abs().amax(-1, keepdim=True).clamp(min=1.0)
    top = torch.cat([matrix, (vector / length).unsqueeze(-1)], -1)
    e = dense_exp(torch.cat([top, torch.zeros_like(top[..., :1, :])], -2))[..., :-1, :]
    return torch.cat([e[..., :-1], e[..., -1:] * length.unsqueeze(-1)], -1)


def jvp_columns(f: Callable[..., Tensor], x: Tensor, *others: Tensor) -> Tensor:
    """Jacobian of a function that maps each last-axis vector by itself: ``[*batch, n] -> [*batch, m]``.

    One forward-mode product per input coordinate, whatever the batch.

    Args:
        f: a function of ``x`` and the other arguments.
        x: points ``[*batch, n]``.
        *others: arguments that are held fixed. They have tangents of zero and are not closed over: where tensors with
            and without tangents meet, torch leaves its kernels for Python, which is slow for small batches.

    Returns:
        ``[*batch, m, n]``, NaN where the function is NaN and torch has zeros.
    """
    # forward mode refuses a tensor whose entries share memory
    x, others = x.contiguous(), tuple(other.contiguous() for other in others)
    zeros = tuple(torch.zeros_like(other) for other in others)
    columns = []
    for i in range(x.shape[-1]):
        tangent = torch.zeros_like(x)
        tangent[..., i] = 1.0
        value, column = jvp(f, (x, *others), (tangent, *zeros))
        columns.append(column)
    return torch.where(value.isnan().unsqueeze(-1), math.nan, torch.stack(columns, -1))


def on_cpu(f: Callable[P, R]) -> Callable[P, R]:
    """The function, with the CPU as the default device while it runs: constants are made there."""

    @functools.wraps(f)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        # compiled code cannot ask for the default device
        if torch.compiler.is_compiling() or torch.get_default_device().type == "cpu":
            return f(*arguments, **named)
        with torch.device("cpu"):
            return f(*arguments, **named)

    return call


class _GraphForm(threading.local):
    is_wanted = False


_graph_form = _GraphForm()


@contextlib.contextmanager
def graph_form() -> Iterator[None]:
    """Context in which this thread evaluates the form of operations that `torch.compile` traces, see `is_traced`."""
    before, _graph_form.is_wanted = _graph_form.is_wanted, True
    try:
        yield
    finally:
        _graph_form.is_wanted = before


def is_traced() -> bool:
    """Whether `torch.compile` or `torch.export` traces the calling code, which may then not branch on values.

    Also true inside `graph_form`.
    """
    return torch.compiler.is_compiling() or _graph_form.is_wanted


def is_transformed(x: Tensor) -> bool:
    """Whether a transform of ``torch.func`` (vmap, grad, jvp, ...) acts on ``x``; must not be called while traced."""
    return torch.func.debug_unwrap(x, recurse=False) is not x


def is_abstract(x: Tensor) -> bool:
    """Whether ``x`` has no values that can be read: while traced, under ``vmap``, or on the meta device."""
    if is_traced() or x.is_meta:
        return True
    while (inner := torch.func.debug_unwrap(x, recurse=False)) is not x:
        if inner.ndim != x.ndim:  # vmap hides a dimension
            return True
        x = inner
    return False


class Constant:
    """A small constant tensor with cached copies for all devices and dtypes.

    Groups are stateless operators, not modules, so their constants cannot be buffers.
    """

    def __init__(self, value: Tensor) -> None:
        """Keep ``value`` as a detached float64 CPU tensor, which outlives inference mode and transforms around it."""
        if torch.compiler.is_compiling():
            self.value = value.detach().to(device="cpu", dtype=torch.float64).clone()
            self._float32 = self.value.float()
        else:
            with torch.inference_mode(False):
                self.value = _plain(value.detach().to(device="cpu", dtype=torch.float64).clone())
                self._float32 = _plain(self.value.float())
        self._other: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Constant, (self.value,)

    def matching(self, x: Tensor) -> Tensor:
        """The constant in the dtype and on the device of ``x``."""
        if x.device.type == "cpu":
            if x.dtype == torch.float64:
                return self.value
            if x.dtype == torch.float32:
                return self._float32
        if is_traced():
            return self.value.to(device=x.device, dtype=x.dtype)
        key = (x.dtype, x.device)
        if key in self._other:
            return self._other[key]
        with torch.inference_mode(False):
            converted = _plain(self.value.to(device=x.device, dtype=x.dtype))
        # a tensor made inside a transform must not outlive it
        if not is_transformed(converted):
            self._other[key] = converted
        return converted


def _plain(x: Tensor) -> Tensor:
    """The tensor without the wrapper of a transform of ``torch.func`` other than ``vmap``."""
    return x if is_abstract(x) else torch.func.debug_unwrap(x)


@functools.lru_cache
def _constants(numbers: tuple[float, ...]) -> Constant:
    return Constant(torch.tensor(numbers, dtype=torch.float64, device="cpu"))


_MAX_MATRICES = 2**14  # matrices in one call on a device: cuSOLVER refuses batches of somewhat more than 2^15


def eigh(matrix: Tensor) -> tuple[Float[Tensor, "*batch n"], Tensor]:
    """Return eigenvalues ``[*batch, n]`` and eigenvectors ``[*batch, n, n]`` of Hermitian matrices ``[*batch, n, n]``.

    `torch.linalg.eigh` is called on parts of a large batch that is on a device.
    """
    batch = matrix.shape[:-2]
    if matrix.device.type == "cpu" or is_abstract(matrix) or batch.numel() <= _MAX_MATRICES:
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors
    parts = [torch.linalg.eigh(part) for part in matrix.flatten(0, -3).split(_MAX_MATRICES)]
    values, vectors = (torch.cat(results) for results in zip(*parts, strict=True))
    return values.unflatten(0, batch), vectors.unflatten(0, batch)
