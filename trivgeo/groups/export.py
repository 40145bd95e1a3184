"""Groups as programs that run without this package."""

from __future__ import annotations

import torch
from torch import Tensor

from trivgeo._torch import dynamo_errors
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError
from trivgeo.groups.action import PointAction

_NUM_EXAMPLES = 3  # elements and points of the traced call: any number except one, which torch specializes


class _Moved(torch.nn.Module):
    """Points moved by exponentials, as a module, which torch exports."""

    def __init__(self, action: PointAction) -> None:
        super().__init__()
        self._action = action

    def forward(self, v: Tensor, points: Tensor) -> Tensor:
        """The points ``exp(v).x``."""
        return self._action(self._action.group.exp(v), points)


@checked
def export_action(action: PointAction, dtype: torch.dtype = torch.float64) -> torch.export.ExportedProgram:
    """Return a `torch.export` program that moves points by exp(v), and needs only torch where it is loaded.

    It takes algebra coordinates v ``[batch, dim]`` and points ``[batch, p, n]`` on the CPU, any batch and any p, and
    returns points that are NaN where the action is not defined. Other elements are products of exponentials: apply one
    after the other.

    Args:
        action: action such as ``find_symmetries("u_t = u_xx").group().action()``; if its points may have several
            numbers of coordinates, the program takes the first.
        dtype: dtype of v and the points.

    Raises:
        ConfigurationError: the action cannot be traced, as it decides by the values of its arguments what to do, such
            as how many steps of an integration to take.

    Example:
        ``torch.export.save(export_action(action), "group.pt2")``, and elsewhere
        ``moved = torch.export.load("group.pt2").module()(v, points)``.
    """
    v = torch.zeros(_NUM_EXAMPLES, action.group.dim, dtype=dtype)
    points = torch.full((_NUM_EXAMPLES, _NUM_EXAMPLES, action.point_dims[0]), 0.5, dtype=dtype)
    batch, count = torch.export.Dim("batch"), torch.export.Dim("points")
    shapes = ({0: batch}, {0: batch, 1: count})
    try:
        with torch.no_grad():
            program = torch.export.export(_Moved(action), (v, points), dynamic_shapes=shapes, strict=False)
    except dynamo_errors() as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"action: expected one that torch.export can trace, got {action}: {reason}") from error
    for name, constant in program.constants.items():
        if isinstance(constant, Tensor):
            # torch does not save transposed tensors well
            program.constants[name] = constant.clone(memory_format=torch.contiguous_format)
    return program
