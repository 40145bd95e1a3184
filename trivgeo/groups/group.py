"""The contract of a Lie group whose elements are plain tensors."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo._autocast import full_precision
from trivgeo._numerics import broadcast_shapes, in_single, is_abstract, is_traced, jvp, log_abs_det, on_cpu
from trivgeo._random import normal
from trivgeo.checks import check_count, check_device, check_dtype, check_tensor, checked, promoted
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups.action import PointAction
from trivgeo.groups.algebra import LieAlgebra
from trivgeo.groups.basis import Basis, Scale
from trivgeo.groups.linalg import phi1_ad

_FULL_PRECISION = (torch.float64, torch.float32)
_MAX_ROUNDING = 1e-3  # relative distance of the entries of a value from those of the element that it stands for
_NUM_ROUNDINGS = 8  # rounding errors of an entry, in units of the last digit of its dtype
_FINGERPRINT_NORM = 0.5  # norm of the vectors whose exponentials are the fingerprint
_MAX_RELATIVE_ERROR = 1e-6  # difference of entries of equal fingerprints, over the entry
_MAX_ABSOLUTE_ERROR = 1e-9  # difference of entries of equal fingerprints, over the largest entry of the element
_FINGERPRINT_ENTRIES = ("dim", "element_shape", "exp", "products")  # keys that every fingerprint has


class Evaluator(ABC):
    """Evaluates operations of a group on batches."""

    @abstractmethod
    def __call__(self, f: Callable[..., Tensor], ranks: Sequence[int], arguments: Sequence[Tensor]) -> Tensor:
        """Evaluate ``f`` on checked arguments.

        Args:
            f: a method of a group, of one or two tensors.
            ranks: the number of dimensions of one element of each argument.
            arguments: tensors whose batches broadcast.
        """


class EagerEvaluator(Evaluator):
    """Calls the operation directly."""

    def __call__(self, f: Callable[..., Tensor], ranks: Sequence[int], arguments: Sequence[Tensor]) -> Tensor:
        """Evaluate ``f``; the result shares no memory with an argument.

        Arguments without a batch become a batch of one. Then no entry is a tensor without dimensions: forward mode
        gives the product of such a float32 tensor with a Python number a float64 derivative (see `trivgeo._torch`).
        """
        if arguments[0].ndim > ranks[0] and arguments[-1].ndim > ranks[-1]:
            value = f(*arguments) if arguments[0].dtype in _FULL_PRECISION else in_single(f, *arguments)
        else:
            single = [x.ndim == rank for x, rank in zip(arguments, ranks, strict=True)]
            value = in_single(f, *(x.unsqueeze(0) if one else x for x, one in zip(arguments, single, strict=True)))
            value = value.squeeze(0) if all(single) else value
        return value if is_traced() else own_memory(value, arguments)


EAGER = EagerEvaluator()


def own_memory(value: Tensor, arguments: Sequence[Tensor]) -> Tensor:
    """Return a result that may be changed in place: a copy if it shares memory with an argument, or with itself."""
    if 0 in value.stride() or any(_share_memory(value, x) for x in arguments):
        return value.clone()
    return value


def _share_memory(a: Tensor, b: Tensor) -> bool:
    a, b = torch.func.debug_unwrap(a), torch.func.debug_unwrap(b)
    return a is b or a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


GroupT = TypeVar("GroupT", bound="LieGroup")


# `checked` skips operations: elements, vectors and points are checked where they become tensors of one dtype and device
_OPERATIONS = (
    *("identity", "compose", "inverse", "exp", "log", "has_log"),
    *("Ad", "coadjoint", "log_modular", "left_jacobian", "right_jacobian", "exp_with_score"),
    *("project", "retract", "perturb", "batch_shape", "check_elements"),
)


@checked(but=_OPERATIONS)
class LieGroup(ABC):
    r"""A Lie group; a stateless operator on tensors of elements ``[*batch, *element_shape]``.

    Elements need not be matrices: they are coordinates of some global parametrisation of the group. Algebra
    vectors ``[*batch, dim]`` are coordinates in the basis of `algebra`, which is declared orthonormal.
    All operations accept any leading batch dimensions, which broadcast. A group is connected unless `num_components`
    says otherwise.

    Convention: left-trivialized. A tangent vector at g is :math:`d(L_g)_e v`, and a step is
    :math:`g \leftarrow g \exp v`. The Haar measure :math:`\mu` is the left one, and the modular function is
    :math:`\lambda(g) = \det \mathrm{Ad}(g^{-1})`, :math:`\mu(A g) = \lambda(g) \mu(A)`.

    Subclasses implement the required methods, which begin with an underscore. The public methods are final.

    Args:
        natural_algebra: the algebra in the natural basis.
        element_shape: the shape of one element.
        scale: the basis in units of the natural one: one positive number, one per basis element, or an invertible
            matrix ``[n, n]`` whose row i is the i-th basis element. It is part of the group's definition, since it
            sets how far isotropic noise goes in each direction.

    Raises:
        ConfigurationError: the scale is not positive (a matrix: not invertible) and finite, or has the wrong shape.
    """

    def __init__(
        self,
        natural_algebra: LieAlgebra,
        element_shape: Sequence[int],
        scale: Scale = None,
    ) -> None:
        self._element_shape = tuple(element_shape)
        self._one = (len(self._element_shape),)  # number of dimensions of one element
        self._two = self._one * 2
        self._natural_algebra = natural_algebra
        self._fingerprint: dict[str, Any] | None = None
        self._evaluator: Evaluator = EAGER
        self._set_scale(scale)

    # Required: operations of a group, in the natural basis and without checks of arguments ---------------------------

    @abstractmethod
    def _identity(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor: ...

    @abstractmethod
    def _compose(self, g: Tensor, h: Tensor) -> Tensor: ...

    @abstractmethod
    def _inverse(self, g: Tensor) -> Tensor: ...

    @abstractmethod
    def _exp(self, v: Tensor) -> Tensor: ...

    @abstractmethod
    def _log(self, g: Tensor) -> Tensor: ...

    @abstractmethod
    def _adjoint(self, g: Tensor) -> Tensor: ...

    # Optional: written out where that is cheaper than the default, or where a group differs --------------------------

    def _tangent(self, v: Tensor) -> Tensor:
        """d exp at zero, in element coordinates; subclasses write it out where that is cheaper."""
        return jvp(self._exp, (torch.zeros_like(v),), (v,))[1]

    def _log_modular(self, g: Tensor) -> Tensor:
        """log det Ad(g^-1) where it is not constant; subclasses write it out where that is cheaper."""
        return -log_abs_det(self._adjoint(g))

    def _left_jacobian(self, v: Tensor) -> Tensor:
        """phi_1(ad v) in the natural basis; subclasses write it out where that is cheaper."""
        return phi1_ad(self._natural_algebra, v)

    def _coadjoint(self, g: Tensor, y: Tensor) -> Tensor:
        """Ad_g^T y; subclasses write it out where no matrix is needed for it."""
        return (self._adjoint(g).mT @ y.unsqueeze(-1)).squeeze(-1)

    def _exp_with_score(self, v: Tensor, gradient: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See `exp_with_score`; subclasses write it out where no Jacobian is needed for it."""
        if self._natural_algebra.is_abelian:
            return self._exp(v), gradient
        jacobian, pull_back, *_ = torch.func.vjp(lambda u: self._left_jacobian(-u), v)
        # J^-T y by inv_ex: torch's `solve` is wrong under some transforms, see `trivgeo._torch`
        inverse = torch.linalg.inv_ex(jacobian)[0]
        (slope,) = pull_back(inverse.mT)  # the gradient of log |det J|, whose differential is tr(J^-1 dJ)
        return self._exp(v), (inverse.mT @ (gradient - weight * slope).unsqueeze(-1)).squeeze(-1)

    def _project(self, g: Tensor) -> Tensor:
        """The exact element near ``g``; subclasses whose coordinates obey equations restore them."""
        return g

    @property
    def is_compact(self) -> bool:
        """True if the group is known to be compact; then `random_haar` draws from its Haar measure."""
        return False

    @property
    def num_components(self) -> int:
        """Number of connected components, one by default; exponentials are in the component of the identity."""
        return 1

    def _components(self, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        """An element of each component, ``[c, *element_shape]``, the identity first; groups of several have more."""
        return self._identity(dtype, device).unsqueeze(0)

    def _random_haar(self, batch: Sequence[int], reference: Tensor, generator: torch.Generator | None) -> Tensor:
        """Elements distributed by Haar measure, in the dtype (no half precision) and on the device of ``reference``."""
        raise ConfigurationError(f"{self!r}: expected a compact group: on others Haar measure cannot be sampled")

    def _periods(self) -> Tensor:
        """Periods of the entries of an element, zero for entries without; float64 on the CPU."""
        return torch.zeros(self._element_shape, dtype=torch.float64)

    def action(self) -> PointAction:
        """The group's standard action on points.

        Raises:
            ConfigurationError: the group has no standard action.
        """
        raise ConfigurationError(f"group: expected one that acts on points, but {self!r} has no standard point action")

    def __repr__(self) -> str:
        return type(self).__name__

    # The algebra and its basis ---------------------------------------------------------------------------------------

    @property
    @final
    def algebra(self) -> LieAlgebra:
        """The Lie algebra, in the scaled basis."""
        return self._algebra

    @property
    @final
    def dim(self) -> int:
        """The dimension of the group."""
        return self._algebra.dim

    @property
    @final
    def element_shape(self) -> tuple[int, ...]:
        """The shape of one element."""
        return self._element_shape

    @property
    @final
    def basis(self) -> Basis:
        """The basis of the algebra: its rows, and coordinates in it."""
        return self._basis

    @property
    @final
    def scale(self) -> Float[Tensor, " n"] | Float[Tensor, "n n"]:
        """The basis in units of the natural one, ``[n]`` or ``[n, n]``, as given; float64 on the CPU."""
        return self._basis.scale.clone()

    @final
    def with_scale(self: GroupT, scale: Scale) -> GroupT:
        """Return the same group with another basis, ``scale`` in units of the natural one."""
        other = copy.copy(self)
        if self._evaluator is not EAGER:
            other._evaluator = copy.copy(self._evaluator)  # without compiled code, which knows the scale
        other._set_scale(scale)
        return other

    @property
    @final
    def compiler(self) -> Evaluator | None:
        """The `Compiler` of a group from `compiled`, with its report; ``None`` on others."""
        return None if self._evaluator is EAGER else self._evaluator

    # Operations, final: they check arguments and convert between the scaled and the natural basis --------------------

    @final
    def identity(
        self, *batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Return the neutral element, repeated to ``[*batch, *element_shape]``.

        Args:
            batch: the batch shape.
            dtype: element dtype; default torch's.
            device: element device; default torch's.
        """
        check_batch(batch, dtype, device)
        return self._identity(dtype, device).expand(*batch, *self._element_shape).clone()

    @final
    def components(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return an element of each connected component that is known, ``[c, *element_shape]``, the identity first.

        Fewer than `num_components` for a group that does not say more.

        Args:
            dtype: element dtype; default torch's.
            device: element device; default torch's.
        """
        return self._components(dtype, device).clone()

    @final
    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        """Return the products ``g h`` of elements, ``[*batch, *element_shape]``; batches of g and h broadcast."""
        g = self.check_elements(g)
        # the common case, first: for small batches the time of each check matters
        if not (isinstance(h, Tensor) and g.shape == h.shape and g.dtype is h.dtype and g.device == h.device):
            g, h = promoted(g=g, h=self.check_elements(h, "h"))
            check_broadcast(self.batch_shape(g), self.batch_shape(h))
        return self._evaluate(self._compose, self._two, (g, h))

    @final
    def inverse(self, g: Tensor) -> Tensor:
        """Return the inverse of elements g, ``[*batch, *element_shape]``."""
        g = self.check_elements(g)
        return self._on_elements(self._inverse, g)

    @final
    def exp(self, v: Float[Tensor, "*batch n"]) -> Tensor:
        """Return the exponentials ``[*batch, *element_shape]`` of algebra vectors v, ``[*batch, dim]``.

        Exact for every length: ``exp(s v) exp(t v) = exp((s + t) v)``.
        """
        return self._on_vectors(self._scaled_exp, self.check_vectors(v))

    @final
    def log(self, g: Tensor) -> Float[Tensor, "*batch n"]:
        """Return the principal logarithms of elements g, ``[*batch, dim]``, with ``exp(log(g)) = g``.

        NaN for elements that have no logarithm, see `has_log`.
        """
        g = self.check_elements(g)
        # elements rounded to half precision are too far off the group for a logarithm
        log = self._scaled_log if torch.finfo(g.dtype).bits > 16 else self._scaled_log_of_nearest
        return self._on_elements(log, g)

    @final
    def has_log(self, g: Tensor) -> Bool[Tensor, "*batch"]:
        """Return True where `log` is defined at an element ``g``."""
        return torch.isfinite(self.log(g)).all(-1)

    @final
    def Ad(self, g: Tensor) -> Float[Tensor, "*batch n n"]:
        r"""Return the adjoint matrices ``[*batch, dim, dim]`` of g: :math:`g e^v g^{-1} = e^{\mathrm{Ad}_g v}`."""
        return self._on_elements(self._scaled_adjoint, self.check_elements(g))

    @final
    def coadjoint(self, g: Tensor, y: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        r"""Return :math:`\mathrm{Ad}_g^T y`, which turns gradients for steps on the left into gradients on the right.

        If y is the gradient of :math:`f(\exp(v)\,g)` by v at 0, the result is that of :math:`f(g \exp v)`:
        :math:`(\mathrm{Ad}_g^T y) \cdot \eta = y \cdot \mathrm{Ad}_g \eta`. Compact groups need no matrix for it.

        Args:
            g: elements ``[*batch, *element_shape]``.
            y: gradients ``[*batch, dim]``; batches broadcast.
        """
        g, y = promoted(g=self.check_elements(g), y=self.check_vectors(y, "y"))
        check_broadcast(self.batch_shape(g), y.shape[:-1])
        return self._evaluate(self._scaled_coadjoint, (*self._one, 1), (g, y))

    @final
    def log_modular(self, g: Tensor) -> Float[Tensor, "*batch"]:
        r"""Return :math:`\log \lambda(g) = \log \det \mathrm{Ad}(g^{-1})`, ``[*batch]``; 0 on unimodular groups."""
        g = self.check_elements(g)
        return self._on_elements(self._log_character, g)

    @final
    def left_jacobian(self, v: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n n"]:
        r"""The derivative of `exp`, right-trivialized: :math:`\exp(v + w) = \exp(J_l w) \exp(v)` to first order in w.

        :math:`J_l = \varphi_1(\mathrm{ad}_v) = \sum_k \mathrm{ad}_v^k / (k + 1)!` (Rossmann 2002, section 1.2);
        :math:`|\det J_l|` is the density of right Haar measure in the coordinates v.
        """
        return self._on_vectors(self._scaled_left_jacobian, self.check_vectors(v))

    @final
    def right_jacobian(self, v: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n n"]:
        r"""The derivative of `exp`, left-trivialized: :math:`\exp(v + w) = \exp(v) \exp(J_r w)` to first order in w.

        :math:`J_r = \varphi_1(-\mathrm{ad}_v)`; :math:`|\det J_r|` is the density of left Haar measure in the
        coordinates v.
        """
        return self.left_jacobian(-self.check_vectors(v))

    @final
    def exp_with_score(
        self, v: Float[Tensor, "*batch n"], gradient: Float[Tensor, "*batch n"], weight: Tensor | float = 1.0
    ) -> tuple[Tensor, Float[Tensor, "*batch n"]]:
        r"""exp v and, for vectors v distributed with density p, the trivialized score of exp v there.

        .. math:: s = J_r(v)^{-T} \big(\nabla \log p(v) - \nabla \log |\det J_r(v)|\big)

        is the gradient of the log-density for left Haar measure where exp is one to one. On compact groups it is found
        without Jacobians, from one eigendecomposition of the matrix (Helgason 1984, chapter I, section 5).

        Args:
            v: algebra vectors.
            gradient: gradient of :math:`w \log p` at v.
            weight: w, one number or ``[*batch, 1]``, by which the returned score is multiplied.

        Returns:
            Elements ``[*batch, *element_shape]`` and :math:`w s`.

        Raises:
            ShapeError: the arguments do not fit each other.
        """
        v, gradient = promoted(v=self.check_vectors(v), gradient=self.check_vectors(gradient, "gradient"))
        check_broadcast(v.shape[:-1], gradient.shape[:-1])
        v, gradient = torch.broadcast_tensors(v, gradient)
        dtype, given = v.dtype, (v, gradient)
        if torch.finfo(dtype).bits == 16:  # computed in float32, as by `in_single`
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
    def project(self, g: Tensor) -> Tensor:
        """Remove the drift that round-off leaves after many products: an exact element close to ``g``.

        The identity map on groups whose coordinates obey no equations. NaN where no element is near.
        """
        g = self.check_elements(g)
        return self._on_elements(self._project, g)

    @final
    def retract(self, g: Tensor, v: Float[Tensor, "*batch n"]) -> Tensor:
        """The step ``g exp(v)``."""
        return self.compose(g, self.exp(v))

    @final
    def perturb(self, g: Tensor, v: Float[Tensor, "*batch n"]) -> Tensor:
        r"""``g`` moved by v to first order: equal to `retract` in value and first derivative at v = 0 only.

        Cheaper than `retract`, since no exponential is taken, where only a derivative at zero is wanted.
        """
        g, v = promoted(g=self.check_elements(g), v=self.check_vectors(v))
        check_broadcast(self.batch_shape(g), v.shape[:-1])
        return self._evaluate(self._perturbed, (*self._one, 1), (g, v))

    # Geometry --------------------------------------------------------------------------------------------------------

    @final
    def distance(self, g: Tensor, h: Tensor) -> Float[Tensor, "*batch"]:
        r"""The length :math:`|\log(g^{-1} h)|` of the segment :math:`g \exp(t v)` from g to h; batches broadcast.

        It is invariant under multiplication from the left. It is the Riemannian distance where the metric is invariant
        on both sides, as in the natural bases of the compact groups, and on abelian ones; elsewhere an upper bound. NaN
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
    def mean(
        self,
        g: Tensor,
        weights: Float[Tensor, "*#batch m"] | None = None,
        max_iterations: int = 100,
        *,
        covariances: Float[Tensor, "*#batch m n n"] | None = None,
    ) -> Tensor:
        r"""The mean x of elements ``[*batch, m, *element_shape]`` over the last batch dimension.

        The exponential barycentre, :math:`\sum_i w_i \log(x^{-1} g_i) = 0`, by
        :math:`x \leftarrow x \exp(\sum_i w_i \log(x^{-1} g_i))` (Pennec and Arsigny 2013) from the element of largest
        weight. It commutes with multiplication from both sides and with the inverse. Where the metric is invariant on
        both sides (see `distance`) it is a Frechet (Karcher) mean, the only one for elements of a ball of less than
        half the injectivity radius; for elements further apart it is one of several stationary points. NaN where
        the iteration does not converge, or meets an element without logarithm.

        With ``covariances`` S_i of the errors v_i in :math:`x = g_i \exp(v_i)` it is the most probable element instead,
        the minimum of :math:`\sum_i w_i v_i^T S_i^{-1} v_i`, by Gauss-Newton steps; its own covariance is that of
        `UncertainPose.fuse`.

        Args:
            g: the elements.
            weights: weights of any positive sum (other sums give NaN); default all equal.
            max_iterations: the largest number of iterations.
            covariances: covariances of the errors of the elements, ``[*batch, m, dim, dim]``.

        Raises:
            ShapeError: no elements to take the mean of, or weights or covariances that do not fit them.
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
        if covariances is not None:
            covariances = check_tensor("covariances", covariances)
            if covariances.shape[-2:] != (self.dim, self.dim):
                raise ShapeError(
                    f"covariances: expected [*batch, m, {self.dim}, {self.dim}], got {list(covariances.shape)}"
                )
            check_broadcast(batch, covariances.shape[:-2])
            precisions = torch.linalg.inv_ex(covariances.expand(*batch, self.dim, self.dim).to(g))[0]
            return precision_mean(self, g, weights.to(g), precisions, check_count("max_iterations", max_iterations))[0]
        return in_single(
            lambda g, w: exponential_mean(self, g, w, check_count("max_iterations", max_iterations)),
            g,
            weights.to(g.dtype),
        )

    # Random elements -------------------------------------------------------------------------------------------------

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

        Not Haar-uniform: see `random_haar`. All are in the component of the identity.

        Args:
            batch: the batch shape.
            std: standard deviation, in units of the basis.
            generator: random numbers; ``None`` is torch's.
            dtype: element dtype; default torch's.
            device: element device; default torch's.
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
        """Elements ``[*batch, *element_shape]`` distributed by the Haar measure of total mass one.

        Args:
            batch: the batch shape.
            generator: random numbers; ``None`` is torch's.
            dtype: element dtype; default torch's.
            device: element device; default torch's.

        Raises:
            ConfigurationError: the group is not known to be compact, see `is_compact`.
        """
        check_batch(batch, dtype, device)
        return in_single(
            lambda reference: self._random_haar(batch, reference, generator), self.identity(dtype=dtype, device=device)
        )

    # Powers, and comparison by numbers -------------------------------------------------------------------------------

    _direct_power: ClassVar[Callable[[LieGroup, int], LieGroup]]  # set by `trivgeo.groups.product`, which imports this

    def __pow__(self, n: int) -> LieGroup:
        """The `DirectProduct` of n copies, whose operations run on all copies at once."""
        return self._direct_power(check_count("n", n))

    @final
    def fingerprint(self) -> dict[str, Any]:
        """Describe elements and their products by numbers that a file can hold; the scale is no part of it.

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
        """Return True if a `fingerprint` is that of this group, up to a relative error of 1e-6.

        Raises:
            ConfigurationError: an entry of the fingerprint is missing.
        """
        return _equal(self.fingerprint(), fingerprint)

    @final
    def is_same_group(self, other: LieGroup) -> bool:
        """Return True if both groups have the same elements with the same product; scales may differ.

        Equal brackets do not suffice: the same tensor may be different elements of the ``other``.
        """
        return self is other or self.matches(other.fingerprint())

    # Checks of arguments ---------------------------------------------------------------------------------------------

    @final
    def batch_shape(self, g: Tensor) -> torch.Size:
        """Return the leading dimensions of a tensor ``g`` of elements."""
        return g.shape[: g.ndim - len(self._element_shape)]

    @final
    def check_elements(self, g: Any, name: str = "g") -> Tensor:
        """Return ``g`` as a tensor ``[*batch, *element_shape]``; the message of an error calls it ``name``.

        Raises:
            ConfigurationError: ``g`` holds no floating-point numbers.
            ShapeError: ``g`` has another shape.
        """
        g, shape = check_tensor(name, g), self._element_shape
        if g.ndim < len(shape) or g.shape[g.ndim - len(shape) :] != shape:
            raise ShapeError(f"{name}: expected elements [*batch, {', '.join(map(str, shape))}], got {list(g.shape)}")
        return g

    @final
    def check_vectors(self, v: Any, name: str = "v") -> Tensor:
        """Return ``v`` as a tensor ``[*batch, dim]``; the message of an error calls it ``name``.

        Raises:
            ConfigurationError: ``v`` holds no floating-point numbers.
            ShapeError: ``v`` has another shape.
        """
        v = check_tensor(name, v)
        if v.ndim < 1 or v.shape[-1] != self.dim:
            raise ShapeError(f"{name}: expected algebra vectors [*batch, {self.dim}], got {list(v.shape)}")
        return v

    # Evaluation ------------------------------------------------------------------------------------------------------

    @final
    def _set_scale(self, scale: Scale) -> None:
        self._basis = Basis(scale, self._natural_algebra.dim)
        natural = self._natural_algebra
        self._algebra = natural if self._basis.is_natural else natural.rescaled(self._basis.scale)

    @final
    def _on_elements(self, f: Callable[..., Tensor], g: Tensor) -> Tensor:
        return self._evaluate(f, self._one, (g,))

    @final
    def _on_vectors(self, f: Callable[..., Tensor], v: Tensor) -> Tensor:
        return self._evaluate(f, (1,), (v,))

    @final
    @full_precision
    def _evaluate(self, f: Callable[..., Tensor], ranks: Sequence[int], arguments: Sequence[Tensor]) -> Tensor:
        """Evaluate ``f`` on arguments whose elements have ``ranks`` dimensions, see `Evaluator`."""
        return self._evaluator(f, ranks, arguments)

    @final
    def _scaled_exp(self, v: Tensor) -> Tensor:
        return self._exp(self._basis.to_natural(v))

    @final
    def _scaled_log(self, g: Tensor) -> Tensor:
        return self._basis.from_natural(self._log(g))

    @final
    def _scaled_log_of_nearest(self, g: Tensor) -> Tensor:
        return self._scaled_log(self._project(g))

    @final
    def _scaled_adjoint(self, g: Tensor) -> Tensor:
        return self._basis.operator_from_natural(self._adjoint(g))

    @final
    def _scaled_left_jacobian(self, v: Tensor) -> Tensor:
        return self._basis.operator_from_natural(self._left_jacobian(self._basis.to_natural(v)))

    @final
    def _scaled_coadjoint(self, g: Tensor, y: Tensor) -> Tensor:
        return self._basis.covector_from_natural(self._coadjoint(g, self._basis.covector_to_natural(y)))

    @final
    def _perturbed(self, g: Tensor, v: Tensor) -> Tensor:
        tangent = self._tangent(self._basis.to_natural(v))
        return self._compose(g, self._identity(g.dtype, g.device) + tangent)

    @final
    def _log_character(self, g: Tensor) -> Tensor:
        """`log_modular` of checked elements: zero on unimodular groups, where it is not computed."""
        if self._natural_algebra.is_unimodular:
            return g.new_zeros(self.batch_shape(g))
        return self._log_modular(g)


def check_batch(batch: Sequence[int], dtype: torch.dtype | None, device: torch.device | str | None) -> None:
    """Check a batch shape, a dtype and a device; see `LieGroup.identity`."""
    for size in batch:
        check_count("batch", size, 0)
    check_dtype(dtype)
    check_device(device)


def as_numbers(name: str, value: Any, reference: Tensor) -> Tensor:
    """The value as a tensor in the dtype and on the device of ``reference``."""
    try:
        return torch.as_tensor(value, dtype=reference.dtype, device=reference.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"{name}: expected a number or a tensor, got {value!r}") from error


def check_broadcast(first: torch.Size, second: torch.Size) -> None:
    """Check that two batch shapes broadcast."""
    try:
        broadcast_shapes(first, second)
    except RuntimeError as error:
        raise ShapeError(f"expected batches that broadcast, got {list(first)} and {list(second)}") from error


def exponential_mean(group: LieGroup, g: Tensor, weights: Tensor, max_iterations: int) -> Tensor:
    """The mean of ``g [*batch, m, *element_shape]`` with weights of sum one, NaN if not found; see `LieGroup.mean`."""
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
        # for spread elements the steps shrink by a factor only: iterate until they are rounding, or stop shrinking
        scale = 1.0 + logs.detach().abs().amax((-2, -1))
        found = size <= eps**0.75 * scale
        settled = (size <= eps * scale) | (found & (size > 0.9 * last))
        last = size
        if not is_abstract(g) and not bool((~settled & torch.isfinite(size)).any()):
            break
    # NaN stays for an element without a logarithm
    return torch.where(found[..., *[None] * places], mean, torch.nan)


def precision_mean(
    group: LieGroup, g: Tensor, weights: Tensor, precisions: Tensor, max_iterations: int
) -> tuple[Tensor, Tensor]:
    """The most probable element of measurements ``g [*batch, m, *element_shape]`` with precision matrices.

    Returns:
        The element, NaN if not found, see `LieGroup.mean`, and the sum of the precisions in its frame.
    """
    places = len(group.element_shape)
    index = weights.argmax(-1)[..., None, *[None] * places].expand(*weights.shape[:-1], 1, *group.element_shape)
    mean = torch.take_along_dim(g, index, -places - 1).squeeze(-places - 1)
    back, eps = group.inverse(g), torch.finfo(g.dtype).eps
    precisions = weights[..., None, None] * precisions
    found = torch.zeros_like(weights[..., 0], dtype=torch.bool)
    for _ in range(max_iterations):
        logs = group.log(group.compose(back, mean.unsqueeze(-places - 1)))
        # log(g^-1 x exp(d)) is log(g^-1 x) + J_r^-1 d to first order
        inverse = torch.linalg.inv_ex(group.right_jacobian(logs))[0]
        weighted = inverse.mT @ precisions
        information = (weighted @ inverse).sum(-3)
        slope = (weighted @ logs.unsqueeze(-1)).sum(-3)
        step = -(torch.linalg.inv_ex(information)[0] @ slope).squeeze(-1)
        mean = group.retract(mean, step)
        size = step.detach().abs().amax(-1)
        found = size <= eps**0.75 * (1.0 + logs.detach().abs().amax((-2, -1)))
        if not is_abstract(g) and not bool((~found & torch.isfinite(size)).any()):
            break
    return torch.where(found[..., *[None] * places], mean, torch.nan), information


def is_near(group: LieGroup, g: Tensor, near: Tensor, tolerance: float = _MAX_ROUNDING) -> Bool[Tensor, "*batch"]:
    """Return where entries of g equal those of elements ``near``, up to rounding and turns of angles.

    Args:
        group: group of the elements.
        g: numbers of the shape of elements.
        near: `LieGroup.project` of them.
        tolerance: relative difference of entries, larger for dtypes of few digits.
    """
    tolerance = max(tolerance, _NUM_ROUNDINGS * torch.finfo(g.dtype).eps)
    periods = group._periods().reshape(group.element_shape).to(g)
    error = torch.where(periods > 0, 0.0, (near - g).abs() / (1.0 + g.abs()))
    return ((error < tolerance) & torch.isfinite(g)).flatten(-len(group.element_shape)).all(-1)


@on_cpu
def _numbers_of(group: LieGroup) -> dict[str, Any]:
    dim, shape = group.dim, group.element_shape
    units = _FINGERPRINT_NORM * torch.eye(dim, dtype=torch.float64)
    sines = [[math.sin((k + 1.0) * (i + 1.0) + k) for i in range(dim)] for k in range(3)]
    mixed = torch.tensor(sines, dtype=torch.float32).double()  # as in files, whatever the default dtype
    mixed = _FINGERPRINT_NORM * mixed / mixed.norm(dim=-1, keepdim=True)
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
    """Whether two fingerprints are the same up to rounding, with NaN at the same places."""
    missing = [part for part in _FINGERPRINT_ENTRIES if part not in b]
    if missing:
        raise ConfigurationError(
            f"fingerprint: expected the keys {', '.join(_FINGERPRINT_ENTRIES)}, got none of {', '.join(missing)}"
        )
    if a["dim"] != b["dim"] or list(a["element_shape"]) != list(b["element_shape"]):
        return False
    if a.get("components", 1) != b.get("components", 1):
        return False
    none = [0.0] * math.prod(a["element_shape"])  # older files lack the key
    parts = [[x[part] for x in (a, b)] for part in ("exp", "products")]
    parts.append([x.get("periods", none) for x in (a, b)])
    return all(_close(*(torch.tensor(x, dtype=torch.float64) for x in pair)) for pair in parts)


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    size = torch.maximum(a.abs(), b.abs())
    largest = torch.where(torch.isfinite(size), size, 0.0).amax(-1, keepdim=True) if size.numel() else size
    near = (a - b).abs() <= _MAX_RELATIVE_ERROR * size + _MAX_ABSOLUTE_ERROR * largest
    return bool(((torch.isfinite(size) & near) | (a == b) | (a.isnan() & b.isnan())).all())


def check_natural(*factors: LieGroup) -> None:
    """Check that ``factors`` of a product are in their natural bases, since the product has its own scale.

    Raises:
        ConfigurationError: a factor carries a scale of its own.
    """
    for factor in factors:
        if not factor.basis.is_natural:
            raise ConfigurationError(f"{factor!r}: expected a factor in its natural basis; scale the product")
