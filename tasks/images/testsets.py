"""Transformed test digits: drawn by the recipes of affNIST and homNIST, or read from the published files."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import lightning.pytorch as pl
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tasks.images.data import OrderedBatches, framed, grey
from tasks.images.laws import TransformationLaw
from tasks.images.mat import MatImages, read_affnist, read_homnist
from tasks.images.mnist import MNIST, Digits, DigitSource
from tasks.images.seeds import generator_of
from trivgeo.actions import ImageWarp
from trivgeo.checks import check_count
from trivgeo.errors import ConfigurationError, DomainError
from trivgeo.groups import Affine, LieGroup, Projective


class ImageProblems(NamedTuple):
    """Transformed images and what is known of them.

    Attributes:
        place: their places in the whole test set, `[b]`.
        image: the transformed images x~ = g.x, what an inverter sees, `[b, 1, 40, 40]`.
        label: the digits, `[b]`.
        clean: the images x before the transformation; NaN where they are not known.
        element: the transformations g, `[b, *element_shape]`; NaN where they are not known.
    """

    place: Int[Tensor, " b"]
    image: Float[Tensor, "b 1 40 40"]
    label: Int[Tensor, " b"]
    clean: Float[Tensor, "b 1 40 40"]
    element: Float[Tensor, "b ..."]


class ProblemSet(Dataset[ImageProblems], ABC):
    """Transformed images in batches: the index is a list of places."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abstractmethod
    def __getitem__(self, places: list[int]) -> ImageProblems:
        """The images at these places."""


class DrawnProblems(ProblemSet):
    """Digits moved by random elements; image i is a function of (seed, i) alone.

    Args:
        digits: the digits.
        law: of the elements.
        seed: of the elements.
    """

    def __init__(self, digits: Digits, law: TransformationLaw, seed: int) -> None:
        self.digits = digits
        self.law = law
        self.seed = seed
        self.action = ImageWarp(law.group)

    def __len__(self) -> int:
        """The number of digits."""
        return len(self.digits.labels)

    def __getitem__(self, places: list[int]) -> ImageProblems:
        """The digits at these places, transformed.

        Raises:
            DomainError: a transformation is not defined on the frame.
        """
        clean = framed(self.digits.images[places])
        element = self.law.draw(clean, [generator_of(self.seed, place) for place in places]).to(clean.dtype)
        image = self.action(element, clean)
        if not bool(torch.isfinite(image).all()):
            raise DomainError(f"{self.law}: expected transformations that are defined on the whole frame")
        return ImageProblems(torch.tensor(places), image, self.digits.labels[places], clean, element)


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
        """The number of images."""
        return len(self.labels)

    def __getitem__(self, places: list[int]) -> ImageProblems:
        """The images at these places."""
        image = grey(self.images[places].unsqueeze(1))
        element = image.new_full((len(places), *self.group.element_shape), math.nan)
        return ImageProblems(
            torch.tensor(places), image, self.labels[places], torch.full_like(image, math.nan), element
        )


class _Chosen(Dataset[ImageProblems]):
    """Problems in another order."""

    def __init__(self, problems: ProblemSet, order: Int[Tensor, " n"]) -> None:
        self._problems = problems
        self._order = order

    def __getitem__(self, places: list[int]) -> ImageProblems:
        return self._problems[self._order[places].tolist()]


class ImageTest(pl.LightningDataModule, ABC):
    """Test images in a random order that depends on the seed alone: a smaller limit takes the first of them.

    Args:
        limit: how many images; all when None.
        batch_size: images a batch.
        seed: of the order, and of the transformations where they are drawn.

    Raises:
        ConfigurationError: a count is not positive.
    """

    def __init__(self, limit: int | None, batch_size: int, seed: int) -> None:
        super().__init__()
        self.limit = None if limit is None else check_count("limit", limit)
        self.batch_size = check_count("batch_size", batch_size)
        self.seed = seed

    @abstractmethod
    def problems(self) -> ProblemSet:
        """All images."""

    def setup(self, stage: str) -> None:
        """Read the images."""
        problems = self.problems()
        order = torch.randperm(len(problems), generator=torch.Generator().manual_seed(self.seed))[: self.limit]
        self.chosen, self.count = _Chosen(problems, order), len(order)

    def test_dataloader(self) -> DataLoader[ImageProblems]:
        """The images."""
        return DataLoader(self.chosen, batch_size=None, sampler=OrderedBatches(self.count, self.batch_size))


class DrawnTest(ImageTest):
    """Test digits moved by elements that are drawn by a recipe.

    Args:
        source: where the digits come from; MNIST when None.
        law: of the elements.
        limit: see `ImageTest`.
        batch_size: see `ImageTest`.
        seed: see `ImageTest`.
    """

    def __init__(
        self,
        law: TransformationLaw,
        source: DigitSource | None = None,
        limit: int | None = None,
        batch_size: int = 100,
        seed: int = 0,
    ) -> None:
        super().__init__(limit, batch_size, seed)
        self.source = MNIST() if source is None else source
        self.law = law

    def prepare_data(self) -> None:
        """Fetch the digits."""
        self.source.prepare()

    def problems(self) -> DrawnProblems:
        """All test digits, each moved by one element."""
        return DrawnProblems(self.source.test(), self.law, self.seed)


class PublishedFiles(ImageTest):
    """Published test images, one after the other from several files.

    Args:
        files: `.mat` files, one or more.
        limit: see `ImageTest`.
        batch_size: see `ImageTest`.
        seed: see `ImageTest`.

    Raises:
        ConfigurationError: no files.
    """

    def __init__(self, files: list[str], limit: int | None = 10_000, batch_size: int = 100, seed: int = 0) -> None:
        super().__init__(limit, batch_size, seed)
        if not files:
            raise ConfigurationError("files: expected at least one .mat file, got none")
        self.files = [Path(file) for file in files]

    def read(self, reader: Callable[[Path], MatImages], group: LieGroup) -> ReadProblems:
        """All images of the files.

        Args:
            reader: gives the images of one file and their digits.
            group: the group whose elements moved them.
        """
        images, labels = zip(*map(reader, self.files), strict=True)
        return ReadProblems(torch.cat(images), torch.cat(labels), group)


class AffNISTFiles(PublishedFiles):
    """The published affNIST test images: one or more of the 32 files of `transformed/test_batches`."""

    def problems(self) -> ReadProblems:
        """All images of the files, moved by affine maps."""
        return self.read(read_affnist, Affine(2))


class HomNISTFiles(PublishedFiles):
    """The published homNIST test images."""

    def problems(self) -> ReadProblems:
        """All images of the files, moved by homographies."""
        return self.read(read_homnist, Projective(2))
