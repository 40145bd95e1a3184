"""Lie groups whose elements are plain tensors, and their actions on points."""

from trivgeo.groups.action import Action, PointAction
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.base import LieGroup
from trivgeo.groups.nilpotent import Heisenberg, NilpotentGroup, Translation
from trivgeo.groups.pde import BurgersSymmetry, HeatSymmetry
from trivgeo.groups.semidirect import Automorphism, LinearAutomorphism, PlaneAutomorphism, SemidirectProduct
from trivgeo.groups.special_linear import SL

__all__ = [
    "SL",
    "Action",
    "Automorphism",
    "BurgersSymmetry",
    "HeatSymmetry",
    "Heisenberg",
    "LieAlgebra",
    "LieGroup",
    "LinearAutomorphism",
    "NilpotentGroup",
    "PlaneAutomorphism",
    "PointAction",
    "SemidirectProduct",
    "Translation",
]
