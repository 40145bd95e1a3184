"""Measurement of an energy before any inversion: the well in which clean data lie, and settings that suit it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._devices import module_device, on_device
from trivgeo._random import keyed, normal, permutation
from trivgeo._timing import announce, seconds_until, time_evaluations
from trivgeo._torch import pytree
from trivgeo.actions import ImageWarp
from trivgeo.checks import check_count, check_positive, checked, with_tensors
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy, as_energy
from trivgeo.inversion.evaluation import evaluation_mode, networks_in
from trivgeo.inversion.posterior import InverseProblem, check_action
from trivgeo.inversion.transformations import Transformations, noise_between, sample_elements, spread_of
from trivgeo.sde import GeometricSchedule

MAX_MEASURED = 64
"""Number of clean data that are looked at."""
MIN_ROUNDNESS = 0.1
"""Roundness above which a well is searched in the basis of the spread."""
_GRADIENT_COST = 3.0  # time of an energy with its gradient, in units of that of an energy
_TIMED_SHARE = 0.1  # share of the time of a measurement that it takes to know that of an evaluation
_MIN_MEASURED = 2  # data that are looked at however short the time is
_PROFILE_RADII = [0.01 * 10 ** (i / 6) for i in range(15)]  # distances in spreads of the transformations
_HESSIAN_STEP = 0.02  # distance in spreads of the transformations
_MIN_RELATIVE_CURVATURE = 1e-7  # curvature, in units of the largest, below which the energy does not see a direction


def _hessian(gradient: Float[Tensor, "m n"], step: float) -> tuple[Float[Tensor, " n"], Float[Tensor, "n n"]]:
    r"""Return eigenvalues and eigenvectors of the Hessian at a minimum, from gradients at normal random steps from it.

    The gradients after steps :math:`v \sim N(0, h^2)` are Hv, with second moment :math:`h^2 H^2`. At a finite distance
    they also serve energies that have kinks at their minimum.
    """
    gradient = gradient.double().cpu()
    values, vectors = torch.linalg.eigh(matmul(gradient.mT, gradient) / max(1, len(gradient)) / step**2)
    return values.clamp(min=0.0).sqrt(), vectors


@checked
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
    r"""Measure a basis ``[n, n]``, the ``scale`` of a group, in which the energy curves alike in all directions.

    Since :math:`E(g \exp v) = E_x(\exp(-v) g^{-1} \tilde x)`, the energy looks the same around the solution g of every
    problem with the same clean datum: one left-invariant metric, measured at the identity, suits them all. With
    Hessian H, from gradients at a finite distance, the basis is :math:`(H / \text{unit})^{-1/2}`, in which
    :math:`E \approx \text{unit} \cdot |v|^2 / 2`.

    Args:
        action: the action on data; its group's scale is the unit of ``step``.
        energy: a data energy.
        clean: data with one batch dimension, near minima of the energy.
        step: h, in units of the group's basis: choose a scale for which such a step changes the data a little.
        num_samples: number of random directions, dealt to the data in turn; each counts to both sides.
        unit: twice the energy of a step of length one. Noise schedules count in such steps: a unit that is small
            against the energies of the data to be inverted makes noise small against the way to the solution.
        generator: the source of noise.

    Raises:
        ConfigurationError: ``num_samples`` is less than the number of data, or the unit is not positive.
        DomainError: the energy does not depend on some direction of the group, or is not finite.
    """
    check_positive("unit", unit)
    group = check_action(action).group
    energy = as_energy(energy)
    clean = on_device(with_tensors("clean", clean), module_device(*networks_in(energy)))
    posterior = InverseProblem(action, energy).given(clean, max_evaluations="auto")
    per_datum = num_samples // posterior.batch
    if per_datum < 1:
        raise ConfigurationError(
            f"num_samples: expected at least {posterior.batch}, one for each datum, got {num_samples}"
        )
    first = pytree.tree_leaves(clean)[0]
    noise = normal((posterior.batch, per_datum, group.dim), first, generator)
    noise = torch.cat([noise, -noise], 1)
    with evaluation_mode(energy):
        g = group.exp(step * noise)
        gradient, _ = posterior.gradient(lambda v: group.perturb(g, v), torch.zeros_like(noise))
    gradient = gradient.reshape(-1, group.dim)
    if not bool(torch.isfinite(gradient).all()):
        raise DomainError("energy: expected finite gradients near clean data; use a smaller step or scale")
    values, vectors = _hessian(gradient, step)
    if float(values[0]) <= 1e-6 * float(values[-1]):
        raise DomainError(
            f"energy: expected one that sees every direction of the group, got a flat one {vectors[:, 0].tolist()}"
        )
    return unit**0.5 * (vectors @ torch.diag(values.rsqrt()) @ vectors.mT) @ group.basis.rows


@dataclass(frozen=True)
class _Extent:
    """Extent of a measurement.

    Attributes:
        data: clean data that are looked at.
        samples: random transformations of each.
        hessian_directions: directions for each, with gradients to both sides.
        profile_directions: directions for each, along which energies are evaluated.
    """

    data: int
    samples: int
    hessian_directions: int = 16
    profile_directions: int = 4

    @property
    def evaluations(self) -> float:
        """Number of energies with their gradients that take as long."""
        profile = self.profile_directions * len(_PROFILE_RADII)
        return self.data * (self.samples + 2 * self.hessian_directions + (1 + profile) / _GRADIENT_COST)

    def within(self, seconds: float, each: float) -> _Extent | None:
        """Return the extent that fits into a time; ``None`` where none does.

        Args:
            each: time of an energy with its gradient.
        """
        for smaller in (self, _Extent(self.data, min(self.samples, 8), 4, 1)):
            one, least = replace(smaller, data=1).evaluations * each, min(_MIN_MEASURED, self.data)
            if least * one <= seconds:
                number = self.data if one == 0.0 else int(min(self.data, seconds / one))
                return replace(smaller, data=max(least, number))
        return None


@dataclass(frozen=True, kw_only=True)
class EnergyProfile:
    """Rise of an energy from clean data to moved ones, and settings of a search with it; see `measure_energy`.

    Lengths are in units of the spread of the transformations.

    Attributes:
        share_below: share of random transformations whose energy lies below that of the clean datum: below a twentieth
            for an energy that can find them.
        share_undefined: share of them with an energy or gradient that is not finite.
        share_flat: share of them where the gradient is zero.
        depth: median rise from the clean datum to a random transformation.
        width: distance at which half of that rise is reached; infinite if none is.
        roundness: the shortest axis of the well over the longest, in (0, 1].
        radii: distances, ``[r]``.
        rises: quarter, median and three quarters of the rises at those distances, ``[r, 3]``.
        spread: standard deviation of the energies of clean data.
        seconds: time of one energy with its gradient, for one datum, on this machine.
        scale: basis ``[n, n]`` suggested for `trivgeo.groups.Action.with_scale`.
        temperature: temperature suggested for the posterior.
        schedule: noise suggested for a search.
        frame_weight: weight suggested for a `FramedEnergy` of images; else ``None``.
    """

    share_below: float
    share_undefined: float
    share_flat: float
    depth: float
    width: float
    roundness: float
    radii: Float[Tensor, " r"]
    rises: Float[Tensor, "r 3"]
    spread: float
    seconds: float
    scale: Float[Tensor, "n n"]
    temperature: float
    schedule: GeometricSchedule
    frame_weight: float | None


def measure_energy(
    action: Action,
    energy: DataEnergy | Callable[[Any], Tensor],
    clean: Any,
    transformations: Transformations,
    *,
    num_samples: int = 32,
    seed: int = 0,
    max_memory: float | None = None,
    deadline: float | None = None,
) -> EnergyProfile | None:
    """Measure how the energy of clean data rises when ``num_samples`` transformations move each datum.

    Args:
        deadline: value of `time.perf_counter` at which it is to end: fewer data are looked at where the time is short.

    Returns:
        The profile; ``None`` where there is no time for two data.

    Raises:
        ConfigurationError: see `check_energy` for this and further errors.
    """
    check_count("num_samples", num_samples)
    spread = spread_of(check_action(action).group, transformations, seed)
    problem = InverseProblem(action.with_scale(spread), energy)
    extent = _Extent(MAX_MEASURED, num_samples)
    with evaluation_mode(problem.energy):
        if deadline is not None:
            each = time_of_an_energy(problem, clean, max_memory, _TIMED_SHARE * seconds_until(deadline))
            fitting = extent.within(seconds_until(deadline), each)
            if fitting is None:
                return None
            extent = fitting
        x, _, at_rest = some_data(problem, clean, seed, max_memory, extent.data)
        num_samples = extent.samples
        probe = _Probe(problem, x, at_rest, max_memory, extent)
        began = time.perf_counter()
        moved = sample_elements(probe.group, transformations, len(at_rest) * num_samples, keyed(seed, 4)).to(at_rest)
        moved = moved.unflatten(0, (len(at_rest), num_samples))
        gradient, energies = probe.gradients(probe.group.inverse(moved))
        seconds = (time.perf_counter() - began) / (len(at_rest) * num_samples)
        if deadline is None:
            announce("measurement of the energy", seconds * extent.evaluations * len(at_rest) / extent.data)
        curvatures, axes = probe.hessian(keyed(seed, 5))
        radii, rises = probe.rises(keyed(seed, 6))

    defined = torch.isfinite(energies) & torch.isfinite(gradient).all(-1)
    rise = energies - at_rest
    known = torch.isfinite(rise)
    depth = float(rise[known].median()) if bool(known.any()) else math.nan
    half = torch.nonzero(rises[:, 1] >= 0.5 * depth) if depth > 0 else rises.new_empty(0)
    width = float(radii[half[0, 0]]) if len(half) else math.inf
    roundness = math.sqrt(float(curvatures[0] / curvatures[-1])) if float(curvatures[-1]) > 0 else 1.0
    return EnergyProfile(
        share_below=float((known & (rise < 0)).double().mean()),
        share_undefined=float((~defined).double().mean()),
        share_flat=float(((gradient == 0).all(-1) & defined).double().mean()),
        depth=depth,
        width=width,
        roundness=roundness,
        radii=radii,
        rises=rises,
        spread=float(at_rest.std()) if len(at_rest) > 1 else 0.0,
        seconds=seconds,
        scale=spread if roundness > MIN_ROUNDNESS else _round_scale(curvatures, axes) @ spread,
        temperature=max(abs(depth) / 50.0, 1e-12) if math.isfinite(depth) else 1.0,
        schedule=noise_between(min(0.1, max(0.002, 0.5 * width)), 1.0)[0],
        frame_weight=_frame_weight(problem.action, moved, x, depth),
    )


class _Probe:
    """Energies and gradients of moved data, a few at once; ``at_rest`` are the energies of unmoved data, ``[n, 1]``."""

    def __init__(
        self, problem: InverseProblem, x: Any, at_rest: Tensor, max_memory: float | None, extent: _Extent
    ) -> None:
        self.group, self.at_rest, self.extent = problem.group, at_rest, extent
        self._posterior = problem.given(x, max_evaluations="auto", max_memory=max_memory)

    def gradients(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients ``[n, m, dim]`` and energies ``[n, m]`` after elements ``[n, m, *element_shape]``."""
        zero = g.new_zeros(*self.group.batch_shape(g), self.group.dim)
        return self._posterior.gradient(lambda v: self.group.perturb(g, v), zero)

    def hessian(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return eigenvalues and eigenvectors of the Hessian in the well, see `_hessian`."""
        v = _HESSIAN_STEP * self._normal(self.extent.hessian_directions, generator)
        gradient = self.gradients(self.group.exp(torch.cat([v, -v], 1)))[0].flatten(0, 1)
        return _hessian(gradient[torch.isfinite(gradient).all(-1)], _HESSIAN_STEP)

    def rises(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return distances, and the quartiles of the rises of the energy there in random directions."""
        radii = torch.tensor(_PROFILE_RADII, dtype=torch.float64)
        v = self._normal(self.extent.profile_directions, generator)
        v = v / v.norm(dim=-1, keepdim=True) * math.sqrt(self.group.dim)
        steps = radii.to(v).reshape(-1, 1) * v.unsqueeze(-2)  # [n, directions, r, dim]
        with torch.no_grad():
            energies = self._posterior.energies(self.group.exp(steps.flatten(1, 2)))
        rise = energies.unflatten(1, steps.shape[1:3]) - self.at_rest.unsqueeze(-1)
        flat = rise.flatten(0, 1).double().cpu()
        flat = torch.where(torch.isfinite(flat), flat, torch.inf).sort(0).values
        return radii, torch.stack([flat[round(q * (len(flat) - 1))] for q in (0.25, 0.5, 0.75)], -1)

    def _normal(self, num_directions: int, generator: torch.Generator) -> Tensor:
        shape = (len(self.at_rest), num_directions, self.group.dim)
        return normal(shape, torch.empty(0), generator).to(self.at_rest)


def time_of_an_energy(problem: InverseProblem, clean: Any, max_memory: float | None, seconds: float) -> float:
    """Return the time of an energy with its gradient among several at once, measured in a time.

    Args:
        clean: clean data.
        max_memory: see `trivgeo.inversion.Inverter`.
        seconds: time that the measurement may take; one evaluation is made however short it is.
    """
    clean = on_device(with_tensors("clean", clean), module_device(problem))
    some = pytree.tree_map(lambda leaf: leaf[:MAX_MEASURED], clean)
    posterior = problem.given(some, max_evaluations="auto", max_memory=max_memory)

    def evaluate(size: int) -> Tensor:
        first = posterior.of_first(size)
        reference: Tensor = first.reference
        unit = problem.group.identity(first.batch, 1, dtype=reference.dtype, device=reference.device)
        zero = reference.new_zeros(first.batch, 1, problem.group.dim)
        return first.gradient(lambda v: problem.group.perturb(unit, v), zero)[1]

    found = time_evaluations(evaluate, posterior.batch, seconds)
    size = min(posterior.batch, posterior.max_evaluations or posterior.batch)
    return found.of(size) / size


def some_data(
    problem: InverseProblem, clean: Any, seed: int, max_memory: float | None, number: int = MAX_MEASURED
) -> tuple[Any, Int[Tensor, " n"], Float[Tensor, "n 1"]]:
    """Choose at most a number of the data that have a finite energy; return the data, their indices and energies.

    Raises:
        DomainError: no energy is finite.
    """
    clean = on_device(with_tensors("clean", clean), module_device(problem))
    first: Tensor = pytree.tree_leaves(clean)[0]
    index = permutation((len(first),), torch.empty(0), keyed(seed, 7))[:number].to(first.device)
    some = pytree.tree_map(lambda leaf: leaf[index], clean)
    posterior = problem.given(some, max_evaluations="auto", max_memory=max_memory)
    x, reference = posterior.x, posterior.reference
    with torch.no_grad():
        energies = posterior.energies(
            problem.group.identity(posterior.batch, 1, dtype=reference.dtype, device=reference.device)
        )
    kept = torch.isfinite(energies[:, 0])
    if not bool(kept.any()):
        raise DomainError("energy: expected finite energies of clean data, got none")
    return pytree.tree_map(lambda leaf: leaf[kept], x), index[kept], energies[kept]


def _round_scale(curvatures: Tensor, axes: Tensor) -> Tensor:
    """Return rows, in spreads, in which the well is round and the transformations are nowhere wider than one.

    Along directions that the energy does not see they are as wide as the transformations.
    """
    seen = curvatures > _MIN_RELATIVE_CURVATURE * curvatures[-1]
    root = torch.where(seen, curvatures, curvatures[-1]).rsqrt()
    return axes @ torch.diag(root / root.min()) @ axes.mT


def _frame_weight(action: Action, moved: Tensor, x: Any, depth: float) -> float | None:
    """Return the weight with which a typical transformation costs as much out of the frame as the well is deep."""
    if not isinstance(action, ImageWarp) or not depth > 0:
        return None
    source = action.source_points(moved, *x.shape[-action.dims :])
    outside = torch.relu(source.abs() - 1).square().sum(-1).mean(tuple(range(-action.dims, 0))).flatten()
    outside = outside[torch.isfinite(outside)]
    typical = float(outside.quantile(0.9)) if len(outside) else 0.0
    return depth / typical if typical > 0 else None
