"""Phase 5 of `from_generators`: the group whose elements move points as planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivgeo._random import normal
from trivgeo.errors import AlgebraError, ConfigurationError
from trivgeo.groups.generated.action import GeneratedAction
from trivgeo.groups.generated.deck_transformations import (
    FundamentalDomain,
    find_fundamental_domain,
    find_isotropy_domain,
)
from trivgeo.groups.generated.group import GeneratedGroup
from trivgeo.groups.generated.levi_assembly import Representations, assemble
from trivgeo.groups.generated.monodromy import Monodromy, find_monodromy
from trivgeo.groups.generated.motion_plan import MotionPlan
from trivgeo.groups.generated.reductive_group import check_homomorphism
from trivgeo.groups.generated.vector_fields import values_and_jacobians
from trivgeo.groups.generated.vector_flow import NumericalFlow
from trivgeo.groups.structure import describe

__all__ = ["realize"]

_NUM_POINTS = 8  # on which products of elements are tried
_NUM_PAIRS = 40  # of elements of each size whose products are tried
_SIZES = (0.3, 0.6, 1.2)  # standard deviations of the coordinates of their logarithms
_LINEAR = 1e-9  # differences of derivatives of linear fields, relative to one plus their size
_MAX_ERROR = 1e-2  # of the image by a product, relative to one plus its size


@dataclass(frozen=True)
class _Candidate:
    """A group, and its action in the coordinates in which points are moved."""

    group: GeneratedGroup
    action: GeneratedAction


def realize(plan: MotionPlan, representation: Tensor | None) -> GeneratedGroup:
    """The group that acts as planned: of matrices, of a cover of them, or locally.

    Args:
        plan: how points move.
        representation: matrices of the generators ``[dim, k, k]``, see `from_generators`; or ``None``.

    Raises:
        AlgebraError: no such group acts.
        ConfigurationError: the representation has the wrong shape, or is not faithful.
    """
    faithful = plan.faithful if representation is None else _in_adapted_basis(representation, plan)
    candidate = _candidate(plan, faithful)
    monodromy = find_monodromy(candidate.group.reductive, plan)
    coverable = monodromy.covered and representation is None
    if monodromy.loop is not None and coverable:
        candidate = _candidate(plan, None, covers=monodromy.ideals)
    elif monodromy.loop is not None and faithful is None:
        linear = _linear_parts(plan)
        other = None if linear is None else _candidate(plan, None, linear=linear)
        if other is not None and find_monodromy(other.group.reductive, plan).loop is None:
            candidate, monodromy = other, Monodromy(None, [], True)
    if (monodromy.loop is None or coverable) and (plan.flows.is_solved or _is_single_valued(candidate, plan.points)):
        return candidate.group
    for domain in _fundamental_domains(plan):
        candidate = _candidate(plan, faithful, domain=domain)
        if _is_single_valued(candidate, plan.points):
            return candidate.group
    raise _no_group(plan, monodromy)


def _candidate(
    plan: MotionPlan,
    faithful: Tensor | None,
    covers: Sequence[Tensor] = (),
    domain: FundamentalDomain | None = None,
    linear: Tensor | None = None,
) -> _Candidate:
    representations = Representations(faithful, [base.matrices for base in plan.flows.bases], linear)
    elements, levi = assemble(plan.decomposed.adapted, representations, covers, principal=domain is not None)
    motion = plan.flows.motion(elements, domain)
    group = GeneratedGroup(plan.decomposed.algebra, elements, levi, plan.in_space(motion))
    return _Candidate(group, GeneratedAction(group, motion))


def _in_adapted_basis(representation: Tensor, plan: MotionPlan) -> Tensor:
    """The user's matrices of the generators as those of the adapted fields, ``[n, k, k]``."""
    algebra = plan.decomposed.algebra
    matrices = representation.detach().to(device="cpu", dtype=torch.float64)
    if matrices.ndim != 3 or len(matrices) != algebra.dim or matrices.shape[1] != matrices.shape[2]:
        raise ConfigurationError(f"representation: expected [{algebra.dim}, k, k], got {list(representation.shape)}")
    check_homomorphism(matrices, algebra, "representation")
    if int(torch.linalg.matrix_rank(matrices.flatten(1))) < algebra.dim:
        raise ConfigurationError("representation: expected a faithful one, got dependent matrices")
    return torch.einsum("ij,jab->iab", torch.linalg.inv(plan.decomposed.adapted.mixing), matrices)


def _linear_parts(plan: MotionPlan) -> Tensor | None:
    """The matrices ``[r, m, m]`` of a semisimple part whose fields are linear in all coordinates, else ``None``.

    Of SU(2) that moves two complex numbers, whose adjoint matrices know its elements up to a sign.
    """
    fields, points = plan.decomposed.basis.fields, plan.decomposed.points[:_NUM_POINTS]
    _, slopes = values_and_jacobians(fields, points)
    matrices = torch.einsum("rn,pnab->prab", plan.decomposed.adapted.levi.semisimple, slopes)
    off = (matrices - matrices[:1]).abs().max()
    return matrices[0] if bool(off <= _LINEAR * (1.0 + matrices.abs().max())) else None


def _fundamental_domains(plan: MotionPlan) -> Iterator[FundamentalDomain]:
    """How far points may move if places have several names, by several searches for these names."""
    flow, fields = plan.flows.flow, plan.flows.fields
    domain = None if plan.flows.is_solved else find_fundamental_domain(fields, plan.points)
    if domain is not None:
        yield domain
    if isinstance(flow, NumericalFlow) and flow.isotropy is not None:
        for connected in (True, False):
            domain = find_isotropy_domain(fields, flow.isotropy, plan.points, connected)
            if domain is not None:
                yield domain


def _is_single_valued(candidate: _Candidate, points: Tensor) -> bool:
    """Whether random products of elements act as their factors do, one after the other, where both have images."""
    group, action = candidate.group, candidate.action
    points, generator = points[:_NUM_POINTS], torch.Generator().manual_seed(0)
    g, h = (
        torch.cat([group.exp(size * normal((_NUM_PAIRS, group.dim), points, generator)) for size in _SIZES])
        for _ in range(2)
    )
    with torch.no_grad():
        twice, once = action(g, action(h, points)), action(group.compose(g, h), points)
    return not bool(((twice - once).abs() > _MAX_ERROR * (1.0 + once.abs())).any())


def _no_group(plan: MotionPlan, monodromy: Monodromy) -> AlgebraError:
    """Why no group acts, in terms of the generators."""
    supported = "coordinates in which names of one place are a fixed step apart"
    if monodromy.loop is None:
        return AlgebraError(f"expected an action with (g h).x = g.(h.x), or {supported}")
    generators, mixing = plan.decomposed.algebra, plan.decomposed.adapted.mixing
    loop = describe(monodromy.loop @ torch.linalg.inv(mixing), generators.names)
    return AlgebraError(
        f"expected an action of the group of matrices, got one of a cover: exp({loop}) is the unit matrix, but its "
        f"flow moves points. Only universal covers of SL(2, R) are supported, without a representation, and {supported}"
    )
