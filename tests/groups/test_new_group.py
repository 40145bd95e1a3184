"""Adding a group is one class and one case: here both are defined in the test, and the case inherits the laws.

A group of several components is one class, too: products, files and models ask its `num_components`.
"""

import pytest
import torch
from torch import Tensor

from tests.groups import test_group_laws as laws
from tests.groups.cases import GroupCase, affine_line_matrix
from tests.helpers import affine_line, assert_relative, random_vectors
from trivgeo.errors import ConfigurationError
from trivgeo.generative import GroupDiffusion
from trivgeo.groups import DirectProduct, LieAlgebra, LieGroup, SemidirectProduct, Translation, check_group

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


class Nonzero(LieGroup):
    """Real numbers x other than zero, ``[*batch, 1]``, by multiplication: positive and negative ones."""

    def __init__(self, scale: object = None) -> None:
        super().__init__(LieAlgebra(torch.zeros(1, 1, 1), ("X",)), (1,), scale)

    @property
    def num_components(self) -> int:
        return 2

    def _components(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        unit = self._identity(dtype, device)
        return torch.stack([unit, -unit])[: self.num_components]

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return torch.ones(1, dtype=dtype, device=device)

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        return g * h

    def _inverse(self, g: Tensor) -> Tensor:
        return 1.0 / g

    def _exp(self, v: Tensor) -> Tensor:
        return v.exp()

    def _log(self, g: Tensor) -> Tensor:
        return torch.where(g > 0, torch.where(g > 0, g, 1.0).log(), torch.nan)

    def _adjoint(self, g: Tensor) -> Tensor:
        return torch.ones_like(g).unsqueeze(-1)


class Positive(Nonzero):
    """Only its component of the identity."""

    num_components = 1


class TestSeveralComponents(laws.TestLaws):
    @pytest.fixture
    def case(self) -> GroupCase:
        return GroupCase("Nonzero", Nonzero, 0.7)

    def test_elements_beyond_the_component_of_the_identity(self) -> None:
        group = Nonzero()
        g = torch.tensor([[-2.0], [3.0]], dtype=torch.float64)
        v = torch.tensor([0.5], dtype=torch.float64)
        assert group.has_log(g).tolist() == [False, True]
        assert_relative(group.retract(g, v), g * v.exp(), 1e-15)  # a step stays in its component
        assert group.has_log(group.compose(g[0], g[0]))
        assert_relative(group.distance(g[0], -2.0 * g[1]), torch.tensor(3.0).double().log(), 1e-15)

    def test_products_files_and_models_know_the_components(self) -> None:
        group = Nonzero()
        scaled = SemidirectProduct(group, Translation(2), lambda h, n: h * n)
        assert DirectProduct(group, Positive(), group).num_components == 4
        assert (group**3).num_components == 8
        assert scaled.num_components == 2
        check_group(scaled, tolerance=1e-8)
        assert not group.is_same_group(Positive())
        assert group.matches(Nonzero(scale=2.0).fingerprint())
        with pytest.raises(ConfigurationError, match="connected"):
            GroupDiffusion(group)
