"""Digits restored by every method of the paper, side by side, on both groups of images.

python -m benchmarks.panel [--images 8] [--energy vae] [--output FILE]

Each line is a test of the command line on the same images, at the sizes of the first looks (`affnist/subset` and the
like); a run that was made is not made again. Numbers are the answers of the classifier, red where wrong.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from tasks.cli import main as run_task
from tasks.config_inheritance import names
from tasks.files import read_document, write_picture
from tasks.images.figures import draw_image
from tasks.images.testsets import DrawnTest
from tasks.images.transformations import AffineRecipe, HomographyRecipe
from trivgeo.actions import ImageWarp
from trivgeo.groups import Affine, Projective

SETS = {"affnist": (Affine, AffineRecipe), "homnist": (Projective, HomographyRecipe)}
# label, stem of the configuration, and the settings laid over it
METHODS = (
    ("ITS", "its_{energy}", "search_subset"),
    ("FoCal", "focal_{energy}", "search_subset"),
    ("Langevin", "langevin_{energy}", "langevin_subset"),
    ("LieLAC", "lielac_{energy}", "lielac_subset"),
    ("TIED", "tied_{energy}", "subset"),
    ("learned", "amortized", ""),
)


def tested(folder: str, label: str, config: str, overlay: str, images: int, runs: Path) -> dict[int, dict[str, Any]]:
    """The rows of a test of some images, by the place of the image."""
    directory = runs / folder / label
    options = {
        "data.init_args.limit": images,
        "data.init_args.batch_size": images,
        "data.init_args.seeds": "[0]",
        "model.init_args.features": "null",
        "model.init_args.figure": "null",
        "trainer.default_root_dir": directory,
        "trainer.enable_progress_bar": "false",
    }
    laid = [f"--config={folder}/{overlay}"] if overlay else []
    run_task(["test", f"--config={folder}/{config}", *laid, *(f"--{name}={value}" for name, value in options.items())])
    return {row["case"]: row for row in read_document(directory / "results.json")["rows"]}


def main() -> None:
    """Run what is missing and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.panel", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--energy", choices=("vae", "classifier"), default="vae")
    parser.add_argument("--runs", type=Path, default=Path("runs/panel"))
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "docs" / "images" / "restored.png")
    options = parser.parse_args()
    lines = ["as given", *(label for label, *_ in METHODS)]
    figure = Figure(figsize=(0.62 * 2 * options.images + 1.2, 0.78 * len(lines)), layout="constrained")
    axes = figure.subplots(len(lines), 2 * options.images, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for side, (folder, (group, recipe)) in enumerate(SETS.items()):
        data = DrawnTest(recipe(), limit=options.images, batch_size=options.images, seeds=[0])
        data.prepare_data()
        data.setup("test")
        batch, action = data.batch(0, 0), ImageWarp(group(2))
        for line, label in enumerate(lines):
            if line == 0:
                shown, key = batch.image, "predicted_alone"
                found = tested(folder, "learned", "amortized", "", options.images, options.runs)
            else:
                _, stem, overlay = METHODS[line - 1]
                name = stem.format(energy=options.energy)
                if f"{folder}/{name}" not in names():
                    continue
                found, key = tested(folder, label, name, overlay, options.images, options.runs), "predicted"
                elements = torch.tensor([found[place]["element"] for place in batch.place.tolist()])
                shown = action(action.group.inverse(elements), batch.image)
            for column, place in enumerate(batch.place.tolist()):
                axis, row = axes[line, side * options.images + column], found[place]
                draw_image(axis, shown[column])
                right = row[key] == row["label"]
                axis.text(2, 8, str(row[key]), color="white" if right else "tab:red", fontsize=8, weight="bold")
            axes[line, 0].text(-3, 20, label, ha="right", va="center", fontsize=9)
    for side, title in enumerate(("affine maps", "homographies")):
        axes[0, side * options.images + options.images // 2].set_title(title, fontsize=10)
    write_picture(figure, options.output, 90)
    print(options.output)


if __name__ == "__main__":
    main()
