"""Learned scores: denoising and implicit score matching in trivialized form, and a network."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._autocast import matmul
from trivgeo._signatures import check_calls
from trivgeo.checks import check_count
from trivgeo.errors import DomainError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.sde.noise.schedule import Schedule, Time, check_time
from trivgeo.sde.noise.target import noise_with_target
from trivgeo.sde.scores.base import check_drift

__all__ = ["ScoreNetwork", "denoising_loss", "implicit_loss"]


def denoising_loss(
    score: Callable[[Tensor, Time], Tensor],
    group: LieGroup,
    schedule: Schedule,
    clean: Tensor,
    *,
    t: Time,
    steps: int = 10,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Denoising score matching loss :math:`\sigma^2 E |s(g_0 w, t) - T|^2`, minimal at the score of p_t.

    Noise w and target T are drawn by `noise_with_target`.

    Args:
        score: (g, t) to ``[*batch, dim]``, with a gradient for its parameters.
        group: the group of the elements.
        steps: number of factors of the noise, where it has to be simulated.
        generator: random numbers; ``None`` is torch's.
        schedule: sets :math:`\sigma^2 = \int_0^t \gamma^2`.
        clean: g_0, ``[*batch, *element_shape]``.
        t: the time, in (0, 1], or one for every row, ``[*batch]``.

    Raises:
        DomainError: t is zero or lies outside [0, 1].
        ConfigurationError: ``steps`` is less than one.
    """
    if not isinstance(t, Tensor) and check_time(t) == 0.0:
        raise DomainError("t: expected a time above zero, got 0")
    group.check_elements(clean, "clean")
    if isinstance(t, Tensor) and t.shape not in ((), group.batch_shape(clean)):
        raise ShapeError(f"t: expected one time for each of {list(group.batch_shape(clean))}, got {list(t.shape)}")
    rows = torch.as_tensor(schedule.variance(0.0, t), dtype=clean.dtype, device=clean.device)
    rows = rows.expand(group.batch_shape(clean))
    noise = noise_with_target(group, rows, steps=steps, generator=generator)
    g = group.compose(clean, noise.elements)
    return (rows * ((check_drift(score(g, t), group, g, "score") - noise.target) ** 2).sum(-1)).mean()


def implicit_loss(score: Callable[[Tensor, float], Tensor], group: LieGroup, g: Tensor, t: float) -> Tensor:
    r"""Implicit score matching loss ``E[|s|^2 + 2 sum_i (X_i s_i - a_i s_i)]``, minimal at the score (Hyvärinen 2005).

    The term :math:`a_i = \mathrm{tr}\,\mathrm{ad}(e_i)` comes from integration by parts for left Haar measure. The
    divergence is exact, at one reverse derivative for each basis direction.

    Args:
        score: function (g, t) to vectors ``[*batch, dim]``, differentiable.
        group: the group of the elements.
        t: the time, a number.
        g: a sample of p_t, ``[*batch, *element_shape]``.
    """
    s = check_drift(score(g, t), group, g, "score")
    zero = torch.zeros_like(s)
    divergence = torch.zeros_like(s[..., 0])
    # not by forward derivatives: torch differentiates those of layer_norm wrongly (pytorch/pytorch#196700)
    pull_back = torch.func.vjp(lambda v: score(group.perturb(g, v), t), zero)[1]
    for i in range(group.dim):
        direction = torch.zeros_like(s)
        direction[..., i] = 1.0
        divergence = divergence + pull_back(direction)[0][..., i]
    a = group.algebra.trace_ad_like(s)
    return ((s**2).sum(-1) + 2.0 * divergence - 2.0 * matmul(s, a)).mean()


class ScoreNetwork(nn.Module):
    r"""A score network of element and time: layers of SiLU on the element's entries and Fourier features of the level.

    The output is divided by :math:`(c^2 + \int_0^t \gamma^2)^{1/2}`, the size of a score at noise level t of data of
    width c. A `FunctionScore`, or the module itself, goes into `reverse_diffusion`.

    Args:
        group: the group of the elements.
        schedule: diffusion coefficient of the noise.
        width: of the hidden layers.
        depth: number of hidden layers.
        data_std: c.
        frequencies: number of Fourier features of the noise level.
    """

    frequencies: Tensor

    def __init__(
        self,
        group: LieGroup,
        schedule: Schedule,
        width: int = 128,
        depth: int = 3,
        data_std: float = 0.3,
        frequencies: int = 4,
    ) -> None:
        super().__init__()
        check_count("width", width)
        check_count("depth", depth)
        check_count("frequencies", frequencies)
        self.group = group
        self.schedule = schedule
        self.data_std = data_std
        self.register_buffer("frequencies", 2.0 ** torch.arange(frequencies))
        size = math.prod(group.element_shape) + 1 + 2 * frequencies
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(size, width), nn.SiLU()]
            size = width
        self.layers = nn.Sequential(*layers, nn.Linear(size, group.dim))

    def forward(self, g: Tensor, t: float) -> Float[Tensor, "*batch n"]:
        """Return the score ``[*batch, dim]`` at elements g, ``[*batch, *element_shape]``, and one time t in [0, 1]."""
        self.group.check_elements(g)
        level = math.sqrt(self.data_std**2 + self.schedule.variance(0.0, t))
        flat = g.flatten(-len(self.group.element_shape))
        angle = math.log(level) * self.frequencies.to(flat.dtype)
        time = torch.cat([angle[:1], angle.sin(), angle.cos()]).expand(*flat.shape[:-1], -1)
        return self.layers(torch.cat([flat, time], -1)) / level


check_calls(__name__, __all__)
