"""Symmetries from solutions: how often the dimension is right, and whether a false symmetry is ever called certain.

``python -m benchmarks.symmetries_from_data`` writes ``results/symmetries-from-data-cpu.json`` beside it. Solutions are
made here, without the library. *published*: the six sets of LieNLSD (Hu, Li and Lin 2025) by their recipe, ten
solutions by differences of second order, with 0, 1 and 2 % of noise. *bare*: forces and coefficients that leave no
symmetry. *placed*: coefficients that depend on place or time. *coarse*: few points, few solutions, or noise.
*measured*: parts of a domain, single precision, schemes of other kinds, any scale.

An answer is *certain* if its verdict is trusted. It is *false* if it is certain and has a generator that the true
equation has not, or calls a wrong dimension all. The rival for the equation is PySINDy's weak form with polynomials
times derivatives (``--pysindy FOLDER`` names where it is installed), for one unknown on a line.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

RESULTS = Path(__file__).parent / "results" / "symmetries-from-data-cpu.json"
F64 = torch.float64
LENGTH, POINTS = 12.0, 64
Data = tuple[Tensor, tuple[Tensor, ...]]


def slope(u: Tensor, order: int = 1, length: float = LENGTH) -> Tensor:
    """A derivative of interpolating waves along the last axis."""
    n = u.shape[-1]
    factor = (2j * math.pi / length * torch.arange(n // 2 + 1, dtype=F64)) ** order
    if order % 2 and n % 2 == 0:
        factor[-1] = 0
    return torch.fft.irfft(torch.fft.rfft(u) * factor, n)


def waves(number: int, modes: int, size: float, seed: int, points: int = POINTS, mean: float = 0.0) -> Tensor:
    """Sums of waves ``[number, points]`` about a mean."""
    draw = torch.Generator().manual_seed(seed)
    angle = torch.arange(1, modes + 1, dtype=F64)[:, None] * 2 * math.pi * torch.arange(points, dtype=F64) / points
    parts = size * torch.randn(number, 2, modes, generator=draw, dtype=F64)
    offset = mean + size * torch.randn(number, 1, generator=draw, dtype=F64)
    return offset + parts[:, 0] @ torch.cos(angle) + parts[:, 1] @ torch.sin(angle)


def solved(rate: Callable[[float, Tensor], Tensor], u: Tensor, times: Tensor, step: float) -> Tensor:
    """Solutions by Runge-Kutta steps, time second."""
    found, t = [u], float(times[0])
    for last in times[1:].tolist():
        stages = max(1, math.ceil((last - t) / step - 1e-9))
        h = (last - t) / stages
        for _ in range(stages):
            a = rate(t, u)
            b = rate(t + h / 2, u + h / 2 * a)
            c = rate(t + h / 2, u + h / 2 * b)
            u = u + h / 6 * (a + 2 * b + 2 * c + rate(t + h, u + h * c))
            t += h
        found.append(u)
    return torch.stack(found, 1)


def noisy(u: Tensor, share: float, seed: int = 5) -> Tensor:
    """Noise relative to the standard deviation of the values."""
    draw = torch.Generator().manual_seed(seed)
    return u + share * u.std() * torch.randn(u.shape, generator=draw, dtype=u.dtype)


def published(name: str, noise: float, number: int = 10) -> Data:
    """Ten solutions of a public benchmark: 100 points an axis, 1,000 times in line and 100 of them in the plane."""
    draw = torch.Generator().manual_seed(0)
    length, n, dt = 20.0, 100, 0.002
    x = torch.linspace(-length / 2, length / 2, n + 1, dtype=F64)[:n]
    h = length / (n + 1)  # the step of the public solver, a little shorter than that of the grid

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=F64)

    def first(u: Tensor) -> Tensor:
        return (u.roll(-1, -1) - u.roll(1, -1)) / (2 * h)

    def second(u: Tensor, axis: int = -1) -> Tensor:
        return (u.roll(-1, axis) - 2 * u + u.roll(1, axis)) / h**2

    def third(u: Tensor) -> Tensor:
        return (u.roll(-2, -1) - 2 * u.roll(-1, -1) + 2 * u.roll(1, -1) - u.roll(2, -1)) / (2 * h**3)

    def laplacian(u: Tensor) -> Tensor:
        return second(u, -1) + second(u, -2)

    def reaction(_: float, z: Tensor) -> Tensor:
        u, v = z[:, 0], z[:, 1]
        s = u * u + v * v
        return torch.stack([(1 - s) * u + s * v + 0.1 * laplacian(u), -s * u + (1 - s) * v + 0.1 * laplacian(v)], 1)

    def schroedinger(_: float, z: Tensor) -> Tensor:
        u, v = z[:, 0], z[:, 1]
        s = u * u + v * v
        return torch.stack([-0.5 * laplacian(v) + s * v, 0.5 * laplacian(u) - s * u], 1)

    rates: dict[str, tuple[Callable[[float, Tensor], Tensor], int]] = {
        "heat": (lambda _, u: second(u), 10),
        "potential Burgers": (lambda _, u: second(u) + first(u) ** 2, 10),
        "Korteweg-de Vries": (lambda _, u: -third(u) - u * first(u), 5),
        "reaction-diffusion": (reaction, 2),
        "cubic Schroedinger": (schroedinger, 2),
        "wave in the plane": (lambda _, z: torch.stack([z[:, 1], laplacian(z[:, 0])], 1), 3),
    }
    rate, modes = rates[name]
    k = 2 * math.pi / length * torch.arange(1, modes + 1, dtype=F64)[:, None]
    basis = torch.cat([torch.cos(k * x), torch.sin(k * x)])
    in_line = name in ("heat", "potential Burgers", "Korteweg-de Vries")
    if in_line:
        times = dt * torch.arange(1000, dtype=F64)
        u = solved(rate, normal(number, 1) / 2 + normal(number, 2 * modes) @ basis, times, dt)
        return noisy(u, noise), (x, times)
    times = dt * torch.arange(0, 1000, 10, dtype=F64)
    start = normal(number, 2, 1, 1) / 4 + torch.einsum(
        "bcij,ix,jy->bcxy", normal(number, 2, 2 * modes, 2 * modes), basis, basis
    )
    u = solved(rate, start, times, dt).transpose(1, 2)  # [b, c, s, x, y]
    return noisy(u[:, :1] if name == "wave in the plane" else u, noise), (x, x, times)


class System(NamedTuple):
    """Solutions of a known equation.

    Attributes:
        kind: see the head of this file.
        name: the equation.
        make: solutions and coordinates.
        dimension: of its symmetry algebra beside superposition.
        terms: the true terms, for the rival; none where the rival has no such terms.
    """

    kind: str
    name: str
    make: Callable[[], Data]
    dimension: int
    terms: tuple[str, ...] = ()


def line(
    rate: Callable[[float, Tensor], Tensor],
    size: float = 0.4,
    number: int = 12,
    modes: int = 5,
    last: float = 1.5,
    times: int = 37,
    points: int = POINTS,
    every: int = 1,
    step: float = 2.5e-3,
    mean: float = 0.0,
    noise: float = 0.0,
    part: float = 1.0,
    dtype: torch.dtype = F64,
) -> Data:
    """Solutions on a periodic line; of ``points`` points each ``every``-th is kept, of these a first part."""
    x, t = LENGTH * torch.arange(points, dtype=F64) / points, torch.linspace(0, last, times, dtype=F64)
    u = noisy(solved(rate, waves(number, modes, size, 3, points, mean), t, step)[..., ::every], noise)
    kept = math.ceil(part * u.shape[-1])
    return u[..., :kept].to(dtype), (x[::every][:kept], t)


def systems() -> Iterator[System]:
    """All systems."""
    sets = {"heat": 6, "potential Burgers": 6, "Korteweg-de Vries": 4}
    sets |= {"reaction-diffusion": 5, "cubic Schroedinger": 9, "wave in the plane": 11}
    for name, dimension in sets.items():
        for noise in (0.0, 0.01, 0.02):
            said = f"{name}, {noise:.0%} noise"
            yield System("published", said, lambda n=name, s=noise: published(n, s), dimension)  # type: ignore[misc]

    d, x = slope, LENGTH * torch.arange(POINTS, dtype=F64) / POINTS
    k = 2 * math.pi / LENGTH
    sx, cx, sx2, cx2 = torch.sin(k * x), torch.cos(k * x), torch.sin(2 * k * x), torch.cos(2 * k * x)

    sin, cos = math.sin, math.cos

    def wave(phase: float) -> Tensor:
        return torch.sin(k * x + phase)

    def add(kind: str, name: str, dimension: int, rate: Callable[[float, Tensor], Tensor], **settings: Any) -> System:
        return System(kind, name, lambda: line(rate, **settings), dimension)

    bare: list[tuple[str, Callable[[float, Tensor], Tensor]]] = [
        ("Burgers, force sin(x - t)", lambda t, u: 0.2 * d(u, 2) - d(u * u) / 2 + 0.3 * wave(-t)),
        ("Burgers, force sin x cos 3t", lambda t, u: 0.2 * d(u, 2) - d(u * u) / 2 + 0.3 * sx * cos(3 * t)),
        ("Allen-Cahn, force in x and rate in t", lambda t, u: 0.1 * d(u, 2) + (1 + sin(2 * t) / 2) * u - u**3 + cx / 5),
        ("Burgers, viscosity in x, force in t", lambda t, u: d((0.2 + 0.08 * sx) * d(u)) - u * d(u) + 0.3 * sin(3 * t)),
        ("Fisher, capacity in x and t", lambda t, u: 0.1 * d(u, 2) + u - (1 + 0.3 * sx * cos(2 * t)) * u**2),
        ("heat, source in x and t, u^2", lambda t, u: 0.2 * d(u, 2) - 0.3 * u**2 + 0.2 * wave(2 * t)),
        ("advection in x, force in t", lambda t, u: d(u, 2) / 10 - (1 + cx / 2) * d(u) - u**3 / 4 + cos(4 * t) / 3),
        ("KdV, depth in x, pumped", lambda t, u: -d(u, 3) / 10 - (1 + sx / 3) * u * d(u) + sin(3 * t) / 3),
        ("u^2 u_x, force sin 2x cos t", lambda t, u: 0.2 * d(u, 2) - d(u**3) / 3 + 0.2 * sx2 * cos(t)),
        ("bistable, threshold in x and t", lambda t, u: 0.1 * d(u, 2) + u * (1 - u) * (u - 0.3 - wave(-t) / 5)),
    ]  # fmt: skip
    yield from (add("bare", name, 0, rate, size=0.1, mean=1.2) for name, rate in bare)

    placed: list[tuple[str, int, Callable[[float, Tensor], Tensor]]] = [
        ("u_t = a(x) u_xx, 5 %", 2, lambda t, u: 0.5 * (1 + 0.05 * sx) * d(u, 2)),
        ("u_t = a(x) u_xx, 30 %", 2, lambda t, u: 0.5 * (1 + 0.3 * sx) * d(u, 2)),
        ("u_t = (a(x) u_x)_x", 2, lambda t, u: d(0.3 * (1 + 0.3 * cx2) * d(u))),
        ("Burgers, force .01 sin x", 1, lambda t, u: 0.2 * d(u, 2) - d(u * u) / 2 + 0.01 * sx),
        ("Allen-Cahn, rate in x", 1, lambda t, u: 0.1 * d(u, 2) + (1 + 0.3 * sx) * u - u**3),
        ("Korteweg-de Vries, depth in x", 1, lambda t, u: -0.1 * d(u, 3) - (1 + 0.2 * sx) * d(u * u) / 2),
        ("Fisher, rate in t", 1, lambda t, u: 0.1 * d(u, 2) + (1 + 0.4 * sin(4 * t)) * u - u**2),
        ("Allen-Cahn, rate in t", 1, lambda t, u: 0.1 * d(u, 2) + (1 + 0.4 * sin(4 * t)) * u - u**3),
        ("u_t = u_xx / 5 - u^2 + f(t)", 1, lambda t, u: 0.2 * d(u, 2) - 0.3 * u**2 + 0.3 * sin(3 * t)),
        ("u_t = .5 (1 + .3 sin 3t) u_xx", 6, lambda t, u: 0.5 * (1 + 0.3 * sin(3 * t)) * d(u, 2)),
    ]  # fmt: skip
    yield from (add("placed", name, size, rate, size=0.1, mean=1.2) for name, size, rate in placed)

    def burgers(t: float, u: Tensor) -> Tensor:
        return 0.2 * d(u, 2) - d(u * u) / 2

    def kdv(t: float, u: Tensor) -> Tensor:
        return -0.1 * d(u, 3) - d(u * u) / 2

    def allen(t: float, u: Tensor) -> Tensor:
        return 0.1 * d(u, 2) + u - u**3

    def heat(t: float, u: Tensor) -> Tensor:
        return 0.2 * d(u, 2)

    yield add("coarse", "Korteweg-de Vries on 24 points", 4, kdv, points=96, every=4, modes=4, step=4e-4)
    yield add(
        "coarse",
        "Burgers with fronts on 32 points",
        5,
        lambda t, u: 0.05 * d(u, 2) - d(u * u) / 2,
        points=256,
        every=8,
        modes=3,
        number=8,
    )
    yield add("coarse", "Burgers on 16 points", 5, burgers, points=64, every=4, modes=2, size=0.3)
    yield add("coarse", "heat, 12 times", 6, heat, times=12)
    yield add("coarse", "Burgers, three solutions", 5, burgers, number=3, size=0.25)
    yield add("coarse", "Burgers, 3 % noise", 5, burgers, noise=0.03, number=40, size=0.25)
    yield add("coarse", "Korteweg-de Vries, 5 % noise", 4, kdv, noise=0.05, number=40, size=0.25)
    yield add("coarse", "Allen-Cahn, 5 % noise", 2, allen, noise=0.05, number=40)
    yield add("coarse", "heat, 10 % noise", 6, heat, noise=0.1, number=40)
    yield add("coarse", "u^2 u_x, 2 % noise", 3, lambda t, u: 0.1 * d(u, 2) - d(u**3) / 3, noise=0.02, number=40)

    yield add("measured", "Burgers on six tenths of the period", 5, burgers, part=0.6, points=128, size=0.25, number=20)
    yield add("measured", "heat on half of the period, 1 % noise", 6, heat, part=0.5, points=128, number=40, noise=0.01)
    yield add("measured", "Burgers in single precision", 5, burgers, dtype=torch.float32, size=0.25)
    yield add("measured", "Allen-Cahn in single precision, 1 % noise", 2, allen, dtype=torch.float32, noise=0.01)
    yield System("measured", "porous medium, own fluxes", lambda: porous(1, 0.0), 4)
    yield System("measured", "porous medium, a finer solver", lambda: porous(4, 0.0), 4)
    yield System("measured", "porous medium, 1 % noise", lambda: porous(1, 0.01), 4)
    yield add("measured", "viscosity of air", 6, lambda t, u: 1.5e-5 * d(u, 2), last=6e4, step=500.0)
    yield add("measured", "u^4 u_x", 3, lambda t, u: 0.1 * d(u, 2) - d(u**5) / 5, size=0.25)
    yield add(
        "measured", "Kuramoto-Sivashinsky", 3, lambda t, u: -0.3 * d(u, 2) - 0.1 * d(u, 4) - d(u * u) / 2, step=2.5e-4
    )


def porous(finer: int, noise: float) -> Data:
    """Solutions of u_t = (u^2 u_x)_x by fluxes between points."""
    h = LENGTH / POINTS / finer

    def rate(_: float, u: Tensor) -> Tensor:
        flux = (u * u + u.roll(-1, -1) ** 2) / 2 * (u.roll(-1, -1) - u) / h
        return (flux - flux.roll(1, -1)) / h

    t = torch.linspace(0, 0.5, 101, dtype=F64)
    u = solved(rate, waves(12, 3, 0.15, 2, POINTS * finer, 1.0), t, 0.2 * h * h)[..., ::finer]
    return noisy(u, noise), (LENGTH * torch.arange(POINTS, dtype=F64) / POINTS, t)


def judged(system: System) -> dict[str, Any]:
    """The row of a system."""
    from trivgeo.errors import TrivgeoError
    from trivgeo.symmetry import symmetries_from_data

    values, axes = system.make()
    before = time.process_time()
    row: dict[str, Any] = {"kind": system.kind, "name": system.name, "true": system.dimension}
    try:
        found = symmetries_from_data(values, axes)
    except TrivgeoError as error:
        row |= {"answer": "refused", "said": str(error)}
    else:
        certain, right = found.verdict.trusted, found.dimension == system.dimension
        answer = "right" if right and certain else "false" if certain else "uncertain, right" if right else "uncertain"
        equations = [e.text for e in found.equations]
        row |= {"answer": answer, "dimension": found.dimension, "equations": equations, "said": str(found.verdict)}
    return row | {"seconds": round(time.process_time() - before, 1)}


def rival(system: System) -> str | None:
    """The equation of PySINDy's weak form for a system of one unknown on a line."""
    import pysindy as ps

    values, axes = system.make()
    if len(axes) != 2 or values.ndim != 3:
        return None
    x, t = (a.double().numpy() for a in axes)
    grid = np.stack(np.meshgrid(x, t, indexing="ij"), -1)
    library = ps.WeakPDELibrary(
        function_library=ps.PolynomialLibrary(degree=3, include_bias=False),
        derivative_order=3,
        spatiotemporal_grid=grid,
        K=200,
        include_bias=True,
    )
    model = ps.SINDy(feature_library=library, optimizer=ps.STLSQ(threshold=0.02, normalize_columns=False))
    trajectories = [u.double().numpy().T[..., None] for u in values[:10]]
    model.fit(trajectories, t=t[1] - t[0], feature_names=["u"])
    return str(model.equations(precision=4)[0])


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.symmetries_from_data", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default="", help="part of the kind or the name")
    parser.add_argument("--pysindy", default="", help="a folder where PySINDy is installed")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = {
        (r["kind"], r["name"]): r
        for r in (json.loads(options.output.read_text())["rows"] if options.output.exists() else [])
    }
    if options.pysindy:
        sys.path.append(options.pysindy)
    order = []
    for system in systems():
        key = (system.kind, system.name)
        order.append(key)
        if options.only not in f"{system.kind} {system.name}":
            continue
        row = rows.get(key, {}) | judged(system)
        if options.pysindy:
            row["pysindy"] = rival(system)
        rows[key] = row
        shown = row.get("dimension", "-")
        print(
            f"{row['answer']:17}{shown!s:>3} of {row['true']:2} {row['seconds']:6.1f} s {' '.join(key)}",
            flush=True,
        )
        print(f"      {row.get('equations', '')} {row['said'][:200]}", flush=True)
        save(options.output, [rows[k] for k in order if k in rows] + [r for k, r in rows.items() if k not in order])


def save(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows, with the number of each answer by kind."""
    from benchmarks.timing import environment

    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        own = counts.setdefault(row["kind"], {})
        own[row["answer"]] = own.get(row["answer"], 0) + 1
    document = {"suite": "symmetries from data", "environment": environment(torch.device("cpu"))}
    path.write_text(json.dumps(document | {"counts": counts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
