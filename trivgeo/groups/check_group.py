"""The laws of a group: one list, and the check of it at random elements, for groups that are written by hand."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo._text import counted
from trivgeo.checks import check_count, check_positive, check_type, checked
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups.group import LieGroup

__all__ = ["GroupCheck"]

DIFFERENCE_TOLERANCE = 1e-5
"""Relative error of laws that hold for difference quotients."""
_DIFFERENCE_STEP = 1e-3  # step of central differences of order four, in units of the basis
_NUM_POINTS = 5  # points at which an action is checked


@dataclass(frozen=True, repr=False)
class GroupCheck:
    """Result of `check_group`.

    Attributes:
        errors: the largest relative error of each law, by the statement of the law.
        num_without_logarithm: sampled elements without a logarithm, on which laws of the logarithm were not checked.
    """

    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    num_without_logarithm: int = 0

    def __repr__(self) -> str:
        number = self.num_without_logarithm
        unchecked = f", {counted(number, 'element')} without a logarithm" if number else ""
        largest = max(self.errors.values(), default=0.0)
        return f"GroupCheck({len(self.errors)} laws hold, the largest relative error is {largest:.1e}{unchecked})"


@checked
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
        tolerance: largest relative error of an entry that counts as rounding.
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
    vectors = std * normal((5, num_samples, group.dim), torch.empty(0, dtype=torch.float64), generator)
    laws = GroupLaws(group, vectors[:2].unbind(0), [group.exp(x) for x in vectors[2:]])
    errors = {}
    for law in itertools.chain(laws.of_operations(), laws.of_action(generator)):
        for side in (law.left, law.right):
            _check_dtype(group, f"the operations in the law that {law.statement}", side)
        errors[law.statement] = error = laws.error(law)
        bound = max(tolerance, DIFFERENCE_TOLERANCE) if law.by_differences else tolerance
        if not error <= bound:
            raise AlgebraError(
                f"{group!r}: expected that {law.statement}, got a relative error of {error:.2g}, above {bound:.2g}"
            )
    return GroupCheck(errors, int((~laws.has_log()).sum()))


def _check_hooks(group: LieGroup) -> None:
    """Check that the required operations return tensors of their shapes.

    Raises:
        AlgebraError: an operation does not; the message names it.
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
            f"{group!r}: expected {torch.float64} of {name}, the dtype of its arguments, got {found.dtype}"
        )


def _called(group: LieGroup, name: str, hook: Callable[..., object], arguments: Sequence[Tensor]) -> object:
    """Call a hook of the group on two elements; any error becomes an `AlgebraError` that names the hook."""
    try:
        return hook(*arguments)
    except Exception as error:
        raise AlgebraError(f"{group!r}: expected results of {name} for two elements, got {error!r}") from error


class Law(NamedTuple):
    """An equation that a group must satisfy, at some elements.

    Attributes:
        statement: the equation in words.
        left: left side of the law, ``[*batch, ...]``.
        right: right side of the law, ``[*batch, ...]``.
        by_differences: whether a side is a difference quotient, which has few digits.
    """

    statement: str
    left: Tensor
    right: Tensor
    by_differences: bool = False


class GroupLaws:
    """The laws of a group at given elements: one list for `check_group` and for the tests of all groups.

    Args:
        vectors: vectors u and v, ``[*batch, dim]``.
        elements: elements f, g and h, ``[*batch, *element_shape]``, of the dtype of the vectors.
    """

    def __init__(self, group: LieGroup, vectors: Sequence[Tensor], elements: Sequence[Tensor]) -> None:
        self.group = group
        self.u, self.v = vectors
        self.f, self.g, self.h = elements
        self.batch = self.v.shape[:-1]
        self.e = group.identity(*self.batch, dtype=self.v.dtype, device=self.v.device)
        self.periods = group._periods()

    def error(self, law: Law) -> float:
        """The largest relative error of entries, up to periods; infinite for other shapes and nonfinite numbers."""
        left, right = law.left, law.right
        if left.shape != right.shape:
            return torch.inf
        gap = left - right
        if gap.shape[gap.ndim - self.periods.ndim :] == self.periods.shape and bool((self.periods > 0).any()):
            turns = torch.where(self.periods > 0, self.periods, 1.0)
            gap = torch.where(self.periods > 0, gap - turns * torch.round(gap / turns), gap)
        relative = gap.abs() / (1.0 + right.abs())
        return float(relative.max()) if bool(torch.isfinite(relative).all()) else torch.inf

    def of_operations(self) -> Iterator[Law]:
        """All laws except those of the action."""
        yield from self.of_products()
        yield from self.of_exponentials()
        yield from self.of_adjoints()
        yield from self.of_jacobians()
        yield from self.of_rows()

    def of_products(self) -> Iterator[Law]:
        group, f, g, h, e = self.group, self.f, self.g, self.h, self.e
        yield Law("the product is associative", self(self(f, g), h), self(f, self(g, h)))
        yield Law("the identity is neutral on the left", self(e, g), g)
        yield Law("the identity is neutral on the right", self(g, e), g)
        yield Law("the inverse is one on the right", self(g, group.inverse(g)), e)
        yield Law("the inverse is one on the left", self(group.inverse(g), g), e)
        yield Law("projection leaves elements alone", group.project(g), g)

    def of_exponentials(self) -> Iterator[Law]:
        group, v, g = self.group, self.v, self.g
        yield Law("exp(0) is the identity", group.exp(0.0 * v), self.e)
        for s, t in ((0.3, 0.7), (1.0, -0.4)):
            statement = f"exp({s} v) exp({t} v) is exp({s + t:g} v)"
            yield Law(statement, self(group.exp(s * v), group.exp(t * v)), group.exp((s + t) * v))
        small = 0.1 * v
        yield Law("log(exp(v)) is v near the identity", group.log(group.exp(small)), small)
        yield Law("log of the identity is zero", group.log(self.e), 0.0 * v)
        known = self.has_log().reshape(*self.batch, *[1] * (g.ndim - len(self.batch)))
        again = group.exp(torch.where(self.has_log().unsqueeze(-1), group.log(g), 0.0))
        yield Law("exp(log(g)) is g", torch.where(known, again, g), g)
        yield Law("the inverse of exp(v) is exp(-v)", group.inverse(group.exp(v)), group.exp(-v))
        yield Law("retract multiplies by an exponential", group.retract(g, v), self(g, group.exp(v)))
        yield Law("perturb by zero leaves elements alone", group.perturb(g, 0.0 * v), g)

    def has_log(self) -> Tensor:
        """Whether the elements g have a logarithm, ``[*batch]``."""
        return torch.isfinite(self.group.log(self.g)).all(-1)

    def of_adjoints(self) -> Iterator[Law]:
        group, g, h, u, v = self.group, self.g, self.h, self.u, self.v
        ad = group.Ad(g)
        yield Law("Ad of a product is the product of the Ad", group.Ad(self(g, h)), ad @ group.Ad(h))
        moved = (ad @ v.unsqueeze(-1)).squeeze(-1)
        conjugate = self(self(g, group.exp(v)), group.inverse(g))
        yield Law("g exp(v) g^-1 is exp(Ad_g v)", conjugate, group.exp(moved))
        y = group.coadjoint(g, u)
        yield Law("coadjoint is the transpose of Ad", (y * v).sum(-1), (u * moved).sum(-1))
        slope = _difference(lambda s: (group.Ad(group.exp(s * u)) @ v.unsqueeze(-1)).squeeze(-1))
        yield Law("the derivative of Ad is the bracket of the algebra", slope, group.algebra.bracket(u, v), True)
        modular = group.log_modular(g)
        determinant = -torch.linalg.slogdet(ad.double())[1].to(ad.dtype)
        yield Law("the modular function is det Ad(g^-1)", modular, determinant)
        product = group.log_modular(self(g, h))
        yield Law("the modular function of a product is the product", product, modular + group.log_modular(h))
        trace = (v * group.algebra.trace_ad.to(v)).sum(-1)
        yield Law("the modular function of exp(v) is exp(-tr ad v)", group.log_modular(group.exp(v)), -trace)

    def of_jacobians(self) -> Iterator[Law]:
        group, u, v = self.group, self.u, self.v
        back = group.exp(-v)
        left = _difference(lambda s: group.log(self(group.exp(v + s * u), back)))
        applied = (group.left_jacobian(v) @ u.unsqueeze(-1)).squeeze(-1)
        yield Law("the left Jacobian is the derivative of exp", applied, left, True)
        right = _difference(lambda s: group.log(self(back, group.exp(v + s * u))))
        applied = (group.right_jacobian(v) @ u.unsqueeze(-1)).squeeze(-1)
        yield Law("the right Jacobian is the derivative of exp", applied, right, True)
        perturbed = _difference(lambda s: group.perturb(self.g, s * u))
        retracted = _difference(lambda s: group.retract(self.g, s * u))
        yield Law("perturb has the derivative of retract", perturbed, retracted, True)

    def of_rows(self) -> Iterator[Law]:
        group = self.group
        yield Law("rows of a product do not mix", self(self.g, self.h), self._by_rows(self, self.g, self.h))
        yield Law("rows of exp do not mix", group.exp(self.v), self._by_rows(group.exp, self.v))
        yield Law("rows of Ad do not mix", group.Ad(self.g), self._by_rows(group.Ad, self.g))

    def _by_rows(self, f: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        """Values of ``f`` computed one row of the batch at a time."""
        rows = [x.reshape(-1, *x.shape[len(self.batch) :]) for x in arguments]
        values = torch.stack([f(*row) for row in zip(*rows, strict=True)])
        return values.reshape(*self.batch, *values.shape[1:])

    def of_action(self, generator: torch.Generator | None) -> Iterator[Law]:
        """The laws of the standard action, if there is one, at random points."""
        try:
            action = self.group.action()
        except ConfigurationError:
            return
        for dim in action.point_dims:
            x = 0.3 * normal((*self.batch, _NUM_POINTS, dim), self.v, generator)
            once = action(self.g, action(self.h, x))
            product = action(self(self.g, self.h), x)
            product = torch.where(torch.isfinite(once), product, 0.0)  # local actions are not defined everywhere
            known = torch.where(torch.isfinite(once), once, 0.0)
            yield Law("the action of a product is one after the other", product, known)
            yield Law("the identity leaves points alone", action(self.e, x), x)

    def __call__(self, g: Tensor, h: Tensor) -> Tensor:
        return self.group.compose(g, h)


def _difference(f: Callable[[float], Tensor]) -> Tensor:
    """The derivative at zero, by central differences of order four."""
    return (
        8.0 * (f(_DIFFERENCE_STEP) - f(-_DIFFERENCE_STEP)) - (f(2.0 * _DIFFERENCE_STEP) - f(-2.0 * _DIFFERENCE_STEP))
    ) / (12.0 * _DIFFERENCE_STEP)
