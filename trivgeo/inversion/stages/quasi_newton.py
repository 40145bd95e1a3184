"""Quasi-Newton descent of many chains, of which fewer and fewer go on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo.checks import check_count, check_positive, checked
from trivgeo.errors import ConfigurationError
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.rows import where_rows
from trivgeo.inversion.stage import EvaluatedPopulation, Population, Stage
from trivgeo.sde.resampling import take_rows

_SHORTER = 0.35  # length of the next step over that of one that went up
_LONGER = 2.0  # longest next step over the longest one so far, after a step that went down
_CHECKED_EVERY = 8  # steps between looks at whether anything moves
_STILL = 1e-7  # length of a next step, in units of the largest, of a chain that has arrived
_MIN_CURVATURE_COSINE = 1e-10  # cosine of a step and its change of slope below which it tells no curvature


@checked
class QuasiNewton(Stage):
    r"""Descends along the posterior energy by the method of Broyden, Fletcher, Goldfarb and Shanno on the group.

    A step is :math:`g \leftarrow g \exp(-H s)`, s the left-trivialized gradient and H the estimate of the inverse
    Hessian by the steps so far; left translation carries both along (Huang, Gallivan and Absil 2015). Chains are
    independent. A step that goes up is taken back, and the next one is shorter, so that each step costs one gradient.
    A smooth well takes some twenty steps in six dimensions, where `Descend` needs a hundred.

    It ends early where all chains that go on have arrived, or the time of the call is up.

    With ``pruning`` it is a search by successive halving (Jamieson and Talwalkar 2016): many chains begin, only those
    of lowest energy go on, and the others stay where they have come to.

    Args:
        steps: number of gradient steps of the chains that go on to the end; one gradient comes before.
        pruning: pairs (s, k): from step s on only the k chains of lowest energy of each datum move.
        first_length: length of the first step, in units of the group's basis.
        max_length: largest length of a step, in units of the group's basis.

    Raises:
        ConfigurationError: a count below one, a length that is not positive, or ``pruning`` whose steps do not rise
            below ``steps`` or whose numbers do not fall; or (when run) the population has no more chains than that.
    """

    def __init__(
        self,
        steps: int = 30,
        pruning: Sequence[tuple[int, int]] = (),
        first_length: float = 0.2,
        max_length: float = 0.5,
    ) -> None:
        self.steps = check_count("steps", steps)
        self.pruning = tuple((check_count("pruning", s), check_count("pruning", k)) for s, k in pruning)
        rising = all(a[0] < b[0] and a[1] > b[1] for a, b in itertools.pairwise(self.pruning))
        if not rising or any(s >= self.steps for s, _ in self.pruning):
            raise ConfigurationError(
                f"pruning: expected pairs (step, number of chains) of rising steps below {self.steps} and falling "
                f"numbers, got {list(self.pruning)}"
            )
        self.first_length = check_positive("first_length", first_length)
        self.max_length = check_positive("max_length", max_length)

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        """Return the chains in the order of their energies, each at the lowest point that it has met.

        Raises:
            ConfigurationError: no more chains than the first pruning keeps.
        """
        if self.pruning and population.size <= self.pruning[0][1]:
            raise ConfigurationError(f"pruning: expected numbers below {population.size} chains, got {self.pruning}")
        chains = _Chains.at(posterior, population, self.first_length, self.max_length)
        numbers = dict(self.pruning)
        ended: list[EvaluatedPopulation] = []
        for step in range(self.steps):
            if step in numbers:
                chains, others = chains.split(numbers[step])
                ended.insert(0, others.population)
            chains = chains.moved(posterior, self.max_length)
            posterior.step()
            if posterior.is_late() or (step % _CHECKED_EVERY == 0 and chains.are_still(_STILL * self.max_length)):
                break
        return EvaluatedPopulation.joined(chains.population, *ended)


class _Chains(NamedTuple):
    """Chains of a descent.

    Attributes:
        elements: ``[b, k, *element_shape]``.
        slopes: left-trivialized gradients there, ``[b, k, n]``; zero where they are not finite.
        energies: infinite where they or their gradients are not finite, ``[b, k]``.
        inverse_hessians: estimates, ``[b, k, n, n]``.
        is_guess: mask of the chains whose estimate knows no curvature, ``[b, k]``.
        max_lengths: largest lengths of the next step, ``[b, k]``.
        num_masked_steps: ``[b, k]``.
    """

    elements: Tensor
    slopes: Tensor
    energies: Tensor
    inverse_hessians: Tensor
    is_guess: Tensor
    max_lengths: Tensor
    num_masked_steps: Tensor

    @staticmethod
    def at(posterior: Posterior, population: Population, first_length: float, max_length: float) -> _Chains:
        slopes, energies = _slopes(posterior, population.elements)
        size = first_length / slopes.norm(dim=-1).clamp(min=torch.finfo(slopes.dtype).tiny)
        unit = torch.eye(slopes.shape[-1]).to(slopes)
        return _Chains(
            population.elements,
            slopes,
            energies,
            size[..., None, None] * unit,
            torch.ones_like(energies, dtype=torch.bool),
            torch.full_like(energies, max_length),
            population.num_masked_steps,
        )

    @property
    def population(self) -> EvaluatedPopulation:
        """The chains without what is known of their slopes."""
        return EvaluatedPopulation(self.elements, self.num_masked_steps, self.energies)

    def are_still(self, length: float) -> bool:
        """Return whether the next step of every chain is shorter than ``length``."""
        ahead = torch.minimum(
            matmul(self.inverse_hessians, self.slopes.unsqueeze(-1)).squeeze(-1).norm(dim=-1), self.max_lengths
        )
        return bool((ahead < length).all())

    def split(self, number: int) -> tuple[_Chains, _Chains]:
        """Return the ``number`` chains of lowest energy, and the others."""
        order = self.energies.argsort(dim=1, stable=True)
        first, rest = (_Chains(*(take_rows(part, i) for part in self)) for i in order.tensor_split([number], 1))
        return first, rest

    def moved(self, posterior: Posterior, max_length: float) -> _Chains:
        """Return the chains after a step."""
        group = posterior.group
        v = -matmul(self.inverse_hessians, self.slopes.unsqueeze(-1)).squeeze(-1)
        length = v.norm(dim=-1)
        v = v * (self.max_lengths / length.clamp(min=torch.finfo(v.dtype).tiny)).clamp(max=1.0).unsqueeze(-1)
        elements = group.retract(self.elements, v)
        finite = torch.isfinite(elements).flatten(2).all(-1)
        elements = where_rows(finite, elements, self.elements)
        slopes, energies = _slopes(posterior, elements)
        defined = finite & torch.isfinite(energies)
        lower = defined & (energies < self.energies)
        inverse, bends = self._updated(v, slopes - self.slopes, defined)
        # along a concave way down the estimate says nothing: go farther
        inverse = torch.where((lower & ~bends)[..., None, None], _LONGER * inverse, inverse)
        wide = (_LONGER * self.max_lengths).clamp(max=max_length)
        return _Chains(
            where_rows(lower, elements, self.elements),
            where_rows(lower, slopes, self.slopes),
            torch.where(lower, energies, self.energies),
            inverse,
            self.is_guess & ~bends,
            torch.where(lower, wide, _SHORTER * v.norm(dim=-1)),
            self.num_masked_steps + (~defined).long(),
        )

    def _updated(self, v: Tensor, change: Tensor, defined: Tensor) -> tuple[Tensor, Tensor]:
        """Return inverse Hessians that take the ``change`` of slopes to the step v, and where there is curvature."""
        along = (change * v).sum(-1)
        bends = defined & (along > _MIN_CURVATURE_COSINE * change.norm(dim=-1) * v.norm(dim=-1))
        unit = torch.eye(v.shape[-1]).to(v)
        # Shanno and Phua (1978): the first estimate has the size of the curvature along the first step
        size = along / change.square().sum(-1).clamp(min=torch.finfo(v.dtype).tiny)
        guess = torch.where(
            (self.is_guess & bends)[..., None, None], size[..., None, None] * unit, self.inverse_hessians
        )
        rate = (1.0 / torch.where(bends, along, 1.0))[..., None, None]
        column, row = v.unsqueeze(-1), change.unsqueeze(-2)
        left = unit - rate * column * row
        updated = matmul(matmul(left, guess), left.mT) + rate * column * column.mT
        return where_rows(bends, updated, self.inverse_hessians), bends


def _slopes(posterior: Posterior, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return left-trivialized gradients and energies at elements; zero and infinite where they are not finite."""
    zero = g.new_zeros(*posterior.group.batch_shape(g), posterior.group.dim)
    slopes, energies = posterior.gradient(lambda v: posterior.group.perturb(g, v), zero)
    defined = torch.isfinite(energies) & torch.isfinite(slopes).all(-1)
    return where_rows(defined, slopes, 0.0), torch.where(defined, energies, torch.inf)
