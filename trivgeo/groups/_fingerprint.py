"""What a group is, as numbers: its exponential and products at fixed vectors of the natural basis."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from trivgeo._numerics import on_cpu
from trivgeo.errors import ConfigurationError
from trivgeo.groups._coordinates import GroupCoordinates

__all__ = ["GroupIdentity"]

_LENGTH = 0.5
_RELATIVE, _FLOOR = 1e-6, 1e-9  # of an entry, and of the largest entry of its element
_PARTS = ("dim", "element_shape", "exp", "products")


class GroupIdentity(GroupCoordinates, ABC):
    """Comparison of groups by numbers, whatever their classes and scales; a part of `LieGroup`."""

    # operations of `LieGroup` that the numbers are made of

    @abstractmethod
    def _compose(self, g: Tensor, h: Tensor) -> Tensor: ...

    @abstractmethod
    def _exp(self, v: Tensor) -> Tensor: ...

    @abstractmethod
    def _periods(self) -> Tensor: ...

    @property
    def num_components(self) -> int:
        """Number of connected components: one, if a group does not say another; exponentials are in that of e."""
        return 1

    @final
    def fingerprint(self) -> dict[str, Any]:
        """What elements are and how they multiply, as numbers that a file can hold; the scale is no part of it.

        Returns:
            The dimension ``dim``, the ``element_shape``, and as flat lists in float64 the elements ``exp`` of half of
            every natural basis vector and of three fixed vectors, the ``products`` of these three, and the ``periods``
            of the entries of elements, zero where there is none; for groups of several ``components``, their number.
        """
        if self._fingerprint is None:
            self._fingerprint = _numbers_of(self)
        return copy.deepcopy(self._fingerprint)

    @final
    def matches(self, fingerprint: Mapping[str, Any]) -> bool:
        """Whether a `fingerprint` is that of this group, up to a relative error of 1e-6.

        Raises:
            ConfigurationError: a part of it is missing.
        """
        return _equal(self.fingerprint(), fingerprint)

    @final
    def is_same_group(self, other: GroupIdentity) -> bool:
        """Whether elements of one group are those of the other, with the same meaning and product; scales may differ.

        Equal brackets are not enough: the same tensor may be another element.
        """
        return self is other or self.matches(other.fingerprint())


@on_cpu
def _numbers_of(group: GroupIdentity) -> dict[str, Any]:
    """The fingerprint of a group; see `LieGroup.fingerprint`."""
    dim, shape = group.dim, group.element_shape
    units = _LENGTH * torch.eye(dim, dtype=torch.float64)
    sines = [[math.sin((k + 1.0) * (i + 1.0) + k) for i in range(dim)] for k in range(3)]
    mixed = torch.tensor(sines, dtype=torch.float32).double()  # as in files, whatever the default dtype
    mixed = _LENGTH * mixed / mixed.norm(dim=-1, keepdim=True)
    with torch.no_grad():
        elements = group._exp(torch.cat([units, mixed]))
        products = group._compose(elements[-3:], elements[-3:].roll(-1, 0))
    numbers = {
        "dim": dim,
        "element_shape": list(shape),
        "exp": elements.reshape(dim + 3, -1).tolist(),
        "products": products.reshape(3, -1).tolist(),
        "periods": group._periods().flatten().tolist(),
    }
    return numbers if group.num_components == 1 else numbers | {"components": group.num_components}


@on_cpu
def _equal(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are the same up to rounding; NaN is like NaN at the same place only."""
    missing = [part for part in _PARTS if part not in b]
    if missing:
        raise ConfigurationError(f"fingerprint: expected {', '.join(_PARTS)}, got none of {', '.join(missing)}")
    if a["dim"] != b["dim"] or list(a["element_shape"]) != list(b["element_shape"]):
        return False
    if a.get("components", 1) != b.get("components", 1):
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
