"""What groups and their actions make of arguments that are no elements: accept one clear meaning, refuse the rest."""

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.groups.cases import CASES, GroupCase, marked
from tests.groups.textbook import x
from tests.helpers import assert_relative, random_vectors
from trivgeo.errors import ConfigurationError, ShapeError, TrivgeoError
from trivgeo.groups import (
    SE,
    SL,
    SO,
    SU,
    GLPlus,
    HeatSymmetry,
    LieGroup,
    MatrixGroup,
    Projective,
    compiled,
    from_generators,
)


def hostile(draw: random.Random, good: torch.Tensor) -> Iterator[Any]:
    """Arguments of every wrong kind, made from a right one."""
    yield from (None, "g", b"g", 1, 1.5, True, {}, object(), [], [[]], [1.0, [2.0]], ["a"], [None], print, LieGroup)
    yield from (good.long(), good.bool(), good.to(torch.complex64), good.to("meta"), good.numpy().astype(int))
    yield np.array(["a"])
    yield np.array([None])
    shape = [draw.randrange(4) for _ in range(draw.randrange(5))]
    yield torch.zeros(shape) if tuple(shape)[-good.ndim :] != tuple(good.shape) else None
    yield good.flatten()[:-1]
    yield good.unsqueeze(-1)
    yield good[..., :0]


def operations(group: LieGroup) -> list[tuple[str, Callable[[Any], Any]]]:
    g = group.identity(2)
    v = torch.zeros(2, group.dim)
    named: list[tuple[str, Callable[[Any], Any]]] = [
        ("element", group.inverse),
        ("element", group.log),
        ("element", group.has_log),
        ("element", group.Ad),
        ("element", group.log_modular),
        ("element", group.project),
        ("element", lambda x: group.compose(x, g)),
        ("element", lambda x: group.compose(g, x)),
        ("element", lambda x: group.retract(x, v)),
        ("element", lambda x: group.perturb(x, v)),
        ("vector", group.exp),
        ("vector", group.left_jacobian),
        ("vector", group.right_jacobian),
        ("vector", lambda x: group.retract(g, x)),
        ("vector", lambda x: group.perturb(g, x)),
    ]
    return named


@pytest.mark.parametrize("case", marked(CASES))
def test_nothing_but_typed_errors(case: GroupCase) -> None:
    group, draw = case.group, random.Random(0)
    good = {"element": group.identity(), "vector": torch.zeros(group.dim)}
    calls = refused = 0
    for kind, call in operations(group):
        for argument in hostile(draw, good[kind]):
            calls += 1
            try:
                call(argument)
            except TrivgeoError as error:
                refused += "expected" in str(error)
    if case.has_action:
        action = group.action()
        points = torch.zeros(3, max(action.point_dims))
        for argument in hostile(draw, points):
            calls += 1
            try:
                action(group.identity(), argument)
            except TrivgeoError:
                refused += 1
        for argument in hostile(draw, good["element"]):
            calls += 1
            try:
                action(argument, points)
            except TrivgeoError:
                refused += 1
    assert refused > 0.8 * calls  # tensors on "meta" and a few shapes are right in some places


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("batch", [(-1,), (1.5,), ("2",), (None,), (2, -3), (True,)], ids=str)
def test_counts(case: GroupCase, batch: tuple[Any, ...]) -> None:
    for call in (case.group.identity, case.group.random):
        with pytest.raises(ConfigurationError, match="batch: expected an integer of at least 0"):
            call(*batch)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, "float32"])
def test_dtypes(dtype: Any) -> None:
    for call in (SO(3).identity, SO(3).random, SO(3).random_haar, SU(2).identity):
        with pytest.raises(ConfigurationError, match="dtype: expected a floating-point dtype"):
            call(2, dtype=dtype)


class TestOneClearMeaning:
    def test_lists_of_tensors_keep_their_derivatives(self) -> None:
        angle = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(SO(2).exp([angle])[0, 0], angle)
        assert_relative(slope, -angle.detach().sin(), 1e-14)
        stacked = torch.func.grad(lambda a: SO(3).exp([0.0, 0.0, a])[0, 0])(angle.detach())
        assert_relative(stacked, -angle.detach().sin(), 1e-14)

    def test_numbers_beside_tensors_are_as_exact_as_these(self) -> None:
        one = torch.tensor(1.0, dtype=torch.float64)
        listed = SO(3).exp([one, 0.1, one.float()])
        assert listed.dtype == torch.float64
        assert torch.equal(listed, SO(3).exp(torch.tensor([1.0, 0.1, 1.0], dtype=torch.float64)))
        assert SO(3).exp([torch.tensor(1), 0.5, 0]).equal(SO(3).exp([1.0, 0.5, 0.0]))

    def test_arrays_and_lists(self) -> None:
        group = SE(2)
        v = [0.3, -1.0, 2.0]
        expected = group.exp(torch.tensor(v, dtype=torch.float64))
        assert_relative(group.exp(np.array(v)), expected, 1e-15)
        assert_relative(group.exp(v), expected.float(), 1e-6)
        assert_relative(group.log(expected.numpy()), torch.tensor(v, dtype=torch.float64), 1e-14)
        assert_relative(group.exp([1, 0, 0]), group.exp(torch.tensor([1.0, 0.0, 0.0])), 1e-7)

    @pytest.mark.parametrize("group", [SO(3), HeatSymmetry(0.1), SU(3)], ids=repr)
    def test_mixed_dtypes(self, group: LieGroup) -> None:
        """The wider one, as torch has it."""
        g = group.exp(random_vectors(group, 2, std=0.3))
        for other in (torch.float32, torch.bfloat16):
            h = g.to(other)
            for product in (group.compose(g, h), group.compose(h, g)):
                assert product.dtype == torch.float64
            assert_relative(group.compose(g, h), group.compose(g, h.double()), 1e-15)
            v = torch.zeros(2, group.dim, dtype=other)
            assert_relative(group.retract(g, v), g, 1e-15)
            assert_relative(group.perturb(g, v), g, 1e-15)

    def test_mixed_dtypes_of_elements_and_points(self) -> None:
        g, x = SE(2).random(2, dtype=torch.float64), torch.randn(2, 5, 2)
        assert_relative(SE(2).action()(g, x), SE(2).action()(g, x.double()), 1e-15)

    def test_several_devices(self) -> None:
        with pytest.raises(ConfigurationError, match="one device, got g on cpu, h on meta"):
            SO(3).compose(SO(3).identity(), SO(3).identity(device="meta"))


def pair() -> LieGroup:
    """Affine maps of the line, generated."""
    return from_generators([["1"], [x]], variables=[x])


@pytest.mark.parametrize("make", [lambda: SO(3), lambda: HeatSymmetry(0.1), lambda: SU(2), lambda: Projective(2), pair])
def test_another_default_device(make: Callable[[], LieGroup]) -> None:
    """Constants are made on the CPU, answers come on the device of the arguments, whatever the default is."""
    expected = make()
    v = random_vectors(expected, 4, std=0.4)
    with torch.device("meta"):
        group = make()
        g = group.exp(v)
        assert group.random(2).device.type == "meta"
        found = [g, group.log(g), group.compose(g, g), group.Ad(g), group.left_jacobian(v), group.distance(g, g)]
        assert group.matches(expected.fingerprint())
    g = expected.exp(v)
    wanted = [g, expected.log(g), expected.compose(g, g), expected.Ad(g), expected.left_jacobian(v)]
    for a, b in zip(found, [*wanted, expected.distance(g, g)], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("scale", [torch.zeros(3, 3), "a", [1.0, None, 1.0], torch.full((3, 3), torch.nan), [[1.0]]])
def test_scales(scale: Any) -> None:
    with pytest.raises((ConfigurationError, ShapeError), match="scale: expected"):
        SO(3, scale=scale)


class TestOffTheGroup:
    """A logarithm is that of an element, or NaN."""

    @pytest.mark.parametrize("group", [SO(2), SO(3), SO(4), SO(5), SL(2), SL(3)], ids=repr)
    @pytest.mark.parametrize("factor", [0.0, 0.5, 0.9, 1.1, 2.0, 1e4])
    def test_multiples(self, group: LieGroup, factor: float) -> None:
        g = group.exp(random_vectors(group, 4, std=0.3))
        assert bool(torch.isfinite(group.log(g)).all())
        assert bool(group.log(factor * g).isnan().all())

    def test_multiples_are_elements_elsewhere(self) -> None:
        log = GLPlus(2).log(2.0 * torch.eye(2))
        assert_relative(GLPlus(2).exp(log), 2.0 * torch.eye(2), 1e-6)

    @pytest.mark.parametrize("group", [SL(2), SL(3)], ids=repr)
    def test_large_elements_keep_theirs(self, group: LieGroup) -> None:
        v = torch.zeros(group.dim)
        v[0] = 6.0
        assert_relative(group.log(group.exp(v)), v, 1e-3)


def test_forward_mode_in_several_threads() -> None:
    """torch has one level of forward mode for all threads; the library takes turns."""
    group = HeatSymmetry(0.1)
    action, g = group.action(), group.exp(random_vectors(group, 1, std=0.2))[0]
    points = torch.rand(20, 3, dtype=torch.float64)
    expected = action.jacobian(g, points)
    wrong: list[str] = []

    def work() -> None:
        for _ in range(20):
            try:
                if not torch.equal(action.jacobian(g, points), expected):
                    wrong.append("value")
            except RuntimeError as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("case", marked(CASES))
def test_results_may_be_changed_in_place(case: GroupCase) -> None:
    """No operation hands out its argument or one matrix for all, nor a group its constants."""
    group = case.group
    v = random_vectors(group, 2, std=0.1)
    g = group.exp(v)
    given = v.clone(), g.clone(), group.scale.clone(), group.algebra.structure_constants.clone()
    of_elements = group.log(g), group.inverse(g), group.project(g), group.compose(g, g)
    matrices = [group.Ad(g), group.left_jacobian(v), compiled(group).left_jacobian(v)]
    if isinstance(group, MatrixGroup):
        matrices += [group.hat(v), group.vee(g)]
    for result in (group.exp(v), *group.exp_with_score(v, v), *of_elements, *matrices):
        result.add_(1.0)
    for constant in (group.scale, group.basis.rows, group.algebra.structure_constants, group.algebra.trace_ad):
        constant.add_(1.0)
    now = v, g, group.scale, group.algebra.structure_constants
    assert all(torch.equal(a, b) for a, b in zip(given, now, strict=True))
