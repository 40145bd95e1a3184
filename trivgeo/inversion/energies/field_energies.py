"""Energies of fields: the grid of the training set, and the spectrum or the components of its initial conditions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo._numerics import Constant
from trivgeo.actions import Field, Grid
from trivgeo.checks import check_positive, checked
from trivgeo.errors import DomainError, ShapeError
from trivgeo.inversion.energies.base import DataEnergy


@checked
class FieldBox(DataEnergy):
    r"""The squared distance of the grid of a field to that of the training set.

    .. math:: E = \frac1s \sum_t |x_0 - \bar x_0|^2 + (t - \bar t)^2 + \sum_k n_k^2 |h_k - \bar h_k|^2,

    the differences of the first points, times and edges of the two boxes; the counterpart of `DomainDistance`.

    Args:
        grid: grid of the training set, of one field or of several that share it.

    Raises:
        DomainError: the fields have different grids.
    """

    def __init__(self, grid: Grid) -> None:
        origin, steps = grid.origin.flatten(0, -3) if grid.origin.ndim > 2 else grid.origin[None], grid.steps
        steps = steps.flatten(0, -4) if steps.ndim > 3 else steps[None]
        if not bool((origin == origin[:1]).all() and (steps == steps[:1]).all()):
            raise DomainError("grid: expected one that all fields of the training set share, got several")
        self._origin, self._steps = Constant(origin[0]), Constant(steps[0])

    def __call__(self, x: Field) -> Float[Tensor, " batch"]:
        """Return one energy for each field.

        Raises:
            ShapeError: the field has other times or axes.
        """
        origin, steps = self._origin.matching(x.values), self._steps.matching(x.values)
        if x.grid.origin.shape[1:] != origin.shape:
            raise ShapeError(f"x: expected a grid [b, {', '.join(map(str, origin.shape))}], got {x.grid.origin.shape}")
        counts = torch.tensor(x.counts, dtype=steps.dtype, device=steps.device)
        edges = (counts.unsqueeze(-1) * (x.grid.steps - steps)).square().sum((-1, -2))
        return ((x.grid.origin - origin).square().sum(-1) + edges).mean(-1)


@checked
class FieldSpectrum(DataEnergy):
    r"""The distance to the training grid, plus how unlikely the Fourier modes of the values are in the training set.

    .. math:: E = E_{box} + \frac{w}{2 N} \sum_k \frac{|\hat u_k - \bar u_k|^2}{S_k + \epsilon^2},

    with :math:`S_k` the variances of the N modes in the training set and :math:`\bar u_k` their means, which are zero
    but for k = 0 if its distribution is the same everywhere on a periodic box. A boost shows in k = 0, a scaling in
    all.

    Args:
        box: distance of the grids.
        samples: values of initial conditions of the training set, ``[m, c, s, *n]``.
        weight: w, positive.
        floor: :math:`\epsilon` relative to the largest standard deviation of a mode, positive.

    Raises:
        ShapeError: fewer than two samples.
        ConfigurationError: a number is not positive.
    """

    def __init__(
        self, box: FieldBox, samples: Float[Tensor, "m c s ..."], weight: float = 1.0, floor: float = 0.01
    ) -> None:
        if samples.ndim < 4 or len(samples) < 2:
            raise ShapeError(f"samples: expected at least 2 fields [m, c, s, *n], got {list(samples.shape)}")
        self.box = box
        modes = _modes(samples.double())
        mean = modes.mean(0)
        variance = (modes - mean).abs().square().mean(0)
        epsilon = check_positive("floor", floor) * float(variance.max().sqrt())
        at_zero = torch.zeros_like(variance)
        at_zero.flatten(2)[..., 0] = 1.0
        self._mean = Constant(torch.view_as_real(mean * at_zero))
        self._weights = Constant(check_positive("weight", weight) / (2 * variance.numel() * (variance + epsilon**2)))

    def __call__(self, x: Field) -> Float[Tensor, " batch"]:
        modes = _modes(x.values) - torch.view_as_complex(self._mean.matching(x.values))
        squares = modes.real.square() + modes.imag.square()
        return self.box(x) + (squares * self._weights.matching(x.values)).flatten(1).sum(-1)


@checked
class FieldComponents(DataEnergy):
    r"""The distance to the training grid, plus how unlikely the values are for a Gaussian with their mean and
    covariance.

    .. math:: E = E_{box} + \frac{w}{2 N} \bigl(|z|^2 + |r|^2 / \epsilon^2\bigr),

    with the N values split into the whitened coordinates z of the principal components whose standard deviation is
    above :math:`\epsilon`, and the rest r; the counterpart of `GaussianInitialEnergy`. It sees where things are and how
    they are turned, `FieldSpectrum` does not: it is for fields whose distribution is not the same everywhere.

    Args:
        samples: initial conditions of the training set, on one grid, with one batch dimension.
        weight: w, positive.
        floor: :math:`\epsilon` relative to the size of the samples, positive, see `GaussianInitialEnergy`.

    Raises:
        ShapeError: fewer than two samples.
        DomainError: they have different grids.
        ConfigurationError: a number is not positive.
    """

    def __init__(self, samples: Field, weight: float = 1.0, floor: float = 0.01) -> None:
        if samples.values.ndim < 4 or len(samples.values) < 2:
            raise ShapeError(f"samples: expected at least 2 fields [m, c, s, *n], got {list(samples.values.shape)}")
        self.box = FieldBox(samples.grid)
        values = samples.values.double().flatten(1)
        mean = values.mean(0)
        epsilon = check_positive("floor", floor) * float(values.square().mean().sqrt())
        # fewer samples than values: there are as many components at most
        _, deviations, vectors = torch.linalg.svd(values - mean, full_matrices=False)
        deviations = deviations / (len(values) - 1) ** 0.5
        kept = deviations > epsilon
        factor = (check_positive("weight", weight) / (2 * values.shape[-1])) ** 0.5
        self._rest = factor / epsilon
        self._mean = Constant(mean)
        self._components = Constant(vectors[kept].mT)
        # |r|^2 = |u|^2 - |coordinates|^2: the weight of the coordinates is that of |z|^2 less that of |r|^2
        self._weights = Constant((factor / deviations[kept]).square() - self._rest**2)

    def __call__(self, x: Field) -> Float[Tensor, " batch"]:
        """Return one energy for each field.

        Raises:
            ShapeError: the field has other numbers of points, or see `FieldBox`.
        """
        values = x.values.flatten(1)
        mean = self._mean.matching(values)
        if values.shape[1:] != mean.shape:
            raise ShapeError(f"x: expected fields of {mean.numel()} values, got {list(x.values.shape)}")
        centred = values - mean
        coordinates = matmul(centred, self._components.matching(values))
        whitened = (coordinates.square() * self._weights.matching(values)).sum(-1)
        return self.box(x) + self._rest**2 * centred.square().sum(-1) + whitened


def _modes(values: Tensor) -> Tensor:
    """Return the Fourier modes of ``[b, c, s, *n]``."""
    return torch.fft.rfftn(values, dim=tuple(range(3, values.ndim)), norm="forward")
