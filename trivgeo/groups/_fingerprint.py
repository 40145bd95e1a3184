"""What a group is, as numbers: its exponential and products at fixed vectors of the natural basis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trivgeo._numerics import on_cpu
from trivgeo.errors import ConfigurationError

if TYPE_CHECKING:
    from trivgeo.groups.base import LieGroup

__all__ = ["equal", "of"]

_LENGTH = 0.5
_RELATIVE, _FLOOR = 1e-6, 1e-9  # of an entry, and of the largest entry of its element
_PARTS = ("dim", "element_shape", "exp", "products")


@on_cpu
def of(group: LieGroup) -> dict[str, Any]:
    """The fingerprint of a group; see `LieGroup.fingerprint`."""
    dim, shape = group.dim, group.element_shape
    units = _LENGTH * torch.eye(dim, dtype=torch.float64)
    sines = [[math.sin((k + 1.0) * (i + 1.0) + k) for i in range(dim)] for k in range(3)]
    mixed = torch.tensor(sines, dtype=torch.float32).double()  # as in files, whatever the default dtype
    mixed = _LENGTH * mixed / mixed.norm(dim=-1, keepdim=True)
    with torch.no_grad():
        elements = group._exp(torch.cat([units, mixed]))
        products = group._compose(elements[-3:], elements[-3:].roll(-1, 0))
    return {
        "dim": dim,
        "element_shape": list(shape),
        "exp": elements.reshape(dim + 3, -1).tolist(),
        "products": products.reshape(3, -1).tolist(),
        "periods": group._periods().flatten().tolist(),
    }


@on_cpu
def equal(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are the same up to rounding; NaN is like NaN at the same place only."""
    missing = [part for part in _PARTS if part not in b]
    if missing:
        raise ConfigurationError(f"fingerprint: expected {', '.join(_PARTS)}, got none of {', '.join(missing)}")
    if a["dim"] != b["dim"] or list(a["element_shape"]) != list(b["element_shape"]):
        return False
    none = [0.0] * math.prod(a["element_shape"])  # older files, of groups without periods, do not name them
    parts = [[x[part] for x in (a, b)] for part in ("exp", "products")]
    parts.append([x.get("periods", none) for x in (a, b)])
    return all(_close(*(torch.tensor(x, dtype=torch.float64) for x in pair)) for pair in parts)


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    size = torch.maximum(a.abs(), b.abs())
    largest = torch.where(torch.isfinite(size), size, 0.0).amax(-1, keepdim=True) if size.numel() else size
    near = (a - b).abs() <= _RELATIVE * size + _FLOOR * largest
    return bool(((torch.isfinite(size) & near) | (a == b) | (a.isnan() & b.isnan())).all())
