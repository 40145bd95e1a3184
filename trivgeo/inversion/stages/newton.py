"""Newton's method on the group, for hypotheses close to a minimum."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo.checks import check_count, checked
from trivgeo.inversion.curvature import absolute_eigh
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.rows import where_rows
from trivgeo.inversion.stage import EvaluatedPopulation, Population, Stage

_MIN_RELATIVE_CURVATURE = 1e-6  # curvature, in units of the largest, to which smaller ones are raised
_STEP_FRACTIONS = (1.0, 0.3, 0.1, 0.03, 0.01)  # fractions of a step, tried in turn until the energy falls


@checked
class Newton(Stage):
    r"""Steps to where the energy is stationary, :math:`g \leftarrow g \exp(-s |H|^{-1} \nabla E)`.

    The Hessian H of :math:`v \mapsto E(g \exp v)` at zero comes from differences of gradients, 2 dim of them a step;
    its eigenvalues are taken by their size, so that steps go downhill. The share s is the first of 1, .3, .1, .03
    and .01 with which the energy falls; where it falls with none, the chain stays for this step. A few steps finish
    what a learned score or a search began, where gradient descent would need hundreds: energies of grids and of values
    curve very differently in different directions.

    Args:
        steps: number of steps.

    Raises:
        ConfigurationError: a count below one; or (when run) there is no energy.
    """

    def __init__(self, steps: int = 3) -> None:
        self.steps = check_count("steps", steps)

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        group, current = posterior.group, population.evaluated(posterior)
        for _ in range(self.steps):
            g = current.elements
            zero = g.new_zeros(*current.energies.shape, group.dim)

            def gradient(v: Float[Tensor, "b k n"], g: Tensor = g) -> Tensor:
                return posterior.gradient(lambda w: group.compose(g, group.exp(w)), v)[0]

            slope, hessian = gradient(zero), _differences(gradient, zero)
            known = torch.isfinite(hessian).all((-2, -1)) & torch.isfinite(slope).all(-1)
            curvature, vectors = absolute_eigh(hessian, _MIN_RELATIVE_CURVATURE)
            along = matmul(where_rows(known, slope, zero).unsqueeze(-2), vectors).squeeze(-2) / curvature
            step = -matmul(vectors, along.unsqueeze(-1)).squeeze(-1)
            current = _lowered(posterior, current, step)
            posterior.step()
            if posterior.is_late():
                break
        return current


def _lowered(posterior: Posterior, before: EvaluatedPopulation, step: Float[Tensor, "b k n"]) -> EvaluatedPopulation:
    """Return chains after the largest share of each step that lowers the energy; where none does, the chain stays."""
    group, g, current = posterior.group, before.elements, before
    for share in _STEP_FRACTIONS:
        new = before.moved(group.compose(g, group.exp(share * step))).evaluated(posterior)
        stays = current.energies >= before.energies
        current = current.or_lower(new.elements, torch.where(stays, new.energies, torch.inf))
        if not bool((current.energies >= before.energies).any()):
            break
    return current


def _differences(gradient: Callable[[Tensor], Tensor], at: Tensor) -> Float[Tensor, "b k n n"]:
    """Return symmetric central differences of a gradient."""
    size = torch.finfo(at.dtype).eps ** (1 / 3)
    rows = []
    for axis in range(at.shape[-1]):
        shift = torch.zeros_like(at)
        shift[..., axis] = size
        rows.append((gradient(at + shift) - gradient(at - shift)) / (2 * size))
    rough = torch.stack(rows, -2)
    return 0.5 * (rough + rough.mT)
