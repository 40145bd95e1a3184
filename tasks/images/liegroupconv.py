r"""Convolutions on a Lie group that acts on the plane: trained equivariant networks, to compare inversion with.

After L. E. MacDonald, S. Ramasinghe and S. Lucey, "Enabling equivariance for arbitrary Lie groups", 2022 (affConv,
homConv): an image is lifted to functions on the group, group convolutions follow, the maxima over the group are
classified; integrals are Monte Carlo sums, kernels are small networks of algebra coordinates. With
:math:`(g_0 \cdot I)(p) = I(g_0^{-1} p)` and left Haar measure :math:`\mu`,

.. math::
    F(g) = \int I(g p) \, \psi(p) \, dp, \qquad (F \star k)(g) = \int_G F(g h) \, k(h) \, d\mu(h).

:math:`g_0 \cdot I` has the lift :math:`F(g_0^{-1} g)`, and so on for every function after it, whatever finite sets of
points p and elements h stand for the integrals: the layers are equivariant exactly, but for the interpolation between
pixels. Maxima over the whole group would be invariant; those over a sample from a neighbourhood of the identity are
nearly so, for transformations that are small beside it.

A convolution reads its input at g h, for elements h of its own. So the elements g of the maxima are multiplied out,
last layer first, the image is read around every product, and each convolution sums over one factor again.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from einops import repeat
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from trivgeo.checks import check_count, check_positive
from trivgeo.errors import ConfigurationError
from trivgeo.groups import Affine, LieGroup, PointAction, Projective

from ..seeds import generator_of
from .models import ImageClassifier

_SPHERE_CODIMENSION = 6  # codimension of the ball in the sphere projected on it; the window is (1 - |v|^2)^2
_PHASE_SCALE = 6.0  # phases in radians over what layers give: kernels change their sign within their support
_OUTSIDE_COORDINATE = 2.0  # a coordinate that no image reaches


class GroupSample(NamedTuple):
    """Elements near the identity that stand for an integral over the group.

    Attributes:
        coordinates: v in the unit ball, `[m, dim]`; the elements are exp(v).
        elements: `[m, *element_shape]`.
        weights: weights of the elements in the sum, `[m]`.
    """

    coordinates: Tensor
    elements: Tensor
    weights: Tensor


def window_points(count: int, dim: int, generator: torch.Generator) -> Float[Tensor, "m n"]:
    r"""Random points of the unit ball with density proportional to the window :math:`(1 - |v|^2)^2`, float64.

    They are the first coordinates of uniform points of the sphere in six dimensions more.
    """
    points = torch.randn(count, dim + _SPHERE_CODIMENSION, generator=generator, dtype=torch.float64)
    return F.normalize(points, dim=-1)[:, :dim]


def haar_sample(group: LieGroup, count: int, generator: torch.Generator) -> GroupSample:
    r"""Random elements exp(v), v in the unit ball, weighted such that sums are integrals under the window.

    The expectation of :math:`\sum_j w_j f(h_j)` is :math:`\int f(\exp v) \, c (1 - |v|^2)^2 |\det J_r(v)| \, dv`, c the
    constant with which the window has integral one: :math:`|\det J_r|` is the density of left Haar measure in the
    coordinates v.

    Args:
        group: its scale is the half-width of the ball in each direction.
        count: m.
        generator: generator of the random numbers.

    Returns:
        The sample, float64.
    """
    v = window_points(count, group.dim, generator)
    weights = torch.linalg.det(group.right_jacobian(v)).abs() / count
    return GroupSample(v, group.exp(v), weights)


def disc_points(count: int) -> Float[Tensor, "p 2"]:
    r"""A sunflower spiral in the unit disc with density proportional to :math:`(1 - |p|^2)^2`, float64."""
    place = torch.arange(count, dtype=torch.float64)
    # the share of the window's integral beyond a radius r is (1 - r^2)^3
    radius = (1.0 - (1.0 - (place + 0.5) / count).pow(1.0 / 3.0)).sqrt()
    angle = math.pi * (3.0 - math.sqrt(5.0)) * place
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1)


class KernelNetwork(nn.Module):
    """A matrix-valued function on the unit ball: sines and cosines of trained frequencies, one linear layer.

    Args:
        dim: dimension of the ball.
        inputs: rows of the matrix.
        outputs: columns of the matrix.
        width: number of frequencies.
    """

    def __init__(self, dim: int, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.shape = (inputs, outputs)
        self.phase = nn.Linear(dim, width)
        self.mix = nn.Linear(2 * width, inputs * outputs)

    def forward(self, v: Float[Tensor, "m n"]) -> Float[Tensor, "m inputs outputs"]:
        """The matrices at points of the ball."""
        phase = _PHASE_SCALE * self.phase(v)
        return self.mix(torch.cat([phase.cos(), phase.sin()], -1)).unflatten(-1, self.shape)


class Lifting(nn.Module):
    r"""An image as functions on the group: :math:`F(g) = \sum_j I(g p_j) \psi(p_j)`, :math:`p_j` in a disc about 0.

    The image is zero outside its frame, also where a homography sends a point to infinity.

    Args:
        action: action of the group on the plane.
        channels: number of channels of the images.
        radius: radius of the disc; the frame of the image is [-1, 1]^2.
        points: number of points.
        outputs: number of functions.
        width: see `KernelNetwork`.
    """

    coordinates: Tensor
    points: Tensor

    def __init__(
        self, action: PointAction, channels: int, radius: float, points: int, outputs: int, width: int
    ) -> None:
        super().__init__()
        self.action = action
        disc = disc_points(points)
        self.register_buffer("coordinates", disc.float())
        self.register_buffer("points", (radius * disc).float())
        self.kernel = KernelNetwork(2, channels, outputs, width)

    def forward(self, x: Float[Tensor, "b c h w"], g: Tensor) -> Float[Tensor, "b *elements outputs"]:
        """The functions of each image at the elements `[*elements, *element_shape]`."""
        source = self.action(g, self.points).nan_to_num(_OUTSIDE_COORDINATE, _OUTSIDE_COORDINATE, _OUTSIDE_COORDINATE)
        # the images as channels, and their channels as the batch, since all images are read at the same places
        grid = repeat(source.reshape(-1, *self.points.shape), "m p d -> c m p d", c=x.shape[1])
        read = F.grid_sample(x.transpose(0, 1), grid, padding_mode="zeros", align_corners=False)
        lifted = torch.einsum("cbmp,pco->bmo", read, self.kernel(self.coordinates) / len(self.points))
        return lifted.unflatten(1, source.shape[:-2])


class GroupConvolution(nn.Module):
    r""":math:`(F \star k)(g) = \sum_j w_j F(g h_j) k(h_j)`: an integral by a fixed `haar_sample`.

    Args:
        group: its scale is the half-width of the support of the kernel in each direction.
        neighbours: number m of elements h.
        inputs: number of functions F.
        outputs: number of their convolutions.
        width: see `KernelNetwork`.
        generator: generator of the sample.
    """

    coordinates: Tensor
    elements: Tensor
    weights: Tensor

    def __init__(
        self, group: LieGroup, neighbours: int, inputs: int, outputs: int, width: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.group = group
        sample = haar_sample(group, neighbours, generator)
        self.register_buffer("coordinates", sample.coordinates.float())
        self.register_buffer("elements", sample.elements.float())
        self.register_buffer("weights", sample.weights.float())
        self.kernel = KernelNetwork(group.dim, inputs, outputs, width)

    def neighbours(self, g: Tensor) -> Tensor:
        """Where the input must be known, g h: `[*elements, m, *element_shape]`."""
        return self.group.compose(g.unsqueeze(g.ndim - len(self.group.element_shape)), self.elements)

    def forward(self, f: Float[Tensor, "*elements m inputs"]) -> Float[Tensor, "*elements outputs"]:
        """The convolutions at elements g from the functions at their `neighbours`."""
        kernel = self.weights[:, None, None] * self.kernel(self.coordinates)
        return f.flatten(-2) @ kernel.flatten(0, 1)


class Activation(nn.Module):
    """Batch normalisation over images and elements of the group, then the positive part.

    Args:
        channels: number of functions.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, f: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """The functions at the same elements."""
        return F.relu(self.norm(f.reshape(-1, f.shape[-1])).reshape(f.shape))


class LieGroupConv(ImageClassifier):
    """A lifting, group convolutions, maxima over the group, one linear layer; a subclass names the group.

    In training the elements of the maxima are drawn anew for every batch, a function of the seed and the number of the
    batch alone; in evaluation they are fixed. Time and memory go with `samples` times the product of `neighbours`.

    Args:
        images: see `tasks.images.convnet.ConvNet`.
        scale: half-widths of the supports of the kernels, in the natural basis of the group; one number for all.
        spread: half-widths of the neighbourhood of the identity over which the maxima are taken. To transformations
            that are small beside it the network is nearly invariant.
        channels: functions after the lifting and after each convolution.
        neighbours: elements in the sum of each convolution, one number fewer than channels.
        patch: radius of the disc that the lifting reads; the frame is [-1, 1]^2.
        points: number of points that the lifting reads.
        width: frequencies of the kernels.
        samples: elements of the maxima in training.
        evaluation_samples: elements of the maxima in evaluation, worked off `samples` at a time.
        seed: seed of all samples.

    Raises:
        ConfigurationError: a number is out of range, or the lengths do not fit.
    """

    evaluation_elements: Tensor
    batches: Tensor

    def __init__(
        self,
        images: Sequence[int],
        scale: float | Sequence[float] = 0.35,
        spread: float | Sequence[float] = 1.0,
        channels: Sequence[int] = (16, 32, 64),
        neighbours: Sequence[int] = (8, 8),
        patch: float = 0.35,
        points: int = 49,
        width: int = 16,
        samples: int = 64,
        evaluation_samples: int = 256,
        seed: int = 0,
    ) -> None:
        super().__init__(images, any_size=True)
        if len(channels) != len(neighbours) + 1:
            raise ConfigurationError(
                f"channels: expected {len(neighbours) + 1} numbers, those of the lifting and of {len(neighbours)} "
                f"convolutions, got {len(channels)}"
            )
        self.patch = check_positive("patch", patch)
        self.points = check_count("points", points)
        self.width = check_count("width", width)
        self.samples = check_count("samples", samples)
        self.evaluation_samples = check_count("evaluation_samples", evaluation_samples)
        self.seed = seed
        self.channels = [check_count("channels", count) for count in channels]
        self.neighbours = [check_count("neighbours", count) for count in neighbours]
        self.group = group = self.group_of(scale)
        self.region = group.with_scale(spread)
        self.lifting = Lifting(group.action(), self.images.channels, patch, points, self.channels[0], width)
        self.convolutions = nn.ModuleList(
            GroupConvolution(group, count, inputs, outputs, width, generator_of(seed, place))
            for place, (count, (inputs, outputs)) in enumerate(
                zip(self.neighbours, pairwise(self.channels), strict=True)
            )
        )
        self.activations = nn.ModuleList(Activation(count) for count in self.channels)
        self.head = nn.Linear(self.channels[-1], self.images.classes)
        self.register_buffer("evaluation_elements", self._drawn(evaluation_samples, 0).float())
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    @staticmethod
    @abstractmethod
    def group_of(scale: float | Sequence[float]) -> LieGroup:
        """The group, with an action on the plane.

        Raises:
            ConfigurationError: the scale does not fit the group.
        """

    @property
    def architecture(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {
            "images": list(self.images),
            "scale": self.group.scale.tolist(),
            "spread": self.region.scale.tolist(),
            "channels": self.channels,
            "neighbours": self.neighbours,
            "patch": self.patch,
            "points": self.points,
            "width": self.width,
            "samples": self.samples,
            "evaluation_samples": self.evaluation_samples,
            "seed": self.seed,
        }

    def functions(self, x: Float[Tensor, "b c h w"], g: Tensor) -> Float[Tensor, "b m c"]:
        """The functions of the last layer at elements `[m, *element_shape]`."""
        for convolution in reversed(self.convolutions):
            assert isinstance(convolution, GroupConvolution)
            g = convolution.neighbours(g)
        f = self.activations[0](self.lifting(x, g))
        for convolution, activation in zip(self.convolutions, self.activations[1:], strict=True):
            f = activation(convolution(f))
        return f

    def _logits(self, x: Tensor) -> Tensor:
        elements = self.evaluation_elements
        if self.training:
            self.batches += 1
            elements = self._drawn(self.samples, int(self.batches)).to(elements)
        maxima = [self.functions(x, g).amax(1) for g in elements.split(self.samples)]
        return self.head(torch.stack(maxima).amax(0))

    def _drawn(self, count: int, batch: int) -> Tensor:
        """Elements of the maxima, float64: for a batch of training from 1 on, for evaluation 0."""
        points = window_points(count, self.region.dim, generator_of(self.seed, 0, batch))
        return self.region.exp(points)


class AffineConv(LieGroupConv):
    """affConv: on `Affine(2)`; six numbers where `scale` or `spread` are sequences.

    Args:
        options: see `LieGroupConv`.
    """

    @staticmethod
    def group_of(scale: float | Sequence[float]) -> LieGroup:
        return Affine(2, scale)


class HomographyConv(LieGroupConv):
    """homConv: on `Projective(2)`; eight numbers where `scale` or `spread` are sequences.

    Args:
        options: see `LieGroupConv`.
    """

    @staticmethod
    def group_of(scale: float | Sequence[float]) -> LieGroup:
        return Projective(2, scale)
