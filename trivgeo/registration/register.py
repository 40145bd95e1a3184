"""Registration of two data in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.actions import ImageWarp, Volume
from trivgeo.checks import check_count, check_tensor, check_type, promoted
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.inversion.transformations import Transformations
from trivgeo.registration.clouds import CloudRegistration
from trivgeo.registration.images import SIMILARITIES, ImageRegistration
from trivgeo.registration.mutual_information import MutualImageRegistration
from trivgeo.registration.record import Registration
from trivgeo.registration.volumes import register_volumes

_NUM_STARTS_ON_PLANE = 64
_NUM_STARTS_IN_SPACE = 512
_NUM_STARTS_OF_IMAGES = 256
_WHOLE_NUMBERS = (torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.int64)
_MAX_COORDINATES = 16  # coordinates of points up to which a matrix is more likely a cloud than an image


def register(
    moving: Float[Tensor, "*c m n"] | Volume,
    fixed: Float[Tensor, "*c k n"] | Volume,
    group: LieGroup,
    *,
    matched: bool | None = None,
    similarity: str = "intensity",
    moving_mask: Tensor | None = None,
    fixed_mask: Tensor | None = None,
    transformations: Transformations | None = None,
    num_starts: int | None = None,
    generator: torch.Generator | None = None,
) -> Registration:
    r"""Find the transformation that maps one photograph, one volume, or one cloud of points, to another.

    Photographs ``[c, h, w]`` may have two sizes, colours and grey, and values of any range; g is found from coarse
    images to fine ones, by inverse compositional steps (Baker and Matthews 2004) on the differences of pixels under a
    loss that leaves outliers alone (Geman and McClure 1987), on the part that both show and nothing hides. Exposures
    may differ: a gain and an offset of each channel are fitted beside g, or a tone curve and a vignette where they are
    needed. The covariance is that of the equations which the last steps solve (a sandwich). Directions that noise alone
    determines are free; rotations and shifts that fit as well are modes. The search begins at the identity, at what
    matches of keypoints support (Lowe 2004; where the package ``opencv-python-headless`` is installed), then near
    the identity (shifts by some 15 % of the frame) and at rotations, shifts and scalings under which edges correlate,
    or at the ``transformations``. Images that share less than half of
    their contrast are not trusted. Half precision and whole numbers are registered in single precision, and so are the
    elements. Pixels have one size in both photographs, and coordinates their origin in the middle of each; the unit is
    half of the longer side of ``fixed``. `Registration.to_pixels` is the homography from pixels of one to those of the
    other.

    Clouds ``[m, n]`` and ``[k, n]`` are centred and scaled first, wherever the group has the translations and scalings
    for it, so that map coordinates are as good as others. In the same order they are fitted in closed form (Kabsch
    1976, Umeyama 1991, the direct linear transformation), from all points and from many subsets, then by a descent.

    In no order, each cloud may show a part of the object, and hold points that belong to nothing. Poses come from
    correspondences of points with similar neighbourhoods (histograms of angles with normals, as in Rusu et al. 2009)
    that agree in pairs (Chen et al. 2022), for groups that keep shapes, and from descents that begin at the identity
    and at rotations about the centres; with `O` and `E` half of these are reflections. Photographs are reflected only
    if the ``transformations`` are. The likeliest pose is refined: the likelihood is that of a mixture of points with a
    partner in the other cloud and points without, in both directions, whose shares are the ``overlap`` of the record.
    Points beyond the end of the other cloud, or next to its edge, do not pull. Where the clouds are two samples of a
    surface, residuals along it count less than those across it, by the ratio of their sizes (Segal et al. 2009).

    Clouds are trusted where this very pair bears out the covariance. In the same order: the residuals leave at least
    three numbers more than the group has dimensions, few of them enlarge the covariance to that of Student's
    distribution, and the pulls of parts of the cloud vary as those of independent errors do. In no order, too: slopes
    of the energy at a distance, with nearest points found anew and without points beyond the end of the other cloud,
    tell its curvature from noise; no pose that was found, or a product of the symmetries among such poses, has a
    likelihood within four standard errors of the highest (these poses, up to 120, are the modes); and no pose explains
    another part of both clouds at least a quarter as well without more points that lie beside the other cloud: the
    larger overlap need not be the true one. Directions that the clouds leave free have a standard deviation of about
    1000 units of the basis. Clouds are not trusted either if they stay as far from each other as one and a half
    distances between neighbours and a tenth of their size, or in the same order as nine tenths of it.

    Volumes ``[c, d, h, w]`` may be of any two sizes. A `Volume` brings the affine of its file: elements then act on
    millimetres, so that ``SE(3)`` is rigid whatever the spacings; without it voxels are cubes of one size, in the frame
    of the fixed volume (see `ImageWarp`). The search compares rotations by any angle, with centres on each other, on a
    coarse grid, and descends from the best ones on finer grids beside a gain and an offset. Places that fit about as
    well are modes. Voxels of NaN show nothing, and whole numbers are registered in single precision.

    Other modalities need ``similarity="mutual_information"`` (Viola and Wells 1997), of photographs and of volumes:
    nothing is said of how values of both belong to each other, so that negatives, labels and maps of one tissue will
    do. With either image held fixed the equations draw the element a little, so the result is between both. The
    covariance admits their distance, and what one volume shows alone over long distances.

    Args:
        moving: the photograph, volume or cloud that is moved.
        fixed: the photograph, volume or cloud to which it is moved.
        group: an action on points of the plane for photographs, of space for volumes, of n coordinates for clouds.
        matched: whether point i of one cloud belongs to point i of the other; default: whether that fits.
        similarity: what both show alike: ``"intensity"``, up to the exposure; ``"mutual_information"``, that values of
            one say something of those of the other; of photographs also ``"gradient"``, the places of edges.
        moving_mask: pixels or voxels of the moving image that count, ``[h, w]`` or ``[d, h, w]``; default: all.
        fixed_mask: likewise of the fixed one.
        transformations: distribution of elements to begin with, such as those of `trivgeo.inversion.transformations`.
        num_starts: number of elements to begin with; default 256 for photographs, 64 for clouds on the
            plane, 512 in space, and 512 rotations of volumes.
        generator: for the first elements; default one with the same seed in every call.

    Raises:
        ConfigurationError: numbers that are not floating-point, or a group that does not act on such points.
        ShapeError: photographs of different numbers of channels, neither in grey, masks of other sizes, clouds of other
            points than the group acts on, or of different numbers of points although they are ``matched``.
        NonFiniteError: the data hold NaN or infinity.
        DomainError: an affine is singular, or a mask empty.

    Example:
        >>> corners = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
        >>> r = register(corners, 3.0 * corners + 1e6, Similarity(2))
        >>> r.element.round(decimals=6).abs()
        tensor([[3.0000e+00, 0.0000e+00, 1.0000e+06],
                [0.0000e+00, 3.0000e+00, 1.0000e+06]], dtype=torch.float64)
    """
    if not isinstance(group, LieGroup):
        raise ConfigurationError(f"group: expected a LieGroup, got {group!r}")
    if isinstance(moving, Volume) or isinstance(fixed, Volume) or getattr(moving, "ndim", 0) == 4:
        if matched is not None:
            raise ConfigurationError(f"matched: expected None for volumes, got {matched!r}")
        if transformations is not None and not callable(transformations):
            raise ConfigurationError(
                f"transformations: expected a function of (count, generator), got {transformations!r}"
            )
        return register_volumes(
            moving,
            fixed,
            group,
            similarity,
            (moving_mask, fixed_mask),
            transformations,
            check_count("num_starts", _NUM_STARTS_IN_SPACE if num_starts is None else num_starts),
            torch.Generator().manual_seed(0) if generator is None else generator,
        )
    moving, fixed = promoted(moving=_checked("moving", moving), fixed=_checked("fixed", fixed))
    if moving.ndim != fixed.ndim or (moving.shape[-1] != fixed.shape[-1] and moving.ndim == 2):
        hint = "" if moving.ndim != fixed.ndim else "; a cloud is [m, n], with the coordinates of a point in a row"
        raise ShapeError(f"fixed: expected data like moving, {list(moving.shape)}, got {list(fixed.shape)}{hint}")
    n = 2 if moving.ndim == 3 else moving.shape[-1]
    if n not in group.action().point_dims:
        hint = "" if n <= _MAX_COORDINATES else "; a photograph is [c, h, w]: see Tensor.unsqueeze for a grey one"
        raise ConfigurationError(f"group: expected one that acts on points of {n} coordinates, got {group!r}{hint}")
    if matched is not None and not isinstance(matched, bool):
        raise ConfigurationError(f"matched: expected True, False or None, got {matched!r}")
    if transformations is not None and not callable(transformations):
        raise ConfigurationError(f"transformations: expected a function of (count, generator), got {transformations!r}")
    if generator is not None:
        check_type("generator", generator, torch.Generator)
    usual = _NUM_STARTS_OF_IMAGES if moving.ndim == 3 else _NUM_STARTS_ON_PLANE if n < 3 else _NUM_STARTS_IN_SPACE
    number = check_count("num_starts", usual if num_starts is None else num_starts)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    if moving.ndim == 2:
        if similarity != "intensity" or moving_mask is not None or fixed_mask is not None:
            raise ConfigurationError("similarity, moving_mask, fixed_mask: expected none for clouds")
        if matched and len(moving) != len(fixed):
            raise ShapeError(
                f"matched: expected clouds of as many points, got {len(moving)} and {len(fixed)}; matched=False is for "
                "points in no order"
            )
        return CloudRegistration(moving, fixed, group, transformations, number, generator, matched).registered()
    if matched is not None:
        raise ConfigurationError(f"matched: expected None for photographs, got {matched!r}")
    if similarity not in SIMILARITIES:
        raise ConfigurationError(f"similarity: expected one of {', '.join(SIMILARITIES)}, got {similarity!r}")
    for name, image in (("moving", moving), ("fixed", fixed)):
        ImageWarp(group).check_data(image, name)
    moving, fixed = _like(moving, fixed), _like(fixed, moving)
    masks = _mask("moving_mask", moving_mask, moving), _mask("fixed_mask", fixed_mask, fixed)
    settings = (group, transformations, number, generator, similarity, masks)
    kind = MutualImageRegistration if similarity == "mutual_information" else ImageRegistration
    return kind(moving, fixed, *settings).registered()


def _like(image: Tensor, other: Tensor) -> Tensor:
    """Return an image in grey where the other one is."""
    if len(image) == len(other) or len(image) == 1:
        return image
    if len(other) == 1:
        return image.mean(0, keepdim=True)
    raise ShapeError(f"expected as many channels, or one of grey, got {len(image)} and {len(other)}")


def _mask(name: str, mask: Tensor | None, image: Tensor) -> Tensor | None:
    """Return ones and zeros at the pixels of an image."""
    if mask is None:
        return None
    mask = torch.as_tensor(mask, device=image.device)
    if mask.shape != image.shape[-2:]:
        raise ShapeError(f"{name}: expected {list(image.shape[-2:])}, got {list(mask.shape)}")
    return (mask > 0).to(image.dtype)


def _checked(name: str, value: Any) -> Tensor:
    """Return an image or a cloud if it is finite; bytes and 16-bit numbers of an image in units of the largest."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor) and value.ndim == 3 and value.dtype in _WHOLE_NUMBERS:
        value = value.to(torch.float32) / (torch.iinfo(value.dtype).max if value.element_size() < 4 else 1)
    value = check_tensor(name, value).detach()
    if value.ndim not in (2, 3) or 0 in value.shape:
        raise ShapeError(f"{name}: expected a photograph [c, h, w] or a cloud [m, n], got {list(value.shape)}")
    if not bool(torch.isfinite(value).all()):
        raise NonFiniteError(f"{name}: expected finite numbers, got NaN or infinity")
    # elements of half precision are off by pixels
    return value.to(torch.promote_types(value.dtype, torch.float32))
