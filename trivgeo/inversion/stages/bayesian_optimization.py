"""Bayesian optimisation of the transformation."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo._random import uniform
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import LieGroup
from trivgeo.inversion.posterior import Posterior
from trivgeo.inversion.rows import rows_like
from trivgeo.inversion.stage import Population, Stage

__all__ = ["BayesianOptimization"]


class BayesianOptimization(Stage):
    r"""Minimises the posterior energy by Bayesian optimisation in a box around the first hypothesis of each datum.

    A Gaussian process of :math:`v \mapsto E(g \exp v)` on :math:`[-c, c]^n` is fitted to random points and then, one
    by one, to the points of largest expected improvement. The processes of all data of a batch are fitted together,
    with BoTorch. Where the energy is undefined, the process is told the highest energy that the datum has met.

    Args:
        initial: number of random points.
        evaluations: number of points that come after, one by one.
        length_scale: of the squared exponential kernel, in units of the group's basis for a box of one; where its fit
            starts.
        box: c, in units of the group's basis, one number or one for each basis direction.
        num_hypotheses: number K of points kept, in order of their energies.
        fit: fit the length scale to every datum before every point, otherwise keep it as given.

    Raises:
        ConfigurationError: BoTorch is not installed, a setting is out of its range, there are more hypotheses than
            evaluations, or (when run) the box does not fit the group.
    """

    def __init__(
        self,
        initial: int = 5,
        evaluations: int = 5,
        length_scale: float = 0.01,
        box: float | Sequence[float] = 1.0,
        num_hypotheses: int = 1,
        fit: bool = True,
    ) -> None:
        _import_gaussian_process()
        self.initial = check_count("initial", initial, 2)
        self.evaluations = check_count("evaluations", evaluations)
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        if num_hypotheses > initial + evaluations:
            raise ConfigurationError(
                f"num_hypotheses: expected at most the {initial + evaluations} evaluations, got {num_hypotheses}"
            )
        self.length_scale = check_positive("length_scale", length_scale)
        sides = [box] if isinstance(box, int | float) else list(box)
        self.box = tuple(float(check_positive("box", side)) for side in sides)
        self._box = Constant(torch.tensor(self.box, dtype=torch.float64))
        self.fit = fit
        self.steps = 1 + evaluations  # the random points together, then one by one

    def check_group(self, group: LieGroup) -> None:
        """Check that the box has one number, or one for each basis direction of ``group``.

        Raises:
            ConfigurationError: another number.
        """
        if len(self.box) not in (1, group.dim):
            raise ConfigurationError(f"box: expected one number or {group.dim}, got {len(self.box)}")

    def __call__(self, posterior: Posterior, population: Population, generator: torch.Generator | None) -> Population:
        """The best points of each datum."""
        group, reference = posterior.group, posterior.reference
        self.check_group(group)
        gaussian_process, box, center = (
            _import_gaussian_process(),
            self._box.matching(reference),
            population.elements[:, :1],
        )
        x = uniform((posterior.batch, self.initial, group.dim), reference, generator)
        elements = group.retract(center, box * (2.0 * x - 1.0))
        energies = posterior.energies(elements)
        posterior.step()
        for _ in range(self.evaluations):
            # the kernel sees the unit cube, half as long as a box of one
            new = x[:, 0]
            if posterior.batch:  # BoTorch takes no empty batch
                new = gaussian_process.propose(
                    x, -_finite(energies), length_scale=0.5 * self.length_scale, fit=self.fit, generator=generator
                )
            new = new.to(reference.dtype).unsqueeze(1)
            g = group.retract(center, box * (2.0 * new - 1.0))
            x, elements = torch.cat([x, new], 1), torch.cat([elements, g], 1)
            energies = torch.cat([energies, posterior.energies(g)], 1)
            posterior.step()
        energies, order = energies.sort(dim=1, stable=True)
        energies, order = energies[:, : self.num_hypotheses], order[:, : self.num_hypotheses]
        elements = torch.take_along_dim(elements, rows_like(order, elements), 1)
        return Population(elements, torch.zeros_like(order), energies)


def _finite(energies: Tensor) -> Tensor:
    """The energies, with the highest finite one of the datum where there is none."""
    finite = torch.isfinite(energies)
    highest = torch.where(finite, energies, -torch.inf).amax(1, keepdim=True)
    return torch.where(finite, energies, torch.where(torch.isfinite(highest), highest, 0.0))


def _import_gaussian_process() -> ModuleType:
    """The module that needs BoTorch, imported when the first stage is made.

    Raises:
        ConfigurationError: BoTorch is not installed.
    """
    try:
        from trivgeo.inversion.stages import gaussian_process
    except ImportError as error:
        raise ConfigurationError("FoCal: expected BoTorch to be installed (pip install trivgeo[bayes])") from error
    return gaussian_process
