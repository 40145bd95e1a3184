"""Search for nearest neighbours, under every transform of `torch.func`."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from scipy.spatial import KDTree
from torch import Tensor

from trivgeo._autocast import matmul
from trivgeo.checks import promoted

__all__ = ["nearest_indices"]

_MAX_DISTANCES_IN_MEMORY = 2**22


def nearest_indices(
    x: Float[Tensor, "*batch n"], reference: Float[Tensor, "*clouds k n"], tree: KDTree | None = None
) -> Int[Tensor, "*batch"]:
    """Return the index of the nearest point of a reference for each point; it has no derivative.

    Args:
        x: the points; ``[b, m, n]`` if each of b clouds has a reference of its own.
        reference: ``[k, n]``, or ``[b, k, n]`` for references of their own.
        tree: of the one reference, for points on the CPU; without it all distances are computed, in parts.
    """
    index: Tensor = _Nearest.apply(x, reference, tree)
    return index


class _Nearest(torch.autograd.Function):
    """The search as one operation without derivative: it sees plain tensors under every transform."""

    @staticmethod
    def forward(x: Tensor, reference: Tensor, tree: KDTree | None) -> Tensor:
        x = x.detach().nan_to_num()
        if tree is not None and x.device.type == "cpu":
            index = torch.from_numpy(tree.query(x.double().numpy())[1]).reshape(x.shape[:-1])
            # the tree finds none for a point whose squared distance overflows
            return index.clamp(max=len(reference) - 1)
        x, reference = promoted(x=x, reference=reference)
        middle = reference.mean(-2, keepdim=True)
        flat, reference = (x.reshape(-1, x.shape[-1]) if reference.ndim == 2 else x) - middle, reference - middle
        half = 0.5 * reference.square().sum(-1).unsqueeze(-2)
        # half of |x - y|^2 - |x|^2, which has its minimum at the same y
        parts = flat.split(max(1, _MAX_DISTANCES_IN_MEMORY // half.numel()), -2)
        return torch.cat([(half - matmul(part, reference.mT)).argmin(-1) for part in parts], -1).reshape(x.shape[:-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *of_index: Tensor) -> Any:
        return None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, reference: Tensor, tree: KDTree | None) -> Any:
        first = lambda tensor, dim: tensor if dim is None else tensor.movedim(dim, 0)  # noqa: E731
        return _Nearest.apply(first(x, in_dims[0]), first(reference, in_dims[1]), tree), 0
