"""Automorphisms of the nilpotent ideal of a semidirect product by a reductive group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo._numerics import Constant, broadcast_shapes
from trivgeo._random import uniform
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.from_generators.reductive_group import ReductiveGroup
from trivgeo.groups.ground_fields import REALS
from trivgeo.groups.linalg import confirmed, matrix_functions, matvec
from trivgeo.groups.nilpotent import NilpotentGroup
from trivgeo.groups.semidirect import Automorphism

_MIN_WEIGHT_GAP = 1e-12  # distance of different weights of derivations whose largest entry is one
_MAX_EIGENVECTOR_CONDITION = 1e6  # condition number of the eigenvectors of derivations that are diagonalized
_MAX_DERIVATION_CONDITION = 1e4  # condition number of an invertible derivation that is divided by
_MAX_PROJECTOR_ERROR = 1e-10  # error of diagonal entries, and of the sum of the projectors


class SemisimpleAdjoint(ABC):
    """Ad of an element of the semisimple group on the ideal, from its matrix."""

    @abstractmethod
    def __call__(self, a: Tensor) -> Tensor:
        """Ad of the matrices of elements: ``[*batch, m, m] -> [*batch, d, d]``."""


@dataclass(frozen=True)
class Layer:
    """Basis elements of the ideal that are brackets of earlier ones, ``[e_left, e_right] / length``."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    length: tuple[float, ...]


class BracketAdjoint(SemisimpleAdjoint):
    """Ad from an invariant complement of [n, n]: the matrix acts on its first ``moved`` elements, the rest follows.

    Args:
        algebra: the ideal, in a basis (moved, fixed, brackets layer by layer).
        moved: number of basis elements on which the leading block of the matrix acts.
        fixed: number of basis elements that are not moved.
        layers: brackets that make up the other basis elements.
    """

    def __init__(self, algebra: LieAlgebra, moved: int, fixed: int, layers: tuple[Layer, ...]) -> None:
        self._algebra = algebra
        self._moved = moved
        self._layers = layers
        self._start = Constant(torch.eye(algebra.dim, dtype=torch.float64)[: moved + fixed])
        self._lengths = tuple(Constant(torch.tensor(layer.length, dtype=torch.float64)) for layer in layers)

    def __call__(self, a: Tensor) -> Tensor:
        """Images of basis elements, layer by layer."""
        k = self._moved
        start = self._start.matching(a).expand(*a.shape[:-2], -1, -1)
        rows = torch.cat([a[..., :k, :k].transpose(-1, -2) @ start[..., :k, :], start[..., k:, :]], -2)
        for layer, length in zip(self._layers, self._lengths, strict=True):
            images = self._algebra.bracket(rows[..., list(layer.left), :], rows[..., list(layer.right), :])
            rows = torch.cat([rows, images / length.matching(a).unsqueeze(-1)], -2)
        return rows.transpose(-1, -2)


class MatrixAdjoint(SemisimpleAdjoint):
    r"""Ad by conjugation :math:`A \rho(Z) A^{-1}` in a faithful matrix representation of the whole algebra.

    Args:
        group: the reductive group, whose matrix is a block of the full one.
        frame: full matrix = ``frame @ blockdiag(a, 1) @ frame^-1``, ``[k, k]``.
        ideal: matrices of the basis of the ideal, ``[d, k, k]``.
    """

    def __init__(self, group: ReductiveGroup, frame: Tensor, ideal: Tensor) -> None:
        self._group = group
        back = torch.linalg.inv(frame)
        inner = back @ ideal @ frame
        self._ideal = Constant(inner)
        self._dual = Constant(torch.linalg.pinv(inner.flatten(1)) if len(ideal) else inner.flatten(1).T)
        self._fixed = frame.shape[-1] - group.size

    def _pad(self, a: Tensor) -> Tensor:
        top = torch.cat([a, a.new_zeros(*a.shape[:-1], self._fixed)], -1)
        eye = torch.eye(self._group.size + self._fixed, dtype=a.dtype, device=a.device)[self._group.size :]
        return torch.cat([top, eye.expand(*a.shape[:-2], -1, -1)], -2)

    def __call__(self, a: Tensor) -> Tensor:
        """Coordinates of the conjugates of the basis matrices."""
        full, inverse = self._pad(a).unsqueeze(-3), self._pad(self._group.invert_matrix(a)).unsqueeze(-3)
        images = full @ self._ideal.matching(a) @ inverse
        return (images.flatten(-2) @ self._dual.matching(a)).transpose(-1, -2)


class TorusExponential:
    r"""The matrix :math:`\exp(\sum_i \sigma_i D_i)` of commuting derivations, without ``matrix_exp`` where possible.

    If the :math:`D_i` are diagonalizable over the complex numbers, with weights w and spectral projectors P, it is
    :math:`\sum \mathrm{Re}(e^{w \cdot \sigma} P)`.

    Args:
        derivations: ``[k, d, d]``.
    """

    def __init__(self, derivations: Tensor) -> None:
        self._derivations = Constant(derivations)
        self._trivial = not bool((derivations != 0).any())
        self._weights: tuple[Constant, Constant] | None = None
        diagonal = derivations.diagonal(dim1=-2, dim2=-1)
        self._diagonal = None if bool((derivations != torch.diag_embed(diagonal)).any()) else Constant(diagonal)
        if not self._trivial and self._diagonal is None:
            self._diagonalize(derivations)

    def _diagonalize(self, derivations: Tensor) -> None:
        # derivations may differ in size by many orders: each is divided by its largest entry
        unit = derivations.abs().amax((-2, -1))
        derivations = derivations / torch.where(unit > 0, unit, 1.0)[:, None, None]
        mixing = torch.linspace(1.0, 2.0, len(derivations), dtype=torch.float64).sqrt()
        _, vectors = torch.linalg.eig(torch.einsum("i,iab->ab", mixing, derivations))
        if float(torch.linalg.cond(vectors)) > _MAX_EIGENVECTOR_CONDITION:
            return
        inverse = torch.linalg.inv(vectors)
        diagonal = inverse @ derivations.to(vectors.dtype) @ vectors
        weights = diagonal.diagonal(dim1=-2, dim2=-1)  # [k, d]
        if float((diagonal - torch.diag_embed(weights)).abs().max()) > _MAX_PROJECTOR_ERROR:
            return
        groups: list[list[int]] = []
        for index in range(weights.shape[-1]):
            for group in groups:
                if float((weights[:, index] - weights[:, group[0]]).abs().max()) < _MIN_WEIGHT_GAP:
                    group.append(index)
                    break
            else:
                groups.append([index])
        kept, projectors = [], []
        for group in groups:
            weight = weights[:, group].mean(-1)
            turning = weight.imag[weight.imag.abs() >= _MIN_WEIGHT_GAP]
            if len(turning) and float(turning[0]) < 0:
                continue  # the conjugate of one that is kept
            projector = vectors[:, group] @ inverse[group]
            kept.append(weight)
            projectors.append(2.0 * projector if len(turning) else projector)
        w, p = torch.stack(kept, -1), torch.stack(projectors)
        w = unit[:, None] * torch.complex(_rounded(w.real), _rounded(w.imag))
        if float((p.real.sum(0) - torch.eye(p.shape[-1], dtype=torch.float64)).abs().max()) > _MAX_PROJECTOR_ERROR:
            return
        self._oscillates = bool((w.imag != 0).any())
        self._weights = (Constant(w.real), Constant(w.imag))
        parts = [p.real.flatten(-2), -p.imag.flatten(-2)] if self._oscillates else [p.real.flatten(-2)]
        self._projectors = Constant(_rounded(torch.cat(parts)))

    def apply(self, sigma: Tensor, n: Tensor) -> Tensor:
        """The matrices of torus coordinates ``sigma``, ``[*batch, k]``, times vectors n, ``[*batch, d]``."""
        if self._trivial:
            return n.expand(*broadcast_shapes(sigma.shape[:-1], n.shape[:-1]), n.shape[-1])
        if self._diagonal is not None:
            return self._factors(sigma) * n
        return matvec(self._matrix(sigma), n)

    def _factors(self, sigma: Tensor) -> Tensor:
        """The exponentials of a diagonal automorphism ``[*batch, k] -> [*batch, d]``."""
        assert self._diagonal is not None
        weights = self._diagonal.matching(sigma)
        # a product with one number would be slow as a matrix product where the batch is not contiguous
        return torch.exp(sigma * weights[0] if len(weights) == 1 else sigma @ weights)

    def times(self, left: Tensor | None, sigma: Tensor) -> Tensor:
        """Return ``left``, ``[*batch, d, d]`` or the unit matrix, times the matrix of ``sigma``, ``[*batch, k]``."""
        if self._diagonal is not None:
            factors = self._factors(sigma)
            return torch.diag_embed(factors) if left is None else left * factors.unsqueeze(-2)
        matrix = self._matrix(sigma)
        return matrix if left is None else left @ matrix

    def terms(self) -> Tensor | None:
        """The fixed matrices ``[count, d, d]`` of the sum that `features` weights; ``None`` if it is not such a sum."""
        d = self._derivations.value.shape[-1]
        if self._diagonal is not None:
            return torch.diag_embed(torch.eye(d, dtype=torch.float64))
        return None if self._weights is None else self._projectors.value.unflatten(-1, (d, d))

    def features(self, sigma: Tensor) -> Tensor:
        """Return the weights of `terms`, exponentials times cosines and sines of ``sigma``, ``[*batch, count]``."""
        if self._diagonal is not None:
            return self._factors(sigma)
        assert self._weights is not None
        real, imaginary = self._weights
        factor = torch.exp(sigma @ real.matching(sigma))
        if not self._oscillates:
            return factor
        angle = sigma @ imaginary.matching(sigma)
        return torch.cat([factor * torch.cos(angle), factor * torch.sin(angle)], -1)

    def _matrix(self, sigma: Tensor) -> Tensor:
        d = self._derivations.value.shape[-1]
        if self._weights is None:
            return matrix_functions(d).exp(torch.einsum("...i,iab->...ab", sigma, self._derivations.matching(sigma)))
        return (self.features(sigma) @ self._projectors.matching(sigma)).unflatten(-1, (d, d))


class IdealAutomorphism(Automorphism):
    r"""The action of a reductive group on a nilpotent ideal of any step.

    With D(Y) the derivation of :math:`Y \in \mathfrak h`, the ideal part of :math:`\exp(Y + Z)` solves
    :math:`n' = D(Y) n + d\exp^{-1}_n Z`. For two steps :math:`n = \varphi_1(D(Y) + \tfrac12 \mathrm{ad}_Z) Z`. For
    more, with an invertible derivation E of the ideal that commutes with h,
    :math:`\varphi_1(\mathrm{ad}_n) E n = \varphi_1(D(Y) + \mathrm{ad}_Z) E Z`: both sides are what
    :math:`\mathrm{Ad}_{\exp(Y + Z)}` subtracts from E. Without such a derivation, Taylor series of the equation and
    repeated squaring in the group.

    Args:
        derivations: D of the basis of h, semisimple part first, ``[r + k, d, d]``.
        semisimple: Ad of the semisimple group on the ideal; ``None`` if that group is trivial.
    """

    def __init__(
        self,
        group: ReductiveGroup,
        ideal: NilpotentGroup,
        derivations: Tensor,
        semisimple: SemisimpleAdjoint | None,
    ) -> None:
        self._group, self._ideal = group, ideal
        self._derivations = Constant(derivations)
        self._semisimple = semisimple
        self._torus = TorusExponential(derivations[group.semisimple_dim :])
        self._grading: tuple[Constant, Constant] | None = None
        if ideal.step > 2:
            grading = invertible_derivation(ideal.algebra, derivations)
            if grading is not None:
                self._grading = (Constant(grading), Constant(torch.linalg.inv(grading)))

    def apply(self, h: Tensor, n: Tensor) -> Tensor:
        r"""Return :math:`\rho(h) n`, ``[*batch, d]``: the torus acts on the ideal coordinates first, then the
        semisimple part.
        """
        matrix, sigma = self._group.parts(h)
        n = self._torus.apply(sigma, n)
        return n if self._semisimple is None else matvec(self._semisimple(matrix), n)

    def _derivation(self, y: Tensor) -> Tensor:
        return torch.einsum("...i,iab->...ab", y, self._derivations.matching(y))

    def exp(self, y: Tensor, z: Tensor) -> Tensor:
        """Return the ideal coordinates n with ``exp(Y + Z) = exp(n) exp(Y)``, ``[*batch, d]``."""
        d, ad = self._derivation(y), self._ideal.algebra.ad
        if self._ideal.step == 1:
            return _phi1(d, z)
        if self._ideal.step == 2:
            return _phi1(d + 0.5 * ad(z), z)
        if self._grading is None:
            return self._exp_by_squaring(y, z)
        grading, back = (constant.matching(z) for constant in self._grading)
        goal = _phi1(d + ad(z), z @ grading.T)
        n = goal @ back.T
        for _ in range(self._ideal.step - 1):
            n = n + (goal - self._nilpotent_phi1(n, n @ grading.T)) @ back.T
        return n

    def _nilpotent_phi1(self, n: Tensor, b: Tensor) -> Tensor:
        """phi1(ad_n) b, a polynomial."""
        term, total = b, b
        for k in range(1, self._ideal.step):
            term = self._ideal.algebra.bracket(n, term) / (k + 1)
            total = total + term
        return total

    def _exp_by_squaring(self, y: Tensor, z: Tensor, order: int = 12, squarings: int = 7) -> Tensor:
        y, z = y / 2.0**squarings, z / 2.0**squarings
        d, bracket, step = self._derivation(y), self._ideal.algebra.bracket, self._ideal.step
        bernoulli = (1.0, -0.5, 1.0 / 12.0, 0.0, -1.0 / 720.0, 0.0, 1.0 / 30240.0, 0.0, -1.0 / 1209600.0)
        # n' = D n + sum_j B_j / j! ad_n^j z; series[k] is the coefficient of s^k in n(s), nested[j][k] in ad_n^j z
        series = [torch.zeros_like(z)]
        nested: list[list[Tensor]] = [[z]] + [[torch.zeros_like(z)] for _ in range(1, step)]
        for k in range(order):
            slope = (d @ series[k].unsqueeze(-1)).squeeze(-1)
            for j in range(min(step, len(bernoulli))):
                slope = slope + bernoulli[j] * nested[j][k]
            series.append(slope / (k + 1))
            nested[0].append(torch.zeros_like(z))
            for j in range(1, step):
                parts = [bracket(series[i], nested[j - 1][k + 1 - i]) for i in range(1, k + 2)]
                nested[j].append(sum(parts[1:], start=parts[0]))
        n = sum(series[2:], start=series[1])
        h = self._group._exp(y)
        for _ in range(squarings):
            n = self._ideal._compose(n, self.apply(h, n))
            h = self._group._compose(h, h)
        return n

    def log(self, y: Tensor, n: Tensor) -> Tensor:
        """Return z with exp(y, z) = n, by corrections that gain one layer of the lower central series each.

        NaN where D(Y) has an eigenvalue 2 pi i k other than zero, for which no logarithm exists.
        """
        d = self._derivation(y)
        matrices = matrix_functions(d.shape[-1])
        phi = matrices.phi1(d)
        back = matrices.inverse(phi)
        singular = back.detach().abs().amax((-2, -1)) > torch.finfo(d.dtype).eps ** -0.8
        back = torch.where(singular[..., None, None], torch.nan, back)
        z = matvec(back, n)
        for _ in range(self._ideal.step - 1):
            z = z + matvec(back, n - self.exp(y, z))
        return confirmed(z, matvec(phi, z) if self._ideal.step == 1 else self.exp(y, z), n)


def _phi1(matrix: Tensor, vector: Tensor) -> Tensor:
    """phi_1 of matrices ``[*batch, d, d]`` times vectors ``[*batch, d]``."""
    batch = broadcast_shapes(matrix.shape[:-2], vector.shape[:-1])
    size = vector.shape[-1]
    return matrix_functions(size).affine_exp(matrix.expand(*batch, size, size), vector.expand(*batch, size))[..., -1]


def _rounded(x: Tensor) -> Tensor:
    """The numbers x, with those within rounding of an integer rounded to it."""
    x = torch.where((x - x.round()).abs() < 1e-12, x.round(), x)
    return torch.where(x.abs() < 1e-14, 0.0, x)


def invertible_derivation(algebra: LieAlgebra, commuting: Tensor) -> Tensor | None:
    """A well-conditioned invertible derivation that commutes with given ones; ``None`` if there is none."""
    n, c = algebra.dim, algebra.structure_constants
    unit = torch.eye(n, dtype=torch.float64)
    # E[a, b]: e_b -> sum_a E[a, b] e_a.  E [e_i, e_j] - [E e_i, e_j] - [e_i, E e_j] = 0
    system = [
        (
            torch.einsum("ijb,ka->ijkab", c, unit)
            - torch.einsum("ajk,ib->ijkab", c, unit)
            - torch.einsum("iak,jb->ijkab", c, unit)
        ).reshape(-1, n * n)
    ]
    system += [
        (torch.einsum("ka,bl->klab", unit, d) - torch.einsum("ka,bl->klab", d, unit)).reshape(-1, n * n)
        for d in commuting
    ]
    solutions = REALS.null_space(torch.cat(system)).reshape(-1, n, n)
    if not len(solutions):
        return None
    generator = torch.Generator().manual_seed(0)
    # the one nearest the identity, then random ones
    identity = torch.linalg.lstsq(solutions.reshape(-1, n * n).T, unit.reshape(-1, 1)).solution.squeeze(-1)
    trials = [identity, *uniform((16, len(solutions)), solutions, generator)]
    candidates = [torch.einsum("i,iab->ab", weights, solutions) for weights in trials]
    best = min(candidates, key=lambda e: float(torch.linalg.cond(e)))
    return best if float(torch.linalg.cond(best)) < _MAX_DERIVATION_CONDITION else None
