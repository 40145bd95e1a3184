"""Hostile calls of everything public: arguments are right ones, chosen by name and annotation, some made wrong.

What a call may do is return, or raise a type of `trivgeo.errors`, or a built-in error that its docstring announces.
"""

from __future__ import annotations

import importlib
import inspect
import random
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trivgeo.actions import Grid, ImageWarp
from trivgeo.errors import TrivgeoError
from trivgeo.groups import SE, SO, Action, Affine, LieGroup, Translation
from trivgeo.inversion import InverseProblem, RandomSearch, ReverseDiffusionSearch
from trivgeo.sde import GeometricSchedule, NoiseKernel, TrivializedSDE

PACKAGES = (
    *(
        "groups",
        "groups.harmonic",
        "groups.rotations",
        "actions",
        "pde",
        "inversion",
        "symmetry",
        "geoopt",
        "checks",
        "expressions",
    ),
    *("sde", "sde.noise", "sde.scores", "sde.processes", "sde.solvers", "sde.likelihood", "sde.resampling"),
    *("generative", "generative.paths", "generative.distributions"),
    *("inversion.stages", "inversion.energies", "inversion.learned", "features", "registration"),
)
# what trains, or takes seconds whatever it is given
SLOW = (
    "fit",
    "distil",
    "for_data",
    "check_energy",
    "compiled",
    "find_symmetries",
    "special_values",
    "symmetry_dimension",
    "solve_adaptive",
    "evaluate",  # a hook of scores of features, which are checked before
    "check_arguments",  # whose arguments are names in the source of the library
)

RARE = ("groups.BurgersSymmetry", "groups.HeatSymmetry", "inversion.calibrated_scale")  # a second each

GROUP, SCHEDULE = SE(2), GeometricSchedule(0.1, 0.5)
ACTION, POINTS = GROUP.action(), torch.rand(3, 4, 2)


def energy(x: Tensor) -> Tensor:
    return x.square().sum((-2, -1))


def score(g: Tensor, t: float) -> Tensor:
    return torch.zeros(*GROUP.batch_shape(g), GROUP.dim)


BY_NAME: dict[str, list[Any]] = {
    "group": [GROUP, SO(3), Translation(2)],
    "action": [ACTION, ImageWarp(Affine(2))],
    "energy": [energy],
    "schedule": [SCHEDULE],
    "generator": [None, torch.Generator().manual_seed(0)],
    "x": [POINTS, torch.rand(2, 1, 6, 6)],
    "x_tilde": [POINTS],
    "clean": [POINTS],
    "g": [GROUP.identity(3), SO(3).identity(3)],
    "h": [GROUP.identity(3)],
    "elements": [GROUP.identity(3)],
    "initial": [None, GROUP.identity(3), GROUP.identity(3, 2)],
    "v": [torch.zeros(3, 3)],
    "t": [0.5, 1.0],
    "times": [[0.0, 0.5, 1.0], [1.0, 0.0]],
    "sde": [TrivializedSDE(GROUP, SCHEDULE)],
    "score": [score],
    "network": [nn.Linear(2, 2)],
    "inverter": [ReverseDiffusionSearch(ACTION, energy, steps=2, num_hypotheses=2), RandomSearch(ACTION, energy, 3, 1)],
    "posterior": [InverseProblem(ACTION, energy).given(POINTS)],
    "stages": [[], [lambda posterior, population, generator: population]],
    "kernel": [NoiseKernel(GROUP, SCHEDULE, 2)],
    "batch": [2, 3],
    "dtype": [None, torch.float64],
    "device": [None, "cpu"],
    "scale": [None, 0.5],
    "transformations": [lambda count, generator: GROUP.random(count, generator=generator)],
    "grid": [Grid(torch.zeros(3, 1, 1), torch.full((3, 1, 1, 1), 0.1)), [0.0, 0.5, 1.0]],
}
BY_ANNOTATION: dict[str, list[Any]] = {
    "Callable": [energy, lambda *arguments: arguments[0]],
    "Sequence[int]": [[1, 2]],
    "Sequence": [[0.25, 0.5], ["x", "u"]],
    "Tensor": [torch.rand(3, 3), torch.rand(3), torch.rand(2, 3, 3)],
    "LieGroup": [GROUP],
    "bool": [True, False],
    "int": [2, 3],
    "float": [0.5, 1.0],
    "str": ["x", "u_t = u_xx"],
}


def right(name: str, annotation: str) -> list[Any]:
    """Values that are right for most arguments of this name and annotation."""
    if name in BY_NAME:
        return BY_NAME[name]
    return next((values for kind, values in BY_ANNOTATION.items() if kind in annotation), [None, 0.5, POINTS])


WRONG: list[Any] = [
    *(None, "a", "", b"a", "../x", True, 0, -1, -7, 1.5, -0.5, float("nan"), float("inf"), 1j),
    *([], {}, set(), object(), [[]], [1.0, [2.0]], ["a"], [None], (1, "a"), {"a": 1}, print, LieGroup, type),
    *(np.array(["a"]), np.array([None]), np.zeros((2, 5)), np.zeros(3, dtype=int), lambda: None),
    *(lambda *arguments: None, lambda *arguments: "a", lambda *arguments: torch.zeros(7, 5)),
    *(torch.zeros(()), torch.zeros(0), torch.zeros(2, 5), torch.zeros(1, 1, 1, 1, 1), torch.full((3, 3), torch.nan)),
    *(torch.zeros(3, 3).long(), torch.zeros(3, 3).bool(), torch.zeros(3, 3) * 1j, torch.zeros(3, 3, device="meta")),
    *(GROUP.identity(3).mT, GROUP.identity(5), SO(2), SCHEDULE, ACTION, torch.float16, torch.int64, "cuda:99"),
]


# what a function or network that was handed over says when it is called in another way than it can be
FOREIGN = re.compile(
    r"positional argument|unexpected keyword|required argument|not on the expected device|meta tensor|instantiate"
    r"|type\(\) takes|mat1 and mat2"
)


def wrong(draw: random.Random) -> Any:
    """Something that few arguments may be."""
    return draw.choice(WRONG)


@dataclass(frozen=True)
class Target:
    """Something to call: a class, a function, or a method of an example."""

    name: str
    call: Callable[..., Any]
    documentation: str

    @property
    def announced(self) -> set[str]:
        """The errors that it says it raises."""
        return set(re.findall(r"^\s+(\w+(?:Error|Exception))\b.*:", self.documentation, re.MULTILINE))


def targets() -> Iterator[Target]:
    """Every public callable of the library that takes arguments."""
    seen = set()
    for package in PACKAGES:
        module = importlib.import_module(f"trivgeo.{package}")
        for name in module.__all__:
            thing = getattr(module, name)
            if id(thing) in seen or not callable(thing) or (inspect.isclass(thing) and issubclass(thing, Exception)):
                continue
            seen.add(id(thing))
            if name not in SLOW and not inspect.isabstract(thing):
                yield Target(f"{package}.{name}", thing, _documentation(thing))


def _documentation(thing: Any) -> str:
    return "\n".join(filter(None, (inspect.getdoc(thing), inspect.getdoc(getattr(thing, "__init__", None)))))


def methods(target: Target, thing: Any) -> Iterator[Target]:
    """The public methods of an object that a target has made."""
    kind = type(thing)
    part_of_group = kind.__module__.startswith("trivgeo.groups") and not isinstance(thing, LieGroup | Action)
    record = isinstance(thing, tuple) or (is_dataclass(thing) and "__post_init__" not in dir(kind))
    if not kind.__module__.startswith("trivgeo") or kind.__name__.startswith("_") or part_of_group or record:
        return  # records hold what they are given, and parts of groups take what was checked
    for name in dir(kind):
        function = inspect.getattr_static(kind, name)
        owner = getattr(function, "__module__", "") or ""
        public = name == "__call__" or (not name.startswith("_") and name != "batch_shape")  # of what was checked
        if inspect.isfunction(function) and owner.startswith("trivgeo") and name not in SLOW and public:
            yield Target(f"{target.name}().{name}", getattr(thing, name), _documentation(function))


def arguments(target: Target, draw: random.Random, share: float) -> tuple[list[Any], dict[str, Any]] | None:
    """Arguments of which so many are wrong; ``None`` if it takes none."""
    try:
        parameters = list(inspect.signature(target.call).parameters.values())
    except ValueError:
        return None
    positional: list[Any] = []
    named: dict[str, Any] = {}
    chosen = [p for p in parameters if p.default is p.empty or draw.random() < 0.5]
    if not parameters:
        return None
    for p in chosen:
        good = draw.choice(right(p.name, str(p.annotation)))
        value = wrong(draw) if draw.random() < share else good
        if p.kind is p.VAR_POSITIONAL:
            positional += [value] * draw.randrange(3)
        elif p.kind is p.VAR_KEYWORD:
            continue
        elif p.kind is p.POSITIONAL_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and not named and p.default is p.empty):
            positional.append(value)
        else:
            named[p.name] = value
    return positional, named


@dataclass(frozen=True)
class Finding:
    """A call that raised what it must not."""

    target: str
    arguments: str
    error: str


def attack(calls: int, seed: int) -> tuple[int, list[Finding]]:
    """Call everything in turn; how many calls were made, and what was found."""
    draw = random.Random(seed)
    everything = list(targets())
    pool: dict[str, list[Target]] = {t.name: [] for t in everything}
    findings, made = [], 0
    while made < calls:
        for target in everything:
            subject = target
            if target.name in RARE and draw.random() < 0.95:
                continue
            if pool[target.name] and draw.random() < 0.7:
                subject = draw.choice(pool[target.name])
            given = arguments(subject, draw, draw.choice([0.0, 0.2, 0.5]) if subject is target else 0.4)
            if given is None:
                continue
            made += 1
            result, error = outcome(subject, *given)
            if error is not None:
                findings.append(Finding(subject.name, f"{given[0]!r}, {given[1]!r}"[:300], error))
            if subject is target and result is not None and len(pool[target.name]) < 400:
                pool[target.name] += methods(target, result)
    return made, findings


def outcome(target: Target, positional: list[Any], named: dict[str, Any]) -> tuple[Any, str | None]:
    """What a call returns, and an error that it must not raise."""
    try:
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            return target.call(*positional, **named), None
    except TrivgeoError:
        return None, None
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        foreign = place.filename == __file__ and "target.call" not in (place.line or "")
        # as `except` would have it: numpy's error of a ufunc is a TypeError
        kinds = {kind.__name__ for kind in type(error).__mro__ if kind is not Exception}
        if foreign or FOREIGN.search(str(error)) or kinds & target.announced:
            return None, None
        where = f"{'/'.join(Path(place.filename).parts[-3:])}:{place.lineno}"
        return None, f"{type(error).__name__}: {str(error)[:160]} [{where}]"
