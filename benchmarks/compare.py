"""Two result files of the group operations beside each other, and the picture of one."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

__all__ = ["compare", "picture"]

_OWN = ("trivgeo compiled", "trivgeo")
Key = tuple[str, str, str, str, int]


def compare(old: Path, new: Path, factor: float) -> tuple[str, int]:
    """The rows that became slower or faster by more than ``factor``, and how many became slower.

    Ratios are in units of their median over all rows, the ratio of the speeds of the machines. A row counts only where
    the ranges of its repeats, in the same units, do not meet.
    """
    before, after = _rows(old), _rows(new)
    shared = [key for key in before if key in after]
    if not shared:
        return "no row in common", 0
    ratios = {key: after[key]["seconds"] / before[key]["seconds"] for key in shared}
    machine = statistics.median(ratios.values())
    lines, slower = [f"{len(shared)} rows in common; the median ratio of times, {machine:.2f}, counts as one"], 0
    for key, ratio in sorted(ratios.items(), key=lambda item: -item[1]):
        (low, high), (low2, high2) = (row.get("range", [row["seconds"]] * 2) for row in (before[key], after[key]))
        apart = low2 > machine * high or high2 < machine * low
        if not apart or 1 / factor <= ratio / machine <= factor:
            continue
        slower += ratio > machine
        group, operation, library, mode, batch = key
        lines.append(f"{ratio / machine:6.2f}  {group} {operation}, {mode}, {batch}: {library}")
    return "\n".join(lines), slower


def _rows(path: Path) -> dict[Key, dict[str, Any]]:
    rows = json.loads(path.read_text())["rows"]
    return {
        (r["group"], r["operation"], r["library"], r["mode"], r["batch"]): r
        for r in rows
        if "seconds" in r and r["library"] in _OWN
    }


def picture(source: Path, target: Path, mode: str = "forward") -> None:
    """Seconds an element against the batch, one panel for each operation of each group, one line a library."""
    import matplotlib.pyplot as plt

    rows = [row for row in json.loads(source.read_text())["rows"] if row.get("mode") == mode and "seconds" in row]
    groups, operations, libraries = (
        list(dict.fromkeys(row[name] for row in rows)) for name in ("group", "operation", "library")
    )
    size = (2.6 * len(operations), 2.1 * len(groups))
    figure, panels = plt.subplots(len(groups), len(operations), figsize=size, sharex=True, sharey=True, squeeze=False)
    for i, group in enumerate(groups):
        for j, operation in enumerate(operations):
            panel = panels[i, j]
            for k, library in enumerate([*libraries, "floor"]):
                line = [
                    (row["batch"], row["floor_seconds" if library == "floor" else "seconds"] / row["batch"])
                    for row in rows
                    if (row["group"], row["operation"]) == (group, operation)
                    and row["library"] == (libraries[0] if library == "floor" else library)
                ]
                if line:
                    style = {"color": "black", "linestyle": ":"} if library == "floor" else {"color": f"C{k}"}
                    panel.loglog(*zip(*sorted(line), strict=True), label=library, **style)
            panel.set_title(f"{group} {operation}", fontsize=8)
    for panel in panels[-1]:
        panel.set_xlabel("batch")
    for row in panels:
        row[0].set_ylabel("seconds an element", fontsize=8)
    handles = {label: h for p in panels.flat for h, label in zip(*p.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="lower center", ncols=len(handles), fontsize=8)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    plt.close(figure)
