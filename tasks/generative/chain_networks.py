"""A network of chains of relative frames: convolutions along the chain on distances between atoms of neighbours."""

import math

import torch
from torch import Tensor, nn

from trivgeo.checks import check_count

_NUM_LEVEL_WAVES = 16
_LEVEL_OFFSET = 0.02  # added to the level that divides predicted displacements, so that velocities stay finite
_LENGTH_UNIT = 2.0  # unit of distances between atoms, in angstroms
_LENGTH_FREQUENCIES = (1.0, 2.0, 4.0, 8.0)
_BLOCK_DILATIONS = (1, 2, 4, 1)
_FRAME_ENTRIES = 12  # entries of an element of SE(3)


class ConvolutionBlock(nn.Module):
    """A residual block of a convolution along the chain and a layer for each frame, with an embedding of the level.

    Args:
        width: width of its input and output.
        dilation: dilation of the convolution.
    """

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mixing = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.level, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, hidden: Tensor, embedded: Tensor, present: Tensor) -> Tensor:
        """Output of the block.

        Args:
            hidden: input of the block, `[b, n, width]`.
            embedded: embedding of the level, `[b, 1, width]`.
            present: one for frames that are present, zero for others, `[b, n, 1]`.
        """
        mixed = self.mixing((self.norm(hidden) * present).mT).mT
        return hidden + self.outer(nn.functional.silu(mixed + self.level(embedded)))


class ChainNetwork(nn.Module):
    r"""Velocities of relative frames of a chain, for `GroupDiffusion` on `SE(3) ** n` with masks.

    A frame sees the vectors between the atoms of its residue and those of the residue before, and their lengths, which
    bonds and angles fix. The prediction for each frame is a free vector, a combination of the gradients of these
    lengths, and the gradient of a linear function of the entries of the frame; all this again over the level.

    Args:
        residue: N, CA and C of a residue in its frame, `[3, 3]`.
        width: width of the layers.
    """

    def __init__(self, residue: Tensor, width: int = 128) -> None:
        super().__init__()
        check_count("width", width)
        self.register_buffer("atoms", residue.float())
        self.atoms: Tensor
        pairs = len(residue) ** 2
        size = _FRAME_ENTRIES + 3 * pairs + (1 + 2 * len(_LENGTH_FREQUENCIES)) * pairs + 1
        self.first = nn.Linear(size, width)
        self.level = nn.Sequential(nn.Linear(2 * _NUM_LEVEL_WAVES + 2, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(ConvolutionBlock(width, dilation) for dilation in _BLOCK_DILATIONS)
        self.norm = nn.LayerNorm(width)
        self.outputs = 6 + pairs + _FRAME_ENTRIES
        self.last = nn.Linear(width, 2 * self.outputs)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, g: Tensor, t: Tensor, features: None, mask: Tensor) -> Tensor:
        """Left-trivialized velocities `[*batch, 6 n]`.

        Args:
            g: chains of relative frames, `[*batch, 12 n]`.
            t: levels `[*batch]`.
            features: no conditions.
            mask: frames that are present, `[*batch, n]`.
        """
        batch = t.shape
        g, t, mask = g.reshape(-1, *g.shape[-1:]), t.reshape(-1), mask.reshape(-1, *mask.shape[-1:])
        frames = g.unflatten(-1, (-1, 3, 4))
        rotation, shift = frames[..., :3], frames[..., 3]
        # atoms of this residue and of the one before, both in the frame of this one
        before = (self.atoms - shift.unsqueeze(-2)) @ rotation
        between = (self.atoms.unsqueeze(-2) - before.unsqueeze(-3)).flatten(-3, -2)
        lengths = (between.square().sum(-1) + 1e-4).sqrt()
        phase = lengths.unsqueeze(-1) * (lengths.new_tensor(_LENGTH_FREQUENCIES) / _LENGTH_UNIT)
        waves = torch.cat([phase.sin(), phase.cos()], -1).flatten(-2)
        present = mask.to(g).unsqueeze(-1)
        plain = [rotation.flatten(-2), shift / _LENGTH_UNIT, between.flatten(-2) / _LENGTH_UNIT, lengths / _LENGTH_UNIT]
        hidden = self.first(torch.cat([*plain, waves, present], -1))
        time = t[:, None, None]
        order = math.pi * torch.arange(1, _NUM_LEVEL_WAVES + 1, dtype=t.dtype, device=t.device)
        wave = order * time
        embedded = self.level(torch.cat([wave.sin(), wave.cos(), time, (time + _LEVEL_OFFSET).log()], -1))
        for block in self.blocks:
            hidden = block(hidden, embedded, present)
        found = self.last(nn.functional.silu(self.norm(hidden)))
        velocity, displacement = found.split(self.outputs, -1)
        free, of_lengths, of_entries = (velocity + displacement / (time + _LEVEL_OFFSET)).split(
            [6, lengths.shape[-1], _FRAME_ENTRIES], -1
        )
        direction = between / lengths.unsqueeze(-1) * of_lengths.unsqueeze(-1)
        lever = self.atoms.repeat_interleave(len(self.atoms), 0).expand_as(direction)
        entries = of_entries.unflatten(-1, (3, 4))
        turned = rotation.mT @ entries  # the gradient of <Y, g> for g exp(v)
        skew = turned[..., :3] - turned[..., :3].mT
        turn = torch.stack([skew[..., 2, 1], skew[..., 0, 2], skew[..., 1, 0]], -1)
        rotational = torch.linalg.cross(lever, direction).sum(-2) + turn
        translational = direction.sum(-2) + turned[..., 3]
        return (free + torch.cat([rotational, translational], -1)).flatten(-2).reshape(*batch, -1)
