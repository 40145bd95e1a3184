"""Harmonic analysis on groups: heat kernels, volumes of compact groups, and their slowest modes."""

from __future__ import annotations

import torch
from torch import Tensor

from trivgeo._signatures import check_calls
from trivgeo.errors import ConfigurationError
from trivgeo.groups.base import LieGroup
from trivgeo.groups.heat_kernels import HeatKernel

__all__ = ["HarmonicAnalysis", "heat_kernel", "log_haar_volume", "slowest_rate"]


class HarmonicAnalysis:
    """Optional second base class of a `LieGroup`, for closed forms that noise and densities on it use.

    A group overrides the methods whose answer it knows, in its own file. Without `_heat_kernel` its noise is simulated;
    without `_log_natural_volume` a compact group has no normal distributions; without `_natural_representation` the
    slowest mode in an anisotropic basis is bounded, not found.

    Example:
        >>> class Circle(HarmonicAnalysis, LieGroup):
        ...     def _log_natural_volume(self) -> float:
        ...         return math.log(2.0 * math.pi)
    """

    def _heat_kernel(self) -> HeatKernel | None:
        """Return the heat kernel of the group with its scale, or ``None`` where no closed form is known."""
        return None

    def _log_natural_volume(self) -> float | None:
        """Return the logarithm of the volume of a compact group, or ``None`` where it is not known.

        The volume is for the Haar measure that is Lebesgue measure of the algebra, in the natural basis, at the
        identity: :math:`8 \\pi^2` for SO(3).
        """
        return None

    def _natural_representation(self) -> Tensor | None:
        """Return the natural basis in a faithful unitary representation, complex ``[dim, n, n]``, or ``None``."""
        return None


def heat_kernel(group: LieGroup) -> HeatKernel | None:
    """The heat kernel of a group, or ``None`` where it is not known in closed form.

    The kernel is known for `Translation`, `Torus` with a scale for each angle, `SO` (3) and `SU` (2) with one scale,
    and products of these. A group of your own defines its kernel by `HarmonicAnalysis`.

    Args:
        group: the group, with its scale.
    """
    return group._heat_kernel() if isinstance(group, HarmonicAnalysis) else None


def log_haar_volume(group: LieGroup) -> float:
    """Logarithm of the volume of a compact group, for the Haar measure that is Lebesgue measure of its basis at e.

    Args:
        group: a compact group, with its scale.

    Raises:
        ConfigurationError: the volume is not known, see `HarmonicAnalysis`.
    """
    natural = group._log_natural_volume() if isinstance(group, HarmonicAnalysis) else None
    if natural is None:
        raise ConfigurationError(
            f"group: expected SO, SU, U, Torus, a product or another group whose volume is known, got {group!r}"
        )
    return natural - float(torch.linalg.slogdet(group.basis.rows).logabsdet)


def slowest_rate(group: LieGroup) -> float | None:
    r"""The rate at which noise of unit variance forgets the slowest mode of a compact group, in its basis.

    Modes are matrix entries of representations, which decay at the eigenvalues of

    .. math:: -\tfrac12 \sum_i d\rho(e_i)^2.

    The result is the smallest one that does not belong to an invariant vector, for :math:`\rho` the natural
    representation, its determinant, and products of two, :math:`\rho \otimes \rho` and :math:`\rho \otimes \bar\rho`,
    which hold the adjoint representation. That is exact on SO(3) and SU(2); elsewhere there may be bases in which a
    higher product is slower.

    Args:
        group: the group, with its scale.

    Returns:
        The rate; ``None`` for groups without a natural representation, see `HarmonicAnalysis`, and where the centre has
        two dimensions or more, or one in a skew basis: there the slowest product may be a high one.
    """
    centre = group.dim - int(torch.linalg.matrix_rank(group.algebra.structure_constants.flatten(1)))
    if centre > 1 or (centre and group.scale.ndim > 1):
        return None
    natural = group._natural_representation() if isinstance(group, HarmonicAnalysis) else None
    if natural is None:
        return None
    rows = group.basis.rows.to(natural)
    zero = natural.new_zeros(group.dim, 1, 1)
    trace = natural.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    rates = []
    for first, second in ((natural, zero), (trace, zero), (natural, natural), (natural, natural.conj())):
        # invariant vectors are found in the natural basis, where no other rate is small
        values, vectors = torch.linalg.eigh(_decay(first, second))
        moved = vectors[:, values > 1e-6]
        if moved.shape[1]:
            decay = _decay(*(torch.einsum("ij,jab->iab", rows, x) for x in (first, second)))
            rates.append(float(torch.linalg.eigvalsh(moved.mH @ decay @ moved)[0]))
    return min(rates)


def _decay(first: Tensor, second: Tensor) -> Tensor:
    """Minus half the sum of squares, in the product of two representations ``[dim, n, n]`` and ``[dim, m, m]``."""
    mixed = torch.einsum("iab,icd->acbd", first, second).flatten(2).flatten(0, 1)
    a, b = (torch.eye(x.shape[-1], dtype=x.dtype) for x in (first, second))
    return -0.5 * (torch.kron((first @ first).sum(0), b) + torch.kron(a, (second @ second).sum(0)) + 2.0 * mixed)


check_calls(__name__, __all__)
