"""Registration of several data to their mean, or of the frames of a series, from registrations of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from trivgeo._text import Described
from trivgeo.actions import Volume
from trivgeo.checks import check_tensor
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.groups import LieGroup
from trivgeo.pose_graph import PoseGraph
from trivgeo.registration.record import Registration
from trivgeo.registration.register import register
from trivgeo.verdict import Judged, Verdict

__all__ = ["GroupwiseRegistration", "register_groupwise"]

_REACH = 2  # data in order that each one is registered to by default


@dataclass(frozen=True, repr=False)
class GroupwiseRegistration(Described, Judged):
    """Elements that take each of several data to a common frame.

    Attributes:
        elements: ``action(elements[i], data[i])`` lie on each other, ``[k, *element_shape]``; NaN for what no trusted
            registration connects to most of the others.
        covariances: covariances of v in ``g exp(v)``, ``[k, n, n]``; NaN likewise, zero for a reference.
        registrations: the registration of datum j to datum i, by (i, j).
        verdict: whether all data were registered and agree.
    """

    elements: Tensor
    covariances: Float[Tensor, "k n n"]
    registrations: Mapping[tuple[int, int], Registration]
    verdict: Verdict


def register_groupwise(
    data: Sequence[Tensor | Volume],
    group: LieGroup,
    *,
    pairs: Sequence[tuple[int, int]] | None = None,
    motion: Float[Tensor, "n n"] | None = None,
    reference: int | None = None,
    **settings: Any,
) -> GroupwiseRegistration:
    r"""Register several photographs, volumes or clouds to their mean, or the frames of a series to one of them.

    Pairs are registered, and the elements that agree best with all of these, by their covariances, are those of a
    `PoseGraph`. A registration that is not trusted is left out, and is a
    reason only where nothing else connects its data. With ``motion`` S the data are frames in time, and
    :math:`g_i^{-1} g_{i + 1} = \exp(w)` with normal w of covariance S: the estimate is that of a smoother (Rauch, Tung
    and Striebel 1965), which also bridges frames without a trusted registration.

    Noise of a datum is in all its registrations. In the extreme, m of them say no more than those of a tree between k
    data, so that covariances of pairs count as m / (k - 1) times as large: the result is never surer than a tree.

    Args:
        data: the data, as in `register`.
        group: the group.
        pairs: numbers (i, j) of the pairs that are registered; default each with the next two.
        motion: covariance of the motion from one frame to the next; default: the data are in no order.
        reference: number of the datum that is the common frame; default their mean, as `LieGroup.mean`.
        **settings: settings of `register`, such as ``similarity``.

    Raises:
        ConfigurationError: fewer than two data, or a pair or a reference that is not there.
        ShapeError: ``motion`` is no covariance of the group.

    Example:
        >>> corners = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
        >>> r = register_groupwise([corners, corners + 1.0, corners + 2.0], Translation(2))
        >>> (r.elements - r.elements.mean(0)).round(decimals=6).tolist()
        [[1.0, 1.0], [0.0, 0.0], [-1.0, -1.0]]
    """
    number = len(data)
    if number < 2:
        raise ConfigurationError(f"data: expected at least two, got {number}")
    if pairs is None:
        pairs = [(i, j) for i in range(number) for j in range(i + 1, min(i + 1 + _REACH, number))]
    for i, j in pairs:
        if not (0 <= i < number and 0 <= j < number and i != j):
            raise ConfigurationError(f"pairs: expected two different numbers of {number} data, got {(i, j)}")
    if reference is not None and not 0 <= reference < number:
        raise ConfigurationError(f"reference: expected a number of {number} data, got {reference}")
    if motion is not None:
        motion = check_tensor("motion", motion)
        if motion.shape != (group.dim, group.dim):
            raise ShapeError(f"motion: expected [{group.dim}, {group.dim}], got {list(motion.shape)}")
    found = {(i, j): register(data[j], data[i], group, **settings) for i, j in pairs}
    trusted = {pair: r for pair, r in found.items() if r.trusted}
    refused = [pair for pair in found if pair not in trusted]
    steps = [(i, i + 1) for i in range(number - 1)] if motion is not None else []
    members = _connected(number, [*trusted, *steps], reference)
    some = next(iter(found.values())).element
    shape, n = group.element_shape, group.dim
    elements = some.new_full((number, *shape), torch.nan)
    covariances = some.new_full((number, n, n), torch.nan)
    reasons = [] if len(members) == number else [_left_out(number, members)]
    if motion is not None and len(members) > len(_connected(number, list(trusted), reference)):
        reasons.append("only the motion says where some frames are")
    assumptions = [assumption for r in trusted.values() for assumption in r.verdict.assumptions]
    if len(members) > 1:
        solution = _solved(group, members, trusted, steps, motion, reference, some)
        elements[members], covariances[members], verdict = (*solution[:2], solution[2])
        reasons += verdict.reasons
        assumptions += verdict.assumptions
    if reasons:
        reasons += [f"{i} and {j}: {'; '.join(found[i, j].reasons)}" for i, j in refused]
    return GroupwiseRegistration(
        elements, covariances, found, Verdict(tuple(reasons), tuple(dict.fromkeys(assumptions)))
    )


def _solved(
    group: LieGroup,
    members: list[int],
    trusted: Mapping[tuple[int, int], Registration],
    steps: Sequence[tuple[int, int]],
    motion: Tensor | None,
    reference: int | None,
    like: Tensor,
) -> tuple[Tensor, Tensor, Verdict]:
    """Return elements and covariances of the members of a graph, and the verdict on it."""
    place = {member: k for k, member in enumerate(members)}
    kept = [pair for pair in trusted if pair[0] in place]
    edges = [(place[i], place[j]) for i, j in kept]
    # g_j takes datum j to the frame, so that g_i^-1 g_j takes it to datum i
    measured = [trusted[pair].element.double() for pair in kept]
    repeated = max(1.0, len(kept) / (len(members) - 1))
    covariance = [repeated * trusted[pair].covariance.double() for pair in kept]
    if motion is not None:
        edges += [(place[i], place[j]) for i, j in steps]
        measured += [group.identity(dtype=torch.float64, device=like.device)] * len(steps)
        covariance += [motion.to(like.device, torch.float64)] * len(steps)
    first = 0 if reference is None else place[reference]
    graph = PoseGraph(group, torch.tensor(edges, device=like.device), torch.stack(measured), torch.stack(covariance))
    solution = graph.solve(fixed=(first,))
    g, full = solution.graph.poses, solution.covariance
    verdict = solution.verdict
    if reference is None:
        mean = group.mean(g)
        if bool(torch.isfinite(mean).all()):
            g = group.compose(group.inverse(mean), g)
            n, k = group.dim, len(members)
            to_frame, from_frame = group.Ad(g), group.Ad(group.inverse(g))
            change = -torch.einsum("iab,jbc->iajc", from_frame, to_frame) / k
            change = torch.eye(n * k).to(full) + change.reshape(n * k, n * k)
            full = change @ full @ change.mT
        else:
            verdict = verdict & Verdict(("the elements have no mean: the first datum is the frame",))
    blocks = full.unflatten(0, (-1, group.dim)).unflatten(-1, (-1, group.dim))
    return g.to(like.dtype), torch.einsum("pipj->pij", blocks).to(like.dtype), verdict


def _connected(number: int, edges: Sequence[tuple[int, int]], reference: int | None) -> list[int]:
    """Return the data of the largest connected part, or of that of the reference."""
    i, j = np.array(edges, dtype=int).reshape(-1, 2).T
    parts = connected_components(coo_array((np.ones(len(i)), (i, j)), shape=(number, number)), directed=False)[1]
    chosen = np.bincount(parts).argmax() if reference is None else parts[reference]
    return np.flatnonzero(parts == chosen).tolist()


def _left_out(number: int, members: Sequence[int]) -> str:
    left = ", ".join(str(i) for i in range(number) if i not in members)
    return f"no trusted registration connects {left} of {number} data to most of the others"
