"""Compiled groups: the small dimensions written out, and the switch between compiled and eager operations."""

from __future__ import annotations

import json
import pickle
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import mpmath
import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from tests.groups.cases import CASES, GroupCase, marked
from tests.groups.test_loops import machine_code
from tests.helpers import assert_relative, random_vectors, seeded
from trivgeo import _numerics
from trivgeo._numerics import is_traced, tracing
from trivgeo.errors import ConfigurationError
from trivgeo.groups import (
    SE,
    SL,
    SO,
    SU,
    Affine,
    GeneratedGroup,
    GLPlus,
    HeatSymmetry,
    Heisenberg,
    LieGroup,
    MatrixGroup,
    Nilpotent,
    Projective,
    Torus,
    Translation,
    _programs,
    _source,
    compilation,
    compiled,
)
from trivgeo.groups._entries import WriteOut, aten
from trivgeo.groups._matrices import kernel
from trivgeo.groups._programs import Loop, Program
from trivgeo.groups.matrix import restore_determinant, unit_determinant

SMALL = 3  # elements of a batch of tests


def written_out(f: Callable[..., Tensor], kept: list[torch.fx.Graph] | None = None) -> Callable[..., Tensor]:
    """``f`` with its graphs, forward and backward, written out but run by Python, without a compiler."""

    def run(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        WriteOut()(module.graph)
        module.recompile()
        if kept is not None:
            kept.append(module.graph)
        return make_boxed_func(module.forward)

    backend = aot_autograd(fw_compiler=run, bw_compiler=run, decompositions=select_decomp_table())
    options = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}  # as the switch does
    wrapped = torch.compile(f, backend=backend, options=options, **compilation._MANNER)

    def call(*x: Tensor) -> Tensor:
        with tracing(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
            return wrapped(*compilation._marked(x))

    return call


SHAPES: list[tuple[int, ...]] = [(3, 3), (3, 3), (3,)]


def many_rules(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Most operators that are written out, on ``[b, 3, 3]``, ``[b, 3, 3]`` and ``[b, 3]``."""
    constant = torch.arange(12.0, dtype=a.dtype).reshape(3, 4)
    first, *_ = a.unbind(-2)
    parts = torch.split(a, [1, 2], -1)
    scattered = torch.zeros_like(a)
    scattered[..., 1] = c
    moved = a.movedim(0, -1).contiguous().movedim(-1, 0)
    results = [
        a @ b,
        (a @ c.unsqueeze(-1)).squeeze(-1),
        c @ constant,
        torch.einsum("...i,ijk->...jk", c, constant.reshape(3, 2, 2)),
        torch.linalg.cross(first, c),
        torch.linalg.cross(c.unsqueeze(-1), a, dim=-2),
        a.sum((-2, -1)).unsqueeze(-1),
        a.mean(-1),
        a.abs().amax((-2, -1), keepdim=True),
        a.amin(-1),
        torch.where((a > 0).all(-1), 1.0, c),
        torch.where((b > 0).any(-1), c, 0.0),
        torch.where(~((c > 0) & (a[..., 0] < 0)) & ((b[..., 0] > 0) | (c < 1)), c, 2.0 * c),
        torch.cat([parts[1], parts[0] * 2.0, c.unsqueeze(-1)], -1),
        torch.stack([a.diagonal(dim1=-2, dim2=-1), c], -1).mT,
        torch.diag_embed(c),
        torch.eye(3, dtype=a.dtype) + a.mT,
        scattered * b[..., 1:, :].flatten(1)[:, :1, None],
        moved - 1.0,
        torch.linalg.matrix_exp(a),  # not written out
        torch.full_like(c, 3.0) / (1.0 + c.square()),
        torch.nn.functional.pad(a, (1, 0, 0, 2), value=2.0),
        a[..., [2, 0, 0], [1, 1, 0]] * c,
        b + torch.diag_embed(c) - torch.zeros_like(a) * a,
        torch.nn.functional.pad(a, (0, -1, -2, 1), value=2.0),
        torch.diagonal_scatter(a, c[..., :2], 1, -1, -2),
        torch.stack([a, b], 1) @ torch.stack([b, c.unsqueeze(-1).expand_as(b)], 1),
        (torch.cat([a, b], -1).reshape(-1, 6) @ constant.flatten()[:6]).reshape(-1, 3),
        torch.linalg.matrix_exp(torch.stack([a, b], 1).flatten(0, 1)).unflatten(0, (-1, 2)).sum(1),
        a[..., :0] @ b[..., :0, :],
        a[..., :0].sum(-1) + c[..., :0].sum(-1, keepdim=True),
    ]
    return torch.cat([r.flatten(1) for r in results], -1)


def test_every_rule_is_the_operator() -> None:
    a, b, c = (torch.randn(SMALL + 1, *s, generator=seeded(k)).double() for k, s in enumerate(SHAPES))
    graphs: list[torch.fx.Graph] = []
    assert_relative(written_out(many_rules, graphs)(a, b, c), many_rules(a, b, c), 1e-14)
    targets = {node.target for node in graphs[0].nodes}
    inputs = [x.requires_grad_() for x in (a, b, c)]
    expected = torch.autograd.grad(many_rules(*inputs).square().sum(), inputs)
    got = torch.autograd.grad(written_out(many_rules)(*inputs).square().sum(), inputs)
    for one, other in zip(got, expected, strict=True):
        assert_relative(one, other, 1e-13)
    assert not targets & {aten.bmm.default, aten.mm.default, aten.linalg_cross.default, aten.amax.default}
    assert not targets & {aten.index.Tensor, aten.constant_pad_nd.default}
    assert aten.linalg_matrix_exp.default in targets


def spread_frames(values: list[float]) -> Tensor:
    """Matrices of these singular values."""
    left, right = (torch.linalg.qr(torch.randn(20, 4, 4, generator=seeded(k)).double())[0] for k in range(2))
    return left @ (torch.tensor(values, dtype=torch.float64).unsqueeze(-1) * right)


@pytest.mark.parametrize("values", [[2.0, 1.0, 1.0, 0.5], [1e6, 1e-2, 1e-2, 1e-2], [1e3, 1e3, 1e3, 1e-9]])
def test_four_rows_are_inverted_without_library_routines(values: list[float]) -> None:
    """By pivots, so that no more digits are lost than by LAPACK; determinants by minors."""
    matrix = spread_frames(values)
    matrix[0] = torch.eye(4, dtype=torch.float64).flip(0)  # each pivot is below
    graphs: list[torch.fx.Graph] = []

    def both(m: Tensor) -> Tensor:
        return torch.cat([kernel(4).inverse(m).flatten(1), kernel(4).determinant(m).unsqueeze(-1)], -1)

    found = written_out(both, graphs)(matrix)
    inverse, determinant = found[:, :16].unflatten(1, (4, 4)), found[:, 16]
    with mpmath.workdps(40):
        exact = [(mpmath.matrix(m.tolist()) ** -1).tolist() for m in matrix]
    exact = torch.tensor([[[float(x) for x in row] for row in rows] for rows in exact], dtype=torch.float64)
    condition = values[0] / values[-1]
    assert_relative(inverse, exact, 20.0 * condition * torch.finfo(torch.float64).eps, event=2)
    size = torch.linalg.matrix_norm(matrix) ** 4
    assert float(((determinant - torch.linalg.det(matrix)).abs() / size).max()) < 1e-15
    assert not {n.target for n in graphs[0].nodes} & {aten.linalg_inv_ex.default, aten.linalg_lu_factor_ex.default}
    if condition < 10.0:
        inputs = matrix.clone().requires_grad_()
        (expected,) = torch.autograd.grad(both(inputs).cos().sum(), inputs)
        (slope,) = torch.autograd.grad(written_out(both)(inputs).cos().sum(), inputs)
        assert_relative(slope, expected, 1e-12, event=2)


@pytest.mark.parametrize("operation", ["exp", "log"])
def test_affine_maps_of_space_are_written_out(operation: str) -> None:
    """Their exponential and logarithm in compiled code, which are others than the eager ones."""
    v = 0.7 * torch.randn(20, 12, generator=seeded(0), dtype=torch.float64)
    v[0], v[1, :9], v[2, :9] = 0.0, 0.0, 1e-7 * v[2, :9]
    v[3, :9] = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0])  # a block of two, all eigenvalues e
    f = Affine(3)._exp if operation == "exp" else Affine(3)._log
    inputs = (v if operation == "exp" else Affine(3).exp(v)).requires_grad_()
    eager, other = f(inputs), written_out(f)(inputs)
    assert_relative(other.detach(), eager.detach(), 1e-13, event=1)
    slopes = [torch.autograd.grad(y.cos().sum(), inputs)[0] for y in (eager, other)]
    assert_relative(slopes[1], slopes[0], 1e-12, event=inputs.ndim - 1)
    if operation == "log":
        assert_relative(other.detach(), v.detach(), 1e-12, event=1)


def test_a_whole_operation_is_elementwise() -> None:
    """All that is left of a product of rigid motions are entries read, products and sums of these, and one result."""
    graphs: list[torch.fx.Graph] = []
    g = SE(3).random(SMALL, generator=seeded(0))
    written_out(SE(3)._compose, graphs)(g, g.clone())
    called = [node for node in graphs[0].nodes if isinstance(node.meta.get("val"), Tensor) and node.op != "placeholder"]
    entries = {aten.select.int, aten.mul.Tensor, aten.add.Tensor}
    assert {node.target for node in called if node.meta["val"].ndim == 1} == entries
    assert sum(node.target is aten.cat.default for node in called) == 1


def test_a_group_of_another_size_is_written_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both multiply by one method: what it was traced with first is no size that may vary."""
    graphs: list[torch.fx.Graph] = []
    monkeypatch.setattr(compilation, "_machine_code", lambda f, *_: written_out(f, graphs))
    for group in (SL(2), SO(3), GLPlus(4)):
        g, h = group.random(2, SMALL, generator=seeded(0), dtype=torch.float64)
        assert_relative(compiled(group, threshold=2).compose(g, h), group.compose(g, h), 1e-14)
    assert len(graphs) == 3
    assert not {node.target for graph in graphs for node in graph.nodes} & {aten.bmm.default}


def test_numbers_of_a_group_are_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where other groups, with other numbers, were compiled by the same method before."""
    graphs: list[torch.fx.Graph] = []
    monkeypatch.setattr(compilation, "_machine_code", lambda f, *_: written_out(f, graphs))
    for group in (Heisenberg(1), Heisenberg(2), Heisenberg(3)):
        g = group.random(SMALL, generator=seeded(0), dtype=torch.float64).requires_grad_()
        torch.autograd.grad(compiled(group, threshold=2).compose(g, g).sum(), g)
    variables = [[n for n in graph.find_nodes(op="placeholder") if not is_tensor(n)] for graph in graphs]
    assert max(map(len, variables)) == 1  # the size of the batch
    assert not {aten.bmm.default, aten.slice.Tensor} & {node.target for graph in graphs for node in graph.nodes}


@pytest.mark.parametrize(
    ("group", "most"), [(SL(3), 300), (SU(3), 220), (MatrixGroup(SL(3).hat(torch.eye(8).double())), 300)]
)
def test_numbers_of_a_group_are_known(group: LieGroup, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of them are zeros, which need no products: Ad of SL(3) would take 1026."""
    graphs: list[torch.fx.Graph] = []
    monkeypatch.setattr(compilation, "_machine_code", lambda f, *_: written_out(f, graphs))
    g = group.random(SMALL, generator=seeded(0), dtype=torch.float64)
    assert_relative(compiled(group, threshold=2).Ad(g), group.Ad(g), 1e-13)
    (graph,) = graphs
    assert sum(is_tensor(node) for node in graph.find_nodes(op="placeholder")) == 1
    assert sum(node.target is aten.mul.Tensor for node in graph.nodes) <= most


def is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta["val"], Tensor)


def test_indices_have_derivatives() -> None:
    """Two of the entries are read twice: their derivatives add up. Cross products are indices, in both directions."""
    graphs: list[torch.fx.Graph] = []
    a = torch.randn(SMALL + 1, 3, 3, generator=seeded(0), dtype=torch.float64, requires_grad=True)

    def read(a: Tensor) -> Tensor:
        return a[..., [2, 0, 0], [1, 1, 1]] * a[..., 0, :] + torch.linalg.cross(a[..., 0], a[..., 1])

    (expected,) = torch.autograd.grad(read(a).cos().sum(), a)
    (found,) = torch.autograd.grad(written_out(read, graphs)(a).cos().sum(), a)
    assert_relative(found, expected, 1e-14)
    assert not {node.target for graph in graphs for node in graph.nodes} & {aten.index.Tensor}


def everything(group: LieGroup, g: Tensor, h: Tensor, v: Tensor) -> Tensor:
    """Operations that have closed forms on most groups, in one row for each element."""
    results = [group.exp(v), group.compose(g, h), group.inverse(g), group.Ad(g), group.log_modular(g)]
    return torch.cat([r.flatten(1) if r.ndim > 1 else r.unsqueeze(1) for r in results], -1)


SPREAD = ("SO(4)", "SE(3)", "Affine(2)", "Projective(2)", "SU(2)", "HeatSymmetry(0.1)", "KdVSymmetry")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.name in SPREAD], ids=str)
def test_written_out_operations_are_the_eager_ones(case: GroupCase) -> None:
    group = case.make(scale=0.7)
    u, v, w = (torch.randn(SMALL, group.dim, generator=seeded(k), dtype=torch.float64) for k in range(3))
    g, h = group.exp(case.std * u), group.exp(case.std * v)
    inputs = [x.requires_grad_() for x in (g.detach(), h.detach(), case.std * w)]
    weights = torch.randn(SMALL, 1, generator=seeded(3), dtype=torch.float64)
    values = []
    for f in (everything, written_out(everything_of(group))):
        y = f(group, *inputs) if f is everything else f(*inputs)
        values.append((y.detach(), *torch.autograd.grad((weights * y.cos()).sum(), inputs)))
    for eager, other in zip(*values, strict=True):
        assert_relative(other, eager, 1e-12, event=1)


def everything_of(group: LieGroup) -> Callable[..., Tensor]:
    return lambda g, h, v: everything(group, g, h, v)


# The switch ------------------------------------------------------------------------------------------------------


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations are traced and written out, but not compiled to machine code."""
    monkeypatch.setattr(compilation, "_machine_code", lambda f, *_: written_out(f))


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

    def test_batches_from_64_on_are_compiled(self) -> None:
        group = compiled(SL(2))
        v = torch.randn(64, 3, generator=seeded(0), dtype=torch.float64)
        group.exp(v[:63])
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

    def test_views_iterations_transforms_and_half_precision_stay_eager(self) -> None:
        group, threshold = SO(3), 2
        rotations = compiled(group, threshold)
        g = group.random(4, generator=seeded(0))
        assert rotations.inverse(g).data_ptr() == g.data_ptr()
        assert rotations.compiler.report[0].reason == "a view of its argument"
        homographies = compiled(Projective(3), threshold)
        p = Projective(3).random(4, std=0.1, generator=seeded(0))
        assert_relative(homographies.log(p), Projective(3).log(p), 1e-6)
        assert homographies.compiler.report[0].reason.startswith("too long: ")
        v = torch.randn(4, 3, generator=seeded(1))
        torch.func.vmap(rotations.exp)(v)
        torch.func.jvp(rotations.exp, (v,), (v,))
        rotations.exp(v.to(torch.bfloat16))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rotations.compose(g, g)
        assert len(rotations.compiler.report) == 1

    @pytest.mark.parametrize("case", marked(CASES))
    def test_which_operations_are_views(self, case: GroupCase) -> None:
        """Those that `compiled` names, below the threshold as beyond; of all others the result is one's own."""
        named: list[tuple[Any, set[str]]] = [
            ((Translation, Heisenberg, Nilpotent), {"exp", "log"}),
            (Torus, {"exp"}),
            (SO, {"inverse", "Ad"} if case.group.dim == 3 else {"inverse"}),
        ]
        views = {name for kinds, names in named if isinstance(case.group, kinds) for name in names}
        if type(case.group)._project is LieGroup._project:
            assert isinstance(case.group, Translation | Heisenberg | Nilpotent | MatrixGroup | GeneratedGroup)
            views.add("project")
        v = random_vectors(case.group, 4, std=0.1)
        g = case.group.exp(v)
        arguments = {"exp": v, "left_jacobian": v, "log": g, "inverse": g, "project": g, "Ad": g, "log_modular": g}
        small, large = compiled(case.group, 100), compiled(case.group, 2)
        for name, x in arguments.items():
            assert torch._C._is_alias_of(getattr(small, name)(x), x) == (name in views), name
        for name in views:
            assert torch._C._is_alias_of(getattr(large, name)(arguments[name]), arguments[name]), name

    def test_it_is_the_same_group(self) -> None:
        group = compiled(HeatSymmetry(0.1, scale=0.5))
        assert group.same_law(HeatSymmetry(0.1))
        assert (group.nu, float(group.scale[0])) == (0.1, 0.5)
        assert group.action().group is group
        again = pickle.loads(pickle.dumps(group))
        assert again.compiler.threshold == group.compiler.threshold
        assert again.same_law(group)
        assert HeatSymmetry(0.1).compiler is None

    def test_bad_input(self) -> None:
        with pytest.raises(ConfigurationError, match="group: expected"):
            compiled("SO(3)")  # type: ignore[type-var]
        with pytest.raises(ConfigurationError, match="threshold"):
            compiled(SO(3), threshold=1)


def refuse(f: Callable[..., Tensor], *rest: Any) -> Callable[..., Tensor]:
    raise RuntimeError("no C++ compiler found")


def differ(f: Callable[..., Tensor], *rest: Any) -> Callable[..., Tensor]:
    return lambda *x: f(*x) + 1e-3


def test_results_of_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scalar for each element is compared as any result; one constant is a number for each, which can be written."""
    monkeypatch.setattr(compilation, "_machine_code", lambda f, *_: f)
    for group in (SO(3), Affine(2)):
        g = group.random(5, generator=seeded(0), std=0.3)
        assert_relative(compiled(group, threshold=2).log_modular(g), group.log_modular(g), 1e-14)
    result = written_out(SO(2).Ad)(SO(2).random(5, generator=seeded(0)))
    result[0] = 5.0
    assert result.flatten().tolist() == [5.0, 1.0, 1.0, 1.0, 1.0]


def test_what_32_bits_cannot_count_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(compilation, "_machine_code", lambda f, *_: lambda *x: calls.append(1) or f(*x))
    monkeypatch.setattr(compilation, "_END_OF_32_BITS", 9 * 8)
    group = compiled(SO(3), threshold=2)
    v = torch.randn(8, 3, generator=seeded(0))
    monkeypatch.setattr(compilation, "_is_counted", lambda x: True)
    for number in (4, 8):
        group.exp(v[:number])
    assert len(calls) == 2


@pytest.mark.parametrize(("broken", "said"), [(refuse, "no C\\+\\+ compiler found"), (differ, "result differed")])
def test_a_broken_compiler_is_said_once(monkeypatch: pytest.MonkeyPatch, broken: Any, said: str) -> None:
    monkeypatch.setattr(compilation, "_machine_code", broken)
    group = compiled(SL(2), threshold=2)
    v = torch.randn(4, 3, generator=seeded(0))
    with pytest.warns(RuntimeWarning, match=f"exp in torch.float32: eager, since .*{said}"):
        first = group.exp(v)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = group.exp(v)
    assert torch.equal(first, SL(2).exp(v))
    assert torch.equal(second, first)


@pytest.mark.slow
@pytest.mark.parametrize("group", [SO(3), SO(5), SE(3), Affine(2), SU(3), SU(4), SL(4), HeatSymmetry(0.1)], ids=repr)
def test_machine_code_is_the_eager_operation(group: LieGroup) -> None:
    fast = compiled(group, threshold=10)
    v, w = 0.4 * torch.randn(2, 50, group.dim, generator=seeded(0), dtype=torch.float64)
    g, h = group.exp(v), group.exp(w)
    for name, arguments in (("exp", (v,)), ("log", (g,)), ("compose", (g, h)), ("inverse", (g,)), ("Ad", (g,))):
        for batch in (50, 11):
            inputs = [x[:batch].detach().requires_grad_() for x in arguments]
            results = []
            for one in (group, fast):
                y = getattr(one, name)(*inputs)
                results.append((y.detach(), *torch.autograd.grad(y.cos().sum(), inputs)))
            for eager, other in zip(*results, strict=True):
                assert_relative(other, eager, 1e-12, event=1)
    assert not [line for line in fast.compiler.report if line.reason.startswith("since")]


@pytest.mark.parametrize(
    ("group", "name"),
    [(SL(2), "exp"), *(pytest.param(SE(3), name, marks=pytest.mark.slow) for name in ("exp", "log", "Ad"))],
)
def test_code_of_accelerators_is_the_eager_operation(
    group: LieGroup, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of `torch.compile`, which makes it for processors, too."""
    monkeypatch.setattr(compilation, "_machine_code", lambda f, flat, record: compilation._torch_compile(f, flat))
    fast = compiled(group, threshold=10)
    v = 0.4 * torch.randn(50, group.dim, generator=seeded(0), dtype=torch.float64)
    for batch in (50, 11):
        x = (v if name == "exp" else group.exp(v))[:batch].detach().requires_grad_()
        results = [getattr(one, name)(x) for one in (group, fast)]
        assert_relative(results[1].detach(), results[0].detach(), 1e-12, event=1)
        slopes = [torch.autograd.grad(y.cos().sum(), x)[0] for y in results]
        assert_relative(slopes[1], slopes[0], 1e-12, event=1)
    (line,) = fast.compiler.report
    assert not line.reason


def parts_of(f: Callable[..., Tensor], x: Tensor) -> tuple[Program, Program]:
    forward, backward = _programs._traced(f, (x,), (True,))
    assert backward is not None
    return forward, backward


@pytest.mark.parametrize("group", [SO(3), pytest.param(SO(4), marks=pytest.mark.slow), Affine(2)], ids=repr)
def test_machine_code_is_one_loop(group: LieGroup) -> None:
    """Forward and backward, and nothing else; masks of doubles are as wide. Of four rows without routines, too."""
    g = group.exp(0.4 * torch.randn(50, group.dim, generator=seeded(0), dtype=torch.float64))
    for part in parts_of(group._scaled_log, g):
        (step,) = part.steps
        assert isinstance(step, Loop)
        assert step.source.count("void kernel(") == 1
        assert "cast<int32_t" not in step.source


@pytest.mark.slow
def test_machine_code_is_one_loop_beside_a_library_routine() -> None:
    """The inverse of five rows is one; its result is copied in the order of rows, and the loop after it is one."""
    group = MatrixGroup(SO(5).hat(torch.eye(10, dtype=torch.float64)))
    g = group.exp(0.4 * torch.randn(50, group.dim, generator=seeded(0), dtype=torch.float64))
    forward, _ = parts_of(group._scaled_adjoint, g)
    assert sum(isinstance(step, Loop) for step in forward.steps) == 1
    value = compiled(group, threshold=10).Ad(g)
    assert value.is_contiguous()
    assert_relative(value, group.Ad(g), 1e-12, event=2)


# Kept on disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A disk without code."""
    monkeypatch.setattr(_programs, "cache_dir", lambda: str(tmp_path))
    return tmp_path / "trivgeo"


def test_the_next_process_finds_the_code(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It traces nothing; a file that was cut off is written again."""
    v = torch.randn(4, 3, generator=seeded(0), dtype=torch.float64, requires_grad=True)
    first = compiled(HeatGroup(1.0), threshold=2).exp(v)
    (kept,) = disk.iterdir()
    text = kept.read_text()
    with monkeypatch.context() as change:
        change.setattr(_programs, "_traced", refuse)
        group = compiled(HeatGroup(1.0), threshold=2)
        again = group.exp(v)
        assert group.compiler.report[0].reason == ""
        assert torch.equal(first, again)
        found, wanted = (torch.autograd.grad(y.cos().sum(), v)[0] for y in (again, HeatGroup(1.0).exp(v)))
        assert_relative(found, wanted, 1e-13)
        with pytest.warns(RuntimeWarning, match="no C"):  # other numbers are other code
            compiled(HeatGroup(1.5), threshold=2).exp(v)
    kept.write_text(text[: len(text) // 2])
    assert torch.equal(compiled(HeatGroup(1.0), threshold=2).exp(v), first)
    assert kept.read_text() == text


class HeatGroup(Heisenberg):
    """A group with a number in its code that is no tensor."""

    def __init__(self, factor: float) -> None:
        super().__init__(1)
        self.factor = factor

    def _exp(self, v: Tensor) -> Tensor:
        return (v * self.factor).sin()

    def _log(self, g: Tensor) -> Tensor:
        return g.asin() / self.factor


@pytest.mark.usefixtures("disk")
def test_derivatives_of_machine_code() -> None:
    """By some arguments, by none that matters, of a constant, and of derivatives."""

    def both(f: Callable[..., Tensor], *x: Tensor) -> tuple[Any, Any]:
        fast = machine_code(f, x, tuple(y.requires_grad for y in x))
        return fast(*x), f(*x)

    a, b = torch.randn(2, 5, 2, generator=seeded(0), dtype=torch.float64)
    b.requires_grad_()
    fast, eager = both(lambda a, b: a.sin() * b.exp(), a, b)
    assert_relative(torch.autograd.grad(fast.sum(), b)[0], torch.autograd.grad(eager.sum(), b)[0], 1e-14)
    a.requires_grad_()
    fast, _ = both(lambda a, b: b.exp(), a, b)
    assert torch.autograd.grad(fast.sum(), (a, b), allow_unused=True)[0] is None
    fast, eager = both(lambda a, b: torch.ones_like(a), a, b)
    assert not fast.requires_grad
    assert torch.equal(fast, eager)
    values = []
    for y in both(lambda a, b: a.sin() * b.exp() + a * b, a, b):
        slopes = torch.autograd.grad(y.cos().sum(), (a, b), create_graph=True)
        values.append(torch.autograd.grad(sum((s**2).sum() for s in slopes), (a, b)))  # type: ignore[arg-type]
    for one, other in zip(*values, strict=True):
        assert_relative(one, other, 1e-13)


@pytest.mark.usefixtures("disk")
def test_machine_code_of_what_writes_to_its_own_tensors() -> None:
    """And to views of them."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        z = torch.zeros_like(x)
        z[:, 0] = x[:, 1] * y[:, 0]
        z[:, 1:] = x[:, 1:].exp()
        z[:, 2].mul_(y[:, 1])
        return z.add_(y)

    x, y = torch.randn(2, 7, 3, generator=seeded(0), dtype=torch.float64).requires_grad_().unbind()
    for program in _programs._traced(f, (x, y), (True, True)):
        assert program is not None
        assert [type(step) for step in program.steps] == [Loop]
    fast, eager = machine_code(f, (x, y), (True, True))(x, y), f(x, y)
    assert_relative(fast.detach(), eager.detach(), 1e-14)
    for one, other in zip(*(torch.autograd.grad(z.cos().sum(), (x, y)) for z in (fast, eager)), strict=True):
        assert_relative(one, other, 1e-14)


@pytest.mark.parametrize("most", [2, 9])
def test_a_long_loop_is_several_functions(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which leave numbers of both precisions and masks to each other."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        less, single = x < y, x.float().sin()
        z = torch.where(less, x.exp(), y.cos()) * y.mT
        return torch.where(less.mT, z @ x + single, (single * 2).double() - z.square())

    x, y = torch.randn(2, 13, 2, 2, generator=seeded(0), dtype=torch.float64)
    monkeypatch.setattr(_source, "_FEW", 0)
    whole, _ = _programs._traced(f, (x, y), ())
    monkeypatch.setattr(_source, "_MOST", most)
    parts, _ = _programs._traced(f, (x, y), ())
    (loop,) = parts.steps
    assert isinstance(loop, Loop)
    assert loop.source.count("void step") > 50 / most
    assert all(f"{kind} {kind}s[" in loop.source for kind in "DSM")
    value, wanted = (program.load()()(x, y)[0] for program in (parts, whole))
    assert torch.equal(value, wanted)
    assert_relative(value, f(x, y), 2e-7)


@pytest.mark.slow
@pytest.mark.usefixtures("disk")
def test_machine_code_of_every_rule() -> None:
    x = [torch.randn(SMALL + 1, *s, generator=seeded(k)).double().requires_grad_() for k, s in enumerate(SHAPES)]
    fast, eager = machine_code(many_rules, x, (True,) * 3)(*x), many_rules(*x)
    assert_relative(fast.detach(), eager.detach(), 1e-14)
    slopes = [torch.autograd.grad(y.square().sum(), x) for y in (fast, eager)]
    for one, other in zip(*slopes, strict=True):
        assert_relative(one, other, 1e-13)


@pytest.mark.usefixtures("disk")
def test_signs_that_are_not_in_memory() -> None:
    """A tensor may be the negative of what its memory holds: of arguments, and of gradients."""
    group = compiled(HeatGroup(1.0), threshold=2)
    v = torch.randn(5, 3, generator=seeded(0), dtype=torch.float64)
    assert_relative(group.exp(torch._neg_view(v)), (-v).sin(), 1e-14)
    w = v.clone().requires_grad_()
    (slope,) = torch.autograd.grad(group.exp(w), w, torch._neg_view(v))
    assert_relative(slope, -v * v.cos(), 1e-14)


def test_code_for_one_batch_is_refused() -> None:
    """It would be wrong for others."""
    a = torch.randn(5, 3, generator=seeded(0))
    with pytest.raises(RuntimeError, match="batches of 5 alone"):
        machine_code(lambda a: a * torch.ones(len(a), 1), [a])


def test_other_threads_are_not_traced() -> None:
    """While one compiles, others may look at values."""
    seen = []
    with tracing():
        other = threading.Thread(target=lambda: seen.append(is_traced()))
        other.start()
        other.join()
        assert is_traced()
    assert seen == [False]
    assert not is_traced()


def test_forward_mode_of_a_trace_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its level is one for the whole process, and Python runs what is traced."""
    lock = mock.MagicMock()
    monkeypatch.setattr(_numerics, "_forward_mode", lock)
    x = torch.tensor([0.5])
    with tracing():
        _, slope = _numerics.jvp(torch.sin, (x,), (torch.ones(1),))
    lock.__enter__.assert_called_once()
    assert_relative(slope, x.cos(), 1e-6)


def test_arguments_of_operators_are_kept() -> None:
    """As numbers in a file."""
    tensors = [torch.randn(2, 0, 3), torch.tensor(2.5), torch.tensor([1 + 2j, 0.1]), torch.tensor([True, False])]
    for x in (*tensors, 1.5, None, 2 - 1j, torch.float64, torch.device("cpu"), torch.contiguous_format, [1, "a"]):
        back = _programs._decoded(json.loads(json.dumps(_programs._encoded(x, {}))))
        assert torch.equal(back, x) and back.dtype == x.dtype if isinstance(x, Tensor) else back == x
    with pytest.raises(TypeError, match="cannot be kept"):
        _programs._encoded(object(), {})


@pytest.mark.parametrize("k", [2, 3])
def test_what_is_projected_has_one_derivative(k: int) -> None:
    """Also where rounding leaves a matrix as it is."""
    g = SL(k).random(200, std=0.3, generator=seeded(0), dtype=torch.float64).requires_grad_()
    kept = restore_determinant(g)
    same = (kept == g).all(-1).all(-1)
    assert same.any()
    found, wanted = (torch.autograd.grad(y.cos().sum(), g)[0] for y in (kept, unit_determinant(g)))
    assert_relative(found, wanted, 1e-13, event=2)
