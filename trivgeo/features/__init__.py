"""Energies from the features of pretrained networks: what a layer reads or gives, scored by a small module."""

from trivgeo.features.feature_energy import FeatureEnergy
from trivgeo.features.feature_scores import ClassCosine, FeatureScore, MahalanobisDistance, NeighbourDistance
from trivgeo.features.learned_energy import LearnedEnergy
from trivgeo.features.network_features import NetworkFeatures
from trivgeo.features.upright_head import HeadValidation, UprightHead

__all__ = [
    "ClassCosine",
    "FeatureEnergy",
    "FeatureScore",
    "HeadValidation",
    "LearnedEnergy",
    "MahalanobisDistance",
    "NeighbourDistance",
    "NetworkFeatures",
    "UprightHead",
]
