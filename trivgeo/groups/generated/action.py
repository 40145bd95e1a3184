"""The local action of a generated group on points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._numerics import in_single
from trivgeo.groups.action import JetAction
from trivgeo.groups.base import LieGroup
from trivgeo.groups.generated.motion import Motion

__all__ = ["GeneratedAction"]


@final
class GeneratedAction(JetAction):
    r"""The local action of a generated group: its one-parameter groups are the flows of the generators.

    Points are ``[*batch, p, m]``, or lack trailing coordinates that the motion of the others does not depend on (jets
    (x, t, u), or (x, t) alone). Wherever both sides have a value, :math:`\exp(v).x` is the flow of v and
    :math:`(g h).x = g.(h.x)`. Each coordinate is computed in one of three ways, which `flows` names:

    - In closed form. All coordinates, if all fields are linear, affine, projective (:math:`a + B x + (c \cdot x) x`) or
      conformal for some quadratic form; else those coordinates that move so independently, such as (x, t) of the heat
      equation. Over these, coordinates with polynomial fields that belong, themselves or by their logarithm, to a
      finite-dimensional space of functions which elements move linearly: the fibre of most linear equations, Burgers,
      Schroedinger, Kolmogorov. And coordinates that move affinely, :math:`A(x) u + b(x)`, if fields of the group shift
      each x, and u by a constant.
    - By quadrature: coordinates u whose fields are affine in them with commuting A, over others that are solved.
    - Integrated: the others. Where a point is determined by the fields that vanish at it, Newton's method corrects the
      end of the flow to the last digits.

    Quadratures and integrated flows are followed factor by factor through the element. Coordinates of SymPy expressions
    that would be integrated are straightened first where that is possible: S log S of Black-Scholes moves log S
    affinely.

    A point has no image, NaN, where a flow runs off to infinity or its error estimate exceeds the tolerance. If places
    have several names, the action is local for another reason: a triangle of translations around the origin adds a full
    turn to the angle of polar coordinates, and so do symmetries of u'' + u = 0 to t. Then elements move points along
    their own one-parameter group, points that move by a third of the step between two names or farther have no image,
    and `LieGroup.exp` is NaN for vectors that turn by half a turn or more, which a matrix cannot tell from others.

    Args:
        group: the group.
        motion: how its elements move points.
    """

    dual_elements: ClassVar[bool] = False

    def __init__(self, group: LieGroup, motion: Motion) -> None:
        super().__init__(group, motion.space.point_dims)
        self._motion = motion

    @property
    def base_is_projective(self) -> bool:
        """True if points are jets (x, t, u) whose (x, t) was found to move projectively, independently of u."""
        return self._motion.base_is_projective

    @property
    def flows(self) -> Mapping[str, str]:
        """Method by which each coordinate of a flow is found, by name.

        ``"closed form"``: exact. ``"quadrature"``: from one integral along closed forms, exact to rounding but near
        the edge of the domain. ``"integrated"``: by steps of controlled length, whose end is corrected where the fields
        that vanish at a point determine it. ``"given"``: by the user.
        """
        return dict(zip(self._motion.space.names, self._motion.methods, strict=True))

    def flow_error(self, g: Tensor, x: Float[Tensor, "*batch p n"]) -> Float[Tensor, "*out p"]:
        """Return the estimated error of each image point, relative to one plus its size, ``[*out, p]``.

        The error adds up those of the flows of the factors of g. Closed forms count rounding, or zero. NaN where there
        is no image: also where the error of a quadrature or of one step exceeds ``tolerance``.

        Args:
            g: elements ``[*batch, *element_shape]``.
            x: points ``[*batch, p, n]``.
        """
        return in_single(self._error, *self._lift(g, x))

    def _error(self, g: Tensor, x: Tensor) -> Tensor:
        image, error = self._motion.move(g, x)
        return torch.where(torch.isfinite(image).all(-1), error, math.nan)

    def _denominator(self, g: Tensor, x: Tensor) -> Tensor | None:
        return self._motion.denominator(g, x)

    def _image(self, g: Tensor, x: Tensor) -> Tensor:
        return self._transform(g, x)  # NaN where it is not defined

    def _transform(self, g: Tensor, x: Tensor) -> Tensor:
        return self._motion.move(g, x)[0]
