"""Every group and every action on a device: what they give there is what they give on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.groups.cases import CASES, GroupCase, marked
from tests.helpers import assert_relative, random_vectors
from trivgeo.groups import LieGroup

BOUNDS = {torch.float64: 1e-9, torch.float32: 2e-3}

OPERATIONS: dict[str, Callable[[LieGroup, Tensor, Tensor], Any]] = {
    "exp": lambda G, v, w: G.exp(v),
    "log": lambda G, v, w: G.log(G.exp(v)),
    "compose": lambda G, v, w: G.compose(G.exp(v), G.exp(w)),
    "inverse": lambda G, v, w: G.inverse(G.exp(v)),
    "Ad": lambda G, v, w: G.Ad(G.exp(v)),
    "coadjoint": lambda G, v, w: G.coadjoint(G.exp(v), w),
    "modular_function": lambda G, v, w: G.log_modular(G.exp(v)),
    "right_jacobian": lambda G, v, w: G.right_jacobian(v),
    "retract": lambda G, v, w: G.retract(G.exp(v), w),
    "project": lambda G, v, w: G.project(G.exp(v)),
    "bracket": lambda G, v, w: G.algebra.bracket(v, w),
}


@pytest.fixture(params=marked(CASES))
def case(request: pytest.FixtureRequest) -> GroupCase:
    return request.param


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float64, marks=pytest.mark.slow(reason="single precision stays")), torch.float32],
    ids=["float64", "float32"],
)
def test_operations(case: GroupCase, device: torch.device, dtype: torch.dtype) -> None:
    """Values, and derivatives of their sums, on the device."""
    group = case.group
    v, w = (random_vectors(group, 5, std=0.7 * case.std, seed=seed, dtype=dtype) for seed in (0, 1))
    for name, operation in OPERATIONS.items():

        def value(v: Tensor, w: Tensor, operation: Callable[..., Any] = operation) -> tuple[Tensor, Tensor]:
            v = v.requires_grad_()
            found = operation(group, v, w)
            total = found.sum() + 0.0 * v.sum()  # some do not depend on v
            return found.detach(), torch.autograd.grad(total, v)[0]

        for here, there in zip(value(v.clone(), w), value(v.to(device), w.to(device)), strict=True):
            assert there.device == device, name
            assert_relative(there.cpu(), here, BOUNDS[dtype], event=1)
