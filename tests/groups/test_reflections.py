"""Orthogonal and Euclidean groups on both components, against matrices and moments."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch.func import vmap

from tests.helpers import assert_relative, randn, seeded
from trivgeo.actions import PointCloud
from trivgeo.errors import ConfigurationError
from trivgeo.generative import GroupDiffusion
from trivgeo.groups import SE, SO, Affine, DirectProduct, E, O, SemidirectProduct, Translation, check_group
from trivgeo.groups.harmonic import log_haar_volume
from trivgeo.groups.orthogonal import aligning_rotation
from trivgeo.inversion import Inverter
from trivgeo.inversion.energies import LeastSquares, PairedPoints
from trivgeo.inversion.stages import LevenbergMarquardt, Select
from trivgeo.registration import register

GROUPS = [O(2), O(3), O(4), O(5), E(2), E(3), E(4)]


def both(group: O | E, num: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Elements of both components in turn, not exponentials times one fixed reflection."""
    g, h = (group.random(num, std=0.7, generator=seeded(seed + k), dtype=torch.float64) for k in (0, 50))
    improper = group.compose(group.compose(g, group.reflection(dtype=torch.float64)), h)
    return torch.where((torch.arange(num) % 2 == 0)[:, None, None], g, improper).to(dtype)


def matrix(group: O | E, g: Tensor) -> Tensor:
    return group.homogeneous(g) if isinstance(group, E) else g


def linear(group: O | E, g: Tensor) -> Tensor:
    return g[..., : group.size]


@pytest.mark.parametrize("group", GROUPS, ids=repr)
class TestBothComponents:
    def test_products_and_inverses(self, group: O | E) -> None:
        g, h = both(group, 6, 0), both(group, 6, 1).roll(1, 0)
        assert_relative(matrix(group, group.compose(g, h)), matrix(group, g) @ matrix(group, h), 1e-14, event=2)
        assert_relative(matrix(group, group.inverse(g)), torch.linalg.inv(matrix(group, g)), 1e-12, event=2)
        assert torch.equal(group.is_proper(g), torch.linalg.det(linear(group, g)) > 0)
        assert group.is_proper(g).tolist() == [True, False] * 3

    def test_adjoint(self, group: O | E) -> None:
        """Of products; and g X g^-1 = Ad_g X, with the matrices of the algebra by SciPy's exponential of the basis."""
        g, h = both(group, 6, 0), both(group, 6, 1).roll(1, 0)
        assert_relative(group.Ad(group.compose(g, h)), group.Ad(g) @ group.Ad(h), 1e-12, event=2)
        v = randn(6, group.dim)
        moved = (group.Ad(g) @ v.unsqueeze(-1)).squeeze(-1)
        conjugate = matrix(group, g) @ matrix(group, group.exp(v)) @ torch.linalg.inv(matrix(group, g))
        assert_relative(matrix(group, group.exp(moved)), conjugate, 1e-11, event=2)
        y = randn(6, group.dim, seed=3)
        assert_relative(group.coadjoint(g, y), (group.Ad(g).mT @ y.unsqueeze(-1)).squeeze(-1), 1e-12, event=1)
        assert torch.equal(group.log_modular(g), torch.zeros(6, dtype=torch.float64))
        assert_relative(torch.linalg.det(group.Ad(g)).abs(), torch.ones(6, dtype=torch.float64), 1e-12)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_logarithm_is_of_one_component(self, group: O | E, dtype: torch.dtype) -> None:
        g = both(group, 6, 2, dtype)
        assert group.log(g).dtype == dtype
        assert not bool(group.log(g[1::2]).isfinite().any(-1).any())
        assert torch.equal(group.has_log(g), group.is_proper(g) & group.has_log(g))
        near = group.exp(0.2 * randn(4, group.dim).to(dtype))
        assert bool(group.has_log(near).all())
        assert not bool(group.has_log(group.compose(group.reflection(dtype=dtype), near)).any())
        assert not bool(group.has_log(-group.identity(dtype=dtype))) or group.size % 2 == 0

    def test_projection(self, group: O | E) -> None:
        g = both(group, 6, 3)
        noisy = g + 1e-3 * randn(*g.shape)
        found = group.project(noisy)
        nearest = torch.from_numpy(np.stack([scipy.linalg.polar(a)[0] for a in linear(group, noisy).numpy()]))
        assert_relative(linear(group, found), nearest, 1e-12, event=2)
        assert torch.equal(group.is_proper(found), group.is_proper(g))
        assert bool(group.project(torch.zeros_like(g)).isnan().any())

    def test_transforms(self, group: O | E) -> None:
        g, h = both(group, 4, 4), both(group, 4, 5)
        assert_relative(vmap(group.compose)(g, h), group.compose(g, h), 1e-14, event=2)
        assert_relative(vmap(group.Ad)(g), group.Ad(g), 1e-14, event=2)
        assert torch.equal(vmap(group.is_proper)(g), group.is_proper(g))
        x = randn(4, 5, group.size)
        once = group.action()(group.compose(g, h), x)
        assert_relative(once, group.action()(g, group.action()(h, x)), 1e-12, event=2)

    def test_is_another_group_than_its_component(self, group: O | E) -> None:
        component = SO(group.size) if isinstance(group, O) else SE(group.size)
        assert not group.is_same_group(component)
        assert not component.is_same_group(group)
        assert not DirectProduct(group, Translation(1)).is_same_group(DirectProduct(component, Translation(1)))
        assert group.is_same_group(group.with_scale(0.5))


@pytest.mark.parametrize("n", [2, 3, 4])
def test_uniform_law(n: int) -> None:
    """Both determinants equally often; the trace has mean 0 and, as the representation is irreducible, square 1."""
    g = O(n).random_haar(20_000, generator=seeded(n), dtype=torch.float64)
    assert_relative(g @ g.mT, torch.eye(n, dtype=torch.float64).expand_as(g), 1e-13, event=2)
    trace = g.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert abs(float(O(n).is_proper(g).double().mean()) - 0.5) < 5 * 0.5 / math.sqrt(len(g))
    for values, mean in ((trace, 0.0), (trace.square(), 1.0)):
        assert abs(float(values.mean()) - mean) < 5 * float(values.std()) / math.sqrt(len(g))
    assert log_haar_volume(O(n)) == pytest.approx(log_haar_volume(SO(n)) + math.log(2.0))


@pytest.mark.parametrize("group", [O(3), E(2), E(3)], ids=repr)
def test_laws_on_the_identity_component(group: O | E) -> None:
    check_group(group)


def test_what_they_are_made_of() -> None:
    with pytest.raises(ConfigurationError, match="n:"):
        O(1)
    with pytest.raises(ConfigurationError, match="connected"):
        GroupDiffusion(O(3))
    a = E(3).reflection(2, dtype=torch.float64)
    assert torch.equal(E(3).from_homogeneous(E(3).homogeneous(a)), a)
    assert SE(3).from_homogeneous(SE(3).homogeneous(a)).isnan().all()
    assert (O(3).num_components, E(2).num_components, SE(3).num_components, Affine(2).num_components) == (2, 2, 1, 1)
    assert DirectProduct(O(2), E(2)).num_components == 4
    turned = SemidirectProduct(O(2), Translation(2), lambda h, n: (h @ n.unsqueeze(-1)).squeeze(-1))
    assert turned.num_components == 2
    for group in (O(3), E(2), SE(3), DirectProduct(O(2), E(2), O(2)), turned):
        elements = group.components(torch.float64)
        between = group.log(group.compose(group.inverse(elements).unsqueeze(1), elements))
        assert len(elements) == group.num_components
        assert torch.equal(torch.isfinite(between).all(-1), torch.eye(len(elements), dtype=torch.bool))
        assert torch.equal(elements[0], group.identity(dtype=torch.float64))
    assert not bool(O(3).is_proper(torch.full((3, 3), math.nan)))


@pytest.mark.parametrize(
    ("group", "matched"),
    [
        (O(2), True),
        (E(2), True),
        (E(3), True),
        (O(2), False),
        pytest.param(E(3), False, marks=pytest.mark.slow(reason="unmatched points of O(2) stay")),
    ],
    ids=lambda value: repr(value) if isinstance(value, O | E) else {True: "matched", False: "unmatched"}[value],
)
@pytest.mark.parametrize("component", [0, 1], ids=["motion", "reflection"])
def test_registration(group: O | E, matched: bool, component: int) -> None:
    moving = randn(20, group.size, seed=4) + (100.0 if isinstance(group, E) else 0.0)
    g = both(group, 2, 9)[component]
    fixed = group.action()(g, moving)
    if not matched:
        fixed = fixed[torch.randperm(20, generator=seeded(1))]
    r = register(moving, fixed, group, matched=matched, num_starts=128 if isinstance(group, E) else 16)
    assert_relative(r.element, g, 1e-6, event=2)
    assert r.trusted, r.reasons
    assert r.residual < 1e-6


def test_inversion_from_both_components() -> None:
    """A reflected cloud: descents stay in the component that they start in, and the better one is kept."""
    group = E(2)
    points = randn(8, 2, seed=1)
    g = both(group, 2, 3)
    moved = PointCloud(group)(g, points.expand(2, 8, 2))
    starts = torch.stack([group.identity(dtype=torch.float64), group.reflection(dtype=torch.float64)])
    inverter = Inverter(
        PointCloud(group), LeastSquares(PairedPoints(points)), [LevenbergMarquardt(40), Select(1)], progress=False
    )
    found = inverter(moved, initial=starts.expand(2, 2, 2, 3)).elements
    assert_relative(found.reshape(2, 2, 3), g, 1e-7, event=2)


@pytest.mark.parametrize("matched", [True, False], ids=["matched", "unmatched"])
def test_mirror_images_are_two_modes(matched: bool) -> None:
    """A planar cloud in space fits by the reflection in its plane as well, and a symmetric one by that in its axis."""
    half = randn(10, 2, seed=4)
    if matched:
        group, cloud = E(3), torch.cat([half, torch.zeros(10, 1, dtype=torch.float64)], -1)
    else:
        group, cloud = E(2), torch.cat([half, half * torch.tensor([-1.0, 1.0])])
    pose = both(group, 2, 9)[1]
    r = register(cloud, group.action()(pose, cloud), group, matched=matched, num_starts=24)
    assert int(r.modes.num_modes) == 2
    assert group.is_proper(r.modes.elements[0]).sum() == 1
    assert not r.trusted
    assert r.residual < 1e-6


def test_aligning_rotations() -> None:
    """No rotation has a larger trace with the matrix, also where it is singular or its determinant is negative."""
    matrices = randn(6, 3, 3, seed=0)
    matrices[:2, :, 2] = 0.0
    found, values = aligning_rotation(matrices)
    assert torch.allclose(torch.linalg.det(found), torch.ones(6).double())
    best = (found * matrices).sum((-2, -1))
    assert torch.allclose(best, values.sum(-1))
    others = SO(3).random_haar(5000, generator=seeded(0), dtype=torch.float64)
    assert bool(((others[:, None] * matrices).sum((-2, -1)).amax(0) <= best + 1e-12).all())
    assert bool((torch.linalg.det(matrices)[2:] < 0.0).any())
