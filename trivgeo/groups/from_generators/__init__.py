"""Lie groups from their infinitesimal generators, see `from_generators`."""

from trivgeo.groups.from_generators.action_map import GeneratedAction
from trivgeo.groups.from_generators.builder import from_generators
from trivgeo.groups.from_generators.flows import OdeSettings
from trivgeo.groups.from_generators.generated_group import GeneratedGroup

__all__ = ["GeneratedAction", "GeneratedGroup", "OdeSettings", "from_generators"]
