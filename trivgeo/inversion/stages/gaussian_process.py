"""Bayesian optimisation of many problems at once with BoTorch; only this module imports it (``trivgeo[bayes]``)."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.exceptions.warnings import BotorchWarning
from botorch.generation.gen import gen_candidates_torch
from botorch.models import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_scipy
from einops import rearrange
from gpytorch.kernels import RBFKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.utils.warnings import GPInputWarning, NumericalWarning
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import normal, uniform

__all__ = ["propose"]

_NOISE = 1e-6
_STARTS = (0.1, 0.3, 1.0)
_FIT_ITERATIONS = 20
_RANDOM_POINTS, _NEAR_POINTS = 32, 16
_NEAREST, _FARTHEST = 1e-3, 0.3
_RESTARTS = 2
# a window longer than the run: no early stop, which would look at all problems together
_ASCENT: dict[str, Any] = {
    "optimizer_options": {"lr": 0.03},
    "stopping_criterion_options": {"maxiter": 15, "n_window": 16},
}


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
        length_scale: of the kernel, a start of the fit.
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
            order = improvement(start).topk(_RESTARTS, 0).indices
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
    starts = x.new_tensor([length_scale, *_STARTS]).reshape(-1, 1, 1, 1).expand(-1, x.shape[0], -1, -1)
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
            torch.full_like(values, _NOISE),
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
    anywhere = uniform((batch, _RANDOM_POINTS, dim), x, generator)
    incumbent = torch.take_along_dim(x, y.argmax(1)[:, None, None], 1)
    reach = _NEAREST * torch.logspace(0, 1, _NEAR_POINTS, _FARTHEST / _NEAREST, dtype=x.dtype, device=x.device)
    noise = normal((batch, _NEAR_POINTS, dim), x, generator)
    near = incumbent + reach[:, None] * noise
    return rearrange(torch.cat([anywhere, near.clamp(0.0, 1.0)], 1), "b p d -> p b 1 d")
