"""A basis of the Lie algebra that suits an energy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._devices import module_device, on_device
from trivgeo._random import normal
from trivgeo._torch import pytree
from trivgeo.checks import check_positive, with_tensors
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.evaluation import evaluation_mode, networks_in
from trivgeo.inversion.posterior_energy import PosteriorEnergy, check_action
from trivgeo.sde import trivialized_grad

__all__ = ["calibrated_scale"]


def calibrated_scale(
    action: Action,
    energy: DataEnergy | Callable[[Any], Tensor],
    clean: Any,
    *,
    step: float = 0.05,
    num_samples: int = 4096,
    unit: float = 1.0,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "n n"]:
    r"""Measure a basis, for the ``scale`` of the group, in which the energy has the same curvature in all directions.

    Since :math:`E(g \exp v) = E_x(\exp(-v) g^{-1} \tilde x)`, the energy looks the same around the solution g of every
    problem with the same clean datum: one left-invariant metric, measured at the identity, suits them all. With
    small :math:`v \sim N(0, h^2)` and Hessian H the gradients are Hv, with second moment :math:`h^2 H^2`; the basis is
    :math:`(H / \text{unit})^{-1/2}`, in which :math:`E \approx \text{unit} \cdot |v|^2 / 2`. Measuring by gradients at
    a finite distance also serves energies that have kinks at their minimum.

    Args:
        action: the action on data; its group's scale is the unit of ``step``.
        energy: a data energy.
        clean: data with one batch dimension, near minima of the energy.
        step: h, in units of the group's basis: choose a scale for which such a step changes the data a little.
        num_samples: number of random directions, dealt to the data in turn; each counts to both sides.
        unit: twice the energy of a step of length one. Noise schedules count in such steps: a unit that is small
            against the energies of the data to be inverted makes noise small against the way to the solution.
        generator: the source of noise.

    Returns:
        The matrix ``[n, n]`` for the ``scale`` of a new group of the same kind; rows are basis elements.

    Raises:
        ConfigurationError: ``num_samples`` is less than the number of data, or the unit is not positive.
        DomainError: the energy does not depend on some direction of the group, or is not finite.
    """
    check_positive("unit", unit)
    group = check_action(action).group
    energy = as_energy(energy)
    clean = on_device(with_tensors("clean", clean), module_device(*networks_in(energy)))
    posterior = PosteriorEnergy(action, energy, clean)
    per_datum = num_samples // posterior.batch
    if per_datum < 1:
        raise ConfigurationError(f"num_samples: expected at least one for each of {posterior.batch} data")
    first = pytree.tree_leaves(clean)[0]
    noise = normal((posterior.batch, per_datum, group.dim), first, generator)
    noise = torch.cat([noise, -noise], 1)
    with evaluation_mode(posterior.energy):
        gradient = trivialized_grad(group, posterior, group.exp(step * noise)).reshape(-1, group.dim).double().cpu()
    if not bool(torch.isfinite(gradient).all()):
        raise DomainError("energy: expected finite gradients near clean data; use a smaller step or scale")
    values, vectors = torch.linalg.eigh(matmul(gradient.mT, gradient) / (gradient.shape[0] * step**2))
    if float(values[0]) <= 1e-12 * float(values[-1]):
        raise DomainError(
            f"energy: expected one that sees every direction of the group, got a flat one {vectors[:, 0].tolist()}"
        )
    # The Hessian is the square root of the second moment; the basis is its inverse square root.
    whitening = unit**0.5 * (vectors @ torch.diag(values**-0.25) @ vectors.mT)
    return whitening @ group.basis.rows
