"""The public check of the laws: right groups pass, each wrong operation is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.groups.cases import CASES, GroupCase
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups import LieAlgebra, LieGroup, check_group


class AffineLine(LieGroup):
    """Maps x -> a x + b of the line, a > 0: elements (a, b), with one operation replaced by a wrong one."""

    def __init__(self, **wrong: Callable[..., Tensor]) -> None:
        c = torch.zeros(2, 2, 2, dtype=torch.float64)
        c[0, 1, 1], c[1, 0, 1] = 1.0, -1.0
        self.wrong = wrong
        super().__init__(LieAlgebra(c, ("A", "B")), (2,))

    def _identity(self, dtype: Any, device: Any) -> Tensor:
        return torch.tensor([1.0, 0.0], dtype=dtype, device=device)

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        found = torch.stack([g[..., 0] * h[..., 0], g[..., 0] * h[..., 1] + g[..., 1]], -1)
        return self._replaced("compose", found, g, h)

    def _inverse(self, g: Tensor) -> Tensor:
        return self._replaced("inverse", torch.stack([1.0 / g[..., 0], -g[..., 1] / g[..., 0]], -1), g)

    def _exp(self, v: Tensor) -> Tensor:
        a, b = v.unbind(-1)
        found = torch.stack([a.exp(), b * torch.where(a == 0, 1.0, a.expm1() / torch.where(a == 0, 1.0, a))], -1)
        return self._replaced("exp", found, v)

    def _log(self, g: Tensor) -> Tensor:
        a = g[..., 0].log()
        factor = torch.where(a == 0, 1.0, torch.where(a == 0, 1.0, a) / torch.where(a == 0, 1.0, a.expm1()))
        return self._replaced("log", torch.stack([a, g[..., 1] * factor], -1), g)

    def _adjoint(self, g: Tensor) -> Tensor:
        one, zero = torch.ones_like(g[..., 0]), torch.zeros_like(g[..., 0])
        found = torch.stack([torch.stack([one, zero], -1), torch.stack([-g[..., 1], g[..., 0]], -1)], -2)
        return self._replaced("adjoint", found, g)

    def _project(self, g: Tensor) -> Tensor:
        return self._replaced("project", g, g)

    def _log_modular(self, g: Tensor) -> Tensor:
        return self._replaced("modular", -g[..., 0].log(), g)

    def _replaced(self, name: str, value: Tensor, *given: Tensor) -> Tensor:
        return self.wrong[name](value) if name in self.wrong else value


def test_right_group() -> None:
    found = check_group(AffineLine())
    assert max(found.errors.values()) < 1e-7
    assert "g exp(v) g^-1 is exp(Ad_g v)" in found.errors
    assert len(found.errors) > 20


@pytest.mark.parametrize("case", [case for case in CASES[::4] if not case.slow], ids=lambda case: case.name)
def test_shipped_groups(case: GroupCase) -> None:
    check_group(case.make(), std=0.2, num_samples=4, tolerance=1e-7)


@pytest.mark.parametrize(
    ("operation", "wrong", "message"),
    [
        ("compose", lambda x: x + 1e-3 * x[..., :1] ** 2, "associative|neutral"),
        ("inverse", lambda x: x * x.new_tensor([1.0, -1.0]), "inverse is one"),
        ("exp", lambda x: x * x.new_tensor([1.0, 1.1]), r"exp\(0.3 v\)|log\(exp"),
        ("log", lambda x: 1.01 * x, r"log\(exp\(v\)\) is v"),
        ("adjoint", lambda x: x.mT, "Ad of a product|Ad_g v"),
        ("adjoint", lambda x: x * x.new_tensor([[1.0, 1.0], [-1.0, 1.0]]), "Ad_g v"),
        ("project", lambda x: x + 1e-3, "projection"),
        ("modular", lambda x: -x, "modular"),
        ("log", lambda x: x + torch.nan, "log"),
    ],
)
def test_wrong_operations_are_named(operation: str, wrong: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(AlgebraError, match=message):
        check_group(AffineLine(**{operation: wrong}))


@pytest.mark.parametrize("operation", ["compose", "inverse", "exp", "log", "adjoint"])
def test_operations_that_return_nothing_are_named(operation: str) -> None:
    with pytest.raises(AlgebraError, match=f"expected a tensor of _{operation}, got None"):
        check_group(AffineLine(**{operation: lambda value: None}))  # type: ignore[arg-type,return-value]


def test_hooks_that_branch_on_values_or_take_no_batch_are_named() -> None:
    def branch(value: Tensor) -> Tensor:
        return value if float(value.sum()) < 1e9 else -value

    with pytest.raises(AlgebraError, match=r"expected results of _exp under torch.func.vmap for two elements"):
        check_group(AffineLine(exp=branch))
    with pytest.raises(AlgebraError, match=r"expected results of _compose for two elements, got .*converted"):
        check_group(AffineLine(compose=lambda value: value * float(value[..., 0])))


def test_bad_input() -> None:
    with pytest.raises(ConfigurationError, match="group"):
        check_group("SO(3)")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="tolerance"):
        check_group(AffineLine(), tolerance=-1.0)


@pytest.mark.parametrize("operation", ["compose", "inverse", "exp", "log", "adjoint"])
def test_an_operation_of_another_shape_is_named(operation: str) -> None:
    with pytest.raises(AlgebraError, match=rf"^AffineLine: expected \[2, .*\] of _{operation} for two"):
        check_group(AffineLine(**{operation: lambda value: value.flatten(1)[:, 0]}))


@pytest.mark.parametrize(
    ("operation", "named"),
    [
        *((name, f"_{name}, the dtype") for name in ("compose", "inverse", "exp", "log", "adjoint")),
        ("project", "the law that projection leaves"),
        ("modular", "the law that the modular function"),
    ],
)
def test_an_operation_of_another_dtype_is_named(operation: str, named: str) -> None:
    with pytest.raises(AlgebraError, match=rf"^AffineLine: expected torch.float64 of .*{named}.*, got torch.float32$"):
        check_group(AffineLine(**{operation: lambda value: value.float()}))


def test_the_text_of_a_check_is_one_line() -> None:
    found = check_group(AffineLine())
    largest = max(found.errors.values())
    assert repr(found) == f"GroupCheck({len(found.errors)} laws hold, the largest relative error is {largest:.1e})"
