"""The action of transformations of space on clouds of points."""

from __future__ import annotations

from typing import Any, final

from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo.checks import check_tensor, check_type, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import Action, LieGroup


@checked
@final
class PointCloud(Action):
    """A transformation of R^n applied to clouds of points ``[*batch, m, n]``, in no order.

    One cloud is one datum: `is_valid` and `log_abs_det_jacobian` return one value for all points of a cloud.

    Args:
        group: a group with an action on points of one number n of coordinates: ``SE(3)``, ``SO(3)``,
            ``Similarity(3)``, ``Affine(2)``, ``GLPlus(3)``, ``Projective(2)``, ...

    Raises:
        ConfigurationError: the group does not act on points, or on points of several dimensions.

    Example:
        >>> action = PointCloud(Translation(2))
        >>> action(torch.tensor([1.0, 0.0]), torch.zeros(3, 2))[0]
        tensor([1., 0.])
    """

    def __init__(self, group: LieGroup) -> None:
        self.group = check_type("group", group, LieGroup)  # type: ignore[type-abstract]
        self.point_action = group.action()
        if len(self.point_action.point_dims) != 1:
            raise ConfigurationError(
                f"group: expected one that acts on points of one number of coordinates, got {group!r}, which acts on "
                f"points of {' or '.join(map(str, self.point_action.point_dims))}"
            )
        (self.point_dim,) = self.point_action.point_dims

    def __repr__(self) -> str:
        return f"PointCloud({self.group!r})"

    def __call__(self, g: Tensor, x: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*out m n"]:
        """The moved clouds; NaN at points where a local action is not defined.

        Raises:
            ShapeError: an element or a cloud has the wrong shape, or the batches do not broadcast.
        """
        return self.point_action(g, x)

    def is_valid(self, g: Tensor, x: Float[Tensor, "*batch m n"]) -> Bool[Tensor, "*out"]:
        """Return True where g maps every point of the cloud to a finite point."""
        return self.point_action.is_valid(g, x).all(-1)

    def log_abs_det_jacobian(self, g: Tensor, x: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*out"]:
        r"""Return :math:`\log |\det \partial (g.x) / \partial x|`, the sum over the points of a cloud."""
        return self.point_action.log_abs_det_jacobian(g, x)

    def batch_shape(self, x: Any) -> Any:
        return self.point_action.batch_shape(x)

    def check_data(self, x: Any, name: str = "x") -> None:
        self.point_action.check_data(x, name)
        if (x := check_tensor(name, x)).shape[-2] == 0:
            raise ShapeError(f"{name}: expected at least one point, got {list(x.shape)}")
