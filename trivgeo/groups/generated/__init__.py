"""Lie groups from their infinitesimal generators, see `from_generators`."""

from trivgeo.groups.generated.action import GeneratedAction
from trivgeo.groups.generated.builder import from_generators
from trivgeo.groups.generated.group import GeneratedGroup
from trivgeo.groups.generated.vector_flow import OdeSettings

__all__ = ["GeneratedAction", "GeneratedGroup", "OdeSettings", "from_generators"]
