"""Residuals of images: to the pixels of a fixed one, where the moved one shows something."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo.checks import check_fraction, check_tensor
from trivgeo.errors import ShapeError

__all__ = ["PairedImages", "with_coverage"]


def with_coverage(x: Float[Tensor, "*batch c h w"]) -> Float[Tensor, "*batch d h w"]:
    """Append a channel of ones to images x: after a warp it holds the share of each pixel that the image covers.

    Raises:
        ShapeError: fewer than three dimensions.

    Example:
        >>> with_coverage(torch.zeros(3, 4, 5)).shape
        torch.Size([4, 4, 5])
    """
    if (x := check_tensor("x", x)).ndim < 3:
        raise ShapeError(f"x: expected images [*batch, c, h, w], got {list(x.shape)}")
    return torch.cat([x, torch.ones_like(x[..., :1, :, :])], -3)


class PairedImages(nn.Module):
    r"""Residuals of images with a coverage m as last channel, from each pixel of a reference to that of the image.

    .. math:: r_p = (I(p) - m(p)\, I_0(p)) / \sqrt{\bar m}, \quad \bar m = \textstyle\sum_p m(p)^2 / |P|

    Pixels that a warp does not cover count for nothing, and those it does for so much more that no transformation gains
    by a small overlap.

    ```python
    action = ImageWarp(SE(2), guarded=False)
    energy = LeastSquares(PairedImages(reference), GemanMcClure(0.1))
    result = Inverter(action, energy, [LevenbergMarquardt(20)])(with_coverage(images))
    ```

    Args:
        reference: ``[c, h, w]``.
        least_overlap: share of the frame, the mean square of m, below which residuals are NaN, and elements not found.

    Raises:
        ConfigurationError: the share is not in (0, 1).
        ShapeError: the reference is no image; or (when called) the images have other sizes, or no coverage.
    """

    reference: Tensor

    def __init__(self, reference: Float[Tensor, "c h w"], least_overlap: float = 0.1) -> None:
        super().__init__()
        reference = check_tensor("reference", reference)
        if reference.ndim != 3 or 0 in reference.shape:
            raise ShapeError(f"reference: expected an image [c, h, w], got {list(reference.shape)}")
        self.register_buffer("reference", reference)
        self.least_overlap = check_fraction("least_overlap", least_overlap)

    def forward(self, x: Float[Tensor, "batch d h w"]) -> Float[Tensor, "batch p c"]:
        """Return the residuals of all pixels, row by row, ``[batch, height * width, channels]``.

        Args:
            x: warped images of `with_coverage`, ``[batch, channels + 1, height, width]``.

        Returns:
            Differences to the reference; NaN for an image that overlaps less than ``least_overlap``.

        Raises:
            ShapeError: the images do not fit the reference.
        """
        channels, height, width = self.reference.shape
        if x.shape[1:] != (channels + 1, height, width):
            wanted = f"[batch, {channels + 1}, {height}, {width}]"
            raise ShapeError(f"x: expected images with_coverage, {wanted}, got {list(x.shape)}")
        image, cover = x[:, :-1], x[:, -1:]
        share = cover.square().mean((1, 2, 3), keepdim=True)
        enough = share >= self.least_overlap
        root = torch.where(enough, share, 1.0).sqrt()
        difference = torch.where(enough, (image - cover * self.reference.to(x.dtype)) / root, torch.nan)
        return difference.flatten(2).mT
