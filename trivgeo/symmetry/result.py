"""The symmetries of an equation: generators, completeness, and objects made of them, such as the group."""

from __future__ import annotations

import html
import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy as sp

from trivgeo.checks import check_type
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups import GeneratedGroup, from_generators
from trivgeo.symmetry.algebra.brackets import closed_part, keeping, keeping_walls, moving_grids, structure_constants
from trivgeo.symmetry.algebra.exact import SymmetryAlgebra, parameter_value
from trivgeo.symmetry.determining.conditions import check, collect
from trivgeo.symmetry.equations.formulas import moved_solution
from trivgeo.symmetry.equations.multi_index import derivative
from trivgeo.symmetry.equations.numeric import Radicals
from trivgeo.symmetry.equations.unnamed_functions import Particular, Solution
from trivgeo.symmetry.equations.vector_fields import (
    FoundSequence,
    SuperpositionIdeal,
    Symmetry,
    TrivialSymmetries,
    group_parameter,
)
from trivgeo.symmetry.reduction import Reduction, reduced

if TYPE_CHECKING:
    from trivgeo.symmetry.determining.conditions import LinearForm
    from trivgeo.symmetry.determining.dimension import Dimension
    from trivgeo.symmetry.equations.equation import EvolutionSystem


@dataclass(frozen=True)
class Knowledge:
    """Completeness of a set of symmetries, as far as it is known.

    Attributes:
        dimension: dimension of the space of symmetries, by the ranks of the determining equations.
        degree: degree of the polynomials that were searched.
        functions: functions that the polynomials were multiplied with, other than 1.
        sizes: number of generators at the degree that was asked for and at the next; empty if none was asked for.
    """

    dimension: Dimension
    degree: int
    functions: tuple[sp.Expr, ...]
    sizes: Mapping[int, int]


class Symmetries(FoundSequence[Symmetry]):
    """Point symmetries of equations: a sequence of generators, with a statement about completeness.

    Args:
        system: the equations.
        conditions: determining equations of the symmetries.
        knowledge: completeness of the generators.

    Attributes:
        generators: a basis of the symmetries found, up to the infinite ideal and trivial ones.
        infinite_ideal: the superposition ideal if the equations are linear and partial, else ``None``.
        trivial: fields that move no solution, as equations of first order have them, else ``None``.
        complete_up_to: a degree: every symmetry whose coefficients are polynomials of at most this total degree, or
            sums of such polynomials times functions of the ansatz, is a combination of the generators (and of members
            of the infinite ideal and trivial fields), for generic parameters.
        functions: the functions of the ansatz other than 1.
        dimension: the dimension of all symmetries, up to the infinite ideal, known without finding them; see
            `trivgeo.symmetry.determining.dimension.Dimension`.
        dimensions: if a degree was asked for, the number of generators at this degree and the next.
    """

    def __init__(
        self,
        system: EvolutionSystem,
        conditions: Sequence[LinearForm],
        knowledge: Knowledge,
        generators: tuple[Symmetry, ...],
        infinite_ideal: SuperpositionIdeal | None,
        trivial: TrivialSymmetries | None,
    ) -> None:
        super().__init__(generators)
        self._system = system
        self._conditions = conditions
        self.functions = knowledge.functions
        self.generators = generators
        self.infinite_ideal = infinite_ideal
        self.trivial = trivial
        self.complete_up_to = knowledge.degree
        self.dimension = knowledge.dimension
        self.dimensions = dict(knowledge.sizes)
        self._algebra: SymmetryAlgebra | None = None

    @property
    def variables(self) -> tuple[sp.Symbol, ...]:
        """The independent variables, then the unknown functions as symbols."""
        return self._system.coordinates

    @property
    def parameters(self) -> tuple[sp.Symbol, ...]:
        """The parameters of the equations."""
        return self._system.parameters

    @property
    def solutions(self) -> dict[sp.Expr, str]:
        """Functions without a formula in the generators, with the linear equations that define them, in words."""
        atoms = {f for g in self.generators for c in g.components for f in c.atoms(Solution, Particular)}
        return {f: f.equation for f in sorted(atoms, key=str) if type(f).__name__ == _root(f)}

    def with_solutions(self, functions: Mapping[str, Any]) -> tuple[Symmetry, ...]:
        """The generators with formulas in place of the functions in `solutions`.

        Args:
            functions: expressions of the variable by the names in `solutions`, such as
                ``{"y1": besselj(0, x), "y2": pi / 2 * bessely(0, x)}``.

        Raises:
            ConfigurationError: a name is not in `solutions`.
            AlgebraError: a formula does not solve its equation, so that the fields are no symmetries.
        """
        atoms = {f for g in self.generators for c in g.components for f in c.atoms(Particular)}
        classes = {type(f).__name__: f for f in self.solutions}
        if not set(functions) <= set(classes):
            raise ConfigurationError(f"functions: expected some of {sorted(classes)}, got {sorted(functions)}")
        values: dict[sp.Expr, sp.Expr] = {}
        for name, value in functions.items():
            derivative, put = classes[name], self._system.plain(value, name)
            for f in atoms:
                if f.root == name:
                    values[f] = sp.diff(put, *zip(self._system.variables, f.index, strict=True))
            while isinstance(derivative, Solution):
                values[derivative], derivative = put, derivative.diff(self.variables[0])
                put = sp.diff(put, self.variables[0])
        result = []
        for g in self.generators:
            components = tuple(c.xreplace(values) for c in g.components)
            check(self._system, self._conditions, components)
            result.append(Symmetry(g.name, components, g.variables))
        return tuple(result)

    @property
    def is_complete(self) -> bool:
        """True if these are all symmetries, up to the infinite ideal: as many as the dimension."""
        return self.dimension.size == len(self)

    @property
    def grows(self) -> bool:
        """True if the next degree has more symmetries."""
        return len(set(self.dimensions.values())) > 1

    @property
    def is_first_order(self) -> bool:
        """True for one quasilinear equation of first order.

        Such an equation has infinitely many symmetries, also up to trivial ones: coefficients may be any functions of
        the invariants of the characteristics.
        """
        return self.trivial is not None and self.trivial.along is not None

    @property
    def looks_infinite(self) -> bool:
        """True if there are infinitely many symmetries beside superposition, by the growth of their Taylor jets."""
        return self.dimension.is_infinite or self.is_first_order

    @property
    def statement(self) -> str:
        """Completeness of the symmetries, in words."""
        d, n, k = self.complete_up_to, self.dimension.size, len(self)
        kind = "polynomial coefficients"
        if self.functions:
            kind = f"coefficients that are sums of polynomials times 1, {', '.join(map(str, self.functions))},"
        named = f", generic {', '.join(s.name for s in self.parameters)}" if self.parameters else ""
        searched = f"complete for {kind} up to degree {d}{named}"
        if self.dimensions:
            more = f"has {self.dimensions[d + 1]}" if self.grows else "has no more"
            helps = self.grows and n != k and not self.looks_infinite
            searched += f"; degree {d + 1} {more}" + (f": use degree={d + 1}" if helps else "")
        generic = f", for generic {', '.join(s.name for s in self.parameters)}" if self.parameters else ""
        generic += "".join(f", for an arbitrary function {f}" for f in self._system.arbitrary)
        beside = " beside superposition" if self.infinite_ideal is not None else ""
        if self.is_first_order:
            return f"{searched}; infinite-dimensional, as the equation is quasilinear of first order"
        if self.dimension.is_infinite:
            count, arguments = self.dimension.functions, self.dimension.arguments
            named_variables = " and ".join(map(str, self.dimension.variables))
            words = f"{count} function{'s' * (count > 1)} of "
            words += named_variables or f"{arguments} variable{'s' * (arguments > 1)}"
            return f"infinite-dimensional{beside}: depends on {words}; {k} found, {searched}"
        if n is None:
            return f"dimension unknown; {k} found, {searched}"
        if n == k:
            return f"all: the dimension{beside} is {n}" + (f"; {searched}" if self.dimensions else f"{generic}")
        return f"{k} of at most {n}{beside}; {searched}"

    @property
    def determining_equations(self) -> list[sp.Expr]:
        """Expressions in functions xi_x(x, t, u), ..., eta_u(x, t, u) that all have to vanish.

        Raises:
            ConfigurationError: the equations are not polynomial in the derivatives.
        """
        n = len(self._system.variables)
        functions = [
            sp.Function(f"{'xi' if c < n else 'eta'}_{v}")(*self.variables) for c, v in enumerate(self.variables)
        ]
        result = []
        for form in collect(self._system, self._conditions):
            total = sp.S.Zero
            for (c, k), value in form.items():
                total += value * derivative(functions[c], self.variables, k, sp.Derivative)
            result.append(total)
        return result

    @property
    def algebra(self) -> SymmetryAlgebra:
        """Structure constants, modular character and Levi split.

        Raises:
            AlgebraError: the generators do not close under the bracket, which happens for part of an infinite algebra.
        """
        if self._algebra is None:
            fields = [g.components for g in self.generators]
            names = [g.name for g in self.generators]
            radicals = Radicals.of([c for f in fields for c in f], self.parameters, [s.name for s in self.variables])
            rational = [[radicals.put(c) for c in f] for f in fields]
            try:
                c = structure_constants(rational, self.variables, radicals.parameters, names)
            except AlgebraError as error:
                raise AlgebraError(f"{error}; {self.statement}") from error
            constants = [[[-radicals.back(x) for x in row] for row in block] for block in c]
            self._algebra = SymmetryAlgebra(constants, names, self.parameters)
        return self._algebra

    def group(self, **settings: Any) -> GeneratedGroup:
        """The symmetry group, ready for every sampler.

        Args:
            **settings: values of the parameters by name; any other keyword goes to
                `trivgeo.groups.from_generators` (such as ``scale``, ``split``, ``flow``).

        Raises:
            AlgebraError: the generators do not close under the bracket.
            ConfigurationError: a parameter has no value, a name is neither a parameter nor an option, or generators
                hold functions without a formula: put some in by `with_solutions`, and use `from_generators`.
        """
        names = {s.name for s in self.parameters}
        parameters = {key: parameter_value(key, value) for key, value in settings.items() if key in names}
        options = {key: value for key, value in settings.items() if key not in names}
        unknown = sorted(set(options) - _GROUP_OPTIONS)
        if unknown:
            raise ConfigurationError(f"settings: expected some of {sorted(names | _GROUP_OPTIONS)}, got {unknown}")
        if self.solutions:
            raise ConfigurationError(
                "generators: expected functions of known values, got "
                + "; ".join(f"{type(f).__name__}, {words}" for f, words in self.solutions.items())
                + ": `with_solutions` puts formulas in"
            )
        fields = {g.name: g.components for g in self.generators}
        # the equations may hold parameters that no symmetry does
        held = {s.name for components in fields.values() for c in components for s in c.free_symbols}
        parameters = {key: value for key, value in parameters.items() if key in held}
        return from_generators(fields, variables=self.variables, parameters=parameters, **options)

    def new_solution(self, generator: Symmetry, solution: Any, parameter: Any = "s") -> tuple[sp.Expr, ...]:
        """The image of an exact solution under the group of a symmetry, checked; one formula for each unknown.

        Where the group parameter is zero, the image is the given solution.

        Args:
            generator: a symmetry.
            solution: a solution as an expression of the independent variables (or text), or a sequence of them, one
                for each unknown.
            parameter: name of the group parameter.

        Raises:
            ConfigurationError: ``solution`` does not solve the equations, or the equations or the solution hold a
                symbol named as ``parameter``.
            AlgebraError: no closed form was found.
        """
        check_type("generator", generator, Symmetry)
        entries = list(solution) if isinstance(solution, list | tuple | sp.Tuple) else [solution]
        unknowns = self._system.unknowns
        if len(entries) != len(unknowns):
            raise ConfigurationError(f"solution: expected one expression for each of {unknowns}, got {len(entries)}")
        given = {u: self._system.plain(e, "solution") for u, e in zip(unknowns, entries, strict=True)}
        time = group_parameter(parameter, (*self.variables, *self.parameters, *generator.components, *given.values()))
        return moved_solution(self._system, generator.components, given, time)

    def reduced(self, *generators: Symmetry) -> Reduction:
        """The equations in fewer variables for solutions that are invariant under one-parameter groups.

        Args:
            *generators: symmetries that close under the bracket, such as ``found[0]`` or ``c * found[0] + found[2]``;
                each takes one variable away.

        Raises:
            AlgebraError: the generators do not move the variables independently, or do not close.
        """
        if not generators:
            raise ConfigurationError("generators: expected at least one, got none")
        for i, generator in enumerate(generators):
            check_type(f"generators[{i}]", generator, Symmetry)
        # one symbol for each name: factors of generators may hold symbols with other assumptions
        known = {s.name: s for g in generators for c in g.components for s in c.free_symbols}
        known |= {s.name: s for s in (*self.variables, *self.parameters)}
        fields = [
            tuple(c.xreplace({s: known[s.name] for s in c.free_symbols}) for c in g.components) for g in generators
        ]
        symbols = {s for f in fields for c in f for s in c.free_symbols} - set(self.variables)
        if len(fields) > 1:
            structure_constants(fields, self.variables, sorted(symbols, key=str), [g.name for g in generators])
        for components in fields:
            check(self._system, self._conditions, components)
        return reduced(self._system, fields)

    def keeping(self, surface: Mapping[Any, Any]) -> tuple[Symmetry, ...]:
        """The symmetries that keep a boundary or an initial curve: a basis of the subalgebra that is tangent to it.

        Args:
            surface: some variables with their values there, such as ``{"t": 0}``, or ``{"t": 0, "u": "exp(-x^2)"}``.

        Raises:
            ConfigurationError: a name is no variable, or a value depends on a variable that has a value.
            AlgebraError: a coefficient is not rational in the parameters, of low degree.
        """
        check_type("surface", surface, dict)
        names = {z.name: z for z in self.variables}
        given = {names.get(str(z), z): self._system.plain(value, "surface") for z, value in surface.items()}
        if not given or not set(given) <= set(self.variables) or any(e.has(*given) for e in given.values()):
            raise ConfigurationError(f"surface: expected values of some of {self.variables}, got {dict(surface)}")
        fields = [g.components for g in self.generators]
        kept = keeping(fields, self.variables, self.parameters, given) if fields else []
        return tuple(_combined(self.generators, weights, f"K{i + 1}") for i, weights in enumerate(kept))

    def on_grids(self, periodic: Sequence[bool], time: Any = "t") -> tuple[Symmetry, ...]:
        r"""The symmetries that sampled fields can follow: a basis of the subalgebra that `FieldAction` takes.

        These symmetries map each time to one time, affinely in space, and what they add to unknowns does not change
        along periodic axes. Of an infinite algebra the first generators that close are taken, and unknowns change
        affinely: :math:`u_t = u_x` has the symmetry :math:`f(u) \partial_u` for every f, and no set of fields
        determines the f that moved a field. Trivial fields that grids can follow belong to the subalgebra: they move
        times.

        Args:
            periodic: whether fields are periodic along each variable of space, in the order of `variables`.
            time: the variable of time.

        Returns:
            Fields in `variables`; a generator among them keeps its name.

        Raises:
            ConfigurationError: ``periodic`` has not one entry for each variable of space, or there is no such time.
            AlgebraError: a coefficient is not rational in the parameters, of low degree.
        """
        times = [z for z in self._system.variables if z.name == str(time)]
        space = [z for z in self._system.variables if z.name != str(time)]
        if len(times) != 1 or not space:
            raise ConfigurationError(f"time: expected one of at least two {self._system.variables}, got {time}")
        if len(space) != len(periodic):
            raise ConfigurationError(f"periodic: expected one for each of {space}, got {list(periodic)}")
        free = set(self._system.variables)
        members = () if self.trivial is None else self.trivial.members
        still = [m for m in members if not any(c.free_symbols & free for c in m.components)]
        candidates = [*self.generators, *still]
        if not candidates:
            return ()
        fields, axes = [g.components for g in candidates], dict(zip(space, map(bool, periodic), strict=True))
        kept = moving_grids(fields, self.variables, self.parameters, times[0], axes, affine=self.looks_infinite)
        named = {g.components: g for g in candidates}
        combined = [_combined(candidates, weights, f"K{i + 1}") for i, weights in enumerate(kept)]
        result = [named.get(k.components, k) for k in combined]
        closed = closed_part([g.components for g in result], self.variables, self.parameters) if result else []
        return tuple(result[i] for i in closed)

    def between_walls(self, fields: Sequence[Symmetry], walls: Mapping[sp.Symbol, str | None]) -> tuple[Symmetry, ...]:
        r"""The combinations of symmetries that keep boundary conditions at walls, which may move with the box.

        A field :math:`\xi^i \partial_{x_i} + \tau \partial_t + \eta^a \partial_{u_a}` keeps a wall across an axis at
        rest if :math:`\xi` along the axis depends on that coordinate alone. It keeps :math:`u^a = 0` there if
        :math:`\eta` vanishes where u does, and :math:`\partial_x u^a = 0` if :math:`\eta` does not depend on the
        coordinate.

        Args:
            fields: symmetries that close under the bracket, such as those `on_grids`.
            walls: the variables of space that have walls, with "neumann" where the slope vanishes there, "dirichlet"
                where the unknowns do, and ``None`` for either.

        Returns:
            Fields in `variables`; one of those given keeps its name.

        Raises:
            AlgebraError: a coefficient is not rational in the parameters, of low degree.
        """
        if not fields or not walls:
            return tuple(fields)
        components = [g.components for g in fields]
        kept = keeping_walls(components, self.variables, self.parameters, self._system.unknowns, walls)
        named = {g.components: g for g in fields}
        combined = [_combined(fields, weights, f"W{i + 1}") for i, weights in enumerate(kept)]
        return tuple(named.get(k.components, k) for k in combined)

    def reshapes_values(self, generator: Symmetry) -> bool:
        """Return True if ``generator`` moves unknowns alone, not affinely, and belongs to an infinite algebra."""
        unknowns = self._system.unknowns
        rates = dict(zip(generator.variables, generator.components, strict=True))
        bends = any(sp.diff(rates[u], v, w) != 0 for u in unknowns for v in unknowns for w in unknowns)
        return self.looks_infinite and bends and all(rates[z] == 0 for z in self._system.variables)

    def _repr_latex_(self) -> str:
        lines = " \\\\ ".join(g.latex().replace(" = ", " &= ", 1) for g in self.generators)
        return f"$\\begin{{aligned}} {lines} \\end{{aligned}}$" if lines else "$0$"

    def _repr_html_(self) -> str:
        """Generators, the statement, and, where they close, the commutators and the Levi decomposition by name."""
        items = "".join(f"<li>{html.escape(str(g))}</li>" for g in self.generators)
        lines = repr(self).splitlines()[len(self.generators) :]
        text = f"<ul>{items}</ul>" + "".join(f"<p>{html.escape(line)}</p>" for line in lines)
        try:
            return text + (self.algebra._repr_html_() if len(self) > 1 else "")
        except AlgebraError:
            return text  # part of an infinite algebra has no table

    def __repr__(self) -> str:
        lines = [str(g) for g in self.generators]
        if self.infinite_ideal is not None:
            lines.append(f"infinite ideal: {self.infinite_ideal}")
        if self.trivial is not None:
            lines.append(f"trivial: {self.trivial}")
        for equation, names in itertools.groupby(self.solutions, key=lambda f: self.solutions[f]):
            lines.append(f"{', '.join(type(f).__name__ for f in names)}: {equation}")
        return "\n".join([*lines, self.statement])


# keywords of `from_generators` that `Symmetries.group` hands on
_GROUP_OPTIONS = set(inspect.signature(from_generators).parameters) - {"fields", "variables", "parameters"}


def _root(function: sp.Expr) -> str:
    """The name of the function without a formula that ``function`` is, or is a derivative of."""
    return function.root if isinstance(function, Particular) else type(function).__name__.rstrip("'")


def _combined(fields: Sequence[Symmetry], weights: Sequence[sp.Expr], name: str) -> Symmetry:
    """A combination of fields of the same variables."""
    columns = zip(*(g.components for g in fields), strict=True)
    sums = [sum(w * c for w, c in zip(weights, column, strict=True)) for column in columns]
    return Symmetry(name, tuple(map(sp.expand, sums)), fields[0].variables)
