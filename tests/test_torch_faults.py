"""Faults of torch that the library works around, as listed in `trivgeo/_torch.py`.

A test fails where a fault is gone: then the code that works around it can go, with its line of the list and the test.
"""

from __future__ import annotations

import re
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.helpers import randn
from trivgeo import _torch

ROOT = Path(__file__).parents[1]


def log_determinant(matrix: Tensor) -> Tensor:
    return torch.linalg.slogdet(matrix)[1]


def solution(matrix: Tensor) -> Tensor:
    return torch.linalg.solve(matrix, matrix.mT)


@pytest.mark.parametrize("function", [torch.linalg.det, log_determinant, solution])
def test_determinants_and_solutions_under_a_batch_of_forward_jacobians(function: Callable[[Tensor], Tensor]) -> None:
    matrices = randn(2, 3, 3, 3) + 3 * torch.eye(3)
    found, expected = (vmap(vmap(jacobian(function)))(matrices) for jacobian in (jacfwd, jacrev))
    assert not torch.allclose(found, expected)


def test_exponential_of_one_matrix() -> None:
    matrices = [0.001 * k * m / torch.linalg.matrix_norm(m, 1) for k, m in enumerate(randn(200, 4, 4))]
    one = torch.stack([torch.linalg.matrix_exp(m) for m in matrices])
    assert float((one - torch.linalg.matrix_exp(torch.stack(matrices))).abs().max()) > 1e-12


def test_exponential_in_half_precision() -> None:
    assert float(torch.linalg.matrix_exp(torch.full((3, 2, 2), 0.1, dtype=torch.bfloat16)).abs().max()) > 1e20


def test_derivative_of_a_tensor_without_dimensions() -> None:
    x = torch.tensor(1.0)
    assert jvp(lambda x: 2.0 * x, (x,), (x,))[1].dtype is torch.float64


def test_forward_mode_in_two_threads() -> None:
    """The second has no derivative once the first has left."""
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    x = torch.ones(2)
    found = []

    def first() -> None:
        def f(x: Tensor) -> Tensor:
            first_is_in.set()
            second_is_in.wait(10)
            return x.sin()

        jvp(f, (x,), (x,))
        first_is_out.set()

    def second() -> None:
        def f(x: Tensor) -> Tensor:
            second_is_in.set()
            first_is_out.wait(10)
            return x.sin()

        first_is_in.wait(10)
        found.append(jvp(f, (x,), (x,))[1])

    threads = [threading.Thread(target=f) for f in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert first_is_out.is_set()
    assert not torch.allclose(found[0], x.cos())


def test_forward_mode_of_entries_that_share_memory() -> None:
    with pytest.raises(RuntimeError, match="single memory location"):
        jvp(torch.sin, (torch.ones(1).expand(3),), (torch.ones(3),))


def test_forward_mode_of_interpolated_images() -> None:
    grid = torch.zeros(1, 2, 2, 2)
    with pytest.raises(NotImplementedError, match="forward AD"):
        jvp(lambda g: functional.grid_sample(torch.ones(1, 1, 3, 3), g, align_corners=False), (grid,), (grid,))


def test_checkpoints_around_derivatives() -> None:
    def slope(x: Tensor) -> Tensor:
        return grad(lambda y: y.pow(3).sum())(x)

    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        checkpoint(slope, torch.ones(3, requires_grad=True), use_reentrant=False)


def test_oldest_torch() -> None:
    """Faults of the oldest version that is allowed end with it."""
    assert "torch>=2.8" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def test_each_fault_of_the_list_has_a_test() -> None:
    listed = re.findall(r"\btest_\w+\b(?!\.py)", str(_torch.__doc__))
    assert sorted(listed) == sorted(name for name in globals() if name.startswith("test_") and "each" not in name)
