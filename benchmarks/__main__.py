"""Timings of group operations, and what to do with them.

python -m benchmarks                          time everything, write benchmarks/results/groups-DEVICE.json, .txt, .svg
python -m benchmarks --groups "SO(3)" --operations exp --sizes 100 100000       some rows, printed, not kept
python -m benchmarks first --groups "SO(3)" --operations exp      seconds of a first compiled call: no cache, cache
python -m benchmarks compare OLD.json NEW.json        what became slower or faster; fails if something became slower
python -m benchmarks picture RESULTS.json FILE.svg  time against batch, one line a library
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from benchmarks import groups
from benchmarks.compare import compare, picture
from benchmarks.timing import environment, steady_allocator


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
    first = sys.argv[1:2] == ["first"]
    if first:
        parser.add_argument("command")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=2400.0, help="about how long it may take")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--groups", nargs="*", default=[], help="names, or all (default: those that others have, ...)")
    parser.add_argument("--operations", nargs="*", default=[], help="exp, log, compose, inverse, Ad (default: all)")
    parser.add_argument("--sizes", nargs="*", type=int, default=[], help="batches (default: 100, 1e4, 1e5, 1e6)")
    parser.add_argument("--modes", nargs="*", default=[], help="forward, forward+backward (default: both)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--name", help="of the files, to keep results of several machines (default: groups-DEVICE)")
    arguments = parser.parse_args()
    try:
        selection = groups.Selection.of(arguments.groups, arguments.operations, arguments.sizes, arguments.modes)
    except ValueError as error:
        parser.error(str(error))
    torch.set_num_threads(arguments.threads)
    if first:
        groups.first_calls(selection)
        return
    steady = steady_allocator()
    device = torch.device(arguments.device)
    kept = selection == groups.Selection() or arguments.name is not None
    path = arguments.out / (arguments.name or f"groups-{device.type}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = {"suite": "groups", "environment": {**environment(device), "steady_allocator": steady}}
    rows, start = [], time.perf_counter()
    for more in groups.run(device, arguments.seconds, selection):
        rows += more
        print(groups.table(more), flush=True)
        if kept:  # after each operation, so that a run that is ended keeps what it has
            report |= {"seconds": time.perf_counter() - start, "rows": rows}
            path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
            path.with_suffix(".txt").write_text(groups.table(rows) + "\n")
    print(f"\n{len(rows)} rows in {time.perf_counter() - start:.0f} s")
    if kept:
        picture(path.with_suffix(".json"), path.with_suffix(".svg"))
        print(f"written to {path}.json, .txt and .svg")


if __name__ == "__main__":
    main()
