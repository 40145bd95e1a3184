"""Lie algebras: brackets from the group, closed forms, and messages that name what is wrong."""

import pytest
import torch
from torch import Tensor

from tests.groups.cases import GroupCase
from tests.helpers import assert_relative, randn, random_vectors
from trivgeo.errors import AlgebraError, ConfigurationError, ShapeError
from trivgeo.groups import (
    SE,
    SL,
    SO,
    Affine,
    BurgersSymmetry,
    DirectProduct,
    HeatSymmetry,
    Heisenberg,
    LieAlgebra,
    LieGroup,
    Nilpotent,
    Torus,
    Translation,
)
from trivgeo.groups.algebra import balanced
from trivgeo.groups.structure import real_structure


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (SO(3), "so(3)"),
        (SE(3), "so(3) ⋉ R^3"),
        (SL(2), "sl(2, R)"),
        (Affine(1), "aff(1)"),
        (Heisenberg(1), "h(3)"),
        (Torus(3), "R^3"),
        (DirectProduct(SO(3), SL(2)), "so(3) ⊕ sl(2, R)"),
        (HeatSymmetry(0.1), "sl(2, R) ⋉ h(3)"),
        (BurgersSymmetry(), "sl(2, R) ⋉ R^2"),
    ],
    ids=str,
)
def test_names(group: LieGroup, name: str) -> None:
    """Those of the literature; in another basis, too, where constants do not look rational."""
    assert group.algebra.name() == name
    turned = torch.linalg.qr(randn(group.dim, group.dim)).Q
    assert group.algebra.rescaled(turned).name() == name
    parts = group.algebra.levi_split()
    assert sum(map(len, (parts.semisimple, parts.torus, parts.ideal))) == group.dim


def test_names_of_direct_sums_and_of_large_algebras() -> None:
    assert (SE(3) ** 4).algebra.name() == "(so(3) ⋉ R^3)^4"
    assert DirectProduct(SE(2), Torus(2)).algebra.name() == f"({SE(2).algebra.name()}) ⊕ R^2"
    assert (Torus(1) ** 5).algebra.name() == "R^5"
    assert SO(7).algebra.name() == "semisimple of dimension 21"


def so3() -> Tensor:
    c = torch.zeros(3, 3, 3, dtype=torch.float64)
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        c[i, j, k], c[j, i, k] = 1.0, -1.0
    return c


def test_structure_constants_are_those_of_the_group_commutator(group: LieGroup) -> None:
    """[e_i, e_j] = d^2/ds dt log(exp(s e_i) exp(t e_j) exp(-s e_i) exp(-t e_j)) at zero."""
    zero = torch.zeros((), dtype=torch.float64)
    eye = torch.eye(group.dim, dtype=torch.float64)
    x, y = eye.repeat_interleave(group.dim, 0), eye.repeat(group.dim, 1)

    def commutator(s: Tensor, t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        forth = group.compose(group.exp(s * x), group.exp(t * y))
        return group.log(group.compose(forth, group.compose(group.exp(-s * x), group.exp(-t * y))))

    mixed = torch.func.jacfwd(torch.func.jacfwd(commutator, 0), 1)
    c = mixed(zero, zero, x, y).unflatten(0, (group.dim, group.dim))
    assert_relative(c, group.algebra.structure_constants, 1e-10, event=3)


def test_bracket_ad_and_trace(case: GroupCase, group: LieGroup) -> None:
    algebra, c = group.algebra, group.algebra.structure_constants
    u, v = random_vectors(group, 4, 1, std=1.0), random_vectors(group, 3, std=1.0, seed=1)
    expected = torch.zeros(4, 3, group.dim, dtype=torch.float64)
    for i in range(group.dim):
        for j in range(group.dim):
            expected += u[..., i : i + 1] * v[..., j : j + 1] * c[i, j]
    assert_relative(algebra.bracket(u, v), expected, 1e-12, event=1)
    assert_relative(algebra.bracket(u, v), -algebra.bracket(v, u), 1e-12, event=1)
    by_matrix = (algebra.ad(u) @ v.unsqueeze(-1)).squeeze(-1)
    assert_relative(by_matrix, expected, 1e-12, event=1)
    assert_relative(algebra.trace_ad, algebra.ad(torch.eye(group.dim).double()).diagonal(dim1=1, dim2=2).sum(1), 1e-12)
    assert algebra.is_unimodular == bool((algebra.trace_ad.abs() < 1e-12).all())


def test_jacobi_identity(group: LieGroup) -> None:
    u, v, w = (randn(group.dim, seed=s) for s in range(3))
    bracket = group.algebra.bracket
    terms = torch.stack([bracket(bracket(u, v), w), bracket(bracket(v, w), u), bracket(bracket(w, u), v)])
    assert float(terms.sum(0).abs().max()) <= 1e-12 * max(1.0, float(terms.abs().max()))


def test_known_algebras() -> None:
    c = SL(2).algebra.structure_constants
    assert_relative(c[0, 1], torch.tensor([0.0, 2.0, 0.0], dtype=torch.float64), 1e-14)  # [H, E] = 2 E
    assert_relative(c[0, 2], torch.tensor([0.0, 0.0, -2.0], dtype=torch.float64), 1e-14)
    assert_relative(c[1, 2], torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), 1e-14)
    killing = torch.tensor([[8.0, 0, 0], [0, 0, 4.0], [0, 4.0, 0]], dtype=torch.float64)
    assert_relative(SL(2).algebra.killing_form, killing, 1e-14)
    assert HeatSymmetry(0.1).algebra.structure_constants[3, 4, 5] == pytest.approx(5.0)  # [Q, P] = Z / (2 nu)
    assert HeatSymmetry(0.1).algebra.names == ("H", "E", "F", "Q", "P", "Z")
    assert BurgersSymmetry().dim == 5
    assert [Translation(2).algebra.nilpotency_step(), Heisenberg(2).algebra.nilpotency_step()] == [1, 2]
    assert SL(2).algebra.nilpotency_step() is None
    assert Translation(2).algebra.is_abelian
    assert not Heisenberg(1).algebra.is_abelian


@pytest.mark.parametrize("sizes", [(1.0, 1e-10), (1e-10, 1.0), (1e8, 1e-3)])
def test_steps_do_not_depend_on_the_lengths_of_the_basis(sizes: tuple[float, float]) -> None:
    """[a, b] = s c and [a, c] = t d: three steps, and the product holds the brackets of brackets."""
    s, t = sizes
    c = torch.zeros(4, 4, 4, dtype=torch.float64)
    c[0, 1, 2], c[1, 0, 2], c[0, 2, 3], c[2, 0, 3] = s, -s, t, -t
    assert LieAlgebra(c).nilpotency_step() == 3
    a, b = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0]], dtype=torch.float64)
    expected = torch.tensor([1.0, 1.0, s / 2, s * t / 12], dtype=torch.float64)
    assert_relative(Nilpotent(LieAlgebra(c)).compose(a, b), expected, 1e-14, floor=0.0)


def test_made_inside_a_transform() -> None:
    algebra = SE(3).algebra
    make = lambda v: v @ LieAlgebra(algebra.structure_constants.clone(), names=algebra.names).bracket(v, v)  # noqa: E731
    assert_relative(torch.func.grad(make)(randn(6, seed=0)), torch.zeros(6, dtype=torch.float64), 1e-9)


def test_radical_does_not_depend_on_the_lengths_of_the_basis() -> None:
    def radical(algebra: LieAlgebra) -> Tensor:
        return real_structure(balanced(algebra)[0]).radical

    for scale in ([1e-5] * 3, [1e-5, 1.0, 1e3], [1e6] * 3):
        assert not len(radical(SO(3, scale=scale).algebra))
    small = BurgersSymmetry(scale=[1e-6] * 5).algebra
    assert len(radical(small)) == len(radical(BurgersSymmetry().algebra)) == 2
    assert len(real_structure(small).centre()) == 0


@pytest.mark.parametrize("seed", range(5))
def test_traces_that_are_rounding_vanish(seed: int) -> None:
    """In a random basis the diagonals of ad(e_i) are rounding errors, whatever the group."""
    turn = torch.linalg.qr(randn(3, 3, seed=seed))[0]
    for scale in (turn, 1e-5 * turn):
        assert SO(3, scale=scale).algebra.is_unimodular
        assert SL(2, scale=scale).algebra.is_unimodular
        assert not Affine(1, scale=scale[:2, :2]).algebra.is_unimodular


def test_constants_do_not_depend_on_the_size_of_the_central_one() -> None:
    """A central constant however small is not zero: [Q, P] = 1e-10 Z has two steps, and Ad shows it."""
    group = Heisenberg(1, 1e-10)
    assert group.algebra.nilpotency_step() == 2
    g = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    assert float(group.Ad(g)[2, 1]) == pytest.approx(1e-10, abs=1e-20)


def test_rescaled() -> None:
    scale = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
    algebra = LieAlgebra(so3()).rescaled(scale)
    u, v = randn(3), randn(3, seed=1)
    expected = LieAlgebra(so3()).bracket(scale * u, scale * v) / scale
    assert_relative(algebra.bracket(u, v), expected, 1e-13)


def test_from_matrices() -> None:
    basis = torch.zeros(3, 3, 3, dtype=torch.float64)
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        basis[i, k, j], basis[i, j, k] = 1.0, -1.0
    assert_relative(LieAlgebra.from_matrices(basis).structure_constants, so3(), 1e-12)
    mixed = torch.einsum("ij,jkl->ikl", randn(3, 3), basis)
    c = LieAlgebra.from_matrices(mixed).structure_constants
    commutator = mixed[0] @ mixed[1] - mixed[1] @ mixed[0]
    assert_relative(torch.einsum("k,kab->ab", c[0, 1], mixed), commutator, 1e-12)


class TestBadInput:
    def test_matrices_that_do_not_close_name_the_bracket(self) -> None:
        basis = torch.tensor([[[0.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]])
        with pytest.raises(AlgebraError, match=r"\[E, F\]"):
            LieAlgebra.from_matrices(basis, ("E", "F"))

    def test_dependent_matrices(self) -> None:
        with pytest.raises(AlgebraError, match="independent"):
            LieAlgebra.from_matrices(torch.eye(2).expand(2, 2, 2))

    def test_jacobi_failure_names_the_triple(self) -> None:
        c = torch.zeros(4, 4, 4, dtype=torch.float64)
        c[:3, :3, :3] = so3()
        c[2, 3, 0], c[3, 2, 0] = 1.0, -1.0
        with pytest.raises(AlgebraError, match=r"Jacobi identity.*\(\w, \w, \w\)") as caught:
            LieAlgebra(c, names=("A", "B", "C", "D"))
        assert "D" in str(caught.value)

    def test_jacobi_of_many_dimensions(self) -> None:
        """All triples of 190 dimensions would take ten gigabytes; one wrong constant of so(20) is found."""
        c = SO(20).algebra.structure_constants.clone()
        a, b = divmod(int((c[:, :, 7] != 0).flatten().nonzero()[0]), 190)
        c[a, b, 7], c[b, a, 7] = 1.5 * c[a, b, 7], 1.5 * c[b, a, 7]
        with pytest.raises(AlgebraError, match=r"Jacobi identity to hold, got a defect of 0\.5"):
            LieAlgebra(c)
        with pytest.raises(ConfigurationError, match="at most 45"):
            SO(100)

    def test_antisymmetry_failure_names_the_pair(self) -> None:
        c = so3()
        c[0, 1, 2] = 2.0
        with pytest.raises(AlgebraError, match=r"\[e1, e2\] = -\[e2, e1\]"):
            LieAlgebra(c)

    def test_not_finite(self) -> None:
        c = so3()
        c[0, 1, 2] = torch.nan
        with pytest.raises(AlgebraError, match="finite"):
            LieAlgebra(c)

    def test_shapes(self) -> None:
        with pytest.raises(ShapeError, match=r"\[n, n, n\]"):
            LieAlgebra(torch.zeros(2, 2, 3))
        with pytest.raises(ShapeError, match="names"):
            LieAlgebra(so3(), names=("A", "B"))
        with pytest.raises(ShapeError, match="derivations"):
            LieAlgebra.semidirect_sum(LieAlgebra(so3()), LieAlgebra(so3()), torch.zeros(2, 3, 3))

    def test_derivations_that_are_none(self) -> None:
        abelian = LieAlgebra(torch.zeros(1, 1, 1))
        with pytest.raises(AlgebraError, match="Jacobi"):
            LieAlgebra.semidirect_sum(abelian, LieAlgebra(so3()), torch.eye(3).double()[None])


@pytest.mark.parametrize(
    "group",
    [
        DirectProduct(SE(3), SE(3), Torus(2), SO(3)),
        DirectProduct([SE(2)] * 3, scale=[1.0, 1.0, 2.0, 3.0, 1.0, 2.0, 1.0, 1.0, 2.0]),
        DirectProduct(Heisenberg(), Translation(2)),
        DirectProduct(Affine(1), DirectProduct(SO(3), Affine(1))),
    ],
    ids=repr,
)
def test_direct_sum_is_block_diagonal(group: DirectProduct) -> None:
    """What is found summand by summand is what the dense structure constants give."""
    found, dense = group.algebra, LieAlgebra(group.algebra.structure_constants, group.algebra.names)
    u, v = torch.randn(2, 5, group.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = [
        (found.bracket(u, v), dense.bracket(u, v)),
        (found.ad(u), dense.ad(u)),
        (found.killing_form, dense.killing_form),
        (found.trace_ad, dense.trace_ad),
        *((a.value, b.value) for a, b in zip(found.noise_corrections, dense.noise_corrections, strict=True)),
        (found.noise_spread[0].value, dense.noise_spread[0].value),
    ]
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in pairs)
    for name in ("is_unimodular", "is_abelian"):
        assert getattr(found, name) == getattr(dense, name)
    assert found.nilpotency_step() == dense.nilpotency_step()


def test_large_power_without_structure_constants() -> None:
    """Of 768 dimensions the cube has 3.6 GB; brackets and the corrections of noise need none."""
    group = SE(3) ** 128
    v, w = torch.randn(2, group.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = SE(3).algebra.bracket(v[-6:], w[-6:])
    assert torch.allclose(group.algebra.bracket(v, w)[-6:], expected)
    assert group.with_scale(0.5).algebra.noise_corrections[1].value.shape == (768, 768)
    assert not group.algebra.is_abelian
    assert group.algebra.is_unimodular
    assert "_c" not in vars(group.algebra)
