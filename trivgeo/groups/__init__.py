"""Lie groups whose elements are plain tensors, and their actions on points."""

from trivgeo.groups.action import Action, PointAction
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.check_group import check_group
from trivgeo.groups.compilation import compiled
from trivgeo.groups.export import export_action
from trivgeo.groups.from_generators import GeneratedGroup, from_generators
from trivgeo.groups.group import LieGroup
from trivgeo.groups.inhomogeneous import SE, Affine, ExtendedSE
from trivgeo.groups.lorentz import Lorentz
from trivgeo.groups.matrix import GLPlus, MatrixGroup
from trivgeo.groups.nilpotent import Heisenberg, Nilpotent, Translation
from trivgeo.groups.orthogonal import SO
from trivgeo.groups.pde_symmetries import BurgersSymmetry, HeatSymmetry, KdVSymmetry
from trivgeo.groups.product import DirectProduct
from trivgeo.groups.projective import Projective
from trivgeo.groups.reflections import E, O
from trivgeo.groups.semidirect import SemidirectProduct
from trivgeo.groups.similarity import Similarity
from trivgeo.groups.special_linear import SL
from trivgeo.groups.torus import Torus
from trivgeo.groups.uncertain_pose import UncertainPose
from trivgeo.groups.unitary import SU, U

__all__ = [
    "SE",
    "SL",
    "SO",
    "SU",
    "Action",
    "Affine",
    "BurgersSymmetry",
    "DirectProduct",
    "E",
    "ExtendedSE",
    "GLPlus",
    "GeneratedGroup",
    "HeatSymmetry",
    "Heisenberg",
    "KdVSymmetry",
    "LieAlgebra",
    "LieGroup",
    "Lorentz",
    "MatrixGroup",
    "Nilpotent",
    "O",
    "PointAction",
    "Projective",
    "SemidirectProduct",
    "Similarity",
    "Torus",
    "Translation",
    "U",
    "UncertainPose",
    "check_group",
    "compiled",
    "export_action",
    "from_generators",
]
