"""The result of an inversion."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trivgeo._devices import on_device
from trivgeo._text import Described
from trivgeo.actions import ImageWarp
from trivgeo.checks import check_count, check_positive, checked, with_tensors
from trivgeo.errors import ShapeError
from trivgeo.groups import Action, LieGroup
from trivgeo.inversion.agreement import verdicts_of_search
from trivgeo.inversion.rows import where_rows
from trivgeo.verdict import Verdict, trusted_mask

__all__ = ["InversionResult", "PosteriorModes", "PosteriorSample"]

_NUM_MEAN_STEPS = 8  # iterations of the mean of a cluster


@dataclass(frozen=True, repr=False)
class PosteriorModes(Described):
    """Clusters of the hypotheses for each of b data, the heaviest first; M is the largest number of them.

    Attributes:
        elements: their centres, ``[b, M, *element_shape]``: points from which the mean of the logarithms of the
            hypotheses vanishes; NaN beyond the last mode.
        weights: share of the hypotheses, ``[b, M]``; zero beyond the last mode. For a `PosteriorSample` they are
            probabilities; for a search the shares of the chains that ended there.
        standard_errors: standard errors of the weights of a `PosteriorSample`, ``[b, M]``, positive also for a single
            mode; NaN for a search, which estimates none.
        labels: the mode of each hypothesis, ``[b, K]``; -1 for none.
    """

    elements: Tensor
    weights: Float[Tensor, "b m"]
    labels: Int[Tensor, "b k"]
    standard_errors: Float[Tensor, "b m"]

    @property
    def num_modes(self) -> Int[Tensor, " b"]:
        """Number of modes of each datum."""
        return (self.weights > 0).sum(-1)


def modes_of(
    group: LieGroup,
    elements: Tensor,
    kept: Bool[Tensor, "b k"],
    radius: float,
    *,
    weights: Float[Tensor, "b k"] | None = None,
    effective_size: Float[Tensor, " b"] | None = None,
) -> PosteriorModes:
    """Return the clusters of hypotheses that chains of distances below ``radius`` join, see `InversionResult.modes`.

    Args:
        weights: weights of a sample with standard errors; by default all elements count alike.
        effective_size: number of independent draws behind the weights.
    """
    check_positive("radius", radius)
    chains = elements.shape[1]
    difference = group.log(group.compose(group.inverse(elements).unsqueeze(2), elements.unsqueeze(1)))
    near = difference.norm(dim=-1) < radius  # false where there is no logarithm
    near = (near & near.mT | torch.eye(chains, dtype=torch.bool, device=near.device)) & kept.unsqueeze(1)
    near = near & kept.unsqueeze(2)
    labels = torch.arange(chains, device=near.device).expand(len(elements), -1)
    while True:  # each hypothesis takes the least label around it, and then that one's own
        least = torch.where(near, labels.unsqueeze(1), chains).amin(-1)
        least = torch.where(kept, least.gather(1, least.clamp(max=chains - 1)), chains)
        if torch.equal(least, torch.where(kept, labels, chains)):
            break
        labels = torch.where(kept, least, labels)
    member = kept.unsqueeze(1) & (labels.unsqueeze(1) == torch.arange(chains, device=near.device).unsqueeze(-1))
    each = kept.to(elements.dtype) if weights is None else torch.where(kept, weights, 0.0)
    each = each / each.sum(-1, keepdim=True).clamp(min=torch.finfo(each.dtype).tiny)
    share = torch.where(member, each.unsqueeze(1), 0.0).sum(-1)
    most = max([1, *(share > 0).sum(-1).tolist()])
    shares, heaviest = share.sort(dim=1, descending=True, stable=True)
    shares, heaviest = shares[:, :most], heaviest[:, :most]
    rank = heaviest.new_full((len(elements), chains), -1)
    rank.scatter_(1, heaviest, torch.arange(most, device=near.device).expand_as(heaviest))
    labels = torch.where(kept, rank.gather(1, labels), -1)
    members = member.gather(1, heaviest.unsqueeze(-1).expand(-1, -1, chains))
    errors = torch.full_like(shares, torch.nan)
    if weights is not None:
        errors = _standard_errors(each, members, shares, effective_size)
    return PosteriorModes(_centres(group, elements, members, each, heaviest), shares, labels, errors)


def _standard_errors(each: Tensor, members: Tensor, shares: Tensor, effective_size: Tensor | None) -> Tensor:
    """Return standard errors of the shares of clusters by the weights of the elements; zero beyond the last cluster.

    At least those of a share p of n effective draws by Agresti and Coull (1998), with :math:`(n p + 2) / (n + 4)` in
    place of p: of few draws, or of draws that met one cluster alone, the estimate itself would be near zero.
    """
    off = members.to(each.dtype) - shares.unsqueeze(-1)
    variance = (each.square().unsqueeze(1) * off.square()).sum(-1)
    size = 1.0 / each.square().sum(-1).clamp(min=torch.finfo(each.dtype).tiny)
    if effective_size is not None:  # the weights may be those of elements that were resampled
        effective = torch.minimum(size, effective_size.to(size).clamp(min=1e-3))
        variance, size = variance * (size / effective).unsqueeze(-1), effective
    n = size.unsqueeze(-1)
    likely = (n * shares + 2.0) / (n + 4.0)
    variance = torch.maximum(variance, likely * (1.0 - likely) / (n + 4.0))
    return torch.where(shares > 0.0, variance.sqrt(), 0.0)


def _centres(group: LieGroup, elements: Tensor, members: Tensor, each: Tensor, first: Tensor) -> Tensor:
    """Return the mean of each cluster with the weights of its elements, iterated from its member of least index."""
    shape = first.shape + (1,) * len(group.element_shape)
    centre = torch.take_along_dim(elements, first.reshape(shape), 1)
    weight = torch.where(members, each.unsqueeze(1), 0.0)
    weight = weight / weight.sum(-1, keepdim=True)  # NaN for no member
    for _ in range(_NUM_MEAN_STEPS):
        away = group.log(group.compose(group.inverse(centre).unsqueeze(2), elements.unsqueeze(1)))
        # a distant hypothesis without logarithm belongs to another mode
        away = torch.where(members.unsqueeze(-1), away, 0.0).nan_to_num(0.0)
        centre = group.retract(centre, (weight.unsqueeze(-1) * away).sum(-2))
    return centre


_MIN_SHARE_KEPT = 0.5  # share of a datum that a usable hypothesis restores
_MAX_ROWS_SHOWN = 10  # data that a notebook shows


@checked
@dataclass(frozen=True, repr=False)
class InversionResult:
    """Hypotheses for the transformations of a batch of data.

    Attributes:
        action: the action on the data.
        elements: ``[b, K, *element_shape]``: the end points of a search. How many of them lie in a well says little of
            its weight, see `is_sample`.
        energies: their posterior energies, ``[b, K]``; infinite where the inverse transformation is not defined.
        num_masked_steps: masked steps of each chain, ``[b, K]``: those that would have left what is finite, and those
            that no finite energy guided.
        energy_evaluations: energies evaluated without a gradient, for each datum.
        gradient_evaluations: energies evaluated with their gradient, for each datum.
        network_evaluations: evaluations of a learned score, or of what else is asked of restored data, for each datum.
        kept: share of the datum that each hypothesis restores, ``[b, K]``, where the action can lose some of it, see
            `trivgeo.actions.ImageWarp`; else ``None``.
        added_energies: part of ``energies`` that restored data have no say in, ``[b, K]``: the cost of lost content,
            and what a `WrappedEnergy` adds, as a prior; ``None`` if there is none.
        stage_verdicts: verdicts of stages that checked the data, or of what is known of the search; ``None`` if there
            are none, see `verdicts`.
        report: what the search chose for these data, and why, a sentence on each line; empty for methods that choose
            nothing.
    """

    action: Action
    elements: Tensor
    energies: Float[Tensor, "b k"]
    num_masked_steps: Int[Tensor, "b k"]
    energy_evaluations: int
    gradient_evaluations: int
    network_evaluations: int = 0
    kept: Float[Tensor, "b k"] | None = None
    added_energies: Float[Tensor, "b k"] | None = None
    stage_verdicts: tuple[Verdict, ...] | None = None
    report: str = ""

    def __repr__(self) -> str:
        data, chains = self.energies.shape
        lost, off = int(self.lost.sum()), int((~torch.isfinite(self.energies)).sum())
        kind = "a search" if self.has_energy or not self.network_evaluations else "an estimate by a network"
        return (
            f"{type(self).__name__}({data} data, {chains} hypotheses each, of {self.group!r}; "
            f"{int(self.trusted.sum())} trusted; "
            f"{f'{lost} would lose most of what the datum shows; ' if lost else ''}"
            f"{f'{off} of {data * chains} hypotheses ended where no energy is finite; ' if off else ''}"
            f"{kind}, not a weighted sample; "
            f"for each {self.energy_evaluations} energies, {self.gradient_evaluations} gradients, "
            f"{self.network_evaluations} networks)"
        )

    def _repr_html_(self) -> str:
        """For notebooks: what was found for each of the first data."""
        finite = self.usable
        columns = [self.best_energy(), finite.sum(-1), self.num_masked_steps.sum(-1), self.trusted]
        rows = zip(*(column[:_MAX_ROWS_SHOWN].tolist() for column in columns), strict=True)
        lines = [
            f"<tr><td>{i}</td><td>{energy:.4g}</td><td>{number} of {self.energies.shape[1]}</td><td>{masked}</td>"
            f"<td>{'yes' if trusted else 'no'}</td></tr>"
            for i, (energy, number, masked, trusted) in enumerate(rows)
        ]
        if len(self.energies) > _MAX_ROWS_SHOWN:
            lines.append(f"<tr><td colspan=5>and {len(self.energies) - _MAX_ROWS_SHOWN} more</td></tr>")
        head = "".join(f"<th>{name}</th>" for name in ("datum", "lowest energy", "usable", "masked steps", "trusted"))
        return f"<table><caption>{escape(repr(self))}</caption><tr>{head}</tr>{''.join(lines)}</table>"

    @property
    def group(self) -> LieGroup:
        """The group of the elements."""
        return self.action.group

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict on the best element of each datum.

        Verdicts are those of stages that checked the data, as of a `LearnedInverter` that was calibrated, and of
        `TIED` with clean data, on which it tries its search. For other searches the hypotheses are compared by their
        energies, see `trivgeo.inversion.agreement.verdicts_of_search`; what this cannot tell is among the assumptions:
        that the energy is lowest at the right transformation, which `check_energy` tests, and that a chain came there.
        """
        if self.stage_verdicts is not None:
            return self.stage_verdicts
        return verdicts_of_search(
            self.group, self.elements, self.energies, self.usable, self.has_energy, self.added_energies
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the result of a datum is not to be trusted; empty texts where it is."""
        return tuple("; ".join(verdict.reasons) for verdict in self.verdicts)

    @property
    def trusted(self) -> Bool[Tensor, " b"]:
        """Mask of the data whose result passes its own checks; `reasons` says which failed."""
        return trusted_mask(self.verdicts, self.energies.device)

    @property
    def has_energy(self) -> bool:
        """True if an energy was evaluated: without one, energies are zero for all that can be undone."""
        if self.energy_evaluations + self.gradient_evaluations > 0:
            return True
        return bool((torch.isfinite(self.energies) & (self.energies != 0)).any())

    @property
    def is_sample(self) -> bool:
        """True if averages with the `weights` estimate averages over the posterior, as for a `PosteriorSample`.

        False after every search, `TIED` included.
        """
        return False

    @property
    def usable(self) -> Bool[Tensor, "b k"]:
        """Mask of the hypotheses of finite energy that restore at least half of what the datum shows."""
        finite = torch.isfinite(self.energies)
        return finite if self.kept is None else finite & (self.kept >= _MIN_SHARE_KEPT)

    @property
    def has_usable(self) -> Bool[Tensor, " b"]:
        """Mask of the data that have a `usable` hypothesis: whether it is right is said by `trusted`."""
        return self.usable.any(-1)

    @property
    def lost(self) -> Bool[Tensor, " b"]:
        """Mask of the data of whose hypotheses of finite energy all lose most of the datum."""
        return torch.isfinite(self.energies).any(-1) & ~self.has_usable

    def averaging_weights(self) -> Float[Tensor, "b k"]:
        """Return the weights of an average over the hypotheses: equal ones for usable ones, with sum one."""
        usable = self.usable.to(self.energies.dtype)
        return usable / usable.sum(-1, keepdim=True)

    def best_index(self) -> Int[Tensor, " b"]:
        """Return the index of the usable hypothesis of lowest energy."""
        return self._ranked().argmin(-1)

    def best(self) -> Tensor:
        """The elements of lowest energy, ``[b, *element_shape]``; NaN where none is `usable`."""
        index = self.best_index()
        rows = torch.arange(index.shape[0], device=index.device)
        return where_rows(self.has_usable, self.elements[rows, index], torch.nan)

    def restore(self, x: Any) -> Any:
        """Return the given data with the best transformation undone, ``g^-1 . x``; NaN where none is `usable`.

        The data are brought to the device of the elements.

        Raises:
            ShapeError: the data are not those that were inverted, as many and of that shape.
        """
        x = on_device(with_tensors("x", x), self.elements.device)
        if isinstance(x, (list, tuple)) and isinstance(self.action, ImageWarp):
            if len(x) != len(self.energies):
                raise ShapeError(f"x: expected the {len(self.energies)} images that were inverted, got {len(x)}")
            return self.action(self.group.inverse(self.best()), x)
        self.action.check_data(x)
        batch = self.action.batch_shape(x)
        if batch != self.energies.shape[:1]:
            raise ShapeError(f"x: expected the {len(self.energies)} data that were inverted, got batch {list(batch)}")
        return self.action(self.group.inverse(self.best()), x)

    def modes(self, radius: float = 0.3) -> PosteriorModes:
        r"""Return the modes that were found: hypotheses less than a distance apart, directly or by way of others.

        Their ``weights`` are shares of the hypotheses, and ``standard_errors`` are NaN: a search estimates no weights.
        Those of the posterior come from `PosteriorSampler`.

        The distance of g and h is :math:`|\log(g^{-1} h)|`, which no transformation of the data changes. Hypotheses
        that cannot be undone belong to no mode.

        Args:
            radius: the distance, in units of the group's basis.

        Raises:
            ConfigurationError: the radius is not positive.
        """
        return modes_of(self.group, self.elements, self.usable, radius)

    def plot(self, x: Float[Tensor, "b c h w"], num_images: int = 4) -> Any:
        """Return a figure of images, the restored ones, and hypotheses over angle and scale (needs matplotlib).

        Args:
            x: the images that were inverted.
            num_images: number of images to show, from the first.

        Raises:
            ConfigurationError: the action is no `ImageWarp` of the plane, or Matplotlib is missing.
            ShapeError: other images than those that were inverted.
        """
        from trivgeo.inversion.plots import draw_images

        shown = min(check_count("num_images", num_images), len(x))
        restored = self.restore(x)
        return draw_images(self.action, self.elements[:shown], self.best()[:shown], x[:shown], restored[:shown])

    def best_energy(self) -> Float[Tensor, " b"]:
        """Return the lowest energies of usable hypotheses; infinite if none is `usable`, else NaN without an energy."""
        lowest = self._ranked().amin(-1)
        return lowest if self.has_energy else torch.where(self.has_usable, torch.nan, lowest)

    def _ranked(self) -> Float[Tensor, "b k"]:
        """Return the energies, infinite where a hypothesis is not usable."""
        return torch.where(self.usable, self.energies, torch.inf)


@checked
@dataclass(frozen=True, repr=False, kw_only=True)
class PosteriorSample(InversionResult):
    r"""Weighted sample of the posteriors :math:`p_0(g)\, e^{-E(g) / T}` of a batch of data.

    Averages over the sample with its `weights` estimate averages over the posterior; for any function f of elements

    .. math:: \sum_k w_k f(g_k) \approx \int f \, p \, d\mu

    Attributes:
        weights: weights of the elements, ``[b, K]``, with sum one.
        effective_sample_size: number of independent draws of the posterior that would be as good, ``[b]``: of the draws
            weighted, at most K.
        log_evidence: logarithm of the integral of :math:`p_0 e^{-E / T}`, ``[b]``, for the measure of base
            distributions. That is left Haar measure of total mass one on compact groups, else the one that is Lebesgue
            measure of the algebra at the identity; see `trivgeo.generative.distributions.GroupDistribution`.
            All other attributes are those of `InversionResult`.
    """

    weights: Float[Tensor, "b k"]
    effective_sample_size: Float[Tensor, " b"]
    log_evidence: Float[Tensor, " b"]

    @property
    def is_sample(self) -> bool:
        return True

    def __repr__(self) -> str:
        data, size = self.energies.shape
        ess = self.effective_sample_size
        sizes = f"{float(ess.min()):.3g} to {float(ess.max()):.3g}" if data else "none"
        return (
            f"PosteriorSample({data} data, {size} weighted elements each, of {self.group!r}; "
            f"effective sample size {sizes}; "
            f"{int(self.trusted.sum())} trusted; "
            f"for each {self.energy_evaluations} energies, {self.gradient_evaluations} gradients, "
            f"{self.network_evaluations} networks)"
        )

    def modes(self, radius: float = 0.3) -> PosteriorModes:
        r"""Return the modes of the posterior, with their weights and the standard errors of the weights.

        The standard errors are those of importance sampling, :math:`(\sum_k w_k^2 (1_m(k) - \pi_m)^2)^{1/2}`. They do
        not account for modes that were not found.
        """
        used, size = self.weights > 0.0, self.effective_sample_size
        return modes_of(self.group, self.elements, used, radius, weights=self.weights, effective_size=size)

    def averaging_weights(self) -> Float[Tensor, "b k"]:
        return self.weights
