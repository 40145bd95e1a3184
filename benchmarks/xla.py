"""Rotations and rigid motions beside jaxlie under XLA's jit: one thread of a CPU, forward, and with gradients.

python -m benchmarks.xla trivgeo            eager and compiled groups, rows added to benchmarks/results/xla-cpu.json
python -m benchmarks.xla jaxlie             the same of jaxlie, where jax and jaxlie are installed
python -m benchmarks.xla trivgeo --label before     rows of another name, run in a checkout of another version

Elements are what each library makes: matrices here, unit quaternions or complex numbers there. A time is the least CPU
time of the process over at least five calls, after two that compile.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).parent / "results" / "xla-cpu.json"
_GROUPS = ("SO(2)", "SO(3)", "SE(2)", "SE(3)")
_SECONDS = 0.25  # of calls that are timed, at least five
_STD = 0.3  # of algebra vectors

Case = tuple[str, str, str, int, Callable[[], Any]]  # group, operation, mode, batch, call


def trivgeo_cases(fuse: bool, dtype: str, groups: list[str], batches: list[int]) -> Iterator[Case]:
    """Calls of eager or of compiled groups."""
    import torch

    from trivgeo import groups as library

    torch.set_num_threads(1)
    for name in groups:
        plain = getattr(library, name[:2])(int(name[3]))
        group = library.compiled(plain) if fuse else plain
        for batch in batches:
            generator = torch.Generator().manual_seed(0)
            v, w = _STD * torch.randn(2, batch, plain.dim, generator=generator, dtype=getattr(torch, dtype))
            g, h = plain.exp(v), plain.exp(w)
            inputs = {"exp": (v,), "log": (g,), "compose": (g, h), "inverse": (g,), "Ad": (g,)}
            for operation, values in inputs.items():
                f, leaves = getattr(group, operation), [x.clone().requires_grad_() for x in values]
                yield name, operation, "forward", batch, lambda f=f, values=values: f(*values)
                yield (
                    name,
                    operation,
                    "forward+backward",
                    batch,
                    lambda f=f, x=leaves: torch.autograd.grad(f(*x).sum(), x),
                )


def jaxlie_cases(dtype: str, groups: list[str], batches: list[int]) -> Iterator[Case]:
    """Calls of jaxlie under jit; the second mode is the gradient of the sum."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    jax, jaxlie = importlib.import_module("jax"), importlib.import_module("jaxlie")
    jax.config.update("jax_enable_x64", True)
    for name in groups:
        group = getattr(jaxlie, name[:2] + name[3])
        for batch in batches:
            keys = jax.random.split(jax.random.PRNGKey(0))
            v, w = (_STD * jax.random.normal(key, (batch, group.tangent_dim), dtype) for key in keys)
            g, h = group.exp(v).parameters(), group.exp(w).parameters()
            operations: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
                "exp": (lambda v, group=group: group.exp(v).parameters(), (v,)),
                "log": (lambda g, group=group: group(g).log(), (g,)),
                "compose": (lambda g, h, group=group: (group(g) @ group(h)).parameters(), (g, h)),
                "inverse": (lambda g, group=group: group(g).inverse().parameters(), (g,)),
                "Ad": (lambda g, group=group: group(g).adjoint(), (g,)),
            }
            for operation, (f, values) in operations.items():
                gradient = jax.grad(lambda *x, f=f: f(*x).sum(), argnums=tuple(range(len(values))))
                for mode, each in (("forward", f), ("forward+backward", gradient)):
                    call = jax.jit(each)
                    yield name, operation, mode, batch, lambda c=call, x=values: jax.block_until_ready(c(*x))


def least_seconds(call: Callable[[], Any]) -> float:
    """The least CPU time of a call."""
    call(), call()
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(times) < 5 or time.perf_counter() < end:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Parse the command line, time, and add the rows to those of other libraries."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.xla", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.description = __doc__
    parser.add_argument("library", choices=["trivgeo", "jaxlie"])
    parser.add_argument("--label", default="", help="added to the name of the library")
    parser.add_argument("--groups", nargs="*", default=list(_GROUPS))
    parser.add_argument("--sizes", nargs="*", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--dtypes", nargs="*", default=["float64", "float32"])
    parser.add_argument("--eager", action="store_true", help="eager groups alone")
    parser.add_argument("--out", type=Path, default=_RESULTS)
    options = parser.parse_args()
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    kept = {(r["library"], r["dtype"], r["group"], r["operation"], r["mode"], r["batch"]): r["seconds"] for r in rows}
    for dtype in options.dtypes:
        kinds: dict[str, Iterator[Case]] = {"jaxlie": jaxlie_cases(dtype, options.groups, options.sizes)}
        if options.library == "trivgeo":
            kinds = {"trivgeo": trivgeo_cases(False, dtype, options.groups, options.sizes)}
            if not options.eager:
                kinds["trivgeo compiled"] = trivgeo_cases(True, dtype, options.groups, options.sizes)
        for kind, cases in kinds.items():
            library = f"{kind} {options.label}".strip()
            for group, operation, mode, batch, call in cases:
                kept[library, dtype, group, operation, mode, batch] = seconds = least_seconds(call)
                print(
                    f"{library:24s}{dtype} {group} {operation:8s}{mode:17s}{batch:8d}{1e3 * seconds:9.2f} ms",
                    flush=True,
                )
                names = ("library", "dtype", "group", "operation", "mode", "batch", "seconds")
                document = {"rows": [dict(zip(names, (*key, x), strict=True)) for key, x in kept.items()]}
                options.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
