"""Lie groups from their infinitesimal generators."""

from trivgeo.groups.generators.action import GeneratedAction
from trivgeo.groups.generators.build import from_generators
from trivgeo.groups.generators.group import GeneratedGroup

__all__ = ["GeneratedAction", "GeneratedGroup", "from_generators"]
