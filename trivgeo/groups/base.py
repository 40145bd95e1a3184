"""The contract of a Lie group whose elements are plain tensors."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo._deprecation import RenamedAttribute
from trivgeo._numerics import jvp, log_abs_det
from trivgeo.checks import check_count, promoted
from trivgeo.errors import ConfigurationError
from trivgeo.groups._coordinates import check_batch, check_broadcast
from trivgeo.groups._fingerprint import GroupIdentity
from trivgeo.groups._geometry import GroupGeometry
from trivgeo.groups._matrices import phi1_ad
from trivgeo.groups.action import PointAction
from trivgeo.groups.basis import Scale

__all__ = ["LieGroup", "Scale", "check_natural"]


class LieGroup(GroupGeometry, GroupIdentity):
    r"""A Lie group; a stateless operator on tensors of elements ``[*batch, *element_shape]``.

    Elements need not be matrices: they are coordinates of some global parametrisation of the group. Algebra
    vectors ``[*batch, dim]`` are coordinates in the basis of `algebra`, which is declared orthonormal.
    All operations accept any leading batch dimensions, which broadcast. A group is connected unless `num_components`
    says otherwise.

    Convention: left-trivialized. A tangent vector at g is :math:`d(L_g)_e v`, and a step is
    :math:`g \leftarrow g \exp v`. The Haar measure :math:`\mu` is the left one, and the modular function is
    :math:`\lambda(g) = \det \mathrm{Ad}(g^{-1})`, :math:`\mu(A g) = \lambda(g) \mu(A)`.

    Subclasses implement the methods that begin with an underscore, in the natural basis and without checks of
    arguments. The public methods are final: they check arguments and convert between `scale` and the natural basis.

    Args:
        natural_algebra: the algebra in the natural basis.
        element_shape: the shape of one element.
        scale: the basis in units of the natural one: one positive number, one per basis element, or an invertible
            matrix ``[n, n]`` whose row i is the i-th basis element. It is part of the group's definition, since it
            sets how far isotropic noise goes in each direction.

    Raises:
        ConfigurationError: the scale is not positive (a matrix: not invertible) and finite, or has the wrong shape.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Check counts and dtype wherever a class makes identities."""
        super().__init_subclass__(**options)
        if "identity" in vars(cls):
            cls.identity = _checked_batch(cls.identity)  # type: ignore[method-assign]

    same_law = RenamedAttribute("is_same_group", until="0.4")

    # Required --------------------------------------------------------------------------------------------------

    @abstractmethod
    def identity(
        self, *batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Return the neutral element, repeated to ``[*batch, *element_shape]``.

        Args:
            batch: the batch shape.
            dtype: of the element; default torch's.
            device: of the element; default torch's.
        """

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

    # Optional --------------------------------------------------------------------------------------------------

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
        # J^-T y by inv_ex: `solve` of torch 2.13 is wrong under some transforms
        inverse = torch.linalg.inv_ex(jacobian)[0]
        (slope,) = pull_back(inverse.mT)  # of log |det J|, whose differential is tr(J^-1 dJ)
        return self._exp(v), (inverse.mT @ (gradient - weight * slope).unsqueeze(-1)).squeeze(-1)

    def _project(self, g: Tensor) -> Tensor:
        """The element that ``g`` is meant to be; subclasses whose coordinates obey equations restore them."""
        return g

    @property
    def is_compact(self) -> bool:
        """True if the group is known to be compact; then `random_haar` draws from its Haar measure."""
        return False

    def _random_haar(self, batch: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Elements of the uniform law, in the dtype (no half precision) and on the device of ``like``."""
        raise ConfigurationError(f"{self!r}: expected a compact group, since on others no Haar law can be drawn from")

    def _periods(self) -> Tensor:
        """What can be added to an entry of an element without changing it, zero if nothing; float64 on the CPU."""
        return torch.zeros(self._element_shape, dtype=torch.float64)

    _direct_power: ClassVar[Callable[[LieGroup, int], LieGroup]]  # by `trivgeo.groups.product`, which needs this module

    def __repr__(self) -> str:
        return type(self).__name__

    def __pow__(self, n: int) -> LieGroup:
        """The `DirectProduct` of n copies, whose operations run on all copies at once."""
        return self._direct_power(check_count("n", n))

    def action(self) -> PointAction:
        """The group's standard action on points.

        Raises:
            ConfigurationError: the group has no standard action.
        """
        raise ConfigurationError(f"group: expected one that acts on points, but {self!r} has no standard point action")

    # Operations ------------------------------------------------------------------------------------------------

    @final
    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        """Return the products ``g h`` of elements, ``[*batch, *element_shape]``; batches of g and h broadcast."""
        g = self.check_elements(g)
        # most are alike; of small batches each check is a part of the time that is seen
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
        """Return the principal logarithms ``[*batch, dim]`` of elements g, ``[*batch, *element_shape]``:
        ``exp(log(g)) = g``.

        NaN for elements that have no logarithm, see `has_log`.
        """
        g = self.check_elements(g)
        # rounded to half precision, elements are off the group by more than a logarithm can bear
        log = self._scaled_log if torch.finfo(g.dtype).bits > 16 else self._scaled_log_of_nearest
        return self._on_elements(log, g)

    @final
    def Ad(self, g: Tensor) -> Float[Tensor, "*batch n n"]:
        r"""Return the adjoint matrices ``[*batch, dim, dim]`` of elements g:
        :math:`g \exp(v) g^{-1} = \exp(\mathrm{Ad}_g v)`.
        """
        return self._on_elements(self._scaled_adjoint, self.check_elements(g))

    @final
    def log_modular(self, g: Tensor) -> Float[Tensor, "*batch"]:
        r"""Return :math:`\log \lambda(g) = \log \det \mathrm{Ad}(g^{-1})` of elements g, ``[*batch]``; 0 on
        unimodular groups.
        """
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
    def coadjoint(self, g: Tensor, y: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        r"""Return :math:`\mathrm{Ad}_g^T y`: the gradient of :math:`f(g \exp v)` by v at 0, if y is the gradient of
        :math:`f(\exp(v)\,g)`.

        :math:`(\mathrm{Ad}_g^T y) \cdot \eta = y \cdot \mathrm{Ad}_g \eta`, without the matrix on compact groups.

        Args:
            g: elements ``[*batch, *element_shape]``.
            y: gradients ``[*batch, dim]``; batches broadcast.
        """
        g, y = promoted(g=self.check_elements(g), y=self.check_vectors(y, "y"))
        check_broadcast(self.batch_shape(g), y.shape[:-1])
        return self._evaluate(self._scaled_coadjoint, (*self._one, 1), (g, y))

    @final
    def project(self, g: Tensor) -> Tensor:
        """Remove the drift that round-off leaves after many products: an exact element close to ``g``.

        The identity map on groups whose coordinates obey no equations. NaN where no element is near.
        """
        g = self.check_elements(g)
        return self._on_elements(self._project, g)

    @final
    def perturb(self, g: Tensor, v: Float[Tensor, "*batch n"]) -> Tensor:
        r"""``g`` moved by v to first order: equal to `retract` in value and first derivative at v = 0 only.

        Cheaper than `retract` where nothing but a derivative at zero is wanted, since no exponential is taken.
        """
        g, v = promoted(g=self.check_elements(g), v=self.check_vectors(v))
        check_broadcast(self.batch_shape(g), v.shape[:-1])
        return self._evaluate(self._perturbed, (*self._one, 1), (g, v))

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
        return self._compose(g, self.identity(dtype=g.dtype, device=g.device) + tangent)

    @final
    def _log_character(self, g: Tensor) -> Tensor:
        """`log_modular` of checked elements: zero on unimodular groups, where it is not computed."""
        if self._natural_algebra.is_unimodular:
            return g.new_zeros(self.batch_shape(g))
        return self._log_modular(g)


def check_natural(*factors: LieGroup) -> None:
    """Check that ``factors`` of a product are in their natural bases: the product has the scale.

    Raises:
        ConfigurationError: a factor carries a scale of its own.
    """
    for factor in factors:
        if not factor.basis.is_natural:
            raise ConfigurationError(f"{factor!r}: expected a factor in its natural basis; scale the product")


def _checked_batch(identity: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(identity)
    def checked(
        self: LieGroup,
        *batch: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        check_batch(batch, dtype, device)
        return identity(self, *batch, dtype=dtype, device=device)

    return checked
