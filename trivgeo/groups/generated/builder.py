"""A Lie group from its infinitesimal generators, in five phases: each hands its record on to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from trivgeo._numerics import on_cpu
from trivgeo._signatures import checked
from trivgeo.checks import check_type
from trivgeo.groups.base import Scale
from trivgeo.groups.generated.decomposition import Vectors, decompose
from trivgeo.groups.generated.group import GeneratedGroup
from trivgeo.groups.generated.motion_plan import plan_motion
from trivgeo.groups.generated.parsing import parse_fields
from trivgeo.groups.generated.realization import realize
from trivgeo.groups.generated.validation import sample_fields
from trivgeo.groups.generated.vector_flow import OdeSettings

__all__ = ["from_generators"]


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
    settings = OdeSettings() if settings is None else check_type("settings", settings, OdeSettings)
    parsed = parse_fields(fields, variables, parameters)
    sampled = sample_fields(parsed, sampler, flow)
    decomposed = decompose(sampled, split)
    plan = plan_motion(decomposed, flow, settings)
    return realize(plan, representation).with_scale(scale)
