"""Discrete symmetries: reflections, parity and exchanges of variables, of equations, functions and operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp
import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.actions import Field
from trivgeo.checks import check_positive, check_tensor
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.symmetry.equations.equation import EvolutionSystem, check_one_branch, residuals_of
from trivgeo.symmetry.equations.multi_index import Index
from trivgeo.symmetry.equations.numeric import vanishes
from trivgeo.symmetry.from_data.function import MAX_BROKEN, floating_values, operator_fields

__all__ = [
    "DiscreteSymmetry",
    "discrete_symmetries",
    "discrete_symmetries_of_function",
    "discrete_symmetries_of_operator",
]

_MAX_CANDIDATES = 1000  # signed permutations of the variables that are tried


@dataclass(frozen=True)
class DiscreteSymmetry:
    """A transformation that exchanges variables and changes signs.

    Attributes:
        images: the image of each variable: a variable, or minus a variable.
        variables: the variables.
        breaking: distance from a symmetry of a function or operator: 0 for a symmetry, about 1 for an unrelated
            transformation; for equations 0.
    """

    images: tuple[sp.Expr, ...]
    variables: tuple[sp.Symbol, ...]
    breaking: float = 0.0

    @property
    def text(self) -> str:
        """The transformation as text, such as ``x -> -x, u -> -u``."""
        pairs = zip(self.variables, self.images, strict=True)
        return ", ".join(f"{variable} -> {image}" for variable, image in pairs if image != variable)

    def __repr__(self) -> str:
        size = f", broken by {self.breaking:.1e}" if self.breaking else ""
        return f"DiscreteSymmetry({self.text}{size})"


@dataclass(frozen=True)
class _SignedPermutation:
    """Variable i goes to ``signs[i]`` times variable ``places[i]``."""

    places: tuple[int, ...]
    signs: tuple[int, ...]

    @property
    def is_identity(self) -> bool:
        return self.places == tuple(range(len(self.places))) and min(self.signs, default=1) > 0

    def images(self, variables: Sequence[sp.Symbol]) -> tuple[sp.Expr, ...]:
        return tuple(sign * variables[i] for sign, i in zip(self.signs, self.places, strict=True))


def discrete_symmetries(equation: Any, *, time: Any = None) -> tuple[DiscreteSymmetry, ...]:
    """Find all transformations that exchange variables, change signs, and map solutions of equations to solutions.

    Variables of space may be exchanged with each other, and unknowns with each other. The time keeps its place: the
    variable `time`, else one named t; without either all variables are of space. Each candidate is tried exactly:
    transformed equations must vanish on solutions.

    ```python
    discrete_symmetries("u_t + u*u_x + u_xxx = 0")  # x -> -x, t -> -t
    ```

    Args:
        equation: see `trivgeo.symmetry.find_symmetries`.
        time: see `trivgeo.symmetry.find_symmetries`.

    Returns:
        The symmetries other than the identity, those with few changes first.

    Raises:
        ConfigurationError: see `trivgeo.symmetry.find_symmetries`; or there are more than 1000 candidates, or the
            equations have several branches, or roots of even powers, whose signs the check cannot see.
    """
    residuals = residuals_of(equation)
    system = EvolutionSystem(residuals, time)
    check_one_branch(system, residuals)
    count, unknowns = len(system.variables), len(system.unknowns)
    names = [v.name for v in system.variables]
    clock = names.index("t" if time is None else str(time)) if time is not None or "t" in names else None
    space = [i for i in range(count) if i != clock]
    variables = system.coordinates
    found = []
    for outer, inner in _candidates(space, unknowns):
        places, signs = list(range(count)), [1] * count
        for position, i, sign in zip(space, outer.places, outer.signs, strict=True):
            places[position], signs[position] = space[i], sign
        for sign in (1, -1) if clock is not None else (1,):
            if clock is not None:
                signs[clock] = sign
            moved = _SignedPermutation(tuple(places), tuple(signs))
            if not (moved.is_identity and inner.is_identity) and _keeps(system, moved, inner):
                images = (*moved.images(system.variables), *inner.images(system.unknowns))
                found.append(DiscreteSymmetry(images, variables))
    return tuple(sorted(found, key=lambda symmetry: len(symmetry.text)))


def discrete_symmetries_of_operator(
    network: Callable[[Tensor], Tensor], initial: Field, *, tolerance: float = MAX_BROKEN
) -> tuple[DiscreteSymmetry, ...]:
    r"""Find reflections, parities and exchanges that a solution operator commutes with, and how far each is broken.

    .. math:: |N[h u] - h N[u]| \\, / \\, \\sqrt{2 (|N[h u] - m|^2 + |h N[u] - m'|^2)}

    with the mean values m and m' of both in each channel. Reflections in space are about the first point of the
    periodic grid. Axes are exchanged where they have the same points.

    Args:
        network: values ``[b, c, *n]`` to values of the same shape.
        initial: periodic fields at one time, see `trivgeo.symmetry.from_data.solution_operator.symmetries_of_operator`.
        tolerance: largest breaking of a symmetry.

    Returns:
        The symmetries other than the identity, the least broken first.

    Raises:
        ShapeError: see `trivgeo.symmetry.from_data.solution_operator.symmetries_of_operator`.
        ConfigurationError: the network's output is no floating-point tensor, or not finite, or constant in space and
            over the batch; or there are more than 1000 candidates.
    """
    check_positive("tolerance", tolerance)
    values, output, steps, variables = operator_fields(network, initial)
    dims = len(steps)
    if not bool(_varies(_finite("network", output)).any()):
        raise ConfigurationError("network: expected values that are not constant, got constant ones")
    space, unknowns = variables[:dims], variables[dims + 1 :]
    sizes = list(zip(values.shape[2:], steps.tolist(), strict=True))
    found = []
    for outer, inner in _candidates(range(dims), len(unknowns)):
        if any(sizes[i] != sizes[j] for i, j in enumerate(outer.places)) or (outer.is_identity and inner.is_identity):
            continue
        before = _finite("network", floating_values("network", network, _moved(values, outer, inner)))
        after = _moved(output, outer, inner)
        breaking = float((before - after).norm() / torch.stack(list(map(_centred, (before, after)))).norm())
        breaking /= math.sqrt(2.0)
        if breaking < tolerance:
            images = (*outer.images(space), variables[dims], *inner.images(unknowns))
            found.append(DiscreteSymmetry(images, variables, breaking))
    return tuple(sorted(found, key=lambda symmetry: symmetry.breaking))


def discrete_symmetries_of_function(
    function: Callable[[Tensor], Tensor], points: Float[Tensor, "p n"], *, tolerance: float = MAX_BROKEN
) -> tuple[DiscreteSymmetry, ...]:
    """Find exchanges and changes of signs of coordinates that leave a function as it is, such as a trained network.

    The size of breaking is the change of values, relative to their standard deviation, times the square root of a
    half: 1 for values that are unrelated.

    Args:
        function: function of points ``[p, n]``.
        points: points at which the function is evaluated, ``[p, n]``.
        tolerance: largest breaking of a symmetry.

    Returns:
        The symmetries other than the identity, the least broken first.

    Raises:
        ShapeError: the points or the values have another shape.
        ConfigurationError: the values are no floating-point tensor, or constant, or not finite; or there are more than
            1000 candidates.
    """
    check_positive("tolerance", tolerance)
    if not callable(function):
        raise ConfigurationError(f"function: expected a function of points [p, n], got {function!r}")
    if check_tensor("points", points).ndim != 2:
        raise ShapeError(f"points: expected points [p, n], got {list(points.shape)}")
    n = points.shape[1]
    if not points.numel():
        raise ShapeError(f"points: expected one point [p, n] at least, got {list(points.shape)}")

    def evaluated(at: Tensor) -> Tensor:
        values = _finite("function", floating_values("function", function, at))
        if values.ndim == 0 or len(values) != len(at):
            raise ShapeError(f"function: expected values [{len(at)}, ...], got {list(values.shape)}")
        return values.reshape(len(at), -1)

    values = evaluated(points)
    if not bool(_varies(values).any()):
        raise ConfigurationError("function: expected values that are not constant, got constant ones")
    spread = _centred(values).norm() * math.sqrt(2.0)
    variables = tuple(sp.symbols(f"x1:{n + 1}"))
    found = []
    for _, inner in _candidates((), n):
        moved = points[:, list(inner.places)] * points.new_tensor(inner.signs)
        breaking = float((evaluated(moved) - values).norm() / spread)
        if breaking < tolerance and not inner.is_identity:
            found.append(DiscreteSymmetry(inner.images(variables), variables, breaking))
    return tuple(sorted(found, key=lambda symmetry: symmetry.breaking))


def _finite(name: str, values: Tensor) -> Tensor:
    if not bool(values.isfinite().all()):
        raise ConfigurationError(f"{name}: expected finite values, got NaN or infinity")
    return values


def _centred(values: Tensor) -> Tensor:
    """Values ``[b, c, *n]`` less their mean in each channel."""
    return values - values.mean([i for i in range(values.ndim) if i != 1], keepdim=True)


def _varies(values: Tensor) -> Tensor:
    """Channels ``[c]`` of values ``[b, c, *n]`` that are not constant up to rounding."""
    dims = [i for i in range(values.ndim) if i != 1]
    rounding = 100.0 * torch.finfo(values.dtype).eps
    return (values.amax(dims) - values.amin(dims)) > rounding * values.abs().amax(dims)


def _candidates(space: Sequence[int], unknowns: int) -> Iterator[tuple[_SignedPermutation, _SignedPermutation]]:
    """All pairs of a signed permutation of the variables of space and one of the unknowns."""
    counts = [2**k * math.factorial(k) for k in (len(space), unknowns)]
    if math.prod(counts) > _MAX_CANDIDATES:
        raise ConfigurationError(
            f"expected at most {_MAX_CANDIDATES} exchanges and changes of signs, got {math.prod(counts)} of "
            f"{len(space)} variables and {unknowns} unknowns"
        )
    outer, inner = (
        [
            _SignedPermutation(places, signs)
            for places in itertools.permutations(range(k))
            for signs in itertools.product((1, -1), repeat=k)
        ]
        for k in (len(space), unknowns)
    )
    return itertools.product(outer, inner)


def _keeps(system: EvolutionSystem, moved: _SignedPermutation, inner: _SignedPermutation) -> bool:
    """Whether transformed equations vanish on solutions."""
    images = dict(zip(system.variables, moved.images(system.variables), strict=True))

    def image(a: int, index: Index) -> sp.Expr:
        # the derivative by a variable that goes to minus another is minus that by the other
        new = [0] * len(index)
        for i, order in enumerate(index):
            new[moved.places[i]] = order
        sign = inner.signs[a] * math.prod(s**k for s, k in zip(moved.signs, index, strict=True))
        return sign * system.jet(inner.places[a], tuple(new))

    for (a, index), right in zip(system.leaders, system.right, strict=True):
        residual = system.jet(a, index) - right
        jets = {symbol: image(b, k) for symbol, b, k in system.jets_in(residual)}
        if not vanishes(system.reduced(residual.xreplace(jets | images))):
            return False
    return True


def _moved(values: Tensor, outer: _SignedPermutation, inner: _SignedPermutation) -> Tensor:
    """Values ``[b, c, *n]`` with axes and channels exchanged, reflected about the first point, and signs changed."""
    moved = values[:, list(inner.places)].permute(0, 1, *(2 + i for i in outer.places))
    for axis, sign in enumerate(outer.signs):
        if sign < 0:
            moved = moved.flip(2 + axis).roll(1, 2 + axis)
    return moved * values.new_tensor(inner.signs).reshape(-1, *[1] * len(outer.signs))
