"""Adding a group is one class and one case: here both are defined in the test, and the case inherits the laws."""

import pytest
import torch
from torch import Tensor

from tests.groups import test_group_laws as laws
from tests.groups.cases import GroupCase, affine_line_matrix
from tests.helpers import affine_line, assert_relative, random_vectors
from trivgeo.groups import LieAlgebra, LieGroup

sample = laws.sample


class Line(LieGroup):
    """Maps x -> e^a x + b of the line, elements (a, b): the required methods, and nothing else."""

    def __init__(self, scale: object = None) -> None:
        c = torch.zeros(2, 2, 2)
        c[0, 1, 1], c[1, 0, 1] = 1.0, -1.0
        super().__init__(LieAlgebra(c, ("A", "B")), (2,), scale)

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return torch.zeros(2, dtype=dtype, device=device)

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        return torch.stack([g[..., 0] + h[..., 0], g[..., 1] + g[..., 0].exp() * h[..., 1]], -1)

    def _inverse(self, g: Tensor) -> Tensor:
        return torch.stack([-g[..., 0], -(-g[..., 0]).exp() * g[..., 1]], -1)

    @staticmethod
    def _growth(a: Tensor) -> Tensor:
        """(e^a - 1) / a."""
        small = a.abs() < 1e-4
        far = torch.where(small, 1.0, a)
        return torch.where(small, 1.0 + a / 2 + a * a / 6 + a**3 / 24, torch.expm1(far) / far)

    def _exp(self, v: Tensor) -> Tensor:
        return torch.stack([v[..., 0], self._growth(v[..., 0]) * v[..., 1]], -1)

    def _log(self, g: Tensor) -> Tensor:
        return torch.stack([g[..., 0], g[..., 1] / self._growth(g[..., 0])], -1)

    def _adjoint(self, g: Tensor) -> Tensor:
        a, b = g.unbind(-1)
        one = torch.ones_like(a)
        return torch.stack([torch.stack([one, 0 * one], -1), torch.stack([-b, a.exp()], -1)], -2)


class TestLine(laws.TestLaws, laws.TestDenseOracle):
    @pytest.fixture
    def case(self) -> GroupCase:
        return GroupCase("Line", Line, 0.7, affine_line_matrix)

    @pytest.fixture
    def matrix_case(self, case: GroupCase) -> GroupCase:
        return case

    def test_scale_and_law(self, case: GroupCase) -> None:
        scaled = case.make(scale=[0.5, 2.0])
        v = random_vectors(scaled, 3, std=0.5)
        assert_relative(scaled.log(scaled.exp(v)), v, 1e-12)
        assert scaled.is_same_group(case.group)
        assert scaled.is_same_group(affine_line())  # the same elements and product, made another way
