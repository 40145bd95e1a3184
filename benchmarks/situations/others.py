"""Learned inverters, operators, energies, symmetries from data, distributions and equations beside known truths."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import mpmath
import sympy as sp
import torch
from torch import Tensor

from benchmarks.situations.posteriors import LANDMARKS, seeded
from benchmarks.situations.record import Kind, Outcome, Situation, each
from trivgeo.actions import Field
from trivgeo.errors import TrivgeoError
from trivgeo.generative.distributions import HaarDistribution, MatrixFisher, NormalDistribution
from trivgeo.generative.posterior_draws import draw_posterior
from trivgeo.groups import SE, SO, Affine, Translation
from trivgeo.inversion import TIED, EquivariantOperator, LearnedInverter, check_energy
from trivgeo.inversion.transformations import composed
from trivgeo.pde import GaussianField, SpectralEquation, solve
from trivgeo.symmetry import symmetries_from_data
from trivgeo.symmetry.order_reduction import integrate_by_symmetries

F64 = torch.float64


def answered(call: Callable[[], Any]) -> Any:
    """What a call returns; ``None`` where it refuses or warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return call()
        except (TrivgeoError, Warning):
            return None


# -- learned inverters -------------------------------------------------------------------------------------------------

NUM_DRAWS = 999
"""Draws of a learned posterior, among whose densities that of the truth has a rank."""
SPREAD = 0.05
"""Standard deviation of landmarks about their shape in the training."""
REACH = torch.tensor([math.pi / 4, 0.5, 0.5])


def box(count: int, generator: torch.Generator, factor: float = 1.0) -> Tensor:
    """Rigid motions up to half a right angle and half a unit."""
    return SE(2).exp(factor * REACH * (2 * torch.rand(count, 3, generator=generator) - 1))


def shapes(points: Tensor, spread: float = SPREAD) -> Callable[[int, torch.Generator], Tensor]:
    """Landmarks, each a little off."""
    return lambda count, generator: points.float() + spread * torch.randn(count, *points.shape, generator=generator)


@lru_cache
def learned() -> LearnedInverter:
    """An inverter of landmarks."""
    inverter = LearnedInverter(SE(2).action(), num_hypotheses=NUM_DRAWS, seed=0)
    return inverter.fit(shapes(LANDMARKS), box, steps=600, seconds=None, progress=False)


def judge_learned(
    seeds: Sequence[int], clean: Callable[[int, torch.Generator], Tensor], factor: float = 1.0, truth: bool = True
) -> list[Outcome]:
    """Ask for transformations of data like those of the training, or of others."""
    inverter, outcomes = learned(), []
    for seed in seeds:
        g, y = box(4, seeded(100 + seed), factor), clean(4, seeded(200 + seed))
        x = inverter.action(g, y)
        result = inverter(x, generator=seeded(seed))
        heights = inverter.log_prob(torch.cat([g.unsqueeze(1), result.elements], 1), x)
        mass = (heights[:, 1:] > heights[:, :1]).double().mean(-1)
        trusted = result.trusted
        outcomes += [Outcome.at(bool(t), float(m) if truth else math.nan) for t, m in zip(trusted, mass, strict=True)]
    return outcomes


def spoiled(change: Callable[[Tensor], Tensor]) -> Callable[[int, torch.Generator], Tensor]:
    """Landmarks that are changed."""
    return lambda count, generator: change(shapes(LANDMARKS)(count, generator))


def far_landmark(x: Tensor) -> Tensor:
    """One landmark elsewhere."""
    x = x.clone()
    x[:, 0] = x[:, 0] + torch.tensor([-0.8, 0.6])
    return x


# -- operators ---------------------------------------------------------------------------------------------------------

LENGTH, POINTS, HORIZON = 16.0, 32, 1.0
MAX_ERROR = 0.1
"""Relative error of a solution that is wrong; an operator refuses times between which it would err as much."""
EQUATIONS = {"mKdV": "u_t + u^2*u_x + u_xxx = 0", "Burgers": "u_t + u*u_x = 0.2*u_xx", "heat": "u_t = 0.2*u_xx"}


def waves(count: int, seed: int, mean: float = 0.0, points: int = POINTS) -> Tensor:
    """Random initial values ``[count, 1, points]``."""
    x = LENGTH * torch.arange(points, dtype=F64) / points
    return mean + GaussianField(0.2, 0.5, 6.0, 6, LENGTH).sample(count, seeded(seed))(x)[:, None]


@lru_cache
def operator_of(name: str, mean: float) -> tuple[EquivariantOperator, SpectralEquation]:
    """An operator whose network solves fields like those of its training, and clips what goes beyond their values."""
    spectral = SpectralEquation.from_equation(EQUATIONS[name])
    clean = waves(64, 0, mean)
    low, high = float(clean.min()), float(clean.max())
    roughness = float(clean.diff(dim=-1).abs().amax())

    def network(values: Tensor) -> Tensor:
        seen = values.clamp(low, high)
        rough = (seen.diff(dim=-1).abs().amax((1, 2), keepdim=True) / roughness - 1.0).clamp(min=0)
        seen = seen.mean(-1, keepdim=True) + (seen - seen.mean(-1, keepdim=True)) / (1 + rough)
        return solve(spectral, Field.on_box(seen, [(0.0, LENGTH)]), [HORIZON], 0.05).values[:, :, 0]

    operator = EquivariantOperator.from_equation(EQUATIONS[name], network, clean, [HORIZON], box=[(0.0, LENGTH)])
    return operator, spectral


def judge_operator(
    seed: int,
    name: str,
    time: float = HORIZON,
    stretch: float = 1.0,
    factor: float = 1.0,
    offset: float = 0.0,
    mean: float = 0.0,
    change: Callable[[Tensor], Tensor] = lambda u: u,
) -> Outcome:
    """Solve one field.

    Args:
        time: last time.
        stretch: size of the box, in units of that of the training.
        factor: of the values.
        offset: added to the values.
        mean: of the values of the training.
    """
    operator, spectral = operator_of(name, mean)
    initial = Field.on_box(change(factor * waves(1, 500 + seed, mean) + offset), [(3.0, 3.0 + stretch * LENGTH)], 5.0)
    found = answered(lambda: operator(initial, initial.grid.at([5.0 + time])))
    if found is None:
        return Outcome(False, False)
    exact = solve(spectral, initial, [5.0 + time], min(0.05, time / 20)).values
    error = float((found.values - exact).norm() / exact.norm())
    trusted = bool(torch.as_tensor(getattr(found, "trusted", True)).all())
    return Outcome(trusted, not error <= MAX_ERROR)


# -- energies ----------------------------------------------------------------------------------------------------------

FRESH = 32
MIN_SHARE = 0.6
"""Share of fresh data that must be found where a check said yes, for three quarters."""


def judge_energy(
    seed: int, energy: Callable[[Tensor], Tensor], points: Tensor = LANDMARKS, factor: float = 1.0
) -> Outcome:
    """Believe a check, and search as it says on fresh data."""
    action = SE(2).action()
    law = lambda count, generator: box(count, generator, factor)  # noqa: E731
    clean = shapes(points)(64, seeded(300 + seed))
    report = answered(lambda: check_energy(action, energy, clean, law, generator=seeded(seed)))
    if report is None:
        return Outcome(False, False)
    g, y = law(FRESH, seeded(400 + seed)), shapes(points)(FRESH, seeded(500 + seed))
    x = action(g, y)
    search = TIED(action, energy, law, clean, seconds=5.0)
    result = search(x, generator=seeded(seed))
    off = SE(2).log(SE(2).compose(SE(2).inverse(result.best()), g)) / (factor * REACH / 3**0.5)
    near = off.square().mean(-1).sqrt() <= 0.3
    same = (result.restore(x) - y).flatten(1).norm(dim=1) <= 0.1 * (x - y).flatten(1).norm(dim=1)
    return Outcome(bool(report.trusted), float((near | same).double().mean()) < MIN_SHARE)


def fit_to(points: Tensor, spread: float = SPREAD) -> Callable[[Tensor], Tensor]:
    """Squares of distances."""
    return lambda y: (y - points.to(y)).square().sum((-2, -1)) / (2 * spread**2)


SQUARE = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])


def unlabelled(points: Tensor) -> Callable[[Tensor], Tensor]:
    """Squares of distances to the nearest of points."""
    return lambda y: (
        torch.cdist(y, points.to(y).expand(*y.shape[:-2], -1, -1)).square().amin(-1).sum(-1) / (2 * SPREAD**2)
    )


# -- symmetries from data ----------------------------------------------------------------------------------------------


def judge_function(
    seed: int,
    function: Callable[[Tensor], Tensor],
    n: int,
    dimension: int,
    count: int = 200,
    reach: float = 1.0,
    dtype: torch.dtype = F64,
) -> Outcome:
    """Find affine symmetries of a function of n numbers, of which there are ``dimension``."""
    points = reach * torch.randn(count, n, generator=seeded(600 + seed), dtype=F64).to(dtype)
    found = answered(lambda: symmetries_from_data(function, points))
    return Outcome(False, False) if found is None else Outcome(bool(found.verdict), found.dimension != dimension)


def heat_solutions(seed: int, nonlinear: bool, noise: float) -> Outcome:
    """Solutions of u_t = .2 u_xx, of 6 symmetries beside superposition; by Cole and Hopf of Burgers' equation, of 5."""
    n, nu = 64, 0.2
    x, t = 12.0 * torch.arange(n, dtype=F64) / n, torch.linspace(0.0, 1.5, 40, dtype=F64)
    wave = 2 * math.pi / 12.0 * torch.arange(1, 5, dtype=F64)
    a, b = 0.3 * torch.randn(2, 8, 4, 1, 1, generator=seeded(700 + seed), dtype=F64)
    decay = torch.exp(-nu * wave[:, None] ** 2 * t)[:, :, None]
    c, s = torch.cos(wave[:, None] * x)[:, None], torch.sin(wave[:, None] * x)[:, None]
    u = 2.0 + (decay * (a * c + b * s)).sum(1)
    if nonlinear:
        u = -2 * nu * (decay * wave[:, None, None] * (b * c - a * s)).sum(1) / u.clamp(min=0.2)
    u = u + noise * u.std() * torch.randn(u.shape, generator=seeded(800 + seed), dtype=F64)
    found = answered(lambda: symmetries_from_data(u, (x, t)))
    return (
        Outcome(False, False) if found is None else Outcome(bool(found.verdict), found.dimension != 5 + (not nonlinear))
    )


# -- distributions -----------------------------------------------------------------------------------------------------

CONCENTRATIONS = (0.1, 1.0, 10.0, 200.0, 1e4, 1e6, 1e7, 1e8)
MAX_LOG_DENSITY_ERROR = 1e-8


def judge_normaliser(seed: int, about_axis: bool, dtype: torch.dtype = F64) -> Outcome:
    """The height of a `MatrixFisher` distribution at its mode, about all axes or of one axis alone."""
    k = CONCENTRATIONS[seed % len(CONCENTRATIONS)]
    mpmath.mp.dps = 40
    if about_axis:  # E exp(k (R33 - 1))
        exact = -mpmath.log((1 - mpmath.exp(-2 * mpmath.mpf(k))) / (2 * mpmath.mpf(k)))
    else:  # E exp(k (tr R - 3))
        z = 2 * mpmath.mpf(k)
        exact = -mpmath.log(mpmath.exp(-z) * (mpmath.besseli(0, z) - mpmath.besseli(1, z)))
    parameter = torch.diag(torch.tensor([0.0, 0.0, k] if about_axis else [k, k, k], dtype=dtype))
    found = answered(lambda: MatrixFisher(parameter).log_prob(torch.eye(3, dtype=dtype)))
    if found is None:
        return Outcome(False, False)
    most = MAX_LOG_DENSITY_ERROR if dtype is F64 else 1e-5
    return Outcome(True, not abs(float(found) - float(exact)) <= most * max(1.0, abs(float(exact))))


def judge_single(seed: int) -> Outcome:
    """The density of a rotation in single precision, a few deviations from the mode of a narrow distribution."""
    k = CONCENTRATIONS[seed % len(CONCENTRATIONS)]
    v = torch.randn(3, generator=seeded(seed), dtype=F64) / math.sqrt(2 * max(k, 1.0))
    g = SO(3).exp(v).float()
    found = answered(lambda: MatrixFisher(k * torch.eye(3)).log_prob(torch.stack([g, torch.eye(3)])))
    if found is None:
        return Outcome(False, False)
    turn = 0.5 * (g.double() - g.double().mT)  # antisymmetric, of size sin |v|
    square, cosine = float(turn.square().sum() / 2), 0.5 * float(g.double().trace() - 1)
    exact = -2 * k * (square / (1 + math.sqrt(1 - square)) if cosine > 0.5 else 1 - cosine)  # trace R - 3
    return Outcome(True, not abs(float(found[0] - found[1]) - exact) <= 1e-3 * max(1.0, abs(exact)))


def judge_constant(seed: int) -> Outcome:
    """The mean of draws of a posterior whose energies have a large constant in single precision."""
    prior = NormalDistribution(Translation(1), torch.zeros(1), torch.zeros(1), torch.eye(1))
    height = 10.0 ** (5 + seed % 4)
    energy = lambda g: height + 0.5 * (g[:, 0] - 3.0).square() / 0.2  # noqa: E731
    draws = answered(lambda: draw_posterior(prior, energy, 20_000, generator=seeded(seed)))
    if draws is None:
        return Outcome(False, False)
    mean = float((draws.weights * draws.elements[:, 0]).sum())
    wrong = abs(mean - 2.5) > 0.1 + 4 * math.sqrt(1 / 6 / draws.effective_sample_size)
    return Outcome(draws.verdict.trusted, wrong)


def answers(call: Callable[[], Any]) -> Outcome:
    """No answer is right."""
    found = answered(call)
    return Outcome(found is not None and bool(torch.isfinite(torch.as_tensor(found)).all()), True)


# -- equations ---------------------------------------------------------------------------------------------------------


def judge_solver(seed: int, equation: str, time: float, growth: Callable[[Tensor], Tensor] | None) -> Outcome:
    """Solve a linear equation whose modes grow as is known, or one whose maximum does not."""
    u = waves(1, 900 + seed, points=64)
    spectral = SpectralEquation.from_equation(equation)
    field = Field.on_box(4.0 * u, [(0.0, LENGTH)])
    found = answered(lambda: solve(spectral, field, [time], 0.02))
    if found is None:
        return Outcome(False, False)
    values = found.values[:, :, 0]
    if growth is None:
        return Outcome(True, bool(values.abs().max() > 1.05 * field.values.abs().max()))
    modes = torch.fft.rfft(4.0 * u)
    modes[..., 8:] = 0  # there are six
    k = 2 * math.pi / LENGTH * torch.arange(modes.shape[-1], dtype=F64)
    exact = torch.fft.irfft(modes * torch.exp(growth(k) * time), 64)
    return Outcome(True, not float((values - exact).norm() / exact.norm()) <= MAX_ERROR)


def judge_integral(equation: str, curves: Sequence[str]) -> Outcome:
    """Integrate an ordinary equation; each curve y(x) must be among its solutions, and all must be known functions."""
    found = answered(lambda: integrate_by_symmetries(equation))
    if found is None:
        return Outcome(False, False)
    unknown = any(q.relation.atoms(sp.core.function.AppliedUndef) for q in found)

    def holds(curve: str) -> bool:
        for q in found:
            x, y = q.variables
            left = q.relation.subs(y, sp.sympify(curve, {"x": x}))
            names = sorted(left.free_symbols & set(q.constants), key=str)
            at = [left.subs(x, sp.Rational(k, 7)) for k in range(1, len(names) + 2)]
            # constants that the curve needs at some places serve at another
            choices = sp.solve(at[:-1], names, dict=True) if names else [{}]
            if any(sp.simplify(at[-1].subs(values)) == 0 for values in choices):
                return True
        return False

    trusted = bool(getattr(found, "verdict", True))
    return Outcome(trusted, unknown or not all(map(holds, curves)))


# -- situations --------------------------------------------------------------------------------------------------------


def situations() -> list[Situation]:
    """All of them."""
    # fmt: off
    found: list[Situation] = []

    def add(
        door: str, kind: Kind, name: str, judge: Callable[[int], Outcome], bet: str = "", seeds: int = 1000
    ) -> None:
        found.append(Situation(door, kind, name, each(judge), bet, seeds))

    def learn(
        kind: Kind, name: str, clean: Callable[[int, torch.Generator], Tensor], bet: str = "", **settings: Any
    ) -> None:
        found.append(Situation("learned", kind, name, lambda seeds: judge_learned(seeds, clean, **settings), bet))

    learn("ordinary", "landmarks like those of the training", shapes(LANDMARKS))
    learn("ordinary", "the same, moved half as far", shapes(LANDMARKS), factor=0.5)
    learn("hard", "moved three times as far", shapes(LANDMARKS), factor=3.0)
    learn("hard", "moved 1.3 times as far", shapes(LANDMARKS), "hardly beyond", factor=1.3)
    learn("hard", "errors of .15 in place of .05", shapes(LANDMARKS, 0.15), "three times the spread of the training")
    learn("hard", "one landmark elsewhere", spoiled(far_landmark), "five of six are as they were")
    learn("hard", "larger by 1.4", spoiled(lambda x: 1.4 * x), "a shape that is like the others")
    learn("hard", "mirrored", spoiled(lambda x: x * torch.tensor([1.0, -1.0])), "no rigid motion does that",
        truth=False)
    learn("hard", "two landmarks exchanged", spoiled(lambda x: x[:, [1, 0, 2, 3, 4, 5]]),
        "the right points in the wrong order")
    learn("hard", "noise", lambda count, generator: torch.randn(count, 6, 2, generator=generator), truth=False)
    learn("hard", "all landmarks at one place", spoiled(lambda x: 0 * x), "no angle to find", truth=False)

    def operate(kind: Kind, name: str, equation: str, bet: str = "", **settings: Any) -> None:
        add("operator", kind, f"{equation}, {name}", lambda seed: judge_operator(seed, equation, **settings), bet, 4)

    for equation in EQUATIONS:
        operate("ordinary", "elsewhere and later", equation)
    operate("ordinary", "a box twice as long, values of half the size", "mKdV", time=8.0, stretch=2.0, factor=0.5)
    operate("ordinary", "a moving frame", "Burgers", offset=1.0)
    operate("hard", "ten times the time", "Burgers", time=10.0)
    operate("hard", "ten times the time, values about one", "heat", time=10.0, mean=1.0)
    operate("hard", "ten times the time, values about one", "mKdV", time=10.0, mean=1.0)
    operate("hard", "72 times the time", "mKdV", time=72.0)
    operate("hard", "a tenth of the time", "heat", time=0.1)
    operate("hard", "values three times as large", "mKdV", "the box and the values cannot both be right", factor=3.0)
    operate("hard", "values ten times as large", "Burgers", "the box and the values cannot both be right", factor=10.0)
    operate("hard", "an offset of two", "mKdV", "no moving frame for this equation", offset=2.0)
    operate("hard", "waves four times as short", "Burgers", "no field of the training is as rough",
        change=lambda u: u[..., torch.arange(POINTS) * 4 % POINTS])
    operate("hard", "a box three times as long", "Burgers", "values would have to be a third", stretch=3.0)
    operate("hard", "steps", "mKdV", "no field of the training is as rough", change=lambda u: 0.4 * u.sign())

    def measure(kind: Kind, name: str, energy: Callable[[Tensor], Tensor], bet: str = "", **settings: Any) -> None:
        add("energies", kind, name, lambda seed: judge_energy(seed, energy, **settings), bet, 2)

    measure("ordinary", "landmarks", fit_to(LANDMARKS))
    measure("hard", "a flat energy", lambda y: 0.0 * y.square().sum((-2, -1)))
    measure("hard", "another shape", fit_to(LANDMARKS.flip(0)), "a deep well at a wrong place")
    measure("hard", "the nearest of landmarks, any angle", unlabelled(LANDMARKS), "many wells", factor=4.0)
    measure("hard", "a square without labels, any angle", unlabelled(SQUARE), "quarter turns are as good",
        points=SQUARE, factor=4.0)
    measure("hard", "one landmark of six", lambda y: (y[..., 0, :] - LANDMARKS[0].to(y)).square().sum(-1) / 0.005,
        "a direction is left open")

    def function(
        kind: Kind, name: str, f: Callable[[Tensor], Tensor], n: int, dimension: int, bet: str = "", **settings: Any
    ) -> None:
        add("symmetries", kind, name, lambda seed: judge_function(seed, f, n, dimension, **settings), bet, 4)

    square = lambda x: x.square().sum(-1)  # noqa: E731
    function("ordinary", "|x|^2 in the plane", square, 2, 1)
    function("ordinary", "|x|^2 in space", square, 3, 3)
    function("ordinary", "x y", lambda x: x[:, 0] * x[:, 1], 2, 1)
    function("ordinary", "sin x, in the plane", lambda x: x[:, 0].sin(), 2, 3)
    function("hard", "|x|^2 and .03 x^3", lambda x: square(x) + 0.03 * x[:, 0] ** 3, 2, 0,
        "a symmetry that is slightly broken")
    function("hard", "|x|^2 and .3 x^3, near zero", lambda x: square(x) + 0.3 * x[:, 0] ** 3, 2, 0,
        "points that hardly see it", reach=0.1)
    function("hard", "|x|^2, in single precision", square, 2, 1, "rounding fills the gap", dtype=torch.float32)
    function("hard", "|x|^2 and .01 sin 40 x", lambda x: square(x) + 0.01 * (40 * x[:, 0]).sin(), 2, 0,
        "small values, large slopes")
    function("hard", "x^2 + 1.05 y^2 + z^2", lambda x: square(x) + 0.05 * x[:, 1].square(), 3, 3,
        "an ellipsoid has as many as a ball, others")
    for nonlinear, name in ((False, "heat"), (True, "Burgers")):
        add("symmetries", "ordinary", f"solutions of {name}", lambda seed, n=nonlinear: heat_solutions(seed, n, 0.0),
            seeds=1)
        add("symmetries", "hard", f"solutions of {name}, noise of a tenth", lambda seed,
            n=nonlinear: heat_solutions(seed, n, 0.1), "terms that noise adds or hides", 2)

    for about_axis, name in ((False, "about all axes"), (True, "of one axis")):
        add("numbers", "hard", f"MatrixFisher {name}, concentrations up to 1e8", lambda seed,
            a=about_axis: judge_normaliser(seed, a), seeds=8)
        add("numbers", "ordinary", f"MatrixFisher {name}, concentrations up to 10", lambda seed,
            a=about_axis: judge_normaliser(seed, a), seeds=3)
    add("numbers", "hard", "MatrixFisher in single precision", judge_single, seeds=8)
    add("numbers", "hard", "energies with a large constant, single precision", judge_constant, seeds=4)
    add("numbers", "hard", "MatrixFisher of twice a rotation",
        lambda seed: answers(lambda: MatrixFisher(torch.eye(3, dtype=F64)).log_prob(2 * torch.eye(3, dtype=F64))),
        seeds=1)
    add("numbers", "hard", "Haar measure of a constant matrix",
        lambda seed: answers(lambda: HaarDistribution(SO(3)).log_prob(torch.ones(3, 3, dtype=F64))), seeds=1)
    affine = lambda count, generator: Affine(2).random(count, generator=generator, std=0.3, dtype=F64)  # noqa: E731
    add("numbers", "hard", "rigid motions composed of affine ones",
        lambda seed: answers(lambda: composed(SE(2), affine, affine)(4, seeded(seed))), seeds=1)

    add("equations", "ordinary", "heat", lambda seed: judge_solver(seed, "u_t = 0.1*u_xx", 2.0, lambda k: -0.1 * k**2),
        seeds=2)
    add("equations", "hard", "heat in reverse",
        lambda seed: judge_solver(seed, "u_t = -0.1*u_xx", 20.0, lambda k: 0.1 * k**2), seeds=2)
    add("equations", "hard", "Burgers with few points",
        lambda seed: judge_solver(seed, "u_t + u*u_x = 0.005*u_xx", 8.0, None), seeds=2)
    add("equations", "hard", "heat of fourth order with the wrong sign",
        lambda seed: judge_solver(seed, "u_t = 0.02*u_xxxx", 20.0, lambda k: 0.02 * k**4), "grows even faster", 2)
    for equation, curves, bet in (("y*y' + y = 0", ("0", "1 - x"), ""), ("y'' = x*y'", ("1",), ""),
        ("y' = y^2", ("0", "1/(2 - x)"), "a solution without a constant"),
        ("y'^2 = 4*y", ("0", "(x - 1)**2"), "an envelope"), ("y'' = y", ("exp(x)", "0"), "two exponentials")):
        add("equations", "hard", f"all solutions of {equation}", lambda seed, e=equation,
            c=curves: judge_integral(e, c), bet, 1)
    return found
