"""Writes the tables of README and docs from the results that the repository keeps: `python -m docs.tables`.

A table stands in a text between `<!-- table: NAME -->` and `<!-- end -->`, and is never edited by hand.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from tasks.report import (
    FURTHER_TABLES,
    KEPT,
    RELEASED_TABLES,
    Result,
    count_text,
    find_result,
    format_samplers,
    format_table,
    read_result,
    read_tables,
)
from tasks.report import TABLES as PUBLISHED_TABLES

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks" / "results"
SPEED = BENCHMARKS / "groups-cpu.json"
XLA = BENCHMARKS / "xla-cpu.json"
SYMMETRIES = BENCHMARKS / "symmetries-cpu.json"
VERDICTS = BENCHMARKS / "verdicts-cpu.json"
FROM_DATA = BENCHMARKS / "symmetries-from-data-cpu.json"
CONSISTENCY = BENCHMARKS / "operator-consistency-cpu.json"
SEARCHES = BENCHMARKS / "search-cpu.json"
CANONICAL = BENCHMARKS / "canonical-operators-cpu.json"
GPUS = "gpu-*.json"
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
GPU_LIBRARIES = ("trivgeo", "trivgeo compiled")
NONE = "–"
EARTH_PUBLISHED = {"volcano": "-7.93", "earthquake": "-0.40", "flood": "0.42", "fire": "-1.86"}
"""Best test NLL of flow matching (Chen and Lipman 2024, table 2), of earthquakes of diffusion (Huang et al. 2022)."""

REVERSE_DIFFUSION = "reverse diffusion"  # `ReverseDiffusionSearch`, which its paper calls TIED

# methods and their runs on the published problems; the pages say with which settings
PUBLISHED = {
    "FoCal": "focal",
    "kinetic Langevin": "langevin",
    "LieLAC": "lielac",
    REVERSE_DIFFUSION: "tied",
    "learned inversion": "amortized",
}
# of equations, all in the calibrated basis: by column
CALIBRATED = {
    "random search": ("random_search", "random_search_mixed", "", "random_search"),
    "kinetic Langevin": ("langevin_calibrated", "langevin_mixed", "", "langevin_calibrated"),
    "LieLAC": ("lielac_calibrated", "lielac_mixed", "", "lielac_calibrated"),
    "gradient descent, restarts": (
        "gradient_descent",
        "gradient_descent_mixed",
        "gradient_descent_mixed_augmented",
        "gradient_descent",
    ),
    REVERSE_DIFFUSION: ("tied", "tied_mixed", "tied_mixed_augmented", "tied"),
    "learned inversion": ("amortized", "amortized_mixed", "", "amortized"),
}
COLUMNS = ("heat", "heat, mixed", "heat, mixed, augmented network", "Burgers")
SETS = ("heat", "heat", "heat", "burgers")

# sets of graded transformations, all with reverse diffusion
GRADED = {
    "heat, amplitudes U(0.5, 5) (published)": "heat/tied",
    "heat, small": "heat/tied_mixed_small",
    "heat, published-like": "heat/tied_mixed",
    "heat, large": "heat/tied_mixed_large",
    "heat, augmented network, small": "heat/tied_mixed_augmented_small",
    "heat, augmented network, published-like": "heat/tied_mixed_augmented",
    "heat, augmented network, large": "heat/tied_mixed_augmented_large",
    "Burgers, small": "burgers/tied_small",
    "Burgers, published-like": "burgers/tied",
    "Burgers, large": "burgers/tied_large",
    "KdV, published-like": "kdv/tied",
}
SO10 = {
    "published settings": "so10/tied_published",
    "kinetic Langevin, published 100,000 steps": "so10/langevin",
    "kinetic Langevin, 2,000 longer steps": "so10/langevin_short",
}
# of distributions on groups
MODELS = {
    "diffusion": "diffusion",
    "momentum diffusion": "momentum",
    "flow matching": "flow",
    "mixture of 200 wrapped normals": "mixture",
    "kernel density": "kernel",
    "one normal distribution": "normal",
}
DISTRIBUTIONS = ("rna", "checkerboard", "rotations", "so4", "so8", "su4", "su8", "ising8")
# of tests of images on a GPU: the run, and what it is
GPU_RUNS = {
    "affnist/tied_classifier": "affNIST, TIED, classifier energy",
    "affnist/released_code_classifier": "affNIST, released code of TIED, classifier energy",
    "affnist/tied_vae": "affNIST, TIED, VAE energy",
    "affnist/amortized": "affNIST, learned inversion",
    "homnist/tied_classifier": "homNIST, TIED, classifier energy",
    "homnist/tied_vae": "homNIST, TIED, VAE energy",
    "homnist/amortized": "homNIST, learned inversion",
}
FIELD_PROBLEMS = {
    "kdv": "Korteweg-de Vries",
    "kuramoto_sivashinsky": "Kuramoto-Sivashinsky",
    "burgers": "Burgers",
    "vorticity": "vorticity in the plane",
}
# columns of a table of fields, and the metrics of `tasks.fields.comparison.FieldComparison`
FIELD_COLUMNS = {
    "alone": "network alone",
    "trained on fields moved once": "trained on fields moved once",
    "augmented": "augmented",
    "augmented, learned inversion": "augmented, learned inversion",
    REVERSE_DIFFUSION: "inverter",
    "learned inversion": "learned inversion",
    "true transformation": "true transformation",
}


@cache
def kept(run: str) -> Result | None:
    """What is kept of a run, by `set/name`."""
    return find_result(run, (KEPT,)) if run and not run.endswith("/") else None


def counted(run: str) -> str:
    """The evaluations of a run for one datum."""
    found = kept(run)
    return NONE if found is None else count_text(found.evaluations)


def figure(run: str, metric: str, factor: float = 1.0) -> str:
    """A metric, with its spread over seeds where that shows."""
    found = kept(run)
    if found is None:
        return NONE
    mean, std = (factor * found.summary[metric][name] for name in ("mean", "std"))
    return f"{mean:.2g} ± {std:.1g}" if std > 0.05 * mean else f"{mean:.3g}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def size(run: str) -> str:
    """The cases of a run, with its seeds where there are several."""
    found = kept(run)
    return NONE if found is None else found.size or f"{found.cases:,}"


def summary(images: bool) -> str:
    """Errors on the published problems by the networks of this repository; or by the published ones, and of images."""
    columns = ["heat", "heat, augmented network", "Burgers", *(["affNIST, %", "homNIST, %"] if images else [])]
    suffix = "_released" if images else ""

    def runs(stem: str) -> list[str]:
        energy = "" if stem == "amortized" else "_vae"
        problems = [f"heat/{stem}{suffix}", f"heat/{stem}_augmented{suffix}", f"burgers/{stem}{suffix}"]
        return [*problems, f"affnist/{stem}{energy}", f"homnist/{stem}{energy}"]

    def row(label: str, found: Sequence[str], metric: str) -> list[str]:
        cells = [sized(run, figure(run, f"{metric} inversion")) for run in found[:3]]
        accuracies = (sized(run, accuracy(run, metric)) for run in found[3 : len(columns)])
        return [label, *cells, *accuracies]

    def sized(run: str, text: str) -> str:
        return f"{text.replace(' ', '')} [{size(run).replace(' ', '')}]" if images and text != NONE else text

    def accuracy(run: str, metric: str) -> str:
        found = kept(run)
        return NONE if found is None else found.figure(f"accuracy {metric} inversion", 100.0)

    rows = [row("network alone", runs("tied"), "without")]
    rows += [row(label, runs(stem), "with") for label, stem in PUBLISHED.items()]
    true = [sized(run, figure(run, "with the true transformation")) for run in runs("tied")[:3]]
    return markdown(["method", *columns], [*rows, ["true transformation", *true, *[NONE] * (len(columns) - 3)]])


def calibrated() -> str:
    """All methods in the calibrated basis: error, the worst case in brackets."""

    def cell(run: str, metric: str) -> str:
        found = kept(run)
        return NONE if found is None else f"{figure(run, metric)} ({found.summary[metric]['worst']:.2g})"

    tied = [f"{folder}/{name}" for folder, name in zip(SETS, CALIBRATED[REVERSE_DIFFUSION], strict=True)]
    rows = [["network alone", *(cell(run, "without inversion") for run in tied)]]
    for label, names in CALIBRATED.items():
        cells = [cell(f"{folder}/{n}" if n else "", "with inversion") for folder, n in zip(SETS, names, strict=True)]
        rows.append([label, *cells])
    rows.append(["true transformation", *(cell(run, "with the true transformation") for run in tied)])
    return markdown(["method", *COLUMNS], rows)


def evaluations() -> str:
    """Evaluations of the energy, or of a network in its place, for one datum."""
    images = ("affnist", "classifier"), ("affnist", "vae")
    rows = []
    for label, names in CALIBRATED.items():
        cells = [counted(f"{folder}/{n}" if n else "") for folder, n in zip(SETS, names, strict=True)]
        stem = PUBLISHED.get(label, "")
        runs = [f"{s}/{stem}" if stem == "amortized" else f"{s}/{stem}_{energy}" for s, energy in images]
        shown = [
            NONE if kept(run) is None else f"{figure(run, 'accuracy with inversion', 100.0)} % in {counted(run)}"
            for run in (runs if stem else ("", ""))
        ]
        rows.append([label, *cells, *shown])
    header = ["method", *COLUMNS, "affNIST, classifier's energy", "affNIST, VAE's energy"]
    return markdown(header, rows)


def digits() -> str:
    """Accuracies on the digits of scikit-learn under similarity transformations."""

    def cells(run: str, which: str) -> str:
        return figure(f"digits/{run}", f"accuracy {which}", 100.0)

    rows = [
        ["classifier alone", cells("tied", "without inversion"), "0"],
        [REVERSE_DIFFUSION, cells("tied", "with inversion"), counted("digits/tied")],
        ["learned inversion", cells("learned", "with inversion"), counted("digits/learned")],
        ["true transformation", cells("tied", "with the true transformation"), "0"],
        ["clean digits", cells("tied", "on clean images"), "0"],
    ]
    return markdown(["method", "accuracy, %", "evaluations an image"], rows)


def graded() -> str:
    """Reverse diffusion on sets of small to large transformations."""
    metrics = ("without inversion", "with inversion", "with the true transformation", "inside the training domain")
    rows = []
    for label, run in GRADED.items():
        found = kept(run)
        worst = "" if found is None else f" ({found.summary['with inversion']['worst']:.2g})"
        cells = [figure(run, metric) + (worst if metric == "with inversion" else "") for metric in metrics]
        rows.append([label, *cells])
    return markdown(["set", "network alone", f"with {REVERSE_DIFFUSION}", *metrics[2:]], rows)


def fields(problem: str) -> str:
    """A neural operator of one equation: errors on moved fields, by number of training fields."""
    rows = []
    for run in field_runs(problem):
        cells = [figure(f"fields/{run}", metric) for metric in FIELD_COLUMNS.values()]
        rows.append([run.rpartition("_")[2], *cells])
    return markdown(["training fields", *FIELD_COLUMNS], rows)


def canonical(which: str) -> str:
    """Operators on shifted and boosted fields, and how far augmentation and the true transformation are from ours."""
    rows, methods = [], []
    for equation, result in json.loads(CANONICAL.read_text()).items():
        errors = result["errors"][which]
        methods = list(errors)
        ratios = [errors["augmented"] / errors["inverted"], errors["inverted"] / errors["true transformation"]]
        shown = [f"{errors[name]:.2g}" for name in methods]
        rows.append([equation.replace("-", " "), *shown, f"{ratios[0]:.1f}", f"{ratios[1]:.2f}"])
    return markdown(["equation", *methods, "augmented / inverted", "inverted / true"], rows)


def field_costs() -> str:
    """Milliseconds in which a field is inverted, with 128 training fields."""
    rows = []
    for problem, name in FIELD_PROBLEMS.items():
        found = (
            figure(f"fields/{problem}_128", f"milliseconds of {what}") for what in ("inverter", "learned inversion")
        )
        rows.append([name, *found])
    return markdown(["", REVERSE_DIFFUSION, "learned inversion"], rows)


def field_runs(problem: str) -> list[str]:
    """What is kept of an equation, by number of training fields."""
    files = (KEPT / "fields").glob(f"{problem}_*.json")
    return sorted((file.stem for file in files), key=lambda name: int(name.rpartition("_")[2]))


def so10() -> str:
    """The distribution of a corner of SO(10)."""
    metrics = ("kolmogorov-smirnov distance", "share in the positive mode", "error of the mean of X_11^2")
    rows = []
    for label, run in SO10.items():
        found = kept(run)
        assert found is not None
        samples = json.loads(found.origin.read_text())["config"]["data"]["init_args"]["count"]
        costs = [f"{samples:,}", f"{1e3 * found.seconds / samples:.0f}"]
        rows.append([label, *(figure(run, metric) for metric in metrics), *costs])
    return markdown(["method", *metrics, "samples", "seconds for 1,000"], rows)


def equivariance() -> str:
    """How far predictions of clean and moved digits are apart, with learned inversion."""
    metrics = ("equivariance error without inversion", "equivariance error")
    rows = [[label, *(figure(f"{folder}/amortized_equivariance", metric) for metric in metrics)]
            for label, folder in (("affNIST", "affnist"), ("homNIST", "homnist"))]  # fmt: skip
    return markdown(["set", "network alone", "with inversion"], rows)


def loops() -> str:
    """The published loop beside ours."""
    document = json.loads((BENCHMARKS / "images-cpu.json").read_text())
    rows = [
        [
            r["method"],
            f"{r['accuracy']:.3f}",
            f"{r['evaluations_per_image']:.0f}",
            f"{r['images_per_second']:.2f}",
            f"{r['speedup']:.1f} ({r['slowest batch']:.1f} to {r['fastest batch']:.1f})",
        ]
        for r in document["rows"]
    ]
    return markdown(["version", "accuracy", "evaluations an image", "images a second", "times as fast"], rows)


def front_door(what: str) -> str:
    """What `LearnedInverter.fit` reaches, beside the networks kept: accuracies in %, or errors."""
    show = {"accuracy": lambda x: f"{100 * x:.2f}", "error": lambda x: f"{x:.3g}"}[what]
    methods = ["moved", "true transformation", "kept network", "LearnedInverter.fit"]
    rows = [
        [label, f"{sets['steps']:,}", *(show(sets["rows"][method][what]) for method in methods)]
        for label, sets in json.loads((BENCHMARKS / "learned-cpu.json").read_text())["sets"].items()
        if what in sets["rows"]["moved"]
    ]
    header = ["set", "steps of `fit`", "network alone", "true transformation", "network of the package"]
    return markdown([*header, "trained by `fit`"], rows)


def learned_posterior() -> str:
    """How far learned inverters can be trusted on data that nothing of them has seen."""
    rows = []
    for name, row in json.loads((BENCHMARKS / "learned-posterior-cpu.json").read_text())["sets"].items():
        regions = [
            f"{part} {' / '.join(f'{100 * share:.0f}' for share in shares)}" for part, shares in row["coverage"].items()
        ]
        flagged = [f"{100 * share:.1f}" for share in row["flagged"].values()]
        right = " / ".join(f"{100 * share:.1f}" for share in row.get("accuracy", {}).values()) or NONE
        efficiency = " / ".join(f"{share:.2f}" for share in row.get("efficiency", {}).values()) or NONE
        steps = f"{row['steps']:,}" if row["steps"] else NONE
        rows.append([name, steps, ", ".join(regions), *flagged, right, efficiency])
    flags = [f"flagged, %: {data}" for data in ("clean", "moved", "beyond the distribution", "noise")]
    header = ["set", "training steps", "coverage, %, of 50 / 90", *flags, "classifier on clean data, %: alone / gate"]
    return markdown([*header, "effective share of samples: with / without"], rows)


def rival() -> str:
    """One classifier made equivariant by equiadapt and by us."""
    tables = json.loads((BENCHMARKS / "equiadapt-cpu.json").read_text())["tables"]
    rows = [
        [moved, method]
        + [f"{100 * row[name]:.1f}" for name in ("accuracy", "accuracy, clean")]
        + [f"{row['seconds before']:.0f}", f"{row['ms an image']:.1f}", f"{row['lines']:.0f}"]
        for moved, table in tables.items()
        for method, row in table.items()
    ]
    header = ["moved by", "method", "accuracy, %", "on clean, %", "CPU seconds to prepare", "CPU ms an image", "lines"]
    return markdown(header, rows)


def registration() -> str:
    """Poses of scans beside the iterative closest point algorithm."""
    document = json.loads((BENCHMARKS / "registration-cpu.json").read_text())
    rows = [
        [name, f"{100 * r['solved']:.0f}", f"{r['median degrees']:.2f}", f"{r['seconds']:.1f}"]
        for name, r in document["methods"].items()
    ]
    return markdown(["method", "solved, %", "median error, degrees", "CPU seconds"], rows)


def scans() -> str:
    """Poses of scans that show parts of ten objects, by the share of points in common and of outliers."""
    document = json.loads((BENCHMARKS / "scans-cpu.json").read_text())
    rows = []
    for r in document["table"]:
        place = ["all", ""] if r["overlap"] is None else [f"{100 * r[name]:.0f}" for name in ("overlap", "outliers")]
        verdict = [NONE if r[name] is None else f"{r[name]}" for name in ("trusted", "wrong")]
        rows.append([*place, r["method"], f"{r['right']} of {r['pairs']}", *verdict, f"{r['seconds']:.2f}"])
    columns = ["overlap, %", "outliers, %", "method", "right", "trusted", "of these wrong", "CPU seconds"]
    return markdown(columns, rows)


def verdicts() -> str:
    """How often answers are trusted, and how often trusted ones are wrong, by kind and door."""
    rows = []
    for name, found in json.loads(VERDICTS.read_text())["totals"].items():
        kind, _, door = name.partition(", ")
        shares = [f"{100 * found[share]:.1f}" for share in ("share trusted", "share trusted and wrong")]
        inside = [found[f"coverage {mass} %"] for mass in (50, 90)]
        cells = [NONE if share is None else f"{100 * share:.0f}" for share in inside]
        rows.append([kind, door or "all", str(found["situations"]), str(found["answers"]), *shares, *cells])
    columns = ["asked", "situations", "answers", "trusted, %", "trusted and wrong, %", "in 50 %, %", "in 90 %, %"]
    return markdown(["", *columns], rows)


def operator_consistency() -> str:
    """Errors of operators that were made equivariant by their own answers."""
    lines = []
    for found in json.loads(CONSISTENCY.read_text())["rows"]:
        ways = [found[name] for name in ("with the equation", "without it", "with the box")]
        cells = [cell for way in ways for cell in (f"{way['error']:.3g}", f"{way['CPU seconds']:.1f}")]
        known = [f"{found[name]:.3g}" for name in ("alone", "true transformation")]
        lines.append(
            [found["network"], *known, *cells, f"{ways[-1]['median ratio']:.2f}", f"{ways[-1]['estimate']:.2g}"]
        )
    ways = ["with the equation", "seconds", "without it", "seconds", "with the box", "seconds", "ratio", "estimate"]
    return markdown(["network", "alone", "true transformation", *ways], lines)


def operator_steps() -> str:
    """Errors of networks that step, made equivariant by their own answers."""
    lines = [
        [
            found["network"],
            ", ".join(f"{t:g}" for t in found["times"]),
            *(f"{found[name]:.3g}" for name in ("alone", "true transformation", "own answers")),
            f"{found['median ratio']:.2f}",
            f"{found['estimate']:.2g}",
            f"{found['trusted']} of {found['cases']}",
            f"{found['wrong and trusted']} of {found['wrong cases']}",
            f"{found['CPU seconds']:.1f}",
        ]
        for found in json.loads(CONSISTENCY.read_text())["stepping"]
    ]
    ways = ["alone", "true transformation", "own answers", "ratio", "estimate", "trusted", "wrong ones trusted"]
    return markdown(["network", "times", *ways, "seconds"], lines)


def symmetries_from_data() -> str:
    """Dimensions that were found from published sets, and a rival's equations."""
    rows = [row for row in json.loads(FROM_DATA.read_text())["rows"] if row["kind"] == "published"]
    cells = [
        [
            row["name"],
            str(row["true"]),
            str(row.get("dimension", "refused")),
            "yes" if row["answer"] in ("right", "false") else "no",
            f"`{' '.join(row['pysindy'].split()).replace('+ -', '- ')}`" if row.get("pysindy") else NONE,
        ]
        for row in rows
    ]
    return markdown(["set", "true dimension", "found", "trusted", "right side by PySINDy"], cells)


def wrong_verdicts() -> str:
    """The situations in which an answer was trusted and wrong."""
    rows = [row for row in json.loads(VERDICTS.read_text())["rows"] if row["wrong"]]
    rows.sort(key=lambda row: -row["wrong"] / row["answers"])
    cells = [
        [row["door"], row["kind"], row["name"], f"{row['wrong']} of {row['answers']}", row["bet"] or NONE]
        for row in rows
    ]
    return markdown(["asked", "kind", "situation", "trusted and wrong", "why we bet on it"], cells)


def searches(budget: int) -> str:
    """Shares of the data that searches solve, in percent; bold within two standard errors or 3 points of the best."""
    rows = [row for row in json.loads(SEARCHES.read_text())["rows"] if row["budget"] == budget]
    names = dict.fromkeys(name for row in rows for name, found in row.items() if isinstance(found, dict))
    methods = sorted(names, key=lambda name: (name != "TIED", "known" in name))
    lines = []
    for row in rows:
        shares = {name: row[name]["solved"] for name in methods if name in row}
        best = max(shares[name] for name in shares if "known" not in name)
        cells = []
        for name in methods:
            share = shares.get(name)
            if share is None:
                cells.append("–")
                continue
            spread = (best * (1 - best) / row["data"] + share * (1 - share) / row["data"]) ** 0.5
            told = "known" in name
            is_best = not told and share >= best - max(0.03, 2 * spread)
            cells.append(f"**{100 * share:.0f}**" if is_best else f"{100 * share:.0f}")
        lines.append([row["problem"], *cells])
    return markdown(["", *methods], lines)


def devices() -> str:
    """One test on one process and on two."""
    rows = json.loads((BENCHMARKS / "devices-cpu.json").read_text())["rows"]
    lines = [[str(r["processes"]), f"{r['cpu_seconds']:.1f}", f"{r['error']:.4g}", str(r["cases"])] for r in rows]
    return markdown(["processes", "CPU seconds of the busiest", "mean error", "cases"], lines)


def generative(data: str) -> str:
    """Models of elements of a group, fitted on the same splits."""
    found = {label: result for label, name in MODELS.items() if (result := kept(f"generative/{data}_{name}"))}

    def cell(result: Result, metric: str, digits: int) -> str:
        if metric not in result.summary:
            return NONE
        mean, std = (result.summary[metric][name] for name in ("mean", "std"))
        return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std and digits else "")

    columns = {
        "test NLL, nats": ("test NLL", 2),
        "energy distance": ("energy distance of samples", 4),
        "energy distance, random steps": ("energy distance of samples by random steps", 4),
        "seconds to train": ("seconds of training", 0),
        "seconds to sample": ("seconds of sampling", 0),
    }
    columns = {name: x for name, x in columns.items() if any(x[0] in result.summary for result in found.values())}
    rows = [[label, *(cell(result, *x) for x in columns.values())] for label, result in found.items()]
    level = next(iter(found.values()))
    known = {
        "test NLL": "test NLL of the true density",
        "energy distance of samples": "energy distance of training set",
    }
    rows.append(["perfect model", *(cell(level, known.get(metric, ""), n) for metric, n in columns.values())])
    return markdown(["model", *columns], rows)


def class_mixtures() -> str:
    """Models given a class, on mixtures of known density."""
    columns = {
        "excess, given the class": "excess NLL a dimension",
        "excess, classes shuffled in training": "excess NLL a dimension, shuffled classes",
        "cost without the class": "",
        "class recognised: data": "recognised, true density",
        "class recognised: samples": "recognised, samples",
        "class recognised: samples, guidance 3": "recognised, guided samples",
    }
    rows = []
    for group, (name, dim) in {"T^2": ("t2", 2), "SO(3)": ("so3", 3), "SE(2)": ("se2", 3)}.items():
        found = kept(f"generative/classes_{name}")
        assert found is not None
        mean = {metric: numbers["mean"] for metric, numbers in found.summary.items()}
        without = (mean["marginal NLL of the true density"] - mean["test NLL of the true density"]) / dim
        rows.append([group, *(f"{mean[metric] if metric else without:.3f}" for metric in columns.values())])
    return markdown(["group", *columns], rows)


def backbones() -> str:
    """Chains of a model of protein backbones, training chains and chains of independent frames."""
    found = kept("generative/backbones_flow")
    assert found is not None
    mean = {metric: numbers["mean"] for metric, numbers in found.summary.items()}
    columns = {
        "valid, 7 frames, %": ("valid chains, 7 frames", 100, 1),
        "valid, 8 frames, %": ("valid chains, 8 frames", 100, 1),
        "valid, 20 frames, %": ("valid chains, 20 frames", 100, 1),
        "valid, 32 frames, %": ("valid chains, 32 frames", 100, 1),
        "energy distance, 7 frames": ("energy distance, 7 frames", 1, 2),
        "clashes, 32 frames, %": ("clashes, 32 frames", 100, 1),
        "end to end, 32 frames": ("end to end, 32 frames", 1, 2),
        "Ramachandran": ("Ramachandran, 32 frames", 1, 3),
    }
    likelihoods = {
        "samples": "NLL a residue, samples",
        "independent frames": "NLL a residue, mixture of independent frames",
    }
    rows = []
    labels = {"model": "samples", "training chains": "training chains", "independent frames": "independent frames"}
    for label, name in labels.items():
        cells = [f"{scale * mean[f'{metric}, {name}']:.{digits}f}" for metric, scale, digits in columns.values()]
        rows.append([label, *cells, f"{mean[likelihoods[name]]:.2f}" if name in likelihoods else NONE])
    return markdown(["chains", *columns, "NLL a residue"], rows)


def protein_torsions() -> str:
    """Negative log-likelihoods of held-out torsion angles of proteins by kind of residue."""
    result = kept("generative/torsions_flow")
    assert result is not None
    found = result.summary
    names = ("the model", "the model without the kind", "kernel density", "wrapped normal mixture")
    kinds = ("general", "glycine", "proline", "pre-proline")

    def cell(metric: str) -> str:
        return f"{found[metric]['mean']:.2f} ± {found[metric]['std']:.2f}"

    metrics = {"all": "", **{kind: f", {kind}" for kind in kinds}}
    rows = [[name, *(cell(f"test NLL of {name}{end}") for end in metrics.values())] for name in names]
    return markdown(["model", *metrics], rows)


def solids() -> str:
    """One model of the poses of five solids, from pictures."""
    found = kept("generative/solids_flow")
    assert found is not None
    mean = {metric: numbers["mean"] for metric, numbers in found.summary.items()}
    rows = []
    for name in ("tetrahedron", "cube", "icosahedron", "cone", "cylinder"):
        shares = [mean.get(f"{share}, {name}") for share in ("least share of a pose", "least share of a perfect model")]
        cells = [mean[f"spread, degrees, {name}"], mean[f"median, degrees, {name}"], mean[f"log-likelihood, {name}"]]
        rows.append([name, *(f"{cell:.2f}" for cell in cells), *(NONE if s is None else f"{s:.2f}" for s in shares)])
    rows.append(["mean", f"{mean['spread, degrees']:.2f}", "", f"{mean['log-likelihood']:.2f}", "", ""])
    columns = ["mean error, degrees", "median", "log-likelihood", "least share of a pose", "of a perfect model"]
    return markdown(["solid", *columns], rows)


def markov_chains() -> str:
    """Plaquettes of gauge fields by Markov chains and by steppers."""
    rows = [
        [
            r["target"],
            r["method"],
            f"{r['mean']:.4f} ± {r['standard_error']:.4f}",
            f"{r['exact']:.4f}",
            f"{r['r_hat']:.3f}",
            f"{r['ess'] / r['seconds_of_sampling']:.0f}",
        ]
        for r in json.loads((BENCHMARKS / "mcmc-cpu.json").read_text())["rows"]
    ]
    return markdown(["links", "method", "mean plaquette", "exact", "R-hat", "effective samples a CPU second"], rows)


def few_steps() -> str:
    """Energy distances of samples in few evaluations of a network."""
    columns = ["data", "sampler", "1", "2", "4", "8", "100", "training set", "NLL, nats"]
    rows = []
    for r in json.loads((BENCHMARKS / "few-steps-cpu.json").read_text())["rows"]:
        for name, found in (("map", r["learned_map"]), ("flow", r["flow"])):
            cells = [_with_error(found[n]) if n in found else NONE for n in columns[2:7]]
            rows.append([r["target"], name, *cells, f"{r['training_set']:.4f}", f"{r['nll']:.2f}"])
    return markdown(columns, rows)


def _with_error(found: float | list[float]) -> str:
    """A distance with its standard error, or one of a single sample."""
    return f"{found:.4f}" if isinstance(found, float) else "{:.4f} ± {:.4f}".format(*found)


def earth() -> str:
    """Likelihoods of events on the Earth beside the best published ones (`EARTH_PUBLISHED`)."""
    kept = json.loads((BENCHMARKS / "earth-cpu.json").read_text())["rows"]
    rows = []
    for name in (*EARTH_PUBLISHED, "made"):
        mine = [r for r in kept if r["catalogue"] == name]
        if not mine:
            continue
        first = next((r for r in mine if r["nll"] is not None), dict.fromkeys(mine[0]))
        splits = [r["kernel_nll"] for r in mine]
        error = statistics.stdev(splits) / len(splits) ** 0.5
        numbers = (first[key] for key in ("nll", "kernel_nll", "mixed_nll"))
        rows.append(
            [
                name,
                f"{mine[0]['events']:,}",
                f"{100 * statistics.mean(r['copies'] for r in mine):.1f}",
                *(NONE if x is None else f"{x:.2f}" for x in numbers),
                f"{statistics.mean(splits):.2f} ± {error:.2f}",
                EARTH_PUBLISHED.get(name, NONE),
                NONE if first["seconds"] is None else f"{first['seconds']:.0f}",
            ]
        )
    columns = ["flow", "kernels", "both", "kernels, five splits", "published best", "CPU seconds of the flow"]
    return markdown(["catalogue", "events", "copies, %", *columns], rows)


def grasps() -> str:
    """Success of trajectories to objects posed as in demonstrations, and in any way."""
    rows = [
        [
            r["model"],
            str(r["demonstrations"]),
            *(f"{r[key]:.2f} ± {r[key + '_error']:.2f}" for key in ("seen", "unseen")),
            *(f"{r[key]:.2f}" for key in ("nll_seen", "nll_unseen")),
            f"{r['seconds']:.0f}",
        ]
        for r in json.loads((BENCHMARKS / "grasps-cpu.json").read_text())["rows"]
    ]
    columns = ["demonstrations", "success", "success, any pose", "NLL, nats", "NLL, any pose", "CPU seconds"]
    return markdown(["model", *columns], rows)


def report(path: Path = PUBLISHED_TABLES) -> str:
    """The tables of the publication with ours beside them, as `trivgeo report` prints them."""
    return "\n\n".join(format_table(table, (KEPT,))[0].replace("## ", "### ") for table in read_tables(path))


def published_searches() -> str:
    """The configuration as published beside the released code."""
    rows = [
        [
            r["config"],
            r["search"],
            f"{r['images']:,}",
            str(r["chains"]),
            f"{100 * r['accuracy']:.1f} ± {100 * r['standard error']:.1f}",
            f"{r['evaluations an image']:,.0f}",
        ]
        for r in json.loads((BENCHMARKS / "published-cpu.json").read_text())["rows"]
    ]
    header = ["configuration", "search", "images", "chains", "accuracy, %", "evaluations an image"]
    return markdown(header, rows)


def speed(mode: str, batch: int, unit: float) -> str:
    """Times of operations of rotations and rigid motions by all libraries, in units of seconds."""
    document = json.loads(SPEED.read_text())
    rows = [row for row in document["rows"] if "seconds" in row and (row["mode"], row["batch"]) == (mode, batch)]
    # compiled times are of code that is gone
    rows = [row for row in rows if row["group"] in ("SO(3)", "SE(3)") and row["library"] != "trivgeo compiled"]
    libraries = list(dict.fromkeys(row["library"] for row in rows))
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        name = f"{row['group']} {row['operation']}"
        cells.setdefault(name, {})[row["library"]] = f"{row['seconds'] / unit:.1f}"
    lines = [[name, *(found.get(library, NONE) for library in libraries)] for name, found in cells.items()]
    return markdown(["operation", *(f"{n} 0.2, eager" if n == "trivgeo" else n for n in libraries)], lines)


def xla() -> str:
    """Milliseconds for 100,000 elements compiled, eager and by jaxlie, without and with gradients."""
    columns = [(n, m) for m in ("forward", "forward+backward") for n in ("trivgeo compiled", "trivgeo", "jaxlie")]
    found: dict[str, dict[tuple[str, str], float]] = {}
    for row in json.loads(XLA.read_text())["rows"]:
        if row["batch"] == 100_000:
            cells = found.setdefault(f"{row['group']} {row['operation']}", {})
            cells[row["library"], row["mode"]] = 1e3 * row["seconds"]
    lines = [[name, *(f"{x[c]:.1f}" for c in columns)] for name, x in found.items() if columns[-1] in x]
    header = [f"{library}{', with backward' if mode != 'forward' else ''}" for library, mode in columns]
    return markdown(["operation", *header], lines)


def conditions(path: Path) -> str:
    """Where the times were taken."""
    found = json.loads(path.read_text())["environment"]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items() if number)
    return f"{found['device_name']}, {found['threads']} thread, {found['date']}; {versions}."


def gpu_cards() -> list[tuple[str, dict[str, Any]]]:
    """What `python -m benchmarks.gpu` found: the card and the sections of each file."""
    documents = (json.loads(path.read_text()) for path in sorted(BENCHMARKS.glob(GPUS)))
    return [(document["environment"]["device_name"], document["sections"]) for document in documents]


def gpu_images() -> str:
    """Tests of images on GPUs that are kept, those of `benchmarks.gpu` too; each with its card."""
    accuracies = ("without inversion", "with inversion", "with the true transformation")
    lines = []
    for run, label in GPU_RUNS.items():
        for path in sorted((KEPT / "gpu").glob(f"{run.replace('/', '_')}_*.json")):
            found = read_result(path)
            means = (found.summary.get(f"accuracy {name}", {}).get("mean") for name in accuracies)
            cells = [NONE if mean is None else f"{100 * mean:.2f}" for mean in means]
            cells += [
                count_text(found.evaluations),
                NONE if math.isnan(found.seconds) else f"{1e3 * found.seconds:.2f}",
            ]
            how = f"{label}, compiled" if "_compiled_" in path.stem else label
            lines.append([how, f"{found.cases:,}", *cells, found.device])
    header = [
        "test",
        "images",
        "accuracy, %: no inversion",
        "with inversion",
        "true transformation undone",
        "evaluations",
        "ms an image",
        "card",
    ]
    return markdown(header, lines)


def gpu_groups() -> str:
    """Operations on a million elements by the time of copying what they read and write, eager and compiled."""
    lines = []
    for card, sections in gpu_cards():
        rows = [row for row in sections.get("groups", {"rows": []})["rows"] if "library" in row]
        found: dict[tuple[str, ...], dict[tuple[str, str], str]] = {}
        for row in rows:
            cells = found.setdefault((row["group"], row["operation"], row["dtype"]), {})
            ratio = row["seconds"] / row["floor_seconds"]
            cells[row["library"], row["mode"]] = f"{1e6 * row['seconds']:.0f} ({ratio:.1f})"
        columns = [(library, mode) for mode in ("forward", "forward+backward") for library in GPU_LIBRARIES]
        lines += [
            [card, " ".join(head[:2]), head[2], *(cells.get(column, NONE) for column in columns)]
            for head, cells in found.items()
        ]
    header = ["card", "operation", "dtype", "eager", "compiled", "eager, with backward", "compiled, with backward"]
    return markdown(header, lines)


def symmetries() -> str:
    """Verdicts on the catalogue of equations."""
    summary = json.loads(SYMMETRIES.read_text())["summary"]
    verdicts = ("equations", "right", "short", "wrong", "refused", "late")
    rows = [
        [tool, *(str(found[verdict]) for verdict in verdicts), f"{found['median_seconds']:.2g} s"]
        for tool, found in summary.items()
    ]
    return markdown(["", *verdicts, "median time"], rows)


def photographs(rows: str) -> str:
    """Shares of photographs that a network has right, by energy and group, with standard errors.

    Args:
        rows: name of the rows in the file.
    """
    kept = json.loads((BENCHMARKS / "photograph-classes-cpu.json").read_text())["groups"]
    names = {"SO2": "SO(2)", "Similarity": "Similarity(2)", "Affine": "Affine(2)", "Projective": "Projective(2)"}
    names = {name: text for name, text in names.items() if name in kept}
    table = []
    for method in kept["SO2"][rows]:
        found = [kept[name][rows][method] for name in names]
        table.append([method, *(f"{row['accuracy']:.3f} ± {row['standard error']:.3f}" for row in found)])
    return markdown(["method", *names.values()], table)


def words() -> str:
    """Shares of moved words that are read, by method and group, with standard errors, and looks of both networks."""
    kept = json.loads((BENCHMARKS / "words-cpu.json").read_text())["groups"]
    names = {"SO2": "SO(2)", "Projective": "Projective(2)"}
    rows = []
    for method, first in kept["SO2"]["rows"].items():
        found = [kept[name]["rows"][method] for name in names]
        looks = [f"{first.get(kind, 0):.0f}" for kind in ("network evaluations", "energy evaluations")]
        rows.append([method, *(f"{row['accuracy']:.3f} ± {row['standard error']:.3f}" for row in found), *looks])
    return markdown(["method", *names.values(), "evaluations of the inverter", "of the recogniser"], rows)


def photograph_registration() -> str:
    """Errors of the corners of photographs after registration, in pixels, and seconds of one thread, by method."""
    kept = json.loads((BENCHMARKS / "photographs-cpu.json").read_text())["tasks"]
    rows = []
    for task in kept.values():
        for method, row in task["methods"].items():
            trusted = f"{row['trusted']:.2f}, {row['worst trusted']:.2g}" if "trusted" in row else ""
            square = f"{row['mean square of trusted']:.2f}" if "trusted" in row else ""
            error = f"{row['median error']:.2g}" if row["median error"] < 1e6 else "-"
            rows.append(
                [task["task"], method, f"{row['found']:.2f}", error, f"{row['seconds']:.2f} s", trusted, square]
            )
    header = ["photographs", "method", "found", "median error", "time", "trusted, worst error", "squared distance"]
    return markdown(header, rows)


def volume_registration() -> str:
    """Errors of volumes after registration, in millimetres, and seconds of one thread, by method."""
    rows = []
    for line in json.loads((BENCHMARKS / "volumes-cpu.json").read_text())["summary"]:
        errors = [f"{line[name]:.2g}" for name in ("median error", "worst error")]
        counts = (("trusted", "pairs"), ("in 90 % regions", "trusted"))
        held = [f"{line[name]} of {line[whole]}" if name in line else "" for name, whole in counts]
        pairs = f"{line['kind']}, {line['modality']}{', parts' * line['part']}"
        rows.append([pairs, line["method"], *errors, f"{line['seconds']:.1f} s", *held])
    return markdown(["pairs", "method", "median error (mm)", "worst", "time", "trusted", "in 90 % regions"], rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "summary": partial(summary, images=True),
    "equations": partial(summary, images=False),
    "calibrated": calibrated,
    "evaluations": evaluations,
    "digits": digits,
    "graded": graded,
    **{f"generative-{data}": partial(generative, data) for data in DISTRIBUTIONS},
    **{f"fields-{name}": partial(fields, name) for name in FIELD_PROBLEMS},
    "fields-costs": field_costs,
    "canonical-within": partial(canonical, "within"),
    "canonical-beyond": partial(canonical, "beyond"),
    "so10": so10,
    "equivariance": equivariance,
    "loops": loops,
    "report-released": partial(report, RELEASED_TABLES),
    "report-further": partial(report, FURTHER_TABLES),
    "samplers": lambda: format_samplers().partition("\n\n")[2],
    "published-searches": published_searches,
    "learned-images": partial(front_door, "accuracy"),
    "learned-equations": partial(front_door, "error"),
    "class-mixtures": class_mixtures,
    "backbones": backbones,
    "protein-torsions": protein_torsions,
    "markov-chains": markov_chains,
    "few-steps": few_steps,
    "earth": earth,
    "grasps": grasps,
    "solids": solids,
    "learned-posterior": learned_posterior,
    "rival": rival,
    "registration": registration,
    "scans": scans,
    "photographs": partial(photographs, "rows"),
    "photographs-clean": partial(photographs, "rows of clean pictures"),
    "photograph-registration": photograph_registration,
    "volume-registration": volume_registration,
    "words": words,
    "verdicts": verdicts,
    "operator-consistency": operator_consistency,
    "operator-steps": operator_steps,
    "symmetries-from-data": symmetries_from_data,
    "wrong-verdicts": wrong_verdicts,
    "searches-300": lambda: searches(300),
    "searches-1000": lambda: searches(1000),
    "searches-3000": lambda: searches(3000),
    "devices": devices,
    "report": report,
    "speed-forward": lambda: speed("forward", 100_000, 1e-3),
    "speed-backward": lambda: speed("forward+backward", 100_000, 1e-3),
    "speed-xla": xla,
    "speed-conditions": partial(conditions, SPEED),
    "symmetries": symmetries,
    "gpu-images": gpu_images,
    "gpu-groups": gpu_groups,
}


def refreshed(text: str) -> str:
    """A text with its tables as the kept results are now."""
    return MARKED.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n\n{match[3]}", text)


def texts() -> list[Path]:
    """The texts that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


if __name__ == "__main__":
    for path in texts():
        old = path.read_text()
        if refreshed(old) != old:
            path.write_text(refreshed(old))
