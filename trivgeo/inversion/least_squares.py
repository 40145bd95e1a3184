"""Energies that are sums of squares, and the descent for them: point clouds, moments, whatever has residuals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float, Int
from scipy.spatial import KDTree
from torch import Tensor, nn

from trivgeo._text import Described
from trivgeo.actions import Referenced
from trivgeo.checks import check_count, check_positive, check_tensor, check_type, promoted
from trivgeo.errors import ConfigurationError, NonFiniteError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.inversion.energy import CurvedEnergy
from trivgeo.inversion.inverter import Stage
from trivgeo.inversion.posterior import GivenPosterior, where_rows
from trivgeo.inversion.result import Population
from trivgeo.sde.solvers import systematic_indices

__all__ = [
    "GemanMcClure",
    "Laplace",
    "LeastSquares",
    "LevenbergMarquardt",
    "NearestPoints",
    "PairedPoints",
    "Trimmed",
    "with_normals",
]

_TOGETHER = 2**22
"""Distances that are held at once in a search for neighbours."""

_NEIGHBOURS = 10
"""Points of a reference, the point itself among them, that make its normal."""

_REACH = 5.0
"""Standard deviations within which two chains are in one well."""

_DAMPING_BOUNDS = (1e-9, 1e9)


class LeastSquares(nn.Module, CurvedEnergy):
    r"""Half a sum of squares of residuals, :math:`E(x) = \frac{1}{2 \sigma^2} \sum_i \rho(|r_i(x)|^2)`.

    Minus the logarithm of a density, up to a constant, if residuals have normal noise of standard deviation
    :math:`\sigma`. The curvature that `LevenbergMarquardt` uses comes with it.

    Args:
        residuals: a function (or network) from a batch of data to residuals r, ``[batch, q]``, or to vectors
            ``[batch, q, n]``; such as `NearestPoints`, `PairedPoints`.
        loss: :math:`\rho`, from squares ``[batch, q]`` to ``[batch, q]``, such as `GemanMcClure`, `Trimmed`; default
            the squares themselves.
        std: :math:`\sigma`, in units of the residuals.

    Raises:
        ConfigurationError: the residuals or the loss are no function, or the standard deviation is not positive.

    Example:
        >>> energy = LeastSquares(lambda x: x - 1.0)
        >>> energy(torch.tensor([[1.0, 3.0]]))
        tensor([2.])
    """

    def __init__(
        self,
        residuals: Callable[[Any], Tensor],
        loss: Callable[[Tensor], Tensor] | None = None,
        std: float = 1.0,
    ) -> None:
        super().__init__()
        for name, function in (("residuals", residuals), ("loss", loss)):
            if function is not None and not callable(function):
                raise ConfigurationError(f"{name}: expected a function, got {function!r}")
        self.function = residuals
        self.loss = loss
        self.std = check_positive("std", std)

    def residuals(self, x: Any) -> Float[Tensor, "batch q n"]:
        """The residuals in units of the standard deviation.

        Raises:
            ShapeError: the function returns no ``[batch, q]`` or ``[batch, q, n]``.
        """
        r = check_tensor("residuals", self.function(x))
        if r.ndim not in (2, 3):
            raise ShapeError(f"residuals: expected [batch, q] or [batch, q, n], got {list(r.shape)}")
        return (r.unsqueeze(-1) if r.ndim == 2 else r) / self.std

    def robust(self, squares: Float[Tensor, "batch q"]) -> Float[Tensor, "batch q"]:
        """The loss of squares in units of the variance."""
        return squares if self.loss is None else self.loss(squares * self.std**2) / self.std**2

    def forward(self, x: Any) -> Float[Tensor, " batch"]:
        """One energy for each datum."""
        return 0.5 * self.robust(self.residuals(x).square().sum(-1)).sum(-1)

    def curvature(self, x: Callable[[Tensor], Any], v: Float[Tensor, "*batch n"]) -> Float[Tensor, "rows n n"]:
        """``J^T W J`` with J the Jacobian of the residuals and W the derivative of the loss, Gauss and Newton's."""

        def residuals(v: Tensor) -> Tensor:
            return self.residuals(x(v))

        # all directions together, so that what does not depend on them (neighbours) is found once
        directions = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
        directions = directions.reshape(-1, *[1] * (v.ndim - 1), v.shape[-1]).expand(-1, *v.shape)
        r, columns = torch.func.vmap(
            lambda t: torch.func.jvp(residuals, (v,), (t,)),  # type: ignore[misc]
            out_dims=(None, 0),  # type: ignore[arg-type]
        )(directions)
        weights = torch.func.grad(lambda squares: self.robust(squares).sum())(r.square().sum(-1))
        return einsum(columns, weights, columns, "i rows q n, rows q, j rows q n -> rows i j")


class GemanMcClure(Described):
    r"""The loss :math:`\rho(s) = w^2 s / (w^2 + s)`: squares much smaller than w^2 as they are, none above w^2.

    An outlier costs w^2 wherever it is, and pulls at nothing (Geman and McClure 1987).

    Args:
        width: w, in units of the residuals.

    Raises:
        ConfigurationError: the width is not positive.
    """

    def __init__(self, width: float) -> None:
        self.width = check_positive("width", width)

    def __call__(self, squares: Float[Tensor, "*batch q"]) -> Float[Tensor, "*batch q"]:
        """The losses."""
        square = self.width**2
        return square * squares / (square + squares)


class Trimmed(Described):
    """The smallest squares of each datum, a given share of them; zero for the others (Chetverikov et al. 2002).

    Of equal squares as many stay as the share leaves room for. For data of which a known share has no counterpart:
    partial overlap, outliers.

    Args:
        keep: the share, in (0, 1].

    Raises:
        ConfigurationError: another share.
    """

    def __init__(self, keep: float) -> None:
        if check_positive("keep", keep) > 1.0:
            raise ConfigurationError(f"keep: expected a share in (0, 1], got {keep!r}")
        self.keep = keep

    def __call__(self, squares: Float[Tensor, "*batch q"]) -> Float[Tensor, "*batch q"]:
        """The losses."""
        if squares.shape[-1] == 0:
            raise ShapeError(f"squares: expected at least one for each datum, got {list(squares.shape)}")
        number = max(1, round(self.keep * squares.shape[-1]))
        # by rank, NaN last: a bound on the values would keep all that are equal to it
        index = squares.detach().topk(number, dim=-1, largest=False, sorted=False).indices
        kept = torch.zeros_like(squares, dtype=torch.bool).scatter(-1, index, True)
        return torch.where(kept, squares, 0.0)


class PairedPoints(nn.Module):
    """Residuals of clouds ``[batch, m, n]``: from each point of a reference to the same point of the cloud.

    Args:
        reference: ``[m, n]``, in the order of the clouds; ``None`` if each datum brings its own, see `WithReference`.

    Raises:
        ShapeError: the reference is no cloud; or (when called) the clouds are of other points.
        ConfigurationError: (when called) data without a reference where none was given.
    """

    def __init__(self, reference: Float[Tensor, "m n"] | None = None) -> None:
        super().__init__()
        self.reference: Tensor | None
        self.register_buffer("reference", None if reference is None else _check_reference(reference))

    def forward(self, x: Float[Tensor, "batch m n"] | Referenced) -> Float[Tensor, "batch m n"]:
        """The differences."""
        cloud, reference = _apart(x, self.reference)
        if cloud.ndim != 3 or cloud.shape[-2:] != reference.shape[-2:]:
            wanted = ", ".join(map(str, reference.shape[-2:]))
            raise ShapeError(f"x: expected clouds [batch, {wanted}], as the reference, got {list(cloud.shape)}")
        return cloud - reference


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
        self._plant()
        self.register_buffer("normals", None if reference is None or tangent == 1.0 else normals_of(reference))

    def forward(self, x: Float[Tensor, "batch m n"] | Referenced) -> Float[Tensor, "batch m n"]:
        """The residuals; which point is nearest is held fixed in derivatives."""
        cloud, reference = _apart(x, self.reference)
        normals = self.normals
        if self.reference is None and self.tangent < 1.0:
            if reference.shape[-1] % 2:
                raise ShapeError(f"x: expected references with_normals, [batch, k, 2 n], got {list(reference.shape)}")
            reference, normals = reference.chunk(2, -1)
        if cloud.ndim != 3 or cloud.shape[-1] != reference.shape[-1]:
            raise ShapeError(f"x: expected clouds [batch, m, {reference.shape[-1]}], got {list(cloud.shape)}")
        index = _Nearest.apply(cloud, reference, self._nearest)
        d = cloud - _points(reference, index)
        if normals is None:
            return d
        normal = _points(normals, index)
        return self.tangent * d + (1.0 - self.tangent) * (d * normal).sum(-1, keepdim=True) * normal

    def nearest(self, x: Float[Tensor, "*batch n"]) -> Int[Tensor, "*batch"]:
        """Which point of the reference is nearest to each point: by a tree on the CPU, by all distances elsewhere.

        Raises:
            ConfigurationError: each datum brings its own reference.
        """
        if self.reference is None:
            raise ConfigurationError("reference: expected one to search in, got None")
        if x.shape[-1] != self.reference.shape[-1]:
            raise ShapeError(f"x: expected points [..., {self.reference.shape[-1]}], got {list(x.shape)}")
        return self._nearest(x, self.reference)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._plant()

    def _plant(self) -> None:
        """The tree of the reference, if there is one."""
        points = self.reference
        self._tree = None if points is None else KDTree(points.detach().double().cpu().numpy())

    def _nearest(self, x: Tensor, reference: Tensor) -> Tensor:
        x = x.detach().nan_to_num()
        if self._tree is not None and x.device.type == "cpu":
            index = torch.from_numpy(self._tree.query(x.double().numpy())[1]).reshape(x.shape[:-1])
            return index.clamp(max=len(reference) - 1)  # of points too far for the square of a distance it finds none
        x, reference = promoted(x=x, reference=reference)
        middle = reference.mean(-2, keepdim=True)
        flat, reference = (x.reshape(-1, x.shape[-1]) if reference.ndim == 2 else x) - middle, reference - middle
        half = 0.5 * reference.square().sum(-1).unsqueeze(-2)
        # |x - y|^2 less |x|^2, halved
        parts = flat.split(max(1, _TOGETHER // half.numel()), -2)
        return torch.cat([(half - part @ reference.mT).argmin(-1) for part in parts], -1).reshape(x.shape[:-1])


def with_normals(points: Float[Tensor, "*batch k n"]) -> Float[Tensor, "*batch k m"]:
    """Clouds with the normals of the surfaces that they lie on, ``[*batch, k, 2 n]``, for `NearestPoints`.

    Args:
        points: of the surfaces; the normal at each is the direction in which its ten nearest ones vary least.

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
    """The directions in which clouds vary least about each point."""
    clouds = points.detach().double().cpu().reshape(-1, *points.shape[-2:])
    number = min(_NEIGHBOURS, clouds.shape[1])
    # one tree for all: clouds lie in layers of one more coordinate, further apart than any is wide
    layer = torch.arange(len(clouds)) * (2.0 * (clouds.amax((0, 1)) - clouds.amin((0, 1))).norm() + 1.0)
    layered = torch.cat([clouds, layer.reshape(-1, 1, 1).expand(*clouds.shape[:2], 1)], -1).flatten(0, 1).numpy()
    index = KDTree(layered).query(layered, k=[*range(1, number + 1)])[1]
    about = clouds.flatten(0, 1)[torch.from_numpy(index)]
    about = about - about.mean(1, keepdim=True)
    return torch.linalg.eigh(about.mT @ about)[1][..., 0].reshape(points.shape).to(points)


class _Nearest(torch.autograd.Function):
    """A search for neighbours, which sees plain tensors under every transform."""

    @staticmethod
    def forward(x: Tensor, reference: Tensor, nearest: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return nearest(x, reference)

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
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        reference: Tensor,
        nearest: Callable[[Tensor, Tensor], Tensor],
    ) -> Any:
        first = lambda tensor, dim: tensor if dim is None else tensor.movedim(dim, 0)  # noqa: E731
        return _Nearest.apply(first(x, in_dims[0]), first(reference, in_dims[1]), nearest), 0


def _apart(x: Any, reference: Tensor | None) -> tuple[Tensor, Tensor]:
    """Clouds, and the reference for all of them or one for each."""
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


def _points(points: Tensor, index: Tensor) -> Tensor:
    """The points of these numbers, of the cloud for all or of one for each row."""
    return points[index] if points.ndim == 2 else torch.take_along_dim(points, index.unsqueeze(-1), -2)


class LevenbergMarquardt(Stage):
    r"""Descends to the minimum of an energy of squares, each chain by itself, in a few steps.

    .. math:: g \leftarrow g \exp(-(H + \lambda D)^{-1} \nabla E), \quad H = J^T W J

    with J the Jacobian of the residuals by v in :math:`g \exp v`, W the derivative of the loss (Gauss and Newton's
    curvature; reweighted where the loss is robust) and D the diagonal of H (Marquardt 1963). The gradient is that of
    the whole posterior energy. A step that does not lower the energy is taken back and :math:`\lambda` raised, so that
    no chain ends higher than it began; a chain whose energy or gradient is not finite stays, and the step counts as a
    failure. Each step evaluates the energy, its gradient, and the residuals with their Jacobian, in dim directions at
    once.

    Args:
        steps: of each chain.
        damping: :math:`\lambda` of the first step; a tenth after a step that was taken, ten times it otherwise.

    Raises:
        ConfigurationError: a setting out of its range; or (when run) the energy is no `LeastSquares`.

    Example:
        >>> inverter = Inverter(PointCloud(SE(3)), LeastSquares(NearestPoints(model)), [LevenbergMarquardt(20)])
    """

    def __init__(self, steps: int = 20, damping: float = 1e-3) -> None:
        self.steps = check_count("steps", steps)
        self.damping = check_positive("damping", damping)

    def __call__(
        self, posterior: GivenPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The ends of the descents."""
        group = posterior.group
        start = population.evaluated(posterior)
        g, energy = start.elements, start.energies
        zero = g.new_zeros(*g.shape[:2], group.dim)
        damping = g.new_full(g.shape[:2], self.damping)
        failures = torch.zeros_like(population.failures)
        for _ in range(self.steps):
            gradient, _ = posterior.gradient(lambda v, g=g: group.perturb(g, v), zero)  # type: ignore[misc]
            v, usable = _damped_step(posterior.curvature(g), gradient, damping)
            moved = group.retract(g, v)
            usable = usable & torch.isfinite(energy) & torch.isfinite(moved).flatten(2).all(-1)
            moved = where_rows(usable, moved, g)
            reached = posterior.energies(moved)
            lower = usable & (reached < energy)
            g, energy = where_rows(lower, moved, g), torch.where(lower, reached, energy)
            damping = (damping * torch.where(lower, 0.1, 10.0)).clamp(*_DAMPING_BOUNDS)
            failures = failures + (~usable).long()
            posterior.step()
        return population.moved(g, energy, failures)


class Laplace(Stage):
    r"""Draws from normal laws in the wells whose minima the chains have reached, each well with its weight.

    A well of minimum g counts :math:`e^{-E(g) / T} \det H^{-1/2}`, H Gauss and Newton's curvature there (Laplace's
    approximation of its share of the posterior of temperature T, for left Haar measure), however many chains have
    ended in it: of chains within five standard deviations of a lower one, only that one stays. Elements are
    :math:`g \exp(\sqrt{T} H^{-1/2} z)`, and the numbers from each well are right within one (systematic resampling).

    Put it after `LevenbergMarquardt` from many starts: wells that no start finds are missing.

    Args:
        num_hypotheses: elements drawn for each datum.
        temperature: T.

    Raises:
        ConfigurationError: a setting out of its range; or (when run) the energy is no `LeastSquares`.
    """

    def __init__(self, num_hypotheses: int, temperature: float = 1.0) -> None:
        self.num_hypotheses = check_count("num_hypotheses", num_hypotheses)
        self.temperature = check_positive("temperature", temperature)

    def __call__(
        self, posterior: GivenPosterior, population: Population, generator: torch.Generator | None
    ) -> Population:
        """The sample; a chain without finite energy and positive curvature counts for nothing."""
        group, at = posterior.group, population.evaluated(posterior)
        curvature = posterior.curvature(at.elements) / self.temperature
        eye = torch.eye(group.dim, dtype=curvature.dtype, device=curvature.device)
        finite = torch.isfinite(at.energies) & torch.isfinite(curvature).all((-2, -1))
        factor, info = torch.linalg.cholesky_ex(where_rows(finite, curvature, eye))
        good = finite & (info == 0)
        factor = where_rows(good, factor, eye)
        alone = good & ~self._is_double(group, at.elements, torch.where(good, at.energies, torch.inf), factor)
        logits = -at.energies / self.temperature - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        logits = torch.where(alone, logits, -torch.inf)
        logits = torch.where(alone.any(1, keepdim=True), logits, 0.0)
        index = systematic_indices(logits, generator, self.num_hypotheses)
        drawn = at.take(index)
        z = posterior.normal(*index.shape, group.dim, generator=generator).unsqueeze(-1)
        spread = torch.take_along_dim(factor, index[..., None, None], 1)
        v = torch.linalg.solve_triangular(spread.mT, z, upper=True).squeeze(-1)
        return drawn.moved(group.retract(drawn.elements, v))

    @staticmethod
    def _is_double(group: LieGroup, g: Tensor, energies: Tensor, factor: Tensor) -> Tensor:
        """Whether a lower chain is within reach, ``[b, k]``."""
        v = group.log(group.compose(group.inverse(g).unsqueeze(1), g.unsqueeze(2)))  # of the second seen from the first
        near = (v.unsqueeze(-2) @ factor.unsqueeze(1)).square().sum((-2, -1)) < _REACH**2
        order = torch.arange(energies.shape[1], device=energies.device)
        lower = energies.unsqueeze(1) < energies.unsqueeze(2)
        first = (energies.unsqueeze(1) == energies.unsqueeze(2)) & (order < order.unsqueeze(-1))
        return (near & (lower | first)).any(-1)


def _damped_step(
    curvature: Float[Tensor, "b k n n"], gradient: Float[Tensor, "b k n"], damping: Float[Tensor, "b k"]
) -> tuple[Float[Tensor, "b k n"], Tensor]:
    """The step, and where there is one; zero elsewhere."""
    finite = torch.isfinite(gradient).all(-1) & torch.isfinite(curvature).all((-2, -1))
    eye = torch.eye(gradient.shape[-1], dtype=gradient.dtype, device=gradient.device)
    curvature = where_rows(finite, curvature, eye)
    diagonal = curvature.diagonal(dim1=-2, dim2=-1)
    # directions in which nothing changes keep a little of the others' curvature
    least = diagonal.amax(-1, keepdim=True) * torch.finfo(gradient.dtype).eps
    diagonal = torch.maximum(diagonal, least + torch.finfo(gradient.dtype).tiny)
    factor, info = torch.linalg.cholesky_ex(curvature + torch.diag_embed(damping.unsqueeze(-1) * diagonal))
    good = finite & (info == 0)
    factor = where_rows(good, factor, eye)
    v = -torch.cholesky_solve(torch.where(finite.unsqueeze(-1), gradient, 0.0).unsqueeze(-1), factor).squeeze(-1)
    return torch.where(good.unsqueeze(-1), v, 0.0), finite


def _check_reference(reference: Tensor) -> Tensor:
    if not isinstance(reference, Tensor) or not reference.is_floating_point():
        raise ConfigurationError(f"reference: expected a tensor of floating-point numbers, got {reference!r}")
    if reference.ndim != 2 or 0 in reference.shape:
        raise ShapeError(f"reference: expected points [m, n], got {list(reference.shape)}")
    return reference
