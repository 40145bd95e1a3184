r"""Group-valued parameters for `geoopt <https://github.com/geoopt/geoopt>`_ and its optimisers.

```python
import geoopt
from trivgeo.geoopt import GroupManifold, RiemannianAdam
from trivgeo.groups import SE

group = SE(3)
pose = geoopt.ManifoldParameter(group.identity(8), manifold=GroupManifold(group))
optimizer = RiemannianAdam([pose], lr=0.05)
```

Only this module imports the package geoopt.
"""

from __future__ import annotations

from typing import Any

import geoopt
import torch
from torch import Tensor
from torch.func import jvp, vjp

from trivgeo._autocast import matmul
from trivgeo._numerics import Constant
from trivgeo.checks import checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup

__all__ = ["GroupManifold", "RiemannianAdam"]


@checked
class GroupManifold(geoopt.Manifold):
    r"""A Lie group with the left-invariant metric that makes the group's basis orthonormal.

    Tangent vectors at g are derivatives of element coordinates, tensors of the shape of g, as geoopt expects. The class
    converts them to left-trivialized vectors, :math:`u = d(L_g)_e v`, and :math:`\langle u, u' \rangle_g = v \cdot v'`.

    - `retr` is :math:`g \exp(v)` with the exponential of the group. It agrees with the geodesic to first order (to
      second order only where :math:`\mathrm{ad}_v^T v = 0`).
    - `expmap` is the geodesic. Where the metric is bi-invariant (SO(n), translations, their products) that is `retr`;
      otherwise the Euler-Arnold equation is integrated in fixed steps (`geodesic`).
    - `transp` is left translation: path-independent and isometric, but not parallel transport of the Levi-Civita
      connection unless the group is abelian.
    - `logmap` and `dist` exist where the metric is bi-invariant; elsewhere they raise `ConfigurationError`.
    - `egrad2rgrad` takes derivatives by the entries of an element to the gradient in the metric.

    Args:
        group: the group; its ``scale`` sets the metric.
        geodesic_steps: steps of `expmap` where the metric is not bi-invariant.

    Raises:
        ConfigurationError: fewer than one step.
    """

    __scaling__ = geoopt.Manifold.__scaling__.copy()
    name = "Group"
    reversible = False

    def __init__(self, group: LieGroup, geodesic_steps: int = 16) -> None:
        super().__init__()
        if geodesic_steps < 1:
            raise ConfigurationError(f"geodesic_steps: expected at least 1, got {geodesic_steps}")
        self.group = group
        self.geodesic_steps = geodesic_steps
        self.ndim = len(group.element_shape)
        c = group.algebra.structure_constants
        # ad(v) antisymmetric for every v: [e_i, e_j].e_k + e_j.[e_i, e_k] = 0
        self.is_bi_invariant = bool(((c + c.transpose(1, 2)).abs() <= 1e-12 * c.abs().max().clamp(min=1.0)).all())
        e, eye = group.identity(group.dim, dtype=torch.float64), torch.eye(group.dim, dtype=torch.float64)
        rows = jvp(lambda v: group.perturb(e, v), (torch.zeros_like(eye),), (eye,))[1].reshape(group.dim, -1)
        self._basis, self._dual = Constant(rows), Constant(torch.linalg.pinv(rows))

    def extra_repr(self) -> str:
        return f"{self.group!r}, geodesic_steps={self.geodesic_steps}"

    # Between tangent vectors and the algebra ------------------------------------------------------------------

    def trivialize(self, x: Tensor, u: Tensor) -> Tensor:
        """The algebra vector ``[*batch, dim]`` of a tangent vector u at x, after projection of u on the tangent space.

        Raises:
            ShapeError: x or u are not of the shape of elements, or do not broadcast.
        """
        x, u = _plain(self.group.check_elements(x, "x"), self.group.check_elements(u, "u"))
        try:
            x, u = torch.broadcast_tensors(x, u)
        except RuntimeError as error:
            raise ShapeError(f"expected x and u that broadcast, got {list(x.shape)} and {list(u.shape)}") from error
        inverse = self.group.inverse(x)
        # zero tangents instead of none: torch evaluates absent ones through slow Python code
        moved = jvp(self.group.compose, (inverse, x.contiguous()), (torch.zeros_like(inverse), u.contiguous()))[1]
        return matmul(moved.flatten(-self.ndim), self._dual.matching(moved))

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The tangent vector ``[*batch, *element_shape]`` at x of an algebra vector v ``[*batch, dim]``.

        Raises:
            ShapeError: x has not the shape of elements, or v not the shape of algebra vectors.
        """
        (x,) = _plain(self.group.check_elements(x, "x"))
        direction = matmul(self.group.check_vectors(v), self._basis.matching(v)).unflatten(-1, self.group.element_shape)
        x, direction = torch.broadcast_tensors(x, direction)
        # the derivative of the product is faster than that of `LieGroup.perturb`
        e = self.group.identity(*self.group.batch_shape(x), dtype=x.dtype, device=x.device)
        return jvp(self.group.compose, (x.contiguous(), e), (torch.zeros_like(x), direction.contiguous()))[1]

    # Required by geoopt ----------------------------------------------------------------------------------------

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        v = self.trivialize(x, u)
        (x,) = _plain(x)
        return self.group.retract(x, v)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        v = self.trivialize(x, u)
        (x,) = _plain(x)
        return self.group.retract(x, v) if self.is_bi_invariant else self.group.compose(x, self.geodesic(v))

    def geodesic(self, v: Tensor) -> Tensor:
        r"""The element ``[*batch, *element_shape]`` at time one of the geodesic from the identity with velocity v.

        The Euler-Arnold equation :math:`\dot\omega = \mathrm{ad}_\omega^T \omega`, :math:`\dot g = g \omega` conserves
        :math:`\mathrm{Ad}_g^{-T} \omega`, so that it is :math:`\dot g = g\, \mathrm{Ad}_g^T v`; integrated by the
        commutator-free method of order four of Celledoni, Marthinsen and Owren (2003). At the same cost its error is
        a third of that of `trivgeo.sde.solvers.RungeKuttaMuntheKaas4`.

        Raises:
            ShapeError: v has not the shape ``[*batch, dim]``.
        """
        group, h = self.group, 1.0 / self.geodesic_steps
        slope = lambda g: group.coadjoint(g, v)  # noqa: E731
        g = group.identity(*v.shape[:-1], dtype=v.dtype, device=v.device)
        for _ in range(self.geodesic_steps):
            k1 = slope(g)
            middle = group.retract(g, 0.5 * h * k1)
            k2 = slope(middle)
            k3 = slope(group.retract(g, 0.5 * h * k2))
            k4 = slope(group.retract(middle, h * (k3 - 0.5 * k1)))
            g = group.retract(g, h / 12.0 * (3.0 * k1 + 2.0 * k2 + 2.0 * k3 - k4))
            g = group.retract(g, h / 12.0 * (-k1 + 2.0 * k2 + 2.0 * k3 + 3.0 * k4))
        return g

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return self.tangent(y, self.trivialize(x, v))

    def retr_transp(self, x: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        step, carried = self.trivialize(x, u), self.trivialize(x, v)
        (x,) = _plain(x)
        y = self.group.retract(x, step)
        return y, self.tangent(y, carried)

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        first = self.trivialize(x, u)
        second = first if v is None else self.trivialize(x, v)
        result = (first * second).sum(-1)
        return result.reshape(*result.shape, *([1] * self.ndim)) if keepdim else result

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        return self.tangent(x, self.trivialize(x, u))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        x, u = _plain(self.group.check_elements(x, "x"), self.group.check_elements(u, "u"))
        e = self.group.identity(*self.group.batch_shape(x), dtype=x.dtype, device=x.device)
        pull_back = vjp(lambda y: self.group.compose(x, y), e)[1]
        return self.tangent(x, matmul(pull_back(u)[0].flatten(-self.ndim), self._basis.matching(x).mT))

    def projx(self, x: Tensor) -> Tensor:
        (x,) = _plain(x)
        return self.group.project(x)

    def _check_shape(self, shape: Any, name: str) -> tuple[bool, str | None]:
        wanted = self.group.element_shape
        if len(shape) < self.ndim or tuple(shape[len(shape) - self.ndim :]) != wanted:
            return False, f"{name}: expected elements [*batch, {', '.join(map(str, wanted))}], got {list(shape)}"
        return True, None

    def _check_point_on_manifold(self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5) -> tuple[bool, str | None]:
        (x,) = _plain(x)
        period = self.group._periods().to(x)
        near = self.projx(x)
        # entries may differ from their projection by whole periods
        near = near + period * ((x - near) / torch.where(period > 0, period, torch.inf)).round()
        if torch.isfinite(near).all() and torch.allclose(near, x, atol=atol, rtol=rtol):
            return True, None
        return False, f"not an element of {self.group!r} within atol={atol:g}, rtol={rtol:g}"

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        projected = self.proju(x, u)
        if torch.allclose(projected, _plain(u)[0].expand(projected.shape), atol=atol, rtol=rtol):
            return True, None
        return False, f"not tangent to {self.group!r} within atol={atol:g}, rtol={rtol:g}"

    # Where the metric is bi-invariant --------------------------------------------------------------------------

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        return self.tangent(x, self._relative_log(x, y))

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        result = torch.linalg.vector_norm(self._relative_log(x, y), dim=-1)
        return result.reshape(*result.shape, *([1] * self.ndim)) if keepdim else result

    def _relative_log(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.is_bi_invariant:
            raise ConfigurationError(
                f"group: expected one with a bi-invariant metric, got {self.group!r}: its geodesics have no closed form"
            )
        x, y = _plain(x, y)
        return self.group.log(self.group.compose(self.group.inverse(x), y))

    # Points ----------------------------------------------------------------------------------------------------

    def random(
        self,
        *size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        std: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> geoopt.ManifoldTensor:
        """Draw elements exp(v), with v normal.

        Args:
            size: shape of the result, ``*batch, *element_shape``.
            dtype: element dtype; default torch's.
            device: element device; default torch's.
            std: standard deviation of v.
            generator: random numbers; None is torch's.
        """
        batch = self._batch(size)
        points = self.group.random(*batch, std=std, generator=generator, dtype=dtype, device=device)
        return geoopt.ManifoldTensor(points, manifold=self)

    def origin(
        self,
        *size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        seed: int | None = 42,
    ) -> geoopt.ManifoldTensor:
        return geoopt.ManifoldTensor(self.group.identity(*self._batch(size), dtype=dtype, device=device), manifold=self)

    def _batch(self, size: Any) -> tuple[int, ...]:
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
        try:
            self._assert_check_shape(shape, "size")
        except ValueError as error:  # raised by geoopt
            raise ShapeError(str(error)) from error
        return shape[: len(shape) - self.ndim]


@checked
class RiemannianAdam(geoopt.optim.RiemannianAdam):
    """geoopt's Riemannian Adam, whose checkpoints resume exactly.

    Loading a state makes PyTorch turn the integer step counter into a float32 tensor, and bias corrections computed
    from it differ in the seventh digit from those of the run that was not interrupted. Here it stays an integer.

    The arguments are those of ``geoopt.optim.RiemannianAdam``, ``stabilize`` among them.

    Raises:
        TypeError: as torch's optimisers, for parameters of another type.
        ValueError: as torch's, for settings out of their range.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._integer_steps()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load ``state_dict``, the state of this optimiser or of geoopt's."""
        super().load_state_dict(state_dict)
        self._integer_steps()

    def _integer_steps(self) -> None:
        for state in self.state.values():
            if isinstance(state.get("step"), Tensor):
                state["step"] = int(state["step"])


def _plain(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors without geoopt's tensor subclass, which transforms of torch.func do not take (geoopt#221)."""
    return tuple(t.as_subclass(Tensor) for t in tensors)
