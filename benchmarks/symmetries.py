"""Symmetries of the catalogue's equations: `trivgeo.symmetry` and delierium, with a time limit for each equation.

``python -m benchmarks.symmetries --delierium PYTHON`` writes ``benchmarks/results/symmetries-cpu.json``, where PYTHON
is an interpreter (3.12 or later) that has delierium; it runs this file. All times are those of the processor.

Both are asked what they are made for: ordinary equations, systems of them, and single partial equations. "right" is the
dimension of the catalogue (or that it is infinite, also if only by superposition, which delierium does not set apart)
with all generators where they are finitely many; "short" the dimension without all generators; "wrong" another
dimension; "refused" an error; "late" no answer in time.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sympy as sp
from sympy.core.function import AppliedUndef

RESULTS = Path(__file__).parent / "results" / "symmetries-cpu.json"


class Late(BaseException):
    """The time is over."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Stop after as many seconds of the processor."""

    def stop(*_: Any) -> None:
        raise Late

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def judged(search: Callable[[], tuple[float | None, bool]], size: int | None, seconds: float) -> dict[str, Any]:
    """A verdict on a search, which returns the dimension (``None``: unknown) and whether all generators are there."""
    before = time.process_time()
    try:
        with limit(seconds):
            dimension, is_complete = search()
    except Late:
        return {"verdict": "late", "seconds": seconds}
    except Exception as error:  # a benchmark records what others raise
        verdict = {"verdict": "refused", "error": f"{type(error).__name__}: {error}"[:200]}
        return verdict | {"seconds": time.process_time() - before}
    expected = math.inf if size is None else size
    verdict = "refused" if dimension is None else "wrong" if dimension != expected else "right"
    if verdict == "right" and size is not None and not is_complete:
        verdict = "short"
    return {"verdict": verdict, "dimension": str(dimension), "seconds": time.process_time() - before}


def ours(case: Mapping[str, Any]) -> tuple[float | None, bool]:
    """The dimension by `trivgeo.symmetry`."""
    from trivgeo.symmetry import find_symmetries

    found = find_symmetries(case["equations"])
    if found.looks_infinite or found.infinite_ideal is not None:
        # superposition is one more infinity, and what is beside it has to be right
        beside = math.inf if found.looks_infinite else found.dimension.size
        right = beside == (math.inf if case["beside"] is None else case["beside"])
        return (math.inf if right else beside), found.is_complete
    return found.dimension.size, found.is_complete


def theirs(case: Mapping[str, Any]) -> tuple[float | None, bool]:
    """The dimension by delierium."""
    from delierium import lie_symmetries

    names: dict[str, Any] = {}
    exec("from sympy import *", names)
    equations = [eval(text, names) for text in case["residuals"]]
    dependent = sorted({f for e in equations for f in e.atoms(AppliedUndef)}, key=str)
    found = lie_symmetries(equations if len(equations) > 1 else equations[0], dependent, list(dependent[0].args))
    dimension = float(found.dimension)
    return dimension, math.isinf(dimension) or found.complete(found.generators())


def worker() -> None:
    """Answers to lines of JSON."""
    for line in sys.stdin:
        case = json.loads(line)
        answer = judged(lambda case=case: theirs(case), case["size"], case["limit"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def cases(seconds: float) -> list[dict[str, Any]]:
    """The catalogue's ordinary equations, systems of them, and single partial equations."""
    from tests.symmetry.catalogue import CATALOGUE
    from trivgeo.expressions import parse_equations
    from trivgeo.symmetry import find_symmetries  # noqa: F401  (imported before the clock starts)

    chosen = []
    for entry in CATALOGUE:
        texts = entry.equations.split(";")
        residuals = parse_equations(texts)
        functions = {f for e in residuals for f in e.atoms(AppliedUndef)}
        is_ordinary = len(next(iter(functions)).args) == 1
        if len(residuals) > 1 and not is_ordinary:
            continue
        ideal = _is_linear(residuals, functions) and not is_ordinary
        chosen.append(
            {
                "name": entry.name,
                "equations": texts,
                "residuals": [sp.srepr(e) for e in residuals],
                "size": None if ideal else entry.size,
                "beside": entry.size,
                "limit": seconds,
            }
        )
    return chosen


def _is_linear(residuals: Sequence[sp.Expr], functions: set[sp.Expr]) -> bool:
    jets = {d: sp.Dummy() for e in residuals for d in e.atoms(sp.Derivative)}
    symbols = [*jets.values(), *(plain := {f: sp.Dummy() for f in functions}).values()]
    forms = [e.xreplace(jets).xreplace(plain) for e in residuals]
    return all(not sp.diff(form, a, b) for form in forms for a in symbols for b in symbols)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.symmetries", description=__doc__)
    parser.add_argument("--delierium", required=True, help="an interpreter that has delierium")
    parser.add_argument("--seconds", type=float, default=20.0, help="limit for each equation")
    parser.add_argument("--every", type=int, default=1, help="take every n-th equation only")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    from benchmarks.timing import environment, torch

    version = "import importlib.metadata as m; print(m.version('delierium'))"
    found = subprocess.run([arguments.delierium, "-c", version], capture_output=True, text=True, check=True).stdout
    other = subprocess.Popen(
        [arguments.delierium, __file__, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None
    assert other.stdout is not None
    rows = []
    for case in cases(arguments.seconds)[:: arguments.every]:
        other.stdin.write(json.dumps(case) + "\n")
        other.stdin.flush()
        row = {"name": case["name"], "delierium": json.loads(other.stdout.readline())}
        row["trivgeo"] = judged(lambda case=case: ours(case), case["size"], arguments.seconds)
        rows.append(row)
        sys.stdout.write(f"{row['name']}: {row['trivgeo']['verdict']}, {row['delierium']['verdict']}\n")
        sys.stdout.flush()
    other.stdin.close()
    other.wait()
    about = environment(torch.device("cpu"))
    about["versions"] = about["versions"] | {"sympy": sp.__version__, "delierium": found.strip()}
    summary = {tool: _summary([row[tool] for row in rows]) for tool in ("trivgeo", "delierium")}
    asked = {"limit": arguments.seconds, "every": arguments.every}
    result = {"suite": "symmetries", "environment": about, **asked, "summary": summary, "rows": rows}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def _summary(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counts = Counter(v["verdict"] for v in verdicts)
    counted = {kind: counts[kind] for kind in ("right", "short", "wrong", "refused", "late")}
    return {"equations": len(verdicts), **counted, "median_seconds": statistics.median(v["seconds"] for v in verdicts)}


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["--worker"] else main()
