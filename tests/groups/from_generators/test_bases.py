"""Groups from generators in any basis of their span, against ODE flows and dense oracles."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import sympy as sp
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from tests.groups.textbook import ERMAKOV, HEAT, KDV, NU, OSCILLATOR, TURNS, nu, t, u, v, x, y, z
from tests.helpers import affine_line, assert_relative, rand, randn, random_vectors
from trivgeo.errors import AlgebraError
from trivgeo.groups import SO, DirectProduct, GeneratedGroup, LieAlgebra, from_generators
from trivgeo.groups.algebra import find_split
from trivgeo.groups.from_generators.action_map import CoordinateActionMap, LogarithmFlow
from trivgeo.groups.from_generators.fields import VectorFields
from trivgeo.groups.from_generators.flows import IsotropyCorrector
from trivgeo.groups.from_generators.semisimple_algebra import loop_directions, simple_ideals
from trivgeo.groups.structure import rational_structure

Fields = Sequence[Sequence[Any]]
a, b, c = sp.symbols("a b c")

LINE = [(1,), (x,), (x**2,)]


def beside(*parts: Fields) -> list[tuple[Any, ...]]:
    """The fields of several actions, each on coordinates of its own."""
    total = sum(len(part[0]) for part in parts)
    result, start = [], 0
    for part in parts:
        width = len(part[0])
        result += [(*[0] * start, *field, *[0] * (total - start - width)) for field in part]
        start += width
    return result


def conformal(point: Sequence[sp.Symbol], signs: Sequence[int]) -> list[tuple[Any, ...]]:
    """The conformal fields of a flat metric: translations, scaling, rotations, special ones."""
    m = len(point)
    square = sum(s * q**2 for s, q in zip(signs, point, strict=True))
    unit = [tuple(int(i == k) for k in range(m)) for i in range(m)]
    turns = []
    for i, j in itertools.combinations(range(m), 2):
        turn = [sp.Integer(0)] * m
        turn[i], turn[j] = signs[j] * point[j], -signs[i] * point[i]
        turns.append(tuple(turn))
    special = [
        tuple(2 * signs[i] * point[i] * point[k] - (square if i == k else 0) for k in range(m)) for i in range(m)
    ]
    return [*unit, tuple(point), *turns, *special]


def with_fibre(fields: Fields, point: Sequence[sp.Symbol], weight: sp.Expr, factor: sp.Expr) -> list[tuple[Any, ...]]:
    """The same, moving a last coordinate by a multiple of their divergence."""
    return [(*f, weight * factor * sum(sp.diff(g, q) for g, q in zip(f, point, strict=True))) for f in fields]


HEAT_FIELDS = [tuple(sp.sympify(entry).subs(nu, sp.Rational(1, 10)) for entry in field) for field in HEAT.values()]
WAVE = [*with_fibre(conformal((x, y, t), (1, 1, -1)), (x, y, t), -sp.Rational(1, 6), u), (0, 0, 0, u)]
LIOUVILLE = with_fibre(conformal((x, y), (1, 1)), (x, y), sp.Integer(-1), sp.Integer(1))
UNSPLIT = [(1, 0, a, 0, 0), (0, 1, 0, b, x), (0, 0, 1, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 0, 1)]
SPACES: dict[str, tuple[Fields, tuple[sp.Symbol, ...]]] = {
    "sl2 + r": (beside(LINE, [(1,)]), (x, u)),
    "so3 + sl2 + heisenberg": (
        beside(list(TURNS.values()), [(1,), (t,), (t**2,)], [(1, 0, 0), (0, 1, a), (0, 0, 1)]),
        (x, y, z, t, a, b, c),
    ),
    "sl2 + sl2 + u1": (beside(LINE, [(1,), (y,), (y**2,)], [(u,)]), (x, y, u)),
    "heat": (HEAT_FIELDS, (x, t, u)),
    "kdv": (list(KDV.values()), (x, t, u)),
    "unsplit": (UNSPLIT, (x, y, a, b, c)),
    "conformal": (conformal((x, t), (1, -4)), (x, t)),
    "wave": (WAVE, (x, y, t, u)),
    "liouville": (LIOUVILLE, (x, y, u)),
    "ermakov": (list(ERMAKOV.values()), (t, u)),
}
FEW = ("sl2 + r", "unsplit", "conformal", "wave", "liouville")
MANY = tuple(name for name in SPACES if name not in FEW)
CLOSED = ("sl2 + r", "so3 + sl2 + heisenberg", "sl2 + sl2 + u1", "kdv", "unsplit", "conformal", "wave", "liouville")


def mixing(n: int, seed: int, condition: float) -> Tensor:
    """A random matrix of a given condition."""
    left, right = (torch.linalg.qr(randn(n, n, seed=2 * seed + k))[0] for k in range(2))
    return left @ torch.diag(torch.logspace(0.5, -0.5, n, base=condition, dtype=torch.float64)) @ right


def mixed(fields: Fields, matrix: Tensor) -> list[tuple[Any, ...]]:
    """Combinations of fields with the rows of a matrix as exact decimals."""
    rows = [[sp.Rational(repr(entry)) for entry in row] for row in matrix.tolist()]
    columns = list(zip(*fields, strict=True))
    return [
        tuple(sp.expand(sum(w * e for w, e in zip(row, column, strict=True))) for column in columns) for row in rows
    ]


def check_laws(group: GeneratedGroup, vectors: Tensor, bound: float) -> None:
    v, w, s = vectors
    g, h, k = (group.exp(each) for each in vectors)
    compose = group.compose
    assert_relative(compose(compose(g, h), k), compose(g, compose(h, k)), bound, event=1)
    assert_relative(compose(g, group.inverse(g)), group.identity(len(v), dtype=torch.float64), bound, event=1)
    assert_relative(compose(group.exp(0.3 * w), group.exp(0.7 * w)), h, bound, event=1)
    assert_relative(group.log(k), s, bound, event=1)
    assert_relative(group.Ad(g), torch.linalg.matrix_exp(group.algebra.ad(v)), bound, event=2)
    assert_relative(group.Ad(compose(g, h)), group.Ad(g) @ group.Ad(h), bound, event=2)
    assert_relative(group.log_modular(g), -torch.linalg.slogdet(group.Ad(g))[1], bound)


def flow(fields: Fields, variables: Sequence[sp.Symbol], w: Tensor, start: Tensor) -> Tensor:
    """The flow of sum w_i X_i for unit time."""
    field = sp.lambdify(variables, [list(map(sp.sympify, f)) for f in fields], "math")
    solution = solve_ivp(
        lambda s, p: w.numpy() @ np.array(field(*p)), (0, 1), start.numpy(), method="DOP853", rtol=1e-13, atol=1e-13
    )
    assert solution.status == 0
    return torch.tensor(solution.y[:, -1])


@pytest.mark.parametrize("name", FEW)
def test_textbook_basis(name: str) -> None:
    """Laws to 1e-11, and the action is the flow of the fields, to 1e-11."""
    check_textbook_basis(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_more_textbook_bases(name: str) -> None:
    check_textbook_basis(name)


def check_textbook_basis(name: str) -> None:
    fields, variables = SPACES[name]
    group = from_generators(fields, variables=variables)
    check_laws(group, 0.3 * randn(3, 10, group.dim), 1e-11)
    action = group.action()
    assert set(action.flows.values()) == {"closed form"} or name not in CLOSED
    w, start = 0.2 * randn(group.dim, seed=5), rand(2, len(variables), low=0.2, high=0.8)
    expected = torch.stack([flow(fields, variables, w, p) for p in start])
    assert_relative(action(group.exp(w), start), expected, 1e-11)
    g, h = (group.exp(0.15 * randn(4, group.dim, seed=s)) for s in (6, 7))
    assert_relative(action(group.compose(g, h), start), action(g, action(h, start)), 1e-10)


@pytest.mark.parametrize("name", ["sl2 + r", "sl2 + sl2 + u1", "unsplit", "liouville"])
def test_random_bases(name: str) -> None:
    """The same group whatever the basis: Ad, products and the action agree with those of the textbook's."""
    check_random_basis(name, 0, 100.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", SPACES)
def test_more_random_bases(name: str, seed: int) -> None:
    check_random_basis(name, seed, (1.01, 14.0, 100.0)[seed % 3])


def check_random_basis(name: str, seed: int, condition: float) -> None:
    fields, variables = SPACES[name]
    matrix = mixing(len(fields), seed, condition)
    textbook = from_generators(fields, variables=variables)
    group = from_generators(mixed(fields, matrix), variables=variables)
    back = torch.linalg.inv(matrix)
    vectors = 0.2 * randn(3, 10, group.dim, seed=seed)
    check_laws(group, vectors @ back, 1e-10)
    g, h = (group.exp(each @ back) for each in vectors[:2])
    k, m = (textbook.exp(each) for each in vectors[:2])
    product, expected = (s.Ad(s.compose(p, q)) for s, p, q in ((group, g, h), (textbook, k, m)))
    assert_relative(back.T @ expected @ matrix.T, product, 1e-10, event=2)
    points = rand(3, len(variables), low=0.2, high=0.8)
    images = textbook.action()(k, points)
    near = images.abs().amax(-1) < 1e3  # beside the light cone of a pole, rounding errors are as large as images
    assert float(near.double().mean()) > 0.9
    assert_relative(group.action()(g, points)[near], images[near], 1e-10)


@pytest.mark.parametrize(
    "name", ["sl2 + r", *(pytest.param(name, marks=pytest.mark.slow) for name in ("kdv", "unsplit"))]
)
def test_torch_functions_in_a_random_basis(name: str) -> None:
    """Nothing is known but values: constants look irrational in the basis that is given."""
    fields, variables = SPACES[name]
    matrix = mixing(len(fields), 3, 20.0)
    function = sp.lambdify(variables, [list(map(sp.sympify, f)) for f in fields], "math")

    def field(row: Tensor) -> Any:
        def at(p: Tensor) -> Tensor:
            values = [torch.stack([torch.as_tensor(e, dtype=p.dtype) + 0 * p[0] for e in f]) for f in function(*p)]
            return torch.einsum("i,im->m", row.to(p), torch.stack(values))

        return at

    group = from_generators([field(row) for row in matrix], variables=len(variables))
    check_laws(group, 0.1 * randn(3, 10, group.dim), 1e-10)
    w, start = 0.1 * randn(group.dim, seed=5), rand(1, len(variables), low=0.2, high=0.8)
    expected = flow(fields, variables, w @ matrix, start[0])
    assert_relative(group.action()(group.exp(w), start)[0], expected, 1e-10)


class TestUnsplit:
    """[x, a] = a, [y, b] = b, [x, y] = z does not split over its nilradical (a, b, z)."""

    def test_decomposition(self) -> None:
        group = from_generators(UNSPLIT, variables=(x, y, a, b, c))
        split = group.levi_decomposition
        assert (len(split.semisimple), len(split.torus), len(split.ideal)) == (0, 2, 3)
        assert split.derivations is not None
        for row, derivation in zip(split.torus, split.derivations, strict=True):
            values = torch.linalg.eigvals(group.algebra.ad(row))
            assert_relative(torch.linalg.eigvals(derivation).real.sort()[0], values.real.sort()[0], 1e-12)
        assert bool(group.algebra.bracket(*split.torus).any())

    def test_jordan_block_beside_a_weight(self) -> None:
        """[e4, e1] = e1, [e4, e3] = e2 splits, though e4 commutes with no complement of anything (A_{4,3})."""
        constants = torch.zeros(4, 4, 4, dtype=torch.float64)
        for i, k in ((0, 0), (2, 1)):
            constants[3, i, k], constants[i, 3, k] = 1.0, -1.0
        split = find_split(LieAlgebra(constants))
        assert (len(split.torus), len(split.ideal), split.derivations) == (1, 3, None)

    def test_derivatives_and_single_precision(self) -> None:
        group = from_generators(UNSPLIT, variables=(x, y, a, b, c))
        w = 0.3 * randn(4, 5)
        logs = torch.func.vmap(torch.func.jacfwd(lambda w: group.log(group.exp(w))))(w)
        assert_relative(logs, torch.eye(5, dtype=torch.float64).expand(4, -1, -1), 1e-10)
        assert_relative(group.log(group.exp(w.float())).double(), w, 1e-5)


class TestExact:
    def test_wave_in_four_dimensions(self) -> None:
        """so(4, 2) and one dilation of the fibre; the exact split is the textbook's."""
        point = (x, y, z, t)
        fields = [*with_fibre(conformal(point, (1, 1, 1, -1)), point, -sp.Rational(1, 4), u), (0, 0, 0, 0, u)]
        group = from_generators(fields, variables=(*point, u))
        split = group.levi_decomposition
        assert (len(split.semisimple), len(split.torus), len(split.ideal)) == (15, 0, 1)
        assert group.reductive is not None
        assert group.reductive.size == 6

    def test_constants_that_are_none(self) -> None:
        zero, one = Fraction(0), Fraction(1)
        with pytest.raises(AlgebraError, match="antisymmetric"):
            rational_structure([[[one]]])
        table = [[[zero] * 3 for _ in range(3)] for _ in range(3)]
        for i, j, k in ((0, 1, 0), (1, 2, 1)):
            table[i][j][k], table[j][i][k] = one, -one
        with pytest.raises(AlgebraError, match="Jacobi"):
            rational_structure(table)


class TestCompact:
    @pytest.mark.parametrize(("plus", "minus", "ideals", "loops"), [(3, 1, 1, 1), (2, 2, 2, 1), (3, 2, 1, 2)])
    def test_loops(self, plus: int, minus: int, ideals: int, loops: int) -> None:
        """Directions of loops in a skew basis of so(p, q): imaginary spectra with integer ratios."""
        form = torch.tensor([1.0] * plus + [-1.0] * minus, dtype=torch.float64)
        units = torch.eye(plus + minus, dtype=torch.float64)
        pairs = itertools.combinations(units, 2)
        matrices = torch.stack([(torch.outer(p, q) - torch.outer(q, p)) * form for p, q in pairs])
        matrices = torch.einsum("ij,jab->iab", mixing(len(matrices), 1, 30.0), matrices)
        algebra = LieAlgebra.from_matrices(matrices)
        found = simple_ideals(algebra)
        assert len(found) == ideals
        for ideal in found:
            directions = loop_directions(algebra, ideal)
            assert len(directions) == loops
            for matrix in torch.einsum("ri,iab->rab", directions, matrices):
                weights = torch.linalg.eigvals(matrix)
                turns = weights.imag / weights.imag[weights.imag > 1e-6].min()
                assert_relative(weights.real, torch.zeros(len(matrix)).double(), 1e-9)
                assert_relative(turns, turns.round(), 1e-8)


class TestSeveralCovers:
    """Windings of more than one factor, and beside other groups."""

    FIELDS = (
        (beside(list(OSCILLATOR.values()), [(1,), (sp.cos(2 * y),), (sp.sin(2 * y),)]), (x, y), 2),
        (beside(list(OSCILLATOR.values()), [(-v, u, 0), (0, -z, v), (z, 0, -u)]), (x, u, v, z), 1),
    )

    @pytest.mark.parametrize(
        ("fields", "variables", "count"),
        [pytest.param(*FIELDS[0], id="two"), pytest.param(*FIELDS[1], id="rotations", marks=pytest.mark.slow)],
    )
    def test_turns_are_counted(self, fields: Fields, variables: tuple[sp.Symbol, ...], count: int) -> None:
        group = from_generators(fields, variables=variables)
        assert group.reductive is not None
        assert group.reductive.covers == count
        n = group.dim
        w = torch.cat([0.3 * randn(5, n), torch.eye(n, dtype=torch.float64)[:1] * 9.0])
        check_laws(group, torch.stack([w, w.flip(0), 0.2 * w]), 1e-10)
        start = rand(1, len(variables))
        turned = group.action()(group.exp(w[-1]), start)
        assert_relative(turned[0, 0], start[0, 0] + 9.0, 1e-12)
        again = group.action()(group.compose(group.exp(w[-1]), group.exp(w[-1])), start)
        assert_relative(again[0, 0], start[0, 0] + 18.0, 1e-12)
        wide = random_vectors(group, std=0.5)
        assert_relative(group.action()(group.exp(wide), start)[0], flow(fields, variables, wide, start[0]), 1e-10)

    @pytest.mark.slow
    def test_time_of_a_linear_oscillator(self) -> None:
        """u'' + u = 0: a full turn of SL(3) moves t, and no cover of SL(3) has as many sheets: the action is local."""
        fields = [
            (1, 0), (0, u), (0, sp.cos(t)), (0, sp.sin(t)),
            (sp.cos(2 * t), -u * sp.sin(2 * t)), (sp.sin(2 * t), u * sp.cos(2 * t)),
            (u * sp.cos(t), -(u**2) * sp.sin(t)), (u * sp.sin(t), u**2 * sp.cos(t)),
        ]  # fmt: skip
        for matrix in (torch.eye(8, dtype=torch.float64), mixing(8, 1, 5.0)):
            group = from_generators(mixed(fields, matrix), variables=(t, u))
            assert isinstance(group._action_map, CoordinateActionMap)
            assert isinstance(group._action_map.rest, LogarithmFlow)
            assert group.reductive is not None
            assert (group.reductive.size, group.reductive.covers) == (3, 0)
            turn = 2.0 * torch.pi * torch.linalg.inv(matrix)[0]
            assert bool(group.exp(turn).isnan().all())


def test_no_correction_from_fields_that_lack_a_direction() -> None:
    """Translation and dilation of a line beside rotations, which move no radius, and no point of an axis."""
    shift = torch.eye(4, dtype=torch.float64)[0]
    dilation = torch.diag(shift)
    turns = SO(3).hat(torch.eye(3, dtype=torch.float64))
    linear = [dilation, *(torch.block_diag(torch.zeros(1, 1).double(), turn) for turn in turns)]
    functions = [lambda p: shift.expand_as(p), *(partial(torch.matmul, other=matrix) for matrix in linear)]
    points = randn(20, 4)
    points[::2, 1:3] = 0.0
    algebra = DirectProduct(affine_line(), SO(3)).algebra
    assert not IsotropyCorrector(VectorFields(functions, "xuvz", "abcde"), algebra, points, [4]).prefixes


class TestResiduals:
    def test_wave_solutions(self) -> None:
        """Solutions of u_tt = u_xx + u_yy go to solutions: the residual of the image of a plane wave."""
        group = from_generators(WAVE, variables=(x, y, t, u))
        g = group.exp(0.1 * randn(3, group.dim))
        action, back = group.action(), group.inverse(g)

        def image(points: Tensor) -> Tensor:
            """The transformed solution at points (x, y, t)."""
            origin = action(back, torch.cat([points, torch.ones_like(points[..., :1])], -1))
            wave = torch.cos(3.0 * origin[..., 0] + 4.0 * origin[..., 1] + 5.0 * origin[..., 2])
            return wave / origin[..., 3]

        points = rand(4, 3, low=0.2, high=0.8)
        for index in range(len(g)):
            hessians = torch.stack(
                [torch.func.hessian(lambda q, i=index: image(q.expand(3, 1, 3))[i, 0])(point) for point in points]
            )
            second = hessians.diagonal(dim1=-2, dim2=-1)
            residual = second[:, 2] - second[:, 0] - second[:, 1]
            assert float((residual.abs() / second.abs().sum(-1)).max()) < 1e-10


def test_heat_at_any_scale() -> None:
    """Textbook constants that are irrational numbers: decomposed in floating point."""
    fields = [tuple(sp.sympify(e).subs(nu, NU * sp.sqrt(2)) for e in f) for f in HEAT.values()]
    group = from_generators(fields, variables=(x, t, u))
    check_laws(group, 0.3 * randn(3, 10, 6), 1e-11)
