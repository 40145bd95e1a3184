"""Summaries of the rows of a test: mean, spread and worst value of every metric."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

Row = dict[str, Any]
"""One case of a test: its `seed`, `case`, `metrics`, and whatever else the test records."""


def summarise(rows: Sequence[Row], gains: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """Mean over seeds of the mean over cases, standard deviation over seeds and worst case, of each metric.

    Metrics are the entries under `metrics` of a row. A metric that some rows lack is that of the rows that have it. One
    that is 0 or 1 in every row, as whether an answer is right, has no worst case.

    Args:
        rows: rows of all seeds.
        gains: beginnings of the names of metrics whose worst value is the smallest; the largest of all others.
    """
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    summary = {}
    for name in names:
        known = [row for row in rows if name in row["metrics"]]
        values = [
            torch.tensor([row["metrics"][name] for row in known if row["seed"] == seed], dtype=torch.float64)
            for seed in dict.fromkeys(row["seed"] for row in known)
        ]
        means = [float(v.mean()) for v in values]
        summary[name] = spread(name, means, gains)
        of_cases = torch.cat(values)
        if bool(((of_cases == 0) | (of_cases == 1)).all()):
            del summary[name]["worst"]
        else:
            summary[name]["worst"] = _worst(name, of_cases, gains)
    return summary


def spread(name: str, of_seeds: Sequence[float], gains: Sequence[str] = ()) -> dict[str, float]:
    """Mean and standard deviation over seeds of a metric, and the worst.

    Args:
        name: name of the metric.
        of_seeds: value of the metric for each seed.
        gains: as for `summarise`.
    """
    values = torch.tensor(of_seeds, dtype=torch.float64)
    std = float(values.std()) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "std": std, "worst": _worst(name, values, gains)}


def _worst(name: str, values: torch.Tensor, gains: Sequence[str]) -> float:
    return float(values.min() if name.startswith(tuple(gains)) else values.max())


def format_summary(summary: Mapping[str, Mapping[str, float]]) -> str:
    """The summary as a Markdown table; a spread stands only where seeds differ by more than rounding."""
    has_worst = any("worst" in s for s in summary.values())
    spreads = {name: f" ± {s['std']:.2g}" for name, s in summary.items() if s["std"] > 1e-9 * abs(s["mean"])}
    head = "mean ± std over seeds" if spreads else "mean"
    lines = [f"| metric | {head} |" + " worst |" * has_worst, "|---|---|" + "---|" * has_worst]
    for name, s in summary.items():
        worst = f"{s['worst']:.4g}" if "worst" in s else ""
        lines.append(f"| {name} | {s['mean']:.4g}{spreads.get(name, '')} |" + f" {worst} |" * has_worst)
    return "\n".join(lines)
