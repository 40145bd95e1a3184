"""The similarity groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._numerics import broadcast_shapes, log_abs_det
from trivgeo.checks import check_count, check_tensor, checked, promoted
from trivgeo.errors import ShapeError
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Scale
from trivgeo.groups.inhomogeneous import InhomogeneousGroup
from trivgeo.groups.linalg import circular_pair, confirmed
from trivgeo.groups.linalg.circular import COTANGENT_SERIES
from trivgeo.groups.linalg.components import (
    Rows,
    concatenate,
    cross,
    dot,
    entry_rows,
    from_entries,
    from_rows,
    is_small_batch,
    last_entries,
)
from trivgeo.groups.linalg.size_two import PHI1_RADIUS, PHI1_SHORT, phi1_scalar
from trivgeo.groups.matrix import MatrixGroup
from trivgeo.groups.orthogonal import SO, where_rotation

_BERNOULLI_RADIUS = 1.0  # largest |z|^2 of the series of z / (e^z - 1)
_BERNOULLI = (1.0, *((-1.0) ** k * c for k, c in enumerate(COTANGENT_SERIES)))  # numbers B_2k / (2k)!


@final
class ScaledRotations(MatrixGroup):
    r"""R+ x SO(n), matrices s R, ``[*batch, n, n]``.

    Natural basis: the basis of `SO`, then the unit matrix, along which the coordinate is log s. Closed forms and
    logarithms exist where `SO` has them.

    Args:
        n: the dimension of the space.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: n < 2.
    """

    def __init__(self, n: int, scale: Scale = None) -> None:
        check_count("n", n, 2)
        self.rotations = SO(n)
        dilation = torch.eye(n, dtype=torch.float64)
        basis = torch.cat([self.rotations.hat(torch.eye(self.rotations.dim, dtype=torch.float64)), dilation[None]])
        c = torch.zeros(*[len(basis)] * 3, dtype=torch.float64)
        c[:-1, :-1, :-1] = self.rotations.algebra.structure_constants
        names = (*self.rotations.algebra.names, "D")
        super().__init__(basis, names, scale, LieAlgebra(c, names))

    def split(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Split elements g into rotation ``[*batch, n, n]`` and scale ``[*batch]``; NaN where squares overflow."""
        g = self.check_elements(g)
        return self._split(g)

    def _split(self, g: Tensor) -> tuple[Tensor, Tensor]:
        s = self._square(g).sqrt()
        return g / s[..., None, None], s

    def _square(self, g: Tensor) -> Tensor:
        """The square of the scale; NaN where it has lost digits, or is infinite."""
        square, limits = g.square().sum((-2, -1)) / self.size, torch.finfo(g.dtype)
        return torch.where((square > limits.tiny / limits.eps) & (square <= limits.max), square, math.nan)

    def _tangent(self, v: Tensor) -> Tensor:
        growth = v[..., -1]
        turn = entry_rows(self.rotations._tangent(v[..., :-1]))
        return from_rows([[x + growth if i == j else x for j, x in enumerate(row)] for i, row in enumerate(turn)])

    def _coordinates(self, matrix: Tensor) -> Tensor:
        growth = matrix.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        return concatenate([self.rotations._coordinates(matrix), growth])

    def _inverse(self, g: Tensor) -> Tensor:
        square = self._square(g)
        return from_rows([[x / square for x in row] for row in zip(*entry_rows(g), strict=True)])

    def _exp(self, v: Tensor) -> Tensor:
        return v[..., -1, None, None].exp() * self.rotations._exp(v[..., :-1])

    def _log(self, g: Tensor) -> Tensor:
        r, s = self._split(g)
        return concatenate([self.rotations._log(r), s.log().unsqueeze(-1)])

    def _adjoint(self, g: Tensor) -> Tensor:
        turned = self.rotations._adjoint(self._split(g)[0])
        return torch.nn.functional.pad(turned, (0, 1, 0, 1)) + _last_diagonal(self.dim, g)

    def _project(self, g: Tensor) -> Tensor:
        """The nearest element, by the rotation scaled to norm one, which Newton's iteration reaches fast from there."""
        r = self.rotations._project(self._split(g)[0])
        return r * ((r * g).sum((-2, -1)) / self.size)[..., None, None]


def _last_diagonal(dim: int, reference: Tensor) -> Tensor:
    last = torch.zeros(dim, dtype=reference.dtype, device=reference.device)
    last[-1] = 1.0
    return torch.diag(last)


@checked
@final
class Similarity(InhomogeneousGroup):
    r"""The similarity group of R^n, x -> s R x + b, elements ``[s R | b]``, ``[*batch, n, n + 1]``.

    Natural basis: the basis of `SO`, then the dilation, whose coordinate is log s, then the translations. Not
    unimodular: :math:`\log \lambda = -n \log s`. For n = 2 and 3 all operations are closed forms. An element has a
    logarithm if its rotation has one, see `SO`.

    Args:
        n: the dimension of the space.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: n < 2.

    Example:
        >>> group = Similarity(2)
        >>> g = group.from_parts(torch.eye(2), torch.tensor(2.0), torch.tensor([1.0, 0.0]))
        >>> group.action()(g, torch.tensor([[1.0, 1.0]]))
        tensor([[3., 2.]])
    """

    linear: ScaledRotations

    def __init__(self, n: int, scale: Scale = None) -> None:
        super().__init__(ScaledRotations(n), scale)

    def from_parts(
        self,
        rotation: Float[Tensor, "*#batch n n"],
        scale: Float[Tensor, "*#batch"],
        translation: Float[Tensor, "*#batch n"],
    ) -> Tensor:
        """The element x -> scale rotation x + translation; batches broadcast.

        NaN where a scale is not positive, or ``rotation`` is no rotation (a reflection).

        Raises:
            ShapeError: a part has the wrong shape, or batches do not broadcast.
        """
        rotation, scale, translation = promoted(
            rotation=check_tensor("rotation", rotation),
            scale=check_tensor("scale", scale),
            translation=check_tensor("translation", translation),
        )
        n = self.size
        if rotation.shape[-2:] != (n, n) or translation.shape[-1:] != (n,):
            raise ShapeError(
                f"expected a rotation [*batch, {n}, {n}], a scale [*batch] and a translation [*batch, {n}], got "
                f"{list(rotation.shape)}, {list(scale.shape)} and {list(translation.shape)}"
            )
        try:
            batch = broadcast_shapes(rotation.shape[:-2], scale.shape, translation.shape[:-1])
        except RuntimeError as error:
            raise ShapeError(
                f"expected batches that broadcast, got {list(rotation.shape[:-2])}, {list(scale.shape)} and "
                f"{list(translation.shape[:-1])}"
            ) from error
        scale = torch.where(scale > 0, scale, torch.nan)
        rotation = where_rotation(rotation, rotation)
        return self.join((scale[..., None, None] * rotation).expand(*batch, n, n), translation)

    def parts(
        self, g: Tensor
    ) -> tuple[Float[Tensor, "*batch n n"], Float[Tensor, "*batch"], Float[Tensor, "*batch n"]]:
        """Split elements g into rotation, scale and translation: the inverse of `from_parts`."""
        g = self.check_elements(g)
        a, b = self._split(g)
        return *self.linear._split(a), b

    def _exp(self, v: Tensor) -> Tensor:
        y, z = self._halves(v)
        if self.size > 3 or is_small_batch(self.linear._tangent(y)):
            return super()._exp(v)
        if self.size == 2:
            return _exp_of_plane(y, z)
        *turn, growth = last_entries(y)
        shift = _applied(_phi1_of_space(turn, growth), turn, last_entries(z))
        rows = entry_rows(self.linear._exp(y))
        return from_rows([[*row, x] for row, x in zip(rows, shift, strict=True)])

    def _translation_log(self, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        if self.size > 3:
            return super()._translation_log(y, a, b)
        if self.size == 2:
            angle, growth = last_entries(y)
            u, w = _per_phi1_of_plane(angle, growth, entry_rows(a))
            p, q = last_entries(b)
            return from_entries([u * p - w * q, w * p + u * q])
        *turn, growth = last_entries(y)
        p, q, r = phi = _phi1_of_space(turn, growth)
        # on the plane that turns, phi_1 is the complex number u + i x q, x the angle, and on the axis p
        square = dot(turn, turn)
        u = p - square * r
        modulus = u * u + square * q * q
        z = _applied((1.0 / p, -q / modulus, (q * q - u * r) / (p * modulus)), turn, last_entries(b))
        return confirmed(from_entries(z), from_entries(_applied(phi, turn, z)), b)

    def _log_modular(self, g: Tensor) -> Tensor:
        return -log_abs_det(g[..., : self.size])


def _exp_of_plane(y: Tensor, b: Tensor) -> Tensor:
    r"""The complex numbers :math:`e^z`, and :math:`\varphi_1(z) = (e^z - 1) / z` times b, for z = growth + i turn.

    Near zero :math:`\varphi_1` is a series, for the sake of derivatives.
    """
    turn, growth = last_entries(y)
    half = 0.5 * turn
    sine, cosine = half.sin(), half.cos()
    versine, s = 2.0 * sine * sine, 2.0 * sine * cosine
    c, grown = 1.0 - versine, growth.exp()
    real, imaginary = growth.expm1() * c - versine, grown * s  # e^z - 1

    square = growth * growth + turn * turn
    near = square < PHI1_RADIUS**2
    re, im = torch.where(near, growth, 0.0), torch.where(near, turn, 0.0)
    u, w = torch.full_like(re, PHI1_SHORT[-1]), torch.zeros_like(re)
    for coefficient in reversed(PHI1_SHORT[:-1]):
        u, w = re * u - im * w + coefficient, re * w + im * u
    per = 1.0 / torch.where(near, 1.0, square)
    u = torch.where(near, u, (growth * real + turn * imaginary) * per)
    w = torch.where(near, w, (growth * imaginary - turn * real) * per)
    c, s, (p, q) = grown * c, imaginary, last_entries(b)
    return from_rows([[c, -s, u * p - w * q], [s, c, w * p + u * q]])


def _per_phi1_of_plane(turn: Tensor, growth: Tensor, a: Rows) -> tuple[Tensor, Tensor]:
    r""":math:`1 / \varphi_1(z) = z / (e^z - 1)` as a complex number, from z and the matrix of e^z.

    Near zero :math:`1 - z / 2 + \sum_k B_{2k} z^{2k} / (2k)!`.
    """
    square = growth * growth + turn * turn
    near = square < _BERNOULLI_RADIUS
    re, im = torch.where(near, growth, 0.0), torch.where(near, turn, 0.0)
    x, y = re * re - im * im, 2.0 * re * im
    u, w = torch.full_like(x, _BERNOULLI[-1]), torch.zeros_like(x)
    for coefficient in reversed(_BERNOULLI[:-1]):
        u, w = x * u - y * w + coefficient, x * w + y * u
    p, q = 0.5 * (a[0][0] + a[1][1]) - 1.0, 0.5 * (a[1][0] - a[0][1])
    per = 1.0 / torch.where(near, 1.0, p * p + q * q)
    far = (growth * p + turn * q) * per, (turn * p - growth * q) * per
    return torch.where(near, u - 0.5 * re, far[0]), torch.where(near, w - 0.5 * im, far[1])


Coefficients = tuple[Tensor, Tensor, Tensor]
"""Numbers that multiply I, K and K^2, K the cross matrix of a rotation vector."""


def _applied(coefficients: Coefficients, turn: Sequence[Tensor], z: Sequence[Tensor]) -> list[Tensor]:
    """Apply a polynomial in K to vectors, all given by their entries."""
    a, b, c = coefficients
    once = cross(turn, z)
    return [a * x + b * y + c * w for x, y, w in zip(z, once, cross(turn, once), strict=True)]


def _phi1_of_space(turn: Sequence[Tensor], growth: Tensor) -> Coefficients:
    r""":math:`\varphi_1(s I + K) = a I + b K + c K^2`, s the growth, K the cross matrix of a rotation vector.

    It solves :math:`(s I + K)\, \varphi_1 = e^s (I + c_1 K + c_2 K^2) - I` with :math:`K^3 = -x^2 K`, x the angle; near
    zero, where that divides by little, it is a power series.
    """
    square = dot(turn, turn)
    size = growth * growth + square
    near = size < PHI1_RADIUS**2
    s, q = torch.where(near, growth, 0.0), torch.where(near, square, 0.0)
    a, b, c = torch.full_like(s, PHI1_SHORT[-1]), torch.zeros_like(s), torch.zeros_like(s)
    for coefficient in reversed(PHI1_SHORT[:-1]):
        a, b, c = s * a + coefficient, torch.addcmul(a, s, b) - q * c, torch.addcmul(b, s, c)

    c1, c2 = circular_pair(square)
    phi, grown = phi1_scalar(growth), growth.exp()
    c_far = (phi + grown * (growth * c2 - c1)) / torch.where(near, 1.0, size)
    return phi, torch.where(near, b, grown * c2 - growth * c_far), torch.where(near, c, c_far)
