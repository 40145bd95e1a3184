"""The network of a training: one that suits the data, or a copy of one that was given."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trivgeo._devices import module_device, tree_device
from trivgeo.groups import Action
from trivgeo.inversion.law import Law, noise_between, num_noise_factors, spread_of
from trivgeo.inversion.learned.noise_network import NoiseNetwork, backbone_for
from trivgeo.inversion.learned.score import LearnedScore

__all__ = ["BackboneFactory"]

_WIDER = 1.25
"""Width of the noise, in units of the spread of the law."""


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

    def score(self, action: Action, law: Law, x: Any, seed: int) -> LearnedScore:
        """Return an untrained score, whose noise is a little wider than a law, on the device of the data.

        Args:
            action: on the data.
            law: of the transformations.
            x: some clean data.
            seed: of the draws of the law.
        """
        action = action.with_scale(_WIDER * spread_of(action.group, law, seed))
        backbone = self(action, x).to(tree_device(x))
        network = backbone if isinstance(backbone, NoiseNetwork) else None
        schedule, time = noise_between(NoiseNetwork.finest if network is None else network.finest, 1.0)
        return LearnedScore(
            action,
            schedule,
            backbone,
            noise_steps=num_noise_factors(action.group),
            lowest_time=time,
            augmentation=law,
            prepare=None if network is None else network.reduced,
        )
