"""Symmetries and conservation laws of equations as losses and monitors of solutions in torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from trivgeo.actions import Field
from trivgeo.checks import check_type
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.expressions import require_sympy
from trivgeo.pde.evolution import EvolutionEquation, JetFunction, check_parameters
from trivgeo.pde.spectral import FourierModes

if TYPE_CHECKING:
    from trivgeo.symmetry.conservation import ConservationLaws
    from trivgeo.symmetry.equations.vector_fields import Symmetry

__all__ = ["ConservedQuantities", "characteristic", "prolongation"]


def characteristic(equation: EvolutionEquation, symmetry: Symmetry) -> JetFunction:
    r"""Return the rate at which a symmetry moves a function, :math:`Q^a = \eta^a - \xi^i \partial_i u^a`.

    The rate is a function of the values of derivatives. It vanishes on functions that are invariant under the
    one-parameter group: its square is a loss for these, as for travelling waves with :math:`\partial_t + c \partial_x`.

    ```python
    kdv = EvolutionEquation("u_t + u*u_x + u_xxx = 0")
    scaling = find_symmetries(kdv.residuals)[3]
    rate = characteristic(kdv, scaling)
    rate({"x": x, "t": t, "u": u, "u_x": u_x, "u_t": u_t})  # [*batch]
    ```

    Args:
        equation: the equations of the unknowns.
        symmetry: a vector field in its variables and unknowns, such as `trivgeo.symmetry.find_symmetries` finds.

    Raises:
        ConfigurationError: the field has other variables than the equation.
    """
    return JetFunction(_characteristic(equation, symmetry), equation.system)


def prolongation(equation: EvolutionEquation, symmetry: Symmetry) -> JetFunction:
    r"""The rate at which a symmetry in evolutionary form changes the residuals, at values of the derivatives.

    .. math:: \mathrm{pr} X_Q (\Delta^b) = \sum_{a, J} D_J Q^a \, \partial \Delta^b / \partial u^a_J

    (Olver 1993, eq. 5.5). For every symmetry this rate vanishes on solutions. Its square is a stronger loss than the
    residual at a point, since it holds derivatives of the residual (Akhound-Sadegh, Perreault-Levasseur, Brandstetter,
    Welling and Ravanbakhsh 2023, "Lie point symmetry and physics-informed networks").

    Args:
        equation: the equations.
        symmetry: a vector field on (x, t, u), see `characteristic`.

    Returns:
        A function of the values of derivatives, some of higher order than in the equation; `JetFunction.jet` has their
        names.

    Raises:
        ConfigurationError: the field has other variables than the equation.
    """
    sp = require_sympy()
    system, rates = equation.system, _characteristic(equation, symmetry)
    residuals = [system.in_jets(e) for e in equation.residuals]
    changes = []
    for residual in residuals:
        change = sp.S.Zero
        for symbol, a, index in system.jets_in(residual):
            moved = rates[a]
            for direction, times in enumerate(index):
                for _ in range(times):
                    moved = system.total(moved, direction, system.jet)
            change += sp.diff(residual, symbol) * moved
        changes.append(sp.expand(change))
    return JetFunction(changes, system)


class ConservedQuantities:
    r"""Integrals of densities over the box of periodic fields, constant on solutions: monitors and losses.

    ```python
    laws = conservation_laws("u_t + u*u_x + u_xxx = 0", order=2)
    kept = ConservedQuantities([law for law in laws if law.is_periodic])
    kept(solution)  # [b, k, s]: mass, momentum, energy at each time
    loss = kept.drift(prediction).square().mean()
    ```

    Args:
        laws: conservation laws that `trivgeo.symmetry.conservation_laws` found.
        parameters: a number for each parameter in the densities.

    Raises:
        ConfigurationError: there is no law, or a density holds places, which jump at the ends of a period, or
            derivatives by time, or a parameter has no number.
    """

    def __init__(self, laws: ConservationLaws | Sequence[Any], parameters: Mapping[str, float] | None = None) -> None:
        self._laws = tuple(laws)
        if not self._laws:
            raise ConfigurationError("laws: expected at least one conservation law, got none")
        first = self._laws[0]
        self._system = first.system
        self._parameters = dict(parameters or {})
        for law in self._laws:
            if not law.is_periodic:
                raise ConfigurationError(
                    "laws: expected densities of periodic fields at one time, without places and derivatives by time "
                    f"(`is_periodic`), got {law.density}"
                )
        self._densities = JetFunction([law.density for law in self._laws], self._system)
        check_parameters(self._densities.parameters, self._parameters)

    def __repr__(self) -> str:
        return f"ConservedQuantities({[str(law.density) for law in self._laws]})"

    def __call__(self, field: Field) -> Float[Tensor, "*batch k s"]:
        """The integral of each density at each time.

        Args:
            field: see `densities`.

        Raises:
            ShapeError: see `densities`.
        """
        mean = self.densities(field).flatten(-len(field.counts)).mean(-1)
        edges = torch.tensor(field.counts).to(mean).unsqueeze(-1) * field.grid.steps
        return mean * torch.linalg.det(edges).abs().unsqueeze(-2)

    def densities(self, field: Field) -> Float[Tensor, "*batch k s ..."]:
        """The densities at each time and point, ``[*batch, k, s, *n]``.

        Args:
            field: periodic field with the unknowns in alphabetical order.

        Raises:
            ShapeError: the field has another number of unknowns or axes than the laws.
        """
        check_type("field", field, Field)
        time = self._laws[0].time
        dims, unknowns = len(self._system.variables) - 1, len(self._system.unknowns)
        if len(field.counts) != dims or field.values.shape[-dims - 2] != unknowns:
            raise ShapeError(
                f"field: expected {unknowns} unknowns over {dims} coordinates, got values {list(field.values.shape)}"
            )
        values = field.values.movedim(-1 - dims, -2 - dims)  # [*batch, s, c, *n]
        modes = FourierModes.of(field.grid.steps, field.counts)
        spectrum = modes.to_modes(values)
        jet: dict[str, Tensor] = {}
        for symbol, a, index in self._system.jets_in(sum(law.density for law in self._laws)):
            orders = [k for i, k in enumerate(index) if i != time]
            component = spectrum.select(-dims - 1, a)
            for axis, order in enumerate(orders):
                component = component * (1j * modes.wave.select(-dims - 1, axis)) ** order
            jet[symbol.name] = modes.to_values(component) if any(orders) else values.select(-dims - 1, a)
        reference = values.select(-dims - 1, 0)
        jet.setdefault(self._system.unknowns[0].name, reference)
        if self._system.variables[time].name in self._densities.jet:
            jet[self._system.variables[time].name] = field.grid.times[..., *[None] * dims].expand_as(reference)
        densities = self._densities(jet, **self._parameters)
        if len(self._laws) == 1:
            densities = densities.unsqueeze(-1)
        return densities.movedim(-1, -2 - dims)

    def drift(self, field: Field) -> Float[Tensor, "*batch k s"]:
        """Return the change of the integrals since the first time of ``field``, ``[*batch, k, s]``."""
        quantities = self(field)
        return quantities - quantities[..., :1]


def _characteristic(equation: EvolutionEquation, symmetry: Symmetry) -> list[Any]:
    """The characteristics, one for each unknown, in symbols of derivatives."""
    system = check_type("equation", equation, EvolutionEquation).system
    variables = (*system.variables, *system.unknowns)
    if [z.name for z in symmetry.variables] != [z.name for z in variables]:
        raise ConfigurationError(f"symmetry: expected a field in {variables}, got one in {symmetry.variables}")
    names = dict(zip(symmetry.variables, variables, strict=True))
    own = {s.name: s for s in system.parameters}
    components = [c.xreplace(names) for c in symmetry.components]
    components = [c.xreplace({s: own.get(s.name, s) for s in c.free_symbols}) for c in components]
    n = len(system.variables)
    units = [tuple(int(i == k) for i in range(n)) for k in range(n)]
    return [
        components[n + a] - sum(components[i] * system.jet(a, unit) for i, unit in enumerate(units))
        for a in range(len(system.unknowns))
    ]
