"""Residuals of clouds of points: to the same point of a reference, or to the nearest one."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from scipy.spatial import KDTree
from torch import Tensor, nn

from trivgeo._autocast import matmul
from trivgeo.actions import Referenced
from trivgeo.checks import check_type, checked, promoted
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError

_NUM_NEIGHBOURS = 10  # nearest points of a reference, the point itself among them, that give a normal


@checked
def with_normals(points: Float[Tensor, "*batch k n"]) -> Float[Tensor, "*batch k m"]:
    """Return clouds with the normals of their surfaces, ``[*batch, k, 2 n]``, for `NearestPoints`.

    Args:
        points: points of the surfaces; the normal at each is the direction in which its ten nearest ones vary least.

    Raises:
        ShapeError: they are no clouds.
        NonFiniteError: they hold NaN or infinity.
    """
    if points.ndim < 2 or 0 in points.shape:
        raise ShapeError(f"points: expected clouds [*batch, k, n], got {list(points.shape)}")
    if not bool(torch.isfinite(points).all()):
        raise NonFiniteError("points: expected finite coordinates, got NaN or infinity")
    return torch.cat([points, normals_of(points)], -1)


def normals_of(points: Float[Tensor, "*batch k n"]) -> Float[Tensor, "*batch k n"]:
    """Return unit normals ``[*batch, k, n]``: at each point, the direction in which its nearest neighbours vary least.

    Normals have no gradient, and an arbitrary sign.
    """
    clouds = points.detach().double().cpu().reshape(-1, *points.shape[-2:])
    number = min(_NUM_NEIGHBOURS, clouds.shape[1])
    # one tree for all: clouds lie in layers of one more coordinate, further apart than any is wide
    layer = torch.arange(len(clouds)) * (2.0 * (clouds.amax((0, 1)) - clouds.amin((0, 1))).norm() + 1.0)
    layered = torch.cat([clouds, layer.reshape(-1, 1, 1).expand(*clouds.shape[:2], 1)], -1).flatten(0, 1).numpy()
    index = KDTree(layered).query(layered, k=[*range(1, number + 1)])[1]
    about = clouds.flatten(0, 1)[torch.from_numpy(index)]
    about = about - about.mean(1, keepdim=True)
    return torch.linalg.eigh(matmul(about.mT, about))[1][..., 0].reshape(points.shape).to(points)


_MAX_DISTANCES_IN_MEMORY = 2**22
_MIN_TREE_POINTS, _MAX_TREE_COORDINATES = 256, 6  # clouds for which search trees are faster than all distances
_LARGEST_IN_TREE = 1e150  # coordinate whose square is finite


def nearest_indices(
    x: Float[Tensor, "*batch n"], reference: Float[Tensor, "*clouds k n"], tree: KDTree | None = None
) -> Int[Tensor, "*batch"]:
    """Return the index of the nearest point of a reference for each point; it has no derivative.

    Args:
        x: the points; ``[b, m, n]`` if each of b clouds has a reference of its own.
        reference: ``[k, n]``, or ``[b, k, n]`` for references of their own.
        tree: search tree of the one reference, for points on the CPU; else trees are built for large clouds there, and
            all distances are computed for others, in parts.
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
        many, n = min(x.shape[-2], reference.shape[-2]) if x.ndim > 1 else 0, x.shape[-1]
        if x.device.type == "cpu" and many >= _MIN_TREE_POINTS and n <= _MAX_TREE_COORDINATES:
            return _nearest_by_trees(x, reference)
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


def _nearest_by_trees(
    x: Float[Tensor, "*batch m n"], reference: Float[Tensor, "*clouds k n"]
) -> Int[Tensor, "*batch m"]:
    """Return the indices of nearest points by a search tree for each cloud."""
    shape = torch.broadcast_shapes(x.shape[:-2], reference.shape[:-2])
    clouds = reference.detach().nan_to_num().double().clamp(-_LARGEST_IN_TREE, _LARGEST_IN_TREE)
    points = x.double().clamp(-_LARGEST_IN_TREE, _LARGEST_IN_TREE)
    pairs = zip(
        *(part.expand(*shape, *part.shape[-2:]).reshape(-1, *part.shape[-2:]) for part in (clouds, points)), strict=True
    )
    found = [
        KDTree(cloud.numpy(), balanced_tree=False, compact_nodes=False).query(part.numpy())[1] for cloud, part in pairs
    ]
    return torch.stack([torch.from_numpy(index) for index in found]).reshape(*shape, x.shape[-2])


@checked
class PairedPoints(nn.Module):
    """Residuals of clouds ``[batch, m, n]``: from each point of a reference to the same point of the cloud.

    Args:
        reference: ``[m, n]``, in the order of the clouds; ``None`` if each datum brings its own, see `WithReference`.

    Raises:
        ShapeError: the reference is no cloud; or (when called) the clouds are of other points.
        NonFiniteError: the reference holds NaN or infinity.
        ConfigurationError: (when called) data without a reference where none was given.
    """

    def __init__(self, reference: Float[Tensor, "m n"] | None = None) -> None:
        super().__init__()
        self.reference: Tensor | None
        self.register_buffer("reference", None if reference is None else _check_reference(reference))

    def forward(self, x: Float[Tensor, "batch m n"] | Referenced) -> Float[Tensor, "batch m n"]:
        """Return the differences of clouds x and reference, ``[batch, m, n]``.

        Raises:
            ShapeError: the numbers of points or coordinates differ.
        """
        cloud, reference = _cloud_and_reference(x, self.reference)
        if cloud.ndim != 3 or cloud.shape[-2:] != reference.shape[-2:]:
            wanted = ", ".join(map(str, reference.shape[-2:]))
            raise ShapeError(f"x: expected clouds [batch, {wanted}], as the reference, got {list(cloud.shape)}")
        return cloud - reference


@checked
class NearestPoints(nn.Module):
    r"""Residuals of clouds ``[batch, m, n]``: from the nearest point of a reference to each point of the cloud.

    For points on a surface, two samples of which have no points in common, ``tangent`` below one is more accurate and
    needs fewer steps: the part of a difference d along the surface counts less, :math:`r = (n \cdot d)\, n + \tau (d -
    (n \cdot d)\, n)`, with normals n of the reference from its ten nearest points. At zero it is the distance to the
    tangent plane (Chen and Medioni 1992).

    The reference may show more than the clouds do (partial views); for clouds that hold more than the reference, or
    outliers, take a loss that does not grow: `GemanMcClure`, or `Trimmed`.

    ```python
    action = WithReference(PointCloud(SE(3)))  # a batch of registrations, each with its own target
    energy = LeastSquares(NearestPoints(tangent=0.3), GemanMcClure(0.1))
    result = Inverter(action, energy, [LevenbergMarquardt(20)])(Referenced(scans, with_normals(targets)))
    ```

    Args:
        reference: ``[k, n]``, in any order; ``None`` if each datum brings its own, see `WithReference`: ``[batch, k,
            n]``, or `with_normals` if ``tangent`` is below one.
        tangent: tau, in [0, 1]; 0.3 is good for surfaces.

    Raises:
        ShapeError: the reference is no cloud; or (when called) the clouds have other coordinates.
        NonFiniteError: the reference holds NaN or infinity.
        ConfigurationError: tau is out of its range; or (when called) data without a reference where none was given.
    """

    def __init__(self, reference: Float[Tensor, "k n"] | None = None, tangent: float = 1.0) -> None:
        super().__init__()
        if isinstance(tangent, bool) or not isinstance(tangent, int | float) or not 0.0 <= tangent <= 1.0:
            raise ConfigurationError(f"tangent: expected a number in [0, 1], got {tangent!r}")
        self.tangent = tangent
        self.reference: Tensor | None
        self.normals: Tensor | None
        if reference is not None:
            reference = _check_reference(reference)
        self.register_buffer("reference", reference)
        self._tree: KDTree | None
        _build_tree(self)
        self.register_load_state_dict_post_hook(_build_tree)
        self.register_buffer("normals", None if reference is None or tangent == 1.0 else normals_of(reference))

    def forward(self, x: Float[Tensor, "batch m n"] | Referenced) -> Float[Tensor, "batch m n"]:
        """Return the residuals of clouds x, ``[batch, m, n]``; derivatives keep the nearest points fixed.

        Raises:
            ShapeError: clouds, or references that come with the data, have other shapes.
        """
        cloud, reference = _cloud_and_reference(x, self.reference)
        normals = self.normals
        if self.reference is None and self.tangent < 1.0:
            if reference.shape[-1] % 2:
                raise ShapeError(f"x: expected references with_normals, [batch, k, 2 n], got {list(reference.shape)}")
            reference, normals = reference.chunk(2, -1)
        if cloud.ndim != 3 or cloud.shape[-1] != reference.shape[-1]:
            raise ShapeError(f"x: expected clouds [batch, m, {reference.shape[-1]}], got {list(cloud.shape)}")
        index = nearest_indices(cloud, reference, self._tree)
        d = cloud - _take_points(reference, index)
        return self.weighed(d, None if normals is None else _take_points(normals, index))

    def weighed(
        self, d: Float[Tensor, "*batch n"], normals: Float[Tensor, "*#batch n"] | None
    ) -> Float[Tensor, "*batch n"]:
        """Return ``d`` with its part along the surface as it counts; ``normals`` are ``None`` if all of it does."""
        if normals is None:
            return d
        return self.tangent * d + (1.0 - self.tangent) * (d * normals).sum(-1, keepdim=True) * normals

    def nearest(self, x: Float[Tensor, "*batch n"]) -> Int[Tensor, "*batch"]:
        """Return the index of the nearest point of the reference, for each of points x, ``[*batch]``.

        Computed by a tree on the CPU, by all distances on other devices.

        Raises:
            ConfigurationError: each datum brings its own reference.
            ShapeError: points have another number of coordinates.
        """
        if self.reference is None:
            raise ConfigurationError("reference: expected one to search in, got None")
        if x.shape[-1] != self.reference.shape[-1]:
            raise ShapeError(f"x: expected points [..., {self.reference.shape[-1]}], got {list(x.shape)}")
        return nearest_indices(x, self.reference, self._tree)


@checked
class SymmetricNearestPoints(nn.Module):
    """Residuals of clouds ``[batch, m, n]``, both ways.

    From the nearest point of a reference to each point of the cloud, and from each point of the reference to the
    nearest point of the cloud. A transformation with a scale cannot shrink the cloud to one point to make them small,
    as it can with those of `NearestPoints` alone.

    Args:
        reference: points ``[k, n]``, one reference for all clouds.
        tangent: what counts of a residual along the surface of the reference, see `NearestPoints`.

    Raises:
        ShapeError: see `NearestPoints`, also for `NonFiniteError`.
        ConfigurationError: the reference is no tensor of floating-point numbers, or tau is out of its range.
    """

    def __init__(self, reference: Float[Tensor, "k n"], tangent: float = 1.0) -> None:
        super().__init__()
        self.forth = NearestPoints(reference, tangent)

    def forward(self, x: Float[Tensor, "batch m n"]) -> Float[Tensor, "batch q n"]:
        """Return the residuals of clouds x, m to the reference and k back, with nearest points fixed in derivatives."""
        there = self.forth(x)
        reference = self.forth.reference
        assert reference is not None
        each = reference.expand(len(x), -1, -1)
        back = torch.take_along_dim(x, nearest_indices(each, x).unsqueeze(-1), -2) - each
        return torch.cat([there, self.forth.weighed(back, self.forth.normals)], -2)


def _build_tree(module: NearestPoints, *_: Any) -> None:
    """Build the search tree of the reference, if there is one; also called when weights were loaded."""
    points = module.reference
    module._tree = None if points is None else KDTree(points.detach().double().cpu().numpy())


def _cloud_and_reference(x: Any, reference: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the clouds, and the reference for all of them or one for each."""
    if reference is not None:
        if isinstance(x, Referenced):
            raise ConfigurationError(
                "x: expected clouds alone, since the energy has a reference for all, got Referenced"
            )
        return x, reference
    x = check_type("x", x, Referenced)
    if x.reference.ndim != 3 or 0 in x.reference.shape:
        raise ShapeError(f"x.reference: expected clouds [batch, k, n], got {list(x.reference.shape)}")
    return x.x, x.reference


def _take_points(points: Tensor, index: Tensor) -> Tensor:
    """Return the points of given indices, of the one cloud for all or of one for each row."""
    return points[index] if points.ndim == 2 else torch.take_along_dim(points, index.unsqueeze(-1), -2)


def _check_reference(reference: Tensor) -> Tensor:
    if not isinstance(reference, Tensor) or not reference.is_floating_point():
        raise ConfigurationError(f"reference: expected a tensor of floating-point numbers, got {reference!r}")
    if reference.ndim != 2 or 0 in reference.shape:
        raise ShapeError(f"reference: expected points [m, n], got {list(reference.shape)}")
    if bad := int((~torch.isfinite(reference)).sum()):
        raise NonFiniteError(f"reference: expected finite numbers, got {bad} NaN or infinite ones")
    return reference
