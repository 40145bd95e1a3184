"""What the library does on one GPU: accuracy, time and the floors of the card, in seven minutes from a checkout.

python -m benchmarks.gpu --checkpoints FOLDER --mnist FOLDER    writes benchmarks/results/gpu-NAME-OF-THE-CARD.json
python -m benchmarks.gpu --sections groups warps                some sections alone
python -m benchmarks.gpu --paper --seconds 7200                 the tables of images of Kim et al. (2026) at full size
python -m benchmarks.gpu --keep                                 keeps what the tests of images found for the tables

Sections run in the order of `SECTIONS`, each with a limit of its own on its time. Results are on the disk after every
row, and the same command goes on where an earlier run was ended: tests of images by the batch, others by the section.
The tests of images are those of the command line, `trivgeo test --config affnist/tied_classifier` and so on, on 10,000
images with one seed. Networks that the folder of checkpoints lacks are trained first, side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import Budget, copying, environment, median_seconds
from tasks.checkpoints import FOLDER_VARIABLE, checkpoint_path
from tasks.cli import run as run_task
from tasks.fields.fno import SmallFNO
from tasks.fields.problems import burgers
from tasks.files import decoded, write_whole
from tasks.images.mnist import ROOT_VARIABLE
from tasks.report import KEPT
from tasks.summary import summarise
from trivgeo._torch import pytree
from trivgeo.actions import ImageWarp
from trivgeo.generative import GroupDiffusion
from trivgeo.groups import SE, SL, SO, Affine, LieGroup, Projective, compiled
from trivgeo.inversion import ReverseDiffusionSearch
from trivgeo.sde import GeometricSchedule

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
NETWORKS = ("resnet18", "vae", "regulariser_affine", "regulariser_homography")

Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Where and how much is measured.

    Attributes:
        device: the card.
        folder: of the tests that run, with their rows.
        small: a rehearsal: little of everything, with digits and networks that come with the code.
    """

    device: torch.device
    folder: Path
    small: bool = False

    def size(self, usual: int, small: int) -> int:
        """A size, or that of a rehearsal."""
        return small if self.small else usual


@dataclass(frozen=True)
class Section:
    """A part of the benchmark.

    Attributes:
        seconds: that it may take; it ends itself after the row that it is in.
        rows: makes the rows; one with ``complete`` false says that something is left for the next run.
    """

    seconds: float
    rows: Callable[[Setting, float], Iterator[Row]]


def networks(setting: Setting, seconds: float) -> Iterator[Row]:
    """Train what is missing, all at once."""
    missing = [] if setting.small else [name for name in NETWORKS if not checkpoint_path(name).exists()]
    command = [sys.executable, "-m", "tasks", "fit", "--trainer.accelerator", setting.device.type]
    quiet = ["--trainer.enable_progress_bar", "false"]
    start = time.perf_counter()
    trained = {name: subprocess.Popen([*command, "--config", f"mnist/{name}", *quiet], cwd=ROOT) for name in missing}
    try:
        for name, process in trained.items():
            process.wait(max(1.0, seconds - (time.perf_counter() - start)))
            yield {"network": name, "status": process.returncode, "seconds": time.perf_counter() - start}
    finally:
        for process in trained.values():
            process.kill()


def floors(setting: Setting, seconds: float) -> Iterator[Row]:
    """Speed of copying and of products of matrices."""
    rate = copying(setting.device, setting.size(1 << 30, 1 << 20))()
    yield {"what": "copy", "bytes_per_second": rate}
    n = setting.size(8192, 128)
    a, b = (torch.randn(n, n, device=setting.device, dtype=torch.bfloat16) for _ in range(2))
    taken = median_seconds(lambda: a @ b, setting.device)
    yield {"what": "matrix product, bfloat16", "operations_per_second": 2 * n**3 / taken}


def inversion(
    config: str, count: int = 10_000, compiled: bool = False, seeds: Sequence[int] = (0,)
) -> Callable[[Setting, float], Iterator[Row]]:
    """A test of images of the command line; what it took, in all, and without the first batch, which compiles."""

    def rows(setting: Setting, seconds: float) -> Iterator[Row]:
        images, folder = setting.size(count, 8), setting.folder / f"{config}{'_compiled' if compiled else ''}"
        options = {
            "trainer.accelerator": "gpu" if setting.device.type == "cuda" else "cpu",
            "trainer.enable_progress_bar": "false",
            "trainer.default_root_dir": str(folder),
            "model.init_args.figure": "null",
            "model.init_args.features": "null",
            "model.init_args.compiled": str(compiled).lower(),
            "data.init_args.seeds": str(list(seeds)),
            "data.init_args.limit": str(images),
            **(_rehearsed(config) if setting.small else {"data.init_args.batch_size": "1000"}),
        }
        start = time.perf_counter()
        with ended_after(seconds):
            run_task(["test", f"--config={config}", *(f"--{name}={value}" for name, value in options.items())])
        found = _rows_of(folder / "rows.jsonl")
        later = [row["seconds"] for row in found if row["batch"]]
        yield {
            "run": config,
            "compiled": compiled,
            "images": len(found),
            "complete": len(found) == images * len(seeds),
            "metrics": {name: of["mean"] for name, of in summarise(found).items()} if found else {},
            "evaluations": found[0]["energy_evaluations"] + found[0]["gradient_evaluations"] if found else None,
            "seconds": sum(row["seconds"] for row in found),
            "milliseconds_an_image": 1e3 * sum(later) / len(later) if later else None,
            "seconds_in_all": time.perf_counter() - start,
        }

    return rows


def _rehearsed(config: str) -> dict[str, str]:
    """Settings of a test that takes seconds on a CPU."""
    small = {
        "model.init_args.classifier": "small_cnn",
        "data.init_args.source": "tasks.images.mnist.BundledSample",
        "data.init_args.batch_size": "4",
    }
    if "tied" in config:
        inverter = "model.init_args.inverter.init_args"
        small |= {f"{inverter}.steps": "2", f"{inverter}.num_hypotheses": "2", f"{inverter}.pruning": "[]"}
    if "classifier" in config:
        small["model.init_args.energy.init_args.classifier"] = "small_cnn"
    elif "amortized" not in config:  # without a regulariser
        energy = {
            "class_path": "tasks.images.energies.VAEEnergy",
            "init_args": {"vae": "small_vae", "regulariser": None},
        }
        small["model.init_args.energy"] = json.dumps(energy)
    return small


def _rows_of(path: Path) -> list[Row]:
    """The rows that a test has written so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [row for row in map(decoded, lines) if row is not None and "metrics" in row]


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """End a test after the batch that it is in once the time is over, as SIGTERM does."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # one that comes late ends nothing
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)


def group_operations(setting: Setting, seconds: float) -> Iterator[Row]:
    """Operations on a million elements, eager and compiled, by the time of copying what they read and write."""
    budget, count = Budget(seconds), setting.size(1_000_000, 1000)
    rate = copying(setting.device, setting.size(1 << 28, 1 << 20))()
    for dtype in (torch.float32, torch.float64):
        for plain in (SO(3), SE(3), SL(2)):
            fast = compiled(plain)
            v, w = 0.3 * torch.randn(2, count, plain.dim, device=setting.device, dtype=dtype)
            inputs = {"exp": (v,), "log": (plain.exp(v),), "compose": (plain.exp(v), plain.exp(w))}
            inputs["inverse"] = inputs["log"]
            for operation, arguments in inputs.items():
                for library, group in (("trivgeo", plain), ("trivgeo compiled", fast)):
                    if budget.left() < 0:
                        yield {"complete": False, "reason": "no time left", "next": f"{plain!r} {operation} {dtype}"}
                        return
                    yield from _operation(group, operation, arguments, rate, library)
            yield {"group": repr(plain), "compiler": repr(fast.compiler)}


def _operation(
    group: LieGroup, operation: str, arguments: Sequence[Tensor], rate: float, library: str
) -> Iterator[Row]:
    """Forward, and forward with backward."""
    f, leaves = getattr(group, operation), [x.detach().clone().requires_grad_() for x in arguments]

    def forward() -> Tensor:
        with torch.no_grad():
            out: Tensor = f(*arguments)
        return out

    def backward() -> Any:
        return torch.autograd.grad(f(*leaves).sum(), leaves)

    device = arguments[0].device
    moved = sum(x.numel() * x.element_size() for x in (*arguments, forward()))
    for mode, call, passes in (("forward", forward, 1), ("forward+backward", backward, 2)):
        start = time.perf_counter()
        call()
        first = time.perf_counter() - start
        yield {
            "group": repr(group),
            "operation": operation,
            "dtype": str(arguments[0].dtype).removeprefix("torch."),
            "library": library,
            "mode": mode,
            "batch": len(arguments[0]),
            "seconds": median_seconds(call, device, 0.05),
            "floor_seconds": passes * moved / rate,
            "first_call_seconds": first,
        }


def warps(setting: Setting, seconds: float) -> Iterator[Row]:
    """Images of 40 x 40 pixels moved by 64 elements each, and the gradient by these."""
    count = setting.size(256, 2)
    x = torch.rand(count, 1, 1, 40, 40, device=setting.device)
    for group in (Affine(2), Projective(2)):
        action = ImageWarp(group)
        g = group.exp(0.1 * torch.randn(count, 64, group.dim, device=setting.device))
        warp = partial(action, x=x)
        gradient = torch.func.grad(lambda g, warp=warp: warp(g).square().sum())  # type: ignore[misc]
        with torch.no_grad():
            forward = median_seconds(partial(warp, g), setting.device)
        backward = median_seconds(partial(gradient, g), setting.device)
        images = 64 * count
        yield {
            "group": repr(group),
            "images_per_second": images / forward,
            "images_per_second_with_gradient": images / backward,
        }


def generative(setting: Setting, seconds: float) -> Iterator[Row]:
    """Milliseconds of a step of training and of sampling: those of a long run less those of a short one."""
    short, long = setting.size(20, 1), setting.size(220, 2)
    for group in (SO(3), SE(3)):
        for kind in ("diffusion", "momentum", "flow"):
            samples = group.exp(0.5 * torch.randn(setting.size(4096, 64), group.dim, device=setting.device))
            times = []
            for steps in (short, short, long):  # the first loads kernels
                model = GroupDiffusion(group, kind, width=setting.size(256, 8), depth=setting.size(3, 1))
                start = time.perf_counter()
                model.fit(samples, steps=steps, seconds=600.0, batch_size=setting.size(512, 16), progress=False)
                times.append(time.perf_counter() - start)
            start = time.perf_counter()
            drawn = model.sample(setting.size(10_000, 8), generator=torch.Generator(setting.device).manual_seed(0))
            yield {
                "group": repr(group),
                "kind": kind,
                "milliseconds_a_step": 1e3 * (times[2] - times[1]) / (long - short),
                "finite": float(torch.isfinite(drawn.flatten(1)).all(-1).double().mean()),
                "samples": len(drawn),
                "seconds_of_sampling": time.perf_counter() - start,
            }


def fields(setting: Setting, seconds: float) -> Iterator[Row]:
    """Inversion of moved fields of Burgers' equation, and steps of a Fourier neural operator on them."""
    problem, count = burgers(), setting.size(128, 4)
    clean = problem.solutions(count, 0, [0.0])
    moved = problem.action(problem.draw(count, torch.Generator().manual_seed(1)), clean)
    clean, moved = (_on(setting.device, field) for field in (clean, moved))
    schedule = GeometricSchedule(0.05, 1.0)
    steps, chains = setting.size(50, 2), setting.size(16, 2)
    search = ReverseDiffusionSearch(
        problem.action, problem.energy(clean), schedule, steps, num_hypotheses=chains, keep_best=True
    )
    inverter = search.replace(progress=False).to(setting.device)
    if not setting.small:
        inverter(moved, generator=torch.Generator(setting.device).manual_seed(0))
    start = time.perf_counter()
    result = inverter(moved, generator=torch.Generator(setting.device).manual_seed(0))
    found = float(result.has_usable.double().mean())
    yield {"what": "TIED", "fields": count, "found": found, "seconds": time.perf_counter() - start}
    network = SmallFNO([12]).to(setting.device)
    u = torch.randn(setting.size(4096, 2), 2, problem.points, device=setting.device)
    optimiser = torch.optim.Adam(network.parameters())

    def step() -> None:
        optimiser.zero_grad()
        network(u).square().mean().backward()
        optimiser.step()

    yield {"what": "training step of the operator", "fields": len(u), "seconds": median_seconds(step, setting.device)}


def _on(device: torch.device, field: Any) -> Any:
    """A field on a device."""
    return pytree.tree_map(lambda x: x.to(device), field)


def tests(setting: Setting, seconds: float) -> Iterator[Row]:
    """The tests that want a card, of the files that have some; in a rehearsal they are collected alone."""
    marked = [path for path in sorted((ROOT / "tests").rglob("*.py")) if "mark.cuda" in path.read_text()]
    files = [str(path.parent if path.stem == "conftest" else path) for path in marked]  # one marks those of its folder
    if not files:
        yield {"status": None, "output": "no test has the mark cuda"}
        return
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", *files]
    command += ["--collect-only"] * setting.small
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        yield {"complete": False, "reason": "no time left", "output": printed.decode(errors="replace")[-4000:]}
        return
    yield {"status": done.returncode, "output": done.stdout[-4000:]}


SECTIONS: Mapping[str, Section] = {
    "networks": Section(180.0, networks),
    "floors": Section(5.0, floors),
    "warps": Section(10.0, warps),
    "tied-affnist-classifier": Section(90.0, inversion("affnist/tied_classifier", compiled=True)),
    "tied-published-affnist-classifier": Section(
        60.0, inversion("affnist/tied_published_classifier", 2_000, compiled=True)
    ),
    "tied-affnist-classifier-eager": Section(20.0, inversion("affnist/tied_classifier", 2_000)),
    "tied-affnist-vae": Section(60.0, inversion("affnist/tied_vae", compiled=True)),
    "groups": Section(80.0, group_operations),
    "tied-homnist-classifier": Section(80.0, inversion("homnist/tied_classifier", compiled=True)),
    "tests": Section(90.0, tests),
    "tied-homnist-vae": Section(60.0, inversion("homnist/tied_vae", compiled=True)),
    "fields": Section(30.0, fields),
    "generative": Section(40.0, generative),
    "learned-affnist": Section(20.0, inversion("affnist/amortized")),
    "learned-homnist": Section(40.0, inversion("homnist/amortized")),
}


def _evaluations() -> dict[str, int]:
    """Evaluations of the energy, with and without gradient, for an image in every cell of the table of images."""
    found = {"affnist/its_vae": 353, "affnist/its_classifier": 794}
    for folder in ("affnist", "homnist"):
        for energy in ("vae", "classifier"):
            suffix = "" if energy == "vae" else "_classifier"
            found |= {
                f"{folder}/focal_{energy}": 10,
                f"{folder}/lielac_{energy}": 6_464,
                f"{folder}/langevin_{energy}": 6_408,
                f"{folder}/tied_published{suffix}": 6_432 if energy == "vae" else 6_464,
                f"{folder}/tied_{energy}": 1_883 if energy == "vae" else 1_263,
            }
    return found


_SECONDS_AN_EVALUATION = {"vae": 1.35e-6, "classifier": 2.45e-6}  # compiled, in batches of 1,000 images on an H100
_SECONDS_OF_FOCAL = 0.012  # an image: the optimisation of a Gaussian process in batches, on a CPU
_PAPER_SEEDS = range(5)
_ROOM = 1.5  # of the limit of a section over its estimate


def estimate(config: str) -> float:
    """Seconds that five seeds of 10,000 images may take on an H100."""
    energy = "classifier" if config.endswith("classifier") else "vae"
    own = _SECONDS_OF_FOCAL if "focal" in config else 0.0
    return len(_PAPER_SEEDS) * 10_000 * (_evaluations()[config] * _SECONDS_AN_EVALUATION[energy] + own)


PAPER: Mapping[str, Section] = {
    f"paper-{config.replace('/', '-')}": Section(
        _ROOM * estimate(config), inversion(config, compiled="focal" not in config, seeds=_PAPER_SEEDS)
    )
    for config in sorted(_evaluations(), key=estimate)
}
"""Every cell of the table of images with searches, the cheapest first."""


def measure(names: Sequence[str], setting: Setting, path: Path, seconds: float) -> list[str]:
    """Run sections that are not complete in the file yet; the names of those that failed.

    Args:
        names: of sections.
        setting: where and how much.
        path: the file, written after each row.
        seconds: that all may take; a section is begun with what is left.
    """
    budget, failed = Budget(seconds), []
    document = json.loads(path.read_text()) if path.exists() else {"sections": {}}
    document["environment"] = environment(setting.device) | {"cuda": torch.version.cuda}
    for name in names:
        section, earlier = {**SECTIONS, **PAPER}[name], document["sections"].get(name, {})
        if earlier.get("complete") or budget.left() < 1.0:
            print(f"{name}: {'complete' if earlier.get('complete') else 'no time left'}", flush=True)
            continue
        entry: dict[str, Any] = {"rows": [], "complete": False}
        document["sections"][name] = entry
        start = time.perf_counter()
        try:
            for row in section.rows(setting, min(section.seconds, budget.left())):
                entry["rows"].append(row)
                entry["seconds"] = time.perf_counter() - start
                _write(path, document)
                print(f"{name}: {json.dumps(row)[:300]}", flush=True)
        except Exception:  # the other sections go on; the error is in the results, and in the status
            entry["error"] = traceback.format_exc()
            failed.append(name)
            print(f"{name}: {entry['error']}", flush=True)
        entry["complete"] = "error" not in entry and all(row.get("complete", True) for row in entry["rows"])
        entry["seconds"] = time.perf_counter() - start
        _write(path, document)
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()
    return failed


def keep(target: Path = KEPT / "gpu") -> list[Path]:
    """Write a summary of each test of images in the files of results, as `tasks.report.keep` does of a run.

    Args:
        target: folder of the summaries.
    """
    paths = []
    for document in (json.loads(path.read_text()) for path in sorted(RESULTS.glob("gpu-*.json"))):
        device = document["environment"]["device_name"]
        (card,) = re.findall(r"\b[A-Z]\d+\b", device)
        for name, section in document["sections"].items():
            rows = [_of_released_code(section["rows"])] if name == "published" else section["rows"]
            for row in (row for row in rows if "run" in row and row["images"]):
                took = row["milliseconds_an_image"]
                summary = {
                    "metrics": {x: {"mean": mean, "std": 0.0} for x, mean in row["metrics"].items()},
                    "complete": row["complete"],
                    "cases": row["images"],
                    **({} if took is None else {"seconds_a_case": 1e-3 * took}),
                    "evaluations_a_case": row["evaluations"],
                    "device": "cuda",
                    "device_name": device,
                    "versions": document["environment"]["versions"],
                    "config": {"data": {"init_args": {"seeds": [0]}}},
                }
                how = "_compiled" if row["compiled"] else ""
                paths.append(target / f"{row['run'].replace('/', '_')}{how}_{card.lower()}.json")
                write_whole(paths[-1], json.dumps(summary, indent=1) + "\n")
    return paths


def _of_released_code(batches: Sequence[Row]) -> Row:
    """One row of the batches of a test by the released code of Kim et al. (2026)."""
    images, correct, seconds = (sum(row[name] for row in batches) for name in ("images", "correct", "seconds"))
    return {
        "run": "affnist/released_code_classifier",
        "compiled": False,
        "images": images,
        "complete": True,
        "metrics": {"accuracy with inversion": correct / images},
        "evaluations": batches[0]["evaluations"],
        "milliseconds_an_image": 1e3 * seconds / images,
    }


def _write(path: Path, document: Mapping[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    part.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and measure; the status is the number of sections that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--checkpoints", help=f"folder of trained networks (default: {FOLDER_VARIABLE})")
    parser.add_argument("--mnist", help=f"folder of the four files of MNIST (default: {ROOT_VARIABLE})")
    known = [*SECTIONS, *PAPER]
    parser.add_argument("--sections", nargs="*", choices=known, metavar="SECTION")
    parser.add_argument("--paper", action="store_true", help="the tables of images at full size, five seeds")
    parser.add_argument("--keep", action="store_true", help="keep the tests of images that are done, and end")
    parser.add_argument("--estimate", action="store_true", help="print what each section may take, and end")
    parser.add_argument("--seconds", type=float, default=420.0, help="that all may take")
    parser.add_argument("--output", type=Path, help="JSON file")
    parser.add_argument("--runs", type=Path, default=Path("runs/gpu"), help="folder of the tests of images")
    parser.add_argument("--small", action="store_true", help="a rehearsal, on any device")
    options = parser.parse_args(arguments)
    names = options.sections or list(PAPER if options.paper else SECTIONS)
    if options.keep:
        print("\n".join(f"kept {path}" for path in keep()))
        return 0
    if options.estimate:
        for name in names:
            taken = PAPER[name].seconds / _ROOM if name in PAPER else SECTIONS[name].seconds
            print(f"{name}: {taken:,.0f} s")
        return 0
    for variable, folder in ((FOLDER_VARIABLE, options.checkpoints), (ROOT_VARIABLE, options.mnist)):
        if folder is not None:
            os.environ[variable] = str(folder)
    setting = Setting(torch.device(options.device), options.runs, options.small)
    name = environment(setting.device)["device_name"]
    path = options.output or RESULTS / f"gpu-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return len(measure(names, setting, path, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
