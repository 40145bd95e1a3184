"""Lie groups from their infinitesimal generators."""

from trivgeo.groups.generators.build import from_generators
from trivgeo.groups.generators.group import GeneratedGroup

__all__ = ["GeneratedGroup", "from_generators"]
