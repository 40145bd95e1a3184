"""Lie groups from their infinitesimal generators."""

from trivgeo.groups.generators.action import FlowSettings, GeneratedAction
from trivgeo.groups.generators.build import from_generators
from trivgeo.groups.generators.group import GeneratedGroup

__all__ = ["FlowSettings", "GeneratedAction", "GeneratedGroup", "from_generators"]
