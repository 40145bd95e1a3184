"""The one list of group cases. A new group is one more entry of `CASES`; every law is then tested on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.groups.pdes import Pde, burgers, heat, kdv
from tests.groups.textbook import HEAT, NU, PLANE, SPECIAL_AFFINE, nu, t, u, x, y
from tests.helpers import affine_line
from trivgeo.groups import (
    SE,
    SL,
    SO,
    SU,
    Affine,
    BurgersSymmetry,
    DirectProduct,
    E,
    ExtendedSE,
    GLPlus,
    HeatSymmetry,
    Heisenberg,
    KdVSymmetry,
    LieAlgebra,
    LieGroup,
    Lorentz,
    MatrixGroup,
    Nilpotent,
    O,
    Projective,
    SemidirectProduct,
    Similarity,
    Torus,
    Translation,
    U,
    from_generators,
)
from trivgeo.groups.group import Scale
from trivgeo.groups.inhomogeneous import InhomogeneousGroup


@dataclass(frozen=True)
class GroupCase:
    """What the tests need to know of a group.

    Attributes:
        name: the test id.
        make: the group; takes the keyword ``scale``.
        std: standard deviation of random algebra vectors, small enough for `log` to invert `exp`.
        matrix: a faithful representation ``[*batch, *element_shape] -> [*batch, k, k]``, written out independently.
        has_action: whether ``action()`` exists.
        pdes: equations whose solutions the action carries to solutions.
        slow: whether its laws are tested in the long run only, since a relative is in the short one.
        slow_laws: tests that only the long run makes of this case, as ``test_under_vmap``, or with their other
            parameters as ``test_under_vmap[logarithms]``: they take seconds, and other cases stay.
    """

    name: str
    make: Callable[..., LieGroup]
    std: float = 0.4
    matrix: Callable[[Tensor], Tensor] | None = None
    has_action: bool = False
    pdes: tuple[Pde, ...] = ()
    slow: bool = False
    slow_laws: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    @cached_property
    def group(self) -> LieGroup:
        """The group in its natural basis."""
        return self.make()


def stack_matrix(rows: list[list[Tensor | float]], reference: Tensor) -> Tensor:
    """A matrix ``[*batch, k, k]`` from its entries, tensors ``[*batch]`` or numbers."""
    full = [[torch.zeros_like(reference) + entry for entry in row] for row in rows]
    return torch.stack([torch.stack(row, -1) for row in full], -2)


def translation_matrix(g: Tensor) -> Tensor:
    n = g.shape[-1]
    unit = torch.eye(n, dtype=g.dtype).expand(*g.shape[:-1], n, n)
    top = torch.cat([unit, g.unsqueeze(-1)], -1)
    last = torch.cat([torch.zeros_like(g), torch.ones_like(g[..., :1])], -1)
    return torch.cat([top, last.unsqueeze(-2)], -2)


def heisenberg_matrix(g: Tensor, n: int, central: float) -> Tensor:
    """Unit upper triangular of size n + 2."""
    q, p, z = g[..., :n], g[..., n:-1], g[..., -1]
    rows: list[list[Tensor | float]] = [[1.0, *q.unbind(-1), z / central + 0.5 * (q * p).sum(-1)]]
    rows.extend([0.0, *(1.0 if j == i else 0.0 for j in range(n)), p[..., i]] for i in range(n))
    rows.append([0.0] * (n + 1) + [1.0])
    return stack_matrix(rows, z)


def affine_line_matrix(g: Tensor) -> Tensor:
    a, b = g.unbind(-1)
    return stack_matrix([[a.exp(), b], [0.0, 1.0]], a)


def dilate(h: Tensor, n: Tensor) -> Tensor:
    return n * torch.cat([h.exp(), (2 * h).exp(), (3 * h).exp()], -1)


def dilated_heisenberg(scale: object = None) -> SemidirectProduct:
    """R acting on H(1) by dilations e^h, e^2h, e^3h; not unimodular, two-step ideal."""
    return SemidirectProduct(Translation(1), Heisenberg(1, 2.0), dilate, scale=scale)


def dilated_heisenberg_matrix(g: Tensor) -> Tensor:
    h = g[..., 0]
    dilation = stack_matrix([[(3 * h).exp(), 0.0, 0.0], [0.0, (2 * h).exp(), 0.0], [0.0, 0.0, 1.0]], h)
    return heisenberg_matrix(g[..., 1:], 1, 2.0) @ dilation


def multiply(h: Tensor, n: Tensor) -> Tensor:
    return (h @ n.unsqueeze(-1)).squeeze(-1)


def special_affine(scale: object = None) -> SemidirectProduct:
    """SL(2) acting on R^2 by its matrices."""
    return SemidirectProduct(SL(2), Translation(2), multiply, scale=scale)


def special_affine_matrix(g: Tensor) -> Tensor:
    a, b, c, d, x, y = g.unbind(-1)
    return stack_matrix([[a, b, x], [c, d, y], [0.0, 0.0, 1.0]], a)


def plane_matrix(g: Tensor) -> Tensor:
    """SL(2) with R^2 by (alpha q - beta p, -gamma q + delta p): the group of Burgers' equation."""
    a, b, c, d, q, p = g.unbind(-1)
    return stack_matrix([[a, -b, q], [-c, d, p], [0.0, 0.0, 1.0]], a)


def jacobi_matrix(g: Tensor, central: float) -> Tensor:
    """SL(2) with H(1) as the Jacobi group inside Sp(4): the group of the heat equation."""
    a, b, c, d, q, p, z = g.unbind(-1)
    ideal = stack_matrix(
        [[1.0, -p, q, 2.0 * z / central], [0.0, 1.0, 0.0, q], [0.0, 0.0, 1.0, p], [0.0, 0.0, 0.0, 1.0]], z
    )
    complement = stack_matrix([[1.0, 0.0, 0.0, 0.0], [0.0, a, -b, 0.0], [0.0, -c, d, 0.0], [0.0, 0.0, 0.0, 1.0]], z)
    return ideal @ complement


def move_plane(h: Tensor, n: Tensor) -> Tensor:
    a, b, c, d = h[..., 0, 0], h[..., 0, 1], h[..., 1, 0], h[..., 1, 1]
    q, p, z = n.unbind(-1)
    return torch.stack([a * q - b * p, d * p - c * q, z + torch.zeros_like(a)], -1)


def linear_jacobi(scale: object = None) -> SemidirectProduct:
    """SL(2) with H(1), by `LinearAutomorphism` and so by matrix exponentials."""
    return SemidirectProduct(SL(2), Heisenberg(1, 3.0), move_plane, scale=scale)


def homogeneous_matrix(g: Tensor) -> Tensor:
    """[A | b] as [[A, b], [0, 1]]."""
    last = torch.zeros_like(g[..., :1, :])
    last[..., -1] = 1.0
    return torch.cat([g, last], -2)


def extended_matrix(g: Tensor) -> Tensor:
    """[R | b_1 ... b_k] as [[R, b], [0, I]]."""
    n, k = g.shape[-2], g.shape[-1] - g.shape[-2]
    last = torch.cat([torch.zeros(k, n), torch.eye(k)], -1).to(g)
    return torch.cat([g, last.expand(*g.shape[:-2], k, n + k)], -2)


def kdv_matrix(g: Tensor) -> Tensor:
    """On (x, t, 1), with u in the last row."""
    s, tau, c, xi = g.unbind(-1)
    return stack_matrix(
        [
            [s.exp(), c * (3 * s).exp(), xi + 0.5 * c * tau, 0.0],
            [0.0, (3 * s).exp(), tau, 0.0],
            [0.0, 0.0, 1.0, 0.0],
            [0.0, 0.0, c, (-2 * s).exp()],
        ],
        s,
    )


def triangular(scale: object = None) -> MatrixGroup:
    """Upper triangular 2 x 2 matrices with positive diagonal: not unimodular."""
    basis = torch.zeros(3, 2, 2, dtype=torch.float64)
    basis[0, 0, 0] = basis[1, 0, 1] = basis[2, 1, 1] = 1.0
    return MatrixGroup(basis, scale=scale)


def rigid_times_kdv(scale: object = None) -> DirectProduct:
    return DirectProduct(SE(2), KdVSymmetry(), scale=scale)


def block_matrix(*blocks: Tensor) -> Tensor:
    rows, total, start = [], sum(b.shape[-1] for b in blocks), 0
    for block in blocks:
        rows.append(torch.nn.functional.pad(block, (start, total - start - block.shape[-1])))
        start += block.shape[-1]
    return torch.cat(rows, -2)


def rigid_times_kdv_matrix(g: Tensor) -> Tensor:
    return block_matrix(homogeneous_matrix(g[..., :6].unflatten(-1, (2, 3))), kdv_matrix(g[..., 6:]))


def torus_matrix(g: Tensor) -> Tensor:
    """A rotation of a plane for each angle."""
    return block_matrix(*(stack_matrix([[a.cos(), -a.sin()], [a.sin(), a.cos()]], a) for a in g.unbind(-1)))


def unitary_matrix(g: Tensor) -> Tensor:
    """A + i B as [[A, -B], [B, A]]."""
    a, b = g.unbind(-1)
    return torch.cat([torch.cat([a, -b], -1), torch.cat([b, a], -1)], -2)


def affine_line_power(scale: Scale = None) -> LieGroup:
    return (Affine(1) ** 3).with_scale(scale)


def affine_line_power_matrix(g: Tensor) -> Tensor:
    return block_matrix(*homogeneous_matrix(g.unflatten(-1, (3, 1, 2))).unbind(-3))


def itself(g: Tensor) -> Tensor:
    return g


def filiform(scale: Scale = None) -> LieGroup:
    """[e1, ei] = e(i+1) for i = 2, 3, 4: nilpotent of four steps."""
    c = torch.zeros(5, 5, 5)
    for i in (1, 2, 3):
        c[0, i, i + 1], c[i, 0, i + 1] = 1.0, -1.0
    return Nilpotent(LieAlgebra(c), scale)


def generated_kdv(scale: Scale = None) -> LieGroup:
    """The symmetries of KdV from their fields on (x, t, u), as torch functions."""
    return from_generators({"X": kdv_x, "T": kdv_t, "C": kdv_boost, "S": kdv_scaling}, variables=3, scale=scale)


def kdv_x(p: Tensor) -> Tensor:
    return torch.stack([torch.ones_like(p[0]), 0 * p[1], 0 * p[2]])


def kdv_t(p: Tensor) -> Tensor:
    return torch.stack([0 * p[0], torch.ones_like(p[1]), 0 * p[2]])


def kdv_boost(p: Tensor) -> Tensor:
    return torch.stack([p[1], 0 * p[1], torch.ones_like(p[2])])


def kdv_scaling(p: Tensor) -> Tensor:
    return torch.stack([p[0], 3 * p[1], -2 * p[2]])


# the derivatives of generated groups go through those of the groups that they consist of
GENERATED = (
    "test_under_vmap",
    "test_derivatives_keep_the_dtype",
    "test_derivatives_are_finite_near_the_identity[float32]",
)
# through the same lines as HeatSymmetry(0.1), Affine(2), SL(2).Heisenberg(1), SO(3) and SE(3)
DERIVATIVES = (
    "test_under_vmap",
    "test_second_derivatives",
    "test_jvp_of_a_batch",
    "test_derivatives_keep_the_dtype",
    "test_gradcheck",
)
LOGARITHMS = ("test_under_vmap[logarithms]",)  # second derivatives of long closed forms; SO(3), SE(3) and SL(2) stay

CASES = [
    GroupCase("Translation(3)", partial(Translation, 3), 1.0, translation_matrix, has_action=True),
    GroupCase("Heisenberg(1)", Heisenberg, 1.0, partial(heisenberg_matrix, n=1, central=1.0)),
    GroupCase(
        "Heisenberg(2,5)", partial(Heisenberg, 2, 5.0), 1.0, partial(heisenberg_matrix, n=2, central=5.0), slow=True
    ),
    GroupCase("SL(2)", SL, 0.5, lambda g: g, has_action=True),
    GroupCase("Aff(1)", affine_line, 0.7, affine_line_matrix),
    GroupCase("R.Heisenberg(1)", dilated_heisenberg, 0.5, dilated_heisenberg_matrix, slow=True),
    GroupCase("SL(2).R2", special_affine, 0.5, special_affine_matrix, slow=True),
    GroupCase("SL(2).Heisenberg(1)", linear_jacobi, 0.4, partial(jacobi_matrix, central=3.0)),
    GroupCase(
        "HeatSymmetry(1)",
        partial(HeatSymmetry, 1.0),
        0.4,
        partial(jacobi_matrix, central=0.5),
        has_action=True,
        pdes=(heat(1.0),),
        slow=True,
    ),
    GroupCase(
        "HeatSymmetry(0.1)",
        partial(HeatSymmetry, 0.1),
        0.3,
        partial(jacobi_matrix, central=5.0),
        has_action=True,
        pdes=(heat(0.1),),
    ),
    GroupCase(
        "HeatSymmetry(0.001)",
        partial(HeatSymmetry, 1e-3),
        0.1,
        partial(jacobi_matrix, central=500.0),
        has_action=True,
        pdes=(heat(1e-3),),
        slow=True,
    ),
    GroupCase(
        "BurgersSymmetry",
        BurgersSymmetry,
        0.4,
        plane_matrix,
        has_action=True,
        pdes=(burgers(1e-3), burgers(0.1), burgers(1.0)),
    ),
    GroupCase("KdVSymmetry", KdVSymmetry, 0.4, kdv_matrix, has_action=True, pdes=(kdv(),), slow_laws=LOGARITHMS),
    GroupCase("GL+(2)", partial(GLPlus, 2), 0.5, itself, has_action=True),
    GroupCase("Affine(2)", partial(Affine, 2), 0.5, homogeneous_matrix, has_action=True),
    GroupCase(
        "SL(2) and translations",
        partial(InhomogeneousGroup, SL(2)),
        0.5,
        homogeneous_matrix,
        has_action=True,
        slow=True,
    ),
    GroupCase("SO(3)", partial(SO, 3), 0.8, itself, has_action=True),
    GroupCase("SO(4)", partial(SO, 4), 0.5, itself, has_action=True, slow_laws=LOGARITHMS),
    GroupCase("SE(3)", partial(SE, 3), 0.6, homogeneous_matrix, has_action=True),
    GroupCase("SE_2(3)", partial(ExtendedSE, 2), 0.6, extended_matrix, slow_laws=LOGARITHMS),
    GroupCase("SE_3(2)", partial(ExtendedSE, 3, 2), 0.6, extended_matrix, slow=True),
    GroupCase("Lorentz", Lorentz, 0.6, itself, has_action=True, slow_laws=LOGARITHMS),
    GroupCase("O(3)", partial(O, 3), 0.8, itself, has_action=True, slow_laws=DERIVATIVES),
    GroupCase("E(2)", partial(E, 2), 0.6, homogeneous_matrix, has_action=True, slow_laws=DERIVATIVES),
    GroupCase("Projective(2)", partial(Projective, 2), 0.3, itself, has_action=True, slow_laws=LOGARITHMS),
    GroupCase("Triangular(2)", triangular, 0.5, itself, has_action=True),
    GroupCase("Nilpotent(filiform, 4)", filiform, 0.8),
    GroupCase(
        "KdV from generators",
        generated_kdv,
        0.4,
        has_action=True,
        pdes=(kdv(),),
        slow=True,
    ),
    GroupCase(
        "heat from generators",
        partial(from_generators, HEAT, variables=(x, t, u), parameters={nu: NU}),
        0.3,
        has_action=True,
        pdes=(heat(NU),),
        slow_laws=(*GENERATED, "test_exponential_is_the_flow"),
    ),
    GroupCase(
        "rigid motions from generators",
        partial(from_generators, PLANE | {"R": (-y, x)}, variables=(x, y)),
        0.5,
        has_action=True,
        slow=True,
    ),
    GroupCase(
        "special affine from generators",
        partial(from_generators, SPECIAL_AFFINE, variables=(x, y)),
        0.4,
        has_action=True,
        slow=True,
    ),
    GroupCase("Torus(3)", partial(Torus, 3), 0.8, torus_matrix),
    GroupCase("Similarity(2)", partial(Similarity, 2), 0.5, homogeneous_matrix, has_action=True),
    GroupCase("Similarity(3)", partial(Similarity, 3), 0.4, homogeneous_matrix, has_action=True, slow=True),
    GroupCase("SU(2)", partial(SU, 2), 0.8, unitary_matrix),
    GroupCase("SU(3)", partial(SU, 3), 0.4, unitary_matrix, slow=True),
    GroupCase("U(2)", partial(U, 2), 0.5, unitary_matrix, slow_laws=LOGARITHMS),
    GroupCase("Affine(1)^3", affine_line_power, 0.5, affine_line_power_matrix, has_action=True),
    GroupCase("SE(2)xKdV", rigid_times_kdv, 0.4, rigid_times_kdv_matrix, slow=True),
]


def marked(cases: Sequence[GroupCase]) -> list[Any]:
    """Parameters of a test, those of the long run marked."""
    return [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else []) for case in cases]
