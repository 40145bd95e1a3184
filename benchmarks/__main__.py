"""Timings of group operations, and what to do with them.

python -m benchmarks                          run the suites, print their tables, write benchmarks/results/*.json
python -m benchmarks compare OLD.json NEW.json        what became slower or faster; fails if something became slower
python -m benchmarks picture RESULTS.json FILE.svg  time against batch, one line a library
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import groups
from benchmarks.compare import compare, picture
from benchmarks.timing import environment, steady_allocator

# A suite: (device, seconds it may take) -> rows, and how to print them.
SUITES: dict[
    str, tuple[Callable[[torch.device, float], list[dict[str, Any]]], Callable[[list[dict[str, Any]]], str]]
] = {
    "groups": (groups.run, groups.table),
}


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.description = __doc__
    if sys.argv[1:2] == ["compare"]:
        parser.add_argument("command")
        parser.add_argument("old", type=Path)
        parser.add_argument("new", type=Path)
        parser.add_argument("--factor", type=float, default=1.3, help="by which a time must have changed to be told")
        options = parser.parse_args()
        text, slower = compare(options.old, options.new, options.factor)
        print(text)
        sys.exit(bool(slower))
    if sys.argv[1:2] == ["picture"]:
        parser.add_argument("command")
        parser.add_argument("results", type=Path)
        parser.add_argument("file", type=Path)
        options = parser.parse_args()
        picture(options.results, options.file)
        return
    parser.add_argument("suites", nargs="*", default=sorted(SUITES), help=f"any of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=900.0, help="about how long each suite may take")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--name", help="of the file, to keep results of several machines (default: suite-device.json)")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"expected suites among {sorted(SUITES)}, got {sorted(unknown)}")
    torch.set_num_threads(arguments.threads)
    steady = steady_allocator()
    device = torch.device(arguments.device)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.suites:
        run, table = SUITES[name]
        start = time.perf_counter()
        rows = run(device, arguments.seconds)
        seconds = time.perf_counter() - start
        report = {
            "suite": name,
            "environment": {**environment(device), "steady_allocator": steady},
            "seconds": seconds,
            "rows": rows,
        }
        path = arguments.out / (arguments.name or f"{name}-{device.type}.json")
        path.write_text(json.dumps(report, indent=1) + "\n")
        print(table(rows))
        print(f"\n{len(rows)} rows in {seconds:.0f} s, written to {path}")


if __name__ == "__main__":
    main()
