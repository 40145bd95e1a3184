"""How far a predictor is from commuting with a group."""

from jaxtyping import Float
from torch import Tensor

from trivgeo.groups import PointAction

from .domain import relative_l2


def equivariance_error(
    action: PointAction, g: Tensor, at_x: Float[Tensor, "b q m"], at_gx: Float[Tensor, "b q m"], unknowns: int = 1
) -> Float[Tensor, " b"]:
    """|f(g.x) - g.f(x)| / |f(g.x)| of a predictor f, for each datum, in the Euclidean norm over points and unknowns.

    Zero for an equivariant f. Where f is random, such as a sampler's, f(x) and f(g.x) are two draws; the error then
    holds their spread as well.

    Args:
        action: the action on jets (x, t, u).
        g: elements, `[b, *element_shape]`.
        at_x: f(x), jets at the query points of x.
        at_gx: f(g.x), jets at the images of those points.
        unknowns: number of unknowns u.
    """
    return relative_l2(*(jets[..., -unknowns:].flatten(1) for jets in (action(g, at_x), at_gx)))
