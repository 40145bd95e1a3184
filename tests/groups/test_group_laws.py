"""The laws of every group, over dtypes, batch shapes and distances from the identity."""

import inspect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

import trivgeo.groups
from tests.groups.cases import CASES, GroupCase
from tests.helpers import BOUNDS, affine_line, assert_relative, numeric_jacobian, randn, random_elements, random_vectors
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import (
    SL,
    BurgersSymmetry,
    GLPlus,
    HeatSymmetry,
    Heisenberg,
    LieGroup,
    SemidirectProduct,
    Translation,
)
from trivgeo.groups.check_group import DIFFERENCE_TOLERANCE, GroupLaws
from trivgeo.groups.inhomogeneous import InhomogeneousGroup


@dataclass(frozen=True)
class Setting:
    """A dtype, a batch shape, and distances from the identity in units of the case's own, of the batch's last axis."""

    dtype: torch.dtype
    batch: tuple[int, ...]
    sizes: tuple[float, ...] = (1.0,)

    def __str__(self) -> str:
        near = "" if self.sizes == (1.0,) else "-near"
        return f"{str(self.dtype).removeprefix('torch.')}-{list(self.batch)}{near}"


NEAR = (1e-3, 1e-6, 1e-12, 0.0)
SETTINGS = [
    Setting(torch.float64, ()),
    Setting(torch.float64, (2, 1, 3)),
    Setting(torch.float64, (4,), NEAR),
    Setting(torch.float32, (3,)),
    Setting(torch.float32, (4,), NEAR),
]


class Sample:
    """Random elements and vectors of one group, dtype, batch shape and size."""

    def __init__(self, case: GroupCase, setting: Setting) -> None:
        self.group = case.group
        self.batch = setting.batch
        self.dtype = setting.dtype
        self.bound = BOUNDS[setting.dtype]
        self.is_near = setting.sizes == NEAR
        self._std = case.std * torch.tensor(setting.sizes, dtype=setting.dtype).unsqueeze(-1)

    def elements(self, seed: int) -> Tensor:
        return self.group.exp(self.vectors(seed + 100))

    def vectors(self, seed: int) -> Tensor:
        v = random_vectors(self.group, *self.batch, std=1.0, seed=seed, dtype=self.dtype)
        return (v * self._std).reshape(v.shape)

    def same_elements(self, actual: Tensor, expected: Tensor) -> None:
        assert_relative(actual, expected, self.bound, event=len(self.group.element_shape))

    def same_vectors(self, actual: Tensor, expected: Tensor) -> None:
        assert_relative(actual, expected, self.bound, event=1)

    def same_matrices(self, actual: Tensor, expected: Tensor) -> None:
        assert_relative(actual, expected, self.bound, event=2)


@pytest.fixture(params=SETTINGS, ids=str)
def sample(request: pytest.FixtureRequest, case: GroupCase) -> Sample:
    return Sample(case, request.param)


def test_every_exported_group_has_a_case() -> None:
    exported = [getattr(trivgeo.groups, name) for name in trivgeo.groups.__all__]
    concrete = {c for c in exported if inspect.isclass(c) and issubclass(c, LieGroup) and not inspect.isabstract(c)}
    covered = {type(case.group) for case in CASES}
    assert concrete, "no group is exported"
    assert concrete <= covered, f"no case in tests/groups/cases.py for {concrete - covered}"
    assert len({case.name for case in CASES}) == len(CASES)


def test_slow_laws_exist() -> None:
    """A law that a case leaves to the long run is a test of this folder, and its parameters are ids of that file."""
    sources = [path.read_text() for path in Path(__file__).parent.rglob("test_*.py")]
    for law in {law for case in CASES for law in case.slow_laws}:
        name, _, parameters = law.removesuffix("]").partition("[")
        found = [source for source in sources if f"def {name}(" in source]
        assert any(
            not parameters or f'"{parameters}":' in source or f'"{parameters}"]' in source for source in found
        ), law


class TestLaws:
    def test_laws(self, sample: Sample) -> None:
        """The laws of `check_group`; those by differences in double precision, at elements apart."""
        laws = GroupLaws(sample.group, [sample.vectors(0), sample.vectors(1)], [sample.elements(i) for i in range(3)])
        for law in laws.of_operations():
            if law.by_differences:
                assert sample.is_near or sample.dtype != torch.float64 or laws.error(law) < DIFFERENCE_TOLERANCE, law
                continue
            try:
                assert_relative(law.left, law.right, sample.bound, event=law.left.ndim - len(sample.batch))
            except AssertionError as error:
                raise AssertionError(law.statement) from error

    def test_identity(self, sample: Sample) -> None:
        e = sample.group.identity(*sample.batch, dtype=sample.dtype)
        assert e.shape == (*sample.batch, *sample.group.element_shape)
        assert e.dtype == sample.dtype

    def test_logarithm_inverts_exponential(self, sample: Sample) -> None:
        group, v = sample.group, sample.vectors(0)
        g = group.exp(v)
        sample.same_vectors(group.log(g), v)
        sample.same_elements(group.exp(group.log(g)), g)
        assert group.has_log(g).shape == sample.batch
        assert bool(group.has_log(g).all())

    def test_adjoint_of_exponential(self, sample: Sample) -> None:
        group, v = sample.group, sample.vectors(0)
        expected = scipy.linalg.expm(group.algebra.ad(v).double().numpy())
        sample.same_matrices(group.Ad(group.exp(v)), torch.as_tensor(np.asarray(expected)).to(sample.dtype))


class TestDenseOracle:
    """Against matrices: their product, inverse, exponential and conjugation."""

    @staticmethod
    def basis(case: GroupCase, group: LieGroup) -> Tensor:
        """The matrices of the basis, ``[dim, k, k]``, by finite differences of one-parameter subgroups."""
        assert case.matrix is not None
        zero = torch.zeros(group.dim, dtype=torch.float64)
        return numeric_jacobian(lambda v: case.matrix(group.exp(v)), zero, 1e-2).movedim(-1, 0)

    def test_product_and_inverse(self, matrix_case: GroupCase) -> None:
        group, matrix = matrix_case.group, matrix_case.matrix
        g, h = (random_elements(group, 5, std=matrix_case.std, seed=s) for s in range(2))
        assert_relative(matrix(group.compose(g, h)), matrix(g) @ matrix(h), 1e-10, event=2)
        assert_relative(matrix(group.inverse(g)), torch.linalg.inv(matrix(g)), 1e-10, event=2)

    def test_exponential(self, matrix_case: GroupCase) -> None:
        group, matrix = matrix_case.group, matrix_case.matrix
        v = random_vectors(group, 5, std=matrix_case.std)
        generator = torch.einsum("bi,ikl->bkl", v, self.basis(matrix_case, group))
        expected = torch.as_tensor(np.asarray(scipy.linalg.expm(generator.numpy())))
        assert_relative(matrix(group.exp(v)), expected, 1e-8, event=2)  # the basis is known to 1e-10

    def test_adjoint_and_structure_constants(self, matrix_case: GroupCase) -> None:
        group, matrix = matrix_case.group, matrix_case.matrix
        basis = self.basis(matrix_case, group)
        flat = basis.flatten(1).T

        def coordinates(matrices: Tensor) -> Tensor:
            columns = matrices.reshape(-1, flat.shape[0]).T
            solution = torch.linalg.lstsq(flat, columns).solution
            assert_relative(flat @ solution, columns, 1e-7)  # the span is closed
            return solution

        commutators = basis[:, None] @ basis[None] - basis[None] @ basis[:, None]
        c = coordinates(commutators).T.reshape(group.dim, group.dim, group.dim)
        assert_relative(c, group.algebra.structure_constants, 1e-8, event=3)
        for g in random_elements(group, 3, std=matrix_case.std):
            conjugated = matrix(g) @ basis @ torch.linalg.inv(matrix(g))
            assert_relative(coordinates(conjugated), group.Ad(g), 1e-8, event=2)


class TestBroadcasting:
    def test_batches_broadcast(self, case: GroupCase, group: LieGroup) -> None:
        g = random_elements(group, 4, 1, std=case.std)
        h = random_elements(group, 3, std=case.std, seed=1)
        product = group.compose(g, h)
        assert product.shape == (4, 3, *group.element_shape)
        one_by_one = torch.stack([torch.stack([group.compose(a[0], b) for b in h]) for a in g])
        assert_relative(product, one_by_one, 1e-13, event=len(group.element_shape))

    def test_large_batches_as_small_ones(self, case: GroupCase, group: LieGroup) -> None:
        """Above some sizes other kernels compute the same, also of batches that broadcast."""
        number, event = 1100, len(group.element_shape)
        v = random_vectors(group, number, std=0.5 * case.std)
        g = group.exp(v)
        part = slice(number - 20, number)
        assert_relative(g[part], group.exp(v[part]), 1e-11, event=event)
        for f, rank in ((group.inverse, event), (group.log, 1), (group.Ad, 2), (group.log_modular, 0)):
            assert_relative(f(g)[part], f(g[part]), 1e-9, event=rank)
        for f in (group.left_jacobian, group.right_jacobian):
            assert_relative(f(v)[part], f(v[part]), 1e-9, event=2)
        one, two = g[0], g[:2].unsqueeze(1)
        for a, b in ((one, g), (g, one), (two, g), (g, two), (g.unsqueeze(1), one), (g, g)):
            pieces = (x[part] if group.batch_shape(x)[:1] == (number,) else x for x in (a, b))
            whole = group.compose(a, b)
            whole = whole[part] if whole.shape[0] == number else whole[:, part]
            assert_relative(whole, group.compose(*pieces), 1e-11, event=event)

    def test_rows_do_not_mix(self, case: GroupCase, group: LieGroup) -> None:
        v = random_vectors(group, 3, std=case.std)
        g = group.exp(v)
        for row in range(3):
            assert_relative(group.exp(v[row]), g[row], 1e-13, event=len(group.element_shape))
            assert_relative(group.log(g[row]), group.log(g)[row], 1e-13, event=1)
            assert_relative(group.Ad(g[row]), group.Ad(g)[row], 1e-13, event=2)

    def test_empty_batch(self, group: LieGroup) -> None:
        v = torch.zeros(0, group.dim, dtype=torch.float64)
        g = group.exp(v)
        assert group.compose(g, group.inverse(g)).shape == (0, *group.element_shape)
        assert group.log(g).shape == v.shape
        assert group.log_modular(g).shape == (0,)

    def test_device_of_constants(self, group: LieGroup) -> None:
        """geomstats#1476: constants land on the CPU. Here every operation stays on the device of its arguments."""
        v = torch.zeros(2, group.dim, device="meta")
        g = group.exp(v)
        results = [g, group.compose(g, g), group.inverse(g), group.log(g), group.Ad(g), group.log_modular(g)]
        results += [group.identity(2, device="meta"), group.algebra.bracket(v, v), group.algebra.ad(v)]
        results += [group.retract(g, v), group.perturb(g, v)]
        assert {r.device.type for r in results} == {"meta"}

    def test_random(self, case: GroupCase, group: LieGroup) -> None:
        g = group.random(2, 3, std=case.std, generator=torch.Generator().manual_seed(3), dtype=torch.float32)
        again = group.random(2, 3, std=case.std, generator=torch.Generator().manual_seed(3), dtype=torch.float32)
        assert g.shape == (2, 3, *group.element_shape)
        assert g.dtype == torch.float32
        assert torch.equal(g, again)
        spread = group.log(group.random(4000, std=0.05, generator=torch.Generator().manual_seed(1))).std(0)
        assert_relative(spread, torch.full_like(spread, 0.05), 0.05, floor=0.0)


class TestScale:
    """The basis is ``scale[i]`` times the natural one; elements and products do not change."""

    def test_semantics(self, case: GroupCase) -> None:
        natural = case.group
        scale = [0.2 + 0.3 * i for i in range(natural.dim)]
        scaled = case.make(scale=scale)
        s = torch.tensor(scale, dtype=torch.float64)
        v = random_vectors(natural, 4, std=case.std)
        g, h = natural.exp(v), random_elements(natural, 4, std=case.std, seed=1)
        shape = len(natural.element_shape)
        assert_relative(scaled.scale, s, 0.0)
        assert_relative(scaled.exp(v / s), g, 1e-12, event=shape)
        assert_relative(scaled.log(g), v / s, 1e-10, event=1)
        assert torch.equal(scaled.compose(g, h), natural.compose(g, h))
        assert torch.equal(scaled.inverse(g), natural.inverse(g))
        assert_relative(scaled.Ad(g), torch.diag(1 / s) @ natural.Ad(g) @ torch.diag(s), 1e-12, event=2)
        assert_relative(scaled.log_modular(g), natural.log_modular(g), 1e-12)
        assert_relative(scaled.algebra.trace_ad, s * natural.algebra.trace_ad, 1e-12)
        assert scaled.is_same_group(natural)
        expected = torch.as_tensor(scipy.linalg.expm(scaled.algebra.ad(v / s).numpy()))
        assert_relative(scaled.Ad(g), expected, 1e-10, event=2)
        first_order = numeric_jacobian(lambda d: scaled.perturb(g[0], d), torch.zeros_like(s))
        assert_relative(first_order, numeric_jacobian(lambda d: scaled.retract(g[0], d), torch.zeros_like(s)), 1e-8)

    def test_one_number_is_for_every_direction(self) -> None:
        v = randn(3)
        assert_relative(SL(2, scale=0.5).exp(v), SL(2).exp(0.5 * v), 1e-14)

    @pytest.mark.parametrize("scale", [[1.0, 1.0], [1.0] * 4, [], 0.0, -1.0, math.inf, math.nan, [1.0, -1.0, 1.0]])
    def test_bad_scale(self, scale: object) -> None:
        with pytest.raises(ConfigurationError, match="scale"):
            SL(2, scale=scale)

    def test_factors_keep_their_natural_basis(self) -> None:
        with pytest.raises(ConfigurationError, match="natural basis"):
            SemidirectProduct(Translation(1, scale=2.0), Translation(1), lambda h, n: h.exp() * n)
        with pytest.raises(ConfigurationError, match="natural basis"):
            InhomogeneousGroup(GLPlus(1, scale=0.5))


class TestHaar:
    """Left Haar measure and modular function of Aff(1), by quadrature: not unimodular."""

    @staticmethod
    def grid() -> tuple[Tensor, Tensor]:
        """Nodes (a, b) and the weights of the left Haar measure e^-a da db."""
        a, b = (torch.linspace(-r, r, n, dtype=torch.float64) for r, n in ((9.0, 401), (120.0, 3601)))
        nodes = torch.stack(torch.meshgrid(a, b, indexing="ij"), -1)
        return nodes, (-nodes[..., 0]).exp() * (a[1] - a[0]) * (b[1] - b[0])

    @staticmethod
    def bump(g: Tensor) -> Tensor:
        return torch.exp(-((g[..., 0] - 0.2) ** 2) - 0.5 * (g[..., 1] + 0.3) ** 2)

    def test_left_invariance(self) -> None:
        group = affine_line()
        nodes, weights = self.grid()
        total = (self.bump(nodes) * weights).sum()
        for shift in randn(3, 2, seed=4) * 0.5:
            moved = (self.bump(group.compose(shift, nodes)) * weights).sum()
            assert_relative(moved, total, 1e-10)

    def test_right_translation_multiplies_by_the_modular_function(self) -> None:
        """mu(A h) = lambda(h) mu(A), so the integral of f(g h) is that of f over lambda(h)."""
        group = affine_line()
        nodes, weights = self.grid()
        total = (self.bump(nodes) * weights).sum()
        for h in randn(3, 2, seed=5) * 0.5:
            moved = (self.bump(group.compose(nodes, h)) * weights).sum()
            assert_relative(moved, total / group.log_modular(h).exp(), 1e-8)
            assert_relative(group.log_modular(h), -h[0], 1e-12)

    def test_densities_by_jacobians(self) -> None:
        """On groups whose elements are coordinates: |det d(g h)/dg| against the modular function."""
        for case in CASES:
            group = case.group
            if math.prod(group.element_shape) != group.dim:
                continue
            g, h = random_elements(group, std=case.std), random_elements(group, std=case.std, seed=1)
            e = group.identity(dtype=torch.float64)
            gh = group.compose(g, h)
            right, at_gh, at_g = (
                numeric_jacobian(f, x).reshape(group.dim, group.dim)
                for f, x in (
                    (lambda x, group=group, h=h: group.compose(x, h), g),
                    (lambda x, group=group, gh=gh: group.compose(gh, x), e),
                    (lambda x, group=group, g=g: group.compose(g, x), e),
                )
            )
            log_ratio = torch.linalg.slogdet(right)[1] - torch.linalg.slogdet(at_gh)[1] + torch.linalg.slogdet(at_g)[1]
            assert_relative(group.log_modular(h), log_ratio, 1e-8)


class TestSpecialLinear:
    """pypose#376 and geoopt#230 ask for groups beyond SO(3): here closed forms, with a stated domain of log."""

    def test_determinant_stays_one(self) -> None:
        g = SL(2).random(1000, std=1.0, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert_relative(torch.linalg.det(g), torch.ones(1000, dtype=torch.float64), 1e-9)

    @pytest.mark.parametrize(
        "v", [[1e-9, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 3.1, -3.1], [1.0, 1.0, -1.0], [3.0, 1.0, 2.0], [0.0, 0.1, -0.1]]
    )
    def test_logarithm_on_every_kind_of_element(self, v: list[float]) -> None:
        """Hyperbolic, parabolic and elliptic ones up to angle pi: jaxlie#9, pytorch3d#188 and pytorch#9983."""
        vector = torch.tensor(v, dtype=torch.float64)
        assert_relative(SL(2).log(SL(2).exp(vector)), vector, 1e-10)
        expected = torch.as_tensor(scipy.linalg.expm(np.array([[v[0], v[1]], [v[2], -v[0]]])))
        assert_relative(SL(2).exp(vector), expected, 1e-12, event=2)

    def test_elements_without_logarithm(self) -> None:
        good = SL(2).exp(torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64))
        bad = torch.tensor(
            [[[-2.0, 0.0], [0.0, -0.5]], [[-1.0, 1.0], [0.0, -1.0]], [[-1.0, 0.0], [0.0, -1.0]]], dtype=torch.float64
        )
        g = torch.cat([good[None], bad]).requires_grad_()
        log = SL(2).log(g)
        assert torch.equal(SL(2).has_log(g), torch.tensor([True, False, False, False]))
        assert torch.isnan(log[1:]).any(-1).all()
        (gradient,) = torch.autograd.grad(torch.where(SL(2).has_log(g).unsqueeze(-1), log, 0.0).sum(), g)
        assert torch.isfinite(gradient[0]).all()
        alone = good.clone().requires_grad_()
        assert_relative(gradient[0], torch.autograd.grad(SL(2).log(alone).sum(), alone)[0], 1e-13)


class TestBadInput:
    def test_arguments_are_checked_once(self, group: LieGroup, monkeypatch: pytest.MonkeyPatch) -> None:
        """By the method that was called, and not by those of its factors (ten times in one product of Heat)."""
        g, v = group.identity(2), torch.zeros(2, group.dim)
        seen: list[str] = []
        for name in ("check_elements", "check_vectors"):
            original = getattr(LieGroup, name)

            def counted(self: LieGroup, x: Tensor, label: str = "", f: Any = original, name: str = name) -> Tensor:
                seen.append(name)
                return f(self, x, label)

            monkeypatch.setattr(LieGroup, name, counted)
        for operation, count in (
            (lambda: group.compose(g, g), 1),  # what is like an element that was checked is one
            (lambda: group.compose(g, g[:1]), 2),
            (lambda: group.inverse(g), 1),
            (lambda: group.exp(v), 1),
            (lambda: group.log(g), 1),
            (lambda: group.Ad(g), 1),
            (lambda: group.log_modular(g), 1),
            (lambda: group.left_jacobian(v), 1),
            (lambda: group.project(g), 1),
            (lambda: group.perturb(g, v), 2),
        ):
            seen.clear()
            operation()
            assert len(seen) == count, seen

    @pytest.mark.parametrize("shape", [(3,), (2, 3), (4,), (2, 2, 3)])
    def test_elements_of_the_wrong_shape(self, shape: tuple[int, ...]) -> None:
        group, g = SL(2), torch.zeros(shape)
        for operation in (group.inverse, group.log, group.Ad, group.log_modular, lambda x: group.compose(x, x)):
            with pytest.raises(ShapeError, match="expected elements"):
                operation(g)

    def test_vectors_of_the_wrong_shape(self, group: LieGroup) -> None:
        for shape in ((), (group.dim + 1,), (group.dim, group.dim + 1)):
            with pytest.raises(ShapeError, match="expected algebra vectors"):
                group.exp(torch.zeros(shape))

    @pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.complex64])
    def test_numbers_that_are_not_floating_point(self, group: LieGroup, dtype: torch.dtype) -> None:
        v, g = torch.zeros(group.dim, dtype=dtype), torch.zeros(group.element_shape, dtype=dtype)
        for operation in (lambda: group.exp(v), lambda: group.log(g), lambda: group.compose(g, g), lambda: group.Ad(g)):
            with pytest.raises(ConfigurationError, match="expected floating-point numbers"):
                operation()

    @pytest.mark.parametrize("nu", [0.0, -1.0, math.nan, math.inf])
    def test_diffusivity(self, nu: float) -> None:
        with pytest.raises(ConfigurationError, match="nu"):
            HeatSymmetry(nu)

    def test_sizes(self) -> None:
        for build in (lambda: Translation(0), lambda: Heisenberg(0), lambda: Heisenberg(1, 0.0), lambda: SL(1)):
            with pytest.raises(ConfigurationError):
                build()

    @pytest.mark.parametrize("n", [2.0, True, "2"])
    def test_size_of_the_wrong_type(self, n: object) -> None:
        for build in (Translation, Heisenberg):
            with pytest.raises(ConfigurationError, match="n"):
                build(n)

    def test_central_constant_must_be_finite(self) -> None:
        for central in (math.nan, math.inf):
            with pytest.raises((ConfigurationError, trivgeo.errors.AlgebraError)):
                Heisenberg(1, central)

    def test_representation_must_act_by_automorphisms(self) -> None:
        with pytest.raises(trivgeo.errors.AlgebraError, match="Jacobi"):
            SemidirectProduct(Translation(1), Heisenberg(1), lambda h, n: h.exp() * n)

    @pytest.mark.parametrize(
        ("representation", "error", "message"),
        [
            (lambda h, n: 2 * n, trivgeo.errors.AlgebraError, r"rho\(g h\)"),
            (lambda h, n: n + h, trivgeo.errors.AlgebraError, r"\(n \+ m\)"),
            (lambda h, n: n[..., :1], ShapeError, "representation"),
            (lambda h, n: n.square() * h, trivgeo.errors.AlgebraError, r"\(n \+ m\)"),
        ],
    )
    def test_no_representation(self, representation: object, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            SemidirectProduct(Translation(1), Heisenberg(1), representation)

    def test_batches_that_do_not_broadcast(self, group: LieGroup) -> None:
        two, three = group.identity(2), group.identity(3)
        for operation in (group.compose, lambda g, h: group.retract(g, group.log(h)), lambda g, h: group.perturb(
            g, group.log(h))):  # fmt: skip
            with pytest.raises(ShapeError, match="broadcast"):
                operation(two, three)

    def test_join_of_the_wrong_shape(self) -> None:
        group = BurgersSymmetry()
        with pytest.raises(ShapeError):
            group.join(torch.eye(2), torch.zeros(3))

    def test_no_action(self, case: GroupCase, group: LieGroup) -> None:
        if case.has_action:
            assert group.action().group is group
        else:
            with pytest.raises(ConfigurationError, match="action"):
                group.action()

    def test_same_law(self) -> None:
        assert HeatSymmetry(0.1).is_same_group(HeatSymmetry(0.1, scale=0.5))
        assert not HeatSymmetry(0.1).is_same_group(HeatSymmetry(0.2))
        assert not HeatSymmetry(0.1).is_same_group(BurgersSymmetry())
        assert not Translation(3).is_same_group(Heisenberg(1))
