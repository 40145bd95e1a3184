"""Learned scores of the transformation posterior, their backbones, training and files.

`trivgeo.inversion.learned.training` needs Lightning and is imported by itself.
"""

from trivgeo._signatures import check_calls
from trivgeo.inversion.learned.calibration import Calibration
from trivgeo.inversion.learned.distillation import consistency_loss
from trivgeo.inversion.learned.field_backbone import FieldBackbone
from trivgeo.inversion.learned.image_backbone import ImageBackbone
from trivgeo.inversion.learned.landmarks_backbone import LandmarksBackbone
from trivgeo.inversion.learned.level_features import LevelFeatures
from trivgeo.inversion.learned.noise_network import NoiseNetwork, backbone_for
from trivgeo.inversion.learned.operator_backbone import OperatorBackbone
from trivgeo.inversion.learned.points_backbone import PointsBackbone
from trivgeo.inversion.learned.score import LearnedScore

__all__ = [
    "Calibration",
    "FieldBackbone",
    "ImageBackbone",
    "LandmarksBackbone",
    "LearnedScore",
    "LevelFeatures",
    "NoiseNetwork",
    "OperatorBackbone",
    "PointsBackbone",
    "backbone_for",
    "consistency_loss",
]

check_calls(__name__, __all__)
