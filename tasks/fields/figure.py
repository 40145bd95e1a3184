"""The error on moved fields against the number of training fields: `python -m tasks.fields.figure kdv`."""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from tasks.fields.table import COLUMNS, PROBLEMS, RESULTS, kept

FIGURES = Path(__file__).parents[2] / "docs" / "images"


def draw(source: Path, target: Path) -> None:
    """A line for each column of a table that was kept."""
    rows = kept(source)
    figure, axes = plt.subplots(figsize=(7.4, 3.8), layout="constrained")
    for (moved, column), label in COLUMNS.items():
        of = [row for row in rows if row["moved in training"] == moved]
        style = "k--" if column == "true transformation" else "o-"
        errors = [row["error on moved fields"][column] for row in of]
        # an open mark is seen where lines lie on each other
        mark = {"markersize": 9, "fillstyle": "none"} if column == "tied" else {"markersize": 4}
        axes.loglog([row["fields"] for row in of], errors, style, label=label, **mark)
    fields = sorted({row["fields"] for row in rows})
    axes.set(xlabel="training fields", ylabel="relative error on moved fields", xticks=fields)
    axes.set_xticks(fields, [str(n) for n in fields])
    axes.minorticks_off()
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(target, dpi=150)
    plt.close(figure)


def main() -> None:
    """Draw one problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--network", default="small", choices=["small", "neuraloperator"])
    options = parser.parse_args()
    name = f"fields_{options.problem}_{options.network}"
    draw(RESULTS / f"{name}.json", FIGURES / f"{name}.png")


if __name__ == "__main__":
    main()
