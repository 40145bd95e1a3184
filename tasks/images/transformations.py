"""Random transformations of images: the recipes of the test sets, and broad noise on a group."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trivgeo.actions.image import half_sides, pixel_centres
from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import SO, Affine, LieGroup, Projective, Similarity


class RandomTransformations(ABC):
    """A random transformation for an image; each image has a generator of its own."""

    group: LieGroup

    @abstractmethod
    def draw(self, images: Float[Tensor, "b c h w"], generators: Sequence[torch.Generator]) -> Float[Tensor, "b ..."]:
        """Elements `[b, *element_shape]` of `group`, float64 on the CPU.

        Element i depends on image i and generator i alone, so not on how the images are put into batches.
        """


class AffineRecipe(RandomTransformations):
    r"""The recipe of affNIST: g = (A, b) with A = rotation(theta) [[1, shear], [0, 1]] diag(scale_x, scale_y).

    theta, shear and the two scales are uniform and independent, about the centre of the frame. The translation b is
    uniform among those that keep all ink inside the frame: every pixel of clean ink is a square, and its image under g
    stays inside. Ink that A makes too large for the frame in a direction is centred in that direction.
    T. Tieleman, "affNIST", 2013.

    Args:
        degrees: largest rotation.
        shear: largest shear.
        scale_min: smallest scale.
        scale_max: largest scale.

    Raises:
        ConfigurationError: a bound is negative or not finite, or not 0 < scale_min <= scale_max.
    """

    def __init__(
        self, degrees: float = 20.0, shear: float = 0.2, scale_min: float = 0.8, scale_max: float = 1.2
    ) -> None:
        _check_bounds(degrees=degrees, shear=shear)
        _check_scales(scale_min, scale_max)
        self.group: Affine = Affine(2)
        angle = math.radians(degrees)
        self._low = torch.tensor([-angle, -shear, scale_min, scale_min], dtype=torch.float64)
        self._high = torch.tensor([angle, shear, scale_max, scale_max], dtype=torch.float64)

    def draw(self, images: Float[Tensor, "b c h w"], generators: Sequence[torch.Generator]) -> Float[Tensor, "b 2 3"]:
        uniform = torch.stack([torch.rand(6, generator=g, dtype=torch.float64) for g in generators])
        angle, shear, scale_x, scale_y = (self._low + (self._high - self._low) * uniform[:, :4]).unbind(-1)
        cos, sin = angle.cos(), angle.sin()
        first = torch.stack([cos * scale_x, sin * scale_x], -1)
        second = torch.stack([(cos * shear - sin) * scale_y, (sin * shear + cos) * scale_y], -1)
        linear = torch.stack([first, second], -1)
        low, high = self._extent(linear, (images > 0).any(1))
        sides = 2.0 * linear.new_tensor(half_sides(*images.shape[-2:]))
        middle, room = -0.5 * (low + high), (sides - (high - low)).clamp_min(0.0)
        return self.group.join(linear, middle + (uniform[:, 4:] - 0.5) * room)

    @staticmethod
    def _extent(linear: Tensor, ink: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of the image of the ink under the linear part, `[b, 2]` each; those of the frame without ink."""
        height, width = ink.shape[-2:]
        centres = pixel_centres((height, width), linear)
        moved = centres @ linear.mT
        half = linear.abs() @ torch.tensor([1.0 / max(height, width)] * 2, dtype=torch.float64)
        outside = ~ink.flatten(1).unsqueeze(-1)
        low = moved.masked_fill(outside, math.inf).amin(1) - half
        high = moved.masked_fill(outside, -math.inf).amax(1) + half
        blank = outside.all(1)
        sides = linear.new_tensor(half_sides(height, width)).expand_as(low)
        return torch.where(blank, -sides, low), torch.where(blank, sides, high)


class SimilarityRecipe(RandomTransformations):
    """Rotation, scale and shift about the middle of the frame, independent: uniform, the scale in its logarithm.

    Args:
        degrees: largest rotation.
        scale_min: smallest scale.
        scale_max: largest scale.
        shift: largest shift in each direction, as a share of the frame.

    Raises:
        ConfigurationError: a bound is negative or not finite, or not 0 < scale_min <= scale_max.
    """

    def __init__(
        self, degrees: float = 90.0, scale_min: float = 0.6, scale_max: float = 1.6, shift: float = 0.2
    ) -> None:
        _check_bounds(degrees=degrees, shift=shift)
        _check_scales(scale_min, scale_max)
        self.group: Similarity = Similarity(2)
        bounds = [math.radians(degrees), 0.5 * math.log(scale_max / scale_min), 2.0 * shift, 2.0 * shift]
        self._bounds = torch.tensor(bounds, dtype=torch.float64)  # the frame is two wide
        self._middle = math.sqrt(scale_min * scale_max)

    def draw(self, images: Float[Tensor, "b c h w"], generators: Sequence[torch.Generator]) -> Float[Tensor, "b 2 3"]:
        uniform = torch.stack([torch.rand(4, generator=g, dtype=torch.float64) for g in generators])
        angle, stretch, shift = (self._bounds * (2.0 * uniform - 1.0)).split([1, 1, 2], -1)
        return self.group.from_parts(SO(2).exp(angle), self._middle * stretch.squeeze(-1).exp(), shift)


class HomographyRecipe(RandomTransformations):
    r"""The recipe of homNIST: right Haar measure on a box of algebra coordinates, by a Metropolis walk.

    Elements are exp(v) with |v_i| <= box_i in the natural basis of `Projective(2)`. Without a bound the measure is
    infinite: in coordinates its density |det d exp| = |det phi_1(ad v)| grows exponentially along the hyperbolic
    directions. The published walk has steps N(0, (s / 2)^2) and is restricted to a region that is not stated; a box of
    half-width s is the one that goes with such steps, and on it the exponential is one to one and every homography is
    defined on the frame. A walk starts at zero; a step out of the box is refused, another is taken with probability
    min(1, |det d exp(v')| / |det d exp(v)|). L. E. MacDonald et al., "Enabling equivariance for arbitrary Lie groups",
    2022.

    Args:
        box: half-widths s of the box.
        steps: number of steps of the walk.

    Raises:
        ConfigurationError: not eight positive half-widths, or no steps.
    """

    def __init__(
        self,
        box: Sequence[float] = (0.15, 0.35, 0.17, 0.35, 0.15, 0.17, 0.15, 0.15),
        steps: int = 100,
    ) -> None:
        self.group: Projective = Projective(2)
        if len(box) != self.group.dim:
            raise ConfigurationError(f"box: expected {self.group.dim} half-widths, got {len(box)}")
        self.box = torch.tensor([check_positive("box", s) for s in box], dtype=torch.float64)
        self.steps = check_count("steps", steps)

    def draw(self, images: Float[Tensor, "b c h w"], generators: Sequence[torch.Generator]) -> Float[Tensor, "b 3 3"]:
        return self.group.exp(self.walk(generators))

    def walk(self, generators: Sequence[torch.Generator]) -> Float[Tensor, "b 8"]:
        """Where the walks end, in algebra coordinates."""
        n = self.group.dim
        moves = torch.stack([torch.randn(self.steps, n, generator=g, dtype=torch.float64) for g in generators], 1)
        levels = torch.stack([torch.rand(self.steps, generator=g, dtype=torch.float64) for g in generators], 1).log()
        v = torch.zeros(len(generators), n, dtype=torch.float64)
        density = self.log_density(v)
        for move, level in zip(moves, levels, strict=True):
            proposal = v + 0.5 * self.box * move
            proposed = self.log_density(proposal)
            taken = self.inside(proposal) & (level < proposed - density)
            v = torch.where(taken.unsqueeze(-1), proposal, v)
            density = torch.where(taken, proposed, density)
        return v

    def inside(self, v: Float[Tensor, "*batch 8"]) -> Bool[Tensor, "*batch"]:
        """Whether coordinates are in the box."""
        return (v.abs() <= self.box).all(-1)

    def log_density(self, v: Float[Tensor, "*batch 8"]) -> Float[Tensor, "*batch"]:
        r"""log |det phi_1(ad v)|: the density of Haar measure, left or right, at exp(v) (the group is unimodular).

        The eigenvalues of ad v are the differences of those of the matrix of v, so this is the sum over the three
        pairs of :math:`2 \log |\sinh z / z|`, z half a difference.
        """
        values = torch.linalg.eigvals(self.group.hat(v))
        half = 0.5 * (values - values.roll(1, -1))
        same = half == 0
        ratio = torch.where(same, 1.0, half.sinh() / torch.where(same, 1.0, half))
        return 2.0 * ratio.abs().log().sum(-1)


class NoTransformation(RandomTransformations):
    """The identity, for clean test images.

    Args:
        group: whose identity.
    """

    def __init__(self, group: LieGroup | None = None) -> None:
        self.group = Affine(2) if group is None else group

    def draw(self, images: Float[Tensor, "b c h w"], generators: Sequence[torch.Generator]) -> Float[Tensor, "b ..."]:
        return self.group.identity(len(generators), dtype=torch.float64)


class BroadNoise(RandomTransformations):
    """exp(v), v ~ N(0, (r spread)^2) with r ~ U(0, 1): near the identity and far from it.

    Args:
        group: the group, in its natural basis.
        spread: largest standard deviation in each direction of its basis.

    Raises:
        ConfigurationError: not as many positive numbers as the group has dimensions.
    """

    def __init__(self, group: LieGroup, spread: Sequence[float]) -> None:
        if len(spread) != group.dim:
            raise ConfigurationError(f"spread: expected {group.dim} numbers for {group!r}, got {len(spread)}")
        self.group = group
        self.spread = torch.tensor([check_positive("spread", s) for s in spread], dtype=torch.float64)

    def draw(self, images: Float[Tensor, "b c h w"], generators: Sequence[torch.Generator]) -> Float[Tensor, "b ..."]:
        v = torch.stack([torch.randn(self.group.dim, generator=g, dtype=torch.float64) for g in generators])
        r = torch.stack([torch.rand(1, generator=g, dtype=torch.float64) for g in generators])
        return self.group.exp(r * self.spread * v)


def _check_bounds(**bounds: float) -> None:
    for name, value in bounds.items():
        if not (math.isfinite(value) and value >= 0):
            raise ConfigurationError(f"{name}: expected a finite number of at least 0, got {value}")


def _check_scales(scale_min: float, scale_max: float) -> None:
    if not 0 < scale_min <= scale_max < math.inf:
        raise ConfigurationError(f"expected 0 < scale_min <= scale_max, got {scale_min} and {scale_max}")


def affine_noise(linear: float = 0.3, translation: float = 0.4) -> BroadNoise:
    """Broad noise on the affine group of the plane.

    Args:
        linear: largest standard deviation of the four linear directions.
        translation: spread of the two translations; the frame is [-1, 1]^2.
    """
    return BroadNoise(Affine(2), [linear] * 4 + [translation] * 2)


def homography_noise(linear: float = 0.3, translation: float = 0.4, perspective: float = 0.2) -> BroadNoise:
    """Broad noise on the projective group of the plane.

    Args:
        linear: see `affine_noise`.
        translation: see `affine_noise`.
        perspective: spread of the two perspective directions.
    """
    return BroadNoise(Projective(2), [linear, linear, translation] * 2 + [perspective] * 2)
