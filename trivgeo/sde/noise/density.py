"""The density of noise that is one exponential of a normal vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor

from trivgeo._numerics import log_abs_det
from trivgeo.groups import LieGroup
from trivgeo.groups.harmonic import heat_kernel

__all__ = ["is_principal", "log_about", "log_volume", "noise_log_density"]


def noise_log_density(group: LieGroup, variance: float) -> Callable[[Tensor], Tensor]:
    r"""Log-density of :math:`\exp(\sqrt V z)` for left Haar measure, relative to the identity.

    .. math:: -|v|^2 / 2 V - \log |\det J_r(v)|, \quad v = \log g

    `LieGroup.random` with standard deviation :math:`\sqrt V` draws from this density where exp is one to one. On
    abelian groups whose `heat_kernel` is known, such as the torus, the result is :math:`\log k_t(g) / k_t(e)` and
    counts all logarithms of g. On other groups the density is close to the heat kernel's for small V, with other
    tails. **Where exp is not one to one, elements with longer logarithms are missing**: on a compact group, most of
    them once V is of order one.

    Args:
        group: the group of the elements.
        variance: V, the integral of gamma^2.

    Returns:
        A function of elements ``[*batch, *element_shape]`` to ``[*batch]``; NaN where no logarithm exists.
    """
    kernel = heat_kernel(group) if group.algebra.is_abelian else None

    def log_density(g: Tensor) -> Tensor:
        if kernel is not None:
            at, spread = group.identity(dtype=g.dtype, device=g.device), g.new_full(group.batch_shape(g), variance)
            return kernel.log_density(g, spread) - kernel.log_density(at, g.new_tensor(variance))
        v = group.log(g)
        return -0.5 * (v**2).sum(-1) / variance - log_volume(group, v)

    return log_density


def log_volume(group: LieGroup, v: Tensor) -> Tensor:
    r"""Return :math:`\log |\det J_r(v)|` on ``group``, computed in double precision, in the dtype of v.

    In single precision rounding can make the matrix singular.
    """
    if group.algebra.is_abelian:
        return v.new_zeros(v.shape[:-1])
    return log_abs_det(group.right_jacobian(v.double())).to(v)


def log_about(group: LieGroup, centre: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the logarithm v about a centre, and :math:`\log |\det J_r(v)|`.

    Args:
        group: the group of the elements.
        centre: element c about which :math:`v = \log(c^{-1} g)` is taken.
        g: elements ``[*batch, *element_shape]``.

    Returns:
        Vectors ``[*batch, dim]``, and log-determinants ``[*batch]``; zero and infinity where no logarithm exists.
    """
    v = group.log(group.compose(group.inverse(centre), g))
    found = torch.isfinite(v).all(-1)
    v = torch.where(found.unsqueeze(-1), v, 0.0)
    return v, torch.where(found, log_volume(group, v), torch.inf)


def is_principal(v: Tensor, back: Tensor) -> Bool[Tensor, "*batch"]:
    """Return True where log(exp(v)) is v, to two fifths of the digits of the dtype, ``[*batch]``.

    Args:
        v: algebra vectors ``[*batch, dim]``.
        back: logarithms of their exponentials.
    """
    return (back - v).abs().amax(-1) < torch.finfo(v.dtype).eps ** 0.4 * (1.0 + v.abs().amax(-1))
