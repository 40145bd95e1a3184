"""Transformed test images: drawn by the recipes of affNIST and homNIST, or read from the published files."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.utils.data import Dataset

from trivgeo.actions import ImageWarp
from trivgeo.actions.image import Interpolation
from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError, DomainError, ShapeError
from trivgeo.groups import Affine, LieGroup, Projective

from ..problems import Problems
from ..seeds import generator_of
from .data import framed, unit_range
from .mat import FORMAT, MatImages, read_affnist, read_homnist
from .mnist import MNIST
from .models import ImageFormat
from .sources import ImageSource
from .transformations import RandomTransformations


class ImageProblems(NamedTuple):
    """Transformed images with labels and true transformations.

    Attributes:
        place: indices of the images in the whole test set, `[b]`.
        image: the transformed images x~ = g.x, what an inverter sees, `[b, c, h, w]`.
        label: the classes, `[b]`.
        clean: the images x before the transformation; NaN where they are not known.
        element: the transformations g, `[b, *element_shape]`; NaN where they are not known.
        seed: seed of the inverter's noise.
        number: number of the batch among those of its seed.
    """

    place: Int[Tensor, " b"]
    image: Float[Tensor, "b c h w"]
    label: Int[Tensor, " b"]
    clean: Float[Tensor, "b c h w"]
    element: Float[Tensor, "b ..."]
    seed: int = 0
    number: int = 0


class ProblemSet(Dataset[ImageProblems], ABC):
    """Transformed images by batches: an index is a list of numbers of images."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abstractmethod
    def __getitem__(self, places: list[int]) -> ImageProblems:
        """The images at these places."""


class DrawnProblems(ProblemSet):
    """Images moved by random elements; image i is a function of (seed, i) alone.

    Args:
        source: source of the test images.
        transformations: the distribution of the elements.
        seed: seed of the elements.
        mode: mode of interpolation, see `trivgeo.actions.ImageWarp`.
    """

    def __init__(
        self, source: ImageSource, transformations: RandomTransformations, seed: int, mode: Interpolation = "bilinear"
    ) -> None:
        self.images = source.test()
        self.frame = source.frame
        self.transformations = transformations
        self.seed = seed
        self.action = ImageWarp(transformations.group, mode)

    def __len__(self) -> int:
        return len(self.images.labels)

    def __getitem__(self, places: list[int]) -> ImageProblems:
        """The images at these places, transformed.

        Raises:
            DomainError: a transformation is not defined on the frame.
            ShapeError: what is drawn are no elements of its group.
        """
        clean = framed(self.images.images[places], self.frame)
        element = self.transformations.draw(clean, [generator_of(self.seed, place) for place in places]).to(clean.dtype)
        group = self.transformations.group
        if element.shape != (len(places), *group.element_shape):
            raise ShapeError(
                f"{type(self.transformations).__name__}.draw: expected elements {[len(places), *group.element_shape]} "
                f"of {group!r}, got {list(element.shape)}"
            )
        image = self.action(element, clean)
        if not bool(torch.isfinite(image).all()):
            raise DomainError(f"{self.transformations}: expected transformations that are defined on the whole frame")
        return ImageProblems(torch.tensor(places), image, self.images.labels[places], clean, element)


class ReadProblems(ProblemSet):
    """Published images, with labels and nothing else.

    Args:
        images: grey values, bytes or numbers in [0, 1], `[n, 40, 40]`.
        labels: the digits, `[n]`.
        group: the group whose elements moved them.
    """

    def __init__(self, images: Shaped[Tensor, "n 40 40"], labels: Int[Tensor, " n"], group: LieGroup) -> None:
        self.images = images
        self.labels = labels
        self.group = group

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, places: list[int]) -> ImageProblems:
        image = unit_range(self.images[places].unsqueeze(1))
        element = image.new_full((len(places), *self.group.element_shape), math.nan)
        return ImageProblems(
            torch.tensor(places), image, self.labels[places], torch.full_like(image, math.nan), element
        )


class ImageTest(Problems, ABC):
    """Test images in a random order that depends on one seed alone: a smaller limit takes the first of them.

    The images do not change with `seeds`; all of them are tested once for each, with other noise of the inverter.

    Args:
        limit: number of images; all when None.
        batch_size: images a batch.
        seed: seed of the order, and of the transformations where they are drawn.
        seeds: see `Problems`; 0 alone when None.

    Raises:
        ConfigurationError: a count is not positive, or as `Problems`.
    """

    inputs: ImageFormat

    def __init__(self, limit: int | None, batch_size: int, seed: int, seeds: list[int] | None) -> None:
        super().__init__([0] if seeds is None else seeds)
        self.limit = None if limit is None else check_count("limit", limit)
        self.batch_size = check_count("batch_size", batch_size)
        self.seed = seed

    @abstractmethod
    def problems(self) -> ProblemSet:
        """All images."""

    def setup(self, stage: str) -> None:
        """Read the images."""
        self._problems = self.problems()
        order = torch.randperm(len(self._problems), generator=torch.Generator().manual_seed(self.seed))
        self._places = order[: self.limit].split(self.batch_size)

    @property
    def batches(self) -> int:
        return len(self._places)

    def batch(self, seed: int, number: int) -> ImageProblems:
        return self._problems[self._places[number].tolist()]._replace(seed=seed, number=number)


class DrawnTest(ImageTest):
    """Test images moved by elements that are drawn by a recipe.

    Args:
        transformations: the distribution of the elements.
        source: see `tasks.images.data.CleanTraining`.
        limit: see `ImageTest`.
        batch_size: see `ImageTest`.
        seed: see `ImageTest`.
        seeds: see `ImageTest`.
        mode: mode of interpolation of the moved images, see `trivgeo.actions.ImageWarp`.
    """

    def __init__(
        self,
        transformations: RandomTransformations,
        source: ImageSource | None = None,
        limit: int | None = None,
        batch_size: int = 100,
        seed: int = 0,
        seeds: list[int] | None = None,
        mode: Interpolation = "bilinear",
    ) -> None:
        super().__init__(limit, batch_size, seed, seeds)
        self.mode = mode
        self.source = MNIST() if source is None else source
        self.inputs = self.source.format
        self.transformations = transformations

    def prepare_data(self) -> None:
        """Fetch the images."""
        self.source.prepare()

    def problems(self) -> DrawnProblems:
        return DrawnProblems(self.source, self.transformations, self.seed, self.mode)


class PublishedFiles(ImageTest):
    """Published test images, one after the other from several files.

    Args:
        files: `.mat` files, one or more.
        limit: see `ImageTest`.
        batch_size: see `ImageTest`.
        seed: see `ImageTest`.
        seeds: see `ImageTest`.

    Raises:
        ConfigurationError: no files.
    """

    inputs = FORMAT

    def __init__(
        self,
        files: list[str],
        limit: int | None = 10_000,
        batch_size: int = 100,
        seed: int = 0,
        seeds: list[int] | None = None,
    ) -> None:
        super().__init__(limit, batch_size, seed, seeds)
        if not files:
            raise ConfigurationError("files: expected at least one .mat file, got none")
        self.files = [Path(file) for file in files]

    def read(self, reader: Callable[[Path], MatImages], group: LieGroup) -> ReadProblems:
        """All images of the files.

        Args:
            reader: gives the images of one file and their digits.
            group: see `ReadProblems`.
        """
        images, labels = zip(*map(reader, self.files), strict=True)
        return ReadProblems(torch.cat(images), torch.cat(labels), group)


class AffNISTFiles(PublishedFiles):
    """The published affNIST test images: one or more of the 32 files of `transformed/test_batches`."""

    def problems(self) -> ReadProblems:
        return self.read(read_affnist, Affine(2))


class HomNISTFiles(PublishedFiles):
    """The published homNIST test images."""

    def problems(self) -> ReadProblems:
        return self.read(read_homnist, Projective(2))
