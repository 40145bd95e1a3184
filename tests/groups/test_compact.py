"""Tori, unitary groups, powers and uniform laws, against SciPy, closed forms and known moments."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from scipy import stats
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import hessian, jacfwd, vmap

from tests.helpers import assert_relative, numeric_jacobian, rand, randn, random_elements, random_vectors, seeded
from trivgeo._numerics import log_abs_det
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import SE, SO, SU, Affine, DirectProduct, Heisenberg, LieGroup, Similarity, Torus, Translation, U
from trivgeo.groups.linalg.hermitian import hermitian_exp
from trivgeo.groups.unitary import UnitaryGroup as Unitary


class TestTorus:
    def test_wrap(self) -> None:
        for dtype in (torch.float64, torch.float32):
            angles = torch.tensor([0.0, 3.0, math.pi, -math.pi, 3 * math.pi, 4.0, -4.0, 1e-30, 100.0], dtype=dtype)
            wrapped = Torus(9).wrap(angles)
            pi = torch.tensor(math.pi, dtype=dtype)
            assert bool(((wrapped > -pi) & (wrapped <= pi)).all())
            assert_relative(torch.polar(torch.ones_like(angles), wrapped).angle().cos(), angles.cos(), 1e-5)
            assert wrapped[1] == 3.0
            assert wrapped[7] == angles[7]
        assert Torus(1).wrap(torch.tensor([-math.pi], dtype=torch.float64)) == math.pi
        assert_relative(Torus(1).wrap(torch.tensor([1.0]).double() + 40 * math.pi), torch.tensor([1.0]).double(), 1e-13)

    def test_logarithm_is_the_representative(self) -> None:
        group, g = Torus(2), 20.0 * randn(50, 2)
        log = group.log(g)
        assert_relative(log, torch.atan2(g.sin(), g.cos()), 1e-12)
        assert torch.equal(group.project(g), log)
        assert_relative(jacfwd(group.log)(g[0]), torch.eye(2, dtype=torch.float64), 0.0)

    def test_is_no_translation(self) -> None:
        assert not Torus(3).is_same_group(Translation(3))
        assert not DirectProduct(Torus(1), SO(2)).is_same_group(DirectProduct(Translation(1), SO(2)))
        assert Torus(3).is_same_group(Torus(3, scale=0.1))

    def test_fingerprints_of_older_files(self) -> None:
        """They know of no periods, and were of groups without any."""
        for group, same in ((SO(3), True), (Torus(2), False)):
            old = group.fingerprint()
            del old["periods"]
            assert group.matches(old) is same


def hermitian(group: Unitary, v: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of the matrix that exp of v is i times the exponential of."""
    real, imaginary = group.hat(v).unbind(-1)
    return imaginary, -real


class TestUnitary:
    GROUPS = (SU(2), SU(3), SU(5), U(1), U(2), U(4))

    @pytest.mark.parametrize("group", GROUPS, ids=str)
    def test_exponential(self, group: Unitary) -> None:
        v = randn(5, group.dim)
        expected = scipy.linalg.expm(group.to_complex(group.hat(v)).numpy())
        assert_relative(group.exp(v), group.from_complex(torch.as_tensor(expected)), 1e-13)
        assert_relative(group.vee(group.hat(v)), v, 1e-14)

    @pytest.mark.parametrize("group", GROUPS, ids=str)
    def test_basis(self, group: Unitary) -> None:
        """Skew-Hermitian, orthonormal for -tr(X Y) / 2; the inner product is invariant."""
        basis = group.to_complex(group.hat(torch.eye(group.dim, dtype=torch.float64)))
        assert_relative(basis.mH.real, -basis.real, 1e-15)
        assert_relative(basis.mH.imag, -basis.imag, 1e-15)
        gram = -0.5 * torch.einsum("iab,jba->ij", basis, basis).real
        assert_relative(gram, torch.eye(group.dim, dtype=torch.float64), 1e-14)
        ad = group.Ad(group.random_haar(3, generator=seeded(1), dtype=torch.float64))
        assert_relative(ad @ ad.mT, torch.eye(group.dim, dtype=torch.float64).expand_as(ad), 1e-13)

    @pytest.mark.parametrize("group", GROUPS, ids=str)
    def test_adjoint(self, group: Unitary) -> None:
        """Column j: the coordinates of g e_j g^-1, by complex matrices."""
        g = group.random_haar(3, generator=seeded(1), dtype=torch.float64)
        basis = group.to_complex(group.hat(torch.eye(group.dim, dtype=torch.float64)))
        matrix = group.to_complex(g).unsqueeze(1)
        assert_relative(group.Ad(g).mT, group.vee(group.from_complex(matrix @ basis @ matrix.mH)), 1e-13)

    @pytest.mark.parametrize(
        "group", [SU(3), pytest.param(U(3), marks=pytest.mark.slow(reason="SU(3) stays"))], ids=str
    )
    def test_closed_form_of_many(self, group: Unitary) -> None:
        """Which take another way than few: against eigenvectors, where eigenvalues meet, and in derivatives."""
        size = torch.tensor([0.0, 1e-9, 1e-3, 0.1, 0.3, 1.0, 20.0], dtype=torch.float64).repeat_interleave(150)
        v = size.unsqueeze(-1) * randn(len(size), group.dim, seed=3)
        v[::3, :6] = 0.0  # diagonal
        v[::6, 6] = 0.0  # with two equal eigenvalues
        values, frame = torch.linalg.eigh(-1j * group.to_complex(group.hat(v)))
        expected = group.from_complex((frame * torch.exp(1j * values).unsqueeze(-2)) @ frame.mH)
        assert_relative(group.exp(v), expected, 5e-13)
        single = group.exp(v.float())
        assert_relative(group._compose(single, group._inverse(single)), group.identity().expand_as(single), 1e-6)
        rows = v[1:900:100].clone().requires_grad_()
        few, many = group.exp(rows), group.exp(torch.cat([rows, v]))[: len(rows)]
        weight = randn(*few.shape, seed=4)
        (slope,) = torch.autograd.grad((few * weight).sum(), rows)
        (other,) = torch.autograd.grad((many * weight).sum(), rows)
        assert_relative(other, slope, 1e-11)
        small = [x for x in rows.detach() if float(x.norm()) < 5.0][:3]
        for x in small:  # first and second derivatives by differences
            close = lambda y: hermitian_exp(*hermitian(group, y))  # noqa: E731
            assert gradcheck(close, x.clone().requires_grad_(), atol=1e-7)
            assert gradgradcheck(close, x.clone().requires_grad_(), atol=1e-6)

    def test_pauli_matrices(self) -> None:
        x, y, z = SU(2).to_complex(SU(2).hat(torch.eye(3, dtype=torch.float64)))
        pauli = [[[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]]
        for actual, expected in zip((x, y, z), pauli, strict=True):
            assert torch.equal(actual, 1j * torch.tensor(expected, dtype=torch.complex128))

    @pytest.mark.parametrize("group", GROUPS, ids=str)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_logarithm_of_every_element(self, group: Unitary, dtype: torch.dtype) -> None:
        """Haar samples of SU(n) have principal logarithms with a trace of some turns; `log` has none."""
        g = group.random_haar(100, generator=seeded(2), dtype=dtype)
        log = group.log(g)
        bound = 1e-12 if dtype == torch.float64 else 1e-5
        assert_relative(group.exp(log), g, bound)
        # the branch with derivatives, which knows no eigenvectors
        assert_relative(group.log(g.requires_grad_()).detach(), log, 10 * bound)
        angles = torch.linalg.eigvalsh(1j * group.to_complex(group.hat(log)).to(torch.complex128))
        assert float(angles[:, -1].sub(angles[:, 0]).max()) < 2 * math.pi + 1e-5

    @pytest.mark.parametrize("group", [SU(3), U(3)], ids=str)
    def test_logarithms_of_many(self, group: Unitary) -> None:
        """Another way than of few: known ones, where eigenvalues meet, beside the cut, and at tiny elements."""
        rows: list[tuple[float, float, float]]
        rows = [(0.0, 0.0, 0.0), (1.0, 1.0, -2.0), (1.0, 1.0 + 1e-8, -2.0 - 1e-8), (2.0, -2.0, 0.0), (3.1, -3.1, 0.0)]
        rows += [(1e-3, -1e-3, 0.0), (0.02, 0.01, -0.03), (0.1, 0.1, -0.2), (3.14, -1.57, -1.57), (-1e-5, 2e-5, -1e-5)]
        if isinstance(group, SU):  # the shortest one, with an angle beyond a half turn
            third = 2.0 * math.pi / 3.0
            rows += [
                (third + 0.1, third - 0.3, -2 * third + 0.2),
                (-2.9, -0.4, 3.3),
                (third - 1e-3,) * 2 + (2e-3 - 2 * third,),
            ]
        else:
            rows += [
                (3.1, 3.1, 3.1),
                (3.1, -3.1, 3.1),
                (math.pi - 1e-3,) * 3,
                (math.pi - 1e-3, math.pi - 1e-3, 1e-3 - math.pi),
            ]
            rows += [(math.pi - 1e-5, math.pi - 2e-5, -3.0), (2.1, 2.1, 2.1 + 1e-9), (-0.3, -3.0, 2.9)]
        angles = torch.tensor(rows, dtype=torch.float64).repeat(40, 1)
        frame = group.to_complex(group.random_haar(len(angles), generator=seeded(8), dtype=torch.float64))
        matrix = (frame * torch.polar(torch.ones_like(angles), angles).unsqueeze(-2)) @ frame.mH
        expected = group.from_complex(1j * (frame * angles.unsqueeze(-2)) @ frame.mH)
        log = group.log(group.from_complex(matrix))
        assert_relative(group.hat(log), expected, 1e-11)
        assert_relative(group.hat(group.log(group.from_complex(matrix).float())).double(), expected, 1e-3)
        tiny = 1e-12 * randn(400, group.dim, seed=5)
        assert_relative(group.log(group.exp(tiny)), tiny, 1e-12)

        g = group.random_haar(400, generator=seeded(9), dtype=torch.float64)
        by_vectors = torch.stack([group.log(x) for x in g])
        assert_relative(group.log(g), by_vectors, 1e-11)
        g[7], g[9], g[11] = (
            1.1 * g[7],
            math.nan,
            group.from_complex(torch.diag(torch.tensor([1.0, 1.0, -1.0]).cdouble())),
        )
        bad = torch.isnan(group.log(g)).any(-1).nonzero().flatten().tolist()
        assert bad == ([7, 9, 11] if isinstance(group, SU) else [7, 9])
        (slope,) = torch.autograd.grad(group.log(g.requires_grad_()).nan_to_num().sum(), g)
        assert bool(torch.isfinite(slope.flatten(1)[torch.arange(400) != 9]).all())

    @pytest.mark.parametrize(
        "group", [SU(3), pytest.param(U(3), marks=pytest.mark.slow(reason="SU(3) stays"))], ids=str
    )
    def test_derivatives_of_logarithms(self, group: Unitary) -> None:
        """By the series of log(exp(v) exp(w)) at w = 0, J_r(v)^-1, and by differences of these."""
        sizes = (0.0, 1e-3, 0.01, 0.02, 0.05, 0.5, 1.5)
        v = torch.stack([size * randn(group.dim, seed=k) / group.dim**0.5 for k, size in enumerate(sizes)])
        double = torch.zeros(group.dim, dtype=torch.float64)
        double[-1] = double[-2] = 0.4  # two equal eigenvalues, for U(3), and for SU(3) others
        double = torch.cat([v, double[None], torch.eye(group.dim, dtype=torch.float64)[-1:]])
        zero = torch.zeros(group.dim, dtype=torch.float64)
        for x in double:
            f = lambda w, x=x: group.log(group.compose(group.exp(x), group.exp(w)))  # noqa: E731
            inverse = torch.linalg.inv(group.right_jacobian(x))
            assert_relative(jacfwd(f)(zero), inverse, 1e-10, event=2)
            second = hessian(lambda w, f=f: f(w).sin().sum())(zero)
            first = torch.func.grad(lambda w, f=f: f(w).sin().sum())
            assert_relative(second, numeric_jacobian(first, zero), 1e-6, event=2)

    def test_principal_logarithm(self) -> None:
        group = U(3)
        g = group.random_haar(20, generator=seeded(3), dtype=torch.float64)
        expected = np.stack([scipy.linalg.logm(m) for m in group.to_complex(g).numpy()])
        assert_relative(group.hat(group.log(g)), group.from_complex(torch.as_tensor(expected)), 1e-10)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_two_rows_by_angles(self, dtype: torch.dtype) -> None:
        """Known logarithms, also where the eigenvalues meet, and where the determinant passes -1."""
        group = U(2)
        pairs = [(0.0, 0.0), (1e-6, 0.0), (1.0, 1.0), (1.0, -1.0), (3.1, 3.1), (3.1, -3.1), (math.pi - 1e-4,) * 2]
        pairs += [(1.5, math.pi - 1.5), (1.5, math.pi - 1.5001), (-2.0, -3.0), (0.1, 3.14), (-3.14, 3.0), (-3.14, 1.0)]
        angles = torch.tensor(pairs, dtype=torch.float64)
        frame = group.to_complex(group.random_haar(len(pairs), generator=seeded(7), dtype=torch.float64))
        log = frame @ torch.diag_embed(1j * angles) @ frame.mH
        g = group.from_complex(torch.linalg.matrix_exp(log)).to(dtype)
        bound = 1e-12 if dtype == torch.float64 else 1e-5
        assert_relative(group.hat(group.log(g)).double(), group.from_complex(log), bound, event=3)
        assert_relative(group.exp(group.vee(group.from_complex(log)).to(dtype)), g, bound, event=3)
        moved = frame.mH @ group.to_complex(group.hat(torch.eye(4, dtype=torch.float64)))[:, None] @ frame
        columns = group.vee(group.from_complex(moved)).movedim(0, -1)
        assert_relative(group.Ad(group.from_complex(frame.mH)), columns, 1e-13)
        bad = torch.stack([-group.identity(dtype=dtype), 2.0 * group.identity(dtype=dtype)])
        assert not bool(group.has_log(bad).any())

    def test_shortest_logarithm(self) -> None:
        """Among the logarithms of trace zero of a diagonal matrix, by trying all."""
        group = SU(4)
        g = group.random_haar(30, generator=seeded(4), dtype=torch.float64)
        angles = torch.linalg.eigvals(group.to_complex(g)).angle()
        turns = torch.cartesian_prod(*[torch.arange(-2.0, 3.0).double()] * 4)
        shifted = angles[:, None] + 2 * math.pi * turns
        squares = torch.where(shifted.sum(-1).abs() < 1e-6, shifted.square().sum(-1), math.inf)
        assert_relative(group.log(g).square().sum(-1), 0.5 * squares.amin(-1), 1e-10)

    @pytest.mark.parametrize("group", [SU(3), U(2)], ids=str)
    def test_derivatives_far_from_the_identity(self, group: Unitary) -> None:
        """Of logarithms that are cut elsewhere than at -1."""
        for seed in range(3):
            g = group.random_haar(generator=seeded(seed), dtype=torch.float64)

            def f(v: Tensor, g: Tensor = g) -> Tensor:
                return group.log(group.retract(g, v))

            zero = torch.zeros(group.dim, dtype=torch.float64)
            assert_relative(jacfwd(f)(zero), numeric_jacobian(f, zero), 1e-7, event=2)
            second = hessian(lambda v, f=f: f(v).sin().sum())(zero)
            expected = numeric_jacobian(torch.func.grad(lambda v, f=f: f(v).sin().sum()), zero)
            assert_relative(second, expected, 1e-6, event=2)

    def test_near_minus_one(self) -> None:
        """A single eigenvalue close to -1 or at it: no trouble, since the cut is in a gap of the spectrum."""
        frame = U(3).to_complex(U(3).random_haar(generator=seeded(5), dtype=torch.float64))
        for gap in (1e-3, 1e-7, 1e-12, 0.0):
            angles = torch.tensor([0.3, -1.1, math.pi - gap], dtype=torch.float64)
            matrix = frame @ torch.diag(torch.polar(torch.ones_like(angles), angles)) @ frame.mH
            log = U(3).log(U(3).from_complex(matrix))
            expected = 1j * frame @ torch.diag(angles).to(matrix) @ frame.mH
            other = expected - 2j * math.pi * torch.outer(frame[:, 2], frame[:, 2].conj())
            errors = [(U(3).hat(log) - U(3).from_complex(x)).abs().max() for x in (expected, other)]
            assert float(min(errors)) < 1e-11

    def test_elements_without_a_single_logarithm(self) -> None:
        root = torch.polar(torch.ones(()), torch.tensor(2 * math.pi / 3)).to(torch.complex128)
        centre = SU(3).from_complex(root * torch.eye(3, dtype=torch.complex128))
        for group, bad in ((SU(2), -SU(2).identity(dtype=torch.float64)), (SU(3), centre)):
            g = torch.stack([group.identity(dtype=torch.float64), bad, torch.full_like(bad, math.nan)])
            assert group.has_log(g).tolist() == [True, False, False]
            assert group.has_log(g.requires_grad_()).tolist() == [True, False, False]

    def test_projection(self) -> None:
        for group in (SU(2), SU(4), U(3)):
            g = group.random_haar(10, generator=seeded(6), dtype=torch.float64)
            assert_relative(group.project(g), g, 1e-14)
            off = g + 1e-3 * randn(*g.shape)
            u, _, vh = torch.linalg.svd(group.to_complex(off))
            nearest = u @ vh
            if isinstance(group, SU):
                nearest = nearest * torch.polar(*(
                    x[:, None, None] for x in (torch.ones(10).double(), -torch.linalg.det(nearest).angle() / group.size)
                ))  # fmt: skip
            assert_relative(group.project(off), group.from_complex(nearest), 1e-12)
        assert bool(torch.isnan(U(2).project(torch.zeros(2, 2, 2))).all())

    def test_single_precision_is_unitary(self) -> None:
        group = SU(8)
        for g in (group.random_haar(200, generator=seeded(0)), group.exp(randn(200, 63, dtype=torch.float32))):
            matrix = group.to_complex(g)
            assert float((matrix @ matrix.mH - torch.eye(8)).abs().max()) < 5e-7

    def test_covers_rotations(self) -> None:
        """Ad of SU(2) is SO(3), twice as fast."""
        v = randn(5, 3)
        assert_relative(SU(2).Ad(SU(2).exp(v)), SO(3).exp(-2.0 * v), 1e-13)

    def test_conversion(self) -> None:
        with pytest.raises(ConfigurationError, match="complex"):
            SU(2).from_complex(torch.eye(2))
        with pytest.raises(ShapeError, match="2, 2"):
            SU(2).from_complex(torch.eye(3, dtype=torch.complex64))
        with pytest.raises(ConfigurationError, match="n"):
            SU(1)
        with pytest.raises(ConfigurationError, match="n"):
            U(0)

    def test_compiled_and_mapped(self) -> None:
        group = SU(3)
        g = group.random_haar(4, generator=seeded(7), dtype=torch.float64)
        f = torch.compile(lambda g: group.log(group.compose(g, g)), fullgraph=True, backend="eager")
        expected = torch.stack([group.log(group.compose(x, x)) for x in g])
        assert_relative(f(g), expected, 1e-11)
        assert_relative(vmap(lambda g: group.log(group.compose(g, g)))(g), expected, 1e-11)


COMPACT = [Torus(3), SO(2), SO(3), SO(4), SU(2), SU(3), U(1), U(2), SO(3) ** 2, DirectProduct(Torus(1), SU(2))]


class TestScores:
    """Of exp v, without Jacobians, against the dense ones."""

    @pytest.mark.parametrize(
        "group",
        [SO(3), SO(4), SO(5, scale=0.7), SU(2), SU(3), SU(4), U(3), SU(3) ** 2, DirectProduct(SO(4), Torus(1), SU(3))],
        ids=repr,
    )
    def test_exp_with_score(self, group: LieGroup) -> None:
        """Generic vectors, and others with eigenvalues that meet."""
        v = random_vectors(group, 12, std=0.5)
        v[0], v[1, 1:] = 0.0, 0.0
        y, weight = random_vectors(group, 12, std=1.0, seed=1), rand(12, 1, low=0.1, high=2.0)
        g, score = group.exp_with_score(v, y, weight)
        slope = torch.func.grad(lambda u: log_abs_det(group.right_jacobian(u)).sum())(v)
        dense = torch.linalg.solve(group.right_jacobian(v).mT, y - weight * slope)
        assert_relative(score, dense, 1e-11)
        assert_relative(g, group.exp(v), 1e-13)
        mapped = torch.func.vmap(lambda v, y, w: group.exp_with_score(v, y, w)[1])(v, y, weight)
        assert_relative(mapped, dense, 1e-9)  # with Jacobians
        assert_relative(group.coadjoint(g, y), (group.Ad(g).mT @ y.unsqueeze(-1)).squeeze(-1), 1e-13)

    def test_matrix_scale(self) -> None:
        """Gradients are covectors."""
        group = SO(4, scale=torch.randn(6, 6, generator=seeded(0)) + 3.0 * torch.eye(6))
        v, y = random_vectors(group, 5, std=0.1), random_vectors(group, 5, std=1.0, seed=1)
        slope = torch.func.grad(lambda u: log_abs_det(group.right_jacobian(u)).sum())(v)
        g, score = group.exp_with_score(v, y)
        assert_relative(score, torch.linalg.solve(group.right_jacobian(v).mT, y - slope), 1e-11)
        assert_relative(group.coadjoint(g, y), (group.Ad(g).mT @ y.unsqueeze(-1)).squeeze(-1), 1e-12)

    def test_other_rows_are_left_alone(self) -> None:
        group = SU(3)
        v = random_vectors(group, 3, std=0.5)
        v[1, 0] = math.nan
        g, score = group.exp_with_score(v, v)
        assert torch.isfinite(score).all(-1).tolist() == [True, False, True]
        assert_relative(g[::2], group.exp(v[::2]), 1e-13)
        with pytest.raises(ShapeError, match="weight: expected"):
            group.exp_with_score(v, v, torch.ones(3))

    @pytest.mark.parametrize("group", [SU(3), SE(2), Translation(2)], ids=repr)
    def test_weights(self, group: LieGroup) -> None:
        """Batches broadcast, also that of the weights, or are refused."""
        v = random_vectors(group, 7, std=0.1)
        with pytest.raises(ShapeError, match=r"batches that broadcast, got \[7\] and \[3\]"):
            group.exp_with_score(v, v, torch.ones(3, 1))
        g, score = group.exp_with_score(v[0], v[0], torch.ones(3, 1))
        assert_relative(g, group.exp(v[0]).expand(3, *group.element_shape), 1e-13)
        assert_relative(score, group.exp_with_score(v[0], v[0])[1].expand(3, -1), 1e-13)

    @pytest.mark.parametrize("group", [SU(3), SE(2), Translation(2)], ids=repr)
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision(self, group: LieGroup, dtype: torch.dtype) -> None:
        """Computed in single."""
        v = random_vectors(group, 7, std=0.5).to(dtype)
        single = group.exp_with_score(v.float(), -v.float())
        for found, expected in zip(group.exp_with_score(v, -v), single, strict=True):
            assert torch.equal(found, expected.to(dtype))


class TestUniformLaw:
    @pytest.mark.parametrize("group", COMPACT, ids=str)
    def test_is_invariant(self, group: LieGroup) -> None:
        """Means of functions do not change when samples are multiplied from either side."""
        assert group.is_compact
        g = group.random_haar(5000, generator=seeded(0), dtype=torch.float64)
        assert g.shape == (5000, *group.element_shape)
        h = group.exp(0.7 * randn(group.dim, seed=1))
        vectors = randn(3, g[0].numel(), seed=2) / math.sqrt(g[0].numel())
        statistics = []
        for x in (g, group.compose(h, g), group.compose(g, h)):
            x = group.project(x).flatten(1)
            statistics.append((3.0 * torch.stack([x.sin(), x.cos()]) @ vectors.T).sin())
        for moved in statistics[1:]:
            error = (moved - statistics[0]).mean(1).abs() / (moved - statistics[0]).std(1).clamp(min=1e-9)
            assert float(error.max()) * math.sqrt(5000) < 4.5

    def test_reproducible(self) -> None:
        for dtype in (torch.float32, torch.float64):
            a, b = ((SU(2) ** 3).random_haar(4, generator=seeded(3), dtype=dtype) for _ in range(2))
            assert torch.equal(a, b)
            assert a.dtype == dtype

    def test_half_precision(self) -> None:
        for group in (SO(3), SU(3), Torus(2)):
            g = group.random_haar(5, generator=seeded(3), dtype=torch.bfloat16)
            assert g.dtype == torch.bfloat16
            assert bool(torch.isfinite(g).all())

    @pytest.mark.parametrize("n", [1, 2, 4])
    def test_moments_of_unitary_traces(self, n: int) -> None:
        """E |tr g|^2 = 1 and E |tr g|^4 = 2 for n > 1 (Diaconis and Shahshahani 1994); of |g_11|^2 a beta law."""
        g = U(n).to_complex(U(n).random_haar(20000, generator=seeded(0), dtype=torch.float64))
        square = g.diagonal(dim1=-2, dim2=-1).sum(-1).abs().square()
        assert abs(float(square.mean()) - 1.0) < 0.06
        assert abs(float(square.square().mean()) - (2.0 if n > 1 else 1.0)) < 0.3
        assert stats.kstest(g[:, 0, 0].angle().numpy() / (2 * math.pi) + 0.5, "uniform").pvalue > 0.01
        if n > 1:
            entry = g[:, 0, 0].abs().square().numpy()
            assert stats.kstest(entry, stats.beta(1, n - 1).cdf).pvalue > 0.01

    @pytest.mark.parametrize("n", [2, 3])
    def test_same_law_as_scipy(self, n: int) -> None:
        ours = SU(n).to_complex(SU(n).random_haar(5000, generator=seeded(1), dtype=torch.float64)).numpy()
        theirs = stats.unitary_group.rvs(n, size=5000, random_state=np.random.default_rng(0))
        theirs = theirs / np.linalg.det(theirs)[:, None, None] ** (1.0 / n)
        assert np.abs(np.linalg.det(ours) - 1.0).max() < 1e-12
        for f in (lambda m: m.trace(axis1=1, axis2=2).real, lambda m: m[:, 0, 1].imag, lambda m: np.abs(m[:, 0, 0])):
            # roots of the determinant other than one's own: compare up to the centre of the group
            phases = np.exp(2j * np.pi * np.arange(5000) / n)[:, None, None]
            assert stats.ks_2samp(f(ours * phases), f(theirs * phases)).pvalue > 0.01

    def test_rotations_against_scipy(self) -> None:
        ours = SO(4).random_haar(5000, generator=seeded(1), dtype=torch.float64).numpy()
        theirs = stats.special_ortho_group.rvs(4, size=5000, random_state=np.random.default_rng(0))
        for f in (lambda m: m.trace(axis1=1, axis2=2), lambda m: m[:, 0, 1], lambda m: m[:, 0, 0] * m[:, 1, 1]):
            assert stats.ks_2samp(f(ours), f(theirs)).pvalue > 0.01

    @pytest.mark.parametrize(
        "group", [SE(2), Affine(1), Heisenberg(1), Similarity(2), DirectProduct(SO(2), SE(2))], ids=str
    )
    def test_non_compact_groups_have_none(self, group: LieGroup) -> None:
        assert not group.is_compact
        with pytest.raises(ConfigurationError, match="expected a compact group"):
            group.random_haar(3)


class TestPowers:
    def test_is_the_product(self) -> None:
        """One object for each factor, which are computed one by one, against one object for all."""
        for make, std in (
            (lambda: SE(2), 0.5),
            (lambda: SU(3), 0.4),
            (lambda: Affine(1), 0.5),
            (lambda: Torus(2), 1.0),
        ):
            power, product = make() ** 3, DirectProduct(make(), make(), make())
            assert len(product._runs) == 3
            assert len(power._runs) == 1
            assert power.is_same_group(product)
            g, h = (random_elements(power, 4, std=std, seed=s) for s in range(2))
            v = power.log(g)
            for name in ("compose", "inverse", "exp", "log", "Ad", "log_modular", "left_jacobian", "project"):
                arguments = {"compose": (g, h), "exp": (v,), "left_jacobian": (v,)}.get(name, (g,))
                assert_relative(getattr(power, name)(*arguments), getattr(product, name)(*arguments), 1e-13)
            for a, b in zip(power.split(g), product.split(g), strict=True):
                assert torch.equal(a, b)
            assert torch.equal(power.join(*power.split(g)), g)
            assert torch.equal(power.algebra.structure_constants, product.algebra.structure_constants)

    def test_action(self) -> None:
        base = Affine(2)
        power, product = base**2, DirectProduct(Affine(2), Affine(2))
        g, x = random_elements(power, 3, std=0.5), randn(3, 5, 4)
        assert_relative(power.action()(g, x), product.action()(g, x), 1e-14)
        first, second = power.split(g)
        expected = torch.cat([base.action()(first, x[..., :2]), base.action()(second, x[..., 2:])], -1)
        assert_relative(power.action()(g, x), expected, 1e-14)

    def test_scales(self) -> None:
        for scale in (0.5, [0.1, 0.2, 0.3], [[1.0, 0.2, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 2.0]]):
            base = SO(3, scale=scale)
            power = base**2
            v = randn(4, 6)
            expected = power.join(base.exp(v[:, :3]), base.exp(v[:, 3:]))
            assert_relative(power.exp(v), expected, 1e-14)

    def test_description(self) -> None:
        group = SO(3)
        assert repr(group**2) == "SO(3) ** 2"
        assert repr(DirectProduct(group, group, SE(2))) == "DirectProduct(SO(3) ** 2, SE(2))"
        assert (group**2).algebra.names == ("X.1", "Y.1", "Z.1", "X.2", "Y.2", "Z.2")

    def test_bad_input(self) -> None:
        for count in (0, -1, 2.0):
            with pytest.raises(ConfigurationError, match="n: expected"):
                SO(3) ** count
        with pytest.raises(ConfigurationError, match="groups"):
            DirectProduct([SO(3), 3])


class TestSimilarity:
    def test_parts(self) -> None:
        for n in (2, 3, 4):
            group = Similarity(n)
            r = SO(n).random_haar(2, 5, generator=seeded(0), dtype=torch.float64)
            s, b = rand(5, low=0.5, high=2.0), randn(2, 1, n)
            g = group.from_parts(r, s, b)
            x = randn(2, 5, 7, n)
            expected = s[:, None, None] * (x @ r.mT) + b.unsqueeze(-2)
            assert_relative(group.action()(g, x), expected, 1e-13)
            for actual, wanted in zip(group.parts(g), (r, s.expand(2, 5), b.expand(2, 5, n)), strict=True):
                assert_relative(actual, wanted, 1e-14)
            assert_relative(group.log_modular(g), -n * s.log().expand(2, 5), 1e-13)
            assert_relative(group.project(g + 1e-9 * randn(*g.shape)), g, 1e-8)

    def test_logarithm_against_matrices(self) -> None:
        for n in (2, 3):
            group = Similarity(n)
            g = group.from_parts(
                SO(n).exp(0.6 * randn(20, SO(n).dim)), rand(20, low=0.4, high=3.0), randn(20, n)
            )  # angles below pi
            logs = np.stack([scipy.linalg.logm(m).real for m in group.homogeneous(g).numpy()])
            log = group.log(g)
            turn = group.linear.hat(log[:, : group.linear.dim])
            assert_relative(turn, torch.as_tensor(logs)[:, :n, :n], 1e-9)
            assert_relative(log[:, group.linear.dim :], torch.as_tensor(logs)[:, :n, n], 1e-9)

    def test_bad_parts(self) -> None:
        group = Similarity(2)
        for parts in (
            (torch.eye(3), torch.ones(()), torch.zeros(2)),
            (torch.eye(2), torch.ones(()), torch.zeros(3)),
            (torch.eye(2), torch.ones(3), torch.zeros(2, 2)),
        ):
            with pytest.raises(ShapeError):
                group.from_parts(*parts)
        bad = group.from_parts(torch.eye(2), torch.tensor([1.0, 0.0, -1.0]), torch.zeros(2))
        assert torch.isfinite(bad).all((-2, -1)).tolist() == [True, False, False]
        with pytest.raises(ConfigurationError, match="n"):
            Similarity(1)


def stretched(kind: str, n: int) -> Tensor:
    """A matrix that is no rotation: of the right norm, or of the right determinant, or of neither."""
    matrix = torch.linalg.qr(randn(n, n, seed=n))[0]
    matrix = matrix * torch.linalg.det(matrix).sign()  # for n odd a rotation
    if kind == "reflected":
        factors = torch.cat([torch.full((1,), -torch.linalg.det(matrix).sign()), torch.ones(n - 1)])
    elif kind == "sheared":
        factors = torch.tensor([1.2, 1 / 1.2, *[1.0] * (n - 2)])
    elif kind == "of the norm":
        factors = torch.linspace(0.8, 1.2, n)
        factors = factors * math.sqrt(n) / factors.norm()
    else:
        factors = torch.full((n,), 2.0)
    return matrix * factors.double()


class TestNoElements:
    """Logarithms of what is no element are NaN; elements with the errors of a long product have theirs."""

    KINDS = ("reflected", "sheared", "of the norm", "doubled")

    @pytest.mark.parametrize("n", [2, 3, 4])
    def test_rotations(self, n: int) -> None:
        bad = torch.stack([stretched(kind, n) for kind in self.KINDS])
        translated = torch.cat([bad, torch.ones(len(bad), n, 1).double()], -1)
        for dtype in (torch.float32, torch.float64):
            assert not bool(SO(n).has_log(bad.to(dtype)).any())
            assert not bool(SE(n).has_log(translated.to(dtype)).any())
            assert not bool(Similarity(n).has_log(3.0 * translated[:3].to(dtype)).any())
        compiled = torch.compile(SO(n).log, fullgraph=True, backend="eager")
        assert n > 3 or bool(torch.isnan(compiled(bad)).all())

    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_unitary(self, n: int) -> None:
        phase = torch.polar(torch.ones(()).double(), torch.tensor(0.1).double())
        g = U(n).to_complex(U(n).exp(0.3 * randn(n * n)))
        doubled, sheared = (
            U(n).from_complex(2.0 * g),
            U(n).from_complex(g @ torch.diag(torch.linspace(0.8, 1.2, n)).to(g)),
        )
        assert not bool(U(n).has_log(doubled))
        assert not bool(U(n).has_log(sheared))
        assert bool(U(n).has_log(U(n).from_complex(phase * g)))
        if n > 1:
            g = SU(n).to_complex(SU(n).exp(0.3 * randn(n * n - 1)))
            scale = torch.diag(torch.linspace(0.8, 1.2, n)).to(g)
            scale = scale / torch.linalg.det(scale) ** (1 / n)
            for bad in (2.0 * g, phase * g, g @ scale):
                element = SU(n).from_complex(bad)
                assert not bool(SU(n).has_log(element))
                assert not bool(SU(n).has_log(element.float().requires_grad_()))

    @pytest.mark.parametrize("group", [SO(2), SO(3), SE(3), Similarity(3).linear, SU(2), SU(3), U(2)], ids=repr)
    def test_errors_of_long_products_are_borne(self, group: LieGroup) -> None:
        step = group.exp(0.3 * randn(50, group.dim, dtype=torch.float32) / 10)
        g = step
        for _ in range(300):
            g = group.compose(g, step)
        assert bool(group.has_log(g).all())
        assert bool(group.has_log(group.project(g)).all())
        off = step + 1e-3 * randn(*step.shape, dtype=torch.float32)
        assert bool(group.has_log(off).all())
        assert bool(group.has_log(group.project(off)).all())
