"""Periodic evolution equations in Fourier space: modes, and a multiplier and a nonlinear rest, derived from text.

`Vorticity` is written by hand: the velocity of a flow is an integral of the unknown.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from trivgeo._text import Described
from trivgeo.checks import check_positive, checked
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.expressions import exact, require_sympy
from trivgeo.groups.from_generators.fields import compile_expressions
from trivgeo.pde.evolution import EvolutionEquation, check_parameters

_NUM_PROBED_POINTS = 128  # points of a field at which coefficients are frozen
_SYMBOL_ROUNDING = 1e-12  # relative rounding of real parts of a Fourier multiplier


@checked
class FourierModes(NamedTuple):
    """The Fourier modes of a periodic grid.

    Attributes:
        wave: the wave vectors in d dimensions, ``[*batch, d, *m]``, where *m are the modes of `torch.fft.rfftn`.
        kept: one for modes that products of two functions do not alias, with wave numbers below a third of the number
            of points along each axis, zero for other modes, ``[*m]``.
        counts: the numbers of points along the axes.
    """

    wave: Tensor
    kept: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, steps: Float[Tensor, "*batch d d"], counts: Sequence[int]) -> FourierModes:
        """Return the modes of a periodic grid, whose lattice may be oblique.

        Args:
            steps: steps of a `trivgeo.actions.Grid`, ``[*batch, d, d]``.
            counts: numbers of points along the d axes.
        """
        counts = tuple(counts)
        numbers = [torch.fft.fftfreq(n, 1 / n) for n in counts[:-1]]
        numbers.append(torch.arange(counts[-1] // 2 + 1))
        numbers = [number.to(steps) for number in numbers]
        number = torch.stack(torch.meshgrid(*numbers, indexing="ij"))
        kept = torch.stack([3 * m.abs() < n for m, n in zip(number, counts, strict=True)]).all(0)
        periods = torch.tensor(counts).to(steps).unsqueeze(-1) * steps
        wave = 2.0 * math.pi * torch.tensordot(torch.linalg.inv_ex(periods).inverse, number, 1)
        return cls(wave, kept.to(steps.dtype), counts)

    def to_modes(self, u: Float[Tensor, "..."]) -> Complex[Tensor, "..."]:
        """Return the Fourier coefficients of values u, ``[..., *counts]``, as `torch.fft.rfftn`."""
        return torch.fft.rfftn(u.contiguous(), dim=self._axes)  # see `trivgeo._torch`

    def to_values(self, modes: Complex[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the values ``[..., *counts]`` of Fourier coefficients ``modes``."""
        return torch.fft.irfftn(modes, s=self.counts, dim=self._axes)

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(-len(self.counts), 0))

    def along(self, axis: int) -> Float[Tensor, "..."]:
        """Return component ``axis`` of the wave vectors; times i it is the derivative along this axis."""
        dims = len(self.counts)
        return self.wave.narrow(-dims - 1, axis, 1)

    @property
    def squared(self) -> Float[Tensor, "..."]:
        """The squared lengths of the wave vectors: the multiplier of minus the Laplace operator."""
        return self.wave.square().sum(-len(self.counts) - 1, keepdim=True)


@checked
class SpectralEquation(Described, ABC):
    r"""An equation :math:`u_t = L u + N(u)` for periodic functions, L a Fourier multiplier.

    ```python
    class Dissipative(SpectralEquation):  # u_t = -u u_x + 0.1 u_xx - u
        def linear(self, modes):
            return -0.1 * modes.squared - 1.0

        def nonlinear(self, modes, u):
            return -0.5j * modes.along(0) * modes.to_modes(modes.to_values(u) ** 2)
    ```
    """

    @abstractmethod
    def linear(self, modes: FourierModes) -> Tensor:
        """Return the multiplier L at the wave vectors of ``modes``, real or complex, ``[*batch, 1 or c, *m]``."""

    def nonlinear(self, modes: FourierModes, u: Complex[Tensor, "..."]) -> Tensor | None:
        """Return the Fourier coefficients of N(u), or ``None`` for a linear equation, which is solved exactly.

        Args:
            modes: wave vectors of the grid.
            u: coefficients of the unknowns, ``[*batch, c, *m]``.
        """
        return None

    def growth_rates(self, probe: FourierModes, modes: FourierModes, u: Complex[Tensor, "..."]) -> Tensor:
        r"""Return rates :math:`\mathrm{Re}\,\lambda` at which small waves grow on a field, for `solve` to judge.

        Here those of the multiplier L. A derived equation returns those of all its terms with their coefficients
        frozen at some points, the eigenvalues of a matrix for systems.

        Args:
            probe: waves whose rates are wanted, as a rule far shorter than those of the grid.
            modes: modes of the grid.
            u: coefficients of the field.

        Returns:
            Rates in any shape, zero where they are rounding.
        """
        return _rates(self.linear(probe).unsqueeze(-1))

    @staticmethod
    def from_equation(equation: Any, **parameters: float) -> SpectralEquation:
        r"""The equation in Fourier space that is derived from a text, a SymPy equation or an `EvolutionEquation`.

        L holds all linear terms with constant coefficients in the equation's own unknown. Products are taken between
        values on the grid, and terms such as :math:`u u_x` are derivatives of fluxes, here :math:`(u^2 / 2)_x`.
        Quadratic terms are free of aliasing; terms of higher degree are aliased in part.

        Args:
            equation: an `EvolutionEquation`, or its argument; coefficients depend on neither x nor t. Components of
                fields are the unknowns in alphabetical order, coordinates of grids the variables without t.
            **parameters: a number for each parameter.

        Raises:
            ConfigurationError: as for `EvolutionEquation`, or a coefficient depends on x or t, or a parameter has no
                value, or there is no such parameter.

        Example:
            ``SpectralEquation.from_equation("u_t + u*u_x = nu*u_xx", nu=0.1)`` is Burgers' equation.
        """
        derived = equation if isinstance(equation, EvolutionEquation) else EvolutionEquation(equation)
        return _DerivedEquation(derived, parameters)


class LinearTerm(NamedTuple):
    """Linear term with a constant coefficient.

    Attributes:
        unknown: number of the unknown that is differentiated.
        orders: order of the derivative in each space variable.
        coefficient: the factor of the derivative.
    """

    unknown: int
    orders: tuple[int, ...]
    coefficient: float


class Flux(NamedTuple):
    """A multiple of a function of the unknowns whose derivative in one space variable is a term of an equation.

    Attributes:
        axis: number of the space variable.
        coefficient: the factor of the function.
        function: a SymPy polynomial in the unknowns.
    """

    axis: int
    coefficient: float
    function: Any


class Splitting(NamedTuple):
    r"""Terms of one right side, :math:`\partial_t u^a = L u^a + \sum_b C_b u^b + \sum_j \partial_{x_j} f_j + r`.

    Attributes:
        diagonal: L, terms in the equation's own unknown.
        coupling: terms in other unknowns.
        fluxes: the :math:`f_j`.
        rest: r, a SymPy expression of unknowns and their derivatives; empty if it vanishes.
    """

    diagonal: list[LinearTerm]
    coupling: list[LinearTerm]
    fluxes: list[Flux]
    rest: list[Any]


def split(equation: EvolutionEquation, parameters: Mapping[str, float]) -> list[Splitting]:
    """Split the right sides of an equation into linear terms, fluxes and a rest, at values of its parameters.

    Raises:
        ConfigurationError: the coefficients depend on x or t, or a value is missing or no real number.
    """
    return [
        _split_right_side(equation.system, own, right) for own, right in enumerate(_right_sides(equation, parameters))
    ]


def _right_sides(equation: EvolutionEquation, parameters: Mapping[str, float]) -> list[Any]:
    """The right sides at values of the parameters."""
    check_parameters(equation.parameters, parameters, equation.text)
    system = equation.system
    values = {s: exact(parameters[s.name], s.name) for s in system.parameters}
    for symbol, value in values.items():
        if not value.is_real:
            raise ConfigurationError(f"{symbol.name}: expected a real number, got {parameters[symbol.name]!r}")
    rights = [require_sympy().expand(right.subs(values)) for right in system.right]
    explicit = sorted({v.name for right in rights for v in right.free_symbols & set(system.variables)})
    if explicit:
        raise ConfigurationError(f"equation: expected coefficients free of {', '.join(explicit)}, got {equation.text}")
    return rights


def _split_right_side(system: Any, own: int, right: Any) -> Splitting:
    sp = require_sympy()
    jets = {symbol: _without_time(system, index, a) for symbol, a, index in system.jets_in(right)}
    terms: tuple[list[LinearTerm], list[LinearTerm]] = ([], [])
    rest: list[Any] = []
    for term in sp.Add.make_args(right):
        factor, symbol = term.as_independent(*jets, as_Add=False)
        if symbol in jets:
            unknown, orders = jets[symbol]
            terms[unknown != own].append(LinearTerm(unknown, orders, float(factor)))
        else:
            rest.append(term)
    fluxes = []
    for direction in range(len(system.variables) - 1):
        unit = tuple(int(i == direction) for i in range(len(system.variables) - 1))
        slopes = {symbol: system.unknowns[a] for symbol, (a, orders) in jets.items() if orders == unit}
        flux, rest = _conservative(rest, slopes, system.unknowns)
        if flux != 0:
            number, function = flux.primitive() if flux.is_Add else flux.as_coeff_Mul()
            fluxes.append(Flux(direction, float(number), function))
    return Splitting(*terms, fluxes, [sp.Add(*rest)] if any(rest) else [])


def _without_time(system: Any, index: Sequence[int], unknown: int) -> tuple[int, tuple[int, ...]]:
    """An unknown, and the order of its derivative in each space variable."""
    return unknown, tuple(k for i, k in enumerate(index) if i != system.time)


def _conservative(terms: list[Any], slopes: Mapping[Any, Any], unknowns: Sequence[Any]) -> tuple[Any, list[Any]]:
    r"""A flux f(u) whose derivative in x is the sum of terms a_b(u) u^b_x, and the other terms; zero if there is none.

    Polynomials with :math:`\partial_b a_c = \partial_c a_b` have :math:`f = \int_0^1 \sum_b a_b(z u) u^b dz`.
    """
    sp = require_sympy()
    z = sp.Dummy("z")
    speeds = dict.fromkeys(unknowns, sp.S.Zero)
    others = []
    for term in terms:
        slope = next((s for s in slopes if term.has(s)), None)
        speed = None if slope is None else sp.cancel(term / slope)
        if speed is None or not speed.free_symbols <= set(unknowns) or not speed.is_polynomial(*unknowns):
            others.append(term)
        else:
            speeds[slopes[slope]] += speed
    scaled = {u: z * u for u in unknowns}
    along = sp.Add(*(speed.subs(scaled, simultaneous=True) * u for u, speed in speeds.items()))
    flux = sp.expand(sp.integrate(sp.expand(along), (z, 0, 1)))
    if any(sp.expand(sp.diff(flux, u) - speed) != 0 for u, speed in speeds.items()):
        return sp.S.Zero, terms
    return flux, others


class _DerivedEquation(SpectralEquation):
    """A spectral equation that is derived from an `EvolutionEquation`."""

    def __init__(self, equation: EvolutionEquation, parameters: dict[str, float]) -> None:
        self.equation, self.parameters = equation, parameters
        self._parts: list[Splitting] = split(equation, parameters)
        system = equation.system
        self._dims = len(system.variables) - 1
        self._channel = -self._dims - 1  # the dimension of the unknowns
        products = [e for part in self._parts for e in (*(flux.function for flux in part.fluxes), *part.rest)]
        jets = {symbol: _without_time(system, index, a) for e in products for symbol, a, index in system.jets_in(e)}
        jets = jets or {system.unknowns[0]: (0, (0,) * self._dims)}
        self._jets = list(jets.values())
        self._products = compile_expressions(products, list(jets)) if products else None
        self._linearised = _Linearised.of(equation, parameters)

    def __repr__(self) -> str:
        values = "".join(f", {name}={value}" for name, value in self.parameters.items())
        return f"SpectralEquation.from_equation({self.equation.text!r}{values})"

    def linear(self, modes: FourierModes) -> Tensor:
        """Return the linear terms in the equations' own unknowns, ``[*batch, c, *m]``."""
        self._check_dims(modes)
        parts = [_multiplier(part.diagonal, modes) for part in self._parts]
        dtype = torch.complex64 if modes.wave.dtype == torch.float32 else torch.complex128
        return _joined([x.to(dtype) for x in parts] if any(x.is_complex() for x in parts) else parts, self._channel)

    def nonlinear(self, modes: FourierModes, u: Complex[Tensor, "..."]) -> Tensor | None:
        """Return all other terms, ``[*batch, c, *m]``."""
        self._check_dims(modes)
        num_unknowns = len(self._parts)
        if u.shape[self._channel] != num_unknowns:
            raise ShapeError(
                f"initial: expected a field of {num_unknowns} components, {', '.join(self.equation.unknowns)}, got "
                f"{u.shape[self._channel]}"
            )
        components = _separated(u, num_unknowns, self._channel)
        spectra = self._spectra(modes, components)
        if spectra is None and not any(part.coupling for part in self._parts):
            return None
        slopes = []
        for part in self._parts:
            terms = [_multiplier([term], modes) * components[term.unknown] for term in part.coupling]
            if spectra is not None:
                terms += [1j * f.coefficient * modes.along(f.axis) * next(spectra) for f in part.fluxes]
                terms += [next(spectra) for _ in part.rest]
            slopes.append(sum(terms[1:], start=terms[0]) if terms else torch.zeros_like(components[0]))
        return _joined(slopes, self._channel)

    def growth_rates(self, probe: FourierModes, modes: FourierModes, u: Complex[Tensor, "..."]) -> Tensor:
        self._check_dims(modes)
        components = _separated(u, len(self._parts), self._channel)
        jets = [_derivative(modes, k) * components[a] for a, k in self._linearised.jets]
        return self._linearised.growth_rates(probe, modes.to_values(_joined(jets, self._channel)))

    def _spectra(self, modes: FourierModes, components: Sequence[Tensor]) -> Iterator[Tensor] | None:
        """The Fourier coefficients of all products; the fluxes of an equation come before its rest."""
        if self._products is None:
            return None
        jets = [components[a] if not any(k) else _derivative(modes, k) * components[a] for a, k in self._jets]
        values = _separated(modes.to_values(_joined(jets, self._channel)), len(jets), self._channel)
        products = self._products.values(*values)
        return iter(_separated(modes.to_modes(_joined(products, self._channel)), len(products), self._channel))

    def _check_dims(self, modes: FourierModes) -> None:
        if len(modes.counts) != self._dims:
            raise ShapeError(
                f"initial: expected a field over {self._dims} coordinates for {self.equation}, got {len(modes.counts)}"
            )


class _Linearised:
    """The linear equations of small waves on a field.

    Args:
        entries: numbers of an equation and an unknown and orders of a derivative, for each coefficient.
        coefficients: SymPy expressions.
        system: the equations.
        num_unknowns: their number.
    """

    def __init__(
        self, entries: Sequence[tuple[int, int, tuple[int, ...]]], coefficients: Sequence[Any], system: Any
    ) -> None:
        self._entries, self._num_unknowns = entries, len(system.unknowns)
        jets = {s: _without_time(system, index, a) for e in coefficients for s, a, index in system.jets_in(e)}
        jets = jets or {system.unknowns[0]: (0, (0,) * (len(system.variables) - 1))}
        self.jets = list(jets.values())
        self._coefficients = compile_expressions(coefficients, list(jets)) if coefficients else None

    @classmethod
    def of(cls, equation: EvolutionEquation, parameters: Mapping[str, float]) -> _Linearised:
        """The derivatives of the right sides of an equation by the unknowns and their derivatives."""
        system, sp = equation.system, require_sympy()
        entries, coefficients = [], []
        for row, right in enumerate(_right_sides(equation, parameters)):
            for symbol, unknown, index in system.jets_in(right):
                entries.append((row, *_without_time(system, index, unknown)))
                coefficients.append(sp.diff(right, symbol))
        return cls(entries, coefficients, system)

    def growth_rates(self, probe: FourierModes, jets: Float[Tensor, "..."]) -> Tensor:
        """Rates at some points of a field, whose ``jets`` are ``[*batch, j, *counts]``."""
        dims, num = len(probe.counts), self._num_unknowns
        if self._coefficients is None:
            return jets.new_zeros(1)
        some = jets.movedim(-dims - 1, 0).flatten(1).double()
        some = some[:, torch.linspace(0, some.shape[1] - 1, min(_NUM_PROBED_POINTS, some.shape[1])).long()]
        values = self._coefficients.values(*some.unsqueeze(-1))
        waves = probe.wave.movedim(-dims - 1, 0).flatten(1)
        symbol = torch.zeros(some.shape[1], waves.shape[1], num, num).to(waves.to(torch.complex128))
        for (row, unknown, orders), value in zip(self._entries, values, strict=True):
            phase = (1, 1j, -1, -1j)[sum(orders) % 4]
            symbol[..., row, unknown] += (
                phase
                * value
                * math.prod((w**k for w, k in zip(waves, orders, strict=True) if k), start=torch.ones_like(waves[0]))
            )
        return _rates(symbol)


def _rates(symbol: Tensor) -> Tensor:
    """Real parts of the eigenvalues of matrices ``[*batch, 1 or c, c]``, of which one row is a multiplier.

    Zero where they are rounding.
    """
    if symbol.shape[-1] == 1:
        rates, size, digits = symbol.real.squeeze(-1), symbol.abs().squeeze(-1), _SYMBOL_ROUNDING
    else:
        values = torch.linalg.eigvals(torch.where(torch.isfinite(symbol), symbol, 0.0))
        # eigenvalues of a defective matrix have half the digits
        rates, size, digits = values.real, values.abs().amax(-1, keepdim=True), _SYMBOL_ROUNDING**0.5
    return torch.where(rates.abs() > digits * size, rates, 0.0)


def _multiplier(terms: Sequence[LinearTerm], modes: FourierModes) -> Tensor:
    """The Fourier multiplier of linear terms, ``[*batch, 1, *m]``."""
    total = torch.zeros_like(modes.along(0))
    for term in terms:
        total = total + term.coefficient * _derivative(modes, term.orders)
    return total


def _derivative(modes: FourierModes, orders: Sequence[int]) -> Tensor:
    """The Fourier multiplier of a derivative, real if its order is even, ``[*batch, 1, *m]``."""
    powers = [modes.along(axis) ** order for axis, order in enumerate(orders) if order]
    phase = (1, 1j, -1, -1j)[sum(orders) % 4]
    return math.prod(powers[1:], start=powers[0]) * phase if powers else torch.ones_like(modes.along(0))


def _separated(x: Tensor, count: int, dim: int) -> Sequence[Tensor]:
    """The entries along a dimension, which keeps size one; a single entry needs no call of torch."""
    return x.split(1, dim) if count > 1 else (x,)


def _joined(tensors: Sequence[Tensor], dim: int) -> Tensor:
    return torch.cat(list(tensors), dim) if len(tensors) > 1 else tensors[0]


@checked
class Vorticity(SpectralEquation):
    """The vorticity of a plane viscous flow without mean, w_t + v . grad w = nu Laplace w, v = rot (-Laplace)^-1 w.

    Args:
        nu: kinematic viscosity.

    Raises:
        ConfigurationError: the viscosity is not positive.
    """

    def __init__(self, nu: float) -> None:
        self.nu = check_positive("nu", nu)

    def linear(self, modes: FourierModes) -> Tensor:
        return -self.nu * modes.squared

    def nonlinear(self, modes: FourierModes, u: Complex[Tensor, "*batch c k l"]) -> Tensor:
        """Return the coefficients of -div(v w), where v = (psi_y, -psi_x) and -Laplace psi = w."""
        kx, ky = modes.along(0), modes.along(1)
        squared = modes.squared
        stream = u / squared.where(squared > 0, 1.0)
        w = modes.to_values(u)
        flux_x = modes.to_modes(modes.to_values(1j * ky * stream) * w)
        flux_y = modes.to_modes(modes.to_values(-1j * kx * stream) * w)
        return -1j * (kx * flux_x + ky * flux_y)
