"""Actions on data that are more than points."""

from trivgeo.actions.cloud import PointCloud
from trivgeo.actions.image import ImageWarp
from trivgeo.actions.operator import OperatorAction, OperatorInput, interpolate

__all__ = ["ImageWarp", "OperatorAction", "OperatorInput", "PointCloud", "interpolate"]
