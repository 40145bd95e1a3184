"""Measurement of an energy before any inversion: the well in which clean data lie, and settings that suit it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._devices import module_device, on_device
from trivgeo._random import keyed, normal, permutation
from trivgeo._torch import pytree
from trivgeo.actions import ImageWarp
from trivgeo.checks import check_count, check_positive, with_tensors
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import Action, LieGroup
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.evaluation import evaluation_mode, networks_in
from trivgeo.inversion.posterior import Posterior, PosteriorEnergy, check_action
from trivgeo.inversion.transformations import Transformations, noise_between, sample_elements, spread_of
from trivgeo.sde import GeometricSchedule, trivialized_grad
from trivgeo.sde.scores import trivialized_grad_and_value

__all__ = [
    "EnergyMeasurement",
    "Suggestion",
    "Well",
    "calibrated_scale",
    "measure_energy",
    "some_data",
]


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


_DATA = 64
_TOGETHER = 256
_RADII = [0.01 * 10 ** (i / 6) for i in range(15)]
_DIRECTIONS = 16
_NEAR = 0.02
_ROUND = 0.1
_UNSEEN = 1e-7
"""Curvature of a direction, in units of the largest, that counts as none."""


class Well(NamedTuple):
    """Rise of the energy around clean data; lengths are in units of the spread of the transformations.

    Attributes:
        depth: median rise from the clean datum to a random transformation.
        width: distance at which half of that rise is reached; infinite if none is.
        roundness: the shortest axis over the longest, in (0, 1].
        radii: distances, ``[r]``.
        rises: quarter, median and three quarters of the rises at those distances, ``[r, 3]``.
    """

    depth: float
    width: float
    roundness: float
    radii: Float[Tensor, " r"]
    rises: Float[Tensor, "r 3"]


class Suggestion(NamedTuple):
    """Settings for a search with the energy, see `TIED`.

    Attributes:
        scale: basis ``[n, n]``, for `trivgeo.groups.Action.with_scale`.
        temperature: of the posterior.
        schedule: the noise.
        frame_weight: of a `FramedEnergy`, for images; else ``None``.
    """

    scale: Float[Tensor, "n n"]
    temperature: float
    schedule: GeometricSchedule
    frame_weight: float | None


@dataclass(frozen=True, kw_only=True)
class EnergyMeasurement:
    """Measurements of an energy by `measure_energy`.

    Attributes:
        share_below: share of random transformations whose energy lies below that of the clean datum: below a twentieth
            for an energy that can find them.
        share_undefined: share of them with an energy or gradient that is not finite.
        share_flat: share of them where the gradient is zero.
        well: depth, width and roundness of the well in which clean data lie.
        spread: standard deviation of the energies of clean data.
        seconds: of one energy with its gradient, of one datum, on this machine.
        suggested: basis, temperature, noise, frame weight.
    """

    share_below: float
    share_undefined: float
    share_flat: float
    well: Well
    spread: float
    seconds: float
    suggested: Suggestion


def measure_energy(
    action: Action,
    energy: DataEnergy | Callable[[Any], Tensor],
    clean: Any,
    transformations: Transformations,
    *,
    num_samples: int = 32,
    seed: int = 0,
) -> EnergyMeasurement:
    """Measure how the energy of clean data rises when they are moved.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, see `Inverter`.
        clean: clean data, one batch dimension.
        transformations: function (count, generator) to elements ``[count, *element_shape]``, see `LearnedInverter.fit`.
        num_samples: number of random transformations of each datum.
        seed: of all that is random.

    Raises:
        ConfigurationError: see `check_energy` for this and further errors.
    """
    check_count("num_samples", num_samples)
    spread = spread_of(check_action(action).group, transformations, seed)
    posterior = Posterior(action.with_scale(spread), energy)
    with evaluation_mode(posterior.energy):
        return _measured(posterior, spread, clean, transformations, num_samples, seed)


def _measured(
    posterior: Posterior, spread: Tensor, clean: Any, transformations: Transformations, num_samples: int, seed: int
) -> EnergyMeasurement:
    group = posterior.group
    x, index, at_rest = some_data(posterior, clean, seed)
    data, reference = len(index), at_rest
    probe = _Probe(posterior, x)

    began = time.perf_counter()
    moved = (
        sample_elements(group, transformations, data * num_samples, keyed(seed, 4))
        .to(reference)
        .reshape(data, num_samples, *group.element_shape)
    )
    gradient, there = probe.gradients(group.inverse(moved))
    seconds = (time.perf_counter() - began) / (data * num_samples)
    defined = torch.isfinite(there) & torch.isfinite(gradient).all(-1)
    rise = there - at_rest
    flat = (gradient == 0).all(-1) & defined
    below = torch.isfinite(rise) & (rise < 0)
    depth = float(rise[torch.isfinite(rise)].median()) if bool(torch.isfinite(rise).any()) else math.nan

    metric, roundness = _metric(probe, group, reference, data, keyed(seed, 5))
    radii, rises = _profile(probe, group, reference, at_rest, keyed(seed, 6))
    half = torch.nonzero(rises[:, 1] >= 0.5 * depth) if depth > 0 else rises.new_empty(0)
    width = float(radii[half[0, 0]]) if len(half) else math.inf
    return EnergyMeasurement(
        share_below=float(below.double().mean()),
        share_undefined=float((~defined).double().mean()),
        share_flat=float(flat.double().mean()),
        well=Well(depth, width, roundness, radii, rises),
        spread=float(at_rest.std()) if data > 1 else 0.0,
        seconds=seconds,
        suggested=Suggestion(
            spread if roundness > _ROUND else _round_scale(metric) @ spread,
            max(abs(depth) / 50.0, 1e-12) if math.isfinite(depth) else 1.0,
            noise_between(min(0.1, max(0.002, 0.5 * width)), 1.0)[0],
            _frame_weight(posterior.action, moved, x, depth),
        ),
    )


class _Probe:
    """Energies and gradients of moved data, a few at once."""

    def __init__(self, posterior: Posterior, x: Any) -> None:
        self.group: LieGroup = posterior.group
        self._energy = PosteriorEnergy(posterior.action, posterior.energy, x)

    def energies(self, g: Tensor) -> Tensor:
        with torch.no_grad():
            return self._energy.in_blocks(g, _TOGETHER)

    def gradients(self, g: Tensor) -> tuple[Tensor, Tensor]:
        each = max(1, _TOGETHER // len(g))
        parts = [trivialized_grad_and_value(self.group, self._energy, part) for part in g.split(each, 1)]
        # the parameters of an energy may ask for gradients, the measurement does not
        gradients, energies = (torch.cat(some, 1).detach() for some in zip(*parts, strict=True))
        return gradients, energies


def some_data(posterior: Posterior, clean: Any, seed: int) -> tuple[Any, Int[Tensor, " n"], Float[Tensor, "n 1"]]:
    """Choose a few of the data that have a finite energy.

    Args:
        posterior: action and energy.
        clean: data, one batch dimension.
        seed: of the choice.

    Returns:
        The data, their numbers, and their energies.

    Raises:
        DomainError: no energy is finite.
    """
    clean = on_device(with_tensors("clean", clean), module_device(posterior))
    first: Tensor = pytree.tree_leaves(clean)[0]
    index = permutation((len(first),), torch.empty(0), keyed(seed, 7))[:_DATA].to(first.device)
    x = posterior.given(pytree.tree_map(lambda leaf: leaf[index], clean)).x
    reference: Tensor = pytree.tree_leaves(x)[0]
    unit = posterior.group.identity(len(reference), 1, dtype=reference.dtype, device=reference.device)
    energies = _Probe(posterior, x).energies(unit)
    kept = torch.isfinite(energies[:, 0])
    if not bool(kept.any()):
        raise DomainError("energy: expected finite energies of clean data, got none")
    return pytree.tree_map(lambda leaf: leaf[kept], x), index[kept], energies[kept]


def _metric(
    probe: _Probe, group: LieGroup, reference: Tensor, data: int, generator: torch.Generator
) -> tuple[Tensor, float]:
    """The Hessian of the well, as `calibrated_scale` measures it, and its roundness."""
    v = _NEAR * normal((data, _DIRECTIONS, group.dim), torch.empty(0), generator).to(reference)
    gradient = probe.gradients(group.exp(torch.cat([v, -v], 1)))[0].reshape(-1, group.dim).double().cpu()
    gradient = gradient[torch.isfinite(gradient).all(-1)]
    values, vectors = torch.linalg.eigh(matmul(gradient.mT, gradient) / max(1, len(gradient)) / _NEAR**2)
    values = values.clamp(min=0.0).sqrt()
    largest = float(values[-1])
    roundness = math.sqrt(float(values[0]) / largest) if largest > 0 else 1.0
    return vectors @ torch.diag(values) @ vectors.mT, roundness


def _round_scale(metric: Tensor) -> Tensor:
    """The rows, in units of the spread of the transformations, in which the well is round and the transformations are
    nowhere wider than one.

    Along directions that the energy does not see they are as wide as the transformations.
    """
    values, vectors = torch.linalg.eigh(metric)
    seen = values > _UNSEEN * values[-1]
    root = torch.where(seen, values, values[-1]).rsqrt()
    return vectors @ torch.diag(root / root.min()) @ vectors.mT


def _profile(
    probe: _Probe, group: LieGroup, reference: Tensor, at_rest: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Quartiles of the rise at some distances, in random directions."""
    radii = torch.tensor(_RADII, dtype=torch.float64)
    v = normal((len(at_rest), 4, group.dim), torch.empty(0), generator).to(reference)
    v = v / v.norm(dim=-1, keepdim=True) * math.sqrt(group.dim)
    steps = radii.to(reference).reshape(-1, 1) * v.unsqueeze(-2)  # [data, 4, r, n]
    rise = probe.energies(group.exp(steps.flatten(1, 2))).unflatten(1, steps.shape[1:3]) - at_rest.unsqueeze(-1)
    flat = rise.flatten(0, 1).double().cpu()
    flat = torch.where(torch.isfinite(flat), flat, torch.inf).sort(0).values
    rows = [flat[round(q * (len(flat) - 1))] for q in (0.25, 0.5, 0.75)]
    return radii, torch.stack(rows, -1)


def _frame_weight(action: Action, moved: Tensor, x: Any, depth: float) -> float | None:
    """As much for a typical transformation out of the frame as the well is deep."""
    if not isinstance(action, ImageWarp) or not depth > 0:
        return None
    source = action.source_points(moved, *x.shape[-2:])
    outside = torch.relu(source.abs() - 1).square().sum(-1).mean((-2, -1)).flatten()
    outside = outside[torch.isfinite(outside)]
    typical = float(outside.quantile(0.9)) if len(outside) else 0.0
    return depth / typical if typical > 0 else None
