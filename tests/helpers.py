"""What the tests share: seeds, relative errors, finite differences, tests of samples, the affine group of the line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from trivgeo._random import normal, streams_for
from trivgeo.groups import LieGroup, SemidirectProduct, Translation
from trivgeo.sde.scores import trivialized_grad, trivialized_grad_and_value

BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-3}
"""Relative bounds of the laws. float32: 1e4 units in the last place, for products of a few ill-conditioned elements."""

# sixth-order central difference
_STENCIL = ((1, 45 / 60), (2, -9 / 60), (3, 1 / 60))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=dtype)


def streams(batch: int, seed: int) -> torch.Generator | None:
    """The noise that an inverter gives data 0, ..., batch - 1 for a seeded generator."""
    return streams_for(batch, torch.empty(0), seeded(seed))


def noise(*shape: int, seed: int) -> Tensor:
    """The first normal numbers of `streams`."""
    return normal(shape, torch.empty(0, dtype=torch.float64), streams(shape[0], seed))


def rand(*shape: int, seed: int = 0, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=seeded(seed), dtype=torch.float64)


def traced_only(function: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
    """Trace like compiled groups and inverters, and run the graph by Python, without a compiler."""
    return torch.compile(function, fullgraph=True, backend="eager")


def assert_relative(actual: Tensor, expected: Tensor, bound: float, *, event: int = 0, floor: float = 1.0) -> None:
    """``|actual - expected| <= bound * max(|expected|, floor)``, both maximised over the last ``event`` dimensions."""
    assert actual.shape == expected.shape, f"{list(actual.shape)} against {list(expected.shape)}"
    assert actual.dtype == expected.dtype
    error, size = (actual - expected).abs(), expected.abs()
    if event:
        dims = tuple(range(-event, 0))
        error, size = error.amax(dims), size.amax(dims)
    relative = error / size.clamp(min=floor) if floor else error / size
    assert bool((relative <= bound).all()), f"relative error {float(relative.max()):.3g}, bound {bound:.3g}"


def numeric_jacobian(f: Callable[[Tensor], Tensor], x: Tensor, step: float = 5e-3) -> Tensor:
    """``df/dx`` of ``[*in] -> [*out]`` as ``[*out, x.numel()]`` by sixth-order central differences."""
    unit = torch.eye(x.numel(), dtype=x.dtype).unflatten(-1, x.shape) if x.ndim else torch.ones(1, dtype=x.dtype)
    shifts = torch.stack([sign * k * step * unit for k, _ in _STENCIL for sign in (1, -1)])
    weights = torch.tensor([sign * weight / step for _, weight in _STENCIL for sign in (1, -1)], dtype=x.dtype)
    values = vmap(vmap(f))(x + shifts)
    return torch.tensordot(weights, values, 1).movedim(0, -1)


def affine_line(scale: object = None) -> SemidirectProduct:
    """Aff(1), x -> e^a x + b, element (a, b); left Haar measure e^-a da db, modular function e^-a."""
    return SemidirectProduct(Translation(1), Translation(1), _stretch, scale=scale)


def _stretch(h: Tensor, n: Tensor) -> Tensor:
    return h.exp() * n


def random_vectors(
    group: LieGroup, *batch: int, std: float, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    return std * randn(*batch, group.dim, seed=seed, dtype=dtype)


def random_elements(
    group: LieGroup, *batch: int, std: float, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    return group.random(*batch, std=std, generator=seeded(seed), dtype=dtype)


def stein_z_scores(
    group: LieGroup,
    energy: Callable[[Tensor], Tensor],
    samples: Tensor,
    functions: Sequence[Callable[[Tensor], Tensor]],
) -> Tensor:
    """Deviations from the Stein identity of exp(-E), E[X_i f - (X_i E + tr ad(e_i)) f] = 0, in standard errors.

    Of independent samples ``[m, *element_shape]``: a row for each function f, a column for each direction i.
    """
    force = trivialized_grad(group, energy, samples) + group.algebra.trace_ad_like(samples)
    rows = []
    for f in functions:
        slope, value = trivialized_grad_and_value(group, f, samples)
        terms = slope - force * value.unsqueeze(-1)
        rows.append(terms.mean(0) / (terms.std(0) / math.sqrt(len(terms))))
    return torch.stack(rows)


def maximum_mean_discrepancy(x: Tensor, y: Tensor, bandwidth: float) -> float:
    """Unbiased squared MMD of features ``[m, d]`` and ``[k, d]`` with a Gaussian kernel (Gretton et al. 2012)."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * (torch.cdist(a, b) / bandwidth) ** 2)

    def within(z: Tensor) -> Tensor:
        return (kernel(z, z).sum() - len(z)) / (len(z) * (len(z) - 1))

    return float(within(x) + within(y) - 2.0 * kernel(x, y).mean())
