"""The network of a training: one that suits the data, or a copy of one that was given."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trivgeo._devices import module_device
from trivgeo.groups import Action
from trivgeo.inversion.learned.noise_network import backbone_for

__all__ = ["BackboneFactory"]


@dataclass(frozen=True)
class BackboneFactory:
    """Makes the network of a training.

    Attributes:
        template: the network to copy; ``None`` for the one that suits action and data, see `backbone_for`.
    """

    template: nn.Module | None

    @property
    def device(self) -> torch.device | None:
        """The device of a template that is not on the CPU."""
        device = module_device(self.template)
        return None if device is None or device.type == "cpu" else device

    def __call__(self, action: Action, x: Any) -> nn.Module:
        """Return an untrained network, or a copy of the template whose parameters are not constant."""
        if self.template is None:
            return backbone_for(action, x)
        backbone = copy.deepcopy(self.template)
        if not any(parameter.requires_grad for parameter in backbone.parameters()):
            backbone.requires_grad_(True).train()  # the template is the network of another, trained inverter
        return backbone
