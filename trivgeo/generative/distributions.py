"""Distributions on groups: base distributions and results of models, and priors of inverse problems."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from trivgeo._autocast import matmul
from trivgeo._numerics import is_abstract
from trivgeo._random import choice, integers, normal, permutation, uniform
from trivgeo._text import described
from trivgeo.checks import check_choice, check_count, check_tensor, check_values, checked, promoted
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import SO, DirectProduct, LieGroup
from trivgeo.groups.group import is_near
from trivgeo.groups.harmonic import heat_kernel, log_haar_volume
from trivgeo.groups.product import scaled_factors
from trivgeo.groups.rotations import rotation_from_quaternion, rotation_to_quaternion
from trivgeo.sde.noise.kernel import is_principal, log_about

__all__ = [
    "Bingham",
    "EmpiricalDistribution",
    "GroupDistribution",
    "HaarDistribution",
    "HeatKernelDistribution",
    "MatrixFisher",
    "MixtureDistribution",
    "NormalDistribution",
    "ProductDistribution",
]

DistributionT = TypeVar("DistributionT", bound="GroupDistribution")

_NUM_MASS_DRAWS = 20_000  # draws that estimate the probability of vectors that are logarithms
_NUM_QUADRATURE_NODES = 160  # nodes at which the constants of concentrations up to 1e10 have twelve digits
_QUADRATURE_TAIL = 3.7  # length of the ends of the quadrature, where weights fall to rounding
_MAX_REJECTION_ROUNDS = 10_000  # rounds of draws, each accepted with a probability above a tenth
_MAX_ASYMMETRY = 1e-4  # relative difference of mirrored entries of a matrix that is taken for symmetric
_MAX_ENTRY_ERROR = 0.01  # relative distance of the entries of data from those of the nearest element, which is taken


class _Elements(constraints.Constraint):
    def __init__(self, group: LieGroup) -> None:
        self.group, self.event_dim = group, len(group.element_shape)
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Mask of values that are elements of the group up to rounding, ``[*batch]``."""
        return is_near(self.group, value, self.group.project(value.detach()))


@checked
class GroupDistribution(nn.Module, Distribution, ABC):
    r"""A distribution on a group, for everything that takes a `torch.distributions.Distribution`.

    It is also a module, whose parameters are buffers: ``.to(device)`` moves them, and a file of a model holds them.
    A new distribution is a subclass with `_draw` and `_log_prob`.

    Densities are for left Haar measure, of total mass one on compact groups. On other groups it is the one that is
    Lebesgue measure of the algebra, in the basis of the group, at the identity. Factors of a `DirectProduct` that is
    not compact have each their own measure, unless the scale mixes them. ``log_prob(g, measure="volume")`` is for the
    volume in the basis of the group on compact factors, too: :math:`d\theta_1 \dots d\theta_n` on a torus.

    Args:
        group: the group of the values.
        batch_shape: batch shape of the parameters.
        parameters: tensors by name, each ``[*batch_shape, ...]``.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # parameters raise typed errors

    def __init__(self, group: LieGroup, batch_shape: Sequence[int] = (), **parameters: Tensor) -> None:
        nn.Module.__init__(self)
        Distribution.__init__(self, torch.Size(batch_shape), torch.Size(group.element_shape), validate_args=False)
        self.group = group
        for name, value in parameters.items():
            self.register_buffer(name, value)

    def __repr__(self) -> str:
        return described(self, {"group": self.group, "batch_shape": tuple(self.batch_shape)})

    @property
    def support(self) -> constraints.Constraint:
        """The elements of the group."""
        return _Elements(self.group)

    def sample(self, sample_shape: int | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw elements ``[*sample_shape, *batch_shape, *element_shape]``, without derivatives.

        Args:
            sample_shape: number of elements, or the shape of their batch.
            generator: random numbers; ``None`` is torch's.
        """
        with torch.no_grad():
            return self._draw(self._shape(sample_shape), generator)

    def rsample(self, sample_shape: int | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw elements that depend on the parameters differentiably, see `sample` for ``generator``.

        Raises:
            ConfigurationError: the distribution is sampled by rejection.
        """
        if not self.has_rsample:
            raise ConfigurationError(f"{type(self).__name__}: expected a distribution with derivatives of its samples")
        return self._draw(self._shape(sample_shape), generator)

    def log_prob(self, value: Tensor, measure: str = "haar") -> Float[Tensor, "*batch"]:
        """Return log-densities of elements ``value`` ``[*batch, *element_shape]``, which broadcast with parameters.

        They are -inf outside of the `support`: at NaN, and at values that are no elements of the group, such as 2 I on
        SO(3). Values within a thousandth of an element, as round-off leaves them, have its density.

        Args:
            value: elements.
            measure: "haar", of mass one on compact factors, or "volume", see `GroupDistribution`.

        Raises:
            ConfigurationError: the measure has another name, or the volume of the group is not known.
        """
        log_volume = log_mass(self.group, measure)
        value = self.group.check_elements(value, "value")
        batch = torch.broadcast_shapes(self.group.batch_shape(value), self.batch_shape)
        value = value.expand(*batch, *self.event_shape)
        found = self.support.check(value)
        unit = self.group.identity(dtype=value.dtype, device=value.device)
        logs = self._log_prob(torch.where(found[(..., *[None] * len(self.event_shape))], value, unit))
        return torch.where(found.to(logs.device), logs - self._share * log_volume, -math.inf)

    @property
    def _share(self) -> float:
        """The share of the factors of the group that have a density."""
        return 1.0

    def expand(self: DistributionT, batch_shape: Sequence[int], _instance: Any = None) -> DistributionT:
        """Return the distribution with parameters repeated to a ``batch_shape``.

        Raises:
            ShapeError: the batch shape of the distribution does not expand to it.
        """
        rank, new = len(self.batch_shape), copy.copy(self)
        _check_expansion(self.batch_shape, batch_shape)
        expanded = {name: x.expand(*batch_shape, *x.shape[rank:]) for name, x in self.named_buffers(recurse=False)}
        GroupDistribution.__init__(new, self.group, batch_shape, **expanded)
        for name, child in self.named_children():
            if isinstance(child, nn.ModuleList):
                child = nn.ModuleList(member.expand(batch_shape) for member in _members(child))
            setattr(new, name, child)
        return new

    def _shape(self, sample_shape: int | Sequence[int]) -> torch.Size:
        """Check the batch shape of draws, and append that of the parameters."""
        sizes = sample_shape if isinstance(sample_shape, Sequence) else [sample_shape]
        return torch.Size([check_count("sample_shape", size, 0) for size in sizes]) + self.batch_shape

    @abstractmethod
    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Elements ``[*shape, *element_shape]``; the last dimensions of ``shape`` are those of the parameters."""

    @abstractmethod
    def _log_prob(self, g: Tensor) -> Tensor:
        """Log-densities of values that are near elements and have the batch shape already."""


@checked
class HaarDistribution(GroupDistribution):
    """The uniform distribution on a compact group, whose density is one.

    Args:
        group: a compact group.
        batch_shape: batch shape of independent copies.

    Raises:
        ConfigurationError: the group is not known to be compact.

    Example:
        >>> HaarDistribution(SO(3)).sample((5,)).shape
        torch.Size([5, 3, 3])
    """

    has_rsample = True  # there are no parameters to differentiate by
    reference: Tensor

    def __init__(self, group: LieGroup, batch_shape: Sequence[int] = ()) -> None:
        if not group.is_compact:
            raise ConfigurationError(f"group: expected a compact one, got {group!r}")
        super().__init__(group, batch_shape)
        self.register_buffer("reference", torch.zeros(tuple(batch_shape)), persistent=False)  # dtype and device

    def entropy(self) -> Tensor:
        """Return zeros ``[*batch_shape]``."""
        return torch.zeros_like(self.reference)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        dtype, device = self.reference.dtype, self.reference.device
        drawn = self.group.random_haar(shape.numel(), generator=generator, dtype=dtype, device=device)
        return drawn.reshape(*shape, *self.event_shape)

    def _log_prob(self, g: Tensor) -> Tensor:
        return g.new_zeros(self.group.batch_shape(g))


@checked
class NormalDistribution(GroupDistribution):
    r"""The distribution of :math:`c \exp v` with v normal, conditioned on v being the logarithm of exp v.

    .. math:: \log p(g) = \log N(v; m, F F^T) - \log |\det J_r(v)| - \log Z + \log \mathrm{vol},
        \quad v = \log(c^{-1} g)

    Z is the probability of the condition, estimated by 20,000 draws with a fixed seed; one on groups whose exponential
    is one to one. vol is the volume of the compact factors, see `log_haar_volume`: 8 pi^2 on SO(3). Elements without a
    logarithm have no density: on groups with such elements, keep the distribution narrow.

    Args:
        group: the group of the elements.
        centre: c, ``[*batch, *element_shape]``.
        loc: m, ``[*batch, dim]``.
        scale_tril: F, lower triangular, ``[*batch, dim, dim]``.

    Raises:
        ShapeError: an argument has another shape.
        DomainError: F is not lower triangular with a positive diagonal, or none of the draws is the logarithm of its
            exponential.
        ConfigurationError: the group is compact, or has a compact factor, whose volume is not known, see
            `log_haar_volume`.
    """

    centre: Tensor
    loc: Tensor
    scale_tril: Tensor
    log_mass: Tensor

    def __init__(
        self, group: LieGroup, centre: Tensor, loc: Float[Tensor, "*#batch n"], scale_tril: Float[Tensor, "*#batch n n"]
    ) -> None:
        group.check_elements(centre, "centre")
        if loc.shape[-1:] != (group.dim,):
            raise ShapeError(f"loc: expected an algebra vector [{group.dim}], got {list(loc.shape)}")
        if scale_tril.shape[-2:] != (group.dim, group.dim):
            raise ShapeError(f"scale_tril: expected a matrix [{group.dim}, {group.dim}], got {list(scale_tril.shape)}")
        if not bool((scale_tril.diagonal(dim1=-2, dim2=-1) > 0.0).all()) or bool(scale_tril.triu(1).any()):
            raise DomainError(
                "scale_tril: expected a lower triangular matrix with a positive diagonal, such as the cholesky factor "
                f"of a covariance, got {scale_tril.tolist()}"
            )
        centre, loc, scale_tril = promoted(centre=centre, loc=loc, scale_tril=scale_tril)
        batch = _broadcast_shapes(
            centre=group.batch_shape(centre), loc=loc.shape[:-1], scale_tril=scale_tril.shape[:-2]
        )
        parameters = {"centre": centre, "loc": loc, "scale_tril": scale_tril}
        ranks = {"centre": len(group.element_shape), "loc": 1, "scale_tril": 2}
        whole = {name: x.detach().expand(*batch, *x.shape[x.ndim - ranks[name] :]) for name, x in parameters.items()}
        super().__init__(group, batch, **{name: x.clone() for name, x in whole.items()})
        self._log_volume = sum_over_compact(group, log_haar_volume)
        share = self._vectors(_NUM_MASS_DRAWS, torch.Generator().manual_seed(0))[1].double().mean(0)
        if not bool((share > 0.0).all()):
            raise DomainError(
                "scale_tril: expected a distribution of vectors that are logarithms, v = log(exp(v)), got none in "
                f"{_NUM_MASS_DRAWS} draws"
            )
        self.register_buffer("log_mass", share.log().to(loc))

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        num_samples = shape[: len(shape) - len(self.batch_shape)].numel()
        v, is_kept = self._vectors(num_samples, generator)
        while bool((is_kept.sum(0) < num_samples).any()):
            more = self._vectors(num_samples, generator)
            v, is_kept = torch.cat([v, more[0]]), torch.cat([is_kept, more[1]])
        first = (~is_kept).to(torch.uint8).argsort(dim=0, stable=True)[:num_samples]
        v = torch.take_along_dim(v, first.unsqueeze(-1), 0).reshape(*shape, self.group.dim)
        return self.group.retract(self.centre, v)

    def _log_prob(self, g: Tensor) -> Tensor:
        v, volume = log_about(self.group, *_exact(self.group, self.centre, g))
        logs = normal_log_density(v.unsqueeze(-2), self.loc.unsqueeze(-2), self.scale_tril).squeeze(-1)
        return (logs - self.log_mass - volume + self._log_volume).to(torch.promote_types(self.loc.dtype, g.dtype))

    def _vectors(self, num_draws: int, generator: torch.Generator | None) -> tuple[Tensor, Bool[Tensor, "m *batch"]]:
        """Draw normal vectors ``[m, *batch, dim]``, with a mask of those that are logarithms of their exponentials."""
        z = normal((num_draws, *self.batch_shape, self.group.dim), self.loc, generator)
        v = self.loc + matmul(z.unsqueeze(-2), self.scale_tril.mT).squeeze(-2)
        return v, is_principal(v, self.group.log(self.group.exp(v)))


@checked
class HeatKernelDistribution(GroupDistribution):
    r"""Brownian motion from a centre: the normal distribution of a group whose `heat_kernel` is known.

    The distribution of :math:`c\,w` with w from the heat kernel at variance :math:`\sigma^2`. On `Translation` it is
    the isotropic normal distribution, on `Torus` the wrapped normal distribution, on SO(3) the isotropic Gaussian
    "IGSO(3)". Factors of a product are independent. With an infinite :math:`\sigma` it is uniform on a compact group.

    Args:
        group: the group, with its scale.
        centre: c, elements ``[*batch, *element_shape]``.
        std: :math:`\sigma`, in units of the basis, not negative, ``[*batch]``.

    Raises:
        ConfigurationError: the heat kernel of the group is not known.
        DomainError: a deviation is negative, or NaN.
        ShapeError: the batch shapes do not broadcast, or the centre is no element.

    Example:
        >>> HeatKernelDistribution(SO(3), SO(3).identity(), 0.3).log_prob(SO(3).identity()).ndim
        0
    """

    has_rsample = True
    centre: Tensor
    std: Tensor

    def __init__(self, group: LieGroup, centre: Tensor, std: Float[Tensor, "*batch"] | float) -> None:
        kernel = heat_kernel(group)
        if kernel is None:
            raise ConfigurationError(f"group: expected one whose heat kernel is known, got {group!r}")
        centre = group.check_elements(centre, "centre")
        scale = std.to(centre) if isinstance(std, Tensor) else centre.new_tensor(std)
        if not is_abstract(scale) and not bool((scale >= 0.0).all()):
            raise DomainError(f"std: expected numbers that are not negative, got {scale}")
        batch = _broadcast_shapes(centre=group.batch_shape(centre), std=scale.shape)
        super().__init__(group, batch, centre=centre.expand(*batch, *group.element_shape), std=scale.expand(batch))
        self._kernel = kernel

    @property
    def mode(self) -> Tensor:
        """The centre."""
        return self.centre

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        noise = self._kernel.sample(self.std.square().expand(shape), generator)
        return self.group.compose(self.centre.expand(*shape, *self.event_shape), noise)

    def _log_prob(self, g: Tensor) -> Tensor:
        centre, element = _exact(self.group, self.centre, g)
        away = self.group.compose(self.group.inverse(centre), element)
        variance = self.std.to(away).square().expand(self.group.batch_shape(g))
        return self._kernel.log_density(away, variance).to(torch.promote_types(self.std.dtype, g.dtype))


@checked
class MatrixFisher(GroupDistribution):
    r"""The matrix Fisher distribution on SO(3), whose log-density is :math:`\mathrm{tr}(F^T R) - \log c(F)`.

    Its mode is the rotation nearest to F; the singular values of F say how narrow it is about each axis (Downs 1972,
    Khatri and Mardia 1977). With proper singular values :math:`s_1 \ge s_2 \ge |s_3|` the constant for Haar measure of
    mass one is (Lee 2018)

    .. math:: c = e^{s_1 + s_2 + s_3} \int_0^1 e^{-a x} I_0(a x)\, e^{-b (1 - x)} I_0(b (1 - x))\, e^{-d x}\, dx

    with :math:`a = s_1 - s_2`, :math:`b = s_1 + s_2` and :math:`d = 2 (s_2 + s_3)`. Its logarithm has twelve digits at
    all concentrations, also of distributions about an axis, where d vanishes. Densities are computed in double
    precision and then rounded. Gradients with respect to F and to rotations exist. Samples come from the `Bingham`
    distribution of quaternions, and have no derivatives.

    Args:
        parameter: F, matrices ``[*batch, 3, 3]``.

    Raises:
        ShapeError: ``parameter`` holds no 3 x 3 matrices.
        NonFiniteError: ``parameter`` holds NaN or infinity.

    Example:
        >>> MatrixFisher(5.0 * torch.eye(3)).mode
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]])
    """

    parameter: Tensor

    def __init__(self, parameter: Float[Tensor, "*batch 3 3"]) -> None:
        parameter = _checked_matrices("parameter", parameter, 3)
        super().__init__(SO(3), parameter.shape[:-2], parameter=parameter)

    @property
    def mode(self) -> Tensor:
        """The rotation of the largest density, ``[*batch, 3, 3]``; one of them where there are several."""
        u, _, vh, sign = _proper_svd(self.parameter.double())
        u = torch.cat([u[..., :2], u[..., 2:] * sign[..., None, None]], -1)
        return (u @ vh).to(self.parameter)

    def log_normaliser(self) -> Float[Tensor, "*batch"]:
        """Return :math:`\\log c(F)`, ``[*batch]``, whose gradient is the mean of the rotations."""
        return self._log_normaliser().to(self.parameter)

    def _log_normaliser(self) -> Tensor:
        _, values, _, sign = _proper_svd(self.parameter.double())
        s1, s2, s3 = values[..., 0], values[..., 1], values[..., 2] * sign
        return s1 + s2 + s3 + _log_axial_integral(s1 - s2, s1 + s2, 2.0 * (s2 + s3))

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        drawn = Bingham(_quaternion_form(self.parameter.double()))._draw(shape, generator)
        return drawn.to(self.parameter)

    def _log_prob(self, g: Tensor) -> Tensor:
        parameter, element = _exact(self.group, self.parameter, g)
        logs = (parameter * element).sum((-2, -1)) - self._log_normaliser()
        return logs.to(torch.promote_types(self.parameter.dtype, g.dtype))


@checked
class Bingham(GroupDistribution):
    r"""The Bingham distribution of rotations: of unit quaternions q with log-density :math:`q^T A q - \log c(A)`.

    Quaternions are (w, x, y, z), scalar first, and q and -q are one rotation. The constant for Haar measure of mass one
    is :math:`{}_1F_1(\tfrac12; 2; A)` of a matrix argument. Every Bingham distribution is a `MatrixFisher` distribution
    (Prentice 1986), whose constant it takes. Samples are drawn by rejection from angular central Gaussian ones (Kent,
    Ganeiber and Mardia 2013).

    Args:
        parameter: A, symmetric matrices ``[*batch, 4, 4]``; adding a multiple of the identity makes no difference.

    Raises:
        ShapeError: ``parameter`` holds no 4 x 4 matrices.
        NonFiniteError: ``parameter`` holds NaN or infinity.
        DomainError: the matrices are not symmetric.

    Example:
        >>> Bingham(torch.diag(torch.tensor([0.0, -9.0, -9.0, -9.0]))).mode.diagonal()
        tensor([1., 1., 1.])
    """

    parameter: Tensor

    def __init__(self, parameter: Float[Tensor, "*batch 4 4"]) -> None:
        parameter = _checked_matrices("parameter", parameter, 4)
        skew = (parameter - parameter.mT).abs().amax((-2, -1))
        if not is_abstract(skew) and bool((skew > _MAX_ASYMMETRY * parameter.abs().amax((-2, -1))).any()):
            raise DomainError("parameter: expected symmetric matrices, got unequal mirrored entries")
        super().__init__(SO(3), parameter.shape[:-2], parameter=parameter)

    @property
    def mode(self) -> Tensor:
        """The rotation of the largest density, ``[*batch, 3, 3]``; one of them where there are several."""
        return rotation_from_quaternion(torch.linalg.eigh(self.parameter.double())[1][..., -1]).to(self.parameter)

    def log_normaliser(self) -> Float[Tensor, "*batch"]:
        """Return :math:`\\log c(A)`, ``[*batch]``."""
        return self._log_normaliser().to(self.parameter)

    def _log_normaliser(self) -> Tensor:
        fourth, third, second, first = torch.linalg.eigvalsh(self.parameter.double()).unbind(-1)
        return first + _log_axial_integral(0.5 * (second - third), 0.5 * (first - fourth), first - second)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        values, vectors = torch.linalg.eigh(self.parameter.double())
        loss = values[..., -1:] - values  # loss of log-density along each axis
        width = _envelope_width(loss)
        stds = (1.0 + 2.0 * loss / width.unsqueeze(-1)).rsqrt().expand(*shape, 4).reshape(-1, 4)
        loss, width = loss.expand(*shape, 4).reshape(-1, 4), width.expand(shape).flatten()
        bound = -0.5 * (4.0 - width) + 2.0 * (4.0 / width).log()
        found, left = torch.zeros_like(loss), torch.arange(len(loss), device=loss.device)
        for _ in range(_MAX_REJECTION_ROUNDS):
            x = normal((len(left), 4), loss, generator) * stds[left]
            x = x / x.norm(dim=-1, keepdim=True)
            square = (loss[left] * x.square()).sum(-1)
            # the ratio of the density of the Bingham distribution to the envelope, at most one
            log_ratio = -square + 2.0 * (1.0 + 2.0 * square / width[left]).log() - bound[left]
            taken = uniform((len(left),), loss, generator).log() < log_ratio
            found[left[taken]] = x[taken]
            left = left[~taken]
            if not len(left):
                break
        q = (vectors.expand(*shape, 4, 4) @ found.reshape(*shape, 4, 1)).squeeze(-1)
        return rotation_from_quaternion(q).to(self.parameter)

    def _log_prob(self, g: Tensor) -> Tensor:
        parameter, element = _exact(self.group, self.parameter, g)
        q = rotation_to_quaternion(element)
        logs = (q * (parameter @ q.unsqueeze(-1)).squeeze(-1)).sum(-1) - self._log_normaliser()
        return logs.to(torch.promote_types(self.parameter.dtype, g.dtype))


@checked
class MixtureDistribution(GroupDistribution):
    r"""The mixture :math:`\sum_k w_k p_k` of distributions on the same group.

    Args:
        components: the distributions p_k, all of one batch shape.
        weights: the probabilities w_k, positive, of sum one, ``[*batch, K]``.

    Raises:
        ShapeError: there are not as many weights as components, or there are none.
        DomainError: the weights are not probabilities.
    """

    weights: Tensor

    def __init__(self, components: Sequence[GroupDistribution], weights: Float[Tensor, "*batch K"]) -> None:
        if not components or weights.shape != (*components[0].batch_shape, len(components)):
            raise ShapeError(
                f"weights: expected one for each of {len(components)} components, got {list(weights.shape)}"
            )
        if not bool((weights > 0.0).all()) or bool(((weights.sum(-1) - 1.0).abs() > 1e-4).any()):
            raise DomainError(f"weights: expected positive numbers of sum one, got {weights.tolist()}")
        super().__init__(components[0].group, components[0].batch_shape, weights=weights.detach().clone())
        self.components = nn.ModuleList(components)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        num_samples, event = shape[: len(shape) - len(self.batch_shape)].numel(), self.event_shape
        weights = self.weights.reshape(-1, len(self.components))  # [b, K]
        label = choice(weights, num_samples, generator).sort(-1).values
        counts = nn.functional.one_hot(label, len(self.components)).sum(1)
        most = counts.amax(0)  # draws of each component, the largest number that a member of the batch needs
        drawn = [x.sample(n, generator) for x, n in zip(_members(self.components), most.tolist(), strict=True)]
        g = torch.cat(drawn).reshape(-1, len(weights), *event)
        # draws of a component come one after the other, and members of the batch take the first ones of each
        rank = torch.arange(num_samples, device=label.device) - (counts.cumsum(-1) - counts).gather(-1, label)
        place = (most.cumsum(0) - most)[label] + rank
        order = torch.stack([permutation((num_samples,), weights, generator) for _ in weights])
        place = place.gather(-1, order).T.reshape(num_samples, len(weights), *[1] * len(event))
        return torch.take_along_dim(g, place, 0).reshape(*shape, *event)

    def _log_prob(self, g: Tensor) -> Tensor:
        each = torch.stack([component._log_prob(g) for component in _members(self.components)], -1)
        return (each + self.weights.log()).logsumexp(-1)


@checked
class ProductDistribution(GroupDistribution):
    """Independent distributions on the factors of a product.

    Args:
        group: the product.
        factors: the distributions, all of one batch shape.

    Raises:
        ShapeError: the number of distributions is not the number of factors.
    """

    group: DirectProduct

    def __init__(self, group: DirectProduct, factors: Sequence[GroupDistribution]) -> None:
        if len(factors) != len(group.factors):
            raise ShapeError(f"factors: expected {len(group.factors)} distributions, got {len(factors)}")
        super().__init__(group, factors[0].batch_shape)
        self.factors = nn.ModuleList(factors)

    def factor_log_prob(self, g: Tensor) -> Float[Tensor, "*batch m"]:
        """Return the log-densities of the m factors of elements g, ``[*batch, *element_shape]``."""
        parts = zip(_members(self.factors), self.group.split(g), strict=True)
        return torch.stack([factor.log_prob(part) for factor, part in parts], -1)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        sample_shape = shape[: len(shape) - len(self.batch_shape)]
        return self.group.join(*(factor.sample(sample_shape, generator) for factor in _members(self.factors)))

    def _log_prob(self, g: Tensor) -> Tensor:
        parts = zip(_members(self.factors), self.group.split(g), strict=True)
        return torch.stack([factor._log_prob(part) for factor, part in parts], -1).sum(-1)


@checked
class EmpiricalDistribution(GroupDistribution):
    """The uniform distribution on the elements of a sample: the source of a `Bridge`. It has no density.

    Args:
        group: the group of the elements.
        elements: the sample ``[m, *element_shape]``.

    Raises:
        ShapeError: there are no elements, or not one batch dimension.
    """

    elements: Tensor

    def __init__(self, group: LieGroup, elements: Tensor) -> None:
        elements = group.check_elements(elements, "elements")
        if len(group.batch_shape(elements)) != 1 or not len(elements):
            raise ShapeError(f"elements: expected some [m, ...], got {list(elements.shape)}")
        super().__init__(group, elements=elements.detach().clone())

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> EmpiricalDistribution:
        new = copy.copy(self)
        _check_expansion(self.batch_shape, batch_shape)
        GroupDistribution.__init__(new, self.group, batch_shape, elements=self.elements)  # all copies share the sample
        return new

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return self.elements[integers(len(self.elements), shape, self.elements, generator)]

    def _log_prob(self, g: Tensor) -> Tensor:
        raise ConfigurationError(
            "log_prob: expected a model from a base distribution, got a bridge from a sample, which has no density"
        )


def _check_expansion(old: Sequence[int], new: Sequence[int]) -> None:
    """Check that `torch.Tensor.expand` takes a batch shape to a new one."""
    sizes = [check_count("batch_shape", size, 0) for size in new]
    lacking = len(sizes) - len(old)
    if lacking < 0 or any(a not in (1, b) for a, b in zip(old, sizes[max(0, lacking) :], strict=False)):
        raise ShapeError(f"batch_shape: expected one to which {list(old)} expands, got {sizes}")


def _members(modules: nn.ModuleList) -> list[GroupDistribution]:
    return cast("list[GroupDistribution]", list(modules))


def check_samples(group: LieGroup, g: Tensor, name: str) -> Tensor:
    """Project elements g, ``[b, *element_shape]``, on the group; messages call them ``name``.

    Raises:
        ShapeError: there is not one batch dimension.
        NonFiniteError: elements hold NaN or infinity.
        DomainError: rows are far from the group.
        ConfigurationError: values cannot be read, see `check_values`.
    """
    g = group.check_elements(g, name)
    if len(group.batch_shape(g)) != 1:
        raise ShapeError(f"{name}: expected one batch dimension, got {list(group.batch_shape(g))}")
    check_values(name, g)
    if not bool(torch.isfinite(g).all()):
        raise NonFiniteError(f"{name}: expected finite numbers, got NaN or infinity")
    near = group.project(g)
    if bool((wrong := ~is_near(group, g, near, _MAX_ENTRY_ERROR)).any()):
        raise DomainError(f"{name}: expected elements of {group!r}, got {int(wrong.sum())} rows that are not")
    return near


def sum_over_compact(group: LieGroup, log_size: Callable[[LieGroup], float]) -> float:
    """Return the sum of ``log_size`` over the compact factors of ``group``, or its value for a compact group."""
    if group.is_compact:
        return log_size(group)
    factors = scaled_factors(group) if isinstance(group, DirectProduct) else []
    return math.fsum(sum_over_compact(factor, log_size) for factor in factors)


def log_mass(group: LieGroup, measure: str) -> float:
    """Return the logarithm of the mass of the compact factors of ``group`` for a ``measure``, "haar" or "volume".

    Log-densities for the measure are those for Haar measure of mass one minus this number.

    Raises:
        ConfigurationError: the measure has another name, or the volume of the group is not known.
    """
    is_volume = check_choice("measure", measure, ("haar", "volume")) == "volume"
    return sum_over_compact(group, log_haar_volume) if is_volume else 0.0


def normal_log_density(
    v: Float[Tensor, "*b m n"], loc: Float[Tensor, "*b #m n"], scale_tril: Float[Tensor, "*b n n"]
) -> Float[Tensor, "*b m"]:
    """Log-density of the normal distribution on the algebra at rows v."""
    n, loc, scale_tril = v.shape[-1], loc.to(v), scale_tril.to(v)
    inverse = torch.linalg.solve_triangular(scale_tril, torch.eye(n).to(v), upper=False)
    squares = matmul(v - loc, inverse.mT).square().sum(-1)
    log_size = scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True) + 0.5 * n * math.log(2.0 * math.pi)
    return -0.5 * squares - log_size


def _broadcast_shapes(**shapes: torch.Size) -> torch.Size:
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError as error:
        found = ", ".join(f"{list(shape)}" for shape in shapes.values())
        raise ShapeError(f"{', '.join(shapes)}: expected batch shapes that broadcast, got {found}") from error


def _exact(group: LieGroup, parameter: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return a parameter and the elements nearest to g in double precision.

    Narrow densities cancel most digits of an element; one in single precision is no element to more digits than these.
    """
    return parameter.double(), group.project(g.double())


def _checked_matrices(name: str, x: Any, n: int) -> Tensor:
    """Check matrices ``[*batch, n, n]``; errors call them ``name``."""
    x = check_tensor(name, x)
    if x.shape[-2:] != (n, n):
        raise ShapeError(f"{name}: expected matrices [..., {n}, {n}], got {list(x.shape)}")
    if not is_abstract(x) and not bool(torch.isfinite(x).all()):
        raise NonFiniteError(f"{name}: expected finite numbers, got NaN or infinity")
    return x


def _proper_svd(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Singular value decomposition of 3 x 3 matrices, and the sign that makes the orthogonal factors rotations."""
    u, values, vh = torch.linalg.svd(x)
    sign = (_triple(u.detach()) * _triple(vh.detach())).sign()
    return u, values, vh, sign


def _triple(x: Tensor) -> Tensor:
    """Determinant of matrices 3 x 3."""
    return (x[..., 0] * torch.linalg.cross(x[..., 1], x[..., 2])).sum(-1)


def _log_axial_integral(
    a: Float[Tensor, "*batch"], b: Float[Tensor, "*batch"], d: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\log \int_0^1 i(a x)\, i(b (1 - x))\, e^{-d x} dx`, where :math:`i(z) = e^{-z} I_0(z)`.

    The trapezoidal rule in t with :math:`x = 1 / (1 + e^{-w})`, :math:`w = t - e^{-t - l} + e^{t - r}`. In w the
    integrand has one width at all scales of x, from :math:`e^{-l} = 1 / (1 + a + d)` up, and of 1 - x, from
    :math:`e^{-r} = 1 / (1 + b)` up; beyond these the double exponentials end it (Takahasi and Mori 1974).

    Args:
        a: numbers that are not negative, like b and d, in double precision.
    """
    a, b, d = (x.unsqueeze(-1) for x in (a, b, d))
    left, right = (1.0 + a + d).detach().log(), (1.0 + b).detach().log()
    first, length = -left - _QUADRATURE_TAIL, left + right + 2.0 * _QUADRATURE_TAIL
    step = length / _NUM_QUADRATURE_NODES
    t = first + step * (torch.arange(_NUM_QUADRATURE_NODES).to(a) + 0.5)
    low, high = (-t - left).exp(), (t - right).exp()
    w = t - low + high
    x, rest = torch.sigmoid(w), torch.sigmoid(-w)
    # the derivative of i0e at zero is taken to be zero; the right one is -1
    tiny = torch.finfo(a.dtype).tiny
    terms = torch.special.i0e(a * x + tiny) * torch.special.i0e(b * rest + tiny) * (-d * x).exp()
    return (step * terms * x * rest * (1.0 + low + high)).sum(-1).log()


def _quaternion_form(f: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 4 4"]:
    """The matrices A for which :math:`q^T A q` is the trace of F^T R(q)."""
    (a, b, c), (d, e, g), (h, i, k) = (row.unbind(-1) for row in f.unbind(-2))
    entries = (
        *(a + e + k, i - g, c - h, d - b),
        *(i - g, a - e - k, b + d, c + h),
        *(c - h, b + d, e - a - k, g + i),
        *(d - b, c + h, g + i, k - a - e),
    )
    return torch.stack(entries, -1).unflatten(-1, (4, 4))


def _envelope_width(loss: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch"]:
    """The positive root b of :math:`\\sum_i 1 / (b + 2 \\lambda_i) = 1`, by bisection."""
    low, high = torch.full_like(loss[..., 0], 1e-3), torch.full_like(loss[..., 0], 4.0)
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = (middle.unsqueeze(-1) + 2.0 * loss).reciprocal().sum(-1) > 1.0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return 0.5 * (low + high)
