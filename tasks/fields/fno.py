"""Fourier neural operators: that of the package neuraloperator, and a small one for runs without it."""

from collections.abc import Sequence
from importlib import import_module

import torch
from torch import Tensor, nn

from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError, ShapeError, how_to_install


class LibraryFNO(nn.Module):
    """`neuralop.models.FNO`, without the positions as further channels: periodic fields have none.

    Args:
        modes: lowest modes kept along each axis.
        in_channels: number of channels of the input.
        out_channels: number of channels of the output.
        width: channels inside.
        layers: number of layers.

    Raises:
        ConfigurationError: the package is missing.
    """

    def __init__(
        self,
        modes: Sequence[int],
        in_channels: int = 2,
        out_channels: int = 1,
        width: int = 32,
        layers: int = 4,
    ) -> None:
        super().__init__()
        try:
            fno = import_module("neuralop.models").FNO
        except ImportError as error:
            raise ConfigurationError(
                f"network: expected neuraloperator, which is not installed: {how_to_install('operators')}; or give "
                "tasks.fields.fno.SmallFNO"
            ) from error
        self.modes = tuple(check_count("modes", m) for m in modes)
        self.network = fno(
            n_modes=tuple(2 * m for m in modes),
            in_channels=in_channels,
            out_channels=out_channels,
            hidden_channels=width,
            n_layers=layers,
            positional_embedding=None,
        )

    def forward(self, u: Tensor) -> Tensor:
        """``[b, in_channels, *n]`` to ``[b, out_channels, *n]``.

        Raises:
            ShapeError: see `check_points`.
        """
        check_points(u, self.modes)
        return self.network(u)


def check_points(u: Tensor, modes: Sequence[int]) -> None:
    """Raise unless fields have an axis for each number of modes, and two points for each mode.

    Args:
        u: fields ``[b, c, *n]``.
        modes: lowest modes kept along each axis, zero among them; at most ``n / 2``, and ``n / 2 + 1`` along the last.

    Raises:
        ShapeError: they have fewer.
    """
    sides = u.shape[2:]
    most = [n // 2 for n in sides[:-1]] + [n // 2 + 1 for n in sides[-1:]]
    if len(most) != len(modes) or any(m > limit for m, limit in zip(modes, most, strict=True)):
        raise ShapeError(
            f"u: expected fields [b, c, *n] with two points for each of {list(modes)} modes, got {list(u.shape)}; "
            "take fewer modes, or a finer grid"
        )


class SpectralConvolution(nn.Module):
    """A convolution by its lowest Fourier modes, in d dimensions.

    Args:
        width: channels.
        modes: see `LibraryFNO`.
    """

    def __init__(self, width: int, modes: Sequence[int]) -> None:
        super().__init__()
        self.modes = tuple(check_count("modes", m) for m in modes)
        shape = [2 * m for m in self.modes[:-1]] + [self.modes[-1]]
        self.weight = nn.Parameter(torch.randn(*shape, width, width, 2) / width)

    def forward(self, u: Tensor) -> Tensor:
        """Convolve fields ``[b, c, *n]``; the number of channels stays.

        Raises:
            ShapeError: see `check_points`.
        """
        check_points(u, self.modes)
        axes = tuple(range(2, u.ndim))
        modes = torch.fft.rfftn(u, dim=axes, norm="forward")
        kept: list[Tensor] = []
        for axis, m in enumerate(self.modes):
            lowest = torch.arange(m, device=u.device)
            last = axis == len(self.modes) - 1
            kept.append(lowest if last else torch.cat([lowest, lowest - m]) % modes.shape[axis + 2])
        index: tuple[slice | Tensor, ...] = (slice(None), slice(None), *torch.meshgrid(*kept, indexing="ij"))
        lowest = modes[index]
        # a product of matrices for each mode
        mixed = lowest.flatten(2).permute(2, 0, 1) @ torch.view_as_complex(self.weight).flatten(0, -3)
        out = torch.zeros_like(modes)
        out[index] = mixed.permute(1, 2, 0).reshape(lowest.shape)
        return torch.fft.irfftn(out, s=u.shape[2:], dim=axes, norm="forward")


class SmallFNO(nn.Module):
    """The Fourier neural operator of Li et al. (2021): lift, spectral and pointwise layers, project.

    Args:
        modes: see `LibraryFNO`, also for the others.
    """

    def __init__(
        self,
        modes: Sequence[int],
        in_channels: int = 2,
        out_channels: int = 1,
        width: int = 32,
        layers: int = 4,
    ) -> None:
        super().__init__()
        conv: type[nn.Conv1d | nn.Conv2d] = nn.Conv1d if len(modes) == 1 else nn.Conv2d
        self.lift = conv(in_channels, width, 1)
        self.spectral = nn.ModuleList(SpectralConvolution(width, modes) for _ in range(layers))
        self.pointwise = nn.ModuleList(conv(width, width, 1) for _ in range(layers))
        self.project = nn.Sequential(conv(width, 2 * width, 1), nn.GELU(), conv(2 * width, out_channels, 1))

    def forward(self, u: Tensor) -> Tensor:
        """``[b, in_channels, *n]`` to ``[b, out_channels, *n]``.

        Raises:
            ShapeError: see `check_points`.
        """
        u = self.lift(u)
        for k, (spectral, pointwise) in enumerate(zip(self.spectral, self.pointwise, strict=True)):
            u = spectral(u) + pointwise(u)
            u = nn.functional.gelu(u) if k < len(self.spectral) - 1 else u
        return self.project(u)
