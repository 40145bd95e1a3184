"""Matrices of elements against dense exponentials, functions that span representations against derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import sympy as sp
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.groups.from_generators.test_bases import WAVE, mixing
from tests.groups.textbook import BURGERS, FILIFORM, HEAT, KDV, SCHROEDINGER, b, c, d, e, nu, t, u, v, x, y
from tests.helpers import assert_relative, rand, randn
from trivgeo.groups import SL, SU, GeneratedGroup, HeatSymmetry, from_generators
from trivgeo.groups.algebra import subalgebra
from trivgeo.groups.from_generators import OdeSettings
from trivgeo.groups.from_generators.action_plan import ActionPlan, plan_action
from trivgeo.groups.from_generators.decomposition import decompose
from trivgeo.groups.from_generators.polynomial_representation import PolynomialRepresentation
from trivgeo.groups.from_generators.representation import Monomials, Representation
from trivgeo.groups.from_generators.semisimple_algebra import simple_ideals, standard_representation
from trivgeo.groups.from_generators.user_fields import parse_fields, sample_fields

KOLMOGOROV = [  # u_t + x u_y = u_xx
    (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, u), (1, t, 0, 0), (2 * t, t**2, 0, -x * u), (x, 3 * y, 2 * t, 0),
    (3 * t**2, t**3, 0, 3 * (y - t * x) * u), (t * x + 3 * y, 3 * t * y, t**2, -(2 * t + x**2) * u),
]  # fmt: skip
TANGENT = [(*f, *(sp.Matrix(f).jacobian([x, y]) * sp.Matrix([u, v]))) for f in
           [(1, 0), (0, 1), (x, 0), (y, 0), (0, x), (0, y), (x * x, x * y), (x * y, y * y)]]  # fmt: skip
LIOUVILLE = [(1, 0, 0), (x, 0, -1), (x**2, 0, -2 * x), (0, 1, 0), (0, t, -1), (0, t**2, -2 * t)]
SPACES: dict[str, tuple[Any, tuple[sp.Symbol, ...]]] = {
    "heat": ({k: [sp.sympify(w).subs(nu, sp.Rational(1, 10)) for w in f] for k, f in HEAT.items()}, (x, t, u)),
    "burgers": (BURGERS, (x, t, u)),
    "kdv": (KDV, (x, t, u)),
    "schroedinger": (SCHROEDINGER, (x, t, u, v)),
    "kolmogorov": (KOLMOGOROV, (x, y, t, u)),
    "filiform": (FILIFORM, (x, sp.Symbol("a"), b, c, d, e)),
    "wave": (WAVE, (x, y, t, u)),
    "liouville": (LIOUVILLE, (x, t, u)),
    "tangent vectors": (TANGENT, (x, y, u, v)),
}
SIZES = {"heat": [5], "burgers": [3], "wave": [2], "liouville": [2]}  # functions beside those of the bases


@cache
def group_of(name: str) -> GeneratedGroup:
    fields, variables = SPACES[name]
    return from_generators(fields, variables=variables)


@cache
def plan_of(name: str) -> ActionPlan:
    """The phases of `from_generators` up to the plan of the motion."""
    fields, variables = SPACES[name]
    decomposed = decompose(sample_fields(parse_fields(fields, variables, None), None, None), None)
    return plan_action(decomposed, None, OdeSettings())


@pytest.mark.parametrize("name", SPACES)
def test_functions_span_a_representation(name: str) -> None:
    """The derivative of phi^m F along every field is its matrix times F, by forward mode at random points."""
    flows = plan_of(name).flows
    fields, fibres = flows.fields, [fibre for fibre in flows.fibres if isinstance(fibre, PolynomialRepresentation)]
    points = rand(6, fields.dim, low=0.3, high=0.9)
    assert set(group_of(name).action().flows.values()) == {"closed form"}
    sizes = [len(fibre.functions) for fibre in fibres]
    assert sizes == SIZES.get(name, sizes)
    for fibre in fibres:
        if fibre.weights is not None:
            continue
        functions = lambda p: Monomials(fibre.exponents)(p) @ fibre.functions.T  # noqa: B023, E731
        values = functions(points)
        for i in range(len(fields)):
            slope = torch.func.jvp(functions, (points,), (fields(points)[:, i],))[1]
            # up to what the power of the denominators adds, a multiple of F
            missed = slope - values @ fibre.matrices[i].T
            factor = missed[:, :1] / values[:, :1]
            assert_relative(missed, factor * values, 1e-11)


@pytest.mark.parametrize("name", SPACES)
def test_matrices_of_elements(name: str) -> None:
    """Of exp(v) the exponential of the matrix of v, by torch; of products the products, in both precisions."""
    group, plan = group_of(name), plan_of(name)
    elements = group.elements
    w = 0.3 * randn(2, 20, group.dim)
    g, h = (group.exp(each) for each in w)
    mix = plan.decomposed.adapted.mixing
    fibres = [fibre for fibre in plan.flows.fibres if isinstance(fibre, PolynomialRepresentation)]
    for matrices in [stage.matrices for stage in (*plan.flows.bases, *fibres)]:
        matrix = Representation(elements, matrices)
        dense = torch.linalg.matrix_exp(torch.einsum("...i,ij,jab->...ab", w[0], mix, matrices))
        assert_relative(matrix(g), dense, 1e-12, event=2)
        assert_relative(matrix(group.compose(g, h)), matrix(g) @ matrix(h), 1e-11, event=2)
        assert_relative(matrix(group.exp(w[0].float())).double(), dense, 1e-4, event=2)
        assert_relative(Representation(elements, matrices, 1)(g), dense[..., :1, :], 1e-12, event=2)


class Operators(TorchDispatchMode):
    """Counts what torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        views = ("select", "slice", "unbind", "view", "unsqueeze", "expand", "alias", "squeeze", "detach", "split")
        if not any(view in func.name() for view in views):
            self.names.append(func.name())
        return value


@pytest.mark.parametrize(("name", "most"), [("heat", 95), ("burgers", 75), ("kdv", 60)])
def test_few_operators(name: str, most: int) -> None:
    """An action costs some dozens of elementwise operators: no exponential, logarithm or product of small matrices."""
    group = group_of(name)
    g, points = group.exp(0.2 * randn(5, group.dim)), rand(5, 1, 3)
    action = group.action()
    with torch.no_grad(), Operators() as seen:
        action(g, points)
    assert len(seen.names) <= most
    assert not any("linalg" in each or "bmm" in each for each in seen.names)
    if name == "heat":  # as the one of the catalogue, times four
        oracle = HeatSymmetry(0.1)
        with torch.no_grad(), Operators() as few:
            oracle.action()(oracle.exp(torch.zeros(5, 6, dtype=torch.float64)), points)
        assert len(seen.names) <= 4 * len(few.names)


@pytest.mark.parametrize("n", [3, 4])
def test_standard_representation(n: int) -> None:
    """Of sl(n, R) in a skew basis: brackets, and the trace form is the Killing form over 2 n."""
    algebra = SL(n).algebra.rescaled(mixing(n * n - 1, 1, 30.0))
    (ideal,) = simple_ideals(algebra)
    inner = subalgebra(algebra, ideal)
    matrices = standard_representation(inner)
    assert matrices is not None
    assert matrices.shape == (n * n - 1, n, n)
    brackets = matrices.unsqueeze(1) @ matrices - matrices @ matrices.unsqueeze(1)
    assert_relative(torch.einsum("ijk,kab->ijab", inner.structure_constants, matrices), brackets, 1e-12, event=4)
    trace = torch.einsum("iab,jba->ij", matrices, matrices)
    assert_relative(inner.killing_form, 2 * n * trace, 1e-11, event=2)


def test_other_forms_have_none() -> None:
    """su(3) is no sl(3, R), though of its dimension."""
    algebra = SU(3).algebra
    assert standard_representation(subalgebra(algebra, simple_ideals(algebra)[0])) is None


def test_products_of_powers() -> None:
    exponents: Sequence[tuple[int, ...]] = [(0, 0), (3, 1), (0, 2), (1, 0)]
    p = randn(4, 2)
    expected = torch.stack([p[:, 0] ** i * p[:, 1] ** j for i, j in exponents], -1)
    assert_relative(Monomials(exponents)(p), expected, 1e-14)
