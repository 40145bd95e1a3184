"""A Lie group from its infinitesimal generators, in five phases: each hands its record on to the next.

1. `parse_fields` (user_fields.py): the user's fields become `VectorFields` (fields.py), the record that all phases
   ask, in a simple basis of their span (span.py).
2. `sample_fields` (user_fields.py): points where the fields are finite, and checks of fields and flow there.
3. `decompose` (decomposition.py): structure constants (span.py) and their Levi decomposition (groups/structure.py).
4. `plan_action` (action_plan.py): coordinates that move projectively or conformally (projective_coordinates.py), fibres
   that move on spaces of polynomials (polynomial_representation.py), maybe after a change of coordinates (chart.py);
   the others follow flows (flows.py).
5. `build_group` (realization.py) joins the elements and their action map.
   Elements: `assemble` (levi_assembly.py) makes `FactoredElements` (elements.py) of a semidirect product of a
   `ReductiveGroup` (reductive_group.py, its algebra in semisimple_algebra.py) and a nilpotent group, by an
   `IdealAutomorphism` (ideal_automorphism.py).
   Action: an `ActionMap` (action_map.py) of closed forms (closed_form.py), for which elements become matrices
   (representation.py), and flows, bounded where places have several names (deck_transformations.py).
   Both are a `GeneratedGroup` (generated_group.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from trivgeo._numerics import on_cpu
from trivgeo.checks import check_type, checked
from trivgeo.groups.basis import Scale
from trivgeo.groups.from_generators.action_plan import plan_action
from trivgeo.groups.from_generators.decomposition import Vectors, decompose
from trivgeo.groups.from_generators.flows import OdeSettings
from trivgeo.groups.from_generators.generated_group import GeneratedGroup
from trivgeo.groups.from_generators.realization import build_group
from trivgeo.groups.from_generators.user_fields import parse_fields, sample_fields


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
    For a left action the brackets of the group have the opposite sign to the brackets of the fields:
    :math:`[e_i, e_j] = -c_{ij}^k e_k` if :math:`[X_i, X_j] = c_{ij}^k X_k`.

    The algebra is decomposed as :math:`(\mathfrak s \oplus \mathfrak t) \ltimes \mathfrak n` with n its nilradical, s a
    Levi factor and t a torus, in exact arithmetic where the constants of the fields are rational and python-flint is
    installed; an element is :math:`g = \exp(n)\,h`, see `GeneratedGroup`. How the action is computed, and where it has
    no value, is said in `GeneratedAction`.

    Args:
        fields: one vector field a generator, in any basis of their span, as a sequence or by name. Each is a torch
            function from a point ``[m]`` (or ``[*batch, m]``) to its tangent, or a vector of SymPy expressions.
        variables: the coordinates: SymPy symbols or names for expressions; for torch functions the number m, or names.
        parameters: values of other symbols in expressions, by symbol or name; each has to occur.
        split: (h, n) instead of the automatic decomposition: a reductive subalgebra and a nilpotent ideal, each a list
            of generators by index or name, or of vectors of coefficients.
        representation: matrices of the generators ``[dim, k, k]`` of a faithful representation with
            ``[rho_i, rho_j] = c_ij^k rho_k`` for the group's constants. The semisimple part is stored as a block of it.
        scale: lengths of the basis vectors, one or one each, or a matrix of them; see `LieGroup`.
        sampler: ``count -> points [count, m]`` in the region where the fields are defined; default: a box around zero.
        flow: the flow for unit time of :math:`\sum v_i X_i` in closed form, ``(v [*batch, dim], x [*batch, m]) ->
            [*batch, m]``, NaN or infinite where undefined.
        settings: accuracy and cost of flows without a closed form.

    Returns:
        The group; its `action` is the local action on points of R^m.

    Raises:
        AlgebraError: the fields are dependent, do not close under the bracket (the message names the bracket), or have
            derivatives that are not theirs (a field that detaches); no decomposition was found; or points have several
            names that are no fixed step or factor apart in any coordinate.
        ConfigurationError: an argument does not fit, the flow is not that of the fields, a term of an expression is
            too small at the sampled points (v^2 / c^2 beside 1 for v near one, c in m/s), or SymPy is missing.
        ShapeError: a field returns the wrong shape.

    Example:
        >>> turn = {"R": ["-y", "x"], "X": ["1", "0"], "Y": ["0", "1"]}
        >>> rigid = from_generators(turn, variables=["x", "y"])  # SE(2)
        >>> quarter = rigid.exp(torch.tensor([torch.pi / 2, 0.0, 0.0]))
        >>> rigid.action()(quarter, torch.tensor([[1.0, 0.0]])).round(decimals=3).abs()
        tensor([[0., 1.]])
    """
    settings = OdeSettings() if settings is None else check_type("settings", settings, OdeSettings)
    parsed = parse_fields(fields, variables, parameters)
    sampled = sample_fields(parsed, sampler, flow)
    decomposed = decompose(sampled, split)
    plan = plan_action(decomposed, flow, settings)
    return build_group(plan, representation).with_scale(scale)
