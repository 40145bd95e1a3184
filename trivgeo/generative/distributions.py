"""Distributions on groups as `torch.distributions.Distribution` objects, with batch and event shapes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, constraints

from trivgeo._numerics import is_abstract
from trivgeo._random import normal, uniform
from trivgeo._signatures import check_calls
from trivgeo._text import described
from trivgeo.checks import check_count, check_tensor
from trivgeo.errors import ConfigurationError, DomainError, NonFiniteError, ShapeError
from trivgeo.groups import SO, LieGroup
from trivgeo.groups.harmonic import heat_kernel
from trivgeo.groups.rotations import rotation_from_quaternion, rotation_to_quaternion

__all__ = ["Bingham", "GroupDistribution", "HaarUniform", "HeatKernelDistribution", "MatrixFisher"]

DistributionT = TypeVar("DistributionT", bound="GroupDistribution")

_NUM_NODES = 128  # of the quadrature of a normalising constant
_MAX_ROUNDS = 10_000  # of a rejection sampler, whose acceptance is above a tenth
_MAX_ASYMMETRY = 1e-4  # relative, of a matrix that is taken for symmetric
_MAX_ENTRY_ERROR = 0.01  # relative distance of the entries of a value from those of the nearest element


class _Elements(constraints.Constraint):
    """Elements of a group."""

    def __init__(self, group: LieGroup) -> None:
        self.group, self.event_dim = group, len(group.element_shape)
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether values are near the group, ``[*batch]``."""
        periods = self.group._periods().reshape(self.group.element_shape).to(value)
        error = torch.where(periods > 0, 0.0, (self.group.project(value) - value).abs() / (1.0 + value.abs()))
        return (error < _MAX_ENTRY_ERROR).flatten(-self.event_dim).all(-1)


class GroupDistribution(Distribution):
    """A distribution on a group, for everything that takes a `torch.distributions.Distribution`.

    Densities are for left Haar measure: of total mass one on compact factors, elsewhere Lebesgue measure of the
    algebra, in the basis of the group, at the identity. On a torus :math:`n \\log 2 \\pi` less is the log-density for
    the angles.

    Args:
        group: where the values are.
        batch_shape: of the parameters.
        reference: tensor with the dtype and the device of the samples.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # parameters raise typed errors

    def __init__(self, group: LieGroup, batch_shape: Sequence[int], reference: Tensor) -> None:
        self.group, self._like = group, reference
        super().__init__(torch.Size(batch_shape), torch.Size(group.element_shape), validate_args=False)

    def __repr__(self) -> str:
        return described(self, {"group": self.group, "batch_shape": tuple(self.batch_shape)})

    @property
    def support(self) -> constraints.Constraint:
        """The elements of the group."""
        return _Elements(self.group)

    def sample(self, sample_shape: int | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw elements, without derivatives.

        Args:
            generator: random numbers; ``None`` is torch's.
        """
        with torch.no_grad():
            return self._draw(self._shape(sample_shape), generator)

    def rsample(self, sample_shape: int | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw elements that depend on the parameters differentiably.

        Args:
            generator: random numbers; ``None`` is torch's.

        Raises:
            ConfigurationError: the distribution is sampled by rejection.
        """
        if not self.has_rsample:
            raise ConfigurationError(f"{type(self).__name__}: expected a distribution with derivatives of its samples")
        return self._draw(self._shape(sample_shape), generator)

    def log_prob(self, value: Tensor) -> Float[Tensor, "*batch"]:
        """Return log-densities of elements ``value`` ``[*batch, *element_shape]``, which broadcast with parameters."""
        value = self.group.check_elements(value, "value")
        batch = torch.broadcast_shapes(self.group.batch_shape(value), self.batch_shape)
        return self._log_density(value.expand(*batch, *self.event_shape))

    def _shape(self, sample_shape: int | Sequence[int]) -> torch.Size:
        """Batch shape of draws, or `ConfigurationError`."""
        sizes = sample_shape if isinstance(sample_shape, Sequence) else [sample_shape]
        return torch.Size([check_count("sample_shape", size, 0) for size in sizes]) + self.batch_shape

    @abstractmethod
    def expand(self: DistributionT, batch_shape: Sequence[int], _instance: Any = None) -> DistributionT:
        """Return the distribution with parameters repeated to a ``batch_shape``."""

    @abstractmethod
    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Elements ``[*shape, *element_shape]``; the last dimensions of ``shape`` are those of the parameters."""

    @abstractmethod
    def _log_density(self, g: Tensor) -> Tensor:
        """Log-densities of elements that have the batch shape already."""


class HaarUniform(GroupDistribution):
    """The uniform distribution on a compact group, whose density is one.

    Args:
        group: a compact group.
        batch_shape: of independent copies.
        reference: tensor with the dtype and the device of the samples; default torch's dtype on the CPU.

    Raises:
        ConfigurationError: the group is not known to be compact.

    Example:
        >>> HaarUniform(SO(3)).sample((5,)).shape
        torch.Size([5, 3, 3])
    """

    has_rsample = True  # without parameters

    def __init__(self, group: LieGroup, batch_shape: Sequence[int] = (), reference: Tensor | None = None) -> None:
        if not group.is_compact:
            raise ConfigurationError(f"group: expected a compact one, got {group!r}")
        super().__init__(group, batch_shape, torch.empty(0) if reference is None else reference)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> HaarUniform:
        """Return so many copies, see `GroupDistribution.expand`; ``batch_shape`` is that of the result."""
        return HaarUniform(self.group, batch_shape, self._like)

    def entropy(self) -> Tensor:
        """Return zeros ``[*batch_shape]``."""
        return self._like.new_zeros(self.batch_shape)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        drawn = self.group.random_haar(
            shape.numel(), generator=generator, dtype=self._like.dtype, device=self._like.device
        )
        return drawn.reshape(*shape, *self.event_shape)

    def _log_density(self, g: Tensor) -> Tensor:
        return g.new_zeros(self.group.batch_shape(g))


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

    def __init__(self, group: LieGroup, centre: Tensor, std: Float[Tensor, "*batch"] | float) -> None:
        kernel = heat_kernel(group)
        if kernel is None:
            raise ConfigurationError(f"group: expected one whose heat kernel is known, got {group!r}")
        centre = group.check_elements(centre, "centre")
        scale = std.to(centre) if isinstance(std, Tensor) else centre.new_tensor(std)
        if not is_abstract(scale) and not bool((scale >= 0.0).all()):
            raise DomainError(f"std: expected numbers that are not negative, got {scale}")
        batch = _broadcast_shapes(centre=group.batch_shape(centre), std=scale.shape)
        self._kernel = kernel
        self.centre, self.std = centre.expand(*batch, *group.element_shape), scale.expand(batch)
        super().__init__(group, batch, centre.detach())

    @property
    def mode(self) -> Tensor:
        """The centre."""
        return self.centre

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> HeatKernelDistribution:
        return HeatKernelDistribution(
            self.group, self.centre.expand(*batch_shape, *self.event_shape), self.std.expand(tuple(batch_shape))
        )

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        noise = self._kernel.sample(self.std.square().expand(shape), generator)
        return self.group.compose(self.centre.expand(*shape, *self.event_shape), noise)

    def _log_density(self, g: Tensor) -> Tensor:
        batch = self.group.batch_shape(g)
        away = self.group.compose(self.group.inverse(self.centre), g)
        return self._kernel.log_density(away, self.std.square().expand(batch).to(g))


class MatrixFisher(GroupDistribution):
    r"""The matrix Fisher distribution on SO(3), whose log-density is :math:`\mathrm{tr}(F^T R) - \log c(F)`.

    Its mode is the rotation nearest to F; the singular values of F say how narrow it is about each axis (Downs 1972,
    Khatri and Mardia 1977). With proper singular values :math:`s_1 \ge s_2 \ge |s_3|` the constant for Haar measure of
    mass one is (Lee 2018)

    .. math:: c = \int_{-1}^1 \tfrac12 I_0\big(\tfrac12 (s_1 - s_2)(1 - u)\big)\,
        I_0\big(\tfrac12 (s_1 + s_2)(1 + u)\big)\, e^{s_3 u}\, du,

    by quadrature in double precision to about ten digits. Gradients with respect to F and to rotations exist. Samples
    come from the `Bingham` distribution of quaternions, and have no derivatives.

    Args:
        parameter: F, matrices ``[*batch, 3, 3]``.

    Raises:
        ShapeError: no matrices 3 x 3.
        NonFiniteError: they hold NaN or infinity.

    Example:
        >>> MatrixFisher(5.0 * torch.eye(3)).mode
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]])
    """

    def __init__(self, parameter: Float[Tensor, "*batch 3 3"]) -> None:
        self.parameter = _checked_matrices("parameter", parameter, 3)
        super().__init__(SO(3), parameter.shape[:-2], self.parameter.detach())

    @property
    def mode(self) -> Tensor:
        """The rotation of the largest density, ``[*batch, 3, 3]``; one of them where there are several."""
        u, _, vh, sign = _proper_svd(self.parameter.double())
        u = torch.cat([u[..., :2], u[..., 2:] * sign[..., None, None]], -1)
        return (u @ vh).to(self.parameter)

    def log_normaliser(self) -> Float[Tensor, "*batch"]:
        """Return :math:`\\log c(F)`, ``[*batch]``, whose gradient is the mean of the rotations."""
        _, values, _, sign = _proper_svd(self.parameter.double())
        proper = torch.cat([values[..., :2], values[..., 2:] * sign.unsqueeze(-1)], -1)
        return _log_fisher_constant(proper).to(self.parameter)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> MatrixFisher:
        return MatrixFisher(self.parameter.expand(*batch_shape, 3, 3))

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return Bingham(_quaternion_form(self.parameter))._draw(shape, generator)

    def _log_density(self, g: Tensor) -> Tensor:
        return (self.parameter * g).sum((-2, -1)) - self.log_normaliser()


class Bingham(GroupDistribution):
    r"""The Bingham distribution of rotations: of unit quaternions q with log-density :math:`q^T A q - \log c(A)`.

    Quaternions are (w, x, y, z), scalar first, and q and -q are one rotation. The constant for Haar measure of mass one
    is :math:`{}_1F_1(\tfrac12; 2; A)` of a matrix argument. Each one is a `MatrixFisher` distribution (Prentice 1986),
    by whose constant it is computed. Samples are drawn by rejection from angular central Gaussian ones (Kent,
    Ganeiber and Mardia 2013).

    Args:
        parameter: A, symmetric matrices ``[*batch, 4, 4]``; a multiple of the identity more makes no difference.

    Raises:
        ShapeError: no matrices 4 x 4.
        NonFiniteError: they hold NaN or infinity.
        DomainError: they are not symmetric.

    Example:
        >>> Bingham(torch.diag(torch.tensor([0.0, -9.0, -9.0, -9.0]))).mode.diagonal()
        tensor([1., 1., 1.])
    """

    def __init__(self, parameter: Float[Tensor, "*batch 4 4"]) -> None:
        self.parameter = _checked_matrices("parameter", parameter, 4)
        skew = (self.parameter - self.parameter.mT).abs().amax((-2, -1))
        if not is_abstract(skew) and bool((skew > _MAX_ASYMMETRY * self.parameter.abs().amax((-2, -1))).any()):
            raise DomainError("parameter: expected symmetric matrices, got others")
        super().__init__(SO(3), parameter.shape[:-2], self.parameter.detach())

    @property
    def mode(self) -> Tensor:
        """The rotation of the largest density, ``[*batch, 3, 3]``; one of them where there are several."""
        return rotation_from_quaternion(torch.linalg.eigh(self.parameter.double())[1][..., -1]).to(self.parameter)

    def log_normaliser(self) -> Float[Tensor, "*batch"]:
        """Return :math:`\\log c(A)`, ``[*batch]``."""
        values = torch.linalg.eigvalsh(self.parameter.double()).flip(-1)
        mean = values.mean(-1)
        proper = 0.5 * (values[..., :1] + values[..., 1:]) - mean.unsqueeze(-1)
        return (_log_fisher_constant(proper) + mean).to(self.parameter)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Bingham:
        return Bingham(self.parameter.expand(*batch_shape, 4, 4))

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        values, vectors = torch.linalg.eigh(self.parameter.double())
        loss = values[..., -1:] - values  # of log-density, along each axis
        width = _envelope_width(loss)
        stds = (1.0 + 2.0 * loss / width.unsqueeze(-1)).rsqrt().expand(*shape, 4).reshape(-1, 4)
        loss, width = loss.expand(*shape, 4).reshape(-1, 4), width.expand(shape).flatten()
        bound = -0.5 * (4.0 - width) + 2.0 * (4.0 / width).log()
        found, left = torch.zeros_like(loss), torch.arange(len(loss), device=loss.device)
        for _ in range(_MAX_ROUNDS):
            x = normal((len(left), 4), loss, generator) * stds[left]
            x = x / x.norm(dim=-1, keepdim=True)
            square = (loss[left] * x.square()).sum(-1)
            # the ratio of the densities of the Bingham and the envelope, at most one
            log_ratio = -square + 2.0 * (1.0 + 2.0 * square / width[left]).log() - bound[left]
            taken = uniform((len(left),), loss, generator).log() < log_ratio
            found[left[taken]] = x[taken]
            left = left[~taken]
            if not len(left):
                break
        q = (vectors.expand(*shape, 4, 4) @ found.reshape(*shape, 4, 1)).squeeze(-1)
        return rotation_from_quaternion(q).to(self.parameter)

    def _log_density(self, g: Tensor) -> Tensor:
        q = rotation_to_quaternion(g)
        return (q * (self.parameter.to(g) @ q.unsqueeze(-1)).squeeze(-1)).sum(-1) - self.log_normaliser()


def _broadcast_shapes(**shapes: torch.Size) -> torch.Size:
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError as error:
        found = ", ".join(f"{list(shape)}" for shape in shapes.values())
        raise ShapeError(f"{', '.join(shapes)}: expected batch shapes that broadcast, got {found}") from error


def _checked_matrices(name: str, x: Any, n: int) -> Tensor:
    """Matrices ``[*batch, n, n]``, or an error that calls them ``name``."""
    x = check_tensor(name, x)
    if x.shape[-2:] != (n, n):
        raise ShapeError(f"{name}: expected matrices [..., {n}, {n}], got {list(x.shape)}")
    if not is_abstract(x) and not bool(torch.isfinite(x).all()):
        raise NonFiniteError(f"{name}: expected finite numbers, got NaN or infinity")
    return x


def _proper_svd(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Singular value decomposition of matrices 3 x 3, and the sign that its orthogonal factors need for a rotation."""
    u, values, vh = torch.linalg.svd(x)
    sign = (_triple(u.detach()) * _triple(vh.detach())).sign()
    return u, values, vh, sign


def _triple(x: Tensor) -> Tensor:
    """Determinant of matrices 3 x 3."""
    return (x[..., 0] * torch.linalg.cross(x[..., 1], x[..., 2])).sum(-1)


def _log_fisher_constant(proper: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch"]:
    """The log-constant of `MatrixFisher`, from proper singular values in double precision."""
    s1, s2, s3 = proper.unsqueeze(-2).unbind(-1)
    nodes, weights = _legendre(proper)
    # x = (1 - u) / 2 of the formula, with nodes that become denser at zero, where the integrand has its peak
    depth = (2.0 + s1.detach() + s2.detach()).log()
    x = torch.expm1(depth * nodes) / torch.expm1(depth)
    slope = depth * torch.exp(depth * nodes) / torch.expm1(depth)
    first, second = (s1 - s2) * x, (s1 + s2) * (1.0 - x)
    total = proper.detach().sum(-1, keepdim=True)  # the largest exponent
    # absolute values have the derivative zero at zero, as i0e has, which s1 = s2 needs
    exponent = first.abs() + second.abs() + s3 * (1.0 - 2.0 * x) - total
    terms = weights * slope * torch.special.i0e(first) * torch.special.i0e(second) * exponent.exp()
    return terms.sum(-1).log() + total.squeeze(-1)


def _legendre(reference: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of Gauss and Legendre on [0, 1]."""
    order = torch.arange(1, _NUM_NODES, dtype=torch.float64)
    off = 0.5 / (1.0 - (2.0 * order) ** -2).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return (0.5 * (1.0 + nodes)).to(reference), vectors[0].square().to(reference)


def _quaternion_form(f: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 4 4"]:
    """The matrices A of which :math:`q^T A q` is the trace of F^T R(q)."""
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


check_calls(__name__, __all__)
