"""First elements for two photographs from matches of keypoints, for any rotation and scale."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._random import uniform
from trivgeo.errors import how_to_install
from trivgeo.groups import LieGroup
from trivgeo.inversion.point_alignment import fit_points
from trivgeo.registration.inverse_compositional import means_of_parts

MISSING = f"without OpenCV no keypoints were matched: {how_to_install('keypoints')}"
_LONGEST_SIDE = 640  # side of the images in which keypoints are detected, in pixels
_MAX_KEYPOINTS = 1500  # keypoints of an image
_MAX_DISTANCE_RATIO = 0.8  # distance of a descriptor to the nearest one, in units of that to the second nearest (Lowe)
_NUM_SAMPLES = 400  # minimal samples of matches
_MAX_ERROR_IN_PIXELS = 3.0  # distance of a match from an element that it supports, where keypoints are detected
_NUM_REFITS = 3  # fits to all matches that support an element
_MIN_SUPPORT = 3  # matches beyond a minimal sample that support an element


def consensus(
    group: LieGroup,
    moving: Float[Tensor, "c h w"],
    fixed: Float[Tensor, "c k l"],
    frames: tuple[Float[Tensor, "3 3"], Float[Tensor, "3 3"]],
    number: int,
) -> Tensor | None:
    """Return elements that matches of SIFT's keypoints support, the best ones first, ``[k, *element_shape]``.

    Minimal samples of matches are fitted in the group, and elements that many matches support are fitted to these
    (Fischler and Bolles 1981; Lowe 2004).

    Args:
        group: the group; ``None`` is returned for one without a closed form.
        moving: the photograph that is moved.
        fixed: the other one.
        frames: maps from pixels (x, y, 1) of each to coordinates.
        number: largest number of elements.

    Returns:
        Elements that take moving to fixed, perhaps none; ``None`` without OpenCV.
    """
    if opencv() is None:
        return None
    none = group.identity(0, dtype=torch.float64, device=moving.device)
    found = [_keypoints(image) for image in (moving, fixed)]
    index = _matches(found[0][1], found[1][1])
    size = max(2, -(-group.dim // 2))
    if len(index) < size + _MIN_SUPPORT:
        return none
    x, y = (
        _coordinates(points[part], frame.cpu()) for (points, _), part, frame in zip(found, index.T, frames, strict=True)
    )
    scale = float(torch.linalg.det(frames[1].cpu()[:2, :2]).abs().sqrt())
    reach = _MAX_ERROR_IN_PIXELS * scale * max(1.0, max(fixed.shape[-2:]) / _LONGEST_SIDE)
    generator = torch.Generator().manual_seed(0)
    picks = uniform((_NUM_SAMPLES, len(x)), x, generator).topk(size, dim=1).indices
    elements = fit_points(group, x[picks], y[picks])
    if elements is None:
        return none
    kept: list[Tensor] = []
    known = torch.zeros(len(x), dtype=torch.bool)
    for _ in range(number):
        support = _support(group, elements, x, y, reach)
        free = support & ~known
        best = int(free.sum(1).argmax())
        if int(free[best].sum()) < size + _MIN_SUPPORT:
            break
        element, own = elements[best], support[best]
        for _ in range(_NUM_REFITS):
            refitted = fit_points(group, x[own], y[own])
            if refitted is None or not bool(torch.isfinite(refitted).all()):
                break
            own_now = _support(group, refitted[None], x, y, reach)[0]
            if int(own_now.sum()) < int(own.sum()):
                break
            element, own = refitted, own_now
        known |= own
        kept.append(element)
    return torch.stack(kept).to(moving.device) if kept else none


@cache
def opencv() -> Any:
    """OpenCV, or ``None`` if it is not installed."""
    try:
        return importlib.import_module("cv2")
    except ImportError:
        return None


def _keypoints(image: Float[Tensor, "c h w"]) -> tuple[np.ndarray, np.ndarray]:
    """Return places (x, y) of keypoints in pixels ``[k, 2]``, and their descriptors ``[k, 128]``."""
    height, width = image.shape[-2:]
    factor = min(1.0, _LONGEST_SIDE / max(height, width))
    small = (max(1, round(factor * height)), max(1, round(factor * width)))
    grey = means_of_parts(image.float().mean(0, keepdim=True), small)
    low, high = torch.quantile(grey.flatten()[:: max(1, grey.numel() // 10000)], grey.new_tensor([0.005, 0.995]))
    grey = ((grey[0] - low) / (high - low).clamp(min=1e-6)).clamp(0.0, 1.0)
    pixels = (255.0 * grey).round().to(torch.uint8).cpu().numpy()
    points, descriptors = opencv().SIFT_create(_MAX_KEYPOINTS).detectAndCompute(pixels, None)
    if descriptors is None:
        return np.zeros((0, 2)), np.zeros((0, 128), np.float32)
    places = np.array([point.pt for point in points], np.float64)
    return (places + 0.5) * [width / small[1], height / small[0]] - 0.5, descriptors


def _matches(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return numbers of keypoints that belong together, ``[m, 2]``: clearly nearest descriptors."""
    if len(first) < 2 or len(second) < 2:
        return np.zeros((0, 2), np.int64)
    a, b = (torch.from_numpy(part) for part in (first, second))
    squares = a.square().sum(1, keepdim=True) + b.square().sum(1) - 2.0 * (a @ b.mT)
    (nearest, index) = squares.clamp(min=0.0).topk(2, dim=1, largest=False)
    clear = nearest[:, 0] < _MAX_DISTANCE_RATIO**2 * nearest[:, 1]
    return torch.stack([clear.nonzero().squeeze(1), index[clear, 0]], 1).numpy()


def _coordinates(points: np.ndarray, frame: Float[Tensor, "3 3"]) -> Float[Tensor, "m 2"]:
    return torch.from_numpy(points).double() @ frame[:2, :2].mT + frame[:2, 2]


def _support(
    group: LieGroup, elements: Tensor, x: Float[Tensor, "m 2"], y: Float[Tensor, "m 2"], reach: float
) -> Tensor:
    """Return a mask of the matches that elements take onto each other, ``[k, m]``."""
    known = torch.isfinite(elements).flatten(1).all(1)
    identity = group.identity(dtype=elements.dtype)
    safe = torch.where(known.reshape(-1, *[1] * len(group.element_shape)), elements, identity)
    off = (group.action()(safe, x) - y).square().sum(-1)
    return (off < reach**2) & known.unsqueeze(1)
