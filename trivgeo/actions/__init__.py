"""Actions on data that are more than points."""

from trivgeo.actions.augment import augment
from trivgeo.actions.cloud import PointCloud
from trivgeo.actions.field import Field, FieldAction, Grid, resample
from trivgeo.actions.image import ImageWarp
from trivgeo.actions.operator_input import OperatorAction, OperatorInput, interpolate
from trivgeo.actions.reference import Referenced, WithReference
from trivgeo.actions.volume import Volume, itk_matrix

__all__ = [
    "Field",
    "FieldAction",
    "Grid",
    "ImageWarp",
    "OperatorAction",
    "OperatorInput",
    "PointCloud",
    "Referenced",
    "Volume",
    "WithReference",
    "augment",
    "interpolate",
    "itk_matrix",
    "resample",
]
