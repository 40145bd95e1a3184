"""Groups whose action is local: held against an ODE solver, NaN where a point could have another name, never wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import pytest
import sympy as sp
import torch
from scipy.integrate import solve_ivp
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap

from tests.helpers import assert_relative, rand, randn, random_elements
from tests.symmetry.catalogue import CATALOGUE
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups import GeneratedGroup, from_generators
from trivgeo.groups.from_generators import OdeSettings
from trivgeo.groups.from_generators.action_map import CoordinateActionMap, LogarithmFlow
from trivgeo.symmetry import find_symmetries

x, y, r, p, q = sp.symbols("x y r p q")
Fields = Sequence[Sequence[Any]]

# u'' + u = 0 in (x, y): sl(3), [L] Lie, Vorlesungen 1891
OSCILLATOR = [
    (1, 0),
    (0, y),
    (0, sp.sin(x)),
    (0, sp.cos(x)),
    (sp.sin(2 * x), y * sp.cos(2 * x)),
    (sp.cos(2 * x), -y * sp.sin(2 * x)),
    (y * sp.sin(x), y**2 * sp.cos(x)),
    (y * sp.cos(x), -(y**2) * sp.sin(x)),
]
TRANSLATIONS, TURN, PLANE = [(1, 0), (0, 1)], [(-y, x)], [(x, 0), (y, 0), (0, x), (0, y)]
PROJECTIVE = [(x * x, x * y), (x * y, y * y)]


def in_coordinates(fields: Fields, new: Sequence[sp.Symbol], old: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Fields on (x, y) in other coordinates, of which x and y are functions."""
    back = sp.Matrix(old).jacobian(new).inv().applyfunc(sp.simplify)
    moved = (back * sp.Matrix(f).subs(dict(zip((x, y), old, strict=True)), simultaneous=True) for f in fields)
    return [tuple(map(sp.simplify, entries)) for entries in moved]


@dataclass(frozen=True)
class Case:
    name: str
    given: Any  # fields, or a function that computes them where a test needs them
    variables: tuple[sp.Symbol, ...] = (r, p)
    low: float = 0.5
    high: float = 1.1

    def __str__(self) -> str:
        return self.name

    @cached_property
    def fields(self) -> Any:
        return self.given() if callable(self.given) else self.given

    @cached_property
    def group(self) -> GeneratedGroup:
        return from_generators(self.fields, variables=self.variables, sampler=self.sample)

    def sample(self, count: int) -> Tensor:
        return rand(count, len(self.variables), seed=7, low=self.low, high=self.high)


POLAR = [r * sp.cos(p), r * sp.sin(p)]
ELLIPTIC = [sp.cosh(r) * sp.cos(p), sp.sinh(r) * sp.sin(p)]
COT = sp.cos(r) / sp.sin(r)
SPHERE = [(sp.sin(p), sp.cos(p) * COT), (-sp.cos(p), sp.sin(p) * COT), (0, 1)]  # colatitude and longitude
CASES = [
    Case("oscillator", OSCILLATOR, (x, y), -0.8, 0.8),
    Case("sphere", SPHERE),
    Case("euclidean, polar", partial(in_coordinates, TRANSLATIONS + TURN, (r, p), POLAR)),
    Case("translations, elliptic", partial(in_coordinates, TRANSLATIONS, (r, p), ELLIPTIC), low=0.2),
]
BY_NAME = {case.name: case for case in CASES}


_CALLS = 20_000


class StiffError(Exception):
    """A flow that the solver does not finish."""


def flow(case: Case, w: Tensor, start: Tensor) -> Tensor:
    """The flow of sum w_i X_i for unit time by DOP853; NaN where it runs away, or steps never end."""
    field = sp.lambdify(case.variables, [list(f) for f in case.fields], "numpy", cse=True)
    weights = w.numpy()
    far = lambda s, z: 1e4 - np.abs(z).max()  # noqa: E731
    far.terminal = True  # type: ignore[attr-defined]

    calls = itertools.count()

    def slope(s: float, z: Any) -> Any:
        if next(calls) > _CALLS:
            raise StiffError
        return weights @ np.array(field(*z), dtype=float)

    try:
        found = solve_ivp(slope, (0, 1), start.numpy(), method="DOP853", rtol=1e-12, atol=1e-13, events=far)
    except StiffError:
        return torch.full_like(start, torch.nan)
    return torch.tensor(found.y[:, -1]) if found.status == 0 else torch.full_like(start, torch.nan)


@pytest.fixture(
    params=[
        pytest.param(case, marks=[pytest.mark.slow(reason="the others stay")] if "elliptic" in case.name else [])
        for case in CASES
    ],
    ids=str,
)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def test_flows(case: Case) -> None:
    """exp(v).x is where the flow of v goes, or NaN; it is found for most."""
    group, w, start = case.group, 0.35 * randn(8, len(case.fields), seed=1), case.sample(2)
    image = group.action()(group.exp(w), start)
    truth = torch.stack([torch.stack([flow(case, each, point) for point in start]) for each in w])
    known, sane = torch.isfinite(image).all(-1), torch.isfinite(truth).all(-1)
    assert not bool((known & ~sane).any())
    assert_relative(image[known], truth[known], 1e-10)
    assert float(known.double().mean()) > 0.75 * float(sane.double().mean())


def test_laws(case: Case) -> None:
    """Wherever both sides have a value, also where elements are large, (g h).x = g.(h.x)."""
    group, start = case.group, case.sample(6)
    w = torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)[:, None, None, None] * randn(2, 25, len(case.fields), seed=2)
    g, h = group.exp(w).unbind(1)
    action, product = group.action(), group.compose(g, h)
    once, twice = action(product, start), action(g, action(h, start))
    both = torch.isfinite(once).all(-1) & torch.isfinite(twice).all(-1)
    assert_relative(once[both], twice[both], 1e-9)
    assert float(both[0].double().mean()) > 0.5
    assert_relative(action(group.identity(dtype=torch.float64), start), start, 1e-14)
    assert_relative(group.compose(product, group.inverse(h))[:2], g[:2], 1e-9)
    assert_relative(group.compose(group.exp(0.3 * w[0]), group.exp(0.7 * w[0])), group.exp(w[0]), 1e-11)


@pytest.mark.parametrize("time", [-9.0, -4.0, 0.9, 2.0, 4.0, 7.0, 13.0])
def test_long_turns(time: float) -> None:
    """A quarter of a turn is told from five quarters: the value is that of the flow, or NaN."""
    group, start = BY_NAME["oscillator"].group, torch.tensor([[0.3, 0.5]], dtype=torch.float64)
    w = time * torch.eye(8, dtype=torch.float64)[0]
    image = group.action()(group.exp(w), start)
    expected = start + torch.tensor([time, 0.0], dtype=torch.float64)
    assert bool(torch.isnan(image).all()) or torch.allclose(image, expected, rtol=0.0, atol=1e-11)
    assert bool(torch.isnan(image).all()) == (abs(time) > 1.0)


def test_around_the_origin() -> None:
    """Three translations that multiply to the identity carry a point around the origin of polar coordinates."""
    case = BY_NAME["euclidean, polar"]
    group, action = case.group, case.group.action()
    angles = torch.arange(4, dtype=torch.float64) * (2.0 * torch.pi / 3.0)
    corners = 0.4 * torch.stack([angles.cos(), angles.sin()], -1)
    at = torch.tensor([[0.4, 0.0]], dtype=torch.float64)
    path = [at]
    for before, after in itertools.pairwise(corners):
        g = group.exp(torch.cat([after - before, torch.zeros(1, dtype=torch.float64)]))
        at = action(g, at)
        path.append(at)
    # each third of a turn is where points have to stop; what has a value is right
    assert bool(torch.isnan(path[-1]).any()) or abs(float(path[-1][0, 1]) - 2.0 * np.pi) < 1e-9
    small = action(group.exp(torch.tensor([-0.1, 0.3, 0.0], dtype=torch.float64)), path[0])
    assert_relative(small, torch.tensor([[0.3 * 2**0.5, np.pi / 4]], dtype=torch.float64), 1e-12)


def test_derivatives() -> None:
    """Of images that were integrated and corrected; and float32."""
    case = BY_NAME["oscillator"]
    w, start = 0.2 * randn(2, 8, seed=3), case.sample(1)
    group = from_generators(case.fields, variables=case.variables, settings=OdeSettings(steps=2))
    f = lambda w: group.action()(group.exp(w), start)  # noqa: E731
    axis = 1e-4 * randn(8, seed=4)
    expected = (8.0 * (f(w + axis) - f(w - axis)) - f(w + 2 * axis) + f(w - 2 * axis)) / 12.0
    for mode in (jacfwd, jacrev):
        assert_relative(vmap(mode(f))(w) @ axis, expected, 1e-8)
    single = case.group.action()(case.group.exp(w.float()), start.float())
    assert_relative(single.double(), f(w), 2e-4)


@pytest.mark.slow
def test_one_graph() -> None:
    group, w, start = BY_NAME["oscillator"].group, 0.2 * randn(2, 8, seed=3), BY_NAME["oscillator"].sample(2)
    f = lambda w: group.action()(group.exp(w), start)  # noqa: E731
    assert_relative(torch.compile(f, fullgraph=True, backend="eager")(w), f(w), 1e-11)
    torch._dynamo.reset()


def test_accuracy() -> None:
    """Projective maps of sheared coordinates are integrated and corrected, in those without the shear a closed form."""
    fields = in_coordinates(TRANSLATIONS + PLANE + PROJECTIVE, (r, p), [r, p + sp.sin(r) / 2])
    case = Case("sheared", fields)
    group = case.group
    assert set(group.action().flows.values()) == {"integrated"}
    sheared = lambda z: torch.stack([z[..., 0], z[..., 1] + z[..., 0].sin() / 2], -1)  # noqa: E731
    plain = from_generators(TRANSLATIONS + PLANE + PROJECTIVE, variables=(x, y))
    w, start = 0.3 * randn(40, 8, seed=5), case.sample(5)
    image = group.action()(group.exp(w), start)
    truth = plain.action()(plain.exp(w), sheared(start))
    known = torch.isfinite(image).all(-1)
    assert_relative(sheared(image)[known], truth[known], 1e-11)
    assert float(known.double().mean()) > 0.8


def test_shifted_fibre() -> None:
    """Symmetries of heat for u + x: translations of x move u, and nothing is integrated."""
    heat = [
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, r),
        (2 * p, 0, -q * r),
        (q, 2 * p, 0),
        (4 * p * q, 4 * p * p, -r * (q * q + 2 * p)),
    ]
    moved = [(a, b, sp.expand(c.subs(r, r + q) - a) if c != 0 else -a) for a, b, c in heat]
    plain, group = (from_generators(fields, variables=(q, p, r)) for fields in (heat, moved))
    assert set(group.action().flows.values()) == {"closed form"}
    w, start = 0.3 * randn(20, 6, seed=1), rand(5, 3, seed=2)
    up = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    expected = plain.action()(plain.exp(w), start + start @ up)
    image = group.action()(group.exp(w), start)
    known = torch.isfinite(expected).all(-1)
    assert_relative((image + image @ up)[known], expected[known], 1e-11)
    assert float(known.double().mean()) > 0.8


def test_tangent_vectors() -> None:
    """Projective maps of the plane move tangent vectors by their derivative: matrices that do not commute."""
    old, tangent = sp.Matrix([x, y]), sp.Matrix([p, q])
    fields = TRANSLATIONS + PLANE + PROJECTIVE
    lifted = [(*f, *(sp.Matrix(f).jacobian(old) * tangent)) for f in fields]
    group, plain = (from_generators(each, variables=v) for each, v in ((lifted, (x, y, p, q)), (fields, (x, y))))
    assert set(group.action().flows.values()) == {"closed form"}
    g, h = (plain.exp(0.15 * randn(20, 8, seed=seed)) for seed in (1, 2))
    product = group.compose(group.exp(plain.log(g)), group.exp(plain.log(h)))
    assert_relative(group.log(product), plain.log(plain.compose(g, h)), 1e-11)
    start = rand(5, 4, seed=3)
    image = group.action()(group.exp(plain.log(g)), start)
    slopes = plain.action().jacobian(g, start[:, :2])
    assert_relative(image[..., :2], plain.action()(g, start[:, :2]), 1e-12)
    assert_relative(image[..., 2:], (slopes @ start[:, 2:, None]).squeeze(-1), 1e-11)


@pytest.mark.slow
def test_refusal() -> None:
    """The longitude p as sinh(p): full turns are no fixed step there, nor a fixed factor."""
    sphere = [[sp.sympify(f).subs({r: x, p: y}) for f in row] for row in SPHERE]
    moved = in_coordinates(sphere, (r, q), [r, sp.asinh(q)])
    with pytest.raises(AlgebraError, match=r"exp\(.*\) is the unit matrix"):
        from_generators(moved, variables=(r, q), sampler=BY_NAME["sphere"].sample)


# The long run: groups of the catalogue's equations in random bases ----------------------------------------------

VALUES = {"n": 0.7, "k": 1.3, "w": 0.9, "nu": 0.3, "a": 0.4, "g": 1.4, "m": 0.6, "s": 0.8, "r": 0.2}
FINITE = [each.name for each in CATALOGUE if each.size]


@cache
def fields_of(name: str) -> tuple[list[tuple[Any, ...]], tuple[sp.Symbol, ...]] | None:
    """The symmetries of an equation of the catalogue, with numbers for its parameters; none that torch lacks."""
    equation = next(each for each in CATALOGUE if each.name == name)
    found = find_symmetries(equation.equations.split(";"))
    values = {s: sp.Rational(str(VALUES[s.name])) for s in found.parameters}
    fields = [tuple(sp.sympify(c).subs(values) for c in g.components) for g in found.generators]
    return None if found.solutions else (fields, tuple(found.variables))


def random_basis(n: int, seed: int) -> np.ndarray[Any, Any]:
    """A matrix of condition 100, or one for n = 1."""
    generator = np.random.default_rng(seed)
    turns = [np.linalg.qr(generator.standard_normal((n, n)))[0] for _ in range(2)]
    return turns[0] @ np.diag(np.geomspace(0.1, 10.0, n) if n > 1 else [1.0]) @ turns[1]


def errors_in_basis(name: str, seed: int | None) -> dict[str, float]:
    """What the laws and the images of points miss in a random basis of condition 100, or in the textbook's (None)."""
    found = fields_of(name)
    assert found is not None
    fields, variables = found
    n = len(fields)
    mixing = np.eye(n) if seed is None else random_basis(n, seed)
    decimals = sp.Matrix([[sp.Float(entry, 17) for entry in row] for row in mixing])
    mixed = fields if seed is None else (decimals * sp.Matrix(fields)).tolist()
    group = from_generators(mixed, variables=variables)
    unmix = torch.tensor(np.linalg.inv(mixing))
    c = torch.einsum("ai,bj,ijk,kc->abc", unmix, unmix, group.algebra.structure_constants, torch.tensor(mixing))
    length = 0.3 / (c.abs().amax((1, 2)) / 2.0).clamp(min=1.0)
    plain = length * randn(3, 4, n, seed=seed or 0)
    g, h, k = (group.exp(each @ unmix) for each in plain)
    start = rand(2, len(variables), seed=seed or 0, low=0.3, high=1.0)
    action, compose = group.action(), group.compose
    image, product, between = action(g, start), compose(g, h), action(h, start)
    case = Case(name, fields, variables)
    truth = torch.stack([torch.stack([flow(case, each, point) for point in start]) for each in plain[0]])
    once, twice, beside = action(product, start), action(g, between), action(g, between * (1.0 + 2.0**-50))
    # where the last digits of a point between, far out, decide on its image, they are not those of the product
    steady = (beside - twice).abs().amax(-1) <= 1e-10 * twice.abs().amax(-1)
    stiff = torch.isfinite(beside - twice).all(-1) & ~steady
    sane = torch.isfinite(truth).all(-1)
    rest = group._action_map.rest if isinstance(group._action_map, CoordinateActionMap) else None
    if isinstance(rest, LogarithmFlow):
        sane = sane & rest.domain.contains(start, truth)  # others could have another name
    return {
        "associativity": error(compose(product, k), compose(g, compose(h, k))),
        "inverse": error(compose(product, group.inverse(h)), g),
        "logarithm": error(group.log(g), plain[0] @ unmix),
        "adjoint": error(group.Ad(product), group.Ad(g) @ group.Ad(h)),
        "adjoint of exp": error(group.Ad(g), torch.linalg.matrix_exp(group.algebra.ad(plain[0] @ unmix))),
        "flow": error(image, truth, defined=True),
        "product of images": error(once[steady], twice[steady], defined=True),
        "lost": float((sane & ~torch.isfinite(image).all(-1)).double().sum() / sane.double().sum().clamp(min=1.0)),
        "stiff": float(stiff.double().mean()),
    }


def error(value: Tensor, expected: Tensor, *, defined: bool = False) -> float:
    """The largest error relative to the largest entry of each datum, where both are defined."""
    if defined:
        both = torch.isfinite(value).all(-1) & torch.isfinite(expected).all(-1)
        value, expected = value[both], expected[both]
    if not len(value):
        return 0.0
    missed, size = (value - expected).abs().flatten(1).amax(-1), expected.abs().flatten(1).amax(-1)
    return float((missed / size.clamp(min=1e-300)).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", FINITE)
def test_random_bases(name: str) -> None:
    """The textbook's basis and ten of condition 100 of each algebra: laws, and images that are those of the flows."""
    if fields_of(name) is None:  # of solutions without a formula
        equation = next(each for each in CATALOGUE if each.name == name)
        found = find_symmetries(equation.equations.split(";"))
        with pytest.raises(ConfigurationError, match="expected functions of known values"):
            found.group(**{s.name: VALUES[s.name] for s in found.parameters})
        return
    for seed in (None, *range(10)):
        missed = errors_in_basis(name, seed)
        assert max(missed.pop("lost"), missed.pop("stiff")) <= 0.25
        assert max(missed.values()) < 1e-10, (seed, missed)


@pytest.mark.slow(reason="a group of eight dimensions")
def test_su2_that_moves_two_complex_numbers_beside_a_boost() -> None:
    """The symmetries of Manakov's system: SU(2), not its quotient by -1, whose matrices are linear in four unknowns."""
    names = ["x", "t", "a", "b", "c", "d"]
    fields = {
        "X": ["1", "0", "0", "0", "0", "0"],
        "S": ["x", "2*t", "-a", "-b", "-c", "-d"],
        "C": ["2*t", "0", "-b*x", "a*x", "-d*x", "c*x"],
        "T": ["0", "1", "0", "0", "0", "0"],
        "P": ["0", "0", "b", "-a", "0", "0"],
        "Q": ["0", "0", "c", "d", "-a", "-b"],
        "R": ["0", "0", "d", "-c", "b", "-a"],
        "W": ["0", "0", "0", "0", "d", "-c"],
    }
    group = from_generators(fields, variables=names)
    g, h, p = *(random_elements(group, 5, std=0.5, seed=s) for s in (0, 1)), rand(4, 6)
    action = group.action()
    assert_relative(action(group.compose(g, h), p), action(g, action(h, p)), 1e-12)
    # angles half a turn apart are one element of the quotient
    angle = math.pi * torch.tensor([0.4, 0.9, 1.4, 1.9], dtype=torch.float64)
    moved = action(group.exp(angle[:, None] * torch.eye(8, dtype=torch.float64)[5]), p)
    turned = torch.stack([p[:, [2, 3]], p[:, [4, 5]]])
    first, second = (
        turned * angle.cos()[:, None, None, None] + sign * turned.flip(0) * angle.sin()[:, None, None, None]
        for sign in (1, -1)
    )
    assert_relative(moved, torch.cat([p[:, :2].expand(4, -1, -1), first[:, 0], second[:, 1]], -1), 1e-12)
