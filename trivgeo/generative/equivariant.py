r"""Conditional models that commute with motions: :math:`p(h g \mid h c) = p(g \mid c)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._random import integers
from trivgeo._torch import pytree
from trivgeo.checks import check_count, check_tensor, check_values, checked
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.generative.conditioning import batched_condition, ordered_condition
from trivgeo.generative.history import TrainingHistory
from trivgeo.generative.model import GroupDiffusion
from trivgeo.groups import DirectProduct, LieGroup

__all__ = ["EquivariantDiffusion", "principal_frames"]

Frame = Callable[[Any], Tensor]
"""A batch of conditions to elements ``[b, *element_shape]``, or ``[b, k, *element_shape]`` for k equivalent frames."""

InFrame = Callable[[Tensor, Any], Any]
"""(inverse frames ``[b, *element_shape]``, conditions) to the conditions as they look in the frames."""


@checked
class EquivariantDiffusion(nn.Module):
    r"""A model of group elements given a condition that moves with them: poses given a scene, grasps given an object.

    A frame f(c) is an element that moves with the condition, :math:`f(h c) = h f(c)`. The model learns what it sees
    from there, a `GroupDiffusion` :math:`p_0` of :math:`f(c)^{-1} g` given the condition moved by :math:`f(c)^{-1}`,
    which no motion changes:

    .. math:: p(g \mid c) = p_0(f(c)^{-1} g \mid f(c)^{-1} c), \quad p(h g \mid h c) = p(g \mid c).

    The second equation is exact, also of densities, since left Haar measure does not change. If there are k frames that
    nothing tells apart, such as the principal axes of a point cloud with their signs, p is the mean over them.

    ```python
    model = EquivariantDiffusion(SE(3), principal_frames, condition=encoder)  # encoder of point clouds
    model.fit(grasps, clouds)
    grasp = model.sample(10, condition=cloud)

    model = EquivariantDiffusion(SE(3), lambda pose: pose)  # grasps of one object of known pose
    ```

    On a power ``G ** N``, such as a trajectory of poses, frames of G move all factors.

    Args:
        group: the group of the elements.
        frame: function from conditions ``[b, ...]``, a tensor or tree of tensors, to frames ``[b, *element_shape]``, or
            ``[b, k, *element_shape]`` for k frames.
        in_frame: function (inverse frames ``[b, *element_shape]``, conditions) to what the model is given: the
            conditions as they look in the frame. By default the action of the group on points, if the model takes
            conditions, and nothing if it does not.
        kind: see `GroupDiffusion`, also for ``seed`` and ``condition``.
        settings: further arguments of `GroupDiffusion`.

    Attributes:
        model: the model of what is seen from the frame.

    Raises:
        ConfigurationError: a setting is out of range.
    """

    def __init__(
        self,
        group: LieGroup,
        frame: Frame,
        in_frame: InFrame | None = None,
        kind: str = "flow",
        seed: int = 0,
        *,
        condition: int | nn.Module | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.group, self.frame, self.in_frame = group, frame, in_frame
        self.model = GroupDiffusion(group, kind, seed, condition=condition, **settings)

    @property
    def history(self) -> TrainingHistory | None:
        """Losses of the training, see `TrainingHistory`; ``None`` before it."""
        return self.model.history

    def fit(self, samples: Tensor, condition: Any, *, held_out: Any = 0.0, **settings: Any) -> EquivariantDiffusion:
        """Train on elements and their conditions, see `GroupDiffusion.fit`.

        Args:
            samples: elements ``[m, *element_shape]``.
            condition: their conditions ``[m, ...]``.
            held_out: a share of the samples, or a pair of elements and conditions.
            settings: further arguments of `GroupDiffusion.fit`, such as ``steps``.

        Returns:
            The model itself.

        Raises:
            ShapeError: elements, conditions or frames are not as many.
            NonFiniteError: a frame is not finite.
            ConfigurationError: a setting is out of range.
        """
        if isinstance(held_out, tuple):
            held_out = self._seen(*held_out)
        elif isinstance(held_out, Tensor):
            raise ConfigurationError("held_out: expected a share, or a pair of elements and conditions, got elements")
        self.model.fit(*self._seen(samples, condition), held_out=held_out, **settings)
        if self.model.fitted is not None:
            self.model.fitted.moving_ndims = tuple(x.ndim - 1 for x in _tensors(condition))
        return self

    def distil(self, condition: Any, **settings: Any) -> EquivariantDiffusion:
        """Train for samples in few steps, see `GroupDiffusion.distil`; the result is as equivariant.

        Args:
            condition: conditions ``[m, ...]`` of which samples will be asked for, such as those of the training.
            settings: further arguments of `GroupDiffusion.distil`, such as ``steps``.

        Returns:
            The model itself.

        Raises:
            ShapeError: there are no conditions, or frames are not as many.
            NonFiniteError: a frame is not finite, or the training diverged.
            ConfigurationError: see `GroupDiffusion.distil`.
        """
        count = _length(condition)
        unit = self.group.identity(count)
        self.model.distil(self._seen(unit, condition)[1], **settings)
        return self

    def sample(
        self,
        num_samples: int | Sequence[int],
        *,
        condition: Any,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> Tensor:
        """Draw elements ``[num_samples, *element_shape]`` given conditions.

        Args:
            num_samples: see `GroupDiffusion.sample`.
            condition: one condition for all, or one for each ``[num_samples, ...]``.
            generator: source of the noise.
            settings: further arguments of `GroupDiffusion.sample`.

        Raises:
            ShapeError: there are not as many conditions.
        """
        sizes = list(num_samples) if isinstance(num_samples, Sequence) else [num_samples]
        shape = torch.Size([check_count("num_samples", size) for size in sizes])
        condition = self._flat(condition, shape)
        frames = self._frames(condition)
        which = integers(frames.shape[1], (shape.numel(),), torch.empty(0), generator).to(frames.device)
        rows = torch.zeros_like(which) if len(frames) == 1 else torch.arange(len(frames), device=frames.device)
        chosen = frames[rows, which]
        given = self._given(chosen, _rows(condition, rows))
        found = self.model.sample(shape.numel(), condition=given, generator=generator, **settings)
        return self.group.compose(chosen.to(found), found).reshape(*shape, *self.group.element_shape)

    def log_prob(self, g: Tensor, *, condition: Any, **settings: Any) -> Float[Tensor, "*batch"]:
        """Return log-densities ``[*batch]`` of elements given conditions, for left Haar measure.

        Args:
            g: elements ``[*batch, *element_shape]``.
            condition: one condition for all, or one for each ``[*batch, ...]``.
            settings: further arguments of `GroupDiffusion.log_prob`.

        Raises:
            ShapeError: there are not as many conditions.
        """
        g = self.group.check_elements(g, "g")
        batch = self.group.batch_shape(g)
        flat = g.reshape(-1, *self.group.element_shape)
        condition = self._flat(condition, batch)
        if _length(condition) == 1:
            condition = _rows(condition, torch.zeros(len(flat), dtype=torch.long))
        frames = self._frames(condition)
        logs = []
        for k in range(frames.shape[1]):
            chosen = frames[:, k]
            seen = self.group.compose(self.group.inverse(chosen), flat.to(chosen))
            logs.append(self.model.log_prob(seen, condition=self._given(chosen, condition), **settings))
        return (torch.stack(logs).logsumexp(0) - torch.tensor(float(len(logs))).log()).reshape(batch)

    def save(self, path: str | Path) -> None:
        """Write the model to the file ``path``, see `GroupDiffusion.save`; the functions are not in it."""
        self.model.save(path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        group: LieGroup,
        frame: Frame,
        in_frame: InFrame | None = None,
        *,
        condition: nn.Module | None = None,
        network: nn.Module | None = None,
    ) -> EquivariantDiffusion:
        """Read a model that `save` wrote.

        Args:
            path: the file.
            group: see `EquivariantDiffusion`, also for ``frame`` and ``in_frame``.
            condition: see `GroupDiffusion.load`, also for ``network``.

        Raises:
            CheckpointError: the file holds no such model.
        """
        model = cls(group, frame, in_frame)
        model.model = GroupDiffusion.load(path, group, condition=condition, network=network)
        return model.eval()

    def _seen(self, samples: Tensor, condition: Any) -> tuple[Tensor, Any]:
        """Elements and conditions as they look in every frame, one after the other."""
        samples = self.group.check_elements(samples, "samples")
        if (count := _length(condition)) != len(samples):
            raise ShapeError(f"condition: expected one for each of {len(samples)} elements, got {count}")
        frames = self._frames(condition)
        parts = []
        for k in range(frames.shape[1]):
            chosen = frames[:, k].to(samples)
            seen = self.group.compose(self.group.inverse(chosen), samples)
            parts.append((seen, self._given(chosen, condition)))
        whole = pytree.tree_map(lambda *x: torch.cat(x) if isinstance(x[0], Tensor) else x[0], *parts)
        # rows in turn, so that all frames of a datum lie side by side
        order = torch.arange(len(samples) * len(parts)).reshape(len(parts), -1).mT.flatten()
        elements, given = pytree.tree_map(lambda x: x[order.to(x.device)] if isinstance(x, Tensor) else x, whole)
        return elements, given

    def _flat(self, condition: Any, batch: torch.Size) -> Any:
        """Conditions with one batch dimension, of the length of the flattened batch or one.

        Of a model that was not trained, or not as one that is equivariant, one condition has a batch dimension.
        """
        condition = ordered_condition(condition)
        tensors, fitted = _tensors(condition), self.model.fitted
        ndims = None if fitted is None else fitted.moving_ndims
        if ndims is None:
            leading = 1 if _length(condition) == 1 else len(batch)
            ndims = tuple(x.ndim - leading for x in tensors)
        if all(x.ndim == ndim + 1 and len(x) == 1 for x, ndim in zip(tensors, ndims, strict=False)):
            tensors = [x[0] for x in tensors]
        found = batched_condition(tensors, ndims, batch)
        count = max(map(len, found), default=0)
        rows = iter([x.expand(count, *x.shape[1:]) for x in found])
        return pytree.tree_map(lambda x: next(rows) if isinstance(x, Tensor) else x, condition)

    def _frames(self, condition: Any) -> Tensor:
        """Frames of conditions, ``[b, k, *element_shape]``."""
        frames = check_tensor("frame", self.frame(condition))
        group, count = self.group, _length(condition)
        factor = group.factors[0] if isinstance(group, DirectProduct) else group
        own = frames.ndim > len(factor.element_shape) and (
            tuple(frames.shape[frames.ndim - len(factor.element_shape) :]) == tuple(factor.element_shape)
        )
        if isinstance(group, DirectProduct) and own and all(f is factor for f in group.factors):
            frames = frames.flatten(-len(factor.element_shape)).repeat(*[1] * (frames.ndim - 2), len(group.factors))
        frames = group.check_elements(frames, "frame")
        batch = group.batch_shape(frames)
        if len(batch) not in (1, 2) or batch[0] != count or 0 in batch:
            raise ShapeError(f"frame: expected frames [{count}, ...] or [{count}, k, ...], got {list(frames.shape)}")
        if not bool(torch.isfinite(frames).all()):
            raise NonFiniteError("frame: expected finite frames, got NaN or infinity")
        return frames.unsqueeze(1) if len(batch) == 1 else frames

    def _given(self, frames: Tensor, condition: Any) -> Any:
        """What the model is given: conditions as they look in the frames."""
        inverse = self.group.inverse(frames)
        if self.in_frame is not None:
            return self.in_frame(inverse, condition)
        if self.model.encoder is None:
            return None
        return self.group.action()(inverse, condition)


@checked
def principal_frames(points: Float[Tensor, "b p n"]) -> Float[Tensor, "b k n m"]:
    """Return the frames of SE(n) that the principal axes of point clouds make, ``[b, k, n, n + 1]``.

    The origin is the mean point, and the axes are sorted by the variance along them. Their signs are not known: there
    are k = 2 frames in the plane and 4 in space. Where two variances are equal the axes jump between clouds.

    Args:
        points: point clouds of p points of the plane or of space, ``[b, p, n]``.

    Raises:
        ShapeError: they are no points of the plane or of space, or there are less than two.
        NonFiniteError: they hold NaN or infinity.

    Example:
        >>> principal_frames(torch.randn(5, 10, 3)).shape
        torch.Size([5, 4, 3, 4])
    """
    n = points.shape[-1]
    if n not in (2, 3) or points.shape[-2] < 2:
        raise ShapeError(f"points: expected clouds [b, p, 2] or [b, p, 3], p at least 2, got {list(points.shape)}")
    if not bool(torch.isfinite(check_values("points", points)).all()):
        raise NonFiniteError("points: expected finite numbers, got NaN or infinity")
    centre = points.mean(-2)
    away = points - centre.unsqueeze(-2)
    axes = torch.linalg.eigh(away.mT @ away)[1].flip(-1)
    axes = torch.cat([axes[..., :-1], axes[..., -1:] * torch.linalg.det(axes)[..., None, None]], -1)
    signs = points.new_tensor([[1, 1], [-1, -1]] if n == 2 else [[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    turned = axes.unsqueeze(1) * signs.unsqueeze(-2)
    return torch.cat([turned, centre[:, None, :, None].expand(*turned.shape[:3], 1)], -1)


def _tensors(condition: Any) -> list[Tensor]:
    """The tensors of conditions, in the order of keys."""
    return [x for x in pytree.tree_leaves(ordered_condition(condition)) if isinstance(x, Tensor)]


def _length(condition: Any) -> int:
    """The number of conditions of a batch."""
    leaves = [x for x in pytree.tree_leaves(condition) if isinstance(x, Tensor) and x.ndim]
    if not leaves:
        raise ConfigurationError("condition: expected tensors with a batch dimension, got none")
    return len(leaves[0])


def _rows(condition: Any, rows: Tensor) -> Any:
    return pytree.tree_map(lambda x: x[rows.to(x.device)] if isinstance(x, Tensor) else x, condition)
