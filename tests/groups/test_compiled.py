"""Compiled groups: operations fused by torch.compile, and the switch between compiled and eager operations."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from tests.helpers import assert_relative, random_vectors, seeded, traced_only
from trivgeo import _compile
from trivgeo.errors import ConfigurationError
from trivgeo.groups import (
    SE,
    SL,
    SO,
    SU,
    Affine,
    HeatSymmetry,
    Heisenberg,
    LieGroup,
    Projective,
    Torus,
    Translation,
    compiled,
)
from trivgeo.groups.linalg import matrix_functions
from trivgeo.groups.matrix import restore_determinant, unit_determinant
from trivgeo.groups.rotations import rotation_from_euler, rotation_to_euler, rotation_to_quaternion


def shares_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def spread_frames(values: list[float]) -> Tensor:
    """Matrices of these singular values."""
    left, right = (torch.linalg.qr(torch.randn(20, 4, 4, generator=seeded(k)).double())[0] for k in range(2))
    return left @ (torch.tensor(values, dtype=torch.float64).unsqueeze(-1) * right)


def test_rows_that_are_not_finite_make_nothing_eager(traced: None) -> None:
    """What comes of such a row is NaN or infinity, in compiled code at other places than in eager code."""
    group, v = compiled(SE(3), threshold=10), random_vectors(SE(3), 20, std=1.0)
    v[3], v[7, 2], v[11], v[13, 4] = math.inf, math.inf, math.nan, math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        g = group.exp(v)
        bad = torch.where(v.isnan().any(-1), math.nan, math.inf)[:, None, None]
        h = group.log(torch.where(v.isfinite().all(-1)[:, None, None], g, bad))
    assert [line.reason for line in group.compiler.report] == ["", ""]  # type: ignore[attr-defined]
    rows = v.isfinite().all(-1)
    assert_relative(g[rows], SE(3).exp(v[rows]), 1e-12)
    assert_relative(h[rows], SE(3).log(g[rows]), 1e-10)


@pytest.mark.parametrize("conversion", [rotation_to_quaternion, rotation_to_euler, rotation_from_euler])
def test_conversions_of_rotations_are_traced(conversion: Callable[[Tensor], Tensor]) -> None:
    angles = random_vectors(SO(3), 5, std=0.5)
    x = angles if conversion is rotation_from_euler else rotation_from_euler(angles)
    assert_relative(traced_only(conversion)(x), conversion(x), 1e-12)


@pytest.mark.parametrize("values", [[2.0, 1.0, 1.0, 0.5], [1e6, 1e-2, 1e-2, 1e-2], [1e3, 1e3, 1e3, 1e-9]])
def test_four_rows_are_inverted_without_library_routines(values: list[float]) -> None:
    """By pivots, so that no more digits are lost than by LAPACK; determinants by minors."""
    matrix = spread_frames(values)
    matrix[0] = torch.eye(4, dtype=torch.float64).flip(0)  # each pivot is below

    def both(m: Tensor) -> Tensor:
        return torch.cat(
            [matrix_functions(4).inverse(m).flatten(1), matrix_functions(4).determinant(m).unsqueeze(-1)], -1
        )

    found = traced_only(both)(matrix)
    inverse, determinant = found[:, :16].unflatten(1, (4, 4)), found[:, 16]
    with mpmath.workdps(40):
        rows = [(mpmath.matrix(m.tolist()) ** -1).tolist() for m in matrix]
    exact = torch.tensor([[[float(x) for x in row] for row in m] for m in rows], dtype=torch.float64)
    condition = values[0] / values[-1]
    assert_relative(inverse, exact, 20.0 * condition * torch.finfo(torch.float64).eps, event=2)
    size = torch.linalg.matrix_norm(matrix) ** 4
    assert float(((determinant - torch.linalg.det(matrix)).abs() / size).max()) < 1e-15
    if condition < 10.0:
        inputs = matrix.clone().requires_grad_()
        (expected,) = torch.autograd.grad(both(inputs).cos().sum(), inputs)
        (slope,) = torch.autograd.grad(traced_only(both)(inputs).cos().sum(), inputs)
        assert_relative(slope, expected, 1e-12, event=2)


@pytest.mark.parametrize("operation", ["exp", "log"])
def test_affine_maps_of_space_by_eigenvalues(operation: str) -> None:
    """Exponential and logarithm in compiled code are other algorithms than the eager ones."""
    v = 0.7 * torch.randn(20, 12, generator=seeded(0), dtype=torch.float64)
    v[0], v[1, :9], v[2, :9] = 0.0, 0.0, 1e-7 * v[2, :9]
    v[3, :9] = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0])  # a block of two, all eigenvalues e
    f = Affine(3)._exp if operation == "exp" else Affine(3)._log
    inputs = (v if operation == "exp" else Affine(3).exp(v)).requires_grad_()
    eager, other = f(inputs), traced_only(f)(inputs)
    assert_relative(other.detach(), eager.detach(), 1e-13, event=1)
    slopes = [torch.autograd.grad(y.cos().sum(), inputs)[0] for y in (eager, other)]
    assert_relative(slopes[1], slopes[0], 1e-12, event=inputs.ndim - 1)
    if operation == "log":
        assert_relative(other.detach(), v.detach(), 1e-12, event=1)


@pytest.mark.parametrize(
    ("group", "operation"),
    [
        *((group, operation) for group in (SE(3), HeatSymmetry(0.1)) for operation in ("exp", "log")),
        *((Affine(2), operation) for operation in ("exp", "log", "compose", "inverse")),
        *(
            pytest.param(group, operation, marks=pytest.mark.slow(reason="those of affine maps stay"))
            for group in (SE(3), HeatSymmetry(0.1))
            for operation in ("compose", "inverse")
        ),
    ],
    ids=str,
)
def test_a_whole_operation_is_elementwise(group: LieGroup, operation: str) -> None:
    """The traced graph computes with entries ``[n]`` alone: no products of matrices, no library routines."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    v = torch.randn(20, group.dim, generator=seeded(0))
    g = group.exp(0.3 * v)
    arguments = {"exp": (v,), "compose": (g, g)}.get(operation, (g,))
    torch.compile(getattr(group, f"_{operation}"), fullgraph=True, backend=backend)(*arguments)
    (graph,) = graphs
    called = {str(getattr(node.target, "__name__", node.target)) for node in graph.graph.nodes}
    assert not called & {"matmul", "bmm", "baddbmm", "einsum", "linalg_cross", "matrix_exp", "inv_ex"}


@pytest.mark.usefixtures("traced")
class TestSwitch:
    def test_a_large_batch_is_compiled_once_and_small_ones_never(self) -> None:
        group = compiled(SL(2), threshold=4)
        v = torch.randn(6, 3, generator=seeded(0), dtype=torch.float64)
        group.exp(v[:3])
        assert group.compiler.report == ()
        assert_relative(group.exp(v), SL(2).exp(v), 1e-14)
        assert_relative(group.exp(v[:5].expand(2, 5, 3)), SL(2).exp(v[:5].expand(2, 5, 3)), 1e-14)
        (line,) = group.compiler.report
        assert (line.operation, line.dtype, line.derivatives, line.reason) == ("exp", torch.float64, False, "")
        assert line.seconds > 0
        assert "exp in torch.float64: compiled" in repr(group.compiler)

    def test_batches_from_1000_on_are_compiled(self) -> None:
        group = compiled(SL(2))
        v = torch.randn(1000, 3, generator=seeded(0), dtype=torch.float64)
        group.exp(v[:999])
        assert group.compiler.report == ()
        g = group.exp(v)
        group.compose(g, g)
        assert [line.operation for line in group.compiler.report] == ["exp", "compose"]

    def test_code_is_used_for_what_it_was_made_for_alone(self) -> None:
        """Once one tensor twice, derivatives by one argument, inference and another number of threads."""
        plain, group = SL(2), compiled(SL(2), threshold=2)
        g, h = plain.random(2, 4, generator=seeded(0), dtype=torch.float64)
        assert_relative(group.compose(g, g), plain.compose(g, g), 1e-14)
        assert_relative(group.compose(g, h), plain.compose(g, h), 1e-14)
        a, b = g.clone().requires_grad_(), h.clone().requires_grad_()
        for inputs in ((g, b), (a, h), (a, b), (a, a)):
            leaves = [x for x in inputs if x.requires_grad]
            results = [torch.autograd.grad(one.compose(*inputs).cos().sum(), leaves) for one in (plain, group)]
            for expected, found in zip(*results, strict=True):
                assert_relative(found, expected, 1e-14)
        with torch.inference_mode():
            assert group.compose(g, h).is_inference()
        assert not group.compose(g, h).requires_grad

    def test_batches_broadcast_and_scales_stay(self) -> None:
        plain = SL(2, scale=[0.1, 2.0, 3.0])
        group = compiled(plain, threshold=2)
        g = plain.random(4, generator=seeded(0), dtype=torch.float64)
        h = plain.random(3, 1, generator=seeded(1), dtype=torch.float64)
        assert_relative(group.compose(g, h), plain.compose(g, h), 1e-14)
        assert_relative(group.log(g), plain.log(g), 1e-14)
        other = group.with_scale(2.0)
        assert other.compiler.report == ()
        assert len(group.compiler.report) == 2
        assert_relative(other.log(g), plain.with_scale(2.0).log(g), 1e-14)

    def test_iterations_transforms_and_half_precision_stay_eager(self) -> None:
        group, threshold = SO(3), 2
        rotations = compiled(group, threshold)
        g = group.random(4, generator=seeded(0))
        assert torch.equal(rotations.inverse(g), g.mT)
        assert rotations.compiler.report[0].reason == "since it computes nothing"
        homographies = compiled(Projective(3), threshold)
        p = Projective(3).random(4, std=0.1, generator=seeded(0))
        assert_relative(homographies.log(p), Projective(3).log(p), 1e-6)
        assert homographies.compiler.report[0].reason.startswith("since it is too long to compile")
        v = torch.randn(4, 3, generator=seeded(1))
        torch.func.vmap(rotations.exp)(v)
        torch.func.jvp(rotations.exp, (v,), (v,))
        rotations.exp(v.to(torch.bfloat16))
        assert len(rotations.compiler.report) == 1
        with torch.autocast("cpu", dtype=torch.bfloat16):  # which is for networks: compiled as without it
            assert_relative(rotations.compose(g, g), g.double().matmul(g.double()).float(), 1e-6)
        assert [entry.reason for entry in rotations.compiler.report[1:]] == [""]

    @pytest.mark.parametrize("group", [Translation(2), Heisenberg(1), Torus(2)], ids=repr)
    def test_results_have_memory_of_their_own(self, group: LieGroup) -> None:
        """Below the threshold and beyond, also of operations that compute nothing."""
        v = random_vectors(group, 4, std=0.1)
        g = group.exp(v)
        for fast in (compiled(group, 100), compiled(group, 2)):
            for name, x in {"exp": v, "log": g, "inverse": g, "project": g}.items():
                assert not shares_memory(getattr(fast, name)(x), x), name

    def test_it_is_the_same_group(self) -> None:
        group = compiled(HeatSymmetry(0.1, scale=0.5))
        assert group.is_same_group(HeatSymmetry(0.1))
        assert (group.nu, float(group.scale[0])) == (0.1, 0.5)
        assert group.action().group is group
        again = pickle.loads(pickle.dumps(group))
        assert again.compiler.threshold == group.compiler.threshold
        assert again.is_same_group(group)
        assert HeatSymmetry(0.1).compiler is None

    def test_bad_input(self) -> None:
        with pytest.raises(ConfigurationError, match="group: expected"):
            compiled("SO(3)")  # type: ignore[type-var]
        with pytest.raises(ConfigurationError, match="threshold"):
            compiled(SO(3), threshold=1)


def refuse(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
    raise RuntimeError("no C++ compiler found")


def differ(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
    return lambda *x: function(*x) + 1e-3


@pytest.mark.parametrize(("broken", "said"), [(refuse, "no C\\+\\+ compiler found"), (differ, "result differed")])
def test_a_broken_compiler_is_said_once(monkeypatch: pytest.MonkeyPatch, broken: Any, said: str) -> None:
    monkeypatch.setattr(_compile, "fuse", broken)
    group = compiled(SL(2), threshold=2)
    v = torch.randn(4, 3, generator=seeded(0))
    with pytest.warns(RuntimeWarning, match=f"exp in torch.float32: eager, since .*{said}") as seen:
        first = group.exp(v)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = group.exp(v)
    assert torch.equal(first, SL(2).exp(v))
    assert torch.equal(second, first)


@pytest.mark.usefixtures("traced")
def test_results_of_one_number() -> None:
    """A scalar for each element is compared as any result."""
    for group in (SO(3), Affine(2)):
        g = group.random(5, generator=seeded(0), std=0.3)
        assert_relative(compiled(group, threshold=2).log_modular(g), group.log_modular(g), 1e-6)


@pytest.mark.slow(reason="compiles more often than torch does for one function")
@pytest.mark.usefixtures("traced")
def test_many_groups_share_methods() -> None:
    """Each compiles for itself: torch's limit of compilations of one function is not met."""
    for dim in range(1, 12):
        group = Heisenberg(dim)
        g = group.random(5, generator=seeded(0), dtype=torch.float64)
        fast = compiled(group, threshold=2)
        assert_relative(fast.compose(g, g.flip(0)), group.compose(g, g.flip(0)), 1e-14)
        assert [line.reason for line in fast.compiler.report] == [""]


@pytest.mark.usefixtures("traced")
def test_derivatives() -> None:
    """By some arguments, of derivatives, of strided and of negated cotangents."""
    plain, group = SE(2), compiled(SE(2), threshold=2)
    g, h = plain.random(2, 6, generator=seeded(0), dtype=torch.float64)
    for inputs in ((g.clone().requires_grad_(), h), (g, h.clone().requires_grad_())):
        leaves = [x for x in inputs if x.requires_grad]
        values = []
        for one in (plain, group):
            (slope,) = torch.autograd.grad(one.compose(*inputs).pow(3).sum(), leaves, create_graph=True)
            values.append((slope.detach(), torch.autograd.grad(slope.square().sum(), leaves)[0]))
        for expected, found in zip(*values, strict=True):
            assert_relative(found, expected, 1e-13)
    v = torch.randn(6, 3, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    cotangent = torch.conj(torch.view_as_complex(torch.randn(6, 2, 3, 2, dtype=torch.float64))).imag
    slopes = [torch.autograd.grad(one.exp(v), v, cotangent)[0] for one in (plain, group)]
    assert_relative(slopes[1], slopes[0], 1e-13)
    negated = torch.conj(torch.view_as_complex(torch.randn(6, 3, 2, dtype=torch.float64))).imag
    assert negated.is_neg()
    assert_relative(group.exp(negated), plain.exp(negated), 1e-14)


@pytest.mark.parametrize(
    "group",
    [SL(2), *(pytest.param(g, marks=pytest.mark.slow) for g in (SO(3), SO(5), SE(3), Affine(2), SU(3), SL(4)))],
    ids=repr,
)
def test_machine_code_is_the_eager_operation(group: LieGroup) -> None:
    fast = compiled(group, threshold=10)
    v, w = 0.4 * torch.randn(2, 50, group.dim, generator=seeded(0), dtype=torch.float64)
    g, h = group.exp(v), group.exp(w)
    operations = {"exp": (v,), "log": (g,), "compose": (g, h), "inverse": (g,), "Ad": (g,)}
    for name in ["exp"] if group.dim == 3 and isinstance(group, SL) else list(operations):
        for batch in (50, 11):
            inputs = [x[:batch].detach().requires_grad_() for x in operations[name]]
            results = []
            for one in (group, fast):
                y = getattr(one, name)(*inputs)
                results.append((y.detach(), *torch.autograd.grad(y.cos().sum(), inputs)))
            for eager, other in zip(*results, strict=True):
                assert_relative(other, eager, 1e-12, event=1)
    assert not [line for line in fast.compiler.report if "failed" in line.reason or "differed" in line.reason]
    exp = [line for line in fast.compiler.report if line.operation == "exp" and not line.derivatives]
    assert [line.reason for line in exp] == [""]


def test_a_hundred_thousand_rigid_motions_are_compiled() -> None:
    """On every torch of the range, and the report says so."""
    fast = compiled(SE(3))
    v = 0.5 * torch.randn(100_000, 6, generator=seeded(0), dtype=torch.float64)
    assert_relative(fast.exp(v), SE(3).exp(v), 1e-12)
    (line,) = fast.compiler.report
    assert str(line).startswith("exp in torch.float64: compiled in ")


def test_nothing_is_compiled_in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of the process alone; of a real one below."""
    monkeypatch.setattr(_compile, "_PROCESS_ID", os.getpid() - 1)
    group = compiled(SO(3), threshold=2)
    g = SO(3).random(4, generator=seeded(0), dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match="spawn"):
        found = group.compose(g, g)
    assert torch.equal(found, SO(3).compose(g, g))
    assert "spawn" in group.compiler.report[0].reason


@pytest.mark.slow
def test_a_forked_process_uses_code_and_compiles_none() -> None:
    """With a cold cache torch's compiler waits there for ever for workers that its parent has."""
    script = """
import os, sys, warnings, torch
from trivgeo.groups import SL, compiled
group = compiled(SL(2))
v = torch.randn(1000, 3, dtype=torch.float64)
g = group.exp(v)
child = os.fork()
if not child:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same = torch.equal(group.exp(v), g) and torch.equal(group.inverse(g), SL(2).inverse(g))
    first, second = group.compiler.report
    os._exit(0 if same and not first.reason and "spawn" in second.reason and len(caught) == 1 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("k", [2, 3])
def test_what_is_projected_has_one_derivative(k: int) -> None:
    """Also where rounding leaves a matrix as it is."""
    g = SL(k).random(200, std=0.3, generator=seeded(0), dtype=torch.float64).requires_grad_()
    kept = restore_determinant(g)
    same = (kept == g).all(-1).all(-1)
    assert same.any()
    found, wanted = (torch.autograd.grad(y.cos().sum(), g)[0] for y in (kept, unit_determinant(g)))
    assert_relative(found, wanted, 1e-13, event=2)


@pytest.mark.parametrize("make", [lambda: SO(2), lambda: SU(2), lambda: Heisenberg(1)], ids=["SO", "SU", "Heisenberg"])
def test_a_group_made_in_compiled_code(make: Callable[[], LieGroup]) -> None:
    """It ends the graph; where that is forbidden, the error says what to do."""
    v = random_vectors(make(), 3, std=0.5, dtype=torch.float32)
    function = lambda v: make().exp(v)  # noqa: E731
    torch._dynamo.reset()
    assert torch.allclose(torch.compile(function, backend="eager")(v), function(v), atol=1e-6)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="group: expected one made outside of a function compiled with fullgraph=True"):
        torch.compile(function, backend="eager", fullgraph=True)(v)
