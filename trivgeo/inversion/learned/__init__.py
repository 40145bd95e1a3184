"""Learned scores of the transformation posterior, their backbones, training and files.

`trivgeo.inversion.learned.score_training` needs Lightning and is imported by itself.
"""

from trivgeo.inversion.learned.backbone import LevelFeatures, NoiseNetwork, backbone_for
from trivgeo.inversion.learned.calibration import Calibration
from trivgeo.inversion.learned.field_backbone import FieldBackbone
from trivgeo.inversion.learned.image_backbone import ImageBackbone
from trivgeo.inversion.learned.operator_backbone import OperatorBackbone
from trivgeo.inversion.learned.points_backbone import LandmarksBackbone, PointsBackbone
from trivgeo.inversion.learned.score import LearnedScore, consistency_loss

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
