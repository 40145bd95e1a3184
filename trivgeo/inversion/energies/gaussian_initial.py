"""The energy of a Gaussian law of the initial conditions of a training set."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import Constant
from trivgeo.actions import OperatorAction, OperatorInput, interpolate
from trivgeo.checks import check_positive
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Action
from trivgeo.inversion.energies.base import DataEnergy
from trivgeo.inversion.energies.domain_distance import DomainDistance

__all__ = ["GaussianInitialEnergy"]


class GaussianInitialEnergy(DataEnergy):
    r"""The distance to the training domain, plus how unlikely the initial condition is there; of one x and one u.

    .. math:: E = E_{box} + \frac{w}{2 m} \bigl(|z|^2 + |r|^2 / \epsilon^2\bigr),

    with u_0 at m sensors split into the whitened coordinates z of the principal components whose standard deviation is
    above :math:`\epsilon`, and the rest r: the negative log-likelihood of a Gaussian law with mean and covariance of
    the training set, the variance in all other directions raised to :math:`\epsilon^2`.

    The box alone finds a transformation because the query points are known to fill the training domain. Where they
    need not, give a box with ``fill=False``: the initial condition then says what the query points do not.

    Args:
        box: the distance of the points to their places.
        sensors: positions x, ``[m]``; initial conditions are brought there by `trivgeo.actions.interpolate`.
        samples: initial conditions of the training set at the sensors, ``[n, m]``.
        weight: w, positive.
        floor: :math:`\epsilon` relative to the root mean square of the samples, positive.

    Raises:
        ShapeError: samples and sensors do not fit, or fewer than two samples.
        ConfigurationError: a number is not positive.
    """

    def __init__(
        self,
        box: DomainDistance,
        sensors: Float[Tensor, " m"],
        samples: Float[Tensor, "n m"],
        weight: float = 1.0,
        floor: float = 0.01,
    ) -> None:
        if sensors.ndim != 1 or samples.ndim != 2 or samples.shape[-1] != len(sensors) or len(samples) < 2:
            raise ShapeError(
                f"samples: expected at least 2 initial conditions [n, {sensors.numel()}], got {list(samples.shape)}"
            )
        check_positive("floor", floor)
        self.box = box
        samples = samples.double()
        mean = samples.mean(0)
        centred = samples - mean
        epsilon = floor * float(samples.square().mean().sqrt())
        values, vectors = torch.linalg.eigh(centred.mT @ centred / (len(samples) - 1))
        deviations = values.clamp(min=epsilon**2).sqrt()
        factor = (check_positive("weight", weight) / (2 * len(sensors))) ** 0.5
        self._sensors = Constant(sensors)
        self._mean = Constant(mean)
        self._whitening = Constant(factor * vectors / deviations)

    def __call__(self, x: OperatorInput) -> Float[Tensor, " batch"]:
        """One energy for each problem."""
        u = interpolate(x.initial[..., 0], x.initial[..., 2], self._sensors.like(x.initial))
        coordinates = matmul(u - self._mean.like(u), self._whitening.like(u))
        return self.box(x) + coordinates.square().sum(-1)

    def prepare(self, action: Action, x: OperatorInput) -> OperatorInput:
        """Keep the convex hull of the query points.

        Raises:
            ConfigurationError: the action is not one on operator inputs.
            ShapeError: there are several x or u.
        """
        if (x.query.shape[-1], x.initial.shape[-1]) != (2, 3):
            raise ShapeError(f"x: expected jets (x, t, u) and points (x, t), got {[list(part.shape) for part in x]}")
        if not isinstance(action, OperatorAction):
            raise ConfigurationError(f"action: expected an OperatorAction, got {type(action).__name__}")
        return OperatorInput(x.initial, self.box.prepare(action, x).query)
