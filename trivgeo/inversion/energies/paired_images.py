"""Residuals of images: to the pixels of a fixed one, where the moved one shows something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._autocast import matmul
from trivgeo.actions import ImageWarp
from trivgeo.actions.image import pixel_centres, sample_with_slopes
from trivgeo.checks import check_fraction, check_tensor, checked, promoted
from trivgeo.errors import ShapeError
from trivgeo.groups import Action, LieGroup, PointAction
from trivgeo.inversion.energies.base import CurvedResiduals


@checked
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


@checked
class PairedImages(nn.Module, CurvedResiduals):
    r"""Residuals of images with a coverage m as last channel, from each pixel of a reference to that of the image.

    .. math:: r_p = (I(p) - m(p)\, I_0(p)) / \sqrt{\bar m}, \quad \bar m = \textstyle\sum_p m(p)^2 / |P|

    Pixels that a warp does not cover count for nothing, and the covered ones so much more that no transformation gains
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
        self._known: tuple[LieGroup, Tensor, list[Tensor]] | None = None  # vector fields of the last group

    def forward(self, x: Float[Tensor, "batch d h w"]) -> Float[Tensor, "batch p c"]:
        """Return the residuals of all pixels, row by row, ``[batch, height * width, channels]``.

        Args:
            x: warped images of `with_coverage`, ``[batch, channels + 1, height, width]``.

        Returns:
            Differences to the reference; NaN for an image that overlaps less than ``least_overlap``.

        Raises:
            ShapeError: the images do not fit the reference.
        """
        self._check(x)
        image, cover = x[:, :-1], x[:, -1:]
        share = cover.square().mean((1, 2, 3), keepdim=True)
        enough = share >= self.least_overlap
        root = torch.where(enough, share, 1.0).sqrt()
        difference = torch.where(enough, (image - cover * self.reference.to(x.dtype)) / root, torch.nan)
        return difference.flatten(2).mT

    def curvature(
        self, action: Action, g: Tensor, x: Any, weights: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "b *chains n n"] | None:
        r"""Gauss and Newton's curvature in closed form, for a bilinear `ImageWarp` with zeros outside; else ``None``.

        With s = g p the point that pixel p of the restored image is read at, and :math:`\xi_i` the vector fields of
        the basis, :math:`\partial_i I(s) = \nabla I(s)\, Dg(p)\, \xi_i(p)`: all channels and directions share a
        2 x 2 matrix for each pixel, and no image is differentiated along a direction.

        Raises:
            ShapeError: see `forward`.
        """
        if not isinstance(action, ImageWarp) or (action.mode, action.padding) != ("bilinear", "zeros"):
            return None
        if any(action.fill):
            return None
        shape, x = action.group.batch_shape(action.group.check_elements(g, "g")), check_tensor("x", x)
        if x.ndim < 4 or x.numel() != shape[0] * x.shape[-3:].numel():
            raise ShapeError(f"x: expected {shape[0]} images [b, c, h, w], got {list(x.shape)}")
        g, x = promoted(g=g.reshape(shape[0], -1, *action.group.element_shape), x=x.reshape(shape[0], *x.shape[-3:]))
        values, along, fields, valid = self._restored(action, g, x)
        matrix = self._normal_matrix(values, along, fields, weights)
        return torch.where(valid[..., None, None], matrix, torch.nan).unflatten(1, shape[1:])

    def _restored(self, action: ImageWarp, g: Tensor, x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
        """Return values and derivatives of restored images, ``[b, k, channels, pixels]``, fields, and what is valid."""
        self._check(x)
        group, points = action.group, action.point_action
        height, width = x.shape[-2:]
        pixels = pixel_centres((height, width), g)
        source, across, down = _with_derivatives(points, g, pixels)
        valid = action.is_valid(group.inverse(g), x.unsqueeze(1)) & torch.isfinite(source).all((-2, -1))
        source = torch.where(valid[..., None, None], source, 0.0)
        half = 0.5 * max(height, width)
        position = half * source + 0.5 * source.new_tensor([width - 1, height - 1])
        values, *slopes = (
            part.unflatten(2, source.shape[1:3]).transpose(1, 2)
            for part in sample_with_slopes(x, position.flatten(1, 2))
        )
        by_x, by_y = (half * slope for slope in slopes)  # in units of the frame
        along = [by_x * d[..., 0].unsqueeze(2) + by_y * d[..., 1].unsqueeze(2) for d in (across, down)]
        return values, along, self._fields(group, points, pixels), valid

    def _normal_matrix(
        self, values: Tensor, along: list[Tensor], fields: list[Tensor], weights: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "b k n n"]:
        """Return ``J^T W J`` for values and their derivatives by x and y of pixels, ``[b, k, channels, pixels]``."""
        reference = self.reference.flatten(1).to(values.dtype)
        image, cover = values[..., :-1, :], values[..., -1:, :]
        share = cover.square().mean((-2, -1), keepdim=True)
        enough = share >= self.least_overlap
        root = torch.where(enough, share, 1.0).sqrt()
        r = (image - cover * reference) / root
        w = weights(r.square().sum(-2).flatten(0, 1)).unflatten(0, r.shape[:2])
        dx, dy = ((d[..., :-1, :] - d[..., -1:, :] * reference) / root for d in along)
        wdx, wdy = w.unsqueeze(2) * dx, w.unsqueeze(2) * dy
        xx, xy, yy = ((a * b).sum(2).unsqueeze(2) for a, b in ((wdx, dx), (wdx, dy), (wdy, dy)))
        fx, fy = fields
        h = matmul(xx * fx + xy * fy, fx.mT) + matmul(xy * fx + yy * fy, fy.mT)
        # the share of the frame that is covered changes, too
        slope = matmul((wdx * r).sum(2), fx.mT) + matmul((wdy * r).sum(2), fy.mT)
        bx, by = ((cover * d[..., -1:, :]).squeeze(2) / cover.shape[-1] for d in along)
        growth = (matmul(bx, fx.mT) + matmul(by, fy.mT)) / root.squeeze(-1).square()
        mixed = slope.unsqueeze(-1) * growth.unsqueeze(-2)
        total = (w * r.square().sum(2)).sum(-1)[..., None, None]
        h = h - mixed - mixed.mT + total * growth.unsqueeze(-1) * growth.unsqueeze(-2)
        return torch.where(enough, h, torch.nan)

    def _fields(self, group: LieGroup, points: PointAction, pixels: Tensor) -> list[Float[Tensor, "n p"]]:
        """Return both components of the vector fields of the basis; the fields of the last group are cached."""
        known = self._known
        if known is None or known[0] is not group or known[1].dtype != pixels.dtype or known[1].device != pixels.device:
            self._known = known = (group, pixels[:0], _fields(group, points, pixels))
        return known[2]

    def _check(self, x: Tensor) -> None:
        channels, height, width = self.reference.shape
        if x.shape[1:] != (channels + 1, height, width):
            wanted = f"[batch, {channels + 1}, {height}, {width}]"
            raise ShapeError(f"x: expected images with_coverage, {wanted}, got {list(x.shape)}")


def _with_derivatives(points: PointAction, g: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the points g p, and their derivatives by both coordinates of p, ``[b, k, p, 2]`` each."""
    directions = torch.eye(2, dtype=p.dtype, device=p.device).unsqueeze(1).expand(2, len(p), 2)
    source, moved = torch.func.vmap(
        lambda t: torch.func.jvp(lambda q: points(g, q), (p,), (t,)),  # type: ignore[misc]
        out_dims=(None, 0),  # type: ignore[arg-type]
    )(directions)
    return source, moved[0], moved[1]


def _fields(group: LieGroup, points: PointAction, p: Tensor) -> list[Float[Tensor, "n p"]]:
    """Return both components of the vector fields of the basis at points."""
    identity = group.identity(dtype=p.dtype, device=p.device)
    zero, eye = p.new_zeros(group.dim), torch.eye(group.dim, dtype=p.dtype, device=p.device)

    def moved(v: Tensor) -> Tensor:
        return points(group.perturb(identity, v), p)

    fields = torch.func.vmap(lambda t: torch.func.jvp(moved, (zero,), (t,))[1])(eye)
    return [fields[..., 0], fields[..., 1]]
