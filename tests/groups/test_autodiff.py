"""Derivatives of every operation: against finite differences, in every mode, under vmap and torch.compile."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

from tests.groups.cases import CASES, GroupCase
from tests.helpers import BOUNDS, assert_relative, numeric_jacobian, randn, random_elements, random_vectors
from trivgeo.groups import SL, HeatSymmetry, LieGroup

Function = Callable[[Tensor], Tensor]

RELATIVES = {"SL(2).Heisenberg(1)", "E(2)", "O(3)", "Triangular(2)", "Similarity(2)", "Affine(1)^3"}
"""Groups whose operations are those of another case, with other sizes or constants."""

QUICK_TO_TRACE = ("SL(2)", "HeatSymmetry(0.1)", "BurgersSymmetry")


def operations(group: LieGroup, std: float) -> dict[str, Function]:
    """Every operation as a function of an algebra vector near some element."""
    g, h = random_elements(group, std=std, seed=7), random_elements(group, std=0.3 * std, seed=8)
    elements = len(group.element_shape)

    def products(v: Tensor) -> Tensor:
        step = group.exp(v)
        product = group.compose(group.compose(g, step), h)
        return torch.stack([step, product, group.inverse(product), group.perturb(product, v)], -elements - 1)

    def logarithms(v: Tensor) -> Tensor:
        return torch.stack([group.log(group.exp(v)), group.log(group.retract(h, v))], -2)

    def adjoint(v: Tensor) -> Tensor:
        x = group.retract(g, v)
        return torch.cat([group.Ad(x).flatten(-2), group.log_modular(x).unsqueeze(-1)], -1)

    return {"products": products, "logarithms": logarithms, "adjoint": adjoint}


@pytest.fixture(
    params=[
        pytest.param(
            c, id=c.name, marks=[pytest.mark.slow(reason="a relative stays")] if c.slow or c.name in RELATIVES else []
        )
        for c in CASES
    ]
)
def case(request: pytest.FixtureRequest) -> GroupCase:
    return request.param


@pytest.fixture(params=list(operations(CASES[0].group, 1.0)))
def operation(request: pytest.FixtureRequest, case: GroupCase) -> Function:
    return operations(case.group, case.std)[request.param]


@pytest.fixture(params=[0.0, 1.0], ids=["zero", "generic"])
def point(request: pytest.FixtureRequest, case: GroupCase) -> Tensor:
    return request.param * random_vectors(case.group, std=case.std)


def weighted(f: Function) -> Function:
    """A number from a function, with generic weights."""

    def total(v: Tensor) -> Tensor:
        out = f(v)
        return (out * torch.linspace(1.0, 2.0, out.numel(), dtype=v.dtype).reshape(out.shape)).sum()

    return total


def test_first_derivatives(operation: Function, point: Tensor) -> None:
    """kornia#4404: NaN gradients at the identity. pypose#319: jacrev fails. Here both modes agree with differences."""
    forward, reverse = jacfwd(operation)(point), jacrev(operation)(point)
    assert_relative(forward, reverse, 1e-12, event=forward.ndim)
    assert_relative(forward, numeric_jacobian(operation, point), 1e-8, event=forward.ndim)


def test_second_derivatives(operation: Function, point: Tensor) -> None:
    """Forward over reverse mode everywhere; reverse mode twice at zero, where formulas divide by nothing."""
    f = weighted(operation)
    expected = numeric_jacobian(jacrev(f), point)
    for second in (hessian(f),) if bool(point.any()) else (hessian(f), jacrev(jacrev(f))):
        assert_relative(second(point), expected, 1e-7, event=2)


def test_under_vmap(case: GroupCase, operation: Function) -> None:
    """geoopt#221, pypose#319: under vmap with no context manager, and with jacobians inside, against a loop.

    Torch itself is wrong there for solve, det and slogdet, see tests/test_torch_faults.py.
    """
    v = random_vectors(case.group, 2, 3, std=case.std)
    for f in (operation, jacfwd(operation), hessian(weighted(operation))):
        mapped = vmap(vmap(f))(v)
        assert_relative(mapped[1, 2], f(v[1, 2]), 1e-11, event=mapped.ndim - 2)
    batched = vmap(jacfwd(operation))(v)  # a batch inside the mapped function
    inside = torch.stack([batched[0][row, ..., row, :] for row in range(3)])
    assert_relative(inside, vmap(jacrev(operation))(v[0]), 1e-11, event=2)


def test_jvp_of_a_batch(case: GroupCase, operation: Function) -> None:
    v, tangent = random_vectors(case.group, 3, std=case.std), random_vectors(case.group, 3, std=1.0, seed=1)
    _, derivative = jvp(operation, (v,), (tangent,))
    rows = [jacfwd(operation)(x) @ t for x, t in zip(v, tangent, strict=True)]
    assert_relative(derivative, torch.stack(rows), 1e-11, event=derivative.ndim - 1)


def test_gradcheck(case: GroupCase) -> None:
    """Reverse mode with respect to the entries of elements, twice."""
    group = case.group
    g = random_elements(group, 2, std=case.std).requires_grad_()
    h = random_elements(group, 2, std=case.std, seed=1).requires_grad_()
    v = random_vectors(group, 2, std=case.std).requires_grad_()
    for f, inputs in (
        (group.compose, (g, h)),
        (group.inverse, (g,)),
        (group.log, (g,)),
        (lambda g: group.Ad(g) + 0.0 * g.sum(), (g,)),  # constant on abelian groups
        (group.exp, (v,)),
    ):
        assert torch.autograd.gradcheck(f, inputs, atol=1e-5, rtol=1e-4, fast_mode=True)
        assert torch.autograd.gradgradcheck(f, inputs, atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_derivatives_are_finite_near_the_identity(case: GroupCase, dtype: torch.dtype) -> None:
    """kornia#4404, jaxlie#9: at zero and at distances down to underflow of float32, both derivatives are finite."""
    group = case.group
    direction = random_vectors(group, std=1.0, dtype=dtype)
    for size in (1e-6,) if dtype == torch.float64 else (0.0, 1e-30, 1e-6):  # zero in float64 is a point of the above
        f = weighted(lambda v: group.log(group.exp(v)))
        v = size * direction
        assert torch.isfinite(jacrev(f)(v)).all()
        assert torch.isfinite(hessian(f)(v)).all()
        identity = jacfwd(lambda v: group.log(group.exp(v)))(v)
        assert_relative(identity.to(dtype), torch.eye(group.dim, dtype=dtype), BOUNDS[dtype], event=2)


def test_derivatives_keep_the_dtype(case: GroupCase) -> None:
    """geomstats#1476 for dtypes: float32 in, float32 out, in every mode and also without a batch."""
    group = case.group
    g = random_elements(group, std=case.std, dtype=torch.float32)
    v = torch.zeros(group.dim)
    for f in (group.exp, lambda v: group.log(group.retract(g, v)), lambda v: group.Ad(group.retract(g, v))):
        assert {jacfwd(f)(v).dtype, jacrev(f)(v).dtype, hessian(f)(v).dtype} == {torch.float32}
        assert vmap(jacfwd(f))(torch.zeros(2, group.dim)).dtype == torch.float32


def test_coadjoint_changes_the_side_of_a_gradient(case: GroupCase) -> None:
    """Of f(exp(v) g) to that of f(g exp(v)), both in reverse mode."""
    group = case.group
    g, zero = random_elements(group, std=case.std), torch.zeros(group.dim, dtype=torch.float64)
    left = jacrev(weighted(lambda v: group.compose(group.exp(v), g)))(zero)
    right = jacrev(weighted(lambda v: group.compose(g, group.exp(v))))(zero)
    assert_relative(group.coadjoint(g, left), right, 1e-9)


def test_one_bad_element_does_not_spread() -> None:
    """No logarithm at one element of a batch: NaN there, exact derivatives elsewhere."""
    group = HeatSymmetry(0.1)
    g = random_elements(group, 3, std=0.3)
    g[1] = torch.cat([-torch.eye(2, dtype=torch.float64).flatten(), g[1, 4:]])
    assert group.has_log(g).tolist() == [True, False, True]
    jacobian = vmap(jacrev(group.log))(g)
    for row in (0, 2):
        assert_relative(jacobian[row], jacrev(group.log)(g[row]), 1e-12, event=2)
    leaf = g.clone().requires_grad_()
    group.log(leaf).nansum().backward()
    assert leaf.grad is not None
    assert torch.isfinite(leaf.grad[[0, 2]]).all()


class TestCompile:
    """One graph, no breaks."""

    @pytest.fixture(autouse=True)
    def _fresh(self) -> None:
        torch._dynamo.reset()

    @staticmethod
    def everything(group: LieGroup, g: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        h = group.compose(g, group.inverse(group.exp(v)))
        return h, group.log(h), group.Ad(h), group.log_modular(h), group.perturb(h, v)

    @pytest.mark.parametrize(
        "compiled",
        [
            *(c for c in CASES if c.name in QUICK_TO_TRACE),
            *(
                pytest.param(c, marks=pytest.mark.slow(reason=f"{', '.join(QUICK_TO_TRACE)} stay"))
                for c in CASES
                if (c.pdes or c.name == "R.Heisenberg(1)") and c.name not in QUICK_TO_TRACE
            ),
        ],
        ids=str,
    )
    def test_full_graph(self, compiled: GroupCase) -> None:
        group = compiled.group
        g = random_elements(group, 3, std=compiled.std)
        v = random_vectors(group, 3, std=compiled.std, seed=1)
        f = torch.compile(lambda g, v: self.everything(group, g, v), fullgraph=True, backend="eager")
        for actual, expected in zip(f(g, v), self.everything(group, g, v), strict=True):
            assert_relative(actual, expected, 1e-12)

    def test_action_and_gradients(self) -> None:
        group = HeatSymmetry(0.1)
        action = group.action()
        g, jets = random_elements(group, 2, std=0.2), randn(2, 4, 3).abs()

        def loss(g: Tensor) -> Tensor:
            return torch.func.grad(lambda x: action(x, jets).sin().sum())(g)

        for backend in ("eager", "aot_eager"):
            f = torch.compile(loss, fullgraph=True, backend=backend)
            assert_relative(f(g), loss(g), 1e-10, event=1)

    @pytest.mark.slow
    def test_default_backend(self) -> None:
        group = SL(2)
        v = randn(4, 3)
        f = torch.compile(lambda v: group.log(group.exp(v) @ group.exp(-0.5 * v)), fullgraph=True)
        assert_relative(f(v), 0.5 * v, 1e-10, event=1)
