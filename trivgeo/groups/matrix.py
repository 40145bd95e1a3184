"""Groups of matrices: what they share, and the general linear group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import Constant
from trivgeo.checks import check_count, checked
from trivgeo.errors import ShapeError
from trivgeo.groups.action import PointAction
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Scale
from trivgeo.groups.group import LieGroup
from trivgeo.groups.linalg import matrix_functions, product, transform_points
from trivgeo.groups.linalg.components import entry_rows, flatten_array, from_rows, is_small_batch

_MAX_UNROLLED_ROWS = 4  # rows of matrices up to which products of entries are written out in conjugations
_MAX_MEMBER_ERROR = 2e-2  # largest distance to the nearest element, over the largest entry, far above round-off


@checked
class MatrixGroup(LieGroup):
    r"""A closed group of k x k matrices, elements ``[*batch, k, k]``.

    The exponential is that of matrices, in closed form up to k = 2 and as a polynomial with scalar coefficients up to
    k = 4. The logarithm is the principal one: it exists where no eigenvalue is zero or negative.

    Args:
        basis: the natural basis of the algebra, ``[n, k, k]``.
        names: names of the basis elements.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.
        algebra: the algebra of the basis, if known; by default found from commutators.

    Raises:
        AlgebraError: a commutator leaves the span of the basis, or the basis is dependent.
    """

    def __init__(
        self,
        basis: Float[Tensor, "n k k"],
        names: Sequence[str] | None = None,
        scale: Scale = None,
        algebra: LieAlgebra | None = None,
    ) -> None:
        if basis.ndim != 3 or basis.shape[-1] != basis.shape[-2] or 0 in basis.shape:
            raise ShapeError(f"basis: expected square matrices [n, k, k], got {list(basis.shape)}")
        algebra = LieAlgebra.from_matrices(basis, names) if algebra is None else algebra
        self.size = basis.shape[-1]
        self._kernel = matrix_functions(self.size)
        flat = basis.detach().double().flatten(1)
        self._units = Constant(flat)
        self._dual = Constant(_dual(flat))
        self._side = Constant(basis.detach().double().transpose(0, 1).flatten(1))  # side by side, [k, n k]
        super().__init__(algebra, (self.size, self.size), scale)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size})"

    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return torch.eye(self.size, dtype=dtype, device=device)

    def hat(self, v: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch k k"]:
        """Return the matrix of algebra vectors v, ``[*batch, k, k]``."""
        return self._on_vectors(self._scaled_tangent, self.check_vectors(v))

    def vee(self, matrix: Float[Tensor, "*batch k k"]) -> Float[Tensor, "*batch n"]:
        """Return the algebra vectors ``[*batch, dim]`` of a ``matrix`` ``[*batch, k, k]``, projected on the algebra."""
        return self._on_elements(self._scaled_coordinates, self.check_elements(matrix, "matrix"))

    @final
    def _scaled_tangent(self, v: Tensor) -> Tensor:
        return self._tangent(self.basis.to_natural(v))

    @final
    def _scaled_coordinates(self, matrix: Tensor) -> Tensor:
        return self.basis.from_natural(self._coordinates(matrix))

    def _coordinates(self, matrix: Tensor) -> Tensor:
        return matmul(flatten_array(matrix), self._dual.matching(matrix))

    def _tangent(self, v: Tensor) -> Tensor:
        return matmul(v, self._units.matching(v)).unflatten(-1, self._element_shape)

    def _compose(self, g: Tensor, h: Tensor) -> Tensor:
        return product(g, h)

    def _inverse(self, g: Tensor) -> Tensor:
        return self._kernel.inverse(g)

    def _exp(self, v: Tensor) -> Tensor:
        return self._kernel.exp(self._tangent(v))

    def _log(self, g: Tensor) -> Tensor:
        return self._coordinates_of_log(self._kernel.log(g))

    def _coordinates_of_log(self, log: Tensor) -> Tensor:
        """The coordinates of a matrix logarithm, NaN where it is not in the algebra."""
        v = self._coordinates(log)
        defect = (self._tangent(v) - log).detach().abs().amax((-2, -1))
        bound = torch.finfo(log.dtype).eps ** (1 / 3)
        return torch.where((defect <= bound).unsqueeze(-1), v, torch.nan)

    def _adjoint(self, g: Tensor) -> Tensor:
        """The matrix whose column j has the coordinates of g e_j g^-1."""
        k, n = self.size, self.dim
        batch = g.shape[:-2]
        left = (g @ self._side.matching(g)).reshape(*batch, k * n, k)
        moved = left @ self._inverse(g)  # (g e_j g^-1)_il at [(i, j), l]
        rows = moved.unflatten(-2, (k, n)).transpose(-3, -2).flatten(-2)
        return (rows @ self._dual.matching(g)).mT

    def action(self) -> PointAction:
        """The linear action on points ``[*batch, p, k]``."""
        return LinearAction(self)


def _dual(rows: Tensor) -> Tensor:
    """The pseudo-inverse of independent rows, with zeros in place of rounding errors.

    Rows are first scaled to sizes between one and two by powers of two, which are exact.
    """
    size = torch.linalg.vector_norm(rows, dim=1).log2().floor().exp2()
    dual = torch.linalg.pinv(rows / size[:, None])
    return torch.where(dual.abs() > 4.0 * torch.finfo(dual.dtype).eps * dual.abs().amax(), dual, 0.0) / size


class LinearAction(PointAction):
    """Linear action of a matrix group on points of R^k, by matrix times vector."""

    _is_affine = True

    def __init__(self, group: MatrixGroup) -> None:
        super().__init__(group, (group.size,))

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        return transform_points(g, x)

    def homogeneous(self, g: Tensor) -> Tensor:
        """Return the matrix of g, bordered by a row and column of the unit matrix, ``[*batch, k + 1, k + 1]``."""
        bordered = torch.nn.functional.pad(self.group.check_elements(g), (0, 1, 0, 1))
        last = torch.eye(bordered.shape[-1], dtype=bordered.dtype, device=bordered.device)[-1]
        return bordered + torch.diag(last)

    def from_homogeneous(self, matrix: Tensor) -> Tensor:
        """Return the matrix without its last row and column, projected on the group, ``[*batch, k, k]``."""
        return self.group.project(matrix[..., :-1, :-1])


@checked
@final
class GLPlus(MatrixGroup):
    r"""GL+(n, R), matrices of positive determinant.

    Natural basis: the matrix units :math:`e_{ij}`, row by row.

    Args:
        n: the size of the matrices.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.

    Raises:
        ConfigurationError: n < 1.
    """

    def __init__(self, n: int, scale: Scale = None) -> None:
        check_count("n", n, 1)
        units, names = matrix_units(n)
        eye = torch.eye(n, dtype=torch.float64)
        # [e_ij, e_kl] = delta_jk e_il - delta_li e_kj
        c = torch.einsum("jk,ia,lb->ijklab", eye, eye, eye) - torch.einsum("li,ka,jb->ijklab", eye, eye, eye)
        super().__init__(units, names, scale, LieAlgebra(c.reshape(n * n, n * n, n * n), names))

    def _project(self, g: Tensor) -> Tensor:
        """The matrix itself, NaN where the determinant is not positive."""
        size = g.detach().abs().amax((-2, -1), keepdim=True)
        unit = g / torch.where(size > 0, size, 1.0)  # scaled, its determinant is in range
        return torch.where((self._kernel.determinant(unit) > 0)[..., None, None], g, torch.nan)

    def _coordinates(self, matrix: Tensor) -> Tensor:
        return flatten_array(matrix)

    def _tangent(self, v: Tensor) -> Tensor:
        return v.unflatten(-1, self._element_shape)

    def _adjoint(self, g: Tensor) -> Tensor:
        """The Kronecker product of g and its inverse transposed."""
        return conjugation(g, self._inverse(g))


def conjugation(g: Tensor, h: Tensor, traceless: bool = False) -> Tensor:
    """The matrix of X -> g X h on the entries of X row by row, ``[*batch, k^2, k^2]``.

    If ``traceless``, in coordinates of matrices up to multiples of I, ``[*batch, k^2 - 1, k^2 - 1]``: all entries
    except the last, which is subtracted from the diagonal ones.
    """
    k = g.shape[-1]
    places = [(i, j) for i in range(k) for j in range(k)]
    if k <= _MAX_UNROLLED_ROWS and not is_small_batch(g):
        left, right = entry_rows(g), entry_rows(h)
        rows = [[left[i][p] * right[q][j] for p, q in places] for i, j in places]
        if traceless:
            rows = [
                [a - b for a, b in zip(row, rows[-1], strict=True)] if i == j else row
                for row, (i, j) in zip(rows, places, strict=True)
            ]
            rows = [row[:-1] for row in rows[:-1]]
        return from_rows(rows)
    full = (g[..., :, None, :, None] * h.mT[..., None, :, None, :]).flatten(-4, -3).flatten(-2)
    if not traceless:
        return full
    diagonal = torch.eye(k, dtype=g.dtype, device=g.device).flatten()[:-1, None]
    return full[..., :-1, :-1] - full[..., -1:, :-1] * diagonal


def matrix_units(n: int) -> tuple[Tensor, list[str]]:
    """Return the matrices e_ij of size n row by row, ``[n^2, n, n]``, and their names."""
    eye = torch.eye(n, dtype=torch.float64)
    units = torch.einsum("ia,jb->ijab", eye, eye).reshape(n * n, n, n)
    return units, [f"E{i + 1}{j + 1}" for i in range(n) for j in range(n)]


def unit_determinant(matrix: Tensor) -> Tensor:
    """Return the multiple of ``matrix``, ``[*batch, k, k]``, with determinant one; NaN where none exists."""
    k = matrix.shape[-1]
    size = matrix.detach().abs().amax((-2, -1), keepdim=True)
    matrix = matrix / torch.where(size > 0, size, 1.0)  # scaled, its determinant is in range; the size cancels
    det = matrix_functions(k).determinant(matrix)
    good = det != 0 if k % 2 else det > 0
    root = torch.where(good, det.abs(), torch.nan).pow(1.0 / k) * torch.where(det < 0, -1.0, 1.0).to(det.dtype)
    return matrix / root[..., None, None]


def where_member(group: LieGroup, g: Tensor, value: Tensor) -> Tensor:
    """Return values ``[*batch, ...]`` of matrices g, NaN where these are far from the group, see `LieGroup.project`."""
    g = g.detach()
    rank = len(group.element_shape)
    error = (group._project(g) - g).abs().flatten(-rank).amax(-1)
    good = error <= _MAX_MEMBER_ERROR * g.abs().flatten(-rank).amax(-1)
    return torch.where(good.reshape(*good.shape, *[1] * (value.ndim - good.ndim)), value, torch.nan)


def restore_determinant(matrix: Tensor) -> Tensor:
    """`unit_determinant` for matrices close to determinant one, NaN for others.

    The determinant is known to round-off times the k-th power of the norm: where it differs from one by less than
    that, the matrix is left alone, since the correction would be noise.
    """
    k = matrix.shape[-1]
    noise = torch.finfo(matrix.dtype).eps * matrix.detach().square().sum((-2, -1)).pow(0.5 * k)
    det = matrix_functions(k).determinant(matrix)
    defect = (det.detach() - 1.0).abs()
    keep, near = defect <= noise, defect < 0.5
    root = torch.where(near, det, 1.0).pow(1.0 / k)
    root = torch.where(keep, root - (root - 1.0).detach(), root)  # root one where kept, with its derivative
    return torch.where((keep | near)[..., None, None], matrix / root[..., None, None], torch.nan)
