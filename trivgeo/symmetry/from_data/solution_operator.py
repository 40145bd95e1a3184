"""Symmetries of a solution operator, such as a trained neural operator, that keep its box and its times."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import sympy as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import jvp

from trivgeo.actions import Field
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.symmetry.equations.multi_index import multi_indices
from trivgeo.symmetry.from_data.function import MAX_BROKEN, MIN_GAP, broken_fields, closed_fields, operator_fields
from trivgeo.symmetry.from_data.result import SymmetriesFromData

__all__ = ["symmetries_of_operator"]


def symmetries_of_operator(
    network: Callable[[Tensor], Tensor],
    initial: Field,
    elapsed: float,
    *,
    degree: int = 1,
    tolerance: float | None = None,
) -> SymmetriesFromData:
    r"""Point symmetries of a solution operator itself, whatever it was trained on, and how far each is broken.

    An operator N from periodic fields at time 0 to those at time T commutes with the flow of a vector field if

    .. math:: D N[u] \, Q(0, u) = Q(T, N[u]), \quad Q^a = \eta^a - \sum_j \xi^j \partial_j u^a,

    for all u. Both sides are linear in the coefficients of :math:`\xi, \eta`, here polynomials in t and the unknowns;
    symmetries are the null space at given fields. Singular values are the size of breaking: the difference of both
    sides relative to their size. Other fields that are broken by less than 0.05 are approximate symmetries. An operator
    for one box and one time does not show scalings of the box and of time.

    Args:
        network: values ``[b, c, *n]`` to values of the same shape, differentiable in forward mode.
        initial: periodic fields at one time, on an upright grid; at most five unknowns in three dimensions of space.
        elapsed: the time T between input and output.
        degree: the total degree of polynomials in t and the unknowns.
        tolerance: singular value below which a field is a symmetry; default: 0.05, and below the last gap of a factor
            of ten.

    Returns:
        The symmetries, in the first of the variables x, y, z, then t, and the first of the unknowns u, v, w, p, q;
        approximate symmetries with the size of their breaking; all singular values.

    Raises:
        ShapeError: the fields have several times, or too many unknowns or axes, or the network returns another shape.
        ConfigurationError: the network's output does not depend on the fields, or is not finite.
    """
    check_positive("elapsed", elapsed)
    check_count("degree", degree, 0)
    values, output, steps, variables = operator_fields(network, initial)
    dims, unknowns = len(steps), values.shape[1]
    exponents = list(multi_indices(1 + unknowns, degree))
    columns = []
    for component in range(dims + unknowns):
        for powers in exponents:
            before = _characteristic(values, steps, component, powers, 0.0)
            after = _characteristic(output, steps, component, powers, elapsed)
            moved = jvp(network, (values,), (before,))[1]
            columns.append(torch.stack([moved.flatten(), after.flatten()]).detach().double().cpu())
    sides = torch.stack(columns, -1)  # [2, values, coefficients]
    scale = sides.square().sum((0, 1)).sqrt()
    if not bool(sides.isfinite().all()) or not bool((scale > 0).all()):
        kind = "derivatives that vanish" if bool(sides.isfinite().all()) else "NaN or infinity"
        raise ConfigurationError(f"network: expected finite values that depend on the fields, got {kind}")
    _, sizes, right = torch.linalg.svd((sides[0] - sides[1]) / scale, full_matrices=False)
    # the difference of opposite sides is sqrt(2) after scaling: their breaking is one
    ratios = (sizes / math.sqrt(2.0)).flip(0).tolist()
    basis = (right.flip(0) / scale).numpy()
    terms = [sp.Mul(*(v**k for v, k in zip(variables[dims:], e, strict=True))) for e in exponents]
    moved_variables = [i for i in range(len(variables)) if i != dims]  # all but the time

    def measure(coefficients: NDArray[np.float64]) -> float:
        """The difference of both sides relative to their size."""
        before, after = sides @ torch.as_tensor(coefficients)
        return float((before - after).norm() / torch.cat([before, after]).norm()) / math.sqrt(2.0)

    fields, verdict = closed_fields(basis, ratios, _dimension(ratios, tolerance), terms, variables, moved_variables)
    size = len(fields)
    last, following = ratios[size - 1] if size else 0.0, ratios[size] if size < len(ratios) else math.inf
    words = (
        f"{size} of {len(ratios)} fields commute with the operator, broken by up to {last:.1e} of their size; the next "
        f"is broken by {following:.1e}"
    )
    near = basis[: max(sum(r < MAX_BROKEN for r in ratios), size)]
    broken = broken_fields(near, size, measure, terms, variables, moved_variables)
    words = "; ".join((words, *verdict.reasons))
    return SymmetriesFromData(fields, words, verdict, singular_values=ratios, approximate=broken)


def _characteristic(values: Tensor, steps: Tensor, component: int, powers: tuple[int, ...], time: float) -> Tensor:
    """The characteristic Q of a field with a monomial of t and the unknowns as its only component."""
    dims = len(steps)
    monomial = torch.full_like(values[:, 0], time ** powers[0])
    for unknown, power in zip(values.unbind(1), powers[1:], strict=True):
        monomial = monomial * unknown**power
    if component >= dims:
        place = torch.arange(values.shape[1], device=values.device) == component - dims
        return monomial.unsqueeze(1) * place.to(values).reshape(1, -1, *[1] * dims)
    count = values.shape[2 + component]
    wave = 2 * math.pi * torch.fft.fftfreq(count, 1.0, device=values.device).to(values) / steps[component]
    if count % 2 == 0:
        wave[count // 2] = 0.0  # the shortest wave has no odd derivative
    wave = wave.reshape(-1, *[1] * (dims - 1 - component))
    slope = torch.fft.ifft(1j * wave * torch.fft.fft(values, dim=2 + component), dim=2 + component).real
    return -monomial.unsqueeze(1) * slope


def _dimension(ratios: list[float], tolerance: float | None) -> int:
    """The number of symmetries: below a tolerance, or below the last gap, since some are exact and others learned."""
    if tolerance is not None:
        return sum(r < tolerance for r in ratios)
    gaps = [k for k in range(1, len(ratios)) if ratios[k - 1] < MAX_BROKEN and ratios[k] >= MIN_GAP * ratios[k - 1]]
    return max(gaps, default=0)
