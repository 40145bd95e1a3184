"""Energies from the features of pretrained networks: what a layer reads or gives, scored by a small module."""

from trivgeo._signatures import check_calls
from trivgeo.inversion.features.network_features import NetworkFeatures
from trivgeo.inversion.features.scores import ClassCosine, FeatureScore, MahalanobisDistance, NeighbourDistance
from trivgeo.inversion.features.upright_head import HeadValidation, UprightHead

__all__ = [
    "ClassCosine",
    "FeatureScore",
    "HeadValidation",
    "MahalanobisDistance",
    "NeighbourDistance",
    "NetworkFeatures",
    "UprightHead",
]

check_calls(__name__, __all__)
