"""Lie groups from their infinitesimal generators."""

from trivgeo.groups.generated.action import GeneratedAction, OdeSettings
from trivgeo.groups.generated.builder import from_generators
from trivgeo.groups.generated.group import GeneratedGroup

__all__ = ["GeneratedAction", "GeneratedGroup", "OdeSettings", "from_generators"]
