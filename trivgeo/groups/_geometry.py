"""What follows from product, exponential and logarithm: steps, distances, means, random elements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._autocast import full_precision
from trivgeo._numerics import broadcast_shapes, in_single, is_abstract, is_traced
from trivgeo._random import normal
from trivgeo.checks import check_count, check_tensor, promoted
from trivgeo.errors import ShapeError
from trivgeo.groups._coordinates import GroupCoordinates, as_numbers, check_batch, check_broadcast
from trivgeo.groups._evaluation import own_memory

__all__ = ["GroupGeometry", "exponential_mean"]


class GroupGeometry(GroupCoordinates, ABC):
    """Methods that follow from product, exponential and logarithm; a part of `LieGroup`."""

    # operations of `LieGroup` that they call

    @abstractmethod
    def identity(
        self, *batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor: ...

    @abstractmethod
    def compose(self, g: Tensor, h: Tensor) -> Tensor: ...

    @abstractmethod
    def inverse(self, g: Tensor) -> Tensor: ...

    @abstractmethod
    def exp(self, v: Tensor) -> Tensor: ...

    @abstractmethod
    def log(self, g: Tensor) -> Tensor: ...

    @abstractmethod
    def left_jacobian(self, v: Tensor) -> Tensor: ...

    @abstractmethod
    def _compose(self, g: Tensor, h: Tensor) -> Tensor: ...

    @abstractmethod
    def _inverse(self, g: Tensor) -> Tensor: ...

    @abstractmethod
    def _exp(self, v: Tensor) -> Tensor: ...

    @abstractmethod
    def _log(self, g: Tensor) -> Tensor: ...

    @abstractmethod
    def _exp_with_score(self, v: Tensor, gradient: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def _random_haar(self, batch: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor: ...

    @final
    def has_log(self, g: Tensor) -> Bool[Tensor, "*batch"]:
        """Whether `log` is defined at each element."""
        return torch.isfinite(self.log(g)).all(-1)

    @final
    def right_jacobian(self, v: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n n"]:
        r"""The derivative of `exp`, left-trivialized: :math:`\exp(v + w) = \exp(v) \exp(J_r w)` to first order in w.

        :math:`J_r = \varphi_1(-\mathrm{ad}_v)`; :math:`|\det J_r|` is the density of left Haar measure in the
        coordinates v.
        """
        return self.left_jacobian(-self.check_vectors(v))

    @final
    def retract(self, g: Tensor, v: Float[Tensor, "*batch n"]) -> Tensor:
        """The step ``g exp(v)``."""
        return self.compose(g, self.exp(v))

    @final
    def distance(self, g: Tensor, h: Tensor) -> Float[Tensor, "*batch"]:
        r"""The length :math:`|\log(g^{-1} h)|` of the segment :math:`g \exp(t v)` from g to h; batches broadcast.

        Invariant under multiplication from the left. The Riemannian distance where the metric is invariant on both
        sides, as in the natural bases of the compact groups, and on abelian ones; an upper bound of it elsewhere. NaN
        where the logarithm does not exist.
        """
        return self.log(self.compose(self.inverse(g), h)).norm(dim=-1)

    @final
    def interpolate(self, g: Tensor, h: Tensor, t: Float[Tensor, "*#batch"] | float) -> Tensor:
        r"""The element :math:`g \exp(t \log(g^{-1} h))`: g at t = 0, h at t = 1, at constant speed between.

        The segment of `distance`. Batches, also that of ``t``, broadcast; NaN where the logarithm does not exist.

        Raises:
            ShapeError: batches that do not broadcast.
        """
        v = self.log(self.compose(self.inverse(g), h))
        t = as_numbers("t", t, v)
        check_broadcast(v.shape[:-1], t.shape)
        return self.retract(g, t.unsqueeze(-1) * v)

    @final
    def mean(self, g: Tensor, weights: Float[Tensor, "*#batch m"] | None = None, max_iterations: int = 100) -> Tensor:
        r"""The mean x of elements ``[*batch, m, *element_shape]`` over the last batch dimension.

        The exponential barycentre, :math:`\sum_i w_i \log(x^{-1} g_i) = 0`, by
        :math:`x \leftarrow x \exp(\sum_i w_i \log(x^{-1} g_i))` (Pennec and Arsigny 2013) from the element of largest
        weight. It commutes with multiplication from both sides and with the inverse. Where the metric is invariant on
        both sides (see `distance`) it is a Frechet (Karcher) mean, the only one for elements of a ball of less than
        half the injectivity radius; for elements further apart it is one of several stationary points. NaN where
        the iteration does not converge, or meets an element without logarithm.

        Args:
            g: the elements.
            weights: of any positive sum, NaN for others; default all equal.
            max_iterations: the largest number of iterations.

        Raises:
            ShapeError: no elements to take the mean of, or weights that do not fit them.
        """
        g = self.check_elements(g)
        batch = self.batch_shape(g)
        if not batch or batch[-1] == 0:
            raise ShapeError(f"g: expected at least one element [*batch, m, ...], got batch {list(batch)}")
        if weights is None:
            weights = torch.ones(batch[-1], dtype=g.dtype, device=g.device)
        weights = check_tensor("weights", weights)
        if weights.shape[-1:] != batch[-1:]:
            raise ShapeError(f"weights: expected {batch[-1]} of them, got {list(weights.shape)}")
        check_broadcast(batch, weights.shape)
        batch = broadcast_shapes(batch, weights.shape)
        total = weights.sum(-1, keepdim=True)
        weights = (weights / torch.where(total > 0, total, torch.nan)).expand(batch)
        g = g.expand(*batch, *self._element_shape)
        return in_single(
            lambda g, w: exponential_mean(self, g, w, check_count("max_iterations", max_iterations)),
            g,
            weights.to(g.dtype),
        )

    @final
    def exp_with_score(
        self, v: Float[Tensor, "*batch n"], gradient: Float[Tensor, "*batch n"], weight: Tensor | float = 1.0
    ) -> tuple[Tensor, Float[Tensor, "*batch n"]]:
        r"""exp v and, of a law of v with density p, the trivialized score there of the law of exp v.

        .. math:: s = J_r(v)^{-T} \big(\nabla \log p(v) - \nabla \log |\det J_r(v)|\big)

        is the gradient of the log-density for left Haar measure where exp is one to one. On compact groups it is found
        without Jacobians, from one eigendecomposition of the matrix (Helgason 1984, chapter I, section 5).

        Args:
            v: algebra vectors.
            gradient: of :math:`w \log p` at v.
            weight: w, one number or ``[*batch, 1]``; the score comes with it.

        Returns:
            Elements ``[*batch, *element_shape]`` and :math:`w s`.

        Raises:
            ShapeError: the arguments do not fit each other.
        """
        v, gradient = promoted(v=self.check_vectors(v), gradient=self.check_vectors(gradient, "gradient"))
        check_broadcast(v.shape[:-1], gradient.shape[:-1])
        v, gradient = torch.broadcast_tensors(v, gradient)
        dtype, given = v.dtype, (v, gradient)
        if torch.finfo(dtype).bits == 16:  # as `in_single`
            v, gradient = v.float(), gradient.float()
        weight = as_numbers("weight", weight, v)
        if weight.ndim and weight.shape[-1] != 1:
            raise ShapeError(f"weight: expected a number or one for each vector, [*batch, 1], got {list(weight.shape)}")
        check_broadcast(v.shape[:-1], weight.shape[:-1])
        v, gradient, _ = torch.broadcast_tensors(v, gradient, weight)
        element, score = full_precision(self._exp_with_score)(
            self._basis.to_natural(v), self._basis.covector_to_natural(gradient), weight.reshape(weight.shape or (1,))
        )
        element, score = element.to(dtype), self._basis.covector_from_natural(score).to(dtype)
        if is_traced():
            return element, score
        return own_memory(element, given), own_memory(score, given)

    @final
    def random(
        self,
        *batch: int,
        std: float = 1.0,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Elements ``exp(v)`` with v normal of standard deviation ``std`` in every basis direction.

        Not Haar-uniform: see `random_haar`. All are in the component of the identity, also on groups of several.
        """
        check_batch(batch, dtype, device)
        v = normal((*batch, self.dim), torch.empty(0, dtype=dtype, device=device), generator)
        return self.exp(std * v)

    @final
    def random_haar(
        self,
        *batch: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Elements ``[*batch, *element_shape]`` of the uniform law: the Haar measure of total mass one.

        Raises:
            ConfigurationError: the group is not compact (or not known to be, see `is_compact`), so that it has none.
        """
        check_batch(batch, dtype, device)
        return in_single(
            lambda like: self._random_haar(batch, like, generator), self.identity(dtype=dtype, device=device)
        )


def exponential_mean(group: GroupGeometry, g: Tensor, weights: Tensor, max_iterations: int) -> Tensor:
    """The mean m of ``g`` along the last batch dimension, NaN where not found; see `LieGroup.mean`.

    Args:
        group: where.
        g: ``[*batch, m, *element_shape]``.
        weights: ``[*batch, m]``, of sum one.
        max_iterations: after which a row is given up.
    """
    places = len(group.element_shape)
    start = weights.argmax(-1)
    index = start[..., None, *[None] * places].expand(*start.shape, 1, *group.element_shape)
    mean = torch.take_along_dim(g, index, -places - 1).squeeze(-places - 1)
    eps = torch.finfo(g.dtype).eps
    found = torch.zeros_like(start, dtype=torch.bool)
    last = torch.full_like(weights[..., 0], torch.inf)
    for _ in range(max_iterations):
        logs = group._log(group._compose(group._inverse(mean).unsqueeze(-places - 1), g))
        step = (weights.unsqueeze(-1) * logs).sum(-2)
        size = step.detach().abs().amax(-1)
        mean = group._compose(mean, group._exp(step))
        # the steps of spread elements shrink by a factor only: go on until they are rounding, or shrink no more
        scale = 1.0 + logs.detach().abs().amax((-2, -1))
        found = size <= eps**0.75 * scale
        settled = (size <= eps * scale) | (found & (size > 0.9 * last))
        last = size
        if not is_abstract(g) and not bool((~settled & torch.isfinite(size)).any()):
            break
    # NaN, of an element without a logarithm, stays
    return torch.where(found[..., *[None] * places], mean, torch.nan)
