"""A Lie group from its infinitesimal generators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trivgeo._numerics import Constant, on_cpu
from trivgeo._signatures import checked
from trivgeo.checks import check_type
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.expressions import parse_expression
from trivgeo.groups.algebra import LieAlgebra, balanced
from trivgeo.groups.base import Scale
from trivgeo.groups.exact import RationalAlgebra
from trivgeo.groups.generated.action import Flow, FlowAction, Motion, OdeSettings
from trivgeo.groups.generated.chart import straighten
from trivgeo.groups.generated.deck_transformations import (
    FundamentalDomain,
    find_fundamental_domain,
    find_isotropy_domain,
    is_single_valued,
)
from trivgeo.groups.generated.field_basis import evaluation_basis, simple_basis
from trivgeo.groups.generated.group import GeneratedGroup
from trivgeo.groups.generated.isotropy import Isotropy
from trivgeo.groups.generated.levi_assembly import AdaptedAlgebra, assemble
from trivgeo.groups.generated.monodromy import find_monodromy
from trivgeo.groups.generated.reductive_group import check_homomorphism
from trivgeo.groups.generated.symbolic import (
    check_terms,
    compile_expressions,
    require_sympy,
    substitute,
    unknown_functions,
)
from trivgeo.groups.generated.transported import find_transported
from trivgeo.groups.generated.triangular_flow import TriangularFlow, find_triangular_flow
from trivgeo.groups.generated.validation import check_derivatives, check_flow
from trivgeo.groups.generated.vector_fields import (
    Formulas,
    VectorFields,
    fit_brackets,
    sample_points,
    values_and_jacobians,
)
from trivgeo.groups.structure import LeviDecomposition, check_split, describe, find_split, rational

__all__ = ["from_generators"]

_LOOPED = 4  # points on which loops are tried
_CHECKED = 8  # points at which functions are held against differences
_SMALL = 1e-11  # what a constant is beside the largest where ranks are no longer decided in the given lengths

Vectors = Sequence[int | str | Sequence[float]]


@on_cpu
@checked
def from_generators(
    fields: Sequence[Any] | Mapping[str, Any],
    *,
    variables: Sequence[Any] | int,
    parameters: Mapping[Any, Any] | None = None,
    split: tuple[Vectors, Vectors] | None = None,
    representation: Tensor | None = None,
    scale: Scale = None,
    sampler: Callable[[int], Tensor] | None = None,
    flow: Callable[[Tensor, Tensor], Tensor] | None = None,
    settings: OdeSettings | None = None,
) -> GeneratedGroup:
    r"""Build a Lie group, and its local action, from vector fields that span its algebra.

    The fields :math:`X_i` are the infinitesimal generators: :math:`\exp(s e_i) \cdot x` is the flow of :math:`X_i`.
    For a left action the algebra of the group is the negative of that of the fields,
    :math:`[e_i, e_j] = -c_{ij}^k e_k` where :math:`[X_i, X_j] = c_{ij}^k X_k`.

    The algebra is split as :math:`(\mathfrak s \oplus \mathfrak t) \ltimes \mathfrak n` with n its nilradical, s a
    Levi factor and t a torus, and an element is :math:`g = \exp(n)\,h`; see `GeneratedGroup`. The group is the one with
    a simply connected ideal and torus: rotations of t keep their winding, and so do those of factors SL(2, R) if full
    turns of them move points (time in the symmetries of an oscillator). Algebras that do not split over their
    nilradical are embedded in one that does; see `trivgeo.groups.structure.LeviDecomposition`.

    Fields may be given in any basis of their span. Polynomials with rational coefficients, and fields with rational
    constants, are decomposed in exact arithmetic; others in floating point, in a basis that is well conditioned.

    How the action is computed, coordinate by coordinate (``group.action().flows`` says which way each went, and
    ``group.action().flow_error(g, x)`` how far it can be off):

    - In closed form: all coordinates if all fields are linear, affine, projective (:math:`a + B x + (c \cdot x) x`) or
      conformal for some quadratic form; else those coordinates that move so by themselves, such as (x, t) of heat, and
      over these coordinates with polynomial fields that are among finitely many functions which elements move linearly,
      or whose logarithm, but for powers of denominators, is among such functions: the fibre of most linear equations,
      Burgers, Schroedinger, Kolmogorov. All of these cost a batch some dozens of elementwise operators. Others in
      closed form that move affinely over these, :math:`A(x) u + b(x)`, if fields of the group shift each x, and u by a
      constant.
    - By one quadrature: coordinates u whose fields are affine in them with commuting A, over others that are solved.
    - Integrated: what is left. Where the fields that vanish at a point tell it from those nearby, Newton's method then
      finds the digits, so that such images are as exact as closed forms.

    The latter two go factor by factor through the element, and points that cannot be trusted are NaN. For SymPy
    expressions, coordinates that would have to be integrated are first straightened where that is possible: S log S of
    Black-Scholes moves log S affinely.

    Some actions are local because places have several names: a triangle of translations around the origin adds a full
    turn to the angle of polar coordinates, and so do symmetries of u'' + u = 0 to t. No group acts so; then an element
    moves points along its own one-parameter group, the image is NaN for points that move by a third of the step
    between two names or farther, and `exp` is NaN for vectors that turn by half a turn or more (those of s with an
    eigenvalue beyond :math:`i \pi`), which a matrix cannot tell from others. Wherever both sides have a value,
    :math:`\exp(v).x` is the flow and :math:`(g h).x = g.(h.x)`.

    Args:
        fields: one vector field a generator, as a sequence, or by name. Each is a torch function from a point ``[m]``
            (or ``[*batch, m]``) to its tangent, or a vector of SymPy expressions.
        variables: the coordinates: SymPy symbols or names for expressions; for torch functions the number m, or names.
        parameters: values of other symbols in expressions, by symbol or name; each has to occur.
        split: (h, n) instead of the automatic split: a reductive subalgebra and a nilpotent ideal, each a list of
            generators by index or name, or of vectors of coefficients.
        representation: matrices of the generators ``[dim, k, k]`` of a faithful representation with
            ``[rho_i, rho_j] = c_ij^k rho_k`` for the group's constants. The semisimple part is stored as a block of it.
        scale: see `LieGroup`.
        sampler: ``count -> points [count, m]`` in the region where the fields are defined; default: a box around zero.
        flow: the flow for unit time of :math:`\sum v_i X_i` in closed form, ``(v [*batch, dim], x [*batch, m]) ->
            [*batch, m]``, NaN or infinite where undefined.
        settings: how closely flows without a closed form are followed.

    Returns:
        The group; its `action` is the local action on points of R^m.

    Raises:
        AlgebraError: the fields are dependent, do not close under the bracket (the message names the bracket), have
            derivatives that are not theirs (a field that detaches), no split was found, or points have several names
            that are no fixed step or factor apart in any coordinate (unless full turns of SL(2, R) tell them).
        ConfigurationError: an argument does not fit, the flow is not that of the fields, a term of an expression is
            too small at the sampled points (v^2 / c^2 beside 1 for v near one, c in m/s), or SymPy is missing.
        ShapeError: a field returns the wrong shape.
    """
    entries, labels = _labelled(fields)
    given, symbolic, simple = _vector_fields(entries, labels, variables, parameters)
    if symbolic is None:
        check_derivatives(given, sample_points(given, _CHECKED, sampler))
    settings = OdeSettings() if settings is None else check_type("settings", settings, OdeSettings)
    points = sample_points(given, 4 * (given.dim + 1) ** 2 + 8, sampler)
    written = symbolic if simple is None else simple.symbolic
    if written is not None:
        check_terms(written.vectors, written.symbols, points)
    if flow is not None:
        check_flow(flow, given, points[:_CHECKED])
    moved, symbolic, source = _source(given, symbolic, simple, points, sampler, split)
    unmix = torch.linalg.inv(source.mixing)
    algebra = _in_basis(source.algebra, source.mixing, labels)
    mixed_flow = None if flow is None else _OfSource(flow, Constant(unmix))
    motion = _motion(moved, symbolic, source, points, mixed_flow, settings)
    faithful = None if motion.whole is None else motion.whole.matrices
    if representation is not None:
        matrices = representation.detach().to(device="cpu", dtype=torch.float64)
        if matrices.ndim != 3 or len(matrices) != algebra.dim or matrices.shape[1] != matrices.shape[2]:
            raise ConfigurationError(
                f"representation: expected [{algebra.dim}, k, k], got {list(representation.shape)}"
            )
        check_homomorphism(matrices, algebra, "representation")
        if int(torch.linalg.matrix_rank(matrices.flatten(1))) < algebra.dim:
            raise ConfigurationError("representation: expected a faithful one, got dependent matrices")
        faithful = torch.einsum("ij,jab->iab", unmix, matrices)
    charted = points if motion.chart is None else motion.chart.forward(points)
    return _acting(algebra, source, faithful, motion, charted, representation is None).with_scale(scale)


def _acting(
    algebra: LieAlgebra,
    source: AdaptedAlgebra,
    faithful: Tensor | None,
    motion: Motion,
    points: Tensor,
    coverable: bool,
) -> GeneratedGroup:
    """The group that acts by a motion: of matrices, of a cover, or locally.

    Args:
        algebra: see `assemble`.
        source: see `assemble`.
        faithful: see `assemble`.
        motion: see `assemble`.
        points: sample points, in the coordinates of `Motion.fields`.
        coverable: whether the group may be a cover.
    """
    plain = assemble(algebra, source, faithful, motion)
    winding = find_monodromy(plain, source, motion, points[:_LOOPED])
    integrated = motion.flow is None and not motion.is_solved
    if winding.loop is None or (winding.covered and coverable):
        group = plain if winding.loop is None else assemble(algebra, source, None, motion, covers=winding.ideals)
        if not integrated or is_single_valued(group, FlowAction(group, motion), points):
            return group
    searches: list[Callable[[], FundamentalDomain | None]] = []
    if integrated:
        searches.append(partial(find_fundamental_domain, motion.fields, points))
    if motion.isotropy is not None:
        names = partial(find_isotropy_domain, motion.fields, motion.isotropy, points)
        searches += [names, partial(names, connected=False)]
    for search in searches:
        sheets = search()
        if sheets is None:
            continue
        near = replace(motion, sheets=sheets)
        group = assemble(algebra, source, faithful, near)
        if is_single_valued(group, FlowAction(group, near), points):
            return group
    told = "coordinates in which names of one place are a fixed step apart"
    if winding.loop is None:
        raise AlgebraError(f"expected an action with (g h).x = g.(h.x), or {told}")
    loop = describe(winding.loop @ torch.linalg.inv(source.mixing), algebra.names)
    raise AlgebraError(
        f"expected an action of the group of matrices, got one of a cover: exp({loop}) is the unit matrix, but its "
        f"flow moves points. Only universal covers of SL(2, R) are supported, without a representation, and {told}"
    )


def _source(
    fields: VectorFields,
    symbolic: _Symbolic | None,
    simple: _Simple | None,
    points: Tensor,
    sampler: Callable[[int], Tensor] | None,
    split: tuple[Vectors, Vectors] | None,
) -> tuple[VectorFields, _Symbolic | None, AdaptedAlgebra]:
    """Fields with the same span in which structure constants are simple, and the decomposition of their algebra.

    Exact if the fields are polynomials with rational coefficients, or their constants look rational; else in floating
    point, in the given basis or, if ranks cannot be decided there, in a well-conditioned one.
    """
    unit, labels = torch.eye(len(fields), dtype=torch.float64), fields.names

    def source(algebra: LieAlgebra, mixing: Tensor, exact: RationalAlgebra | None) -> AdaptedAlgebra:
        found = find_split(algebra, exact) if split is None else _given_split(algebra, mixing, labels, split)
        return AdaptedAlgebra(algebra, found, mixing)

    if simple is not None:
        if simple.exact is not None:
            constants = torch.tensor(simple.exact.floats(), dtype=torch.float64)
        else:
            try:
                constants = -fit_brackets(simple.fields, sampler)
            except AlgebraError:
                fit_brackets(fields, sampler)  # its message names the user's fields
                raise
        algebra = LieAlgebra(constants, simple.fields.names)
        exact = rational(algebra) if simple.exact is None else simple.exact
        if exact is not None or split is not None or not torch.equal(simple.mixing, unit):
            return simple.fields, simple.symbolic, source(algebra, simple.mixing, exact)
    else:
        algebra = LieAlgebra(-fit_brackets(fields, sampler), labels)
        exact = rational(algebra)
        size = algebra.structure_constants.abs()
        if split is None and exact is None and bool((size[size > 0] < _SMALL * size.max()).any()):
            # no rank can be decided where constants are so far apart
            lengths = balanced(algebra, dust=0.0)[1]
            turned = fields.mixed(torch.diag(lengths))
            with contextlib.suppress(AlgebraError):
                return turned, None, source(LieAlgebra(-fit_brackets(turned, sampler)), torch.diag(1.0 / lengths), None)
    try:
        return fields, symbolic, source(algebra, unit, exact)
    except AlgebraError:
        if symbolic is not None or exact is not None or split is not None:
            raise
    weights = evaluation_basis(fields, points)
    turned = fields.mixed(weights)
    return turned, None, source(LieAlgebra(-fit_brackets(turned, sampler)), torch.linalg.inv(weights), None)


def _in_basis(algebra: LieAlgebra, mixing: Tensor, names: Sequence[str]) -> LieAlgebra:
    """The algebra in the basis ``mixing Y``."""
    c, unmix = algebra.structure_constants, torch.linalg.inv(mixing)
    if torch.equal(mixing, torch.eye(len(mixing), dtype=torch.float64)):
        return LieAlgebra(c, names)
    mixed = torch.einsum("ai,bj,ijk,kc->abc", mixing, mixing, c, unmix)
    terms = torch.einsum("ai,bj,ijk,kc->abc", *(entry.abs() for entry in (mixing, mixing, c, unmix)))
    mixed = torch.where(mixed.abs() < 1e-13 * terms, 0.0, mixed)
    return LieAlgebra(0.5 * (mixed - mixed.transpose(0, 1)), names)


@dataclass(frozen=True)
class _OfSource:
    """The user's flow, for vectors in the simple basis."""

    flow: Flow
    unmix: Constant

    def __call__(self, v: Tensor, x: Tensor) -> Tensor:
        return self.flow(v @ self.unmix.like(v), x)


@dataclass(frozen=True)
class _Symbolic:
    """Fields as SymPy expressions of the coordinates alone."""

    vectors: list[tuple[Any, ...]]
    symbols: list[Any]


@dataclass(frozen=True)
class _Simple:
    """A simple basis of the span of expressions, see `simple_basis`: the given fields are ``mixing`` times these."""

    fields: VectorFields
    symbolic: _Symbolic
    mixing: Tensor
    exact: RationalAlgebra | None


def _motion(
    fields: VectorFields,
    symbolic: _Symbolic | None,
    source: AdaptedAlgebra,
    points: Tensor,
    flow: Flow | None,
    settings: OdeSettings,
) -> Motion:
    """How points move: by the user's flow, in the fields' own coordinates, or in a chart in which more is solved."""
    prefixes, fill = _closed_prefixes(fields, points), points[0]
    tower = find_triangular_flow(fields, points, settings.nodes, source.split.semisimple)
    whole = next((base for base in tower.bases if len(base.coordinates) == fields.dim), None)
    if whole is not None and flow is not None:  # the user's flow, not the closed form of everything
        tower = TriangularFlow(fields, [], [], settings.nodes)
    plain = Motion(fields, tower, None, whole, flow, settings, prefixes, fill, None)
    if flow is not None or whole is not None:
        return plain
    if tower.is_closed:
        return plain
    carried = find_transported(fields, points, tower.closed())
    if carried is not None or len(tower.solved()) == fields.dim:
        return replace(plain, carried=carried)
    counts = (*prefixes, fields.dim)
    corrected = replace(plain, isotropy=Isotropy(fields, source.algebra, points, counts))
    chart = None if symbolic is None else straighten(symbolic.vectors, symbolic.symbols, points)
    if chart is None:
        return corrected
    moved = _compiled(_Symbolic(chart.vectors, chart.symbols), fields.coordinates, fields.names)
    charted = chart.forward(points)
    tower = find_triangular_flow(moved, charted, settings.nodes, source.split.semisimple)
    if not tower.is_closed and len(tower.solved()) <= len(plain.tower.solved()):
        return corrected
    whole = next((base for base in tower.bases if len(base.coordinates) == fields.dim), None)
    if whole is not None:
        return Motion(moved, tower, chart, whole, None, settings, prefixes, fill, None)
    if tower.is_closed:
        return Motion(moved, tower, chart, None, None, settings, prefixes, fill, None)
    isotropy, carried = (
        Isotropy(moved, source.algebra, charted, counts),
        find_transported(moved, charted, tower.closed()),
    )
    return Motion(moved, tower, chart, None, None, settings, prefixes, fill, isotropy, carried)


def _labelled(fields: Sequence[Any] | Mapping[str, Any]) -> tuple[list[Any], tuple[str, ...]]:
    """The fields and their names."""
    entries = list(fields.values()) if isinstance(fields, Mapping) else list(fields)
    labels = tuple(fields) if isinstance(fields, Mapping) else tuple(f"X{i + 1}" for i in range(len(entries)))
    if not entries:
        raise ConfigurationError("fields: expected at least one, got none")
    return entries, labels


def _vector_fields(
    entries: Sequence[Any],
    labels: Sequence[str],
    variables: Sequence[Any] | int,
    parameters: Mapping[Any, Any] | None,
) -> tuple[VectorFields, _Symbolic | None, _Simple | None]:
    """The fields as torch functions, as expressions if they were given so, and those of a simple basis."""
    if all(callable(entry) for entry in entries):
        if parameters is not None:
            raise ConfigurationError("parameters: expected none for torch functions; close over the values")
        coordinates = [f"x{i + 1}" for i in range(variables)] if isinstance(variables, int) else list(variables)
        return VectorFields(entries, [str(c) for c in coordinates], labels), None, None
    if any(callable(entry) for entry in entries) or isinstance(variables, int):
        raise ConfigurationError("fields: expected torch functions only, or SymPy vectors with symbols as variables")
    sp = require_sympy()
    # names are parsed by a whitelist, never executed
    symbols = [parse_expression(v, f"variables[{i}]") if isinstance(v, str) else v for i, v in enumerate(variables)]
    if not all(isinstance(s, sp.Symbol) for s in symbols):
        raise ConfigurationError(f"variables: expected SymPy symbols or names, got {symbols}")
    symbolic = _Symbolic(substitute(entries, symbols, parameters or {}), symbols)
    coordinates = [s.name for s in symbols]
    basis = simple_basis(symbolic.vectors, symbols)
    if basis is None:
        return _compiled(symbolic, coordinates, labels), symbolic, None
    if torch.equal(basis.mixing, torch.eye(len(entries), dtype=torch.float64)):
        fields = _compiled(symbolic, coordinates, labels)
        return fields, symbolic, _Simple(fields, symbolic, basis.mixing, basis.algebra)
    other = _Symbolic(basis.vectors, symbols)
    turned = _compiled(other, coordinates, [f"Y{i + 1}" for i in range(len(entries))])
    return turned.mixed(basis.mixing, labels), symbolic, _Simple(turned, other, basis.mixing, basis.algebra)


def _compiled(symbolic: _Symbolic, coordinates: Sequence[str], labels: Sequence[str]) -> VectorFields:
    """Expressions as torch functions."""
    sp = require_sympy()
    vectors, symbols = symbolic.vectors, symbolic.symbols
    coefficients = sp.symbols(f"v0:{len(vectors)}", cls=sp.Dummy)
    sums = [
        sp.Add(*(c * vector[a] for c, vector in zip(coefficients, vectors, strict=True))) for a in range(len(symbols))
    ]
    components = [entry for vector in vectors for entry in vector]
    slopes = [sp.diff(entry, s) for entry in components for s in symbols]
    writable = not unknown_functions(slopes) and not any(slope.has(sp.Derivative) for slope in slopes)
    formulas = Formulas(
        values=compile_expressions(components, symbols),
        slopes=compile_expressions(slopes, symbols) if writable else None,
        sums=compile_expressions(sums, [*coefficients, *symbols]),
        each=[compile_expressions([entry], [*coefficients, *symbols]) for entry in sums],
    )
    functions = [_OfPoint(compile_expressions(vector, symbols)) for vector in vectors]
    return VectorFields(functions, coordinates, labels, formulas)


@dataclass(frozen=True)
class _OfPoint:
    """A function of coordinates as one of points."""

    function: Callable[..., Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(*x.unbind(-1))


def _given_split(
    algebra: LieAlgebra, mixing: Tensor, labels: Sequence[str], split: tuple[Vectors, Vectors]
) -> LeviDecomposition:
    """The user's split, from indices, names or vectors of the generators, in the simple basis."""
    algebra = _in_basis(algebra, mixing, labels)
    if len(split) != 2:
        raise ConfigurationError(f"split: expected (h, n), got {len(split)} entries")
    unit = torch.eye(algebra.dim, dtype=torch.float64)

    def rows(part: Vectors) -> Tensor:
        result = []
        for item in part:
            if isinstance(item, str):
                if item not in algebra.names:
                    raise ConfigurationError(f"split: expected one of {list(algebra.names)}, got {item!r}")
                result.append(unit[algebra.names.index(item)])
            elif isinstance(item, int):
                if not 0 <= item < algebra.dim:
                    raise ConfigurationError(f"split: expected an index below {algebra.dim}, got {item}")
                result.append(unit[item])
            else:
                vector = torch.as_tensor(item, dtype=torch.float64)
                if vector.shape != (algebra.dim,):
                    raise ConfigurationError(
                        f"split: expected a vector of {algebra.dim} coefficients, got {list(vector.shape)}"
                    )
                result.append(vector)
        return torch.stack(result) if result else unit[:0]

    named = check_split(algebra, rows(split[0]), rows(split[1]))
    return LeviDecomposition(named.semisimple @ mixing, named.torus @ mixing, named.ideal @ mixing)


def _closed_prefixes(fields: VectorFields, points: Tensor) -> tuple[int, ...]:
    """Numbers of leading coordinates whose motion depends on them alone."""
    _, jacobians = values_and_jacobians(fields, points)
    dependence = jacobians.abs().amax((0, 1))  # [component, coordinate]
    size = max(1.0, float(dependence.max()))
    return tuple(b for b in range(1, fields.dim) if float(dependence[:b, b:].max()) < 1e-12 * size)
