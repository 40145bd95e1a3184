"""FoCal (Singhal et al. 2025): Bayesian optimisation of the transformation, a rival of the experiments.

Needs the package ``botorch``.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from trivgeo._numerics import Constant
from trivgeo._random import normal, uniform
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError, missing_package
from trivgeo.groups import Action, LieGroup
from trivgeo.inversion import Inverter, Population, Posterior, Stage
from trivgeo.inversion.energies import DataEnergy
from trivgeo.inversion.energies.base import as_energy
from trivgeo.inversion.rows import rows_like

try:
    from botorch.acquisition.analytic import LogExpectedImprovement
    from botorch.exceptions.warnings import BotorchWarning
    from botorch.generation.gen import gen_candidates_torch
    from botorch.models import SingleTaskGP
    from botorch.optim.fit import fit_gpytorch_mll_scipy
    from gpytorch.kernels import RBFKernel
    from gpytorch.means import ZeroMean
    from gpytorch.mlls import ExactMarginalLogLikelihood
    from gpytorch.utils.warnings import GPInputWarning, NumericalWarning
except ImportError as missing:
    raise missing_package("FoCal", "BoTorch", "bayes") from missing

_OBSERVATION_VARIANCE = 1e-6  # noise variance of an observation, in units of the variance of the values
_LENGTH_SCALE_STARTS = (0.1, 0.3, 1.0)  # initial length scales of fits, in sides of the unit cube, beside the given one
_FIT_ITERATIONS = 20  # iterations of a fit of the length scale
_RANDOM_STARTS, _LOCAL_STARTS = 32, 16  # points at which the expected improvement is evaluated before its ascent
_NEAREST_START, _FARTHEST_START = 1e-3, 0.3  # standard deviations of local starts, in sides of the unit cube
_NUM_ASCENTS = 2  # best starts from which the expected improvement is ascended
# a window longer than the run: no early stop, which would look at all problems together
_ASCENT: dict[str, Any] = {
    "optimizer_options": {"lr": 0.03},
    "stopping_criterion_options": {"maxiter": 15, "n_window": 16},
}


class FoCal(Inverter):
    """Bayesian optimisation of the transformation (Singhal et al. 2025): see `BayesianOptimization`.

    The defaults are the published ones for images; those for differential equations are 10 + 100 evaluations.

    Args:
        action: the action on data.
        energy: function or module from a batch of data to energies ``[batch]``, low for clean data; see `Inverter`.
        initial: number of random points.
        evaluations: number of points that come after, see `BayesianOptimization`.
        length_scale: length scale of the squared exponential kernel, in units of the group's basis.
        box: c of the box, in units of the group's basis, one number or one for each direction.
        num_hypotheses: number K of points kept, see `BayesianOptimization`.
        fit: fit the length scale to every datum before every point.

    Raises:
        ConfigurationError: see `BayesianOptimization`; or an argument is not an action or an energy.
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
        fit: bool = True,
    ) -> None:
        stage = BayesianOptimization(initial, evaluations, length_scale, box, num_hypotheses, fit)
        super().__init__(action, as_energy(energy), [stage])
        stage.check_group(self.action.group)


class BayesianOptimization(Stage):
    r"""Minimises the posterior energy by Bayesian optimisation in a box around the first hypothesis of each datum.

    A Gaussian process of :math:`v \mapsto E(g \exp v)` on :math:`[-c, c]^n` is fitted to random points and then, one
    by one, to the points of largest expected improvement. The processes of all data of a batch are fitted together,
    with BoTorch. Where the energy is undefined, the process is told the highest energy that the datum has met.

    Args:
        initial: number of random points.
        evaluations: number of points that come after, one by one.
        length_scale: scale of the kernel, in units of the group's basis for a box of one; where its fit
            starts.
        box: c, in units of the group's basis, one number or one for each basis direction.
        num_hypotheses: number K of points kept, in order of their energies.
        fit: fit the length scale to every datum before every point, otherwise keep it as given.

    Raises:
        ConfigurationError: a setting is out of its range, there are more hypotheses than evaluations, or (when run)
            the box does not fit the group.
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
        group, reference = posterior.group, posterior.reference
        self.check_group(group)
        box, center = self._box.matching(reference), population.elements[:, :1]
        x = uniform((posterior.batch, self.initial, group.dim), reference, generator)
        elements = group.retract(center, box * (2.0 * x - 1.0))
        energies = posterior.energies(elements)
        posterior.step()
        for _ in range(self.evaluations):
            # the kernel sees the unit cube, half as long as a box of one
            new = x[:, 0]
            if posterior.batch:  # BoTorch takes no empty batch
                new = propose(
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


@torch.enable_grad()  # the fit needs gradients, also where whoever asks for an inversion does not
def propose(
    x: Float[Tensor, "b n d"],
    y: Float[Tensor, "b n"],
    *,
    length_scale: float,
    fit: bool,
    generator: torch.Generator | None,
) -> Float[Tensor, "b d"]:
    """Propose the next point for each of b functions on the unit cube: the largest expected improvement on its maximum.

    The surrogates are b Gaussian processes with a squared exponential kernel of one length scale each and unit
    variance, for values of mean zero and variance one, as in Singhal et al. (2025). All are fitted in one run of
    L-BFGS, each from the start of highest likelihood. Adam raises the expected improvement, by its logarithm (Ament et
    al. 2023), from the best of random points and of points around the incumbent.

    Args:
        x: points in the unit cube.
        y: finite values.
        length_scale: length scale of the kernel, a start of the fit.
        fit: fit the length scales; otherwise they are as given.
        generator: the source of random points.

    Returns:
        Points ``[b, d]``.
    """
    x, y = x.double(), y.double()
    y = y - y.mean(1, keepdim=True)
    y = y / y.std(1, keepdim=True).clamp(min=torch.finfo(y.dtype).tiny ** 0.5)
    with warnings.catch_warnings():
        # a fit that stops early, or jitter on a matrix of points that nearly coincide, is no news here
        for category in (BotorchWarning, NumericalWarning, GPInputWarning):
            warnings.simplefilter("ignore", category)
        surrogate = _surrogate(x, y, length_scale, fit)
        improvement = LogExpectedImprovement(surrogate, best_f=y.amax(1, keepdim=True))
        start = _starting_points(x, y, generator)
        with torch.no_grad():
            order = improvement(start).topk(_NUM_ASCENTS, 0).indices
        points, values = gen_candidates_torch(
            torch.take_along_dim(start, order[..., None, None], 0),
            improvement,
            lower_bounds=0.0,
            upper_bounds=1.0,
            options=_ASCENT,
        )
    best = values.detach().argmax(0)[None, :, None, None]
    return torch.take_along_dim(points.detach(), best, 0)[0, :, 0]


def _surrogate(x: Tensor, y: Tensor, length_scale: float, fit: bool) -> SingleTaskGP:
    given = x.new_full((x.shape[0], 1, 1), length_scale)
    if not fit:
        return _gaussian_process(x, y, given).eval()
    starts = x.new_tensor([length_scale, *_LENGTH_SCALE_STARTS]).reshape(-1, 1, 1, 1).expand(-1, x.shape[0], -1, -1)
    number = starts.shape[0]
    several = _gaussian_process(x.expand(number, *x.shape), y.expand(number, *y.shape), starts)
    with torch.no_grad():
        likelihood = _likelihood(several)(several(*several.train_inputs), several.train_targets)
    best = likelihood.nan_to_num(nan=-torch.inf).argmax(0)
    model = _gaussian_process(x, y, torch.take_along_dim(starts, best[None, :, None, None], 0)[0])
    fit_gpytorch_mll_scipy(_likelihood(model), options={"maxiter": _FIT_ITERATIONS})
    return model.eval()


def _gaussian_process(x: Tensor, y: Tensor, length_scale: Tensor) -> SingleTaskGP:
    values = y.unsqueeze(-1)
    with x.device:
        model = SingleTaskGP(
            x,
            values,
            torch.full_like(values, _OBSERVATION_VARIANCE),
            covar_module=RBFKernel(batch_shape=x.shape[:-2]),
            mean_module=ZeroMean(),
            outcome_transform=None,
        )
    model.covar_module.lengthscale = length_scale
    return model.train()


def _likelihood(model: SingleTaskGP) -> ExactMarginalLogLikelihood:
    return ExactMarginalLogLikelihood(model.likelihood, model).train()


def _starting_points(x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
    """Random points, and points around the incumbents, ``[p, b, 1, d]``."""
    batch, _, dim = x.shape
    anywhere = uniform((batch, _RANDOM_STARTS, dim), x, generator)
    incumbent = torch.take_along_dim(x, y.argmax(1)[:, None, None], 1)
    reach = _NEAREST_START * torch.logspace(
        0, 1, _LOCAL_STARTS, _FARTHEST_START / _NEAREST_START, dtype=x.dtype, device=x.device
    )
    noise = normal((batch, _LOCAL_STARTS, dim), x, generator)
    near = incumbent + reach[:, None] * noise
    return rearrange(torch.cat([anywhere, near.clamp(0.0, 1.0)], 1), "b p d -> p b 1 d")
