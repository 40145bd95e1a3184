"""Errors against the size of the transformation, from the results of several runs.

python -m tasks.pde.compare figure.png runs/burgers/tied_small runs/burgers/tied runs/burgers/tied_large
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trivgeo.errors import ConfigurationError

from ..files import read_document
from .figures import ErrorSeries, draw_errors

_ALONE_METRIC, _INSIDE_METRIC = "without inversion", "inside the training domain"


def compare(path: str | Path, folders: Sequence[str | Path]) -> list[ErrorSeries]:
    """Draw the errors of all cases of all runs, those of one inverter as one series, and the network alone.

    Args:
        path: the PNG file.
        folders: folders with a `results.json` of `tasks.pde.inversion.OperatorInversion`, of one equation.

    Returns:
        The series of errors in the figure.

    Raises:
        ConfigurationError: no runs, runs of different equations or networks, or results of another task.
    """
    runs = [read_document(Path(folder) / "results.json") for folder in folders]
    networks = {_settings(run)["checkpoint"] for run in runs}
    if len(networks) != 1:
        raise ConfigurationError(f"folders: expected runs of one network, got {sorted(networks)}")
    rows: dict[str, list[dict[str, Any]]] = {"network alone": []}
    for run in runs:
        rows["network alone"] += run["rows"]
        rows.setdefault(_settings(run)["inverter"]["class_path"].rsplit(".", 1)[-1], []).extend(run["rows"])
    series = [
        ErrorSeries(
            label,
            [row["displacement"] for row in cases],
            [row["metrics"][_ALONE_METRIC if label == "network alone" else "with inversion"] for row in cases],
        )
        for label, cases in rows.items()
    ]
    inside = [row["metrics"][_INSIDE_METRIC] for row in rows["network alone"]]
    equation = runs[0]["config"]["data"]["init_args"]["equation"]["class_path"].rsplit(".", 1)[-1]
    draw_errors(path, series, sum(inside) / len(inside), f"{equation.removesuffix('Equation')} equation")
    return series


def _settings(run: dict[str, Any]) -> dict[str, Any]:
    model = run["config"].get("model", {})
    if model.get("class_path") != "tasks.pde.inversion.OperatorInversion":
        raise ConfigurationError(f"folders: expected results of OperatorInversion, got {model.get('class_path')}")
    return model["init_args"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", help="PNG file to write")
    parser.add_argument("folders", nargs="+", help="folders of results")
    arguments = parser.parse_args()
    compare(arguments.figure, arguments.folders)
