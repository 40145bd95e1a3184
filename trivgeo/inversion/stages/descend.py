"""Gradient descent along the posterior energy, many chains at once."""

from __future__ import annotations

from functools import partial

import torch

from trivgeo._deprecation import renamed_arguments
from trivgeo.checks import check_count, check_positive, check_type
from trivgeo.inversion.population import Population
from trivgeo.inversion.posterior import ConditionalPosterior
from trivgeo.inversion.rows import lower_rows, where_rows
from trivgeo.inversion.stage import Stage
from trivgeo.inversion.stages.descent_rules import GroupElements, HeavyBall, Parametrization, UpdateRule

__all__ = ["Descend"]


class Descend(Stage):
    r"""Descends along the posterior energy, each chain independently.

    A chain whose energy or gradient is not finite goes back to its last point where both were, its moments as they
    were there, and the step counts as a failure. The end is that point, too, if the energy there is not finite.

    After a sampler it goes from the width of the posterior to the minimum of each well, at no temperature.

    Args:
        steps: gradient steps of each chain; one energy comes after.
        rule: how gradients become steps; default `HeavyBall` with its defaults.
        space: where the point lives; default `GroupElements`.
        start_std: sigma of the starts :math:`g \exp(\sigma z)`, z standard normal, in units of the group's basis; 0 to
            start where the population is.
        keep_best: return of each chain the element of lowest energy that it has met in place of its end: none ends
            higher than it began.

    Raises:
        ConfigurationError: a setting out of its range.
    """

    @renamed_arguments(until="0.4", keep_seen="keep_best")
    def __init__(
        self,
        steps: int = 30,
        rule: UpdateRule | None = None,
        space: Parametrization | None = None,
        start_std: float = 0.0,
        keep_best: bool = True,
    ) -> None:
        self.steps = check_count("steps", steps)
        self.rule = HeavyBall() if rule is None else check_type("rule", rule, UpdateRule)  # type: ignore[type-abstract]
        self.space = GroupElements() if space is None else check_type("space", space, Parametrization)  # type: ignore[type-abstract]
        self.start_std = start_std if start_std == 0 else check_positive("start_std", start_std)
        self.keep_best = keep_best

    def __call__(
        self, posterior: ConditionalPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The ends of the descents."""
        group, base, space = posterior.group, population.elements, self.space
        shape = base.shape[:2]
        zero = base.new_zeros(*shape, group.dim)
        start = self.start_std * posterior.normal(*zero.shape, generator=generator) if self.start_std else zero
        last = best = point = space.start(group, base, start)
        state = self.rule.start(zero, space)
        masked = torch.zeros_like(population.num_masked_steps)
        last_energy = best_energy = base.new_full(shape, torch.inf)
        for _ in range(self.steps):
            gradient, energy = posterior.gradient(partial(space.displaced, group, base, point), zero)
            finite = torch.isfinite(energy) & torch.isfinite(gradient).all(-1)
            last, last_energy = where_rows(finite, point, last), torch.where(finite, energy, last_energy)
            if self.keep_best:
                best, best_energy = lower_rows(best, best_energy, last, last_energy)
            v, new = self.rule.step(torch.where(finite.unsqueeze(-1), gradient, 0.0), state, space)
            state = tuple(where_rows(finite, a, b) for a, b in zip(new, state, strict=True))
            moved = space.moved(group, point, v)
            kept = finite & torch.isfinite(moved).flatten(2).all(-1)
            point = where_rows(kept, moved, last)
            masked = masked + (~kept).long()
            posterior.step()
        energy = posterior.energies(space.elements(group, base, point))
        finite = torch.isfinite(energy)
        end, end_energy = where_rows(finite, point, last), torch.where(finite, energy, last_energy)
        if self.keep_best:
            end, end_energy = lower_rows(end, end_energy, best, best_energy)
        return population.moved(space.elements(group, base, end), end_energy, masked)
