"""What a registration found, and how far it is to be trusted."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._text import Described
from trivgeo.actions import Volume
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Action, LieGroup
from trivgeo.inversion.result import PosteriorModes
from trivgeo.inversion.transformations import Transformations
from trivgeo.verdict import Judged, Verdict

_MIN_RIVAL_WEIGHT = 0.05  # weight of a second mode, in units of the first, from which on a registration is ambiguous
_MIN_AGREEMENT = 0.5  # share of pixels or points that must agree
_MAX_DECREMENT_IN_STDS = 0.25  # distance from the minimum of the energy at which a descent may end
# length of a step to the minimum, in units of the basis on conditioned data, that is too short to matter: a hundredth
# of a pixel in 512, where standard deviations may be less
MIN_STEP = 3e-5
_MAX_STD = 0.5  # standard deviation beyond which an element is undetermined, in units of the basis on conditioned data
_CURVATURE_ROUNDING_UNITS = 1024.0  # curvature that is rounding, in last digits of the curvature along the basis
UNKNOWN_STD = 1e3  # standard deviation in a direction of no curvature, in units of the basis on conditioned data
_RESIDUAL_ROUNDING_UNITS = 1024.0  # standard deviation of residuals that are all rounding, in last digits of one
NORMAL_MEDIAN = 0.6744897501960817  # median of the size of a standard normal number


@dataclass(frozen=True, repr=False)
class Registration(Described, Judged):
    r"""The transformation g that takes ``moving`` to ``fixed``: ``action(r.element, moving)`` lies on ``fixed``.

    Attributes:
        action: action of the group on the data.
        element: g, ``[*element_shape]``; NaN if none was `found`.
        covariance: covariance of v in :math:`g \exp(v)`, in the basis of the group, ``[n, n]``: the covariance of the
            estimate, whose errors are about normal, from the residuals at the end. In a direction that the data leave
            free the standard deviation is about 1000 units of the basis.
        modes: elements that fit about as well, g among them, for one datum, with their weights; g alone where the data
            do not determine it.
        residual: root mean square of the residuals that agree, in units of the data.
        found: whether there is an element of finite energy.
        verdict: whether the registration passes its own checks.
        overlap: estimated shares of the points of ``moving`` and of ``fixed`` that have a partner in the other cloud,
            ``[2]``; ``None`` for photographs.
        mask: pixels of the fixed image that the moved one shows, too, ``[h, w]`` or ``[d, h, w]``; ``None`` for clouds.
        frames: maps from pixels (x, y, 1) of both images to coordinates; ``None`` for clouds.
    """

    action: Action
    element: Tensor
    covariance: Float[Tensor, "n n"]
    modes: PosteriorModes
    residual: float
    found: bool
    verdict: Verdict
    overlap: Float[Tensor, "2"] | None = None
    mask: Bool[Tensor, "*size"] | None = None
    frames: tuple[Float[Tensor, "k k"], Float[Tensor, "k k"]] | None = None

    def to_pixels(self) -> Float[Tensor, "k k"]:
        """Return the homography from pixels (x, y, 1) of the moving photograph to those of the fixed one, ``[3, 3]``.

        That of ``cv2.warpPerspective(moving, matrix, (width, height))``, also for photographs of two sizes; of volumes
        from voxels (i, j, k, 1), ``[4, 4]``.

        Raises:
            ConfigurationError: clouds have no pixels, or the elements of the group are no homographies.
        """
        if self.frames is None:
            raise ConfigurationError(f"expected a registration of photographs, got one of {self.action!r}")
        moving, fixed = self.frames
        matrix = torch.linalg.inv(fixed) @ self.group.action().homogeneous(self.element).double() @ moving
        return matrix / matrix[-1, -1]

    def plot(self, moving: Tensor | Volume, fixed: Tensor | Volume) -> Any:
        """Return a figure of both data and of the one on the other (needs matplotlib).

        Photographs and the middle slices of volumes are laid on each other as a checkerboard, clouds are drawn before
        and after. The title says whether the registration is trusted, and how far points of the moving data may be off:
        the root mean square of one standard deviation, in pixels, millimetres, or units of the points.

        Args:
            moving: what was moved, as in `register`.
            fixed: to what it was moved.

        Raises:
            ConfigurationError: the elements of the group are no homographies, or Matplotlib is missing.
        """
        from trivgeo.registration.pictures import draw_clouds, draw_grids, standard_deviation

        data = [x.data if isinstance(x, Volume) else torch.as_tensor(x) for x in (moving, fixed)]
        if self.frames is None:
            points, scale, unit = data[0].to(self.element), 1.0, ""
        else:
            size = data[0].shape[:0:-1]
            corners = torch.cartesian_prod(*(torch.tensor([0.0, n - 1.0], dtype=torch.float64) for n in size))
            frame, other = (frame[:-1].double().cpu() for frame in self.frames)
            points = corners @ frame[:, :-1].T + frame[:, -1]
            scale = (
                1.0 if isinstance(moving, Volume) else float(torch.linalg.det(other[:, :-1]).abs() ** (1 / len(size)))
            )
            unit = " mm" if isinstance(moving, Volume) else " pixels" if len(size) == 2 else " voxels"
        std = standard_deviation(self.group.action(), self.element.cpu(), self.covariance.cpu(), points.cpu()) / scale
        title = f"{'trusted' if self.trusted else 'not trusted'}, points ± {std:.2g}{unit}"
        if self.frames is None:
            return draw_clouds(points, self.action(self.element, points), data[1], title)
        return draw_grids(data[0], data[1], self.to_pixels().cpu(), title)

    @property
    def group(self) -> LieGroup:
        """The group of the element."""
        return self.action.group

    def __repr__(self) -> str:
        return f"Registration(of {self.group!r}; residual {self.residual:.3g}; {self.verdict})"


Found = TypeVar("Found")


@dataclass(eq=False)
class RegistrationMethod(ABC, Generic[Found]):
    """A way to find the transformation between two data whose shapes were checked: a search, then checks.

    Args:
        moving: the data that are moved, ``[c, h, w]`` or ``[m, n]``.
        fixed: the data to which they are moved.
        transformations: function (count, generator) to elements from which searches start, see `register`.
    """

    moving: Tensor
    fixed: Tensor
    group: LieGroup
    transformations: Transformations | None
    num_starts: int
    generator: torch.Generator

    @abstractmethod
    def searched(self) -> Iterable[Found]:
        """Return ends of descents, the least costly search first: further ones where what was found is not trusted."""

    @abstractmethod
    def judged(self, found: Found) -> Registration:
        """Return the registration after the last steps from what was ``found``, with checks, in units of the data."""

    def registered(self) -> Registration:
        """Return the first registration that is trusted; else the one that shows most of the fixed image."""
        met = []
        for found in self.searched():
            met.append(judged := self.judged(found))
            if judged.trusted:
                return judged
        return max(met, key=lambda r: 0.0 if r.mask is None else float(r.mask.float().mean()))


def robust_std(residuals: Float[Tensor, "q n"], part: Float[Tensor, " q"] | None = None) -> float:
    """Return the standard deviation of normal residuals, estimated by the median of their lengths.

    Rows that are not finite, or zero in ``part``, are left out.
    """
    square = residuals.square().sum(-1)
    known = torch.isfinite(square)
    square = square[known if part is None else known & (part > 0)]
    # the median of |r|^2 / n is about that of one component for n = 1, and 1 for many
    n = residuals.shape[-1]
    middle = NORMAL_MEDIAN**2 if n == 1 else (1 - 2 / (9 * n)) ** 3
    return math.sqrt(float(square.median()) / (n * middle)) if len(square) else math.nan


def rounding_std(dtype: torch.dtype) -> float:
    """Return the standard deviation of residuals of data of a dtype that are all rounding."""
    return _RESIDUAL_ROUNDING_UNITS * torch.finfo(dtype).eps


def undetermined(covariance: Float[Tensor, "n n"], free: Float[Tensor, "m n"] | None = None) -> tuple[str, ...]:
    """Return why the data do not determine an element, if they do not.

    Args:
        free: directions in which the data say nothing.
    """
    if free is not None and len(free):
        number, direction = len(free), free[0] / free[0].norm()
        said = "in any direction" if number == free.shape[1] else f"in {number} of {free.shape[1]} directions"
        numbers = ", ".join(f"{float(part):.2f}" for part in direction)
        return (f"the data do not determine the transformation {said}, such as ({numbers}) in the basis",)
    if not _is_determined(covariance):
        spread = _largest_std(covariance)
        return (f"standard deviation {spread:.2g} in some direction: the data do not determine the transformation",)
    return ()


def modes_at(elements: Tensor, weights: Float[Tensor, " k"]) -> PosteriorModes:
    """Return elements ``[k, *element_shape]`` as modes, the heaviest first; those that are NaN have no weight."""
    found = torch.isfinite(elements).flatten(1).all(-1)
    weight = torch.where(found, weights, 0.0)
    weight = (weight / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny))[None]
    labels = torch.where(found, torch.arange(len(found), device=found.device), -1)[None]
    return PosteriorModes(elements[None], weight, labels, torch.full_like(weight, math.nan))


def scaled_eigh(
    curvature: Float[Tensor, "n n"],
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n n"], Bool[Tensor, " n"]]:
    """Return eigenvalues of a curvature whose diagonal is scaled to one, its directions as columns, in which it is
    diagonal with these, and a mask of those that are not rounding.
    """
    digits = torch.finfo(curvature.dtype).eps
    diagonal = curvature.diagonal()
    root = (diagonal.clamp(min=0.0) + digits * diagonal.amax() + digits**2).sqrt()
    values, vectors = torch.linalg.eigh(curvature / root / root.unsqueeze(-1))
    # residuals without noise would make any direction certain
    return values, vectors / root.unsqueeze(-1), values > _CURVATURE_ROUNDING_UNITS * digits


def _is_determined(covariance: Float[Tensor, "n n"]) -> bool:
    return _largest_std(covariance) < _MAX_STD


def _largest_std(covariance: Float[Tensor, "n n"]) -> float:
    return float(torch.linalg.eigvalsh(covariance)[-1].clamp(min=0.0).sqrt())


def doubts(
    covariance: Float[Tensor, "n n"],
    decrement: float,
    agreement: float,
    free: Float[Tensor, "m n"] | None = None,
) -> tuple[str, ...]:
    """Return why an element is not to be trusted by itself, whatever others fit."""
    said = []
    if not agreement >= _MIN_AGREEMENT:
        said.append(f"{agreement:.0%} of the residuals agree: less than {_MIN_AGREEMENT:.0%}")
    said += undetermined(covariance, free)
    if not decrement < _MAX_DECREMENT_IN_STDS:
        said.append(f"{decrement:.2g} standard deviations from the minimum: the descent has not ended")
    return tuple(said)


def rivals(modes: PosteriorModes) -> tuple[str, ...]:
    """Return what is to be said of further modes that are about as good as the first."""
    if modes.weights.shape[1] < 2 or not float(modes.weights[0, 1] / modes.weights[0, 0]) > _MIN_RIVAL_WEIGHT:
        return ()
    return (f"{int(modes.num_modes[0])} modes, a second one of weight {float(modes.weights[0, 1]):.2f}",)


def nothing(action: Action, elements: Tensor) -> Registration:
    """Return the registration where no element has a finite energy."""
    lost = torch.full_like(elements[0], math.nan)
    covariance = elements.new_full((action.group.dim, action.group.dim), math.nan)
    verdict = Verdict((f"none of {len(elements)} elements has a finite energy",))
    return Registration(action, lost, covariance, modes_at(lost[None], elements.new_ones(1)), math.nan, False, verdict)
