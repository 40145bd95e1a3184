"""The laws of a group, checked at random elements: for groups that are written by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo.checks import check_count, check_positive, check_type
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups.group import LieGroup

__all__ = ["GroupCheck", "check_group"]

_STEP = 1e-3  # of central differences of order four, in units of the basis
_DIFFERENCE_TOLERANCE = 1e-5  # relative, for laws that are compared with differences
_POINTS = 5  # on which an action is checked


@dataclass(frozen=True, repr=False)
class GroupCheck:
    """Result of `check_group`.

    Attributes:
        errors: the largest relative error of each law, by what it says.
        num_without_logarithm: sampled elements without a logarithm, on which laws of the logarithm were not checked.
    """

    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    num_without_logarithm: int = 0

    def __repr__(self) -> str:
        unchecked = f", {self.num_without_logarithm} elements without a logarithm" if self.num_without_logarithm else ""
        largest = max(self.errors.values(), default=0.0)
        return f"GroupCheck({len(self.errors)} laws hold, the largest relative error is {largest:.1e}{unchecked})"


def check_group(
    group: LieGroup,
    *,
    std: float = 0.3,
    num_samples: int = 16,
    tolerance: float = 1e-9,
    generator: torch.Generator | None = None,
) -> GroupCheck:
    r"""Check that a group keeps its laws, at random elements in double precision.

    The laws: product, inverse, identity; one-parameter subgroups, :math:`\exp(s v) \exp(t v) = \exp((s + t) v)`; the
    logarithm; :math:`g \exp(v) g^{-1} = \exp(\mathrm{Ad}_g v)`; structure constants against differences of Ad;
    Jacobians against differences of exp; the modular function; `project`; the standard action; and rows of a batch
    against single ones. The required hooks take a batch, also under `torch.func.vmap`. Results have the dtype of the
    arguments. Without this check a wrong adjoint, for example, would raise no error, but would make diffusion wrong.

    Args:
        group: the group, such as a subclass of `LieGroup` of your own.
        std: spread of the elements, exponentials of normal vectors, in units of the basis.
        num_samples: number of elements.
        tolerance: largest relative error of an entry that is taken for rounding.
        generator: source of the elements, on the CPU; default one with a fixed seed.

    Returns:
        The largest error of each law.

    Raises:
        AlgebraError: a law does not hold; the message names it, and the error. Or an operation returns no tensor, or
            one of another dtype.
        ConfigurationError: an argument is out of range.

    Example:
        >>> check_group(SE(3)).errors["the product is associative"] < 1e-12
        True
    """
    check_type("group", group, LieGroup)  # type: ignore[type-abstract]
    check_positive("std", std)
    check_count("num_samples", num_samples, 2)
    check_positive("tolerance", tolerance)
    _check_hooks(group)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    trial = _Trial(group, std, num_samples, generator)
    found = GroupCheck()
    for law, left, right, differences in trial.laws():
        for side in (left, right):
            _check_dtype(group, f"the operations in the law that {law}", side)
        error = trial.error(left, right)
        found.errors[law] = error
        bound = max(tolerance, _DIFFERENCE_TOLERANCE) if differences else tolerance
        if not error <= bound:
            raise AlgebraError(
                f"{group!r}: expected that {law}, got a relative error of {error:.2g}, above {bound:.2g}"
            )
    return dataclasses.replace(found, num_without_logarithm=trial.num_without_logarithm)


def _check_hooks(group: LieGroup) -> None:
    """Check that the required operations return tensors of their shapes.

    Raises:
        AlgebraError: one of them does not; the message names it.
    """
    element, dim = group.element_shape, group.dim

    def check(name: str, arguments: Sequence[Tensor], *shape: int) -> None:
        found = _called(group, name, getattr(group, name), arguments)
        if not isinstance(found, Tensor):
            raise AlgebraError(f"{group!r}: expected a tensor of {name}, got {found!r}")
        if found.shape != (2, *shape):
            expected = [2, *shape]
            raise AlgebraError(f"{group!r}: expected {expected} of {name} for two elements, got {list(found.shape)}")
        _check_dtype(group, name, found)
        _called(group, f"{name} under torch.func.vmap", torch.func.vmap(getattr(group, name)), arguments)

    one = _called(group, "_identity", lambda: group._identity(torch.float64, None), ())
    if not isinstance(one, Tensor) or one.shape != element:
        raise AlgebraError(f"{group!r}: expected a tensor {list(element)} of _identity, got {one!r}")
    _check_dtype(group, "_identity", one)
    unit = one.expand(2, *element).clone()
    check("_compose", (unit, unit), *element)
    check("_inverse", (unit,), *element)
    check("_exp", (torch.zeros(2, dim, dtype=torch.float64),), *element)
    check("_log", (unit,), dim)
    check("_adjoint", (unit,), dim, dim)


def _check_dtype(group: LieGroup, name: str, found: Tensor) -> None:
    if found.dtype != torch.float64:
        raise AlgebraError(
            f"{group!r}: expected {torch.float64} of {name}, the dtype of what it is given, got {found.dtype}"
        )


def _called(group: LieGroup, name: str, hook: Callable[..., object], arguments: Sequence[Tensor]) -> object:
    """Call a hook of the group on two elements; whatever it raises is an `AlgebraError` that names it."""
    try:
        return hook(*arguments)
    except Exception as error:
        raise AlgebraError(f"{group!r}: expected results of {name} for two elements, got {error!r}") from error


Law = tuple[str, Tensor, Tensor, bool]
"""What a law says, both sides of its equation, and whether a side is made of differences."""


class _Trial:
    """Random elements and vectors, and the laws on them."""

    def __init__(self, group: LieGroup, std: float, count: int, generator: torch.Generator) -> None:
        self.group = group
        reference = torch.empty(0, dtype=torch.float64)
        self.u, self.v, *vectors = (std * normal((count, group.dim), reference, generator) for _ in range(5))
        self.f, self.g, self.h = (group.exp(x) for x in vectors)
        self.points = normal((count, _POINTS, 1), reference, generator)
        self.generator = generator
        self.num_without_logarithm = 0
        self.periods = group._periods()

    def error(self, left: Tensor, right: Tensor) -> float:
        """The largest relative error of entries, up to periods; infinite for other shapes and numbers not finite."""
        if left.shape != right.shape:
            return torch.inf
        gap = left - right
        if gap.shape[gap.ndim - self.periods.ndim :] == self.periods.shape and bool((self.periods > 0).any()):
            turns = torch.where(self.periods > 0, self.periods, 1.0)
            gap = torch.where(self.periods > 0, gap - turns * torch.round(gap / turns), gap)
        relative = gap.abs() / (1.0 + right.abs())
        return float(relative.max()) if bool(torch.isfinite(relative).all()) else torch.inf

    def laws(self) -> Iterator[Law]:
        yield from self.products()
        yield from self.exponentials()
        yield from self.adjoints()
        yield from self.jacobians()
        yield from self.batches()
        yield from self.actions()

    def products(self) -> Iterator[Law]:
        group, (f, g, h) = self.group, (self.f, self.g, self.h)
        e = group.identity(len(f), dtype=torch.float64)
        yield "the product is associative", self(self(f, g), h), self(f, self(g, h)), False
        yield "the identity is neutral on the left", self(e, g), g, False
        yield "the identity is neutral on the right", self(g, e), g, False
        yield "the inverse is one on the right", self(g, group.inverse(g)), e, False
        yield "the inverse is one on the left", self(group.inverse(g), g), e, False
        yield "projection leaves elements alone", group.project(g), g, False

    def exponentials(self) -> Iterator[Law]:
        group, v = self.group, self.v
        e = group.identity(len(v), dtype=torch.float64)
        yield "exp(0) is the identity", group.exp(0.0 * v), e, False
        for s, t in ((0.3, 0.7), (1.0, -0.4)):
            law = f"exp({s} v) exp({t} v) is exp({s + t:g} v)"
            yield law, self(group.exp(s * v), group.exp(t * v)), group.exp((s + t) * v), False
        small = 0.1 * v
        yield "log(exp(v)) is v near the identity", group.log(group.exp(small)), small, False
        log = group.log(self.g)
        known = torch.isfinite(log).all(-1)
        self.num_without_logarithm = int((~known).sum())
        yield "exp(log(g)) is g", group.exp(log[known]), self.g[known], False

    def adjoints(self) -> Iterator[Law]:
        group, g, h, u, v = self.group, self.g, self.h, self.u, self.v
        ad = group.Ad(g)
        yield "Ad of a product is the product of the Ad", group.Ad(self(g, h)), ad @ group.Ad(h), False
        moved = (ad @ v.unsqueeze(-1)).squeeze(-1)
        conjugate = self(self(g, group.exp(v)), group.inverse(g))
        yield "g exp(v) g^-1 is exp(Ad_g v)", conjugate, group.exp(moved), False
        y = group.coadjoint(g, u)
        yield "coadjoint is the transpose of Ad", (y * v).sum(-1), (u * moved).sum(-1), False
        slope = _difference(lambda s: (group.Ad(group.exp(s * u)) @ v.unsqueeze(-1)).squeeze(-1))
        yield "the derivative of Ad is the bracket of the algebra", slope, group.algebra.bracket(u, v), True
        determinant = -torch.linalg.slogdet(ad)[1]
        yield "the modular function is det Ad(g^-1)", group.log_modular(g), determinant, False

    def jacobians(self) -> Iterator[Law]:
        group, u, v = self.group, self.u, self.v
        back = group.exp(-v)
        left = _difference(lambda s: group.log(self(group.exp(v + s * u), back)))
        applied = (group.left_jacobian(v) @ u.unsqueeze(-1)).squeeze(-1)
        yield "the left Jacobian is the derivative of exp", applied, left, True
        right = _difference(lambda s: group.log(self(back, group.exp(v + s * u))))
        applied = (group.right_jacobian(v) @ u.unsqueeze(-1)).squeeze(-1)
        yield "the right Jacobian is the derivative of exp", applied, right, True
        perturbed = _difference(lambda s: group.perturb(self.g, s * u))
        yield (
            "perturb has the derivative of retract",
            perturbed,
            _difference(lambda s: group.retract(self.g, s * u)),
            True,
        )

    def batches(self) -> Iterator[Law]:
        group, g, h, v = self.group, self.g, self.h, self.v
        rows = torch.stack([self(a, b) for a, b in zip(g, h, strict=True)])
        yield "rows of a product do not mix", self(g, h), rows, False
        yield "rows of exp do not mix", group.exp(v), torch.stack([group.exp(x) for x in v]), False
        yield "rows of Ad do not mix", group.Ad(g), torch.stack([group.Ad(x) for x in g]), False

    def actions(self) -> Iterator[Law]:
        try:
            action = self.group.action()
        except ConfigurationError:
            return
        reference = self.points
        for dim in action.point_dims:
            x = 0.3 * normal((len(self.g), _POINTS, dim), reference, self.generator)
            once = action(self.g, action(self.h, x))
            known = torch.isfinite(once).flatten(1).all(-1)  # local actions are not defined everywhere
            yield (
                "the action of a product is one after the other",
                action(self(self.g, self.h), x)[known],
                once[known],
                False,
            )
            e = self.group.identity(len(x), dtype=torch.float64)
            yield "the identity leaves points alone", action(e, x), x, False

    def __call__(self, g: Tensor, h: Tensor) -> Tensor:
        return self.group.compose(g, h)


def _difference(f: Callable[[float], Tensor]) -> Tensor:
    """The derivative at zero, by central differences of order four."""
    return (8.0 * (f(_STEP) - f(-_STEP)) - (f(2.0 * _STEP) - f(-2.0 * _STEP))) / (12.0 * _STEP)
