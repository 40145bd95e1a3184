"""Symmetries carry solutions to solutions; the group law of the heat equation against the formula of the design."""

import pytest
import torch
from torch import Tensor

from tests.groups.cases import CASES, GroupCase
from tests.groups.pdes import Field, Pde, heat
from tests.helpers import assert_relative, rand, randn, random_elements
from trivgeo.groups import BurgersSymmetry, HeatSymmetry, LieGroup, PointAction

POINTS = 12
RESIDUAL = 1e-8


def transformed(action: PointAction, g: Tensor, u: Field) -> Field:
    """The field whose graph is g times the graph of u: pull the point back, evaluate, push forward."""

    def field(x: Tensor, t: Tensor) -> Tensor:
        base = action(action.group.inverse(g), torch.stack([x, t])[None])[0]
        jet = torch.stack([base[0], base[1], u(base[0], base[1])])
        return action(g, jet[None])[0, 2]

    return field


def image_points(pde: Pde, action: PointAction, g: Tensor) -> tuple[Tensor, Tensor]:
    """Images of points at which the solution is known."""
    x = pde.length * rand(POINTS, seed=1, low=-2.0, high=2.0)
    t = rand(POINTS, seed=2, low=0.2, high=1.0)
    images = action(g, torch.stack([x, t], -1))
    return images[:, 0], images[:, 1]


def residual(pde: Pde, group: LieGroup, g: Tensor, u: Field) -> float:
    action = group.action()
    return float(pde.relative_residual(transformed(action, g, u), *image_points(pde, action, g)).max())


PDES = [(case, pde) for case in CASES for pde in case.pdes]


@pytest.mark.parametrize(("case", "pde"), PDES, ids=[f"{pde}" for _, pde in PDES])
class TestSolutionsToSolutions:
    def test_oracles_are_solutions(self, case: GroupCase, pde: Pde) -> None:
        x, t = pde.length * rand(POINTS, low=-2.0, high=2.0), rand(POINTS, seed=1)
        for name, u in pde.solutions.items():
            assert float(pde.relative_residual(u, x, t).max()) < 1e-12, name

    def test_random_elements(self, case: GroupCase, pde: Pde) -> None:
        group = case.make(scale=pde.basis_scale)
        for g in random_elements(group, 3, std=0.4):
            for name, u in pde.solutions.items():
                assert residual(pde, group, g, u) < RESIDUAL, name

    def test_every_generator(self, case: GroupCase, pde: Pde) -> None:
        group = case.make(scale=pde.basis_scale)
        u = next(iter(pde.solutions.values()))
        for v in 0.5 * torch.eye(group.dim, dtype=torch.float64):
            assert residual(pde, group, group.exp(v), u) < RESIDUAL
            moved = group.action()(group.exp(v), torch.tensor([[0.3, 0.5, 1.0]], dtype=torch.float64))
            assert not torch.allclose(moved, torch.tensor([[0.3, 0.5, 1.0]], dtype=torch.float64))

    def test_control(self, case: GroupCase, pde: Pde) -> None:
        """A map that is no symmetry fails: the fibre is stretched by 1 + x / length afterwards."""
        group = case.make(scale=pde.basis_scale)
        g = random_elements(group, std=0.4)
        for u in pde.solutions.values():
            image = transformed(group.action(), g, u)
            stretched = lambda x, t, image=image: image(x, t) * (1 + 0.5 * x / pde.length)  # noqa: E731
            assert float(pde.relative_residual(stretched, *image_points(pde, group.action(), g)).max()) > 1e-3


def test_wrong_diffusivity_fails() -> None:
    """The group of one diffusivity is not that of another: nu enters the boosts and the projective map."""
    group = HeatSymmetry(0.2)
    pde = heat(0.1)
    for direction in (2, 4):  # F, P
        v = torch.zeros(6, dtype=torch.float64)
        v[direction] = 0.3
        assert residual(pde, group, group.exp(v), pde.solutions["kernel"]) > 1e-3


class TestHeatFormula:
    """DESIGN.md 3.2: x^ = X / D, u^ = sqrt|D| u exp(s + ...) with a cocycle that carries 1 / nu.

    Released code omits the 1 / nu and is a group at nu = 1 only.
    """

    @staticmethod
    def chart(g: Tensor, nu: float) -> tuple[Tensor, ...]:
        """Elements as (alpha, beta, gamma, delta, l1, l0, s) of the formula."""
        a, b, c, d, q, p, z = g.unbind(-1)
        l1, l0 = q * c + p * a, q * d + p * b
        return a, b, c, d, l1, l0, z - l0 * l1 / (4 * nu)

    @staticmethod
    def transform(chart: tuple[Tensor, ...], jet: Tensor, nu: float) -> Tensor:
        a, b, c, d, l1, l0, s = (entry.unsqueeze(-1) for entry in chart)
        x, t, u = jet.unbind(-1)
        den, big = c * t + d, x + l1 * t + l0
        exponent = s + (c * big**2 / den - 2 * l1 * x - l1**2 * t) / (4 * nu)
        return torch.stack([big / den, (a * t + b) / den, den.abs().sqrt() * u * exponent.exp()], -1)

    @staticmethod
    def product(g: tuple[Tensor, ...], h: tuple[Tensor, ...], nu: float) -> tuple[Tensor, ...]:
        ag, bg, cg, dg, l1, l0, s = g
        ah, bh, ch, dh, k1, k0, r = h
        m0, m1 = bh * l1 + dh * l0, ah * l1 + ch * l0
        matrix = (ag * ah + bg * ch, ag * bh + bg * dh, cg * ah + dg * ch, cg * bh + dg * dh)
        return (*matrix, m1 + k1, m0 + k0, s + r + (l0 * l1 - m0 * m1 - 2 * k0 * m1) / (4 * nu))

    @pytest.mark.parametrize("nu", [1e-3, 0.1, 0.3, 1.0])
    def test_group_and_action_agree_with_the_formula(self, nu: float) -> None:
        group = HeatSymmetry(nu, scale=heat(nu).basis_scale)
        g, h = random_elements(group, 8, std=0.3), random_elements(group, 8, std=0.3, seed=1)
        jets = randn(8, 5, 3) * torch.tensor([nu**0.5, 0.5, 1.0])
        ours = group.action()(g, jets)
        assert_relative(ours, self.transform(self.chart(g, nu), jets, nu), 1e-10, floor=1e-3)
        product = self.chart(group.compose(g, h), nu)
        expected = self.product(self.chart(g, nu), self.chart(h, nu), nu)
        assert_relative(torch.stack(product, -1), torch.stack(expected, -1), 1e-10, event=1)

    @pytest.mark.parametrize("nu", [0.1, 0.3, 1.0])
    def test_released_product_is_a_group_at_unit_diffusivity_only(self, nu: float) -> None:
        group = HeatSymmetry(nu, scale=heat(nu).basis_scale)
        g, h = (self.chart(random_elements(group, 8, std=0.3, seed=s), nu) for s in range(2))
        jets = randn(8, 5, 3) * torch.tensor([nu**0.5, 0.5, 1.0])
        twice = self.transform(g, self.transform(h, jets, nu), nu)
        with_nu = self.transform(self.product(g, h, nu), jets, nu)
        released = self.transform(self.product(g, h, 1.0), jets, nu)
        assert_relative(with_nu, twice, 1e-10, floor=1e-3)
        error = float(((released - twice) / twice)[..., 2].abs().max())
        assert error < 1e-10 if nu == 1.0 else error > 1e-2

    def test_burgers_does_not_depend_on_the_diffusivity(self) -> None:
        assert_relative(BurgersSymmetry().algebra.trace_ad, torch.zeros(5, dtype=torch.float64), 1e-14)
