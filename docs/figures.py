"""Draws the pictures of the first pages of the paths and of the concept pages: `python -m docs.figures`, a minute."""

from __future__ import annotations

import itertools
import math
import re
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from docs.tables import FIELD_COLUMNS, FIELD_PROBLEMS, REVERSE_DIFFUSION, field_runs, kept
from tasks.report import FURTHER_TABLES, read_tables
from trivgeo.actions import ImageWarp
from trivgeo.groups import SO, Affine, HeatSymmetry, Projective
from trivgeo.inversion import InverseProblem, ReverseDiffusionSearch, calibrated_scale
from trivgeo.inversion.transformations import homographies
from trivgeo.registration import register
from trivgeo.sde import EnergyScore, GeometricSchedule, NoiseKernel, reverse_diffusion

FOLDER = Path(__file__).parent / "images" / "concepts"
PATHS = Path(__file__).parent / "paths"
GREY = "#7d8590"  # text that is read on white and on black
INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "legend.labelcolor")
GROUND = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
mpl.rcParams |= {"svg.hashsalt": "trivgeo", "font.size": 9}


def seeded(seed: int = 0) -> torch.Generator:
    """A source of noise."""
    return torch.Generator().manual_seed(seed)


def save(figure: Figure, name: str) -> None:
    """Write a picture, the same bytes every time."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


def first(page: str) -> None:
    """What the first block of the page of a path draws, without ground."""
    block = re.search(r"^```python\n(.*?)^```", (PATHS / f"{page}.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    with plt.rc_context(dict.fromkeys(INK, GREY) | dict.fromkeys(GROUND, "none")), tempfile.TemporaryFile() as file:
        session: dict[str, Any] = {"file": file}
        exec(re.sub(r'savefig\("\w+\.png"\)', "savefig(file)", block[1]), session)
        session["figure"].savefig(FOLDER.parent / "first" / f"{page}.png", dpi=100)


def groups() -> None:
    """What the one-parameter subgroups of the heat group do to the points of a box."""
    group = HeatSymmetry(nu=0.1)
    action = group.action()
    box = torch.cartesian_prod(torch.linspace(-1, 1, 9), torch.linspace(0, 1, 6)).double()
    names = ("scaling", "time", "projective", "space", "boost")
    figure = Figure(figsize=(9, 2.2), layout="constrained")
    for index, (axis, name) in enumerate(zip(figure.subplots(1, 5, sharey=True), names, strict=True)):
        for s, color in ((0.0, "0.7"), (0.4, "C0")):
            v = torch.zeros(6, dtype=torch.float64)
            v[index] = s
            moved = action(group.exp(v), box).reshape(9, 6, 2)
            for lines in (moved, moved.transpose(0, 1)):
                axis.plot(*lines.unbind(-1), color=color, lw=0.8)
        axis.set(title=name, xlabel="x")
    figure.axes[0].set_ylabel("t")
    save(figure, "groups")


def modular_drift() -> None:
    """A normal distribution of the log-scale on Aff(1), sampled with and without the term of the drift."""
    group = Affine(1)

    def energy(g: Tensor) -> Tensor:  # for left Haar measure, at (A, b)
        scale, shift = g[..., 0, 0].log(), g[..., 0, 1]
        return 0.5 * ((scale - 0.3) / 0.4).square() + 0.5 * shift.square() - scale

    schedule = GeometricSchedule(0.02, 6.0)
    score = EnergyScore(energy, NoiseKernel(group, schedule, 200), num_mc=256)
    figure = Figure(figsize=(5, 2.8), layout="constrained")
    axis = figure.subplots()
    for drift in (True, False):
        samples = reverse_diffusion(
            group, schedule, score, num_samples=4000, steps=200, generator=seeded(), modular_drift=drift
        )
        label = "with the modular drift" if drift else "without, as published"
        axis.hist(samples[:, 0, 0].log(), torch.linspace(-1.5, 2, 60), density=True, alpha=0.5, label=label)
    a = torch.linspace(-1.5, 2, 200)
    axis.plot(a, (-0.5 * ((a - 0.3) / 0.4) ** 2).exp() / (0.4 * math.sqrt(2 * math.pi)), "k", label="exact")
    axis.set(xlabel="logarithm of the scale")
    axis.legend()
    save(figure, "modular_drift")


def posterior() -> None:
    """A posterior with two wells on the circle, at three temperatures, and where a search by reverse diffusion ends."""
    group = SO(2)
    action = group.action()
    shape = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 0.7], [0.0, -0.7]], dtype=torch.float64)

    def energy(points: Tensor) -> Tensor:  # spread along x, none along y: the same after half a turn
        return points[..., 1].square().sum(-1)

    given = action(group.exp(torch.tensor([[0.8]], dtype=torch.float64)), shape)
    angles = torch.linspace(-math.pi, math.pi, 200, dtype=torch.float64)
    log_density = -InverseProblem(action, energy).given(given).energies(group.exp(angles[None, :, None]))[0]
    figure = Figure(figsize=(9, 2.4), layout="constrained")
    for axis, temperature in zip(figure.subplots(1, 3), (4.0, 1.0, 0.2), strict=True):
        inverter = ReverseDiffusionSearch(
            action, energy, GeometricSchedule(0.05, 8.0), num_mc=32, num_hypotheses=2000, temperature=temperature
        )
        found = group.log(inverter(given, generator=seeded()).elements)[0, :, 0]
        axis.hist(found, torch.linspace(-math.pi, math.pi, 50).numpy(), density=True, alpha=0.5)
        density = (log_density / temperature).exp()
        axis.plot(angles, density / torch.trapezoid(density, angles), "k")
        axis.set(title=f"T = {temperature:g}", xlabel="angle of g")
    save(figure, "posterior")


def scale() -> None:
    """Lines of equal energy near the solution, in the natural basis and in the calibrated one."""
    group = Affine(1)
    clean = torch.linspace(-1, 1, 20, dtype=torch.float64)[None, :, None] + 3.0

    def energy(points: Tensor) -> Tensor:  # mean 3, spread that of the clean points
        mean = points.mean((-2, -1))
        return (mean - 3).square() + 0.5 * ((points - mean[..., None, None]).square().mean((-2, -1)) - 0.37).square()

    matrix = calibrated_scale(group.action(), energy, clean, generator=seeded())
    figure = Figure(figsize=(6, 2.8), layout="constrained")
    line = torch.linspace(-1, 1, 60, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    for axis, chosen, name in zip(
        figure.subplots(1, 2), (group, group.with_scale(matrix)), ("natural basis", "calibrated"), strict=True
    ):
        values = InverseProblem(chosen.action(), energy).given(clean).energies(chosen.exp(grid)[None])[0]
        axis.contour(line, line, values.reshape(60, 60).T.log(), 12)
        axis.set(title=name, xlabel="$v_1$", ylabel="$v_2$", aspect="equal")
    save(figure, "scale")


def schedule() -> None:
    """Size of the noise and length of the steps of a geometric schedule."""
    figure = Figure(figsize=(6, 2.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    times = [step / 50 for step in range(51)]
    for bounds in ((0.1, 1.0), (0.01, 0.5), (0.01, 2.5)):
        noise = GeometricSchedule(*bounds)
        left.semilogy(times[1:], [math.sqrt(noise.variance(0.0, t)) for t in times[1:]], label=repr(noise))
        steps = [math.sqrt(noise.variance(start, end)) for start, end in itertools.pairwise(times)]
        right.semilogy(times[1:], steps)
    left.set(xlabel="t", title="noise up to t")
    right.set(xlabel="t", title="noise of one of 50 steps")
    left.legend(fontsize=6)
    save(figure, "schedule")


def fields() -> None:
    """Errors of neural operators on moved fields against the number of training fields."""
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    panels = figure.subplots(2, 2, sharey=True).flat
    for axis, (problem, title) in zip(panels, FIELD_PROBLEMS.items(), strict=True):
        runs = {int(run.rpartition("_")[2]): kept(f"fields/{run}") for run in field_runs(problem)}
        results = {number: result for number, result in runs.items() if result is not None}
        for label, metric in FIELD_COLUMNS.items():
            errors = [result.summary[metric]["mean"] for result in results.values()]
            # lines that lie on each other are told apart by their marks
            mark = {
                REVERSE_DIFFUSION: {"ms": 9, "fillstyle": "none"},
                "true transformation": {"ls": "--", "color": "k", "ms": 0},
            }
            axis.loglog(list(results), errors, **{"marker": "o", "ms": 4, "label": label} | mark.get(label, {}))
        axis.set_xticks(list(results), [str(number) for number in results])
        axis.minorticks_off()
        axis.set(title=title, xlim=(55, 1200))
    for axis in figure.axes[2:]:
        axis.set_xlabel("training fields")
    for axis in figure.axes[::2]:
        axis.set_ylabel("error on moved fields")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
    save(figure, "fields")


def registration() -> None:
    """A drawn picture, itself under a homography with a part hidden, registered, and the difference."""
    y, x = torch.meshgrid(torch.arange(90.0), torch.arange(120.0), indexing="ij")
    waves = (x / 7).sin() + (y / 9).cos() + ((x * y).sqrt() / 5).sin()
    moving = (0.5 + 0.15 * waves)[None]
    moving[:, 20:50, 30:34] = moving[:, 46:50, 30:60] = 1.0
    group = Projective(2)
    warp = ImageWarp(group)
    fixed = warp(homographies(group, 0.2, (90, 120))(1, seeded(3))[0].float(), moving)
    fixed[:, 55:75, 60:85] = 0.5
    found = register(moving, fixed, group).element
    moved, covered = warp(found, moving)[0], warp.coverage(found, (90, 120))
    difference = torch.where(covered, moved - fixed[0], torch.nan)
    figure = Figure(figsize=(9, 2.1), layout="constrained")
    panels = (("moving", moving[0]), ("fixed", fixed[0]), ("moving, registered", moved), ("difference", difference))
    for axis, (title, image) in zip(figure.subplots(1, 4), panels, strict=True):
        low, high = (-0.5, 0.5) if title == "difference" else (0.0, 1.0)
        axis.imshow(image.numpy(), cmap="RdBu" if low < 0 else "gray", vmin=low, vmax=high)
        axis.set(title=title, xticks=[], yticks=[])
    save(figure, "registration")


def ablations() -> None:
    """Accuracies of the search as published by steps, noise samples and schedule, beside the published ones."""
    by_steps, by_schedule = (t for t in read_tables(FURTHER_TABLES) if t.title.startswith("affNIST by"))
    (metric,) = by_steps.metrics
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    lines = {column: [row[i] for row in by_steps.rows.values()] for i, column in enumerate(by_steps.columns)}
    steps = [int(label.removeprefix("M = ")) for label in by_steps.rows]
    panels = [(left, name, [m * 1.03**i for m in steps], cells) for i, (name, cells) in enumerate(lines.items())]
    panels.append((right, "", list(range(len(by_schedule.rows))), [row[0] for row in by_schedule.rows.values()]))
    for axis, name, places, cells in panels:
        found = [result for cell in cells if (result := kept(cell.run)) is not None]
        means = [100.0 * result.summary[metric]["mean"] for result in found]
        errors = [100.0 * result.error_over_cases(metric) for result in found]
        style = "-" if axis is left else ""
        bars = axis.errorbar(places, means, errors, fmt=f"o{style}", markersize=4, capsize=2, label=name or "ours")
        published = [float(cell.published) for cell in cells]
        axis.plot(
            places, published, f"x{style and ':'}", color=bars[0].get_color(), label=None if name else "published"
        )
    left.set_xscale("log")
    left.set_xticks(steps, map(str, steps))
    left.set_xticks([], minor=True)
    left.set(xlabel="steps M", ylabel="accuracy (%)")
    right.set_xticks(range(len(by_schedule.rows)), list(by_schedule.rows), rotation=30)
    right.set_xlabel("noise, smallest and largest")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(FOLDER.parent / "affnist_steps.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    for path in ("images", "scans", "equations", "groups"):
        first(path)
    for draw in (groups, modular_drift, posterior, scale, schedule, fields, registration, ablations):
        draw()
