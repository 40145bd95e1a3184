r"""Descent of the mutual information of two images.

Values of one image belong to values of the other with probabilities p(f, m) that are estimated from the joint histogram
of both (Viola and Wells 1997; Mattes et al. 2003). Nothing else is said of how they belong to each other.

Descents move the image of f, whose slopes are those of all steps: the derivative of pixel p along v is
:math:`\partial_f \log p(m \mid f)\, \nabla I_0(p) \cdot \xi_v(p)`. Given f its mean is zero, and its variance is the
Fisher information, a function of f alone. Under changes of volume this is not quite the derivative of the information.
The last equations are: there the image of m is moved.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trivgeo.registration.blocks import BlockSums
from trivgeo.registration.inverse_compositional import (
    CORRELATION_REACH,
    HALO,
    LEAST_OVERLAP,
    MIN_BLOCK_SIDE,
    CloseComparison,
    Comparison,
    Exposure,
    Picture,
    Sums,
    box_sums,
    contracted,
    indices_of,
    pixels_at,
    products_in_cells,
    slopes_of,
    without_halo,
    without_own_pull,
)

_BINS_PER_SIDE, _MIN_BINS, _MAX_BINS = 1.0, 8, 64  # bins of values in units of the side of a cube of all pixels
_OUTER_SHARE = 0.002  # share of the values in the first bin, and in the last one
_MAX_NUMBERS_AT_ONCE = 2**20  # numbers of restored images that are worked on at once
_MIN_IN_BIN = 16.0  # pixels in a bin by which probabilities are estimated
_NUM_VALUES = 2**16  # values by which bins are chosen
_INDEPENDENT_SHARE = 0.01  # share of pixels whose values in both images are taken to be unrelated
_WHITE_SQUARE = 65 / 72  # square of the slope of white noise of variance one
_WHITE_SHARE = (
    6.0  # shared curvature of white noise in a block of one pixel, in units of that of a block of blurred noise
)
_KERNEL = (0.375, 0.25, 0.0625, 0.0)  # kernel under which a histogram is a density, by distance in bins


class _Bins(NamedTuple):
    """Bins of the values of channels: the middle of the first one, and their distance, ``[c]``."""

    first: Float[Tensor, " c"]
    width: Float[Tensor, " c"]
    number: int

    @classmethod
    def over(cls, picture: Picture, number: int) -> _Bins:
        values = picture.image.flatten(1)
        values = values[:, :: max(1, values.shape[1] // _NUM_VALUES)]
        low, high = torch.quantile(values, values.new_tensor([_OUTER_SHARE, 1.0 - _OUTER_SHARE]), dim=1)
        width = ((high - low) / (number - 1)).clamp(min=torch.finfo(values.dtype).eps)
        return cls(low, width, number)

    def places(self, values: Float[Tensor, "c *p"]) -> tuple[Int[Tensor, "c *p"], Float[Tensor, "c *p"]]:
        """Return the bins below values, but the last one, and how far it is from these to the next ones."""
        first, width = (part.reshape(-1, *[1] * (values.ndim - 1)).to(values) for part in (self.first, self.width))
        along = ((values - first) / width).clamp(0.0, self.number - 1.0)
        below = along.long().clamp(max=self.number - 2)
        return below, along - below


class _Tables(NamedTuple):
    """What the joint histogram of each channel says for k elements, f along the second last dimension.

    Attributes:
        information: mutual information, summed over channels, ``[k]``.
        score: derivative of log p(m | f) by f, between bins of f, ``[k, c, b - 1, b]``.
        fisher: its variance given f, ``[k, c, b - 1]``.
        pull: derivative of log p(f | m) by m, between bins of m, ``[k, c, b, b - 1]``.
        left: variance of f given m, ``[k, c]``.
    """

    information: Tensor
    score: Tensor
    fisher: Tensor
    pull: Tensor
    left: Tensor


def _without_gaps(rows: Float[Tensor, "*k b a"], numbers: Float[Tensor, "*k b"]) -> Float[Tensor, "*k b a"]:
    """Return rows that are linear between those of enough pixels, as those of labels are few."""
    bins = rows.shape[-2]
    number = torch.arange(bins, device=rows.device).expand(numbers.shape)
    known = numbers >= _MIN_IN_BIN
    before = torch.where(known, number, -1).cummax(-1).values
    after = torch.where(known, number, bins).flip(-1).cummin(-1).values.flip(-1)
    before, after = torch.where(before < 0, after, before), torch.where(after == bins, before, after)
    before, after = before.clamp(0, bins - 1), after.clamp(0, bins - 1)
    part = ((number - before) / (after - before).clamp(min=1)).clamp(0.0, 1.0).to(rows).unsqueeze(-1)
    first, last = (rows.gather(-2, at.unsqueeze(-1).expand_as(rows)) for at in (before, after))
    return torch.lerp(first, last, part)


class MutualComparison(Comparison):
    """A comparison by mutual information: exposures and widths of losses are not read."""

    @cached_property
    def _bins(self) -> tuple[_Bins, _Bins]:
        """The bins of the fixed and of the moving picture."""
        side = min(self.fixed.number(), self.moving.number()) ** (1 / 3)
        number = max(_MIN_BINS, min(_MAX_BINS, round(_BINS_PER_SIDE * side)))
        return _Bins.over(self.fixed, number), _Bins.over(self.moving, number)

    def _tables(self, joint: Float[Tensor, "k c b b"]) -> _Tables:
        """Return what histograms say."""
        bins = joint.shape[-1]
        number = torch.arange(bins, device=joint.device)
        kernel = joint.new_tensor(_KERNEL)[(number - number.unsqueeze(-1)).abs().clamp(max=len(_KERNEL) - 1)]
        kernel = kernel / kernel.sum(0)  # keeps the mass
        density = kernel @ (joint / joint.sum((-2, -1), keepdim=True).clamp(min=1.0)) @ kernel.mT
        of_f, of_m = density.sum(-1, keepdim=True), density.sum(-2, keepdim=True)
        tiny = torch.finfo(joint.dtype).eps
        density = (1.0 - _INDEPENDENT_SHARE) * density + _INDEPENDENT_SHARE * of_f * of_m + tiny**2
        logarithm = _without_gaps(
            (density / density.sum(-1, keepdim=True)).log(), of_f.squeeze(-1) * joint.sum((-2, -1)).unsqueeze(-1)
        )
        given = logarithm.exp()
        excess = logarithm - (of_m + tiny**2).log()
        information = (density * excess).sum((-3, -2, -1))
        width, width_of_m = (bins.width.to(joint) for bins in self._bins)
        pull = excess.diff(dim=-1) / width_of_m[:, None, None]
        score = logarithm.diff(dim=-2) / width[:, None, None]
        fisher = (0.5 * (given[..., 1:, :] + given[..., :-1, :]) * score.square()).sum(-1)
        number = number.to(joint).unsqueeze(-1)
        mass = density.sum(-2).clamp(min=tiny)
        mean = (number * density).sum(-2) / mass
        left = ((number - mean.unsqueeze(-2)).square() * density).sum((-2, -1)) * width.square()
        return _Tables(information, score, fisher, pull, left)

    def _restored(self, h: Tensor) -> tuple[list[Tensor], list[Tensor], Float[Tensor, "k c b b"]]:
        """Return the moving picture at all pixels, what counts, and the joint histograms."""
        fixed, moving = self._bins
        bins, count = fixed.number, len(h)
        joint = h.new_zeros(count * self.channels * bins**2, dtype=torch.float64)
        first = torch.arange(count * self.channels, device=h.device).reshape(count, self.channels).mT * bins**2
        all_values, all_seen = [], []
        for strip in self._strips():
            values, seen = self.restored(h, strip.indices)  # [c, k, p], [k, p]
            seen = seen * strip.counted.flatten()
            below_f, part_f = fixed.places(strip.image.flatten(1))
            below_m, part_m = moving.places(values)
            index = first.unsqueeze(-1) + (below_f * bins).unsqueeze(1) + below_m
            for f, weight_f in ((0, 1.0 - part_f), (1, part_f)):
                for m, weight_m in ((0, 1.0 - part_m), (1, part_m)):
                    weight = seen * weight_f.unsqueeze(1) * weight_m
                    joint += torch.bincount((index + (f * bins + m)).flatten(), weight.flatten(), len(joint))
            all_values.append(values)
            all_seen.append(seen)
        return all_values, all_seen, joint.reshape(count, self.channels, bins, bins)

    def _looked_up(
        self, table: Float[Tensor, "k c a b"], image: Float[Tensor, "c p"], values: Float[Tensor, "c k p"]
    ) -> Float[Tensor, "c k p"]:
        """Return entries of tables, linear between bins of m."""
        fixed, moving = self._bins
        below_f, _ = fixed.places(image)
        below_m, part = moving.places(values)
        k, c, a, b = table.shape
        first = torch.arange(k * c, device=table.device).reshape(k, c).mT * (a * b)
        index = first.unsqueeze(-1) + (below_f.clamp(max=a - 1) * b).unsqueeze(1) + below_m
        flat = table.flatten().to(values)
        return flat[index] * (1.0 - part) + flat[index + 1] * part

    def sums(self, h: Tensor, exposure: Exposure, width: float | None) -> Sums:
        """Return sums for elements, with the `energy` that a normal variable of as much information leaves of one."""
        parts = [self._sums(rows) for rows in h.split(max(1, _MAX_NUMBERS_AT_ONCE // self.fixed.image.numel()))]
        energy, overlap, slope, curvature = (torch.cat(part) for part in zip(*parts, strict=True))
        functions = torch.eye(2).to(slope).expand(len(h), self.channels, 2, 2)
        return Sums(
            energy,
            overlap,
            slope,
            curvature,
            functions,
            slope.new_zeros(len(h), self.channels, 2, self.group.dim),
            slope.new_zeros(len(h), self.channels, 2),
            slope.new_zeros(len(h), self.channels, 3),
        )

    def _sums(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        all_values, all_seen, joint = self._restored(h)
        tables = self._tables(joint)
        dim, k, n = self.group.dim, len(h), self.n
        slope, curvature = joint.new_zeros(k, dim), joint.new_zeros(k, dim, dim)
        count = joint.new_zeros(k)
        for strip, values, seen in zip(self._strips(), all_values, all_seen, strict=True):
            m, q = strip.counted.shape
            fields, image = self.fields[strip.cells], strip.image.flatten(1)
            score = (seen * self._looked_up(tables.score, image, values)).view(-1, k, m, q)
            along = torch.stack([products_in_cells(*part) for part in zip(score, strip.slopes, strict=True)]).sum(0)
            slope += (along.transpose(0, 1).flatten(1) @ fields.flatten(0, 1)).double()
            below = self._bins[0].places(image)[0].unsqueeze(1).expand_as(values)
            fisher = tables.fisher.transpose(0, 1).to(values).gather(2, below)
            fisher = (seen * fisher).mean(0)  # products are sums over channels
            pairs = products_in_cells(fisher.view(k, m, q), strip.products)
            symmetric = pairs[..., self._pair_of].unflatten(-1, (n, n)).transpose(0, 1)  # [k, m, n, n]
            curvature += (fields.flatten(0, 1).mT @ (symmetric @ fields).flatten(1, 2)).double()
            count += seen.sum(-1).double()
        overlap = count / max(min(self.fixed.number(), self.moving.number()), 1.0)
        energy = torch.where(overlap >= LEAST_OVERLAP, (-2.0 * tables.information / self.channels).exp(), torch.inf)
        return energy, overlap, slope, curvature

    def closely(self, h: Tensor, exposure: Exposure, width: float, agreeing: float) -> CloseComparison:
        """Return sums for covariances and checks of one element; see `Comparison.closely`."""
        dim, n, image = self.group.dim, self.n, self.fixed.image
        fixed, moving = self._bins
        _, _, joint = self._restored(h[None])
        tables = self._tables(joint)
        cross = tables.score.diff(dim=-1) / moving.width.to(joint)[:, None, None]
        cells = math.prod(self.cells)
        scores, noise = image.new_zeros(cells, dim), image.new_zeros(cells, n, n)
        own_of_cells = image.new_zeros(cells, dim, dim)
        descent, alone = image.new_zeros(dim, dim).double(), image.new_zeros(dim, dim).double()
        shown = torch.zeros(self.fixed.grid.size, dtype=torch.bool, device=image.device)
        count = square_sum = 0.0
        for (first, last), strip in zip(self._ranges(), self._strips(), strict=True):
            fields = self.fields[strip.cells]
            axes = self._axes(first, last, HALO)
            index = indices_of(axes).to(image.dtype)
            size = list(index.shape[1:])
            values, seen = self.restored(h[None], index.flatten(1))
            seen = seen * self.fixed.counted(axes).flatten()
            around = pixels_at(image, axes).flatten(1)
            (below_f, part), below_m = fixed.places(around), moving.places(values)[0][:, 0]
            channel = torch.arange(self.channels, device=image.device).unsqueeze(-1)
            bend = seen * cross[0].to(values)[channel, below_f, below_m]
            fisher = seen * tables.fisher[0].to(values)[channel, below_f]
            pull = seen * tables.pull[0].to(values)[channel, below_f + (part > 0.5), below_m]
            pull, bend, fisher, values = (part.reshape(self.channels, *size) for part in (pull, bend, fisher, values))
            ours, rough = (self._in_cells(slopes_of(part).transpose(0, 1)) for part in (values, pull))  # [c, n, m, q]
            pull, bend, fisher = (self._in_cells(without_halo(part, n)) for part in (pull, bend, fisher))
            along = -(pull.unsqueeze(1) * ours).sum(0)  # [n, m, q]
            scores[strip.cells] = (fields.mT @ along.sum(-1).mT.unsqueeze(-1)).squeeze(-1)
            alone += contracted(products_in_cells(along, along), fields.mT, fields.mT)
            for bent, known, own_slopes, slopes, one in zip(bend, fisher, ours, strip.slopes, rough, strict=True):
                descent += contracted(products_in_cells(bent * own_slopes, slopes), fields.mT, fields.mT)
                own_of_cells[strip.cells] += fields.mT @ products_in_cells(known * slopes, slopes) @ fields
                noise[strip.cells] += products_in_cells(one, one)
            seen_here = without_halo(seen.reshape(size), n)
            shown[self._axes(first, last, 0)[0]] = seen_here > 0
            count += float(seen_here.sum())
            square_sum += float(pull.square().sum())
        descent = 0.5 * (descent + descent.mT)
        own = own_of_cells.double().sum(0)
        reach = -(-CORRELATION_REACH // self.side)
        windows = box_sums(own_of_cells.flatten(1).mT.unflatten(1, self.cells), reach).flatten(1).mT
        freed = without_own_pull(scores, windows.unflatten(1, (dim, dim)), own)
        beside = freed.mT @ box_sums(freed.mT.unflatten(1, self.cells), reach).flatten(1).mT
        # independent noise of pixels shares less curvature in a block than noise that is alike in neighbours
        roughness = float(noise.diagonal(dim1=-2, dim2=-1).sum()) / max(_WHITE_SQUARE * n * square_sum, 1e-30)
        alike = _WHITE_SHARE / (min(roughness, 1.0) ** n * math.sqrt(MIN_BLOCK_SIDE**n))
        noise = noise * min(alike, 1.0) * (count / max(square_sum, torch.finfo(image.dtype).tiny))
        sums = BlockSums(
            -scores.double(),
            descent[None],
            descent[None],
            own[None],
            self._by_blocks(self.fields.mT @ noise @ self.fields).double(),
            alone,
            0.5 * (beside + beside.mT).double(),
            max(count / ((2 * reach + 1) * self.side) ** n, 1.0),
        )
        none = scores.new_zeros(self.channels, 0, dim + 1)
        return CloseComparison(sums, 1.0, float(tables.left.mean().sqrt()), count / self.num_pixels, shown, own, none)
