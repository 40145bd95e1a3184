"""Bayesian optimisation of the transformation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action
from trivgeo.inversion.base import InversionResult
from trivgeo.inversion.counting import CountedPosterior, CountingInverter, rows_like
from trivgeo.inversion.energy import DataEnergy

__all__ = ["FoCal"]


class FoCal(CountingInverter):
    r"""Minimises the posterior energy by Bayesian optimisation in a box of algebra coordinates (Singhal et al. 2025).

    A Gaussian process of :math:`v \mapsto E(\exp v)` on :math:`[-c, c]^n` is fitted to random points and then, one by
    one, to the points of largest expected improvement. The processes of all data of a batch are fitted together, with
    BoTorch. Where the energy is undefined, the process is told the highest energy that the datum has met.

    The defaults are the published ones for images; those for differential equations are 10 + 100 evaluations.

    Args:
        action: the action on data.
        energy: a `DataEnergy`, or a function from a batch of data to ``[batch]``.
        initial: number of random points.
        evaluations: number of points that come after, one by one.
        length_scale: of the squared exponential kernel, in units of the group's basis for a box of one; where its fit
            starts.
        box: c, in units of the group's basis, one number or one for each basis direction.
        num_hypotheses: number K of points kept, in order of their energies.
        fit: fit the length scale to every datum before every point, otherwise keep it as given.
        log_det: keep the log-determinant of the action in the posterior energy (published: off).
        max_evaluations: the largest number of energies evaluated at once, to bound memory: the data are inverted in
            parts; ``None`` for all at once.
        on_step: called with the number of evaluations so far and the share of the run that is done.

    Raises:
        ConfigurationError: BoTorch is not installed, a setting is out of its range, there are more hypotheses than
            evaluations, or an action or energy is none.
    """

    def __init__(
        self,
        action: Action,
        energy: DataEnergy | Callable[[Any], Tensor],
        initial: int = 5,
        evaluations: int = 5,
        length_scale: float = 0.01,
        box: float | Sequence[float] = 1.0,
        num_hypotheses: int = 1,
        *,
        fit: bool = True,
        log_det: bool = False,
        max_evaluations: int | None = None,
        on_step: Callable[[int, float], None] | None = None,
    ) -> None:
        self._bayes = _import_bayes()
        self.initial = check_count("initial", initial)
        self.evaluations = check_count("evaluations", evaluations)
        if initial < 2:
            raise ConfigurationError(f"initial: expected at least 2 points, got {initial}")
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        if num_hypotheses > initial + evaluations:
            raise ConfigurationError(
                f"num_hypotheses: expected at most the {initial + evaluations} evaluations, got {num_hypotheses}"
            )
        super().__init__(action, energy, at_once=initial, log_det=log_det, max_evaluations=max_evaluations)
        self.length_scale = check_positive("length_scale", length_scale)
        dim = self.action.group.dim
        sides = [box] * dim if isinstance(box, int | float) else list(box)
        if len(sides) != dim:
            raise ConfigurationError(f"box: expected one number or {dim}, got {len(sides)}")
        self.box = tuple(check_positive("box", side) for side in sides)
        self._box = Constant(torch.tensor(self.box, dtype=torch.float64))
        self.fit = fit
        self.on_step = on_step

    def search(self, posterior: CountedPosterior, generator: torch.Generator | None) -> InversionResult:
        """Optimise all data together."""
        group, like = posterior.group, posterior.like
        shape = (posterior.batch, self.initial, group.dim)
        box = self._box.like(like)
        x = torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device)
        elements = group.exp(box * (2.0 * x - 1.0))
        energies = posterior.energies(elements)
        self._report(self.initial)
        for index in range(1, self.evaluations + 1):
            # the kernel sees the unit cube, half as long as a box of one
            new = self._bayes.propose(
                x, -_finite(energies), length_scale=0.5 * self.length_scale, fit=self.fit, generator=generator
            )
            new = new.to(like.dtype).unsqueeze(1)
            g = group.exp(box * (2.0 * new - 1.0))
            x, elements = torch.cat([x, new], 1), torch.cat([elements, g], 1)
            energies = torch.cat([energies, posterior.energies(g)], 1)
            self._report(self.initial + index)
        energies, order = energies.sort(dim=1, stable=True)
        energies, order = energies[:, : self.num_hypotheses], order[:, : self.num_hypotheses]
        return posterior.result(torch.take_along_dim(elements, rows_like(order, elements), 1), energies)

    def _report(self, done: int) -> None:
        if self.on_step is not None:
            self.on_step(done, done / (self.initial + self.evaluations))


def _finite(energies: Tensor) -> Tensor:
    """The energies, with the highest finite one of the datum where there is none."""
    finite = torch.isfinite(energies)
    highest = torch.where(finite, energies, -torch.inf).amax(1, keepdim=True)
    return torch.where(finite, energies, torch.where(torch.isfinite(highest), highest, 0.0))


def _import_bayes() -> ModuleType:
    """The module that needs BoTorch, imported when the first inverter is made.

    Raises:
        ConfigurationError: BoTorch is not installed.
    """
    try:
        from trivgeo.inversion import bayes
    except ImportError as error:
        raise ConfigurationError("FoCal: expected BoTorch to be installed (pip install trivgeo[bayes])") from error
    return bayes
