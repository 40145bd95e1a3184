"""Verdicts put to the test: how often an answer that is trusted is wrong.

python -m benchmarks.verdicts [--seeds 8] [--only sampler] [--kind hard] [--save]

A verdict says that the stated errors and probabilities hold for the datum at hand. Each situation asks one of them
several times where the truth is known without the library: densities in closed form and exact draws of them, pictures
and clouds moved by NumPy and SciPy, equations whose symmetries stand in books. An answer is *wrong* if the truth lies
outside of its region of 99.9 %, if a probability is off by more than four standard errors and .05, or if there is no
true answer at all. Wrong answers that are not trusted do no harm. Situations are *ordinary*, such as a user meets
first, *hard*, or *needles*: modes to which nothing leads, which a search can only meet by chance. The last column says
why a bet was made that the verdict would fail.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.situations import clouds, others, pictures, posteriors
from benchmarks.situations.record import Outcome, Situation
from benchmarks.timing import environment
from trivgeo.errors import TrivgeoError

RESULTS = Path(__file__).parent / "results" / "verdicts-cpu.json"


def situations() -> list[Situation]:
    """All situations."""
    return [s for room in (posteriors, pictures, clouds, others) for s in room.situations()]


def measured(situation: Situation, seeds: int) -> dict[str, Any]:
    """The row of a situation."""
    begin, error = time.process_time(), None
    try:
        outcomes = situation.judge(range(min(seeds, situation.seeds)))
    except TrivgeoError:  # a refusal
        outcomes = [Outcome(False, False)] * min(seeds, situation.seeds)
    except Exception as caught:  # other situations go on; the row says so
        outcomes, error = [], f"{type(caught).__name__}: {caught}"
    row = {"door": situation.door, "kind": situation.kind, "name": situation.name, "bet": situation.bet}
    seconds = round(time.process_time() - begin, 1)
    return {**row, **shares(outcomes), "error": error, "seconds": seconds, "commit": commit()}


@cache
def commit() -> str | None:
    """The commit of the checkout, which says of what library a row is."""
    command = ["git", "-C", str(RESULTS.parent), "rev-parse", "--short=8", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def shares(outcomes: list[Outcome]) -> dict[str, float | int | None]:
    """Numbers of answers, of trusted ones, and of wrong ones among these; coverage of regions of trusted ones."""
    trusted = [outcome for outcome in outcomes if outcome.trusted]
    return {
        "answers": len(outcomes),
        "trusted": len(trusted),
        "wrong": sum(outcome.wrong for outcome in trusted),
        "regions": sum(not np.isnan(outcome.in50) for outcome in trusted),
        "in 50 %": float(np.nansum([outcome.in50 for outcome in trusted])),
        "in 90 %": float(np.nansum([outcome.in90 for outcome in trusted])),
    }


def total(rows: Iterable[dict[str, Any]]) -> dict[str, float | None]:
    """Shares of all answers of some rows: trusted, trusted and wrong; of trusted ones coverage, and wrong ones."""
    rows = list(rows)
    count = {name: sum(row[name] for row in rows) for name in ("answers", "trusted", "wrong", "regions")}
    inside = {mass: sum(row[f"in {mass} %"] for row in rows) for mass in (50, 90)}
    return {
        "situations": len(rows),
        **count,
        "share trusted": count["trusted"] / max(1, count["answers"]),
        "share trusted and wrong": count["wrong"] / max(1, count["answers"]),
        **{f"coverage {m} %": n / count["regions"] if count["regions"] else None for m, n in inside.items()},
    }


def totals(rows: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Totals by kind, and by kind and door."""
    found = {}
    for kind in ("ordinary", "hard", "needle"):
        own = [row for row in rows if row["kind"] == kind]
        if own:
            found[kind] = total(own)
            for door in dict.fromkeys(row["door"] for row in own):
                found[f"{kind}, {door}"] = total(row for row in own if row["door"] == door)
    return found


def keep(rows: list[dict[str, Any]], seeds: int, path: Path) -> None:
    """Write rows to a file of results, in which those of other situations stay."""
    found = json.loads(path.read_text())["rows"] if path.exists() else []
    new = {(row["door"], row["name"]): row for row in [*found, *rows]}
    kept = [new[key] for s in situations() if (key := (s.door, s.name)) in new]
    document = {"environment": environment(torch.device("cpu")), "seeds": seeds, "totals": totals(kept), "rows": kept}
    path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Parse the command line, measure, print, and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=8, help="data of each situation")
    parser.add_argument("--only", default="", help="part of the door or the name")
    parser.add_argument("--kind", default="", help="ordinary, hard or needle")
    parser.add_argument("--save", action="store_true", help="keep the rows; those of other situations stay")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    print(f"{'door':9}{'kind':9} trusted wrong  in 50 90  seconds  situation")
    for situation in situations():
        if options.kind in situation.kind and options.only in f"{situation.door} {situation.name}":
            row = measured(situation, options.seeds)
            rows.append(row)
            inside = f"{row['in 50 %']:3.0f} {row['in 90 %']:2.0f}" if row["regions"] else "  -  -"
            if row["error"] is not None:
                print(f"{row['door']:9}{row['kind']:9} FAILED: {row['error']:.200}  {row['name']}", flush=True)
                continue
            print(
                f"{row['door']:9}{row['kind']:9} {row['trusted']:2} of {row['answers']:2} {row['wrong']:2}  {inside}"
                f"  {row['seconds']:7.1f}  {row['name']}{'  ! ' + row['bet'] if row['bet'] else ''}",
                flush=True,
            )
    print()
    for name, found in totals(rows).items():
        coverage = [found[f"coverage {mass} %"] for mass in (50, 90)]
        said = "-" if coverage[0] is None else " / ".join(f"{share:.3f}" for share in coverage)
        print(
            f"{name:24} {found['situations']:4} situations: trusted {found['share trusted']:.3f}, "
            f"trusted and wrong {found['share trusted and wrong']:.3f}; coverage {said}"
        )
    if options.save:
        keep(rows, options.seeds, options.output)


if __name__ == "__main__":
    main()
