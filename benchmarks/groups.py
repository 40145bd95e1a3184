"""Group operations against torch's dense routines and other libraries.

Every operation at batches 1e2 to 1e6 in float64, forward, and forward with backward to all inputs. Columns: trivgeo
compiled (see `trivgeo.groups.compiled`; the first call, which compiles, is not timed) and eager; the same on dense
matrices with ``torch.linalg.matrix_exp``, ``inv`` and ``matmul``; pypose, geomstats, kornia and torchlie where they
have the group and are installed; last the floor, the time to read the inputs and write the output once at the speed of
copying in main memory (64 MB, timed in turns with the libraries; what fits into caches can be faster), and in brackets
how many times that the faster of our own two took. A size is left out where the size before predicts too long a time.
Libraries take turns, three times, and each keeps its lowest median (the range holds the highest, too). `first_calls`
times what compiling costs.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import Budget, copying, give_back_memory, median_seconds, version_of
from trivgeo.groups import (
    SE,
    SL,
    SO,
    SU,
    Affine,
    BurgersSymmetry,
    GLPlus,
    HeatSymmetry,
    Heisenberg,
    KdVSymmetry,
    LieGroup,
    MatrixGroup,
    Projective,
    Similarity,
    Torus,
    Translation,
    U,
    compiled,
)
from trivgeo.groups.inhomogeneous import InhomogeneousGroup

__all__ = ["Selection", "first_calls", "run", "table"]

_BATCHES = (100, 10_000, 100_000, 1_000_000)
_LONGEST = 25.0  # seconds a measurement may be expected to take
_LONGEST_OWN = 60.0  # for trivgeo
_TIMES_MOVED = 6.0  # what arguments are made of, too, in memory, by what an operation reads and writes
_ROUNDS = 3  # of measurements of all libraries, of which each keeps its lowest median
_OPERATIONS = ("exp", "log", "compose", "inverse", "Ad")
_MODES = ("forward", "forward+backward")
_GROUPS: tuple[LieGroup, ...] = (SO(3), SE(3), SL(2), Affine(2), HeatSymmetry(0.1), Projective(2))
# of the catalogue, with all of dimension at most 15 up to size 4: timed when asked for by name
_OTHERS: tuple[LieGroup, ...] = (
    *(SO(2), SO(4), SO(5), SE(2), SE(4), SL(3), SL(4), GLPlus(2), GLPlus(3), Affine(1), Affine(3)),
    *(Projective(1), Projective(3), Similarity(2), Similarity(3), SU(2), SU(3), SU(4), U(2), U(3)),
    *(Heisenberg(1), Heisenberg(2), Translation(3), Torus(2), BurgersSymmetry(), KdVSymmetry()),
)
_OWN = ("trivgeo compiled", "trivgeo")
_LIBRARIES = (*_OWN, "torch dense", "pypose", "geomstats", "kornia", "torchlie")

# name of an operation -> function of its inputs, and what makes the inputs from algebra vectors
Function = Callable[..., Any]
Inputs = Callable[[Tensor, Tensor], tuple[Any, ...]]
Suite = dict[str, tuple[Function, Inputs]]


@dataclass(frozen=True)
class Selection:
    """What to time, all by default: groups by their names, operations, batches and modes."""

    groups: tuple[LieGroup, ...] = _GROUPS
    operations: tuple[str, ...] = _OPERATIONS
    batches: tuple[int, ...] = _BATCHES
    modes: tuple[str, ...] = _MODES

    @classmethod
    def of(cls, groups: list[str], operations: list[str], batches: list[int], modes: list[str]) -> Selection:
        """From a command line, where nothing means all; ``all`` groups are those of the catalogue up to dimension 15.

        Raises:
            ValueError: unknown groups, operations or modes.
        """
        known = {repr(group): group for group in (*_GROUPS, *_OTHERS)}
        unknown = sorted({*groups} - {*known, "all"} | {*operations} - {*_OPERATIONS} | {*modes} - {*_MODES})
        if unknown:
            known_names = f"groups among {[*known]}, operations among {_OPERATIONS} and modes among {_MODES}"
            raise ValueError(f"expected {known_names}, got {unknown}")
        chosen = tuple(known.values()) if "all" in groups else tuple(known[name] for name in groups)
        return cls(
            chosen or _GROUPS,
            tuple(operations) or _OPERATIONS,
            tuple(sorted(batches)) or _BATCHES,
            tuple(modes) or _MODES,
        )


@dataclass
class Library:
    """One competitor on one group: its operations, or why there are none."""

    name: str
    suite: Suite
    note: str = ""


def _trivgeo(group: LieGroup) -> Suite:
    one: Inputs = lambda v, w: (group.exp(v),)  # noqa: E731
    return {
        "exp": (group.exp, lambda v, w: (v,)),
        "log": (group.log, one),
        "compose": (group.compose, lambda v, w: (group.exp(v), group.exp(w))),
        "inverse": (group.inverse, one),
        "Ad": (group.Ad, one),
    }


def _dense(group: LieGroup) -> Suite:
    """On matrices of the smallest faithful representation; the hat map is not timed."""

    def hat(v: Tensor) -> Tensor:
        if isinstance(group, MatrixGroup):
            return group.hat(v)
        if isinstance(group, InhomogeneousGroup):
            k = group.linear.dim
            top = torch.cat([group.linear.hat(v[..., :k]), v[..., k:].unsqueeze(-1)], -1)
            return torch.cat([top, torch.zeros_like(top[..., :1, :])], -2)
        return group.algebra.ad(v)  # not faithful on a centre, but of the size that a dense user would take

    def one(v: Tensor, w: Tensor) -> tuple[Tensor]:
        return (torch.linalg.matrix_exp(hat(v)),)

    return {
        "exp": (torch.linalg.matrix_exp, lambda v, w: (hat(v),)),
        "compose": (torch.matmul, lambda v, w: (*one(v, w), *one(w, v))),
        "inverse": (torch.linalg.inv, one),
    }


def _pypose(group: LieGroup) -> Suite:
    import pypose

    if isinstance(group, SO) and group.size == 3:
        make: Callable[[Tensor], Any] = pypose.so3
    elif isinstance(group, SE) and group.size == 3:
        make = pypose.se3
    else:
        return {}
    one: Inputs = lambda v, w: (make(v).Exp(),)  # noqa: E731
    return {
        "exp": (lambda v: make(v).Exp().tensor(), lambda v, w: (v,)),
        "log": (lambda g: g.Log().tensor(), one),
        "compose": (lambda g, h: (g @ h).tensor(), lambda v, w: (make(v).Exp(), make(w).Exp())),
        "inverse": (lambda g: g.Inv().tensor(), one),
    }


def _geomstats(group: LieGroup) -> Suite:
    from geomstats.geometry.special_euclidean import SpecialEuclidean
    from geomstats.geometry.special_orthogonal import SpecialOrthogonal

    if isinstance(group, SO) and group.size == 3:
        other: Any = SpecialOrthogonal(n=3, point_type="matrix")
    elif isinstance(group, SE) and group.size == 3:
        other = SpecialEuclidean(n=3, point_type="matrix")
    else:
        return {}
    hat = other.lie_algebra.matrix_representation
    one: Inputs = lambda v, w: (other.exp(hat(v)),)  # noqa: E731
    return {
        "exp": (lambda v: other.exp(hat(v)), lambda v, w: (v,)),
        "log": (other.log, one),
        "compose": (other.compose, lambda v, w: (other.exp(hat(v)), other.exp(hat(w)))),
        "inverse": (other.inverse, one),
    }


def _kornia(group: LieGroup) -> Suite:
    from kornia.geometry.liegroup import Se3, So3

    if isinstance(group, SO) and group.size == 3:
        other: Any = So3
    elif isinstance(group, SE) and group.size == 3:
        other = Se3
    else:
        return {}

    def pack(v: Tensor) -> Tensor:
        g = other.exp(v)
        return g.q.data if other is So3 else torch.cat([g.so3.q.data, _translation(g)], -1)

    def unpack(x: Tensor) -> Any:
        from kornia.geometry.quaternion import Quaternion

        return So3(Quaternion(x)) if other is So3 else Se3(So3(Quaternion(x[..., :4])), x[..., 4:])

    def parts(g: Any) -> Tensor:
        return g.q.data if other is So3 else torch.cat([g.so3.q.data, _translation(g)], -1)

    def _translation(g: Any) -> Tensor:
        return g.t if isinstance(g.t, Tensor) else g.t.data

    one: Inputs = lambda v, w: (pack(v),)  # noqa: E731
    return {
        "exp": (pack, lambda v, w: (v,)),
        "log": (lambda x: unpack(x).log(), one),
        "compose": (lambda x, y: parts(unpack(x) * unpack(y)), lambda v, w: (pack(v), pack(w))),
        "inverse": (lambda x: parts(unpack(x).inverse()), one),
        "Ad": (lambda x: unpack(x).adjoint(), one),
    }


def _torchlie(group: LieGroup) -> Suite:
    import torchlie.functional

    if isinstance(group, SO) and group.size == 3:
        other: Any = torchlie.functional.SO3
    elif isinstance(group, SE) and group.size == 3:
        other = torchlie.functional.SE3
    else:
        return {}
    one: Inputs = lambda v, w: (other.exp(v),)  # noqa: E731
    return {
        "exp": (other.exp, lambda v, w: (v,)),
        "log": (other.log, one),
        "compose": (other.compose, lambda v, w: (other.exp(v), other.exp(w))),
        "inverse": (other.inv, one),
        "Ad": (other.adj, one),
    }


_RIVALS: dict[str, Callable[[LieGroup], Suite]] = {
    "pypose": _pypose,
    "geomstats": _geomstats,
    "kornia": _kornia,
    "torchlie": _torchlie,
}


def _libraries(group: LieGroup) -> list[Library]:
    own = [Library(name, _trivgeo(g)) for name, g in zip(_OWN, (compiled(group), group), strict=True)]
    found = [*own, Library("torch dense", _dense(group))]
    for name, build in _RIVALS.items():
        if version_of(name) is None:
            found.append(Library(name, {}, "not installed"))
            continue
        try:
            suite = build(group)
            found.append(Library(name, suite, "" if suite else "no such group"))
        except Exception as error:  # a rival that cannot be imported is a row, not a failure
            found.append(Library(name, {}, f"fails: {type(error).__name__}"))
    return found


def _leaf(x: Any) -> Any:
    """A copy that a gradient flows to; subclasses (pypose) are kept."""
    return x.detach().clone().requires_grad_()


def run(device: torch.device, seconds: float, selection: Selection) -> Iterator[list[dict[str, Any]]]:
    """Measurements as one dictionary a row, operation by operation, as they come."""
    os.environ.setdefault("GEOMSTATS_BACKEND", "pytorch")
    os.environ.setdefault("PYPOSE_DEVICE", str(device))
    budget = Budget(seconds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for group in selection.groups:
            libraries = _libraries(group)
            for operation in selection.operations:
                rows = _missing(group, libraries, operation)
                if budget.left() < 0:
                    print(f"left out, for want of time: {operation} of {group!r}", flush=True)
                for mode in selection.modes:
                    rows += _compare(group, libraries, operation, mode, selection.batches, device, budget)
                give_back_memory()
                yield rows


_FIRST = """
import sys, time, warnings
import torch
from benchmarks.groups import Selection, _trivgeo
from trivgeo.groups import compiled
warnings.simplefilter("ignore")
(group,), (operation,) = (lambda s: (s.groups, s.operations))(Selection.of([sys.argv[1]], [sys.argv[2]], [], []))
f, make = _trivgeo(compiled(group))[operation]
inputs = [x.requires_grad_(sys.argv[3] != "forward") for x in make(*(0.3 * torch.randn(2, 500, group.dim).double()))]
inputs = [x.detach().repeat(4, *[1] * (x.ndim - 1)).requires_grad_(x.requires_grad) for x in inputs]
start = time.perf_counter()
output = f(*inputs)
if output.requires_grad:
    torch.autograd.grad(output.sum(), inputs, allow_unused=True)
print(time.perf_counter() - start)
"""


def first_calls(selection: Selection) -> list[dict[str, Any]]:
    """Seconds of the first compiled call of a process, with nothing on disk and with what the one before left there."""
    rows = []
    for group in selection.groups:
        for operation in selection.operations:
            for mode in selection.modes:
                with tempfile.TemporaryDirectory() as folder:
                    seconds = [_first_call(folder, repr(group), operation, mode) for _ in range(2)]
                head = {"group": repr(group), "operation": operation, "mode": mode}
                rows.append({**head, "first_seconds": seconds[0], "cached_seconds": seconds[1]})
                print(f"{group!r:23s}{operation:9s}{mode:17s}" + "".join(f"{s:8.1f}" for s in seconds), flush=True)
    return rows


def _first_call(folder: str, *what: str) -> float:
    command = [sys.executable, "-c", _FIRST, *what]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _missing(group: LieGroup, libraries: list[Library], operation: str) -> list[dict[str, Any]]:
    """One row for each library without the operation."""
    head = {"group": repr(group), "operation": operation}
    return [
        {**head, "library": library.name, "note": library.note or "no operation"}
        for library in libraries
        if operation not in library.suite
    ]


def _compare(
    group: LieGroup,
    libraries: list[Library],
    operation: str,
    mode: str,
    batches: tuple[int, ...],
    device: torch.device,
    budget: Budget,
) -> list[dict[str, Any]]:
    """All libraries one after the other at each batch, so that a drift of the machine's speed reaches all alike."""
    rows: list[dict[str, Any]] = []
    predicted = {library.name: 0.0 for library in libraries if operation in library.suite}
    copy, speed = copying(device), 0.0
    for batch in batches:
        calls: dict[str, tuple[Callable[[], Any], float]] = {}
        for library in libraries:
            name = library.name
            longest = _LONGEST_OWN if name in _OWN else _LONGEST
            if name not in predicted or predicted[name] > longest or budget.left() < 0:
                continue
            f, make = library.suite[operation]
            generator = torch.Generator().manual_seed(0)
            shape = (2, batch, group.dim)
            v, w = 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64).to(device)
            try:
                with torch.no_grad():
                    inputs = make(v, w)
                    output = f(*inputs)
                call = _forward(f, inputs) if mode == "forward" else _backward(f, inputs)
                call()
            except Exception as error:  # a rival that fails is a row, not a failure
                if name in _OWN:
                    raise
                note = f"fails: {type(error).__name__}"
                rows.append({"group": repr(group), "operation": operation, "library": name, "mode": mode, "note": note})
                del predicted[name]
                continue
            moved = float(sum(t.numel() * t.element_size() for t in (*inputs, output) if isinstance(t, Tensor)))
            calls[name] = call, moved * (1.0 if mode == "forward" else 2.0)  # the gradients move as much again
        medians: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(_ROUNDS):
            for name, (call, _) in calls.items():
                medians[name].append(median_seconds(call, device, 0.03))
            speed = max(speed, copy())
        for name, (_, moved) in calls.items():
            best, *_, worst = sorted(medians[name])
            head = {"group": repr(group), "operation": operation, "library": name, "mode": mode, "batch": batch}
            rows.append({**head, "seconds": best, "range": [best, worst], "floor_seconds": moved / speed})
            growth = batches[min(batches.index(batch) + 1, len(batches) - 1)] / batch
            predicted[name] = 5.0 * _ROUNDS * growth * best  # with the warm-up
            if device.type == "cpu" and _TIMES_MOVED * growth * moved > _memory():
                predicted[name] = math.inf
    return rows


def _memory() -> float:
    """Of the machine, in bytes."""
    return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")


def _forward(f: Function, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    def call() -> Any:
        with torch.no_grad():
            return f(*inputs)

    return call


def _backward(f: Function, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    leaves = tuple(_leaf(x) for x in inputs)

    def call() -> Any:
        output = f(*leaves)
        return torch.autograd.grad(output.sum(), leaves, allow_unused=True)

    return call


def table(rows: list[dict[str, Any]]) -> str:
    """Microseconds a call, one line per group, operation, mode and batch; one column per library; floor last."""
    notes = {(r["group"], r["operation"], r["library"]): r["note"] for r in rows if "note" in r}
    cells: dict[tuple[str, str, str, int], dict[str, Any]] = {}
    for row in rows:
        if "seconds" in row:
            key = (row["group"], row["operation"], row["mode"], row["batch"])
            line = cells.setdefault(key, {})
            line[row["library"]] = row["seconds"]
            if row["library"] == "trivgeo":
                line["floor"] = row["floor_seconds"]
    lines = [f"{'microseconds a call':45s}" + "".join(f"{name:>17s}" for name in (*_LIBRARIES, "floor"))]
    for key, line in cells.items():
        group, operation, mode, batch = key
        text = f"{group:23s}{operation:9s}{'f' if mode == 'forward' else 'f+b':>4s}{batch:9d}"
        reason = _why_not_first(group, operation, mode, batch, line)
        for name in _LIBRARIES:
            note = _BRIEF.get(notes.get((group, operation, name), "too long"), "fails")
            mark = f"[{reason}]" if name == "trivgeo" and reason else ""
            text += f"{f'{mark} {1e6 * line[name]:.0f}':>17s}" if name in line else f"{note:>17s}"
        floor = "-"
        if "floor" in line:
            floor = (
                f"{1e6 * line['floor']:.1f} [{min(line[name] for name in _OWN if name in line) / line['floor']:.1f}]"
            )
        lines.append(text + f"{floor:>17s}")
    footnotes = [f"[{mark}] {text}" for mark, text in _REASONS.items() if any(f"[{mark}]" in line for line in lines)]
    return "\n".join([*lines, "", *footnotes])


_BRIEF = {
    note: note for note in ("no operation", "no such group", "not installed", "too long")
}  # what a cell without a time says
_NOISE = 0.1  # relative, and in absolute terms 10 microseconds
_REASONS = {
    "q": "the rival keeps rotations as quaternions: its logarithm skips the extraction from a matrix, and its "
    "exponential, inverse and product handle fewer numbers",
    "s": "a call on a small batch costs its number of torch operators, and closed forms take more of them than one "
    "fused dense kernel",
    "=": "the same product or transposition of matrices, within the noise of the machine",
    "b": "torchlie writes the backward pass of this operation by hand",
    "?": "slower, for no reason known yet",
}


def _why_not_first(group: str, operation: str, mode: str, batch: int, line: dict[str, Any]) -> str:
    """The footnote of a row in which another library is faster by more than the noise; empty otherwise."""
    ours = min((line[name] for name in _OWN if name in line), default=None)
    rivals = {name: line[name] for name in _LIBRARIES if name in line and name not in _OWN}
    if ours is None or not rivals or min(rivals.values()) >= min((1 - _NOISE) * ours, ours - 1e-5):
        return ""
    first = min(rivals, key=lambda name: rivals[name])
    if batch <= 1000:
        return "s"
    if group in ("SO(3)", "SE(3)") and first in ("pypose", "kornia"):
        return "q"
    if operation == "compose" or (operation == "inverse" and group == "SO(3)"):
        return "="
    return "b" if first == "torchlie" and mode != "forward" else "?"
