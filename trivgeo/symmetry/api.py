"""The public functions; what they call imports SymPy and python-flint, and is loaded on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trivgeo.checks import check_count, checked
from trivgeo.errors import missing_package
from trivgeo.expressions import require_sympy
from trivgeo.groups.ground_fields import has_flint

if TYPE_CHECKING:
    from trivgeo.symmetry.conservation import ConservationLaws
    from trivgeo.symmetry.determining.dimension import Dimension
    from trivgeo.symmetry.equations.equation import EvolutionSystem
    from trivgeo.symmetry.from_data.result import SymmetriesFromData
    from trivgeo.symmetry.result import Symmetries


def _require_libraries() -> None:
    """Raise `ConfigurationError` if SymPy or python-flint is missing."""
    require_sympy()
    if not has_flint():
        raise missing_package("equation", "python-flint", "symbolic")


def solved_form(equation: Any, time: Any = None) -> tuple[list[Any], EvolutionSystem]:
    """The residuals of equations as exact SymPy expressions, and the equations solved for leading derivatives.

    Equations and time are those of `find_symmetries`.

    Raises:
        ConfigurationError: as for `find_symmetries`.
    """
    require_sympy()
    from trivgeo.symmetry.equations.equation import EvolutionSystem, residuals_of

    residuals = residuals_of(equation)
    return residuals, EvolutionSystem(residuals, time)


@checked
def find_symmetries(
    equation: Any, degree: int | None = None, *, ansatz: Sequence[Any] = (), time: Any = None
) -> Symmetries:
    r"""The point symmetries of equations, and how many there are.

    A vector field :math:`X = \xi^i \partial_{x_i} + \eta^a \partial_{u_a}` is an infinitesimal symmetry of
    :math:`\Delta = 0` if its characteristic :math:`Q^a = \eta^a - \xi^i \partial_i u_a` satisfies the linearized
    equations on solutions (Olver 1993, sections 2.3 and 5.1). These conditions are linear differential equations for
    the coefficients, the determining equations. The dimension of their solution space is computed before the search,
    from Taylor expansions at a random point, modulo a prime (with an error of probability about 10^-8). Every symmetry
    that is found is verified. The result says "all" only if their number equals the dimension.

    Without a degree the search tries polynomials of growing degree, then also exponentials, waves, powers and
    logarithms, and functions that the equations contain, until the dimension is met. Coefficients are exact and
    rational in the parameters. Special values of the parameters may have more symmetries.

    Symmetries of a linear ordinary equation, and of an inhomogeneous partial equation, contain solutions of the
    equation. A solution without a known formula is a function symbol, see `Symmetries.solutions`.

    Symmetries that add a solution of a linear partial equation are in `Symmetries.infinite_ideal`. For ordinary
    equations these symmetries are finitely many, and belong to the algebra.

    Fields that move no solution (their Q vanishes) are in `Symmetries.trivial`. A quasilinear equation of
    first order has infinitely many symmetries, of which some are found.

    Args:
        equation: an equation ``Eq(left, right)``, an expression that is to vanish, or a list of them, in functions such
            as ``u(x, t)`` of the same independent variables; or the same as text, ``"u_t + u*u_x = 0.1*u_xx"``, see
            `trivgeo.expressions.parse_equations`. Other symbols are parameters, and other functions of one argument,
            such as ``f(u)``, arbitrary: the result then holds whatever they are. Numbers are made exact first, see
            `trivgeo.expressions.exact`; text is never executed.
        degree: search polynomials of at most this total degree in all variables, and no others than the ansatz has.
        ansatz: functions of the variables, such as ``[exp(t), exp(-t)]``: coefficients may then be sums of a polynomial
            and polynomials times these, of the degree, or else 2. Unknowns may be written ``u`` or ``u(x, t)``.
        time: the independent variable in whose highest derivatives the equations are solved, if they can be; default:
            ``t`` if there is one, else the last that works.

    Returns:
        The symmetries; see `trivgeo.symmetry.result.Symmetries`.

    Raises:
        ConfigurationError: the degree is less than one, the equations cannot be solved for real leading derivatives,
            hold derivatives of an order beyond 10, or other functions than powers, exponentials, logarithms,
            trigonometric and hyperbolic functions, or are complex, or two names clash (a parameter ``u_x``, variables x
            and xx), or SymPy or python-flint is missing.
        AlgebraError: a field that was found is no symmetry (which would be an error of this library).
    """
    _require_libraries()
    if degree is not None:
        check_count("degree", degree)
    from trivgeo.symmetry.determining.finder import search

    return search(equation, degree, time, ansatz)


@checked
def symmetries_from_data(
    samples: Any,
    grid: Any = None,
    *,
    library: Any = None,
    order: int | None = None,
    degree: int | None = None,
    tolerance: float | None = None,
) -> SymmetriesFromData:
    r"""Find the symmetries of an unknown equation from solutions, or of a function from points.

    For solutions on a grid, an equation :math:`\partial_t^r u^a = \sum_k \theta_k T_k`, r = 1 or 2, is fitted first.
    The terms :math:`T_k` are products of derivatives, and derivatives of products. The fit is a regression in weak
    form, in which noise averages out (Messenger and Bortz 2021, "Weak SINDy for partial differential equations"). The
    smallest set of terms is taken that predicts held-out data as well as larger sets. Derivatives are read in several
    ways, so that stated errors cover the discretization, and solutions of difference schemes are recognized.
    Coefficients that depend on place or time are tried, and become functions without a formula. The symmetries of the
    fitted equation are then found exactly. The verdict says why an equation is not certain. Superposition, for a linear
    equation, is set apart.

    For a function f, the derivatives :math:`X f` along polynomial fields X form a matrix, whose null space contains the
    symmetries (LieGG: Moskalev, Sepliarskaia, Sosnovik and Smeulders 2022). The dimension is where the singular values
    have their largest gap. Fields that do not close under the bracket are left out, the least certain first.

    ```python
    found = symmetries_from_data(values, (x, t))  # [b, s, n], of u(x, t)
    found.dimension, found.fields, found.equations[0].text
    group = found.group()
    symmetries_from_data(network, points)  # of an invariant network
    ```

    Args:
        samples: a `trivgeo.actions.Field`, or values ``[b, c, s, *n]`` of c unknowns at s times, ``[b, s, *n]`` of one;
            or a function of points ``[p, n]``.
        grid: a `trivgeo.actions.Grid`, or the equidistant coordinates ``(x, ..., t)``, default: that of the field; for
            a function the points ``[p, n]``, at least twice as many values as the library has coefficients.
        library: for solutions the degree of polynomial generators, or functions they are multiplied with, as the
            degree and ansatz of `find_symmetries`; default: all symmetries. For a function the degree, default one:
            affine fields.
        order: largest order of terms in space; default: four for one unknown on a line, two for several unknowns in
            several dimensions, else three.
        degree: largest degree of terms; default: five for one unknown on a line, else three.
        tolerance: for a function the singular value, relative to the largest, below which a field is a symmetry;
            default: the largest gap.

    Returns:
        Dimension, fields, what was fitted or tested, and the group; see
        `trivgeo.symmetry.from_data.result.SymmetriesFromData`.

    Raises:
        ConfigurationError: samples and grid do not fit, or are too few, or do not change in time, or no equation of
            that form explains the data, or SymPy or python-flint is missing.
    """
    _require_libraries()
    for name, value in (("order", order), ("degree", degree)):
        if value is not None:
            check_count(name, value)
    if callable(samples):
        from trivgeo.symmetry.from_data.function import of_function

        return of_function(samples, grid, 1 if library is None else library, tolerance)
    from trivgeo.symmetry.from_data.solutions import of_solutions

    return of_solutions(samples, grid, library, order, degree)


@checked
def verify(equation: Any, field: Any, *, time: Any = None) -> Any:
    """Return the left side of the symmetry condition: 0 exactly if the field is an infinitesimal symmetry.

    Args:
        equation: as for `find_symmetries`.
        field: a generator of `Symmetries`, or the coefficients ``(xi_1, ..., eta_1, ...)`` as expressions (or text)
            of the variables in the order of the functions' arguments and then the functions, which may be written as
            ``u`` or ``u(x, t)``. They need not be polynomials.
        time: as for `find_symmetries`.

    Returns:
        A simplified SymPy expression in the variables and the derivatives of u; for several equations a tuple of them,
        unless all vanish. Whether it vanishes is decided by its values to 80 digits at random points.

    Raises:
        ConfigurationError: as for `find_symmetries`, or the field has the wrong number of coefficients.

    Example:
        >>> verify("u_t = u_xx", ("x", "2*t", "0"))  # a scaling
        0
    """
    _require_libraries()
    from trivgeo.symmetry.determining.finder import residual

    return residual(equation, field, time)


@checked
def conservation_laws(
    equation: Any, order: int = 2, degree: int = 3, *, ansatz: Sequence[Any] = (), time: Any = None
) -> ConservationLaws:
    r"""The conservation laws of equations whose multipliers are polynomials up to an order and a degree.

    A law :math:`D_t T + D_x X = \Lambda_a \Delta^a` holds on solutions of :math:`\Delta = 0`: the integral of the
    density T changes by the flux X through the boundary alone. Multipliers :math:`\Lambda_a` are those for which the
    Euler operators of :math:`\Lambda_a \Delta^a` vanish identically (Olver 1993, section 4.3; Anco and Bluman 2002,
    "Direct construction method for conservation laws", parts I and II): linear equations for the coefficients of
    polynomials, solved exactly, at random points modulo primes. Densities and fluxes come from a homotopy, and each law
    is checked as an identity, off solutions too, before it is returned.

    For equations that are solved for leading derivatives, as evolution equations are, multipliers without these
    derivatives vanish for trivial laws alone: laws with independent multipliers are independent, and none is trivial.

    ```python
    laws = conservation_laws("u_t + u*u_x + u_xxx = 0", order=2)
    laws.densities  # [u, u**2/2, t*u**2/2 - u*x, u**3/3 - u_x**2]: mass, momentum, centre of mass, energy
    cylindrical = conservation_laws("u_t + u*u_x + u_xxx + u/(2*t) = 0", order=0, ansatz=["sqrt(t)"])
    cylindrical.densities  # [t*u**2/2, sqrt(t)*u, t**(3/2)*u**2 - sqrt(t)*u*x]
    ```

    Args:
        equation: as for `find_symmetries`; as many equations as unknowns, in any number of variables.
        order: largest order of the derivatives in the multipliers.
        degree: largest total degree of multipliers as polynomials in the variables, unknowns and derivatives.
        ansatz: functions of the variables, unknowns and derivatives, such as ``["sqrt(t)"]`` or ``["1/u"]``:
            multipliers may then be sums of a polynomial and polynomials times these.
        time: the variable of the densities, in whose derivatives the equations are solved if they can be; default:
            ``t`` if there is one, else as for `find_symmetries`.

    Returns:
        The laws, simple ones first; see `trivgeo.symmetry.conservation.ConservationLaws`.

    Raises:
        ConfigurationError: as for `find_symmetries`, or there are more or fewer equations than unknowns, or too many
            monomials, or a multiplier is not rational in the parameters,
            of low degree.
        AlgebraError: a flux has no closed form.
    """
    _require_libraries()
    check_count("order", order, 0)
    check_count("degree", degree)
    from trivgeo.symmetry.conservation import search_laws

    return search_laws(equation, order, degree, time, ansatz)


@checked
def special_values(equation: Any, parameter: Any, values: Sequence[Any] = ()) -> dict[Any, Dimension]:
    """Values of one parameter for which the equations have more symmetries than for generic values.

    The dimension is computed for each value that is tried, so the returned values are right, but other values may be
    missing. Values for which the equations cannot be solved for leading derivatives are left out.

    Args:
        equation: an equation or a list of them, as text or in SymPy, see `find_symmetries`.
        parameter: the parameter, or its name.
        values: numbers to try; default: the fractions that textbooks have as exponents: integers up to 6, halves up to
            3 and thirds up to 2, of both signs.

    Returns:
        The dimension without superposition, by value, in the order tried; see
        `trivgeo.symmetry.determining.dimension.Dimension`. Where the equations are linear at that value alone, it may
        equal the generic dimension: superposition is then what is added.

    Raises:
        ConfigurationError: as for `find_symmetries`, or the equations have no such parameter.

    Example:
        ``special_values("u_t = diff(u^n*u_x, x)", "n")`` has -4/3, with dimension 5 where others have 4, and 0.
    """
    _require_libraries()
    from trivgeo.symmetry.determining.special import larger_dimensions, simple_fractions

    return larger_dimensions(equation, parameter, list(values) or simple_fractions())


@checked
def special_functions(equation: Any, function: str, candidates: Sequence[Any] = ()) -> dict[Any, Symmetries]:
    """Forms of one arbitrary function for which the equations have more symmetries than for any other.

    `find_symmetries` of the equations themselves finds the symmetries for an arbitrary function. Then the dimension is
    computed for each candidate. The returned forms are right, but the list is not a complete classification. Candidates
    of equations that are the same up to a change of scale or a shift, such as :math:`2 e^{3 u}` and :math:`e^u`, are
    not set apart, and are not tried.

    Args:
        equation: see `find_symmetries`; functions of an unknown, or of one variable, that are called but have no
            derivatives are arbitrary, such as f in ``"u_t = diff(f(u)*u_x, x)"``.
        function: the name of the function.
        candidates: expressions of the function's argument, which is named as in the equations: ``["exp(u)", "u^n"]``
            for f(u). Other names are new parameters. Default: 1, exp z, log z, z log z, z^n with a parameter n, where z
            is the argument, and z to the fractions that `special_values` tries, if they have more symmetries than z^n.

    Returns:
        All symmetries by function, in the order tried.

    Raises:
        ConfigurationError: as for `find_symmetries`, or there is no such function, or a candidate is no function of its
            argument.

    Example:
        ``special_functions("u_t = diff(f(u)*u_x, x)", "f")`` has 1 (linear), exp(u), u^n, and u^(-4/3) (Ovsiannikov
        1959).
    """
    _require_libraries()
    from trivgeo.symmetry.determining.special import larger_algebras

    return larger_algebras(equation, function, candidates)
