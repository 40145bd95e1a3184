"""Summaries of the rows of a test: mean, spread and largest value of every metric."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

Row = dict[str, Any]
"""One case of a test: its `seed`, `case`, `metrics`, and whatever else the test records."""


def summarise(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean over seeds of the mean over cases, standard deviation over seeds and largest case, of each metric.

    Metrics are the entries under `metrics` of a row. A metric that some rows lack is that of the rows that have it.
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
        summary[name] = spread(means) | {"worst": float(torch.cat(values).max())}
    return summary


def spread(of_seeds: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation over seeds, and the largest."""
    values = torch.tensor(of_seeds, dtype=torch.float64)
    std = float(values.std()) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "std": std, "worst": float(values.max())}


def format_summary(summary: Mapping[str, Mapping[str, float]]) -> str:
    """The summary as a Markdown table."""
    lines = ["| metric | mean ± std over seeds | largest |", "|---|---|---|"]
    lines += [f"| {name} | {s['mean']:.4g} ± {s['std']:.2g} | {s['worst']:.4g} |" for name, s in summary.items()]
    return "\n".join(lines)
