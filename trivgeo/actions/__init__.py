"""Actions on data that are more than points."""

from trivgeo._signatures import check_calls
from trivgeo.actions.augment import augment
from trivgeo.actions.cloud import PointCloud
from trivgeo.actions.field import Field, Grid, resample
from trivgeo.actions.field_action import FieldAction
from trivgeo.actions.image import ImageWarp
from trivgeo.actions.operator import OperatorAction, OperatorInput, interpolate

__all__ = [
    "Field",
    "FieldAction",
    "Grid",
    "ImageWarp",
    "OperatorAction",
    "OperatorInput",
    "PointCloud",
    "augment",
    "interpolate",
    "resample",
]

check_calls(__name__, __all__)
