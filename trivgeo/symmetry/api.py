"""The two public functions; what they call imports SymPy and is loaded on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trivgeo.checks import check_count
from trivgeo.groups.generators.symbolic import require_sympy

if TYPE_CHECKING:
    from trivgeo.symmetry.result import Symmetries

__all__ = ["find_symmetries", "verify"]


def find_symmetries(pde: Any, degree: int | None = None, *, ansatz: Sequence[Any] = (), time: Any = None) -> Symmetries:
    r"""All point symmetries whose coefficients are polynomials of at most the given degree.

    A vector field :math:`X = \xi^i \partial_{x_i} + \eta^a \partial_{u_a}` is an infinitesimal symmetry of
    :math:`\partial_t^r u_a = F^a` if its characteristic :math:`Q^a = \eta^a - \xi^i \partial_i u_a` satisfies
    :math:`D_t^r Q^a - F^a_*[Q] = 0` on solutions (Olver 1993, sections 2.3 and 5.1). The coefficients of this in the
    derivatives of u are the determining equations. A polynomial ansatz turns them into linear algebra over the field of
    rational functions of the parameters, which is solved exactly; so the result holds for generic parameters, and
    special values may have more symmetries.

    Fields that move no solution (their Q vanishes) are kept apart as `Symmetries.trivial`. One quasilinear equation of
    first order has a whole module of them, and infinitely many other symmetries, of which some are found.

    Args:
        pde: an equation ``Eq(left, right)``, an expression that is to vanish, or a list of them, in functions such as
            ``u(x, t)`` of the same independent variables; or the same as text, ``"u_t + u*u_x = 0.1*u_xx"``, see
            `trivgeo.expressions.parse_equations`. Other symbols are parameters. Numbers are made exact first, see
            `trivgeo.expressions.exact`; text is never executed.
        degree: the largest total degree of the coefficients in all variables.
        ansatz: functions of the variables, such as ``[exp(t), exp(-t)]``: coefficients may then be sums of a polynomial
            and polynomials times these. Sums of products of powers, exponentials of polynomials, and logarithms of
            single variables can be told apart exactly, and no others are accepted. Unknowns may be written ``u`` or
            ``u(x, t)``.
        time: the independent variable in whose highest derivatives the equations are solved; default: ``t`` if there
            is one, else the last that works.

    Returns:
        The symmetries; see `trivgeo.symmetry.result.Symmetries`.

    Raises:
        ConfigurationError: the degree is less than one, the equations cannot be solved for the highest derivatives in
            any variable, or are not polynomial in derivatives, or their coefficients or the functions of the ansatz
            are not of the kind just described, or two names clash (a parameter ``u_x``, variables x and xx), or SymPy
            is missing.
    """
    require_sympy()
    if degree is not None:
        check_count("degree", degree)
    from trivgeo.symmetry.finder import search

    return search(pde, degree, time, ansatz)


def verify(pde: Any, field: Any, *, time: Any = None) -> Any:
    """What is left of the symmetry condition: 0 exactly if the field is an infinitesimal symmetry.

    Args:
        pde: as for `find_symmetries`.
        field: a generator of `Symmetries`, or the coefficients ``(xi_1, ..., eta_1, ...)`` as expressions (or text)
            of the variables in the order of the functions' arguments and then the functions, which may be written as
            ``u`` or ``u(x, t)``. They need not be polynomials.
        time: as for `find_symmetries`.

    Returns:
        A simplified SymPy expression in the variables and the derivatives of u; for several equations a tuple of them,
        unless all vanish. Whether it vanishes is decided by its values to 80 digits at random points.

    Raises:
        ConfigurationError: as for `find_symmetries`, or the field has the wrong number of coefficients.
    """
    require_sympy()
    from trivgeo.symmetry.finder import residual

    return residual(pde, field, time)
