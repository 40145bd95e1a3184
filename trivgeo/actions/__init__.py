"""Actions on data that are more than points."""

from trivgeo.actions.operator import OperatorAction, OperatorInput

__all__ = ["OperatorAction", "OperatorInput"]
